/* SPDX-License-Identifier: Apache-2.0 */
/* Warmup and seal: every chunk of some files through the conductor, a window
 * at a time, with progress.
 *
 *  1 WINDOW chunks are under way, or WINDOW_BYTES of smaller ones, so that the
 *    disk has enough to do; a bounded rate is kept by a timer
 *  2 a chunk that fails is told and counted, and the walk goes on
 *  3 seal fetches only what has no digest, and ends with the root digest
 *
 * Threads: loop thread; the root digest is taken on the pool. */
#include "daemon/chore.h"
#include "daemon/verbs/paths.h"
#include "daemon/verbs/verbs.h"

#include "daemon/clock.h"
#include "daemon/log.h"

#include <stdio.h>

#define WINDOW       64   /* chunks under way, of any size */
#define WINDOW_MAX   1024 /* as long as they are few bytes */
#define WINDOW_BYTES (UINT64_C(64) << 20)
#define ITEMS_MAX    65536 /* of all tours; beyond it each has WINDOW */
#define STEP_CHUNKS  64
#define PROGRESS_MS  200
#define FINDINGS_MAX 100

struct tour;

struct tour_slot {
        struct sheaf_fetch fetch; /* first */
        LIST_ENTRY(tour_slot) link;
        struct tour *tour;
        uint32_t len_bytes;
};

struct tour {
        struct sheaf_call call; /* first */
        struct sheaf_daemon *daemon;
        struct sheaf_opening opening;
        struct sheaf_reg_dataset *dataset;
        struct sheaf_walk walk;
        struct sheaf_lodging *lodging;
        LIST_HEAD(, tour_slot) slots; /* under way */
        uint64_t under_way_bytes;
        struct sheaf_chore chore; /* the walk */
        uv_timer_t timer;
        uv_work_t work;
        struct sheaf_digest root;
        Sheaf__Warmup *wish; /* owned envelope's part */
        Sheaf__Envelope *env;
        int under_way, work_rc;
        bool seal, ended, held, disk, walked;
        uint64_t lane;
        uint64_t rate_bytes, started_bytes;
        uint64_t done_chunks, done_bytes, cached_bytes, errors, off_disk;
        int64_t started_ns;
};

static void tour_closed(uv_handle_t *handle)
{
        struct tour *t = handle->data;

        sheaf_walk_end(&t->walk);
        sheaf__envelope__free_unpacked(t->env, NULL);
        free(t);
}

static void tour_end(struct tour *t)
{
        struct tour_slot *slot;

        t->ended = true;
        while ((slot = LIST_FIRST(&t->slots))) {
                sheaf_fetch_cancel(t->daemon->fetcher, &slot->fetch);
                LIST_REMOVE(slot, link);
                t->daemon->tour_items--;
                free(slot);
        }
        if (t->held)
                sheaf_registry_unhold(t->opening.version);
        t->dataset->busy--;
        sheaf_chore_stop(&t->chore);
        uv_close((uv_handle_t *)&t->timer, tour_closed);
}

static void tour_progress(struct tour *t)
{
        Sheaf__Progress p = SHEAF__PROGRESS__INIT;

        if (!t->call.conn)
                return;
        p.what = (char *)(t->seal ? "sealing" : "fetching");
        p.done = t->done_chunks;
        p.total = t->walk.chunks;
        p.done_bytes = t->done_bytes;
        p.total_bytes = t->walk.bytes;
        p.from_cache_bytes = t->cached_bytes;
        p.errors = t->errors;
        sheaf_conn_progress(t->call.conn, t->call.id, &p);
}

static void tour_fail(struct tour *t, int rc, const char *text)
{
        struct sheaf_conn *conn = t->call.conn;
        uint64_t id = t->call.id;

        if (conn) {
                sheaf_call_end(&t->call);
                sheaf_conn_error(
                        conn, id, rc, "%s: %s", t->dataset->record->name, text);
        }
        tour_end(t);
}

/* ---- the end ---- */

