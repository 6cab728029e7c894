/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of an arena: their table, the index by digest, who names them, and
 * what becomes of them once they are placed.
 *
 *  1 a block's index is stable from place to release
 *  2 its word is the same in every table that names it
 *  3 a reference is in the block's list before the table's word is set, so a
 *    kill reaches every word
 *  4 the index by digest has live and killed blocks, never filling ones
 *
 * The index is a linear hash: it grows by one bucket an insertion, so that no
 * insertion stops the loop. Loop thread. */
#include "daemon/store/arena_impl.h"

#include <assert.h>

static uint32_t *bucket_at(const struct sheaf_arena *arena, uint32_t i)
{
        return (uint32_t *)arena->buckets.p + i;
}

static struct sheaf_ref *ref_at(const struct sheaf_arena *arena, uint32_t i)
{
        return (struct sheaf_ref *)arena->refs.p + i;
}

int sheaf_block_new(struct sheaf_arena *arena, uint32_t seg,
        uint64_t offset_bytes, uint32_t len_bytes, sheaf_block *ret_block)
{
        struct sheaf_segment *segment = &arena->segs[seg];
        struct sheaf_block_slot *slot;
        uint32_t block = arena->block_free;
        uint64_t word;
        int rc;

        if (block) {
                arena->block_free = sheaf_block_at(arena, block)->seg_next;
        } else {
                if (arena->block_end == SHEAF_NONE)
                        return -ENOMEM;
                rc = sheaf_vec_reserve(&arena->blocks,
                        (arena->block_end + UINT64_C(1)) * sizeof(*slot));
                if (rc < 0)
                        return rc;
                block = arena->block_end++;
        }
        if (len_bytes < SHEAF_BIG_BYTES)
                offset_bytes += SHEAF_TAG_BYTES;
        if (++arena->generation > SHEAF_WORD_GEN_MAX)
                arena->generation = 1;
        word = sheaf_word(arena->generation, offset_bytes);
        slot = sheaf_block_at(arena, block);
        *slot = (struct sheaf_block_slot){
                .word_lo = (uint32_t)word,
                .word_hi = (uint32_t)(word >> 32),
                .len_bytes = len_bytes & 0x7fffff,
                .state = SHEAF_BLOCK_FILLING,
                .seg_next = segment->block_first,
                .ref_table = SHEAF_REF_NONE,
        };
        segment->block_first = block;
        segment->live++;
        segment->filling++;
        segment->live_bytes += sheaf_block_room(len_bytes);
        segment->payload_bytes += len_bytes;
        arena->block_count++;
        *ret_block = block;
        return 0;
}

void sheaf_block_recycle(struct sheaf_arena *arena, sheaf_block block)
{
        struct sheaf_block_slot *slot = sheaf_block_at(arena, block);

        slot->state = SHEAF_BLOCK_FREE;
        slot->seg_next = arena->block_free;
        arena->block_free = block;
}

struct sheaf_block_tag *sheaf_block_tag(
        const struct sheaf_arena *arena, const struct sheaf_block_slot *slot)
{
        uint64_t at = sheaf_word_offset_bytes(sheaf_block_word(slot));
        uint64_t size = arena->pool->shape.segment_bytes;

        if (slot->len_bytes < SHEAF_BIG_BYTES)
                return sheaf_arena_at(arena, at - SHEAF_TAG_BYTES);
        return &arena->segs[at / size].big[at % size >> SHEAF_BIG_SHIFT];
}

/* A client's word may point anywhere, into bytes that are being filled too:
 * what is read there is only believed if the block it names has the word. */
__attribute__((no_sanitize("thread"))) static uint32_t guess_small(
        const struct sheaf_arena *arena, uint64_t at)
{
        const volatile struct sheaf_block_tag *tag;

        if (at % arena->pool->shape.segment_bytes < SHEAF_TAG_BYTES)
                return 0;
        tag = sheaf_arena_at(arena, at - SHEAF_TAG_BYTES);
        return tag->block;
}

static bool word_is(
        const struct sheaf_arena *arena, uint32_t block, uint64_t word)
{
        const struct sheaf_block_slot *slot;

        if (!block || block >= arena->block_end)
                return false;
        slot = sheaf_block_at(arena, block);
        return (slot->state == SHEAF_BLOCK_LIVE ||
                       slot->state == SHEAF_BLOCK_KILLED ||
                       slot->state == SHEAF_BLOCK_SEEN) &&
               sheaf_block_word(slot) == word;
}

