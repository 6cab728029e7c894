/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf sim: one node in virtual time, at sizes that this machine cannot
 * hold. Needs no daemon. */
#include "tools/cli/cli.h"
#include "tools/cli/out.h"
#include "tools/sim/measure.h"
#include "tools/sim/world.h"

#include <math.h>
#include <stdio.h>

#define SAMPLES_DEFAULT 20000
#define SAMPLES_MAX     20000000
#define RING_SHARE      .005
#define JITTER          .05
#define CO_BATCH        32 /* of the co-occurrence, where slots come singly */

struct row {
        enum sim_policy policy;
        struct sim_result result;
        struct sim_bias bias;
};

static int number(const struct cli *cli, const char *name, double least,
        double most, double *ret_value)
{
        const char *text = cli_value(cli, name);
        double value;
        char *end;

        if (!text)
                return CLI_OK;
        value = strtod(text, &end);
        if (end == text || *end || !(value >= least && value <= most))
                return cli_usage(cli, "--%s wants %g to %g, not '%s'", name,
                        least, most, text);
        *ret_value = value;
        return CLI_OK;
}

static int whole(const struct cli *cli, const char *name, uint32_t least,
        uint32_t most, uint32_t *ret_value)
{
        double value = *ret_value;
        int rc = number(cli, name, least, most, &value);

        if (!rc && value != floor(value))
                rc = cli_usage(cli, "--%s wants a whole number, not '%s'", name,
                        cli_value(cli, name));
        if (!rc)
                *ret_value = (uint32_t)value;
        return rc;
}

/* "1,1.1,2": one for each job; the last counts for the rest. */
static int speeds(const struct cli *cli, struct sim_config *config)
{
        const char *text = cli_value(cli, "speeds"), *at = text;

        for (int j = 0; j < config->jobs; j++) {
                char *end;

                config->speed[j] = j ? config->speed[j - 1] : 1;
                if (!at || !*at)
                        continue;
                config->speed[j] = strtod(at, &end);
                if (end == at || (*end && *end != ',') ||
                        !(config->speed[j] > 0))
                        return cli_usage(cli,
                                "--speeds wants numbers like 1,1.5,2, not '%s'",
                                text);
                at = *end ? end + 1 : end;
        }
        if (at && *at)
                return cli_usage(cli, "--speeds names more than %d jobs: '%s'",
                        config->jobs, text);
        return CLI_OK;
}

static int starts(const struct cli *cli, struct sim_config *config)
{
        const char *text = cli_value(cli, "start");

        if (!text || !strcmp(text, "together"))
                return CLI_OK;
        if (!strcmp(text, "random"))
                sim_start_at_random(config);
        else if (!strcmp(text, "even"))
                for (int j = 1; j < config->jobs; j++)
                        config->start[j] = (double)j / config->jobs;
        else
                return cli_usage(cli,
                        "--start wants together, even or random, not '%s'",
                        text);
        return CLI_OK;
}

static int policy(const struct cli *cli, enum sim_policy *ret_policy)
{
        const char *text = cli_value(cli, "order"), *near;

        for (int i = 0; text && i < SIM_POLICIES; i++) {
                if (!strcmp(text, sim_policy_names[i])) {
                        *ret_policy = (enum sim_policy)i;
                        return CLI_OK;
                }
        }
        if (!text)
                return CLI_OK;
        near = cli_nearest(text, sim_policy_names, SIM_POLICIES);
        return cli_usage(cli, "no order '%s'%s%s%s", text,
                near ? "; did you mean '" : "", near ? near : "",
                near ? "'?" : "");
}

