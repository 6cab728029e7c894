/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the memory tier; only arena.c, extent.c, block.c, table.c,
 * reclaim.c, seg.c, stock.c and pins.c include it. Loop thread only.
 *
 *   segment states     FREE -> OPEN -> STOCK | RING -> (emptied) READY, OPEN
 *                      PARKED: removals left it mostly empty; has gaps
 *                      LINGER: its space is gone, its pins are not
 *                      GONE: its extent was dropped */
#ifndef SHEAF_DAEMON_STORE_ARENA_IMPL_H
#define SHEAF_DAEMON_STORE_ARENA_IMPL_H

#include "daemon/store/arena.h"
#include "proto/pin.h"

#define SHEAF_NONE UINT32_MAX

/* Blocks from here on keep their tag beside the segment, smaller ones in the
 * 64 bytes before them. So two 4 MiB chunks fit in 8 MiB, and a small block
 * costs the heap 32 bytes. */
#define SHEAF_BIG_SHIFT 20
#define SHEAF_BIG_BYTES (UINT32_C(1) << SHEAF_BIG_SHIFT)
#define SHEAF_BIG_ALIGN 512
#define SHEAF_TAG_BYTES 64

#define SHEAF_TABLES_MAX 65000

struct sheaf_block_tag {
        struct sheaf_digest digest;
        uint32_t block;
};

enum sheaf_block_state {
        SHEAF_BLOCK_FREE,
        SHEAF_BLOCK_FILLING,
        SHEAF_BLOCK_LIVE,
        SHEAF_BLOCK_KILLED, /* within a reclaim: word dead, not seen held */
        SHEAF_BLOCK_SEEN,   /* within a reclaim: word dead, seen held */
        SHEAF_BLOCK_DEAD,   /* released; still linked in its segment */
};

/* 28 bytes: an arena has millions. One reference is kept inline; more go to
 * the pool of references, and ref_chunk is then the first of them. */
struct sheaf_block_slot {
        uint32_t word_lo, word_hi;
        uint32_t len_bytes : 23;
        uint32_t state : 3;
        uint32_t tag6 : 6; /* of the digest, to skip most comparisons */
        uint32_t hash_next;
        uint32_t seg_next;
        uint32_t ref_chunk;
        uint16_t ref_table;
        uint16_t holds;
};
_Static_assert(sizeof(struct sheaf_block_slot) == 28, "memory per block");

#define SHEAF_REF_NONE UINT16_C(0xffff)
#define SHEAF_REF_MANY UINT16_C(0xfffe)

struct sheaf_ref {
        uint32_t chunk, next;
        uint16_t table, zero;
};

struct sheaf_gap {
        uint32_t offset_bytes, len_bytes;
};

enum sheaf_seg_state {
        SHEAF_SEG_FREE,
        SHEAF_SEG_OPEN,
        SHEAF_SEG_STOCK,
        SHEAF_SEG_RING,
        SHEAF_SEG_READY,
        SHEAF_SEG_PARKED,
        SHEAF_SEG_LINGER,
        SHEAF_SEG_GONE,
        SHEAF_SEG_MOVING, /* taken off its list, about to enter another */
};

struct sheaf_segment {
        struct sheaf_space *space;
        struct sheaf_block_tag *big; /* by offset >> SHEAF_BIG_SHIFT */
        struct sheaf_gap *gaps;      /* sorted; of OPEN, READY and PARKED */
        uint32_t gap_count, gap_cap;
        uint32_t next, prev; /* in its list */
        uint32_t stock_at;
        uint32_t block_first;
        uint32_t live, dead;    /* blocks; live counts filling ones */
        uint32_t filling, held; /* of the live: by writers, by the daemon */
        uint32_t live_bytes, payload_bytes;
        /* Of an open one: what is filled now, [slice, swept). Behind it all is
         * old and still serves hits, until the room is needed. */
        uint32_t slice, swept;
        uint8_t state;
        bool populated;
        bool was_stock; /* until it is put to another use */
};

struct sheaf_seglist {
        uint32_t head, tail, count;
};

struct sheaf_extent {
        int fd, lock_fd;
        uint8_t *map;     /* NULL once dropped */
        uint32_t waiters; /* clients and ghosts that still map it */
        enum sheaf_pages pages;
};

/* An anonymous mapping that grows; untouched pages cost nothing. */
struct sheaf_vec {
        void *p;
        size_t bytes;
};

