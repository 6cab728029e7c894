/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons, mounts and commands of one test, and their end.
 *
 *  1 whatever is started carries SHEAF_FLOW=<base> in its environment; the
 *    warden ends by that mark, never by a name
 *  2 the warden has a session of its own, so that the end of the test's
 *    process group does not reach it
 *  3 a forked client closes its copy of the warden's pipe */
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>

#define ARGS_MAX 48

struct flow flow;

double flow_now(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

void flow_sleep(double seconds)
{
        struct timespec ts = { .tv_sec = (time_t)seconds };

        ts.tv_nsec = (long)((seconds - (double)ts.tv_sec) * 1e9);
        while (nanosleep(&ts, &ts) && errno == EINTR)
                ;
}

const char *flow_path(const char *format, ...)
{
        static char ring[16][PATH_MAX];
        static unsigned int next;
        char *buf = ring[next++ % SHEAF_ARRAY_LEN(ring)];
        int n = snprintf(buf, PATH_MAX, "%s/", flow.base);
        va_list args;

        va_start(args, format);
        vsnprintf(buf + n, (size_t)(PATH_MAX - n), format, args);
        va_end(args);
        return buf;
}

/* ---- cleaning up ---- */

static bool marked(pid_t pid)
{
        char path[64], mark[96], text[1 << 16];
        ssize_t n;
        int fd;

        snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        n = fd < 0 ? 0 : read(fd, text, sizeof(text));
        if (fd >= 0)
                close(fd);
        snprintf(mark, sizeof(mark), "SHEAF_FLOW=%s", flow.base);
        return n > 0 && memmem(text, (size_t)n, mark, strlen(mark) + 1);
}

/* Kills all that carry the mark, but @except and the caller. */
static void kill_marked(pid_t except)
{
        DIR *dir = opendir("/proc");
        struct dirent *entry;

        while (dir && (entry = readdir(dir))) {
                pid_t pid = atoi(entry->d_name);

                if (pid > 1 && pid != getpid() && pid != except && marked(pid))
                        kill(pid, SIGKILL);
        }
        if (dir)
                closedir(dir);
}

static void unmount_all(void)
{
        char line[8192], at[4096];

        for (int round = 0; round < 20; round++) {
                FILE *file = fopen("/proc/self/mounts", "re");
                bool found = false;

                while (file && fgets(line, sizeof(line), file)) {
                        if (sscanf(line, "%*s %4095s", at) == 1 &&
                                !strncmp(at, flow.base, strlen(flow.base)) &&
                                !umount2(at, MNT_DETACH))
                                found = true;
                }
                if (file)
                        fclose(file);
                if (!found)
                        return;
        }
}

static void remove_base(void)
{
        char command[128];

        snprintf(command, sizeof(command), "rm -rf --one-file-system %s",
                flow.base);
        if (system(command))
                fprintf(stderr, "left behind: %s\n", flow.base);
}

static void clean(pid_t except)
{
        kill_marked(except);
        unmount_all();
        kill_marked(except);
        remove_base();
}

static void warden(int read_fd, pid_t test)
{
        char byte;

        setsid();
        for (int fd = 0; fd < 3; fd++)
                close(fd);
        while (read(read_fd, &byte, 1) < 0 && errno == EINTR)
                ;
        if (access(flow.base, F_OK) == 0)
                clean(test);
        _exit(0);
}

static void start_warden(void)
{
        int pipe_fd[2];
        pid_t pid;

        cr_assert(!pipe2(pipe_fd, O_CLOEXEC));
        pid = fork();
        cr_assert(pid >= 0);
        if (!pid) {
                pid_t test = getppid();

                close(pipe_fd[1]);
                /* Twice, so that the test has no child to wait for. */
                if (fork())
                        _exit(0);
                warden(pipe_fd[0], test);
        }
        waitpid(pid, NULL, 0);
        close(pipe_fd[0]);
        flow.warden_fd = pipe_fd[1];
}

static void set_paths(void)
{
        snprintf(flow.cache, sizeof(flow.cache), "%s/cache", flow.base);
        snprintf(flow.socket, sizeof(flow.socket), "%s/socket", flow.base);
        snprintf(flow.origin, sizeof(flow.origin), "%s/origin", flow.base);
        snprintf(flow.mount, sizeof(flow.mount), "%s/mount", flow.base);
        snprintf(flow.log, sizeof(flow.log), "%s/log", flow.base);
}

static const char *unable(void)
{
        int fd;

        if (geteuid())
                return "needs root";
        fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
        if (fd < 0)
                return "/dev/fuse cannot be opened";
        close(fd);
        return NULL;
}

void flow_init(void)
{
        const char *why = unable(), *other = getenv("FLOW_PROGRAMS");
        char path[4096];

        if (why) {
                fprintf(stderr, "SKIP: %s: %s\n", FLOW_NAME, why);
                cr_skip_test("%s", why);
        }
        memset(&flow, 0, sizeof(flow));
        flow.memory = "256MiB";
        flow.disk = "1GiB";
        flow.deadline_s = 30;
        flow.run_limit_s = 60;
        umask(022);
        strcpy(flow.base, "/tmp/sheaf-flow-XXXXXX");
        cr_assert(mkdtemp(flow.base));
        cr_assert(!chmod(flow.base, 0755));
        set_paths();
        cr_assert(!mkdir(flow.origin, 0755) && !mkdir(flow.mount, 0755));
        /* FLOW_PROGRAMS: directories of another build's, searched first. */
        snprintf(path, sizeof(path), "%s%s%s:/usr/sbin:/usr/bin:/sbin:/bin",
                other ? other : "", other ? ":" : "", FLOW_PATH);
        setenv("PATH", path, 1);
        setenv("SHEAF_SOCKET", flow.socket, 1);
        unsetenv("XDG_RUNTIME_DIR");
        unsetenv("SHEAF_CACHE_DIR");
        unsetenv("SHEAF_FAULT_ORIGIN");
        /* A forked client's environment is the one of the last exec: only
         * the programs that are started bear the mark. */
        setenv("SHEAF_FLOW", flow.base, 1);
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        start_warden();
}

void flow_fini(void)
{
        if (!flow.base[0] || access(flow.base, F_OK))
                return;
        clean(getpid());
}

/* ---- processes ---- */

int flow_wait(pid_t pid, double limit_s)
{
        double end = flow_now() + limit_s;
        int status;

        for (;;) {
                pid_t rc = waitpid(pid, &status, WNOHANG);

                if (rc == pid)
                        return WIFEXITED(status) ? WEXITSTATUS(status)
                                                 : 128 + WTERMSIG(status);
                if (rc < 0 || flow_now() > end)
                        return -1;
                flow_sleep(0.002);
        }
}

int flow_join(pid_t pid, double limit_s)
{
        int rc = flow_wait(pid, limit_s);

        if (rc < 0)
                kill(pid, SIGKILL);
        cr_assert(rc >= 0, "a client did not end within %g s", limit_s);
        return rc;
}

static int become(uid_t uid, gid_t gid)
{
        if (!uid)
                return 0;
        return setgroups(gid ? 1 : 0, &gid) || setresgid(uid, uid, uid) ||
               setresuid(uid, uid, uid);
}

pid_t flow_fork(uid_t uid, gid_t gid)
{
        pid_t test = getpid(), pid;

        fflush(NULL);
        pid = fork();
        if (pid)
                return pid;
        sheaf_close_p(&flow.warden_fd);
        if (become(uid, gid))
                _exit(99);
        prctl(PR_SET_DUMPABLE, 1);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != test)
                _exit(99);
        return 0;
}

