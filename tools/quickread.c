/* SPDX-License-Identifier: Apache-2.0 */
/* quickread: reads every file of a directory or, through libsheaf in place,
 * of a dataset; for tools/quickstart.
 *
 *   quickread --dir DIR | --dataset NAME  [--digest] [--compare ORIGIN]
 *
 * Prints one line: files, bytes, seconds, sum; with --digest also the bytes
 * of different contents and a SHA-256 over all paths and contents.
 *
 *  1 files are read in the byte order of their paths, so that both ways give
 *    the same digest
 *  2 seconds are those of opening, reading and summing; digest and comparison
 *    are done in between and not counted */
#include "client/sheaf.h"
#include "proto/digest.h"

#include <fcntl.h>
#include <ftw.h>
#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#define AHEAD_FILES 64
#define READ_BYTES  (UINT64_C(1) << 20)

struct name {
        char *path; /* relative */
        uint64_t ordinal;
};

struct reader {
        const char *dir; /* or */
        struct sheaf_dataset *dataset;
        const char *compare; /* a directory, or NULL */
        bool digest;
        struct name *names;
        size_t count, count_max;
        uint8_t *buf;   /* READ_BYTES */
        uint8_t *other; /* READ_BYTES */
        struct sheaf_hasher *all, *one;
        struct sheaf_digest *digests;
        uint64_t *lens;
        uint64_t bytes, sum, unique_bytes;
        int64_t spent_ns;
};

/* nftw has no argument. */
static struct reader *walked;
static size_t walked_root_len;

static int64_t now_ns(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return ts.tv_sec * SHEAF_NS_PER_SEC + ts.tv_nsec;
}

/* Prints why and ends: a helper has nothing to clean. */
SHEAF_PRINTF(2, 3)
_Noreturn static void die(const char *path, const char *format, ...)
{
        va_list ap;

        fprintf(stderr, "quickread: %s: ", path);
        va_start(ap, format);
        vfprintf(stderr, format, ap);
        va_end(ap);
        fputc('\n', stderr);
        exit(1);
}

static void add_name(struct reader *r, const char *path, uint64_t ordinal)
{
        if (r->count == r->count_max) {
                r->count_max = r->count_max ? 2 * r->count_max : 1024;
                r->names =
                        reallocarray(r->names, r->count_max, sizeof(*r->names));
                if (!r->names)
                        die(path, "out of memory");
        }
        r->names[r->count].path = strdup(path);
        r->names[r->count++].ordinal = ordinal;
}

static int on_walk(
        const char *path, const struct stat *st, int type, struct FTW *ftw)
{
        (void)ftw;
        if (type == FTW_DNR || type == FTW_NS)
                die(path, "cannot be read");
        if (type == FTW_F && S_ISREG(st->st_mode))
                add_name(walked, path + walked_root_len + 1, 0);
        return 0;
}

static int by_path(const void *a, const void *b)
{
        return strcmp(
                ((const struct name *)a)->path, ((const struct name *)b)->path);
}

static void list_names(struct reader *r)
{
        char path[PATH_MAX];

        if (r->dir) {
                walked = r;
                walked_root_len = strlen(r->dir);
                if (nftw(r->dir, on_walk, 64, FTW_PHYS))
                        die(r->dir, "%s", strerror(errno));
        } else {
                uint64_t files = sheaf_dataset_files(r->dataset);

                for (uint64_t i = 0; i < files; i++) {
                        int64_t n = sheaf_dataset_path(
                                r->dataset, i, path, sizeof(path));

                        if (n < 0 || (size_t)n >= sizeof(path))
                                die("dataset", "a path is too long");
                        add_name(r, path, i);
                }
        }
        if (!r->count)
                die(r->dir ? r->dir : "dataset", "has no files");
        qsort(r->names, r->count, sizeof(*r->names), by_path);
}

/* Wrapping sum of 8-byte words, as a consumer that touches every byte. */
static uint64_t sum_of(const uint8_t *data, size_t len)
{
        uint64_t sum = 0, word;
        size_t i = 0;

        for (; i + sizeof(word) <= len; i += sizeof(word)) {
                memcpy(&word, data + i, sizeof(word));
                sum += word;
        }
        for (; i < len; i++)
                sum += data[i];
        return sum;
}

