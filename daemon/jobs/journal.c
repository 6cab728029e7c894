/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs' work on the pool: bitmaps, journals (jobs.h).
 *
 *  1 one piece of work on the pool a job: binds that come meanwhile queue up,
 *    in order, so a file's head stands before its records
 *  2 journals are written before binds are answered, which a kill of the
 *    daemon needs; they are flushed when a job ends, so after a clean stop,
 *    too, a loss of power costs nothing
 *  3 a journal that cannot be written does not stop a training run: it is
 *    logged and counted; after a kill of the daemon samples may repeat
 *  4 work() uses the job's fields for work, and others only as long as the
 *    loop leaves them alone: while the job is being opened
 *
 * Threads: loop thread, but for work() and what it calls. */
#include "daemon/jobs/internal.h"

#include "daemon/clock.h"

#include <stdio.h>
#include <sys/stat.h>

/* An epoch that was not written for longer is on the disk by the kernel. */
#define FLUSH_EPOCHS 4

/* About what a file costs beside its bytes. */
#define NEW_FILE_BYTES 4096

/* Of the look-ahead of a job that told none. */
#define AHEAD_SHARE 32 /* of its samples */
#define AHEAD_LEAST UINT32_C(64)
#define AHEAD_MOST  UINT32_C(4096)

int sheaf_live_job_paths(struct sheaf_live_job *job)
{
        const struct sheaf_jobs_cohort *cohort = job->cohort;
        const SheafRecord__Version *record = cohort->version->record;
        char key[SHEAF_JOB_NAME_MAX + SHEAF_DIGEST_HEX + 64], uuid[33], hex[33];
        char subset[SHEAF_DIGEST_HEX + 10] = "";
        struct sheaf_digest digest;
        int n;

        if (sheaf_digest_known(&cohort->subset_name)) {
                strcpy(subset, "subset ");
                sheaf_digest_hex(&cohort->subset_name, subset + 7);
                strcat(subset, " ");
        }
        n = snprintf(key, sizeof(key), "%s%llu %u %s", subset,
                (unsigned long long)job->owner.grant, job->owner.uid,
                job->name);
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
        memcpy(job->id, hex, sizeof(job->id));
        return 0;
}

/* ---- on the pool ---- */

/* The bitmap in job->fd, which must have the digest that was told. */
static int read_bitmap(
        struct sheaf_live_job *job, uint32_t bits, uint8_t **ret_bitmap)
{
        size_t len = sheaf_subset_bytes(bits);
        sheaf_autofree uint8_t *bitmap = malloc(len);
        struct sheaf_digest digest;
        int rc = bitmap ? sheaf_sealed_read(job->fd, bitmap, len) : -ENOMEM;

        if (rc == 0) {
                sheaf_digest_of(bitmap, len, &digest);
                if (!sheaf_digest_equal(&digest, &job->digest))
                        rc = -EINVAL;
        }
        if (rc == -EINVAL)
                job->why = "the bitmap is of another length, not sealed, or "
                           "has another digest than was told";
        if (rc == 0)
                *ret_bitmap = sheaf_steal(&bitmap);
        return rc;
}

static int read_subset(struct sheaf_live_job *job)
{
        sheaf_autofree uint8_t *bitmap = NULL;
        int rc = read_bitmap(job, job->files, &bitmap);

        if (rc < 0)
                return rc;
        rc = sheaf_subset_new(bitmap, job->files, &job->subset);
        if (rc == -EINVAL)
                job->why = "a subset needs a file, and none beyond the last";
        else if (rc == 0)
                job->identity.samples = job->subset->count;
        return rc;
}

/* The states of @journal, as runs. */
static int to_runs(
        struct sheaf_live_job *job, const struct sheaf_journal *journal)
{
        for (size_t i = 0; i < journal->count; i++) {
                int rc = sheaf_run_restore(&job->config, job->identity.samples,
                        &journal->states[i], &job->runs[job->run_count]);

                if (rc == 0)
                        job->run_count++;
                else if (rc != -EBADMSG || job->task != SHEAF_JOB_OPEN)
                        return rc;
        }
        return 0;
}

static int work_read(struct sheaf_live_job *job)
{
        struct sheaf_journal journal = { 0 };
        int rc = 0;

        if (job->task == SHEAF_JOB_OPEN && job->fd >= 0)
                rc = read_subset(job);
        if (rc < 0)
                return rc;
        if (job->task == SHEAF_JOB_OPEN)
                rc = sheaf_journal_read(
                        job->dir, &job->identity, &journal, &job->why);
        else
                rc = sheaf_journal_load(job->dir, job->epoch, &job->identity,
                        &journal, &job->why);
        if (rc < 0)
                return rc;
        if (journal.any)
                job->begun = journal.newest + 1;
        if (journal.any && job->task == SHEAF_JOB_OPEN)
                sheaf_kept_write_about(job);
        rc = to_runs(job, &journal);
        sheaf_journal_clear(&journal);
        return rc;
}

