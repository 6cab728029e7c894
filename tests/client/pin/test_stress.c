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

#define CLIENTS    3
#define CHUNKS     60000
#define HOT        64 /* evicted again and again while they are read */
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
        return chunk % 512 == 511 ? 300000 : 64 + mix(chunk) % 2000;
}

static void child(int c, uint64_t random)
{
        static struct mapped m;
        struct sheaf_pin held[HELD];
        uint64_t chunk_of[HELD] = { 0 };
        uint8_t copy[4096];

        memset(held, 0, sizeof(held));
        if (mapped_open(&m, &rig, clients[c].pins, CHUNKS, SHEAF_GIB) < 0)
                _exit(2);
        for (uint64_t i = 0;; i++) {
                uint64_t chunk, r = random = mix(random + i);
                uint32_t slot = i % HELD, len;

                chunk = r % 2 ? (r >> 8) % HOT : (r >> 8) % CHUNKS;
                len = len_small(chunk);
                if (r % 5 == 0 && len <= sizeof(copy)) {
                        if (sheaf_pin_copy(&m.pinner, &counts->meter[c],
                                    &m.words[chunk], len, copy, 0, len) == 0 &&
                                !chunk_good(chunk, copy, len))
                                atomic_fetch_add(&counts->bad, 1);
                        continue;
                }
                if (held[slot].slot) {
                        /* Held for a while: still the same bytes? */
                        if (!chunk_good(chunk_of[slot], held[slot].bytes,
                                    held[slot].len_bytes))
                                atomic_fetch_add(&counts->bad, 1);
                        sheaf_unpin(&m.pinner, &held[slot]);
                        held[slot].slot = NULL;
                }
                if (sheaf_pin_try(&m.pinner, &counts->meter[c], &m.words[chunk],
                            len, SHEAF_PIN_HELD, &held[slot]) < 0)
                        continue;
                chunk_of[slot] = chunk;
                if (!chunk_good(chunk, held[slot].bytes, len))
                        atomic_fetch_add(&counts->bad, 1);
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
                uint64_t chunk = r % 4 ? (r >> 8) % HOT : (r >> 8) % CHUNKS;

                if (resident(&rig, chunk)) {
                        if (r % 4)
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
                if (turn % 2000 == 1999) {
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
