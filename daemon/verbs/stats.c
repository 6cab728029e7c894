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
#include "daemon/chore.h"
#include "daemon/jobs/jobs.h"
#include "daemon/prep/prep.h"
#include "daemon/turns.h"
#include "daemon/verbs/verbs.h"

#include "daemon/clock.h"

#include <stdio.h>

#define METRICS_PER_MESSAGE 128
#define STEP_DATASETS       4
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
        bool mounted = false;

        for (size_t k = 0; k < 8; k++)
                if (meter_names[k] && (words[k] || zeros))
                        add(s, meter_names[k], dataset, client, words[k],
                                false);
        /* Where nothing was mounted there is nothing to show. */
        for (size_t i = 0; i < SHEAF_METER_OP_COUNT; i++)
                mounted |= ops[i];
        for (size_t i = 0; i < SHEAF_METER_OP_COUNT; i++)
                if (ops[i] || (zeros && mounted))
                        add(s, op_name(i), dataset, client, ops[i], false);
}

bool sheaf_conn_sees_all(const struct sheaf_conn *conn)
{
        return !conn->who.grant &&
               (conn->who.uid == 0 || conn->who.uid == geteuid());
}

bool sheaf_conn_may_see(
        const struct sheaf_conn *conn, const struct sheaf_conn *other)
{
        if (conn->who.grant)
                return conn == other;
        return sheaf_conn_sees_all(conn) || conn->who.uid == other->who.uid;
}

static void dataset_meters(
        struct sheet *s, struct sheaf_reg_dataset *ds, const char *label)
{
        uint64_t words[8], ops[SHEAF_METER_OPS];
        struct sheaf_conn *conn;

