/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs of live clients and their journals (jobs.h).
 *
 *  1 a bind is answered after what it changed is in the journal, whose mark
 *    is then above each of its slots
 *  2 one piece of work on the pool a job: binds that come meanwhile queue up,
 *    in order, so a file's head stands before its records
 *  3 a job whose cohort ended while the pool works for it is freed after that
 *  4 a journal that cannot be written does not stop a training run: it is
 *    logged and counted; after a kill of the daemon samples may repeat, or
 *    the job is refused under its name
 *
 * Threads: loop thread, but for work(). */
#include "daemon/jobs_internal.h"

#include "daemon/clock.h"
#include "daemon/log.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

/* A job that gives way to another one was not used for so long. */
#define IDLE_NS (60 * SHEAF_NS_PER_SEC)

struct epoch_mark {
        uint64_t epoch;
        uint32_t high; /* in the journal, or about to be */
        bool known;
};

struct sheaf_live_job {
        LIST_ENTRY(sheaf_live_job) link;
        struct sheaf_jobs_cohort *cohort; /* NULL: it ended */
        struct sheaf_jobs *jobs;
        char name[SHEAF_JOB_NAME_MAX + 1];
        uint64_t grant;
        uid_t uid;
        struct sheaf_journal_job identity;
        struct sheaf_job_config config;
        struct sheaf_job *job; /* NULL: the journal is still being read */
        struct epoch_mark marks[SHEAF_JOURNAL_EPOCHS];
        TAILQ_HEAD(, sheaf_bind) binds;
        int64_t used_ns;
        /* of work(): */
        uv_work_t work;
        bool working, reading;
        char parent[PATH_MAX - 160], dir[PATH_MAX];
        struct sheaf_bind *writing; /* waits for it; NULL: gone */
        struct sheaf_journal_record *records;
        size_t record_count;
        uint64_t epoch;
        bool begins;
        struct sheaf_journal journal;
        const char *why;
        int rc;
};

/* ---- cohorts ---- */

static int cohort_new(struct sheaf_jobs *jobs, struct sheaf_handle *handle,
        struct sheaf_jobs_cohort **ret_cohort)
{
        uint32_t samples = handle->version->fetch.listing.file_count;
        struct sheaf_jobs_cohort *cohort =
                sheaf_new(struct sheaf_jobs_cohort, 1);
        struct sheaf_cohort_config config = {
                .samples = samples,
                .here = sheaf_jobs_here,
                .arg = cohort,
        };
        int rc = -ENOMEM;

        if (!cohort)
                return -ENOMEM;
        memcpy(&config.seed, jobs->daemon->instance, sizeof(config.seed));
        config.seed ^= (uint64_t)sheaf_now_ns();
        cohort->jobs = jobs;
        cohort->version = handle->version;
        cohort->lodging = handle->lodging;
        cohort->coming_bits = sheaf_new(uint64_t, samples / 64 + 1);
        if (cohort->coming_bits)
                rc = sheaf_cohort_new(&config, &cohort->cohort);
        if (rc < 0) {
                free(cohort->coming_bits);
                free(cohort);
                return rc;
        }
        LIST_INSERT_HEAD(&jobs->cohorts, cohort, link);
        *ret_cohort = cohort;
        return 0;
}

/* Makes @handle one of its cohort's users. */
static int join(struct sheaf_jobs *jobs, struct sheaf_handle *handle)
{
        struct sheaf_jobs_cohort *cohort;
        int rc = 0;

        if (handle->cohort)
                return 0;
        LIST_FOREACH (cohort, &jobs->cohorts, link)
                if (cohort->version == handle->version &&
                        cohort->lodging == handle->lodging)
                        break;
        if (!cohort)
                rc = cohort_new(jobs, handle, &cohort);
        if (rc < 0)
                return rc;
        handle->cohort = cohort;
        cohort->users++;
        return 0;
}

static void finish(struct sheaf_bind *bind, int rc, const char *why)
{
        TAILQ_REMOVE(&bind->job->binds, bind, link);
        free(sheaf_steal(&bind->records));
        bind->job = NULL;
        bind->done(bind, rc, why);
}

static void job_free(struct sheaf_live_job *job)
{
        sheaf_journal_clear(&job->journal);
        free(job->records);
        free(job);
}

