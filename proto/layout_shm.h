/* SPDX-License-Identifier: Apache-2.0 */
/* What daemon and clients share in memory.
 *
 *   arena of a domain     a reserved address range, cut into extents; each
 *                         extent is one memfd, read-only to clients
 *   residency table       per (version, domain): one word a chunk, read-only
 *                         to clients; writer: one daemon thread
 *   hazard array          per client process: slots, written by the client,
 *                         read by the daemon
 *
 * A *word* names a place in the arena:
 *
 *    63          36 35                      0
 *   +--------------+-------------------------+
 *   | generation   | block offset / 64 bytes |    0: not resident
 *   +--------------+-------------------------+
 *
 * The generation is that of the allocation, never 0, so a recycled block has
 * another word. The length of the bytes is the chunk's, from the listing. */
#ifndef SHEAF_PROTO_LAYOUT_SHM_H
#define SHEAF_PROTO_LAYOUT_SHM_H

#include "proto/base.h"

#include <stdatomic.h>

#define SHEAF_SHM_LAYOUT 1

#define SHEAF_BLOCK_ALIGN      UINT64_C(64)
#define SHEAF_WORD_OFFSET_BITS 36
#define SHEAF_WORD_GEN_BITS    28
#define SHEAF_WORD_GEN_MAX     ((UINT64_C(1) << SHEAF_WORD_GEN_BITS) - 1)
#define SHEAF_WORD_OFFSET_MASK ((UINT64_C(1) << SHEAF_WORD_OFFSET_BITS) - 1)
#define SHEAF_ARENA_BYTES_MAX  (SHEAF_BLOCK_ALIGN << SHEAF_WORD_OFFSET_BITS)

/* Largest number of descriptors in one message; more come in further,
 * acknowledged messages. */
#define SHEAF_FDS_PER_MESSAGE_MAX 64

static inline uint64_t sheaf_word(uint64_t generation, uint64_t offset_bytes)
{
        return generation << SHEAF_WORD_OFFSET_BITS |
               offset_bytes / SHEAF_BLOCK_ALIGN;
}

static inline uint64_t sheaf_word_offset_bytes(uint64_t word)
{
        return (word & SHEAF_WORD_OFFSET_MASK) * SHEAF_BLOCK_ALIGN;
}

#define SHEAF_TABLE_MAGIC UINT64_C(0x31626c7466616873) /* "shaftbl1" */

/* Header of a residency table; the words follow at words_offset_bytes. */
struct sheaf_table_header {
        uint64_t magic;
        uint32_t layout;
        uint32_t words_offset_bytes;
        uint64_t word_count;
        uint64_t version_serial;
        uint8_t zero[32]; /* checked */
};
_Static_assert(sizeof(struct sheaf_table_header) == 64, "layout 1");

#define SHEAF_TABLE_WORDS_OFFSET 4096

static inline uint64_t sheaf_table_bytes(uint64_t chunk_count)
{
        return SHEAF_TABLE_WORDS_OFFSET +
               sheaf_round_up(chunk_count * sizeof(uint64_t), 4096);
}

#define SHEAF_HAZARD_MAGIC UINT64_C(0x317a616866616873) /* "shafhaz1" */
#define SHEAF_HAZARD_SLOTS 16384

/* A client's hazard array. The daemon makes the memfd and seals it against
 * resizing; everything in it is a claim by the client. @high_water is raised
 * (seq_cst, never lowered) before a slot at or above it is used. */
struct sheaf_hazard {
        uint64_t magic;
        uint32_t layout;
        uint32_t slot_count;
        uint8_t zero0[48];
        _Atomic uint64_t high_water; /* writer: client; reader: daemon */
        uint8_t zero1[56];
        _Atomic uint64_t slot[SHEAF_HAZARD_SLOTS];
};
_Static_assert(offsetof(struct sheaf_hazard, high_water) == 64, "layout 1");
_Static_assert(offsetof(struct sheaf_hazard, slot) == 128, "layout 1");

#define SHEAF_METER_MAGIC   UINT64_C(0x3174656d66616873) /* "shafmet1" */
#define SHEAF_METER_STRIPES 64
#define SHEAF_METER_OPS     64

/* Counters of one client's use of one dataset: monotonic, written by the
 * client without messages, read by the daemon for stats; claims like
 * everything that a client writes. Each thread adds to a stripe of its own
 * with plain relaxed stores; the last stripe is shared and added to
 * atomically. */
struct sheaf_meter_stripe {
        _Atomic uint64_t hits; /* chunks read in place */
        _Atomic uint64_t hit_bytes;
        _Atomic uint64_t rechecks; /* re-checks that failed */
        _Atomic uint64_t copies;   /* chunks copied for lack of grant */
        _Atomic uint64_t copy_bytes;
        _Atomic uint64_t misses;  /* chunks asked of the daemon */
        _Atomic uint64_t wait_ns; /* time blocked on misses */
        _Atomic uint64_t zero;
};
struct sheaf_meter {
        uint64_t magic;
        uint32_t layout;
        uint8_t zero0[52];
        struct sheaf_meter_stripe stripe[SHEAF_METER_STRIPES];
        _Atomic uint64_t op[SHEAF_METER_OPS]; /* mounts: FUSE requests */
};
_Static_assert(sizeof(struct sheaf_meter_stripe) == 64, "one cache line");
_Static_assert(offsetof(struct sheaf_meter, stripe) == 64, "layout 1");

/* Indexes of sheaf_meter.op: requests that reached the FUSE process, shown
 * as mount.requests.NAME; READ bytes as mount.read_bytes. */
/* clang-format off */
#define SHEAF_METER_OP_LIST(X)                                                 \
        X(LOOKUP, lookup)                                                      \
        X(FORGET, forget)                                                      \
        X(GETATTR, getattr)                                                    \
        X(READLINK, readlink)                                                  \
        X(OPEN, open)                                                          \
        X(READ, read)                                                          \
        X(RELEASE, release)                                                    \
        X(FLUSH, flush)                                                        \
        X(OPENDIR, opendir)                                                    \
        X(READDIR, readdir)                                                    \
        X(READDIRPLUS, readdirplus)                                            \
        X(RELEASEDIR, releasedir)                                              \
        X(STATFS, statfs)                                                      \
        X(GETXATTR, getxattr)                                                  \
        X(LISTXATTR, listxattr)                                                \
        X(ACCESS, access)                                                      \
        X(LSEEK, lseek)                                                        \
        X(IOCTL, ioctl)                                                        \
        X(OTHER, other)                                                        \
        X(READ_BYTES, read_bytes)                                              \
        X(READ_ERRORS, read_errors)                                            \
        X(PASSTHROUGH_OPENS, passthrough_opens)
/* clang-format on */
enum sheaf_meter_op {
#define X(upper, lower) SHEAF_METER_OP_##upper,
        SHEAF_METER_OP_LIST(X)
#undef X
        SHEAF_METER_OP_COUNT
};
_Static_assert(SHEAF_METER_OP_COUNT <= SHEAF_METER_OPS, "layout 1");

#endif
