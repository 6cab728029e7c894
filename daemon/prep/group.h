/* SPDX-License-Identifier: Apache-2.0 */
/* A group of jobs that prepare each batch once (docs/design/prep.md): who
 * waits for which batch, who prepares it, what may go.
 *
 *             lease                  offer
 *     FREE ----------> LEASED ----------------> STAGED   the file is kept
 *      ^  <---------- time, death                  |
 *      |               |  the third, an error      |  all who need it took
 *      |               +----------> FAILED         |  it, or are gone
 *      +--------------------------------+----------+
 *
 * Pure: no I/O and no clock; times are handed in, in nanoseconds that only
 * grow. What happens is told to the group by the functions below; what is to
 * be answered then is asked of sheaf_prep_next(). One thread. */
#ifndef SHEAF_DAEMON_PREP_GROUP_H
#define SHEAF_DAEMON_PREP_GROUP_H

#include "proto/base.h"

#define SHEAF_PREP_MEMBERS_MAX 256
#define SHEAF_PREP_WORKERS_MAX 1024
#define SHEAF_PREP_AHEAD_MAX   1024
#define SHEAF_PREP_OWN_AHEAD   64 /* private batches of a member */
#define SHEAF_PREP_BATCH_MAX   (UINT64_C(1) << 62)
#define SHEAF_PREP_SCHEMA_MAX  256
#define SHEAF_PREP_WHY_MAX     16384 /* bytes of a text */
#define SHEAF_PREP_ENDS_MAX    3
/* What one job could not prepare waits so long for another's worker. */
#define SHEAF_PREP_SHUN_NS (5 * SHEAF_NS_PER_SEC)

struct sheaf_prep_group;
struct sheaf_prep_member;
struct sheaf_prep_worker;

/* As enum sheaf_group_state of libsheaf. */
enum sheaf_prep_state {
        SHEAF_PREP_TAKEN = 0,
        SHEAF_PREP_PREPARE,
        SHEAF_PREP_PREPARING,
        SHEAF_PREP_AHEAD,
        SHEAF_PREP_GATHERING,
        SHEAF_PREP_FULL,
        SHEAF_PREP_FAILED,
        SHEAF_PREP_QUEUED,
};

/* What all groups of a user may hold, and do. */
struct sheaf_prep_purse {
        uint64_t bytes_max, single_max; /* together; of one batch */
        uint32_t files_max;
        bool shut; /* nothing is leased at the moment */
        /* Of staged batches, and as much as leases are expected to bring. */
        uint64_t bytes;
        uint32_t files;
};

struct sheaf_prep_config {
        uint32_t batches; /* of an epoch, 1 or more */
        uint32_t ahead;   /* 1 .. SHEAF_PREP_AHEAD_MAX */
        int64_t lease_ns;
        struct sheaf_prep_purse *purse;
        /* A staged file is not needed any more: @fd is the owner's. */
        void (*drop)(void *arg, int fd);
        void *arg;
};

SHEAF_MUST_CHECK int sheaf_prep_group_new(
        const struct sheaf_prep_config *config,
        struct sheaf_prep_group **ret_group);
/* With all members and workers. */
void sheaf_prep_group_free(struct sheaf_prep_group *group);

/* ---- members ---- */

struct sheaf_prep_member_config {
        uint8_t id[16];
        uint32_t rank, world; /* rank < world <= batches */
        int64_t patience_ns;
        uint32_t gather; /* members that the first batch waits for */
        bool gathered;   /* they were there already */
        void *arg;       /* of sheaf_prep_event */
};

/* -EBUSY: too many; -ENOMEM. */
SHEAF_MUST_CHECK int sheaf_prep_join(struct sheaf_prep_group *group,
        const struct sheaf_prep_member_config *config, int64_t now_ns,
        struct sheaf_prep_member **ret_member);
/* @for_good: it said so; else its workers may go on for a while, until it
 * joins again. */
void sheaf_prep_leave(
        struct sheaf_prep_member *member, bool for_good, int64_t now_ns);
/* It goes on at @batch, or the next one of its rank. -ERANGE: over
 * SHEAF_PREP_BATCH_MAX. */
SHEAF_MUST_CHECK int sheaf_prep_begin(
        struct sheaf_prep_member *member, uint64_t batch, int64_t now_ns);
/* It waits for @batch, and goes on there: -ERANGE: it is not of its rank, or
 * over SHEAF_PREP_BATCH_MAX. */
SHEAF_MUST_CHECK int sheaf_prep_want(struct sheaf_prep_member *member,
        uint64_t batch, bool may_prepare, int64_t now_ns);
/* It waits no more: for what it waited. */
enum sheaf_prep_state sheaf_prep_unwant(
        struct sheaf_prep_member *member, int64_t now_ns);
/* After the event TAKEN or FAILED: it has it. */
void sheaf_prep_took(struct sheaf_prep_member *member, int64_t now_ns);

/* ---- workers ---- */

