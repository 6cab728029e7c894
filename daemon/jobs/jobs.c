/* SPDX-License-Identifier: Apache-2.0 */
/* Cohorts and jobs of live clients (jobs.h).
 *
 *  1 a job whose cohort ended while the pool works for it is freed after that
 *  2 a cohort of a subset begins when somebody's bitmap has the subset's name;
 *    until then its jobs wait, each for its own first work on the pool
 *
 * Threads: loop thread. */
#include "daemon/jobs/internal.h"

#include "daemon/clock.h"

/* A job that gives way to another one was not used for so long. */
#define IDLE_NS (60 * SHEAF_NS_PER_SEC)

#define TEXT_OF(number) #number
#define TEXT(number)    TEXT_OF(number)
#define WHY_OWN                                                                \
        "a user may have " TEXT(                                               \
                SHEAF_JOBS_PER_PRINCIPAL) " jobs and as many "                 \
                                          "subsets of a dataset at once; "     \
                                          "close some, `sheaf job ls` has "    \
                                          "their "                             \
                                          "names"
#define WHY_ALL                                                                \
        "all users together have the " TEXT(                                   \
                SHEAF_JOBS_PER_VERSION) " jobs or "                            \
                                        "subsets that a dataset may have at "  \
                                        "once, but for those kept for who "    \
                                        "has fewer than " TEXT(                \
                                                SHEAF_JOBS_FEW) "; close "     \
                                                                "some, or "    \
                                                                "wait"

/* ---- cohorts ---- */

int sheaf_jobs_cohort_ready(
        struct sheaf_jobs_cohort *cohort, struct sheaf_subset *subset)
{
        struct sheaf_cohort_config config = {
                .samples = subset ? subset->count
                                  : cohort->version->fetch.listing.file_count,
                .here = sheaf_jobs_here,
                .arg = cohort,
        };
        int rc = -ENOMEM;

        if (cohort->cohort) {
                sheaf_subset_free(subset);
                return 0;
        }
        memcpy(&config.seed, cohort->jobs->daemon->instance,
                sizeof(config.seed));
        config.seed ^= (uint64_t)sheaf_now_ns();
        cohort->coming_bits = sheaf_new(uint64_t, config.samples / 64 + 1);
        if (cohort->coming_bits)
                rc = sheaf_cohort_new(&config, &cohort->cohort);
        if (rc < 0) {
                free(sheaf_steal(&cohort->coming_bits));
                sheaf_subset_free(subset);
                return rc;
        }
        cohort->subset = subset;
        return 0;
}

static void cohort_end(struct sheaf_jobs_cohort *cohort)
{
        struct sheaf_live_job *job;

        sheaf_space_want_ring(cohort->lodging->residence.space, 0);
        while ((job = LIST_FIRST(&cohort->live)))
                sheaf_live_job_end(job, -ESTALE, "the dataset was closed");
        sheaf_jobs_fetch_none(cohort);
        LIST_REMOVE(cohort, link);
        sheaf_cohort_free(cohort->cohort);
        sheaf_subset_free(cohort->subset);
        free(cohort->coming_bits);
        free(cohort);
}

static bool same_place(const struct sheaf_jobs_cohort *cohort,
        const struct sheaf_handle *handle)
{
        return cohort->version == handle->version &&
               cohort->lodging == handle->lodging;
}

/* Whether somebody who has @own of @all may have one more; else why not. */
static bool may_have(uint32_t own, uint32_t all, const char **ret_why)
{
        uint32_t most = SHEAF_JOBS_PER_VERSION;

        if (own >= SHEAF_JOBS_FEW)
                most -= SHEAF_JOBS_PER_VERSION / 4;
        if (own >= SHEAF_JOBS_PER_PRINCIPAL)
                *ret_why = WHY_OWN;
        else if (all >= most)
                *ret_why = WHY_ALL;
        else
                return true;
        return false;
}

static bool takes_part(const struct sheaf_jobs_cohort *cohort,
        const struct sheaf_job_owner *owner)
{
        const struct sheaf_jobs_seat *seat;

        LIST_FOREACH (seat, &cohort->seats, beside)
                if (sheaf_job_owned(&seat->owner, owner))
                        return true;
        return false;
}

