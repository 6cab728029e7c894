/* SPDX-License-Identifier: Apache-2.0 */
/* io_uring, driven by libuv: completions ring an eventfd, submissions of one
 * turn of the loop go to the kernel together, right before it sleeps.
 *
 *  1 at most DEPTH requests are in the ring; more wait in the backlog
 *  2 short transfers are continued, so a request is done once
 *  3 after a failed submission the ring is dead: completions are still
 *    collected, whatever was not submitted goes back to the engine
 *
 * Loop thread only. */
#include "daemon/store/disk_ring.h"

#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#define DEPTH 128

struct sheaf_ring {
        struct io_uring uring;
        uv_poll_t poll;
        uv_prepare_t prepare;
        int event_fd;
        int open_handles;
        const struct sheaf_ring_ops *ops;
        void *arg;
        struct sheaf_disk_io *backlog, **backlog_tail;
        struct sheaf_disk_io *queued; /* in SQEs, not yet submitted */
        size_t in_ring, unsubmitted;
        bool fixed, dead, detached;
};

static const char *cause(int rc)
{
        switch (rc) {
        case -EPERM:
                return "EPERM: io_uring is forbidden here (seccomp, or "
                       "kernel.io_uring_disabled); allow it for more "
                       "throughput";
        case -ENOSYS:
                return "ENOSYS: this kernel or sandbox has no io_uring";
        case -ENOMEM:
                return "ENOMEM: RLIMIT_MEMLOCK is too low for io_uring; raise "
                       "it for more throughput";
        case -EACCES:
                return "EACCES: a security module forbids io_uring";
        default:
                return "io_uring_setup failed";
        }
}

static void fill_sqe(struct sheaf_ring *ring, struct io_uring_sqe *sqe,
        struct sheaf_disk_io *io)
{
        char *at = (char *)io->buf + io->moved_bytes;
        unsigned int left = (unsigned int)(io->len_bytes - io->moved_bytes);
        uint64_t offset = io->offset_bytes + io->moved_bytes;
        bool fixed = ring->fixed && io->fixed >= 0;

        if (io->op == SHEAF_DISK_SYNC)
                io_uring_prep_fsync(sqe, io->fd, IORING_FSYNC_DATASYNC);
        else if (io->op == SHEAF_DISK_READ && fixed)
                io_uring_prep_read_fixed(
                        sqe, io->fd, at, left, offset, io->fixed);
        else if (io->op == SHEAF_DISK_READ)
                io_uring_prep_read(sqe, io->fd, at, left, offset);
        else if (fixed)
                io_uring_prep_write_fixed(
                        sqe, io->fd, at, left, offset, io->fixed);
        else
                io_uring_prep_write(sqe, io->fd, at, left, offset);
        if (ring->detached)
                io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
        io_uring_sqe_set_data(sqe, io);
}

static void fill_ring(struct sheaf_ring *ring)
{
        while (ring->backlog && ring->in_ring < DEPTH) {
                struct sheaf_disk_io *io = ring->backlog;
                struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);

                if (!sqe)
                        break;
                ring->backlog = io->next;
                if (!ring->backlog)
                        ring->backlog_tail = &ring->backlog;
                fill_sqe(ring, sqe, io);
                io->next = ring->queued;
                ring->queued = io;
                ring->in_ring++;
                ring->unsubmitted++;
        }
}

static void return_list(struct sheaf_ring *ring, struct sheaf_disk_io *io)
{
        while (io) {
                struct sheaf_disk_io *next = io->next;

                ring->ops->returned(ring->arg, io);
                io = next;
        }
}

/* The newest @left of the queued requests never reached the kernel. */
static void die(struct sheaf_ring *ring, int rc)
{
        struct sheaf_disk_io *io = ring->queued, *lost = NULL;
        size_t left = ring->unsubmitted;

        ring->dead = true;
        ring->queued = NULL;
        while (io && left--) {
                struct sheaf_disk_io *next = io->next;

                io->next = lost;
                lost = io;
                io = next;
                ring->in_ring--;
        }
        ring->unsubmitted = 0;
        ring->ops->failed(ring->arg, cause(rc));
        return_list(ring, lost);
        io = ring->backlog;
        ring->backlog = NULL;
        ring->backlog_tail = &ring->backlog;
        return_list(ring, io);
}

static void flush(struct sheaf_ring *ring)
{
        while (!ring->dead && (ring->backlog || ring->unsubmitted)) {
                int n;

                fill_ring(ring);
                if (!ring->unsubmitted)
                        return;
                n = io_uring_submit(&ring->uring);
                if (n == -EINTR)
                        continue;
                if (n == -EAGAIN || n == -EBUSY) {
                        /* Kernel memory is short: what is in flight frees
                         * some; with nothing in flight, give the ring up. */
                        if (ring->in_ring > ring->unsubmitted)
                                return;
                }
                if (n < 0) {
                        die(ring, n);
                        return;
                }
                ring->unsubmitted -= SHEAF_MIN((size_t)n, ring->unsubmitted);
                if (!ring->unsubmitted)
                        ring->queued = NULL;
                if (ring->in_ring >= DEPTH)
                        return;
        }
}

static void enqueue(struct sheaf_ring *ring, struct sheaf_disk_io *io)
{
        io->next = NULL;
        *ring->backlog_tail = io;
        ring->backlog_tail = &io->next;
}

