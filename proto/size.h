/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes as people write and read them. */
#ifndef SHEAF_PROTO_SIZE_H
#define SHEAF_PROTO_SIZE_H

#include "proto/base.h"

#define SHEAF_SIZE_TEXT_MAX 32

/* Parses a number of bytes: "4096", "100GiB", "1.5T", "100 GB". K, M, G, T,
 * P, alone or with iB, are powers of 1024; with B (KB, MB) powers of 1000;
 * case does not matter. Exact up to 2^64-1, rounded down to a byte.
 * -EINVAL: not a size; -ERANGE: too large. */
SHEAF_MUST_CHECK int sheaf_size_parse(const char *text, uint64_t *ret_bytes);

/* Writes @bytes for people, few digits: "0 B", "812 B",
 * "1.5 GiB". Returns @buf. */
const char *sheaf_size_text(uint64_t bytes, char buf[SHEAF_SIZE_TEXT_MAX]);

#endif
