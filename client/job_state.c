/* SPDX-License-Identifier: Apache-2.0 */
/* What a job read so far, for a checkpoint, and going on from there.
 *
 *  1 a bitmap says which samples the slots below `yielded` have, not which
 *    slot has which: so it stays true when the epoch is made from it anew
 *  2 a journal is trusted only if these slots have the same samples there
 *  3 a save asks only for what was yielded since the last one
 *
 * Threads: any. The last save's bitmap is taken out of the job while it is
 * used: a second save at the same time begins without it. */
#include "client/job.h"

static uint64_t check_of(const uint8_t *bitmap, uint32_t samples)
{
        struct sheaf_digest digest;

        sheaf_digest_of(bitmap, sheaf_subset_bytes(samples), &digest);
        return sheaf_digest_prefix(&digest);
}

static void mark(
        const struct sheaf_job *job, uint8_t *bitmap, const uint32_t ordinal)
{
        uint32_t sample =
                job->subset ? sheaf_subset_rank(job->subset, ordinal) : ordinal;

        if (sample < job->samples)
                bitmap[sample / 8] |= (uint8_t)(1 << sample % 8);
}

static struct sheaf_job_saved *saved_new(
        const struct sheaf_job *job, uint64_t epoch)
{
        struct sheaf_job_saved *saved =
                calloc(1, sizeof(*saved) + sheaf_subset_bytes(job->samples));

        if (saved)
                saved->epoch = epoch;
        return saved;
}

/* Samples of slots up to @yielded, in @mode; 1: one is not bound. */
static int gather(struct sheaf_job *job, struct sheaf_job_saved *saved,
        uint32_t yielded, enum sheaf_job_mode mode, int64_t deadline_ns)
{
        uint32_t slots[SHEAF_JOB_SLOTS_MAX], ordinals[SHEAF_JOB_SLOTS_MAX];

        while (saved->yielded < yielded) {
                struct sheaf_job_ask ask = { .mode = mode,
                        .epoch = saved->epoch,
                        .slots = slots,
                        .deadline_ns = deadline_ns,
                        .ret_samples = ordinals };
                int rc;

                ask.n = SHEAF_MIN(yielded - saved->yielded,
                        (uint32_t)SHEAF_JOB_SLOTS_MAX);
                for (uint32_t i = 0; i < ask.n; i++)
                        slots[i] = saved->yielded + i;
                rc = sheaf_job_ask(job, &ask);
                if (rc)
                        return rc;
                for (uint32_t i = 0; i < ask.n; i++) {
                        if (ordinals[i] == SHEAF_JOB_UNBOUND)
                                return 1;
                        mark(job, saved->bitmap, ordinals[i]);
                }
                memcpy(saved->run, ask.run, sizeof(saved->run));
                saved->yielded += (uint32_t)ask.n;
        }
        return 0;
}

static int refuse(
        const struct sheaf_job *job, uint64_t epoch, int rc, const char *why)
{
        return sheaf_error_set(rc, "job %s, epoch %llu: %s", job->name,
                (unsigned long long)epoch, why);
}

int sheaf_job_save(struct sheaf_job *job, uint64_t epoch, uint32_t yielded,
        struct sheaf_job_state *ret_state, uint8_t *ret_bitmap)
{
        int64_t deadline_ns = sheaf_session_deadline_ns(job->dataset->session);
        struct sheaf_job_saved *saved;
        int rc;

        if (yielded > job->samples)
                return refuse(job, epoch, -ERANGE,
                        "more slots are done with than it has");
        saved = atomic_exchange(&job->saved, NULL);
        if (!saved || saved->epoch != epoch || saved->yielded > yielded) {
                free(saved);
                saved = saved_new(job, epoch);
        }
        if (!saved)
                return refuse(job, epoch, -ENOMEM, "no memory for a bitmap");
        /* Looking fetches nothing again; what nobody asked for is bound. */
        rc = gather(job, saved, yielded, SHEAF_JOB_LOOK, deadline_ns);
        if (rc == 1)
                rc = gather(job, saved, yielded,
                        job->options.replay ? SHEAF_JOB_LOOK
                                            : SHEAF_JOB_FOR_STATE,
                        deadline_ns);
        if (rc == 1)
                rc = refuse(job, epoch, -ENODATA,
                        "a slot was not bound in the run that is replayed");
        if (rc) {
                free(saved);
                return rc;
        }
        *ret_state = (struct sheaf_job_state){ .epoch = epoch,
                .run = { saved->run[0], saved->run[1] },
                .check = check_of(saved->bitmap, job->samples),
                .samples = job->samples,
                .yielded = yielded };
        if (ret_bitmap)
                memcpy(ret_bitmap, saved->bitmap,
                        sheaf_subset_bytes(job->samples));
        free(atomic_exchange(&job->saved, saved));
        return 0;
}

/* Whether the daemon's slots have the samples of @state: 1, 0. */
static int fits(struct sheaf_job *job, const struct sheaf_job_state *state,
        int64_t deadline_ns)
{
        struct sheaf_job_saved *saved = saved_new(job, state->epoch);
        int rc;

        if (!saved)
                return refuse(
                        job, state->epoch, -ENOMEM, "no memory for a bitmap");
        rc = gather(job, saved, state->yielded, SHEAF_JOB_LOOK, deadline_ns);
        /* Strict needs no journal: it binds what it would have bound. */
        if (rc == 1 && job->options.order == SHEAF_JOB_STRICT)
                rc = gather(job, saved, state->yielded, SHEAF_JOB_BIND,
                        deadline_ns);
        if (rc >= 0)
                rc = rc == 0 &&
                     check_of(saved->bitmap, job->samples) == state->check;
        free(saved);
        return rc;
}

static int check_state(const struct sheaf_job *job,
        const struct sheaf_job_state *state, const uint8_t *bitmap)
{
        if (state->samples != job->samples)
                return refuse(job, state->epoch, -EINVAL,
                        "the state is of another subset or version: its number "
                        "of samples differs");
        if (state->yielded > state->samples)
                return refuse(
                        job, state->epoch, -EINVAL, "the state is damaged");
        if (bitmap && (check_of(bitmap, job->samples) != state->check ||
                              sheaf_bits_count(bitmap,
                                      sheaf_subset_bytes(job->samples)) !=
                                      state->yielded))
                return refuse(job, state->epoch, -EINVAL,
                        "the state's bitmap is damaged");
        return 0;
}

int sheaf_job_restore(struct sheaf_job *job,
        const struct sheaf_job_state *state, const uint8_t *bitmap)
{
        int64_t deadline_ns = sheaf_session_deadline_ns(job->dataset->session);
        struct sheaf_job_ask ask = { .epoch = state->epoch,
                .deadline_ns = deadline_ns,
                .restore = state };
        int rc = check_state(job, state, bitmap);

        if (rc)
                return rc;
        free(atomic_exchange(&job->saved, NULL));
        rc = sheaf_job_ask(job, &ask);
        if (rc || !state->yielded)
                return rc;
        if (ask.known)
                rc = fits(job, state, deadline_ns);
        if (rc == 1)
                return 0;
        if (rc)
                return rc;
        if (job->options.order == SHEAF_JOB_STRICT)
                return refuse(job, state->epoch, -EINVAL,
                        "the state is of another seed or dataset");
        if (!bitmap || job->options.replay)
                return refuse(job, state->epoch, -ENODATA,
                        "sheafd has no journal that fits the state, and the "
                        "state has no bitmap of what was read; begin the epoch "
                        "anew under another name");
        ask.make = bitmap;
        return sheaf_job_ask(job, &ask);
}