static const struct sheaf_digest *digest_of(void *arg, uint64_t chunk)
{
        return sheaf_version_digest(arg, chunk);
}

static void root_work(uv_work_t *work)
{
        struct tour *t = work->data;
        struct sheaf_reg_version *v = t->opening.version;

        t->work_rc = sheaf_listing_root_digest(
                &v->fetch.listing, digest_of, v->fetch.stored, &t->root);
        /* Without its digests a sealed version would learn whatever the
         * origin holds after a power cut. */
        if (!t->work_rc)
                t->work_rc = sheaf_version_sync(v->fetch.stored);
}

static void answer_info(struct tour *t)
{
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__DatasetInfo info = SHEAF__DATASET_INFO__INIT;
        struct sheaf_info_space space;
        struct sheaf_conn *conn = t->call.conn;

        if (conn) {
                sheaf_dataset_fill_info(
                        t->dataset, t->opening.version, &info, &space);
                env.id = t->call.id;
                env.body_case = SHEAF__ENVELOPE__BODY_DATASET_INFO;
                env.dataset_info = &info;
                sheaf_call_end(&t->call);
                sheaf_conn_send(conn, &env, NULL, 0);
        }
        tour_end(t);
}

static void sealed(void *arg, int rc)
{
        struct tour *t = arg;

        if (rc) {
                tour_fail(t, rc, "the root digest cannot be recorded");
                return;
        }
        t->opening.version->fetch.sealed = true;
        answer_info(t);
}

static void root_done(uv_work_t *work, int status)
{
        struct tour *t = work->data;
        int rc = status ? status : t->work_rc;

        if (rc)
                tour_fail(t, rc,
                        rc == -EACCES ? "a directory cannot be read by the "
                                        "owner, so the whole has no digest"
                                      : "the root digest cannot be recorded");
        else
                sheaf_registry_seal(t->opening.version, &t->root, sealed, t);
}

static void tour_finish(struct tour *t)
{
        tour_progress(t);
        uv_timer_stop(&t->timer);
        sheaf_store_flush(t->daemon->store);
        if (t->errors) {
                tour_fail(t, -EIO, "some files could not be fetched");
                return;
        }
        if (t->off_disk) {
                tour_fail(t, -ENOSPC,
                        "not all of it is on disk: there is no disk tier, or "
                        "it is full or too small; see: sheaf status");
                return;
        }
        if (!t->seal) {
                answer_info(t);
                return;
        }
        t->work.data = t;
        if (uv_queue_work(t->daemon->loop, &t->work, root_work, root_done))
                tour_fail(t, -ENOMEM, "out of memory");
}

/* ---- the walk ---- */

static void tour_step(struct sheaf_chore *chore);

static void wake(struct tour *t)
{
        if (!t->ended && !t->walked && !t->call.resume)
                sheaf_chore_start(t->call.conn->account, &t->chore, tour_step);
}

static void tour_resume(struct sheaf_call *call)
{
        call->resume = NULL;
        wake((struct tour *)call);
}

static void count_chunk(
        struct tour *t, uint32_t entry, uint32_t index, bool cached, bool good)
{
        uint32_t len = sheaf_listing_chunk_len(
                &t->opening.version->fetch.listing, entry, index);

        t->done_chunks++;
        if (good)
                t->done_bytes += len;
        if (cached)
                t->cached_bytes += len;
}

/* Whether the chunk needs nothing more. */
static bool is_there(struct tour *t, uint32_t entry, uint32_t index)
{
        struct sheaf_reg_version *v = t->opening.version;
        uint64_t chunk = v->fetch.listing.entries[entry].first_chunk + index;

        if (t->seal)
                return sheaf_digest_known(
                        sheaf_version_digest(v->fetch.stored, chunk));
        if (sheaf_version_on_disk(v->fetch.stored, chunk))
                return true;
        return !t->disk && t->lodging &&
               sheaf_table_block(t->lodging->residence.table, chunk);
}

