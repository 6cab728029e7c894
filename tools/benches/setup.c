/* SPDX-License-Identifier: Apache-2.0 */
/* Surroundings of a benchmark: trees, cold caches, programs, the daemon.
 *
 *  1 a mount is in mounts[] before it is made, the daemon's pid in daemon_pid
 *    as soon as there is one, the directory in base; bench_setup_end() takes
 *    all three away
 *
 * Threads: one, but bench_fill(). */
#include "tools/benches/common.h"

#include "tools/benches/setup.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOUNTS_MAX   8
#define PER_FOLDER   1000
#define WORDS_MAX    16
#define OUTPUT_MAX   (UINT64_C(64) << 20)
#define WAIT_STEP_NS (10 * SHEAF_NS_PER_MS)
#define WAIT_STEPS   6000 /* a minute */

static char base[PATH_MAX / 2];
static char build[PATH_MAX / 2]; /* where the programs of this build are */
static char mounts[MOUNTS_MAX][PATH_MAX];
static pid_t daemon_pid, owner_pid;

static void nap(void)
{
        struct timespec ts = { .tv_nsec = WAIT_STEP_NS };

        nanosleep(&ts, NULL);
}

/* ---- directory ---- */

static int remove_one(
        const char *path, const struct stat *st, int type, struct FTW *ftw)
{
        (void)st;
        (void)type;
        (void)ftw;
        remove(path);
        return 0;
}

const char *bench_dir(void)
{
        const char *tmp = getenv("TMPDIR");

        if (base[0])
                return base;
        snprintf(base, sizeof(base), "%s/sheaf-bench.XXXXXX",
                tmp && *tmp ? tmp : "/var/tmp");
        if (!mkdtemp(base))
                bench_die("mkdtemp %s: %s", base, strerror(errno));
        owner_pid = getpid();
        return base;
}

void bench_setup_end(void)
{
        if (!base[0] || owner_pid != getpid())
                return;
        for (size_t i = 0; i < MOUNTS_MAX; i++)
                if (mounts[i][0])
                        bench_umount(mounts[i]);
        bench_daemon_stop();
        nftw(base, remove_one, 64, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
        base[0] = '\0';
}

/* ---- trees ---- */

void bench_fill(void *buf, size_t len_bytes, uint64_t seed)
{
        uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
        unsigned char *bytes = buf;

        for (size_t i = 0; i < len_bytes; i += 8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                memcpy(bytes + i, &state, SHEAF_MIN(len_bytes - i, 8));
        }
}

void bench_tree_path(uint64_t i, char ret_path[64])
{
        snprintf(ret_path, 64, "class%04u/img_%07u.jpg",
                (unsigned)(i / PER_FOLDER), (unsigned)i);
}

static void write_file(const char *path, const void *buf, uint64_t len_bytes)
{
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);

        if (fd < 0)
                bench_die("%s: %s", path, strerror(errno));
        if (len_bytes && write(fd, buf, len_bytes) != (ssize_t)len_bytes)
                bench_die("writing %s: %s", path, strerror(errno));
        close(fd);
}

void bench_tree(
        const char *dir, uint64_t count, uint64_t size_bytes, uint64_t seed)
{
        sheaf_autofree char *buf = malloc(size_bytes + 8);
        char path[PATH_MAX], name[64];

        if (!buf)
                bench_die("out of memory");
        if (mkdir(dir, 0755))
                bench_die("%s: %s", dir, strerror(errno));
        for (uint64_t i = 0; i < count; i++) {
                bench_tree_path(i, name);
                if (i % PER_FOLDER == 0) {
                        snprintf(path, sizeof(path), "%s/%.9s", dir, name);
                        if (mkdir(path, 0755))
                                bench_die("%s: %s", path, strerror(errno));
                }
                bench_fill(buf, size_bytes, seed + i);
                snprintf(path, sizeof(path), "%s/%s", dir, name);
                write_file(path, buf, size_bytes);
        }
}

void bench_settle(void)
{
        sync();
        sleep(3);
}

static int drop_one(
        const char *path, const struct stat *st, int type, struct FTW *ftw)
{
        int fd;

        (void)st;
        (void)ftw;
        if (type != FTW_F)
                return 0;
        fd = open(path, O_RDONLY | O_NOATIME | O_CLOEXEC);
        if (fd < 0)
                bench_die("%s: %s", path, strerror(errno));
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
        return 0;
}

void bench_drop_tree(const char *dir)
{
        sync();
        nftw(dir, drop_one, 64, FTW_PHYS | FTW_MOUNT);
}

