/* SPDX-License-Identifier: Apache-2.0 */
/* Whose turn it is. Nobody who asks for much, and no origin that hangs, keeps
 * others waiting.
 *
 *  1 wishes wait in lanes, one for each who asks; lanes take turns. Hints
 *    wait in one queue behind all lanes
 *  2 a version has at most ORIGIN_FLIGHTS flights at its origin, hints half of
 *    that; what is above waits parked, and a lane whose next flight would park
 *    behind PARKED_MAX others is passed over
 *  3 flights at an origin that has given nothing for STALL_NS hold no share of
 *    what all have together
 *
 * Threads: loop thread. */
#include "daemon/fetch/impl.h"

#define ORIGIN_FLIGHTS 128
#define PARKED_MAX     64
#define STALL_NS       SHEAF_NS_PER_SEC
#define HINTS_TRIED    32 /* looked at in a turn */

static struct sheaf_lane_bucket *bucket_of(
        struct sheaf_fetcher *fetcher, uint64_t id)
{
        return &fetcher->lane_buckets[id % SHEAF_LANE_BUCKETS];
}

static struct sheaf_lane *lane_get(struct sheaf_fetcher *fetcher, uint64_t id)
{
        struct sheaf_lane *lane;

        LIST_FOREACH (lane, bucket_of(fetcher, id), bucket)
                if (lane->id == id)
                        return lane;
        lane = sheaf_new(struct sheaf_lane, 1);
        if (!lane)
                return NULL;
        lane->id = id;
        TAILQ_INIT(&lane->queue);
        LIST_INSERT_HEAD(bucket_of(fetcher, id), lane, bucket);
        TAILQ_INSERT_TAIL(&fetcher->lanes, lane, link);
        return lane;
}

int sheaf_flight_enqueue(struct sheaf_flight *f, uint64_t lane)
{
        f->lane = lane_get(f->fetcher, lane);
        if (!f->lane)
                return -ENOMEM;
        TAILQ_INSERT_TAIL(&f->lane->queue, f, link);
        f->fetcher->queued++;
        f->hint = false;
        return 0;
}

void sheaf_flight_enqueue_hint(struct sheaf_flight *f)
{
        TAILQ_INSERT_TAIL(&f->fetcher->hints, f, link);
        f->fetcher->hints_queued++;
        f->hint = true;
}

void sheaf_flight_dequeue(struct sheaf_flight *f)
{
        struct sheaf_fetcher *fetcher = f->fetcher;
        struct sheaf_lane *lane = f->lane;

        if (f->hint) {
                TAILQ_REMOVE(&fetcher->hints, f, link);
                fetcher->hints_queued--;
                return;
        }
        TAILQ_REMOVE(&lane->queue, f, link);
        fetcher->queued--;
        f->lane = NULL;
        if (!TAILQ_EMPTY(&lane->queue))
                return;
        LIST_REMOVE(lane, bucket);
        TAILQ_REMOVE(&fetcher->lanes, lane, link);
        free(lane);
}

/* ---- origins ---- */

/* Versions with flights at their origin or parked are linked. */
static void origin_link(
        struct sheaf_fetcher *fetcher, struct sheaf_fetch_version *v)
{
        bool wanted = v->at_origin_count || v->parked_count;

        if (wanted == v->origin_linked)
                return;
        v->origin_linked = wanted;
        if (wanted)
                TAILQ_INSERT_TAIL(&fetcher->origins, v, origin_link);
        else
                TAILQ_REMOVE(&fetcher->origins, v, origin_link);
}

bool sheaf_flight_enter_origin(struct sheaf_flight *f)
{
        struct sheaf_fetch_version *v = f->version;

        if (f->at_origin)
                return true;
        if (v->at_origin_count >= ORIGIN_FLIGHTS) {
                sheaf_flight_count_stop(f);
                f->state = SHEAF_FLIGHT_PARKED;
                TAILQ_INSERT_TAIL(&v->parked, f, link);
                v->parked_count++;
                origin_link(f->fetcher, v);
                return false;
        }
        if (!v->at_origin_count++)
                v->origin_ns = sheaf_now_ns();
        f->at_origin = true;
        LIST_INSERT_HEAD(&v->at_origin, f, origin);
        origin_link(f->fetcher, v);
        return true;
}

void sheaf_flight_leave_origin(struct sheaf_flight *f)
{
        struct sheaf_fetch_version *v = f->version;

        if (!f->at_origin)
                return;
        f->at_origin = false;
        f->fetcher->stalled -= f->stalled;
        f->stalled = false;
        LIST_REMOVE(f, origin);
        v->at_origin_count--;
        v->origin_ns = sheaf_now_ns();
        origin_link(f->fetcher, v);
        sheaf_fetcher_kick(f->fetcher);
}

