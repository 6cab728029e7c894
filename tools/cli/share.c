/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf share: who may read a dataset. */
#include "tools/cli/conn.h"
#include "tools/cli/out.h"

#include <stdio.h>

static int run(struct cli *cli)
{
        __attribute__((cleanup(cli_conn_free_p))) struct cli_conn *conn = NULL;
        Sheaf__Share body = SHEAF__SHARE__INIT;
        const char *who = cli->args[1];
        int rc;

        if (strcmp(who, "owner") && strcmp(who, "all") &&
                (strncmp(who, "group:", 6) || !who[6]))
                return cli_usage(cli,
                        "'%s' is not owner, group:NAME, group:GID or all", who);
        rc = cli_conn_open(cli, &conn);
        if (rc)
                return rc;
        body.name = cli->args[0];
        body.share = cli->args[1];
        body.force = cli_flag(cli, "force");

        CLI_REQUEST(env, SHARE, share, &body);
        rc = cli_conn_call(conn, &env, NULL, 0, NULL, NULL);
        if (rc)
                return rc;
        if (cli->json) {
                json_t *o = json_object();

                cli_json_text(o, "name", cli->args[0], strlen(cli->args[0]));
                cli_json_text(o, "share", who, strlen(who));
                cli_json_print(o);
        } else if (!cli->quiet) {
                printf("%s: readable by %s\n", cli->args[0], who);
        }
        return CLI_OK;
}

static const struct cli_option options[] = {
        { "force", NULL, false,
                "even if they could not read the origin themselves" },
        { 0 },
};

const struct cli_verb cli_verb_share = {
        .name = "share",
        .args = "NAME WHO",
        .brief = "say who may read a dataset",
        .details = "WHO: owner, group:NAME, group:GID or all.\n",
        .examples = "sheaf share imagenet group:vision\n"
                    "sheaf share imagenet owner",
        .options = options,
        .args_min = 2,
        .args_max = 2,
        .run = run,
};
