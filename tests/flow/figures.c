/* SPDX-License-Identifier: Apache-2.0 */
/* What the product and the kernel say about a running system, and stamped
 * files with their checkers. */
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdarg.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define STAMP_BLOCK (UINT64_C(1) << 20)

/* ---- figures ---- */

static json_t *stats(void)
{
        json_error_t error;
        json_t *root;

        cr_assert_eq(flow_run_as(flow.uid, 0, "sheaf stats --json"), 0, "%s",
                flow.last.err);
        root = json_loads(flow.last.out, 0, &error);
        cr_assert(root, "stats: %s", error.text);
        return root;
}

double flow_stat(const char *name)
{
        json_t *root = stats();
        json_t *value = json_object_get(json_object_get(root, "totals"), name);
        double number = json_number_value(value);

        json_decref(root);
        return number;
}

double flow_stat_of(const char *dataset, const char *name)
{
        json_t *root = stats();
        json_t *sets = json_object_get(root, "datasets");
        json_t *value = json_object_get(json_object_get(sets, dataset), name);
        double number = json_number_value(value);

        json_decref(root);
        return number;
}

long flow_fds(pid_t pid)
{
        char path[64];
        DIR *dir;
        long count = -2; /* . and .. */

        snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
        dir = opendir(path);
        cr_assert(dir, "%s: %s", path, strerror(errno));
        while (readdir(dir))
                count++;
        closedir(dir);
        return count;
}

uint64_t flow_rss(pid_t pid)
{
        char path[64], line[256];
        unsigned long long kib = 0;
        FILE *file;

        snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
        file = fopen(path, "re");
        while (file && fgets(line, sizeof(line), file))
                if (sscanf(line, "RssAnon: %llu kB", &kib) == 1)
                        break;
        if (file)
                fclose(file);
        return kib << 10;
}

bool flow_sanitized(pid_t pid)
{
        char path[64], line[PATH_MAX];
        bool found = false;
        FILE *file;

        snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
        file = fopen(path, "re");
        cr_assert(file, "%s: %s", path, strerror(errno));
        while (!found && fgets(line, sizeof(line), file))
                found = strstr(line, "/libtsan.") || strstr(line, "/libasan.");
        fclose(file);
        return found;
}

uint64_t flow_du(const char *dir)
{
        uint64_t bytes = 0;

        /* It complains of files that go while it looks. */
        flow_run("du -s -B1 %s", dir);
        cr_assert_eq(sscanf(flow.last.out, "%" SCNu64, &bytes), 1, "%s",
                flow.last.err);
        return bytes;
}

/* ---- stamps ---- */

static uint64_t word_at(uint32_t id, uint64_t index)
{
        return (uint64_t)id << 32 | (index + 1);
}

void flow_stamp_bytes(void *buf, uint32_t id, uint64_t offset, size_t len)
{
        uint8_t *out = buf;

        for (size_t i = 0; i < len;) {
                uint64_t at = offset + i, word = word_at(id, at / 8);
                size_t skip = at % 8;
                size_t n = SHEAF_MIN(8 - skip, len - i);

                memcpy(out + i, (uint8_t *)&word + skip, n);
                i += n;
        }
}

bool flow_stamp_check(const void *buf, uint32_t id, uint64_t offset, size_t len)
{
        const uint8_t *in = buf;

        for (size_t i = 0; i < len;) {
                uint64_t at = offset + i, word = word_at(id, at / 8);
                size_t skip = at % 8;
                size_t n = SHEAF_MIN(8 - skip, len - i);

                if (memcmp(in + i, (uint8_t *)&word + skip, n))
                        return false;
                i += n;
        }
        return true;
}

static void make_parents(char *path)
{
        for (char *c = path + strlen(flow.base) + 1; *c; c++) {
                if (*c != '/')
                        continue;
                *c = '\0';
                if (mkdir(path, 0755) && errno != EEXIST)
                        cr_assert(false, "%s: %s", path, strerror(errno));
                *c = '/';
        }
}

