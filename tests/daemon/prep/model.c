/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of chance and what must hold after each:
 *
 *  1 a member gets what it waits for, which is its next batch, from a file
 *    that is that batch's and is still there; once, or is told that it failed
 *  2 a batch that has failed had a fault
 *  3 a shared file is there exactly while an attached member needs it and it
 *    is within reach of the floor; there is one a batch
 *  4 what is leased is needed, within reach of the floor and of an epoch that
 *    was begun; nobody else has it, unless that one's time was over
 *  5 what is staged is in the purse; whenever nothing is left to be answered
 *    batches can be shed until no more is staged than is allowed, and others
 *    at any time: everybody goes on
 *  6 the floor is where the last attached member is */
#include "tests/daemon/prep/model.h"

#include <stdarg.h>
#include <stdio.h>

#define MS        SHEAF_NS_PER_MS
#define SIZE_MAX_ 2000

static uint32_t pick(struct model *model, uint32_t below)
{
        model->rng = model->rng * 1664525 + 1013904223;
        return (uint32_t)(((uint64_t)(model->rng >> 8) * below) >> 24);
}

SHEAF_PRINTF(2, 3)
static void wrong(struct model *model, const char *format, ...)
{
        va_list args;

        if (model->wrong)
                return;
        va_start(args, format);
        vsnprintf(model->text, sizeof(model->text), format, args);
        va_end(args);
        model->wrong = model->text;
}

static void drop(void *arg, int fd)
{
        struct model *model = arg;

        if (fd < 0 || fd >= model->files || !model->file[fd].live) {
                wrong(model, "file %d was dropped twice", fd);
                return;
        }
        model->file[fd].live = false;
        /* Leases of it ended when it came. */
        for (int i = 0; i < MODEL_WORKERS; i++)
                if (model->w[i].batch == model->file[fd].batch)
                        model->w[i].voided = true;
}

void model_begin(struct model *model, uint32_t seed)
{
        struct sheaf_prep_config config;

        memset(model, 0, sizeof(*model));
        model->seed = model->rng = seed;
        model->batches = 1 + pick(model, 24);
        model->ahead = 1 + pick(model, 12);
        model->lease_ns = 1000 * MS;
        model->pressed = !pick(model, 3);
        model->now_ns = 1;
        model->purse = (struct sheaf_prep_purse){
                .bytes_max = pick(model, 3) ? UINT64_C(1) << 40
                                            : (1 + pick(model, 8)) * SIZE_MAX_,
                .single_max = UINT64_C(1) << 40,
                .files_max = pick(model, 4) ? 10000 : 1 + pick(model, 6)
        };
        config = (struct sheaf_prep_config){ .batches = model->batches,
                .ahead = model->ahead,
                .lease_ns = model->lease_ns,
                .purse = &model->purse,
                .drop = drop,
                .arg = model };
        if (sheaf_prep_group_new(&config, &model->group))
                abort();
}

/* ---- what the model knows ---- */

static bool is_of(
        const struct model *model, const struct model_member *m, uint64_t batch)
{
        return batch % model->batches % m->world == m->rank;
}

static uint64_t next_of(
        const struct model *model, const struct model_member *m, uint64_t batch)
{
        while (!is_of(model, m, batch))
                batch++;
        return batch;
}

static bool is_attached(const struct model_member *m)
{
        struct sheaf_prep_member_stats stats;

        if (!m->here || !m->begun)
                return false;
        sheaf_prep_member_stats(m->member, &stats);
        return !stats.detached;
}

static bool find_floor(struct model *model, uint64_t *ret_floor)
{
        uint64_t floor = UINT64_MAX;

        for (int i = 0; i < MODEL_MEMBERS; i++)
                if (is_attached(&model->m[i]))
                        floor = SHEAF_MIN(floor, model->m[i].position);
        *ret_floor = floor;
        return floor != UINT64_MAX;
}

static bool is_needed(struct model *model, uint64_t batch)
{
        uint64_t floor;

        if (!find_floor(model, &floor) || batch < floor ||
                batch >= floor + model->ahead)
                return false;
        for (int i = 0; i < MODEL_MEMBERS; i++) {
                const struct model_member *m = &model->m[i];

                if (is_attached(m) && m->position <= batch &&
                        is_of(model, m, batch))
                        return true;
        }
        return false;
}