static int cohort_new(struct sheaf_jobs *jobs,
        const struct sheaf_handle *handle, const struct sheaf_digest *subset,
        const struct sheaf_job_owner *owner,
        struct sheaf_jobs_cohort **ret_cohort, const char **ret_why)
{
        struct sheaf_jobs_cohort *cohort;
        uint32_t own = 0, all = 0;

        LIST_FOREACH (cohort, &jobs->cohorts, link)
                if (same_place(cohort, handle)) {
                        all++;
                        own += takes_part(cohort, owner);
                }
        if (!may_have(own, all, ret_why)) {
                jobs->stats.refused++;
                return -EBUSY;
        }
        cohort = sheaf_new(struct sheaf_jobs_cohort, 1);
        if (!cohort)
                return -ENOMEM;
        cohort->jobs = jobs;
        cohort->version = handle->version;
        cohort->lodging = handle->lodging;
        cohort->subset_name = *subset;
        LIST_INSERT_HEAD(&jobs->cohorts, cohort, link);
        *ret_cohort = cohort;
        return 0;
}

/* The cohort of @subset where @handle is, made if there is none. 1: it needs a
 * bitmap. */
static int cohort_get(struct sheaf_jobs *jobs,
        const struct sheaf_handle *handle, const struct sheaf_digest *subset,
        bool has_bitmap, const struct sheaf_job_owner *owner,
        struct sheaf_jobs_cohort **ret_cohort, const char **ret_why)
{
        struct sheaf_jobs_cohort *cohort;

        LIST_FOREACH (cohort, &jobs->cohorts, link)
                if (same_place(cohort, handle) &&
                        sheaf_digest_equal(&cohort->subset_name, subset))
                        break;
        if (sheaf_digest_known(subset) && !has_bitmap &&
                (!cohort || !cohort->cohort))
                return 1;
        *ret_cohort = cohort;
        return cohort ? 0
                      : cohort_new(jobs, handle, subset, owner, ret_cohort,
                                ret_why);
}

/* Makes @handle one of the cohort's users. *@ret_new is the seat if it had
 * none, else NULL. */
static int sit_down(struct sheaf_jobs_cohort *cohort,
        struct sheaf_handle *handle, const struct sheaf_job_owner *owner,
        struct sheaf_jobs_seat **ret_new)
{
        struct sheaf_jobs_seat *seat;

        *ret_new = NULL;
        LIST_FOREACH (seat, &handle->seats, link)
                if (seat->cohort == cohort)
                        return 0;
        seat = sheaf_new(struct sheaf_jobs_seat, 1);
        if (!seat) {
                if (LIST_EMPTY(&cohort->seats))
                        cohort_end(cohort);
                return -ENOMEM;
        }
        seat->cohort = cohort;
        seat->owner = *owner;
        LIST_INSERT_HEAD(&cohort->seats, seat, beside);
        LIST_INSERT_HEAD(&handle->seats, seat, link);
        *ret_new = seat;
        return 0;
}

static void leave(struct sheaf_handle *handle, struct sheaf_jobs_seat *seat)
{
        struct sheaf_jobs_cohort *cohort = seat->cohort;
        struct sheaf_live_job *job;
        struct sheaf_bind *bind, *next;

        LIST_FOREACH (job, &cohort->live, link)
                for (bind = TAILQ_FIRST(&job->binds); bind; bind = next) {
                        next = TAILQ_NEXT(bind, link);
                        if (bind->handle == handle && bind != job->writing)
                                sheaf_bind_finish(bind, -ESTALE,
                                        "the dataset was closed");
                }
        LIST_REMOVE(seat, link);
        LIST_REMOVE(seat, beside);
        free(seat);
        if (LIST_EMPTY(&cohort->seats))
                cohort_end(cohort);
}

void sheaf_jobs_leave(struct sheaf_handle *handle)
{
        struct sheaf_jobs_seat *seat;

        while ((seat = LIST_FIRST(&handle->seats)))
                leave(handle, seat);
}

