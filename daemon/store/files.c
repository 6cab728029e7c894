/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of containers: a node may have more of them than descriptors
 * are allowed.
 *
 *  1 a file with users is open and not in the idle list
 *  2 at most SHEAF_FILES_OPEN_MAX idle ones stay open; the longest idle one
 *    is closed first */
#include "daemon/store/private.h"

#include <fcntl.h>

static void unlink_idle(struct sheaf_file *file)
{
        if (!file->newer)
                return;
        file->newer->older = file->older;
        file->older->newer = file->newer;
        file->newer = file->older = NULL;
}

int sheaf_file_enter(struct sheaf_store *store, struct sheaf_file *file,
        const char *name, bool direct)
{
        if (file->fd < 0) {
                int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;

                file->fd = sheaf_again(openat(
                        store->dir_fd, name, flags | (direct ? O_DIRECT : 0)));
                if (file->fd < 0 && direct && errno == EINVAL)
                        file->fd =
                                sheaf_again(openat(store->dir_fd, name, flags));
                if (file->fd < 0)
                        return -errno;
                store->files_open++;
        } else if (!file->users) {
                unlink_idle(file);
        }
        file->users++;
        return 0;
}

int sheaf_file_take(struct sheaf_store *store, struct sheaf_file *file)
{
        int fd = file->fd;

        if (fd < 0)
                return -1;
        unlink_idle(file);
        file->fd = -1;
        store->files_open--;
        return fd;
}

void sheaf_file_shut(struct sheaf_store *store, struct sheaf_file *file)
{
        int fd = sheaf_file_take(store, file);

        sheaf_close_p(&fd);
}

void sheaf_file_leave(struct sheaf_store *store, struct sheaf_file *file)
{
        struct sheaf_file *head = &store->idle;

        if (--file->users || file->fd < 0)
                return;
        file->older = head->older;
        file->newer = head;
        head->older->newer = file;
        head->older = file;
        /* head->older is the newest, head->newer the longest idle. */
        while (store->files_open > SHEAF_FILES_OPEN_MAX && head->newer != head)
                sheaf_file_shut(store, head->newer);
}

int sheaf_file_room(int fd, uint64_t from, uint64_t to)
{
        off_t at = (off_t)from, len = (off_t)(to - from);

        if (from >= to || !sheaf_again(fallocate(fd, 0, at, len)))
                return 0;
        if (errno != EOPNOTSUPP)
                return -errno;
        return sheaf_again((errno = posix_fallocate(fd, at, len)) ? -1 : 0)
                       ? -errno
                       : 0;
}
