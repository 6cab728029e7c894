/* SPDX-License-Identifier: Apache-2.0 */
/* What a mount takes of the kernel's page cache: one copy of what was read,
 * whoever has it, and none in files that the daemon reads by itself.
 *
 * Pages are counted by cachestat(2), inode by inode: what others do on the
 * machine changes nothing, but for pages that the kernel needed elsewhere. */
#define FUSE_USE_VERSION 314

#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

TestSuite(mountpages, .init = flow_init, .fini = flow_fini, .timeout = 120);

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

#define MIB         (UINT64_C(1) << 20)
#define SMALL       32u
#define SMALL_BYTES MIB
#define LARGE_ID    100u
#define LARGE_BYTES (32 * MIB + 5)
#define ALL_BYTES   (SMALL * SMALL_BYTES + LARGE_BYTES)
#define TMPFS       0x01021994

/* ---- pages ---- */

/* Bytes of an open file that lie in the page cache; -1: nobody can say. */
static int64_t cached_of(int fd)
{
        uint64_t range[2] = { 0, 0 };
        struct {
                uint64_t cached, dirty, writeback, evicted, lately;
        } counts;

        if (syscall(SYS_cachestat, fd, range, &counts, 0))
                return -1;
        return (int64_t)counts.cached * getpagesize();
}

/* Of all files below @dir. */
static uint64_t cached_below(const char *dir)
{
        DIR *at = opendir(dir);
        struct dirent *entry;
        uint64_t sum = 0;

        cr_assert(at, "%s: %s", dir, strerror(errno));
        while ((entry = readdir(at))) {
                sheaf_autofd int fd = -1;
                char path[PATH_MAX];
                struct stat st;

                snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
                if (*entry->d_name == '.' || lstat(path, &st))
                        continue;
                if (S_ISDIR(st.st_mode))
                        sum += cached_below(path);
                if (!S_ISREG(st.st_mode))
                        continue;
                fd = open(path, O_RDONLY | O_CLOEXEC);
                if (fd >= 0)
                        sum += (uint64_t)cached_of(fd);
        }
        closedir(at);
        return sum;
}

/* The pages of all files below @dir go, as when the kernel wants room. */
static void forget(const char *dir)
{
        flow_ok("sync -f %s; find %s -type f -exec dd if={} iflag=nocache "
                "count=0 status=none \\;",
                dir, dir);
}

/* Skips the test where pages cannot be told, or are all that there is. */
static bool can_count(const char *test)
{
        sheaf_autofd int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
        struct statfs fs;

        if (cached_of(fd) < 0) {
                printf("SKIP: mountpages.%s: no cachestat(2): %s\n", test,
                        strerror(errno));
                return false;
        }
        cr_assert(!statfs(flow.base, &fs));
        if (fs.f_type == TMPFS) {
                printf("SKIP: mountpages.%s: %s is on tmpfs\n", test,
                        flow.base);
                return false;
        }
        return true;
}

/* ---- one copy ---- */

static uint64_t of_mount, of_cache, of_origin;

static void count(const char *when)
{
        of_mount = cached_below(flow.mount);
        of_cache = cached_below(flow.cache);
        of_origin = cached_below(flow.origin);
        fprintf(stderr,
                "%s: %llu KiB of %llu under the mount, %llu under the "
                "cache, %llu under the origin\n",
                when, (unsigned long long)of_mount / 1024,
                (unsigned long long)ALL_BYTES / 1024,
                (unsigned long long)of_cache / 1024,
                (unsigned long long)of_origin / 1024);
}

static void read_twice(void)
{
        for (int round = 0; round < 2; round++) {
                for (uint32_t i = 0; i < SMALL; i++)
                        cr_assert_eq(flow_check(flow_path("mount/f%02u", i), i,
                                             SMALL_BYTES, 131072),
                                0);
                cr_assert_eq(flow_check(flow_path("mount/large"), LARGE_ID,
                                     LARGE_BYTES, 131072),
                        0);
        }
}

/* All of it is on disk, nothing in memory, and no page of it anywhere. */
static void make_warm(void)
{
        flow_ok("sheaf warmup --disk --quiet data");
        cr_assert(flow_until(20, ({
                flow_ok("sheaf warmup --evict --memory --quiet data");
                flow_stat("arena.payload_bytes") == 0;
        })));
        forget(flow.origin);
        forget(flow.cache);
}

static void begin(void)
{
        flow.memory = "64MiB";
        flow.disk = "512MiB";
        for (uint32_t i = 0; i < SMALL; i++)
                flow_file(i, SMALL_BYTES, "f%02u", i);
        flow_file(LARGE_ID, LARGE_BYTES, "large");
        forget(flow.origin);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
}

/* One copy at most, and not by chance none: most of it is there. */
static void one_copy(void)
{
        cr_assert_leq(of_mount + of_cache, ALL_BYTES + ALL_BYTES / 10);
        cr_assert_geq(
                of_mount + of_cache, ALL_BYTES / 2, "the kernel kept nothing");
}