static uint64_t begun_epoch(const struct model *model)
{
        uint64_t epoch = 0;

        for (int i = 0; i < MODEL_MEMBERS; i++)
                if (model->m[i].here && model->m[i].begun)
                        epoch = SHEAF_MAX(epoch, model->m[i].epoch);
        return epoch;
}

static struct model_member *member_of(struct model *model, int id)
{
        for (int i = 0; i < MODEL_MEMBERS; i++)
                if (model->m[i].here && model->m[i].id == id)
                        return &model->m[i];
        return NULL;
}

/* Whether @batch is leased to a worker of @m as one of its private ones. */
static bool is_private(
        const struct model *model, const struct model_member *m, uint64_t batch)
{
        return m && m->begun && !is_attached(m) && batch >= m->position &&
               batch < m->position + SHEAF_MIN(model->ahead,
                                             (uint32_t)SHEAF_PREP_OWN_AHEAD) &&
               is_of(model, m, batch);
}

/* ---- what must hold ---- */

static void check_files(struct model *model)
{
        struct sheaf_prep_group_stats stats;
        uint32_t live = 0;

        while (model->first_live < model->files &&
                !model->file[model->first_live].live)
                model->first_live++;
        for (int i = model->first_live; i < model->files; i++) {
                const struct model_file *f = &model->file[i];
                bool needed;

                if (!f->live)
                        continue;
                if (f->owner < 0)
                        needed = is_needed(model, f->batch);
                else
                        needed = is_private(
                                model, member_of(model, f->owner), f->batch);
                live++;
                if (!needed)
                        wrong(model, "file %d of batch %lu is kept for nobody",
                                i, (unsigned long)f->batch);
                for (int k = model->first_live; f->owner < 0 && k < i; k++)
                        if (model->file[k].live && model->file[k].owner < 0 &&
                                model->file[k].batch == f->batch)
                                wrong(model, "batch %lu is there twice",
                                        (unsigned long)f->batch);
        }
        sheaf_prep_group_stats(model->group, &stats);
        if (stats.staged != live)
                wrong(model, "%u files staged, of %u", stats.staged, live);
        if (model->purse.files < live)
                wrong(model, "%u files in the purse, of %u", model->purse.files,
                        live);
        if (model->purse.bytes < stats.staged_bytes)
                wrong(model, "bytes staged are not in the purse");
}

/* All that was attached may have changed: then need not be what it was. */
static void void_leases(struct model *model)
{
        for (int i = 0; i < MODEL_WORKERS; i++)
                model->w[i].voided = true;
}

static void note_detached(struct model *model)
{
        struct sheaf_prep_group_stats stats;

        sheaf_prep_group_stats(model->group, &stats);
        if (stats.detached != model->detached)
                void_leases(model);
        model->detached = stats.detached;
}

static void check(struct model *model)
{
        struct sheaf_prep_group_stats stats;
        uint64_t floor = 0;
        bool begun = find_floor(model, &floor);

        sheaf_prep_group_stats(model->group, &stats);
        if (stats.begun != begun || (begun && stats.floor != floor))
                wrong(model, "floor %lu, not %lu", (unsigned long)stats.floor,
                        (unsigned long)floor);
        for (int i = 0; i < MODEL_MEMBERS; i++)
                if (model->m[i].here && model->m[i].begun && begun &&
                        is_attached(&model->m[i]) !=
                                (model->m[i].position >= floor))
                        wrong(model, "member %d at %lu, floor %lu", i,
                                (unsigned long)model->m[i].position,
                                (unsigned long)floor);
        check_files(model);
        for (int i = 0; i < MODEL_WORKERS; i++) {
                struct model_worker *w = &model->w[i];

                if (w->here && w->leased && !is_needed(model, w->batch))
                        w->voided = true;
        }
}

