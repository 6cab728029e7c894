/* SPDX-License-Identifier: Apache-2.0 */
/* Grants: a socket of its own, in a directory to bind-mount into a
 * container; whoever speaks through it reads the granted datasets and
 * nothing else, whatever its uid inside. Kept until revoked.
 *
 * Threads: loop thread. */
#ifndef SHEAF_DAEMON_GRANTS_H
#define SHEAF_DAEMON_GRANTS_H

#include "daemon/grant_socket.h"
#include "daemon/log.h"
#include "daemon/server.h"

#define SHEAF_GRANTS_USER_MAX 1024

struct sheaf_grant {
        LIST_ENTRY(sheaf_grant) link;
        SheafRecord__Grant *record; /* owned */
        uint64_t listener;          /* 0: it is not served */
        int rc;                     /* why not */
        bool opening;               /* its socket is being made */
        struct sheaf_log_once failed_once;
        struct sheaf_grant_socket_made made; /* its sock is the listener's */
        char socket[4096];
};

/* Reads all grants and makes their sockets again, soon; one whose directory
 * is gone is kept and tried again every few seconds. */
SHEAF_MUST_CHECK int sheaf_grants_new(
        struct sheaf_daemon *daemon, struct sheaf_grants **ret_grants);
void sheaf_grants_free(struct sheaf_grants *grants);

struct sheaf_grant *sheaf_grants_first(struct sheaf_grants *grants);
/* Who made the grant of that serial; SHEAF_UID_UNMAPPED: there is none. */
uid_t sheaf_grants_owner(struct sheaf_grants *grants, uint64_t serial);

/* What somebody wishes to grant, and who waits. */
struct sheaf_grant_wish {
        const struct sheaf_principal *owner;
        const char *dir; /* path, as the owner sees it */
        int dir_fd;      /* the same, open; duplicated */
        const char *label;
        const uint64_t *datasets; /* record ids */
        size_t count;
        void (*done)(void *arg, struct sheaf_grant *grant, int rc);
        void *arg;
};

/* Makes a grant and its socket; on success @done comes once, with the grant
 * or why there is none, perhaps before this returns. -EACCES: not a directory
 * of the owner; -ESTALE: the path leads elsewhere; -EMFILE: too many grants. */
SHEAF_MUST_CHECK int sheaf_grants_make(
        struct sheaf_grants *grants, const struct sheaf_grant_wish *wish);
/* Nobody waits for @arg any more; the grant is made all the same. */
void sheaf_grants_forget(struct sheaf_grants *grants, void *arg);
/* Ends a grant: when its record is gone, its socket and its connections go,
 * and @done is told, perhaps before this returns. With an error, told by
 * either, it stays. */
SHEAF_MUST_CHECK int sheaf_grants_revoke(struct sheaf_grants *grants,
        struct sheaf_grant *grant, void (*done)(void *arg, int rc), void *arg);

#endif
