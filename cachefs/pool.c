/* SPDX-License-Identifier: Apache-2.0 */
/* Worker threads, started on demand.
 *
 *  1 a queued task is run exactly once, also when the pool is being freed
 *  2 while a task is queued, some thread is awake or about to be
 *
 * @lock guards all fields; tasks run without it. Signals stay with the
 * threads of the caller: workers block them all. */
#include "cachefs/pool.h"

#include <pthread.h>
#include <signal.h>

#define STACK_BYTES (256 << 10)

struct sheaf_pool {
        pthread_mutex_t lock;
        pthread_cond_t work;
        struct sheaf_task *head, **tail;
        size_t queued;
        unsigned int threads, idle;
        bool stop;
        pthread_t thread[SHEAF_POOL_THREADS_MAX];
};

static void *work(void *arg)
{
        struct sheaf_pool *pool = arg;

        pthread_mutex_lock(&pool->lock);
        for (;;) {
                while (!pool->head && !pool->stop) {
                        pool->idle++;
                        pthread_cond_wait(&pool->work, &pool->lock);
                        pool->idle--;
                }
                struct sheaf_task *task = pool->head;

                if (!task)
                        break;
                pool->head = task->next;
                if (!pool->head)
                        pool->tail = &pool->head;
                pool->queued--;
                pthread_mutex_unlock(&pool->lock);
                task->run(task);
                pthread_mutex_lock(&pool->lock);
        }
        pthread_mutex_unlock(&pool->lock);
        return NULL;
}

/* Starts one more thread; @lock is held. */
static int grow(struct sheaf_pool *pool)
{
        pthread_attr_t attr;
        sigset_t all, old;
        int rc;

        rc = pthread_attr_init(&attr);
        if (rc)
                return -rc;
        pthread_attr_setstacksize(&attr, STACK_BYTES);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        rc = pthread_create(&pool->thread[pool->threads], &attr, work, pool);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        pthread_attr_destroy(&attr);
        if (!rc)
                pool->threads++;
        return -rc;
}

int sheaf_pool_new(struct sheaf_pool **ret_pool)
{
        struct sheaf_pool *pool = sheaf_new(struct sheaf_pool, 1);

        if (!pool)
                return -ENOMEM;
        pthread_mutex_init(&pool->lock, NULL);
        pthread_cond_init(&pool->work, NULL);
        pool->tail = &pool->head;
        *ret_pool = pool;
        return 0;
}

int sheaf_pool_submit(struct sheaf_pool *pool, struct sheaf_task *task)
{
        int rc = 0;

        pthread_mutex_lock(&pool->lock);
        if (pool->queued >= SHEAF_POOL_TASKS_MAX) {
                rc = -EAGAIN;
                goto out;
        }
        if (pool->queued >= pool->idle &&
                pool->threads < SHEAF_POOL_THREADS_MAX && grow(pool) < 0 &&
                !pool->threads) {
                rc = -EAGAIN;
                goto out;
        }
        task->next = NULL;
        *pool->tail = task;
        pool->tail = &task->next;
        pool->queued++;
        pthread_cond_signal(&pool->work);
out:
        pthread_mutex_unlock(&pool->lock);
        return rc;
}

void sheaf_pool_free(struct sheaf_pool *pool)
{
        if (!pool)
                return;
        pthread_mutex_lock(&pool->lock);
        pool->stop = true;
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->lock);
        for (unsigned int i = 0; i < pool->threads; i++)
                pthread_join(pool->thread[i], NULL);
        pthread_cond_destroy(&pool->work);
        pthread_mutex_destroy(&pool->lock);
        free(pool);
}
