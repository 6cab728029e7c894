/* SPDX-License-Identifier: Apache-2.0 */
/* Who asks: (listening socket, uid, groups), read from the kernel, never
 * from what a client says. */
#ifndef SHEAF_DAEMON_PRINCIPAL_H
#define SHEAF_DAEMON_PRINCIPAL_H

#include "proto/base.h"

#include <sys/types.h>

#define SHEAF_UID_UNMAPPED 65534

struct sheaf_principal {
        uid_t uid;
        gid_t gid;
        gid_t *groups; /* owned; supplementary and primary */
        size_t group_count;
        pid_t pid;      /* 0: in a namespace that we cannot see */
        int pidfd;      /* owned; -1: none can be had */
        uint64_t grant; /* serial of the grant whose socket it is; 0: none */
};

/* Reads the peer of @sock. -EACCES for an unmapped uid on an ordinary socket
 * (@grant 0). */
SHEAF_MUST_CHECK int sheaf_principal_read(
        int sock, uint64_t grant, struct sheaf_principal *ret_principal);
void sheaf_principal_clear(struct sheaf_principal *principal);

bool sheaf_principal_in_group(
        const struct sheaf_principal *principal, gid_t gid);

#endif
