/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf mount: becomes sheaf-cachefs, the process that serves a mount.
 *
 *  1 the program beside this one is preferred, so that a build tree or an
 *    unpacked archive never runs another release's
 *  2 a refresh takes the old mount away after a new one has answered, in its
 *    place or, without the right to move mounts, in another; the old one lives
 *    on for those who use it */
#include "cachefs/mounts.h"
#include "proto/memfd.h"
#include "tools/cli/conn.h"
#include "tools/cli/out.h"
#include "tools/cli/refresh.h"

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

static void tell(const struct cli *cli, const char *name, const char *dir)
{
        sheaf_autofree char *path = NULL;
        json_t *o;

        if (!cli->json)
                return;
        if (sheaf_mounts_absolute(dir, &path))
                path = NULL;
        o = json_object();
        cli_json_text(o, "dataset", name, strlen(name));
        cli_json_path(
                o, "mounted", path ? path : dir, strlen(path ? path : dir));
        cli_json_print(o);
}

/* With --json somebody must be left to print the object. */
static int run_and_tell(const struct cli *cli, const char **argv,
        const char *name, const char *dir)
{
        sheaf_autofd int words_fd =
                cli_flag(cli, "foreground") ? -1 : sheaf_memfd("words", 0);
        char cause[4200];
        pid_t pid = fork();
        int status;

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
                        WIFEXITED(status) &&
                                        WEXITSTATUS(status) == CLI_NOT_FOUND
                                ? ENOENT
                                : EIO,
                        "%s", cause);
        tell(cli, name, dir);
        return CLI_OK;
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

/* What the mount process is told. */
struct plan {
        const char *name, *dir, *mode, *version;
        bool allow_other, foreground, replace, swap;
};

static void fill_argv(const struct cli *cli, const struct plan *plan,
        const char *argv[ARGS_MAX])
{
        size_t n = 0;

        argv[n++] = PROGRAM;
        if (cli->socket) {
                argv[n++] = "--socket";
                argv[n++] = cli->socket;
        }
        if (plan->mode && *plan->mode) {
                argv[n++] = "--mode";
                argv[n++] = plan->mode;
        }
        if (plan->version) {
                argv[n++] = "--version";
                argv[n++] = plan->version;
        }
        if (plan->foreground)
                argv[n++] = "--foreground";
        if (plan->allow_other)
                argv[n++] = "--allow-other";
        if (plan->replace)
                argv[n++] = "--replace";
        if (plan->swap)
                argv[n++] = "--swap";
        argv[n++] = "--";
        argv[n++] = plan->name;
        argv[n++] = plan->dir;
        argv[n] = NULL;
}

static int mount_plan(const struct cli *cli, const struct plan *plan)
{
        const char *argv[ARGS_MAX];

        fill_argv(cli, plan, argv);
        if (cli->json && !plan->foreground)
                return run_and_tell(cli, argv, plan->name, plan->dir);
        return become(cli, argv);
}

/* The same in a child, which says on stderr what fails. 0 or an exit code. */
static int mount_quietly(const struct cli *cli, const struct plan *plan)
{
        struct cli child = *cli;
        const char *argv[ARGS_MAX];
        int status;
        pid_t pid;

        child.json = false;
        fill_argv(&child, plan, argv);
        pid = fork();
        if (pid == 0)
                _exit(become(&child, argv));
        while (pid > 0 && waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return CLI_MOUNT_FAILED;
        return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status)
                                            : CLI_MOUNT_FAILED;
}

/* Whether what is planned can be mounted at all: in a directory of its own,
 * and away again. 0 or an exit code. */
