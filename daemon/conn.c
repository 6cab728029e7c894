/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a connection: in, to their verbs; out, in order, bounded.
 *
 *  1 messages go out in the order in which they were sent, so that an extent
 *    is mapped before an answer names a block in it
 *  2 a client that lets more than SHEAF_CONN_QUEUE_BYTES pile up is dropped;
 *    long answers wait for it before, and end when they waited for so long as
 *    a read may last
 *  3 after closing began nothing is sent or received
 *  4 in each turn of the loop a user has so many milliseconds, however many
 *    messages and connections: then it is the others' turn
 *
 * Threads: loop thread. */
#include "daemon/server_internal.h"
#include "daemon/verbs/verbs.h"

#include "daemon/clock.h"
#include "daemon/closer.h"
#include "daemon/sift.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>

#define MESSAGES_PER_TURN 16
#define CLOSING_MAX       16

struct sheaf_out {
        TAILQ_ENTRY(sheaf_out) link;
        int fds[SHEAF_WIRE_FDS_MAX];
        size_t fd_count, len;
        uint8_t record[];
};

static size_t out_bytes(const struct sheaf_out *out)
{
        return sizeof(*out) + out->len;
}

static void unqueue(struct sheaf_conn *conn, struct sheaf_out *out)
{
        TAILQ_REMOVE(&conn->queue, out, link);
        conn->queue_bytes -= out_bytes(out);
        conn->account->queue_bytes -= out_bytes(out);
}

static void out_free(struct sheaf_out *out)
{
        for (size_t i = 0; i < out->fd_count; i++)
                close(out->fds[i]);
        free(out);
}

void sheaf_conn_drop_queue(struct sheaf_conn *conn)
{
        struct sheaf_out *out;

        while ((out = TAILQ_FIRST(&conn->queue))) {
                unqueue(conn, out);
                out_free(out);
        }
}

static bool try_later(int rc)
{
        return rc == -EAGAIN || rc == -ETOOMANYREFS || rc == -ENOBUFS ||
               rc == -ENOMEM;
}

void sheaf_conn_drop_soon(struct sheaf_conn *conn)
{
        sheaf_conn_drop_queue(conn);
        shutdown(conn->sock, SHUT_RDWR);
}

static struct sheaf_out *out_new(
        const Sheaf__Envelope *env, const int *fds, size_t fd_count)
{
        size_t len = sheaf__envelope__get_packed_size(env);
        struct sheaf_out *out = calloc(1, sizeof(*out) + len);

        if (!out)
                return NULL;
        sheaf__envelope__pack(env, out->record);
        out->len = len;
        for (size_t i = 0; i < fd_count; i++) {
                int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);

                if (fd < 0) {
                        out_free(out);
                        return NULL;
                }
                out->fds[out->fd_count++] = fd;
        }
        return out;
}

bool sheaf_conn_has_room(const struct sheaf_conn *conn)
{
        return conn->queue_bytes < SHEAF_CONN_QUEUE_BYTES / 4 &&
               conn->account->queue_bytes < SHEAF_USER_QUEUE_BYTES / 2;
}

static struct sheaf_call *waiting_call(struct sheaf_conn *conn)
{
        struct sheaf_call *call;

        LIST_FOREACH (call, &conn->calls, link)
                if (call->resume)
                        return call;
        return NULL;
}

/* Long answers go on: each until it ends or there is no room. */
static void resume(struct sheaf_conn *conn)
{
        struct sheaf_call *call;

        while (sheaf_conn_has_room(conn) && (call = waiting_call(conn)))
                call->resume(call);
}

/* The client took nothing for that long, nor did the others of its user who
 * have his room. What it holds stays: it may just be stopped. */
static void end_waiting(struct sheaf_conn *conn)
{
        struct sheaf_call *call;

        while ((call = waiting_call(conn))) {
                uint64_t id = call->id;

                sheaf_call_end(call);
                call->abandon(call);
                sheaf_conn_error(conn, id, -ETIMEDOUT,
                        "the rest of the answer waited %llu s for this client "
                        "to read, or for others of the same user, who have "
                        "%llu MiB unread; read faster, or raise --deadline",
                        (unsigned long long)(conn->daemon->config->deadline_ms /
                                             1000),
                        (unsigned long long)(conn->account->queue_bytes >> 20));
        }
}

