/* SPDX-License-Identifier: Apache-2.0 */
/* A synchronous connection to the daemon.
 *
 *  1 no wait is longer than the daemon's own deadline and a grace on top,
 *    counted from its last word: long work reports progress meanwhile
 *  2 SIGINT and SIGTERM are blocked but for the waits here (ppoll), so that
 *    none is lost between a check and a wait
 *  3 an interrupted request is cancelled by message; the daemon gets a short
 *    time to say how it ended */
#include "tools/cli/conn.h"
#include "proto/paths.h"
#include "tools/cli/out.h"
#include "tools/cli/progress.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>

#define CONNECT_SEC         10
#define GREET_NS            (10 * SHEAF_NS_PER_SEC)
#define GRACE_NS            (10 * SHEAF_NS_PER_SEC)
#define CANCEL_NS           (5 * SHEAF_NS_PER_SEC)
#define DEADLINE_MS_DEFAULT 30000

struct cli_conn {
        const struct cli *cli;
        int sock;
        char *path;
        uint64_t last_id;
        int64_t silence_ns; /* longest time without a word */
        struct sheaf_wire_msg welcome;
        sigset_t wait_mask;
        bool cancelled;
        bool keep_errors;
        char *error;     /* kept */
        int error_errno; /* its errno, positive */
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
        (void)sig;
        interrupted = 1;
}

static void on_alarm(int sig)
{
        (void)sig;
}

static int64_t now_ns(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return ts.tv_sec * SHEAF_NS_PER_SEC + ts.tv_nsec;
}

static void catch_signals(struct cli_conn *conn)
{
        struct sigaction action = { .sa_handler = on_interrupt };
        sigset_t block;

        sigemptyset(&block);
        sigaddset(&block, SIGINT);
        sigaddset(&block, SIGTERM);
        sigprocmask(SIG_BLOCK, &block, &conn->wait_mask);
        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
}

/* connect() of a unix socket waits while the backlog is full, as that of a
 * stopped daemon; an alarm bounds it. */
static int connect_bounded(const char *path)
{
        struct sigaction action = { .sa_handler = on_alarm }, before;
        int sock;

        sigaction(SIGALRM, &action, &before);
        alarm(CONNECT_SEC);
        sock = sheaf_wire_connect(path);
        alarm(0);
        sigaction(SIGALRM, &before, NULL);
        if (sock == -EINTR)
                return -ETIMEDOUT;
        if (sock >= 0 && fcntl(sock, F_SETFL, O_NONBLOCK)) {
                close(sock);
                return -EIO;
        }
        return sock;
}

/* Waits for @events. 0; -EINTR; -ETIMEDOUT. */
static int wait_for(struct cli_conn *conn, short events, int64_t until_ns)
{
        struct pollfd pfd = { .fd = conn->sock, .events = events };

        for (;;) {
                int64_t left = SHEAF_MAX(until_ns - now_ns(), INT64_C(0));
                struct timespec ts = { .tv_sec = left / SHEAF_NS_PER_SEC,
                        .tv_nsec = left % SHEAF_NS_PER_SEC };
                int n;

                if (interrupted && !conn->cancelled)
                        return -EINTR;
                n = ppoll(&pfd, 1, &ts, &conn->wait_mask);
                if (n > 0)
                        return 0;
                if (n == 0)
                        return -ETIMEDOUT;
                if (errno != EINTR)
                        return -errno;
        }
}

static int send_all(struct cli_conn *conn, const Sheaf__Envelope *env,
        const int *fds, size_t fd_count)
{
        int64_t until = now_ns() + conn->silence_ns;

        for (;;) {
                int rc = sheaf_wire_send(conn->sock, env, fds, fd_count);

                if (rc != -EAGAIN)
                        return rc;
                rc = wait_for(conn, POLLOUT, until);
                if (rc)
                        return rc;
        }
}

