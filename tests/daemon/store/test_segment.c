/* SPDX-License-Identifier: Apache-2.0 */
#include "kit.h"

#include <fcntl.h>
#include <stdio.h>

static const uint64_t sizes[] = { 5000, 100000, 3000, 200000, 64, 8000 };
#define COUNT SHEAF_ARRAY_LEN(sizes)

static void begin(struct kit *kit, struct kit_version *v)
{
        kit_begin(kit, 128 * SHEAF_MIB);
        kit_version(kit, v, 1, 7, sizes, COUNT, 1);
        cr_assert_eq(kit_write_all(kit, v), COUNT);
}

static void flip(const char *path, uint64_t offset)
{
        int fd = open(path, O_RDWR | O_CLOEXEC);
        uint8_t byte;

        cr_assert_eq(pread(fd, &byte, 1, (off_t)offset), 1);
        byte ^= 0x10;
        cr_assert_eq(pwrite(fd, &byte, 1, (off_t)offset), 1);
        close(fd);
}

/* Damages one byte; the chunk is refused, counted once, and is written and
 * served again. */
static void damage(uint64_t chunk, int64_t from_header, bool header)
{
        struct kit kit;
        struct kit_version v;
        struct sheaf_place place;
        struct sheaf_store_stats stats;
        char path[128];
        int rc;

        begin(&kit, &v);
        kit_container(&kit, &v, chunk, path, &place);
        flip(path, place.offset_bytes + (uint64_t)from_header);
        rc = kit_read(&kit, &v, chunk);
        cr_assert_eq(rc, -EBADMSG, "%d", rc);
        stats = kit_stats(&kit);
        cr_assert_eq(stats.bad_headers, header ? 1 : 0);
        cr_assert_eq(stats.bad_payloads, header ? 0 : 1);
        cr_assert_eq(kit_read(&kit, &v, chunk), -ENOENT);
        cr_assert_not(sheaf_version_on_disk(v.version, chunk));
        stats = kit_stats(&kit);
        cr_assert_eq(stats.bad_headers + stats.bad_payloads, 1);
        cr_assert_eq(kit_write(&kit, &v, chunk), 0);
        for (uint64_t c = 0; c < COUNT; c++)
                cr_assert_eq(kit_read(&kit, &v, c), 0);
        kit_end(&kit);
        kit_version_end(&v);
}

Test(segment, flipped_bits_are_noticed)
{
        for (uint64_t c = 0; c < 2; c++) {
                damage(c, 128, false);
                damage(c, 128 + (int64_t)sizes[c] / 2, false);
                damage(c, 128 + (int64_t)sizes[c] - 1, false);
        }
        damage(0, 0, true);
        damage(1, 16, true);
        damage(1, 60, true);
        damage(0, 127, true);
}

Test(segment, truncated_and_deleted_files_are_misses)
{
        struct kit kit;
        struct kit_version v;
        struct sheaf_place place;
        char path[128];

        begin(&kit, &v);
        kit_container(&kit, &v, 0, path, &place);
        cr_assert_eq(truncate(path, 100), 0);
        for (uint64_t c = 0; c < COUNT; c++) {
                int rc = kit_read(&kit, &v, c);

                cr_assert(rc == -EBADMSG || rc == -ENOENT, "%d", rc);
        }
        cr_assert_eq(kit_write_all(&kit, &v), COUNT);
        for (uint64_t c = 0; c < COUNT; c++)
                cr_assert_eq(kit_read(&kit, &v, c), 0);
        kit_close(&kit);
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        kit_container(&kit, &v, 0, path, &place);
        cr_assert_eq(unlink(path), 0);
        for (uint64_t c = 0; c < COUNT; c++) {
                int rc = kit_read(&kit, &v, c);

                cr_assert(rc == -ENOENT || rc == 0, "%d", rc);
        }
        cr_assert_eq(kit_write_all(&kit, &v), COUNT);
        for (uint64_t c = 0; c < COUNT; c++)
                cr_assert_eq(kit_read(&kit, &v, c), 0);
        kit_end(&kit);
        kit_version_end(&v);
}

Test(segment, swapped_files_serve_nothing)
{
        struct kit kit;
        struct kit_version a, b;
        struct sheaf_place pa, pb;
        char path_a[128], path_b[128], path_c[140];

        begin(&kit, &a);
        kit_version(&kit, &b, 2, 8, sizes, COUNT, 99);
        cr_assert_eq(kit_write_all(&kit, &b), COUNT);
        kit_container(&kit, &a, 0, path_a, &pa);
        kit_container(&kit, &b, 0, path_b, &pb);
        cr_assert_neq(pa.container, pb.container);
        kit_close(&kit);
        snprintf(path_c, sizeof(path_c), "%s.x", path_a);
        cr_assert_eq(rename(path_a, path_c), 0);
        cr_assert_eq(rename(path_b, path_a), 0);
        cr_assert_eq(rename(path_c, path_b), 0);
        kit_open(&kit);
        kit_version_reopen(&kit, &a, 7);
        kit_version_reopen(&kit, &b, 8);
        for (uint64_t c = 0; c < COUNT; c++) {
                int rc = kit_read(&kit, &a, c);

                cr_assert(rc == -ENOENT || rc == -EBADMSG, "%d", rc);
                rc = kit_read(&kit, &b, c);
                cr_assert(rc == -ENOENT || rc == -EBADMSG, "%d", rc);
        }
        cr_assert_eq(kit_write_all(&kit, &a), COUNT);
        cr_assert_eq(kit_write_all(&kit, &b), COUNT);
        for (uint64_t c = 0; c < COUNT; c++)
                cr_assert_eq(kit_read(&kit, &b, c), 0);
        kit_end(&kit);
        kit_version_end(&a);
        kit_version_end(&b);
}

