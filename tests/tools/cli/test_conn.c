/* SPDX-License-Identifier: Apache-2.0 */
/* tools/cli/conn: conversations with a daemon that answers, refuses, leaves,
 * or works until it is told to stop. */
#include "tools/cli/conn.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>

static char dir[] = "/tmp/sheaf-test-conn.XXXXXX";
static char path[64];
static pid_t server;
static struct cli cli;
static struct cli_conn *conn;

/* ---- the daemon: runs in a child, ends with _exit ---- */

static void receive(int sock, struct sheaf_wire_msg *msg)
{
        if (sheaf_wire_recv(sock, msg) != 1)
                _exit(10);
}

static void answer(int sock, Sheaf__Envelope *env, uint64_t id, bool more)
{
        env->id = id;
        env->more = more;
        if (sheaf_wire_send(sock, env, NULL, 0))
                _exit(11);
}

static void greet(int sock)
{
        Sheaf__Welcome welcome = SHEAF__WELCOME__INIT;
        struct sheaf_wire_msg msg;

        receive(sock, &msg);
        if (msg.env->body_case != SHEAF__ENVELOPE__BODY_HELLO)
                _exit(12);
        welcome.deadline_ms = 1000;
        welcome.version = (char *)"9.9";
        CLI_REQUEST(env, WELCOME, welcome, &welcome);
        answer(sock, &env, msg.env->id, false);
        sheaf_wire_msg_free(&msg);
}

static void say_error(int sock, uint64_t id, int value, const char *text)
{
        Sheaf__Error error = SHEAF__ERROR__INIT;

        error.errno_value = value;
        error.message = (char *)(uintptr_t)text;
        CLI_REQUEST(env, ERROR, error, &error);
        answer(sock, &env, id, false);
}

static void say_progress(int sock, uint64_t id, uint64_t done)
{
        Sheaf__Progress progress = SHEAF__PROGRESS__INIT;

        progress.what = (char *)"testing";
        progress.done = done;
        CLI_REQUEST(env, PROGRESS, progress, &progress);
        answer(sock, &env, id, true);
}

static void say_info(int sock, uint64_t id, bool more)
{
        Sheaf__DatasetInfo info = SHEAF__DATASET_INFO__INIT;

        info.name = (char *)"set";
        CLI_REQUEST(env, DATASET_INFO, dataset_info, &info);
        answer(sock, &env, id, more);
}

static void work_until_cancelled(int sock, uint64_t id)
{
        struct sheaf_wire_msg msg;

        say_progress(sock, id, 1);
        kill(getppid(), SIGINT);
        receive(sock, &msg);
        if (msg.env->body_case != SHEAF__ENVELOPE__BODY_CANCEL ||
                msg.env->cancel->id != id)
                _exit(13);
        say_error(sock, id, ECANCELED, "cancelled");
}

static void serve(int sock, const char *part)
{
        struct sheaf_wire_msg msg;
        uint64_t id;

        greet(sock);
        receive(sock, &msg);
        id = msg.env->id;
        if (!strcmp(part, "answers")) {
                say_info(sock, 0, false); /* an event */
                say_progress(sock, id, 1);
                say_info(sock, id, true);
                say_info(sock, id, false);
        } else if (!strcmp(part, "refuses")) {
                say_error(sock, id, ENOENT, "there is none");
        } else if (!strcmp(part, "leaves")) {
                say_progress(sock, id, 1);
        } else {
                work_until_cancelled(sock, id);
        }
        sheaf_wire_msg_free(&msg);
}

static void start(const char *part)
{
        int listener;

        cr_assert_not_null(mkdtemp(dir));
        snprintf(path, sizeof(path), "%s/s", dir);
        listener = sheaf_wire_listen(path, 0600);
        cr_assert_geq(listener, 0);
        server = fork();
        if (server == 0) {
                int sock;

                fcntl(listener, F_SETFL, 0);
                sock = accept(listener, NULL, NULL);
                if (sock < 0)
                        _exit(9);
                serve(sock, part);
                _exit(0);
        }
        close(listener);
        cli = (struct cli){
                .verb = &cli_verb_ls, .socket = path, .quiet = true
        };
        cr_assert_eq(cli_conn_open(&cli, &conn), CLI_OK);
        cr_assert_str_eq(cli_conn_welcome(conn)->version, "9.9");
        cr_assert_str_eq(cli_conn_socket(conn), path);
}

static void stop(void)
{
        int status;

        cli_conn_free(conn);
        unlink(path);
        rmdir(dir);
        cr_assert_eq(waitpid(server, &status, 0), server);
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0,
                "the daemon's side ended with %x", status);
}

/* ---- the client ---- */

struct seen {
        int progress, info;
};

static int on_reply(void *arg, const Sheaf__Envelope *env)
{
        struct seen *seen = arg;

        seen->progress += env->body_case == SHEAF__ENVELOPE__BODY_PROGRESS;
        seen->info += env->body_case == SHEAF__ENVELOPE__BODY_DATASET_INFO;
        return CLI_OK;
}

static int ask(struct seen *seen)
{
        Sheaf__ListDatasets body = SHEAF__LIST_DATASETS__INIT;

        CLI_REQUEST(env, LIST_DATASETS, list_datasets, &body);
        return cli_conn_call(conn, &env, NULL, 0, on_reply, seen);
}

Test(conn, answers_in_several_messages)
{
        struct seen seen = { 0 };

        start("answers");
        cr_assert_eq(ask(&seen), CLI_OK);
        cr_assert_eq(seen.progress, 1);
        cr_assert_eq(seen.info, 2, "the event is no answer");
        stop();
}

Test(conn, refusals_have_their_exit_code, .init = cr_redirect_stderr)
{
        struct seen seen = { 0 };

        start("refuses");
        cr_assert_eq(ask(&seen), CLI_NOT_FOUND);
        fflush(stderr);
        cr_assert_stderr_eq_str("sheaf ls: there is none\n");
        stop();
}

Test(conn, kept_errors_are_not_printed, .init = cr_redirect_stderr)
{
        struct seen seen = { 0 };

        start("refuses");
        cli_conn_keep_errors(conn, true);
        cr_assert_eq(ask(&seen), CLI_NOT_FOUND);
        cr_assert_str_eq(cli_conn_error(conn), "there is none");
        fprintf(stderr, "end");
        fflush(stderr);
        cr_assert_stderr_eq_str("end");
        stop();
}

Test(conn, hang_up_is_no_success)
{
        struct seen seen = { 0 };

        start("leaves");
        cr_assert_eq(ask(&seen), CLI_NO_DAEMON);
        stop();
}

Test(conn, interrupt_cancels_the_work)
{
        struct seen seen = { 0 };

        start("works");
        cr_assert_eq(ask(&seen), CLI_INTERRUPTED);
        stop();
}

Test(conn, nobody_listens, .init = cr_redirect_stderr)
{
        cli = (struct cli){ .verb = &cli_verb_ls, .socket = "/nonexistent/s" };
        cr_assert_eq(cli_conn_open(&cli, &conn), CLI_NO_DAEMON);
        cr_assert_null(conn);
}
