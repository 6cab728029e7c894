/* SPDX-License-Identifier: Apache-2.0 */
/* Many readers at once: random ranges of an origin that stumbles, on a cache
 * much smaller than the data, and thousands of files open together. Never a
 * wrong word, never a zero, and whatever is held is given back.
 *
 * Long forms: SOAK_MINUTES, SOAK_ROUNDS (rounds of a second). */
#include "tests/flow/harness.h"
#include "tests/flow/soak.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

TestSuite(load, .init = flow_init, .fini = flow_fini, .timeout = 100000);

#define MIB        (UINT64_C(1) << 20)
#define PROCESSES  8
#define THREADS    8
#define RANGE_MAX  (256 << 10)
#define FILES_CI   240
#define FILES_FULL 2000

/* What all processes know. */
struct tally {
        _Atomic uint64_t reads, failed, wrong, odd;
        atomic_bool stop;
        uint32_t files;
        bool full;
};

static struct tally *tally;

/* 1 byte to 20 MiB, a few of them large; a tenth of that in the short form. */
static uint64_t size_of(uint32_t i)
{
        uint64_t top = tally->full ? 20 * MIB : 8 * MIB;

        if (i % 16 == 0)
                return 1 + i;
        if (i % 16 == 1)
                return top / 2 + i * UINT64_C(7919) * 977 % (top / 2);
        return 1 + i * UINT64_C(7919) * 131 % (top / 16);
}

struct reader {
        pthread_t thread;
        uint32_t rng;
        struct sheaf_dataset *dataset; /* NULL: by mount */
};

static uint32_t pick(struct reader *r, uint64_t below)
{
        r->rng ^= r->rng << 13;
        r->rng ^= r->rng >> 17;
        r->rng ^= r->rng << 5;
        return (uint32_t)(r->rng % below);
}

/* What came of one read. A failure is EIO, or ESTALE where the origin said so
 * twice; anything else is odd. */
static void judge(int64_t rc, const void *buf, uint32_t id, uint64_t offset,
        uint64_t want)
{
        atomic_fetch_add(&tally->reads, 1);
        if (rc == -EIO || rc == -ESTALE)
                atomic_fetch_add(&tally->failed, 1);
        else if (rc < 0)
                atomic_fetch_add(&tally->odd, 1);
        else if ((uint64_t)rc != want ||
                 !flow_stamp_check(buf, id, offset, (size_t)rc))
                atomic_fetch_add(&tally->wrong, 1);
}

static int64_t by_mount(uint32_t i, void *buf, uint64_t offset, size_t len)
{
        sheaf_autofd int fd =
                open(flow_path("mount/f%u", i), O_RDONLY | O_CLOEXEC);
        int64_t n = fd < 0 ? -errno : pread(fd, buf, len, (off_t)offset);

        if (n < 0 && fd >= 0)
                n = -errno;
        /* Cold again for the next one. */
        if (fd >= 0)
                posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        return n;
}

static int64_t by_view(struct sheaf_dataset *dataset, uint64_t ordinal,
        uint8_t *buf, uint64_t offset, size_t len)
{
        struct sheaf_view view;
        size_t at = 0;
        int rc = sheaf_view(dataset, ordinal, offset, len, &view);

        if (rc)
                return rc;
        for (size_t p = 0; p < view.piece_count; p++) {
                memcpy(buf + at, view.pieces[p].iov_base,
                        view.pieces[p].iov_len);
                at += view.pieces[p].iov_len;
        }
        sheaf_view_release(&view);
        return (int64_t)at;
}

static void *read_on(void *arg)
{
        sheaf_autofree uint8_t *buf = malloc(RANGE_MAX);
        struct reader *r = arg;

        while (buf && !atomic_load(&tally->stop)) {
                uint32_t i = pick(r, tally->files);
                uint64_t size = size_of(i), offset = pick(r, size);
                size_t len = 1 + pick(r, RANGE_MAX);
                uint64_t want = SHEAF_MIN(len, size - offset), ordinal;
                char name[16];
                int64_t rc;

                /* A word that nobody has: what was not written is seen. */
                memset(buf, 0, len);
                if (!r->dataset) {
                        rc = by_mount(i, buf, offset, len);
                } else {
                        snprintf(name, sizeof(name), "f%u", i);
                        rc = sheaf_dataset_lookup(r->dataset, name, &ordinal);
                        if (!rc && pick(r, 2))
                                rc = by_view(
                                        r->dataset, ordinal, buf, offset, len);
                        else if (!rc)
                                rc = sheaf_read(
                                        r->dataset, ordinal, buf, len, offset);
                }
                judge(rc, buf, i + 1, offset, want);
        }
        return NULL;
}

