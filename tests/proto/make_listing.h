/* SPDX-License-Identifier: Apache-2.0 */
/* Listings for tests: a small fixed one, and random trees. */
#ifndef SHEAF_TESTS_PROTO_MAKE_LISTING_H
#define SHEAF_TESTS_PROTO_MAKE_LISTING_H

#include "proto/listing.h"

struct block {
        void *data;
        size_t len_bytes;
        struct sheaf_listing view; /* opened with all checks */
};
void block_free(struct block *block);

struct sheaf_listing_item make_item(
        uint32_t mode, const char *name, uint64_t ino, uint64_t size_bytes);

/* Writes the builder's block, frees the builder, opens the block. */
void block_write(struct sheaf_listing_builder *builder, uint64_t serial,
        struct block *ret_block);

/* The listing of docs/formats; entries by index:
 *   0 root  1 a (file, 5 MiB)  2 d (dir)  3 l (link to a)
 *   4 d/b (hard link of a)  5 d/c (empty file) */
void make_golden(struct block *ret_block);

/* A random tree of about @entries entries, the same for the same @seed.
 * @change: one in so many files differs in identity (0: none). */
void make_random(uint64_t seed, uint32_t entries, uint32_t change,
        uint64_t serial, struct block *ret_block);

#endif
