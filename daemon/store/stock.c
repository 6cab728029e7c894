/* SPDX-License-Identifier: Apache-2.0 */
/* A dataset's share of an arena: stock and ring (docs/design/arena.md).
 *
 *  1 stock is filled once and kept; all else flows through the ring, oldest
 *    out first; nothing is copied or compacted
 *  2 a segment whose pins would leave no gap for what is asked is not emptied
 *    at all: it goes on serving hits, stock stays stock, and smaller blocks
 *    may empty it
 *  3 one placement empties a bounded number of segments, then gives up: the
 *    loop never waits for clients
 *
 * Where memory comes from, in this order: free segments, free budget, parked
 * gaps, idle spaces, spaces above their fair share, the own ring, parked
 * segments, own stock, the place of some blocks of own stock. Loop thread. */
#include "daemon/store/arena_impl.h"

#include <assert.h>

#define RING_LEAST         3
#define BATCH_MAX          8
#define TRIES_MAX          6 /* of each kind, in one placement */
#define BATCH_BYTES        (64 * SHEAF_MIB)
#define EASY_LEAST         2
#define SLICES_MAX         8 /* of a segment */
#define SLICE_SHARE        64
#define LARGE_SHARE        4   /* of a slice */
#define RING_SHARE_INVERSE 200 /* 0.5 % of the dataset */

int sheaf_space_new(struct sheaf_arena *arena, const char *name,
        struct sheaf_space **ret_space)
{
        sheaf_autofree struct sheaf_space *space =
                sheaf_new(struct sheaf_space, 1);

        if (!space)
                return -ENOMEM;
        space->name = strdup(name);
        if (!space->name)
                return -ENOMEM;
        space->arena = arena;
        for (int i = 0; i < SHEAF_SPACE_OPEN; i++)
                space->open[i] = SHEAF_NONE;
        sheaf_seglist_init(&space->ring);
        sheaf_seglist_init(&space->ready);
        sheaf_seglist_init(&space->parked);
        space->next = arena->spaces;
        arena->spaces = space;
        *ret_space = sheaf_steal(&space);
        return 0;
}

void sheaf_space_free(struct sheaf_space *space)
{
        struct sheaf_space **at;
        struct sheaf_arena *arena;

        if (!space)
                return;
        arena = space->arena;
        for (uint32_t i = 0; i < arena->extent_end * arena->segs_per_extent;
                i++) {
                struct sheaf_segment *segment = &arena->segs[i];

                if (segment->space != space)
                        continue;
                sheaf_seg_disown(arena, i);
                segment->state = SHEAF_SEG_LINGER;
                sheaf_seglist_push(arena, &arena->linger, i);
        }
        sheaf_reclaim_retry(arena);
        for (at = &arena->spaces; *at != space; at = &(*at)->next)
                ;
        *at = space->next;
        arena->spaces_live -= space->live;
        free(space->stock);
        free(space->name);
        free(space);
}

void sheaf_space_set_live(struct sheaf_space *space, bool live, int64_t now_ns)
{
        if (space->live == live)
                return;
        space->live = live;
        space->idle_since_ns = now_ns;
        if (live)
                space->arena->spaces_live++;
        else
                space->arena->spaces_live--;
}

/* ---- sizes ---- */

static uint64_t batch_max(const struct sheaf_arena *arena)
{
        uint64_t n = BATCH_BYTES / arena->pool->shape.segment_bytes;

        n = SHEAF_MIN(n, 1 + arena->segs_live / 256);
        return SHEAF_MIN(n, (uint64_t)BATCH_MAX);
}

/* Where segments are few, or large, the oldest of the ring is not emptied at
 * once but slice by slice, as room is needed. So what flows is all there, and
 * one segment may be all that does. */
static bool sliced(const struct sheaf_arena *arena)
{
        return batch_max(arena) == 1;
}

