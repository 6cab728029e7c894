/* SPDX-License-Identifier: Apache-2.0 */
/* A disk that remembers: block-recorder IMAGE LOG DIR shows IMAGE as
 * DIR/disk, for a loop device, and logs each write and each flush in order.
 * Text written to DIR/mark goes into the same log, so that it has a place
 * among them.
 *
 *  1 one thread: the log's order is the order of the answers
 *  2 a write is in the image and in the log before it is answered, and
 *    neither the kernel nor this program holds it back (direct_io, no
 *    writeback cache): what a flush finds has been logged
 *  3 nothing is forgotten: a log that cannot be written ends the program,
 *    and with it the disk */
#define FUSE_USE_VERSION 31

#include "proto/base.h"
#include "tests/fakes/block_log.h"

#include <fcntl.h>
#include <fuse.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/uio.h>

static int image_fd, log_fd;
static off_t image_bytes;

static void record(
        enum block_kind kind, const char *data, size_t len, uint64_t offset)
{
        static const char zero[8];
        struct block_record head = { kind, (uint32_t)len, offset };
        size_t pad = (8 - len % 8) % 8;
        struct iovec parts[] = {
                { &head, sizeof(head) },
                { (void *)(uintptr_t)data, len },
                { (void *)(uintptr_t)zero, pad },
        };

        if (writev(log_fd, parts, 3) != (ssize_t)(sizeof(head) + len + pad)) {
                perror("block-recorder: log");
                _exit(1);
        }
}

static int getattr(
        const char *path, struct stat *st, struct fuse_file_info *file)
{
        (void)file;
        *st = (struct stat){ .st_mode = S_IFREG | 0600, .st_nlink = 1 };
        if (!strcmp(path, "/"))
                st->st_mode = S_IFDIR | 0700;
        else if (!strcmp(path, "/disk"))
                st->st_size = image_bytes;
        else if (strcmp(path, "/mark"))
                return -ENOENT;
        return 0;
}

static int open_file(const char *path, struct fuse_file_info *file)
{
        file->fh = !strcmp(path, "/disk");
        file->direct_io = 1;
        return 0;
}

static int read_file(const char *path, char *buf, size_t len, off_t offset,
        struct fuse_file_info *file)
{
        ssize_t n = file->fh ? pread(image_fd, buf, len, offset) : 0;

        (void)path;
        return n < 0 ? -errno : (int)n;
}

static int write_file(const char *path, const char *buf, size_t len,
        off_t offset, struct fuse_file_info *file)
{
        (void)path;
        if (!file->fh) {
                record(BLOCK_MARK, buf, len, 0);
                return (int)len;
        }
        if (offset < 0 || offset + (off_t)len > image_bytes)
                return -ENOSPC;
        if (pwrite(image_fd, buf, len, offset) != (ssize_t)len)
                return -EIO;
        record(BLOCK_WRITE, buf, len, (uint64_t)offset);
        return (int)len;
}

static int sync_file(const char *path, int data, struct fuse_file_info *file)
{
        (void)path;
        (void)data;
        if (file->fh)
                record(BLOCK_FLUSH, NULL, 0, 0);
        return 0;
}

static const struct fuse_operations operations = {
        .getattr = getattr,
        .open = open_file,
        .read = read_file,
        .write = write_file,
        .fsync = sync_file,
};

int main(int argc, char **argv)
{
        char *args[] = { argv[0], (char *)(uintptr_t) "-f",
                (char *)(uintptr_t) "-s",
                (char *)(uintptr_t) "-ofsname=block-recorder",
                argc == 4 ? argv[3] : NULL, NULL };
        struct stat st;

        if (argc != 4) {
                fprintf(stderr, "usage: block-recorder IMAGE LOG DIR\n");
                return 2;
        }
        image_fd = open(argv[1], O_RDWR | O_CLOEXEC);
        log_fd = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (image_fd < 0 || log_fd < 0 || fstat(image_fd, &st)) {
                perror("block-recorder");
                return 1;
        }
        image_bytes = st.st_size;
        return fuse_main(5, args, &operations, NULL);
}
