/* SPDX-License-Identifier: Apache-2.0 */
/* Records: small values that must be durable before somebody is answered.
 *
 *  1 changes are made one after another, in the order in which they came:
 *    one begins when the one before it has ended, whatever became of it
 *  2 what waits for the disk runs on the pool, never beside a commit of
 *    places: the map grows on the loop thread while neither is under way
 *  3 numbers are taken from the catalog many at a time; those that a stop
 *    leaves over are never given
 *
 * Threads: loop thread, but for what is said to run on the pool. */
#include "daemon/store/private.h"

#define GROW_TRIES  8
#define NUMBERS     64
#define NUMBERS_FEW (NUMBERS / 2)

/* ---- changes ---- */

/* pool */
static int write_work(struct sheaf_disk_io *io)
{
        struct sheaf_records *records =
                (struct sheaf_records *)((char *)io -
                                         offsetof(struct sheaf_records, io));
        const struct sheaf_store_change *change = records->first;
        struct sheaf_store *store =
                (struct sheaf_store *)((char *)records -
                                       offsetof(struct sheaf_store, records));

        if (change->counter)
                return sheaf_catalog_take(store->catalog, change->counter->name,
                        NUMBERS, &change->counter->fresh);
        return sheaf_catalog_record(
                store->catalog, change->key, change->value, change->len_bytes);
}

static void change_ended(struct sheaf_store *store, int rc)
{
        struct sheaf_records *records = &store->records;
        struct sheaf_store_change *change = records->first;

        records->first = change->next;
        if (!records->first)
                records->last = &records->first;
        free(sheaf_steal(&change->value));
        change->done(change, rc);
        records->running = false;
}

static void write_done(struct sheaf_disk_io *io, int rc)
{
        struct sheaf_store *store =
                (struct sheaf_store *)((char *)io - offsetof(struct sheaf_store,
                                                            records.io));

        if (rc == -EOVERFLOW && store->records.tries++ < GROW_TRIES &&
                !sheaf_catalog_grow(store->catalog)) {
                sheaf_disk_submit(store->disk, io);
                return;
        }
        change_ended(store, rc);
        sheaf_records_next(store);
}

/* True: it is on its way to the disk. */
static bool change_begin(struct sheaf_store *store)
{
        struct sheaf_records *records = &store->records;
        struct sheaf_store_change *change = records->first;
        int rc;

        records->running = true;
        rc = change->begin ? change->begin(change) : 0;
        if (rc) {
                change_ended(store, rc == SHEAF_CHANGE_NONE ? 0 : rc);
                return false;
        }
        records->tries = 0;
        records->io = (struct sheaf_disk_io){
                .op = SHEAF_DISK_WORK, .work = write_work, .done = write_done
        };
        sheaf_disk_submit(store->disk, &records->io);
        return true;
}

void sheaf_records_next(struct sheaf_store *store)
{
        while (store->records.first && !store->records.running &&
                !store->commit_running)
                if (change_begin(store))
                        return;
}

void sheaf_store_change(
        struct sheaf_store *store, struct sheaf_store_change *change)
{
        struct sheaf_records *records = &store->records;

        change->next = NULL;
        if (!records->first)
                records->last = &records->first;
        *records->last = change;
        records->last = &change->next;
        sheaf_records_next(store);
}

void sheaf_store_settle(struct sheaf_store *store)
{
        while (store->records.first) {
                sheaf_records_next(store);
                sheaf_disk_drain(store->disk);
        }
}

int sheaf_store_change_value(
        struct sheaf_store_change *change, const char *key, size_t len_bytes)
{
        change->value = malloc(len_bytes + 1);
        if (!change->value)
                return -ENOMEM;
        change->len_bytes = len_bytes;
        snprintf(change->key, sizeof(change->key), "%s", key);
        return 0;
}

/* ---- numbers ---- */

static void numbers_done(struct sheaf_store_change *change, int rc)
{
        struct sheaf_counter *counter = change->counter;

        if (!rc) {
                counter->next[1] = counter->fresh;
                counter->end[1] = counter->fresh + NUMBERS;
        }
        counter->taking = false;
        free(change);
}

static void numbers_take(
        struct sheaf_store *store, struct sheaf_counter *counter)
{
        struct sheaf_store_change *change =
                sheaf_new(struct sheaf_store_change, 1);

        if (!change)
                return;
        change->counter = counter;
        change->done = numbers_done;
        counter->taking = true;
        sheaf_store_change(store, change);
}

static struct sheaf_counter *counter_of(
        struct sheaf_store *store, const char *name)
{
        struct sheaf_counter *counters = store->records.counter;

        for (size_t i = 0; i < SHEAF_COUNTERS_MAX; i++) {
                if (!*counters[i].name)
                        snprintf(counters[i].name, sizeof(counters[i].name),
                                "%s", name);
                if (!strcmp(counters[i].name, name))
                        return &counters[i];
        }
        return NULL;
}

static int numbers_now(struct sheaf_store *store, struct sheaf_counter *c)
{
        int rc = sheaf_catalog_next(
                store->catalog, c->name, NUMBERS, &c->next[0]);

        if (!rc)
                c->end[0] = c->next[0] + NUMBERS;
        return rc;
}

int sheaf_store_next(
        struct sheaf_store *store, const char *name, uint64_t *ret_value)
{
        struct sheaf_counter *c = counter_of(store, name);

        if (!c)
                return -ENOSPC;
        if (c->next[0] == c->end[0]) {
                c->next[0] = c->next[1];
                c->end[0] = c->end[1];
                c->next[1] = c->end[1];
        }
        if (c->next[0] == c->end[0]) {
                /* A disk that lags far behind. */
                int rc = numbers_now(store, c);

                if (rc)
                        return rc;
        }
        *ret_value = c->next[0]++;
        if (c->end[0] - c->next[0] < NUMBERS_FEW && !c->taking &&
                c->next[1] == c->end[1])
                numbers_take(store, c);
        return 0;
}

/* ---- at the start ---- */

void sheaf_store_reserve(struct sheaf_store *store, const char *name)
{
        struct sheaf_counter *c = counter_of(store, name);

        if (c && c->next[0] == c->end[0])
                (void)numbers_now(store, c); /* who asks for one tries again */
}

int sheaf_store_put(struct sheaf_store *store, const char *key,
        const void *value, size_t len_bytes)
{
        return sheaf_catalog_put(store->catalog, key, value, len_bytes);
}

int sheaf_store_del(struct sheaf_store *store, const char *key)
{
        return sheaf_catalog_del(store->catalog, key);
}

int sheaf_store_each(struct sheaf_store *store, const char *prefix,
        int (*each)(void *arg, const char *key, const void *value,
                size_t len_bytes),
        void *arg)
{
        return sheaf_catalog_each(store->catalog, prefix, each, arg);
}
