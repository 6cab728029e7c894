/* SPDX-License-Identifier: Apache-2.0 */
/* Which sample a slot is bound to.
 *
 * Jobs that read the same samples (one version, one subset) are a *cohort*;
 * each epoch of a job is a *run* of as many *slots* as there are samples. A
 * run's permutation gives each slot its *target*; the order says who may take
 * the target's place:
 *
 *   strict   nobody
 *   window   any unread sample whose target slot lies in the same block of
 *            @window slots, what is here first; so each is displaced by less
 *            than @window slots
 *   shared   any unread sample of the target's *stratum*: (here or not when
 *            the run began, eighth of the epoch in which the job read it last
 *            time, the last if it did not), and only if it is here and the
 *            target is not
 *
 * Why `shared` is neutral: the sequence of strata is that of a uniform
 * permutation, whoever reads beside it, so no statistic of residency and last
 * position can tell it from one; only which of a stratum's samples comes is
 * up to the cache. What one job fetches is offered to all that need it. Jobs
 * of equal speed that begin together share one permutation, and are drawn
 * together where pacing is on: then all of them cost the origin what one does
 * (docs/design/orders.md).
 *
 * Pure: no I/O, no clock; the daemon and `sheaf sim` run the same code.
 * Threads: one at a time for a cohort and all that belongs to it. */
#ifndef SHEAF_DAEMON_EPOCH_ORDER_H
#define SHEAF_DAEMON_EPOCH_ORDER_H

#include "proto/base.h"

#define SHEAF_SAMPLES_MAX  (UINT32_C(1) << 31)
#define SHEAF_RUNS_PER_JOB 3 /* in memory */
/* Slots by which the mark of a run of @samples goes up (struct sheaf_bound): so
 * often a bind without replacements is journalled; and so many slots may look
 * bound in a restored run though nobody asked for them. */
static inline uint32_t sheaf_mark_step(uint32_t samples)
{
        return SHEAF_MAX(SHEAF_MIN(samples / 32, UINT32_C(1024)), UINT32_C(32));
}

enum sheaf_order {
        SHEAF_ORDER_SHARED = 0,
        SHEAF_ORDER_WINDOW,
        SHEAF_ORDER_STRICT,
};

struct sheaf_cohort;
struct sheaf_job;
struct sheaf_run;

struct sheaf_cohort_config {
        uint32_t samples; /* 1 .. SHEAF_SAMPLES_MAX */
        /* Whether @sample costs the origin nothing more: it is cached or on
         * its way. Called inside bind and begin. */
        bool (*here)(void *arg, uint32_t sample);
        void *arg;
        uint64_t seed; /* of permutations that the cohort chooses */
};

SHEAF_MUST_CHECK int sheaf_cohort_new(const struct sheaf_cohort_config *config,
        struct sheaf_cohort **ret_cohort);
/* Its jobs must be gone. */
void sheaf_cohort_free(struct sheaf_cohort *cohort);

/* What the origin gives (samples a second; 0: more than anybody asks for) and
 * which share of the samples is cached, 0 .. 1. Jobs that outrun
 * @origin_rate / (1 - @cached) are mates whatever their own speeds. */
void sheaf_cohort_set_supply(
        struct sheaf_cohort *cohort, double origin_rate, double cached);
/* How many samples the ring should hold: of each permutation that is being
 * read the look-ahead, or the gap between the first and the last of its jobs.
 * One that has bound nothing for ten seconds, and for many of its intervals,
 * does not count. */
uint64_t sheaf_cohort_flow(const struct sheaf_cohort *cohort, int64_t now_ns);

/* Looks at @count samples more, whether they are here, for runs that are begun
 * after it: so a run of many samples begins in slices. 1: at all of them;
 * 0: there are more; -ENOMEM. Without it a run's beginning looks itself. */
SHEAF_MUST_CHECK int sheaf_cohort_survey(
        struct sheaf_cohort *cohort, uint32_t count);
bool sheaf_cohort_surveyed(const struct sheaf_cohort *cohort);
/* What was seen counts no more. */
void sheaf_cohort_survey_end(struct sheaf_cohort *cohort);

struct sheaf_job_config {
        enum sheaf_order order;
        uint64_t seed;   /* of the permutations of window and strict */
        uint32_t window; /* slots, of the window order */
        uint32_t ahead;  /* slots bound before they are used, at most */
        bool pace;       /* wait a little when ahead of one's mates */
};

SHEAF_MUST_CHECK int sheaf_job_new(struct sheaf_cohort *cohort,
        const struct sheaf_job_config *config, struct sheaf_job **ret_job);
