/* SPDX-License-Identifier: Apache-2.0 */
/* What several verbs report in one form: a dataset's figures, findings. */
#ifndef SHEAF_TOOLS_CLI_REPORT_H
#define SHEAF_TOOLS_CLI_REPORT_H

#include "proto/control.pb-c.h"
#include "tools/cli/cli.h"
#include "tools/cli/out.h"

/* All fields of a dataset. The caller owns the object. */
json_t *cli_report_dataset(const Sheaf__DatasetInfo *info);

/* Findings as they come: printed (text) or collected (JSON), both bounded;
 * the counts are complete. */
#define CLI_FINDING_KINDS_MAX 8
struct cli_findings {
        const struct cli *cli;
        json_t *list;       /* with --json */
        uint64_t shown_max; /* in text */
        uint64_t count;
        struct {
                char kind[24];
                uint64_t count;
        } kind[CLI_FINDING_KINDS_MAX];
        /* Last word on progress. */
        uint64_t done, done_bytes, from_cache_bytes, errors;
};

void cli_findings_begin(struct cli_findings *findings, const struct cli *cli,
        uint64_t shown_max);
/* Takes Finding and Progress messages out of an answer; false: another. */
bool cli_findings_take(
        struct cli_findings *findings, const Sheaf__Envelope *env);
uint64_t cli_findings_of(const struct cli_findings *findings, const char *kind);
/* "... and 1,234 more" in text; moves the list into @object with --json. */
void cli_findings_end(struct cli_findings *findings, json_t *object);

#endif
