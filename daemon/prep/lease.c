/* SPDX-License-Identifier: Apache-2.0 */
/* Workers of a group: who prepares what.
 *
 *  1 a LEASED batch has one worker, which holds it; a worker holds one at most
 *  2 the first offer of a batch counts, also of a worker whose time was over:
 *    all would have offered the same bytes
 *  3 what leases are expected to bring is in the purse; a batch for which
 *    somebody waits while nothing before it is staged is leased over its
 *    bounds, or all might wait for room that nobody makes
 *
 * One thread. */
#include "daemon/prep/impl.h"

#include <stdarg.h>
#include <stdio.h>

#define WHY_BYTES_MAX (1 << 20) /* of a group; then texts are cut */
#define WHY_SHORT_MAX 1024
#define LONGEST_TIMES 8
#define LATE_MAX      3
#define UNKNOWN_PART  8 /* of the bytes, while no batch was seen */

/* ---- room ---- */

static uint64_t expected_bytes(const struct sheaf_prep_group *group)
{
        if (group->largest_bytes)
                return group->largest_bytes;
        return group->config.purse->bytes_max / UNKNOWN_PART;
}

bool sheaf_prep_has_room(const struct sheaf_prep_group *group)
{
        const struct sheaf_prep_purse *purse = group->config.purse;

        return !purse->shut && purse->files < purse->files_max &&
               purse->bytes + expected_bytes(group) <= purse->bytes_max;
}

bool sheaf_prep_fits(const struct sheaf_prep_group *group, uint64_t batch,
        uint64_t first_staged)
{
        return sheaf_prep_has_room(group) ||
               (!group->config.purse->shut && batch < first_staged);
}

/* ---- leases ---- */

static int64_t lease_ns(
        const struct sheaf_prep_group *group, const struct sheaf_prep_entry *e)
{
        int64_t ns = SHEAF_MAX(
                group->config.lease_ns, group->longest_ns * LONGEST_TIMES);

        return ns << SHEAF_MIN(e->late, LATE_MAX);
}

static void lease_begin(struct sheaf_prep_worker *worker,
        struct sheaf_prep_window *window, uint64_t batch, int64_t now_ns)
{
        struct sheaf_prep_group *group = worker->group;
        uint32_t at = sheaf_prep_at(window, batch);
        struct sheaf_prep_entry *entry = &window->entries[at];
        struct sheaf_prep_purse *purse = group->config.purse;

        window->state[at] = SHEAF_BATCH_LEASED;
        entry->worker = worker;
        entry->bytes = expected_bytes(group);
        purse->bytes += entry->bytes;
        purse->files++;
        worker->had = worker->holds = true;
        worker->own = window->owner != NULL;
        worker->batch = batch;
        worker->since_ns = now_ns;
        worker->until_ns = now_ns + lease_ns(group, entry);
}

/* Whether another job is to try it first. */
static bool shuns(const struct sheaf_prep_worker *worker,
        const struct sheaf_prep_entry *entry, int64_t now_ns)
{
        return entry->shunned && worker->member &&
               worker->member->number == entry->shunned &&
               now_ns < entry->shun_until_ns;
}

/* The lowest batch of @window that may be leased to @worker, below @hi. */
static bool find_free(struct sheaf_prep_worker *worker,
        struct sheaf_prep_window *window, uint64_t hi, int64_t now_ns,
        uint64_t *ret_batch)
{
        uint64_t b = SHEAF_MAX(window->hint, window->lo);

        if (!window->live)
                return false;
        for (; b < hi; b++) {
                uint32_t at = sheaf_prep_at(window, b);

                if (window->state[at] || !sheaf_prep_needed(window, b)) {
                        if (b == window->hint)
                                window->hint++;
                        continue;
                }
                if (!shuns(worker, &window->entries[at], now_ns)) {
                        *ret_batch = b;
                        return true;
                }
        }
        return false;
}

/* Where there is no room: one that somebody waits for, with nothing staged
 * before it. */
static bool find_wanted(
        struct sheaf_prep_worker *worker, int64_t now_ns, uint64_t *ret_batch)
{
        struct sheaf_prep_group *group = worker->group;
        struct sheaf_prep_window *window = &group->shared;
        uint64_t best = sheaf_prep_first_staged(window);
        const struct sheaf_prep_member *m;
        bool found = false;

