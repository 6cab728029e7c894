/* SPDX-License-Identifier: Apache-2.0 */
/* Mounts that die, are busy, or move to another version, under readers: who
 * reads gets right bytes or an error at once, nothing is left in the mount
 * table, and the next mount needs no help.
 *
 * SOAK_ROUNDS: kills of a mount's process (20). */
#include "proto/wire.h"
#include "tests/flow/harness.h"
#include "tests/flow/soak.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

TestSuite(mountlife, .init = flow_init, .fini = flow_fini, .timeout = 100000);

#define MIB   (1 << 20)
#define WARM  700000
#define FILES 100

#define KILLS_MAX 2000 /* each wants two files that nobody has read */

/* Processes that serve @dir. */
static int servers(const char *dir)
{
        DIR *proc = opendir("/proc");
        struct dirent *entry;
        int count = 0;

        while (proc && (entry = readdir(proc))) {
                char path[300], text[4096];
                sheaf_autofd int fd = -1;
                ssize_t n;

                snprintf(path, sizeof(path), "/proc/%s/cmdline", entry->d_name);
                fd = open(path, O_RDONLY | O_CLOEXEC);
                n = fd < 0 ? 0 : read(fd, text, sizeof(text));
                count += n > 0 &&
                         memmem(text, (size_t)n, "sheaf-cachefs", 14) &&
                         memmem(text, (size_t)n, dir, strlen(dir) + 1);
        }
        if (proc)
                closedir(proc);
        return count;
}

/* ---- the process of a mount is killed ---- */

/* Asked for from the last to the first: nothing is read ahead. */
static const char *slow_name(uint32_t i)
{
        static char name[32];

        snprintf(name, sizeof(name), "slow/f%08u", 99999999 - i);
        return name;
}

/* Reads a file that takes the origin seconds. @direct: around the page
 * cache. Exit status: errno, 98 for wrong bytes. */
static pid_t read_slow(uint32_t i, bool direct)
{
        const char *path = flow_path("mount/%s", slow_name(i));
        pid_t pid = flow_fork(0, 0);
        void *buf;
        ssize_t n;
        int fd;

        if (pid)
                return pid;
        fd = open(path, O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0));
        if (fd < 0 || posix_memalign(&buf, 4096, 65536))
                _exit(99);
        n = read(fd, buf, 65536);
        if (n >= 0 &&
                (n != 65536 || !flow_stamp_check(buf, 1000 + i, 0, 65536)))
                _exit(98);
        _exit(n < 0 ? errno : 0);
}

/* Maps a warm file, touches a page, waits for the word, touches all. */
static pid_t map_warm(const char *go)
{
        const char *path = flow_path("mount/warm");
        pid_t pid = flow_fork(0, 0);
        char *map;
        int fd;

        if (pid)
                return pid;
        fd = open(path, O_RDONLY | O_CLOEXEC);
        map = mmap(NULL, WARM, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED || !flow_stamp_check(map, 200, 0, 4096))
                _exit(99);
        creat(flow_path("mapped"), 0644);
        while (access(go, F_OK))
                flow_sleep(0.01);
        _exit(!flow_stamp_check(map, 200, 0, WARM));
}

static bool is_gone(int rc)
{
        return rc == ENOTCONN || rc == ECONNABORTED;
}

/* A descriptor of the dead mount: an error, or right bytes that the kernel
 * still has. */
static void check_dead_descriptor(int fd)
{
        static char buf[65536];
        ssize_t n = pread(fd, buf, sizeof(buf), 0);

        if (n < 0)
                cr_assert(is_gone(errno), "%s", strerror(errno));
        else
                cr_assert(flow_stamp_check(buf, 200, 0, (size_t)n));
        n = pread(fd, buf, sizeof(buf), WARM - 1000);
        if (n < 0)
                cr_assert(is_gone(errno), "%s", strerror(errno));
        else
                cr_assert(n == 1000 &&
                          flow_stamp_check(buf, 200, WARM - 1000, 1000));
}

