/* SPDX-License-Identifier: Apache-2.0 */
/* Names, records and rights of datasets.
 *
 *  1 a dataset is in the catalog from its first listed version on
 *  2 names are unique per owner; who may not read a dataset cannot tell it
 *    from one that does not exist
 *
 * Threads: loop thread. */
#include "daemon/registry/internal.h"

#include "daemon/clock.h"
#include "daemon/log.h"
#include "daemon/registry/names.h"

#include <stdio.h>

#define NAME_MAX_ 200
#define SWEEP_MS  1000

/* ---- records ---- */

int sheaf_registry_save(struct sheaf_reg_dataset *dataset)
{
        struct sheaf_store_change packed = { 0 };
        int rc = sheaf_registry_pack(dataset, &packed);

        if (!rc)
                rc = sheaf_store_put(dataset->registry->store, packed.key,
                        packed.value, packed.len_bytes);
        free(packed.value);
        return rc;
}

/* Bytes that are used as text get a NUL behind them, which decoding does not
 * give. */
int sheaf_record_terminate(ProtobufCBinaryData *bytes)
{
        uint8_t *grown = realloc(bytes->data, bytes->len + 1);

        if (!grown)
                return -ENOMEM;
        grown[bytes->len] = 0;
        bytes->data = grown;
        return 0;
}

static struct sheaf_reg_dataset *dataset_new(
        struct sheaf_registry *registry, SheafRecord__Dataset *record)
{
        struct sheaf_reg_dataset *ds = sheaf_new(struct sheaf_reg_dataset, 1);

        if (!ds)
                return NULL;
        ds->registry = registry;
        ds->record = record;
        TAILQ_INIT(&ds->versions);
        LIST_INIT(&ds->tenancies);
        TAILQ_INSERT_TAIL(&registry->datasets, ds, link);
        return ds;
}

static bool name_valid(const char *name);

/* Ours, under its own key. A name or a path that cannot have been given is
 * damage, and would lead somewhere else. */
static bool record_good(const char *key, const SheafRecord__Dataset *record)
{
        char own[SHEAF_REG_KEY_BYTES];

        snprintf(own, sizeof(own), "dataset/%016llx",
                (unsigned long long)record->id);
        return !strcmp(own, key) && name_valid(record->name) &&
               (!record->origin.len ||
                       !memchr(record->origin.data, 0, record->origin.len));
}

/* Adds those that can be read; @ret_whole: all of them. */
static int load_versions(struct sheaf_reg_dataset *ds, bool *ret_whole)
{
        const SheafRecord__Dataset *record = ds->record;

        *ret_whole = true;
        for (size_t i = 0; i < record->n_version; i++) {
                SheafRecord__Version *version = record->version[i];

                if (version->uuid.len != 16 ||
                        version->listing_digest.len != SHEAF_DIGEST_BYTES ||
                        (version->root_digest.len &&
                                version->root_digest.len !=
                                        SHEAF_DIGEST_BYTES) ||
                        sheaf_registry_version(ds, version->uuid.data))
                        *ret_whole = false;
                else if (!sheaf_registry_add_version(ds, version))
                        return -ENOMEM;
        }
        return 0;
}

static int load_record(
        void *arg, const char *key, const void *value, size_t len_bytes)
{
        struct sheaf_registry *registry = arg;
        SheafRecord__Dataset *record =
                sheaf_record__dataset__unpack(NULL, len_bytes, value);
        struct sheaf_reg_dataset *ds;
        bool whole;
        int rc;

        if (!record || !record_good(key, record)) {
                if (record)
                        sheaf_record__dataset__free_unpacked(record, NULL);
                return sheaf_unreadable_add(registry, key);
        }
        ds = sheaf_record_terminate(&record->origin)
                     ? NULL
                     : dataset_new(registry, record);
        if (!ds) {
                sheaf_record__dataset__free_unpacked(record, NULL);
                return -ENOMEM;
        }
        rc = load_versions(ds, &whole);
        if (!whole) {
                sheaf_log(SHEAF_LOG_ERROR, "version record unreadable",
                        "key=%s", key);
                registry->versions_unreadable = true;
        }
        return rc;
}

/* Whether a record names the version. */
static bool is_known(void *arg, const uint8_t uuid[16])
{
        struct sheaf_registry *registry = arg;
        struct sheaf_reg_dataset *ds;

        /* A record that cannot be read may name it. */
        if (sheaf_registry_unreadable(registry))
                return true;
        TAILQ_FOREACH (ds, &registry->datasets, link)
                if (sheaf_registry_version(ds, uuid))
                        return true;
        return false;
}

