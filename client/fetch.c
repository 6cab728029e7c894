/* SPDX-License-Identifier: Apache-2.0 */
/* Fetch messages.
 *
 *  1 a failure names its item; what is not named succeeded
 *  2 the daemon is given a little less than the caller's deadline, so that
 *    its reason arrives before the caller gives up without one
 *
 * Threads: any; no lock of its own. */
#include "client/fetch.h"

#define BUSY_PAUSE_NS (20 * SHEAF_NS_PER_MS)

static uint32_t daemon_deadline_ms(int64_t deadline_ns)
{
        int64_t left_ms = (deadline_ns - sheaf_now_ns()) / SHEAF_NS_PER_MS;
        int64_t spare_ms = SHEAF_MIN(left_ms / 10, 500);

        return (uint32_t)SHEAF_MIN(
                SHEAF_MAX(left_ms - spare_ms, 1), (int64_t)UINT32_MAX);
}

static int ask(struct sheaf_dataset *dataset, const uint64_t *items, size_t n,
        int64_t deadline_ns, bool copy, struct sheaf_wire_msg *ret_reply)
{
        Sheaf__Fetch body = SHEAF__FETCH__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        struct sheaf_call call = {
                .env = &env,
                .dataset = dataset,
                .handle = &body.handle,
                .what = "fetch",
                .deadline_ns = deadline_ns,
        };
        int64_t began_ns = sheaf_now_ns();
        int rc;

        body.item = (uint64_t *)items;
        body.n_item = n;
        body.copy = copy;
        body.deadline_ms = daemon_deadline_ms(deadline_ns);
        env.body_case = SHEAF__ENVELOPE__BODY_FETCH;
        env.fetch = &body;
        rc = sheaf_session_call(dataset->session, &call, ret_reply);
        sheaf_map_count_miss(dataset, n, (uint64_t)(sheaf_now_ns() - began_ns));
        if (rc)
                return rc;
        if (ret_reply->env->body_case == SHEAF__ENVELOPE__BODY_FETCHED) {
                dataset->from_disk += ret_reply->env->fetched->from_disk;
                dataset->from_origin += ret_reply->env->fetched->from_origin;
                return 0;
        }
        sheaf_wire_msg_free(ret_reply);
        return sheaf_error_set(
                -EPROTO, "sheafd answered a fetch with another message");
}

static int failure(const Sheaf__Failure *failure)
{
        int rc = failure->errno_value > 0 && failure->errno_value < 4096
                         ? -failure->errno_value
                         : -EIO;

        return sheaf_error_set(
                rc, "%s", *failure->message ? failure->message : strerror(-rc));
}

int sheaf_fetch(struct sheaf_dataset *dataset, const uint64_t *items, size_t n,
        int64_t deadline_ns, int *ret_rc)
{
        for (size_t done = 0; done < n;) {
                size_t part = SHEAF_MIN(n - done, SHEAF_FETCH_ITEMS_MAX);
                struct sheaf_wire_msg reply;
                int rc = ask(dataset, items + done, part, deadline_ns, false,
                        &reply);

                if (rc) {
                        for (size_t i = done; i < n; i++)
                                ret_rc[i] = rc;
                        return rc;
                }

                const Sheaf__Fetched *fetched = reply.env->fetched;

                memset(ret_rc + done, 0, part * sizeof(*ret_rc));
                for (size_t i = 0; i < fetched->n_failure; i++)
                        if (fetched->failure[i]->position < part)
                                ret_rc[done + fetched->failure[i]->position] =
                                        failure(fetched->failure[i]);
                sheaf_wire_msg_free(&reply);
                done += part;
        }
        return 0;
}

int sheaf_fetch_copy(struct sheaf_dataset *dataset, const uint64_t *items,
        size_t n, int64_t deadline_ns, int *ret_fd)
{
        const struct timespec pause = { .tv_nsec = BUSY_PAUSE_NS };
        struct sheaf_wire_msg reply;
        int rc = ask(dataset, items, n, deadline_ns, true, &reply);

        /* This user's processes have many copies at the moment. */
        while (rc == -EBUSY && sheaf_now_ns() + BUSY_PAUSE_NS < deadline_ns) {
                nanosleep(&pause, NULL);
                rc = sheaf_session_interrupted(dataset->session);
                if (rc)
                        return rc;
                rc = ask(dataset, items, n, deadline_ns, true, &reply);
        }
        if (rc)
                return rc;
        if (reply.env->fetched->n_failure)
                rc = failure(reply.env->fetched->failure[0]);
        else if (!reply.env->fetched->copied || !reply.fd_count)
                rc = sheaf_error_set(-EPROTO,
                        "sheafd sent no copy of what it was asked for");
        else
                *ret_fd = sheaf_wire_take_fd(&reply, 0);
        sheaf_wire_msg_free(&reply);
        return rc;
}

int sheaf_fetch_hint(
        struct sheaf_dataset *dataset, const uint64_t *items, size_t n)
{
        struct sheaf_session *session = dataset->session;
        Sheaf__Fetch body = SHEAF__FETCH__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        int rc = -EAGAIN;

        body.hint = true;
        body.item = (uint64_t *)items;
        body.n_item = n;
        env.body_case = SHEAF__ENVELOPE__BODY_FETCH;
        env.fetch = &body;
        pthread_mutex_lock(&session->lock);
        if (session->state == SHEAF_LINK_READY &&
                dataset->state == SHEAF_OPEN_DONE) {
                body.handle = dataset->handle;
                env.id = ++session->next_id;
                rc = sheaf_wire_send(session->sock, &env, NULL, 0);
        }
        pthread_mutex_unlock(&session->lock);
        return rc;
}
