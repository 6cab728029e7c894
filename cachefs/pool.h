/* SPDX-License-Identifier: Apache-2.0 */
/* A bounded pool of threads for requests that may wait, so that the thread
 * that reads requests never does. */
#ifndef SHEAF_CACHEFS_POOL_H
#define SHEAF_CACHEFS_POOL_H

#include "proto/base.h"

#define SHEAF_POOL_THREADS_MAX 64
#define SHEAF_POOL_TASKS_MAX   16384

struct sheaf_pool;

/* Embedded in what the caller wants done; owned by the pool from submit until
 * @run is called, which may free it. */
struct sheaf_task {
        void (*run)(struct sheaf_task *task);
        struct sheaf_task *next;
};

/* Threads start as they are needed. -ENOMEM. */
SHEAF_MUST_CHECK int sheaf_pool_new(struct sheaf_pool **ret_pool);

/* Queues a task. Any thread. 0; -EAGAIN when SHEAF_POOL_TASKS_MAX wait or no
 * thread can be started: the task is still the caller's. */
SHEAF_MUST_CHECK int sheaf_pool_submit(
        struct sheaf_pool *pool, struct sheaf_task *task);

/* Runs what is queued, ends the threads, frees. NULL is fine. */
void sheaf_pool_free(struct sheaf_pool *pool);

#endif
