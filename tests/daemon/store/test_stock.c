/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/daemon/store/arena_util.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

/* ---- sizes ---- */

static double unit(uint64_t x)
{
        return (double)(mix(x) >> 11) / 9007199254740992.0;
}

/* Lognormal, mean 110 KB, sigma 0.6. */
static uint32_t len_image(uint64_t chunk)
{
        double normal = sqrt(-2 * log(1 - unit(2 * chunk + 1))) *
                        cos(2 * M_PI * unit(2 * chunk + 2));

        return (uint32_t)fmin(110e3 * exp(.6 * normal - .18), 4194304);
}

static uint32_t len_captions(uint64_t chunk)
{
        return chunk % 2 ? 2048 : len_image(chunk);
}

static uint32_t len_all(uint64_t chunk)
{
        if (chunk % 500 == 0)
                return 4194304;
        if (chunk % 200 == 0)
                return 3000000;
        return len_captions(chunk);
}

static uint32_t len_shard(uint64_t chunk)
{
        (void)chunk;
        return 4194304;
}

/* ---- one job over shuffled epochs, with pins ---- */

struct job {
        struct rig *rig;
        struct sheaf_pins *pins[8];
        struct sheaf_hazard *hazard[8];
        const _Atomic uint64_t *words;
        uint64_t chunks, *order, random;
        uint32_t held_each, turn;
        double payload;
        uint64_t samples, failures;
};

static uint64_t next_random(struct job *job)
{
        job->random = mix(job->random + UINT64_C(0x9e3779b97f4a7c15));
        return job->random;
}

static int put_quick(struct rig *rig, uint64_t chunk)
{
        struct sheaf_digest digest = chunk_digest(chunk);
        sheaf_block block;
        void *bytes;
        int rc = sheaf_arena_place(rig->space, rig->len(chunk), &block, &bytes);

        if (rc < 0)
                return rc;
        *(uint8_t *)bytes = 1;
        sheaf_arena_commit(rig->space, block, &digest, rig->table, chunk);
        return 0;
}

static void read_one(struct job *job, uint64_t chunk)
{
        if (!resident(job->rig, chunk) && put_quick(job->rig, chunk) < 0) {
                job->failures++;
                return;
        }
        if (!job->held_each)
                return;

        uint32_t client = job->turn % 8, slot = job->turn / 8 % job->held_each;

        job->turn++;
        sheaf_pin_clear(&job->hazard[client]->slot[slot]);
        hold(job->hazard[client], slot, job->words, chunk);
}

static void shuffle(struct job *job)
{
        for (uint64_t i = job->chunks - 1; i > 0; i--) {
                uint64_t k = next_random(job) % (i + 1);
                uint64_t t = job->order[i];

                job->order[i] = job->order[k];
                job->order[k] = t;
        }
}

static void run_job(struct job *job, int epochs)
{
        for (int e = 0; e < epochs; e++) {
                shuffle(job);
                for (uint64_t i = 0; i < job->chunks; i++) {
                        read_one(job, job->order[i]);
                        if (e && i % 256 == 0) {
                                struct sheaf_arena_stats s =
                                        rig_stats(job->rig);

                                job->payload += (double)s.payload_bytes /
                                                (double)s.bytes;
                                job->samples++;
                        }
                }
        }
}

