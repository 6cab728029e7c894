/* SPDX-License-Identifier: Apache-2.0 */
#include "kit.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

static const uint64_t sizes[] = { 1000, 0, 2000, 100000, 9 << 20, 500 };
#define COUNT SHEAF_ARRAY_LEN(sizes)

Test(version, equal_chunks_are_stored_once)
{
        struct kit kit;
        struct kit_version a, b;
        uint64_t bytes;

        kit_begin(&kit, 128 * SHEAF_MIB);
        kit_version(&kit, &a, 1, 7, sizes, COUNT, 1);
        cr_assert_eq(kit_write_all(&kit, &a), a.listing.chunk_count);
        kit_version(&kit, &b, 2, 8, sizes, COUNT, 1);
        cr_assert_eq(sheaf_version_disk(b.version, &bytes), 0);
        for (uint64_t c = 0; c < b.listing.chunk_count; c++)
                sheaf_version_learn(
                        b.version, c, sheaf_version_digest(a.version, c));
        cr_assert_eq(
                sheaf_version_disk(b.version, &bytes), b.listing.chunk_count);
        cr_assert_eq(kit_write(&kit, &b, 0), -EEXIST);
        for (uint64_t c = 0; c < b.listing.chunk_count; c++)
                cr_assert_eq(kit_read(&kit, &b, c), 0);
        cr_assert_eq(kit_stats(&kit).written_chunks, a.listing.chunk_count);
        /* The plain file leaves: both versions know. */
        struct sheaf_chunk_ref ref = kit_ref(&a, 3);

        cr_assert_gt(a.listing.entries[ref.entry].size_bytes, 4 << 20);
        cr_assert(sheaf_store_evict(kit.store, &ref));
        cr_assert_eq(sheaf_version_disk(a.version, &bytes),
                a.listing.chunk_count - 3);
        cr_assert_eq(sheaf_version_disk(b.version, &bytes),
                a.listing.chunk_count - 3);
        kit_end(&kit);
        kit_version_end(&a);
        kit_version_end(&b);
}

Test(version, forget_learn_and_evict_keep_sums_right)
{
        struct kit kit;
        struct kit_version v;
        struct sheaf_digest digest;
        struct sheaf_chunk_ref ref;
        uint64_t bytes, all;

        kit_begin(&kit, 128 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, COUNT, 1);
        all = v.listing.chunk_count;
        cr_assert_eq(kit_write_all(&kit, &v), all);
        cr_assert_eq(sheaf_version_known(v.version), all);
        digest = *sheaf_version_digest(v.version, 1);
        sheaf_version_forget(v.version, 1);
        cr_assert_eq(sheaf_version_known(v.version), all - 1);
        cr_assert_eq(sheaf_version_disk(v.version, &bytes), all - 1);
        cr_assert_eq(kit_read(&kit, &v, 1), -ENOENT);
        sheaf_version_learn(v.version, 1, &digest);
        cr_assert_eq(sheaf_version_disk(v.version, &bytes), all);
        cr_assert_eq(kit_read(&kit, &v, 1), 0);
        ref = kit_ref(&v, 1);
        cr_assert(sheaf_store_evict(kit.store, &ref));
        cr_assert_not(sheaf_store_evict(kit.store, &ref));
        cr_assert_eq(sheaf_version_disk(v.version, &bytes), all - 1);
        cr_assert_eq(kit_read(&kit, &v, 1), -ENOENT);
        cr_assert_eq(kit_write(&kit, &v, 1), 0);
        cr_assert_eq(kit_read(&kit, &v, 1), 0);
        cr_assert_eq(bytes + ref.len_bytes, v.listing.header->payload_bytes);
        kit_end(&kit);
        kit_version_end(&v);
}

Test(version, stale_and_cut_arrays_are_only_misses)
{
        struct kit kit;
        struct kit_version v;
        char path[256];
        uint64_t bytes;

        kit_begin(&kit, 128 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, COUNT, 1);
        cr_assert_eq(kit_write_all(&kit, &v), v.listing.chunk_count);
        /* Places that name another chunk's record, as after a power cut. */
        v.version->places[0] = v.version->places[1];
        v.version->places[2].offset_bytes += 64;
        cr_assert_eq(kit_read(&kit, &v, 0), -ENOENT);
        cr_assert_eq(kit_read(&kit, &v, 0), 0, "found by its digest");
        cr_assert_eq(kit_read(&kit, &v, 2), -EBADMSG);
        kit_close(&kit);
        snprintf(path, sizeof(path),
                "truncate -s 100 $(find %s/versions -name places)", kit.dir);
        cr_assert_eq(system(path), 0);
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        for (uint64_t c = 0; c < v.listing.chunk_count; c++) {
                int rc = kit_read(&kit, &v, c);

                cr_assert(rc == 0 || rc == -ENOENT, "%d", rc);
        }
        cr_assert_eq(kit_write_all(&kit, &v), v.listing.chunk_count);
        cr_assert_eq(
                sheaf_version_disk(v.version, &bytes), v.listing.chunk_count);
        kit_end(&kit);
        kit_version_end(&v);
}

Test(version, removal_takes_directory_and_plain_files)
{
        struct kit kit;
        struct kit_version v;
        uint8_t uuid[16];

        kit_begin(&kit, 128 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, COUNT, 1);
        cr_assert_eq(kit_write_all(&kit, &v), v.listing.chunk_count);
        cr_assert_eq(kit_stats(&kit).plain_files, 1);
        memcpy(uuid, v.version->uuid, sizeof(uuid));
        sheaf_version_close(v.version);
        sheaf_version_remove(kit.store, uuid);
        sheaf_version_remove(kit.store, uuid);
        sheaf_disk_drain(kit.store->disk);
        cr_assert_eq(kit_stats(&kit).plain_files, 0);
        kit_end(&kit);
        kit_version_end(&v);
}
