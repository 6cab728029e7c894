/* SPDX-License-Identifier: Apache-2.0 */
/* The listing as a file system shows it: attributes, directory entries,
 * extended attributes' names, totals. Pure functions of a source's listing
 * and info; no state, no waiting; any thread. */
#ifndef SHEAF_CACHEFS_TREE_H
#define SHEAF_CACHEFS_TREE_H

#include "cachefs/source.h"

#include <sys/statvfs.h>

/* A mount serves either many small files, best without OPEN requests, or
 * shards, best by passthrough; one connection cannot do both. */
enum sheaf_tree_kind {
        SHEAF_TREE_AUTO,
        SHEAF_TREE_SMALL,
        SHEAF_TREE_SHARD,
};

/* A file above this size is a shard. */
#define SHEAF_TREE_SHARD_BYTES (UINT64_C(8) << 20)

/* "auto", "small" or "shard". 0; -EINVAL. */
SHEAF_MUST_CHECK int sheaf_tree_kind_parse(
        const char *text, enum sheaf_tree_kind *ret_kind);

/* SHARD when most bytes are in shards, else SMALL. O(files). */
enum sheaf_tree_kind sheaf_tree_kind_of(const struct sheaf_listing *listing);

/* Entry of node id @node. 0; -ENOENT. */
SHEAF_MUST_CHECK int sheaf_tree_entry(
        const struct sheaf_source *source, uint64_t node, uint32_t *ret_entry);

/* Child @name of @dir; "." and ".." are understood. 0; -ENOENT; -ENOTDIR;
 * -ENAMETOOLONG. */
SHEAF_MUST_CHECK int sheaf_tree_child(const struct sheaf_source *source,
        uint32_t dir, const char *name, uint32_t *ret_entry);

/* Attributes as shown. The root shows the domain and not the origin: under
 * allow_other the kernel checks the modes that it sees and nothing else. */
void sheaf_tree_stat(const struct sheaf_source *source, uint32_t entry,
        struct stat *ret_stat);

/* Totals of the listing; never zero blocks. */
void sheaf_tree_statvfs(
        const struct sheaf_source *source, struct statvfs *ret_stat);

/* Path for messages, cut to @cap_bytes; control bytes become '?'. */
void sheaf_tree_say(const struct sheaf_source *source, uint32_t entry,
        char *buf, size_t cap_bytes);

enum sheaf_tree_xattr {
        SHEAF_TREE_XATTR_DATASET,
        SHEAF_TREE_XATTR_VERSION,
        SHEAF_TREE_XATTR_DIGEST,
        SHEAF_TREE_XATTR_CACHED,
        SHEAF_TREE_XATTR_SAMPLE, /* ordinal: the number that jobs give it */
        SHEAF_TREE_XATTR_COUNT,
};

/* Which attribute @name is, if @entry can have it. 0; -ENODATA;
 * -EOPNOTSUPP outside "user.": on that answer `ls -l` asks no more for the
 * ACL and label of each file, which the kernel would not remember. */
SHEAF_MUST_CHECK int sheaf_tree_xattr_find(const struct sheaf_source *source,
        uint32_t entry, const char *name, enum sheaf_tree_xattr *ret_xattr);

/* Value as text without a final NUL; may ask the daemon. Returns its length;
 * -ENODATA; -ERANGE when @cap_bytes is short; other errnos of the source. */
SHEAF_MUST_CHECK int sheaf_tree_xattr_value(const struct sheaf_source *source,
        uint32_t entry, enum sheaf_tree_xattr xattr, char *buf,
        size_t cap_bytes);

/* All names that @entry can have, each with its NUL; returns the length. */
#define SHEAF_TREE_XATTR_NAMES_MAX 256
size_t sheaf_tree_xattr_names(const struct sheaf_source *source, uint32_t entry,
        char buf[SHEAF_TREE_XATTR_NAMES_MAX]);

#endif
