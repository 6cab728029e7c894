/* SPDX-License-Identifier: Apache-2.0 */
/* Walks over paths visit each wanted chunk once, hard links once, and say
 * which path is not there. */
#include "daemon/verbs/paths.h"

#include <criterion/criterion.h>
#include <sys/mman.h>

static struct sheaf_listing listing;

/* /d1 {f1 (3 chunks), f2 empty}, /d2 {hard link to f1, f3 (1 chunk)} */
static void setup(void)
{
        struct sheaf_listing_item root = {
                .mode = S_IFDIR | 0755, .nlink = 2, .origin_ino = 1
        };
        struct sheaf_listing_item top[2] = {
                { .name = "d1",
                        .name_len_bytes = 2,
                        .origin_ino = 2,
                        .mode = S_IFDIR | 0755,
                        .nlink = 2 },
                { .name = "d2",
                        .name_len_bytes = 2,
                        .origin_ino = 3,
                        .mode = S_IFDIR | 0755,
                        .nlink = 2 },
        };
        struct sheaf_listing_item one[2] = {
                { .name = "f1",
                        .name_len_bytes = 2,
                        .origin_ino = 4,
                        .size_bytes = 2 * SHEAF_CHUNK_BYTES_MAX + 1,
                        .mode = S_IFREG | 0644,
                        .nlink = 2 },
                { .name = "f2",
                        .name_len_bytes = 2,
                        .origin_ino = 5,
                        .mode = S_IFREG | 0644,
                        .nlink = 1 },
        };
        struct sheaf_listing_item two[2] = { one[0],
                { .name = "f3",
                        .name_len_bytes = 2,
                        .origin_ino = 6,
                        .size_bytes = 9,
                        .mode = S_IFREG | 0644,
                        .nlink = 1 } };
        static const uint8_t uuid[16] = { 1 };
        struct sheaf_listing_builder *builder;
        int fd = memfd_create("listing", MFD_CLOEXEC);
        off_t len;
        void *map;

        cr_assert_eq(sheaf_listing_builder_new(&root, &builder), 0);
        cr_assert_eq(sheaf_listing_builder_add_dir(builder, 0, top, 2), 0);
        cr_assert_eq(sheaf_listing_builder_add_dir(builder, 1, one, 2), 0);
        cr_assert_eq(sheaf_listing_builder_add_dir(builder, 2, two, 2), 0);
        cr_assert_eq(sheaf_listing_builder_write(builder, fd, 1, uuid, 0), 0);
        sheaf_listing_builder_free(builder);
        len = lseek(fd, 0, SEEK_END);
        map = mmap(NULL, (size_t)len, PROT_READ, MAP_SHARED, fd, 0);
        cr_assert_neq(map, MAP_FAILED);
        cr_assert_eq(sheaf_listing_open(map, (size_t)len, true, &listing), 0);
}

TestSuite(paths, .init = setup);

static uint64_t walk(size_t count, const char *const *paths)
{
        ProtobufCBinaryData data[4];
        struct sheaf_walk w;
        uint32_t entry, index;
        uint64_t chunks = 0, bytes = 0;
        enum sheaf_walked walked;
        size_t bad;

        for (size_t i = 0; i < count; i++)
                data[i] = (ProtobufCBinaryData){ strlen(paths[i]),
                        (uint8_t *)paths[i] };
        cr_assert_eq(sheaf_walk_begin(&w, &listing, count, data, &bad), 0);
        while (!sheaf_walk_prepare(&w))
                ;
        while ((walked = sheaf_walk_next(&w, &entry, &index))) {
                if (walked == SHEAF_WALK_ON)
                        continue;
                chunks++;
                bytes += sheaf_listing_chunk_len(&listing, entry, index);
        }
        cr_assert_eq(chunks, w.chunks);
        cr_assert_eq(bytes, w.bytes);
        sheaf_walk_end(&w);
        return chunks;
}

Test(paths, everything_once)
{
        cr_assert_eq(walk(0, NULL), 4);
}

Test(paths, below_a_directory_and_single_files)
{
        cr_assert_eq(walk(1, (const char *const[]){ "d1" }), 3);
        cr_assert_eq(walk(1, (const char *const[]){ "d2" }), 4);
        cr_assert_eq(walk(1, (const char *const[]){ "d2/f3" }), 1);
        cr_assert_eq(walk(1, (const char *const[]){ "d1/f2" }), 0);
        cr_assert_eq(walk(2, (const char *const[]){ "d2", "d1/f1" }), 4);
        cr_assert_eq(walk(1, (const char *const[]){ "" }), 4);
}

Test(paths, missing_path_is_named)
{
        struct sheaf_walk w;
        size_t bad = 99;
        ProtobufCBinaryData data[2] = { { 2, (uint8_t *)"d1" },
                { 4, (uint8_t *)"nope" } };

        cr_assert_eq(sheaf_walk_begin(&w, &listing, 2, data, &bad), -ENOENT);
        cr_assert_eq(bad, 1);
}
