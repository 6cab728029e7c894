/* SPDX-License-Identifier: Apache-2.0 */
/* The client's half of the pin protocol over one attached arena: slots,
 * bytes charged to the grant, bounds, counting.
 *
 *   charge    the thread's spare bytes; refilled from the pinner by steps,
 *             so a hit costs one locked operation, the publication
 *   publish   in a slot of the thread's stripe of 64
 *   recheck   of the word, then of the extent's state
 *
 * A held pin is charged before it is published; a transient one (for the
 * moment of a copy) is taken from a budget of its own, proto/pin.h. The daemon
 * disconnects who holds more than both. Threads: pin and unpin on any thread, a
 * pin may be given back by another one. No function here makes a system call,
 * except for the first use in a thread, its end, init, fini, and what has to
 * do with a fork that the daemon did not answer for. */
#ifndef SHEAF_CLIENT_PIN_H
#define SHEAF_CLIENT_PIN_H

#include "proto/pin.h"

#define SHEAF_PIN_STRIPE_SLOTS 64

enum sheaf_pin_kind {
        SHEAF_PIN_HELD,
        SHEAF_PIN_TRANSIENT,
};

/* What of the arena is mapped: @base is a reserved range; state[i] of the
 * range's i-th part of 1 << @shift bytes is not 0 while it may be pinned. */
struct sheaf_pin_map {
        const uint8_t *base;
        uint64_t range_bytes;
        const _Atomic uint8_t *state;
        unsigned int shift;
};

struct sheaf_pinner {
        struct sheaf_hazard *hazard;
        struct sheaf_pin_map map;
        /* 0 in the child of a fork, else @id, with SHEAF_PIN_HOLDS_BACK while
         * pins may not be cleared. */
        _Atomic uint64_t *owner;
        uint64_t id;               /* unique in the process */
        struct sheaf_pinner *next; /* guard: the registry's lock */
        _Atomic uint64_t grant_bytes;
        /* Bytes of held pins and of threads' spare bytes; never above the
         * grant, unless that was lowered. */
        _Alignas(64) _Atomic uint64_t charged_bytes;
        /* Of transient pins; never above the budget. */
        _Alignas(64) _Atomic uint64_t brief_bytes;
        _Atomic uint64_t brief_max_bytes;
        /* Guard: the registry's lock. Slots in use at a fork, and those of them
         * given back since; what is charged for them beside. */
        uint64_t at_fork[SHEAF_HAZARD_SLOTS / 64];
        uint64_t given_back[SHEAF_HAZARD_SLOTS / 64];
        uint64_t held_back_bytes;
};
#define SHEAF_PIN_HOLDS_BACK (UINT64_C(1) << 63)

struct sheaf_pin {
        _Atomic uint64_t *slot;
        const uint8_t *bytes;
        uint32_t len_bytes, charged_bytes;
        bool brief; /* charged to that budget */
};

/* @hazard is a mapping of the whole array, made MADV_DONTFORK here; it and
 * what @map points to are borrowed until fini. -EPROTO when the array is not
 * one; -ENOMEM. */
SHEAF_MUST_CHECK int sheaf_pinner_init(struct sheaf_pinner *pinner,
        struct sheaf_hazard *hazard, const struct sheaf_pin_map *map,
        uint64_t grant_bytes);
/* Nothing is pinned and no thread is in a call. */
void sheaf_pinner_fini(struct sheaf_pinner *pinner);
/* A grant that rose, or fell by the client's wish. */
void sheaf_pinner_set_grant(struct sheaf_pinner *pinner, uint64_t grant_bytes);
/* What transient pins may hold at once; unbounded until it is told. */
void sheaf_pinner_set_brief(struct sheaf_pinner *pinner, uint64_t bytes);
/* True in the child of a fork: the slots are the parent's, its pins are held
 * for the child by the daemon's ghost of them. */
static inline bool sheaf_pinner_inherited(const struct sheaf_pinner *pinner)
{
        return !atomic_load_explicit(pinner->owner, memory_order_relaxed);
}

/* Around a fork, in parent and child: the list of pinners stays whole. */
void sheaf_pinners_lock(void);
void sheaf_pinners_unlock(void);

/* Before a fork, locked as above, of which the daemon may not know in time:
 * what is pinned now stays so until sheaf_pinner_settle(), whoever gives it
 * back, and is charged a second time until then. Again before each such fork.
 * sheaf_pinner_settle() takes the lock; without a hold it does nothing. */
