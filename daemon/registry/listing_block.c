/* SPDX-License-Identifier: Apache-2.0 */
/* Listings between a reader's claim, the cache directory and memory.
 *
 *  1 a claim is copied by read(2), never mapped: its owner may change or cut
 *    it at any time
 *  2 the file at versions/UUID/listing is written once, synced, renamed
 *  3 the memfd is sealed before anybody else sees it
 *
 * Threads: any; no shared state. */
#include "daemon/registry/listing_block.h"
#include "proto/io.h"
#include "proto/memfd.h"

#include <endian.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

/* 2^32 entries with names: nothing larger can be valid. */
#define LISTING_BYTES_MAX (UINT64_C(1) << 40)

void sheaf_listing_block_clear(struct sheaf_listing_block *block)
{
        if (block->map)
                munmap(block->map, block->len_bytes);
        sheaf_close_p(&block->memfd);
        *block = (struct sheaf_listing_block){ .memfd = -1 };
}

void sheaf_listing_block_let_go(
        struct sheaf_store *store, struct sheaf_listing_block *block)
{
        sheaf_store_let_go(store, block->map, block->len_bytes, block->memfd);
        *block = (struct sheaf_listing_block){ .memfd = -1 };
}

/* Copies @fd into a new memfd, mapped read-write. */
static int copy_in(int fd, struct sheaf_listing_block *block)
{
        struct stat st;
        int rc;

        if (fstat(fd, &st))
                return -errno;
        if (st.st_size < (off_t)sizeof(struct sheaf_listing_header) ||
                (uint64_t)st.st_size > LISTING_BYTES_MAX)
                return -EBADMSG;
        block->len_bytes = (size_t)st.st_size;
        block->memfd = sheaf_memfd("sheaf-listing", MFD_ALLOW_SEALING);
        if (block->memfd < 0)
                return block->memfd;
        if (fallocate(block->memfd, 0, 0, st.st_size))
                return -errno;
        block->map = mmap(NULL, block->len_bytes, PROT_READ | PROT_WRITE,
                MAP_SHARED, block->memfd, 0);
        if (block->map == MAP_FAILED) {
                block->map = NULL;
                return -errno;
        }
        rc = sheaf_read_at(fd, block->map, block->len_bytes, 0);
        if (rc == -ENODATA)
                rc = -EBADMSG;
        return rc;
}

