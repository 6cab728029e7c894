/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs through the library: slots bound exactly once, by any number of
 * processes, over kills of the daemon; what is bound is fetched. */
#include "tests/flow/harness.h"
#include "tests/flow/slots.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define FILES   3000
#define LEN     1500
#define WORKERS 8

static struct sheaf_session *session;
static struct sheaf_dataset *dataset;

static void begin(void)
{
        flow_init();
        for (uint32_t i = 0; i < FILES; i++)
                flow_file(i, LEN, "d%u/f%u", i % 30, i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        cr_assert_eq(flow_open("data", &session, &dataset), 0, "%s",
                sheaf_last_error());
}

static void end(void)
{
        flow_close(session, dataset);
        flow_fini();
}

TestSuite(jobs, .init = begin, .fini = end, .timeout = 120);

/* Forks while no thread of a session runs: a child may then allocate under
 * every allocator. */
static void let_go(void)
{
        flow_close(session, dataset);
        session = NULL;
        dataset = NULL;
}

static void take_up(const char *name)
{
        cr_assert_eq(flow_open(name, &session, &dataset), 0, "%s",
                sheaf_last_error());
}

static struct sheaf_job *open_job(
        const char *name, enum sheaf_job_order order, uint64_t seed)
{
        struct sheaf_job_options options = { .name = name,
                .order = order,
                .seed = seed,
                .window = order == SHEAF_JOB_WINDOW ? 100 : 0,
                .ahead = 64 };
        struct sheaf_job *job = NULL;

        cr_assert_eq(sheaf_job_open(dataset, &options, &job), 0, "%s",
                sheaf_last_error());
        cr_assert_eq(sheaf_job_samples(job), FILES);
        return job;
}

static const enum sheaf_job_order orders[] = { SHEAF_JOB_SHARED,
        SHEAF_JOB_WINDOW, SHEAF_JOB_STRICT };

Test(jobs, each_sample_once_and_again_the_same)
{
        static uint64_t first[FILES], again[FILES], next[FILES];

        for (size_t o = 0; o < SHEAF_ARRAY_LEN(orders); o++) {
                char name[32];
                struct sheaf_job *job;

                snprintf(name, sizeof(name), "job-%zu", o);
                job = open_job(name, orders[o], 5);
                for (uint32_t at = 0; at < FILES; at += 100)
                        slots_bind(job, 0, at, 100, first + at);
                slots_each_once(first, FILES, FILES);
                slots_bind(job, 0, 0, FILES, again);
                cr_assert_eq(memcmp(first, again, sizeof(first)), 0);
                slots_bind(job, 1, 0, FILES, next);
                slots_each_once(next, FILES, FILES);
                cr_assert_neq(memcmp(first, next, sizeof(first)), 0);
                sheaf_job_close(job);
        }
}

/* A worker of a loader: binds its share of the slots, @count at once. */
static _Noreturn void worker(uint32_t w, uint32_t count, uint64_t *shared)
{
        struct sheaf_job_options options = { .name = "train" };
        struct sheaf_session *s;
        struct sheaf_dataset *d;
        struct sheaf_job *job;
        uint32_t slots[64];

        /* A first connection waits for no daemon; the daemon may just be dead.
         */
        if (!flow_until(30, flow_open("data", &s, &d) == 0) ||
                sheaf_job_open(d, &options, &job)) {
                fprintf(stderr, "worker: %s\n", sheaf_last_error());
                _exit(1);
        }
        for (uint32_t i = w * count; i < FILES; i += WORKERS * count) {
                uint32_t n = SHEAF_MIN(count, FILES - i);

                for (uint32_t k = 0; k < n; k++)
                        slots[k] = i + k;
                if (sheaf_job_bind(job, 3, slots, n, 0, shared + i)) {
                        fprintf(stderr, "worker: %s\n", sheaf_last_error());
                        _exit(2);
                }
        }
        _exit(0);
}

static void work(uint32_t count, int kills)
{
        uint64_t *shared = mmap(NULL, FILES * sizeof(*shared),
                PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        pid_t workers[WORKERS];

        cr_assert_neq(shared, MAP_FAILED);
        let_go();
        for (uint32_t w = 0; w < WORKERS; w++) {
                workers[w] = flow_fork(0, 0);
                if (!workers[w])
                        worker(w, count, shared);
        }
        while (kills--) {
                flow_sleep(0.05);
                flow_kill();
                flow_start();
        }
        for (uint32_t w = 0; w < WORKERS; w++)
                cr_assert_eq(flow_join(workers[w], 60), 0);
        take_up("data");
        slots_each_once(shared, FILES, FILES);
        munmap(shared, FILES * sizeof(*shared));
}

/* All ask for slots of one job at once. */
Test(jobs, many_processes_are_one_job)
{
        work(1, 0);
}

/* The same while the daemon is killed under them. */
Test(jobs, many_processes_and_kills)
{
        work(4, 6);
}

/* Workers die at any moment and others take their place, from the beginning of
 * their share: they get what those had, and each sample comes once. */
Test(jobs, many_processes_are_killed)
{
        uint64_t *shared = mmap(NULL, 2 * FILES * sizeof(*shared),
                PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        uint64_t *again = shared + FILES;
        pid_t workers[WORKERS];

        cr_assert_neq(shared, MAP_FAILED);
        let_go();
        for (int round = 0; round < 4; round++) {
                for (uint32_t w = 0; w < WORKERS; w++) {
                        workers[w] = flow_fork(0, 0);
                        if (!workers[w])
                                worker(w, 4, shared);
                }
                flow_sleep(0.02 * (round + 1));
                for (uint32_t w = 0; w < WORKERS; w++)
                        cr_assert_eq(kill(workers[w], SIGKILL), 0);
                for (uint32_t w = 0; w < WORKERS; w++)
                        flow_join(workers[w], 30);
        }
        for (int pass = 0; pass < 2; pass++) {
                for (uint32_t w = 0; w < WORKERS; w++) {
                        workers[w] = flow_fork(0, 0);
                        if (!workers[w])
                                worker(w, 4, pass ? again : shared);
                }
                for (uint32_t w = 0; w < WORKERS; w++)
                        cr_assert_eq(flow_join(workers[w], 60), 0);
        }
        take_up("data");
        slots_each_once(shared, FILES, FILES);
        cr_assert_eq(memcmp(shared, again, FILES * sizeof(*shared)), 0);
        munmap(shared, 2 * FILES * sizeof(*shared));
}

/* The daemon is killed in the middle, again and again: clients go on by
 * themselves, what was answered stays, each sample comes once. */
Test(jobs, kills_of_the_daemon_repeat_and_lose_nothing)
{
        static uint64_t got[3][FILES], again[FILES];
        struct sheaf_job *jobs[3];
        uint32_t at[3] = { 0 };

        for (size_t o = 0; o < 3; o++) {
                char name[32];

                snprintf(name, sizeof(name), "job-%zu", o);
                jobs[o] = open_job(name, orders[o], 9);
        }
        for (int kill_count = 0; kill_count < 12; kill_count++) {
                for (size_t o = 0; o < 3; o++) {
                        slots_bind(jobs[o], 6, at[o], 250, got[o] + at[o]);
                        at[o] += 250;
                }
                flow_kill();
                flow_start();
                for (size_t o = 0; o < 3; o++) {
                        slots_bind(jobs[o], 6, 0, at[o], again);
                        cr_assert_eq(memcmp(again, got[o], at[o] * 8), 0,
                                "order %zu, kill %d", o, kill_count);
                }
        }
        for (size_t o = 0; o < 3; o++) {
                cr_assert_eq(at[o], FILES);
                slots_each_once(got[o], FILES, FILES);
                slots_bind(jobs[o], 7, 0, FILES, again);
                slots_each_once(again, FILES, FILES);
                sheaf_job_close(jobs[o]);
        }
        cr_assert_eq(flow_stat("jobs.journal_errors"), 0);
}

/* Strict order comes from seed and epoch alone, whatever else runs. */
Test(jobs, strict_needs_no_daemon_to_agree)
{
        static uint64_t one[FILES], two[FILES];
        struct sheaf_job *a = open_job("a", SHEAF_JOB_STRICT, 77);
        struct sheaf_job *b = open_job("b", SHEAF_JOB_STRICT, 77);

        slots_bind(a, 2, 0, FILES, one);
        for (uint32_t i = FILES; i--;)
                slots_bind(b, 2, i, 1, &two[i]);
        cr_assert_eq(memcmp(one, two, sizeof(one)), 0);
        sheaf_job_close(a);
        sheaf_job_close(b);
}

Test(jobs, what_is_bound_is_fetched)
{
        static uint64_t ordinals[FILES];
        struct sheaf_job *job = open_job("train", SHEAF_JOB_SHARED, 0);

        slots_bind(job, 0, 0, 500, ordinals);
        cr_assert(flow_until(30, flow_stat_of("data", "origin.reads") >= 500),
                "%.0f", flow_stat_of("data", "origin.reads"));
        for (uint32_t i = 0; i < 500; i++) {
                struct sheaf_view view;

                cr_assert_eq(sheaf_view_file(dataset, ordinals[i], &view), 0,
                        "%s", sheaf_last_error());
                sheaf_view_release(&view);
        }
        cr_assert_eq(flow_stat_of("data", "origin.reads"), 500);
        sheaf_job_close(job);
}

/* Jobs in step share each fetch. */
Test(jobs, jobs_that_run_together_cost_one)
{
        static uint64_t ordinals[4][FILES];
        struct sheaf_job *jobs[4];
        uint64_t equal = 0;

        for (int j = 0; j < 4; j++) {
                char name[32];

                snprintf(name, sizeof(name), "trial-%d", j);
                jobs[j] = open_job(name, SHEAF_JOB_SHARED, 0);
        }
        for (uint32_t at = 0; at < FILES; at += 60)
                for (int j = 0; j < 4; j++)
                        slots_bind(jobs[j], 0, at, 60, ordinals[j] + at);
        for (int j = 0; j < 4; j++) {
                slots_each_once(ordinals[j], FILES, FILES);
                sheaf_job_close(jobs[j]);
        }
        for (uint32_t i = 0; i < FILES; i++)
                equal += ordinals[0][i] == ordinals[3][i];
        cr_assert_eq(equal, FILES);
        cr_assert(flow_until(
                30, flow_stat_of("data", "origin.reads") >= FILES - 1));
        cr_assert_leq(flow_stat_of("data", "origin.reads"), FILES);
}

Test(jobs, names_and_users_are_apart)
{
        struct sheaf_job_options options = { .name = "train", .seed = 1 };
        struct sheaf_job *job = open_job("train", SHEAF_JOB_SHARED, 0), *other;
        pid_t child;

        cr_assert_eq(sheaf_job_open(dataset, &options, &other), -EINVAL);
        cr_assert_not_null(
                strstr(sheaf_last_error(), "seed"), "%s", sheaf_last_error());
        options = (struct sheaf_job_options){ .name = "train",
                .order = SHEAF_JOB_STRICT };
        cr_assert_eq(sheaf_job_open(dataset, &options, &other), -EINVAL);
        cr_assert_not_null(
                strstr(sheaf_last_error(), "order"), "%s", sheaf_last_error());
        /* the same name, of another user, is another job */
        flow_ok("chmod -R a+rX %s && sheaf add both %s --share all --force",
                flow.origin, flow.origin);
        sheaf_job_close(job);
        let_go();
        child = flow_fork(12345, 0);
        if (!child) {
                struct sheaf_session *s;
                struct sheaf_dataset *d;

                _exit(flow_open("~root/both", &s, &d) ||
                        sheaf_job_open(d, &options, &other));
        }
        cr_assert_eq(flow_join(child, 30), 0);
        take_up("both");
        sheaf_job_close(open_job("train", SHEAF_JOB_SHARED, 0));
}

Test(jobs, bad_requests_are_refused_in_words)
{
        static const uint32_t beyond[] = { 5, FILES };
        struct sheaf_job *job = open_job("train", SHEAF_JOB_SHARED, 0), *other;
        struct sheaf_job_options options = { .name = "" };
        uint64_t ordinals[2];

        cr_assert_eq(sheaf_job_open(dataset, &options, &other), -EINVAL);
        options.name = "window";
        options.order = SHEAF_JOB_WINDOW;
        cr_assert_eq(sheaf_job_open(dataset, &options, &other), -EINVAL);
        cr_assert_not_null(strstr(sheaf_last_error(), "window"));
        cr_assert_eq(sheaf_job_bind(job, 0, beyond, 2, 0, ordinals), -ERANGE);
        cr_assert_eq(sheaf_job_bind(job, 1ull << 22, beyond, 1, 0, ordinals),
                -EINVAL);
        cr_assert_eq(sheaf_job_bind(job, 0, beyond, 1, -1, ordinals), -EINVAL);
        for (uint64_t epoch = 1; epoch < 6; epoch++)
                slots_bind(job, epoch, 0, 1, ordinals);
        /* never begun, and too late now */
        cr_assert_eq(sheaf_job_bind(job, 0, beyond, 1, 0, ordinals), -ESTALE);
        cr_assert_not_null(
                strstr(sheaf_last_error(), "over"), "%s", sheaf_last_error());
        /* a worker that comes late joins all the same, after a kill too */
        sheaf_job_close(open_job("train", SHEAF_JOB_SHARED, 0));
        flow_kill();
        flow_start();
        sheaf_job_close(open_job("train", SHEAF_JOB_SHARED, 0));
        slots_bind(job, 5, 0, 2, ordinals);
        sheaf_job_close(job);
}

/* A job that stopped leaves no order behind for the others to repeat. */
Test(jobs, each_epoch_has_an_order_of_its_own)
{
        static uint64_t had[5][FILES], other[FILES];
        struct sheaf_job *job = open_job("long", SHEAF_JOB_SHARED, 0);
        struct sheaf_job *ends = open_job("short", SHEAF_JOB_SHARED, 0);
        struct sheaf_job *idle = open_job("idle", SHEAF_JOB_SHARED, 0);

        for (uint64_t epoch = 0; epoch < 5; epoch++) {
                slots_bind(job, epoch, 0, FILES, had[epoch]);
                if (epoch < 2)
                        slots_bind(ends, epoch, 0, FILES, other);
                else if (ends)
                        sheaf_job_close(sheaf_steal(&ends));
                for (uint64_t e = 0; e < epoch; e++) {
                        uint32_t equal = 0;

                        for (uint32_t i = 0; i < FILES; i++)
                                equal += had[e][i] == had[epoch][i];
                        cr_assert_lt(equal, 30, "epochs %d and %d", (int)e,
                                (int)epoch);
                }
        }
        sheaf_job_close(idle);
        sheaf_job_close(job);
}

/* Removed, updated, closed under a job: errors in words, and a daemon that
 * lives and keeps nothing. */
Test(jobs, a_dataset_may_go_at_any_time)
{
        static uint64_t ordinals[FILES];

        for (int round = 0; round < 5; round++) {
                char name[32];
                struct sheaf_job *job;
                uint32_t slot = 0;

                snprintf(name, sizeof(name), "round-%d", round);
                job = open_job(name, SHEAF_JOB_SHARED, 0);
                slots_bind(job, 0, 0, 700, ordinals);
                if (round % 2)
                        flow_ok("sheaf rm data --force");
                sheaf_job_close(job);
                flow_close(session, dataset);
                if (round % 2)
                        flow_ok("sheaf add data %s", flow.origin);
                cr_assert_eq(flow_open("data", &session, &dataset), 0);
                job = open_job(name, SHEAF_JOB_SHARED, 0);
                if (round % 2 == 0)
                        flow_ok("sheaf rm data --force; sheaf add data %s",
                                flow.origin);
                if (sheaf_job_bind(job, 1, &slot, 1, 0, ordinals))
                        cr_assert_gt(strlen(sheaf_last_error()), 0);
                sheaf_job_close(job);
                flow_close(session, dataset);
                cr_assert_eq(flow_open("data", &session, &dataset), 0, "%s",
                        sheaf_last_error());
                cr_assert(flow_live());
        }
        /* journals of versions that are gone go with the next start */
        flow_kill();
        flow_start();
        cr_assert(flow_until(30,
                flow_run("test $(ls %s/jobs | wc -l) -le 1", flow.cache) == 0));
}
