/* SPDX-License-Identifier: Apache-2.0 */
/* Views: pinned ranges, and private copies where a pin cannot be had.
 *
 *  1 a hit makes no system call, takes no lock and allocates nothing (up to
 *    SHEAF_VIEW_INLINE chunks)
 *  2 a view's pins are all of one arena; when the connection changes while
 *    it is being made, it is begun again
 *  3 grant, or the budget of transient pins, is reserved before anything is
 *    published; over it, or when eviction wins SHEAF_VIEW_TRIES times, the
 *    bytes are copied
 *  4 on failure nothing stays pinned, charged or allocated
 *
 * Threads: any. */

#include "client/fetch.h"
#include "client/read.h"

#include <stdio.h>

/* A range of a file in chunks. */
struct span {
        struct sheaf_dataset *dataset;
        uint64_t offset_bytes, len_bytes;
        uint64_t size_bytes;  /* of the file */
        uint64_t first_chunk; /* of the file, in the table */
        uint64_t first, n;    /* chunks of the range */
        uint32_t entry;
};

static enum sheaf_pin_kind kind_of(unsigned int flags)
{
        return flags & SHEAF_VIEW_TRANSIENT ? SHEAF_PIN_TRANSIENT
                                            : SHEAF_PIN_HELD;
}

static struct sheaf_map *current_map(struct sheaf_dataset *dataset)
{
        return atomic_load_explicit(&dataset->map, memory_order_acquire);
}

static void span_init(struct span *span, struct sheaf_dataset *dataset,
        uint32_t entry, uint64_t offset_bytes, uint64_t len_bytes)
{
        const struct sheaf_listing_entry *e = &dataset->listing.entries[entry];
        uint64_t last = (offset_bytes + len_bytes - 1) / SHEAF_CHUNK_BYTES_MAX;

        *span = (struct span){
                .dataset = dataset,
                .offset_bytes = offset_bytes,
                .len_bytes = len_bytes,
                .size_bytes = e->size_bytes,
                .first_chunk = e->first_chunk,
                .first = offset_bytes / SHEAF_CHUNK_BYTES_MAX,
                .entry = entry,
        };
        span->n = last - span->first + 1;
}

/* Bytes of whole chunks, which is what a pin holds. */
static uint64_t span_chunk_bytes(const struct span *span)
{
        uint64_t end = (span->first + span->n) * SHEAF_CHUNK_BYTES_MAX;

        return SHEAF_MIN(end, span->size_bytes) -
               span->first * SHEAF_CHUNK_BYTES_MAX;
}

/* The part of chunk @i of the span that the range covers. */
static void span_piece(const struct span *span, uint64_t i,
        uint64_t *ret_skip_bytes, uint64_t *ret_len_bytes)
{
        uint64_t begin = (span->first + i) * SHEAF_CHUNK_BYTES_MAX;
        uint64_t from = SHEAF_MAX(begin, span->offset_bytes);
        uint64_t to = SHEAF_MIN(begin + SHEAF_CHUNK_BYTES_MAX,
                span->offset_bytes + span->len_bytes);

        *ret_skip_bytes = from - begin;
        *ret_len_bytes = to - from;
}

static struct iovec *pieces_of(struct sheaf_view *view)
{
        return (struct iovec *)view->pieces;
}

/* Room for pieces and pins; nothing is pinned yet. */
static int view_begin(
        struct sheaf_view *view, const struct span *span, bool pins)
{
        *view = (struct sheaf_view){
                .len_bytes = span->len_bytes,
                .dataset_ = span->dataset,
        };
        if (span->n <= SHEAF_VIEW_INLINE) {
                view->pieces = view->inline_pieces_;
                view->pins_ = view->inline_pins_;
        } else {
                size_t each =
                        sizeof(struct iovec) + (pins ? sizeof(void *) : 0);

                view->heap_ = calloc(span->n, each);
                if (!view->heap_)
                        return sheaf_error_set(-ENOMEM, "no memory for a view");
                view->pieces = view->heap_;
                view->pins_ = (void **)((struct iovec *)view->heap_ + span->n);
        }
        view->piece_count = span->n;
        return 0;
}

static void drop_pins(struct sheaf_view *view)
{
        struct sheaf_attach *attach = view->owner_;

        if (!attach)
                return;
        for (size_t i = 0; i < view->piece_count; i++) {
                if (view->pins_[i])
                        sheaf_attach_unpin(attach, view->pins_[i]);
                view->pins_[i] = NULL;
        }
        if (view->charged_bytes_)
                sheaf_attach_uncharge(
                        attach, view->brief_, view->charged_bytes_);
        view->charged_bytes_ = 0;
        view->owner_ = NULL;
}