void sheaf_flight_unpark(struct sheaf_flight *f)
{
        struct sheaf_fetch_version *v = f->version;

        TAILQ_REMOVE(&v->parked, f, link);
        v->parked_count--;
        origin_link(f->fetcher, v);
}

/* Whether what all have together is used up. */
static bool is_full(const struct sheaf_fetcher *fetcher)
{
        return fetcher->under_way >= fetcher->flights_max ||
               fetcher->under_way_bytes >= fetcher->bytes_max ||
               sheaf_fetcher_wait_disk(fetcher);
}

static void start_parked(struct sheaf_fetcher *fetcher)
{
        struct sheaf_fetch_version *v, *next;

        for (v = TAILQ_FIRST(&fetcher->origins); v; v = next) {
                struct sheaf_flight *f;

                next = TAILQ_NEXT(v, origin_link);
                while (v->at_origin_count < ORIGIN_FLIGHTS &&
                        !is_full(fetcher) && (f = TAILQ_FIRST(&v->parked))) {
                        sheaf_flight_unpark(f);
                        sheaf_flight_count_start(f);
                        sheaf_flight_go_origin(f);
                }
        }
}

void sheaf_fetcher_watch(uv_timer_t *timer)
{
        struct sheaf_fetcher *fetcher = timer->data;
        int64_t now_ns = sheaf_now_ns();
        struct sheaf_fetch_version *v;
        struct sheaf_flight *f;

        TAILQ_FOREACH (v, &fetcher->origins, origin_link) {
                if (now_ns - v->origin_ns < STALL_NS)
                        continue;
                LIST_FOREACH (f, &v->at_origin, origin) {
                        fetcher->stalled += !f->stalled;
                        f->stalled = true;
                        sheaf_flight_count_stop(f);
                }
        }
        /* Also looks whether a disk that was behind is stuck by now. */
        if (fetcher->queued || fetcher->hints_queued)
                sheaf_fetcher_kick(fetcher);
}

/* ---- turns ---- */

/* Whether arena or disk have the chunk. */
static bool is_near(const struct sheaf_flight *f)
{
        const struct sheaf_digest *known =
                sheaf_version_digest(f->version->stored, f->chunk);
        const struct sheaf_fetch *w = TAILQ_FIRST(&f->waits);

        if (w && w->residence &&
                sheaf_table_block(w->residence->table, f->chunk))
                return true;
        if (!sheaf_digest_known(known))
                return false;
        return (w && w->residence &&
                       sheaf_arena_find(w->residence->arena, known)) ||
               sheaf_version_on_disk(f->version->stored, f->chunk);
}

static bool is_blocked(const struct sheaf_flight *f)
{
        const struct sheaf_fetch_version *v = f->version;

        if (f->hint)
                return v->at_origin_count >= ORIGIN_FLIGHTS / 2 && !is_near(f);
        return v->parked_count >= PARKED_MAX && !is_near(f);
}

static struct sheaf_flight *next_hint(struct sheaf_fetcher *fetcher)
{
        struct sheaf_flight *f;

        for (int i = 0; i < HINTS_TRIED; i++) {
                f = TAILQ_FIRST(&fetcher->hints);
                if (!f || !is_blocked(f))
                        return f;
                TAILQ_REMOVE(&fetcher->hints, f, link);
                TAILQ_INSERT_TAIL(&fetcher->hints, f, link);
        }
        return NULL;
}

/* The next of the first lane that is not blocked; that lane goes last. */
static struct sheaf_flight *next_wish(struct sheaf_fetcher *fetcher)
{
        struct sheaf_lane *lane;

        TAILQ_FOREACH (lane, &fetcher->lanes, link) {
                struct sheaf_flight *f = TAILQ_FIRST(&lane->queue);

                if (is_blocked(f))
                        continue;
                TAILQ_REMOVE(&fetcher->lanes, lane, link);
                TAILQ_INSERT_TAIL(&fetcher->lanes, lane, link);
                return f;
        }
        return NULL;
}

static struct sheaf_flight *next_flight(struct sheaf_fetcher *fetcher)
{
        struct sheaf_flight *f;

        if (is_full(fetcher))
                return NULL;
        f = next_wish(fetcher);
        if (!f && fetcher->under_way < fetcher->flights_max / 2)
                f = next_hint(fetcher);
        return f;
}

void sheaf_fetcher_start_queued(struct sheaf_fetcher *fetcher)
{
        struct sheaf_flight *f;

        start_parked(fetcher);
        while ((f = TAILQ_FIRST(&fetcher->again))) {
                TAILQ_REMOVE(&fetcher->again, f, link);
                sheaf_flight_go_origin(f);
        }
        while ((f = next_flight(fetcher))) {
                sheaf_flight_dequeue(f);
                sheaf_flight_start(f);
        }
}
