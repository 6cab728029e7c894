/* SPDX-License-Identifier: Apache-2.0 */
/* An epoch made from what was read of it: each sample once, the order's rules
 * kept, what does not fit refused. */
#include "proto/permutation.h"
#include "tests/daemon/epoch/model.h"

#include <criterion/criterion.h>

#define N MODEL_SAMPLES

static void stir(void)
{
        for (int i = 0; i < 3; i++)
                cache.here[sheaf_random_below(&cache.random, N)] ^= true;
}

static const struct sheaf_job_config orders[] = {
        { .order = SHEAF_ORDER_SHARED, .ahead = 32 },
        { .order = SHEAF_ORDER_WINDOW, .seed = 5, .window = 50, .ahead = 32 },
        { .order = SHEAF_ORDER_WINDOW, .seed = 5, .window = 1, .ahead = 32 },
        { .order = SHEAF_ORDER_STRICT, .seed = 5, .ahead = 32 },
};

/* What was read by slots below @yielded; some beyond are bound too. */
static struct sheaf_run_state interrupted(const struct sheaf_job_config *config,
        uint32_t yielded, uint8_t read[N / 8 + 1])
{
        struct sheaf_cohort *cohort = model_cohort(N);
        struct sheaf_job *job, *mate;
        struct sheaf_run_state state = { 0 };
        struct sheaf_run *run, *other;

        cr_assert_eq(sheaf_job_new(cohort, config, &job), 0);
        cr_assert_eq(sheaf_job_new(cohort, config, &mate), 0);
        sheaf_job_set_rate(job, 1);
        sheaf_job_set_rate(mate, 2);
        cr_assert_eq(sheaf_run_begin(job, 4, &run), 0);
        cr_assert_eq(sheaf_run_begin(mate, 9, &other), 0);
        memset(read, 0, N / 8 + 1);
        for (uint32_t slot = 0; slot < SHEAF_MIN(yielded + 40, N); slot++) {
                struct sheaf_bound bound;

                stir();
                cr_assert_eq(sheaf_run_bind(other, slot, slot, &bound), 0);
                cache.here[bound.sample] = true;
                cr_assert_eq(sheaf_run_bind(run, slot, slot, &bound), 0);
                if (slot < yielded)
                        read[bound.sample / 8] |=
                                (uint8_t)(1 << bound.sample % 8);
        }
        sheaf_run_identity(run, &state);
        sheaf_job_free(job);
        sheaf_job_free(mate);
        sheaf_cohort_free(cohort);
        return state;
}

static void goes_on(const struct sheaf_job_config *config, uint32_t yielded)
{
        uint8_t read[N / 8 + 1];
        struct sheaf_run_state state = interrupted(config, yielded, read);
        struct sheaf_cohort *cohort = model_cohort(N);
        static bool seen[N];
        uint32_t(*replaced)[2];
        struct sheaf_job *job;
        struct sheaf_run *run;

        cr_assert_eq(sheaf_job_new(cohort, config, &job), 0);
        cr_assert_eq(sheaf_run_recall(N, yielded, read, &state, &replaced), 0);
        cr_assert_eq(state.high, yielded);
        cr_assert_eq(sheaf_run_restore(config, N, &state, &run), 0);
        free(replaced);
        cr_assert(!sheaf_run_touched(run));
        sheaf_run_adopt(job, run);
        cr_assert_eq(sheaf_run_find(job, 4), run);
        cr_assert_eq(sheaf_run_bound(run), yielded);
        memset(seen, 0, sizeof(seen));
        for (uint32_t slot = 0; slot < N; slot++) {
                uint32_t own;
                struct sheaf_bound bound;

                stir();
                cr_assert_eq(sheaf_run_bind(run, slot, slot, &bound), 0);
                cr_assert_eq(bound.again, slot < yielded);
                cr_assert(!seen[bound.sample]);
                seen[bound.sample] = true;
                cr_assert_eq(slot < yielded,
                        read[bound.sample / 8] >> bound.sample % 8 & 1);
                if (config->order != SHEAF_ORDER_WINDOW)
                        continue;
                for (own = slot / config->window * config->window;
                        sheaf_run_target(run, own) != bound.sample; own++)
                        cr_assert_lt(own % config->window, config->window);
                cr_assert_eq(own / config->window, slot / config->window);
        }
        cr_assert_eq(sheaf_run_begin(job, 5, &run), 0);
        sheaf_job_free(job);
        sheaf_cohort_free(cohort);
}

