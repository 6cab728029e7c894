/* SPDX-License-Identifier: Apache-2.0 */
/* The requests of a job, one after the other (jobs.h).
 *
 *  1 a bind is answered after what it changed is in the journal, whose mark
 *    is then above each of its slots
 *  2 an epoch that may have a journal is read from there before it is bound:
 *    a run is begun only where none was
 *  3 an epoch of a job begins on one version of a dataset, while clients of
 *    the job have another one open
 *  4 a run that a client remembers takes the place of one that differs only
 *    while nobody bound a slot of that one since it was begun or read
 *
 * Threads: loop thread. */
#include "daemon/jobs/internal.h"

#include "daemon/clock.h"

#include <math.h>
#include <stdio.h>

void sheaf_bind_finish(struct sheaf_bind *bind, int rc, const char *why)
{
        TAILQ_REMOVE(&bind->job->binds, bind, link);
        free(sheaf_steal(&bind->records));
        bind->job = NULL;
        bind->done(bind, rc, why);
}

/* ---- who asks again ---- */

static struct sheaf_attendance *attendance_of(
        const struct sheaf_live_job *job, const struct sheaf_bind *bind)
{
        struct sheaf_attendance *found = NULL;
        struct sheaf_jobs_seat *seat;

        LIST_FOREACH (seat, &bind->handle->seats, link)
                if (seat->cohort == job->cohort)
                        break;
        if (!seat)
                return NULL;
        for (int i = 0; i < SHEAF_ATTENDANCES; i++)
                if (seat->attendances[i].job == job->number)
                        found = &seat->attendances[i];
        if (!found)
                found = &seat->attendances[seat->next++ % SHEAF_ATTENDANCES];
        if (found->job != job->number || found->epoch != bind->epoch)
                *found = (struct sheaf_attendance){ .job = job->number,
                        .epoch = bind->epoch };
        return found;
}

static bool follows_resume(
        const struct sheaf_live_job *job, uint64_t epoch, uint32_t slot)
{
        return job->resumed && (epoch > job->resumed_epoch ||
                                       (epoch == job->resumed_epoch &&
                                               slot >= job->resumed_slot));
}

/* Who saves a state binds what slower processes have not asked for yet. */
static void count_state(
        struct sheaf_live_job *job, const struct sheaf_bind *bind, uint64_t n)
{
        if (job->state_epoch != bind->epoch)
                job->state_slots = 0;
        job->state_epoch = bind->epoch;
        job->state_slots += n;
}

/* A session that asks for more slots that others had before it than can have
 * been on their way goes through the epoch anew: its loader lost its place. */
static void watch_repeats(struct sheaf_live_job *job, struct sheaf_bind *bind,
        uint64_t fresh, uint64_t again)
{
        struct sheaf_attendance *seen = attendance_of(job, bind);
        uint64_t right = job->config.ahead + bind->count;

        if (!seen)
                return;
        seen->own += fresh;
        seen->again += again;
        if (job->state_epoch == bind->epoch)
                right += job->state_slots;
        if (seen->warned || seen->again <= seen->own + right)
                return;
        seen->warned = true;
        job->jobs->stats.repeats++;
        snprintf(bind->warning, sizeof(bind->warning),
                "job '%.64s', epoch %llu: %llu slots that were served before "
                "are asked for again, more than a look-ahead of %u: was the "
                "loader's state not loaded? A new run needs a new name",
                job->name, (unsigned long long)bind->epoch,
                (unsigned long long)seen->again, job->config.ahead);
        if (sheaf_log_once(&job->jobs->repeats_once, 10 * SHEAF_NS_PER_SEC))
                sheaf_log(SHEAF_LOG_WARN, "slots asked for again",
                        "job=%s epoch=%llu slots=%llu ahead=%u "
                        "remedy=\"load the loader's state, or give the new "
                        "run a new name\"",
                        job->name, (unsigned long long)bind->epoch,
                        (unsigned long long)seen->again, job->config.ahead);
}

