/* SPDX-License-Identifier: Apache-2.0 */
/* What a hard kill leaves, and what strangers put in its place: the next
 * start is quick, touches nothing that is not its own, and cleans up behind.
 *
 * With SOAK_ROUNDS the old cache has 500,000 objects and 10,000 leftovers. */
#include "tests/flow/faulty.h"
#include "tests/flow/harness.h"
#include "tests/flow/soak.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

TestSuite(leftovers, .init = flow_init, .fini = flow_fini, .timeout = 100000);

#define START_LIMIT_S 5.0

static void timed_start(void)
{
        double start = flow_now();

        flow_start();
        cr_assert_lt(flow_now() - start, START_LIMIT_S, "the start took %.1f s",
                flow_now() - start);
}

/* ---- processes that are gone ---- */

/* A client that holds a view until it is killed. */
static pid_t start_holder(const char *ready)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_view view;
        pid_t pid = flow_fork(0, 0);

        if (pid)
                return pid;
        if (flow_open("data", &session, &dataset) ||
                sheaf_view_file(dataset, 0, &view))
                _exit(1);
        creat(ready, 0644);
        for (;;)
                pause();
}

static void read_f(void)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;

        cr_assert_eq(flow_open("data", &session, &dataset), 0, "%s",
                sheaf_last_error());
        cr_assert_eq(flow_check_view(dataset, "f", 1, 300000), 0, "%s",
                sheaf_last_error());
        flow_close(session, dataset);
}

Test(leftovers, daemon_and_client_are_killed)
{
        const char *ready = flow_path("ready");

        flow_file(1, 300000, "f");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        for (int round = 0; round < 3; round++) {
                pid_t pid = start_holder(ready);

                cr_assert(flow_until(20, access(ready, F_OK) == 0));
                flow_kill();
                kill(pid, SIGKILL);
                flow_join(pid, 5);
                unlink(ready);
                timed_start();
                read_f();
        }
        cr_assert(flow_until(30, flow_stat("pins.bytes") == 0));
        /* Shared memory has no names that could be left, or be taken by
         * somebody before. */
        flow_ok("! grep -q /dev/shm/ /proc/%d/maps", (int)flow.daemon);
        flow_stop();
}

/* The text of the lock is a hint: whose number it has is left alone. */
Test(leftovers, the_lock_names_a_stranger)
{
        const char *lock = flow_path("cache/lock");
        pid_t stranger = flow_fork(0, 0);

        if (!stranger) {
                execlp("sleep", "sleep", "1000", (char *)NULL);
                _exit(97);
        }
        flow_file(1, 300000, "f");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        for (int round = 0; round < 3; round++) {
                flow_kill();
                /* In the same file, in another one, and with no end. */
                if (round == 1)
                        flow_ok("rm %s", lock);
                if (round < 2)
                        flow_ok("printf 'host=%%s\\nboot=%%s\\npid=%d\\n' "
                                "$(hostname) "
                                "$(cat /proc/sys/kernel/random/boot_id) > %s",
                                (int)stranger, lock);
                else
                        flow_ok("head -c 100000 /dev/urandom > %s", lock);
                timed_start();
                read_f();
        }
        flow_stop();
        cr_assert_eq(flow_wait(stranger, 0), -1, "sleep got a signal");
        kill(stranger, SIGKILL);
        flow_join(stranger, 5);
}

/* ---- names that a stranger took before ---- */

/* Listens at @path as @uid, and tells by its status whether somebody came. */
static pid_t start_trap(const char *path, const char *ready, uid_t uid)
{
        struct sockaddr_un addr = { .sun_family = AF_UNIX };
        pid_t pid = flow_fork(uid, 0);
        int fd;

        if (pid)
                return pid;
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
        if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) ||
                chmod(path, 0777) || listen(fd, 5))
                _exit(2);
        creat(ready, 0644);
        _exit(accept(fd, NULL, NULL) >= 0);
}

Test(leftovers, a_stranger_took_the_usual_place)
{
        uid_t uid = 61000 + (uid_t)getpid() % 1000 * 2, other = uid + 1;
        const char *ready = flow_path("ready");
        char dir[64], path[96];
        pid_t trap;
        int rc;

        if (!access("/run/sheaf/sheafd.sock", F_OK)) {
                printf("SKIP: a_stranger_took_the_usual_place: a daemon runs "
                       "here\n");
                return;
        }
        snprintf(dir, sizeof(dir), "/tmp/sheaf-%u", (unsigned int)uid);
        snprintf(path, sizeof(path), "%s/sheafd.sock", dir);
        cr_assert(!chmod(flow.base, 0777));
        cr_assert(!mkdir(dir, 0777), "%s: %s", dir, strerror(errno));
        cr_assert(!chown(dir, other, other) && !chmod(dir, 0777));
        trap = start_trap(path, ready, other);
        cr_assert(flow_until(30, access(ready, F_OK) == 0));
        unsetenv("SHEAF_SOCKET");
        rc = flow_run_as(uid, 0, "timeout 20 sheaf status");
        cr_assert_eq(rc, 3, "%d: %s", rc, flow.last.err);
        rc = flow_run_as(uid, 0,
                "timeout 5 sheafd --foreground --cache %s/c --memory 32MiB "
                "--disk 32MiB",
                flow.base);
        cr_assert(rc != 0 && *flow.last.err, "%d: %s", rc, flow.last.err);
        cr_assert(
                rc != 124, "it listens beside the stranger: %s", flow.last.err);
        cr_assert_eq(flow_wait(trap, 0), -1, "somebody went into the trap");
        kill(trap, SIGKILL);
        flow_join(trap, 5);
        flow_ok("rm -rf %s", dir);
}

