/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of the daemon, by name and label. One thread.
 *
 * A metric with a dataset and a client counts that pair; one without a label
 * is the sum over it. Where the daemon sends only the parts, the sums are
 * made here; where it sends both, its own sum holds. */
#ifndef SHEAF_TOOLS_CLI_METRICS_H
#define SHEAF_TOOLS_CLI_METRICS_H

#include "tools/cli/conn.h"

#include <jansson.h>

struct cli_metric {
        char *name;
        char *dataset; /* "": of the node */
        char *client;  /* "": of all clients */
        double value;
        bool gauge;
};

struct cli_metrics {
        struct cli_metric *item;
        size_t count;
        size_t count_max;
        int64_t taken_ns; /* CLOCK_MONOTONIC */
};

/* Asks the daemon (@dataset "": everything). An exit code. */
int cli_metrics_get(struct cli_conn *conn, const char *dataset,
        struct cli_metrics *ret_metrics);
/* Copies metrics of a message. */
void cli_metrics_take(struct cli_metrics *metrics, Sheaf__Metric *const *metric,
        size_t count);
/* By name, dataset, client: once after all were taken, before any use. */
void cli_metrics_sort(struct cli_metrics *metrics);
void cli_metrics_free(struct cli_metrics *metrics);

/* The value for labels ("": summed over), 0 when there is none. */
double cli_metrics_value(const struct cli_metrics *metrics, const char *name,
        const char *dataset, const char *client);

/* Distinct values of a label, sorted, NULL at the end; the strings are
 * borrowed, the array is the caller's. */
const char **cli_metrics_datasets(const struct cli_metrics *metrics);
const char **cli_metrics_clients(const struct cli_metrics *metrics);

/* {"totals": {}, "datasets": {}, "clients": {}, "metrics": []}. */
json_t *cli_metrics_json(const struct cli_metrics *metrics);

#endif
