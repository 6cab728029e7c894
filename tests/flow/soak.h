/* SPDX-License-Identifier: Apache-2.0 */
/* A loop that is short in a test and long by hand: tools/soak runs the same
 * test with more rounds. In the environment: SOAK_ROUNDS or SOAK_MINUTES say
 * how long (minutes win), SOAK_SEED which run it is. The long form prints a
 * line of progress every ten seconds; both print a summary. */
#ifndef SHEAF_TESTS_FLOW_SOAK_H
#define SHEAF_TESTS_FLOW_SOAK_H

#include "proto/base.h"

struct soak {
        const char *name, *unit; /* "storm", "kills" */
        uint64_t rounds;         /* 0: until the time is over */
        double seconds;          /* 0: until the rounds are done */
        uint64_t done;
        uint32_t seed, rng; /* rng: soak_pick's; a child sets its own */
        double start, told; /* monotonic seconds */
        bool is_long;
};

/* @rounds and @seed unless the environment says other ones. Prints the seed.
 * Not for several threads. */
void soak_begin(struct soak *soak, const char *name, const char *unit,
        uint64_t rounds, uint32_t seed);
/* Whether another round is due; counts it. */
bool soak_next(struct soak *soak);
/* A number in [0, @below), the same in each run of a seed. */
uint32_t soak_pick(struct soak *soak, uint32_t below);
/* "SOAK: name: 5000 kills in 812 s (6.2/s), seed 1: " and the text. */
SHEAF_PRINTF(2, 3) void soak_end(struct soak *soak, const char *format, ...);

#endif
