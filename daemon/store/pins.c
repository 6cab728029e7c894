/* SPDX-License-Identifier: Apache-2.0 */
/* What clients hold: hazard arrays, grants, and ghosts of forked ones.
 *
 *  1 the hazard memfd is made and sealed here: a client cannot shrink it
 *    under the daemon
 *  2 nothing in it is believed but "this word is held": words are compared
 *    with killed ones, and the mark is bounded
 *  3 grants of an arena sum up to half of its possible bytes at most, and
 *    one falls only by its client's own wish
 *
 * Loop thread; clients write their slots at any time. */
#include "daemon/store/arena_impl.h"

#include <time.h>

static int64_t now_ns(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return ts.tv_sec * SHEAF_NS_PER_SEC + ts.tv_nsec;
}

int sheaf_pins_new(struct sheaf_arena *arena, struct sheaf_pins **ret_pins)
{
        sheaf_autofree struct sheaf_pins *pins = NULL;
        void *map = NULL;
        int rc;

        if (arena->stats.clients >= SHEAF_PINS_CLIENTS_MAX)
                return -EUSERS;
        pins = sheaf_new(struct sheaf_pins, 1);
        if (!pins)
                return -ENOMEM;
        rc = sheaf_extent_memfd("sheaf-pins",
                sheaf_round_up(sizeof(struct sheaf_hazard), 4096), false,
                &pins->fd, &map);
        if (rc < 0)
                return rc;
        pins->arena = arena;
        pins->hazard = map;
        pins->hazard->magic = SHEAF_HAZARD_MAGIC;
        pins->hazard->layout = SHEAF_SHM_LAYOUT;
        pins->hazard->slot_count = SHEAF_HAZARD_SLOTS;
        pins->next = arena->pins;
        if (arena->pins)
                arena->pins->prev = pins;
        arena->pins = pins;
        arena->stats.clients++;
        *ret_pins = sheaf_steal(&pins);
        return 0;
}

void sheaf_pins_free(struct sheaf_pins *pins)
{
        struct sheaf_arena *arena;

        if (!pins)
                return;
        arena = pins->arena;
        if (pins->next)
                pins->next->prev = pins->prev;
        if (pins->prev)
                pins->prev->next = pins->next;
        else
                arena->pins = pins->next;
        arena->stats.clients--;
        arena->granted_bytes -= pins->grant_bytes;
        munmap(pins->hazard, sheaf_round_up(sizeof(*pins->hazard), 4096));
        close(pins->fd);
        sheaf_unmaps_all(arena, &pins->unmaps);
        free(pins);
        sheaf_reclaim_retry(arena);
}

int sheaf_pins_fd(const struct sheaf_pins *pins)
{
        return pins->fd;
}

uint64_t sheaf_pins_grant(struct sheaf_pins *pins, uint64_t want_bytes)
{
        struct sheaf_arena *arena = pins->arena;
        uint64_t limit = arena->pool->shape.bytes_max / 2;
        uint64_t others = arena->granted_bytes - pins->grant_bytes;

        arena->granted_bytes = others;
        pins->grant_bytes = SHEAF_MIN(want_bytes, limit - others);
        arena->granted_bytes += pins->grant_bytes;
        return pins->grant_bytes;
}

void sheaf_pins_unmapped(struct sheaf_pins *pins, uint32_t extent)
{
        struct sheaf_unmaps *unmaps = &pins->unmaps;

        for (uint32_t i = 0; i < unmaps->count; i++) {
                if (unmaps->extent[i] != extent)
                        continue;
                unmaps->extent[i] = unmaps->extent[--unmaps->count];
                sheaf_arena_unmapped(pins->arena, extent);
                return;
        }
}

static uint64_t held(struct sheaf_arena *arena, const _Atomic uint64_t *slots,
        uint64_t n, uint64_t *blocks)
{
        uint64_t bytes = 0;

        for (uint64_t i = 0; i < n; i++) {
                uint64_t word = sheaf_pin_held(&slots[i]);
                sheaf_block block;

                if (!word)
                        continue;
                block = sheaf_block_of_word(arena, word);
                if (!block)
                        continue;
                ++*blocks;
                bytes += sheaf_block_at(arena, block)->len_bytes;
        }
        return bytes;
}

uint64_t sheaf_pins_held(struct sheaf_pins *pins, uint64_t *ret_blocks)
{
        uint64_t blocks = 0;
        uint64_t bytes = held(pins->arena, pins->hazard->slot,
                sheaf_pin_mark(pins->hazard), &blocks);

        if (ret_blocks)
                *ret_blocks = blocks;
        return bytes;
}