static int try_out(const struct cli *cli, const struct plan *plan)
{
        const char *runtime = getenv("XDG_RUNTIME_DIR");
        sheaf_autofree char *dir = NULL;
        struct plan trial = *plan;
        int rc = -ENOENT;

        if (runtime && *runtime)
                rc = sheaf_mounts_stage(runtime, &dir);
        if (rc)
                rc = sheaf_mounts_stage("/tmp", &dir);
        if (rc)
                return cli_exit_of(-rc);
        trial.dir = dir;
        trial.foreground = false;
        rc = mount_quietly(cli, &trial);
        if (!rc && sheaf_mounts_unmount(dir, true))
                rc = CLI_MOUNT_FAILED;
        rmdir(dir);
        return rc;
}

static bool still_shows(const struct cli_old_mount *old)
{
        struct sheaf_mount mount;
        bool ours;

        if (sheaf_mounts_at(old->dir, &mount))
                return false;
        ours = sheaf_mount_is_ours(&mount);
        sheaf_mount_clear(&mount);
        return ours;
}

/* Without the right to move mounts: tried out elsewhere, then a process that
 * has all but the mount takes the old one away and mounts. */
static int swap(const struct cli *cli, const struct plan *plan,
        const struct cli_old_mount *old)
{
        struct plan next = *plan, back = *plan;
        int rc = try_out(cli, plan);

        if (rc)
                return cli_fail(cli, rc, EIO,
                        "the new mount failed; the old one at '%s' stays",
                        plan->dir);
        next.swap = true;
        if (plan->foreground)
                return mount_plan(cli, &next);
        rc = mount_quietly(cli, &next);
        if (!rc) {
                tell(cli, plan->name, plan->dir);
                return CLI_OK;
        }
        if (still_shows(old))
                return cli_fail(cli, rc, EIO,
                        "the new mount failed; the old one at '%s' stays",
                        plan->dir);
        back.version = *old->version ? old->version : NULL;
        back.mode = old->mode;
        back.allow_other = old->allow_other;
        if (mount_quietly(cli, &back))
                return cli_fail(cli, rc, EIO,
                        "the new mount failed, and the old one, which is gone "
                        "from '%s', could not be mounted again",
                        plan->dir);
        return cli_fail(cli, rc, EIO,
                "the new mount failed; '%s' shows the old version again",
                plan->dir);
}

static int refresh(const struct cli *cli, struct plan *plan)
{
        __attribute__((
                cleanup(cli_old_mount_clear))) struct cli_old_mount old = { 0 };
        int rc = cli_old_mount_look(cli, plan->name, plan->dir, &old);

        if (!rc)
                rc = check_dataset(cli, old.dataset);
        if (rc)
                return rc;
        plan->name = old.dataset;
        plan->dir = old.dir;
        plan->allow_other |= old.allow_other;
        if (!plan->mode)
                plan->mode = old.mode;
        if (!sheaf_mounts_can_move())
                return swap(cli, plan, &old);
        plan->replace = true;
        return mount_plan(cli, plan);
}

static int run(struct cli *cli)
{
        sheaf_autofree char *path = NULL;
        struct plan plan = { .dir = cli->args[cli->arg_count - 1],
                .name = cli->arg_count > 1 ? cli->args[0] : NULL,
                .mode = cli_value(cli, "mode"),
                .version = cli_value(cli, "version"),
                .allow_other = cli_flag(cli, "allow-other"),
                .foreground = cli_flag(cli, "foreground") };

        if (cli_flag(cli, "refresh"))
                return refresh(cli, &plan);
        if (!plan.name)
                return cli_usage(cli, "needs NAME DIR");
        /* A refresh finds the process by this. */
        if (!sheaf_mounts_absolute(plan.dir, &path))
                plan.dir = path;
        return mount_plan(cli, &plan);
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
                   "theirs even then.\n"
                   "DIR/.sheaf/jobs/JOB/EPOCH/, which no listing shows, has "
                   "each sample of an\nepoch once: links in the order that "
                   "the daemon gives the job.\n",
        .examples = "sheaf mount imagenet /mnt/imagenet\n"
                    "sheaf mount --refresh /mnt/imagenet\n"
                    "sheaf umount /mnt/imagenet",
        .options = options,
        .args_min = 1,
        .args_max = 2,
        .run = run,
};
