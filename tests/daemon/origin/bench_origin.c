/* SPDX-License-Identifier: Apache-2.0 */
/* bench-origin DIR: time of a listing, then chunk reads a second of every
 * file below, warm. For docs/performance.md; asserts nothing. */
#include "daemon/clock.h"
#include "tests/daemon/origin/tree.h"

#include <fcntl.h>
#include <stdio.h>

#define FLYING SHEAF_ORIGIN_SLOTS

static struct tree tree;
static uint32_t next_file, finished;
static uint64_t bytes, errors;

static void next(struct sheaf_origin_read *read)
{
        if (next_file >= tree.listing.file_count)
                return;
        read->entry = tree.listing.files[next_file++];
        sheaf_origin_read(tree.origin, read);
}

static void on_read(struct sheaf_origin_read *read, int rc)
{
        finished++;
        if (rc < 0)
                errors++;
        else
                bytes += tree.listing.entries[read->entry].size_bytes;
        sheaf_origin_read_end(read);
        next(read);
}

int main(int argc, char **argv)
{
        static struct sheaf_origin_read reads[FLYING];
        struct tree_options options = { .reader = READER };
        int64_t begin_ns;

        if (argc != 2)
                return 2;
        tree.root_fd = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (tree.root_fd < 0 || uv_loop_init(&tree.loop))
                return 1;
        tree_origin(&tree, &options);
        for (int round = 0; round < 3; round++) {
                begin_ns = sheaf_now_ns();
                if (tree_list(&tree, false))
                        return 1;
                printf("list: %u entries, %.3f s\n", tree.listing.entry_count,
                        (double)(sheaf_now_ns() - begin_ns) / 1e9);
        }
        if (!tree.listing.chunk_count)
                return 0;
        for (int round = 0; round < 4; round++) {
                next_file = finished = 0;
                bytes = errors = 0;
                begin_ns = sheaf_now_ns();
                for (int i = 0; i < FLYING; i++) {
                        reads[i].listing = &tree.listing;
                        reads[i].done = on_read;
                        next(&reads[i]);
                }
                while (finished < tree.listing.file_count)
                        uv_run(&tree.loop, UV_RUN_ONCE);
                double s = (double)(sheaf_now_ns() - begin_ns) / 1e9;

                printf("read: %.0f chunks/s, %.0f MB/s, %lu errors\n",
                        finished / s, (double)bytes / 1e6 / s, errors);
        }
        return 0;
}
