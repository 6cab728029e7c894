/* SPDX-License-Identifier: Apache-2.0 */
/* Clients, mounts and readers of the origin are killed again and again at
 * random moments; the daemon lives.
 *
 *  1 clients: what one held is free within PINS_S of its death, no block, no
 *    descriptor and no memory stays behind, and another client goes on
 *  2 cachefs: whoever has files open gets an error and never waits for ever;
 *    the next `sheaf mount` works in the same place, without cleaning up
 *  3 readers: no read fails; a listing ends well or with an error
 *  4 a daemon that never lives long keeps no versions that nobody holds
 *
 * Long forms: `tools/soak clients cachefs readers`. */
#include "tests/flow/harness.h"
#include "tests/flow/soak.h"
#include "tests/flow/world.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

TestSuite(kills, .init = flow_init, .fini = flow_fini, .timeout = 1000000);

#define CLIENT_KILLS  500
#define CACHEFS_KILLS 40
#define READER_KILLS  100

#define FILES 40
#define SLOTS 8
/* Promised, and what a machine that does much else may take. */
#define PINS_S       1.0
#define PINS_LIMIT_S (4 * PINS_S)
#define LOOK_EVERY   100

static struct soak soak;
static _Atomic uint64_t *reads; /* shared with clients */

static uint32_t pick(uint32_t below)
{
        return soak_pick(&soak, below);
}

static uint64_t size_of(uint32_t file)
{
        return file % 10 == 9 ? 9000000 + file * UINT64_C(4099)
                              : 5000 + file * UINT64_C(40009);
}

static const char *name_of(uint32_t file)
{
        static _Thread_local char name[16];

        snprintf(name, sizeof(name), "f%02u", file);
        return name;
}

static void setup(const char *name, const char *unit, uint64_t rounds)
{
        soak_begin(&soak, name, unit, rounds, 1);
        reads = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        cr_assert_neq((void *)reads, MAP_FAILED);
        flow.memory = "64MiB";
        flow.disk = "128MiB";
        flow.run_limit_s = 120;
        for (uint32_t f = 0; f < FILES; f++)
                flow_file(1 + f, size_of(f), "%s", name_of(f));
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
}

/* Forks with dice of its own. */
static pid_t fork_client(void)
{
        uint32_t mark = pick(UINT32_MAX);
        pid_t pid = flow_fork(0, 0);

        cr_assert_geq(pid, 0);
        if (!pid)
                soak.rng = mark ? mark : 1;
        return pid;
}

/* ---- clients ---- */

enum habit {
        OPENS,
        VIEWS,
        HOLDS,
        COPIES,
        FORKS,
        THREADS,
        STOPS,
        HABITS
};

static void see(int rc, uint32_t file)
{
        if (!rc) {
                ++*reads;
                return;
        }
        fprintf(stderr, "KILLS: %s: %s: %s\n", name_of(file), strerror(-rc),
                sheaf_last_error());
        _exit(1);
}

static void read_one(struct sheaf_dataset *dataset, uint32_t f, bool copies)
{
        see(copies ? flow_check_read(
                             dataset, name_of(f), 1 + f, size_of(f), 65536)
                   : flow_check_view(dataset, name_of(f), 1 + f, size_of(f)),
                f);
}

static void hold_some(struct sheaf_dataset *dataset)
{
        struct sheaf_view views[4];
        uint64_t ordinals[4];
        int rcs[4];

        for (int i = 0; i < 4; i++)
                ordinals[i] = pick(FILES);
        (void)!sheaf_view_batch(dataset, ordinals, 4, views, rcs);
        flow_sleep(60);
}

static void *read_in_thread(void *dataset)
{
        for (uint32_t i = 0;; i++)
                read_one(dataset, i % FILES, i % 2);
        return NULL;
}

