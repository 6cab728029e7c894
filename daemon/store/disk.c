/* SPDX-License-Identifier: Apache-2.0 */
/* The I/O engine.
 *
 *  1 a request is in exactly one place: backlog, ring, pool, or finished
 *  2 done() is called on the loop thread, after submit returned
 *  3 pool threads touch only the request and the finished list, under lock
 *  4 a ring failure moves requests to the pool; none is lost or done twice
 *
 * Finished pool requests are handed over in `finished` and announced by the
 * async handle, so that drain() needs no turn of the loop. */
#include "daemon/store/disk.h"

#include "daemon/log.h"
#include "daemon/store/disk_ring.h"

struct job {
        uv_work_t work;
        struct sheaf_disk_io *io;
};

struct sheaf_disk {
        uv_loop_t *loop;
        uv_async_t async;
        pthread_mutex_t lock;
        pthread_cond_t more;
        struct sheaf_disk_io *finished, **finished_tail; /* by lock */
        size_t in_flight;
        struct sheaf_ring *ring; /* NULL: pool only */
        const char *why;
        struct {
                int rc;
                unsigned int count;
        } fault[SHEAF_DISK_WORK + 1];
};

static int move_once(struct sheaf_disk_io *io)
{
        char *at = (char *)io->buf + io->moved_bytes;
        size_t left = io->len_bytes - io->moved_bytes;
        off_t offset = (off_t)(io->offset_bytes + io->moved_bytes);
        ssize_t n = io->op == SHEAF_DISK_READ
                            ? pread(io->fd, at, left, offset)
                            : pwrite(io->fd, at, left, offset);

        return n < 0 ? -errno : (int)n;
}

bool sheaf_disk_step(struct sheaf_disk_io *io, int res)
{
        if ((res == -EINTR || res == -EAGAIN) &&
                ++io->stalls < SHEAF_CALL_TRIES)
                return false;
        if (res < 0) {
                io->rc = res;
                return true;
        }
        if (io->op != SHEAF_DISK_READ && io->op != SHEAF_DISK_WRITE) {
                io->rc = 0;
                return true;
        }
        io->moved_bytes += (size_t)res;
        io->stalls = 0;
        io->rc = 0;
        if (io->moved_bytes >= io->len_bytes)
                return true;
        if (res > 0 && io->moved_bytes % 512 == 0)
                return false;
        /* End of file, or the unaligned tail right before it. */
        if (io->op == SHEAF_DISK_WRITE)
                io->rc = -EIO;
        else if (io->moved_bytes < io->min_bytes)
                io->rc = -ENODATA;
        return true;
}

static void pool_run(uv_work_t *work)
{
        struct job *job = work->data;
        struct sheaf_disk_io *io = job->io;
        struct sheaf_disk *disk = io->disk;

        if (io->op == SHEAF_DISK_WORK) {
                io->rc = io->work(io);
        } else if (io->op == SHEAF_DISK_SYNC) {
                io->rc = sheaf_again(fdatasync(io->fd)) ? -errno : 0;
        } else {
                while (!sheaf_disk_step(io, move_once(io)))
                        ;
        }
        pthread_mutex_lock(&disk->lock);
        io->next = NULL;
        *disk->finished_tail = io;
        disk->finished_tail = &io->next;
        /* Under the lock: drain() may free the disk right after. */
        uv_async_send(&disk->async);
        pthread_cond_signal(&disk->more);
        pthread_mutex_unlock(&disk->lock);
}

static void pool_after(uv_work_t *work, int status)
{
        (void)status;
        free(work->data);
}

static void finish(struct sheaf_disk *disk, struct sheaf_disk_io *io)
{
        if (!--disk->in_flight)
                uv_unref((uv_handle_t *)&disk->async);
        io->done(io, io->rc);
}

static void finish_all(struct sheaf_disk *disk)
{
        for (;;) {
                struct sheaf_disk_io *io;

                pthread_mutex_lock(&disk->lock);
                io = disk->finished;
                disk->finished = NULL;
                disk->finished_tail = &disk->finished;
                pthread_mutex_unlock(&disk->lock);
                if (!io)
                        return;
                while (io) {
                        struct sheaf_disk_io *next = io->next;

                        finish(disk, io);
                        io = next;
                }
        }
}

/* Puts a request on the finished list from the loop thread. */
static void fail_later(
        struct sheaf_disk *disk, struct sheaf_disk_io *io, int rc)
{
        io->rc = rc;
        pthread_mutex_lock(&disk->lock);
        io->next = NULL;
        *disk->finished_tail = io;
        disk->finished_tail = &io->next;
        pthread_mutex_unlock(&disk->lock);
        uv_async_send(&disk->async);
}

