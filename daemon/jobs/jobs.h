/* SPDX-License-Identifier: Apache-2.0 */
/* The epoch service: jobs of live clients, over daemon/epoch.
 *
 *   cohort   all jobs that read one subset of one version in one domain's
 *            arena; it lives while handles use it
 *   job      (principal, name) there; its journal in CACHE/jobs outlives it
 *   bind     one request: bound at once, journalled on the pool, then answered
 *
 * What a bind misses is fetched at once, so that the client finds it on its
 * way. Threads: loop thread; journals are read and written on the pool, one
 * piece of work a job at a time. */
#ifndef SHEAF_DAEMON_JOBS_H
#define SHEAF_DAEMON_JOBS_H

#include "daemon/epoch/journal.h"
#include "daemon/server.h"

#define SHEAF_JOB_NAME_MAX 128
/* Of a version in a domain, jobs and subsets each: all, and what one
 * principal may have. The last quarter is for those who have few. */
#define SHEAF_JOBS_PER_VERSION   256
#define SHEAF_JOBS_PER_PRINCIPAL 64
#define SHEAF_JOBS_FEW           4
#define SHEAF_BIND_SLOTS_MAX     4096
#define SHEAF_EPOCHS_MAX         (UINT64_C(1) << 22)
#define SHEAF_BIND_WARNING_MAX   256
#define SHEAF_UNBOUND            UINT32_MAX

struct sheaf_jobs;
struct sheaf_live_job;

/* Journals of versions that are gone are removed, on the pool. */
SHEAF_MUST_CHECK int sheaf_jobs_new(
        struct sheaf_daemon *daemon, struct sheaf_jobs **ret_jobs);
/* No handle is open any more. */
void sheaf_jobs_free(struct sheaf_jobs *jobs);

struct sheaf_job_spec {
        const char *name; /* 1 .. SHEAF_JOB_NAME_MAX bytes */
        struct sheaf_job_config config;
        struct sheaf_digest subset; /* of its bitmap; zero: all files */
};

enum sheaf_bind_mode {
        SHEAF_BIND = 0,
        SHEAF_BIND_LOOK,        /* only tell what is bound */
        SHEAF_BIND_REPLAY,      /* and fetch it */
        SHEAF_BIND_STATE,       /* bind what others are still to ask for */
        SHEAF_BIND_RESTORE_ASK, /* no slots: is the run of a state there? */
        SHEAF_BIND_RESTORE_MAKE /* make it from a bitmap */
};

/* One request. Lives until @done, which is called once unless the bind is
 * cancelled; perhaps inside sheaf_jobs_bind. */
struct sheaf_bind {
        struct sheaf_handle *handle;
        enum sheaf_bind_mode mode;
        uint64_t epoch;
        uint32_t *slots; /* in: slots, out: ordinals, or SHEAF_UNBOUND */
        size_t count;
        double rate;
        /* Of a restore: as the client remembers them. */
        uint32_t yielded;
        struct sheaf_digest read_name; /* of the bitmap */
        uint64_t seed, stream; /* out, always: of the epoch's run; 0: none */
        /* Sealed bitmaps, or -1; the caller's, but for those taken (-1). */
        int subset_fd, read_fd;
        /* rc 0, or a negative errno with a static text. */
        void (*done)(struct sheaf_bind *bind, int rc, const char *why);
        int64_t not_before_ns; /* out: of the next one */
        uint32_t samples;      /* out: of an epoch */
        uint32_t ahead;        /* out: the job's look-ahead, slots */
        bool known;            /* out, of a restore: the run is there */
        uint32_t from_origin;  /* out: chunks whose fetch was begun */
        uint32_t replaced;     /* out: slots that have not their target */
        char warning[SHEAF_BIND_WARNING_MAX]; /* out: for the user, or "" */
        /* private */
        TAILQ_ENTRY(sheaf_bind) link;
        struct sheaf_live_job *job;
        uint64_t lane;
        struct sheaf_journal_record *records;
        size_t record_count;
        bool begins;
};

/* Joins the job, or makes it, and binds. 0; 1: the subset is not known here
 * and @bind has no bitmap of it, nothing was done; -EINVAL: the job has
 * another order, seed or window, which @ret_why names; -EBUSY: too many jobs
 * or subsets, or it is being removed, as @ret_why tells; -ENOMEM. But for 0
 * @done is not called. */
SHEAF_MUST_CHECK int sheaf_jobs_bind(struct sheaf_conn *conn,
        const struct sheaf_job_spec *spec, struct sheaf_bind *bind,
        const char **ret_why);
/* Nobody waits any more; the slots stay bound. The caller frees @bind. */
void sheaf_jobs_cancel(struct sheaf_bind *bind);
/* @handle is closed: a cohort ends with the last one that uses it. */
void sheaf_jobs_leave(struct sheaf_handle *handle);

/* ---- what is kept ---- */

/* A job that has journals. */
struct sheaf_kept_job {
        uint8_t uuid[16];        /* of the version */
        char id[33];             /* name of its directory */
        SheafRecord__Job *about; /* owned */
        uint64_t epochs, newest, bytes;
        uint32_t newest_high;
        struct sheaf_kept_epoch {
                uint64_t epoch;
                struct sheaf_journal_sum sum;
        } * each; /* owned, oldest first; NULL: not asked for */
};

/* Lists, and perhaps removes, jobs on the pool. */
struct sheaf_kept_query {
        /* Set before. */
        struct sheaf_jobs *jobs;
        bool all; /* of all users */
        uid_t uid;
        uint64_t grant;
        char job[SHEAF_JOB_NAME_MAX + 1]; /* "": any */
        uint8_t (*uuids)[16];             /* owned; versions to look at */
        size_t uuid_count;
        bool epochs, remove;
        /* Once, on the loop: 0; -EBUSY: not removed, since somebody takes part;
         * -errno. Then the query is the caller's. */
        void (*done)(struct sheaf_kept_query *query, int rc);
        /* out */
        struct sheaf_kept_job *found; /* at most SHEAF_KEPT_MAX */
        size_t count;
        /* private */
        uv_work_t work;
        LIST_ENTRY(sheaf_kept_query) link;
        int rc;
};
#define SHEAF_KEPT_MAX       16384
#define SHEAF_KEPT_PER_OWNER 4096 /* jobs of one user that have journals */

void sheaf_kept_begin(struct sheaf_kept_query *query);
void sheaf_kept_clear(struct sheaf_kept_query *query);
/* Whether clients take part in it. */
bool sheaf_kept_live(
        const struct sheaf_jobs *jobs, const struct sheaf_kept_job *kept);

struct sheaf_jobs_stats {
        uint64_t jobs;          /* now */
        uint64_t journal_bytes; /* now, on disk */
        /* Of the last write of a journal: 0, or -errno and when it failed. */
        int journal_rc;
        int64_t journal_failed_ns;
        /* monotonic */
        uint64_t bound, replaced, journal_errors;
        uint64_t refused;  /* jobs and subsets over a limit */
        uint64_t repeats;  /* sessions that asked again for what was served */
        uint64_t restored; /* epochs from a client's bitmap */
};
void sheaf_jobs_stats(
        const struct sheaf_jobs *jobs, struct sheaf_jobs_stats *ret_stats);

#endif
