/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 digests: the names of chunks (FIPS 180-4, computed by OpenSSL). */
#ifndef SHEAF_PROTO_DIGEST_H
#define SHEAF_PROTO_DIGEST_H

#include "proto/base.h"

#define SHEAF_DIGEST_BYTES 32
#define SHEAF_DIGEST_HEX   (2 * SHEAF_DIGEST_BYTES)

/* All zero means "not known"; no chunk that anybody can make has it. */
struct sheaf_digest {
        uint8_t bytes[SHEAF_DIGEST_BYTES];
};

struct sheaf_hasher;

/* A running SHA-256. Not thread-safe; one a thread. -ENOMEM. */
SHEAF_MUST_CHECK int sheaf_hasher_new(struct sheaf_hasher **ret_hasher);
void sheaf_hasher_free(struct sheaf_hasher *hasher);
void sheaf_hasher_free_p(struct sheaf_hasher **hasher);

/* Begins a new message; what was fed before is forgotten. */
void sheaf_hasher_reset(struct sheaf_hasher *hasher);
void sheaf_hasher_feed(
        struct sheaf_hasher *hasher, const void *data, size_t len_bytes);
void sheaf_hasher_finish(
        struct sheaf_hasher *hasher, struct sheaf_digest *ret_digest);

/* One-shot: digest of @len_bytes at @data. Any thread. */
void sheaf_digest_of(
        const void *data, size_t len_bytes, struct sheaf_digest *ret_digest);

static inline bool sheaf_digest_known(const struct sheaf_digest *digest)
{
        static const struct sheaf_digest zero;

        return memcmp(digest, &zero, sizeof(zero)) != 0;
}

static inline bool sheaf_digest_equal(
        const struct sheaf_digest *a, const struct sheaf_digest *b)
{
        return memcmp(a, b, sizeof(*a)) == 0;
}

/* The first 8 bytes: uniformly distributed, for hash tables. */
static inline uint64_t sheaf_digest_prefix(const struct sheaf_digest *digest)
{
        uint64_t prefix;

        memcpy(&prefix, digest->bytes, sizeof(prefix));
        return prefix;
}

/* Lower-case hex with a final NUL. */
void sheaf_digest_hex(
        const struct sheaf_digest *digest, char ret_hex[SHEAF_DIGEST_HEX + 1]);

/* 0, or -EINVAL when @hex is not 64 hexadecimal digits. */
SHEAF_MUST_CHECK int sheaf_digest_parse(
        const char *hex, struct sheaf_digest *ret_digest);

#endif
