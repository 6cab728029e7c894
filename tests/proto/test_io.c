/* SPDX-License-Identifier: Apache-2.0 */
/* proto/io: all bytes arrive in order over signals and short writes, a failure
 * after a part is a failure, and a file that ends early is one. */
#include "proto/io.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#define LEN   (256 << 10)
#define DRAIN (16 << 10)

static struct {
        int fd;
        unsigned char got[LEN];
        size_t len;
        unsigned calls;
} drain;

/* Every second signal finds the pipe as full as the one before left it: the
 * write that it interrupts has moved nothing, so it ends in EINTR; the others
 * leave room for a part, so the next one is short. */
static void on_signal(int signo)
{
        int saved = errno;
        ssize_t n = 0;

        (void)signo;
        if (drain.calls++ % 2)
                n = read(drain.fd, drain.got + drain.len,
                        SHEAF_MIN(DRAIN, LEN - drain.len));
        if (n > 0)
                drain.len += (size_t)n;
        errno = saved;
}

static timer_t tick(void)
{
        const struct itimerspec every = { .it_interval.tv_nsec =
                                                  SHEAF_NS_PER_MS,
                .it_value.tv_nsec = SHEAF_NS_PER_MS };
        struct sigevent event = { .sigev_notify = SIGEV_SIGNAL,
                .sigev_signo = SIGUSR1 };
        struct sigaction action = { .sa_handler = on_signal };
        timer_t timer;

        cr_assert_eq(sigaction(SIGUSR1, &action, NULL), 0);
        cr_assert_eq(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
        cr_assert_eq(timer_settime(timer, 0, &every, NULL), 0);
        return timer;
}

Test(io, whole_over_signals_and_short_writes)
{
        static unsigned char bytes[LEN];
        int ends[2], rc;
        timer_t timer;

        for (uint32_t i = 0; i < LEN; i++)
                bytes[i] = (unsigned char)(i * 2654435761u >> 24);
        cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
        cr_assert_eq(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
        drain.fd = ends[0];
        timer = tick();
        rc = sheaf_write_all(ends[1], bytes, LEN);
        timer_delete(timer);
        cr_assert_eq(rc, 0, "%d", rc);
        close(ends[1]);
        cr_assert_gt(drain.len, 0, "no write was interrupted");
        while (drain.len < LEN) {
                ssize_t n =
                        read(ends[0], drain.got + drain.len, LEN - drain.len);

                cr_assert_gt(n, 0, "%zu bytes arrived", drain.len);
                drain.len += (size_t)n;
        }
        cr_assert_eq(read(ends[0], &rc, 1), 0, "more than was written");
        cr_assert_eq(memcmp(drain.got, bytes, LEN), 0);
        close(ends[0]);
}

Test(io, failures)
{
        int full = open("/dev/full", O_WRONLY | O_CLOEXEC);

        cr_assert_geq(full, 0);
        cr_assert_eq(sheaf_write_all(full, "abc", 3), -ENOSPC);
        cr_assert_eq(sheaf_write_all(full, "abc", 0), 0);
        close(full);
        cr_assert_eq(sheaf_write_all(-1, "abc", 3), -EBADF);
}

/* The first write stops at the limit, the next is refused. */
Test(io, a_part_then_a_failure)
{
        char bytes[100] = { 0 };
        struct rlimit was, limit;
        int fd = memfd_create("sheaf-io", MFD_CLOEXEC), rc;

        cr_assert_geq(fd, 0);
        signal(SIGXFSZ, SIG_IGN);
        cr_assert_eq(getrlimit(RLIMIT_FSIZE, &was), 0);
        limit = was;
        limit.rlim_cur = 60;
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        rc = sheaf_write_all(fd, bytes, sizeof(bytes));
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &was), 0);
        cr_assert_eq(rc, -EFBIG, "%d", rc);
        cr_assert_eq(lseek(fd, 0, SEEK_END), 60);
        close(fd);
}

Test(io, the_first_bytes_or_none)
{
        char bytes[8] = { 0 };
        int fd = memfd_create("sheaf-io", MFD_CLOEXEC);

        cr_assert_geq(fd, 0);
        cr_assert_eq(sheaf_write_all(fd, "abcdef", 6), 0);
        cr_assert_eq(sheaf_read_at(fd, bytes, 4, 0), 0);
        cr_assert_eq(memcmp(bytes, "abcd\0\0\0\0", 8), 0);
        cr_assert_eq(sheaf_read_at(fd, bytes, 6, 0), 0);
        cr_assert_eq(sheaf_read_at(fd, bytes, 7, 0), -ENODATA);
        cr_assert_eq(sheaf_read_at(fd, bytes, 3, 3), 0);
        cr_assert_eq(memcmp(bytes, "def", 3), 0);
        cr_assert_eq(sheaf_read_at(fd, bytes, 3, 4), -ENODATA);
        cr_assert_eq(sheaf_read_at(fd, bytes, 0, 0), 0);
        close(fd);
        cr_assert_eq(sheaf_read_at(-1, bytes, 1, 0), -EBADF);
}