/* ---- slots ---- */

/* Slots become ordinals; records are left in @bind. */
static int bind_slots(struct sheaf_live_job *job, struct sheaf_bind *bind,
        struct sheaf_run *run)
{
        struct sheaf_jobs_stats *stats = &job->jobs->stats;
        int64_t now_ns = sheaf_now_ns();
        uint64_t fresh = 0, again = 0;

        for (size_t i = 0; i < bind->count; i++) {
                uint32_t slot = bind->slots[i];
                struct sheaf_bound bound;
                int rc = sheaf_run_bind(run, slot, now_ns, &bound);

                if (rc < 0)
                        return rc;
                bind->slots[i] = sheaf_jobs_ordinal(job->cohort, bound.sample);
                if (bound.fetch)
                        bind->from_origin += sheaf_jobs_fetch(
                                job->cohort, bind->lane, bound.sample);
                if (bound.mark)
                        bind->records[bind->record_count++] =
                                sheaf_journal_mark(bound.mark);
                again += bound.again && !bound.perhaps &&
                         !follows_resume(job, bind->epoch, slot);
                if (bound.again)
                        continue;
                fresh++;
                if (bound.replaced)
                        bind->records[bind->record_count++] =
                                sheaf_journal_replaced(slot, bound.sample);
                bind->replaced += bound.replaced;
        }
        stats->replaced += bind->replaced;
        stats->bound += fresh;
        if (bind->mode == SHEAF_BIND_STATE)
                count_state(job, bind, fresh);
        else
                watch_repeats(job, bind, fresh, again);
        return 0;
}

/* How often a cohort's needs are looked at: binds. */
#define LOOK_EVERY 16
/* Over how long a time the origin's rate is measured. */
#define SUPPLY_LEAST_S .2

/* What flows through the ring has to be there until the last of the jobs in
 * step has bound it, and while it is on its way to whoever bound it. */
static void tell_ring(struct sheaf_jobs_cohort *cohort)
{
        const SheafRecord__Version *record = cohort->version->record;
        uint64_t slots = sheaf_cohort_flow(cohort->cohort, sheaf_now_ns());
        const struct sheaf_jobs_cohort *other;
        uint64_t bytes = 0;

        cohort->ring_bytes =
                slots * (record->bytes / SHEAF_MAX(record->files, UINT64_C(1)));
        LIST_FOREACH (other, &cohort->jobs->cohorts, link)
                if (other->lodging == cohort->lodging)
                        bytes += other->ring_bytes;
        sheaf_space_want_ring(cohort->lodging->residence.space, bytes);
}

/* What the origin gives: measured while reads wait for it, else more than
 * anybody asks for; and which share needs no origin, whatever flows. */
static void tell_supply(struct sheaf_jobs_cohort *cohort)
{
        const SheafRecord__Version *record = cohort->version->record;
        const struct sheaf_origin *origin = cohort->version->dataset->origin;
        double chunks = (double)SHEAF_MAX(record->chunks, UINT64_C(1));
        struct sheaf_origin_stats stats = { 0 };
        int64_t now_ns = sheaf_now_ns();
        double passed_s, cached, rate = 0;
        uint64_t bytes;

        passed_s = (double)(now_ns - cohort->supply_ns) / 1e9;
        if (passed_s < SUPPLY_LEAST_S)
                return;
        if (origin)
                sheaf_origin_stats(origin, &stats);
        if (stats.waits && cohort->supply_waits &&
                stats.reads >= cohort->supply_reads)
                rate = (double)(stats.reads - cohort->supply_reads) / passed_s *
                       (double)record->files / chunks;
        cohort->supply_ns = now_ns;
        cohort->supply_waits = stats.waits;
        cohort->supply_reads = stats.reads;
        sheaf_version_disk(cohort->version->fetch.stored, &bytes);
        bytes = SHEAF_MAX(bytes,
                sheaf_space_stock_bytes(cohort->lodging->residence.space));
        cached = (double)bytes / (double)SHEAF_MAX(record->bytes, UINT64_C(1));
        sheaf_cohort_set_supply(cohort->cohort, rate, fmin(cached, 1));
}

