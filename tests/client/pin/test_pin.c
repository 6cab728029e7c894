/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/client/pin/mapped.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define CHUNKS 1000

static struct rig rig;
static struct mapped m;
static struct sheaf_pins *pins;

static void open_all(uint64_t grant_bytes)
{
        rig_open(&rig, 128 * SHEAF_MIB, CHUNKS);
        cr_assert_eq(sheaf_pins_new(rig.arena, &pins), 0);
        for (uint64_t i = 0; i < 500; i++)
                cr_assert_eq(put(&rig, i), 0);
        cr_assert_eq(mapped_open(&m, &rig, pins, CHUNKS, grant_bytes), 0);
}

static void close_all(void)
{
        sheaf_pinner_fini(&m.pinner);
        sheaf_pins_free(pins);
        rig_close(&rig);
}

static int pin_chunk(
        uint64_t chunk, enum sheaf_pin_kind kind, struct sheaf_pin *ret_pin)
{
        return sheaf_pin_try(&m.pinner, NULL, &m.words[chunk], rig.len(chunk),
                kind, ret_pin);
}

Test(pin, reads_in_place)
{
        struct sheaf_pin pin;
        uint64_t blocks;

        open_all(16 * SHEAF_MIB);
        for (uint64_t i = 0; i < 500; i++) {
                cr_assert_eq(pin_chunk(i, SHEAF_PIN_HELD, &pin), 0);
                cr_assert(chunk_good(i, pin.bytes, rig.len(i)));
                (void)sheaf_pins_held(pins, &blocks);
                cr_assert_eq(blocks, 1);
                sheaf_unpin(&m.pinner, &pin);
        }
        cr_expect_eq(pin_chunk(700, SHEAF_PIN_HELD, &pin), -EAGAIN);
        (void)sheaf_pins_held(pins, &blocks);
        cr_expect_eq(blocks, 0);
        /* One thread, one stripe: the scan stays short. */
        cr_expect_leq(sheaf_pin_mark(m.hazard), SHEAF_PIN_STRIPE_SLOTS);
        close_all();
}

Test(pin, never_above_the_grant)
{
        struct sheaf_pin held[500];
        uint64_t bytes = 0, n = 0;
        struct sheaf_pin extra;

        open_all(8 * SHEAF_MIB);
        while (pin_chunk(n, SHEAF_PIN_HELD, &held[n]) == 0) {
                bytes += rig.len(n++);
                cr_assert_leq(bytes, 8 * SHEAF_MIB);
        }
        cr_expect_eq(pin_chunk(n, SHEAF_PIN_HELD, &extra), -EDQUOT);
        /* The grant can be used up but for less than a chunk. */
        cr_expect_gt(bytes, 8 * SHEAF_MIB - 140000);
        cr_expect_eq(sheaf_pins_held(pins, NULL), bytes);
        cr_expect_eq(pin_chunk(n, SHEAF_PIN_TRANSIENT, &extra), 0);
        sheaf_unpin(&m.pinner, &extra);
        sheaf_pinner_set_grant(&m.pinner, 9 * SHEAF_MIB);
        cr_expect_eq(pin_chunk(n, SHEAF_PIN_HELD, &held[n]), 0);
        n++;
        while (n--)
                sheaf_unpin(&m.pinner, &held[n]);
        cr_expect_leq(atomic_load(&m.pinner.charged_bytes), SHEAF_MIB);
        close_all();
}

struct relay {
        struct sheaf_pin pin[200];
        int n;
};

static void *unpin_all(void *arg)
{
        struct relay *relay = arg;

        for (int i = 0; i < relay->n; i++)
                sheaf_unpin(&m.pinner, &relay->pin[i]);
        return NULL;
}

/* Pinned here, given back by threads that end: nothing stays charged but
 * this thread's spare bytes. */
Test(pin, bytes_come_back_from_other_threads)
{
        struct relay relay;
        pthread_t thread;

        open_all(32 * SHEAF_MIB);
        for (int round = 0; round < 50; round++) {
                relay.n = 0;
                for (uint64_t i = 0; i < 200; i++)
                        cr_assert_eq(pin_chunk(i, SHEAF_PIN_HELD,
                                             &relay.pin[relay.n++]),
                                0);
                cr_assert_eq(
                        pthread_create(&thread, NULL, unpin_all, &relay), 0);
                pthread_join(thread, NULL);
                cr_assert_leq(
                        atomic_load(&m.pinner.charged_bytes), 2 * SHEAF_MIB);
        }
        cr_expect_eq(sheaf_pins_held(pins, NULL), 0);
        close_all();
}

static void *short_thread(void *arg)
{
        struct sheaf_pin pin;

        (void)arg;
        if (pin_chunk(1, SHEAF_PIN_HELD, &pin) == 0)
                sheaf_unpin(&m.pinner, &pin);
        return NULL;
}

