/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf mount: becomes sheaf-cachefs, the process that serves a mount.
 *
 *  1 the program beside this one is preferred, so that a build tree or an
 *    unpacked archive never runs another release's */
#include "tools/cli/cli.h"

#include <limits.h>
#include <stdio.h>

#ifndef SHEAF_LIBEXECDIR
#error "the build defines where sheaf-cachefs is installed"
#endif

#define PROGRAM  "sheaf-cachefs"
#define ARGS_MAX 16

/* The directory of this executable; false without /proc. */
static bool own_dir(char dir[PATH_MAX])
{
        ssize_t n = readlink("/proc/self/exe", dir, PATH_MAX - 1);
        char *slash;

        if (n <= 0)
                return false;
        dir[n] = '\0';
        slash = strrchr(dir, '/');
        if (!slash)
                return false;
        *slash = '\0';
        return true;
}

/* Runs the program from the first place that has it; returns on failure
 * only. */
static int exec_cachefs(char *const *argv)
{
        static const char *const beside[] = { "", "/../cachefs",
                "/../libexec/sheaf" };
        char dir[PATH_MAX], path[PATH_MAX + 64];

        if (own_dir(dir)) {
                for (size_t i = 0; i < SHEAF_ARRAY_LEN(beside); i++) {
                        snprintf(path, sizeof(path), "%s%s/" PROGRAM, dir,
                                beside[i]);
                        execv(path, argv);
                        if (errno != ENOENT && errno != ENOTDIR)
                                return -errno;
                }
        }
        execv(SHEAF_LIBEXECDIR "/" PROGRAM, argv);
        execvp(PROGRAM, argv);
        return -errno;
}

static int run(struct cli *cli)
{
        const char *mode = cli_value(cli, "mode");
        const char *argv[ARGS_MAX];
        size_t n = 0;
        int rc;

        if (cli->arg_count == 1 && !cli_flag(cli, "refresh"))
                return cli_usage(cli, "needs NAME DIR");
        argv[n++] = PROGRAM;
        if (cli->socket) {
                argv[n++] = "--socket";
                argv[n++] = cli->socket;
        }
        if (mode) {
                argv[n++] = "--mode";
                argv[n++] = mode;
        }
        if (cli_flag(cli, "allow-other"))
                argv[n++] = "--allow-other";
        if (cli_flag(cli, "foreground"))
                argv[n++] = "--foreground";
        if (cli_flag(cli, "refresh"))
                argv[n++] = "--refresh";
        argv[n++] = "--";
        for (size_t i = 0; i < cli->arg_count; i++)
                argv[n++] = cli->args[i];
        argv[n] = NULL;
        rc = exec_cachefs((char *const *)(uintptr_t)argv);
        return cli_fail(cli, CLI_MOUNT_FAILED, -rc,
                "cannot run " PROGRAM ": %s; it is part of Sheaf and belongs "
                "beside this program",
                strerror(-rc));
}

static const struct cli_option options[] = {
        { "mode", "MODE", false, "auto, cached or passthrough" },
        { "allow-other", NULL, false,
                "other users too, as the dataset's share allows" },
        { "foreground", NULL, false, "stay in the foreground" },
        { "refresh", NULL, false, "move a mount to the newest version" },
        { 0 },
};

const struct cli_verb cli_verb_mount = {
        .name = "mount",
        .args = "NAME DIR",
        .brief = "show a dataset as files, read-only",
        .details = "A mount shows one version until --refresh.\n",
        .examples = "sheaf mount imagenet /mnt/imagenet\n"
                    "sheaf mount --refresh imagenet /mnt/imagenet\n"
                    "sheaf umount /mnt/imagenet",
        .options = options,
        .args_min = 1,
        .args_max = 2,
        .run = run,
};
