/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the daemon: what is degraded, with cause and remedy, and who
 * is connected.
 *
 *  1 each state has a stable name (docs/metrics.md lists them) and is shown
 *    while it lasts; what happens at a moment is shown for a while after it
 *  2 nobody learns here what others have: a dataset's state is for those who
 *    may read it, what is summed over all for those who see all
 *  3 an answer of any length goes out in messages that fit; the first has the
 *    figures
 *
 * Threads: loop thread. */
#include "daemon/verbs/verbs.h"

#include "daemon/clock.h"
#include "daemon/grants.h"
#include "daemon/health.h"
#include "daemon/jobs/jobs.h"
#include "daemon/prep/prep.h"
#include "daemon/registry/names.h"

#include <limits.h>
#include <stdio.h>

#define CONDITIONS_PER_MESSAGE 16
#define CLIENTS_PER_MESSAGE    64
#define FDS_ENOUGH             1024
#define SILENT_NS              (2 * SHEAF_NS_PER_SEC)
#define JOURNALS_NS            (600 * SHEAF_NS_PER_SEC)

struct report {
        struct sheaf_conn *conn;
        uint64_t id;
        Sheaf__Status head; /* what the next message begins with */
        Sheaf__Condition condition[CONDITIONS_PER_MESSAGE],
                *condition_p[CONDITIONS_PER_MESSAGE];
        char texts[CONDITIONS_PER_MESSAGE][3][384];
        Sheaf__ClientInfo client[CLIENTS_PER_MESSAGE],
                *client_p[CLIENTS_PER_MESSAGE];
        char datasets[CLIENTS_PER_MESSAGE][128];
        size_t condition_count, client_count;
};

static void send_report(struct report *r, bool more)
{
        static const Sheaf__Status nothing = SHEAF__STATUS__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;

        r->head.condition = r->condition_p;
        r->head.n_condition = r->condition_count;
        r->head.client = r->client_p;
        r->head.n_client = r->client_count;
        env.id = r->id;
        env.more = more;
        env.body_case = SHEAF__ENVELOPE__BODY_STATUS;
        env.status = &r->head;
        sheaf_conn_send(r->conn, &env, NULL, 0);
        r->head = nothing;
        r->condition_count = r->client_count = 0;
}

/* ---- what is degraded ---- */

static void condition(struct report *r, const char *name, const char *what,
        const char *why, const char *remedy)
{
        size_t i = r->condition_count;
        Sheaf__Condition *c;

        if (i == CONDITIONS_PER_MESSAGE) {
                send_report(r, true);
                i = 0;
        }
        c = &r->condition[i];
        sheaf__condition__init(c);
        c->name = (char *)name;
        c->what = r->texts[i][0];
        c->why = r->texts[i][1];
        c->remedy = r->texts[i][2];
        snprintf(c->what, sizeof(r->texts[0][0]), "%s", what);
        snprintf(c->why, sizeof(r->texts[0][1]), "%s", why);
        snprintf(c->remedy, sizeof(r->texts[0][2]), "%s", remedy);
        r->condition_p[i] = c;
        r->condition_count = i + 1;
}

static void of_disk(struct report *r)
{
        const struct sheaf_daemon *d = r->conn->daemon;
        const char *name = "disk-failing";
        struct sheaf_store_stats st;
        char path[PATH_MAX], what[96];

        sheaf_store_stats(d->store, &st);
        if (st.degraded == -ENOSPC)
                name = "disk-full";
        else if (st.degraded == -EROFS)
                name = "disk-read-only";
        if (st.degraded)
                condition(r, name, "the disk tier is degraded",
                        strerror(-st.degraded), st.degraded_why);
        if (st.limit_reached)
                condition(r, "disk-limit", "the disk limit is reached",
                        "what is in use does not fit: what is read beyond it "
                        "is not kept on disk",
                        "a larger --disk; datasets that are not in use give "
                        "way by themselves");
        if (st.versions_lost) {
                snprintf(what, sizeof(what),
                        "%llu versions lost what they had learned",
                        (unsigned long long)st.versions_lost);
                condition(r, "arrays-lost", what,
                        "the disk of the cache did not give their digests or "
                        "places (versions/UUID/digests, places), or the files "
                        "were cut: those chunks are fetched again",
                        "check the disk (kernel log, SMART); a stop of sheafd "
                        "writes them anew");
        }
        if (!st.uring && *st.uring_why)
                condition(r, "no-io-uring",
                        "disk I/O runs on threads, not io_uring", st.uring_why,
                        "see: sheaf doctor");
        snprintf(
                path, sizeof(path), "%s/catalog/damaged", d->config->cache_dir);
        if (!access(path, F_OK))
                condition(r, "catalog-damaged", "the catalog is damaged",
                        "its database cannot be read on; what is added or "
                        "changed is not kept",
                        "restart sheafd: it puts the catalog aside, and finds "
                        "what is cached by its digest");
        snprintf(
                path, sizeof(path), "%s/catalog.damaged", d->config->cache_dir);
        if (!access(path, F_OK))
                condition(r, "catalog-set-aside",
                        "the catalog was damaged and begun anew",
                        "datasets and grants that it named are gone; the old "
                        "one is kept as catalog.damaged in the cache directory",
                        "add the datasets again: what is still cached is found "
                        "by its digest; then remove catalog.damaged");
        if (sheaf_registry_unreadable(d->registry))
                condition(r, "record-unreadable",
                        "a dataset's record cannot be read",
                        "it is damaged, or was written by a newer release",
                        "start the release that wrote it; or give it up: sheaf "
                        "rm --unreadable, and add the dataset again. The "
                        "daemon's log has its key");
}

