/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-reader: becomes the owner of an origin and serves the daemon.
 *
 *  1 before the first byte of the origin is touched the process has the
 *    owner's uid, gid and groups, no capabilities, and no way to new ones
 *  2 it ends when the daemon's socket hangs up or the daemon dies
 *
 * Threads: single until sheaf_reader_serve(). */
#include "daemon/origin/reader.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define GROUPS_MAX 65536

static _Noreturn void die(const char *what)
{
        fprintf(stderr, "sheaf-reader: %s: %s\n", what, strerror(errno));
        _exit(1);
}

static unsigned long number(const char *text)
{
        char *end;
        unsigned long value;

        errno = 0;
        value = strtoul(text, &end, 10);
        if (errno || end == text || *end || value > UINT32_MAX) {
                errno = EINVAL;
                die(text);
        }
        return value;
}

/* Parses "1,2,3" or "". */
static gid_t *parse_groups(char *text, size_t *ret_count)
{
        gid_t *groups = sheaf_new(gid_t, GROUPS_MAX);
        char *state = NULL;
        size_t count = 0;

        if (!groups)
                die("groups");
        for (char *word = strtok_r(text, ",", &state); word;
                word = strtok_r(NULL, ",", &state)) {
                if (count == GROUPS_MAX) {
                        errno = EINVAL;
                        die("groups");
                }
                groups[count++] = (gid_t)number(word);
        }
        *ret_count = count;
        return groups;
}

static void become(
        const char *uid_text, const char *gid_text, char *groups_text)
{
        uid_t uid = (uid_t)number(uid_text);
        gid_t gid = (gid_t)number(gid_text);
        size_t count;
        sheaf_autofree gid_t *groups = parse_groups(groups_text, &count);

        if (setgroups(count, groups))
                die("setgroups");
        if (setresgid(gid, gid, gid))
                die("setresgid");
        if (setresuid(uid, uid, uid))
                die("setresuid");
        if (uid && (!setuid(0) || !seteuid(0))) {
                errno = EPERM;
                die("root came back");
        }
}

static void drop_bounding_set(void)
{
        for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++) {
                /* Without CAP_SETPCAP there is nothing to gain from the set
                 * either: no new privileges can come. */
                if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) && errno != EPERM)
                        die("bounding set");
        }
}

static void drop_capabilities(void)
{
        struct __user_cap_header_struct header = {
                .version = _LINUX_CAPABILITY_VERSION_3,
        };
        struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = { 0 };

        if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) &&
                errno != EINVAL)
                die("ambient set");
        if (syscall(SYS_capset, &header, none))
                die("capset");
}

/* Opens the root by its path, with the owner's rights alone. Where that
 * fails every request does (the descriptor is no directory), and the daemon
 * tries again later. */
static void open_root(void)
{
        const char *path = getenv(SHEAF_READER_ROOT_ENV);
        int fd;

        if (!path)
                return;
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0) {
                fprintf(stderr, "sheaf-reader: %s: %s\n", path,
                        strerror(errno));
                return;
        }
        if (dup2(fd, SHEAF_READER_FD_ROOT) < 0)
                die("root");
        close(fd);
}

/* The daemon exchanges its log when that is full; a reader that went on
 * writing to the old one would keep its blocks. From here on all is said by
 * the socket, but for what a sanitizer finds. */
static void leave_log(void)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);

        if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0 ||
                dup2(fd, STDERR_FILENO) < 0)
                die("/dev/null");
        close(fd);
#endif
}

int main(int argc, char **argv)
{
        int threads;

        if (argc != 2 && argc != 5) {
                fprintf(stderr, "sheaf-reader is started by sheafd:\n"
                                "  sheaf-reader THREADS [UID GID GROUP,...]\n");
                return 2;
        }
        threads = (int)number(argv[1]);
        if (threads < 1 || threads > SHEAF_READER_THREADS_MAX) {
                errno = EINVAL;
                die("threads");
        }
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
                die("no_new_privs");
        drop_bounding_set();
        if (argc == 5)
                become(argv[2], argv[3], argv[4]);
        drop_capabilities();
        /* After the change of ids, which clears it. A daemon that died before
         * this line is noticed by its socket. */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0))
                die("death signal");
        signal(SIGPIPE, SIG_IGN);
        open_root();
        sheaf_fault_setup();
        leave_log();
        sheaf_reader_serve(threads);
}
