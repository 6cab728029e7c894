/* SPDX-License-Identifier: Apache-2.0 */
/* A request that a worker answers, unless its process is interrupted first:
 * then it gets EINTR at once, and the worker's result is dropped. */
#ifndef SHEAF_CACHEFS_WAIT_H
#define SHEAF_CACHEFS_WAIT_H

#include "cachefs/fs_internal.h"

/* First in the caller's struct, which is allocated by malloc and freed by
 * the last who needs it. */
struct sheaf_wait {
        struct sheaf_task task; /* first */
        fuse_req_t req;
        struct sheaf_fs *fs;
        /* In a worker; calls sheaf_wait_claim once, and answers if told so. */
        void (*work)(struct sheaf_wait *wait);
        _Atomic int state, refs;
};

/* Hands @wait to a worker. Thread that reads requests only. 0; -EINTR;
 * -EAGAIN no room: @wait and the request are still the caller's. */
SHEAF_MUST_CHECK int sheaf_wait_begin(struct sheaf_wait *wait,
        struct sheaf_fs *fs, fuse_req_t req,
        void (*work)(struct sheaf_wait *wait));

/* Nobody waits any more: work need not begin. */
bool sheaf_wait_over(struct sheaf_wait *wait);

/* True: the caller answers the request now. False: it has its answer. */
SHEAF_MUST_CHECK bool sheaf_wait_claim(struct sheaf_wait *wait);

#endif
