/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: made, waited for, asked.
 *
 *  1 a call returns within its deadline, whatever the daemon does
 *  2 a request lost to a hang-up is sent again after the reconnect, unless it
 *    may be made only once
 *  3 a request is on the list exactly while its caller waits
 *  4 descriptors that are lacking end a call at once: no waiting brings them
 *
 * Threads: any; the lock is the session's. */
#include "client/session.h"

#include "client/atfork.h"

#include <stdio.h>
#include <sys/eventfd.h>

#define SLICE_NS (100 * SHEAF_NS_PER_MS) /* between looks at interrupted() */

int sheaf_cond_init(pthread_cond_t *cond)
{
        pthread_condattr_t attr;
        int rc = pthread_condattr_init(&attr);

        if (rc)
                return -rc;
        rc = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        if (!rc)
                rc = pthread_cond_init(cond, &attr);
        pthread_condattr_destroy(&attr);
        return -rc;
}

int sheaf_session_interrupted(struct sheaf_session *session)
{
        if (!session->interrupted ||
                !session->interrupted(session->interrupted_arg))
                return 0;
        return sheaf_error_set(-EINTR, "the wait for sheafd was interrupted");
}

int sheaf_session_sleep(struct sheaf_session *session, pthread_cond_t *cond,
        int64_t deadline_ns)
{
        int64_t until_ns = deadline_ns;
        struct timespec ts;
        int rc;

        if (session->interrupted)
                until_ns = SHEAF_MIN(until_ns, sheaf_now_ns() + SLICE_NS);
        ts.tv_sec = until_ns / SHEAF_NS_PER_SEC;
        ts.tv_nsec = until_ns % SHEAF_NS_PER_SEC;
        rc = -pthread_cond_timedwait(cond, &session->lock, &ts);
        if (rc != -ETIMEDOUT || until_ns == deadline_ns)
                return rc;
        pthread_mutex_unlock(&session->lock);
        rc = sheaf_session_interrupted(session);
        pthread_mutex_lock(&session->lock);
        return rc;
}

static char *program_name(const char *given)
{
        return strdup(given ? given : program_invocation_short_name);
}

int sheaf_session_new(const struct sheaf_session_options *options,
        struct sheaf_session **ret_session)
{
        static const struct sheaf_session_options none;
        struct sheaf_session *session = sheaf_new(struct sheaf_session, 1);
        char why[SHEAF_ERROR_WHY_MAX];
        int rc = -ENOMEM;

        if (!options)
                options = &none;
        if (!session)
                goto fail_alloc;
        session->sock = session->wake_fd = -1;
        session->deadline_given = options->deadline_ms > 0;
        session->deadline_ms = session->deadline_given
                                       ? options->deadline_ms
                                       : SHEAF_DEADLINE_DEFAULT_MS;
        session->pin_bytes = options->pin_bytes;
        session->interrupted = options->interrupted;
        session->interrupted_arg = options->interrupted_arg;
        session->name = program_name(options->name);
        session->kind = strdup(options->kind ? options->kind : "lib");
        if (!session->name || !session->kind)
                goto fail_alloc;
        rc = sheaf_socket_candidates(options->socket, &session->places);
        if (rc)
                goto fail_alloc;
        rc = -pthread_mutex_init(&session->lock, NULL);
        if (rc)
                goto fail_alloc;
        rc = sheaf_cond_init(&session->changed);
        if (rc)
                goto fail_lock;
        session->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (session->wake_fd < 0) {
                rc = -errno;
                goto fail_cond;
        }
        rc = sheaf_atfork_register(session);
        if (rc)
                goto fail_cond;
        *ret_session = session;
        return 0;

fail_cond:
        pthread_cond_destroy(&session->changed);
fail_lock:
        pthread_mutex_destroy(&session->lock);
fail_alloc:
        if (session) {
                sheaf_close_p(&session->wake_fd);
                sheaf_socket_list_free(&session->places);
                free(session->name);
                free(session->kind);
        }
        free(session);
        return sheaf_error_set(
                rc, "cannot make a session: %s", sheaf_error_why(rc, why));
}

void sheaf_session_free(struct sheaf_session *session)
{
        struct sheaf_attach *attach;

        if (!session)
                return;
        while (session->datasets)
                sheaf_dataset_close(session->datasets);
        sheaf_atfork_unregister(session);
        sheaf_link_stop(session);
        while ((attach = session->attaches)) {
                session->attaches = attach->next;
                sheaf_attach_free(attach);
        }
        sheaf_close_p(&session->wake_fd);
        sheaf_atfork_release(session);
        pthread_cond_destroy(&session->changed);
        pthread_mutex_destroy(&session->lock);
        sheaf_socket_list_free(&session->places);
        free(session->name);
        free(session->kind);
        free(session);
}

