/* SPDX-License-Identifier: Apache-2.0 */
/* Mounts of Sheaf, from /proc/self/mountinfo.
 *
 *  1 only mounts of type fuse.sheaf are ever unmounted
 *  2 what is asked of a mount's files is asked without a request to its
 *    process (AT_STATX_DONT_SYNC); only sheaf_mounts_dead makes one, since
 *    a dead mount still answers from the kernel's caches */
#include "cachefs/mounts.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#define SOURCE_PREFIX "sheaf:"
#define PAUSE_MS_MAX  2560 /* of doubling ones: some 5 s together */

#ifndef MOVE_MOUNT_BENEATH
#define MOVE_MOUNT_BENEATH 0x200 /* Linux 6.5 */
#endif

/* Undoes mountinfo's octal escapes in place. */
static void unescape(char *text)
{
        char *out = text;

        for (; *text; text++) {
                if (text[0] == '\\' && text[1] >= '0' && text[1] <= '3' &&
                        text[2] >= '0' && text[2] <= '7' && text[3] >= '0' &&
                        text[3] <= '7') {
                        *out++ = (char)((text[1] - '0') << 6 |
                                        (text[2] - '0') << 3 | (text[3] - '0'));
                        text += 3;
                } else {
                        *out++ = *text;
                }
        }
        *out = '\0';
}

void sheaf_mount_clear(struct sheaf_mount *mount)
{
        free(mount->dir);
        free(mount->dataset);
        free(mount->type);
        memset(mount, 0, sizeof(*mount));
}

/* Splits one line of mountinfo, which is changed. 0; -EBADMSG; -ENOMEM. */
static int parse_line(char *line, struct sheaf_mount *ret_mount)
{
        struct sheaf_mount out = { 0 };
        char *field[6] = { 0 }, *rest = line, *type, *source;

        line[strcspn(line, "\n")] = '\0';
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(field); i++) {
                field[i] = strsep(&rest, " ");
                if (!field[i] || !rest)
                        return -EBADMSG;
        }
        if (sscanf(field[0], "%u", &out.id) != 1 ||
                sscanf(field[2], "%u:%u", &out.dev_major, &out.dev_minor) != 2)
                return -EBADMSG;
        /* optional fields end at "-" */
        do {
                type = strsep(&rest, " ");
                if (!type || !rest)
                        return -EBADMSG;
        } while (strcmp(type, "-"));
        type = strsep(&rest, " ");
        source = strsep(&rest, " ");
        if (!type || !source)
                return -EBADMSG;
        unescape(field[4]);
        unescape(source);
        if (strncmp(source, SOURCE_PREFIX, strlen(SOURCE_PREFIX)))
                source += strlen(source);
        else
                source += strlen(SOURCE_PREFIX);
        out.dir = strdup(field[4]);
        out.type = strdup(type);
        out.dataset = strdup(source);
        if (!out.dir || !out.type || !out.dataset) {
                sheaf_mount_clear(&out);
                return -ENOMEM;
        }
        *ret_mount = out;
        return 0;
}

/* Calls @visit for each mount, which takes over what it returns 1 for. */
static int for_each(
        int (*visit)(void *arg, struct sheaf_mount *mount), void *arg)
{
        FILE *file = fopen("/proc/self/mountinfo", "re");
        sheaf_autofree char *line = NULL;
        size_t cap = 0;
        int rc = 0;

        if (!file)
                return -errno;
        while (rc >= 0 && getline(&line, &cap, file) > 0) {
                struct sheaf_mount mount;

                rc = parse_line(line, &mount);
                if (rc == -EBADMSG) {
                        rc = 0;
                        continue;
                }
                if (rc < 0)
                        break;
                rc = visit(arg, &mount);
                if (rc <= 0)
                        sheaf_mount_clear(&mount);
        }
        fclose(file);
        return rc < 0 ? rc : 0;
}

