/* SPDX-License-Identifier: Apache-2.0 */
/* Everything at once, at random, for a while: readers, commands, mounts,
 * changing origins, killed clients, killed daemons; on a cache much smaller
 * than the data.
 *
 *  1 every byte that is read belongs to one generation of its file, the one
 *    whose size the opened version lists; or the read is an error
 *  2 the daemon answers status within STATUS_LIMIT_S all the time
 *  3 in the end nothing is held, nothing under way, descriptors and disk are
 *    what they were, and the daemon stops without a leak or a report
 *
 * FLOW_MONKEY_S: for how many seconds (20); FLOW_MONKEY_SEED: which run. */
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

TestSuite(monkey, .init = flow_init, .fini = flow_fini, .timeout = 100000);

#define TREES          3
#define FILES          60 /* of a tree; the last ones are large */
#define LARGE          4
#define GENERATIONS    64
#define NAMES          5
#define STATUS_LIMIT_S 2.0
#define HELD           24
#define REPORT_EXIT    77 /* of a sanitizer, set by ASAN_OPTIONS */

enum kind {
        READER,
        COMMANDS,
        MOUNTER,
        ORIGIN,
        KINDS
};

static const enum kind cast[] = { READER, READER, READER, READER, COMMANDS,
        COMMANDS, COMMANDS, MOUNTER, MOUNTER, ORIGIN };

#define WORKERS SHEAF_ARRAY_LEN(cast)

static unsigned int rng;

static unsigned int pick(unsigned int below)
{
        rng ^= rng << 13;
        rng ^= rng >> 17;
        rng ^= rng << 5;
        return rng % below;
}

/* ---- files that say which they are ---- */

static uint32_t id_of(uint32_t tree, uint32_t file, uint32_t generation)
{
        return 1 + (tree * FILES + file) * GENERATIONS + generation;
}

/* Another size for each generation. */
static uint64_t size_of(uint32_t file, uint32_t generation)
{
        uint64_t base = file >= FILES - LARGE
                                ? 5000000 + file * UINT64_C(300007)
                                : 1 + file * UINT64_C(7919) * 37 % 400000;

        return base + generation * 13;
}

/* Writes a new generation: beside it and renamed, or in place. */
static void write_file(
        uint32_t tree, uint32_t file, uint32_t generation, bool in_place)
{
        uint64_t len = size_of(file, generation);
        sheaf_autofree uint8_t *buf = malloc(len);
        const char *path = flow_path("tree%u/d%u/f%u", tree, file % 7, file);
        const char *tmp = in_place ? path : flow_path("tmp-%u", tree);
        int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

        if (fd >= 0 && buf) {
                flow_stamp_bytes(buf, id_of(tree, file, generation), 0, len);
                if (write(fd, buf, len) != (ssize_t)len)
                        unlink(tmp);
                else if (!in_place && rename(tmp, path))
                        unlink(tmp);
        }
        if (fd >= 0)
                close(fd);
}

static void make_trees(void)
{
        for (uint32_t t = 0; t < TREES; t++) {
                mkdir(flow_path("tree%u", t), 0755);
                for (uint32_t d = 0; d < 7; d++)
                        mkdir(flow_path("tree%u/d%u", t, d), 0755);
                for (uint32_t f = 0; f < FILES; f++)
                        write_file(t, f, 0, false);
        }
}

/* Whether @len bytes at @offset of a file of @size bytes, named @path, are
 * one generation's. Any tree: datasets are removed and added over others. */
static bool is_right(const char *path, const void *bytes, uint64_t offset,
        size_t len, uint64_t size)
{
        const char *slash = strrchr(path, '/');
        uint32_t file = (uint32_t)atoi(slash ? slash + 2 : path + 1);

        for (uint32_t t = 0; t < TREES; t++)
                for (uint32_t g = 0; g < GENERATIONS; g++)
                        if (size_of(file, g) == size &&
                                flow_stamp_check(
                                        bytes, id_of(t, file, g), offset, len))
                                return true;
        return len == 0;
}

