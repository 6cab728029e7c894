/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of an order (measure.h). */
#include "tools/sim/measure.h"

#include <math.h>

#define TENTHS          10
#define CHI2_EPOCHS_MIN 50

struct sim_measure {
        uint32_t samples, batch;
        int warm;
        uint32_t *last, *before; /* slots in the last two epochs */
        uint32_t *tenths;        /* [cached][sample][TENTHS] */
        uint32_t *at_slot, *in_batch, *counts;
        int seen, epochs;
        double mean, ks, rho, rho2, together, neighbours;
        int means, rhos, rho2s;
};

int sim_measure_new(uint32_t samples, uint32_t batch, int warm,
        struct sim_measure **ret_measure)
{
        struct sim_measure *m = sheaf_new(struct sim_measure, 1);

        if (!m)
                return -ENOMEM;
        m->samples = samples;
        m->batch = batch;
        m->warm = warm;
        m->last = sheaf_new(uint32_t, samples);
        m->before = sheaf_new(uint32_t, samples);
        m->tenths = sheaf_new(uint32_t, 2 * (size_t)samples * TENTHS);
        m->at_slot = sheaf_new(uint32_t, samples);
        m->in_batch = sheaf_new(uint32_t, samples);
        m->counts = sheaf_new(uint32_t, samples / batch + 1);
        if (!m->last || !m->before || !m->tenths || !m->at_slot ||
                !m->in_batch || !m->counts) {
                sim_measure_free(m);
                return -ENOMEM;
        }
        *ret_measure = m;
        return 0;
}

void sim_measure_free(struct sim_measure *measure)
{
        if (!measure)
                return;
        free(measure->last);
        free(measure->before);
        free(measure->tenths);
        free(measure->at_slot);
        free(measure->in_batch);
        free(measure->counts);
        free(measure);
}

static void invert(struct sim_measure *m, const uint32_t *where)
{
        for (uint32_t x = 0; x < m->samples; x++)
                m->at_slot[where[x]] = x;
}

/* Positions of cached samples, in order of their slots. */
static void positions(struct sim_measure *m, const uint8_t *cached)
{
        double n = m->samples, sum = 0, distance = 0;
        uint32_t count = 0, i = 0;

        for (uint32_t x = 0; x < m->samples; x++)
                count += cached[x] != 0;
        for (uint32_t slot = 0; slot < m->samples && count; slot++) {
                double position = (slot + .5) / n;

                if (!cached[m->at_slot[slot]])
                        continue;
                sum += position;
                distance = fmax(distance, fabs((i + .5) / count - position));
                i++;
        }
        if (!count)
                return;
        m->mean += sum / count;
        m->ks += distance * sqrt(count);
        m->means++;
}

static double correlation(
        const struct sim_measure *m, const uint32_t *a, const uint32_t *b)
{
        double n = m->samples, middle = (n - 1) / 2, sum = 0;

        for (uint32_t x = 0; x < m->samples; x++)
                sum += (a[x] - middle) * (b[x] - middle);
        return sum / n / ((n * n - 1) / 12);
}

/* Pairs that share a batch now, and did in the last epoch. */
static double co_occurrence(struct sim_measure *m)
{
        double n = m->samples, pairs = 0, size = m->batch;

        for (uint32_t slot = 0; slot < m->samples; slot++)
                m->in_batch[slot] = m->last[m->at_slot[slot]] / m->batch;
        for (uint32_t first = 0; first < m->samples; first += m->batch) {
                uint32_t end = SHEAF_MIN(first + m->batch, m->samples);

                for (uint32_t i = first; i < end; i++)
                        pairs += m->counts[m->in_batch[i]]++;
                for (uint32_t i = first; i < end; i++)
                        m->counts[m->in_batch[i]] = 0;
        }
        return pairs / (n * (size - 1) / 2 * (size - 1) / (n - 1));
}

static double follow_again(const struct sim_measure *m)
{
        double n = m->samples;
        uint32_t pairs = 0;

        for (uint32_t slot = 1; slot < m->samples; slot++) {
                uint32_t a = m->last[m->at_slot[slot - 1]];
                uint32_t b = m->last[m->at_slot[slot]];

                pairs += a + 1 == b || b + 1 == a;
        }
        return pairs / ((n - 1) * 2 / n);
}

static uint32_t *tenths_of(
        const struct sim_measure *m, bool cached, uint32_t sample)
{
        return m->tenths + ((size_t)cached * m->samples + sample) * TENTHS;
}

void sim_measure_epoch(
        void *measure, int epoch, const uint32_t *where, const uint8_t *cached)
{
        struct sim_measure *m = measure;
        uint32_t *swap = m->before;

        if (epoch > m->warm) {
                invert(m, where);
                positions(m, cached);
                m->epochs++;
                for (uint32_t x = 0; x < m->samples; x++)
                        tenths_of(m, cached[x],
                                x)[(uint64_t)where[x] * TENTHS / m->samples]++;
                if (m->seen >= 1) {
                        m->rho += correlation(m, where, m->last);
                        m->together += co_occurrence(m);
                        m->neighbours += follow_again(m);
                        m->rhos++;
                }
                if (m->seen >= 2) {
                        m->rho2 += correlation(m, where, m->before);
                        m->rho2s++;
                }
        }
        m->before = m->last;
        m->last = swap;
        memcpy(m->last, where, m->samples * sizeof(*where));
        m->seen++;
}

/* Over the samples, each by its own number of epochs: of those that count,
 * cached ones, others or (@both) all. */
static double chi2_z(const struct sim_measure *m, bool cached, bool both)
{
        double sum = 0, freedom = 0, variance = 0;

        if (m->epochs < CHI2_EPOCHS_MIN)
                return 0;
        for (uint32_t x = 0; x < m->samples; x++) {
                const uint32_t *at = tenths_of(m, cached, x);
                const uint32_t *other = tenths_of(m, !cached, x);
                double epochs = 0;

                for (int i = 0; i < TENTHS; i++)
                        epochs += at[i] + (both ? other[i] : 0);
                if (epochs < 1)
                        continue;
                for (int i = 0; i < TENTHS; i++) {
                        double expected = epochs / TENTHS;
                        double off = at[i] + (both ? other[i] : 0) - expected;

                        sum += off * off / expected;
                }
                freedom += TENTHS - 1;
                variance += 2 * (TENTHS - 1) * (1 - 1 / epochs);
        }
        return variance > 0 ? (sum - freedom) / sqrt(variance) : 0;
}

void sim_measure_bias(
        const struct sim_measure *measure, struct sim_bias *ret_bias)
{
        const struct sim_measure *m = measure;

        *ret_bias = (struct sim_bias){
                .epochs = m->epochs,
                .cached_mean = m->means ? m->mean / m->means : 0,
                .cached_ks = m->means ? m->ks / m->means : 0,
                .rho = m->rhos ? m->rho / m->rhos : 0,
                .rho2 = m->rho2s ? m->rho2 / m->rho2s : 0,
                .together = m->rhos ? m->together / m->rhos : 0,
                .neighbours = m->rhos ? m->neighbours / m->rhos : 0,
                .chi2_z = chi2_z(m, true, true),
                .chi2_cached_z = chi2_z(m, true, false),
                .chi2_other_z = chi2_z(m, false, false),
        };
}