        LIST_FOREACH (m, &group->members, link) {
                uint64_t b = m->position;
                uint32_t at = sheaf_prep_at(window, b);

                if (!m->attached || !m->wants || b >= best || b >= group->hi ||
                        !sheaf_prep_window_has(window, b) ||
                        window->state[at] ||
                        shuns(worker, &window->entries[at], now_ns))
                        continue;
                best = b;
                found = true;
        }
        if (found)
                *ret_batch = best;
        return found;
}

static uint64_t own_end(const struct sheaf_prep_member *member)
{
        const struct sheaf_prep_group *group = member->group;

        return SHEAF_MIN(
                SHEAF_MIN(member->own.lo + member->own.cap, group->shared.lo),
                (member->epoch + 1) * group->config.batches);
}

static bool lease_own(struct sheaf_prep_worker *worker, int64_t now_ns)
{
        struct sheaf_prep_group *group = worker->group;
        struct sheaf_prep_member *member = worker->member;
        uint64_t batch = 0;

        if (!member || !member->own.live ||
                !find_free(
                        worker, &member->own, own_end(member), now_ns, &batch))
                return false;
        if (!sheaf_prep_has_room(group) &&
                (group->config.purse->shut || !member->wants ||
                        member->position != batch)) {
                group->held = true;
                return false;
        }
        lease_begin(worker, &member->own, batch, now_ns);
        return true;
}

static bool lease_shared(struct sheaf_prep_worker *worker, int64_t now_ns)
{
        struct sheaf_prep_group *group = worker->group;
        uint64_t batch = 0;

        if (!find_free(worker, &group->shared, group->hi, now_ns, &batch))
                return false;
        if (!sheaf_prep_has_room(group)) {
                group->held = true;
                if (group->config.purse->shut ||
                        !find_wanted(worker, now_ns, &batch))
                        return false;
        }
        lease_begin(worker, &group->shared, batch, now_ns);
        return true;
}

bool sheaf_prep_lease(struct sheaf_prep_worker *worker, int64_t now_ns,
        struct sheaf_prep_dry *dry)
{
        const struct sheaf_prep_member *member = worker->member;

        if (lease_own(worker, now_ns))
                return true;
        if (dry->all ||
                (dry->any && dry->member == (member ? member->number : 0)))
                return false;
        if (lease_shared(worker, now_ns))
                return true;
        dry->all = worker->group->shun_due_ns == INT64_MAX;
        dry->any = true;
        dry->member = member ? member->number : 0;
        return false;
}

bool sheaf_prep_lease_self(struct sheaf_prep_member *member, int64_t now_ns)
{
        struct sheaf_prep_group *group = member->group;
        struct sheaf_prep_window *window = sheaf_prep_window_of(member);
        uint64_t batch = member->position;
        uint32_t at;

        if (!sheaf_prep_window_has(window, batch))
                return false;
        at = sheaf_prep_at(window, batch);
        if (window->state[at] ||
                shuns(&member->self, &window->entries[at], now_ns))
                return false;
        if (!sheaf_prep_fits(group, batch, sheaf_prep_first_staged(window))) {
                group->held = true;
                return false;
        }
        lease_begin(&member->self, window, batch, now_ns);
        return true;
}

/* ---- failures ---- */

static void set_why(struct sheaf_prep_group *group,
        struct sheaf_prep_entry *entry, const char *why)
{
        size_t most = group->why_bytes < WHY_BYTES_MAX ? SHEAF_PREP_WHY_MAX
                                                       : WHY_SHORT_MAX;

        if (entry->why)
                group->why_bytes -= strlen(entry->why);
        free(entry->why);
        /* Not in the middle of a character. */
        if (strlen(why) > most)
                while (most && (why[most] & 0xc0) == 0x80)
                        most--;
        entry->why = strndup(why, most);
        if (entry->why)
                group->why_bytes += strlen(entry->why);
}

/* It is leased no more, and not given out either. */
static void set_failed(struct sheaf_prep_group *group,
        struct sheaf_prep_window *window, uint32_t at, const char *why)
{
        window->state[at] = SHEAF_BATCH_FAILED;
        set_why(group, &window->entries[at], why);
        group->stats.failed++;
        group->dirty = true;
}

static void fail_ends(struct sheaf_prep_group *group,
        struct sheaf_prep_window *window, uint64_t batch)
{
        uint32_t at = sheaf_prep_at(window, batch);
        const struct sheaf_prep_entry *e = &window->entries[at];
        char text[768];

