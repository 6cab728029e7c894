/* SPDX-License-Identifier: Apache-2.0 */
/* Reader processes: start, kill, reap.
 *
 *  1 each process has buffers of its own, so a killed one that still lives
 *    writes into nothing that its successor uses
 *  2 the memfd cannot be resized: no access to it by the daemon can fail
 *  3 the child gets three descriptors and no environment but what its
 *    sanitizer and its faults need (an owner can read it)
 *
 * Threads: loop thread only. */
#include "daemon/origin/origin_impl.h"
#include "daemon/origin/reader.h"
#include "proto/memfd.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define BUFFER_BYTES (SHEAF_ORIGIN_SLOTS * SHEAF_CHUNK_BYTES_MAX)
#define KEPT_MAX     8

extern char **environ;

/* @root: "SHEAF_READER_ROOT=path", or NULL when the descriptor is enough. */
static void keep_environment(char *kept[KEPT_MAX], char *root)
{
        static const char *const names[] = { "SHEAF_FAULT_ORIGIN=",
                "SHEAF_FAULT_WHILE=", "ASAN_OPTIONS=", "TSAN_OPTIONS=",
                "UBSAN_OPTIONS=", "LSAN_OPTIONS=" };
        size_t count = 0;

        for (char **var = environ; var && *var; var++) {
                for (size_t i = 0; i < SHEAF_ARRAY_LEN(names); i++) {
                        if (!strncmp(*var, names[i], strlen(names[i])) &&
                                count < KEPT_MAX - 2)
                                kept[count++] = *var;
                }
        }
        if (root)
                kept[count++] = root;
        kept[count] = NULL;
}

static char *groups_text(const struct sheaf_origin *origin)
{
        size_t cap = origin->config.group_count * 11 + 1, len = 0;
        char *text = malloc(cap);

        if (!text)
                return NULL;
        *text = 0;
        for (size_t i = 0; i < origin->config.group_count; i++)
                len += (size_t)snprintf(text + len, cap - len, "%s%u",
                        i ? "," : "", origin->groups[i]);
        return text;
}

/* dup2 onto the fixed numbers must not hit a source that is still needed. */
static int lift(int fd)
{
        int high = fcntl(fd, F_DUPFD_CLOEXEC, 16);

        return high < 0 ? -errno : high;
}

static int prepare_child(posix_spawn_file_actions_t *actions,
        posix_spawnattr_t *attr, const int fds[3])
{
        sigset_t none, all;
        int rc = 0;

        sigemptyset(&none);
        sigfillset(&all);
        for (int i = 0; i < 3 && !rc; i++)
                rc = posix_spawn_file_actions_adddup2(
                        actions, fds[i], SHEAF_READER_FD_SOCK + i);
        if (!rc)
                rc = posix_spawn_file_actions_addopen(
                        actions, 0, "/dev/null", O_RDONLY, 0);
        if (!rc)
                rc = posix_spawn_file_actions_adddup2(actions, 2, 1);
        if (!rc)
                rc = posix_spawn_file_actions_addclosefrom_np(
                        actions, SHEAF_READER_FD_END);
        if (!rc)
                rc = posix_spawnattr_setsigmask(attr, &none);
        if (!rc)
                rc = posix_spawnattr_setsigdefault(attr, &all);
        /* A session of its own: keys at the daemon's terminal are not meant
         * for it. */
        if (!rc)
                rc = posix_spawnattr_setflags(
                        attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                      POSIX_SPAWN_SETSID);
        return -rc;
}

static int start(
        const struct sheaf_origin *origin, const int fds[3], pid_t *ret_pid)
{
        sheaf_autofree char *groups = groups_text(origin);
        sheaf_autofree char *root = NULL;
        char program[] = "sheaf-reader";
        char threads[16], uid[16], gid[16], *kept[KEPT_MAX];
        char *argv[6] = { program, threads };
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attr;
        int rc;

        if (!groups)
                return -ENOMEM;
        if (origin->root_path && asprintf(&root, SHEAF_READER_ROOT_ENV "=%s",
                                         origin->root_path) < 0)
                return -ENOMEM;
        snprintf(threads, sizeof(threads), "%d", origin->config.threads);
        snprintf(uid, sizeof(uid), "%u", origin->config.uid);
        snprintf(gid, sizeof(gid), "%u", origin->config.gid);
        if (origin->config.switch_user) {
                argv[2] = uid;
                argv[3] = gid;
                argv[4] = groups;
        }
        keep_environment(kept, root);
        rc = -posix_spawn_file_actions_init(&actions);
        if (rc)
                return rc;
        rc = -posix_spawnattr_init(&attr);
        if (rc) {
                posix_spawn_file_actions_destroy(&actions);
                return rc;
        }
        rc = prepare_child(&actions, &attr, fds);
        if (!rc)
                rc = -posix_spawn(ret_pid, origin->reader_path, &actions, &attr,
                        argv, kept);
        posix_spawnattr_destroy(&attr);
        posix_spawn_file_actions_destroy(&actions);
        return rc;
}