Test(recall, goes_on_with_each_sample_once)
{
        static const uint32_t yielded[] = { 0, 1, 32, 49, 50, 51, 500, 1002,
                N };

        cache.random = 3;
        for (size_t o = 0; o < SHEAF_ARRAY_LEN(orders); o++)
                for (size_t i = 0; i < SHEAF_ARRAY_LEN(yielded); i++)
                        goes_on(&orders[o], yielded[i]);
}

/* A bit more, a bit less; another number of slots; a sample that the order
 * cannot have put there. */
Test(recall, what_does_not_fit_is_refused)
{
        uint8_t read[N / 8 + 1];
        struct sheaf_run_state state;
        uint32_t(*replaced)[2];
        struct sheaf_run *run;

        for (size_t o = 0; o < SHEAF_ARRAY_LEN(orders); o++) {
                struct sheaf_permutation targets;
                uint32_t early, late;

                state = interrupted(&orders[o], 500, read);
                cr_assert_eq(sheaf_run_recall(N, 499, read, &state, &replaced),
                        -EBADMSG);
                cr_assert_eq(sheaf_run_recall(N, 501, read, &state, &replaced),
                        -EBADMSG);
                cr_assert_eq(
                        sheaf_run_recall(N, N + 1, read, &state, &replaced),
                        -EBADMSG);
                /* one of the first block unread, one of the last read */
                sheaf_permutation_init(&targets, N, state.seed, state.stream);
                early = sheaf_permutation_at(&targets, 3);
                late = sheaf_permutation_at(&targets, 1000);
                if (!(read[early / 8] >> early % 8 & 1) ||
                        read[late / 8] >> late % 8 & 1)
                        continue; /* of the shared order it may be so */
                read[early / 8] ^= (uint8_t)(1 << early % 8);
                read[late / 8] ^= (uint8_t)(1 << late % 8);
                cr_assert_eq(
                        sheaf_run_recall(N, 500, read, &state, &replaced), 0);
                cr_assert_eq(sheaf_run_restore(&orders[o], N, &state, &run),
                        orders[o].order == SHEAF_ORDER_SHARED ? 0 : -EBADMSG);
                if (orders[o].order == SHEAF_ORDER_SHARED)
                        sheaf_run_free(run);
                free(replaced);
        }
}

/* A fourth epoch takes the place of the one that was not used for longest. */
Test(recall, old_epochs_come_back)
{
        struct sheaf_cohort *cohort = model_cohort(N);
        struct sheaf_run_state state = { 0 };
        struct sheaf_job *job;
        struct sheaf_run *run;
        struct sheaf_bound bound;

        cr_assert_eq(sheaf_job_new(cohort, &orders[3], &job), 0);
        for (uint64_t epoch = 5; epoch < 9; epoch++) {
                cr_assert_eq(sheaf_run_begin(job, epoch, &run), 0);
                cr_assert_eq(sheaf_run_bind(run, 7, 1, &bound), 0);
        }
        cr_assert_null(sheaf_run_find(job, 5));
        cr_assert_eq(sheaf_run_begin(job, 5, &run), -ESTALE);
        cr_assert_not_null(sheaf_run_find(job, 6));
        state.epoch = 5;
        state.seed = 5;
        state.stream = 5;
        state.high = 100;
        cr_assert_eq(sheaf_run_restore(&orders[3], N, &state, &run), 0);
        sheaf_run_adopt(job, run);
        cr_assert_eq(sheaf_run_find(job, 5), run);
        cr_assert_null(sheaf_run_find(job, 7));
        cr_assert_not_null(sheaf_run_find(job, 6));
        cr_assert_not_null(sheaf_run_find(job, 8));
        cr_assert_eq(sheaf_run_begin(job, 9, &run), 0);
        cr_assert_null(sheaf_run_find(job, 5));
        sheaf_job_free(job);
        sheaf_cohort_free(cohort);
}