static pid_t start_process(uint32_t which, uint32_t seed)
{
        struct reader readers[THREADS];
        struct sheaf_session *session;
        struct sheaf_dataset *dataset = NULL;
        pid_t pid = flow_fork(0, 0);

        if (pid)
                return pid;
        if (which % 2 && flow_open("data", &session, &dataset))
                _exit(2);
        for (uint32_t t = 0; t < THREADS; t++) {
                readers[t] = (struct reader){ .dataset = dataset,
                        .rng = (seed + which * THREADS + t + 1) * 2654435761u };
                if (pthread_create(
                            &readers[t].thread, NULL, read_on, &readers[t]))
                        _exit(3);
        }
        for (uint32_t t = 0; t < THREADS; t++)
                pthread_join(readers[t].thread, NULL);
        _exit(0);
}

static void setup_stumbling(const struct soak *soak)
{
        uint64_t sum = 0;

        tally = mmap(NULL, sizeof(*tally), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        cr_assert_neq(tally, MAP_FAILED);
        tally->full = soak->is_long;
        if (!soak->is_long)
                flow_origin_in_memory();
        tally->files = soak->is_long ? FILES_FULL : FILES_CI;
        for (uint32_t i = 0; i < tally->files; i++) {
                flow_file(i + 1, size_of(i), "f%u", i);
                sum += size_of(i);
        }
        /* The least that there is; a tenth of the data in the long form. */
        flow.memory = "32MiB";
        flow.disk = soak->is_long ? "256MiB" : "32MiB";
        cr_assert_geq(sum, 3 * 32 * MIB);
        flow.faults = "jitter=50:f,eio=20:f,estale=10:f";
        flow_ok("touch %s/stumbling", flow.base);
        setenv("SHEAF_FAULT_WHILE", flow_path("stumbling"), 1);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_ok("sheaf mount --mode small data %s", flow.mount);
}

/* All is well again: every file, whole, without a restart. */
static void all_is_right(void)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        char name[16];

        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        for (uint32_t i = 0; i < tally->files; i++) {
                int rc;

                snprintf(name, sizeof(name), "f%u", i);
                rc = flow_check_read(
                        dataset, name, i + 1, size_of(i), RANGE_MAX);
                cr_assert_eq(rc, 0, "%s: %s", name, sheaf_last_error());
                if (i % 4)
                        continue;
                rc = flow_check(flow_path("mount/f%u", i), i + 1, size_of(i),
                        RANGE_MAX);
                cr_assert_eq(rc, 0, "%s: %s", name, strerror(-rc));
        }
        flow_close(session, dataset);
}

static bool nothing_under_way(void)
{
        return flow_stat("fetch.in_flight") + flow_stat("fetch.queued") +
                       flow_stat("fetch.hints_queued") ==
               0;
}

Test(load, random_ranges_of_an_origin_that_stumbles)
{
        pid_t pids[PROCESSES];
        struct soak soak;

        soak_begin(&soak, "stumbles", "s", 6, 1);
        setup_stumbling(&soak);
        for (uint32_t p = 0; p < PROCESSES; p++)
                pids[p] = start_process(p, soak.seed * 1000);
        while (soak_next(&soak) && !tally->wrong)
                flow_sleep(1);
        atomic_store(&tally->stop, true);
        for (int p = 0; p < PROCESSES; p++)
                cr_assert_eq(flow_join(pids[p], 60), 0);
        soak_end(&soak, "%llu reads, %llu failed, %llu wrong, %llu odd",
                (unsigned long long)tally->reads,
                (unsigned long long)tally->failed,
                (unsigned long long)tally->wrong,
                (unsigned long long)tally->odd);
        cr_assert_eq(tally->wrong, 0);
        cr_assert_eq(tally->odd, 0);
        cr_assert_geq(tally->reads, 100);
        /* One in a thousand; the short form has too few to be exact. */
        cr_assert_leq(tally->failed, 5 + tally->reads / 1000);
        cr_assert(!unlink(flow_path("stumbling")));
        /* What was begun before may still fail. */
        cr_assert(flow_until(20, nothing_under_way()));
        all_is_right();
        cr_assert_eq(flow_stat("verify_failures"), 0);
        cr_assert_leq(flow_stat("arena.bytes"), 32 * MIB);
        flow_umount(flow.mount);
        cr_assert(flow_until(30, flow_stat("pins.bytes") == 0));
        flow_stop();
}

/* ---- thousands of open files ---- */

#define OPEN_FILES 8192
#define OPEN_LIMIT 20000

