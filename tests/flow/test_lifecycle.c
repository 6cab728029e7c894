/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons and mounts that are killed, started twice, or find leftovers:
 * readers wait and go on, and nothing needs cleaning by hand. */
#include "proto/wire.h"
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>

TestSuite(lifecycle, .init = flow_init, .fini = flow_fini, .timeout = 80);

#define ROUNDS 20
#define WARM   700000

static bool log_says(const char *log, const char *text)
{
        return flow_run("grep -q -e '%s' %s", text, log) == 0;
}

/* ---- the daemon is killed ---- */

/* A client that reads a file that is slow at the origin. It makes a file
 * when it has opened it: who never met a daemon is refused at once. */
static pid_t read_slowly(uint32_t i, bool library)
{
        const char *path = flow_path("mount/slow/f%u", i);
        const char *opened = flow_path("opened%u", i);
        pid_t pid = flow_fork(0, 0);
        int rc, fd = -1;

        if (!pid && library) {
                struct sheaf_session *session;
                struct sheaf_dataset *dataset;

                rc = flow_open("data", &session, &dataset);
                creat(opened, 0644);
                if (!rc)
                        rc = flow_check_view(dataset,
                                path + strlen(flow.mount) + 1, i, 100000 + i);
                _exit(-rc);
        }
        if (!pid) {
                fd = open(path, O_RDONLY | O_CLOEXEC);
                creat(opened, 0644);
                rc = fd < 0 ? -errno : flow_check(path, i, 100000 + i, 65536);
                _exit(-rc);
        }
        cr_assert(flow_until(30, access(opened, F_OK) == 0));
        return pid;
}

Test(lifecycle, killed_while_mounted)
{
        char *map;
        int warm;

        flow.faults = "delay=250:slow";
        for (uint32_t i = 1; i <= 2 * ROUNDS; i++)
                flow_file(i, 100000 + i, "slow/f%u", i);
        flow_file(100, WARM, "warm");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        warm = open(flow_path("mount/warm"), O_RDONLY | O_CLOEXEC);
        cr_assert_geq(warm, 0);
        map = mmap(NULL, WARM, PROT_READ, MAP_SHARED, warm, 0);
        cr_assert_neq(map, MAP_FAILED);
        for (uint32_t round = 1; round <= ROUNDS; round++) {
                pid_t by_mount = read_slowly(round, false);
                pid_t by_library = read_slowly(ROUNDS + round, true);
                int rc;

                flow_sleep(round % 4 * 0.05);
                flow_kill();
                flow_start();
                rc = flow_join(by_mount, 30);
                cr_assert_eq(rc, 0, "mount, round %u: %s", round, strerror(rc));
                rc = flow_join(by_library, 30);
                cr_assert_eq(
                        rc, 0, "library, round %u: %s", round, strerror(rc));
                cr_assert(flow_stamp_check(map, 100, 0, WARM));
                cr_assert_eq(flow_mounted(flow.mount), 1);
        }
        for (uint32_t i = 1; i <= 2 * ROUNDS; i++)
                cr_assert_eq(flow_check(flow_path("mount/slow/f%u", i), i,
                                     100000 + i, 65536),
                        0);
        munmap(map, WARM);
        close(warm);
        flow_umount(flow.mount);
        flow_stop();
}

/* With nobody there a read fails at the deadline, and works again later on
 * the same descriptors. */
Test(lifecycle, error_at_the_deadline_when_no_daemon_comes)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        double start;
        int fd, rc;
        char byte;

        flow.deadline_s = 2;
        flow_file(1, 50000, "one");
        flow_file(2, 50000, "two");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        fd = open(flow_path("mount/one"), O_RDONLY | O_CLOEXEC);
        cr_assert_geq(fd, 0);
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        flow_kill();
        start = flow_now();
        rc = pread(fd, &byte, 1, 0) < 0 ? errno : 0;
        cr_assert(rc == EIO || rc == ETIMEDOUT, "%s", strerror(rc));
        cr_assert_lt(flow_now() - start, 7);
        start = flow_now();
        rc = flow_check_view(dataset, "two", 2, 50000);
        cr_assert_lt(rc, 0);
        cr_assert_neq(rc, -EBADMSG);
        cr_assert(*sheaf_last_error());
        cr_assert_lt(flow_now() - start, 7);
        flow_start();
        cr_assert_eq(pread(fd, &byte, 1, 0), 1);
        cr_assert_eq(flow_check(flow_path("mount/one"), 1, 50000, 4096), 0);
        cr_assert_eq(flow_check_view(dataset, "two", 2, 50000), 0, "%s",
                sheaf_last_error());
        flow_close(session, dataset);
        close(fd);
        flow_umount(flow.mount);
        flow_stop();
}

