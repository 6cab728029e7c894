/* SPDX-License-Identifier: Apache-2.0 */
#include "kit.h"

#include <stdio.h>

static const uint64_t edge_sizes[] = { 1, 63, 64, 65, 4095, 4096, 4097, 65535,
        65536, 65537, 1 << 20, 4 << 20, (4 << 20) + 1, (9 << 20) + 5 };

static void round_trip(bool uring)
{
        struct kit kit;
        struct kit_version v;

        kit_begin(&kit, 256 * SHEAF_MIB);
        if (!uring) {
                kit_close(&kit);
                kit.config.want_uring = false;
                kit_open(&kit);
        }
        cr_assert_eq(
                kit_stats(&kit).uring, uring, "%s", kit_stats(&kit).uring_why);
        kit_version(&kit, &v, 1, 7, edge_sizes, SHEAF_ARRAY_LEN(edge_sizes), 1);
        for (uint64_t c = 0; c < v.listing.chunk_count; c++) {
                cr_assert_eq(kit_read(&kit, &v, c), -ENOENT);
                cr_assert_eq(kit_write(&kit, &v, c), 0, "chunk %lu", c);
                cr_assert_eq(kit_write(&kit, &v, c), -EEXIST);
        }
        for (uint64_t c = 0; c < v.listing.chunk_count; c++)
                cr_assert_eq(kit_read(&kit, &v, c), 0, "chunk %lu", c);
        for (int again = 0; again < 3; again++) {
                uint64_t bytes;

                kit_close(&kit);
                kit_open(&kit);
                kit_version_reopen(&kit, &v, 7);
                cr_assert_eq(sheaf_version_disk(v.version, &bytes),
                        v.listing.chunk_count);
                cr_assert_eq(bytes, v.listing.header->payload_bytes);
                for (uint64_t c = 0; c < v.listing.chunk_count; c++) {
                        cr_assert(sheaf_version_on_disk(v.version, c));
                        cr_assert_eq(kit_read(&kit, &v, c), 0);
                }
        }
        cr_assert_eq(kit_stats(&kit).segments, 1);
        cr_assert_eq(kit_stats(&kit).plain_files, 2);
        kit_end(&kit);
        kit_version_end(&v);
}

Test(store, round_trip_of_edge_sizes_uring)
{
        round_trip(true);
}

Test(store, round_trip_of_edge_sizes_pread)
{
        round_trip(false);
}

static void du_agrees(const struct kit *kit, const char *when)
{
        uint64_t du = kit_du(kit->dir), used = kit_stats(kit).bytes_used;
        uint64_t differ = du > used ? du - used : used - du;

        cr_assert_leq(
                differ * 100, du, "%s: du %lu, status %lu", when, du, used);
        cr_assert_leq(du, kit->config.bytes_max, "%s: du %lu", when, du);
}

Test(store, du_and_status_agree_and_the_limit_is_hard)
{
        enum {
                N = 30000
        };
        uint64_t *sizes = sheaf_new(uint64_t, N);
        struct kit kit;
        struct kit_version v, large;
        static const uint64_t files[] = { 17 << 20, 9 << 20, 70 << 20 };

        for (size_t i = 0; i < N; i++)
                sizes[i] = 1 + i * 7919 % 5000;
        kit_begin(&kit, 96 * SHEAF_MIB);
        du_agrees(&kit, "empty");
        kit_version(&kit, &v, 1, 7, sizes, N / 3, 1);
        cr_assert_eq(kit_write_all(&kit, &v), N / 3);
        du_agrees(&kit, "a third");
        kit_version(&kit, &large, 2, 7, files, 3, 2);
        cr_assert_lt(kit_write_all(&kit, &large), large.listing.chunk_count);
        du_agrees(&kit, "full of plain files");
        sheaf_places_commit(kit.store, true);
        sheaf_disk_drain(kit.store->disk);
        du_agrees(&kit, "committed");
        kit_close(&kit);
        kit_open(&kit);
        du_agrees(&kit, "reopened");
        kit_version_reopen(&kit, &large, 7);
        for (uint64_t c = 0; c < large.listing.chunk_count; c++) {
                int rc = kit_read(&kit, &large, c);

                cr_assert(rc == 0 || rc == -ENOENT);
        }
        sheaf_store_group_drop(kit.store, 7);
        sheaf_disk_drain(kit.store->disk); /* large files leave one by one */
        du_agrees(&kit, "dropped");
        cr_assert_gt(kit_write_all(&kit, &large), 0);
        du_agrees(&kit, "written again");
        kit_end(&kit);
        kit_version_end(&v);
        kit_version_end(&large);
        free(sizes);
}

