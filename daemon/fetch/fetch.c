/* SPDX-License-Identifier: Apache-2.0 */
/* The conductor (drawn in fetch.h).
 *
 *  1 at most one flight a (version, chunk); it is in exactly one queue or in
 *    the hands of exactly one of store, origin, hash pool
 *  2 bytes are visible to clients only after their digest was computed from
 *    the very copy that becomes visible
 *  3 a flight under way counts against flights_max and bytes_max; writes
 *    count on their own and never hold an answer back
 *  4 the arena block that is being written to disk is held
 *
 * Threads: loop thread, but hash_batch(), which touches only what its batch
 * owns. */
#include "daemon/fetch/fetch.h"

#include "daemon/clock.h"
#include "daemon/log.h"

#include <stdio.h>

#define BUCKETS          8192
#define BATCH_FLIGHTS    16
#define BATCH_BYTES      (UINT64_C(256) << 10)
#define HASH_STEP_BYTES  (UINT64_C(64) << 10)
#define ORIGIN_TRIES     2
/* Without progress for this long the disk is taken to be stuck, and chunks
 * go unwritten rather than hold the arena. */
#define WRITE_STUCK_NS   (2 * SHEAF_NS_PER_SEC)

static const char why_changed[] =
        "the origin changed since it was listed; run: sheaf update";
static const char why_differs[] =
        "the origin gives other bytes than before although size and times "
        "are the same; run: sheaf verify, then sheaf update";
static const char why_memory[] = "the daemon is out of memory";
static const char why_gone[] = "the dataset was removed";

enum flight_state {
        QUEUED,
        ATTACHING,
        SETTLING, /* a file changed just now: its times must grow old */
        READING,  /* disk or origin */
        HASHING,
        WRITING,
};

enum source { FROM_DISK, FROM_ORIGIN };

TAILQ_HEAD(fetch_list, sheaf_fetch);
TAILQ_HEAD(flight_list, sheaf_flight);

struct sheaf_flight {
        LIST_ENTRY(sheaf_flight) bucket;
        TAILQ_ENTRY(sheaf_flight) link;
        struct sheaf_fetcher *fetcher;
        struct sheaf_fetch_version *version;
        uint64_t chunk;
        uint32_t entry, index, len_bytes;
        enum flight_state state;
        enum source source;
        bool hint, dead, ctime_moved, counted, is_late;
        uint8_t origin_tries;
        int64_t settle_ns;
        struct fetch_list waits;
        struct sheaf_store_read disk_read;
        struct sheaf_origin_read origin_read;
        struct sheaf_store_write write;
        const void *src;
        /* Where the bytes go: an arena block or a heap buffer. */
        const struct sheaf_residence *home;
        sheaf_block block;
        void *bytes;
        void *heap;
        struct sheaf_digest digest;
};

struct batch {
        uv_work_t work;
        struct sheaf_fetcher *fetcher;
        struct sheaf_flight *flights[BATCH_FLIGHTS];
        size_t count;
        uint64_t bytes;
        int rc;
        int64_t ns;
};

LIST_HEAD(bucket, sheaf_flight);

struct sheaf_fetcher {
        uv_loop_t *loop;
        struct sheaf_store *store;
        uint64_t flights_max, bytes_max;
        uv_idle_t pump;
        uv_timer_t settle;
        bool pumping, closing;
        int open_handles; /* while closing */
        struct bucket buckets[BUCKETS];
        struct flight_list demand, hints, arrived, late, settling;
        uint64_t queued, hints_queued;
        uint64_t under_way, under_way_bytes, hashing;
        uint64_t writing, writing_bytes;
        int64_t write_progress_ns;
        struct sheaf_fetcher_stats stats;
};

static void pump_cb(uv_idle_t *idle);
static void flight_origin(struct sheaf_flight *f);
static void flight_start(struct sheaf_flight *f);

