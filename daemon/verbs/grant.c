/* SPDX-License-Identifier: Apache-2.0 */
/* Making, listing and revoking grants.
 *
 * Threads: loop thread. */
#include "daemon/verbs/verbs.h"

#include "daemon/grants.h"
#include "daemon/registry/names.h"

#include <limits.h>

#define DATASETS_MAX 256
/* Shown in lists, which must fit into a message. */
#define LABEL_MAX_BYTES 128

/* All datasets; their ids grow. Without memory for that (NULL) each is looked
 * up by itself. */
struct known {
        size_t count;
        struct sheaf_reg_dataset **all;
};

static int known_new(struct sheaf_registry *registry, struct known *ret_known)
{
        struct sheaf_reg_dataset *ds;
        size_t count = 0;

        for (ds = sheaf_registry_first(registry); ds; ds = TAILQ_NEXT(ds, link))
                count++;
        ret_known->count = 0;
        ret_known->all = sheaf_new(struct sheaf_reg_dataset *, count + 1);
        if (!ret_known->all)
                return -ENOMEM;
        for (ds = sheaf_registry_first(registry); ds; ds = TAILQ_NEXT(ds, link))
                ret_known->all[ret_known->count++] = ds;
        return 0;
}

static struct sheaf_reg_dataset *dataset_by_id(
        struct sheaf_registry *registry, const struct known *known, uint64_t id)
{
        size_t low = 0, high = known->count;

        if (!known->all) {
                struct sheaf_reg_dataset *ds =
                        sheaf_registry_next(registry, id - 1);

                return ds && ds->record->id == id ? ds : NULL;
        }
        while (low < high) {
                size_t middle = low + (high - low) / 2;

                if (known->all[middle]->record->id < id)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low < known->count && known->all[low]->record->id == id
                       ? known->all[low]
                       : NULL;
}

static void send_grant(struct sheaf_conn *conn, uint64_t id,
        const struct sheaf_grant *grant, const struct known *known, bool more)
{
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__GrantInfo info = SHEAF__GRANT_INFO__INIT;
        char *names[DATASETS_MAX], owner[64];
        struct sheaf_conn *each;

        for (size_t i = 0; i < grant->record->n_dataset; i++) {
                struct sheaf_reg_dataset *ds =
                        dataset_by_id(conn->daemon->registry, known,
                                grant->record->dataset[i]);

                if (ds && info.n_dataset < DATASETS_MAX)
                        names[info.n_dataset++] = ds->record->name;
        }
        for (each = sheaf_server_first(conn->daemon->server); each;
                each = LIST_NEXT(each, link))
                info.clients += each->who.grant == grant->record->serial;
        sheaf_names_of_user(grant->record->owner_uid, owner, sizeof(owner));
        info.id = grant->record->id;
        info.label = grant->record->label;
        info.dataset = names;
        info.socket.data = (uint8_t *)grant->socket;
        info.socket.len = strlen(grant->socket);
        info.owner = owner;
        info.state = grant->listener ? (char *)"served" : strerror(-grant->rc);
        env.id = id;
        env.more = more;
        env.body_case = SHEAF__ENVELOPE__BODY_GRANT_INFO;
        env.grant_info = &info;
        sheaf_conn_send(conn, &env, NULL, 0);
}

/* A client that waits for the socket of its new grant. */
struct grant_call {
        struct sheaf_call call; /* first */
        struct sheaf_grants *grants;
};

static void grant_error(
        struct sheaf_conn *conn, uint64_t id, const char *dir, int rc)
{
        const char *hint = "";

        if (rc == -EACCES)
                hint = " (the directory must be yours)";
        else if (rc == -EADDRINUSE)
                hint = " (another grant is served there)";
        else if (rc == -EBUSY)
                hint = " (earlier directories of yours do not answer)";
        else if (rc == -ETIMEDOUT)
                hint = " (its file system does not answer)";
        else if (rc == -EMFILE)
                hint = " (a user may have 1024 grants; see: sheaf grant "
                       "--list)";
        sheaf_conn_error(conn, id, rc, "no socket can be made in %s: %s%s", dir,
                strerror(-rc), hint);
}

static void granted(void *arg, struct sheaf_grant *grant, int rc)
{
        struct grant_call *call = arg;
        struct sheaf_conn *conn = call->call.conn;
        uint64_t id = call->call.id;
        struct known known = { 0 };

        sheaf_call_end(&call->call);
        if (rc) {
                grant_error(conn, id, "that directory", rc);
                free(call);
                return;
        }
        (void)known_new(conn->daemon->registry, &known);
        send_grant(conn, id, grant, &known, false);
        free(known.all);
        free(call);
}

static void grant_abandon(struct sheaf_call *base)
{
        struct grant_call *call = (struct grant_call *)base;

        sheaf_grants_forget(call->grants, call);
        free(call);
}

static void grant_begin(
        struct sheaf_conn *conn, uint64_t id, struct sheaf_grant_wish *wish)
{
        struct grant_call *call = sheaf_new(struct grant_call, 1);
        int rc;