static void chunk_done(
        struct sheaf_fetch *fetch, int rc, const void *bytes, const char *why)
{
        struct tour_slot *slot = (struct tour_slot *)fetch;
        struct tour *t = slot->tour;

        (void)bytes;
        LIST_REMOVE(slot, link);
        t->daemon->tour_items--;
        t->under_way--;
        t->under_way_bytes -= slot->len_bytes;
        count_chunk(
                t, fetch->entry, fetch->index, false, !rc || rc == -ENOBUFS);
        if (!rc && t->disk && !is_there(t, fetch->entry, fetch->index))
                t->off_disk++;
        /* No room in the arena is no failure: the disk has it, or the next
         * reader fetches it. */
        if (rc && rc != -ENOBUFS) {
                if (t->errors++ < FINDINGS_MAX && t->call.conn) {
                        char path[4096];

                        size_t len = sheaf_listing_path(
                                &t->opening.version->fetch.listing,
                                fetch->entry, path, sizeof(path));

                        sheaf_conn_finding(t->call.conn, t->call.id,
                                rc == -ESTALE ? "changed" : "unreadable", path,
                                SHEAF_MIN(len, sizeof(path) - 1),
                                why ? why : strerror(-rc));
                }
        }
        free(slot);
        if (t->walked && !t->under_way)
                tour_finish(t);
        else
                wake(t);
}

/* Bytes that may have been started by now under the wished rate. */
static bool rate_allows(const struct tour *t)
{
        double seconds;

        if (!t->rate_bytes)
                return true;
        seconds = (double)(sheaf_now_ns() - t->started_ns) / 1e9;
        return (double)t->started_bytes <=
               seconds * (double)t->rate_bytes + 4e6;
}

static bool window_full(const struct tour *t)
{
        if (t->under_way < WINDOW)
                return false;
        return t->under_way >= WINDOW_MAX ||
               t->under_way_bytes >= WINDOW_BYTES ||
               t->daemon->tour_items >= ITEMS_MAX;
}

static int start_chunk(struct tour *t, uint32_t entry, uint32_t index)
{
        struct tour_slot *slot = sheaf_new(struct tour_slot, 1);
        int rc;

        if (!slot)
                return -ENOMEM;
        slot->tour = t;
        slot->len_bytes = sheaf_listing_chunk_len(
                &t->opening.version->fetch.listing, entry, index);
        slot->fetch = (struct sheaf_fetch){ .version =
                                                    &t->opening.version->fetch,
                .entry = entry,
                .lane = t->lane,
                .index = index,
                .durable = t->disk,
                .done = chunk_done,
                .residence = t->lodging ? &t->lodging->residence : NULL };
        rc = sheaf_fetch(t->daemon->fetcher, &slot->fetch);
        if (rc) {
                free(slot);
                return rc;
        }
        LIST_INSERT_HEAD(&t->slots, slot, link);
        t->daemon->tour_items++;
        t->under_way++;
        t->under_way_bytes += slot->len_bytes;
        t->started_bytes += slot->len_bytes;
        return 0;
}

/* The next chunk. 1; 0: none for now, chunk_done or the timer goes on; more:
 * none yet; -errno. */
static int take_chunk(struct tour *t)
{
        uint32_t entry, index;
        enum sheaf_walked walked;
        int rc;

        if (window_full(t) || !rate_allows(t))
                return 0;
        walked = sheaf_walk_next(&t->walk, &entry, &index);
        if (walked == SHEAF_WALK_ON)
                return SHEAF_WALK_ON;
        if (walked == SHEAF_WALK_END) {
                t->walked = true;
                return 0;
        }
        if (is_there(t, entry, index)) {
                count_chunk(t, entry, index, true, true);
                return 1;
        }
        rc = start_chunk(t, entry, index);
        return rc ? rc : 1;
}