static void kick(struct sheaf_fetcher *fetcher)
{
        if (fetcher->pumping || fetcher->closing)
                return;
        fetcher->pumping = true;
        uv_idle_start(&fetcher->pump, pump_cb);
}

/* ---- flights: table, life, answers ---- */

static struct bucket *bucket_of(struct sheaf_fetcher *fetcher,
        const struct sheaf_fetch_version *version, uint64_t chunk)
{
        uint64_t key = ((uintptr_t)version >> 4) * UINT64_C(0x9e3779b97f4a7c15);

        key = (key ^ chunk) * UINT64_C(0xbf58476d1ce4e5b9);
        return &fetcher->buckets[key >> 51];
}

static struct sheaf_flight *flight_find(struct sheaf_fetcher *fetcher,
        const struct sheaf_fetch_version *version, uint64_t chunk)
{
        struct sheaf_flight *f;

        LIST_FOREACH (f, bucket_of(fetcher, version, chunk), bucket)
                if (f->version == version && f->chunk == chunk && !f->dead)
                        return f;
        return NULL;
}

static void count_start(struct sheaf_flight *f)
{
        f->counted = true;
        f->fetcher->under_way++;
        f->fetcher->under_way_bytes += f->len_bytes;
}

static void count_stop(struct sheaf_flight *f)
{
        if (!f->counted)
                return;
        f->counted = false;
        f->fetcher->under_way--;
        f->fetcher->under_way_bytes -= f->len_bytes;
}

static void answer(struct sheaf_flight *f, struct sheaf_fetch *w, int rc,
        const void *bytes, const char *why)
{
        TAILQ_REMOVE(&f->waits, w, link);
        w->flight = NULL;
        w->done(w, rc, bytes, why);
}

static void answer_all(struct sheaf_flight *f, int rc, const char *why)
{
        struct sheaf_fetch *w;

        if (rc != -ECANCELED)
                f->version->counters->errors++;
        while ((w = TAILQ_FIRST(&f->waits)))
                answer(f, w, rc, NULL, why);
}

static void flight_free(struct sheaf_flight *f)
{
        count_stop(f);
        if (f->is_late)
                TAILQ_REMOVE(&f->fetcher->late, f, link);
        LIST_REMOVE(f, bucket);
        f->version->flights--;
        free(f->heap);
        kick(f->fetcher);
        free(f);
}

static void flight_fail(struct sheaf_flight *f, int rc, const char *why)
{
        answer_all(f, f->dead ? -ESTALE : rc, f->dead ? why_gone : why);
        flight_free(f);
}

static int flight_new(struct sheaf_fetcher *fetcher, struct sheaf_fetch *fetch,
        struct sheaf_flight **ret_flight)
{
        const struct sheaf_listing_entry *entry =
                &fetch->version->listing.entries[fetch->entry];
        struct sheaf_flight *f = sheaf_new(struct sheaf_flight, 1);

        if (!f)
                return -ENOMEM;
        f->fetcher = fetcher;
        f->version = fetch->version;
        f->entry = fetch->entry;
        f->index = fetch->index;
        f->chunk = entry->first_chunk + fetch->index;
        f->len_bytes = sheaf_chunk_len(entry->size_bytes, fetch->index);
        f->hint = fetch->hint;
        TAILQ_INIT(&f->waits);
        LIST_INSERT_HEAD(bucket_of(fetcher, f->version, f->chunk), f, bucket);
        f->version->flights++;
        if (f->hint) {
                TAILQ_INSERT_TAIL(&fetcher->hints, f, link);
                fetcher->hints_queued++;
        } else {
                TAILQ_INSERT_TAIL(&fetcher->demand, f, link);
                fetcher->queued++;
        }
        *ret_flight = f;
        return 0;
}

static void dequeue(struct sheaf_flight *f)
{
        struct sheaf_fetcher *fetcher = f->fetcher;

        if (f->hint) {
                TAILQ_REMOVE(&fetcher->hints, f, link);
                fetcher->hints_queued--;
        } else {
                TAILQ_REMOVE(&fetcher->demand, f, link);
                fetcher->queued--;
        }
}

