/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs through the mount: names, the table of jobs, listings.
 *
 *  1 names cost nothing: a job is joined when one of its epochs is looked up
 *  2 an epoch is seen only on the version that it was begun on: a mount that
 *    replaces another asks that one first
 *
 * Threads: handlers in the one that reads requests; run_epoch in workers. */
#include "cachefs/jobs_internal.h"

#include <stdio.h>
#include <time.h>

#define JOBS_MANY   "this mount has had too many jobs; `sheaf mount --refresh`"
#define JOBS_GROW   64
#define OPEN_WAIT_S 5 /* for what the old mount says; it is asked for 2 s */

int sheaf_jobs_new(struct sheaf_fs *fs, struct sheaf_fs_jobs **ret_jobs)
{
        const struct sheaf_source *source = &fs->source;
        const char *name = SHEAF_JOBTREE_NAME;
        pthread_condattr_t attr;
        struct sheaf_fs_jobs *jobs;
        uint32_t entry;

        if (!source->ops->job_open)
                return 0;
        if (!sheaf_listing_child(
                    source->listing, 0, name, strlen(name), &entry)) {
                sheaf_fs_log(fs,
                        "the dataset has an entry " SHEAF_JOBTREE_NAME
                        " of its own: this mount shows that, and no jobs; "
                        "rename it at the origin, or use libsheaf");
                return 0;
        }
        jobs = sheaf_new(struct sheaf_fs_jobs, 1);
        if (!jobs)
                return -ENOMEM;
        jobs->fs = fs;
        jobs->slots = source->listing->file_count;
        jobs->uid = geteuid();
        jobs->gid = getegid();
        jobs->open = !fs->options.heir;
        pthread_mutex_init(&jobs->lock, NULL);
        pthread_condattr_init(&attr);
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        pthread_cond_init(&jobs->opened, &attr);
        pthread_condattr_destroy(&attr);
        for (size_t i = 0; i < SHEAF_BOUND_MAX; i++)
                jobs->bound[i].sample = SHEAF_NO_SAMPLE;
        *ret_jobs = jobs;
        return 0;
}

void sheaf_jobs_free(struct sheaf_fs_jobs *jobs)
{
        if (!jobs)
                return;
        for (uint32_t i = 0; i < jobs->count; i++) {
                if (jobs->of[i]->joined)
                        jobs->fs->source.ops->job_close(jobs->of[i]->joined);
                free(jobs->of[i]);
        }
        free(jobs->of);
        pthread_cond_destroy(&jobs->opened);
        pthread_mutex_destroy(&jobs->lock);
        free(jobs);
}

void sheaf_jobs_inherit(struct sheaf_fs_jobs *jobs, char *text)
{
        pthread_mutex_lock(&jobs->lock);
        if (text)
                sheaf_begun_parse(&jobs->begun, text);
        jobs->open = true;
        pthread_cond_broadcast(&jobs->opened);
        pthread_mutex_unlock(&jobs->lock);
}

bool sheaf_jobs_own(
        const struct sheaf_fs_jobs *jobs, fuse_ino_t parent, const char *name)
{
        if (!jobs)
                return false;
        return sheaf_jobtree_has(parent) ||
               (parent == SHEAF_LISTING_NODE_ROOT && name &&
                       !strcmp(name, SHEAF_JOBTREE_NAME));
}

/* ---- answers ---- */

static void fill(struct sheaf_fs_jobs *jobs, uint64_t id,
        struct fuse_entry_param *ret_param)
{
        struct fuse_entry_param out = {
                .ino = id,
                .attr_timeout = SHEAF_FS_TIMEOUT_SEC,
                .entry_timeout = SHEAF_FS_TIMEOUT_SEC,
        };
        struct stat root;

        sheaf_jobtree_stat(jobs->slots, id, jobs->uid, jobs->gid, &out.attr);
        sheaf_tree_stat(&jobs->fs->source, 0, &root);
        out.attr.st_atim = root.st_atim;
        out.attr.st_mtim = root.st_mtim;
        out.attr.st_ctim = root.st_ctim;
        *ret_param = out;
}

static void reply_node(struct sheaf_fs_jobs *jobs, fuse_req_t req,
        const struct sheaf_jobtree_node *node)
{
        struct fuse_entry_param param;

        fill(jobs, sheaf_jobtree_id(jobs->slots, node), &param);
        fuse_reply_entry(req, &param);
}

static int error_shown(int rc)
{
        switch (rc) {
        case -EINTR:
        case -ESTALE:
        case -ENOMEM:
        case -EINVAL:
        case -EBUSY:
        case -ENAMETOOLONG:
                return -rc;
        case -ENOENT:
                return ESTALE; /* the dataset, not the entry */
        default:
                return EIO;
        }
}

