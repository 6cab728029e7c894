/* SPDX-License-Identifier: Apache-2.0 */
/* Journals on disk: CACHE/jobs/VERSION/JOB, with "about" (what the job is) and
 * a file an epoch.
 *
 *  1 they are looked at every minute, and when much was written
 *  2 a job is removed only while nobody takes part in it, and nobody joins it
 *    while it is being removed
 *
 * Threads: loop thread, but for what runs on the pool: it has copies of all
 * that it needs. */
#include "daemon/jobs/internal.h"

#include "daemon/clock.h"
#include "proto/io.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#define KEEP_MS     60000
#define SHARE       32 /* of the disk limit, or the memory's */
#define BYTES_MAX   (UINT64_C(4) << 30)
#define YOUNG_NS    (120 * SHEAF_NS_PER_SEC)
#define LOOK_EARLY  64   /* when a 64th of the bound was written, */
#define LOOK_EPOCHS 1024 /* or so many epochs began */
#define ABOUT_MAX   4096

/* ---- directories ---- */

DIR *sheaf_kept_list(int at, const char *name)
{
        int fd = sheaf_again(openat(
                at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        DIR *list = fd < 0 ? NULL : fdopendir(fd);

        if (!list)
                sheaf_close_p(&fd);
        return list;
}

const char *sheaf_kept_next(DIR *list)
{
        struct dirent *entry;

        while (list && (entry = readdir(list)))
                if (*entry->d_name != '.')
                        return entry->d_name;
        return NULL;
}

void sheaf_kept_remove(int at, const char *name)
{
        DIR *list = sheaf_kept_list(at, name);
        const char *each;

        while ((each = sheaf_kept_next(list)))
                if (unlinkat(dirfd(list), each, 0) && errno == EISDIR)
                        sheaf_kept_remove(dirfd(list), each);
        if (list)
                closedir(list);
        (void)unlinkat(at, name, AT_REMOVEDIR);
}

/* ---- what a job is ---- */

void sheaf_kept_write_about(const struct sheaf_live_job *job)
{
        SheafRecord__Job about = SHEAF_RECORD__JOB__INIT;
        const struct sheaf_digest *subset = &job->subset_name;
        uint8_t bytes[ABOUT_MAX];
        sheaf_autofd int dir =
                sheaf_again(open(job->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        SheafRecord__Job *had = dir < 0 ? NULL : sheaf_kept_read_about(dir);
        sheaf_autofd int fd = -1;
        size_t len;

        if (had)
                sheaf_record__job__free_unpacked(had, NULL);
        if (dir < 0 || had)
                return;
        about.name = (char *)job->name;
        about.uid = job->owner.uid;
        about.grant = job->owner.grant;
        about.order = job->identity.order;
        about.seed = job->identity.seed;
        about.window = job->identity.window;
        about.samples = job->identity.samples;
        if (sheaf_digest_known(subset)) {
                about.subset.data = (uint8_t *)subset->bytes;
                about.subset.len = sizeof(subset->bytes);
        }
        about.begun_ns = (uint64_t)sheaf_wall_ns();
        len = sheaf_record__job__pack(&about, bytes);
        fd = sheaf_again(openat(dir, SHEAF_KEPT_ABOUT_NEW,
                O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
        /* Without it the job is not listed, no more. */
        if (fd >= 0 && !sheaf_write_all(fd, bytes, len))
                (void)renameat(
                        dir, SHEAF_KEPT_ABOUT_NEW, dir, SHEAF_KEPT_ABOUT);
}

SheafRecord__Job *sheaf_kept_read_about(int dir)
{
        sheaf_autofd int fd = sheaf_again(openat(
                dir, SHEAF_KEPT_ABOUT, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
        uint8_t bytes[ABOUT_MAX];
        ssize_t n = fd < 0 ? -1 : sheaf_again(read(fd, bytes, sizeof(bytes)));

        return n <= 0 ? NULL
                      : sheaf_record__job__unpack(NULL, (size_t)n, bytes);
}

/* ---- the bound ---- */

struct keep {
        uv_work_t work;
        struct sheaf_jobs *jobs;
        struct sheaf_kept_bound bound;
};

static void keep_work(uv_work_t *work)
{
        struct keep *keep = work->data;

        sheaf_kept_bound_work(&keep->bound);
}

static void keep_free(struct keep *keep)
{
        free(keep->bound.versions);
        free(keep->bound.jobs);
        free(keep);
}

static void keep_done(uv_work_t *work, int status)
{
        struct keep *keep = work->data;
        struct sheaf_jobs *jobs = keep->jobs;

        jobs->keeping = false;
        if (!status && !jobs->stopped) {
                jobs->stats.journal_bytes = keep->bound.bytes;
                sheaf_store_set_journals(
                        jobs->daemon->store, keep->bound.bytes);
        }
        keep_free(keep);
        if (--jobs->open_handles == 0)
                free(jobs);
}

static uint64_t bytes_max(const struct sheaf_jobs *jobs)
{
        const struct sheaf_config *config = jobs->daemon->config;
        /* Without a disk tier runs go on after a kill all the same. */
        uint64_t limit =
                config->disk_bytes ? config->disk_bytes : config->memory_bytes;

        return SHEAF_MIN(limit / SHARE, BYTES_MAX);
}

static void hex_of(const uint8_t uuid[16], char ret_hex[33])
{
        for (int i = 0; i < 16; i++)
                snprintf(ret_hex + 2 * i, 3, "%02x", uuid[i]);
}

static int list_versions(
        struct sheaf_registry *registry, struct sheaf_kept_bound *bound)
{
        struct sheaf_reg_dataset *ds;
        struct sheaf_reg_version *version;
        size_t count = 0;

        for (ds = sheaf_registry_first(registry); ds; ds = TAILQ_NEXT(ds, link))
                TAILQ_FOREACH (version, &ds->versions, link)
                        count++;
        bound->versions = calloc(count + 1, sizeof(*bound->versions));
        if (!bound->versions)
                return -ENOMEM;
        for (ds = sheaf_registry_first(registry); ds; ds = TAILQ_NEXT(ds, link))
                TAILQ_FOREACH (version, &ds->versions, link)
                        hex_of(version->record->uuid.data,
                                bound->versions[bound->version_count++]);
        return 0;
}

static int list_jobs(
        const struct sheaf_jobs *jobs, struct sheaf_kept_bound *bound)
{
        const struct sheaf_jobs_cohort *cohort;
        const struct sheaf_live_job *job;

        bound->jobs = calloc(jobs->stats.jobs + 1, sizeof(*bound->jobs));
        if (!bound->jobs)
                return -ENOMEM;
        LIST_FOREACH (cohort, &jobs->cohorts, link)
                LIST_FOREACH (job, &cohort->live, link) {
                        struct sheaf_kept_place *place =
                                &bound->jobs[bound->job_count++];

                        hex_of(cohort->version->record->uuid.data,
                                place->version);
                        memcpy(place->id, job->id, sizeof(place->id));
                }
        return 0;
}

static void keep_begin(struct sheaf_jobs *jobs, int64_t before_ns)
{
        struct sheaf_daemon *daemon = jobs->daemon;
        struct keep *keep;

        if (jobs->keeping || !LIST_EMPTY(&jobs->removals))
                return;
        keep = sheaf_new(struct keep, 1);
        if (!keep)
                return;
        if (list_versions(daemon->registry, &keep->bound) ||
                list_jobs(jobs, &keep->bound)) {
                keep_free(keep);
                return;
        }
        keep->jobs = jobs;
        keep->bound.before_ns = before_ns;
        keep->bound.bytes_max = bytes_max(jobs);
        snprintf(keep->bound.root, sizeof(keep->bound.root), "%s/jobs",
                daemon->config->cache_dir);
        keep->work.data = keep;
        jobs->written_bytes = jobs->written_epochs = 0;
        if (uv_queue_work(daemon->loop, &keep->work, keep_work, keep_done)) {
                keep_free(keep);
                return;
        }
        jobs->keeping = true;
        jobs->open_handles++;
}

/* ---- versions that go ---- */

struct removal {
        uv_work_t work;
        struct sheaf_jobs *jobs;
        char path[PATH_MAX];
};

static void removal_work(uv_work_t *work)
{
        struct removal *removal = work->data;

        sheaf_kept_remove(AT_FDCWD, removal->path);
}

static void removal_done(uv_work_t *work, int status)
{
        struct removal *removal = work->data;
        struct sheaf_jobs *jobs = removal->jobs;

        (void)status;
        free(removal);
        if (--jobs->open_handles == 0)
                free(jobs);
        else if (!jobs->stopped)
                keep_begin(jobs, sheaf_wall_ns() - YOUNG_NS);
}

void sheaf_jobs_version_gone(void *arg, const uint8_t uuid[16])
{
        struct sheaf_jobs *jobs = arg;
        struct removal *removal = sheaf_new(struct removal, 1);
        char hex[33];

        if (!removal)
                return; /* the timer will do it */
        hex_of(uuid, hex);
        removal->jobs = jobs;
        removal->work.data = removal;
        snprintf(removal->path, sizeof(removal->path), "%s/jobs/%s",
                jobs->daemon->config->cache_dir, hex);
        if (uv_queue_work(jobs->daemon->loop, &removal->work, removal_work,
                    removal_done))
                free(removal);
        else
                jobs->open_handles++;
}

static void on_keep(uv_timer_t *timer)
{
        keep_begin(timer->data, sheaf_wall_ns() - YOUNG_NS);
}

void sheaf_jobs_keep(struct sheaf_jobs *jobs)
{
        char path[PATH_MAX];

        snprintf(
                path, sizeof(path), "%s/jobs", jobs->daemon->config->cache_dir);
        if (mkdir(path, 0700) && errno != EEXIST)
                sheaf_log_rc(-errno, SHEAF_LOG_WARN, "no journals of jobs",
                        "dir=%s", path);
        LIST_INIT(&jobs->removals);
        uv_timer_init(jobs->daemon->loop, &jobs->keep);
        jobs->keep.data = jobs;
        jobs->open_handles++;
        uv_timer_start(&jobs->keep, on_keep, KEEP_MS, KEEP_MS);
        keep_begin(jobs, sheaf_wall_ns());
        sheaf_registry_set_gone(
                jobs->daemon->registry, sheaf_jobs_version_gone, jobs);
}

void sheaf_jobs_wrote(struct sheaf_jobs *jobs, uint64_t bytes, bool begins)
{
        jobs->written_bytes += bytes;
        jobs->written_epochs += begins;
        jobs->stats.journal_bytes += bytes;
        sheaf_store_set_journals(
                jobs->daemon->store, jobs->stats.journal_bytes);
        if (jobs->written_bytes > bytes_max(jobs) / LOOK_EARLY ||
                jobs->written_epochs > LOOK_EPOCHS)
                keep_begin(jobs, sheaf_wall_ns() - YOUNG_NS);
}
