/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated node: what the orders cost the origin, and that they are
 * neutral, over many epochs of the daemon's own code. Rivals that serve what
 * is cached first must fail the same tests. */
#include "tools/sim/measure.h"
#include "tools/sim/world.h"

#include <criterion/criterion.h>
#include <stdio.h>

static struct sim_config world(int jobs, double cache)
{
        struct sim_config config = {
                .samples = 20000,
                .jobs = jobs,
                .cache = cache,
                .ring = .005,
                .batch = 1,
                .ahead = 64,
                .jitter = .05,
                .epochs = 8,
                .warm = 3,
                .seed = 1,
        };

        for (int j = 0; j < SIM_JOBS_MAX; j++)
                config.speed[j] = 1;
        return config;
}

static void even(struct sim_config *config)
{
        for (int j = 1; j < config->jobs; j++)
                config->start[j] = (double)j / config->jobs;
}

static double over_bound(const struct sim_config *config)
{
        struct sim_result result;

        cr_assert_eq(sim_run(config, &result), 0);
        return result.reads_per_time / result.bound;
}

/* A job alone, and any number that begin together, cost what must be read. */
Test(sim, together_costs_what_one_job_does)
{
        for (int jobs = 1; jobs <= 8; jobs *= 2) {
                struct sim_config config = world(jobs, .2);
                double cost = over_bound(&config);

                cr_assert_leq(cost, 1.02, "%d jobs: %.3f", jobs, cost);
                cr_assert_geq(cost, .97, "%d jobs: %.3f", jobs, cost);
        }
}

/* Out of step, at even offsets: the cells of the reference
 * simulation (docs/design/orders.md), within 2 %; but for 8 jobs it has 1.763,
 * since its ring does not grow with their number. */
Test(sim, even_offsets_cost_what_the_reference_does)
{
        static const struct {
                int jobs;
                double cache, cost;
        } cells[] = {
                { 2, .2, 1.260 },
                { 4, .2, 1.447 },
                { 8, .2, 1.664 },
                { 2, .35, 1.260 },
                { 4, .35, 1.450 },
        };

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(cells); i++) {
                struct sim_config config = world(cells[i].jobs, cells[i].cache);
                double cost;

                even(&config);
                cost = over_bound(&config);
                cr_assert_lt(
                        cost / cells[i].cost, 1.02, "cell %zu: %.3f", i, cost);
                cr_assert_gt(
                        cost / cells[i].cost, .98, "cell %zu: %.3f", i, cost);
        }
}

/* Drawn into step from random offsets: the bound again. */
Test(sim, pacing_draws_jobs_into_step)
{
        for (int jobs = 2; jobs <= 8; jobs *= 2) {
                struct sim_config config = world(jobs, .35);
                double cost;

                config.pace = true;
                config.epochs = 14;
                config.warm = 7;
                sim_start_at_random(&config);
                cost = over_bound(&config);
                cr_assert_leq(cost, 1.05, "%d jobs: %.3f", jobs, cost);
        }
}

/* Loaders bind batches, far ahead, and drain at the end of an epoch: all jobs
 * together read 1.05 (1 - c + A/N) of the dataset at most. */
Test(sim, batches_and_look_ahead)
{
        static const struct {
                uint32_t samples, ahead;
                int jobs;
                double cache;
        } cells[] = {
                { 6900, 512, 1, .35 },
                { 6900, 512, 4, .35 },
                { 6900, 512, 8, .35 },
                { 100000, 4096, 4, .2 },
        };

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(cells); i++) {
                struct sim_config config = world(cells[i].jobs, cells[i].cache);
                struct sim_result result;
                double most;

                config.samples = cells[i].samples;
                config.batch = 256;
                config.ahead = cells[i].ahead;
                config.pace = true;
                config.warm = 1;
                config.epochs = 6;
                cr_assert_eq(sim_run(&config, &result), 0);
                most = 1.05 * (1 - cells[i].cache +
                                      (double)config.ahead / config.samples);
                cr_assert_leq(result.reads_per_epoch, most, "cell %zu: %.3f", i,
                        result.reads_per_epoch);
        }
}

/* The rivals cost the origin their known multiples. */
Test(sim, rivals_cost_more)
{
        struct sim_config config = world(4, .2);
        double cost;

        config.policy = SIM_MINIO;
        cost = over_bound(&config);
        cr_assert(cost > 3.95 && cost < 4.05, "minio %.3f", cost);
        config.policy = SIM_LRU;
        cost = over_bound(&config);
        cr_assert(cost > 4.1 && cost < 4.4, "lru %.3f", cost);
        config.policy = SIM_QUIVER;
        cost = over_bound(&config);
        cr_assert(cost < 1.3, "quiver %.3f", cost);
}

