/* SPDX-License-Identifier: Apache-2.0 */
/* Work on directories of users, beside the loop and the pool.
 *
 * A directory that a client names may be one of a file system that never
 * answers (a dead server; a FUSE mount of the client's own). So each piece of
 * such work has a thread of its own, with the rights of that user. Threads that
 * hang stay behind; they are bounded, by user and in all.
 *
 * Threads: loop thread, but for work(). */
#ifndef SHEAF_DAEMON_ASIDE_H
#define SHEAF_DAEMON_ASIDE_H

#include "proto/base.h"

#include <sys/queue.h>
#include <sys/types.h>
#include <uv.h>

#define SHEAF_ASIDE_MAX          256
#define SHEAF_ASIDE_USER_MAX     4
#define SHEAF_ASIDE_CLOSINGS_MAX 8 /* of a user */

/* Embedded in the work's own state, which @work alone uses until it returns
 * and which must not refer to anything that may go. */
struct sheaf_aside {
        /* Set before sheaf_aside_start. */
        uid_t uid;       /* whose rights; only a daemon of root changes them */
        bool own_rights; /* the daemon's instead; @uid counts all the same */
        bool closing;    /* counted apart from other work */
        gid_t gid;
        const uint32_t *groups; /* of the state */
        size_t group_count;
        int (*work)(struct sheaf_aside *aside);
        /* Once: the result, or -ETIMEDOUT while @work goes on. */
        void (*done)(struct sheaf_aside *aside, int rc);
        /* After @work has ended: frees the state. @late: done() was told of a
         * timeout, and what @work made is to be undone. */
        void (*end)(struct sheaf_aside *aside, bool late);
        /* Private. */
        LIST_ENTRY(sheaf_aside) link;
        struct sheaf_aside *next;
        uv_timer_t timer;
        int rc;
        bool told;
};

/* 0: done() and end() will be called; -EBUSY: too many threads hang;
 * -errno. */
SHEAF_MUST_CHECK int sheaf_aside_start(
        uv_loop_t *loop, struct sheaf_aside *aside, uint64_t deadline_ms);
/* Whether @count more closings of @uid may begin. */
bool sheaf_aside_may_close(uid_t uid, unsigned int count);
/* No done() and no end() any more: what still runs is left to the kernel. */
void sheaf_aside_stop(void);

#endif
