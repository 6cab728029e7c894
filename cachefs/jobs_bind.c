/* SPDX-License-Identifier: Apache-2.0 */
/* Links of slots.
 *
 *  1 a slot is bound when its link is read, and not before; those behind it,
 *    up to the look-ahead, when a reader goes through them in turn, so that
 *    they are fetched before they are asked for
 *  2 what a slot is bound to never changes, so it may be kept anywhere for
 *    any time: in the kernel, and in `bound` here
 *
 * Threads: the handler in the one that reads requests; run_* in workers. */
#include "cachefs/jobs_internal.h"

#include <stdio.h>

#define RECENT 8 /* slots behind that make a reader one in turn */

/* Answers READLINK. @sample is a claim of the daemon. */
static void reply_sample(struct sheaf_fs_jobs *jobs, fuse_req_t req,
        const struct sheaf_mount_job *job, uint32_t epoch, uint64_t sample)
{
        const struct sheaf_listing *listing = jobs->fs->source.listing;
        char path[PATH_MAX], target[PATH_MAX];
        int rc = -EPROTO;

        if (sample < listing->file_count) {
                rc = -ENAMETOOLONG;
                if (sheaf_listing_path(listing, listing->files[sample], path,
                            sizeof(path)) < sizeof(path))
                        rc = sheaf_jobtree_target(path, target);
        }
        if (rc < 0)
                sheaf_jobs_reply_error(jobs, req, rc, job, epoch,
                        rc == -EPROTO ? "no such sample"
                                      : "no link can hold the sample's path");
        else
                fuse_reply_readlink(req, target);
}

/* ---- what is bound; @lock is held ---- */

static struct sheaf_bound *place(
        struct sheaf_fs_jobs *jobs, uint32_t job, uint32_t slot)
{
        return &jobs->bound[(slot + job * UINT32_C(2654435769)) %
                            SHEAF_BOUND_MAX];
}

static uint32_t known(struct sheaf_fs_jobs *jobs,
        const struct sheaf_mount_job *job, uint32_t epoch, uint32_t slot)
{
        const struct sheaf_bound *at = place(jobs, job->number, slot);

        return at->job == job->number && at->epoch == epoch && at->slot == slot
                       ? at->sample
                       : SHEAF_NO_SAMPLE;
}

/* Whether somebody goes through the slots in turn, and is at @slot. */
static bool in_turn(struct sheaf_fs_jobs *jobs,
        const struct sheaf_mount_job *job, uint32_t epoch, uint32_t slot)
{
        if (slot < RECENT)
                return true;
        for (uint32_t back = 1; back <= RECENT; back++)
                if (known(jobs, job, epoch, slot - back) != SHEAF_NO_SAMPLE)
                        return true;
        return false;
}

/* The slots of the look-ahead behind @slot that are not bound. */
static size_t list_ahead(struct sheaf_fs_jobs *jobs,
        const struct sheaf_mount_job *job, uint32_t epoch, uint32_t slot,
        uint32_t ret_slots[SHEAF_JOBTREE_AHEAD_MAX])
{
        uint32_t most = SHEAF_MIN(job->job.ahead, jobs->slots - 1 - slot);
        size_t n = 0;

        for (uint32_t i = 1; i <= most; i++)
                if (known(jobs, job, epoch, slot + i) == SHEAF_NO_SAMPLE)
                        ret_slots[n++] = slot + i;
        return n;
}

/* ---- binding, in workers ---- */

struct bind_ask {
        struct sheaf_wait wait; /* first; of a READLINK */
        struct sheaf_task task; /* instead: nobody waits */
        struct sheaf_fs_jobs *jobs;
        struct sheaf_mount_job *job;
        uint32_t epoch;
        size_t count;
        uint32_t *slots;    /* behind the samples */
        uint64_t samples[]; /* of the slots */
};

static int bind_slots(struct bind_ask *ask)
{
        struct sheaf_fs_jobs *jobs = ask->jobs;
        const struct sheaf_source *source = &jobs->fs->source;
        struct sheaf_mount_job *job = ask->job;
        int rc = source->ops->job_bind(
                job->joined, ask->epoch, ask->slots, ask->count, ask->samples);

        if (rc < 0)
                return rc;
        pthread_mutex_lock(&jobs->lock);
        sheaf_begun_note(&jobs->begun, source->info->uuid, job->job.name,
                ask->epoch, ask->epoch);
        for (size_t i = 0; i < ask->count; i++)
                *place(jobs, job->number, ask->slots[i]) =
                        (struct sheaf_bound){ job->number, ask->epoch,
                                ask->slots[i],
                                (uint32_t)SHEAF_MIN(ask->samples[i],
                                        (uint64_t)SHEAF_NO_SAMPLE) };
        pthread_mutex_unlock(&jobs->lock);
        return 0;
}

