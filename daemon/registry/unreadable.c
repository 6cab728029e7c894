/* SPDX-License-Identifier: Apache-2.0 */
/* Records that a start could not read: of a newer release, or damaged. They
 * stay as they are, and so does all that no other record names, until somebody
 * who may gives them up.
 *
 * Threads: loop thread. */
#include "daemon/registry/internal.h"

#include "daemon/log.h"

struct sheaf_unreadable {
        LIST_ENTRY(sheaf_unreadable) link;
        char key[sizeof(((struct sheaf_store_change *)NULL)->key)];
};

/* Who waits until all are given up. */
struct giving_up {
        struct sheaf_registry *registry;
        sheaf_registry_done *done;
        void *arg;
        uint32_t under_way;
        int rc;
};

struct loss {
        struct sheaf_store_change change; /* first */
        struct giving_up *all;
};

int sheaf_unreadable_add(struct sheaf_registry *registry, const char *key)
{
        struct sheaf_unreadable *record = sheaf_new(struct sheaf_unreadable, 1);

        if (!record)
                return -ENOMEM;
        sheaf_log(SHEAF_LOG_ERROR, "dataset record unreadable", "key=%s", key);
        /* None of ours is that long: it is left alone. */
        if (strlen(key) >= sizeof(record->key)) {
                registry->versions_unreadable = true;
                free(record);
                return 0;
        }
        strcpy(record->key, key);
        LIST_INSERT_HEAD(&registry->unreadable, record, link);
        return 0;
}

bool sheaf_registry_unreadable(const struct sheaf_registry *registry)
{
        return registry->versions_unreadable ||
               !LIST_EMPTY(&registry->unreadable);
}

static void forget(struct sheaf_registry *registry, const char *key)
{
        struct sheaf_unreadable *record;

        LIST_FOREACH (record, &registry->unreadable, link) {
                if (strcmp(record->key, key) != 0)
                        continue;
                LIST_REMOVE(record, link);
                free(record);
                return;
        }
}

void sheaf_unreadable_free(struct sheaf_registry *registry)
{
        while (!LIST_EMPTY(&registry->unreadable))
                forget(registry, LIST_FIRST(&registry->unreadable)->key);
}

static void release(struct giving_up *all)
{
        if (--all->under_way)
                return;
        all->registry->giving_up--;
        all->done(all->arg, all->rc);
        free(all);
}

static void lost(struct sheaf_store_change *change, int rc)
{
        struct giving_up *all = ((struct loss *)change)->all;

        if (rc && rc != -ENOENT) {
                all->rc = rc;
        } else {
                sheaf_log(SHEAF_LOG_INFO, "dataset record given up", "key=%s",
                        change->key);
                forget(all->registry, change->key);
        }
        free(change);
        release(all);
}

int sheaf_registry_give_up(
        struct sheaf_registry *registry, sheaf_registry_done *done, void *arg)
{
        struct giving_up *all = sheaf_new(struct giving_up, 1);
        struct sheaf_unreadable *record, *next;

        if (!all)
                return -ENOMEM;
        *all = (struct giving_up){ registry, done, arg, .under_way = 1 };
        registry->giving_up++;
        for (record = LIST_FIRST(&registry->unreadable); record;
                record = next) {
                struct loss *loss = sheaf_new(struct loss, 1);

                /* One whose change ends at once goes. */
                next = LIST_NEXT(record, link);
                if (!loss) {
                        all->rc = -ENOMEM;
                        break;
                }
                loss->all = all;
                loss->change.done = lost;
                memcpy(loss->change.key, record->key, sizeof(record->key));
                all->under_way++;
                sheaf_store_change(registry->store, &loss->change);
        }
        release(all);
        return 0;
}
