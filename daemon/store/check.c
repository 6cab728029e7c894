/* SPDX-License-Identifier: Apache-2.0 */
/* The cleaning behind: what an unclean stop left unchecked is hashed, and
 * entries of dead places leave the catalog.
 *
 *  1 one container is checked at a time, on a pool thread, one a tick but for
 *    small ones; its records were found through checked headers, so only
 *    payloads are hashed
 *  2 an unchecked segment is not in the catalog: that is its durable mark,
 *    and it goes when the segment was hashed, given its summary and synced
 *  3 the sweep of the catalog takes a few thousand entries a tick, and only
 *    when dead ones may be half as many as the living */
#include "daemon/store/private.h"

#include <fcntl.h>

/* Records of a container that is checked so soon that the next follows. */
#define FEW 64

#define SWEEP_STEP  2048
#define SWEEP_SLACK (UINT64_C(64) << 10)

struct check {
        struct sheaf_disk_io io;
        struct sheaf_store *store;
        struct sheaf_segment *segment;
        struct sheaf_disk_entry *entries; /* a copy: the table may change */
        uint32_t count;
        bool *wrong;
        char name[32];
};

/* pool */
static int check_work(struct sheaf_disk_io *io)
{
        struct check *check = (struct check *)io;
        sheaf_autofree uint8_t *bytes = malloc(SHEAF_CHUNK_BYTES_MAX);
        sheaf_autofd int fd = sheaf_again(openat(check->store->dir_fd,
                check->name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));

        if (!bytes)
                return -ENOMEM;
        if (fd < 0)
                return -errno;
        for (uint32_t i = 0; i < check->count; i++) {
                const struct sheaf_disk_entry *entry = &check->entries[i];
                uint64_t at =
                        entry->offset_bytes + sizeof(struct sheaf_disk_record);
                struct sheaf_digest digest;
                int rc = sheaf_read_at(fd, bytes, entry->raw_bytes, at);

                if (rc && rc != -ENODATA)
                        return rc;
                sheaf_digest_of(bytes, entry->raw_bytes, &digest);
                check->wrong[i] =
                        rc || !sheaf_digest_equal(&digest, &entry->digest);
        }
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        return 0;
}

static void check_free(struct check *check)
{
        free(check->wrong);
        free(check->entries);
        free(check);
}

static void check_done(struct sheaf_disk_io *io, int rc)
{
        struct check *check = (struct check *)io;
        struct sheaf_store *store = check->store;
        struct sheaf_segment *segment = check->segment;
        bool more;

        for (uint32_t i = 0; !rc && i < check->count; i++) {
                const struct sheaf_disk_entry *entry = &check->entries[i];
                struct sheaf_place place = {
                        .container = segment->number,
                        .generation = segment->generation,
                        .offset_bytes = entry->offset_bytes,
                };

                if (!check->wrong[i] || !sheaf_places_usable(store, &place))
                        continue;
                store->stats.bad_payloads++;
                sheaf_store_drop_place(
                        store, &entry->digest, &place, entry->raw_bytes);
        }
        segment->busy--;
        segment->unchecked = false;
        store->check_running = false;
        if (rc && !segment->busy)
                sheaf_segment_unlink(store, segment);
        else if (!rc && segment->state == SHEAF_SEGMENT_SEALED &&
                 !store->closing)
                sheaf_segment_seal(store, segment);
        more = check->count <= FEW && !store->slow;
        check_free(check);
        if (more)
                sheaf_check_step(store);
}

static struct check *check_new(
        struct sheaf_store *store, struct sheaf_segment *segment)
{
        struct check *check = sheaf_new(struct check, 1);

        if (!check)
                return NULL;
        check->store = store;
        check->segment = segment;
        check->count = segment->records;
        check->wrong = sheaf_new(bool, check->count + 1);
        check->entries = sheaf_new(struct sheaf_disk_entry, check->count + 1);
        if (!check->wrong || !check->entries) {
                check_free(check);
                return NULL;
        }
        memcpy(check->entries, segment->entries,
                check->count * sizeof(*check->entries));
        sheaf_segment_name(segment->number, check->name);
        check->io.op = SHEAF_DISK_WORK;
        check->io.work = check_work;
        check->io.done = check_done;
        return check;
}

void sheaf_check_step(struct sheaf_store *store)
{
        if (store->check_running || store->closing)
                return;
        for (uint32_t n = 1; n <= store->segment_top; n++) {
                struct sheaf_segment *segment = sheaf_segment_at(store, n);
                struct check *check;

                if (!segment || !segment->unchecked || !segment->entries ||
                        segment->state != SHEAF_SEGMENT_SEALED)
                        continue;
                check = check_new(store, segment);
                if (!check)
                        return;
                segment->busy++;
                store->check_running = true;
                sheaf_disk_submit(store->disk, &check->io);
                return;
        }
        sheaf_plain_check_step(store);
}

void sheaf_catalog_sweep(struct sheaf_store *store)
{
        static const struct sheaf_place none;
        struct sheaf_pending_item *items;
        size_t n;

        /* Not while a batch is under way: its entries are newer. */
        if (store->commit_running || store->closing)
                return;
        if (!store->sweep_running) {
                if (sheaf_catalog_entries(store->catalog) <=
                        store->stats.chunks * 3 / 2 + SWEEP_SLACK)
                        return;
                store->sweep_running = true;
                memset(&store->sweep_after, 0, sizeof(store->sweep_after));
        }
        items = sheaf_new(struct sheaf_pending_item, SWEEP_STEP);
        if (!items)
                return;
        n = sheaf_catalog_scan(
                store->catalog, &store->sweep_after, items, SWEEP_STEP);
        for (size_t i = 0; i < n; i++) {
                if (!sheaf_places_usable(store, &items[i].place) &&
                        !sheaf_pending_find(&store->pending, &items[i].digest))
                        sheaf_places_note(store, &items[i].digest, &none);
        }
        if (n)
                store->sweep_after = items[n - 1].digest;
        if (n < SWEEP_STEP) {
                store->sweep_running = false;
                sheaf_places_commit(store, true);
        }
        free(items);
}
