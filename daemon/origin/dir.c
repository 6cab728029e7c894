/* SPDX-License-Identifier: Apache-2.0 */
/* Reading files of a directory tree, inside the reader.
 *
 *  1 every path is resolved by openat2 beneath the root descriptor, without
 *    links; a swap of a directory for a link is an error, never a way out
 *  2 identity is compared on the open descriptor before and after the read,
 *    so bytes of two states of a file are never delivered as one
 *  3 a file that ends early is -ESTALE; short data is never delivered
 *
 * Threads: any. */
#include "daemon/origin/reader.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#define RETRIES      8 /* of openat2, which gives EAGAIN beside a rename */
#define EIO_RETRIES  2
#define EIO_PAUSE_NS (20 * SHEAF_NS_PER_MS) /* doubles */

static int open_beneath(int dir, const char *path, int flags, uint64_t resolve)
{
        struct open_how how = { .flags = (uint64_t)flags | O_CLOEXEC,
                .resolve = resolve };

        for (int i = 0;; i++) {
                long fd = sheaf_again(
                        syscall(SYS_openat2, dir, path, &how, sizeof(how)));

                if (fd >= 0)
                        return (int)fd;
                if (errno == EAGAIN && i < RETRIES)
                        continue;
                return errno == ENOTDIR ? -ENOENT : -errno;
        }
}

#define INSIDE (RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS)

/* Opens the directories of an over-long @path until a rest is left that the
 * kernel takes at once. */
static int descend(int root, const char *path, const char **ret_rest)
{
        char piece[PATH_MAX];
        sheaf_autofd int at = -1;

        while (strlen(path) >= PATH_MAX) {
                const char *cut = memrchr(path, '/', PATH_MAX - 1);
                int next;

                if (!cut)
                        return -ENAMETOOLONG;
                memcpy(piece, path, (size_t)(cut - path));
                piece[cut - path] = 0;
                next = open_beneath(at >= 0 ? at : root, piece,
                        O_PATH | O_DIRECTORY, INSIDE);
                if (next < 0)
                        return next;
                sheaf_close_p(&at);
                at = next;
                path = cut + 1;
        }
        *ret_rest = path;
        return sheaf_steal_fd(&at);
}

static int open_followed(int dir, const char *path, int flags)
{
        const char *slash = strrchr(path, '/');
        sheaf_autofd int parent = -1;
        char piece[PATH_MAX];

        if (!slash)
                return open_beneath(dir, path, flags, RESOLVE_NO_MAGICLINKS);
        memcpy(piece, path, (size_t)(slash - path));
        piece[slash - path] = 0;
        parent = open_beneath(dir, piece, O_PATH | O_DIRECTORY, INSIDE);
        if (parent < 0)
                return parent;
        return open_beneath(parent, slash + 1, flags, RESOLVE_NO_MAGICLINKS);
}

int sheaf_reader_open(
        int root, const char *path, int flags, bool follow, int *ret_fd)
{
        sheaf_autofd int deep = -1;
        int dir = root, fd;

        if (strlen(path) >= PATH_MAX) {
                deep = descend(root, path, &path);
                if (deep < 0)
                        return deep;
                dir = deep;
        }
        fd = follow ? open_followed(dir, path, flags)
                    : open_beneath(dir, *path ? path : ".", flags, INSIDE);
        if (fd < 0)
                return fd;
        *ret_fd = fd;
        return 0;
}

static uint64_t packed_ctime(const struct stat *st)
{
        return sheaf_listing_pack_ctime(
                st->st_ctim.tv_sec, (uint32_t)st->st_ctim.tv_nsec);
}

/* Equal but for ctime. */
static bool same_file(
        const struct stat *st, const struct sheaf_reader_identity *identity)
{
        return S_ISREG(st->st_mode) && st->st_ino == identity->ino &&
               (uint64_t)st->st_size == identity->size_bytes &&
               st->st_mtim.tv_sec == identity->mtime_sec &&
               st->st_mtim.tv_nsec == identity->mtime_nsec;
}

static int read_all(int fd, const struct sheaf_reader_chunk *chunk, void *buf)
{
        size_t done = 0, allowed = chunk->len_bytes;
        int rc = sheaf_fault(SHEAF_FAULT_READ, chunk->path, &allowed);

        if (rc)
                return rc;
        while (done < chunk->len_bytes) {
                size_t piece = allowed - done;
                ssize_t n;

                rc = sheaf_fault(SHEAF_FAULT_PIECE, chunk->path, &piece);
                if (rc)
                        return rc;
                n = sheaf_again(pread(fd, (char *)buf + done, piece,
                        (off_t)(chunk->offset_bytes + done)));
                if (n < 0)
                        return -errno;
                if (!n)
                        return -ESTALE;
                done += (size_t)n;
        }
        return 0;
}

static int attempt(int root, const struct sheaf_reader_chunk *chunk, void *buf,
        uint64_t *ret_ctime_packed)
{
        sheaf_autofd int fd = -1;
        struct stat before, after;
        int rc = sheaf_fault(SHEAF_FAULT_OPEN, chunk->path, NULL);

        /* Non-blocking: a fifo that took the file's place must not hang. */
        if (!rc)
                rc = sheaf_reader_open(root, chunk->path,
                        O_RDONLY | O_NONBLOCK | O_NOCTTY, chunk->follow, &fd);
        if (rc)
                return rc;
        if (sheaf_again(fstat(fd, &before)))
                return -errno;
        if (!same_file(&before, &chunk->identity))
                return -ESTALE;
        rc = read_all(fd, chunk, buf);
        if (rc)
                return rc;
        if (sheaf_again(fstat(fd, &after)))
                return -errno;
        if (!same_file(&after, &chunk->identity) ||
                packed_ctime(&after) != packed_ctime(&before))
                return -ESTALE;
        if (packed_ctime(&after) == chunk->identity.ctime_packed)
                return 0;
        *ret_ctime_packed = packed_ctime(&after);
        return 1;
}

int sheaf_reader_chunk(int root, const struct sheaf_reader_chunk *chunk,
        void *buf, uint64_t *ret_ctime_packed)
{
        int stale = 0, failed = 0;

        for (;;) {
                int rc = attempt(root, chunk, buf, ret_ctime_packed);

                /* NFS forgets handles of a tree that was made anew, and a
                 * backup may move ctime during a read: a second look decides.
                 * A server or a path to a disk that was in trouble gives EIO,
                 * and a moment later the bytes. */
                if (rc == -ESTALE && !stale++)
                        continue;
                if (rc != -EIO || failed == EIO_RETRIES)
                        return rc;
                nanosleep(&(struct timespec){ .tv_nsec = EIO_PAUSE_NS
                                                         << failed++ },
                        NULL);
        }
}

int sheaf_reader_probe(int root, const char *path, bool follow,
        const struct sheaf_reader_identity *identity)
{
        sheaf_autofd int fd = -1;
        struct stat st;
        int rc = sheaf_fault(SHEAF_FAULT_OPEN, path, NULL);

        if (!rc)
                rc = sheaf_reader_open(root, path, O_PATH, follow, &fd);
        if (rc)
                return rc;
        if (sheaf_again(fstat(fd, &st)))
                return -errno;
        return same_file(&st, identity) ? 0 : -ESTALE;
}
