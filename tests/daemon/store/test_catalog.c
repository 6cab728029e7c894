/* SPDX-License-Identifier: Apache-2.0 */
#include "kit.h"

#include <stdio.h>
#include <sys/stat.h>

static struct sheaf_digest digest_of(uint64_t n)
{
        struct sheaf_digest digest;

        sheaf_digest_of(&n, sizeof(n), &digest);
        return digest;
}

Test(catalog, batches_grow_the_map_and_are_found_again)
{
        char dir[] = "/var/tmp/sheaf-catalog-XXXXXX", path[128];
        struct sheaf_catalog *catalog;
        struct sheaf_pending pending = { 0 };
        struct sheaf_place place, none = { 0 };
        enum {
                N = 40000
        };

        cr_assert_not_null(mkdtemp(dir));
        snprintf(path, sizeof(path), "%s/catalog", dir);
        cr_assert_eq(sheaf_catalog_open(path, 128 * SHEAF_KIB, &catalog), 0);
        for (int batch = 0; batch < 3; batch++) {
                struct sheaf_pending_item *items;
                int rc, grown = 0;

                for (uint64_t i = 0; i < N; i++) {
                        struct sheaf_digest d =
                                digest_of(i * 3 + (uint64_t)batch);

                        place = (struct sheaf_place){ 1, 2, i };
                        cr_assert_eq(
                                sheaf_pending_put(&pending, &d, &place), 0);
                }
                cr_assert_eq(sheaf_pending_sorted(&pending, &items), 0);
                for (size_t i = 1; i < pending.count; i++)
                        cr_assert_lt(memcmp(&items[i - 1].digest,
                                             &items[i].digest, 32),
                                0);
                while ((rc = sheaf_catalog_apply(catalog, items, pending.count,
                                NULL, 0)) == -EOVERFLOW) {
                        cr_assert_eq(sheaf_catalog_grow(catalog), 0);
                        grown++;
                }
                cr_assert_eq(rc, 0);
                cr_assert(batch || grown);
                free(items);
                sheaf_pending_clear(&pending);
        }
        sheaf_catalog_close(catalog);
        cr_assert_eq(sheaf_catalog_open(path, 128 * SHEAF_KIB, &catalog), 0);
        cr_assert_eq(sheaf_catalog_entries(catalog), 3 * N);
        for (uint64_t i = 0; i < 3 * N; i += 7) {
                struct sheaf_digest d = digest_of(i);

                cr_assert_eq(sheaf_catalog_find(catalog, &d, &place), 0);
                cr_assert_eq(place.offset_bytes, i / 3);
        }
        struct sheaf_pending_item gone = { .digest = digest_of(5),
                .place = none };

        cr_assert_eq(sheaf_catalog_apply(catalog, &gone, 1, NULL, 0), 0);
        cr_assert_eq(
                sheaf_catalog_find(catalog, &gone.digest, &place), -ENOENT);
        sheaf_catalog_close(catalog);
        snprintf(path, sizeof(path), "rm -rf %s", dir);
        cr_assert_eq(system(path), 0);
}

/* Batches that touch every page of the tree: the file does not become as large
 * as two trees. */
Test(catalog, large_batches_need_little_room_beside_the_tree)
{
        char dir[] = "/var/tmp/sheaf-catalog-XXXXXX", path[128];
        struct sheaf_catalog *catalog;
        struct sheaf_pending pending = { 0 };
        struct sheaf_pending_item *items;
        struct stat st;
        off_t tree = 0;
        enum {
                N = 65536
        };

        cr_assert_not_null(mkdtemp(dir));
        snprintf(path, sizeof(path), "%s/catalog", dir);
        cr_assert_eq(sheaf_catalog_open(path, 64 * SHEAF_MIB, &catalog), 0);
        for (uint64_t i = 0; i < N; i++) {
                struct sheaf_digest d = digest_of(i);
                struct sheaf_place place = { 1, 1, i };

                cr_assert_eq(sheaf_pending_put(&pending, &d, &place), 0);
        }
        cr_assert_eq(sheaf_pending_sorted(&pending, &items), 0);
        for (uint32_t batch = 1; batch <= 4; batch++) {
                for (size_t i = 0; i < N; i++)
                        items[i].place.generation = batch;
                cr_assert_eq(
                        sheaf_catalog_apply(catalog, items, N, NULL, 0), 0);
                snprintf(path, sizeof(path), "%s/catalog/data.mdb", dir);
                cr_assert_eq(stat(path, &st), 0);
                if (batch == 1)
                        tree = st.st_size;
        }
        cr_assert_leq(st.st_size, tree + tree / 2, "%jd bytes, first %jd",
                (intmax_t)st.st_size, (intmax_t)tree);
        cr_assert_eq(sheaf_catalog_entries(catalog), N);
        free(items);
        sheaf_pending_clear(&pending);
        sheaf_catalog_close(catalog);
        snprintf(path, sizeof(path), "rm -rf %s", dir);
        cr_assert_eq(system(path), 0);
}