static struct sheaf_chunk_ref ref_of(const struct sheaf_flight *f)
{
        return (struct sheaf_chunk_ref){ .version = f->version->stored,
                .chunk = f->chunk, .entry = f->entry, .index = f->index,
                .len_bytes = f->len_bytes };
}

/* ---- publishing ---- */

/* Brings verified bytes into the arena of @res; 0 or -ENOBUFS, -ENOMEM. */
static int settle_in(struct sheaf_flight *f, const struct sheaf_residence *res,
        const void *bytes)
{
        sheaf_block block = sheaf_table_block(res->table, f->chunk);
        void *room;
        int rc;

        if (block)
                return 0;
        block = sheaf_arena_find(res->arena, &f->digest);
        if (block) {
                f->version->counters->joins++;
                return sheaf_arena_join(res->arena, block, res->table,
                        f->chunk);
        }
        rc = sheaf_arena_place(res->space, f->len_bytes, &block, &room);
        if (rc)
                return rc;
        memcpy(room, bytes, f->len_bytes);
        sheaf_arena_commit(res->space, block, &f->digest, res->table,
                f->chunk);
        return 0;
}

/* Answers those that wait; @durable also those that wait for the disk. */
static void serve(struct sheaf_flight *f, bool durable)
{
        struct sheaf_fetch *w, *next;

        for (w = TAILQ_FIRST(&f->waits); w; w = next) {
                int rc = 0;

                next = TAILQ_NEXT(w, link);
                if (w->durable && !durable)
                        continue;
                if (w->residence)
                        rc = settle_in(f, w->residence, f->bytes);
                answer(f, w, rc, f->bytes, rc ? why_memory : NULL);
        }
}

static void release_bytes(struct sheaf_flight *f)
{
        if (f->block)
                sheaf_arena_unhold(f->home->arena, f->block);
        f->block = 0;
        f->bytes = NULL;
}

static void flight_end(struct sheaf_flight *f)
{
        serve(f, true);
        release_bytes(f);
        flight_free(f);
}

static void write_done(struct sheaf_store_write *write, int rc)
{
        struct sheaf_flight *f = (struct sheaf_flight *)((char *)write -
                offsetof(struct sheaf_flight, write));

        (void)rc; /* the store counts and tells why it refused */
        f->fetcher->writing--;
        f->fetcher->writing_bytes -= f->len_bytes;
        f->fetcher->write_progress_ns = sheaf_now_ns();
        flight_end(f);
}

/* True when the disk keeps up: the bytes may wait there to be written. */
static bool may_write(struct sheaf_fetcher *fetcher)
{
        if (fetcher->writing_bytes < fetcher->bytes_max)
                return true;
        return sheaf_now_ns() - fetcher->write_progress_ns < WRITE_STUCK_NS &&
                fetcher->writing_bytes < 2 * fetcher->bytes_max;
}

/* Sends the held bytes to the disk, unless they are there or it is stuck. */
static void write_out(struct sheaf_flight *f)
{
        struct sheaf_fetcher *fetcher = f->fetcher;

        if (sheaf_version_on_disk(f->version->stored, f->chunk)) {
                flight_end(f);
                return;
        }
        if (!may_write(fetcher)) {
                fetcher->stats.writes_skipped++;
                flight_end(f);
                return;
        }
        f->state = WRITING;
        f->write.ref = ref_of(f);
        f->write.bytes = f->bytes;
        f->write.done = write_done;
        if (!fetcher->writing++)
                fetcher->write_progress_ns = sheaf_now_ns();
        fetcher->writing_bytes += f->len_bytes;
        kick(fetcher);
        sheaf_store_write(fetcher->store, &f->write);
}

