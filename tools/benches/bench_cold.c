/* SPDX-License-Identifier: Apache-2.0 */
/* Cold fill: what bringing a dataset into the cache costs beside the two
 * things that it cannot do without.
 *
 *   origin  reading every file, plainly, with a thread a core
 *   sha256  hashing the same bytes out of memory, with a thread a core
 *   ours    sheaf_view_batch() of everything through libsheaf, with
 *           sheaf_prefetch() of the next batch, or
 *           `sheaf warmup`
 *
 * The goal is a ratio to the slower of the two. The origin lies once on the
 * disk alone and once in the page cache: then all three are bound by the
 * same cores, and what Sheaf adds (copies, messages, writing its disk tier)
 * shows in full.
 *
 *  1 each round measures origin, sha256 and ours one after the other; a
 *    dataset is removed before it is added again, so that nothing is known
 *
 * Threads: readers and hashers take files off a shared counter. */
#include "client/sheaf.h"
#include "proto/digest.h"
#include "tools/benches/common.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define BATCH       256
#define READ_BYTES  (UINT64_C(1) << 20)
#define THREADS_MAX 64

struct shape {
        const char *name;
        uint64_t count, size_bytes;
};

static const struct shape shapes[] = {
        { "22k", 6900, 22000 },
        { "110k", 2000, 110000 },
        { "100m", 10, 100000000 },
};

struct set {
        const char *name;
        char dir[PATH_MAX];
        uint64_t count, size_bytes;
        _Atomic uint64_t next;
        bool cold;
};

enum way {
        BY_LIBRARY,
        BY_WARMUP
};

static void *read_files(void *arg)
{
        sheaf_autofree char *buf = malloc(READ_BYTES);
        struct set *set = arg;
        char path[PATH_MAX + 64], name[64];
        uint64_t i;

        if (!buf)
                bench_die("out of memory");
        while ((i = atomic_fetch_add(&set->next, 1)) < set->count) {
                sheaf_autofd int fd = -1;
                ssize_t n;

                bench_tree_path(i, name);
                snprintf(path, sizeof(path), "%s/%s", set->dir, name);
                fd = open(path, O_RDONLY | O_CLOEXEC);
                if (fd < 0)
                        bench_die("%s: %s", path, strerror(errno));
                while ((n = read(fd, buf, READ_BYTES)) > 0)
                        ;
                if (n < 0)
                        bench_die("%s: %s", path, strerror(errno));
        }
        return NULL;
}

static void *hash_files(void *arg)
{
        struct set *set = arg;
        uint64_t step = SHEAF_MIN(set->size_bytes, SHEAF_CHUNK_BYTES_MAX);
        sheaf_autofree char *buf = malloc(step);
        struct sheaf_digest digest;

        if (!buf)
                bench_die("out of memory");
        bench_fill(buf, step, 1);
        while (atomic_fetch_add(&set->next, 1) < set->count)
                for (uint64_t at = 0; at < set->size_bytes; at += step)
                        sheaf_digest_of(buf,
                                SHEAF_MIN(step, set->size_bytes - at), &digest);
        return NULL;
}

/* Nanoseconds of a function run by a thread a core. */
static double spent_by(struct set *set, void *(*function)(void *))
{
        long cores = sysconf(_SC_NPROCESSORS_ONLN);
        pthread_t threads[THREADS_MAX];
        int64_t start = bench_clock_ns();
        int n = (int)SHEAF_MIN(cores, THREADS_MAX);

        atomic_store(&set->next, 0);
        for (int i = 0; i < n; i++)
                bench_check(-pthread_create(&threads[i], NULL, function, set),
                        "pthread_create");
        for (int i = 0; i < n; i++)
                pthread_join(threads[i], NULL);
        return (double)(bench_clock_ns() - start);
}

static void set_temperature(struct set *set)
{
        if (!set->cold) {
                spent_by(set, read_files);
                return;
        }
        if (!bench_drop_caches())
                bench_drop_tree(set->dir);
}

/* Files of this many bytes at once stay far below what a client may pin. */
static size_t batch_of(const struct set *set)
{
        return (size_t)SHEAF_MAX(
                SHEAF_MIN(BATCH, (UINT64_C(64) << 20) / set->size_bytes), 1);
}

