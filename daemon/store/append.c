/* SPDX-License-Identifier: Apache-2.0 */
/* Filling segments.
 *
 *    waiting writes -> buffer -> disk -> published -> done
 *
 *  1 a place is published after its bytes were written, never before
 *  2 buffers of a segment are disjoint, whole pages: no page that holds a
 *    published record is written again
 *  3 a record goes where blocks are taken, and so will its entry in the
 *    summary (room.c): what was let in cannot fail for lack of room
 *  4 a segment is sealed when its last buffer is on disk and synced: a valid
 *    summary proves that its records are durable; one to which nothing was
 *    added since has its summary already
 *  5 a failed write closes the segment: what follows goes to another */
#include "daemon/store/private.h"

struct sealing {
        struct sheaf_disk_io io;
        struct sheaf_store *store;
        struct sheaf_segment *segment;
        unsigned int step; /* sync, write, sync */
};

static size_t bucket_of(uint64_t id)
{
        return (id * UINT64_C(0x9e3779b97f4a7c15)) >> 54; /* of 2^10 */
}

struct sheaf_group *sheaf_group_find(
        const struct sheaf_store *store, uint64_t id)
{
        struct sheaf_group *group = store->group_of[bucket_of(id)];

        while (group && group->id != id)
                group = group->chained;
        return group;
}

struct sheaf_group *sheaf_group_get(struct sheaf_store *store, uint64_t id)
{
        struct sheaf_group *group = sheaf_group_find(store, id), **bucket;

        if (group)
                return group;
        group = sheaf_new(struct sheaf_group, 1);
        if (!group)
                return NULL;
        bucket = &store->group_of[bucket_of(id)];
        group->id = id;
        group->idle_since_ns = sheaf_now_ns();
        group->append.waiting_tail = &group->append.waiting;
        group->next = store->groups;
        store->groups = group;
        group->chained = *bucket;
        *bucket = group;
        return group;
}

void sheaf_group_forget(struct sheaf_store *store, struct sheaf_group *group)
{
        struct sheaf_append *append = &group->append;
        struct sheaf_group **at = &store->groups;

        if (group->live || append->segment || append->making ||
                append->buffer || append->waiting)
                return;
        while (*at != group)
                at = &(*at)->next;
        *at = group->next;
        at = &store->group_of[bucket_of(group->id)];
        while (*at != group)
                at = &(*at)->chained;
        *at = group->chained;
        free(group);
}

static void fail_waiting(
        struct sheaf_store *store, struct sheaf_group *group, int rc)
{
        struct sheaf_store_write *write = group->append.waiting;

        group->append.waiting = NULL;
        group->append.waiting_tail = &group->append.waiting;
        while (write) {
                struct sheaf_store_write *next =
                        sheaf_write_private(write)->next;

                sheaf_store_finish_write(store, write, rc);
                write = next;
        }
}

/* ---- sealing ---- */

static void sealed(
        struct sheaf_store *store, struct sheaf_segment *segment, bool summed)
{
        segment->state = SHEAF_SEGMENT_SEALED;
        segment->synced = segment->summed = summed;
        if (segment->doomed || segment->dropped == segment->records)
                sheaf_segment_release(store, segment);
}

static void seal_done(struct sheaf_disk_io *io, int rc)
{
        struct sealing *sealing = (struct sealing *)io;
        struct sheaf_store *store = sealing->store;
        struct sheaf_segment *segment = sealing->segment;

        if (!rc && sealing->step++ == 0) {
                io->op = SHEAF_DISK_WRITE;
                sheaf_disk_submit(store->disk, io);
                return;
        }
        if (!rc && sealing->step == 2) {
                store->stats.container_written_bytes += io->len_bytes;
                io->op = SHEAF_DISK_SYNC;
                sheaf_disk_submit(store->disk, io);
                return;
        }
        sheaf_segment_account(store, segment);
        segment->busy--;
        sheaf_file_leave(store, &segment->file);
        if (rc)
                sheaf_space_failed(store, rc);
        sealed(store, segment, !rc);
        free(io->buf);
        free(sealing);
}

void *sheaf_segment_summary(struct sheaf_store *store,
        struct sheaf_segment *segment, size_t *ret_bytes)
{
        size_t bytes = sheaf_disk_summary_bytes(segment->records);
        uint8_t *page = aligned_alloc(SHEAF_DISK_PAGE, bytes);
        size_t len = segment->records * sizeof(struct sheaf_disk_entry);
        struct sheaf_disk_footer *footer;
        uint8_t *entries;