static void run_bind(struct sheaf_wait *wait)
{
        struct bind_ask *ask = (struct bind_ask *)wait;
        struct sheaf_fs_jobs *jobs = ask->jobs;
        int rc = sheaf_wait_over(wait) ? -EINTR : bind_slots(ask);
        const char *why = jobs->fs->source.ops->why(jobs->fs->source.arg);

        if (!sheaf_wait_claim(wait))
                return;
        if (rc < 0)
                sheaf_jobs_reply_error(
                        jobs, wait->req, rc, ask->job, ask->epoch, why);
        else
                reply_sample(
                        jobs, wait->req, ask->job, ask->epoch, ask->samples[0]);
}

/* A failure is for whoever asks for the slot. */
static void run_ahead(struct sheaf_task *task)
{
        struct bind_ask *ask =
                (struct bind_ask *)((char *)task -
                                    offsetof(struct bind_ask, task));
        struct sheaf_fs_jobs *jobs = ask->jobs;

        if (!fuse_session_exited(jobs->fs->session)) {
                int rc = bind_slots(ask);

                (void)rc;
        }
        pthread_mutex_lock(&jobs->lock);
        ask->job->ahead = false;
        pthread_mutex_unlock(&jobs->lock);
        free(ask);
}

/* For @slot, where @first says so, and those behind it. @lock is held. NULL:
 * there is nothing to bind, or no memory. */
static struct bind_ask *bind_ask_new(struct sheaf_fs_jobs *jobs,
        struct sheaf_mount_job *job, uint32_t epoch, uint32_t slot, bool first)
{
        uint32_t slots[1 + SHEAF_JOBTREE_AHEAD_MAX] = { slot };
        size_t count = first;
        struct bind_ask *ask;

        if (in_turn(jobs, job, epoch, slot))
                count += list_ahead(jobs, job, epoch, slot, slots + count);
        if (!count)
                return NULL;
        ask = calloc(1, sizeof(*ask) + count * (sizeof(ask->samples[0]) +
                                                       sizeof(slots[0])));
        if (!ask)
                return NULL;
        ask->jobs = jobs;
        ask->job = job;
        ask->epoch = epoch;
        ask->count = count;
        ask->slots = (uint32_t *)(ask->samples + count);
        memcpy(ask->slots, slots, count * sizeof(slots[0]));
        return ask;
}

/* @slot is bound; is it time to bind those behind it? */
static void go_ahead(struct sheaf_fs_jobs *jobs, struct sheaf_mount_job *job,
        uint32_t epoch, uint32_t slot)
{
        struct bind_ask *ask = NULL;
        uint32_t half = job->job.ahead / 2 + 1;

        if (!job->job.ahead || slot + 1 >= jobs->slots)
                return;
        half = SHEAF_MIN(half, jobs->slots - 1 - slot);
        pthread_mutex_lock(&jobs->lock);
        if (!job->ahead &&
                known(jobs, job, epoch, slot + half) == SHEAF_NO_SAMPLE)
                ask = bind_ask_new(jobs, job, epoch, slot, false);
        if (ask)
                job->ahead = true;
        pthread_mutex_unlock(&jobs->lock);
        if (!ask)
                return;
        ask->task.run = run_ahead;
        if (sheaf_pool_submit(jobs->fs->pool, &ask->task) == 0)
                return;
        pthread_mutex_lock(&jobs->lock);
        job->ahead = false;
        pthread_mutex_unlock(&jobs->lock);
        free(ask);
}

void sheaf_jobs_readlink(fuse_req_t req, fuse_ino_t ino)
{
        struct sheaf_fs_jobs *jobs = sheaf_fs_of(req)->jobs;
        struct sheaf_jobtree_node node;
        struct sheaf_mount_job *job = NULL;
        struct bind_ask *ask;
        uint32_t sample = SHEAF_NO_SAMPLE;
        bool joined = false;
        int rc = sheaf_jobtree_node(jobs->slots, ino, &node);

        if (!rc && node.kind != SHEAF_JOBTREE_SLOT)
                rc = -EINVAL;
        if (!rc)
                job = sheaf_jobs_of(jobs, node.job);
        if (job) {
                pthread_mutex_lock(&jobs->lock);
                joined = job->joined;
                sample = known(jobs, job, node.epoch, node.slot);
                pthread_mutex_unlock(&jobs->lock);
        }
        if (!rc && !joined)
                rc = -ESTALE; /* by a handle of another mount's */
        if (rc < 0) {
                fuse_reply_err(req, -rc);
                return;
        }
        if (sample != SHEAF_NO_SAMPLE) {
                reply_sample(jobs, req, job, node.epoch, sample);
                go_ahead(jobs, job, node.epoch, node.slot);
                return;
        }
        pthread_mutex_lock(&jobs->lock);
        ask = bind_ask_new(jobs, job, node.epoch, node.slot, true);
        pthread_mutex_unlock(&jobs->lock);
        if (!ask) {
                fuse_reply_err(req, ENOMEM);
                return;
        }
        rc = sheaf_wait_begin(&ask->wait, jobs->fs, req, run_bind);
        if (rc < 0) {
                sheaf_jobs_reply_error(
                        jobs, req, rc, job, node.epoch, "no room to wait");
                free(ask);
        }
}
