/* SPDX-License-Identifier: Apache-2.0 */
/* Fetch: all misses of a batch in one message, one answer.
 *
 *  1 an answer comes within the deadline; what is not there by then is
 *    -ETIMEDOUT, and its flight goes on for others
 *  2 with copy, the answer brings the bytes of every chunk that did not fail
 *
 * Threads: loop thread. */
#include "daemon/verbs/verbs.h"

#include "daemon/clock.h"
#include "daemon/log.h"

#include <fcntl.h>
#include <stdio.h>

#define ITEMS_MAX       4096
#define COPY_BYTES_MAX  (UINT64_C(64) << 20)
#define TEXTS_MAX       32 /* further failures have no text */
#define TEXT_CAP        400
#define AHEAD_BYTES_MAX (UINT64_C(64) << 20)
#define HINTS_MAX       65536 /* of all clients; more are ignored */

static const char too_many_copies[] =
        "the copies that one user's clients wait for or have not closed yet "
        "may be 512 MiB and 1,024; close some, or read in place";

struct item {
        struct sheaf_fetch fetch; /* first */
        struct fetch_call *call;
        uint64_t copy_offset_bytes;
        int rc;
        const char *why;
};

struct fetch_call {
        struct sheaf_call call; /* first */
        struct sheaf_daemon *daemon;
        struct sheaf_conn *asker; /* until the call is freed */
        struct sheaf_reg_version *version;
        struct sheaf_lodging *lodging;
        uv_timer_t deadline;
        size_t size, count, left; /* asked for; filled in; not there yet */
        uint32_t from_disk, from_origin; /* of those that are not */
        bool hint, copy, timed_out;
        struct sheaf_copy *made; /* for a copy */
        uint8_t *copy_map;
        struct item items[];
};

static void copy_unmap(struct fetch_call *call)
{
        if (call->copy_map)
                munmap(call->copy_map, call->made->bytes);
        call->copy_map = NULL;
}

static void call_closed(uv_handle_t *handle)
{
        struct fetch_call *call = handle->data;

        free(call);
}

/* Ends a call: what is under way goes on without it. */
static void call_free(struct fetch_call *call)
{
        struct sheaf_conn *conn = call->asker;

        for (size_t i = 0; i < call->count; i++)
                sheaf_fetch_cancel(
                        call->daemon->fetcher, &call->items[i].fetch);
        if (call->hint) {
                LIST_REMOVE(&call->call, link);
                conn->hint_items -= call->size;
                call->daemon->hint_items -= call->size;
        } else {
                conn->fetch_items -= call->size;
                conn->account->fetch_items -= call->size;
        }
        copy_unmap(call);
        if (call->made)
                sheaf_copy_free(sheaf_steal(&call->made));
        sheaf_registry_unhold(call->version);
        uv_close((uv_handle_t *)&call->deadline, call_closed);
}

static void abandon(struct sheaf_call *base)
{
        call_free((struct fetch_call *)base);
}

/* Text for a failure: the file and the cause. */
static void failure_text(const struct fetch_call *call, const struct item *item,
        char *buf, size_t cap)
{
        const struct sheaf_listing *listing = &call->version->fetch.listing;
        char path[256];

        sheaf_listing_path(listing, item->fetch.entry, path, sizeof(path));
        path[sizeof(path) - 1] = 0;
        for (char *c = path; *c; c++)
                if ((unsigned char)*c < ' ' || (unsigned char)*c >= 0x7f)
                        *c = '?';
        snprintf(buf, cap, "%s: %s: %s", call->version->dataset->record->name,
                path, item->why ? item->why : strerror(-item->rc));
}

/* The copy's descriptor to send, or -1 when there is none. */
static int copy_fd(struct fetch_call *call)
{
        int fd, rc;

        if (!call->made)
                return -1;
        copy_unmap(call);
        rc = sheaf_copy_send(call->made, &fd);
        if (rc) {
                sheaf_log_rc(rc, SHEAF_LOG_ERROR, "copy not sent", "bytes=%llu",
                        (unsigned long long)call->made->bytes);
                return -1;
        }
        call->made = NULL;
        return fd;
}

static void answer(struct fetch_call *call)
{
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__Fetched body = SHEAF__FETCHED__INIT;
        Sheaf__Failure failures[ITEMS_MAX], *pointers[ITEMS_MAX];
        char texts[TEXTS_MAX][TEXT_CAP];
        struct sheaf_conn *conn = call->call.conn;
        sheaf_autofd int fd = copy_fd(call);
        size_t n = 0;

        for (size_t i = 0; i < call->count; i++) {
                if (!call->items[i].rc)
                        continue;
                sheaf__failure__init(&failures[n]);
                failures[n].position = (uint32_t)i;
                failures[n].errno_value = -call->items[i].rc;
                if (n < TEXTS_MAX) {
                        failure_text(call, &call->items[i], texts[n], TEXT_CAP);
                        failures[n].message = texts[n];
                }
                pointers[n] = &failures[n];
                n++;
        }
        body.failure = pointers;
        body.n_failure = n;
        body.copied = fd >= 0;
        body.from_disk = call->from_disk;
        body.from_origin = call->from_origin;
        env.id = call->call.id;
        env.body_case = SHEAF__ENVELOPE__BODY_FETCHED;
        env.fetched = &body;
        sheaf_call_end(&call->call);
        sheaf_conn_send(conn, &env, &fd, fd >= 0);
        call_free(call);
}

