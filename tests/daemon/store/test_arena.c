/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/daemon/store/arena_util.h"

#include <errno.h>

Test(arena, shapes)
{
        struct sheaf_arena_shape shape;

        cr_expect_eq(sheaf_arena_shape(32 * SHEAF_MIB - 1, &shape), -ERANGE);
        for (uint64_t bytes = 32 * SHEAF_MIB; bytes <= 4096 * SHEAF_GIB;
                bytes += bytes / 97) {
                cr_assert_eq(sheaf_arena_shape(bytes, &shape), 0);
                cr_expect(bytes < 128 * SHEAF_MIB ||
                          sheaf_is_pow2(shape.segment_bytes));
                cr_expect_eq(shape.segment_bytes % (2 * SHEAF_MIB), 0);
                cr_expect_geq(shape.segment_bytes, SHEAF_CHUNK_BYTES_MAX);
                cr_expect_leq(shape.segment_bytes, 64 * SHEAF_MIB);
                cr_expect_leq(shape.segment_bytes, bytes / 8);
                cr_expect_eq(shape.extent_bytes % shape.segment_bytes, 0);
                cr_expect_leq(shape.extent_bytes,
                        SHEAF_MAX(bytes / 8, shape.segment_bytes));
                /* What is not used for lack of a whole extent. */
                cr_expect_leq(bytes % shape.extent_bytes, bytes / 8);
        }
        cr_assert_eq(sheaf_arena_shape(256 * SHEAF_GIB, &shape), 0);
        cr_expect_eq(shape.extent_bytes, 4 * SHEAF_GIB);
        cr_expect_eq(shape.segment_bytes, 64 * SHEAF_MIB);
}

Test(arena, refuses_bad_shapes)
{
        struct sheaf_arena_config config = { .bytes_max = 64 * SHEAF_MIB };
        struct sheaf_arena_pool *pool = NULL;

        config.segment_bytes = 2 * SHEAF_MIB;
        cr_expect_eq(sheaf_arena_pool_new(&config, &pool), -EINVAL);
        config.segment_bytes = 5 * SHEAF_MIB;
        cr_expect_eq(sheaf_arena_pool_new(&config, &pool), -EINVAL);
        config.segment_bytes = 12 * SHEAF_MIB;
        cr_expect_eq(sheaf_arena_pool_new(&config, &pool), -EINVAL);
        config.segment_bytes = 8 * SHEAF_MIB;
        config.extent_bytes = 12 * SHEAF_MIB;
        cr_expect_eq(sheaf_arena_pool_new(&config, &pool), -EINVAL);
        config.extent_bytes = 128 * SHEAF_MIB;
        cr_expect_eq(sheaf_arena_pool_new(&config, &pool), -EINVAL);
        cr_expect_null(pool);
}

Test(arena, takes_memory_as_it_fills)
{
        struct sheaf_arena_pool_stats stats;
        struct rig rig;

        rig_open(&rig, 128 * SHEAF_MIB, 10000);
        sheaf_arena_pool_stats(rig.pool, &stats);
        cr_expect_eq(stats.bytes_mapped, 0);
        cr_assert_eq(put(&rig, 0), 0);
        sheaf_arena_pool_stats(rig.pool, &stats);
        cr_expect_eq(stats.bytes_mapped, 16 * SHEAF_MIB);
        cr_expect_eq(rig.extents_new, 1);
        for (uint64_t i = 1; i < 3000; i++) {
                cr_assert_eq(put(&rig, i), 0);
                sheaf_arena_pool_stats(rig.pool, &stats);
                cr_assert_leq(stats.bytes_mapped, stats.bytes_max);
        }
        cr_expect_eq(stats.bytes_mapped, 128 * SHEAF_MIB);
        cr_expect_eq(rig.extents_new, 8);
        rig_close(&rig);
}

