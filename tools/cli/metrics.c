/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of the daemon: collection, sums over labels, JSON. */
#include "tools/cli/metrics.h"
#include "tools/cli/out.h"

#include <math.h>
#include <time.h>

static int64_t now_ns(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return ts.tv_sec * SHEAF_NS_PER_SEC + ts.tv_nsec;
}

/* strdup that ends the program without memory: there is nothing to save. */
static char *copy(const char *text)
{
        char *out = strdup(text ? text : "");

        if (!out)
                abort();
        return out;
}

void cli_metrics_take(
        struct cli_metrics *metrics, Sheaf__Metric *const *metric, size_t count)
{
        for (size_t i = 0; i < count; i++) {
                if (metrics->count == metrics->count_max) {
                        size_t max =
                                SHEAF_MAX(2 * metrics->count_max, (size_t)64);

                        metrics->item = reallocarray(
                                metrics->item, max, sizeof(*metrics->item));
                        if (!metrics->item)
                                abort();
                        metrics->count_max = max;
                }
                metrics->item[metrics->count++] = (struct cli_metric){
                        .name = copy(metric[i]->name),
                        .dataset = copy(metric[i]->dataset),
                        .client = copy(metric[i]->client),
                        .value = metric[i]->value,
                        .gauge = metric[i]->gauge,
                };
        }
}

static int on_reply(void *arg, const Sheaf__Envelope *env)
{
        if (env->body_case == SHEAF__ENVELOPE__BODY_STATS)
                cli_metrics_take(arg, env->stats->metric, env->stats->n_metric);
        return CLI_OK;
}

int cli_metrics_get(struct cli_conn *conn, const char *dataset,
        struct cli_metrics *ret_metrics)
{
        Sheaf__GetStats body = SHEAF__GET_STATS__INIT;
        struct cli_metrics metrics = { 0 };
        int rc;

        body.name = (char *)(uintptr_t)dataset;
        CLI_REQUEST(env, GET_STATS, get_stats, &body);
        rc = cli_conn_call(conn, &env, NULL, 0, on_reply, &metrics);
        if (rc) {
                cli_metrics_free(&metrics);
                return rc;
        }
        cli_metrics_sort(&metrics);
        metrics.taken_ns = now_ns();
        *ret_metrics = metrics;
        return CLI_OK;
}

void cli_metrics_free(struct cli_metrics *metrics)
{
        for (size_t i = 0; i < metrics->count; i++) {
                free(metrics->item[i].name);
                free(metrics->item[i].dataset);
                free(metrics->item[i].client);
        }
        free(metrics->item);
        *metrics = (struct cli_metrics){ 0 };
}

static int compare(const struct cli_metric *m, const char *name,
        const char *dataset, const char *client)
{
        int rc = strcmp(m->name, name);

        if (!rc)
                rc = strcmp(m->dataset, dataset);
        return rc ? rc : strcmp(m->client, client);
}

static int by_labels(const void *a, const void *b)
{
        const struct cli_metric *m = b;

        return compare(a, m->name, m->dataset, m->client);
}

void cli_metrics_sort(struct cli_metrics *metrics)
{
        if (metrics->count)
                qsort(metrics->item, metrics->count, sizeof(*metrics->item),
                        by_labels);
}

/* The first metric that is not before these labels. */
static size_t seek(const struct cli_metrics *metrics, const char *name,
        const char *dataset, const char *client)
{
        size_t from = 0, to = metrics->count;

        while (from < to) {
                size_t mid = from + (to - from) / 2;

                if (compare(&metrics->item[mid], name, dataset, client) < 0)
                        from = mid + 1;
                else
                        to = mid;
        }
        return from;
}

/* Whether @at is a metric of that name. */
static bool is_of(
        const struct cli_metrics *metrics, size_t at, const char *name)
{
        return at < metrics->count && !strcmp(metrics->item[at].name, name);
}

/* Sum over all clients of @dataset. */
static double sum_dataset(const struct cli_metrics *metrics, const char *name,
        const char *dataset)
{
        double sum = 0;

        for (size_t i = seek(metrics, name, dataset, "");
                is_of(metrics, i, name) &&
                !strcmp(metrics->item[i].dataset, dataset);
                i++)
                sum += metrics->item[i].value;
        return sum;
}

/* Sum over all datasets of @client. */
static double sum_client(
        const struct cli_metrics *metrics, const char *name, const char *client)
{
        double sum = 0;

        for (size_t i = seek(metrics, name, "", ""); is_of(metrics, i, name);
                i++)
                if (*metrics->item[i].dataset &&
                        !strcmp(metrics->item[i].client, client))
                        sum += metrics->item[i].value;
        return sum;
}

/* Of the node: datasets may be given as sums or as parts, and some metrics
 * are by client alone. */