/* A 64th of the arena: each slice costs a scan, but is not there for hits. */
static uint32_t slice_bytes(const struct sheaf_arena *arena)
{
        uint64_t size = arena->pool->shape.segment_bytes;
        uint64_t slice = arena->segs_live * size / SLICE_SHARE;

        return (uint32_t)SHEAF_MIN(size, SHEAF_MAX(slice, size / SLICES_MAX));
}

/* Between the pins of a few jobs there may be no room for it in all that
 * flows, while there is much for others. */
static bool is_large(const struct sheaf_arena *arena, uint32_t room)
{
        return room > slice_bytes(arena) / LARGE_SHARE;
}

/* Segments that flow. */
static uint32_t flowing(const struct sheaf_space *space)
{
        return space->ring.count + space->ready.count +
               sheaf_space_open_count(space);
}

uint64_t sheaf_space_stock_bytes(const struct sheaf_space *space)
{
        uint64_t bytes = 0;

        for (uint32_t i = 0; i < space->stock_count; i++)
                bytes += space->arena->segs[space->stock[i]].payload_bytes;
        return bytes;
}

uint32_t sheaf_space_open_count(const struct sheaf_space *space)
{
        uint32_t n = 0;

        for (int i = 0; i < SHEAF_SPACE_OPEN; i++)
                n += space->open[i] != SHEAF_NONE;
        return n;
}

void sheaf_space_want_ring(struct sheaf_space *space, uint64_t bytes)
{
        space->ring_bytes = bytes;
}

/* 0.5 % of the dataset, estimated from its largest table and the mean block. */
static uint64_t usual_ring_bytes(const struct sheaf_space *space)
{
        if (!space->placed_blocks)
                return 0;
        return space->placed_bytes / space->placed_blocks * space->chunks_max /
               RING_SHARE_INVERSE;
}

/* Segments for @bytes that flow, a slice that is empty, and a large block that
 * comes between. */
static uint32_t segs_for(const struct sheaf_space *space, uint64_t bytes)
{
        uint64_t size = space->arena->pool->shape.segment_bytes;

        bytes += slice_bytes(space->arena) + space->room_max;
        return (uint32_t)((bytes + size - 1) / size);
}

/* Segments that flow, the one that is being filled among them: at most an
 * eighth of the space, or a quarter where jobs want it. */
static uint32_t flow_need(const struct sheaf_space *space)
{
        uint32_t n = SHEAF_MIN(space->segs / 16, (uint32_t)RING_LEAST);

        n = SHEAF_MAX(n, SHEAF_MIN(segs_for(space, usual_ring_bytes(space)),
                                 space->segs / 8));
        if (space->ring_bytes)
                n = SHEAF_MAX(n, SHEAF_MIN(segs_for(space, space->ring_bytes),
                                         space->segs / 4));
        return SHEAF_MAX(n, 1U);
}

/* The same where segments are emptied ahead, in batches: without those that
 * are being filled. */
static uint32_t ring_need(const struct sheaf_space *space)
{
        const struct sheaf_arena *arena = space->arena;
        uint64_t n, most, wanted;

        n = usual_ring_bytes(space) / arena->pool->shape.segment_bytes;
        most = SHEAF_MAX(space->segs / 8,
                SHEAF_MIN(space->segs / 4, (uint32_t)RING_LEAST));
        n = SHEAF_MAX(n, (uint64_t)RING_LEAST) + batch_max(arena) - 1;
        wanted = SHEAF_MIN(space->ring_bytes / arena->pool->shape.segment_bytes,
                (uint64_t)space->segs / 4);
        n = SHEAF_MAX(n, wanted);
        most = SHEAF_MAX(most, wanted);
        return (uint32_t)SHEAF_MAX(SHEAF_MIN(n, most), UINT64_C(1));
}

static uint32_t fair_share(const struct sheaf_arena *arena)
{
        return arena->segs_live / SHEAF_MAX(arena->spaces_live, 1U);
}

/* ---- filling ---- */

