/* SPDX-License-Identifier: Apache-2.0 */
/* Evict and the cached state of paths: walks over chunks that need no I/O.
 *
 *  1 what was being written to disk when evict came to it goes when it has
 *    arrived, and the answer waits until files are unlinked, so that nothing
 *    of before is there afterwards
 *
 * Threads: loop thread. */
#include "daemon/chore.h"
#include "daemon/verbs/paths.h"
#include "daemon/verbs/verbs.h"

#include <stdio.h>

#define STEP_CHUNKS 16
#define LATE_MAX    256 /* waited for at once */

struct census;

/* A chunk that was on its way to disk when it was to be evicted. */
struct late {
        struct sheaf_fetch fetch; /* first */
        LIST_ENTRY(late) link;
        struct census *census;
};

struct census {
        struct sheaf_call call; /* first */
        struct sheaf_daemon *daemon;
        struct sheaf_opening opening;
        struct sheaf_reg_dataset *dataset;
        struct sheaf_walk walk;
        struct sheaf_chore chore; /* the walk */
        Sheaf__Envelope *env;     /* owned */
        size_t path_count;
        const ProtobufCBinaryData *paths;
        struct sheaf_store_gone gone;
        bool evict, memory_only, held, walked, waits;
        LIST_HEAD(, late) lates;
        uint32_t late_count;
        Sheaf__CachedAnswer sum;
};

static void census_end(struct census *c)
{
        struct late *late;

        while ((late = LIST_FIRST(&c->lates))) {
                sheaf_fetch_cancel(c->daemon->fetcher, &late->fetch);
                LIST_REMOVE(late, link);
                free(late);
        }
        if (c->waits)
                sheaf_store_gone_cancel(&c->gone);
        if (c->held)
                sheaf_registry_unhold(c->opening.version);
        c->dataset->busy--;
        sheaf_chore_stop(&c->chore);
        sheaf_walk_end(&c->walk);
        sheaf__envelope__free_unpacked(c->env, NULL);
        free(c);
}

static void census_fail(struct census *c, int rc, const char *text)
{
        struct sheaf_conn *conn = c->call.conn;
        uint64_t id = c->call.id;

        sheaf_call_end(&c->call);
        sheaf_conn_error(
                conn, id, rc, "%s: %s", c->dataset->record->name, text);
        census_end(c);
}

static void census_abandon(struct sheaf_call *call)
{
        struct census *c = (struct census *)call;

        sheaf_registry_open_cancel(&c->opening);
        census_end(c);
}

static void look_at(struct census *c, uint32_t entry, uint32_t index)
{
        struct sheaf_reg_version *v = c->opening.version;
        struct sheaf_lodging *lodging;
        struct sheaf_chunk_ref ref = { .version = v->fetch.stored,
                .chunk = v->fetch.listing.entries[entry].first_chunk + index,
                .entry = entry,
                .index = index,
                .len_bytes = sheaf_listing_chunk_len(
                        &v->fetch.listing, entry, index) };
        bool in_arena = false, on_disk = false;

        LIST_FOREACH (lodging, &v->lodgings, link) {
                if (c->evict)
                        in_arena |= sheaf_table_evict(
                                lodging->residence.table, ref.chunk);
                else
                        in_arena |= sheaf_table_block(lodging->residence.table,
                                            ref.chunk) != 0;
        }
        if (c->evict && !c->memory_only)
                on_disk = sheaf_store_evict(c->daemon->store, &ref);
        else if (!c->evict)
                on_disk = sheaf_digest_known(sheaf_version_digest(
                                  ref.version, ref.chunk)) &&
                          sheaf_version_on_disk(ref.version, ref.chunk);
        c->sum.chunks++;
        c->sum.bytes += ref.len_bytes;
        if (in_arena) {
                c->sum.arena_chunks++;
                c->sum.arena_bytes += ref.len_bytes;
        }
        if (on_disk) {
                c->sum.disk_chunks++;
                c->sum.disk_bytes += ref.len_bytes;
        }
        if (in_arena || on_disk)
                c->sum.cached_bytes += ref.len_bytes;
}

