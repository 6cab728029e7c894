/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf status: the daemon, its limits, what is degraded, who is connected. */
#include "proto/size.h"
#include "tools/cli/metrics.h"
#include "tools/cli/out.h"
#include "tools/cli/progress.h"

#include <stdio.h>

struct status {
        json_t *json; /* NULL: text */
        struct cli_metrics metrics;
        struct cli_table *clients;
        json_t *conditions, *client_list;
        size_t condition_count, client_count;
};

static void text(json_t *o, const char *key, const char *value)
{
        cli_json_text(o, key, value, strlen(value));
}

static void take_condition(
        struct status *status, const Sheaf__Condition *condition)
{
        json_t *o;

        status->condition_count++;
        if (!status->json) {
                printf("degraded: %s (%s)\n  why: %s\n", condition->what,
                        condition->name, condition->why);
                if (*condition->remedy)
                        printf("  remedy: %s\n", condition->remedy);
                return;
        }
        o = json_object();
        text(o, "name", condition->name);
        text(o, "what", condition->what);
        text(o, "why", condition->why);
        text(o, "remedy", condition->remedy);
        json_array_append_new(status->conditions, o);
}

static void take_client(struct status *status, const Sheaf__ClientInfo *client)
{
        json_t *o;

        status->client_count++;
        if (!status->json) {
                cli_table_add(status->clients, "%u", client->pid);
                cli_table_add(status->clients, "%u", client->uid);
                cli_table_add(status->clients, "%s", client->kind);
                cli_table_add(status->clients, "%s", client->name);
                cli_table_add(status->clients, "%s", client->dataset);
                cli_table_add_size(status->clients, client->pinned_bytes);
                cli_table_add_size(status->clients, client->grant_bytes);
                cli_table_add(status->clients, "%s", client->holds);
                return;
        }
        o = json_object();
        json_object_set_new(o, "pid", json_integer(client->pid));
        json_object_set_new(o, "uid", json_integer(client->uid));
        text(o, "kind", client->kind);
        text(o, "name", client->name);
        text(o, "dataset", client->dataset);
        json_object_set_new(o, "pinned_bytes",
                json_integer((json_int_t)client->pinned_bytes));
        json_object_set_new(o, "grant_bytes",
                json_integer((json_int_t)client->grant_bytes));
        text(o, "holds", client->holds);
        json_array_append_new(status->client_list, o);
}

static void print_daemon(const Sheaf__Status *s)
{
        char span[CLI_SPAN_TEXT_MAX];

        printf("sheafd %s, pid %u, up %s\n", s->version, s->pid,
                cli_span_text((double)s->uptime_ns / 1e9, span));
        printf("  cache     %s\n  socket    %s\n  deadline  %.3g s\n",
                s->cache_dir, s->socket, s->deadline_ms / 1e3);
}

static void fill_json(json_t *o, const Sheaf__Status *s)
{
        text(o, "version", s->version);
        json_object_set_new(o, "pid", json_integer(s->pid));
        json_object_set_new(
                o, "uptime_ns", json_integer((json_int_t)s->uptime_ns));
        cli_json_path(o, "cache_dir", s->cache_dir, strlen(s->cache_dir));
        cli_json_path(o, "socket", s->socket, strlen(s->socket));
        json_object_set_new(o, "deadline_ms", json_integer(s->deadline_ms));
}

static int on_reply(void *arg, const Sheaf__Envelope *env)
{
        struct status *status = arg;
        const Sheaf__Status *s = env->status;

        if (env->body_case != SHEAF__ENVELOPE__BODY_STATUS)
                return CLI_OK;
        /* A long answer comes in several messages; the first names the
         * daemon. */
        if (s->pid && status->json)
                fill_json(status->json, s);
        else if (s->pid)
                print_daemon(s);
        cli_metrics_take(&status->metrics, s->metric, s->n_metric);
        for (size_t i = 0; i < s->n_condition; i++)
                take_condition(status, s->condition[i]);
        for (size_t i = 0; i < s->n_client; i++)
                take_client(status, s->client[i]);
        return CLI_OK;
}

static void print_limit(const struct status *status, const char *what,
        const char *used_name, const char *max_name)
{
        double used = cli_metrics_value(&status->metrics, used_name, "", "");
        double max = cli_metrics_value(&status->metrics, max_name, "", "");
        char a[SHEAF_SIZE_TEXT_MAX], b[SHEAF_SIZE_TEXT_MAX];

        if (used <= 0 && max <= 0)
                return;
        printf("  %-9s %s", what, sheaf_size_text((uint64_t)used, a));
        if (max > 0)
                printf(" of %s", sheaf_size_text((uint64_t)max, b));
        putchar('\n');
}

static void print_rest(struct status *status)
{
        print_limit(status, "memory", "arena.bytes", "arena.bytes_max");
        print_limit(status, "disk", "disk.bytes", "disk.bytes_max");
        print_limit(status, "pinned", "pins.bytes", "pins.granted_bytes");
        if (!status->condition_count)
                printf("  all is well\n");
        if (!status->client_count)
                return;
        putchar('\n');
        cli_table_print(sheaf_steal(&status->clients));
}

static void finish_json(struct status *status)
{
        json_t *metrics = cli_metrics_json(&status->metrics);

        json_object_set(
                status->json, "metrics", json_object_get(metrics, "totals"));
        json_decref(metrics);
        json_object_set(status->json, "conditions", status->conditions);
        json_object_set(status->json, "clients", status->client_list);
        cli_json_print(json_incref(status->json));
}

static int run(struct cli *cli)
{
        static const char *const heads[] = { ">PID", ">UID", "KIND", "NAME",
                "DATASET", ">PINNED", ">GRANT", "HOLDS" };
        __attribute__((cleanup(cli_conn_free_p))) struct cli_conn *conn = NULL;
        Sheaf__GetStatus body = SHEAF__GET_STATUS__INIT;
        struct status status = { 0 };
        int rc = cli_conn_open(cli, &conn);

        if (rc)
                return rc;
        status.clients = cli_table_new(heads, SHEAF_ARRAY_LEN(heads));
        if (cli->json) {
                status.json = json_object();
                status.conditions = json_array();
                status.client_list = json_array();
        }

        CLI_REQUEST(env, GET_STATUS, get_status, &body);
        rc = cli_conn_call(conn, &env, NULL, 0, on_reply, &status);
        cli_metrics_sort(&status.metrics);
        if (!rc && cli->json)
                finish_json(&status);
        else if (!rc)
                print_rest(&status);
        json_decref(status.json);
        json_decref(status.conditions);
        json_decref(status.client_list);
        cli_table_free(status.clients);
        cli_metrics_free(&status.metrics);
        return rc;
}

static const struct cli_option options[] = { { 0 } };

const struct cli_verb cli_verb_status = {
        .name = "status",
        .args = "",
        .brief = "the daemon: limits, what is degraded, clients",
        .examples = "sheaf status\nsheaf status --json",
        .options = options,
        .run = run,
};
