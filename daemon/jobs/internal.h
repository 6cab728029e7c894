/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the epoch service share:
 *
 *   jobs.c           cohorts, jobs: who takes part in what
 *   jobs_bind.c      requests of a job, one after the other
 *   jobs_journal.c   work on the pool: reading, writing, restoring
 *   jobs_kept.c      journals on disk: looked after, gone with their versions
 *   jobs_bound.c     what goes when they are too many
 *   jobs_list.c      and listed, or removed by their owner
 *   jobs_ahead.c     what is here or coming */
#ifndef SHEAF_DAEMON_JOBS_INTERNAL_H
#define SHEAF_DAEMON_JOBS_INTERNAL_H

#include "daemon/jobs/jobs.h"
#include "daemon/log.h"
#include "proto/subset.h"

#include <dirent.h>
#include <limits.h>

struct sheaf_coming;

/* Whose a job is: through a grant all clients are one. */
struct sheaf_job_owner {
        uint64_t grant; /* 0: none */
        uid_t uid;      /* 0 of a grant's */
};

static inline bool sheaf_job_owned(
        const struct sheaf_job_owner *a, const struct sheaf_job_owner *b)
{
        return a->grant == b->grant && a->uid == b->uid;
}

struct sheaf_jobs_cohort {
        LIST_ENTRY(sheaf_jobs_cohort) link;
        struct sheaf_jobs *jobs;
        struct sheaf_reg_version *version;
        struct sheaf_lodging *lodging;
        struct sheaf_digest subset_name; /* zero: all files */
        struct sheaf_subset *subset;     /* NULL: all files, or not read yet */
        struct sheaf_cohort *cohort;     /* NULL until then */
        LIST_HEAD(, sheaf_jobs_seat) seats; /* it ends with the last one */
        LIST_HEAD(, sheaf_live_job) live;
        bool surveying;      /* some job waits for it, to begin an epoch */
        uint64_t binds;      /* counted */
        uint64_t ring_bytes; /* that should flow */
        /* The origin, when it was looked at last. */
        int64_t supply_ns;
        uint64_t supply_reads;
        bool supply_waits;
        /* Samples that are being fetched for a bind. */
        uint64_t *coming_bits;
        LIST_HEAD(, sheaf_coming) coming;
        uint64_t coming_bytes;
};

/* What a session did in its newest epoch of a job. */
struct sheaf_attendance {
        uint64_t job; /* its number; 0: none */
        uint64_t epoch;
        uint64_t own, again; /* slots it bound; those it found bound */
        bool warned;
};
#define SHEAF_ATTENDANCES 4

/* A handle's part in a cohort. */
struct sheaf_jobs_seat {
        LIST_ENTRY(sheaf_jobs_seat) link;   /* of the handle's */
        LIST_ENTRY(sheaf_jobs_seat) beside; /* of the cohort's */
        struct sheaf_jobs_cohort *cohort;
        struct sheaf_job_owner owner;
        struct sheaf_attendance attendances[SHEAF_ATTENDANCES];
        uint32_t next; /* of them to be overwritten */
};

enum sheaf_job_work {
        SHEAF_JOB_OPEN = 0, /* the subset, the newest epochs */
        SHEAF_JOB_LOAD,     /* one epoch */
        SHEAF_JOB_APPEND,
        SHEAF_JOB_RECALL, /* an epoch from a bitmap; its journal begins anew */
        SHEAF_JOB_FLUSH,  /* it ended: what was appended goes to the disk */
};

struct sheaf_live_job {
        LIST_ENTRY(sheaf_live_job) link;
        struct sheaf_jobs_cohort *cohort; /* NULL: it ended */
        struct sheaf_jobs *jobs;
        uint64_t number;
        char name[SHEAF_JOB_NAME_MAX + 1];
        struct sheaf_digest subset_name;
        struct sheaf_job_owner owner;
        struct sheaf_journal_job identity;
        struct sheaf_job_config config;
        struct sheaf_job *job; /* NULL: the journal is still being read */
        uint64_t begun;        /* epochs below may have a journal */
        uint64_t absent;       /* one below that has none, + 1 */
        uint64_t damaged;      /* one whose journal is, + 1 */
        /* Epochs whose journal lacks something: [from, to). */
        uint64_t lossy_from, lossy_to;
        /* Where a client said that it goes on: what follows may have been
         * served before a crash. */
        bool resumed;
        uint64_t resumed_epoch;
        uint32_t resumed_slot;
        /* How many slots of an epoch were bound for a state. */
        uint64_t state_epoch, state_slots;
        /* Bitmaps that epochs were made from. */
        struct sheaf_recalled {
                struct sheaf_digest name;
                uint64_t epoch;
        } recalled[SHEAF_RUNS_PER_JOB];
        uint32_t next_recalled;
        TAILQ_HEAD(, sheaf_bind) binds;
        bool surveying; /* it waits for its cohort's */
        bool surveyed;  /* that is over: it begins now */
        int64_t used_ns;
        /* of the pool's work: */
        uv_loop_t *loop;
        uv_work_t work;
        bool working;
        enum sheaf_job_work task;
        char parent[PATH_MAX - 160], dir[PATH_MAX], id[33];
        struct sheaf_bind *writing; /* waits for it; NULL: gone */
        struct sheaf_journal_record *records;
        size_t record_count;
        uint64_t epoch;
        bool begins;
        int fd; /* of a bitmap; -1 */
        uint32_t files, yielded;
        uint64_t seed, stream;
        struct sheaf_digest digest; /* what the bitmap must have; has */
        struct sheaf_subset *subset;
        struct sheaf_run *runs[SHEAF_JOURNAL_EPOCHS]; /* oldest first */
        size_t run_count;
        /* Epochs whose journal may not be on the disk: [from, to). */
        uint64_t dirty_from, dirty_to;
        const char *why;
        int rc;
};

