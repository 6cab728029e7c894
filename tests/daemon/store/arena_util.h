/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the memory tier: an arena with one dataset, chunks whose bytes
 * follow from their number, and a client that maps it in this process. */
#ifndef SHEAF_TESTS_ARENA_UTIL_H
#define SHEAF_TESTS_ARENA_UTIL_H

#include "daemon/store/arena.h"
#include "proto/pin.h"

#include <criterion/criterion.h>

struct rig {
        struct sheaf_arena_pool *pool;
        struct sheaf_arena *arena;
        struct sheaf_space *space;
        struct sheaf_table *table;
        uint32_t (*len)(uint64_t chunk); /* bytes of a chunk */
        unsigned int extents_new, extents_dropped;
        uint32_t dropped[64];
        struct sheaf_arena *dropped_of[64];
};

static inline uint64_t mix(uint64_t x)
{
        x ^= x >> 33;
        x *= UINT64_C(0xff51afd7ed558ccd);
        x ^= x >> 33;
        x *= UINT64_C(0xc4ceb9fe1a85ec53);
        return x ^ x >> 33;
}

/* Different bytes at every offset of every chunk, cheap to make and check. */
static inline void chunk_fill(uint64_t chunk, void *bytes, uint32_t len)
{
        uint64_t key = mix(chunk + 1), word;

        for (uint32_t i = 0; i < len; i += 8) {
                word = key ^ i;
                memcpy((uint8_t *)bytes + i, &word,
                        SHEAF_MIN(len - i, (uint32_t)8));
        }
}

static inline bool chunk_good(uint64_t chunk, const void *bytes, uint32_t len)
{
        uint64_t key = mix(chunk + 1), diff = 0, word, got;

        for (uint32_t i = 0; i < len; i += 8) {
                word = key ^ i;
                got = word;
                memcpy(&got, (const uint8_t *)bytes + i,
                        SHEAF_MIN(len - i, (uint32_t)8));
                diff |= got ^ word;
        }
        return diff == 0;
}

static inline void rig_extent_new(
        void *arg, struct sheaf_arena *arena, uint32_t extent)
{
        (void)arena;
        (void)extent;
        ((struct rig *)arg)->extents_new++;
}

static inline void rig_extent_dropped(
        void *arg, struct sheaf_arena *arena, uint32_t extent)
{
        struct rig *rig = arg;

        cr_assert(rig->extents_dropped < 64);
        rig->dropped_of[rig->extents_dropped] = arena;
        rig->dropped[rig->extents_dropped++] = extent;
}

static inline uint32_t len_100k(uint64_t chunk)
{
        return 60000 + (uint32_t)(mix(chunk) % 80000);
}

static inline void rig_open(
        struct rig *rig, uint64_t bytes_max, uint64_t chunks)
{
        struct sheaf_arena_config config = {
                .bytes_max = bytes_max,
                .extent_new = rig_extent_new,
                .extent_dropped = rig_extent_dropped,
                .arg = rig,
        };

        memset(rig, 0, sizeof(*rig));
        rig->len = len_100k;
        cr_assert_eq(sheaf_arena_pool_new(&config, &rig->pool), 0);
        cr_assert_eq(sheaf_arena_new(rig->pool, "test", &rig->arena), 0);
        cr_assert_eq(sheaf_space_new(rig->arena, "set", &rig->space), 0);
        sheaf_space_set_live(rig->space, true, 1);
        cr_assert_eq(sheaf_table_new(rig->arena, 7, chunks, &rig->table), 0);
}

static inline struct sheaf_arena_stats rig_stats(const struct rig *rig)
{
        struct sheaf_arena_stats stats;

        sheaf_arena_stats(rig->arena, &stats);
        return stats;
}

static inline void rig_close(struct rig *rig)
{
        struct sheaf_arena_pool_stats stats;

        sheaf_table_free(rig->table);
        sheaf_space_free(rig->space);
        cr_expect_eq(rig_stats(rig).blocks, 0, "a block leaked");
        cr_expect_eq(rig_stats(rig).payload_bytes, 0);
        sheaf_arena_free(rig->arena);
        sheaf_arena_pool_stats(rig->pool, &stats);
        cr_expect_eq(stats.bytes_mapped, 0, "an extent leaked");
        cr_expect_eq(stats.bytes_dropped_held, 0);
        sheaf_arena_pool_free(rig->pool);
}

static inline struct sheaf_digest chunk_digest(uint64_t chunk)
{
        struct sheaf_digest digest;

        sheaf_digest_of(&chunk, sizeof(chunk), &digest);
        return digest;
}

/* Brings a chunk as a miss would: its own bytes, one block. */
static inline int put_in(const struct rig *rig, struct sheaf_space *space,
        struct sheaf_table *table, uint64_t chunk)
{
        struct sheaf_digest digest = chunk_digest(chunk);
        uint32_t len = rig->len(chunk);
        sheaf_block block;
        void *bytes;
        int rc = sheaf_arena_place(space, len, &block, &bytes);

        if (rc < 0)
                return rc;
        chunk_fill(chunk, bytes, len);
        sheaf_arena_commit(space, block, &digest, table, chunk);
        return 0;
}

static inline int put(const struct rig *rig, uint64_t chunk)
{
        return put_in(rig, rig->space, rig->table, chunk);
}

static inline bool resident(const struct rig *rig, uint64_t chunk)
{
        return sheaf_table_block(rig->table, chunk) != 0;
}

/* Whether a resident chunk has its bytes, as the daemon sees them. */
static inline bool intact(const struct rig *rig, uint64_t chunk)
{
        sheaf_block block = sheaf_table_block(rig->table, chunk);
        const void *bytes;
        uint32_t len;
        bool good;

        if (!block)
                return false;
        bytes = sheaf_arena_hold(rig->arena, block, &len);
        good = len == rig->len(chunk) && chunk_good(chunk, bytes, len);
        sheaf_arena_unhold(rig->arena, block);
        return good;
}

/* ---- a client in this process ---- */

static inline struct sheaf_hazard *hazard_map(const struct sheaf_pins *pins)
{
        void *map = mmap(NULL, sizeof(struct sheaf_hazard),
                PROT_READ | PROT_WRITE, MAP_SHARED, sheaf_pins_fd(pins), 0);

        cr_assert(map != MAP_FAILED);
        return map;
}

static inline const _Atomic uint64_t *words_map(
        const struct sheaf_table *table, uint64_t chunks)
{
        uint8_t *map = mmap(NULL, sheaf_table_bytes(chunks), PROT_READ,
                MAP_SHARED, sheaf_table_fd(table), 0);

        cr_assert(map != MAP_FAILED);
        return (const _Atomic uint64_t *)(const void
                        *)(map + SHEAF_TABLE_WORDS_OFFSET);
}

/* Pins by hand: slot @i of @hazard gets the chunk's word. */
static inline uint64_t hold(struct sheaf_hazard *hazard, uint32_t i,
        const _Atomic uint64_t *words, uint64_t chunk)
{
        uint64_t word = atomic_load(&words[chunk]);

        cr_assert_neq(word, 0);
        sheaf_pin_raise_mark(hazard, i + 1);
        cr_assert(sheaf_pin_publish(&hazard->slot[i], word));
        return word;
}

#endif
