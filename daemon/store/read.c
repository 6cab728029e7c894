/* SPDX-License-Identifier: Apache-2.0 */
/* Reading chunks.
 *
 *    asked -> (waits for a buffer) -> disk -> header checked -> done
 *
 *  1 a buffer belongs to one request from the read until read_end
 *  2 a header must name segment, generation, offset, length and the digest
 *    that was learned; the payload's hash is the caller's
 *  3 a container that vanished is forgotten whole: nothing is read twice to
 *    learn that it is gone
 *  4 the page cache is passed by where the disk allows it: what is read lies
 *    in the arena next, or in the page cache of a mount */
#include "daemon/store/private.h"

struct sheaf_read_op {
        struct sheaf_disk_io io;
        struct sheaf_store *store;
        struct sheaf_store_read *read;
        struct sheaf_segment *segment; /* or */
        struct sheaf_plain *plain;
        struct sheaf_place place;
        struct sheaf_digest digest;
        size_t skip_bytes; /* from the buffer's start to header or payload */
};

static void begin(struct sheaf_store *store, struct sheaf_store_read *read);

static void drop_bad(
        struct sheaf_store *store, struct sheaf_read_op *op, uint64_t *counter)
{
        if (!sheaf_places_usable(store, &op->place))
                return;
        ++*counter;
        if (op->segment)
                sheaf_append_distrust(store, op->segment);
        if (sheaf_log_once(&store->bad_once, SHEAF_NS_PER_SEC))
                sheaf_log(SHEAF_LOG_WARN, "store_bad_record",
                        "container=%u offset=%llu action=\"dropped, fetched "
                        "again\"",
                        op->place.container,
                        (unsigned long long)op->place.offset_bytes);
        sheaf_store_drop_place(
                store, &op->digest, &op->place, op->read->ref.len_bytes);
        if (!memcmp(&op->read->ref.version->places[op->read->ref.chunk],
                    &op->place, sizeof(op->place)))
                sheaf_version_unplace(
                        op->read->ref.version, op->read->ref.chunk);
}

/* Hands a free buffer to who waits for one that small. */
static void serve_waiting(struct sheaf_store *store, unsigned int class)
{
        for (int c = (int)class; c >= 0; c--) {
                struct sheaf_store_read *read = store->wait_reads[c];

                if (!read)
                        continue;
                store->wait_reads[c] = sheaf_read_private(read)->next;
                if (!store->wait_reads[c])
                        store->wait_tail[c] = &store->wait_reads[c];
                begin(store, read);
                return;
        }
}

static void release_buffer(
        struct sheaf_store *store, struct sheaf_store_read *read)
{
        struct sheaf_read_private *p = sheaf_read_private(read);
        struct sheaf_buffer *buffer = sheaf_steal(&p->buffer);

        read->bytes = NULL;
        if (!buffer)
                return;
        sheaf_buffers_give(&store->buffers, buffer);
        serve_waiting(store, buffer->class);
}

static int check_record(struct sheaf_store *store, struct sheaf_read_op *op)
{
        const struct sheaf_disk_record *record =
                (const void *)((char *)op->io.buf + op->skip_bytes);
        int rc = sheaf_record_check(store->mac, record, op->place.container,
                op->place.generation, op->place.offset_bytes);

        if (rc)
                return rc;
        if (record->raw_bytes != op->read->ref.len_bytes ||
                !sheaf_digest_equal(&record->digest, &op->digest))
                return -ENOENT; /* a claim of another time */
        op->skip_bytes += sizeof(*record);
        return 0;
}

static void read_done(struct sheaf_disk_io *io, int rc)
{
        struct sheaf_read_op *op = (struct sheaf_read_op *)io;
        struct sheaf_store *store = op->store;
        struct sheaf_store_read *read = op->read;

        if (!rc && op->segment)
                rc = check_record(store, op);
        if (rc == -ENOENT) {
                sheaf_version_unplace(read->ref.version, read->ref.chunk);
        } else if (rc == -ENODATA || rc == -EBADMSG) {
                rc = -EBADMSG;
                drop_bad(store, op, &store->stats.bad_headers);
        } else if (rc) {
                rc = -EIO;
                sheaf_space_read_failed(store, -EIO);
                drop_bad(store, op, &store->stats.io_errors);
        }
        if (op->segment) {
                sheaf_segment_unbusy(store, op->segment);
        } else {
                sheaf_file_leave(store, &op->plain->direct);
                sheaf_plain_leave(store, op->plain);
        }
        if (rc) {
                release_buffer(store, read);
        } else {
                read->bytes = (char *)io->buf + op->skip_bytes;
                store->read_short.worked = true;
                store->stats.read_chunks++;
                store->stats.read_bytes += read->ref.len_bytes;
        }
        free(op);
        read->done(read, rc);
}

