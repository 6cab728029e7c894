/* SPDX-License-Identifier: Apache-2.0 */
/* What the store's suites share: a cache directory of their own, a version
 * made of files of given sizes, and calls that wait for the loop. */
#ifndef SHEAF_TESTS_DAEMON_STORE_KIT_H
#define SHEAF_TESTS_DAEMON_STORE_KIT_H

#include "daemon/store/private.h"

#include <criterion/criterion.h>

struct kit {
        uv_loop_t loop;
        char dir[64];
        struct sheaf_store_config config;
        struct sheaf_store *store;
};

struct kit_version {
        void *block;
        size_t block_bytes;
        struct sheaf_listing listing;
        struct sheaf_version *version;
        uint32_t seed;
};

void kit_begin(struct kit *kit, uint64_t bytes_max);
/* The same directory again, after a clean close. */
void kit_open(struct kit *kit);
void kit_close(struct kit *kit);
/* Closes if open, removes the directory. */
void kit_end(struct kit *kit);

/* A version with @count files of @sizes, in group @group. */
void kit_version(struct kit *kit, struct kit_version *v, uint64_t serial,
        uint64_t group, const uint64_t *sizes, size_t count, uint32_t seed);
void kit_version_reopen(struct kit *kit, struct kit_version *v, uint64_t group);
void kit_version_end(struct kit_version *v);

/* Bytes that chunk @chunk of @v has by the kit's rule. */
void kit_payload(const struct kit_version *v, uint64_t chunk, void *bytes,
        uint32_t len_bytes);
struct sheaf_chunk_ref kit_ref(const struct kit_version *v, uint64_t chunk);

/* Learns, writes and waits. */
int kit_write(struct kit *kit, struct kit_version *v, uint64_t chunk);
/* Writes all chunks, many at once; returns how many got rc 0 or -EEXIST. */
uint64_t kit_write_all(struct kit *kit, struct kit_version *v);
/* Reads, compares with the rule; 0, -EILSEQ wrong bytes, or the store's rc.
 * A hash mismatch is reported as sheaf_store_bad and -EBADMSG. */
int kit_read(struct kit *kit, struct kit_version *v, uint64_t chunk);

struct sheaf_store_stats kit_stats(const struct kit *kit);
/* Bytes as du counts them. */
uint64_t kit_du(const char *dir);
/* Runs the loop for some time. */
void kit_wait_ms(struct kit *kit, unsigned int ms);
/* Path of the container of @chunk. */
void kit_container(const struct kit *kit, const struct kit_version *v,
        uint64_t chunk, char ret_path[128], struct sheaf_place *ret_place);

#endif
