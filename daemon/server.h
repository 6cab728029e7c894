/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets and connections: who is there, what they hold, what they asked.
 *
 * No client can slow or stop the daemon: nothing here waits; what a client
 * does not read piles up to a bound, then the connection is closed; what it
 * asks at once is bounded. Verbs (daemon/verbs) answer requests.
 *
 * Threads: loop thread only. */
#ifndef SHEAF_DAEMON_SERVER_H
#define SHEAF_DAEMON_SERVER_H

#include "daemon/account.h"
#include "daemon/config.h"
#include "daemon/fetch/ahead.h"
#include "daemon/registry/registry.h"
#include "proto/wire.h"

#define SHEAF_CONN_HANDLES_MAX 1024
#define SHEAF_CONN_CALLS_MAX   256
#define SHEAF_CONN_QUEUE_BYTES (UINT64_C(4) << 20)
#define SHEAF_CONN_ITEMS_MAX   65536 /* chunks asked for, not yet answered */
#define SHEAF_CONN_HINTS_MAX   16384 /* chunks hinted at */
#define SHEAF_CROWDED_TEXT                                                     \
        "sheafd's descriptors are used up; raise its limit (ulimit -Hn, "      \
        "LimitNOFILE=), or end clients that do nothing"
#define SHEAF_UID_FORKS_MAX 1024 /* announced forks that live on */

struct sheaf_server;
struct sheaf_conn;
struct sheaf_grants;
struct sheaf_catchup;
struct sheaf_closer;
struct sheaf_health;
struct sheaf_jobs;
struct sheaf_jobs_seat;
struct sheaf_prep;
struct sheaf_seat;

/* What all verbs may use. */
struct sheaf_daemon {
        uv_loop_t *loop;
        const struct sheaf_config *config;
        struct sheaf_store *store;
        struct sheaf_arena_pool *pool;
        struct sheaf_fetcher *fetcher;
        struct sheaf_registry *registry;
        struct sheaf_server *server;
        struct sheaf_closer *closer;
        struct sheaf_grants *grants;
        struct sheaf_health *health;
        struct sheaf_catchup *catchup;
        struct sheaf_jobs *jobs;
        struct sheaf_prep *prep;
        struct sheaf_turns *turns;
        uint64_t hint_items; /* of all clients */
        uint64_t tour_items; /* under way for warmups and seals */
        int64_t started_ns;
        uint8_t instance[16];
};

/* A request under way. Embedded in a verb's state. */
struct sheaf_call {
        LIST_ENTRY(sheaf_call) link;
        struct sheaf_conn *conn;
        uint64_t id;
        /* The client is gone or cancelled: give up; the call is unlinked
         * already and must not be answered. */
        void (*abandon)(struct sheaf_call *call);
        /* Of a long answer, or NULL: the client has read what was sent. */
        void (*resume)(struct sheaf_call *call);
};

/* An open dataset of a connection. */
struct sheaf_handle {
        uint32_t number;
        struct sheaf_reg_version *version;
        struct sheaf_lodging *lodging;   /* NULL: opened for figures only */
        const struct sheaf_meter *meter; /* mapped read-only; claims */
        int meter_fd;
        struct sheaf_ahead ahead;
        LIST_HEAD(, sheaf_jobs_seat) seats; /* of jobs that bind slots */
};

/* A connection's part in one domain's arena. */
struct sheaf_arena_part {
        LIST_ENTRY(sheaf_arena_part) link;
        struct sheaf_domain *domain;
        struct sheaf_pins *pins;
        uint64_t grant_bytes;
        int64_t over_since_ns; /* it holds more than it may; 0: it does not */
};

struct sheaf_fork_ghost {
        LIST_ENTRY(sheaf_fork_ghost) link;
        struct sheaf_server *server;
        struct sheaf_ghost *ghosts[16];
        size_t count;
        uid_t uid;
        uv_poll_t poll;
        int fd;
};

struct sheaf_plain_hold {
        LIST_ENTRY(sheaf_plain_hold) link;
        struct sheaf_plain_lease *lease;
        uint64_t number;
};

struct sheaf_out;

struct sheaf_conn {
        LIST_ENTRY(sheaf_conn) link;
        TAILQ_ENTRY(sheaf_conn) wait_link; /* among the mute or the brief */
        struct sheaf_server *server;
        struct sheaf_daemon *daemon;
        struct sheaf_principal who;
        struct sheaf_account *account;
        int64_t brief_end_ns; /* may ask for figures until then; 0: for all */
        int sock;
        uv_poll_t poll, pid_poll;
        bool pid_polled, closing, said_hello, forked;
        int open_handles; /* uv handles still to be closed */
        char kind[16], name[64];
        uint32_t claimed_pid;
        uint64_t want_pin_bytes;
        struct sheaf_handle *handles[SHEAF_CONN_HANDLES_MAX];
        uint32_t handle_count;
        LIST_HEAD(, sheaf_arena_part) attachments;
        uint64_t number;
        LIST_HEAD(, sheaf_call) calls;
        /* Hints: nobody waits, but they go with the connection. */
        LIST_HEAD(, sheaf_call) hints;
        uint64_t fetch_items, hint_items;
        LIST_HEAD(, sheaf_plain_hold) plains;
        uint64_t plain_numbers;
        LIST_HEAD(, sheaf_seat) seats; /* in groups that prepare batches */
        uint32_t call_count;
        TAILQ_HEAD(, sheaf_out) queue;
        uint64_t queue_bytes;
        int64_t waits_since_ns; /* long answers, for what is queued */
};