/* The bytes are verified and their digest is learned. */
static void flight_publish(struct sheaf_flight *f)
{
        bool from_origin = f->source == FROM_ORIGIN;

        if (f->dead) {
                if (f->block)
                        sheaf_arena_abort(f->home->space, f->block);
                f->block = 0;
                flight_fail(f, -ESTALE, why_gone);
                return;
        }
        if (f->block) {
                uint32_t len;

                f->block = sheaf_arena_commit(f->home->space, f->block,
                        &f->digest, f->home->table, f->chunk);
                f->bytes = (void *)sheaf_arena_hold(f->home->arena, f->block,
                        &len);
        }
        count_stop(f);
        serve(f, false);
        if (from_origin)
                write_out(f);
        else
                flight_end(f);
}

/* ---- hashing ---- */

static void source_end(struct sheaf_flight *f)
{
        if (f->source == FROM_DISK)
                sheaf_store_read_end(&f->disk_read);
        else
                sheaf_origin_read_end(&f->origin_read);
        f->src = NULL;
}

static void discard_bytes(struct sheaf_flight *f)
{
        if (f->block)
                sheaf_arena_abort(f->home->space, f->block);
        f->block = 0;
        free(f->heap);
        f->heap = NULL;
        f->bytes = NULL;
}

static void from_disk_hashed(struct sheaf_flight *f,
        const struct sheaf_digest *known)
{
        struct sheaf_chunk_ref ref = ref_of(f);

        if (sheaf_digest_equal(&f->digest, known)) {
                f->version->counters->disk_hits++;
                f->version->counters->disk_hit_bytes += f->len_bytes;
                flight_publish(f);
                return;
        }
        f->version->counters->verify_failures++;
        sheaf_store_bad(f->fetcher->store, &ref);
        discard_bytes(f);
        flight_origin(f);
}

static void from_origin_hashed(struct sheaf_flight *f,
        const struct sheaf_digest *known)
{
        struct sheaf_fetch_version *v = f->version;

        v->counters->origin_reads++;
        v->counters->origin_bytes += f->len_bytes;
        if (!sheaf_digest_known(known)) {
                sheaf_version_learn(v->stored, f->chunk, &f->digest);
                flight_publish(f);
                return;
        }
        if (sheaf_digest_equal(&f->digest, known)) {
                flight_publish(f);
                return;
        }
        discard_bytes(f);
        if (f->ctime_moved) {
                v->counters->stale++;
                flight_fail(f, -ESTALE, why_changed);
                return;
        }
        v->counters->verify_failures++;
        if (f->origin_tries < ORIGIN_TRIES)
                flight_origin(f);
        else
                flight_fail(f, -EIO, why_differs);
}

static void hash_batch(uv_work_t *work)
{
        struct batch *batch = work->data;
        struct sheaf_hasher *hasher = NULL;
        int64_t start = sheaf_now_ns();

        batch->rc = sheaf_hasher_new(&hasher);
        if (batch->rc)
                return;
        for (size_t i = 0; i < batch->count; i++) {
                struct sheaf_flight *f = batch->flights[i];
                const char *src = f->src;
                char *dst = f->bytes;

                /* The copy is hashed, never the source: its owner may still
                 * write there. In steps that stay in the inner caches. */
                for (uint64_t at = 0; at < f->len_bytes;
                        at += HASH_STEP_BYTES) {
                        uint64_t n = SHEAF_MIN(f->len_bytes - at,
                                HASH_STEP_BYTES);

                        memcpy(dst + at, src + at, n);
                        sheaf_hasher_feed(hasher, dst + at, n);
                }
                sheaf_hasher_finish(hasher, &f->digest);
        }
        sheaf_hasher_free(hasher);
        batch->ns = sheaf_now_ns() - start;
}

