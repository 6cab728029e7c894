/* SPDX-License-Identifier: Apache-2.0 */
#include "kit.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* From now on @number fails with @error, as under a container's profile. */
static void forbid(unsigned int number, unsigned int error)
{
        struct sock_filter code[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                        offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = { .len = SHEAF_ARRAY_LEN(code),
                .filter = code };

        cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

static const uint64_t sizes[] = { 2000, 100000, 5 << 20 };

static void works(struct kit *kit)
{
        struct kit_version v;

        kit_version(kit, &v, 1, 7, sizes, SHEAF_ARRAY_LEN(sizes), 1);
        cr_assert_eq(kit_write_all(kit, &v), v.listing.chunk_count);
        for (uint64_t c = 0; c < v.listing.chunk_count; c++)
                cr_assert_eq(kit_read(kit, &v, c), 0);
        kit_close(kit);
        kit_version_end(&v);
}

Test(disk, forbidden_ring_falls_back_with_the_cause)
{
        struct kit kit;

        forbid(SYS_io_uring_setup, EPERM);
        kit_begin(&kit, 128 * SHEAF_MIB);
        cr_assert_not(kit_stats(&kit).uring);
        cr_assert_not_null(strstr(kit_stats(&kit).uring_why, "EPERM"));
        works(&kit);
        kit_end(&kit);
}

Test(disk, missing_ring_falls_back_with_the_cause)
{
        struct kit kit;

        forbid(SYS_io_uring_setup, ENOSYS);
        kit_begin(&kit, 128 * SHEAF_MIB);
        cr_assert_not_null(strstr(kit_stats(&kit).uring_why, "ENOSYS"));
        works(&kit);
        kit_end(&kit);
}

Test(disk, ring_that_may_not_be_entered_falls_back)
{
        struct kit kit;

        forbid(SYS_io_uring_enter, EPERM);
        kit_begin(&kit, 128 * SHEAF_MIB);
        cr_assert_not(kit_stats(&kit).uring);
        works(&kit);
        kit_end(&kit);
}

Test(disk, short_memlock_falls_back_or_works)
{
        struct kit kit;

        forbid(SYS_io_uring_register, ENOMEM);
        kit_begin(&kit, 128 * SHEAF_MIB);
        cr_assert_not(kit_stats(&kit).uring);
        cr_assert_not_null(strstr(kit_stats(&kit).uring_why, "MEMLOCK"));
        works(&kit);
        kit_end(&kit);
}

Test(disk, ring_that_fails_in_the_middle_loses_nothing)
{
        struct kit kit;
        struct kit_version v;

        kit_begin(&kit, 128 * SHEAF_MIB);
        cr_assert(kit_stats(&kit).uring, "%s", kit_stats(&kit).uring_why);
        kit_version(&kit, &v, 1, 7, sizes, SHEAF_ARRAY_LEN(sizes), 1);
        cr_assert_eq(kit_write(&kit, &v, 0), 0);
        forbid(SYS_io_uring_enter, EPERM);
        for (uint64_t c = 1; c < v.listing.chunk_count; c++)
                cr_assert_eq(kit_write(&kit, &v, c), 0);
        for (uint64_t c = 0; c < v.listing.chunk_count; c++)
                cr_assert_eq(kit_read(&kit, &v, c), 0);
        cr_assert_not(kit_stats(&kit).uring);
        cr_assert_not_null(strstr(kit_stats(&kit).uring_why, "EPERM"));
        kit_end(&kit);
        kit_version_end(&v);
}

Test(disk, failing_writes_and_reads_are_told_and_survived)
{
        struct kit kit;
        struct kit_version v;

        kit_begin(&kit, 128 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, SHEAF_ARRAY_LEN(sizes), 1);
        cr_assert_eq(kit_write(&kit, &v, 0), 0);
        sheaf_disk_fault(kit.store->disk, SHEAF_DISK_WRITE, -EIO, 1);
        cr_assert_eq(kit_write(&kit, &v, 1), -EIO);
        cr_assert_eq(kit_read(&kit, &v, 1), -ENOENT);
        cr_assert_eq(kit_stats(&kit).degraded, -EIO);
        cr_assert_neq(*kit_stats(&kit).degraded_why, '\0');
        cr_assert_eq(kit_write(&kit, &v, 1), 0);
        kit.store->disk_short.refused_ns = 0;
        sheaf_space_settle(kit.store);
        cr_assert_eq(kit_stats(&kit).degraded, 0, "recovers by itself");
        sheaf_disk_fault(kit.store->disk, SHEAF_DISK_WRITE, -ENOSPC, 1);
        cr_assert_eq(kit_write(&kit, &v, 2), -ENOSPC);
        cr_assert_eq(kit_write(&kit, &v, 2), 0);
        sheaf_disk_fault(kit.store->disk, SHEAF_DISK_WORK, -ENOSPC, 1);
        cr_assert_eq(kit_read(&kit, &v, 0), 0);
        sheaf_disk_fault(kit.store->disk, SHEAF_DISK_READ, -EIO, 1);
        cr_assert_eq(kit_read(&kit, &v, 0), -EIO);
        cr_assert_eq(kit_read(&kit, &v, 0), -ENOENT);
        cr_assert_geq(kit_stats(&kit).io_errors, 2);
        cr_assert_eq(kit_read(&kit, &v, 1), 0);
        kit_end(&kit);
        kit_version_end(&v);
}
