/* SPDX-License-Identifier: Apache-2.0 */
/* Reads every file of a dataset in place and prints how many bytes there
 * were, and where they came from.
 *
 *   cc read_all.c $(pkg-config --cflags --libs sheaf) -o read_all
 *   ./read_all NAME */
#include <inttypes.h>
#include <sheaf.h>
#include <stdio.h>

/* Adds up the bytes, as a stand-in for real work. */
static uint64_t sum_of(const struct sheaf_view *view)
{
        uint64_t sum = 0;

        for (size_t p = 0; p < view->piece_count; p++) {
                const uint8_t *bytes = view->pieces[p].iov_base;

                for (size_t i = 0; i < view->pieces[p].iov_len; i++)
                        sum += bytes[i];
        }
        return sum;
}

static int read_all(struct sheaf_dataset *dataset)
{
        uint64_t n = sheaf_dataset_files(dataset), bytes = 0, sum = 0;
        struct sheaf_stats stats;

        for (uint64_t i = 0; i < n; i++) {
                struct sheaf_view view;

                if (sheaf_view_file(dataset, i, &view))
                        return -1;
                bytes += view.len_bytes;
                sum += sum_of(&view);
                sheaf_view_release(&view);
        }
        sheaf_stats(dataset, &stats);
        printf("%" PRIu64 " files, %" PRIu64 " bytes, sum %" PRIu64 "\n", n,
                bytes, sum);
        printf("%" PRIu64 " chunks from memory, %" PRIu64 " fetched\n",
                stats.hits, stats.misses);
        return 0;
}

int main(int argc, char **argv)
{
        struct sheaf_session *session = NULL;
        struct sheaf_dataset *dataset = NULL;
        int rc = -1;

        if (argc != 2) {
                fprintf(stderr, "usage: read_all NAME\n");
                return 2;
        }
        if (sheaf_session_new(NULL, &session) == 0 &&
                sheaf_dataset_open(session, argv[1], &dataset) == 0)
                rc = read_all(dataset);
        if (rc)
                fprintf(stderr, "read_all: %s\n", sheaf_last_error());
        sheaf_dataset_close(dataset);
        sheaf_session_free(session);
        return rc ? 1 : 0;
}
