/* SPDX-License-Identifier: Apache-2.0 */
/* The socket file of a grant, made and removed with its owner's rights, in a
 * directory that may hang (daemon/aside.h).
 *
 * Threads: loop thread. */
#ifndef SHEAF_DAEMON_GRANT_SOCKET_H
#define SHEAF_DAEMON_GRANT_SOCKET_H

#include "daemon/aside.h"
#include "daemon/records.pb-c.h"

#define SHEAF_GRANT_SOCKET_NAME "sheafd.sock"

struct sheaf_grant_socket_made {
        int sock; /* listens; the receiver's */
        /* Which file it is: an inode's number may be given again at once. */
        uint64_t dev, ino;
        struct timespec made;
};

typedef void sheaf_grant_socket_done(void *arg, uint64_t serial, int rc,
        const struct sheaf_grant_socket_made *made);

/* Listens in the grant's directory: @dir_fd (duplicated), which must be what
 * the recorded path leads to, or with -1 what it leads to now. @done comes
 * later, once. -EBUSY: too many such attempts hang. */
SHEAF_MUST_CHECK int sheaf_grant_socket_open(uv_loop_t *loop,
        const SheafRecord__Grant *record, int dir_fd, uint64_t deadline_ms,
        sheaf_grant_socket_done *done, void *arg);
/* Removes the file, later, if it is still that one. */
void sheaf_grant_socket_remove(uv_loop_t *loop,
        const SheafRecord__Grant *record,
        const struct sheaf_grant_socket_made *made);

#endif
