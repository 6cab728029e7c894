/* SPDX-License-Identifier: Apache-2.0 */
/* A node in virtual time: jobs that read one dataset of equal samples through
 * one cache from one origin. Under the policy `shared` (or window, strict)
 * the slots are bound by the daemon's own code; the rivals are rebuilt from
 * what was published of them.
 *
 * A job uses the samples in the order of its slots, one each 1 / speed, and
 * binds some of them ahead; the origin is one queue; what is on its way is
 * shared by all who ask for it. One unit of time is one epoch of a job of
 * speed 1 that never waits; bytes are counted in datasets. One thread. */
#ifndef SHEAF_TOOLS_SIM_WORLD_H
#define SHEAF_TOOLS_SIM_WORLD_H

#include "daemon/epoch/order.h"

#define SIM_JOBS_MAX 32

enum sim_policy {
        SIM_SHARED = 0,
        SIM_WINDOW,
        SIM_STRICT,
        SIM_LRU,        /* the page cache */
        SIM_MINIO,      /* fills once, replaces nothing (CoorDL, VLDB'21) */
        SIM_QUIVER,     /* two chunks of the cache, rotated (FAST'20) */
        SIM_SENECA,     /* hits first, replaced after a use by each job
                         * (FAST'26) */
        SIM_HITS_FIRST, /* hits first, in stock and ring */
        SIM_POLICIES,
};
extern const char *const sim_policy_names[SIM_POLICIES];

struct sim_config {
        enum sim_policy policy;
        uint32_t samples;
        int jobs;
        double cache;       /* share of the samples that fit */
        double ring;        /* of the samples, at least */
        double origin_rate; /* datasets a unit of time; 0: no limit */
        double speed[SIM_JOBS_MAX], start[SIM_JOBS_MAX];
        double ends[SIM_JOBS_MAX]; /* when a job dies; 0: never */
        bool pace;
        uint32_t batch;  /* slots bound at once; 1: singly, without an end */
        uint32_t ahead;  /* slots bound before they are used */
        uint32_t window; /* of the order `window` */
        double jitter;   /* of the time a sample takes, each way */
        int epochs;      /* of the first job, in all */
        int warm;        /* of these, left out of the figures */
        uint64_t seed;
        /* Told of each epoch of the first job as it ends, and how much of
         * it the figures will count. @where: slot of each sample; @cached:
         * whether it was here when the epoch began. */
        void (*epoch_done)(void *arg, int epoch, const uint32_t *where,
                const uint8_t *cached);
        void *arg;
};

/* Jobs but the first start at random moments of the first unit of time. */
void sim_start_at_random(struct sim_config *config);

struct sim_result {
        double reads_per_time;  /* of all jobs at the origin, datasets a unit */
        double reads_per_epoch; /* the same, an epoch of the first job */
        double bound;           /* least reads_per_time that is possible */
        double hits;            /* of the first job's samples */
        double misses_tenth[10]; /* the first job's, by tenth of the epoch */
        double epoch_time[SIM_JOBS_MAX]; /* mean */
        double bind_ns; /* of real time, a slot, cache and origin included */
        double bytes_per_sample; /* memory of the orders at the end */
};

/* 0; -EINVAL: the configuration makes no sense; -ENOMEM; -EPROTO: a sample
 * came twice in an epoch (a defect of the policy). */
SHEAF_MUST_CHECK int sim_run(
        const struct sim_config *config, struct sim_result *ret_result);

#endif
