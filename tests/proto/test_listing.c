/* SPDX-License-Identifier: Apache-2.0 */
/* Reading listings: golden bytes, what must be refused, lookups. */
#include "tests/proto/make_listing.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>

#define E(i)    (entries[i])
#define ENTRIES struct sheaf_listing_entry *entries = entries_of(data)
#define SECTION(n, type)                                                       \
        ((type *)((char *)data + header->section[n].offset_bytes))

static struct sheaf_listing_entry *entries_of(void *data)
{
        struct sheaf_listing_header *header = data;

        return SECTION(SHEAF_LISTING_ENTRIES, struct sheaf_listing_entry);
}

static void golden_file(char **ret_data, size_t *ret_len)
{
        int fd = open(GOLDEN "/listing-1.bin", O_RDONLY | O_CLOEXEC);

        cr_assert_geq(fd, 0, "no golden file");
        *ret_len = (size_t)lseek(fd, 0, SEEK_END);
        *ret_data = malloc(*ret_len);
        cr_assert_eq(pread(fd, *ret_data, *ret_len, 0), (ssize_t)*ret_len);
        close(fd);
}

Test(listing, golden_bytes)
{
        struct block block;
        char *golden;
        size_t len;

        make_golden(&block);
        golden_file(&golden, &len);
        cr_assert_eq(len, block.len_bytes);
        cr_assert_eq(memcmp(golden, block.data, len), 0,
                "layout 1 has changed: blocks on disks would be misread");
        free(golden);
        block_free(&block);
}

Test(listing, golden_fields)
{
        struct sheaf_listing view;
        char *golden;
        size_t len;

        golden_file(&golden, &len);
        cr_assert_eq(sheaf_listing_open(golden, len, true, &view), 0);
        cr_assert_eq(view.entry_count, 6);
        cr_assert_eq(view.file_count, 3);
        cr_assert_eq(view.node_count, 5);
        cr_assert_eq(view.chunk_count, 2);
        cr_assert_eq(view.header->payload_bytes, 5 << 20);
        cr_assert_eq(view.header->serial, 7);
        cr_assert_eq(view.entries[4].node, sheaf_listing_node(7, 1));
        cr_assert_eq(view.entries[4].flags, SHEAF_LISTING_HARDLINK);
        cr_assert_eq(view.entries[5].flags, SHEAF_LISTING_RECENT);
        cr_assert_eq(view.entries[5].first_chunk, 2);
        cr_assert_eq(view.owners[view.entries[5].owner].uid, 0);
        cr_assert_eq(sheaf_listing_ctime_sec(view.entries[1].ctime_packed),
                1700000001);
        free(golden);
}

/* One way to break a listing each. */
#define BREAK(name, statement)                                                 \
        static void break_##name(void *data)                                   \
        {                                                                      \
                struct sheaf_listing_header *header = data;                    \
                ENTRIES;                                                       \
                                                                               \
                (void)header;                                                  \
                (void)entries;                                                 \
                statement;                                                     \
        }
