/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of an order share. */
#ifndef SHEAF_DAEMON_EPOCH_ORDER_IMPL_H
#define SHEAF_DAEMON_EPOCH_ORDER_IMPL_H

#include "daemon/epoch/order.h"
#include "daemon/epoch/queue.h"
#include "daemon/epoch/replaced.h"
#include "proto/permutation.h"

#define SHEAF_BINS   8
#define SHEAF_STRATA (2 * SHEAF_BINS)

/* A sample's byte in a job: its stratum in the newest run (bits 0-3) and the
 * bin of its slot there (bits 4-6), which the next run's stratum is made of. */
#define SHEAF_STRATUM_MASK 15
#define SHEAF_BIN_SHIFT    4

struct sheaf_run {
        struct sheaf_job *job;
        struct sheaf_run *older;
        uint64_t epoch;
        uint64_t used; /* the greatest was used last */
        uint32_t high; /* the mark: slots from here on were never bound */
        uint32_t restored_high; /* the mark when it was restored */
        bool touched; /* a slot was bound since it began or was restored */
        bool named;   /* its job has asked for it; false: begun by a mate */
        struct sheaf_permutation targets;
        uint64_t family; /* runs with one permutation share it */
        /* NULL once all is bound: */
        uint64_t *unread; /* bit a sample */
        uint64_t *bound;  /* bit a slot */
        uint32_t bound_count;
        uint8_t *stratum;      /* shared: the job's bytes, until a newer run */
        uint32_t *block_first; /* window: where unread ones may begin */
        struct sheaf_replaced replaced;
        struct sheaf_queue offers[SHEAF_STRATA]; /* brought by others */
        struct sheaf_queue owed[SHEAF_STRATA];   /* passed over */
};

struct sheaf_job {
        struct sheaf_cohort *cohort;
        struct sheaf_job *next;
        struct sheaf_job_config config;
        struct sheaf_run *runs; /* newest first */
        uint64_t ended;         /* epochs below are over */
        uint64_t newest_family; /* of all its runs */
        uint8_t *bytes;         /* one a sample */
        double rate;
        int64_t last_ns;     /* of the last bind; 0: none */
        double interval_ns;  /* mean between binds, a slot */
        uint32_t since_last; /* slots bound at last_ns, but for the first */
        uint32_t burst;      /* slots bound at once before that */
};

struct sheaf_cohort {
        struct sheaf_cohort_config config;
        struct sheaf_job *jobs;
        uint64_t random;
        uint64_t families;
        uint64_t uses; /* of runs, counted */
        double origin_rate, cached;
        uint64_t *surveyed; /* bit a sample: it is here; or NULL */
        uint32_t survey_count;
};

static inline bool sheaf_bit(const uint64_t *bits, uint32_t i)
{
        return bits[i / 64] >> (i % 64) & 1;
}

static inline void sheaf_bit_set(uint64_t *bits, uint32_t i)
{
        bits[i / 64] |= UINT64_C(1) << (i % 64);
}

static inline void sheaf_bit_clear(uint64_t *bits, uint32_t i)
{
        bits[i / 64] &= ~(UINT64_C(1) << (i % 64));
}

static inline size_t sheaf_bits_bytes(uint32_t n)
{
        return ((size_t)n + 63) / 64 * 8;
}

/* Whether two jobs of a cohort can run in step. */
bool sheaf_mates(const struct sheaf_job *a, const struct sheaf_job *b);
/* Its last slot is bound: keeps only what answers for its slots. */
void sheaf_run_complete(struct sheaf_run *run);
/* A run without job and targets; NULL: no memory. */
struct sheaf_run *sheaf_run_new(
        const struct sheaf_job_config *config, uint32_t n, uint64_t epoch);
/* Tells pacing of a bind. */
void sheaf_job_bound(struct sheaf_job *job, int64_t now_ns);

#endif