static void view_all(const char *name)
{
        struct sheaf_session *session = NULL;
        struct sheaf_dataset *dataset = NULL;
        struct sheaf_view views[BATCH];
        uint64_t ordinals[2 * BATCH], files;
        size_t step;

        bench_check(sheaf_session_new(NULL, &session), "session");
        if (sheaf_dataset_open(session, name, &dataset))
                bench_die("%s", sheaf_last_error());
        files = sheaf_dataset_files(dataset);
        step = batch_of(
                &(struct set){ .size_bytes = (uint64_t)SHEAF_MAX(
                                       sheaf_dataset_size(dataset, 0), 1) });
        for (uint64_t at = 0; at < files; at += step) {
                size_t n = SHEAF_MIN(step, files - at);
                size_t ahead = SHEAF_MIN(2 * step, files - at);

                for (size_t i = 0; i < ahead; i++)
                        ordinals[i] = at + i;
                /* As a loader does: what comes next is fetched meanwhile. */
                if (ahead > n)
                        sheaf_prefetch(dataset, ordinals + n, ahead - n);
                if (sheaf_view_batch(dataset, ordinals, n, views, NULL) !=
                        (int64_t)n)
                        bench_die("%s", sheaf_last_error());
                for (size_t i = 0; i < n; i++)
                        sheaf_view_release(&views[i]);
        }
        sheaf_dataset_close(dataset);
        sheaf_session_free(session);
}

static double fill(struct set *set, enum way way)
{
        int64_t start;

        bench_sheaf("add", set->name, set->dir, NULL);
        set_temperature(set);
        start = bench_clock_ns();
        if (way == BY_WARMUP)
                bench_sheaf("warmup", "--quiet", set->name, NULL);
        else
                view_all(set->name);
        start = bench_clock_ns() - start;
        bench_sheaf("rm", set->name, "--force", NULL);
        return (double)start;
}

static void measure(struct set *set, enum way way, unsigned rounds)
{
        struct bench_pairs reads = { 0 }, hashes = { 0 }, pairs = { 0 };
        double bytes = (double)(set->count * set->size_bytes), rate;
        char name[64];

        for (unsigned i = 0; i < rounds; i++) {
                double read, hash, ours;

                set_temperature(set);
                read = spent_by(set, read_files);
                hash = spent_by(set, hash_files);
                ours = fill(set, way);
                bench_pair_add(&reads, ours, read);
                bench_pair_add(&hashes, ours, hash);
                bench_pair_add(&pairs, ours, SHEAF_MAX(read, hash));
        }
        snprintf(name, sizeof(name), "cold-%s-%s-%s", set->name,
                way == BY_WARMUP ? "warmup" : "library",
                set->cold ? "disk" : "cached");
        rate = bytes * 1e3 / bench_median(pairs.ours, rounds);
        bench_emit(name, rate, "MB/s", "origin read",
                bench_pairs_speedup(&reads), BENCH_NO_GOAL);
        bench_emit(name, rate, "MB/s", "sha256, all cores",
                bench_pairs_speedup(&hashes), BENCH_NO_GOAL);
        bench_emit(name, rate, "MB/s", "the slower of both",
                bench_pairs_speedup(&pairs), 0.80);
}

int main(int argc, char **argv)
{
        struct bench_options options;

        bench_start(argc, argv, &options);
        bench_dir();
        bench_daemon_start("3G", "8G");
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(shapes); i++) {
                struct set set = { .name = shapes[i].name,
                        .count = shapes[i].count,
                        .size_bytes = shapes[i].size_bytes };

                if (options.only && strcmp(options.only, set.name))
                        continue;
                if (options.quick)
                        set.count = SHEAF_MAX(set.count / 5, 1);
                snprintf(set.dir, sizeof(set.dir), "%s/%s", bench_dir(),
                        set.name);
                bench_tree(set.dir, set.count, set.size_bytes, i << 32);
                bench_settle();
                set.cold = false;
                fill(&set, BY_LIBRARY); /* memory and disk were used before */
                for (int cold = 1; cold >= 0; cold--) {
                        set.cold = cold;
                        measure(&set, BY_LIBRARY, options.rounds);
                        measure(&set, BY_WARMUP, options.rounds);
                }
        }
        return 0;
}
