/* SPDX-License-Identifier: Apache-2.0 */
/* Members and workers of groups as processes, and a board in shared memory on
 * which they write what they got. In them nothing asserts: they end with a
 * status that says what went wrong. And what all tests of them do. */
#ifndef SHEAF_TESTS_FLOW_GROUPS_H
#define SHEAF_TESTS_FLOW_GROUPS_H

#include "tests/flow/harness.h"

#include <stdatomic.h>

#define GROUPS_MEMBERS 6
#define GROUPS_WORKERS 4 /* of a member */
#define GROUPS_BATCHES 256

struct groups_board {
        /* How often member m got batch b, and was told that it failed. */
        atomic_uint taken[GROUPS_MEMBERS][GROUPS_BATCHES];
        atomic_uint failed[GROUPS_MEMBERS][GROUPS_BATCHES];
        atomic_uint prepared[GROUPS_BATCHES];
        atomic_uint next[GROUPS_MEMBERS];      /* batch that it waits for */
        atomic_uint waits_for[GROUPS_MEMBERS]; /* state, as it was told last */
        atomic_uint holding;                   /* somebody keeps the batch */
        atomic_uint go_on;                     /* who waits on purpose may go */
};
extern struct groups_board *board;

/* Of a member, and of its workers. */
struct groups_spec {
        uid_t uid;
        const char *dataset, *group;
        uint32_t member; /* index on the board */
        uint32_t batches, epochs, first;
        uint32_t ahead, lease_ms, patience_ms, members;
        uint32_t rank, world;
        const char *transform; /* a trait */
        uint64_t bytes;        /* of a batch */
        bool prepares;         /* the member, if nobody else does */
        /* It comes to its batch @stop_at, and stays there until go_on; of a
         * worker: with the lease of it. UINT32_MAX: never. */
        uint32_t stop_at;
        uint32_t slow_ms; /* a batch: that it takes, or prepares */
        uint32_t fail_at; /* a worker reports that this fails */
        const char *schema;
};
/* With what most tests want. */
struct groups_spec groups_spec(uint32_t member);

void groups_init(void);
void groups_fini(void);
/* Both end with 0; 1: see stderr. */
pid_t groups_member(const struct groups_spec *spec);
pid_t groups_worker(const struct groups_spec *spec);
/* What they do, in a process that was forked; they end it. */
_Noreturn void groups_train(const struct groups_spec *spec);
_Noreturn void groups_work(const struct groups_spec *spec);

/* ---- of the test itself: these assert ---- */

#define GROUPS_LIMIT_S 60

struct groups_jobs {
        uint32_t count;
        pid_t member[GROUPS_MEMBERS], worker[GROUPS_MEMBERS];
};

/* @count members, 0 and up, that wait for one another, each with a worker. */
void groups_start(
        struct groups_jobs *jobs, struct groups_spec spec, uint32_t count);
/* All end with 0. */
void groups_end_well(const struct groups_jobs *jobs);
void groups_ends_well(pid_t pid);
/* So many stay where their specs say. */
void groups_wait_holding(uint32_t count);
/* Member @m took all of [first, end), once each, and no other. */
void groups_took(uint32_t m, uint32_t first, uint32_t end);
/* Nothing is left of any group. */
void groups_nothing_left(void);

/* Opens the group of @spec, of this process. */
int groups_open(struct sheaf_dataset *dataset, const struct groups_spec *spec,
        bool worker, struct sheaf_group **ret_group);
/* A sealed file of @batch; or with other seals. */
int groups_file(uint64_t batch, uint64_t bytes, int seals);
#define GROUPS_SEALS 15 /* all four */
/* The bytes are those of @batch. */
bool groups_check(int fd, uint64_t batch, uint64_t bytes);

#endif