/* Also ends its runs. */
void sheaf_job_free(struct sheaf_job *job);

/* Samples a second of a job that never waits for data; 0: not known. Jobs
 * within 3 % of one another are mates; so are those of unknown speed. */
void sheaf_job_set_rate(struct sheaf_job *job, double rate);
/* When the job should bind next, not before; @now_ns where nothing holds it
 * back. Monotonic time. What a job waits here is no stall. */
int64_t sheaf_job_not_before(struct sheaf_job *job, int64_t now_ns);

/* The run of @epoch, begun if it is not: then what is here now counts as here
 * at the start. A job keeps SHEAF_RUNS_PER_JOB runs; the one that was not used
 * for the longest time ends when one more comes. -ENOMEM; -ESTALE: it has
 * ended already. O(samples), about a nanosecond each if surveyed. */
SHEAF_MUST_CHECK int sheaf_run_begin(
        struct sheaf_job *job, uint64_t epoch, struct sheaf_run **ret_run);
/* Whether a mate began it already: it needs no survey. */
bool sheaf_run_waits(const struct sheaf_job *job, uint64_t epoch);
/* The same if it was begun, else NULL. */
struct sheaf_run *sheaf_run_find(struct sheaf_job *job, uint64_t epoch);

/* What another process needs to go on with a run: which permutation, and
 * what differs from it. */
struct sheaf_run_state {
        uint64_t epoch, seed, stream;
        /* Slots from here on were never bound. Those below may have been: one
         * that is not in @replaced holds its target, or, where that target
         * stands in another slot, was not bound. */
        uint32_t high;
        const uint32_t (*replaced)[2]; /* slot, sample */
        size_t replaced_count;
};
/* Epoch, permutation and mark of a run; what is replaced is left alone. */
void sheaf_run_identity(
        const struct sheaf_run *run, struct sheaf_run_state *ret_state);
/* Whether a slot was bound since the run was begun or restored. */
bool sheaf_run_touched(const struct sheaf_run *run);

/* A run as it was, of a job of @config, for sheaf_run_adopt. Its strata are
 * lost: each slot gets its target or, where that is gone, what was passed
 * over. Any thread. -EBADMSG: no run can be so; -ENOMEM. O(samples). */
SHEAF_MUST_CHECK int sheaf_run_restore(const struct sheaf_job_config *config,
        uint32_t samples, const struct sheaf_run_state *state,
        struct sheaf_run **ret_run);
/* What to restore when only the samples are known that the slots below
 * @yielded had: @read, (samples + 7) / 8 bytes, bit i % 8 of byte i / 8. The
 * epoch and permutation of @io_state are given; @ret_replaced is the caller's.
 * Which of these slots had which of the samples is decided anew, targets
 * first. Any thread. -EBADMSG: the samples are not as many as the slots. */
SHEAF_MUST_CHECK int sheaf_run_recall(uint32_t samples, uint32_t yielded,
        const uint8_t *read, struct sheaf_run_state *io_state,
        uint32_t (**ret_replaced)[2]);
/* The job's from now on. In the place of its run of that epoch, if it has
 * one. */
void sheaf_run_adopt(struct sheaf_job *job, struct sheaf_run *run);
/* One that no job adopted. */
void sheaf_run_free(struct sheaf_run *run);

struct sheaf_bound {
        uint32_t sample;
        uint32_t mark; /* slots below may be bound from now on; 0: as before */
        bool fetch;   /* it is not here: start its fetch before the next bind */
        bool again;   /* the slot was bound before, to this sample */
        bool perhaps; /* so it was, or the mark alone is above it */
        bool replaced; /* it is not the target: to be journalled */
};

/* Binds @slot < samples, in any order; a slot that is bound gives the same
 * sample again. -ERANGE; -ENOMEM (nothing changed). */
SHEAF_MUST_CHECK int sheaf_run_bind(struct sheaf_run *run, uint32_t slot,
        int64_t now_ns, struct sheaf_bound *ret_bound);

/* Slots bound so far. */
uint32_t sheaf_run_bound(const struct sheaf_run *run);
/* Target of a slot, and what a bound slot holds (-ENOENT: not bound). */
uint32_t sheaf_run_target(const struct sheaf_run *run, uint32_t slot);
SHEAF_MUST_CHECK int sheaf_run_look(
        const struct sheaf_run *run, uint32_t slot, uint32_t *ret_sample);

/* Bytes of memory of a cohort with its jobs and runs. */
size_t sheaf_cohort_memory(const struct sheaf_cohort *cohort);

#endif
