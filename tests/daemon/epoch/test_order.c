/* SPDX-License-Identifier: Apache-2.0 */
/* Orders: exactly once whatever is asked and cached, idempotent, displaced by
 * less than a window, strata kept, jobs together. */
#include "proto/permutation.h"
#include "tests/daemon/epoch/model.h"

#include <criterion/criterion.h>

#define N MODEL_SAMPLES

static void stir(uint32_t changes)
{
        while (changes--)
                cache.here[sheaf_random_below(&cache.random, N)] =
                        sheaf_random(&cache.random) & 1;
}

static struct sheaf_cohort *cohort_of(uint32_t samples)
{
        cache.random = 3;
        return model_cohort(samples);
}

static struct sheaf_job *job_of(
        struct sheaf_cohort *cohort, enum sheaf_order order, uint32_t window)
{
        struct sheaf_job_config config = {
                .order = order, .seed = 5, .window = window, .ahead = 32
        };
        struct sheaf_job *job = NULL;

        cr_assert_eq(sheaf_job_new(cohort, &config, &job), 0);
        return job;
}

static struct sheaf_run *begin(struct sheaf_job *job, uint64_t epoch)
{
        struct sheaf_run *run = NULL;

        cr_assert_eq(sheaf_run_begin(job, epoch, &run), 0);
        return run;
}

static uint32_t bind(struct sheaf_run *run, uint32_t slot)
{
        static int64_t now_ns;
        struct sheaf_bound bound;

        cr_assert_eq(sheaf_run_bind(run, slot, ++now_ns, &bound), 0);
        cr_assert(!bound.again);
        cr_assert_eq(bound.fetch, !cache.here[bound.sample]);
        cr_assert_eq(
                bound.replaced, bound.sample != sheaf_run_target(run, slot));
        return bound.sample;
}

static const struct {
        enum sheaf_order order;
        uint32_t window;
} orders[] = {
        { SHEAF_ORDER_SHARED, 0 },
        { SHEAF_ORDER_STRICT, 0 },
        { SHEAF_ORDER_WINDOW, 1 },
        { SHEAF_ORDER_WINDOW, 10 },
        { SHEAF_ORDER_WINDOW, 64 },
        { SHEAF_ORDER_WINDOW, N },
        { SHEAF_ORDER_WINDOW, 5 * N },
};

/* Slots in any order, jobs in turns, a cache that changes under them. */
Test(order, every_sample_once_an_epoch)
{
        for (size_t o = 0; o < SHEAF_ARRAY_LEN(orders); o++) {
                struct sheaf_cohort *cohort = cohort_of(N);
                struct sheaf_job *jobs[3];
                struct sheaf_permutation asked;

                for (int j = 0; j < 3; j++)
                        jobs[j] = job_of(
                                cohort, orders[o].order, orders[o].window);
                for (uint64_t epoch = 0; epoch < 4; epoch++) {
                        static bool seen[3][N];

                        memset(seen, 0, sizeof(seen));
                        sheaf_permutation_init(&asked, N, epoch, o);
                        for (uint32_t i = 0; i < N; i++) {
                                for (int j = 0; j < 3; j++) {
                                        uint32_t slot =
                                                epoch % 2
                                                        ? i
                                                        : sheaf_permutation_at(
                                                                  &asked, i);
                                        uint32_t x = bind(
                                                begin(jobs[j], epoch), slot);

                                        cr_assert(!seen[j][x], "order %zu", o);
                                        seen[j][x] = true;
                                        cache.here[x] = true;
                                }
                                stir(5);
                        }
                }
                for (int j = 0; j < 3; j++)
                        sheaf_job_free(jobs[j]);
                sheaf_cohort_free(cohort);
        }
}

