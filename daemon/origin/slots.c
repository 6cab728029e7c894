/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of reads to a reader, and what it answers.
 *
 *  1 a slot belongs to one read from its sending until the bytes are ended;
 *    one whose read timed out stays taken until the reader answers or dies
 *  2 every reply is checked against what was asked; a reader that answers
 *    something else is lost
 *
 * Threads: loop thread only. */
#include "daemon/origin/origin_impl.h"
#include "daemon/origin/reader.h"

#define BATCH_PATH_BYTES (48 * SHEAF_KIB)
#define ERRNO_MAX        4095
#define RECORDS_A_TURN   16

int sheaf_request_send(
        struct sheaf_reader *reader, const SheafReader__Request *request)
{
        size_t len = sheaf_reader__request__get_packed_size(request);
        sheaf_autofree uint8_t *data = malloc(len ? len : 1);

        if (!data)
                return -ENOMEM;
        sheaf_reader__request__pack(request, data);
        return sheaf_wire_send_record(reader->sock, data, len, NULL, 0);
}

/* One message on its way. */
struct batch {
        size_t count, paths_bytes;
        SheafReader__Read reads[SHEAF_ORIGIN_SLOTS];
        SheafReader__Read *reads_p[SHEAF_ORIGIN_SLOTS];
        SheafReader__Identity identities[SHEAF_ORIGIN_SLOTS];
        char paths[BATCH_PATH_BYTES + 1];
};

/* Puts @read into the batch. 0; -EAGAIN: it does not fit any more; -errno:
 * it never will. */
static int add(struct batch *batch, const struct sheaf_origin_read *read,
        uint64_t id, uint32_t slot)
{
        const struct sheaf_listing_entry *e =
                &read->listing->entries[read->entry];
        SheafReader__Identity *identity = &batch->identities[batch->count];
        SheafReader__Read *out = &batch->reads[batch->count];
        size_t room = BATCH_PATH_BYTES - batch->paths_bytes;
        char *path = batch->paths + batch->paths_bytes;
        size_t len =
                sheaf_listing_path(read->listing, read->entry, path, room + 1);

        if (len > BATCH_PATH_BYTES)
                return -ENAMETOOLONG;
        if (len > room)
                return -EAGAIN;
        batch->paths_bytes += len;
        sheaf_reader__identity__init(identity);
        identity->ino = e->origin_ino;
        identity->size_bytes = e->size_bytes;
        identity->mtime_sec = e->mtime_sec;
        identity->mtime_nsec = e->mtime_nsec;
        identity->ctime_packed = e->ctime_packed;
        sheaf_reader__read__init(out);
        out->id = id;
        out->slot = slot;
        out->path.data = (uint8_t *)path;
        out->path.len = len;
        out->offset_bytes = read->index * SHEAF_CHUNK_BYTES_MAX;
        out->len_bytes = sheaf_listing_chunk_len(
                read->listing, read->entry, read->index);
        out->identity = identity;
        out->follow = e->flags & SHEAF_LISTING_FOLLOWED;
        batch->reads_p[batch->count++] = out;
        return 0;
}

/* A slot for a chunk of this length, or SHEAF_ORIGIN_SLOTS. Small chunks
 * leave the large slots to large ones while they can. */
static uint32_t free_slot(const struct sheaf_reader *reader, uint64_t len_bytes)
{
        const struct sheaf_reader_slot *slots = reader->slots;

        if (len_bytes <= SHEAF_ORIGIN_SMALL_BYTES)
                for (uint32_t i = SHEAF_ORIGIN_SLOTS_LARGE;
                        i < SHEAF_ORIGIN_SLOTS; i++)
                        if (slots[i].state == SHEAF_SLOT_FREE)
                                return i;
        for (uint32_t i = 0; i < SHEAF_ORIGIN_SLOTS_LARGE; i++)
                if (slots[i].state == SHEAF_SLOT_FREE)
                        return i;
        return SHEAF_ORIGIN_SLOTS;
}

static void fill(
        struct sheaf_origin *origin, struct batch *batch, int64_t now_ns)
{
        struct sheaf_reader *reader = origin->reader;
        struct sheaf_read_priv *priv;