void sheaf_mount_list_free(struct sheaf_mount_list *list)
{
        for (size_t i = 0; i < list->count; i++)
                sheaf_mount_clear(&list->mount[i]);
        free(list->mount);
        memset(list, 0, sizeof(*list));
}

static int take_ours(void *arg, struct sheaf_mount *mount)
{
        struct sheaf_mount_list *list = arg;
        struct sheaf_mount *grown;

        if (!sheaf_mount_is_ours(mount))
                return 0;
        grown = realloc(list->mount, (list->count + 1) * sizeof(*grown));
        if (!grown)
                return -ENOMEM;
        list->mount = grown;
        list->mount[list->count++] = *mount;
        return 1;
}

int sheaf_mounts_list(struct sheaf_mount_list *ret_list)
{
        struct sheaf_mount_list out = { 0 };
        int rc = for_each(take_ours, &out);

        if (rc < 0) {
                sheaf_mount_list_free(&out);
                return rc;
        }
        *ret_list = out;
        return 0;
}

struct at_search {
        const char *dir;
        struct sheaf_mount found;
};

/* Mounts stack: the last one listed is on top. */
static int take_at(void *arg, struct sheaf_mount *mount)
{
        struct at_search *search = arg;

        if (strcmp(mount->dir, search->dir))
                return 0;
        sheaf_mount_clear(&search->found);
        search->found = *mount;
        return 1;
}

int sheaf_mounts_at(const char *dir, struct sheaf_mount *ret_mount)
{
        struct at_search search = { .dir = dir };
        int rc = for_each(take_at, &search);

        if (!rc && !search.found.dir)
                rc = -ENOENT;
        if (rc < 0) {
                sheaf_mount_clear(&search.found);
                return rc;
        }
        *ret_mount = search.found;
        return 0;
}

int sheaf_mounts_absolute(const char *path, char **ret_path)
{
        sheaf_autofree char *copy = NULL, *parent = NULL;
        char *slash, *out;
        size_t len;

        out = realpath(path, NULL);
        if (out) {
                *ret_path = out;
                return 0;
        }
        if (errno != ENOTCONN && errno != EACCES)
                return -errno;
        /* what is mounted at the last component is dead or not ours to see:
         * resolve up to there */
        copy = strdup(path);
        if (!copy)
                return -ENOMEM;
        for (len = strlen(copy); len > 1 && copy[len - 1] == '/';)
                copy[--len] = '\0';
        slash = strrchr(copy, '/');
        if (slash)
                *slash = '\0';
        parent = realpath(!slash ? "." : slash == copy ? "/" : copy, NULL);
        if (!parent)
                return -errno;
        if (asprintf(&out, "%s/%s", strcmp(parent, "/") ? parent : "",
                    slash ? slash + 1 : copy) < 0)
                return -ENOMEM;
        *ret_path = out;
        return 0;
}

int sheaf_mounts_dead(const char *dir)
{
        struct statfs info;

        if (!statfs(dir, &info))
                return 0;
        return errno == ENOTCONN || errno == ECONNABORTED ? 1 : -errno;
}

/* Runs fusermount3, which may do what its caller may not. */
static int run_fusermount(const char *dir, bool lazy)
{
        char *argv[] = { (char *)(uintptr_t) "fusermount3",
                (char *)(uintptr_t)(lazy ? "-uz" : "-u"),
                (char *)(uintptr_t) "--", (char *)(uintptr_t)dir, NULL };
        char text[512];
        ssize_t n, len = 0;
        int pipe_fd[2], status;
        pid_t pid;

        if (pipe2(pipe_fd, O_CLOEXEC))
                return -errno;
        pid = fork();
        if (pid < 0) {
                int saved = errno;

                close(pipe_fd[0]);
                close(pipe_fd[1]);
                return -saved;
        }
        if (!pid) {
                setenv("LC_ALL", "C", 1);
                dup2(pipe_fd[1], STDERR_FILENO);
                execvp(argv[0], argv);
                _exit(127);
        }
        close(pipe_fd[1]);
        while ((n = read(pipe_fd[0], text + len,
                        sizeof(text) - 1 - (size_t)len)) > 0)
                len += n;
        text[len] = '\0';
        close(pipe_fd[0]);
        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return -errno;
        if (WIFEXITED(status) && !WEXITSTATUS(status))
                return 0;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
                return -ENOPKG;
        return strstr(text, "busy") ? -EBUSY : -EPERM;
}

