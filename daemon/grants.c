/* SPDX-License-Identifier: Apache-2.0 */
/* Grants in the catalog ("grant/ID") and their sockets.
 *
 *  1 a grant is durable before its socket is there
 *  2 the socket is made in a directory that its owner showed as a
 *    descriptor; after a restart the recorded path must lead to a directory
 *    that belongs to the owner (or root)
 *
 * Threads: loop thread. */
#include "daemon/grants.h"

#include "daemon/log.h"

#include <limits.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <sys/stat.h>

#define RETRY_MS 5000

struct sheaf_grants {
        struct sheaf_daemon *daemon;
        LIST_HEAD(, sheaf_grant) list;
        uv_timer_t retry;
};

static void grant_key(const struct sheaf_grant *grant, char key[64])
{
        snprintf(key, 64, "grant/%s", grant->record->id);
}

static void grant_free(struct sheaf_grant *grant)
{
        sheaf_record__grant__free_unpacked(grant->record, NULL);
        free(grant);
}

static int grant_listen(struct sheaf_grants *grants, struct sheaf_grant *grant)
{
        const SheafRecord__Grant *record = grant->record;
        struct stat st;
        int n;

        n = snprintf(grant->socket, sizeof(grant->socket), "%s/sheafd.sock",
                (const char *)record->dir.data);
        if (n < 0 || (size_t)n >= sizeof(grant->socket))
                return -ENAMETOOLONG;
        if (stat((const char *)record->dir.data, &st))
                return -errno;
        if (!S_ISDIR(st.st_mode))
                return -ENOTDIR;
        if (st.st_uid != record->owner_uid && st.st_uid != 0)
                return -EACCES;
        return sheaf_server_listen(grants->daemon->server, grant->socket,
                record->serial, &grant->listener);
}

static void retry_cb(uv_timer_t *timer)
{
        struct sheaf_grants *grants = timer->data;
        struct sheaf_grant *grant;

        LIST_FOREACH (grant, &grants->list, link)
                if (!grant->listener)
                        grant->rc = grant_listen(grants, grant);
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
        LIST_INSERT_HEAD(&grants->list, grant, link);
        grant->rc = grant_listen(grants, grant);
        if (grant->rc)
                sheaf_log_rc(grant->rc, SHEAF_LOG_WARN, "grant not served",
                        "id=%s dir=%s", grant->record->id,
                        (const char *)grant->record->dir.data);
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
        uv_timer_start(&grants->retry, retry_cb, RETRY_MS, RETRY_MS);
        sheaf_registry_set_grant_check(daemon->registry, may_read, grants);
        rc = sheaf_store_each(daemon->store, "grant/", load, grants);
        if (rc) {
                sheaf_grants_free(grants);
                return rc;
        }
        *ret_grants = grants;
        return 0;
}

static void grants_closed(uv_handle_t *handle)
{
        free(handle->data);
}

void sheaf_grants_free(struct sheaf_grants *grants)
{
        struct sheaf_grant *grant;

        if (!grants)
                return;
        sheaf_registry_set_grant_check(grants->daemon->registry, NULL, NULL);
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

static SheafRecord__Grant *record_new(const struct sheaf_principal *owner,
        const char *dir, const char *label, const uint64_t *datasets,
        size_t count)
{
        SheafRecord__Grant *record = malloc(sizeof(*record));
        uint8_t random[8];
        char id[17];

        if (!record)
                return NULL;
        sheaf_record__grant__init(record);
        if (RAND_bytes(random, sizeof(random)) != 1)
                memset(random, 0, sizeof(random));
        for (size_t i = 0; i < sizeof(random); i++)
                snprintf(id + 2 * i, 3, "%02x", random[i]);
        record->id = strdup(id);
        record->label = strdup(label);
        record->owner_uid = owner->uid;
        record->dir.len = strlen(dir);
        record->dir.data = (uint8_t *)strdup(dir);
        record->dataset = sheaf_new(uint64_t, count);
        if (!record->id || !record->label || !record->dir.data ||
                !record->dataset) {
                sheaf_record__grant__free_unpacked(record, NULL);
                return NULL;
        }
        memcpy(record->dataset, datasets, count * sizeof(*datasets));
        record->n_dataset = count;
        return record;
}

static int grant_save(struct sheaf_grants *grants, struct sheaf_grant *grant)
{
        size_t len = sheaf_record__grant__get_packed_size(grant->record);
        sheaf_autofree uint8_t *data = malloc(len);
        char key[64];

        if (!data)
                return -ENOMEM;
        sheaf_record__grant__pack(grant->record, data);
        grant_key(grant, key);
        return sheaf_store_put(grants->daemon->store, key, data, len);
}

/* @dir_fd is what @dir leads to, and its owner is who asks. */
static int check_dir(
        const struct sheaf_principal *owner, const char *dir, int dir_fd)
{
        struct stat a, b;

        if (fstat(dir_fd, &a))
                return -errno;
        if (!S_ISDIR(a.st_mode))
                return -ENOTDIR;
        if (stat(dir, &b))
                return -errno;
        if (a.st_ino != b.st_ino || a.st_dev != b.st_dev)
                return -ESTALE;
        if (owner->uid != 0 && a.st_uid != owner->uid)
                return -EACCES;
        return 0;
}

int sheaf_grants_make(struct sheaf_grants *grants,
        const struct sheaf_principal *owner, const char *dir, int dir_fd,
        const char *label, const uint64_t *datasets, size_t count,
        struct sheaf_grant **ret_grant)
{
        struct sheaf_grant *grant;
        char key[64];
        int rc = check_dir(owner, dir, dir_fd);

        if (rc)
                return rc;
        grant = sheaf_new(struct sheaf_grant, 1);
        if (!grant)
                return -ENOMEM;
        grant->record = record_new(owner, dir, label, datasets, count);
        rc = grant->record ? sheaf_store_next(grants->daemon->store, "grant",
                                     &grant->record->serial)
                           : -ENOMEM;
        if (!rc)
                rc = grant_save(grants, grant);
        if (rc) {
                if (grant->record)
                        sheaf_record__grant__free_unpacked(grant->record, NULL);
                free(grant);
                return rc;
        }
        rc = grant_listen(grants, grant);
        if (rc) {
                grant_key(grant, key);
                if (sheaf_store_del(grants->daemon->store, key))
                        sheaf_log(SHEAF_LOG_WARN, "grant record stays", "id=%s",
                                grant->record->id);
                grant_free(grant);
                return rc;
        }
        LIST_INSERT_HEAD(&grants->list, grant, link);
        *ret_grant = grant;
        return 0;
}

int sheaf_grants_revoke(struct sheaf_grants *grants, struct sheaf_grant *grant)
{
        char key[64];
        int rc;

        grant_key(grant, key);
        rc = sheaf_store_del(grants->daemon->store, key);
        if (rc)
                return rc;
        LIST_REMOVE(grant, link);
        if (grant->listener)
                sheaf_server_unlisten(grants->daemon->server, grant->listener);
        sheaf_server_drop_grant(grants->daemon->server, grant->record->serial);
        grant_free(grant);
        return 0;
}
