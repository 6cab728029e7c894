/* SPDX-License-Identifier: Apache-2.0 */
/* Keyed permutations of 0 .. n-1 that need no array: an alternating
 * unbalanced Feistel network over the next power of two, walked until it
 * falls inside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
 * CT-RSA 2002). Not secret: the key is a seed.
 *
 * Threads: a permutation is constant once made. */
#ifndef SHEAF_PROTO_PERMUTATION_H
#define SHEAF_PROTO_PERMUTATION_H

#include "proto/base.h"

#define SHEAF_PERMUTATION_ROUNDS 8

struct sheaf_permutation {
        uint64_t key[SHEAF_PERMUTATION_ROUNDS];
        uint64_t seed, stream;
        uint32_t n;
        uint32_t low_bits, high_bits; /* halves of a position */
};

/* @n: 1 .. 2^31. Equal (@n, @seed, @stream) give equal permutations on every
 * machine and in every release: journals rely on it. */
void sheaf_permutation_init(struct sheaf_permutation *permutation, uint32_t n,
        uint64_t seed, uint64_t stream);

/* Element at @position < n, and the position of @element < n. Below 100 ns. */
uint32_t sheaf_permutation_at(
        const struct sheaf_permutation *permutation, uint32_t position);
uint32_t sheaf_permutation_find(
        const struct sheaf_permutation *permutation, uint32_t element);

/* One step of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): the next of a
 * stream of 64-bit numbers whose state is @state. */
static inline uint64_t sheaf_random(uint64_t *state)
{
        uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        return z ^ (z >> 31);
}

/* Uniform in 0 .. @n-1 but for a bias below n / 2^32. */
static inline uint32_t sheaf_random_below(uint64_t *state, uint32_t n)
{
        return (uint32_t)(((sheaf_random(state) >> 32) * n) >> 32);
}

#endif
