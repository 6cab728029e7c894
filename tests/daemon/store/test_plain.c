/* SPDX-License-Identifier: Apache-2.0 */
#include "kit.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

static const uint64_t sizes[] = { (9 << 20) + 77, 5 << 20 };

static int ask(struct kit *kit, struct kit_version *v, uint32_t file,
        int *ret_fd, struct sheaf_plain_lease **ret_lease)
{
        int rc = -EAGAIN;

        for (int i = 0; i < 200 && rc == -EAGAIN; i++) {
                rc = sheaf_store_plain(kit->store, v->version,
                        v->listing.files[file], ret_fd, ret_lease);
                if (rc == -EAGAIN)
                        kit_wait_ms(kit, 5);
        }
        return rc;
}

static void compare(const struct kit_version *v, int fd)
{
        static uint8_t right[4 << 20], have[4 << 20];

        for (uint64_t c = 0; c < 3; c++) {
                uint32_t len = kit_ref(v, c).len_bytes;

                kit_payload(v, c, right, len);
                cr_assert_eq(
                        pread(fd, have, len, (off_t)(c << 22)), (ssize_t)len);
                cr_assert_eq(memcmp(right, have, len), 0);
        }
}

Test(plain, complete_files_are_handed_out_read_only)
{
        struct kit kit;
        struct kit_version v;
        struct sheaf_plain_lease *lease;
        struct sheaf_chunk_ref ref;
        char path[64];
        int fd, rc;

        kit_begin(&kit, 64 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, 2, 1);
        cr_assert_eq(kit_write(&kit, &v, 0), 0);
        cr_assert_eq(kit_write(&kit, &v, 2), 0);
        cr_assert_eq(ask(&kit, &v, 0, &fd, &lease), -ENOENT);
        cr_assert_eq(kit_write(&kit, &v, 1), 0);
        rc = ask(&kit, &v, 0, &fd, &lease);
        if (rc == -EPERM) {
                kit_end(&kit);
                cr_skip_test("no right to make a mount");
        }
        cr_assert_eq(rc, 0);
        compare(&v, fd);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        cr_assert_eq(open(path, O_RDWR | O_CLOEXEC), -1);
        cr_assert_eq(errno, EROFS);
        ref = kit_ref(&v, 1);
        cr_assert_not(sheaf_store_evict(kit.store, &ref), "leased");
        sheaf_store_group_drop(kit.store, 7);
        cr_assert_gt(kit_stats(&kit).bytes_unlinked_open, 9 << 20);
        compare(&v, fd);
        close(fd);
        sheaf_plain_lease_end(lease);
        sheaf_disk_drain(kit.store->disk);
        cr_assert_eq(kit_stats(&kit).bytes_unlinked_open, 0);
        kit_end(&kit);
        kit_version_end(&v);
}

Test(plain, changed_files_are_hashed_again)
{
        struct kit kit;
        struct kit_version v;
        struct sheaf_plain_lease *lease;
        struct sheaf_place place;
        char path[128];
        int fd, rc;

        kit_begin(&kit, 64 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, 2, 1);
        cr_assert_eq(kit_write_all(&kit, &v), v.listing.chunk_count);
        rc = ask(&kit, &v, 0, &fd, &lease);
        if (rc == -EPERM) {
                kit_end(&kit);
                cr_skip_test("no right to make a mount");
        }
        close(fd);
        sheaf_plain_lease_end(lease);
        kit_close(&kit);
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        /* The mark is durable. */
        cr_assert_eq(sheaf_store_plain(kit.store, v.version, v.listing.files[0],
                             &fd, &lease),
                0);
        close(fd);
        sheaf_plain_lease_end(lease);
        kit_container(&kit, &v, 0, path, &place);
        cr_assert_eq(utimensat(AT_FDCWD, path, NULL, 0), 0);
        cr_assert_eq(sheaf_store_plain(kit.store, v.version, v.listing.files[0],
                             &fd, &lease),
                -EAGAIN);
        cr_assert_eq(ask(&kit, &v, 0, &fd, &lease), 0);
        compare(&v, fd);
        close(fd);
        sheaf_plain_lease_end(lease);
        /* A changed byte is found before the file is handed out. */
        fd = open(path, O_RDWR | O_CLOEXEC);
        cr_assert_eq(pwrite(fd, "x", 1, (4 << 20) + 9), 1);
        close(fd);
        cr_assert_eq(ask(&kit, &v, 0, &fd, &lease), -ENOENT);
        cr_assert_eq(kit_stats(&kit).bad_payloads, 1);
        cr_assert_eq(kit_read(&kit, &v, 1), -ENOENT);
        cr_assert_eq(kit_read(&kit, &v, 0), 0);
        cr_assert_eq(kit_write(&kit, &v, 1), 0);
        cr_assert_eq(ask(&kit, &v, 0, &fd, &lease), 0);
        compare(&v, fd);
        close(fd);
        sheaf_plain_lease_end(lease);
        kit_end(&kit);
        kit_version_end(&v);
}