static void census_answer(struct census *c)
{
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        struct sheaf_conn *conn = c->call.conn;

        env.id = c->call.id;
        env.body_case = SHEAF__ENVELOPE__BODY_CACHED_ANSWER;
        env.cached_answer = &c->sum;
        sheaf_call_end(&c->call);
        sheaf_conn_send(conn, &env, NULL, 0);
        census_end(c);
}

static void census_step(struct sheaf_chore *chore);

static void census_go_on(struct census *c)
{
        sheaf_chore_start(c->call.conn->account, &c->chore, census_step);
}

static void census_gone(struct sheaf_store_gone *gone)
{
        struct census *c =
                (struct census *)((char *)gone - offsetof(struct census, gone));

        c->waits = false;
        census_answer(c);
}

/* All was looked at. */
static void census_walked(struct census *c)
{
        c->gone.done = census_gone;
        c->waits = c->evict && !c->memory_only &&
                   sheaf_store_gone_wait(c->daemon->store, &c->gone);
        if (!c->waits)
                census_answer(c);
}

static void late_done(
        struct sheaf_fetch *fetch, int rc, const void *bytes, const char *why)
{
        struct late *late = (struct late *)fetch;
        struct census *c = late->census;

        (void)rc; /* what did not come is not there */
        (void)bytes;
        (void)why;
        LIST_REMOVE(late, link);
        c->late_count--;
        look_at(c, fetch->entry, fetch->index);
        free(late);
        if (!c->walked)
                census_go_on(c);
        else if (!c->late_count)
                census_walked(c);
}

/* Evicts what is on its way to disk when it has arrived; false: there is
 * nothing, or no memory for that. */
static bool wait_for(struct census *c, uint32_t entry, uint32_t index)
{
        struct sheaf_reg_version *v = c->opening.version;
        struct late *late;

        if (!c->evict || c->memory_only ||
                !sheaf_fetch_is_writing(c->daemon->fetcher, &v->fetch,
                        v->fetch.listing.entries[entry].first_chunk + index))
                return false;
        late = sheaf_new(struct late, 1);
        if (!late)
                return false;
        late->census = c;
        late->fetch = (struct sheaf_fetch){ .version = &v->fetch,
                .entry = entry,
                .index = index,
                .lane = c->call.conn->number,
                .durable = true,
                .done = late_done };
        if (sheaf_fetch(c->daemon->fetcher, &late->fetch)) {
                free(late);
                return false;
        }
        LIST_INSERT_HEAD(&c->lates, late, link);
        c->late_count++;
        return true;
}

static void census_step(struct sheaf_chore *chore)
{
        struct census *c = (struct census *)((char *)chore -
                                             offsetof(struct census, chore));
        uint32_t entry, index;

        if (!sheaf_walk_prepare(&c->walk))
                return;
        for (int n = 0; n < STEP_CHUNKS; n++) {
                if (c->late_count == LATE_MAX) {
                        sheaf_chore_stop(chore); /* late_done goes on */
                        return;
                }
                switch (sheaf_walk_next(&c->walk, &entry, &index)) {
                case SHEAF_WALK_CHUNK:
                        if (!wait_for(c, entry, index))
                                look_at(c, entry, index);
                        continue;
                case SHEAF_WALK_ON:
                        return;
                case SHEAF_WALK_END:
                        break;
                }
                sheaf_chore_stop(chore);
                c->walked = true;
                if (!c->late_count)
                        census_walked(c);
                return;
        }
}

static void census_opened(struct sheaf_opening *opening, int rc)
{
        struct census *c = (struct census *)((char *)opening -
                                             offsetof(struct census, opening));
        char text[300];
        size_t bad = 0;

        if (rc) {
                census_fail(c, rc,
                        "the listing cannot be read; run: sheaf "
                        "update");
                return;
        }
        c->held = true;
        rc = sheaf_walk_begin(&c->walk, &opening->version->fetch.listing,
                c->path_count, c->paths, &bad);
        if (rc) {
                snprintf(text, sizeof(text), "%.*s: %s",
                        (int)SHEAF_MIN(c->paths[bad].len, (size_t)200),
                        (const char *)c->paths[bad].data, strerror(-rc));
                census_fail(c, rc, text);
                return;
        }
        census_go_on(c);
}

