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

#include "client/pin.h"

enum sheaf_extent_state {
        SHEAF_EXTENT_GONE = 0, /* nothing is mapped there */
        SHEAF_EXTENT_MAPPED,
        SHEAF_EXTENT_DROPPING, /* mapped, but no new pins */
};

struct sheaf_extent {
        enum sheaf_extent_state state;
        int lock_fd; /* -1: none */
};

struct sheaf_attach {
        struct sheaf_pinner pinner; /* any thread */
        /* Held at the fork that made this attachment the parent's; any
         * thread. */
        _Atomic uint64_t inherited_pins;

        /* Fixed. */
        uint32_t arena, extent_count;
        uint64_t extent_bytes;
        uint8_t *base;
        struct sheaf_hazard *hazard;

        /* Guard: the session's lock. */
        struct sheaf_attach *next;
        bool live;          /* its connection stands */
        bool foreign;       /* inherited by fork: slots are the parent's */
        bool let_go;        /* the range is unmapped */
        uint32_t map_users; /* current maps of datasets */
        uint32_t dropping;
        uint64_t pins_at_fork;
        struct sheaf_extent *extent; /* extent_count of them */
        _Atomic uint8_t *pinnable;   /* see sheaf_pin_map.state */
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

/* Replaces the pages at @at by empty ones with @prot, in one step: a thread
 * that reads meanwhile finds the old or the new. 0; -errno. */
int sheaf_pages_replace(void *at, size_t bytes, int prot);

/* Slots in use now, transient ones included. */
uint64_t sheaf_attach_pins(const struct sheaf_attach *attach);
/* In the child of a fork, before _disown: whoever reads the arena's memory gets
 * SIGSEGV from now on. */
void sheaf_attach_hide(struct sheaf_attach *attach);
/* In the child of a fork: the slots, @pins of them in use, are the
 * parent's. */
void sheaf_attach_disown(struct sheaf_attach *attach, uint64_t pins);

/* Gives one pin back, uncharged. Any thread, no lock. */
static inline void sheaf_attach_unpin(struct sheaf_attach *attach, void *slot)
{
        struct sheaf_pin pin = { .slot = (_Atomic uint64_t *)slot };

        if (SHEAF_UNLIKELY(sheaf_pinner_inherited(&attach->pinner)))
                /* Release: who sees zero may unmap what was read. */
                atomic_fetch_sub_explicit(
                        &attach->inherited_pins, 1, memory_order_release);
        else
                sheaf_unpin(&attach->pinner, &pin);
}

/* Gives @bytes back to the grant, or to the budget of transient pins. Any
 * thread, no lock. */
static inline void sheaf_attach_uncharge(
        struct sheaf_attach *attach, bool brief, uint64_t bytes)
{
        if (SHEAF_UNLIKELY(sheaf_pinner_inherited(&attach->pinner)))
                return;
        if (brief) {
                sheaf_pin_brief_give(&attach->pinner, bytes);
                return;
        }
        while (SHEAF_UNLIKELY(bytes > UINT32_MAX)) {
                sheaf_pin_uncharge(&attach->pinner, UINT32_MAX);
                bytes -= UINT32_MAX;
        }
        sheaf_pin_uncharge(&attach->pinner, (uint32_t)bytes);
}

#endif
