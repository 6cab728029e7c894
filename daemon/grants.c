/* SPDX-License-Identifier: Apache-2.0 */
/* Grants in the catalog ("grant/ID") and their sockets.
 *
 *  1 a grant is durable before its socket is there
 *  2 the socket is made in a directory that its owner showed as a
 *    descriptor; after a restart the recorded path must lead to a directory
 *    that belongs to the owner
 *  3 nothing here waits for that directory (daemon/grant_socket.h)
 *
 * Threads: loop thread. */
#include "daemon/grants.h"

#include "daemon/clock.h"
#include "daemon/grant_socket.h"
#include "daemon/log.h"

#include <fcntl.h>
#include <limits.h>
#include <openssl/rand.h>
#include <stdio.h>

#define RETRY_MS      5000
#define START_NS      (2 * SHEAF_NS_PER_SEC) /* a start waits for sockets */
#define START_POLL_MS 20

/* A grant's record goes, and who waits for that is told. */
struct ending {
        struct sheaf_store_change change; /* first */
        struct sheaf_grants *grants;
        void (*done)(void *arg, int rc);
        void *arg;
        uint64_t serial;
        bool unserved; /* it is in no list yet */
};

/* Who waits for a new grant. */
struct making {
        struct sheaf_store_change change; /* first */
        LIST_ENTRY(making) link;
        int dir_fd;
        struct sheaf_grants *grants;
        struct sheaf_grant *grant; /* not yet in the list of grants */
        struct ending *undo;       /* made before there is what it undoes */
        int rc;                    /* why */
        void (*done)(void *arg, struct sheaf_grant *grant, int rc);
        void *arg;
};

struct sheaf_grants {
        struct sheaf_daemon *daemon;
        LIST_HEAD(, sheaf_grant) list;
        LIST_HEAD(, making) makings;
        bool stopping;
        uv_timer_t retry;
};

static void grant_key(const struct sheaf_grant *grant, char key[64])
{
        snprintf(key, 64, "grant/%s", grant->record->id);
}

static void grant_free(struct sheaf_grant *grant)
{
        if (grant->record)
                sheaf_record__grant__free_unpacked(grant->record, NULL);
        free(grant);
}

/* ---- sockets ---- */

/* Takes over what was made for @grant. */
static int serve(struct sheaf_grants *grants, struct sheaf_grant *grant,
        const struct sheaf_grant_socket_made *made)
{
        int rc = sheaf_server_adopt(grants->daemon->server, made->sock,
                grant->record->serial, &grant->listener);

        if (rc)
                return rc;
        grant->made = *made;
        return 0;
}

static void open_sockets(struct sheaf_grants *grants);

/* The socket of a recorded grant. */
static void socket_opened(void *arg, uint64_t serial, int rc,
        const struct sheaf_grant_socket_made *made)
{
        struct sheaf_grants *grants = arg;
        struct sheaf_grant *grant;
        int sock = made->sock;

        LIST_FOREACH (grant, &grants->list, link)
                if (grant->record->serial == serial)
                        break;
        if (grant) {
                grant->opening = false;
                grant->rc = rc ? rc : serve(grants, grant, made);
                if (grant->listener)
                        sock = -1;
                else if (sheaf_log_once(
                                 &grant->failed_once, 600 * SHEAF_NS_PER_SEC))
                        sheaf_log_rc(grant->rc, SHEAF_LOG_WARN,
                                "grant not served", "id=%s dir=%s",
                                grant->record->id,
                                (const char *)grant->record->dir.data);
        }
        sheaf_close_p(&sock); /* revoked meanwhile */
        open_sockets(grants);
}

/* Begins with those that were not tried yet, as many as may hang at once. */
static void open_sockets(struct sheaf_grants *grants)
{
        struct sheaf_daemon *d = grants->daemon;
        struct sheaf_grant *grant;

        LIST_FOREACH (grant, &grants->list, link) {
                if (grant->listener || grant->opening ||
                        grant->rc != -EINPROGRESS)
                        continue;
                grant->opening =
                        !sheaf_grant_socket_open(d->loop, grant->record, -1,
                                d->config->deadline_ms, socket_opened, grants);
        }
}

static void retry_cb(uv_timer_t *timer)
{
        struct sheaf_grants *grants = timer->data;
        struct sheaf_grant *grant;

        LIST_FOREACH (grant, &grants->list, link)
                if (!grant->listener && !grant->opening)
                        grant->rc = -EINPROGRESS;
        open_sockets(grants);
}

static void wait_cb(uv_timer_t *timer)
{
        (void)timer;
}

/* Clients come back at once after a restart: their sockets had better be
 * there. What hangs is not waited for. */