void sheaf_conn_tick(struct sheaf_conn *conn)
{
        int64_t now_ns = sheaf_now_ns();

        /* Also a call that waits for the queues of others. */
        if (!TAILQ_EMPTY(&conn->queue) || !LIST_EMPTY(&conn->calls))
                sheaf_conn_flush(conn);
        if (!waiting_call(conn) || !conn->waits_since_ns)
                conn->waits_since_ns = now_ns;
        else if (now_ns - conn->waits_since_ns >
                 (int64_t)conn->daemon->config->deadline_ms * SHEAF_NS_PER_MS)
                end_waiting(conn);
}

void sheaf_conn_flush(struct sheaf_conn *conn)
{
        struct sheaf_out *out;

        while ((out = TAILQ_FIRST(&conn->queue))) {
                int rc = sheaf_wire_send_record(conn->sock, out->record,
                        out->len, out->fds, out->fd_count);

                if (try_later(rc))
                        return; /* the server's timer tries again */
                conn->waits_since_ns = 0;
                unqueue(conn, out);
                out_free(out);
                if (rc) {
                        sheaf_conn_drop_soon(conn);
                        return;
                }
        }
        resume(conn);
}

static bool queue_fits(
        const struct sheaf_conn *conn, const struct sheaf_out *out)
{
        return conn->queue_bytes + out_bytes(out) <= SHEAF_CONN_QUEUE_BYTES &&
               conn->account->queue_bytes + out_bytes(out) <=
                       SHEAF_USER_QUEUE_BYTES;
}

void sheaf_conn_send(struct sheaf_conn *conn, const Sheaf__Envelope *env,
        const int *fds, size_t fd_count)
{
        struct sheaf_out *out;
        int rc = -EAGAIN;

        if (conn->closing)
                return;
        if (TAILQ_EMPTY(&conn->queue))
                rc = sheaf_wire_send(conn->sock, env, fds, fd_count);
        if (!rc)
                return;
        if (!try_later(rc)) {
                if (rc == -EMSGSIZE)
                        sheaf_log_rc(rc, SHEAF_LOG_ERROR, "message too long",
                                "body=%d", (int)env->body_case);
                sheaf_conn_drop_soon(conn);
                return;
        }
        out = out_new(env, fds, fd_count);
        if (!out || !queue_fits(conn, out)) {
                if (out)
                        out_free(out);
                conn->server->stats.dropped_slow++;
                if (sheaf_log_once(
                            &conn->server->slow_once, 10 * SHEAF_NS_PER_SEC))
                        sheaf_log(SHEAF_LOG_WARN, "client dropped",
                                "why=\"it does not read its answers\" uid=%u "
                                "name=%s",
                                conn->who.uid, conn->name);
                sheaf_conn_drop_soon(conn);
                return;
        }
        TAILQ_INSERT_TAIL(&conn->queue, out, link);
        conn->queue_bytes += out_bytes(out);
        conn->account->queue_bytes += out_bytes(out);
}

/* Errors for what was asked, whenever and by whom; the others are for what
 * the daemon cannot do at the moment. */
static bool is_refusal(int rc)
{
        switch (-rc) {
        case EBADMSG:
        case EEXIST:
        case EINVAL:
        case ENOENT:
        case ENOTDIR:
        case ENOTUNIQ:
        case EOPNOTSUPP:
        case EPERM:
        case EPROTO:
        case ERANGE:
        case ESTALE:
                return true;
        default:
                return false;
        }
}

static void note_refusal(struct sheaf_conn *conn, int rc)
{
        struct sheaf_server *server = conn->server;

        server->stats.refused_requests++;
        if (sheaf_log_once(&server->nonsense_once, 10 * SHEAF_NS_PER_SEC))
                sheaf_log_rc(rc, SHEAF_LOG_INFO, "request refused",
                        "uid=%u pid=%d refused=%llu", conn->who.uid,
                        conn->who.pid,
                        (unsigned long long)server->stats.refused_requests);
}

