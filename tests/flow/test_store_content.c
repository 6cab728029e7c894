/* SPDX-License-Identifier: Apache-2.0 */
/* What the cache keeps: one copy of equal contents, files of every edge size,
 * and no more than its limit, whoever holds what. */
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

TestSuite(store_content, .init = flow_init, .fini = flow_fini, .timeout = 100);

/* ---- many names, few contents ---- */

#define NAMES      200
#define HELD_VIEWS 4

static uint32_t contents = 10;
static uint64_t name_bytes = UINT64_C(256) << 10;

static int read_names(const char *dataset, uint32_t from, uint32_t step)
{
        struct sheaf_session *session;
        struct sheaf_dataset *set;
        char name[32];
        int rc = flow_open(dataset, &session, &set);

        if (rc)
                return rc;
        for (uint32_t i = from; !rc && i < NAMES; i += step) {
                snprintf(name, sizeof(name), "n%03u", i);
                rc = flow_check_view(set, name, i % contents + 1, name_bytes);
        }
        flow_close(session, set);
        return rc;
}

static void make_names(void)
{
        for (uint32_t i = 0; i < NAMES; i++)
                flow_file(i % contents + 1, name_bytes, "n%03u", i);
}

/* Four readers at once, in two datasets of the same files. */
static void read_at_once(void)
{
        pid_t pids[4];

        for (uint32_t i = 0; i < 4; i++) {
                pids[i] = flow_fork(0, 0);
                if (!pids[i])
                        _exit(-read_names(i % 2 ? "one" : "two", i / 2, 2));
        }
        for (int i = 0; i < 4; i++) {
                int rc = flow_join(pids[i], 40);

                cr_assert_eq(rc, 0, "%s", strerror(rc));
        }
}

Test(store_content, equal_contents_are_stored_once)
{
        make_names();
        flow_start();
        flow_ok("sheaf add one %s && sheaf add two %s", flow.origin,
                flow.origin);
        read_at_once();
        flow_ok("sheaf warmup --disk one && sheaf warmup --disk two");
        cr_assert_eq(flow_stat("disk.payload_bytes"), contents * name_bytes,
                "%g bytes for %llu", flow_stat("disk.payload_bytes"),
                (unsigned long long)(contents * name_bytes));
        cr_assert_eq(flow_stat("disk.chunks"), contents);
        cr_assert_eq(
                flow_stat_of("one", "dataset.disk_bytes"), NAMES * name_bytes);
        flow_ok("sheaf rm two");
        flow_kill();
        flow_start();
        cr_assert_eq(read_names("one", 0, 1), 0);
        flow_ok("sheaf verify one");
        flow_stop();
}

/* A dataset whose contents came with another one, which was removed: both
 * before and after a kill all is read right, and what is told is there. */
Test(store_content, shared_chunks_outlive_the_dataset_that_brought_them)
{
        make_names();
        flow_start();
        flow_ok("sheaf add one %s && sheaf warmup --disk one", flow.origin);
        flow_ok("sheaf add two %s && sheaf warmup --disk two", flow.origin);
        /* What was written for a dataset goes with it, a moment later. */
        flow_ok("sheaf rm one");
        cr_assert(flow_until(20, flow_stat("disk.chunks") == 0), "%g",
                flow_stat("disk.chunks"));
        cr_assert_eq(read_names("two", 0, 1), 0);
        flow_ok("sheaf warmup --disk two");
        cr_assert_eq(flow_stat("dataset.disk_bytes"), NAMES * name_bytes);
        for (int round = 0; round < 3; round++) {
                flow_kill();
                flow_start();
                /* Figures are there once somebody asks for it by name. */
                flow_ok("sheaf ls two");
                cr_assert_eq(flow_stat_of("two", "dataset.disk_bytes"),
                        NAMES * name_bytes, "round %d: %g", round,
                        flow_stat("dataset.disk_bytes"));
        }
        flow_ok("sheaf warmup --evict --memory two");
        cr_assert_eq(read_names("two", 0, 1), 0);
        cr_assert_eq(flow_stat("origin.bytes"), 0);
        flow_stop();
}

/* A process that runs a shell command over and over until it is killed. */
static pid_t over_and_over(const char *command)
{
        pid_t pid = flow_fork(0, 0);

        if (pid)
                return pid;
        execl("/bin/bash", "bash", "-c", command, (char *)NULL);
        _exit(97);
}

static void end(pid_t pid)
{
        kill(pid, SIGKILL);
        flow_join(pid, 10);
}

/* Views of some contents, by one name each, while all names are evicted and
 * removed: ends 0 if the bytes never change, once the file @over is there. */