static double payload_of(uint64_t bytes_max, uint64_t chunks, uint32_t held,
        uint32_t (*len)(uint64_t), const char *name)
{
        struct job job = {
                .chunks = chunks, .held_each = held / 8, .random = 1
        };
        struct sheaf_arena_stats stats;
        struct rig rig;

        rig_open(&rig, bytes_max, chunks);
        rig.len = len;
        job.rig = &rig;
        job.words = words_map(rig.table, chunks);
        job.order = sheaf_new(uint64_t, chunks);
        for (uint64_t i = 0; i < chunks; i++)
                job.order[i] = i;
        for (int i = 0; i < 8; i++) {
                cr_assert_eq(sheaf_pins_new(rig.arena, &job.pins[i]), 0);
                job.hazard[i] = hazard_map(job.pins[i]);
        }
        run_job(&job, 3);
        stats = rig_stats(&rig);
        cr_log_info("%s held %u: payload %.3f failures %lu parked %lu ring %lu "
                    "stock %lu",
                name, held, job.payload / (double)job.samples,
                (unsigned long)job.failures,
                (unsigned long)stats.segments_parked,
                (unsigned long)stats.segments_ring,
                (unsigned long)stats.segments_stock);
        cr_expect_eq(job.failures, 0);
        for (int i = 0; i < 8; i++)
                sheaf_pins_free(job.pins[i]);
        rig_close(&rig);
        free(job.order);
        return job.payload / (double)job.samples;
}

Test(stock, payload_of_images)
{
        cr_expect_geq(
                payload_of(512 * SHEAF_MIB, 24000, 0, len_image, "images"),
                .95);
}

Test(stock, payload_of_images_with_pins)
{
        cr_expect_geq(
                payload_of(512 * SHEAF_MIB, 24000, 512, len_image, "images"),
                .95);
        cr_expect_geq(
                payload_of(512 * SHEAF_MIB, 24000, 2048, len_image, "images"),
                .95);
}

Test(stock, payload_of_captions)
{
        cr_expect_geq(payload_of(256 * SHEAF_MIB, 24000, 512, len_captions,
                              "captions"),
                .95);
}

Test(stock, payload_of_everything)
{
        cr_expect_geq(
                payload_of(512 * SHEAF_MIB, 24000, 512, len_all, "everything"),
                .95);
}

/* Two in each segment of 8 MiB: nothing is lost to bookkeeping. */
Test(stock, payload_of_shards)
{
        cr_expect_geq(
                payload_of(256 * SHEAF_MIB, 300, 0, len_shard, "shards"), .95);
        cr_expect_geq(
                payload_of(256 * SHEAF_MIB, 300, 24, len_shard, "shards"), .95);
}

/* ---- behaviour ---- */

Test(stock, what_is_filled_first_stays)
{
        uint64_t first = 0, kept = 0;
        struct rig rig;

        rig_open(&rig, 256 * SHEAF_MIB, 20000);
        while (rig_stats(&rig).evicted_blocks == 0)
                cr_assert_eq(put(&rig, first++), 0);
        for (uint64_t i = first; i < first + 10000; i++)
                cr_assert_eq(put(&rig, i), 0);
        for (uint64_t i = 0; i < first; i++)
                kept += resident(&rig, i);
        /* All but the ring and the open ones. */
        cr_expect_geq(kept * 100, first * 80);
        rig_close(&rig);
}

static uint64_t flowing(const struct rig *rig)
{
        struct sheaf_arena_stats stats = rig_stats(rig);

        return stats.segments_ring + stats.segments_open;
}

static uint32_t len_small(uint64_t chunk)
{
        return len_image(chunk) / 5;
}

/* A job for which an arena of @bytes_max holds 35 %. Returns its bytes. */
static uint64_t open_35(struct rig *rig, struct job *job, uint64_t bytes_max,
        uint32_t (*len)(uint64_t))
{
        uint64_t bytes = 0, n = 0;

        while (bytes * 35 < bytes_max * 100)
                bytes += len(n++);
        rig_open(rig, bytes_max, n);
        rig->len = len;
        *job = (struct job){ .rig = rig, .chunks = n, .random = 1 };
        job->order = sheaf_new(uint64_t, n);
        for (uint64_t i = 0; i < n; i++)
                job->order[i] = i;
        return bytes;
}

/* Of @bytes_max all is stock but what has to flow, and what is hit in an epoch
 * is stock: an arena for 35 % of what a job reads in random orders. */
