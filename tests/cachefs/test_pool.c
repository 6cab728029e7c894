/* SPDX-License-Identifier: Apache-2.0 */
/* The pool runs every job once, in parallel, and refuses past its bound. */
#include "cachefs/pool.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <unistd.h>

static _Atomic unsigned int ran, inside, most;
static _Atomic bool open_gate;

static void count_job(struct sheaf_job *job)
{
        (void)job;
        atomic_fetch_add(&ran, 1);
}

static void wait_job(struct sheaf_job *job)
{
        unsigned int now = atomic_fetch_add(&inside, 1) + 1, seen = most;

        (void)job;
        while (seen < now && !atomic_compare_exchange_weak(&most, &seen, now))
                ;
        while (!atomic_load(&open_gate))
                usleep(1000);
        atomic_fetch_sub(&inside, 1);
        atomic_fetch_add(&ran, 1);
}

Test(pool, runs_each_job_once)
{
        static struct sheaf_job job[5000];
        struct sheaf_pool *pool;

        cr_assert_eq(sheaf_pool_new(&pool), 0);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(job); i++) {
                job[i].run = count_job;
                cr_assert_eq(sheaf_pool_submit(pool, &job[i]), 0);
        }
        sheaf_pool_free(pool);
        cr_assert_eq(ran, SHEAF_ARRAY_LEN(job));
}

Test(pool, waits_in_parallel_within_bounds)
{
        enum {
                JOBS = SHEAF_POOL_JOBS_MAX + SHEAF_POOL_THREADS_MAX
        };
        static struct sheaf_job job[JOBS + 1];
        struct sheaf_pool *pool;
        size_t taken = 0;

        cr_assert_eq(sheaf_pool_new(&pool), 0);
        for (; taken < SHEAF_POOL_THREADS_MAX; taken++) {
                job[taken].run = wait_job;
                cr_assert_eq(sheaf_pool_submit(pool, &job[taken]), 0);
        }
        for (int i = 0; i < 5000 && inside < SHEAF_POOL_THREADS_MAX; i++)
                usleep(1000);
        cr_assert_eq(inside, SHEAF_POOL_THREADS_MAX);
        for (; taken < JOBS; taken++) {
                job[taken].run = wait_job;
                cr_assert_eq(sheaf_pool_submit(pool, &job[taken]), 0);
        }
        job[JOBS].run = wait_job;
        cr_assert_eq(sheaf_pool_submit(pool, &job[JOBS]), -EAGAIN);
        atomic_store(&open_gate, true);
        sheaf_pool_free(pool);
        cr_assert_eq(ran, JOBS);
        cr_assert_leq(most, SHEAF_POOL_THREADS_MAX);
}
