/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/daemon/store/arena_util.h"

#include <stdio.h>
#include <time.h>

/* Without any pin a scan reads nothing and keeps nothing. */
Test(reclaim, one_scan_a_batch)
{
        struct sheaf_arena_stats stats;
        struct rig rig;

        rig_open(&rig, 64 * SHEAF_MIB, 100000);
        for (uint64_t i = 0; i < 4000; i++)
                cr_assert_eq(put(&rig, i), 0);
        stats = rig_stats(&rig);
        cr_expect_eq(stats.kept_blocks, 0);
        cr_expect_eq(stats.scans_met_pin, 0);
        cr_expect_gt(stats.scans, 0);
        /* About 10 blocks of 100 KB in a 64th. */
        cr_expect_geq(stats.evicted_blocks, 7 * stats.scans);
        cr_expect_eq(stats.blocks + stats.evicted_blocks, stats.placed_blocks);
        rig_close(&rig);
}

/* All clients hold all they can; the scan is what a batch of kills costs. */
Test(reclaim, scan_of_many_clients)
{
        enum {
                CLIENTS = 64,
                HELD = 4096
        };
        struct sheaf_pins *pins[CLIENTS];
        struct sheaf_arena_stats stats;
        const _Atomic uint64_t *words;
        struct rig rig;
        uint64_t n = 0, best_ns = UINT64_MAX, chunks[100];
        size_t found = 0;

        rig_open(&rig, 256 * SHEAF_MIB, 100000);
        while (rig_stats(&rig).evicted_blocks == 0)
                cr_assert_eq(put(&rig, n++), 0);
        words = words_map(rig.table, 100000);
        /* The oldest that are left: which segment went first is random. */
        for (uint64_t i = 0; i < n && found < SHEAF_ARRAY_LEN(chunks); i++)
                if (atomic_load(&words[i]))
                        chunks[found++] = i;
        cr_assert_eq(found, SHEAF_ARRAY_LEN(chunks));
        for (int c = 0; c < CLIENTS; c++) {
                struct sheaf_hazard *hazard;

                cr_assert_eq(sheaf_pins_new(rig.arena, &pins[c]), 0);
                hazard = hazard_map(pins[c]);
                for (uint32_t i = 0; i < HELD; i++)
                        hold(hazard, i, words, chunks[i % found]);
        }
        for (uint64_t i = n; i < n + 20000; i++) {
                stats = rig_stats(&rig);
                cr_assert_eq(put(&rig, i), 0);
                if (rig_stats(&rig).scans == stats.scans + 1)
                        best_ns = SHEAF_MIN(best_ns,
                                rig_stats(&rig).scan_ns - stats.scan_ns);
        }
        for (size_t i = 0; i < found; i++)
                cr_assert(intact(&rig, chunks[i]));
        stats = rig_stats(&rig);
        cr_log_info(
                "scan of %d x %d pins: best %.0f us, mean %.0f us, max %.0f us",
                CLIENTS, HELD, (double)best_ns / 1e3,
                (double)stats.scan_ns / (double)stats.scans / 1e3,
                (double)stats.scan_ns_max / 1e3);
        cr_expect_geq(stats.scanned_slots,
                (stats.scans - 100) * CLIENTS * (uint64_t)HELD / 2);
        for (int c = 0; c < CLIENTS; c++)
                sheaf_pins_free(pins[c]);
        rig_close(&rig);
}

/* Many blocks of a segment are let go of at once, and it becomes mostly empty
 * in the midst of that: what is put there afterwards lies beside what stays,
 * and beside one another. */
Test(reclaim, blocks_that_go_together_leave_their_room_once)
{
        enum {
                CHUNKS = 4000
        };
        const _Atomic uint64_t *words;
        struct sheaf_hazard *hazard;
        struct sheaf_pins *pins;
        struct rig rig;
        uint64_t n = 0;
        uint32_t slot = 0;

        rig_open(&rig, 32 * SHEAF_MIB, CHUNKS);
        while (rig_stats(&rig).evicted_blocks == 0)
                cr_assert_eq(put(&rig, n++), 0);
        words = words_map(rig.table, CHUNKS);
        cr_assert_eq(sheaf_pins_new(rig.arena, &pins), 0);
        hazard = hazard_map(pins);
        for (uint64_t i = 0; i < n; i++) {
                if (i % 3 == 0 || !atomic_load(&words[i]))
                        continue;
                hold(hazard, slot++, words, i);
                cr_assert(sheaf_table_evict(rig.table, i));
        }
        cr_assert_gt(slot, 100);
        sheaf_pins_free(pins);
        for (uint64_t i = n; i < n + 600; i++) {
                cr_assert_eq(put(&rig, i), 0);
                for (uint64_t k = 0; k <= i; k++)
                        cr_assert(!resident(&rig, k) || intact(&rig, k),
                                "%llu after %llu", (unsigned long long)k,
                                (unsigned long long)i);
        }
        rig_close(&rig);
}

static uint32_t len_tiny(uint64_t chunk)
{
        return 64 + (uint32_t)(mix(chunk) % 64);
}

/* What a million blocks cost the daemon's heap. */
Test(reclaim, memory_per_block)
{
        enum {
                CHUNKS = 1280000
        };
        unsigned long pages[2], resident_pages;
        struct rig rig;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        printf("SKIP: memory_per_block: a sanitizer's heap is another\n");
        return;
#endif
        rig_open(&rig, 512 * SHEAF_MIB, CHUNKS);
        rig.len = len_tiny;
        for (int k = 0; k < 2; k++) {
                FILE *f = fopen("/proc/self/statm", "r");

                if (k)
                        for (uint64_t i = 1; i < CHUNKS; i++) {
                                cr_assert_eq(put(&rig, i), 0);
                        }
                else
                        cr_assert_eq(put(&rig, 0), 0);
                rewind(f);
                cr_assert_eq(fscanf(f, "%*u %lu %*u", &resident_pages), 1);
                pages[k] = resident_pages;
                fclose(f);
                f = fopen("/proc/self/statm", "r");
                /* Resident less shared: what is the heap's. */
                cr_assert_eq(fscanf(f, "%*u %*u %lu", &resident_pages), 1);
                pages[k] -= resident_pages;
                fclose(f);
        }
        cr_expect_eq(rig_stats(&rig).blocks, CHUNKS);
        cr_log_info("%.1f MB for %d blocks",
                (double)(pages[1] - pages[0]) * 4096 / 1e6, CHUNKS);
        cr_expect_leq((pages[1] - pages[0]) * 4096, 44 * SHEAF_MIB);
        rig_close(&rig);
}
