/* SPDX-License-Identifier: Apache-2.0 */
/* Journals on disk: CACHE/jobs/VERSION/JOB, with "about" (what the job is) and
 * a file an epoch.
 *
 *  1 journals of versions that are gone go; a directory made just now is left
 *    alone, since its version may be younger than the list of versions
 *  2 over the bound the oldest epochs go first, those among the three newest
 *    of a job last
 *  3 a job is removed only while nobody takes part in it, and nobody joins it
 *    while it is being removed
 *
 * Threads: loop thread, but for what runs on the pool: it has copies of all
 * that it needs. */
#include "daemon/jobs_internal.h"

#include "daemon/clock.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#define KEEP_MS       60000
#define SHARE         32 /* of the disk limit */
#define BYTES_MAX     (UINT64_C(4) << 30)
#define YOUNG_NS      (120 * SHEAF_NS_PER_SEC)
#define LOOK_EARLY    64 /* when a 64th of the bound was written */
#define ABOUT_MAX     4096
#define ABOUT_NAME    "about"
#define ABOUT_PARTIAL "about.new"

static bool uuid_of(const char *hex, uint8_t ret_uuid[16])
{
        for (int i = 0; i < 16; i++) {
                unsigned int byte;
                int n = 0;

                if (sscanf(hex + 2 * i, "%2x%n", &byte, &n) != 1 || n != 2)
                        return false;
                ret_uuid[i] = (uint8_t)byte;
        }
        return !hex[32];
}

/* ---- directories ---- */