/* A daemon that is stopped answers nothing: hits need none, all else ends at
 * the deadline, and goes on afterwards. */
Test(lifecycle, stopped_daemon)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        double start;
        int rc;

        flow.deadline_s = 2;
        flow_file(1, 50000, "warm");
        flow_file(2, 50000, "cold");
        flow_file(3, 50000, "mounted");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        cr_assert_eq(flow_check_view(dataset, "warm", 1, 50000), 0);
        kill(flow.daemon, SIGSTOP);
        cr_assert_eq(flow_check_view(dataset, "warm", 1, 50000), 0);
        start = flow_now();
        rc = flow_check_view(dataset, "cold", 2, 50000);
        cr_assert_eq(rc, -ETIMEDOUT, "%s", strerror(-rc));
        cr_assert_lt(flow_now() - start, 7);
        start = flow_now();
        rc = flow_check(flow_path("mount/mounted"), 3, 50000, 4096);
        cr_assert(rc == -EIO || rc == -ETIMEDOUT, "%s", strerror(-rc));
        cr_assert_lt(flow_now() - start, 7);
        cr_assert_neq(flow_run("sheaf status"), 0);
        cr_assert_lt(flow.last.seconds, 35);
        kill(flow.daemon, SIGCONT);
        cr_assert_eq(flow_check_view(dataset, "cold", 2, 50000), 0, "%s",
                sheaf_last_error());
        cr_assert_eq(flow_check(flow_path("mount/mounted"), 3, 50000, 4096), 0);
        flow_close(session, dataset);
        flow_umount(flow.mount);
        flow_stop();
}

/* A stopped daemon whose queue of connections is full: who comes then is told
 * at the deadline, and can go. */
Test(lifecycle, stopped_daemon_with_a_full_queue)
{
        struct sheaf_session_options options = { .deadline_ms = 1000 };
        struct sheaf_session *session;
        double start;
        pid_t pid;
        int sock;

        flow_file(1, 50000, "f");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        kill(flow.daemon, SIGSTOP);
        while ((sock = sheaf_wire_connect_now(flow.socket)) >= 0)
                close(sock);
        cr_assert_eq(sock, -EAGAIN, "%s", strerror(-sock));
        pid = flow_fork(0, 0);
        if (!pid) {
                execlp("sheaf", "sheaf", "--socket", flow.socket, "status",
                        (char *)NULL);
                _exit(97);
        }
        start = flow_now();
        cr_assert_eq(sheaf_session_new(&options, &session), 0);
        cr_assert_eq(sheaf_session_connect(session), -ETIMEDOUT);
        cr_assert(strstr(sheaf_last_error(), "takes no connection"), "%s",
                sheaf_last_error());
        sheaf_session_free(session);
        cr_assert_lt(flow_now() - start, 8);
        cr_assert_eq(flow_join(pid, 50), 7, "not timed out");
        kill(flow.daemon, SIGCONT);
        cr_assert_eq(sheaf_session_new(NULL, &session), 0);
        cr_assert_eq(
                sheaf_session_connect(session), 0, "%s", sheaf_last_error());
        sheaf_session_free(session);
        flow_stop();
}

/* Killed at any moment of a fill: what is there is right, the rest is
 * fetched, and status tells what the disk holds. */
