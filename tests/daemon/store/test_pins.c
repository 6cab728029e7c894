/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/daemon/store/arena_util.h"

#include <errno.h>
#include <sys/wait.h>

/* Replaces everything that can be replaced. */
static void churn(struct rig *rig, uint64_t from)
{
        for (uint64_t i = 0; i < 1500; i++)
                cr_assert_eq(put(rig, from + i), 0);
}

Test(pins, held_block_survives_churn)
{
        struct sheaf_pins *pins;
        struct sheaf_hazard *hazard;
        struct rig rig;
        uint64_t bytes, blocks;

        rig_open(&rig, 32 * SHEAF_MIB, 100000);
        cr_assert_eq(sheaf_pins_new(rig.arena, &pins), 0);
        hazard = hazard_map(pins);
        churn(&rig, 50000); /* so that what follows flows */
        cr_assert_eq(put(&rig, 1), 0);
        hold(hazard, 16000, words_map(rig.table, 100000), 1);
        bytes = sheaf_pins_held(pins, &blocks);
        cr_expect_eq(blocks, 1);
        cr_expect_eq(bytes, rig.len(1));
        churn(&rig, 1000);
        cr_expect(intact(&rig, 1));
        cr_expect_gt(rig_stats(&rig).scans_met_pin, 0);
        cr_expect_gt(rig_stats(&rig).kept_blocks, 0);
        sheaf_pins_free(pins);
        churn(&rig, 10000);
        churn(&rig, 20000);
        rig_close(&rig);
}

/* A client's lies: words that name nothing, a mark beyond the end. */
Test(pins, lies_are_harmless)
{
        struct sheaf_pins *pins;
        struct sheaf_hazard *hazard;
        struct rig rig;

        rig_open(&rig, 32 * SHEAF_MIB, 100000);
        cr_assert_eq(sheaf_pins_new(rig.arena, &pins), 0);
        hazard = hazard_map(pins);
        churn(&rig, 0);
        atomic_store(&hazard->high_water, UINT64_MAX);
        for (uint32_t i = 0; i < SHEAF_HAZARD_SLOTS; i++)
                atomic_store(&hazard->slot[i],
                        i % 3 ? mix(i) : sheaf_word(1, i * 4096));
        hazard->magic = 0;
        hazard->slot_count = UINT32_MAX;
        (void)sheaf_pins_held(pins, NULL);
        churn(&rig, 5000);
        for (uint64_t i = 5000; i < 6500; i++)
                if (resident(&rig, i))
                        cr_assert(intact(&rig, i));
        sheaf_pins_free(pins);
        rig_close(&rig);
}

Test(pins, grants_stay_below_half)
{
        struct sheaf_pins *pins[4];
        struct rig rig;

        rig_open(&rig, 64 * SHEAF_MIB, 10);
        for (int i = 0; i < 4; i++)
                cr_assert_eq(sheaf_pins_new(rig.arena, &pins[i]), 0);
        cr_expect_eq(sheaf_pins_grant(pins[0], 20 * SHEAF_MIB), 20 * SHEAF_MIB);
        cr_expect_eq(sheaf_pins_grant(pins[1], 20 * SHEAF_MIB), 12 * SHEAF_MIB);
        cr_expect_eq(sheaf_pins_grant(pins[2], 20 * SHEAF_MIB), 0);
        cr_expect_eq(rig_stats(&rig).granted_bytes, 32 * SHEAF_MIB);
        /* Asking again does not shrink it while others are greedy. */
        cr_expect_eq(sheaf_pins_grant(pins[1], 20 * SHEAF_MIB), 12 * SHEAF_MIB);
        cr_expect_eq(sheaf_pins_grant(pins[0], 5 * SHEAF_MIB), 5 * SHEAF_MIB);
        cr_expect_eq(sheaf_pins_grant(pins[2], 20 * SHEAF_MIB), 15 * SHEAF_MIB);
        sheaf_pins_free(pins[1]);
        cr_expect_eq(sheaf_pins_grant(pins[3], UINT64_MAX), 12 * SHEAF_MIB);
        cr_expect_eq(rig_stats(&rig).granted_bytes, 32 * SHEAF_MIB);
        sheaf_pins_free(pins[0]);
        sheaf_pins_free(pins[2]);
        sheaf_pins_free(pins[3]);
        cr_expect_eq(rig_stats(&rig).granted_bytes, 0);
        rig_close(&rig);
}

