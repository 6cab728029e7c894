/* SPDX-License-Identifier: Apache-2.0 */
/* Names of any bytes and lengths, through every door: they come back as they
 * went in, what cannot be named is told, and its neighbours work. And what a
 * mount says of its space. */
#include "tests/flow/faulty.h"
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

TestSuite(names, .init = flow_init, .fini = flow_fini, .timeout = 60);

static char longest[256];
static const char *const odd[] = { "\n", "a\nb", " ", " x ", "-rf", "*", "%2F",
        "a+b", "a b", "a#b?c&d=e", "\xc3\xa9", "e\xcc\x81", "\xff\xfe", "\"",
        "\\", "...", "\x1b[31m", "\x01", "a\tb", "\xe2\x80\xae", "\xed\xa0\x80",
        longest };

#define ODD SHEAF_ARRAY_LEN(odd)

static void write_file(const char *path, const char *text)
{
        sheaf_autofd int fd =
                open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

        cr_assert_geq(fd, 0, "%s", strerror(errno));
        cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

static void make_odd(void)
{
        memset(longest, 'n', 255);
        for (size_t i = 0; i < ODD; i++)
                write_file(flow_path("origin/%s", odd[i]), odd[i]);
}

static bool reads(const char *path, const char *want)
{
        sheaf_autofd int fd = open(path, O_RDONLY | O_CLOEXEC);
        char buf[8192];
        ssize_t n = fd < 0 ? -1 : read(fd, buf, sizeof(buf));

        return n == (ssize_t)strlen(want) && !memcmp(buf, want, (size_t)n);
}

/* Runs a program with arguments of any bytes; output goes to base/out. */
static int run(const char *const *argv)
{
        pid_t pid = flow_fork(0, 0);

        if (!pid) {
                dup2(open(flow_path("out"), O_WRONLY | O_CREAT | O_TRUNC, 0644),
                        STDOUT_FILENO);
                dup2(open(flow_path("err"), O_WRONLY | O_CREAT | O_TRUNC, 0644),
                        STDERR_FILENO);
                execvp(argv[0], (char *const *)(uintptr_t)argv);
                _exit(97);
        }
        return flow_join(pid, 30);
}

static json_t *output(void)
{
        json_error_t error;
        json_t *root = json_load_file(flow_path("out"), 0, &error);

        cr_assert(root, "%s", error.text);
        return root;
}

/* The bytes of a name in an object: @field, or @field_hex where they are not
 * UTF-8. */
static void bytes_of(json_t *o, const char *field, char *buf, size_t cap)
{
        char key[64];
        const char *hex, *text = json_string_value(json_object_get(o, field));
        size_t n = 0;

        snprintf(key, sizeof(key), "%s_hex", field);
        hex = json_string_value(json_object_get(o, key));
        cr_assert(hex || text, "no %s", field);
        if (!hex) {
                snprintf(buf, cap, "%s", text);
                return;
        }
        for (; hex[0] && hex[1] && n + 1 < cap; hex += 2, n++) {
                unsigned int byte;

                cr_assert_eq(sscanf(hex, "%2x", &byte), 1);
                buf[n] = (char)byte;
        }
        buf[n] = '\0';
}

static int index_of(const char *name)
{
        for (size_t i = 0; i < ODD; i++)
                if (!strcmp(name, odd[i]))
                        return (int)i;
        return -1;
}

/* No control character of a name reaches a terminal, and all is UTF-8. */
static void text_is_harmless(void)
{
        cr_assert_eq(flow_run("! LC_ALL=C grep -aq '[[:cntrl:]]' %s/out %s/err",
                             flow.base, flow.base),
                0);
        cr_assert_eq(flow_run("iconv -f UTF-8 -t UTF-16 %s/out > /dev/null",
                             flow.base),
                0, "%s", flow.last.err);
}

/* ---- files ---- */

Test(names, listings_are_equal_and_each_file_has_its_own)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;

        make_odd();
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        flow_ok("for d in origin mount; do (cd %s/$d && find . -mindepth 1 "
                "-printf '%%P\\0' | sort -z) > %s/$d.names; done; "
                "cmp %s/origin.names %s/mount.names",
                flow.base, flow.base, flow.base, flow.base);
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        for (size_t i = 0; i < ODD; i++) {
                struct sheaf_view view;
                uint64_t ordinal;

                cr_assert(
                        reads(flow_path("mount/%s", odd[i]), odd[i]), "%zu", i);
                cr_assert_eq(
                        sheaf_dataset_lookup(dataset, odd[i], &ordinal), 0);
                cr_assert_eq(sheaf_view_file(dataset, ordinal, &view), 0);
                cr_assert_eq(view.len_bytes, strlen(odd[i]));
                cr_assert(!memcmp(
                        view.pieces[0].iov_base, odd[i], view.len_bytes));
                sheaf_view_release(&view);
        }
        flow_close(session, dataset);
        flow_umount(flow.mount);
        cr_assert(flow_live());
        flow_stop();
}