        while ((priv = TAILQ_FIRST(&origin->queue))) {
                const struct sheaf_origin_read *read = priv->read;
                uint32_t slot =
                        free_slot(reader, sheaf_listing_chunk_len(read->listing,
                                                  read->entry, read->index));
                uint64_t id = ++origin->next_id;
                int rc;

                if (slot == SHEAF_ORIGIN_SLOTS)
                        return;
                rc = add(batch, read, id, slot);
                if (rc == -EAGAIN)
                        return;
                TAILQ_REMOVE(&origin->queue, priv, entry);
                origin->queued--;
                if (rc) {
                        sheaf_origin_fail_later(priv, rc);
                        continue;
                }
                reader->slots[slot] = (struct sheaf_reader_slot){
                        .read = priv,
                        .id = id,
                        .sent_ns = now_ns,
                        .state = SHEAF_SLOT_BUSY,
                };
                reader->busy++;
                priv->state = SHEAF_READ_SENT;
                priv->reader = reader;
                priv->slot = slot;
        }
}

/* What could not be sent goes back to where it was. */
static void take_back(struct sheaf_origin *origin, struct batch *batch)
{
        for (size_t i = batch->count; i--;) {
                struct sheaf_reader_slot *slot =
                        &origin->reader->slots[batch->reads[i].slot];

                slot->state = SHEAF_SLOT_FREE;
                origin->reader->busy--;
                slot->read->state = SHEAF_READ_QUEUED;
                slot->read->reader = NULL;
                TAILQ_INSERT_HEAD(&origin->queue, slot->read, entry);
                origin->queued++;
        }
}

int sheaf_slots_send(struct sheaf_origin *origin)
{
        int64_t now_ns = sheaf_now_ns();

        for (;;) {
                SheafReader__Request request = SHEAF_READER__REQUEST__INIT;
                SheafReader__Reads reads = SHEAF_READER__READS__INIT;
                struct batch batch;
                int rc;

                batch.count = batch.paths_bytes = 0;
                fill(origin, &batch, now_ns);
                if (!batch.count)
                        return 0;
                reads.n_read = batch.count;
                reads.read = batch.reads_p;
                request.body_case = SHEAF_READER__REQUEST__BODY_READS;
                request.reads = &reads;
                rc = sheaf_request_send(origin->reader, &request);
                if (rc) {
                        take_back(origin, &batch);
                        return rc;
                }
        }
}

/* ---- replies ---- */

static int take_read_done(
        struct sheaf_reader *reader, const SheafReader__ReadDone *done)
{
        struct sheaf_reader_slot *slot = reader->slots;
        struct sheaf_read_priv *priv;
        int rc = done->rc;

        while (slot->state != SHEAF_SLOT_BUSY || slot->id != done->id) {
                if (++slot == reader->slots + SHEAF_ORIGIN_SLOTS)
                        return -EPROTO;
        }
        if (rc < -ERRNO_MAX || rc > SHEAF_ORIGIN_CTIME_MOVED)
                return -EPROTO;
        priv = slot->read;
        slot->state = SHEAF_SLOT_FREE;
        reader->busy--;
        if (!priv)
                return 0;
        if (rc >= 0) {
                slot->state = SHEAF_SLOT_HELD;
                reader->held++;
                priv->read->bytes =
                        reader->buffers + priv->slot * SHEAF_CHUNK_BYTES_MAX;
                priv->read->new_ctime_packed = done->new_ctime_packed;
        }
        reader->origin->stats.read_ns_total +=
                (uint64_t)(sheaf_now_ns() - slot->sent_ns);
        sheaf_origin_complete(priv, rc);
        return 0;
}

static void copy_path(char out[256], const ProtobufCBinaryData *path)
{
        size_t len = SHEAF_MIN(path->len, 255);

        memcpy(out, path->data, len);
        out[len] = 0;
}

