/* SPDX-License-Identifier: Apache-2.0 */
/* A run as another process left it (struct sheaf_run_state).
 *
 *  1 what is restored is a partial one-to-one map of slots to samples; a state
 *    that is none is refused whole
 *  2 whatever was answered for a slot is answered again: an answer that
 *    differed from the target is in the state before it was given, and one
 *    that did not is the target. A slot below the mark that nobody asked for
 *    yet gets its target too: it would be free to get it now
 *  3 a slot below the mark whose target stands elsewhere was not bound, so
 *    its own place is passed on: as many samples are owed as such slots lack
 *    one
 *  4 from a bitmap alone: slots below what was yielded get their targets as
 *    far as these were read; the rest of what was read goes to the rest of
 *    the slots. Which slot had which sample does not matter any more */
#include "daemon/epoch/order_impl.h"

static int take(struct sheaf_run *run, uint32_t slot, uint32_t sample)
{
        if (sheaf_bit(run->bound, slot) || !sheaf_bit(run->unread, sample))
                return -EBADMSG;
        sheaf_bit_set(run->bound, slot);
        sheaf_bit_clear(run->unread, sample);
        run->bound_count++;
        return 0;
}

/* Whether the order could have put @sample there. */
static bool possible(const struct sheaf_job_config *config,
        const struct sheaf_run *run, uint32_t slot, uint32_t sample)
{
        uint32_t own;

        if (config->order == SHEAF_ORDER_STRICT)
                return false;
        own = sheaf_permutation_find(&run->targets, sample);
        return own != slot &&
               (config->order != SHEAF_ORDER_WINDOW ||
                       own / config->window == slot / config->window);
}

static int take_replaced(const struct sheaf_job_config *config,
        struct sheaf_run *run, const struct sheaf_run_state *state)
{
        uint32_t n = run->targets.n;
        int rc = 0;

        for (size_t i = 0; rc == 0 && i < state->replaced_count; i++) {
                uint32_t slot = state->replaced[i][0];
                uint32_t sample = state->replaced[i][1];

                if (slot >= state->high || sample >= n ||
                        !possible(config, run, slot, sample))
                        return -EBADMSG;
                rc = sheaf_replaced_reserve(&run->replaced);
                if (rc == 0)
                        rc = take(run, slot, sample);
                if (rc == 0)
                        sheaf_replaced_put(&run->replaced, slot, sample);
        }
        return rc;
}

/* Slots below the mark: targets where they are free; else what is unread
 * there is owed, in the order of slots. */
static int take_targets(struct sheaf_run *run, uint32_t high)
{
        for (uint32_t slot = 0; slot < high; slot++) {
                uint32_t target = sheaf_run_target(run, slot);
                int rc;

                if (sheaf_bit(run->bound, slot) ||
                        !sheaf_bit(run->unread, target))
                        continue;
                rc = take(run, slot, target);
                if (rc < 0)
                        return rc;
        }
        for (uint32_t slot = 0; slot < high; slot++) {
                uint32_t target = sheaf_run_target(run, slot);

                if (!sheaf_bit(run->unread, target))
                        continue;
                if (sheaf_queue_reserve(&run->owed[0]))
                        return -ENOMEM;
                sheaf_queue_push(&run->owed[0], target);
        }
        return 0;
}

int sheaf_run_restore(const struct sheaf_job_config *config, uint32_t samples,
        const struct sheaf_run_state *state, struct sheaf_run **ret_run)
{
        struct sheaf_run *run;
        int rc;

        if (state->high > samples)
                return -EBADMSG;
        run = sheaf_run_new(config, samples, state->epoch);
        if (!run)
                return -ENOMEM;
        run->named = true;
        run->high = run->restored_high = state->high;
        sheaf_permutation_init(
                &run->targets, samples, state->seed, state->stream);
        rc = take_replaced(config, run, state);
        if (rc == 0)
                rc = take_targets(run, state->high);
        if (rc < 0) {
                sheaf_run_free(run);
                return rc;
        }
        if (run->bound_count == samples)
                sheaf_run_complete(run);
        *ret_run = run;
        return 0;
}

/* ---- from a bitmap ---- */

static bool was_read(const uint8_t *read, uint32_t sample)
{
        return read[sample / 8] >> (sample % 8) & 1;
}

/* Slots below @yielded whose target was not read; in the order of slots, so
 * those of a window's block stand together. */
static uint32_t empty_slots(const struct sheaf_permutation *targets,
        uint32_t yielded, const uint8_t *read, uint32_t (*pairs)[2])
{
        uint32_t count = 0;

        for (uint32_t slot = 0; slot < yielded; slot++)
                if (!was_read(read, sheaf_permutation_at(targets, slot))) {
                        if (pairs)
                                pairs[count][0] = slot;
                        count++;
                }
        return count;
}

/* Samples that were read before their own slot: fills in up to @most, returns
 * how many there are. All of one block (window), or of any (shared). */
static uint32_t early_samples(const struct sheaf_permutation *targets,
        uint32_t yielded, const uint8_t *read, uint32_t (*pairs)[2],
        uint32_t most)
{
        uint32_t count = 0;

        for (uint32_t slot = yielded; slot < targets->n; slot++) {
                uint32_t sample = sheaf_permutation_at(targets, slot);

                if (!was_read(read, sample))
                        continue;
                if (count < most)
                        pairs[count][1] = sample;
                count++;
        }
        return count;
}

int sheaf_run_recall(uint32_t samples, uint32_t yielded, const uint8_t *read,
        struct sheaf_run_state *io_state, uint32_t (**ret_replaced)[2])
{
        struct sheaf_permutation targets;
        uint32_t(*pairs)[2];
        uint32_t count;

        if (yielded > samples)
                return -EBADMSG;
        sheaf_permutation_init(
                &targets, samples, io_state->seed, io_state->stream);
        count = empty_slots(&targets, yielded, read, NULL);
        pairs = calloc((size_t)count + 1, sizeof(*pairs));
        if (!pairs)
                return -ENOMEM;
        empty_slots(&targets, yielded, read, pairs);
        if (early_samples(&targets, yielded, read, pairs, count) != count) {
                free(pairs);
                return -EBADMSG;
        }
        io_state->high = yielded;
        io_state->replaced = (const uint32_t(*)[2])pairs;
        io_state->replaced_count = count;
        *ret_replaced = pairs;
        return 0;
}