/* Out of its cohort; what waits is answered. */
static void job_end(struct sheaf_live_job *job, const char *why)
{
        struct sheaf_bind *bind;

        LIST_REMOVE(job, link);
        job->cohort->live_count--;
        job->cohort = NULL;
        job->jobs->stats.jobs--;
        sheaf_job_free(job->job);
        job->job = NULL;
        job->writing = NULL;
        while ((bind = TAILQ_FIRST(&job->binds)))
                finish(bind, -ESTALE, why);
        if (!job->working)
                job_free(job);
}

void sheaf_jobs_leave(struct sheaf_handle *handle)
{
        struct sheaf_jobs_cohort *cohort = sheaf_steal(&handle->cohort);
        struct sheaf_live_job *job;
        struct sheaf_bind *bind, *next;

        LIST_FOREACH (job, &cohort->live, link)
                for (bind = TAILQ_FIRST(&job->binds); bind; bind = next) {
                        next = TAILQ_NEXT(bind, link);
                        if (bind->handle == handle && bind != job->writing)
                                finish(bind, -ESTALE, "the dataset was closed");
                }
        if (--cohort->users)
                return;
        while ((job = LIST_FIRST(&cohort->live)))
                job_end(job, "the dataset was closed");
        sheaf_jobs_fetch_none(cohort);
        LIST_REMOVE(cohort, link);
        sheaf_cohort_free(cohort->cohort);
        free(cohort->coming_bits);
        free(cohort);
}

/* ---- binding ---- */

static struct epoch_mark *mark_of(struct sheaf_live_job *job, uint64_t epoch)
{
        struct epoch_mark *oldest = &job->marks[0];

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(job->marks); i++) {
                struct epoch_mark *mark = &job->marks[i];

                if (mark->known && mark->epoch == epoch)
                        return mark;
                if (!mark->known ||
                        (oldest->known && mark->epoch < oldest->epoch))
                        oldest = mark;
        }
        *oldest = (struct epoch_mark){ .epoch = epoch };
        return oldest;
}

/* The mark goes up to cover @slot. */
static void raise_mark(struct sheaf_bind *bind, struct epoch_mark *mark,
        uint32_t slot, uint32_t samples)
{
        if (slot < mark->high)
                return;
        mark->high = (uint32_t)SHEAF_MIN(
                ((uint64_t)slot / SHEAF_JOURNAL_STEP + 1) * SHEAF_JOURNAL_STEP,
                (uint64_t)samples);
        bind->records[bind->record_count++] = sheaf_journal_mark(mark->high);
}

static int bind_slots(struct sheaf_live_job *job, struct sheaf_bind *bind,
        struct sheaf_run *run, struct epoch_mark *mark)
{
        int64_t now_ns = sheaf_now_ns();

        for (size_t i = 0; i < bind->count; i++) {
                uint32_t slot = bind->slots[i];
                struct sheaf_bound bound;
                int rc = sheaf_run_bind(run, slot, now_ns, &bound);

                if (rc < 0)
                        return rc;
                bind->slots[i] = bound.sample;
                if (bound.fetch)
                        sheaf_jobs_fetch(job->cohort, bind->lane, bound.sample);
                raise_mark(bind, mark, slot, job->identity.samples);
                if (bound.again)
                        continue;
                job->jobs->stats.bound++;
                if (!bound.replaced)
                        continue;
                job->jobs->stats.replaced++;
                bind->records[bind->record_count++] =
                        sheaf_journal_replaced(slot, bound.sample);
        }
        return 0;
}

/* 0, or an error with its text. Records are left in @bind. */
static int bind_now(struct sheaf_live_job *job, struct sheaf_bind *bind,
        const char **ret_why)
{
        struct sheaf_run *run;
        struct epoch_mark *mark;
        int rc;

        if (!bind->count)
                return 0; /* it joins, no more */
        for (size_t i = 0; i < bind->count; i++)
                if (bind->slots[i] >= job->identity.samples) {
                        *ret_why = "a slot is beyond the end of the epoch";
                        return -ERANGE;
                }
        bind->records = sheaf_new(struct sheaf_journal_record,
                SHEAF_JOURNAL_HEAD + 2 * bind->count);
        rc = bind->records ? sheaf_run_begin(job->job, bind->epoch, &run)
                           : -ENOMEM;
        if (rc == -ESTALE)
                *ret_why = "that epoch of the job is over";
        if (rc < 0)
                return rc;
        mark = mark_of(job, bind->epoch);
        if (!mark->known) {
                struct sheaf_run_state state;

                sheaf_run_identity(run, &state);
                sheaf_journal_head(&job->identity, &state, bind->records);
                bind->record_count = SHEAF_JOURNAL_HEAD;
                bind->begins = mark->known = true;
        }
        if (bind->rate > 0)
                sheaf_job_set_rate(job->job, bind->rate);
        rc = bind_slots(job, bind, run, mark);
        bind->not_before_ns = sheaf_job_not_before(job->job, job->used_ns);
        return rc;
}

