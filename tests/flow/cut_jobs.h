/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs on a disk whose power is cut: what their slots were given, and what
 * their journals may still say of it.
 *
 *   run     one epoch of a job as it was bound, slot by slot
 *   point   a checkpoint: a state and its bitmap
 *
 * A journal is written before a bind is answered, and not flushed. So a cut
 * leaves a beginning of it, which holds no slot's sample that was not that
 * slot's; or it is found damaged. With a point the epoch goes on: what was
 * read by then is not given again. */
#ifndef SHEAF_TESTS_FLOW_CUT_JOBS_H
#define SHEAF_TESTS_FLOW_CUT_JOBS_H

#include "client/sheaf.h"
#include "tests/flow/cut.h"

#define CUT_JOBS_SET  "j" /* the dataset of the jobs */
#define CUT_SLOTS     480 /* its files */
#define CUT_RUNS      32
#define CUT_POINTS    4
#define CUT_JOB_COUNT 2

enum cut_job {
        CUT_JOB_KEPT = 0, /* window order; it has the points */
        CUT_JOB_REMOVED,  /* shared order; removed once, begun again */
};

struct cut_run {
        enum cut_job job;
        uint64_t epoch, run[2];    /* as struct sheaf_job_state */
        bool gone;                 /* of the job as it was before its removal */
        uint32_t count;            /* slots below were given, */
        uint64_t given[CUT_SLOTS]; /* these samples */
};

struct cut_point {
        struct sheaf_job_state state;
        uint8_t bitmap[CUT_SLOTS / 8];
};

struct cut_jobs {
        struct cut_run runs[CUT_RUNS];
        struct cut_point points[CUT_POINTS]; /* of CUT_JOB_KEPT */
        size_t run_count, point_count;
        char dirs[CUT_JOB_COUNT][128]; /* below the cache; "" not begun */
};

/* What was told before a cut. */
struct cut_jobs_claims {
        size_t points;              /* that were saved */
        bool removed;               /* `job rm` was answered */
        uint32_t durable[CUT_RUNS]; /* slots below had been flushed */
};

/* Takes marks "point N", "gone", "durable RUN SLOTS" and "renewed": journals
 * may be written anew from here on. False: another mark. */
bool cut_jobs_mark(struct cut_jobs_claims *claims, const char *text);

/* ---- load ---- */

enum cut_press {
        CUT_LEFT = 0, /* to the kernel */
        CUT_WRITTEN,  /* as the kernel does after half a minute */
        CUT_FLUSHED,
};

/* Binds slots up to @upto of the job's epoch, in some messages, by a session
 * of its own; then its journal is on the disk as @press says. */
void cut_jobs_bind(struct cut_jobs *jobs, struct cut_disk *disk,
        enum cut_job job, uint64_t epoch, uint32_t upto, enum cut_press press);
/* A checkpoint of CUT_JOB_KEPT. */
void cut_jobs_save(struct cut_jobs *jobs, struct cut_disk *disk, uint64_t epoch,
        uint32_t yielded);
/* `sheaf job rm` of CUT_JOB_REMOVED. */
void cut_jobs_remove(struct cut_jobs *jobs, struct cut_disk *disk);

/* ---- after a cut ---- */

struct cut_jobs_figures {
        uint64_t journals, slots; /* that were read, and gave what they had */
        uint64_t lost;            /* slots that a journal no longer tells */
        uint64_t other;           /* of these, slots that have another sample */
        uint64_t refused;       /* epochs whose journal was damaged, by word */
        uint64_t went_on, made; /* from a point: by journal; by its bitmap */
};

/* In the child, on the mounted @cache: 0, or -EBADMSG with what is wrong in
 * @ret_why. */
int cut_jobs_check(const char *cache, const struct cut_jobs *jobs,
        const struct cut_jobs_claims *claims, struct cut_jobs_figures *figures,
        char ret_why[512]);
/* With a daemon: both jobs go on from what is left, each sample once. Asserts.
 * What was bound is a run more. */
void cut_jobs_go_on(struct cut_jobs *jobs, struct cut_disk *disk,
        const struct cut_jobs_claims *claims, struct cut_jobs_figures *figures);

#endif
