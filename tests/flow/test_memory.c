/* SPDX-License-Identifier: Apache-2.0 */
/* Who pays for shared pages: the daemon's control group does, a client's does
 * not; a group that is too small is noticed at the start; what ends gives
 * back what it had; what a client maps does not grow. */
#include "tests/flow/world.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>

TestSuite(memory, .init = flow_init, .fini = flow_fini, .timeout = 100);

#define MIB   (UINT64_C(1) << 20)
#define CHUNK (4 * MIB)
#define FILES 32u /* 128 MiB */

static void make_files(void)
{
        for (uint32_t i = 0; i < FILES; i++)
                flow_file(i, CHUNK, "f%02u", i);
}

static void daemon_in(const struct flow_group *group)
{
        char setup[PATH_MAX + 64];

        snprintf(setup, sizeof(setup), "echo $$ > %s", flow_group_door(group));
        flow_world(setup, "");
}

static void read_all(void)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        char name[16];

        cr_assert_eq(flow_open("data", &session, &dataset), 0, "%s",
                sheaf_last_error());
        for (uint32_t i = 0; i < FILES; i++) {
                snprintf(name, sizeof(name), "f%02u", i);
                cr_assert_eq(flow_check_view(dataset, name, i, CHUNK), 0, "%s",
                        sheaf_last_error());
        }
        flow_close(session, dataset);
}

/* A client in a group of its own; 0, or an errno. */
static int read_in(const struct flow_group *group, bool by_mount)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        pid_t pid = flow_fork(0, 0);
        char name[16];
        int rc = 0;

        if (pid)
                return flow_join(pid, 60);
        flow_group_enter(group);
        if (!by_mount)
                rc = flow_open("data", &session, &dataset);
        for (uint32_t i = 0; i < FILES && !rc; i++) {
                snprintf(name, sizeof(name), "f%02u", i);
                rc = by_mount ? flow_check(flow_path("mount/%s", name), i,
                                        CHUNK, 65536)
                              : flow_check_view(dataset, name, i, CHUNK);
        }
        _exit(-rc);
}

/* The client's group has an eighth of what it reads. */
Test(memory, clients_do_not_pay)
{
        struct flow_group *daemon = flow_group_new("daemon", 768 * MIB);
        struct flow_group *client = flow_group_new("client", 16 * MIB);

        if (!daemon || !client)
                return;
        flow.memory = "192MiB";
        make_files();
        daemon_in(daemon);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        cr_assert_eq(read_in(client, false), 0, "cold");
        cr_assert_eq(read_in(client, false), 0, "warm");
        cr_assert_geq(flow_group_used(daemon), FILES * CHUNK);
        cr_assert_lt(flow_group_used(client), 12 * MIB);
        flow_mount("data", flow.mount);
        cr_assert_eq(read_in(client, true), 0, "by the mount");
        cr_assert_eq(flow_group_kills(client), 0);
        cr_assert_eq(flow_group_kills(daemon), 0);
        flow_umount(flow.mount);
        flow_stop();
        printf("flow.memory: the client's group has %llu KiB\n",
                (unsigned long long)flow_group_used(client) / 1024);
}

static int start_with(const char *memory)
{
        return flow_run("timeout -s KILL 5 sheafd --foreground --cache %s "
                        "--socket %s --disk 64MiB --memory %s",
                flow.cache, flow.socket, memory);
}

/* Refused with both numbers; the default fits; the most that is allowed can
 * be filled without anybody being killed. */
Test(memory, a_group_that_is_too_small)
{
        struct flow_group *group = flow_group_new("small", 192 * MIB);

        if (!group)
                return;
        make_files();
        daemon_in(group);
        cr_assert_eq(start_with("256MiB"), 2);
        cr_assert_not_null(
                strstr(flow.last.err, "192 MiB"), "%s", flow.last.err);
        cr_assert_not_null(strstr(flow.last.err, "control group"));
        cr_assert_eq(start_with("180MiB"), 2, "%s", flow.last.err);
        /* 192 less 64, and of that four fifths. */
        flow.memory = "102MiB";
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        for (int round = 0; round < 2; round++)
                read_all();
        flow_mount("data", flow.mount);
        for (uint32_t i = 0; i < FILES; i++)
                cr_assert_eq(flow_check(flow_path("mount/f%02u", i), i, CHUNK,
                                     1 << 20),
                        0);
        cr_assert_geq(flow_stat("arena.bytes"), 60 * MIB, "%g",
                flow_stat("arena.bytes"));
        cr_assert_eq(flow_group_kills(group), 0);
        flow_umount(flow.mount);
        flow_stop();
}