/* The next message; 0 or -errno, -EPIPE when the daemon hung up. */
static int receive(
        struct cli_conn *conn, int64_t until_ns, struct sheaf_wire_msg *ret_msg)
{
        for (;;) {
                int rc = sheaf_wire_recv(conn->sock, ret_msg);

                if (rc == 1)
                        return 0;
                if (rc == 0)
                        return -EPIPE;
                if (rc != -EAGAIN)
                        return rc;
                rc = wait_for(conn, POLLIN, until_ns);
                if (rc)
                        return rc;
        }
}

static int greet(struct cli_conn *conn)
{
        Sheaf__Hello hello = SHEAF__HELLO__INIT;
        int rc;

        hello.kind = (char *)"cli";
        hello.name = (char *)"sheaf";
        hello.pid = (uint32_t)getpid();

        CLI_REQUEST(env, HELLO, hello, &hello);
        env.id = ++conn->last_id;
        conn->silence_ns = GREET_NS;
        /* Who refuses says why and hangs up, perhaps before we have spoken. */
        rc = send_all(conn, &env, NULL, 0);
        if (!rc || rc == -EPIPE || rc == -ECONNRESET)
                rc = receive(conn, now_ns() + GREET_NS, &conn->welcome);
        if (rc)
                return rc;
        switch (conn->welcome.env->body_case) {
        case SHEAF__ENVELOPE__BODY_WELCOME: {
                uint32_t ms = conn->welcome.env->welcome->deadline_ms;

                conn->silence_ns =
                        (ms ? ms : DEADLINE_MS_DEFAULT) * SHEAF_NS_PER_MS +
                        GRACE_NS;
                return 0;
        }
        case SHEAF__ENVELOPE__BODY_ERROR:
                rc = conn->welcome.env->error->errno_value;
                return rc > 0 ? -rc : -EPROTO;
        default:
                return -EPROTO;
        }
}

/* Why a connected daemon did not greet. */
static char *greet_text(const struct cli_conn *conn, int rc)
{
        char *text = NULL;
        int n;

        if (conn->welcome.env &&
                conn->welcome.env->body_case == SHEAF__ENVELOPE__BODY_ERROR)
                n = asprintf(&text, "the daemon at %s refused: %s", conn->path,
                        conn->welcome.env->error->message);
        else if (rc == -ETIMEDOUT)
                n = asprintf(
                        &text, "the daemon at %s does not answer", conn->path);
        else
                n = asprintf(&text,
                        "no conversation with the daemon at %s: "
                        "%s",
                        conn->path, strerror(-rc));
        return n < 0 ? NULL : text;
}

static const char *why_not(int rc)
{
        if (rc == -ECONNREFUSED)
                return "nobody listens";
        if (rc == -ETIMEDOUT)
                return "it takes no connection; is it stopped?";
        return strerror(-rc);
}

/* Tries every place; fills conn->sock and path. 0 or -errno of the most
 * telling failure, with a text that lists all. */
static int try_places(struct cli_conn *conn, char **ret_why)
{
        struct sheaf_socket_list list;
        char *why = NULL;
        size_t why_len = 0;
        FILE *text;
        int rc = sheaf_socket_candidates(conn->cli->socket, &list);
        int worst = -ENOENT;

        if (rc)
                return rc;
        text = open_memstream(&why, &why_len);
        if (!text) {
                sheaf_socket_list_free(&list);
                return -ENOMEM;
        }
        fprintf(text, "no daemon is reachable; tried");
        for (size_t i = 0; i < list.count && !conn->path; i++) {
                int sock = connect_bounded(list.path[i]);

                if (sock >= 0) {
                        conn->sock = sock;
                        conn->path = sheaf_steal(&list.path[i]);
                        break;
                }
                if (sock != -ENOENT && worst == -ENOENT)
                        worst = sock;
                fprintf(text, "%s %s (%s)", i ? "," : "", list.path[i],
                        why_not(sock));
        }
        fprintf(text, "; start one with 'sheafd', or name its socket with "
                      "--socket or SHEAF_SOCKET");
        sheaf_socket_list_free(&list);
        fclose(text);
        if (conn->path) {
                free(why);
                return 0;
        }
        *ret_why = why;
        return worst;
}