static void hits_are_stock(uint64_t bytes_max, unsigned int percent)
{
        uint64_t bytes, hits = 0, stock;
        struct job job;
        struct rig rig;

        bytes = open_35(&rig, &job, bytes_max, len_small);
        run_job(&job, 2);
        stock = sheaf_space_stock_bytes(rig.space);
        cr_expect_geq(stock * 100, bytes_max * percent, "%lu of %lu MiB",
                (unsigned long)(stock >> 20), (unsigned long)(bytes_max >> 20));
        shuffle(&job);
        for (uint64_t i = 0; i < job.chunks; i++) {
                if (resident(&rig, job.order[i]))
                        hits += len_small(job.order[i]);
                read_one(&job, job.order[i]);
        }
        cr_expect_geq(hits, stock);
        /* What flowed in the end is met again with luck, before it is gone. */
        cr_expect_leq(hits, stock + bytes / 200, "%.2f %% above stock",
                100. * (double)(hits - stock) / (double)bytes);
        cr_expect_eq(sheaf_space_stock_bytes(rig.space), stock);
        rig_close(&rig);
        free(job.order);
}

Test(stock, hits_of_an_epoch_are_stock)
{
        hits_are_stock(32 * SHEAF_MIB, 84);
        hits_are_stock(55 * SHEAF_MIB, 84);
        hits_are_stock(71 * SHEAF_MIB, 80);
        hits_are_stock(128 * SHEAF_MIB, 90);
        hits_are_stock(256 * SHEAF_MIB, 90);
}

static uint32_t len_skewed(uint64_t chunk)
{
        return chunk % 150 ? len_small(chunk) : 1100000;
}

/* Where pins leave no room for large blocks in what flows, they take no more
 * from stock than their own bytes. */
Test(stock, large_blocks_leave_stock)
{
        uint64_t bytes, hits = 0, least = UINT64_MAX, stock;
        struct sheaf_arena_stats stats;
        struct job job;
        struct rig rig;

        bytes = open_35(&rig, &job, 46 * SHEAF_MIB, len_skewed);
        job.held_each = 20;
        job.words = words_map(rig.table, job.chunks);
        sheaf_space_want_ring(rig.space, 5 * SHEAF_MIB);
        for (int i = 0; i < 8; i++) {
                cr_assert_eq(sheaf_pins_new(rig.arena, &job.pins[i]), 0);
                job.hazard[i] = hazard_map(job.pins[i]);
        }
        run_job(&job, 2);
        stats = rig_stats(&rig);
        stock = sheaf_space_stock_bytes(rig.space);
        for (int e = 0; e < 3; e++) {
                shuffle(&job);
                for (uint64_t i = 0; i < job.chunks; i++) {
                        if (resident(&rig, job.order[i]))
                                hits += rig.len(job.order[i]);
                        read_one(&job, job.order[i]);
                        least = SHEAF_MIN(
                                least, rig_stats(&rig).segments_stock);
                }
        }
        cr_expect_geq(stock * 100, 46 * SHEAF_MIB * 75);
        cr_expect_geq(hits / 3, stock - bytes / 100);
        cr_expect_eq(least, stats.segments_stock);
        cr_expect_eq(job.failures, 0);
        for (int i = 0; i < 8; i++)
                sheaf_pins_free(job.pins[i]);
        rig_close(&rig);
        free(job.order);
}

/* What came last is there until as much came after it as jobs want to flow;
 * or what always flows, but for a slice that is empty. */
static void last_ones_stay(uint64_t bytes_max, uint64_t want, uint64_t stays)
{
        uint64_t n = 0, first, end, young = 0;
        struct rig rig;

        rig_open(&rig, bytes_max, 200000);
        rig.len = len_small;
        sheaf_space_want_ring(rig.space, want);
        for (uint64_t filled = 0; filled < 3 * bytes_max; n++) {
                cr_assert_eq(put_quick(&rig, n), 0);
                filled += len_small(n);
        }
        first = n;
        for (end = n + 20000; n < end; n++) {
                cr_assert_eq(put_quick(&rig, n), 0);
                young += len_small(n);
                for (; young > stays; first++)
                        young -= len_small(first);
                cr_assert(resident(&rig, first), "%lu of %lu",
                        (unsigned long)first, (unsigned long)n);
        }
        rig_close(&rig);
}

