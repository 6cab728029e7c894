/* SPDX-License-Identifier: Apache-2.0 */
/* Reading ahead: sequential readers get windows that grow, random ones
 * nothing, bounds hold, and the end of the listing is the end. */
#include "daemon/fetch/ahead.h"

#include <criterion/criterion.h>

#define FILES 1000

static struct sheaf_listing_entry entries[FILES + 1];
static uint32_t files[FILES];
static struct sheaf_listing listing;

static void setup(void)
{
        uint64_t chunk = 0;

        /* Every 7th file is empty, every 11th has three chunks. */
        for (uint32_t i = 0; i < FILES; i++) {
                uint64_t bytes = i % 7 == 0    ? 0
                                 : i % 11 == 0 ? 2 * SHEAF_CHUNK_BYTES_MAX + 5
                                               : 1000;

                entries[i + 1].mode = S_IFREG | 0644;
                entries[i + 1].size_bytes = bytes;
                entries[i + 1].first_chunk = chunk;
                entries[i + 1].file_ordinal = i;
                files[i] = i + 1;
                chunk += sheaf_chunk_count(bytes);
        }
        listing = (struct sheaf_listing){ .entries = entries,
                .files = files,
                .entry_count = FILES + 1,
                .file_count = FILES,
                .chunk_count = chunk };
}

TestSuite(ahead, .init = setup);

/* Reads all chunks in order; counts those that had to be asked for. */
static uint64_t misses_of_scan(uint64_t bytes_max, uint64_t *ret_ahead)
{
        struct sheaf_ahead ahead = { 0 };
        static bool there[4 * FILES];
        uint64_t misses = 0, fetched = 0;

        memset(there, 0, sizeof(there));
        for (uint32_t f = 0; f < FILES; f++) {
                const struct sheaf_listing_entry *e = &entries[files[f]];

                for (uint32_t c = 0; c < sheaf_chunk_count(e->size_bytes);
                        c++) {
                        struct sheaf_ahead_item items[SHEAF_AHEAD_CHUNKS_MAX];
                        size_t n;

                        if (there[e->first_chunk + c])
                                continue;
                        misses++;
                        n = sheaf_ahead_miss(&ahead, &listing, files[f], c,
                                bytes_max, items);
                        for (size_t i = 0; i < n; i++) {
                                const struct sheaf_listing_entry *a =
                                        &entries[items[i].entry];
                                uint64_t chunk =
                                        a->first_chunk + items[i].index;

                                cr_assert(S_ISREG(a->mode));
                                cr_assert(items[i].index <
                                          sheaf_chunk_count(a->size_bytes));
                                cr_assert(!there[chunk],
                                        "chunk %llu fetched twice",
                                        (unsigned long long)chunk);
                                there[chunk] = true;
                                fetched++;
                        }
                }
        }
        *ret_ahead = fetched;
        return misses;
}

Test(ahead, scan_waits_once_a_window)
{
        uint64_t fetched;
        uint64_t misses = misses_of_scan(UINT64_MAX, &fetched);

        cr_assert_eq(misses + fetched, listing.chunk_count);
        cr_assert(misses < listing.chunk_count / 20, "%llu misses",
                (unsigned long long)misses);
}

Test(ahead, random_reads_fetch_nothing)
{
        struct sheaf_ahead ahead = { 0 };
        struct sheaf_ahead_item items[SHEAF_AHEAD_CHUNKS_MAX];
        uint32_t state = 7;

        for (int i = 0; i < 2000; i++) {
                uint32_t f;

                do {
                        state = state * 1664525u + 1013904223u;
                        f = (state >> 8) % FILES;
                } while (!entries[files[f]].size_bytes);
                /* Runs of four in a row by chance are too rare here. */
                cr_assert_eq(sheaf_ahead_miss(&ahead, &listing, files[f], 0,
                                     UINT64_MAX, items),
                        0);
        }
}

Test(ahead, bytes_are_bounded)
{
        struct sheaf_ahead ahead = { 0 };
        struct sheaf_ahead_item items[SHEAF_AHEAD_CHUNKS_MAX];
        uint64_t bytes_max = 2500;

        for (uint32_t f = 0; f < FILES; f++) {
                uint64_t sum = 0;
                size_t n;

                if (!entries[files[f]].size_bytes)
                        continue;
                n = sheaf_ahead_miss(
                        &ahead, &listing, files[f], 0, bytes_max, items);
                cr_assert(n <= SHEAF_AHEAD_CHUNKS_MAX);
                for (size_t i = 0; i < n; i++)
                        sum += sheaf_chunk_len(
                                entries[items[i].entry].size_bytes,
                                items[i].index);
                cr_assert(sum <= bytes_max);
        }
}

Test(ahead, ends_with_the_listing)
{
        struct sheaf_ahead ahead = { 0 };
        struct sheaf_ahead_item items[SHEAF_AHEAD_CHUNKS_MAX];
        size_t n = 0;

        for (uint32_t f = FILES - 12; f < FILES; f++)
                if (entries[files[f]].size_bytes == 1000)
                        n = sheaf_ahead_miss(&ahead, &listing, files[f], 0,
                                UINT64_MAX, items);
        cr_assert_eq(n, 0);
}