static int bind_now(struct sheaf_live_job *job, struct sheaf_bind *bind,
        const char **ret_why)
{
        struct sheaf_run_state state;
        struct sheaf_run *run;
        int rc;

        bind->records = sheaf_new(struct sheaf_journal_record,
                SHEAF_JOURNAL_HEAD + 2 * bind->count);
        rc = bind->records ? sheaf_run_begin(job->job, bind->epoch, &run)
                           : -ENOMEM;
        if (rc == -ESTALE)
                *ret_why = "that epoch of the job is over";
        if (rc < 0)
                return rc;
        job->begun = SHEAF_MAX(job->begun, bind->epoch + 1);
        job->absent = 0;
        sheaf_run_identity(run, &state);
        bind->seed = state.seed;
        bind->stream = state.stream;
        if (!state.high) {
                sheaf_journal_head(&job->identity, &state, bind->records);
                bind->record_count = SHEAF_JOURNAL_HEAD;
                bind->begins = true;
        }
        if (bind->rate > 0)
                sheaf_job_set_rate(job->job, bind->rate);
        rc = bind_slots(job, bind, run);
        bind->not_before_ns = sheaf_job_not_before(job->job, job->used_ns);
        if (job->cohort->binds++ % LOOK_EVERY == 0) {
                tell_ring(job->cohort);
                tell_supply(job->cohort);
        }
        return rc;
}

/* @run NULL: nothing is bound. */
static void look(struct sheaf_live_job *job, struct sheaf_bind *bind,
        struct sheaf_run *run)
{
        struct sheaf_run_state state = { 0 };

        if (run)
                sheaf_run_identity(run, &state);
        bind->seed = state.seed;
        bind->stream = state.stream;
        for (size_t i = 0; i < bind->count; i++) {
                uint32_t sample;

                if (!run || sheaf_run_look(run, bind->slots[i], &sample)) {
                        bind->slots[i] = SHEAF_UNBOUND;
                        continue;
                }
                bind->slots[i] = sheaf_jobs_ordinal(job->cohort, sample);
                if (bind->mode == SHEAF_BIND_REPLAY &&
                        !sheaf_jobs_here(job->cohort, sample))
                        bind->from_origin += sheaf_jobs_fetch(
                                job->cohort, bind->lane, sample);
        }
}

/* ---- restoring ---- */

static void ask_restore(struct sheaf_live_job *job, struct sheaf_bind *bind,
        struct sheaf_run *run)
{
        struct sheaf_run_state state = { 0 };

        job->resumed = true;
        job->resumed_epoch = bind->epoch;
        job->resumed_slot = bind->yielded;
        if (job->config.order == SHEAF_ORDER_STRICT) {
                state.seed = job->config.seed;
                state.stream = bind->epoch;
        } else if (run) {
                sheaf_run_identity(run, &state);
        }
        bind->known = (job->config.order == SHEAF_ORDER_STRICT || run) &&
                      state.seed == bind->seed && state.stream == bind->stream;
        bind->seed = state.seed;
        bind->stream = state.stream;
}

