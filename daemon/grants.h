/* SPDX-License-Identifier: Apache-2.0 */
/* Grants: a socket of its own, in a directory to bind-mount into a
 * container; whoever speaks through it reads the granted datasets and
 * nothing else, whatever its uid inside. Kept until revoked.
 *
 * Threads: loop thread. */
#ifndef SHEAF_DAEMON_GRANTS_H
#define SHEAF_DAEMON_GRANTS_H

#include "daemon/server.h"

struct sheaf_grant {
        LIST_ENTRY(sheaf_grant) link;
        SheafRecord__Grant *record; /* owned */
        uint64_t listener;          /* 0: its directory is not there */
        int rc;                     /* why not */
        char socket[4096];
};

/* Reads all grants and listens on their sockets again; one whose directory
 * is gone is kept and tried again every few seconds. */
SHEAF_MUST_CHECK int sheaf_grants_new(
        struct sheaf_daemon *daemon, struct sheaf_grants **ret_grants);
void sheaf_grants_free(struct sheaf_grants *grants);

struct sheaf_grant *sheaf_grants_first(struct sheaf_grants *grants);

/* Makes a grant of @datasets (record ids) in directory @dir. Takes over
 * nothing. -EACCES: @dir_fd is not a directory that @owner may write. */
SHEAF_MUST_CHECK int sheaf_grants_make(struct sheaf_grants *grants,
        const struct sheaf_principal *owner, const char *dir, int dir_fd,
        const char *label, const uint64_t *datasets, size_t count,
        struct sheaf_grant **ret_grant);
/* Ends a grant, its socket and its connections. */
SHEAF_MUST_CHECK int sheaf_grants_revoke(
        struct sheaf_grants *grants, struct sheaf_grant *grant);

#endif
