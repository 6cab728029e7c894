/* SPDX-License-Identifier: Apache-2.0 */
/* Many files at once: one message for all misses of a batch, in parts where
 * they would not fit the grant or a message.
 *
 *  1 what is in memory is pinned before anything is fetched
 *  2 a file fails alone
 *
 * Threads: any. */
#include "client/fetch.h"
#include "client/read.h"

#define PART_BYTES_MIN (UINT64_C(16) << 20)

/* The misses of a part of the batch. */
struct part {
        struct sheaf_dataset *dataset;
        uint64_t *items;
        int *item_rc;
        size_t *file; /* position in the batch, by item */
        size_t n;
        uint64_t bytes, bytes_max;
};

static void part_free(struct part *part)
{
        free(part->items);
        free(part->item_rc);
        free(part->file);
}

static int part_init(struct part *part, struct sheaf_dataset *dataset)
{
        struct sheaf_map *map =
                atomic_load_explicit(&dataset->map, memory_order_acquire);

        *part = (struct part){
                .dataset = dataset,
                .items = sheaf_new(uint64_t, SHEAF_FETCH_ITEMS_MAX),
                .item_rc = sheaf_new(int, SHEAF_FETCH_ITEMS_MAX),
                .file = sheaf_new(size_t, SHEAF_FETCH_ITEMS_MAX),
                .bytes_max = PART_BYTES_MIN,
        };
        if (map)
                part->bytes_max = SHEAF_MAX(part->bytes_max,
                        atomic_load_explicit(&map->attach->pinner.grant_bytes,
                                memory_order_relaxed));
        if (part->items && part->item_rc && part->file)
                return 0;
        part_free(part);
        return sheaf_error_set(-ENOMEM, "no memory for a batch");
}

static bool part_full(const struct part *part)
{
        return part->n == SHEAF_FETCH_ITEMS_MAX ||
               part->bytes >= part->bytes_max;
}

/* Notes the missing chunks of a file, at least one so that it is looked at
 * again, and counts the others as hits. */
static void part_add(struct part *part, size_t position, uint32_t entry)
{
        const struct sheaf_listing *listing = &part->dataset->listing;
        const struct sheaf_listing_entry *e = &listing->entries[entry];
        struct sheaf_map *map =
                atomic_load_explicit(&part->dataset->map, memory_order_acquire);
        uint64_t n = sheaf_chunk_count(e->size_bytes);
        size_t before = part->n;

        for (uint64_t i = 0; i < n && part->n < SHEAF_FETCH_ITEMS_MAX; i++) {
                uint32_t len = sheaf_listing_chunk_len(listing, entry, i);

                if (map &&
                        atomic_load_explicit(&map->words[e->first_chunk + i],
                                memory_order_relaxed) &&
                        (i + 1 < n || part->n > before)) {
                        sheaf_pin_count(map->meter, hits, 1);
                        sheaf_pin_count(map->meter, hit_bytes, len);
                        continue;
                }
                part->items[part->n] = sheaf_fetch_item(entry, i);
                part->file[part->n++] = position;
                part->bytes += len;
        }
}

struct batch {
        struct sheaf_dataset *dataset;
        const uint64_t *ordinals;
        size_t n;
        struct sheaf_view *views;
        int *rc;
};

/* Pins what is in memory of files [@from, n) until the part is full. Returns
 * the position to go on from. */
static size_t gather(struct batch *batch, struct part *part, size_t from)
{
        const struct sheaf_listing *listing = &batch->dataset->listing;
        size_t i;

        part->n = 0;
        part->bytes = 0;
        for (i = from; i < batch->n && !part_full(part); i++) {
                uint64_t ordinal = batch->ordinals[i];

                if (ordinal >= listing->file_count) {
                        batch->rc[i] = sheaf_error_set(-ERANGE,
                                "dataset %s has %u files, there is no "
                                "ordinal %llu",
                                batch->dataset->name, listing->file_count,
                                (unsigned long long)ordinal);
                        continue;
                }
                batch->rc[i] = sheaf_dataset_view_entry(batch->dataset,
                        listing->files[ordinal], 0, UINT64_MAX, 0,
                        &batch->views[i]);
                if (batch->rc[i] == -EAGAIN)
                        part_add(part, i, listing->files[ordinal]);
        }
        return i;
}

