/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs: slots to samples, by messages that carry all that a job is, so that
 * nothing is lost with a connection. A subset is named by its digest; its
 * bitmap goes to the daemon when that does not know the name.
 *
 * Threads: any; what changes in a job is atomic. */
#include "client/job.h"

#include <stdio.h>

/* Answers in turn that may want a bitmap: the daemon may restart between. */
#define TRIES_MAX 5
/* Between two looks whether a wait is to end. */
#define STEP_SLICE_NS (100 * SHEAF_NS_PER_MS)

/* ---- messages ---- */

static void fill(const struct sheaf_job *job, const struct sheaf_job_ask *ask,
        Sheaf__Bind *body)
{
        body->job = job->name;
        body->order = (uint32_t)job->options.order;
        body->seed = job->options.seed;
        body->window = job->options.window;
        body->ahead = job->options.ahead;
        body->pace = job->options.pace;
        body->epoch = ask->epoch;
        body->slot = (uint32_t *)ask->slots;
        body->n_slot = ask->n;
        body->rate = ask->rate;
        body->mode = (uint32_t)ask->mode;
        if (!job->bitmap)
                return;
        body->subset.data = (uint8_t *)job->bitmap_name.bytes;
        body->subset.len = SHEAF_DIGEST_BYTES;
}

static int take(struct sheaf_job *job, const struct sheaf_wire_msg *reply,
        struct sheaf_job_ask *ask)
{
        const Sheaf__Bound *bound =
                reply->env->body_case == SHEAF__ENVELOPE__BODY_BOUND
                        ? reply->env->bound
                        : NULL;

        if (bound && bound->want_subset && job->bitmap)
                return 1;
        if (!bound || bound->n_sample != ask->n || bound->want_subset)
                return sheaf_error_set(
                        -EPROTO, "sheafd answered a bind with another message");
        for (size_t i = 0; ask->ret_samples && i < ask->n; i++)
                ask->ret_samples[i] = bound->sample[i];
        ask->run[0] = bound->seed;
        ask->run[1] = bound->stream;
        ask->samples = bound->samples;
        ask->known = bound->known;
        ask->ahead = bound->ahead;
        job->dataset->from_origin += bound->from_origin;
        job->dataset->substituted += bound->replaced;
        if (bound->wait_ms)
                atomic_store_explicit(&job->not_before_ns,
                        sheaf_now_ns() + bound->wait_ms * SHEAF_NS_PER_MS,
                        memory_order_relaxed);
        if (*bound->warning)
                free(atomic_exchange(&job->warning, strdup(bound->warning)));
        return 0;
}

/* 1: the subset is to be sent. */
static int ask_once(struct sheaf_job *job, struct sheaf_job_ask *ask,
        Sheaf__Bind *body, const int *fds, size_t fd_count)
{
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        struct sheaf_call call = {
                .env = &env,
                .fds = fds,
                .fd_count = fd_count,
                .dataset = job->dataset,
                .handle = &body->handle,
                .what = "bind",
                .deadline_ns = ask->deadline_ns,
        };
        struct sheaf_wire_msg reply;
        int rc;

        env.body_case = SHEAF__ENVELOPE__BODY_BIND;
        env.bind = body;
        rc = sheaf_session_call(job->dataset->session, &call, &reply);
        if (rc)
                return rc;
        rc = take(job, &reply, ask);
        sheaf_wire_msg_free(&reply);
        return rc;
}

static int sealed(const uint8_t *bitmap, uint32_t bits, int *ret_fd)
{
        int fd = sheaf_sealed_new(bitmap, sheaf_subset_bytes(bits));
        char why[SHEAF_ERROR_WHY_MAX];

        if (fd < 0)
                return sheaf_error_set(fd, "a bitmap for sheafd: %s",
                        sheaf_error_why(fd, why));
        *ret_fd = fd;
        return 0;
}

int sheaf_job_ask(struct sheaf_job *job, struct sheaf_job_ask *ask)
{
        sheaf_autofd int subset_fd = -1, make_fd = -1;
        Sheaf__Bind body = SHEAF__BIND__INIT;
        Sheaf__Restore restore = SHEAF__RESTORE__INIT;
        struct sheaf_digest name;
        int rc = 0;

        fill(job, ask, &body);
        if (ask->restore) {
                restore.yielded = ask->restore->yielded;
                restore.seed = ask->restore->run[0];
                restore.stream = ask->restore->run[1];
                body.restore = &restore;
        }
        if (ask->make) {
                restore.make = true;
                sheaf_digest_of(
                        ask->make, sheaf_subset_bytes(job->samples), &name);
                restore.digest.data = name.bytes;
                restore.digest.len = SHEAF_DIGEST_BYTES;
                rc = sealed(ask->make, job->samples, &make_fd);
        }
        for (int tries = 0; rc == 0 && tries < TRIES_MAX; tries++) {
                int fds[2];
                size_t count = 0;

                if (subset_fd >= 0)
                        fds[count++] = subset_fd;
                if (make_fd >= 0)
                        fds[count++] = make_fd;
                body.has_subset = subset_fd >= 0;
                rc = ask_once(job, ask, &body, fds, count);
                if (rc <= 0)
                        return rc;
                rc = subset_fd < 0 ? sealed(job->bitmap, job->subset->files,
                                             &subset_fd)
                                   : 0;
        }
        return rc ? rc
                  : sheaf_error_set(-EPROTO,
                            "sheafd asks for the subset again and again");
}

/* ---- opening ---- */

