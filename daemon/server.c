/* SPDX-License-Identifier: Apache-2.0 */
/* Listening sockets and the life of connections.
 *
 *  1 a connection's pins are freed when its socket hangs up or its process
 *    ends (pidfd), whichever is seen first; after a fork that was announced
 *    only hang-up counts, since the child still reads
 *  2 what was held at a fork stays held until the fork's pipe hangs up
 *  3 the last descriptors are kept for what the daemon itself opens. When
 *    clients have the others, the oldest connection that said nothing yet
 *    gives way; else a new one may ask for figures, and is closed soon
 *  4 at the very limit new connections are refused at once, by a spare
 *    descriptor; where the whole system has none the listener rests for a
 *    moment. Neither causes a busy loop
 *
 * Threads: loop thread. */
#include "daemon/jobs/jobs.h"
#include "daemon/prep/prep.h"
#include "daemon/server_internal.h"

#include "daemon/clock.h"
#include "daemon/sift.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>

#define RETRY_MS    20
#define BRIEF_NS    (2 * SHEAF_NS_PER_SEC)
#define BRIEF_MAX   8
#define MUTE_BATCH  8
#define KEPT_MAX    64
#define SWEEP_TICKS 10 /* of copies that were let go of */

static void conn_closed(uv_handle_t *handle)
{
        struct sheaf_conn *conn = handle->data;

        if (--conn->open_handles == 0) {
                sheaf_sift_close(conn->sock);
                sheaf_principal_clear(&conn->who);
                free(conn);
        }
}

static void fold_meter(struct sheaf_handle *h)
{
        struct sheaf_reg_counts *counts = &h->version->dataset->counts;

        if (!h->meter)
                return;
        for (size_t i = 0; i < SHEAF_METER_STRIPES; i++) {
                const struct sheaf_meter_stripe *s = &h->meter->stripe[i];
                const _Atomic uint64_t *words = &s->hits;

                for (size_t w = 0; w < SHEAF_ARRAY_LEN(counts->meter); w++)
                        counts->meter[w] += atomic_load_explicit(
                                &words[w], memory_order_relaxed);
        }
        for (size_t i = 0; i < SHEAF_METER_OPS; i++)
                counts->op[i] += atomic_load_explicit(
                        &h->meter->op[i], memory_order_relaxed);
        munmap((void *)h->meter, sizeof(*h->meter));
        h->meter = NULL;
}

void sheaf_conn_greeted(struct sheaf_conn *conn)
{
        if (!conn->said_hello && !conn->brief_end_ns)
                TAILQ_REMOVE(&conn->server->mute, conn, wait_link);
        conn->said_hello = true;
}

void sheaf_conn_close_handle(
        struct sheaf_conn *conn, struct sheaf_handle *handle)
{
        fold_meter(handle);
        sheaf_close_p(&handle->meter_fd);
        sheaf_jobs_leave(handle);
        if (handle->lodging)
                sheaf_lodging_use(handle->lodging, -1);
        sheaf_registry_unhold(handle->version);
        conn->handles[handle->number] = NULL;
        conn->handle_count--;
        free(handle);
}

void sheaf_conn_close(struct sheaf_conn *conn)
{
        struct sheaf_arena_part *part;
        struct sheaf_plain_hold *plain;
        struct sheaf_call *call;

        if (conn->closing)
                return;
        conn->closing = true;
        LIST_REMOVE(conn, link);
        sheaf_conn_greeted(conn);
        if (conn->brief_end_ns) {
                TAILQ_REMOVE(&conn->server->brief, conn, wait_link);
                conn->server->brief_count--;
        }
        while ((call = LIST_FIRST(&conn->calls))) {
                sheaf_call_end(call);
                call->abandon(call);
        }
        while ((call = LIST_FIRST(&conn->hints)))
                call->abandon(call);
        sheaf_seats_leave(conn);
        while ((plain = LIST_FIRST(&conn->plains))) {
                LIST_REMOVE(plain, link);
                sheaf_plain_lease_end(plain->lease);
                free(plain);
        }
        for (uint32_t i = 0; i < SHEAF_CONN_HANDLES_MAX; i++)
                if (conn->handles[i])
                        sheaf_conn_close_handle(conn, conn->handles[i]);
        while ((part = LIST_FIRST(&conn->attachments))) {
                LIST_REMOVE(part, link);
                sheaf_pins_free(part->pins);
                free(part);
        }
        sheaf_conn_drop_queue(conn);
        sheaf_account_leave(sheaf_steal(&conn->account));
        /* The client learns of it at once, not when the last handle closes. */
        shutdown(conn->sock, SHUT_RDWR);
        conn->open_handles = 1 + conn->pid_polled;
        uv_close((uv_handle_t *)&conn->poll, conn_closed);
        if (conn->pid_polled)
                uv_close((uv_handle_t *)&conn->pid_poll, conn_closed);
}