static void check_lease(struct model *model, struct model_worker *w)
{
        struct model_member *m = member_of(model, w->id);
        uint64_t floor = 0;
        bool shared;

        find_floor(model, &floor);
        shared = is_needed(model, w->batch);
        if (is_private(model, m, w->batch) && w->batch < floor)
                return;
        if (!shared)
                wrong(model, "batch %lu is leased and not needed",
                        (unsigned long)w->batch);
        if (w->batch / model->batches > begun_epoch(model))
                wrong(model, "batch %lu is of no epoch that was begun",
                        (unsigned long)w->batch);
        for (int i = 0; i < model->files; i++)
                if (model->file[i].live && model->file[i].owner < 0 &&
                        model->file[i].batch == w->batch)
                        wrong(model, "batch %lu is leased and there",
                                (unsigned long)w->batch);
        for (int i = 0; i < MODEL_WORKERS; i++) {
                const struct model_worker *v = &model->w[i];

                if (v != w && v->here && v->leased && !v->voided &&
                        v->batch == w->batch &&
                        model->now_ns < v->since_ns + model->lease_ns &&
                        !v->own)
                        wrong(model, "batch %lu is leased twice",
                                (unsigned long)w->batch);
        }
}

/* ---- what the group answers ---- */

static void given(struct model *model, const struct sheaf_prep_event *event)
{
        struct model_member *m = event->arg;

        if (!m->here || !m->wants || event->batch != m->position)
                wrong(model, "member at %lu is given %lu",
                        (unsigned long)m->position,
                        (unsigned long)event->batch);
        if (event->kind == SHEAF_PREP_GIVE) {
                const struct model_file *f = &model->file[event->fd];

                if (!f->live || f->batch != event->batch ||
                        (f->owner >= 0 && f->owner != m->id))
                        wrong(model, "file %d is given as batch %lu", event->fd,
                                (unsigned long)event->batch);
                model->given++;
        } else {
                if (!m->unfit && !model->faults[event->batch])
                        wrong(model, "batch %lu failed without a fault",
                                (unsigned long)event->batch);
                model->told++;
        }
        m->wants = false;
        m->position = next_of(model, m, event->batch + 1);
        sheaf_prep_took(event->member, model->now_ns);
}

static void answered(struct model *model, const struct sheaf_prep_event *event)
{
        struct model_worker *w = event->arg;
        struct model_member *m = event->arg;
        uint64_t floor;

        switch (event->kind) {
        case SHEAF_PREP_GIVE:
        case SHEAF_PREP_TELL:
                given(model, event);
                break;
        case SHEAF_PREP_DO:
                m->wants = false;
                m->self_leased = true;
                m->self_batch = event->batch;
                break;
        case SHEAF_PREP_LEASE:
                w->asks = false;
                if (w->leased && w->batch == event->batch)
                        break; /* it may be told again */
                find_floor(model, &floor);
                w->own = event->batch < floor;
                w->leased = w->had = true;
                w->batch = event->batch;
                w->since_ns = model->now_ns;
                w->voided = false;
                check_lease(model, w);
                break;
        default:
                w->asks = false;
                break;
        }
}

/* What others need, or nobody. True: one is gone. */
static bool shed(struct model *model)
{
        struct sheaf_prep_group_stats stats;
        bool over;

        sheaf_prep_group_stats(model->group, &stats);
        over = stats.staged_bytes > model->purse.bytes_max;
        if (!over && (!model->pressed || pick(model, 16)))
                return false;
        if (sheaf_prep_shed(model->group))
                return true;
        if (over)
                wrong(model, "more is staged than is allowed");
        return false;
}

static void answers(struct model *model)
{
        struct sheaf_prep_event event;

        for (int i = 0; i < 10000 && !model->wrong; i++) {
                sheaf_prep_next(model->group, model->now_ns, &event);
                note_detached(model);
                if (!event.kind) {
                        check(model);
                        if (!shed(model))
                                return;
                        continue;
                }
                answered(model, &event);
                check(model);
        }
        wrong(model, "it does not come to an end");
}

/* ---- steps ---- */

static void join(struct model *model, struct model_member *m)
{
        struct sheaf_prep_member_config config = { .arg = m };

        m->id = (int)(m - model->m);
        m->world = pick(model, 3) ? 1 : 1 + pick(model, 3);
        m->world = SHEAF_MIN(m->world, model->batches);
        m->rank = pick(model, m->world);
        m->patience_ns = pick(model, 4) * 500 * MS;
        m->prepares = pick(model, 2);
        m->begun = m->wants = m->stopped = m->self_leased = m->unfit = false;
        memset(config.id, m->id, sizeof(config.id));
        config.rank = m->rank;
        config.world = m->world;
        config.patience_ns = m->patience_ns;
        config.gather = pick(model, 6) ? 0 : 2;
        if (sheaf_prep_join(model->group, &config, model->now_ns, &m->member))
                abort();
        m->here = true;
}