        if (!page)
                return NULL;
        memset(page, 0, bytes);
        footer = (struct sheaf_disk_footer *)(page + bytes - sizeof(*footer));
        entries = (uint8_t *)footer - len;
        if (len)
                memcpy(entries, segment->entries, len);
        *footer = (struct sheaf_disk_footer){
                .magic = SHEAF_DISK_FOOTER_MAGIC,
                .layout = SHEAF_DISK_LAYOUT,
                .number = segment->number,
                .generation = segment->generation,
                .count = segment->records,
                .end_bytes = segment->end_bytes,
        };
        sheaf_mac_of(store->mac, entries, len, footer->entries_mac);
        sheaf_mac_seal(store->mac, footer, sizeof(*footer));
        *ret_bytes = bytes;
        return page;
}

/* Begins sealing when nothing else of the segment is in flight. */
static void seal(struct sheaf_store *store, struct sheaf_segment *segment)
{
        struct sealing *sealing = sheaf_new(struct sealing, 1);
        char name[32];
        size_t bytes = 0;
        void *summary = NULL;

        /* Nothing to say, or said already. */
        if (segment->summed || !segment->records) {
                free(sealing);
                sealed(store, segment, true);
                return;
        }
        sheaf_segment_name(segment->number, name);
        if (sealing)
                summary = sheaf_segment_summary(store, segment, &bytes);
        if (!summary || sheaf_file_enter(store, &segment->file, name, true)) {
                /* Closed all the same; recovery walks it. */
                sealed(store, segment, false);
                free(summary);
                free(sealing);
                return;
        }
        sealing->store = store;
        sealing->segment = segment;
        sealing->io.op = SHEAF_DISK_SYNC;
        sealing->io.fd = segment->file.fd;
        sealing->io.fixed = -1;
        sealing->io.buf = summary;
        sealing->io.len_bytes = bytes;
        sealing->io.offset_bytes = store->segment_bytes - bytes;
        sealing->io.done = seal_done;
        segment->busy++;
        sheaf_disk_submit(store->disk, &sealing->io);
}

void sheaf_segment_seal(
        struct sheaf_store *store, struct sheaf_segment *segment)
{
        segment->state = SHEAF_SEGMENT_SEALING;
        if (segment->busy == 0)
                seal(store, segment);
}

static void seal_begin(struct sheaf_store *store, struct sheaf_group *group)
{
        sheaf_segment_seal(store, sheaf_steal(&group->append.segment));
}

void sheaf_segment_unbusy(
        struct sheaf_store *store, struct sheaf_segment *segment)
{
        segment->busy--;
        sheaf_file_leave(store, &segment->file);
        if (segment->state == SHEAF_SEGMENT_SEALING && segment->busy == 0)
                seal(store, segment);
}

/* ---- buffers ---- */

static struct sheaf_append_buffer *buffer_take(struct sheaf_store *store)
{
        struct sheaf_append_buffer *buffer = store->append_free;

        if (buffer) {
                store->append_free = buffer->next;
        } else {
                if (store->append_buffers == SHEAF_APPEND_BUFFERS_MAX)
                        return NULL;
                buffer = sheaf_new(struct sheaf_append_buffer, 1);
                if (!buffer)
                        return NULL;
                buffer->bytes = aligned_alloc(
                        SHEAF_DISK_PAGE, SHEAF_APPEND_BUFFER_BYTES);
                if (!buffer->bytes) {
                        free(buffer);
                        return NULL;
                }
                store->append_buffers++;
        }
        buffer->store = store;
        buffer->writes = NULL;
        buffer->writes_tail = &buffer->writes;
        return buffer;
}

static void buffer_done(struct sheaf_disk_io *io, int rc)
{
        struct sheaf_append_buffer *buffer = (struct sheaf_append_buffer *)io;
        struct sheaf_store *store = buffer->store;
        struct sheaf_segment *segment = buffer->segment;
        struct sheaf_store_write *write = buffer->writes;
        bool failed = rc != 0;

        if (failed) {
                store->stats.io_errors++;
                rc = sheaf_space_failed(store, rc);
        } else {
                store->stats.container_written_bytes += io->len_bytes;
                sheaf_segment_account(store, segment);
                sheaf_space_wrote(store);
        }
        buffer->next = store->append_free;
        store->append_free = buffer;
        while (write) {
                struct sheaf_write_private *p = sheaf_write_private(write);
                struct sheaf_store_write *next = p->next;

                if (failed)
                        sheaf_segment_unnote(
                                store, segment, p->place.offset_bytes);
                else
                        sheaf_store_published(store, write, &p->place);
                sheaf_store_finish_write(store, write, rc);
                write = next;
        }
        for (struct sheaf_group *g = store->groups; failed && g; g = g->next) {
                if (g->append.segment == segment && !g->append.buffer)
                        seal_begin(store, g);
        }
        sheaf_segment_unbusy(store, segment);
        sheaf_append_kick(store);
}