/* The client's process ended. */
static void process_ended(uv_poll_t *poll, int status, int events)
{
        struct sheaf_conn *conn = poll->data;

        (void)status;
        (void)events;
        uv_poll_stop(poll);
        if (conn->forked)
                return; /* a child may still read; hang-up decides */
        conn->server->stats.pins_freed_dead++;
        sheaf_conn_close(conn);
}

static int conn_new(struct sheaf_listener *listener, int sock, bool brief)
{
        struct sheaf_server *server = listener->server;
        struct sheaf_conn *conn = sheaf_new(struct sheaf_conn, 1);
        int rc;

        if (!conn)
                return -ENOMEM;
        conn->who.pidfd = -1;
        rc = sheaf_principal_read(sock, listener->grant, &conn->who);
        if (!rc)
                rc = sheaf_account_join(
                        &server->accounts, &conn->who, &conn->account);
        if (rc) {
                sheaf_principal_clear(&conn->who);
                free(conn);
                return rc;
        }
        conn->server = server;
        conn->daemon = server->daemon;
        conn->sock = sock;
        conn->number = ++server->numbers;
        TAILQ_INIT(&conn->queue);
        snprintf(conn->kind, sizeof(conn->kind), "new");
        rc = uv_poll_init(server->daemon->loop, &conn->poll, sock);
        if (rc) {
                sheaf_account_leave(conn->account);
                sheaf_principal_clear(&conn->who);
                free(conn);
                return rc;
        }
        conn->poll.data = conn;
        uv_poll_start(&conn->poll, UV_READABLE, sheaf_conn_readable);
        if (conn->who.pidfd >= 0 && !uv_poll_init(server->daemon->loop,
                                            &conn->pid_poll, conn->who.pidfd)) {
                conn->pid_polled = true;
                conn->pid_poll.data = conn;
                uv_poll_start(&conn->pid_poll, UV_READABLE, process_ended);
        }
        LIST_INSERT_HEAD(&server->conns, conn, link);
        if (brief) {
                conn->brief_end_ns = sheaf_now_ns() + BRIEF_NS;
                TAILQ_INSERT_TAIL(&server->brief, conn, wait_link);
                if (++server->brief_count > BRIEF_MAX)
                        sheaf_conn_close(TAILQ_FIRST(&server->brief));
        } else {
                TAILQ_INSERT_TAIL(&server->mute, conn, wait_link);
        }
        server->stats.accepted++;
        return 0;
}

/* The lowest free number is given, so a number tells how many are in use. */
static bool is_kept(const struct sheaf_server *server, int fd, int part)
{
        return fd < 0 || fd >= server->fds_max - server->fds_kept / part;
}

static int fds_free(const struct sheaf_server *server)
{
        sheaf_autofd int fd = fcntl(server->spare_fd, F_DUPFD_CLOEXEC, 0);

        if (is_kept(server, fd, 1))
                return 0;
        return server->fds_max - server->fds_kept - fd;
}

bool sheaf_server_crowded(const struct sheaf_server *server)
{
        return !fds_free(server);
}

/* Near the limit: those that said nothing go, the oldest first. True: wait
 * until they are closed, when the loop turns. */