static void tour_step(struct sheaf_chore *chore)
{
        struct tour *t =
                (struct tour *)((char *)chore - offsetof(struct tour, chore));
        int rc = 1;

        if (t->dataset->removed) {
                tour_fail(t, -ESTALE, "the dataset was removed");
                return;
        }
        if (!sheaf_walk_prepare(&t->walk))
                return;
        if (!sheaf_conn_has_room(t->call.conn)) {
                t->call.resume = tour_resume;
                sheaf_chore_stop(chore);
                return;
        }
        for (int n = 0; n < STEP_CHUNKS && rc == 1; n++)
                rc = take_chunk(t);
        if (rc < 0)
                tour_fail(t, rc, "out of memory");
        if (rc == 0)
                sheaf_chore_stop(chore);
        if (t->walked && !t->under_way)
                tour_finish(t);
}

static void tick(uv_timer_t *timer)
{
        struct tour *t = timer->data;

        /* Figures for who reads them. */
        if (t->walk.ready && t->call.conn && sheaf_conn_has_room(t->call.conn))
                tour_progress(t);
        wake(t);
}

/* ---- the beginning ---- */

static void tour_opened(struct sheaf_opening *opening, int rc)
{
        struct tour *t = (struct tour *)((char *)opening -
                                         offsetof(struct tour, opening));
        const Sheaf__Warmup *wish = t->wish;
        size_t bad = 0;

        if (rc) {
                tour_fail(t, rc,
                        "the listing cannot be read; run: sheaf "
                        "update");
                return;
        }
        t->held = true;
        if (!t->seal)
                rc = sheaf_registry_lodge(
                        opening->version, &t->call.conn->who, &t->lodging);
        if (!rc)
                rc = sheaf_walk_begin(&t->walk,
                        &opening->version->fetch.listing,
                        wish ? wish->n_path : 0, wish ? wish->path : NULL,
                        &bad);
        if (rc) {
                tour_fail(t, rc,
                        rc == -ENOENT ? "a path is not in the dataset"
                                      : strerror(-rc));
                return;
        }
        t->started_ns = sheaf_now_ns();
        uv_timer_start(&t->timer, tick, PROGRESS_MS, PROGRESS_MS);
        wake(t);
}

static void tour_abandon(struct sheaf_call *call)
{
        struct tour *t = (struct tour *)call;

        sheaf_registry_open_cancel(&t->opening);
        /* The root digest under way on the pool ends by itself. */
        if (!t->walked || t->under_way)
                tour_end(t);
}

static void tour_begin(struct sheaf_conn *conn, struct sheaf_wire_msg *msg,
        struct sheaf_reg_dataset *ds, bool seal)
{
        struct tour *t = sheaf_new(struct tour, 1);
        uint64_t id = msg->env->id;

        if (!sheaf_call_begin(conn, id, t ? &t->call : NULL, tour_abandon)) {
                free(t);
                return;
        }
        t->daemon = conn->daemon;
        t->lane = conn->number;
        t->dataset = ds;
        t->seal = seal;
        t->env = sheaf_steal(&msg->env);
        if (!seal) {
                t->wish = t->env->warmup;
                t->rate_bytes = t->wish->rate_bytes;
                t->disk = t->wish->disk;
        }
        ds->busy++;
        uv_timer_init(conn->daemon->loop, &t->timer);
        t->timer.data = t;
        t->opening.version = sheaf_registry_version(ds, NULL);
        t->opening.done = tour_opened;
        t->opening.who = seal ? NULL : &conn->who;
        if (t->opening.version)
                sheaf_registry_open(&t->opening);
        else
                tour_fail(t, -EAGAIN, "still being listed");
}

void sheaf_verb_warmup(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        struct sheaf_reg_dataset *ds = sheaf_conn_dataset(
                conn, msg->env->id, msg->env->warmup->name, false);

        if (ds)
                tour_begin(conn, msg, ds, false);
}

void sheaf_verb_seal(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        struct sheaf_reg_dataset *ds = sheaf_conn_dataset(
                conn, msg->env->id, msg->env->seal->name, true);

        if (ds)
                tour_begin(conn, msg, ds, true);
}