struct sheaf_arena_pool {
        struct sheaf_arena_config config;
        struct sheaf_arena_shape shape;
        enum sheaf_pages pages;
        const char *pages_why;
        uint32_t collapse_pause; /* segments taken in small pages */
        uint64_t bytes_mapped, bytes_dropped_held;
        uint64_t refused; /* times that the system gave no memory */
        struct sheaf_arena *arenas;
};

/* Killed words by hash, and a bit for each in a filter that fits in the first
 * cache: nearly all of what a scan streams past ends there. */
struct sheaf_killed {
        uint8_t *filter; /* cap bytes: 16 bits a word */
        uint64_t *word;
        uint32_t *block;
        uint64_t cap, count; /* cap: power of two */
        unsigned int shift;
};

struct sheaf_arena {
        struct sheaf_arena_pool *pool;
        struct sheaf_arena *next;
        char *name;
        struct sheaf_extent *extents;
        uint32_t extent_end, extents_live;
        uint32_t segs_per_extent, segs_live;
        struct sheaf_segment *segs;
        struct sheaf_seglist free, linger;
        struct sheaf_space *spaces;
        uint32_t spaces_live;
        uint64_t random;

        struct sheaf_vec blocks, buckets, refs;
        uint32_t block_end, block_free, block_count;
        uint32_t ref_end, ref_free;
        uint32_t bucket_base, bucket_split; /* linear hashing */
        uint64_t generation;

        struct sheaf_table **tables;
        uint32_t table_cap, table_count;
        struct sheaf_pins *pins;
        struct sheaf_ghost *ghosts;
        uint64_t granted_bytes;
        struct sheaf_killed killed;
        uint32_t *orphans; /* blocks that only pins hold */
        uint32_t orphan_count, orphan_cap;
        struct sheaf_arena_stats stats;
};

#define SHEAF_SPACE_OPEN 2
struct sheaf_space {
        struct sheaf_arena *arena;
        struct sheaf_space *next;
        char *name;
        bool live;
        int64_t idle_since_ns;
        uint32_t open[SHEAF_SPACE_OPEN], turn;
        uint32_t easy; /* in a row emptied at the first try: pins fit */
        uint32_t *stock, stock_count, stock_cap;
        struct sheaf_seglist ring, ready, parked;
        uint32_t segs;
        uint64_t placed_blocks, placed_bytes, chunks_max;
        uint64_t ring_bytes; /* that its jobs want to flow */
        uint32_t room_max;   /* of a block */
};

struct sheaf_table {
        struct sheaf_arena *arena;
        struct sheaf_table_header *header;
        _Atomic uint64_t *words;
        uint64_t chunk_count, map_bytes, resident, resident_bytes;
        int fd;
        uint16_t id;
};

/* Dropped extents that a client or ghost still maps. */
struct sheaf_unmaps {
        uint32_t *extent;
        uint32_t count, cap;
};

struct sheaf_pins {
        struct sheaf_arena *arena;
        struct sheaf_pins *next, *prev;
        struct sheaf_hazard *hazard;
        int fd;
        uint64_t grant_bytes;
        struct sheaf_unmaps unmaps;
};

struct sheaf_ghost {
        struct sheaf_arena *arena;
        struct sheaf_ghost *next, *prev;
        _Atomic uint64_t *words; /* as the slots that they were */
        uint64_t word_count;
        struct sheaf_unmaps unmaps;
};

/* ---- extent.c ---- */

/* A sealed memfd of @bytes with the daemon's writable mapping and a locked
 * file. -ENOMEM, -EMFILE and others of the system. */
int sheaf_extent_make(
        struct sheaf_arena_pool *pool, struct sheaf_extent *ret_extent);
/* Another open file of the lock file, for reading, locked too. */
int sheaf_extent_lock(const struct sheaf_extent *extent, int *ret_fd);
/* Unmaps and closes; memory lives on while a client maps it. */
void sheaf_extent_close(
        struct sheaf_arena_pool *pool, struct sheaf_extent *extent);
/* Takes the pages of a range now; later writes cannot fail. */
int sheaf_extent_populate(struct sheaf_arena_pool *pool,
        const struct sheaf_extent *extent, uint64_t offset_bytes,
        uint64_t len_bytes);
/* What pages the system gives; @ret_why is static. */
int sheaf_extent_probe(enum sheaf_pages wish, enum sheaf_pages *ret_pages,
        const char **ret_why);
