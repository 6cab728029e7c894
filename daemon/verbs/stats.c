/* SPDX-License-Identifier: Apache-2.0 */
/* Figures: every counter by its documented, stable name (docs/metrics.md).
 *
 *  1 counters are monotonic in the life of the daemon: what clients that are
 *    gone counted was folded into their dataset, and what datasets that were
 *    removed counted into a sum, shown as one more dataset
 *  2 a client's own counters are claims; they are shown, never acted upon
 *  3 what is summed over everybody's chunks is for root and the daemon's user:
 *    equal bytes are stored once, so a sum that does not grow would tell that
 *    somebody has them already
 *
 * Threads: loop thread. */
#include "daemon/verbs/verbs.h"

#include "daemon/clock.h"
#include "daemon/names.h"

#include <stdio.h>

#define METRICS_PER_MESSAGE 128
#define REMOVED_LABEL       "~removed" /* no name or owner gives that */

/* Metrics gathered and sent in messages that fit. */
struct sheet {
        struct sheaf_conn *conn;
        uint64_t id;
        Sheaf__Metric metrics[METRICS_PER_MESSAGE],
                *pointers[METRICS_PER_MESSAGE];
        char labels[METRICS_PER_MESSAGE][2][280];
        size_t count;
        bool as_stats;
};

static void sheet_send(struct sheet *s, bool more)
{
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__Stats body = SHEAF__STATS__INIT;

        body.metric = s->pointers;
        body.n_metric = s->count;
        env.id = s->id;
        env.more = more;
        env.body_case = SHEAF__ENVELOPE__BODY_STATS;
        env.stats = &body;
        sheaf_conn_send(s->conn, &env, NULL, 0);
        s->count = 0;
}

static void add(struct sheet *s, const char *name, const char *dataset,
        const char *client, uint64_t value, bool gauge)
{
        Sheaf__Metric *m;

        if (s->count == METRICS_PER_MESSAGE) {
                if (!s->as_stats)
                        return;
                sheet_send(s, true);
        }
        m = &s->metrics[s->count];
        sheaf__metric__init(m);
        snprintf(
                s->labels[s->count][0], sizeof(s->labels[0][0]), "%s", dataset);
        snprintf(s->labels[s->count][1], sizeof(s->labels[0][1]), "%s", client);
        m->name = (char *)name;
        m->dataset = s->labels[s->count][0];
        m->client = s->labels[s->count][1];
        m->value = (double)value;
        m->gauge = gauge;
        s->pointers[s->count++] = m;
}

static void counter(
        struct sheet *s, const char *name, const char *dataset, uint64_t value)
{
        add(s, name, dataset, "", value, false);
}

static void gauge(
        struct sheet *s, const char *name, const char *dataset, uint64_t value)
{
        add(s, name, dataset, "", value, true);
}

static const char *const meter_names[8] = { "arena.hits", "arena.hit_bytes",
        "rechecks", "copies", "copy_bytes", "misses", "wait_ns", NULL };

static const char *const op_names[SHEAF_METER_OPS] = {
#define X(upper, lower) [SHEAF_METER_OP_##upper] = "mount.requests." #lower,
        SHEAF_METER_OP_LIST(X)
#undef X
};

static const char *op_name(size_t i)
{
        switch (i) {
        case SHEAF_METER_OP_READ_BYTES:
                return "mount.read_bytes";
        case SHEAF_METER_OP_READ_ERRORS:
                return "mount.read_errors";
        case SHEAF_METER_OP_PASSTHROUGH_OPENS:
                return "mount.passthrough_opens";
        default:
                return op_names[i];
        }
}

static void meter_sum(const struct sheaf_meter *meter, uint64_t words[8],
        uint64_t ops[SHEAF_METER_OPS])
{
        if (!meter)
                return;
        for (size_t i = 0; i < SHEAF_METER_STRIPES; i++) {
                const _Atomic uint64_t *w = &meter->stripe[i].hits;

                for (size_t k = 0; k < 8; k++)
                        words[k] += atomic_load_explicit(
                                &w[k], memory_order_relaxed);
        }
        for (size_t i = 0; i < SHEAF_METER_OPS; i++)
                ops[i] += atomic_load_explicit(
                        &meter->op[i], memory_order_relaxed);
}