Test(stock, what_came_last_stays)
{
        last_ones_stay(32 * SHEAF_MIB, 0, 3 * SHEAF_MIB);
        last_ones_stay(55 * SHEAF_MIB, 0, 9 * SHEAF_MIB / 2);
        last_ones_stay(55 * SHEAF_MIB, 10 * SHEAF_MIB, 9 * SHEAF_MIB);
        last_ones_stay(256 * SHEAF_MIB, 50 * SHEAF_MIB, 50 * SHEAF_MIB);
}

/* What jobs wanted for the ring goes back to stock when they want it no more:
 * after that, what is stock stays, whatever else flows. */
Test(stock, ring_gives_back_what_jobs_wanted)
{
        uint64_t n = 0, before, most;
        struct rig rig;

        rig_open(&rig, 256 * SHEAF_MIB, 200000);
        for (; n < 6000; n++)
                cr_assert_eq(put_quick(&rig, n), 0);
        before = rig_stats(&rig).segments_stock;
        sheaf_space_want_ring(rig.space, 256 * SHEAF_MIB);
        for (; n < 12000; n++)
                cr_assert_eq(put_quick(&rig, n), 0);
        most = flowing(&rig);
        cr_expect_eq(most, 8, "a quarter of the space may flow");
        cr_expect_lt(rig_stats(&rig).segments_stock, before);
        sheaf_space_want_ring(rig.space, 0);
        for (; n < 24000; n++)
                cr_assert_eq(put_quick(&rig, n), 0);
        cr_expect_geq(rig_stats(&rig).segments_stock, before);
        cr_expect_leq(flowing(&rig), most / 2 + 1);
        rig_close(&rig);
}

/* The same for what was taken while all that flowed was pinned. */
static void ring_gives_back(uint64_t bytes_max)
{
        const _Atomic uint64_t *words;
        struct sheaf_hazard *hazard;
        struct sheaf_pins *pins;
        uint64_t n = 0, before;
        uint32_t slot = 0;
        struct rig rig;

        rig_open(&rig, bytes_max, 200000);
        cr_assert_eq(sheaf_pins_new(rig.arena, &pins), 0);
        hazard = hazard_map(pins);
        words = words_map(rig.table, 200000);
        for (; n < 6000; n++)
                cr_assert_eq(put_quick(&rig, n), 0);
        before = rig_stats(&rig).segments_stock;
        for (; rig_stats(&rig).segments_stock * 2 > before; n++) {
                cr_assert_lt(n, 100000, "nothing was taken from stock");
                (void)put_quick(&rig, n);
                if (resident(&rig, n)) {
                        sheaf_pin_clear(&hazard->slot[slot % 512]);
                        hold(hazard, slot++ % 512, words, n);
                }
        }
        for (uint32_t i = 0; i < 512; i++)
                sheaf_pin_clear(&hazard->slot[i]);
        for (uint64_t end = n + 6000; n < end; n++)
                cr_assert_eq(put_quick(&rig, n), 0);
        cr_expect_geq(rig_stats(&rig).segments_stock, before);
        sheaf_pins_free(pins);
        rig_close(&rig);
}

Test(stock, ring_gives_back_what_pins_took)
{
        ring_gives_back(32 * SHEAF_MIB);
        ring_gives_back(56 * SHEAF_MIB);
        ring_gives_back(80 * SHEAF_MIB);
}