static bool make_room(struct sheaf_server *server)
{
        struct sheaf_conn *mute;
        int dropped = 0;

        if (sheaf_log_once(&server->crowded_once, 10 * SHEAF_NS_PER_SEC))
                sheaf_log(SHEAF_LOG_WARN, "descriptors_used_up",
                        "limit=%d remedy=\"a higher limit (ulimit -Hn, "
                        "LimitNOFILE=), or fewer clients\"",
                        server->fds_max);
        while (dropped < MUTE_BATCH && (mute = TAILQ_FIRST(&server->mute))) {
                server->stats.dropped_mute++;
                sheaf_conn_close(mute);
                dropped++;
        }
        return dropped;
}

/* Tells it why, which may fail. */
static void say_refused(int sock, int rc)
{
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__Error error = SHEAF__ERROR__INIT;

        error.errno_value = -rc;
        error.message = (char *)SHEAF_CROWDED_TEXT;
        env.body_case = SHEAF__ENVELOPE__BODY_ERROR;
        env.error = &error;
        (void)!sheaf_wire_send(sock, &env, NULL, 0);
        /* Closed with its Hello unread, the answer would be lost to it. */
        shutdown(sock, SHUT_RD);
        sheaf_sift_drain(sock);
}

static void refuse(struct sheaf_server *server, int sock, int rc)
{
        server->stats.refused++;
        if (sock >= 0 && (rc == -EMFILE || rc == -ENFILE))
                say_refused(sock, rc);
        if (sheaf_log_once(&server->refused_once, 10 * SHEAF_NS_PER_SEC))
                sheaf_log_rc(rc, SHEAF_LOG_WARN, "connection refused",
                        "count=%llu",
                        (unsigned long long)server->stats.refused);
        if (sock >= 0)
                sheaf_sift_close(sock);
}

/* Gives up the spare descriptor for a moment. False: that did not help. */
static bool refuse_one(struct sheaf_listener *listener, int rc)
{
        struct sheaf_server *server = listener->server;
        int sock;

        sheaf_close_p(&server->spare_fd);
        sock = accept4(listener->sock, NULL, NULL, SOCK_CLOEXEC);
        refuse(server, sock, rc);
        server->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        return sock >= 0;
}

/* Else it would be called again at once, in vain. */
static void rest(struct sheaf_listener *listener)
{
        listener->resting = true;
        uv_poll_stop(&listener->poll);
}

static void accept_cb(uv_poll_t *poll, int status, int events)
{
        struct sheaf_listener *listener = poll->data;
        struct sheaf_server *server = listener->server;

        (void)status;
        (void)events;
        for (int i = 0; i < 64; i++) {
                bool crowded = sheaf_server_crowded(server);
                int sock, rc;

                /* The first one is there to be accepted; whether there is a
                 * further one is not known yet. */
                if (crowded && (i || make_room(server)))
                        return;
                sock = accept4(listener->sock, NULL, NULL,
                        SOCK_CLOEXEC | SOCK_NONBLOCK);

                if (sock < 0 && (errno == EMFILE || errno == ENFILE)) {
                        if (refuse_one(listener, -errno))
                                continue;
                        rest(listener);
                        return;
                }
                if (sock < 0) {
                        if (errno != EAGAIN)
                                rest(listener);
                        return;
                }
                if (crowded && is_kept(server, sock, 8))
                        rc = -EMFILE;
                else
                        rc = conn_new(listener, sock, crowded);
                if (rc)
                        refuse(server, sock, rc);
        }
}

static void listener_closed(uv_handle_t *handle)
{
        struct sheaf_listener *listener = handle->data;

        sheaf_sift_close(listener->sock);
        free(listener->path);
        free(listener);
}

static void listener_close(struct sheaf_listener *listener)
{
        struct stat st;

        LIST_REMOVE(listener, link);
        if (listener->path && lstat(listener->path, &st) == 0 &&
                st.st_ino == listener->made.st_ino &&
                st.st_dev == listener->made.st_dev)
                unlink(listener->path);
        uv_close((uv_handle_t *)&listener->poll, listener_closed);
}

