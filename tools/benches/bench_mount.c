/* SPDX-License-Identifier: Apache-2.0 */
/* A mount of small files, warm, beside native ext4 and bindfs.
 *
 *   read    open, fstat, read, close of every file in random order
 *   stat    fstatat of every file in random order
 *   ls      ls -lR
 *   slots   an epoch of a job: each slot's link, and the file behind it,
 *           beside the files by their paths
 *
 * ext4 has two states: files re-read from disk lie in small folios of the
 * page cache, files written just now in larger ones, which copy out faster.
 * Two trees of other bytes keep the two states apart; the mount shows the
 * first.
 *
 *  1 rounds alternate between the mount and its rival
 *  2 the FUSE requests of the warm passes that read and stat are counted by
 *    the mount process and must be none; ls asks for two attributes a run
 *
 * Threads: the two-thread rows split the order in halves. */
#include "tools/benches/common.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIZE_BYTES   UINT64_C(110000)
#define COUNT        20000
#define COUNT_QUICK  2000
#define PATH_SLOT    64
#define REPORT_SLEEP 3 /* seconds until the mount's counters are sent */

struct tree {
        const char *name;
        char dir[PATH_MAX];
};

static char *paths; /* PATH_SLOT bytes each, in the order of reading */
static uint64_t count;

struct part {
        int root;
        bool stat_only;
        uint64_t from, to;
};

static void read_file(int root, const char *path, char *buf)
{
        int fd = openat(root, path, O_RDONLY | O_CLOEXEC);
        struct stat st;

        if (fd < 0 || fstat(fd, &st) ||
                read(fd, buf, SIZE_BYTES + 1) != SIZE_BYTES)
                bench_die("reading %s: %s", path, strerror(errno));
        close(fd);
}

static void *visit(void *arg)
{
        sheaf_autofree char *buf = malloc(SIZE_BYTES + 1);
        struct part *part = arg;
        struct stat st;

        if (!buf)
                bench_die("out of memory");
        for (uint64_t i = part->from; i < part->to; i++) {
                const char *path = paths + i * PATH_SLOT;

                if (part->stat_only) {
                        if (fstatat(part->root, path, &st, 0))
                                bench_die("stat %s: %s", path, strerror(errno));
                        continue;
                }
                read_file(part->root, path, buf);
        }
        return NULL;
}

static double pass(const struct tree *tree, int threads, bool stat_only)
{
        sheaf_autofd int root = open(tree->dir, O_DIRECTORY | O_CLOEXEC);
        int64_t start = bench_clock_ns();
        struct part parts[2];
        pthread_t ids[2];

        if (root < 0)
                bench_die("%s: %s", tree->dir, strerror(errno));
        for (int i = 0; i < threads; i++) {
                parts[i] = (struct part){ .root = root,
                        .stat_only = stat_only,
                        .from = count * (uint64_t)i / (uint64_t)threads,
                        .to = count * (uint64_t)(i + 1) / (uint64_t)threads };
                bench_check(-pthread_create(&ids[i], NULL, visit, &parts[i]),
                        "pthread_create");
        }
        for (int i = 0; i < threads; i++)
                pthread_join(ids[i], NULL);
        return (double)(bench_clock_ns() - start);
}

static double read_1(const struct tree *tree)
{
        return pass(tree, 1, false);
}

static double read_2(const struct tree *tree)
{
        return pass(tree, 2, false);
}

static double stat_1(const struct tree *tree)
{
        return pass(tree, 1, true);
}

static double list(const struct tree *tree)
{
        const char *const argv[] = { "ls", "-lR", tree->dir, NULL };

        return (double)bench_run(argv);
}

/* An epoch that nobody has read. */
static double read_slots(const struct tree *mount)
{
        static unsigned int epoch;
        sheaf_autofree char *buf = malloc(SIZE_BYTES + 1);
        int width = snprintf(NULL, 0, "%llu", (unsigned long long)count - 1);
        char dir[PATH_MAX + 64], name[32];
        int64_t start = bench_clock_ns();
        sheaf_autofd int root = -1;

        snprintf(dir, sizeof(dir), "%s/.sheaf/jobs/bench/%u", mount->dir,
                epoch++);
        root = open(dir, O_DIRECTORY | O_CLOEXEC);
        if (root < 0 || !buf)
                bench_die("%s: %s", dir, strerror(errno));
        for (uint64_t i = 0; i < count; i++) {
                snprintf(name, sizeof(name), "%0*llu", width,
                        (unsigned long long)i);
                read_file(root, name, buf);
        }
        return (double)(bench_clock_ns() - start);
}

