/* SPDX-License-Identifier: Apache-2.0 */
/* What one user, or one grant, has of the daemon in all its connections
 * together: a bound of a connection alone is none for who opens thousands.
 *
 * Threads: loop thread. */
#ifndef SHEAF_DAEMON_ACCOUNT_H
#define SHEAF_DAEMON_ACCOUNT_H

#include "daemon/clock.h"
#include "daemon/principal.h"

#include <sys/queue.h>
#include <uv.h>

#define SHEAF_USER_CONNS_MAX   4096
#define SHEAF_USER_CALLS_MAX   8192
#define SHEAF_USER_QUEUE_BYTES (UINT64_C(64) << 20)
#define SHEAF_USER_ITEMS_MAX   524288 /* chunks asked for, not yet answered */
/* Copies that are being made, or were sent and are still open somewhere. */
#define SHEAF_USER_COPY_BYTES (UINT64_C(512) << 20)
#define SHEAF_USER_COPIES_MAX 1024
/* Of a turn of the loop, on what one user asks. */
#define SHEAF_TURN_NS (2 * SHEAF_NS_PER_MS)

struct sheaf_accounts;
struct sheaf_chore;

struct sheaf_account {
        LIST_ENTRY(sheaf_account) link;
        struct sheaf_accounts *accounts;
        uid_t uid;
        uint64_t grant;
        uint32_t conns, calls, copies;
        uint64_t queue_bytes, fetch_items, copy_bytes;
        uint64_t turn_ms; /* the loop's time of this turn */
        int64_t spent_ns; /* on its messages and chores in this turn */
        TAILQ_ENTRY(sheaf_account) busy_link; /* while it has chores */
        TAILQ_HEAD(, sheaf_chore) chores;     /* that go on (chore.h) */
        /* A client of its pinned beyond its grant: until then none has a
         * grace. */
        int64_t strict_until_ns;
};

/* A copy for a client, in a memfd. */
struct sheaf_copy {
        LIST_ENTRY(sheaf_copy) link;
        struct sheaf_account *account;
        uint64_t bytes;
        int fd;
};

struct sheaf_accounts {
        LIST_HEAD(, sheaf_account) list;
        LIST_HEAD(, sheaf_copy) sent;     /* still open in a client */
        uint32_t conns_max;               /* of one user among others */
        uint64_t copy_bytes;              /* of all */
        TAILQ_HEAD(, sheaf_account) busy; /* with chores */
        uv_idle_t idle;                   /* runs while there are some */
};

/* Bounds what one user may have of @fds_max descriptors; root and the user of
 * the daemon have SHEAF_USER_CONNS_MAX. The owner closes @idle. */
void sheaf_accounts_init(
        struct sheaf_accounts *accounts, uv_loop_t *loop, int fds_max);
/* A connection of @who. -EUSERS: it has too many. */
SHEAF_MUST_CHECK int sheaf_account_join(struct sheaf_accounts *accounts,
        const struct sheaf_principal *who, struct sheaf_account **ret_account);
void sheaf_account_leave(struct sheaf_account *account);

/* Whether the account has used up its time of the turn that is told by the
 * loop's clock @turn_ms; what is spent goes to spent_ns. */
bool sheaf_account_spent(struct sheaf_account *account, uint64_t turn_ms);

/* A memfd of @bytes for a copy, which has no memory yet. -EBUSY: the user has
 * too much of them. */
SHEAF_MUST_CHECK int sheaf_copy_new(struct sheaf_account *account,
        uint64_t bytes, struct sheaf_copy **ret_copy);
/* Memory for a part of it, before that is written: all at once would take the
 * loop for long. -ENOMEM, -ENOSPC. */
SHEAF_MUST_CHECK int sheaf_copy_room(const struct sheaf_copy *copy,
        uint64_t offset_bytes, uint64_t len_bytes);
/* What was not sent. */
void sheaf_copy_free(struct sheaf_copy *copy);
/* The descriptor to send, the caller's; it counts until nobody has it open or
 * mapped. @copy is the accounts' from here on. The bytes change no more: no
 * mapping for writing may be left. */
SHEAF_MUST_CHECK int sheaf_copy_send(struct sheaf_copy *copy, int *ret_fd);

/* Frees what clients have closed, and forgets users who have nothing. */
void sheaf_accounts_sweep(struct sheaf_accounts *accounts);
void sheaf_accounts_clear(struct sheaf_accounts *accounts);

#endif