        snprintf(text, sizeof(text),
                "batch %llu (epoch %llu, place %llu): %u workers in turn did "
                "not prepare it: %u were not ready in time (lease, %lld ms and "
                "more), the others ended or offered what is no batch%s%.320s; "
                "see their output and the kernel log (out of memory), or give "
                "a longer lease",
                (unsigned long long)batch,
                (unsigned long long)(batch / group->config.batches),
                (unsigned long long)(batch % group->config.batches), e->ends,
                e->late, (long long)(group->config.lease_ns / SHEAF_NS_PER_MS),
                e->why ? ": " : "", e->why ? e->why : "");
        set_failed(group, window, at, text);
}

/* The entry that the worker's lease is or was about; NULL: nobody needs it. */
static struct sheaf_prep_window *window_of(struct sheaf_prep_worker *worker)
{
        struct sheaf_prep_group *group = worker->group;
        struct sheaf_prep_window *window = &group->shared;

        if (!worker->had)
                return NULL;
        if (worker->own)
                window = worker->member ? &worker->member->own : NULL;
        if (!window || !sheaf_prep_window_has(window, worker->batch) ||
                !sheaf_prep_needed(window, worker->batch))
                return NULL;
        return window;
}

void sheaf_prep_lease_end(struct sheaf_prep_worker *worker,
        enum sheaf_prep_end end, const char *why)
{
        struct sheaf_prep_group *group = worker->group;
        struct sheaf_prep_window *window = window_of(worker);
        struct sheaf_prep_entry *entry;
        uint32_t at;

        if (!worker->holds || !window)
                return;
        at = sheaf_prep_at(window, worker->batch);
        entry = &window->entries[at];
        worker->holds = false;
        window->state[at] = SHEAF_BATCH_FREE;
        entry->worker = NULL;
        group->config.purse->bytes -= entry->bytes;
        group->config.purse->files--;
        entry->bytes = 0;
        sheaf_prep_hint(window, worker->batch);
        group->dirty = true;
        if (end == SHEAF_PREP_RETURNED)
                return;
        group->stats.redone++;
        entry->ends++;
        entry->late += end == SHEAF_PREP_TIMED_OUT;
        if (why)
                set_why(group, entry, why);
        if (entry->ends >= SHEAF_PREP_ENDS_MAX)
                fail_ends(group, window, worker->batch);
}

/* Others of its member may be stopped as well: who lives asks again. */
static void time_out(struct sheaf_prep_worker *worker)
{
        struct sheaf_prep_worker *other;

        sheaf_prep_lease_end(worker, SHEAF_PREP_TIMED_OUT, NULL);
        TAILQ_FOREACH (other, &worker->group->asking, wait_link)
                if (worker->member && other->member == worker->member)
                        other->kicked = true;
}

static int64_t expire(
        struct sheaf_prep_worker *worker, int64_t now_ns, int64_t due_ns)
{
        if (!worker->holds)
                return due_ns;
        if (worker->until_ns > now_ns)
                return SHEAF_MIN(due_ns, worker->until_ns);
        time_out(worker);
        return due_ns;
}

int64_t sheaf_prep_expire(struct sheaf_prep_group *group, int64_t now_ns)
{
        struct sheaf_prep_worker *worker;
        struct sheaf_prep_member *member;
        int64_t due_ns = INT64_MAX;

        LIST_FOREACH (worker, &group->workers, link) {
                due_ns = expire(worker, now_ns, due_ns);
                if (worker->member || worker->gone)
                        continue;
                if (worker->orphan_ns + SHEAF_PREP_ORPHAN_NS <= now_ns)
                        worker->gone = true;
                else
                        due_ns = SHEAF_MIN(due_ns,
                                worker->orphan_ns + SHEAF_PREP_ORPHAN_NS);
        }
        LIST_FOREACH (member, &group->members, link)
                due_ns = expire(&member->self, now_ns, due_ns);
        if (group->shun_due_ns <= now_ns)
                group->shun_due_ns = INT64_MAX;
        return SHEAF_MIN(due_ns, group->shun_due_ns);
}

/* ---- workers ---- */

