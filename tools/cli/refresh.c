/* SPDX-License-Identifier: Apache-2.0 */
/* The mount that a refresh replaces: name, mode, version, who may use it.
 *
 *  1 a mount may hang: its files are asked by a child that ends in time */
#include "tools/cli/refresh.h"

#include "cachefs/mounts.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#define PROGRAM     "sheaf-cachefs"
#define ANSWER_S    2
#define CMDLINE_MAX (4 * PATH_MAX)

void cli_old_mount_clear(struct cli_old_mount *old)
{
        free(old->dir);
        free(old->dataset);
        memset(old, 0, sizeof(*old));
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

/* @ret_text becomes "" when the mount does not tell. */
static void ask_version(const char *dir, char *ret_text, size_t cap)
{
        int pipe_fd[2], status;
        ssize_t n;
        pid_t pid;

        *ret_text = '\0';
        if (pipe2(pipe_fd, O_CLOEXEC))
                return;
        pid = fork();
        if (pid == 0) {
                char text[64];

                alarm(ANSWER_S);
                n = getxattr(dir, "user.sheaf.version", text, sizeof(text));
                _exit(n > 0 && write(pipe_fd[1], text, (size_t)n) == n ? 0 : 1);
        }
        close(pipe_fd[1]);
        n = pid < 0 ? 0 : read(pipe_fd[0], ret_text, cap - 1);
        ret_text[n > 0 ? n : 0] = '\0';
        close(pipe_fd[0]);
        while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
                ;
}

/* The mode in one process's arguments: true if it serves @dir. */
static bool mode_in(
        const char *text, size_t len, const char *dir, char *mode, size_t cap)
{
        const char *end = text + len, *last = text, *found = NULL;
        const char *slash = strrchr(text, '/');

        if (strcmp(slash ? slash + 1 : text, PROGRAM))
                return false;
        for (const char *word = text; word < end; word += strlen(word) + 1) {
                if (!strcmp(last, "--mode") && word != text)
                        found = word;
                last = word;
        }
        if (strcmp(last, dir))
                return false;
        snprintf(mode, cap, "%s", found ? found : "");
        return true;
}

/* Reads a file of a process; its length without the final NUL, or < 0. */
static ssize_t read_proc(
        const char *pid, const char *name, char *buf, size_t cap)
{
        char path[300];
        sheaf_autofd int fd = -1;
        ssize_t n;

        snprintf(path, sizeof(path), "/proc/%s/%s", pid, name);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        n = fd < 0 ? -1 : read(fd, buf, cap - 1);
        buf[n > 0 ? n : 0] = '\0';
        return n;
}

/* When a process began, in clock ticks since boot; 0: it is gone. */
static unsigned long long begun(const char *pid)
{
        char text[1024];
        unsigned long long ticks = 0;
        const char *rest;

        if (read_proc(pid, "stat", text, sizeof(text)) <= 0)
                return 0;
        rest = strrchr(text, ')');
        if (!rest ||
                sscanf(rest,
                        ") %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                        "%*s %*s %*s %*s %*s %*s %*s %llu",
                        &ticks) != 1)
                return 0;
        return ticks;
}

/* Those that an earlier refresh left to their last users name the same
 * directory: the youngest process is the one that shows there. */
static void find_mode(const char *dir, char *ret_mode, size_t cap)
{
        unsigned long long best = 0;
        DIR *proc = opendir("/proc");
        struct dirent *entry;

        *ret_mode = '\0';
        while (proc && (entry = readdir(proc))) {
                char text[CMDLINE_MAX], mode[16];
                unsigned long long ticks;
                ssize_t n;

                if (!isdigit((unsigned char)entry->d_name[0]))
                        continue;
                n = read_proc(entry->d_name, "cmdline", text, sizeof(text));
                if (n <= 0 ||
                        !mode_in(text, (size_t)n, dir, mode, sizeof(mode)))
                        continue;
                ticks = begun(entry->d_name);
                if (ticks < best)
                        continue;
                best = ticks;
                snprintf(ret_mode, cap, "%s", mode);
        }
        if (proc)
                closedir(proc);
}

int cli_old_mount_look(const struct cli *cli, const char *given,
        const char *dir, struct cli_old_mount *ret_old)
{
        sheaf_autofree char *path = NULL;
        struct cli_old_mount out = { 0 };
        struct sheaf_mount mount;
        int rc = sheaf_mounts_absolute(dir, &path);

        if (!rc)
                rc = sheaf_mounts_at(path, &mount);
        if (rc)
                return cli_fail(cli, CLI_OK, -rc, "'%s' is not mounted: %s",
                        dir, strerror(-rc));
        if (sheaf_mount_is_ours(&mount))
                out.dataset = strdup(mount.dataset);
        out.allow_other = allows_other(mount.id);
        sheaf_mount_clear(&mount);
        if (!out.dataset)
                return cli_fail(cli, CLI_NOT_FOUND, ENOENT,
                        "'%s' is not a mount of Sheaf", dir);
        if (given && strcmp(given, out.dataset)) {
                rc = cli_fail(cli, CLI_FAILED, EINVAL, "'%s' shows %s, not %s",
                        dir, out.dataset, given);
                cli_old_mount_clear(&out);
                return rc;
        }
        find_mode(path, out.mode, sizeof(out.mode));
        ask_version(path, out.version, sizeof(out.version));
        out.dir = sheaf_steal(&path);
        *ret_old = out;
        return CLI_OK;
}
