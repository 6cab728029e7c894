/* SPDX-License-Identifier: Apache-2.0 */
/* A subset of a version's files, as a bitmap with counts: the n-th member and
 * the number of members below a file, both without an array of members.
 *
 * As bytes: (files + 7) / 8, file i is bit i % 8 of byte i / 8. Its name is
 * the SHA-256 of these bytes.
 *
 * Threads: constant once made. */
#ifndef SHEAF_PROTO_SUBSET_H
#define SHEAF_PROTO_SUBSET_H

#include "proto/base.h"

struct sheaf_subset {
        uint64_t *bits;
        uint32_t *before; /* members before each 512 files */
        uint32_t files, count;
};

static inline size_t sheaf_subset_bytes(uint32_t files)
{
        return ((size_t)files + 7) / 8;
}

/* @bitmap NULL: all files. -EINVAL: bits beyond the last file, or none at all;
 * -ENOMEM. */
SHEAF_MUST_CHECK int sheaf_subset_new(const uint8_t *bitmap, uint32_t files,
        struct sheaf_subset **ret_subset);
void sheaf_subset_free(struct sheaf_subset *subset);

/* Member @n < count, and the number of members below @file < files. */
uint32_t sheaf_subset_member(const struct sheaf_subset *subset, uint32_t n);
uint32_t sheaf_subset_rank(const struct sheaf_subset *subset, uint32_t file);

/* Bits that are set in @len bytes. */
uint64_t sheaf_bits_count(const uint8_t *bytes, size_t len);

/* A sealed memfd with @len bytes, for sheaf_sealed_read elsewhere; -errno. */
SHEAF_MUST_CHECK int sheaf_sealed_new(const void *bytes, size_t len);
/* Reads @len bytes of a memfd that nobody can change any more. Never waits
 * for its sender. -EINVAL: it is another kind of file, not sealed, or of
 * another length; -errno. */
SHEAF_MUST_CHECK int sheaf_sealed_read(int fd, void *ret_bytes, size_t len);

#endif
