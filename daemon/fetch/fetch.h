/* SPDX-License-Identifier: Apache-2.0 */
/* The conductor: brings a chunk into an arena, with one flight a chunk,
 * whoever asks. Tiers in order: arena, disk, origin. SHA-256 is taken on the
 * way in and compared wherever a digest is known; what differs is dropped,
 * counted, and fetched from the next source.
 *
 *   queued -> start -> in the arena by its digest? join -----------+
 *               |                                                  |
 *               +-> disk: read -> copy + hash -> digest equal? ----+
 *               |     | not there, damaged            | no: drop   |
 *               |     v                               v            v
 *               +-> origin: read -> copy + hash -> learn or    publish: word,
 *                     ^   | other bytes than known: once more   answers
 *                     |   v                                        |
 *                     +---+ then -EIO or -ESTALE                   v
 *                                              gone <- write to disk
 *
 * Threads: loop thread only; copying and hashing run on libuv's pool. */
#ifndef SHEAF_DAEMON_FETCH_FETCH_H
#define SHEAF_DAEMON_FETCH_FETCH_H

#include "daemon/origin/origin.h"
#include "daemon/store/arena.h"
#include "daemon/store/store.h"

#include <sys/queue.h>

struct sheaf_fetcher;
struct sheaf_flight;

/* Where a dataset's version lives in one domain's arena. */
struct sheaf_residence {
        struct sheaf_arena *arena;
        struct sheaf_space *space;
        struct sheaf_table *table;
};

/* Counters of one dataset; monotonic. */
struct sheaf_fetch_counters {
        uint64_t disk_hits, disk_hit_bytes;
        uint64_t origin_reads, origin_bytes, origin_errors;
        uint64_t joins;           /* found in the arena by digest */
        uint64_t verify_failures; /* bytes that lacked their digest */
        uint64_t stale;           /* origin not as listed */
        uint64_t errors;
};

/* A version as the conductor sees it. Lives in the registry, longer than any
 * wait on it. */
struct sheaf_fetch_version {
        struct sheaf_listing listing;
        struct sheaf_version *stored;
        int64_t wall_offset_ns; /* wall clock less monotonic, as it came */
        bool sealed; /* all digests were known: one that is not was lost */
        struct sheaf_fetch_counters *counters;
        /* Makes @ret_origin usable: 0; -EINPROGRESS: sheaf_fetch_resume will
         * be called; -ESTALE: detached, with a text in @ret_why. */
        int (*attach)(struct sheaf_fetch_version *version,
                struct sheaf_origin **ret_origin, const char **ret_why);
        TAILQ_HEAD(, sheaf_flight) attaching; /* wait for the origin */
        uint64_t flights;
        /* private: its share of the origin */
        TAILQ_ENTRY(sheaf_fetch_version) origin_link;
        LIST_HEAD(, sheaf_flight) at_origin;
        TAILQ_HEAD(, sheaf_flight) parked;
        uint32_t at_origin_count, parked_count;
        int64_t origin_ns; /* when it last gave something */
        bool origin_linked;
};
/* Makes the lists of a zeroed version, when its listing has come. */
void sheaf_fetch_version_init(struct sheaf_fetch_version *version);

/* One wish for one chunk. Lives in the caller's memory until @done, which is
 * called once, never before sheaf_fetch returns. */
struct sheaf_fetch {
        struct sheaf_fetch_version *version;
        uint32_t entry, index;
        const struct sheaf_residence *residence; /* NULL: no arena wanted */
        uint64_t lane; /* who asks: lanes take turns */
        bool hint;     /* after everything that somebody waits for */
        bool durable;  /* done when on disk too (or refused there) */
        bool at_hand;  /* nothing is read for it: -EAGAIN, not in memory */
        bool joined;   /* out: somebody had asked for that chunk before */
        /* rc 0: in the arena of @residence, and @bytes (until done returns)
         * are the chunk's; NULL when @durable alone was wished for and the
         * disk has it already. -ENOBUFS: verified, @bytes valid, but the arena
         * has no room now. Else @bytes is NULL and @why a static text. */
        void (*done)(struct sheaf_fetch *fetch, int rc, const void *bytes,
                const char *why);
        /* private */
        struct sheaf_flight *flight;
        TAILQ_ENTRY(sheaf_fetch) link;
};

struct sheaf_fetcher_config {
        uv_loop_t *loop;
        struct sheaf_store *store;
        uint64_t flights_max; /* 0: 256 */
        uint64_t bytes_max;   /* in flight, 0: 256 MiB */
};

SHEAF_MUST_CHECK int sheaf_fetcher_new(
        const struct sheaf_fetcher_config *config,
        struct sheaf_fetcher **ret_fetcher);
/* Waits end with -ECANCELED; work on other threads is waited for. */
void sheaf_fetcher_free(struct sheaf_fetcher *fetcher);

/* 0; -ENOMEM, then @done is not called. */
SHEAF_MUST_CHECK int sheaf_fetch(
        struct sheaf_fetcher *fetcher, struct sheaf_fetch *fetch);
/* Whether that chunk is verified, and being written to disk. */
bool sheaf_fetch_is_writing(struct sheaf_fetcher *fetcher,
        const struct sheaf_fetch_version *version, uint64_t chunk);
/* @done will not be called; the flight goes on for others, or to the disk. */
void sheaf_fetch_cancel(
        struct sheaf_fetcher *fetcher, struct sheaf_fetch *fetch);
/* The origin of @version is usable, or not (-errno with a static text), or
 * (-ECANCELED) let go of: attaching is tried again. */
void sheaf_fetch_resume(struct sheaf_fetcher *fetcher,
        struct sheaf_fetch_version *version, int rc, const char *why);
/* Ends all flights of a version that goes away; its waits end -ESTALE.
 * Returns false while work on other threads still uses it: call again after
 * the next idle callback. */
bool sheaf_fetch_quiesce(
        struct sheaf_fetcher *fetcher, struct sheaf_fetch_version *version);

struct sheaf_fetcher_stats {
        uint64_t in_flight, queued, hints_queued, writing, writing_bytes;
        /* monotonic */
        uint64_t writes_skipped, hash_ns, hashed_bytes;
};
void sheaf_fetcher_stats(const struct sheaf_fetcher *fetcher,
        struct sheaf_fetcher_stats *ret_stats);

#endif