static void item_done(
        struct sheaf_fetch *fetch, int rc, const void *bytes, const char *why)
{
        struct item *item = (struct item *)fetch;
        struct fetch_call *call = item->call;

        if (call->copy && bytes) {
                uint64_t at = item->copy_offset_bytes;
                uint32_t len =
                        sheaf_listing_chunk_len(&call->version->fetch.listing,
                                fetch->entry, fetch->index);

                rc = len ? sheaf_copy_room(call->made, at, len) : 0;
                if (!rc)
                        memcpy(call->copy_map + at, bytes, len);
                else
                        why = "there is no memory for a copy";
        }
        item->rc = rc;
        item->why = why;
        if (--call->left == 0 && call->call.conn)
                answer(call);
        else if (call->left == 0)
                call_free(call); /* a hint: nobody waits */
}

static void timed_out(uv_timer_t *timer)
{
        struct fetch_call *call = timer->data;

        for (size_t i = 0; i < call->count; i++) {
                if (!call->items[i].fetch.flight)
                        continue;
                sheaf_fetch_cancel(
                        call->daemon->fetcher, &call->items[i].fetch);
                call->items[i].rc = -ETIMEDOUT;
                call->items[i].why =
                        "not fetched within the deadline; the origin is slow";
        }
        if (call->call.conn)
                answer(call);
        else
                call_free(call);
}

static int copy_make(struct fetch_call *call)
{
        const struct sheaf_listing *listing = &call->version->fetch.listing;
        uint64_t bytes = 0;
        void *map;
        int rc;

        for (size_t i = 0; i < call->count; i++) {
                call->items[i].copy_offset_bytes = bytes;
                bytes += sheaf_round_up(sheaf_listing_chunk_len(listing,
                                                call->items[i].fetch.entry,
                                                call->items[i].fetch.index),
                        64);
        }
        if (bytes > COPY_BYTES_MAX)
                return -E2BIG;
        rc = sheaf_copy_new(call->asker->account, bytes, &call->made);
        if (rc)
                return rc;
        map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                call->made->fd, 0);
        if (map == MAP_FAILED)
                return -errno;
        call->copy_map = map;
        return 0;
}

static void item_fill(
        struct fetch_call *call, size_t i, uint32_t entry, uint32_t index)
{
        struct item *item = &call->items[i];

        item->call = call;
        item->fetch.version = &call->version->fetch;
        item->fetch.entry = entry;
        item->fetch.index = index;
        item->fetch.residence = &call->lodging->residence;
        item->fetch.lane = call->asker->number;
        item->fetch.hint = call->hint;
        item->fetch.done = item_done;
}

/* Fills the items from the request; -EINVAL when one is not in the listing. */
static int items_fill(struct fetch_call *call, const Sheaf__Fetch *fetch)
{
        const struct sheaf_listing *listing = &call->version->fetch.listing;

        for (size_t i = 0; i < fetch->n_item; i++) {
                uint64_t entry = fetch->item[i] >> 24;
                uint64_t index = fetch->item[i] & 0xffffff;

                if (entry >= listing->entry_count ||
                        !sheaf_listing_is_file(listing, (uint32_t)entry) ||
                        index >= sheaf_chunk_count(
                                         listing->entries[entry].size_bytes))
                        return -EINVAL;
                item_fill(call, i, (uint32_t)entry, (uint32_t)index);
        }
        call->count = fetch->n_item;
        return 0;
}

/* Where an item is when it is asked for; what others wait for is theirs. */
static void count_source(struct fetch_call *call, const struct item *item)
{
        const struct sheaf_fetch_version *version = item->fetch.version;
        uint64_t chunk =
                version->listing.entries[item->fetch.entry].first_chunk +
                item->fetch.index;

        if (item->fetch.joined ||
                sheaf_table_block(item->fetch.residence->table, chunk))
                return;
        if (sheaf_version_placed(version->stored, chunk))
                call->from_disk++;
        else
                call->from_origin++;
}