/* Fetches the part's misses in one message and pins their files. */
static void fetch_part(struct batch *batch, struct part *part)
{
        int64_t deadline_ns =
                sheaf_session_deadline_ns(batch->dataset->session);
        int rc;

        if (!part->n)
                return;
        rc = sheaf_fetch(part->dataset, part->items, part->n, deadline_ns,
                part->item_rc);
        for (size_t i = 0; i < part->n; i++) {
                size_t at = part->file[i];

                if (part->item_rc[i] && part->item_rc[i] != -ENOBUFS)
                        batch->rc[at] = part->item_rc[i];
        }
        for (size_t i = 0; !rc && i < part->n; i++) {
                size_t at = part->file[i];
                uint64_t ordinal = batch->ordinals[at];

                if (batch->rc[at] != -EAGAIN)
                        continue;
                batch->rc[at] = sheaf_dataset_view_entry(batch->dataset,
                        batch->dataset->listing.files[ordinal], 0, UINT64_MAX,
                        SHEAF_VIEW_WAIT | SHEAF_VIEW_FETCHED,
                        &batch->views[at]);
        }
}

static int64_t run(struct batch *batch, bool all)
{
        struct part part;
        int64_t viewed = 0;
        int rc = part_init(&part, batch->dataset);

        if (rc)
                return rc;
        for (size_t i = 0; i < batch->n; i++) {
                batch->views[i] = (struct sheaf_view){ 0 };
                batch->rc[i] = -ECANCELED;
        }
        for (size_t i = 0, from; i < batch->n && !rc;) {
                from = i;
                i = gather(batch, &part, from);
                fetch_part(batch, &part);
                for (size_t j = from; j < i; j++) {
                        viewed += !batch->rc[j];
                        if (batch->rc[j])
                                batch->views[j] = (struct sheaf_view){ 0 };
                        if (batch->rc[j] && all && !rc)
                                rc = batch->rc[j];
                }
        }
        part_free(&part);
        if (!rc)
                return viewed;
        for (size_t i = 0; i < batch->n; i++)
                sheaf_view_release(&batch->views[i]);
        return rc;
}

int64_t sheaf_view_batch(struct sheaf_dataset *dataset,
        const uint64_t *ordinals, size_t n, struct sheaf_view *ret_views,
        int *ret_rc)
{
        sheaf_autofree int *own_rc = NULL;
        struct batch batch = {
                .dataset = dataset,
                .ordinals = ordinals,
                .n = n,
                .views = ret_views,
                .rc = ret_rc,
        };

        if (!n)
                return 0;
        if (!ret_rc) {
                batch.rc = own_rc = sheaf_new(int, n);
                if (!own_rc)
                        return sheaf_error_set(
                                -ENOMEM, "no memory for a batch");
        }
        return run(&batch, !ret_rc);
}

int sheaf_prefetch(
        struct sheaf_dataset *dataset, const uint64_t *ordinals, size_t n)
{
        const struct sheaf_listing *listing = &dataset->listing;
        struct sheaf_map *map =
                atomic_load_explicit(&dataset->map, memory_order_acquire);
        uint64_t items[256];
        size_t count = 0;

        for (size_t i = 0; i < n; i++) {
                const struct sheaf_listing_entry *e;
                uint64_t chunks;

                if (ordinals[i] >= listing->file_count)
                        return sheaf_error_set(-ERANGE,
                                "dataset %s has %u files, there is no "
                                "ordinal %llu",
                                dataset->name, listing->file_count,
                                (unsigned long long)ordinals[i]);
                e = &listing->entries[listing->files[ordinals[i]]];
                chunks = sheaf_chunk_count(e->size_bytes);
                for (uint64_t c = 0; c < chunks; c++) {
                        if (map && atomic_load_explicit(
                                           &map->words[e->first_chunk + c],
                                           memory_order_relaxed))
                                continue;
                        items[count++] = sheaf_fetch_item(
                                listing->files[ordinals[i]], c);
                        if (count < SHEAF_ARRAY_LEN(items))
                                continue;
                        if (sheaf_fetch_hint(dataset, items, count))
                                goto busy;
                        count = 0;
                }
        }
        if (!count || !sheaf_fetch_hint(dataset, items, count))
                return 0;
busy:
        return sheaf_error_set(-EAGAIN,
                "sheafd takes no hints at present; reads work as ever");
}
