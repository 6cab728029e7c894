/* SPDX-License-Identifier: Apache-2.0 */
/* A dataset from origin to reader, by library and by mount, cold, warm and
 * after a restart: exact bytes, and each byte of the origin read once. */
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

TestSuite(basic, .init = flow_init, .fini = flow_fini, .timeout = 60);

#define FILES 40
#define KIB   1024

static uint64_t small_size(uint32_t i)
{
        return 1 + i * UINT64_C(7919) * 13 % 300000;
}

/* FILES small files in a few directories and one of three chunks. Returns
 * their bytes. */
static uint64_t make_origin(void)
{
        uint64_t sum = 9000001;

        for (uint32_t i = 1; i <= FILES; i++) {
                flow_file(i, small_size(i), "d%u/e/f%u", i % 5, i);
                sum += small_size(i);
        }
        flow_file(1000, 9000001, "large/big");
        return sum;
}

static void check_mount(void)
{
        for (uint32_t i = 1; i <= FILES; i++)
                cr_assert_eq(flow_check(flow_path("mount/d%u/e/f%u", i % 5, i),
                                     i, small_size(i), 64 * KIB),
                        0, "file %u", i);
        cr_assert_eq(flow_check(flow_path("mount/large/big"), 1000, 9000001,
                             1000003),
                0);
}

static void check_library(void)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        char path[64];

        cr_assert_eq(flow_open("data", &session, &dataset), 0, "%s",
                sheaf_last_error());
        for (uint32_t i = 1; i <= FILES; i++) {
                snprintf(path, sizeof(path), "d%u/e/f%u", i % 5, i);
                cr_assert_eq(flow_check_view(dataset, path, i, small_size(i)),
                        0, "%s: %s", path, sheaf_last_error());
        }
        cr_assert_eq(flow_check_view(dataset, "large/big", 1000, 9000001), 0);
        cr_assert_eq(
                flow_check_read(dataset, "large/big", 1000, 9000001, 99999), 0);
        flow_close(session, dataset);
}

/* A mount that has nothing in the kernel's caches. */
static void check_fresh_mount(void)
{
        flow_mount("data", flow.mount);
        check_mount();
        flow_umount(flow.mount);
}

Test(basic, library_first_then_mount_then_restart)
{
        double sum = (double)make_origin();

        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        cr_assert_eq(flow_stat("origin.bytes"), 0, "add reads no file");
        check_library();
        cr_assert_eq(flow_stat("origin.bytes"), sum);
        check_library();
        check_fresh_mount();
        cr_assert_eq(flow_stat("origin.bytes"), sum);
        cr_assert_gt(flow_stat_of("data", "arena.hits"), FILES);
        flow_stop();

        flow_start();
        check_fresh_mount();
        check_library();
        cr_assert_eq(flow_stat("origin.bytes"), 0, "%g bytes again",
                flow_stat("origin.bytes"));
        cr_assert_geq(flow_stat("disk.hits"), FILES + 3);
        flow_stop();
}

Test(basic, mount_first_then_library)
{
        double sum = (double)make_origin();

        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        check_mount();
        check_mount();
        cr_assert_eq(flow_stat("origin.bytes"), sum);
        check_library();
        cr_assert_eq(flow_stat("origin.bytes"), sum);
        cr_assert_eq(flow_stat("mount.read_errors"), 0);
        flow_umount(flow.mount);
        flow_stop();
}

/* What was acknowledged as on disk survives a daemon that is killed. */
Test(basic, warm_from_disk_after_a_kill)
{
        make_origin();
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_ok("sheaf warmup --disk data");
        flow_kill();
        flow_start();
        check_library();
        check_fresh_mount();
        cr_assert_eq(flow_stat("origin.bytes"), 0, "%g bytes again",
                flow_stat("origin.bytes"));
        flow_stop();
}

/* ---- edge sizes ---- */

static const uint64_t edges[] = { 0, 1, 4095, 4096, 4097, 131071, 131072,
        131073, 262144, 1048575, 1048576, 1048577, 2097152, 4194303, 4194304,
        4194305, 8388608 };

