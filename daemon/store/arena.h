/* SPDX-License-Identifier: Apache-2.0 */
/* The memory tier: one arena per domain, in memfds that clients map
 * read-only.
 *
 *   pool      the byte budget of all arenas of the daemon
 *   arena     one domain: extents (memfds) -> segments -> blocks
 *   space     one dataset's segments there: stock, ring, open, parked
 *   table     residency table of one (version, domain): the words
 *   pins      what one client process holds (its hazard array)
 *
 * Stock and ring: segments are filled once and kept as stock; a small FIFO
 * ring is recycled oldest first and refilled around pinned blocks only;
 * nothing is copied or compacted (docs/design/arena.md).
 *
 * Threads: every function is called on the loop thread, which alone writes
 * words. The bytes of a block between place and commit (or abort) belong to
 * whoever was given the pointer, on any one thread. */
#ifndef SHEAF_DAEMON_STORE_ARENA_H
#define SHEAF_DAEMON_STORE_ARENA_H

#include "proto/digest.h"
#include "proto/layout_shm.h"

struct sheaf_arena_pool;
struct sheaf_arena;
struct sheaf_space;
struct sheaf_table;
struct sheaf_pins;
struct sheaf_ghost;

enum sheaf_pages {
        SHEAF_PAGES_AUTO = 0, /* hugetlb if reserved, else THP, else 4 KiB */
        SHEAF_PAGES_HUGETLB,
        SHEAF_PAGES_THP,
        SHEAF_PAGES_SMALL,
};

struct sheaf_arena_config {
        uint64_t bytes_max;     /* of all arenas together, hard */
        uint64_t extent_bytes;  /* 0: derived, see sheaf_arena_shape */
        uint64_t segment_bytes; /* 0: derived */
        enum sheaf_pages pages;
        /* An extent of @arena with index @extent is new (fd is to be sent to
         * its clients) or is dropped (clients are to unmap and answer with
         * sheaf_pins_unmapped). Called inside place, shrink and pins calls. */
        void (*extent_new)(
                void *arg, struct sheaf_arena *arena, uint32_t extent);
        void (*extent_dropped)(
                void *arg, struct sheaf_arena *arena, uint32_t extent);
        void *arg;
};

struct sheaf_arena_shape {
        uint64_t bytes_max, extent_bytes, segment_bytes;
};

/* Sizes for a budget of @bytes_max: extents of about max(64 MiB, 1/64), at most
 * an eighth, so that little is left over; segments of 1/1024 as a power of two,
 * 8 to 64 MiB, but below 128 MiB an extent each, of 4 to 8 MiB. -ERANGE below
 * the least useful budget of 32 MiB (an error message names it). */
SHEAF_MUST_CHECK int sheaf_arena_shape(
        uint64_t bytes_max, struct sheaf_arena_shape *ret_shape);

SHEAF_MUST_CHECK int sheaf_arena_pool_new(
        const struct sheaf_arena_config *config,
        struct sheaf_arena_pool **ret_pool);
void sheaf_arena_pool_free(struct sheaf_arena_pool *pool);

/* Memory really taken for the pool, and how its pages are backed. */
struct sheaf_arena_pool_stats {
        uint64_t bytes_max, bytes_mapped, bytes_dropped_held;
        uint64_t refused; /* monotonic: the system gave no memory */
        enum sheaf_pages pages;
        const char *pages_why; /* static: cause of a fallback, or "" */
};
void sheaf_arena_pool_stats(const struct sheaf_arena_pool *pool,
        struct sheaf_arena_pool_stats *ret_stats);

/* An empty arena; memory is taken extent by extent as it fills. @name is
 * copied, for logs. Free it when it has no space, table or pins left. */
SHEAF_MUST_CHECK int sheaf_arena_new(struct sheaf_arena_pool *pool,
        const char *name, struct sheaf_arena **ret_arena);
