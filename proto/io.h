/* SPDX-License-Identifier: Apache-2.0 */
/* Whole reads and writes of descriptors that block. */
#ifndef SHEAF_PROTO_IO_H
#define SHEAF_PROTO_IO_H

#include "proto/base.h"

/* Writes all @len_bytes at the position of @fd, over signals and short writes.
 * -EIO where nothing more is taken and no error is given; other errors are
 * those of write(2). After a failure any part may be written. Any thread. */
SHEAF_MUST_CHECK int sheaf_write_all(
        int fd, const void *bytes, size_t len_bytes);

/* The same at @offset_bytes of the file @fd, whose position stays. */
SHEAF_MUST_CHECK int sheaf_write_at(
        int fd, const void *bytes, size_t len_bytes, uint64_t offset_bytes);

/* Reads @len_bytes from @offset_bytes on of the file @fd, over signals and
 * short reads. -ENODATA: it ends before; else the errors of pread(2). After a
 * failure any part of @bytes may be set. Any thread. */
SHEAF_MUST_CHECK int sheaf_read_at(
        int fd, void *bytes, size_t len_bytes, uint64_t offset_bytes);

#endif
