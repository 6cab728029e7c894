/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a group share:
 *
 *   group.c    members: positions, the floor, who is detached
 *   window.c   batches that are near: who needs them, what there is of them
 *   lease.c    workers: leases, offers, failures
 *   next.c     what is to be answered */
#ifndef SHEAF_DAEMON_PREP_IMPL_H
#define SHEAF_DAEMON_PREP_IMPL_H

#include "daemon/prep/group.h"

#include <sys/queue.h>

/* A worker whose member is gone without a word goes on for so long. */
#define SHEAF_PREP_ORPHAN_NS (10 * SHEAF_NS_PER_SEC)
/* Between two questions for a batch, a member counts as waiting. */
#define SHEAF_PREP_ASKING_NS SHEAF_NS_PER_SEC

enum sheaf_prep_batch_state {
        SHEAF_BATCH_FREE = 0,
        SHEAF_BATCH_LEASED,
        SHEAF_BATCH_STAGED,
        SHEAF_BATCH_FAILED,
};

struct sheaf_prep_entry {
        int fd;                /* STAGED */
        uint8_t ends, late;    /* leases that ended in vain; by time */
        bool reported;         /* a worker could not; @why */
        uint64_t bytes;        /* STAGED; LEASED: as much is expected */
        uint64_t shunned;      /* number of the member whose worker that was */
        int64_t shun_until_ns; /* others are asked first until then */
        struct sheaf_prep_worker *worker; /* LEASED */
        char *why;                        /* owned */
};

/* Batches [lo, lo + cap), batch b at index b % cap. */
struct sheaf_prep_window {
        bool live;
        uint32_t cap, staged;
        uint64_t lo, hint; /* none below the hint may be leased */
        uint8_t *state;    /* enum sheaf_prep_batch_state */
        uint16_t *need;    /* attached members that still need it */
        struct sheaf_prep_entry *entries;
        struct sheaf_prep_member *owner; /* of private batches, else NULL */
};

struct sheaf_prep_worker {
        LIST_ENTRY(sheaf_prep_worker) link;
        TAILQ_ENTRY(sheaf_prep_worker) wait_link; /* while it asks */
        struct sheaf_prep_group *group;
        struct sheaf_prep_member *member; /* NULL: elsewhere */
        uint8_t id[16];
        void *arg;
        bool asks, kicked, gone;
        /* The lease that it has, or had: of its member's private batches? */
        bool had, holds, own;
        uint64_t batch;
        int64_t since_ns, until_ns, orphan_ns;
};

struct sheaf_prep_member {
        LIST_ENTRY(sheaf_prep_member) link;
        struct sheaf_prep_group *group;
        struct sheaf_prep_member_config config;
        uint64_t number;
        bool begun, attached, wants, may_prepare;
        uint64_t position, epoch; /* valid once begun */
        int64_t active_ns;        /* took, or began */
        int64_t asking_until_ns;
        uint32_t workers;
        char *unfit; /* owned; its worker's schema differs */
        struct sheaf_prep_window own;
        struct sheaf_prep_worker self;
};

struct sheaf_prep_group {
        struct sheaf_prep_config config;
        LIST_HEAD(, sheaf_prep_member) members;
        LIST_HEAD(, sheaf_prep_worker) workers;
        TAILQ_HEAD(, sheaf_prep_worker) asking;
        struct sheaf_prep_window shared; /* lo is the floor */
        uint64_t numbers, hi;            /* nothing is leased from hi on */
        int64_t longest_ns;  /* that a batch took to prepare, of late */
        int64_t lag_due_ns;  /* when somebody is to be detached */
        int64_t shun_due_ns; /* when a batch is shunned no more */
        uint64_t largest_bytes, why_bytes;
        bool gathered, dirty, held, freeing;
        char schema[SHEAF_PREP_SCHEMA_MAX + 1];
        bool has_schema;
        struct sheaf_prep_group_stats stats;
};

/* ---- window.c ---- */

