/* SPDX-License-Identifier: Apache-2.0 */
/* A real arena here, client processes beside it: they read checksummed blocks
 * while what they read is evicted and replaced, and are killed at random.
 * SHEAF_STRESS_HITS: checked hits to reach (10,000,000). */
#include "tests/client/pin/mapped.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>

#define CLIENTS    2
#define CHUNKS     60000
#define HOT        4  /* evicted again and again while they are read */
#define BURST      16 /* readings of hot ones in a row */
#define HELD       16
#define LIMIT_SECS 240
#define MET_LEAST  1000
#define LOST_LEAST 1000

struct counts {
        struct sheaf_meter meter[CLIENTS];
        _Atomic uint64_t bad, deaths_with_pins;
};

struct client {
        pid_t pid;
        struct sheaf_pins *pins;
};

static struct rig rig;
static struct counts *counts;
static struct client clients[CLIENTS];

static uint32_t len_small(uint64_t chunk)
{
        if (chunk < HOT)
                return 64;
        return chunk % 512 == 511 ? 300000 : 64 + mix(chunk) % 2000;
}

struct reader {
        struct mapped m;
        struct sheaf_meter *meter;
        struct sheaf_pin held[HELD];
        uint64_t chunk_of[HELD];
};

static void check(bool good)
{
        if (!good)
                atomic_fetch_add(&counts->bad, 1);
}

static void read_hot(struct reader *r, uint64_t random)
{
        struct sheaf_pin pin;

        for (int i = 0; i < BURST; i++) {
                uint64_t chunk = (random >> i) % HOT;

                if (sheaf_pin_try(&r->m.pinner, r->meter, &r->m.words[chunk],
                            64, SHEAF_PIN_HELD, &pin) < 0)
                        continue;
                check(chunk_good(chunk, pin.bytes, 64));
                sheaf_unpin(&r->m.pinner, &pin);
        }
}

static void copy_one(struct reader *r, uint64_t chunk)
{
        uint32_t len = len_small(chunk);
        uint8_t copy[4096];

        if (len <= sizeof(copy) &&
                sheaf_pin_copy(&r->m.pinner, r->meter, &r->m.words[chunk], len,
                        copy, 0, len) == 0)
                check(chunk_good(chunk, copy, len));
}

/* What was held for a while must still be the same. */
static void hold_another(struct reader *r, uint32_t slot, uint64_t chunk)
{
        struct sheaf_pin *pin = &r->held[slot];

        if (pin->slot) {
                check(chunk_good(
                        r->chunk_of[slot], pin->bytes, pin->len_bytes));
                sheaf_unpin(&r->m.pinner, pin);
                pin->slot = NULL;
        }
        if (sheaf_pin_try(&r->m.pinner, r->meter, &r->m.words[chunk],
                    len_small(chunk), SHEAF_PIN_HELD, pin) < 0)
                return;
        r->chunk_of[slot] = chunk;
        check(chunk_good(chunk, pin->bytes, pin->len_bytes));
}

static void child(int c, uint64_t random)
{
        static struct reader r;

        r.meter = &counts->meter[c];
        if (mapped_open(&r.m, &rig, clients[c].pins, CHUNKS, SHEAF_GIB) < 0)
                _exit(2);
        for (uint64_t i = 0;; i++) {
                random = mix(random + i);
                read_hot(&r, random);
                if (i % 8 == 0)
                        hold_another(&r, i / 8 % HELD,
                                random % 4 ? (random >> 8) % CHUNKS
                                           : (random >> 8) % HOT);
                if (i % 16 == 1)
                        copy_one(&r, (random >> 8) % CHUNKS);
        }
}

static void start(int c, uint64_t random)
{
        cr_assert_eq(sheaf_pins_new(rig.arena, &clients[c].pins), 0);
        clients[c].pid = fork();
        if (clients[c].pid == 0)
                child(c, random);
        cr_assert_gt(clients[c].pid, 0);
}

