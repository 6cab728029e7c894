/* SPDX-License-Identifier: Apache-2.0 */
/* Names that were missing and appear: neither asking for them nor listing
 * around them makes them stay missing.
 *
 * A mount shows a version. What is new at the origin shows after `sheaf
 * update` and `sheaf mount --refresh`, and then at once, however often it was
 * asked for before. */
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>

TestSuite(appear, .init = flow_init, .fini = flow_fini, .timeout = 60);

#define BYTES   5000
#define MANY    5000
#define LIMIT_S 2.0 /* from the refresh until all see it */

/* What pollers tell. */
struct told {
        _Atomic uint64_t asked; /* times that it was missing */
        _Atomic uint64_t seen;  /* times that it was there */
        _Atomic int odd;        /* another errno */
};

static struct told *told;

static void make_told(size_t n)
{
        told = mmap(NULL, n * sizeof(*told), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        cr_assert_neq(told, MAP_FAILED);
}

static void note(struct told *t, int rc)
{
        if (!rc)
                atomic_fetch_add(&t->seen, 1);
        else if (rc == -ENOENT)
                atomic_fetch_add(&t->asked, 1);
        else
                atomic_store(&t->odd, -rc);
}

/* Asks for @path of the mount all the time. */
static pid_t poll_stat(struct told *t, const char *path)
{
        pid_t pid = flow_fork(0, 0);
        struct stat st;

        if (pid)
                return pid;
        for (;;) {
                note(t, stat(path, &st) ? -errno : 0);
                flow_sleep(0.02);
        }
}

/* The same by library, each time the newest version. */
static pid_t poll_library(struct told *t, const char *name)
{
        pid_t pid = flow_fork(0, 0);

        if (pid)
                return pid;
        for (;;) {
                struct sheaf_session *session;
                struct sheaf_dataset *dataset;
                uint64_t ordinal;
                int rc = flow_open("data", &session, &dataset);

                if (!rc) {
                        rc = sheaf_dataset_lookup(dataset, name, &ordinal);
                        flow_close(session, dataset);
                }
                note(t, rc);
                flow_sleep(0.02);
        }
}

static void end(pid_t pid)
{
        kill(pid, SIGKILL);
        flow_join(pid, 5);
}

static void never_odd(size_t n)
{
        for (size_t i = 0; i < n; i++)
                cr_assert_eq(
                        told[i].odd, 0, "%zu: %s", i, strerror(told[i].odd));
}

Test(appear, a_file_that_was_asked_for_all_the_time)
{
        const char *paths[] = { flow_path("mount/d/new"),
                flow_path("mount/d/sub/f") };
        uint64_t asked;
        pid_t pids[3];

        make_told(3);
        flow_file(1, BYTES, "d/old");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        flow_ok("ls -l %s/d", flow.mount);
        for (int i = 0; i < 2; i++)
                pids[i] = poll_stat(&told[i], paths[i]);
        pids[2] = poll_library(&told[2], "d/new");
        cr_assert(flow_until(20, told[0].asked > 50 && told[2].asked > 20));
        flow_file(2, BYTES, "d/new");
        flow_file(3, BYTES, "d/sub/f");
        /* A version is what was listed, even for names that it lacks. */
        asked = told[0].asked;
        cr_assert(flow_until(20, told[0].asked > asked + 20));
        cr_assert_eq(told[0].seen + told[1].seen + told[2].seen, 0);
        flow_ok("sheaf update data");
        cr_assert(flow_until(LIMIT_S * 4, told[2].seen > 0),
                "the library does not see it");
        cr_assert_eq(told[0].seen + told[1].seen, 0);
        flow_ok("sheaf mount --refresh %s", flow.mount);
        asked = told[0].asked;
        cr_assert(flow_until(LIMIT_S * 4, told[0].seen && told[1].seen),
                "seen %llu and %llu times", (unsigned long long)told[0].seen,
                (unsigned long long)told[1].seen);
        /* The one look that was under way aside, none was refused. */
        cr_assert_leq(told[0].asked, asked + 1);
        cr_assert_eq(flow_check(paths[0], 2, BYTES, 4096), 0);
        cr_assert_eq(flow_check(paths[1], 3, BYTES, 4096), 0);
        for (int i = 0; i < 3; i++)
                end(pids[i]);
        never_odd(3);
        flow_umount(flow.mount);
        flow_stop();
}

/* A whole dataset, a version and a mount point that were asked for before
 * they were there. */
Test(appear, a_dataset_that_was_asked_for_before)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;

        flow_file(1, BYTES, "f");
        flow_start();
        cr_assert_eq(sheaf_session_new(NULL, &session), 0);
        for (int i = 0; i < 100; i++)
                cr_assert_eq(
                        sheaf_dataset_open(session, "data", &dataset), -ENOENT);
        cr_assert_eq(flow_run("sheaf mount data %s", flow.mount), 4);
        flow_ok("sheaf add data %s", flow.origin);
        cr_assert_eq(sheaf_dataset_open(session, "data", &dataset), 0, "%s",
                sheaf_last_error());
        cr_assert_eq(flow_check_view(dataset, "f", 1, BYTES), 0);
        flow_close(session, dataset);
        flow_mount("data", flow.mount);
        cr_assert_eq(flow_check(flow_path("mount/f"), 1, BYTES, 4096), 0);
        flow_umount(flow.mount);
        flow_stop();
}