/* Memory for @cap batches; freed by clear and free. */
SHEAF_MUST_CHECK int sheaf_prep_window_new(
        struct sheaf_prep_window *window, uint32_t cap);
void sheaf_prep_window_free(
        struct sheaf_prep_group *group, struct sheaf_prep_window *window);
/* All that is there goes. */
void sheaf_prep_window_clear(
        struct sheaf_prep_group *group, struct sheaf_prep_window *window);
/* Moves it: what falls out goes. */
void sheaf_prep_window_slide(struct sheaf_prep_group *group,
        struct sheaf_prep_window *window, uint64_t lo);
bool sheaf_prep_window_has(
        const struct sheaf_prep_window *window, uint64_t batch);
static inline uint32_t sheaf_prep_at(
        const struct sheaf_prep_window *window, uint64_t batch)
{
        return (uint32_t)(batch % window->cap);
}
/* Whether somebody for whom it is still needs @batch, which it has. */
bool sheaf_prep_needed(const struct sheaf_prep_window *window, uint64_t batch);
/* The batch at @batch, which it has, is not needed any more. */
void sheaf_prep_entry_clear(struct sheaf_prep_group *group,
        struct sheaf_prep_window *window, uint64_t batch);
/* The member needs, or no more, those of [lo, hi) from its position on. */
void sheaf_prep_need_add(struct sheaf_prep_group *group,
        const struct sheaf_prep_member *member, uint64_t lo, uint64_t hi);
void sheaf_prep_need_sub(struct sheaf_prep_group *group,
        const struct sheaf_prep_member *member, uint64_t lo, uint64_t hi);
/* The lowest staged one; UINT64_MAX. */
uint64_t sheaf_prep_first_staged(const struct sheaf_prep_window *window);
/* @batch is FREE again, or needed again. */
static inline void sheaf_prep_hint(
        struct sheaf_prep_window *window, uint64_t batch)
{
        window->hint = SHEAF_MIN(window->hint, batch);
}

/* ---- group.c ---- */

/* The lowest batch from @batch on that is of the member's rank. */
uint64_t sheaf_prep_next_of(
        const struct sheaf_prep_member *member, uint64_t batch);
/* Where its batches are. */
struct sheaf_prep_window *sheaf_prep_window_of(
        struct sheaf_prep_member *member);
/* After anything was told: gathers, detaches, says what may be leased. */
void sheaf_prep_settle(struct sheaf_prep_group *group, int64_t now_ns);

/* ---- lease.c ---- */

bool sheaf_prep_has_room(const struct sheaf_prep_group *group);
/* Whether @batch, for which somebody waits, may be leased: there is room, or
 * nothing is staged before it. */
bool sheaf_prep_fits(const struct sheaf_prep_group *group, uint64_t batch,
        uint64_t first_staged);
/* What the search for one worker says of the next one: there is no shared
 * batch for anybody, or for those of that member (0: of none). Zero it before
 * the first. */
struct sheaf_prep_dry {
        bool all, any;
        uint64_t member;
};
/* Finds a batch for the worker and leases it. */
bool sheaf_prep_lease(struct sheaf_prep_worker *worker, int64_t now_ns,
        struct sheaf_prep_dry *dry);
/* Leases the one that the member waits for to itself. */
bool sheaf_prep_lease_self(struct sheaf_prep_member *member, int64_t now_ns);
enum sheaf_prep_end {
        SHEAF_PREP_RETURNED,
        SHEAF_PREP_TIMED_OUT,
        SHEAF_PREP_DIED,
        SHEAF_PREP_SPOILED
};
/* The lease that the worker holds, if any. @why: of SPOILED. */
void sheaf_prep_lease_end(struct sheaf_prep_worker *worker,
        enum sheaf_prep_end end, const char *why);
/* The time of leases. Returns when the next one ends. */
int64_t sheaf_prep_expire(struct sheaf_prep_group *group, int64_t now_ns);
/* The member is gone. */
void sheaf_prep_orphan(struct sheaf_prep_group *group,
        struct sheaf_prep_member *member, bool for_good, int64_t now_ns);

#endif
