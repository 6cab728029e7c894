/* SPDX-License-Identifier: Apache-2.0 */
/* What is left of journals after a cut, read by the product's own reader; the
 * truth is what clients were given. In the child: nothing asserts. */
#include "daemon/epoch/journal.h"
#include "tests/flow/cut_jobs.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>

struct look {
        const struct cut_jobs *jobs;
        const struct cut_jobs_claims *claims;
        struct cut_jobs_figures *figures;
        const struct sheaf_run_state *state;
        char *why;
};

static const struct sheaf_job_config configs[CUT_JOB_COUNT] = {
        [CUT_JOB_KEPT] = { .order = SHEAF_ORDER_WINDOW,
                .seed = 11,
                .window = 120,
                .ahead = 64 },
        [CUT_JOB_REMOVED] = { .order = SHEAF_ORDER_SHARED, .ahead = 64 },
};

SHEAF_PRINTF(3, 4)
static int wrong(
        const struct look *look, const struct cut_run *run, const char *f, ...)
{
        va_list args;
        int n = snprintf(look->why, 512, "job %u, epoch %llu: ", run->job,
                (unsigned long long)run->epoch);

        va_start(args, f);
        vsnprintf(look->why + n, 512 - (size_t)n, f, args);
        va_end(args);
        return -EBADMSG;
}

/* Whether the journal is a part of how @run was bound. */
static bool is_of(const struct sheaf_run_state *state,
        const struct cut_run *run, enum cut_job job)
{
        if (run->job != job || run->epoch != state->epoch ||
                run->run[0] != state->seed || run->run[1] != state->stream)
                return false;
        for (size_t i = 0; i < state->replaced_count; i++) {
                uint32_t slot = state->replaced[i][0];

                if (slot >= run->count ||
                        run->given[slot] != state->replaced[i][1])
                        return false;
        }
        return true;
}

static const struct cut_run *find(const struct look *look, enum cut_job job)
{
        for (size_t i = look->jobs->run_count; i--;)
                if (is_of(look->state, &look->jobs->runs[i], job))
                        return &look->jobs->runs[i];
        return NULL;
}

/* Slots that were flushed are told; of the others, what is told is counted. */
static int compare(const struct look *look, const struct cut_run *run,
        const struct sheaf_run *restored)
{
        uint32_t durable = look->claims->durable[run - look->jobs->runs];

        for (uint32_t slot = 0; slot < run->count; slot++) {
                uint32_t sample = UINT32_MAX;
                bool told = !sheaf_run_look(restored, slot, &sample);

                if (told && sample == run->given[slot]) {
                        look->figures->slots++;
                        continue;
                }
                look->figures->lost++;
                look->figures->other += told;
                if (slot < durable)
                        return wrong(look, run,
                                "slot %u was flushed with sample %llu, %s %u",
                                slot, (unsigned long long)run->given[slot],
                                told ? "has" : "is lost;", sample);
        }
        return 0;
}

static bool here(void *arg, uint32_t sample)
{
        (void)arg;
        return sample % 3;
}

/* Binds what is left: each sample once, what was bound stays. */
static int complete(const struct look *look, const struct cut_run *run,
        struct sheaf_job *job, struct sheaf_run *restored)
{
        uint8_t seen[CUT_SLOTS] = { 0 };

        sheaf_run_adopt(job, restored);
        for (uint32_t i = 0; i < CUT_SLOTS; i++) {
                uint32_t slot = CUT_SLOTS - 1 - i, before;
                bool was = !sheaf_run_look(restored, slot, &before);
                struct sheaf_bound bound;
                int rc = sheaf_run_bind(restored, slot, 0, &bound);

                if (rc)
                        return wrong(
                                look, run, "slot %u: %s", slot, strerror(-rc));
                if (was && before != bound.sample)
                        return wrong(look, run, "slot %u moved", slot);
                if (bound.sample >= CUT_SLOTS || seen[bound.sample]++)
                        return wrong(look, run, "slot %u: sample %u twice",
                                slot, bound.sample);
        }
        return 0;
}

