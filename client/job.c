/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs: slots to samples, by messages that carry all that a job is, so that
 * nothing is lost with a connection.
 *
 * Threads: any; a job has no state that changes but its pace, an atomic. */
#include "client/fetch.h"

#define SLOTS_MAX 4096 /* of a message */

struct sheaf_job {
        struct sheaf_dataset *dataset;
        struct sheaf_job_options options;
        char *name;
        uint32_t samples;
        _Atomic int64_t not_before_ns;
};

/* One message. @ret_samples: of an epoch. */
static int ask(struct sheaf_job *job, uint64_t epoch, const uint32_t *slots,
        size_t n, double rate, int64_t deadline_ns, uint64_t *ret_ordinals)
{
        Sheaf__Bind body = SHEAF__BIND__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        struct sheaf_call call = {
                .env = &env,
                .dataset = job->dataset,
                .handle = &body.handle,
                .what = "bind",
                .deadline_ns = deadline_ns,
        };
        struct sheaf_wire_msg reply;
        const Sheaf__Bound *bound;
        int rc;

        body.job = job->name;
        body.order = (uint32_t)job->options.order;
        body.seed = job->options.seed;
        body.window = job->options.window;
        body.ahead = job->options.ahead;
        body.pace = job->options.pace;
        body.epoch = epoch;
        body.slot = (uint32_t *)slots;
        body.n_slot = n;
        body.rate = rate;
        env.body_case = SHEAF__ENVELOPE__BODY_BIND;
        env.bind = &body;
        rc = sheaf_session_call(job->dataset->session, &call, &reply);
        if (rc)
                return rc;
        bound = reply.env->body_case == SHEAF__ENVELOPE__BODY_BOUND
                        ? reply.env->bound
                        : NULL;
        if (!bound || bound->n_sample != n) {
                sheaf_wire_msg_free(&reply);
                return sheaf_error_set(
                        -EPROTO, "sheafd answered a bind with another message");
        }
        for (size_t i = 0; i < n; i++)
                ret_ordinals[i] = bound->sample[i];
        if (!n)
                job->samples = bound->samples;
        if (bound->wait_ms)
                atomic_store_explicit(&job->not_before_ns,
                        sheaf_now_ns() + bound->wait_ms * SHEAF_NS_PER_MS,
                        memory_order_relaxed);
        sheaf_wire_msg_free(&reply);
        return 0;
}

int sheaf_job_open(struct sheaf_dataset *dataset,
        const struct sheaf_job_options *options, struct sheaf_job **ret_job)
{
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
        rc = ask(job, 0, NULL, 0, 0,
                sheaf_session_deadline_ns(dataset->session), NULL);
        if (rc) {
                sheaf_job_close(job);
                return rc;
        }
        *ret_job = job;
        return 0;
}

void sheaf_job_close(struct sheaf_job *job)
{
        if (!job)
                return;
        free(job->name);
        free(job);
}

uint32_t sheaf_job_samples(const struct sheaf_job *job)
{
        return job->samples;
}

/* At most half of the call's time: it still has to bind. */
static void keep_step(const struct sheaf_job *job, int64_t deadline_ns)
{
        int64_t now_ns = sheaf_now_ns();
        int64_t until_ns = SHEAF_MIN(
                atomic_load_explicit(&job->not_before_ns, memory_order_relaxed),
                now_ns + (deadline_ns - now_ns) / 2);
        int64_t wait_ns = until_ns - now_ns;
        struct timespec ts = { wait_ns / SHEAF_NS_PER_SEC,
                wait_ns % SHEAF_NS_PER_SEC };

        if (wait_ns > 0)
                nanosleep(&ts, NULL);
}

int sheaf_job_bind(struct sheaf_job *job, uint64_t epoch, const uint32_t *slots,
        size_t n, double rate, uint64_t *ret_ordinals)
{
        int64_t deadline_ns = sheaf_session_deadline_ns(job->dataset->session);
        int rc = 0;

        if (job->options.pace)
                keep_step(job, deadline_ns);
        for (size_t done = 0; !rc && done < n; done += SLOTS_MAX)
                rc = ask(job, epoch, slots + done,
                        SHEAF_MIN(n - done, (size_t)SLOTS_MAX), rate,
                        deadline_ns, ret_ordinals + done);
        return rc;
}