static void live_on(struct sheaf_dataset *dataset, enum habit habit)
{
        pthread_t thread;

        switch (habit) {
        case HOLDS:
        case STOPS:
                hold_some(dataset);
                break;
        case FORKS:
                if (fork())
                        flow_sleep(60);
                hold_some(dataset);
                break;
        case THREADS:
                for (int i = 0; i < 3; i++)
                        if (pthread_create(
                                    &thread, NULL, read_in_thread, dataset))
                                _exit(2);
                flow_sleep(60);
                break;
        default:
                for (;;)
                        read_one(dataset, pick(FILES), habit == COPIES);
        }
}

static pid_t start_client(enum habit habit)
{
        pid_t pid = fork_client();
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        int rc;

        if (pid) {
                setpgid(pid, pid);
                return pid;
        }
        setpgid(0, 0);
        do {
                rc = flow_open("data", &session, &dataset);
                if (rc)
                        see(rc, 0);
                if (habit == OPENS)
                        flow_close(session, dataset);
        } while (habit == OPENS);
        live_on(dataset, habit);
        _exit(0);
}

/* Ends a client and the child that it forked. */
static void end_client(pid_t pid, enum habit habit)
{
        int status;

        if (habit == STOPS)
                kill(pid, SIGSTOP);
        if (habit == FORKS) {
                /* The child holds on for a moment without its parent. */
                kill(pid, SIGKILL);
                flow_sleep(pick(4) / 1000.0);
        }
        kill(-pid, SIGKILL);
        cr_assert_eq(flow_join(pid, 20), 128 + SIGKILL,
                "a client saw something wrong");
        while (waitpid(-pid, &status, 0) > 0)
                ;
}

static double wait_for_pins(void)
{
        double start = flow_now(), took;

        cr_assert(flow_until(20, flow_stat("pins.clients") <= 1),
                "%g clients hold pins", flow_stat("pins.clients"));
        took = flow_now() - start;
        cr_assert_lt(took, PINS_LIMIT_S, "pins stayed for %g s", took);
        cr_assert_eq(flow_stat("pins.forks"), 0);
        return took;
}

/* Drops all from memory: what stays is a leak. */
static bool no_blocks(void)
{
        return !flow_run("sheaf warmup --quiet --evict --memory data") &&
               flow_stat("arena.blocks") == 0 && flow_stat("pins.bytes") == 0;
}

struct level {
        long fds;
        uint64_t memory;
};

static void same_level(struct level *level)
{
        long fds = flow_fds(flow.daemon);
        uint64_t memory = flow_rss(flow.daemon);

        if (!level->fds)
                *level = (struct level){ fds, memory };
        cr_assert_leq(fds, level->fds + 8, "%ld descriptors, %ld before", fds,
                level->fds);
        if (flow_sanitized(flow.daemon))
                return;
        cr_assert_leq(memory, level->memory + (16 << 20),
                "%llu bytes of memory, %llu before", (unsigned long long)memory,
                (unsigned long long)level->memory);
}

/* A client that nobody kills: it reads until its pipe hangs up. */
static pid_t start_steady(int *ret_fd)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        int order[2];
        pid_t pid;

        cr_assert(!pipe2(order, O_CLOEXEC | O_NONBLOCK));
        pid = fork_client();
        if (pid) {
                close(order[0]);
                *ret_fd = order[1];
                return pid;
        }
        close(order[1]);
        see(flow_open("data", &session, &dataset), 0);
        for (char byte; read(order[0], &byte, 1) < 0;) {
                read_one(dataset, pick(FILES), pick(2));
                flow_sleep(0.005);
        }
        flow_close(session, dataset);
        _exit(0);
}

/* Between fillings of the slots: all of them die at once. */
static void look_at_level(pid_t *pids, struct level *level, double *took_max)
{
        double took;

        for (int i = 0; i < SLOTS; i++)
                if (pids[i])
                        kill(-pids[i], SIGKILL);
        for (int i = 0; i < SLOTS; i++)
                if (pids[i])
                        end_client(pids[i], VIEWS);
        memset(pids, 0, SLOTS * sizeof(*pids));
        took = wait_for_pins();
        *took_max = SHEAF_MAX(*took_max, took);
        same_level(level);
}

