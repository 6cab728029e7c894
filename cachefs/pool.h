/* SPDX-License-Identifier: Apache-2.0 */
/* A bounded pool of threads for requests that may wait, so that the thread
 * that reads requests never does. */
#ifndef SHEAF_CACHEFS_POOL_H
#define SHEAF_CACHEFS_POOL_H

#include "proto/base.h"

#define SHEAF_POOL_THREADS_MAX 64
#define SHEAF_POOL_JOBS_MAX    16384

struct sheaf_pool;

/* Embedded in the caller's job; owned by the pool from submit until @run is
 * called, which may free it. */
struct sheaf_job {
        void (*run)(struct sheaf_job *job);
        struct sheaf_job *next;
};

/* Threads start as they are needed. -ENOMEM. */
SHEAF_MUST_CHECK int sheaf_pool_new(struct sheaf_pool **ret_pool);

/* Queues a job. Any thread. 0; -EAGAIN when SHEAF_POOL_JOBS_MAX wait or no
 * thread can be started: the job is still the caller's. */
SHEAF_MUST_CHECK int sheaf_pool_submit(
        struct sheaf_pool *pool, struct sheaf_job *job);

/* Runs what is queued, ends the threads, frees. NULL is fine. */
void sheaf_pool_free(struct sheaf_pool *pool);

#endif
