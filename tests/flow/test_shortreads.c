/* SPDX-License-Identifier: Apache-2.0 */
/* Many readers of one file in blocks of odd sizes while its pages are thrown
 * away: each gets every byte and meets the end at the end only.
 *
 * SOAK_ROUNDS: rounds of each mode (4), on a file of 64 MiB instead of 16. */
#include "tests/flow/harness.h"
#include "tests/flow/soak.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>

TestSuite(shortreads, .init = flow_init, .fini = flow_fini, .timeout = 100000);

#define READERS 8

static uint64_t bytes = (UINT64_C(16) << 20) + 3;

static const size_t blocks[READERS] = { 4095, 4096, 131072, 1000003, 65537,
        12345, 4194304, 1 };

/* From @first to the end and around; a block of 1 reads a part only. */
static int read_around(const char *path, size_t block, uint64_t first)
{
        sheaf_autofd int fd = open(path, O_RDONLY | O_CLOEXEC);
        sheaf_autofree char *buf = malloc(block);
        uint64_t left = block == 1 ? 100000 : bytes, at = first;

        if (fd < 0)
                return 1;
        while (left) {
                size_t want = SHEAF_MIN(block, left);
                ssize_t n = pread(fd, buf, want, (off_t)at);

                if (n < 0)
                        return 2;
                if (!n && at != bytes)
                        return 3;
                if ((uint64_t)n != SHEAF_MIN(want, bytes - at))
                        return 4;
                if (!flow_stamp_check(buf, 1, at, (size_t)n))
                        return 5;
                at = at + (uint64_t)n == bytes ? 0 : at + (uint64_t)n;
                left -= (uint64_t)n;
        }
        return 0;
}

static pid_t start_dropper(const char *path)
{
        pid_t pid = flow_fork(0, 0);
        int fd;

        if (pid)
                return pid;
        fd = open(path, O_RDONLY | O_CLOEXEC);
        for (;;) {
                posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
                flow_sleep(0.01);
        }
}

/* Every second round finds nothing in the cache. */
static void run_round(const char *mode, int round)
{
        char path[128];
        pid_t dropper, pids[READERS];

        snprintf(path, sizeof(path), "%s/file", flow.mount);
        if (round && round % 2 == 0)
                flow_ok("sheaf warmup --evict data");
        flow_ok("sheaf mount --mode %s data %s", mode, flow.mount);
        dropper = start_dropper(path);
        for (int i = 0; i < READERS; i++) {
                pids[i] = flow_fork(0, 0);
                if (!pids[i])
                        _exit(read_around(path, blocks[i],
                                bytes / READERS * (uint64_t)i));
        }
        for (int i = 0; i < READERS; i++) {
                int rc = flow_join(pids[i], 80);

                cr_assert_eq(rc, 0, "round %d, reader %d: %d", round, i, rc);
        }
        kill(dropper, SIGKILL);
        flow_join(dropper, 5);
        flow_umount(flow.mount);
}

static void run_readers(const char *mode, uint64_t rounds)
{
        struct soak soak;

        soak_begin(&soak, "shortreads", "rounds", rounds, 1);
        if (soak.is_long)
                bytes = (UINT64_C(64) << 20) + 3;
        flow.memory = "64MiB";
        flow_file(1, bytes, "file");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        while (soak_next(&soak))
                run_round(mode, (int)soak.done - 1);
        soak_end(&soak, "%s: %u readers got all bytes", mode, READERS);
        /* An answer of the mount that is not as long as asked is an error. */
        cr_assert_eq(flow_stat("mount.read_errors"), 0);
        flow_stop();
}

Test(shortreads, of_small_mode)
{
        run_readers("small", 3);
}

/* No read of the origin gives more than a thousand bytes. */
Test(shortreads, of_an_origin_in_small_pieces)
{
        flow.faults = "pieces=1000:file";
        run_readers("small", 1);
}

Test(shortreads, of_shard_mode)
{
        run_readers("shard", 3);
}

/* The same blocks by library, while the cache is emptied. */
Test(shortreads, by_library_under_eviction)
{
        pid_t pids[READERS];
        int living = READERS;

        flow.memory = "64MiB";
        flow_file(1, bytes, "file");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        for (int i = 0; i < READERS; i++) {
                pids[i] = flow_fork(0, 0);
                if (!pids[i]) {
                        struct sheaf_session *session;
                        struct sheaf_dataset *dataset;
                        int rc = flow_open("data", &session, &dataset);

                        for (int round = 0; !rc && round < 3; round++) {
                                rc = blocks[i] == 1
                                             ? flow_check_view(dataset, "file",
                                                       1, bytes)
                                             : flow_check_read(dataset, "file",
                                                       1, bytes, blocks[i]);
                        }
                        _exit(-rc);
                }
        }
        while (living) {
                flow_ok("sheaf warmup --evict data");
                living = 0;
                for (int i = 0; i < READERS; i++) {
                        int rc = pids[i] ? flow_wait(pids[i], 0) : 0;

                        cr_assert_leq(rc, 0, "reader %d: %s", i, strerror(rc));
                        if (rc < 0)
                                living++;
                        else
                                pids[i] = 0;
                }
        }
        flow_stop();
}