Test(store, lowered_limit_is_met_at_open)
{
        static uint64_t sizes[700];
        struct kit kit;
        struct kit_version v;

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(sizes); i++)
                sizes[i] = 110000;
        kit_begin(&kit, 256 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, 700, 1);
        cr_assert_eq(kit_write_all(&kit, &v), 700);
        kit_close(&kit);
        kit.config.bytes_max = 70 * SHEAF_MIB;
        kit_open(&kit);
        du_agrees(&kit, "lowered");
        kit_version_reopen(&kit, &v, 7);
        for (uint64_t c = 0; c < 700; c++) {
                int rc = kit_read(&kit, &v, c);

                cr_assert(rc == 0 || rc == -ENOENT);
        }
        kit_end(&kit);
        kit_version_end(&v);
}

/* Large files still find room where a segment for small ones does not: that
 * is no end of the shortage. */
Test(store, shortage_lasts_while_what_was_refused_does_not_fit)
{
        static const uint64_t sizes[] = { 1000, 5 << 20, 5 << 20 };
        struct sheaf_shortage *shortage;
        struct kit kit;
        struct kit_version v;

        kit_begin(&kit, SHEAF_GIB);
        kit_version(&kit, &v, 1, 7, sizes, 3, 1);
        shortage = &kit.store->disk_short;
        kit.store->floor_bytes = UINT64_C(1) << 60;
        cr_assert_eq(kit_write(&kit, &v, 0), -ENOSPC);
        cr_assert_eq(shortage->bytes, SHEAF_SEGMENT_FIRST_BYTES);
        kit.store->floor_bytes = 0;
        /* What no file system has room for; others share the one of /tmp. */
        shortage->bytes = UINT64_C(1) << 60;
        for (uint64_t c = 1; c < v.listing.chunk_count; c++) {
                cr_assert_eq(kit_write(&kit, &v, c), 0);
                shortage->refused_ns = 1; /* long ago */
                sheaf_space_settle(kit.store);
                cr_assert_eq(kit_stats(&kit).degraded, -ENOSPC);
                cr_assert_neq(*kit_stats(&kit).degraded_why, '\0');
        }
        shortage->bytes = SHEAF_SEGMENT_FIRST_BYTES;
        sheaf_space_settle(kit.store);
        cr_assert_eq(kit_stats(&kit).degraded, 0, "there is room now");
        /* Room alone is no proof that the disk takes anything. */
        cr_assert_eq(sheaf_space_failed(kit.store, -ENOSPC), -ENOSPC);
        shortage->refused_ns = 1; /* long ago */
        sheaf_space_settle(kit.store);
        cr_assert_eq(kit_stats(&kit).degraded, -ENOSPC);
        kit_end(&kit);
        kit_version_end(&v);
}

Test(store, limit_that_is_reached_is_told)
{
        static const uint64_t sizes[] = { 24 << 20, 24 << 20 };
        struct kit kit;
        struct kit_version v;

        kit_begin(&kit, 32 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, 2, 1);
        sheaf_store_group_live(kit.store, 7, true);
        cr_assert_eq(kit_write(&kit, &v, 0), 0);
        cr_assert_not(kit_stats(&kit).limit_reached);
        cr_assert_lt(kit_write_all(&kit, &v), v.listing.chunk_count);
        cr_assert(kit_stats(&kit).limit_reached);
        cr_assert_eq(kit_stats(&kit).degraded, 0, "the disk is well");
        kit.store->limit_short.refused_ns = 0;
        sheaf_space_settle(kit.store);
        cr_assert(kit_stats(&kit).limit_reached, "it still does not fit");
        sheaf_store_group_drop(kit.store, 7);
        sheaf_space_settle(kit.store);
        cr_assert_not(kit_stats(&kit).limit_reached);
        kit_end(&kit);
        kit_version_end(&v);
}

Test(store, floor_and_no_disk_refuse_quietly)
{
        static const uint64_t sizes[] = { 1000, 5 << 20 };
        struct kit kit;
        struct kit_version v;

        kit_begin(&kit, 64 * SHEAF_MIB);
        kit_close(&kit);
        kit.config.floor_bytes = UINT64_C(1) << 60;
        kit_open(&kit);
        kit_version(&kit, &v, 1, 7, sizes, 2, 1);
        cr_assert_eq(kit_write(&kit, &v, 0), -ENOSPC);
        cr_assert_eq(kit_write(&kit, &v, 1), -ENOSPC);
        cr_assert_eq(kit_stats(&kit).degraded, -ENOSPC);
        cr_assert_geq(kit_stats(&kit).refused_full, 2);
        kit.store->floor_bytes = 0;
        cr_assert_eq(kit_write(&kit, &v, 0), 0);
        sheaf_space_settle(kit.store);
        cr_assert_eq(kit_stats(&kit).degraded, -ENOSPC, "for some seconds");
        kit.store->disk_short.refused_ns = 1; /* long ago */
        sheaf_space_settle(kit.store);
        cr_assert_eq(kit_stats(&kit).degraded, 0, "recovers by itself");
        kit_close(&kit);
        kit.config.floor_bytes = 0;
        kit.config.bytes_max = 0;
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        cr_assert_eq(kit_write(&kit, &v, 1), -EDQUOT);
        kit_end(&kit);
        kit_version_end(&v);
}