/* Digest and comparison of one piece; not counted in the time. */
static void check_piece(struct reader *r, const struct name *name,
        int compare_fd, const uint8_t *data, size_t len)
{
        if (r->digest) {
                sheaf_hasher_feed(r->all, data, len);
                sheaf_hasher_feed(r->one, data, len);
        }
        if (compare_fd < 0)
                return;
        for (size_t done = 0; done < len;) {
                size_t want = SHEAF_MIN(len - done, READ_BYTES);
                ssize_t n = read(compare_fd, r->other, want);

                if (n <= 0)
                        die(name->path, "the origin is shorter");
                if (memcmp(r->other, data + done, (size_t)n))
                        die(name->path, "differs from the origin");
                done += (size_t)n;
        }
}

static int open_below(const char *dir, const char *path)
{
        char full[2 * PATH_MAX];
        int fd;

        snprintf(full, sizeof(full), "%s/%s", dir, path);
        fd = open(full, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                die(full, "%s", strerror(errno));
        return fd;
}

static uint64_t read_plain(
        struct reader *r, const struct name *name, int compare_fd)
{
        int64_t begun = now_ns();
        int fd = open_below(r->dir, name->path);
        uint64_t len = 0;

        for (;;) {
                ssize_t n = read(fd, r->buf, READ_BYTES);

                if (n < 0)
                        die(name->path, "%s", strerror(errno));
                if (n == 0)
                        break;
                r->sum += sum_of(r->buf, (size_t)n);
                r->spent_ns += now_ns() - begun;
                check_piece(r, name, compare_fd, r->buf, (size_t)n);
                begun = now_ns();
                len += (uint64_t)n;
        }
        close(fd);
        r->spent_ns += now_ns() - begun;
        return len;
}

static uint64_t read_view(
        struct reader *r, const struct name *name, int compare_fd)
{
        int64_t begun = now_ns();
        struct sheaf_view view;
        uint64_t len;
        int rc = sheaf_view_file(r->dataset, name->ordinal, &view);

        if (rc < 0)
                die(name->path, "%s (%s)", sheaf_last_error(), strerror(-rc));
        for (size_t i = 0; i < view.piece_count; i++)
                r->sum +=
                        sum_of(view.pieces[i].iov_base, view.pieces[i].iov_len);
        r->spent_ns += now_ns() - begun;
        for (size_t i = 0; i < view.piece_count; i++)
                check_piece(r, name, compare_fd, view.pieces[i].iov_base,
                        view.pieces[i].iov_len);
        len = view.len_bytes;
        begun = now_ns();
        sheaf_view_release(&view);
        r->spent_ns += now_ns() - begun;
        return len;
}

/* Tells the daemon what comes next, a window at a time, as a loader does. */
static void look_ahead(const struct reader *r, size_t i)
{
        uint64_t next[AHEAD_FILES];
        size_t count = 0;

        if (r->dir || i % AHEAD_FILES)
                return;
        /* At the start this window too, then always the one after it. */
        for (size_t k = i ? i + AHEAD_FILES : 0;
                k < i + 2 * AHEAD_FILES && k < r->count; k++) {
                next[count++] = r->names[k].ordinal;
                if (count == AHEAD_FILES) {
                        if (sheaf_prefetch(r->dataset, next, count) < 0)
                                return; /* a hint; reads work as ever */
                        count = 0;
                }
        }
        if (count && sheaf_prefetch(r->dataset, next, count) < 0)
                return;
}

static void read_one(struct reader *r, size_t i)
{
        const struct name *name = &r->names[i];
        int64_t begun = now_ns();
        uint8_t end;
        int fd = -1;

        look_ahead(r, i);
        r->spent_ns += now_ns() - begun;
        if (r->compare)
                fd = open_below(r->compare, name->path);
        if (r->digest) {
                sheaf_hasher_reset(r->one);
                sheaf_hasher_feed(r->all, name->path, strlen(name->path) + 1);
        }
        r->lens[i] = r->dir ? read_plain(r, name, fd) : read_view(r, name, fd);
        r->bytes += r->lens[i];
        if (fd >= 0 && read(fd, &end, 1) != 0)
                die(name->path, "the origin is longer");
        sheaf_close_p(&fd);
        if (r->digest)
                sheaf_hasher_finish(r->one, &r->digests[i]);
}

static int by_digest(const void *a, const void *b, void *arg)
{
        const struct sheaf_digest *digests = arg;

        return memcmp(&digests[*(const size_t *)a],
                &digests[*(const size_t *)b], sizeof(*digests));
}

/* Bytes of different contents. */
static void count_unique(struct reader *r)
{
        sheaf_autofree size_t *order = sheaf_new(size_t, r->count);

        if (!order)
                die("digests", "out of memory");
        for (size_t i = 0; i < r->count; i++)
                order[i] = i;
        qsort_r(order, r->count, sizeof(*order), by_digest, r->digests);
        for (size_t i = 0; i < r->count; i++)
                if (!i || !sheaf_digest_equal(&r->digests[order[i - 1]],
                                  &r->digests[order[i]]))
                        r->unique_bytes += r->lens[order[i]];
}

static void read_all(struct reader *r)
{
        struct sheaf_digest total;
        char hex[SHEAF_DIGEST_HEX + 1];

        r->buf = malloc(READ_BYTES);
        r->other = malloc(READ_BYTES);
        r->lens = sheaf_new(uint64_t, r->count);
        r->digests = sheaf_new(struct sheaf_digest, r->count);
        if (!r->buf || !r->other || !r->lens || !r->digests ||
                sheaf_hasher_new(&r->all) || sheaf_hasher_new(&r->one))
                die("buffers", "out of memory");
        sheaf_hasher_reset(r->all);
        for (size_t i = 0; i < r->count; i++)
                read_one(r, i);
        printf("files=%zu bytes=%llu seconds=%.6f sum=%016llx", r->count,
                (unsigned long long)r->bytes, (double)r->spent_ns / 1e9,
                (unsigned long long)r->sum);
        if (r->digest) {
                count_unique(r);
                sheaf_hasher_finish(r->all, &total);
                sheaf_digest_hex(&total, hex);
                printf(" unique_bytes=%llu sha256=%s",
                        (unsigned long long)r->unique_bytes, hex);
        }
        putchar('\n');
}

static void clear(struct reader *r)
{
        for (size_t i = 0; i < r->count; i++)
                free(r->names[i].path);
        free(r->names);
        free(r->buf);
        free(r->other);
        free(r->lens);
        free(r->digests);
        sheaf_hasher_free(r->all);
        sheaf_hasher_free(r->one);
}

int main(int argc, char **argv)
{
        static const struct option options[] = {
                { "dir", required_argument, NULL, 'd' },
                { "dataset", required_argument, NULL, 'n' },
                { "compare", required_argument, NULL, 'c' },
                { "digest", no_argument, NULL, 'h' },
                { 0 },
        };
        struct sheaf_session *session = NULL;
        struct reader r = { 0 };
        const char *name = NULL;
        int c;

        while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
                switch (c) {
                case 'd':
                        r.dir = optarg;
                        break;
                case 'n':
                        name = optarg;
                        break;
                case 'c':
                        r.compare = optarg;
                        break;
                case 'h':
                        r.digest = true;
                        break;
                default:
                        return 2;
                }
        }
        if (!r.dir == !name || optind != argc) {
                fprintf(stderr, "usage: quickread --dir DIR | --dataset NAME "
                                "[--digest] [--compare ORIGIN]\n");
                return 2;
        }
        if (name && (sheaf_session_new(NULL, &session) ||
                            sheaf_dataset_open(session, name, &r.dataset)))
                die(name, "%s", sheaf_last_error());
        list_names(&r);
        read_all(&r);
        clear(&r);
        if (r.dataset)
                sheaf_dataset_close(r.dataset);
        sheaf_session_free(session);
        return 0;
}