/* Every file is reported by a command: its name can be had back from JSON,
 * and the text harms no terminal. */
static void findings_name_all(const char *verb)
{
        const char *as_json[] = { "sheaf", verb, "--json", "data", NULL };
        const char *as_text[] = { "sheaf", verb, "--quiet", "data", NULL };
        bool seen[ODD] = { false };
        json_t *root, *list, *finding;
        size_t i, count = 0;

        cr_assert_neq(run(as_json), 0);
        root = output();
        list = json_object_get(root, "findings");
        json_array_foreach(list, i, finding)
        {
                char name[512];
                int at;

                bytes_of(finding, "path", name, sizeof(name));
                if (!*name)
                        continue; /* says how it ended */
                at = index_of(name);
                cr_assert_geq(at, 0, "%s: '%s' is none of them", verb, name);
                count += !seen[at];
                seen[at] = true;
        }
        json_decref(root);
        cr_assert_eq(count, ODD, "%s names %zu", verb, count);
        cr_assert_neq(run(as_text), 0);
        text_is_harmless();
}

/* What is just being written stays for a moment. */
static bool all_evicted(void)
{
        flow_ok("sheaf warmup --quiet --evict data");
        return flow_stat("arena.payload_bytes") +
                       flow_stat("disk.payload_bytes") ==
               0;
}

Test(names, findings_can_be_turned_back_into_names)
{
        make_odd();
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_ok("sheaf warmup --quiet data");
        flow_ok("for f in %s/* %s/...; do printf changed > \"$f\"; done",
                flow.origin, flow.origin);
        findings_name_all("verify");
        cr_assert(flow_until(20, all_evicted()));
        findings_name_all("warmup");
        cr_assert(flow_live());
        flow_stop();
}

/* ---- directories: of origins and of mounts ---- */

static void one_odd_place(const char *name)
{
        const char *origin = flow_path("origins/%s", name);
        const char *place = flow_path("places/%s", name);
        const char *add[] = { "sheaf", "add", "--json", "data", origin, NULL };
        const char *ls[] = { "sheaf", "ls", "--json", "data", NULL };
        const char *show[] = { "sheaf", "mount", "--json", "data", place,
                NULL };
        const char *hide[] = { "sheaf", "umount", place, NULL };
        const char *rm[] = { "sheaf", "rm", "data", NULL };
        const char *text[] = { "sheaf", "ls", "data", NULL };
        char got[PATH_MAX];
        json_t *root;

        cr_assert(!mkdir(origin, 0755) && !mkdir(place, 0755));
        write_file(flow_path("origins/%s/f", name), "bytes");
        cr_assert_eq(run(add), 0);
        json_decref(output());
        cr_assert_eq(run(ls), 0);
        root = output();
        bytes_of(json_is_array(root) ? json_array_get(root, 0) : root, "origin",
                got, sizeof(got));
        cr_assert_str_eq(got, origin);
        json_decref(root);
        cr_assert_eq(run(text), 0);
        flow_ok("! tr '\\n' ' ' < %s/out | LC_ALL=C grep -aq '[[:cntrl:]]'",
                flow.base);
        cr_assert_eq(run(show), 0);
        root = output();
        bytes_of(root, "mounted", got, sizeof(got));
        cr_assert_str_eq(got, place);
        json_decref(root);
        cr_assert(reads(flow_path("places/%s/f", name), "bytes"));
        flow_ok("sheaf status > /dev/null && sheaf stats > /dev/null");
        cr_assert_eq(flow_run("sheaf status --json"), 0);
        root = json_loads(flow.last.out, 0, NULL);
        cr_assert(root, "%s", flow.last.out);
        json_decref(root);
        cr_assert_eq(run(hide), 0);
        /* The process of the mount is about to end. */
        cr_assert(flow_until(30, run(rm) == 0));
}

