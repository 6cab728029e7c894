/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf seal: reads what is still unknown, until every digest of the version
 * is known and it has a root digest. What was known before is told apart. */
#include "tools/cli/conn.h"
#include "tools/cli/out.h"
#include "tools/cli/report.h"
#include "proto/size.h"

#include <stdio.h>

#define FINDINGS_SHOWN 20

struct outcome {
        struct cli_findings findings;
        json_t *dataset;
        char digest[80];
};

static int on_reply(void *arg, const Sheaf__Envelope *env)
{
        struct outcome *out = arg;

        if (cli_findings_take(&out->findings, env))
                return CLI_OK;
        if (env->body_case != SHEAF__ENVELOPE__BODY_DATASET_INFO)
                return CLI_OK;
        json_decref(out->dataset);
        out->dataset = cli_report_dataset(env->dataset_info);
        snprintf(out->digest, sizeof(out->digest), "%.64s",
                env->dataset_info->root_digest);
        return CLI_OK;
}

static int run(struct cli *cli)
{
        __attribute__((cleanup(cli_conn_free_p))) struct cli_conn *conn = NULL;
        Sheaf__Seal body = SHEAF__SEAL__INIT;
        struct outcome out = { 0 };
        char size[SHEAF_SIZE_TEXT_MAX], before[SHEAF_SIZE_TEXT_MAX];
        uint64_t known, read;
        int rc = cli_conn_open(cli, &conn);

        if (rc)
                return rc;
        cli_findings_begin(&out.findings, cli, FINDINGS_SHOWN);
        body.name = cli->args[0];

        CLI_REQUEST(env, SEAL, seal, &body);
        rc = cli_conn_call(conn, &env, NULL, 0, on_reply, &out);
        if (!out.dataset)
                out.dataset = json_object();
        cli_findings_end(&out.findings, out.dataset);
        known = out.findings.from_cache_bytes;
        read = out.findings.done_bytes - known;
        json_object_set_new(
                out.dataset, "read_bytes", json_integer((json_int_t)read));
        json_object_set_new(out.dataset, "known_before_bytes",
                json_integer((json_int_t)known));
        if (!rc && cli->json)
                cli_json_print(json_incref(out.dataset));
        else if (!rc && !cli->quiet)
                printf("%s: sealed, %s read, %s known before%s%s\n",
                        cli->args[0], sheaf_size_text(read, size),
                        sheaf_size_text(known, before),
                        *out.digest ? ", digest " : "", out.digest);
        json_decref(out.dataset);
        return rc;
}

static const struct cli_option options[] = { { 0 } };

const struct cli_verb cli_verb_seal = {
        .name = "seal",
        .args = "NAME",
        .brief = "learn every digest of a dataset's version",
        .details = "Reads what was never read. A sealed version has a root "
                   "digest that depends on\nnames, contents, modes and link "
                   "targets alone. Ctrl-C stops; what was learned\nstays.\n",
        .examples = "sheaf seal imagenet",
        .options = options,
        .args_min = 1,
        .args_max = 1,
        .run = run,
};
