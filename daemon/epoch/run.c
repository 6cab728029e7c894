/* SPDX-License-Identifier: Apache-2.0 */
/* Binding the slots of a run.
 *
 *  1 a sample is given once a run: its unread bit is cleared with the bind
 *  2 within a stratum (shared) or a block (window) there are always as many
 *    unread samples as unbound slots, so a slot whose target went to another
 *    one finds a sample there: of those whose own slot is bound, at least one
 *    is unread
 *  3 all memory is reserved before anything changes
 *
 * Offers are hints: those of samples that left the cache or were read are
 * passed over when they come up, and the oldest give way when there are too
 * many. */
#include "daemon/epoch/order_impl.h"

#include <assert.h>

/* Offers of a stratum: what is older will hardly be in the ring any more. */
#define OFFERS_LEAST UINT32_C(1024)
#define OFFERS_SHARE 64 /* of the samples */
/* Samples looked at for one that is here (window). */
#define PROBES_MAX 64

static bool here(const struct sheaf_run *run, uint32_t sample)
{
        const struct sheaf_cohort_config *config = &run->job->cohort->config;

        return config->here(config->arg, sample);
}

uint32_t sheaf_run_bound(const struct sheaf_run *run)
{
        return run->bound_count;
}

uint32_t sheaf_run_target(const struct sheaf_run *run, uint32_t slot)
{
        return sheaf_permutation_at(&run->targets, slot);
}

int sheaf_run_look(
        const struct sheaf_run *run, uint32_t slot, uint32_t *ret_sample)
{
        if (slot >= run->targets.n ||
                (run->bound && !sheaf_bit(run->bound, slot)))
                return -ENOENT;
        if (!sheaf_replaced_get(&run->replaced, slot, ret_sample))
                *ret_sample = sheaf_run_target(run, slot);
        return 0;
}

/* ---- shared ---- */

static int offer(struct sheaf_run *run, uint32_t sample)
{
        struct sheaf_queue *queue;
        uint32_t most = SHEAF_MAX(run->targets.n / OFFERS_SHARE, OFFERS_LEAST);

        if (!run->stratum || !run->unread || !sheaf_bit(run->unread, sample))
                return 0;
        queue = &run->offers[run->stratum[sample] & SHEAF_STRATUM_MASK];
        if (queue->count == most)
                sheaf_queue_pop(queue);
        if (sheaf_queue_reserve(queue))
                return -ENOMEM;
        sheaf_queue_push(queue, sample);
        return 0;
}

/* To everybody else who needs it. An offer that finds no memory is lost, no
 * more. */
static void offer_all(const struct sheaf_run *run, uint32_t sample)
{
        for (struct sheaf_job *job = run->job->cohort->jobs; job;
                job = job->next)
                if (job != run->job && job->runs)
                        (void)offer(job->runs, sample);
}

/* The oldest unread of a queue. */
static bool owed_from(
        struct sheaf_run *run, struct sheaf_queue *queue, uint32_t *ret_sample)
{
        while (queue->count) {
                *ret_sample = sheaf_queue_pop(queue);
                if (sheaf_bit(run->unread, *ret_sample))
                        return true;
        }
        return false;
}

/* An older run: the strata are those of a newer one. */
static uint32_t choose_late(struct sheaf_run *run, uint32_t target)
{
        uint32_t x = target;

        if (sheaf_bit(run->unread, target))
                return target;
        for (int s = 0; s < SHEAF_STRATA; s++)
                if (owed_from(run, &run->owed[s], &x))
                        return x;
        assert(false); /* invariant 2, over all strata */
        return x;
}

static uint32_t choose_shared(struct sheaf_run *run, uint32_t target)
{
        bool unread = sheaf_bit(run->unread, target), found;
        struct sheaf_queue *queue;
        uint32_t s, x = target;

        if (!run->stratum)
                return choose_late(run, target);
        if (unread && here(run, target))
                return target;
        s = run->stratum[target] & SHEAF_STRATUM_MASK;
        for (queue = &run->offers[s]; queue->count;) {
                x = sheaf_queue_pop(queue);
                if (sheaf_bit(run->unread, x) && here(run, x))
                        return x;
        }
        if (unread)
                return target;
        found = owed_from(run, &run->owed[s], &x);
        assert(found); /* invariant 2 */
        (void)found;
        return x;
}

