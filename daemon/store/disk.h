/* SPDX-License-Identifier: Apache-2.0 */
/* The I/O engine: every byte of a container passes here, so faults are
 * injected here too. io_uring driven from the loop through an eventfd where
 * the system allows it; else pread and pwrite on libuv's pool. A ring that
 * fails in the middle of work is given up, and its requests go to the pool.
 *
 * Threads: all functions on the loop thread; @work runs on a pool thread. */
#ifndef SHEAF_DAEMON_STORE_DISK_H
#define SHEAF_DAEMON_STORE_DISK_H

#include "proto/base.h"

#include <sys/uio.h>
#include <uv.h>

struct sheaf_disk;

enum sheaf_disk_op {
        SHEAF_DISK_READ,
        SHEAF_DISK_WRITE,
        SHEAF_DISK_SYNC, /* fdatasync */
        SHEAF_DISK_WORK, /* @work on the pool: calls that block */
};

/* A request, in the caller's memory until @done. */
struct sheaf_disk_io {
        enum sheaf_disk_op op;
        int fd;
        void *buf;
        size_t len_bytes;
        size_t min_bytes; /* READ: at the file's end so many are enough */
        uint64_t offset_bytes;
        int fixed; /* index of the registered region of @buf, or -1 */
        int (*work)(struct sheaf_disk_io *io);
        /* rc: 0 everything moved; -ENODATA end of file; -errno. Never called
         * before the submission returns. */
        void (*done)(struct sheaf_disk_io *io, int rc);

        /* the engine's */
        struct sheaf_disk *disk;
        struct sheaf_disk_io *next;
        size_t moved_bytes;
        unsigned int stalls; /* interrupted tries since something moved */
        int rc;
};

/* @regions are registered as fixed buffers when a ring is used; -errno only
 * for lack of memory or descriptors: no ring is not an error. */
SHEAF_MUST_CHECK int sheaf_disk_new(uv_loop_t *loop, bool want_uring,
        const struct iovec *regions, unsigned int region_count,
        struct sheaf_disk **ret_disk);
/* Drains, then frees; handles are closed as the loop goes on. */
void sheaf_disk_free(struct sheaf_disk *disk);

void sheaf_disk_submit(struct sheaf_disk *disk, struct sheaf_disk_io *io);
/* Waits until nothing is in flight, calling @done of each, whatever these
 * submit included. */
void sheaf_disk_drain(struct sheaf_disk *disk);

/* The file system may block who submits (FUSE does): kernel threads do it. */
void sheaf_disk_detach(struct sheaf_disk *disk);

/* Whether a ring is in use, and why not: static text, "" when it is. */
bool sheaf_disk_uring(const struct sheaf_disk *disk, const char **ret_why);

/* Tests: the next @count requests of @op fail with @rc (negative). */
void sheaf_disk_fault(struct sheaf_disk *disk, enum sheaf_disk_op op, int rc,
        unsigned int count);

#endif
