/* SPDX-License-Identifier: Apache-2.0 */
/* What the conductor's files share (drawn in fetch.h):
 *
 *   fetch.c    flights, their table, the pump, the interface
 *   queue.c    whose turn it is
 *   source.c   where bytes come from: arena, disk, origin
 *   hash.c     copying and hashing on the pool, and what follows from it
 *   publish.c  words, answers, the way to the disk
 *
 *  1 at most one flight a (version, chunk); it is in exactly one queue or in
 *    the hands of exactly one of store, origin, hash pool
 *  2 bytes are visible to clients only after their digest was computed from
 *    the very copy that becomes visible
 *  3 a flight under way counts against flights_max and bytes_max; writes
 *    count on their own and never hold an answer back
 *  4 the arena block that is being written to disk, or will be, is held
 *  5 no write begins beside the answer that caused it: who reads what somebody
 *    else has brought to disk would see that his own reads come faster. It
 *    waits (UNWRITTEN), counted as one that is under way, unless somebody
 *    waits for the disk; what is too much begins beside the next answer,
 *    whatever that is of */
#ifndef SHEAF_DAEMON_FETCH_IMPL_H
#define SHEAF_DAEMON_FETCH_IMPL_H

#include "daemon/fetch/fetch.h"

#include "daemon/clock.h"

#define SHEAF_FLIGHT_BUCKETS 8192
#define SHEAF_LANE_BUCKETS   256

extern const char sheaf_why_changed[], sheaf_why_differs[], sheaf_why_memory[],
        sheaf_why_gone[];

enum sheaf_flight_state {
        SHEAF_FLIGHT_QUEUED,
        SHEAF_FLIGHT_PARKED, /* too many are at the origin */
        SHEAF_FLIGHT_AGAIN,  /* its reader was let go of: anew */
        SHEAF_FLIGHT_ATTACHING,
        SHEAF_FLIGHT_SETTLING, /* a file changed just now: its times must grow
                                  old */
        SHEAF_FLIGHT_READING,  /* disk or origin */
        SHEAF_FLIGHT_HASHING,
        SHEAF_FLIGHT_UNWRITTEN, /* answered; its write begins soon */
        SHEAF_FLIGHT_WRITING,
};

enum sheaf_source {
        SHEAF_FROM_DISK,
        SHEAF_FROM_ORIGIN
};

TAILQ_HEAD(sheaf_fetch_list, sheaf_fetch);
TAILQ_HEAD(sheaf_flight_list, sheaf_flight);

/* The queued wishes of one who asks; exists while there are some. */
struct sheaf_lane {
        LIST_ENTRY(sheaf_lane) bucket;
        TAILQ_ENTRY(sheaf_lane) link;
        uint64_t id;
        struct sheaf_flight_list queue;
};
LIST_HEAD(sheaf_lane_bucket, sheaf_lane);

struct sheaf_flight {
        LIST_ENTRY(sheaf_flight) bucket, origin;
        struct sheaf_lane *lane; /* while queued */
        TAILQ_ENTRY(sheaf_flight) link, unwritten;
        struct sheaf_fetcher *fetcher;
        struct sheaf_fetch_version *version;
        uint64_t chunk;
        uint32_t entry, index, len_bytes;
        enum sheaf_flight_state state;
        enum sheaf_source source;
        bool hint, dead, ctime_moved, counted, is_late, at_origin, stalled;
        uint8_t origin_tries;
        int64_t answered_ns; /* while it is unwritten */
        struct sheaf_fetch_list waits;
        struct sheaf_store_read disk_read;
        struct sheaf_origin_read origin_read;
        struct sheaf_store_write write;
        const void *src;
        /* Where the bytes go: an arena block or a heap buffer. */
        const struct sheaf_residence *home;
        sheaf_block block;
        void *bytes;
        void *heap;
        struct sheaf_digest digest;
};

LIST_HEAD(sheaf_flight_bucket, sheaf_flight);

