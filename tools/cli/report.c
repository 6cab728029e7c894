/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets and findings, as JSON and text. */
#include "tools/cli/report.h"

#include <stdio.h>

/* A JSON list longer than this would cost more memory than the daemon; the
 * counts tell the rest. */
#define JSON_FINDINGS_MAX 100000

static void set_count(json_t *object, const char *key, uint64_t value)
{
        json_object_set_new(object, key, json_integer((json_int_t)value));
}

static void set_text(json_t *object, const char *key, const char *text)
{
        cli_json_text(object, key, text, strlen(text));
}

static void set_hex(json_t *object, const char *key, ProtobufCBinaryData bytes)
{
        char hex[2 * 64 + 1] = "";

        for (size_t i = 0; i < bytes.len && i < 64; i++)
                snprintf(hex + 2 * i, 3, "%02x", bytes.data[i]);
        json_object_set_new(object, key, json_string(hex));
}

json_t *cli_report_dataset(const Sheaf__DatasetInfo *info)
{
        json_t *o = json_object();

        set_text(o, "name", info->name);
        set_text(o, "owner", info->owner);
        set_count(o, "owner_uid", info->owner_uid);
        set_text(o, "share", info->share);
        set_text(o, "state", info->state);
        set_text(o, "note", info->note);
        cli_json_path(o, "origin", info->origin.data, info->origin.len);
        set_hex(o, "version", info->uuid);
        set_count(o, "serial", info->serial);
        set_count(o, "versions", info->versions);
        set_count(o, "files", info->files);
        set_count(o, "dirs", info->dirs);
        set_count(o, "links", info->links);
        set_count(o, "bytes", info->bytes);
        set_count(o, "chunks", info->chunks);
        set_count(o, "chunks_known", info->chunks_known);
        set_text(o, "root_digest", info->root_digest);
        set_count(o, "arena_chunks", info->arena_chunks);
        set_count(o, "arena_bytes", info->arena_bytes);
        set_count(o, "disk_chunks", info->disk_chunks);
        set_count(o, "disk_bytes", info->disk_bytes);
        set_count(o, "clients", info->clients);
        set_count(o, "created_ns", info->created_ns);
        set_count(o, "escaping_links", info->escaping_links);
        set_count(o, "skipped_special", info->skipped_special);
        set_count(o, "unreadable", info->unreadable);
        return o;
}

void cli_findings_begin(struct cli_findings *findings, const struct cli *cli,
        uint64_t shown_max)
{
        *findings = (struct cli_findings){ .cli = cli, .shown_max = shown_max };
        if (cli->json)
                findings->list = json_array();
}

static void count_kind(struct cli_findings *findings, const char *kind)
{
        for (size_t i = 0; i < CLI_FINDING_KINDS_MAX; i++) {
                char *have = findings->kind[i].kind;

                if (!*have)
                        snprintf(have, sizeof(findings->kind[i].kind), "%.20s",
                                kind);
                if (!strncmp(have, kind, 20)) {
                        findings->kind[i].count++;
                        return;
                }
        }
}

static void take_finding(
        struct cli_findings *findings, const Sheaf__Finding *finding)
{
        findings->count++;
        count_kind(findings, finding->kind);
        if (findings->list) {
                json_t *o;

                if (findings->count > JSON_FINDINGS_MAX)
                        return;
                o = json_object();
                set_text(o, "kind", finding->kind);
                cli_json_path(o, "path", finding->path.data, finding->path.len);
                set_text(o, "text", finding->text);
                json_array_append_new(findings->list, o);
        } else if (findings->count <= findings->shown_max) {
                sheaf_autofree char *path =
                        cli_text(finding->path.data, finding->path.len);
                sheaf_autofree char *text =
                        cli_text(finding->text, strlen(finding->text));

                printf("  %s: %s%s%s\n", finding->kind, path ? path : "?",
                        finding->path.len && *finding->text ? ": " : "",
                        text ? text : "");
        }
}

bool cli_findings_take(
        struct cli_findings *findings, const Sheaf__Envelope *env)
{
        switch (env->body_case) {
        case SHEAF__ENVELOPE__BODY_FINDING:
                take_finding(findings, env->finding);
                return true;
        case SHEAF__ENVELOPE__BODY_PROGRESS:
                findings->done = env->progress->done;
                findings->done_bytes = env->progress->done_bytes;
                findings->from_cache_bytes = env->progress->from_cache_bytes;
                findings->errors = env->progress->errors;
                return true;
        default:
                return false;
        }
}

uint64_t cli_findings_of(const struct cli_findings *findings, const char *kind)
{
        for (size_t i = 0; i < CLI_FINDING_KINDS_MAX; i++)
                if (!strncmp(findings->kind[i].kind, kind, 20))
                        return findings->kind[i].count;
        return 0;
}

void cli_findings_end(struct cli_findings *findings, json_t *object)
{
        char buf[CLI_COUNT_TEXT_MAX];

        if (findings->list) {
                json_object_set_new(object, "findings", findings->list);
                set_count(object, "findings_count", findings->count);
                findings->list = NULL;
        } else if (findings->count > findings->shown_max) {
                printf("... and %s more\n",
                        cli_count_text(
                                findings->count - findings->shown_max, buf));
        }
}
