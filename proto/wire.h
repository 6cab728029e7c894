/* SPDX-License-Identifier: Apache-2.0 */
/* Framing of control messages: one protobuf Envelope is one record of a
 * SOCK_SEQPACKET unix socket, with descriptors beside it.
 *
 * A record is at most SHEAF_WIRE_BYTES_MAX; a longer one, or one that does
 * not decode, is -EBADMSG, after which the connection is of no use. Received
 * descriptors are close-on-exec; those that a caller does not take are
 * closed by sheaf_wire_msg_free. */
#ifndef SHEAF_PROTO_WIRE_H
#define SHEAF_PROTO_WIRE_H

#include "proto/base.h"
#include "proto/control.pb-c.h"

#define SHEAF_WIRE_BYTES_MAX  (UINT64_C(64) << 10)
#define SHEAF_WIRE_FDS_MAX    64
#define SHEAF_SOCKET_PATH_MAX 107

struct sheaf_wire_msg {
        Sheaf__Envelope *env; /* owned */
        int fds[SHEAF_WIRE_FDS_MAX];
        size_t fd_count;
};

/* Sends @len_bytes as one record; descriptors stay the caller's. Returns as
 * sheaf_wire_send. */
SHEAF_MUST_CHECK int sheaf_wire_send_record(int sock, const void *data,
        size_t len_bytes, const int *fds, size_t fd_count);

/* Receives one record into @data. 1: it is there, with *@ret_fd_count
 * descriptors, now the caller's; 0: the peer hung up; -EAGAIN; -EBADMSG: it
 * was longer than @cap_bytes or brought too many descriptors; -EMFILE: it
 * brought more than this process may open, and is lost; -errno. */
SHEAF_MUST_CHECK int sheaf_wire_recv_record(int sock, void *data,
        size_t cap_bytes, size_t *ret_len_bytes,
        int ret_fds[SHEAF_WIRE_FDS_MAX], size_t *ret_fd_count);
/* The same, but takes @fds_max descriptors at most, and closes none: whatever
 * is returned, those in @ret_fds are the caller's. */
SHEAF_MUST_CHECK int sheaf_wire_recv_some(int sock, void *data,
        size_t cap_bytes, size_t fds_max, size_t *ret_len_bytes, int *ret_fds,
        size_t *ret_fd_count);
/* 1: the next record, which stays, brings descriptors; 0: it does not, or the
 * peer hung up; -EAGAIN: there is none; -errno. Does not wait. */
SHEAF_MUST_CHECK int sheaf_wire_brings_fds(int sock);

/* Sends one message; descriptors stay the caller's. 0; -EAGAIN when the
 * socket is full and non-blocking; -EMSGSIZE; -EPIPE; -errno. Any thread:
 * records are never torn. */
SHEAF_MUST_CHECK int sheaf_wire_send(
        int sock, const Sheaf__Envelope *env, const int *fds, size_t fd_count);

/* Receives one message. 1: @ret_msg is filled; 0: the peer hung up; -EAGAIN;
 * -EBADMSG; -EMFILE, as above; -errno. */
SHEAF_MUST_CHECK int sheaf_wire_recv(int sock, struct sheaf_wire_msg *ret_msg);

/* Decodes the bytes of a record (the part of recv that the fuzzer drives).
 * The result is freed with sheaf__envelope__free_unpacked. NULL: bad. */
Sheaf__Envelope *sheaf_wire_decode(const void *data, size_t len_bytes);

void sheaf_wire_msg_free(struct sheaf_wire_msg *msg);

/* Takes descriptor @i out of the message, or returns -1. */
int sheaf_wire_take_fd(struct sheaf_wire_msg *msg, size_t i);

/* Connects to / listens on the SEQPACKET socket at @path. Paths over 107
 * bytes are reached through /proc/self/fd of their directory, so that no
 * name is ever cut off; a component too long is -ENAMETOOLONG. @mode: of the
 * socket file. Returns a descriptor or -errno (-EADDRINUSE: somebody listens;
 * -EEXIST: @path is not a socket, it was left alone). */
SHEAF_MUST_CHECK int sheaf_wire_connect(const char *path);
/* The same, and never waits: -EAGAIN where somebody listens whose queue is
 * full. The descriptor does not block. */
SHEAF_MUST_CHECK int sheaf_wire_connect_now(const char *path);
/* Whether somebody listens there; also one that does not accept. At once. */
bool sheaf_wire_listens(const char *path);
SHEAF_MUST_CHECK int sheaf_wire_listen(const char *path, unsigned int mode);

#endif
