/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf verify: compares cache and origin, by digest. Chunks that were never
 * read have nothing to be compared with: they are told, and are no damage. */
#include "tools/cli/conn.h"
#include "tools/cli/out.h"
#include "tools/cli/report.h"
#include "proto/size.h"

#include <stdio.h>

#define FINDINGS_SHOWN 100

static int on_reply(void *arg, const Sheaf__Envelope *env)
{
        cli_findings_take(arg, env);
        return CLI_OK;
}

static uint64_t faults(const struct cli_findings *findings)
{
        return findings->count - cli_findings_of(findings, "unknown");
}

static void print(const struct cli *cli, struct cli_findings *findings)
{
        char chunks[CLI_COUNT_TEXT_MAX], count[CLI_COUNT_TEXT_MAX];
        char size[SHEAF_SIZE_TEXT_MAX];

        if (cli->json) {
                json_t *o = json_object();

                cli_json_text(o, "name", cli->args[0], strlen(cli->args[0]));
                json_object_set_new(
                        o, "checked", json_integer((json_int_t)findings->done));
                json_object_set_new(o, "checked_bytes",
                        json_integer((json_int_t)findings->done_bytes));
                json_object_set_new(o, "ok", json_boolean(!faults(findings)));
                cli_findings_end(findings, o);
                cli_json_print(o);
                return;
        }
        cli_findings_end(findings, NULL);
        if (!faults(findings) && !cli->quiet)
                printf("%s: %s checked, %s, no damage\n", cli->args[0],
                        cli_count_text(findings->done, chunks),
                        sheaf_size_text(findings->done_bytes, size));
        else if (faults(findings))
                printf("%s: %s checked, %s findings\n", cli->args[0],
                        cli_count_text(findings->done, chunks),
                        cli_count_text(faults(findings), count));
}

static int run(struct cli *cli)
{
        __attribute__((cleanup(cli_conn_free_p))) struct cli_conn *conn = NULL;
        Sheaf__Verify body = SHEAF__VERIFY__INIT;
        struct cli_findings findings;
        int rc = cli_conn_open(cli, &conn);

        if (rc)
                return rc;
        cli_findings_begin(&findings, cli, FINDINGS_SHOWN);
        body.name = cli->args[0];
        body.origin = !cli_flag(cli, "cache-only");
        body.repair = cli_flag(cli, "repair");

        CLI_REQUEST(env, VERIFY, verify, &body);
        rc = cli_conn_call(conn, &env, NULL, 0, on_reply, &findings);
        if (!rc)
                print(cli, &findings);
        json_decref(findings.list);
        return !rc && faults(&findings) ? CLI_DAMAGE : rc;
}

static const struct cli_option options[] = {
        { "cache-only", NULL, false, "leave the origin alone" },
        { "repair", NULL, false, "drop damaged chunks and fetch them again" },
        { 0 },
};

const struct cli_verb cli_verb_verify = {
        .name = "verify",
        .args = "NAME",
        .brief = "compare the cache of a dataset with its origin",
        .details = "Exit code 6 when anything was found, repaired or not.\n",
        .examples = "sheaf verify imagenet\n"
                    "sheaf verify --cache-only --repair imagenet",
        .options = options,
        .args_min = 1,
        .args_max = 1,
        .run = run,
};
