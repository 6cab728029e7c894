/* SPDX-License-Identifier: Apache-2.0 */
#include "kit.h"

#include "daemon/store/lock.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>

/* Opens in another process; its return code, and what it logged. */
static int open_elsewhere(const char *dir, char *ret_log, size_t cap_bytes)
{
        int ends[2], status;
        ssize_t n;
        size_t len = 0;
        pid_t pid;

        cr_assert_eq(pipe(ends), 0);
        pid = fork();
        if (pid == 0) {
                uv_loop_t loop;
                struct sheaf_store *store;
                struct sheaf_store_config config = {
                        .loop = &loop, .dir = dir, .bytes_max = 64 * SHEAF_MIB
                };

                dup2(ends[1], STDERR_FILENO);
                uv_loop_init(&loop);
                _exit(-sheaf_store_open(&config, &store));
        }
        close(ends[1]);
        while ((n = read(ends[0], ret_log + len, cap_bytes - 1 - len)) > 0)
                len += (size_t)n;
        ret_log[len] = '\0';
        close(ends[0]);
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert(WIFEXITED(status));
        return -WEXITSTATUS(status);
}

Test(lock, second_daemon_is_refused_and_told_who_holds_it)
{
        struct kit kit;
        char log[4096], pid[32], link[96], path[96];

        kit_begin(&kit, 64 * SHEAF_MIB);
        snprintf(pid, sizeof(pid), "pid=%d", (int)getpid());
        cr_assert_eq(open_elsewhere(kit.dir, log, sizeof(log)), -EBUSY);
        cr_assert_not_null(strstr(log, pid), "%s", log);
        cr_assert_not_null(strstr(log, "host="), "%s", log);
        snprintf(link, sizeof(link), "%s-link", kit.dir);
        cr_assert_eq(symlink(kit.dir, link), 0);
        cr_assert_eq(open_elsewhere(link, log, sizeof(log)), -EBUSY);
        cr_assert_eq(unlink(link), 0);
        /* A deleted or replaced lock file lets nobody in. */
        snprintf(path, sizeof(path), "%s/lock", kit.dir);
        cr_assert_eq(unlink(path), 0);
        cr_assert_eq(open_elsewhere(kit.dir, log, sizeof(log)), -EBUSY);
        close(open(path, O_CREAT | O_WRONLY, 0600));
        cr_assert_eq(open_elsewhere(kit.dir, log, sizeof(log)), -EBUSY);
        kit_close(&kit);
        cr_assert_eq(open_elsewhere(kit.dir, log, sizeof(log)), 0);
        /* It died without closing: nothing to clean by hand. */
        kit_open(&kit);
        kit_end(&kit);
}

/* A daemon is killed while a child of it still has its descriptors: the
 * next one waits for that child and starts. */
Test(lock, dead_holder_is_waited_for)
{
        struct sheaf_lock lock = SHEAF_LOCK_NONE;
        struct kit kit;
        char log[4096];
        int ends[2];
        pid_t holder, child = 0;

        kit_begin(&kit, 64 * SHEAF_MIB);
        kit_close(&kit);
        cr_assert_eq(pipe(ends), 0);
        holder = fork();
        if (holder == 0) {
                struct timespec nap = { .tv_nsec = 300000000 };

                if (sheaf_lock_take(kit.dir, true, NULL, &lock))
                        _exit(1);
                child = fork();
                if (child == 0) {
                        nanosleep(&nap, NULL);
                        _exit(0);
                }
                (void)!write(ends[1], &child, sizeof(child));
                _exit(0);
        }
        cr_assert_eq(read(ends[0], &child, sizeof(child)), sizeof(child));
        cr_assert_eq(waitpid(holder, NULL, 0), holder);
        cr_assert_eq(kill(child, 0), 0);
        cr_assert_eq(open_elsewhere(kit.dir, log, sizeof(log)), 0, "%s", log);
        kit_open(&kit);
        kit_end(&kit);
}

Test(lock, network_file_systems_have_names)
{
        cr_assert_str_eq(sheaf_lock_network_fs(0x6969), "NFS");
        cr_assert_str_eq(sheaf_lock_network_fs(0x0bd00bd0), "Lustre");
        cr_assert_str_eq(
                sheaf_lock_network_fs((uint64_t)(int64_t)(int32_t)0xff534d42),
                "CIFS");
        cr_assert_null(sheaf_lock_network_fs(0xef53));
        cr_assert_null(sheaf_lock_network_fs(0x01021994));
}
