/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of the jobs that have journals, and their removal (jobs.h).
 *
 * Threads: loop thread, but for what runs on the pool: it uses the query
 * alone. */
#include "daemon/jobs/internal.h"

#include "daemon/config.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>

static void kept_clear(struct sheaf_kept_job *kept)
{
        if (kept->about)
                sheaf_record__job__free_unpacked(kept->about, NULL);
        free(kept->each);
        *kept = (struct sheaf_kept_job){ 0 };
}

void sheaf_kept_clear(struct sheaf_kept_query *query)
{
        for (size_t i = 0; i < query->count; i++)
                kept_clear(&query->found[i]);
        free(sheaf_steal(&query->found));
        free(sheaf_steal(&query->uuids));
        query->count = query->uuid_count = 0;
}

bool sheaf_kept_live(
        const struct sheaf_jobs *jobs, const struct sheaf_kept_job *kept)
{
        const struct sheaf_jobs_cohort *cohort;
        const struct sheaf_live_job *job;

        LIST_FOREACH (cohort, &jobs->cohorts, link)
                LIST_FOREACH (job, &cohort->live, link)
                        if (!memcmp(cohort->version->record->uuid.data,
                                    kept->uuid, sizeof(kept->uuid)) &&
                                !strcmp(job->id, kept->id))
                                return true;
        return false;
}

bool sheaf_jobs_removing(const struct sheaf_live_job *job)
{
        const struct sheaf_kept_query *query;

        LIST_FOREACH (query, &job->jobs->removals, link)
                if (!strcmp(query->job, job->name))
                        return true;
        return false;
}

/* ---- on the pool ---- */

static bool wanted(
        const struct sheaf_kept_query *query, const SheafRecord__Job *about)
{
        return (query->all ||
                       (about->grant == query->grant &&
                               (query->grant || about->uid == query->uid))) &&
               (!*query->job || !strcmp(query->job, about->name));
}

static int by_epoch(const void *a, const void *b)
{
        const struct sheaf_kept_epoch *x = a, *y = b;

        return (x->epoch > y->epoch) - (x->epoch < y->epoch);
}

/* Numbers of the epochs, sorted. */
static int epochs_of(DIR *list, struct sheaf_kept_job *kept)
{
        const char *name;
        size_t cap = 0;

        while ((name = sheaf_kept_next(list))) {
                uint64_t epoch;

                if (!sheaf_journal_name(name, &epoch))
                        continue;
                if (kept->epochs == cap) {
                        struct sheaf_kept_epoch *wider;

                        cap = cap ? 2 * cap : 16;
                        wider = realloc(kept->each, cap * sizeof(*wider));
                        if (!wider)
                                return -ENOMEM;
                        kept->each = wider;
                }
                kept->each[kept->epochs++] =
                        (struct sheaf_kept_epoch){ .epoch = epoch };
        }
        if (kept->epochs)
                qsort(kept->each, kept->epochs, sizeof(*kept->each), by_epoch);
        return 0;
}

static int sum_up(const struct sheaf_kept_query *query, DIR *list,
        struct sheaf_kept_job *kept)
{
        int rc = epochs_of(list, kept);

        for (uint64_t i = 0; rc == 0 && i < kept->epochs; i++) {
                struct sheaf_kept_epoch *each = &kept->each[i];
                struct stat st;
                char name[24];

                snprintf(name, sizeof(name), "%llu",
                        (unsigned long long)each->epoch);
                if (!query->epochs && i + 1 < kept->epochs) {
                        /* its bytes are enough */
                        if (fstatat(dirfd(list), name, &st, 0) == 0)
                                kept->bytes += (uint64_t)st.st_blocks * 512;
                        continue;
                }
                if (sheaf_journal_sum(dirfd(list), each->epoch, &each->sum))
                        continue; /* it went meanwhile */
                kept->bytes += each->sum.bytes;
                kept->newest = each->epoch;
                kept->newest_high = each->sum.high;
        }
        if (!query->epochs)
                free(sheaf_steal(&kept->each));
        return rc;
}

/* What tells whose it is goes last: one who is interrupted can try again. What
 * was answered outlives a loss of power, or the next run of that name would go
 * on with the old one's epochs. */
