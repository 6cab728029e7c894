/* SPDX-License-Identifier: Apache-2.0 */
/* The time of day jumps, the daemon is stopped, files bear times of other
 * ages: nothing that is held, waited for or remembered hangs on it. */
#include "tests/flow/world.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

TestSuite(clock, .init = flow_init, .fini = flow_fini, .timeout = 100);

#define FILES       60
#define LEN         UINT64_C(700000)
#define READERS     4
#define JOB_READERS 2 /* of them */

static _Atomic uint64_t *reads; /* of each reader, and slots; shared */

/* What two of the readers do in one job beside, slot by slot in turns: what
 * was bound at other times of day stays so. */
struct binding {
        uint64_t epoch, sample; /* of slot 0, as this reader first saw it */
        bool seen;
};

static int bind_on(struct sheaf_job *job, struct binding *first)
{
        uint64_t i = atomic_fetch_add(&reads[READERS], 1), sample[2];
        uint32_t slots[2] = { i % FILES, 0 };
        int rc = sheaf_job_bind(job, i / FILES, slots, 2, 0, sample);

        if (rc)
                return rc;
        if (first->seen && first->epoch == i / FILES)
                return sample[1] == first->sample ? 0 : -EBADMSG;
        *first = (struct binding){ i / FILES, sample[1], true };
        return 0;
}

static struct sheaf_job *job_of(struct sheaf_dataset *dataset, uint32_t r)
{
        struct sheaf_job_options options = { .name = "by the clock" };
        struct sheaf_job *job = NULL;

        if (r < JOB_READERS && sheaf_job_open(dataset, &options, &job))
                _exit(3);
        return job;
}

/* Reads all files, more than the arena holds, while it pins the first one;
 * until it is killed, or ends 1. */
static pid_t start_reader(uint32_t r)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_view held;
        struct sheaf_job *job;
        struct binding first = { 0 };
        char name[16];
        pid_t pid = flow_fork(0, 0);

        if (pid)
                return pid;
        if (flow_open("data", &session, &dataset) ||
                sheaf_view_file(dataset, r, &held))
                _exit(1);
        job = job_of(dataset, r);
        for (uint32_t i = r;; i++) {
                if (job && bind_on(job, &first)) {
                        fprintf(stderr, "bind: %s\n", sheaf_last_error());
                        _exit(4);
                }
                snprintf(name, sizeof(name), "f%02u", i % FILES);
                if (flow_check_view(dataset, name, i % FILES, LEN) ||
                        flow_check(flow_path("mount/%s", name), i % FILES, LEN,
                                65536)) {
                        fprintf(stderr, "%s: %s\n", name, sheaf_last_error());
                        _exit(1);
                }
                if (!flow_stamp_check(held.pieces[0].iov_base, r, 0,
                            held.pieces[0].iov_len))
                        _exit(2);
                reads[r]++;
        }
}

/* Each reader has read @more files from now on. */
static void readers_go_on(const pid_t *pids, uint64_t more)
{
        for (uint32_t r = 0; r < READERS; r++) {
                uint64_t until = reads[r] + more;

                cr_assert(flow_until(
                        40, reads[r] >= until || flow_wait(pids[r], 0) >= 0));
                cr_assert_geq(reads[r], until, "reader %u ended", r);
        }
}

static void sane_figures(void)
{
        double uptime = flow_stat("uptime_ns");

        cr_assert(uptime >= 0 && uptime < 1e9 * 3600, "%g", uptime);
        flow_ok("sheaf status");
        cr_assert_null(strstr(flow.last.out, " -"), "%s", flow.last.out);
        flow_ok("sheaf ls");
}

/* What is new at the origin is seen by an update at any time. */
static void updates_work(uint32_t round)
{
        flow_file(500 + round, 3000, "new%u", round);
        flow_ok("sheaf update data --quiet");
        flow_ok("sheaf mount --refresh %s", flow.mount);
        cr_assert_eq(flow_check(flow_path("mount/new%u", round), 500 + round,
                             3000, 4096),
                0);
}

