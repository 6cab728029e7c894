/* SPDX-License-Identifier: Apache-2.0 */
/* An origin on a file system that misbehaves on command: it hangs, stops,
 * fails for a moment or for long, loses things, and comes back. What is
 * cached is served all the time, what is not ends in an error in time, and
 * all is right again when the origin is, without a restart. */
#include "tests/flow/faulty.h"
#include "tests/flow/world.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

TestSuite(origin_faults, .init = flow_init, .fini = flow_fini, .timeout = 100);

#define DEADLINE_S 3
#define WARM       8
#define COLD       24
#define LEN        UINT64_C(60000)

static struct sheaf_session *session;
static struct sheaf_dataset *dataset;

static void open_data(void)
{
        cr_assert_eq(flow_open("data", &session, &dataset), 0, "%s",
                sheaf_last_error());
}

static void close_data(void)
{
        flow_close(session, dataset);
}

static uint32_t id_of(const char *dir, uint32_t i)
{
        return *dir == 'c' ? 100 + i : i;
}

static int view(const char *dir, uint32_t i)
{
        char name[32];

        snprintf(name, sizeof(name), "%s/f%u", dir, i);
        return flow_check_view(dataset, name, id_of(dir, i), LEN);
}

static int look(const char *dir, uint32_t i)
{
        return flow_check(
                flow_path("mount/%s/f%u", dir, i), id_of(dir, i), LEN, 4096);
}

/* origin/warm is cached, origin/cold is not; the origin can misbehave. */
static void setup(void)
{
        flow.deadline_s = DEADLINE_S;
        for (uint32_t i = 0; i < WARM; i++)
                flow_file(i, LEN, "warm/f%u", i);
        for (uint32_t i = 0; i < COLD; i++)
                flow_file(id_of("cold", i), LEN, "cold/f%u", i);
        flow_faulty_mount(flow.origin);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_ok("sheaf warmup data warm --quiet");
        flow_mount("data", flow.mount);
        for (uint32_t i = 0; i < WARM; i++)
                cr_assert_eq(look("warm", i), 0);
}

static void finish(void)
{
        flow_umount(flow.mount);
        flow_stop();
        flow_faulty_umount();
}

/* Exit status: 0, or the errno that a read of a cold file ended with. */
static pid_t start_cold(uint32_t i, bool by_mount)
{
        pid_t pid = flow_fork(0, 0);
        int rc;

        if (pid)
                return pid;
        if (by_mount) {
                _exit(-look("cold", i));
        }
        rc = flow_open("data", &session, &dataset);
        _exit(-(rc ? rc : view("cold", i)));
}

static void warm_works(void)
{
        open_data();
        for (uint32_t i = 0; i < WARM; i++) {
                cr_assert_eq(view("warm", i), 0, "%s", sheaf_last_error());
                cr_assert_eq(look("warm", i), 0);
        }
        close_data();
        flow_ok("ls -l %s/warm >/dev/null && df %s >/dev/null && "
                "sheaf status >/dev/null && sheaf ls >/dev/null",
                flow.mount, flow.mount);
}

static void cold_works(void)
{
        open_data();
        for (uint32_t i = 0; i < COLD; i++)
                cr_assert(flow_until(20, view("cold", i) == 0), "f%u: %s", i,
                        sheaf_last_error());
        close_data();
        for (uint32_t i = 0; i < COLD; i++)
                cr_assert_eq(look("cold", i), 0);
}

static bool one_waits(const pid_t *pids)
{
        for (uint32_t i = 0; i < COLD; i++) {
                siginfo_t info = { 0 };

                if (!waitid(P_PID, (id_t)pids[i], &info,
                            WEXITED | WNOHANG | WNOWAIT) &&
                        !info.si_pid)
                        return true;
        }
        return false;
}

/* Readers of cold files while the origin does not answer; half of them are
 * killed; then @heal. */
