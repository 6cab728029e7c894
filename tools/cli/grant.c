/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf grant: a socket of its own for a container, that reads the named
 * datasets and nothing else.
 *
 *  1 the directory goes to the daemon as a descriptor; a directory is
 *    bind-mounted, since a bind-mounted socket file would die with the
 *    daemon */
#include "tools/cli/conn.h"
#include "tools/cli/out.h"

#include <fcntl.h>
#include <stdio.h>

struct grants {
        const struct cli *cli;
        json_t *list;
        struct cli_table *table;
        size_t count;
};

static json_t *to_json(const Sheaf__GrantInfo *grant)
{
        json_t *o = json_object();
        json_t *datasets = json_array();

        for (size_t i = 0; i < grant->n_dataset; i++)
                json_array_append_new(datasets, json_string(grant->dataset[i]));
        cli_json_text(o, "id", grant->id, strlen(grant->id));
        cli_json_text(o, "label", grant->label, strlen(grant->label));
        json_object_set_new(o, "datasets", datasets);
        cli_json_path(o, "socket", grant->socket.data, grant->socket.len);
        cli_json_text(o, "owner", grant->owner, strlen(grant->owner));
        json_object_set_new(o, "clients", json_integer(grant->clients));
        cli_json_text(o, "state", grant->state, strlen(grant->state));
        return o;
}

static void add_row(struct grants *grants, const Sheaf__GrantInfo *grant)
{
        sheaf_autofree char *names = NULL;
        sheaf_autofree char *socket =
                cli_text(grant->socket.data, grant->socket.len);
        size_t len = 0;
        FILE *text = open_memstream(&names, &len);

        if (!text)
                return;
        for (size_t i = 0; i < grant->n_dataset; i++)
                fprintf(text, "%s%s", i ? "," : "", grant->dataset[i]);
        fclose(text);
        cli_table_add(grants->table, "%s", grant->id);
        cli_table_add(grants->table, "%s", grant->label);
        cli_table_add(grants->table, "%s", names);
        cli_table_add(grants->table, "%u", grant->clients);
        cli_table_add(grants->table, "%s", grant->state);
        cli_table_add(grants->table, "%s", socket ? socket : "?");
}

static int on_reply(void *arg, const Sheaf__Envelope *env)
{
        struct grants *grants = arg;
        const Sheaf__GrantInfo *grant = env->grant_info;

        if (env->body_case != SHEAF__ENVELOPE__BODY_GRANT_INFO)
                return CLI_OK;
        grants->count++;
        if (grants->list)
                json_array_append_new(grants->list, to_json(grant));
        else
                add_row(grants, grant);
        return CLI_OK;
}

static int show(struct cli *cli, struct cli_conn *conn)
{
        static const char *const heads[] = { "ID", "LABEL", "DATASETS",
                ">CLIENTS", "STATE", "SOCKET" };
        Sheaf__ListGrants body = SHEAF__LIST_GRANTS__INIT;
        struct grants grants = { .cli = cli };
        int rc;

        if (cli->json)
                grants.list = json_array();
        else
                grants.table = cli_table_new(heads, SHEAF_ARRAY_LEN(heads));
        CLI_REQUEST(env, LIST_GRANTS, list_grants, &body);
        rc = cli_conn_call(conn, &env, NULL, 0, on_reply, &grants);
        if (!rc && cli->json)
                cli_json_print(json_incref(grants.list));
        else if (!rc && grants.count)
                cli_table_print(sheaf_steal(&grants.table));
        else if (!rc)
                printf("no grants\n");
        json_decref(grants.list);
        cli_table_free(grants.table);
        return rc;
}

static int end(struct cli *cli, struct cli_conn *conn, const char *id)
{
        Sheaf__RevokeGrant body = SHEAF__REVOKE_GRANT__INIT;
        int rc;

        body.id = (char *)(uintptr_t)id;
        CLI_REQUEST(env, REVOKE_GRANT, revoke_grant, &body);
        rc = cli_conn_call(conn, &env, NULL, 0, NULL, NULL);
        if (rc)
                return rc;
        if (cli->json) {
                json_t *o = json_object();

                cli_json_text(o, "revoked", id, strlen(id));
                cli_json_print(o);
        } else if (!cli->quiet) {
                printf("grant %s revoked\n", id);
        }
        return CLI_OK;
}

static int on_made(void *arg, const Sheaf__Envelope *env)
{
        const struct cli *cli = arg;
        const Sheaf__GrantInfo *grant = env->grant_info;
        sheaf_autofree char *socket = NULL;

        if (env->body_case != SHEAF__ENVELOPE__BODY_GRANT_INFO)
                return CLI_OK;
        if (cli->json) {
                cli_json_print(to_json(grant));
                return CLI_OK;
        }
        socket = cli_text(grant->socket.data, grant->socket.len);
        printf("grant %s: %s\n", grant->id, socket ? socket : "?");
        if (!cli->quiet)
                printf("bind-mount its directory into the container and set "
                       "SHEAF_SOCKET there\n");
        return CLI_OK;
}

static int make(struct cli *cli, struct cli_conn *conn, const char *dir)
{
        Sheaf__GrantSocket body = SHEAF__GRANT_SOCKET__INIT;
        const char *label = cli_value(cli, "label");
        sheaf_autofree char *path = realpath(dir, NULL);
        sheaf_autofd int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        if (fd < 0 || !path)
                return cli_fail(cli, CLI_OK, errno, "cannot open '%s': %s", dir,
                        strerror(errno));
        body.dataset = cli->args;
        body.n_dataset = cli->arg_count;
        body.dir = cli_bytes(path);
        body.label = (char *)(uintptr_t)(label ? label : "");
        CLI_REQUEST(env, GRANT_SOCKET, grant_socket, &body);
        return cli_conn_call(conn, &env, &fd, 1, on_made, cli);
}

static int run(struct cli *cli)
{
        __attribute__((cleanup(cli_conn_free_p))) struct cli_conn *conn = NULL;
        const char *id = cli_value(cli, "revoke");
        const char *dir = cli_value(cli, "dir");
        bool all = cli_flag(cli, "list");
        int rc;

        if ((dir != NULL) + (id != NULL) + all != 1)
                return cli_usage(
                        cli, "give one of --dir DIR, --list and --revoke ID");
        if (dir && !cli->arg_count)
                return cli_usage(cli, "name the datasets to grant");
        if (!dir && cli->arg_count)
                return cli_usage(cli, "datasets go with --dir only");
        rc = cli_conn_open(cli, &conn);
        if (rc)
                return rc;
        if (all)
                return show(cli, conn);
        return id ? end(cli, conn, id) : make(cli, conn, dir);
}

static const struct cli_option options[] = {
        { "dir", "DIR", false, "where the socket is made" },
        { "label", "TEXT", false, "a note for --list" },
        { "list", NULL, false, "show the grants" },
        { "revoke", "ID", false, "end a grant and cut off its clients" },
        { 0 },
};

const struct cli_verb cli_verb_grant = {
        .name = "grant",
        .args = "[DATASET...]",
        .brief = "let a container read datasets, by its own socket",
        .details = "Whoever speaks through the socket reads these datasets "
                   "and nothing else, whatever\nits uid inside. Grants last "
                   "until they are revoked.\n",
        .examples = "sheaf grant imagenet coco --dir /run/sheaf-job7\n"
                    "sheaf grant --list\nsheaf grant --revoke 3f2a",
        .options = options,
        .args_max = 256,
        .run = run,
};