static pid_t hold_some(const char *over)
{
        struct sheaf_view views[HELD_VIEWS];
        struct sheaf_session *session;
        struct sheaf_dataset *set;
        pid_t pid = flow_fork(0, 0);

        if (pid)
                return pid;
        if (flow_open("two", &session, &set))
                _exit(1);
        for (uint32_t i = 0; i < HELD_VIEWS; i++)
                if (sheaf_view_file(set, i, &views[i]))
                        _exit(2);
        while (access(over, F_OK)) {
                for (uint32_t i = 0; i < HELD_VIEWS; i++)
                        if (!flow_stamp_check(views[i].pieces[0].iov_base,
                                    i + 1, 0, name_bytes))
                                _exit(3);
                flow_sleep(0.01);
        }
        _exit(0);
}

/* Old HELD_VIEWS come under new names, are read, and go from the origin. */
#define COMES_AND_GOES                                                         \
        "cd %s && mkdir comes && cp origin/n00[0-4] comes && "                 \
        "sheaf add four comes && for i in $(seq 1000); do "                    \
        "cp origin/n$(printf %%03d $((RANDOM %% 200))) comes/x$i; "            \
        "sheaf update four -q; sheaf warmup four -q; rm comes/x$i; "           \
        "sheaf update four -q; done >/dev/null 2>&1"

/* Eviction, collection, readers and new names at once, in a cache that holds
 * a part of it. */
Test(store_content, collection_never_takes_what_is_named_again)
{
        const char *over = flow_path("over");
        double until;
        pid_t pids[4], holder;
        char text[1024];

        flow.memory = "32MiB";
        flow.disk = "32MiB";
        contents = 40;
        name_bytes = UINT64_C(1) << 20;
        make_names();
        flow_start();
        flow_ok("sheaf add one %s && sheaf add two %s", flow.origin,
                flow.origin);
        pids[0] = over_and_over("while :; do sheaf warmup --evict --disk one "
                                "n$(printf %03d $((RANDOM % 200))) -q; done "
                                ">/dev/null 2>&1");
        pids[1] = over_and_over("while :; do sheaf warmup --evict two -q; "
                                "sheaf warmup two n001 n002 --disk -q; done "
                                ">/dev/null 2>&1");
        snprintf(text, sizeof(text),
                "while :; do sheaf add three %s; sheaf rm three; done "
                ">/dev/null 2>&1",
                flow.origin);
        pids[2] = over_and_over(text);
        snprintf(text, sizeof(text), COMES_AND_GOES, flow.base);
        pids[3] = over_and_over(text);
        holder = hold_some(over);
        until = flow_now() + 4;
        for (uint32_t i = 0; flow_now() < until; i++)
                cr_assert_eq(read_names(i % 2 ? "one" : "two", i % 7, 7), 0,
                        "%s", sheaf_last_error());
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(pids); i++)
                end(pids[i]);
        close(creat(over, 0644));
        cr_assert_eq(flow_join(holder, 20), 0, "held bytes changed");
        cr_assert_eq(flow_stat("verify_failures"), 0);
        cr_assert_eq(flow_stat("disk.bad_headers"), 0);
        flow_ok("sheaf verify one && sheaf verify two");
        cr_assert_eq(read_names("one", 0, 1), 0);
        cr_assert_eq(read_names("two", 0, 1), 0);
        flow_ok("cd %s && rm -f comes/x* && sheaf update four && "
                "sheaf verify four",
                flow.base);
        cr_assert_leq(flow_du(flow.cache), UINT64_C(32) << 20);
        flow_stop();
}

/* ---- edge sizes ---- */

#define K UINT64_C(1024)
#define B (4096 * K)

static const uint64_t sizes[] = { 0, 1, 4095, 4096, 4097, 128 * K - 1, 128 * K,
        128 * K + 1, 1024 * K - 1, 1024 * K, 1024 * K + 1, B - 1, B, B + 1,
        2 * B };
#define SIZES SHEAF_ARRAY_LEN(sizes)

static void one_by_mount(uint32_t i)
{
        const char *path = flow_path("mount/f%02u", i);
        sheaf_autofree uint8_t *buf = malloc(sizes[i] + 65536);
        sheaf_autofd int fd = open(path, O_RDONLY | O_CLOEXEC);
        uint64_t at = 0;
        void *map;

        cr_assert_geq(fd, 0, "%s: %s", path, strerror(errno));
        while (at < sizes[i]) {
                ssize_t n = read(fd, buf + at, sizes[i] - at);

                cr_assert_gt(n, 0, "%s at %llu: %s", path,
                        (unsigned long long)at, strerror(errno));
                at += (uint64_t)n;
        }
        cr_assert(flow_stamp_check(buf, i + 1, 0, sizes[i]), "%s", path);
        cr_assert_eq(read(fd, buf, 65536), 0, "%s: beyond its end", path);
        map = mmap(NULL, sizes[i], PROT_READ, MAP_PRIVATE, fd, 0);
        if (!sizes[i]) {
                cr_assert_eq(map, MAP_FAILED);
                cr_assert_eq(errno, EINVAL);
                return;
        }
        cr_assert_neq(map, MAP_FAILED);
        cr_assert(flow_stamp_check(map, i + 1, 0, sizes[i]), "%s", path);
        munmap(map, sizes[i]);
}

