/* SPDX-License-Identifier: Apache-2.0 */
/* Versions: their listings in memory, and how they go.
 *
 *  1 a version with handles stays loaded; the newest stays on disk
 *  2 an older version is removed when nobody held it for GRACE_NS, so that
 *    clients that reconnect after a restart of the daemon find theirs; and
 *    when the daemon never lives that long, after IDLE_STARTS_MAX starts
 *  3 lodgings go only when no flight uses them (registry_domain.c)
 *
 * Threads: loop thread. */
#include "daemon/registry/internal.h"

#include "daemon/clock.h"
#include "daemon/log.h"

#define GRACE_NS  (60 * SHEAF_NS_PER_SEC)
#define UNLOAD_NS (600 * SHEAF_NS_PER_SEC)
/* Clients reconnect within a second: so many starts do not pass unused, even
 * when none lives that long. */
#define IDLE_STARTS_MAX 64

struct sheaf_reg_version *sheaf_reg_version_new(
        struct sheaf_reg_dataset *dataset, SheafRecord__Version *record)
{
        struct sheaf_reg_version *v = sheaf_new(struct sheaf_reg_version, 1);

        if (!v)
                return NULL;
        v->dataset = dataset;
        v->record = record;
        v->block.memfd = -1;
        v->fetch.counters = &dataset->counts.fetch;
        v->fetch.attach = sheaf_registry_attach;
        v->idle_since_ns = sheaf_now_ns();
        sheaf_fetch_version_init(&v->fetch);
        TAILQ_INIT(&v->openings);
        LIST_INIT(&v->lodgings);
        return v;
}

/* @block becomes the version's. */
void sheaf_reg_version_take(struct sheaf_reg_version *v,
        const struct sheaf_listing_block *block, struct sheaf_version *stored)
{
        v->block = *block;
        v->fetch.listing = v->block.listing;
        v->fetch.stored = stored;
        v->fetch.sealed = v->record->root_digest.len != 0;
        v->load = SHEAF_LOADED;
}

struct sheaf_reg_version *sheaf_registry_add_version(
        struct sheaf_reg_dataset *dataset, SheafRecord__Version *record)
{
        struct sheaf_reg_version *v = sheaf_reg_version_new(dataset, record);

        if (v)
                TAILQ_INSERT_TAIL(&dataset->versions, v, link);
        return v;
}

struct sheaf_reg_version *sheaf_registry_version(
        struct sheaf_reg_dataset *dataset, const uint8_t *uuid)
{
        struct sheaf_reg_version *v;

        if (!uuid)
                return TAILQ_LAST(&dataset->versions, sheaf_version_list);
        TAILQ_FOREACH (v, &dataset->versions, link)
                if (memcmp(v->record->uuid.data, uuid, 16) == 0)
                        return v;
        return NULL;
}

/* ---- opening ---- */

/* Durable only when it soon would matter. */
static void end_idle_starts(struct sheaf_reg_version *v)
{
        bool many = v->record->idle_starts >= IDLE_STARTS_MAX / 2;

        v->record->idle_starts = 0;
        if (many)
                sheaf_registry_record(v->dataset, NULL, NULL);
}

void sheaf_registry_open(struct sheaf_opening *opening)
{
        struct sheaf_reg_version *v = opening->version;
        int rc;

        opening->pending = false;
        opening->tabling = NULL;
        if (v->dataset->moving) {
                opening->pending = true;
                TAILQ_INSERT_TAIL(&v->openings, opening, link);
                return;
        }
        end_idle_starts(v);
        if (v->load == SHEAF_LOADED) {
                v->handles++;
                sheaf_registry_opened(opening);
                return;
        }
        if (v->load == SHEAF_UNLOADED) {
                rc = sheaf_registry_load(v);
                if (rc) {
                        opening->done(opening, rc);
                        return;
                }
        }
        opening->pending = true;
        TAILQ_INSERT_TAIL(&v->openings, opening, link);
}

void sheaf_registry_moved(struct sheaf_reg_dataset *dataset)
{
        TAILQ_HEAD(, sheaf_opening) waiting = TAILQ_HEAD_INITIALIZER(waiting);
        struct sheaf_reg_version *v;
        struct sheaf_opening *opening;

        dataset->moving = false;
        TAILQ_FOREACH (v, &dataset->versions, link)
                TAILQ_CONCAT(&waiting, &v->openings, link);
        while ((opening = TAILQ_FIRST(&waiting))) {
                TAILQ_REMOVE(&waiting, opening, link);
                sheaf_registry_open(opening);
        }
}

