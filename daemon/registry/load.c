/* SPDX-License-Identifier: Apache-2.0 */
/* Versions on their way into memory: read from the disk, or new.
 *
 *  1 what takes long is done on the pool, and what the loop thread alone may
 *    do, chunk by chunk, a little in each turn of the loop; nobody sees the
 *    version before all is done
 *  2 digests are inherited from the version before, which stays for that long
 *  3 others see a new version when its record is durable
 *
 * Threads: loop thread, but for what is said to run on the pool. */
#include "daemon/registry/internal.h"

#include "daemon/clock.h"
#include "daemon/log.h"

#include <limits.h>
#include <stdio.h>

#define SLICE_NS      SHEAF_NS_PER_MS /* of a turn, for all that is under way */
#define TABLE_AT_ONCE 65536           /* chunks */
#define COUNT_STEP    512             /* chunks */
#define INHERIT_STEP  256             /* files */
#define INHERIT_PARTS 1024            /* of a file, in chunks */

/* ---- slices ---- */

static void run_slices(uv_idle_t *idle)
{
        struct sheaf_registry *registry = idle->data;
        int64_t end_ns = sheaf_now_ns() + SLICE_NS;
        struct sheaf_reg_slice *slice;

        while ((slice = TAILQ_FIRST(&registry->slices)) &&
                sheaf_now_ns() < end_ns) {
                TAILQ_REMOVE(&registry->slices, slice, link);
                if (slice->step(slice))
                        TAILQ_INSERT_TAIL(&registry->slices, slice, link);
        }
        if (!slice)
                uv_idle_stop(idle);
}

static void slice_start(struct sheaf_registry *registry,
        struct sheaf_reg_slice *slice, sheaf_reg_step *step)
{
        slice->step = step;
        TAILQ_INSERT_TAIL(&registry->slices, slice, link);
        uv_idle_start(&registry->slicing, run_slices);
}

void sheaf_registry_slices_init(struct sheaf_registry *registry)
{
        TAILQ_INIT(&registry->slices);
        uv_idle_init(registry->loop, &registry->slicing);
        registry->slicing.data = registry;
}

/* ---- loading ---- */

struct load {
        struct sheaf_reg_slice slice; /* first */
        uv_work_t work;
        struct sheaf_reg_version *version;
        struct sheaf_store *store;
        uint64_t group;
        char path[PATH_MAX];
        struct sheaf_digest digest;
        struct sheaf_listing_block block;
        struct sheaf_version *stored;
        int rc;
};

/* pool */
static void load_work(uv_work_t *work)
{
        struct load *load = work->data;

        load->rc = sheaf_listing_block_load(
                load->path, &load->digest, &load->block);
        if (!load->rc)
                load->rc = sheaf_version_prepare(load->store,
                        &load->block.listing, load->group, &load->stored);
}

static void load_end(struct load *load, int rc)
{
        struct sheaf_reg_version *v = load->version;
        struct sheaf_opening *opening;

        if (rc) {
                v->load = SHEAF_UNLOADED;
                sheaf_listing_block_let_go(load->store, &load->block);
                sheaf_log_rc(rc, SHEAF_LOG_ERROR, "listing not loaded",
                        "dataset=%s path=%s", v->dataset->record->name,
                        load->path);
        } else {
                sheaf_reg_version_take(v, &load->block, load->stored);
        }
        v->dataset->busy--;
        free(load);
        while ((opening = TAILQ_FIRST(&v->openings))) {
                TAILQ_REMOVE(&v->openings, opening, link);
                opening->pending = false;
                if (rc) {
                        opening->done(opening, rc);
                } else {
                        v->handles++;
                        sheaf_registry_opened(opening);
                }
        }
}

static bool load_step(struct sheaf_reg_slice *slice)
{
        struct load *load = (struct load *)slice;

        if (!sheaf_version_count(load->stored, COUNT_STEP))
                return true;
        load_end(load, 0);
        return false;
}

static void load_done(uv_work_t *work, int status)
{
        struct load *load = work->data;
        int rc = status ? -ECANCELED : load->rc;

        if (!rc)
                rc = sheaf_version_attach(load->stored);
        if (rc)
                load_end(load, rc);
        else
                slice_start(load->version->dataset->registry, &load->slice,
                        load_step);
}

