/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf stats: where reads came from, by dataset, tier and client.
 *
 *  1 hit rate: chunks that libraries read from memory, of all that they
 *    asked for. What the page cache of a mount answers is not seen by anybody
 *    and never counted; mounts show the requests that reached them
 *  2 with --watch, rates are differences of two samples of one counter */
#include "proto/size.h"
#include "tools/cli/metrics.h"
#include "tools/cli/out.h"

#include <poll.h>
#include <stdio.h>
#include <time.h>

#define WATCH_SEC_DEFAULT 2.0
#define WATCH_SEC_MAX     86400.0

struct view {
        const struct cli_metrics *now;
        const struct cli_metrics *before; /* NULL: totals since the start */
        double seconds;
};

static double get(const struct view *view, const char *name,
        const char *dataset, const char *client)
{
        double value = cli_metrics_value(view->now, name, dataset, client);

        if (view->before)
                value -= cli_metrics_value(view->before, name, dataset, client);
        /* A restarted daemon begins at zero again. */
        return value > 0 ? value : 0;
}

/* A gauge has no difference. */
static double gauge(
        const struct view *view, const char *name, const char *dataset)
{
        return cli_metrics_value(view->now, name, dataset, "");
}

static void add_rate(struct cli_table *table, double part, double rest)
{
        if (part + rest > 0)
                cli_table_add(table, "%.1f%%", 100 * part / (part + rest));
        else
                cli_table_add(table, "-");
}

/* Bytes; per second with --watch. */
static void add_flow(
        struct cli_table *table, const struct view *view, double bytes)
{
        char buf[SHEAF_SIZE_TEXT_MAX];

        if (view->before)
                cli_table_add(table, "%s/s",
                        sheaf_size_text(
                                (uint64_t)(bytes / view->seconds), buf));
        else
                cli_table_add_size(table, (uint64_t)bytes);
}

static double mount_requests(const struct view *view, const char *dataset)
{
        double sum = 0;
        const char *last = "";

        /* Each name once: with all its labels it stands together. */
        for (size_t i = 0; i < view->now->count; i++) {
                const char *name = view->now->item[i].name;

                if (strncmp(name, "mount.requests.", 15) || !strcmp(last, name))
                        continue;
                sum += get(view, name, dataset, "");
                last = name;
        }
        return sum;
}

static void print_datasets(const struct view *view)
{
        static const char *const heads[] = { "DATASET", ">HIT RATE", ">HITS",
                ">HIT BYTES", ">MISSES", ">DISK READ", ">ORIGIN READ",
                ">MEMORY", ">ON DISK", ">FUSE REQS" };
        sheaf_autofree const char **names = cli_metrics_datasets(view->now);
        struct cli_table *table = cli_table_new(heads, SHEAF_ARRAY_LEN(heads));

        for (size_t i = 0; names[i]; i++) {
                const char *name = names[i];
                double hits = get(view, "arena.hits", name, "");
                double misses = get(view, "misses", name, "");

                cli_table_add(table, "%s", name);
                add_rate(table, hits, misses);
                cli_table_add_count(table, (uint64_t)hits);
                add_flow(table, view, get(view, "arena.hit_bytes", name, ""));
                cli_table_add_count(table, (uint64_t)misses);
                add_flow(table, view, get(view, "disk.hit_bytes", name, ""));
                add_flow(table, view, get(view, "origin.bytes", name, ""));
                cli_table_add_size(table,
                        (uint64_t)gauge(view, "dataset.arena_bytes", name));
                cli_table_add_size(table,
                        (uint64_t)gauge(view, "dataset.disk_bytes", name));
                cli_table_add_count(
                        table, (uint64_t)mount_requests(view, name));
        }
        cli_table_print(table);
}

static void print_tier(struct cli_table *table, const struct view *view,
        const char *tier, const char *reads, const char *bytes,
        const char *used, const char *limit)
{
        double max = limit ? gauge(view, limit, "") : 0;

        cli_table_add(table, "%s", tier);
        cli_table_add_count(table, (uint64_t)get(view, reads, "", ""));
        add_flow(table, view, get(view, bytes, "", ""));
        /* What others keep on disk is not for everybody. */
        if (used && max > 0)
                cli_table_add_size(table, (uint64_t)gauge(view, used, ""));
        else
                cli_table_add(table, "-");
        if (max > 0)
                cli_table_add_size(table, (uint64_t)max);
        else
                cli_table_add(table, "-");
}

static void print_tiers(const struct view *view)
{
        static const char *const heads[] = { "TIER", ">READS", ">BYTES",
                ">USED", ">LIMIT" };
        struct cli_table *table = cli_table_new(heads, SHEAF_ARRAY_LEN(heads));

        print_tier(table, view, "memory", "arena.hits", "arena.hit_bytes",
                "arena.bytes", "arena.bytes_max");
        print_tier(table, view, "disk", "disk.hits", "disk.hit_bytes",
                "disk.bytes", "disk.bytes_max");
        print_tier(table, view, "origin", "origin.reads", "origin.bytes", NULL,
                NULL);
        cli_table_print(table);
}