bool bench_drop_caches(void)
{
        int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
        bool done;

        if (fd < 0)
                return false;
        sync();
        done = write(fd, "3", 1) == 1;
        close(fd);
        return done;
}

uint32_t *bench_shuffle(uint64_t count, uint64_t seed)
{
        uint32_t *order = malloc(count * sizeof(*order) + 1);
        uint64_t state = seed | 1;

        if (!order)
                bench_die("out of memory");
        for (uint64_t i = 0; i < count; i++)
                order[i] = (uint32_t)i;
        for (uint64_t i = count; i > 1; i--) {
                uint32_t t;
                uint64_t j;

                state = state * UINT64_C(6364136223846793005) + 1442695041;
                j = (state >> 33) % i;
                t = order[i - 1];
                order[i - 1] = order[j];
                order[j] = t;
        }
        return order;
}

/* ---- programs ---- */

/* @out: where its output goes, or -1. */
static pid_t spawn(const char *const *argv, int out)
{
        pid_t pid = fork();

        if (pid < 0)
                bench_die("fork: %s", strerror(errno));
        if (!pid) {
                int null = open("/dev/null", O_RDWR);

                dup2(null, 0);
                dup2(out < 0 ? null : out, 1);
                signal(SIGINT, SIG_DFL);
                signal(SIGPIPE, SIG_DFL);
                execvp(argv[0], (char *const *)(uintptr_t)argv);
                _exit(127);
        }
        return pid;
}