/* Of the member @id, which may be elsewhere at the moment. -EBUSY. */
SHEAF_MUST_CHECK int sheaf_prep_work(struct sheaf_prep_group *group,
        const uint8_t id[16], void *arg, int64_t now_ns,
        struct sheaf_prep_worker **ret_worker);
/* @for_good: it said so; a lease is given on and is nobody's fault. */
void sheaf_prep_retire(
        struct sheaf_prep_worker *worker, bool for_good, int64_t now_ns);
/* It waits for a lease: one that it has still is told again. */
void sheaf_prep_ask(struct sheaf_prep_worker *worker);
void sheaf_prep_unask(struct sheaf_prep_worker *worker);
/* The member itself, as a worker of what it was told to prepare. */
struct sheaf_prep_worker *sheaf_prep_self(struct sheaf_prep_member *member);

/* A batch that was leased to it, perhaps in the past. 0: @fd is the group's;
 * -ESTALE: another was first, or nobody needs it; -EEXIST: @schema is not the
 * group's; -EFBIG: then it has failed. */
SHEAF_MUST_CHECK int sheaf_prep_offer(struct sheaf_prep_worker *worker,
        uint64_t batch, int fd, uint64_t bytes, const char *schema,
        int64_t now_ns);
/* It cannot prepare it: @why. -ESTALE as above. */
SHEAF_MUST_CHECK int sheaf_prep_fail(struct sheaf_prep_worker *worker,
        uint64_t batch, const char *why, int64_t now_ns);
/* What it offered was no batch: the lease ends as if by its death. */
SHEAF_MUST_CHECK int sheaf_prep_spoil(struct sheaf_prep_worker *worker,
        uint64_t batch, const char *why, int64_t now_ns);

/* ---- what follows ---- */

enum sheaf_prep_kind {
        SHEAF_PREP_NONE = 0,
        SHEAF_PREP_GIVE,  /* a member: the batch; then sheaf_prep_took() */
        SHEAF_PREP_TELL,  /* a member: it failed; likewise */
        SHEAF_PREP_DO,    /* a member: prepare it yourself */
        SHEAF_PREP_LEASE, /* a worker */
        SHEAF_PREP_AGAIN, /* a worker: ask again, so that you are seen alive */
        SHEAF_PREP_GONE,  /* a worker: its member is gone */
        SHEAF_PREP_UNFIT, /* a worker: its schema is not the group's */
};

struct sheaf_prep_event {
        enum sheaf_prep_kind kind;
        void *arg; /* of the member or worker */
        struct sheaf_prep_member *member;
        struct sheaf_prep_worker *worker;
        uint64_t batch;
        int fd;          /* of GIVE; borrowed until sheaf_prep_took() */
        const char *why; /* of TELL and UNFIT; likewise */
};

/* The next one; after each but GIVE and TELL it waits no more. */
void sheaf_prep_next(struct sheaf_prep_group *group, int64_t now_ns,
        struct sheaf_prep_event *ret_event);
/* Ends leases whose time is over, and detaches; to be followed by
 * sheaf_prep_next(). Returns when to call it again, INT64_MAX: no need unless
 * something is told to the group. */
int64_t sheaf_prep_tick(struct sheaf_prep_group *group, int64_t now_ns);
/* Whether something was not leased for lack of room in the purse: to be
 * followed by sheaf_prep_next() when there is more. */
bool sheaf_prep_held(const struct sheaf_prep_group *group);
/* Gives up the staged batch that is needed last, as if it had not been
 * prepared yet; to be followed by sheaf_prep_next(). False: there is none but
 * such as are about to be given. */
SHEAF_MUST_CHECK bool sheaf_prep_shed(struct sheaf_prep_group *group);

/* ---- figures ---- */

struct sheaf_prep_group_stats {
        uint32_t members, workers, staged; /* now */
        uint64_t staged_bytes;
        bool begun; /* floor is valid */
        uint64_t floor;
        bool gathered;
        uint32_t gather; /* members that the first batch waits for */
        /* Since it began. */
        uint64_t prepared, taken, redone, own, late, failed, detached, shed;
};
void sheaf_prep_group_stats(const struct sheaf_prep_group *group,
        struct sheaf_prep_group_stats *ret_stats);

struct sheaf_prep_member_stats {
        void *arg;
        uint32_t rank, world, workers;
        bool begun, detached, waits;
        uint64_t position;
        enum sheaf_prep_state state; /* of what it waits for */
};
void sheaf_prep_member_stats(const struct sheaf_prep_member *member,
        struct sheaf_prep_member_stats *ret_stats);
struct sheaf_prep_member *sheaf_prep_first(struct sheaf_prep_group *group);
struct sheaf_prep_member *sheaf_prep_after(struct sheaf_prep_member *member);
/* The member of @id, or NULL. */
struct sheaf_prep_member *sheaf_prep_find(
        struct sheaf_prep_group *group, const uint8_t id[16]);
void *sheaf_prep_member_arg(const struct sheaf_prep_member *member);

#endif