void sheaf_view_release(struct sheaf_view *view)
{
        struct sheaf_attach *attach = view->owner_;

        if (SHEAF_LIKELY(attach && view->piece_count == 1)) {
                sheaf_attach_unpin(attach, view->inline_pins_[0]);
                if (view->charged_bytes_)
                        sheaf_attach_uncharge(
                                attach, view->brief_, view->charged_bytes_);
        } else if (attach) {
                drop_pins(view);
        }
        if (SHEAF_UNLIKELY(view->heap_ != NULL))
                free(view->heap_);
        view->owner_ = NULL;
        view->heap_ = NULL;
        view->pieces = NULL;
        view->piece_count = 0;
        view->len_bytes = 0;
}

void sheaf_view_move(struct sheaf_view *to, struct sheaf_view *from)
{
        *to = *from;
        if (from->pieces == from->inline_pieces_)
                to->pieces = to->inline_pieces_;
        if (from->pins_ == from->inline_pins_)
                to->pins_ = to->inline_pins_;
        *from = (struct sheaf_view){ .dataset_ = from->dataset_ };
}

/* Pins what is not pinned yet. Returns how many chunks are missing, the first
 * of them in @missing; -EDQUOT: over the grant; -EMFILE: no slot is free. */
static int64_t pin_missing(struct sheaf_map *map, const struct span *span,
        enum sheaf_pin_kind kind, struct sheaf_view *view,
        uint64_t missing[SHEAF_FETCH_WINDOW])
{
        struct iovec *pieces = pieces_of(view);
        int64_t count = 0;

        for (uint64_t i = 0; i < span->n; i++) {
                uint64_t chunk = span->first + i, skip, len;
                struct sheaf_pin pin;
                int rc;

                if (view->pins_[i])
                        continue;
                rc = sheaf_map_pin(map, span->first_chunk + chunk,
                        sheaf_chunk_len(span->size_bytes, chunk), kind, &pin);
                if (!rc) {
                        span_piece(span, i, &skip, &len);
                        view->charged_bytes_ += pin.charged_bytes;
                        view->brief_ = pin.brief;
                        view->pins_[i] = (void *)pin.slot;
                        pieces[i] = (struct iovec){
                                .iov_base = (void *)(pin.bytes + skip),
                                .iov_len = len,
                        };
                        continue;
                }
                if (rc != -EAGAIN)
                        return rc;
                if (count < SHEAF_FETCH_WINDOW)
                        missing[count] = sheaf_fetch_item(span->entry, chunk);
                count++;
        }
        return count;
}

/* A private copy instead of pins. */
static int view_copy(const struct span *span, struct sheaf_view *view,
        unsigned int flags, int64_t deadline_ns)
{
        struct sheaf_map *map = current_map(span->dataset);
        uint64_t pieces_bytes =
                sheaf_round_up(span->n * sizeof(struct iovec), 64);
        uint8_t *at;
        int rc;

        *view = (struct sheaf_view){ 0 };
        if (span->len_bytes > SIZE_MAX / 2)
                return sheaf_error_set(-ENOMEM, "no memory for a copy");
        view->heap_ = malloc(pieces_bytes + span->len_bytes);
        if (!view->heap_)
                return sheaf_error_set(-ENOMEM,
                        "no memory for a copy of %llu bytes; release views "
                        "sooner, or ask for a larger pin grant",
                        (unsigned long long)span->len_bytes);
        view->pieces = view->heap_;
        at = (uint8_t *)view->heap_ + pieces_bytes;
        rc = sheaf_read_range(span->dataset, span->entry, at, span->len_bytes,
                span->offset_bytes, flags, deadline_ns);
        if (rc) {
                free(view->heap_);
                *view = (struct sheaf_view){ 0 };
                return rc;
        }
        for (uint64_t i = 0; i < span->n; i++) {
                uint64_t skip, len;

                span_piece(span, i, &skip, &len);
                pieces_of(view)[i] =
                        (struct iovec){ .iov_base = at, .iov_len = len };
                at += len;
        }
        view->piece_count = span->n;
        view->len_bytes = span->len_bytes;
        view->dataset_ = span->dataset;
        view->copied = true;
        if (map) {
                sheaf_pin_count(map->meter, copies, span->n);
                sheaf_pin_count(map->meter, copy_bytes, span->len_bytes);
        }
        return 0;
}

