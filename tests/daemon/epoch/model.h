/* SPDX-License-Identifier: Apache-2.0 */
/* A cache of which any sample may come and go at any moment, and a cohort over
 * it. One for each process. */
#ifndef SHEAF_TESTS_DAEMON_EPOCH_MODEL_H
#define SHEAF_TESTS_DAEMON_EPOCH_MODEL_H

#include "daemon/epoch/order.h"

#define MODEL_SAMPLES 1003

struct model_cache {
        bool here[MODEL_SAMPLES];
        uint64_t random;
};

extern struct model_cache cache;

/* The cohort's question: is @sample in the cache? */
bool model_here(void *arg, uint32_t sample);
/* A cohort of up to MODEL_SAMPLES over the cache; asserts that there is one.
 * sheaf_cohort_free frees it. */
struct sheaf_cohort *model_cohort(uint32_t samples);

#endif