static int collect(
        void *arg, const char *key, const void *value, size_t len_bytes)
{
        char *text = arg;

        strcat(text, key);
        strcat(text, "=");
        strncat(text, value, len_bytes);
        strcat(text, ";");
        return 0;
}

Test(catalog, records_and_counters_survive)
{
        struct kit kit;
        char text[256] = "";
        uint64_t number;

        kit_begin(&kit, 64 * SHEAF_MIB);
        cr_assert_eq(sheaf_store_put(kit.store, "d/b", "2", 1), 0);
        cr_assert_eq(sheaf_store_put(kit.store, "d/a", "1", 1), 0);
        cr_assert_eq(sheaf_store_put(kit.store, "e/x", "9", 1), 0);
        cr_assert_eq(sheaf_store_put(kit.store, "d/c", "3", 1), 0);
        cr_assert_eq(sheaf_store_del(kit.store, "d/b"), 0);
        cr_assert_eq(sheaf_store_del(kit.store, "d/b"), -ENOENT);
        cr_assert_eq(sheaf_store_next(kit.store, "serial", &number), 0);
        cr_assert_eq(number, 1);
        kit_close(&kit);
        kit_open(&kit);
        cr_assert_eq(sheaf_store_each(kit.store, "d/", collect, text), 0);
        cr_assert_str_eq(text, "d/a=1;d/c=3;");
        *text = '\0';
        cr_assert_eq(sheaf_store_each(kit.store, "", collect, text), 0);
        cr_assert_str_eq(text, "d/a=1;d/c=3;e/x=9;");
        cr_assert_eq(sheaf_store_next(kit.store, "serial", &number), 0);
        cr_assert_gt(number, 1, "given twice");
        kit_end(&kit);
}

static void commit_all(struct kit *kit)
{
        do {
                sheaf_places_commit(kit->store, true);
                sheaf_disk_drain(kit->store->disk);
        } while (kit->store->commit_running || kit->store->pending.count);
}

/* Of segments that were given to others, the digests stay for a while. */
Test(catalog, dead_entries_go)
{
        enum {
                N = 100000,
                LIVING = 500
        };
        uint64_t sizes[LIVING];
        struct sheaf_place dead = { .container = 1 };
        struct kit kit;
        struct kit_version v;

        for (size_t i = 0; i < LIVING; i++)
                sizes[i] = 100 + i;
        kit_begin(&kit, 64 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, LIVING, 1);
        cr_assert_eq(kit_write_all(&kit, &v), LIVING);
        dead.generation = sheaf_segment_at(kit.store, 1)->generation - 1;
        for (uint64_t i = 0; i < N; i++) {
                struct sheaf_digest d = digest_of(i);

                dead.offset_bytes = i * SHEAF_DISK_PACK;
                sheaf_places_note(kit.store, &d, &dead);
        }
        commit_all(&kit);
        cr_assert_geq(sheaf_catalog_entries(kit.store->catalog), N);
        do {
                sheaf_catalog_sweep(kit.store);
                sheaf_disk_drain(kit.store->disk);
        } while (kit.store->sweep_running);
        commit_all(&kit);
        cr_assert_eq(sheaf_catalog_entries(kit.store->catalog), LIVING);
        for (uint64_t i = 0; i < LIVING; i++)
                cr_assert_eq(kit_read(&kit, &v, i), 0);
        kit_version_end(&v);
        kit_end(&kit);
}

