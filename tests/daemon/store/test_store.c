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
