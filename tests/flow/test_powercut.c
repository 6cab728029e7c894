/* SPDX-License-Identifier: Apache-2.0 */
/* Power cuts: a day's work on a recorded disk, then the states that the disk
 * may have after a cut at any moment of it. cut_check says what must hold of
 * each; for some of them the whole daemon is started, and the power cut again
 * while it recovers and reads.
 *
 * A day is short in a test; by tools/soak it has all prefixes and more subsets,
 * and there are several days. A failure prints what repeats it: the seed makes
 * the work, event and draw the state. POWERCUT_DUMP: a file for that state. */
#include "tests/fakes/block_log.h"
#include "tests/flow/cut.h"
#include "tests/flow/cut_check.h"
#include "tests/flow/cut_load.h"
#include "tests/flow/harness.h"
#include "tests/flow/soak.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

TestSuite(powercut, .init = flow_init, .fini = flow_fini, .timeout = 100000);

#define IMAGE_BYTES  (UINT64_C(256) << 20)
#define DISK_BYTES   (UINT64_C(64) << 20)
#define FIRST_READ_S 5
#define NO_MOUNT_OF  50 /* one state in so many may lose ext4 itself */

struct run {
        struct cut_load load;
        struct cut_truth truth;
        struct cut_disk disk;
        struct cut_log log;
        int before_fd, state_fd;
        uint64_t seed;
        struct cut_report *report;
        uint64_t lost, no_mount;
        double first_s; /* from a start to the first read, the longest */
        double told;
};

static uint64_t draw(uint64_t *state)
{
        uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

        x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
        return x ^ x >> 31;
}

static int memory_file(void)
{
        int fd = memfd_create("sheaf-state", 0);

        cr_assert(fd >= 0);
        return fd;
}

static const char *figures(const struct run *run)
{
        static char text[1024];
        const struct cut_report *r = run->report;
        const struct cut_jobs_figures *j = &r->jobs;

        snprintf(text, sizeof(text),
                "%llu states, %llu sectors lost, %llu chunks served, %llu "
                "files by passthrough, %llu bad headers, %llu bad payloads, "
                "slowest open %.3f s, slowest first read %.3f s, %llu without "
                "a file system; %llu journals read, %llu slots told, %llu no "
                "more, %llu of them with another sample, %llu journals found "
                "damaged, %llu checkpoints by journal, %llu by bitmap",
                (unsigned long long)r->states, (unsigned long long)run->lost,
                (unsigned long long)r->served,
                (unsigned long long)r->passed_through,
                (unsigned long long)r->bad_headers,
                (unsigned long long)r->bad_payloads, r->open_s_max,
                run->first_s, (unsigned long long)run->no_mount,
                (unsigned long long)j->journals, (unsigned long long)j->slots,
                (unsigned long long)j->lost, (unsigned long long)j->other,
                (unsigned long long)j->refused, (unsigned long long)j->went_on,
                (unsigned long long)j->made);
        return text;
}

static void tell(struct run *run)
{
        if (flow_now() - run->told < 10)
                return;
        run->told = flow_now();
        fprintf(stderr, "powercut: %s\n", figures(run));
}

/* ---- one state ---- */

/* POWERCUT_DUMP: a file for the image as it was before the check. */
static void dump(struct run *run, struct cut_tape *tape, uint64_t draw)
{
        const char *path = getenv("POWERCUT_DUMP");

        if (!path)
                return;
        cut_tape_state(tape, draw, run->state_fd);
        flow_run("cp --sparse=always /proc/%d/fd/%d %s; cp %s %s.log",
                (int)getpid(), run->state_fd, path, flow.log, path);
}

static void check_state(struct run *run, struct cut_tape *tape, uint64_t draw,
        const struct cut_claims *claims, const char *what)
{
        char dir[96];
        struct cut_setting setting = {
                .dir = dir,
                .sub = "c",
                .bytes_max = DISK_BYTES,
                .uring = draw % 8 == 3,
        };
        int rc;

        snprintf(dir, sizeof(dir), "%s/state", flow.base);
        mkdir(dir, 0700);
        run->lost += cut_tape_state(tape, draw, run->state_fd);
        rc = cut_check(
                run->state_fd, &setting, &run->truth, claims, run->report);
        run->no_mount += rc == -ENODEV;
        if (rc && rc != -ENODEV)
                dump(run, tape, draw);
        cr_assert(rc == 0 || rc == -ENODEV,
                "%s: SOAK_SEED=%llu event=%zu draw=%llu: %s", what,
                (unsigned long long)run->seed, tape->at,
                (unsigned long long)draw, run->report->text);
        tell(run);
}

