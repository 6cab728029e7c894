/* SPDX-License-Identifier: Apache-2.0 */
/* Memory files that are closed on the pool, all that wait at a time.
 *
 * Threads: loop thread; the files in @closing are the pool's. */
#include "daemon/closer.h"

struct pile {
        int *fds; /* owned */
        size_t count, room;
};

struct sheaf_closer {
        uv_loop_t *loop;
        uv_work_t work;
        struct pile waiting, closing;
        bool busy, ending;
};

static void close_all(struct pile *pile)
{
        for (size_t i = 0; i < pile->count; i++)
                close(pile->fds[i]);
        pile->count = 0;
}

static bool add(struct pile *pile, int fd)
{
        if (pile->count == pile->room) {
                size_t room = SHEAF_MAX(pile->room * 2, (size_t)16);
                int *more = realloc(pile->fds, room * sizeof(*more));

                if (!more)
                        return false;
                pile->fds = more;
                pile->room = room;
        }
        pile->fds[pile->count++] = fd;
        return true;
}

static void close_work(uv_work_t *work)
{
        struct sheaf_closer *closer = work->data;

        close_all(&closer->closing);
}

static void end(struct sheaf_closer *closer)
{
        free(closer->waiting.fds);
        free(closer->closing.fds);
        free(closer);
}

static void begin(struct sheaf_closer *closer);

static void close_done(uv_work_t *work, int status)
{
        struct sheaf_closer *closer = work->data;

        (void)status;
        closer->busy = false;
        if (closer->ending)
                end(closer);
        else
                begin(closer);
}

static void begin(struct sheaf_closer *closer)
{
        struct pile empty = closer->closing;

        if (closer->busy || !closer->waiting.count)
                return;
        closer->closing = closer->waiting;
        closer->waiting = empty;
        closer->work.data = closer;
        closer->busy = !uv_queue_work(
                closer->loop, &closer->work, close_work, close_done);
        if (!closer->busy)
                close_all(&closer->closing);
}

int sheaf_closer_new(uv_loop_t *loop, struct sheaf_closer **ret_closer)
{
        struct sheaf_closer *closer = sheaf_new(struct sheaf_closer, 1);

        if (!closer)
                return -ENOMEM;
        closer->loop = loop;
        *ret_closer = closer;
        return 0;
}

void sheaf_closer_free(struct sheaf_closer *closer)
{
        if (!closer)
                return;
        close_all(&closer->waiting);
        closer->ending = true;
        if (!closer->busy)
                end(closer);
}

void sheaf_closer_take(struct sheaf_closer *closer, int fd)
{
        if (add(&closer->waiting, fd))
                begin(closer);
        else
                close(fd);
}

size_t sheaf_closer_waiting(const struct sheaf_closer *closer)
{
        return closer->waiting.count;
}