sheaf_block sheaf_block_of_word(const struct sheaf_arena *arena, uint64_t word)
{
        uint64_t at = sheaf_word_offset_bytes(word);
        uint64_t size = arena->pool->shape.segment_bytes;
        const struct sheaf_segment *segment;
        uint64_t seg = at / size;
        uint32_t block;

        if (!word ||
                seg >= (uint64_t)arena->extent_end * arena->segs_per_extent)
                return 0;
        segment = &arena->segs[seg];
        if (segment->state == SHEAF_SEG_GONE || !segment->populated)
                return 0;
        if (segment->big) {
                block = segment->big[at % size >> SHEAF_BIG_SHIFT].block;
                if (word_is(arena, block, word))
                        return block;
        }
        block = guess_small(arena, at);
        return word_is(arena, block, word) ? block : 0;
}

/* ---- index by digest ---- */

static uint32_t bucket_of(const struct sheaf_arena *arena, uint64_t prefix)
{
        uint32_t i = (uint32_t)prefix & (arena->bucket_base - 1);

        if (i < arena->bucket_split)
                i = (uint32_t)prefix & (2 * arena->bucket_base - 1);
        return i;
}

static void bucket_split(struct sheaf_arena *arena)
{
        uint32_t from = arena->bucket_split;
        uint32_t to = from + arena->bucket_base;
        uint32_t block;

        if (arena->bucket_base >= UINT32_C(1) << 30 ||
                sheaf_vec_reserve(&arena->buckets,
                        (to + UINT64_C(1)) * sizeof(uint32_t)) < 0)
                return; /* longer chains are only slower */
        block = *bucket_at(arena, from);
        *bucket_at(arena, from) = *bucket_at(arena, to) = 0;
        if (++arena->bucket_split == arena->bucket_base) {
                arena->bucket_base *= 2;
                arena->bucket_split = 0;
        }
        while (block) {
                struct sheaf_block_slot *slot = sheaf_block_at(arena, block);
                uint32_t next = slot->hash_next;
                uint32_t *head = bucket_at(arena,
                        bucket_of(arena, sheaf_digest_prefix(
                                                 &sheaf_block_tag(arena, slot)
                                                          ->digest)));

                slot->hash_next = *head;
                *head = block;
                block = next;
        }
}

sheaf_block sheaf_arena_find(
        const struct sheaf_arena *arena, const struct sheaf_digest *digest)
{
        uint64_t prefix = sheaf_digest_prefix(digest);
        uint32_t block = *bucket_at(arena, bucket_of(arena, prefix));

        while (block) {
                struct sheaf_block_slot *slot = sheaf_block_at(arena, block);

                if (slot->tag6 == prefix >> 58 &&
                        sheaf_digest_equal(
                                digest, &sheaf_block_tag(arena, slot)->digest))
                        return block;
                block = slot->hash_next;
        }
        return 0;
}

int sheaf_block_index(struct sheaf_arena *arena, sheaf_block block,
        const struct sheaf_digest *digest)
{
        struct sheaf_block_slot *slot = sheaf_block_at(arena, block);
        struct sheaf_block_tag *tag = sheaf_block_tag(arena, slot);
        uint64_t prefix = sheaf_digest_prefix(digest);
        uint32_t *head;

        tag->digest = *digest;
        tag->block = block;
        slot->tag6 = prefix >> 58;
        if (arena->block_count > arena->bucket_base + arena->bucket_split)
                bucket_split(arena);
        head = bucket_at(arena, bucket_of(arena, prefix));
        slot->hash_next = *head;
        *head = block;
        return 0;
}

void sheaf_block_unindex(struct sheaf_arena *arena, sheaf_block block)
{
        struct sheaf_block_slot *slot = sheaf_block_at(arena, block);
        uint64_t prefix =
                sheaf_digest_prefix(&sheaf_block_tag(arena, slot)->digest);
        uint32_t *at = bucket_at(arena, bucket_of(arena, prefix));

        while (*at != block) {
                assert(*at);
                at = &sheaf_block_at(arena, *at)->hash_next;
        }
        *at = slot->hash_next;
        slot->hash_next = 0;
}

/* ---- references ---- */

