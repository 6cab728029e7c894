/* SPDX-License-Identifier: Apache-2.0 */
/* Reads give exactly the file's bytes or an error, whichever way. */
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
        m.options.kind = SHEAF_TREE_SMALL;
}

static void cleanup(void)
{
        mounted_rescue(&m);
}

TestSuite(read, .init = setup, .fini = cleanup, .timeout = 120);

/* Reads the file front to back in @block bytes, from the block at @first
 * around; each byte is compared. Returns an exit status. */
static int read_all(const char *path, uint32_t seed, uint64_t size,
        size_t block, uint64_t first)
{
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        char *got = malloc(block), *want = malloc(block);
        uint64_t blocks = (size + block - 1) / block;

        if (fd < 0 || !got || !want)
                return 1;
        for (uint64_t i = 0; i < blocks; i++) {
                uint64_t pos = (first + i) % blocks * block;
                size_t len = SHEAF_MIN(block, size - pos);

                if (pread(fd, got, block, (off_t)pos) != (ssize_t)len)
                        return 2;
                stamp_fill(want, seed, pos, len);
                if (memcmp(got, want, len))
                        return 3;
        }
        if (pread(fd, got, block, (off_t)size) != 0)
                return 4;
        free(got);
        free(want);
        close(fd);
        return 0;
}

static int read_direct(const char *path, uint32_t seed, uint64_t size)
{
        int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
        size_t block = 256 << 10;
        void *got;
        char *want = malloc(block);

        if (fd < 0 || posix_memalign(&got, 4096, block) || !want)
                return 1;
        for (uint64_t pos = 0; pos < size; pos += block) {
                size_t len = SHEAF_MIN(block, size - pos);

                if (pread(fd, got, block, (off_t)pos) != (ssize_t)len)
                        return 2;
                stamp_fill(want, seed, pos, len);
                if (memcmp(got, want, len))
                        return 3;
        }
        free(got);
        free(want);
        close(fd);
        return 0;
}

static int read_mapped(
        const char *path, uint32_t seed, uint64_t size, int flags)
{
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        size_t mapped = sheaf_round_up(size, 4096);
        char *want = malloc(size);
        char *map = mmap(NULL, size, PROT_READ, flags, fd, 0);

        if (fd < 0 || !want || map == MAP_FAILED)
                return 1;
        stamp_fill(want, seed, 0, size);
        if (memcmp(map, want, size))
                return 2;
        for (size_t i = size; i < mapped; i++)
                if (map[i])
                        return 3;
        munmap(map, size);
        free(want);
        close(fd);
        return 0;
}

/* By every way to read: exactly the size, then beyond, cold and warm. */
static void check_file(const char *path, uint32_t seed, uint64_t size)
{
        size_t block = SHEAF_MAX(size, 1);
        int fd;

        cr_assert_eq(read_all(path, seed, size, block, 0), 0);
        cr_assert_eq(read_all(path, seed, size, 65536, 0), 0);
        cr_assert_eq(read_all(path, seed, size, size + 65536, 0), 0);
        cr_assert_eq(read_direct(path, seed, size), 0);
        if (size) {
                cr_assert_eq(read_mapped(path, seed, size, MAP_SHARED), 0);
                cr_assert_eq(read_mapped(path, seed, size, MAP_PRIVATE), 0);
                return;
        }
        fd = open(path, O_RDONLY);
        cr_assert_eq(mmap(NULL, 0, PROT_READ, MAP_SHARED, fd, 0), MAP_FAILED);
        cr_assert_eq(errno, EINVAL);
        close(fd);
}

