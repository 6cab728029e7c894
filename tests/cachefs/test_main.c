/* SPDX-License-Identifier: Apache-2.0 */
/* The program: exit codes, readiness, and how it ends. CACHEFS_PROGRAM is the
 * real main over a fake of libsheaf. */
#include "tests/cachefs/mounted.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>

static struct mounted m;

static void setup(void)
{
        mounted_prepare(&m);
        setenv("FAKE_ORIGIN", m.origin, 1);
        stamp_file(at(m.origin, "f"), 1, 100000);
}

/* Runs the program; its exit code. Messages go to base/err. */
static int program(const char *args)
{
        char command[1024];
        int status;

        snprintf(command, sizeof(command), "cd %s && exec %s %s 2>> %s/err",
                m.base, CACHEFS_PROGRAM, args, m.base);
        status = system(command);
        cr_assert(WIFEXITED(status));
        return WEXITSTATUS(status);
}

static bool said(const char *text)
{
        return sh("grep -q -- '%s' %s/err", text, m.base);
}

/* Processes that have the mount's program open: pid of the server, or 0. */
static pid_t server(void)
{
        char path[64], line[1024];
        struct dirent *entry;
        DIR *proc = opendir("/proc");
        pid_t found = 0;

        while ((entry = readdir(proc))) {
                pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
                size_t n = 0;
                FILE *file;

                if (pid <= 0)
                        continue;
                snprintf(path, sizeof(path), "/proc/%d/environ", pid);
                file = fopen(path, "r");
                if (file) {
                        n = fread(line, 1, sizeof(line) - 1, file);
                        fclose(file);
                }
                snprintf(path, sizeof(path), "/proc/%d/exe", pid);
                line[n] = '\0';
                char exe[1024] = { 0 };
                ssize_t len = readlink(path, exe, sizeof(exe) - 1);

                if (len > 0 && !strcmp(exe, CACHEFS_PROGRAM) &&
                        memmem(line, n, m.base, strlen(m.base)))
                        found = pid;
        }
        closedir(proc);
        return found;
}

static void ends(pid_t pid)
{
        struct timespec ms = { 0, 1000000 };

        for (int i = 0; i < 10000 && !kill(pid, 0); i++)
                nanosleep(&ms, NULL);
        cr_assert_eq(kill(pid, 0), -1, "the server lives on");
}

static bool mounted(void)
{
        struct sheaf_mount mount;

        if (sheaf_mounts_at(m.dir, &mount) < 0)
                return false;
        sheaf_mount_clear(&mount);
        return true;
}

static void remove_all(void)
{
        cr_assert(sh("rm -rf --one-file-system %s", m.base));
}

static void cleanup(void)
{
        mounted_rescue(&m);
}

TestSuite(main, .init = setup, .fini = cleanup, .timeout = 120);

Test(main, exit_codes)
{
        cr_assert_eq(program(""), 2);
        cr_assert_eq(program("x"), 2);
        cr_assert_eq(program("--mode huge x mount"), 2);
        cr_assert_eq(program("--version 12 x mount"), 2);
        cr_assert_eq(program("--nonsense x mount"), 2);
        cr_assert_eq(program("--help > /dev/null"), 0);
        cr_assert_eq(program("x no-such-dir"), 5);
        cr_assert(said("no-such-dir: No such file"));
        cr_assert_eq(program("x origin/f"), 5);
        cr_assert(said("not a directory"));
        setenv("FAKE_FAIL", "connect", 1);
        cr_assert_eq(program("x mount"), 3);
        cr_assert(said("no daemon at /fake.sock"));
        setenv("FAKE_FAIL", "open", 1);
        cr_assert_eq(program("x mount"), 4);
        cr_assert(said("dataset x: No such file"));
        unsetenv("FAKE_FAIL");
        cr_assert_eq(program("--version 00000000000000000000000000000000 "
                             "x mount"),
                4);
        cr_assert(!mounted());
        /* the last child is just leaving */
        for (int i = 0; i < 5000 && server(); i++)
                usleep(1000);
        cr_assert_eq(server(), 0);
        remove_all();
}

Test(main, is_ready_when_it_returns)
{
        pid_t pid;

        /* a path relative to a directory that the server leaves */
        cr_assert_eq(program("--mode small --version "
                             "30313233-3435-3637-3839-616263646566 x mount"),
                0);
        cr_assert(sh("cmp %s/f %s/f", m.origin, m.dir));
        pid = server();
        cr_assert_neq(pid, 0);
        cr_assert_eq(program("x ./mount/"), 5);
        cr_assert(said("mounted here already"));
        cr_assert(sh("cmp %s/f %s/f", m.origin, m.dir));
        cr_assert_eq(sheaf_mounts_unmount(m.dir, false), 0);
        ends(pid);
        remove_all();
}

