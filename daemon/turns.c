/* SPDX-License-Identifier: Apache-2.0 */
/* A turn is what happens between two moments before the loop looks for events,
 * less the time that it waited there. Processor time tells what the daemon
 * itself did; the clock also what it waited for: a disk, other processes.
 *
 *  1 the longest of a half minute is kept, and that of the one before
 *  2 processor time, which takes a system call to read, is read when turns of
 *    EXACT_NS have passed: what is counted too much for one is less than that
 *
 * Threads: loop thread. */
#include "daemon/turns.h"

#include "daemon/clock.h"

#include <time.h>

#define HALF_NS  (30 * SHEAF_NS_PER_SEC)
#define EXACT_NS 100000

struct sheaf_turns {
        uv_prepare_t prepare;
        uint64_t now_ns, idle_ns; /* as the turn began; 0: none has */
        uint64_t cpu_ns;          /* as it was read */
        uint64_t unread_ns;       /* of turns since then */
        int64_t half_ns;          /* when this half minute began */
        struct sheaf_turns_stats halves[2];
};

static uint64_t cpu_ns(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
        return (uint64_t)ts.tv_sec * SHEAF_NS_PER_SEC + (uint64_t)ts.tv_nsec;
}

static void forget_old(struct sheaf_turns *turns)
{
        int64_t now_ns = sheaf_now_ns();

        if (now_ns - turns->half_ns < HALF_NS)
                return;
        turns->halves[1] = turns->halves[0];
        turns->halves[0] = (struct sheaf_turns_stats){ 0 };
        /* Nothing of this half minute either. */
        if (now_ns - turns->half_ns >= 2 * HALF_NS)
                turns->halves[1] = turns->halves[0];
        turns->half_ns = now_ns;
}

static void turned(uv_prepare_t *prepare)
{
        struct sheaf_turns *turns = prepare->data;
        struct sheaf_turns_stats *half = turns->halves;
        uint64_t now_ns = uv_hrtime(), cpu, passed_ns = 0;
        uint64_t idle_ns = uv_metrics_idle_time(prepare->loop);

        if (turns->now_ns) {
                uint64_t waited_ns = idle_ns - turns->idle_ns;

                passed_ns = now_ns - turns->now_ns;
                passed_ns -= SHEAF_MIN(waited_ns, passed_ns);
        } else {
                turns->cpu_ns = cpu_ns();
        }
        turns->now_ns = now_ns;
        turns->idle_ns = idle_ns;
        forget_old(turns);
        half->longest_ns = SHEAF_MAX(half->longest_ns, passed_ns);
        turns->unread_ns += passed_ns;
        if (turns->unread_ns < EXACT_NS)
                return;
        cpu = cpu_ns();
        half->longest_cpu_ns =
                SHEAF_MAX(half->longest_cpu_ns, cpu - turns->cpu_ns);
        turns->cpu_ns = cpu;
        turns->unread_ns = 0;
}

int sheaf_turns_new(uv_loop_t *loop, struct sheaf_turns **ret_turns)
{
        struct sheaf_turns *turns = sheaf_new(struct sheaf_turns, 1);

        if (!turns)
                return -ENOMEM;
        /* Where it cannot, waiting counts. */
        (void)uv_loop_configure(loop, UV_METRICS_IDLE_TIME);
        turns->half_ns = sheaf_now_ns();
        uv_prepare_init(loop, &turns->prepare);
        turns->prepare.data = turns;
        uv_prepare_start(&turns->prepare, turned);
        uv_unref((uv_handle_t *)&turns->prepare);
        *ret_turns = turns;
        return 0;
}

static void closed(uv_handle_t *handle)
{
        free(handle->data);
}

void sheaf_turns_free(struct sheaf_turns *turns)
{
        if (turns)
                uv_close((uv_handle_t *)&turns->prepare, closed);
}

void sheaf_turns_stats(
        struct sheaf_turns *turns, struct sheaf_turns_stats *ret_stats)
{
        const struct sheaf_turns_stats *halves = turns->halves;

        forget_old(turns);
        ret_stats->longest_ns =
                SHEAF_MAX(halves[0].longest_ns, halves[1].longest_ns);
        ret_stats->longest_cpu_ns =
                SHEAF_MAX(halves[0].longest_cpu_ns, halves[1].longest_cpu_ns);
}
