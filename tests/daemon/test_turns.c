/* SPDX-License-Identifier: Apache-2.0 */
/* What a turn takes is told: by the clock and of processor time, and not what
 * the loop waited for events. */
#include "daemon/turns.h"

#include "daemon/clock.h"

#include <criterion/criterion.h>
#include <time.h>

#define LONG_NS (30 * SHEAF_NS_PER_MS)
#define WAIT_MS 1000

static void sleep_long(uv_timer_t *timer)
{
        (void)timer;
        nanosleep(&(struct timespec){ .tv_nsec = LONG_NS }, NULL);
}

static void work_long(uv_timer_t *timer)
{
        struct timespec begun, now;

        (void)timer;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
        do
                clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        while ((now.tv_sec - begun.tv_sec) * SHEAF_NS_PER_SEC + now.tv_nsec -
                        begun.tv_nsec <
                LONG_NS);
}

static void nothing(uv_timer_t *timer)
{
        (void)timer;
}

static struct sheaf_turns_stats after(
        uint64_t wait_ms, void (*callback)(uv_timer_t *timer))
{
        struct sheaf_turns *turns;
        struct sheaf_turns_stats stats;
        uv_timer_t timer, last;
        uv_loop_t loop;

        cr_assert_eq(uv_loop_init(&loop), 0);
        cr_assert_eq(sheaf_turns_new(&loop, &turns), 0);
        uv_timer_init(&loop, &timer);
        /* The first turn begins: a timer that is due before that is of none. */
        uv_timer_start(&timer, nothing, 0, 0);
        uv_run(&loop, UV_RUN_NOWAIT);
        uv_timer_start(&timer, callback, wait_ms, 0);
        /* A turn is told of when the next one begins. */
        uv_timer_init(&loop, &last);
        uv_timer_start(&last, nothing, wait_ms + 100, 0);
        uv_run(&loop, UV_RUN_DEFAULT);
        sheaf_turns_stats(turns, &stats);
        sheaf_turns_free(turns);
        uv_close((uv_handle_t *)&timer, NULL);
        uv_close((uv_handle_t *)&last, NULL);
        uv_run(&loop, UV_RUN_DEFAULT);
        cr_assert_eq(uv_loop_close(&loop), 0);
        return stats;
}

Test(turns, what_is_waited_for_in_a_turn_counts)
{
        struct sheaf_turns_stats stats = after(1, sleep_long);

        cr_assert_geq(stats.longest_ns, LONG_NS);
        cr_assert_lt(stats.longest_cpu_ns, LONG_NS);
}

Test(turns, what_is_done_counts)
{
        struct sheaf_turns_stats stats = after(1, work_long);

        cr_assert_geq(stats.longest_ns, LONG_NS);
        cr_assert_geq(stats.longest_cpu_ns, LONG_NS);
}

Test(turns, waiting_for_events_does_not)
{
        struct sheaf_turns_stats stats = after(WAIT_MS, nothing);

        cr_assert_lt(stats.longest_ns, WAIT_MS * SHEAF_NS_PER_MS);
        cr_assert_lt(stats.longest_cpu_ns, LONG_NS);
}
