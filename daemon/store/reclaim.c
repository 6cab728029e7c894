/* SPDX-License-Identifier: Apache-2.0 */
/* Takes blocks back: kills their words in a batch, scans once, keeps what is
 * still held.
 *
 *  1 a block is released only if its words were dead before a scan which did
 *    not see its word
 *  2 a killed word that is held, or whose segment stays, is stored back: its
 *    bytes never changed
 *  3 what is filling, or held by the daemon, is never killed
 *  4 no segment is settled while a block of it is killed and not sorted out
 *
 * Loop thread. */
#include "daemon/store/arena_impl.h"

#define PINNED_PERCENT_MAX 75
#define ORPHANS_MAX        65536

/* Room for @count killed words, at most half full. */
static int killed_reserve(struct sheaf_killed *killed, uint64_t count)
{
        uint64_t cap = 1024;
        unsigned int shift = 64 - 10;
        uint64_t *word;
        uint32_t *block;
        uint8_t *filter;

        while (cap < 2 * count) {
                cap *= 2;
                shift--;
        }
        /* A larger one than needed would leave the cache. */
        if (killed->cap != cap) {
                word = sheaf_new(uint64_t, cap);
                block = sheaf_new(uint32_t, cap);
                filter = sheaf_new(uint8_t, cap);
                if (!word || !block || !filter) {
                        free(filter);
                        free(word);
                        free(block);
                        return -ENOMEM;
                }
                free(killed->filter);
                free(killed->word);
                free(killed->block);
                killed->filter = filter;
                killed->word = word;
                killed->block = block;
                killed->cap = cap;
        } else {
                memset(killed->word, 0, cap * sizeof(*killed->word));
                memset(killed->filter, 0, cap);
        }
        killed->shift = shift;
        killed->count = 0;
        return 0;
}

static void kill_block(struct sheaf_arena *arena, sheaf_block block)
{
        struct sheaf_killed *killed = &arena->killed;
        struct sheaf_block_slot *slot = sheaf_block_at(arena, block);
        uint64_t word = sheaf_block_word(slot);
        uint64_t hash = sheaf_killed_hash(word);
        uint64_t i = hash >> killed->shift;
        uint64_t bit = hash >> (killed->shift - 3);

        killed->filter[bit / 8] |= (uint8_t)(1 << bit % 8);
        while (killed->word[i])
                i = (i + 1) & (killed->cap - 1);
        killed->word[i] = word;
        killed->block[i] = block;
        killed->count++;
        slot->state = SHEAF_BLOCK_KILLED;
        sheaf_block_kill(arena, block);
}

static void show_again(struct sheaf_arena *arena, sheaf_block block)
{
        sheaf_block_at(arena, block)->state = SHEAF_BLOCK_LIVE;
        sheaf_block_show(arena, block);
}

static bool is_killed(const struct sheaf_block_slot *slot)
{
        return slot->state == SHEAF_BLOCK_KILLED ||
               slot->state == SHEAF_BLOCK_SEEN;
}

/* What begins in [@from, @to) of the segment. */
static void kill_seg(
        struct sheaf_arena *arena, uint32_t seg, uint64_t from, uint64_t to)
{
        uint64_t size = arena->pool->shape.segment_bytes;
        struct sheaf_block_slot *slot;

        for (uint32_t b = arena->segs[seg].block_first; b; b = slot->seg_next) {
                uint64_t at;

                slot = sheaf_block_at(arena, b);
                at = sheaf_block_begin(slot) % size;
                if (slot->state == SHEAF_BLOCK_LIVE && !slot->holds &&
                        at >= from && at < to)
                        kill_block(arena, b);
        }
}

