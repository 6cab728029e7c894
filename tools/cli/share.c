/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf share: who may read a dataset. */
#include "tools/cli/conn.h"
#include "tools/cli/out.h"

#include <fcntl.h>
#include <stdio.h>

/* The origin, opened as whoever asks: the daemon judges by it who could read
 * it anyway. Left at -1 where it cannot be opened. */
static int on_dataset(void *arg, const Sheaf__Envelope *env)
{
        sheaf_autofree char *path = NULL;
        int *fd = arg;

        if (env->body_case != SHEAF__ENVELOPE__BODY_DATASET_INFO || *fd >= 0)
                return CLI_OK;
        path = strndup((const char *)env->dataset_info->origin.data,
                env->dataset_info->origin.len);
        if (path && *path)
                *fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return CLI_OK;
}

static int run(struct cli *cli)
{
        __attribute__((cleanup(cli_conn_free_p))) struct cli_conn *conn = NULL;
        Sheaf__Share body = SHEAF__SHARE__INIT;
        Sheaf__ListDatasets list = SHEAF__LIST_DATASETS__INIT;
        sheaf_autofd int fd = -1;
        const char *who = cli->args[1];
        int rc;

        if (strcmp(who, "owner") && strcmp(who, "all") &&
                (strncmp(who, "group:", 6) || !who[6]))
                return cli_usage(cli,
                        "'%s' is not owner, group:NAME, group:GID or all", who);
        rc = cli_conn_open(cli, &conn);
        if (rc)
                return rc;
        list.name = cli->args[0];
        CLI_REQUEST(ask, LIST_DATASETS, list_datasets, &list);
        rc = cli_conn_call(conn, &ask, NULL, 0, on_dataset, &fd);
        if (rc)
                return rc;
        body.name = cli->args[0];
        body.share = cli->args[1];
        body.force = cli_flag(cli, "force");

        CLI_REQUEST(env, SHARE, share, &body);
        rc = cli_conn_call(conn, &env, &fd, fd >= 0, NULL, NULL);
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
