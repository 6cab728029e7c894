/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that are kept in step, through the library: who is held back, by what
 * the origin gives and what the cache has; how long, and how a wait ends. */
#include "tests/flow/harness.h"
#include "tests/flow/slots.h"

#include <criterion/criterion.h>

#define BIG     160 /* of 1 MiB: nearly all bytes */
#define SMALL   2400
#define FILES   (BIG + SMALL)
#define LEAD    300 /* slots by which one job is ahead */
#define ROUNDS  24
#define ROUND_S .015
/* Between slots of either job, as the daemon sees it. */
#define INTERVAL_S .3
/* Samples a second: what outruns any origin; what outruns a slow one. */
#define VERY_FAST 1e15
#define FAST      100

static struct sheaf_session *session;
static struct sheaf_dataset *dataset;
static struct sheaf_job *leads, *follows;
static uint32_t next_slot;
static int interruptions; /* asked for since; at 1 it says yes */

static int interrupted(void *arg)
{
        (void)arg;
        return interruptions && interruptions++ == 1;
}

static void begin(void)
{
        const struct sheaf_session_options options = { .deadline_ms = 8000,
                .interrupted = interrupted };
        struct sheaf_job_options job = {
                .name = "leads", .ahead = 64, .pace = true
        };
        static uint64_t ordinals[LEAD];

        flow_init();
        flow_origin_in_memory();
        flow.disk = "0";
        flow.faults = "delay=200:small";
        for (uint32_t i = 0; i < BIG; i++)
                flow_file(i, 1 << 20, "big/f%u", i);
        for (uint32_t i = 0; i < SMALL; i++)
                flow_file(BIG + i, 30, "small/f%u", i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        cr_assert_eq(sheaf_session_new(&options, &session), 0);
        cr_assert_eq(sheaf_dataset_open(session, "data", &dataset), 0);
        cr_assert_eq(sheaf_job_open(dataset, &job, &leads), 0);
        job.name = "follows";
        cr_assert_eq(sheaf_job_open(dataset, &job, &follows), 0);
        /* intervals, which change by a thousandth a slot */
        slots_bind(leads, 0, 0, 1, ordinals);
        slots_bind(follows, 0, 0, 1, ordinals);
        flow_sleep(INTERVAL_S);
        slots_bind(leads, 0, 1, LEAD - 1, ordinals);
        slots_bind(follows, 0, 1, 1, ordinals);
        next_slot = 2;
        interruptions = 0;
}

static void end(void)
{
        sheaf_job_close(leads);
        sheaf_job_close(follows);
        flow_close(session, dataset);
        flow_fini();
}

TestSuite(pace, .init = begin, .fini = end, .timeout = 120);

static uint64_t waited_ns(void)
{
        struct sheaf_stats stats;

        sheaf_stats(dataset, &stats);
        return stats.pace_wait_ns;
}

/* Both bind a slot, as jobs of unlike speeds. Whether one was held back. */
static bool held_back(double rate)
{
        uint64_t before_ns = waited_ns(), ordinal;
        uint32_t slot = next_slot++, ahead = LEAD + slot;

        cr_assert_lt(ahead, FILES / 2, "%u rounds", slot);
        flow_sleep(ROUND_S);
        cr_assert_eq(sheaf_job_bind(follows, 0, &slot, 1, rate, &ordinal), 0,
                "%s", sheaf_last_error());
        cr_assert_eq(sheaf_job_bind(leads, 0, &ahead, 1, 1.5 * rate, &ordinal),
                0, "%s", sheaf_last_error());
        return waited_ns() > before_ns;
}

/* Jobs of unlike speeds are kept in step while the origin is what limits
 * them both: by what it gives beyond what stays in the cache, be that in memory
 * alone. */
Test(pace, what_the_cache_has_is_no_load_of_the_origin)
{
        static uint64_t small[SMALL];
        uint64_t count = 0;
        struct sheaf_stats stats;

        flow_ok("sheaf warmup data big");
        for (uint64_t i = 0; i < FILES; i++)
                if (sheaf_dataset_size(dataset, i) == 30)
                        small[count++] = i;
        cr_assert_eq(sheaf_prefetch(dataset, small, count), 0);
        cr_assert(flow_until(60, held_back(VERY_FAST)), "never kept in step");
        /* of 1,000 bytes the origin has to give one: they never wait for it */
        held_back(FAST);
        for (int i = 0; i < ROUNDS; i++)
                cr_assert_not(held_back(FAST), "in round %d", i);
        /* and the origin was what limits all the while */
        cr_assert(flow_until(60, held_back(VERY_FAST)), "no more in step");
        sheaf_stats(dataset, &stats);
        cr_assert_gt(stats.pace_wait_ns, 0);
        cr_assert_eq(stats.hits + stats.misses, 0);
        cr_assert_gt(stats.from_origin, 0);
}

/* However long it would be. */
Test(pace, a_wait_can_be_interrupted)
{
        static uint64_t ordinals[LEAD];
        uint32_t slot;

        held_back(0);
        slot = LEAD + next_slot;
        interruptions = 1;
        cr_assert_eq(sheaf_job_bind(leads, 0, &slot, 1, 0, ordinals), -EINTR);
        cr_assert_gt(waited_ns(), 0);
        slots_bind(follows, 0, next_slot, 1, ordinals);
}
