/* SPDX-License-Identifier: Apache-2.0 */
/* The LMDB environment of a cache directory: digest -> place, segments that
 * are in it, records, counters.
 *
 * Threads: the loop thread, except sheaf_catalog_apply, _record and _take, of
 * which one at a time may run on a pool thread. */
#ifndef SHEAF_DAEMON_STORE_CATALOG_H
#define SHEAF_DAEMON_STORE_CATALOG_H

#include "daemon/store/pending.h"

struct sheaf_catalog;

/* What the catalog knows of a segment whose records are all in it. */
struct sheaf_catalog_segment {
        uint32_t number, generation;
        uint64_t group, payload_bytes;
        uint32_t records;
        uint32_t unchecked; /* 0 or 1 */
};

/* @dir is made if missing. @map_bytes: first size of the map. -EBADMSG when
 * the database is damaged (the caller removes and makes it anew). */
SHEAF_MUST_CHECK int sheaf_catalog_open(const char *dir, uint64_t map_bytes,
        struct sheaf_catalog **ret_catalog);
void sheaf_catalog_close(struct sheaf_catalog *catalog);

/* 0; -ENOENT; -EIO. */
SHEAF_MUST_CHECK int sheaf_catalog_find(struct sheaf_catalog *catalog,
        const struct sheaf_digest *digest, struct sheaf_place *ret_place);

/* Commits sorted items (removals: place of all zero) and, when all of them are
 * durable, segments. 0; -EOVERFLOW: the map is full, call _grow on the loop
 * thread and repeat; -ENOSPC; -EIO; -ENOMEM. A failure may leave the first of
 * the items behind. */
SHEAF_MUST_CHECK int sheaf_catalog_apply(struct sheaf_catalog *catalog,
        const struct sheaf_pending_item *items, size_t count,
        const struct sheaf_catalog_segment *segments, size_t segment_count);
SHEAF_MUST_CHECK int sheaf_catalog_grow(struct sheaf_catalog *catalog);

/* Copies up to @max entries after @after in digest order; their number. */
size_t sheaf_catalog_scan(struct sheaf_catalog *catalog,
        const struct sheaf_digest *after, struct sheaf_pending_item *ret_items,
        size_t max);

int sheaf_catalog_each_segment(struct sheaf_catalog *catalog,
        int (*each)(void *arg, const struct sheaf_catalog_segment *segment),
        void *arg);

/* Records and counters: durable when they return. */
SHEAF_MUST_CHECK int sheaf_catalog_put(struct sheaf_catalog *catalog,
        const char *key, const void *value, size_t len_bytes);
SHEAF_MUST_CHECK int sheaf_catalog_del(
        struct sheaf_catalog *catalog, const char *key);
int sheaf_catalog_each(struct sheaf_catalog *catalog, const char *prefix,
        int (*each)(void *arg, const char *key, const void *value,
                size_t len_bytes),
        void *arg);
/* The first of @n numbers of a counter, from 1. */
SHEAF_MUST_CHECK int sheaf_catalog_next(struct sheaf_catalog *catalog,
        const char *counter, uint64_t n, uint64_t *ret_value);

/* The same on a pool thread, beside no other writer; the map does not grow
 * here: -EOVERFLOW, as sheaf_catalog_apply. Without a @value removes. */
SHEAF_MUST_CHECK int sheaf_catalog_record(struct sheaf_catalog *catalog,
        const char *key, const void *value, size_t len_bytes);
SHEAF_MUST_CHECK int sheaf_catalog_take(struct sheaf_catalog *catalog,
        const char *counter, uint64_t n, uint64_t *ret_first);

/* Bytes written to the database file since open; entries of the digest
 * table (also stale ones). */
uint64_t sheaf_catalog_written(const struct sheaf_catalog *catalog);
uint64_t sheaf_catalog_entries(struct sheaf_catalog *catalog);

#endif
