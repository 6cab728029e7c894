/* SPDX-License-Identifier: Apache-2.0 */
/* Shards: read by the kernel itself where it can, right in any case. */
#define FUSE_USE_VERSION 314

#include "tests/cachefs/mounted.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <time.h>

static struct mounted m;

static void setup(void)
{
        mounted_prepare(&m);
        m.options.kind = SHEAF_TREE_SHARD;
}

static void cleanup(void)
{
        mounted_rescue(&m);
}

TestSuite(open, .init = setup, .fini = cleanup, .timeout = 120);

#define SHARD_BYTES ((UINT64_C(20) << 20) + 5)

static void need_passthrough(void)
{
        const char *lack = NULL;

#if FUSE_VERSION < FUSE_MAKE_VERSION(3, 17)
        lack = "libfuse before 3.17 has no passthrough";
#endif
        if (!lack && geteuid())
                lack = "passthrough needs CAP_SYS_ADMIN";
        if (lack) {
                mounted_rescue(&m);
                cr_skip_test("%s", lack);
        }
}

static void leases_return_to(uint64_t count)
{
        struct timespec ms = { 0, 1000000 };

        for (int i = 0; i < 5000; i++) {
                if (m.fake.shared->plain_open == count)
                        return;
                nanosleep(&ms, NULL);
        }
        cr_assert_eq(m.fake.shared->plain_open, count);
}

Test(open, auto_follows_the_sizes)
{
        struct sheaf_listing *listing = &m.fake.listing;

        stamp_file(at(m.origin, "a"), 0, 9 << 20);
        stamp_file(at(m.origin, "b"), 0, 8 << 20);
        fake_dataset_new(m.origin, &m.fake);
        cr_assert_eq(sheaf_tree_kind_of(listing), SHEAF_TREE_SHARD);
        fake_dataset_free(&m.fake);
        stamp_file(at(m.origin, "c"), 0, 2 << 20);
        fake_dataset_new(m.origin, &m.fake);
        cr_assert_eq(sheaf_tree_kind_of(listing), SHEAF_TREE_SMALL);
        mounted_remove(&m);
}

/* Whatever library and kernel can do, the bytes are right. */
Test(open, shards_are_right)
{
        stamp_file(at(m.origin, "shard"), 1, SHARD_BYTES);
        stamp_file(at(m.origin, "small"), 2, 5000);
        mounted_start(&m);
        for (int i = 0; i < 3; i++)
                cr_assert(sh("cmp %s/shard %s/shard && cmp %s/small %s/small",
                        m.origin, m.dir, m.origin, m.dir));
        leases_return_to(0);
        mounted_stop(&m);
        mounted_remove(&m);
}

Test(open, passthrough_makes_no_read)
{
        need_passthrough();
        stamp_file(at(m.origin, "shard"), 1, SHARD_BYTES);
        mounted_start(&m);
        cr_assert(sh("cmp %s/shard %s/shard", m.origin, m.dir));
        cr_assert_eq(m.fake.shared->op[SHEAF_METER_OP_READ], 0);
        cr_assert_eq(m.fake.shared->op[SHEAF_METER_OP_PASSTHROUGH_OPENS], 1);
        leases_return_to(0);
        mounted_stop(&m);
        mounted_remove(&m);
}

/* The kernel gives EIO to a mixture of both modes on one inode: the mode of
 * the first open stays until the last close. */
Test(open, a_mode_lasts_until_the_last_close)
{
        int first, second;
        char c;

        need_passthrough();
        stamp_file(at(m.origin, "shard"), 1, SHARD_BYTES);
        mounted_start(&m);
        m.fake.shared->no_plain = 1;
        first = open(at(m.dir, "shard"), O_RDONLY);
        cr_assert_eq(pread(first, &c, 1, 0), 1);
        m.fake.shared->no_plain = 0;
        second = open(at(m.dir, "shard"), O_RDONLY);
        cr_assert(second >= 0, "%s", strerror(errno));
        cr_assert_eq(pread(second, &c, 1, 9 << 20), 1);
        cr_assert_eq(m.fake.shared->op[SHEAF_METER_OP_PASSTHROUGH_OPENS], 0);
        close(first);
        close(second);
        for (uint64_t i = 0;
                m.fake.shared->op[SHEAF_METER_OP_RELEASE] < 2 && i < 1000; i++)
                usleep(1000);
        usleep(50000);
        first = open(at(m.dir, "shard"), O_RDONLY);
        cr_assert_eq(m.fake.shared->op[SHEAF_METER_OP_PASSTHROUGH_OPENS], 1);
        m.fake.shared->no_plain = 1;
        second = open(at(m.dir, "shard"), O_RDONLY);
        cr_assert(second >= 0, "%s", strerror(errno));
        cr_assert_eq(pread(second, &c, 1, 9 << 20), 1);
        cr_assert_eq(m.fake.shared->op[SHEAF_METER_OP_PASSTHROUGH_OPENS], 2);
        cr_assert_eq(m.fake.shared->plain_open, 1);
        close(first);
        close(second);
        leases_return_to(0);
        mounted_stop(&m);
        mounted_remove(&m);
}

/* Opens and closes in parallel leave no lease and no error behind. */
Test(open, in_parallel)
{
        stamp_file(at(m.origin, "shard"), 1, SHARD_BYTES);
        mounted_start(&m);
        cr_assert(sh("for p in 1 2 3 4 5 6 7 8; do (for i in $(seq 60); do "
                     "head -c 100 %s/shard > /dev/null || exit 1; done) & "
                     "all=\"$all $!\"; done; for p in $all; do wait $p || "
                     "exit 1; done",
                m.dir));
        leases_return_to(0);
        mounted_stop(&m);
        mounted_remove(&m);
}