static void while_it_hangs(void (*hang)(void), void (*heal)(void))
{
        pid_t pids[COLD];
        double start;

        setup();
        hang();
        start = flow_now();
        for (uint32_t i = 0; i < COLD; i++)
                pids[i] = start_cold(i, i % 2);
        warm_works();
        /* Warm reads and commands have not waited for those. */
        cr_assert(one_waits(pids), "after %.1f s", flow_now() - start);
        for (uint32_t i = 0; i < COLD; i += 4) {
                kill(pids[i], SIGKILL);
                kill(pids[i + 1], SIGKILL);
        }
        for (uint32_t i = 0; i < COLD; i++) {
                int rc = flow_join(pids[i], 4 * (DEADLINE_S + 5.));

                if (i % 4 < 2)
                        cr_assert(rc == 128 + SIGKILL || rc == EIO ||
                                          rc == ETIMEDOUT,
                                "%d", rc);
                else
                        cr_assert(rc == EIO || rc == ETIMEDOUT, "f%u: %s", i,
                                strerror(rc));
        }
        cr_assert_gt(flow_now() - start, 1, "it did not hang");
        warm_works();
        /* The daemon sees it a moment after those who waited. */
        cr_assert(flow_until(20,
                flow_stat("fetch_errors") + flow_stat("origin.timeouts") > 0));
        heal();
        cold_works();
        finish();
}

static void heal(void)
{
        flow_faulty("%s", "");
}

static void hang_opens(void)
{
        flow_faulty("open path=/cold hang\n");
}

static void hang_reads(void)
{
        flow_faulty("read path=/cold hang\n");
}

static void hang_all(void)
{
        flow_faulty("any hang\n");
}

Test(origin_faults, open_hangs)
{
        while_it_hangs(hang_opens, heal);
}

Test(origin_faults, read_hangs)
{
        while_it_hangs(hang_reads, heal);
}

Test(origin_faults, everything_hangs)
{
        while_it_hangs(hang_all, heal);
}

/* It gives a byte a second of each file: that is no hang, and still each read
 * ends at its deadline. */
static void trickle(void)
{
        close(creat(flow_path("trickling"), 0644));
}

static void flood(void)
{
        cr_assert(!unlink(flow_path("trickling")));
}

Test(origin_faults, reads_trickle)
{
        flow.faults = "drip=1000:cold";
        setenv("SHEAF_FAULT_WHILE", flow_path("trickling"), 1);
        while_it_hangs(trickle, flood);
}

/* Errors: for all readers until it ends, and none of it is remembered. */
static void while_it_fails(const char *rule, int expect)
{
        setup();
        flow_faulty("%s\n", rule);
        open_data();
        for (uint32_t i = 0; i < 6; i++) {
                int rc = view("cold", i);
                char name[16];

                snprintf(name, sizeof(name), "cold/f%u", i);
                cr_assert_eq(rc, -expect, "%s: %s", rule, strerror(-rc));
                cr_assert(strstr(sheaf_last_error(), name), "%s",
                        sheaf_last_error());
                rc = look("cold", i);
                cr_assert_eq(rc, -expect, "%s: %s", rule, strerror(-rc));
        }
        close_data();
        warm_works();
        cr_assert_gt(flow_stat("origin.errors"), 0);
        heal();
        cold_works();
        finish();
}

Test(origin_faults, eio_of_reads)
{
        while_it_fails("read path=/cold fail=EIO", EIO);
}

Test(origin_faults, eio_of_opens)
{
        while_it_fails("open path=/cold fail=EIO", EIO);
}

Test(origin_faults, estale_of_everything)
{
        while_it_fails("open,read,attr path=/cold fail=ESTALE", ESTALE);
}

/* A bad moment, once in a while, is nobody's error. */
Test(origin_faults, bad_moments_cost_no_read)
{
        static const char *const rules[] = { "open fail=ESTALE times=1",
                "read fail=EIO times=1", "open fail=EIO times=1",
                "read fail=ESTALE times=1" };

        setup();
        open_data();
        for (uint32_t i = 0; i < COLD; i++) {
                flow_faulty("%s\n", rules[i % SHEAF_ARRAY_LEN(rules)]);
                cr_assert_eq(view("cold", i), 0, "%s: %s",
                        rules[i % SHEAF_ARRAY_LEN(rules)], sheaf_last_error());
        }
        heal();
        close_data();
        cold_works();
        finish();
}

/* Calls that a signal interrupts are made again: listing, reading, looking
 * for changes, checking. */