void sheaf_registry_open_cancel(struct sheaf_opening *opening)
{
        if (!opening->pending)
                return;
        opening->pending = false;
        if (opening->tabling)
                sheaf_registry_forget_opening(opening);
        else
                TAILQ_REMOVE(&opening->version->openings, opening, link);
}

void sheaf_registry_unhold(struct sheaf_reg_version *version)
{
        if (--version->handles == 0)
                version->idle_since_ns = sheaf_now_ns();
}

/* ---- going ---- */

/* Takes @version out and returns where it was. */
size_t sheaf_reg_record_take(
        SheafRecord__Dataset *record, SheafRecord__Version *version)
{
        size_t at = 0;

        while (record->version[at] != version)
                at++;
        record->n_version--;
        memmove(&record->version[at], &record->version[at + 1],
                (record->n_version - at) * sizeof(*record->version));
        return at;
}

/* Undoes record_take: there is room, and the order says which is newest. */
static void record_put_back(
        SheafRecord__Dataset *record, size_t at, SheafRecord__Version *version)
{
        memmove(&record->version[at + 1], &record->version[at],
                (record->n_version - at) * sizeof(*record->version));
        record->version[at] = version;
        record->n_version++;
}

static bool version_evacuate(struct sheaf_reg_version *v)
{
        struct sheaf_reg_dataset *ds = v->dataset;

        /* A probe compares the origin with this listing. */
        if (ds->attachment == SHEAF_ATTACH_PROBING &&
                ds->probe.listing == &v->fetch.listing)
                return false;
        if (!sheaf_fetch_quiesce(ds->registry->fetcher, &v->fetch))
                return false;
        sheaf_registry_unlodge(v, NULL);
        return true;
}

bool sheaf_registry_evacuate(struct sheaf_reg_dataset *dataset)
{
        struct sheaf_reg_version *v;
        bool done = true;

        TAILQ_FOREACH (v, &dataset->versions, link)
                done &= v->load != SHEAF_LOADING && version_evacuate(v);
        if (done)
                sheaf_registry_end_tenancies(dataset, NULL);
        return done;
}

static void version_unload(struct sheaf_reg_version *v)
{
        sheaf_version_close(v->fetch.stored);
        v->fetch.stored = NULL;
        sheaf_listing_block_let_go(v->dataset->registry->store, &v->block);
        memset(&v->fetch.listing, 0, sizeof(v->fetch.listing));
        v->load = SHEAF_UNLOADED;
}

/* Removes a version from memory and disk; its record stays the caller's. */
static void version_remove(struct sheaf_reg_version *v)
{
        if (v->load == SHEAF_LOADED)
                version_unload(v);
        sheaf_version_remove(v->dataset->registry->store, v->record->uuid.data);
        if (v->dataset->registry->gone)
                v->dataset->registry->gone(
                        v->dataset->registry->gone_arg, v->record->uuid.data);
        free(v);
}

/* Counts this start; true: @record, replaced by @next, has had its time. */
static bool count_start(SheafRecord__Version *record,
        const SheafRecord__Version *next, bool *ret_changed)
{
        int64_t age_ns = sheaf_wall_ns() - (int64_t)next->listed_ns;

        /* Of one that was listed in the future the starts alone are known. */
        if (age_ns >= 0 && age_ns < GRACE_NS)
                return false;
        *ret_changed = true;
        return ++record->idle_starts > IDLE_STARTS_MAX;
}

static void age_dataset(struct sheaf_reg_dataset *ds)
{
        SheafRecord__Dataset *record = ds->record;
        size_t count = record->n_version, kept = 0;
        sheaf_autofree SheafRecord__Version **all =
                sheaf_new(SheafRecord__Version *, count + 1);
        bool changed = false;

        if (!all)
                return;
        for (size_t i = 0; i < count; i++) {
                SheafRecord__Version *v = all[i] = record->version[i];

                if (i + 1 == count ||
                        !count_start(v, record->version[i + 1], &changed))
                        record->version[kept++] = v;
        }
        record->n_version = kept;
        if (changed && sheaf_registry_save(ds)) {
                memcpy(record->version, all, count * sizeof(*all));
                record->n_version = count;
                return;
        }
        for (size_t i = 0, at = 0; i < count; i++) {
                struct sheaf_reg_version *v;

                if (at < kept && record->version[at] == all[i]) {
                        at++;
                        continue;
                }
                v = sheaf_registry_version(ds, all[i]->uuid.data);
                if (v) {
                        TAILQ_REMOVE(&ds->versions, v, link);
                        version_remove(v);
                }
                sheaf_record__version__free_unpacked(all[i], NULL);
        }
}

