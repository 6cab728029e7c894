/* SPDX-License-Identifier: Apache-2.0 */
/* The tree is shown exactly, and costs nothing once it is known. */
#include "tests/cachefs/mounted.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>

static struct mounted m;

static void setup(void)
{
        mounted_prepare(&m);
}

static void cleanup(void)
{
        mounted_rescue(&m);
}

TestSuite(tree, .init = setup, .fini = cleanup, .timeout = 120);

static void make_tree(void)
{
        cr_assert(sh("cd %s && mkdir -p a/b/c empty 'x y' && ln -s ../q a/up "
                     "&& ln -s /etc/passwd out && ln -s b/c a/in && "
                     ": > zero && cp /bin/ls a/b/prog && chmod 4711 a/b/prog "
                     "&& echo one > a/one && ln a/one a/b/two && "
                     "chmod 0640 a/one && touch -d "
                     "'1999-12-31 23:59:59.123456789' a/b/c zero && "
                     "touch -h -d '2005-01-01 00:00:00.000000001' out && "
                     "touch -d '1960-05-05 05:05:05.5' 'x y'",
                m.origin));
        stamp_file(at(m.origin, "a/big"), 1, 9000001);
        if (!geteuid())
                cr_assert(sh("cd %s && chown 12345:54321 a/b/prog && "
                             "chown -h 7:8 out && chmod 0 zero",
                        m.origin));
}

Test(tree, equals_its_origin)
{
        make_tree();
        mounted_start(&m);
        /* the root shows the domain, so it is not compared */
        cr_assert(sh("cd %s && for d in origin mount; do (cd $d && find . "
                     "-mindepth 1 -printf '%%P|%%y|%%m|%%s|%%T+|%%U|%%G|%%l|"
                     "%%n\\n' | sed '/|d|/s/|[0-9]*|\\([^|]*|[^|]*|[^|]*|"
                     "[^|]*|[^|]*\\)$/|\\1/' | sort) > $d.list; done; "
                     "diff origin.list mount.list",
                m.base));
        cr_assert(sh("diff -r --no-dereference %s %s", m.origin, m.dir));
        mounted_stop(&m);
        mounted_remove(&m);
}

Test(tree, names_of_any_bytes)
{
        static const char *const names[] = { "\n", "a\nb", " ", " x ", "-rf",
                "*", "%2F", "a+b", "a b", "a#b?c&d=e", "\xc3\xa9", "e\xcc\x81",
                "\xff\xfe", "\"", "\\", "..." };
        char buf[512], longest[256];
        size_t seen = 0;
        struct dirent *entry;
        DIR *dir;

        memset(longest, 'n', 255);
        longest[255] = '\0';
        for (size_t i = 0; i <= SHEAF_ARRAY_LEN(names); i++) {
                const char *name =
                        i < SHEAF_ARRAY_LEN(names) ? names[i] : longest;
                FILE *file = fopen(at(m.origin, name), "w");

                cr_assert(file);
                fputs(name, file);
                fclose(file);
        }
        mounted_start(&m);
        dir = opendir(m.dir);
        cr_assert(dir);
        while ((entry = readdir(dir))) {
                FILE *file;
                size_t n;

                if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
                        continue;
                cr_assert_eq(entry->d_type, DT_REG);
                file = fopen(at(m.dir, entry->d_name), "r");
                cr_assert(file);
                n = fread(buf, 1, sizeof(buf), file);
                fclose(file);
                cr_assert_eq(n, strlen(entry->d_name));
                cr_assert(!memcmp(buf, entry->d_name, n));
                seen++;
        }
        closedir(dir);
        cr_assert_eq(seen, SHEAF_ARRAY_LEN(names) + 1);
        mounted_stop(&m);
        mounted_remove(&m);
}

Test(tree, root_shows_the_domain)
{
        static const struct {
                int domain;
                mode_t mode;
        } cases[] = { { 0, 0700 }, { 1, 0750 }, { 2, 0755 }, { 3, 0755 } };
        struct stat st;

        cr_assert(!chmod(m.origin, 0777));
        fake_dataset_new(m.origin, &m.fake);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(cases); i++) {
                m.fake.info.domain = cases[i].domain;
                m.fake.info.domain_gid = 4242;
                mounted_start(&m);
                cr_assert(!stat(m.dir, &st));
                cr_assert_eq(st.st_mode, S_IFDIR | cases[i].mode);
                cr_assert_eq(st.st_gid == 4242, cases[i].domain == 1);
                cr_assert_eq(st.st_ino, 1);
                mounted_stop(&m);
        }
        mounted_remove(&m);
}

/* Another user gets in only where the domain says so, even as root of the
 * mount allows others. */