/* Exactly the size in one read; 64 KiB more; through a map. */
static int check_edge(const char *path, uint32_t id, uint64_t len)
{
        sheaf_autofd int fd = open(path, O_RDONLY | O_CLOEXEC);
        sheaf_autofree char *buf = malloc(len + 65536);
        void *map;
        int rc = 0;

        if (fd < 0 || !buf)
                return -errno;
        if (pread(fd, buf, len, 0) != (ssize_t)len ||
                !flow_stamp_check(buf, id, 0, len))
                return -EBADMSG;
        if (pread(fd, buf, len + 65536, 0) != (ssize_t)len)
                return -ENODATA;
        map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
        if (!len)
                return map == MAP_FAILED && errno == EINVAL ? 0 : -ERANGE;
        if (map == MAP_FAILED)
                return -errno;
        if (!flow_stamp_check(map, id, 0, len))
                rc = -EBADMSG;
        for (uint64_t at = len; at % 4096; at++)
                if (((char *)map)[at])
                        rc = -ERANGE;
        munmap(map, len);
        return rc;
}

static void check_edges(void)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;

        flow_mount("edges", flow.mount);
        cr_assert_eq(flow_open("edges", &session, &dataset), 0);
        for (uint32_t i = 0; i < SHEAF_ARRAY_LEN(edges); i++) {
                char name[32];

                snprintf(name, sizeof(name), "e%u", i);
                cr_assert_eq(check_edge(flow_path("mount/%s", name), i + 1,
                                     edges[i]),
                        0, "mount, %llu bytes", (unsigned long long)edges[i]);
                cr_assert_eq(flow_check_view(dataset, name, i + 1, edges[i]), 0,
                        "view, %llu bytes", (unsigned long long)edges[i]);
                cr_assert_eq(
                        flow_check_read(dataset, name, i + 1, edges[i], 65536),
                        0, "read, %llu bytes", (unsigned long long)edges[i]);
        }
        flow_close(session, dataset);
        flow_umount(flow.mount);
}

Test(basic, edge_sizes)
{
        double sum = 0;

        for (uint32_t i = 0; i < SHEAF_ARRAY_LEN(edges); i++) {
                flow_file(i + 1, edges[i], "e%u", i);
                sum += (double)edges[i];
        }
        flow_start();
        flow_ok("sheaf add edges %s", flow.origin);
        check_edges();
        cr_assert_eq(flow_stat("origin.bytes"), sum);
        check_edges();
        cr_assert_eq(flow_stat("origin.bytes"), sum);
        flow_stop();
        flow_start();
        check_edges();
        cr_assert_eq(flow_stat("origin.bytes"), 0);
        flow_stop();
        cr_assert_eq(flow_run("find %s -name '*tmp*' -o -name '*.part' | "
                              "grep .",
                             flow.cache),
                1, "left: %s", flow.last.out);
}

/* ---- large offsets ---- */

#define SPARSE_BYTES ((UINT64_C(5) << 30) + 7)

static const uint64_t marks[] = { 0, (UINT64_C(1) << 31) - 8, UINT64_C(1) << 31,
        (UINT64_C(1) << 32) - 8, UINT64_C(1) << 32, UINT64_C(5) << 30 };

static size_t mark_len(uint64_t at)
{
        return (size_t)SHEAF_MIN(SPARSE_BYTES - at, 8);
}

static void make_sparse(void)
{
        sheaf_autofd int fd = open(flow_path("origin/sparse"),
                O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(marks); i++) {
                char buf[8];
                size_t n = mark_len(marks[i]);

                flow_stamp_bytes(buf, 5, marks[i], n);
                cr_assert_eq(pwrite(fd, buf, n, (off_t)marks[i]), (ssize_t)n);
        }
}

static void check_marks_mount(int fd)
{
        char buf[16];

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(marks); i++) {
                size_t n = mark_len(marks[i]);
                ssize_t got = pread(fd, buf, 16, (off_t)marks[i]);

                cr_assert_eq(got, n < 8 ? 7 : 16);
                cr_assert(flow_stamp_check(buf, 5, marks[i], n));
        }
}

