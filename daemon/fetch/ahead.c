/* SPDX-License-Identifier: Apache-2.0 */
/* A run is a miss at most GAP chunks behind where the last one ended. What
 * was fetched ahead is hit without our seeing it, so the run goes on at the
 * first miss near the end of the window.
 *
 * Threads: the caller's. */
#include "daemon/fetch/ahead.h"

#define GAP        4
#define RUN_MIN    3
#define WINDOW_MIN 8

/* Steps to the chunk after (@entry, @index) in listing order. */
static bool step(
        const struct sheaf_listing *listing, struct sheaf_ahead_item *at)
{
        const struct sheaf_listing_entry *e = &listing->entries[at->entry];
        uint32_t file = e->file_ordinal;

        if (at->index + 1 < sheaf_chunk_count(e->size_bytes)) {
                at->index++;
                return true;
        }
        while (++file < listing->file_count) {
                at->entry = listing->files[file];
                at->index = 0;
                if (listing->entries[at->entry].size_bytes)
                        return true;
        }
        return false;
}

static size_t collect(struct sheaf_ahead *ahead,
        const struct sheaf_listing *listing, struct sheaf_ahead_item at,
        uint64_t bytes_max, struct sheaf_ahead_item *items)
{
        uint64_t bytes = 0;
        size_t count = 0;

        while (count < ahead->window && step(listing, &at)) {
                const struct sheaf_listing_entry *e =
                        &listing->entries[at.entry];

                bytes += sheaf_chunk_len(e->size_bytes, at.index);
                if (bytes > bytes_max)
                        break;
                ahead->until_chunk = e->first_chunk + at.index;
                items[count++] = at;
        }
        return count;
}

size_t sheaf_ahead_miss(struct sheaf_ahead *ahead,
        const struct sheaf_listing *listing, uint32_t entry, uint32_t index,
        uint64_t bytes_max,
        struct sheaf_ahead_item ret_items[SHEAF_AHEAD_CHUNKS_MAX])
{
        uint64_t chunk = listing->entries[entry].first_chunk + index;
        uint64_t end = SHEAF_MAX(ahead->next_chunk, ahead->until_chunk + 1);

        if (chunk >= ahead->next_chunk && chunk <= end + GAP &&
                ahead->next_chunk) {
                ahead->run++;
        } else {
                ahead->run = 0;
                ahead->window = 0;
                ahead->until_chunk = chunk;
        }
        ahead->next_chunk = chunk + 1;
        /* Still inside what was asked for: on its way already. */
        if (ahead->run < RUN_MIN || chunk < ahead->until_chunk)
                return 0;
        ahead->window = ahead->window ? SHEAF_MIN(2 * ahead->window,
                                                SHEAF_AHEAD_CHUNKS_MAX)
                                      : WINDOW_MIN;
        ahead->until_chunk = chunk;
        return collect(ahead, listing,
                (struct sheaf_ahead_item){ .entry = entry, .index = index },
                bytes_max, ret_items);
}