Test(tree, the_kernel_keeps_the_domain)
{
        if (geteuid()) {
                mounted_rescue(&m);
                cr_skip_test("needs root to become another user");
        }
        cr_assert(sh("echo x > %s/f && chmod 0644 %s/f && chmod 0755 %s",
                m.origin, m.origin, m.base));
        fake_dataset_new(m.origin, &m.fake);
        m.options.allow_other = true;
        for (int domain = 0; domain <= 2; domain += 2) {
                m.fake.info.domain = domain;
                mounted_start(&m);
                cr_assert_eq(sh("setpriv --reuid 65000 --regid 65000 "
                                "--clear-groups cat %s/f >/dev/null 2>&1",
                                     m.dir),
                        domain == 2);
                mounted_stop(&m);
        }
        mounted_remove(&m);
}

Test(tree, attributes_of_the_cache)
{
        char value[128];
        ssize_t n;

        cr_assert(sh("printf abc > %s/f && mkdir %s/d", m.origin, m.origin));
        m.options.list_xattrs = true;
        mounted_start(&m);
        n = getxattr(at(m.dir, "f"), "user.sheaf.digest", value, sizeof(value));
        cr_assert_eq(n, 64);
        cr_assert(!memcmp(value, "ba7816bf8f01cfea414140de5dae2223", 32));
        cr_assert_eq(
                getxattr(at(m.dir, "f"), "user.sheaf.digest", NULL, 0), 64);
        cr_assert_eq(
                getxattr(at(m.dir, "f"), "user.sheaf.digest", value, 9), -1);
        cr_assert_eq(errno, ERANGE);
        n = getxattr(at(m.dir, "f"), "user.sheaf.cached", value, sizeof(value));
        cr_assert(n == 1 && value[0] == '3');
        n = getxattr(at(m.dir, "f"), "user.sheaf.sample", value, sizeof(value));
        cr_assert(n == 1 && value[0] == '0');
        n = getxattr(m.dir, "user.sheaf.dataset", value, sizeof(value));
        cr_assert(n == 4 && !memcmp(value, "fake", 4));
        n = getxattr(m.dir, "user.sheaf.version", value, sizeof(value));
        cr_assert(n == 36);
        cr_assert(!memcmp(value, "30313233-3435-3637-3839-616263646566", 36));
        cr_assert_eq(getxattr(at(m.dir, "d"), "user.sheaf.cached", value,
                             sizeof(value)),
                -1);
        cr_assert_eq(errno, ENODATA);
        cr_assert_eq(getxattr(at(m.dir, "f"), "security.selinux", value,
                             sizeof(value)),
                -1);
        cr_assert_eq(errno, EOPNOTSUPP);
        cr_assert_eq(listxattr(at(m.dir, "f"), NULL, 0),
                5 + strlen("user.sheaf.digestuser.sheaf.cached"
                           "user.sheaf.datasetuser.sheaf.version"
                           "user.sheaf.sample"));
        cr_assert_eq(listxattr(at(m.dir, "d"), NULL, 0), 0);
        mounted_stop(&m);
        mounted_remove(&m);
}

Test(tree, statfs_is_never_empty)
{
        struct statvfs st;

        mounted_start(&m);
        cr_assert(!statvfs(m.dir, &st));
        cr_assert_gt(st.f_blocks, 0);
        cr_assert_gt(st.f_files, 0);
        cr_assert_eq(st.f_namemax, 255);
        cr_assert(st.f_flag & ST_RDONLY);
        mounted_stop(&m);
        mounted_remove(&m);
}

Test(tree, nothing_can_be_changed)
{
        cr_assert(sh("echo x > %s/f", m.origin));
        mounted_start(&m);
        cr_assert_eq(open(at(m.dir, "f"), O_WRONLY), -1);
        cr_assert_eq(errno, EROFS);
        cr_assert_eq(unlink(at(m.dir, "f")), -1);
        cr_assert_eq(errno, EROFS);
        cr_assert_eq(mkdir(at(m.dir, "d"), 0755), -1);
        cr_assert_eq(errno, EROFS);
        mounted_stop(&m);
        mounted_remove(&m);
}

static void walk_and_read(void)
{
        cr_assert(sh("ls -lR %s > /dev/null && find %s -type f -print0 | "
                     "xargs -0 cat > /dev/null && ls %s/nothing 2> /dev/null;"
                     " test -e %s/nothing || true",
                m.dir, m.dir, m.dir, m.dir));
}

/* `ls` and `find` ask so once a run, not once a file. */
static uint64_t per_run(void)
{
        return m.fake.shared->op[SHEAF_METER_OP_GETXATTR] +
               m.fake.shared->op[SHEAF_METER_OP_STATFS];
}

