/* SPDX-License-Identifier: Apache-2.0 */
/* A child between an old mount and the new one.
 *
 *   child                                parent
 *   waits                                puts the new mount in place
 *   asks the old mount, writes  <------  a byte
 *   ends                        ------>  text, or nothing after ANSWER_S
 *
 *  1 taking hold of a mount asks it nothing
 *  2 nothing here waits longer than ANSWER_S */
#include "cachefs/heir.h"

#include "cachefs/fs.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>

#define ANSWER_S       2
#define TEXT_MAX_BYTES (64 << 10) /* of an extended attribute */

static _Noreturn void serve(int old_fd, int ask_fd, int answer_fd)
{
        static char text[TEXT_MAX_BYTES];
        char path[64], byte;
        ssize_t n;

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (read(ask_fd, &byte, 1) != 1)
                _exit(0);
        snprintf(path, sizeof(path), "/proc/self/fd/%d/" SHEAF_FS_BEGUN_DIR,
                old_fd);
        n = getxattr(path, SHEAF_FS_BEGUN_XATTR, text, sizeof(text));
        _exit(n > 0 && write(answer_fd, text, (size_t)n) == n ? 0 : 1);
}

int sheaf_heir_begin(const char *dir, int close_fd, struct sheaf_heir *ret_heir)
{
        sheaf_autofd int old_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
        int ask[2], answer[2];
        pid_t pid;
        int rc;

        if (old_fd < 0)
                return -errno;
        if (pipe2(ask, O_CLOEXEC))
                return -errno;
        if (pipe2(answer, O_CLOEXEC)) {
                rc = -errno;
                close(ask[0]);
                close(ask[1]);
                return rc;
        }
        pid = fork();
        rc = pid < 0 ? -errno : 0;
        if (pid == 0) {
                if (close_fd >= 0)
                        close(close_fd);
                close(ask[1]);
                close(answer[0]);
                serve(old_fd, ask[0], answer[1]);
        }
        close(ask[0]);
        close(answer[1]);
        if (rc < 0) {
                close(ask[1]);
                close(answer[0]);
                return rc;
        }
        *ret_heir = (struct sheaf_heir){
                .child = pid, .ask_fd = ask[1], .answer_fd = answer[0]
        };
        return 0;
}

/* Reads to the end into @text; the length, or -ETIMEDOUT. */
static ssize_t read_answer(int fd, char *text, size_t cap_bytes)
{
        struct timespec now;
        int64_t end_ns;
        size_t len = 0;

        clock_gettime(CLOCK_MONOTONIC, &now);
        end_ns = now.tv_sec * SHEAF_NS_PER_SEC + now.tv_nsec +
                 ANSWER_S * SHEAF_NS_PER_SEC;
        while (len < cap_bytes) {
                struct pollfd wait = { .fd = fd, .events = POLLIN };
                int64_t left_ns;
                ssize_t n;

                clock_gettime(CLOCK_MONOTONIC, &now);
                left_ns = end_ns - now.tv_sec * SHEAF_NS_PER_SEC - now.tv_nsec;
                if (left_ns <= 0)
                        return -ETIMEDOUT;
                if (poll(&wait, 1, (int)(left_ns / SHEAF_NS_PER_MS) + 1) <= 0)
                        continue;
                n = read(fd, text + len, cap_bytes - len);
                if (n < 0 && errno != EINTR)
                        return -errno;
                if (n == 0)
                        return (ssize_t)len;
                len += n > 0 ? (size_t)n : 0;
        }
        return (ssize_t)len;
}

char *sheaf_heir_ask(struct sheaf_heir *heir)
{
        char *text = heir->child ? malloc(TEXT_MAX_BYTES + 1) : NULL;
        ssize_t n = 0;

        if (text && write(heir->ask_fd, "", 1) == 1) {
                n = read_answer(heir->answer_fd, text, TEXT_MAX_BYTES);
                heir->hangs = n < 0;
        }
        sheaf_heir_end(heir);
        if (n <= 0) {
                free(text);
                return NULL;
        }
        text[n] = '\0';
        return text;
}

void sheaf_heir_end(struct sheaf_heir *heir)
{
        if (!heir->child)
                return;
        close(heir->ask_fd);
        close(heir->answer_fd);
        kill(heir->child, SIGKILL);
        /* One that hangs in the old mount ends with that. */
        while (waitpid(heir->child, NULL, heir->hangs ? WNOHANG : 0) < 0 &&
                errno == EINTR)
                ;
        heir->child = 0;
}
