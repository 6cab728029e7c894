/* SPDX-License-Identifier: Apache-2.0 */
/* Is an order uniform? Statistics over the epochs of one job: of samples that
 * were cached when the epoch began, from epoch to epoch, and of each sample
 * alone. One thread. */
#ifndef SHEAF_TOOLS_SIM_MEASURE_H
#define SHEAF_TOOLS_SIM_MEASURE_H

#include "proto/base.h"

struct sim_measure;

/* @batch: of the co-occurrence; the first @warm epochs are left out. */
SHEAF_MUST_CHECK int sim_measure_new(uint32_t samples, uint32_t batch, int warm,
        struct sim_measure **ret_measure);
void sim_measure_free(struct sim_measure *measure);

/* The shape of struct sim_config's epoch_done; @measure as its argument. */
void sim_measure_epoch(
        void *measure, int epoch, const uint32_t *where, const uint8_t *cached);

struct sim_bias {
        int epochs; /* that were counted */
        /* Mean position (0 .. 1; .5 is fair) of samples that were cached when
         * the epoch began, and the Kolmogorov-Smirnov distance of their
         * positions from uniform, times the root of their number (.87 is the
         * mean of fair orders, above 1.6 one in a hundred). */
        double cached_mean, cached_ks;
        /* Rank correlation with the epoch before, and the one before that. */
        double rho, rho2;
        /* Pairs that shared a batch in this epoch and the last, over what
         * chance would give. */
        double together;
        /* Pairs that followed one another in this epoch and in the last, over
         * chance: chunks that are shuffled as a whole show here. */
        double neighbours;
        /* Chi square of sample by tenth of the epoch, as a z score; 0 below
         * 50 epochs. The same of those epochs alone in which the sample was
         * cached when they began, and of the others: both may be biased while
         * their sum is not. */
        double chi2_z, chi2_cached_z, chi2_other_z;
};
void sim_measure_bias(
        const struct sim_measure *measure, struct sim_bias *ret_bias);

#endif