/* Killed again and again in one group: what it had is given back, and the
 * next one finds room. */
Test(memory, killed_daemons_leave_no_pages)
{
        struct flow_group *group = flow_group_new("again", 512 * MIB);
        uint64_t used = 0;

        if (!group)
                return;
        flow.memory = "192MiB";
        make_files();
        daemon_in(group);
        for (int round = 0; round < 3; round++) {
                flow_start();
                if (!round)
                        flow_ok("sheaf add data %s", flow.origin);
                read_all();
                if (!round)
                        used = flow_group_used(group);
                cr_assert_leq(flow_group_used(group), used + 64 * MIB,
                        "round %d: %llu from %llu", round,
                        (unsigned long long)flow_group_used(group),
                        (unsigned long long)used);
                flow_kill();
        }
        cr_assert_eq(flow_group_kills(group), 0);
}

/* Whom the kernel is to kill first. */
static void offer(pid_t pid)
{
        char path[64];
        FILE *file;

        snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", (int)pid);
        file = fopen(path, "we");
        cr_assert(file && fputs("1000", file) >= 0 && !fclose(file));
}

/* Takes memory of the group until the kernel has killed somebody in it; ends
 * 0 then, 1 when nobody was. */
static pid_t start_hog(const struct flow_group *group)
{
        uint64_t kills = flow_group_kills(group);
        pid_t pid = flow_fork(0, 0);

        if (pid)
                return pid;
        flow_group_enter(group);
        for (uint64_t mib = 0; mib < 600; mib++) {
                if (mmap(NULL, MIB, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1,
                            0) == MAP_FAILED)
                        _exit(3);
                if (flow_group_kills(group) > kills)
                        _exit(0);
        }
        _exit(1);
}

static void look_all(void)
{
        for (uint32_t i = 0; i < FILES; i++)
                cr_assert_eq(flow_check(flow_path("mount/f%02u", i), i, CHUNK,
                                     1 << 20),
                        0);
}

/* The kernel ends the daemon for memory, again and again, in one group that
 * others fill: each time all of what it had is free, though a mount had mapped
 * it, so the next one starts, reads all, and is not killed for what the one
 * before it took. */
Test(memory, killed_for_memory)
{
        struct flow_group *group = flow_group_new("oom", 384 * MIB);
        uint64_t used = 0, kills = 0;

        if (!group)
                return;
        flow.memory = "160MiB";
        make_files();
        daemon_in(group);
        for (int round = 0; round < 4; round++) {
                pid_t hog;
                int rc;

                flow_start();
                offer(flow.daemon);
                if (!round) {
                        flow_ok("sheaf add data %s", flow.origin);
                        flow_mount("data", flow.mount);
                }
                read_all();
                look_all();
                if (!round)
                        used = flow_group_used(group);
                cr_assert_leq(flow_group_used(group), used + 64 * MIB,
                        "round %d: %llu from %llu", round,
                        (unsigned long long)flow_group_used(group),
                        (unsigned long long)used);
                cr_assert_eq(flow_group_kills(group), kills, "killed too soon");
                if (round == 3)
                        break;
                hog = start_hog(group);
                rc = flow_join(hog, 60);
                /* While the daemon's memory is taken down it may go, too. */
                cr_assert(rc == 0 || rc == 128 + SIGKILL, "nobody was killed");
                cr_assert_eq(flow_join(flow.daemon, 20), 128 + SIGKILL);
                flow.daemon = 0;
                kills = flow_group_kills(group);
        }
        flow_umount(flow.mount);
        flow_stop();
}

/* On tmpfs both limits are of one memory: told at the start, and in status. */
Test(memory, a_cache_on_tmpfs_beside_the_arena)
{
        struct flow_group *group = flow_group_new("tmpfs", 512 * MIB);

        if (!group)
                return;
        make_files();
        daemon_in(group);
        flow_ok("mkdir %s", flow.cache);
        cr_assert(!mount("none", flow.cache, "tmpfs", 0, "size=600m"));
        flow.memory = "256MiB";
        flow.disk = "400MiB";
        flow_start();
        cr_assert(flow_status_says("memory may run out"));
        cr_assert_not_null(strstr(flow.last.out, "tmpfs"));
        flow_ok("grep -q 'is on tmpfs' %s", flow.log);
        flow_stop();
        flow.disk = "128MiB";
        flow_start();
        cr_assert_not(flow_status_says("memory may run out"));
        flow_stop();
}

/* ---- maps ---- */

#define SMALL_LEN   65536u
#define SMALL_FILES 4096u /* eight times the arena */

struct figures {
        long maps, fds;
        uint64_t size, own;
};