static void wait_for_sockets(struct sheaf_grants *grants)
{
        int64_t end_ns = sheaf_now_ns() + START_NS;
        struct sheaf_grant *grant;
        bool pending = true;

        uv_timer_start(&grants->retry, wait_cb, START_POLL_MS, START_POLL_MS);
        while (pending && sheaf_now_ns() < end_ns) {
                pending = false;
                LIST_FOREACH (grant, &grants->list, link)
                        pending |= grant->opening;
                if (pending)
                        uv_run(grants->daemon->loop, UV_RUN_ONCE);
        }
}

static bool may_read(void *arg, uint64_t serial, uint64_t dataset)
{
        struct sheaf_grants *grants = arg;
        struct sheaf_grant *grant;

        LIST_FOREACH (grant, &grants->list, link) {
                if (grant->record->serial != serial)
                        continue;
                for (size_t i = 0; i < grant->record->n_dataset; i++)
                        if (grant->record->dataset[i] == dataset)
                                return true;
        }
        return false;
}

static int name_socket(struct sheaf_grant *grant)
{
        int n = snprintf(grant->socket, sizeof(grant->socket), "%s/%s",
                (const char *)grant->record->dir.data, SHEAF_GRANT_SOCKET_NAME);

        return n < 0 || (size_t)n >= sizeof(grant->socket) ? -ENAMETOOLONG : 0;
}

static int load(void *arg, const char *key, const void *value, size_t len_bytes)
{
        struct sheaf_grants *grants = arg;
        struct sheaf_grant *grant = sheaf_new(struct sheaf_grant, 1);

        if (!grant)
                return -ENOMEM;
        grant->record = sheaf_record__grant__unpack(NULL, len_bytes, value);
        if (!grant->record) {
                sheaf_log(SHEAF_LOG_ERROR, "grant record unreadable", "key=%s",
                        key);
                free(grant);
                return 0;
        }
        if (sheaf_record_terminate(&grant->record->dir)) {
                grant_free(grant);
                return -ENOMEM;
        }
        if (name_socket(grant)) {
                sheaf_log(SHEAF_LOG_ERROR, "grant record unreadable", "key=%s",
                        key);
                grant_free(grant);
                return 0;
        }
        LIST_INSERT_HEAD(&grants->list, grant, link);
        grant->rc = -EINPROGRESS;
        return 0;
}

int sheaf_grants_new(
        struct sheaf_daemon *daemon, struct sheaf_grants **ret_grants)
{
        struct sheaf_grants *grants = sheaf_new(struct sheaf_grants, 1);
        int rc;

        if (!grants)
                return -ENOMEM;
        grants->daemon = daemon;
        uv_timer_init(daemon->loop, &grants->retry);
        grants->retry.data = grants;
        sheaf_store_reserve(daemon->store, "grant");
        sheaf_registry_set_grant_check(daemon->registry, may_read, grants);
        rc = sheaf_store_each(daemon->store, "grant/", load, grants);
        if (rc) {
                sheaf_grants_free(grants);
                return rc;
        }
        /* Requests come while we wait. */
        *ret_grants = grants;
        open_sockets(grants);
        wait_for_sockets(grants);
        uv_timer_start(&grants->retry, retry_cb, RETRY_MS, RETRY_MS);
        return 0;
}

static void grants_closed(uv_handle_t *handle)
{
        free(handle->data);
}

void sheaf_grants_free(struct sheaf_grants *grants)
{
        struct sheaf_grant *grant;
        struct making *making;

        if (!grants)
                return;
        sheaf_registry_set_grant_check(grants->daemon->registry, NULL, NULL);
        /* Records that are under way; none of them is answered any more. */
        grants->stopping = true;
        sheaf_store_settle(grants->daemon->store);
        while ((making = LIST_FIRST(&grants->makings))) {
                LIST_REMOVE(making, link);
                grant_free(making->grant);
                sheaf_close_p(&making->dir_fd);
                free(making->undo);
                free(making);
        }
        while ((grant = LIST_FIRST(&grants->list))) {
                LIST_REMOVE(grant, link);
                grant_free(grant);
        }
        uv_close((uv_handle_t *)&grants->retry, grants_closed);
}

struct sheaf_grant *sheaf_grants_first(struct sheaf_grants *grants)
{
        return LIST_FIRST(&grants->list);
}

static int record_owner(
        SheafRecord__Grant *record, const struct sheaf_principal *owner)
{
        record->owner_uid = owner->uid;
        record->owner_gid = owner->gid;
        record->owner_group = sheaf_new(uint32_t, owner->group_count + 1);
        if (!record->owner_group)
                return -ENOMEM;
        for (size_t i = 0; i < owner->group_count; i++)
                record->owner_group[i] = owner->groups[i];
        record->n_owner_group = owner->group_count;
        return 0;
}