/* ---- jobs ---- */

void sheaf_live_job_free(struct sheaf_live_job *job)
{
        if (job->dirty_to > job->dirty_from) {
                sheaf_live_job_work(job, SHEAF_JOB_FLUSH);
                return;
        }
        for (size_t i = 0; i < job->run_count; i++)
                sheaf_run_free(job->runs[i]);
        sheaf_subset_free(job->subset);
        sheaf_close_p(&job->fd);
        free(job->records);
        free(job);
}

void sheaf_live_job_end(struct sheaf_live_job *job, int rc, const char *why)
{
        struct sheaf_bind *bind;

        LIST_REMOVE(job, link);
        job->cohort = NULL;
        job->jobs->stats.jobs--;
        sheaf_job_free(sheaf_steal(&job->job));
        job->writing = NULL;
        while ((bind = TAILQ_FIRST(&job->binds)))
                sheaf_bind_finish(bind, rc, why);
        if (!job->working)
                sheaf_live_job_free(job);
}

/* Whether processes that give one name mean one job. */
static bool agree(const struct sheaf_live_job *job,
        const struct sheaf_job_config *config, const char **ret_why)
{
        if (job->config.order != config->order)
                *ret_why = "the job has another order";
        else if (job->config.window != config->window)
                *ret_why = "the job has another window";
        else if (job->config.seed != config->seed)
                *ret_why = "the job has another seed";
        else
                return true;
        return false;
}

/* One that nobody used for the longest time gives way, if that is long: one of
 * the principal's own when these are too many. */
static bool make_room(struct sheaf_jobs *jobs,
        const struct sheaf_handle *handle, const struct sheaf_job_owner *owner,
        const char **ret_why)
{
        struct sheaf_live_job *job, *oldest = NULL, *oldest_own = NULL;
        struct sheaf_jobs_cohort *cohort;
        uint32_t own = 0, all = 0;

        LIST_FOREACH (cohort, &jobs->cohorts, link) {
                if (!same_place(cohort, handle))
                        continue;
                LIST_FOREACH (job, &cohort->live, link) {
                        bool is_own = sheaf_job_owned(&job->owner, owner);

                        all++;
                        own += is_own;
                        if (!TAILQ_EMPTY(&job->binds) || job->working)
                                continue;
                        if (!oldest || job->used_ns < oldest->used_ns)
                                oldest = job;
                        if (is_own &&
                                (!oldest_own ||
                                        job->used_ns < oldest_own->used_ns))
                                oldest_own = job;
                }
        }
        if (may_have(own, all, ret_why))
                return true;
        if (own >= SHEAF_JOBS_PER_PRINCIPAL)
                oldest = oldest_own;
        if (!oldest || sheaf_now_ns() - oldest->used_ns < IDLE_NS) {
                jobs->stats.refused++;
                return false;
        }
        sheaf_live_job_end(oldest, -ESTALE, "the job was idle");
        return true;
}

static int job_new(struct sheaf_jobs_cohort *cohort,
        const struct sheaf_job_owner *owner, const struct sheaf_job_spec *spec,
        struct sheaf_bind *bind, struct sheaf_live_job **ret_job,
        const char **ret_why)
{
        struct sheaf_live_job *job;
        int rc;

        if (!make_room(cohort->jobs, bind->handle, owner, ret_why))
                return -EBUSY;
        job = sheaf_new(struct sheaf_live_job, 1);
        if (!job)
                return -ENOMEM;
        job->cohort = cohort;
        job->jobs = cohort->jobs;
        job->loop = cohort->jobs->daemon->loop;
        job->number = ++cohort->jobs->numbers;
        strcpy(job->name, spec->name);
        job->owner = *owner;
        job->config = spec->config;
        job->files = cohort->version->fetch.listing.file_count;
        job->digest = job->subset_name = spec->subset;
        job->fd = -1;
        TAILQ_INIT(&job->binds);
        rc = sheaf_live_job_paths(job);
        if (rc < 0) {
                free(job);
                return rc;
        }
        if (sheaf_jobs_removing(job)) {
                free(job);
                *ret_why = "a job of that name is being removed; try again";
                return -EBUSY;
        }
        if (!cohort->cohort)
                job->fd = sheaf_steal_fd(&bind->subset_fd);
        job->identity = (struct sheaf_journal_job){
                .samples = cohort->subset ? cohort->subset->count : job->files,
                .order = (uint32_t)spec->config.order,
                .window = spec->config.window,
                .seed = spec->config.seed,
        };
        LIST_INSERT_HEAD(&cohort->live, job, link);
        job->jobs->stats.jobs++;
        *ret_job = job;
        return 0;
}

