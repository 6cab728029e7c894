/* SPDX-License-Identifier: Apache-2.0 */
/* What the world and its rivals share. */
#ifndef SHEAF_TOOLS_SIM_WORLD_IMPL_H
#define SHEAF_TOOLS_SIM_WORLD_IMPL_H

#include "proto/permutation.h"
#include "tools/sim/world.h"

enum sim_place {
        SIM_ABSENT = 0,
        SIM_STOCK,
        SIM_RING,
};

struct sim_job {
        int state; /* 0: not begun, 1: runs, 2: over */
        int epoch; /* begun so far */
        struct sheaf_job *job;
        struct sheaf_run *run;
        struct sheaf_permutation order; /* rivals' */
        uint32_t bound, used;           /* slots of this epoch */
        uint32_t oldest;                /* rivals: order before it is read */
        uint64_t *unread;
        uint32_t *where; /* slot of each sample; of the first job only */
        uint8_t *cached;
        double *ready; /* when a bound slot's sample is here; ring of ahead */
        double next, began;
};

struct sim_world {
        struct sim_config config;
        struct sim_job jobs[SIM_JOBS_MAX];
        struct sheaf_cohort *cohort;
        uint64_t random;
        double now, origin_free;
        uint64_t fetches;

        uint8_t *place;
        double *at; /* when a sample is, or will be, here */
        uint32_t stock_count, stock_most, capacity;
        uint32_t *ring; /* samples, oldest first, of ring_size */
        uint32_t ring_head, ring_count, ring_size;

        struct sim_rivals *rivals;
};

double sim_unit(struct sim_world *world);
/* A fetch that is queued now; returns when it is done. */
double sim_fetch(struct sim_world *world);
/* Fetches @sample into stock while there is room, else through the ring. */
void sim_bring(struct sim_world *world, uint32_t sample);

int sim_rivals_new(struct sim_world *world);
void sim_rivals_free(struct sim_world *world);
/* An epoch of @job begins. */
void sim_rivals_begin(struct sim_world *world, int job);
/* Chooses the next sample of @job, and when it is here. */
uint32_t sim_rivals_bind(struct sim_world *world, int job, double *ret_ready);

#endif