Test(kills, clients)
{
        enum habit habits[SLOTS] = { 0 };
        pid_t pids[SLOTS] = { 0 }, steady;
        struct level level = { 0 };
        double took_max = 0;
        int steady_fd;

        setup("clients", "kills", CLIENT_KILLS);
        flow_ok("sheaf warmup --quiet --disk data");
        steady = start_steady(&steady_fd);
        while (soak_next(&soak)) {
                uint32_t i = pick(SLOTS);

                if (pids[i])
                        end_client(pids[i], habits[i]);
                habits[i] = pick(HABITS);
                pids[i] = start_client(habits[i]);
                if (pick(4) == 0) {
                        /* While it connects or opens. */
                        flow_sleep(pick(8) / 1000.0);
                        end_client(pids[i], habits[i]);
                        pids[i] = 0;
                } else {
                        flow_sleep(pick(5) / 1000.0);
                }
                cr_assert_eq(flow_wait(steady, 0), -1, "the other one ended");
                if (soak.done % LOOK_EVERY == 0)
                        look_at_level(pids, &level, &took_max);
        }
        look_at_level(pids, &level, &took_max);
        close(steady_fd);
        cr_assert_eq(flow_join(steady, 60), 0);
        cr_assert(flow_until(20, no_blocks()), "%g blocks stay, pins %g",
                flow_stat("arena.blocks"), flow_stat("pins.bytes"));
        soak_end(&soak,
                "%llu reads; pins gone within %.2f s; no block, descriptor or "
                "memory stayed",
                (unsigned long long)*reads, took_max);
        flow_stop();
}

/* ---- the process of a mount ---- */

static bool is_end_of_mount(int rc)
{
        return rc == -ENOTCONN || rc == -EIO || rc == -ECONNABORTED ||
               rc == -ENOENT || rc == -ENODEV || rc == -ESHUTDOWN;
}

/* Reads in the mount until it ends. */
static pid_t start_mount_reader(void)
{
        pid_t pid = fork_client();

        if (pid)
                return pid;
        for (;;) {
                uint32_t f = pick(FILES);
                const char *path = flow_path("mount/%s", name_of(f));
                int rc = flow_check(path, 1 + f, size_of(f), 65536);

                if (is_end_of_mount(rc))
                        _exit(0);
                see(rc, f);
        }
}

/* Whether it serves a mount of this test. */
static bool is_server(pid_t pid)
{
        char path[64], text[1 << 14];
        const char *const files[] = { "comm", "environ" };
        const char *const wanted[] = { "sheaf-cachefs", flow.base };

        for (int i = 0; i < 2; i++) {
                sheaf_autofd int fd = -1;
                ssize_t n;

                snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, files[i]);
                fd = open(path, O_RDONLY | O_CLOEXEC);
                n = fd < 0 ? 0 : read(fd, text, sizeof(text));
                if (n <= 0 ||
                        !memmem(text, (size_t)n, wanted[i], strlen(wanted[i])))
                        return false;
        }
        return true;
}

/* Kills all of them: a refresh has its own beside the old one. */
static bool kill_servers(void)
{
        DIR *proc = opendir("/proc");
        struct dirent *entry;
        int left = 0;

        while (proc && (entry = readdir(proc))) {
                pid_t pid = atoi(entry->d_name);

                if (pid <= 1 || !is_server(pid))
                        continue;
                left++;
                kill(pid, SIGKILL);
                flow_wait(pid, 0);
        }
        closedir(proc);
        return !left;
}

/* A command that is killed in the middle: mount, or mount --refresh. */
static void cut_command(const char *command)
{
        pid_t pid = flow_fork(0, 0);

        cr_assert_geq(pid, 0);
        if (!pid) {
                setpgid(0, 0);
                execl("/bin/sh", "sh", "-c", command, (char *)NULL);
                _exit(97);
        }
        setpgid(pid, pid);
        flow_sleep(pick(60) / 1000.0);
        kill(-pid, SIGKILL);
        cr_assert_geq(flow_join(pid, 10), 0);
}

static void mount_again(void)
{
        double start = flow_now();

        flow_ok("sheaf mount data %s", flow.mount);
        cr_assert_eq(flow_mounted(flow.mount), 1, "%d mounts in one place",
                flow_mounted(flow.mount));
        cr_assert_lt(flow_now() - start, 20);
}

