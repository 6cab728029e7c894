/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the service share:
 *
 *   prep.c    groups; what they answer; time; files
 *   shares.c  whose they are; what each may hold
 *   seats.c   memberships and what they ask */
#ifndef SHEAF_DAEMON_PREP_INTERNAL_H
#define SHEAF_DAEMON_PREP_INTERNAL_H

#include "daemon/prep/prep.h"

#include "daemon/clock.h"
#include "daemon/closer.h"

struct sheaf_prep_trait {
        char name[SHEAF_PREP_TRAIT_NAME + 1];
        char value[SHEAF_PREP_TRAIT_VALUE + 1];
};

struct sheaf_prep_staged {
        uint64_t bytes, files;
};

/* A user who has groups, also through grants that he made. */
struct sheaf_prep_owner {
        LIST_ENTRY(sheaf_prep_owner) link;
        uid_t uid;
        uint32_t groups;
        struct sheaf_prep_purse purse;
        struct sheaf_prep_staged staged; /* as it was counted last */
        bool more;                       /* there is more room than there was */
};

struct sheaf_prep_room {
        LIST_ENTRY(sheaf_prep_room) link;
        TAILQ_ENTRY(sheaf_prep_room) dirty_link;
        struct sheaf_prep *prep;
        struct sheaf_prep_owner *owner;
        uint64_t number;                 /* newer ones have larger ones */
        struct sheaf_prep_staged staged; /* likewise */
        uid_t uid;
        uint64_t grant; /* then the uid is not looked at */
        char name[SHEAF_PREP_NAME_MAX + 1];
        struct sheaf_prep_config config;
        struct sheaf_prep_trait *traits; /* owned */
        size_t trait_count;
        struct sheaf_prep_group *group;
        LIST_HEAD(, sheaf_seat) seats;
        bool dirty;
        int64_t due_ns;     /* of the groups' time */
        int64_t starved_ns; /* members waited for want of room, of late */
};

struct sheaf_seat {
        LIST_ENTRY(sheaf_seat) link;      /* of the connection */
        LIST_ENTRY(sheaf_seat) room_link; /* while it has a room */
        struct sheaf_conn *conn;
        uint64_t number;
        struct sheaf_prep_room *room; /* NULL: dismissed */
        struct sheaf_prep_member *member;
        struct sheaf_prep_worker *worker;
        struct sheaf_prep_wait *wait;
        bool others;
        uint64_t floor;
};

struct sheaf_prep {
        struct sheaf_daemon *daemon;
        LIST_HEAD(, sheaf_prep_owner) owners;
        LIST_HEAD(, sheaf_prep_room) rooms; /* the newest first */
        TAILQ_HEAD(, sheaf_prep_room) dirty;
        TAILQ_HEAD(, sheaf_prep_wait) waits;
        uint32_t owner_count, files_max;
        uint64_t numbers, rooms_made;
        uv_timer_t timer;
        uv_idle_t idle;
        int open_handles;
        bool ticking, idling;
        bool grown; /* what is staged may be more than is allowed */
        int64_t time_ns, seen_ns; /* the groups' time; when it was looked at */
        int64_t wait_due_ns;      /* no wait is over before */
        struct sheaf_prep_stats past; /* of groups that ended */
};

/* Who pays for what @conn does, made if need be; NULL: no memory. */
struct sheaf_prep_owner *sheaf_prep_owner_get(const struct sheaf_conn *conn);
/* Unless he has groups. */
void sheaf_prep_owner_forget(
        struct sheaf_prep *prep, struct sheaf_prep_owner *owner);
/* Takes one batch away where more is staged than is allowed: its room, which
 * was told so; NULL: there is none, or not at the moment. */
struct sheaf_prep_room *sheaf_prep_trim(struct sheaf_prep *prep);

/* The room's group was told something. */
void sheaf_prep_room_told(struct sheaf_prep_room *room);
/* The room of that name of @conn's principal; NULL. */
struct sheaf_prep_room *sheaf_prep_room_find(
        struct sheaf_conn *conn, const char *name);
SHEAF_MUST_CHECK int sheaf_prep_room_new(struct sheaf_conn *conn,
        const struct sheaf_seat_spec *spec, struct sheaf_prep_room **ret_room,
        char *ret_why);
/* Ends it when nobody takes part. */
void sheaf_prep_room_leave(struct sheaf_prep_room *room);
/* @event was told by the group, or the wait of @seat is over. */
void sheaf_seat_event(
        struct sheaf_seat *seat, const struct sheaf_prep_event *event);
void sheaf_seat_late(struct sheaf_seat *seat);

#endif