/* Of what begins in [@from, @to), most is held; or there is no gap. */
static bool too_full(struct sheaf_arena *arena, uint32_t seg, uint64_t from,
        uint64_t to, uint32_t room)
{
        uint64_t size = arena->pool->shape.segment_bytes, held_bytes = 0;
        struct sheaf_segment *segment = &arena->segs[seg];
        struct sheaf_block_slot *slot;

        for (uint32_t b = segment->block_first; b; b = slot->seg_next) {
                uint64_t at;

                slot = sheaf_block_at(arena, b);
                at = sheaf_block_begin(slot) % size;
                if (slot->state != SHEAF_BLOCK_KILLED &&
                        slot->state != SHEAF_BLOCK_DEAD && at >= from &&
                        at < to)
                        held_bytes += sheaf_block_room(slot->len_bytes);
        }
        return held_bytes * 100 > (to - from) * PINNED_PERCENT_MAX ||
               !sheaf_seg_has_gap(segment, room);
}

static void sort_out_seg(struct sheaf_arena *arena, uint32_t seg, bool full)
{
        struct sheaf_block_slot *slot;

        for (uint32_t b = arena->segs[seg].block_first; b; b = slot->seg_next) {
                slot = sheaf_block_at(arena, b);
                if (!is_killed(slot))
                        continue;
                if (slot->state == SHEAF_BLOCK_SEEN)
                        arena->stats.kept_blocks++;
                if (full || slot->state == SHEAF_BLOCK_SEEN)
                        show_again(arena, b);
                else
                        sheaf_block_release(arena, b);
        }
        if (full)
                arena->segs[seg].gap_count = 0;
        sheaf_seg_sweep(arena, seg);
}

int sheaf_reclaim_segs(struct sheaf_arena *arena, const uint32_t *segs,
        uint32_t n, uint32_t room, bool *ret_full)
{
        uint64_t size = arena->pool->shape.segment_bytes, blocks = 0;
        int rc;

        for (uint32_t i = 0; i < n; i++)
                blocks += arena->segs[segs[i]].live;
        rc = killed_reserve(&arena->killed, blocks);
        if (rc < 0)
                return rc;
        for (uint32_t i = 0; i < n; i++)
                kill_seg(arena, segs[i], 0, size);
        if (arena->killed.count)
                sheaf_pins_scan(arena);
        for (uint32_t i = 0; i < n; i++) {
                /* Without memory for its gaps a segment stays as it was. */
                bool full = sheaf_seg_find_gaps(arena, segs[i]) < 0;

                if (ret_full)
                        ret_full[i] =
                                full || too_full(arena, segs[i], 0, size, room);
                sort_out_seg(arena, segs[i], ret_full ? ret_full[i] : full);
        }
        return 0;
}

bool sheaf_reclaim_slice(struct sheaf_arena *arena, uint32_t seg, uint32_t from,
        uint32_t to, uint32_t room)
{
        struct sheaf_segment *segment = &arena->segs[seg];
        uint8_t state = segment->state;
        bool good;

        if (killed_reserve(&arena->killed, segment->live) < 0) {
                segment->swept = to;
                return false;
        }
        kill_seg(arena, seg, from, to);
        if (arena->killed.count)
                sheaf_pins_scan(arena);
        good = sheaf_seg_find_slice_gaps(arena, seg, from, to) == 0 &&
               !too_full(arena, seg, from, to, room);
        /* The gaps have what is released now. */
        segment->state = SHEAF_SEG_MOVING;
        sort_out_seg(arena, seg, !good);
        segment->state = state;
        return good;
}

static int by_offset(const void *a, const void *b)
{
        const struct sheaf_gap *x = a, *y = b;

        return (x->offset_bytes > y->offset_bytes) -
               (x->offset_bytes < y->offset_bytes);
}

/* The killed blocks of a segment, in their order; NULL: no memory. */
static struct sheaf_gap *killed_of(
        struct sheaf_arena *arena, uint32_t seg, uint32_t *ret_n)
{
        uint32_t size = (uint32_t)arena->pool->shape.segment_bytes, n = 0;
        const struct sheaf_segment *segment = &arena->segs[seg];
        struct sheaf_block_slot *slot;
        struct sheaf_gap *killed =
                sheaf_new(struct sheaf_gap, segment->live + 1);