        memcpy(words, ds->counts.meter, sizeof(words));
        memcpy(ops, ds->counts.op, sizeof(ops));
        conn = ds->handles ? sheaf_server_first(s->conn->server) : NULL;
        for (; conn; conn = LIST_NEXT(conn, link)) {
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
                if (!sheaf_conn_may_see(s->conn, conn))
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

static void removed_metrics(
        struct sheet *s, const struct sheaf_reg_telling *telling)
{
        struct sheaf_reg_counts c;

        if (!sheaf_registry_removed_counts(
                    s->conn->daemon->registry, telling, &c))
                return;
        add_meter(s, REMOVED_LABEL, "", c.meter, c.op, true);
        add_counts(s, REMOVED_LABEL, &c);
}

static void dataset_metrics(struct sheet *s, struct sheaf_reg_dataset *ds)
{
        struct sheaf_reg_counts counts;
        struct sheaf_reg_version *v = sheaf_registry_version(ds, NULL);
        Sheaf__DatasetInfo info = SHEAF__DATASET_INFO__INIT;
        const struct sheaf_tenancy *tenancy;
        struct sheaf_info_space space;
        uint64_t stock_bytes = 0;
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
        LIST_FOREACH (tenancy, &ds->tenancies, link)
                stock_bytes += sheaf_space_stock_bytes(tenancy->space);
        gauge(s, "dataset.stock_bytes", label, stock_bytes);
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
        if (!sheaf_conn_sees_all(s->conn))
                return;
        gauge(s, "arena.dropped_bytes_held", "", pool.bytes_dropped_held);
        counter(s, "arena.refused", "", pool.refused);
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
        if (!sheaf_conn_sees_all(s->conn))
                return;
        gauge(s, "disk.bytes_max", "", st.bytes_max);
        gauge(s, "disk.bytes", "", st.bytes_used);
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
        struct sheaf_jobs_stats jobs;
        struct sheaf_turns_stats turns;
        struct sheaf_conn *conn;
        uint64_t clients = 0;

        sheaf_server_stats(d->server, &server);
        sheaf_fetcher_stats(d->fetcher, &fetch);
        sheaf_jobs_stats(d->jobs, &jobs);
        sheaf_turns_stats(d->turns, &turns);
        for (conn = sheaf_server_first(d->server); conn;
                conn = LIST_NEXT(conn, link))
                clients++;
        gauge(s, "uptime_ns", "", (uint64_t)(sheaf_now_ns() - d->started_ns));
        if (!sheaf_conn_sees_all(s->conn))
                return;
        gauge(s, "clients", "", clients);
        gauge(s, "clients.copy_bytes", "", server.copy_bytes);
        counter(s, "clients.accepted", "", server.accepted);
        counter(s, "clients.refused", "", server.refused);
        counter(s, "clients.dropped_slow", "", server.dropped_slow);
        counter(s, "clients.dropped_mute", "", server.dropped_mute);
        counter(s, "clients.dropped_pins", "", server.dropped_pins);
        counter(s, "clients.bad_messages", "", server.bad_messages);
        counter(s, "clients.refused_requests", "", server.refused_requests);
        counter(s, "clients.pins_freed_dead", "", server.pins_freed_dead);
        gauge(s, "fetch.in_flight", "", fetch.in_flight);
        gauge(s, "fetch.queued", "", fetch.queued);
        gauge(s, "fetch.hints_queued", "", fetch.hints_queued);
        gauge(s, "fetch.writing_bytes", "", fetch.writing_bytes);
        counter(s, "fetch.writes_skipped", "", fetch.writes_skipped);
        counter(s, "fetch.hash_ns", "", fetch.hash_ns);
        counter(s, "fetch.hashed_bytes", "", fetch.hashed_bytes);
        gauge(s, "loop.longest_turn_ns", "", turns.longest_ns);
        gauge(s, "loop.longest_turn_cpu_ns", "", turns.longest_cpu_ns);
        gauge(s, "jobs.live", "", jobs.jobs);
        gauge(s, "jobs.journal_bytes", "", jobs.journal_bytes);
        counter(s, "jobs.bound", "", jobs.bound);
        counter(s, "jobs.replaced", "", jobs.replaced);
        counter(s, "jobs.journal_errors", "", jobs.journal_errors);
        counter(s, "jobs.refused", "", jobs.refused);
        counter(s, "jobs.repeats", "", jobs.repeats);
        counter(s, "jobs.restored", "", jobs.restored);
}

static void prep_metrics(struct sheet *s)
{
        struct sheaf_prep_stats prep;

        if (!sheaf_conn_sees_all(s->conn))
                return;
        sheaf_prep_stats(s->conn->daemon->prep, &prep);
        gauge(s, "prep.groups", "", prep.groups);
        gauge(s, "prep.members", "", prep.members);
        gauge(s, "prep.workers", "", prep.workers);
        gauge(s, "prep.staged", "", prep.staged);
        gauge(s, "prep.staged_bytes", "", prep.staged_bytes);
        gauge(s, "prep.bytes_max", "", prep.bytes_max);
        counter(s, "prep.prepared", "", prep.prepared);
        counter(s, "prep.taken", "", prep.taken);
        counter(s, "prep.redone", "", prep.redone);
        counter(s, "prep.private", "", prep.own);
        counter(s, "prep.late", "", prep.late);
        counter(s, "prep.failed", "", prep.failed);
        counter(s, "prep.detached", "", prep.detached);
        counter(s, "prep.refused", "", prep.refused);
        counter(s, "prep.shed", "", prep.shed);
}

static struct sheet *sheet_new(struct sheaf_conn *conn, uint64_t id)
{
        struct sheet *s = sheaf_new(struct sheet, 1);

        if (!s) {
                sheaf_conn_error(conn, id, -ENOMEM, "out of memory");
                return NULL;
        }
        s->conn = conn;
        s->id = id;
        s->as_stats = true;
        return s;
}

static void sheet_end(struct sheet *s)
{
        if (!s->conn->who.grant) {
                arena_metrics(s);
                store_metrics(s);
                server_metrics(s);
                prep_metrics(s);
        }
        sheet_send(s, false);
        free(s);
}

/* Everything, as the client reads it: a dataset is looked up among all
 * connections, so they come one after the other. */
struct stats_call {
        struct sheaf_call call; /* first */
        struct sheaf_chore chore;
        struct sheaf_reg_telling telling;
};

static void stats_abandon(struct sheaf_call *call)
{
        struct stats_call *stats = (struct stats_call *)call;

        sheaf_chore_stop(&stats->chore);
        sheaf_registry_told(&stats->telling);
        free(stats);
}

static void stats_step(struct sheaf_chore *chore);

static void stats_on(struct sheaf_call *call)
{
        struct stats_call *stats = (struct stats_call *)call;

        call->resume = NULL;
        sheaf_chore_start(call->conn->account, &stats->chore, stats_step);
}

/* Some datasets; false: there are no more. */
static bool stats_some(struct stats_call *stats, struct sheet *s)
{
        struct sheaf_reg_dataset *ds = sheaf_registry_next(
                s->conn->daemon->registry, stats->telling.last);

        for (int n = 0; ds && n < STEP_DATASETS; ds = TAILQ_NEXT(ds, link)) {
                stats->telling.last = ds->record->id;
                if (!sheaf_registry_may_read(ds, &s->conn->who))
                        continue;
                dataset_metrics(s, ds);
                n++;
        }
        return ds;
}

/* What is gathered is sent: thousands of these may wait for their clients. */
static void stats_step(struct sheaf_chore *chore)
{
        struct stats_call *stats =
                (struct stats_call *)((char *)chore -
                                      offsetof(struct stats_call, chore));
        struct sheaf_conn *conn = stats->call.conn;
        struct sheet *s;

        if (!sheaf_conn_has_room(conn)) {
                stats->call.resume = stats_on;
                sheaf_chore_stop(chore);
                return;
        }
        s = sheet_new(conn, stats->call.id);
        if (s && stats_some(stats, s)) {
                sheet_send(s, true);
                free(s);
                return;
        }
        sheaf_call_end(&stats->call);
        if (s) {
                removed_metrics(s, &stats->telling);
                sheet_end(s);
        }
        stats_abandon(&stats->call);
}

static void stats_all(struct sheaf_conn *conn, uint64_t id)
{
        struct stats_call *stats = sheaf_new(struct stats_call, 1);

        if (!sheaf_call_begin(
                    conn, id, stats ? &stats->call : NULL, stats_abandon)) {
                free(stats);
                return;
        }
        stats->telling.who = &conn->who;
        sheaf_registry_tell(conn->daemon->registry, &stats->telling);
        stats_on(&stats->call);
}

void sheaf_verb_get_stats(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const char *name = msg->env->get_stats->name;
        struct sheaf_reg_dataset *ds;
        struct sheet *s;

        if (!*name) {
                stats_all(conn, msg->env->id);
                return;
        }
        ds = sheaf_conn_dataset(conn, msg->env->id, name, false);
        s = ds ? sheet_new(conn, msg->env->id) : NULL;
        if (!s)
                return;
        dataset_metrics(s, ds);
        sheet_end(s);
}

int sheaf_stats_node(struct sheaf_conn *conn, void **ret_space,
        Sheaf__Metric ***ret_metrics, size_t *ret_count)
{
        struct sheet *s = sheaf_new(struct sheet, 1);

        if (!s)
                return -ENOMEM;
        s->conn = conn;
        arena_metrics(s);
        store_metrics(s);
        server_metrics(s);
        prep_metrics(s);
        *ret_space = s;
        *ret_metrics = s->pointers;
        *ret_count = s->count;
        return 0;
}