Test(pin, stripes_of_ended_threads_are_used_again)
{
        pthread_t thread;

        open_all(16 * SHEAF_MIB);
        for (int i = 0; i < 1000; i++) {
                cr_assert_eq(
                        pthread_create(&thread, NULL, short_thread, NULL), 0);
                pthread_join(thread, NULL);
        }
        cr_expect_leq(sheaf_pin_mark(m.hazard), 2 * SHEAF_PIN_STRIPE_SLOTS);
        cr_expect_eq(atomic_load(&m.pinner.charged_bytes), 0);
        close_all();
}

Test(pin, all_slots_taken)
{
        struct sheaf_pin *held;
        struct sheaf_pin extra;

        open_all(UINT64_MAX);
        held = sheaf_new(struct sheaf_pin, SHEAF_HAZARD_SLOTS);
        for (uint64_t i = 0; i < SHEAF_HAZARD_SLOTS; i++)
                cr_assert_eq(pin_chunk(i % 500, SHEAF_PIN_HELD, &held[i]), 0);
        cr_expect_eq(pin_chunk(1, SHEAF_PIN_HELD, &extra), -EMFILE);
        sheaf_unpin(&m.pinner, &held[7777]);
        cr_expect_eq(pin_chunk(1, SHEAF_PIN_HELD, &held[7777]), 0);
        for (uint64_t i = 0; i < SHEAF_HAZARD_SLOTS; i++)
                sheaf_unpin(&m.pinner, &held[i]);
        cr_expect_eq(sheaf_pins_held(pins, NULL), 0);
        free(held);
        close_all();
}

/* Whatever stands in a word, nothing outside of mapped extents is named. */
Test(pin, bounds)
{
        _Atomic uint64_t word;
        struct sheaf_pin pin;

        open_all(16 * SHEAF_MIB);
        atomic_init(&word, sheaf_word(1, 128 * SHEAF_MIB));
        cr_expect_eq(
                sheaf_pin_try(&m.pinner, NULL, &word, 64, SHEAF_PIN_HELD, &pin),
                -EAGAIN);
        atomic_store(&word, UINT64_MAX);
        cr_expect_eq(
                sheaf_pin_try(&m.pinner, NULL, &word, 64, SHEAF_PIN_HELD, &pin),
                -EAGAIN);
        atomic_store(&m.state[0], 0); /* dropped */
        atomic_store(&word, sheaf_word(1, 64));
        cr_expect_eq(
                sheaf_pin_try(&m.pinner, NULL, &word, 64, SHEAF_PIN_HELD, &pin),
                -EAGAIN);
        cr_expect_eq(sheaf_pins_held(pins, NULL), 0);
        close_all();
}

Test(pin, counts)
{
        sheaf_autofree struct sheaf_meter *meter =
                sheaf_new(struct sheaf_meter, 1);
        uint64_t hits = 0, bytes = 0, want = 0;
        struct sheaf_pin pin;

        open_all(16 * SHEAF_MIB);
        for (uint64_t i = 0; i < 500; i++) {
                cr_assert_eq(sheaf_pin_try(&m.pinner, meter, &m.words[i],
                                     rig.len(i), SHEAF_PIN_HELD, &pin),
                        0);
                want += rig.len(i);
                sheaf_unpin(&m.pinner, &pin);
        }
        for (int i = 0; i < SHEAF_METER_STRIPES; i++) {
                hits += atomic_load(&meter->stripe[i].hits);
                bytes += atomic_load(&meter->stripe[i].hit_bytes);
        }
        cr_expect_eq(hits, 500);
        cr_expect_eq(bytes, want);
        close_all();
}

/* A child reads what it inherited, but its parent's slots are not its own:
 * it can neither take nor clear one. */
