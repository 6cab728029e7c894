/* SPDX-License-Identifier: Apache-2.0 */
/* Takes a dataset in batches of 64 files in a shuffled order, asking for the
 * next batch while this one is worked on; reports files that fail and goes
 * on.
 *
 *   cc batch.c $(pkg-config --cflags --libs sheaf) -o batch
 *   ./batch NAME */
#include <inttypes.h>
#include <sheaf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 64

static void shuffle(uint64_t *order, uint64_t n)
{
        for (uint64_t i = n; i > 1; i--) {
                uint64_t j = (uint64_t)rand() % i;
                uint64_t other = order[i - 1];

                order[i - 1] = order[j];
                order[j] = other;
        }
}

static uint64_t min(uint64_t a, uint64_t b)
{
        return a < b ? a : b;
}

/* Returns the bytes of the batch; counts failures in @failed. */
static uint64_t one_batch(struct sheaf_dataset *dataset, const uint64_t *order,
        size_t n, uint64_t *failed)
{
        struct sheaf_view views[BATCH];
        uint64_t bytes = 0;
        int rc[BATCH];

        if (sheaf_view_batch(dataset, order, n, views, rc) < 0) {
                *failed += n;
                return 0;
        }
        for (size_t i = 0; i < n; i++) {
                if (rc[i]) {
                        fprintf(stderr, "file %" PRIu64 ": %s\n", order[i],
                                strerror(-rc[i]));
                        (*failed)++;
                        continue;
                }
                bytes += views[i].len_bytes;
                sheaf_view_release(&views[i]);
        }
        return bytes;
}

static int run(struct sheaf_dataset *dataset)
{
        uint64_t n = sheaf_dataset_files(dataset), bytes = 0, failed = 0;
        uint64_t *order = calloc(n ? n : 1, sizeof(*order));

        if (!order)
                return 1;
        for (uint64_t i = 0; i < n; i++)
                order[i] = i;
        shuffle(order, n);
        for (uint64_t i = 0; i < n; i += BATCH) {
                uint64_t next = i + BATCH;

                /* A hint: that it is not taken now does no harm. */
                if (next < n)
                        sheaf_prefetch(
                                dataset, order + next, min(BATCH, n - next));
                bytes += one_batch(
                        dataset, order + i, min(BATCH, n - i), &failed);
        }
        printf("%" PRIu64 " files, %" PRIu64 " bytes, %" PRIu64 " failed\n", n,
                bytes, failed);
        free(order);
        return failed != 0;
}

int main(int argc, char **argv)
{
        struct sheaf_session *session = NULL;
        struct sheaf_dataset *dataset = NULL;
        int rc = 1;

        if (argc != 2) {
                fprintf(stderr, "usage: batch NAME\n");
                return 2;
        }
        if (sheaf_session_new(NULL, &session) ||
                sheaf_dataset_open(session, argv[1], &dataset))
                fprintf(stderr, "batch: %s\n", sheaf_last_error());
        else
                rc = run(dataset);
        sheaf_dataset_close(dataset);
        sheaf_session_free(session);
        return rc;
}