int sheaf_prep_work(struct sheaf_prep_group *group, const uint8_t id[16],
        void *arg, int64_t now_ns, struct sheaf_prep_worker **ret_worker)
{
        struct sheaf_prep_worker *worker;

        if (group->stats.workers >= SHEAF_PREP_WORKERS_MAX)
                return -EBUSY;
        worker = sheaf_new(struct sheaf_prep_worker, 1);
        if (!worker)
                return -ENOMEM;
        worker->group = group;
        worker->arg = arg;
        memcpy(worker->id, id, sizeof(worker->id));
        worker->orphan_ns = now_ns;
        worker->member = sheaf_prep_find(group, id);
        if (worker->member)
                worker->member->workers++;
        LIST_INSERT_HEAD(&group->workers, worker, link);
        group->stats.workers++;
        *ret_worker = worker;
        return 0;
}

void sheaf_prep_retire(
        struct sheaf_prep_worker *worker, bool for_good, int64_t now_ns)
{
        struct sheaf_prep_group *group = worker->group;

        (void)now_ns;
        sheaf_prep_lease_end(
                worker, for_good ? SHEAF_PREP_RETURNED : SHEAF_PREP_DIED, NULL);
        sheaf_prep_unask(worker);
        if (worker->member)
                worker->member->workers--;
        LIST_REMOVE(worker, link);
        group->stats.workers--;
        group->dirty = true;
        free(worker);
}

void sheaf_prep_orphan(struct sheaf_prep_group *group,
        struct sheaf_prep_member *member, bool for_good, int64_t now_ns)
{
        struct sheaf_prep_worker *worker;

        LIST_FOREACH (worker, &group->workers, link) {
                if (worker->member != member)
                        continue;
                worker->member = NULL;
                worker->gone = for_good;
                worker->orphan_ns = now_ns;
                if (worker->own)
                        worker->had = worker->holds = false;
        }
}

void sheaf_prep_ask(struct sheaf_prep_worker *worker)
{
        if (worker->asks)
                return;
        worker->asks = true;
        worker->kicked = false;
        TAILQ_INSERT_TAIL(&worker->group->asking, worker, wait_link);
}

void sheaf_prep_unask(struct sheaf_prep_worker *worker)
{
        if (!worker->asks)
                return;
        worker->asks = false;
        TAILQ_REMOVE(&worker->group->asking, worker, wait_link);
}

struct sheaf_prep_worker *sheaf_prep_self(struct sheaf_prep_member *member)
{
        return &member->self;
}

/* ---- what they bring ---- */

/* Where @batch is to go; -ESTALE, and it is the worker's no more. */
static int find_leased(struct sheaf_prep_worker *worker, uint64_t batch,
        struct sheaf_prep_window **ret_window, uint32_t *ret_at)
{
        struct sheaf_prep_group *group = worker->group;
        struct sheaf_prep_window *window;

        if (!worker->had || worker->batch != batch)
                return -ESTALE;
        window = window_of(worker);
        if (window) {
                *ret_at = sheaf_prep_at(window, batch);
                if (window->state[*ret_at] < SHEAF_BATCH_STAGED) {
                        *ret_window = window;
                        return 0;
                }
        }
        group->stats.late++;
        worker->had = false;
        return -ESTALE;
}

/* Ends whichever lease of it there is. */
static void take_back(struct sheaf_prep_group *group,
        struct sheaf_prep_window *window, uint32_t at)
{
        struct sheaf_prep_entry *entry = &window->entries[at];

        if (window->state[at] == SHEAF_BATCH_LEASED) {
                entry->worker->holds = false;
                entry->worker = NULL;
                group->config.purse->bytes -= entry->bytes;
                group->config.purse->files--;
                entry->bytes = 0;
        }
        window->state[at] = SHEAF_BATCH_FREE;
}

static void unfit(struct sheaf_prep_worker *worker, const char *schema)
{
        struct sheaf_prep_member *member = worker->member;
        char text[768];

        sheaf_prep_lease_end(worker, SHEAF_PREP_RETURNED, NULL);
        worker->had = false;
        if (!member || member->unfit)
                return;
        snprintf(text, sizeof(text),
                "its worker prepares batches of another kind than the group's: "
                "%.256s, and the group has %.256s; give it a group of another "
                "name, or the same transform; where that depends on the "
                "samples, a collate_fn that makes one kind of them",
                schema, worker->group->schema);
        member->unfit = strdup(text);
        worker->group->dirty = true;
}

