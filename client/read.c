/* SPDX-License-Identifier: Apache-2.0 */
/* Copying out.
 *
 *  1 a chunk is pinned while it is copied and no longer; such pins have a
 *    budget of their own, beside the grant
 *  2 what eviction, or that budget, refused SHEAF_VIEW_TRIES times is asked for
 * as a copy, so a read ends however small the arena is
 *
 * Threads: any. */
#include "client/read.h"

#include "client/fetch.h"
#include "proto/io.h"

int sheaf_map_wait(struct sheaf_dataset *dataset, unsigned int flags,
        int64_t deadline_ns, struct sheaf_map **ret_map)
{
        struct sheaf_session *session = dataset->session;
        struct sheaf_map *map =
                atomic_load_explicit(&dataset->map, memory_order_acquire);
        int rc;

        if (map) {
                *ret_map = map;
                return 0;
        }
        if (!(flags & SHEAF_VIEW_WAIT))
                return -EAGAIN;
        pthread_mutex_lock(&session->lock);
        rc = sheaf_session_wait_locked(session, dataset, deadline_ns);
        if (!rc)
                *ret_map = atomic_load_explicit(
                        &dataset->map, memory_order_acquire);
        pthread_mutex_unlock(&session->lock);
        return rc;
}

int sheaf_fetch_window(struct sheaf_dataset *dataset, const uint64_t *items,
        size_t n, int64_t deadline_ns)
{
        int item_rc[SHEAF_FETCH_WINDOW];
        int rc = sheaf_fetch(dataset, items, n, deadline_ns, item_rc);

        for (size_t i = 0; !rc && i < n; i++)
                if (item_rc[i] != -ENOBUFS)
                        rc = item_rc[i];
        for (size_t i = 0; !rc && i < n; i++)
                rc = item_rc[i];
        return rc;
}

/* A window of a read: which of its chunks are still to be copied. */
struct window {
        struct sheaf_dataset *dataset;
        const struct sheaf_listing_entry *file;
        uint32_t entry;
        uint64_t offset_bytes, len_bytes; /* of the whole read */
        uint8_t *dst;
        uint64_t chunk[SHEAF_FETCH_WINDOW];
        size_t left;
};

/* Where chunk @chunk goes and which part of it. */
static uint8_t *place(const struct window *w, uint64_t chunk,
        uint64_t *ret_skip_bytes, uint64_t *ret_len_bytes)
{
        uint64_t begin = chunk * SHEAF_CHUNK_BYTES_MAX;
        uint64_t from = SHEAF_MAX(begin, w->offset_bytes);
        uint64_t to = SHEAF_MIN(
                begin + SHEAF_CHUNK_BYTES_MAX, w->offset_bytes + w->len_bytes);

        *ret_skip_bytes = from - begin;
        *ret_len_bytes = to - from;
        return w->dst + (from - w->offset_bytes);
}

static void copy_resident(struct window *w, struct sheaf_map *map, bool count)
{
        size_t left = 0;

        for (size_t i = 0; i < w->left; i++) {
                uint64_t chunk = w->chunk[i], skip, len;
                uint8_t *dst = place(w, chunk, &skip, &len);
                struct sheaf_pin pin;
                int rc = sheaf_map_pin(map, w->file->first_chunk + chunk,
                        sheaf_chunk_len(w->file->size_bytes, chunk),
                        SHEAF_PIN_TRANSIENT, &pin);

                if (rc) {
                        w->chunk[left++] = chunk;
                        continue;
                }
                memcpy(dst, pin.bytes + skip, len);
                sheaf_unpin(&map->attach->pinner, &pin);
                if (count) {
                        sheaf_pin_count(map->meter, hits, 1);
                        sheaf_pin_count(map->meter, hit_bytes, len);
                }
        }
        w->left = left;
}

static void items_of(const struct window *w, uint64_t items[SHEAF_FETCH_WINDOW])
{
        for (size_t i = 0; i < w->left; i++)
                items[i] = sheaf_fetch_item(w->entry, w->chunk[i]);
}

