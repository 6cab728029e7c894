/* SPDX-License-Identifier: Apache-2.0 */
/* The listing of one version of a dataset: every directory, file and symbolic
 * link, in one position-independent block that is mapped, never parsed.
 *
 *   header | entries | names | files | nodes | owners | samples (later)
 *
 * Numbered invariants, checked by sheaf_listing_open() in one pass:
 *  1 entry 0 is the root directory; entries lie breadth first: the children
 *    of directories, taken in index order, fill 1, 2, 3, ... without a gap,
 *    so a child's index is above its parent's
 *  2 the children of a directory are contiguous and sorted by the bytes of
 *    their names (memcmp, shorter first), without duplicates
 *  3 names have 1 to 255 bytes, no '/' and no NUL, and are not "." or ".."
 *  4 files[] holds the index of each regular file, ascending by entry index;
 *    its position there is the file's *ordinal*
 *  5 chunk ordinals: a file of n chunks owns first_chunk .. first_chunk+n-1,
 *    dealt in entry order without gaps; hard links of one inode share node
 *    id, identity and chunks; nothing else overlaps
 *  6 nodes[] holds all entry indexes (the first of each set of hard links),
 *    ascending by node id
 *
 * Integers are little-endian; the host must be too. */
#ifndef SHEAF_PROTO_LISTING_H
#define SHEAF_PROTO_LISTING_H

#include "proto/base.h"

#include <sys/stat.h>

#define SHEAF_LISTING_MAGIC      UINT64_C(0x3174736c66616873) /* "shaflst1" */
#define SHEAF_LISTING_LAYOUT     1
#define SHEAF_LISTING_NAME_MAX   255
#define SHEAF_LISTING_TARGET_MAX 4095
#define SHEAF_LISTING_NODE_ROOT  UINT64_C(1)

/* 64 TiB: messages name a chunk of a file by 24 bits. */
#define SHEAF_LISTING_FILE_BYTES_MAX (SHEAF_CHUNK_BYTES_MAX << 24)

enum sheaf_listing_section {
        SHEAF_LISTING_ENTRIES = 0, /* struct sheaf_listing_entry */
        SHEAF_LISTING_NAMES = 1,   /* bytes: names and link targets */
        SHEAF_LISTING_FILES = 2,   /* uint32_t entry index */
        SHEAF_LISTING_NODES = 3,   /* uint32_t entry index */
        SHEAF_LISTING_OWNERS = 4,  /* struct sheaf_listing_owner */
        SHEAF_LISTING_SAMPLES = 5, /* reserved: samples inside shards */
        SHEAF_LISTING_SECTIONS = 8,
};

struct sheaf_listing_span {
        uint64_t offset_bytes; /* from the header, multiple of 8 */
        uint64_t count;        /* in elements of the section */
};

struct sheaf_listing_header {
        uint64_t magic;
        uint32_t layout;
        uint32_t entry_bytes; /* sizeof(struct sheaf_listing_entry) */
        uint64_t total_bytes; /* of the whole block */
        uint64_t serial;      /* of this version, >= 1, < 2^31 */
        uint8_t uuid[16];     /* of this version */
        uint64_t chunk_count;
        uint64_t payload_bytes; /* sum of file sizes, hard links once */
        uint64_t listed_ns;     /* CLOCK_REALTIME when the walk began */
        uint8_t zero0[8];       /* checked */
        struct sheaf_listing_span section[SHEAF_LISTING_SECTIONS];
        uint8_t zero[48]; /* checked */
};

enum sheaf_listing_flag {
        /* Another entry has the same inode. */
        SHEAF_LISTING_HARDLINK = 1 << 0,
        /* A link whose target leaves the tree (reported by add). */
        SHEAF_LISTING_ESCAPES = 1 << 1,
        /* Changed within two seconds of the walk: look again at fetch. */
        SHEAF_LISTING_RECENT = 1 << 2,
        /* A link that --follow replaced by its target. */
        SHEAF_LISTING_FOLLOWED = 1 << 3,
        /* A directory that its owner may not list: it has no children here,
         * and asking for some is -EACCES. */
        SHEAF_LISTING_UNREADABLE = 1 << 4,
};

/* 72 bytes. @origin_ino, @size_bytes, mtime and ctime are the identity of
 * the file at the origin, compared before and after each fetch. */
