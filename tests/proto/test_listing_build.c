/* SPDX-License-Identifier: Apache-2.0 */
/* Building listings: random trees as a property, bounds, inherited ids. */
#include "tests/proto/make_listing.h"

#include <criterion/criterion.h>
#include <stdio.h>

Test(listing_build, random_trees_hold_the_invariants)
{
        for (uint64_t seed = 1; seed <= 60; seed++) {
                struct block block;
                uint64_t chunks = 0;
                char path[64 * 1024];

                make_random(seed, (uint32_t)(seed * seed), 0, 3, &block);

                const struct sheaf_listing *v = &block.view;

                for (uint32_t i = 0; i < v->entry_count; i++) {
                        const struct sheaf_listing_entry *e = &v->entries[i];
                        uint32_t found;
                        size_t len =
                                sheaf_listing_path(v, i, path, sizeof(path));

                        cr_assert_lt(len, sizeof(path));
                        cr_assert_eq(
                                sheaf_listing_find(v, path, len, &found), 0);
                        cr_assert_eq(found, i);
                        cr_assert_eq(
                                sheaf_listing_by_node(v, e->node, &found), 0);
                        if (found == i && S_ISREG(e->mode)) {
                                cr_assert_eq(e->first_chunk, chunks);
                                chunks += sheaf_chunk_count(e->size_bytes);
                        } else if (found != i) {
                                cr_assert_eq(v->entries[found].first_chunk,
                                        e->first_chunk);
                        }
                        if (S_ISREG(e->mode))
                                cr_assert_eq(v->files[e->file_ordinal], i);
                }
                cr_assert_eq(chunks, v->chunk_count);
                block_free(&block);
        }
}

static struct sheaf_listing_builder *start(void)
{
        struct sheaf_listing_item root = make_item(S_IFDIR | 0755, "", 2, 0);
        struct sheaf_listing_builder *b;

        cr_assert_eq(sheaf_listing_builder_new(&root, &b), 0);
        return b;
}

Test(listing_build, what_cannot_be_listed_is_refused_and_leaves_no_trace)
{
        static const struct {
                uint32_t mode;
                const char *name;
                size_t len;
                uint64_t size;
                int rc;
        } bad[] = {
                { S_IFREG, "", 0, 0, -EINVAL },
                { S_IFREG, ".", 1, 0, -EINVAL },
                { S_IFREG, "..", 2, 0, -EINVAL },
                { S_IFREG, "a/b", 3, 0, -EINVAL },
                { S_IFREG, "a\0b", 3, 0, -EINVAL },
                { S_IFIFO, "f", 1, 0, -EINVAL },
                { S_IFCHR, "f", 1, 0, -EINVAL },
                { 0, "f", 1, 0, -EINVAL },
                { S_IFLNK, "f", 1, 0, -EINVAL },
                { S_IFREG, "f", 1, SHEAF_LISTING_FILE_BYTES_MAX + 1, -EFBIG },
        };
        struct sheaf_listing_builder *b = start();
        struct sheaf_listing_item good[2] = {
                make_item(S_IFREG | 0644, "x", 5, 1),
                make_item(S_IFREG | 0644, "...", 6, 1),
        };
        struct sheaf_listing_item twice[2] = { good[0], good[0] };
        struct block block;
        char long_name[257];

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(bad); i++) {
                struct sheaf_listing_item items[2] = { good[0],
                        make_item(bad[i].mode, "", 9, bad[i].size) };

                items[1].name = bad[i].name;
                items[1].name_len_bytes = bad[i].len;
                cr_assert_eq(sheaf_listing_builder_add_dir(b, 0, items, 2),
                        bad[i].rc, "case %zu", i);
        }
        memset(long_name, 'n', 256);
        long_name[256] = 0;
        twice[1].name = long_name;
        twice[1].name_len_bytes = 256;
        cr_assert_eq(sheaf_listing_builder_add_dir(b, 0, twice, 2), -EINVAL);
        twice[1] = good[0];
        cr_assert_eq(sheaf_listing_builder_add_dir(b, 0, twice, 2), -EEXIST);
        cr_assert_eq(sheaf_listing_builder_add_dir(b, 1, good, 2), -EINVAL);
        cr_assert_eq(sheaf_listing_builder_add_dir(b, 0, good, 2), 0);
        cr_assert_eq(sheaf_listing_builder_add_dir(b, 0, good, 2), -EINVAL);
        cr_assert_eq(sheaf_listing_builder_add_dir(b, 1, good, 2), -EINVAL);
        block_write(b, 1, &block);
        cr_assert_eq(block.view.entry_count, 3);
        block_free(&block);
}