static int reap(pid_t pid)
{
        int status;

        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int64_t bench_run(const char *const *argv)
{
        int64_t start = bench_clock_ns();
        int rc = reap(spawn(argv, -1));

        if (rc)
                bench_die("%s %s exited with %d", argv[0],
                        argv[1] ? argv[1] : "", rc);
        return bench_clock_ns() - start;
}

char *bench_output(const char *const *argv)
{
        char *text = malloc(OUTPUT_MAX);
        size_t len = 0;
        int ends[2], rc;
        pid_t pid;

        if (!text || pipe2(ends, O_CLOEXEC))
                bench_die("%s: no pipe or memory", argv[0]);
        pid = spawn(argv, ends[1]);
        close(ends[1]);
        for (;;) {
                ssize_t n = read(ends[0], text + len, OUTPUT_MAX - 1 - len);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        break;
                len += (size_t)n;
        }
        close(ends[0]);
        text[len] = '\0';
        rc = reap(pid);
        if (rc)
                bench_die("%s %s exited with %d", argv[0],
                        argv[1] ? argv[1] : "", rc);
        return text;
}

bool bench_have(const char *wanted)
{
        const char *const argv[] = { "sh", "-c", "command -v \"$0\" >/dev/null",
                wanted, NULL };

        return reap(spawn(argv, -1)) == 0;
}

/* The programs of a build lie in daemon/ and tools/, this one in
 * tools/bench/. */
static void program_path(const char *name, char ret_path[PATH_MAX])
{
        if (!build[0]) {
                ssize_t n =
                        readlink("/proc/self/exe", build, sizeof(build) - 1);

                if (n <= 0)
                        bench_die("/proc/self/exe: %s", strerror(errno));
                build[n] = '\0';
                for (int up = 0; up < 3 && strrchr(build, '/'); up++)
                        *strrchr(build, '/') = '\0';
        }
        snprintf(ret_path, PATH_MAX, "%s/%s", build, name);
}

void bench_daemon_start(const char *memory, const char *disk)
{
        char path[PATH_MAX], socket[PATH_MAX], cache[PATH_MAX];
        const char *const status[] = { path, "status", "--quiet", NULL };
        const char *const argv[] = { path, "--foreground", "--cache", cache,
                "--socket", socket, "--memory", memory, "--disk", disk, NULL };

        snprintf(socket, sizeof(socket), "%s/sheafd.sock", bench_dir());
        snprintf(cache, sizeof(cache), "%s/cache", bench_dir());
        setenv("SHEAF_SOCKET", socket, 1);
        program_path("daemon/sheafd", path);
        daemon_pid = fork();
        if (daemon_pid < 0)
                bench_die("fork: %s", strerror(errno));
        if (!daemon_pid) {
                char log[PATH_MAX];
                int fd;

                snprintf(log, sizeof(log), "%s/sheafd.log", base);
                fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
                dup2(fd, 1);
                dup2(fd, 2);
                signal(SIGINT, SIG_IGN);
                execv(path, (char *const *)(uintptr_t)argv);
                _exit(127);
        }
        program_path("tools/sheaf", path);
        for (int i = 0; i < WAIT_STEPS; i++) {
                int out = open("/dev/null", O_WRONLY | O_CLOEXEC);
                pid_t pid;

                if (waitpid(daemon_pid, NULL, WNOHANG) == daemon_pid) {
                        daemon_pid = 0;
                        bench_die("sheafd ended at once");
                }
                /* Refusals before it listens are no news. */
                pid = access(socket, F_OK) ? -1 : spawn(status, out);
                close(out);
                if (pid > 0 && !reap(pid))
                        return;
                nap();
        }
        bench_die("sheafd does not answer");
}

void bench_daemon_stop(void)
{
        pid_t pid = daemon_pid;

        if (!pid)
                return;
        daemon_pid = 0;
        kill(pid, SIGTERM);
        for (int i = 0; i < WAIT_STEPS / 2; i++) {
                if (waitpid(pid, NULL, WNOHANG) == pid)
                        return;
                nap();
        }
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
}

int bench_daemon_pid(void)
{
        return daemon_pid;
}

/* Of all threads of a process. */
static int64_t process_cpu_ns(pid_t pid)
{
        char path[PATH_MAX];
        struct dirent *e;
        int64_t sum = 0;
        DIR *dir;

        snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
        dir = opendir(path);
        while (dir && (e = readdir(dir))) {
                long long ns = 0;
                FILE *f;

                snprintf(path, sizeof(path), "/proc/%d/task/%s/schedstat",
                        (int)pid, e->d_name);
                f = e->d_name[0] == '.' ? NULL : fopen(path, "re");
                if (f && fscanf(f, "%lld", &ns) == 1)
                        sum += ns;
                if (f)
                        fclose(f);
        }
        if (dir)
                closedir(dir);
        return sum;
}

int64_t bench_daemon_cpu_ns(void)
{
        char path[64];
        int64_t sum;
        int child;
        FILE *f;

        if (!daemon_pid)
                return 0;
        sum = process_cpu_ns(daemon_pid);
        snprintf(path, sizeof(path), "/proc/%d/task/%d/children",
                (int)daemon_pid, (int)daemon_pid);
        f = fopen(path, "re");
        while (f && fscanf(f, "%d", &child) == 1)
                sum += process_cpu_ns(child);
        if (f)
                fclose(f);
        return sum;
}

int64_t bench_sheaf(const char *verb, ...)
{
        const char *argv[WORDS_MAX];
        char path[PATH_MAX];
        const char *word = verb;
        size_t n = 0;
        va_list ap;

        program_path("tools/sheaf", path);
        argv[n++] = path;
        va_start(ap, verb);
        while (word && n < WORDS_MAX - 1) {
                argv[n++] = word;
                word = va_arg(ap, const char *);
        }
        va_end(ap);
        argv[n] = NULL;
        return bench_run(argv);
}

double bench_metric(const char *prefix)
{
        char path[PATH_MAX], key[128];
        const char *const argv[] = { path, "stats", "--json", NULL };
        sheaf_autofree char *text = NULL;
        const char *at, *end;
        double sum = 0;

        program_path("tools/sheaf", path);
        text = bench_output(argv);
        at = strstr(text, "\"totals\"");
        if (!at || !(end = strchr(at, '}')))
                bench_die("sheaf stats --json has no totals");
        snprintf(key, sizeof(key), "\"%s", prefix);
        while ((at = strstr(at, key)) && at < end) {
                at = strchr(at, ':');
                sum += atof(at + 1);
        }
        return sum;
}

static void mount_point(const char *dir)
{
        size_t i = 0;

        while (i < MOUNTS_MAX && mounts[i][0])
                i++;
        if (i == MOUNTS_MAX)
                bench_die("too many mounts");
        if (mkdir(dir, 0755) && errno != EEXIST)
                bench_die("%s: %s", dir, strerror(errno));
        snprintf(mounts[i], sizeof(mounts[i]), "%s", dir);
}

int64_t bench_mount(const char *dataset, const char *dir, const char *mode)
{
        mount_point(dir);
        return bench_sheaf("mount", dataset, dir, "--mode", mode, NULL);
}

void bench_mount_other(const char *const *argv, const char *dir)
{
        mount_point(dir);
        bench_run(argv);
}

void bench_umount(const char *dir)
{
        const char *const argv[] = { "fusermount3", "-u", "-q", dir, NULL };

        for (size_t i = 0; i < MOUNTS_MAX; i++)
                if (!strcmp(mounts[i], dir)) {
                        /* Not through bench_run: it may be gone already. */
                        if (umount2(dir, 0))
                                reap(spawn(argv, -1));
                        umount2(dir, MNT_DETACH);
                        mounts[i][0] = '\0';
                        return;
                }
}
