/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that wait in a worker.
 *
 *  1 a request is answered once: by the worker, or by the interrupt; one
 *    exchange of `state` settles by whom
 *  2 a wait is freed by the last of both (`refs`)
 *
 * libfuse calls interrupted() with a lock of the request held; taking the
 * function away waits for that lock, so that it is not running afterwards.
 *
 * Threads: begin and interrupted() in the one that reads requests, the rest
 * in workers. */
#include "cachefs/wait.h"

#include <stdatomic.h>

enum wait_state {
        WAITING,
        ANSWERED,    /* the worker answers, or did */
        INTERRUPTED, /* the interrupt answers, or did */
};

static void drop(struct sheaf_wait *wait, int refs)
{
        if (atomic_fetch_sub_explicit(
                    &wait->refs, refs, memory_order_acq_rel) == refs)
                free(wait);
}

static void interrupted(fuse_req_t req, void *arg)
{
        struct sheaf_wait *wait = arg;
        int waiting = WAITING;

        if (!atomic_compare_exchange_strong(
                    &wait->state, &waiting, INTERRUPTED))
                return;
        fuse_reply_err(req, EINTR);
        drop(wait, 1);
}

static void run(struct sheaf_task *task)
{
        struct sheaf_wait *wait = (struct sheaf_wait *)task;

        wait->work(wait);
        drop(wait, atomic_load(&wait->state) == ANSWERED ? 2 : 1);
}

bool sheaf_wait_over(struct sheaf_wait *wait)
{
        return atomic_load(&wait->state) != WAITING;
}

bool sheaf_wait_claim(struct sheaf_wait *wait)
{
        int waiting = WAITING;

        if (!atomic_compare_exchange_strong(&wait->state, &waiting, ANSWERED))
                return false;
        fuse_req_interrupt_func(wait->req, NULL, NULL);
        return true;
}

int sheaf_wait_begin(struct sheaf_wait *wait, struct sheaf_fs *fs,
        fuse_req_t req, void (*work)(struct sheaf_wait *wait))
{
        int rc;

        /* Interrupts come through this very thread: after this look none
         * can be noted before the function is registered, which must not
         * answer while libfuse is still registering it. */
        if (fuse_req_interrupted(req))
                return -EINTR;
        wait->task.run = run;
        wait->req = req;
        wait->fs = fs;
        wait->work = work;
        atomic_init(&wait->state, WAITING);
        atomic_init(&wait->refs, 2);
        fuse_req_interrupt_func(req, interrupted, wait);
        rc = sheaf_pool_submit(fs->pool, &wait->task);
        if (rc < 0)
                fuse_req_interrupt_func(req, NULL, NULL);
        return rc;
}