Test(lifecycle, killed_while_filling)
{
        enum {
                SMALL = 600,
                LARGE = 4
        };
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        char path[32];

        for (uint32_t i = 1; i <= SMALL; i++)
                flow_file(i, 1000 + i * 157, "s/f%u", i);
        for (uint32_t i = 1; i <= LARGE; i++)
                flow_file(1000 + i, 9000000, "l/f%u", i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        for (int round = 0; round < 10; round++) {
                pid_t pid = flow_fork(0, 0);

                if (!pid) {
                        execlp("sheaf", "sheaf", "warmup", "--disk", "--quiet",
                                "data", (char *)NULL);
                        _exit(97);
                }
                flow_sleep(0.02 + 0.05 * round);
                flow_kill();
                kill(pid, SIGKILL);
                flow_wait(pid, 5);
                flow_start();
                if (round % 3 == 0)
                        flow_ok("sheaf verify data --quiet");
                if (round % 3 == 1)
                        flow_ok("sheaf warmup --evict data s --quiet");
        }
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        for (uint32_t i = 1; i <= SMALL; i++) {
                snprintf(path, sizeof(path), "s/f%u", i);
                cr_assert_eq(flow_check_view(dataset, path, i, 1000 + i * 157),
                        0, "%s: %s", path, sheaf_last_error());
        }
        for (uint32_t i = 1; i <= LARGE; i++) {
                snprintf(path, sizeof(path), "l/f%u", i);
                cr_assert_eq(
                        flow_check_view(dataset, path, 1000 + i, 9000000), 0);
        }
        flow_close(session, dataset);
        cr_assert_eq(flow_stat("verify_failures"), 0);
        /* A large file with a gap is not checked before it is whole. */
        flow_ok("sheaf warmup --disk data && sheaf verify data");
        cr_assert(flow_until(20, flow_stat("disk.unchecked") == 0),
                "cleaning does not end: %g", flow_stat("disk.unchecked"));
        flow_stop();
        flow_start();
        flow_ok("sheaf warmup --disk data");
        cr_assert_eq(flow_stat("origin.bytes"), 0);
        flow_stop();
}

/* What changes at the origin while no daemon runs costs those files alone. */
Test(lifecycle, file_changed_across_a_restart)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        char name[16];

        for (uint32_t i = 0; i < 8; i++)
                flow_file(1 + i, 5000, "f%u", i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_kill();
        flow_file(100, 6000, "f3");
        flow_ok("rm %s/f5", flow.origin);
        flow_start();
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        for (uint32_t i = 0; i < 8; i++) {
                snprintf(name, sizeof(name), "f%u", i);
                cr_assert_eq(flow_check_view(dataset, name, 1 + i, 5000),
                        i == 3 || i == 5 ? -ESTALE : 0, "%s: %s", name,
                        sheaf_last_error());
        }
        flow_close(session, dataset);
        flow_stop();
}

/* ---- leftovers ---- */

Test(lifecycle, start_over_a_stale_socket)
{
        flow_file(1, 5000, "f");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        for (int round = 0; round < 3; round++) {
                flow_kill();
                cr_assert_eq(access(flow.socket, F_OK), 0,
                        "the kill left no socket behind");
                flow_start();
        }
        flow_mount("data", flow.mount);
        cr_assert_eq(flow_check(flow_path("mount/f"), 1, 5000, 4096), 0);
        flow_umount(flow.mount);
        flow_stop();
        cr_assert_neq(access(flow.socket, F_OK), 0);
}

Test(lifecycle, a_file_in_place_of_the_socket_is_left_alone)
{
        char arguments[512];
        pid_t pid;
        int rc;

        flow_ok("echo precious > %s", flow.socket);
        snprintf(arguments, sizeof(arguments),
                "--foreground --cache %s --socket %s --memory 64MiB "
                "--disk 64MiB",
                flow.cache, flow.socket);
        pid = flow_spawn(flow.log, arguments);
        rc = flow_join(pid, 5);
        cr_assert_gt(rc, 0);
        cr_assert(log_says(flow.log, "not a socket"));
        flow_ok("grep -qx precious %s", flow.socket);
        flow_ok("rm %s", flow.socket);
        flow_start();
        flow_stop();
}

Test(lifecycle, ten_daemons_at_once)
{
        pid_t pids[10];
        char arguments[512];
        int running = 0, winner = -1;

        snprintf(arguments, sizeof(arguments),
                "--foreground --cache %s --socket %s --memory 64MiB "
                "--disk 128MiB --floor 64MiB",
                flow.cache, flow.socket);
        for (int i = 0; i < 10; i++)
                pids[i] = flow_spawn(flow_path("log%d", i), arguments);
        flow_sleep(3);
        for (int i = 0; i < 10; i++) {
                int rc = flow_wait(pids[i], 2);

                cr_assert_neq(rc, 0, "one ended as if all was well");
                if (rc < 0) {
                        running++;
                        winner = i;
                }
        }
        cr_assert_eq(running, 1, "%d run", running);
        cr_assert(flow_live());
        flow_ok("sheaf status --json | grep -q '\"pid\": %d'",
                (int)pids[winner]);
        flow.daemon = pids[winner];
        flow_stop();
}

/* ---- two daemons, one cache ---- */

/* Exit code of a second daemon on @cache, -1 when it runs. */
static int second(const char *cache)
{
        char arguments[512];
        const char *log = flow_path("log2");
        pid_t pid;
        int rc;

        unlink(log);
        snprintf(arguments, sizeof(arguments),
                "--foreground --cache %s --socket %s/s2 --memory 64MiB "
                "--disk 128MiB",
                cache, flow.base);
        pid = flow_spawn(log, arguments);
        rc = flow_wait(pid, 5);
        if (rc < 0)
                kill(pid, SIGKILL);
        return rc;
}

/* It must refuse and name the first. */
static void refused(const char *cache)
{
        int rc = second(cache);
        char text[64];

        cr_assert_gt(rc, 0, "%s: %d", cache, rc);
        snprintf(text, sizeof(text), "pid=%d", (int)flow.daemon);
        cr_assert(log_says(flow_path("log2"), text),
                "%s: the holder is not named", cache);
}

static void still_right(void)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;

        cr_assert(flow_live());
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        cr_assert_eq(flow_check_view(dataset, "f", 1, 5000), 0);
        flow_close(session, dataset);
}