struct sheaf_fetcher {
        uv_loop_t *loop;
        struct sheaf_store *store;
        uint64_t flights_max, bytes_max;
        uv_idle_t pump;
        uv_timer_t settle, watch, write;
        bool pumping, closing;
        int open_handles; /* while closing */
        struct sheaf_flight_bucket buckets[SHEAF_FLIGHT_BUCKETS];
        struct sheaf_lane_bucket lane_buckets[SHEAF_LANE_BUCKETS];
        TAILQ_HEAD(, sheaf_lane) lanes;
        TAILQ_HEAD(, sheaf_fetch_version) origins; /* with flights there */
        struct sheaf_flight_list hints, arrived, late, settling, again;
        uint64_t queued, hints_queued, stalled;
        uint64_t under_way, under_way_bytes;
        uint64_t hashing, cores;            /* batches under way; constant */
        struct sheaf_flight_list unwritten; /* the longest answered first */
        uint64_t unwritten_bytes;
        uint64_t writing, writing_bytes; /* unwritten ones, too */
        int64_t write_progress_ns;
        struct sheaf_fetcher_stats stats;
};

/* fetch.c */
void sheaf_fetcher_kick(struct sheaf_fetcher *fetcher);
void sheaf_flight_count_start(struct sheaf_flight *f);
void sheaf_flight_count_stop(struct sheaf_flight *f);
/* Ends one wait with an answer; the flight goes on. */
void sheaf_flight_answer(struct sheaf_flight *f, struct sheaf_fetch *w, int rc,
        const void *bytes, const char *why);
/* Answers all waits with an error and frees the flight. */
void sheaf_flight_fail(struct sheaf_flight *f, int rc, const char *why);
void sheaf_flight_free(struct sheaf_flight *f);
struct sheaf_chunk_ref sheaf_flight_ref(const struct sheaf_flight *f);

/* queue.c */
/* In a lane; -ENOMEM: it is in no queue. Among hints: always. */
SHEAF_MUST_CHECK int sheaf_flight_enqueue(
        struct sheaf_flight *f, uint64_t lane);
void sheaf_flight_enqueue_hint(struct sheaf_flight *f);
void sheaf_flight_dequeue(struct sheaf_flight *f);
/* False: too many are there, the flight is parked. */
bool sheaf_flight_enter_origin(struct sheaf_flight *f);
void sheaf_flight_leave_origin(struct sheaf_flight *f);
void sheaf_flight_unpark(struct sheaf_flight *f);
void sheaf_fetcher_start_queued(struct sheaf_fetcher *fetcher);
void sheaf_fetcher_watch(uv_timer_t *timer);

/* source.c */
/* The cheapest tier that has the chunk. */
void sheaf_flight_start(struct sheaf_flight *f);
/* The origin once more, by the next pump: the reader was let go of. */
void sheaf_flight_try_again(struct sheaf_flight *f);
/* The origin, once it is attached and the file's times are old enough. */
void sheaf_flight_go_origin(struct sheaf_flight *f);
void sheaf_fetcher_settled(uv_timer_t *timer);

/* hash.c */
/* @src holds the chunk's bytes, not verified, until the source's end call. */
void sheaf_flight_arrive(
        struct sheaf_flight *f, enum sheaf_source source, const void *src);
/* Hands all that arrived to the pool. */
void sheaf_fetcher_hash_arrived(struct sheaf_fetcher *fetcher);

/* publish.c */
/* The bytes are verified and their digest is learned. */
void sheaf_flight_publish(struct sheaf_flight *f);
/* Answers those that wait; with @durable also those that wait for the disk. */
void sheaf_flight_serve(struct sheaf_flight *f, bool durable);
/* The held bytes go to the disk, unless they are there or it is stuck. */
void sheaf_flight_write_out(struct sheaf_flight *f);
/* Begins the write of an unwritten one now: somebody waits for it. */
void sheaf_flight_write_now(struct sheaf_flight *f);
/* Begins the writes whose time has come. */
void sheaf_fetcher_write_some(uv_timer_t *timer);
/* The disk is behind but alive: nothing new is started until it caught up. */
bool sheaf_fetcher_wait_disk(const struct sheaf_fetcher *fetcher);

#endif
