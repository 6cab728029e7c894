/* SPDX-License-Identifier: Apache-2.0 */
/* A shim (LD_PRELOAD) that lies about the host, as a file says that others
 * change: SHEAF_SHIM=PATH. Without it nothing is wrong.
 *
 *  1 the file is mapped before main(); what it says holds at once
 *  2 steady clocks are those of libc's callers alone: the kernel waits by its
 *    own
 *  3 an allocation that is refused changes nothing, as by malloc(3) */
#include "tests/fakes/shim.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <grp.h>
#include <malloc.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

static struct shim none, *shim = &none;

__attribute__((constructor)) static void setup(void)
{
        const char *path = getenv("SHEAF_SHIM");
        int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
        void *map = MAP_FAILED;

        if (fd >= 0)
                map = mmap(NULL, sizeof(*shim), PROT_READ | PROT_WRITE,
                        MAP_SHARED, fd, 0);
        if (map != MAP_FAILED)
                shim = map;
        if (fd >= 0)
                close(fd);
}

#define REAL(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))

/* ---- time ---- */

int clock_gettime(clockid_t id, struct timespec *ts)
{
        static __typeof__(&clock_gettime) real;
        bool wall = id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE;
        bool steady = id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE ||
                      id == CLOCK_MONOTONIC_RAW || id == CLOCK_BOOTTIME;
        int rc;

        if (!real)
                real = REAL(clock_gettime);
        rc = real(id, ts);
        if (!rc && wall)
                ts->tv_sec += atomic_load(&shim->wall_offset_sec);
        if (!rc && steady)
                ts->tv_sec += atomic_load(&shim->steady_offset_sec);
        return rc;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
        struct timespec ts;
        int rc = clock_gettime(CLOCK_REALTIME, &ts);

        (void)zone;
        tv->tv_sec = ts.tv_sec;
        tv->tv_usec = ts.tv_nsec / 1000;
        return rc;
}

time_t time(time_t *ret_time)
{
        struct timespec ts;

        clock_gettime(CLOCK_REALTIME, &ts);
        if (ret_time)
                *ret_time = ts.tv_sec;
        return ts.tv_sec;
}

/* ---- users and groups ---- */

static void wait_for_names(void)
{
        while (atomic_load(&shim->names_hang))
                usleep(10000);
}

int getpwuid_r(uid_t uid, struct passwd *restrict pw, char *restrict buf,
        size_t len, struct passwd **restrict ret_pw)
{
        wait_for_names();
        return REAL(getpwuid_r)(uid, pw, buf, len, ret_pw);
}

int getpwnam_r(const char *restrict name, struct passwd *restrict pw,
        char *restrict buf, size_t len, struct passwd **restrict ret_pw)
{
        wait_for_names();
        return REAL(getpwnam_r)(name, pw, buf, len, ret_pw);
}

int getgrgid_r(gid_t gid, struct group *restrict gr, char *restrict buf,
        size_t len, struct group **restrict ret_gr)
{
        wait_for_names();
        return REAL(getgrgid_r)(gid, gr, buf, len, ret_gr);
}

int getgrnam_r(const char *restrict name, struct group *restrict gr,
        char *restrict buf, size_t len, struct group **restrict ret_gr)
{
        wait_for_names();
        return REAL(getgrnam_r)(name, gr, buf, len, ret_gr);
}

/* ---- descriptors ---- */

int accept4(int fd, struct sockaddr *restrict addr, socklen_t *restrict len,
        int flags)
{
        atomic_fetch_add(&shim->accepts, 1);
        if (atomic_load(&shim->accept_errno)) {
                errno = atomic_load(&shim->accept_errno);
                return -1;
        }
        return REAL(accept4)(fd, addr, len, flags);
}

/* ---- memory files ---- */

int memfd_create(const char *name, unsigned int flags)
{
        unsigned int needed = atomic_load(&shim->memfd_needed);

        if (flags & atomic_load(&shim->memfd_unknown))
                errno = EINVAL;
        else if ((flags & needed) != needed)
                errno = EACCES;
        else
                return REAL(memfd_create)(name, flags);
        return -1;
}

/* ---- memory ---- */

int madvise(void *at, size_t len, int advice)
{
        if (advice == MADV_POPULATE_WRITE && atomic_load(&shim->memory_errno)) {
                atomic_fetch_add(&shim->refusals, 1);
                errno = atomic_load(&shim->memory_errno);
                return -1;
        }
        return REAL(madvise)(at, len, advice);
}

/* ---- allocations: a sanitizer has its own ---- */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

/* Before the real one is known: dlsym() may want some itself. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);

static bool refuses(void)
{
        uint64_t refuse = atomic_load(&shim->refuse), number, from;

        if (!refuse || gettid() != getpid())
                return false;
        number = atomic_fetch_add(&shim->allocations, 1) + 1;
        from = atomic_load(&shim->refuse_from);
        if (number < from || number - from >= refuse)
                return false;
        atomic_fetch_add(&shim->refused, 1);
        errno = ENOMEM;
        return true;
}

static _Thread_local bool looking __attribute__((tls_model("initial-exec")));

#define FIND(real, name)                                                       \
        do {                                                                   \
                looking = true;                                                \
                (real) = REAL(name);                                           \
                looking = false;                                               \
        } while (0)

void *malloc(size_t bytes)
{
        static __typeof__(&malloc) real;

        if (looking)
                return __libc_malloc(bytes);
        if (!real)
                FIND(real, malloc);
        return refuses() ? NULL : real(bytes);
}

void *calloc(size_t count, size_t bytes)
{
        static __typeof__(&calloc) real;

        if (looking)
                return __libc_calloc(count, bytes);
        if (!real)
                FIND(real, calloc);
        return refuses() ? NULL : real(count, bytes);
}

void *realloc(void *at, size_t bytes)
{
        static __typeof__(&realloc) real;

        if (!real)
                FIND(real, realloc);
        return refuses() ? NULL : real(at, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
        static __typeof__(&aligned_alloc) real;

        if (!real)
                FIND(real, aligned_alloc);
        return refuses() ? NULL : real(alignment, bytes);
}

#endif

/* ---- descriptors that are opened again ---- */

int open64(const char *path, int flags, ...)
{
        int refused = atomic_load(&shim->reopen_errno);
        mode_t mode = 0;
        va_list args;

        va_start(args, flags);
        if (flags & (O_CREAT | O_TMPFILE))
                mode = va_arg(args, mode_t);
        va_end(args);
        if (refused && !strncmp(path, "/proc/self/fd/", 14)) {
                errno = refused;
                return -1;
        }
        return REAL(open64)(path, flags, mode);
}