static void wrong(const char *how, const char *path)
{
        fprintf(stderr, "MONKEY: wrong bytes by %s: %s\n", how, path);
        _exit(1);
}

/* ---- library readers ---- */

struct held {
        struct sheaf_view view;
        char path[64];
        bool live;
};

static void check_view(const struct sheaf_view *view, const char *path)
{
        uint64_t at = 0;

        for (size_t i = 0; i < view->piece_count; i++) {
                if (!is_right(path, view->pieces[i].iov_base, at,
                            view->pieces[i].iov_len, view->len_bytes))
                        wrong("view", path);
                at += view->pieces[i].iov_len;
        }
        if (at != view->len_bytes)
                wrong("a short view", path);
}

static void drop(struct held *held)
{
        if (!held->live)
                return;
        check_view(&held->view, held->path);
        sheaf_view_release(&held->view);
        held->live = false;
}

static void read_batch(struct sheaf_dataset *ds, struct held *held)
{
        uint64_t ordinals[HELD], files = sheaf_dataset_files(ds);
        struct sheaf_view views[HELD];
        int rcs[HELD];
        size_t n = 1 + pick(HELD);

        for (size_t i = 0; i < HELD; i++)
                drop(&held[i]);
        for (size_t i = 0; i < n; i++)
                ordinals[i] = pick((unsigned int)files);
        if (sheaf_view_batch(ds, ordinals, n, views, rcs) <= 0)
                return;
        for (size_t i = 0; i < n; i++) {
                if (rcs[i])
                        continue;
                /* A view's pieces may point into itself: moved with care. */
                held[i].view = views[i];
                if (views[i].pieces == views[i].inline_pieces_)
                        held[i].view.pieces = held[i].view.inline_pieces_;
                if (views[i].pins_ == views[i].inline_pins_)
                        held[i].view.pins_ = held[i].view.inline_pins_;
                held[i].live = true;
                sheaf_dataset_path(
                        ds, ordinals[i], held[i].path, sizeof(held[i].path));
                check_view(&held[i].view, held[i].path);
        }
}

static void read_copy(struct sheaf_dataset *ds)
{
        uint64_t file = pick((unsigned int)sheaf_dataset_files(ds));
        int64_t size = sheaf_dataset_size(ds, file);
        uint64_t at = pick((unsigned int)size + 1);
        size_t len = 1 + pick(300000);
        sheaf_autofree uint8_t *buf = malloc(len);
        char path[64];
        int64_t n;

        if (!buf)
                return;
        sheaf_dataset_path(ds, file, path, sizeof(path));
        n = sheaf_read(ds, file, buf, len, at);
        if (n < 0)
                return;
        if ((uint64_t)n != SHEAF_MIN(len, (uint64_t)size - at))
                wrong("a short read", path);
        if (!is_right(path, buf, at, (size_t)n, (uint64_t)size))
                wrong("read", path);
}

static void read_one(struct sheaf_dataset *ds)
{
        uint64_t file = pick((unsigned int)sheaf_dataset_files(ds));
        struct sheaf_view view;
        char path[64];

        sheaf_dataset_path(ds, file, path, sizeof(path));
        if (sheaf_view_file(ds, file, &view))
                return;
        check_view(&view, path);
        sheaf_view_release(&view);
}

static void hint(struct sheaf_dataset *ds)
{
        uint64_t ordinals[64];
        size_t n = 1 + pick(64);

        for (size_t i = 0; i < n; i++)
                ordinals[i] = pick((unsigned int)sheaf_dataset_files(ds));
        (void)!sheaf_prefetch(ds, ordinals, n);
}

static void read_some(struct sheaf_dataset *ds)
{
        struct held *held = sheaf_new(struct held, HELD);
        unsigned int turns = 1 + pick(40);

        for (; held && turns && sheaf_dataset_files(ds); turns--) {
                switch (pick(5)) {
                case 0:
                        read_batch(ds, held);
                        break;
                case 1:
                        read_copy(ds);
                        break;
                case 2:
                        hint(ds);
                        break;
                case 3:
                        flow_sleep(pick(20) / 1000.0);
                        break;
                default:
                        read_one(ds);
                }
        }
        for (size_t i = 0; held && i < HELD; i++)
                drop(&held[i]);
        free(held);
}