/* Random digests put one by one would write some 20 KiB each. */
Test(catalog, small_chunks_cost_little)
{
        enum {
                N = 60000,
                BYTES = 2048
        };
        uint64_t *sizes = sheaf_new(uint64_t, N);
        struct kit kit;
        struct kit_version v;
        struct sheaf_store_stats stats;

        for (size_t i = 0; i < N; i++)
                sizes[i] = BYTES;
        kit_begin(&kit, SHEAF_GIB);
        kit_version(&kit, &v, 1, 7, sizes, N, 1);
        cr_assert_eq(kit_write_all(&kit, &v), N);
        sheaf_places_commit(kit.store, true);
        sheaf_disk_drain(kit.store->disk);
        stats = kit_stats(&kit);
        cr_assert_eq(stats.written_bytes, (uint64_t)N * BYTES);
        cr_assert_gt(stats.catalog_written_bytes, N * 48);
        cr_assert_leq(stats.catalog_written_bytes, 2 * stats.written_bytes);
        cr_log_info("catalog bytes a payload byte: %.3f, container %.3f",
                (double)stats.catalog_written_bytes /
                        (double)stats.written_bytes,
                (double)stats.container_written_bytes /
                        (double)stats.written_bytes);
        for (uint64_t c = 0; c < N; c += 997)
                cr_assert_eq(kit_read(&kit, &v, c), 0);
        kit_end(&kit);
        kit_version_end(&v);
        free(sizes);
}

static void damaged(const char *command_format)
{
        static const uint64_t sizes[] = { 1000, 100000, 5 << 20 };
        struct kit kit;
        struct kit_version v;
        char command[256];

        kit_begin(&kit, 64 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, 3, 1);
        cr_assert_eq(kit_write_all(&kit, &v), 4);
        cr_assert_eq(sheaf_store_put(kit.store, "d", "1", 1), 0);
        kit_close(&kit);
        snprintf(command, sizeof(command), "cd %s && %s", kit.dir,
                command_format);
        cr_assert_eq(system(command), 0);
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        cr_assert_eq(kit_write_all(&kit, &v), 4);
        for (uint64_t c = 0; c < 4; c++)
                cr_assert_eq(kit_read(&kit, &v, c), 0);
        cr_assert_eq(sheaf_store_put(kit.store, "d", "2", 1), 0);
        kit_end(&kit);
        kit_version_end(&v);
}

Test(catalog, damage_needs_no_hand)
{
        damaged("truncate -s 9000 catalog/data.mdb");
        damaged("truncate -s 0 catalog/data.mdb");
        damaged("rm -r catalog");
        damaged("printf x | dd of=catalog/data.mdb bs=1 seek=18 conv=notrunc "
                "status=none; printf x | dd of=catalog/data.mdb bs=1 "
                "seek=4114 conv=notrunc status=none");
        damaged("truncate -s 7 key");
        damaged("rm key");
}

static int remove_catalog(const char *path)
{
        char command[160];

        snprintf(command, sizeof(command), "rm -rf %s", path);
        return system(command);
}

static int same_large(
        void *arg, const char *key, const void *value, size_t len_bytes)
{
        const uint8_t *bytes = value;

        (void)key;
        cr_assert_eq(len_bytes % 1000, 7);
        for (size_t i = 0; i < len_bytes; i++)
                cr_assert_eq(bytes[i], (uint8_t)(i + len_bytes));
        ++*(int *)arg;
        return 0;
}

/* Records of any size come back, also those with pages of their own. */
Test(catalog, large_records_come_back)
{
        char dir[] = "/var/tmp/sheaf-catalog-XXXXXX", path[128], key[32];
        static uint8_t bytes[600007];
        struct sheaf_catalog *catalog;
        int count = 0, n = 0;

        cr_assert_not_null(mkdtemp(dir));
        snprintf(path, sizeof(path), "%s/catalog", dir);
        cr_assert_eq(sheaf_catalog_open(path, SHEAF_MIB, &catalog), 0);
        for (size_t len = 7; len <= sizeof(bytes);
                len = len * 2 / 1000 * 1000 + 1007) {
                for (size_t i = 0; i < len; i++)
                        bytes[i] = (uint8_t)(i + len);
                snprintf(key, sizeof(key), "dataset/%d", n++);
                cr_assert_eq(sheaf_catalog_put(catalog, key, bytes, len), 0);
        }
        cr_assert_eq(
                sheaf_catalog_each(catalog, "dataset/", same_large, &count), 0);
        cr_assert_eq(count, n);
        sheaf_catalog_close(catalog);
        cr_assert_eq(remove_catalog(path), 0);
        cr_assert_eq(rmdir(dir), 0);
}

