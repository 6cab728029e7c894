/* SPDX-License-Identifier: Apache-2.0 */
/* A mount's source over a plain directory: what libsheaf and the daemon do,
 * without either. Counters are in memory that a forked server shares. */
#ifndef SHEAF_TESTS_FAKE_DATASET_H
#define SHEAF_TESTS_FAKE_DATASET_H

#include "cachefs/source.h"

/* Shared between the test and the process that serves. */
struct fake_shared {
        _Atomic uint64_t op[SHEAF_METER_OPS];
        _Atomic uint64_t reads_waited; /* reads with wait */
        _Atomic uint64_t views_out;    /* not released yet */
        _Atomic uint64_t plain_open;   /* leases out */
        _Atomic int fail_rc;           /* each read fails so, if not 0 */
        _Atomic int delay_ms;          /* of each waiting read */
        _Atomic int never_memory;      /* reads without wait: -EAGAIN */
        _Atomic int short_view;        /* views lack their last byte */
        _Atomic int no_plain;
};

struct fake_dataset {
        char *root;
        struct sheaf_source source;
        struct sheaf_listing listing;
        struct sheaf_dataset_info info;
        struct fake_shared *shared;
        void *block;
        size_t block_bytes;
        int listing_fd;
};

/* Lists @root. Aborts on failure: it is a test's. */
void fake_dataset_new(const char *root, struct fake_dataset *ret_dataset);
void fake_dataset_free(struct fake_dataset *dataset);

#endif
