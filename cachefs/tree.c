/* SPDX-License-Identifier: Apache-2.0 */
/* What a mount shows of a listing.
 *
 *  1 nothing here waits, except the value of an extended attribute
 *  2 a node id comes from the listing alone, so a mount keeps no table */
#include "cachefs/tree.h"

#include <inttypes.h>
#include <stdio.h>

#define BLOCK_BYTES 4096

static const char *const xattr_names[SHEAF_TREE_XATTR_COUNT] = {
        [SHEAF_TREE_XATTR_DATASET] = "user.sheaf.dataset",
        [SHEAF_TREE_XATTR_VERSION] = "user.sheaf.version",
        [SHEAF_TREE_XATTR_DIGEST] = "user.sheaf.digest",
        [SHEAF_TREE_XATTR_CACHED] = "user.sheaf.cached",
        [SHEAF_TREE_XATTR_SAMPLE] = "user.sheaf.sample",
};

int sheaf_tree_kind_parse(const char *text, enum sheaf_tree_kind *ret_kind)
{
        static const char *const names[] = { "auto", "small", "shard" };

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(names); i++)
                if (!strcmp(text, names[i])) {
                        *ret_kind = (enum sheaf_tree_kind)i;
                        return 0;
                }
        return -EINVAL;
}

enum sheaf_tree_kind sheaf_tree_kind_of(const struct sheaf_listing *listing)
{
        uint64_t small = 0, shard = 0;

        for (uint32_t i = 0; i < listing->file_count; i++) {
                uint32_t entry = listing->files[i];
                uint64_t bytes = listing->entries[entry].size_bytes;

                if (bytes > SHEAF_TREE_SHARD_BYTES)
                        shard += bytes;
                else
                        small += bytes;
        }
        return shard > small ? SHEAF_TREE_SHARD : SHEAF_TREE_SMALL;
}

int sheaf_tree_entry(
        const struct sheaf_source *source, uint64_t node, uint32_t *ret_entry)
{
        if (node == SHEAF_LISTING_NODE_ROOT) {
                *ret_entry = 0;
                return 0;
        }
        return sheaf_listing_by_node(source->listing, node, ret_entry);
}

int sheaf_tree_child(const struct sheaf_source *source, uint32_t dir,
        const char *name, uint32_t *ret_entry)
{
        const struct sheaf_listing_entry *entry =
                &source->listing->entries[dir];
        size_t len = strlen(name);

        if (!S_ISDIR(entry->mode))
                return -ENOTDIR;
        if (len > SHEAF_LISTING_NAME_MAX)
                return -ENAMETOOLONG;
        if (!strcmp(name, ".") || !strcmp(name, "..")) {
                *ret_entry = name[1] ? entry->parent : dir;
                return 0;
        }
        return sheaf_listing_child(source->listing, dir, name, len, ret_entry);
}

static mode_t root_mode(const struct sheaf_dataset_info *info)
{
        switch (info->domain) {
        case 1:
                return S_IFDIR | 0750;
        case 2:
                return S_IFDIR | 0755;
        case 3:
                /* Whoever reaches the socket of a grant may read: in its
                 * container that is everybody, whatever the uid. */
                return S_IFDIR | 0755;
        default:
                return S_IFDIR | 0700;
        }
}

void sheaf_tree_stat(const struct sheaf_source *source, uint32_t entry,
        struct stat *ret_stat)
{
        const struct sheaf_dataset_info *info = source->info;

        sheaf_listing_stat(source->listing, entry, ret_stat);
        ret_stat->st_blksize = 128 << 10;
        if (entry)
                return;
        ret_stat->st_ino = SHEAF_LISTING_NODE_ROOT;
        ret_stat->st_mode = root_mode(info);
        ret_stat->st_uid = info->owner_uid;
        if (info->domain == 1)
                ret_stat->st_gid = info->domain_gid;
}

void sheaf_tree_statvfs(
        const struct sheaf_source *source, struct statvfs *ret_stat)
{
        uint64_t bytes = source->listing->header->payload_bytes;
        uint64_t blocks = bytes / BLOCK_BYTES + (bytes % BLOCK_BYTES != 0);
        struct statvfs out = {
                .f_bsize = BLOCK_BYTES,
                .f_frsize = BLOCK_BYTES,
                /* df and shutil take zero blocks for a pseudo file system */
                .f_blocks = SHEAF_MAX(blocks, 1),
                .f_files = source->listing->entry_count,
                .f_namemax = SHEAF_LISTING_NAME_MAX,
        };

        *ret_stat = out;
}

