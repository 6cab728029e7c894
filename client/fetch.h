/* SPDX-License-Identifier: Apache-2.0 */
/* The miss path: asking the daemon for chunks.
 *
 * An *item* is entry << 24 | index of the chunk in that file. Any thread. */
#ifndef SHEAF_CLIENT_FETCH_H
#define SHEAF_CLIENT_FETCH_H

#include "client/session.h"

/* Of one message: stays far below SHEAF_WIRE_BYTES_MAX. */
#define SHEAF_FETCH_ITEMS_MAX 4000

static inline uint64_t sheaf_fetch_item(uint32_t entry, uint64_t chunk_index)
{
        return (uint64_t)entry << 24 | chunk_index;
}

/* Has all @items brought into the arena. @ret_rc[i] becomes 0 when the word
 * of item i was set, else -errno (-ENOBUFS: no room now, ask for a copy).
 * Returns 0, or the -errno that failed the rest; the text is that of the last
 * failure. */
SHEAF_MUST_CHECK int sheaf_fetch(struct sheaf_dataset *dataset,
        const uint64_t *items, size_t n, int64_t deadline_ns, int *ret_rc);

/* Has the bytes of @items sent in a memfd, each at the next multiple of 64.
 * The descriptor is the caller's. Fails when one of them fails. */
SHEAF_MUST_CHECK int sheaf_fetch_copy(struct sheaf_dataset *dataset,
        const uint64_t *items, size_t n, int64_t deadline_ns, int *ret_fd);

/* Asks for @items without waiting for anything. 0; -EAGAIN when the daemon
 * is not there or takes no more now. */
SHEAF_MUST_CHECK int sheaf_fetch_hint(
        struct sheaf_dataset *dataset, const uint64_t *items, size_t n);

#endif
