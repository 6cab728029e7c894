/* SPDX-License-Identifier: Apache-2.0 */
/* io_uring under the engine (disk.c); nothing else includes this.
 *
 * Threads: loop thread only. */
#ifndef SHEAF_DAEMON_STORE_DISK_RING_H
#define SHEAF_DAEMON_STORE_DISK_RING_H

#include "daemon/store/disk.h"

struct sheaf_ring;

struct sheaf_ring_ops {
        /* io->rc is set. */
        void (*done)(void *arg, struct sheaf_disk_io *io);
        /* The ring will take no more; @why is static. */
        void (*failed)(void *arg, const char *why);
        /* A request that the dead ring did not do. */
        void (*returned)(void *arg, struct sheaf_disk_io *io);
};

/* 0; -errno with @ret_why, static text that names cause and remedy. */
SHEAF_MUST_CHECK int sheaf_ring_new(uv_loop_t *loop,
        const struct iovec *regions, unsigned int region_count,
        const struct sheaf_ring_ops *ops, void *arg,
        struct sheaf_ring **ret_ring, const char **ret_why);
/* Nothing may be in flight. */
void sheaf_ring_free(struct sheaf_ring *ring);
/* True when taken. */
bool sheaf_ring_submit(struct sheaf_ring *ring, struct sheaf_disk_io *io);
/* Waits for one completion and reports it; false when none is in flight. */
bool sheaf_ring_wait(struct sheaf_ring *ring);
/* From now on no submission is tried on the spot. */
void sheaf_ring_detach(struct sheaf_ring *ring);
bool sheaf_ring_alive(const struct sheaf_ring *ring);

/* Applies a result to a request; true when it is finished (disk.c). */
bool sheaf_disk_step(struct sheaf_disk_io *io, int res);

#endif
