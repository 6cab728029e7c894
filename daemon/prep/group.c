/* SPDX-License-Identifier: Apache-2.0 */
/* Members of a group: where they are, and who is waited for.
 *
 *  1 the floor is the lowest position of those attached; a member that has
 *    begun and is at the floor or beyond is attached unless it was detached
 *    in this very moment; where any has begun, one is attached
 *  2 only who does not wait itself is detached, and only while somebody waits
 *    for a batch that cannot be leased because of its position
 *  3 a detached member has private batches; an attached one has none
 *
 * One thread. */
#include "daemon/prep/impl.h"

int sheaf_prep_group_new(const struct sheaf_prep_config *config,
        struct sheaf_prep_group **ret_group)
{
        struct sheaf_prep_group *group = sheaf_new(struct sheaf_prep_group, 1);

        if (!group)
                return -ENOMEM;
        group->config = *config;
        group->lag_due_ns = group->shun_due_ns = INT64_MAX;
        TAILQ_INIT(&group->asking);
        if (sheaf_prep_window_new(&group->shared, config->ahead)) {
                free(group);
                return -ENOMEM;
        }
        *ret_group = group;
        return 0;
}

void sheaf_prep_group_free(struct sheaf_prep_group *group)
{
        struct sheaf_prep_worker *worker;
        struct sheaf_prep_member *member;

        if (!group)
                return;
        while ((member = LIST_FIRST(&group->members)))
                sheaf_prep_leave(member, true, 0);
        while ((worker = LIST_FIRST(&group->workers)))
                sheaf_prep_retire(worker, true, 0);
        sheaf_prep_window_free(group, &group->shared);
        free(group);
}

/* ---- positions ---- */

uint64_t sheaf_prep_next_of(
        const struct sheaf_prep_member *member, uint64_t batch)
{
        uint32_t world = member->config.world, rank = member->config.rank;
        uint32_t batches = member->group->config.batches, place, add;

        if (world == 1)
                return batch;
        place = (uint32_t)(batch % batches);
        add = (rank + world - place % world) % world;
        if (add < batches - place)
                return batch + add;
        return batch - place + batches + rank;
}

struct sheaf_prep_window *sheaf_prep_window_of(struct sheaf_prep_member *member)
{
        return member->attached ? &member->group->shared : &member->own;
}

static uint64_t window_end(const struct sheaf_prep_group *group)
{
        return group->shared.lo + group->shared.cap;
}

/* It counts no more for the floor, nor needs anything. */
static void unattach(struct sheaf_prep_member *member)
{
        struct sheaf_prep_group *group = member->group;

        if (!member->attached)
                return;
        member->attached = false;
        sheaf_prep_need_sub(group, member, group->shared.lo, window_end(group));
}

static void attach(struct sheaf_prep_member *member)
{
        struct sheaf_prep_group *group = member->group;

        sheaf_prep_window_free(group, &member->own);
        member->attached = true;
        sheaf_prep_need_add(group, member, group->shared.lo, window_end(group));
}

/* Nobody is: the one that is farthest. */
static bool attach_one(struct sheaf_prep_group *group)
{
        struct sheaf_prep_member *member, *best = NULL;

        LIST_FOREACH (member, &group->members, link)
                if (member->begun &&
                        (!best || member->position > best->position))
                        best = member;
        sheaf_prep_window_clear(group, &group->shared);
        if (!best)
                return false;
        sheaf_prep_window_free(group, &best->own);
        best->attached = true;
        return true;
}

static bool find_floor(
        const struct sheaf_prep_group *group, uint64_t *ret_floor)
{
        const struct sheaf_prep_member *member;
        uint64_t floor = UINT64_MAX;

        LIST_FOREACH (member, &group->members, link)
                if (member->attached)
                        floor = SHEAF_MIN(floor, member->position);
        if (floor != UINT64_MAX)
                *ret_floor = floor;
        return floor != UINT64_MAX;
}

