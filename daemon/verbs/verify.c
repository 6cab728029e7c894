/* SPDX-License-Identifier: Apache-2.0 */
/* Verify: what the disk holds against its digests, and (unless told not to)
 * the origin's bytes against the same digests.
 *
 *  1 damaged chunks on disk are dropped, so that the next read fetches them
 *    again; with repair they are fetched at once
 *  2 a chunk whose digest is not learned yet has nothing to be compared with
 *    and is counted, not judged
 *  3 a window of chunks is under way; each passes disk, then origin
 *  4 nothing is begun while the client has much to read yet, so that findings
 *    are as many as they are, however slowly it reads
 *
 * Threads: loop thread; hashing on the pool. */
#include "daemon/chore.h"
#include "daemon/verbs/paths.h"
#include "daemon/verbs/verbs.h"

#include "daemon/log.h"

#include <stdio.h>

#define WINDOW      16
#define STEP_CHUNKS WINDOW
#define PROGRESS_MS 200

struct audit;

struct audit_slot {
        struct audit *audit;
        struct sheaf_store_read disk;
        struct sheaf_origin_read origin;
        struct sheaf_fetch repair;
        uv_work_t work;
        const void *bytes;
        uint32_t entry, index, len_bytes;
        uint64_t chunk;
        struct sheaf_digest digest;
        bool busy, from_origin;
};

struct audit {
        struct sheaf_call call; /* first */
        struct sheaf_daemon *daemon;
        struct sheaf_opening opening;
        struct sheaf_reg_dataset *dataset;
        struct sheaf_walk walk;
        struct audit_slot slots[WINDOW];
        struct sheaf_chore chore; /* the walk */
        uv_timer_t timer;
        bool check_origin, repair, held, walked, ended;
        int under_way;
        uint64_t done, done_bytes, damaged, changed;
        uint64_t unknown, unknown_bytes; /* never read; part of done */
};

static void audit_step(struct sheaf_chore *chore);
static void check_origin(struct audit_slot *slot);

static void audit_closed(uv_handle_t *handle)
{
        struct audit *a = handle->data;

        sheaf_walk_end(&a->walk);
        free(a);
}

static void audit_end(struct audit *a)
{
        if (a->held)
                sheaf_registry_unhold(a->opening.version);
        a->dataset->busy--;
        sheaf_chore_stop(&a->chore);
        uv_close((uv_handle_t *)&a->timer, audit_closed);
}

static void audit_progress(struct audit *a)
{
        Sheaf__Progress p = SHEAF__PROGRESS__INIT;

        if (!a->call.conn)
                return;
        p.what = (char *)"verifying";
        p.done = a->done;
        p.total = a->walk.chunks;
        p.done_bytes = a->done_bytes;
        p.total_bytes = a->walk.bytes;
        p.errors = a->damaged + a->changed;
        sheaf_conn_progress(a->call.conn, a->call.id, &p);
}

static void audit_fail(struct audit *a, int rc, const char *text)
{
        struct sheaf_conn *conn = a->call.conn;
        uint64_t id = a->call.id;

        if (conn) {
                sheaf_call_end(&a->call);
                sheaf_conn_error(
                        conn, id, rc, "%s: %s", a->dataset->record->name, text);
        }
        audit_end(a);
}

static void audit_finish(struct audit *a)
{
        struct sheaf_conn *conn = a->call.conn;
        uint64_t id = a->call.id;
        char text[128];

        uv_timer_stop(&a->timer);
        if (!conn) {
                audit_end(a);
                return;
        }
        /* The last figures are of what was compared. */
        a->done -= a->unknown;
        a->done_bytes -= a->unknown_bytes;
        a->walk.chunks -= a->unknown;
        a->walk.bytes -= a->unknown_bytes;
        audit_progress(a);
        if (a->unknown) {
                snprintf(text, sizeof(text),
                        "%llu chunks were never read, so there is nothing to "
                        "compare; sheaf seal reads them",
                        (unsigned long long)a->unknown);
                sheaf_conn_finding(conn, id, "unknown", "", 0, text);
        }
        sheaf_call_end(&a->call);
        sheaf_conn_done(conn, id);
        audit_end(a);
}

static void finding(struct audit_slot *slot, const char *kind, const char *text)
{
        struct audit *a = slot->audit;
        char path[8192];
        size_t len;

        if (!a->call.conn)
                return;
        len = sheaf_listing_path(&a->opening.version->fetch.listing,
                slot->entry, path, sizeof(path));
        sheaf_conn_finding(a->call.conn, a->call.id, kind, path,
                SHEAF_MIN(len, sizeof(path) - 1), text);
}

/* Unless it waits for its client, or never mind: it goes on already. */
static void audit_go_on(struct audit *a)
{
        if (!a->call.resume)
                sheaf_chore_start(a->call.conn->account, &a->chore, audit_step);
}

static void audit_resume(struct sheaf_call *call)
{
        call->resume = NULL;
        audit_go_on((struct audit *)call);
}