pid_t flow_spawn(const char *log, const char *arguments)
{
        char text[4096], *argv[ARGS_MAX] = { (char *)(uintptr_t) "sheafd" };
        char *state = NULL;
        int n = 1;
        pid_t pid = flow_fork(flow.uid, 0);

        if (pid)
                return pid;
        snprintf(text, sizeof(text), "%s", arguments);
        for (char *word = strtok_r(text, " ", &state); word && n < ARGS_MAX - 1;
                word = strtok_r(NULL, " ", &state))
                argv[n++] = word;
        if (flow.faults)
                setenv("SHEAF_FAULT_ORIGIN", flow.faults, 1);
        /* "e": the log is for stderr alone. */
        if (!freopen(log, "a", stderr))
                _exit(98);
        execvp("sheafd", argv);
        _exit(97);
}

static void show_log(void)
{
        char line[1024];
        FILE *file = fopen(flow.log, "re");

        while (file && fgets(line, sizeof(line), file))
                fprintf(stderr, "  sheafd: %s", line);
        if (file)
                fclose(file);
}

void flow_launch(void)
{
        char arguments[1024];

        snprintf(arguments, sizeof(arguments),
                "--foreground --cache %s --socket %s --memory %s --disk %s "
                "--floor 64MiB --deadline %d %s %s",
                flow.cache, flow.socket, flow.memory, flow.disk,
                flow.deadline_s, flow.faults ? "--reader " FLOW_READER : "",
                flow.extra ? flow.extra : "");
        flow.daemon = flow_spawn(flow.log, arguments);
        cr_assert(flow.daemon > 0);
}