static int make_buffers(int *ret_memfd, char **ret_buffers)
{
        sheaf_autofd int memfd =
                sheaf_memfd("sheaf-reader-buffers", MFD_ALLOW_SEALING);
        void *buffers;

        if (memfd < 0)
                return memfd;
        if (ftruncate(memfd, (off_t)BUFFER_BYTES) ||
                fcntl(memfd, F_ADD_SEALS,
                        F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
                return -errno;
        buffers = mmap(NULL, BUFFER_BYTES, PROT_READ, MAP_SHARED, memfd, 0);
        if (buffers == MAP_FAILED)
                return -errno;
        *ret_memfd = sheaf_steal_fd(&memfd);
        *ret_buffers = buffers;
        return 0;
}

/* Fills process, socket and buffers of @reader; what it made stays in it. */
static int make_process(
        struct sheaf_origin *origin, struct sheaf_reader *reader)
{
        sheaf_autofd int memfd = -1;
        sheaf_autofd int child = -1;
        sheaf_autofd int high_child = -1;
        sheaf_autofd int high_memfd = -1;
        sheaf_autofd int high_root = -1;
        int pair[2], rc = make_buffers(&memfd, &reader->buffers);

        if (rc)
                return rc;
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
                return -errno;
        reader->sock = pair[0];
        child = pair[1];
        if (fcntl(reader->sock, F_SETFL, O_NONBLOCK))
                return -errno;
        high_child = lift(child);
        high_memfd = lift(memfd);
        high_root = lift(origin->config.root_fd);
        if (high_child < 0 || high_memfd < 0 || high_root < 0)
                return -EMFILE;

        const int fds[3] = { high_child, high_memfd, high_root };

        rc = start(origin, fds, &reader->pid);
        if (rc)
                return rc;
        reader->pidfd = pidfd_open(reader->pid, 0);
        if (reader->pidfd >= 0)
                return 0;
        rc = -errno;
        kill(reader->pid, SIGKILL);
        waitpid(reader->pid, NULL, 0);
        return rc;
}

static void on_sock(uv_poll_t *poll, int status, int events)
{
        (void)status;
        (void)events;
        sheaf_origin_on_socket(poll->data);
}

static void on_pid(uv_poll_t *poll, int status, int events)
{
        struct sheaf_reader *reader = poll->data;
        siginfo_t info = { 0 };

        (void)status;
        (void)events;
        if (waitid(P_PIDFD, (id_t)reader->pidfd, &info, WEXITED | WNOHANG) &&
                errno != ECHILD)
                return;
        reader->exited = true;
        reader->shot = info.si_code == CLD_KILLED && info.si_status == SIGKILL;
        sheaf_origin_reader_exited(reader);
}

void sheaf_reader_want_write(struct sheaf_reader *reader, bool want)
{
        if (reader->blocked == want)
                return;
        reader->blocked = want;
        uv_poll_start(&reader->sock_poll,
                UV_READABLE | (want ? UV_WRITABLE : 0), on_sock);
}

static void discard(struct sheaf_reader *reader)
{
        if (reader->buffers)
                munmap(reader->buffers, BUFFER_BYTES);
        sheaf_close_p(&reader->sock);
        sheaf_close_p(&reader->pidfd);
        free(reader);
}

int sheaf_reader_spawn(struct sheaf_origin *origin)
{
        struct sheaf_reader *reader = sheaf_new(struct sheaf_reader, 1);
        int rc;

        if (!reader)
                return -ENOMEM;
        reader->sock = reader->pidfd = -1;
        rc = make_process(origin, reader);
        if (rc) {
                discard(reader);
                return rc;
        }
        /* These fail only when epoll refuses the descriptor. */
        if (uv_poll_init(
                    origin->config.loop, &reader->sock_poll, reader->sock) ||
                uv_poll_init(
                        origin->config.loop, &reader->pid_poll, reader->pidfd))
                abort();
        reader->open_handles = 2;
        reader->sock_poll.data = reader->pid_poll.data = reader;
        reader->origin = origin;
        uv_poll_start(&reader->sock_poll, UV_READABLE, on_sock);
        uv_poll_start(&reader->pid_poll, UV_READABLE, on_pid);
        uv_unref((uv_handle_t *)&reader->pid_poll);
        origin->reader = reader;
        origin->stats.starts++;
        return 0;
}

static void on_close(uv_handle_t *handle)
{
        struct sheaf_reader *reader = handle->data;

        if (handle == (uv_handle_t *)&reader->sock_poll)
                sheaf_close_p(&reader->sock);
        else
                sheaf_close_p(&reader->pidfd);
        if (!--reader->open_handles)
                sheaf_reader_settle(reader);
}

void sheaf_reader_kill(struct sheaf_reader *reader)
{
        if (reader->killed)
                return;
        reader->killed = true;
        reader->killed_ns = sheaf_now_ns();
        if (!reader->exited &&
                pidfd_send_signal(reader->pidfd, SIGKILL, NULL, 0) &&
                errno != ESRCH)
                sheaf_log_rc(-errno, SHEAF_LOG_ERROR, "reader-kill", "pid=%d",
                        reader->pid);
        uv_close((uv_handle_t *)&reader->sock_poll, on_close);
        /* A loop that ends waits for the process to be gone. */
        uv_ref((uv_handle_t *)&reader->pid_poll);
}

void sheaf_reader_settle(struct sheaf_reader *reader)
{
        if (!reader->killed || !reader->exited || reader->held)
                return;
        if (!uv_is_closing((uv_handle_t *)&reader->pid_poll)) {
                uv_close((uv_handle_t *)&reader->pid_poll, on_close);
                return;
        }
        if (!reader->open_handles)
                discard(reader);
}