Test(pin, fork_with_held_pins)
{
        struct sheaf_pin held[16], other;
        struct sheaf_ghost *ghost;
        int status, go[2];
        char c = 'g';
        pid_t pid;

        open_all(16 * SHEAF_MIB);
        for (uint64_t i = 0; i < 16; i++)
                cr_assert_eq(pin_chunk(480 + i, SHEAF_PIN_HELD, &held[i]), 0);
        cr_assert_eq(pipe(go), 0);
        pid = fork();
        if (pid == 0) {
                if (!sheaf_pinner_inherited(&m.pinner))
                        _exit(1);
                if (pin_chunk(3, SHEAF_PIN_HELD, &other) != -ECHILD)
                        _exit(2);
                for (int i = 0; i < 16; i++)
                        sheaf_unpin(&m.pinner, &held[i]);
                if (read(go[0], &c, 1) != 1)
                        _exit(3);
                for (uint64_t i = 0; i < 16; i++)
                        if (!chunk_good(
                                    480 + i, held[i].bytes, rig.len(480 + i)))
                                _exit(4);
                _exit(0);
        }
        cr_assert_eq(sheaf_ghost_new(pins, &ghost), 0);
        cr_expect_not(sheaf_pinner_inherited(&m.pinner));
        for (int i = 0; i < 16; i++)
                sheaf_unpin(&m.pinner, &held[i]);
        for (int round = 0; round < 8; round++)
                for (uint64_t i = 500; i < CHUNKS; i++)
                        if (!resident(&rig, i)) {
                                cr_assert_eq(put(&rig, i), 0);
                        } else {
                                sheaf_table_evict(rig.table, i);
                        }
        for (uint64_t i = 480; i < 496; i++)
                (void)sheaf_table_evict(rig.table, i);
        for (uint64_t i = 500; i < CHUNKS; i++)
                if (!resident(&rig, i))
                        cr_assert_eq(put(&rig, i), 0);
        cr_assert_eq(write(go[1], &c, 1), 1);
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_expect_eq(status, 0, "child: %d", WEXITSTATUS(status));
        sheaf_ghost_free(ghost);
        close_all();
}

/* Only read, write, exit and sigreturn are allowed there. */
Test(pin, hits_make_no_system_call)
{
        static struct sheaf_meter meter;
        int status;
        pid_t pid;

#if defined(__SANITIZE_THREAD__)
        printf("SKIP: hits_make_no_system_call: ThreadSanitizer makes some\n");
        return;
#endif
        open_all(16 * SHEAF_MIB);
        pid = fork();
        if (pid == 0) {
                static struct mapped own;
                struct sheaf_pin pin;
                uint64_t bad = 0;

                if (mapped_open(&own, &rig, pins, CHUNKS, 16 * SHEAF_MIB) < 0)
                        _exit(9);
                /* The first use of a thread may ask for memory. */
                if (sheaf_pin_try(&own.pinner, &meter, &own.words[0],
                            rig.len(0), SHEAF_PIN_HELD, &pin) < 0)
                        _exit(8);
                sheaf_unpin(&own.pinner, &pin);
                if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) < 0)
                        _exit(7);
                for (uint64_t i = 0; i < 1000000; i++) {
                        uint64_t chunk = mix(i) % 500;

                        if (sheaf_pin_try(&own.pinner, &meter,
                                    &own.words[chunk], rig.len(chunk),
                                    i & 1 ? SHEAF_PIN_HELD
                                          : SHEAF_PIN_TRANSIENT,
                                    &pin) < 0) {
                                bad++;
                                continue;
                        }
                        bad += !chunk_good(chunk, pin.bytes, 64);
                        sheaf_unpin(&own.pinner, &pin);
                }
                syscall(SYS_exit, bad ? 1 : 0);
        }
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_expect(WIFEXITED(status), "killed by signal %d", WTERMSIG(status));
        cr_expect_eq(WEXITSTATUS(status), 0);
        close_all();
}

/* What is pinned for the moments of copies has a bound of its own, which is
 * whole again after pins, lost races and refusals. */
Test(pin, moments_of_copies_have_a_budget)
{
        static struct sheaf_pin held[500];
        struct sheaf_pin pin;

        open_all(0);
        for (int round = 0; round < 3; round++) {
                uint64_t bytes = 0;
                uint64_t n = 0;
                int rc = 0;

                sheaf_pinner_set_brief(&m.pinner, SHEAF_MIB);
                while (n < 500 && !rc) {
                        rc = pin_chunk(n, SHEAF_PIN_TRANSIENT, &held[n]);
                        if (!rc && rig.len(n) >= SHEAF_PIN_BRIEF_LEAST_BYTES)
                                bytes += rig.len(n);
                        n += !rc;
                }
                cr_assert_eq(rc, -EDQUOT);
                cr_expect_leq(bytes, SHEAF_MIB);
                cr_expect_gt(bytes + rig.len(n), SHEAF_MIB);
                cr_expect_eq(atomic_load(&m.pinner.brief_bytes), bytes);
                cr_expect_eq(atomic_load(&m.pinner.charged_bytes), 0);
                sheaf_pinner_set_brief(&m.pinner, 2 * SHEAF_MIB);
                cr_expect_eq(pin_chunk(700, SHEAF_PIN_TRANSIENT, &pin), -EAGAIN,
                        "not in memory");
                while (n)
                        sheaf_unpin(&m.pinner, &held[--n]);
                cr_expect_eq(atomic_load(&m.pinner.brief_bytes), 0);
                cr_expect_eq(sheaf_pins_held(pins, NULL), 0);
        }
        close_all();
}
