/* SPDX-License-Identifier: Apache-2.0 */
/* What the disk tier writes: fixed structures, little-endian.
 *
 *   segment file   header page | records ... | gap | summary | footer
 *   record         header, payload. Payloads from 64 KiB begin at a multiple
 *                  of 4096 with the header in the 128 bytes before; smaller
 *                  ones are packed at 64 bytes. After a record that ends at e
 *                  the next header is at e, at e rounded up to 4096, or
 *                  right before a multiple of 4096: recovery tries these
 *                  three and never scans payload.
 *   plain file     the file's bytes at their offsets; beside it NODE.map:
 *                  map header | digest a chunk (zero: absent)
 *   places         one struct sheaf_place a chunk, all zero: none
 *
 * Every MAC is keyed per cache directory and covers the whole structure
 * before it; headers name their container, generation and offset, so a
 * header that was copied or swapped elsewhere is refused. */
#ifndef SHEAF_PROTO_LAYOUT_DISK_H
#define SHEAF_PROTO_LAYOUT_DISK_H

#include "proto/digest.h"

#define SHEAF_DISK_LAYOUT 1

#define SHEAF_DISK_PAGE         UINT64_C(4096)
#define SHEAF_DISK_PACK         UINT64_C(64)
#define SHEAF_DISK_ALIGNED_FROM (UINT64_C(64) << 10)
#define SHEAF_DISK_MAC_BYTES    16

#define SHEAF_SEGMENT_BYTES_MAX (UINT64_C(64) << 20)
#define SHEAF_SEGMENT_BYTES_MIN (UINT64_C(8) << 20)

#define SHEAF_DISK_SEGMENT_MAGIC UINT64_C(0x3167657366616873) /* "shafseg1" */
#define SHEAF_DISK_RECORD_MAGIC  UINT64_C(0x3163657266616873) /* "shafrec1" */
#define SHEAF_DISK_FOOTER_MAGIC  UINT64_C(0x316d757366616873) /* "shafsum1" */
#define SHEAF_DISK_MAP_MAGIC     UINT64_C(0x3170616d66616873) /* "shafmap1" */

enum sheaf_disk_codec {
        SHEAF_DISK_CODEC_NONE = 0,
};

/* First bytes of a segment file; the rest of the page is zero. */
struct sheaf_disk_segment {
        uint64_t magic;
        uint32_t layout;
        uint32_t number;
        uint32_t generation; /* never 0; raised before each refill */
        uint32_t zero0;
        uint64_t segment_bytes;
        uint64_t group;
        uint8_t zero[72];
        uint8_t mac[SHEAF_DISK_MAC_BYTES];
};
_Static_assert(sizeof(struct sheaf_disk_segment) == 128, "layout 1");
_Static_assert(
        offsetof(struct sheaf_disk_segment, generation) == 16, "layout 1");
_Static_assert(
        offsetof(struct sheaf_disk_segment, segment_bytes) == 24, "layout 1");
_Static_assert(offsetof(struct sheaf_disk_segment, group) == 32, "layout 1");
_Static_assert(offsetof(struct sheaf_disk_segment, mac) == 112, "layout 1");

struct sheaf_disk_record {
        uint64_t magic;
        uint32_t layout;
        uint32_t codec;        /* enum sheaf_disk_codec */
        uint32_t number;       /* of the segment */
        uint32_t generation;   /* of the segment */
        uint32_t stored_bytes; /* what follows */
        uint32_t raw_bytes;    /* after decoding */
        uint64_t offset_bytes; /* of this header in the file */
        uint64_t serial;       /* version and chunk that it was written for */
        uint64_t chunk;
        struct sheaf_digest digest;
        uint8_t zero[24];
        uint8_t mac[SHEAF_DISK_MAC_BYTES];
};
_Static_assert(sizeof(struct sheaf_disk_record) == 128, "layout 1");
_Static_assert(
        offsetof(struct sheaf_disk_record, offset_bytes) == 32, "layout 1");
_Static_assert(offsetof(struct sheaf_disk_record, digest) == 56, "layout 1");
_Static_assert(offsetof(struct sheaf_disk_record, mac) == 112, "layout 1");