void sheaf_jobs_reply_error(struct sheaf_fs_jobs *jobs, fuse_req_t req, int rc,
        const struct sheaf_mount_job *job, uint32_t epoch, const char *why)
{
        if (rc != -EINTR)
                sheaf_fs_log(jobs->fs,
                        "job failed job=\"%s\" epoch=%u error=\"%s\" "
                        "why=\"%s\"",
                        job->text, epoch, strerror(-rc), why);
        fuse_reply_err(req, error_shown(rc));
}

struct sheaf_mount_job *sheaf_jobs_of(
        struct sheaf_fs_jobs *jobs, uint32_t number)
{
        struct sheaf_mount_job *job;

        pthread_mutex_lock(&jobs->lock);
        job = number < jobs->count ? jobs->of[number] : NULL;
        pthread_mutex_unlock(&jobs->lock);
        return job;
}

/* ---- lookups ---- */

struct epoch_ask {
        struct sheaf_wait wait; /* first */
        struct sheaf_fs_jobs *jobs;
        struct sheaf_mount_job *job;
        uint32_t epoch;
};

/* Whether @epoch may be seen on this version; waits for the gate. */
static int may_see(struct sheaf_fs_jobs *jobs,
        const struct sheaf_mount_job *job, uint32_t epoch, const char **ret_why)
{
        struct timespec until;
        int rc = 0;

        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += OPEN_WAIT_S;
        pthread_mutex_lock(&jobs->lock);
        while (!jobs->open && !rc)
                rc = -pthread_cond_timedwait(
                        &jobs->opened, &jobs->lock, &until);
        if (rc < 0)
                *ret_why = "the mount before this one does not answer";
        else if (sheaf_begun_elsewhere(&jobs->begun,
                         jobs->fs->source.info->uuid, job->job.name, epoch)) {
                *ret_why = "the job began this epoch on another version of "
                           "the dataset; end it in a mount of that "
                           "(--version), or go on with the next epoch";
                rc = -ESTALE;
        }
        pthread_mutex_unlock(&jobs->lock);
        return rc;
}

static int join(struct sheaf_fs_jobs *jobs, struct sheaf_mount_job *job,
        const char **ret_why)
{
        const struct sheaf_source *source = &jobs->fs->source;
        const struct sheaf_job_options options = {
                .name = job->job.name,
                .order = job->job.order,
                .seed = job->job.seed,
                .window = job->job.window,
                .ahead = job->job.ahead,
        };
        struct sheaf_job *joined;
        int rc;

        pthread_mutex_lock(&jobs->lock);
        joined = job->joined;
        pthread_mutex_unlock(&jobs->lock);
        if (joined)
                return 0;
        rc = source->ops->job_open(source->arg, &options, &joined);
        if (rc < 0) {
                *ret_why = source->ops->why(source->arg);
                return rc;
        }
        pthread_mutex_lock(&jobs->lock);
        if (!job->joined)
                job->joined = sheaf_steal(&joined);
        pthread_mutex_unlock(&jobs->lock);
        if (joined)
                source->ops->job_close(joined);
        return 0;
}

static void run_epoch(struct sheaf_wait *wait)
{
        struct epoch_ask *ask = (struct epoch_ask *)wait;
        const struct sheaf_jobtree_node node = { SHEAF_JOBTREE_EPOCH,
                ask->job->number, ask->epoch, 0 };
        const char *why = "";
        int rc = -EINTR;

        if (!sheaf_wait_over(wait))
                rc = may_see(ask->jobs, ask->job, ask->epoch, &why);
        if (!rc)
                rc = join(ask->jobs, ask->job, &why);
        if (!sheaf_wait_claim(wait))
                return;
        if (rc < 0)
                sheaf_jobs_reply_error(
                        ask->jobs, wait->req, rc, ask->job, ask->epoch, why);
        else
                reply_node(ask->jobs, wait->req, &node);
}

static void lookup_epoch(struct sheaf_fs_jobs *jobs, fuse_req_t req,
        struct sheaf_mount_job *job, uint32_t epoch)
{
        struct epoch_ask *ask = sheaf_new(struct epoch_ask, 1);
        int rc;

        if (!ask) {
                fuse_reply_err(req, ENOMEM);
                return;
        }
        ask->jobs = jobs;
        ask->job = job;
        ask->epoch = epoch;
        rc = sheaf_wait_begin(&ask->wait, jobs->fs, req, run_epoch);
        if (rc < 0) {
                sheaf_jobs_reply_error(
                        jobs, req, rc, job, epoch, "no room to wait");
                free(ask);
        }
}

static uint32_t hash_of(const char *text)
{
        uint32_t hash = 2166136261;

        for (; *text; text++)
                hash = (hash ^ (unsigned char)*text) * 16777619;
        return hash % SHEAF_JOB_BUCKETS;
}

