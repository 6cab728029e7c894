/* SPDX-License-Identifier: Apache-2.0 */
/* What jobs.c (names) and jobs_bind.c (links) share. */
#ifndef SHEAF_CACHEFS_JOBS_INTERNAL_H
#define SHEAF_CACHEFS_JOBS_INTERNAL_H

#include "cachefs/begun.h"
#include "cachefs/jobs.h"
#include "cachefs/wait.h"

#define SHEAF_JOB_BUCKETS 1024
#define SHEAF_BOUND_MAX   4096
#define SHEAF_NO_SAMPLE   UINT32_MAX

/* Stays once it is in the table. @lock guards @joined and @ahead. */
struct sheaf_mount_job {
        struct sheaf_mount_job *next; /* of its bucket */
        uint32_t number;
        struct sheaf_jobtree_job job;
        struct sheaf_job *joined; /* NULL: not yet */
        bool ahead;               /* a worker binds ahead for it */
        char text[];              /* name of its directory */
};

/* What a slot is bound to, at the place that its number gives. */
struct sheaf_bound {
        uint32_t job, epoch, slot, sample;
};

/* @lock guards all that changes; nothing waits with it held but for @open. */
struct sheaf_fs_jobs {
        struct sheaf_fs *fs;
        uint32_t slots;
        uid_t uid;
        gid_t gid;
        pthread_mutex_t lock;
        pthread_cond_t opened;
        bool open; /* epochs can be looked up */
        struct sheaf_mount_job *bucket[SHEAF_JOB_BUCKETS];
        struct sheaf_mount_job **of;
        uint32_t count, room;
        struct sheaf_begun begun;
        struct sheaf_bound bound[SHEAF_BOUND_MAX];
};

struct sheaf_mount_job *sheaf_jobs_of(
        struct sheaf_fs_jobs *jobs, uint32_t number);

/* Answers with what @rc is to a program, and logs why. */
void sheaf_jobs_reply_error(struct sheaf_fs_jobs *jobs, fuse_req_t req, int rc,
        const struct sheaf_mount_job *job, uint32_t epoch, const char *why);

#endif
