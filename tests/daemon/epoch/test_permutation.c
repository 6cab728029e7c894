/* SPDX-License-Identifier: Apache-2.0 */
/* Keyed permutations: bijective at every size, inverse, uniform, the same in
 * every release. */
#include "proto/permutation.h"

#include <criterion/criterion.h>
#include <math.h>

Test(permutation, is_a_bijection_at_every_size)
{
        static const uint32_t large[] = { 255, 256, 257, 1000, 4096, 65535,
                65536, 65537, 100003 };
        struct sheaf_permutation p;

        for (uint32_t i = 1; i < 130 + SHEAF_ARRAY_LEN(large); i++) {
                uint32_t n = i < 130 ? i : large[i - 130];
                uint8_t *seen = calloc(n, 1);

                sheaf_permutation_init(&p, n, 7, i);
                for (uint32_t x = 0; x < n; x++) {
                        uint32_t y = sheaf_permutation_at(&p, x);

                        cr_assert_lt(y, n);
                        cr_assert(!seen[y], "n %u: %u twice", n, y);
                        seen[y] = 1;
                        cr_assert_eq(sheaf_permutation_find(&p, y), x);
                }
                free(seen);
        }
}

Test(permutation, the_largest_has_no_overflow)
{
        const uint32_t n = UINT32_C(1) << 31;
        struct sheaf_permutation p;

        sheaf_permutation_init(&p, n, 1, 2);
        for (uint32_t x = 0; x < 100000; x++) {
                uint32_t at = n - 1 - x * 20011;
                uint32_t y = sheaf_permutation_at(&p, at);

                cr_assert_lt(y, n);
                cr_assert_eq(sheaf_permutation_find(&p, y), at);
        }
}

/* Each element at each position equally often, over many seeds: chi square of
 * n * n cells. */
static double chi2_z(uint32_t n, uint32_t seeds)
{
        uint32_t *count = calloc((size_t)n * n, sizeof(*count));
        double expected = (double)seeds / n, sum = 0;
        double freedom = (double)(n - 1) * (n - 1);
        struct sheaf_permutation p;

        for (uint32_t s = 0; s < seeds; s++) {
                sheaf_permutation_init(&p, n, s, 1);
                for (uint32_t x = 0; x < n; x++)
                        count[(size_t)x * n + sheaf_permutation_at(&p, x)]++;
        }
        for (size_t i = 0; i < (size_t)n * n; i++) {
                double off = count[i] - expected;

                sum += off * off / expected;
        }
        free(count);
        return (sum - freedom) / sqrt(2 * freedom);
}

Test(permutation, every_position_is_equally_likely)
{
        static const uint32_t sizes[] = { 2, 3, 5, 8, 10, 16, 33, 100, 257 };

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(sizes); i++) {
                double z = chi2_z(sizes[i], 4000);

                cr_assert_lt(z, 5, "n %u: z %.1f", sizes[i], z);
        }
}

/* Neighbours, and permutations of neighbouring seeds, have no correlation. */
Test(permutation, neighbours_are_independent)
{
        const uint32_t n = 100000;
        double middle = (n - 1) / 2.0, next = 0, seeds = 0, streams = 0;
        double scale = ((double)n * n - 1) / 12 * n;
        struct sheaf_permutation a, b, c;

        sheaf_permutation_init(&a, n, 5, 0);
        sheaf_permutation_init(&b, n, 6, 0);
        sheaf_permutation_init(&c, n, 5, 1);
        for (uint32_t x = 0; x < n; x++) {
                double at = sheaf_permutation_at(&a, x) - middle;

                next += at * (sheaf_permutation_at(&a, (x + 1) % n) - middle);
                seeds += at * (sheaf_permutation_at(&b, x) - middle);
                streams += at * (sheaf_permutation_at(&c, x) - middle);
        }
        /* five standard deviations of 1 / sqrt(n) */
        cr_assert_lt(fabs(next / scale), .016);
        cr_assert_lt(fabs(seeds / scale), .016);
        cr_assert_lt(fabs(streams / scale), .016);
}

/* Journals and resumed jobs rely on these numbers. */
Test(permutation, is_the_same_in_every_release)
{
        static const uint32_t golden[] = { 644, 184, 995, 974, 289, 85, 911,
                134, 216, 719, 207, 355 };
        struct sheaf_permutation p;

        sheaf_permutation_init(&p, 1000, 42, 3);
        for (uint32_t x = 0; x < SHEAF_ARRAY_LEN(golden); x++)
                cr_assert_eq(sheaf_permutation_at(&p, x), golden[x],
                        "position %u: %u", x, sheaf_permutation_at(&p, x));
}