Test(order, a_slot_asked_again_gives_the_same_sample)
{
        for (size_t o = 0; o < SHEAF_ARRAY_LEN(orders); o++) {
                struct sheaf_cohort *cohort = cohort_of(N);
                struct sheaf_job *job =
                        job_of(cohort, orders[o].order, orders[o].window);
                struct sheaf_run *run = begin(job, 7);
                static uint32_t first[N];
                struct sheaf_bound bound;

                for (uint32_t slot = 0; slot < N; slot++) {
                        uint32_t earlier;

                        cr_assert_eq(
                                sheaf_run_look(run, slot, &earlier), -ENOENT);
                        first[slot] = bind(run, slot);
                        stir(20);
                        earlier = sheaf_random_below(&cache.random, slot + 1);
                        cr_assert_eq(
                                sheaf_run_bind(run, earlier, 1, &bound), 0);
                        cr_assert(bound.again);
                        cr_assert_eq(bound.sample, first[earlier]);
                }
                cr_assert_eq(sheaf_run_bound(run), N);
                /* and after the epoch, and in the next one */
                begin(job, 8);
                for (uint32_t slot = 0; slot < N; slot++) {
                        cr_assert_eq(
                                sheaf_run_bind(begin(job, 7), slot, 1, &bound),
                                0);
                        cr_assert_eq(bound.sample, first[slot]);
                }
                cr_assert_eq(sheaf_run_bind(run, N, 1, &bound), -ERANGE);
                sheaf_job_free(job);
                sheaf_cohort_free(cohort);
        }
}

Test(order, window_displaces_by_less_than_itself)
{
        static const uint32_t windows[] = { 1, 2, 17, 100, N };

        for (size_t w = 0; w < SHEAF_ARRAY_LEN(windows); w++) {
                struct sheaf_cohort *cohort = cohort_of(N);
                struct sheaf_job *job =
                        job_of(cohort, SHEAF_ORDER_WINDOW, windows[w]);
                struct sheaf_run *run = begin(job, 0);
                struct sheaf_permutation targets;
                uint32_t moved = 0;

                stir(N);
                sheaf_permutation_init(&targets, N, 5, 0);
                for (uint32_t slot = 0; slot < N; slot++) {
                        uint32_t at = sheaf_permutation_find(
                                &targets, bind(run, slot));
                        uint32_t off = at > slot ? at - slot : slot - at;

                        cr_assert_lt(off, windows[w]);
                        moved += off != 0;
                }
                /* residents do come first where they may */
                cr_assert(windows[w] == 1 ? !moved : moved > 0);
                sheaf_job_free(job);
                sheaf_cohort_free(cohort);
        }
}

Test(order, strict_depends_on_seed_and_epoch_alone)
{
        struct sheaf_cohort *a = cohort_of(N), *b;
        struct sheaf_job *job_a = job_of(a, SHEAF_ORDER_STRICT, 0), *job_b;
        static uint32_t first[N];

        for (uint32_t slot = 0; slot < N; slot++)
                first[slot] = bind(begin(job_a, 3), slot);
        b = cohort_of(N);
        job_b = job_of(b, SHEAF_ORDER_STRICT, 0);
        begin(job_b, 1);
        stir(N);
        for (uint32_t slot = N; slot--;)
                cr_assert_eq(bind(begin(job_b, 3), slot), first[slot]);
        sheaf_job_free(job_a);
        sheaf_job_free(job_b);
        sheaf_cohort_free(a);
        sheaf_cohort_free(b);
}

/* One stratum's slots get that stratum's samples alone: those that were here
 * at the start fill exactly the slots whose targets were. */
Test(order, shared_keeps_the_sequence_of_strata)
{
        struct sheaf_cohort *cohort = cohort_of(N);
        struct sheaf_job *reader = job_of(cohort, SHEAF_ORDER_SHARED, 0);
        struct sheaf_job *other = job_of(cohort, SHEAF_ORDER_SHARED, 0);
        uint32_t replaced = 0;

        /* the other is half an epoch ahead, and of another speed */
        sheaf_job_set_rate(reader, 1);
        sheaf_job_set_rate(other, 2);
        for (uint64_t epoch = 0; epoch < 6; epoch++) {
                static uint32_t last[N], now[N];
                static bool before[N];
                struct sheaf_run *run, *ahead = begin(other, epoch);

                for (uint32_t slot = 0; slot < N / 2; slot++)
                        cache.here[bind(ahead, slot)] = true;
                for (uint32_t x = 0; x < N; x++)
                        cache.here[x] = x % 5 == 0;
                memcpy(before, cache.here, sizeof(before));
                run = begin(reader, epoch);
                for (uint32_t slot = 0; slot < N; slot++) {
                        uint32_t target = sheaf_run_target(run, slot);
                        uint32_t x;

                        if (slot < N / 2)
                                cache.here[bind(ahead, N / 2 + slot)] = true;
                        x = bind(run, slot);
                        cache.here[x] = true;
                        cr_assert_eq(before[x], before[target]);
                        if (epoch)
                                cr_assert_eq(
                                        last[x] * 8 / N, last[target] * 8 / N);
                        now[x] = slot;
                        replaced += x != target;
                }
                memcpy(last, now, sizeof(last));
        }
        cr_assert_gt(replaced, N); /* sharing did happen */
        sheaf_job_free(reader);
        sheaf_job_free(other);
        sheaf_cohort_free(cohort);
}

