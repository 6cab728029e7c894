/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned files and the connection beneath them, counted.
 *
 *  1 a pin lives as long as any Sample or tensor over it
 *  2 the session lives as long as any pin of it
 *  3 in a forked child nothing of the parent's session is freed; libsheaf
 *    sees to it that releasing an inherited view unpins nothing
 *
 * Threads: counts are atomic, since tensors end on any thread without the
 * interpreter's lock. A view changes (ext_hold_bytes) under that lock only,
 * and before any tensor sees it. */
#include "client/python/src/ext.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ext_link *ext_link_get(struct ext_link *link)
{
        atomic_fetch_add_explicit(&link->users, 1, memory_order_relaxed);
        return link;
}

void ext_link_put(struct ext_link *link)
{
        if (atomic_fetch_sub_explicit(&link->users, 1, memory_order_acq_rel) >
                1)
                return;
        if (link->pid != getpid())
                return;
        sheaf_session_free(link->session);
        free(link);
}

struct ext_hold *ext_hold_new(struct ext_link *link)
{
        struct ext_hold *hold = malloc(sizeof(*hold));

        if (!hold)
                return NULL;
        atomic_init(&hold->users, 1);
        hold->link = ext_link_get(link);
        hold->flat = NULL;
        memset(&hold->view, 0, sizeof(hold->view));
        return hold;
}

void ext_hold_put(struct ext_hold *hold)
{
        if (atomic_fetch_sub_explicit(&hold->users, 1, memory_order_acq_rel) >
                1)
                return;
        sheaf_view_release(&hold->view);
        free(hold->flat);
        ext_link_put(hold->link);
        free(hold);
}

static int flatten(struct ext_hold *hold)
{
        struct sheaf_view *view = &hold->view;
        uint64_t len_bytes = view->len_bytes;
        char *flat = malloc(len_bytes), *at = flat;

        if (!flat) {
                PyErr_NoMemory();
                return -1;
        }
        for (size_t i = 0; i < view->piece_count; i++) {
                memcpy(at, view->pieces[i].iov_base, view->pieces[i].iov_len);
                at += view->pieces[i].iov_len;
        }
        sheaf_view_release(view);
        view->len_bytes = len_bytes;
        hold->flat = flat;
        return 0;
}

const void *ext_hold_bytes(struct ext_hold *hold)
{
        if (!hold->flat && hold->view.piece_count > 1 && flatten(hold))
                return NULL;
        if (hold->flat)
                return hold->flat;
        return hold->view.piece_count ? hold->view.pieces[0].iov_base : "";
}

bool ext_hold_is_copy(const struct ext_hold *hold)
{
        return hold->flat || hold->view.copied;
}
