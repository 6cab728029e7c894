/* SPDX-License-Identifier: Apache-2.0 */
/* What jobs.c (jobs, journals) and jobs_ahead.c (what is here or coming)
 * share. */
#ifndef SHEAF_DAEMON_JOBS_INTERNAL_H
#define SHEAF_DAEMON_JOBS_INTERNAL_H

#include "daemon/jobs.h"
#include "daemon/log.h"

struct sheaf_coming;

struct sheaf_jobs_cohort {
        LIST_ENTRY(sheaf_jobs_cohort) link;
        struct sheaf_jobs *jobs;
        struct sheaf_reg_version *version;
        struct sheaf_lodging *lodging;
        struct sheaf_cohort *cohort;
        uint32_t users; /* handles */
        LIST_HEAD(, sheaf_live_job) live;
        uint32_t live_count;
        /* Samples that are being fetched for a bind. */
        uint64_t *coming_bits;
        LIST_HEAD(, sheaf_coming) coming;
        uint64_t coming_bytes;
};

/* Whether @sample of the cohort @arg is cached, or on its way. */
bool sheaf_jobs_here(void *arg, uint32_t sample);
/* Fetches a sample that was bound and is not here, as far as there is room. */
void sheaf_jobs_fetch(
        struct sheaf_jobs_cohort *cohort, uint64_t lane, uint32_t sample);
void sheaf_jobs_fetch_none(struct sheaf_jobs_cohort *cohort);

struct sheaf_jobs {
        struct sheaf_daemon *daemon;
        LIST_HEAD(, sheaf_jobs_cohort) cohorts;
        struct sheaf_jobs_stats stats;
        struct sheaf_log_once journal_once;
};

#endif