/* Replaces the writable mapping by a read-only one and seals. */
static int seal(struct sheaf_listing_block *block)
{
        munmap(block->map, block->len_bytes);
        block->map = NULL;
        if (fcntl(block->memfd, F_ADD_SEALS,
                    F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
                return -errno;
        block->map = mmap(
                NULL, block->len_bytes, PROT_READ, MAP_SHARED, block->memfd, 0);
        if (block->map == MAP_FAILED) {
                block->map = NULL;
                return -errno;
        }
        return sheaf_listing_open(
                block->map, block->len_bytes, false, &block->listing);
}

/* The last @levels directories of @path: a name is durable when the directory
 * that holds it was synced, whatever else was. */
static int sync_parents(const char *path, int levels)
{
        char dir[PATH_MAX];

        snprintf(dir, sizeof(dir), "%s", path);
        for (int i = 0; i < levels; i++) {
                char *slash = strrchr(dir, '/');
                sheaf_autofd int fd = -1;

                if (!slash || slash == dir)
                        return 0;
                *slash = '\0';
                fd = sheaf_again(open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
                /* -EINVAL: a file system that has nothing to sync there. */
                if (fd < 0 || (sheaf_again(fsync(fd)) && errno != EINVAL))
                        return -errno;
        }
        return 0;
}

static int write_file(const struct sheaf_listing_block *block, const char *path)
{
        char tmp[PATH_MAX];
        sheaf_autofd int fd = -1;
        int rc;

        snprintf(tmp, sizeof(tmp), "%s.tmp", path);
        fd = sheaf_again(
                open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
        if (fd < 0)
                return -errno;
        rc = sheaf_write_all(fd, block->map, block->len_bytes);
        if (!rc && sheaf_again(fsync(fd)))
                rc = -errno;
        if (!rc && rename(tmp, path))
                rc = -errno;
        if (rc)
                unlink(tmp);
        /* The record that names this version is durable at once: the listing
         * and the version's own directory must be so before it. */
        return rc ? rc : sync_parents(path, 2);
}

static void note_pair(void *arg, uint32_t prev, uint32_t next)
{
        struct sheaf_listing_pairs *pairs = arg;

        if (pairs->count == pairs->cap) {
                size_t cap = pairs->cap ? 2 * pairs->cap : 1024;
                void *grown = realloc(pairs->pairs, cap * sizeof(uint32_t[2]));

                if (!grown)
                        return; /* its digest is learned again */
                pairs->pairs = grown;
                pairs->cap = cap;
        }
        pairs->pairs[pairs->count][0] = prev;
        pairs->pairs[pairs->count++][1] = next;
}

static int check_claim(struct sheaf_listing_block *block,
        const struct sheaf_listing *prev, uint64_t serial,
        const uint8_t uuid[16], struct sheaf_listing_pairs *pairs)
{
        int rc = sheaf_listing_open(
                block->map, block->len_bytes, true, &block->listing);

        if (rc)
                return rc;
        if (block->listing.header->serial != serial ||
                memcmp(block->listing.header->uuid, uuid, 16))
                return -EBADMSG;
        /* Node ids are ours to give: a claim has those of its own serial. */
        for (uint32_t i = 1; i < block->listing.entry_count; i++)
                if (block->listing.entries[i].node >> 32 != serial)
                        return -EBADMSG;
        if (!prev)
                return 0;
        return sheaf_listing_inherit(
                prev, block->map, &block->listing, note_pair, pairs);
}

int sheaf_listing_block_import(int claim_fd, const struct sheaf_listing *prev,
        uint64_t serial, const uint8_t uuid[16], const char *path,
        struct sheaf_listing_block *ret_block,
        struct sheaf_listing_pairs *ret_pairs)
{
        struct sheaf_listing_block block = { .memfd = -1 };
        struct sheaf_listing_pairs pairs = { 0 };
        int rc = copy_in(claim_fd, &block);

        if (!rc)
                rc = check_claim(&block, prev, serial, uuid, &pairs);
        if (!rc) {
                sheaf_digest_of(block.map, block.len_bytes, &block.digest);
                rc = write_file(&block, path);
        }
        if (!rc)
                rc = seal(&block);
        if (rc) {
                free(pairs.pairs);
                sheaf_listing_block_clear(&block);
                return rc;
        }
        *ret_block = block;
        *ret_pairs = pairs;
        return 0;
}

int sheaf_listing_block_load(const char *path,
        const struct sheaf_digest *digest,
        struct sheaf_listing_block *ret_block)
{
        struct sheaf_listing_block block = { .memfd = -1 };
        sheaf_autofd int fd = sheaf_again(open(path, O_RDONLY | O_CLOEXEC));
        int rc;

        if (fd < 0)
                return -errno;
        rc = copy_in(fd, &block);
        if (!rc) {
                sheaf_digest_of(block.map, block.len_bytes, &block.digest);
                if (!sheaf_digest_equal(&block.digest, digest))
                        rc = -EBADMSG;
        }
        if (!rc)
                rc = seal(&block);
        if (rc) {
                sheaf_listing_block_clear(&block);
                return rc;
        }
        *ret_block = block;
        return 0;
}

bool sheaf_listing_same(
        const struct sheaf_listing *a, const struct sheaf_listing *b)
{
        if (a->entry_count != b->entry_count ||
                a->names_bytes != b->names_bytes ||
                a->owner_count != b->owner_count ||
                memcmp(a->names, b->names, a->names_bytes) ||
                memcmp(a->owners, b->owners,
                        a->owner_count * sizeof(*a->owners)))
                return false;
        for (uint32_t i = 0; i < a->entry_count; i++) {
                struct sheaf_listing_entry x = a->entries[i];
                struct sheaf_listing_entry y = b->entries[i];

                /* How recent a change was depends on when one looks. */
                x.flags &= (uint8_t)~SHEAF_LISTING_RECENT;
                y.flags &= (uint8_t)~SHEAF_LISTING_RECENT;
                if (memcmp(&x, &y, sizeof(x)))
                        return false;
        }
        return true;
}

static void feed_u64(struct sheaf_hasher *hasher, uint64_t value)
{
        uint64_t le = htole64(value);

        sheaf_hasher_feed(hasher, &le, sizeof(le));
}

int sheaf_listing_root_digest(const struct sheaf_listing *listing,
        const struct sheaf_digest *(*digest_of)(void *arg, uint64_t chunk),
        void *arg, struct sheaf_digest *ret_digest)
{
        struct sheaf_hasher *hasher;
        int rc = sheaf_hasher_new(&hasher);

        if (rc)
                return rc;
        /* Entry order is determined by the names alone, so parent indexes
         * say the paths. */
        for (uint32_t i = 0; i < listing->entry_count; i++) {
                const struct sheaf_listing_entry *e = &listing->entries[i];
                size_t len;
                const char *text = sheaf_listing_name(listing, i, &len);

                if (e->flags & SHEAF_LISTING_UNREADABLE) {
                        sheaf_hasher_free(hasher);
                        return -EACCES;
                }
                feed_u64(hasher, e->parent);
                feed_u64(hasher, e->mode);
                feed_u64(hasher, len);
                sheaf_hasher_feed(hasher, text, len);
                if (S_ISLNK(e->mode)) {
                        text = sheaf_listing_target(listing, i, &len);
                        feed_u64(hasher, len);
                        sheaf_hasher_feed(hasher, text, len);
                }
                if (!S_ISREG(e->mode))
                        continue;
                feed_u64(hasher, e->size_bytes);
                for (uint64_t c = 0; c < sheaf_chunk_count(e->size_bytes);
                        c++) {
                        const struct sheaf_digest *digest =
                                digest_of(arg, e->first_chunk + c);

                        if (!sheaf_digest_known(digest)) {
                                sheaf_hasher_free(hasher);
                                return -ENODATA;
                        }
                        sheaf_hasher_feed(
                                hasher, digest->bytes, sizeof(digest->bytes));
                }
        }
        sheaf_hasher_finish(hasher, ret_digest);
        sheaf_hasher_free(hasher);
        return 0;
}