struct sheaf_listing_entry {
        uint64_t size_bytes; /* directories: 0; links: length of target */
        uint64_t node;       /* stable inode number, see below */
        uint64_t origin_ino;
        uint64_t ctime_packed; /* sheaf_listing_pack_ctime */
        int64_t mtime_sec;
        union {
                uint64_t first_chunk; /* regular files */
                struct {
                        uint32_t first_child, child_count; /* directories */
                };
                struct {
                        uint32_t target_offset_bytes, target_len_bytes;
                };
        };
        uint32_t mtime_nsec;
        uint32_t name_offset_bytes; /* into the names section */
        uint32_t parent;            /* entry index; root: 0 */
        uint32_t file_ordinal;      /* regular files, else 0 */
        uint16_t mode;              /* type and permission bits */
        uint16_t owner;             /* index into owners */
        uint16_t nlink;             /* saturates at 65535 */
        uint8_t name_len_bytes;     /* root: 0 */
        uint8_t flags;              /* SHEAF_LISTING_* */
};

struct sheaf_listing_owner {
        uint32_t uid, gid;
};

_Static_assert(sizeof(struct sheaf_listing_header) == 256, "layout 1");
_Static_assert(
        offsetof(struct sheaf_listing_header, section) == 80, "layout 1");
_Static_assert(sizeof(struct sheaf_listing_entry) == 72, "layout 1");
_Static_assert(
        offsetof(struct sheaf_listing_entry, mtime_nsec) == 48, "layout 1");
_Static_assert(offsetof(struct sheaf_listing_entry, mode) == 64, "layout 1");

/* Node id of the root is 1 (FUSE's). Any other is made from the version in
 * which the file's identity first appeared and its entry index there, so an
 * update renumbers nothing but what changed. */
static inline uint64_t sheaf_listing_node(uint64_t serial, uint32_t index)
{
        return serial << 32 | index;
}

/* ctime as one word: 34 bits of seconds (signed), 30 of nanoseconds. */
static inline uint64_t sheaf_listing_pack_ctime(int64_t sec, uint32_t nsec)
{
        return (uint64_t)sec << 30 | nsec;
}

static inline int64_t sheaf_listing_ctime_sec(uint64_t packed)
{
        return (int64_t)packed >> 30;
}

/* A checked, read-only view of a listing in memory. Plain value; borrows the
 * block. All accessors are safe from any thread. */
struct sheaf_listing {
        const struct sheaf_listing_header *header;
        const struct sheaf_listing_entry *entries;
        const char *names;
        const uint32_t *files;
        const uint32_t *nodes;
        const struct sheaf_listing_owner *owners;
        uint32_t entry_count, file_count, node_count, owner_count;
        uint64_t names_bytes, chunk_count;
};

/* Opens the block at @data. With @full every invariant is checked (O(n));
 * else only header and spans, for blocks that the daemon has checked.
 * 0; -EBADMSG when a check fails; -EPROTONOSUPPORT for another layout. */
SHEAF_MUST_CHECK int sheaf_listing_open(const void *data, size_t len_bytes,
        bool full, struct sheaf_listing *ret_listing);

/* Invariant 3. */
bool sheaf_listing_name_valid(const char *name, size_t len_bytes);

/* Name of entry @index, not NUL-terminated; the root's is empty. */
const char *sheaf_listing_name(const struct sheaf_listing *listing,
        uint32_t index, size_t *ret_len_bytes);

/* Target of the symbolic link @index, not NUL-terminated. */
const char *sheaf_listing_target(const struct sheaf_listing *listing,
        uint32_t index, size_t *ret_len_bytes);

/* Child of directory @dir by name. 0; -ENOENT; -ENOTDIR. */
SHEAF_MUST_CHECK int sheaf_listing_child(const struct sheaf_listing *listing,
        uint32_t dir, const char *name, size_t len_bytes, uint32_t *ret_index);

/* Entry by path relative to the root ("" and "." are the root; repeated and
 * trailing slashes are fine; links are not followed, ".." is -EINVAL).
 * 0; -ENOENT; -ENOTDIR; -EINVAL; -ENAMETOOLONG for a component over 255. */
SHEAF_MUST_CHECK int sheaf_listing_find(const struct sheaf_listing *listing,
        const char *path, size_t len_bytes, uint32_t *ret_index);

/* Entry by node id. 0; -ENOENT. */
SHEAF_MUST_CHECK int sheaf_listing_by_node(const struct sheaf_listing *listing,
        uint64_t node, uint32_t *ret_index);

/* Writes the path of entry @index, relative, NUL-terminated, "" for the
 * root. Returns its length; when that is >= @cap_bytes nothing useful was
 * written: call again with a larger buffer. Paths may exceed PATH_MAX. */
size_t sheaf_listing_path(const struct sheaf_listing *listing, uint32_t index,
        char *buf, size_t cap_bytes);