        if (!sheaf_call_begin(
                    conn, id, call ? &call->call : NULL, grant_abandon)) {
                free(call);
                return;
        }
        call->grants = conn->daemon->grants;
        wish->done = granted;
        wish->arg = call;
        rc = sheaf_grants_make(call->grants, wish);
        if (!rc)
                return;
        sheaf_call_end(&call->call);
        free(call);
        grant_error(conn, id, wish->dir, rc);
}

void sheaf_verb_grant_socket(
        struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__GrantSocket *wish = msg->env->grant_socket;
        uint64_t id = msg->env->id, datasets[DATASETS_MAX];
        sheaf_autofd int fd = sheaf_wire_take_fd(msg, 0);
        struct sheaf_grant_wish made;
        char dir[PATH_MAX];

        if (!wish->n_dataset || wish->n_dataset > DATASETS_MAX ||
                !wish->dir.len || wish->dir.len >= sizeof(dir) || fd < 0) {
                sheaf_conn_error(conn, id, -EINVAL,
                        "a grant names 1 to %d datasets and brings an open "
                        "directory",
                        DATASETS_MAX);
                return;
        }
        if (strlen(wish->label) > LABEL_MAX_BYTES ||
                memchr(wish->dir.data, 0, wish->dir.len)) {
                sheaf_conn_error(conn, id, -EINVAL,
                        "a label has at most %d bytes, a path no NUL",
                        LABEL_MAX_BYTES);
                return;
        }
        memcpy(dir, wish->dir.data, wish->dir.len);
        dir[wish->dir.len] = 0;
        for (size_t i = 0; i < wish->n_dataset; i++) {
                struct sheaf_reg_dataset *ds =
                        sheaf_conn_dataset(conn, id, wish->dataset[i], true);

                if (!ds)
                        return;
                datasets[i] = ds->record->id;
        }
        made = (struct sheaf_grant_wish){ .owner = &conn->who,
                .dir = dir,
                .dir_fd = fd,
                .label = wish->label,
                .datasets = datasets,
                .count = wish->n_dataset };
        grant_begin(conn, id, &made);
}

static bool may_see(
        const struct sheaf_conn *conn, const struct sheaf_grant *grant)
{
        return conn->who.uid == 0 || conn->who.uid == grant->record->owner_uid;
}

/* All that the client may see, as it reads. */
struct list_call {
        struct sheaf_call call; /* first */
        uint64_t last;          /* serial of the grant that was told last; 0 */
};

static void list_end(struct list_call *list, int rc)
{
        struct sheaf_conn *conn = list->call.conn;
        uint64_t id = list->call.id;

        sheaf_call_end(&list->call);
        free(list);
        if (rc)
                sheaf_conn_error(conn, id, rc,
                        "grants were revoked while they were listed; try "
                        "again");
        else
                sheaf_conn_done(conn, id);
}

static void list_on(struct sheaf_call *call)
{
        struct list_call *list = (struct list_call *)call;
        struct sheaf_conn *conn = call->conn;
        struct sheaf_grant *grant = sheaf_grants_first(conn->daemon->grants);
        struct known known;

        while (grant && list->last && grant->record->serial != list->last)
                grant = LIST_NEXT(grant, link);
        if (list->last && !grant) {
                list_end(list, -EAGAIN);
                return;
        }
        if (list->last)
                grant = LIST_NEXT(grant, link);
        if (known_new(conn->daemon->registry, &known)) {
                list_end(list, -ENOMEM);
                return;
        }
        for (; grant && sheaf_conn_has_room(conn);
                grant = LIST_NEXT(grant, link)) {
                if (!may_see(conn, grant))
                        continue;
                list->last = grant->record->serial;
                send_grant(conn, call->id, grant, &known, true);
        }
        free(known.all);
        if (!grant)
                list_end(list, 0);
}

static void list_abandon(struct sheaf_call *call)
{
        free(call);
}

void sheaf_verb_list_grants(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        struct list_call *list = sheaf_new(struct list_call, 1);
        uint64_t id = msg->env->id;

        if (!sheaf_call_begin(
                    conn, id, list ? &list->call : NULL, list_abandon)) {
                free(list);
                return;
        }
        list->call.resume = list_on;
        list_on(&list->call);
}

static void revoking_abandon(struct sheaf_call *call)
{
        (void)call; /* revoked() frees it */
}

static void revoked(void *arg, int rc)
{
        struct sheaf_call *call = arg;
        struct sheaf_conn *conn = call->conn;
        uint64_t id = call->id;

        if (conn)
                sheaf_call_end(call);
        free(call);
        if (conn && rc)
                sheaf_conn_error(conn, id, rc,
                        "the grant cannot be removed: %s", strerror(-rc));
        else if (conn)
                sheaf_conn_done(conn, id);
}

void sheaf_verb_revoke_grant(
        struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        struct sheaf_grant *grant = sheaf_grants_first(conn->daemon->grants);
        const char *wanted = msg->env->revoke_grant->id;
        struct sheaf_call *call;
        int rc;

        while (grant &&
                (strcmp(grant->record->id, wanted) || !may_see(conn, grant)))
                grant = LIST_NEXT(grant, link);
        if (!grant) {
                sheaf_conn_error(conn, msg->env->id, -ENOENT,
                        "no grant '%s' of yours; see: sheaf grant --list",
                        wanted);
                return;
        }
        call = sheaf_new(struct sheaf_call, 1);
        if (!sheaf_call_begin(conn, msg->env->id, call, revoking_abandon)) {
                free(call);
                return;
        }
        rc = sheaf_grants_revoke(conn->daemon->grants, grant, revoked, call);
        if (rc)
                revoked(call, rc);
}