Test(plain, damaged_truncated_and_deleted_files_are_misses)
{
        struct kit kit;
        struct kit_version v;
        struct sheaf_place place;
        char path[128];
        int fd;

        kit_begin(&kit, 64 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, 2, 1);
        cr_assert_eq(kit_write_all(&kit, &v), v.listing.chunk_count);
        kit_container(&kit, &v, 0, path, &place);
        fd = open(path, O_RDWR | O_CLOEXEC);
        cr_assert_eq(pwrite(fd, "y", 1, 5), 1);
        close(fd);
        cr_assert_eq(kit_read(&kit, &v, 0), -EBADMSG);
        cr_assert_eq(kit_read(&kit, &v, 0), -ENOENT);
        cr_assert_eq(kit_stats(&kit).bad_payloads, 1);
        cr_assert_eq(kit_write(&kit, &v, 0), 0);
        cr_assert_eq(kit_read(&kit, &v, 0), 0);
        cr_assert_eq(truncate(path, 5 << 20), 0);
        cr_assert_eq(kit_read(&kit, &v, 2), -EBADMSG);
        cr_assert_eq(kit_write(&kit, &v, 2), 0);
        cr_assert_eq(kit_read(&kit, &v, 2), 0);
        kit_close(&kit);
        cr_assert_eq(unlink(path), 0);
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        cr_assert_eq(kit_read(&kit, &v, 0), -ENOENT);
        cr_assert_eq(kit_write_all(&kit, &v), v.listing.chunk_count);
        for (uint64_t c = 0; c < v.listing.chunk_count; c++)
                cr_assert_eq(kit_read(&kit, &v, c), 0);
        kit_end(&kit);
        kit_version_end(&v);
}

static void wait_checked(struct kit *kit, const struct sheaf_plain *plain)
{
        for (int i = 0; i < 1000 && plain->checking; i++)
                kit_wait_ms(kit, 5);
        cr_assert_not(plain->checking);
}

/* A read finds the damage first, and the chunk is fetched again, all while
 * the check of the file is under way. */
Test(plain, damage_that_a_read_dropped_is_not_found_again_by_the_check)
{
        struct kit kit;
        struct kit_version v;
        struct sheaf_plain *plain;
        struct sheaf_chunk_ref ref;
        struct sheaf_place place;
        char path[128];
        int fd;

        kit_begin(&kit, 64 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, 2, 1);
        cr_assert_eq(kit_write_all(&kit, &v), v.listing.chunk_count);
        kit_container(&kit, &v, 0, path, &place);
        plain = sheaf_plain_find(kit.store, sheaf_place_node(&place));
        wait_checked(&kit, plain);
        for (int refetch = 0; refetch < 2; refetch++) {
                fd = open(path, O_RDWR | O_CLOEXEC);
                cr_assert_eq(pwrite(fd, "x", 1, (4 << 20) + 9), 1);
                close(fd);
                plain->marked = plain->fresh = false;
                sheaf_plain_check(kit.store, plain);
                cr_assert(plain->checking);
                /* The pool reads it; the loop learns of it below. */
                usleep(200000);
                ref = kit_ref(&v, 1);
                sheaf_store_bad(kit.store, &ref);
                cr_assert_eq(
                        kit_stats(&kit).bad_payloads, (uint64_t)refetch + 1);
                if (refetch)
                        cr_assert_eq(kit_write(&kit, &v, 1), 0);
                wait_checked(&kit, plain);
                cr_assert_eq(kit_stats(&kit).bad_payloads,
                        (uint64_t)refetch + 1, "counted once");
                if (!refetch)
                        cr_assert_eq(kit_write(&kit, &v, 1), 0);
                cr_assert_eq(kit_read(&kit, &v, 1), 0, "the new copy stays");
                wait_checked(&kit, plain);
        }
        kit_end(&kit);
        kit_version_end(&v);
}

/* Files that are being unlinked are written anew, all of them, and found
 * again. */
