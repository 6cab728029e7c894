/* SPDX-License-Identifier: Apache-2.0 */
/* Reading ahead: whoever misses chunk after chunk in listing order (a copy, a
 * scan, a large file) gets the following ones fetched before it asks. Random
 * readers get nothing ahead. Pure; the window doubles as kernels do it. */
#ifndef SHEAF_DAEMON_FETCH_AHEAD_H
#define SHEAF_DAEMON_FETCH_AHEAD_H

#include "proto/listing.h"

#define SHEAF_AHEAD_CHUNKS_MAX 64

/* One reader's run; zero at the start. */
struct sheaf_ahead {
        uint64_t next_chunk;  /* where the run would go on */
        uint64_t until_chunk; /* fetched or asked for up to here */
        uint32_t run, window;
};

struct sheaf_ahead_item {
        uint32_t entry, index;
};

/* Notes a miss of chunk @index of file @entry and returns how many of the
 * chunks after it (in @ret_items) are worth fetching now: at most
 * SHEAF_AHEAD_CHUNKS_MAX and @bytes_max in all. */
size_t sheaf_ahead_miss(struct sheaf_ahead *ahead,
        const struct sheaf_listing *listing, uint32_t entry, uint32_t index,
        uint64_t bytes_max,
        struct sheaf_ahead_item ret_items[SHEAF_AHEAD_CHUNKS_MAX]);

#endif
