/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf version. */
#include "tools/cli/cli.h"
#include "tools/cli/out.h"

#include <stdio.h>

static int run(struct cli *cli)
{
        if (cli->json) {
                json_t *o = json_object();

                json_object_set_new(o, "version", json_string(SHEAF_RELEASE));
                cli_json_print(o);
        } else {
                printf("sheaf %s\n", SHEAF_RELEASE);
        }
        return CLI_OK;
}

static const struct cli_option options[] = { { 0 } };

const struct cli_verb cli_verb_version = {
        .name = "version",
        .args = "",
        .brief = "print the release of this program",
        .details = "That of the daemon is in 'sheaf status'.\n",
        .examples = "sheaf version",
        .options = options,
        .run = run,
};
