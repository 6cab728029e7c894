/* SPDX-License-Identifier: Apache-2.0 */
/* Memory files that are closed on the pool, never where they are handed over.
 */
#include "daemon/closer.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <semaphore.h>

#define FILES 100

TestSuite(closer, .timeout = 60);

static uv_loop_t loop;
static sem_t gate;

static void hold(uv_work_t *work)
{
        (void)work;
        sem_wait(&gate);
}

static void begin(struct sheaf_closer **ret_closer)
{
        setenv("UV_THREADPOOL_SIZE", "1", 1);
        cr_assert_eq(uv_loop_init(&loop), 0);
        cr_assert_eq(sem_init(&gate, 0, 0), 0);
        cr_assert_eq(sheaf_closer_new(&loop, ret_closer), 0);
}

static int open_files(const int *fds)
{
        int count = 0;

        for (int i = 0; i < FILES; i++)
                count += fcntl(fds[i], F_GETFD) >= 0;
        return count;
}

static void take_all(struct sheaf_closer *closer, int *fds)
{
        for (int i = 0; i < FILES; i++)
                fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        for (int i = 0; i < FILES; i++)
                sheaf_closer_take(closer, fds[i]);
}

Test(closer, files_are_closed_on_the_pool)
{
        struct sheaf_closer *closer;
        uv_work_t work;
        int fds[FILES];

        begin(&closer);
        cr_assert_eq(uv_queue_work(&loop, &work, hold, NULL), 0);
        for (int round = 0; round < 3; round++) {
                take_all(closer, fds);
                cr_assert_eq(open_files(fds), FILES);
                cr_assert_eq(sheaf_closer_waiting(closer), FILES - 1);
                sem_post(&gate);
                uv_run(&loop, UV_RUN_DEFAULT);
                cr_assert_eq(open_files(fds), 0);
                cr_assert_eq(sheaf_closer_waiting(closer), 0);
                cr_assert_eq(uv_queue_work(&loop, &work, hold, NULL), 0);
        }
        sem_post(&gate);
        uv_run(&loop, UV_RUN_DEFAULT);
        sheaf_closer_free(closer);
        cr_assert_eq(uv_loop_close(&loop), 0);
}

/* It ends while files wait, and others are being closed. */
Test(closer, an_end_leaves_none_open)
{
        struct sheaf_closer *closer;
        uv_work_t work;
        int fds[FILES];

        begin(&closer);
        cr_assert_eq(uv_queue_work(&loop, &work, hold, NULL), 0);
        take_all(closer, fds);
        sheaf_closer_free(closer);
        cr_assert_eq(open_files(fds), 1, "that is the pool's");
        sem_post(&gate);
        uv_run(&loop, UV_RUN_DEFAULT);
        cr_assert_eq(open_files(fds), 0);
        cr_assert_eq(uv_loop_close(&loop), 0);
}