static void check_marks_library(void)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_view view;

        cr_assert_eq(flow_open("sparse", &session, &dataset), 0);
        cr_assert_eq(sheaf_dataset_size(dataset, 0), (int64_t)SPARSE_BYTES);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(marks); i++) {
                size_t n = mark_len(marks[i]);

                cr_assert_eq(sheaf_view(dataset, 0, marks[i], 8, &view), 0,
                        "%s", sheaf_last_error());
                cr_assert_eq(view.len_bytes, n);
                cr_assert(flow_stamp_check(
                        view.pieces[0].iov_base, 5, marks[i], n));
                sheaf_view_release(&view);
        }
        /* Larger than the arena: whole or refused, never cut. */
        if (sheaf_view_file(dataset, 0, &view) == 0) {
                cr_assert_eq(view.len_bytes, SPARSE_BYTES);
                sheaf_view_release(&view);
        } else {
                cr_assert(*sheaf_last_error());
        }
        flow_close(session, dataset);
}

/* From @at to the end of the file or over @len bytes: no zero-length read
 * before the end. Returns the bytes read. */
static uint64_t read_on(int fd, uint64_t at, uint64_t len)
{
        size_t block = 8 << 20;
        char *buf = malloc(block);
        uint64_t sum = 0;
        ssize_t n = 1;

        while (buf && n > 0 && sum < len) {
                n = pread(fd, buf, SHEAF_MIN(block, len - sum),
                        (off_t)(at + sum));
                cr_assert_geq(n, 0, "%s", strerror(errno));
                sum += (uint64_t)n;
        }
        free(buf);
        return sum;
}

/* One read() of more than the kernel gives at once, at @at: a part, never
 * nothing. Returns its bytes. */
static uint64_t read_three_gib(int fd, uint64_t at)
{
        size_t len = (size_t)3 << 30;
        char *buf = mmap(NULL, len, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        ssize_t n;

        cr_assert_neq(buf, MAP_FAILED);
        n = pread(fd, buf, len, (off_t)at);
        cr_assert(n > 0 && n <= 0x7ffff000, "%zd", n);
        munmap(buf, len);
        return (uint64_t)n;
}

/* The whole file would take most of a minute: only the surroundings of what
 * could overflow are read in full, unless it is asked for by SOAK_ROUNDS. */
Test(basic, offsets_over_4_gib)
{
        uint64_t span = UINT64_C(32) << 20;
        struct stat st;
        int fd;

        make_sparse();
        flow_start();
        flow_ok("sheaf add sparse %s", flow.origin);
        flow_mount("sparse", flow.mount);
        fd = open(flow_path("mount/sparse"), O_RDONLY | O_CLOEXEC);
        cr_assert(fd >= 0 && !fstat(fd, &st));
        cr_assert_eq(st.st_size, (off_t)SPARSE_BYTES);
        check_marks_mount(fd);
        check_marks_library();
        cr_assert_eq(
                read_on(fd, (UINT64_C(1) << 31) - span, 2 * span), 2 * span);
        cr_assert_eq(
                read_on(fd, (UINT64_C(1) << 32) - span, 2 * span), 2 * span);
        cr_assert_eq(read_on(fd, SPARSE_BYTES - span, UINT64_MAX), span);
        cr_assert_eq(read_on(fd, SPARSE_BYTES, 100), 0);
        cr_assert_eq(read_three_gib(fd, SPARSE_BYTES - span), span);
        if (getenv("SOAK_ROUNDS")) {
                uint64_t first = read_three_gib(fd, 0);

                cr_assert_eq(
                        first + read_on(fd, first, UINT64_MAX), SPARSE_BYTES);
        }
        close(fd);
        flow_umount(flow.mount);
        cr_assert(flow_live());
        flow_stop();
}

/* ---- names ---- */

static char long_name[256];
static const char *const names[] = { "\n", "a\nb", " ", " x ", "-rf", "*",
        "%2F", "a+b", "a b", "a#b?c&d=e", "\xc3\xa9", "e\xcc\x81",
        "bad\xff\xfe", "\"", "\\", "...", long_name };

static void make_names(void)
{
        memset(long_name, 'n', 255);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(names); i++) {
                char path[512];
                int fd;

                snprintf(path, sizeof(path), "%s/%s", flow.origin, names[i]);
                fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
                cr_assert(fd >= 0);
                cr_assert_gt(write(fd, names[i], strlen(names[i])), 0);
                close(fd);
        }
}

