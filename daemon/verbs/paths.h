/* SPDX-License-Identifier: Apache-2.0 */
/* The files below a set of paths, as a walk that can pause anywhere. */
#ifndef SHEAF_DAEMON_VERBS_PATHS_H
#define SHEAF_DAEMON_VERBS_PATHS_H

#include "proto/listing.h"

#include <protobuf-c/protobuf-c.h>

struct sheaf_walk {
        const struct sheaf_listing *listing;
        uint8_t *wanted;               /* a bit an entry; NULL: all */
        uint32_t marked, counted;      /* next entry, next position */
        uint32_t file;                 /* next position in files[] */
        uint32_t index;                /* next chunk of that file */
        bool ready;                    /* and the sums that follow are whole */
        uint64_t files, chunks, bytes; /* in all */
};

/* Chooses files: those of @paths and below, all when @count is 0. -ENOENT
 * with the position of the first path that is not there in @ret_bad. */
SHEAF_MUST_CHECK int sheaf_walk_begin(struct sheaf_walk *walk,
        const struct sheaf_listing *listing, size_t count,
        const ProtobufCBinaryData *paths, size_t *ret_bad);
void sheaf_walk_end(struct sheaf_walk *walk);
/* Before the first chunk, until it is true: marks and counts, some 10 us. */
bool sheaf_walk_prepare(struct sheaf_walk *walk);

enum sheaf_walked {
        SHEAF_WALK_END = 0,
        SHEAF_WALK_CHUNK,
        SHEAF_WALK_ON, /* no chunk yet: so many files were passed over */
};
/* The next chunk. Hard links are visited once. */
enum sheaf_walked sheaf_walk_next(
        struct sheaf_walk *walk, uint32_t *ret_entry, uint32_t *ret_index);

#endif