static void print_clients(const struct view *view)
{
        static const char *const heads[] = { "CLIENT", ">HIT RATE", ">HITS",
                ">HIT BYTES", ">MISSES", ">COPIES", ">WAITED" };
        sheaf_autofree const char **names = cli_metrics_clients(view->now);
        struct cli_table *table;

        if (!names[0])
                return;
        table = cli_table_new(heads, SHEAF_ARRAY_LEN(heads));
        for (size_t i = 0; names[i]; i++) {
                double hits = get(view, "arena.hits", "", names[i]);
                double misses = get(view, "misses", "", names[i]);

                cli_table_add(table, "%s", names[i]);
                /* Of a mount's reads only what the page cache lacked is seen:
                 * a rate of these would say nothing. */
                if (strncmp(names[i], "mount:", 6))
                        add_rate(table, hits, misses);
                else
                        cli_table_add(table, "-");
                cli_table_add_count(table, (uint64_t)hits);
                add_flow(table, view,
                        get(view, "arena.hit_bytes", "", names[i]));
                cli_table_add_count(table, (uint64_t)misses);
                cli_table_add_count(
                        table, (uint64_t)get(view, "copies", "", names[i]));
                cli_table_add(table, "%.1f s",
                        get(view, "wait_ns", "", names[i]) / 1e9);
        }
        putchar('\n');
        cli_table_print(table);
}

static void print(const struct cli *cli, const struct view *view)
{
        double bad = get(view, "verify_failures", "", "");

        if (cli->json) {
                json_t *o = cli_metrics_json(view->now);

                if (view->before)
                        json_object_set_new(
                                o, "seconds", json_real(view->seconds));
                cli_json_print(o);
                return;
        }
        print_datasets(view);
        putchar('\n');
        print_tiers(view);
        print_clients(view);
        if (bad > 0)
                printf("\n%.0f chunks failed verification and were dropped; "
                       "see the daemon's log and 'sheaf verify'\n",
                        bad);
}

/* Waits; an exit code when it was interrupted. */
static int pause_for(double seconds)
{
        struct timespec ts = { .tv_sec = (time_t)seconds,
                .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9) };

        return cli_conn_sleep(&ts) ? CLI_INTERRUPTED : CLI_OK;
}

static int watch(struct cli *cli, struct cli_conn *conn, const char *dataset,
        double seconds)
{
        struct cli_metrics before = { 0 }, now = { 0 };
        bool tty = isatty(STDOUT_FILENO) == 1 && !cli->json;
        int rc = cli_metrics_get(conn, dataset, &before);

        while (!rc) {
                rc = pause_for(seconds);
                if (!rc)
                        rc = cli_metrics_get(conn, dataset, &now);
                if (rc)
                        break;

                struct view view = { .now = &now,
                        .before = &before,
                        .seconds = (double)(now.taken_ns - before.taken_ns) /
                                   1e9 };

                if (tty)
                        printf("\033[H\033[2Jlast %.1f s; Ctrl-C ends\n\n",
                                view.seconds);
                print(cli, &view);
                if (!tty && !cli->json)
                        putchar('\n');
                /* Whoever reads a pipe wants it now, and may go away. */
                if (fflush(stdout))
                        rc = CLI_FAILED;
                cli_metrics_free(&before);
                before = now;
                now = (struct cli_metrics){ 0 };
        }
        cli_metrics_free(&before);
        return rc;
}

static int run(struct cli *cli)
{
        __attribute__((cleanup(cli_conn_free_p))) struct cli_conn *conn = NULL;
        const char *dataset = cli->arg_count ? cli->args[0] : "";
        const char *every = cli_value(cli, "watch");
        struct cli_metrics metrics;
        double seconds = WATCH_SEC_DEFAULT;
        int rc;

        if (every && *every) {
                char *end;

                seconds = strtod(every, &end);
                if (*end || !(seconds >= 0.1 && seconds <= WATCH_SEC_MAX))
                        return cli_usage(cli,
                                "--watch: '%s' is not 0.1 to 86400 seconds",
                                every);
        }
        rc = cli_conn_open(cli, &conn);
        if (rc)
                return rc;
        if (every)
                return watch(cli, conn, dataset, seconds);
        rc = cli_metrics_get(conn, dataset, &metrics);
        if (rc)
                return rc;

        struct view view = { .now = &metrics };

        print(cli, &view);
        cli_metrics_free(&metrics);
        return CLI_OK;
}

static const struct cli_option options[] = {
        { "watch", "SECONDS", true, "again and again, with rates (2 s)" },
        { 0 },
};

const struct cli_verb cli_verb_stats = {
        .name = "stats",
        .args = "[NAME]",
        .brief = "hit rates and bytes by dataset, tier and client",
        .details =
                "Counters run since the daemon's start; docs/metrics.md lists "
                "their names (--json).\nHITS are chunks read in place by "
                "libraries; what the page cache of a mount\nanswers is seen "
                "by nobody and not counted.\n",
        .examples = "sheaf stats\nsheaf stats imagenet --watch\n"
                    "sheaf stats --watch=10 --json",
        .options = options,
        .args_max = 1,
        .run = run,
};
