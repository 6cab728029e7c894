/* SPDX-License-Identifier: Apache-2.0 */
/* Origins that change, hang and fail: one version's bytes or an error that
 * names the file, in time; everything else is served meanwhile. */
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

TestSuite(origin, .init = flow_init, .fini = flow_fini, .timeout = 80);

#define LIVE_BYTES (UINT64_C(12) << 20)
#define ROUNDS     6

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

/* ---- changes during the fetch ---- */

struct writer {
        pid_t pid;
        int order_fd, done_fd;
};

/* Writes the next @count stamps over the file for each order, a byte with
 * the count, and answers with a byte: between orders it holds one stamp. */
static struct writer start_writer(bool refill)
{
        const char *path = flow_path("origin/live");
        int order[2], done[2], fd;
        uint8_t count;
        uint32_t id = 1;
        char *buf;
        pid_t pid;

        cr_assert(!pipe2(order, O_CLOEXEC) && !pipe2(done, O_CLOEXEC));
        pid = flow_fork(0, 0);
        if (pid)
                return (struct writer){ pid, order[1], done[0] };
        close(order[1]);
        buf = malloc(LIVE_BYTES);
        fd = open(path, O_WRONLY | O_CLOEXEC);
        while (read(order[0], &count, 1) == 1) {
                for (int i = 0; i < count; i++) {
                        flow_stamp_bytes(buf, ++id, 0, LIVE_BYTES);
                        if (refill && ftruncate(fd, 0))
                                _exit(1);
                        for (uint64_t at = 0; at < LIVE_BYTES; at += 65536)
                                if (pwrite(fd, buf + at, 65536, (off_t)at) !=
                                        65536)
                                        _exit(1);
                }
                if (write(done[1], &count, 1) != 1)
                        _exit(1);
        }
        _exit(0);
}

static void order(const struct writer *writer, uint8_t count)
{
        cr_assert_eq(write(writer->order_fd, &count, 1), 1);
}

static void await(const struct writer *writer)
{
        uint8_t count;

        cr_assert_eq(read(writer->done_fd, &count, 1), 1);
}

/* Whether all pieces bear the stamp of the first word. */
static bool one_stamp(const struct sheaf_view *view)
{
        uint64_t at = 0;
        uint32_t id;

        if (!view->len_bytes)
                return true;
        memcpy(&id, (char *)view->pieces[0].iov_base + 4, 4);
        for (size_t i = 0; i < view->piece_count; i++) {
                if (!flow_stamp_check(view->pieces[i].iov_base, id, at,
                            view->pieces[i].iov_len))
                        return false;
                at += view->pieces[i].iov_len;
        }
        return at == view->len_bytes;
}

/* One whole stamp or an error that names the file. */
static bool read_live(void)
{
        struct sheaf_view view;
        int rc;

        open_data();
        rc = sheaf_view_file(dataset, 0, &view);
        if (!rc) {
                cr_assert(one_stamp(&view), "a mixture");
                sheaf_view_release(&view);
        } else {
                cr_assert(rc == -ESTALE || rc == -EIO, "%s: %s", strerror(-rc),
                        sheaf_last_error());
                cr_assert(strstr(sheaf_last_error(), "live"),
                        "the file is not named: %s", sheaf_last_error());
        }
        close_data();
        return !rc;
}

static void race_with_writer(bool refill)
{
        int refused = 0;
        struct writer writer;

        flow_file(1, LIVE_BYTES, "live");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        writer = start_writer(refill);
        for (int round = 0; round < ROUNDS; round++) {
                order(&writer, (uint8_t)(5 + round * 3));
                flow_ok("sheaf update data");
                refused += !read_live();
                /* Listed in peace, rewritten while it is read. */
                await(&writer);
                flow_ok("sheaf update data");
                order(&writer, 3);
                refused += !read_live();
                await(&writer);
        }
        cr_assert_gt(refused, 0, "the writer was never in the way");
        flow_ok("sheaf update data");
        cr_assert(read_live(), "%s", sheaf_last_error());
        close(writer.order_fd);
        cr_assert_eq(flow_join(writer.pid, 5), 0);
        flow_stop();
        printf("flow.origin: %d of %d refused\n", refused, 2 * ROUNDS);
}