static SheafRecord__Grant *record_new(const struct sheaf_grant_wish *wish)
{
        SheafRecord__Grant *record = malloc(sizeof(*record));
        uint8_t random[8];
        char id[17];

        if (!record)
                return NULL;
        sheaf_record__grant__init(record);
        /* An id that others have, too, would take their socket's place. */
        if (RAND_bytes(random, sizeof(random)) != 1) {
                sheaf_record__grant__free_unpacked(record, NULL);
                return NULL;
        }
        for (size_t i = 0; i < sizeof(random); i++)
                snprintf(id + 2 * i, 3, "%02x", random[i]);
        record->id = strdup(id);
        record->label = strdup(wish->label);
        record->dir.len = strlen(wish->dir);
        record->dir.data = (uint8_t *)strdup(wish->dir);
        record->dataset = sheaf_new(uint64_t, wish->count);
        if (!record->id || !record->label || !record->dir.data ||
                !record->dataset || record_owner(record, wish->owner)) {
                sheaf_record__grant__free_unpacked(record, NULL);
                return NULL;
        }
        memcpy(record->dataset, wish->datasets,
                wish->count * sizeof(*wish->datasets));
        record->n_dataset = wish->count;
        return record;
}

static bool too_many(const struct sheaf_grants *grants, uid_t uid)
{
        const struct sheaf_grant *grant;
        const struct making *making;
        size_t count = 0;

        LIST_FOREACH (grant, &grants->list, link)
                count += grant->record->owner_uid == uid;
        LIST_FOREACH (making, &grants->makings, link)
                count += making->grant->record->owner_uid == uid;
        return count >= SHEAF_GRANTS_USER_MAX;
}

/* ---- records ---- */

static struct sheaf_grant *by_serial(
        struct sheaf_grants *grants, uint64_t serial)
{
        struct sheaf_grant *grant;

        LIST_FOREACH (grant, &grants->list, link)
                if (grant->record->serial == serial)
                        break;
        return grant;
}

uid_t sheaf_grants_owner(struct sheaf_grants *grants, uint64_t serial)
{
        const struct sheaf_grant *grant = by_serial(grants, serial);

        return grant ? grant->record->owner_uid : SHEAF_UID_UNMAPPED;
}

static int ending_begin(struct sheaf_store_change *change)
{
        struct ending *ending = (struct ending *)change;

        /* Another one was before us. */
        return !ending->unserved && !by_serial(ending->grants, ending->serial)
                       ? SHEAF_CHANGE_NONE
                       : 0;
}

static void take_away(struct sheaf_grants *grants, struct sheaf_grant *grant)
{
        LIST_REMOVE(grant, link);
        if (grant->listener) {
                sheaf_server_unlisten(grants->daemon->server, grant->listener);
                sheaf_grant_socket_remove(
                        grants->daemon->loop, grant->record, &grant->made);
        }
        sheaf_server_drop_grant(grants->daemon->server, grant->record->serial);
        grant_free(grant);
}

static void ended(struct sheaf_store_change *change, int rc)
{
        struct ending *ending = (struct ending *)change;
        struct sheaf_grant *grant = by_serial(ending->grants, ending->serial);

        if (rc == -ENOENT)
                rc = 0;
        if (!rc && grant && !ending->grants->stopping)
                take_away(ending->grants, grant);
        ending->done(ending->arg, rc);
        free(ending);
}

/* Begins @ending (owned) of @grant. */
static void record_end(struct ending *ending, struct sheaf_grants *grants,
        const struct sheaf_grant *grant, void (*done)(void *arg, int rc),
        void *arg)
{
        ending->grants = grants;
        ending->done = done;
        ending->arg = arg;
        ending->serial = grant->record->serial;
        ending->change.begin = ending_begin;
        ending->change.done = ended;
        grant_key(grant, ending->change.key);
        sheaf_store_change(grants->daemon->store, &ending->change);
}

/* Tells who waits, and frees what there is none of. */
static void making_end(struct making *making, struct sheaf_grant *grant, int rc)
{
        LIST_REMOVE(making, link);
        if (!grant)
                grant_free(making->grant);
        sheaf_close_p(&making->dir_fd);
        free(making->undo);
        if (making->done)
                making->done(making->arg, grant, rc);
        free(making);
}

/* The record went, so that there is no such grant; or could not, and the next
 * start would find it: then there is one, whose socket is tried again. */
