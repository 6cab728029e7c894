/* SPDX-License-Identifier: Apache-2.0 */
/* Listing, sharing and removing datasets.
 *
 * Threads: loop thread. */
#include "daemon/verbs/verbs.h"

#include "daemon/log.h"
#include "daemon/registry/names.h"

#include <stdio.h>

static const char *state_of(
        const struct sheaf_reg_dataset *ds, const struct sheaf_reg_version *v)
{
        if (!v)
                return "listing";
        if (ds->attachment == SHEAF_DETACHED)
                return "detached";
        if (ds->listing)
                return "updating";
        return v->record->root_digest.len ? "sealed" : "ready";
}

static void fill_version(struct sheaf_reg_version *v, Sheaf__DatasetInfo *info,
        struct sheaf_info_space *space)
{
        struct sheaf_lodging *lodging;
        const SheafRecord__Version *r = v->record;

        info->uuid = r->uuid;
        info->serial = r->serial;
        info->files = r->files;
        info->dirs = r->dirs;
        info->links = r->links;
        info->bytes = r->bytes;
        info->chunks = r->chunks;
        info->escaping_links = r->escaping_links;
        info->skipped_special = r->skipped_special;
        info->unreadable = r->unreadable;
        if (r->root_digest.len == SHEAF_DIGEST_BYTES) {
                sheaf_digest_hex(
                        (const struct sheaf_digest *)r->root_digest.data,
                        space->digest);
                info->root_digest = space->digest;
        }
        if (v->load != SHEAF_LOADED)
                return;
        info->chunks_known = sheaf_version_known(v->fetch.stored);
        info->disk_chunks =
                sheaf_version_disk(v->fetch.stored, &info->disk_bytes);
        LIST_FOREACH (lodging, &v->lodgings, link) {
                uint64_t bytes = 0;

                info->arena_chunks +=
                        sheaf_table_resident(lodging->residence.table, &bytes);
                info->arena_bytes += bytes;
        }
}

void sheaf_dataset_fill_info(struct sheaf_reg_dataset *ds,
        struct sheaf_reg_version *v, Sheaf__DatasetInfo *info,
        struct sheaf_info_space *space)
{
        const SheafRecord__Dataset *record = ds->record;
        struct sheaf_reg_version *each;

        sheaf_names_of_user(
                record->owner_uid, space->owner, sizeof(space->owner));
        sheaf_registry_share_text(ds, space->share, sizeof(space->share));
        info->name = record->name;
        info->owner = space->owner;
        info->owner_uid = record->owner_uid;
        info->share = space->share;
        info->origin = record->origin;
        info->created_ns = record->created_ns;
        info->state = (char *)state_of(ds, v);
        if (record->share_kind == SHEAF_SHARE_GROUP)
                snprintf(space->domain, sizeof(space->domain), "group:%u",
                        record->share_gid);
        else
                snprintf(space->domain, sizeof(space->domain), "%s",
                        record->share_kind == SHEAF_SHARE_ALL ? "all"
                                                              : "owner");
        info->domain = space->domain;
        if (ds->attachment == SHEAF_DETACHED)
                info->note = (char *)ds->detached_why;
        info->clients = ds->handles;
        TAILQ_FOREACH (each, &ds->versions, link)
                info->versions++;
        if (v)
                fill_version(v, info, space);
}

static void send_info(struct sheaf_conn *conn, uint64_t id,
        struct sheaf_reg_dataset *ds, bool more)
{
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__DatasetInfo info = SHEAF__DATASET_INFO__INIT;
        struct sheaf_info_space space;

        sheaf_dataset_fill_info(
                ds, sheaf_registry_version(ds, NULL), &info, &space);
        env.id = id;
        env.more = more;
        env.body_case = SHEAF__ENVELOPE__BODY_DATASET_INFO;
        env.dataset_info = &info;
        sheaf_conn_send(conn, &env, NULL, 0);
}

/* Figures of a version that is not in memory are loaded for whoever asks for
 * it by name. */