Test(origin, overwritten_in_place_during_fetches)
{
        race_with_writer(false);
}

Test(origin, truncated_and_refilled_during_fetches)
{
        race_with_writer(true);
}

/* Cached bytes of the old version stay what they were; what was not cached
 * is refused; an update gives the new one. */
Test(origin, changed_after_listing)
{
        int fd, rc;
        char byte;

        flow_file(1, 50000, "cached");
        flow_file(2, 50000, "cold");
        flow_file(3, 50000, "same");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        cr_assert_eq(flow_check(flow_path("mount/cached"), 1, 50000, 4096), 0);
        fd = open(flow_path("mount/cached"), O_RDONLY | O_CLOEXEC);
        open_data();
        flow_file(11, 50000, "cached");
        flow_file(12, 60000, "cold");
        cr_assert_eq(flow_check(flow_path("mount/cached"), 1, 50000, 4096), 0);
        cr_assert_eq(flow_check_view(dataset, "cached", 1, 50000), 0);
        rc = flow_check(flow_path("mount/cold"), 2, 50000, 4096);
        cr_assert_eq(rc, -ESTALE, "%s", strerror(-rc));
        rc = flow_check_view(dataset, "cold", 2, 50000);
        cr_assert_eq(rc, -ESTALE, "%s", strerror(-rc));
        cr_assert(strstr(sheaf_last_error(), "cold"), "%s", sheaf_last_error());
        cr_assert(strstr(sheaf_last_error(), "update"), "no remedy: %s",
                sheaf_last_error());
        cr_assert_eq(flow_check(flow_path("mount/same"), 3, 50000, 4096), 0);
        flow_ok("sheaf update data");
        cr_assert_eq(flow_check_view(dataset, "cached", 1, 50000), 0,
                "an open handle keeps its version");
        cr_assert_eq(flow_check(flow_path("mount/cached"), 1, 50000, 4096), 0);
        close_data();
        open_data();
        cr_assert_eq(flow_check_view(dataset, "cached", 11, 50000), 0);
        cr_assert_eq(flow_check_view(dataset, "cold", 12, 60000), 0);
        close_data();
        flow_ok("sheaf mount --refresh %s", flow.mount);
        cr_assert_eq(flow_mounted(flow.mount), 1);
        cr_assert_eq(pread(fd, &byte, 1, 0), 1);
        close(fd);
        cr_assert_eq(flow_check(flow_path("mount/cached"), 11, 50000, 4096), 0);
        cr_assert_eq(flow_check(flow_path("mount/cold"), 12, 60000, 4096), 0);
        cr_assert_eq(flow_check(flow_path("mount/same"), 3, 50000, 4096), 0);
        flow_umount(flow.mount);
        flow_stop();
}

/* Open files of before: what was read is there, of the rest ESTALE; and the
 * same as long as they are open, whatever is mounted at their place by then. */
static void old_files(const int fds[20])
{
        static char buf[30001];

        for (uint32_t i = 0; i < 20; i++) {
                ssize_t n;

                posix_fadvise(fds[i], 0, 0, POSIX_FADV_DONTNEED);
                n = pread(fds[i], buf, sizeof(buf), 0);
                if (i < 10)
                        cr_assert(n == 30000 && flow_stamp_check(
                                                        buf, i + 1, 0, 30000),
                                "f%u: %zd", i + 1, n);
                else
                        cr_assert(n < 0 && errno == ESTALE, "f%u: %s", i + 1,
                                strerror(n < 0 ? errno : 0));
        }
}