/* Listens on @path. -EADDRINUSE, -EEXIST (not a socket), -errno; logged. */
SHEAF_MUST_CHECK int sheaf_server_new(struct sheaf_daemon *daemon,
        const char *path, struct sheaf_server **ret_server);
void sheaf_server_free(struct sheaf_server *server);
/* Another listening socket, whose clients are the grant @grant; taken over on
 * success. */
SHEAF_MUST_CHECK int sheaf_server_adopt(struct sheaf_server *server, int sock,
        uint64_t grant, uint64_t *ret_listener);
void sheaf_server_unlisten(struct sheaf_server *server, uint64_t listener);
struct sheaf_conn *sheaf_server_first(struct sheaf_server *server);
/* Closes the connections that came through a grant's socket. */
void sheaf_server_drop_grant(struct sheaf_server *server, uint64_t grant);

struct sheaf_server_stats {
        uint64_t accepted, refused, dropped_slow, bad_messages, pins_freed_dead;
        uint64_t refused_requests; /* they decode and make no sense */
        uint64_t dropped_mute;     /* said no Hello when room was needed */
        uint64_t dropped_pins;     /* pinned more than they were granted */
        uint64_t fds_max;          /* limit of descriptors */
        uint64_t fds_free;         /* until nothing new may be opened, now */
        uint64_t copy_bytes;       /* of copies that clients hold, now */
        bool crowded;              /* nearly all are in use, now */
};
void sheaf_server_stats(const struct sheaf_server *server,
        struct sheaf_server_stats *ret_stats);

/* Whether so few descriptors are left that nothing new may be opened. */
bool sheaf_server_crowded(const struct sheaf_server *server);
/* It said Hello. */
void sheaf_conn_greeted(struct sheaf_conn *conn);

/* An arena has a new extent, or drops one: tells its clients. */
void sheaf_server_extent_new(struct sheaf_server *server,
        struct sheaf_arena *arena, uint32_t extent);
void sheaf_server_extent_dropped(struct sheaf_server *server,
        struct sheaf_arena *arena, uint32_t extent);

/* ---- for verbs ---- */

/* Sends or queues; descriptors stay the caller's. A client that does not
 * read is dropped, later: @conn stays valid until the loop turns. */
void sheaf_conn_send(struct sheaf_conn *conn, const Sheaf__Envelope *env,
        const int *fds, size_t fd_count);
/* Disconnects soon: the caller may still use the connection. */
void sheaf_conn_drop_soon(struct sheaf_conn *conn);
void sheaf_conn_error(struct sheaf_conn *conn, uint64_t id, int rc,
        const char *format, ...) SHEAF_PRINTF(4, 5);
void sheaf_conn_done(struct sheaf_conn *conn, uint64_t id);
void sheaf_conn_progress(
        struct sheaf_conn *conn, uint64_t id, const Sheaf__Progress *progress);
void sheaf_conn_finding(struct sheaf_conn *conn, uint64_t id, const char *kind,
        const void *path, size_t path_len, const char *text);

/* Registers a long request. False: there are too many at once, or @call is
 * NULL, for which there was no memory; an error was sent. */
SHEAF_MUST_CHECK bool sheaf_call_begin(struct sheaf_conn *conn, uint64_t id,
        struct sheaf_call *call, void (*abandon)(struct sheaf_call *call));
void sheaf_call_end(struct sheaf_call *call);
/* A long answer goes on only as far as its client reads; else it waits for
 * resume(). */
bool sheaf_conn_has_room(const struct sheaf_conn *conn);

/* Handle by number, or NULL after an error was sent. */
struct sheaf_handle *sheaf_conn_handle(
        struct sheaf_conn *conn, uint64_t id, uint32_t number);
void sheaf_conn_close_handle(
        struct sheaf_conn *conn, struct sheaf_handle *handle);
/* What the client holds now stays held until the pipe @fd (taken over, also
 * on failure) hangs up. */
SHEAF_MUST_CHECK int sheaf_conn_ghost(struct sheaf_conn *conn, int fd);
/* Finds a dataset by name for this client, or sends the error: NULL. */
struct sheaf_reg_dataset *sheaf_conn_dataset(
        struct sheaf_conn *conn, uint64_t id, const char *name, bool to_manage);

#endif