static void end(int c)
{
        uint64_t blocks;
        int status;

        kill(clients[c].pid, SIGKILL);
        cr_assert_eq(waitpid(clients[c].pid, &status, 0), clients[c].pid);
        cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
                "client ended with %x", (unsigned int)status);
        (void)sheaf_pins_held(clients[c].pins, &blocks);
        if (blocks)
                atomic_fetch_add(&counts->deaths_with_pins, 1);
        sheaf_pins_free(clients[c].pins);
}

static uint64_t total(size_t field)
{
        uint64_t sum = 0;

        for (int c = 0; c < CLIENTS; c++)
                for (int s = 0; s < SHEAF_METER_STRIPES; s++)
                        sum += atomic_load((
                                _Atomic uint64_t *)(void *)((uint8_t *)&counts
                                                                    ->meter[c]
                                                                    .stripe[s] +
                                                            field));
        return sum;
}

static uint64_t replace_some(uint64_t random)
{
        for (int i = 0; i < 64; i++) {
                uint64_t r = random = mix(random + 1);
                uint64_t chunk = r % 8 ? (r >> 8) % HOT : (r >> 8) % CHUNKS;

                if (resident(&rig, chunk)) {
                        if (r % 8)
                                (void)sheaf_table_evict(rig.table, chunk);
                        continue;
                }
                cr_assert_eq(put(&rig, chunk), 0);
        }
        return random;
}

Test(pin_stress, evicted_and_killed, .timeout = 900)
{
        const char *wish = getenv("SHEAF_STRESS_HITS");
        uint64_t hits_least = wish ? strtoull(wish, NULL, 10) : 10000000;
        uint64_t hits = 0, lost = 0, random = 7, deaths = 0;
        time_t begin = time(NULL), limit = wish ? 850 : LIMIT_SECS;
        struct sheaf_arena_stats stats = { 0 };

        counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        cr_assert(counts != MAP_FAILED);
        rig_open(&rig, 32 * SHEAF_MIB, CHUNKS);
        rig.len = len_small;
        for (uint64_t i = 0; i < CHUNKS; i++)
                cr_assert_eq(put(&rig, i), 0);
        for (int c = 0; c < CLIENTS; c++)
                start(c, (uint64_t)c);
        for (uint64_t turn = 0; time(NULL) - begin < limit; turn++) {
                random = replace_some(random);
                if (turn % 300 == 299) {
                        int c = (int)(mix(random) % CLIENTS);

                        end(c);
                        start(c, random);
                        deaths++;
                }
                if (turn % 64)
                        continue;
                hits = total(offsetof(struct sheaf_meter_stripe, hits));
                lost = total(offsetof(struct sheaf_meter_stripe, rechecks));
                stats = rig_stats(&rig);
                if (hits >= hits_least && stats.scans_met_pin >= MET_LEAST &&
                        lost >= LOST_LEAST && deaths >= 20)
                        break;
                cr_assert_eq(atomic_load(&counts->bad), 0, "wrong bytes");
        }
        for (int c = 0; c < CLIENTS; c++)
                end(c);
        cr_log_info(
                "%lu hits, %lu re-checks failed, %lu scans, %lu met a pin, "
                "%lu blocks kept, %lu replaced, %lu deaths (%lu with pins), "
                "%ld s",
                (unsigned long)hits, (unsigned long)lost,
                (unsigned long)stats.scans, (unsigned long)stats.scans_met_pin,
                (unsigned long)stats.kept_blocks,
                (unsigned long)stats.evicted_blocks, (unsigned long)deaths,
                (unsigned long)counts->deaths_with_pins,
                (long)(time(NULL) - begin));
        cr_expect_eq(atomic_load(&counts->bad), 0, "wrong bytes");
        cr_expect_geq(hits, hits_least);
        cr_expect_geq(stats.scans_met_pin, MET_LEAST);
        cr_expect_geq(lost, LOST_LEAST);
        cr_expect_geq(deaths, 20);
        for (uint64_t i = 0; i < CHUNKS; i++)
                if (resident(&rig, i))
                        cr_assert(intact(&rig, i));
        rig_close(&rig);
}