/* ---- which cuts ---- */

static int by_value(const void *a, const void *b)
{
        size_t x = *(const size_t *)a, y = *(const size_t *)b;

        return x < y ? -1 : x > y;
}

/* Not a mark of something that begins: all that is claimed there was claimed
 * before. */
static bool tells(const struct cut_event *event)
{
        static const char *const ends[] = { "done ", "kept ", "durable ",
                "gone" };

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(ends); i++)
                if (event->kind == BLOCK_MARK &&
                        event->len_bytes >= strlen(ends[i]) &&
                        !memcmp(event->data, ends[i], strlen(ends[i])))
                        return true;
        return event->kind != BLOCK_MARK;
}

/* @want events of a kind, ascending: flushes, marks, or writes (which are
 * pending right after them). All when there are not more, unless @repeat. */
static size_t *pick(const struct cut_log *log, uint32_t kind, size_t want,
        bool repeat, uint64_t seed, size_t *ret_count)
{
        size_t *all = sheaf_new(size_t, log->count + 1), count = 0;
        size_t *some;

        for (size_t i = 0; i < log->count; i++)
                if (log->events[i].kind == kind && tells(&log->events[i]))
                        all[count++] = i + 1;
        cr_assert(count);
        if (!repeat && want >= count) {
                *ret_count = count;
                return all;
        }
        some = sheaf_new(size_t, want + 1);
        for (size_t i = 0; i < want; i++)
                some[i] = all[draw(&seed) % count];
        qsort(some, want, sizeof(*some), by_value);
        free(all);
        *ret_count = want;
        return some;
}

static void check_cuts(struct run *run, uint32_t kind, size_t want)
{
        struct cut_tape tape;
        uint64_t state = run->seed + kind;
        size_t count, *cuts = pick(&run->log, kind, want, kind == BLOCK_WRITE,
                              run->seed + kind, &count);

        cut_tape_open(&tape, &run->log, run->before_fd);
        for (size_t i = 0; i < count; i++) {
                struct cut_claims claims = { 0 };

                cut_tape_seek(&tape, cuts[i]);
                cut_load_claims(&run->log, cuts[i], &claims);
                check_state(run, &tape,
                        kind == BLOCK_WRITE ? draw(&state) | 2 : 0, &claims,
                        "cut");
        }
        cut_tape_close(&tape);
        free(cuts);
}

/* ---- with a daemon, and cut again ---- */

/* By library, then by the kernel; a set of another generation than its
 * origin must be whole after an update. */
static void read_whole(struct run *run, struct cut_disk *disk, const char *name)
{
        char path[64];
        int rc = cut_load_read(&run->load, name, path);

        if (rc == 1) {
                cut_load_update(&run->load, disk, name);
                rc = cut_load_read(&run->load, name, path);
        }
        cr_assert_eq(rc, 0, "%s: %s: %s", name, path, strerror(-rc));
        flow_mount(name, flow.mount);
        rc = cut_load_check(&run->load, name, flow.mount, path);
        cr_assert_eq(rc, 0, "%s: %s by mount: %s", name, path, strerror(-rc));
        flow_umount(flow.mount);
}

static bool may_be_absent(const struct cut_claim *claim)
{
        for (unsigned int i = 0; i < claim->count; i++)
                if (!strcmp(claim->states[i], "absent"))
                        return true;
        return false;
}

/* Any file, cached or not: 0, also when it is -ESTALE. */
static int first_read(const char *name)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        char byte;
        int64_t rc = flow_open(name, &session, &dataset);

        if (rc)
                return (int)rc;
        rc = sheaf_read(dataset, 0, &byte, 1, 0);
        flow_close(session, dataset);
        return rc == 1 || rc == -ESTALE ? 0 : (int)rc;
}