void sheaf_conn_error(
        struct sheaf_conn *conn, uint64_t id, int rc, const char *format, ...)
{
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__Error error = SHEAF__ERROR__INIT;
        char text[1024];
        va_list args;

        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        if (is_refusal(rc))
                note_refusal(conn, rc);
        error.errno_value = -rc;
        error.message = text;
        env.id = id;
        env.body_case = SHEAF__ENVELOPE__BODY_ERROR;
        env.error = &error;
        sheaf_conn_send(conn, &env, NULL, 0);
}

void sheaf_conn_done(struct sheaf_conn *conn, uint64_t id)
{
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__Done done = SHEAF__DONE__INIT;

        env.id = id;
        env.body_case = SHEAF__ENVELOPE__BODY_DONE;
        env.done = &done;
        sheaf_conn_send(conn, &env, NULL, 0);
}

void sheaf_conn_progress(
        struct sheaf_conn *conn, uint64_t id, const Sheaf__Progress *progress)
{
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;

        env.id = id;
        env.more = true;
        env.body_case = SHEAF__ENVELOPE__BODY_PROGRESS;
        env.progress = (Sheaf__Progress *)progress;
        sheaf_conn_send(conn, &env, NULL, 0);
}

void sheaf_conn_finding(struct sheaf_conn *conn, uint64_t id, const char *kind,
        const void *path, size_t path_len, const char *text)
{
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__Finding finding = SHEAF__FINDING__INIT;

        finding.kind = (char *)kind;
        finding.path.data = (uint8_t *)path;
        finding.path.len = SHEAF_MIN(path_len, (size_t)32768);
        finding.text = (char *)text;
        env.id = id;
        env.more = true;
        env.body_case = SHEAF__ENVELOPE__BODY_FINDING;
        env.finding = &finding;
        sheaf_conn_send(conn, &env, NULL, 0);
}

/* ---- calls, handles, names ---- */

static bool may_begin(struct sheaf_conn *conn, uint64_t id)
{
        if (conn->call_count >= SHEAF_CONN_CALLS_MAX) {
                sheaf_conn_error(conn, id, -EBUSY,
                        "%d requests of one connection are under way, and no "
                        "more may be; wait until some have ended",
                        SHEAF_CONN_CALLS_MAX);
                return false;
        }
        if (conn->account->calls >= SHEAF_USER_CALLS_MAX) {
                sheaf_conn_error(conn, id, -EBUSY,
                        "%d requests of one user are under way, and no more "
                        "may be; wait until some have ended, or end clients",
                        SHEAF_USER_CALLS_MAX);
                return false;
        }
        return true;
}

bool sheaf_call_begin(struct sheaf_conn *conn, uint64_t id,
        struct sheaf_call *call, void (*abandon)(struct sheaf_call *call))
{
        if (!call) {
                sheaf_conn_error(
                        conn, id, -ENOMEM, "the daemon is out of memory");
                return false;
        }
        if (!may_begin(conn, id))
                return false;
        call->conn = conn;
        call->id = id;
        call->abandon = abandon;
        call->resume = NULL;
        LIST_INSERT_HEAD(&conn->calls, call, link);
        conn->call_count++;
        conn->account->calls++;
        return true;
}

void sheaf_call_end(struct sheaf_call *call)
{
        LIST_REMOVE(call, link);
        call->conn->call_count--;
        call->conn->account->calls--;
        call->conn = NULL;
}

struct sheaf_handle *sheaf_conn_handle(
        struct sheaf_conn *conn, uint64_t id, uint32_t number)
{
        if (number < SHEAF_CONN_HANDLES_MAX && conn->handles[number])
                return conn->handles[number];
        sheaf_conn_error(conn, id, -ESTALE,
                "dataset handle %u is not open; the dataset was removed or "
                "closed",
                number);
        return NULL;
}

struct sheaf_reg_dataset *sheaf_conn_dataset(
        struct sheaf_conn *conn, uint64_t id, const char *name, bool to_manage)
{
        struct sheaf_reg_dataset *ds;
        int rc = sheaf_registry_find(
                conn->daemon->registry, &conn->who, name, &ds);