static uint64_t kib_of(const char *file, const char *key)
{
        char line[512];
        uint64_t kib = 0;
        FILE *f = fopen(file, "re");

        while (f && fgets(line, sizeof(line), f))
                if (!strncmp(line, key, strlen(key)))
                        kib = strtoull(line + strlen(key), NULL, 10);
        if (f)
                fclose(f);
        return kib;
}

static struct figures figures_now(void)
{
        struct figures now = { .fds = flow_fds(getpid()),
                .size = kib_of("/proc/self/status", "VmSize:"),
                .own = kib_of("/proc/self/smaps_rollup", "Anonymous:") };
        FILE *file = fopen("/proc/self/maps", "re");

        for (int c; file && (c = fgetc(file)) != EOF;)
                now.maps += c == '\n';
        if (file)
                fclose(file);
        return now;
}

static void flat(struct figures now, struct figures first)
{
        cr_assert_leq(now.maps, first.maps + 8, "%ld maps from %ld", now.maps,
                first.maps);
        cr_assert_leq(
                now.fds, first.fds + 2, "%ld from %ld", now.fds, first.fds);
        cr_assert_leq(now.size, first.size + first.size / 20 + 4096,
                "VmSize %llu KiB from %llu", (unsigned long long)now.size,
                (unsigned long long)first.size);
#ifndef __SANITIZE_ADDRESS__
        cr_assert_leq(now.own, first.own + first.own / 20 + 2048,
                "own %llu KiB from %llu", (unsigned long long)now.own,
                (unsigned long long)first.own);
#endif
}

/* Samples of a set of eight times the arena, got and let go of; every
 * hundredth is held for a thousand rounds. */
Test(memory, what_is_let_go_of_is_unmapped)
{
        static struct sheaf_view held[10];
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct figures first = { 0 };
        uint32_t rng = 1;

        flow.memory = "32MiB";
        for (uint32_t i = 0; i < SMALL_FILES; i++)
                flow_file(i, SMALL_LEN, "f%04u", i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        for (uint32_t n = 0; n < 12000; n++) {
                struct sheaf_view view;
                uint32_t i, slot = n / 100 % SHEAF_ARRAY_LEN(held);
                uint64_t ordinal;
                char name[16];

                rng = rng * 1664525 + 1013904223;
                i = rng / 8 % SMALL_FILES;
                snprintf(name, sizeof(name), "f%04u", i);
                cr_assert_eq(sheaf_dataset_lookup(dataset, name, &ordinal), 0);
                cr_assert_eq(sheaf_view_file(dataset, ordinal, &view), 0, "%s",
                        sheaf_last_error());
                cr_assert(
                        flow_stamp_check(view.pieces[0].iov_base, i, 0, 4096));
                if (n % 100 == 0) {
                        if (held[slot].piece_count)
                                sheaf_view_release(&held[slot]);
                        held[slot] = view;
                } else {
                        sheaf_view_release(&view);
                }
                if (n == 4000)
                        first = figures_now();
                if (n > 4000 && n % 2000 == 0)
                        flat(figures_now(), first);
        }
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(held); i++)
                sheaf_view_release(&held[i]);
        cr_assert(flow_until(20, flow_stat("pins.bytes") == 0));
        flow_close(session, dataset);
        flow_stop();
}

/* The same by a mount, with mmap and munmap. */
Test(memory, files_of_a_mount_are_unmapped)
{
        struct figures first = { 0 };
        uint64_t server = 0;
        pid_t pid;

        flow.memory = "32MiB";
        for (uint32_t i = 0; i < SMALL_FILES / 4; i++)
                flow_file(i, SMALL_LEN, "f%04u", i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        pid = flow_server(flow.mount);
        for (uint32_t n = 0; n < 4 * SMALL_FILES / 4; n++) {
                uint32_t i = n % (SMALL_FILES / 4);
                int fd =
                        open(flow_path("mount/f%04u", i), O_RDONLY | O_CLOEXEC);
                void *map = mmap(NULL, SMALL_LEN, PROT_READ, MAP_SHARED, fd, 0);

                cr_assert(fd >= 0 && map != MAP_FAILED);
                cr_assert(flow_stamp_check(map, i, 0, SMALL_LEN));
                munmap(map, SMALL_LEN);
                close(fd);
                if (n == SMALL_FILES / 2) {
                        first = figures_now();
                        server = flow_rss(pid);
                }
        }
        flat(figures_now(), first);
        cr_assert(flow_sanitized(pid) || flow_rss(pid) <= server + 40 * MIB);
        flow_umount(flow.mount);
        flow_stop();
}