static void slots(const struct tree *mount, unsigned int rounds)
{
        struct bench_pairs pairs = { 0 };

        read_slots(mount);
        for (unsigned int i = 0; i < rounds; i++) {
                double by_path = read_1(mount);

                bench_pair_add(&pairs, read_slots(mount), by_path);
        }
        bench_emit("mount-slots-1",
                bench_median(pairs.ours, pairs.count) / 1e3 / (double)count,
                "us/file", "the same files by path",
                bench_pairs_speedup(&pairs), BENCH_NO_GOAL);
}

static void versus(const char *name, double (*measure)(const struct tree *),
        const struct tree *ours, const struct tree *rival, double goal,
        unsigned rounds)
{
        struct bench_pairs pairs = { 0 };

        measure(rival);
        measure(ours);
        for (unsigned i = 0; i < rounds; i++) {
                double theirs = measure(rival);

                bench_pair_add(&pairs, measure(ours), theirs);
        }
        bench_emit(name,
                bench_median(pairs.ours, pairs.count) / 1e3 / (double)count,
                "us/file", rival->name, bench_pairs_speedup(&pairs), goal);
}

static void name_files(void)
{
        sheaf_autofree uint32_t *order = bench_shuffle(count, 7);

        paths = malloc(count * PATH_SLOT);
        if (!paths)
                bench_die("out of memory");
        for (uint64_t i = 0; i < count; i++)
                bench_tree_path(order[i], paths + i * PATH_SLOT);
}

static double requests(void)
{
        double before, now = -1;

        /* The mount sends its counters now and then. */
        do {
                before = now;
                sleep(REPORT_SLEEP);
                /* Forgetting is the kernel's word on memory it took back. */
                now = bench_metric("mount.requests.") -
                      bench_metric("mount.requests.forget");
        } while (now != before);
        return now;
}

static void beside_bindfs(
        const struct tree *mount, const struct tree *origin, unsigned rounds)
{
        struct tree bindfs = { .name = "bindfs" };
        const char *const argv[] = { "bindfs", "-r", origin->dir, bindfs.dir,
                NULL };

        if (!bench_have("bindfs")) {
                bench_note("bindfs is not installed: no rows of it");
                return;
        }
        snprintf(bindfs.dir, sizeof(bindfs.dir), "%s/bindfs", bench_dir());
        bench_mount_other(argv, bindfs.dir);
        versus("mount-read-1", read_1, mount, &bindfs, BENCH_NO_GOAL, rounds);
        versus("mount-read-2", read_2, mount, &bindfs, BENCH_NO_GOAL, rounds);
        versus("mount-stat", stat_1, mount, &bindfs, BENCH_NO_GOAL, rounds);
        versus("mount-ls", list, mount, &bindfs, BENCH_NO_GOAL, rounds);
        bench_umount(bindfs.dir);
}

int main(int argc, char **argv)
{
        struct tree reread = { .name = "ext4, re-read" };
        struct tree fresh = { .name = "ext4, freshly written" };
        struct tree mount = { .name = "mount" };
        struct bench_options options;
        double before;

        bench_start(argc, argv, &options);
        count = options.quick ? COUNT_QUICK : COUNT;
        name_files();
        snprintf(reread.dir, sizeof(reread.dir), "%s/reread", bench_dir());
        snprintf(fresh.dir, sizeof(fresh.dir), "%s/fresh", bench_dir());
        snprintf(mount.dir, sizeof(mount.dir), "%s/mnt", bench_dir());
        bench_tree(reread.dir, count, SIZE_BYTES, 1);
        bench_drop_tree(reread.dir);
        bench_settle();
        bench_daemon_start("3G", "8G");
        bench_sheaf("add", "small", reread.dir, NULL);
        bench_mount("small", mount.dir, "small");
        list(&mount);
        read_2(&mount);
        bench_drop_tree(reread.dir);
        read_1(&reread);
        bench_tree(fresh.dir, count, SIZE_BYTES, UINT64_C(1) << 32);
        read_1(&mount); /* what the kernel took back meanwhile */
        list(&mount);

        before = requests();
        versus("mount-read-1", read_1, &mount, &reread, 0.95, options.rounds);
        versus("mount-read-2", read_2, &mount, &reread, 0.95, options.rounds);
        versus("mount-read-1", read_1, &mount, &fresh, 0.75, options.rounds);
        versus("mount-read-2", read_2, &mount, &fresh, 0.75, options.rounds);
        versus("mount-stat", stat_1, &mount, &reread, 0.85, options.rounds);
        before = requests() - before;
        bench_emit_limit("mount-warm-requests", before, "requests", 0);
        before = requests();
        versus("mount-ls", list, &mount, &reread, 0.85, options.rounds);
        bench_emit("mount-ls-requests",
                (requests() - before) / (options.rounds + 1), "requests", NULL,
                0, BENCH_NO_GOAL);
        slots(&mount, options.rounds);
        if (!options.cpu) /* its process is not counted */
                beside_bindfs(&mount, &reread, options.rounds);
        free(paths);
        return 0;
}