Test(listing_build, odd_names_are_kept_as_bytes)
{
        static const char *const names[] = { "\n", "a\nb", " ", " x ", "-rf",
                "*", "%2F", "a+b", "a#b?c&d=e", "\xc3\xa9", "e\xcc\x81",
                "\xff\xfe", "\"", "\\", "...", "A", "a" };
        struct sheaf_listing_item items[SHEAF_ARRAY_LEN(names) + 1];
        size_t count = SHEAF_ARRAY_LEN(items);
        char long_name[256];
        struct block block;

        memset(long_name, 0xfe, 255);
        long_name[255] = 0;
        for (size_t i = 0; i < count; i++)
                items[i] = make_item(S_IFREG | 0644,
                        i < SHEAF_ARRAY_LEN(names) ? names[i] : long_name,
                        100 + i, i);

        struct sheaf_listing_builder *b = start();

        cr_assert_eq(sheaf_listing_builder_add_dir(b, 0, items, count), 0);
        block_write(b, 1, &block);
        for (size_t i = 0; i < count; i++) {
                uint32_t index;

                cr_assert_eq(sheaf_listing_find(&block.view, items[i].name,
                                     items[i].name_len_bytes, &index),
                        0);
                cr_assert_eq(block.view.entries[index].origin_ino, 100 + i);
        }
        block_free(&block);
}

Test(listing_build, an_empty_tree)
{
        struct block block;
        uint32_t index;

        block_write(start(), 1, &block);
        cr_assert_eq(block.view.entry_count, 1);
        cr_assert_eq(block.view.file_count, 0);
        cr_assert_eq(sheaf_listing_find(&block.view, "x", 1, &index), -ENOENT);
        block_free(&block);
}

Test(listing_build, owners_are_bounded)
{
        struct sheaf_listing_builder *b = start();
        size_t count = 65536;
        struct sheaf_listing_item *items = calloc(count, sizeof(*items));
        char(*names)[8] = calloc(count, 8);

        for (size_t i = 0; i < count; i++) {
                sprintf(names[i], "%zx", i);
                items[i] = make_item(S_IFREG, names[i], i, 0);
                items[i].uid = (uint32_t)i + 5000;
        }
        cr_assert_eq(
                sheaf_listing_builder_add_dir(b, 0, items, count), -EOVERFLOW);
        sheaf_listing_builder_free(b);
        free(items);
        free(names);
}

/* ---- inheritance ---- */

static size_t same_calls;

static void count_same(void *arg, uint32_t prev_index, uint32_t next_index)
{
        struct block *blocks = arg;
        const struct sheaf_listing_entry *p =
                &blocks[0].view.entries[prev_index];
        const struct sheaf_listing_entry *n =
                &blocks[1].view.entries[next_index];

        same_calls++;
        cr_assert(S_ISREG(p->mode) && S_ISREG(n->mode));
        cr_assert_eq(p->origin_ino, n->origin_ino);
        cr_assert_eq(p->size_bytes, n->size_bytes);
        cr_assert_eq(p->mtime_nsec, n->mtime_nsec);
}

static void inherit(struct block blocks[2])
{
        same_calls = 0;
        cr_assert_eq(sheaf_listing_inherit(&blocks[0].view, blocks[1].data,
                             &blocks[1].view, count_same, blocks),
                0);
        cr_assert_eq(sheaf_listing_open(blocks[1].data, blocks[1].len_bytes,
                             true, &blocks[1].view),
                0);
}

Test(listing_build, an_equal_tree_keeps_every_node)
{
        for (uint64_t seed = 1; seed < 20; seed++) {
                struct block blocks[2];

                make_random(seed, 500, 0, 1, &blocks[0]);
                make_random(seed, 500, 0, 2, &blocks[1]);
                inherit(blocks);
                cr_assert_eq(same_calls, blocks[1].view.file_count);
                for (uint32_t i = 0; i < blocks[1].view.entry_count; i++)
                        cr_assert_eq(blocks[0].view.entries[i].node,
                                blocks[1].view.entries[i].node);
                block_free(&blocks[0]);
                block_free(&blocks[1]);
        }
}

/* Through a chain of versions: a node id stays with its identity, and none
 * is ever given twice. */
static struct sheaf_listing_item file(const char *name, uint64_t ino)
{
        return make_item(S_IFREG | 0644, name, ino, ino);
}

static void make_flat(struct sheaf_listing_item *items, size_t count,
        uint64_t serial, struct block *ret_block)
{
        struct sheaf_listing_builder *b = start();

        cr_assert_eq(sheaf_listing_builder_add_dir(b, 0, items, count), 0);
        block_write(b, serial, ret_block);
}