static void count_hits(struct sheaf_map *map, uint64_t chunks, uint64_t bytes)
{
        sheaf_pin_count(map->meter, hits, chunks);
        sheaf_pin_count(map->meter, hit_bytes, bytes);
}

/* Binds the view to the current arena. -EDQUOT: it can never be granted. */
static int view_bind(struct sheaf_map *map, const struct span *span,
        unsigned int flags, struct sheaf_view *view)
{
        uint64_t grant = atomic_load_explicit(
                &map->attach->pinner.grant_bytes, memory_order_relaxed);

        if (view->owner_ == map->attach)
                return 0;
        drop_pins(view);
        if (!(flags & SHEAF_VIEW_TRANSIENT) && span_chunk_bytes(span) > grant)
                return -EDQUOT;
        view->owner_ = map->attach;
        return 0;
}

/* Pins the whole span, fetching a window of what is missing at a time.
 * -EDQUOT: make a copy instead. */
static int view_pin(const struct span *span, struct sheaf_view *view,
        unsigned int flags, int64_t deadline_ns)
{
        uint64_t missing[SHEAF_FETCH_WINDOW];
        int64_t last = INT64_MAX;
        bool counted = flags & SHEAF_VIEW_FETCHED;
        enum sheaf_pin_kind kind = kind_of(flags);

        for (int tries = 0; tries < SHEAF_VIEW_TRIES;) {
                struct sheaf_map *map = NULL;
                int64_t count;
                int rc =
                        sheaf_map_wait(span->dataset, flags, deadline_ns, &map);

                if (!rc)
                        rc = view_bind(map, span, flags, view);
                if (rc)
                        return rc;
                count = pin_missing(map, span, kind, view, missing);
                if (count < 0)
                        return -EDQUOT;
                if (!counted && (!count || (flags & SHEAF_VIEW_WAIT))) {
                        uint64_t n = span->n - (uint64_t)count;

                        count_hits(map, n, span->len_bytes / span->n * n);
                        counted = true;
                }
                if (!count)
                        return 0;
                if (!(flags & SHEAF_VIEW_WAIT))
                        return -EAGAIN;
                tries = count < last ? 0 : tries + 1;
                last = count;
                rc = sheaf_fetch_window(span->dataset, missing,
                        (size_t)SHEAF_MIN(count, SHEAF_FETCH_WINDOW),
                        deadline_ns);
                if (rc)
                        return rc == -ENOBUFS ? -EDQUOT : rc;
        }
        return -EDQUOT;
}

static int view_slow(struct sheaf_dataset *dataset, uint32_t entry,
        uint64_t offset_bytes, uint64_t len_bytes, unsigned int flags,
        struct sheaf_view *view)
{
        int64_t deadline_ns = sheaf_session_deadline_ns(dataset->session);
        struct span span;
        int rc;

        span_init(&span, dataset, entry, offset_bytes, len_bytes);
        rc = view_begin(view, &span, true);
        if (rc)
                return rc;
        rc = view_pin(&span, view, flags, deadline_ns);
        if (!rc)
                return 0;
        drop_pins(view);
        sheaf_view_release(view);
        if (rc == -EDQUOT)
                rc = view_copy(&span, view, flags, deadline_ns);
        return rc;
}

/* Cuts the range at the file's end. */
static int check_range(const struct sheaf_dataset *dataset, uint32_t entry,
        uint64_t offset_bytes, uint64_t *len_bytes)
{
        const struct sheaf_listing_entry *e;
        int rc;

        rc = sheaf_dataset_regular(dataset, entry, &e);
        if (rc)
                return rc;
        if (offset_bytes > e->size_bytes)
                return sheaf_error_set(-ERANGE,
                        "offset %llu is beyond the end of the file (%llu "
                        "bytes)",
                        (unsigned long long)offset_bytes,
                        (unsigned long long)e->size_bytes);
        *len_bytes = SHEAF_MIN(*len_bytes, e->size_bytes - offset_bytes);
        return 0;
}