int cli_conn_probe(
        const struct cli *cli, struct cli_conn **ret_conn, char **ret_why)
{
        struct cli_conn *conn = sheaf_new(struct cli_conn, 1);
        int rc;

        if (!conn)
                return CLI_FAILED;
        conn->cli = cli;
        conn->sock = -1;
        catch_signals(conn);
        rc = try_places(conn, ret_why);
        if (rc) {
                cli_conn_free(conn);
                return rc == -ETIMEDOUT ? CLI_TIMED_OUT
                       : rc == -EACCES  ? CLI_NOT_FOUND
                                        : CLI_NO_DAEMON;
        }
        rc = greet(conn);
        if (rc) {
                *ret_why = greet_text(conn, rc);
                cli_conn_free(conn);
                if (rc == -EINTR)
                        return CLI_INTERRUPTED;
                return rc == -ETIMEDOUT                ? CLI_TIMED_OUT
                       : rc == -EACCES || rc == -EPERM ? CLI_NOT_FOUND
                                                       : CLI_NO_DAEMON;
        }
        *ret_conn = conn;
        return CLI_OK;
}

int cli_conn_open(const struct cli *cli, struct cli_conn **ret_conn)
{
        sheaf_autofree char *why = NULL;
        int rc = cli_conn_probe(cli, ret_conn, &why);

        if (rc == CLI_OK || rc == CLI_INTERRUPTED)
                return rc;
        return cli_fail(cli, rc, rc == CLI_TIMED_OUT ? ETIMEDOUT : ECONNREFUSED,
                "%s", why ? why : "out of memory");
}

void cli_conn_free(struct cli_conn *conn)
{
        if (!conn)
                return;
        sheaf_wire_msg_free(&conn->welcome);
        sheaf_close_p(&conn->sock);
        free(conn->path);
        free(conn->error);
        free(conn);
}

void cli_conn_free_p(struct cli_conn **conn)
{
        cli_conn_free(*conn);
        *conn = NULL;
}

const Sheaf__Welcome *cli_conn_welcome(const struct cli_conn *conn)
{
        return conn->welcome.env->welcome;
}

const char *cli_conn_socket(const struct cli_conn *conn)
{
        return conn->path;
}

/* Tells the daemon to stop @id; the answer still comes, bounded. */
static void cancel(struct cli_conn *conn, uint64_t id)
{
        Sheaf__Cancel body = SHEAF__CANCEL__INIT;

        body.id = id;
        CLI_REQUEST(env, CANCEL, cancel, &body);
        env.id = ++conn->last_id;
        conn->cancelled = true;
        conn->silence_ns = CANCEL_NS;
        /* A daemon that cannot be told sees the hang-up instead. */
        if (send_all(conn, &env, NULL, 0))
                conn->silence_ns = 0;
}

/* Text for a conversation that broke off. */
static int broken(const struct cli_conn *conn, int rc)
{
        switch (rc) {
        case -ETIMEDOUT:
                return cli_fail(conn->cli, CLI_TIMED_OUT, ETIMEDOUT,
                        "no answer from the daemon for %d seconds",
                        (int)(conn->silence_ns / SHEAF_NS_PER_SEC));
        case -EMSGSIZE:
                return cli_fail(conn->cli, CLI_FAILED, EMSGSIZE,
                        "the request is longer than 64 KiB; give less at once");
        case -EPIPE:
        case -ECONNRESET:
                return cli_fail(conn->cli, CLI_NO_DAEMON, EPIPE,
                        "the daemon at %s hung up; its log says why",
                        conn->path);
        default:
                return cli_fail(conn->cli, CLI_FAILED, -rc,
                        "conversation with the daemon failed: %s",
                        strerror(-rc));
        }
}

void cli_conn_keep_errors(struct cli_conn *conn, bool keep)
{
        conn->keep_errors = keep;
}