void flow_start(void)
{
        flow_launch();
        if (flow_until(30, flow_live() || flow_wait(flow.daemon, 0) >= 0) &&
                !kill(flow.daemon, 0))
                return;
        show_log();
        cr_assert(false, "the daemon does not answer");
}

bool flow_live(void)
{
        struct sheaf_session_options options = { .deadline_ms = 2000 };
        struct sheaf_session *session = NULL;
        bool live = !sheaf_session_new(&options, &session) &&
                    !sheaf_session_connect(session);

        if (session)
                sheaf_session_free(session);
        return live;
}

void flow_stop(void)
{
        int rc;

        cr_assert(flow.daemon > 0);
        kill(flow.daemon, SIGTERM);
        rc = flow_wait(flow.daemon, 30);
        if (rc)
                show_log();
        cr_assert_eq(rc, 0, "the daemon ended with %d", rc);
        flow.daemon = 0;
}

void flow_kill(void)
{
        cr_assert(flow.daemon > 0);
        kill(flow.daemon, SIGKILL);
        cr_assert_eq(flow_wait(flow.daemon, 30), 128 + SIGKILL,
                "the daemon had ended before");
        flow.daemon = 0;
}

/* ---- commands ---- */

static size_t drain(int fd, char *buf, size_t have, size_t cap)
{
        char waste[4096];
        size_t room = cap - 1 - have;
        ssize_t n = read(
                fd, room ? buf + have : waste, room ? room : sizeof(waste));

        return n <= 0 ? SIZE_MAX : have + (room ? (size_t)n : 0);
}

static void collect(pid_t pid, int out, int err, struct flow_result *r)
{
        double start = flow_now(), end = start + flow.run_limit_s;
        struct pollfd polls[2] = { { .fd = out, .events = POLLIN },
                { .fd = err, .events = POLLIN } };
        char *bufs[2] = { r->out, r->err };
        size_t caps[2] = { sizeof(r->out), sizeof(r->err) };
        size_t have[2] = { 0, 0 };

        /* A background child may hold the pipes: its parent's end counts. */
        r->rc = -2;
        while (r->rc == -2 || poll(polls, 2, 0) > 0) {
                if (r->rc == -2) {
                        poll(polls, 2, 5);
                        r->rc = flow_wait(pid, 0) + 0;
                        if (r->rc == -1)
                                r->rc = -2;
                }
                if (r->rc == -2 && flow_now() > end) {
                        kill(-pid, SIGKILL);
                        kill(pid, SIGKILL);
                        flow_wait(pid, 5);
                        r->rc = -1;
                }
                for (int i = 0; i < 2; i++) {
                        size_t n;

                        if (polls[i].fd < 0 || !polls[i].revents)
                                continue;
                        n = drain(polls[i].fd, bufs[i], have[i], caps[i]);
                        if (n == SIZE_MAX)
                                polls[i].fd = -1;
                        else
                                have[i] = n;
                }
        }
        r->out[have[0]] = r->err[have[1]] = '\0';
        r->seconds = flow_now() - start;
}