        if (!killed)
                return NULL;
        for (uint32_t b = segment->block_first; b; b = slot->seg_next) {
                slot = sheaf_block_at(arena, b);
                if (slot->state == SHEAF_BLOCK_KILLED)
                        killed[n++] = (struct sheaf_gap){
                                (uint32_t)(sheaf_block_begin(slot) % size),
                                sheaf_block_room(slot->len_bytes),
                        };
        }
        qsort(killed, n, sizeof(*killed), by_offset);
        *ret_n = n;
        return killed;
}

/* Where @room bytes within @gap cost least of @killed[0..n), which are those in
 * the gap: it begins with the gap or behind one of them. */
static uint32_t least_in(const struct sheaf_gap *gap, uint32_t room,
        const struct sheaf_gap *killed, uint32_t n, uint32_t *io_least,
        uint32_t at)
{
        uint32_t end = gap->offset_bytes + gap->len_bytes;
        uint32_t from = gap->offset_bytes, cost = 0;

        for (uint32_t i = 0, k = 0; from + room <= end; i++) {
                for (; k < n && killed[k].offset_bytes < from + room; k++)
                        cost += killed[k].len_bytes;
                if (cost < *io_least) {
                        *io_least = cost;
                        at = from;
                }
                if (i == n)
                        break;
                from = killed[i].offset_bytes + killed[i].len_bytes;
                if (i < k)
                        cost -= killed[i].len_bytes;
                else
                        k = i + 1;
        }
        return at;
}

/* Cuts the gaps around pins to one of @room bytes, where least is killed. */
static bool cut_gap(struct sheaf_arena *arena, uint32_t seg, uint32_t room)
{
        struct sheaf_segment *segment = &arena->segs[seg];
        uint32_t n, first = 0, end, at = SHEAF_NONE, least = UINT32_MAX;
        sheaf_autofree struct sheaf_gap *killed = killed_of(arena, seg, &n);

        if (!killed || sheaf_seg_find_gaps(arena, seg) < 0)
                return false;
        for (uint32_t i = 0; i < segment->gap_count; i++, first = end) {
                const struct sheaf_gap *gap = &segment->gaps[i];

                for (end = first;
                        end < n && killed[end].offset_bytes <
                                           gap->offset_bytes + gap->len_bytes;
                        end++)
                        ;
                at = least_in(
                        gap, room, killed + first, end - first, &least, at);
        }
        segment->gap_count = at != SHEAF_NONE;
        if (at != SHEAF_NONE)
                segment->gaps[0] = (struct sheaf_gap){ at, room };
        return at != SHEAF_NONE;
}

bool sheaf_reclaim_hole(struct sheaf_arena *arena, uint32_t seg, uint32_t room)
{
        uint64_t size = arena->pool->shape.segment_bytes, from, at, to;
        struct sheaf_segment *segment = &arena->segs[seg];
        struct sheaf_block_slot *slot;
        bool found;

        if (killed_reserve(&arena->killed, segment->live) < 0)
                return false;
        kill_seg(arena, seg, 0, size);
        if (arena->killed.count)
                sheaf_pins_scan(arena);
        found = cut_gap(arena, seg, room);
        from = found ? segment->gaps[0].offset_bytes : size;
        to = from + (found ? room : 0);
        for (uint32_t b = segment->block_first; b; b = slot->seg_next) {
                slot = sheaf_block_at(arena, b);
                if (!is_killed(slot))
                        continue;
                at = sheaf_block_begin(slot) % size;
                if (slot->state == SHEAF_BLOCK_KILLED && at < to &&
                        at + sheaf_block_room(slot->len_bytes) > from)
                        sheaf_block_release(arena, b);
                else
                        show_again(arena, b);
        }
        sheaf_seg_sweep(arena, seg);
        return found;
}

/* Those that were named again, or went, need no memory. */
static void orphans_compact(struct sheaf_arena *arena)
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < arena->orphan_count; i++) {
                struct sheaf_block_slot *slot =
                        sheaf_block_at(arena, arena->orphans[i]);

                if (slot->state == SHEAF_BLOCK_LIVE && !sheaf_block_named(slot))
                        arena->orphans[n++] = arena->orphans[i];
        }
        arena->orphan_count = n;
}