/* ---- the pool ---- */

static void advance(struct sheaf_live_job *job);

static void work(uv_work_t *work)
{
        struct sheaf_live_job *job = work->data;

        if (job->reading) {
                job->rc = sheaf_journal_read(
                        job->dir, &job->identity, &job->journal, &job->why);
                return;
        }
        job->rc = sheaf_journal_append(job->dir, job->epoch, job->begins,
                job->records, job->record_count);
        if (job->rc == -ENOENT) {
                (void)mkdir(job->parent, 0700);
                job->rc = sheaf_journal_append(job->dir, job->epoch,
                        job->begins, job->records, job->record_count);
        }
}

static int restore(struct sheaf_live_job *job)
{
        int rc = 0;

        for (size_t i = 0; rc == 0 && i < job->journal.count; i++) {
                const struct sheaf_run_state *state = &job->journal.states[i];

                rc = sheaf_run_restore(job->job, state);
                if (rc == 0)
                        job->marks[i] = (struct epoch_mark){ state->epoch,
                                state->high, true };
        }
        sheaf_journal_clear(&job->journal);
        return rc;
}

static void has_read(struct sheaf_live_job *job)
{
        const char *why = "the job's journal cannot be read";
        struct sheaf_bind *bind;
        int rc = job->rc;

        if (rc == -EINVAL)
                why = job->why;
        if (rc == 0)
                rc = sheaf_job_new(
                        job->cohort->cohort, &job->config, &job->job);
        if (rc == 0)
                rc = restore(job);
        if (rc == 0) {
                advance(job);
                return;
        }
        if (rc == -EBADMSG)
                why = "the job's journal is damaged; give the job another name";
        sheaf_log_rc(rc, SHEAF_LOG_WARN, "job not restored",
                "dir=%s why=\"%s\"", job->dir, why);
        while ((bind = TAILQ_FIRST(&job->binds)))
                finish(bind, rc, why);
        job_end(job, why);
}

static void has_written(struct sheaf_live_job *job)
{
        struct sheaf_bind *bind = sheaf_steal(&job->writing);

        free(sheaf_steal(&job->records));
        if (job->rc < 0) {
                job->jobs->stats.journal_errors++;
                if (sheaf_log_once(
                            &job->jobs->journal_once, 10 * SHEAF_NS_PER_SEC))
                        sheaf_log_rc(job->rc, SHEAF_LOG_WARN,
                                "journal not written",
                                "dir=%s why=\"after a kill of sheafd samples "
                                "may repeat, or the job is refused\"",
                                job->dir);
        }
        if (bind)
                finish(bind, 0, NULL);
        advance(job);
}

static void after_work(uv_work_t *work, int status)
{
        struct sheaf_live_job *job = work->data;

        job->working = false;
        if (status)
                job->rc = status;
        if (!job->cohort)
                job_free(job);
        else if (job->reading)
                has_read(job);
        else
                has_written(job);
}

static void begin_work(struct sheaf_live_job *job, bool reading)
{
        job->working = true;
        job->reading = reading;
        job->work.data = job;
        if (uv_queue_work(
                    job->jobs->daemon->loop, &job->work, work, after_work)) {
                work(&job->work);
                after_work(&job->work, 0);
        }
}