static void one_death(uint32_t round)
{
        const char *go = flow_path("go%u", round);
        pid_t buffered, direct, mapper, server = flow_server(flow.mount);
        int warm = open(flow_path("mount/warm"), O_RDONLY | O_CLOEXEC), rc;
        double start, reads;

        cr_assert_geq(warm, 0);
        unlink(flow_path("mapped"));
        mapper = map_warm(go);
        cr_assert(flow_until(20, access(flow_path("mapped"), F_OK) == 0));
        reads = flow_stat("mount.requests.read");
        buffered = read_slow(2 * round, false);
        direct = read_slow(2 * round + 1, true);
        cr_assert(flow_until(20, flow_stat("mount.requests.read") >= reads + 2),
                "the readers do not wait");
        cr_assert_gt(server, 0);
        cr_assert(!kill(server, SIGKILL));
        /* Much less than the origin takes. */
        rc = flow_join(direct, 4);
        cr_assert(is_gone(rc), "direct: %s", strerror(rc));
        rc = flow_join(buffered, 4);
        cr_assert(is_gone(rc) || rc == EIO, "buffered: %s", strerror(rc));
        check_dead_descriptor(warm);
        creat(go, 0644);
        rc = flow_join(mapper, 10);
        cr_assert(rc == 0 || rc == 128 + SIGBUS, "mapped: %d", rc);
        start = flow_now();
        flow_ok("sheaf mount data %s", flow.mount);
        cr_assert_lt(flow_now() - start, 5);
        cr_assert_eq(flow_mounted(flow.mount), 1);
        for (uint32_t i = 0; i < FILES; i++)
                cr_assert_eq(flow_check(flow_path("mount/f%u", i), i + 1,
                                     1000 + i, 4096),
                        0);
        cr_assert_neq(flow_server(flow.mount), server);
        cr_assert(flow_until(30, servers(flow.mount) == 1), "%d serve",
                servers(flow.mount));
        close(warm);
}

Test(mountlife, killed_under_readers)
{
        struct soak soak;
        uint64_t most;

        soak_begin(&soak, "mountlife", "kills", 8, 1);
        most = soak.rounds ? soak.rounds : KILLS_MAX;
        flow.faults = "delay=12000:slow";
        flow.deadline_s = 20;
        for (uint32_t i = 0; i < FILES; i++)
                flow_file(i + 1, 1000 + i, "f%u", i);
        for (uint32_t i = 0; i < 2 * most; i++)
                flow_file(1000 + i, 70000, "%s", slow_name(i));
        flow_file(200, WARM, "warm");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        cr_assert_eq(flow_check(flow_path("mount/warm"), 200, WARM, 65536), 0);
        while (soak.done < most && soak_next(&soak))
                one_death((uint32_t)soak.done - 1);
        soak_end(&soak, "one mount in the table, one process each time");
        flow_umount(flow.mount);
        cr_assert(flow_until(30, flow_stat("clients") <= 1),
                "connections of dead mounts stay: %g", flow_stat("clients"));
        flow_stop();
}

/* ---- busy ---- */

/* One that reads on when told by a byte; then its answer is a byte. */
struct user {
        pid_t pid;
        int ask, answer;
};

/* With the file open, or with its working directory in the mount. */
static struct user start_user(bool cwd)
{
        uint64_t at = 0;
        int ask[2], answer[2], fd = -1;
        char *buf, byte;
        pid_t pid;

        cr_assert(!pipe2(ask, O_CLOEXEC) && !pipe2(answer, O_CLOEXEC));
        pid = flow_fork(0, 0);
        if (pid) {
                close(ask[0]);
                close(answer[1]);
                return (struct user){ pid, ask[1], answer[0] };
        }
        close(ask[1]);
        buf = malloc(MIB);
        if (cwd && chdir(flow_path("mount/dir")))
                _exit(1);
        if (!cwd)
                fd = open(flow_path("mount/file"), O_RDONLY | O_CLOEXEC);
        byte = '+';
        if (write(answer[1], &byte, 1) != 1)
                _exit(2);
        while (read(ask[0], &byte, 1) == 1 && byte != 'q') {
                ssize_t n = cwd ? 1 : read(fd, buf, MIB);

                if (cwd && access("inner", R_OK))
                        _exit(3);
                if (n < 0 || (!cwd && !flow_stamp_check(buf, 1, at, (size_t)n)))
                        _exit(4);
                at += (uint64_t)n;
                byte = n ? '+' : '.';
                if (write(answer[1], &byte, 1) != 1)
                        _exit(5);
        }
        _exit(0);
}

static char answer_of(const struct user *user)
{
        char byte = '?';

        if (read(user->answer, &byte, 1) != 1)
                return '?';
        return byte;
}