Test(read, edge_sizes)
{
        static const uint64_t sizes[] = { 0, 1, 4095, 4096, 4097,
                (128 << 10) - 1, 128 << 10, (128 << 10) + 1, 256 << 10,
                (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 2 << 20, (4 << 20) - 1,
                4 << 20, (4 << 20) + 1, 8 << 20, (8 << 20) + 1 };
        char name[32];

        for (uint32_t i = 0; i < SHEAF_ARRAY_LEN(sizes); i++) {
                snprintf(name, sizeof(name), "%u", i);
                stamp_file(at(m.origin, name), i, sizes[i]);
        }
        for (int kind = SHEAF_TREE_SMALL; kind <= SHEAF_TREE_SHARD; kind++) {
                m.options.kind = (enum sheaf_tree_kind)kind;
                mounted_start(&m);
                for (uint32_t i = 0; i < SHEAF_ARRAY_LEN(sizes); i++) {
                        snprintf(name, sizeof(name), "%u", i);
                        check_file(at(m.dir, name), i, sizes[i]);
                }
                mounted_stop(&m);
        }
        mounted_remove(&m);
}

static void check_mappings(const char *path, const char *want, uint64_t size)
{
        int fd, status;
        pid_t child;
        char *map;

        for (int pass = 0; pass < 2; pass++) {
                cr_assert_eq(read_mapped(path, 9, size, MAP_SHARED), 0);
                cr_assert_eq(read_mapped(path, 9, size, MAP_PRIVATE), 0);
        }
        fd = open(path, O_RDONLY);
        cr_assert_eq(
                mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0),
                MAP_FAILED);
        cr_assert_eq(errno, EACCES);
        /* dropped from the page cache while mapped, then read in parent and
         * child */
        map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
        cr_assert_neq(map, MAP_FAILED);
        cr_assert(!posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
        child = fork();
        if (!child)
                _exit(memcmp(map, want, size) != 0);
        cr_assert(!memcmp(map, want, size));
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert_eq(status, 0);
        munmap(map, size);
        close(fd);
}

Test(read, mapping)
{
        uint64_t size = (10 << 20) + 1;
        char *want = malloc(size);

        cr_assert(want);
        stamp_file(at(m.origin, "f"), 9, size);
        stamp_fill(want, 9, 0, size);
        cr_assert(sh("cp /bin/true %s/prog", m.origin));
        for (int kind = SHEAF_TREE_SMALL; kind <= SHEAF_TREE_SHARD; kind++) {
                m.options.kind = (enum sheaf_tree_kind)kind;
                mounted_start(&m);
                check_mappings(at(m.dir, "f"), want, size);
                cr_assert(sh("%s/prog", m.dir));
                mounted_stop(&m);
        }
        mounted_remove(&m);
        free(want);
}

Test(read, beyond_four_gigabytes)
{
        static const uint64_t marks[] = { 0, (UINT64_C(1) << 31) - 8,
                UINT64_C(1) << 31, (UINT64_C(1) << 32) - 8, UINT64_C(1) << 32,
                UINT64_C(5) << 30 };
        uint64_t size = (UINT64_C(5) << 30) + 7;
        char got[16], want[16];
        struct stat st;
        int fd = open(at(m.origin, "f"), O_RDWR | O_CREAT, 0644);

        cr_assert(fd >= 0);
        cr_assert(!ftruncate(fd, (off_t)size));
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(marks); i++) {
                size_t len = SHEAF_MIN(8, size - marks[i]);

                stamp_fill(want, 3, marks[i], len);
                cr_assert_eq(
                        pwrite(fd, want, len, (off_t)marks[i]), (ssize_t)len);
        }
        for (int direct = 0; direct < 2; direct++) {
                int file;

                m.options.kind = direct ? SHEAF_TREE_SHARD : SHEAF_TREE_SMALL;
                mounted_start(&m);
                file = open(at(m.dir, "f"), O_RDONLY);
                cr_assert(!fstat(file, &st));
                cr_assert_eq((uint64_t)st.st_size, size);
                for (size_t i = 0; i < SHEAF_ARRAY_LEN(marks); i++) {
                        ssize_t n = pread(fd, want, 16, (off_t)marks[i]);

                        cr_assert_eq(pread(file, got, 16, (off_t)marks[i]), n);
                        cr_assert(n >= 7 && !memcmp(got, want, (size_t)n));
                }
                close(file);
                mounted_stop(&m);
        }
        close(fd);
        mounted_remove(&m);
}

