/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's side of an origin: a helper process per (owner, origin) that
 * runs wholly as the owner (uid, gid, groups, no capabilities, no new
 * privileges) and lists and reads for the daemon. It is killed when it hangs
 * and started again on the next request; one that survives SIGKILL is
 * abandoned with its buffers. Idle ones end after a minute.
 *
 *   daemon                                 sheaf-reader (as the owner)
 *     | socket pair: protobuf requests        | openat2(BENEATH) walk
 *     | memfd: SLOTS buffers of a chunk       | pread into a buffer
 *     v                                       v
 *
 * Nothing that a reader writes is trusted: buffers are client memory, to be
 * copied before they are hashed; listings are validated by the caller.
 *
 * Threads: loop thread only. All origin I/O of the product passes here; the
 * environment variable SHEAF_FAULT_ORIGIN injects faults where the reader was
 * built with SHEAF_FAULTS (a CMake option, on for Debug): a comma-separated
 * list of "hang:S", "eio:S", "gone:S", "delay=MS:S", "short:S",
 * "estale-once:S" and "crash:S", each for paths that contain S
 * (daemon/origin/reader.h). */
#ifndef SHEAF_DAEMON_ORIGIN_ORIGIN_H
#define SHEAF_DAEMON_ORIGIN_ORIGIN_H

#include "proto/listing.h"

#include <sys/types.h>
#include <uv.h>

#define SHEAF_ORIGIN_SLOTS 64 /* chunks in flight per origin */
/* Of them, those with room for any chunk; the others are for small ones, and
 * bound the memory of a reader to 76 MiB. */
#define SHEAF_ORIGIN_SLOTS_LARGE 16
#define SHEAF_ORIGIN_SMALL_BYTES (256 * SHEAF_KIB)
#define SHEAF_ORIGIN_QUEUE_MAX   4096 /* reads waiting for a slot */

struct sheaf_origin;

struct sheaf_origin_config {
        uv_loop_t *loop;
        const char *reader_path; /* the sheaf-reader executable */
        int root_fd;             /* directory; duplicated; -1: root_path */
        const char *root_path;   /* opened by the reader, as the owner (after
                                  * a restart of the daemon); copied */
        bool switch_user;        /* daemon is root: become the owner */
        uid_t uid;
        gid_t gid;
        const gid_t *groups; /* copied */
        size_t group_count;
        int64_t deadline_ns; /* of one read; a hung reader is killed */
        int64_t idle_ns;     /* an idle reader ends; 0: a minute */
        int threads;         /* of the reader; 0: 8 */
};

SHEAF_MUST_CHECK int sheaf_origin_new(const struct sheaf_origin_config *config,
        struct sheaf_origin **ret_origin);
/* Kills the reader; requests in flight end with -ECANCELED before it
 * returns. Bytes that were not ended stay valid until they are. May be called
 * in a callback; the loop must run on for its handles to close. */
void sheaf_origin_free(struct sheaf_origin *origin);

/* Listing. @done gets a memfd (owned by the callee) that holds a block made
 * with @serial and @uuid; it is still the reader's claim: copy, then open it
 * with full checks. */
struct sheaf_origin_summary {
        uint64_t dirs, files, links, hard_links, bytes;
        uint64_t escaping_links, skipped_special, skipped_names,
                unreadable_dirs, unreadable_files, followed_links;
        char first_escaping[256], first_unreadable[256]; /* paths, cut */
};
struct sheaf_origin_list {
        bool follow; /* replace escaping links by their targets */
        uint64_t serial;
        uint8_t uuid[16];
        int64_t deadline_ns; /* without progress; 0: the origin's */
        void (*progress)(struct sheaf_origin_list *list, uint64_t entries);
        void (*done)(struct sheaf_origin_list *list, int rc, int memfd,
                const struct sheaf_origin_summary *summary);
        void *origin_private[8];
};
/* One at a time: rc of @done is -EBUSY while another is under way; also
 * -ETIMEDOUT no progress, -EACCES the root may not be read, -ECANCELED,
 * -errno. Never calls back before returning. */
void sheaf_origin_list(
        struct sheaf_origin *origin, struct sheaf_origin_list *list);
/* Calls @done with -ECANCELED before it returns. */
void sheaf_origin_list_cancel(struct sheaf_origin_list *list);

/* Reading one chunk. The identity (inode, size, mtime, ctime) is compared on
 * the open descriptor before and after the read. The request lives in the
 * caller's memory until @done; bytes until sheaf_origin_read_end. */
enum sheaf_origin_state {
        SHEAF_ORIGIN_SAME = 0,
        SHEAF_ORIGIN_CTIME_MOVED = 1, /* all else equal; new_ctime is set */
};
struct sheaf_origin_read {
        const struct sheaf_listing *listing; /* borrowed until done */
        uint32_t entry;
        uint32_t index;            /* chunk of the file */
        uint64_t new_ctime_packed; /* when CTIME_MOVED */
        const void *bytes;         /* len of the chunk; reader's memory! */
        void (*done)(struct sheaf_origin_read *read, int rc);
        void *origin_private[12];
};
/* rc: SHEAF_ORIGIN_*; -ESTALE the file is not what was listed; -ENOENT gone
 * (also reported when a directory on the way is); -EACCES; -EIO; -ELOOP or
 * -EXDEV the path leaves the tree; -ETIMEDOUT (the reader was killed);
 * -ECANCELED; -EAGAIN over SHEAF_ORIGIN_QUEUE_MAX; -ENAMETOOLONG a path over
 * 48 KiB. Short of slots it queues, and the deadline runs on. Never calls
 * @done before returning. A read whose reader dies is sent once more. */
void sheaf_origin_read(
        struct sheaf_origin *origin, struct sheaf_origin_read *read);
/* Gives the bytes back; once, after @done with rc >= 0 (harmless after a
 * failure). */
void sheaf_origin_read_end(struct sheaf_origin_read *read);

/* Checks that the root is still what it was: same inode number and
 * @count sampled entries with the same (inode, size, mtime). Done through
 * the reader. rc 0 same; -ESTALE other; -errno. */
struct sheaf_origin_probe {
        const struct sheaf_listing *listing;
        void (*done)(struct sheaf_origin_probe *probe, int rc);
        void *origin_private[8];
};
void sheaf_origin_probe(
        struct sheaf_origin *origin, struct sheaf_origin_probe *probe);

struct sheaf_origin_stats {
        pid_t pid; /* 0: none now */
        uint64_t in_flight, queued;
        uint64_t stuck;    /* processes that survive SIGKILL */
        int64_t silent_ns; /* of the request that waits longest; 0: none */
        bool held_off;     /* readers ended before they answered, all so far */
        bool waits;        /* more is asked for than is read at once */
        /* monotonic */
        uint64_t reads, bytes, errors, stale, timeouts, starts, abandoned;
        uint64_t read_ns_total;
};
void sheaf_origin_stats(const struct sheaf_origin *origin,
        struct sheaf_origin_stats *ret_stats);

#endif
