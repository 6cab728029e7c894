/* SPDX-License-Identifier: Apache-2.0 */
/* Epochs that are cut in the middle (drop_last, a limit of batches): every
 * sample, cached or not, is reached within the passes that chance predicts. An
 * order that serves first what is cached never reaches the rest. */
#include "daemon/epoch/order.h"
#include "proto/permutation.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

#define N      1000
#define PASSES 10
#define TRIALS 200
#define RING   40

/* Half of the samples stay in the cache; what was fetched last is there for a
 * while, so that jobs out of step exchange samples. */
static struct {
        uint32_t ring[RING];
        uint32_t fetched, replaced;
} cache;

static bool here(void *arg, uint32_t sample)
{
        (void)arg;
        if (sample % 2)
                return true;
        for (uint32_t i = 0; i < SHEAF_MIN(cache.fetched, RING); i++)
                if (cache.ring[i] == sample)
                        return true;
        return false;
}

static uint32_t bind(struct sheaf_run *run, uint32_t slot)
{
        struct sheaf_bound bound;

        cr_assert_eq(sheaf_run_bind(run, slot, 0, &bound), 0);
        if (bound.fetch)
                cache.ring[cache.fetched++ % RING] = bound.sample;
        cache.replaced += bound.replaced;
        return bound.sample;
}

static struct sheaf_run *begin(struct sheaf_job *job, uint64_t epoch)
{
        struct sheaf_run *run = NULL;

        cr_assert_eq(sheaf_run_begin(job, epoch, &run), 0);
        return run;
}

/* Samples that are still unread after each pass, cached ones and others. */
struct unread {
        double of[2][PASSES];
};

static void count(const bool *seen, int pass, struct unread *unread)
{
        for (uint32_t x = 0; x < N; x++)
                unread->of[x % 2][pass] += !seen[x];
}

/* Two jobs, the other a quarter of an epoch ahead, both cut at the half. */
static void shared(int trial, struct unread *unread)
{
        struct sheaf_cohort_config config = {
                .samples = N, .here = here, .seed = 100 + (uint64_t)trial
        };
        struct sheaf_job_config order = { .order = SHEAF_ORDER_SHARED };
        struct sheaf_cohort *cohort = NULL;
        struct sheaf_job *jobs[2] = { NULL, NULL };
        struct sheaf_run *other;
        bool seen[N] = { false };

        cr_assert_eq(sheaf_cohort_new(&config, &cohort), 0);
        for (int j = 0; j < 2; j++) {
                cr_assert_eq(sheaf_job_new(cohort, &order, &jobs[j]), 0);
                sheaf_job_set_rate(jobs[j], 1 + j);
        }
        other = begin(jobs[1], 0);
        for (uint32_t slot = 0; slot < N / 4; slot++)
                bind(other, slot);
        for (int pass = 0; pass < PASSES; pass++) {
                struct sheaf_run *run = begin(jobs[0], (uint64_t)pass);

                for (uint32_t slot = 0; slot < N / 2; slot++) {
                        uint32_t ahead = (slot + N / 4) % (N / 2);

                        if (!ahead)
                                other = begin(jobs[1], (uint64_t)pass + 1);
                        bind(other, ahead);
                        seen[bind(run, slot)] = true;
                }
                count(seen, pass, unread);
        }
        sheaf_job_free(jobs[0]);
        sheaf_job_free(jobs[1]);
        sheaf_cohort_free(cohort);
}

/* What must not pass: each pass serves what is cached first. */
static void cached_first(int trial, struct unread *unread)
{
        bool seen[N] = { false };

        for (int pass = 0; pass < PASSES; pass++) {
                struct sheaf_permutation order;
                uint32_t left = N / 2;

                sheaf_permutation_init(
                        &order, N, 7, (uint64_t)(trial * PASSES + pass));
                for (int cached = 1; cached >= 0; cached--)
                        for (uint32_t i = 0; i < N && left; i++) {
                                uint32_t x = sheaf_permutation_at(&order, i);

                                if (here(NULL, x) != cached)
                                        continue;
                                seen[x] = true;
                                left--;
                        }
                count(seen, pass, unread);
        }
}

/* Standard deviations that the number of unread samples is off what
 * chance leaves: half of them each pass. The worst. Stale strata (bins of an
 * older pass than the last) are found out: 7 here, and half as many again left
 * at the end. */
static double worst(
        void (*trial)(int number, struct unread *unread), const char *name)
{
        struct unread unread = { 0 };
        double most = 0;

        memset(&cache, 0, sizeof(cache));
        for (int number = 0; number < TRIALS; number++)
                trial(number, &unread);
        for (int cached = 0; cached < 2; cached++)
                for (int pass = 0; pass < PASSES; pass++) {
                        double part = ldexp(1, -pass - 1), n = N / 2.0 * TRIALS;
                        double off = (unread.of[cached][pass] - n * part) /
                                     sqrt(n * part * (1 - part));

                        most = fmax(most, fabs(off));
                }
        fprintf(stderr, "%s: at most %.1f deviations off, %.4f of each left\n",
                name, most, unread.of[0][PASSES - 1] / (N / 2.0 * TRIALS));
        return most;
}

Test(starve, each_sample_is_reached_as_chance_predicts)
{
        cr_assert_lt(worst(shared, "shared"), 5);
        cr_assert_gt(cache.replaced, N); /* they did exchange samples */
        cr_assert_gt(worst(cached_first, "cached first"), 100);
}