/* Whether a record has the id. */
static bool is_dataset(void *arg, uint64_t group)
{
        struct sheaf_registry *registry = arg;
        struct sheaf_reg_dataset *ds;

        if (sheaf_registry_unreadable(registry))
                return true;
        TAILQ_FOREACH (ds, &registry->datasets, link)
                if (ds->record->id == group)
                        return true;
        return false;
}

static void sweep_cb(uv_timer_t *timer)
{
        sheaf_registry_sweep(timer->data);
}

int sheaf_registry_new(const struct sheaf_registry_config *config,
        struct sheaf_registry **ret_registry)
{
        struct sheaf_registry *registry = sheaf_new(struct sheaf_registry, 1);
        int rc;

        if (!registry)
                return -ENOMEM;
        registry->loop = config->loop;
        registry->store = config->store;
        registry->pool = config->pool;
        registry->fetcher = config->fetcher;
        registry->deadline_ns = config->deadline_ns;
        registry->user_datasets = config->user_datasets;
        registry->switch_user = geteuid() == 0;
        registry->reader_path = strdup(config->reader_path);
        TAILQ_INIT(&registry->datasets);
        TAILQ_INIT(&registry->leaving);
        sheaf_registry_slices_init(registry);
        uv_timer_init(registry->loop, &registry->sweep);
        registry->sweep.data = registry;
        uv_timer_start(&registry->sweep, sweep_cb, SWEEP_MS, SWEEP_MS);
        rc = registry->reader_path ? 0 : -ENOMEM;
        if (!rc)
                rc = sheaf_store_each(
                        registry->store, "dataset/", load_record, registry);
        if (rc) {
                sheaf_registry_free(registry);
                return rc;
        }
        sheaf_store_reserve(registry->store, "dataset");
        sheaf_store_reserve(registry->store, "serial");
        sheaf_registry_age(registry);
        sheaf_version_sweep(registry->store, is_known, registry);
        sheaf_store_group_sweep(registry->store, is_dataset, registry);
        *ret_registry = registry;
        return 0;
}

static void registry_closed(uv_handle_t *handle)
{
        struct sheaf_registry *registry = handle->data;

        if (--registry->open_handles)
                return;
        sheaf_unreadable_free(registry);
        free(registry->reader_path);
        free(registry);
}

void sheaf_registry_free(struct sheaf_registry *registry)
{
        struct sheaf_reg_dataset *ds;
        struct sheaf_domain *domain;

        if (!registry)
                return;
        registry->closing = true;
        TAILQ_FOREACH (ds, &registry->datasets, link)
                sheaf_registry_detach(ds);
        TAILQ_FOREACH (ds, &registry->leaving, link)
                sheaf_registry_detach(ds);
        /* Flights end as their sources do. */
        for (int i = 0; i < 10000; i++) {
                bool busy = registry->giving_up;

                TAILQ_FOREACH (ds, &registry->datasets, link)
                        busy |= ds->busy || ds->listing || ds->changes ||
                                !sheaf_registry_evacuate(ds);
                TAILQ_FOREACH (ds, &registry->leaving, link)
                        busy |= ds->busy || ds->listing || ds->changes ||
                                !sheaf_registry_evacuate(ds);
                if (!busy)
                        break;
                uv_run(registry->loop, UV_RUN_ONCE);
        }
        while ((ds = TAILQ_FIRST(&registry->datasets))) {
                TAILQ_REMOVE(&registry->datasets, ds, link);
                sheaf_registry_free_dataset(ds);
        }
        while ((ds = TAILQ_FIRST(&registry->leaving))) {
                TAILQ_REMOVE(&registry->leaving, ds, link);
                sheaf_registry_free_dataset(ds);
        }
        while ((domain = LIST_FIRST(&registry->domains))) {
                LIST_REMOVE(domain, link);
                sheaf_arena_free(domain->arena);
                free(domain);
        }
        sheaf_registry_drop_counts(registry);
        registry->open_handles = 2;
        uv_close((uv_handle_t *)&registry->slicing, registry_closed);
        uv_close((uv_handle_t *)&registry->sweep, registry_closed);
}

/* ---- rights ---- */

void sheaf_registry_set_gone(struct sheaf_registry *registry,
        void (*gone)(void *arg, const uint8_t uuid[16]), void *arg)
{
        registry->gone = gone;
        registry->gone_arg = arg;
}

void sheaf_registry_set_grant_check(struct sheaf_registry *registry,
        bool (*check)(void *arg, uint64_t grant, uint64_t dataset), void *arg)
{
        registry->grant_check = check;
        registry->grant_arg = arg;
}