/* A memfd of @bytes, sealed against resizing (and against new writable
 * mappings with @read_only), mapped writable at *ret_map. */
int sheaf_extent_memfd(const char *name, uint64_t bytes, bool read_only,
        int *ret_fd, void **ret_map);

/* ---- arena.c ---- */

int sheaf_vec_reserve(struct sheaf_vec *vec, size_t bytes);
void sheaf_vec_free(struct sheaf_vec *vec);
/* Another extent, if the pool's budget has one left. */
int sheaf_arena_grow(struct sheaf_arena *arena);
/* Makes room in the pool at the cost of other arenas; true when some is free
 * at once. */
bool sheaf_arena_squeeze(struct sheaf_arena *arena);
/* An acknowledgement (or death) for a dropped extent. */
void sheaf_arena_unmapped(struct sheaf_arena *arena, uint32_t extent);
int sheaf_unmaps_add(struct sheaf_unmaps *unmaps, uint32_t extent);
void sheaf_unmaps_all(struct sheaf_arena *arena, struct sheaf_unmaps *unmaps);
uint64_t sheaf_arena_random(struct sheaf_arena *arena);
/* Number of segments that the pool could still give. */
uint64_t sheaf_arena_segs_left(const struct sheaf_arena *arena);

static inline void *sheaf_arena_at(
        const struct sheaf_arena *arena, uint64_t offset_bytes)
{
        uint64_t size = arena->pool->shape.extent_bytes;

        return arena->extents[offset_bytes / size].map + offset_bytes % size;
}

/* ---- block.c ---- */

static inline struct sheaf_block_slot *sheaf_block_at(
        const struct sheaf_arena *arena, sheaf_block block)
{
        return (struct sheaf_block_slot *)arena->blocks.p + block;
}

static inline uint64_t sheaf_block_word(const struct sheaf_block_slot *slot)
{
        return (uint64_t)slot->word_hi << 32 | slot->word_lo;
}

/* Bytes of a segment that a block of @len_bytes takes, with its tag. Big ones
 * among themselves begin where a disk can write them from. */
static inline uint32_t sheaf_block_room(uint32_t len_bytes)
{
        if (len_bytes < SHEAF_BIG_BYTES)
                return (uint32_t)sheaf_round_up(len_bytes, SHEAF_BLOCK_ALIGN) +
                       SHEAF_TAG_BYTES;
        return (uint32_t)sheaf_round_up(len_bytes, SHEAF_BIG_ALIGN);
}

/* Where a block's room begins: at its tag, if it has one there. */
static inline uint64_t sheaf_block_begin(const struct sheaf_block_slot *slot)
{
        uint64_t at = sheaf_word_offset_bytes(sheaf_block_word(slot));

        return slot->len_bytes < SHEAF_BIG_BYTES ? at - SHEAF_TAG_BYTES : at;
}

static inline uint32_t sheaf_block_seg(
        const struct sheaf_arena *arena, const struct sheaf_block_slot *slot)
{
        return (uint32_t)(sheaf_word_offset_bytes(sheaf_block_word(slot)) /
                          arena->pool->shape.segment_bytes);
}

static inline bool sheaf_block_named(const struct sheaf_block_slot *slot)
{
        return slot->ref_table != SHEAF_REF_NONE;
}

/* A filling block at @offset_bytes (of its room) in segment @seg. */
int sheaf_block_new(struct sheaf_arena *arena, uint32_t seg,
        uint64_t offset_bytes, uint32_t len_bytes, sheaf_block *ret_block);
/* Puts the index of a block that is linked nowhere back to the free ones. */
void sheaf_block_recycle(struct sheaf_arena *arena, sheaf_block block);
struct sheaf_block_tag *sheaf_block_tag(
        const struct sheaf_arena *arena, const struct sheaf_block_slot *slot);
/* The block of a word, or 0; @word may be anything. */
sheaf_block sheaf_block_of_word(const struct sheaf_arena *arena, uint64_t word);
int sheaf_block_index(struct sheaf_arena *arena, sheaf_block block,
        const struct sheaf_digest *digest);
void sheaf_block_unindex(struct sheaf_arena *arena, sheaf_block block);
/* Adds, removes a (table, chunk) that names the block. */
int sheaf_block_ref(struct sheaf_arena *arena, sheaf_block block,
        uint16_t table, uint32_t chunk);
void sheaf_block_unref(struct sheaf_arena *arena, sheaf_block block,
        uint16_t table, uint32_t chunk);
