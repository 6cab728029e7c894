/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of segments: a file of full length, of which blocks are taken as it
 * fills, from both ends.
 *
 *    header | records -> room_bytes ... hole ... tail_bytes <- summary
 *
 *  1 a new generation is durable in the header before a segment is OPEN, and
 *    before anything that lay behind it is given back or overwritten
 *  2 blocks count against the limit before they are taken: a step is reserved,
 *    then what the file has is looked at
 *  3 steps double, so that a tiny dataset is cheap and a large one grows in
 *    few calls; near the limit a step is what one record needs
 *  4 a segment that is used again gives its blocks back, unless the disk is
 *    short: then they could not be had again */
#include "daemon/store/private.h"

#include <fcntl.h>
#include <sys/stat.h>

struct making {
        struct sheaf_disk_io io;
        struct sheaf_store *store;
        struct sheaf_group *group;
        struct sheaf_segment *segment;
        uint64_t room_bytes, tail_bytes; /* as they shall be */
        uint64_t reserved_bytes, disk_bytes;
        bool fresh, trim;
        char name[32];
        _Alignas(4096) uint8_t page[4096];
};

struct growing {
        struct sheaf_disk_io io;
        struct sheaf_store *store;
        struct sheaf_group *group;
        struct sheaf_segment *segment;
        uint64_t room_bytes, tail_bytes; /* as they shall be */
        uint64_t reserved_bytes;
};

/* pool: both ends of a file of full length */
static int take_ends(const struct making *making, int fd)
{
        uint64_t bytes = making->store->segment_bytes;
        int rc = sheaf_again(ftruncate(fd, (off_t)bytes)) ? -errno : 0;

        if (!rc)
                rc = sheaf_file_room(fd, 0, making->room_bytes);
        if (!rc)
                rc = sheaf_file_room(fd, bytes - making->tail_bytes, bytes);
        return rc;
}

/* Where both ends have met, all of the file is for either. */
static void note(const struct sheaf_store *store, struct sheaf_segment *segment,
        uint64_t room_bytes, uint64_t tail_bytes)
{
        bool whole = room_bytes + tail_bytes >= store->segment_bytes;

        segment->room_bytes = whole ? store->segment_bytes : room_bytes;
        segment->tail_bytes = whole ? store->segment_bytes : tail_bytes;
}

/* ---- making a segment ready ---- */

/* pool */
static int open_file(const struct making *making)
{
        const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW |
                          (making->fresh ? O_CREAT | O_TRUNC : 0);
        int fd = sheaf_again(
                openat(making->store->dir_fd, making->name, flags, 0600));

        if (fd < 0 && errno == ENOENT && making->fresh) {
                /* Somebody removed the directory. */
                mkdirat(making->store->dir_fd, "segments", 0700);
                fd = sheaf_again(openat(
                        making->store->dir_fd, making->name, flags, 0600));
        }
        return fd < 0 ? -errno : fd;
}

/* pool */
static int make_work(struct sheaf_disk_io *io)
{
        struct making *making = (struct making *)io;
        struct stat st;
        int rc = open_file(making);
        sheaf_autofd int fd = rc;

        if (rc < 0)
                return rc;
        rc = making->trim ? 0 : take_ends(making, fd);
        if (!rc && sheaf_write_at(fd, making->page, sizeof(making->page), 0))
                rc = -EIO;
        if (!rc && sheaf_again(fsync(fd)))
                rc = -errno;
        if (!rc && making->trim &&
                sheaf_again(ftruncate(fd, (off_t)sizeof(making->page))))
                rc = -errno;
        if (!rc && making->trim)
                rc = take_ends(making, fd);
        if (!rc && fstat(fd, &st))
                rc = -errno;
        if (rc) {
                unlinkat(making->store->dir_fd, making->name, 0);
                return rc;
        }
        making->disk_bytes = (uint64_t)st.st_blocks * 512;
        return 0;
}

static void make_done(struct sheaf_disk_io *io, int rc)
{
        struct making *making = (struct making *)io;
        struct sheaf_store *store = making->store;
        struct sheaf_group *group = making->group;
        struct sheaf_segment *segment = making->segment;
        bool fresh = making->fresh;

        group->append.making = false;
        store->reserved_bytes -= making->reserved_bytes;
        segment->busy--;
        if (rc) {
                sheaf_segment_vanish(store, segment);
                free(making);
                /* A file of old that vanished is only forgotten. */
                if (rc == -ENOENT && !fresh)
                        rc = 0;
                sheaf_append_resume(
                        store, group, rc ? sheaf_space_failed(store, rc) : 0);
                return;
        }
        store->segment_disk_bytes += making->disk_bytes - segment->disk_bytes;
        segment->disk_bytes = making->disk_bytes;
        note(store, segment, making->room_bytes, making->tail_bytes);
        segment->state = SHEAF_SEGMENT_OPEN;
        segment->end_bytes = SHEAF_DISK_PAGE;
        store->stats.container_written_bytes += sizeof(making->page);
        if (segment->disk_bytes >= store->segment_bytes &&
                making->room_bytes < store->segment_bytes / 2)
                store->holes_missing = true;
        group->append.segment = segment;
        sheaf_space_wrote(store);
        free(making);
        sheaf_append_resume(store, group, 0);
        sheaf_space_enforce(store);
}

