/* SPDX-License-Identifier: Apache-2.0 */
/* What a group has to answer: members first, then workers in the order in
 * which they asked, then members that prepare for themselves.
 *
 * One thread. */
#include "daemon/prep/impl.h"

/* ---- members ---- */

static enum sheaf_prep_state state_of(struct sheaf_prep_member *member)
{
        struct sheaf_prep_group *group = member->group;
        struct sheaf_prep_window *window = sheaf_prep_window_of(member);
        uint64_t batch = member->position;

        if (!group->gathered)
                return SHEAF_PREP_GATHERING;
        if (!sheaf_prep_window_has(window, batch))
                return SHEAF_PREP_AHEAD;
        if (window->state[sheaf_prep_at(window, batch)])
                return SHEAF_PREP_PREPARING;
        if (!sheaf_prep_fits(group, batch, sheaf_prep_first_staged(window)))
                return SHEAF_PREP_FULL;
        return SHEAF_PREP_QUEUED;
}

enum sheaf_prep_state sheaf_prep_unwant(
        struct sheaf_prep_member *member, int64_t now_ns)
{
        enum sheaf_prep_state state = state_of(member);

        member->wants = false;
        member->asking_until_ns = now_ns + SHEAF_PREP_ASKING_NS;
        member->group->dirty = true;
        return state;
}

static bool member_event(
        struct sheaf_prep_member *member, struct sheaf_prep_event *event)
{
        struct sheaf_prep_window *window = sheaf_prep_window_of(member);
        uint32_t at;

        if (member->unfit) {
                event->kind = SHEAF_PREP_TELL;
                event->why = member->unfit;
                return true;
        }
        if (!sheaf_prep_window_has(window, member->position))
                return false;
        at = sheaf_prep_at(window, member->position);
        switch (window->state[at]) {
        case SHEAF_BATCH_STAGED:
                event->kind = SHEAF_PREP_GIVE;
                event->fd = window->entries[at].fd;
                return true;
        case SHEAF_BATCH_FAILED:
                event->kind = SHEAF_PREP_TELL;
                event->why = window->entries[at].why;
                if (!event->why)
                        event->why = "it cannot be prepared, and there is no "
                                     "memory for the reason";
                return true;
        default:
                return false;
        }
}

static bool next_member(
        struct sheaf_prep_group *group, struct sheaf_prep_event *event)
{
        struct sheaf_prep_member *m;

        LIST_FOREACH (m, &group->members, link) {
                if (!m->wants || (!group->gathered && !m->unfit) ||
                        !member_event(m, event))
                        continue;
                event->member = m;
                event->arg = m->config.arg;
                event->batch = m->position;
                return true;
        }
        return false;
}

/* After the workers: those wait for nothing now, or for want of room. */
static bool next_self(struct sheaf_prep_group *group, int64_t now_ns,
        struct sheaf_prep_event *event)
{
        struct sheaf_prep_member *m;

        LIST_FOREACH (m, &group->members, link) {
                if (!m->wants || !m->may_prepare || m->unfit)
                        continue;
                if (!(m->self.holds && m->self.batch == m->position) &&
                        !sheaf_prep_lease_self(m, now_ns))
                        continue;
                m->wants = false;
                m->asking_until_ns = m->self.until_ns;
                *event = (struct sheaf_prep_event){ .kind = SHEAF_PREP_DO,
                        .member = m,
                        .arg = m->config.arg,
                        .batch = m->position };
                return true;
        }
        return false;
}

/* ---- workers ---- */

static enum sheaf_prep_kind worker_kind(struct sheaf_prep_worker *worker,
        int64_t now_ns, struct sheaf_prep_dry *dry)
{
        if (worker->gone)
                return SHEAF_PREP_GONE;
        if (worker->member && worker->member->unfit)
                return SHEAF_PREP_UNFIT;
        if (worker->kicked)
                return SHEAF_PREP_AGAIN;
        if (worker->holds || sheaf_prep_lease(worker, now_ns, dry))
                return SHEAF_PREP_LEASE;
        return SHEAF_PREP_NONE;
}

static bool next_worker(struct sheaf_prep_group *group, int64_t now_ns,
        struct sheaf_prep_event *event)
{
        struct sheaf_prep_dry dry = { 0 };
        struct sheaf_prep_worker *w;

        TAILQ_FOREACH (w, &group->asking, wait_link) {
                enum sheaf_prep_kind kind = worker_kind(w, now_ns, &dry);

                if (!kind)
                        continue;
                *event = (struct sheaf_prep_event){ .kind = kind,
                        .worker = w,
                        .arg = w->arg,
                        .batch = w->batch,
                        .why = w->member ? w->member->unfit : NULL };
                sheaf_prep_unask(w);
                return true;
        }
        return false;
}

void sheaf_prep_next(struct sheaf_prep_group *group, int64_t now_ns,
        struct sheaf_prep_event *ret_event)
{
        struct sheaf_prep_event event = { .fd = -1 };

        if (group->dirty)
                sheaf_prep_settle(group, now_ns);
        group->held = false;
        if (!next_member(group, &event) && !next_worker(group, now_ns, &event))
                next_self(group, now_ns, &event);
        *ret_event = event;
}

int64_t sheaf_prep_tick(struct sheaf_prep_group *group, int64_t now_ns)
{
        int64_t due_ns = sheaf_prep_expire(group, now_ns);

        sheaf_prep_settle(group, now_ns);
        return SHEAF_MIN(due_ns, group->lag_due_ns);
}

bool sheaf_prep_held(const struct sheaf_prep_group *group)
{
        return group->held;
}

void sheaf_prep_member_stats(const struct sheaf_prep_member *member,
        struct sheaf_prep_member_stats *ret_stats)
{
        *ret_stats = (struct sheaf_prep_member_stats){
                .arg = member->config.arg,
                .rank = member->config.rank,
                .world = member->config.world,
                .workers = member->workers,
                .begun = member->begun,
                .detached = member->begun && !member->attached,
                .waits = member->wants,
                .position = member->begun ? member->position : 0,
                .state = member->wants
                                 ? state_of((struct sheaf_prep_member *)member)
                                 : SHEAF_PREP_TAKEN,
        };
}