static void of_memory(struct report *r)
{
        const struct sheaf_daemon *d = r->conn->daemon;
        struct sheaf_arena_pool_stats pool;

        sheaf_arena_pool_stats(d->pool, &pool);
        /* Without a cause they were asked for. */
        if (pool.pages == SHEAF_PAGES_SMALL && *pool.pages_why)
                condition(r, "small-pages", "shared memory has 4 KiB pages",
                        pool.pages_why,
                        "reserve huge pages (vm.nr_hugepages); "
                        "see: sheaf doctor");
        if (d->config->memory_crowded)
                condition(r, "memory-crowded", "memory may run out",
                        "the cache directory is on tmpfs, and --disk and "
                        "--memory together exceed the memory there is",
                        "a cache directory on a disk, or smaller limits");
        if (pool.bytes_dropped_held)
                condition(r, "memory-held",
                        "clients still map memory that was given up",
                        "they have not let go of it",
                        "see the clients below; end those that hang");
        if (sheaf_health_recent(d->health, SHEAF_HEALTH_REFUSED, NULL))
                condition(r, "memory-refused",
                        "the system has no memory for chunks",
                        "it refused pages (ENOMEM), within the last minutes: "
                        "chunks take the place of others, or are copied",
                        "free memory, allow the daemon's control group more, "
                        "or a smaller --memory");
        else if (sheaf_health_recent(d->health, SHEAF_HEALTH_UNPLACED, NULL))
                condition(r, "memory-pinned",
                        "chunks found no room in memory and were copied",
                        "what clients hold pinned, or what is under way, "
                        "leaves none; it happened within the last minutes",
                        "a larger --memory, or clients that hold fewer views "
                        "at once; see PINNED below");
}

static void of_limits(struct report *r)
{
        const struct sheaf_daemon *d = r->conn->daemon;
        struct sheaf_server_stats server;

        sheaf_server_stats(d->server, &server);
        if (server.crowded)
                condition(r, "descriptors-used-up", "descriptors are used up",
                        "new clients are refused, those that are there go on",
                        "raise sheafd's limit (ulimit -Hn, LimitNOFILE=), or "
                        "end clients that do nothing");
        else if (server.fds_max < FDS_ENOUGH)
                condition(r, "descriptors-few", "few descriptors are allowed",
                        "the hard limit is below 1024; a client takes four",
                        "raise sheafd's limit (ulimit -Hn, LimitNOFILE=)");
        if (sheaf_names_stuck())
                condition(r, "names-stuck",
                        "users and groups are shown as numbers",
                        "their names are not looked up in time",
                        "see passwd and group in /etc/nsswitch.conf");
}

static void of_damage(struct report *r)
{
        uint64_t count;
        char what[128];

        if (!sheaf_conn_sees_all(r->conn) ||
                !sheaf_health_recent(
                        r->conn->daemon->health, SHEAF_HEALTH_DAMAGED, &count))
                return;
        snprintf(what, sizeof(what),
                "%llu chunks were damaged, dropped and fetched again",
                (unsigned long long)count);
        condition(r, "chunks-damaged", what,
                "their bytes did not have their digest, on disk or from the "
                "origin; the last ones within the last minutes",
                "check the disk of the cache (kernel log, SMART); 'sheaf "
                "verify NAME' finds all that is damaged");
}

/* Until a write succeeds; or nobody wrote for a while. */
static void of_journals(struct report *r)
{
        struct sheaf_jobs_stats jobs;

        sheaf_jobs_stats(r->conn->daemon->jobs, &jobs);
        if (!jobs.journal_rc ||
                sheaf_now_ns() - jobs.journal_failed_ns > JOURNALS_NS)
                return;
        condition(r, "journals-failing",
                "jobs' journals cannot be written: runs go on, but after a "
                "kill of sheafd their samples may repeat",
                strerror(-jobs.journal_rc),
                "free space or inodes on the disk of the cache, or see the "
                "kernel log");
}

static void of_groups(struct report *r)
{
        struct sheaf_prep_stats prep;

        sheaf_prep_stats(r->conn->daemon->prep, &prep);
        if (prep.held)
                condition(r, "prep-full",
                        "jobs wait since prepared batches have no more room",
                        "the batches that groups keep for their slower "
                        "members fill --prep, or a user's share of it, or a "
                        "quarter of the descriptors that are left",
                        "a larger --prep, or loaders with a smaller ahead or "
                        "less patience; see: sheaf groups");
}