static int table_room(struct sheaf_fs_jobs *jobs)
{
        struct sheaf_mount_job **grown;

        if (jobs->count < jobs->room)
                return 0;
        grown = realloc(
                jobs->of, (jobs->room + JOBS_GROW) * sizeof(jobs->of[0]));
        if (!grown)
                return -ENOMEM;
        jobs->of = grown;
        jobs->room += JOBS_GROW;
        return 0;
}

/* The job with the directory @text, new or not; @lock is held. */
static int find_or_add(struct sheaf_fs_jobs *jobs, const char *text,
        const struct sheaf_jobtree_job *parsed, uint32_t *ret_number)
{
        struct sheaf_mount_job **bucket = &jobs->bucket[hash_of(text)], *job;
        size_t len = strlen(text) + 1;

        for (job = *bucket; job; job = job->next)
                if (!strcmp(job->text, text)) {
                        *ret_number = job->number;
                        return 0;
                }
        if (jobs->count >= sheaf_jobtree_jobs_max(jobs->slots))
                return -ENFILE;
        if (table_room(jobs) < 0)
                return -ENOMEM;
        job = calloc(1, sizeof(*job) + len);
        if (!job)
                return -ENOMEM;
        job->job = *parsed;
        memcpy(job->text, text, len);
        job->number = jobs->count;
        job->next = *bucket;
        *bucket = job;
        jobs->of[jobs->count++] = job;
        *ret_number = job->number;
        return 0;
}

static void lookup_job(
        struct sheaf_fs_jobs *jobs, fuse_req_t req, const char *text)
{
        struct sheaf_jobtree_node node = { SHEAF_JOBTREE_JOB, 0, 0, 0 };
        struct sheaf_jobtree_job parsed;
        const char *why = JOBS_MANY;
        char shown[SHEAF_LISTING_NAME_MAX + 1];
        int rc = sheaf_jobtree_job(text, jobs->slots, &parsed, &why);

        if (rc == -ENOENT) {
                sheaf_fs_reply_nothing(req);
                return;
        }
        if (!rc) {
                pthread_mutex_lock(&jobs->lock);
                rc = find_or_add(jobs, text, &parsed, &node.job);
                pthread_mutex_unlock(&jobs->lock);
        }
        if (!rc) {
                reply_node(jobs, req, &node);
                return;
        }
        snprintf(shown, sizeof(shown), "%s", text);
        for (char *p = shown; *p; p++)
                if ((unsigned char)*p < ' ' || *p == 0x7f)
                        *p = '?';
        sheaf_fs_log(jobs->fs, "no such job job=\"%s\" error=\"%s\" why=\"%s\"",
                shown, strerror(-rc), why);
        fuse_reply_err(req, -rc);
}

/* "." and "..", as those ask who have a handle and no path. */
static struct sheaf_jobtree_node step(
        const struct sheaf_jobtree_node *node, bool up)
{
        struct sheaf_jobtree_node to = *node;

        if (up && node->kind > SHEAF_JOBTREE_TOP)
                to.kind = (enum sheaf_jobtree_kind)(node->kind - 1);
        return to;
}

static void lookup_dots(
        fuse_req_t req, const struct sheaf_jobtree_node *node, bool up)
{
        struct sheaf_fs *fs = sheaf_fs_of(req);
        struct sheaf_jobtree_node to = step(node, up);
        struct fuse_entry_param param = {
                .ino = SHEAF_LISTING_NODE_ROOT,
                .attr_timeout = SHEAF_FS_TIMEOUT_SEC,
                .entry_timeout = SHEAF_FS_TIMEOUT_SEC,
        };

        if (!up || node->kind != SHEAF_JOBTREE_TOP) {
                reply_node(fs->jobs, req, &to);
                return;
        }
        sheaf_tree_stat(&fs->source, 0, &param.attr);
        fuse_reply_entry(req, &param);
}

/* The job of @node, where it has one. 0; -ENOENT: it was never looked up
 * here, so the id is not from this mount. */
static int check_node(struct sheaf_fs_jobs *jobs, fuse_ino_t ino,
        struct sheaf_jobtree_node *ret_node, struct sheaf_mount_job **ret_job)
{
        int rc = sheaf_jobtree_node(jobs->slots, ino, ret_node);

        *ret_job = NULL;
        if (rc || ret_node->kind < SHEAF_JOBTREE_JOB)
                return rc;
        *ret_job = sheaf_jobs_of(jobs, ret_node->job);
        return *ret_job ? 0 : -ENOENT;
}