static int check_restored(const struct look *look, const struct cut_run *run)
{
        const struct sheaf_job_config *config = &configs[run->job];
        struct sheaf_cohort_config about = { .samples = CUT_SLOTS,
                .here = here };
        struct sheaf_cohort *cohort = NULL;
        struct sheaf_run *restored = NULL;
        struct sheaf_job *job = NULL;
        int rc = sheaf_run_restore(config, CUT_SLOTS, look->state, &restored);

        if (rc)
                return wrong(
                        look, run, "cannot be restored: %s", strerror(-rc));
        rc = compare(look, run, restored);
        if (!rc)
                rc = sheaf_cohort_new(&about, &cohort);
        if (!rc)
                rc = sheaf_job_new(cohort, config, &job);
        if (rc)
                sheaf_run_free(restored);
        else
                rc = complete(look, run, job, restored);
        if (job)
                sheaf_job_free(job);
        if (cohort)
                sheaf_cohort_free(cohort);
        return rc;
}

/* A state that a journal tells. */
static int check_state(const struct look *look, enum cut_job job)
{
        const struct cut_run none = { .job = job, .epoch = look->state->epoch };
        const struct cut_run *run = find(look, job);

        look->figures->journals++;
        if (!run)
                return wrong(look, &none,
                        "a slot has another sample than it was given, or the "
                        "run is not known: %llx %llx, %zu replaced",
                        (unsigned long long)look->state->seed,
                        (unsigned long long)look->state->stream,
                        look->state->replaced_count);
        if (run->gone && look->claims->removed)
                return wrong(look, run, "it was removed, and is back");
        return check_restored(look, run);
}

/* What was flushed of an epoch that has no readable journal. */
static int check_missing(
        const struct look *look, enum cut_job job, uint64_t epoch)
{
        for (size_t i = 0; i < look->jobs->run_count; i++) {
                const struct cut_run *run = &look->jobs->runs[i];

                if (run->job == job && run->epoch == epoch &&
                        look->claims->durable[i])
                        return wrong(look, run, "%u slots were flushed",
                                look->claims->durable[i]);
        }
        return 0;
}

static int check_epoch(
        struct look *look, const char *dir, enum cut_job job, uint64_t epoch)
{
        const struct sheaf_job_config *config = &configs[job];
        struct sheaf_journal_job identity = { .samples = CUT_SLOTS,
                .order = config->order,
                .window = config->window,
                .seed = config->seed };
        const struct cut_run none = { .job = job, .epoch = epoch };
        struct sheaf_journal journal = { 0 };
        const char *field = "?";
        int rc = sheaf_journal_load(dir, epoch, &identity, &journal, &field);

        if (rc == -EBADMSG) {
                look->figures->refused++;
                return 0;
        }
        if (rc)
                return wrong(
                        look, &none, "journal: %s: %s", field, strerror(-rc));
        if (!journal.count) {
                rc = check_missing(look, job, epoch);
        } else {
                look->state = &journal.states[0];
                rc = check_state(look, job);
        }
        sheaf_journal_clear(&journal);
        return rc;
}

int cut_jobs_check(const char *cache, const struct cut_jobs *jobs,
        const struct cut_jobs_claims *claims, struct cut_jobs_figures *figures,
        char ret_why[512])
{
        struct look look = { .jobs = jobs,
                .claims = claims,
                .figures = figures,
                .why = ret_why };
        int rc = 0;

        for (unsigned int job = 0; !rc && job < CUT_JOB_COUNT; job++) {
                char dir[PATH_MAX];

                if (!*jobs->dirs[job])
                        continue;
                snprintf(dir, sizeof(dir), "%s/%s", cache, jobs->dirs[job]);
                for (uint64_t epoch = 0; !rc && epoch < 2; epoch++)
                        rc = check_epoch(&look, dir, job, epoch);
        }
        return rc;
}
