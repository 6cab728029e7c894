/* SPDX-License-Identifier: Apache-2.0 */
/* Mounts come and go: busy, lazily, and after a crash. */
#include "tests/cachefs/mounted.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

static struct mounted m;

static void setup(void)
{
        mounted_prepare(&m);
}

static void cleanup(void)
{
        mounted_rescue(&m);
}

TestSuite(mounts, .init = setup, .fini = cleanup, .timeout = 120);

static bool listed(const char *dir)
{
        struct sheaf_mount_list list;
        size_t found = 0;

        cr_assert_eq(sheaf_mounts_list(&list), 0);
        for (size_t i = 0; i < list.count; i++) {
                if (strcmp(list.mount[i].dir, dir))
                        continue;
                cr_assert_str_eq(list.mount[i].dataset, "fake");
                found++;
        }
        sheaf_mount_list_free(&list);
        cr_assert_leq(found, 1);
        return found;
}

Test(mounts, are_listed)
{
        struct sheaf_mount mount;

        cr_assert_eq(sheaf_mounts_at(m.dir, &mount), -ENOENT);
        cr_assert_eq(sheaf_mounts_unmount(m.dir, false), -ENOENT);
        mounted_start(&m);
        cr_assert(listed(m.dir));
        cr_assert_eq(sheaf_mounts_dead(m.dir), 0);
        cr_assert_eq(sheaf_mounts_detach_dead(m.dir), 0);
        cr_assert(listed(m.dir));
        mounted_stop(&m);
        cr_assert(!listed(m.dir));
        mounted_remove(&m);
}

Test(mounts, odd_mount_points)
{
        static const char *const names[] = { "with blank", "tab\there",
                "new\nline", "back\\slash", "a,b", "\xff" };
        char plain[sizeof(m.dir)];

        strcpy(plain, m.dir);
        stamp_file(at(m.origin, "f"), 0, 10);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(names); i++) {
                snprintf(m.dir, sizeof(m.dir), "%s/%s", m.base, names[i]);
                cr_assert(!mkdir(m.dir, 0755));
                mounted_start(&m);
                cr_assert(listed(m.dir));
                cr_assert(!access(at(m.dir, "f"), R_OK));
                mounted_stop(&m);
        }
        mounted_remove(&m);
}

Test(mounts, absolute_paths)
{
        char *path = NULL;

        cr_assert(!chdir(m.base));
        cr_assert_eq(sheaf_mounts_absolute("mount", &path), 0);
        cr_assert_str_eq(path, m.dir);
        free(path);
        cr_assert(!symlink("mount", "link"));
        cr_assert_eq(sheaf_mounts_absolute("link/", &path), 0);
        cr_assert_str_eq(path, m.dir);
        free(path);
        cr_assert_eq(sheaf_mounts_absolute("none", &path), -ENOENT);
        cr_assert(sh("rm -r %s", m.base));
}

/* Ends a child that holds something of the mount, on SIGTERM. */
static pid_t hold(void (*take)(void))
{
        int ready[2];
        pid_t pid;
        char c;

        cr_assert(!pipe(ready));
        pid = fork();
        if (!pid) {
                take();
                if (write(ready[1], "x", 1) != 1)
                        _exit(1);
                for (;;)
                        pause();
        }
        cr_assert_eq(read(ready[0], &c, 1), 1);
        close(ready[0]);
        close(ready[1]);
        return pid;
}

static void take_cwd(void)
{
        if (chdir(m.dir))
                _exit(1);
}

static void take_file(void)
{
        if (open(at(m.dir, "f"), O_RDONLY) < 0)
                _exit(1);
}

static void take_mapping(void)
{
        int fd = open(at(m.dir, "f"), O_RDONLY);

        if (mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED)
                _exit(1);
        close(fd);
}

static void end(pid_t pid)
{
        cr_assert(!kill(pid, SIGTERM));
        cr_assert_eq(waitpid(pid, NULL, 0), pid);
}

Test(mounts, busy_then_lazy)
{
        static char buf[1 << 20], want[1 << 20];
        uint64_t size = 4 << 20;
        struct sheaf_mount mount;
        pid_t holder[3], found[16];
        int fd, count, status;

        stamp_file(at(m.origin, "f"), 2, size);
        mounted_start(&m);
        holder[0] = hold(take_cwd);
        holder[1] = hold(take_file);
        holder[2] = hold(take_mapping);
        fd = open(at(m.dir, "f"), O_RDONLY | O_CLOEXEC);
        cr_assert_eq(sheaf_mounts_unmount(m.dir, false), -EBUSY);
        cr_assert_eq(sheaf_mounts_at(m.dir, &mount), 0);
        count = sheaf_mounts_holders(&mount, found, SHEAF_ARRAY_LEN(found));
        sheaf_mount_clear(&mount);
        cr_assert_eq(count, 4);
        for (int i = 0; i < 3; i++) {
                bool named = false;

                for (int j = 0; j < count; j++)
                        named = named || found[j] == holder[i];
                cr_assert(named, "holder %d is not named", i);
        }
        /* still fully usable */
        cr_assert(!access(at(m.dir, "f"), R_OK));
        cr_assert_eq(read(fd, buf, sizeof(buf)), sizeof(buf));
        cr_assert_eq(sheaf_mounts_unmount(m.dir, true), 0);
        cr_assert(!listed(m.dir));
        cr_assert_eq(access(at(m.dir, "f"), R_OK), -1);
        for (uint64_t pos = sizeof(buf); pos < size; pos += sizeof(buf)) {
                cr_assert_eq(read(fd, buf, sizeof(buf)), sizeof(buf));
                stamp_fill(want, 2, pos, sizeof(want));
                cr_assert(!memcmp(buf, want, sizeof(buf)));
        }
        cr_assert_eq(read(fd, buf, 1), 0);
        close(fd);
        for (int i = 0; i < 3; i++) {
                cr_assert_eq(waitpid(m.server, &status, WNOHANG), 0);
                end(holder[i]);
        }
        /* ends by itself when the last user is gone */
        cr_assert_eq(waitpid(m.server, &status, 0), m.server);
        cr_assert_eq(status, 0);
        mounted_remove(&m);
}

Test(mounts, a_killed_server_blocks_nothing)
{
        char buf[4096], want[4096];

        stamp_file(at(m.origin, "f"), 6, 1 << 20);
        stamp_fill(want, 6, 0, sizeof(want));
        for (int round = 0; round < 20; round++) {
                int fd;

                mounted_start(&m);
                fd = open(at(m.dir, "f"), O_RDONLY);
                cr_assert_eq(pread(fd, buf, sizeof(buf), 0), sizeof(buf));
                cr_assert(!memcmp(buf, want, sizeof(buf)));
                cr_assert(!kill(m.server, SIGKILL));
                cr_assert_eq(waitpid(m.server, NULL, 0), m.server);
                cr_assert_eq(sheaf_mounts_dead(m.dir), 1);
                /* an open file of the dead mount does not hold it */
                cr_assert_eq(sheaf_mounts_detach_dead(m.dir), 1);
                cr_assert(!listed(m.dir));
                close(fd);
        }
        mounted_start(&m);
        cr_assert(listed(m.dir));
        mounted_stop(&m);
        mounted_remove(&m);
}