static int ref_new(struct sheaf_arena *arena, uint32_t *ret_ref)
{
        uint32_t ref = arena->ref_free;
        int rc;

        if (ref != SHEAF_NONE) {
                arena->ref_free = ref_at(arena, ref)->next;
        } else {
                rc = sheaf_vec_reserve(
                        &arena->refs, (arena->ref_end + UINT64_C(1)) *
                                              sizeof(struct sheaf_ref));
                if (rc < 0)
                        return rc;
                ref = arena->ref_end++;
        }
        *ret_ref = ref;
        return 0;
}

static void ref_free(struct sheaf_arena *arena, uint32_t ref)
{
        ref_at(arena, ref)->next = arena->ref_free;
        arena->ref_free = ref;
}

int sheaf_block_ref(struct sheaf_arena *arena, sheaf_block block,
        uint16_t table, uint32_t chunk)
{
        struct sheaf_block_slot *slot = sheaf_block_at(arena, block);
        uint32_t first, second;
        int rc;

        if (slot->ref_table == SHEAF_REF_NONE) {
                slot->ref_table = table;
                slot->ref_chunk = chunk;
                return 0;
        }
        rc = ref_new(arena, &first);
        if (rc < 0)
                return rc;
        if (slot->ref_table != SHEAF_REF_MANY) {
                rc = ref_new(arena, &second);
                if (rc < 0) {
                        ref_free(arena, first);
                        return rc;
                }
                *ref_at(arena, second) = (struct sheaf_ref){
                        .chunk = slot->ref_chunk,
                        .table = slot->ref_table,
                        .next = SHEAF_NONE,
                };
                slot->ref_table = SHEAF_REF_MANY;
                slot->ref_chunk = second;
        }
        *ref_at(arena, first) = (struct sheaf_ref){
                .chunk = chunk,
                .table = table,
                .next = slot->ref_chunk,
        };
        slot->ref_chunk = first;
        return 0;
}

void sheaf_block_unref(struct sheaf_arena *arena, sheaf_block block,
        uint16_t table, uint32_t chunk)
{
        struct sheaf_block_slot *slot = sheaf_block_at(arena, block);
        uint32_t *at = &slot->ref_chunk, ref;

        if (slot->ref_table != SHEAF_REF_MANY) {
                assert(slot->ref_table == table);
                assert(slot->ref_chunk == chunk);
                slot->ref_table = SHEAF_REF_NONE;
                return;
        }
        while (ref_at(arena, *at)->table != table ||
                ref_at(arena, *at)->chunk != chunk)
                at = &ref_at(arena, *at)->next;
        ref = *at;
        *at = ref_at(arena, ref)->next;
        ref_free(arena, ref);
        /* A single one moves back inline. */
        ref = slot->ref_chunk;
        if (ref_at(arena, ref)->next == SHEAF_NONE) {
                slot->ref_table = ref_at(arena, ref)->table;
                slot->ref_chunk = ref_at(arena, ref)->chunk;
                ref_free(arena, ref);
        }
}

static void set_word(struct sheaf_arena *arena, uint16_t id, uint32_t chunk,
        uint64_t word, uint32_t len_bytes)
{
        struct sheaf_table *table = arena->tables[id];

        if (word) {
                sheaf_pin_set(&table->words[chunk], word);
                table->resident++;
                table->resident_bytes += len_bytes;
        } else if (sheaf_pin_kill(&table->words[chunk])) {
                table->resident--;
                table->resident_bytes -= len_bytes;
        }
}

static void set_words(
        struct sheaf_arena *arena, sheaf_block block, uint64_t word)
{
        struct sheaf_block_slot *slot = sheaf_block_at(arena, block);

        if (slot->ref_table == SHEAF_REF_NONE)
                return;
        if (slot->ref_table != SHEAF_REF_MANY) {
                set_word(arena, slot->ref_table, slot->ref_chunk, word,
                        slot->len_bytes);
                return;
        }
        for (uint32_t r = slot->ref_chunk; r != SHEAF_NONE;
                r = ref_at(arena, r)->next)
                set_word(arena, ref_at(arena, r)->table,
                        ref_at(arena, r)->chunk, word, slot->len_bytes);
}

void sheaf_block_kill(struct sheaf_arena *arena, sheaf_block block)
{
        set_words(arena, block, 0);
}

void sheaf_block_show(struct sheaf_arena *arena, sheaf_block block)
{
        set_words(arena, block, sheaf_block_word(sheaf_block_at(arena, block)));
}

