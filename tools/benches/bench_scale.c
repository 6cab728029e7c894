/* SPDX-License-Identifier: Apache-2.0 */
/* Many files: 1.28 million tiny ones, as many as ImageNet has.
 *
 *   add     sheaf add beside find -ls
 *   mount   until the mount answers
 *   ls      ls -lR of the mount beside ext4, both warm and both cold (a new
 *           mount; ext4's names and inodes dropped, where root runs this)
 *   memory  of the daemon outside its arena: RssAnon, and the blocks of the
 *           memory files that it holds (listings, tables, pins)
 *
 *  1 the files are empty and each has an inode of its own, a thousand a
 *    folder
 *
 * Threads: one. */
#include "tools/benches/common.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#define COUNT       1280000
#define COUNT_QUICK 100000

/* A line "KEY: N kB" of the daemon's /proc status. */
static double status_kb(const char *key)
{
        char path[64], line[256];
        double kb = 0;
        FILE *f;

        snprintf(path, sizeof(path), "/proc/%d/status", bench_daemon_pid());
        f = fopen(path, "re");
        if (!f)
                bench_die("%s: %s", path, strerror(errno));
        while (fgets(line, sizeof(line), f))
                if (!strncmp(line, key, strlen(key)))
                        kb = atof(line + strlen(key) + 1);
        fclose(f);
        return kb;
}

/* Bytes of the memory files that the daemon holds, but the arena's. */
static double memfd_bytes(void)
{
        char path[PATH_MAX], target[128];
        double sum = 0;
        struct dirent *e;
        DIR *dir;

        snprintf(path, sizeof(path), "/proc/%d/fd", bench_daemon_pid());
        dir = opendir(path);
        if (!dir)
                bench_die("%s: %s", path, strerror(errno));
        while ((e = readdir(dir))) {
                struct stat st;
                ssize_t n = readlinkat(
                        dirfd(dir), e->d_name, target, sizeof(target) - 1);

                if (n <= 0)
                        continue;
                target[n] = '\0';
                if (!strstr(target, "memfd:") || strstr(target, "sheaf-arena"))
                        continue;
                if (!fstatat(dirfd(dir), e->d_name, &st, 0))
                        sum += (double)st.st_blocks * 512;
        }
        closedir(dir);
        return sum;
}

static double outside_arena_bytes(void)
{
        return status_kb("RssAnon:") * 1024 + memfd_bytes();
}

static double list(const char *dir)
{
        const char *const argv[] = { "ls", "-lR", dir, NULL };

        return (double)bench_run(argv);
}

static double find(const char *dir)
{
        const char *const argv[] = { "find", dir, "-ls", NULL };

        return (double)bench_run(argv);
}

static void measure_add(const char *tree, unsigned rounds)
{
        struct bench_pairs pairs = { 0 };

        for (unsigned i = 0; i < rounds; i++) {
                double theirs = find(tree);

                bench_pair_add(&pairs,
                        (double)bench_sheaf("add", "many", tree, NULL), theirs);
                if (i + 1 < rounds)
                        bench_sheaf("rm", "many", "--force", NULL);
        }
        bench_emit("scale-add", bench_median(pairs.ours, rounds) / 1e9, "s",
                "find -ls", bench_pairs_speedup(&pairs), 0.5);
}

static void measure_lists(const char *tree, const char *mount, unsigned rounds)
{
        struct bench_pairs cold = { 0 }, warm = { 0 };
        double mounts[BENCH_ROUNDS_MAX];
        bool can_drop = true;

        for (unsigned i = 0; i < rounds; i++) {
                double theirs, ours;

                can_drop = bench_drop_caches();
                theirs = list(tree);
                mounts[i] = (double)bench_mount("many", mount, "auto");
                ours = list(mount);
                bench_pair_add(&cold, ours, theirs);
                theirs = list(tree);
                ours = list(mount);
                bench_pair_add(&warm, ours, theirs);
                bench_umount(mount);
        }
        bench_emit_limit(
                "scale-mount", bench_median(mounts, rounds) / 1e9, "s", 1.0);
        bench_emit(can_drop ? "scale-ls-cold" : "scale-ls-new-mount",
                bench_median(cold.ours, rounds) / 1e9, "s",
                can_drop ? "ext4, cold" : "ext4, warm",
                bench_pairs_speedup(&cold), 0.5);
        bench_emit("scale-ls-warm", bench_median(warm.ours, rounds) / 1e9, "s",
                "ext4, warm", bench_pairs_speedup(&warm), 0.5);
}

int main(int argc, char **argv)
{
        char tree[PATH_MAX], mount[PATH_MAX];
        struct bench_options options;
        double before, after;
        uint64_t count;

        bench_start(argc, argv, &options);
        count = options.quick ? COUNT_QUICK : COUNT;
        snprintf(tree, sizeof(tree), "%s/many", bench_dir());
        snprintf(mount, sizeof(mount), "%s/mnt", bench_dir());
        bench_tree(tree, count, 0, 1);
        find(tree);
        bench_settle();
        bench_daemon_start("256M", "1G");
        before = outside_arena_bytes();
        measure_add(tree, options.rounds);
        measure_lists(tree, mount, options.rounds);
        after = outside_arena_bytes();
        bench_emit_limit("scale-daemon-memory", after / 1e6, "MB", 200);
        bench_emit("scale-daemon-memory-file", (after - before) / (double)count,
                "B/file", NULL, 0, BENCH_NO_GOAL);
        bench_emit("scale-daemon-shared-file", memfd_bytes() / (double)count,
                "B/file", NULL, 0, BENCH_NO_GOAL);
        return 0;
}