Test(main, sigterm_unmounts)
{
        char buf[4096], want[4096];
        pid_t pid;
        int fd;

        cr_assert_eq(program("x mount"), 0);
        pid = server();
        cr_assert(!kill(pid, SIGTERM));
        ends(pid);
        cr_assert(!mounted());
        /* with a file open, it serves until that is closed */
        cr_assert_eq(program("x mount"), 0);
        pid = server();
        fd = open(at(m.dir, "f"), O_RDONLY);
        cr_assert(!kill(pid, SIGTERM));
        for (int i = 0; i < 5000 && mounted(); i++)
                usleep(1000);
        cr_assert(!mounted());
        cr_assert_eq(pread(fd, buf, sizeof(buf), 8192), sizeof(buf));
        stamp_fill(want, 1, 8192, sizeof(want));
        cr_assert(!memcmp(buf, want, sizeof(buf)));
        cr_assert_eq(kill(pid, 0), 0);
        close(fd);
        ends(pid);
        /* a second one does not wait */
        cr_assert_eq(program("x mount"), 0);
        pid = server();
        fd = open(at(m.dir, "f"), O_RDONLY);
        cr_assert(!kill(pid, SIGTERM));
        for (int i = 0; i < 5000 && mounted(); i++)
                usleep(1000);
        cr_assert(!kill(pid, SIGTERM));
        ends(pid);
        close(fd);
        remove_all();
}

Test(main, mounts_again_after_a_kill)
{
        for (int round = 0; round < 20; round++) {
                pid_t pid;
                int fd;

                cr_assert_eq(program("x mount"), 0);
                cr_assert(sh("cmp %s/f %s/f", m.origin, m.dir));
                pid = server();
                fd = open(at(m.dir, "f"), O_RDONLY);
                cr_assert(!kill(pid, SIGKILL));
                ends(pid);
                close(fd);
        }
        cr_assert_eq(program("x mount"), 0);
        cr_assert(said("removed a dead mount"));
        cr_assert(sh("test $(grep -c ' %s ' /proc/self/mountinfo) = 1", m.dir));
        cr_assert_eq(sheaf_mounts_unmount(m.dir, false), 0);
        remove_all();
}

Test(main, in_the_foreground)
{
        int status;
        pid_t pid = fork();

        if (!pid) {
                execl(CACHEFS_PROGRAM, CACHEFS_PROGRAM, "--foreground", "x",
                        m.dir, NULL);
                _exit(127);
        }
        for (int i = 0; i < 5000 && !mounted(); i++)
                usleep(1000);
        cr_assert(sh("cmp %s/f %s/f", m.origin, m.dir));
        cr_assert(!kill(pid, SIGINT));
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        cr_assert(!mounted());
        remove_all();
}

/* An ordinary user mounts with fusermount3, which wants one that has a name;
 * nobody else gets in. */
Test(main, without_root)
{
        pid_t pid;

        if (geteuid()) {
                mounted_rescue(&m);
                cr_skip_test("needs root to become another user");
        }
        /* fusermount3 looks there for what a user may unmount */
        if (access("/etc/mtab", F_OK)) {
                printf("SKIP: without_root: there is no /etc/mtab\n");
                remove_all();
                return;
        }
        /* a device for all users, as everywhere but in small containers */
        cr_assert(!unshare(CLONE_NEWNS));
        cr_assert(!mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
        cr_assert(!mknod(at(m.base, "fuse"), S_IFCHR | 0666, makedev(10, 229)));
        cr_assert(!chmod(at(m.base, "fuse"), 0666));
        cr_assert(!mount(at(m.base, "fuse"), "/dev/fuse", NULL, MS_BIND, NULL));
        cr_assert(sh(
                "chown -R daemon:daemon %s && chmod 755 %s", m.base, m.base));
        cr_assert(sh("cd %s && setpriv --reuid daemon --regid daemon "
                     "--clear-groups %s x mount 2>> err",
                m.base, CACHEFS_PROGRAM));
        pid = server();
        cr_assert_neq(pid, 0);
        cr_assert(sh("setpriv --reuid daemon --regid daemon --clear-groups cmp "
                     "%s/f %s/f",
                m.origin, m.dir));
        cr_assert(!sh("cat %s/f > /dev/null 2>&1", m.dir));
        cr_assert(!kill(pid, SIGTERM));
        ends(pid);
        cr_assert(!mounted());
        remove_all();
}
