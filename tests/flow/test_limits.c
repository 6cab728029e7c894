/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of memory and disk are never passed, what is reported is what is
 * used, and whatever does not fit is served all the same. */
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

TestSuite(limits, .init = flow_init, .fini = flow_fini, .timeout = 100);

#define DISK  (UINT64_C(256) << 20)
#define SMALL UINT64_C(700000)
#define LARGE (UINT64_C(12) << 20)

/* What `du` and status say, once writes are done; both below @max. */
static void disk_is_right(uint64_t max)
{
        double said = 0, used = 0;
        bool equal = flow_until(20, ({
                flow_ok("sheaf warmup data f000 --disk --quiet || true");
                said = flow_stat("disk.bytes");
                used = (double)flow_du(flow.cache);
                said <= used * 1.01 + 65536 && used <= said * 1.01 + 65536;
        }));

        cr_assert(equal, "du %.0f, status %.0f", used, said);
        cr_assert_leq(used, (double)max);
}

/* A process that watches du until it is killed; exits 1 when it is over. Where
 * the cache has a file system of its own it watches df, too, which counts what
 * is removed but open. */
static pid_t start_watch(uint64_t max, bool own_fs)
{
        pid_t pid = flow_fork(0, 0);
        char command[512];

        if (pid)
                return pid;
        snprintf(command, sizeof(command),
                "while :; do n=$(du -s -B1 %s 2>/dev/null | cut -f1); "
                "test $n -le %llu || { echo over: du $n >&2; exit 1; }; "
                "n=$(%s -B1 --output=used %s | tail -n1); "
                "test $n -le %llu || { echo over: df $n >&2; exit 1; }; "
                "sleep 0.1; done",
                flow.cache, (unsigned long long)max,
                own_fs ? "df" : "echo 0; true", flow.cache,
                (unsigned long long)max);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(9);
}

static void read_all(uint32_t count, uint64_t len)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        char name[16];

        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        for (uint32_t i = 0; i < count; i++) {
                snprintf(name, sizeof(name), "f%03u", i);
                cr_assert_eq(flow_check_view(dataset, name, i + 1, len), 0,
                        "%s: %s", name, sheaf_last_error());
        }
        flow_close(session, dataset);
}

/* Four times the limit passes through. */
static void pass_through(uint32_t count, uint64_t len, bool own_fs)
{
        pid_t watch;

        flow.memory = "64MiB";
        flow.disk = "256MiB";
        for (uint32_t i = 0; i < count; i++)
                flow_file(i + 1, len, "f%03u", i);
        if (own_fs) {
                flow_ok("mkdir %s", flow.cache);
                cr_assert(!mount("none", flow.cache, "tmpfs", 0, "size=600m"));
        }
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        watch = start_watch(DISK, own_fs);
        for (int round = 0; round < 2; round++) {
                read_all(count, len);
                cr_assert_leq(flow_stat("arena.bytes"), 64 << 20);
                cr_assert_leq(flow_stat("disk.bytes"), (double)DISK);
        }
        flow_mount("data", flow.mount);
        for (uint32_t i = 0; i < count; i += 7)
                cr_assert_eq(flow_check(flow_path("mount/f%03u", i), i + 1, len,
                                     1 << 20),
                        0);
        flow_umount(flow.mount);
        disk_is_right(DISK);
        cr_assert_eq(flow_wait(watch, 0), -1, "du was over the limit");
        kill(watch, SIGKILL);
        flow_join(watch, 5);
        cr_assert_gt(flow_stat("disk.payload_bytes"), DISK / 2,
                "the disk is used: %g", flow_stat("disk.payload_bytes"));
        flow_kill();
        flow_start();
        read_all(count / 4, len);
        disk_is_right(DISK);
        flow_stop();
}

Test(limits, small_files)
{
        pass_through((uint32_t)(4 * DISK / SMALL / 2), SMALL, false);
}

Test(limits, large_files)
{
        pass_through((uint32_t)(4 * DISK / LARGE / 2), LARGE, true);
}