struct sheaf_jobs {
        struct sheaf_daemon *daemon;
        LIST_HEAD(, sheaf_jobs_cohort) cohorts;
        struct sheaf_jobs_stats stats;
        struct sheaf_log_once journal_once, repeats_once, begin_once;
        uint64_t numbers;  /* of jobs */
        uv_idle_t surveys; /* runs while there are some */
        uv_timer_t keep;   /* rings for jobs_kept.c */
        int open_handles;
        bool keeping; /* on the pool */
        bool stopped;
        /* Since the last look at the journals. */
        uint64_t written_bytes, written_epochs;
        LIST_HEAD(, sheaf_kept_query) removals; /* under way */
};

/* ---- jobs.c ---- */

/* Out of its cohort; what waits is answered. */
void sheaf_live_job_end(struct sheaf_live_job *job, int rc, const char *why);
/* It ended, and the pool has none of its work: frees it, when its journals are
 * on the disk. */
void sheaf_live_job_free(struct sheaf_live_job *job);
/* Has the cohort begin: @subset (taken over) or all files. */
SHEAF_MUST_CHECK int sheaf_jobs_cohort_ready(
        struct sheaf_jobs_cohort *cohort, struct sheaf_subset *subset);

/* ---- jobs_bind.c ---- */

/* Does what waits, until the pool has work to do. */
void sheaf_live_job_advance(struct sheaf_live_job *job);
void sheaf_bind_finish(struct sheaf_bind *bind, int rc, const char *why);
/* A slice of the surveys under way. */
void sheaf_jobs_survey(uv_idle_t *idle);

/* ---- jobs_journal.c ---- */

/* CACHE/jobs/VERSION/JOB: the subset, the principal and the name, as a
 * digest. -ENAMETOOLONG. */
SHEAF_MUST_CHECK int sheaf_live_job_paths(struct sheaf_live_job *job);
/* Has @task done; the job advances after it. */
void sheaf_live_job_work(struct sheaf_live_job *job, enum sheaf_job_work task);

/* ---- jobs_kept.c ---- */

/* Makes "jobs" in the cache directory and looks after it from now on: journals
 * go with their versions; all of them together stay within a 32nd of the disk
 * limit (of the memory's without a disk tier), or 4 GiB: who has most gives
 * first, the oldest epochs. */
void sheaf_jobs_keep(struct sheaf_jobs *jobs);
/* A version is gone: so are its journals. */
void sheaf_jobs_version_gone(void *arg, const uint8_t uuid[16]);
/* Journals grew by @bytes; @begins: by an epoch. */
void sheaf_jobs_wrote(struct sheaf_jobs *jobs, uint64_t bytes, bool begins);
/* Any thread: a directory, or NULL; its next entry that is not hidden, or
 * NULL; removes a directory of two levels. */
DIR *sheaf_kept_list(int at, const char *name);
const char *sheaf_kept_next(DIR *list);
void sheaf_kept_remove(int at, const char *name);
/* Free it with sheaf_record__job__free_unpacked; NULL: none. Any thread. */
SheafRecord__Job *sheaf_kept_read_about(int dir);
/* What the job is, for lists and bounds; written unless it is there and can be
 * read: a loss of power may have left an empty file. Any thread. */
#define SHEAF_KEPT_ABOUT     "about"
#define SHEAF_KEPT_ABOUT_NEW "about.new"
void sheaf_kept_write_about(const struct sheaf_live_job *job);

/* ---- jobs_bound.c ---- */

struct sheaf_kept_bound {
        char root[PATH_MAX];  /* CACHE/jobs */
        char (*versions)[33]; /* owned; that exist */
        size_t version_count;
        struct sheaf_kept_place {
                char version[33], id[33];
        } * jobs; /* owned; live ones */
        size_t job_count;
        int64_t before_ns;  /* what was made after it is left alone */
        uint64_t bytes_max; /* of all */
        uint64_t bytes;     /* out: what there is now */
};

/* Removes what has to go. Any thread, one at a time. */
void sheaf_kept_bound_work(struct sheaf_kept_bound *bound);

/* ---- jobs_list.c ---- */

/* Whether one of that name is being removed. */
bool sheaf_jobs_removing(const struct sheaf_live_job *job);

/* ---- jobs_ahead.c ---- */

/* The file of a sample. */
uint32_t sheaf_jobs_ordinal(
        const struct sheaf_jobs_cohort *cohort, uint32_t sample);
/* Whether @sample of the cohort @arg is cached, or on its way. */
bool sheaf_jobs_here(void *arg, uint32_t sample);
/* Fetches a sample that was bound and is not here, as far as there is room.
 * Returns how many of its chunks are brought from the origin for that. */
uint32_t sheaf_jobs_fetch(
        struct sheaf_jobs_cohort *cohort, uint64_t lane, uint32_t sample);
void sheaf_jobs_fetch_none(struct sheaf_jobs_cohort *cohort);

#endif
