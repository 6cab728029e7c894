/* SPDX-License-Identifier: Apache-2.0 */
/* The faulty file system of a test: start, rules, end.
 *
 *  1 rules are replaced by a rename, so that no half of them is ever read */
#include "tests/flow/faulty.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>

static struct {
        char dir[PATH_MAX];
        pid_t pid;
} faulty;

static const char *control(void)
{
        return flow_path("faults");
}

void flow_faulty_mount(const char *dir)
{
        char real[PATH_MAX + 8];

        snprintf(faulty.dir, sizeof(faulty.dir), "%s", dir);
        snprintf(real, sizeof(real), "%s.real", dir);
        if (rename(dir, real))
                cr_assert(!mkdir(real, 0755), "%s: %s", real, strerror(errno));
        cr_assert(!mkdir(dir, 0755));
        flow_faulty("%s", "");
        faulty.pid = flow_fork(0, 0);
        if (!faulty.pid) {
                if (!freopen(flow_path("faultfs.log"), "a", stderr) ||
                        !freopen("/dev/null", "a", stdout))
                        _exit(98);
                execl(FLOW_FAULTFS, "faultfs", real, dir, control(),
                        (char *)NULL);
                _exit(97);
        }
        cr_assert(
                flow_until(30, flow_mounted(dir) == 1), "no mount at %s", dir);
}

void flow_faulty(const char *rules, ...)
{
        char fresh[PATH_MAX];
        va_list args;
        FILE *file;

        snprintf(fresh, sizeof(fresh), "%s.new", control());
        file = fopen(fresh, "we");
        cr_assert(file);
        va_start(args, rules);
        vfprintf(file, rules, args);
        va_end(args);
        cr_assert(!fclose(file) && !rename(fresh, control()));
}

uint64_t flow_faulty_hits(const char *text)
{
        char line[PATH_MAX];
        uint64_t count = 0;
        FILE *file;

        snprintf(line, sizeof(line), "%s.hits", control());
        file = fopen(line, "re");
        while (file && fgets(line, sizeof(line), file))
                count += strstr(line, text) != NULL;
        if (file)
                fclose(file);
        return count;
}

uint64_t flow_faulty_calls(const char *op, pid_t thread)
{
        char line[PATH_MAX], name[16];
        uint64_t count = 0;
        FILE *file;

        snprintf(line, sizeof(line), "%s.hits", control());
        file = fopen(line, "re");
        while (file && fgets(line, sizeof(line), file))
                count += sscanf(line, "%15s", name) == 1 && !strcmp(name, op) &&
                         atoi(strrchr(line, ' ')) == thread;
        if (file)
                fclose(file);
        return count;
}

void flow_faulty_vanish(void)
{
        cr_assert(faulty.pid > 0);
        kill(faulty.pid, SIGKILL);
        flow_wait(faulty.pid, 10);
        faulty.pid = 0;
}

void flow_faulty_umount(void)
{
        cr_assert(!umount2(faulty.dir, MNT_DETACH), "%s", strerror(errno));
        if (faulty.pid)
                flow_faulty_vanish();
}