void sheaf_jobs_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
        struct sheaf_fs_jobs *jobs = sheaf_fs_of(req)->jobs;
        struct sheaf_jobtree_node node = { SHEAF_JOBTREE_TOP, 0, 0, 0 };
        struct sheaf_mount_job *job;
        int rc;

        if (parent == SHEAF_LISTING_NODE_ROOT) {
                reply_node(jobs, req, &node);
                return;
        }
        rc = check_node(jobs, parent, &node, &job);
        if (rc < 0) {
                fuse_reply_err(req, ESTALE);
                return;
        }
        if (!strcmp(name, ".") || !strcmp(name, "..")) {
                lookup_dots(req, &node, name[1]);
                return;
        }
        switch (node.kind) {
        case SHEAF_JOBTREE_TOP:
                node.kind = SHEAF_JOBTREE_JOBS;
                rc = strcmp(name, "jobs") ? -ENOENT : 0;
                break;
        case SHEAF_JOBTREE_JOBS:
                lookup_job(jobs, req, name);
                return;
        case SHEAF_JOBTREE_JOB:
                rc = sheaf_jobtree_epoch(name, &node.epoch);
                if (!rc) {
                        lookup_epoch(jobs, req, job, node.epoch);
                        return;
                }
                break;
        case SHEAF_JOBTREE_EPOCH:
                node.kind = SHEAF_JOBTREE_SLOT;
                rc = sheaf_jobtree_slot(jobs->slots, name, &node.slot);
                break;
        default:
                fuse_reply_err(req, ENOTDIR);
                return;
        }
        if (rc < 0)
                sheaf_fs_reply_nothing(req);
        else
                reply_node(jobs, req, &node);
}

/* ---- the rest ---- */

void sheaf_jobs_getattr(fuse_req_t req, fuse_ino_t ino)
{
        struct sheaf_fs_jobs *jobs = sheaf_fs_of(req)->jobs;
        struct sheaf_jobtree_node node;
        struct fuse_entry_param param;
        struct sheaf_mount_job *job;

        if (check_node(jobs, ino, &node, &job) < 0) {
                fuse_reply_err(req, ESTALE);
                return;
        }
        fill(jobs, ino, &param);
        fuse_reply_attr(req, &param.attr, SHEAF_FS_TIMEOUT_SEC);
}

/* Only slots are listed: jobs and epochs are there when they are named. */
int sheaf_jobs_children(struct sheaf_fs *fs, fuse_ino_t ino, uint64_t at,
        struct sheaf_dir_reply *reply)
{
        struct sheaf_fs_jobs *jobs = fs->jobs;
        char name[SHEAF_JOBTREE_DIGITS_MAX + 1];
        struct sheaf_jobtree_node node;
        struct fuse_entry_param param;
        struct sheaf_mount_job *job;
        uint64_t end = 2;
        int rc = check_node(jobs, ino, &node, &job);

        if (rc < 0)
                return -ESTALE;
        if (node.kind == SHEAF_JOBTREE_SLOT)
                return -ENOTDIR;
        if (node.kind == SHEAF_JOBTREE_EPOCH)
                end += jobs->slots;
        for (; at < end; at++) {
                struct sheaf_jobtree_node child = step(&node, at == 1);

                if (at >= 2) {
                        child.kind = SHEAF_JOBTREE_SLOT;
                        child.slot = (uint32_t)(at - 2);
                        sheaf_jobtree_slot_name(jobs->slots, child.slot, name);
                } else {
                        strcpy(name, at ? ".." : ".");
                }
                fill(jobs, sheaf_jobtree_id(jobs->slots, &child), &param);
                if (at < 2)
                        param.ino = 0; /* the kernel knows these two */
                if (!sheaf_dir_add(reply, name, &param, (off_t)(at + 1)))
                        break;
        }
        return 0;
}

void sheaf_jobs_getxattr(
        fuse_req_t req, fuse_ino_t ino, const char *name, size_t cap_bytes)
{
        struct sheaf_fs_jobs *jobs = sheaf_fs_of(req)->jobs;
        struct sheaf_jobtree_node node;
        sheaf_autofree char *text = NULL;
        size_t len;

        if (strncmp(name, "user.", strlen("user."))) {
                fuse_reply_err(req, EOPNOTSUPP);
                return;
        }
        if (sheaf_jobtree_node(jobs->slots, ino, &node) < 0 ||
                node.kind != SHEAF_JOBTREE_JOBS ||
                strcmp(name, SHEAF_FS_BEGUN_XATTR)) {
                fuse_reply_err(req, ENODATA);
                return;
        }
        text = malloc(SHEAF_BEGUN_TEXT_MAX);
        if (!text) {
                fuse_reply_err(req, ENOMEM);
                return;
        }
        pthread_mutex_lock(&jobs->lock);
        len = sheaf_begun_print(&jobs->begun, text);
        pthread_mutex_unlock(&jobs->lock);
        sheaf_fs_reply_xattr(req, text, len, cap_bytes);
}