struct info_call {
        struct sheaf_call call; /* first */
        struct sheaf_opening opening;
};

static void info_opened(struct sheaf_opening *opening, int rc)
{
        struct info_call *info =
                (struct info_call *)((char *)opening -
                                     offsetof(struct info_call, opening));
        struct sheaf_conn *conn = info->call.conn;
        uint64_t id = info->call.id;

        sheaf_call_end(&info->call);
        send_info(conn, id, opening->version->dataset, true);
        sheaf_conn_done(conn, id);
        if (!rc)
                sheaf_registry_unhold(opening->version);
        free(info);
}

static void info_abandon(struct sheaf_call *call)
{
        struct info_call *info = (struct info_call *)call;

        sheaf_registry_open_cancel(&info->opening);
        free(info);
}

/* All that the client may see, as it reads; ids grow along the list. */
struct list_call {
        struct sheaf_call call; /* first */
        uint64_t last;          /* id of the dataset that was sent last */
};

static void list_on(struct sheaf_call *call)
{
        struct list_call *list = (struct list_call *)call;
        struct sheaf_conn *conn = call->conn;
        uint64_t id = call->id;
        struct sheaf_reg_dataset *ds =
                sheaf_registry_next(conn->daemon->registry, list->last);

        for (; ds; ds = TAILQ_NEXT(ds, link)) {
                if (!sheaf_conn_has_room(conn))
                        return;
                list->last = ds->record->id;
                if (sheaf_registry_may_read(ds, &conn->who))
                        send_info(conn, id, ds, true);
        }
        sheaf_call_end(call);
        free(list);
        sheaf_conn_done(conn, id);
}

static void list_abandon(struct sheaf_call *call)
{
        free(call);
}

static void list_all(struct sheaf_conn *conn, uint64_t id)
{
        struct list_call *list = sheaf_new(struct list_call, 1);

        if (!sheaf_call_begin(
                    conn, id, list ? &list->call : NULL, list_abandon)) {
                free(list);
                return;
        }
        list->call.resume = list_on;
        list_on(&list->call);
}

void sheaf_verb_list_datasets(
        struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const char *name = msg->env->list_datasets->name;
        uint64_t id = msg->env->id;
        struct sheaf_reg_dataset *ds;
        struct info_call *info;

        if (!*name) {
                list_all(conn, id);
                return;
        }
        ds = sheaf_conn_dataset(conn, id, name, false);
        if (!ds)
                return;
        info = sheaf_new(struct info_call, 1);
        if (!info || !sheaf_registry_version(ds, NULL)) {
                free(info);
                send_info(conn, id, ds, true);
                sheaf_conn_done(conn, id);
                return;
        }
        if (!sheaf_call_begin(conn, id, &info->call, info_abandon)) {
                free(info);
                return;
        }
        info->opening.version = sheaf_registry_version(ds, NULL);
        info->opening.done = info_opened;
        sheaf_registry_open(&info->opening);
}

static void close_handles(
        struct sheaf_server *server, const struct sheaf_reg_dataset *ds)
{
        struct sheaf_conn *conn;

        for (conn = sheaf_server_first(server); conn;
                conn = LIST_NEXT(conn, link))
                for (uint32_t i = 0; i < SHEAF_CONN_HANDLES_MAX; i++)
                        if (conn->handles[i] &&
                                conn->handles[i]->version->dataset == ds)
                                sheaf_conn_close_handle(conn, conn->handles[i]);
}

/* "name (pid), ..." of who reads the dataset. */
static void users_text(struct sheaf_server *server,
        const struct sheaf_reg_dataset *ds, char *buf, size_t cap)
{
        struct sheaf_conn *conn;
        size_t len = 0;

        buf[0] = 0;
        for (conn = sheaf_server_first(server); conn;
                conn = LIST_NEXT(conn, link)) {
                bool uses = false;

                for (uint32_t i = 0; i < SHEAF_CONN_HANDLES_MAX; i++)
                        uses |= conn->handles[i] && conn->handles[i]->lodging &&
                                conn->handles[i]->version->dataset == ds;
                if (!uses || len + 96 > cap)
                        continue;
                len += (size_t)snprintf(buf + len, cap - len, "%s%s %s (%d)",
                        len ? ", " : "", conn->kind, conn->name, conn->who.pid);
        }
}