void sheaf_arena_free(struct sheaf_arena *arena);

/* Extents live at index * extent_bytes of the clients' reserved range; an
 * index is never used twice in the life of an arena. -ENOENT once dropped.
 * Descriptors are borrowed. @ret_lock_fd is the daemon's own hold on the
 * extent's lock file, never to be sent. */
uint32_t sheaf_arena_extent_end(const struct sheaf_arena *arena);
SHEAF_MUST_CHECK int sheaf_arena_extent(const struct sheaf_arena *arena,
        uint32_t extent, int *ret_fd, int *ret_lock_fd);
/* A hold on that lock file for one client, which travels with the memfd, so
 * that a successor can see whether the extent is still mapped: an open file
 * of its own, for reading, locked. The caller closes it. -ENOENT once
 * dropped; -errno of open and flock. */
SHEAF_MUST_CHECK int sheaf_arena_extent_lock(
        const struct sheaf_arena *arena, uint32_t extent, int *ret_fd);

/* ---- spaces: a dataset's share of an arena ---- */

SHEAF_MUST_CHECK int sheaf_space_new(struct sheaf_arena *arena,
        const char *name, struct sheaf_space **ret_space);
/* Kills and releases all blocks; segments with pins linger until unpinned. */
void sheaf_space_free(struct sheaf_space *space);
/* Whether live clients use the dataset; an idle one gives way first. */
void sheaf_space_set_live(struct sheaf_space *space, bool live, int64_t now_ns);

/* Bytes of its stock: what stays, and is hit in every epoch. */
uint64_t sheaf_space_stock_bytes(const struct sheaf_space *space);

/* As many bytes should flow through the ring at once, beyond what it has by
 * itself: what jobs in step have between the first and the last of them. At
 * most a quarter of the space does. */
void sheaf_space_want_ring(struct sheaf_space *space, uint64_t bytes);

/* ---- blocks ---- */

/* A block index, stable while the block lives; 0 is none. */
typedef uint32_t sheaf_block;

/* Room for @len_bytes (1 .. SHEAF_CHUNK_BYTES_MAX). May recycle. The block is
 * *filling*: invisible, not recyclable. -ENOBUFS: nothing can be emptied now
 * (answer by copy). */
SHEAF_MUST_CHECK int sheaf_arena_place(struct sheaf_space *space,
        uint32_t len_bytes, sheaf_block *ret_block, void **ret_bytes);

/* The bytes are verified and complete: names the block by @digest and sets
 * the word of (@table, @chunk). When the arena already has a block with that
 * digest, the new one is released and the table joins the old one. Returns
 * the block that holds the bytes. */
sheaf_block sheaf_arena_commit(struct sheaf_space *space, sheaf_block block,
        const struct sheaf_digest *digest, struct sheaf_table *table,
        uint64_t chunk);
void sheaf_arena_abort(struct sheaf_space *space, sheaf_block block);

/* Block with that digest, or 0. */
sheaf_block sheaf_arena_find(
        const struct sheaf_arena *arena, const struct sheaf_digest *digest);
/* Makes @block visible as (@table, @chunk) too. 0; -ENOMEM. */
SHEAF_MUST_CHECK int sheaf_arena_join(struct sheaf_arena *arena,
        sheaf_block block, struct sheaf_table *table, uint64_t chunk);

/* Holds a block against recycling while the daemon itself reads it (a write
 * to disk, a copy for a client). Nested. */
const void *sheaf_arena_hold(
        struct sheaf_arena *arena, sheaf_block block, uint32_t *ret_len_bytes);
void sheaf_arena_unhold(struct sheaf_arena *arena, sheaf_block block);

/* ---- tables ---- */

/* @serial: of the version; every word starts 0. The memfd is sealed. */
SHEAF_MUST_CHECK int sheaf_table_new(struct sheaf_arena *arena, uint64_t serial,
        uint64_t chunk_count, struct sheaf_table **ret_table);