/* sheaf_listing_path() over bare arrays. */
size_t sheaf_listing_join(const struct sheaf_listing_entry *entries,
        const char *names, uint32_t index, char *buf, size_t cap_bytes);

/* Bytes of the chunk @chunk_index of file @index. */
static inline uint32_t sheaf_listing_chunk_len(
        const struct sheaf_listing *listing, uint32_t index,
        uint64_t chunk_index)
{
        return sheaf_chunk_len(listing->entries[index].size_bytes, chunk_index);
}

static inline bool sheaf_listing_is_file(
        const struct sheaf_listing *listing, uint32_t index)
{
        return S_ISREG(listing->entries[index].mode);
}

/* Fills @ret_stat as the mount shows the entry. */
void sheaf_listing_stat(const struct sheaf_listing *listing, uint32_t index,
        struct stat *ret_stat);

/* Building: entries are added a directory at a time, breadth first.
 *
 *   new -> { add_dir(next_dir) }* in index order -> write, once
 *
 * Not thread-safe. */
struct sheaf_listing_builder;

struct sheaf_listing_item {
        const char *name;
        size_t name_len_bytes;
        const char *target; /* symbolic links */
        size_t target_len_bytes;
        uint64_t size_bytes, origin_ino;
        uint64_t origin_dev; /* only to recognise hard links */
        int64_t mtime_sec, ctime_sec;
        uint32_t mtime_nsec, ctime_nsec;
        uint32_t mode, uid, gid, nlink;
        uint8_t flags;
};

SHEAF_MUST_CHECK int sheaf_listing_builder_new(
        const struct sheaf_listing_item *root,
        struct sheaf_listing_builder **ret_builder);
void sheaf_listing_builder_free(struct sheaf_listing_builder *builder);
void sheaf_listing_builder_free_p(struct sheaf_listing_builder **builder);

/* Adds children of directory @dir (in any order, sorted here); directories
 * must be completed in ascending index order, empty ones may be skipped.
 * 0; -ENOMEM; -EEXIST duplicate name; -EINVAL bad name, mode, target or
 * order; -EFBIG a file over SHEAF_LISTING_FILE_BYTES_MAX; -EOVERFLOW more
 * than 2^32-2 entries, 4 GiB of names or 65535 owners. After a failure the
 * builder is as before. Entries of one (device, inode) with nlink > 1, or
 * FOLLOWED, become hard links of the first. */
SHEAF_MUST_CHECK int sheaf_listing_builder_add_dir(
        struct sheaf_listing_builder *builder, uint32_t dir,
        const struct sheaf_listing_item *items, size_t count);

/* Next directory after index @after whose children are still to be added, or
 * 0 when all are done; begin with after = 0 for the root's first child. */
uint32_t sheaf_listing_builder_next_dir(
        const struct sheaf_listing_builder *builder, uint32_t after);

/* Says that directory @dir, to which nothing was added, cannot be listed. */
void sheaf_listing_builder_unreadable(
        struct sheaf_listing_builder *builder, uint32_t dir);

/* Path of entry @index while building, as sheaf_listing_path(). */
size_t sheaf_listing_builder_path(const struct sheaf_listing_builder *builder,
        uint32_t index, char *buf, size_t cap_bytes);

/* Sum of file sizes, hard links once, and number of entries that are further
 * links of another. */
void sheaf_listing_builder_totals(const struct sheaf_listing_builder *builder,
        uint64_t *ret_payload_bytes, uint64_t *ret_further_links);

/* Writes the finished block to @fd from its current position. Node ids are
 * made from @serial. 0 or -errno of write. */
SHEAF_MUST_CHECK int sheaf_listing_builder_write(
        struct sheaf_listing_builder *builder, int fd, uint64_t serial,
        const uint8_t uuid[16], uint64_t listed_ns);

/* Keeps node ids over an update: each entry of the block @next (writable,
 * opened as @next_view) whose path, type and identity equal those of an
 * entry of @prev takes that entry's node id, and nodes[] is sorted again.
 * For files, @same(arg, prev_index, next_index) is called, so that learned
 * digests can be carried over. Of a directory the inode number alone counts:
 * a new child does not renumber it. Hard links take their id together, from
 * the first link that matches. @same may be NULL. -ENOMEM; -EINVAL when
 * @next's serial is not above @prev's. */
SHEAF_MUST_CHECK int sheaf_listing_inherit(const struct sheaf_listing *prev,
        void *next, struct sheaf_listing *next_view,
        void (*same)(void *arg, uint32_t prev_index, uint32_t next_index),
        void *arg);

#endif