        if (rc == -ENOTUNIQ) {
                sheaf_conn_error(conn, id, rc,
                        "several users share a dataset '%s' with you; say "
                        "whose: ~OWNER/%s",
                        name, name);
                return NULL;
        }
        if (rc == -ETIMEDOUT) {
                sheaf_conn_error(conn, id, rc,
                        "'%s': users are not looked up in time; try again, or "
                        "give ~NUMBER/NAME",
                        name);
                return NULL;
        }
        if (rc) {
                sheaf_conn_error(conn, id, rc,
                        "no dataset '%s' that you may read; see: sheaf ls",
                        name);
                return NULL;
        }
        if (to_manage && !sheaf_registry_may_manage(ds, &conn->who)) {
                sheaf_conn_error(conn, id, -EPERM,
                        "dataset '%s' belongs to another user, who alone may "
                        "do this",
                        name);
                return NULL;
        }
        return ds;
}

/* ---- receiving ---- */

static sheaf_verb *verb_of(Sheaf__Envelope__BodyCase body)
{
        switch (body) {
        case SHEAF__ENVELOPE__BODY_HELLO:
                return sheaf_verb_hello;
        case SHEAF__ENVELOPE__BODY_OPEN_DATASET:
                return sheaf_verb_open_dataset;
        case SHEAF__ENVELOPE__BODY_CLOSE_DATASET:
                return sheaf_verb_close_dataset;
        case SHEAF__ENVELOPE__BODY_UNMAPPED:
                return sheaf_verb_unmapped;
        case SHEAF__ENVELOPE__BODY_PIN_GRANT:
                return sheaf_verb_pin_grant;
        case SHEAF__ENVELOPE__BODY_FORK_NOTE:
                return sheaf_verb_fork_note;
        case SHEAF__ENVELOPE__BODY_CANCEL:
                return sheaf_verb_cancel;
        case SHEAF__ENVELOPE__BODY_FETCH:
                return sheaf_verb_fetch;
        case SHEAF__ENVELOPE__BODY_BIND:
                return sheaf_verb_bind;
        case SHEAF__ENVELOPE__BODY_OPEN_PLAIN:
                return sheaf_verb_open_plain;
        case SHEAF__ENVELOPE__BODY_CLOSE_PLAIN:
                return sheaf_verb_close_plain;
        case SHEAF__ENVELOPE__BODY_ADD_DATASET:
                return sheaf_verb_add_dataset;
        case SHEAF__ENVELOPE__BODY_UPDATE_DATASET:
                return sheaf_verb_update_dataset;
        case SHEAF__ENVELOPE__BODY_LIST_DATASETS:
                return sheaf_verb_list_datasets;
        case SHEAF__ENVELOPE__BODY_REMOVE_DATASET:
                return sheaf_verb_remove_dataset;
        case SHEAF__ENVELOPE__BODY_SHARE:
                return sheaf_verb_share;
        case SHEAF__ENVELOPE__BODY_SYNC:
                return sheaf_verb_sync;
        case SHEAF__ENVELOPE__BODY_WARMUP:
                return sheaf_verb_warmup;
        case SHEAF__ENVELOPE__BODY_SEAL:
                return sheaf_verb_seal;
        case SHEAF__ENVELOPE__BODY_EVICT:
                return sheaf_verb_evict;
        case SHEAF__ENVELOPE__BODY_CACHED_QUERY:
                return sheaf_verb_cached_query;
        case SHEAF__ENVELOPE__BODY_GET_DIGEST:
                return sheaf_verb_get_digest;
        case SHEAF__ENVELOPE__BODY_VERIFY:
                return sheaf_verb_verify;
        case SHEAF__ENVELOPE__BODY_GET_STATS:
                return sheaf_verb_get_stats;
        case SHEAF__ENVELOPE__BODY_GET_STATUS:
                return sheaf_verb_get_status;
        case SHEAF__ENVELOPE__BODY_GRANT_SOCKET:
                return sheaf_verb_grant_socket;
        case SHEAF__ENVELOPE__BODY_REVOKE_GRANT:
                return sheaf_verb_revoke_grant;
        case SHEAF__ENVELOPE__BODY_LIST_GRANTS:
                return sheaf_verb_list_grants;
        case SHEAF__ENVELOPE__BODY_LIST_JOBS:
                return sheaf_verb_list_jobs;
        case SHEAF__ENVELOPE__BODY_REMOVE_JOB:
                return sheaf_verb_remove_job;
        case SHEAF__ENVELOPE__BODY_JOIN_GROUP:
                return sheaf_verb_join_group;
        case SHEAF__ENVELOPE__BODY_BEGIN_GROUP:
                return sheaf_verb_begin_group;
        case SHEAF__ENVELOPE__BODY_LEASE_BATCH:
                return sheaf_verb_lease_batch;
        case SHEAF__ENVELOPE__BODY_OFFER_BATCH:
                return sheaf_verb_offer_batch;
        case SHEAF__ENVELOPE__BODY_FAIL_BATCH:
                return sheaf_verb_fail_batch;
        case SHEAF__ENVELOPE__BODY_TAKE_BATCH:
                return sheaf_verb_take_batch;
        case SHEAF__ENVELOPE__BODY_LEAVE_GROUP:
                return sheaf_verb_leave_group;
        case SHEAF__ENVELOPE__BODY_GROUP_STATS:
                return sheaf_verb_group_stats;
        case SHEAF__ENVELOPE__BODY_LIST_GROUPS:
                return sheaf_verb_list_groups;
        default:
                return NULL;
        }
}