static void second_refuses(void)
{
        const char *link = flow_path("link"), *bind = flow_path("bind");

        flow_file(1, 5000, "f");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        refused(flow.cache);
        cr_assert(!symlink(flow.cache, link));
        refused(link);
        cr_assert(!mkdir(bind, 0755));
        cr_assert(!mount(flow.cache, bind, NULL, MS_BIND, NULL));
        refused(bind);
        cr_assert(!umount(bind));
        still_right();
        kill(flow.daemon, SIGSTOP);
        refused(flow.cache);
        kill(flow.daemon, SIGCONT);
        still_right();
        cr_assert(!unlink(flow_path("cache/lock")));
        cr_assert_gt(second(flow.cache), 0);
        still_right();
        flow_kill();
        flow_start();
        still_right();
        flow_stop();
}

Test(lifecycle, second_daemon_on_one_cache_refuses)
{
        second_refuses();
}

Test(lifecycle, second_daemon_on_one_cache_on_tmpfs_refuses)
{
        cr_assert(!mkdir(flow.cache, 0755));
        cr_assert(!mount("none", flow.cache, "tmpfs", 0, "size=200m"));
        second_refuses();
}

/* ---- the mount's process is killed ---- */

Test(lifecycle, mount_process_killed)
{
        flow_file(1, 5000, "f");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        for (int round = 0; round < 5; round++) {
                pid_t server;

                flow_mount("data", flow.mount);
                cr_assert_eq(
                        flow_check(flow_path("mount/f"), 1, 5000, 4096), 0);
                server = flow_server(flow.mount);
                cr_assert_gt(server, 0);
                kill(server, SIGKILL);
                cr_assert(flow_until(20, flow_server(flow.mount) != server));
        }
        flow_mount("data", flow.mount);
        cr_assert_eq(flow_check(flow_path("mount/f"), 1, 5000, 4096), 0);
        flow_umount(flow.mount);
        cr_assert(flow_until(20, flow_stat("clients") <= 1),
                "connections of dead mounts stay: %g", flow_stat("clients"));
        flow_stop();
}

/* The mount's process and the daemon at once, as when a machine is short of
 * memory: both begin again without help, in either order. */
