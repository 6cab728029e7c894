/* SPDX-License-Identifier: Apache-2.0 */
/* `sheaf`: the command line of the cache. */
#include "tools/cli/cli.h"

#include <locale.h>
#include <signal.h>
#include <stdio.h>

int main(int argc, char **argv)
{
        struct cli cli = { 0 };
        int rc;

        setlocale(LC_CTYPE, "");
        signal(SIGPIPE, SIG_IGN);
        rc = cli_parse(&cli, argc, argv);
        if (rc == -1) {
                cli_help(cli.verb);
                rc = CLI_OK;
        } else if (!rc) {
                rc = cli.verb->run(&cli);
        }
        /* A full disk or a closed pipe must not look like success. */
        if (fflush(stdout) || ferror(stdout)) {
                if (errno != EPIPE)
                        fprintf(stderr, "sheaf: cannot write the output: %s\n",
                                strerror(errno));
                return rc ? rc : CLI_FAILED;
        }
        return rc;
}