/* Positions changed. */
static void refloor(struct sheaf_prep_group *group)
{
        struct sheaf_prep_member *member;
        uint64_t floor = 0;

        group->dirty = true;
        if (!find_floor(group, &floor)) {
                if (!attach_one(group))
                        return;
                find_floor(group, &floor);
        }
        sheaf_prep_window_slide(group, &group->shared, floor);
        LIST_FOREACH (member, &group->members, link)
                if (member->begun && !member->attached &&
                        member->position >= floor)
                        attach(member);
}

/* Nothing is lost for it: from now on its batches are prepared for it alone. */
static void detach(struct sheaf_prep_member *member)
{
        struct sheaf_prep_window own;

        if (sheaf_prep_window_new(
                    &own, SHEAF_MIN(member->group->config.ahead,
                                  (uint32_t)SHEAF_PREP_OWN_AHEAD)))
                return;
        unattach(member);
        own.owner = member;
        member->own = own;
        sheaf_prep_window_slide(member->group, &member->own, member->position);
        member->group->stats.detached++;
}

/* ---- members ---- */

int sheaf_prep_join(struct sheaf_prep_group *group,
        const struct sheaf_prep_member_config *config, int64_t now_ns,
        struct sheaf_prep_member **ret_member)
{
        struct sheaf_prep_worker *worker;
        struct sheaf_prep_member *member;

        if (group->stats.members >= SHEAF_PREP_MEMBERS_MAX)
                return -EBUSY;
        member = sheaf_new(struct sheaf_prep_member, 1);
        if (!member)
                return -ENOMEM;
        member->group = group;
        member->config = *config;
        member->number = ++group->numbers;
        member->active_ns = now_ns;
        member->self.group = group;
        member->self.member = member;
        LIST_FOREACH (worker, &group->workers, link)
                if (!worker->member &&
                        !memcmp(worker->id, config->id, sizeof(worker->id))) {
                        worker->member = member;
                        worker->gone = false;
                        member->workers++;
                }
        group->gathered |= config->gathered;
        LIST_INSERT_HEAD(&group->members, member, link);
        group->stats.members++;
        group->dirty = true;
        *ret_member = member;
        return 0;
}

void sheaf_prep_leave(
        struct sheaf_prep_member *member, bool for_good, int64_t now_ns)
{
        struct sheaf_prep_group *group = member->group;

        sheaf_prep_lease_end(&member->self,
                for_good ? SHEAF_PREP_RETURNED : SHEAF_PREP_DIED, NULL);
        unattach(member);
        LIST_REMOVE(member, link);
        group->stats.members--;
        sheaf_prep_window_free(group, &member->own);
        sheaf_prep_orphan(group, member, for_good, now_ns);
        refloor(group);
        free(member->unfit);
        free(member);
}

/* Its private batches begin elsewhere, or it has none yet. 0: it is detached.
 */
static int detach_at(struct sheaf_prep_member *member)
{
        struct sheaf_prep_group *group = member->group;
        int rc = 0;

        if (!member->own.cap)
                rc = sheaf_prep_window_new(
                        &member->own, SHEAF_MIN(group->config.ahead,
                                              (uint32_t)SHEAF_PREP_OWN_AHEAD));
        if (rc)
                return rc;
        member->own.owner = member;
        sheaf_prep_window_slide(group, &member->own, member->position);
        return 0;
}

/* While nobody was given anything the floor may fall: whoever begins first may
 * be of a rank that begins later. */
static void begin_lower(struct sheaf_prep_member *member, uint64_t batch)
{
        struct sheaf_prep_group *group = member->group;

        sheaf_prep_window_slide(group, &group->shared, batch);
        member->position = batch;
        member->begun = true;
        attach(member);
}

/* Goes on at @batch, which is of its rank. */
static int move(
        struct sheaf_prep_member *member, uint64_t batch, int64_t now_ns)
{
        struct sheaf_prep_group *group = member->group;

