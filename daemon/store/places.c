/* SPDX-License-Identifier: Apache-2.0 */
/* Digest -> place.
 *
 *  1 an answer comes from the pending batch, else from the batch that is
 *    being committed, else from the catalog; a removal there is an answer
 *  2 a place counts only while its container has that generation
 *  3 one commit at a time runs on the pool, and none beside a change of a
 *    record (records.c); the batch it works on is not
 *    changed until it is done */
#include "daemon/store/private.h"

#define BAD_SLOTS       16384 /* at most half are taken */
#define COMMIT_AGAIN_NS (2 * SHEAF_NS_PER_SEC)

struct commit {
        struct sheaf_disk_io io;
        struct sheaf_store *store;
        struct sheaf_pending_item *items;
        struct sheaf_catalog_segment *segments;
        size_t segment_count;
        int tries;
};

static size_t bad_slot(const struct sheaf_place *place)
{
        uint64_t mixed = (place->offset_bytes / SHEAF_DISK_PACK +
                                 ((uint64_t)place->container << 20)) *
                         UINT64_C(0x9e3779b97f4a7c15);

        return mixed >> 50; /* BAD_SLOTS is 2^14 */
}

static bool is_bad(
        const struct sheaf_store *store, const struct sheaf_place *place)
{
        if (!store->bad_count)
                return false;
        for (size_t i = bad_slot(place);; i = (i + 1) % BAD_SLOTS) {
                if (!sheaf_place_set(&store->bad[i]))
                        return false;
                if (!memcmp(&store->bad[i], place, sizeof(*place)))
                        return true;
        }
}

bool sheaf_places_bad(
        struct sheaf_store *store, const struct sheaf_place *place)
{
        size_t i = bad_slot(place);

        if (is_bad(store, place))
                return false;
        if (!store->bad)
                store->bad = sheaf_new(struct sheaf_place, BAD_SLOTS);
        if (!store->bad || store->bad_count == BAD_SLOTS / 2)
                return true; /* each further read of it finds it again */
        while (sheaf_place_set(&store->bad[i]))
                i = (i + 1) % BAD_SLOTS;
        store->bad[i] = *place;
        store->bad_count++;
        return true;
}

bool sheaf_places_usable(
        const struct sheaf_store *store, const struct sheaf_place *place)
{
        return sheaf_places_alive(store, place) && !is_bad(store, place);
}

bool sheaf_places_alive(
        const struct sheaf_store *store, const struct sheaf_place *place)
{
        if (sheaf_place_plain(place)) {
                const struct sheaf_plain *plain =
                        sheaf_plain_find(store, sheaf_place_node(place));
                uint64_t index = place->offset_bytes >> SHEAF_PLAIN_GEN_BITS;

                return plain &&
                       plain->generation ==
                               (place->offset_bytes & SHEAF_PLAIN_GEN_MASK) &&
                       index < plain->chunk_count &&
                       sheaf_digest_known(&plain->digests[index]);
        }

        const struct sheaf_segment *segment =
                sheaf_segment_at(store, place->container);

        return segment && segment->generation == place->generation &&
               segment->state >= SHEAF_SEGMENT_OPEN &&
               place->offset_bytes % SHEAF_DISK_PACK == 0 &&
               place->offset_bytes < store->segment_bytes &&
               /* What a cut took is not claimed; one page of a segment that
                * the catalog lists was read, and all of it is durable. */
               (segment->cataloged || place->offset_bytes < segment->end_bytes);
}

int sheaf_places_find(struct sheaf_store *store,
        const struct sheaf_digest *digest, struct sheaf_place *ret_place)
{
        const struct sheaf_place *at =
                sheaf_pending_find(&store->pending, digest);
        struct sheaf_place place;

        if (!at)
                at = sheaf_pending_find(&store->committing, digest);
        if (at) {
                place = *at;
        } else {
                int rc = sheaf_catalog_find(store->catalog, digest, &place);

                if (rc)
                        return -ENOENT;
        }
        if (!sheaf_place_set(&place) || !sheaf_places_usable(store, &place))
                return -ENOENT;
        *ret_place = place;
        return 0;
}

void sheaf_places_note(struct sheaf_store *store,
        const struct sheaf_digest *digest, const struct sheaf_place *place)
{
        /* Without memory the place is only not shared with other versions. */
        if (sheaf_pending_put(&store->pending, digest, place))
                return;
        if (store->pending.count >= SHEAF_PENDING_BATCH)
                sheaf_places_commit(store, false);
}