/* The container's file is gone or cannot be opened. */
static int container_lost(
        struct sheaf_store *store, struct sheaf_read_op *op, int rc)
{
        if (rc != -ENOENT) {
                store->stats.io_errors++;
                sheaf_space_read_failed(store, rc);
                return -EIO;
        }
        if (sheaf_log_once(&store->bad_once, SHEAF_NS_PER_SEC))
                sheaf_log(SHEAF_LOG_WARN, "store_container_gone",
                        "container=%u action=\"forgotten, fetched again\"",
                        op->place.container);
        store->stats.bad_headers++;
        if (op->plain)
                sheaf_plain_drop(store, op->plain);
        else if (!op->segment->busy &&
                 op->segment->state == SHEAF_SEGMENT_SEALED)
                sheaf_segment_unlink(store, op->segment);
        else
                sheaf_store_drop_place(store, &op->digest, &op->place,
                        op->read->ref.len_bytes);
        return -ENOENT;
}

static int aim(
        struct sheaf_store *store, struct sheaf_read_op *op, size_t *ret_bytes)
{
        uint64_t at = op->place.offset_bytes, end;
        uint32_t len = op->read->ref.len_bytes;
        char name[48];
        int rc;

        if (store->slow &&
                (op->plain ? op->plain->direct.fd : op->segment->file.fd) < 0)
                return -EAGAIN;
        if (op->plain) {
                at = (at >> SHEAF_PLAIN_GEN_BITS) * SHEAF_CHUNK_BYTES_MAX;
                sheaf_plain_name(op->plain->node, "", name);
                rc = sheaf_file_enter(store, &op->plain->direct, name, true);
                if (rc)
                        return container_lost(store, op, rc);
                op->io.fd = op->plain->direct.fd;
                op->io.offset_bytes = at;
                op->io.min_bytes = len;
                *ret_bytes = sheaf_round_up(len, SHEAF_DISK_PAGE);
                return 0;
        }
        sheaf_segment_name(op->segment->number, name);
        rc = sheaf_file_enter(store, &op->segment->file, name, true);
        if (rc)
                return container_lost(store, op, rc);
        end = at + sizeof(struct sheaf_disk_record) + len;
        op->io.fd = op->segment->file.fd;
        op->io.offset_bytes = at & ~(SHEAF_DISK_PAGE - 1);
        op->skip_bytes = at - op->io.offset_bytes;
        op->io.min_bytes = end - op->io.offset_bytes;
        *ret_bytes = sheaf_round_up(end, SHEAF_DISK_PAGE) - op->io.offset_bytes;
        return 0;
}

static void start(struct sheaf_store *store, struct sheaf_read_op *op,
        struct sheaf_buffer *buffer)
{
        struct sheaf_store_read *read = op->read;
        size_t bytes = 0;
        int rc = aim(store, op, &bytes);

        if (rc) {
                free(op);
                release_buffer(store, read);
                sheaf_store_finish_read(store, read, rc);
                return;
        }
        if (op->segment)
                op->segment->busy++;
        else
                sheaf_plain_enter(op->plain);
        op->io.op = SHEAF_DISK_READ;
        op->io.buf = buffer->bytes;
        op->io.len_bytes = bytes;
        op->io.fixed = (int)buffer->class;
        op->io.done = read_done;
        sheaf_disk_submit(store->disk, &op->io);
}

static void begin(struct sheaf_store *store, struct sheaf_store_read *read)
{
        struct sheaf_read_private *p = sheaf_read_private(read);
        unsigned int class =
                sheaf_buffers_class(read->ref.len_bytes + 2 * SHEAF_DISK_PAGE);
        struct sheaf_buffer *buffer;
        struct sheaf_read_op *op;
        struct sheaf_place place;

        if (sheaf_version_find(read->ref.version, read->ref.chunk, &place)) {
                sheaf_store_finish_read(store, read, -ENOENT);
                return;
        }
        buffer = sheaf_buffers_take(&store->buffers, class);
        if (!buffer) {
                p->next = NULL;
                *store->wait_tail[class] = read;
                store->wait_tail[class] = &p->next;
                return;
        }
        p->buffer = buffer;
        op = sheaf_new(struct sheaf_read_op, 1);
        if (!op) {
                release_buffer(store, read);
                sheaf_store_finish_read(store, read, -ENOMEM);
                return;
        }
        op->store = store;
        op->read = read;
        op->place = place;
        op->digest = read->ref.version->digests[read->ref.chunk];
        if (sheaf_place_plain(&place))
                op->plain = sheaf_plain_find(store, sheaf_place_node(&place));
        else
                op->segment = sheaf_segment_at(store, place.container);
        start(store, op, buffer);
}

void sheaf_store_read(struct sheaf_store *store, struct sheaf_store_read *read)
{
        struct sheaf_read_private *p = sheaf_read_private(read);

        read->bytes = NULL;
        p->buffer = NULL;
        p->store = store;
        begin(store, read);
}

void sheaf_store_read_end(struct sheaf_store_read *read)
{
        release_buffer(sheaf_read_private(read)->store, read);
}