static void pool_submit(struct sheaf_disk *disk, struct sheaf_disk_io *io)
{
        struct job *job = sheaf_new(struct job, 1);

        if (!job) {
                fail_later(disk, io, -ENOMEM);
                return;
        }
        job->io = io;
        job->work.data = job;
        if (uv_queue_work(disk->loop, &job->work, pool_run, pool_after)) {
                free(job);
                fail_later(disk, io, -EIO);
        }
}

/* The ring's word on a request that it had taken. */
static void ring_done(void *arg, struct sheaf_disk_io *io)
{
        finish(arg, io);
}

static void ring_failed(void *arg, const char *why)
{
        struct sheaf_disk *disk = arg;

        disk->why = why;
        sheaf_log(SHEAF_LOG_WARN, "store_io_fallback",
                "engine=pread why=\"%s\"", why);
}

static void ring_returned(void *arg, struct sheaf_disk_io *io)
{
        pool_submit(arg, io);
}

static const struct sheaf_ring_ops ring_ops = {
        .done = ring_done,
        .failed = ring_failed,
        .returned = ring_returned,
};

void sheaf_disk_submit(struct sheaf_disk *disk, struct sheaf_disk_io *io)
{
        io->disk = disk;
        io->moved_bytes = 0;
        io->stalls = 0;
        io->rc = 0;
        io->next = NULL;
        /* Work in flight keeps the loop alive. */
        if (!disk->in_flight++)
                uv_ref((uv_handle_t *)&disk->async);
        if (disk->fault[io->op].count) {
                disk->fault[io->op].count--;
                fail_later(disk, io, disk->fault[io->op].rc);
                return;
        }
        if (io->op != SHEAF_DISK_WORK && disk->ring &&
                sheaf_ring_submit(disk->ring, io))
                return;
        pool_submit(disk, io);
}

static void on_async(uv_async_t *async)
{
        finish_all(async->data);
}

void sheaf_disk_drain(struct sheaf_disk *disk)
{
        while (disk->in_flight) {
                finish_all(disk);
                if (!disk->in_flight)
                        return;
                if (disk->ring && sheaf_ring_wait(disk->ring))
                        continue;
                pthread_mutex_lock(&disk->lock);
                while (!disk->finished)
                        pthread_cond_wait(&disk->more, &disk->lock);
                pthread_mutex_unlock(&disk->lock);
        }
}

int sheaf_disk_new(uv_loop_t *loop, bool want_uring,
        const struct iovec *regions, unsigned int region_count,
        struct sheaf_disk **ret_disk)
{
        struct sheaf_disk *disk = sheaf_new(struct sheaf_disk, 1);
        int rc;

        if (!disk)
                return -ENOMEM;
        disk->loop = loop;
        disk->finished_tail = &disk->finished;
        pthread_mutex_init(&disk->lock, NULL);
        pthread_cond_init(&disk->more, NULL);
        rc = uv_async_init(loop, &disk->async, on_async);
        if (rc) {
                pthread_cond_destroy(&disk->more);
                pthread_mutex_destroy(&disk->lock);
                free(disk);
                return rc;
        }
        disk->async.data = disk;
        uv_unref((uv_handle_t *)&disk->async);
        disk->why = "switched off by configuration";
        if (want_uring) {
                rc = sheaf_ring_new(loop, regions, region_count, &ring_ops,
                        disk, &disk->ring, &disk->why);
                if (rc)
                        sheaf_log_rc(rc, SHEAF_LOG_WARN, "store_io_fallback",
                                "engine=pread why=\"%s\"", disk->why);
        }
        *ret_disk = disk;
        return 0;
}

static void on_closed(uv_handle_t *handle)
{
        struct sheaf_disk *disk = handle->data;

        pthread_cond_destroy(&disk->more);
        pthread_mutex_destroy(&disk->lock);
        free(disk);
}

void sheaf_disk_free(struct sheaf_disk *disk)
{
        if (!disk)
                return;
        sheaf_disk_drain(disk);
        sheaf_ring_free(disk->ring);
        disk->ring = NULL;
        uv_close((uv_handle_t *)&disk->async, on_closed);
}

bool sheaf_disk_uring(const struct sheaf_disk *disk, const char **ret_why)
{
        bool ring = disk->ring && sheaf_ring_alive(disk->ring);

        *ret_why = ring ? "" : disk->why;
        return ring;
}

void sheaf_disk_detach(struct sheaf_disk *disk)
{
        if (disk->ring)
                sheaf_ring_detach(disk->ring);
}

void sheaf_disk_fault(struct sheaf_disk *disk, enum sheaf_disk_op op, int rc,
        unsigned int count)
{
        disk->fault[op].rc = rc;
        disk->fault[op].count = count;
}