static void buffer_flush(struct sheaf_store *store, struct sheaf_group *group)
{
        struct sheaf_append_buffer *buffer = sheaf_steal(&group->append.buffer);
        struct sheaf_segment *segment = buffer->segment;
        uint64_t end = sheaf_round_up(segment->end_bytes, SHEAF_DISK_PAGE);
        size_t fill_bytes = segment->end_bytes - buffer->start_bytes;
        size_t len = end - buffer->start_bytes;

        memset(buffer->bytes + fill_bytes, 0, len - fill_bytes);
        segment->end_bytes = end;
        buffer->io = (struct sheaf_disk_io){
                .op = SHEAF_DISK_WRITE,
                .fd = segment->file.fd,
                .fixed = -1,
                .buf = buffer->bytes,
                .len_bytes = len,
                .offset_bytes = buffer->start_bytes,
                .done = buffer_done,
        };
        sheaf_disk_submit(store->disk, &buffer->io);
}

static bool fits_segment(const struct sheaf_store *store,
        const struct sheaf_segment *segment, uint64_t len)
{
        return sheaf_room_end(segment, len) +
                       sheaf_disk_summary_bytes(segment->records + 1) <=
               store->segment_bytes;
}

static bool fits_buffer(const struct sheaf_append_buffer *buffer, uint64_t len)
{
        return sheaf_room_end(buffer->segment, len) - buffer->start_bytes <=
               SHEAF_APPEND_BUFFER_BYTES;
}

/* Puts one record into the group's buffer. */
static int put_record(struct sheaf_store *store, struct sheaf_group *group,
        struct sheaf_store_write *write)
{
        struct sheaf_write_private *p = sheaf_write_private(write);
        struct sheaf_append_buffer *buffer = group->append.buffer;
        struct sheaf_segment *segment = buffer->segment;
        uint32_t len = write->ref.len_bytes;
        uint64_t at = sheaf_disk_record_at(segment->end_bytes, len);
        struct sheaf_disk_entry entry = {
                .digest = p->digest,
                .serial = write->ref.version->serial,
                .chunk = write->ref.chunk,
                .offset_bytes = at,
                .raw_bytes = len,
        };
        struct sheaf_disk_record record = {
                .magic = SHEAF_DISK_RECORD_MAGIC,
                .layout = SHEAF_DISK_LAYOUT,
                .codec = SHEAF_DISK_CODEC_NONE,
                .number = segment->number,
                .generation = segment->generation,
                .stored_bytes = len,
                .raw_bytes = len,
                .offset_bytes = at,
                .serial = entry.serial,
                .chunk = entry.chunk,
                .digest = p->digest,
        };
        uint8_t *to = buffer->bytes + (at - buffer->start_bytes);
        uint8_t *gap =
                buffer->bytes + (segment->end_bytes - buffer->start_bytes);
        uint64_t end;
        int rc = sheaf_segment_note(segment, &entry);

        if (rc)
                return rc;
        sheaf_mac_seal(store->mac, &record, sizeof(record));
        memset(gap, 0, (size_t)(to - gap));
        memcpy(to, &record, sizeof(record));
        memcpy(to + sizeof(record), write->bytes, len);
        end = at + sizeof(record) + len;
        segment->end_bytes = sheaf_round_up(end, SHEAF_DISK_PACK);
        memset(to + sizeof(record) + len, 0, segment->end_bytes - end);
        segment->payload_bytes += len;
        segment->summed = false;
        store->stats.chunks++;
        store->stats.payload_bytes += len;
        p->place = (struct sheaf_place){
                .container = segment->number,
                .generation = segment->generation,
                .offset_bytes = at,
        };
        p->next = NULL;
        *buffer->writes_tail = write;
        buffer->writes_tail = &p->next;
        return 0;
}

/* A buffer for the open segment: 0; -EAGAIN none free; -errno. */
static int buffer_begin(struct sheaf_store *store, struct sheaf_group *group)
{
        struct sheaf_segment *segment = group->append.segment;
        struct sheaf_append_buffer *buffer = buffer_take(store);
        char name[32];
        int rc;

        if (!buffer)
                return store->append_buffers ? -EAGAIN : -ENOMEM;
        sheaf_segment_name(segment->number, name);
        rc = sheaf_file_enter(store, &segment->file, name, true);
        if (rc) {
                buffer->next = store->append_free;
                store->append_free = buffer;
                return rc;
        }
        segment->busy++;
        buffer->segment = segment;
        buffer->start_bytes = segment->end_bytes;
        group->append.buffer = buffer;
        /* A write that waits for the idle flush keeps the loop alive. */
        uv_ref((uv_handle_t *)&store->timer);
        return 0;
}