Test(origin_faults, eintr_of_everything)
{
        setup();
        flow_faulty("list path=/cold times=2 fail=EINTR\n"
                    "open,read,attr path=/cold one-of=3 fail=EINTR\n");
        open_data();
        for (uint32_t i = 0; i < COLD; i++)
                cr_assert_eq(view("cold", i), 0, "%s", sheaf_last_error());
        close_data();
        flow_ok("sheaf add again %s", flow.origin);
        flow_ok("sheaf update data --quiet && sheaf verify data --quiet");
        cr_assert_gt(flow_faulty_hits("read /cold"), 0);
        cr_assert_gt(flow_faulty_hits("open /cold"), 0);
        cr_assert_gt(flow_faulty_hits("list /cold"), 0);
        cr_assert_eq(flow_stat("origin.errors"), 0);
        heal();
        warm_works();
        finish();
}

/* A directory is gone for a while, then the whole file system. */
Test(origin_faults, things_that_go_and_come_back)
{
        int rc;

        setup();
        flow_ok("mv %s.real/cold %s/elsewhere", flow.origin, flow.base);
        open_data();
        rc = view("cold", 1);
        cr_assert_eq(rc, -ESTALE, "%s", strerror(-rc));
        cr_assert(strstr(sheaf_last_error(), "cold/f1"), "%s",
                sheaf_last_error());
        close_data();
        warm_works();
        flow_ok("mv %s/elsewhere %s.real/cold", flow.base, flow.origin);
        cold_works();
        /* What is not yet on disk would come there after it was dropped. */
        flow_ok("sheaf warmup data --disk --quiet && "
                "sheaf warmup --evict data && sheaf warmup data warm --quiet");
        flow_faulty_vanish();
        rc = flow_join(start_cold(2, false), 4 * (DEADLINE_S + 5.));
        cr_assert(rc == EIO || rc == ETIMEDOUT || rc == ESTALE, "%s",
                strerror(rc));
        warm_works();
        flow_umount(flow.mount);
        flow_faulty_umount();
        /* What it passed through, in its place: the same files. */
        flow_ok("rmdir %s && mv %s.real %s", flow.origin, flow.origin,
                flow.origin);
        flow_ok("sheaf update data %s", flow.origin);
        open_data();
        cr_assert_eq(view("cold", 2), 0, "%s", sheaf_last_error());
        close_data();
        flow_stop();
}

/* ---- changes that hide, and changes during a read ---- */

static void restamp(const char *path, uint32_t id, uint64_t len)
{
        char *buf = malloc(len);
        struct timespec times[2] = { { .tv_nsec = UTIME_OMIT } };
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        struct stat st;

        cr_assert(buf && fd >= 0 && !fstat(fd, &st));
        times[1] = st.st_mtim;
        flow_stamp_bytes(buf, id, 0, len);
        cr_assert_eq(pwrite(fd, buf, len, 0), (ssize_t)len);
        cr_assert(!futimens(fd, times));
        close(fd);
        free(buf);
}

/* Other bytes of the same length under the old mtime: what is known by digest
 * is refused, what was never read is taken as the first bytes seen; neither
 * is ever mixed. */
Test(origin_faults, mtime_restored)
{
        int rc;

        flow_file(1, LEN, "known");
        flow_file(2, LEN, "unknown");
        flow_start();
        flow_ok("sheaf add data %s && sheaf warmup data known --disk --quiet",
                flow.origin);
        restamp(flow_path("origin/known"), 11, LEN);
        restamp(flow_path("origin/unknown"), 12, LEN);
        open_data();
        cr_assert_eq(flow_check_view(dataset, "known", 1, LEN), 0, "%s",
                sheaf_last_error());
        close_data();
        flow_ok("sheaf warmup --evict data");
        open_data();
        rc = flow_check_view(dataset, "known", 1, LEN);
        cr_assert_eq(rc, -ESTALE, "%s", strerror(-rc));
        cr_assert_eq(flow_check_view(dataset, "unknown", 12, LEN), 0, "%s",
                sheaf_last_error());
        restamp(flow_path("origin/unknown"), 22, LEN);
        cr_assert_eq(flow_check_view(dataset, "unknown", 12, LEN), 0, "%s",
                sheaf_last_error());
        close_data();
        flow_ok("sheaf update data");
        open_data();
        cr_assert_eq(flow_check_view(dataset, "known", 11, LEN), 0, "%s",
                sheaf_last_error());
        cr_assert_eq(flow_check_view(dataset, "unknown", 22, LEN), 0, "%s",
                sheaf_last_error());
        close_data();
        flow_stop();
}