static int work_append(struct sheaf_live_job *job)
{
        int rc = sheaf_journal_append(job->dir, job->epoch, job->begins,
                job->records, job->record_count);

        if (rc == -ENOENT) {
                (void)mkdir(job->parent, 0700);
                rc = sheaf_journal_append(job->dir, job->epoch, job->begins,
                        job->records, job->record_count);
        }
        if (rc == 0 && job->begins)
                sheaf_kept_write_about(job);
        if (job->dirty_to == job->dirty_from)
                job->dirty_from = job->epoch;
        job->dirty_from = SHEAF_MIN(job->dirty_from, job->epoch);
        job->dirty_to = SHEAF_MAX(job->dirty_to, job->epoch + 1);
        return rc;
}

/* What is gone meanwhile, with its version or by its owner, needs none. */
static int work_flush(struct sheaf_live_job *job)
{
        uint64_t epoch = job->dirty_from;
        int rc = 0;

        if (job->dirty_to - epoch > FLUSH_EPOCHS)
                epoch = job->dirty_to - FLUSH_EPOCHS;
        for (; epoch < job->dirty_to && (!rc || rc == -ENOENT); epoch++)
                rc = sheaf_journal_flush(job->dir, epoch);
        job->dirty_from = job->dirty_to;
        return rc == -ENOENT ? 0 : rc;
}

/* The records of a run that was recalled. */
static int recalled_records(
        struct sheaf_live_job *job, const struct sheaf_run_state *state)
{
        struct sheaf_journal_record *records =
                sheaf_new(struct sheaf_journal_record,
                        SHEAF_JOURNAL_HEAD + 1 + state->replaced_count);
        size_t n = SHEAF_JOURNAL_HEAD;

        if (!records)
                return -ENOMEM;
        sheaf_journal_head(&job->identity, state, records);
        records[n++] = sheaf_journal_mark(state->high);
        for (size_t i = 0; i < state->replaced_count; i++)
                records[n++] = sheaf_journal_replaced(
                        state->replaced[i][0], state->replaced[i][1]);
        job->records = records;
        job->record_count = n;
        job->begins = true;
        return 0;
}

static int work_recall(struct sheaf_live_job *job)
{
        struct sheaf_run_state state = {
                .epoch = job->epoch, .seed = job->seed, .stream = job->stream
        };
        uint32_t samples = job->identity.samples;
        sheaf_autofree uint8_t *read = NULL;
        uint32_t(*replaced)[2] = NULL;
        int rc = read_bitmap(job, samples, &read);

        if (rc == 0)
                rc = sheaf_run_recall(
                        samples, job->yielded, read, &state, &replaced);
        if (rc == 0)
                rc = sheaf_run_restore(
                        &job->config, samples, &state, &job->runs[0]);
        if (rc == 0) {
                job->run_count = 1;
                rc = recalled_records(job, &state);
        }
        free(replaced);
        if (rc == -EBADMSG)
                job->why = "the bitmap does not fit the order, or the number "
                           "of slots yielded";
        return rc;
}

static void work(uv_work_t *work)
{
        struct sheaf_live_job *job = work->data;

        job->why = "the job's journal cannot be read";
        switch (job->task) {
        case SHEAF_JOB_OPEN:
        case SHEAF_JOB_LOAD:
                job->rc = work_read(job);
                break;
        case SHEAF_JOB_APPEND:
                job->rc = work_append(job);
                break;
        case SHEAF_JOB_RECALL:
                job->rc = work_recall(job);
                break;
        case SHEAF_JOB_FLUSH:
                job->rc = work_flush(job);
                break;
        }
}

/* ---- after it ---- */

static void adopt(struct sheaf_live_job *job)
{
        for (size_t i = 0; i < job->run_count; i++)
                sheaf_run_adopt(job->job, sheaf_steal(&job->runs[i]));
        job->run_count = 0;
}

/* A look-ahead that the cache can hold beside the stock: what it costs the
 * origin is ahead / samples. */
static uint32_t usual_ahead(uint32_t samples)
{
        return SHEAF_MIN(
                SHEAF_MAX(samples / AHEAD_SHARE, AHEAD_LEAST), AHEAD_MOST);
}