/* What the kernel refuses is not the limit of ours, and leaves no record. */
Test(store, failed_writes_are_told_apart)
{
        static const uint64_t sizes[] = { 1000, 5 << 20 };
        static const int errors[] = { -EDQUOT, -ENOSPC, -EROFS, -EIO };
        struct kit kit;
        struct kit_version v;

        kit_begin(&kit, 256 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, 2, 1);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(errors); i++) {
                int want = errors[i] == -EDQUOT  ? -ENOSPC
                           : errors[i] == -EROFS ? -EIO
                                                 : errors[i];

                for (uint64_t c = 0; c < 2; c++) {
                        sheaf_disk_fault(kit.store->disk, SHEAF_DISK_WRITE,
                                errors[i], 1);
                        cr_assert_eq(kit_write(&kit, &v, c), want);
                        cr_assert_eq(kit_stats(&kit).degraded, errors[i]);
                        cr_assert_not(kit_stats(&kit).limit_reached);
                }
        }
        cr_assert_eq(kit_stats(&kit).chunks, 0);
        cr_assert_eq(kit_stats(&kit).payload_bytes, 0);
        cr_assert_eq(kit_write_all(&kit, &v), v.listing.chunk_count);
        kit_close(&kit);
        kit_open(&kit);
        cr_assert_eq(kit_stats(&kit).chunks, v.listing.chunk_count);
        kit_end(&kit);
        kit_version_end(&v);
}

/* Random operations against a model: what was written with 0 and not taken
 * away is read, everything else is a miss, never something else. */
Test(store, random_operations_follow_the_model, .timeout = 120)
{
        enum {
                N = 400
        };
        static uint64_t sizes[N];
        struct kit kit;
        struct kit_version v[2];
        unsigned int seed = 20261129;
        bool may[2][N] = { 0 };

        for (size_t i = 0; i < N; i++)
                sizes[i] = 1 + (uint64_t)rand_r(&seed) % 140000;
        sizes[N - 1] = 6 << 20;
        kit_begin(&kit, 64 * SHEAF_MIB);
        kit_version(&kit, &v[0], 1, 1, sizes, N, 1);
        kit_version(&kit, &v[1], 2, 2, sizes, N, 2);
        for (int step = 0; step < 6000; step++) {
                unsigned int which = (unsigned int)rand_r(&seed) % 2;
                uint64_t c = (uint64_t)rand_r(&seed) % (N + 1);
                struct sheaf_chunk_ref ref = kit_ref(&v[which], c);
                int op = rand_r(&seed) % 100, rc;

                if (c >= N)
                        c = N - 1, ref = kit_ref(&v[which], c);
                if (op < 40) {
                        rc = kit_write(&kit, &v[which], c);
                        cr_assert(rc == 0 || rc == -EEXIST || rc == -EDQUOT,
                                "%d", rc);
                        may[which][c] = rc != -EDQUOT;
                } else if (op < 85) {
                        rc = kit_read(&kit, &v[which], c);
                        cr_assert(rc == 0 || rc == -ENOENT, "%d", rc);
                        if (!may[which][c])
                                cr_assert_eq(rc, -ENOENT);
                } else if (op < 95) {
                        if (sheaf_store_evict(kit.store, &ref))
                                cr_assert(may[which][c]);
                        may[which][c] = false;
                        cr_assert_eq(kit_read(&kit, &v[which], c), -ENOENT);
                } else if (op < 98) {
                        sheaf_store_group_live(kit.store, which + 1, step % 3);
                } else if (step % 7 == 0) {
                        kit_close(&kit);
                        kit_open(&kit);
                        kit_version_reopen(&kit, &v[0], 1);
                        kit_version_reopen(&kit, &v[1], 2);
                        /* What was evicted may be found again: its bytes are
                         * right all the same. */
                        memset(may, 1, sizeof(may));
                }
                if (step % 500 == 0)
                        du_agrees(&kit, "random");
        }
        for (int w = 0; w < 2; w++) {
                uint64_t bytes, n = 0, sum = 0;

                for (uint64_t c = 0; c < v[w].listing.chunk_count; c++) {
                        if (!sheaf_version_on_disk(v[w].version, c))
                                continue;
                        n++;
                        sum += kit_ref(&v[w], c).len_bytes;
                }
                cr_assert_eq(sheaf_version_disk(v[w].version, &bytes), n);
                cr_assert_eq(bytes, sum);
        }
        cr_assert_eq(kit_stats(&kit).bad_headers, 0);
        cr_assert_eq(kit_stats(&kit).bad_payloads, 0);
        kit_end(&kit);
        kit_version_end(&v[0]);
        kit_version_end(&v[1]);
}