static int copy_sent(struct window *w, int64_t deadline_ns)
{
        uint64_t items[SHEAF_FETCH_WINDOW], at = 0;
        sheaf_autofd int fd = -1;
        int rc;

        items_of(w, items);
        rc = sheaf_fetch_copy(w->dataset, items, w->left, deadline_ns, &fd);
        for (size_t i = 0; !rc && i < w->left; i++) {
                uint64_t skip, len;
                uint8_t *dst = place(w, w->chunk[i], &skip, &len);

                rc = sheaf_read_at(fd, dst, len, at + skip);
                if (rc == -ENODATA)
                        rc = -EPROTO;
                if (rc)
                        return sheaf_error_set(rc,
                                "a copy from sheafd is incomplete: %s",
                                strerror(-rc));
                at += sheaf_round_up(
                        sheaf_chunk_len(w->file->size_bytes, w->chunk[i]),
                        SHEAF_BLOCK_ALIGN);
        }
        return rc;
}

static int read_window(
        struct window *w, unsigned int flags, int64_t deadline_ns)
{
        uint64_t items[SHEAF_FETCH_WINDOW];

        for (int tries = 0;; tries++) {
                struct sheaf_map *map = NULL;
                int rc = sheaf_map_wait(w->dataset, flags, deadline_ns, &map);

                if (rc)
                        return rc;
                copy_resident(w, map, !tries && !(flags & SHEAF_VIEW_FETCHED));
                if (!w->left)
                        return 0;
                if (!(flags & SHEAF_VIEW_WAIT))
                        return -EAGAIN;
                if (tries == SHEAF_VIEW_TRIES)
                        return copy_sent(w, deadline_ns);
                items_of(w, items);
                rc = sheaf_fetch_window(
                        w->dataset, items, w->left, deadline_ns);
                if (rc == -ENOBUFS)
                        return copy_sent(w, deadline_ns);
                if (rc)
                        return rc;
        }
}

int sheaf_read_range(struct sheaf_dataset *dataset, uint32_t entry, void *dst,
        uint64_t len_bytes, uint64_t offset_bytes, unsigned int flags,
        int64_t deadline_ns)
{
        struct window w = {
                .dataset = dataset,
                .file = &dataset->listing.entries[entry],
                .entry = entry,
                .offset_bytes = offset_bytes,
                .len_bytes = len_bytes,
                .dst = dst,
        };
        uint64_t chunk = offset_bytes / SHEAF_CHUNK_BYTES_MAX;
        uint64_t end = sheaf_chunk_count(offset_bytes + len_bytes);

        while (chunk < end) {
                int rc;

                w.left = 0;
                while (chunk < end && w.left < SHEAF_FETCH_WINDOW)
                        w.chunk[w.left++] = chunk++;
                rc = read_window(&w, flags, deadline_ns);
                if (rc)
                        return rc;
        }
        return 0;
}

int sheaf_dataset_regular(const struct sheaf_dataset *dataset, uint32_t entry,
        const struct sheaf_listing_entry **ret_entry)
{
        if (entry >= dataset->listing.entry_count)
                return sheaf_error_set(-ERANGE, "dataset %s has no entry %u",
                        dataset->name, entry);
        if (!S_ISREG(dataset->listing.entries[entry].mode))
                return sheaf_error_set(-EISDIR,
                        "entry %u of dataset %s is no regular file", entry,
                        dataset->name);
        *ret_entry = &dataset->listing.entries[entry];
        return 0;
}

int64_t sheaf_dataset_read_entry(struct sheaf_dataset *dataset, uint32_t entry,
        void *buf, size_t len_bytes, uint64_t offset_bytes)
{
        const struct sheaf_listing_entry *e;
        uint64_t len;
        int rc;

        rc = sheaf_dataset_regular(dataset, entry, &e);
        if (rc)
                return rc;
        if (offset_bytes >= e->size_bytes)
                return 0;
        len = SHEAF_MIN(len_bytes, e->size_bytes - offset_bytes);
        rc = sheaf_read_range(dataset, entry, buf, len, offset_bytes,
                SHEAF_VIEW_WAIT, sheaf_session_deadline_ns(dataset->session));
        return rc ? rc : (int64_t)len;
}

int64_t sheaf_read(struct sheaf_dataset *dataset, uint64_t ordinal, void *buf,
        size_t len_bytes, uint64_t offset_bytes)
{
        if (ordinal >= dataset->listing.file_count)
                return sheaf_error_set(-ERANGE,
                        "dataset %s has %u files, there is no ordinal %llu",
                        dataset->name, dataset->listing.file_count,
                        (unsigned long long)ordinal);
        return sheaf_dataset_read_entry(dataset,
                dataset->listing.files[ordinal], buf, len_bytes, offset_bytes);
}