static int big_tags(struct sheaf_arena *arena, struct sheaf_segment *segment)
{
        if (segment->big)
                return 0;
        segment->big = sheaf_new(struct sheaf_block_tag,
                arena->pool->shape.segment_bytes >> SHEAF_BIG_SHIFT);
        return segment->big ? 0 : -ENOMEM;
}

/* First fit. -ENOBUFS: no gap. */
static int fit(struct sheaf_arena *arena, uint32_t seg, uint32_t len_bytes,
        sheaf_block *ret_block)
{
        struct sheaf_segment *segment = &arena->segs[seg];
        uint32_t room = sheaf_block_room(len_bytes), i;
        struct sheaf_gap *gap;
        int rc;

        for (i = 0; i < segment->gap_count; i++)
                if (segment->gaps[i].len_bytes >= room)
                        break;
        if (i == segment->gap_count)
                return -ENOBUFS;
        rc = len_bytes < SHEAF_BIG_BYTES ? 0 : big_tags(arena, segment);
        if (rc < 0)
                return rc;
        gap = &segment->gaps[i];
        rc = sheaf_block_new(arena, seg,
                seg * arena->pool->shape.segment_bytes + gap->offset_bytes,
                len_bytes, ret_block);
        if (rc < 0)
                return rc;
        gap->offset_bytes += room;
        gap->len_bytes -= room;
        if (!gap->len_bytes) {
                segment->gap_count--;
                memmove(gap, gap + 1, (segment->gap_count - i) * sizeof(*gap));
        }
        return 0;
}

static int stock_push(struct sheaf_space *space, uint32_t seg)
{
        if (space->stock_count == space->stock_cap) {
                uint32_t cap = space->stock_cap ? 2 * space->stock_cap : 64;
                uint32_t *p = realloc(space->stock, cap * sizeof(*p));

                if (!p)
                        return -ENOMEM;
                space->stock = p;
                space->stock_cap = cap;
        }
        space->arena->segs[seg].stock_at = space->stock_count;
        space->arena->segs[seg].state = SHEAF_SEG_STOCK;
        space->arena->segs[seg].was_stock = true;
        space->stock[space->stock_count++] = seg;
        return 0;
}

/* Does a full segment become stock? While there is more free than the ring
 * needs; and while more flows than that, so that what the ring took, for pins
 * or for jobs that wanted it, comes back. Not at once: a ring that is full of
 * pins would take it again, and each time something else were gone. */
static bool becomes_stock(struct sheaf_space *space)
{
        struct sheaf_arena *arena = space->arena;
        uint32_t ring = space->ring.count + space->ready.count;
        uint64_t left = arena->free.count + sheaf_arena_segs_left(arena);

        if (sliced(arena) ? left + flowing(space) < flow_need(space)
                          : left + ring <= ring_need(space))
                return false;
        if (left)
                return true;
        if (space->easy < EASY_LEAST + ring / 4)
                return false;
        space->easy = 0;
        return true;
}

static void close_open(struct sheaf_space *space, uint32_t *open)
{
        struct sheaf_arena *arena = space->arena;
        struct sheaf_segment *segment;
        uint32_t seg = *open;

        if (seg == SHEAF_NONE)
                return;
        segment = &arena->segs[seg];
        *open = SHEAF_NONE;
        segment->gap_count = 0;
        segment->slice = 0;
        segment->swept = (uint32_t)arena->pool->shape.segment_bytes;
        if (!becomes_stock(space) || stock_push(space, seg) < 0) {
                segment->state = SHEAF_SEG_RING;
                sheaf_seglist_push(arena, &space->ring, seg);
        }
        sheaf_seg_settle(arena, seg);
}

/* ---- where the next segment comes from ---- */

/* Gives an unlinked segment to the space, as one that has gaps. */
static void own(struct sheaf_space *space, uint32_t seg,
        enum sheaf_seg_state state, struct sheaf_seglist *list)
{
        struct sheaf_segment *segment = &space->arena->segs[seg];