Test(arena, equal_chunks_are_one_block)
{
        struct sheaf_table *other;
        struct sheaf_arena_stats stats;
        struct rig rig;

        rig_open(&rig, 64 * SHEAF_MIB, 100);
        cr_assert_eq(sheaf_table_new(rig.arena, 8, 100, &other), 0);
        for (uint64_t i = 0; i < 50; i++) {
                cr_assert_eq(put(&rig, i), 0);
                cr_assert_eq(put_in(&rig, rig.space, other, i), 0);
                cr_expect_eq(sheaf_table_block(rig.table, i),
                        sheaf_table_block(other, i));
        }
        stats = rig_stats(&rig);
        cr_expect_eq(stats.blocks, 50);

        const _Atomic uint64_t *a = words_map(rig.table, 100);
        const _Atomic uint64_t *b = words_map(other, 100);

        for (uint64_t i = 0; i < 50; i++)
                cr_expect_eq(atomic_load(&a[i]), atomic_load(&b[i]));
        sheaf_table_free(other);
        cr_expect_eq(rig_stats(&rig).blocks, 50);
        for (uint64_t i = 0; i < 50; i++)
                cr_expect(intact(&rig, i));
        rig_close(&rig);
}

/* The budget is hard over all arenas: an idle one gives an extent, whose
 * bytes stay counted until its clients have let go. */
Test(arena, idle_arena_gives_extents_when_unmapped)
{
        struct sheaf_arena_pool_stats stats;
        struct sheaf_arena *other;
        struct sheaf_space *space;
        struct sheaf_table *table;
        struct sheaf_pins *pins[2];
        struct rig rig;
        int fd, lock_fd;

        rig_open(&rig, 64 * SHEAF_MIB, 10000);
        for (int i = 0; i < 2; i++)
                cr_assert_eq(sheaf_pins_new(rig.arena, &pins[i]), 0);
        for (uint64_t i = 0; i < 1000; i++)
                cr_assert_eq(put(&rig, i), 0);
        cr_assert_eq(sheaf_arena_new(rig.pool, "other", &other), 0);
        cr_assert_eq(sheaf_space_new(other, "set", &space), 0);
        cr_assert_eq(sheaf_table_new(other, 9, 10000, &table), 0);
        sheaf_space_set_live(space, true, 2);
        sheaf_space_set_live(rig.space, false, 2);

        cr_expect_eq(put_in(&rig, space, table, 0), -ENOBUFS);
        cr_assert_eq(rig.extents_dropped, 1);
        cr_expect_eq(rig.dropped_of[0], rig.arena);
        sheaf_arena_pool_stats(rig.pool, &stats);
        cr_expect_eq(stats.bytes_mapped, 64 * SHEAF_MIB);
        cr_expect_eq(stats.bytes_dropped_held, 8 * SHEAF_MIB);
        cr_expect_eq(
                sheaf_arena_extent(rig.arena, rig.dropped[0], &fd, &lock_fd),
                -ENOENT);
        /* Only one is asked back at a time. */
        cr_expect_eq(put_in(&rig, space, table, 0), -ENOBUFS);
        cr_expect_eq(rig.extents_dropped, 1);

        sheaf_pins_unmapped(pins[0], rig.dropped[0]);
        sheaf_pins_unmapped(pins[0], rig.dropped[0]); /* lies change nothing */
        sheaf_pins_unmapped(pins[0], 12345);
        cr_expect_eq(put_in(&rig, space, table, 0), -ENOBUFS);
        sheaf_pins_free(pins[1]); /* death counts as unmapping */
        cr_expect_eq(put_in(&rig, space, table, 0), 0);
        for (uint64_t i = 0; i < 10000; i++)
                if (resident(&rig, i))
                        cr_assert(intact(&rig, i));
        sheaf_pins_free(pins[0]);
        for (uint64_t i = 1; i < 1000; i++)
                cr_expect_eq(put_in(&rig, space, table, i), 0);
        /* The idle one gave all. */
        cr_expect_eq(rig_stats(&rig).bytes, 0);
        sheaf_table_free(table);
        sheaf_space_free(space);
        sheaf_arena_free(other);
        rig_close(&rig);
}

