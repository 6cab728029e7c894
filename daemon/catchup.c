/* SPDX-License-Identifier: Apache-2.0 */
/* A walk over all versions that live in memory, after each time in which the
 * disk refused writes.
 *
 *  1 it goes behind all that somebody waits for, a few MiB at a time, and
 *    looks at so many files in a step of the loop
 *  2 nothing is read for it: what is not in memory any more is passed over
 *  3 it holds nothing between steps but a place, found again by numbers, so
 *    that datasets and versions go as if it were not there
 *  4 it ends where the disk refuses again, and begins anew after that; at the
 *    limit of --disk it ends, since others would have to give way
 *
 * Threads: loop thread. */
#include "daemon/catchup.h"

#include "daemon/fetch/fetch.h"
#include "daemon/log.h"
#include "daemon/registry/registry.h"

#define LOOK_MS        500
#define STEP_MS        20
#define STEP_CHUNKS    2048
#define UNDER_WAY      64
#define UNDER_WAY_SIZE (UINT64_C(8) << 20)

struct chunk_write {
        struct sheaf_fetch fetch; /* first */
        LIST_ENTRY(chunk_write) link;
        struct sheaf_catchup *catchup;
        uint32_t len_bytes;
};

struct sheaf_catchup {
        struct sheaf_daemon *daemon;
        uv_timer_t timer;
        LIST_HEAD(, chunk_write) writes;
        unsigned int under_way;
        uint64_t under_way_bytes, started;
        bool refused; /* since the last walk began */
        bool walking;
        /* Where it goes on: id, how many versions were done, file, chunk. */
        uint64_t dataset;
        uint32_t versions, file, index;
        unsigned int looked; /* in this step */
};

static void write_end(struct chunk_write *w)
{
        LIST_REMOVE(w, link);
        w->catchup->under_way--;
        w->catchup->under_way_bytes -= w->len_bytes;
        free(w);
}

static void written(
        struct sheaf_fetch *fetch, int rc, const void *bytes, const char *why)
{
        /* It went from memory, or the store tells why it refused. */
        (void)rc;
        (void)bytes;
        (void)why;
        write_end((struct chunk_write *)fetch);
}

static int start(struct sheaf_catchup *c, struct sheaf_reg_version *v,
        const struct sheaf_lodging *lodging, uint32_t entry)
{
        struct chunk_write *w = sheaf_new(struct chunk_write, 1);
        int rc;

        if (!w)
                return -ENOMEM;
        w->catchup = c;
        w->len_bytes =
                sheaf_listing_chunk_len(&v->fetch.listing, entry, c->index);
        w->fetch = (struct sheaf_fetch){ .version = &v->fetch,
                .entry = entry,
                .index = c->index,
                .residence = &lodging->residence,
                .hint = true,
                .durable = true,
                .at_hand = true,
                .done = written };
        rc = sheaf_fetch(c->daemon->fetcher, &w->fetch);
        if (rc) {
                free(w);
                return rc;
        }
        LIST_INSERT_HEAD(&c->writes, w, link);
        c->under_way++;
        c->under_way_bytes += w->len_bytes;
        c->started++;
        return 0;
}

static bool has_turn(struct sheaf_catchup *c)
{
        return c->looked++ < STEP_CHUNKS && c->under_way < UNDER_WAY &&
               c->under_way_bytes < UNDER_WAY_SIZE;
}

/* The chunk at the place, if memory alone has it. */
static void look_at(struct sheaf_catchup *c, struct sheaf_reg_version *v)
{
        const struct sheaf_listing *listing = &v->fetch.listing;
        uint32_t entry = listing->files[c->file];
        uint64_t chunk = listing->entries[entry].first_chunk + c->index;
        const struct sheaf_lodging *lodging;

        if (sheaf_version_on_disk(v->fetch.stored, chunk))
                return;
        LIST_FOREACH (lodging, &v->lodgings, link)
                if (sheaf_table_block(lodging->residence.table, chunk))
                        break;
        if (lodging && start(c, v, lodging, entry))
                c->looked = STEP_CHUNKS; /* no memory: later */
}

/* True when all of it was looked at. */
static bool walk_version(struct sheaf_catchup *c, struct sheaf_reg_version *v)
{
        const struct sheaf_listing *listing = &v->fetch.listing;

        if (v->load != SHEAF_LOADED || LIST_EMPTY(&v->lodgings))
                return true;
        for (; c->file < listing->file_count; c->file++, c->index = 0) {
                const struct sheaf_listing_entry *e =
                        &listing->entries[listing->files[c->file]];

                for (; c->index < sheaf_chunk_count(e->size_bytes);
                        c->index++) {
                        if (!has_turn(c))
                                return false;
                        look_at(c, v);
                }
        }
        return true;
}

/* True when all of it was looked at. */
static bool walk_dataset(struct sheaf_catchup *c, struct sheaf_reg_dataset *ds)
{
        struct sheaf_reg_version *v;
        uint32_t n = 0;

        TAILQ_FOREACH (v, &ds->versions, link) {
                if (n++ < c->versions)
                        continue;
                if (!has_turn(c) || !walk_version(c, v))
                        return false;
                c->versions++;
                c->file = c->index = 0;
        }
        return true;
}

static void walk(struct sheaf_catchup *c)
{
        struct sheaf_reg_dataset *ds =
                sheaf_registry_next(c->daemon->registry, c->dataset);

        c->looked = 0;
        for (; ds; ds = TAILQ_NEXT(ds, link)) {
                if (!has_turn(c) || !walk_dataset(c, ds))
                        return;
                c->dataset = ds->record->id;
                c->versions = c->file = c->index = 0;
        }
        c->walking = false;
        sheaf_log(SHEAF_LOG_INFO, "store_caught_up", "chunks=%llu",
                (unsigned long long)c->started);
}

static void on_timer(uv_timer_t *timer)
{
        struct sheaf_catchup *c = timer->data;
        int rc = sheaf_store_refuses(c->daemon->store);

        if (rc)
                c->walking = false;
        if (rc && rc != -EDQUOT)
                c->refused = true;
        if (!rc && c->refused) {
                c->refused = false;
                c->walking = true;
                c->dataset = c->started = 0;
                c->versions = c->file = c->index = 0;
        }
        if (c->walking)
                walk(c);
        uv_timer_start(timer, on_timer, c->walking ? STEP_MS : LOOK_MS, 0);
}

int sheaf_catchup_new(
        struct sheaf_daemon *daemon, struct sheaf_catchup **ret_catchup)
{
        struct sheaf_catchup *catchup = sheaf_new(struct sheaf_catchup, 1);

        if (!catchup)
                return -ENOMEM;
        catchup->daemon = daemon;
        LIST_INIT(&catchup->writes);
        uv_timer_init(daemon->loop, &catchup->timer);
        catchup->timer.data = catchup;
        uv_timer_start(&catchup->timer, on_timer, LOOK_MS, 0);
        *ret_catchup = catchup;
        return 0;
}

static void closed(uv_handle_t *handle)
{
        free(handle->data);
}

void sheaf_catchup_free(struct sheaf_catchup *catchup)
{
        struct chunk_write *w;

        if (!catchup)
                return;
        while ((w = LIST_FIRST(&catchup->writes))) {
                sheaf_fetch_cancel(catchup->daemon->fetcher, &w->fetch);
                write_end(w);
        }
        uv_close((uv_handle_t *)&catchup->timer, closed);
}