Test(names, origins_and_mount_points_of_odd_names)
{
        memset(longest, 'n', 255);
        cr_assert(!mkdir(flow_path("origins"), 0755) &&
                  !mkdir(flow_path("places"), 0755));
        flow_start();
        for (size_t i = 0; i < ODD; i += 2)
                one_odd_place(odd[i]);
        cr_assert(flow_live());
        flow_stop();
}

/* ---- lengths ---- */

static void start_namesfs(void)
{
        pid_t pid = flow_fork(0, 0);

        if (!pid) {
                dup2(open(flow_path("namesfs"), O_WRONLY | O_CREAT, 0644),
                        STDOUT_FILENO);
                execl(FLOW_NAMESFS, "namesfs", flow.origin, "6", "255", "256",
                        "300", "1000", (char *)NULL);
                _exit(97);
        }
        cr_assert(flow_until(
                10, flow_run("grep -q ready %s/namesfs", flow.base) == 0));
}

static void name_of(char letter, size_t len, char name[1024])
{
        memset(name, letter, len);
        name[len] = '\0';
}

static void check_too_long(
        struct sheaf_dataset *dataset, char letter, size_t len)
{
        char name[1024];
        struct stat st;
        uint64_t ordinal;
        int rc;

        name_of(letter, len, name);
        cr_assert(
                stat(flow_path("mount/%s", name), &st) && errno == ENAMETOOLONG,
                "%zu: %s", len, strerror(errno));
        cr_assert(open(flow_path("mount/%s", name), O_RDONLY) < 0 &&
                  errno == ENAMETOOLONG);
        rc = sheaf_dataset_lookup(dataset, name, &ordinal);
        cr_assert_eq(rc, -ENAMETOOLONG, "%zu: %s", len, strerror(-rc));
        flow_run("sheaf warmup --quiet data %s", name);
        cr_assert_neq(flow.last.rc, 0);
}

Test(names, longer_than_a_name_can_be)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        char name[1024];

        start_namesfs();
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        cr_assert(strstr(flow.last.out, "3 entries were left out") &&
                          strstr(flow.last.out, "255 bytes"),
                "%s", flow.last.out);
        flow_mount("data", flow.mount);
        flow_ok("ls %s | wc -l", flow.mount);
        cr_assert_eq(atoi(flow.last.out), 2);
        cr_assert(reads(flow_path("mount/aaaaaa"), "6"));
        name_of('b', 255, name);
        cr_assert(reads(flow_path("mount/%s", name), "255"));
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        check_too_long(dataset, 'c', 256);
        check_too_long(dataset, 'd', 300);
        check_too_long(dataset, 'e', 1000);
        flow_close(session, dataset);
        /* One bad path of a list costs that path. */
        cr_assert(flow_until(20, all_evicted()));
        flow_ok("{ echo aaaaaa; printf '%%0300d\\n' 7; echo %s; } > %s/list",
                name, flow.base);
        cr_assert_neq(
                flow_run("sheaf warmup data --from-file %s/list", flow.base),
                0);
        cr_assert(strstr(flow.last.out, "000") || strstr(flow.last.err, "000"),
                "%s%s", flow.last.out, flow.last.err);
        cr_assert_eq(flow_stat_of("data", "dataset.arena_bytes"), 4, "%g",
                flow_stat_of("data", "dataset.arena_bytes"));
        flow_umount(flow.mount);
        flow_stop();
}

/* Directories of 200 bytes, one in the other: 30 of them are more than a path
 * may have. Returns the innermost. */
#define DEPTH 30