const char *sheaf_session_socket(const struct sheaf_session *session)
{
        struct sheaf_session *s = (struct sheaf_session *)session;
        const char *path;

        pthread_mutex_lock(&s->lock);
        path = s->places.path[s->place];
        pthread_mutex_unlock(&s->lock);
        return path;
}

int64_t sheaf_session_deadline_ms(const struct sheaf_session *session)
{
        return atomic_load_explicit(
                &session->deadline_ms, memory_order_relaxed);
}

int64_t sheaf_session_deadline_ns(const struct sheaf_session *session)
{
        int64_t ms = sheaf_session_deadline_ms(session);

        /* A year is for ever, and far from an overflow. */
        ms = SHEAF_MIN(ms, INT64_C(31536000000));
        return sheaf_now_ns() + ms * SHEAF_NS_PER_MS;
}

/* Why the link is not there at the deadline. */
static int link_timeout(struct sheaf_session *session)
{
        const char *path = session->places.path[session->place];

        if (session->state == SHEAF_LINK_HELLO)
                return sheaf_error_set(-ETIMEDOUT,
                        "sheafd at %s accepts connections but does not "
                        "answer within %lld ms",
                        path, (long long)session->deadline_ms);
        if (session->attempt_rc == -EAGAIN)
                return sheaf_error_set(-ETIMEDOUT,
                        "sheafd at %s takes no connection within %lld ms; is "
                        "it stopped?",
                        path, (long long)session->deadline_ms);
        if (session->attempt_rc)
                return sheaf_error_set(session->attempt_rc == -ENOENT
                                               ? -ECONNREFUSED
                                               : session->attempt_rc,
                        "sheafd went away and did not come back within "
                        "%lld ms: %s",
                        (long long)session->deadline_ms, session->attempt_text);
        return sheaf_error_set(-ETIMEDOUT,
                "no connection to sheafd at %s within %lld ms", path,
                (long long)session->deadline_ms);
}

static int told_shortage(void)
{
        char why[SHEAF_ERROR_WHY_MAX];

        return sheaf_error_set(-EMFILE, "cannot take what sheafd gives: %s",
                sheaf_error_why(-EMFILE, why));
}

/* @takes: as many as had begun when the call began. What an earlier one lacked
 * may be there by now: it is tried once more. */
static int wait_link(
        struct sheaf_session *session, uint64_t takes, int64_t deadline_ns)
{
        uint64_t attempts = session->attempts;
        char why[SHEAF_ERROR_WHY_MAX];

        if (session->closing)
                return sheaf_error_set(-ESHUTDOWN, "the session is closing");
        if (session->state == SHEAF_LINK_READY)
                return 0;

        int rc = sheaf_link_start(session);

        if (rc)
                return sheaf_error_set(rc, "cannot start a thread: %s",
                        sheaf_error_why(rc, why));
        if (!session->welcomed)
                session->retry_ns = 0;
        while (session->state != SHEAF_LINK_READY) {
                bool is_short = session->attempt_rc == -EMFILE;

                if (session->short_take > takes)
                        return told_shortage();
                if (is_short)
                        session->retry_ns = 0;
                /* The first connection fails at once: nobody may be there.
                 * Later ones are waited for: the daemon restarts. */
                if (!session->welcomed && session->attempts != attempts &&
                        session->state == SHEAF_LINK_DOWN && !is_short)
                        return sheaf_error_set(session->attempt_rc, "%s",
                                session->attempt_text);
                session->wanted = true;
                sheaf_link_wake(session);
                rc = sheaf_session_sleep(
                        session, &session->changed, deadline_ns);
                if (rc)
                        return rc == -EINTR ? rc : link_timeout(session);
        }
        return 0;
}

int sheaf_session_wait_locked(struct sheaf_session *session,
        struct sheaf_dataset *dataset, int64_t deadline_ns)
{
        uint64_t takes = session->takes;
        bool asked_again = false;

        for (;;) {
                int rc = wait_link(session, takes, deadline_ns);

                if (rc || !dataset || dataset->state == SHEAF_OPEN_DONE)
                        return rc;
                if (dataset->state == SHEAF_OPEN_FAILED) {
                        if (asked_again || !dataset->opens)
                                return sheaf_error_set(dataset->failed_rc, "%s",
                                        dataset->failed_text
                                                ? dataset->failed_text
                                                : strerror(
                                                          -dataset->failed_rc));
                        asked_again = true;
                        dataset->state = SHEAF_OPEN_WANTED;
                }
                if (dataset->state == SHEAF_OPEN_WANTED) {
                        sheaf_link_ask_open(session, dataset);
                        sheaf_link_wake(session);
                }
                rc = sheaf_session_sleep(
                        session, &session->changed, deadline_ns);
                if (rc == -EINTR)
                        return rc;
                if (rc && dataset->state != SHEAF_OPEN_DONE)
                        return sheaf_error_set(-ETIMEDOUT,
                                "sheafd did not open dataset %s within "
                                "%lld ms",
                                dataset->name, (long long)session->deadline_ms);
        }
}