/* An iterator that was left behind is asked on while newer epochs run. */
Test(order, an_older_run_ends_exactly_once_too)
{
        struct sheaf_cohort *cohort = cohort_of(N);
        struct sheaf_job *job = job_of(cohort, SHEAF_ORDER_SHARED, 0);
        struct sheaf_job *mate = job_of(cohort, SHEAF_ORDER_SHARED, 0);
        struct sheaf_run *old = begin(job, 0), *run, *ended = NULL;
        static bool seen[2][N];

        sheaf_job_set_rate(job, 1);
        sheaf_job_set_rate(mate, 2);
        for (uint32_t i = 0; i < N; i++) {
                if (i < N / 2) {
                        uint32_t x = bind(old, i);

                        cr_assert(!seen[0][x]);
                        seen[0][x] = true;
                }
                cache.here[bind(begin(mate, 0), i)] = true;
                stir(3);
        }
        run = begin(job, 1);
        for (uint32_t i = 0; i < N; i++) {
                uint32_t x = bind(run, i);

                cr_assert(!seen[1][x]);
                seen[1][x] = true;
                if (i < N / 2)
                        continue;
                x = bind(begin(job, 0), i);
                cr_assert(!seen[0][x]);
                seen[0][x] = true;
        }
        for (uint64_t epoch = 2; epoch < 2 + SHEAF_RUNS_PER_JOB; epoch++)
                begin(job, epoch);
        cr_assert_eq(sheaf_run_begin(job, 0, &ended), -ESTALE);
        cr_assert_null(ended);
        sheaf_job_free(job);
        sheaf_job_free(mate);
        sheaf_cohort_free(cohort);
}

/* Who begins first begins for all that are through: one order, one fetch. */
Test(order, mates_share_one_permutation)
{
        struct sheaf_cohort *cohort = cohort_of(N);
        struct sheaf_job *jobs[4];
        uint32_t fetched;

        for (int j = 0; j < 4; j++)
                jobs[j] = job_of(cohort, SHEAF_ORDER_SHARED, 0);
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
                memset(cache.here, 0, sizeof(cache.here));
                fetched = 0;
                for (uint32_t slot = 0; slot < N; slot++)
                        for (int j = 0; j < 4; j++) {
                                struct sheaf_run *run = begin(jobs[j], epoch);
                                uint32_t x;

                                cr_assert_eq(sheaf_run_target(run, slot),
                                        sheaf_run_target(
                                                begin(jobs[0], epoch), slot));
                                x = bind(run, slot);
                                fetched += !cache.here[x];
                                cache.here[x] = true;
                        }
                cr_assert_eq(fetched, N);
        }
        /* one that dies takes nothing along */
        sheaf_job_free(jobs[2]);
        for (uint32_t slot = 0; slot < N; slot++)
                bind(begin(jobs[3], 9), slot);
        for (int j = 0; j < 4; j++)
                if (j != 2)
                        sheaf_job_free(jobs[j]);
        sheaf_cohort_free(cohort);
}

/* A mate that ended in step, or never began: what was begun for it must not
 * come back as the order of a later epoch. */
Test(order, no_order_comes_back)
{
        struct sheaf_cohort *cohort = cohort_of(N);
        struct sheaf_job *job = job_of(cohort, SHEAF_ORDER_SHARED, 0);
        struct sheaf_job *mate = job_of(cohort, SHEAF_ORDER_SHARED, 0);
        struct sheaf_job *late = job_of(cohort, SHEAF_ORDER_SHARED, 0);
        static uint32_t had[8][N];

        begin(late, 0);
        for (uint64_t epoch = 0; epoch < 8; epoch++) {
                struct sheaf_run *run = begin(job, epoch);

                for (uint32_t slot = 0; slot < N; slot++) {
                        had[epoch][slot] = bind(run, slot);
                        if (epoch < 2)
                                bind(begin(mate, epoch), slot);
                        stir(2);
                }
                for (uint64_t e = 0; e < epoch; e++) {
                        uint32_t equal = 0;

                        for (uint32_t slot = 0; slot < N; slot++)
                                equal += had[e][slot] == had[epoch][slot];
                        cr_assert_lt(equal, 20, "epochs %d and %d: %u", (int)e,
                                (int)epoch, equal);
                }
        }
        sheaf_job_free(job);
        sheaf_job_free(mate);
        sheaf_job_free(late);
        sheaf_cohort_free(cohort);
}