static uint64_t node_of(const struct block *block, const char *path)
{
        uint32_t index;

        cr_assert_eq(
                sheaf_listing_find(&block->view, path, strlen(path), &index),
                0);
        return block->view.entries[index].node;
}

Test(listing_build, changed_files_get_new_nodes_and_others_keep_theirs)
{
        struct sheaf_listing_item v1[] = { file("a", 11), file("b", 12),
                file("c", 13), file("d", 14) };
        struct sheaf_listing_item v2[] = { file("0-new", 20), file("a", 11),
                file("b", 12), file("c", 99), file("moved", 14) };
        struct block blocks[2], third[2];

        v2[2].ctime_nsec++;
        make_flat(v1, 4, 1, &blocks[0]);
        make_flat(v2, 5, 2, &blocks[1]);
        inherit(blocks);
        cr_assert_eq(same_calls, 1);
        cr_assert_eq(node_of(&blocks[1], "a"), node_of(&blocks[0], "a"));
        cr_assert_eq(node_of(&blocks[1], "b"), sheaf_listing_node(2, 3));
        cr_assert_eq(node_of(&blocks[1], "c") >> 32, 2);
        cr_assert_eq(node_of(&blocks[1], "0-new") >> 32, 2);
        cr_assert_eq(node_of(&blocks[1], "moved") >> 32, 2);

        third[0] = blocks[1];
        make_flat(v2, 5, 3, &third[1]);
        inherit(third);
        cr_assert_eq(node_of(&third[1], "a"), node_of(&blocks[0], "a"));
        cr_assert_eq(node_of(&third[1], "b"), sheaf_listing_node(2, 3));
        block_free(&blocks[0]);
        block_free(&blocks[1]);
        block_free(&third[1]);
}

Test(listing_build, random_changes)
{
        for (uint64_t seed = 1; seed < 20; seed++) {
                struct block blocks[2];
                uint32_t kept = 0, fresh = 0;

                make_random(seed, 800, 0, 1, &blocks[0]);
                make_random(seed, 800, 7, 2, &blocks[1]);
                inherit(blocks);
                for (uint32_t i = 0; i < blocks[1].view.node_count; i++) {
                        uint64_t node =
                                blocks[1]
                                        .view.entries[blocks[1].view.nodes[i]]
                                        .node;

                        kept += node >> 32 == 1;
                        fresh += node >> 32 == 2;
                }
                cr_assert_gt(kept, 0);
                cr_assert_eq(kept + fresh + 1, blocks[1].view.node_count);
                block_free(&blocks[0]);
                block_free(&blocks[1]);
        }
}

/* Two names that were one inode part, and the other way round. */
Test(listing_build, hard_links_that_part_and_join)
{
        struct sheaf_listing_item joined[] = { file("a", 11), file("b", 11) };
        struct sheaf_listing_item parted[] = { file("a", 11), file("b", 11) };
        struct block blocks[2];

        joined[0].nlink = joined[1].nlink = 2;
        make_flat(joined, 2, 1, &blocks[0]);
        make_flat(parted, 2, 2, &blocks[1]); /* as two file systems' inodes */
        inherit(blocks);
        cr_assert_eq(node_of(&blocks[1], "a"), node_of(&blocks[0], "a"));
        cr_assert_neq(node_of(&blocks[1], "b"), node_of(&blocks[1], "a"));
        block_free(&blocks[0]);
        block_free(&blocks[1]);

        make_flat(parted, 2, 1, &blocks[0]);
        make_flat(joined, 2, 2, &blocks[1]);
        inherit(blocks);
        cr_assert_eq(node_of(&blocks[1], "a"), node_of(&blocks[0], "a"));
        cr_assert_eq(node_of(&blocks[1], "b"), node_of(&blocks[1], "a"));
        block_free(&blocks[0]);
        block_free(&blocks[1]);
}

Test(listing_build, a_type_that_changed_is_new)
{
        struct sheaf_listing_item v1[] = { make_item(S_IFDIR, "x", 11, 0) };
        struct sheaf_listing_item v2[] = { file("x", 11) };
        struct block blocks[2];

        make_flat(v1, 1, 1, &blocks[0]);
        make_flat(v2, 1, 2, &blocks[1]);
        inherit(blocks);
        cr_assert_eq(node_of(&blocks[1], "x") >> 32, 2);
        cr_assert_eq(sheaf_listing_inherit(&blocks[1].view, blocks[0].data,
                             &blocks[0].view, NULL, NULL),
                -EINVAL);
        block_free(&blocks[0]);
        block_free(&blocks[1]);
}