static void hashed(uv_work_t *work, int status)
{
        struct batch *batch = work->data;
        struct sheaf_fetcher *fetcher = batch->fetcher;

        fetcher->hashing--;
        fetcher->stats.hash_ns += (uint64_t)batch->ns;
        fetcher->stats.hashed_bytes += batch->bytes;
        for (size_t i = 0; i < batch->count; i++) {
                struct sheaf_flight *f = batch->flights[i];
                struct sheaf_digest known =
                        *sheaf_version_digest(f->version->stored, f->chunk);

                source_end(f);
                if (status || batch->rc) {
                        discard_bytes(f);
                        flight_fail(f, -ENOMEM, why_memory);
                } else if (f->source == FROM_DISK) {
                        from_disk_hashed(f, &known);
                } else {
                        from_origin_hashed(f, &known);
                }
        }
        free(batch);
}

/* Finds room for the bytes that arrived: in the arena of the first who wants
 * one, else on the heap. */
static int make_room(struct sheaf_flight *f)
{
        struct sheaf_fetch *w;

        TAILQ_FOREACH (w, &f->waits, link)
                if (w->residence)
                        break;
        if (w && !f->dead &&
                !sheaf_arena_place(w->residence->space, f->len_bytes,
                        &f->block, &f->bytes)) {
                f->home = w->residence;
                return 0;
        }
        f->block = 0;
        f->heap = malloc(f->len_bytes);
        f->bytes = f->heap;
        return f->heap ? 0 : -ENOMEM;
}

static void dispatch_arrived(struct sheaf_fetcher *fetcher)
{
        while (!TAILQ_EMPTY(&fetcher->arrived)) {
                struct batch *batch = sheaf_new(struct batch, 1);
                struct sheaf_flight *f;

                if (!batch)
                        return; /* tried again by the next pump */
                batch->fetcher = fetcher;
                batch->work.data = batch;
                while ((f = TAILQ_FIRST(&fetcher->arrived)) &&
                        batch->count < BATCH_FLIGHTS &&
                        batch->bytes < BATCH_BYTES) {
                        TAILQ_REMOVE(&fetcher->arrived, f, link);
                        if (make_room(f)) {
                                source_end(f);
                                flight_fail(f, -ENOMEM, why_memory);
                                continue;
                        }
                        f->state = HASHING;
                        batch->flights[batch->count++] = f;
                        batch->bytes += f->len_bytes;
                }
                if (!batch->count) {
                        free(batch);
                        continue;
                }
                fetcher->hashing++;
                if (uv_queue_work(fetcher->loop, &batch->work, hash_batch,
                            hashed)) {
                        hash_batch(&batch->work);
                        hashed(&batch->work, 0);
                }
        }
}

static void arrive(struct sheaf_flight *f, enum source source, const void *src)
{
        f->source = source;
        f->src = src;
        TAILQ_INSERT_TAIL(&f->fetcher->arrived, f, link);
        kick(f->fetcher);
}

/* ---- sources ---- */

static void origin_done(struct sheaf_origin_read *read, int rc)
{
        struct sheaf_flight *f = (struct sheaf_flight *)((char *)read -
                offsetof(struct sheaf_flight, origin_read));
        struct sheaf_fetch_version *v = f->version;

        if (rc >= 0) {
                f->ctime_moved = rc == SHEAF_ORIGIN_CTIME_MOVED;
                arrive(f, FROM_ORIGIN, read->bytes);
                return;
        }
        if (rc == -ECANCELED) {
                flight_fail(f, rc, "the daemon stops");
                return;
        }
        v->counters->origin_errors++;
        /* A link where a file was listed is another tree, too. */
        if (rc == -ESTALE || rc == -ENOENT || rc == -ELOOP || rc == -EXDEV) {
                v->counters->stale++;
                flight_fail(f, -ESTALE, why_changed);
        } else if (rc == -ETIMEDOUT) {
                flight_fail(f, rc, "the origin did not answer in time");
        } else if (rc == -EACCES) {
                flight_fail(f, rc, "the dataset's owner may not read it");
        } else {
                flight_fail(f, -EIO, "reading the origin failed");
        }
}

static void origin_read(struct sheaf_flight *f, struct sheaf_origin *origin)
{
        f->state = READING;
        f->origin_tries++;
        f->origin_read.listing = &f->version->listing;
        f->origin_read.entry = f->entry;
        f->origin_read.index = f->index;
        f->origin_read.done = origin_done;
        sheaf_origin_read(origin, &f->origin_read);
}