/* The hit of a file of one chunk. False: it takes the slow path. */
static inline bool view_single(struct sheaf_dataset *dataset, uint64_t chunk,
        uint32_t size_bytes, uint64_t offset_bytes, uint64_t len_bytes,
        unsigned int flags, struct sheaf_view *view)
{
        struct sheaf_map *map = current_map(dataset);
        struct sheaf_pin pin;

        if (SHEAF_UNLIKELY(!map || sheaf_map_pin(map, chunk, size_bytes,
                                           kind_of(flags), &pin)))
                return false;
        view->inline_pieces_[0] = (struct iovec){
                .iov_base = (void *)(pin.bytes + offset_bytes),
                .iov_len = len_bytes,
        };
        view->inline_pins_[0] = (void *)pin.slot;
        view->pieces = view->inline_pieces_;
        view->pins_ = view->inline_pins_;
        view->piece_count = 1;
        view->len_bytes = len_bytes;
        view->copied = false;
        view->dataset_ = dataset;
        view->owner_ = map->attach;
        view->charged_bytes_ = pin.charged_bytes;
        view->brief_ = pin.brief;
        view->heap_ = NULL;
        if (!(flags & SHEAF_VIEW_FETCHED))
                count_hits(map, 1, len_bytes);
        return true;
}

int sheaf_dataset_view_entry(struct sheaf_dataset *dataset, uint32_t entry,
        uint64_t offset_bytes, uint64_t len_bytes, unsigned int flags,
        struct sheaf_view *ret_view)
{
        const struct sheaf_listing_entry *e;
        int rc = check_range(dataset, entry, offset_bytes, &len_bytes);

        if (SHEAF_UNLIKELY(rc))
                return rc;
        if (SHEAF_UNLIKELY(!len_bytes)) {
                *ret_view = (struct sheaf_view){ .dataset_ = dataset };
                return 0;
        }
        e = &dataset->listing.entries[entry];
        if (SHEAF_LIKELY(e->size_bytes <= SHEAF_CHUNK_BYTES_MAX) &&
                view_single(dataset, e->first_chunk, (uint32_t)e->size_bytes,
                        offset_bytes, len_bytes, flags, ret_view))
                return 0;
        return view_slow(
                dataset, entry, offset_bytes, len_bytes, flags, ret_view);
}

static int bad_ordinal(struct sheaf_dataset *dataset, uint64_t ordinal)
{
        return sheaf_error_set(-ERANGE,
                "dataset %s has %u files, there is no ordinal %llu",
                dataset->name, dataset->listing.file_count,
                (unsigned long long)ordinal);
}

int sheaf_view(struct sheaf_dataset *dataset, uint64_t ordinal,
        uint64_t offset_bytes, uint64_t len_bytes, struct sheaf_view *ret_view)
{
        const uint64_t *places =
                atomic_load_explicit(&dataset->places, memory_order_acquire);
        uint64_t size_bytes, place;

        if (SHEAF_UNLIKELY(ordinal >= dataset->listing.file_count))
                return bad_ordinal(dataset, ordinal);
        if (SHEAF_UNLIKELY(!places))
                places = sheaf_dataset_make_places(dataset);
        place = SHEAF_LIKELY(places != NULL) ? places[ordinal] : 0;
        size_bytes = place & SHEAF_PLACE_SIZE_MASK;
        /* Also of length 0: that the slow path knows. */
        if (SHEAF_LIKELY(offset_bytes < size_bytes && len_bytes) &&
                view_single(dataset, place >> SHEAF_PLACE_SIZE_BITS,
                        (uint32_t)size_bytes, offset_bytes,
                        SHEAF_MIN(len_bytes, size_bytes - offset_bytes),
                        SHEAF_VIEW_WAIT, ret_view))
                return 0;
        return sheaf_dataset_view_entry(dataset,
                dataset->listing.files[ordinal], offset_bytes, len_bytes,
                SHEAF_VIEW_WAIT, ret_view);
}

int sheaf_view_file(struct sheaf_dataset *dataset, uint64_t ordinal,
        struct sheaf_view *ret_view)
{
        return sheaf_view(dataset, ordinal, 0, UINT64_MAX, ret_view);
}

int sheaf_view_try(struct sheaf_dataset *dataset, uint64_t ordinal,
        uint64_t offset_bytes, uint64_t len_bytes, struct sheaf_view *ret_view)
{
        int rc;

        if (SHEAF_UNLIKELY(ordinal >= dataset->listing.file_count))
                return bad_ordinal(dataset, ordinal);
        rc = sheaf_dataset_view_entry(dataset, dataset->listing.files[ordinal],
                offset_bytes, len_bytes, 0, ret_view);
        return rc == -EAGAIN ? sheaf_error_set(rc, "not in memory at present")
                             : rc;
}