static uint64_t open_bytes;

/* Opens all, reads around, reads each to its end. */
static int read_round_robin(void)
{
        struct rlimit limit = { OPEN_LIMIT, OPEN_LIMIT };
        int *fds = calloc(OPEN_FILES, sizeof(int));
        char buf[4096];

        if (!fds || setrlimit(RLIMIT_NOFILE, &limit))
                return 2;
        for (uint32_t i = 0; i < OPEN_FILES; i++) {
                fds[i] = open(flow_path("mount/f%u", i), O_RDONLY | O_CLOEXEC);
                if (fds[i] < 0)
                        return 3;
                if (pread(fds[i], buf, 4096, 0) != 4096 ||
                        !flow_stamp_check(buf, i + 1, 0, 4096))
                        return 4;
        }
        tally->files = OPEN_FILES;
        for (uint64_t at = 4096; at < open_bytes; at += 4096)
                for (uint32_t i = 0; i < OPEN_FILES; i++) {
                        size_t want = SHEAF_MIN(open_bytes - at, 4096);

                        if (pread(fds[i], buf, 4096, (off_t)at) !=
                                        (ssize_t)want ||
                                !flow_stamp_check(buf, i + 1, at, want))
                                return 5;
                }
        for (uint32_t i = 0; i < OPEN_FILES; i++)
                if (pread(fds[i], buf, 1, (off_t)open_bytes) != 0 ||
                        close(fds[i]))
                        return 6;
        return 0;
}

/* Processes of the daemon: readers of the origin. */
static int children_of(pid_t pid)
{
        cr_assert_eq(
                flow_run("cat /proc/%d/task/*/children | wc -w", (int)pid), 0);
        return atoi(flow.last.out);
}

/* While somebody has thousands of files open: `ls` and a warm file. */
static void bystanders(pid_t pid, long fds_before)
{
        double slowest = 0;
        long most = 0;
        int rc;

        while ((rc = flow_wait(pid, 0.2)) == -1) {
                flow_ok("ls -l %s | wc -l", flow.mount);
                cr_assert_eq(atoi(flow.last.out), OPEN_FILES + 2);
                slowest = SHEAF_MAX(slowest, flow.last.seconds);
                cr_assert_eq(
                        flow_check(flow_path("mount/warm"), 9999, 50000, 4096),
                        0);
                cr_assert_leq(children_of(flow.daemon), 1);
                most = SHEAF_MAX(most, flow_fds(flow.daemon));
        }
        cr_assert_eq(rc, 0, "the reader of all: %d", rc);
        cr_assert_lt(slowest, 5, "ls took %.1f s", slowest);
        cr_assert_leq(most, fds_before + 64, "%ld descriptors", most);
        fprintf(stderr, "open files: slowest ls %.2f s, %ld descriptors\n",
                slowest, most);
}

Test(load, thousands_of_open_files)
{
        struct soak soak;
        pid_t pid, server;
        long before, server_before;

        soak_begin(&soak, "handles", "rounds", 1, 1);
        tally = mmap(NULL, sizeof(*tally), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        cr_assert_neq(tally, MAP_FAILED);
        open_bytes = soak.is_long ? 256 << 10 : 9000;
        flow_origin_in_memory();
        for (uint32_t i = 0; i < OPEN_FILES; i++)
                flow_file(i + 1, open_bytes, "f%u", i);
        flow_file(9999, 50000, "warm");
        flow.memory = "64MiB";
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        cr_assert_eq(flow_check(flow_path("mount/warm"), 9999, 50000, 4096), 0);
        server = flow_server(flow.mount);
        server_before = flow_fds(server);
        before = flow_fds(flow.daemon);
        while (soak_next(&soak)) {
                if (soak.done > 1)
                        flow_ok("sheaf warmup --evict data --quiet");
                pid = flow_fork(0, 0);
                if (!pid)
                        _exit(read_round_robin());
                bystanders(pid, before);
        }
        soak_end(&soak, "%u files open", OPEN_FILES);
        cr_assert_eq(tally->files, OPEN_FILES);
        /* Files of the disk tier and pieces of the arena stay open: one for
         * some MiB each, none for a file that somebody opened. */
        cr_assert(flow_until(30, flow_fds(flow.daemon) <= before + 64),
                "%ld descriptors, %ld before", flow_fds(flow.daemon), before);
        cr_assert(flow_until(30, flow_fds(server) <= server_before + 64),
                "%ld descriptors, %ld before", flow_fds(server), server_before);
        flow_umount(flow.mount);
        cr_assert(flow_until(30, flow_stat("pins.bytes") == 0));
        flow_stop();
}