Test(stock, nothing_can_be_emptied)
{
        struct sheaf_pins *pins;
        struct sheaf_hazard *hazard;
        const _Atomic uint64_t *words;
        uint64_t n = 0, words_before[400];
        sheaf_block block;
        void *bytes;
        struct rig rig;

        rig_open(&rig, 32 * SHEAF_MIB, 10000);
        cr_assert_eq(sheaf_pins_new(rig.arena, &pins), 0);
        hazard = hazard_map(pins);
        words = words_map(rig.table, 10000);
        while (n < 400 && put(&rig, n) == 0 &&
                rig_stats(&rig).evicted_blocks == 0) {
                words_before[n] = hold(hazard, (uint32_t)n, words, n);
                n++;
        }
        cr_assert_lt(n, 400);
        cr_expect_eq(sheaf_arena_place(rig.space, 4 << 20, &block, &bytes),
                -ENOBUFS);
        cr_expect_gt(rig_stats(&rig).place_failures, 0);
        for (uint64_t i = 0; i < n; i++) {
                cr_expect_eq(atomic_load(&words[i]), words_before[i],
                        "a held word was not stored back");
                cr_expect(intact(&rig, i));
        }
        /* Unpinned, it goes on. */
        for (uint64_t i = 0; i < n; i++)
                sheaf_pin_clear(&hazard->slot[i]);
        for (uint64_t i = 1000; i < 2000; i++)
                cr_expect_eq(put(&rig, i), 0);
        sheaf_pins_free(pins);
        rig_close(&rig);
}

static uint32_t len_mixed_shard(uint64_t chunk)
{
        return chunk % 3 == 0 ? 4194304 : 30000;
}

/* Segments with scattered pins have no gap for 4 MiB: asking for one must not
 * empty them for nothing, and smaller blocks must get their gaps. */
Test(stock, no_gap_wastes_nothing)
{
        struct sheaf_pins *pins;
        struct sheaf_hazard *hazard;
        const _Atomic uint64_t *words;
        struct rig rig;
        uint32_t slot = 0;

        rig_open(&rig, 128 * SHEAF_MIB, 100000);
        cr_assert_eq(sheaf_pins_new(rig.arena, &pins), 0);
        hazard = hazard_map(pins);
        words = words_map(rig.table, 100000);
        /* A pin every 2 MiB: no gap of 4 MiB anywhere. */
        for (uint64_t i = 0; rig_stats(&rig).evicted_blocks == 0; i++) {
                cr_assert_eq(put(&rig, i), 0);
                if (i % 20 == 0)
                        hold(hazard, slot++, words, i);
        }
        rig.len = len_mixed_shard;
        for (uint64_t i = 50001; i < 56000; i++) {
                int rc = put(&rig, i);

                cr_assert(rc == 0 || rig.len(i) == 4194304);
        }
        /* The small ones went into the gaps. */
        cr_expect_geq((double)rig_stats(&rig).payload_bytes,
                .85 * (double)rig_stats(&rig).bytes);
        sheaf_pins_free(pins);
        rig_close(&rig);
}

static uint64_t blocks_in(const struct sheaf_table *table)
{
        return sheaf_table_resident(table, NULL);
}