bool sheaf_mounts_can_move(void)
{
        /* The right is asked for before the arguments are looked at. */
        return move_mount(-1, "", -1, "", 0) && errno != EPERM &&
               errno != ENOSYS;
}

/* A second mount of what is at @dir, in no place yet: what lies below a
 * shared mount, as all does under systemd, cannot itself be moved. */
static int clone_mount(const char *dir)
{
        int fd = open_tree(AT_FDCWD, dir,
                OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW);

        return fd < 0 ? -errno : fd;
}

static int attach(int tree_fd, const char *dir, unsigned int flags)
{
        return move_mount(tree_fd, "", AT_FDCWD, dir,
                       MOVE_MOUNT_F_EMPTY_PATH | flags)
                       ? -errno
                       : 0;
}

int sheaf_mounts_replace(const char *from, const char *dir)
{
        sheaf_autofd int fresh_fd = clone_mount(from);
        sheaf_autofd int old_fd = -1;
        struct sheaf_mount mount;
        bool ours, beneath;
        int rc = sheaf_mounts_at(dir, &mount);

        if (rc)
                return rc;
        ours = sheaf_mount_is_ours(&mount);
        sheaf_mount_clear(&mount);
        if (!ours)
                return -ENOENT;
        if (fresh_fd < 0)
                return fresh_fd;
        beneath = !attach(fresh_fd, dir, MOVE_MOUNT_BENEATH);
        if (!beneath) {
                old_fd = clone_mount(dir);
                if (old_fd < 0)
                        return old_fd;
        }
        if (umount2(dir, UMOUNT_NOFOLLOW | MNT_DETACH))
                return -errno;
        rc = beneath ? 0 : attach(fresh_fd, dir, 0);
        if (rc) {
                int back = attach(old_fd, dir, 0);

                return back ? back : rc;
        }
        /* In its place it is; should this fail, that was no failure. */
        umount2(from, UMOUNT_NOFOLLOW | MNT_DETACH);
        return 0;
}

/* What a process that was killed amid a refresh left below @parent. */
static void sweep_stages(const char *parent)
{
        DIR *dir = opendir(parent);
        struct dirent *entry;
        char path[PATH_MAX];
        int pid;

        while (dir && (entry = readdir(dir))) {
                if (sscanf(entry->d_name, "sheaf-mount.%d.", &pid) != 1 ||
                        pid <= 0 || !kill(pid, 0) || errno != ESRCH)
                        continue;
                snprintf(path, sizeof(path), "%s/%s", parent, entry->d_name);
                /* Not mounted, or another's: rmdir decides. */
                (void)!sheaf_mounts_unmount(path, true);
                rmdir(path);
        }
        if (dir)
                closedir(dir);
}

int sheaf_mounts_stage(const char *parent, char **ret_dir)
{
        char path[PATH_MAX];

        sweep_stages(parent);
        snprintf(path, sizeof(path), "%s/sheaf-mount.%d.XXXXXX", parent,
                (int)getpid());
        if (!mkdtemp(path))
                return -errno;
        *ret_dir = strdup(path);
        if (*ret_dir)
                return 0;
        rmdir(path);
        return -ENOMEM;
}

int sheaf_mounts_detach_dead(const char *dir)
{
        int count = 0;

        for (;;) {
                struct sheaf_mount mount;
                bool ours;
                int rc = sheaf_mounts_at(dir, &mount);

                if (rc == -ENOENT)
                        return count;
                if (rc < 0)
                        return rc;
                ours = sheaf_mount_is_ours(&mount);
                sheaf_mount_clear(&mount);
                if (!ours || sheaf_mounts_dead(dir) != 1)
                        return count;
                rc = sheaf_mounts_unmount(dir, true);
                if (rc < 0)
                        return rc;
                count++;
        }
}