/* One that finds no room goes with its segment. */
static void orphan_add(struct sheaf_arena *arena, sheaf_block block)
{
        if (arena->orphan_count == arena->orphan_cap)
                orphans_compact(arena);
        if (arena->orphan_count == arena->orphan_cap) {
                uint32_t cap = arena->orphan_cap ? 2 * arena->orphan_cap : 64;
                uint32_t *p;

                if (cap > ORPHANS_MAX)
                        cap = ORPHANS_MAX;
                p = realloc(arena->orphans, cap * sizeof(*p));
                if (p) {
                        arena->orphans = p;
                        arena->orphan_cap = cap;
                }
        }
        if (arena->orphan_count < arena->orphan_cap)
                arena->orphans[arena->orphan_count++] = block;
}

void sheaf_reclaim_blocks(
        struct sheaf_arena *arena, const sheaf_block *blocks, uint32_t n)
{
        if (killed_reserve(&arena->killed, n) < 0)
                return; /* unnamed blocks go with their segments */
        for (uint32_t i = 0; i < n; i++) {
                struct sheaf_block_slot *slot =
                        sheaf_block_at(arena, blocks[i]);

                if (slot->state == SHEAF_BLOCK_LIVE && !slot->holds &&
                        !sheaf_block_named(slot))
                        kill_block(arena, blocks[i]);
        }
        if (arena->killed.count)
                sheaf_pins_scan(arena);
        for (uint32_t i = 0; i < n; i++) {
                struct sheaf_block_slot *slot =
                        sheaf_block_at(arena, blocks[i]);

                if (slot->state == SHEAF_BLOCK_SEEN) {
                        arena->stats.kept_blocks++;
                        slot->state = SHEAF_BLOCK_LIVE;
                        orphan_add(arena, blocks[i]);
                } else if (slot->state == SHEAF_BLOCK_KILLED) {
                        sheaf_block_release(arena, blocks[i]);
                }
        }
        /* Not before all are released: a segment that is parked takes what is
         * killed for gaps, and a release would give them once more. */
        for (uint32_t i = 0; i < n; i++) {
                struct sheaf_block_slot *slot =
                        sheaf_block_at(arena, blocks[i]);

                if (slot->state == SHEAF_BLOCK_DEAD)
                        sheaf_seg_settle(arena, sheaf_block_seg(arena, slot));
        }
}

void sheaf_reclaim_retry(struct sheaf_arena *arena)
{
        sheaf_autofree uint32_t *orphans = sheaf_steal(&arena->orphans);
        uint32_t n = arena->orphan_count, seg;

        arena->orphan_count = arena->orphan_cap = 0;
        if (n)
                sheaf_reclaim_blocks(arena, orphans, n);
        seg = arena->linger.head;
        while (seg != SHEAF_NONE) {
                uint32_t next = arena->segs[seg].next;

                if (sheaf_reclaim_segs(arena, &seg, 1, 0, NULL) == 0)
                        sheaf_seg_settle(arena, seg);
                seg = next;
        }
}

void sheaf_reclaim_drop(struct sheaf_arena *arena, uint32_t seg)
{
        struct sheaf_segment *segment = &arena->segs[seg];
        struct sheaf_block_slot *slot;

        sheaf_seg_disown(arena, seg);
        segment->state = SHEAF_SEG_GONE;
        for (uint32_t b = segment->block_first; b; b = slot->seg_next) {
                slot = sheaf_block_at(arena, b);
                if (slot->state != SHEAF_BLOCK_LIVE)
                        continue;
                sheaf_block_kill(arena, b);
                sheaf_block_release(arena, b);
        }
        for (uint32_t b = segment->block_first; b;) {
                uint32_t next = sheaf_block_at(arena, b)->seg_next;

                sheaf_block_recycle(arena, b);
                b = next;
        }
        segment->block_first = 0;
        segment->dead = 0;
        free(segment->gaps);
        free(segment->big);
        segment->gaps = NULL;
        segment->big = NULL;
        segment->gap_count = segment->gap_cap = 0;
}
