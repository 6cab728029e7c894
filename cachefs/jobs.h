/* SPDX-License-Identifier: Apache-2.0 */
/* The hidden directory of a mount: a job's slots as links to its samples.
 *
 *   .sheaf/jobs/JOB/EPOCH/SLOT     (cachefs/jobtree.h)
 *
 * Names and listings answer at once. Looking up an epoch joins the job, and
 * reading a link binds its slot: both may wait for the daemon, in workers.
 *
 * Handlers: called in the thread that reads requests, for the nodes that
 * sheaf_jobs_own says are theirs; each answers its request. */
#ifndef SHEAF_CACHEFS_JOBS_H
#define SHEAF_CACHEFS_JOBS_H

#include "cachefs/fs_internal.h"

struct sheaf_fs_jobs;

/* NULL where the source has no jobs, or the dataset has an entry of that name
 * itself, which is then logged. -ENOMEM. */
SHEAF_MUST_CHECK int sheaf_jobs_new(
        struct sheaf_fs *fs, struct sheaf_fs_jobs **ret_jobs);
/* No worker runs any more. NULL is fine. */
void sheaf_jobs_free(struct sheaf_fs_jobs *jobs);

/* Whether a lookup of @name in @parent, or a request about @parent itself
 * where @name is NULL, is for the functions below. */
bool sheaf_jobs_own(
        const struct sheaf_fs_jobs *jobs, fuse_ino_t parent, const char *name);

void sheaf_jobs_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void sheaf_jobs_getattr(fuse_req_t req, fuse_ino_t ino);
void sheaf_jobs_readlink(fuse_req_t req, fuse_ino_t ino);
void sheaf_jobs_getxattr(
        fuse_req_t req, fuse_ino_t ino, const char *name, size_t cap_bytes);

/* Adds the children of directory @ino from position @at on. 0; -ENOENT;
 * -ENOTDIR. */
SHEAF_MUST_CHECK int sheaf_jobs_children(struct sheaf_fs *fs, fuse_ino_t ino,
        uint64_t at, struct sheaf_dir_reply *reply);

/* What the mounts before this one began; from then on epochs can be looked
 * up, if the mount was made to wait for it. @text may be NULL: nothing is
 * known; else it is written to. Any thread. */
void sheaf_jobs_inherit(struct sheaf_fs_jobs *jobs, char *text);

#endif