static int take_listed(struct sheaf_reader *reader,
        const SheafReader__Listed *listed, int *memfd)
{
        struct sheaf_call_priv *list = reader->origin->list;
        struct sheaf_origin_summary s = {
                .dirs = listed->dirs,
                .files = listed->files,
                .links = listed->links,
                .hard_links = listed->hard_links,
                .bytes = listed->bytes,
                .escaping_links = listed->escaping_links,
                .followed_links = listed->followed_links,
                .skipped_special = listed->skipped_special,
                .skipped_names = listed->skipped_names,
                .unreadable_dirs = listed->unreadable_dirs,
                .unreadable_files = listed->unreadable_files,
        };
        int rc = listed->rc;

        if (rc > 0 || rc < -ERRNO_MAX || (!rc && *memfd < 0))
                return -EPROTO;
        if (!list || list->id != listed->id)
                return 0; /* of a listing that was cancelled */
        if (listed->first_escaping.len)
                copy_path(s.first_escaping, &listed->first_escaping);
        if (listed->first_unreadable.len)
                copy_path(s.first_unreadable, &listed->first_unreadable);
        sheaf_origin_call_done(list, rc, rc ? -1 : sheaf_steal_fd(memfd), &s);
        return 0;
}

static int take_probed(
        struct sheaf_reader *reader, const SheafReader__Probed *probed)
{
        struct sheaf_call_priv *probe = reader->origin->probe;

        if (!probe || probe->id != probed->id || probed->rc > 0 ||
                probed->rc < -ERRNO_MAX)
                return -EPROTO;
        sheaf_origin_call_done(probe, probed->rc, -1, NULL);
        return 0;
}

static void take_progress(
        struct sheaf_reader *reader, const SheafReader__Listing *listing)
{
        struct sheaf_call_priv *priv = reader->origin->list;
        struct sheaf_origin_list *list;

        if (!priv || priv->id != listing->id)
                return;
        priv->heard_ns = sheaf_now_ns();
        list = priv->call;
        if (list->progress)
                list->progress(list, listing->entries);
}

/* Callbacks may free the origin or lose the reader: then no more is taken. */
static bool gone(const struct sheaf_reader *reader)
{
        return reader->killed;
}

static int take_reply(struct sheaf_reader *reader,
        const SheafReader__Reply *reply, int *memfd)
{
        int rc = 0;

        reader->replies++;
        switch (reply->body_case) {
        case SHEAF_READER__REPLY__BODY_READS_DONE:
                for (size_t i = 0;
                        i < reply->reads_done->n_read && !rc && !gone(reader);
                        i++)
                        rc = take_read_done(reader, reply->reads_done->read[i]);
                return rc;
        case SHEAF_READER__REPLY__BODY_LISTING:
                take_progress(reader, reply->listing);
                return 0;
        case SHEAF_READER__REPLY__BODY_LISTED:
                return take_listed(reader, reply->listed, memfd);
        case SHEAF_READER__REPLY__BODY_PROBED:
                return take_probed(reader, reply->probed);
        default:
                return -EPROTO;
        }
}

static int receive_one(struct sheaf_reader *reader, uint8_t *data)
{
        int fds[SHEAF_WIRE_FDS_MAX], memfd, rc;
        SheafReader__Reply *reply;
        size_t len, fd_count;

        rc = sheaf_wire_recv_record(
                reader->sock, data, SHEAF_WIRE_BYTES_MAX, &len, fds, &fd_count);
        if (rc < 0)
                return rc;
        if (!rc)
                return -EPIPE;
        memfd = fd_count ? fds[0] : -1;
        for (size_t i = 1; i < fd_count; i++)
                close(fds[i]);
        reply = sheaf_reader__reply__unpack(NULL, len, data);
        rc = reply ? take_reply(reader, reply, &memfd) : -EBADMSG;
        if (reply)
                sheaf_reader__reply__free_unpacked(reply, NULL);
        sheaf_close_p(&memfd);
        return rc;
}

int sheaf_slots_receive(struct sheaf_reader *reader)
{
        uint8_t data[SHEAF_WIRE_BYTES_MAX];

        /* Bounded: a flood from one reader must not hold up the loop. */
        for (int i = 0; i < RECORDS_A_TURN && !gone(reader); i++) {
                int rc = receive_one(reader, data);

                if (rc)
                        return rc == -EAGAIN ? 0 : rc;
        }
        return 0;
}