static void undone(void *arg, int rc)
{
        struct making *making = arg;
        struct sheaf_grant *grant = making->grant;

        if (!rc) {
                making_end(making, NULL, making->rc);
                return;
        }
        sheaf_log_rc(rc, SHEAF_LOG_WARN, "grant record stays", "id=%s",
                grant->record->id);
        grant->rc = making->rc;
        LIST_INSERT_HEAD(&making->grants->list, grant, link);
        making_end(making, grant, 0);
}

static void undo(struct making *making, int rc)
{
        making->rc = rc;
        making->undo->unserved = true;
        record_end(sheaf_steal(&making->undo), making->grants, making->grant,
                undone, making);
}

/* The socket of a new grant. */
static void made_socket(void *arg, uint64_t serial, int rc,
        const struct sheaf_grant_socket_made *made)
{
        struct making *making = arg;
        struct sheaf_grants *grants = making->grants;
        struct sheaf_grant *grant = making->grant;
        int sock = made->sock;

        (void)serial;
        if (!rc) {
                rc = serve(grants, grant, made);
                if (rc)
                        sheaf_grant_socket_remove(
                                grants->daemon->loop, grant->record, made);
        }
        if (rc) {
                sheaf_close_p(&sock);
                undo(making, rc);
        } else {
                LIST_INSERT_HEAD(&grants->list, grant, link);
                making_end(making, grant, 0);
        }
        open_sockets(grants);
}

static int making_begin(struct sheaf_store_change *change)
{
        SheafRecord__Grant *record = ((struct making *)change)->grant->record;
        char key[64];
        int rc;

        grant_key(((struct making *)change)->grant, key);
        rc = sheaf_store_change_value(
                change, key, sheaf_record__grant__get_packed_size(record));
        if (!rc)
                sheaf_record__grant__pack(record, change->value);
        return rc;
}

/* Its record is durable: now its socket. */
static void making_recorded(struct sheaf_store_change *change, int rc)
{
        struct making *making = (struct making *)change;
        struct sheaf_grants *grants = making->grants;
        struct sheaf_daemon *d = grants->daemon;

        if (!rc && grants->stopping)
                rc = -ECANCELED;
        if (rc) {
                making_end(making, NULL, rc);
                return;
        }
        rc = sheaf_grant_socket_open(d->loop, making->grant->record,
                making->dir_fd, d->config->deadline_ms, made_socket, making);
        sheaf_close_p(&making->dir_fd);
        if (rc)
                undo(making, rc);
}

static int making_new(struct sheaf_grants *grants,
        const struct sheaf_grant_wish *wish, struct making **ret_making)
{
        struct making *making = sheaf_new(struct making, 1);
        struct sheaf_grant *grant = sheaf_new(struct sheaf_grant, 1);
        int rc;

        if (making)
                making->dir_fd = -1;
        if (grant)
                grant->record = record_new(wish);
        if (making)
                making->undo = sheaf_new(struct ending, 1);
        rc = making && making->undo && grant && grant->record
                     ? name_socket(grant)
                     : -ENOMEM;
        if (!rc) {
                making->dir_fd = fcntl(wish->dir_fd, F_DUPFD_CLOEXEC, 0);
                rc = making->dir_fd < 0 ? -errno : 0;
        }
        if (!rc)
                rc = sheaf_store_next(
                        grants->daemon->store, "grant", &grant->record->serial);
        if (rc) {
                if (making) {
                        sheaf_close_p(&making->dir_fd);
                        free(making->undo);
                }
                if (grant)
                        grant_free(grant);
                free(making);
                return rc;
        }
        making->grants = grants;
        making->grant = grant;
        making->done = wish->done;
        making->arg = wish->arg;
        making->change.begin = making_begin;
        making->change.done = making_recorded;
        *ret_making = making;
        return 0;
}

int sheaf_grants_make(
        struct sheaf_grants *grants, const struct sheaf_grant_wish *wish)
{
        struct making *making;
        int rc;

        if (too_many(grants, wish->owner->uid))
                return -EMFILE;
        rc = making_new(grants, wish, &making);
        if (rc)
                return rc;
        LIST_INSERT_HEAD(&grants->makings, making, link);
        sheaf_store_change(grants->daemon->store, &making->change);
        return 0;
}

void sheaf_grants_forget(struct sheaf_grants *grants, void *arg)
{
        struct making *making;

        LIST_FOREACH (making, &grants->makings, link)
                if (making->arg == arg)
                        making->done = NULL;
}

int sheaf_grants_revoke(struct sheaf_grants *grants, struct sheaf_grant *grant,
        void (*done)(void *arg, int rc), void *arg)
{
        struct ending *ending = sheaf_new(struct ending, 1);

        if (!ending)
                return -ENOMEM;
        record_end(ending, grants, grant, done, arg);
        return 0;
}