void flow_origin_in_memory(void)
{
        cr_assert(!mount("none", flow.origin, "tmpfs", 0,
                          "size=8g,nr_inodes=0,mode=755"),
                "%s", strerror(errno));
}

void flow_file(uint32_t id, uint64_t len, const char *format, ...)
{
        static uint8_t buf[STAMP_BLOCK];
        char path[PATH_MAX];
        int n = snprintf(path, sizeof(path), "%s/", flow.origin), fd;
        va_list args;

        va_start(args, format);
        vsnprintf(path + n, sizeof(path) - (size_t)n, format, args);
        va_end(args);
        make_parents(path);
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        cr_assert(fd >= 0, "%s: %s", path, strerror(errno));
        for (uint64_t at = 0; at < len; at += STAMP_BLOCK) {
                size_t part = SHEAF_MIN(len - at, STAMP_BLOCK);

                flow_stamp_bytes(buf, id, at, part);
                cr_assert_eq(write(fd, buf, part), (ssize_t)part);
        }
        close(fd);
}

int flow_check(const char *path, uint32_t id, uint64_t len, size_t block)
{
        sheaf_autofree uint8_t *buf = malloc(block);
        sheaf_autofd int fd = open(path, O_RDONLY | O_CLOEXEC);
        uint64_t at = 0;
        ssize_t n;

        if (fd < 0 || !buf)
                return -errno;
        while ((n = read(fd, buf, block)) > 0) {
                if (!flow_stamp_check(buf, id, at, (size_t)n))
                        return -EBADMSG;
                at += (uint64_t)n;
        }
        if (n < 0)
                return -errno;
        return at == len ? 0 : -ENODATA;
}

int flow_check_view(struct sheaf_dataset *dataset, const char *path,
        uint32_t id, uint64_t len)
{
        struct sheaf_view view;
        uint64_t ordinal, at = 0;
        int rc = sheaf_dataset_lookup(dataset, path, &ordinal);

        if (!rc)
                rc = sheaf_view_file(dataset, ordinal, &view);
        if (rc)
                return rc;
        for (size_t i = 0; i < view.piece_count && !rc; i++) {
                if (!flow_stamp_check(view.pieces[i].iov_base, id, at,
                            view.pieces[i].iov_len))
                        rc = -EBADMSG;
                at += view.pieces[i].iov_len;
        }
        if (!rc && (at != len || view.len_bytes != len))
                rc = -ENODATA;
        sheaf_view_release(&view);
        return rc;
}

int flow_check_read(struct sheaf_dataset *dataset, const char *path,
        uint32_t id, uint64_t len, size_t block)
{
        sheaf_autofree uint8_t *buf = malloc(block);
        uint64_t ordinal, at = 0;
        int rc = sheaf_dataset_lookup(dataset, path, &ordinal);
        int64_t n;

        if (rc || !buf)
                return rc ? rc : -ENOMEM;
        while ((n = sheaf_read(dataset, ordinal, buf, block, at)) > 0) {
                if (!flow_stamp_check(buf, id, at, (size_t)n))
                        return -EBADMSG;
                at += (uint64_t)n;
        }
        if (n < 0)
                return (int)n;
        return at == len ? 0 : -ENODATA;
}

int flow_open(const char *name, struct sheaf_session **ret_session,
        struct sheaf_dataset **ret_dataset)
{
        struct sheaf_session *session;
        int rc = sheaf_session_new(NULL, &session);

        if (rc)
                return rc;
        rc = sheaf_dataset_open(session, name, ret_dataset);
        if (rc)
                sheaf_session_free(session);
        else
                *ret_session = session;
        return rc;
}

void flow_close(struct sheaf_session *session, struct sheaf_dataset *dataset)
{
        sheaf_dataset_close(dataset);
        sheaf_session_free(session);
}