Test(stock, idle_space_gives_first)
{
        struct sheaf_space *space[2];
        struct sheaf_table *table[2];
        uint64_t idle, live;
        struct rig rig;

        rig_open(&rig, 128 * SHEAF_MIB, 10000);
        for (int k = 0; k < 2; k++) {
                cr_assert_eq(sheaf_space_new(rig.arena, "other", &space[k]), 0);
                cr_assert_eq(
                        sheaf_table_new(rig.arena, 9, 10000, &table[k]), 0);
                sheaf_space_set_live(space[k], true, 1);
        }
        for (uint64_t i = 0; i < 400; i++) {
                cr_assert_eq(put_in(&rig, space[0], table[0], i), 0);
                cr_assert_eq(put_in(&rig, space[1], table[1], i + 5000), 0);
        }
        sheaf_space_set_live(space[0], false, 5);
        idle = blocks_in(table[0]);
        live = blocks_in(table[1]);
        for (uint64_t i = 1000; i < 1900; i++)
                cr_assert_eq(put(&rig, i), 0);
        cr_expect_lt(blocks_in(table[0]), idle / 4);
        cr_expect_eq(blocks_in(table[1]), live);
        /* Then the live ones share evenly. */
        for (uint64_t i = 2000; i < 6000; i++)
                cr_assert_eq(put(&rig, i), 0);
        for (uint64_t i = 2000; i < 4000; i++)
                cr_assert_eq(put_in(&rig, space[1], table[1], i + 5000), 0);
        cr_expect_gt(blocks_in(table[1]) * 10, blocks_in(rig.table) * 6);
        cr_expect_gt(blocks_in(rig.table) * 10, blocks_in(table[1]) * 6);
        for (int k = 0; k < 2; k++) {
                sheaf_table_free(table[k]);
                sheaf_space_free(space[k]);
        }
        rig_close(&rig);
}

/* Reads outside any epoch fill free space, then flow; they take nothing from
 * a live dataset but the little that a ring needs. */
Test(stock, unused_dataset_flows_through_its_ring)
{
        struct sheaf_space *space;
        struct sheaf_table *table;
        uint64_t live, seg = 0;
        struct rig rig;

        rig_open(&rig, 256 * SHEAF_MIB, 10000);
        cr_assert_eq(sheaf_space_new(rig.arena, "mount", &space), 0);
        cr_assert_eq(sheaf_table_new(rig.arena, 9, 10000, &table), 0);
        for (uint64_t i = 0; i < 3000; i++)
                cr_assert_eq(put(&rig, i), 0);
        live = blocks_in(rig.table);
        for (uint64_t i = 0; i < 5000; i++)
                cr_assert_eq(put_in(&rig, space, table, 5000 + i), 0);
        cr_expect_gt(blocks_in(rig.table) * 100, live * 75);
        seg = blocks_in(table);
        cr_expect_gt(seg, 100);
        sheaf_table_free(table);
        sheaf_space_free(space);
        rig_close(&rig);
}

Test(stock, abort_and_discard_leave_no_hole)
{
        struct sheaf_digest digest = chunk_digest(1);
        sheaf_block block, same;
        void *bytes, *again;
        struct rig rig;

        rig_open(&rig, 64 * SHEAF_MIB, 100);
        cr_assert_eq(sheaf_arena_place(rig.space, 100000, &block, &bytes), 0);
        sheaf_arena_abort(rig.space, block);
        cr_assert_eq(sheaf_arena_place(rig.space, 100000, &block, &again), 0);
        cr_expect_eq(bytes, again);
        same = sheaf_arena_commit(rig.space, block, &digest, rig.table, 1);
        cr_expect_eq(same, block);
        cr_assert_eq(sheaf_arena_place(rig.space, 100000, &block, &bytes), 0);
        cr_expect_eq(
                sheaf_arena_commit(rig.space, block, &digest, rig.table, 2),
                same);
        cr_assert_eq(sheaf_arena_place(rig.space, 100000, &block, &again), 0);
        cr_expect_eq(bytes, again);
        sheaf_arena_abort(rig.space, block);
        cr_expect_eq(rig_stats(&rig).blocks, 1);
        rig_close(&rig);
}

/* A filling block survives everything that happens around it. */
Test(stock, filling_block_is_never_recycled)
{
        struct sheaf_digest digest = chunk_digest(9999);
        sheaf_block block;
        void *bytes;
        struct rig rig;

        rig_open(&rig, 32 * SHEAF_MIB, 10000);
        cr_assert_eq(sheaf_arena_place(rig.space, 100000, &block, &bytes), 0);
        chunk_fill(9999, bytes, 100000);
        for (uint64_t i = 0; i < 3000; i++)
                cr_assert_eq(put(&rig, i), 0);
        cr_expect(chunk_good(9999, bytes, 100000));
        cr_expect_eq(
                sheaf_arena_commit(rig.space, block, &digest, rig.table, 9999),
                block);
        cr_expect_eq(sheaf_table_block(rig.table, 9999), block);
        rig_close(&rig);
}