int sheaf_registry_load(struct sheaf_reg_version *v)
{
        struct load *load = sheaf_new(struct load, 1);
        struct sheaf_registry *registry = v->dataset->registry;
        size_t len;
        int rc;

        if (!load)
                return -ENOMEM;
        load->version = v;
        load->store = registry->store;
        load->group = v->dataset->record->id;
        load->work.data = load;
        load->block.memfd = -1;
        memcpy(load->digest.bytes, v->record->listing_digest.data,
                SHEAF_MIN(v->record->listing_digest.len,
                        sizeof(load->digest.bytes)));
        rc = sheaf_version_path(registry->store, v->record->uuid.data,
                load->path, sizeof(load->path) - 16);
        if (!rc) {
                len = strlen(load->path);
                snprintf(
                        load->path + len, sizeof(load->path) - len, "/listing");
                rc = uv_queue_work(
                        registry->loop, &load->work, load_work, load_done);
        }
        if (rc) {
                free(load);
                return rc;
        }
        v->load = SHEAF_LOADING;
        v->dataset->busy++;
        return 0;
}

/* ---- tables ---- */

/* The table of a version in one arena, made on the pool. */
struct sheaf_tabling {
        uv_work_t work;
        struct sheaf_reg_version *version;
        struct sheaf_opening *opening; /* NULL: nobody waits any more */
        struct sheaf_table_pages pages;
        uint64_t chunks;
        bool huge;
};

/* pool */
static void table_work(uv_work_t *work)
{
        struct sheaf_tabling *t = work->data;

        /* Without it the table is made, or fails, when it is asked for. */
        if (sheaf_table_pages_new(t->chunks, t->huge, &t->pages))
                t->pages.map = NULL;
}

static void table_done(uv_work_t *work, int status)
{
        struct sheaf_tabling *t = work->data;
        struct sheaf_opening *opening = t->opening;
        struct sheaf_lodging *lodging;

        (void)status;
        t->version->dataset->busy--;
        if (opening)
                (void)!sheaf_registry_lodge_of(
                        t->version, opening->who, &t->pages, &lodging);
        else
                sheaf_registry_unhold(t->version);
        sheaf_table_pages_free(&t->pages);
        free(t);
        if (!opening)
                return;
        opening->tabling = NULL;
        opening->pending = false;
        opening->done(opening, 0);
}

void sheaf_registry_opened(struct sheaf_opening *opening)
{
        struct sheaf_reg_version *v = opening->version;
        struct sheaf_registry *registry = v->dataset->registry;
        uint64_t chunks = v->fetch.listing.chunk_count;
        struct sheaf_tabling *t = NULL;

        if (opening->who && chunks > TABLE_AT_ONCE &&
                !sheaf_registry_lodges(v, opening->who))
                t = sheaf_new(struct sheaf_tabling, 1);
        if (t) {
                t->work.data = t;
                t->version = v;
                t->opening = opening;
                t->chunks = chunks;
                t->huge = sheaf_table_huge(registry->pool);
                if (!uv_queue_work(
                            registry->loop, &t->work, table_work, table_done)) {
                        v->dataset->busy++;
                        opening->tabling = t;
                        opening->pending = true;
                        return;
                }
                free(t);
        }
        opening->done(opening, 0);
}

void sheaf_registry_forget_opening(struct sheaf_opening *opening)
{
        sheaf_steal(&opening->tabling)->opening = NULL;
}

/* ---- publishing ---- */

/* Appends @record to the dataset's durable record. */
static int record_append(
        SheafRecord__Dataset *record, SheafRecord__Version *version)
{
        void *grown = realloc(record->version,
                (record->n_version + 1) * sizeof(*record->version));

        if (!grown)
                return -ENOMEM;
        record->version = grown;
        record->version[record->n_version++] = version;
        return 0;
}

static void publish_end(struct sheaf_publishing *p, int rc)
{
        struct sheaf_reg_version *v = sheaf_steal(&p->version);

        if (p->before)
                sheaf_registry_unhold(sheaf_steal(&p->before));
        if (v && rc) {
                /* The listing is its caller's again. */
                sheaf_version_close(v->fetch.stored);
                free(v);
        } else if (v) {
                TAILQ_INSERT_TAIL(&p->dataset->versions, v, link);
        }
        p->dataset->changes--;
        p->done(p->arg, rc);
}

/* The record has the version from here on, others see it when it is durable:
 * no other change of the dataset comes between. */