static int too_large(struct sheaf_prep_worker *worker,
        struct sheaf_prep_window *window, uint32_t at, uint64_t bytes)
{
        char text[256];

        take_back(worker->group, window, at);
        worker->had = false;
        snprintf(text, sizeof(text),
                "batch %llu has %llu bytes, and all prepared batches together "
                "may have %llu; start sheafd with a larger --prep",
                (unsigned long long)worker->batch, (unsigned long long)bytes,
                (unsigned long long)worker->group->config.purse->single_max);
        set_failed(worker->group, window, at, text);
        return -EFBIG;
}

int sheaf_prep_offer(struct sheaf_prep_worker *worker, uint64_t batch, int fd,
        uint64_t bytes, const char *schema, int64_t now_ns)
{
        struct sheaf_prep_group *group = worker->group;
        struct sheaf_prep_window *window;
        struct sheaf_prep_entry *entry;
        int64_t took_ns;
        uint32_t at;
        int rc = find_leased(worker, batch, &window, &at);

        if (rc)
                return rc;
        if (group->has_schema && strcmp(group->schema, schema) != 0) {
                unfit(worker, schema);
                return -EEXIST;
        }
        if (bytes > group->config.purse->single_max)
                return too_large(worker, window, at, bytes);
        if (!group->has_schema)
                snprintf(group->schema, sizeof(group->schema), "%s", schema);
        group->has_schema = true;
        took_ns = now_ns - worker->since_ns;
        group->longest_ns =
                SHEAF_MAX(took_ns, group->longest_ns - group->longest_ns / 64);
        group->largest_bytes = SHEAF_MAX(group->largest_bytes, bytes);
        take_back(group, window, at);
        entry = &window->entries[at];
        window->state[at] = SHEAF_BATCH_STAGED;
        window->staged++;
        entry->fd = fd;
        entry->bytes = bytes;
        group->config.purse->bytes += bytes;
        group->config.purse->files++;
        worker->had = false;
        group->stats.staged++;
        group->stats.staged_bytes += bytes;
        group->stats.prepared++;
        group->stats.own += window->owner != NULL;
        group->dirty = true;
        return 0;
}

/* Whether a member other than @not may prepare a shared batch. */
static bool others_prepare(const struct sheaf_prep_group *group,
        const struct sheaf_prep_member *but)
{
        const struct sheaf_prep_member *m;

        LIST_FOREACH (m, &group->members, link)
                if (m != but && !m->unfit && m->attached &&
                        (m->workers || (m->may_prepare && m->wants)))
                        return true;
        return false;
}

int sheaf_prep_fail(struct sheaf_prep_worker *worker, uint64_t batch,
        const char *why, int64_t now_ns)
{
        struct sheaf_prep_group *group = worker->group;
        struct sheaf_prep_window *window;
        struct sheaf_prep_entry *entry;
        uint32_t at;
        int rc = find_leased(worker, batch, &window, &at);

        if (rc)
                return rc;
        entry = &window->entries[at];
        if (window->state[at] == SHEAF_BATCH_LEASED &&
                entry->worker != worker) {
                /* Another is at it: that may do better. */
                entry->reported = true;
                worker->had = false;
                return 0;
        }
        take_back(group, window, at);
        worker->had = false;
        if (entry->reported || window->owner || !worker->member ||
                !others_prepare(group, worker->member)) {
                set_failed(group, window, at, why);
                return 0;
        }
        entry->reported = true;
        entry->shunned = worker->member->number;
        entry->shun_until_ns =
                now_ns + SHEAF_MIN(lease_ns(group, entry), SHEAF_PREP_SHUN_NS);
        group->shun_due_ns =
                SHEAF_MIN(group->shun_due_ns, entry->shun_until_ns);
        set_why(group, entry, why);
        group->stats.redone++;
        sheaf_prep_hint(window, batch);
        group->dirty = true;
        return 0;
}

int sheaf_prep_spoil(struct sheaf_prep_worker *worker, uint64_t batch,
        const char *why, int64_t now_ns)
{
        struct sheaf_prep_window *window;
        uint32_t at;
        int rc = find_leased(worker, batch, &window, &at);

        (void)now_ns;
        if (rc)
                return rc;
        if (worker->holds)
                sheaf_prep_lease_end(worker, SHEAF_PREP_SPOILED, why);
        worker->had = false;
        return 0;
}
