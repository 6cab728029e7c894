/* SPDX-License-Identifier: Apache-2.0 */
/* The disk tier: where verified chunks live between runs.
 *
 *   CACHE/lock                   flock'd; text: host, boot id, pid
 *   CACHE/key                    32 random bytes, mode 0600: keys header MACs
 *   CACHE/catalog/               LMDB: digest -> place, records, counters
 *   CACHE/versions/UUID/         listing, digests (flat), places (flat)
 *   CACHE/segments/NNNNNNNN.seg  small chunks, append only, recycled whole
 *   CACHE/plain/NODE             files over 4 MiB, sparse, original offsets
 *   CACHE/plain/NODE.map         digests of the chunks that are in it
 *
 * What was written stays until its dataset shrinks or goes. Reading checks
 * the record's header (MAC, generation, digest) and the payload's SHA-256;
 * what fails is dropped and counted. After an unclean stop the store opens
 * within seconds and cleans behind; a segment that was open is closed.
 *
 * Threads: every function is called on the loop thread; callbacks come there
 * too. Hashing and system calls that block run on libuv's pool or in
 * io_uring. All disk I/O of payloads passes through daemon/store/disk.h, the
 * one seam for faults. */
#ifndef SHEAF_DAEMON_STORE_STORE_H
#define SHEAF_DAEMON_STORE_STORE_H

#include "proto/digest.h"
#include "proto/listing.h"

#include <sys/queue.h>
#include <uv.h>

struct sheaf_store;
struct sheaf_version; /* learned digests and places of one version */

struct sheaf_store_config {
        uv_loop_t *loop;
        const char *dir;         /* made if missing, 0700 */
        uint64_t bytes_max;      /* hard; 0: nothing is kept on disk */
        uint64_t floor_bytes;    /* free space left to others */
        bool want_uring;         /* false: pread and a thread pool */
        bool fuse_ok;            /* a FUSE file system is no network to it */
        const char *holder_hint; /* text for the lock file, or NULL */
};

/* Takes the lock, opens catalog and containers, recovers what an unclean
 * stop left. 0; -EBUSY another daemon holds the directory (its host and pid
 * were logged); -EMEDIUMTYPE network file system (logged with its name and
 * the remedy); -EROFS; -ENOLCK locks do not work there; -EIO. */
SHEAF_MUST_CHECK int sheaf_store_open(const struct sheaf_store_config *config,
        struct sheaf_store **ret_store);
/* Finishes writes in flight, commits the catalog, marks the stop as clean.
 * Calls what is due of done callbacks; versions still open are closed. The
 * lock is free when it returns; handles end as the loop goes on. */
void sheaf_store_close(struct sheaf_store *store);

/* ---- records: small named values of the daemon (datasets, grants) ---- */

/* A change of one record, in the caller's memory until @done. Changes are made
 * one after another, as they came; what waits for the disk is on the pool. */
#define SHEAF_CHANGE_NONE 1
struct sheaf_store_change {
        /* Its turn: tells what to write, by sheaf_store_change_value, or
         * removes @key where there is no value. SHEAF_CHANGE_NONE: nothing is
         * to be written after all; -errno: it cannot be made. Both end it. */
        int (*begin)(struct sheaf_store_change *change);
        /* Once; the next change begins when it returns. rc 0: durable;
         * -ENOENT: there was nothing to remove. */
        void (*done)(struct sheaf_store_change *change, int rc);
        void *arg; /* the caller's */
        char key[64];
        void *value; /* freed here */
        size_t len_bytes;
        struct sheaf_store_change *next;
        struct sheaf_counter *counter;
};
/* May call @begin, and @done where that fails, before it returns. Those that
 * are under way when the store closes are ended there. */
void sheaf_store_change(
        struct sheaf_store *store, struct sheaf_store_change *change);
/* Ends all that are under way or wait, before it returns. */
void sheaf_store_settle(struct sheaf_store *store);
/* Room for the value, to be filled by @begin. -ENOMEM. */
SHEAF_MUST_CHECK int sheaf_store_change_value(
        struct sheaf_store_change *change, const char *key, size_t len_bytes);

/* The same at once, waiting for the disk: at the start, while nobody is
 * served. @key is NUL-terminated, at most 400 bytes. */
SHEAF_MUST_CHECK int sheaf_store_put(struct sheaf_store *store, const char *key,
        const void *value, size_t len_bytes);
SHEAF_MUST_CHECK int sheaf_store_del(
        struct sheaf_store *store, const char *key);
/* Calls @each for records whose key begins with @prefix, in key order; a
 * non-zero return ends it and is returned. */
int sheaf_store_each(struct sheaf_store *store, const char *prefix,
        int (*each)(void *arg, const char *key, const void *value,
                size_t len_bytes),
        void *arg);