void sheaf_tree_say(const struct sheaf_source *source, uint32_t entry,
        char *buf, size_t cap_bytes)
{
        size_t len = sheaf_listing_path(source->listing, entry, buf, cap_bytes);

        if (len >= cap_bytes) {
                /* too long to print: the name alone says enough */
                size_t name_len;
                const char *name =
                        sheaf_listing_name(source->listing, entry, &name_len);

                snprintf(buf, cap_bytes, ".../%.*s", (int)name_len, name);
        }
        for (char *p = buf; *p; p++)
                if ((unsigned char)*p < ' ' || *p == 0x7f)
                        *p = '?';
}

static bool xattr_fits(const struct sheaf_source *source, uint32_t entry,
        enum sheaf_tree_xattr xattr)
{
        bool file = sheaf_listing_is_file(source->listing, entry);

        if (xattr == SHEAF_TREE_XATTR_DATASET ||
                xattr == SHEAF_TREE_XATTR_VERSION)
                return file || !entry;
        return file;
}

int sheaf_tree_xattr_find(const struct sheaf_source *source, uint32_t entry,
        const char *name, enum sheaf_tree_xattr *ret_xattr)
{
        if (strncmp(name, "user.", strlen("user.")))
                return -EOPNOTSUPP;
        for (int i = 0; i < SHEAF_TREE_XATTR_COUNT; i++) {
                if (strcmp(name, xattr_names[i]))
                        continue;
                if (!xattr_fits(source, entry, (enum sheaf_tree_xattr)i))
                        return -ENODATA;
                *ret_xattr = (enum sheaf_tree_xattr)i;
                return 0;
        }
        return -ENODATA;
}

static int print_uuid(const uint8_t uuid[16], char *buf, size_t cap_bytes)
{
        size_t len = 0;

        if (cap_bytes < 37)
                return -ERANGE;
        for (int i = 0; i < 16; i++) {
                if (i == 4 || i == 6 || i == 8 || i == 10)
                        buf[len++] = '-';
                len += (size_t)snprintf(buf + len, 3, "%02x", uuid[i]);
        }
        return (int)len;
}

int sheaf_tree_xattr_value(const struct sheaf_source *source, uint32_t entry,
        enum sheaf_tree_xattr xattr, char *buf, size_t cap_bytes)
{
        struct sheaf_digest digest;
        uint64_t bytes;
        int rc;

        switch (xattr) {
        case SHEAF_TREE_XATTR_DATASET:
                rc = snprintf(buf, cap_bytes, "%s", source->info->name);
                break;
        case SHEAF_TREE_XATTR_VERSION:
                return print_uuid(source->info->uuid, buf, cap_bytes);
        case SHEAF_TREE_XATTR_DIGEST:
                rc = source->ops->digest(source->arg, entry, &digest);
                if (rc < 0)
                        return rc;
                if (cap_bytes < SHEAF_DIGEST_HEX + 1)
                        return -ERANGE;
                sheaf_digest_hex(&digest, buf);
                return SHEAF_DIGEST_HEX;
        case SHEAF_TREE_XATTR_CACHED:
                rc = source->ops->cached(source->arg, entry, &bytes);
                if (rc < 0)
                        return rc;
                rc = snprintf(buf, cap_bytes, "%" PRIu64, bytes);
                break;
        case SHEAF_TREE_XATTR_SAMPLE:
                rc = snprintf(buf, cap_bytes, "%" PRIu32,
                        source->listing->entries[entry].file_ordinal);
                break;
        default:
                return -ENODATA;
        }
        return rc < (int)cap_bytes ? rc : -ERANGE;
}

size_t sheaf_tree_xattr_names(const struct sheaf_source *source, uint32_t entry,
        char buf[SHEAF_TREE_XATTR_NAMES_MAX])
{
        size_t len = 0;

        for (int i = 0; i < SHEAF_TREE_XATTR_COUNT; i++) {
                size_t n = strlen(xattr_names[i]) + 1;

                if (!xattr_fits(source, entry, (enum sheaf_tree_xattr)i))
                        continue;
                memcpy(buf + len, xattr_names[i], n);
                len += n;
        }
        return len;
}
