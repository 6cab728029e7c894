/* SPDX-License-Identifier: Apache-2.0 */
/* Flights: their table, their life, the pump that starts them, and the
 * interface. Invariants: impl.h.
 *
 * Threads: loop thread. */
#include "daemon/fetch/impl.h"

#define WATCH_MS 250

const char sheaf_why_changed[] =
        "the origin changed since it was listed; run: sheaf update";
const char sheaf_why_differs[] =
        "the origin gives other bytes than before although size and times "
        "are the same; run: sheaf verify, then sheaf update";
const char sheaf_why_memory[] = "the daemon is out of memory";
const char sheaf_why_gone[] = "the dataset was removed";

static void pump_cb(uv_idle_t *idle);

void sheaf_fetcher_kick(struct sheaf_fetcher *fetcher)
{
        if (fetcher->pumping || fetcher->closing)
                return;
        fetcher->pumping = true;
        uv_idle_start(&fetcher->pump, pump_cb);
}

/* ---- table, life, answers ---- */

static struct sheaf_flight_bucket *bucket_of(struct sheaf_fetcher *fetcher,
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

void sheaf_flight_count_start(struct sheaf_flight *f)
{
        if (f->counted)
                return;
        f->counted = true;
        f->fetcher->under_way++;
        f->fetcher->under_way_bytes += f->len_bytes;
}

void sheaf_flight_count_stop(struct sheaf_flight *f)
{
        if (!f->counted)
                return;
        f->counted = false;
        f->fetcher->under_way--;
        f->fetcher->under_way_bytes -= f->len_bytes;
}

void sheaf_flight_answer(struct sheaf_flight *f, struct sheaf_fetch *w, int rc,
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
                sheaf_flight_answer(f, w, rc, NULL, why);
}

void sheaf_flight_free(struct sheaf_flight *f)
{
        sheaf_flight_leave_origin(f);
        sheaf_flight_count_stop(f);
        if (f->is_late)
                TAILQ_REMOVE(&f->fetcher->late, f, link);
        LIST_REMOVE(f, bucket);
        f->version->flights--;
        free(f->heap);
        sheaf_fetcher_kick(f->fetcher);
        free(f);
}

void sheaf_flight_fail(struct sheaf_flight *f, int rc, const char *why)
{
        answer_all(f, f->dead ? -ESTALE : rc, f->dead ? sheaf_why_gone : why);
        sheaf_flight_free(f);
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
        TAILQ_INIT(&f->waits);
        if (fetch->hint) {
                sheaf_flight_enqueue_hint(f);
        } else if (sheaf_flight_enqueue(f, fetch->lane)) {
                free(f);
                return -ENOMEM;
        }
        LIST_INSERT_HEAD(bucket_of(fetcher, f->version, f->chunk), f, bucket);
        f->version->flights++;
        *ret_flight = f;
        return 0;
}

struct sheaf_chunk_ref sheaf_flight_ref(const struct sheaf_flight *f)
{
        return (struct sheaf_chunk_ref){ .version = f->version->stored,
                .chunk = f->chunk,
                .entry = f->entry,
                .index = f->index,
                .len_bytes = f->len_bytes };
}

/* ---- the pump: starts flights, serves late comers, hands out work ---- */

static void pump_cb(uv_idle_t *idle)
{
        struct sheaf_fetcher *fetcher = idle->data;
        struct sheaf_flight *f;

        fetcher->pumping = false;
        uv_idle_stop(idle);
        while ((f = TAILQ_FIRST(&fetcher->late))) {
                TAILQ_REMOVE(&fetcher->late, f, link);
                f->is_late = false;
                sheaf_flight_serve(f, false);
        }
        sheaf_fetcher_start_queued(fetcher);
        sheaf_fetcher_hash_arrived(fetcher);
}

/* ---- interface ---- */

void sheaf_fetch_version_init(struct sheaf_fetch_version *version)
{
        TAILQ_INIT(&version->attaching);
        TAILQ_INIT(&version->parked);
        LIST_INIT(&version->at_origin);
        version->wall_offset_ns = sheaf_wall_ns() - sheaf_now_ns();
}

static bool is_verified(const struct sheaf_flight *f)
{
        return f->state == SHEAF_FLIGHT_UNWRITTEN ||
               f->state == SHEAF_FLIGHT_WRITING;
}

int sheaf_fetch(struct sheaf_fetcher *fetcher, struct sheaf_fetch *fetch)
{
        uint64_t chunk =
                fetch->version->listing.entries[fetch->entry].first_chunk +
                fetch->index;
        struct sheaf_flight *f = flight_find(fetcher, fetch->version, chunk);

        fetch->flight = NULL;
        fetch->joined = f != NULL;
        if (!f) {
                int rc = flight_new(fetcher, fetch, &f);

                if (rc)
                        return rc;
        }
        if (f->state == SHEAF_FLIGHT_QUEUED && f->hint && !fetch->hint) {
                sheaf_flight_dequeue(f);
                /* Without memory for a lane it waits on as what it was. */
                if (sheaf_flight_enqueue(f, fetch->lane))
                        sheaf_flight_enqueue_hint(f);
        }
        if (is_verified(f) && !f->is_late) {
                f->is_late = true;
                TAILQ_INSERT_TAIL(&fetcher->late, f, link);
        }
        TAILQ_INSERT_TAIL(&f->waits, fetch, link);
        fetch->flight = f;
        if (f->state == SHEAF_FLIGHT_UNWRITTEN && fetch->durable)
                sheaf_flight_write_now(f);
        sheaf_fetcher_kick(fetcher);
        return 0;
}

bool sheaf_fetch_is_writing(struct sheaf_fetcher *fetcher,
        const struct sheaf_fetch_version *version, uint64_t chunk)
{
        const struct sheaf_flight *f = flight_find(fetcher, version, chunk);

        return f && is_verified(f);
}

/* Takes a flight that nobody works on out of its queue; false: it is in the
 * hands of store, origin or pool. */
static bool unqueue(struct sheaf_flight *f)
{
        switch (f->state) {
        case SHEAF_FLIGHT_QUEUED:
                sheaf_flight_dequeue(f);
                return true;
        case SHEAF_FLIGHT_PARKED:
                sheaf_flight_unpark(f);
                return true;
        case SHEAF_FLIGHT_AGAIN:
                TAILQ_REMOVE(&f->fetcher->again, f, link);
                return true;
        case SHEAF_FLIGHT_ATTACHING:
                TAILQ_REMOVE(&f->version->attaching, f, link);
                return true;
        case SHEAF_FLIGHT_SETTLING:
                TAILQ_REMOVE(&f->fetcher->settling, f, link);
                return true;
        default:
                return false;
        }
}

void sheaf_fetch_cancel(
        struct sheaf_fetcher *fetcher, struct sheaf_fetch *fetch)
{
        struct sheaf_flight *f = fetch->flight;

        if (!f)
                return;
        TAILQ_REMOVE(&f->waits, fetch, link);
        fetch->flight = NULL;
        if (TAILQ_EMPTY(&f->waits) && unqueue(f))
                sheaf_flight_free(f);
        (void)fetcher;
}

void sheaf_fetch_resume(struct sheaf_fetcher *fetcher,
        struct sheaf_fetch_version *version, int rc, const char *why)
{
        struct sheaf_flight *f;

        while ((f = TAILQ_FIRST(&version->attaching))) {
                TAILQ_REMOVE(&version->attaching, f, link);
                if (rc && rc != -ECANCELED) {
                        sheaf_flight_fail(f, rc, why);
                        continue;
                }
                f->state = SHEAF_FLIGHT_AGAIN;
                TAILQ_INSERT_TAIL(&fetcher->again, f, link);
        }
        sheaf_fetcher_kick(fetcher);
}

bool sheaf_fetch_quiesce(
        struct sheaf_fetcher *fetcher, struct sheaf_fetch_version *version)
{
        for (size_t i = 0; i < SHEAF_FLIGHT_BUCKETS && version->flights; i++) {
                struct sheaf_flight *f, *next;

                for (f = LIST_FIRST(&fetcher->buckets[i]); f; f = next) {
                        next = LIST_NEXT(f, bucket);
                        if (f->version != version)
                                continue;
                        f->dead = true;
                        answer_all(f, -ESTALE, sheaf_why_gone);
                        if (f->state == SHEAF_FLIGHT_UNWRITTEN)
                                sheaf_flight_write_now(f);
                        else if (unqueue(f))
                                sheaf_flight_free(f);
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
        fetcher->cores = uv_available_parallelism();
        fetcher->flights_max = config->flights_max ? config->flights_max : 256;
        fetcher->bytes_max =
                config->bytes_max ? config->bytes_max : 256 * SHEAF_MIB;
        TAILQ_INIT(&fetcher->lanes);
        TAILQ_INIT(&fetcher->origins);
        TAILQ_INIT(&fetcher->again);
        TAILQ_INIT(&fetcher->hints);
        TAILQ_INIT(&fetcher->arrived);
        TAILQ_INIT(&fetcher->late);
        TAILQ_INIT(&fetcher->settling);
        TAILQ_INIT(&fetcher->unwritten);
        uv_idle_init(fetcher->loop, &fetcher->pump);
        fetcher->pump.data = fetcher;
        uv_timer_init(fetcher->loop, &fetcher->settle);
        fetcher->settle.data = fetcher;
        uv_timer_init(fetcher->loop, &fetcher->write);
        fetcher->write.data = fetcher;
        uv_timer_init(fetcher->loop, &fetcher->watch);
        fetcher->watch.data = fetcher;
        uv_timer_start(
                &fetcher->watch, sheaf_fetcher_watch, WATCH_MS, WATCH_MS);
        *ret_fetcher = fetcher;
        return 0;
}

void sheaf_fetcher_stats(const struct sheaf_fetcher *fetcher,
        struct sheaf_fetcher_stats *ret_stats)
{
        *ret_stats = fetcher->stats;
        ret_stats->in_flight = fetcher->under_way + fetcher->stalled;
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
        fetcher->open_handles = 4;
        uv_close((uv_handle_t *)&fetcher->pump, closed);
        uv_close((uv_handle_t *)&fetcher->settle, closed);
        uv_close((uv_handle_t *)&fetcher->watch, closed);
        uv_close((uv_handle_t *)&fetcher->write, closed);
}
