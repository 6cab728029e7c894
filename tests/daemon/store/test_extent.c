/* SPDX-License-Identifier: Apache-2.0 */
/* What holders of the descriptors may not do, as another user and as root of
 * a user namespace. */
#include "tests/daemon/store/arena_util.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* Would let a user place pages of his own in a mapping. */
static bool userfault_works(void *map, size_t len)
{
        struct uffdio_api api = { .api = UFFD_API };
        struct uffdio_register reg = { .range = { (uintptr_t)map, len },
                .mode = UFFDIO_REGISTER_MODE_MISSING };
        int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
        bool works;

        if (fd < 0)
                return false;
        works = ioctl(fd, UFFDIO_API, &api) == 0 &&
                ioctl(fd, UFFDIO_REGISTER, &reg) == 0;
        close(fd);
        return works;
}

/* 0, or the number of the attack that worked. */
static int attack_read_only(int fd, size_t len)
{
        char path[64], byte = 'x';
        struct iovec local = { &byte, 1 }, remote;
        void *map;
        int again;

        if (write(fd, &byte, 1) > 0 || pwrite(fd, &byte, 1, 0) > 0)
                return 1;
        if (ftruncate(fd, 0) == 0 || ftruncate(fd, (off_t)len * 2) == 0)
                return 2;
        if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                    4096) == 0)
                return 3;
        if (fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, 4096) == 0)
                return 4;
        if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0)
                return 5;
        map = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map != MAP_FAILED)
                return 6;
        map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
                return 7;
        if (mprotect(map, len, PROT_READ | PROT_WRITE) == 0)
                return 8;
        if (madvise(map, len, MADV_REMOVE) == 0)
                return 9;
        remote = (struct iovec){ map, 1 };
        if (process_vm_writev(getpid(), &local, 1, &remote, 1, 0) > 0)
                return 10;
        /* The kernel as the writer, on the user's behalf. */
        again = open("/dev/zero", O_RDONLY | O_CLOEXEC);
        if (again < 0 || read(again, map, 1) > 0)
                return 14;
        close(again);
        if (userfault_works(map, len))
                return 15;
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        again = open(path, O_RDWR | O_CLOEXEC);
        if (again >= 0) {
                if (write(again, &byte, 1) > 0 || ftruncate(again, 0) == 0 ||
                        mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED,
                                again, 0) != MAP_FAILED)
                        return 11;
                close(again);
        }
        again = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
        if (again >= 0 && lseek(again, 0, SEEK_END) != (off_t)len)
                return 12;
        if (again >= 0)
                close(again);
        again = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
        if (again >= 0 && pwrite(again, &byte, 1, (off_t)(uintptr_t)map) > 0)
                return 13;
        return 0;
}

static int attack_size(int fd, size_t len)
{
        if (ftruncate(fd, 0) == 0 || ftruncate(fd, (off_t)len * 2) == 0)
                return 21;
        if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0)
                return 22;
        return 0;
}

enum who {
        AS_IS,
        OTHER_UID,
        NAMESPACE_ROOT
};

static bool become(enum who who)
{
        switch (who) {
        case AS_IS:
                return true;
        case OTHER_UID:
                return setgid(12345) == 0 && setuid(12345) == 0;
        case NAMESPACE_ROOT:
                return unshare(CLONE_NEWUSER) == 0;
        }
        return false;
}

static int attacked(
        enum who who, int fd, size_t len, int (*attack)(int, size_t))
{
        pid_t pid = fork();
        int status;

        if (pid == 0)
                _exit(become(who) ? attack(fd, len) : 99);
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert(WIFEXITED(status));
        return WEXITSTATUS(status);
}