static size_t count_names(const char *path)
{
        DIR *dir = opendir(path);
        struct dirent *entry;
        size_t count = 0;

        cr_assert(dir);
        while ((entry = readdir(dir))) {
                for (size_t i = 0; i < SHEAF_ARRAY_LEN(names); i++)
                        count += !strcmp(entry->d_name, names[i]);
        }
        closedir(dir);
        return count;
}

Test(basic, names_of_any_bytes)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        json_t *json;

        make_names();
        flow_start();
        flow_ok("sheaf add names %s", flow.origin);
        flow_ok("find %s -type f -printf '%%f\\0' > %s/list", flow.origin,
                flow.base);
        flow_ok("sheaf warmup names --from-file %s/list -0 --json", flow.base);
        json = json_loads(flow.last.out, 0, NULL);
        cr_assert(json, "%s", flow.last.out);
        json_decref(json);
        flow_mount("names", flow.mount);
        cr_assert_eq(count_names(flow.mount), SHEAF_ARRAY_LEN(names));
        cr_assert_eq(flow_open("names", &session, &dataset), 0);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(names); i++) {
                char path[512], buf[512];
                size_t len = strlen(names[i]);
                uint64_t ordinal;
                int fd;

                snprintf(path, sizeof(path), "%s/%s", flow.mount, names[i]);
                fd = open(path, O_RDONLY | O_CLOEXEC);
                cr_assert_eq(read(fd, buf, sizeof(buf)), (ssize_t)len);
                cr_assert(!memcmp(buf, names[i], len));
                close(fd);
                cr_assert_eq(
                        sheaf_dataset_lookup(dataset, names[i], &ordinal), 0);
                cr_assert_eq(sheaf_read(dataset, ordinal, buf, 512, 0),
                        (int64_t)len);
                cr_assert(!memcmp(buf, names[i], len));
        }
        flow_close(session, dataset);
        flow_umount(flow.mount);
        cr_assert(flow_live());
        flow_stop();
}

/* ---- shape of the tree ---- */

Test(basic, tree_is_the_same)
{
        const char *show = "find . -printf '%P %y %m %n %s %T@ %l\\n' | "
                           "sed 's/^ d [^ ]* [^ ]* [^ ]*/ d/;"
                           "s/ d \\([0-7]*\\) [0-9]* [0-9]* / d \\1 /' | sort";

        flow_file(1, 5000, "a/one");
        flow_file(2, 0, "a/empty");
        flow_ok("cd %s && ln a/one a/two && mkdir -p b && ln a/one b/three && "
                "ln -s ../a/one b/link && ln -s nowhere b/dangling && "
                "mkdir -p void/deep/er && chmod 640 a/empty && "
                "chmod 555 a/one && "
                "touch -d '1999-12-31 23:59:59.123456789' a/one b",
                flow.origin);
        flow_start();
        flow_ok("sheaf add tree %s", flow.origin);
        flow_mount("tree", flow.mount);
        flow_ok("cd %s && %s > %s/want", flow.origin, show, flow.base);
        flow_ok("cd %s && %s > %s/got", flow.mount, show, flow.base);
        flow_ok("diff %s/want %s/got", flow.base, flow.base);
        flow_ok("cd %s && test a/one -ef a/two && test a/one -ef b/three && "
                "test a/one -ef b/link && ! test a/one -ef a/empty",
                flow.mount);
        flow_ok("diff -r --no-dereference %s %s", flow.origin, flow.mount);
        cr_assert_eq(flow_check(flow_path("mount/b/link"), 1, 5000, 4096), 0);
        cr_assert_neq(flow_run("touch %s/new", flow.mount), 0);
        cr_assert_neq(flow_run("rm -f %s/a/one", flow.mount), 0);
        cr_assert_eq(flow_check(flow_path("origin/a/one"), 1, 5000, 4096), 0);
        cr_assert_eq(
                flow_stat("origin.bytes"), 5000, "hard links are one content");
        flow_umount(flow.mount);
        flow_stop();
}