Test(segment, headers_inside_payloads_are_not_believed)
{
        struct sheaf_disk_record forged = {
                .magic = SHEAF_DISK_RECORD_MAGIC,
                .layout = SHEAF_DISK_LAYOUT,
                .number = 1,
                .generation = 3,
                .stored_bytes = 64,
                .raw_bytes = 64,
                .offset_bytes = 8192,
        };
        uint8_t key[SHEAF_MAC_KEY_BYTES] = { 1 }, other[32] = { 2 };
        struct sheaf_mac *mac, *foreign;

        cr_assert_eq(sheaf_mac_new(key, &mac), 0);
        cr_assert_eq(sheaf_mac_new(other, &foreign), 0);
        cr_assert_eq(sheaf_record_check(mac, &forged, 1, 3, 8192), -EBADMSG);
        sheaf_mac_seal(foreign, &forged, sizeof(forged));
        cr_assert_eq(sheaf_record_check(mac, &forged, 1, 3, 8192), -EBADMSG);
        /* A true header counts at its own place and time only. */
        sheaf_mac_seal(mac, &forged, sizeof(forged));
        cr_assert_eq(sheaf_record_check(mac, &forged, 1, 3, 8192), 0);
        cr_assert_eq(sheaf_record_check(mac, &forged, 2, 3, 8192), -EBADMSG);
        cr_assert_eq(sheaf_record_check(mac, &forged, 1, 4, 8192), -EBADMSG);
        cr_assert_eq(sheaf_record_check(mac, &forged, 1, 3, 8256), -EBADMSG);
        sheaf_mac_free(mac);
        sheaf_mac_free(foreign);
}

Test(segment, idle_groups_give_way_and_live_ones_do_not)
{
        static uint64_t many[600];
        struct kit kit;
        struct kit_version a, b, c;
        uint64_t bytes, kept;

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(many); i++)
                many[i] = 100000;
        kit_begin(&kit, 96 * SHEAF_MIB);
        kit_version(&kit, &a, 1, 1, many, 600, 1);
        kit_version(&kit, &b, 2, 2, many, 600, 2);
        kit_version(&kit, &c, 3, 3, many, 600, 3);
        sheaf_store_group_live(kit.store, 1, true);
        kept = kit_write_all(&kit, &a);
        cr_assert_eq(kept, 600);
        sheaf_store_group_live(kit.store, 2, true);
        kit_write_all(&kit, &b);
        kept = sheaf_version_disk(b.version, &bytes);
        cr_assert_eq(sheaf_version_disk(a.version, &bytes), 600);
        cr_assert_lt(kept, 600);
        cr_assert_gt(kit_stats(&kit).refused_full, 0);
        cr_assert_leq(kit_du(kit.dir), 96 * SHEAF_MIB);
        /* All are live: the third gets nothing of theirs. */
        sheaf_store_group_live(kit.store, 3, true);
        kit_write_all(&kit, &c);
        cr_assert_eq(sheaf_version_disk(a.version, &bytes), 600);
        cr_assert_eq(sheaf_version_disk(b.version, &bytes), kept);
        /* The first is idle now. */
        sheaf_store_group_live(kit.store, 1, false);
        cr_assert_gt(kit_write_all(&kit, &c), 500);
        cr_assert_lt(sheaf_version_disk(a.version, &bytes), 100);
        cr_assert_eq(sheaf_version_disk(b.version, &bytes), kept);
        for (uint64_t i = 0; i < 600; i++) {
                int rc = kit_read(&kit, &c, i);

                cr_assert(rc == 0 || rc == -ENOENT);
                rc = kit_read(&kit, &a, i);
                cr_assert(rc == 0 || rc == -ENOENT, "%d", rc);
        }
        cr_assert_eq(kit_stats(&kit).bad_headers, 0);
        cr_assert_leq(kit_du(kit.dir), 96 * SHEAF_MIB);
        sheaf_store_group_drop(kit.store, 3);
        cr_assert_eq(sheaf_version_disk(c.version, &bytes), 0);
        cr_assert_eq(kit_read(&kit, &c, 0), -ENOENT);
        kit_end(&kit);
        kit_version_end(&a);
        kit_version_end(&b);
        kit_version_end(&c);
}

Test(segment, removed_tree_is_survived)
{
        struct kit kit;
        struct kit_version v;
        char command[256];
        static uint64_t many[300];

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(many); i++)
                many[i] = 100000;
        kit_begin(&kit, 128 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, many, 300, 1);
        cr_assert_eq(kit_write_all(&kit, &v), 300);
        snprintf(command, sizeof(command), "rm -rf %s/segments %s/plain",
                kit.dir, kit.dir);
        cr_assert_eq(system(command), 0);
        for (uint64_t c = 0; c < 300; c++) {
                int rc = kit_read(&kit, &v, c);

                cr_assert(rc == 0 || rc == -ENOENT, "%d", rc);
        }
        sheaf_store_group_drop(kit.store, 7);
        cr_assert_gt(kit_write_all(&kit, &v), 0);
        snprintf(command, sizeof(command), "rm -rf %s/*", kit.dir);
        cr_assert_eq(system(command), 0);
        kit_write_all(&kit, &v);
        for (uint64_t c = 0; c < 300; c++) {
                int rc = kit_read(&kit, &v, c);

                cr_assert(rc == 0 || rc == -ENOENT, "%d", rc);
        }
        kit_end(&kit);
        kit_version_end(&v);
}