/* A file that changed within two seconds of its listing may change again
 * without its times showing it; wait until they are old. Returns the time
 * (monotonic) to wait for, or 0. */
static int64_t settle_until(const struct sheaf_flight *f)
{
        const struct sheaf_listing_entry *e =
                &f->version->listing.entries[f->entry];
        int64_t age_ns;

        if (!(e->flags & SHEAF_LISTING_RECENT))
                return 0;
        age_ns = sheaf_wall_ns() -
                (int64_t)(e->ctime_packed >> 30) * SHEAF_NS_PER_SEC;
        if (age_ns < 0 || age_ns > 2 * SHEAF_NS_PER_SEC)
                return 0;
        return sheaf_now_ns() + 2 * SHEAF_NS_PER_SEC - age_ns;
}

static void settle_cb(uv_timer_t *timer)
{
        struct sheaf_fetcher *fetcher = timer->data;
        struct flight_list due = TAILQ_HEAD_INITIALIZER(due);
        struct sheaf_flight *f;

        TAILQ_CONCAT(&due, &fetcher->settling, link);
        while ((f = TAILQ_FIRST(&due))) {
                TAILQ_REMOVE(&due, f, link);
                flight_origin(f);
        }
}

static void flight_origin(struct sheaf_flight *f)
{
        struct sheaf_origin *origin;
        const char *why = NULL;
        int64_t until_ns;
        int rc;

        if (f->dead) {
                flight_fail(f, -ESTALE, why_gone);
                return;
        }
        until_ns = settle_until(f);
        if (until_ns) {
                uint64_t ms = (uint64_t)((until_ns - sheaf_now_ns()) /
                        SHEAF_NS_PER_MS + 1);

                f->state = SETTLING;
                if (TAILQ_EMPTY(&f->fetcher->settling))
                        uv_timer_start(&f->fetcher->settle, settle_cb, ms, 0);
                TAILQ_INSERT_TAIL(&f->fetcher->settling, f, link);
                return;
        }
        rc = f->version->attach(f->version, &origin, &why);
        if (rc == -EINPROGRESS) {
                f->state = ATTACHING;
                TAILQ_INSERT_TAIL(&f->version->attaching, f, link);
        } else if (rc) {
                flight_fail(f, rc, why);
        } else {
                origin_read(f, origin);
        }
}

static void disk_done(struct sheaf_store_read *read, int rc)
{
        struct sheaf_flight *f = (struct sheaf_flight *)((char *)read -
                offsetof(struct sheaf_flight, disk_read));

        if (!rc) {
                arrive(f, FROM_DISK, read->bytes);
                return;
        }
        if (rc == -EBADMSG)
                f->version->counters->verify_failures++;
        flight_origin(f);
}

/* Answers waits whose arena holds the bytes already. */
static void serve_resident(struct sheaf_flight *f, bool known)
{
        struct sheaf_fetch *w, *next;

        for (w = TAILQ_FIRST(&f->waits); w; w = next) {
                const struct sheaf_residence *res = w->residence;
                const void *bytes;
                sheaf_block block;
                uint32_t len;

                next = TAILQ_NEXT(w, link);
                if (!res)
                        continue;
                block = sheaf_table_block(res->table, f->chunk);
                if (!block && known) {
                        block = sheaf_arena_find(res->arena, &f->digest);
                        if (!block ||
                                sheaf_arena_join(res->arena, block, res->table,
                                        f->chunk))
                                continue;
                        f->version->counters->joins++;
                }
                if (!block)
                        continue;
                bytes = sheaf_arena_hold(res->arena, block, &len);
                if (w->durable &&
                        !sheaf_version_on_disk(f->version->stored, f->chunk)) {
                        /* In memory but not on disk: written from there. */
                        if (f->block) {
                                sheaf_arena_unhold(res->arena, block);
                                continue;
                        }
                        f->home = res;
                        f->block = block;
                        f->bytes = (void *)bytes;
                        continue;
                }
                answer(f, w, 0, bytes, NULL);
                sheaf_arena_unhold(res->arena, block);
        }
}

