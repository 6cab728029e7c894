/* SPDX-License-Identifier: Apache-2.0 */
/* Large maps and the files behind them, given back to the kernel: it takes
 * its time for a hundred megabytes, and for what of a removed file the disk
 * has to forget.
 *
 * Threads: loop thread; the giving back runs on the pool. */
#include "daemon/store/private.h"

#define AT_ONCE_BYTES (UINT64_C(256) << 10)

struct letting {
        struct sheaf_disk_io io; /* first */
        void *map;
        size_t bytes;
        int fd;
};

static int let_go(struct sheaf_disk_io *io)
{
        struct letting *letting = (struct letting *)io;

        if (letting->map)
                munmap(letting->map, letting->bytes);
        sheaf_close_p(&letting->fd);
        return 0;
}

static void gone(struct sheaf_disk_io *io, int rc)
{
        (void)rc;
        free(io);
}

void sheaf_store_let_go(
        struct sheaf_store *store, void *map, size_t bytes, int fd)
{
        struct letting now = { .map = map, .bytes = bytes, .fd = fd };
        struct letting *letting = NULL;

        if (bytes > AT_ONCE_BYTES && !store->closing)
                letting = sheaf_new(struct letting, 1);
        if (!letting) {
                (void)let_go(&now.io);
                return;
        }
        *letting = now;
        letting->io.op = SHEAF_DISK_WORK;
        letting->io.fd = letting->io.fixed = -1;
        letting->io.work = let_go;
        letting->io.done = gone;
        sheaf_disk_submit(store->disk, &letting->io);
}