/* A removal that waits for its record to go; it goes on without a client. */
struct removing {
        struct sheaf_call call; /* first */
        struct sheaf_daemon *daemon;
        struct sheaf_reg_dataset *dataset;
};

static void removing_abandon(struct sheaf_call *call)
{
        (void)call; /* who is told of its end frees it */
}

static void removed(void *arg, int rc)
{
        struct removing *call = arg;
        struct sheaf_reg_dataset *ds = call->dataset;
        struct sheaf_conn *conn = call->call.conn;
        uint64_t id = call->call.id;

        /* Who opened it meanwhile loses it as by --force. */
        if (!rc) {
                if (call->daemon->server) /* not when it stops */
                        close_handles(call->daemon->server, ds);
                sheaf_registry_left(ds);
                sheaf_log(SHEAF_LOG_INFO, "dataset removed", "name=%s owner=%u",
                        ds->record->name, ds->record->owner_uid);
        }
        if (conn)
                sheaf_call_end(&call->call);
        free(call);
        if (conn && rc)
                sheaf_conn_error(conn, id, rc,
                        "'%s' stays: its record cannot be removed from the "
                        "catalog (%s); see the daemon's log",
                        ds->record->name, strerror(-rc));
        else if (conn)
                sheaf_conn_done(conn, id);
}

static void given_up(void *arg, int rc)
{
        struct sheaf_call *call = arg;
        struct sheaf_conn *conn = call->conn;
        uint64_t id = call->id;

        if (conn)
                sheaf_call_end(call);
        free(call);
        if (conn && rc)
                sheaf_conn_error(conn, id, rc,
                        "records that cannot be read stay in the catalog: %s",
                        strerror(-rc));
        else if (conn)
                sheaf_conn_done(conn, id);
}

static void give_up(struct sheaf_conn *conn, uint64_t id)
{
        struct sheaf_call *call;
        int rc;

        if (!sheaf_conn_sees_all(conn)) {
                sheaf_conn_error(conn, id, -EPERM,
                        "whose a record is that cannot be read nobody knows: "
                        "root alone, or the daemon's user, gives it up");
                return;
        }
        call = sheaf_new(struct sheaf_call, 1);
        if (!sheaf_call_begin(conn, id, call, removing_abandon)) {
                free(call);
                return;
        }
        rc = sheaf_registry_give_up(conn->daemon->registry, given_up, call);
        if (rc)
                given_up(call, rc);
}

void sheaf_verb_remove_dataset(
        struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__RemoveDataset *remove = msg->env->remove_dataset;
        uint64_t id = msg->env->id;
        struct sheaf_reg_dataset *ds;
        struct removing *call;
        char users[512];

        if (remove->unreadable) {
                give_up(conn, id);
                return;
        }
        ds = sheaf_conn_dataset(conn, id, remove->name, true);
        if (!ds)
                return;
        if ((ds->handles || ds->busy || ds->listing) && !remove->force) {
                users_text(conn->server, ds, users, sizeof(users));
                sheaf_conn_error(conn, id, -EBUSY,
                        "'%s' is in use by %s; end them, or take it away "
                        "from them: sheaf rm --force %s",
                        remove->name, *users ? users : "a running command",
                        remove->name);
                return;
        }
        call = sheaf_new(struct removing, 1);
        if (!sheaf_call_begin(
                    conn, id, call ? &call->call : NULL, removing_abandon)) {
                free(call);
                return;
        }
        call->daemon = conn->daemon;
        call->dataset = ds;
        sheaf_registry_remove(ds, removed, call);
}

void sheaf_verb_sync(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        sheaf_store_flush(conn->daemon->store);
        sheaf_conn_done(conn, msg->env->id);
}
