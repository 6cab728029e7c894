/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf umount: ends a mount. Works without a daemon. */
#include "cachefs/mounts.h"
#include "tools/cli/cli.h"
#include "tools/cli/out.h"

#include <stdio.h>

#define HOLDERS_SHOWN 8

/* " (in use by 12, 34)" for the message, "" when unknown. */
static void name_holders(const char *dir, char *buf, size_t room)
{
        struct sheaf_mount mount;
        pid_t pids[HOLDERS_SHOWN];
        size_t n = 0;
        int found;

        *buf = '\0';
        if (sheaf_mounts_at(dir, &mount))
                return;
        found = sheaf_mounts_holders(&mount, pids, HOLDERS_SHOWN);
        sheaf_mount_clear(&mount);
        for (int i = 0; i < SHEAF_MIN(found, HOLDERS_SHOWN); i++)
                n += (size_t)snprintf(buf + n, room - n, "%s%d",
                        i ? ", " : "; used by process ", (int)pids[i]);
        if (found > HOLDERS_SHOWN)
                snprintf(buf + n, room - n, " and more");
}

static int explain(const struct cli *cli, const char *dir, int rc)
{
        char holders[256];

        switch (rc) {
        case -EBUSY:
                name_holders(dir, holders, sizeof(holders));
                return cli_fail(cli, CLI_FAILED, EBUSY,
                        "'%s' is in use%s; end them, or use --lazy", dir,
                        holders);
        case -ENOENT:
                return cli_fail(cli, CLI_NOT_FOUND, ENOENT,
                        "'%s' is not a mount of Sheaf", dir);
        default:
                return cli_fail(cli, CLI_OK, -rc, "cannot unmount '%s': %s",
                        dir, strerror(-rc));
        }
}

static int run(struct cli *cli)
{
        sheaf_autofree char *dir = NULL;
        int rc = sheaf_mounts_absolute(cli->args[0], &dir);

        if (rc)
                return explain(cli, cli->args[0], rc);
        rc = sheaf_mounts_unmount(dir, cli_flag(cli, "lazy"));
        if (rc)
                return explain(cli, dir, rc);
        if (cli->json) {
                json_t *o = json_object();

                cli_json_path(o, "unmounted", dir, strlen(dir));
                cli_json_print(o);
        }
        return CLI_OK;
}

static const struct cli_option options[] = {
        { "lazy", NULL, false, "vanish now, end when the last user is done" },
        { 0 },
};

const struct cli_verb cli_verb_umount = {
        .name = "umount",
        .args = "DIR",
        .brief = "end a mount",
        .examples = "sheaf umount /mnt/imagenet\n"
                    "sheaf umount --lazy /mnt/imagenet",
        .options = options,
        .args_min = 1,
        .args_max = 1,
        .run = run,
};
