/* SPDX-License-Identifier: Apache-2.0 */
/* The pool runs every task once, in parallel, and refuses past its bound. */
#include "cachefs/pool.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <unistd.h>

static _Atomic unsigned int ran, inside, most;
static _Atomic bool open_gate;

static void count_task(struct sheaf_task *task)
{
        (void)task;
        atomic_fetch_add(&ran, 1);
}

static void wait_task(struct sheaf_task *task)
{
        unsigned int now = atomic_fetch_add(&inside, 1) + 1, seen = most;

        (void)task;
        while (seen < now && !atomic_compare_exchange_weak(&most, &seen, now))
                ;
        while (!atomic_load(&open_gate))
                usleep(1000);
        atomic_fetch_sub(&inside, 1);
        atomic_fetch_add(&ran, 1);
}

Test(pool, runs_each_task_once)
{
        static struct sheaf_task task[5000];
        struct sheaf_pool *pool;

        cr_assert_eq(sheaf_pool_new(&pool), 0);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(task); i++) {
                task[i].run = count_task;
                cr_assert_eq(sheaf_pool_submit(pool, &task[i]), 0);
        }
        sheaf_pool_free(pool);
        cr_assert_eq(ran, SHEAF_ARRAY_LEN(task));
}

Test(pool, waits_in_parallel_within_bounds)
{
        enum {
                TASKS = SHEAF_POOL_TASKS_MAX + SHEAF_POOL_THREADS_MAX
        };
        static struct sheaf_task task[TASKS + 1];
        struct sheaf_pool *pool;
        size_t taken = 0;

        cr_assert_eq(sheaf_pool_new(&pool), 0);
        for (; taken < SHEAF_POOL_THREADS_MAX; taken++) {
                task[taken].run = wait_task;
                cr_assert_eq(sheaf_pool_submit(pool, &task[taken]), 0);
        }
        for (int i = 0; i < 5000 && inside < SHEAF_POOL_THREADS_MAX; i++)
                usleep(1000);
        cr_assert_eq(inside, SHEAF_POOL_THREADS_MAX);
        for (; taken < TASKS; taken++) {
                task[taken].run = wait_task;
                cr_assert_eq(sheaf_pool_submit(pool, &task[taken]), 0);
        }
        task[TASKS].run = wait_task;
        cr_assert_eq(sheaf_pool_submit(pool, &task[TASKS]), -EAGAIN);
        atomic_store(&open_gate, true);
        sheaf_pool_free(pool);
        cr_assert_eq(ran, TASKS);
        cr_assert_leq(most, SHEAF_POOL_THREADS_MAX);
}