/* Waits that want nothing but a copy on disk, and have it. */
static void serve_stored(struct sheaf_flight *f)
{
        struct sheaf_fetch *w, *next;

        for (w = TAILQ_FIRST(&f->waits); w; w = next) {
                next = TAILQ_NEXT(w, link);
                if (w->durable && !w->residence)
                        answer(f, w, 0, NULL, NULL);
        }
}

static void flight_start(struct sheaf_flight *f)
{
        const struct sheaf_digest *known =
                sheaf_version_digest(f->version->stored, f->chunk);

        bool stored = sheaf_digest_known(known) &&
                sheaf_version_on_disk(f->version->stored, f->chunk);

        f->digest = *known;
        serve_resident(f, sheaf_digest_known(known));
        if (stored)
                serve_stored(f);
        if (TAILQ_EMPTY(&f->waits)) {
                flight_free(f);
                return;
        }
        if (f->block) {
                serve(f, false);
                write_out(f);
                return;
        }
        count_start(f);
        if (stored) {
                f->state = READING;
                f->disk_read.ref = ref_of(f);
                f->disk_read.done = disk_done;
                sheaf_store_read(f->fetcher->store, &f->disk_read);
        } else {
                flight_origin(f);
        }
}

/* ---- the pump: starts flights, serves late comers, hands out work ---- */

static struct sheaf_flight *next_flight(struct sheaf_fetcher *fetcher)
{
        struct sheaf_flight *f;

        if (fetcher->under_way >= fetcher->flights_max ||
                fetcher->under_way_bytes >= fetcher->bytes_max ||
                !may_write(fetcher))
                return NULL;
        f = TAILQ_FIRST(&fetcher->demand);
        if (!f && fetcher->under_way < fetcher->flights_max / 2)
                f = TAILQ_FIRST(&fetcher->hints);
        return f;
}

static void pump_cb(uv_idle_t *idle)
{
        struct sheaf_fetcher *fetcher = idle->data;
        struct sheaf_flight *f;

        fetcher->pumping = false;
        uv_idle_stop(idle);
        while ((f = TAILQ_FIRST(&fetcher->late))) {
                TAILQ_REMOVE(&fetcher->late, f, link);
                f->is_late = false;
                serve(f, false);
        }
        while ((f = next_flight(fetcher))) {
                dequeue(f);
                flight_start(f);
        }
        dispatch_arrived(fetcher);
}

/* ---- interface ---- */

int sheaf_fetch(struct sheaf_fetcher *fetcher, struct sheaf_fetch *fetch)
{
        uint64_t chunk =
                fetch->version->listing.entries[fetch->entry].first_chunk +
                fetch->index;
        struct sheaf_flight *f = flight_find(fetcher, fetch->version, chunk);

        fetch->flight = NULL;
        if (!f) {
                int rc = flight_new(fetcher, fetch, &f);

                if (rc)
                        return rc;
        }
        if (f->state == QUEUED && f->hint && !fetch->hint) {
                dequeue(f);
                f->hint = false;
                TAILQ_INSERT_TAIL(&fetcher->demand, f, link);
                fetcher->queued++;
        }
        if (f->state == WRITING && !f->is_late) {
                f->is_late = true;
                TAILQ_INSERT_TAIL(&fetcher->late, f, link);
        }
        TAILQ_INSERT_TAIL(&f->waits, fetch, link);
        fetch->flight = f;
        kick(fetcher);
        return 0;
}

void sheaf_fetch_cancel(struct sheaf_fetcher *fetcher,
        struct sheaf_fetch *fetch)
{
        struct sheaf_flight *f = fetch->flight;

