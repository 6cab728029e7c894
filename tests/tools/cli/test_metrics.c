/* SPDX-License-Identifier: Apache-2.0 */
/* tools/cli/metrics: sums over labels. */
#include "tools/cli/metrics.h"

#include <criterion/criterion.h>

static struct cli_metrics metrics;

static void add(
        const char *name, const char *dataset, const char *client, double value)
{
        Sheaf__Metric metric = SHEAF__METRIC__INIT;
        Sheaf__Metric *list = &metric;

        metric.name = (char *)(uintptr_t)name;
        metric.dataset = (char *)(uintptr_t)dataset;
        metric.client = (char *)(uintptr_t)client;
        metric.value = value;
        cli_metrics_take(&metrics, &list, 1);
}

static void clear(void)
{
        cli_metrics_free(&metrics);
}

static double value(const char *name, const char *dataset, const char *client)
{
        cli_metrics_sort(&metrics);
        return cli_metrics_value(&metrics, name, dataset, client);
}

Test(metrics, parts_are_summed, .fini = clear)
{
        add("arena.hits", "a", "x", 1);
        add("arena.hits", "a", "y", 2);
        add("arena.hits", "b", "x", 4);
        cr_assert_eq(value("arena.hits", "a", ""), 3);
        cr_assert_eq(value("arena.hits", "", "x"), 5);
        cr_assert_eq(value("arena.hits", "", ""), 7);
        cr_assert_eq(value("arena.hits", "b", "y"), 0);
        cr_assert_eq(value("nothing", "", ""), 0);
}

Test(metrics, the_daemons_own_sum_holds, .fini = clear)
{
        /* 3 of them by clients that are gone */
        add("arena.hits", "a", "", 10);
        add("arena.hits", "a", "x", 7);
        add("arena.hits", "b", "x", 1);
        cr_assert_eq(value("arena.hits", "a", ""), 10);
        cr_assert_eq(value("arena.hits", "", ""), 11);
        add("arena.hits", "", "", 20);
        cr_assert_eq(value("arena.hits", "", ""), 20);
}

Test(metrics, json_has_totals_and_labels, .fini = clear)
{
        json_t *o;

        add("arena.hits", "a", "x", 1);
        add("arena.hits", "b", "x", 2);
        add("arena.bytes", "", "", 4096);
        cli_metrics_sort(&metrics);
        o = cli_metrics_json(&metrics);
        cr_assert_eq(json_object_size(json_object_get(o, "totals")), 2);
        cr_assert_eq(json_integer_value(json_object_get(
                             json_object_get(o, "totals"), "arena.hits")),
                3);
        cr_assert_eq(json_integer_value(json_object_get(
                             json_object_get(o, "totals"), "arena.bytes")),
                4096);
        cr_assert_eq(
                json_integer_value(json_object_get(
                        json_object_get(json_object_get(o, "datasets"), "b"),
                        "arena.hits")),
                2);
        cr_assert_eq(json_array_size(json_object_get(o, "metrics")), 3);
        json_decref(o);
}