static void be_reader(double end)
{
        while (flow_now() < end) {
                struct sheaf_session_options options = { .deadline_ms =
                                                                 1 + pick(8000),
                        .pin_bytes = pick(3) ? 0 : 1 + pick(10000000) };
                struct sheaf_session *session;
                struct sheaf_dataset *ds;
                char name[32];

                snprintf(name, sizeof(name), "n%u", pick(NAMES));
                if (sheaf_session_new(&options, &session))
                        _exit(2);
                if (!sheaf_dataset_open(session, name, &ds)) {
                        read_some(ds);
                        sheaf_dataset_close(ds);
                } else {
                        flow_sleep(0.02);
                }
                sheaf_session_free(session);
        }
}

/* ---- commands ---- */

static const char *const lines[] = {
        "add --force --share all n%u %s/tree%u",
        "add --force --share all n%u %s/tree%u",
        "add --force --share all n%u %s/tree%u",
        "add --force --share all n%u %s/tree%u",
        "add --force --share all n%u %s/tree%u",
        "add n%u %s/tree%u",
        "update n%u",
        "update n%u",
        "update n%u %s/tree%u",
        "rm n%u",
        "rm --force n%u",
        "share --force n%u all",
        "share n%u owner",
        "seal n%u",
        "warmup n%u",
        "warmup --disk n%u",
        "warmup --rate 3M n%u d1 d2/f2",
        "warmup --check n%u",
        "warmup --evict n%u",
        "warmup --evict --memory n%u",
        "verify n%u",
        "verify --repair n%u",
        "stats --json",
        "stats n%u",
        "status",
        "ls",
        "ls n%u",
        "grant n%u --dir %s/grant%u",
        "grant --list",
};

static void revoke_some(void)
{
        char id[32];
        char *at;

        flow_run("sheaf grant --list --json");
        at = strstr(flow.last.out, "\"id\"");
        if (at && sscanf(at, "\"id\"%*[ :]\"%16[0-9a-f]", id) == 1)
                flow_run("sheaf grant --revoke %s", id);
}

static void be_commander(double end)
{
        flow.run_limit_s = 60;
        while (flow_now() < end) {
                const char *line = lines[pick(SHEAF_ARRAY_LEN(lines))];
                char args[512], cut[48] = "";
                int rc;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
                snprintf(args, sizeof(args), line, pick(NAMES), flow.base,
                        pick(TREES));
#pragma GCC diagnostic pop
                /* One of six is interrupted, by a signal it can or cannot
                 * catch. */
                if (!pick(6))
                        snprintf(cut, sizeof(cut),
                                "timeout --foreground -s %s 0.%u",
                                pick(2) ? "INT" : "KILL", 1 + pick(4));
                if (!pick(12))
                        revoke_some();
                rc = flow_run("%s sheaf %s", cut, args);
                if (rc == -1 || rc == REPORT_EXIT || rc == 128 + SIGSEGV ||
                        rc == 128 + SIGABRT) {
                        fprintf(stderr, "MONKEY: sheaf %s: %d\n%s%s", args, rc,
                                flow.last.out, flow.last.err);
                        _exit(1);
                }
                flow_sleep(pick(200) / 1000.0);
        }
}

/* ---- mounts ---- */

static void read_mounted(const char *dir)
{
        static uint8_t buf[1 << 20];

        for (unsigned int turns = 1 + pick(30); turns; turns--) {
                uint32_t f = pick(FILES);
                const char *path = flow_path("%s/d%u/f%u", dir, f % 7, f);
                sheaf_autofd int fd = open(path, O_RDONLY | O_CLOEXEC);
                struct stat st;
                uint64_t at;
                ssize_t n;

                if (fd < 0 || fstat(fd, &st))
                        continue;
                at = pick((unsigned int)st.st_size + 1);
                n = pread(fd, buf, 1 + pick(sizeof(buf)), (off_t)at);
                if (n > 0 && !is_right(path, buf, at, (size_t)n,
                                     (uint64_t)st.st_size))
                        wrong("mount", path);
                if (n == 0 && at < (uint64_t)st.st_size)
                        wrong("a short read of a mount", path);
        }
}