#define BREAKS(X)                                                              \
        X(magic, header->magic++)                                              \
        X(entry_bytes, header->entry_bytes = 64)                               \
        X(total_over, header->total_bytes += 8)                                \
        X(serial_zero, header->serial = 0)                                     \
        X(serial_high, header->serial = UINT64_C(1) << 31)                     \
        X(zero, header->zero[47] = 1)                                          \
        X(zero0, header->zero0[0] = 1)                                         \
        X(reserved, header->section[5].count = 1)                              \
        X(span_odd, header->section[2].offset_bytes += 4)                      \
        X(span_over, header->section[4].count = 1 << 20)                       \
        X(span_wraps, header->section[4].count = UINT64_MAX / 8 + 1)           \
        X(span_far, header->section[4].offset_bytes = UINT64_MAX - 7)          \
        X(span_laps, header->section[1].offset_bytes = 256)                    \
        X(no_entries, header->section[0].count = 0)                            \
        X(no_nodes, header->section[3].count = 0)                              \
        X(fewer_entries, header->section[0].count--)                           \
        X(fewer_files, header->section[2].count--)                             \
        X(fewer_nodes, header->section[3].count--)                             \
        X(chunks, header->chunk_count++)                                       \
        X(payload, header->payload_bytes--)                                    \
        X(root_file, E(0).mode = S_IFREG)                                      \
        X(root_node, E(0).node = 2)                                            \
        X(root_name, E(0).name_len_bytes = 1)                                  \
        X(root_parent, E(0).parent = 1)                                        \
        X(root_child, E(0).first_child = 0)                                    \
        X(child_self, E(2).first_child = 2)                                    \
        X(child_laps, E(2).first_child = 3)                                    \
        X(child_over, E(2).child_count = 3)                                    \
        X(child_many, E(2).child_count = UINT32_MAX)                           \
        X(child_few, E(2).child_count = 1)                                     \
        X(child_none, E(2).child_count = 0)                                    \
        X(parent, E(4).parent = 0)                                             \
        X(parent_far, E(4).parent = 1000)                                      \
        X(name_order, E(1).name_offset_bytes = E(3).name_offset_bytes)         \
        X(name_twice, E(2).name_offset_bytes = E(1).name_offset_bytes)         \
        X(name_far, E(1).name_offset_bytes = UINT32_MAX)                       \
        X(name_empty, E(5).name_len_bytes = 0)                                 \
        X(name_long, E(5).name_len_bytes = 255)                                \
        X(name_slash, SECTION(1, char)[E(5).name_offset_bytes] = '/')          \
        X(name_nul, SECTION(1, char)[E(1).name_offset_bytes] = 0)              \
        X(name_dot, SECTION(1, char)[E(1).name_offset_bytes] = '.')            \
        X(mode_fifo, E(5).mode = S_IFIFO)                                      \
        X(mode_none, E(5).mode = 0644)                                         \
        X(owner, E(5).owner = 2)                                               \
        X(mtime, E(5).mtime_nsec = 1000000000)                                 \
        X(ctime, E(5).ctime_packed |= (1 << 30) - 1)                           \
        X(flags, E(5).flags = 128)                                             \
        X(file_size, E(1).size_bytes = UINT64_MAX)                             \
        X(file_huge, E(5).size_bytes = SHEAF_LISTING_FILE_BYTES_MAX + 1)       \
        X(file_chunk, E(5).first_chunk = 1)                                    \
        X(file_shares, E(1).first_chunk = 1)                                   \
        X(file_ordinal, E(5).file_ordinal = 0)                                 \
        X(file_index, SECTION(2, uint32_t)[0] = 5)                             \
        X(file_index_far, SECTION(2, uint32_t)[0] = UINT32_MAX)                \
        X(dir_size, E(2).size_bytes = 1)                                       \
        X(dir_ordinal, E(2).file_ordinal = 1)                                  \
        X(dir_link, E(2).flags = SHEAF_LISTING_HARDLINK)                       \
        X(dir_closed, E(2).flags = SHEAF_LISTING_UNREADABLE)                   \
        X(file_closed, E(1).flags |= SHEAF_LISTING_UNREADABLE)                 \
        X(link_size, E(3).size_bytes = 2)                                      \
        X(link_empty, E(3).size_bytes = E(3).target_len_bytes = 0)             \
        X(link_far, E(3).target_offset_bytes = UINT32_MAX)                     \
        X(link_long, E(3).size_bytes = E(3).target_len_bytes = UINT32_MAX)     \
        X(link_nul, SECTION(1, char)[E(3).target_offset_bytes] = 0)            \
        X(link_ordinal, E(3).file_ordinal = 1)                                 \
        X(node_order, E(3).node += 3)                                          \
        X(node_future, E(5).node += UINT64_C(1) << 32)                         \
        X(node_zero, E(5).node = 5)                                            \
        X(node_shared, E(5).node = E(1).node)                                  \
        X(node_unsorted, SECTION(3, uint32_t)[1] = 2)                          \
        X(node_far, SECTION(3, uint32_t)[4] = UINT32_MAX)                      \
        X(node_later_link, SECTION(3, uint32_t)[1] = 4)                        \
        X(hard_flag, E(4).flags = 0)                                           \
        X(hard_first_flag, E(1).flags = 0)                                     \
        X(hard_size, E(4).size_bytes--)                                        \
        X(hard_ino, E(4).origin_ino++)                                         \
        X(hard_mtime, E(4).mtime_sec++)                                        \
        X(hard_ctime, E(4).ctime_packed++)                                     \
        X(hard_chunk, E(4).first_chunk = 1)
