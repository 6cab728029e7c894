/* SPDX-License-Identifier: Apache-2.0 */
/* An attached arena: the address range, its extents, the hazard array and
 * the grant, over one connection.
 *
 *   range   [ extent 0 | extent 1 |  hole  | extent 3 | ...     ]
 *   states    MAPPED     MAPPED     GONE     DROPPING
 *
 * Pinning (proto/pin.h) and letting go of an extent are the same
 * store-buffer pattern once more, within this process:
 *
 *   pinning thread                        service thread
 *   publish the word in a slot  seq_cst   state := DROPPING      seq_cst
 *   load the extent's state     seq_cst   load every slot        seq_cst
 *   not MAPPED: clear, a miss             word in the extent: wait
 *
 * so an extent is unmapped only when nobody reads it or will. An arena whose
 * connection ended is let go of in the same way, as a whole. The structure
 * and its hazard array stay until the session is freed, since a late thread
 * may still look at them. */
#ifndef SHEAF_CLIENT_ATTACH_H
#define SHEAF_CLIENT_ATTACH_H

#include "proto/pin.h"

enum sheaf_extent_state {
        SHEAF_EXTENT_GONE = 0, /* nothing is mapped there */
        SHEAF_EXTENT_MAPPED,
        SHEAF_EXTENT_DROPPING, /* mapped, but no new pins */
};

struct sheaf_attach {
        /* Read by pinning threads; fixed unless atomic. */
        uint8_t *base;
        struct sheaf_hazard *hazard;
        uint64_t range_bytes, extent_bytes, grant_bytes;
        _Atomic uint8_t *granule_state; /* enum sheaf_extent_state */
        unsigned int granule_shift;     /* divides extents evenly */
        bool foreign; /* inherited by fork: slots are the parent's */

        /* Guard: the session's lock. */
        struct sheaf_attach *next;
        uint32_t arena;
        bool live;          /* its connection stands */
        bool let_go;        /* the range is unmapped */
        uint32_t map_users; /* current maps of datasets */
        uint32_t extent_count, dropping;
        int *lock_fd; /* by extent, -1: none */

        /* Charged by pinning threads. */
        _Alignas(64) _Atomic uint64_t pinned_bytes;
};

/* Takes what ArenaOpened brought; the hazard descriptor stays the caller's.
 * -EPROTO when the figures make no sense; -ENOMEM; -errno. */
SHEAF_MUST_CHECK int sheaf_attach_new(uint32_t arena, uint64_t extent_bytes,
        uint64_t range_bytes, uint64_t grant_bytes, int hazard_fd,
        struct sheaf_attach **ret_attach);
/* Nothing may be pinned. */
void sheaf_attach_free(struct sheaf_attach *attach);

/* Maps an extent; takes *@lock_fd on success. -EPROTO: out of range, mapped
 * already, or shorter than an extent. */
SHEAF_MUST_CHECK int sheaf_attach_map(
        struct sheaf_attach *attach, uint32_t extent, int fd, int *lock_fd);
/* Marks an extent to be let go of. -EPROTO when it is not mapped. */
SHEAF_MUST_CHECK int sheaf_attach_drop(
        struct sheaf_attach *attach, uint32_t extent);

/* Unmaps dropped extents without pins, telling @unmapped of each, and the
 * whole range once its connection is gone, no dataset uses it and nothing is
 * pinned. True while something waits for pins to go. */
bool sheaf_attach_let_go(struct sheaf_attach *attach,
        void (*unmapped)(void *arg, uint32_t arena, uint32_t extent),
        void *arg);

/* In the child of a fork: slots and grant are the parent's. */
void sheaf_attach_disown(struct sheaf_attach *attach);

/* ---- any thread, no lock ---- */

/* Of the calling thread: where it claimed or freed last, and its number. */
struct sheaf_thread {
        uint32_t slot;
        uint32_t number; /* from 1; 0: not numbered yet */
};
extern _Thread_local struct sheaf_thread sheaf_thread
        __attribute__((tls_model("initial-exec"), visibility("hidden")));
/* Numbers the calling thread; slots of different threads start apart. */
void sheaf_thread_number(void);

/* Finds and claims a free slot after the thread's last one. NULL: all are
 * taken. */
_Atomic uint64_t *sheaf_attach_claim_slow(
        struct sheaf_attach *attach, uint64_t word);

/* Reserves @bytes of the grant, before a pin. False: over it. */
static inline bool sheaf_attach_charge(
        struct sheaf_attach *attach, uint64_t bytes)
{
        uint64_t before = atomic_fetch_add_explicit(
                &attach->pinned_bytes, bytes, memory_order_relaxed);

        if (SHEAF_LIKELY(before + bytes <= attach->grant_bytes))
                return true;
        atomic_fetch_sub_explicit(
                &attach->pinned_bytes, bytes, memory_order_relaxed);
        return false;
}

static inline void sheaf_attach_uncharge(
        struct sheaf_attach *attach, uint64_t bytes)
{
        /* Release: who sees zero may unmap what was read until now. */
        atomic_fetch_sub_explicit(
                &attach->pinned_bytes, bytes, memory_order_release);
}

static inline _Atomic uint64_t *sheaf_attach_claim(
        struct sheaf_attach *attach, uint64_t word)
{
        struct sheaf_hazard *hazard = attach->hazard;
        uint32_t slot = sheaf_thread.slot;

        if (SHEAF_LIKELY(sheaf_thread.number &&
                         slot < atomic_load_explicit(&hazard->high_water,
                                        memory_order_seq_cst) &&
                         sheaf_pin_publish(&hazard->slot[slot], word)))
                return &hazard->slot[slot];
        return sheaf_attach_claim_slow(attach, word);
}

static inline void sheaf_attach_unpin(
        struct sheaf_attach *attach, _Atomic uint64_t *slot)
{
        if (SHEAF_UNLIKELY(attach->foreign))
                return;
        sheaf_pin_clear(slot);
        sheaf_thread.slot = (uint32_t)(slot - attach->hazard->slot);
}

/* Pins the chunk whose word is at @entry. 1: *@ret_bytes may be read until
 * unpin; 0: it is not in memory; -EAGAIN: it was, and was lost meanwhile;
 * -EDQUOT: no slot is free. */
static inline int sheaf_attach_pin(struct sheaf_attach *attach,
        const _Atomic uint64_t *entry, uint32_t len_bytes,
        const uint8_t **ret_bytes, _Atomic uint64_t **ret_slot)
{
        uint64_t word = atomic_load_explicit(entry, memory_order_acquire);
        uint64_t offset_bytes = sheaf_word_offset_bytes(word);
        _Atomic uint64_t *slot;

        if (!word)
                return 0;
        /* What the daemon writes is checked like anything shared. */
        if (SHEAF_UNLIKELY(offset_bytes + len_bytes > attach->range_bytes))
                return 0;
        slot = sheaf_attach_claim(attach, word);
        if (SHEAF_UNLIKELY(!slot))
                return -EDQUOT;
        if (SHEAF_LIKELY(
                    sheaf_pin_recheck(entry, word) &&
                    atomic_load_explicit(
                            &attach->granule_state[offset_bytes >>
                                                   attach->granule_shift],
                            memory_order_seq_cst) == SHEAF_EXTENT_MAPPED)) {
                *ret_bytes = attach->base + offset_bytes;
                *ret_slot = slot;
                return 1;
        }
        sheaf_attach_unpin(attach, slot);
        return -EAGAIN;
}

#endif