static void be_mounter(double end, size_t self)
{
        char name[32];
        const char *dir;

        snprintf(name, sizeof(name), "mount%zu", self);
        dir = strdup(flow_path("%s", name));
        mkdir(dir, 0755);
        flow.run_limit_s = 60;
        while (flow_now() < end) {
                if (flow_run("sheaf mount n%u %s", pick(NAMES), dir)) {
                        /* Perhaps there from a mounter that was killed. */
                        umount2(dir, MNT_DETACH);
                        flow_sleep(0.1);
                        continue;
                }
                read_mounted(name);
                if (!pick(4)) {
                        pid_t server = flow_server(dir);

                        if (server)
                                kill(server, SIGKILL);
                }
                if (flow_run("sheaf umount %s", dir))
                        umount2(dir, MNT_DETACH);
        }
        umount2(dir, MNT_DETACH);
        free((void *)dir);
}

/* ---- origins ---- */

static void be_origin(double end)
{
        uint32_t generation[TREES][FILES] = { 0 };

        while (flow_now() < end) {
                uint32_t t = pick(TREES), f = pick(FILES);
                const char *path = flow_path("tree%u/d%u/f%u", t, f % 7, f);

                switch (pick(6)) {
                case 0:
                        unlink(path);
                        break;
                case 1:
                        chmod(path, pick(2) ? 0644 : 0600);
                        break;
                default:
                        generation[t][f] = (generation[t][f] + 1) % GENERATIONS;
                        write_file(t, f, generation[t][f], pick(3) == 0);
                }
                flow_sleep(pick(400) / 1000.0);
        }
}

/* ---- the director ---- */

static pid_t workers[WORKERS];

static void spawn(size_t i, double end)
{
        uid_t uid = cast[i] == READER && i % 2 ? 4001 : 0;

        rng = rng * 1664525 + 1013904223;
        if (!rng)
                rng = 1;
        workers[i] = flow_fork(uid, 0);
        cr_assert(workers[i] >= 0);
        if (workers[i])
                return;
        /* A signal amid a leak check hangs it; the daemon's counts here. */
        setenv("ASAN_OPTIONS", "exitcode=77:detect_leaks=0", 1);
        rng ^= (unsigned int)(i + 1) * 2654435761u;
        if (!rng)
                rng = 1;
        if (cast[i] == READER)
                be_reader(end);
        else if (cast[i] == COMMANDS)
                be_commander(end);
        else if (cast[i] == MOUNTER)
                be_mounter(end, i);
        else
                be_origin(end);
        _exit(0);
}

static bool reported(void)
{
        return !flow_run("grep -aqE 'ERROR: [A-Za-z]+Sanitizer|WARNING: "
                         "ThreadSanitizer|runtime error:' %s",
                flow.log);
}

static void no_report(void)
{
        if (!reported())
                return;
        flow_run("cat %s", flow.log);
        fprintf(stderr, "%s\n", flow.last.out);
        cr_assert(false, "a sanitizer speaks");
}

/* Workers that ended by themselves found something wrong. */
static void see_workers(double end)
{
        for (size_t i = 0; i < WORKERS; i++) {
                int rc = flow_wait(workers[i], 0);

                if (rc < 0)
                        continue;
                cr_assert(rc == 0 && flow_now() >= end - 1,
                        "worker %zu ended with %d", i, rc);
                workers[i] = 0;
        }
}

static void kill_one(double end)
{
        size_t i = pick(WORKERS);

        if (!workers[i] || cast[i] == ORIGIN)
                return;
        kill(workers[i], SIGKILL);
        flow_wait(workers[i], 5);
        if (cast[i] == MOUNTER)
                umount2(flow_path("mount%zu", i), MNT_DETACH);
        spawn(i, end);
}

