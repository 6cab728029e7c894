/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds, progress and summary of long forms. */
#include "tests/flow/soak.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#define TELL_S 10.0

static double now(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

void soak_begin(struct soak *soak, const char *name, const char *unit,
        uint64_t rounds, uint32_t seed)
{
        const char *by_rounds = getenv("SOAK_ROUNDS");
        const char *by_minutes = getenv("SOAK_MINUTES");
        const char *by_seed = getenv("SOAK_SEED");

        memset(soak, 0, sizeof(*soak));
        soak->name = name;
        soak->unit = unit;
        soak->rounds = by_rounds ? strtoull(by_rounds, NULL, 10) : rounds;
        if (by_minutes) {
                soak->rounds = 0;
                soak->seconds = strtod(by_minutes, NULL) * 60;
        }
        soak->is_long = by_rounds || by_minutes;
        soak->seed = by_seed ? (uint32_t)strtoul(by_seed, NULL, 10) : seed;
        /* Small seeds would begin alike; zero would stay zero. */
        soak->rng = (soak->seed + 1) * 2654435761u;
        if (!soak->rng)
                soak->rng = 1;
        soak->start = soak->told = now();
        fprintf(stderr, "%s: seed %u\n", name, soak->seed);
}

uint32_t soak_pick(struct soak *soak, uint32_t below)
{
        soak->rng ^= soak->rng << 13;
        soak->rng ^= soak->rng >> 17;
        soak->rng ^= soak->rng << 5;
        return soak->rng % below;
}

static void tell(struct soak *soak)
{
        double spent = now() - soak->start, left;
        double rate = (double)soak->done / spent;
        unsigned int s;

        if (soak->seconds)
                left = soak->seconds - spent;
        else
                left = (double)(soak->rounds - soak->done) / rate;
        s = left > 0 ? (unsigned int)left : 0;
        fprintf(stderr, "%s: %llu", soak->name, (unsigned long long)soak->done);
        if (soak->rounds)
                fprintf(stderr, " of %llu", (unsigned long long)soak->rounds);
        fprintf(stderr, " %s, %.1f/s, ETA %u:%02u\n", soak->unit, rate, s / 60,
                s % 60);
}

bool soak_next(struct soak *soak)
{
        double t = now();

        if (soak->is_long && soak->done && t - soak->told >= TELL_S) {
                soak->told = t;
                tell(soak);
        }
        if (soak->seconds ? t - soak->start >= soak->seconds
                          : soak->done >= soak->rounds)
                return false;
        soak->done++;
        return true;
}

void soak_end(struct soak *soak, const char *format, ...)
{
        double spent = now() - soak->start;
        va_list args;

        fprintf(stderr,
                "SOAK: %s: %llu %s in %.0f s (%.1f/s), seed %u: ", soak->name,
                (unsigned long long)soak->done, soak->unit, spent,
                (double)soak->done / spent, soak->seed);
        va_start(args, format);
        vfprintf(stderr, format, args);
        va_end(args);
        fputc('\n', stderr);
}