/* Binds what waits, and writes what that changed. */
static void advance(struct sheaf_live_job *job)
{
        struct sheaf_bind *bind;

        while (!job->working && (bind = TAILQ_FIRST(&job->binds))) {
                const char *why = "out of memory";
                int rc = bind_now(job, bind, &why);

                if (!bind->record_count) {
                        finish(bind, rc, why);
                        continue;
                }
                /* A failure after some slots were bound: they stay so. */
                job->writing = rc < 0 ? NULL : bind;
                job->records = sheaf_steal(&bind->records);
                job->record_count = bind->record_count;
                job->epoch = bind->epoch;
                job->begins = bind->begins;
                if (rc < 0)
                        finish(bind, rc, why);
                begin_work(job, false);
        }
}

/* ---- jobs ---- */

/* Whether processes that give one name mean one job. */
static bool agree(const struct sheaf_live_job *job,
        const struct sheaf_journal_job *identity, const char **ret_why)
{
        if (job->identity.order != identity->order)
                *ret_why = "the job has another order";
        else if (job->identity.window != identity->window)
                *ret_why = "the job has another window";
        else if (job->identity.seed != identity->seed)
                *ret_why = "the job has another seed";
        else
                return true;
        return false;
}

/* CACHE/jobs/VERSION/JOB: the principal and the name, as a digest. */
static int paths(struct sheaf_live_job *job)
{
        const SheafRecord__Version *record = job->cohort->version->record;
        char key[SHEAF_JOB_NAME_MAX + 64], uuid[33], hex[33];
        struct sheaf_digest digest;
        int n = snprintf(key, sizeof(key), "%llu %u %s",
                (unsigned long long)job->grant, job->uid, job->name);

        sheaf_digest_of(key, (size_t)n, &digest);
        for (int i = 0; i < 16; i++) {
                snprintf(uuid + 2 * i, 3, "%02x", record->uuid.data[i]);
                snprintf(hex + 2 * i, 3, "%02x", digest.bytes[i]);
        }
        n = snprintf(job->parent, sizeof(job->parent), "%s/jobs/%s",
                job->jobs->daemon->config->cache_dir, uuid);
        if (n < 0 || (size_t)n >= sizeof(job->parent))
                return -ENAMETOOLONG;
        snprintf(job->dir, sizeof(job->dir), "%s/%s", job->parent, hex);
        return 0;
}

/* One that nobody used for the longest time gives way, if that is long. */
static bool make_room(struct sheaf_jobs_cohort *cohort)
{
        struct sheaf_live_job *job, *oldest = NULL;

        if (cohort->live_count < SHEAF_JOBS_PER_COHORT)
                return true;
        LIST_FOREACH (job, &cohort->live, link)
                if (TAILQ_EMPTY(&job->binds) && !job->working &&
                        (!oldest || job->used_ns < oldest->used_ns))
                        oldest = job;
        if (!oldest || sheaf_now_ns() - oldest->used_ns < IDLE_NS)
                return false;
        job_end(oldest, "the job was idle");
        return true;
}

static int job_new(struct sheaf_conn *conn, struct sheaf_jobs_cohort *cohort,
        const struct sheaf_job_spec *spec,
        const struct sheaf_journal_job *identity,
        struct sheaf_live_job **ret_job)
{
        struct sheaf_live_job *job;
        int rc;

        if (!make_room(cohort))
                return -EBUSY;
        job = sheaf_new(struct sheaf_live_job, 1);
        if (!job)
                return -ENOMEM;
        job->cohort = cohort;
        job->jobs = cohort->jobs;
        strcpy(job->name, spec->name);
        job->grant = conn->who.grant;
        job->uid = conn->who.uid;
        job->identity = *identity;
        job->config = spec->config;
        TAILQ_INIT(&job->binds);
        rc = paths(job);
        if (rc < 0) {
                free(job);
                return rc;
        }
        LIST_INSERT_HEAD(&cohort->live, job, link);
        cohort->live_count++;
        job->jobs->stats.jobs++;
        *ret_job = job;
        return 0;
}

/* Through a grant all clients are one principal. */
static struct sheaf_live_job *find(const struct sheaf_jobs_cohort *cohort,
        const struct sheaf_conn *conn, const char *name)
{
        struct sheaf_live_job *job;

        LIST_FOREACH (job, &cohort->live, link)
                if (job->grant == conn->who.grant &&
                        (job->grant || job->uid == conn->who.uid) &&
                        !strcmp(job->name, name))
                        return job;
        return NULL;
}