static void add_meter(struct sheet *s, const char *dataset, const char *client,
        const uint64_t words[8], const uint64_t ops[SHEAF_METER_OPS],
        bool zeros)
{
        for (size_t k = 0; k < 8; k++)
                if (meter_names[k] && (words[k] || zeros))
                        add(s, meter_names[k], dataset, client, words[k],
                                false);
        for (size_t i = 0; i < SHEAF_METER_OP_COUNT; i++)
                if (ops[i])
                        add(s, op_name(i), dataset, client, ops[i], false);
}

/* Root and the daemon's user. */
static bool sees_all(const struct sheaf_conn *conn)
{
        return !conn->who.grant &&
               (conn->who.uid == 0 || conn->who.uid == geteuid());
}

static bool may_see(
        const struct sheaf_conn *conn, const struct sheaf_conn *other)
{
        if (conn->who.grant)
                return conn == other;
        return sees_all(conn) || conn->who.uid == other->who.uid;
}

static void dataset_meters(
        struct sheet *s, struct sheaf_reg_dataset *ds, const char *label)
{
        uint64_t words[8], ops[SHEAF_METER_OPS];
        struct sheaf_conn *conn;

        memcpy(words, ds->counts.meter, sizeof(words));
        memcpy(ops, ds->counts.op, sizeof(ops));
        for (conn = sheaf_server_first(s->conn->server); conn;
                conn = LIST_NEXT(conn, link)) {
                uint64_t mine[8] = { 0 }, my_ops[SHEAF_METER_OPS] = { 0 };
                bool uses = false;
                char who[128];

                for (uint32_t i = 0, n = 0; n < conn->handle_count; i++) {
                        struct sheaf_handle *h = conn->handles[i];

                        n += h != NULL;
                        if (!h || !h->meter || h->version->dataset != ds)
                                continue;
                        uses = true;
                        meter_sum(h->meter, mine, my_ops);
                }
                if (!uses)
                        continue;
                for (size_t k = 0; k < 8; k++)
                        words[k] += mine[k];
                for (size_t i = 0; i < SHEAF_METER_OPS; i++)
                        ops[i] += my_ops[i];
                if (!may_see(s->conn, conn))
                        continue;
                snprintf(who, sizeof(who), "%s:%s:%d", conn->kind, conn->name,
                        conn->who.pid);
                add_meter(s, label, who, mine, my_ops, false);
        }
        add_meter(s, label, "", words, ops, true);
}

static void add_counts(
        struct sheet *s, const char *label, const struct sheaf_reg_counts *c)
{
        counter(s, "disk.hits", label, c->fetch.disk_hits);
        counter(s, "disk.hit_bytes", label, c->fetch.disk_hit_bytes);
        counter(s, "origin.reads", label, c->fetch.origin_reads);
        counter(s, "origin.bytes", label, c->fetch.origin_bytes);
        counter(s, "origin.errors", label, c->fetch.origin_errors);
        counter(s, "origin.stale", label, c->fetch.stale);
        counter(s, "arena.joins", label, c->fetch.joins);
        counter(s, "verify_failures", label, c->fetch.verify_failures);
        counter(s, "fetch_errors", label, c->fetch.errors);
        counter(s, "origin.timeouts", label, c->timeouts);
        counter(s, "origin.reader_starts", label, c->reader_starts);
        counter(s, "origin.readers_abandoned", label, c->readers_abandoned);
        counter(s, "origin.read_ns", label, c->read_ns);
}

static void removed_metrics(struct sheet *s)
{
        struct sheaf_reg_counts c;

        if (!sheaf_registry_removed_counts(
                    s->conn->daemon->registry, &s->conn->who, &c))
                return;
        add_meter(s, REMOVED_LABEL, "", c.meter, c.op, true);
        add_counts(s, REMOVED_LABEL, &c);
}

static void dataset_metrics(struct sheet *s, struct sheaf_reg_dataset *ds)
{
        struct sheaf_reg_counts counts;
        struct sheaf_reg_version *v = sheaf_registry_version(ds, NULL);
        Sheaf__DatasetInfo info = SHEAF__DATASET_INFO__INIT;
        struct sheaf_info_space space;
        char label[280];

        sheaf_dataset_fill_info(ds, v, &info, &space);
        if (ds->record->owner_uid == s->conn->who.uid)
                snprintf(label, sizeof(label), "%s", ds->record->name);
        else
                snprintf(label, sizeof(label), "~%s/%s", space.owner,
                        ds->record->name);
        dataset_meters(s, ds, label);
        sheaf_registry_counts(ds, &counts);
        add_counts(s, label, &counts);
        gauge(s, "dataset.bytes", label, info.bytes);
        gauge(s, "dataset.files", label, info.files);
        gauge(s, "dataset.chunks", label, info.chunks);
        gauge(s, "dataset.chunks_known", label, info.chunks_known);
        gauge(s, "dataset.disk_bytes", label, info.disk_bytes);
        gauge(s, "dataset.arena_bytes", label, info.arena_bytes);
        gauge(s, "dataset.clients", label, info.clients);
        if (ds->origin) {
                struct sheaf_origin_stats o;

                sheaf_origin_stats(ds->origin, &o);
                gauge(s, "origin.in_flight", label, o.in_flight);
                gauge(s, "origin.queued", label, o.queued);
        }
}