static int configure(const struct cli *cli, struct sim_config *config)
{
        uint32_t jobs = 1, epochs = 8, warm = 3, seed = 1;
        double percent = 20;
        int rc = whole(cli, "jobs", 1, SIM_JOBS_MAX, &jobs);

        *config = (struct sim_config){
                .samples = SAMPLES_DEFAULT,
                .ring = RING_SHARE,
                .batch = 1,
                .ahead = 64,
                .jitter = JITTER,
                .pace = cli_flag(cli, "pace"),
        };
        rc = rc ? rc
                : whole(cli, "samples", 100, SAMPLES_MAX, &config->samples);
        rc = rc ? rc : number(cli, "cache", 0.1, 99.9, &percent);
        rc = rc ? rc : whole(cli, "batch", 1, config->samples, &config->batch);
        config->ahead = SHEAF_MAX(config->ahead, 2 * config->batch);
        config->ahead = SHEAF_MIN(config->ahead, config->samples);
        rc = rc ? rc
                : whole(cli, "ahead", config->batch, config->samples,
                          &config->ahead);
        rc = rc ? rc
                : whole(cli, "window", 1, config->samples, &config->window);
        rc = rc ? rc
                : number(cli, "origin-rate", 1e-3, 1e6, &config->origin_rate);
        rc = rc ? rc : whole(cli, "epochs", 1, 10000, &epochs);
        warm = SHEAF_MIN(warm, epochs - 1);
        rc = rc ? rc : whole(cli, "warm", 0, epochs - 1, &warm);
        rc = rc ? rc : whole(cli, "seed", 0, UINT32_MAX, &seed);
        config->cache = percent / 100;
        config->jobs = (int)jobs;
        config->epochs = (int)epochs;
        config->warm = (int)warm;
        config->seed = seed;
        rc = rc ? rc : speeds(cli, config);
        rc = rc ? rc : starts(cli, config);
        return rc ? rc : policy(cli, &config->policy);
}

static int simulate(
        const struct cli *cli, struct sim_config *config, struct row *row)
{
        struct sim_measure *measure = NULL;
        int rc = sim_measure_new(config->samples,
                config->batch > 1 ? config->batch : CO_BATCH, config->warm,
                &measure);

        config->policy = row->policy;
        config->epoch_done = sim_measure_epoch;
        config->arg = measure;
        if (rc == 0)
                rc = sim_run(config, &row->result);
        if (rc == 0)
                sim_measure_bias(measure, &row->bias);
        sim_measure_free(measure);
        if (rc == -EINVAL)
                return cli_usage(cli, "a cache of %.0f samples is too small",
                        config->cache * config->samples);
        if (rc < 0)
                return cli_fail(cli, CLI_FAILED, -rc, "%s: %s",
                        sim_policy_names[row->policy],
                        rc == -EPROTO ? "a sample came twice in an epoch"
                                      : strerror(-rc));
        return CLI_OK;
}

static json_t *row_json(const struct sim_config *config, const struct row *row)
{
        const struct sim_result *r = &row->result;
        const struct sim_bias *b = &row->bias;
        json_t *times = json_array(), *tenths = json_array();

        for (int j = 0; j < config->jobs; j++)
                json_array_append_new(times, json_real(r->epoch_time[j]));
        for (int i = 0; i < 10; i++)
                json_array_append_new(tenths, json_real(r->misses_tenth[i]));
        return json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:f, s:f, "
                         "s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i}",
                "order", sim_policy_names[row->policy], "reads_per_time",
                r->reads_per_time, "reads_per_epoch", r->reads_per_epoch,
                "bound", r->bound, "over_bound", r->reads_per_time / r->bound,
                "hits", r->hits, "epoch_time", times, "misses_by_tenth", tenths,
                "cached_mean_position", b->cached_mean, "cached_ks",
                b->cached_ks, "rank_correlation", b->rho, "rank_correlation_2",
                b->rho2, "same_batch_again", b->together, "neighbours_again",
                b->neighbours, "chi2_z", b->chi2_z, "chi2_cached_z",
                b->chi2_cached_z, "chi2_other_z", b->chi2_other_z, "bind_ns",
                r->bind_ns, "bytes_per_sample", r->bytes_per_sample, "epochs",
                b->epochs);
}

static void print_json(
        const struct sim_config *config, const struct row *rows, int count)
{
        json_t *list = json_array(), *top;

        for (int i = 0; i < count; i++)
                json_array_append_new(list, row_json(config, &rows[i]));
        top = json_pack("{s:I, s:i, s:f, s:i, s:i, s:b, s:f, s:o}", "samples",
                (json_int_t)config->samples, "jobs", config->jobs, "cache",
                config->cache, "batch", (int)config->batch, "ahead",
                (int)config->ahead, "pace", config->pace, "origin_rate",
                config->origin_rate, "orders", list);
        cli_json_print(top);
}

