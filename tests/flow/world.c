/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds of tests.
 *
 *  1 nothing here outlives the test: a groups' keeper waits for its end
 *  2 nothing of the machine is changed but control groups made here */
#include "tests/flow/world.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

void flow_world(const char *setup, const char *prefix)
{
        char *dir = strdup(flow_path("world")), path[PATH_MAX];
        const char *old = getenv("PATH");
        FILE *file;

        cr_assert(dir && (!mkdir(dir, 0755) || errno == EEXIST));
        snprintf(path, sizeof(path), "%s/sheafd", dir);
        file = fopen(path, "we");
        cr_assert(file);
        fprintf(file,
                "#!/bin/sh\nPATH=${PATH#%s:}\n%s\nexec %s sheafd \"$@\"\n", dir,
                setup, prefix);
        cr_assert(!fclose(file) && !chmod(path, 0755));
        if (strncmp(old, dir, strlen(dir)) != 0) {
                char *both = NULL;

                cr_assert(asprintf(&both, "%s:%s", dir, old) > 0);
                setenv("PATH", both, 1);
                free(both);
        }
        free(dir);
}

struct shim *flow_shim(const char **ret_prefix)
{
        static char prefix[PATH_MAX];
        const char *path = flow_path("shim");
        sheaf_autofd int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        void *map;

        cr_assert(fd >= 0 && !fchmod(fd, 0666) &&
                  !ftruncate(fd, sizeof(struct shim)));
        map = mmap(NULL, sizeof(struct shim), PROT_READ | PROT_WRITE,
                MAP_SHARED, fd, 0);
        cr_assert(map != MAP_FAILED);
        /* The sanitizer's library need not come first. */
        snprintf(prefix, sizeof(prefix),
                "env ASAN_OPTIONS=verify_asan_link_order=0:$ASAN_OPTIONS "
                "SHEAF_SHIM=%s LD_PRELOAD=%s",
                path, FLOW_SHIM);
        *ret_prefix = prefix;
        return map;
}

/* ---- memory control groups ---- */

struct flow_group {
        char dir[PATH_MAX];
        bool second; /* version 2 */
};

static bool write_text(const char *dir, const char *name, const char *text)
{
        char path[PATH_MAX + 64];
        sheaf_autofd int fd = -1;

        snprintf(path, sizeof(path), "%s/%s", dir, name);
        fd = open(path, O_WRONLY | O_CLOEXEC);
        return fd >= 0 &&
               write(fd, text, strlen(text)) == (ssize_t)strlen(text);
}

static bool read_text(const char *dir, const char *name, char *buf, size_t cap)
{
        char path[PATH_MAX + 64];
        sheaf_autofd int fd = -1;
        ssize_t n;

        snprintf(path, sizeof(path), "%s/%s", dir, name);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        n = fd < 0 ? -1 : read(fd, buf, cap - 1);
        buf[n > 0 ? n : 0] = '\0';
        return n > 0;
}

/* Removes the group when the test is gone and all in it are dead. */
static void keep(const char *dir)
{
        int pipe_fd[2];
        char byte;
        pid_t pid;

        cr_assert(!pipe2(pipe_fd, O_CLOEXEC));
        fflush(NULL);
        pid = fork();
        cr_assert(pid >= 0);
        if (pid) {
                close(pipe_fd[0]); /* the other end hangs up with us */
                return;
        }
        setsid();
        close(pipe_fd[1]);
        sheaf_close_p(&flow.warden_fd);
        while (read(pipe_fd[0], &byte, 1) < 0 && errno == EINTR)
                ;
        for (int i = 0; i < 1500 && rmdir(dir) && errno == EBUSY; i++)
                flow_sleep(0.02);
        _exit(0);
}

/* Where groups that limit memory can be made, or NULL. */
static const char *hierarchy(bool *ret_second)
{
        char text[1024];

        *ret_second = false;
        if (!access("/sys/fs/cgroup/memory/memory.limit_in_bytes", W_OK))
                return "/sys/fs/cgroup/memory";
        *ret_second = true;
        if (read_text("/sys/fs/cgroup", "cgroup.subtree_control", text,
                    sizeof(text)) &&
                strstr(text, "memory"))
                return "/sys/fs/cgroup";
        return NULL;
}

struct flow_group *flow_group_new(const char *name, uint64_t limit_bytes)
{
        static struct flow_group groups[4];
        static size_t count;
        struct flow_group *group = &groups[count];
        const char *at = hierarchy(&group->second);
        char text[32];

        cr_assert_lt(count, SHEAF_ARRAY_LEN(groups));
        if (at)
                snprintf(group->dir, sizeof(group->dir), "%s/%s-%s", at,
                        strrchr(flow.base, '/') + 1, name);
        if (!at || mkdir(group->dir, 0755)) {
                fprintf(stderr, "SKIP: %s: no memory control group: %s\n",
                        FLOW_NAME, at ? strerror(errno) : "no controller");
                return NULL;
        }
        count++;
        keep(group->dir);
        snprintf(text, sizeof(text), "%llu", (unsigned long long)limit_bytes);
        cr_assert(write_text(group->dir,
                group->second ? "memory.max" : "memory.limit_in_bytes", text));
        if (group->second)
                (void)write_text(group->dir, "memory.swap.max", "0");
        return group;
}

const char *flow_group_door(const struct flow_group *group)
{
        static char path[PATH_MAX + 32];

        snprintf(path, sizeof(path), "%s/cgroup.procs", group->dir);
        return path;
}

void flow_group_enter(const struct flow_group *group)
{
        cr_assert(write_text(group->dir, "cgroup.procs", "0"));
}

uint64_t flow_group_used(const struct flow_group *group)
{
        char text[64];

        cr_assert(read_text(group->dir,
                group->second ? "memory.current" : "memory.usage_in_bytes",
                text, sizeof(text)));
        return strtoull(text, NULL, 10);
}

uint64_t flow_group_kills(const struct flow_group *group)
{
        char text[4096], *at;

        cr_assert(read_text(group->dir,
                group->second ? "memory.events" : "memory.oom_control", text,
                sizeof(text)));
        at = strstr(text, "oom_kill ");
        return at ? strtoull(at + 9, NULL, 10) : 0;
}

/* ---- figures ---- */

double flow_cpu(pid_t pid)
{
        unsigned long user = 0, kernel = 0;
        char dir[64], text[1024];
        const char *at;

        snprintf(dir, sizeof(dir), "/proc/%d", (int)pid);
        cr_assert(read_text(dir, "stat", text, sizeof(text)));
        at = strrchr(text, ')');
        cr_assert(at && sscanf(at + 2,
                                "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u "
                                "%lu %lu",
                                &user, &kernel) == 2);
        return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

bool flow_status_says(const char *text)
{
        flow_ok("sheaf status");
        return strstr(flow.last.out, text) != NULL;
}
