/* SPDX-License-Identifier: Apache-2.0 */
/* Batches that are near, in a ring.
 *
 *  1 a shared batch that no attached member needs is FREE: nothing is kept of
 *    it, and no lease of it holds
 *  2 need[] counts, of the whole window, the attached members whose position
 *    is not past it and whose rank it is
 *  3 of a private window there is one member, and need[] is not used
 *
 * One thread. */
#include "daemon/prep/impl.h"

int sheaf_prep_window_new(struct sheaf_prep_window *window, uint32_t cap)
{
        *window = (struct sheaf_prep_window){ .cap = cap };
        window->state = sheaf_new(uint8_t, cap);
        window->need = sheaf_new(uint16_t, cap);
        window->entries = sheaf_new(struct sheaf_prep_entry, cap);
        if (window->state && window->need && window->entries)
                return 0;
        free(window->state);
        free(window->need);
        free(window->entries);
        *window = (struct sheaf_prep_window){ 0 };
        return -ENOMEM;
}

void sheaf_prep_window_free(
        struct sheaf_prep_group *group, struct sheaf_prep_window *window)
{
        if (window->cap)
                sheaf_prep_window_clear(group, window);
        free(window->state);
        free(window->need);
        free(window->entries);
        *window = (struct sheaf_prep_window){ 0 };
}

bool sheaf_prep_window_has(
        const struct sheaf_prep_window *window, uint64_t batch)
{
        return window->live && batch >= window->lo &&
               batch - window->lo < window->cap;
}

static bool is_of(const struct sheaf_prep_member *member, uint64_t batch)
{
        return batch >= member->position &&
               sheaf_prep_next_of(member, batch) == batch;
}

bool sheaf_prep_needed(const struct sheaf_prep_window *window, uint64_t batch)
{
        if (!window->owner)
                return window->need[sheaf_prep_at(window, batch)];
        return is_of(window->owner, batch);
}

void sheaf_prep_entry_clear(struct sheaf_prep_group *group,
        struct sheaf_prep_window *window, uint64_t batch)
{
        uint32_t at = sheaf_prep_at(window, batch);
        struct sheaf_prep_entry *entry = &window->entries[at];
        struct sheaf_prep_purse *purse = group->config.purse;

        switch (window->state[at]) {
        case SHEAF_BATCH_STAGED:
                window->staged--;
                group->stats.staged--;
                group->stats.staged_bytes -= entry->bytes;
                group->config.drop(group->config.arg, entry->fd);
                break;
        case SHEAF_BATCH_LEASED:
                entry->worker->holds = false;
                break;
        default:
                break;
        }
        if (window->state[at] == SHEAF_BATCH_STAGED ||
                window->state[at] == SHEAF_BATCH_LEASED) {
                purse->bytes -= entry->bytes;
                purse->files--;
        }
        if (entry->why)
                group->why_bytes -= strlen(entry->why);
        free(entry->why);
        *entry = (struct sheaf_prep_entry){ 0 };
        window->state[at] = SHEAF_BATCH_FREE;
        sheaf_prep_hint(window, batch);
}

void sheaf_prep_window_clear(
        struct sheaf_prep_group *group, struct sheaf_prep_window *window)
{
        if (!window->live)
                return;
        for (uint32_t i = 0; i < window->cap; i++)
                sheaf_prep_entry_clear(group, window, window->lo + i);
        memset(window->need, 0, window->cap * sizeof(*window->need));
        window->live = false;
}

/* What fell out, of [lo, hi). */
static void drop_range(struct sheaf_prep_group *group,
        struct sheaf_prep_window *window, uint64_t lo, uint64_t hi)
{
        for (uint64_t b = lo; b < hi; b++) {
                sheaf_prep_entry_clear(group, window, b);
                window->need[sheaf_prep_at(window, b)] = 0;
        }
}

void sheaf_prep_window_slide(struct sheaf_prep_group *group,
        struct sheaf_prep_window *window, uint64_t lo)
{
        uint64_t fresh = lo, end = lo + window->cap;
        struct sheaf_prep_member *member;

        if (window->live && lo == window->lo)
                return;
        if (window->live && lo > window->lo && lo - window->lo < window->cap) {
                drop_range(group, window, window->lo, lo);
                fresh = window->lo + window->cap;
                window->hint = SHEAF_MAX(window->hint, lo);
        } else if (window->live && lo < window->lo &&
                   window->lo - lo < window->cap) {
                drop_range(group, window, end, window->lo + window->cap);
                end = window->lo;
                window->hint = lo;
        } else {
                sheaf_prep_window_clear(group, window);
                window->hint = lo;
        }
        window->lo = lo;
        window->live = true;
        if (window->owner)
                return;
        LIST_FOREACH (member, &group->members, link)
                if (member->attached)
                        sheaf_prep_need_add(group, member, fresh, end);
}