static void make_header(struct making *making)
{
        struct sheaf_disk_segment *header =
                (struct sheaf_disk_segment *)making->page;

        *header = (struct sheaf_disk_segment){
                .magic = SHEAF_DISK_SEGMENT_MAGIC,
                .layout = SHEAF_DISK_LAYOUT,
                .number = making->segment->number,
                .generation = making->segment->generation,
                .segment_bytes = making->store->segment_bytes,
                .group = making->group->id,
        };
        sheaf_mac_seal(making->store->mac, header, sizeof(*header));
}

static uint64_t first_bytes(const struct sheaf_store *store)
{
        return store->holes_missing ? store->segment_bytes
                                    : SHEAF_SEGMENT_FIRST_BYTES;
}

/* What the file shall have. One that is used again keeps what it has while the
 * disk could not give it back. */
static void plan(struct making *making)
{
        struct sheaf_store *store = making->store;
        struct sheaf_segment *segment = making->segment;
        uint64_t has = SHEAF_MIN(segment->room_bytes + segment->tail_bytes,
                store->segment_bytes);

        making->tail_bytes = SHEAF_DISK_PAGE;
        making->room_bytes = first_bytes(store) - making->tail_bytes;
        if (!making->fresh && has > first_bytes(store) &&
                sheaf_space_short(store, store->segment_bytes)) {
                making->room_bytes = segment->room_bytes;
                making->tail_bytes = segment->tail_bytes;
        }
        making->trim =
                !making->fresh && !store->holes_missing &&
                making->room_bytes + making->tail_bytes < segment->disk_bytes;
        making->reserved_bytes = making->room_bytes + making->tail_bytes;
        making->reserved_bytes -=
                SHEAF_MIN(segment->disk_bytes, making->reserved_bytes);
}

int sheaf_room_make(struct sheaf_store *store, struct sheaf_group *group)
{
        struct making *making;
        struct sheaf_segment *segment;
        bool fresh = false;
        int got = sheaf_space_reuse(store, NULL, &segment);

        if (got) {
                int rc = sheaf_space_room(store, first_bytes(store));

                if (rc)
                        got = sheaf_space_reuse(store, group, &segment);
                if (rc && got)
                        return got == -EINPROGRESS
                                       ? got
                                       : sheaf_space_refused(
                                                 store, first_bytes(store), rc);
        }
        if (got) {
                segment = sheaf_segment_add(store, 0);
                fresh = true;
                if (!segment)
                        return -ENOMEM;
        }
        making = aligned_alloc(4096, sheaf_round_up(sizeof(*making), 4096));
        if (!making) {
                if (fresh)
                        sheaf_segment_vanish(store, segment);
                return -ENOMEM;
        }
        memset(making, 0, sizeof(*making));
        making->io.op = SHEAF_DISK_WORK;
        making->io.work = make_work;
        making->io.done = make_done;
        making->store = store;
        making->group = group;
        making->segment = segment;
        making->fresh = fresh;
        sheaf_file_shut(store, &segment->file);
        segment->state = SHEAF_SEGMENT_MAKING;
        segment->group = group->id;
        segment->busy++;
        sheaf_segment_name(segment->number, making->name);
        make_header(making);
        plan(making);
        store->reserved_bytes += making->reserved_bytes;
        group->append.making = true;
        sheaf_disk_submit(store->disk, &making->io);
        return 0;
}

/* ---- growing ---- */

bool sheaf_room_fits(const struct sheaf_segment *segment, uint64_t len_bytes)
{
        return sheaf_room_end(segment, len_bytes) <= segment->room_bytes &&
               sheaf_disk_summary_bytes(segment->records + 1) <=
                       segment->tail_bytes;
}

/* pool */
static int grow_work(struct sheaf_disk_io *io)
{
        struct growing *growing = (struct growing *)io;
        uint64_t bytes = growing->store->segment_bytes;
        int rc = sheaf_file_room(
                io->fd, growing->segment->room_bytes, growing->room_bytes);

        if (!rc)
                rc = sheaf_file_room(io->fd, bytes - growing->tail_bytes,
                        bytes - growing->segment->tail_bytes);
        return rc;
}

static void grow_done(struct sheaf_disk_io *io, int rc)
{
        struct growing *growing = (struct growing *)io;
        struct sheaf_store *store = growing->store;
        struct sheaf_group *group = growing->group;
        struct sheaf_segment *segment = growing->segment;

        store->reserved_bytes -= growing->reserved_bytes;
        if (!rc)
                note(store, segment, growing->room_bytes, growing->tail_bytes);
        sheaf_segment_account(store, segment);
        group->append.making = false;
        if (rc && rc != -ENOSPC && rc != -EDQUOT &&
                group->append.segment == segment)
                sheaf_append_drop(store, group);
        sheaf_segment_unbusy(store, segment);
        free(growing);
        sheaf_append_resume(
                store, group, rc ? sheaf_space_failed(store, rc) : 0);
}

