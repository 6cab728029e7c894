/* SPDX-License-Identifier: Apache-2.0 */
/* A job, and one message about it. */
#ifndef SHEAF_CLIENT_JOB_H
#define SHEAF_CLIENT_JOB_H

#include "client/session.h"
#include "proto/subset.h"

#define SHEAF_JOB_SLOTS_MAX 4096 /* of a message */
#define SHEAF_JOB_UNBOUND   UINT32_MAX

/* What was read of an epoch, as far as it was saved. */
struct sheaf_job_saved {
        uint64_t epoch;
        uint64_t run[2];
        uint32_t yielded;
        uint8_t bitmap[];
};

struct sheaf_job {
        struct sheaf_dataset *dataset;
        struct sheaf_job_options options;
        char *name;
        uint8_t *bitmap; /* NULL: all files */
        struct sheaf_digest bitmap_name;
        struct sheaf_subset *subset; /* the same */
        uint32_t samples;
        _Atomic int64_t not_before_ns;
        _Atomic(char *) warning;
        /* Of the last save; taken out while one uses it. */
        _Atomic(struct sheaf_job_saved *) saved;
};

enum sheaf_job_mode {
        SHEAF_JOB_BIND = 0,
        SHEAF_JOB_LOOK,
        SHEAF_JOB_REPLAY,
        SHEAF_JOB_FOR_STATE,
};

/* One message: slots, or a restore. */
struct sheaf_job_ask {
        enum sheaf_job_mode mode;
        uint64_t epoch;
        const uint32_t *slots;
        size_t n; /* at most SHEAF_JOB_SLOTS_MAX */
        double rate;
        int64_t deadline_ns;
        const struct sheaf_job_state *restore; /* or NULL */
        const uint8_t *make; /* bitmap to restore it from; or NULL */
        /* out */
        uint32_t *ret_samples; /* ordinals, or SHEAF_JOB_UNBOUND; or NULL */
        uint64_t run[2];
        uint32_t samples, ahead;
        bool known;
};

SHEAF_MUST_CHECK int sheaf_job_ask(
        struct sheaf_job *job, struct sheaf_job_ask *ask);

#endif
