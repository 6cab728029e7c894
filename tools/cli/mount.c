/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf mount: becomes sheaf-cachefs, the process that serves a mount.
 *
 *  1 the program beside this one is preferred, so that a build tree or an
 *    unpacked archive never runs another release's
 *  2 a refresh asks the daemon for the dataset before it takes the old mount
 *    away, which lives on for those who use it */
#include "cachefs/mounts.h"
#include "tools/cli/conn.h"
#include "tools/cli/out.h"

#include <limits.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>

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

static int become(const struct cli *cli, const char **argv)
{
        int rc = exec_cachefs((char *const *)(uintptr_t)argv);

        return cli_fail(cli, CLI_MOUNT_FAILED, -rc,
                "cannot run " PROGRAM ": %s; it is part of Sheaf and belongs "
                "beside this program",
                strerror(-rc));
}

/* What the mount process said: goes to stderr, and its first line is the cause
 * that the object tells. A file, not a pipe: that process may live on. */
static void pass_on(int words_fd, const char *name, char *cause, size_t cap)
{
        char buf[4096];
        ssize_t n = words_fd < 0 ? 0 : pread(words_fd, buf, sizeof(buf) - 1, 0);
        size_t skip = strlen(PROGRAM ": ");

        snprintf(cause, cap, "'%s' could not be mounted", name);
        if (n <= 0)
                return;
        buf[n] = '\0';
        fputs(buf, stderr);
        buf[strcspn(buf, "\n")] = '\0';
        if (strncmp(buf, PROGRAM ": ", skip))
                skip = 0;
        snprintf(cause, cap, "'%s' could not be mounted: %s", name, buf + skip);
}

/* With --json somebody must be left to print the object. */
static int run_and_tell(const struct cli *cli, const char **argv,
        const char *name, const char *dir)
{
        sheaf_autofree char *path = NULL;
        sheaf_autofd int words_fd =
                cli_flag(cli, "foreground")
                        ? -1
                        : memfd_create("words", MFD_CLOEXEC);
        char cause[4200];
        pid_t pid = fork();
        int status;
        json_t *o;

        if (pid < 0)
                return cli_fail(cli, CLI_MOUNT_FAILED, errno, "fork: %s",
                        strerror(errno));
        if (pid == 0) {
                struct cli child = *cli;

                child.json = false;
                if (words_fd >= 0)
                        dup2(words_fd, STDERR_FILENO);
                _exit(become(&child, argv));
        }
        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return CLI_MOUNT_FAILED;
        pass_on(words_fd, name, cause, sizeof(cause));
        if (!WIFEXITED(status) || WEXITSTATUS(status))
                return cli_fail(cli,
                        WIFEXITED(status) ? WEXITSTATUS(status)
                                          : CLI_MOUNT_FAILED,
                        EIO, "%s", cause);
        if (sheaf_mounts_absolute(dir, &path))
                path = NULL;
        o = json_object();
        cli_json_text(o, "dataset", name, strlen(name));
        cli_json_path(
                o, "mounted", path ? path : dir, strlen(path ? path : dir));
        cli_json_print(o);
        return CLI_OK;
}

/* Whether the mount with this id lets other users in. */
static bool allows_other(unsigned int id)
{
        sheaf_autofree char *line = NULL;
        FILE *file = fopen("/proc/self/mountinfo", "re");
        unsigned int have;
        size_t room = 0;
        bool found = false;

        if (!file)
                return false;
        while (!found && getline(&line, &room, file) > 0) {
                const char *rest = strstr(line, " - ");

                found = sscanf(line, "%u ", &have) == 1 && have == id && rest &&
                        strstr(rest, "allow_other");
        }
        fclose(file);
        return found;
}

/* Fails unless the daemon still has the dataset. */
static int check_dataset(const struct cli *cli, const char *name)
{
        __attribute__((cleanup(cli_conn_free_p))) struct cli_conn *conn = NULL;
        Sheaf__ListDatasets body = SHEAF__LIST_DATASETS__INIT;
        int rc = cli_conn_open(cli, &conn);

        if (rc)
                return rc;
        body.name = (char *)(uintptr_t)name;
        CLI_REQUEST(env, LIST_DATASETS, list_datasets, &body);
        return cli_conn_call(conn, &env, NULL, 0, NULL, NULL);
}