uint64_t sheaf_arena_pinned_bytes(struct sheaf_arena *arena)
{
        uint64_t bytes = 0, blocks = 0;

        for (struct sheaf_pins *p = arena->pins; p; p = p->next)
                bytes += sheaf_pins_held(p, &blocks);
        for (struct sheaf_ghost *g = arena->ghosts; g; g = g->next)
                bytes += held(arena, g->words, g->word_count, &blocks);
        return bytes;
}

int sheaf_ghost_new(struct sheaf_pins *pins, struct sheaf_ghost **ret_ghost)
{
        struct sheaf_arena *arena = pins->arena;
        sheaf_autofree struct sheaf_ghost *ghost =
                sheaf_new(struct sheaf_ghost, 1);
        uint64_t mark = sheaf_pin_mark(pins->hazard);
        sheaf_autofree _Atomic uint64_t *words =
                sheaf_new(_Atomic uint64_t, mark + 1);

        if (!ghost || !words)
                return -ENOMEM;
        for (uint64_t i = 0; i < mark; i++) {
                uint64_t word = sheaf_pin_held(&pins->hazard->slot[i]);

                if (word)
                        atomic_init(&words[ghost->word_count++], word);
        }
        /* The child maps what its parent mapped. */
        for (uint32_t i = 0; i < pins->unmaps.count; i++) {
                int rc = sheaf_unmaps_add(
                        &ghost->unmaps, pins->unmaps.extent[i]);

                if (rc < 0) {
                        free(ghost->unmaps.extent);
                        return rc;
                }
        }
        for (uint32_t i = 0; i < ghost->unmaps.count; i++)
                arena->extents[ghost->unmaps.extent[i]].waiters++;
        ghost->arena = arena;
        ghost->words = sheaf_steal(&words);
        ghost->next = arena->ghosts;
        if (arena->ghosts)
                arena->ghosts->prev = ghost;
        arena->ghosts = ghost;
        arena->stats.ghosts++;
        *ret_ghost = sheaf_steal(&ghost);
        return 0;
}

void sheaf_ghost_free(struct sheaf_ghost *ghost)
{
        struct sheaf_arena *arena;

        if (!ghost)
                return;
        arena = ghost->arena;
        if (ghost->next)
                ghost->next->prev = ghost->prev;
        if (ghost->prev)
                ghost->prev->next = ghost->next;
        else
                arena->ghosts = ghost->next;
        arena->stats.ghosts--;
        sheaf_unmaps_all(arena, &ghost->unmaps);
        free(ghost->words);
        free(ghost);
        sheaf_reclaim_retry(arena);
}

/* Bytes of the killed block with that word if it was not yet seen. */
static uint64_t look_up(struct sheaf_arena *arena, uint64_t word, uint64_t i)
{
        const struct sheaf_killed *killed = &arena->killed;
        struct sheaf_block_slot *slot;

        while (killed->word[i] != word) {
                if (!killed->word[i])
                        return 0;
                i = (i + 1) & (killed->cap - 1);
        }
        slot = sheaf_block_at(arena, killed->block[i]);
        if (slot->state != SHEAF_BLOCK_KILLED)
                return 0;
        slot->state = SHEAF_BLOCK_SEEN;
        return slot->len_bytes;
}

static uint64_t scan(
        struct sheaf_arena *arena, const _Atomic uint64_t *slots, uint64_t n)
{
        const uint8_t *filter = arena->killed.filter;
        unsigned int shift = arena->killed.shift - 3;
        uint64_t bytes = 0;

        for (uint64_t i = 0; i < n; i++) {
                uint64_t word = sheaf_pin_held(&slots[i]);
                uint64_t hash = sheaf_killed_hash(word);
                uint64_t bit = hash >> shift;

                if (SHEAF_UNLIKELY(filter[bit / 8] >> bit % 8 & 1) && word)
                        bytes += look_up(
                                arena, word, hash >> arena->killed.shift);
        }
        return bytes;
}

uint64_t sheaf_pins_scan(struct sheaf_arena *arena)
{
        int64_t begin = now_ns(), took;
        uint64_t bytes = 0, slots = 0;

        for (struct sheaf_pins *p = arena->pins; p; p = p->next) {
                uint64_t mark = sheaf_pin_mark(p->hazard);

                slots += mark;
                bytes += scan(arena, p->hazard->slot, mark);
        }
        for (struct sheaf_ghost *g = arena->ghosts; g; g = g->next) {
                slots += g->word_count;
                bytes += scan(arena, g->words, g->word_count);
        }
        took = now_ns() - begin;
        arena->stats.scans++;
        arena->stats.scans_met_pin += bytes != 0;
        arena->stats.scanned_slots += slots;
        arena->stats.scan_ns += (uint64_t)took;
        if ((uint64_t)took > arena->stats.scan_ns_max)
                arena->stats.scan_ns_max = (uint64_t)took;
        return bytes;
}
