/* SPDX-License-Identifier: Apache-2.0 */
/* Copying and hashing, in batches on the pool: small chunks share the cost of
 * the hand-over. What the digest says decides how the flight goes on.
 *
 * Threads: loop thread, but hash_batch(), which touches only what its batch
 * owns. */
#include "daemon/fetch/impl.h"

#define ORIGIN_TRIES    2
#define BATCH_FLIGHTS   16
#define BATCH_BYTES     (UINT64_C(256) << 10)
#define HASH_STEP_BYTES (UINT64_C(64) << 10)

struct batch {
        uv_work_t work;
        struct sheaf_fetcher *fetcher;
        struct sheaf_flight *flights[BATCH_FLIGHTS];
        size_t count;
        uint64_t bytes;
        int rc;
        int64_t ns;
};

static void source_end(struct sheaf_flight *f)
{
        if (f->source == SHEAF_FROM_DISK)
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

static void from_disk_hashed(
        struct sheaf_flight *f, const struct sheaf_digest *known)
{
        struct sheaf_chunk_ref ref = sheaf_flight_ref(f);

        if (sheaf_digest_equal(&f->digest, known)) {
                f->version->counters->disk_hits++;
                f->version->counters->disk_hit_bytes += f->len_bytes;
                sheaf_flight_publish(f);
                return;
        }
        f->version->counters->verify_failures++;
        sheaf_store_bad(f->fetcher->store, &ref);
        discard_bytes(f);
        sheaf_flight_go_origin(f);
}

static void from_origin_hashed(
        struct sheaf_flight *f, const struct sheaf_digest *known)
{
        struct sheaf_fetch_version *v = f->version;

        v->counters->origin_reads++;
        v->counters->origin_bytes += f->len_bytes;
        /* What a sealed version stands for is not learned from a file of which
         * anything moved. */
        if (!sheaf_digest_known(known) && v->sealed && f->ctime_moved) {
                discard_bytes(f);
                v->counters->stale++;
                sheaf_flight_fail(f, -ESTALE, sheaf_why_changed);
                return;
        }
        if (!sheaf_digest_known(known)) {
                sheaf_version_learn(v->stored, f->chunk, &f->digest);
                sheaf_flight_publish(f);
                return;
        }
        if (sheaf_digest_equal(&f->digest, known)) {
                sheaf_flight_publish(f);
                return;
        }
        discard_bytes(f);
        if (f->ctime_moved) {
                v->counters->stale++;
                sheaf_flight_fail(f, -ESTALE, sheaf_why_changed);
                return;
        }
        v->counters->verify_failures++;
        if (f->origin_tries < ORIGIN_TRIES)
                sheaf_flight_go_origin(f);
        else
                sheaf_flight_fail(f, -EIO, sheaf_why_differs);
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
                        uint64_t n =
                                SHEAF_MIN(f->len_bytes - at, HASH_STEP_BYTES);

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
        sheaf_fetcher_kick(fetcher);
        fetcher->stats.hash_ns += (uint64_t)batch->ns;
        fetcher->stats.hashed_bytes += batch->bytes;
        for (size_t i = 0; i < batch->count; i++) {
                struct sheaf_flight *f = batch->flights[i];
                struct sheaf_digest known =
                        *sheaf_version_digest(f->version->stored, f->chunk);

                source_end(f);
                if (status || batch->rc) {
                        discard_bytes(f);
                        sheaf_flight_fail(f, -ENOMEM, sheaf_why_memory);
                } else if (f->source == SHEAF_FROM_DISK) {
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
                !sheaf_arena_place(w->residence->space, f->len_bytes, &f->block,
                        &f->bytes)) {
                f->home = w->residence;
                return 0;
        }
        f->block = 0;
        f->heap = malloc(f->len_bytes);
        f->bytes = f->heap;
        return f->heap ? 0 : -ENOMEM;
}

static void fail_arrived(struct sheaf_fetcher *fetcher)
{
        struct sheaf_flight *f;

        while ((f = TAILQ_FIRST(&fetcher->arrived))) {
                TAILQ_REMOVE(&fetcher->arrived, f, link);
                source_end(f);
                sheaf_flight_fail(f, -ENOMEM, sheaf_why_memory);
        }
}

/* With every core busy, what arrives waits and makes the next batch larger:
 * a hand-over to the pool costs as much as hashing a small chunk. */
void sheaf_fetcher_hash_arrived(struct sheaf_fetcher *fetcher)
{
        while (!TAILQ_EMPTY(&fetcher->arrived) &&
                fetcher->hashing <= fetcher->cores) {
                struct batch *batch = sheaf_new(struct batch, 1);
                struct sheaf_flight *f;

                if (!batch) {
                        fail_arrived(fetcher);
                        return;
                }
                batch->fetcher = fetcher;
                batch->work.data = batch;
                while ((f = TAILQ_FIRST(&fetcher->arrived)) &&
                        batch->count < BATCH_FLIGHTS &&
                        batch->bytes < BATCH_BYTES) {
                        TAILQ_REMOVE(&fetcher->arrived, f, link);
                        if (make_room(f)) {
                                source_end(f);
                                sheaf_flight_fail(f, -ENOMEM, sheaf_why_memory);
                                continue;
                        }
                        f->state = SHEAF_FLIGHT_HASHING;
                        batch->flights[batch->count++] = f;
                        batch->bytes += f->len_bytes;
                }
                if (!batch->count) {
                        free(batch);
                        continue;
                }
                fetcher->hashing++;
                if (uv_queue_work(
                            fetcher->loop, &batch->work, hash_batch, hashed)) {
                        hash_batch(&batch->work);
                        hashed(&batch->work, 0);
                }
        }
}

void sheaf_flight_arrive(
        struct sheaf_flight *f, enum sheaf_source source, const void *src)
{
        f->source = source;
        f->src = src;
        TAILQ_INSERT_TAIL(&f->fetcher->arrived, f, link);
        sheaf_fetcher_kick(f->fetcher);
}