/* A name that was there, went and came back; a file that becomes a directory
 * and the reverse. */
Test(appear, names_that_change_their_kind)
{
        flow_file(1, BYTES, "comes-back");
        flow_file(2, BYTES, "becomes-dir");
        flow_file(3, BYTES, "becomes-file/inner");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        flow_ok("find %s -type f -exec cat {} + > /dev/null", flow.mount);
        flow_ok("cd %s && rm -r comes-back becomes-dir becomes-file",
                flow.origin);
        flow_file(12, BYTES, "becomes-dir/inner");
        flow_file(13, BYTES + 1, "becomes-file");
        flow_ok("sheaf update data && sheaf mount --refresh %s", flow.mount);
        cr_assert_eq(access(flow_path("mount/comes-back"), F_OK), -1);
        cr_assert_eq(errno, ENOENT);
        cr_assert_eq(flow_check(flow_path("mount/becomes-dir/inner"), 12, BYTES,
                             4096),
                0);
        cr_assert_eq(flow_check(flow_path("mount/becomes-file"), 13, BYTES + 1,
                             4096),
                0);
        cr_assert_eq(access(flow_path("mount/becomes-file/inner"), F_OK), -1);
        cr_assert_eq(errno, ENOTDIR);
        flow_file(11, BYTES, "comes-back");
        flow_ok("sheaf update data && sheaf mount --refresh %s", flow.mount);
        cr_assert_eq(
                flow_check(flow_path("mount/comes-back"), 11, BYTES, 4096), 0);
        flow_umount(flow.mount);
        flow_stop();
}

/* ---- around a large directory ---- */

Test(appear, missing_names_around_a_large_directory)
{
        static const char *const around[] = { "", "a", "f", "zzzz", "\x7f",
                "\xff\xff" };
        struct stat st;

        flow_origin_in_memory();
        for (uint32_t i = 0; i < MANY; i++)
                flow_file(1, 0, "many/f%04u", i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        for (int round = 0; round < 2; round++) {
                for (uint32_t i = 0; i < 300; i++) {
                        const char *prefix =
                                around[i % SHEAF_ARRAY_LEN(around)];

                        cr_assert(stat(flow_path("mount/many/%sz%u", prefix, i),
                                          &st) &&
                                  errno == ENOENT);
                        cr_assert(stat(flow_path("mount/many/%s%u/x", prefix,
                                               10000 + i),
                                          &st) &&
                                  errno == ENOENT);
                }
                cr_assert(!stat(flow_path("mount/many"), &st));
                cr_assert(S_ISDIR(st.st_mode));
                flow_ok("ls %s/many | wc -l", flow.mount);
                cr_assert_eq(atoi(flow.last.out), MANY);
                cr_assert(!stat(flow_path("mount/many/f0000"), &st));
                cr_assert(!stat(flow_path("mount/many/f%u", MANY - 1), &st));
        }
        flow_umount(flow.mount);
        flow_stop();
}

/* ---- watchers ---- */

#define WATCHED                                                                \
        (IN_CREATE | IN_MODIFY | IN_DELETE | IN_MOVE | IN_ATTRIB |             \
                IN_DELETE_SELF | IN_MOVE_SELF)

/* Watches until it is told that its place is gone. Exit status 0: no other
 * event came. */
static pid_t watch(const char *dir, const char *ready)
{
        union {
                struct inotify_event event;
                char room[4096];
        } buf;
        pid_t pid = flow_fork(0, 0);
        int fd;

        if (pid)
                return pid;
        fd = inotify_init1(IN_CLOEXEC);
        if (fd < 0 || inotify_add_watch(fd, dir, WATCHED) < 0)
                _exit(2);
        creat(ready, 0644);
        for (;;) {
                ssize_t n = read(fd, &buf, sizeof(buf));

                if (n < (ssize_t)sizeof(buf.event))
                        _exit(3);
                if (buf.event.mask & IN_UNMOUNT)
                        _exit(0);
                _exit(4);
        }
}

/* Changes at the origin make no event in a mount. The refresh ends the old
 * mount, and that is told to those who watched it: IN_UNMOUNT. */
Test(appear, watchers_are_told_of_the_end_alone)
{
        const char *ready = flow_path("ready");
        struct stat st;
        pid_t pid;

        flow_file(1, BYTES, "d/old");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        pid = watch(flow_path("mount/d"), ready);
        cr_assert(flow_until(30, access(ready, F_OK) == 0));
        flow_file(2, BYTES, "d/new");
        flow_ok("rm %s/d/old", flow.origin);
        flow_ok("sheaf update data");
        cr_assert_eq(flow_wait(pid, 0.5), -1, "an event, or the watch broke");
        cr_assert(!stat(flow_path("mount/d/old"), &st));
        cr_assert(stat(flow_path("mount/d/new"), &st) && errno == ENOENT);
        flow_ok("sheaf mount --refresh %s", flow.mount);
        cr_assert_eq(flow_join(pid, 10), 0, "the end is not told");
        cr_assert(!stat(flow_path("mount/d/new"), &st));
        cr_assert(stat(flow_path("mount/d/old"), &st) && errno == ENOENT);
        flow_umount(flow.mount);
        flow_stop();
}