static void on_prepare(uv_prepare_t *prepare)
{
        struct sheaf_ring *ring = prepare->data;

        flush(ring);
        if (ring->dead || (!ring->backlog && !ring->unsubmitted))
                uv_prepare_stop(prepare);
}

static void handle(struct sheaf_ring *ring, struct sheaf_disk_io *io, int res)
{
        ring->in_ring--;
        if (res == -EINVAL && io->op != SHEAF_DISK_SYNC && ring->fixed &&
                io->fixed >= 0) {
                io->fixed = -1; /* perhaps this file refuses fixed buffers */
                enqueue(ring, io);
                return;
        }
        if (sheaf_disk_step(io, res)) {
                ring->ops->done(ring->arg, io);
                return;
        }
        if (ring->dead)
                ring->ops->returned(ring->arg, io);
        else
                enqueue(ring, io);
}

static bool reap(struct sheaf_ring *ring)
{
        struct io_uring_cqe *cqe;
        bool any = false;

        while (io_uring_peek_cqe(&ring->uring, &cqe) == 0) {
                struct sheaf_disk_io *io = io_uring_cqe_get_data(cqe);
                int res = cqe->res;

                io_uring_cqe_seen(&ring->uring, cqe);
                handle(ring, io, res);
                any = true;
        }
        return any;
}

static void on_event(uv_poll_t *poll, int status, int events)
{
        struct sheaf_ring *ring = poll->data;
        uint64_t count;

        (void)status;
        (void)events;
        if (read(ring->event_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
                return;
        reap(ring);
        flush(ring);
}

bool sheaf_ring_submit(struct sheaf_ring *ring, struct sheaf_disk_io *io)
{
        if (ring->dead)
                return false;
        enqueue(ring, io);
        uv_prepare_start(&ring->prepare, on_prepare);
        return true;
}

bool sheaf_ring_wait(struct sheaf_ring *ring)
{
        struct io_uring_cqe *cqe;
        int rc;

        flush(ring);
        if (reap(ring))
                return true;
        if (!ring->in_ring)
                return false;
        do
                rc = io_uring_wait_cqe(&ring->uring, &cqe);
        while (rc == -EINTR);
        return reap(ring);
}

void sheaf_ring_detach(struct sheaf_ring *ring)
{
        ring->detached = true;
}

bool sheaf_ring_alive(const struct sheaf_ring *ring)
{
        return !ring->dead;
}

static void on_closed(uv_handle_t *handle)
{
        struct sheaf_ring *ring = handle->data;

        if (--ring->open_handles)
                return;
        close(ring->event_fd);
        free(ring);
}

/* A ring that can be set up may still refuse to be entered (seccomp). */
static int probe(struct sheaf_ring *ring)
{
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);
        struct io_uring_cqe *cqe;
        int rc;

        io_uring_prep_nop(sqe);
        rc = io_uring_submit_and_wait(&ring->uring, 1);
        if (rc < 0)
                return rc;
        rc = io_uring_wait_cqe(&ring->uring, &cqe);
        if (rc)
                return rc;
        io_uring_cqe_seen(&ring->uring, cqe);
        return 0;
}

int sheaf_ring_new(uv_loop_t *loop, const struct iovec *regions,
        unsigned int region_count, const struct sheaf_ring_ops *ops, void *arg,
        struct sheaf_ring **ret_ring, const char **ret_why)
{
        sheaf_autofree struct sheaf_ring *ring =
                sheaf_new(struct sheaf_ring, 1);
        int rc;

        if (!ring)
                return -ENOMEM;
        ring->ops = ops;
        ring->arg = arg;
        ring->backlog_tail = &ring->backlog;
        ring->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (ring->event_fd < 0)
                return -errno;
        rc = io_uring_queue_init(DEPTH, &ring->uring, IORING_SETUP_CLAMP);
        if (rc) {
                *ret_why = cause(rc);
                close(ring->event_fd);
                return rc;
        }
        rc = probe(ring);
        if (!rc)
                rc = io_uring_register_eventfd(&ring->uring, ring->event_fd);
        if (rc) {
                *ret_why = cause(rc);
                io_uring_queue_exit(&ring->uring);
                close(ring->event_fd);
                return rc;
        }
        /* Registered buffers are a gain of a few per cent, no need. */
        ring->fixed = region_count && io_uring_register_buffers(&ring->uring,
                                              regions, region_count) == 0;
        uv_poll_init(loop, &ring->poll, ring->event_fd);
        uv_prepare_init(loop, &ring->prepare);
        ring->open_handles = 2;
        ring->poll.data = ring->prepare.data = ring;
        uv_poll_start(&ring->poll, UV_READABLE, on_event);
        uv_unref((uv_handle_t *)&ring->poll);
        *ret_ring = sheaf_steal(&ring);
        *ret_why = "";
        return 0;
}

void sheaf_ring_free(struct sheaf_ring *ring)
{
        if (!ring)
                return;
        uv_poll_stop(&ring->poll);
        uv_prepare_stop(&ring->prepare);
        io_uring_queue_exit(&ring->uring);
        uv_close((uv_handle_t *)&ring->poll, on_closed);
        uv_close((uv_handle_t *)&ring->prepare, on_closed);
}