/* 1: on the pool; 0: it is there: another process was first. */
static int make_restore(struct sheaf_live_job *job, struct sheaf_bind *bind,
        const struct sheaf_run *run, const char **ret_why)
{
        for (size_t i = 0; run && i < SHEAF_ARRAY_LEN(job->recalled); i++)
                if (job->recalled[i].epoch == bind->epoch &&
                        sheaf_digest_equal(
                                &job->recalled[i].name, &bind->read_name)) {
                        bind->known = true;
                        return 0;
                }
        if (run && sheaf_run_touched(run)) {
                *ret_why = "slots of that epoch were bound anew since its "
                           "journal was lost; restore before any bind, or give "
                           "the job another name";
                return -EEXIST;
        }
        job->fd = sheaf_steal_fd(&bind->read_fd);
        job->digest = bind->read_name;
        job->yielded = bind->yielded;
        job->seed = bind->seed;
        job->stream = bind->stream;
        job->epoch = bind->epoch;
        job->writing = bind;
        sheaf_live_job_work(job, SHEAF_JOB_RECALL);
        return 1;
}

/* ---- beginnings ---- */

/* Samples looked at between two looks at the clock, and how long a slice is. */
#define SURVEY_STEP     1024
#define SURVEY_SLICE_NS SHEAF_NS_PER_MS

static void surveyed(struct sheaf_jobs_cohort *cohort)
{
        struct sheaf_live_job *job;

        cohort->surveying = false;
        LIST_FOREACH (job, &cohort->live, link)
                if (job->surveying) {
                        job->surveying = false;
                        job->surveyed = true;
                        sheaf_live_job_advance(job);
                        job->surveyed = false;
                }
        sheaf_cohort_survey_end(cohort->cohort);
}

void sheaf_jobs_survey(uv_idle_t *idle)
{
        struct sheaf_jobs *jobs = idle->data;
        int64_t end_ns = sheaf_now_ns() + SURVEY_SLICE_NS;
        struct sheaf_jobs_cohort *cohort;
        int rc = 0;

        LIST_FOREACH (cohort, &jobs->cohorts, link)
                if (cohort->surveying)
                        break;
        if (!cohort) {
                uv_idle_stop(idle);
                return;
        }
        while (!rc && sheaf_now_ns() < end_ns)
                rc = sheaf_cohort_survey(cohort->cohort, SURVEY_STEP);
        /* Without memory the beginning fails, and says so. */
        if (rc)
                surveyed(cohort);
}

/* Whether the job has to wait until its cohort knows what is here. */
static bool survey_first(struct sheaf_live_job *job, uint64_t epoch)
{
        struct sheaf_jobs_cohort *cohort = job->cohort;

        if (job->surveyed || job->config.order != SHEAF_ORDER_SHARED ||
                job->identity.samples <= SURVEY_STEP ||
                sheaf_run_waits(job->job, epoch))
                return false;
        job->surveying = cohort->surveying = true;
        uv_idle_start(&job->jobs->surveys, sheaf_jobs_survey);
        return true;
}

/* ---- two versions ---- */

/* Whether the same job is in @epoch on another version of the dataset, which
 * clients of it have open: an update came between the processes of a run. A
 * mount that follows an update does it between epochs. */
static bool elsewhere(const struct sheaf_live_job *job, uint64_t epoch)
{
        const struct sheaf_reg_version *here = job->cohort->version;
        bool part = sheaf_digest_known(&job->subset_name);
        const struct sheaf_jobs_cohort *cohort;
        const struct sheaf_live_job *other;

        LIST_FOREACH (cohort, &job->jobs->cohorts, link) {
                if (cohort->version == here ||
                        cohort->version->dataset != here->dataset ||
                        sheaf_digest_known(&cohort->subset_name) != part)
                        continue;
                LIST_FOREACH (other, &cohort->live, link)
                        if (other->job &&
                                sheaf_job_owned(&other->owner, &job->owner) &&
                                !strcmp(other->name, job->name) &&
                                sheaf_run_find(other->job, epoch))
                                return true;
        }
        return false;
}

/* Each of two such jobs would go through all samples of its version, and each
 * of their processes through a part of those. Of subsets nobody can tell
 * whether they are meant to be one. */