/* ---- against a model ---- */

#define MODEL_CHUNKS 600
#define MODEL_SLOTS  24

struct model {
        uint64_t held_word[MODEL_SLOTS], held_chunk[MODEL_SLOTS];
};

static uint32_t len_model(uint64_t chunk)
{
        return 1 +
               (uint32_t)(mix(chunk) %
                          (chunk % 7 ? (chunk % 5 ? 90000 : 900000) : 4194304));
}

/* What is held keeps its word and bytes; what is resident has its bytes; no
 * two blocks overlap; figures add up. */
static void check_model(
        struct rig *rig, struct model *model, const _Atomic uint64_t *words)
{
        uint64_t resident_bytes = 0, n = 0, bytes;

        for (uint64_t i = 0; i < MODEL_CHUNKS; i++) {
                if (!resident(rig, i))
                        continue;
                cr_assert(intact(rig, i), "chunk %lu", (unsigned long)i);
                n++;
                resident_bytes += rig->len(i);
        }
        cr_assert_eq(sheaf_table_resident(rig->table, &bytes), n);
        cr_assert_eq(bytes, resident_bytes);
        for (int s = 0; s < MODEL_SLOTS; s++)
                if (model->held_word[s])
                        cr_assert(atomic_load(&words[model->held_chunk[s]]) ==
                                          model->held_word[s] ||
                                  !atomic_load(&words[model->held_chunk[s]]));
}

static void model_step(struct rig *rig, struct model *model,
        struct sheaf_hazard *hazard, const _Atomic uint64_t *words, uint64_t r)
{
        uint64_t chunk = mix(r) % MODEL_CHUNKS;
        uint32_t s = (uint32_t)(mix(r + 7) % MODEL_SLOTS);

        switch (r % 8) {
        case 0:
                (void)sheaf_table_evict(rig->table, chunk);
                break;
        case 1:
        case 2:
                if (model->held_word[s])
                        sheaf_pin_clear(&hazard->slot[s]);
                model->held_word[s] = 0;
                if (resident(rig, chunk)) {
                        model->held_word[s] = hold(hazard, s, words, chunk);
                        model->held_chunk[s] = chunk;
                }
                break;
        case 3:
                sheaf_space_set_live(rig->space, r & 64, (int64_t)r);
                break;
        default:
                if (!resident(rig, chunk))
                        (void)!put(rig, chunk);
        }
}

Test(stock, follows_the_model)
{
        uint64_t words_off[MODEL_SLOTS];

        for (uint64_t seed = 1; seed <= 3; seed++) {
                struct sheaf_pins *pins;
                struct sheaf_hazard *hazard;
                const _Atomic uint64_t *words;
                struct model model = { 0 };
                struct rig rig;
                uint64_t r = seed;

                rig_open(&rig, 64 * SHEAF_MIB, MODEL_CHUNKS);
                rig.len = len_model;
                cr_assert_eq(sheaf_pins_new(rig.arena, &pins), 0);
                hazard = hazard_map(pins);
                words = words_map(rig.table, MODEL_CHUNKS);
                for (int step = 0; step < 4000; step++) {
                        r = mix(r + 0x9e3779b9);
                        model_step(&rig, &model, hazard, words, r >> 3);
                        if (step % 500 == 499)
                                check_model(&rig, &model, words);
                }
                memcpy(words_off, model.held_word, sizeof(words_off));
                cr_expect_gt(rig_stats(&rig).scans_met_pin, 0);
                sheaf_pins_free(pins);
                check_model(&rig, &(struct model){ 0 }, words);
                rig_close(&rig);
        }
}
