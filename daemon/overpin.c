/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that pin beyond what they were granted.
 *
 *  1 an honest client holds its grant and the budget of brief pins at most,
 *    at every instant, stopped or not (client/pin.h): who is seen above both,
 *    with room to spare, is not honest, and no reader of its own is to be
 *    protected by what it holds
 *  2 it is disconnected, which frees its pins as a death does. It had a grace
 *    of GRACE_NS; a client of the same user that does it again within
 *    STRICT_NS has none, and is looked at in each tick
 *  3 a tick spends TICK_NS on each of its two walks, and goes on next time
 *
 * Threads: loop thread. */
#include "daemon/server_internal.h"

#include "daemon/clock.h"
#include "proto/pin.h"

#define ROUND_NS  SHEAF_NS_PER_SEC
#define GRACE_NS  (3 * SHEAF_NS_PER_SEC)
#define STRICT_NS (600 * SHEAF_NS_PER_SEC)
#define TICK_NS   (SHEAF_NS_PER_MS / 2)

/* What one may be seen to hold: twice the budget of brief pins leaves room
 * for what is too short to be counted there. */
static uint64_t bound(
        const struct sheaf_server *server, const struct sheaf_arena_part *part)
{
        return part->grant_bytes +
               2 * sheaf_pin_brief_max(server->daemon->config->memory_bytes);
}

static void cut_off(struct sheaf_conn *conn,
        const struct sheaf_arena_part *part, uint64_t held, int64_t now_ns)
{
        struct sheaf_server *server = conn->server;

        server->stats.dropped_pins++;
        conn->account->strict_until_ns = now_ns + STRICT_NS;
        if (sheaf_log_once(&server->pins_once, 10 * SHEAF_NS_PER_SEC))
                sheaf_log(SHEAF_LOG_WARN, "client dropped",
                        "why=\"it pins more than it was granted\" uid=%u "
                        "pid=%d name=%s pinned=%llu granted=%llu",
                        conn->who.uid, conn->who.pid, conn->name,
                        (unsigned long long)held,
                        (unsigned long long)part->grant_bytes);
        sheaf_conn_close(conn);
}

static void look_at(struct sheaf_conn *conn, int64_t now_ns)
{
        bool strict = conn->account->strict_until_ns > now_ns;
        struct sheaf_arena_part *part;

        LIST_FOREACH (part, &conn->attachments, link) {
                uint64_t held = sheaf_pins_held(part->pins, NULL);

                if (held <= bound(conn->server, part)) {
                        part->over_since_ns = 0;
                        continue;
                }
                if (!part->over_since_ns)
                        part->over_since_ns = now_ns;
                if (!strict && now_ns - part->over_since_ns < GRACE_NS)
                        continue;
                cut_off(conn, part, held, now_ns);
                return;
        }
}

/* The newest connection comes first in the list. */
static void walk(struct sheaf_server *server, struct sheaf_watch *watch,
        int64_t round_ns, bool strict_only)
{
        int64_t began_ns = sheaf_now_ns();
        struct sheaf_conn *conn, *next;

        if (!watch->below) {
                if (began_ns - watch->begun_ns < round_ns)
                        return;
                watch->begun_ns = began_ns;
                watch->below = UINT64_MAX;
        }
        for (conn = LIST_FIRST(&server->conns); conn; conn = next) {
                int64_t now_ns;

                next = LIST_NEXT(conn, link);
                if (conn->number >= watch->below ||
                        LIST_EMPTY(&conn->attachments))
                        continue;
                if (strict_only && conn->account->strict_until_ns < began_ns)
                        continue;
                now_ns = sheaf_now_ns();
                if (now_ns - began_ns > TICK_NS)
                        return;
                watch->below = conn->number;
                look_at(conn, now_ns);
        }
        watch->below = 0;
}

void sheaf_server_watch_pins(struct sheaf_server *server)
{
        walk(server, &server->watch_all, ROUND_NS, false);
        walk(server, &server->watch_strict, 0, true);
}
