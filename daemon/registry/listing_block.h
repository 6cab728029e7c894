/* SPDX-License-Identifier: Apache-2.0 */
/* A version's listing in memory: one sealed memfd that the daemon maps and
 * clients map too, so that a listing lives once on a node. */
#ifndef SHEAF_DAEMON_LISTING_BLOCK_H
#define SHEAF_DAEMON_LISTING_BLOCK_H

#include "daemon/store/store.h"
#include "proto/digest.h"
#include "proto/listing.h"

struct sheaf_listing_block {
        int memfd;
        void *map;
        size_t len_bytes;
        struct sheaf_digest digest;
        struct sheaf_listing listing;
};

/* Pairs of entries that are the same file in two versions. */
struct sheaf_listing_pairs {
        uint32_t (*pairs)[2]; /* {previous index, next index}, owned */
        size_t count, cap;
};

/* Takes over what a reader claims: copies @claim_fd, checks every invariant
 * and that it bears @serial and @uuid, keeps node ids of @prev (may be NULL;
 * pairs are then in @ret_pairs), writes it durably to @path and seals it.
 * -EBADMSG: not a valid listing. Any thread; blocks. */
SHEAF_MUST_CHECK int sheaf_listing_block_import(int claim_fd,
        const struct sheaf_listing *prev, uint64_t serial,
        const uint8_t uuid[16], const char *path,
        struct sheaf_listing_block *ret_block,
        struct sheaf_listing_pairs *ret_pairs);

/* Reads the file at @path, whose bytes must have @digest (-EBADMSG). Any
 * thread; blocks. */
SHEAF_MUST_CHECK int sheaf_listing_block_load(const char *path,
        const struct sheaf_digest *digest,
        struct sheaf_listing_block *ret_block);

/* Any thread; takes its time for a large one. */
void sheaf_listing_block_clear(struct sheaf_listing_block *block);
/* The same, behind. Loop thread. */
void sheaf_listing_block_let_go(
        struct sheaf_store *store, struct sheaf_listing_block *block);

/* Whether two listings tell the same tree: an update that found nothing. */
bool sheaf_listing_same(
        const struct sheaf_listing *a, const struct sheaf_listing *b);

/* SHA-256 over paths, types, permissions, sizes, link targets and chunk
 * digests: what a sealed version is, wherever and whenever it was listed.
 * -ENODATA while a digest is unknown. @digest_of gives a chunk's digest. */
SHEAF_MUST_CHECK int sheaf_listing_root_digest(
        const struct sheaf_listing *listing,
        const struct sheaf_digest *(*digest_of)(void *arg, uint64_t chunk),
        void *arg, struct sheaf_digest *ret_digest);

#endif
