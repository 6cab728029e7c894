/* SPDX-License-Identifier: Apache-2.0 */
/* The pin protocol: how a client claims a block and the daemon takes one
 * back, without a lock or a system call. Hazard pointers (Michael, 2004) in
 * shared memory, with the store-buffer pattern made safe by sequential
 * consistency on both sides:
 *
 *   client                            daemon (the one thread that writes)
 *   W  = load table[i]    acquire     kill: exchange table[i] -> 0  seq_cst
 *   publish: slot 0 -> W  seq_cst     read high_water               seq_cst
 *   load table[i] again   seq_cst     load every slot               seq_cst
 *   equal? the bytes stay             W seen? store W back, keep the block
 *   clear: slot -> 0      release     else the block may be overwritten
 *
 * At least one side sees the other. The scan's acquire side pairs with the
 * releasing clear, so a client's reads end before the block is overwritten.
 * Slot values are opaque to the daemon: compared, never dereferenced.
 *
 * The SHEAF_MUTANT_* switches seed one bug each; tests/client/pin proves
 * that each is caught. They are defined by tests only. */
#ifndef SHEAF_PROTO_PIN_H
#define SHEAF_PROTO_PIN_H

#include "proto/layout_shm.h"

/* Pins for the moment of a copy are not charged to the grant. They have a
 * budget of their own, which the daemon tells with the grant: what is that
 * long or longer counts. So what an honest client holds is bounded at every
 * instant, also while it is stopped, and who holds more for a while is not
 * one. */
#define SHEAF_PIN_BRIEF_LEAST_BYTES 4096

/* The budget for an arena of @bytes_max: room for one chunk at least. */
static inline uint64_t sheaf_pin_brief_max(uint64_t bytes_max)
{
        return SHEAF_MAX(UINT64_C(4) << 20,
                SHEAF_MIN(bytes_max / 8, UINT64_C(256) << 20));
}

/* ---- client ---- */

/* Makes sure that slots below @slots are scanned. Any thread. Called before
 * the first publication in a slot at or above the current mark. */
static inline void sheaf_pin_raise_mark(
        struct sheaf_hazard *hazard, uint64_t slots)
{
        uint64_t seen =
                atomic_load_explicit(&hazard->high_water, memory_order_seq_cst);

        while (seen < slots &&
                !atomic_compare_exchange_weak_explicit(&hazard->high_water,
                        &seen, slots, memory_order_seq_cst,
                        memory_order_seq_cst))
                ;
}

/* Claims @slot for @word. False when the slot is taken. */
static inline bool sheaf_pin_publish(_Atomic uint64_t *slot, uint64_t word)
{
#ifdef SHEAF_MUTANT_WEAK_FENCE
        if (atomic_load_explicit(slot, memory_order_relaxed))
                return false;
        atomic_store_explicit(slot, word, memory_order_release);
        return true;
#else
        uint64_t empty = 0;

        return atomic_compare_exchange_strong_explicit(
                slot, &empty, word, memory_order_seq_cst, memory_order_relaxed);
#endif
}

/* True when the published @word is still the table's: the bytes stay. */
static inline bool sheaf_pin_recheck(
        const _Atomic uint64_t *entry, uint64_t word)
{
#ifdef SHEAF_MUTANT_NO_RECHECK
        (void)entry;
        (void)word;
        return true;
#else
        return atomic_load_explicit(entry, memory_order_seq_cst) == word;
#endif
}

/* Gives up a claim. Any thread. */
static inline void sheaf_pin_clear(_Atomic uint64_t *slot)
{
        atomic_store_explicit(slot, 0, memory_order_release);
}

/* ---- daemon ---- */

/* Kills a word: no new claim of it can pass its re-check from now on. */
static inline uint64_t sheaf_pin_kill(_Atomic uint64_t *entry)
{
        return atomic_exchange_explicit(entry, 0, memory_order_seq_cst);
}

/* Publishes a word after the block's bytes are complete, or stores a killed
 * word that is still held back. */
static inline void sheaf_pin_set(_Atomic uint64_t *entry, uint64_t word)
{
        atomic_store_explicit(entry, word, memory_order_seq_cst);
}

/* Number of slots to scan; read after the kills. Bounded by @slot_count,
 * whatever the client wrote. */
static inline uint64_t sheaf_pin_mark(const struct sheaf_hazard *hazard)
{
        uint64_t mark =
                atomic_load_explicit(&hazard->high_water, memory_order_seq_cst);

        return SHEAF_MIN(mark, (uint64_t)SHEAF_HAZARD_SLOTS);
}

static inline uint64_t sheaf_pin_held(const _Atomic uint64_t *slot)
{
        return atomic_load_explicit(slot, memory_order_seq_cst);
}

#endif