Test(limits, no_disk)
{
        flow.disk = "0";
        flow.memory = "64MiB";
        for (uint32_t i = 0; i < 20; i++)
                flow_file(i + 1, LARGE, "f%03u", i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        read_all(20, LARGE);
        cr_assert_eq(flow_stat("disk.payload_bytes"), 0);
        cr_assert_neq(flow_run("sheaf warmup --disk data f001"), 0,
                "there is no disk that it could be on");
        cr_assert(strstr(flow.last.err, "no disk tier"), "%s", flow.last.err);
        cr_assert_leq(flow_du(flow.cache), UINT64_C(4) << 20);
        cr_assert_leq(flow_stat("arena.bytes"), 64 << 20);
        flow_stop();
        flow_start();
        read_all(3, LARGE);
        flow_stop();
}

Test(limits, object_larger_than_memory_and_disk)
{
        uint64_t len = (UINT64_C(80) << 20) + 5;
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        pid_t pids[4];

        flow.memory = "32MiB";
        flow.disk = "64MiB";
        flow_file(1, len, "f000");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        for (int i = 0; i < 4; i++) {
                pids[i] = flow_fork(0, 0);
                if (!pids[i])
                        _exit(-flow_check(
                                flow_path("mount/f000"), 1, len, 1 << 20));
        }
        for (int i = 0; i < 4; i++)
                cr_assert_eq(flow_join(pids[i], 40), 0);
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        cr_assert_eq(flow_check_read(dataset, "f000", 1, len, 1 << 20), 0);
        cr_assert_eq(flow_check_view(dataset, "f000", 1, len), 0, "%s",
                sheaf_last_error());
        flow_close(session, dataset);
        cr_assert_leq(flow_stat("arena.bytes"), 32 << 20);
        cr_assert_leq(flow_du(flow.cache), UINT64_C(64) << 20);
        flow_umount(flow.mount);
        flow_stop();
}

/* A small file system that others fill: reads go on, the floor is kept, and
 * caching resumes when there is room. */
Test(limits, floor_and_full_file_system)
{
        struct statvfs fs;
        const char *own = flow_path("cache");

        flow.memory = "64MiB";
        flow.disk = "1GiB";
        for (uint32_t i = 0; i < 300; i++)
                flow_file(i + 1, SMALL, "f%03u", i);
        cr_assert(!system(NULL) || flow_run("mkdir %s", own) == 0);
        cr_assert(!mount("none", own, "tmpfs", 0, "size=400m"), "%s",
                strerror(errno));
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        read_all(300, SMALL);
        cr_assert(!statvfs(own, &fs));
        cr_assert_geq(fs.f_bavail * fs.f_bsize, UINT64_C(63) << 20,
                "%lu bytes free", fs.f_bavail * fs.f_bsize);
        cr_assert_neq(flow_run("dd if=/dev/zero of=%s/foreign bs=1M", own), 0);
        read_all(300, SMALL);
        cr_assert(flow_live());
        flow_kill();
        flow_start();
        read_all(300, SMALL);
        flow_ok("sheaf status --json | grep -qi 'disk'");
        flow_ok("rm %s/foreign", own);
        read_all(300, SMALL);
        cr_assert(flow_until(30, ({
                flow_ok("sheaf warmup data f000 f001 --disk || true");
                flow_stat("dataset.disk_bytes") > 0;
        })));
        flow_stop();
}

static bool status_says(const char *what)
{
        flow_ok("sheaf status");
        return strstr(flow.last.out, what) != NULL;
}

static uint64_t log_lines(const char *event)
{
        flow_ok("grep -c ' %s ' %s || true", event, flow.log);
        return strtoull(flow.last.out, NULL, 10);
}

/* Others took the room: it is said, and said once. */
Test(limits, shortage_of_disk_is_a_state)
{
        const char *own = flow_path("cache");

        flow.memory = "64MiB";
        flow.disk = "1GiB";
        flow.extra = "--floor 3MiB";
        for (uint32_t i = 0; i < 24; i++)
                flow_file(i + 1, i % 4 ? SMALL : 5 << 20, "f%03u", i);
        flow_ok("mkdir %s", own);
        cr_assert(!mount("none", own, "tmpfs", 0, "size=64m"), "%s",
                strerror(errno));
        flow_ok("head -c 58M /dev/zero >%s/foreign", own);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        for (int round = 0; round < 4; round++) {
                for (uint32_t i = 0; i < 24; i++) {
                        struct sheaf_session *session;
                        struct sheaf_dataset *dataset;
                        char name[16];

                        snprintf(name, sizeof(name), "f%03u", i);
                        cr_assert_eq(flow_open("data", &session, &dataset), 0);
                        cr_assert_eq(flow_check_view(dataset, name, i + 1,
                                             i % 4 ? SMALL : 5 << 20),
                                0);
                        flow_close(session, dataset);
                }
                cr_assert(
                        status_says("the disk tier is degraded"), "%d", round);
        }
        cr_assert_gt(flow_stat("disk.payload_bytes"), 0, "large ones fit");
        cr_assert_eq(log_lines("store_degraded"), 1);
        cr_assert_eq(log_lines("store_recovered"), 0);
        flow_stop();
}

Test(limits, limit_that_is_reached_is_said)
{
        flow.memory = "64MiB";
        flow.disk = "64MiB";
        for (uint32_t i = 0; i < 8; i++)
                flow_file(i + 1, LARGE, "f%03u", i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        read_all(2, LARGE);
        cr_assert_not(status_says("the disk limit is reached"));
        read_all(8, LARGE);
        cr_assert(status_says("the disk limit is reached"));
        cr_assert_not_null(strstr(flow.last.out, "a larger --disk"));
        flow_ok("sheaf rm data");
        cr_assert(flow_until(20, !status_says("the disk limit is reached")),
                "%s", flow.last.out);
        flow_stop();
}

/* Two files with more chunks than an account is kept of in 64 MiB; false, and
 * told: the file system has no such files. */
static bool make_huge(const char *test)
{
        if (!flow_run("cd %s && mkdir huge && truncate -s 1T huge/a huge/b",
                    flow.base))
                return true;
        printf("SKIP: limits.%s: no files of 1 TiB here\n", test);
        return false;
}

/* An update to a directory that cannot be taken leaves the origin where it
 * was, in memory and in the record. */
Test(limits, an_update_that_fails_leaves_the_origin)
{
        flow.memory = "64MiB";
        flow.disk = "64MiB";
        for (uint32_t i = 0; i < 3; i++)
                flow_file(1 + i, SMALL, "f%03u", i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        if (make_huge("an_update_that_fails_leaves_the_origin")) {
                cr_assert_neq(
                        flow_run("sheaf update data %s/huge", flow.base), 0);
                flow_ok("sheaf ls --json data");
                cr_assert(!strstr(flow.last.out, "/huge"), "%s", flow.last.out);
                read_all(3, SMALL);
                flow_file(9, SMALL, "new");
                flow_ok("sheaf update data && sheaf share --force data all");
                flow_kill();
                flow_start();
                flow_ok("sheaf warmup --evict data && sheaf warmup data");
        }
        flow_stop();
}

static void add_as(uid_t uid, const char *name, const char *refused)
{
        int rc = flow_run_as(uid, 0, "sheaf add %s %s/sparse", name, flow.base);

        cr_assert_eq(!rc, !refused, "%s: %s", name, flow.last.err);
        if (refused)
                cr_assert_not_null(strstr(flow.last.err, refused), "%s: %s",
                        name, flow.last.err);
}

/* Each is below what a version may have: 262,144 chunks. Two are what a user
 * may have, with @data and what is on its way out; four all have. */
static void sums_of_chunks(void)
{
        flow_ok("sheaf rm huge && mkdir -m 755 %s/sparse && "
                "truncate -s 1T %s/sparse/a",
                flow.base, flow.base);
        add_as(1001, "one", NULL);
        add_as(1001, "two", NULL);
        add_as(1001, "three", "of this user");
        cr_assert_neq(flow_run("sheaf ls '~1001/three'"), 0);
        flow_ok("sheaf rm '~1001/one'");
        cr_assert(flow_until(20,
                !flow_run_as(1001, 0, "sheaf add one %s/sparse", flow.base)));
        add_as(1002, "one", NULL);
        add_as(1002, "two", "of all users");
        flow_ok("sheaf ls '~1001/two'");
}

/* Files of holes cost their owner nothing: what is kept of each chunk, cached
 * or not, is no way around the limits. */
Test(limits, more_chunks_than_can_be_kept_account_of)
{
        flow.memory = "64MiB";
        flow.disk = "64MiB";
        flow_file(1, SMALL, "f000");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        if (!make_huge("more_chunks_than_can_be_kept_account_of")) {
                flow_stop();
                return;
        }
        cr_assert_eq(flow_run("sheaf add huge %s/huge", flow.base), 1);
        cr_assert_not_null(
                strstr(flow.last.err, "524288 chunks"), "%s", flow.last.err);
        cr_assert_not_null(strstr(flow.last.err, "raise"), "%s", flow.last.err);
        cr_assert_neq(flow_run("sheaf ls huge"), 0, "%s", flow.last.out);
        cr_assert_leq(flow_du(flow.cache), UINT64_C(8) << 20);
        flow_ok("rm %s/huge/b && sheaf add huge %s/huge", flow.base, flow.base);
        flow_ok("truncate -s 1T %s/huge/b", flow.base);
        cr_assert_eq(flow_run("sheaf update huge"), 1);
        cr_assert_not_null(
                strstr(flow.last.err, "524288 chunks"), "%s", flow.last.err);
        flow_ok("sheaf ls huge");
        cr_assert_not_null(
                strstr(flow.last.out, "1.0 TiB"), "%s", flow.last.out);
        read_all(1, SMALL);
        sums_of_chunks();
        cr_assert_leq(flow_du(flow.cache), UINT64_C(64) << 20);
        flow_stop();
}

Test(limits, impossible_ones_are_refused)
{
        static const char *const bad[] = { "--memory -1", "--memory 0",
                "--memory 100TiB", "--disk -5", "--memory 1KiB",
                "--memory lots", "--deadline 0", "--deadline -3", "--disk 12XB",
                "--disk 1", "--disk 10MiB" };

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(bad); i++) {
                int rc = flow_run("timeout 5 sheafd --foreground --cache %s "
                                  "--socket %s --memory 64MiB --disk 64MiB %s",
                        flow.cache, flow.socket, bad[i]);

                cr_assert(rc == 1 || rc == 2, "%s: %d\n%s", bad[i], rc,
                        flow.last.err);
                cr_assert(*flow.last.err, "%s: no words", bad[i]);
        }
}
