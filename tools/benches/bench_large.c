/* SPDX-License-Identifier: Apache-2.0 */
/* A large file through a mount of mode shard, warm, beside native ext4:
 * sequential and random reads of 128 KiB.
 *
 * Where libfuse and kernel have passthrough the kernel reads the plain file
 * of the disk tier itself; else the bytes come from the mount's own page
 * cache. Each row's name says which of the two it was. The goal belongs to
 * passthrough; page cache in small folios cannot reach it.
 *
 *  1 rounds alternate between the mount and ext4
 *  2 ext4's copy is measured re-read from disk and freshly written
 *
 * Threads: one. */
#include "tools/benches/common.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIZE_BYTES       (UINT64_C(2) << 30)
#define SIZE_QUICK_BYTES (UINT64_C(256) << 20)
#define STEP_BYTES       (UINT64_C(128) << 10)
#define FILL_BYTES       (UINT64_C(4) << 20)

static uint64_t size_bytes;
static uint32_t *order;

static void make(const char *dir, uint64_t seed)
{
        sheaf_autofree char *buf = malloc(FILL_BYTES);
        sheaf_autofd int fd = -1;
        char path[PATH_MAX];

        snprintf(path, sizeof(path), "%s/shard.tar", dir);
        if (!buf || mkdir(dir, 0755))
                bench_die("%s: %s", dir, strerror(errno));
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        for (uint64_t at = 0; at < size_bytes; at += FILL_BYTES) {
                bench_fill(buf, FILL_BYTES, seed + at);
                if (write(fd, buf, FILL_BYTES) != (ssize_t)FILL_BYTES)
                        bench_die("writing %s: %s", path, strerror(errno));
        }
}

static double pass(const char *dir, bool random)
{
        sheaf_autofree char *buf = malloc(STEP_BYTES);
        sheaf_autofd int fd = -1;
        char path[PATH_MAX];
        int64_t start;

        snprintf(path, sizeof(path), "%s/shard.tar", dir);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || !buf)
                bench_die("%s: %s", path, strerror(errno));
        start = bench_clock_ns();
        for (uint64_t i = 0; i < size_bytes / STEP_BYTES; i++) {
                uint64_t at = (random ? order[i] : i) * STEP_BYTES;

                if (pread(fd, buf, STEP_BYTES, (off_t)at) !=
                        (ssize_t)STEP_BYTES)
                        bench_die("reading %s: %s", path, strerror(errno));
        }
        return (double)(bench_clock_ns() - start);
}

static void versus(const char *how, const char *mount, const char *rival_dir,
        const char *rival, bool random, unsigned rounds)
{
        struct bench_pairs pairs = { 0 };
        bool is_passthrough = !strcmp(how, "passthrough");
        char name[64];

        pass(rival_dir, random);
        pass(mount, random);
        for (unsigned i = 0; i < rounds; i++) {
                double theirs = pass(rival_dir, random);

                bench_pair_add(&pairs, pass(mount, random), theirs);
        }
        snprintf(name, sizeof(name), "large-%s-%s",
                random ? "random" : "sequential", how);
        bench_emit(name,
                (double)size_bytes * 1e3 /
                        bench_median(pairs.ours, pairs.count),
                "MB/s", rival, bench_pairs_speedup(&pairs),
                is_passthrough ? 0.95 : BENCH_NO_GOAL);
}

int main(int argc, char **argv)
{
        char reread[PATH_MAX], fresh[PATH_MAX], mount[PATH_MAX];
        struct bench_options options;
        const char *how;

        bench_start(argc, argv, &options);
        size_bytes = options.quick ? SIZE_QUICK_BYTES : SIZE_BYTES;
        order = bench_shuffle(size_bytes / STEP_BYTES, 11);
        snprintf(reread, sizeof(reread), "%s/reread", bench_dir());
        snprintf(fresh, sizeof(fresh), "%s/fresh", bench_dir());
        snprintf(mount, sizeof(mount), "%s/mnt", bench_dir());
        make(reread, 1);
        bench_settle();
        bench_daemon_start("3G", "8G");
        bench_sheaf("add", "shards", reread, NULL);
        bench_sheaf("warmup", "--quiet", "--disk", "shards", NULL);
        bench_mount("shards", mount, "shard");
        bench_drop_tree(reread);
        pass(reread, false);
        make(fresh, 2);
        pass(mount, false);
        sleep(3); /* until the mount's counters are sent */
        how = bench_metric("mount.passthrough_opens") > 0 ? "passthrough"
                                                          : "page-cache";
        for (int random = 0; random < 2; random++) {
                versus(how, mount, reread, "ext4, re-read", random,
                        options.rounds);
                versus(how, mount, fresh, "ext4, freshly written", random,
                        options.rounds);
        }
        free(order);
        return 0;
}
