/* SPDX-License-Identifier: Apache-2.0 */
/* A directory of very many entries: listed whole and once by every way to
 * list, under signals and changes, and nothing grows with the names that were
 * looked at.
 *
 * 30,000 entries; with SOAK_ROUNDS or SOAK_MINUTES a million. */
#include "tests/flow/harness.h"
#include "tests/flow/soak.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>

TestSuite(bigdir, .init = flow_init, .fini = flow_fini, .timeout = 100000);

#define CHANGED      100 /* removed, and as many added */
#define ROUNDS       3
#define GROWTH_BYTES (UINT64_C(4) << 20)

static uint32_t files, dirs;
static struct soak soak;

/* Names: f0.., d0.., later n0..; bit i of @seen is set for the i-th. */
struct census {
        uint8_t *seen;
        uint32_t count, dots, twice, strange;
};

static void make(uint32_t from, uint32_t to, char kind, bool is_dir)
{
        sheaf_autofd int at =
                open(flow.origin, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        char name[16];

        for (uint32_t i = from; i < to; i++) {
                snprintf(name, sizeof(name), "%c%u", kind, i);
                if (is_dir) {
                        cr_assert(!mkdirat(at, name, 0755));
                } else {
                        int fd = openat(
                                at, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

                        cr_assert_geq(fd, 0);
                        close(fd);
                }
        }
}

static void setup(void)
{
        soak_begin(&soak, "bigdir", "rounds", 1, 1);
        files = soak.is_long ? 1000000 : 30000;
        dirs = soak.is_long ? 1000 : 100;
        flow.run_limit_s = soak.is_long ? 600 : 60;
        flow.deadline_s = 60;
        flow_origin_in_memory();
        make(0, files, 'f', false);
        make(0, dirs, 'd', true);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
}

static struct census census_new(void)
{
        struct census census = { .seen = calloc(2 * files + dirs + 1, 1) };

        cr_assert(census.seen);
        return census;
}

static void census_take(struct census *c, const char *name, uint8_t type)
{
        uint32_t number = (uint32_t)strtoul(name + 1, NULL, 10), slot;

        if (*name == '.') {
                c->dots++;
                return;
        }
        slot = *name == 'f'   ? number
               : *name == 'd' ? files + number
                              : files + dirs + number;
        if (slot > 2 * files + dirs ||
                type != (*name == 'd' ? DT_DIR : DT_REG)) {
                c->strange++;
                return;
        }
        c->twice += c->seen[slot];
        c->seen[slot] = 1;
        c->count++;
}

/* All of the first version, and nothing twice. */
static void census_is_whole(struct census *c)
{
        cr_assert_eq(c->count, files + dirs, "%u names", c->count);
        cr_assert_eq(c->dots, 2);
        cr_assert_eq(c->twice, 0);
        cr_assert_eq(c->strange, 0);
        free(c->seen);
        *c = (struct census){ 0 };
}

struct dirent_raw {
        uint64_t ino;
        int64_t off;
        uint16_t reclen;
        uint8_t type;
        char name[];
};

static void list_raw(size_t cap)
{
        sheaf_autofd int fd =
                open(flow.mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        sheaf_autofree char *buf = malloc(cap);
        struct census c = census_new();
        double start = flow_now(), first = 0;
        long n;

        cr_assert(fd >= 0 && buf);
        while ((n = syscall(SYS_getdents64, fd, buf, cap)) != 0) {
                const struct dirent_raw *entry;

                if (n < 0 && errno == EINTR)
                        continue;
                cr_assert_gt(n, 0, "%s", strerror(errno));
                if (!first)
                        first = flow_now() - start;
                for (long at = 0; at < n; at += entry->reclen) {
                        entry = (const void *)(buf + at);
                        census_take(&c, entry->name, entry->type);
                }
        }
        cr_assert_lt(first, 5, "the first names came after %.1f s", first);
        census_is_whole(&c);
}

static void on_timer(int sig)
{
        (void)sig;
}

static void listed_whole_and_once(void)
{
        struct itimerval each_ms = { { 0, 1000 }, { 0, 1000 } }, off = { 0 };
        struct sigaction act = { .sa_handler = on_timer };

        flow_ok("ls -f %s > %s/names && wc -l < %s/names", flow.mount,
                flow.base, flow.base);
        cr_assert_eq(strtoul(flow.last.out, NULL, 10), files + dirs + 2);
        flow_ok("sort %s/names | uniq -d | wc -l", flow.base);
        cr_assert_eq(atoi(flow.last.out), 0, "names come twice");
        flow_ok("find %s -mindepth 1 -type f | wc -l", flow.mount);
        cr_assert_eq(strtoul(flow.last.out, NULL, 10), files);
        flow_ok("find %s -mindepth 1 -type d | wc -l", flow.mount);
        cr_assert_eq(strtoul(flow.last.out, NULL, 10), dirs);
        sigaction(SIGALRM, &act, NULL);
        setitimer(ITIMER_REAL, &each_ms, NULL);
        list_raw(1024);
        list_raw(1 << 20);
        setitimer(ITIMER_REAL, &off, NULL);
}

/* ---- places in it ---- */

/* The name that follows a place is the same after a rewind, and on. */
static void seek_around(void)
{
        DIR *dir = opendir(flow.mount);
        struct census c = census_new();
        struct dirent *entry;
        char name[256];
        long place;

        cr_assert(dir);
        for (uint32_t i = 0; i < files / 2; i++) {
                entry = readdir(dir);
                cr_assert(entry);
                census_take(&c, entry->d_name, entry->d_type);
        }
        place = telldir(dir);
        entry = readdir(dir);
        cr_assert(entry);
        snprintf(name, sizeof(name), "%s", entry->d_name);
        for (uint32_t i = 0; i < 1000; i++)
                cr_assert(readdir(dir));
        rewinddir(dir);
        cr_assert(readdir(dir));
        seekdir(dir, place);
        for (bool first = true; (entry = readdir(dir)); first = false) {
                if (first)
                        cr_assert_str_eq(entry->d_name, name);
                census_take(&c, entry->d_name, entry->d_type);
        }
        closedir(dir);
        census_is_whole(&c);
}

/* The origin changes while the mount is listed and while it is listed anew:
 * the mount shows its version; the new one has each name that was left alone
 * once, and of the others each at most once. */
static void change_during_listings(void)
{
        DIR *dir = opendir(flow.mount);
        struct census c = census_new();
        struct dirent *entry;
        pid_t update, changer;

        cr_assert(dir);
        for (uint32_t i = 0; i < 1000; i++) {
                entry = readdir(dir);
                cr_assert(entry);
                census_take(&c, entry->d_name, entry->d_type);
        }
        update = flow_fork(0, 0);
        if (!update) {
                execlp("sheaf", "sheaf", "update", "--quiet", "data",
                        (char *)NULL);
                _exit(97);
        }
        changer = flow_fork(0, 0);
        if (!changer) {
                for (uint32_t i = 0; i < CHANGED; i++) {
                        make(i, i + 1, 'n', false);
                        if (unlink(flow_path(
                                    "origin/f%u", i * (files / CHANGED))))
                                _exit(1);
                        flow_sleep(0.001);
                }
                _exit(0);
        }
        while ((entry = readdir(dir)))
                census_take(&c, entry->d_name, entry->d_type);
        closedir(dir);
        census_is_whole(&c);
        cr_assert_eq(flow_join(changer, 60), 0);
        cr_assert_eq(flow_join(update, 120), 0);
}

static void new_version_is_whole(bool settled)
{
        struct census c = census_new();
        struct dirent *entry;
        uint32_t changed = 0;
        DIR *dir;

        flow_ok("sheaf mount --refresh %s", flow.mount);
        dir = opendir(flow.mount);
        cr_assert(dir);
        while ((entry = readdir(dir)))
                census_take(&c, entry->d_name, entry->d_type);
        closedir(dir);
        cr_assert_eq(c.twice, 0);
        cr_assert_eq(c.strange, 0);
        for (uint32_t i = 0; i < files + dirs; i++) {
                bool removed = i < files && i % (files / CHANGED) == 0;

                if (!removed)
                        cr_assert(c.seen[i], "name %u is lost", i);
                else
                        changed += !c.seen[i];
        }
        for (uint32_t i = 0; i < CHANGED; i++)
                changed += c.seen[files + dirs + i];
        if (settled)
                cr_assert_eq(changed, 2 * CHANGED, "%u changes", changed);
        free(c.seen);
}

/* ---- what is looked at is forgotten ---- */

static void stat_all(void)
{
        sheaf_autofd int at =
                open(flow.mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        struct stat st;
        char name[16];

        for (uint32_t i = 0; i < files; i++) {
                snprintf(name, sizeof(name), "f%u", i);
                cr_assert(!fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW), "%s",
                        name);
                cr_assert(S_ISREG(st.st_mode) && !st.st_size);
        }
        for (uint32_t i = 0; i < dirs; i++) {
                snprintf(name, sizeof(name), "d%u", i);
                cr_assert(!fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW));
                cr_assert(S_ISDIR(st.st_mode));
        }
        snprintf(name, sizeof(name), "f%u", files);
        cr_assert(
                fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) && errno == ENOENT);
}

/* Makes the kernel forget this mount's names, and no other's: a remount drops
 * them. */
static void forget(void)
{
        double before = flow_stat("mount.requests.forget");

        cr_assert(!mount(NULL, flow.mount, NULL,
                          MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL),
                "%s", strerror(errno));
        cr_assert(flow_until(20, flow_stat("mount.requests.forget") > before),
                "the kernel forgot nothing");
}

static void nothing_grows(void)
{
        uint64_t daemon[ROUNDS], server[ROUNDS];
        pid_t pid = flow_server(flow.mount);

        cr_assert_gt(pid, 0);
        for (int round = 0; round < ROUNDS; round++) {
                stat_all();
                daemon[round] = flow_rss(flow.daemon);
                server[round] = flow_rss(pid);
                fprintf(stderr, "round %d: sheafd %llu KiB, mount %llu KiB\n",
                        round, (unsigned long long)daemon[round] >> 10,
                        (unsigned long long)server[round] >> 10);
                forget();
        }
        if (flow_sanitized(pid))
                return;
        cr_assert_leq(daemon[2], daemon[0] + daemon[0] / 10 + GROWTH_BYTES);
        cr_assert_leq(server[2], server[0] + server[0] / 10 + GROWTH_BYTES);
        cr_assert_leq(flow_rss(pid), server[2] + GROWTH_BYTES);
}

Test(bigdir, a_directory_of_very_many_entries)
{
        setup();
        while (soak_next(&soak)) {
                listed_whole_and_once();
                seek_around();
                nothing_grows();
        }
        change_during_listings();
        new_version_is_whole(false);
        flow_ok("sheaf update data");
        new_version_is_whole(true);
        soak_end(&soak, "%u files, %u directories", files, dirs);
        flow_umount(flow.mount);
        flow_stop();
}
