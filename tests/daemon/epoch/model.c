/* SPDX-License-Identifier: Apache-2.0 */
/* The cache of tests of orders (model.h). */
#include "tests/daemon/epoch/model.h"

#include <criterion/criterion.h>

struct model_cache cache;

bool model_here(void *arg, uint32_t sample)
{
        (void)arg;
        return cache.here[sample];
}

struct sheaf_cohort *model_cohort(uint32_t samples)
{
        struct sheaf_cohort_config config = {
                .samples = samples, .here = model_here, .seed = 11
        };
        struct sheaf_cohort *cohort = NULL;

        cr_assert_eq(sheaf_cohort_new(&config, &cohort), 0);
        return cohort;
}
