/* SPDX-License-Identifier: Apache-2.0 */
/* What files at the origin are, from their stamps alone (cut_check.h). */
#include "tests/flow/cut_check.h"
#include "tests/flow/harness.h"

#include <criterion/criterion.h>

void cut_truth_add(struct cut_truth *truth, uint32_t id, uint64_t size_bytes)
{
        static uint8_t bytes[SHEAF_CHUNK_BYTES_MAX];
        uint64_t chunks = sheaf_chunk_count(size_bytes);
        struct cut_file *file;

        if (truth->count == truth->cap) {
                truth->cap = truth->cap ? 2 * truth->cap : 1024;
                truth->files = realloc(
                        truth->files, truth->cap * sizeof(*truth->files));
                cr_assert(truth->files);
        }
        file = &truth->files[truth->count++];
        *file = (struct cut_file){ .id = id, .size_bytes = size_bytes };
        file->digests = sheaf_new(struct sheaf_digest, chunks + 1);
        for (uint64_t i = 0; i < chunks; i++) {
                uint32_t len = sheaf_chunk_len(size_bytes, i);

                flow_stamp_bytes(bytes, cut_stamp(id, size_bytes),
                        i * SHEAF_CHUNK_BYTES_MAX, len);
                sheaf_digest_of(bytes, len, &file->digests[i]);
        }
}

static int by_file(const void *a, const void *b)
{
        const struct cut_file *x = a, *y = b;

        if (x->id != y->id)
                return x->id < y->id ? -1 : 1;
        return x->size_bytes < y->size_bytes ? -1
                                             : x->size_bytes > y->size_bytes;
}

void cut_truth_clear(struct cut_truth *truth)
{
        for (size_t i = 0; i < truth->count; i++)
                free(truth->files[i].digests);
        free(truth->files);
        *truth = (struct cut_truth){ 0 };
}

void cut_truth_sort(struct cut_truth *truth)
{
        qsort(truth->files, truth->count, sizeof(*truth->files), by_file);
}

const struct cut_file *cut_truth_find(
        const struct cut_truth *truth, uint32_t id, uint64_t size_bytes)
{
        struct cut_file key = { .id = id, .size_bytes = size_bytes };

        return bsearch(&key, truth->files, truth->count, sizeof(key), by_file);
}