static void begin(struct model *model, struct model_member *m, uint64_t batch)
{
        if (batch >= MODEL_BATCHES - 200)
                return;
        if (m->begun && batch < m->position)
                void_leases(model);
        m->wants = false;
        if (sheaf_prep_begin(m->member, batch, model->now_ns))
                abort();
        m->position = next_of(model, m, batch);
        m->epoch = m->position / model->batches;
        m->begun = true;
}

/* Whose the last file is, by what was counted. */
static void offered(struct model *model, int rc, uint64_t own_before, int id)
{
        struct sheaf_prep_group_stats stats;

        sheaf_prep_group_stats(model->group, &stats);
        if (rc)
                model->file[--model->files].live = false;
        else if (stats.own > own_before)
                model->file[model->files - 1].owner = id;
}

static int offer_file(struct model *model, struct sheaf_prep_worker *worker,
        uint64_t batch, int id)
{
        struct sheaf_prep_group_stats stats;
        int rc;

        sheaf_prep_group_stats(model->group, &stats);
        model->file[model->files++] = (struct model_file){
                .batch = batch, .owner = -1, .live = true
        };
        rc = sheaf_prep_offer(worker, batch, model->files - 1,
                1 + pick(model, SIZE_MAX_), "s", model->now_ns);
        offered(model, rc, stats.own, id);
        return rc;
}

/* It goes on as loaders do. */
static void ask(struct model *model, struct model_member *m)
{
        if (!m->begun) {
                uint64_t floor;

                begin(model, m,
                        find_floor(model, &floor) && pick(model, 3)
                                ? floor / model->batches * model->batches
                                : pick(model, 3) * model->batches);
                return;
        }
        if (m->wants || m->position >= MODEL_BATCHES - 100)
                return;
        if (m->self_leased && m->self_batch == m->position) {
                m->self_leased = false;
                offer_file(model, sheaf_prep_self(m->member), m->self_batch,
                        m->id);
                return;
        }
        m->self_leased = false;
        if (sheaf_prep_want(m->member, m->position, m->prepares, model->now_ns))
                abort();
        m->epoch = m->position / model->batches;
        m->wants = true;
}

static void leave(struct model *model, struct model_member *m)
{
        if (m->self_leased)
                model->faults[m->self_batch]++;
        sheaf_prep_leave(m->member, pick(model, 2), model->now_ns);
        void_leases(model);
        m->here = m->wants = false;
}

static void step_member(struct model *model, struct model_member *m)
{
        uint32_t what = pick(model, 100);

        if (!m->here) {
                if (what < 30)
                        join(model, m);
        } else if (m->stopped) {
                m->stopped = what >= 5;
        } else if (what < 2) {
                leave(model, m);
        } else if (what < 4) {
                m->stopped = true;
        } else if (what < 5 && m->begun) {
                begin(model, m, m->position + pick(model, 20));
        } else if (what < 6 && m->begun) {
                begin(model, m,
                        m->position - SHEAF_MIN(m->position,
                                              (uint64_t)pick(model, 20)));
        } else if (what < 8 && m->wants) {
                sheaf_prep_unwant(m->member, model->now_ns);
                m->wants = false;
        } else {
                ask(model, m);
        }
}

static void retire(struct model *model, struct model_worker *w)
{
        bool for_good = pick(model, 2);

        if (w->leased && !for_good)
                model->faults[w->batch]++;
        sheaf_prep_retire(w->worker, for_good, model->now_ns);
        w->here = w->asks = w->leased = w->had = false;
}

static void offer(struct model *model, struct model_worker *w)
{
        int rc = offer_file(model, w->worker, w->batch, w->id);

        if (rc && rc != -ESTALE)
                wrong(model, "an offer is refused: %d", rc);
        w->leased = w->had = false;
}