static int pass(void *arg, const char *key, const void *value, size_t len_bytes)
{
        (void)arg;
        (void)key;
        (void)value;
        (void)len_bytes;
        return 0;
}

static int pass_segment(void *arg, const struct sheaf_catalog_segment *segment)
{
        (void)arg;
        (void)segment;
        return 0;
}

/* 1 when a call met damage, or the opening did. */
static unsigned int look_at_damaged(const char *path)
{
        static struct sheaf_pending_item items[400];
        struct sheaf_digest first = { 0 };
        struct sheaf_catalog *catalog;
        struct sheaf_place place;
        bool met;
        size_t n;
        int rc = sheaf_catalog_open(path, SHEAF_MIB, &catalog);

        cr_assert(rc == 0 || rc == -EBADMSG);
        if (rc)
                return 1;
        met = sheaf_catalog_each(catalog, "", pass, NULL) == -EBADMSG;
        rc = sheaf_catalog_each_segment(catalog, pass_segment, NULL);
        met |= rc == -EBADMSG;
        n = sheaf_catalog_scan(catalog, &first, items, SHEAF_ARRAY_LEN(items));
        for (size_t i = 0; i < n; i++) {
                rc = sheaf_catalog_find(catalog, &items[i].digest, &place);
                met |= rc == -EBADMSG;
        }
        for (int i = 0; i < 300; i++) {
                memset(&first, i % 251, sizeof(first));
                first.bytes[0] = (uint8_t)(i / 251);
                first.bytes[1] = (uint8_t)(i % 251 + 1);
                rc = sheaf_catalog_find(catalog, &first, &place);
                cr_assert(rc == 0 || rc == -ENOENT || rc == -EIO ||
                          rc == -EBADMSG);
                met |= rc == -EBADMSG;
        }
        sheaf_catalog_close(catalog);
        if (met)
                cr_assert_eq(sheaf_catalog_open(path, SHEAF_MIB, &catalog),
                        -EBADMSG);
        return met;
}

/* Every page of a database is damaged in turn, as a disk would: no call ends
 * the process, and what met damage is put aside by the next open. */
Test(catalog, damaged_pages_end_calls_and_not_the_process)
{
        char dir[] = "/var/tmp/sheaf-catalog-XXXXXX", path[128], file[160];
        struct sheaf_catalog *catalog;
        struct sheaf_pending_item items[300] = { 0 };
        unsigned int met = 0;

#if defined(__SANITIZE_THREAD__)
        printf("SKIP: damaged_pages: a jump out of a fault leaves "
               "ThreadSanitizer's own stack behind\n");
        return;
#endif
        cr_assert_not_null(mkdtemp(dir));
        snprintf(path, sizeof(path), "%s/catalog", dir);
        snprintf(file, sizeof(file), "%s/data.mdb", path);
        for (unsigned int page = 0; page < 12; page++) {
                uint8_t noise[64];
                FILE *data;

                cr_assert_eq(sheaf_catalog_open(path, SHEAF_MIB, &catalog), 0);
                for (size_t i = 0; i < SHEAF_ARRAY_LEN(items); i++) {
                        memset(&items[i].digest, (int)(i % 251), 32);
                        items[i].digest.bytes[0] = (uint8_t)(i / 251);
                        items[i].digest.bytes[1] = (uint8_t)(i % 251 + 1);
                        items[i].place.container = 1;
                }
                cr_assert_eq(sheaf_catalog_apply(catalog, items,
                                     SHEAF_ARRAY_LEN(items), NULL, 0),
                        0);
                cr_assert_eq(
                        sheaf_catalog_put(catalog, "dataset/1", "x", 1), 0);
                sheaf_catalog_close(catalog);
                /* Behind the page's number: flags, bounds, first offsets. */
                memset(noise, 0xa5 + (int)page, sizeof(noise));
                data = fopen(file, "r+");
                cr_assert_not_null(data);
                cr_assert_eq(fseek(data, page * 4096L + 10, SEEK_SET), 0);
                cr_assert_eq(fwrite(noise, 1, sizeof(noise), data), 64);
                cr_assert_eq(fclose(data), 0);
                met += look_at_damaged(path);
                cr_assert_eq(remove_catalog(path), 0);
        }
        cr_assert_gt(met, 0);
        cr_assert_eq(rmdir(dir), 0);
}
