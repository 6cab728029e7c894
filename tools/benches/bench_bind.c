/* SPDX-License-Identifier: Apache-2.0 */
/* Slots bound to samples: CPU time of the daemon a sample, everything
 * included (message, order, journal), for files that are cached.
 *
 *   bind-256      one job, as many slots a message as a batch has
 *   bind-4096     one job, as many as a message takes
 *   bind-4-jobs   four jobs at offsets of a quarter, 256 slots a message:
 *                 most slots get another sample than their target
 *   bind-order    the order alone, without a daemon, 1.28 million samples
 *   bind-begin    the beginning of such a run beside a survey, and a slice
 *
 *  1 the first epoch of a job is not counted: it has no last one to avoid
 *
 * Threads: one. */
#include "client/sheaf.h"
#include "daemon/epoch/order.h"
#include "proto/permutation.h"
#include "tools/benches/common.h"
#include "tools/benches/setup.h"

#define COUNT       100000
#define COUNT_QUICK 20000
#define JOBS        4
#define GOAL_NS     1000.0
#define ORDER_COUNT UINT32_C(1280000)

static struct sheaf_dataset *dataset;
static uint32_t count;

static struct sheaf_job *open_job(int number)
{
        char name[32];
        struct sheaf_job_options options = { .name = name, .ahead = 4096 };
        struct sheaf_job *job;

        snprintf(name, sizeof(name), "bench-%d-%d", number, (int)getpid());
        bench_check(sheaf_job_open(dataset, &options, &job), "job");
        return job;
}

/* Slots @first .. + @n (modulo the epochs' length), @batch a message. */
static void bind(
        struct sheaf_job *job, uint64_t first, uint32_t n, uint32_t batch)
{
        static uint64_t ordinals[4096];
        static uint32_t slots[4096];

        for (uint64_t at = first; at < first + n;) {
                uint64_t epoch = at / count;
                uint32_t take = 0;

                while (take < batch && at < first + n && at / count == epoch)
                        slots[take++] = (uint32_t)(at++ % count);
                bench_check(
                        sheaf_job_bind(job, epoch, slots, take, 0, ordinals),
                        "bind");
        }
}

static void one_job(
        const char *name, int number, uint32_t batch, unsigned rounds)
{
        struct sheaf_job *job = open_job(number);
        double ns[BENCH_ROUNDS_MAX];

        bind(job, 0, count, batch);
        for (unsigned i = 0; i < rounds; i++) {
                int64_t before = bench_daemon_cpu_ns();

                bind(job, (uint64_t)(i + 1) * count, count, batch);
                ns[i] = (double)(bench_daemon_cpu_ns() - before) / count;
        }
        bench_emit_limit(name, bench_median(ns, rounds), "ns", GOAL_NS);
        sheaf_job_close(job);
}

static void four_jobs(unsigned rounds)
{
        struct sheaf_job *jobs[JOBS];
        double ns[BENCH_ROUNDS_MAX];
        uint64_t at[JOBS];

        for (int j = 0; j < JOBS; j++) {
                jobs[j] = open_job(10 + j);
                at[j] = (uint64_t)count * (uint64_t)j / JOBS;
                bind(jobs[j], 0, (uint32_t)at[j], 256);
        }
        for (unsigned i = 0; i < rounds; i++) {
                int64_t before = bench_daemon_cpu_ns();

                for (uint32_t done = 0; done < count; done += 256)
                        for (int j = 0; j < JOBS; j++, at[j - 1] += 256)
                                bind(jobs[j], at[j], 256, 256);
                ns[i] = (double)(bench_daemon_cpu_ns() - before) / JOBS / count;
        }
        bench_emit_limit(
                "bind-4-jobs", bench_median(ns, rounds), "ns", GOAL_NS);
        for (int j = 0; j < JOBS; j++)
                sheaf_job_close(jobs[j]);
}

/* ---- the order alone ---- */

/* Another third is here after each survey: samples come and go. */
static uint32_t turn;

static bool here(void *arg, uint32_t sample)
{
        (void)arg;
        return (sample * UINT32_C(2654435761) >> 8) % 3 == turn;
}

static void order_alone(unsigned rounds)
{
        struct sheaf_cohort_config config = {
                .samples = ORDER_COUNT, .here = here, .seed = 1
        };
        struct sheaf_job_config shared = { .ahead = 4096 };
        double bind_ns[BENCH_ROUNDS_MAX], begin_ms[BENCH_ROUNDS_MAX];
        double slice_ms[BENCH_ROUNDS_MAX];
        struct sheaf_cohort *cohort;
        struct sheaf_job *job;

        bench_check(sheaf_cohort_new(&config, &cohort), "cohort");
        bench_check(sheaf_job_new(cohort, &shared, &job), "job");
        for (unsigned i = 0; i < rounds; i++) {
                struct sheaf_bound bound;
                struct sheaf_run *run;
                int64_t start = bench_now_ns();

                turn = i % 3;
                bench_check(sheaf_cohort_survey(cohort, 1024), "survey");
                slice_ms[i] = (double)(bench_now_ns() - start) / 1e6;
                bench_check(sheaf_cohort_survey(cohort, UINT32_MAX), "survey");
                start = bench_now_ns();
                bench_check(sheaf_run_begin(job, i, &run), "begin");
                begin_ms[i] = (double)(bench_now_ns() - start) / 1e6;
                sheaf_cohort_survey_end(cohort);
                turn = (i + 1) % 3;
                start = bench_now_ns();
                for (uint32_t slot = 0; slot < ORDER_COUNT; slot++)
                        bench_check(sheaf_run_bind(run, slot, slot, &bound),
                                "bind");
                bind_ns[i] = (double)(bench_now_ns() - start) / ORDER_COUNT;
        }
        bench_emit_limit(
                "bind-order", bench_median(bind_ns, rounds), "ns", GOAL_NS);
        bench_emit_limit("bind-begin", bench_median(begin_ms, rounds), "ms", 5);
        bench_emit_limit(
                "bind-begin-slice", bench_median(slice_ms, rounds), "ms", 1);
        bench_emit("bind-memory",
                (double)sheaf_cohort_memory(cohort) / ORDER_COUNT, "B/sample",
                NULL, 0, BENCH_NO_GOAL);
        sheaf_job_free(job);
        sheaf_cohort_free(cohort);
}

int main(int argc, char **argv)
{
        struct bench_options options;
        struct sheaf_session *session;
        char tree[PATH_MAX];

        bench_start(argc, argv, &options);
        count = options.quick ? COUNT_QUICK : COUNT;
        order_alone(options.rounds);
        snprintf(tree, sizeof(tree), "%s/many", bench_dir());
        bench_tree(tree, count, 64, 1);
        bench_settle();
        bench_daemon_start("256M", "1G");
        bench_sheaf("add", "many", tree, NULL);
        bench_sheaf("warmup", "many", NULL);
        bench_check(sheaf_session_new(NULL, &session), "session");
        bench_check(sheaf_dataset_open(session, "many", &dataset), "open");
        one_job("bind-256", 0, 256, options.rounds);
        one_job("bind-4096", 1, 4096, options.rounds);
        four_jobs(options.rounds);
        sheaf_dataset_close(dataset);
        sheaf_session_free(session);
        return 0;
}