Test(plain, many_leave_and_come_back)
{
        enum {
                FILES = 200
        };
        uint64_t many[FILES];
        struct kit kit;
        struct kit_version v;

        for (size_t i = 0; i < FILES; i++)
                many[i] = (4 << 20) + 64;
        kit_begin(&kit, 64 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, many, FILES, 1);
        for (int round = 0; round < 3; round++) {
                for (uint64_t i = 0; i < FILES; i++)
                        cr_assert_eq(kit_write(&kit, &v, 2 * i + 1), 0);
                if (round == 2)
                        break;
                for (uint64_t i = 0; i < FILES; i++) {
                        struct sheaf_chunk_ref ref = kit_ref(&v, 2 * i + 1);

                        cr_assert(sheaf_store_evict(kit.store, &ref));
                }
                cr_assert_eq(kit_stats(&kit).chunks, 0);
        }
        for (uint64_t i = 0; i < FILES; i++)
                cr_assert_eq(kit_read(&kit, &v, 2 * i + 1), 0);
        sheaf_disk_drain(kit.store->disk);
        cr_assert_eq(kit_stats(&kit).bytes_unlinked_open, 0);
        kit_close(&kit);
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        cr_assert_eq(kit_stats(&kit).chunks, FILES);
        sheaf_store_group_drop(kit.store, 7);
        kit_close(&kit);
        kit_open(&kit);
        cr_assert_eq(kit_stats(&kit).chunks, 0, "what left came back");
        kit_end(&kit);
        kit_version_end(&v);
}

struct one_write {
        struct sheaf_store_write write; /* first */
        int rc;
};

static void note_end(struct sheaf_store_write *write, int rc)
{
        ((struct one_write *)write)->rc = rc;
}

/* Learns a chunk; its bytes, which the caller frees when it is written. */
static void *one_begin(
        struct kit_version *v, uint64_t chunk, struct one_write *ret_one)
{
        struct sheaf_chunk_ref ref = kit_ref(v, chunk);
        void *bytes = malloc(ref.len_bytes);
        struct sheaf_digest digest;

        kit_payload(v, chunk, bytes, ref.len_bytes);
        sheaf_digest_of(bytes, ref.len_bytes, &digest);
        sheaf_version_learn(v->version, chunk, &digest);
        *ret_one = (struct one_write){
                .write = { .ref = ref, .bytes = bytes, .done = note_end },
                .rc = 1
        };
        return bytes;
}

/* Writes a chunk for which there is no room before a file has left. */
static void write_that_waits(
        struct kit *kit, struct kit_version *v, uint64_t chunk)
{
        struct one_write one;
        void *bytes = one_begin(v, chunk, &one);
        uint64_t max = kit->store->bytes_max;

        kit->store->bytes_max = sheaf_space_used(kit->store) + SHEAF_MIB;
        sheaf_store_write(kit->store, &one.write);
        cr_assert_eq(kit->store->leave_writes, &one.write);
        while (one.rc == 1)
                uv_run(&kit->loop, UV_RUN_ONCE);
        kit->store->bytes_max = max;
        cr_assert_eq(one.rc, 0);
        free(bytes);
}

/* Nobody gives way while room is coming, and the limit holds meanwhile. */
Test(plain, room_that_is_coming_is_waited_for)
{
        static const uint64_t five[] = { 5 << 20, 5 << 20, 5 << 20 };
        const uint64_t limit = 36 * SHEAF_MIB;
        struct kit kit;
        struct kit_version v[3];
        uint64_t chunks;

        kit_begin(&kit, limit);
        for (uint32_t i = 0; i < 3; i++)
                kit_version(&kit, &v[i], i + 1, i + 7, five, 3, i + 1);
        chunks = v[0].listing.chunk_count;
        cr_assert_eq(kit_write_all(&kit, &v[0]), chunks);
        cr_assert_eq(kit_write_all(&kit, &v[1]), chunks);
        for (int round = 0; round < 4; round++) {
                struct kit_version *from = &v[round % 2 ? 2 : 0];
                struct kit_version *to = &v[round % 2 ? 0 : 2];

                for (uint64_t c = 0; c < chunks; c++) {
                        struct sheaf_chunk_ref ref = kit_ref(from, c);

                        sheaf_store_evict(kit.store, &ref);
                }
                write_that_waits(&kit, to, 0);
                for (uint64_t c = 1; c < chunks; c++) {
                        cr_assert_eq(kit_write(&kit, to, c), 0);
                        cr_assert_leq(kit_du(kit.dir), limit);
                }
        }
        for (uint64_t c = 0; c < chunks; c++)
                cr_assert_eq(kit_read(&kit, &v[1], c), 0);
        kit_end(&kit);
        for (uint32_t i = 0; i < 3; i++)
                kit_version_end(&v[i]);
}

