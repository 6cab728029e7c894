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
 *    one */
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
static bool possible(
        const struct sheaf_run *run, uint32_t slot, uint32_t sample)
{
        const struct sheaf_job_config *config = &run->job->config;
        uint32_t own;

        if (config->order == SHEAF_ORDER_STRICT)
                return false;
        own = sheaf_permutation_find(&run->targets, sample);
        return own != slot &&
               (config->order != SHEAF_ORDER_WINDOW ||
                       own / config->window == slot / config->window);
}

static int take_replaced(
        struct sheaf_run *run, const struct sheaf_run_state *state)
{
        uint32_t n = run->targets.n;
        int rc = 0;

        for (size_t i = 0; rc == 0 && i < state->replaced_count; i++) {
                uint32_t slot = state->replaced[i][0];
                uint32_t sample = state->replaced[i][1];

                if (slot >= state->high || sample >= n ||
                        !possible(run, slot, sample))
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

int sheaf_run_restore(
        struct sheaf_job *job, const struct sheaf_run_state *state)
{
        struct sheaf_cohort *cohort = job->cohort;
        struct sheaf_run *run;
        int rc;

        if (state->high > cohort->config.samples ||
                (job->runs && job->runs->epoch >= state->epoch))
                return -EBADMSG;
        run = sheaf_run_new(job, state->epoch);
        if (!run)
                return -ENOMEM;
        run->named = true;
        run->family = job->newest_family = ++cohort->families;
        sheaf_permutation_init(&run->targets, cohort->config.samples,
                state->seed, state->stream);
        rc = take_replaced(run, state);
        if (rc == 0)
                rc = take_targets(run, state->high);
        if (rc < 0) {
                sheaf_run_free(run);
                return rc;
        }
        if (run->bound_count == run->targets.n)
                sheaf_run_complete(run);
        if (!job->runs)
                job->ended = SHEAF_MAX(job->ended, state->epoch);
        run->older = job->runs;
        job->runs = run;
        sheaf_job_end_oldest(job);
        return 0;
}
