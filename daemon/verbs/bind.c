/* SPDX-License-Identifier: Apache-2.0 */
/* Bind: slots of a job's epoch get samples.
 *
 * Threads: loop thread. */
#include "daemon/jobs/jobs.h"
#include "daemon/verbs/verbs.h"

#include "daemon/clock.h"

#include <math.h>

#define AHEAD_MAX (UINT32_C(1) << 20)

struct bind_call {
        struct sheaf_call call; /* first */
        struct sheaf_bind bind;
        uint32_t slots[];
};

static void bind_call_free(struct bind_call *b)
{
        sheaf_close_p(&b->bind.subset_fd);
        sheaf_close_p(&b->bind.read_fd);
        free(b);
}

static void abandon(struct sheaf_call *call)
{
        struct bind_call *b = (struct bind_call *)call;

        sheaf_jobs_cancel(&b->bind);
        bind_call_free(b);
}

static void done(struct sheaf_bind *bind, int rc, const char *why)
{
        struct bind_call *b =
                (struct bind_call *)((char *)bind -
                                     offsetof(struct bind_call, bind));
        struct sheaf_conn *conn = b->call.conn;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__Bound body = SHEAF__BOUND__INIT;
        int64_t wait_ns = bind->not_before_ns - sheaf_now_ns();

        env.id = b->call.id;
        sheaf_call_end(&b->call);
        if (rc) {
                sheaf_conn_error(conn, env.id, rc, "epoch %llu: %s",
                        (unsigned long long)bind->epoch, why);
        } else {
                body.sample = bind->slots;
                body.n_sample = bind->count;
                body.samples = bind->samples;
                body.seed = bind->seed;
                body.stream = bind->stream;
                body.known = bind->known;
                body.ahead = bind->ahead;
                body.warning = bind->warning;
                body.from_origin = bind->from_origin;
                body.replaced = bind->replaced;
                if (wait_ns > 0)
                        body.wait_ms = (uint32_t)SHEAF_MIN(
                                (wait_ns + SHEAF_NS_PER_MS - 1) /
                                        SHEAF_NS_PER_MS,
                                (int64_t)conn->daemon->config->deadline_ms);
                env.body_case = SHEAF__ENVELOPE__BODY_BOUND;
                env.bound = &body;
                sheaf_conn_send(conn, &env, NULL, 0);
        }
        bind_call_free(b);
}

static void want_subset(struct sheaf_conn *conn, uint64_t id)
{
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__Bound body = SHEAF__BOUND__INIT;

        env.id = id;
        body.want_subset = true;
        env.body_case = SHEAF__ENVELOPE__BODY_BOUND;
        env.bound = &body;
        sheaf_conn_send(conn, &env, NULL, 0);
}

/* What is wrong with the request, or NULL. */
static const char *fault_of(const Sheaf__Bind *bind)
{
        size_t len = strlen(bind->job);

        if (!len || len > SHEAF_JOB_NAME_MAX)
                return "a job's name has 1 to 128 bytes";
        if (bind->order > SHEAF_ORDER_STRICT)
                return "this sheafd does not know that order";
        if (bind->order == SHEAF_ORDER_WINDOW && !bind->window)
                return "the order window needs a window of 1 or more slots";
        if (bind->ahead > AHEAD_MAX)
                return "at most 1,048,576 slots can be bound ahead";
        if (bind->epoch >= SHEAF_EPOCHS_MAX)
                return "a job has at most 4,194,304 epochs";
        if (bind->n_slot > SHEAF_BIND_SLOTS_MAX)
                return "at most 4,096 slots can be bound at once";
        if (!isfinite(bind->rate) || bind->rate < 0)
                return "a rate is a number of samples a second";
        if (bind->subset.len && bind->subset.len != SHEAF_DIGEST_BYTES)
                return "a subset is named by a SHA-256";
        if (bind->mode > SHEAF_BIND_STATE)
                return "this sheafd does not know that way to bind";
        if (bind->restore && bind->n_slot)
                return "a restore has no slots";
        if (bind->restore && bind->restore->make &&
                bind->restore->digest.len != SHEAF_DIGEST_BYTES)
                return "a bitmap is named by a SHA-256";
        return NULL;
}

/* Everything but its call and handle; bitmaps are taken out of @msg. */
static void fill(struct bind_call *b, struct sheaf_wire_msg *msg)
{
        const Sheaf__Bind *bind = msg->env->bind;
        const Sheaf__Restore *restore = bind->restore;
        size_t at = 0;

        if (bind->n_slot)
                memcpy(b->slots, bind->slot,
                        bind->n_slot * sizeof(b->slots[0]));
        b->bind = (struct sheaf_bind){ .epoch = bind->epoch,
                .mode = (enum sheaf_bind_mode)bind->mode,
                .slots = b->slots,
                .count = bind->n_slot,
                .rate = bind->rate,
                .subset_fd = -1,
                .read_fd = -1,
                .done = done };
        if (bind->has_subset && msg->fd_count)
                b->bind.subset_fd = sheaf_wire_take_fd(msg, at++);
        if (!restore)
                return;
        b->bind.mode = restore->make ? SHEAF_BIND_RESTORE_MAKE
                                     : SHEAF_BIND_RESTORE_ASK;
        b->bind.yielded = restore->yielded;
        b->bind.seed = restore->seed;
        b->bind.stream = restore->stream;
        if (!restore->make)
                return;
        memcpy(b->bind.read_name.bytes, restore->digest.data,
                SHEAF_DIGEST_BYTES);
        if (at < msg->fd_count)
                b->bind.read_fd = sheaf_wire_take_fd(msg, at);
}

void sheaf_verb_bind(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__Bind *bind = msg->env->bind;
        uint64_t id = msg->env->id;
        struct sheaf_handle *h = sheaf_conn_handle(conn, id, bind->handle);
        const char *why = fault_of(bind);
        struct sheaf_job_spec spec = { .name = bind->job,
                .config = { .order = (enum sheaf_order)bind->order,
                        .seed = bind->seed,
                        .window = bind->window,
                        .ahead = bind->ahead,
                        .pace = bind->pace } };
        struct bind_call *b;
        int rc;

        if (!h)
                return;
        if (!h->lodging)
                why = "the dataset is open for figures only";
        else if (!h->version->fetch.listing.file_count)
                why = "the dataset has no files";
        if (why) {
                sheaf_conn_error(conn, id, -EINVAL, "%s", why);
                return;
        }
        if (bind->subset.len)
                memcpy(spec.subset.bytes, bind->subset.data,
                        SHEAF_DIGEST_BYTES);
        b = calloc(1, sizeof(*b) + bind->n_slot * sizeof(b->slots[0]));
        if (!sheaf_call_begin(conn, id, b ? &b->call : NULL, abandon)) {
                free(b);
                return;
        }
        fill(b, msg);
        b->bind.handle = h;
        why = "no memory for another job";
        rc = sheaf_jobs_bind(conn, &spec, &b->bind, &why);
        if (!rc)
                return;
        sheaf_call_end(&b->call);
        bind_call_free(b);
        if (rc == 1) {
                want_subset(conn, id);
                return;
        }
        sheaf_conn_error(conn, id, rc, "job '%s': %s%s", bind->job, why,
                rc == -EINVAL ? "; give all its processes the same, or "
                                "another name"
                              : "");
}