static void check_daemon(
        struct run *run, struct cut_disk *disk, const struct cut_claims *claims)
{
        static const char *const never[] = { "disk-failing", "disk-full",
                "disk-read-only", "catalog-set-aside" };
        double begun = flow_now();

        cut_disk_mark(disk, "running");
        flow_start();
        for (unsigned int i = 0; i < claims->count; i++) {
                const struct cut_claim *claim = &claims->claims[i];
                int rc;

                if (strchr(claim->name, ':'))
                        continue;
                rc = first_read(claim->name);
                cr_assert(rc == 0 || (rc == -ENOENT && may_be_absent(claim)),
                        "%s: %s", claim->name, strerror(-rc));
                if (!i)
                        run->first_s =
                                SHEAF_MAX(run->first_s, flow_now() - begun);
                if (!rc)
                        read_whole(run, disk, claim->name);
                if (!rc && !strcmp(claim->name, CUT_JOBS_SET))
                        cut_jobs_go_on(&run->truth.jobs, disk, &claims->jobs,
                                &run->report->jobs);
        }
        cut_load_check_rights(claims);
        flow_ok("sheaf status");
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(never); i++)
                cr_assert(
                        !strstr(flow.last.out, never[i]), "%s", flow.last.out);
}

/* Whether ext4 itself comes back in that state. */
static bool has_disk(struct run *run, struct cut_tape *tape, uint64_t draw)
{
        const char *dir = flow_path("state");
        int rc;

        mkdir(dir, 0700);
        cut_tape_state(tape, draw, run->state_fd);
        rc = cut_mount(run->state_fd, dir);
        if (!rc)
                rc = cut_umount(dir);
        run->report->states += rc != 0;
        run->no_mount += rc != 0;
        return !rc;
}

/* The image is recorded while a daemon recovers on it; then cut again. */
static void check_again(struct run *run, struct cut_tape *tape, uint64_t draw_,
        const struct cut_claims *claims, size_t want)
{
        int image_fd = memory_file(), before_fd = memory_file();
        struct cut_disk disk;
        struct cut_tape second;
        struct cut_log log;
        uint64_t state = draw_;
        size_t count, *cuts, runs = run->truth.jobs.run_count;

        /* Another state, with the same two lowest bits. */
        for (int tries = 1; !has_disk(run, tape, draw_); tries++, draw_ += 4)
                cr_assert_lt(tries, 10, "no file system, again and again");
        cut_tape_state(tape, draw_, image_fd);
        cut_tape_state(tape, draw_, before_fd);
        cut_disk_begin(&disk, "second", image_fd, flow_path("disk"));
        check_daemon(run, &disk, claims);
        if (draw_ & 4)
                flow_kill();
        else
                flow_stop();
        cut_disk_end(&disk);
        cut_log_open(disk.log, &log);
        cuts = pick(&log, BLOCK_WRITE, want, true, draw_, &count);
        cut_tape_open(&second, &log, before_fd);
        for (size_t i = 0; i < count; i++) {
                struct cut_claims now = *claims;

                cut_tape_seek(&second, cuts[i]);
                cut_load_claims(&log, cuts[i], &now);
                check_state(run, &second, draw(&state) | 2, &now, "second cut");
        }
        cut_tape_close(&second);
        cut_log_close(&log);
        run->truth.jobs.run_count = runs;
        close(image_fd);
        close(before_fd);
        free(cuts);
}

/* The event behind the first checkpoint of a job: what has not been flushed by
 * then, its journal, is lost, so it goes on from its bitmap. */
static size_t first_point(const struct cut_log *log)
{
        static const char mark[] = "point 1";
        size_t i = 0;

        while (i < log->count &&
                (log->events[i].kind != BLOCK_MARK ||
                        memcmp(log->events[i].data, mark, sizeof(mark) - 1)))
                i++;
        cr_assert_lt(i, log->count);
        return i + 1;
}