static void arena_metrics(struct sheet *s)
{
        struct sheaf_daemon *d = s->conn->daemon;
        struct sheaf_arena_pool_stats pool;
        struct sheaf_arena_stats sum;
        uint64_t pinned_bytes;

        sheaf_arena_pool_stats(d->pool, &pool);
        sheaf_registry_arena_stats(d->registry, &sum, &pinned_bytes);
        gauge(s, "arena.bytes_max", "", pool.bytes_max);
        gauge(s, "arena.bytes", "", pool.bytes_mapped);
        if (!sees_all(s->conn))
                return;
        gauge(s, "arena.dropped_bytes_held", "", pool.bytes_dropped_held);
        gauge(s, "arena.payload_bytes", "", sum.payload_bytes);
        gauge(s, "arena.blocks", "", sum.blocks);
        gauge(s, "pins.clients", "", sum.clients);
        gauge(s, "pins.forks", "", sum.ghosts);
        gauge(s, "pins.bytes", "", pinned_bytes);
        gauge(s, "pins.granted_bytes", "", sum.granted_bytes);
        counter(s, "arena.placed_bytes", "", sum.placed_bytes);
        counter(s, "arena.evicted", "", sum.evicted_blocks);
        counter(s, "arena.evicted_bytes", "", sum.evicted_bytes);
        counter(s, "arena.scans", "", sum.scans);
        counter(s, "arena.scans_met_pin", "", sum.scans_met_pin);
        counter(s, "arena.kept_blocks", "", sum.kept_blocks);
        counter(s, "arena.place_failures", "", sum.place_failures);
}

static void store_metrics(struct sheet *s)
{
        struct sheaf_store_stats st;

        sheaf_store_stats(s->conn->daemon->store, &st);
        gauge(s, "disk.bytes_max", "", st.bytes_max);
        gauge(s, "disk.bytes", "", st.bytes_used);
        if (!sees_all(s->conn))
                return;
        gauge(s, "disk.payload_bytes", "", st.payload_bytes);
        gauge(s, "disk.chunks", "", st.chunks);
        gauge(s, "disk.segments", "", st.segments);
        gauge(s, "disk.plain_files", "", st.plain_files);
        gauge(s, "disk.unchecked", "", st.unchecked_containers);
        gauge(s, "disk.unlinked_bytes", "", st.bytes_unlinked_open);
        counter(s, "disk.reads", "", st.read_chunks);
        counter(s, "disk.read_bytes", "", st.read_bytes);
        counter(s, "disk.writes", "", st.written_chunks);
        counter(s, "disk.written_bytes", "", st.written_bytes);
        counter(s, "disk.container_written_bytes", "",
                st.container_written_bytes);
        counter(s, "disk.catalog_written_bytes", "", st.catalog_written_bytes);
        counter(s, "disk.bad_headers", "", st.bad_headers);
        counter(s, "disk.bad_payloads", "", st.bad_payloads);
        counter(s, "disk.io_errors", "", st.io_errors);
        counter(s, "disk.refused_full", "", st.refused_full);
        counter(s, "disk.recovered_chunks", "", st.recovered_chunks);
        gauge(s, "disk.recovery_ns", "", st.recovery_ns);
}

