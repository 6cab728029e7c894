/* SPDX-License-Identifier: Apache-2.0 */
/* A group that is driven at random, and what must hold of it: written without
 * a look at how the group does it. */
#ifndef SHEAF_TESTS_PREP_MODEL_H
#define SHEAF_TESTS_PREP_MODEL_H

#include "daemon/prep/group.h"

#define MODEL_MEMBERS 6
#define MODEL_WORKERS 12
#define MODEL_BATCHES 4096 /* at most so many are begun */
#define MODEL_FILES   16384

struct model_member {
        bool here, begun, wants, stopped, unfit;
        struct sheaf_prep_member *member;
        uint32_t rank, world;
        uint64_t position, epoch;
        int64_t patience_ns;
        bool prepares, self_leased;
        uint64_t self_batch;
        int id;
};

struct model_worker {
        bool here, asks, stopped, leased, had;
        struct sheaf_prep_worker *worker;
        uint64_t batch;
        int64_t since_ns; /* of the lease */
        int id;           /* of its member */
        bool own;         /* private to its member */
        bool voided;      /* the batch was not needed meanwhile */
};

/* A file that was staged. */
struct model_file {
        uint64_t batch;
        int owner; /* number of the member that has it alone; -1: shared */
        bool live;
};

struct model {
        uint32_t seed, rng;
        uint32_t batches, ahead;
        int64_t now_ns, lease_ns;
        struct sheaf_prep_purse purse;
        bool pressed; /* others want its room */
        struct sheaf_prep_group *group;
        struct model_member m[MODEL_MEMBERS];
        struct model_worker w[MODEL_WORKERS];
        struct model_file file[MODEL_FILES];
        int files, first_live;          /* below it none is */
        uint32_t faults[MODEL_BATCHES]; /* of leases, by batch */
        int dropped[64];                /* in this step */
        int dropped_count;
        bool moved_back; /* in this step somebody began before the floor, or
                          * the floor itself was lost */
        uint64_t steps, given, told, detached;
        const char *wrong; /* the first thing that did not hold */
        char text[256];
};

void model_begin(struct model *model, uint32_t seed);
/* One step of chance, and what follows. */
void model_step(struct model *model);
/* From here on all go on: everybody comes to @end, or something is wrong. */
void model_finish(struct model *model);
void model_end(struct model *model);

#endif