static int take_subset(struct sheaf_job *job, const uint8_t *bitmap)
{
        uint32_t files = job->dataset->listing.file_count;
        size_t len = sheaf_subset_bytes(files);
        int rc;

        if (!bitmap || !files)
                return 0; /* sheafd tells if there are no files */
        rc = sheaf_subset_new(bitmap, files, &job->subset);
        if (rc == -EINVAL)
                return sheaf_error_set(rc,
                        "job %s: its subset has no file, or bits beyond the "
                        "last file",
                        job->name);
        if (rc == 0)
                job->bitmap = malloc(len);
        if (!job->bitmap)
                return sheaf_error_set(-ENOMEM, "job %s: no memory", job->name);
        memcpy(job->bitmap, bitmap, len);
        sheaf_digest_of(bitmap, len, &job->bitmap_name);
        return 0;
}

int sheaf_job_open(struct sheaf_dataset *dataset,
        const struct sheaf_job_options *options, struct sheaf_job **ret_job)
{
        struct sheaf_job_ask ask = { .deadline_ns = sheaf_session_deadline_ns(
                                             dataset->session) };
        struct sheaf_job *job;
        int rc;

        if (!options || !options->name || !*options->name)
                return sheaf_error_set(-EINVAL, "a job needs a name");
        job = sheaf_new(struct sheaf_job, 1);
        if (job)
                job->name = strdup(options->name);
        if (!job || !job->name) {
                free(job);
                return sheaf_error_set(
                        -ENOMEM, "no memory for job %s", options->name);
        }
        job->dataset = dataset;
        job->options = *options;
        job->options.name = job->name;
        job->options.subset = NULL;
        rc = take_subset(job, options->subset);
        if (rc == 0)
                rc = sheaf_job_ask(job, &ask);
        if (rc) {
                sheaf_job_close(job);
                return rc;
        }
        job->samples = ask.samples;
        if (!options->ahead)
                job->options.ahead = ask.ahead;
        *ret_job = job;
        return 0;
}

void sheaf_job_close(struct sheaf_job *job)
{
        if (!job)
                return;
        sheaf_subset_free(job->subset);
        free(atomic_load(&job->saved));
        free(atomic_load(&job->warning));
        free(job->bitmap);
        free(job->name);
        free(job);
}

uint32_t sheaf_job_samples(const struct sheaf_job *job)
{
        return job->samples;
}

uint32_t sheaf_job_ahead(const struct sheaf_job *job)
{
        return job->options.ahead;
}

size_t sheaf_job_warning(
        struct sheaf_job *job, char *ret_text, size_t cap_bytes)
{
        char *text = atomic_exchange(&job->warning, NULL);
        size_t len = text ? strlen(text) : 0;

        if (cap_bytes)
                snprintf(ret_text, cap_bytes, "%s", text ? text : "");
        free(text);
        return len;
}

/* ---- binding ---- */

/* At most half of the call's time: it still has to bind. */
static int keep_step(struct sheaf_job *job, int64_t deadline_ns)
{
        int64_t began_ns = sheaf_now_ns(), now_ns = began_ns;
        int64_t until_ns = SHEAF_MIN(
                atomic_load_explicit(&job->not_before_ns, memory_order_relaxed),
                now_ns + (deadline_ns - now_ns) / 2);
        int rc = 0;

        while (rc == 0 && now_ns < until_ns) {
                struct timespec ts = { .tv_nsec = SHEAF_MIN(until_ns - now_ns,
                                               STEP_SLICE_NS) };

                nanosleep(&ts, NULL);
                rc = sheaf_session_interrupted(job->dataset->session);
                now_ns = sheaf_now_ns();
        }
        job->dataset->pace_wait_ns += (uint64_t)(now_ns - began_ns);
        return rc;
}

/* One message's worth. */
static int bind_some(struct sheaf_job *job, struct sheaf_job_ask *ask,
        uint64_t *ret_ordinals)
{
        uint32_t samples[SHEAF_JOB_SLOTS_MAX];
        int rc;

        ask->ret_samples = samples;
        rc = sheaf_job_ask(job, ask);
        for (size_t i = 0; rc == 0 && i < ask->n; i++) {
                if (samples[i] == SHEAF_JOB_UNBOUND)
                        return sheaf_error_set(-ENODATA,
                                "job %s, epoch %llu: slot %u was not bound in "
                                "the run that is replayed, or its journal is "
                                "gone",
                                job->name, (unsigned long long)ask->epoch,
                                ask->slots[i]);
                ret_ordinals[i] = samples[i];
        }
        return rc;
}

int sheaf_job_bind(struct sheaf_job *job, uint64_t epoch, const uint32_t *slots,
        size_t n, double rate, uint64_t *ret_ordinals)
{
        struct sheaf_job_ask ask = {
                .mode = job->options.replay ? SHEAF_JOB_REPLAY : SHEAF_JOB_BIND,
                .epoch = epoch,
                .rate = rate,
                .deadline_ns = sheaf_session_deadline_ns(job->dataset->session),
        };
        int rc = 0;

        if (job->options.pace)
                rc = keep_step(job, ask.deadline_ns);
        for (size_t done = 0; !rc && done < n; done += SHEAF_JOB_SLOTS_MAX) {
                ask.slots = slots + done;
                ask.n = SHEAF_MIN(n - done, (size_t)SHEAF_JOB_SLOTS_MAX);
                rc = bind_some(job, &ask, ret_ordinals + done);
        }
        return rc;
}