void sheaf_pinner_hold(struct sheaf_pinner *pinner);
void sheaf_pinner_settle(struct sheaf_pinner *pinner);
/* Whether the pin in @slot, given back now, stays for such a child. */
bool sheaf_pin_stays(struct sheaf_pinner *pinner, const _Atomic uint64_t *slot);

/* ---- of the calling thread ---- */

struct sheaf_pin_thread {
        uint64_t pinner_id; /* whose bytes are spare */
        uint64_t spare_bytes, spare_max_bytes;
        uint32_t slot;   /* to try first */
        uint32_t stripe; /* from 1; 0: none yet */
};
extern _Thread_local struct sheaf_pin_thread sheaf_pin_thread
        __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* Makes sure that @len_bytes are spare. -EDQUOT. */
SHEAF_MUST_CHECK int sheaf_pin_refill(
        struct sheaf_pinner *pinner, uint32_t len_bytes);
/* Spare bytes beyond what a thread keeps go back. */
void sheaf_pin_give_back(struct sheaf_pinner *pinner, uint64_t bytes);
/* Takes @bytes of the budget of transient pins. -EDQUOT. */
SHEAF_MUST_CHECK int sheaf_pin_brief_take(
        struct sheaf_pinner *pinner, uint64_t bytes);
/* A free slot after the thread's first choice, published. NULL: none. */
_Atomic uint64_t *sheaf_pin_claim(struct sheaf_pinner *pinner, uint64_t word);
struct sheaf_meter_stripe *sheaf_pin_meter_slow(
        struct sheaf_meter *meter, bool *ret_shared);

/* ---- counting ---- */

/* Adds @n to a counter of the thread's stripe. */
#define sheaf_pin_count(meter, field, n)                                       \
        do {                                                                   \
                bool shared_ = false;                                          \
                struct sheaf_meter_stripe *stripe_;                            \
                                                                               \
                if (!(meter))                                                  \
                        break;                                                 \
                stripe_ = sheaf_pin_meter((meter), &shared_);                  \
                if (shared_)                                                   \
                        atomic_fetch_add_explicit(                             \
                                &stripe_->field, (n), memory_order_relaxed);   \
                else                                                           \
                        atomic_store_explicit(&stripe_->field,                 \
                                atomic_load_explicit(&stripe_->field,          \
                                        memory_order_relaxed) +                \
                                        (n),                                   \
                                memory_order_relaxed);                         \
        } while (0)

static inline struct sheaf_meter_stripe *sheaf_pin_meter(
        struct sheaf_meter *meter, bool *ret_shared)
{
        uint32_t stripe = sheaf_pin_thread.stripe;

        if (SHEAF_UNLIKELY(!stripe || stripe >= SHEAF_METER_STRIPES))
                return sheaf_pin_meter_slow(meter, ret_shared);
        return &meter->stripe[stripe - 1];
}

/* ---- pinning ---- */

static inline void sheaf_pin_uncharge(
        struct sheaf_pinner *pinner, uint32_t bytes)
{
        struct sheaf_pin_thread *me = &sheaf_pin_thread;

        if (SHEAF_LIKELY(me->pinner_id == pinner->id &&
                         me->spare_bytes + bytes <= me->spare_max_bytes))
                me->spare_bytes += bytes;
        else
                sheaf_pin_give_back(pinner, bytes);
}

static inline void sheaf_pin_brief_give(
        struct sheaf_pinner *pinner, uint64_t bytes)
{
        atomic_fetch_sub_explicit(
                &pinner->brief_bytes, bytes, memory_order_relaxed);
}

static inline void sheaf_pin_settle(
        struct sheaf_pinner *pinner, bool brief, uint32_t bytes)
{
        if (brief)
                sheaf_pin_brief_give(pinner, bytes);
        else
                sheaf_pin_uncharge(pinner, bytes);
}

static inline _Atomic uint64_t *sheaf_pin_publish_any(
        struct sheaf_pinner *pinner, uint64_t word)
{
        struct sheaf_hazard *hazard = pinner->hazard;
        struct sheaf_pin_thread *me = &sheaf_pin_thread;

        if (SHEAF_LIKELY(me->stripe && me->slot < sheaf_pin_mark(hazard) &&
                         sheaf_pin_publish(&hazard->slot[me->slot], word)))
                return &hazard->slot[me->slot];
        return sheaf_pin_claim(pinner, word);
}

/* Pins what @entry, a word of a residency table, names; its bytes, as many
 * as the listing says, are at ret_pin->bytes until sheaf_unpin. @meter may be
 * NULL. -EAGAIN: not in memory, or lost meanwhile; -EDQUOT: over the grant
 * (copy instead); -EMFILE: no slot is free; -ECHILD: inherited by fork. */
