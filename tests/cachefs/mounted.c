/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of the mount tests. */
#include "tests/cachefs/mounted.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

const char *at(const char *dir, const char *name)
{
        static char ring[8][PATH_MAX];
        static unsigned int next;
        char *buf = ring[next++ % 8];

        snprintf(buf, PATH_MAX, "%s/%s", dir, name);
        return buf;
}

bool sh(const char *format, ...)
{
        char command[4096];
        va_list args;

        va_start(args, format);
        vsnprintf(command, sizeof(command), format, args);
        va_end(args);
        return system(command) == 0;
}

void mounted_prepare(struct mounted *m)
{
        int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

        memset(m, 0, sizeof(*m));
        if (fd < 0)
                cr_skip_test("/dev/fuse cannot be opened: %s", strerror(errno));
        close(fd);
        m->options.quiet = true;
        strcpy(m->base, "/tmp/sheaf-mount-XXXXXX");
        cr_assert(mkdtemp(m->base));
        snprintf(m->origin, sizeof(m->origin), "%s/origin", m->base);
        snprintf(m->dir, sizeof(m->dir), "%s/mount", m->base);
        cr_assert(!mkdir(m->origin, 0755));
        cr_assert(!mkdir(m->dir, 0755));
}

static void serve(struct mounted *m)
{
        struct sheaf_fs *fs;
        int rc;

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (sheaf_fs_new(&m->fake.source, &m->options, &fs) < 0)
                _exit(10);
        if (sheaf_fs_mount(fs, m->dir) < 0)
                _exit(11);
        rc = sheaf_fs_run(fs);
        sheaf_fs_free(fs);
        _exit(rc < 0 ? 12 : 0);
}

void mounted_start(struct mounted *m)
{
        struct timespec ms = { 0, 1000000 };
        struct sheaf_mount mount;

        if (!m->fake.root)
                fake_dataset_new(m->origin, &m->fake);
        m->server = fork();
        cr_assert(m->server >= 0);
        if (!m->server)
                serve(m);
        for (int i = 0; i < 5000; i++) {
                if (!sheaf_mounts_at(m->dir, &mount)) {
                        sheaf_mount_clear(&mount);
                        cr_assert_eq(sheaf_fs_settle(NULL, m->dir), 0);
                        return;
                }
                cr_assert_eq(waitpid(m->server, NULL, WNOHANG), 0,
                        "the server ended early");
                nanosleep(&ms, NULL);
        }
        cr_assert(false, "not mounted within 5 s");
}

void mounted_stop(struct mounted *m)
{
        int status;

        cr_assert_eq(sheaf_mounts_unmount(m->dir, false), 0);
        cr_assert_eq(waitpid(m->server, &status, 0), m->server);
        cr_assert(WIFEXITED(status) && !WEXITSTATUS(status), "status %x",
                (unsigned int)status);
        m->server = 0;
}

void mounted_remove(struct mounted *m)
{
        cr_assert(sh("rm -rf --one-file-system %s", m->base));
        fake_dataset_free(&m->fake);
}

void mounted_rescue(struct mounted *m)
{
        if (!m->base[0] || access(m->base, F_OK))
                return;
        if (!sheaf_mounts_unmount(m->dir, true))
                fprintf(stderr, "left mounted: %s\n", m->dir);
        if (m->server > 0)
                kill(m->server, SIGKILL);
        sh("rm -rf --one-file-system %s", m->base);
}

uint64_t mounted_requests(const struct mounted *m)
{
        uint64_t sum = 0;

        for (int op = 0; op <= SHEAF_METER_OP_OTHER; op++)
                if (op != SHEAF_METER_OP_FORGET)
                        sum += m->fake.shared->op[op];
        return sum;
}

void stamp_fill(void *buf, uint32_t seed, uint64_t offset, uint64_t len)
{
        uint8_t *out = buf;

        for (uint64_t i = 0; i < len; i++) {
                uint64_t pos = offset + i;
                uint64_t word = (uint64_t)(seed + 1) << 40 | (pos / 8 + 1);

                word *= UINT64_C(0x9e3779b97f4a7c15);
                word |= 1;
                out[i] = (uint8_t)(word >> (pos % 8 * 8));
        }
}

void stamp_file(const char *path, uint32_t seed, uint64_t len)
{
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        static uint8_t buf[1 << 16];

        cr_assert(fd >= 0, "%s: %s", path, strerror(errno));
        for (uint64_t pos = 0; pos < len; pos += sizeof(buf)) {
                uint64_t n = SHEAF_MIN(len - pos, sizeof(buf));

                stamp_fill(buf, seed, pos, n);
                cr_assert_eq(write(fd, buf, n), (ssize_t)n);
        }
        close(fd);
}
