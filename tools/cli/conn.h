/* SPDX-License-Identifier: Apache-2.0 */
/* The CLI's connection to the daemon: one request at a time, every wait with
 * a deadline, Ctrl-C cancels the work in the daemon. One thread. */
#ifndef SHEAF_TOOLS_CLI_CONN_H
#define SHEAF_TOOLS_CLI_CONN_H

#include "proto/wire.h"
#include "tools/cli/cli.h"

#include <time.h>

struct cli_conn;

/* Connects and greets. Returns an exit code, after a message if not CLI_OK:
 * CLI_NO_DAEMON names every place that was tried. */
int cli_conn_open(const struct cli *cli, struct cli_conn **ret_conn);
/* The same without messages: for doctor. @ret_why: text for people, the
 * caller frees. */
int cli_conn_probe(
        const struct cli *cli, struct cli_conn **ret_conn, char **ret_why);
void cli_conn_free(struct cli_conn *conn);
void cli_conn_free_p(struct cli_conn **conn);

/* What the daemon said of itself; borrowed until free. */
const Sheaf__Welcome *cli_conn_welcome(const struct cli_conn *conn);
/* The socket in use; borrowed until free. */
const char *cli_conn_socket(const struct cli_conn *conn);

/* Called for each message of an answer but Error and Done; progress is shown
 * already, and other output may follow. Returns 0 to go on, or an exit code
 * that cancels the request and ends the call. */
typedef int (*cli_reply_fn)(void *arg, const Sheaf__Envelope *env);

/* Sends @request (its id is set here) with descriptors, and handles the
 * answer up to its last message: @on_reply (may be NULL) gets what it brings,
 * progress is shown, an error is printed. Returns an exit code. */
int cli_conn_call(struct cli_conn *conn, Sheaf__Envelope *request,
        const int *fds, size_t fd_count, cli_reply_fn on_reply, void *arg);

/* With @keep, errors of later calls are kept instead of printed; the text of
 * the last one is borrowed until the next call, and its errno is positive; 0
 * where that call had no answer, which is printed all the same. */
void cli_conn_keep_errors(struct cli_conn *conn, bool keep);
const char *cli_conn_error(const struct cli_conn *conn);
int cli_conn_error_errno(const struct cli_conn *conn);

/* Sleeps for @span; 0, or -EINTR once SIGINT or SIGTERM came. Only while a
 * connection is open (it catches the signals). */
int cli_conn_sleep(const struct timespec *span);

/* Builds a request: CLI_REQUEST(env, ADD_DATASET, add_dataset, &body). */
#define CLI_REQUEST(env, upper, field, body)                                   \
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;                           \
        env.body_case = SHEAF__ENVELOPE__BODY_##upper;                         \
        env.field = (body)

/* A protobuf view of a C string's bytes. */
static inline ProtobufCBinaryData cli_bytes(const char *text)
{
        return (ProtobufCBinaryData){ .len = strlen(text),
                .data = (uint8_t *)(uintptr_t)text };
}

#endif