/* One record in the summary. */
struct sheaf_disk_entry {
        struct sheaf_digest digest;
        uint64_t serial;
        uint64_t chunk;
        uint64_t offset_bytes; /* of the record's header */
        uint32_t raw_bytes;
        uint32_t zero;
};
_Static_assert(sizeof(struct sheaf_disk_entry) == 64, "layout 1");
_Static_assert(
        offsetof(struct sheaf_disk_entry, offset_bytes) == 48, "layout 1");

/* Last bytes of a full segment; @count entries end right before it. */
struct sheaf_disk_footer {
        uint64_t magic;
        uint32_t layout;
        uint32_t number;
        uint32_t generation;
        uint32_t count;
        uint64_t end_bytes; /* of the last record, rounded up */
        uint8_t zero[64];
        uint8_t entries_mac[SHEAF_DISK_MAC_BYTES];
        uint8_t mac[SHEAF_DISK_MAC_BYTES];
};
_Static_assert(sizeof(struct sheaf_disk_footer) == 128, "layout 1");
_Static_assert(offsetof(struct sheaf_disk_footer, end_bytes) == 24, "layout 1");
_Static_assert(
        offsetof(struct sheaf_disk_footer, entries_mac) == 96, "layout 1");

/* Bytes of a summary of @count entries with its footer, page aligned. */
static inline uint64_t sheaf_disk_summary_bytes(uint64_t count)
{
        return sheaf_round_up(count * sizeof(struct sheaf_disk_entry) +
                                      sizeof(struct sheaf_disk_footer),
                SHEAF_DISK_PAGE);
}

/* Offset of the header of a record of @len_bytes put after @end_bytes, a
 * multiple of 64. */
static inline uint64_t sheaf_disk_record_at(
        uint64_t end_bytes, uint64_t len_bytes)
{
        if (len_bytes < SHEAF_DISK_ALIGNED_FROM)
                return end_bytes;
        return sheaf_round_up(end_bytes + sizeof(struct sheaf_disk_record),
                       SHEAF_DISK_PAGE) -
               sizeof(struct sheaf_disk_record);
}

/* The mark of a checked plain file: its inode then. All zero: unchecked. */
struct sheaf_disk_mark {
        uint64_t ino, size_bytes;
        int64_t mtime_ns, ctime_ns;
};

struct sheaf_disk_map {
        uint64_t magic;
        uint32_t layout;
        uint32_t generation; /* 22 bits, never 0 */
        uint64_t node, group, size_bytes;
        uint64_t chunk_count;
        struct sheaf_disk_mark mark;
        uint8_t zero[32];
        uint8_t mac[SHEAF_DISK_MAC_BYTES];
};
_Static_assert(sizeof(struct sheaf_disk_map) == 128, "layout 1");
_Static_assert(offsetof(struct sheaf_disk_map, mark) == 48, "layout 1");
_Static_assert(offsetof(struct sheaf_disk_map, mac) == 112, "layout 1");

/* Where a chunk lies.
 *
 *   segment     container: its number, 1 .. 2^31-1; offset of the header
 *   plain file  container: PLAIN | serial part of its node, generation: index
 *               part of its node, offset: chunk index << 22 | generation */
struct sheaf_place {
        uint32_t container;
        uint32_t generation;
        uint64_t offset_bytes;
};
_Static_assert(sizeof(struct sheaf_place) == 16, "layout 1");
_Static_assert(offsetof(struct sheaf_place, offset_bytes) == 8, "layout 1");

#define SHEAF_PLACE_PLAIN    UINT32_C(0x80000000)
#define SHEAF_PLAIN_GEN_BITS 22
#define SHEAF_PLAIN_GEN_MASK ((UINT32_C(1) << SHEAF_PLAIN_GEN_BITS) - 1)

static inline bool sheaf_place_set(const struct sheaf_place *place)
{
        return place->container != 0;
}

static inline bool sheaf_place_plain(const struct sheaf_place *place)
{
        return (place->container & SHEAF_PLACE_PLAIN) != 0;
}

static inline uint64_t sheaf_place_node(const struct sheaf_place *place)
{
        return (uint64_t)(place->container & ~SHEAF_PLACE_PLAIN) << 32 |
               place->generation;
}

static inline struct sheaf_place sheaf_place_of_node(
        uint64_t node, uint64_t index, uint32_t generation)
{
        return (struct sheaf_place){
                .container = SHEAF_PLACE_PLAIN | (uint32_t)(node >> 32),
                .generation = (uint32_t)node,
                .offset_bytes = index << SHEAF_PLAIN_GEN_BITS | generation,
        };
}

#endif