/* It grows, or is cut, in the middle of a slow read. */
static void resized_during_a_read(off_t to)
{
        pid_t pid;
        int rc;

        setup();
        flow_faulty("read path=/cold/f3 delay=700\n");
        pid = start_cold(3, false);
        cr_assert(flow_until(30, flow_faulty_hits("/cold/f3") > 0));
        cr_assert(!truncate(flow_path("origin.real/cold/f3"), to));
        rc = flow_join(pid, 40);
        cr_assert(rc == ESTALE || rc == EIO, "%s", strerror(rc));
        heal();
        flow_file(33, LEN + 7, "../origin.real/cold/f3");
        flow_ok("sheaf update data");
        open_data();
        cr_assert_eq(flow_check_view(dataset, "cold/f3", 33, LEN + 7), 0, "%s",
                sheaf_last_error());
        close_data();
        finish();
}

Test(origin_faults, grows_during_a_read)
{
        resized_during_a_read((off_t)LEN + 5000);
}

Test(origin_faults, shrinks_during_a_read)
{
        resized_during_a_read((off_t)LEN / 2);
}

/* ---- all want the same ---- */

#define BIG     (UINT64_C(20) << 20 | 3)
#define READERS 12

static pid_t start_big(uint32_t i)
{
        pid_t pid = flow_fork(0, 0);
        int rc;

        if (pid)
                return pid;
        if (i % 2)
                _exit(-flow_check(flow_path("mount/big"), 99, BIG, 1 << 20));
        rc = flow_open("data", &session, &dataset);
        _exit(-(rc ? rc : flow_check_view(dataset, "big", 99, BIG)));
}

/* All get the right bytes, and the origin gives them @times at most. */
static void all_read_big(double times, bool kill_first)
{
        pid_t pids[READERS];
        double before = flow_stat_of("data", "origin.bytes");

        for (uint32_t i = 0; i < READERS; i++)
                pids[i] = start_big(i);
        if (kill_first) {
                cr_assert(flow_until(
                        20, flow_stat_of("data", "origin.bytes") > before));
                kill(pids[0], SIGKILL);
                kill(pids[1], SIGKILL);
        }
        for (uint32_t i = 0; i < READERS; i++) {
                int rc = flow_join(pids[i], 60);

                cr_assert(!rc || (kill_first && i < 2), "%u: %s", i,
                        strerror(rc));
        }
        cr_assert_leq(flow_stat_of("data", "origin.bytes") - before,
                times * (double)BIG);
}

Test(origin_faults, one_cold_file_for_all)
{
        flow.deadline_s = 30;
        flow_file(99, BIG, "big");
        flow_file(98, BIG, "other");
        flow_faulty_mount(flow.origin);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        all_read_big(1.05, false);
        flow_ok("sheaf warmup data --disk --quiet && "
                "sheaf warmup --evict data");
        flow_umount(flow.mount);
        flow_mount("data", flow.mount);
        all_read_big(1.05, true);
        /* One transfer fails in the middle: once more, for all. */
        flow_ok("sheaf warmup data --disk --quiet && "
                "sheaf warmup --evict data");
        flow_umount(flow.mount);
        flow_mount("data", flow.mount);
        flow_faulty("read path=/big skip=50 fail=EIO times=1\n");
        all_read_big(1.55, false);
        cr_assert_gt(flow_faulty_hits("/big"), 0);
        finish();
}

/* A cache that holds one and a half of it, and others want the rest. */
Test(origin_faults, one_cold_file_for_all_in_little_space)
{
        pid_t other;

        flow.memory = "32MiB";
        flow.disk = "32MiB";
        flow_file(99, BIG, "big");
        flow_file(98, BIG, "other");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_ok("sheaf add other %s", flow.origin);
        flow_mount("data", flow.mount);
        other = flow_fork(0, 0);
        if (!other) {
                int rc = flow_open("other", &session, &dataset);

                while (!rc)
                        rc = flow_check_view(dataset, "other", 98, BIG);
                _exit(-rc);
        }
        all_read_big(3, false);
        cr_assert_eq(flow_wait(other, 0), -1, "the other one failed");
        kill(other, SIGKILL);
        flow_join(other, 5);
        flow_umount(flow.mount);
        flow_stop();
}