/* ---- datasets and grants ---- */

static void of_origin(struct report *r, const struct sheaf_reg_dataset *ds)
{
        const char *name = ds->record->name;
        struct sheaf_origin_stats o;
        char what[384], why[128];

        if (ds->attachment == SHEAF_DETACHED) {
                snprintf(what, sizeof(what), "the origin of '%s' is detached",
                        name);
                condition(r, "origin-detached", what, ds->detached_why,
                        "sheaf update NAME DIR presents it again");
        }
        if (!ds->origin)
                return;
        sheaf_origin_stats(ds->origin, &o);
        if (o.silent_ns >= SILENT_NS) {
                snprintf(what, sizeof(what),
                        "the origin of '%s' does not answer", name);
                snprintf(why, sizeof(why),
                        "for %.0f s; %llu reads wait for it, each until its "
                        "deadline",
                        (double)o.silent_ns / 1e9,
                        (unsigned long long)(o.in_flight + o.queued));
                condition(r, "origin-silent", what, why,
                        "see to its file server; what is cached stays "
                        "readable");
        }
        if (o.held_off) {
                snprintf(what, sizeof(what), "the reader of '%s' keeps ending",
                        name);
                condition(r, "reader-restarting", what,
                        "it ended before it answered; it is started again, "
                        "each time a little later",
                        "see the daemon's log and the kernel's (out of "
                        "memory, a limit of processes)");
        }
        if (o.stuck) {
                snprintf(what, sizeof(what),
                        "a reader of '%s' survives SIGKILL", name);
                condition(r, "reader-stuck", what,
                        "it hangs in the kernel, at a file server that does "
                        "not answer",
                        "see to the file server, or umount -f it");
        }
}

static void of_grants(struct report *r)
{
        const struct sheaf_conn *conn = r->conn;
        struct sheaf_grant *grant = sheaf_grants_first(conn->daemon->grants);

        for (; grant; grant = LIST_NEXT(grant, link)) {
                char what[384];

                if (grant->listener || !grant->rc ||
                        (!sheaf_conn_sees_all(conn) &&
                                (conn->who.grant ||
                                        conn->who.uid !=
                                                grant->record->owner_uid)))
                        continue;
                snprintf(what, sizeof(what), "grant %s is not served",
                        grant->record->id);
                condition(r, "grant-not-served", what, strerror(-grant->rc),
                        "make its directory again, as its owner; or 'sheaf "
                        "grant --revoke ID'");
        }
}

static void fill_conditions(struct report *r)
{
        struct sheaf_reg_dataset *ds;

        of_disk(r);
        of_memory(r);
        of_limits(r);
        of_damage(r);
        of_journals(r);
        of_groups(r);
        for (ds = sheaf_registry_first(r->conn->daemon->registry); ds;
                ds = TAILQ_NEXT(ds, link))
                if (sheaf_registry_may_read(ds, &r->conn->who))
                        of_origin(r, ds);
        of_grants(r);
}

/* ---- who is connected ---- */

static void fill_client(struct report *r, struct sheaf_conn *conn)
{
        struct sheaf_arena_part *part;
        Sheaf__ClientInfo *c;
        char *text;

        if (r->client_count == CLIENTS_PER_MESSAGE)
                send_report(r, true);
        c = &r->client[r->client_count];
        text = r->datasets[r->client_count];
        sheaf__client_info__init(c);
        c->pid = (uint32_t)conn->who.pid;
        c->uid = conn->who.uid;
        c->kind = conn->kind;
        c->name = conn->name;
        text[0] = 0;
        for (uint32_t i = 0, n = 0; n < conn->handle_count; i++) {
                struct sheaf_handle *h = conn->handles[i];
                size_t len = strlen(text);

                if (!h)
                        continue;
                n++;
                snprintf(text + len, sizeof(r->datasets[0]) - len, "%s%s",
                        len ? "," : "", h->version->dataset->record->name);
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
        struct report *r = sheaf_new(struct report, 1);
        struct sheaf_conn *each;
        void *figures = NULL;

        if (r)
                sheaf__status__init(&r->head);
        if (!r || sheaf_stats_node(
                          conn, &figures, &r->head.metric, &r->head.n_metric)) {
                free(r);
                sheaf_conn_error(conn, msg->env->id, -ENOMEM, "out of memory");
                return;
        }
        r->conn = conn;
        r->id = msg->env->id;
        r->head.version = (char *)SHEAF_RELEASE;
        r->head.pid = (uint32_t)getpid();
        r->head.uptime_ns = (uint64_t)(sheaf_now_ns() - d->started_ns);
        r->head.cache_dir = d->config->cache_dir;
        r->head.socket = d->config->socket;
        r->head.deadline_ms = d->config->deadline_ms;
        fill_conditions(r);
        for (each = sheaf_server_first(d->server); each;
                each = LIST_NEXT(each, link))
                if (each != conn && sheaf_conn_may_see(conn, each))
                        fill_client(r, each);
        send_report(r, false);
        free(figures);
        free(r);
}