bool sheaf_registry_shared_with(uint32_t owner_uid, uint32_t share_kind,
        uint32_t share_gid, const struct sheaf_principal *who)
{
        if (who->uid == owner_uid || who->uid == 0)
                return true;
        if (share_kind == SHEAF_SHARE_ALL)
                return true;
        return share_kind == SHEAF_SHARE_GROUP &&
               sheaf_principal_in_group(who, share_gid);
}

bool sheaf_registry_may_read(const struct sheaf_reg_dataset *dataset,
        const struct sheaf_principal *who)
{
        const SheafRecord__Dataset *record = dataset->record;

        if (who->grant) {
                const struct sheaf_registry *r = dataset->registry;

                return r->grant_check &&
                       r->grant_check(r->grant_arg, who->grant, record->id);
        }
        return sheaf_registry_shared_with(
                record->owner_uid, record->share_kind, record->share_gid, who);
}

bool sheaf_registry_may_manage(const struct sheaf_reg_dataset *dataset,
        const struct sheaf_principal *who)
{
        return !who->grant &&
               (who->uid == dataset->record->owner_uid || who->uid == 0);
}

void sheaf_registry_share_text(
        const struct sheaf_reg_dataset *dataset, char *buf, size_t cap_bytes)
{
        char group[64];

        switch (dataset->record->share_kind) {
        case SHEAF_SHARE_ALL:
                snprintf(buf, cap_bytes, "all");
                break;
        case SHEAF_SHARE_GROUP:
                sheaf_names_of_group(
                        dataset->record->share_gid, group, sizeof(group));
                snprintf(buf, cap_bytes, "group:%s", group);
                break;
        default:
                snprintf(buf, cap_bytes, "owner");
        }
}

/* ---- finding ---- */

struct sheaf_reg_dataset *sheaf_registry_first(struct sheaf_registry *registry)
{
        return TAILQ_FIRST(&registry->datasets);
}

struct sheaf_reg_dataset *sheaf_registry_next(
        struct sheaf_registry *registry, uint64_t id)
{
        struct sheaf_reg_dataset *ds;

        TAILQ_FOREACH (ds, &registry->datasets, link)
                if (ds->record->id > id)
                        return ds;
        return NULL;
}

/* Splits "~OWNER/NAME". 0 no owner given, 1 given, -ENOENT no such user,
 * -ETIMEDOUT not known in time. */
static int split_owner(const char *name, uid_t *uid, const char **rest)
{
        const char *slash = strchr(name, '/');
        char owner[64], *end;
        int rc;

        *rest = name;
        if (name[0] != '~' || !slash)
                return 0;
        if ((size_t)(slash - name) > sizeof(owner))
                return -ENOENT;
        snprintf(owner, sizeof(owner), "%.*s", (int)(slash - name - 1),
                name + 1);
        *rest = slash + 1;
        *uid = (uid_t)strtoul(owner, &end, 10);
        if (*owner && !*end)
                return 1;
        rc = sheaf_names_user(owner, uid);
        return rc ? rc : 1;
}

int sheaf_registry_find(struct sheaf_registry *registry,
        const struct sheaf_principal *who, const char *name,
        struct sheaf_reg_dataset **ret_dataset)
{
        struct sheaf_reg_dataset *ds, *found = NULL;
        bool ambiguous = false;
        uid_t uid = 0;
        int given = split_owner(name, &uid, &name);

        if (given < 0)
                return given;
        TAILQ_FOREACH (ds, &registry->datasets, link) {
                if (strcmp(ds->record->name, name) ||
                        !sheaf_registry_may_read(ds, who))
                        continue;
                if (given && ds->record->owner_uid != uid)
                        continue;
                if (!given && ds->record->owner_uid == who->uid &&
                        !who->grant) {
                        *ret_dataset = ds; /* one's own come first */
                        return 0;
                }
                ambiguous = found != NULL;
                found = ds;
        }
        if (!found)
                return -ENOENT;
        if (ambiguous)
                return -ENOTUNIQ;
        *ret_dataset = found;
        return 0;
}

/* ---- making ---- */

/* Printable, no leading '-', '~' or '/', no empty or dotted component. */
static bool name_valid(const char *name)
{
        size_t len = strlen(name);

        if (!len || len > NAME_MAX_ || strchr("-~/.", name[0]) ||
                name[len - 1] == '/' || strstr(name, "//") ||
                strstr(name, "/."))
                return false;
        for (size_t i = 0; i < len; i++)
                if ((unsigned char)name[i] <= ' ' || name[i] == 0x7f)
                        return false;
        return true;
}