static int remove_job(int version, const char *id)
{
        DIR *list = sheaf_kept_list(version, id);
        const char *name;
        int rc = 0;

        while ((name = sheaf_kept_next(list)))
                if (strcmp(name, SHEAF_KEPT_ABOUT) &&
                        unlinkat(dirfd(list), name, 0) && !rc)
                        rc = -errno;
        if (list)
                closedir(list);
        if (rc)
                return rc;
        sheaf_kept_remove(version, id);
        if (!faccessat(version, id, F_OK, AT_SYMLINK_NOFOLLOW))
                return -ENOTEMPTY;
        return sheaf_again(fsync(version)) ? -errno : 0;
}

static int look_at(struct sheaf_kept_query *query, const uint8_t uuid[16],
        int version, const char *id)
{
        struct sheaf_kept_job kept = { 0 };
        DIR *list = sheaf_kept_list(version, id);
        int rc = 0;

        if (!list)
                return 0;
        kept.about = sheaf_kept_read_about(dirfd(list));
        if (!kept.about || !wanted(query, kept.about)) {
                kept_clear(&kept);
                closedir(list);
                return 0;
        }
        memcpy(kept.uuid, uuid, sizeof(kept.uuid));
        snprintf(kept.id, sizeof(kept.id), "%s", id);
        if (!query->remove)
                rc = sum_up(query, list, &kept);
        closedir(list);
        if (query->remove)
                rc = remove_job(version, id);
        if (rc < 0) {
                kept_clear(&kept);
                return rc;
        }
        query->found[query->count++] = kept;
        return 0;
}

static void list_work(uv_work_t *work)
{
        struct sheaf_kept_query *query = work->data;
        const char *cache = query->jobs->daemon->config->cache_dir;

        query->found = calloc(SHEAF_KEPT_MAX, sizeof(*query->found));
        query->rc = query->found ? 0 : -ENOMEM;
        for (size_t i = 0; query->rc == 0 && i < query->uuid_count; i++) {
                char path[PATH_MAX], hex[33];
                const char *id;
                DIR *list;

                for (int b = 0; b < 16; b++)
                        snprintf(hex + 2 * b, 3, "%02x", query->uuids[i][b]);
                snprintf(path, sizeof(path), "%s/jobs/%s", cache, hex);
                list = sheaf_kept_list(AT_FDCWD, path);
                while (query->rc == 0 && query->count < SHEAF_KEPT_MAX &&
                        (id = sheaf_kept_next(list)))
                        if (strlen(id) == 32)
                                query->rc = look_at(query, query->uuids[i],
                                        dirfd(list), id);
                if (list)
                        closedir(list);
        }
}

static void list_done(uv_work_t *work, int status)
{
        struct sheaf_kept_query *query = work->data;

        if (query->remove)
                LIST_REMOVE(query, link);
        query->done(query, status ? status : query->rc);
}

/* Whether clients take part in one that is to be removed. */
static bool in_use(const struct sheaf_kept_query *query)
{
        const struct sheaf_job_owner owner = { .grant = query->grant,
                .uid = query->grant ? 0 : query->uid };
        const struct sheaf_jobs_cohort *cohort;
        const struct sheaf_live_job *job;

        LIST_FOREACH (cohort, &query->jobs->cohorts, link)
                LIST_FOREACH (job, &cohort->live, link) {
                        const void *uuid = cohort->version->record->uuid.data;

                        if (strcmp(job->name, query->job) ||
                                (!query->all &&
                                        !sheaf_job_owned(&job->owner, &owner)))
                                continue;
                        for (size_t i = 0; i < query->uuid_count; i++)
                                if (!memcmp(uuid, query->uuids[i], 16))
                                        return true;
                }
        return false;
}

void sheaf_kept_begin(struct sheaf_kept_query *query)
{
        struct sheaf_jobs *jobs = query->jobs;

        query->work.data = query;
        if (query->remove && in_use(query)) {
                query->done(query, -EBUSY);
                return;
        }
        if (query->remove)
                LIST_INSERT_HEAD(&jobs->removals, query, link);
        if (uv_queue_work(
                    jobs->daemon->loop, &query->work, list_work, list_done)) {
                if (query->remove)
                        LIST_REMOVE(query, link);
                query->done(query, -ENOMEM);
        }
}
