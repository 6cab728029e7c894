/* SPDX-License-Identifier: Apache-2.0 */
/* Files of a mount that are mapped, executed and read around the page cache:
 * never a signal, never another byte. */
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

TestSuite(mmap, .init = flow_init, .fini = flow_fini, .timeout = 60);

#define BYTES ((UINT64_C(10) << 20) + 1)

static void setup(const char *mode)
{
        flow_file(1, BYTES, "file");
        flow_ok("cp /bin/echo %s/program && chmod 755 %s/program", flow.origin,
                flow.origin);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_ok("sheaf mount --mode %s data %s", mode, flow.mount);
}

static int check_map(int flags)
{
        sheaf_autofd int fd =
                open(flow_path("mount/file"), O_RDONLY | O_CLOEXEC);
        char *map = mmap(NULL, BYTES, PROT_READ, flags, fd, 0);
        int rc = 0;

        if (map == MAP_FAILED)
                return errno;
        if (!flow_stamp_check(map, 1, 0, BYTES))
                rc = EBADMSG;
        for (uint64_t at = BYTES; at % 4096; at++)
                if (map[at])
                        rc = EBADMSG;
        munmap(map, BYTES);
        return rc;
}

static void remount(const char *mode)
{
        flow_umount(flow.mount);
        flow_ok("sheaf mount --mode %s data %s", mode, flow.mount);
}

static void maps_of_all_kinds(const char *mode)
{
        int fd;

        setup(mode);
        cr_assert_eq(check_map(MAP_SHARED), 0, "cold");
        cr_assert_eq(check_map(MAP_PRIVATE), 0, "warm");
        remount(mode);
        cr_assert_eq(check_map(MAP_PRIVATE), 0, "cold");
        cr_assert_eq(check_map(MAP_SHARED), 0, "warm");
        fd = open(flow_path("mount/file"), O_RDONLY | O_CLOEXEC);
        cr_assert_eq(
                mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0),
                MAP_FAILED);
        cr_assert_eq(errno, EACCES, "%s", strerror(errno));
        close(fd);
        flow_ok("test \"$(%s/program hello)\" = hello", flow.mount);
        flow_umount(flow.mount);
        flow_stop();
}

Test(mmap, of_small_mode)
{
        maps_of_all_kinds("small");
}

Test(mmap, of_shard_mode)
{
        maps_of_all_kinds("shard");
}

Test(mmap, read_by_parent_and_child)
{
        char *map;
        pid_t pid;
        int fd;

        setup("auto");
        fd = open(flow_path("mount/file"), O_RDONLY | O_CLOEXEC);
        map = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
        cr_assert_neq(map, MAP_FAILED);
        pid = flow_fork(0, 0);
        if (!pid)
                _exit(!flow_stamp_check(map, 1, 0, BYTES));
        cr_assert(flow_stamp_check(map, 1, 0, BYTES));
        cr_assert_eq(flow_join(pid, 20), 0);
        munmap(map, BYTES);
        close(fd);
        flow_umount(flow.mount);
        flow_stop();
}

/* What Python makes of a file, cold and warm. The default of Python
 * is shared and writable: of a file that is open for reading it is refused, as
 * anywhere. */
static const char script[] =
        "import mmap, sys\n"
        "want = open('origin/file', 'rb').read()\n"
        "f = open('mount/file', 'rb')\n"
        "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n"
        "assert m[:] == want\n"
        "m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)\n"
        "assert m[:] == want\n"
        "for g in f, open('origin/file', 'rb'):\n"
        "    try:\n"
        "        mmap.mmap(g.fileno(), 0)\n"
        "    except PermissionError:\n"
        "        continue\n"
        "    sys.exit('mapped for writing')\n";

Test(mmap, by_python)
{
        setup("auto");
        if (flow_run("python3 -c 'import mmap'"))
                printf("SKIP: mmap by_python: python3 is not installed\n");
        else
                for (int pass = 0; pass < 2; pass++)
                        flow_ok("cd %s && python3 -c \"%s\"", flow.base,
                                script);
        flow_umount(flow.mount);
        flow_stop();
}

static void evict_while_mapped(const char *mode)
{
        char *map;
        int fd;

        setup(mode);
        fd = open(flow_path("mount/file"), O_RDONLY | O_CLOEXEC);
        map = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
        cr_assert_neq(map, MAP_FAILED);
        cr_assert(flow_stamp_check(map, 1, 0, 4096));
        flow_ok("sheaf warmup --evict data");
        cr_assert(!madvise(map, BYTES, MADV_DONTNEED));
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        cr_assert(flow_stamp_check(map, 1, 0, BYTES));
        /* And while there is no daemon, as far as pages are there. */
        flow_kill();
        cr_assert(flow_stamp_check(map, 1, 0, BYTES));
        flow_start();
        munmap(map, BYTES);
        close(fd);
        flow_umount(flow.mount);
        flow_stop();
}

Test(mmap, evicted_while_mapped_in_small_mode)
{
        evict_while_mapped("small");
}

Test(mmap, evicted_while_mapped_in_shard_mode)
{
        evict_while_mapped("shard");
}

/* ---- O_DIRECT ---- */

static void direct(const char *mode)
{
        static const struct {
                uint64_t offset;
                size_t len;
        } reads[] = { { 0, 4096 }, { 4096, 1 << 20 }, { 8 << 20, 4 << 20 },
                { 1, 4096 }, { 0, 1000 }, { 4095, 2 }, { BYTES - 1, 4096 },
                { BYTES & ~UINT64_C(4095), 4096 }, { 4194304 - 512, 1024 } };
        void *buf;
        int fd;

        setup(mode);
        cr_assert(!posix_memalign(&buf, 4096, 4 << 20));
        fd = open(flow_path("mount/file"), O_RDONLY | O_DIRECT | O_CLOEXEC);
        cr_assert_geq(fd, 0, "%s", strerror(errno));
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(reads); i++) {
                ssize_t want = (ssize_t)SHEAF_MIN(
                        reads[i].len, BYTES - reads[i].offset);
                ssize_t n =
                        pread(fd, buf, reads[i].len, (off_t)reads[i].offset);

                if (n < 0 && errno == EINVAL && i > 2)
                        continue; /* unaligned: refused as on a disk */
                cr_assert_eq(n, want, "%zu: %zd", i, n);
                cr_assert(flow_stamp_check(buf, 1, reads[i].offset, (size_t)n));
        }
        close(fd);
        free(buf);
        flow_umount(flow.mount);
        flow_stop();
}

Test(mmap, direct_of_small_mode)
{
        direct("small");
}

Test(mmap, direct_of_shard_mode)
{
        direct("shard");
}