/* What may come through a grant's socket: reading, nothing else. */
static bool allowed_by_grant(Sheaf__Envelope__BodyCase body)
{
        switch (body) {
        case SHEAF__ENVELOPE__BODY_HELLO:
        case SHEAF__ENVELOPE__BODY_OPEN_DATASET:
        case SHEAF__ENVELOPE__BODY_CLOSE_DATASET:
        case SHEAF__ENVELOPE__BODY_UNMAPPED:
        case SHEAF__ENVELOPE__BODY_PIN_GRANT:
        case SHEAF__ENVELOPE__BODY_FORK_NOTE:
        case SHEAF__ENVELOPE__BODY_CANCEL:
        case SHEAF__ENVELOPE__BODY_FETCH:
        case SHEAF__ENVELOPE__BODY_BIND:
        case SHEAF__ENVELOPE__BODY_JOIN_GROUP:
        case SHEAF__ENVELOPE__BODY_BEGIN_GROUP:
        case SHEAF__ENVELOPE__BODY_LEASE_BATCH:
        case SHEAF__ENVELOPE__BODY_OFFER_BATCH:
        case SHEAF__ENVELOPE__BODY_FAIL_BATCH:
        case SHEAF__ENVELOPE__BODY_TAKE_BATCH:
        case SHEAF__ENVELOPE__BODY_LEAVE_GROUP:
        case SHEAF__ENVELOPE__BODY_GROUP_STATS:
        case SHEAF__ENVELOPE__BODY_LIST_GROUPS:
        case SHEAF__ENVELOPE__BODY_LIST_DATASETS:
        case SHEAF__ENVELOPE__BODY_CACHED_QUERY:
        case SHEAF__ENVELOPE__BODY_GET_DIGEST:
        case SHEAF__ENVELOPE__BODY_GET_STATS:
        case SHEAF__ENVELOPE__BODY_OPEN_PLAIN:
        case SHEAF__ENVELOPE__BODY_CLOSE_PLAIN:
                return true;
        default:
                return false;
        }
}

/* What a connection may ask that is there only to ask. */
static bool is_question(Sheaf__Envelope__BodyCase body)
{
        switch (body) {
        case SHEAF__ENVELOPE__BODY_HELLO:
        case SHEAF__ENVELOPE__BODY_CANCEL:
        case SHEAF__ENVELOPE__BODY_LIST_DATASETS:
        case SHEAF__ENVELOPE__BODY_GET_STATS:
        case SHEAF__ENVELOPE__BODY_GET_STATUS:
                return true;
        default:
                return false;
        }
}