static int descend(const char *top, bool make)
{
        int at = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        char name[201];

        memset(name, 'p', 200);
        name[200] = '\0';
        for (int i = 0; i < DEPTH; i++) {
                int next;

                name[0] = (char)('a' + i % 26);
                if (make)
                        cr_assert(!mkdirat(at, name, 0755));
                next = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                cr_assert_geq(next, 0, "%d: %s", i, strerror(errno));
                close(at);
                at = next;
        }
        return at;
}

static void check_deep(void)
{
        int at = descend(flow.mount, false);
        int fd = openat(at, "deep", O_RDONLY | O_CLOEXEC);
        char buf[64];

        cr_assert_geq(fd, 0, "%s", strerror(errno));
        cr_assert_eq(read(fd, buf, sizeof(buf)), 5);
        cr_assert(!memcmp(buf, "bytes", 5));
        close(fd);
        close(at);
}

Test(names, paths_longer_than_a_path_may_be)
{
        int at = descend(flow.origin, true), fd;

        fd = openat(at, "deep", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        cr_assert_eq(write(fd, "bytes", 5), 5);
        close(fd);
        write_file(flow_path("origin/flat"), "flat");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        check_deep();
        flow_umount(flow.mount);
        cr_assert(flow_until(20, all_evicted()));
        flow_ok("sheaf warmup data");
        cr_assert_eq(flow_stat_of("data", "dataset.arena_bytes"), 9);
        flow_ok("sheaf verify data");
        /* It is changed: all commands go on, and name it as far as it goes. */
        fd = openat(at, "deep", O_WRONLY | O_TRUNC | O_CLOEXEC);
        cr_assert_eq(write(fd, "other bytes", 11), 11);
        close(fd);
        cr_assert_eq(flow_run("sheaf verify data"), 6);
        cr_assert(strstr(flow.last.out, "changed"), "%s", flow.last.out);
        /* A path that is too long in a list costs that path. */
        flow_ok("{ echo flat; printf 'x/%%05000d\\n' 7; echo flat; } > "
                "%s/list",
                flow.base);
        cr_assert(flow_until(20, all_evicted()));
        cr_assert_neq(
                flow_run("sheaf warmup data --from-file %s/list", flow.base),
                0);
        cr_assert_eq(flow_stat_of("data", "dataset.arena_bytes"), 4);
        flow_ok("sheaf update data");
        flow_mount("data", flow.mount);
        fd = openat(at, "deep", O_RDONLY | O_CLOEXEC);
        close(fd);
        flow_umount(flow.mount);
        close(at);
        flow_stop();
}

/* ---- space ---- */

static void space_is_told(void)
{
        struct statvfs st;
        double start = flow_now();

        cr_assert(!statvfs(flow.mount, &st));
        cr_assert(st.f_blocks > 0 && st.f_bsize > 0 && st.f_frsize > 0);
        cr_assert_geq(st.f_blocks * st.f_frsize, 300000);
        cr_assert_geq(st.f_files, 2);
        cr_assert_eq(st.f_namemax, 255);
        cr_assert_lt(flow_now() - start, 2);
        flow_ok("df -P %s | tail -1 | awk '$2 == 0 { exit 1 }'", flow.mount);
        cr_assert_lt(flow.last.seconds, 2);
        flow_ok("df -iP %s | tail -1 | awk '$2 == 0 { exit 1 }'", flow.mount);
        cr_assert_lt(flow.last.seconds, 2);
}

/* Also when the origin hangs with all calls, and when the daemon does. */
Test(names, space_is_told_whatever_hangs)
{
        flow_file(1, 300000, "f");
        flow_start();
        flow_faulty_mount(flow.origin);
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        space_is_told();
        flow_faulty("any hang");
        space_is_told();
        kill(flow.daemon, SIGSTOP);
        space_is_told();
        kill(flow.daemon, SIGCONT);
        flow_faulty("%s", "");
        cr_assert_eq(flow_check(flow_path("mount/f"), 1, 300000, 65536), 0);
        flow_umount(flow.mount);
        flow_ok("sheaf rm data");
        flow_stop();
        flow_faulty_umount();
}
