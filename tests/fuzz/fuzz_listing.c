/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a listing: refused, or every accessor stays inside. */
#include "proto/listing.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct sheaf_listing *view)
{
        char path[1024];

        for (uint32_t i = 0; i < view->entry_count; i++) {
                uint32_t found;
                struct stat st;
                size_t len = sheaf_listing_path(view, i, path, sizeof(path));

                sheaf_listing_stat(view, i, &st);
                if (len < sizeof(path) &&
                        (sheaf_listing_find(view, path, len, &found) ||
                                found != i))
                        abort();
                if (sheaf_listing_by_node(view, st.st_ino, &found))
                        abort();
        }
        for (uint32_t i = 0; i < view->file_count; i++) {
                const struct sheaf_listing_entry *e =
                        &view->entries[view->files[i]];

                if (e->first_chunk + sheaf_chunk_count(e->size_bytes) >
                        view->chunk_count)
                        abort();
        }
}

/* The block inherits from a copy of itself of an earlier serial. */
static void inherit(const uint8_t *data, size_t size)
{
        sheaf_autofree uint8_t *next = malloc(size);
        struct sheaf_listing prev, view;

        if (!next || sheaf_listing_open(data, size, true, &prev))
                return;
        memcpy(next, data, size);
        ((struct sheaf_listing_header *)(void *)next)->serial++;
        if (sheaf_listing_open(next, size, true, &view))
                return;
        if (sheaf_listing_inherit(&prev, next, &view, NULL, NULL) ||
                sheaf_listing_open(next, size, true, &view))
                abort();
        use(&view);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        /* A copy: aligned, and with nothing behind its end. */
        sheaf_autofree uint8_t *copy = malloc(size ? size : 1);
        struct sheaf_listing view;

        if (!copy)
                return 0;
        memcpy(copy, data, size);
        if (!sheaf_listing_open(copy, size, true, &view)) {
                use(&view);
                inherit(copy, size);
        }
        return 0;
}