static void counted(const char *mode)
{
        double before;

        begin();
        flow_ok("sheaf-cachefs --mode %s --no-passthrough data %s", mode,
                flow.mount);
        read_twice();
        count("cold");
        one_copy();
        cr_assert_leq(of_cache, ALL_BYTES / 10);
        /* A local origin's own pages, which the kernel has as of any file. */
        cr_assert_leq(of_origin, ALL_BYTES + ALL_BYTES / 10);
        flow_umount(flow.mount);
        make_warm();
        before = flow_stat("origin.bytes");
        flow_ok("sheaf-cachefs --mode %s --no-passthrough data %s", mode,
                flow.mount);
        read_twice();
        count("warm");
        one_copy();
        cr_assert_leq(of_cache, ALL_BYTES / 10);
        cr_assert_leq(of_origin, ALL_BYTES / 10);
        cr_assert_eq(flow_stat("origin.bytes"), before, "it was not warm");
        flow_umount(flow.mount);
        flow_stop();
}

Test(mountpages, one_copy_of_small_mode)
{
        if (can_count("one_copy_of_small_mode"))
                counted("small");
}

Test(mountpages, one_copy_of_shard_mode)
{
        if (can_count("one_copy_of_shard_mode"))
                counted("shard");
}

/* ---- passthrough ---- */

static bool has_passthrough(const char *test)
{
#if FUSE_VERSION < FUSE_MAKE_VERSION(3, 17)
        printf("SKIP: mountpages.%s: libfuse before 3.17 has no passthrough\n",
                test);
        return false;
#else
        (void)test;
        return true;
#endif
}

static int64_t cached_at(const char *path)
{
        sheaf_autofd int fd = open(path, O_RDONLY | O_CLOEXEC);

        cr_assert_geq(fd, 0, "%s: %s", path, strerror(errno));
        return cached_of(fd);
}

/* The kernel reads the plain file by itself: its pages are the copy. */
Test(mountpages, one_copy_of_passthrough)
{
        const char *test = "one_copy_of_passthrough";

        if (!has_passthrough(test) || !can_count(test))
                return;
        begin();
        make_warm();
        flow_ok("sheaf mount --mode shard data %s", flow.mount);
        read_twice();
        cr_assert_gt(flow_stat("mount.passthrough_opens"), 0);
        count("passthrough");
        one_copy();
        cr_assert_leq(of_origin, ALL_BYTES / 10);
        cr_assert_leq((uint64_t)cached_at(flow_path("mount/large")),
                LARGE_BYTES / 10);
        cr_assert_geq(cached_below(flow_path("cache/plain")), LARGE_BYTES / 2);
        cr_assert_leq(
                cached_below(flow_path("cache/segments")), LARGE_BYTES / 10);
        flow_umount(flow.mount);
        flow_stop();
}

static bool reads_on(int fd)
{
        static char buf[MIB];

        for (uint64_t at = 0; at < LARGE_BYTES; at += MIB) {
                ssize_t n = pread(fd, buf, MIB, (off_t)at);

                if (n != (ssize_t)SHEAF_MIN(MIB, LARGE_BYTES - at) ||
                        !flow_stamp_check(buf, LARGE_ID, at, (size_t)n))
                        return false;
        }
        return true;
}

/* What the kernel has open stays when it is to be evicted. When its dataset is
 * removed it lives on without a name: its bytes count until it is closed, and
 * are read right as long. */
Test(mountpages, held_by_the_kernel)
{
        double held;
        int fd;

        if (!has_passthrough("held_by_the_kernel"))
                return;
        begin();
        flow_ok("sheaf warmup --disk --quiet data");
        flow_ok("sheaf mount --mode shard data %s", flow.mount);
        fd = open(flow_path("mount/large"), O_RDONLY | O_CLOEXEC);
        cr_assert_geq(fd, 0, "%s", strerror(errno));
        cr_assert_gt(flow_stat("mount.passthrough_opens"), 0);
        flow_ok("sheaf warmup --evict --quiet data");
        cr_assert_eq(flow_stat("disk.payload_bytes"), LARGE_BYTES);
        cr_assert(reads_on(fd));
        flow_ok("sheaf rm --force data");
        cr_assert(
                flow_until(20, flow_stat("disk.unlinked_bytes") >= LARGE_BYTES),
                "%g", flow_stat("disk.unlinked_bytes"));
        held = flow_stat("disk.bytes");
        cr_assert_geq(held, LARGE_BYTES);
        forget(flow.cache);
        cr_assert(reads_on(fd));
        close(fd);
        flow_umount(flow.mount);
        cr_assert(flow_until(20, flow_stat("disk.unlinked_bytes") == 0), "%g",
                flow_stat("disk.unlinked_bytes"));
        cr_assert_leq(flow_stat("disk.bytes"), held - LARGE_BYTES);
        flow_stop();
}
