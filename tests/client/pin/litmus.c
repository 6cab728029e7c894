/* SPDX-License-Identifier: Apache-2.0 */
/* The store-buffer litmus: one thread pins and reads, one kills, scans,
 * scribbles and publishes. Built once as it is and once for each seeded bug
 * (SHEAF_MUTANT_*); tests/client/pin/test_litmus.c judges the outcome.
 *
 *   litmus SECONDS    0: clean and conclusive; 3: bad read; 4: inconclusive
 *
 * A block is 512 bytes that all repeat its word, so a reader knows what it
 * must see. Every third pin is in a slot above the mark. */
#include "client/pin.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

#define BLOCKS      2
#define WORDS       64
#define BLOCK_BYTES (WORDS * 8)

struct shared {
        struct sheaf_hazard hazard;
        _Alignas(4096) _Atomic uint64_t table[BLOCKS];
        _Alignas(4096) uint64_t bytes[BLOCKS][WORDS];
        _Alignas(64) _Atomic bool stop;
        _Atomic uint64_t bad, pins, rechecks, kills, kept;
};

static struct shared *shared;
static struct sheaf_pinner pinner;
static _Atomic uint8_t mapped = 1;

static void fill(unsigned int b, uint64_t word)
{
        for (int i = 0; i < WORDS; i++)
                shared->bytes[b][i] = word;
}

static void *daemon_side(void *arg)
{
        uint64_t generation = 1, kills = 0, kept = 0;
        unsigned int b = 0;

        (void)arg;
        while (!atomic_load_explicit(&shared->stop, memory_order_relaxed)) {
                uint64_t word, mark;
                bool held = false;

                b = (b + 1) % BLOCKS;
                word = sheaf_pin_kill(&shared->table[b]);
                kills++;
                mark = sheaf_pin_mark(&shared->hazard);
                for (uint64_t i = 0; i < mark && !held; i++)
                        held = sheaf_pin_held(&shared->hazard.slot[i]) == word;
                if (held) {
                        kept++;
                        sheaf_pin_set(&shared->table[b], word);
                        continue;
                }
                fill(b, UINT64_MAX);
                generation = generation % SHEAF_WORD_GEN_MAX + 1;
                word = sheaf_word(generation, (uint64_t)b * BLOCK_BYTES);
                fill(b, word);
                sheaf_pin_set(&shared->table[b], word);
        }
        atomic_store(&shared->kills, kills);
        atomic_store(&shared->kept, kept);
        return NULL;
}

static bool all_are(const uint64_t *bytes, uint64_t word)
{
        uint64_t diff = 0;

        for (int i = 0; i < WORDS; i++)
                diff |= ((const volatile uint64_t *)bytes)[i] ^ word;
        return diff == 0;
}

/* The word in the slot is what was pinned. */
static bool read_held(unsigned int b, bool linger)
{
        struct sheaf_pin pin;
        uint64_t word;
        bool good;

        if (sheaf_pin_try(&pinner, NULL, &shared->table[b], BLOCK_BYTES,
                    SHEAF_PIN_HELD, &pin) < 0) {
                atomic_fetch_add_explicit(
                        &shared->rechecks, 1, memory_order_relaxed);
                return true;
        }
        word = atomic_load_explicit(pin.slot, memory_order_relaxed);
        good = all_are((const uint64_t *)(const void *)pin.bytes, word);
        for (int i = 0; good && linger && i < 20; i++)
                good = all_are((const uint64_t *)(const void *)pin.bytes, word);
        sheaf_unpin(&pinner, &pin);
        return good;
}

static bool read_copied(unsigned int b)
{
        uint64_t copy[WORDS];

        if (sheaf_pin_copy(&pinner, NULL, &shared->table[b], BLOCK_BYTES, copy,
                    0, BLOCK_BYTES) < 0)
                return true;
        return copy[0] != UINT64_MAX && all_are(copy, copy[0]);
}

static void *client_side(void *arg)
{
        uint64_t pins = 0;
        unsigned int b = 0;

        (void)arg;
        while (!atomic_load_explicit(&shared->stop, memory_order_relaxed)) {
                bool good;

                b = (b + 1) % BLOCKS;
                pins++;
                if (pins % 3 == 0) {
                        /* Nothing is pinned now: the mark may go back. */
                        if (sheaf_pin_thread.slot >= 256) {
                                atomic_store(&shared->hazard.high_water, 0);
                                sheaf_pin_thread.slot = 0;
                        }
                        sheaf_pin_thread.slot += 8;
                }
                if (pins % 4 == 0)
                        good = read_copied(b);
                else
                        good = read_held(b, pins % 64 == 1);
                if (!good) {
                        atomic_fetch_add(&shared->bad, 1);
                        atomic_store(&shared->stop, true);
                }
        }
        atomic_store(&shared->pins, pins);
        return NULL;
}

int main(int argc, char **argv)
{
        double seconds = argc > 1 ? atof(argv[1]) : 2;
        struct sheaf_pin_map map = { .shift = 20, .state = &mapped };
        struct timespec nap = { .tv_nsec = 10 * SHEAF_NS_PER_MS };
        pthread_t threads[2];

        shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (shared == MAP_FAILED)
                return 5;
        shared->hazard.magic = SHEAF_HAZARD_MAGIC;
        shared->hazard.layout = SHEAF_SHM_LAYOUT;
        shared->hazard.slot_count = SHEAF_HAZARD_SLOTS;
        map.base = (const uint8_t *)shared->bytes;
        map.range_bytes = sizeof(shared->bytes);
        if (sheaf_pinner_init(&pinner, &shared->hazard, &map, SHEAF_MIB) < 0)
                return 5;
        for (unsigned int b = 0; b < BLOCKS; b++) {
                uint64_t word = sheaf_word(1, (uint64_t)b * BLOCK_BYTES);

                fill(b, word);
                sheaf_pin_set(&shared->table[b], word);
        }
        if (pthread_create(&threads[0], NULL, daemon_side, NULL) ||
                pthread_create(&threads[1], NULL, client_side, NULL))
                return 5;
        for (double t = 0; t < seconds && !atomic_load(&shared->stop); t += .01)
                nanosleep(&nap, NULL);
        atomic_store(&shared->stop, true);
        pthread_join(threads[0], NULL);
        pthread_join(threads[1], NULL);
        printf("{\"pins\": %lu, \"lost\": %lu, \"kills\": %lu, \"kept\": %lu, "
               "\"bad\": %lu}\n",
                (unsigned long)shared->pins, (unsigned long)shared->rechecks,
                (unsigned long)shared->kills, (unsigned long)shared->kept,
                (unsigned long)shared->bad);
        if (shared->bad)
                return 3;
        return shared->rechecks && shared->kept ? 0 : 4;
}