        if (segment->space != space) {
                if (segment->space)
                        segment->space->segs--;
                segment->space = space;
                space->segs++;
        }
        segment->state = (uint8_t)state;
        segment->was_stock = false;
        segment->slice = 0;
        segment->swept = (uint32_t)space->arena->pool->shape.segment_bytes;
        if (list)
                sheaf_seglist_push(space->arena, list, seg);
}

static int populate(struct sheaf_arena *arena, uint32_t seg)
{
        uint64_t size = arena->pool->shape.segment_bytes;
        int rc;

        if (arena->segs[seg].populated)
                return 0;
        rc = sheaf_extent_populate(arena->pool,
                &arena->extents[seg / arena->segs_per_extent],
                seg % arena->segs_per_extent * size, size);
        arena->segs[seg].populated = !rc;
        return rc;
}

/* A free segment with its pages, or SHEAF_NONE. */
static uint32_t take_free(struct sheaf_space *space)
{
        struct sheaf_arena *arena = space->arena;
        uint32_t seg;
        int rc = 0;

        if (arena->free.head == SHEAF_NONE)
                rc = sheaf_arena_grow(arena);
        seg = arena->free.head;
        if (!rc)
                rc = populate(arena, seg);
        arena->pool->refused += rc == -ENOMEM;
        if (rc < 0)
                return SHEAF_NONE;
        if (sheaf_seg_reset(arena, seg) < 0)
                return SHEAF_NONE;
        sheaf_seg_unlink(arena, seg);
        own(space, seg, SHEAF_SEG_MOVING, NULL);
        return seg;
}

static uint32_t take_listed(struct sheaf_space *space,
        const struct sheaf_seglist *list, uint32_t room)
{
        struct sheaf_arena *arena = space->arena;

        for (uint32_t s = list->head; s != SHEAF_NONE; s = arena->segs[s].next)
                if (sheaf_seg_has_gap(&arena->segs[s], room)) {
                        sheaf_seg_unlink(arena, s);
                        return s;
                }
        return SHEAF_NONE;
}

/* An unlinked segment that could not be emptied, all of whose blocks are as
 * they were: stock stays stock, or pins and a block that finds no gap between
 * them would make all of it flow. */
static void put_back(struct sheaf_space *space, uint32_t seg)
{
        struct sheaf_segment *segment = &space->arena->segs[seg];

        segment->gap_count = 0;
        segment->slice = 0;
        segment->swept = (uint32_t)space->arena->pool->shape.segment_bytes;
        if (!segment->was_stock || stock_push(space, seg) < 0)
                own(space, seg, SHEAF_SEG_RING, &space->ring);
}

/* Empties unlinked segments for @space, whosever they were. The first is
 * returned, others become ready; those mostly pinned, or without a gap of
 * @room between pins, are put back. */
static uint32_t empty(struct sheaf_space *space, const uint32_t *segs,
        uint32_t n, uint32_t room)
{
        struct sheaf_arena *arena = space->arena;
        uint32_t found = SHEAF_NONE;
        bool full[BATCH_MAX];
        int rc = sheaf_reclaim_segs(arena, segs, n, room, full);

        for (uint32_t i = 0; i < n; i++) {
                struct sheaf_space *old = arena->segs[segs[i]].space;

                if (rc < 0 || full[i]) {
                        put_back(old, segs[i]);
                } else if (found == SHEAF_NONE) {
                        found = segs[i];
                        own(space, found, SHEAF_SEG_MOVING, NULL);
                } else {
                        own(space, segs[i], SHEAF_SEG_READY, &space->ready);
                }
        }
        return found;
}

static uint32_t stock_at_random(const struct sheaf_space *space)
{
        return (uint32_t)(sheaf_arena_random(space->arena) %
                          space->stock_count);
}

static uint32_t random_stock(struct sheaf_space *space)
{
        uint32_t seg = space->stock[stock_at_random(space)];

        sheaf_seg_unlink(space->arena, seg);
        return seg;
}

