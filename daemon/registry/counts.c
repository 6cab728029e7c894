/* SPDX-License-Identifier: Apache-2.0 */
/* What datasets counted, kept beyond them.
 *
 *  1 what a reader counted goes to its dataset before the reader goes, what a
 *    dataset counted to a sum before the dataset goes: no total ever falls
 *  2 a sum is of datasets with the same owner and sharing, and seen by whom
 *    these were seen by: it tells nobody what another had
 *  3 whoever is told of all, however long it takes, is told of each count once
 *
 * Threads: loop thread. */
#include "daemon/registry/internal.h"

#define WORDS (sizeof(struct sheaf_reg_counts) / sizeof(uint64_t))

static_assert(sizeof(struct sheaf_reg_counts) % sizeof(uint64_t) == 0,
        "counts are words, to be added as such");

/* Counts of removed datasets. */
struct sheaf_kept_counts {
        LIST_ENTRY(sheaf_kept_counts) link;
        uint32_t owner_uid, share_kind, share_gid;
        struct sheaf_reg_counts counts;
};

static void add(
        struct sheaf_reg_counts *to, const struct sheaf_reg_counts *from)
{
        uint64_t *sum = (uint64_t *)to;
        const uint64_t *words = (const uint64_t *)from;

        for (size_t i = 0; i < WORDS; i++)
                sum[i] += words[i];
}

static void take(
        struct sheaf_reg_counts *from, const struct sheaf_reg_counts *what)
{
        uint64_t *left = (uint64_t *)from;
        const uint64_t *words = (const uint64_t *)what;

        for (size_t i = 0; i < WORDS; i++)
                left[i] -= SHEAF_MIN(left[i], words[i]);
}

static void add_origin(
        struct sheaf_reg_counts *to, const struct sheaf_origin *origin)
{
        struct sheaf_origin_stats stats;

        sheaf_origin_stats(origin, &stats);
        to->timeouts += stats.timeouts;
        to->reader_starts += stats.starts;
        to->readers_abandoned += stats.abandoned;
        to->read_ns += stats.read_ns_total;
}

void sheaf_registry_keep_origin(
        struct sheaf_reg_dataset *dataset, const struct sheaf_origin *origin)
{
        add_origin(&dataset->counts, origin);
}

void sheaf_registry_counts(const struct sheaf_reg_dataset *dataset,
        struct sheaf_reg_counts *ret_counts)
{
        *ret_counts = dataset->counts;
        if (dataset->origin)
                add_origin(ret_counts, dataset->origin);
}

int sheaf_registry_keep_counts(struct sheaf_reg_dataset *dataset)
{
        const SheafRecord__Dataset *record = dataset->record;
        struct sheaf_registry *registry = dataset->registry;
        struct sheaf_reg_counts counts;
        struct sheaf_kept_counts *kept;

        LIST_FOREACH (kept, &registry->kept_counts, link)
                if (kept->owner_uid == record->owner_uid &&
                        kept->share_kind == record->share_kind &&
                        kept->share_gid == record->share_gid)
                        break;
        if (!kept) {
                kept = sheaf_new(struct sheaf_kept_counts, 1);
                if (!kept)
                        return -ENOMEM;
                kept->owner_uid = record->owner_uid;
                kept->share_kind = record->share_kind;
                kept->share_gid = record->share_gid;
                LIST_INSERT_HEAD(&registry->kept_counts, kept, link);
        }
        sheaf_registry_counts(dataset, &counts);
        add(&kept->counts, &counts);
        return 0;
}

void sheaf_registry_tell(
        struct sheaf_registry *registry, struct sheaf_reg_telling *telling)
{
        LIST_INSERT_HEAD(&registry->tellings, telling, link);
}

void sheaf_registry_told(struct sheaf_reg_telling *telling)
{
        LIST_REMOVE(telling, link);
}

void sheaf_registry_left(struct sheaf_reg_dataset *dataset)
{
        struct sheaf_reg_telling *telling;
        struct sheaf_reg_counts counts;

        if (dataset->left)
                return; /* two removals at once */
        dataset->left = true;
        sheaf_registry_counts(dataset, &counts);
        LIST_FOREACH (telling, &dataset->registry->tellings, link)
                if (dataset->record->id <= telling->last &&
                        sheaf_registry_may_read(dataset, telling->who))
                        add(&telling->twice, &counts);
}

bool sheaf_registry_removed_counts(const struct sheaf_registry *registry,
        const struct sheaf_reg_telling *telling,
        struct sheaf_reg_counts *ret_counts)
{
        const struct sheaf_principal *who = telling->who;
        struct sheaf_reg_counts counts;
        struct sheaf_kept_counts *kept;
        struct sheaf_reg_dataset *ds;
        bool any = false;

        memset(ret_counts, 0, sizeof(*ret_counts));
        /* A grant names datasets, and ends with them. */
        if (who->grant)
                return false;
        LIST_FOREACH (kept, &registry->kept_counts, link) {
                if (!sheaf_registry_shared_with(kept->owner_uid,
                            kept->share_kind, kept->share_gid, who))
                        continue;
                add(ret_counts, &kept->counts);
                any = true;
        }
        TAILQ_FOREACH (ds, &registry->leaving, link) {
                if (!sheaf_registry_may_read(ds, who))
                        continue;
                sheaf_registry_counts(ds, &counts);
                add(ret_counts, &counts);
                any = true;
        }
        take(ret_counts, &telling->twice);
        return any;
}

void sheaf_registry_drop_counts(struct sheaf_registry *registry)
{
        struct sheaf_kept_counts *kept;

        while ((kept = LIST_FIRST(&registry->kept_counts))) {
                LIST_REMOVE(kept, link);
                free(kept);
        }
}

static uint64_t chunks_of(const struct sheaf_reg_dataset *ds)
{
        uint64_t sum = 0;

        for (size_t i = 0; i < ds->record->n_version; i++)
                sum += ds->record->version[i]->chunks;
        return sum;
}

void sheaf_registry_chunks(const struct sheaf_registry *registry, uid_t owner,
        uint64_t *ret_mine, uint64_t *ret_all)
{
        const struct sheaf_dataset_list *const lists[] = { &registry->datasets,
                &registry->leaving };
        const struct sheaf_reg_dataset *ds;

        *ret_mine = *ret_all = 0;
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(lists); i++)
                TAILQ_FOREACH (ds, lists[i], link) {
                        uint64_t chunks = chunks_of(ds);

                        *ret_all += chunks;
                        if (ds->record->owner_uid == owner)
                                *ret_mine += chunks;
                }
}