static int listener_new(struct sheaf_server *server, int sock, uint64_t grant,
        struct sheaf_listener **ret_listener)
{
        struct sheaf_listener *listener = sheaf_new(struct sheaf_listener, 1);
        int rc;

        if (!listener)
                return -ENOMEM;
        rc = uv_poll_init(server->daemon->loop, &listener->poll, sock);
        if (rc) {
                free(listener);
                return rc;
        }
        listener->server = server;
        listener->sock = sock;
        listener->grant = grant;
        listener->number = ++server->numbers;
        listener->poll.data = listener;
        uv_poll_start(&listener->poll, UV_READABLE, accept_cb);
        LIST_INSERT_HEAD(&server->listeners, listener, link);
        *ret_listener = listener;
        return 0;
}

int sheaf_server_adopt(struct sheaf_server *server, int sock, uint64_t grant,
        uint64_t *ret_listener)
{
        struct sheaf_listener *listener;
        int rc = listener_new(server, sock, grant, &listener);

        if (!rc)
                *ret_listener = listener->number;
        return rc;
}

/* The daemon's own socket. */
static int listen_at(struct sheaf_server *server, const char *path)
{
        struct sheaf_listener *listener;
        int sock = sheaf_wire_listen(path, 0666), rc;

        if (sock < 0)
                return sock;
        rc = listener_new(server, sock, 0, &listener);
        if (rc) {
                close(sock);
                return rc;
        }
        listener->path = strdup(path);
        if (lstat(path, &listener->made))
                memset(&listener->made, 0, sizeof(listener->made));
        return 0;
}

void sheaf_server_unlisten(struct sheaf_server *server, uint64_t number)
{
        struct sheaf_listener *listener;

        LIST_FOREACH (listener, &server->listeners, link) {
                if (listener->number == number) {
                        listener_close(listener);
                        return;
                }
        }
}

static void retry_cb(uv_timer_t *timer)
{
        struct sheaf_server *server = timer->data;
        struct sheaf_listener *listener;
        struct sheaf_conn *conn, *next;

        if (++server->ticks % SWEEP_TICKS == 0)
                sheaf_accounts_sweep(&server->accounts);
        sheaf_server_watch_pins(server);
        LIST_FOREACH (listener, &server->listeners, link) {
                if (!listener->resting)
                        continue;
                listener->resting = false;
                uv_poll_start(&listener->poll, UV_READABLE, accept_cb);
        }
        for (conn = LIST_FIRST(&server->conns); conn; conn = next) {
                next = LIST_NEXT(conn, link);
                sheaf_conn_tick(conn);
                if (conn->brief_end_ns && sheaf_now_ns() > conn->brief_end_ns)
                        sheaf_conn_close(conn);
        }
}

static void set_limits(struct sheaf_server *server)
{
        struct rlimit limit;

        server->fds_max = INT_MAX;
        if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < INT_MAX)
                server->fds_max = (int)limit.rlim_cur;
        server->fds_kept = SHEAF_MIN(server->fds_max / 4, KEPT_MAX);
        sheaf_accounts_init(
                &server->accounts, server->daemon->loop, server->fds_max);
}

int sheaf_server_new(struct sheaf_daemon *daemon, const char *path,
        struct sheaf_server **ret_server)
{
        struct sheaf_server *server = sheaf_new(struct sheaf_server, 1);
        int rc;

        if (!server)
                return -ENOMEM;
        server->daemon = daemon;
        TAILQ_INIT(&server->mute);
        TAILQ_INIT(&server->brief);
        server->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        set_limits(server);
        uv_timer_init(daemon->loop, &server->timer);
        server->timer.data = server;
        uv_timer_start(&server->timer, retry_cb, RETRY_MS, RETRY_MS);
        rc = listen_at(server, path);
        if (rc) {
                sheaf_server_free(server);
                return rc;
        }
        *ret_server = server;
        return 0;
}

static void ghost_closed(uv_handle_t *handle)
{
        struct sheaf_fork_ghost *ghost = handle->data;

        close(ghost->fd);
        free(ghost);
}