/* Next number of a durable counter, from 1: none is given twice, some are
 * passed over. Waits for the disk only where none was reserved. */
SHEAF_MUST_CHECK int sheaf_store_next(
        struct sheaf_store *store, const char *counter, uint64_t *ret_value);

/* At the start: takes some numbers of a counter in advance. Waits. */
void sheaf_store_reserve(struct sheaf_store *store, const char *counter);
/* What "jobs" holds on disk, as its owner counts it: part of the limit. */
void sheaf_store_set_journals(struct sheaf_store *store, uint64_t bytes);

/* Unmaps @map (NULL: none) and closes @fd (-1: none), both taken over, behind
 * when that takes long. */
void sheaf_store_let_go(
        struct sheaf_store *store, void *map, size_t bytes, int fd);

/* ---- versions ---- */

/* Path of a version's directory, in which the caller puts "listing" before
 * sheaf_version_open; @ret_path has room for PATH_MAX. */
SHEAF_MUST_CHECK int sheaf_version_path(const struct sheaf_store *store,
        const uint8_t uuid[16], char *ret_path, size_t cap_bytes);
/* The same, and makes it, empty. Any thread; blocks. */
SHEAF_MUST_CHECK int sheaf_version_dir(const struct sheaf_store *store,
        const uint8_t uuid[16], char *ret_path, size_t cap_bytes);

/* Opens (and makes, all unknown) the flat arrays of a version whose listing
 * is @listing, borrowed until close. @group names the dataset for space. */
SHEAF_MUST_CHECK int sheaf_version_open(struct sheaf_store *store,
        const struct sheaf_listing *listing, uint64_t group,
        struct sheaf_version **ret_version);
/* The same in parts, for versions of a million chunks. First what takes long:
 * any thread; blocks. */
SHEAF_MUST_CHECK int sheaf_version_prepare(struct sheaf_store *store,
        const struct sheaf_listing *listing, uint64_t group,
        struct sheaf_version **ret_version);
/* Then the store knows it; freed on failure. */
SHEAF_MUST_CHECK int sheaf_version_attach(struct sheaf_version *version);
/* Looks at @chunks more; true: all were looked at, it is open. Until then
 * nothing else is done with it but to close it. */
bool sheaf_version_count(struct sheaf_version *version, uint64_t chunks);
/* One that was prepared only. */
void sheaf_version_discard(struct sheaf_version *version);
void sheaf_version_close(struct sheaf_version *version);
/* Removes the version's directory, behind (its chunks go with their
 * containers when no other version names them). Closed first. A failure is
 * logged; the next start tries again. */
void sheaf_version_remove(struct sheaf_store *store, const uint8_t uuid[16]);

/* At the start: finishes removals that a stop interrupted, and removes the
 * directories of versions that nobody knows. */
void sheaf_version_sweep(struct sheaf_store *store,
        bool (*is_known)(void *arg, const uint8_t uuid[16]), void *arg);

/* Digest of a chunk; all zero when not learned. Borrowed, volatile only by
 * sheaf_version_learn/forget. */
const struct sheaf_digest *sheaf_version_digest(
        const struct sheaf_version *version, uint64_t chunk);
void sheaf_version_learn(struct sheaf_version *version, uint64_t chunk,
        const struct sheaf_digest *digest);
void sheaf_version_forget(struct sheaf_version *version, uint64_t chunk);
/* Learns what @from knows of its chunk, and where it is on disk. */
void sheaf_version_inherit(struct sheaf_version *version, uint64_t chunk,
        const struct sheaf_version *from, uint64_t from_chunk);
uint64_t sheaf_version_known(const struct sheaf_version *version);
/* What was learned until now is durable when it returns. Any thread, while
 * the version is open; blocks. -ENOSPC: the digests live in memory, since the
 * disk was full; -EIO: some do, since the disk failed; -errno. */
SHEAF_MUST_CHECK int sheaf_version_sync(const struct sheaf_version *version);

/* Whether a chunk is on disk: by this version's places, else by its digest. */
bool sheaf_version_on_disk(struct sheaf_version *version, uint64_t chunk);
/* The same by its own places alone: without a look at the catalog. */
bool sheaf_version_placed(const struct sheaf_version *version, uint64_t chunk);
/* Chunks and bytes of this version found on disk now; O(1). */
uint64_t sheaf_version_disk(
        const struct sheaf_version *version, uint64_t *ret_bytes);

/* ---- chunks ---- */

/* A chunk's address for the calls below. @entry is its file in the listing
 * (any hard link), @index the chunk's position in that file. */
struct sheaf_chunk_ref {
        struct sheaf_version *version;
        uint64_t chunk;
        uint32_t entry;
        uint32_t index;
        uint32_t len_bytes;
};