static uint32_t oldest(struct sheaf_space *space, struct sheaf_seglist *list)
{
        uint32_t seg = list->head;

        sheaf_seg_unlink(space->arena, seg);
        return seg;
}

/* Any segment that @victim can give: stock at random, else what flows. */
static uint32_t give_one(struct sheaf_space *victim)
{
        if (victim->ready.count)
                return oldest(victim, &victim->ready);
        if (victim->stock_count)
                return random_stock(victim);
        if (victim->ring.count)
                return oldest(victim, &victim->ring);
        if (victim->parked.count)
                return oldest(victim, &victim->parked);
        for (int i = 0; !victim->live && i < SHEAF_SPACE_OPEN; i++)
                if (victim->open[i] != SHEAF_NONE) {
                        uint32_t seg = victim->open[i];

                        sheaf_seg_unlink(victim->arena, seg);
                        return seg;
                }
        return SHEAF_NONE;
}

/* Whom @space may take from: the space idle longest; or, while it is below
 * its fair share, the live one most above it. */
static struct sheaf_space *victim_of(const struct sheaf_space *space)
{
        const struct sheaf_arena *arena = space->arena;
        uint32_t fair = fair_share(arena);
        struct sheaf_space *idle = NULL, *most = NULL;
        bool starved = space->segs < RING_LEAST + SHEAF_SPACE_OPEN;

        for (struct sheaf_space *s = arena->spaces; s; s = s->next) {
                if (s == space || !s->segs)
                        continue;
                if (!s->live &&
                        (!idle || s->idle_since_ns < idle->idle_since_ns))
                        idle = s;
                if (s->live && (!most || s->segs > most->segs))
                        most = s;
        }
        if (idle && (space->live || (starved && idle->segs > space->segs + 1)))
                return idle;
        if (most && space->live && space->segs < fair && most->segs > fair)
                return most;
        if (most && starved && most->segs > space->segs + 1)
                return most;
        return NULL;
}

static uint32_t take_others(struct sheaf_space *space, uint32_t room)
{
        uint32_t tries = TRIES_MAX;

        while (tries--) {
                struct sheaf_space *victim = victim_of(space);
                uint32_t segs[BATCH_MAX], n = 0, found;

                if (!victim)
                        break;
                while (n < batch_max(space->arena)) {
                        segs[n] = give_one(victim);
                        if (segs[n] == SHEAF_NONE)
                                break;
                        n++;
                }
                if (!n)
                        break;
                found = empty(space, segs, n, room);
                if (found != SHEAF_NONE)
                        return found;
        }
        return SHEAF_NONE;
}

/* Up to a batch of the oldest from @list, leaving @keep in it. */
static uint32_t take_batch(struct sheaf_space *space,
        struct sheaf_seglist *list, uint32_t keep, uint32_t room)
{
        uint32_t segs[BATCH_MAX], n = 0;

        while (n < batch_max(space->arena) && list->count > keep)
                segs[n++] = oldest(space, list);
        return n ? empty(space, segs, n, room) : SHEAF_NONE;
}

/* Empties what comes next of an open segment, until there is a gap; without
 * one all stays as it was. */
static bool sweep(struct sheaf_space *space, uint32_t seg, uint32_t room)
{
        struct sheaf_arena *arena = space->arena;
        uint32_t size = (uint32_t)arena->pool->shape.segment_bytes;
        struct sheaf_segment *segment = &arena->segs[seg];
        uint32_t slice = segment->slice, swept = segment->swept, to;

        for (uint32_t from = swept; from < size; from = segment->swept) {
                to = SHEAF_MAX(from + slice_bytes(arena), from + room);
                to = SHEAF_MIN(to, size);
                if (sheaf_reclaim_slice(arena, seg, from, to, room))
                        return true;
                /* Pins, and what reaches into it, shorten a slice. */
                to = SHEAF_MIN(to + room, size);
                if (is_large(arena, room) &&
                        sheaf_reclaim_slice(arena, seg, from, to, room))
                        return true;
                /* For pins, or since it was too short? */
                if (to - from >= room)
                        space->easy = 0;
        }
        if (swept < size)
                (void)!sheaf_seg_find_slice_gaps(arena, seg, slice, swept);
        return false;
}

