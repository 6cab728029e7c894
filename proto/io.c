/* SPDX-License-Identifier: Apache-2.0 */
/* Whole writes (io.h).
 *
 * Threads: any; no state. */
#include "proto/io.h"

int sheaf_write_all(int fd, const void *bytes, size_t len_bytes)
{
        const char *at = bytes;

        while (len_bytes) {
                ssize_t n = write(fd, at, SHEAF_MIN(len_bytes, SHEAF_GIB));

                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return n ? -errno : -EIO;
                at += n;
                len_bytes -= (size_t)n;
        }
        return 0;
}