static void drop_refs(struct sheaf_arena *arena, struct sheaf_block_slot *slot)
{
        uint32_t ref = slot->ref_chunk;

        if (slot->ref_table == SHEAF_REF_MANY)
                while (ref != SHEAF_NONE) {
                        uint32_t next = ref_at(arena, ref)->next;

                        ref_free(arena, ref);
                        ref = next;
                }
        slot->ref_table = SHEAF_REF_NONE;
}

void sheaf_block_release(struct sheaf_arena *arena, sheaf_block block)
{
        struct sheaf_block_slot *slot = sheaf_block_at(arena, block);
        uint32_t seg = sheaf_block_seg(arena, slot);
        struct sheaf_segment *segment = &arena->segs[seg];
        uint32_t room = sheaf_block_room(slot->len_bytes);

        assert(slot->holds == 0);
        drop_refs(arena, slot);
        if (slot->state == SHEAF_BLOCK_FILLING) {
                segment->filling--;
        } else {
                sheaf_block_unindex(arena, block);
                arena->stats.payload_bytes -= slot->len_bytes;
                arena->stats.blocks--;
                arena->stats.evicted_blocks++;
                arena->stats.evicted_bytes += slot->len_bytes;
        }
        slot->state = SHEAF_BLOCK_DEAD;
        segment->live--;
        segment->dead++;
        segment->live_bytes -= room;
        segment->payload_bytes -= slot->len_bytes;
        arena->block_count--;
        if (segment->state == SHEAF_SEG_OPEN ||
                segment->state == SHEAF_SEG_READY ||
                segment->state == SHEAF_SEG_PARKED)
                sheaf_seg_gap_add(arena, seg,
                        (uint32_t)(sheaf_block_begin(slot) %
                                   arena->pool->shape.segment_bytes),
                        room);
}

sheaf_block sheaf_arena_commit(struct sheaf_space *space, sheaf_block block,
        const struct sheaf_digest *digest, struct sheaf_table *table,
        uint64_t chunk)
{
        struct sheaf_arena *arena = space->arena;
        struct sheaf_block_slot *slot = sheaf_block_at(arena, block);
        sheaf_block old = sheaf_arena_find(arena, digest);

        assert(slot->state == SHEAF_BLOCK_FILLING);
        space->chunks_max = SHEAF_MAX(space->chunks_max, table->chunk_count);
        if (old) {
                sheaf_arena_abort(space, block);
                block = old;
        } else {
                slot->state = SHEAF_BLOCK_LIVE;
                arena->segs[sheaf_block_seg(arena, slot)].filling--;
                sheaf_block_index(arena, block, digest);
                space->placed_blocks++;
                space->placed_bytes += slot->len_bytes;
                arena->stats.blocks++;
                arena->stats.payload_bytes += slot->len_bytes;
                arena->stats.placed_blocks++;
                arena->stats.placed_bytes += slot->len_bytes;
        }
        /* Without memory for a second name the chunk stays a miss. */
        (void)!sheaf_arena_join(arena, block, table, chunk);
        return block;
}

void sheaf_arena_abort(struct sheaf_space *space, sheaf_block block)
{
        struct sheaf_arena *arena = space->arena;
        uint32_t seg = sheaf_block_seg(arena, sheaf_block_at(arena, block));

        assert(sheaf_block_at(arena, block)->state == SHEAF_BLOCK_FILLING);
        sheaf_block_release(arena, block);
        sheaf_seg_settle(arena, seg);
}

const void *sheaf_arena_hold(
        struct sheaf_arena *arena, sheaf_block block, uint32_t *ret_len_bytes)
{
        struct sheaf_block_slot *slot = sheaf_block_at(arena, block);

        assert(slot->state == SHEAF_BLOCK_LIVE);
        assert(slot->holds < UINT16_MAX);
        if (slot->holds++ == 0)
                arena->segs[sheaf_block_seg(arena, slot)].held++;
        *ret_len_bytes = slot->len_bytes;
        return sheaf_arena_at(
                arena, sheaf_word_offset_bytes(sheaf_block_word(slot)));
}

void sheaf_arena_unhold(struct sheaf_arena *arena, sheaf_block block)
{
        struct sheaf_block_slot *slot = sheaf_block_at(arena, block);

        assert(slot->holds);
        if (--slot->holds)
                return;
        arena->segs[sheaf_block_seg(arena, slot)].held--;
        if (!sheaf_block_named(slot))
                sheaf_reclaim_blocks(arena, &block, 1);
}