int sheaf_session_connect(struct sheaf_session *session)
{
        int64_t deadline_ns = sheaf_session_deadline_ns(session);
        int rc;

        pthread_mutex_lock(&session->lock);
        rc = sheaf_session_wait_locked(session, NULL, deadline_ns);
        pthread_mutex_unlock(&session->lock);
        return rc;
}

static void unlist(struct sheaf_session *session, struct sheaf_request *request)
{
        struct sheaf_request **at = &session->requests;

        while (*at && *at != request)
                at = &(*at)->next;
        if (*at)
                *at = request->next;
}

static void cancel(struct sheaf_session *session, uint64_t id)
{
        Sheaf__Cancel body = SHEAF__CANCEL__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;

        body.id = id;
        env.id = ++session->next_id;
        env.body_case = SHEAF__ENVELOPE__BODY_CANCEL;
        env.cancel = &body;
        /* A courtesy: the daemon has the deadline too. */
        if (session->state == SHEAF_LINK_READY &&
                sheaf_wire_send(session->sock, &env, NULL, 0))
                sheaf_link_wake(session);
}

/* Sends once the link is there. 0: sent and listed. 1: try again. */
static int send_request(struct sheaf_session *session, struct sheaf_call *call,
        struct sheaf_request *request)
{
        int rc = sheaf_session_wait_locked(
                session, call->dataset, call->deadline_ns);

        if (rc)
                return rc;
        if (call->handle)
                *call->handle = call->dataset->handle;
        request->id = call->env->id = ++session->next_id;
        request->state = SHEAF_REQUEST_WAITS;
        request->next = session->requests;
        session->requests = request;
        rc = sheaf_wire_send(
                session->sock, call->env, call->fds, call->fd_count);
        if (!rc)
                return 0;
        unlist(session, request);
        if (rc == -EMSGSIZE || rc == -ENOMEM)
                return sheaf_error_set(rc, "%s: %s", call->what, strerror(-rc));
        /* The socket is full, or hung up and the service thread will see it
         * presently; both pass. */
        sheaf_link_wake(session);

        int64_t nap_ns = sheaf_now_ns() + 2 * SHEAF_NS_PER_MS;

        sheaf_session_sleep(session, &session->changed,
                SHEAF_MIN(nap_ns, call->deadline_ns));
        if (sheaf_now_ns() >= call->deadline_ns)
                return sheaf_error_set(-ETIMEDOUT,
                        "%s: sheafd takes no requests: %s", call->what,
                        strerror(-rc));
        return 1;
}

static int take_reply(
        struct sheaf_request *request, struct sheaf_wire_msg *ret_reply)
{
        const Sheaf__Envelope *env = request->reply.env;

        if (env->body_case == SHEAF__ENVELOPE__BODY_ERROR) {
                const Sheaf__Error *error = env->error;
                int rc = error->errno_value > 0 && error->errno_value < 4096
                                 ? -error->errno_value
                                 : -EPROTO;

                rc = sheaf_error_set(rc, "%s",
                        *error->message ? error->message : strerror(-rc));
                sheaf_wire_msg_free(&request->reply);
                return rc;
        }
        *ret_reply = request->reply;
        return 0;
}

int sheaf_session_call(struct sheaf_session *session, struct sheaf_call *call,
        struct sheaf_wire_msg *ret_reply)
{
        struct sheaf_request request = { 0 };
        uint64_t takes;
        int rc = sheaf_cond_init(&request.wake);

        if (rc)
                return sheaf_error_set(rc, "%s: %s", call->what, strerror(-rc));
        pthread_mutex_lock(&session->lock);
        takes = session->takes;
        for (;;) {
                rc = send_request(session, call, &request);
                if (rc < 0)
                        break;
                if (rc)
                        continue;
                call->sent = true;
                while (request.state == SHEAF_REQUEST_WAITS && !rc)
                        rc = sheaf_session_sleep(
                                session, &request.wake, call->deadline_ns);
                if (request.state == SHEAF_REQUEST_DONE) {
                        rc = take_reply(&request, ret_reply);
                        break;
                }
                unlist(session, &request);
                if (request.state == SHEAF_REQUEST_WAITS) {
                        if (call->note && rc != -EINTR)
                                sheaf_atfork_asked(session, request.id);
                        else
                                cancel(session, request.id);
                        if (rc == -EINTR)
                                break;
                        rc = sheaf_error_set(-ETIMEDOUT,
                                "%s: no answer from sheafd within %lld ms",
                                call->what, (long long)session->deadline_ms);
                        break;
                }
                if (call->once) {
                        rc = sheaf_error_set(
                                -ECONNRESET, "%s: sheafd hung up", call->what);
                        break;
                }
                if (session->short_take > takes) {
                        rc = told_shortage();
                        break;
                }
        }
        pthread_mutex_unlock(&session->lock);
        pthread_cond_destroy(&request.wake);
        return rc;
}