static struct sheaf_live_job *find(const struct sheaf_jobs_cohort *cohort,
        const struct sheaf_job_owner *owner, const char *name)
{
        struct sheaf_live_job *job;

        LIST_FOREACH (job, &cohort->live, link)
                if (sheaf_job_owned(&job->owner, owner) &&
                        !strcmp(job->name, name))
                        return job;
        return NULL;
}

int sheaf_jobs_bind(struct sheaf_conn *conn, const struct sheaf_job_spec *spec,
        struct sheaf_bind *bind, const char **ret_why)
{
        const struct sheaf_job_owner owner = {
                .grant = conn->who.grant,
                .uid = conn->who.grant ? 0 : conn->who.uid,
        };
        struct sheaf_jobs_cohort *cohort;
        struct sheaf_jobs_seat *seat;
        struct sheaf_live_job *job;
        bool made = false;
        int rc = cohort_get(conn->daemon->jobs, bind->handle, &spec->subset,
                bind->subset_fd >= 0, &owner, &cohort, ret_why);

        if (rc == 0)
                rc = sit_down(cohort, bind->handle, &owner, &seat);
        if (rc)
                return rc;
        job = find(cohort, &owner, spec->name);
        if (!job) {
                rc = job_new(cohort, &owner, spec, bind, &job, ret_why);
                made = rc == 0;
        }
        if (rc < 0) {
                /* Who was refused keeps no subset. */
                if (seat)
                        leave(bind->handle, seat);
                return rc;
        }
        if (!agree(job, &spec->config, ret_why))
                return -EINVAL;
        job->used_ns = sheaf_now_ns();
        bind->job = job;
        bind->lane = conn->number;
        bind->records = NULL;
        bind->record_count = 0;
        bind->begins = false;
        bind->warning[0] = 0;
        TAILQ_INSERT_TAIL(&job->binds, bind, link);
        if (made)
                sheaf_live_job_work(job, SHEAF_JOB_OPEN);
        else if (job->job)
                sheaf_live_job_advance(job);
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

int sheaf_jobs_new(struct sheaf_daemon *daemon, struct sheaf_jobs **ret_jobs)
{
        struct sheaf_jobs *jobs = sheaf_new(struct sheaf_jobs, 1);

        if (!jobs)
                return -ENOMEM;
        jobs->daemon = daemon;
        LIST_INIT(&jobs->cohorts);
        uv_idle_init(daemon->loop, &jobs->surveys);
        jobs->surveys.data = jobs;
        jobs->open_handles = 1;
        sheaf_jobs_keep(jobs);
        *ret_jobs = jobs;
        return 0;
}

static void jobs_closed(uv_handle_t *handle)
{
        struct sheaf_jobs *jobs = handle->data;

        if (--jobs->open_handles == 0)
                free(jobs);
}

void sheaf_jobs_free(struct sheaf_jobs *jobs)
{
        if (!jobs)
                return;
        jobs->stopped = true;
        sheaf_registry_set_gone(jobs->daemon->registry, NULL, NULL);
        uv_close((uv_handle_t *)&jobs->surveys, jobs_closed);
        uv_close((uv_handle_t *)&jobs->keep, jobs_closed);
}

void sheaf_jobs_stats(
        const struct sheaf_jobs *jobs, struct sheaf_jobs_stats *ret_stats)
{
        *ret_stats = jobs->stats;
}