/* What gives way to small writes leaves beside the loop; they wait for it,
 * so that the limit holds, and no more goes than must. */
Test(plain, give_way_to_small_writes)
{
        enum {
                SMALL = 40
        };
        static const uint64_t five[] = { 5 << 20, 5 << 20, 5 << 20 };
        const uint64_t limit = 24 * SHEAF_MIB;
        uint64_t small[SMALL];
        struct kit kit;
        struct kit_version v[3];
        unsigned int waited = 0, kept = 0;

        for (size_t i = 0; i < SMALL; i++)
                small[i] = 400000;
        kit_begin(&kit, limit);
        kit_version(&kit, &v[0], 1, 7, five, 3, 1);
        kit_version(&kit, &v[1], 2, 8, small, SMALL, 2);
        kit_version(&kit, &v[2], 3, 9, small, SMALL, 3);
        cr_assert_eq(kit_write_all(&kit, &v[0]), v[0].listing.chunk_count);
        for (uint64_t c = 0; c < SMALL; c++) {
                struct one_write one, other = { .rc = 0 };
                void *bytes = one_begin(&v[1], c, &one), *others = NULL;

                sheaf_store_write(kit.store, &one.write);
                while (one.rc == 1 || other.rc == 1) {
                        /* Another dataset wants room at that moment. */
                        if (kit.store->giving_way && !others) {
                                others = one_begin(&v[2], waited++, &other);
                                sheaf_store_write(kit.store, &other.write);
                        }
                        cr_assert_leq(kit.store->giving_way, 1);
                        cr_assert_leq(sheaf_space_used(kit.store) +
                                              kit.store->reserved_bytes,
                                limit);
                        uv_run(&kit.loop, UV_RUN_ONCE);
                }
                cr_assert(!one.rc && !other.rc, "%d %d", one.rc, other.rc);
                cr_assert_leq(kit_du(kit.dir), limit);
                free(bytes);
                free(others);
        }
        cr_assert_gt(waited, 0, "nothing gave way");
        for (uint64_t c = 0; c < v[0].listing.chunk_count; c++)
                kept += !kit_read(&kit, &v[0], c);
        cr_assert_eq(kept, 2, "one file is left: %u chunks", kept);
        /* Many at once, and what waits when the store closes. */
        sheaf_store_group_live(kit.store, 8, true);
        kit_write_all(&kit, &v[2]);
        cr_assert_leq(kit_du(kit.dir), limit);
        cr_assert_eq(kit.store->giving_way, 0);
        kit_end(&kit);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(v); i++)
                kit_version_end(&v[i]);
}

/* A lower limit holds from the start, when all there is are plain files, too;
 * they leave beside it. */
Test(plain, give_way_to_the_limit)
{
        struct kit kit;
        struct kit_version v;

        kit_begin(&kit, 64 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, 2, 1);
        cr_assert_eq(kit_write_all(&kit, &v), 5);
        kit_version_end(&v);
        kit_close(&kit);
        kit.config.bytes_max = 10 * SHEAF_MIB;
        kit_open(&kit);
        sheaf_disk_drain(kit.store->disk);
        cr_assert_leq(kit_du(kit.dir), kit.config.bytes_max);
        cr_assert_leq(kit_stats(&kit).bytes_used, kit.config.bytes_max);
        kit_end(&kit);
}

/* A whole file that a stop left unchecked is marked though nobody asks. */
Test(plain, whole_files_are_checked_behind)
{
        struct kit kit;
        struct kit_version v;
        struct sheaf_plain *plain;
        struct sheaf_place place;
        char path[128];

        kit_begin(&kit, 64 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, 2, 1);
        cr_assert_eq(kit_write_all(&kit, &v), v.listing.chunk_count);
        kit_container(&kit, &v, 0, path, &place);
        plain = sheaf_plain_find(kit.store, sheaf_place_node(&place));
        wait_checked(&kit, plain);
        cr_assert(plain->marked);
        /* As a start finds it whose predecessor was killed before that. */
        plain->marked = plain->fresh = false;
        plain->checked_ns = 0;
        for (int i = 0; i < 400 && !plain->marked; i++)
                kit_wait_ms(&kit, 50);
        cr_assert(plain->marked);
        cr_assert_eq(kit_stats(&kit).bad_payloads, 0);
        kit_end(&kit);
        kit_version_end(&v);
}
