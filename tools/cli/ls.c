/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf ls: the datasets that this user may see. */
#include "tools/cli/conn.h"
#include "tools/cli/out.h"
#include "tools/cli/report.h"
#include "proto/size.h"

#include <stdio.h>

struct listing {
        json_t *json;
        struct cli_table *table;
        bool one; /* details of one dataset */
        size_t count;
};

static double percent(uint64_t part, uint64_t all)
{
        return all ? 100.0 * (double)part / (double)all : 100.0;
}

static void print_row(struct cli_table *table, const Sheaf__DatasetInfo *info)
{
        cli_table_add(table, "%s", info->name);
        cli_table_add(table, "%s", info->owner);
        cli_table_add(table, "%s", info->share);
        cli_table_add(table, "%s", info->state);
        cli_table_add_count(table, info->files);
        cli_table_add_size(table, info->bytes);
        cli_table_add(
                table, "%.0f%%", percent(info->arena_chunks, info->chunks));
        cli_table_add(
                table, "%.0f%%", percent(info->disk_chunks, info->chunks));
        cli_table_add(table, "%u", info->clients);
        cli_table_add(table, "%s", info->note);
}

static void print_size(const char *what, uint64_t bytes)
{
        char buf[SHEAF_SIZE_TEXT_MAX];

        printf("  %-10s %s\n", what, sheaf_size_text(bytes, buf));
}

static void print_details(const Sheaf__DatasetInfo *info)
{
        sheaf_autofree char *origin =
                cli_text(info->origin.data, info->origin.len);
        char a[CLI_COUNT_TEXT_MAX], b[CLI_COUNT_TEXT_MAX];

        printf("%s\n", info->name);
        printf("  %-10s %s%s%s\n", "state", info->state,
                *info->note ? ": " : "", info->note);
        printf("  %-10s %s (uid %u)\n", "owner", info->owner, info->owner_uid);
        printf("  %-10s %s\n", "share", info->share);
        printf("  %-10s %s\n", "origin", origin ? origin : "?");
        printf("  %-10s ", "version");
        for (size_t i = 0; i < info->uuid.len && i < 16; i++)
                printf("%02x", info->uuid.data[i]);
        printf(" (number %llu; %u kept)\n", (unsigned long long)info->serial,
                info->versions);
        printf("  %-10s %s, in %s directories\n", "files",
                cli_count_text(info->files, a), cli_count_text(info->dirs, b));
        if (info->links)
                printf("  %-10s %s, %s leave the tree\n", "links",
                        cli_count_text(info->links, a),
                        cli_count_text(info->escaping_links, b));
        if (info->skipped_special || info->unreadable)
                printf("  %-10s %s special, %s unreadable\n", "left out",
                        cli_count_text(info->skipped_special, a),
                        cli_count_text(info->unreadable, b));
        print_size("bytes", info->bytes);
        printf("  %-10s %s, %s with known digest\n", "chunks",
                cli_count_text(info->chunks, a),
                cli_count_text(info->chunks_known, b));
        if (*info->root_digest)
                printf("  %-10s %s\n", "digest", info->root_digest);
        print_size("in memory", info->arena_bytes);
        print_size("on disk", info->disk_bytes);
        printf("  %-10s %u\n", "clients", info->clients);
}

static int on_reply(void *arg, const Sheaf__Envelope *env)
{
        struct listing *listing = arg;

        if (env->body_case != SHEAF__ENVELOPE__BODY_DATASET_INFO)
                return CLI_OK;
        listing->count++;
        if (listing->json)
                json_array_append_new(
                        listing->json, cli_report_dataset(env->dataset_info));
        else if (listing->one)
                print_details(env->dataset_info);
        else
                print_row(listing->table, env->dataset_info);
        return CLI_OK;
}

static int run(struct cli *cli)
{
        static const char *const heads[] = { "NAME", "OWNER", "SHARE", "STATE",
                ">FILES", ">BYTES", ">MEMORY", ">DISK", ">CLIENTS", "" };
        __attribute__((cleanup(cli_conn_free_p))) struct cli_conn *conn = NULL;
        Sheaf__ListDatasets body = SHEAF__LIST_DATASETS__INIT;
        struct listing listing = { .one = cli->arg_count > 0 };
        int rc = cli_conn_open(cli, &conn);

        if (rc)
                return rc;
        if (listing.one)
                body.name = cli->args[0];
        if (cli->json)
                listing.json = json_array();
        else if (!listing.one)
                listing.table = cli_table_new(heads, SHEAF_ARRAY_LEN(heads));

        CLI_REQUEST(env, LIST_DATASETS, list_datasets, &body);
        rc = cli_conn_call(conn, &env, NULL, 0, on_reply, &listing);
        if (!rc && listing.one && !listing.count)
                rc = cli_fail(cli, CLI_NOT_FOUND, ENOENT,
                        "no dataset '%s', or none that you may see",
                        cli->args[0]);
        else if (!rc && listing.json)
                cli_json_print(json_incref(listing.json));
        else if (!rc && !listing.one && !listing.count)
                printf("no datasets; make one with 'sheaf add NAME DIR'\n");
        else if (!rc && listing.table)
                cli_table_print(sheaf_steal(&listing.table));
        json_decref(listing.json);
        cli_table_free(listing.table);
        return rc;
}

static const struct cli_option options[] = { { 0 } };

const struct cli_verb cli_verb_ls = {
        .name = "ls",
        .args = "[NAME]",
        .brief = "list the datasets, or the details of one",
        .details = "MEMORY and DISK: part of the chunks that is in that "
                   "tier.\n",
        .examples = "sheaf ls\nsheaf ls imagenet\nsheaf ls --json",
        .options = options,
        .args_max = 1,
        .run = run,
};
