/* SPDX-License-Identifier: Apache-2.0 */
/* Segments of an arena: lists, gaps, what becomes of an emptied one.
 *
 *  1 a segment is in the one list that its state and space name
 *  2 gaps are sorted, do not touch one another, and cover exactly what no
 *    live block takes, of an open segment that is emptied slice by slice only
 *    those of the newest slice; only OPEN, READY and PARKED segments have them
 *  3 a segment without live blocks is FREE, OPEN or READY
 *
 * Loop thread. */
#include "daemon/store/arena_impl.h"

#include <assert.h>

void sheaf_seglist_init(struct sheaf_seglist *list)
{
        *list = (struct sheaf_seglist){ SHEAF_NONE, SHEAF_NONE, 0 };
}

void sheaf_seglist_push(
        struct sheaf_arena *arena, struct sheaf_seglist *list, uint32_t seg)
{
        struct sheaf_segment *segment = &arena->segs[seg];

        segment->next = SHEAF_NONE;
        segment->prev = list->tail;
        if (list->tail != SHEAF_NONE)
                arena->segs[list->tail].next = seg;
        else
                list->head = seg;
        list->tail = seg;
        list->count++;
}

static void list_remove(
        struct sheaf_arena *arena, struct sheaf_seglist *list, uint32_t seg)
{
        struct sheaf_segment *segment = &arena->segs[seg];

        if (segment->prev != SHEAF_NONE)
                arena->segs[segment->prev].next = segment->next;
        else
                list->head = segment->next;
        if (segment->next != SHEAF_NONE)
                arena->segs[segment->next].prev = segment->prev;
        else
                list->tail = segment->prev;
        list->count--;
}

static void stock_remove(struct sheaf_space *space, uint32_t seg)
{
        struct sheaf_segment *segs = space->arena->segs;
        uint32_t last = space->stock[--space->stock_count];

        space->stock[segs[seg].stock_at] = last;
        segs[last].stock_at = segs[seg].stock_at;
}

void sheaf_seg_unlink(struct sheaf_arena *arena, uint32_t seg)
{
        struct sheaf_segment *segment = &arena->segs[seg];
        struct sheaf_space *space = segment->space;

        switch ((enum sheaf_seg_state)segment->state) {
        case SHEAF_SEG_FREE:
                list_remove(arena, &arena->free, seg);
                break;
        case SHEAF_SEG_LINGER:
                list_remove(arena, &arena->linger, seg);
                break;
        case SHEAF_SEG_STOCK:
                stock_remove(space, seg);
                break;
        case SHEAF_SEG_RING:
                list_remove(arena, &space->ring, seg);
                break;
        case SHEAF_SEG_READY:
                list_remove(arena, &space->ready, seg);
                break;
        case SHEAF_SEG_PARKED:
                list_remove(arena, &space->parked, seg);
                break;
        case SHEAF_SEG_OPEN:
                for (int i = 0; i < SHEAF_SPACE_OPEN; i++)
                        if (space->open[i] == seg)
                                space->open[i] = SHEAF_NONE;
                break;
        case SHEAF_SEG_GONE:
        case SHEAF_SEG_MOVING:
                break;
        }
        segment->state = SHEAF_SEG_MOVING;
}

void sheaf_seg_disown(struct sheaf_arena *arena, uint32_t seg)
{
        struct sheaf_segment *segment = &arena->segs[seg];

        sheaf_seg_unlink(arena, seg);
        if (segment->space)
                segment->space->segs--;
        segment->space = NULL;
}

/* ---- gaps ---- */

static int gaps_reserve(struct sheaf_segment *segment, uint32_t count)
{
        uint32_t cap = segment->gap_cap ? segment->gap_cap : 4;
        struct sheaf_gap *gaps;

        if (count <= segment->gap_cap)
                return 0;
        while (cap < count)
                cap *= 2;
        gaps = realloc(segment->gaps, cap * sizeof(*gaps));
        if (!gaps)
                return -ENOMEM;
        segment->gaps = gaps;
        segment->gap_cap = cap;
        return 0;
}

void sheaf_seg_sweep(struct sheaf_arena *arena, uint32_t seg)
{
        struct sheaf_segment *segment = &arena->segs[seg];
        uint32_t *at = &segment->block_first;

        while (*at) {
                uint32_t block = *at;
                struct sheaf_block_slot *slot = sheaf_block_at(arena, block);

                if (slot->state == SHEAF_BLOCK_DEAD) {
                        *at = slot->seg_next;
                        sheaf_block_recycle(arena, block);
                } else {
                        at = &slot->seg_next;
                }
        }
        segment->dead = 0;
}

int sheaf_seg_reset(struct sheaf_arena *arena, uint32_t seg)
{
        struct sheaf_segment *segment = &arena->segs[seg];
        int rc = gaps_reserve(segment, 1);

        assert(segment->live == 0);
        if (rc < 0)
                return rc;
        sheaf_seg_sweep(arena, seg);
        segment->gap_count = 1;
        segment->gaps[0] = (struct sheaf_gap){
                0,
                (uint32_t)arena->pool->shape.segment_bytes,
        };
        return 0;
}

static int by_offset(const void *a, const void *b)
{
        const struct sheaf_gap *x = a, *y = b;

        return (x->offset_bytes > y->offset_bytes) -
               (x->offset_bytes < y->offset_bytes);
}