Test(order, jobs_of_other_speed_have_their_own)
{
        struct sheaf_cohort *cohort = cohort_of(N);
        struct sheaf_job *a = job_of(cohort, SHEAF_ORDER_SHARED, 0);
        struct sheaf_job *b = job_of(cohort, SHEAF_ORDER_SHARED, 0);
        uint32_t equal = 0;

        sheaf_job_set_rate(a, 1);
        sheaf_job_set_rate(b, 1.2);
        for (uint32_t slot = 0; slot < N; slot++)
                equal += sheaf_run_target(begin(a, 0), slot) ==
                         sheaf_run_target(begin(b, 0), slot);
        cr_assert_lt(equal, 20);
        sheaf_job_free(a);
        sheaf_job_free(b);
        sheaf_cohort_free(cohort);
}

Test(order, one_sample_and_bad_sizes)
{
        struct sheaf_cohort_config config = { .samples = 0,
                .here = model_here };
        struct sheaf_job_config no_window = { .order = SHEAF_ORDER_WINDOW };
        struct sheaf_cohort *cohort = NULL;
        struct sheaf_job *job = NULL;

        cr_assert_eq(sheaf_cohort_new(&config, &cohort), -EINVAL);
        config.samples = SHEAF_SAMPLES_MAX + 1;
        cr_assert_eq(sheaf_cohort_new(&config, &cohort), -EINVAL);
        cohort = cohort_of(1);
        cr_assert_eq(sheaf_job_new(cohort, &no_window, &job), -EINVAL);
        job = job_of(cohort, SHEAF_ORDER_SHARED, 0);
        for (uint64_t epoch = 0; epoch < 5; epoch++)
                cr_assert_eq(bind(begin(job, epoch), 0), 0);
        sheaf_job_free(job);
        sheaf_cohort_free(cohort);
}

/* ---- restoring ---- */

static struct {
        uint32_t answer[N], replaced[N][2];
        bool answered[N];
        uint32_t count, high;
} journal;

static void note(struct sheaf_run *run, uint32_t slot)
{
        uint32_t x = bind(run, slot);

        cr_assert(!journal.answered[slot]);
        journal.answered[slot] = true;
        journal.answer[slot] = x;
        journal.high = SHEAF_MAX(journal.high, (slot / 64 + 1) * 64);
        journal.high = SHEAF_MIN(journal.high, N);
        if (x == sheaf_run_target(run, slot))
                return;
        journal.replaced[journal.count][0] = slot;
        journal.replaced[journal.count++][1] = x;
}

static struct sheaf_run_state state_of(const struct sheaf_run *run)
{
        struct sheaf_run_state state = {
                .high = journal.high,
                .replaced = (const uint32_t(*)[2])journal.replaced,
                .replaced_count = journal.count,
        };

        sheaf_run_identity(run, &state);
        return state;
}

static int restore(struct sheaf_job *job, enum sheaf_order order,
        uint32_t window, const struct sheaf_run_state *state)
{
        struct sheaf_job_config config = {
                .order = order, .seed = 5, .window = window
        };
        struct sheaf_run *run = NULL;
        int rc = sheaf_run_restore(&config, N, state, &run);

        if (rc == 0)
                sheaf_run_adopt(job, run);
        return rc;
}

/* Another process goes on after @asked slots, in some order: what was answered
 * is answered again, and the epoch ends with each sample once. */