/* Takes the mount at @dir away. @given: the name that it must show, or NULL.
 * @ret_name: what it shows, owned by the caller. */
static int take_away(const struct cli *cli, const char *given, const char *dir,
        char **ret_name, bool *ret_allow_other)
{
        sheaf_autofree char *path = NULL;
        sheaf_autofree char *name = NULL;
        struct sheaf_mount mount;
        bool ours, other;
        int rc = sheaf_mounts_absolute(dir, &path);

        if (!rc)
                rc = sheaf_mounts_at(path, &mount);
        if (rc)
                return cli_fail(cli, CLI_OK, -rc, "'%s' is not mounted: %s",
                        dir, strerror(-rc));
        ours = sheaf_mount_is_ours(&mount);
        other = allows_other(mount.id);
        name = strdup(mount.dataset);
        sheaf_mount_clear(&mount);
        if (!ours || !name)
                return cli_fail(cli, CLI_NOT_FOUND, ENOENT,
                        "'%s' is not a mount of Sheaf", dir);
        if (given && strcmp(given, name))
                return cli_fail(cli, CLI_FAILED, EINVAL,
                        "'%s' shows %s, not %s", dir, name, given);
        rc = check_dataset(cli, name);
        if (rc)
                return rc;
        rc = sheaf_mounts_unmount(path, true);
        if (rc)
                return cli_fail(cli, CLI_MOUNT_FAILED, -rc,
                        "cannot take the old mount at '%s' away: %s", dir,
                        strerror(-rc));
        *ret_name = sheaf_steal(&name);
        *ret_allow_other = other;
        return CLI_OK;
}

static size_t add_option(const struct cli *cli, const char **argv, size_t n,
        const char *name, const char *word)
{
        const char *value = cli_value(cli, name);

        if (!value)
                return n;
        argv[n++] = word;
        if (*value)
                argv[n++] = value;
        return n;
}

static int run(struct cli *cli)
{
        sheaf_autofree char *shown = NULL;
        const char *dir = cli->args[cli->arg_count - 1];
        const char *name = cli->arg_count > 1 ? cli->args[0] : NULL;
        const char *argv[ARGS_MAX] = { PROGRAM };
        bool allow_other = cli_flag(cli, "allow-other");
        size_t n = 1;

        if (cli_flag(cli, "refresh")) {
                bool before = false;
                int rc = take_away(cli, name, dir, &shown, &before);

                if (rc)
                        return rc;
                name = shown;
                allow_other |= before;
        } else if (!name) {
                return cli_usage(cli, "needs NAME DIR");
        }
        if (cli->socket) {
                argv[n++] = "--socket";
                argv[n++] = cli->socket;
        }
        n = add_option(cli, argv, n, "mode", "--mode");
        n = add_option(cli, argv, n, "version", "--version");
        n = add_option(cli, argv, n, "foreground", "--foreground");
        if (allow_other)
                argv[n++] = "--allow-other";
        argv[n++] = "--";
        argv[n++] = name;
        argv[n++] = dir;
        argv[n] = NULL;
        if (cli->json && !cli_flag(cli, "foreground"))
                return run_and_tell(cli, argv, name, dir);
        return become(cli, argv);
}

static const struct cli_option options[] = {
        { "mode", "MODE", false, "auto, small or shard (see the user guide)" },
        { "version", "UUID", false, "that version instead of the newest" },
        { "allow-other", NULL, false,
                "other users too, as the dataset's share allows" },
        { "foreground", NULL, false, "stay in the foreground" },
        { "refresh", NULL, false,
                "move the mount at DIR to the newest version" },
        { 0 },
};

const struct cli_verb cli_verb_mount = {
        .name = "mount",
        .args = "NAME DIR",
        .brief = "show a dataset as files, read-only",
        .details = "A mount shows one version until --refresh; open files keep "
                   "theirs even then.\n",
        .examples = "sheaf mount imagenet /mnt/imagenet\n"
                    "sheaf mount --refresh /mnt/imagenet\n"
                    "sheaf umount /mnt/imagenet",
        .options = options,
        .args_min = 1,
        .args_max = 2,
        .run = run,
};
