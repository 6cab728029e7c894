/* SPDX-License-Identifier: Apache-2.0 */
/* Ends of descriptors that might hang.
 *
 *  1 whether a descriptor is harmless is asked of the kernel, never of the
 *    file system
 *  2 a thread puts another file in the descriptor's place, which takes the
 *    stranger's out of the table before its end begins; the loop waits for
 *    that and no longer
 *  3 before descriptors are received there is room for a thread each; where
 *    there is none the kernel drops them, which flushes nothing
 *  4 a thread that cannot be had leaves the file open, and after a few of
 *    those none is received any more
 *  5 a wait that a signal can end is ended by one, after a millisecond
 *
 * Threads: one for each file; all else on the loop thread. */
#include "daemon/sift.h"

#include "daemon/aside.h"
#include "daemon/clock.h"
#include "daemon/log.h"
#include "proto/wire.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

#define LATE_MS  1000
#define LEFT_MAX 16
#define HURRY_NS SHEAF_NS_PER_MS

struct closing {
        struct sheaf_aside aside;
        int fd, pipe_fd;
        atomic_bool failed;
};

static size_t left; /* descriptors of invariant 4 */

static void on_alarm(int number)
{
        (void)number;
}

/* Of the calling thread; false: it must do without. */
static bool alarm_new(timer_t *ret_timer)
{
        struct sigaction action = { .sa_handler = on_alarm };
        struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID,
                .sigev_signo = SIGALRM };
        sigset_t set;

        event.sigev_notify_thread_id = gettid();
        sigemptyset(&set);
        sigaddset(&set, SIGALRM);
        return !sigaction(SIGALRM, &action, NULL) &&
               !pthread_sigmask(SIG_UNBLOCK, &set, NULL) &&
               !timer_create(CLOCK_MONOTONIC, &event, ret_timer);
}

/* Every millisecond: the first may come before the wait begins. */
static void hurry(bool on)
{
        static timer_t timer;
        static bool made, usable;
        struct itimerspec when = { 0 };

        if (!made)
                usable = alarm_new(&timer);
        made = true;
        if (on)
                when.it_value.tv_nsec = when.it_interval.tv_nsec = HURRY_NS;
        if (usable)
                timer_settime(timer, 0, &when, NULL);
}

void sheaf_sift_close(int sock)
{
        hurry(true);
        close(sock);
        hurry(false);
}

void sheaf_sift_drain(int sock)
{
        char waste[512];

        hurry(true);
        while (recv(sock, waste, sizeof(waste), MSG_DONTWAIT) > 0)
                ;
        hurry(false);
}

static bool is_pipe(int fd)
{
        return fcntl(fd, F_GETPIPE_SZ) > 0;
}

static int close_it(struct sheaf_aside *aside)
{
        struct closing *closing = (struct closing *)aside;

        if (dup3(closing->pipe_fd, closing->fd, O_CLOEXEC) < 0) {
                atomic_store(&closing->failed, true);
                return -errno;
        }
        return 0;
}

static void closed(struct sheaf_aside *aside, int rc)
{
        static struct sheaf_log_once once;

        if (rc == -ETIMEDOUT && sheaf_log_once(&once, 10 * SHEAF_NS_PER_SEC))
                sheaf_log(SHEAF_LOG_WARN, "file does not close",
                        "why=\"a client sent a file whose file system does "
                        "not answer\" uid=%u",
                        aside->uid);
}

static void closing_end(struct sheaf_aside *aside, bool late)
{
        struct closing *closing = (struct closing *)aside;

        (void)late;
        if (!atomic_load(&closing->failed))
                close(closing->fd);
        close(closing->pipe_fd);
        free(closing);
}

static int closing_start(uv_loop_t *loop, uid_t uid, int fd)
{
        struct closing *closing = sheaf_new(struct closing, 1);
        int pipe_fd[2], rc;

        if (!closing)
                return -ENOMEM;
        if (pipe2(pipe_fd, O_CLOEXEC)) {
                free(closing);
                return -errno;
        }
        close(pipe_fd[1]);
        closing->fd = fd;
        closing->pipe_fd = pipe_fd[0];
        closing->aside.uid = uid;
        closing->aside.own_rights = true;
        closing->aside.closing = true;
        closing->aside.work = close_it;
        closing->aside.done = closed;
        closing->aside.end = closing_end;
        rc = sheaf_aside_start(loop, &closing->aside, LATE_MS);
        if (rc) {
                close(pipe_fd[0]);
                free(closing);
                return rc;
        }
        while (!is_pipe(fd) && !atomic_load(&closing->failed))
                sched_yield();
        return 0;
}

/* What stays: its end asks nobody. */
static bool is_harmless(int fd)
{
        int flags = fcntl(fd, F_GETFL);
        struct statx x;

        /* Seals have memfds, and files of tmpfs. */
        return (flags >= 0 && flags & O_PATH) || is_pipe(fd) ||
               fcntl(fd, F_GET_SEALS) >= 0 ||
               (!statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE,
                        &x) &&
                       S_ISDIR(x.stx_mode));
}

static bool is_socket(int fd)
{
        int type;
        socklen_t len = sizeof(type);

        return !getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len);
}

static void sift(uv_loop_t *loop, uid_t uid, int *fds, size_t count)
{
        static struct sheaf_log_once once;

        for (size_t i = 0; i < count; i++) {
                int rc = 0, fd = fds[i];

                if (is_harmless(fd))
                        continue;
                fds[i] = -1;
                if (is_socket(fd))
                        sheaf_sift_close(fd);
                else
                        rc = closing_start(loop, uid, fd);
                left += rc != 0;
                if (rc && sheaf_log_once(&once, 10 * SHEAF_NS_PER_SEC))
                        sheaf_log_rc(rc, SHEAF_LOG_WARN, "file left open",
                                "uid=%u", uid);
        }
}

static size_t room_for(uid_t uid)
{
        return left < LEFT_MAX && sheaf_aside_may_close(uid, SHEAF_SIFT_FDS_MAX)
                       ? SHEAF_SIFT_FDS_MAX
                       : 0;
}

int sheaf_sift_recv(uv_loop_t *loop, uid_t uid, int sock, void *data,
        size_t cap_bytes, size_t *ret_len_bytes,
        int ret_fds[SHEAF_SIFT_FDS_MAX], size_t *ret_count)
{
        int fds[SHEAF_SIFT_FDS_MAX], rc, brings = sheaf_wire_brings_fds(sock);
        size_t count;

        if (brings < 0)
                return brings;
        /* The kernel drops what there is no room for. */
        if (brings)
                hurry(true);
        rc = sheaf_wire_recv_some(sock, data, cap_bytes,
                brings ? room_for(uid) : 0, ret_len_bytes, fds, &count);
        if (brings)
                hurry(false);
        sift(loop, uid, fds, count);
        if (rc <= 0) {
                for (size_t i = 0; i < count; i++)
                        sheaf_close_p(&fds[i]);
                return rc;
        }
        memcpy(ret_fds, fds, count * sizeof(*fds));
        *ret_count = count;
        return rc;
}
