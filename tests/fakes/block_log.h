/* SPDX-License-Identifier: Apache-2.0 */
/* What block-recorder writes: everything that reached a disk image, in
 * order. Records follow one another; data is padded to 8 bytes. */
#ifndef SHEAF_TESTS_FAKES_BLOCK_LOG_H
#define SHEAF_TESTS_FAKES_BLOCK_LOG_H

#include <stdint.h>

enum block_kind {
        BLOCK_WRITE = 1, /* @len bytes at @offset */
        BLOCK_FLUSH,     /* all writes before it are durable */
        BLOCK_MARK,      /* @len bytes of text of whoever drives the test */
};

struct block_record {
        uint32_t kind;
        uint32_t len_bytes; /* of the data that follows, without padding */
        uint64_t offset_bytes;
};

#endif