/* Whether it goes on. */
static bool has_opened(struct sheaf_live_job *job)
{
        int rc = job->rc;

        if (rc == 0)
                rc = sheaf_jobs_cohort_ready(
                        job->cohort, sheaf_steal(&job->subset));
        if (!job->config.ahead)
                job->config.ahead = usual_ahead(job->identity.samples);
        if (rc == 0)
                rc = sheaf_job_new(
                        job->cohort->cohort, &job->config, &job->job);
        if (rc == 0) {
                adopt(job);
                return true;
        }
        if (sheaf_log_once(&job->jobs->begin_once, 10 * SHEAF_NS_PER_SEC))
                sheaf_log_rc(rc, SHEAF_LOG_WARN, "job not begun",
                        "dir=%s why=\"%s\"", job->dir, job->why);
        sheaf_live_job_end(job, rc, job->why);
        return false;
}

static void has_loaded(struct sheaf_live_job *job)
{
        struct sheaf_bind *bind = TAILQ_FIRST(&job->binds);

        if (job->rc == -EBADMSG) {
                job->damaged = job->epoch + 1;
        } else if (job->rc < 0) {
                if (bind && bind->epoch == job->epoch)
                        sheaf_bind_finish(bind, job->rc, job->why);
        } else if (!job->run_count) {
                job->absent = job->epoch + 1;
        } else {
                adopt(job);
        }
}

static void has_written(struct sheaf_live_job *job)
{
        struct sheaf_bind *bind = sheaf_steal(&job->writing);

        free(sheaf_steal(&job->records));
        job->jobs->stats.journal_rc = job->rc;
        if (job->rc == 0)
                sheaf_jobs_wrote(job->jobs,
                        job->record_count * sizeof(*job->records) +
                                (job->begins ? NEW_FILE_BYTES : 0),
                        job->begins);
        if (job->rc < 0) {
                job->jobs->stats.journal_errors++;
                job->jobs->stats.journal_failed_ns = sheaf_now_ns();
                if (job->lossy_to == job->lossy_from)
                        job->lossy_from = job->epoch;
                job->lossy_from = SHEAF_MIN(job->lossy_from, job->epoch);
                job->lossy_to = SHEAF_MAX(job->lossy_to, job->epoch + 1);
                if (sheaf_log_once(
                            &job->jobs->journal_once, 10 * SHEAF_NS_PER_SEC))
                        sheaf_log_rc(job->rc, SHEAF_LOG_WARN,
                                "journal not written",
                                "dir=%s why=\"after a kill of sheafd samples "
                                "may repeat\"",
                                job->dir);
        }
        if (bind)
                sheaf_bind_finish(bind, 0, NULL);
}

/* The run takes its place, then its journal is written. */
static bool has_recalled(struct sheaf_live_job *job)
{
        struct sheaf_bind *bind = job->writing;
        uint32_t at = job->next_recalled;

        if (job->rc < 0) {
                job->writing = NULL;
                if (bind)
                        sheaf_bind_finish(bind, job->rc, job->why);
                return false;
        }
        adopt(job);
        job->recalled[at].epoch = job->epoch;
        job->recalled[at].name = job->digest;
        job->next_recalled = (at + 1) % SHEAF_ARRAY_LEN(job->recalled);
        job->begun = SHEAF_MAX(job->begun, job->epoch + 1);
        job->absent = job->damaged = 0;
        job->jobs->stats.restored++;
        if (bind)
                bind->known = true;
        sheaf_live_job_work(job, SHEAF_JOB_APPEND);
        return true;
}

static void after_work(uv_work_t *work, int status)
{
        struct sheaf_live_job *job = work->data;

        job->working = false;
        sheaf_close_p(&job->fd);
        if (status)
                job->rc = status;
        if (!job->cohort) {
                if (job->task == SHEAF_JOB_FLUSH && job->rc)
                        sheaf_log_rc(job->rc, SHEAF_LOG_WARN,
                                "journal not flushed",
                                "dir=%s why=\"after a loss of power samples "
                                "may repeat\"",
                                job->dir);
                sheaf_live_job_free(job);
                return;
        }
        switch (job->task) {
        case SHEAF_JOB_OPEN:
                if (!has_opened(job))
                        return;
                break;
        case SHEAF_JOB_LOAD:
                has_loaded(job);
                break;
        case SHEAF_JOB_APPEND:
                has_written(job);
                break;
        case SHEAF_JOB_RECALL:
                if (has_recalled(job))
                        return;
                break;
        case SHEAF_JOB_FLUSH:
                break;
        }
        sheaf_live_job_advance(job);
}

void sheaf_live_job_work(struct sheaf_live_job *job, enum sheaf_job_work task)
{
        job->working = true;
        job->task = task;
        job->work.data = job;
        if (uv_queue_work(job->loop, &job->work, work, after_work)) {
                work(&job->work);
                after_work(&job->work, 0);
        }
}