Test(pins, ghost_holds_what_was_held_at_the_fork)
{
        struct sheaf_pins *pins;
        struct sheaf_ghost *ghost;
        struct sheaf_hazard *hazard;
        struct rig rig;

        rig_open(&rig, 32 * SHEAF_MIB, 100000);
        cr_assert_eq(sheaf_pins_new(rig.arena, &pins), 0);
        hazard = hazard_map(pins);
        churn(&rig, 70000);
        cr_assert_eq(put(&rig, 1), 0);
        cr_assert_eq(put(&rig, 2), 0);
        hold(hazard, 0, words_map(rig.table, 100000), 1);
        cr_assert_eq(sheaf_ghost_new(pins, &ghost), 0);
        hold(hazard, 1, words_map(rig.table, 100000), 2);
        sheaf_pins_free(pins);
        churn(&rig, 1000);
        churn(&rig, 3000);
        cr_expect(intact(&rig, 1));
        sheaf_ghost_free(ghost);
        cr_expect_eq(rig_stats(&rig).ghosts, 0);
        churn(&rig, 10000);
        cr_expect_not(resident(&rig, 1));
        rig_close(&rig);
}

/* Workers forked each epoch while a batch is held: pins stay flat. */
Test(pins, fifty_rounds_of_forked_workers)
{
        struct sheaf_pins *pins;
        struct sheaf_hazard *hazard;
        const _Atomic uint64_t *words;
        struct rig rig;

        rig_open(&rig, 32 * SHEAF_MIB, 100000);
        cr_assert_eq(sheaf_pins_new(rig.arena, &pins), 0);
        hazard = hazard_map(pins);
        words = words_map(rig.table, 100000);
        for (uint64_t round = 0; round < 50; round++) {
                struct sheaf_ghost *ghost;
                uint64_t held;
                int status, go[2];
                pid_t pid;

                for (uint32_t i = 0; i < 16; i++) {
                        cr_assert_eq(put(&rig, 20 * round + i), 0);
                        hold(hazard, i, words, 20 * round + i);
                }
                cr_assert_eq(pipe(go), 0);
                pid = fork();
                if (pid == 0) {
                        char c;

                        close(go[1]);
                        _exit(read(go[0], &c, 1) == 0 ? 0 : 1);
                }
                cr_assert_eq(sheaf_ghost_new(pins, &ghost), 0);
                for (uint32_t i = 0; i < 16; i++)
                        sheaf_pin_clear(&hazard->slot[i]);
                for (uint64_t i = 0; i < 300; i++)
                        cr_assert_eq(put(&rig, 2000 + 300 * round + i), 0);
                for (uint32_t i = 0; i < 16; i++)
                        cr_assert(intact(&rig, 20 * round + i));
                close(go[1]);
                close(go[0]);
                cr_assert_eq(waitpid(pid, &status, 0), pid);
                sheaf_ghost_free(ghost);
                (void)sheaf_pins_held(pins, &held);
                cr_assert_eq(held, 0);
                cr_assert_eq(rig_stats(&rig).ghosts, 0);
                cr_assert_eq(rig_stats(&rig).segments_parked, 0);
        }
        sheaf_pins_free(pins);
        rig_close(&rig);
}

Test(pins, space_lingers_until_unpinned)
{
        struct sheaf_space *space;
        struct sheaf_table *table;
        struct sheaf_pins *pins;
        struct sheaf_hazard *hazard;
        struct rig rig;

        rig_open(&rig, 64 * SHEAF_MIB, 1000);
        cr_assert_eq(sheaf_space_new(rig.arena, "other", &space), 0);
        cr_assert_eq(sheaf_table_new(rig.arena, 8, 1000, &table), 0);
        cr_assert_eq(sheaf_pins_new(rig.arena, &pins), 0);
        hazard = hazard_map(pins);
        for (uint64_t i = 0; i < 300; i++)
                cr_assert_eq(put_in(&rig, space, table, i), 0);
        hold(hazard, 0, words_map(table, 1000), 100);
        sheaf_space_free(space);
        cr_expect_eq(rig_stats(&rig).blocks, 1);
        cr_expect_eq(rig_stats(&rig).segments_parked, 1);
        sheaf_table_free(table);
        cr_expect_eq(rig_stats(&rig).blocks, 1);
        sheaf_pins_free(pins);
        cr_expect_eq(rig_stats(&rig).blocks, 0);
        cr_expect_eq(rig_stats(&rig).segments_parked, 0);
        rig_close(&rig);
}

Test(pins, too_many_clients)
{
        struct rig rig;
        struct sheaf_pins *pins[8];

        /* Descriptors end before SHEAF_PINS_CLIENTS_MAX here: the failure is
         * clean and what exists works on. */
        rig_open(&rig, 32 * SHEAF_MIB, 10);
        for (int i = 0; i < 8; i++)
                cr_assert_eq(sheaf_pins_new(rig.arena, &pins[i]), 0);
        cr_expect_eq(rig_stats(&rig).clients, 8);
        for (int i = 7; i >= 0; i--)
                sheaf_pins_free(pins[i]);
        cr_expect_eq(rig_stats(&rig).clients, 0);
        rig_close(&rig);
}