BREAKS(BREAK)

static const struct break_case {
        const char *name;
        void (*apply)(void *data);
} breaks[] = {
#define CASE(name, statement) { #name, break_##name },
        BREAKS(CASE)
#undef CASE
};

Test(listing, every_broken_invariant_is_refused)
{
        struct sheaf_listing view;
        struct block block;

        make_golden(&block);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(breaks); i++) {
                /* An exact copy, so that a sanitizer sees any overrun. */
                void *copy = malloc(block.len_bytes);

                memcpy(copy, block.data, block.len_bytes);
                breaks[i].apply(copy);
                cr_assert_neq(memcmp(copy, block.data, block.len_bytes), 0,
                        "%s changes nothing", breaks[i].name);
                cr_expect_eq(
                        sheaf_listing_open(copy, block.len_bytes, true, &view),
                        -EBADMSG, "%s", breaks[i].name);
                free(copy);
        }
        block_free(&block);
}

Test(listing, other_layouts_and_cut_blocks)
{
        struct sheaf_listing view;
        struct block block;

        make_golden(&block);
        for (size_t len = 0; len < block.len_bytes; len++) {
                void *copy = malloc(len + 1);

                memcpy(copy, block.data, len);
                cr_assert_eq(
                        sheaf_listing_open(copy, len, true, &view), -EBADMSG);
                cr_assert_eq(
                        sheaf_listing_open(copy, len, false, &view), -EBADMSG);
                free(copy);
        }
        ((struct sheaf_listing_header *)block.data)->layout = 2;
        cr_assert_eq(
                sheaf_listing_open(block.data, block.len_bytes, true, &view),
                -EPROTONOSUPPORT);
        block_free(&block);
}

static uint64_t rng = 1;

static uint64_t random64(void)
{
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        return rng;
}

/* Uses everything of an opened view; a sanitizer judges. */
static void use_all(const struct sheaf_listing *view)
{
        char path[512];
        struct stat st;

        for (uint32_t i = 0; i < view->entry_count; i++) {
                uint32_t found;
                size_t len = sheaf_listing_path(view, i, path, sizeof(path));

                sheaf_listing_stat(view, i, &st);
                if (len >= sizeof(path))
                        continue;
                cr_assert_eq(sheaf_listing_find(view, path, len, &found), 0);
                cr_assert_eq(found, i);
                cr_assert_eq(sheaf_listing_by_node(
                                     view, view->entries[i].node, &found),
                        0);
        }
}

Test(listing, damaged_bytes_are_refused_or_harmless)
{
        struct block block;
        size_t opened = 0;

        make_golden(&block);
        for (int round = 0; round < 100000; round++) {
                sheaf_autofree uint8_t *copy = malloc(block.len_bytes);
                struct sheaf_listing view;

                memcpy(copy, block.data, block.len_bytes);
                for (uint64_t n = random64() % 3 + 1; n; n--)
                        copy[random64() % block.len_bytes] =
                                (uint8_t)random64();
                if (sheaf_listing_open(copy, block.len_bytes, true, &view))
                        continue;
                opened++;
                use_all(&view);
        }
        /* Sizes, times, modes and names may change unnoticed. */
        cr_assert_gt(opened, 100);
        block_free(&block);
}

static int find(const struct sheaf_listing *view, const char *path)
{
        uint32_t index;
        int rc = sheaf_listing_find(view, path, strlen(path), &index);

        return rc ? rc : (int)index;
}