/* True when the link @name beneath @dir_fd leads into the mount. */
static bool leads_in(
        int dir_fd, const char *name, const struct sheaf_mount *mount)
{
        struct statx info;

        return !statx(dir_fd, name, AT_STATX_DONT_SYNC, 0, &info) &&
               info.stx_dev_major == mount->dev_major &&
               info.stx_dev_minor == mount->dev_minor;
}

static bool has_open_file(int proc_fd, const struct sheaf_mount *mount)
{
        int fd = openat(proc_fd, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        struct dirent *entry;
        bool found = false;
        DIR *dir;

        if (fd < 0)
                return false;
        dir = fdopendir(fd);
        if (!dir) {
                close(fd);
                return false;
        }
        while (!found && (entry = readdir(dir)))
                if (entry->d_name[0] != '.')
                        found = leads_in(fd, entry->d_name, mount);
        closedir(dir);
        return found;
}

static bool has_mapping(int proc_fd, const struct sheaf_mount *mount)
{
        int fd = openat(proc_fd, "maps", O_RDONLY | O_CLOEXEC);
        sheaf_autofree char *line = NULL;
        unsigned int dev_major, dev_minor;
        bool found = false;
        size_t cap = 0;
        FILE *file;

        if (fd < 0)
                return false;
        file = fdopen(fd, "r");
        if (!file) {
                close(fd);
                return false;
        }
        while (!found && getline(&line, &cap, file) > 0)
                found = sscanf(line, "%*s %*s %*s %x:%x", &dev_major,
                                &dev_minor) == 2 &&
                        dev_major == mount->dev_major &&
                        dev_minor == mount->dev_minor;
        fclose(file);
        return found;
}

int sheaf_mounts_holders(
        const struct sheaf_mount *mount, pid_t *pids, size_t cap)
{
        DIR *proc = opendir("/proc");
        struct dirent *entry;
        int count = 0;

        if (!proc)
                return -errno;
        while ((entry = readdir(proc))) {
                sheaf_autofd int fd = -1;

                if (!isdigit((unsigned char)entry->d_name[0]))
                        continue;
                fd = openat(dirfd(proc), entry->d_name,
                        O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                if (fd < 0)
                        continue;
                if (!leads_in(fd, "cwd", mount) &&
                        !leads_in(fd, "root", mount) &&
                        !leads_in(fd, "exe", mount) &&
                        !has_open_file(fd, mount) && !has_mapping(fd, mount))
                        continue;
                if ((size_t)count < cap)
                        pids[count] = (pid_t)strtol(entry->d_name, NULL, 10);
                count++;
        }
        closedir(proc);
        return count;
}

static int unmount_once(const char *dir, bool lazy)
{
        if (!umount2(dir, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)))
                return 0;
        if (errno != EPERM)
                return -errno;
        return run_fusermount(dir, lazy);
}

/* Also busy is a mount that somebody only looks at (a path that is walked, a
 * file of a process that has just ended). Such a one has no holder, and is
 * soon free. */
int sheaf_mounts_unmount(const char *dir, bool lazy)
{
        struct sheaf_mount mount;
        int rc = sheaf_mounts_at(dir, &mount);

        if (rc < 0)
                return rc;
        rc = sheaf_mount_is_ours(&mount) ? unmount_once(dir, lazy) : -ENOENT;
        for (unsigned int ms = 20; rc == -EBUSY && ms <= PAUSE_MS_MAX;
                ms *= 2) {
                if (sheaf_mounts_holders(&mount, NULL, 0))
                        break;
                poll(NULL, 0, (int)ms);
                rc = unmount_once(dir, lazy);
        }
        sheaf_mount_clear(&mount);
        return rc;
}