const char *cli_conn_error(const struct cli_conn *conn)
{
        return conn->error ? conn->error : "";
}

int cli_conn_error_errno(const struct cli_conn *conn)
{
        return conn->error ? conn->error_errno : 0;
}

static int failed(struct cli_conn *conn, int errno_value, const char *text)
{
        if (!conn->keep_errors)
                return cli_fail(conn->cli, CLI_OK, errno_value, "%s", text);
        free(conn->error);
        conn->error = strdup(text);
        conn->error_errno = errno_value;
        return cli_exit_of(errno_value);
}

static int handle(struct cli_conn *conn, struct cli_progress *progress,
        const Sheaf__Envelope *env, cli_reply_fn on_reply, void *arg)
{
        switch (env->body_case) {
        case SHEAF__ENVELOPE__BODY_PROGRESS:
                cli_progress_show(progress, env->progress);
                return on_reply ? on_reply(arg, env) : CLI_OK;
        case SHEAF__ENVELOPE__BODY_ERROR: {
                int value = env->error->errno_value;

                cli_progress_clear(progress);
                if (conn->cancelled)
                        return CLI_OK;
                value = value > 0 ? value : EIO;
                return failed(conn, value,
                        *env->error->message ? env->error->message
                                             : strerror(value));
        }
        case SHEAF__ENVELOPE__BODY_DONE:
                return CLI_OK;
        default:
                cli_progress_clear(progress);
                return on_reply ? on_reply(arg, env) : CLI_OK;
        }
}

static int converse(struct cli_conn *conn, struct cli_progress *progress,
        uint64_t id, cli_reply_fn on_reply, void *arg)
{
        int64_t until = now_ns() + conn->silence_ns;
        int result = CLI_OK;

        for (;;) {
                struct sheaf_wire_msg msg;
                bool last;
                int rc = receive(conn, until, &msg);

                if (rc == -EINTR) {
                        cancel(conn, id);
                        until = now_ns() + conn->silence_ns;
                        continue;
                }
                if (rc) {
                        cli_progress_clear(progress);
                        return conn->cancelled ? result : broken(conn, rc);
                }
                if (msg.env->id != id) {
                        sheaf_wire_msg_free(&msg);
                        continue;
                }
                last = !msg.env->more;
                if (!conn->cancelled)
                        until = now_ns() + conn->silence_ns;
                rc = handle(conn, progress, msg.env, on_reply, arg);
                sheaf_wire_msg_free(&msg);
                if (rc && !result)
                        result = rc;
                if (last)
                        return result;
                if (rc && !conn->cancelled) {
                        cancel(conn, id);
                        until = now_ns() + conn->silence_ns;
                }
        }
}

int cli_conn_sleep(const struct timespec *span)
{
        sigset_t mask;

        sigprocmask(SIG_BLOCK, NULL, &mask);
        sigdelset(&mask, SIGINT);
        sigdelset(&mask, SIGTERM);
        if (!interrupted)
                ppoll(NULL, 0, span, &mask);
        return interrupted ? -EINTR : 0;
}

int cli_conn_call(struct cli_conn *conn, Sheaf__Envelope *request,
        const int *fds, size_t fd_count, cli_reply_fn on_reply, void *arg)
{
        struct cli_progress progress;
        int rc;

        conn->cancelled = false;
        conn->error_errno = 0;
        request->id = ++conn->last_id;
        rc = send_all(conn, request, fds, fd_count);
        if (rc == -EINTR)
                return CLI_INTERRUPTED;
        if (rc)
                return broken(conn, rc);
        cli_progress_begin(&progress, conn->cli);
        rc = converse(conn, &progress, request->id, on_reply, arg);
        cli_progress_clear(&progress);
        if (interrupted) {
                fprintf(stderr, "sheaf %s: interrupted\n",
                        conn->cli->verb->name);
                return CLI_INTERRUPTED;
        }
        return rc;
}