Test(extent, seals_hold)
{
        struct sheaf_pins *pins;
        struct sheaf_arena_shape shape;
        struct rig rig;
        int fd, lock_fd, tried = 0;

        rig_open(&rig, 32 * SHEAF_MIB, 100);
        cr_assert_eq(sheaf_arena_shape(32 * SHEAF_MIB, &shape), 0);
        cr_assert_eq(sheaf_pins_new(rig.arena, &pins), 0);
        cr_assert_eq(put(&rig, 1), 0);
        cr_assert_eq(sheaf_arena_extent(rig.arena, 0, &fd, &lock_fd), 0);
        for (enum who who = AS_IS; who <= NAMESPACE_ROOT; who++) {
                int rc =
                        attacked(who, fd, shape.extent_bytes, attack_read_only);

                if (rc == 99)
                        continue; /* not allowed to become that */
                tried++;
                cr_expect_eq(rc, 0, "arena: attack %d as %d", rc, who);
                rc = attacked(who, sheaf_table_fd(rig.table),
                        sheaf_table_bytes(100), attack_read_only);
                cr_expect_eq(rc, 0, "table: attack %d as %d", rc, who);
                rc = attacked(who, sheaf_pins_fd(pins),
                        sheaf_round_up(sizeof(struct sheaf_hazard), 4096),
                        attack_size);
                cr_expect_eq(rc, 0, "pins: attack %d as %d", rc, who);
        }
        cr_expect_gt(tried, 0);
        cr_expect(intact(&rig, 1));
        sheaf_pins_free(pins);
        rig_close(&rig);
}

/* The lock lasts as long as any copy of the descriptor. */
Test(extent, lock_tells_of_holders)
{
        char path[64];
        struct rig rig;
        int fd, lock_fd, copy, probe;

        rig_open(&rig, 32 * SHEAF_MIB, 100);
        cr_assert_eq(put(&rig, 1), 0);
        cr_assert_eq(sheaf_arena_extent(rig.arena, 0, &fd, &lock_fd), 0);
        copy = dup(lock_fd);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", copy);
        probe = open(path, O_RDWR | O_CLOEXEC);
        cr_assert_geq(probe, 0);
        rig_close(&rig);
        cr_expect_eq(flock(probe, LOCK_EX | LOCK_NB), -1);
        cr_expect_eq(errno, EWOULDBLOCK);
        close(copy);
        cr_expect_eq(flock(probe, LOCK_EX | LOCK_NB), 0);
}

Test(extent, pages_are_told)
{
        struct sheaf_arena_config config = { .bytes_max = 64 * SHEAF_MIB,
                .pages = SHEAF_PAGES_SMALL };
        struct sheaf_arena_pool_stats stats;
        struct sheaf_arena_pool *pool;

        cr_assert_eq(sheaf_arena_pool_new(&config, &pool), 0);
        sheaf_arena_pool_stats(pool, &stats);
        cr_expect_eq(stats.pages, SHEAF_PAGES_SMALL);
        cr_expect_str_eq(stats.pages_why, "");
        sheaf_arena_pool_free(pool);
        config.pages = SHEAF_PAGES_AUTO;
        cr_assert_eq(sheaf_arena_pool_new(&config, &pool), 0);
        sheaf_arena_pool_stats(pool, &stats);
        cr_expect_neq(stats.pages, SHEAF_PAGES_AUTO);
        if (stats.pages != SHEAF_PAGES_HUGETLB)
                cr_expect_str_neq(stats.pages_why, "");
        sheaf_arena_pool_free(pool);
}

static unsigned long huge_kib(void)
{
        FILE *file = fopen("/proc/self/smaps_rollup", "re");
        unsigned long kib = 0, more = 0;
        char line[256];

        cr_assert_not_null(file);
        while (fgets(line, sizeof(line), file)) {
                if (sscanf(line, "ShmemPmdMapped: %lu", &more) == 1 ||
                        sscanf(line, "Shared_Hugetlb: %lu", &more) == 1 ||
                        sscanf(line, "Private_Hugetlb: %lu", &more) == 1)
                        kib += more;
        }
        fclose(file);
        return kib;
}

Test(extent, segments_are_taken_in_huge_pages)
{
        struct rig rig = { 0 };
        struct sheaf_arena_pool_stats stats;
        sheaf_block block;
        void *bytes;

        rig_open(&rig, 64 * SHEAF_MIB, 100);
        sheaf_arena_pool_stats(rig.pool, &stats);
        cr_assert_eq(sheaf_arena_place(rig.space, 100000, &block, &bytes), 0);
        if (stats.pages == SHEAF_PAGES_SMALL)
                printf("SKIP: huge pages: %s\n", stats.pages_why);
        else
                cr_expect_geq(huge_kib(), 2048);
        sheaf_arena_abort(rig.space, block);
        rig_close(&rig);
}
