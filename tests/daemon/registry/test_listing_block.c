/* SPDX-License-Identifier: Apache-2.0 */
/* A reader's claim becomes a sealed listing only when it is valid, and what
 * was written is what is read back. */
#include "daemon/registry/listing_block.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

static char dir[] = "/tmp/sheaf-block-XXXXXX";
static char path[64];
static const uint8_t uuid[16] = { 1, 2, 3 };

static void setup(void)
{
        cr_assert(mkdtemp(dir));
        snprintf(path, sizeof(path), "%s/listing", dir);
}

static void teardown(void)
{
        unlink(path);
        rmdir(dir);
}

TestSuite(listing_block, .init = setup, .fini = teardown);

static int claim(uint64_t serial, uint64_t size_of_b)
{
        struct sheaf_listing_item root = {
                .mode = S_IFDIR | 0755, .nlink = 2, .origin_ino = 1
        };
        struct sheaf_listing_item items[2] = {
                { .name = "a",
                        .name_len_bytes = 1,
                        .size_bytes = 10,
                        .origin_ino = 2,
                        .mode = S_IFREG | 0644,
                        .nlink = 1 },
                { .name = "b",
                        .name_len_bytes = 1,
                        .size_bytes = size_of_b,
                        .origin_ino = 3,
                        .mode = S_IFREG | 0644,
                        .nlink = 1 },
        };
        struct sheaf_listing_builder *builder;
        int fd = memfd_create("claim", MFD_CLOEXEC);

        cr_assert(fd >= 0);
        cr_assert_eq(sheaf_listing_builder_new(&root, &builder), 0);
        cr_assert_eq(sheaf_listing_builder_add_dir(builder, 0, items, 2), 0);
        cr_assert_eq(
                sheaf_listing_builder_write(builder, fd, serial, uuid, 0), 0);
        sheaf_listing_builder_free(builder);
        return fd;
}

static int import(int fd, const struct sheaf_listing *prev, uint64_t serial,
        struct sheaf_listing_block *block, struct sheaf_listing_pairs *pairs)
{
        return sheaf_listing_block_import(
                fd, prev, serial, uuid, path, block, pairs);
}

Test(listing_block, import_then_load_is_the_same)
{
        struct sheaf_listing_block block, again;
        struct sheaf_listing_pairs pairs;
        int fd = claim(7, 20);
        void *map;

        cr_assert_eq(import(fd, NULL, 7, &block, &pairs), 0);
        cr_assert_eq(block.listing.file_count, 2);
        cr_assert_eq(sheaf_listing_block_load(path, &block.digest, &again), 0);
        cr_assert_eq(block.len_bytes, again.len_bytes);
        cr_assert_eq(memcmp(block.map, again.map, block.len_bytes), 0);
        /* Sealed: nobody who gets the descriptor can write. */
        map = mmap(
                NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, block.memfd, 0);
        cr_assert_eq(map, MAP_FAILED);
        cr_assert_lt(pwrite(block.memfd, "x", 1, 0), 0);
        cr_assert_neq(ftruncate(block.memfd, 0), 0);
        sheaf_listing_block_clear(&block);
        sheaf_listing_block_clear(&again);
        close(fd);
}

Test(listing_block, other_serial_or_uuid_is_refused)
{
        struct sheaf_listing_block block;
        struct sheaf_listing_pairs pairs;
        int fd = claim(7, 20);

        cr_assert_eq(import(fd, NULL, 8, &block, &pairs), -EBADMSG);
        cr_assert_neq(access(path, F_OK), 0, "nothing may stay");
        close(fd);
}

Test(listing_block, every_damaged_byte_is_noticed_or_harmless)
{
        struct sheaf_listing_block block;
        struct sheaf_listing_pairs pairs;
        struct stat st;
        int fd = claim(7, 20);

        cr_assert_eq(fstat(fd, &st), 0);
        for (off_t at = 0; at < st.st_size; at++) {
                uint8_t byte, bad;

                cr_assert_eq(pread(fd, &byte, 1, at), 1);
                bad = byte ^ 0x80;
                cr_assert_eq(pwrite(fd, &bad, 1, at), 1);
                if (!import(fd, NULL, 7, &block, &pairs)) {
                        struct sheaf_listing full;

                        cr_assert_eq(sheaf_listing_open(block.map,
                                             block.len_bytes, true, &full),
                                0);
                        sheaf_listing_block_clear(&block);
                }
                cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
        }
        close(fd);
}