/* ---- a large old cache ---- */

#define MORE       60 /* what a kill finds half written */
#define MORE_BYTES 800000

static uint32_t objects, debris;

static uint64_t size_of(uint32_t i)
{
        return 100 + i % 400;
}

static void leave_debris(void)
{
        for (uint32_t i = 0; i < debris; i++) {
                if (i % 3 == 0)
                        close(creat(
                                flow_path("cache/segments/tmp-%u", i), 0600));
                else if (i % 3 == 1)
                        close(creat(
                                flow_path("cache/plain/%016x.tmp", i), 0600));
                else
                        cr_assert(!mkdir(
                                flow_path("cache/versions/.gone-%u", i), 0700));
        }
}

static uint64_t debris_left(void)
{
        cr_assert_eq(flow_run("find %s -name 'tmp-*' -o -name '*.tmp' -o "
                              "-name '.gone-*' | wc -l",
                             flow.cache),
                0);
        return strtoull(flow.last.out, NULL, 10);
}

static bool space_is_right(void)
{
        double said = flow_stat("disk.bytes");
        double used = (double)flow_du(flow.cache);

        return said <= used * 1.01 + 65536 && used <= said * 1.01 + 65536;
}

/* Kills a warmup in its midst, leaves debris, and starts: the first warm file
 * is there in time, by a mount that was there and by a new one, and the
 * cleaning ends. */
static void start_over(const char *how)
{
        char again[96];
        double start, first;
        pid_t pid = flow_fork(0, 0);

        snprintf(again, sizeof(again), "%s/again", flow.base);
        if (!pid) {
                execlp("sheaf", "sheaf", "warmup", "--quiet", "data",
                        (char *)NULL);
                _exit(97);
        }
        flow_sleep(0.3);
        flow_kill();
        kill(pid, SIGKILL);
        flow_join(pid, 10);
        leave_debris();
        start = flow_now();
        flow_start();
        cr_assert_eq(flow_check(flow_path("mount/f0"), 1, size_of(0), 4096), 0);
        first = flow_now() - start;
        cr_assert_lt(first, START_LIMIT_S, "%s: the first read after %.1f s",
                how, first);
        flow_mount("data", again);
        cr_assert_eq(flow_check(flow_path("again/f0"), 1, size_of(0), 4096), 0);
        cr_assert_lt(flow_now() - start, START_LIMIT_S);
        flow_umount(again);
        cr_assert(flow_until(120, debris_left() == 0), "%s: %llu stay", how,
                (unsigned long long)debris_left());
        cr_assert(flow_until(60, flow_stat("disk.unchecked") == 0),
                "%s: %g containers stay unchecked", how,
                flow_stat("disk.unchecked"));
        cr_assert(flow_until(20, space_is_right()), "%s: du %llu, status %.0f",
                how, (unsigned long long)flow_du(flow.cache),
                flow_stat("disk.bytes"));
        fprintf(stderr, "%s: first read after %.2f s, all clean after %.1f s\n",
                how, first, flow_now() - start);
}

Test(leftovers, a_large_old_cache)
{
        struct soak soak;
        double before;

        soak_begin(&soak, "oldcache", "rounds", 1, 1);
        objects = soak.is_long ? 500000 : 20000;
        debris = soak.is_long ? 10000 : 1500;
        flow.run_limit_s = soak.is_long ? 600 : 60;
        flow.disk = "4GiB";
        flow.extra = "--fuse-cache";
        flow_origin_in_memory();
        for (uint32_t i = 0; i < objects; i++)
                flow_file(i + 1, size_of(i), "f%u", i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        flow_ok("sheaf warmup --quiet data && sheaf warmup --disk --quiet "
                "data");
        for (uint32_t i = 0; i < MORE; i++)
                flow_file(objects + 1 + i, MORE_BYTES, "more%u", i);
        flow_ok("sheaf update data");
        while (soak_next(&soak))
                start_over("this disk");
        flow_kill();
        flow_faulty_mount(flow.cache);
        flow_faulty("unlink,rmdir delay=1");
        flow_start();
        start_over("slow unlink");
        cr_assert_gt(flow_faulty_hits("unlink"), debris / 3);
        before = flow_stat("origin.bytes");
        flow_ok("sheaf warmup --quiet data && sheaf warmup --disk --quiet "
                "data");
        cr_assert_leq(flow_stat("origin.bytes") - before, MORE * MORE_BYTES,
                "what was on disk was fetched again");
        soak_end(&soak, "%u objects, %u leftovers", objects, debris);
        flow_umount(flow.mount);
        flow_stop();
        flow_faulty_umount();
}