static void step_worker(struct model *model, struct model_worker *w)
{
        uint32_t what = pick(model, 100);
        uint8_t id[16];

        if (!w->here) {
                if (what >= 40)
                        return;
                w->id = (int)pick(model, MODEL_MEMBERS);
                w->stopped = false;
                memset(id, w->id, sizeof(id));
                if (sheaf_prep_work(
                            model->group, id, w, model->now_ns, &w->worker))
                        abort();
                w->here = true;
        } else if (w->stopped) {
                w->stopped = what >= 5;
        } else if (what < 2) {
                retire(model, w);
        } else if (what < 4) {
                w->stopped = true;
        } else if (w->had && what < 8) {
                model->faults[w->batch]++;
                if (what < 6)
                        (void)!sheaf_prep_fail(
                                w->worker, w->batch, "it fails", model->now_ns);
                else
                        (void)!sheaf_prep_spoil(w->worker, w->batch,
                                "it is no file", model->now_ns);
                w->leased = w->had = false;
        } else if (w->had && what < 70) {
                offer(model, w);
        } else if (!w->asks) {
                sheaf_prep_ask(w->worker);
                w->asks = true;
        } else if (what < 75) {
                sheaf_prep_unask(w->worker);
                w->asks = false;
        }
}

/* Time goes on, and leases may end. */
static void step_time(struct model *model, int64_t ns)
{
        model->now_ns += ns;
        for (int i = 0; i < MODEL_WORKERS; i++) {
                struct model_worker *w = &model->w[i];

                if (w->here && w->leased &&
                        model->now_ns >= w->since_ns + model->lease_ns)
                        model->faults[w->batch]++;
        }
        for (int i = 0; i < MODEL_MEMBERS; i++)
                if (model->m[i].here && model->m[i].self_leased)
                        model->faults[model->m[i].self_batch]++;
        sheaf_prep_tick(model->group, model->now_ns);
}

void model_step(struct model *model)
{
        uint32_t what = pick(model, 20);

        if (model->files > MODEL_FILES - 8)
                return;
        model->steps++;
        if (what < 9)
                step_member(model, &model->m[pick(model, MODEL_MEMBERS)]);
        else if (what < 18)
                step_worker(model, &model->w[pick(model, MODEL_WORKERS)]);
        else
                step_time(model, pick(model, 400) * MS);
        answers(model);
}

/* ---- in the end ---- */

/* Members go on, and one fair worker prepares; the stopped stay stopped, so
 * each wait is bounded by their patience and their leases. */
void model_finish(struct model *model)
{
        struct model_worker *w = &model->w[0];
        uint64_t end[MODEL_MEMBERS];
        bool left = true, prepare = pick(model, 2);

        if (w->here)
                retire(model, w);
        w->id = 0;
        w->stopped = false;
        if (sheaf_prep_work(model->group, (uint8_t[16]){ 0 }, w, model->now_ns,
                    &w->worker))
                abort();
        w->here = true;
        for (int i = 0; i < MODEL_MEMBERS; i++) {
                struct model_member *m = &model->m[i];

                if (i == 0 && !m->here)
                        join(model, m);
                if (m->here && !m->stopped && !m->begun)
                        begin(model, m, 0);
                /* One by its worker, the others by themselves. */
                m->prepares = i > 0 || prepare;
                if (m->wants) {
                        sheaf_prep_unwant(m->member, model->now_ns);
                        m->wants = false;
                }
                end[i] = m->here && !m->stopped ? m->position + 30 : 0;
        }
        /* Leases double thrice, and are at most eight times as long as what was
         * seen; all in all a wait is far shorter than this. */
        for (int round = 0; round < 20000 && left && !model->wrong; round++) {
                left = false;
                for (int i = 0; i < MODEL_MEMBERS; i++) {
                        struct model_member *m = &model->m[i];

                        if (!m->here || m->stopped)
                                continue;
                        if (i == 0 && m->position >= end[i]) {
                                /* The worker is its own: it goes on. */
                                ask(model, m);
                                answers(model);
                                continue;
                        }
                        if (m->position >= end[i] && !m->self_leased) {
                                /* It goes, so that it holds nobody back. */
                                leave(model, m);
                                continue;
                        }
                        left = true;
                        ask(model, m);
                        answers(model);
                }
                if (w->had)
                        offer(model, w);
                if (!w->asks) {
                        sheaf_prep_ask(w->worker);
                        w->asks = true;
                }
                answers(model);
                step_time(model, 50 * MS);
                answers(model);
        }
        if (left)
                wrong(model, "somebody waits for ever");
}

void model_end(struct model *model)
{
        sheaf_prep_group_free(model->group);
        for (int i = 0; i < model->files; i++)
                if (model->file[i].live)
                        wrong(model, "file %d was not given back", i);
        if (model->purse.bytes || model->purse.files)
                wrong(model, "the purse is not empty");
}
