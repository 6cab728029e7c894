/* SPDX-License-Identifier: Apache-2.0 */
/* What strangers send, received so that it cannot hold the loop.
 *
 * A descriptor comes with the message, is in the table before anybody can
 * look, and to be rid of it is to close it. To close a regular file asks its
 * file system to flush it, also when it was only read, and that may be a FUSE
 * mount of the sender's own, which never answers. A TCP socket waits as long
 * as its owner wished (SO_LINGER). Messages bring directories, pipes and
 * memfds; of all else sockets are closed in a hurry, and each other file in a
 * thread of its own. That file is out of the table of descriptors when
 * sheaf_sift_recv returns: a process that is started would else close its
 * copy, and the loop waits for that.
 *
 * Not covered: descriptors that nobody received end with their socket, without
 * a flush. A FUSE file with dirty pages of a write-back cache waits then, too.
 *
 * Threads: loop thread. */
#ifndef SHEAF_DAEMON_SIFT_H
#define SHEAF_DAEMON_SIFT_H

#include "proto/base.h"

#include <sys/types.h>
#include <uv.h>

#define SHEAF_SIFT_FDS_MAX 4 /* of a message; none needs more */

/* As sheaf_wire_recv_record, of a socket that @uid writes to; -EBADMSG also
 * with more descriptors than are taken, which is none while many files of
 * @uid hang. In place of one that was not harmless @ret_fds has -1. */
SHEAF_MUST_CHECK int sheaf_sift_recv(uv_loop_t *loop, uid_t uid, int sock,
        void *data, size_t cap_bytes, size_t *ret_len_bytes,
        int ret_fds[SHEAF_SIFT_FDS_MAX], size_t *ret_count);
/* Throws away the messages that lie in @sock. */
void sheaf_sift_drain(int sock);
/* Closes a socket that strangers write to, with what lies in it. */
void sheaf_sift_close(int sock);

#endif