/* A death stalls nobody and costs nothing more. */
Test(sim, a_death_stalls_nobody)
{
        struct sim_config config = world(4, .2);
        struct sim_result result;

        config.ends[2] = 3.4;
        config.epochs = 10;
        config.warm = 4;
        config.origin_rate = 2;
        cr_assert_eq(sim_run(&config, &result), 0);
        cr_assert_leq(result.reads_per_time / result.bound, 1.02);
        cr_assert_leq(result.epoch_time[0], 1.02);
}

/* ---- neutrality ---- */

static struct sim_bias bias(struct sim_config *config)
{
        struct sim_measure *measure = NULL;
        struct sim_result result;
        struct sim_bias out;

        cr_assert_eq(
                sim_measure_new(config->samples, 32, config->warm, &measure),
                0);
        config->epoch_done = sim_measure_epoch;
        config->arg = measure;
        cr_assert_eq(sim_run(config, &result), 0);
        sim_measure_bias(measure, &out);
        sim_measure_free(measure);
        return out;
}

static struct sim_config biased(enum sim_policy policy, int jobs, bool pace)
{
        struct sim_config config = world(jobs, .2);

        config.policy = policy;
        config.window = 10;
        config.samples = 1000;
        config.epochs = 210;
        config.warm = 8;
        config.pace = pace;
        even(&config);
        return config;
}

/* 202 epochs: the mean of cached positions is known to .0014, the mean of the
 * KS statistic (.87 for a fair order) to .02, of rho to .0022, the share of
 * neighbours again to .05 (Poisson, two an epoch). */
static bool neutral(const struct sim_bias *b)
{
        return b->epochs >= 200 && b->cached_mean > .49 &&
               b->cached_mean < .51 && b->cached_ks < 1.0 && b->rho > -.01 &&
               b->rho < .01 && b->together > .97 && b->together < 1.03 &&
               b->neighbours > .75 && b->neighbours < 1.25 && b->chi2_z < 4 &&
               b->chi2_cached_z < 4 && b->chi2_other_z < 4;
}

static void print(const char *name, const struct sim_bias *b)
{
        fprintf(stderr,
                "%s: mean %.4f ks %.2f rho %.4f rho2 %.4f again %.3f "
                "neighbours %.2f chi2 z %.1f cached %.1f others %.1f\n",
                name, b->cached_mean, b->cached_ks, b->rho, b->rho2,
                b->together, b->neighbours, b->chi2_z, b->chi2_cached_z,
                b->chi2_other_z);
}

Test(sim, our_orders_are_neutral, .timeout = 120)
{
        static const struct {
                enum sim_policy policy;
                int jobs;
                bool pace;
        } cells[] = {
                { SIM_SHARED, 1, false }, { SIM_SHARED, 2, false },
                { SIM_SHARED, 4, false }, { SIM_SHARED, 4, true },
                { SIM_STRICT, 2, false }, { SIM_WINDOW, 2, false },
                { SIM_MINIO, 2, false }, /* a plain shuffle: the measure */
        };

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(cells); i++) {
                struct sim_config config =
                        biased(cells[i].policy, cells[i].jobs, cells[i].pace);
                struct sim_bias b = bias(&config);

                print(sim_policy_names[cells[i].policy], &b);
                cr_expect(neutral(&b), "cell %zu", i);
        }
}

/* The same tests must not pass whoever serves what is cached first. */
Test(sim, biased_orders_are_found_out, .timeout = 120)
{
        static const enum sim_policy rivals[] = { SIM_QUIVER, SIM_SENECA,
                SIM_HITS_FIRST };

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(rivals); i++) {
                struct sim_config config = biased(rivals[i], 4, false);
                struct sim_bias b = bias(&config);

                print(sim_policy_names[rivals[i]], &b);
                cr_expect(!neutral(&b), "%s", sim_policy_names[rivals[i]]);
                cr_expect_lt(b.cached_mean, .3, "%s: %.3f",
                        sim_policy_names[rivals[i]], b.cached_mean);
                cr_expect_gt(b.cached_ks, 5, "%s: %.1f",
                        sim_policy_names[rivals[i]], b.cached_ks);
                /* where each of both kinds of samples lies, too */
                cr_expect_gt(b.chi2_cached_z, 10, "%s: %.1f",
                        sim_policy_names[rivals[i]], b.chi2_cached_z);
                cr_expect_gt(b.chi2_other_z, 10, "%s: %.1f",
                        sim_policy_names[rivals[i]], b.chi2_other_z);
        }
}

/* Figures can be repeated: one seed, one outcome. */
Test(sim, equal_runs_are_equal)
{
        struct sim_config config = world(3, .2);
        struct sim_result a, b;

        config.samples = 2000;
        even(&config);
        cr_assert_eq(sim_run(&config, &a), 0);
        cr_assert_eq(sim_run(&config, &b), 0);
        cr_assert_eq(a.reads_per_time, b.reads_per_time);
        config.seed = 2;
        cr_assert_eq(sim_run(&config, &b), 0);
        cr_assert_neq(a.reads_per_time, b.reads_per_time);
}