static void all_sizes(bool by_mount)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        char name[16];

        for (uint32_t i = 0; by_mount && i < SIZES; i++)
                one_by_mount(i);
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        for (uint32_t i = 0; !by_mount && i < SIZES; i++) {
                snprintf(name, sizeof(name), "f%02u", i);
                cr_assert_eq(flow_check_view(dataset, name, i + 1, sizes[i]), 0,
                        "%s: %s", name, sheaf_last_error());
                cr_assert_eq(
                        flow_check_read(dataset, name, i + 1, sizes[i], 65536),
                        0, "%s: %s", name, sheaf_last_error());
        }
        flow_close(session, dataset);
}

static void edges(bool mount_first)
{
        uint64_t bytes = 0;
        double once;

        for (uint32_t i = 0; i < SIZES; i++) {
                flow_file(i + 1, sizes[i], "f%02u", i);
                bytes += sizes[i];
        }
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        all_sizes(mount_first);
        once = flow_stat("origin.bytes");
        cr_assert_eq(
                once, bytes, "%g of %llu", once, (unsigned long long)bytes);
        all_sizes(!mount_first);
        flow_umount(flow.mount);
        flow_mount("data", flow.mount);
        all_sizes(true);
        cr_assert_eq(flow_stat("origin.bytes"), once, "all was complete");
        cr_assert(flow_until(30, flow_stat("dataset.disk_bytes") == bytes),
                "%g", flow_stat("dataset.disk_bytes"));
        flow_kill();
        flow_start();
        all_sizes(true);
        all_sizes(false);
        cr_assert_eq(flow_stat("origin.bytes"), 0);
        cr_assert_eq(flow_stat("origin_errors"), 0);
        flow_umount(flow.mount);
        flow_stop();
        flow_ok("cd %s; ! find . | grep -E 'tmp|gone|probe|pulse|extent'",
                flow.cache);
}

Test(store_content, edge_sizes_by_mount_first)
{
        edges(true);
}

Test(store_content, edge_sizes_by_library_first)
{
        edges(false);
}

/* ---- held beyond the limit ---- */

#define HELD       40
#define HELD_BYTES (UINT64_C(5) << 20)

/* Pins and open files over the limits: others read on, and what is let go is
 * given back. */
Test(store_content, what_is_held_beyond_the_limit)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_view views[HELD];
        int fds[HELD], rc = 0;
        uint32_t held = 0;

        flow.memory = "64MiB";
        flow.disk = "100MiB";
        for (uint32_t i = 0; i < HELD; i++)
                flow_file(i + 1, HELD_BYTES, "f%02u", i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        for (uint32_t i = 0; i < HELD; i++) {
                fds[i] =
                        open(flow_path("mount/f%02u", i), O_RDONLY | O_CLOEXEC);
                cr_assert_eq(flow_check(flow_path("mount/f%02u", i), i + 1,
                                     HELD_BYTES, 1 << 20),
                        0);
        }
        while (held < HELD && !rc) {
                char name[16];
                uint64_t ordinal;

                snprintf(name, sizeof(name), "f%02u", held);
                cr_assert_eq(sheaf_dataset_lookup(dataset, name, &ordinal), 0);
                rc = sheaf_view_file(dataset, ordinal, &views[held]);
                held += !rc;
        }
        /* Either copies stand in, or the client is told what is too much. */
        cr_assert(held > 0);
        cr_assert(!rc || *sheaf_last_error(), "%d", rc);
        cr_assert_leq(flow_stat("arena.bytes"), 64 << 20);
        for (uint32_t i = 0; i < HELD; i++)
                cr_assert_eq(flow_check(flow_path("mount/f%02u", i), i + 1,
                                     HELD_BYTES, 1 << 20),
                        0);
        /* Evicted, but open: its bytes stay counted. */
        flow_ok("sheaf warmup --evict --disk data --quiet");
        cr_assert_leq(flow_stat("disk.bytes"), (UINT64_C(100) << 20));
        for (uint32_t i = 0; i < held; i++)
                sheaf_view_release(&views[i]);
        for (uint32_t i = 0; i < HELD; i++)
                close(fds[i]);
        flow_close(session, dataset);
        cr_assert(flow_until(30, flow_stat("disk.unlinked_bytes") == 0), "%g",
                flow_stat("disk.unlinked_bytes"));
        cr_assert_leq(flow_du(flow.cache), UINT64_C(100) << 20);
        flow_umount(flow.mount);
        flow_stop();
}
