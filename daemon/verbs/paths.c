/* SPDX-License-Identifier: Apache-2.0 */
/* Marks the wanted entries once (children lie behind their parents, so one
 * pass carries a directory's mark down), then walks files in order.
 *
 * Threads: the caller's. */
#include "daemon/verbs/paths.h"

#define PREPARE_STEP 1024
#define PASSED_STEP  1024

static bool marked(const uint8_t *bits, uint32_t i)
{
        return bits[i / 8] & 1u << i % 8;
}

static void mark(uint8_t *bits, uint32_t i)
{
        bits[i / 8] |= (uint8_t)(1u << i % 8);
}

/* A further hard link of a file that the walk meets under another name. */
static bool is_repeat(const struct sheaf_walk *walk, uint32_t entry)
{
        const struct sheaf_listing *l = walk->listing;
        uint32_t first;

        if (!(l->entries[entry].flags & SHEAF_LISTING_HARDLINK) ||
                sheaf_listing_by_node(l, l->entries[entry].node, &first))
                return false;
        return first != entry && (!walk->wanted || marked(walk->wanted, first));
}

static bool takes(const struct sheaf_walk *walk, uint32_t entry)
{
        return (!walk->wanted || marked(walk->wanted, entry)) &&
               !is_repeat(walk, entry);
}

static void count(struct sheaf_walk *walk, uint32_t entry)
{
        uint64_t bytes = walk->listing->entries[entry].size_bytes;

        if (!takes(walk, entry))
                return;
        walk->files++;
        walk->chunks += sheaf_chunk_count(bytes);
        walk->bytes += bytes;
}

bool sheaf_walk_prepare(struct sheaf_walk *walk)
{
        const struct sheaf_listing *l = walk->listing;
        uint32_t end = walk->wanted ? l->entry_count : 0;

        for (int n = 0; n < PREPARE_STEP && !walk->ready; n++) {
                if (walk->marked < end) {
                        uint32_t i = walk->marked++;

                        if (i && marked(walk->wanted, l->entries[i].parent))
                                mark(walk->wanted, i);
                } else if (walk->counted < l->file_count) {
                        count(walk, l->files[walk->counted++]);
                } else {
                        walk->ready = true;
                }
        }
        return walk->ready;
}

int sheaf_walk_begin(struct sheaf_walk *walk,
        const struct sheaf_listing *listing, size_t count,
        const ProtobufCBinaryData *paths, size_t *ret_bad)
{
        *walk = (struct sheaf_walk){ .listing = listing };
        if (count) {
                walk->wanted = calloc(1, listing->entry_count / 8 + 1);
                if (!walk->wanted)
                        return -ENOMEM;
        }
        for (size_t i = 0; i < count; i++) {
                uint32_t entry;
                int rc = sheaf_listing_find(listing,
                        (const char *)paths[i].data, paths[i].len, &entry);

                if (rc) {
                        *ret_bad = i;
                        sheaf_walk_end(walk);
                        return rc;
                }
                mark(walk->wanted, entry);
        }
        return 0;
}

void sheaf_walk_end(struct sheaf_walk *walk)
{
        free(walk->wanted);
        walk->wanted = NULL;
}

enum sheaf_walked sheaf_walk_next(
        struct sheaf_walk *walk, uint32_t *ret_entry, uint32_t *ret_index)
{
        const struct sheaf_listing *l = walk->listing;

        for (int n = 0; walk->file < l->file_count;
                n++, walk->file++, walk->index = 0) {
                uint32_t entry = l->files[walk->file];

                if (n == PASSED_STEP)
                        return SHEAF_WALK_ON;
                if (walk->index == 0 && !takes(walk, entry))
                        continue;
                if (walk->index >=
                        sheaf_chunk_count(l->entries[entry].size_bytes))
                        continue;
                *ret_entry = entry;
                *ret_index = walk->index++;
                return SHEAF_WALK_CHUNK;
        }
        return SHEAF_WALK_END;
}