int sheaf_jobs_bind(struct sheaf_conn *conn, const struct sheaf_job_spec *spec,
        struct sheaf_bind *bind, const char **ret_why)
{
        struct sheaf_jobs *jobs = conn->daemon->jobs;
        struct sheaf_journal_job identity = {
                .samples = bind->handle->version->fetch.listing.file_count,
                .order = (uint32_t)spec->config.order,
                .window = spec->config.window,
                .seed = spec->config.seed,
        };
        struct sheaf_live_job *job;
        bool made = false;
        int rc = join(jobs, bind->handle);

        if (rc < 0)
                return rc;
        job = find(bind->handle->cohort, conn, spec->name);
        if (!job) {
                rc = job_new(conn, bind->handle->cohort, spec, &identity, &job);
                made = rc == 0;
        }
        if (rc < 0)
                return rc;
        if (!agree(job, &identity, ret_why))
                return -EINVAL;
        job->used_ns = sheaf_now_ns();
        bind->job = job;
        bind->lane = conn->number;
        bind->samples = identity.samples;
        bind->records = NULL;
        bind->record_count = 0;
        bind->begins = false;
        TAILQ_INSERT_TAIL(&job->binds, bind, link);
        if (made)
                begin_work(job, true);
        else if (job->job)
                advance(job);
        return 0;
}

void sheaf_jobs_cancel(struct sheaf_bind *bind)
{
        struct sheaf_live_job *job = bind->job;

        if (!job)
                return;
        if (job->writing == bind)
                job->writing = NULL;
        TAILQ_REMOVE(&job->binds, bind, link);
        free(sheaf_steal(&bind->records));
        bind->job = NULL;
}

/* ---- all ---- */

static bool version_lives(struct sheaf_jobs *jobs, const char *hex)
{
        struct sheaf_reg_dataset *ds =
                sheaf_registry_first(jobs->daemon->registry);
        struct sheaf_reg_version *version;
        char text[33];

        for (; ds; ds = TAILQ_NEXT(ds, link))
                TAILQ_FOREACH (version, &ds->versions, link) {
                        for (int i = 0; i < 16; i++)
                                snprintf(text + 2 * i, 3, "%02x",
                                        version->record->uuid.data[i]);
                        if (!strcmp(text, hex))
                                return true;
                }
        return false;
}

/* Two levels: jobs, epochs. */
static void remove_tree(int at, const char *name)
{
        int fd = openat(
                at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        DIR *list = fd < 0 ? NULL : fdopendir(fd);
        struct dirent *entry;

        if (!list)
                sheaf_close_p(&fd);
        while (list && (entry = readdir(list))) {
                if (*entry->d_name == '.')
                        continue;
                if (unlinkat(fd, entry->d_name, 0) && errno == EISDIR)
                        remove_tree(fd, entry->d_name);
        }
        if (list)
                closedir(list);
        (void)unlinkat(at, name, AT_REMOVEDIR);
}

/* "jobs" in the cache directory, without what belongs to versions that are
 * gone. */
static void sweep(struct sheaf_jobs *jobs, const char *path)
{
        DIR *list = opendir(path);
        struct dirent *entry;

        while (list && (entry = readdir(list))) {
                if (strlen(entry->d_name) == 32 &&
                        !version_lives(jobs, entry->d_name))
                        remove_tree(dirfd(list), entry->d_name);
        }
        if (list)
                closedir(list);
}

int sheaf_jobs_new(struct sheaf_daemon *daemon, struct sheaf_jobs **ret_jobs)
{
        struct sheaf_jobs *jobs = sheaf_new(struct sheaf_jobs, 1);
        char path[PATH_MAX];

        if (!jobs)
                return -ENOMEM;
        jobs->daemon = daemon;
        LIST_INIT(&jobs->cohorts);
        snprintf(path, sizeof(path), "%s/jobs", daemon->config->cache_dir);
        if (mkdir(path, 0700) && errno != EEXIST)
                sheaf_log_rc(-errno, SHEAF_LOG_WARN, "no journals of jobs",
                        "dir=%s", path);
        sweep(jobs, path);
        *ret_jobs = jobs;
        return 0;
}

void sheaf_jobs_free(struct sheaf_jobs *jobs)
{
        free(jobs);
}

void sheaf_jobs_stats(
        const struct sheaf_jobs *jobs, struct sheaf_jobs_stats *ret_stats)
{
        *ret_stats = jobs->stats;
}
