/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/daemon/store/arena_util.h"

#include <errno.h>

Test(table, header_and_words)
{
        struct sheaf_table_header *header;
        const _Atomic uint64_t *words;
        struct rig rig;

        rig_open(&rig, 32 * SHEAF_MIB, 1000);
        header = mmap(NULL, sheaf_table_bytes(1000), PROT_READ, MAP_SHARED,
                sheaf_table_fd(rig.table), 0);
        cr_assert(header != MAP_FAILED);
        cr_expect_eq(header->magic, SHEAF_TABLE_MAGIC);
        cr_expect_eq(header->layout, SHEAF_SHM_LAYOUT);
        cr_expect_eq(header->word_count, 1000);
        cr_expect_eq(header->version_serial, 7);
        words = words_map(rig.table, 1000);
        for (int i = 0; i < 1000; i++)
                cr_assert_eq(atomic_load(&words[i]), 0);
        cr_assert_eq(put(&rig, 5), 0);
        cr_expect_neq(atomic_load(&words[5]), 0);
        cr_expect_eq(sheaf_table_resident(rig.table, NULL), 1);
        rig_close(&rig);
}

Test(table, evict_drops_one_name)
{
        struct sheaf_table *other;
        struct rig rig;
        uint64_t bytes;

        rig_open(&rig, 32 * SHEAF_MIB, 100);
        cr_assert_eq(sheaf_table_new(rig.arena, 8, 100, &other), 0);
        cr_assert_eq(put(&rig, 5), 0);
        cr_assert_eq(sheaf_arena_join(rig.arena,
                             sheaf_table_block(rig.table, 5), other, 9),
                0);
        cr_assert_eq(sheaf_arena_join(rig.arena,
                             sheaf_table_block(rig.table, 5), other, 10),
                0);
        cr_expect(sheaf_table_evict(rig.table, 5));
        cr_expect_not(sheaf_table_evict(rig.table, 5));
        cr_expect_eq(rig_stats(&rig).blocks, 1);
        cr_expect(sheaf_table_evict(other, 9));
        cr_expect_eq(rig_stats(&rig).blocks, 1);
        cr_expect_neq(sheaf_table_block(other, 10), 0);
        cr_expect(sheaf_table_evict(other, 10));
        cr_expect_eq(rig_stats(&rig).blocks, 0);
        cr_expect_eq(sheaf_table_resident(other, &bytes), 0);
        cr_expect_eq(bytes, 0);
        sheaf_table_free(other);
        rig_close(&rig);
}

Test(table, evicted_while_held_is_an_orphan)
{
        struct sheaf_digest digest = chunk_digest(5);
        struct sheaf_pins *pins;
        struct sheaf_hazard *hazard;
        sheaf_block block;
        uint64_t word;
        struct rig rig;

        rig_open(&rig, 32 * SHEAF_MIB, 100);
        cr_assert_eq(sheaf_pins_new(rig.arena, &pins), 0);
        hazard = hazard_map(pins);
        cr_assert_eq(put(&rig, 5), 0);
        block = sheaf_table_block(rig.table, 5);
        word = hold(hazard, 3, words_map(rig.table, 100), 5);
        cr_expect(sheaf_table_evict(rig.table, 5));
        cr_expect_not(resident(&rig, 5));
        cr_expect_eq(rig_stats(&rig).blocks, 1);
        /* Asked for again, it is there, and the word is the same. */
        cr_expect_eq(sheaf_arena_find(rig.arena, &digest), block);
        cr_assert_eq(sheaf_arena_join(rig.arena, block, rig.table, 5), 0);
        cr_expect_eq(atomic_load(&words_map(rig.table, 100)[5]), word);
        cr_expect(intact(&rig, 5));
        cr_expect(sheaf_table_evict(rig.table, 5));
        cr_expect_eq(rig_stats(&rig).blocks, 1);
        sheaf_pins_free(pins); /* death lets go */
        cr_expect_eq(rig_stats(&rig).blocks, 0);
        cr_expect_eq(sheaf_arena_find(rig.arena, &digest), 0);
        rig_close(&rig);
}

Test(table, freed_table_leaves_what_others_name)
{
        struct sheaf_table *other;
        struct rig rig;

        rig_open(&rig, 128 * SHEAF_MIB, 1000);
        cr_assert_eq(sheaf_table_new(rig.arena, 8, 1000, &other), 0);
        for (uint64_t i = 0; i < 900; i++) {
                cr_assert_eq(put(&rig, i), 0);
                if (i % 3 == 0)
                        cr_assert_eq(put_in(&rig, rig.space, other, i), 0);
        }
        sheaf_table_free(rig.table);
        cr_expect_eq(rig_stats(&rig).blocks, 300);
        cr_assert_eq(sheaf_table_new(rig.arena, 9, 1000, &rig.table), 0);
        for (uint64_t i = 0; i < 900; i += 3) {
                cr_assert_neq(sheaf_table_block(other, i), 0);
                cr_assert_eq(put(&rig, i), 0);
                cr_expect(intact(&rig, i));
        }
        cr_expect_eq(rig_stats(&rig).blocks, 300);
        /* The holes that the table left are filled again. */
        for (uint64_t i = 2000; i < 2400; i++)
                cr_assert_eq(put_in(&rig, rig.space, rig.table, i - 1400), 0);
        cr_expect_eq(rig_stats(&rig).evicted_blocks, 600);
        sheaf_table_free(other);
        rig_close(&rig);
}

Test(table, held_by_the_daemon)
{
        sheaf_block block;
        uint32_t len;
        struct rig rig;

        rig_open(&rig, 32 * SHEAF_MIB, 5000);
        cr_assert_eq(put(&rig, 5), 0);
        block = sheaf_table_block(rig.table, 5);

        const void *bytes = sheaf_arena_hold(rig.arena, block, &len);

        for (uint64_t i = 100; i < 2100; i++)
                cr_assert_eq(put(&rig, i), 0);
        cr_expect(chunk_good(5, bytes, len));
        cr_expect_eq(sheaf_table_block(rig.table, 5), block);
        cr_expect(sheaf_table_evict(rig.table, 5));
        cr_expect(chunk_good(5, bytes, len));
        uint64_t blocks = rig_stats(&rig).blocks;

        sheaf_arena_unhold(rig.arena, block);
        cr_expect_eq(rig_stats(&rig).blocks, blocks - 1);
        rig_close(&rig);
}

Test(table, many_tables)
{
        enum {
                N = 300
        };
        struct sheaf_table *tables[N];
        struct rig rig;

        rig_open(&rig, 32 * SHEAF_MIB, 10);
        cr_assert_eq(put(&rig, 1), 0);
        for (int i = 0; i < N; i++) {
                cr_assert_eq(sheaf_table_new(rig.arena, 100, 4, &tables[i]), 0);
                cr_assert_eq(
                        sheaf_arena_join(rig.arena,
                                sheaf_table_block(rig.table, 1), tables[i], 3),
                        0);
        }
        /* Recycling kills all of its names. */
        for (uint64_t i = 0; i < 2000 && resident(&rig, 1); i++)
                cr_assert_eq(put_in(&rig, rig.space, rig.table, 2 + i % 8), 0);
        for (int i = 0; i < N; i++)
                cr_expect_eq(sheaf_table_resident(tables[i], NULL),
                        resident(&rig, 1));
        for (int i = 0; i < N; i++)
                sheaf_table_free(tables[i]);
        cr_expect_eq(resident(&rig, 1), 1);
        rig_close(&rig);
}
