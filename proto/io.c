/* SPDX-License-Identifier: Apache-2.0 */
/* Whole reads and writes (io.h).
 *
 * Threads: any; no state. */
#include "proto/io.h"

int sheaf_write_all(int fd, const void *bytes, size_t len_bytes)
{
        const char *at = bytes;

        while (len_bytes) {
                ssize_t n = sheaf_again(
                        write(fd, at, SHEAF_MIN(len_bytes, SHEAF_GIB)));

                if (n <= 0)
                        return n ? -errno : -EIO;
                at += n;
                len_bytes -= (size_t)n;
        }
        return 0;
}

int sheaf_write_at(
        int fd, const void *bytes, size_t len_bytes, uint64_t offset_bytes)
{
        const char *at = bytes;
        size_t done = 0;

        while (done < len_bytes) {
                ssize_t n = sheaf_again(pwrite(fd, at + done,
                        SHEAF_MIN(len_bytes - done, SHEAF_GIB),
                        (off_t)(offset_bytes + done)));

                if (n <= 0)
                        return n ? -errno : -EIO;
                done += (size_t)n;
        }
        return 0;
}

int sheaf_read_at(int fd, void *bytes, size_t len_bytes, uint64_t offset_bytes)
{
        char *at = bytes;
        size_t done = 0;

        while (done < len_bytes) {
                ssize_t n = sheaf_again(pread(fd, at + done,
                        SHEAF_MIN(len_bytes - done, SHEAF_GIB),
                        (off_t)(offset_bytes + done)));

                if (n <= 0)
                        return n ? -errno : -ENODATA;
                done += (size_t)n;
        }
        return 0;
}