Test(origin, whole_tree_replaced)
{
        int fds[20];

        for (uint32_t i = 1; i <= 20; i++)
                flow_file(i, 30000, "d/f%u", i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        for (uint32_t i = 0; i < 20; i++) {
                fds[i] = open(
                        flow_path("mount/d/f%u", i + 1), O_RDONLY | O_CLOEXEC);
                cr_assert_geq(fds[i], 0);
        }
        for (uint32_t i = 1; i <= 10; i++)
                cr_assert_eq(
                        flow_check(flow_path("mount/d/f%u", i), i, 30000, 4096),
                        0);
        open_data();
        flow_ok("mv %s/d %s/gone && rm -rf %s/gone", flow.origin, flow.base,
                flow.base);
        for (uint32_t i = 1; i <= 20; i++)
                flow_file(100 + i, 30000, "d/f%u", i);
        for (uint32_t i = 1; i <= 20; i++) {
                int rc =
                        flow_check(flow_path("mount/d/f%u", i), i, 30000, 4096);

                cr_assert_eq(
                        rc, i <= 10 ? 0 : -ESTALE, "f%u: %s", i, strerror(-rc));
        }
        old_files(fds);
        flow_ok("sheaf update data");
        close_data();
        open_data();
        flow_ok("sheaf mount --refresh %s", flow.mount);
        for (uint32_t i = 1; i <= 20; i++) {
                char path[32];

                snprintf(path, sizeof(path), "d/f%u", i);
                cr_assert_eq(flow_check_view(dataset, path, 100 + i, 30000), 0,
                        "%s: %s", path, sheaf_last_error());
                cr_assert_eq(flow_check(flow_path("mount/%s", path), 100 + i,
                                     30000, 4096),
                        0);
        }
        old_files(fds);
        for (uint32_t i = 0; i < 20; i++)
                close(fds[i]);
        close_data();
        flow_umount(flow.mount);
        flow_stop();
}

/* Backups by hard links and chmod move ctime alone. */
Test(origin, ctime_alone_changes_nothing)
{
        for (uint32_t i = 1; i <= 20; i++)
                flow_file(i, 30000, "d/f%u", i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        open_data();
        cr_assert_eq(flow_check_view(dataset, "d/f1", 1, 30000), 0);
        flow_ok("cp -al %s %s/backup", flow.origin, flow.base);
        flow_ok("chmod g-r %s/d/*", flow.origin);
        for (uint32_t i = 1; i <= 20; i++) {
                char path[32];

                snprintf(path, sizeof(path), "d/f%u", i);
                cr_assert_eq(flow_check_view(dataset, path, i, 30000), 0,
                        "%s: %s", path, sheaf_last_error());
        }
        /* A learned digest decides, too. */
        flow_ok("sheaf warmup --evict data");
        cr_assert_eq(flow_check_view(dataset, "d/f1", 1, 30000), 0, "%s",
                sheaf_last_error());
        close_data();
        flow_stop();
}

/* ---- faults ---- */

static int errno_of(const char *path)
{
        char byte;
        sheaf_autofd int fd = open(path, O_RDONLY | O_CLOEXEC);

        return fd < 0 || read(fd, &byte, 1) < 0 ? errno : 0;
}

Test(origin, hang)
{
        double start;
        pid_t pid;
        int rc;

        flow.deadline_s = 3;
        flow.faults = "hang:hangme";
        for (uint32_t i = 1; i <= 50; i++)
                flow_file(i, 30000, "warm/f%u", i);
        flow_file(100, 30000, "hangme");
        flow_file(101, 30000, "cold");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_ok("sheaf warmup data warm");
        flow_mount("data", flow.mount);
        start = flow_now();
        pid = flow_fork(0, 0);
        if (!pid)
                _exit(errno_of(flow_path("mount/hangme")));
        open_data();
        while (flow_wait(pid, 0) == -1 && flow_now() - start < 2) {
                for (uint32_t i = 1; i <= 50; i++) {
                        char path[32];

                        snprintf(path, sizeof(path), "warm/f%u", i);
                        cr_assert_eq(
                                flow_check_view(dataset, path, i, 30000), 0);
                }
                cr_assert_eq(
                        flow_check(flow_path("mount/warm/f7"), 7, 30000, 4096),
                        0);
        }
        cr_assert_lt(flow_now() - start, 3, "warm reads waited");
        rc = flow_join(pid, 8);
        cr_assert(rc == EIO || rc == ETIMEDOUT, "%s", strerror(rc));
        rc = flow_check_view(dataset, "hangme", 100, 30000);
        cr_assert(rc == -ETIMEDOUT || rc == -EIO, "%s", strerror(-rc));
        cr_assert(
                strstr(sheaf_last_error(), "hangme"), "%s", sheaf_last_error());
        cr_assert_eq(flow_check_view(dataset, "cold", 101, 30000), 0, "%s",
                sheaf_last_error());
        close_data();
        flow_umount(flow.mount);
        /* The same file, where it does not hang. */
        flow_ok("mv %s/hangme %s/fine && sheaf update data", flow.origin,
                flow.origin);
        open_data();
        cr_assert_eq(flow_check_view(dataset, "fine", 100, 30000), 0, "%s",
                sheaf_last_error());
        close_data();
        flow_stop();
}

/* A listing that hangs ends at the deadline, and leaves the old version. */
Test(origin, hang_of_a_listing)
{
        flow.deadline_s = 2;
        flow.faults = "hang:stuck";
        flow_file(1, 30000, "f");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_file(2, 30000, "stuck/g");
        cr_assert_neq(flow_run("sheaf update data"), 0);
        cr_assert_lt(flow.last.seconds, 7);
        cr_assert_neq(flow_run("sheaf add more %s", flow.origin), 0);
        cr_assert_lt(flow.last.seconds, 7);
        cr_assert_eq(flow_run("sheaf ls more"), 4, "half a dataset is left");
        open_data();
        cr_assert_eq(flow_check_view(dataset, "f", 1, 30000), 0, "%s",
                sheaf_last_error());
        close_data();
        flow_ok("mv %s/stuck %s/free && sheaf update data", flow.origin,
                flow.origin);
        open_data();
        cr_assert_eq(flow_check_view(dataset, "free/g", 2, 30000), 0, "%s",
                sheaf_last_error());
        close_data();
        flow_stop();
}

/* Another directory is the dataset's when it has been listed: not for what is
 * recorded meanwhile for another reason, and what the next daemon finds. */
Test(origin, another_path_counts_when_it_was_listed)
{
        pid_t pid;

        flow.faults = "hang:stuck";
        flow_file(1, 30000, "f");
        flow_file(2, 30000, "../other/stuck/g");
        flow_start();
        flow_ok("sheaf add data %s && sheaf warmup data", flow.origin);
        pid = flow_fork(0, 0);
        if (!pid)
                _exit(flow_run("sheaf update data %s/other", flow.base) == 0);
        cr_assert(flow_until(20, !flow_run("sheaf ls --json data") &&
                                         strstr(flow.last.out, "/other")));
        flow_ok("sheaf seal data");
        flow_kill();
        cr_assert_eq(flow_join(pid, 60), 0);
        flow_start();
        flow_ok("sheaf ls --json data");
        cr_assert(!strstr(flow.last.out, "/other"), "%s", flow.last.out);
        flow_ok("sheaf warmup --evict data && sheaf warmup data");
        flow_stop();
}

/* The origin goes away and comes back: cached bytes are served meanwhile. */
Test(origin, gone_and_back)
{
        int rc;

        flow_file(1, 30000, "cached");
        flow_file(2, 30000, "cold");
        flow_start();
        flow_ok("sheaf add data %s && sheaf warmup data cached --disk",
                flow.origin);
        flow_ok("mv %s %s/away", flow.origin, flow.base);
        flow_stop();
        flow_start();
        open_data();
        cr_assert_eq(flow_check_view(dataset, "cached", 1, 30000), 0, "%s",
                sheaf_last_error());
        rc = flow_check_view(dataset, "cold", 2, 30000);
        cr_assert(rc == -ESTALE || rc == -ENOENT || rc == -EIO, "%s",
                strerror(-rc));
        /* Another tree in its place is not taken for it. */
        flow_ok("mkdir %s", flow.origin);
        flow_file(9, 30000, "cold");
        rc = flow_check_view(dataset, "cold", 2, 30000);
        cr_assert(rc == -ESTALE || rc == -ENOENT || rc == -EIO, "%s",
                strerror(-rc));
        flow_ok("rm -rf %s && mv %s/away %s", flow.origin, flow.base,
                flow.origin);
        cr_assert(
                flow_until(20, flow_check_view(dataset, "cold", 2, 30000) == 0),
                "%s", sheaf_last_error());
        close_data();
        /* And a client may show it at another place. */
        flow_ok("mv %s %s/moved && sheaf update data %s/moved", flow.origin,
                flow.base, flow.base);
        flow_ok("sheaf warmup --evict data && sheaf warmup data");
        /* Which is the recorded one from now on, though nothing changed. */
        flow_stop();
        flow_start();
        flow_ok("sheaf warmup --evict data && sheaf warmup data");
        flow_ok("mkdir %s", flow.origin);
        flow_stop();
}

Test(origin, errors_of_all_kinds)
{
        int rc;

        flow.deadline_s = 5;
        flow.faults = "eio:bad-eio,short:bad-short,crash:bad-crash,"
                      "estale-once:once,delay=5:good";
        for (uint32_t i = 1; i <= 10; i++)
                flow_file(i, 30000, "good/f%u", i);
        flow_file(20, 30000, "bad-eio");
        flow_file(21, 30000, "bad-short");
        flow_file(22, 30000, "bad-crash");
        flow_file(23, 30000, "once");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        open_data();
        for (uint32_t i = 20; i <= 22; i++) {
                static const char *const names[] = { "bad-eio", "bad-short",
                        "bad-crash" };
                const char *name = names[i - 20];

                rc = flow_check_view(dataset, name, i, 30000);
                cr_assert(rc == -EIO || rc == -ESTALE, "%s: %s", name,
                        strerror(-rc));
                cr_assert(strstr(sheaf_last_error(), name), "%s",
                        sheaf_last_error());
                rc = flow_check(flow_path("mount/%s", name), i, 30000, 4096);
                cr_assert(rc == -EIO || rc == -ESTALE, "%s: %s", name,
                        strerror(-rc));
        }
        rc = flow_check_view(dataset, "once", 23, 30000);
        if (rc)
                rc = flow_check_view(dataset, "once", 23, 30000);
        cr_assert_eq(rc, 0, "%s", sheaf_last_error());
        for (uint32_t i = 1; i <= 10; i++)
                cr_assert_eq(flow_check(flow_path("mount/good/f%u", i), i,
                                     30000, 4096),
                        0);
        cr_assert_gt(flow_stat("fetch_errors"), 0);
        close_data();
        flow_umount(flow.mount);
        flow_stop();
}

/* ---- origins that cannot be read ---- */

Test(origin, unreadable_files)
{
        int rc;

        flow.uid = 1001;
        flow_file(1, 5000, "open");
        flow_file(2, 5000, "shut");
        flow_file(3, 5000, "dir/inner");
        flow_ok("true");
        cr_assert_eq(flow_run("chown -R 1001:1001 %s && chmod 0 %s/shut && "
                              "chmod 0 %s/dir && chmod 777 %s",
                             flow.origin, flow.origin, flow.origin, flow.base),
                0);
        flow_start();
        flow_ok("sheaf add data %s --json", flow.origin);
        cr_assert(strstr(flow.last.out, "unreadable"), "%s", flow.last.out);
        cr_assert_eq(flow_run_as(1001, 0, "quickread --dataset data"), 1);
        rc = flow_run_as(1001, 0, "sheaf warmup data open");
        cr_assert_eq(rc, 0, "%s", flow.last.err);
        cr_assert_neq(flow_run_as(1001, 0, "sheaf warmup data shut"), 0);
        cr_assert(
                strstr(flow.last.out, "shut") || strstr(flow.last.err, "shut"),
                "%s%s", flow.last.out, flow.last.err);
        cr_assert_eq(flow_run("chmod 644 %s/shut", flow.origin), 0);
        rc = flow_run_as(1001, 0, "sheaf warmup data shut");
        cr_assert_eq(rc, 0, "%s", flow.last.err);
        flow_stop();
}