static void check_status(void)
{
        double start = flow_now(), took;

        cr_assert_eq(flow_run("sheaf status --json"), 0, "status: %d %s",
                flow.last.rc, flow.last.err);
        took = flow_now() - start;
        cr_assert_lt(took, STATUS_LIMIT_S, "status took %g s", took);
}

static void restart(void)
{
        if (pick(2))
                flow_kill();
        else
                flow_stop();
        no_report();
        flow_start();
}

static void direct(double seconds)
{
        double end = flow_now() + seconds, chaos = flow_now() + 3;

        for (size_t i = 0; i < WORKERS; i++)
                spawn(i, end);
        while (flow_now() < end) {
                flow_sleep(0.3);
                cr_assert_eq(
                        flow_wait(flow.daemon, 0), -1, "the daemon is gone");
                no_report();
                check_status();
                see_workers(end);
                if (!pick(4))
                        kill_one(end);
                if (flow_now() > chaos) {
                        restart();
                        chaos = flow_now() + 4 + pick(8);
                }
        }
        for (size_t i = 0; i < WORKERS; i++)
                if (workers[i])
                        cr_assert_eq(
                                flow_join(workers[i], 90), 0, "worker %zu", i);
}

static void end_mounts(void)
{
        for (size_t i = 0; i < WORKERS; i++) {
                const char *dir = flow_path("mount%zu", i);
                pid_t server;

                if (cast[i] != MOUNTER)
                        continue;
                while (!umount2(dir, MNT_DETACH))
                        ;
                while ((server = flow_server(dir))) {
                        kill(server, SIGKILL);
                        flow_wait(server, 1);
                }
        }
}

static bool du_agrees(void)
{
        double du, said;

        flow_run("sheaf warmup --check n0");
        du = (double)flow_du(flow.cache);
        said = flow_stat("disk.bytes");
        return du <= said * 1.01 + 65536 && said <= du * 1.01 + 65536;
}

static void settle(long fds)
{
        end_mounts();
        cr_assert(flow_until(30, flow_stat("clients") <= 1), "%g clients stay",
                flow_stat("clients") - 1);
        cr_assert(flow_until(30, flow_stat("fetch.in_flight") == 0 &&
                                         flow_stat("fetch.queued") == 0 &&
                                         flow_stat("fetch.hints_queued") == 0 &&
                                         flow_stat("fetch.writing_bytes") == 0),
                "in flight: %g", flow_stat("fetch.in_flight"));
        cr_assert_eq(flow_stat("pins.clients"), 0);
        cr_assert_eq(flow_stat("pins.forks"), 0);
        for (unsigned int i = 0; i < NAMES; i++)
                flow_run("sheaf rm --force n%u", i);
        cr_assert(flow_until(20, flow_fds(flow.daemon) <= fds + 40),
                "%ld descriptors, %ld at the start", flow_fds(flow.daemon),
                fds);
        cr_assert(flow_until(20, du_agrees()), "du %g, status %g",
                (double)flow_du(flow.cache), flow_stat("disk.bytes"));
        cr_assert_lt(flow_rss(flow.daemon), 700 * SHEAF_MIB);
}

Test(monkey, all_at_once)
{
        const char *seconds = getenv("FLOW_MONKEY_S");
        const char *seed = getenv("FLOW_MONKEY_SEED");
        long fds;

        rng = seed ? (unsigned int)atoi(seed) : 1;
        setenv("ASAN_OPTIONS", "exitcode=77:detect_leaks=1", 1);
        setenv("TSAN_OPTIONS", "exitcode=77:halt_on_error=0", 0);
        flow.memory = "64MiB";
        flow.disk = "128MiB";
        flow.deadline_s = 8;
        make_trees();
        for (unsigned int t = 0; t < TREES; t++)
                mkdir(flow_path("grant%u", t), 0755);
        flow_start();
        fds = flow_fds(flow.daemon);
        for (unsigned int i = 0; i < NAMES; i++)
                flow_ok("sheaf add --force --share all n%u %s/tree%u", i,
                        flow.base, i % TREES);
        direct(seconds ? atof(seconds) : 20);
        settle(fds);
        flow_stop();
        no_report();
}