        if (member->self.holds && member->self.batch != batch)
                sheaf_prep_lease_end(&member->self, SHEAF_PREP_RETURNED, NULL);
        member->active_ns = now_ns;
        member->epoch = batch / group->config.batches;
        group->dirty = true;
        if (member->begun && batch == member->position)
                return 0;
        if (member->attached && batch > member->position) {
                uint64_t lo = SHEAF_MAX(member->position, group->shared.lo);
                uint64_t hi = SHEAF_MIN(batch, window_end(group));

                if (lo < hi)
                        sheaf_prep_need_sub(group, member, lo, hi);
                member->position = batch;
                refloor(group);
                return 0;
        }
        unattach(member);
        member->begun = false;
        refloor(group);
        if (group->shared.live && batch < group->shared.lo &&
                !group->gathered) {
                begin_lower(member, batch);
                return 0;
        }
        if (group->shared.live && batch < group->shared.lo) {
                member->position = batch;
                if (detach_at(member))
                        return -ENOMEM;
        } else if (member->own.cap) {
                sheaf_prep_window_free(group, &member->own);
        }
        member->position = batch;
        member->begun = true;
        refloor(group);
        return 0;
}

int sheaf_prep_begin(
        struct sheaf_prep_member *member, uint64_t batch, int64_t now_ns)
{
        if (batch >= SHEAF_PREP_BATCH_MAX)
                return -ERANGE;
        member->wants = false;
        return move(member, sheaf_prep_next_of(member, batch), now_ns);
}

int sheaf_prep_want(struct sheaf_prep_member *member, uint64_t batch,
        bool may_prepare, int64_t now_ns)
{
        int rc;

        if (batch >= SHEAF_PREP_BATCH_MAX ||
                sheaf_prep_next_of(member, batch) != batch)
                return -ERANGE;
        rc = move(member, batch, now_ns);
        if (rc)
                return rc;
        member->wants = true;
        member->may_prepare = may_prepare;
        return 0;
}

void sheaf_prep_took(struct sheaf_prep_member *member, int64_t now_ns)
{
        struct sheaf_prep_group *group = member->group;
        struct sheaf_prep_window *window = sheaf_prep_window_of(member);
        uint64_t batch = member->position;

        member->wants = false;
        member->asking_until_ns = 0;
        if (sheaf_prep_window_has(window, batch)) {
                if (window->state[sheaf_prep_at(window, batch)] ==
                        SHEAF_BATCH_STAGED)
                        group->stats.taken++;
                if (window->owner)
                        sheaf_prep_entry_clear(group, window, batch);
                else
                        sheaf_prep_need_sub(group, member, batch, batch + 1);
        }
        member->active_ns = now_ns;
        member->position = sheaf_prep_next_of(member, batch + 1);
        if (window->owner)
                sheaf_prep_window_slide(group, window, member->position);
        refloor(group);
}

/* ---- who holds the others back ---- */

static const uint64_t nobody = UINT64_MAX;

/* The farthest batches that somebody waits for and that may not be leased. */
struct blocked {
        bool ahead, full;
        uint64_t ahead_batch, full_batch, first_staged;
};

static void find_blocked(struct sheaf_prep_group *group, struct blocked *b)
{
        struct sheaf_prep_window *window = &group->shared;
        struct sheaf_prep_member *m;

        *b = (struct blocked){ .first_staged = nobody };
        if (!sheaf_prep_has_room(group))
                b->first_staged = sheaf_prep_first_staged(window);
        LIST_FOREACH (m, &group->members, link) {
                uint64_t want = m->position;

                if (!m->wants || !m->attached)
                        continue;
                if (!sheaf_prep_window_has(window, want)) {
                        b->ahead = true;
                        b->ahead_batch = SHEAF_MAX(b->ahead_batch, want);
                } else if (!window->state[sheaf_prep_at(window, want)] &&
                           !sheaf_prep_fits(group, want, b->first_staged)) {
                        b->full = true;
                        b->full_batch = SHEAF_MAX(b->full_batch, want);
                }
        }
}

static bool holds_back(
        const struct sheaf_prep_member *m, const struct blocked *b)
{
        if (!m->attached || m->wants)
                return false;
        if (b->ahead && m->position + m->group->config.ahead <= b->ahead_batch)
                return true;
        return b->full && m->position < b->full_batch &&
               m->position <= b->first_staged;
}