/* Reading. The request lives in the caller's memory until @done. @bytes
 * points into a buffer of the store, valid until sheaf_store_read_end. */
struct sheaf_store_read {
        struct sheaf_chunk_ref ref;
        void (*done)(struct sheaf_store_read *read, int rc);
        const void *bytes;
        void *store_private[12];
};
/* @done with 0: header good, @bytes are len_bytes of payload, *not yet
 * hashed* (the caller hashes while it copies and calls sheaf_store_bad on a
 * mismatch). -ENOENT not on disk; -EBADMSG header wrong (dropped, counted);
 * -EIO (dropped, counted); -EBUSY no buffer free: queued, never returned.
 * Never calls @done before it returns. */
void sheaf_store_read(struct sheaf_store *store, struct sheaf_store_read *read);
void sheaf_store_read_end(struct sheaf_store_read *read);
/* The payload read did not have the digest: drops every place of it. */
void sheaf_store_bad(
        struct sheaf_store *store, const struct sheaf_chunk_ref *ref);

/* Writing a verified chunk whose digest is learned. @bytes stay in place
 * until @done. rc: 0 written and placed; -EEXIST on disk already; -EDQUOT at
 * the limit or allotment; -ENOSPC the disk (or its floor); -EIO. */
struct sheaf_store_write {
        struct sheaf_chunk_ref ref;
        const void *bytes;
        void (*done)(struct sheaf_store_write *write, int rc);
        void *store_private[12];
};
void sheaf_store_write(
        struct sheaf_store *store, struct sheaf_store_write *write);
/* Pushes partly filled append buffers to disk (sync points, tests, idle). */
void sheaf_store_flush(struct sheaf_store *store);

/* Drops a chunk of this version from disk (evict); true if it was there. Files
 * that go are unlinked later, in the order in which they were dropped. */
bool sheaf_store_evict(
        struct sheaf_store *store, const struct sheaf_chunk_ref *ref);

/* Waits until all files that were dropped are unlinked. */
struct sheaf_store_gone {
        void (*done)(struct sheaf_store_gone *gone);
        LIST_ENTRY(sheaf_store_gone) link;
};

/* False: none is left, and @done is not called. */
bool sheaf_store_gone_wait(
        struct sheaf_store *store, struct sheaf_store_gone *gone);
void sheaf_store_gone_cancel(struct sheaf_store_gone *gone);

/* A read-only descriptor of a complete, checked plain file for kernel
 * passthrough, opened through a private read-only mount where allowed.
 * 0; -ENOENT incomplete or not a plain file; -EAGAIN unchecked, a check was
 * started: ask again; -EPERM no such mount can be made. The file is not
 * evicted while @ret_lease is held. */
struct sheaf_plain_lease;
SHEAF_MUST_CHECK int sheaf_store_plain(struct sheaf_store *store,
        struct sheaf_version *version, uint32_t entry, int *ret_fd,
        struct sheaf_plain_lease **ret_lease);
void sheaf_plain_lease_end(struct sheaf_plain_lease *lease);

/* ---- space ---- */

/* The group's datasets have live users; the longest unused group gives way
 * first when the limit is reached. */
void sheaf_store_group_live(
        struct sheaf_store *store, uint64_t group, bool live);
/* All containers of a group (dataset removed) may go. */
void sheaf_store_group_drop(struct sheaf_store *store, uint64_t group);
/* At the start: drops the groups that nobody knows. Their dataset was removed,
 * and the daemon ended before their containers were gone or filled again. */
void sheaf_store_group_sweep(struct sheaf_store *store,
        bool (*is_known)(void *arg, uint64_t group), void *arg);

struct sheaf_store_stats {
        uint64_t bytes_max, bytes_used; /* as du counts, within 1 % */
        uint64_t bytes_unlinked_open, payload_bytes, chunks;
        uint64_t segments, plain_files, unchecked_containers;
        bool uring;
        const char *uring_why;    /* static: why not, or "" */
        int degraded;             /* 0 or -errno of the disk, e.g. -ENOSPC */
        const char *degraded_why; /* static text with the remedy, or "" */
        bool limit_reached;       /* chunks are not kept since bytes_max */
        uint64_t versions_lost;   /* open ones that lost learned digests or
                                   * places to the disk */
        /* monotonic */
        uint64_t read_chunks, read_bytes, written_chunks, written_bytes;
        uint64_t catalog_written_bytes, container_written_bytes;
        uint64_t bad_headers, bad_payloads, io_errors, refused_full;
        uint64_t recovered_chunks, recovery_ns;
};
/* Whether it takes writes: 0; -EDQUOT, it is at its limit; -errno, so that it
 * takes none at present. */
int sheaf_store_refuses(const struct sheaf_store *store);
void sheaf_store_stats(
        const struct sheaf_store *store, struct sheaf_store_stats *ret_stats);

#endif