/* Sets all its words to 0, or all to the block's word. */
void sheaf_block_kill(struct sheaf_arena *arena, sheaf_block block);
void sheaf_block_show(struct sheaf_arena *arena, sheaf_block block);
/* Forgets a killed or filling block: its references, index entry and room.
 * The caller settles the segment. */
void sheaf_block_release(struct sheaf_arena *arena, sheaf_block block);

/* ---- reclaim.c ---- */

/* Empties segments @segs[0..n) with one scan: what nobody holds is released
 * and gaps are found. With @ret_full, a segment of which more than 75 % is
 * held, or which would have no gap of @room bytes, is left as it was and
 * marked there. -ENOMEM: nothing was emptied. */
int sheaf_reclaim_segs(struct sheaf_arena *arena, const uint32_t *segs,
        uint32_t n, uint32_t room, bool *ret_full);
/* The same for what begins in [@from, @to) of an open segment, which becomes
 * the slice that is filled. False: more than 75 % of it is held, or there
 * would be no gap of @room bytes; then all blocks are left as they were, and it
 * has no gaps now. */
bool sheaf_reclaim_slice(struct sheaf_arena *arena, uint32_t seg, uint32_t from,
        uint32_t to, uint32_t room);
/* Makes a gap of @room bytes between the pins of a segment of stock or ring,
 * where the least has to be released, and no more; it is the segment's only
 * gap then. False: there is none, and all is left as it was. */
bool sheaf_reclaim_hole(struct sheaf_arena *arena, uint32_t seg, uint32_t room);
/* Releases those of @blocks[0..n), named by no table, that nobody holds; the
 * others become orphans. */
void sheaf_reclaim_blocks(
        struct sheaf_arena *arena, const sheaf_block *blocks, uint32_t n);
/* After a client or ghost went: tries orphans and lingering segments. */
void sheaf_reclaim_retry(struct sheaf_arena *arena);
/* For a segment whose extent goes: kills and forgets its blocks, without a
 * scan, since whoever holds one keeps the memory mapped. */
void sheaf_reclaim_drop(struct sheaf_arena *arena, uint32_t seg);

static inline uint64_t sheaf_killed_hash(uint64_t word)
{
        return word * UINT64_C(0x9e3779b97f4a7c15);
}

/* ---- pins.c ---- */

/* Streams all hazard slots and ghosts past arena->killed; marks what is held
 * as SEEN and returns its bytes. */
uint64_t sheaf_pins_scan(struct sheaf_arena *arena);

/* ---- stock.c ---- */

uint32_t sheaf_space_open_count(const struct sheaf_space *space);

/* ---- seg.c ---- */

void sheaf_seglist_init(struct sheaf_seglist *list);
void sheaf_seglist_push(
        struct sheaf_arena *arena, struct sheaf_seglist *list, uint32_t seg);
/* Takes a segment off whatever list its state says it is in. */
void sheaf_seg_unlink(struct sheaf_arena *arena, uint32_t seg);
/* One gap over the whole segment, no blocks. */
int sheaf_seg_reset(struct sheaf_arena *arena, uint32_t seg);
/* Finds the gaps around the blocks that are neither dead nor killed. */
int sheaf_seg_find_gaps(struct sheaf_arena *arena, uint32_t seg);
/* Those that reach into [@from, @to), which becomes the slice that is filled.
 * What is put into others would go before its time: behind the slice is what
 * goes next, and before it what goes first in the next round. */
int sheaf_seg_find_slice_gaps(
        struct sheaf_arena *arena, uint32_t seg, uint32_t from, uint32_t to);
bool sheaf_seg_has_gap(const struct sheaf_segment *segment, uint32_t room);
/* Drops the dead blocks of its list. */
void sheaf_seg_sweep(struct sheaf_arena *arena, uint32_t seg);
/* After releases: frees an empty segment, parks a mostly empty one. */
void sheaf_seg_settle(struct sheaf_arena *arena, uint32_t seg);
void sheaf_seg_to_free(struct sheaf_arena *arena, uint32_t seg);
/* Gives [offset, +len) of an open or parked segment back. */
void sheaf_seg_gap_add(struct sheaf_arena *arena, uint32_t seg,
        uint32_t offset_bytes, uint32_t len_bytes);
/* Makes the space let go of an extent's segment. */
void sheaf_seg_disown(struct sheaf_arena *arena, uint32_t seg);

#endif