int sheaf_seg_find_gaps(struct sheaf_arena *arena, uint32_t seg)
{
        struct sheaf_segment *segment = &arena->segs[seg];
        uint32_t size = (uint32_t)arena->pool->shape.segment_bytes;
        uint32_t n = 0, end = 0, gaps = 0;
        struct sheaf_block_slot *slot;
        sheaf_autofree struct sheaf_gap *taken =
                sheaf_new(struct sheaf_gap, segment->live + 1);
        int rc = gaps_reserve(segment, segment->live + 1);

        segment->gap_count = 0;
        if (!taken || rc < 0)
                return -ENOMEM;
        for (uint32_t b = segment->block_first; b; b = slot->seg_next) {
                slot = sheaf_block_at(arena, b);
                if (slot->state == SHEAF_BLOCK_DEAD ||
                        slot->state == SHEAF_BLOCK_KILLED)
                        continue;
                taken[n++] = (struct sheaf_gap){
                        (uint32_t)(sheaf_block_begin(slot) % size),
                        sheaf_block_room(slot->len_bytes),
                };
        }
        qsort(taken, n, sizeof(*taken), by_offset);
        for (uint32_t i = 0; i <= n; i++) {
                uint32_t to = i < n ? taken[i].offset_bytes : size;

                if (to > end)
                        segment->gaps[gaps++] =
                                (struct sheaf_gap){ end, to - end };
                if (i < n)
                        end = to + taken[i].len_bytes;
        }
        segment->gap_count = gaps;
        return 0;
}

int sheaf_seg_find_slice_gaps(
        struct sheaf_arena *arena, uint32_t seg, uint32_t from, uint32_t to)
{
        struct sheaf_segment *segment = &arena->segs[seg];
        int rc = sheaf_seg_find_gaps(arena, seg);
        uint32_t n = 0, end = 0;

        for (uint32_t i = 0; i < segment->gap_count; i++) {
                struct sheaf_gap gap = segment->gaps[i];

                if (gap.offset_bytes < to &&
                        gap.offset_bytes + gap.len_bytes > from) {
                        segment->gaps[n++] = gap;
                        end = gap.offset_bytes + gap.len_bytes;
                }
        }
        segment->gap_count = n;
        segment->slice = from;
        /* The last of what was emptied may have reached further. */
        segment->swept = SHEAF_MAX(to, end);
        return rc;
}

bool sheaf_seg_has_gap(const struct sheaf_segment *segment, uint32_t room)
{
        for (uint32_t i = 0; i < segment->gap_count; i++)
                if (segment->gaps[i].len_bytes >= room)
                        return true;
        return false;
}

void sheaf_seg_gap_add(struct sheaf_arena *arena, uint32_t seg,
        uint32_t offset_bytes, uint32_t len_bytes)
{
        struct sheaf_segment *segment = &arena->segs[seg];
        struct sheaf_gap *gaps = segment->gaps;
        uint32_t lo = 0, hi = segment->gap_count;
        bool joins_before, joins_after;

        while (lo < hi) {
                uint32_t mid = (lo + hi) / 2;

                if (gaps[mid].offset_bytes < offset_bytes)
                        lo = mid + 1;
                else
                        hi = mid;
        }
        joins_before =
                lo && gaps[lo - 1].offset_bytes + gaps[lo - 1].len_bytes ==
                              offset_bytes;
        joins_after = lo < segment->gap_count &&
                      offset_bytes + len_bytes == gaps[lo].offset_bytes;
        if (joins_before) {
                gaps[lo - 1].len_bytes += len_bytes;
                if (!joins_after)
                        return;
                gaps[lo - 1].len_bytes += gaps[lo].len_bytes;
                segment->gap_count--;
                memmove(gaps + lo, gaps + lo + 1,
                        (segment->gap_count - lo) * sizeof(*gaps));
                return;
        }
        if (joins_after) {
                gaps[lo].offset_bytes = offset_bytes;
                gaps[lo].len_bytes += len_bytes;
                return;
        }
        if (gaps_reserve(segment, segment->gap_count + 1) < 0)
                return; /* found again when the segment is emptied */
        gaps = segment->gaps;
        memmove(gaps + lo + 1, gaps + lo,
                (segment->gap_count - lo) * sizeof(*gaps));
        gaps[lo] = (struct sheaf_gap){ offset_bytes, len_bytes };
        segment->gap_count++;
}

/* ---- after releases ---- */

void sheaf_seg_to_free(struct sheaf_arena *arena, uint32_t seg)
{
        struct sheaf_segment *segment = &arena->segs[seg];

        assert(segment->live == 0);
        sheaf_seg_disown(arena, seg);
        sheaf_seg_sweep(arena, seg);
        free(segment->gaps);
        segment->gaps = NULL;
        segment->gap_count = segment->gap_cap = 0;
        free(segment->big);
        segment->big = NULL;
        segment->state = SHEAF_SEG_FREE;
        sheaf_seglist_push(arena, &arena->free, seg);
}

void sheaf_seg_settle(struct sheaf_arena *arena, uint32_t seg)
{
        struct sheaf_segment *segment = &arena->segs[seg];
        bool open = segment->state == SHEAF_SEG_OPEN;

        if (segment->state == SHEAF_SEG_GONE ||
                segment->state == SHEAF_SEG_FREE)
                return;
        if (!segment->live && !open) {
                sheaf_seg_to_free(arena, seg);
                return;
        }
        if (segment->dead > 64 && segment->dead > segment->live)
                sheaf_seg_sweep(arena, seg);
        /* Table and dataset removals leave holes that the ring would never
         * see in a stock segment. */
        if ((segment->state == SHEAF_SEG_STOCK ||
                    segment->state == SHEAF_SEG_RING) &&
                segment->live_bytes < arena->pool->shape.segment_bytes / 2 &&
                sheaf_seg_find_gaps(arena, seg) == 0) {
                sheaf_seg_unlink(arena, seg);
                segment->state = SHEAF_SEG_PARKED;
                sheaf_seglist_push(arena, &segment->space->parked, seg);
        }
}