static void print_table(const struct row *rows, int count)
{
        static const char *const heads[] = { "order", ">reads", ">x bound",
                ">hits", ">epoch", ">mean", ">ks", ">rho", ">again",
                ">chi2 z" };
        struct cli_table *table = cli_table_new(heads, SHEAF_ARRAY_LEN(heads));

        if (!table)
                return;
        for (int i = 0; i < count; i++) {
                const struct sim_result *r = &rows[i].result;
                const struct sim_bias *b = &rows[i].bias;

                cli_table_add(table, "%s", sim_policy_names[rows[i].policy]);
                cli_table_add(table, "%.3f", r->reads_per_time);
                cli_table_add(table, "%.3f", r->reads_per_time / r->bound);
                cli_table_add(table, "%.1f %%", 100 * r->hits);
                cli_table_add(table, "%.3f", r->epoch_time[0]);
                cli_table_add(table, "%.3f", b->cached_mean);
                cli_table_add(table, "%.2f", b->cached_ks);
                cli_table_add(table, "%.3f", b->rho);
                cli_table_add(table, "%.2f", b->together);
                if (b->chi2_z != 0)
                        cli_table_add(table, "%.1f", b->chi2_z);
                else
                        cli_table_add(table, "-");
        }
        cli_table_print(table);
        printf("\nreads: datasets a unit of time, all jobs together; at least "
               "%.3f must be read.\nmean, ks: positions of what was cached "
               "(fair: .5, below 1.6); rho: order against\nthe last epoch's "
               "(fair: 0); again: same batch twice (fair: 1).\n",
                rows[0].result.bound);
}

static int run(struct cli *cli)
{
        struct row rows[SIM_POLICIES];
        struct sim_config config;
        bool compare = cli_flag(cli, "compare");
        int count = compare ? SIM_POLICIES : 1;
        int rc = configure(cli, &config);

        rows[0].policy = config.policy;
        for (int i = 0; !rc && i < count; i++) {
                if (compare)
                        rows[i].policy = (enum sim_policy)i;
                if (compare && !cli->quiet && isatty(STDERR_FILENO))
                        fprintf(stderr, "\r%-20s",
                                sim_policy_names[rows[i].policy]);
                rc = simulate(cli, &config, &rows[i]);
        }
        if (compare && !cli->quiet && isatty(STDERR_FILENO))
                fprintf(stderr, "\r%-20s\r", "");
        if (rc)
                return rc;
        if (cli->json)
                print_json(&config, rows, count);
        else
                print_table(rows, count);
        return CLI_OK;
}

static const struct cli_option options[] = {
        { "jobs", "N", false, "jobs on one dataset (1)" },
        { "samples", "N", false, "samples of the dataset (20000)" },
        { "cache", "PERCENT", false, "of the samples that fit (20)" },
        { "order", "NAME", false,
                "shared, window, strict; or a rival: lru, minio, quiver, "
                "seneca, hits-first" },
        { "compare", NULL, false, "all of them, a line each" },
        { "start", "WHEN", false, "together (default), even or random" },
        { "pace", NULL, false, "draw the jobs into step" },
        { "speeds", "A,B...", false, "epochs a unit of time, by job (1)" },
        { "origin-rate", "R", false, "datasets a unit of time (no limit)" },
        { "batch", "N", false, "slots bound at once (1)" },
        { "ahead", "N", false, "slots bound ahead (64, or two batches)" },
        { "window", "N", false, "of the order window (1 % of the samples)" },
        { "epochs", "N", false, "of the first job (8)" },
        { "warm", "N", false, "epochs left out of the figures (3)" },
        { "seed", "N", false, "of all that is random (1)" },
        { 0 },
};

const struct cli_verb cli_verb_sim = {
        .name = "sim",
        .args = "",
        .brief = "simulate jobs, cache and origin in virtual time",
        .details = "Runs the daemon's own code for the order of samples, "
                   "beside models of\npublished systems. One unit of time is "
                   "an epoch of a job of speed 1 that never\nwaits. Needs no "
                   "daemon and reads no data.\n",
        .examples = "sheaf sim --jobs 4 --cache 35 --start random --compare\n"
                    "sheaf sim --jobs 8 --pace --start even --epochs 16 "
                    "--warm 8\n"
                    "sheaf sim --jobs 4 --samples 1280000 --batch 256 "
                    "--ahead 4096 --json",
        .options = options,
        .args_min = 0,
        .args_max = 0,
        .run = run,
};
