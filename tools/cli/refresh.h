/* SPDX-License-Identifier: Apache-2.0 */
/* What `sheaf mount --refresh` must know of the mount that it replaces. One
 * thread. */
#ifndef SHEAF_TOOLS_CLI_REFRESH_H
#define SHEAF_TOOLS_CLI_REFRESH_H

#include "tools/cli/cli.h"

struct cli_old_mount {
        char *dir;        /* absolute */
        char *dataset;    /* the name it shows */
        char mode[16];    /* "" when it is not known */
        char version[64]; /* UUID; "" when the mount does not answer */
        bool allow_other; /* it lets other users in */
};

/* Looks at Sheaf's mount at @dir, which must show @given unless that is NULL.
 * Waits at most two seconds for a mount that hangs. 0, with @ret_old to be
 * cleared; an exit code after a message. */
int cli_old_mount_look(const struct cli *cli, const char *given,
        const char *dir, struct cli_old_mount *ret_old);
void cli_old_mount_clear(struct cli_old_mount *old);

#endif