Test(listing_block, a_damaged_file_is_not_loaded)
{
        struct sheaf_listing_block block, again;
        struct sheaf_listing_pairs pairs;
        int fd = claim(7, 20), file;

        cr_assert_eq(import(fd, NULL, 7, &block, &pairs), 0);
        file = open(path, O_RDWR | O_CLOEXEC);
        cr_assert_eq(pwrite(file, "Z", 1, 300), 1);
        cr_assert_eq(sheaf_listing_block_load(path, &block.digest, &again),
                -EBADMSG);
        cr_assert_eq(ftruncate(file, 100), 0);
        cr_assert_eq(sheaf_listing_block_load(path, &block.digest, &again),
                -EBADMSG);
        close(file);
        close(fd);
        sheaf_listing_block_clear(&block);
}

Test(listing_block, update_keeps_unchanged_nodes)
{
        struct sheaf_listing_block one, two;
        struct sheaf_listing_pairs pairs;
        int fd = claim(7, 20), fd2 = claim(8, 21);
        uint32_t a1, a2, b1, b2;

        cr_assert_eq(import(fd, NULL, 7, &one, &pairs), 0);
        cr_assert_eq(import(fd2, &one.listing, 8, &two, &pairs), 0);
        cr_assert_eq(sheaf_listing_find(&one.listing, "a", 1, &a1), 0);
        cr_assert_eq(sheaf_listing_find(&two.listing, "a", 1, &a2), 0);
        cr_assert_eq(sheaf_listing_find(&one.listing, "b", 1, &b1), 0);
        cr_assert_eq(sheaf_listing_find(&two.listing, "b", 1, &b2), 0);
        cr_assert_eq(
                one.listing.entries[a1].node, two.listing.entries[a2].node);
        cr_assert_neq(
                one.listing.entries[b1].node, two.listing.entries[b2].node);
        for (size_t i = 0; i < pairs.count; i++)
                cr_assert_neq(pairs.pairs[i][1], b2);
        free(pairs.pairs);
        sheaf_listing_block_clear(&one);
        sheaf_listing_block_clear(&two);
        close(fd);
        close(fd2);
}

static const struct sheaf_digest *some_digest(void *arg, uint64_t chunk)
{
        return &((const struct sheaf_digest *)arg)[chunk];
}

Test(listing_block, root_digest_is_of_contents_not_times)
{
        struct sheaf_listing_block one, two;
        struct sheaf_listing_pairs pairs;
        struct sheaf_digest digests[2] = { { { 1 } }, { { 2 } } }, r1, r2, r3;
        int fd = claim(7, 20), fd2 = claim(9, 20);

        cr_assert_eq(import(fd, NULL, 7, &one, &pairs), 0);
        cr_assert_eq(import(fd2, NULL, 9, &two, &pairs), 0);
        cr_assert_eq(sheaf_listing_root_digest(
                             &one.listing, some_digest, digests, &r1),
                0);
        cr_assert_eq(sheaf_listing_root_digest(
                             &two.listing, some_digest, digests, &r2),
                0);
        cr_assert(sheaf_digest_equal(&r1, &r2), "version must not matter");
        digests[1].bytes[31] = 9;
        cr_assert_eq(sheaf_listing_root_digest(
                             &one.listing, some_digest, digests, &r3),
                0);
        cr_assert(!sheaf_digest_equal(&r1, &r3), "contents must matter");
        memset(&digests[1], 0, sizeof(digests[1]));
        cr_assert_eq(sheaf_listing_root_digest(
                             &one.listing, some_digest, digests, &r3),
                -ENODATA);
        sheaf_listing_block_clear(&one);
        sheaf_listing_block_clear(&two);
        close(fd);
        close(fd2);
}

Test(listing_block, an_update_that_found_nothing_is_the_same)
{
        struct sheaf_listing_block one, two, three;
        struct sheaf_listing_pairs pairs;
        int fd = claim(7, 20), fd2 = claim(8, 20), fd3 = claim(9, 21);

        cr_assert_eq(import(fd, NULL, 7, &one, &pairs), 0);
        cr_assert_eq(import(fd2, &one.listing, 8, &two, &pairs), 0);
        free(pairs.pairs);
        cr_assert_eq(import(fd3, &one.listing, 9, &three, &pairs), 0);
        free(pairs.pairs);
        cr_assert(sheaf_listing_same(&one.listing, &two.listing));
        cr_assert(!sheaf_listing_same(&one.listing, &three.listing));
        sheaf_listing_block_clear(&one);
        sheaf_listing_block_clear(&two);
        sheaf_listing_block_clear(&three);
        close(fd);
        close(fd2);
        close(fd3);
}
