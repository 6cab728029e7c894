/* SPDX-License-Identifier: Apache-2.0 */
/* Work that a user began and that takes many turns of the loop, as a walk over
 * a million chunks. All that one user has begun shares his time of a turn,
 * taking turns itself; and all users share what a turn may last, so that
 * reads, which come between, wait for milliseconds whatever is going on.
 *
 * Threads: loop thread. */
#ifndef SHEAF_DAEMON_CHORE_H
#define SHEAF_DAEMON_CHORE_H

#include "daemon/account.h"

#include <uv.h>

/* Embedded in a verb's state; zeroed before its first start. */
struct sheaf_chore {
        TAILQ_ENTRY(sheaf_chore) link;
        struct sheaf_account *account; /* while it goes on */
        /* A part of some 10 to 100 us; may stop and free the chore. */
        void (*step)(struct sheaf_chore *chore);
};

/* Calls @step, again and again, until it is stopped; one that goes on already
 * just does. @account lives longer. */
void sheaf_chore_start(struct sheaf_account *account, struct sheaf_chore *chore,
        void (*step)(struct sheaf_chore *chore));
void sheaf_chore_stop(struct sheaf_chore *chore);

#endif