static void check_twice(struct run *run, size_t daemons, size_t second)
{
        struct cut_tape tape;
        uint64_t state = run->seed + 77;
        size_t count, *cuts = pick(&run->log, BLOCK_WRITE, daemons, true,
                              run->seed + 77, &count);
        size_t point = first_point(&run->log);

        cuts[0] = point;
        qsort(cuts, count, sizeof(*cuts), by_value);
        cut_tape_open(&tape, &run->log, run->before_fd);
        for (size_t i = 0; i < count; i++) {
                struct cut_claims claims = { 0 };

                cut_tape_seek(&tape, cuts[i]);
                cut_load_claims(&run->log, cuts[i], &claims);
                check_again(run, &tape, cuts[i] == point ? 0 : draw(&state) | 2,
                        &claims, second);
        }
        cut_tape_close(&tape);
        free(cuts);
}

/* ---- */

static void record(struct run *run, bool tiny)
{
        int image_fd = cut_image_new(IMAGE_BYTES);

        run->before_fd = memory_file();
        cr_assert(flow_run("cp --sparse=always /proc/%d/fd/%d /proc/%d/fd/%d",
                          getpid(), image_fd, getpid(), run->before_fd) == 0);
        cut_disk_begin(&run->disk, "first", image_fd, flow_path("disk"));
        cut_load_run(&run->load, &run->disk, &run->truth, run->seed, tiny);
        cut_disk_end(&run->disk);
        close(image_fd);
        cut_log_open(run->disk.log, &run->log);
}

/* How much of a day is looked at. */
struct depth {
        size_t prefixes, subsets, daemons, second;
        bool tiny;
};

static void one_day(struct run *run, const struct depth *depth)
{
        record(run, depth->tiny);
        fprintf(stderr, "powercut: a day of %zu writes and %zu flushes\n",
                run->log.writes, run->log.flushes);
        check_cuts(run, BLOCK_MARK, SIZE_MAX);
        check_cuts(run, BLOCK_FLUSH, depth->prefixes);
        check_cuts(run, BLOCK_WRITE, depth->subsets);
        check_twice(run, depth->daemons, depth->second);
        cut_log_close(&run->log);
        cut_truth_clear(&run->truth);
        cut_load_clear(&run->load);
        close(run->before_fd);
}

/* What is on disk of a dataset that was removed right before the end. */
Test(powercut, what_was_removed_stays_removed)
{
        for (uint32_t i = 1; i <= 100; i++)
                flow_file(i, 20000, "f%u", i);
        flow_file(101, 9000000, "f101");
        flow_start();
        for (int round = 0; round < 3; round++) {
                flow_ok("sheaf add data %s", flow.origin);
                flow_ok("sheaf warmup --disk data");
                cr_assert_gt(flow_stat("disk.chunks"), 100);
                flow_ok("sheaf rm data");
                if (round == 1)
                        flow_stop();
                else
                        flow_kill();
                flow_start();
                cr_assert(flow_until(20, flow_stat("disk.chunks") == 0),
                        "round %d: %g chunks of nobody", round,
                        flow_stat("disk.chunks"));
                cr_assert_eq(flow_stat("disk.plain_files"), 0);
        }
        flow_stop();
}

Test(powercut, days)
{
        static const struct depth brief = { 8, 34, 2, 5, false };
        static const struct depth whole[] = { { SIZE_MAX, 250, 5, 10, false },
                { SIZE_MAX, 250, 5, 10, true } };
        static struct run run;
        struct soak soak;

        cut_require();
        soak_begin(&soak, "powercut", "days", 1, 1);
        flow.run_limit_s = 600; /* many tiny files, on a loaded machine */
        run.told = flow_now();
        run.report = cut_report_new();
        run.state_fd = memory_file();
        flow.disk = "64MiB";
        snprintf(flow.cache, sizeof(flow.cache), "%s/disk/c", flow.base);
        for (run.seed = soak.seed; soak_next(&soak); run.seed++)
                one_day(&run, soak.is_long ? &whole[run.seed % 2] : &brief);
        soak_end(&soak, "%s", figures(&run));
        cr_assert(run.first_s < FIRST_READ_S, "the first read took %g s",
                run.first_s);
        cr_assert(run.no_mount * NO_MOUNT_OF <= run.report->states + 50,
                "%llu states without a file system",
                (unsigned long long)run.no_mount);
}