/* The promise that makes a mount as fast as a disk: no request at all. The
 * kernel may drop a page at any time, so one pass of several must be free. */
Test(tree, a_second_pass_makes_no_request)
{
        uint64_t before, runs, more = 0;

        cr_assert(sh("cd %s && for d in 1 2 3; do mkdir $d; for f in $(seq "
                     "100); do head -c 5000 /dev/zero > $d/$f; done; "
                     "ln -s 1 $d/link; done",
                m.origin));
        mounted_start(&m);
        walk_and_read();
        cr_assert_eq(m.fake.shared->op[SHEAF_METER_OP_READ], 300);
        for (int pass = 0; pass < 5; pass++) {
                before = mounted_requests(&m) - per_run();
                runs = per_run();
                walk_and_read();
                more = mounted_requests(&m) - per_run() - before;
                cr_assert_leq(per_run() - runs, 8);
                if (!more)
                        break;
        }
        cr_assert_eq(more, 0, "%llu requests more", (unsigned long long)more);
        cr_assert_eq(m.fake.shared->op[SHEAF_METER_OP_OPEN], 1);
        cr_assert_eq(m.fake.shared->op[SHEAF_METER_OP_OPENDIR], 1);
        cr_assert_leq(m.fake.shared->op[SHEAF_METER_OP_FLUSH], 1);
        mounted_stop(&m);
        mounted_remove(&m);
}

#define MANY 50000

static int by_name(const void *a, const void *b)
{
        return *(const int *)a - *(const int *)b;
}

static void on_timer(int sig)
{
        (void)sig;
}

/* Reads names with buffers of @cap bytes under a timer, all of them once. */
static void list_raw(size_t cap)
{
        struct linux_dirent64 {
                uint64_t ino;
                int64_t off;
                uint16_t reclen;
                uint8_t type;
                char name[];
        } * entry;
        int *seen = calloc(MANY + 8, sizeof(int));
        int fd = open(m.dir, O_RDONLY | O_DIRECTORY);
        char *buf = malloc(cap);
        size_t count = 0, dots = 0;
        long n;

        cr_assert(fd >= 0 && buf && seen);
        while ((n = syscall(SYS_getdents64, fd, buf, cap)) != 0) {
                cr_assert(n > 0 || errno == EINTR, "%s", strerror(errno));
                for (long pos = 0; pos < n; pos += entry->reclen) {
                        entry = (void *)(buf + pos);
                        if (entry->name[0] == '.') {
                                dots++;
                                continue;
                        }
                        cr_assert_lt(count, MANY);
                        seen[count++] = atoi(entry->name + 1);
                        cr_assert_eq(entry->type,
                                entry->name[0] == 'd' ? DT_DIR : DT_REG);
                }
        }
        cr_assert_eq(count, MANY);
        cr_assert_eq(dots, 2);
        qsort(seen, count, sizeof(int), by_name);
        for (int i = 0; i < MANY; i++)
                cr_assert_eq(seen[i], i);
        free(seen);
        free(buf);
        close(fd);
}

Test(tree, a_large_directory)
{
        struct itimerval each_ms = { { 0, 1000 }, { 0, 1000 } }, off = { 0 };
        struct sigaction act = { .sa_handler = on_timer };
        struct dirent *entry;
        char name[256];
        long place;
        DIR *dir;

        for (int i = 0; i < MANY; i++) {
                snprintf(name, sizeof(name), "%c%05d", i % 50 ? 'f' : 'd', i);
                if (i % 50)
                        close(creat(at(m.origin, name), 0644));
                else
                        cr_assert(!mkdir(at(m.origin, name), 0755));
        }
        mounted_start(&m);
        sigaction(SIGALRM, &act, NULL);
        setitimer(ITIMER_REAL, &each_ms, NULL);
        list_raw(1024);
        list_raw(1 << 20);
        setitimer(ITIMER_REAL, &off, NULL);
        dir = opendir(m.dir);
        cr_assert(dir);
        for (int i = 0; i < MANY / 2; i++)
                cr_assert(readdir(dir));
        place = telldir(dir);
        entry = readdir(dir);
        cr_assert(entry);
        strcpy(name, entry->d_name);
        for (int i = 0; i < 1000; i++)
                cr_assert(readdir(dir));
        rewinddir(dir);
        cr_assert(readdir(dir));
        seekdir(dir, place);
        entry = readdir(dir);
        cr_assert(entry);
        cr_assert_str_eq(entry->d_name, name);
        closedir(dir);
        mounted_stop(&m);
        mounted_remove(&m);
}