static void census_begin(struct sheaf_conn *conn, struct sheaf_wire_msg *msg,
        struct sheaf_reg_dataset *ds, struct sheaf_reg_version *version)
{
        struct census *c = sheaf_new(struct census, 1);
        uint64_t id = msg->env->id;

        if (!sheaf_call_begin(conn, id, c ? &c->call : NULL, census_abandon)) {
                free(c);
                return;
        }
        c->daemon = conn->daemon;
        c->dataset = ds;
        c->env = sheaf_steal(&msg->env);
        if (c->env->body_case == SHEAF__ENVELOPE__BODY_EVICT) {
                c->evict = true;
                c->memory_only = c->env->evict->memory_only;
                c->path_count = c->env->evict->n_path;
                c->paths = c->env->evict->path;
        } else {
                c->path_count = c->env->cached_query->n_path;
                c->paths = c->env->cached_query->path;
        }
        sheaf__cached_answer__init(&c->sum);
        ds->busy++;
        c->opening.version = version;
        c->opening.done = census_opened;
        if (version)
                sheaf_registry_open(&c->opening);
        else
                census_fail(c, -EAGAIN, "still being listed");
}

void sheaf_verb_evict(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        struct sheaf_reg_dataset *ds = sheaf_conn_dataset(
                conn, msg->env->id, msg->env->evict->name, true);

        if (ds)
                census_begin(conn, msg, ds, sheaf_registry_version(ds, NULL));
}

void sheaf_verb_cached_query(
        struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__CachedQuery *query = msg->env->cached_query;
        struct sheaf_reg_dataset *ds;
        struct sheaf_handle *h;

        if (*query->name) {
                ds = sheaf_conn_dataset(conn, msg->env->id, query->name, false);
                if (ds)
                        census_begin(conn, msg, ds,
                                sheaf_registry_version(ds, NULL));
                return;
        }
        h = sheaf_conn_handle(conn, msg->env->id, query->handle);
        if (h)
                census_begin(conn, msg, h->version->dataset, h->version);
}

void sheaf_verb_get_digest(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        uint64_t id = msg->env->id;
        uint32_t entry = msg->env->get_digest->entry;
        struct sheaf_handle *h =
                sheaf_conn_handle(conn, id, msg->env->get_digest->handle);
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__Digest body = SHEAF__DIGEST__INIT;
        const struct sheaf_listing *listing;
        struct sheaf_digest digest;
        struct sheaf_hasher *hasher;
        uint64_t count;

        if (!h)
                return;
        listing = &h->version->fetch.listing;
        if (entry >= listing->entry_count ||
                !sheaf_listing_is_file(listing, entry)) {
                sheaf_conn_error(conn, id, -EINVAL, "not a file");
                return;
        }
        if (sheaf_hasher_new(&hasher)) {
                sheaf_conn_error(conn, id, -ENOMEM, "out of memory");
                return;
        }
        count = sheaf_chunk_count(listing->entries[entry].size_bytes);
        body.known = true;
        for (uint64_t i = 0; i < count && body.known; i++) {
                digest = *sheaf_version_digest(h->version->fetch.stored,
                        listing->entries[entry].first_chunk + i);
                body.known = sheaf_digest_known(&digest);
                sheaf_hasher_feed(hasher, digest.bytes, sizeof(digest.bytes));
        }
        /* One chunk: its own digest; else that of the chunks' digests. */
        if (count != 1)
                sheaf_hasher_finish(hasher, &digest);
        sheaf_hasher_free(hasher);
        if (body.known) {
                body.digest.data = digest.bytes;
                body.digest.len = sizeof(digest.bytes);
        }
        env.id = id;
        env.body_case = SHEAF__ENVELOPE__BODY_DIGEST;
        env.digest = &body;
        sheaf_conn_send(conn, &env, NULL, 0);
}
