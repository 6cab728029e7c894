/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/proto/make_listing.h"

#include <stdio.h>

#define MUST(x)                                                                \
        do {                                                                   \
                if (!(x)) {                                                    \
                        fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__,     \
                                #x);                                           \
                        abort();                                               \
                }                                                              \
        } while (0)

void block_free(struct block *block)
{
        free(block->data);
        block->data = NULL;
}

struct sheaf_listing_item make_item(
        uint32_t mode, const char *name, uint64_t ino, uint64_t size_bytes)
{
        return (struct sheaf_listing_item){ .name = name,
                .name_len_bytes = strlen(name),
                .mode = mode,
                .origin_ino = ino,
                .size_bytes = size_bytes,
                .nlink = 1,
                .mtime_sec = 1700000000,
                .mtime_nsec = 123456789,
                .ctime_sec = 1700000001,
                .ctime_nsec = 987654321,
                .uid = 1000,
                .gid = 100 };
}

void block_write(struct sheaf_listing_builder *builder, uint64_t serial,
        struct block *ret_block)
{
        static const uint8_t uuid[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,
                12, 13, 14, 15 };
        int fd = memfd_create("listing", MFD_CLOEXEC);
        off_t len;

        MUST(!sheaf_listing_builder_write(
                builder, fd, serial, uuid, UINT64_C(1700000002000000000)));
        sheaf_listing_builder_free(builder);
        len = lseek(fd, 0, SEEK_END);
        ret_block->len_bytes = (size_t)len;
        ret_block->data = malloc((size_t)len);
        MUST(pread(fd, ret_block->data, (size_t)len, 0) == len);
        close(fd);
        MUST(!sheaf_listing_open(
                ret_block->data, ret_block->len_bytes, true, &ret_block->view));
}

void make_golden(struct block *ret_block)
{
        struct sheaf_listing_builder *b;
        struct sheaf_listing_item root = make_item(S_IFDIR | 0755, "", 2, 0);
        struct sheaf_listing_item top[3] = {
                make_item(S_IFLNK | 0777, "l", 12, 1),
                make_item(S_IFDIR | 0711, "d", 11, 0),
                make_item(S_IFREG | 0644, "a", 10, 5 << 20),
        };
        struct sheaf_listing_item below[2] = {
                make_item(S_IFREG | 0600, "c", 13, 0),
                make_item(S_IFREG | 0644, "b", 10, 5 << 20),
        };

        top[0].target = "a";
        top[0].target_len_bytes = 1;
        top[2].nlink = below[1].nlink = 2;
        below[0].uid = 0;
        below[0].flags = SHEAF_LISTING_RECENT;
        MUST(!sheaf_listing_builder_new(&root, &b));
        MUST(!sheaf_listing_builder_add_dir(b, 0, top, 3));
        MUST(sheaf_listing_builder_next_dir(b, 0) == 2);
        MUST(!sheaf_listing_builder_add_dir(b, 2, below, 2));
        MUST(sheaf_listing_builder_next_dir(b, 2) == 0);
        block_write(b, 7, ret_block);
}

static uint64_t random_next(uint64_t *state)
{
        uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

        z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
        return z ^ z >> 31;
}

/* A unique name with odd bytes, of 1 to 255 bytes. */
static size_t random_name(uint64_t *state, uint32_t number, char out[256])
{
        static const char odd[] = " \n\t\\\"'*%-~\x01\x7f\x80\xfe\xff";
        size_t at = 0, len = random_next(state) % 8;

        if (random_next(state) % 50 == 0)
                len = 247;
        while (at < len) {
                uint64_t r = random_next(state);

                out[at++] = r % 4 ? (char)('a' + r % 26)
                                  : odd[r / 4 % (sizeof(odd) - 1)];
        }
        /* Base 36, so that eight bytes are always enough. */
        do {
                out[at++] = "0123456789abcdefghijklmnopqrstuvwxyz"[number % 36];
                number /= 36;
        } while (number && at < 255);
        return at;
}

#define DIR_MAX 40

static void random_item(uint64_t *state, uint32_t number, uint32_t change,
        char *name, struct sheaf_listing_item *item)
{
        uint64_t kind = random_next(state) % 100, size = random_next(state);
        size_t len = random_name(state, number, name);

        *item = make_item(S_IFREG | 0644, "", 1000 + number, 0);
        item->name = name;
        item->name_len_bytes = len;
        item->uid = (uint32_t)(random_next(state) % 3);
        if (kind < 20) {
                item->mode = S_IFDIR | 0755;
        } else if (kind < 25) {
                item->mode = S_IFLNK | 0777;
                item->target = name;
                item->target_len_bytes = len;
        } else {
                item->size_bytes = kind < 30   ? 0
                                   : kind < 90 ? size % 100000
                                               : size % (UINT64_C(20) << 20);
        }
        if (kind >= 95) { /* links among a few inodes */
                item->nlink = 3;
                item->origin_ino = 500 + size % 20;
                item->size_bytes = item->origin_ino * 100000;
        }
        /* Drawn in any case, so that the rest of the tree stays equal. */
        kind = random_next(state);
        if (change && kind % change == 0 && S_ISREG(item->mode))
                item->mtime_nsec++;
}

void make_random(uint64_t seed, uint32_t entries, uint32_t change,
        uint64_t serial, struct block *ret_block)
{
        static char names[DIR_MAX][256];
        struct sheaf_listing_item items[DIR_MAX];
        struct sheaf_listing_item root = make_item(S_IFDIR | 0755, "", 2, 0);
        struct sheaf_listing_builder *b;
        uint32_t dir = 0, number = 0;
        uint64_t state = seed;

        MUST(!sheaf_listing_builder_new(&root, &b));
        while (number < entries) {
                size_t count = 1 + random_next(&state) % DIR_MAX;

                for (size_t i = 0; i < count; i++)
                        random_item(
                                &state, number++, change, names[i], &items[i]);
                MUST(!sheaf_listing_builder_add_dir(b, dir, items, count));
                dir = sheaf_listing_builder_next_dir(b, dir);
                if (!dir)
                        break;
        }
        block_write(b, serial, ret_block);
}