static inline int sheaf_pin_try(struct sheaf_pinner *pinner,
        struct sheaf_meter *meter, const _Atomic uint64_t *entry,
        uint32_t len_bytes, enum sheaf_pin_kind kind, struct sheaf_pin *ret_pin)
{
        uint64_t word = atomic_load_explicit(entry, memory_order_acquire);
        uint64_t at = sheaf_word_offset_bytes(word);
        bool brief = kind == SHEAF_PIN_TRANSIENT;
        uint32_t charge = brief && len_bytes < SHEAF_PIN_BRIEF_LEAST_BYTES
                                  ? 0
                                  : len_bytes;
        _Atomic uint64_t *slot;

        if (!word)
                return -EAGAIN;
        if (SHEAF_UNLIKELY(sheaf_pinner_inherited(pinner)))
                return -ECHILD;
        /* What the daemon writes is checked like anything shared. */
        if (SHEAF_UNLIKELY(at + len_bytes > pinner->map.range_bytes))
                return -EAGAIN;
        if (charge && brief) {
                int rc = sheaf_pin_brief_take(pinner, charge);

                if (SHEAF_UNLIKELY(rc))
                        return rc;
        } else if (charge) {
                struct sheaf_pin_thread *me = &sheaf_pin_thread;

                if (SHEAF_UNLIKELY(me->pinner_id != pinner->id ||
                                   me->spare_bytes < charge)) {
                        int rc = sheaf_pin_refill(pinner, charge);

                        if (rc < 0)
                                return rc;
                }
                me->spare_bytes -= charge;
        }
        slot = sheaf_pin_publish_any(pinner, word);
        if (SHEAF_UNLIKELY(!slot)) {
                if (charge)
                        sheaf_pin_settle(pinner, brief, charge);
                return -EMFILE;
        }
        /* The state is read after the publication too: who drops an extent
         * changes it, then looks at the slots. */
        if (SHEAF_LIKELY(sheaf_pin_recheck(entry, word) &&
                         atomic_load_explicit(
                                 &pinner->map.state[at >> pinner->map.shift],
                                 memory_order_seq_cst))) {
                ret_pin->slot = slot;
                ret_pin->bytes = pinner->map.base + at;
                ret_pin->len_bytes = len_bytes;
                ret_pin->charged_bytes = charge;
                ret_pin->brief = brief;
                sheaf_pin_count(meter, hits, 1);
                sheaf_pin_count(meter, hit_bytes, len_bytes);
                return 0;
        }
        sheaf_pin_clear(slot);
        if (charge)
                sheaf_pin_settle(pinner, brief, charge);
        sheaf_pin_count(meter, rechecks, 1);
        return -EAGAIN;
}

/* Gives a pin back, on any thread of its process; in a child of a fork it
 * does nothing, the pin is the parent's. */
static inline void sheaf_unpin(
        struct sheaf_pinner *pinner, struct sheaf_pin *pin)
{
        uint64_t owner =
                atomic_load_explicit(pinner->owner, memory_order_relaxed);

        if (SHEAF_UNLIKELY(!owner))
                return;
        if (SHEAF_LIKELY(!(owner & SHEAF_PIN_HOLDS_BACK)) ||
                !sheaf_pin_stays(pinner, pin->slot)) {
                sheaf_pin_clear(pin->slot);
                sheaf_pin_thread.slot =
                        (uint32_t)(pin->slot - pinner->hazard->slot);
        }
        if (pin->charged_bytes)
                sheaf_pin_settle(pinner, pin->brief, pin->charged_bytes);
}

/* Copies [@offset_bytes, +@len_bytes) of a chunk of @chunk_bytes out, held
 * only meanwhile. As sheaf_pin_try. */
static inline int sheaf_pin_copy(struct sheaf_pinner *pinner,
        struct sheaf_meter *meter, const _Atomic uint64_t *entry,
        uint32_t chunk_bytes, void *dst, uint32_t offset_bytes,
        uint32_t len_bytes)
{
        struct sheaf_pin pin;
        int rc = sheaf_pin_try(
                pinner, meter, entry, chunk_bytes, SHEAF_PIN_TRANSIENT, &pin);

        if (rc < 0)
                return rc;
#ifdef SHEAF_MUTANT_UNPIN_BEFORE_READ
        sheaf_unpin(pinner, &pin);
        memcpy(dst, pin.bytes + offset_bytes, len_bytes);
#else
        memcpy(dst, pin.bytes + offset_bytes, len_bytes);
        sheaf_unpin(pinner, &pin);
#endif
        return 0;
}

#endif