static double sum_node(const struct cli_metrics *metrics, const char *name)
{
        double sum = 0, clients = 0;
        const char *summed = "";

        for (size_t i = seek(metrics, name, "", ""); is_of(metrics, i, name);
                i++) {
                const struct cli_metric *m = &metrics->item[i];

                if (!*m->dataset)
                        clients += m->value;
                else if (strcmp(m->dataset, summed))
                        sum += m->value;
                /* The sum of a dataset sorts before its parts. */
                if (*m->dataset && !*m->client)
                        summed = m->dataset;
        }
        return sum > 0 ? sum : clients;
}

double cli_metrics_value(const struct cli_metrics *metrics, const char *name,
        const char *dataset, const char *client)
{
        size_t at = seek(metrics, name, dataset, client);

        if (at < metrics->count &&
                !compare(&metrics->item[at], name, dataset, client))
                return metrics->item[at].value;
        if (*dataset && *client)
                return 0;
        if (*dataset)
                return sum_dataset(metrics, name, dataset);
        return *client ? sum_client(metrics, name, client)
                       : sum_node(metrics, name);
}

static int by_text(const void *a, const void *b)
{
        return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static const char **labels(const struct cli_metrics *metrics, size_t offset)
{
        const char **out = sheaf_new(const char *, metrics->count + 1);
        size_t n = 0, kept = 0;

        if (!out)
                abort();
        for (size_t i = 0; i < metrics->count; i++) {
                const char *label = *(char *const *)(const void
                                *)((const char *)&metrics->item[i] + offset);

                if (*label)
                        out[n++] = label;
        }
        qsort(out, n, sizeof(*out), by_text);
        for (size_t i = 0; i < n; i++)
                if (!kept || strcmp(out[kept - 1], out[i]))
                        out[kept++] = out[i];
        out[kept] = NULL;
        return out;
}

const char **cli_metrics_datasets(const struct cli_metrics *metrics)
{
        return labels(metrics, offsetof(struct cli_metric, dataset));
}

const char **cli_metrics_clients(const struct cli_metrics *metrics)
{
        return labels(metrics, offsetof(struct cli_metric, client));
}

/* Counters are integers in JSON, as far as a double holds them exactly. */
static json_t *number(double value)
{
        if (fabs(value) < 9007199254740992.0 && value == floor(value))
                return json_integer((json_int_t)value);
        return json_real(isfinite(value) ? value : 0);
}

/* Whether a metric of that name, the first of which is @at, has the labels,
 * or parts that make their sum. */
static bool applies(const struct cli_metrics *metrics, size_t at,
        const char *dataset, const char *client)
{
        const char *name = metrics->item[at].name;

        if (!*client) {
                if (*dataset)
                        at = seek(metrics, name, dataset, "");
                return is_of(metrics, at, name) &&
                       (!*dataset ||
                               !strcmp(metrics->item[at].dataset, dataset));
        }
        for (; is_of(metrics, at, name); at++)
                if (!strcmp(metrics->item[at].client, client))
                        return true;
        return false;
}

/* {name: value} for a dataset, a client, or neither; metrics that do not
 * apply are left out. */
static json_t *json_of(const struct cli_metrics *metrics, const char *dataset,
        const char *client)
{
        json_t *o = json_object();
        size_t i = 0;

        while (i < metrics->count) {
                const char *name = metrics->item[i].name;

                if (applies(metrics, i, dataset, client))
                        json_object_set_new(o, name,
                                number(cli_metrics_value(
                                        metrics, name, dataset, client)));
                /* No label is above this one. */
                i = seek(metrics, name, "\xff", "");
        }
        return o;
}

json_t *cli_metrics_json(const struct cli_metrics *metrics)
{
        sheaf_autofree const char **datasets = cli_metrics_datasets(metrics);
        sheaf_autofree const char **clients = cli_metrics_clients(metrics);
        json_t *top = json_object();
        json_t *by_dataset = json_object();
        json_t *by_client = json_object();
        json_t *list = json_array();

        for (size_t i = 0; datasets[i]; i++)
                json_object_set_new(by_dataset, datasets[i],
                        json_of(metrics, datasets[i], ""));
        for (size_t i = 0; clients[i]; i++)
                json_object_set_new(by_client, clients[i],
                        json_of(metrics, "", clients[i]));
        for (size_t i = 0; i < metrics->count; i++) {
                const struct cli_metric *m = &metrics->item[i];
                json_t *o = json_object();

                json_object_set_new(o, "name", json_string(m->name));
                cli_json_text(o, "dataset", m->dataset, strlen(m->dataset));
                cli_json_text(o, "client", m->client, strlen(m->client));
                json_object_set_new(o, "value", number(m->value));
                json_object_set_new(o, "gauge", json_boolean(m->gauge));
                json_array_append_new(list, o);
        }
        json_object_set_new(top, "totals", json_of(metrics, "", ""));
        json_object_set_new(top, "datasets", by_dataset);
        json_object_set_new(top, "clients", by_client);
        json_object_set_new(top, "metrics", list);
        return top;
}