static void killed_after(size_t o, uint32_t asked, uint64_t seed)
{
        struct sheaf_cohort *cohort = cohort_of(N), *again = cohort_of(N);
        struct sheaf_job *job =
                job_of(cohort, orders[o].order, orders[o].window);
        struct sheaf_job *mate =
                job_of(cohort, orders[o].order, orders[o].window);
        struct sheaf_job *heir =
                job_of(again, orders[o].order, orders[o].window);
        static bool seen[N];
        struct sheaf_run_state state;
        struct sheaf_permutation order;
        struct sheaf_run *run = begin(job, 4);

        sheaf_job_set_rate(job, 1);
        sheaf_job_set_rate(mate, 2);
        memset(&journal, 0, sizeof(journal));
        memset(seen, 0, sizeof(seen));
        cache.random = seed;
        /* slots come nearly in sequence: in turns of 16 */
        sheaf_permutation_init(&order, 16, seed, o);
        for (uint32_t i = 0; i < asked; i++) {
                uint32_t slot =
                        i / 16 * 16 + sheaf_permutation_at(&order, i % 16);

                cache.here[bind(begin(mate, 0), i)] = true;
                stir(3);
                if (slot < N)
                        note(run, slot);
        }
        state = state_of(run);
        cr_assert_eq(
                restore(heir, orders[o].order, orders[o].window, &state), 0);
        cr_assert_eq(sheaf_run_begin(heir, 4, &run), 0);
        for (uint32_t slot = 0; slot < N; slot++) {
                struct sheaf_bound bound;

                stir(2);
                cr_assert_eq(sheaf_run_bind(run, slot, slot, &bound), 0);
                if (journal.answered[slot])
                        cr_assert_eq(bound.sample, journal.answer[slot]);
                cr_assert(!seen[bound.sample], "order %zu", o);
                seen[bound.sample] = true;
        }
        cr_assert_eq(sheaf_run_begin(heir, 3, &run), -ESTALE);
        cr_assert_eq(sheaf_run_begin(heir, 5, &run), 0);
        sheaf_job_free(job);
        sheaf_job_free(mate);
        sheaf_job_free(heir);
        sheaf_cohort_free(cohort);
        sheaf_cohort_free(again);
}

Test(order, another_process_goes_on_exactly_once)
{
        static const uint32_t asked[] = { 0, 1, 15, 64, 100, 500, 1000, N };

        for (size_t o = 0; o < SHEAF_ARRAY_LEN(orders); o++)
                for (size_t i = 0; i < SHEAF_ARRAY_LEN(asked); i++)
                        for (uint64_t seed = 1; seed <= 3; seed++)
                                killed_after(o, asked[i], seed);
}

Test(order, what_no_run_can_have_left_is_refused)
{
        static const struct {
                uint32_t high, replaced[2][2];
                size_t count;
        } bad[] = {
                { N + 1, { { 0 } }, 0 },
                { 100, { { 100, 5 } }, 1 },          /* not below the mark */
                { 100, { { 5, N } }, 1 },            /* no such sample */
                { 100, { { 5, 9 }, { 5, 10 } }, 2 }, /* a slot twice */
                { 100, { { 5, 9 }, { 6, 9 } }, 2 },  /* a sample twice */
        };
        struct sheaf_cohort *cohort = cohort_of(N);
        struct sheaf_job *job = job_of(cohort, SHEAF_ORDER_SHARED, 0);
        struct sheaf_job *strict = job_of(cohort, SHEAF_ORDER_STRICT, 0);
        struct sheaf_job *window = job_of(cohort, SHEAF_ORDER_WINDOW, 10);
        struct sheaf_run_state state = { .epoch = 3, .seed = 5, .stream = 3 };
        static const uint32_t far[1][2] = { { 5, 0 } };
        struct sheaf_run *run;

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(bad); i++) {
                state.high = bad[i].high;
                state.replaced = bad[i].replaced;
                state.replaced_count = bad[i].count;
                cr_assert_eq(restore(job, SHEAF_ORDER_SHARED, 0, &state),
                        -EBADMSG, "case %zu", i);
        }
        state.high = 100;
        state.replaced = far;
        state.replaced_count = 1;
        cr_assert_eq(restore(strict, SHEAF_ORDER_STRICT, 0, &state), -EBADMSG);
        cr_assert_eq(restore(window, SHEAF_ORDER_WINDOW, 10, &state), -EBADMSG);
        cr_assert_eq(restore(job, SHEAF_ORDER_SHARED, 0, &state), 0);
        cr_assert_eq(sheaf_run_begin(job, 3, &run), 0);
        sheaf_job_free(job);
        sheaf_job_free(strict);
        sheaf_job_free(window);
        sheaf_cohort_free(cohort);
}