/* ---- window ---- */

static uint32_t choose_window(
        struct sheaf_run *run, uint32_t slot, uint32_t target)
{
        uint32_t window = run->job->config.window;
        uint32_t first = slot / window * window;
        uint32_t count = SHEAF_MIN(window, run->targets.n - first);
        uint32_t *at = &run->block_first[slot / window];
        uint32_t start, probes = SHEAF_MIN(count, PROBES_MAX);

        if (sheaf_bit(run->unread, target) && here(run, target))
                return target;
        start = sheaf_random_below(&run->job->cohort->random, count);
        for (uint32_t i = 0; i < probes; i++) {
                uint32_t x = sheaf_run_target(run, first + (start + i) % count);

                if (sheaf_bit(run->unread, x) && here(run, x))
                        return x;
        }
        if (sheaf_bit(run->unread, target))
                return target;
        for (;; ++*at) {
                uint32_t x = sheaf_run_target(run, *at);

                assert(*at < first + count); /* invariant 2 */
                if (sheaf_bit(run->unread, x))
                        return x;
        }
}

/* ---- all ---- */

static uint32_t choose(struct sheaf_run *run, uint32_t slot, uint32_t target)
{
        switch (run->job->config.order) {
        case SHEAF_ORDER_SHARED:
                return choose_shared(run, target);
        case SHEAF_ORDER_WINDOW:
                return choose_window(run, slot, target);
        case SHEAF_ORDER_STRICT:
                break;
        }
        return target;
}

/* The next run's bin of the sample, unless that run began already. */
static void remember(struct sheaf_run *run, uint32_t slot, uint32_t sample)
{
        uint8_t bin = (uint8_t)((uint64_t)slot * SHEAF_BINS / run->targets.n);

        if (run->stratum)
                run->stratum[sample] =
                        (uint8_t)((run->stratum[sample] & SHEAF_STRATUM_MASK) |
                                  bin << SHEAF_BIN_SHIFT);
}

/* The mark goes up to cover @slot: what it is from now on, or 0. */
static uint32_t raise_mark(struct sheaf_run *run, uint32_t slot)
{
        uint32_t step = sheaf_mark_step(run->targets.n);

        if (slot < run->high)
                return 0;
        run->high = (uint32_t)SHEAF_MIN(
                ((uint64_t)slot / step + 1) * step, (uint64_t)run->targets.n);
        return run->high;
}

int sheaf_run_bind(struct sheaf_run *run, uint32_t slot, int64_t now_ns,
        struct sheaf_bound *ret_bound)
{
        struct sheaf_bound bound = { 0 };
        uint32_t target;
        struct sheaf_queue *owed = NULL;

        if (slot >= run->targets.n)
                return -ERANGE;
        target = sheaf_run_target(run, slot);
        if (sheaf_run_look(run, slot, &bound.sample) == 0) {
                bound.again = true;
                bound.perhaps = slot < run->restored_high &&
                                slot + sheaf_mark_step(run->targets.n) >=
                                        run->restored_high;
                bound.replaced = bound.sample != target;
                bound.fetch = !here(run, bound.sample);
                *ret_bound = bound;
                return 0;
        }
        if (run->stratum)
                owed = &run->owed[run->stratum[target] & SHEAF_STRATUM_MASK];
        if ((owed && sheaf_queue_reserve(owed)) ||
                sheaf_replaced_reserve(&run->replaced))
                return -ENOMEM;
        bound.sample = choose(run, slot, target);
        bound.fetch = !here(run, bound.sample);
        bound.replaced = bound.sample != target;
        sheaf_bit_clear(run->unread, bound.sample);
        sheaf_bit_set(run->bound, slot);
        run->bound_count++;
        run->touched = true;
        bound.mark = raise_mark(run, slot);
        if (bound.replaced) {
                sheaf_replaced_put(&run->replaced, slot, bound.sample);
                if (owed && sheaf_bit(run->unread, target))
                        sheaf_queue_push(owed, target);
        }
        remember(run, slot, bound.sample);
        if (bound.fetch)
                offer_all(run, bound.sample);
        sheaf_job_bound(run->job, now_ns);
        if (run->bound_count == run->targets.n)
                sheaf_run_complete(run);
        *ret_bound = bound;
        return 0;
}