/* The oldest of the ring, to be emptied as it fills again. */
static uint32_t take_oldest(struct sheaf_space *space, uint32_t room)
{
        struct sheaf_arena *arena = space->arena;
        uint32_t size = (uint32_t)arena->pool->shape.segment_bytes;
        uint32_t tries, seg;

        /* Nothing may be put any more into what is full: it goes before its
         * time. And where one segment alone flows it begins anew. */
        for (int i = 0; i < SHEAF_SPACE_OPEN; i++) {
                seg = space->open[i];
                if (seg != SHEAF_NONE &&
                        (!space->ring.count ||
                                (room <= size / SLICES_MAX &&
                                        arena->segs[seg].swept == size)))
                        close_open(space, &space->open[i]);
        }
        tries = SHEAF_MIN(space->ring.count, (uint32_t)TRIES_MAX);
        for (; tries; tries--) {
                seg = oldest(space, &space->ring);
                arena->segs[seg].slice = arena->segs[seg].swept = 0;
                space->easy++;
                if (sweep(space, seg, room))
                        return seg;
                own(space, seg, SHEAF_SEG_RING, &space->ring);
        }
        return SHEAF_NONE;
}

/* The same, emptied together with those after it. */
static uint32_t take_emptied(struct sheaf_space *space, uint32_t room)
{
        uint32_t need = ring_need(space), batch, keep, tries, first;
        uint32_t seg = SHEAF_NONE;

        /* What was emptied ahead counts as ring: a batch may go below. */
        batch = (uint32_t)batch_max(space->arena);
        keep = need + 1 > batch ? need + 1 - batch : 0;
        first = tries = SHEAF_MIN(space->ring.count, (uint32_t)TRIES_MAX);
        for (; seg == SHEAF_NONE && tries && space->ring.count > need; tries--)
                seg = take_batch(space, &space->ring, keep, room);
        space->easy =
                seg != SHEAF_NONE && tries + 1 >= first ? space->easy + 1 : 0;
        return seg;
}

/* Stock that flows from now on: in small arenas as it fills, so that what is
 * not needed after all stays. */
static uint32_t take_stock(struct sheaf_space *space, uint32_t room)
{
        uint32_t seg = random_stock(space);

        space->easy = 0;
        if (!sliced(space->arena))
                return empty(space, &seg, 1, room);
        space->arena->segs[seg].slice = space->arena->segs[seg].swept = 0;
        if (sweep(space, seg, room))
                return seg;
        put_back(space, seg);
        return SHEAF_NONE;
}

static uint32_t take_own(struct sheaf_space *space, uint32_t room)
{
        uint32_t tries, seg = take_listed(space, &space->ready, room);

        if (seg == SHEAF_NONE && !sliced(space->arena))
                seg = take_emptied(space, room);
        else if (seg == SHEAF_NONE && flowing(space) >= flow_need(space))
                seg = take_oldest(space, room);
        tries = SHEAF_MIN(space->parked.count, (uint32_t)TRIES_MAX);
        for (; seg == SHEAF_NONE && tries; tries--) {
                uint32_t parked = oldest(space, &space->parked);

                seg = empty(space, &parked, 1, room);
        }
        if (sliced(space->arena) && is_large(space->arena, room))
                return seg;
        tries = SHEAF_MIN(space->stock_count, (uint32_t)TRIES_MAX);
        for (; seg == SHEAF_NONE && tries; tries--)
                seg = take_stock(space, room);
        tries = SHEAF_MIN(space->ring.count, (uint32_t)TRIES_MAX);
        for (; seg == SHEAF_NONE && tries; tries--) {
                uint32_t ring = oldest(space, &space->ring);

                seg = empty(space, &ring, 1, room);
        }
        return seg;
}