/* When its patience is over; INT64_MAX: it holds nobody back. */
static int64_t late_at(
        const struct sheaf_prep_member *m, const struct blocked *b)
{
        if (!holds_back(m, b))
                return INT64_MAX;
        return SHEAF_MAX(
                m->active_ns + m->config.patience_ns, m->asking_until_ns);
}

/* Those that are late, if the floor is not held by others as well: then it
 * would be of no use. True: somebody was. */
static bool detach_late(struct sheaf_prep_group *group, int64_t now_ns)
{
        struct sheaf_prep_member *m;
        struct blocked blocked;
        uint64_t floor = UINT64_MAX;
        bool any = false;

        group->lag_due_ns = INT64_MAX;
        find_blocked(group, &blocked);
        if (!blocked.ahead && !blocked.full)
                return false;
        LIST_FOREACH (m, &group->members, link) {
                int64_t due_ns = late_at(m, &blocked);

                if (!m->attached || due_ns <= now_ns)
                        continue;
                floor = SHEAF_MIN(floor, m->position);
                group->lag_due_ns = SHEAF_MIN(group->lag_due_ns, due_ns);
        }
        LIST_FOREACH (m, &group->members, link) {
                if (m->position >= floor || late_at(m, &blocked) > now_ns)
                        continue;
                detach(m);
                any |= !m->attached;
        }
        if (any)
                refloor(group);
        return any;
}

/* How many have to come: as those say that wait for them. Who is silent may be
 * stopped, and must not hold up the others once they wait no longer. */
static uint32_t most_announced(
        const struct sheaf_prep_group *group, int64_t now_ns)
{
        const struct sheaf_prep_member *m;
        uint32_t all = 0, asking = 0;

        LIST_FOREACH (m, &group->members, link) {
                all = SHEAF_MAX(all, m->config.gather);
                if (m->wants || m->asking_until_ns > now_ns)
                        asking = SHEAF_MAX(asking, m->config.gather);
        }
        return asking ? asking : all;
}

static void gather(struct sheaf_prep_group *group, int64_t now_ns)
{
        const struct sheaf_prep_member *m;
        uint32_t begun = 0, most = most_announced(group, now_ns);

        LIST_FOREACH (m, &group->members, link)
                begun += m->begun;
        group->stats.gather = most;
        if (begun && begun >= most)
                group->gathered = true;
}

void sheaf_prep_settle(struct sheaf_prep_group *group, int64_t now_ns)
{
        const struct sheaf_prep_member *m;
        uint64_t epoch = 0;

        if (!group->gathered)
                gather(group, now_ns);
        /* Each round detaches someone. */
        while (group->gathered && detach_late(group, now_ns))
                ;
        LIST_FOREACH (m, &group->members, link)
                if (m->attached)
                        epoch = SHEAF_MAX(epoch, m->epoch);
        group->hi = SHEAF_MIN(group->shared.lo + group->shared.cap,
                (epoch + 1) * group->config.batches);
        group->dirty = false;
}

/* ---- figures ---- */

void sheaf_prep_group_stats(const struct sheaf_prep_group *group,
        struct sheaf_prep_group_stats *ret_stats)
{
        *ret_stats = group->stats;
        ret_stats->begun = group->shared.live;
        ret_stats->floor = group->shared.live ? group->shared.lo : 0;
        ret_stats->gathered = group->gathered;
}

struct sheaf_prep_member *sheaf_prep_first(struct sheaf_prep_group *group)
{
        return LIST_FIRST(&group->members);
}

struct sheaf_prep_member *sheaf_prep_after(struct sheaf_prep_member *member)
{
        return LIST_NEXT(member, link);
}

struct sheaf_prep_member *sheaf_prep_find(
        struct sheaf_prep_group *group, const uint8_t id[16])
{
        struct sheaf_prep_member *member;

        LIST_FOREACH (member, &group->members, link)
                if (!memcmp(member->config.id, id, 16))
                        return member;
        return NULL;
}

void *sheaf_prep_member_arg(const struct sheaf_prep_member *member)
{
        return member->config.arg;
}