static uint64_t taken(const struct sheaf_store *store, uint64_t room_bytes,
        uint64_t tail_bytes)
{
        return SHEAF_MIN(room_bytes + tail_bytes, store->segment_bytes);
}

static uint64_t more_than(
        const struct growing *growing, const struct sheaf_segment *segment)
{
        const struct sheaf_store *store = growing->store;

        return taken(store, growing->room_bytes, growing->tail_bytes) -
               taken(store, segment->room_bytes, segment->tail_bytes);
}

/* What one record needs; with @step as much as the segment has, or a step. */
static void aim(struct growing *growing, uint64_t len_bytes, bool step)
{
        const struct sheaf_segment *segment = growing->segment;
        uint64_t bytes = growing->store->segment_bytes;
        uint64_t room = sheaf_room_end(segment, len_bytes);
        uint64_t tail = sheaf_disk_summary_bytes(segment->records + 1);

        if (step && room > segment->room_bytes)
                room = SHEAF_MAX(
                        room, segment->room_bytes +
                                      SHEAF_MIN(segment->room_bytes,
                                              SHEAF_SEGMENT_STEP_BYTES));
        if (step && tail > segment->tail_bytes)
                tail *= 2;
        growing->tail_bytes = SHEAF_MAX(segment->tail_bytes,
                SHEAF_MIN(tail, bytes - sheaf_room_end(segment, len_bytes)));
        growing->room_bytes = SHEAF_MAX(segment->room_bytes,
                SHEAF_MIN(room, bytes - growing->tail_bytes));
}

/* Closes the group's segment; one without records would only be found again. */
static void leave(struct sheaf_store *store, struct sheaf_group *group)
{
        struct sheaf_segment *segment = group->append.segment;

        if (segment->busy || segment->records || group->append.buffer) {
                sheaf_append_drop(store, group);
                return;
        }
        sheaf_append_detach(store, segment);
        sheaf_segment_unlink(store, segment);
}

/* Room for what @growing wants, or for the record alone. 0; 1: the group's
 * segment was closed, one with blocks of its own is free; -EINPROGRESS: room
 * comes; why not. */
static int find_room(struct growing *growing, uint64_t len_bytes)
{
        const struct sheaf_segment empty = { .end_bytes = SHEAF_DISK_PAGE };
        struct sheaf_store *store = growing->store;
        struct sheaf_segment *segment = growing->segment;
        uint64_t given_bytes = 0, least;
        int rc = sheaf_space_room(store, more_than(growing, segment));

        if (!rc)
                return 0;
        aim(growing, len_bytes, false);
        least = more_than(growing, segment);
        while ((rc = sheaf_space_room(store, least))) {
                struct sheaf_segment *other;
                int got = sheaf_space_reuse(store, growing->group, &other);

                if (got == -EINPROGRESS)
                        return got;
                if (got)
                        break;
                if (rc == -ENOSPC && other->room_bytes >= sheaf_room_end(&empty,
                                                                  len_bytes)) {
                        leave(store, growing->group);
                        return 1;
                }
                given_bytes += other->disk_bytes;
                sheaf_segment_unlink(store, other);
                /* What was given went to others: no more is. */
                if (rc != -EDQUOT && given_bytes >= 2 * least)
                        break;
        }
        return rc ? sheaf_space_refused(store, least, rc) : 0;
}

int sheaf_room_grow(struct sheaf_store *store, struct sheaf_group *group,
        uint64_t len_bytes)
{
        struct sheaf_segment *segment = group->append.segment;
        struct growing *growing = sheaf_new(struct growing, 1);
        char name[32];
        int rc;

        if (!growing)
                return -ENOMEM;
        growing->store = store;
        growing->group = group;
        growing->segment = segment;
        aim(growing, len_bytes, true);
        rc = find_room(growing, len_bytes);
        if (rc) {
                free(growing);
                return rc < 0 ? rc : 0;
        }
        sheaf_segment_name(segment->number, name);
        if (sheaf_file_enter(store, &segment->file, name, true)) {
                /* The file vanished: another one is made. */
                sheaf_append_drop(store, group);
                free(growing);
                return 0;
        }
        growing->io.op = SHEAF_DISK_WORK;
        growing->io.work = grow_work;
        growing->io.done = grow_done;
        growing->io.fd = segment->file.fd;
        growing->reserved_bytes = more_than(growing, segment);
        store->reserved_bytes += growing->reserved_bytes;
        segment->busy++;
        group->append.making = true;
        sheaf_disk_submit(store->disk, &growing->io);
        return 0;
}