static void fill(struct sheaf_store *store, struct sheaf_group *group)
{
        struct sheaf_append *append = &group->append;
        int rc = 0;

        while (!rc && append->waiting && !append->making &&
                !append->room_comes) {
                struct sheaf_store_write *write = append->waiting;
                uint32_t len = write->ref.len_bytes;

                if (append->segment &&
                        !fits_segment(store, append->segment, len)) {
                        if (append->buffer)
                                buffer_flush(store, group);
                        seal_begin(store, group);
                }
                if (!append->segment) {
                        rc = sheaf_room_make(store, group);
                        continue;
                }
                if (!sheaf_room_fits(append->segment, len)) {
                        rc = sheaf_room_grow(store, group, len);
                        continue;
                }
                if (append->buffer && !fits_buffer(append->buffer, len))
                        buffer_flush(store, group);
                if (!append->buffer) {
                        rc = buffer_begin(store, group);
                        if (rc == -EAGAIN)
                                return;
                        if (rc) {
                                /* The file vanished: use another one. */
                                seal_begin(store, group);
                                rc = 0;
                        }
                        continue;
                }
                append->waiting = sheaf_write_private(write)->next;
                if (!append->waiting)
                        append->waiting_tail = &append->waiting;
                rc = put_record(store, group, write);
                if (rc) {
                        sheaf_store_finish_write(store, write, rc);
                        break;
                }
                append->touched_ns = sheaf_now_ns();
                if (append->segment->end_bytes - append->buffer->start_bytes >=
                        SHEAF_APPEND_FLUSH_BYTES)
                        buffer_flush(store, group);
        }
        if (rc == -EINPROGRESS)
                append->room_comes = true;
        else if (rc)
                fail_waiting(store, group, rc);
}

void sheaf_append_resume(
        struct sheaf_store *store, struct sheaf_group *group, int rc)
{
        if (rc)
                fail_waiting(store, group, rc);
        fill(store, group);
}

void sheaf_append_write(
        struct sheaf_store *store, struct sheaf_store_write *write)
{
        struct sheaf_group *group =
                sheaf_group_get(store, write->ref.version->group);
        struct sheaf_write_private *p = sheaf_write_private(write);

        if (!group) {
                sheaf_store_finish_write(store, write, -ENOMEM);
                return;
        }
        p->next = NULL;
        *group->append.waiting_tail = write;
        group->append.waiting_tail = &p->next;
        fill(store, group);
}

void sheaf_append_kick(struct sheaf_store *store)
{
        for (struct sheaf_group *g = store->groups; g; g = g->next) {
                if (g->append.waiting)
                        fill(store, g);
        }
}

void sheaf_append_room(struct sheaf_store *store)
{
        for (struct sheaf_group *g = store->groups; g; g = g->next)
                g->append.room_comes = false;
        sheaf_append_kick(store);
}

void sheaf_append_give_up(struct sheaf_store *store)
{
        for (struct sheaf_group *g = store->groups; g; g = g->next)
                fail_waiting(store, g, -EIO);
}

void sheaf_append_flush(struct sheaf_store *store, int64_t age_ns)
{
        int64_t before_ns = sheaf_now_ns() - age_ns;

        for (struct sheaf_group *g = store->groups; g; g = g->next) {
                if (g->append.buffer && g->append.touched_ns <= before_ns)
                        buffer_flush(store, g);
        }
}

bool sheaf_append_idle(
        const struct sheaf_store *store, const struct sheaf_segment *segment)
{
        const struct sheaf_group *group =
                sheaf_group_find(store, segment->group);

        return segment->state == SHEAF_SEGMENT_OPEN && !segment->busy &&
               group && group->append.segment == segment &&
               !group->append.buffer && !group->append.waiting;
}

void sheaf_append_detach(
        struct sheaf_store *store, const struct sheaf_segment *segment)
{
        struct sheaf_group *group = sheaf_group_find(store, segment->group);

        if (group && group->append.segment == segment)
                group->append.segment = NULL;
}

void sheaf_append_deinit(struct sheaf_store *store)
{
        while (store->append_free) {
                struct sheaf_append_buffer *buffer = store->append_free;

                store->append_free = buffer->next;
                free(buffer->bytes);
                free(buffer);
        }
        while (store->groups) {
                struct sheaf_group *group = store->groups;

                store->groups = group->next;
                free(group);
        }
}

void sheaf_append_distrust(
        struct sheaf_store *store, const struct sheaf_segment *segment)
{
        for (struct sheaf_group *g = store->groups; g; g = g->next) {
                if (g->append.segment == segment)
                        sheaf_append_drop(store, g);
        }
}

void sheaf_append_drop(struct sheaf_store *store, struct sheaf_group *group)
{
        if (group->append.buffer)
                buffer_flush(store, group);
        if (group->append.segment)
                seal_begin(store, group);
}
