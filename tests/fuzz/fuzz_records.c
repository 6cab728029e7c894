/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the catalog's record of a dataset, with which a registry
 * starts, or of a grant.
 *
 *  1 a start does not fail for a record; message.h holds for what decodes
 *  2 a dataset that is there has the id of its key, a name, a path as its
 *    origin, and versions with distinct uuids
 *  3 its owner finds it by its name; saved again it is the same */
#include "daemon/registry/internal.h"
#include "daemon/log.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/message.h"

static uv_loop_t loop;
static struct sheaf_store *store;
static struct sheaf_arena_pool *pool;
static struct sheaf_fetcher *fetcher;

static void on_extent(void *arg, struct sheaf_arena *arena, uint32_t extent)
{
        (void)arg;
        (void)arena;
        (void)extent;
}

static void end(void)
{
        sheaf_store_close(store);
}

static void setup(void)
{
        struct sheaf_store_config store_config = { .loop = &loop,
                .bytes_max = 64 * SHEAF_MIB };
        struct sheaf_arena_config arena_config = { .bytes_max = 32 * SHEAF_MIB,
                .extent_new = on_extent,
                .extent_dropped = on_extent };
        struct sheaf_fetcher_config fetcher_config = { .loop = &loop };

        if (store)
                return;
        sheaf_log_set_level((enum sheaf_log_level) - 1); /* none */
        (void)fuzz_dir();
        fuzz_must(!uv_loop_init(&loop));
        store_config.dir = fuzz_dir_path;
        fuzz_must(!sheaf_store_open(&store_config, &store));
        fuzz_must(!sheaf_arena_pool_new(&arena_config, &pool));
        fetcher_config.store = store;
        fuzz_must(!sheaf_fetcher_new(&fetcher_config, &fetcher));
        atexit(end);
}

static void on_opened(struct sheaf_opening *opening, int rc)
{
        fuzz_must(rc < 0); /* there is no listing */
        opening->version = NULL;
}

/* Of versions that a record names no file exists. */
static void open_newest(struct sheaf_reg_dataset *ds)
{
        struct sheaf_opening opening = { .done = on_opened };

        opening.version = sheaf_registry_version(ds, NULL);
        if (!opening.version)
                return;
        sheaf_registry_open(&opening);
        while (opening.version)
                uv_run(&loop, UV_RUN_ONCE);
}

static void check_versions(struct sheaf_reg_dataset *ds)
{
        struct sheaf_reg_version *v;

        TAILQ_FOREACH (v, &ds->versions, link) {
                fuzz_must(v->record->uuid.len == 16);
                fuzz_must(
                        sheaf_registry_version(ds, v->record->uuid.data) == v);
        }
}

static void check_dataset(struct sheaf_registry *registry,
        struct sheaf_reg_dataset *ds, const char *key)
{
        struct sheaf_principal owner = { .uid = ds->record->owner_uid };
        struct sheaf_reg_dataset *found = NULL;
        char text[64], again[64];

        snprintf(again, sizeof(again), "dataset/%016llx",
                (unsigned long long)ds->record->id);
        fuzz_must(!strcmp(again, key));
        fuzz_must(!sheaf_registry_find(
                registry, &owner, ds->record->name, &found));
        fuzz_must(found == ds && ds->record->name[0]);
        fuzz_must(strlen((const char *)ds->record->origin.data) ==
                  ds->record->origin.len);
        sheaf_registry_share_text(ds, text, sizeof(text));
        check_versions(ds);
        open_newest(ds);
        fuzz_must(!sheaf_registry_save(ds));
}

static size_t start(const char *key)
{
        struct sheaf_registry_config config = { .loop = &loop,
                .store = store,
                .pool = pool,
                .fetcher = fetcher,
                .reader_path = "/nowhere",
                .deadline_ns = SHEAF_NS_PER_SEC };
        struct sheaf_registry *registry;
        struct sheaf_reg_dataset *ds;
        size_t count = 0;

        fuzz_must(!sheaf_registry_new(&config, &registry));
        for (ds = sheaf_registry_first(registry); ds;
                ds = TAILQ_NEXT(ds, link), count++)
                check_dataset(registry, ds, key);
        sheaf_registry_free(registry);
        uv_run(&loop, UV_RUN_NOWAIT);
        fuzz_must(count <= 1);
        return count;
}

static void dataset(const uint8_t *data, size_t size, bool any_key)
{
        SheafRecord__Dataset *record =
                sheaf_record__dataset__unpack(NULL, size, data);
        size_t count, len = 0, known_len = 0;
        char key[64];

        snprintf(key, sizeof(key), "dataset/%016llx",
                (unsigned long long)(record && !any_key ? record->id : 7));
        if (record) {
                len = sheaf_record__dataset__get_packed_size(record);
                fuzz_strip(&record->base);
                known_len = sheaf_record__dataset__get_packed_size(record);
                fuzz_message(&record->base);
        }
        fuzz_must(!sheaf_store_put(store, key, data, size));
        count = start(key);
        fuzz_must(record || !count);
        /* As it was saved; but protobuf-c cannot save every field that it
         * does not know. */
        fuzz_must(start(key) == count || len != known_len);
        fuzz_must(!sheaf_store_del(store, key));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        SheafRecord__Grant *grant;

        setup();
        if (!size)
                return 0;
        if (*data & 2) {
                grant = sheaf_record__grant__unpack(NULL, size - 1, data + 1);
                if (grant)
                        fuzz_message(&grant->base);
                return 0;
        }
        dataset(data + 1, size - 1, *data & 1);
        return 0;
}