Test(lifecycle, mount_and_daemon_killed)
{
        for (uint32_t i = 0; i < 100; i++)
                flow_file(1 + i, 1000 + i, "f%u", i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        for (int round = 0; round < 6; round++) {
                pid_t server;

                flow_mount("data", flow.mount);
                cr_assert_eq(flow_mounted(flow.mount), 1);
                for (uint32_t i = 0; i < 100; i++)
                        cr_assert_eq(flow_check(flow_path("mount/f%u", i),
                                             1 + i, 1000 + i, 4096),
                                0);
                server = flow_server(flow.mount);
                cr_assert_gt(server, 0);
                if (round % 2)
                        kill(server, SIGKILL);
                flow_kill();
                if (round % 2 == 0)
                        kill(server, SIGKILL);
                cr_assert(flow_until(20, flow_server(flow.mount) != server));
                flow_start();
        }
        flow_mount("data", flow.mount);
        flow_umount(flow.mount);
        flow_stop();
}

Test(lifecycle, unmount_while_busy)
{
        char text[32];
        char byte;
        pid_t server;
        int fd;

        flow_file(1, 500000, "f");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        server = flow_server(flow.mount);
        fd = open(flow_path("mount/f"), O_RDONLY | O_CLOEXEC);
        cr_assert_neq(flow_run("sheaf umount %s", flow.mount), 0);
        snprintf(text, sizeof(text), "%d", (int)getpid());
        cr_assert(strstr(flow.last.err, text), "the user is not named: %s",
                flow.last.err);
        cr_assert_eq(pread(fd, &byte, 1, 0), 1);
        flow_ok("sheaf umount --lazy %s", flow.mount);
        cr_assert_eq(flow_mounted(flow.mount), 0);
        cr_assert_eq(access(flow_path("mount/f"), F_OK), -1);
        cr_assert_eq(pread(fd, &byte, 1, 499999), 1);
        close(fd);
        cr_assert(flow_until(30,
                          kill(server, 0) != 0 || flow_wait(server, 0) >= 0),
                "the process of the mount lives on");
        flow_stop();
}

/* ---- refresh ---- */

static void begin_refresh(void)
{
        flow_file(1, 5000, "f");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_ok("sheaf mount --mode shard data %s", flow.mount);
        flow_file(2, 6000, "g");
        flow_ok("sheaf update data");
        cr_assert_neq(access(flow_path("mount/g"), F_OK), 0);
}

/* Nothing is left where mounts are made ready; others make theirs there. */
static void no_staging(void)
{
        cr_assert(flow_until(30,
                          !flow_run("! grep sheaf-mount[.] "
                                    "/proc/self/mountinfo && ! ls -d "
                                    "/run/sheaf-mount.* /tmp/sheaf-mount.*")),
                "%s", flow.last.out);
}

/* Looks without pause; fails when the place is ever bare. */
static pid_t watch(const char *path)
{
        pid_t pid = flow_fork(0, 0);

        if (pid)
                return pid;
        for (double end = flow_now() + 4; flow_now() < end;)
                if (access(path, F_OK))
                        _exit(1);
        _exit(0);
}

Test(lifecycle, refresh_leaves_no_gap_and_keeps_the_mode)
{
        struct utsname kernel;
        unsigned int major = 0, minor = 0;
        pid_t server, watcher = 0;

        begin_refresh();
        uname(&kernel);
        sscanf(kernel.release, "%u.%u", &major, &minor);
        if (major > 6 || (major == 6 && minor >= 5))
                watcher = watch(flow_path("mount/f"));
        for (int round = 0; round < 5; round++) {
                server = flow_server(flow.mount);
                flow_ok("sheaf mount --refresh %s", flow.mount);
                cr_assert_eq(flow_mounted(flow.mount), 1);
                cr_assert_eq(
                        flow_check(flow_path("mount/g"), 2, 6000, 4096), 0);
                cr_assert(flow_until(20, flow_server(flow.mount) != server));
        }
        no_staging();
        if (watcher)
                cr_assert_eq(flow_join(watcher, 10), 0, "the place was bare");
        server = flow_server(flow.mount);
        flow_ok("tr '\\0' ' ' < /proc/%d/cmdline | grep -- '--mode shard'",
                (int)server);
        kill(server, SIGTERM);
        cr_assert(flow_until(20, flow_mounted(flow.mount) == 0),
                "SIGTERM leaves the mount");
        flow_mount("data", flow.mount);
        flow_ok("sheaf mount --refresh --json %s", flow.mount);
        flow_umount(flow.mount);
        flow_stop();
}

Test(lifecycle, refresh_that_fails_leaves_the_old_mount)
{
        pid_t server;

        begin_refresh();
        server = flow_server(flow.mount);
        cr_assert_neq(flow_run("sheaf mount --refresh --version "
                               "00000000-0000-0000-0000-000000000001 %s",
                              flow.mount),
                0);
        cr_assert_eq(flow_mounted(flow.mount), 1);
        cr_assert_eq(flow_server(flow.mount), server);
        cr_assert_eq(flow_check(flow_path("mount/f"), 1, 5000, 4096), 0);
        no_staging();
        flow_umount(flow.mount);
        flow_stop();
}

/* A mount whose process was killed. False: a refresh of somebody else has
 * taken it away already, at whatever moment. */
static bool leave_behind(const char *dir)
{
        pid_t server;

        mkdir(dir, 0755);
        if (flow_run("sheaf mount data %s", dir))
                return false;
        server = flow_server(dir);
        if (server > 0)
                kill(server, SIGKILL);
        cr_assert(flow_until(20, flow_server(dir) == 0));
        return flow_mounted(dir) == 1;
}

/* What a refresh left that was killed between mounting and moving: the next
 * one takes it away. */
Test(lifecycle, refresh_clears_up_after_one_that_was_killed)
{
        pid_t dead = flow_fork(0, 0);
        char left[64];

        if (!dead)
                _exit(0);
        cr_assert_eq(flow_join(dead, 5), 0);
        snprintf(left, sizeof(left), "/run/sheaf-mount.%d.abcdef", (int)dead);
        begin_refresh();
        cr_assert(flow_until(60, leave_behind(left)), "%s", flow.last.err);
        flow_ok("sheaf mount --refresh %s", flow.mount);
        cr_assert(flow_until(
                30, flow_mounted(left) == 0 && access(left, F_OK) != 0));
        flow_umount(flow.mount);
        flow_stop();
}