static int publish_begin(struct sheaf_store_change *change)
{
        struct sheaf_publishing *p = (struct sheaf_publishing *)change;
        struct sheaf_reg_dataset *ds = p->dataset;
        int rc = ds->removed ? -ESTALE : p->check ? p->check(p->arg) : 0;

        if (!rc)
                rc = record_append(ds->record, p->record);
        if (rc)
                return rc;
        p->recorded = true;
        sheaf_registry_record_path(ds);
        return sheaf_registry_pack(ds, change);
}

static void published(struct sheaf_store_change *change, int rc)
{
        struct sheaf_publishing *p = (struct sheaf_publishing *)change;

        if (rc && p->recorded)
                sheaf_reg_record_take(p->dataset->record, p->record);
        if (!rc)
                *p->block = (struct sheaf_listing_block){ .memfd = -1 };
        publish_end(p, rc);
}

static void record_it(struct sheaf_publishing *p)
{
        p->change = (struct sheaf_store_change){
                .begin = publish_begin,
                .done = published,
        };
        sheaf_store_change(p->dataset->registry->store, &p->change);
}

/* Digests of some chunks of a file that both versions have; true: of all. */
static bool inherit_file(struct sheaf_publishing *p, const uint32_t pair[2])
{
        const struct sheaf_version *from = p->before->fetch.stored;
        const struct sheaf_listing_entry *a =
                &p->before->fetch.listing.entries[pair[0]];
        const struct sheaf_listing_entry *b =
                &p->version->fetch.listing.entries[pair[1]];
        uint64_t count =
                S_ISREG(a->mode) ? sheaf_chunk_count(a->size_bytes) : 0;
        uint64_t end = SHEAF_MIN(count, p->chunk + INHERIT_PARTS);

        for (; p->chunk < end; p->chunk++)
                sheaf_version_inherit(p->version->fetch.stored,
                        b->first_chunk + p->chunk, from,
                        a->first_chunk + p->chunk);
        if (end < count)
                return false;
        p->chunk = 0;
        return true;
}

static bool publish_step(struct sheaf_reg_slice *slice)
{
        struct sheaf_publishing *p =
                (struct sheaf_publishing *)((char *)slice -
                                            offsetof(struct sheaf_publishing,
                                                    slice));

        if (!sheaf_version_count(p->version->fetch.stored, COUNT_STEP))
                return true;
        for (int n = 0; p->before && n < INHERIT_STEP; n++) {
                if (p->pair == p->inherited->count || p->dataset->removed)
                        break;
                if (!inherit_file(p, p->inherited->pairs[p->pair]))
                        return true;
                p->pair++;
        }
        if (p->before && p->pair < p->inherited->count && !p->dataset->removed)
                return true;
        record_it(p);
        return false;
}

/* pool */
static void prepare_work(uv_work_t *work)
{
        struct sheaf_publishing *p = work->data;

        p->rc = sheaf_version_prepare(p->dataset->registry->store,
                &p->block->listing, p->dataset->record->id, &p->stored);
}

static void prepared(uv_work_t *work, int status)
{
        struct sheaf_publishing *p = work->data;
        struct sheaf_reg_dataset *ds = p->dataset;
        struct sheaf_reg_version *v = NULL;
        int rc = status ? -ECANCELED : p->rc;

        if (!rc) {
                v = sheaf_reg_version_new(ds, p->record);
                if (!v)
                        sheaf_version_discard(p->stored);
                rc = v ? sheaf_version_attach(p->stored) : -ENOMEM;
        }
        if (rc) {
                free(v);
                publish_end(p, rc);
                return;
        }
        sheaf_reg_version_take(v, p->block, p->stored);
        p->version = v;
        p->before = sheaf_registry_version(ds, NULL);
        if (p->before && p->before->load == SHEAF_LOADED)
                p->before->handles++;
        else
                p->before = NULL;
        slice_start(ds->registry, &p->slice, publish_step);
}

void sheaf_registry_publish(struct sheaf_publishing *publishing)
{
        struct sheaf_reg_dataset *ds = publishing->dataset;
        int rc;

        publishing->version = NULL;
        publishing->before = NULL;
        publishing->recorded = false;
        publishing->pair = publishing->chunk = 0;
        publishing->work.data = publishing;
        ds->changes++;
        rc = uv_queue_work(
                ds->registry->loop, &publishing->work, prepare_work, prepared);
        if (rc)
                publish_end(publishing, rc);
}