static void start(struct fetch_call *call, uint64_t deadline_ms)
{
        call->left = call->count;
        uv_timer_start(&call->deadline, timed_out, deadline_ms, 0);
        for (size_t i = 0; i < call->count; i++) {
                int rc = sheaf_fetch(
                        call->daemon->fetcher, &call->items[i].fetch);

                if (rc)
                        item_done(&call->items[i].fetch, rc, NULL, NULL);
                else
                        count_source(call, &call->items[i]);
        }
}

static struct fetch_call *call_new(
        struct sheaf_conn *conn, struct sheaf_handle *h, size_t size, bool hint)
{
        struct fetch_call *call =
                calloc(1, sizeof(*call) + size * sizeof(call->items[0]));

        if (!call)
                return NULL;
        call->daemon = conn->daemon;
        call->asker = conn;
        call->version = h->version;
        call->lodging = h->lodging;
        call->size = size;
        call->hint = hint;
        uv_timer_init(conn->daemon->loop, &call->deadline);
        call->deadline.data = call;
        h->version->handles++;
        if (hint) {
                call->call.abandon = abandon;
                LIST_INSERT_HEAD(&conn->hints, &call->call, link);
                conn->hint_items += size;
                conn->daemon->hint_items += size;
        } else {
                conn->fetch_items += size;
                conn->account->fetch_items += size;
        }
        return call;
}

/* Whether @count more hinted chunks are taken; a hint may be ignored. */
static bool takes_hints(const struct sheaf_conn *conn, size_t count)
{
        return conn->hint_items + count <= SHEAF_CONN_HINTS_MAX &&
               conn->daemon->hint_items + count <= HINTS_MAX;
}

/* Fetches what a reader in listing order will ask for next. */
static void read_ahead(struct sheaf_conn *conn, struct sheaf_handle *h,
        const Sheaf__Fetch *fetch)
{
        uint64_t last = fetch->item[fetch->n_item - 1];
        struct sheaf_ahead_item items[SHEAF_AHEAD_CHUNKS_MAX];
        struct fetch_call *call;
        size_t count = sheaf_ahead_miss(&h->ahead, &h->version->fetch.listing,
                (uint32_t)(last >> 24), (uint32_t)(last & 0xffffff),
                SHEAF_MIN(AHEAD_BYTES_MAX,
                        conn->daemon->config->memory_bytes / 16),
                items);

        if (!count || !takes_hints(conn, count))
                return;
        call = call_new(conn, h, count, true);
        if (!call)
                return;
        for (size_t i = 0; i < count; i++)
                item_fill(call, i, items[i].entry, items[i].index);
        call->count = count;
        start(call, conn->daemon->config->deadline_ms);
}

void sheaf_verb_fetch(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__Fetch *fetch = msg->env->fetch;
        uint64_t id = msg->env->id, deadline_ms = fetch->deadline_ms;
        struct sheaf_handle *h = sheaf_conn_handle(conn, id, fetch->handle);
        struct fetch_call *call;
        int rc = 0;

        if (!h)
                return;
        if (!h->lodging || !fetch->n_item || fetch->n_item > ITEMS_MAX) {
                sheaf_conn_error(conn, id, -EINVAL,
                        "a fetch names 1 to %u chunks of a mapped dataset",
                        ITEMS_MAX);
                return;
        }
        if (fetch->hint && !takes_hints(conn, fetch->n_item)) {
                sheaf_conn_done(conn, id);
                return;
        }
        if (!fetch->hint &&
                (conn->fetch_items + fetch->n_item > SHEAF_CONN_ITEMS_MAX ||
                        conn->account->fetch_items + fetch->n_item >
                                SHEAF_USER_ITEMS_MAX)) {
                sheaf_conn_error(conn, id, -EBUSY,
                        "a connection may wait for %u chunks at once, a user "
                        "for %u",
                        SHEAF_CONN_ITEMS_MAX, SHEAF_USER_ITEMS_MAX);
                return;
        }
        call = call_new(conn, h, fetch->n_item, fetch->hint);
        if (!call) {
                sheaf_conn_error(conn, id, -ENOMEM, "out of memory");
                return;
        }
        call->copy = fetch->copy && !fetch->hint;
        rc = items_fill(call, fetch);
        if (!rc && call->copy)
                rc = copy_make(call);
        if (rc)
                sheaf_conn_error(conn, id, rc, "%s",
                        rc == -EBUSY    ? too_many_copies
                        : rc == -EINVAL ? "a chunk is not in the listing"
                                        : "the copy cannot be made");
        if (rc || (!call->hint &&
                          !sheaf_call_begin(conn, id, &call->call, abandon))) {
                call->count = 0;
                call_free(call);
                return;
        }
        if (call->hint)
                sheaf_conn_done(conn, id);
        if (!deadline_ms || deadline_ms > conn->daemon->config->deadline_ms)
                deadline_ms = conn->daemon->config->deadline_ms;
        start(call, deadline_ms);
        if (!fetch->hint && !conn->closing)
                read_ahead(conn, h, fetch);
}
