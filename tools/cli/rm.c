/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf rm: takes a dataset out of the cache; the origin stays untouched. */
#include "tools/cli/conn.h"
#include "tools/cli/out.h"

#include <stdio.h>

#define WAIT_MS 2000
#define STEP_MS 50

/* A training or a mount that ended a moment ago may still be about to go: so
 * a dataset in use is tried for a while. */
static int remove_it(
        struct cli *cli, struct cli_conn *conn, Sheaf__Envelope *env)
{
        const struct timespec step = { .tv_nsec = STEP_MS * SHEAF_NS_PER_MS };
        int rc, value;

        cli_conn_keep_errors(conn, true);
        for (int ms = 0;; ms += STEP_MS) {
                rc = cli_conn_call(conn, env, NULL, 0, NULL, NULL);
                value = cli_conn_error_errno(conn);
                if (!value)
                        return rc;
                if (value != EBUSY || ms >= WAIT_MS || cli_conn_sleep(&step))
                        break;
        }
        return cli_fail(cli, CLI_OK, value, "%s", cli_conn_error(conn));
}

static int run(struct cli *cli)
{
        __attribute__((cleanup(cli_conn_free_p))) struct cli_conn *conn = NULL;
        Sheaf__RemoveDataset body = SHEAF__REMOVE_DATASET__INIT;
        bool unreadable = cli_flag(cli, "unreadable");
        const char *what = unreadable ? "what could not be read" : cli->args[0];
        int rc;

        if (unreadable == (cli->arg_count > 0))
                return cli_fail(cli, CLI_USAGE, EINVAL,
                        "either a dataset's name or --unreadable");
        rc = cli_conn_open(cli, &conn);
        if (rc)
                return rc;
        if (unreadable)
                body.unreadable = true;
        else
                body.name = cli->args[0];
        body.force = cli_flag(cli, "force");

        CLI_REQUEST(env, REMOVE_DATASET, remove_dataset, &body);
        rc = remove_it(cli, conn, &env);
        if (rc)
                return rc;
        if (cli->json) {
                json_t *o = json_object();

                cli_json_text(o, "removed", what, strlen(what));
                cli_json_print(o);
        } else if (!cli->quiet) {
                printf("%s removed; its origin is untouched\n", what);
        }
        return CLI_OK;
}

static const struct cli_option options[] = {
        { "force", NULL, false, "even while clients have it open" },
        { "unreadable", NULL, false,
                "instead: records that this release cannot read (root)" },
        { 0 },
};

const struct cli_verb cli_verb_rm = {
        .name = "rm",
        .args = "NAME|--unreadable",
        .brief = "remove a dataset from the cache; the origin stays",
        .details = "One that is in use is tried for two seconds, since who "
                   "ended a moment ago may\nstill be about to let go of it.\n",
        .examples = "sheaf rm imagenet\nsheaf rm --force imagenet",
        .options = options,
        .args_max = 1,
        .run = run,
};