static void slot_done(struct audit_slot *slot)
{
        struct audit *a = slot->audit;

        slot->busy = false;
        a->under_way--;
        a->done++;
        a->done_bytes += slot->len_bytes;
        if (a->ended || a->walked) {
                if (!a->under_way)
                        audit_finish(a);
                return;
        }
        audit_go_on(a);
}

/* ---- repair ---- */

static void repaired(
        struct sheaf_fetch *fetch, int rc, const void *bytes, const char *why)
{
        struct audit_slot *slot =
                (struct audit_slot *)((char *)fetch -
                                      offsetof(struct audit_slot, repair));

        (void)bytes;
        if (rc)
                finding(slot, "unreadable", why ? why : strerror(-rc));
        slot_done(slot);
}

static void damaged(struct audit_slot *slot, const char *text)
{
        struct audit *a = slot->audit;

        a->damaged++;
        finding(slot, "damaged", text);
        if (!a->repair || a->ended) {
                slot_done(slot);
                return;
        }
        slot->repair =
                (struct sheaf_fetch){ .version = &a->opening.version->fetch,
                        .entry = slot->entry,
                        .index = slot->index,
                        .durable = true,
                        .done = repaired };
        if (sheaf_fetch(a->daemon->fetcher, &slot->repair))
                slot_done(slot);
}

/* ---- hashing ---- */

static void hash_work(uv_work_t *work)
{
        struct audit_slot *slot = work->data;

        sheaf_digest_of(slot->bytes, slot->len_bytes, &slot->digest);
}

static void hash_done(uv_work_t *work, int status)
{
        struct audit_slot *slot = work->data;
        struct audit *a = slot->audit;
        struct sheaf_version *stored = a->opening.version->fetch.stored;
        struct sheaf_chunk_ref ref = { .version = stored,
                .chunk = slot->chunk,
                .entry = slot->entry,
                .index = slot->index,
                .len_bytes = slot->len_bytes };
        bool equal =
                !status && sheaf_digest_equal(&slot->digest,
                                   sheaf_version_digest(stored, slot->chunk));

        if (slot->from_origin) {
                sheaf_origin_read_end(&slot->origin);
                if (!equal && !status) {
                        a->changed++;
                        finding(slot, "changed",
                                "the origin has other bytes; sheaf update "
                                "lists it anew");
                }
                slot_done(slot);
                return;
        }
        sheaf_store_read_end(&slot->disk);
        if (equal || status) {
                check_origin(slot);
                return;
        }
        a->dataset->counts.fetch.verify_failures++;
        sheaf_store_bad(a->daemon->store, &ref);
        damaged(slot, "the cached bytes are damaged; they were dropped");
}

static void hash(struct audit_slot *slot, const void *bytes, bool from_origin)
{
        slot->bytes = bytes;
        slot->from_origin = from_origin;
        slot->work.data = slot;
        if (uv_queue_work(slot->audit->daemon->loop, &slot->work, hash_work,
                    hash_done)) {
                hash_work(&slot->work);
                hash_done(&slot->work, 0);
        }
}

/* ---- sources ---- */

static void origin_read(struct sheaf_origin_read *read, int rc)
{
        struct audit_slot *slot =
                (struct audit_slot *)((char *)read -
                                      offsetof(struct audit_slot, origin));
        struct audit *a = slot->audit;

        if (rc >= 0) {
                hash(slot, read->bytes, true);
                return;
        }
        if (rc == -ESTALE || rc == -ENOENT) {
                a->changed++;
                finding(slot, rc == -ENOENT ? "missing" : "changed",
                        "the origin changed since it was listed; sheaf "
                        "update lists it anew");
        } else if (rc != -ECANCELED) {
                a->changed++;
                finding(slot, "unreadable", strerror(-rc));
        }
        slot_done(slot);
}

static void check_origin(struct audit_slot *slot)
{
        struct audit *a = slot->audit;
        struct sheaf_origin *origin;

        if (!a->check_origin || a->ended ||
                sheaf_registry_origin(a->dataset, &origin)) {
                slot_done(slot);
                return;
        }
        slot->origin = (struct sheaf_origin_read){
                .listing = &a->opening.version->fetch.listing,
                .entry = slot->entry,
                .index = slot->index,
                .done = origin_read
        };
        sheaf_origin_read(origin, &slot->origin);
}

static void disk_read(struct sheaf_store_read *read, int rc)
{
        struct audit_slot *slot =
                (struct audit_slot *)((char *)read -
                                      offsetof(struct audit_slot, disk));

        if (!rc)
                hash(slot, read->bytes, false);
        else if (rc == -EBADMSG || rc == -EIO)
                damaged(slot, "the cached copy cannot be read; it was "
                              "dropped");
        else
                check_origin(slot);
}

static struct audit_slot *free_slot(struct audit *a)
{
        for (size_t i = 0; i < WINDOW; i++)
                if (!a->slots[i].busy)
                        return &a->slots[i];
        return NULL;
}

