/* SPDX-License-Identifier: Apache-2.0 */
/* All groups: whose they are, the files of their batches, bytes and time.
 *
 *   group   (principal, name); lives while somebody takes part in it
 *   seat    one membership, of a member or a worker; of a connection, with
 *           which it ends
 *   wait    a request of a seat that is answered later
 *
 * Time is the monotonic clock but for moments in which the
 * daemon did not run: nobody is late because of those. Threads: loop thread. */
#ifndef SHEAF_DAEMON_PREP_PREP_H
#define SHEAF_DAEMON_PREP_PREP_H

#include "daemon/prep/group.h"
#include "daemon/server.h"

#define SHEAF_PREP_NAME_MAX    128
#define SHEAF_PREP_TRAITS_MAX  32
#define SHEAF_PREP_TRAIT_NAME  64  /* bytes */
#define SHEAF_PREP_TRAIT_VALUE 256 /* bytes */
#define SHEAF_PREP_GROUPS_MAX  64  /* of a user */
#define SHEAF_CONN_SEATS_MAX   64
#define SHEAF_PREP_TEXT_MAX    1024

struct sheaf_prep;
struct sheaf_seat;

SHEAF_MUST_CHECK int sheaf_prep_new(
        struct sheaf_daemon *daemon, struct sheaf_prep **ret_prep);
/* No connection is there any more. */
void sheaf_prep_free(struct sheaf_prep *prep);

struct sheaf_seat_spec {
        const char *name;
        Sheaf__Trait **traits;
        size_t trait_count;
        bool worker;
        uint32_t batches, ahead, lease_ms;
        struct sheaf_prep_member_config member; /* but arg */
        bool begun;
        uint64_t position;
};

/* @ret_why, of SHEAF_PREP_TEXT_MAX bytes, is set on failure: -EEXIST: traits
 * differ; -EBUSY; -EOPNOTSUPP: there is no room at all; -ERANGE; -ENOMEM. */
SHEAF_MUST_CHECK int sheaf_seat_new(struct sheaf_conn *conn,
        const struct sheaf_seat_spec *spec, struct sheaf_seat **ret_seat,
        char *ret_why);
/* The floor of its group as it was before; false: nobody has begun. */
bool sheaf_seat_floor(const struct sheaf_seat *seat, uint64_t *ret_floor);
/* Of this connection; NULL. */
struct sheaf_seat *sheaf_seat_find(struct sheaf_conn *conn, uint64_t number);
uint64_t sheaf_seat_number(const struct sheaf_seat *seat);
void sheaf_seat_leave(struct sheaf_seat *seat, bool for_good);
/* The connection ends; its calls were abandoned. */
void sheaf_seats_leave(struct sheaf_conn *conn);

/* The member; NULL: it is a worker, or its group was begun anew by others. */
struct sheaf_prep_member *sheaf_seat_member(const struct sheaf_seat *seat);
/* The worker, or the member as its own; NULL likewise. */
struct sheaf_prep_worker *sheaf_seat_worker(const struct sheaf_seat *seat);
struct sheaf_prep_group *sheaf_seat_group(const struct sheaf_seat *seat);
/* In the groups' time. */
int64_t sheaf_prep_now_ns(struct sheaf_prep *prep);

/* Waits for a batch (member) or a lease (worker): @answer is called once, from
 * inside or later, unless it is cancelled. -EBUSY: the seat waits already. */
struct sheaf_prep_answer {
        enum sheaf_prep_kind kind; /* NONE: its time is over */
        enum sheaf_prep_state state;
        bool gathered;
        uint64_t batch;
        int fd;          /* of GIVE; not to be kept */
        const char *why; /* of TELL and UNFIT */
        int rc;          /* beside kind NONE: -errno of what failed */
};
struct sheaf_prep_wait {
        struct sheaf_seat *seat;
        int64_t deadline_ns; /* CLOCK_MONOTONIC */
        void (*answer)(struct sheaf_prep_wait *wait,
                const struct sheaf_prep_answer *answer);
        TAILQ_ENTRY(sheaf_prep_wait) link; /* private */
};
SHEAF_MUST_CHECK int sheaf_seat_take(struct sheaf_seat *seat,
        struct sheaf_prep_wait *wait, uint64_t batch, bool may_prepare);
SHEAF_MUST_CHECK int sheaf_seat_lease(
        struct sheaf_seat *seat, struct sheaf_prep_wait *wait);
void sheaf_seat_cancel(struct sheaf_prep_wait *wait);

/* As sheaf_prep_offer(), and -EINVAL: it is no sealed memory file. *@fd may be
 * taken over, and is -1 then; -1: it was none that can be one. @ret_why is set,
 * of SHEAF_PREP_TEXT_MAX bytes. */
SHEAF_MUST_CHECK int sheaf_seat_offer(struct sheaf_seat *seat, uint64_t batch,
        int *fd, const char *schema, char *ret_why);
SHEAF_MUST_CHECK int sheaf_seat_fail(
        struct sheaf_seat *seat, uint64_t batch, const char *why);
/* After anything else that was told to its group. */
void sheaf_seat_told(struct sheaf_seat *seat);

/* ---- figures ---- */

struct sheaf_prep_stats {
        uint64_t groups, members, workers, staged, staged_bytes; /* now */
        uint64_t prepared, taken, redone, own, late, failed, detached, refused;
        uint64_t shed;
        uint64_t bytes_max;
        bool held; /* for seconds, members wait for want of room */
};
void sheaf_prep_stats(
        const struct sheaf_prep *prep, struct sheaf_prep_stats *ret_stats);

/* A group, to be shown. */
struct sheaf_prep_shown {
        uint64_t number; /* of no other group of this daemon */
        const char *name;
        uid_t uid;
        uint64_t grant;
        uint32_t batches, ahead;
        struct sheaf_prep_group *group;
};
/* Calls @each for those that @conn may see and whose name is @name, or "",
 * from the newest one below number @below on, as long as it returns true.
 * False: it did not. */
bool sheaf_prep_each(struct sheaf_conn *conn, const char *name, uint64_t below,
        bool (*each)(void *arg, const struct sheaf_prep_shown *shown),
        void *arg);
bool sheaf_seat_shown(
        const struct sheaf_seat *seat, struct sheaf_prep_shown *ret_shown);
/* The process, as it calls itself. */
uint32_t sheaf_seat_pid(const struct sheaf_seat *seat);

#endif
