/* SPDX-License-Identifier: Apache-2.0 */
/* What server.c (sockets, life of connections) and conn.c (messages) share. */
#ifndef SHEAF_DAEMON_SERVER_INTERNAL_H
#define SHEAF_DAEMON_SERVER_INTERNAL_H

#include "daemon/log.h"
#include "daemon/server.h"

struct sheaf_listener {
        LIST_ENTRY(sheaf_listener) link;
        struct sheaf_server *server;
        uv_poll_t poll;
        int sock;
        bool resting; /* no descriptor to be had: until the timer rings */
        uint64_t number, grant;
        char *path;       /* of the daemon's own; NULL: a grant's */
        struct stat made; /* unlinked only while it is still ours */
};

/* A walk over the connections, a little in each tick. */
struct sheaf_watch {
        uint64_t below;   /* numbers of those that are still to come */
        int64_t begun_ns; /* this round */
};

struct sheaf_server {
        struct sheaf_daemon *daemon;
        LIST_HEAD(, sheaf_listener) listeners;
        LIST_HEAD(, sheaf_conn) conns;
        TAILQ_HEAD(, sheaf_conn) mute; /* no Hello yet, the oldest first */
        /* They may ask for figures, for a moment; the oldest first. */
        TAILQ_HEAD(, sheaf_conn) brief;
        LIST_HEAD(, sheaf_fork_ghost) ghosts;
        struct sheaf_accounts accounts;
        uint64_t numbers;
        uv_timer_t timer; /* retries sends and accepts that lacked fds */
        uint32_t ticks;   /* of it */
        bool closing;
        int open_handles; /* while closing */
        int spare_fd;     /* given up to accept and refuse when at the limit */
        int brief_count;
        int fds_max, fds_kept; /* the last ones are for our own work */
        struct sheaf_server_stats stats;
        struct sheaf_log_once refused_once, bad_once, slow_once, crowded_once;
        struct sheaf_log_once pins_once, nonsense_once;
        struct sheaf_watch watch_all, watch_strict;
};

/* conn.c */
void sheaf_conn_readable(uv_poll_t *poll, int status, int events);
/* Sends what can be sent, goes on with long answers. */
void sheaf_conn_flush(struct sheaf_conn *conn);
/* The same each tick, and ends what waited for too long. */
void sheaf_conn_tick(struct sheaf_conn *conn);
void sheaf_conn_drop_queue(struct sheaf_conn *conn);

/* overpin.c: looks for clients that hold more than they were granted, and
 * disconnects those. Each tick. */
void sheaf_server_watch_pins(struct sheaf_server *server);

/* server.c */
void sheaf_conn_close(struct sheaf_conn *conn);

#endif
