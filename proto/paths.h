/* SPDX-License-Identifier: Apache-2.0 */
/* Where the daemon's socket is: one search order for sheafd, libsheaf and
 * the CLI. */
#ifndef SHEAF_PROTO_PATHS_H
#define SHEAF_PROTO_PATHS_H

#include "proto/base.h"

#define SHEAF_SOCKET_PLACES_MAX 4

struct sheaf_socket_list {
        size_t count;
        char *path[SHEAF_SOCKET_PLACES_MAX]; /* owned */
};

/* The sockets to try, in turn. @given (an option; NULL: none) or else
 * SHEAF_SOCKET is the only one when set; else
 * $XDG_RUNTIME_DIR/sheaf/sheafd.sock, /run/sheaf/sheafd.sock and
 * /tmp/sheaf-UID/sheafd.sock, the last one only if its directory is absent or
 * belongs to this user alone (anybody may make names in /tmp).
 * At least one path on success. -ENOMEM. Any thread. */
SHEAF_MUST_CHECK int sheaf_socket_candidates(
        const char *given, struct sheaf_socket_list *ret_list);
void sheaf_socket_list_free(struct sheaf_socket_list *list);

#endif