SHEAF_PRINTF(3, 0)
static int run(uid_t uid, gid_t gid, const char *format, va_list args)
{
        static char command[1 << 16];
        int out[2], err[2];
        pid_t pid;

        vsnprintf(command, sizeof(command), format, args);
        cr_assert(!pipe2(out, O_CLOEXEC) && !pipe2(err, O_CLOEXEC));
        pid = flow_fork(uid, gid);
        cr_assert(pid >= 0);
        if (!pid) {
                /* A mount that it starts outlives it. */
                prctl(PR_SET_PDEATHSIG, 0);
                setpgid(0, 0);
                dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
                dup2(out[1], STDOUT_FILENO);
                dup2(err[1], STDERR_FILENO);
                execl("/bin/sh", "sh", "-c", command, (char *)NULL);
                _exit(97);
        }
        close(out[1]);
        close(err[1]);
        collect(pid, out[0], err[0], &flow.last);
        close(out[0]);
        close(err[0]);
        if (getenv("FLOW_VERBOSE"))
                fprintf(stderr, "[%d] %s\n%s%s", flow.last.rc, command,
                        flow.last.out, flow.last.err);
        return flow.last.rc;
}

int flow_run(const char *format, ...)
{
        va_list args;
        int rc;

        va_start(args, format);
        rc = run(0, 0, format, args);
        va_end(args);
        return rc;
}

int flow_run_as(uid_t uid, gid_t gid, const char *format, ...)
{
        va_list args;
        int rc;

        va_start(args, format);
        rc = run(uid, gid, format, args);
        va_end(args);
        return rc;
}

void flow_ok(const char *format, ...)
{
        va_list args;
        int rc;

        va_start(args, format);
        rc = run(flow.uid, 0, format, args);
        va_end(args);
        if (rc)
                show_log();
        cr_assert_eq(rc, 0, "%s: exit code %d\n%s%s", format, rc, flow.last.out,
                flow.last.err);
}

void flow_mount(const char *name, const char *dir)
{
        if (mkdir(dir, 0755) == 0 && flow.uid)
                cr_assert(!chown(dir, flow.uid, flow.uid));
        flow_ok("sheaf mount %s %s", name, dir);
        cr_assert_eq(flow_mounted(dir), 1);
}

void flow_umount(const char *dir)
{
        flow_ok("sheaf umount %s", dir);
        cr_assert_eq(flow_mounted(dir), 0);
}

int flow_mounted(const char *dir)
{
        char line[8192], at[4096];
        FILE *file = fopen("/proc/self/mounts", "re");
        int count = 0;

        while (file && fgets(line, sizeof(line), file))
                if (sscanf(line, "%*s %4095s", at) == 1 && !strcmp(at, dir))
                        count++;
        if (file)
                fclose(file);
        return count;
}

pid_t flow_server(const char *dir)
{
        DIR *proc = opendir("/proc");
        struct dirent *entry;
        pid_t found = 0;

        while (proc && !found && (entry = readdir(proc))) {
                char path[64], text[8192];
                pid_t pid = atoi(entry->d_name);
                ssize_t n;
                int fd;

                if (pid <= 1)
                        continue;
                snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
                fd = open(path, O_RDONLY | O_CLOEXEC);
                n = fd < 0 ? 0 : read(fd, text, sizeof(text));
                if (fd >= 0)
                        close(fd);
                if (n > 0 && memmem(text, (size_t)n, "sheaf-cachefs", 14) &&
                        memmem(text, (size_t)n, dir, strlen(dir) + 1))
                        found = pid;
        }
        if (proc)
                closedir(proc);
        return found;
}

void flow_own_fuse_device(void)
{
        const char *device = flow_path("fuse");
        struct stat st;

        cr_assert(!unshare(CLONE_NEWNS));
        cr_assert(!mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
        /* Where it is so already, no node is made on what may be nodev. */
        if (!stat("/dev/fuse", &st) && (st.st_mode & 0666) == 0666)
                return;
        cr_assert(!mknod(device, S_IFCHR | 0666, makedev(10, 229)));
        cr_assert(!chmod(device, 0666));
        cr_assert(!mount(device, "/dev/fuse", NULL, MS_BIND, NULL));
}