void sheaf_places_forget(struct sheaf_store *store,
        const struct sheaf_digest *digest, const struct sheaf_place *place)
{
        static const struct sheaf_place none;
        struct sheaf_place now;

        if (sheaf_places_find(store, digest, &now) ||
                memcmp(&now, place, sizeof(now)))
                return;
        sheaf_places_note(store, digest, &none);
}

/* pool */
static int commit_work(struct sheaf_disk_io *io)
{
        struct commit *commit = (struct commit *)io;
        struct sheaf_store *store = commit->store;

        if (!commit->items) {
                int rc = sheaf_pending_sorted(
                        &store->committing, &commit->items);

                if (rc)
                        return rc;
        }
        return sheaf_catalog_apply(store->catalog, commit->items,
                store->committing.count, commit->segments,
                commit->segment_count);
}

static void commit_failed(struct sheaf_store *store, int rc)
{
        /* Back into the pending batch, older ones under newer ones. */
        for (size_t i = 0; i < store->committing.slot_count; i++) {
                const struct sheaf_pending_item *item =
                        &store->committing.slots[i];

                if (sheaf_digest_known(&item->digest) &&
                        !sheaf_pending_find(&store->pending, &item->digest) &&
                        sheaf_pending_put(
                                &store->pending, &item->digest, &item->place))
                        break;
        }
        store->commit_failed_ns = sheaf_now_ns();
        (void)sheaf_space_failed(store, rc);
}

static void commit_done(struct sheaf_disk_io *io, int rc)
{
        struct commit *commit = (struct commit *)io;
        struct sheaf_store *store = commit->store;

        if (rc == -EOVERFLOW && commit->tries++ < 8 &&
                !sheaf_catalog_grow(store->catalog)) {
                sheaf_disk_submit(store->disk, io);
                return;
        }
        if (rc)
                commit_failed(store, rc);
        for (size_t i = 0; !rc && i < commit->segment_count; i++) {
                struct sheaf_segment *segment =
                        sheaf_segment_at(store, commit->segments[i].number);

                if (!segment ||
                        segment->generation != commit->segments[i].generation)
                        continue;
                segment->cataloged = true;
                free(sheaf_steal(&segment->entries));
                segment->entry_cap = 0;
        }
        sheaf_pending_clear(&store->committing);
        free(commit->items);
        free(commit->segments);
        free(commit);
        store->commit_running = false;
        sheaf_records_next(store);
        sheaf_space_meta(store);
        sheaf_space_enforce(store);
}

/* Sealed and durable segments whose records all are in this batch or in
 * earlier ones. */
static int collect_segments(struct sheaf_store *store, struct commit *commit)
{
        commit->segments =
                sheaf_new(struct sheaf_catalog_segment, store->segment_top + 1);
        if (!commit->segments)
                return -ENOMEM;
        for (uint32_t n = 1; n <= store->segment_top; n++) {
                const struct sheaf_segment *s = sheaf_segment_at(store, n);

                if (!s || s->cataloged || !s->synced ||
                        s->state != SHEAF_SEGMENT_SEALED)
                        continue;
                commit->segments[commit->segment_count++] =
                        (struct sheaf_catalog_segment){
                                .number = s->number,
                                .generation = s->generation,
                                .group = s->group,
                                .payload_bytes = s->payload_bytes,
                                .records = s->records,
                                .unchecked = s->unchecked,
                        };
        }
        return 0;
}

void sheaf_places_commit(struct sheaf_store *store, bool force)
{
        struct commit *commit;

        if (store->commit_running || store->records.running ||
                !store->pending.count)
                return;
        if (!force && store->pending.count < SHEAF_PENDING_BATCH)
                return;
        /* What failed just now is not tried at each turn. */
        if (!store->closing && store->commit_failed_ns &&
                sheaf_now_ns() - store->commit_failed_ns < COMMIT_AGAIN_NS)
                return;
        commit = sheaf_new(struct commit, 1);
        if (!commit || collect_segments(store, commit)) {
                free(commit);
                return;
        }
        commit->io.op = SHEAF_DISK_WORK;
        commit->io.work = commit_work;
        commit->io.done = commit_done;
        commit->store = store;
        store->committing = store->pending;
        store->pending = (struct sheaf_pending){ 0 };
        store->commit_running = true;
        sheaf_disk_submit(store->disk, &commit->io);
}