/* A dropped extent does not disturb who still reads it. */
Test(arena, dropped_extent_stays_readable)
{
        struct sheaf_arena *other;
        struct sheaf_space *space;
        struct sheaf_table *table;
        struct sheaf_pins *pins;
        struct rig rig;
        const uint8_t *map;
        int fd, lock_fd;

        rig_open(&rig, 32 * SHEAF_MIB, 1000);
        cr_assert_eq(sheaf_pins_new(rig.arena, &pins), 0);
        for (uint64_t i = 0; i < 400; i++)
                cr_assert_eq(put(&rig, i), 0);

        uint32_t end = sheaf_arena_extent_end(rig.arena);
        const _Atomic uint64_t *words = words_map(rig.table, 1000);
        uint64_t seen[1000];

        for (int i = 0; i < 1000; i++)
                seen[i] = atomic_load(&words[i]);
        cr_assert_eq(end, 8);
        map = mmap(NULL, 32 * SHEAF_MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS,
                -1, 0);
        for (uint32_t i = 0; i < end; i++) {
                cr_assert_eq(
                        sheaf_arena_extent(rig.arena, i, &fd, &lock_fd), 0);
                cr_assert(mmap((void *)(uintptr_t)(map + i * 4 * SHEAF_MIB),
                                  4 * SHEAF_MIB, PROT_READ,
                                  MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
        }
        cr_assert_eq(sheaf_arena_new(rig.pool, "other", &other), 0);
        cr_assert_eq(sheaf_space_new(other, "set", &space), 0);
        cr_assert_eq(sheaf_table_new(other, 9, 1000, &table), 0);
        sheaf_space_set_live(space, true, 2);
        sheaf_space_set_live(rig.space, false, 2);
        cr_expect_eq(put_in(&rig, space, table, 500), -ENOBUFS);
        cr_assert_eq(rig.extents_dropped, 1);
        for (uint64_t i = 0; i < 1000; i++) {
                if (!seen[i])
                        continue;
                cr_assert(chunk_good(
                        i, map + sheaf_word_offset_bytes(seen[i]), rig.len(i)));
                cr_expect_eq(atomic_load(&words[i]) == 0,
                        sheaf_word_offset_bytes(seen[i]) / (4 * SHEAF_MIB) ==
                                rig.dropped[0]);
        }
        sheaf_pins_free(pins);
        sheaf_table_free(table);
        sheaf_space_free(space);
        sheaf_arena_free(other);
        rig_close(&rig);
}

/* With nobody idle, a newcomer gets its half; then both keep theirs. */
Test(arena, live_arenas_share_evenly)
{
        struct sheaf_arena_stats stats;
        struct sheaf_arena *other;
        struct sheaf_space *space;
        struct sheaf_table *table;
        struct rig rig;

        rig_open(&rig, 128 * SHEAF_MIB, 20000);
        for (uint64_t i = 0; i < 2000; i++)
                cr_assert_eq(put(&rig, i), 0);
        cr_assert_eq(sheaf_arena_new(rig.pool, "other", &other), 0);
        cr_assert_eq(sheaf_space_new(other, "set", &space), 0);
        cr_assert_eq(sheaf_table_new(other, 9, 20000, &table), 0);
        sheaf_space_set_live(space, true, 2);
        for (uint64_t i = 0; i < 4000; i++)
                cr_assert_eq(put_in(&rig, space, table, i), 0);
        for (uint64_t i = 2000; i < 4000; i++)
                cr_assert_eq(put(&rig, i), 0);
        sheaf_arena_stats(other, &stats);
        cr_expect_eq(stats.bytes, 64 * SHEAF_MIB);
        cr_expect_eq(rig_stats(&rig).bytes, 64 * SHEAF_MIB);
        sheaf_table_free(table);
        sheaf_space_free(space);
        sheaf_arena_free(other);
        rig_close(&rig);
}