/* One mount, from its start to its violent end. */
static void mount_once(uint64_t *cut)
{
        pid_t readers[2];
        char byte;
        int fd, rc;

        mount_again();
        cr_assert_eq(
                flow_check(flow_path("mount/f00"), 1, size_of(0), 4096), 0);
        fd = open(flow_path("mount/f39"), O_RDONLY | O_CLOEXEC);
        cr_assert_geq(fd, 0);
        for (int i = 0; i < 2; i++)
                readers[i] = start_mount_reader();
        flow_sleep(pick(100) / 1000.0);
        if (pick(4) == 0) {
                ++*cut;
                cut_command("exec sheaf mount --refresh \"$KILLS_DIR\"");
        }
        cr_assert(flow_until(30, kill_servers()));
        for (int i = 0; i < 2; i++) {
                rc = flow_join(readers[i], 30);
                cr_assert_eq(rc, 0, "a reader of the mount ended with %d", rc);
        }
        rc = pread(fd, &byte, 1, 1234567) < 0 ? -errno : 0;
        cr_assert(!rc || is_end_of_mount(rc), "%s", strerror(-rc));
        close(fd);
        if (pick(4) == 0) {
                ++*cut;
                cut_command("exec sheaf mount data \"$KILLS_DIR\"");
                /* It may have come to its end before. */
                cr_assert(flow_until(30, kill_servers()));
        }
}

static void no_leftover(void)
{
        /* Stages of those that live are another's. */
        flow_ok("ls /run | sed -n 's/^sheaf-mount[.]\\([0-9]*\\)[.].*/\\1/p' | "
                "while read -r pid; do kill -0 $pid || exit 1; done");
        cr_assert_eq(flow_mounted(flow.mount), 0);
        cr_assert(flow_until(20, flow_stat("clients") <= 1),
                "connections of dead mounts stay: %g", flow_stat("clients"));
}

Test(kills, cachefs)
{
        uint64_t cut = 0;

        setup("cachefs", "kills", CACHEFS_KILLS);
        setenv("KILLS_DIR", flow.mount, 1);
        while (soak_next(&soak))
                mount_once(&cut);
        mount_again();
        for (uint32_t f = 0; f < FILES; f++)
                cr_assert_eq(flow_check(flow_path("mount/%s", name_of(f)),
                                     1 + f, size_of(f), 65536),
                        0);
        flow_ok("sheaf mount --refresh %s", flow.mount);
        flow_umount(flow.mount);
        no_leftover();
        soak_end(&soak,
                "%llu reads of mounts; %llu commands cut; each next mount "
                "worked",
                (unsigned long long)*reads, (unsigned long long)cut);
        flow_stop();
}

/* ---- readers of the origin ---- */

/* A client that reads all the time, more than memory and disk hold. */
static pid_t start_miss(bool copies)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        pid_t pid = fork_client();

        if (pid)
                return pid;
        see(flow_open("data", &session, &dataset), 0);
        for (;;)
                read_one(dataset, pick(FILES), copies);
}

/* Lists a tree again and again; each end is counted. */
static pid_t start_lister(_Atomic uint64_t *listed, _Atomic uint64_t *failed)
{
        pid_t pid = fork_client();

        if (pid)
                return pid;
        for (uint32_t i = 0;; i++) {
                int fd = creat(flow_path("wide/new%u", i % 64), 0644), rc;

                if (fd >= 0)
                        close(fd);
                rc = flow_run("sheaf update --quiet wide");
                if (rc && rc != 1) {
                        fprintf(stderr, "KILLS: update: %d: %s\n", rc,
                                flow.last.err);
                        _exit(1);
                }
                if (rc && !(*failed)++)
                        fprintf(stderr, "update: %s", flow.last.err);
                if (!rc)
                        ++*listed;
        }
}