/* A reply shorter than asked would be the end of the file for somebody. */
Test(read, never_short)
{
        static const size_t blocks[] = { 4095, 4096, 131072, 1000003, 511 };
        uint64_t size = (16 << 20) + 3;
        pid_t pids[SHEAF_ARRAY_LEN(blocks)];
        struct timespec pause = { 0, 5000000 };
        int fd, status, left = SHEAF_ARRAY_LEN(blocks);

        stamp_file(at(m.origin, "f"), 5, size);
        mounted_start(&m);
        m.fake.shared->never_memory = 1;
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(blocks); i++) {
                pids[i] = fork();
                if (!pids[i])
                        _exit(read_all(
                                at(m.dir, "f"), 5, size, blocks[i], i * 37));
        }
        fd = open(at(m.dir, "f"), O_RDONLY);
        while (left) {
                posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
                nanosleep(&pause, NULL);
                while (left && waitpid(-1, &status, WNOHANG) > 0) {
                        cr_assert_eq(
                                status, 0, "status %x", (unsigned int)status);
                        left--;
                }
        }
        close(fd);
        cr_assert_eq(m.fake.shared->op[SHEAF_METER_OP_READ_ERRORS], 0);
        cr_assert_gt(m.fake.shared->reads_waited, 0);
        mounted_stop(&m);
        mounted_remove(&m);
}

/* A view with fewer bytes than asked becomes an error, never an end. */
Test(read, a_short_view_is_an_error)
{
        char buf[16];
        int fd;

        stamp_file(at(m.origin, "f"), 1, 100000);
        mounted_start(&m);
        m.fake.shared->short_view = 1;
        fd = open(at(m.dir, "f"), O_RDONLY);
        cr_assert_eq(read(fd, buf, sizeof(buf)), -1);
        cr_assert_eq(errno, EIO);
        close(fd);
        cr_assert_gt(m.fake.shared->op[SHEAF_METER_OP_READ_ERRORS], 0);
        m.fake.shared->short_view = 0;
        cr_assert_eq(read_all(at(m.dir, "f"), 1, 100000, 4096, 0), 0);
        mounted_stop(&m);
        mounted_remove(&m);
}

Test(read, errors_reach_the_reader)
{
        static const int codes[][2] = { { -EIO, EIO }, { -ESTALE, ESTALE },
                { -ETIMEDOUT, EIO }, { -ENOENT, EIO } };
        char *buf = NULL;

        cr_assert(!posix_memalign((void **)&buf, 4096, 4096));
        stamp_file(at(m.origin, "f"), 1, 100000);
        mounted_start(&m);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(codes); i++) {
                int fd = open(at(m.dir, "f"), O_RDONLY | O_DIRECT);

                m.fake.shared->never_memory = i % 2;
                m.fake.shared->fail_rc = codes[i][0];
                cr_assert_eq(read(fd, buf, 4096), -1);
                cr_assert_eq(
                        errno, codes[i][1], "%d for %d", errno, codes[i][0]);
                close(fd);
        }
        m.fake.shared->fail_rc = 0;
        cr_assert_eq(read_all(at(m.dir, "f"), 1, 100000, 4096, 0), 0);
        mounted_stop(&m);
        mounted_remove(&m);
        free(buf);
}