        if (!f)
                return;
        TAILQ_REMOVE(&f->waits, fetch, link);
        fetch->flight = NULL;
        if (f->state == QUEUED && TAILQ_EMPTY(&f->waits)) {
                dequeue(f);
                flight_free(f);
        }
        (void)fetcher;
}

void sheaf_fetch_resume(struct sheaf_fetcher *fetcher,
        struct sheaf_fetch_version *version, struct sheaf_origin *origin,
        int rc, const char *why)
{
        struct flight_list list = TAILQ_HEAD_INITIALIZER(list);
        struct sheaf_flight *f;

        (void)fetcher;
        TAILQ_CONCAT(&list, &version->attaching, link);
        while ((f = TAILQ_FIRST(&list))) {
                TAILQ_REMOVE(&list, f, link);
                if (rc)
                        flight_fail(f, rc, why);
                else
                        origin_read(f, origin);
        }
}

bool sheaf_fetch_quiesce(struct sheaf_fetcher *fetcher,
        struct sheaf_fetch_version *version)
{
        for (size_t i = 0; i < BUCKETS && version->flights; i++) {
                struct sheaf_flight *f, *next;

                for (f = LIST_FIRST(&fetcher->buckets[i]); f; f = next) {
                        next = LIST_NEXT(f, bucket);
                        if (f->version != version)
                                continue;
                        f->dead = true;
                        answer_all(f, -ESTALE, why_gone);
                        if (f->state == QUEUED) {
                                dequeue(f);
                                flight_free(f);
                        } else if (f->state == ATTACHING) {
                                TAILQ_REMOVE(&version->attaching, f, link);
                                flight_free(f);
                        } else if (f->state == SETTLING) {
                                TAILQ_REMOVE(&fetcher->settling, f, link);
                                flight_free(f);
                        }
                }
        }
        return version->flights == 0;
}

int sheaf_fetcher_new(const struct sheaf_fetcher_config *config,
        struct sheaf_fetcher **ret_fetcher)
{
        struct sheaf_fetcher *fetcher = sheaf_new(struct sheaf_fetcher, 1);

        if (!fetcher)
                return -ENOMEM;
        fetcher->loop = config->loop;
        fetcher->store = config->store;
        fetcher->flights_max = config->flights_max ? config->flights_max : 256;
        fetcher->bytes_max = config->bytes_max ? config->bytes_max :
                                                 256 * SHEAF_MIB;
        TAILQ_INIT(&fetcher->demand);
        TAILQ_INIT(&fetcher->hints);
        TAILQ_INIT(&fetcher->arrived);
        TAILQ_INIT(&fetcher->late);
        TAILQ_INIT(&fetcher->settling);
        uv_idle_init(fetcher->loop, &fetcher->pump);
        fetcher->pump.data = fetcher;
        uv_timer_init(fetcher->loop, &fetcher->settle);
        fetcher->settle.data = fetcher;
        *ret_fetcher = fetcher;
        return 0;
}

void sheaf_fetcher_stats(const struct sheaf_fetcher *fetcher,
        struct sheaf_fetcher_stats *ret_stats)
{
        *ret_stats = fetcher->stats;
        ret_stats->in_flight = fetcher->under_way;
        ret_stats->queued = fetcher->queued;
        ret_stats->hints_queued = fetcher->hints_queued;
        ret_stats->writing = fetcher->writing;
        ret_stats->writing_bytes = fetcher->writing_bytes;
}

static void closed(uv_handle_t *handle)
{
        struct sheaf_fetcher *fetcher = handle->data;

        if (--fetcher->open_handles == 0)
                free(fetcher);
}

void sheaf_fetcher_free(struct sheaf_fetcher *fetcher)
{
        if (!fetcher)
                return;
        /* Versions were quiesced before; handles close with the loop. */
        fetcher->closing = true;
        fetcher->open_handles = 2;
        uv_close((uv_handle_t *)&fetcher->pump, closed);
        uv_close((uv_handle_t *)&fetcher->settle, closed);
}