static void server_metrics(struct sheet *s)
{
        struct sheaf_daemon *d = s->conn->daemon;
        struct sheaf_server_stats server;
        struct sheaf_fetcher_stats fetch;
        struct sheaf_conn *conn;
        uint64_t clients = 0;

        sheaf_server_stats(d->server, &server);
        sheaf_fetcher_stats(d->fetcher, &fetch);
        for (conn = sheaf_server_first(d->server); conn;
                conn = LIST_NEXT(conn, link))
                clients++;
        gauge(s, "uptime_ns", "", (uint64_t)(sheaf_now_ns() - d->started_ns));
        if (!sees_all(s->conn))
                return;
        gauge(s, "clients", "", clients);
        counter(s, "clients.accepted", "", server.accepted);
        counter(s, "clients.refused", "", server.refused);
        counter(s, "clients.dropped_slow", "", server.dropped_slow);
        counter(s, "clients.dropped_mute", "", server.dropped_mute);
        counter(s, "clients.bad_messages", "", server.bad_messages);
        counter(s, "clients.pins_freed_dead", "", server.pins_freed_dead);
        gauge(s, "fetch.in_flight", "", fetch.in_flight);
        gauge(s, "fetch.queued", "", fetch.queued);
        gauge(s, "fetch.hints_queued", "", fetch.hints_queued);
        gauge(s, "fetch.writing_bytes", "", fetch.writing_bytes);
        counter(s, "fetch.writes_skipped", "", fetch.writes_skipped);
        counter(s, "fetch.hash_ns", "", fetch.hash_ns);
        counter(s, "fetch.hashed_bytes", "", fetch.hashed_bytes);
}

void sheaf_verb_get_stats(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const char *name = msg->env->get_stats->name;
        struct sheaf_reg_dataset *ds = NULL;
        struct sheet *s;

        if (*name) {
                ds = sheaf_conn_dataset(conn, msg->env->id, name, false);
                if (!ds)
                        return;
        }
        s = sheaf_new(struct sheet, 1);
        if (!s) {
                sheaf_conn_error(conn, msg->env->id, -ENOMEM, "out of memory");
                return;
        }
        s->conn = conn;
        s->id = msg->env->id;
        s->as_stats = true;
        if (ds) {
                dataset_metrics(s, ds);
        } else {
                ds = sheaf_registry_first(conn->daemon->registry);
                for (; ds; ds = TAILQ_NEXT(ds, link))
                        if (sheaf_registry_may_read(ds, &conn->who))
                                dataset_metrics(s, ds);
                removed_metrics(s);
        }
        if (!conn->who.grant) {
                arena_metrics(s);
                store_metrics(s);
                server_metrics(s);
        }
        sheet_send(s, false);
        free(s);
}

/* ---- status ---- */

#define CLIENTS_MAX    128
#define CONDITIONS_MAX 16
#define FDS_ENOUGH     1024

struct report {
        Sheaf__Condition conditions[CONDITIONS_MAX],
                *condition_p[CONDITIONS_MAX];
        char whats[CONDITIONS_MAX][256];
        Sheaf__ClientInfo clients[CLIENTS_MAX], *client_p[CLIENTS_MAX];
        char datasets[CLIENTS_MAX][128];
        size_t condition_count, client_count;
};

static void condition(
        struct report *r, const char *what, const char *why, const char *remedy)
{
        Sheaf__Condition *c;

        if (r->condition_count == CONDITIONS_MAX)
                return;
        c = &r->conditions[r->condition_count];
        sheaf__condition__init(c);
        snprintf(r->whats[r->condition_count], sizeof(r->whats[0]), "%s", what);
        c->what = r->whats[r->condition_count];
        c->why = (char *)why;
        c->remedy = (char *)remedy;
        r->condition_p[r->condition_count++] = c;
}