void sheaf_registry_age(struct sheaf_registry *registry)
{
        struct sheaf_reg_dataset *ds;

        /* A record that cannot be read stays as it is. */
        if (sheaf_registry_unreadable(registry))
                return;
        TAILQ_FOREACH (ds, &registry->datasets, link)
                age_dataset(ds);
}

/* An old version that goes: out of the record, and of sight, while that is
 * being written. */
struct retiring {
        struct sheaf_store_change change; /* first */
        struct sheaf_reg_version *version;
        struct sheaf_reg_version *next_version; /* before which it was */
        size_t at;                              /* in the record */
        bool taken;
};

static bool may_retire(struct sheaf_reg_version *v, int64_t now_ns)
{
        return TAILQ_NEXT(v, link) && !v->handles && v->load != SHEAF_LOADING &&
               !v->dataset->listing && now_ns - v->idle_since_ns >= GRACE_NS;
}

static int retire_begin(struct sheaf_store_change *change)
{
        struct retiring *r = (struct retiring *)change;
        struct sheaf_reg_version *v = r->version;
        struct sheaf_reg_dataset *ds = v->dataset;
        int rc;

        v->retiring = false;
        if (ds->removed || !may_retire(v, sheaf_now_ns()) ||
                !version_evacuate(v))
                return SHEAF_CHANGE_NONE;
        r->at = sheaf_reg_record_take(ds->record, v->record);
        rc = sheaf_registry_pack(ds, change);
        if (rc) {
                record_put_back(ds->record, r->at, v->record);
                return rc;
        }
        r->next_version = TAILQ_NEXT(v, link);
        TAILQ_REMOVE(&ds->versions, v, link);
        r->taken = true;
        return 0;
}

static void retired(struct sheaf_store_change *change, int rc)
{
        struct retiring *r = (struct retiring *)change;
        struct sheaf_reg_version *v = r->version;
        struct sheaf_reg_dataset *ds = v->dataset;

        ds->changes--;
        if (r->taken && rc) {
                record_put_back(ds->record, r->at, v->record);
                TAILQ_INSERT_BEFORE(r->next_version, v, link);
        } else if (r->taken) {
                SheafRecord__Version *record = v->record;

                version_remove(v);
                sheaf_record__version__free_unpacked(record, NULL);
        }
        free(r);
}

static void retire(struct sheaf_reg_version *v)
{
        struct retiring *r = sheaf_new(struct retiring, 1);

        if (!r)
                return;
        r->version = v;
        r->change.begin = retire_begin;
        r->change.done = retired;
        v->retiring = true;
        v->dataset->changes++;
        sheaf_store_change(v->dataset->registry->store, &r->change);
}

static void sweep_old_versions(struct sheaf_reg_dataset *ds, int64_t now_ns)
{
        struct sheaf_reg_version *v, *next;

        for (v = TAILQ_FIRST(&ds->versions); v; v = next) {
                next = TAILQ_NEXT(v, link);
                if (!v->retiring && may_retire(v, now_ns) &&
                        version_evacuate(v))
                        retire(v);
        }
        /* What nobody used for long gives its memory back. */
        v = TAILQ_LAST(&ds->versions, sheaf_version_list);
        if (v && v->load == SHEAF_LOADED && !v->handles && !ds->listing &&
                LIST_EMPTY(&v->lodgings) && !v->fetch.flights &&
                now_ns - v->idle_since_ns > UNLOAD_NS)
                version_unload(v);
}

static void sweep_leaving(struct sheaf_registry *registry)
{
        struct sheaf_reg_dataset *ds, *next;

        for (ds = TAILQ_FIRST(&registry->leaving); ds; ds = next) {
                struct sheaf_reg_version *v;
                bool held = ds->busy || ds->listing || ds->changes;

                next = TAILQ_NEXT(ds, link);
                TAILQ_FOREACH (v, &ds->versions, link)
                        held |= v->handles > 0;
                if (held || !sheaf_registry_evacuate(ds) ||
                        sheaf_registry_keep_counts(ds))
                        continue;
                while ((v = TAILQ_FIRST(&ds->versions))) {
                        TAILQ_REMOVE(&ds->versions, v, link);
                        version_remove(v);
                }
                sheaf_store_group_drop(registry->store, ds->record->id);
                TAILQ_REMOVE(&registry->leaving, ds, link);
                sheaf_registry_free_dataset(ds);
        }
}

void sheaf_registry_sweep(struct sheaf_registry *registry)
{
        struct sheaf_reg_dataset *ds;
        int64_t now_ns = sheaf_now_ns();

        TAILQ_FOREACH (ds, &registry->datasets, link)
                sweep_old_versions(ds, now_ns);
        sweep_leaving(registry);
        sheaf_registry_sweep_domains(registry);
}
