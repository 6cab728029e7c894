/* SPDX-License-Identifier: Apache-2.0 */
/* What the file system of the cache lacks, told once at the start: nothing of
 * it is needed, all of it is a gain.
 *
 * Called once at open; no threads. */
#include "daemon/store/private.h"

#include <fcntl.h>

#define PROBE_BYTES 8192

static void lacks(struct sheaf_store *store, const char *what, const char *loss)
{
        sheaf_log(SHEAF_LOG_INFO, "store_lacks",
                "dir=\"%s\" feature=\"%s\" instead=\"%s\"", store->dir, what,
                loss);
}

void sheaf_store_probe(struct sheaf_store *store)
{
        static const char name[] = "probe";
        const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;
        sheaf_autofd int fd =
                sheaf_again(openat(store->dir_fd, name, flags | O_CREAT, 0600));
        int direct;

        if (fd < 0)
                return;
        direct = sheaf_again(openat(store->dir_fd, name, flags | O_DIRECT));
        if (direct < 0 && errno == EINVAL)
                lacks(store, "O_DIRECT", "I/O passes the page cache");
        sheaf_close_p(&direct);
        if (sheaf_again(fallocate(fd, 0, 0, PROBE_BYTES))) {
                if (errno == EOPNOTSUPP)
                        lacks(store, "fallocate",
                                "room is taken by writing zeros");
        }
        if (sheaf_again(
                    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                            PROBE_BYTES)) &&
                errno == EOPNOTSUPP)
                lacks(store, "holes",
                        "segments that a crash left part-filled keep their "
                        "room");
        unlinkat(store->dir_fd, name, 0);
}