static int one_version(struct sheaf_live_job *job, struct sheaf_bind *bind,
        const char **ret_why)
{
        if (!elsewhere(job, bind->epoch))
                return 0;
        if (!sheaf_digest_known(&job->subset_name)) {
                *ret_why = "other processes of this job have another version "
                           "of the dataset open, which was updated between; "
                           "start all of them again, or give this one another "
                           "job's name";
                return -EINVAL;
        }
        snprintf(bind->warning, sizeof(bind->warning),
                "job '%.64s', epoch %llu: its processes have different "
                "versions of the dataset open, which was updated between: if "
                "they are one run, start all of them again, else give each "
                "another job's name",
                job->name, (unsigned long long)bind->epoch);
        return 0;
}

/* ---- one after the other ---- */

static bool lossy(const struct sheaf_live_job *job, uint64_t epoch)
{
        return epoch >= job->lossy_from && epoch < job->lossy_to;
}

/* The next request. 1: later; 0 done; -errno. What is
 * to be journalled is left in @bind. */
static int do_one(struct sheaf_live_job *job, struct sheaf_bind *bind,
        const char **ret_why)
{
        struct sheaf_run *run;
        int rc;

        bind->samples = job->identity.samples;
        bind->ahead = job->config.ahead;
        if (!bind->count && bind->mode < SHEAF_BIND_RESTORE_ASK)
                return 0; /* it joins, no more */
        for (size_t i = 0; i < bind->count; i++)
                if (bind->slots[i] >= job->identity.samples) {
                        *ret_why = "a slot is beyond the end of the epoch";
                        return -ERANGE;
                }
        run = sheaf_run_find(job->job, bind->epoch);
        if (!run && bind->epoch < job->begun && lossy(job, bind->epoch)) {
                *ret_why = "the epoch's journal could not be written";
                return -ESTALE;
        }
        if (!run && bind->epoch < job->begun &&
                job->absent != bind->epoch + 1 &&
                job->damaged != bind->epoch + 1) {
                job->epoch = bind->epoch;
                sheaf_live_job_work(job, SHEAF_JOB_LOAD);
                return 1;
        }
        if (!run && job->damaged == bind->epoch + 1 &&
                bind->mode < SHEAF_BIND_RESTORE_ASK) {
                *ret_why = "the epoch's journal is damaged; restore it from a "
                           "state with a bitmap, or give the job another name";
                return -EBADMSG;
        }
        switch (bind->mode) {
        case SHEAF_BIND:
        case SHEAF_BIND_STATE:
                if (run)
                        return bind_now(job, bind, ret_why);
                if (survey_first(job, bind->epoch))
                        return 1;
                rc = one_version(job, bind, ret_why);
                return rc ? rc : bind_now(job, bind, ret_why);
        case SHEAF_BIND_LOOK:
        case SHEAF_BIND_REPLAY:
                look(job, bind, run);
                return 0;
        case SHEAF_BIND_RESTORE_ASK:
                ask_restore(job, bind, run);
                return 0;
        case SHEAF_BIND_RESTORE_MAKE:
                return make_restore(job, bind, run, ret_why);
        }
        return -EINVAL;
}

void sheaf_live_job_advance(struct sheaf_live_job *job)
{
        struct sheaf_bind *bind;

        while (!job->working && !job->surveying &&
                (bind = TAILQ_FIRST(&job->binds))) {
                const char *why = "out of memory";
                int rc = do_one(job, bind, &why);

                if (rc == 1)
                        return;
                if (!bind->record_count) {
                        sheaf_bind_finish(bind, rc, why);
                        continue;
                }
                /* A failure after some slots were bound: they stay so. */
                job->writing = rc < 0 ? NULL : bind;
                job->records = sheaf_steal(&bind->records);
                job->record_count = bind->record_count;
                job->epoch = bind->epoch;
                job->begins = bind->begins;
                if (rc < 0)
                        sheaf_bind_finish(bind, rc, why);
                sheaf_live_job_work(job, SHEAF_JOB_APPEND);
        }
}
