/* SPDX-License-Identifier: Apache-2.0 */
/* Counters are looked at every few seconds, and when somebody asks.
 *
 *  1 an episode begins with the first count after a quiet time, and ends
 *    HOLD_NS after the last one
 *
 * Threads: loop thread. */
#include "daemon/health.h"

#include "daemon/clock.h"

#define LOOK_MS 5000
#define HOLD_NS (600 * SHEAF_NS_PER_SEC)

struct episode {
        uint64_t seen, before; /* the counter now, and when it began */
        int64_t last_ns;
        bool on;
};

struct sheaf_health {
        struct sheaf_daemon *daemon;
        uv_timer_t timer;
        struct episode episodes[SHEAF_HEALTH_KINDS];
};

static uint64_t damaged(const struct sheaf_daemon *d)
{
        struct sheaf_reg_dataset *ds = sheaf_registry_first(d->registry);
        struct sheaf_store_stats st;
        uint64_t sum;

        sheaf_store_stats(d->store, &st);
        sum = st.bad_headers + st.bad_payloads;
        for (; ds; ds = TAILQ_NEXT(ds, link))
                sum += ds->counts.fetch.verify_failures;
        return sum;
}

static uint64_t unplaced(const struct sheaf_daemon *d)
{
        const struct sheaf_domain *domain = sheaf_registry_domains(d->registry);
        struct sheaf_arena_stats stats;
        uint64_t sum = 0;

        for (; domain; domain = LIST_NEXT(domain, link)) {
                sheaf_arena_stats(domain->arena, &stats);
                sum += stats.place_failures;
        }
        return sum;
}

static uint64_t refused(const struct sheaf_daemon *d)
{
        struct sheaf_arena_pool_stats pool;

        sheaf_arena_pool_stats(d->pool, &pool);
        return pool.refused;
}

static void look(struct sheaf_health *health)
{
        const uint64_t now[SHEAF_HEALTH_KINDS] = {
                [SHEAF_HEALTH_DAMAGED] = damaged(health->daemon),
                [SHEAF_HEALTH_UNPLACED] = unplaced(health->daemon),
                [SHEAF_HEALTH_REFUSED] = refused(health->daemon),
        };
        int64_t now_ns = sheaf_now_ns();

        for (size_t i = 0; i < SHEAF_HEALTH_KINDS; i++) {
                struct episode *e = &health->episodes[i];

                /* The sum falls when a dataset or an arena goes. */
                if (now[i] > e->seen) {
                        if (!e->on)
                                e->before = e->seen;
                        e->on = true;
                        e->last_ns = now_ns;
                } else if (now_ns - e->last_ns > HOLD_NS) {
                        e->on = false;
                }
                e->before -= SHEAF_MIN(
                        e->before, e->seen > now[i] ? e->seen - now[i] : 0);
                e->seen = now[i];
        }
}

static void on_timer(uv_timer_t *timer)
{
        look(timer->data);
}

int sheaf_health_new(
        struct sheaf_daemon *daemon, struct sheaf_health **ret_health)
{
        struct sheaf_health *health = sheaf_new(struct sheaf_health, 1);

        if (!health)
                return -ENOMEM;
        health->daemon = daemon;
        uv_timer_init(daemon->loop, &health->timer);
        health->timer.data = health;
        uv_timer_start(&health->timer, on_timer, LOOK_MS, LOOK_MS);
        *ret_health = health;
        return 0;
}

static void closed(uv_handle_t *handle)
{
        free(handle->data);
}

void sheaf_health_free(struct sheaf_health *health)
{
        if (health)
                uv_close((uv_handle_t *)&health->timer, closed);
}

bool sheaf_health_recent(struct sheaf_health *health,
        enum sheaf_health_kind kind, uint64_t *ret_count)
{
        const struct episode *e = &health->episodes[kind];

        look(health);
        if (e->on && ret_count)
                *ret_count = e->seen - e->before;
        return e->on;
}
