/* SPDX-License-Identifier: Apache-2.0 */
/* Reads that copy out, and what views share with them. Any thread. */
#ifndef SHEAF_CLIENT_READ_H
#define SHEAF_CLIENT_READ_H

#include "client/session.h"

/* Chunks fetched at a time: 64 MiB at most, little beside any ring. */
#define SHEAF_FETCH_WINDOW 16
/* How often eviction may win before the daemon is asked for a copy. */
#define SHEAF_VIEW_TRIES 4

/* Beside enum sheaf_view_flag: the chunks were just fetched, and counted as
 * misses. */
#define SHEAF_VIEW_FETCHED (1U << 8)

/* Copies a range that lies within the file to @dst, chunk by chunk, each
 * pinned for the moment of its copy. @flags: without SHEAF_VIEW_WAIT -EAGAIN
 * when something is not in memory. */
SHEAF_MUST_CHECK int sheaf_read_range(struct sheaf_dataset *dataset,
        uint32_t entry, void *dst, uint64_t len_bytes, uint64_t offset_bytes,
        unsigned int flags, int64_t deadline_ns);

/* An entry of the listing that is a regular file. -ERANGE: there is no such
 * entry; -EISDIR: it is no regular file. Lives as long as the dataset. */
SHEAF_MUST_CHECK int sheaf_dataset_regular(const struct sheaf_dataset *dataset,
        uint32_t entry, const struct sheaf_listing_entry **ret_entry);

/* The current map; with SHEAF_VIEW_WAIT waits for one, else -EAGAIN. */
SHEAF_MUST_CHECK int sheaf_map_wait(struct sheaf_dataset *dataset,
        unsigned int flags, int64_t deadline_ns, struct sheaf_map **ret_map);

/* Fetches up to SHEAF_FETCH_WINDOW items; the first failure, -ENOBUFS last
 * of all. */
SHEAF_MUST_CHECK int sheaf_fetch_window(struct sheaf_dataset *dataset,
        const uint64_t *items, size_t n, int64_t deadline_ns);

#endif