static uint32_t next(struct sheaf_space *space, uint32_t room)
{
        struct sheaf_arena *arena = space->arena;
        uint32_t seg = take_free(space);

        if (seg == SHEAF_NONE)
                seg = take_listed(space, &space->parked, room);
        if (seg == SHEAF_NONE)
                seg = take_others(space, room);
        if (seg == SHEAF_NONE && (space->live || !space->segs) &&
                sheaf_arena_squeeze(arena))
                seg = take_free(space);
        if (seg == SHEAF_NONE)
                seg = take_own(space, room);
        return seg;
}

/* ---- blocks ---- */

/* In the place of what is there, in stock or ring, where pins leave room. */
static int place_within(struct sheaf_space *space, uint32_t seg,
        uint32_t len_bytes, sheaf_block *ret_block)
{
        struct sheaf_arena *arena = space->arena;
        int rc = -ENOBUFS;

        if (sheaf_reclaim_hole(arena, seg, sheaf_block_room(len_bytes)))
                rc = fit(arena, seg, len_bytes, ret_block);
        arena->segs[seg].gap_count = 0;
        sheaf_seg_settle(arena, seg);
        return rc;
}

/* The last resort: costs stock no more than the block, which is stock then. */
static int replace(
        struct sheaf_space *space, uint32_t len_bytes, sheaf_block *ret_block)
{
        uint32_t seg = space->ring.head, next;
        int rc = -ENOBUFS;

        for (int i = 0; rc == -ENOBUFS && i < 2 * TRIES_MAX; i++)
                if (space->stock_count)
                        rc = place_within(space,
                                space->stock[stock_at_random(space)], len_bytes,
                                ret_block);
        for (int i = 0; rc == -ENOBUFS && i < TRIES_MAX; i++, seg = next) {
                if (seg == SHEAF_NONE)
                        break;
                next = space->arena->segs[seg].next;
                rc = place_within(space, seg, len_bytes, ret_block);
        }
        return rc;
}

static int place(
        struct sheaf_space *space, uint32_t len_bytes, sheaf_block *ret_block)
{
        uint32_t room = sheaf_block_room(len_bytes), seg;
        int rc;

        space->room_max = SHEAF_MAX(space->room_max, room);
        for (uint32_t i = 0; i < 2 * SHEAF_SPACE_OPEN; i++) {
                seg = space->open[(space->turn + i) % SHEAF_SPACE_OPEN];
                if (seg == SHEAF_NONE ||
                        (i >= SHEAF_SPACE_OPEN && !sweep(space, seg, room)))
                        continue;
                rc = fit(space->arena, seg, len_bytes, ret_block);
                if (rc != -ENOBUFS)
                        return rc;
        }
        close_open(space, &space->open[space->turn]);
        seg = next(space, room);
        if (seg == SHEAF_NONE)
                return replace(space, len_bytes, ret_block);
        space->arena->segs[seg].state = SHEAF_SEG_OPEN;
        space->arena->segs[seg].was_stock = false;
        space->open[space->turn] = seg;
        space->turn = (space->turn + 1) % SHEAF_SPACE_OPEN;
        return fit(space->arena, seg, len_bytes, ret_block);
}

int sheaf_arena_place(struct sheaf_space *space, uint32_t len_bytes,
        sheaf_block *ret_block, void **ret_bytes)
{
        struct sheaf_arena *arena = space->arena;
        sheaf_block block = 0;
        int rc;

        assert(len_bytes > 0);
        assert(len_bytes <= SHEAF_CHUNK_BYTES_MAX);
        rc = place(space, len_bytes, &block);
        if (rc < 0) {
                arena->stats.place_failures++;
                return rc == -ENOMEM ? -ENOBUFS : rc;
        }
        *ret_bytes = sheaf_arena_at(
                arena, sheaf_word_offset_bytes(
                               sheaf_block_word(sheaf_block_at(arena, block))));
        *ret_block = block;
        return 0;
}