/* The memory of a table, made ahead: for a million chunks it takes its time.
 * @chunk_count, @huge (sheaf_table_huge) as the table's. Any thread; blocks. */
struct sheaf_table_pages {
        void *map; /* NULL: none */
        uint64_t bytes;
        int fd;
};
SHEAF_MUST_CHECK int sheaf_table_pages_new(
        uint64_t chunk_count, bool huge, struct sheaf_table_pages *ret_pages);
void sheaf_table_pages_free(struct sheaf_table_pages *pages);
bool sheaf_table_huge(const struct sheaf_arena_pool *pool);
/* As sheaf_table_new(); takes @pages, which were made for it, on success. */
SHEAF_MUST_CHECK int sheaf_table_new_of(struct sheaf_arena *arena,
        uint64_t serial, uint64_t chunk_count, struct sheaf_table_pages *pages,
        struct sheaf_table **ret_table);
/* Kills the table's words; blocks that no other table names are released. */
void sheaf_table_free(struct sheaf_table *table);
int sheaf_table_fd(const struct sheaf_table *table);
/* Block of a resident chunk, or 0. */
sheaf_block sheaf_table_block(const struct sheaf_table *table, uint64_t chunk);
/* Drops one chunk (evict): its word is killed; the block is released if no
 * other table names it and nobody holds it. True when it was resident. */
bool sheaf_table_evict(struct sheaf_table *table, uint64_t chunk);
uint64_t sheaf_table_resident(
        const struct sheaf_table *table, uint64_t *ret_bytes);

/* ---- pins ---- */

/* One client process: makes its hazard array. -EUSERS above
 * SHEAF_PINS_CLIENTS_MAX. */
#define SHEAF_PINS_CLIENTS_MAX 4096
SHEAF_MUST_CHECK int sheaf_pins_new(
        struct sheaf_arena *arena, struct sheaf_pins **ret_pins);
/* The client is dead: everything it held is free, except what ghosts hold. */
void sheaf_pins_free(struct sheaf_pins *pins);
int sheaf_pins_fd(const struct sheaf_pins *pins);
/* Bytes that this client may hold at once. At attach a client gets what
 * fits of @want_bytes; all grants of an arena stay below half of it. A grant
 * rises on request when there is room, and falls only by this call, by the
 * client's own wish. Returns the new grant. */
uint64_t sheaf_pins_grant(struct sheaf_pins *pins, uint64_t want_bytes);
/* The client has unmapped a dropped extent. */
void sheaf_pins_unmapped(struct sheaf_pins *pins, uint32_t extent);
/* Bytes held now, found by a scan; slow, for status and for finding a client
 * above its grant. */
uint64_t sheaf_pins_held(struct sheaf_pins *pins, uint64_t *ret_blocks);
/* The same of all clients and forks; a block counts once for each holder. */
uint64_t sheaf_arena_pinned_bytes(struct sheaf_arena *arena);
/* A fork: what @pins holds now stays held until the ghost is freed too. */
SHEAF_MUST_CHECK int sheaf_ghost_new(
        struct sheaf_pins *pins, struct sheaf_ghost **ret_ghost);
void sheaf_ghost_free(struct sheaf_ghost *ghost);

/* ---- figures ---- */

struct sheaf_arena_stats {
        uint64_t bytes, payload_bytes, blocks; /* now */
        uint64_t segments_stock, segments_ring, segments_open;
        uint64_t segments_free, segments_parked;
        uint64_t clients, ghosts, granted_bytes;
        /* monotonic */
        uint64_t placed_blocks, placed_bytes, evicted_blocks, evicted_bytes;
        uint64_t scans, scans_met_pin, scanned_slots, kept_blocks;
        uint64_t place_failures, scan_ns, scan_ns_max;
};
void sheaf_arena_stats(
        const struct sheaf_arena *arena, struct sheaf_arena_stats *ret_stats);

#endif