/* Of one rank of one: all. */
static void add_all(
        struct sheaf_prep_window *window, uint64_t lo, uint64_t hi, uint16_t by)
{
        while (lo < hi) {
                uint32_t at = sheaf_prep_at(window, lo);
                uint64_t n = SHEAF_MIN(hi - lo, (uint64_t)window->cap - at);
                uint16_t *need = window->need + at;

                for (uint64_t i = 0; i < n; i++)
                        need[i] = (uint16_t)(need[i] + by);
                lo += n;
        }
}

static void add_some(struct sheaf_prep_group *group,
        const struct sheaf_prep_member *member, uint64_t lo, uint64_t hi,
        uint16_t by)
{
        struct sheaf_prep_window *window = &group->shared;
        const uint32_t batches = group->config.batches;
        const uint32_t world = member->config.world;
        uint64_t batch;

        lo = SHEAF_MAX(lo, member->position);
        if (world == 1) {
                add_all(window, lo, hi, by);
                return;
        }
        batch = sheaf_prep_next_of(member, lo);
        for (uint64_t place = batch % batches; batch < hi;) {
                uint32_t at = sheaf_prep_at(window, batch);

                /* Until the ring or the epoch ends. */
                for (; at < window->cap && batch < hi && place < batches;
                        at += world, batch += world, place += world)
                        window->need[at] = (uint16_t)(window->need[at] + by);
                if (place < batches)
                        continue;
                batch = batch - place + batches + member->config.rank;
                place = member->config.rank;
        }
}

void sheaf_prep_need_add(struct sheaf_prep_group *group,
        const struct sheaf_prep_member *member, uint64_t lo, uint64_t hi)
{
        add_some(group, member, lo, hi, 1);
        sheaf_prep_hint(&group->shared,
                SHEAF_MAX(SHEAF_MAX(lo, member->position), group->shared.lo));
}

void sheaf_prep_need_sub(struct sheaf_prep_group *group,
        const struct sheaf_prep_member *member, uint64_t lo, uint64_t hi)
{
        struct sheaf_prep_window *window = &group->shared;

        add_some(group, member, lo, hi, UINT16_MAX);
        for (uint64_t b = lo; b < hi; b++) {
                uint32_t at = sheaf_prep_at(window, b);

                if (!window->need[at] &&
                        (window->state[at] || window->entries[at].ends ||
                                window->entries[at].why))
                        sheaf_prep_entry_clear(group, window, b);
        }
}

uint64_t sheaf_prep_first_staged(const struct sheaf_prep_window *window)
{
        if (!window->live || !window->staged)
                return UINT64_MAX;
        for (uint64_t b = window->lo; b < window->lo + window->cap; b++)
                if (window->state[sheaf_prep_at(window, b)] ==
                        SHEAF_BATCH_STAGED)
                        return b;
        return UINT64_MAX;
}

/* Whether it goes to somebody with the next answers. */
static bool is_wanted(struct sheaf_prep_group *group,
        const struct sheaf_prep_window *window, uint64_t batch)
{
        struct sheaf_prep_member *m;

        LIST_FOREACH (m, &group->members, link)
                if (m->wants && m->position == batch &&
                        sheaf_prep_window_of(m) == window)
                        return group->gathered;
        return false;
}

static bool find_last(struct sheaf_prep_group *group,
        const struct sheaf_prep_window *window, uint64_t *ret_batch)
{
        uint64_t b = window->lo + window->cap;

        if (!window->live || !window->staged)
                return false;
        while (b-- > window->lo)
                if (window->state[sheaf_prep_at(window, b)] ==
                                SHEAF_BATCH_STAGED &&
                        !is_wanted(group, window, b)) {
                        *ret_batch = b;
                        return true;
                }
        return false;
}

bool sheaf_prep_shed(struct sheaf_prep_group *group)
{
        struct sheaf_prep_window *window = &group->shared, *best = NULL;
        uint64_t batch = 0, best_batch = 0;
        struct sheaf_prep_member *m = LIST_FIRST(&group->members);

        for (;;) {
                if (find_last(group, window, &batch) &&
                        (!best || batch - window->lo > best_batch - best->lo)) {
                        best = window;
                        best_batch = batch;
                }
                if (!m)
                        break;
                window = &m->own;
                m = LIST_NEXT(m, link);
        }
        if (!best)
                return false;
        sheaf_prep_entry_clear(group, best, best_batch);
        group->stats.shed++;
        group->dirty = true;
        return true;
}