static int set_bytes(ProtobufCBinaryData *to, const void *data, size_t len)
{
        uint8_t *copy = malloc(len + 1);

        if (!copy)
                return -ENOMEM;
        memcpy(copy, data, len);
        copy[len] = 0;
        free(to->data);
        to->data = copy;
        to->len = len;
        return 0;
}

static SheafRecord__Dataset *record_new(const struct sheaf_principal *owner,
        const char *name, const char *origin_path, bool follow)
{
        SheafRecord__Dataset *record = malloc(sizeof(*record));

        if (!record)
                return NULL;
        sheaf_record__dataset__init(record);
        record->owner_uid = owner->uid;
        record->owner_gid = owner->gid;
        record->follow = follow;
        record->created_ns = (uint64_t)sheaf_wall_ns();
        record->name = strdup(name);
        record->owner_group = sheaf_new(uint32_t, owner->group_count + 1);
        if (!record->name || !record->owner_group ||
                set_bytes(&record->origin, origin_path, strlen(origin_path))) {
                sheaf_record__dataset__free_unpacked(record, NULL);
                return NULL;
        }
        for (size_t i = 0; i < owner->group_count; i++)
                record->owner_group[record->n_owner_group++] = owner->groups[i];
        return record;
}

int sheaf_registry_create(struct sheaf_registry *registry,
        const struct sheaf_principal *owner, const char *name,
        const char *origin_path, int origin_fd, bool follow,
        struct sheaf_reg_dataset **ret_dataset)
{
        struct sheaf_reg_dataset *ds;
        SheafRecord__Dataset *record;
        uint32_t count = 0;
        int rc;

        if (!name_valid(name))
                return -EINVAL;
        TAILQ_FOREACH (ds, &registry->datasets, link) {
                if (ds->record->owner_uid != owner->uid)
                        continue;
                if (strcmp(ds->record->name, name) == 0)
                        return -EEXIST;
                count++;
        }
        /* A name that was removed counts while somebody still reads it. */
        TAILQ_FOREACH (ds, &registry->leaving, link)
                count += ds->record->owner_uid == owner->uid;
        if (count >= registry->user_datasets)
                return -EDQUOT;
        record = record_new(owner, name, origin_path, follow);
        if (!record)
                return -ENOMEM;
        rc = sheaf_store_next(registry->store, "dataset", &record->id);
        ds = rc ? NULL : dataset_new(registry, record);
        if (!ds) {
                sheaf_record__dataset__free_unpacked(record, NULL);
                return rc ? rc : -ENOMEM;
        }
        rc = sheaf_registry_present(ds, origin_path, origin_fd);
        if (rc) {
                TAILQ_REMOVE(&registry->datasets, ds, link);
                sheaf_registry_free_dataset(ds);
                return rc;
        }
        *ret_dataset = ds;
        return 0;
}

void sheaf_registry_forget(struct sheaf_reg_dataset *dataset)
{
        struct sheaf_registry *registry = dataset->registry;

        /* Two removals, or one beside an add that is given up. */
        if (dataset->removed)
                return;
        dataset->removed = true;
        TAILQ_REMOVE(&registry->datasets, dataset, link);
        TAILQ_INSERT_TAIL(&registry->leaving, dataset, link);
        sheaf_registry_detach(dataset);
        /* Lodgings go in the sweep, when no handle uses them any more. */
}

void sheaf_registry_free_dataset(struct sheaf_reg_dataset *ds)
{
        struct sheaf_reg_version *version;

        sheaf_registry_detach(ds);
        while ((version = TAILQ_FIRST(&ds->versions))) {
                TAILQ_REMOVE(&ds->versions, version, link);
                sheaf_version_close(version->fetch.stored);
                sheaf_listing_block_clear(&version->block);
                free(version);
        }
        sheaf_record__dataset__free_unpacked(ds->record, NULL);
        free(ds->path_before);
        free(ds);
}

int sheaf_registry_vacant(struct sheaf_reg_dataset *dataset)
{
        struct sheaf_reg_version *v;

        TAILQ_FOREACH (v, &dataset->versions, link)
                if (v->handles)
                        return -EBUSY;
        return sheaf_registry_evacuate(dataset) ? 0 : -EAGAIN;
}

/* ---- domains ---- */

struct sheaf_domain *sheaf_registry_domains(struct sheaf_registry *registry)
{
        return LIST_FIRST(&registry->domains);
}

struct sheaf_domain *sheaf_registry_domain_of(
        struct sheaf_registry *registry, const struct sheaf_arena *arena)
{
        struct sheaf_domain *domain;

        LIST_FOREACH (domain, &registry->domains, link)
                if (domain->arena == arena)
                        return domain;
        return NULL;
}