static char ask(const struct user *user)
{
        return write(user->ask, "x", 1) == 1 ? answer_of(user) : '?';
}

static void end_user(struct user *user)
{
        cr_assert_eq(write(user->ask, "q", 1), 1);
        close(user->ask);
        cr_assert_eq(flow_join(user->pid, 10), 0);
        close(user->answer);
}

static void names_holder(pid_t pid)
{
        char text[16];

        snprintf(text, sizeof(text), "%d", (int)pid);
        cr_assert(strstr(flow.last.err, text), "%s is not named: %s", text,
                flow.last.err);
}

/* A file that no process has, as it lies in a socket: for ever it is told, for
 * a moment it is waited for. */
Test(mountlife, unmount_while_nobody_holds_it)
{
        int pair[2], fd;
        pid_t pid;

        flow_file(1, 1000, "file");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        cr_assert(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
        fd = open(flow_path("mount/file"), O_RDONLY | O_CLOEXEC);
        cr_assert(!sheaf_wire_send_record(pair[0], "x", 1, &fd, 1));
        close(fd);
        cr_assert_neq(flow_run("sheaf umount %s", flow.mount), 0);
        cr_assert(strstr(flow.last.err, "in use"), "%s", flow.last.err);
        cr_assert_eq(flow_mounted(flow.mount), 1);
        pid = flow_fork(0, 0);
        if (!pid) {
                flow_sleep(0.2);
                _exit(0);
        }
        close(pair[0]);
        close(pair[1]);
        flow_umount(flow.mount);
        cr_assert_eq(flow_join(pid, 10), 0);
        flow_stop();
}

Test(mountlife, unmount_while_busy)
{
        struct user file, cwd;
        int mib = 1;
        pid_t server;

        flow_file(1, 8 * MIB, "file");
        flow_file(2, 10, "dir/inner");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        server = flow_server(flow.mount);
        file = start_user(false);
        cwd = start_user(true);
        cr_assert_eq(answer_of(&file), '+');
        cr_assert_eq(answer_of(&cwd), '+');
        cr_assert_neq(flow_run("sheaf umount %s", flow.mount), 0);
        names_holder(file.pid);
        names_holder(cwd.pid);
        cr_assert_eq(flow_mounted(flow.mount), 1);
        cr_assert_eq(flow_check(flow_path("mount/file"), 1, 8 * MIB, MIB), 0);
        cr_assert_eq(ask(&file), '+');
        flow_ok("sheaf umount --lazy %s", flow.mount);
        cr_assert_eq(flow_mounted(flow.mount), 0);
        flow_ok("test -z \"$(ls -A %s)\"", flow.mount);
        /* The place can be used again while the old mount lives on. */
        flow_mount("data", flow.mount);
        flow_umount(flow.mount);
        cr_assert_eq(ask(&cwd), '+');
        for (char c; (c = ask(&file)) != '.'; mib++)
                cr_assert_eq(c, '+');
        cr_assert_eq(mib, 8);
        end_user(&file);
        cr_assert(!kill(server, 0), "ended under its last user");
        end_user(&cwd);
        cr_assert(flow_until(30,
                          kill(server, 0) != 0 || flow_wait(server, 0) >= 0),
                "the process of the mount lives on");
        cr_assert_eq(flow_mounted(flow.mount), 0);
        flow_stop();
        cr_assert_neq(access(flow.socket, F_OK), 0, "the socket stays");
}

/* The daemon stops under a busy mount: it ends, and leaves no socket; the
 * mount waits for the next one. */
Test(mountlife, daemon_stops_under_a_busy_mount)
{
        struct user file;

        flow_file(1, 4 * MIB, "file");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        file = start_user(false);
        cr_assert_eq(answer_of(&file), '+');
        cr_assert_eq(ask(&file), '+');
        flow_stop();
        cr_assert_neq(access(flow.socket, F_OK), 0, "the socket stays");
        cr_assert_eq(flow_mounted(flow.mount), 1);
        flow_start();
        cr_assert_eq(ask(&file), '+');
        cr_assert_eq(flow_check(flow_path("mount/file"), 1, 4 * MIB, MIB), 0);
        end_user(&file);
        flow_umount(flow.mount);
        flow_stop();
}

/* ---- a refresh that cannot move mounts ---- */

struct seen {
        _Atomic uint64_t looks, bare, fresh;
        _Atomic int odd; /* an errno that nobody may see, or EBADMSG */
        _Atomic uint64_t longest_us;
        atomic_bool stop;
};

static struct seen *seen;

/* Reads a file that no version changes, at the place, all the time: its bytes,
 * or for a moment no such file, and nothing else. */
static pid_t start_looker(uid_t uid)
{
        const char *path = flow_path("mount/f");
        double bare_since = 0;
        pid_t pid;

        seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        cr_assert_neq(seen, MAP_FAILED);
        pid = flow_fork(uid, 0);
        if (pid)
                return pid;
        while (!atomic_load(&seen->stop)) {
                int rc = flow_check(path, 1, 5000, 4096);

                atomic_fetch_add(&seen->looks, 1);
                if (rc == -ENOENT) {
                        bare_since = bare_since ? bare_since : flow_now();
                        atomic_fetch_add(&seen->bare, 1);
                        continue;
                }
                if (bare_since) {
                        uint64_t us =
                                (uint64_t)(1e6 * (flow_now() - bare_since));

                        if (us > seen->longest_us)
                                seen->longest_us = us;
                        bare_since = 0;
                }
                if (rc)
                        seen->odd = -rc;
        }
        _exit(0);
}

static void end_looker(pid_t pid, const char *who)
{
        cr_assert(flow_until(30, seen->looks > 10));
        atomic_store(&seen->stop, true);
        cr_assert_eq(flow_join(pid, 10), 0);
        fprintf(stderr, "%s: %llu looks, %llu bare, longest %llu us\n", who,
                (unsigned long long)seen->looks, (unsigned long long)seen->bare,
                (unsigned long long)seen->longest_us);
        cr_assert_eq(seen->odd, 0, "%s saw %s", who, strerror(seen->odd));
}

/* From now on move_mount() knows no MOVE_MOUNT_BENEATH, as before 6.5. */
static void make_kernel_old(void)
{
        struct sock_filter code[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                        offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_move_mount, 0, 3),
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                        offsetof(struct seccomp_data, args[4])),
                BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x200, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = { SHEAF_ARRAY_LEN(code), code };

        cr_assert(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        cr_assert(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "%s",
                strerror(errno));
        cr_assert(syscall(SYS_move_mount, -1, "", -1, "", 0x200) < 0 &&
                  errno == EINVAL);
}

static void refresh_under_looker(uid_t uid, const char *who)
{
        pid_t looker;
        int fd;
        char byte;

        flow_file(1, 5000, "f");
        flow_ok("chmod 755 %s", flow.origin);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_ok("sheaf mount data %s", flow.mount);
        fd = open(flow_path("mount/f"), O_RDONLY | O_CLOEXEC);
        looker = start_looker(uid);
        for (int round = 0; round < 3; round++) {
                flow_file(2, 6000, "g%d", round);
                flow_ok("sheaf update data");
                flow_ok("sheaf mount --refresh %s", flow.mount);
                cr_assert_eq(flow_mounted(flow.mount), 1);
                flow_ok("cmp %s/g%d %s/g%d", flow.mount, round, flow.origin,
                        round);
        }
        end_looker(looker, who);
        cr_assert_neq(flow_run_as(uid, 0,
                              "sheaf mount --refresh --version "
                              "00000000-0000-0000-0000-000000000001 %s",
                              flow.mount),
                0);
        cr_assert_eq(flow_mounted(flow.mount), 1);
        flow_ok("cmp %s/g2 %s/g2", flow.mount, flow.origin);
        if (fd >= 0) {
                cr_assert_eq(
                        pread(fd, &byte, 1, 4999), 1, "%s", strerror(errno));
                close(fd);
        }
        flow_umount(flow.mount);
        cr_assert(flow_until(30, servers(flow.mount) == 0));
        flow_stop();
}

Test(mountlife, refresh_on_an_old_kernel)
{
        make_kernel_old();
        refresh_under_looker(0, "old kernel");
}

/* An ordinary user with a name, and a device for all users. */
Test(mountlife, refresh_without_root)
{
        struct passwd *user = getpwnam("daemon");

        if (!user || access("/etc/mtab", F_OK)) {
                printf("SKIP: refresh_without_root: no user `daemon` or no "
                       "/etc/mtab\n");
                return;
        }
        flow_own_fuse_device();
        flow.uid = user->pw_uid;
        cr_assert_eq(flow_run("chown -R daemon:daemon %s", flow.base), 0);
        refresh_under_looker(flow.uid, "without root");
}