static void fill_conditions(struct sheaf_conn *conn, struct report *r)
{
        struct sheaf_daemon *d = conn->daemon;
        struct sheaf_store_stats st;
        struct sheaf_arena_pool_stats pool;
        struct sheaf_server_stats server;
        struct sheaf_reg_dataset *ds;

        sheaf_server_stats(d->server, &server);
        sheaf_store_stats(d->store, &st);
        sheaf_arena_pool_stats(d->pool, &pool);
        if (st.degraded)
                condition(r, "the disk tier is degraded",
                        strerror(-st.degraded), st.degraded_why);
        if (st.limit_reached)
                condition(r, "the disk limit is reached",
                        "what is in use does not fit: what is read beyond it "
                        "is not kept on disk",
                        "a larger --disk; datasets that are not in use give "
                        "way by themselves");
        if (!st.uring && *st.uring_why)
                condition(r, "disk I/O runs on threads, not io_uring",
                        st.uring_why, "see: sheaf doctor");
        if (pool.pages == SHEAF_PAGES_SMALL)
                condition(r, "shared memory has 4 KiB pages", pool.pages_why,
                        "reserve huge pages or set shmem_enabled to advise; "
                        "see: sheaf doctor");
        if (server.crowded)
                condition(r, "descriptors are used up",
                        "new clients are refused, those that are there go on",
                        "raise sheafd's limit (ulimit -Hn, LimitNOFILE=), or "
                        "end clients that do nothing");
        else if (server.fds_max < FDS_ENOUGH)
                condition(r, "few descriptors are allowed",
                        "the hard limit is below 1024; a client takes four",
                        "raise sheafd's limit (ulimit -Hn, LimitNOFILE=)");
        if (sheaf_names_stuck())
                condition(r, "users and groups are shown as numbers",
                        "their names are not looked up in time",
                        "see passwd and group in /etc/nsswitch.conf");
        if (d->config->memory_crowded)
                condition(r, "memory may run out",
                        "the cache directory is on tmpfs, and --disk and "
                        "--memory together exceed the memory there is",
                        "a cache directory on a disk, or smaller limits");
        if (pool.bytes_dropped_held)
                condition(r, "clients still map memory that was given up",
                        "they have not let go of it",
                        "see the clients below; end those that hang");
        for (ds = sheaf_registry_first(d->registry); ds;
                ds = TAILQ_NEXT(ds, link)) {
                char what[256];

                /* To others it does not exist. */
                if (ds->attachment != SHEAF_DETACHED ||
                        !sheaf_registry_may_read(ds, &conn->who))
                        continue;
                snprintf(what, sizeof(what), "the origin of '%s' is detached",
                        ds->record->name);
                condition(r, what, ds->detached_why,
                        "sheaf update NAME DIR presents it again");
        }
}

static void fill_client(struct report *r, struct sheaf_conn *conn)
{
        Sheaf__ClientInfo *c;
        struct sheaf_arena_part *part;
        char *text;

        if (r->client_count == CLIENTS_MAX)
                return;
        c = &r->clients[r->client_count];
        text = r->datasets[r->client_count];
        sheaf__client_info__init(c);
        c->pid = (uint32_t)conn->who.pid;
        c->uid = conn->who.uid;
        c->kind = conn->kind;
        c->name = conn->name;
        text[0] = 0;
        for (uint32_t i = 0; i < SHEAF_CONN_HANDLES_MAX; i++) {
                struct sheaf_handle *h = conn->handles[i];
                size_t len = strlen(text);

                if (h)
                        snprintf(text + len, sizeof(r->datasets[0]) - len,
                                "%s%s", len ? "," : "",
                                h->version->dataset->record->name);
        }
        c->dataset = text;
        LIST_FOREACH (part, &conn->attachments, link) {
                uint64_t blocks;

                c->pinned_bytes += sheaf_pins_held(part->pins, &blocks);
                c->grant_bytes += part->grant_bytes;
        }
        r->client_p[r->client_count++] = c;
}

void sheaf_verb_get_status(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        struct sheaf_daemon *d = conn->daemon;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__Status body = SHEAF__STATUS__INIT;
        struct report *r = sheaf_new(struct report, 1);
        struct sheet *s = sheaf_new(struct sheet, 1);
        struct sheaf_conn *each;

        if (!r || !s) {
                free(r);
                free(s);
                sheaf_conn_error(conn, msg->env->id, -ENOMEM, "out of memory");
                return;
        }
        s->conn = conn;
        arena_metrics(s);
        store_metrics(s);
        server_metrics(s);
        fill_conditions(conn, r);
        for (each = sheaf_server_first(d->server); each;
                each = LIST_NEXT(each, link))
                if (each != conn && may_see(conn, each))
                        fill_client(r, each);
        body.version = (char *)SHEAF_RELEASE;
        body.pid = (uint32_t)getpid();
        body.uptime_ns = (uint64_t)(sheaf_now_ns() - d->started_ns);
        body.cache_dir = d->config->cache_dir;
        body.socket = d->config->socket;
        body.deadline_ms = d->config->deadline_ms;
        body.metric = s->pointers;
        body.n_metric = s->count;
        body.condition = r->condition_p;
        body.n_condition = r->condition_count;
        body.client = r->client_p;
        body.n_client = r->client_count;
        env.id = msg->env->id;
        env.body_case = SHEAF__ENVELOPE__BODY_STATUS;
        env.status = &body;
        sheaf_conn_send(conn, &env, NULL, 0);
        free(r);
        free(s);
}