static void ghost_end(struct sheaf_fork_ghost *ghost)
{
        LIST_REMOVE(ghost, link);
        for (size_t i = 0; i < ghost->count; i++)
                sheaf_ghost_free(ghost->ghosts[i]);
        ghost->count = 0;
        uv_close((uv_handle_t *)&ghost->poll, ghost_closed);
}

static void server_closed(uv_handle_t *handle)
{
        struct sheaf_server *server = handle->data;

        if (--server->open_handles)
                return;
        sheaf_close_p(&server->spare_fd);
        free(server);
}

void sheaf_server_free(struct sheaf_server *server)
{
        if (!server)
                return;
        server->closing = true;
        while (!LIST_EMPTY(&server->listeners))
                listener_close(LIST_FIRST(&server->listeners));
        while (!LIST_EMPTY(&server->conns))
                sheaf_conn_close(LIST_FIRST(&server->conns));
        sheaf_accounts_clear(&server->accounts);
        while (!LIST_EMPTY(&server->ghosts))
                ghost_end(LIST_FIRST(&server->ghosts));
        server->accounts.idle.data = server;
        server->open_handles = 2;
        uv_close((uv_handle_t *)&server->accounts.idle, server_closed);
        uv_close((uv_handle_t *)&server->timer, server_closed);
}

struct sheaf_conn *sheaf_server_first(struct sheaf_server *server)
{
        return LIST_FIRST(&server->conns);
}

void sheaf_server_drop_grant(struct sheaf_server *server, uint64_t grant)
{
        struct sheaf_conn *conn, *next;

        for (conn = LIST_FIRST(&server->conns); conn; conn = next) {
                next = LIST_NEXT(conn, link);
                if (conn->who.grant == grant)
                        sheaf_conn_close(conn);
        }
}

void sheaf_server_stats(
        const struct sheaf_server *server, struct sheaf_server_stats *ret_stats)
{
        *ret_stats = server->stats;
        ret_stats->fds_max = (uint64_t)server->fds_max;
        ret_stats->copy_bytes = server->accounts.copy_bytes;
        ret_stats->fds_free = (uint64_t)fds_free(server);
        ret_stats->crowded = !ret_stats->fds_free;
}

static void ghost_hangup(uv_poll_t *poll, int status, int events)
{
        (void)status;
        (void)events;
        ghost_end(poll->data);
}

/* Announced forks outlive their connection: counted by user. */
static bool too_many_forks(struct sheaf_server *server, uid_t uid)
{
        struct sheaf_fork_ghost *ghost;
        size_t count = 0;

        LIST_FOREACH (ghost, &server->ghosts, link)
                count += ghost->uid == uid;
        return count >= SHEAF_UID_FORKS_MAX;
}

/* What @conn holds now stays held until the pipe @fd (owned) hangs up. */
int sheaf_conn_ghost(struct sheaf_conn *conn, int fd)
{
        struct sheaf_fork_ghost *ghost = sheaf_new(struct sheaf_fork_ghost, 1);
        struct sheaf_arena_part *part;
        int rc = ghost ? 0 : -ENOMEM;

        if (too_many_forks(conn->server, conn->who.uid))
                rc = -EMFILE;
        if (!rc)
                rc = uv_poll_init(conn->daemon->loop, &ghost->poll, fd);
        if (rc) {
                free(ghost);
                close(fd);
                return rc;
        }
        ghost->server = conn->server;
        ghost->uid = conn->who.uid;
        ghost->fd = fd;
        ghost->poll.data = ghost;
        LIST_INSERT_HEAD(&conn->server->ghosts, ghost, link);
        LIST_FOREACH (part, &conn->attachments, link) {
                if (ghost->count == SHEAF_ARRAY_LEN(ghost->ghosts))
                        rc = -ENOSPC;
                else
                        rc = sheaf_ghost_new(
                                part->pins, &ghost->ghosts[ghost->count]);
                if (rc) {
                        ghost_end(ghost);
                        return rc;
                }
                ghost->count++;
        }
        uv_poll_start(&ghost->poll, UV_READABLE | UV_DISCONNECT, ghost_hangup);
        return 0;
}
