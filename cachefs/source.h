/* SPDX-License-Identifier: Apache-2.0 */
/* What a mount reads from: one open version of a dataset. The mount knows no
 * more of the cache than this table; source_client.c fills it from libsheaf,
 * tests from a directory.
 *
 * Every function may be called from any thread at the same time. */
#ifndef SHEAF_CACHEFS_SOURCE_H
#define SHEAF_CACHEFS_SOURCE_H

#include "client/sheaf.h"
#include "proto/digest.h"
#include "proto/layout_shm.h"
#include "proto/listing.h"

struct sheaf_source_ops {
        /* Pins [@offset_bytes, +@len_bytes) of file @entry, a range inside
         * the file. With @wait false only what is in memory: -EAGAIN else,
         * at once. Given back with release. -EIO, -ESTALE, -ETIMEDOUT,
         * -ENOMEM. */
        int (*read)(void *arg, uint32_t entry, uint64_t offset_bytes,
                uint64_t len_bytes, bool wait, struct sheaf_view *ret_view);
        void (*release)(void *arg, struct sheaf_view *view);

        /* A complete, checked plain file with the bytes of @entry, open for
         * reading; the descriptor is the caller's. The lease keeps the file
         * until close_plain. -EAGAIN or another errno: there is none. */
        int (*open_plain)(
                void *arg, uint32_t entry, int *ret_fd, uint64_t *ret_lease);
        void (*close_plain)(void *arg, uint64_t lease);

        /* Bytes of @entry that the node holds in memory or on disk. */
        int (*cached)(void *arg, uint32_t entry, uint64_t *ret_bytes);
        /* -ENODATA while not all of the file's chunks have been seen. */
        int (*digest)(
                void *arg, uint32_t entry, struct sheaf_digest *ret_digest);

        /* sheaf_job_open and the like; job_bind waits up to the deadline.
         * NULL where a source has no jobs. */
        int (*job_open)(void *arg, const struct sheaf_job_options *options,
                struct sheaf_job **ret_job);
        int (*job_bind)(struct sheaf_job *job, uint64_t epoch,
                const uint32_t *slots, size_t n, uint64_t *ret_ordinals);
        void (*job_close)(struct sheaf_job *job);

        /* Why the calling thread's last call failed, for people; "" when
         * that is not known. */
        const char *(*why)(void *arg);

        /* Adds @n to a counter of the meter. */
        void (*count)(void *arg, enum sheaf_meter_op op, uint64_t n);
};

/* Plain value; borrowed by the mount until it is freed. */
struct sheaf_source {
        const struct sheaf_source_ops *ops;
        void *arg;
        const struct sheaf_listing *listing;
        const struct sheaf_dataset_info *info;
};

static inline void sheaf_source_count(
        const struct sheaf_source *source, enum sheaf_meter_op op, uint64_t n)
{
        source->ops->count(source->arg, op, n);
}

#endif
