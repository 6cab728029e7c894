/* SPDX-License-Identifier: Apache-2.0 */
/* Subsets (subset.h).
 *
 *  1 before[b] counts the members below file 512 b, so a member is found by
 *    halving over blocks, then within eight words
 *  2 what arrives in a descriptor is read only if it is memory that its sender
 *    can neither change nor cut: no read waits for a file system of theirs */
#include "proto/subset.h"
#include "proto/io.h"
#include "proto/memfd.h"

#include <fcntl.h>
#include <sys/stat.h>

#define BLOCK       512
#define BLOCK_WORDS (BLOCK / 64)

static size_t words_of(uint32_t files)
{
        return ((size_t)files + BLOCK - 1) / BLOCK * BLOCK_WORDS;
}

static void fill(struct sheaf_subset *subset, const uint8_t *bitmap)
{
        for (size_t i = 0; i < sheaf_subset_bytes(subset->files); i++)
                subset->bits[i / 8] |= (uint64_t)(bitmap ? bitmap[i] : 0xff)
                                       << (i % 8 * 8);
        if (!bitmap && subset->files % 64)
                subset->bits[subset->files / 64] &=
                        (UINT64_C(1) << subset->files % 64) - 1;
}

int sheaf_subset_new(
        const uint8_t *bitmap, uint32_t files, struct sheaf_subset **ret_subset)
{
        struct sheaf_subset *subset;
        size_t words = words_of(files);

        if (bitmap && files % 8 && bitmap[files / 8] >> files % 8)
                return -EINVAL;
        subset = sheaf_new(struct sheaf_subset, 1);
        if (!subset)
                return -ENOMEM;
        subset->files = files;
        subset->bits = sheaf_new(uint64_t, words + 1);
        subset->before = sheaf_new(uint32_t, words / BLOCK_WORDS + 1);
        if (!subset->bits || !subset->before) {
                sheaf_subset_free(subset);
                return -ENOMEM;
        }
        fill(subset, bitmap);
        for (size_t w = 0; w < words; w++) {
                if (w % BLOCK_WORDS == 0)
                        subset->before[w / BLOCK_WORDS] = subset->count;
                subset->count +=
                        (uint32_t)__builtin_popcountll(subset->bits[w]);
        }
        if (!subset->count) {
                sheaf_subset_free(subset);
                return -EINVAL;
        }
        *ret_subset = subset;
        return 0;
}

void sheaf_subset_free(struct sheaf_subset *subset)
{
        if (!subset)
                return;
        free(subset->bits);
        free(subset->before);
        free(subset);
}

uint32_t sheaf_subset_member(const struct sheaf_subset *subset, uint32_t n)
{
        size_t low = 0, high = words_of(subset->files) / BLOCK_WORDS;
        uint64_t word;
        size_t w;

        while (high - low > 1) {
                size_t middle = (low + high) / 2;

                if (subset->before[middle] <= n)
                        low = middle;
                else
                        high = middle;
        }
        n -= subset->before[low];
        for (w = low * BLOCK_WORDS;; w++) {
                uint32_t here = (uint32_t)__builtin_popcountll(subset->bits[w]);

                if (n < here)
                        break;
                n -= here;
        }
        for (word = subset->bits[w]; n; n--)
                word &= word - 1;
        return (uint32_t)(w * 64) + (uint32_t)__builtin_ctzll(word);
}

uint32_t sheaf_subset_rank(const struct sheaf_subset *subset, uint32_t file)
{
        uint32_t rank = subset->before[file / BLOCK];
        size_t w = file / BLOCK * BLOCK_WORDS;

        for (; w < file / 64; w++)
                rank += (uint32_t)__builtin_popcountll(subset->bits[w]);
        return rank +
               (uint32_t)__builtin_popcountll(
                       subset->bits[w] & ((UINT64_C(1) << file % 64) - 1));
}

uint64_t sheaf_bits_count(const uint8_t *bytes, size_t len)
{
        uint64_t count = 0;

        for (size_t i = 0; i < len; i++)
                count += (uint64_t)__builtin_popcount(bytes[i]);
        return count;
}

int sheaf_sealed_new(const void *bytes, size_t len)
{
        sheaf_autofd int fd = sheaf_memfd("sheaf-sealed", MFD_ALLOW_SEALING);
        int rc;

        if (fd < 0)
                return fd;
        rc = sheaf_write_all(fd, bytes, len);
        if (rc)
                return rc;
        if (fcntl(fd, F_ADD_SEALS,
                    F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE))
                return -errno;
        return sheaf_steal_fd(&fd);
}

int sheaf_sealed_read(int fd, void *ret_bytes, size_t len)
{
        int seals = fcntl(fd, F_GET_SEALS);
        struct stat st;

        if (seals < 0 || !(seals & F_SEAL_SHRINK) || !(seals & F_SEAL_WRITE) ||
                fstat(fd, &st) || (uint64_t)st.st_size != len)
                return -EINVAL;
        return sheaf_read_at(fd, ret_bytes, len, 0);
}