/* One child of the daemon, by chance; 0: there is none. */
static pid_t some_reader(void)
{
        char path[64], text[1024] = "", *at = text;
        sheaf_autofd int fd = -1;
        pid_t pids[32];
        uint32_t n = 0;

        snprintf(path, sizeof(path), "/proc/%d/task/%d/children",
                (int)flow.daemon, (int)flow.daemon);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
                return 0;
        while (n < SHEAF_ARRAY_LEN(pids) &&
                (pids[n] = (pid_t)strtol(at, &at, 10)) > 0)
                n++;
        return n ? pids[pick(n)] : 0;
}

static void make_wide(void)
{
        cr_assert(!mkdir(flow_path("wide"), 0755));
        flow_ok("cd %s/wide && for d in 0 1 2 3 4 5 6 7 8 9; do mkdir d$d; "
                "touch d$d/f0 d$d/f1 d$d/f2 d$d/f3 d$d/f4 d$d/f5; done",
                flow.base);
        flow_ok("sheaf add wide %s/wide", flow.base);
}

Test(kills, readers)
{
        _Atomic uint64_t *listed, *failed;
        pid_t workers[4];

        flow.faults = "delay=8:f";
        setup("readers", "kills", READER_KILLS);
        listed = reads + 1;
        failed = reads + 2;
        make_wide();
        for (int i = 0; i < 3; i++)
                workers[i] = start_miss(i == 2);
        workers[3] = start_lister(listed, failed);
        while (soak_next(&soak)) {
                pid_t reader;

                flow_sleep(pick(160) / 1000.0);
                cr_assert(flow_until(20, (reader = some_reader()) > 0),
                        "no reader was started");
                kill(reader, SIGKILL);
                for (int i = 0; i < 4; i++)
                        cr_assert_eq(flow_wait(workers[i], 0), -1,
                                "client %d met an error", i);
        }
        for (int i = 0; i < 4; i++) {
                kill(workers[i], SIGKILL);
                flow_join(workers[i], 10);
        }
        /* The lister's last one may be under way. */
        cr_assert(flow_until(30, !flow_run("sheaf update wide")), "%s",
                flow.last.err);
        flow_ok("sheaf verify data");
        cr_assert_gt(*reads, 0);
        cr_assert_gt(*listed, 0);
        soak_end(&soak,
                "%llu reads without an error, %llu listings, %llu refused "
                "with an error",
                (unsigned long long)*reads, (unsigned long long)*listed,
                (unsigned long long)*failed);
        flow_stop();
}

/* ---- a daemon that never lives for a minute ---- */

#define STARTS 70 /* more than a version lives through unused */

static uint64_t reconnects(const struct sheaf_dataset *dataset)
{
        struct sheaf_stats stats;

        sheaf_stats(dataset, &stats);
        return stats.reconnects;
}

static int versions_kept(void)
{
        flow_ok("ls %s/versions | wc -l", flow.cache);
        return atoi(flow.last.out);
}

Test(kills, old_versions_do_not_pile_up)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        const char *prefix;
        struct shim *shim = flow_shim(&prefix);

        flow_world("", prefix);
        /* It is 2036, by mistake; later a minute after it, and then as it is.
         */
        atomic_store(&shim->wall_offset_sec, INT64_C(315360000));
        flow_file(1, 5000, "held");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        for (uint32_t i = 0; i < 6; i++) {
                flow_file(10 + i, 5000, "f%u", i);
                flow_ok("sheaf update data");
                flow_kill();
                flow_start();
        }
        cr_assert_eq(versions_kept(), 7);
        atomic_fetch_add(&shim->wall_offset_sec, 120);
        for (int i = 0; i < STARTS; i++) {
                uint64_t before = reconnects(dataset);

                if (i == STARTS / 2)
                        atomic_store(&shim->wall_offset_sec, 0);
                flow_kill();
                flow_start();
                if (i % 10 == 0)
                        cr_assert(flow_until(20, reconnects(dataset) > before));
        }
        cr_assert_eq(flow_check_view(dataset, "held", 1, 5000), 0, "%s",
                sheaf_last_error());
        cr_assert_eq(versions_kept(), 2, "%d versions", versions_kept());
        flow_close(session, dataset);
        flow_stop();
}