Test(listing, paths)
{
        char deep[300], path[8];
        struct block block;
        uint32_t index;

        make_golden(&block);
        cr_assert_eq(find(&block.view, ""), 0);
        cr_assert_eq(find(&block.view, "."), 0);
        cr_assert_eq(find(&block.view, "/"), 0);
        cr_assert_eq(find(&block.view, "a"), 1);
        cr_assert_eq(find(&block.view, "./a"), 1);
        cr_assert_eq(find(&block.view, "/a"), 1);
        cr_assert_eq(find(&block.view, "d//b"), 4);
        cr_assert_eq(find(&block.view, "d/./c"), 5);
        cr_assert_eq(find(&block.view, "d/"), 2);
        cr_assert_eq(find(&block.view, "d///"), 2);
        cr_assert_eq(find(&block.view, "a/"), -ENOTDIR);
        cr_assert_eq(find(&block.view, "a/."), -ENOTDIR);
        cr_assert_eq(find(&block.view, "a/x"), -ENOTDIR);
        cr_assert_eq(find(&block.view, "l/x"), -ENOTDIR);
        cr_assert_eq(find(&block.view, "x"), -ENOENT);
        cr_assert_eq(find(&block.view, "d/x"), -ENOENT);
        cr_assert_eq(find(&block.view, "aa"), -ENOENT);
        cr_assert_eq(find(&block.view, "d/.."), -EINVAL);
        cr_assert_eq(find(&block.view, ".."), -EINVAL);
        memset(deep, 'x', sizeof(deep));
        cr_assert_eq(
                sheaf_listing_find(&block.view, deep, 255, &index), -ENOENT);
        cr_assert_eq(sheaf_listing_find(&block.view, deep, 256, &index),
                -ENAMETOOLONG);
        cr_assert_eq(
                sheaf_listing_find(&block.view, "a\0", 2, &index), -ENOENT);
        cr_assert_eq(
                sheaf_listing_child(&block.view, 1, "a", 1, &index), -ENOTDIR);
        cr_assert_eq(sheaf_listing_by_node(&block.view, 99, &index), -ENOENT);

        cr_assert_eq(sheaf_listing_path(&block.view, 4, path, 8), 3);
        cr_assert_str_eq(path, "d/b");
        cr_assert_eq(sheaf_listing_path(&block.view, 4, path, 3), 3);
        cr_assert_eq(sheaf_listing_path(&block.view, 4, NULL, 0), 3);
        cr_assert_eq(sheaf_listing_path(&block.view, 0, path, 8), 0);
        cr_assert_str_eq(path, "");
        block_free(&block);
}

Test(listing, attributes)
{
        struct block block;
        struct stat st;
        size_t len;

        make_golden(&block);
        sheaf_listing_stat(&block.view, 1, &st);
        cr_assert_eq(st.st_ino, sheaf_listing_node(7, 1));
        cr_assert_eq(st.st_mode, (mode_t)(S_IFREG | 0644));
        cr_assert_eq(st.st_size, 5 << 20);
        cr_assert_eq(st.st_blocks, (5 << 20) / 512);
        cr_assert_eq(st.st_nlink, 2);
        cr_assert_eq(st.st_uid, 1000);
        cr_assert_eq(st.st_gid, 100);
        cr_assert_eq(st.st_mtim.tv_sec, 1700000000);
        cr_assert_eq(st.st_mtim.tv_nsec, 123456789);
        cr_assert_eq(st.st_ctim.tv_sec, 1700000001);
        cr_assert_eq(st.st_ctim.tv_nsec, 987654321);
        sheaf_listing_stat(&block.view, 0, &st);
        cr_assert_eq(st.st_ino, SHEAF_LISTING_NODE_ROOT);
        cr_assert_eq(
                memcmp(sheaf_listing_target(&block.view, 3, &len), "a", 1), 0);
        cr_assert_eq(len, 1);
        block_free(&block);
}

Test(listing, times_before_1970_and_far_ahead)
{
        static const int64_t secs[] = { -1, -5000000000, 0, 4102444800,
                8589934591 };

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(secs); i++) {
                uint64_t packed = sheaf_listing_pack_ctime(secs[i], 999999999);

                cr_assert_eq(sheaf_listing_ctime_sec(packed), secs[i]);
                cr_assert_eq(packed & ((1 << 30) - 1), 999999999);
        }
}
