/* SPDX-License-Identifier: Apache-2.0 */
/* Keyed permutations (permutation.h).
 *
 *  1 each round changes one half by a function of the other, so each can be
 *    undone, and the whole is a bijection of 2^bits positions
 *  2 walking on from outside 0 .. n-1 ends inside, since the cycle began
 *    there; 2^bits < 2n, so two steps are the most to expect */
#include "proto/permutation.h"

#include <assert.h>

/* Few positions have few permutations of this kind: small ones are walked
 * out of a larger domain. */
#define BITS_LEAST 8

void sheaf_permutation_init(struct sheaf_permutation *permutation, uint32_t n,
        uint64_t seed, uint64_t stream)
{
        uint64_t state = seed;
        uint32_t bits = BITS_LEAST;

        assert(n && n <= UINT32_C(1) << 31);
        state = sheaf_random(&state) ^ stream;
        for (int i = 0; i < SHEAF_PERMUTATION_ROUNDS; i++)
                permutation->key[i] = sheaf_random(&state);
        while (n > UINT64_C(1) << bits)
                bits++;
        permutation->seed = seed;
        permutation->stream = stream;
        permutation->n = n;
        permutation->low_bits = bits / 2;
        permutation->high_bits = bits - bits / 2;
}

static uint32_t mix(uint32_t half, uint64_t key)
{
        uint64_t h = (half ^ key) * UINT64_C(0xff51afd7ed558ccd);

        h = (h ^ (h >> 33)) * UINT64_C(0xc4ceb9fe1a85ec53);
        return (uint32_t)(h >> 32);
}

static uint32_t step(const struct sheaf_permutation *p, uint32_t x, int round)
{
        uint32_t low_mask = (UINT32_C(1) << p->low_bits) - 1;
        uint32_t high_mask = (UINT32_C(1) << p->high_bits) - 1;
        uint32_t low = x & low_mask, high = x >> p->low_bits;

        if (round & 1)
                high ^= mix(low, p->key[round]) & high_mask;
        else
                low ^= mix(high, p->key[round]) & low_mask;
        return high << p->low_bits | low;
}

uint32_t sheaf_permutation_at(
        const struct sheaf_permutation *permutation, uint32_t position)
{
        uint32_t x = position;

        assert(position < permutation->n);
        do {
                for (int i = 0; i < SHEAF_PERMUTATION_ROUNDS; i++)
                        x = step(permutation, x, i);
        } while (x >= permutation->n);
        return x;
}

uint32_t sheaf_permutation_find(
        const struct sheaf_permutation *permutation, uint32_t element)
{
        uint32_t x = element;

        assert(element < permutation->n);
        do {
                for (int i = SHEAF_PERMUTATION_ROUNDS - 1; i >= 0; i--)
                        x = step(permutation, x, i);
        } while (x >= permutation->n);
        return x;
}