static void dispatch(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        Sheaf__Envelope__BodyCase body = msg->env->body_case;
        sheaf_verb *verb = verb_of(body);

        if (body == SHEAF__ENVELOPE__BODY_DONE)
                return; /* the client has mapped what an event brought */
        if (!verb)
                sheaf_conn_error(conn, msg->env->id, -EOPNOTSUPP,
                        "this sheafd (%s) does not know that request; use "
                        "client and daemon of neighbouring releases",
                        SHEAF_RELEASE);
        else if (!conn->said_hello && body != SHEAF__ENVELOPE__BODY_HELLO)
                sheaf_conn_error(conn, msg->env->id, -EPROTO,
                        "the first message must be Hello");
        else if (conn->who.grant && !allowed_by_grant(body))
                sheaf_conn_error(conn, msg->env->id, -EPERM,
                        "not through the socket of a grant");
        else if (conn->brief_end_ns && !is_question(body))
                sheaf_conn_error(
                        conn, msg->env->id, -EMFILE, SHEAF_CROWDED_TEXT);
        else
                verb(conn, msg);
}

/* Whether the user's share of this turn is used up. What was not received is
 * there in the next turn. */
static bool had_its_turn(const struct sheaf_conn *conn)
{
        return sheaf_account_spent(conn->account, uv_now(conn->daemon->loop));
}

static void note_malformed(struct sheaf_conn *conn)
{
        conn->server->stats.bad_messages++;
        if (sheaf_log_once(&conn->server->bad_once, 10 * SHEAF_NS_PER_SEC))
                sheaf_log(SHEAF_LOG_WARN, "client dropped",
                        "why=\"malformed message\" uid=%u pid=%d",
                        conn->who.uid, conn->who.pid);
}

static bool all_taken(const struct sheaf_wire_msg *msg)
{
        for (size_t i = 0; i < msg->fd_count; i++)
                if (msg->fds[i] < 0)
                        return false;
        return true;
}

/* Memory files that nobody took may hold much memory. */
static void let_go(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        struct sheaf_closer *closer = conn->daemon->closer;

        for (size_t i = 0; i < msg->fd_count; i++)
                if (msg->fds[i] >= 0 && fcntl(msg->fds[i], F_GET_SEALS) >= 0 &&
                        sheaf_closer_waiting(closer) < CLOSING_MAX)
                        sheaf_closer_take(closer, sheaf_steal_fd(&msg->fds[i]));
        sheaf_wire_msg_free(msg);
}

/* Receives and answers one message; as sheaf_wire_recv. */
static int serve_one(struct sheaf_conn *conn)
{
        sheaf_autofree uint8_t *data = malloc(SHEAF_WIRE_BYTES_MAX);
        struct sheaf_wire_msg msg = { 0 };
        size_t len;
        int rc;

        if (!data)
                return -ENOMEM;
        rc = sheaf_sift_recv(conn->daemon->loop, conn->who.uid, conn->sock,
                data, SHEAF_WIRE_BYTES_MAX, &len, msg.fds, &msg.fd_count);
        if (rc <= 0)
                return rc;
        msg.env = sheaf_wire_decode(data, len);
        if (!msg.env)
                rc = -EBADMSG;
        else if (all_taken(&msg) ||
                 msg.env->body_case == SHEAF__ENVELOPE__BODY_OFFER_BATCH)
                dispatch(conn, &msg);
        else
                sheaf_conn_error(conn, msg.env->id, -EINVAL,
                        "no request brings a descriptor of that kind");
        let_go(conn, &msg);
        return rc;
}

void sheaf_conn_readable(uv_poll_t *poll, int status, int events)
{
        struct sheaf_conn *conn = poll->data;

        (void)events;
        if (status < 0) {
                sheaf_conn_close(conn);
                return;
        }
        for (int i = 0;
                i < MESSAGES_PER_TURN && !conn->closing && !had_its_turn(conn);
                i++) {
                int64_t began_ns = sheaf_now_ns();
                int rc = serve_one(conn);

                if (rc == -EAGAIN)
                        return;
                if (rc <= 0) {
                        if (rc == -EBADMSG)
                                note_malformed(conn);
                        sheaf_conn_close(conn);
                        return;
                }
                if (!conn->closing)
                        conn->account->spent_ns += sheaf_now_ns() - began_ns;
        }
}
