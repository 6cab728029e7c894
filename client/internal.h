/* SPDX-License-Identifier: Apache-2.0 */
/* What cachefs and the tests use of libsheaf beside the public header: access
 * by entry index (files, directories and links alike), reads that do not
 * wait, plain backing files. Not installed; in the static library only.
 *
 * Every function may be called from any thread, waits at most the session's
 * deadline, and survives a restart of the daemon as the public ones do. */
#ifndef SHEAF_CLIENT_INTERNAL_H
#define SHEAF_CLIENT_INTERNAL_H

#include "client/sheaf.h"
#include "proto/digest.h"
#include "proto/layout_shm.h"
#include "proto/listing.h"

/* The listing of the open version; borrowed until the dataset is closed. It
 * stays at its address over reconnects. */
const struct sheaf_listing *sheaf_dataset_listing(
        const struct sheaf_dataset *dataset);

/* The session that the dataset belongs to; borrowed. */
struct sheaf_session *sheaf_dataset_session(
        const struct sheaf_dataset *dataset);

/* Bound of each call in milliseconds: the option, else the daemon's, else
 * 30,000 before the first connection. */
int64_t sheaf_session_deadline_ms(const struct sheaf_session *session);

enum sheaf_view_flag {
        /* Fetch what is missing and wait for it; without: -EAGAIN at once
         * when something is not in memory. */
        SHEAF_VIEW_WAIT = 1 << 0,
        /* Held for the moment of a copy only: not charged to the pin grant,
         * never copied for lack of it. */
        SHEAF_VIEW_TRANSIENT = 1 << 1,
};

/* sheaf_view() of the regular file with entry index @entry. @flags: of enum
 * sheaf_view_flag. -EISDIR when it is not a regular file. */
SHEAF_MUST_CHECK int sheaf_dataset_view_entry(struct sheaf_dataset *dataset,
        uint32_t entry, uint64_t offset_bytes, uint64_t len_bytes,
        unsigned int flags, struct sheaf_view *ret_view);

/* sheaf_read() by entry index. */
SHEAF_MUST_CHECK int64_t sheaf_dataset_read_entry(struct sheaf_dataset *dataset,
        uint32_t entry, void *buf, size_t len_bytes, uint64_t offset_bytes);

/* A complete, checked plain file of @entry for kernel passthrough. The
 * descriptor is the caller's; the lease is given back by close_plain. After a
 * restart of the daemon a lease is void, and giving it back does nothing.
 * -EOPNOTSUPP, -EAGAIN when there is none. */
SHEAF_MUST_CHECK int sheaf_dataset_open_plain(struct sheaf_dataset *dataset,
        uint32_t entry, int *ret_fd, uint64_t *ret_lease);
SHEAF_MUST_CHECK int sheaf_dataset_close_plain(
        struct sheaf_dataset *dataset, uint64_t lease);

/* Adds to a counter of the dataset's meter. No message, no lock. */
void sheaf_dataset_count_op(
        struct sheaf_dataset *dataset, enum sheaf_meter_op op, uint64_t n);

/* Bytes of the file that are in memory or on disk now. */
SHEAF_MUST_CHECK int sheaf_dataset_cached(struct sheaf_dataset *dataset,
        uint32_t entry, uint64_t *ret_cached_bytes);

/* SHA-256 of the file: that of its chunk, or of its chunks' digests in turn
 * when it has several. -ENODATA while it is not known. */
SHEAF_MUST_CHECK int sheaf_dataset_digest(struct sheaf_dataset *dataset,
        uint32_t entry, struct sheaf_digest *ret_digest);

/* ---- without sheafd (origin.c) ---- */

/* The directory that was added, as sheafd told; NULL: it did not. Borrowed. */
const char *sheaf_dataset_origin(const struct sheaf_dataset *dataset);
/* Whether somebody listens at sheafd's socket just now. At once. */
bool sheaf_dataset_is_served(const struct sheaf_dataset *dataset);
/* The whole file from there into @buf, which has room for its size. It waits
 * as long as the file system does. -ESTALE: the file is not the one that was
 * listed any more; -ERANGE; or what opening or reading it gave. */
SHEAF_MUST_CHECK int sheaf_dataset_read_origin(
        struct sheaf_dataset *dataset, uint64_t ordinal, void *buf);
/* Sample of slot @slot < @samples of a job of order strict, as sheafd binds
 * it. @samples: 1 to 2^31. */
uint32_t sheaf_strict_sample(
        uint32_t samples, uint64_t seed, uint64_t epoch, uint32_t slot);

#endif