DIR *sheaf_kept_list(int at, const char *name)
{
        int fd = openat(
                at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
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
                open(job->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        sheaf_autofd int fd = -1;
        size_t len;

        if (dir < 0 || !faccessat(dir, ABOUT_NAME, F_OK, 0))
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
        fd = openat(dir, ABOUT_PARTIAL,
                O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
        /* Without it the job is not listed, no more. */
        if (fd >= 0 && write(fd, bytes, len) == (ssize_t)len)
                (void)renameat(dir, ABOUT_PARTIAL, dir, ABOUT_NAME);
}

SheafRecord__Job *sheaf_kept_read_about(int dir)
{
        sheaf_autofd int fd =
                openat(dir, ABOUT_NAME, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        uint8_t bytes[ABOUT_MAX];
        ssize_t n = fd < 0 ? -1 : read(fd, bytes, sizeof(bytes));

        return n <= 0 ? NULL
                      : sheaf_record__job__unpack(NULL, (size_t)n, bytes);
}

/* ---- the bound ---- */

struct old_epoch {
        char version[33], job[33];
        uint64_t epoch, bytes;
        int64_t written_s;
        bool newest; /* one of a job's last ones */
};

struct keep {
        uv_work_t work;
        struct sheaf_jobs *jobs;
        char root[PATH_MAX];
        uint8_t (*live)[16]; /* versions */
        size_t live_count;
        int64_t before_ns; /* what was made after it is left alone */
        uint64_t bytes_max, bytes;
        struct old_epoch *epochs;
        size_t count, cap;
};

static uint64_t blocks_of(const struct stat *st)
{
        return (uint64_t)st->st_blocks * 512;
}

static void note_epoch(struct keep *keep, const struct old_epoch *epoch)
{
        if (keep->count == keep->cap) {
                size_t cap = keep->cap ? 2 * keep->cap : 256;
                struct old_epoch *wider =
                        realloc(keep->epochs, cap * sizeof(*wider));

                if (!wider)
                        return; /* it is counted, and goes another time */
                keep->epochs = wider;
                keep->cap = cap;
        }
        keep->epochs[keep->count++] = *epoch;
}

static int by_epoch(const void *a, const void *b)
{
        const struct old_epoch *x = a, *y = b;

        return (x->epoch > y->epoch) - (x->epoch < y->epoch);
}

static void look_at_job(
        struct keep *keep, int at, const char *version, const char *job)
{
        size_t first = keep->count;
        DIR *list = sheaf_kept_list(at, job);
        const char *name;

        while ((name = sheaf_kept_next(list))) {
                struct old_epoch epoch = { 0 };
                struct stat st;

                if (fstatat(dirfd(list), name, &st, AT_SYMLINK_NOFOLLOW))
                        continue;
                keep->bytes += blocks_of(&st);
                if (!sheaf_journal_name(name, &epoch.epoch))
                        continue;
                memcpy(epoch.version, version, sizeof(epoch.version));
                snprintf(epoch.job, sizeof(epoch.job), "%s", job);
                epoch.bytes = blocks_of(&st);
                epoch.written_s = st.st_mtim.tv_sec;
                note_epoch(keep, &epoch);
        }
        if (list)
                closedir(list);
        if (keep->count == first)
                return;
        qsort(keep->epochs + first, keep->count - first, sizeof(*keep->epochs),
                by_epoch);
        for (size_t i = first; i < keep->count; i++)
                keep->epochs[i].newest = keep->count - i <= SHEAF_RUNS_PER_JOB;
}

static bool is_live(const struct keep *keep, const char *name)
{
        uint8_t uuid[16];

        for (size_t i = 0; uuid_of(name, uuid) && i < keep->live_count; i++)
                if (!memcmp(keep->live[i], uuid, sizeof(uuid)))
                        return true;
        return false;
}

static int64_t made_ns(const struct stat *st)
{
        return st->st_mtim.tv_sec * SHEAF_NS_PER_SEC + st->st_mtim.tv_nsec;
}

static void look_at_version(struct keep *keep, int root, const char *name)
{
        char version[33];
        const char *job;
        struct stat st;
        DIR *list;

        if (strlen(name) != 32 || fstatat(root, name, &st, AT_SYMLINK_NOFOLLOW))
                return;
        if (!is_live(keep, name) && made_ns(&st) < keep->before_ns) {
                sheaf_kept_remove(root, name);
                return;
        }
        memcpy(version, name, sizeof(version));
        keep->bytes += blocks_of(&st);
        list = sheaf_kept_list(root, version);
        while ((job = sheaf_kept_next(list))) {
                if (fstatat(dirfd(list), job, &st, AT_SYMLINK_NOFOLLOW) == 0)
                        keep->bytes += blocks_of(&st);
                if (strlen(job) == 32)
                        look_at_job(keep, dirfd(list), version, job);
        }
        if (list)
                closedir(list);
}

static int by_age(const void *a, const void *b)
{
        const struct old_epoch *x = a, *y = b;

        if (x->newest != y->newest)
                return x->newest - y->newest;
        return (x->written_s > y->written_s) - (x->written_s < y->written_s);
}

static void shrink(struct keep *keep, int root)
{
        if (keep->bytes <= keep->bytes_max)
                return;
        qsort(keep->epochs, keep->count, sizeof(*keep->epochs), by_age);
        for (size_t i = 0; i < keep->count && keep->bytes > keep->bytes_max;
                i++) {
                const struct old_epoch *epoch = &keep->epochs[i];
                char path[128];

                snprintf(path, sizeof(path), "%s/%s/%llu", epoch->version,
                        epoch->job, (unsigned long long)epoch->epoch);
                if (unlinkat(root, path, 0) == 0)
                        keep->bytes -= SHEAF_MIN(epoch->bytes, keep->bytes);
        }
}

static void keep_work(uv_work_t *work)
{
        struct keep *keep = work->data;
        DIR *list = sheaf_kept_list(AT_FDCWD, keep->root);
        const char *name;
        struct stat st;

        if (list && fstat(dirfd(list), &st) == 0)
                keep->bytes = blocks_of(&st);
        while ((name = sheaf_kept_next(list)))
                look_at_version(keep, dirfd(list), name);
        if (!list)
                return;
        shrink(keep, dirfd(list));
        closedir(list);
}

static void keep_free(struct keep *keep)
{
        free(keep->live);
        free(keep->epochs);
        free(keep);
}

static void keep_done(uv_work_t *work, int status)
{
        struct keep *keep = work->data;
        struct sheaf_jobs *jobs = keep->jobs;

        jobs->keeping = false;
        if (!status && !jobs->stopped) {
                jobs->stats.journal_bytes = keep->bytes;
                sheaf_store_set_journals(jobs->daemon->store, keep->bytes);
        }
        keep_free(keep);
        if (--jobs->open_handles == 0)
                free(jobs);
}

static uint64_t bytes_max(const struct sheaf_jobs *jobs)
{
        return SHEAF_MIN(jobs->daemon->config->disk_bytes / SHARE, BYTES_MAX);
}

static int live_versions(struct sheaf_registry *registry,
        uint8_t (**ret_live)[16], size_t *ret_n)
{
        struct sheaf_reg_dataset *ds;
        struct sheaf_reg_version *version;
        uint8_t(*live)[16];
        size_t count = 0, n = 0;

        for (ds = sheaf_registry_first(registry); ds; ds = TAILQ_NEXT(ds, link))
                TAILQ_FOREACH (version, &ds->versions, link)
                        count++;
        live = calloc(count + 1, sizeof(*live));
        if (!live)
                return -ENOMEM;
        for (ds = sheaf_registry_first(registry); ds; ds = TAILQ_NEXT(ds, link))
                TAILQ_FOREACH (version, &ds->versions, link)
                        memcpy(live[n++], version->record->uuid.data, 16);
        *ret_live = live;
        *ret_n = n;
        return 0;
}

static void keep_begin(struct sheaf_jobs *jobs, int64_t before_ns)
{
        struct sheaf_daemon *daemon = jobs->daemon;
        struct keep *keep;

        if (jobs->keeping || !LIST_EMPTY(&jobs->removals))
                return;
        keep = sheaf_new(struct keep, 1);
        if (!keep || live_versions(daemon->registry, &keep->live,
                             &keep->live_count)) {
                free(keep);
                return;
        }
        keep->jobs = jobs;
        keep->before_ns = before_ns;
        keep->bytes_max = bytes_max(jobs);
        snprintf(keep->root, sizeof(keep->root), "%s/jobs",
                daemon->config->cache_dir);
        keep->work.data = keep;
        jobs->written_bytes = 0;
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
        for (int i = 0; i < 16; i++)
                snprintf(hex + 2 * i, 3, "%02x", uuid[i]);
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

void sheaf_jobs_wrote(struct sheaf_jobs *jobs, uint64_t bytes)
{
        jobs->written_bytes += bytes;
        jobs->stats.journal_bytes += bytes;
        sheaf_store_set_journals(
                jobs->daemon->store, jobs->stats.journal_bytes);
        if (jobs->written_bytes > bytes_max(jobs) / LOOK_EARLY)
                keep_begin(jobs, sheaf_wall_ns() - YOUNG_NS);
}