static int64_t now_ms(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* While many reads wait, the tree answers, and a killed reader goes. */
Test(read, waiting_blocks_nobody)
{
        enum {
                READERS = 20
        };
        struct timespec pause = { 0, 200000000 };
        pid_t pids[READERS];
        int64_t begin;
        int status;

        stamp_file(at(m.origin, "f"), 1, 1 << 20);
        cr_assert(sh("mkdir %s/d && echo x > %s/d/x", m.origin, m.origin));
        mounted_start(&m);
        m.fake.shared->never_memory = 1;
        m.fake.shared->delay_ms = 8000;
        for (int i = 0; i < READERS; i++) {
                pids[i] = fork();
                if (!pids[i]) {
                        int fd = open(at(m.dir, "f"), O_RDONLY | O_DIRECT);
                        void *buf;

                        if (fd < 0 || posix_memalign(&buf, 4096, 4096))
                                _exit(1);
                        _exit(pread(fd, buf, 4096, i * 4096) != 4096);
                }
        }
        nanosleep(&pause, NULL);
        begin = now_ms();
        cr_assert(sh("ls -l %s/d > /dev/null && stat %s/d/x > /dev/null", m.dir,
                m.dir));
        cr_assert_lt(now_ms() - begin, 4000, "the tree waits for reads");
        for (int i = 0; i < READERS; i++)
                cr_assert(!kill(pids[i], SIGKILL));
        for (int i = 0; i < READERS; i++) {
                cr_assert_eq(waitpid(pids[i], &status, 0), pids[i]);
                cr_assert(WIFSIGNALED(status));
        }
        cr_assert_lt(now_ms() - begin, 6000, "killed readers wait");
        m.fake.shared->delay_ms = 0;
        cr_assert_eq(read_all(at(m.dir, "f"), 1, 1 << 20, 4096, 0), 0);
        mounted_stop(&m);
        mounted_remove(&m);
}

/* The kernel asks again when a readahead has failed; the reader must not wait
 * a second time, nor get an error for good. */
Test(read, a_deadline_passes_once)
{
        char buf[16];
        int fd;

        stamp_file(at(m.origin, "f"), 1, 100000);
        mounted_start(&m);
        m.fake.shared->never_memory = 1;
        m.fake.shared->fail_rc = -ETIMEDOUT;
        m.fake.shared->delay_ms = 1200;
        fd = open(at(m.dir, "f"), O_RDONLY);
        cr_assert_eq(read(fd, buf, sizeof(buf)), -1);
        cr_assert_eq(errno, EIO);
        cr_assert_eq(m.fake.shared->reads_waited, 1);
        m.fake.shared->fail_rc = 0;
        m.fake.shared->delay_ms = 0;
        usleep(1100000);
        cr_assert_eq(read_all(at(m.dir, "f"), 1, 100000, 4096, 0), 0);
        close(fd);
        mounted_stop(&m);
        mounted_remove(&m);
}

/* Readers that are killed while their answers come: each request is answered
 * once, by the worker or by the interrupt, and no view is lost. */
Test(read, interrupts_and_answers_race)
{
        enum {
                ROUNDS = 400,
                READERS = 4
        };
        pid_t pids[READERS];

        stamp_file(at(m.origin, "f"), 1, 1 << 20);
        mounted_start(&m);
        m.fake.shared->never_memory = 1;
        m.fake.shared->delay_ms = 1;
        for (int round = 0; round < ROUNDS; round++) {
                for (int i = 0; i < READERS; i++) {
                        pids[i] = fork();
                        if (!pids[i]) {
                                int fd = open(
                                        at(m.dir, "f"), O_RDONLY | O_DIRECT);
                                void *buf;

                                if (posix_memalign(&buf, 4096, 65536))
                                        _exit(1);
                                while (pread(fd, buf, 65536, i * 65536) ==
                                        65536)
                                        ;
                                _exit(1);
                        }
                }
                usleep((unsigned int)round * 7);
                for (int i = 0; i < READERS; i++) {
                        int status;

                        cr_assert(!kill(pids[i], SIGKILL));
                        cr_assert_eq(waitpid(pids[i], &status, 0), pids[i]);
                        cr_assert(WIFSIGNALED(status));
                }
        }
        m.fake.shared->delay_ms = 0;
        cr_assert_eq(read_all(at(m.dir, "f"), 1, 1 << 20, 4096, 0), 0);
        mounted_stop(&m);
        cr_assert_eq(m.fake.shared->views_out, 0);
        mounted_remove(&m);
}

Test(read, many_open_files)
{
        enum {
                FILES = 2000
        };
        static int fds[FILES];
        char name[32], got[4096], want[4096];

        for (uint32_t i = 0; i < FILES; i++) {
                snprintf(name, sizeof(name), "%u", i);
                stamp_file(at(m.origin, name), i, 8192 + i);
        }
        mounted_start(&m);
        m.fake.shared->never_memory = 1;
        cr_assert(sh("test $(ulimit -n) -ge 0"));
        for (uint32_t i = 0; i < FILES; i++) {
                snprintf(name, sizeof(name), "%u", i);
                fds[i] = open(at(m.dir, name), O_RDONLY);
                if (fds[i] < 0 && errno == EMFILE)
                        break;
                cr_assert(fds[i] >= 0);
        }
        for (int half = 0; half < 2; half++)
                for (uint32_t i = 0; i < FILES && fds[i] >= 0; i++) {
                        cr_assert_eq(
                                pread(fds[i], got, 4096, half * 4096), 4096);
                        stamp_fill(want, i, (uint64_t)half * 4096, 4096);
                        cr_assert(!memcmp(got, want, 4096));
                }
        for (uint32_t i = 0; i < FILES && fds[i] >= 0; i++)
                close(fds[i]);
        mounted_stop(&m);
        mounted_remove(&m);
}