static void start_chunk(struct audit *a, struct audit_slot *slot,
        uint32_t entry, uint32_t index)
{
        struct sheaf_reg_version *v = a->opening.version;

        slot->audit = a;
        slot->entry = entry;
        slot->index = index;
        slot->chunk = v->fetch.listing.entries[entry].first_chunk + index;
        slot->len_bytes =
                sheaf_listing_chunk_len(&v->fetch.listing, entry, index);
        slot->busy = true;
        a->under_way++;
        if (!sheaf_digest_known(
                    sheaf_version_digest(v->fetch.stored, slot->chunk))) {
                a->unknown++;
                a->unknown_bytes += slot->len_bytes;
                slot->busy = false;
                a->under_way--;
                a->done++;
                a->done_bytes += slot->len_bytes;
                return;
        }
        if (!sheaf_version_on_disk(v->fetch.stored, slot->chunk)) {
                check_origin(slot);
                return;
        }
        slot->disk.ref = (struct sheaf_chunk_ref){ .version = v->fetch.stored,
                .chunk = slot->chunk,
                .entry = entry,
                .index = index,
                .len_bytes = slot->len_bytes };
        slot->disk.done = disk_read;
        sheaf_store_read(a->daemon->store, &slot->disk);
}

/* What is under way ends first. */
static void audit_cancel(struct audit *a)
{
        a->ended = true;
        sheaf_chore_stop(&a->chore);
        if (!a->under_way)
                audit_finish(a);
}

static void audit_removed(struct audit *a)
{
        struct sheaf_conn *conn = a->call.conn;
        uint64_t id = a->call.id;

        sheaf_call_end(&a->call);
        sheaf_conn_error(conn, id, -ESTALE, "the dataset was removed");
        audit_cancel(a);
}

static void audit_step(struct sheaf_chore *chore)
{
        struct audit *a =
                (struct audit *)((char *)chore - offsetof(struct audit, chore));

        if (a->dataset->removed) {
                audit_removed(a);
                return;
        }
        if (!sheaf_walk_prepare(&a->walk))
                return;
        if (!sheaf_conn_has_room(a->call.conn)) {
                a->call.resume = audit_resume;
                sheaf_chore_stop(chore);
                return;
        }
        for (int n = 0; n < STEP_CHUNKS; n++) {
                struct audit_slot *slot = free_slot(a);
                enum sheaf_walked walked;
                uint32_t entry, index;

                if (!slot) {
                        sheaf_chore_stop(chore); /* slot_done goes on */
                        return;
                }
                walked = sheaf_walk_next(&a->walk, &entry, &index);
                if (walked == SHEAF_WALK_ON)
                        return;
                if (walked == SHEAF_WALK_END) {
                        a->walked = true;
                        sheaf_chore_stop(chore);
                        if (!a->under_way)
                                audit_finish(a);
                        return;
                }
                start_chunk(a, slot, entry, index);
        }
}

/* Figures for who reads them. */
static void tick(uv_timer_t *timer)
{
        struct audit *a = timer->data;

        if (a->walk.ready && a->call.conn && sheaf_conn_has_room(a->call.conn))
                audit_progress(a);
}

static void audit_opened(struct sheaf_opening *opening, int rc)
{
        struct audit *a = (struct audit *)((char *)opening -
                                           offsetof(struct audit, opening));
        size_t bad;

        if (rc) {
                audit_fail(a, rc, "the listing is damaged; run: sheaf update");
                return;
        }
        a->held = true;
        rc = sheaf_walk_begin(
                &a->walk, &opening->version->fetch.listing, 0, NULL, &bad);
        if (rc) {
                audit_fail(a, rc, strerror(-rc));
                return;
        }
        uv_timer_start(&a->timer, tick, PROGRESS_MS, PROGRESS_MS);
        audit_go_on(a);
}

static void audit_abandon(struct sheaf_call *call)
{
        struct audit *a = (struct audit *)call;

        if (a->opening.pending) {
                sheaf_registry_open_cancel(&a->opening);
                audit_end(a);
                return;
        }
        audit_cancel(a);
}

void sheaf_verb_verify(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__Verify *verify = msg->env->verify;
        uint64_t id = msg->env->id;
        struct sheaf_reg_dataset *ds =
                sheaf_conn_dataset(conn, id, verify->name, true);
        struct audit *a;

        if (!ds)
                return;
        a = sheaf_new(struct audit, 1);
        if (!sheaf_call_begin(conn, id, a ? &a->call : NULL, audit_abandon)) {
                free(a);
                return;
        }
        a->daemon = conn->daemon;
        a->dataset = ds;
        a->check_origin = verify->origin;
        a->repair = verify->repair;
        ds->busy++;
        uv_timer_init(conn->daemon->loop, &a->timer);
        a->timer.data = a;
        sheaf_store_flush(conn->daemon->store);
        a->opening.version = sheaf_registry_version(ds, NULL);
        a->opening.done = audit_opened;
        if (a->opening.version)
                sheaf_registry_open(&a->opening);
        else
                audit_fail(a, -EAGAIN, "still being listed");
}