Test(clock, jumps)
{
        static const int64_t offsets[] = { 3600, -3600, INT64_C(315360000),
                INT64_C(-1790000000), 0 };
        pid_t pids[READERS];
        const char *prefix;
        struct shim *shim = flow_shim(&prefix);
        double accepted, slots = 0;

        reads = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        cr_assert(reads != MAP_FAILED);
        flow.memory = "32MiB";
        flow_world("", prefix);
        for (uint32_t i = 0; i < FILES; i++)
                flow_file(i, LEN, "f%02u", i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        /* The mount, and in it the library, lives by the same clock. */
        flow_ok("%s sheaf mount data %s", prefix, flow.mount);
        for (uint32_t r = 0; r < READERS; r++)
                pids[r] = start_reader(r);
        readers_go_on(pids, 3);
        for (uint32_t i = 0; i < SHEAF_ARRAY_LEN(offsets); i++) {
                accepted = flow_stat("clients.accepted");
                shim->wall_offset_sec = offsets[i];
                readers_go_on(pids, 3);
                /* Before what follows connects as often as it waits. */
                cr_assert_lt(flow_stat("clients.accepted") - accepted, 12,
                        "a storm of connections");
                /* Nobody is taken for dead. The mount that a refresh put away
                 * may need a moment to leave. */
                cr_assert(flow_until(
                        10, flow_stat("pins.clients") == READERS + 1));
                cr_assert_geq(flow_stat("pins.bytes"), LEN);
                cr_assert_eq(flow_stat("jobs.live"), 1);
                cr_assert_gt(flow_stat("jobs.bound"), slots);
                slots = flow_stat("jobs.bound");
                sane_figures();
                updates_work(i);
        }
        cr_assert_eq(flow_stat("fetch_errors"), 0);
        for (uint32_t r = 0; r < READERS; r++) {
                cr_assert_eq(flow_wait(pids[r], 0), -1);
                kill(pids[r], SIGKILL);
                flow_join(pids[r], 5);
        }
        cr_assert(flow_until(20, flow_stat("pins.bytes") == 0));
        flow_umount(flow.mount);
        flow_stop();
}

/* Written in 2036, read in 2026: what is stored bears no time that would keep
 * it, or lose it. */
Test(clock, restart_before_it_began)
{
        const char *prefix;
        struct shim *shim = flow_shim(&prefix);

        flow_world("", prefix);
        flow.memory = "32MiB";
        flow.disk = "64MiB";
        for (uint32_t i = 0; i < FILES; i++)
                flow_file(i, LEN, "f%02u", i);
        shim->wall_offset_sec = INT64_C(315360000);
        flow_start();
        flow_ok("sheaf add data %s && sheaf warmup data f00 f01 --disk --quiet",
                flow.origin);
        flow_kill();
        shim->wall_offset_sec = 0;
        flow_start();
        for (int round = 0; round < 2; round++)
                for (uint32_t i = 0; i < FILES; i++) {
                        struct sheaf_session *session;
                        struct sheaf_dataset *dataset;
                        char name[16];

                        snprintf(name, sizeof(name), "f%02u", i);
                        cr_assert_eq(flow_open("data", &session, &dataset), 0);
                        cr_assert_eq(flow_check_view(dataset, name, i, LEN), 0);
                        flow_close(session, dataset);
                }
        sane_figures();
        flow_ok("sheaf ls --json");
        flow_ok("sheaf update data");
        flow_stop();
}

/* No claim is lost while the daemon is stopped, and no error comes before
 * the deadline. */
Test(clock, stopped_for_a_while)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_view held;

        flow.memory = "32MiB";
        for (uint32_t i = 0; i < FILES; i++)
                flow_file(i, LEN, "f%02u", i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        cr_assert_eq(sheaf_view_file(dataset, 0, &held), 0);
        kill(flow.daemon, SIGSTOP);
        flow_sleep(3);
        cr_assert_eq(flow_check_view(dataset, "f00", 0, LEN), 0);
        kill(flow.daemon, SIGCONT);
        for (uint32_t i = 0; i < FILES; i++) {
                char name[16];

                snprintf(name, sizeof(name), "f%02u", i);
                cr_assert_eq(flow_check_view(dataset, name, i, LEN), 0, "%s",
                        sheaf_last_error());
        }
        cr_assert(flow_stamp_check(
                held.pieces[0].iov_base, 0, 0, held.pieces[0].iov_len));
        sheaf_view_release(&held);
        flow_close(session, dataset);
        flow_stop();
}

/* ---- times of files ---- */

static void set_time(const char *name, int64_t sec, long nsec)
{
        struct timespec times[2] = { { .tv_sec = sec, .tv_nsec = nsec },
                { .tv_sec = sec, .tv_nsec = nsec } };

        cr_assert(!utimensat(AT_FDCWD, flow_path("origin/%s", name), times, 0));
}

static void same_times(const char *name)
{
        struct stat here, there;

        cr_assert(!stat(flow_path("origin/%s", name), &here) &&
                  !stat(flow_path("mount/%s", name), &there));
        cr_assert_eq(here.st_mtim.tv_sec, there.st_mtim.tv_sec, "%s: %lld",
                name, (long long)there.st_mtim.tv_sec);
        cr_assert_eq(here.st_mtim.tv_nsec, there.st_mtim.tv_nsec, "%s", name);
}

Test(clock, times_of_files_are_passed_through)
{
        static const struct {
                const char *name;
                int64_t sec;
                long nsec;
        } files[] = { { "in-2100", INT64_C(4102444800), 123456789 },
                { "zero", 0, 0 }, { "negative", -5, 999999999 },
                { "beyond-32-bits", (INT64_C(1) << 32) + 7, 1 },
                { "in-1960", -315619200, 5 } };

        for (uint32_t i = 0; i < SHEAF_ARRAY_LEN(files); i++) {
                flow_file(i, 5000, "%s", files[i].name);
                set_time(files[i].name, files[i].sec, files[i].nsec);
        }
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        for (int round = 0; round < 2; round++) {
                for (uint32_t i = 0; i < SHEAF_ARRAY_LEN(files); i++) {
                        same_times(files[i].name);
                        cr_assert_eq(
                                flow_check(flow_path("mount/%s", files[i].name),
                                        i, 5000, 4096),
                                0);
                }
                flow_kill();
                flow_start();
        }
        flow_ok("sheaf update data");
        cr_assert_not_null(
                strstr(flow.last.out, "unchanged"), "%s", flow.last.out);
        flow_umount(flow.mount);
        flow_stop();
}
