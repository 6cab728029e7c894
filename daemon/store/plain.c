/* SPDX-License-Identifier: Apache-2.0 */
/* Files over 4 MiB: one sparse file each, at the original offsets, and a map
 * of the digests of the chunks that are in it.
 *
 *  1 a digest enters the map after its chunk was written
 *  2 places carry the generation that the file got when it was made, so a
 *    file that is made again satisfies no old place
 *  3 a file leaves whole; while it is read or leased it lives on without a
 *    name, and its bytes stay counted; its names go on the pool (leave.c)
 *  4 the mark of a checked file is set by plain_check.c only, and any write
 *    takes it away first */
#include "daemon/store/private.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>

/* What disks want of addresses; -EINVAL from one that wants more. */
#define DIRECT_ALIGN 512
/* Room that a new file takes beside its chunks. */
#define FILE_BYTES (64 * SHEAF_KIB)

struct plain_write {
        struct sheaf_disk_io io;
        struct sheaf_store *store;
        struct sheaf_plain *plain;
        struct sheaf_store_write *write;
        uint64_t index;
        bool direct;
};

static struct sheaf_plain **bucket(struct sheaf_store *store, uint64_t node)
{
        uint64_t mixed = node * UINT64_C(0x9e3779b97f4a7c15);

        return &store->plains[mixed >> 52 & (SHEAF_PLAIN_BUCKETS - 1)];
}

struct sheaf_plain *sheaf_plain_find(
        const struct sheaf_store *store, uint64_t node)
{
        struct sheaf_plain *plain = *bucket((struct sheaf_store *)store, node);

        while (plain && plain->node != node)
                plain = plain->next;
        return plain;
}

void sheaf_plain_name(uint64_t node, const char *suffix, char ret_name[48])
{
        snprintf(ret_name, 48, "plain/%016llx%s", (unsigned long long)node,
                suffix);
}

bool sheaf_plain_complete(const struct sheaf_plain *plain)
{
        return plain->present == plain->chunk_count;
}

static void plain_free(struct sheaf_store *store, struct sheaf_plain *plain)
{
        sheaf_file_shut(store, &plain->file);
        sheaf_file_shut(store, &plain->direct);
        sheaf_file_shut(store, &plain->map);
        free(plain->digests);
        free(plain);
}

void sheaf_plain_enter(struct sheaf_plain *plain)
{
        plain->busy++;
}

void sheaf_plain_leave(struct sheaf_store *store, struct sheaf_plain *plain)
{
        struct sheaf_plain **at = &store->plains_doomed;

        if (--plain->busy || !plain->doomed || plain->leases)
                return;
        while (*at != plain)
                at = &(*at)->next;
        *at = plain->next;
        store->doomed_bytes -= plain->disk_bytes;
        sheaf_leave_ended(store, plain);
        plain_free(store, plain);
}

void sheaf_plain_unlink(const struct sheaf_store *store, uint64_t node)
{
        char name[48];

        /* The map first: without it the file is only a leftover. */
        sheaf_plain_name(node, ".map", name);
        unlinkat(store->dir_fd, name, 0);
        sheaf_plain_name(node, "", name);
        unlinkat(store->dir_fd, name, 0);
}

/* All but the names; the caller has one use of it. */
static void doom(struct sheaf_store *store, struct sheaf_plain *plain)
{
        struct sheaf_plain **at = bucket(store, plain->node);

        for (struct sheaf_version *v = store->versions; v; v = v->next)
                sheaf_version_plain_gone(v, plain->node);
        while (*at != plain)
                at = &(*at)->next;
        *at = plain->next;
        store->stats.chunks -= plain->present;
        for (uint64_t i = 0; i < plain->chunk_count; i++) {
                if (sheaf_digest_known(&plain->digests[i]))
                        store->stats.payload_bytes -=
                                sheaf_chunk_len(plain->size_bytes, i);
        }
        store->plain_count--;
        store->plain_bytes -= plain->disk_bytes;
        plain->doomed = true;
        plain->next = store->plains_doomed;
        store->plains_doomed = plain;
        store->doomed_bytes += plain->disk_bytes;
        plain->busy++;
}

void sheaf_plain_drop(struct sheaf_store *store, struct sheaf_plain *plain)
{
        doom(store, plain);
        sheaf_leave_add(store, plain);
}

void sheaf_plain_give_way(struct sheaf_store *store, struct sheaf_plain *plain)
{
        plain->gives_way = true;
        store->giving_way++;
        sheaf_plain_drop(store, plain);
}

void sheaf_plain_drop_group(struct sheaf_store *store, uint64_t group)
{
        for (size_t b = 0; b < SHEAF_PLAIN_BUCKETS; b++) {
                struct sheaf_plain *plain = store->plains[b];

                while (plain) {
                        struct sheaf_plain *next = plain->next;

                        if (plain->group == group)
                                sheaf_plain_drop(store, plain);
                        plain = next;
                }
        }
}

void sheaf_plain_header(struct sheaf_store *store,
        const struct sheaf_plain *plain, struct sheaf_disk_map *ret_header)
{
        *ret_header = (struct sheaf_disk_map){
                .magic = SHEAF_DISK_MAP_MAGIC,
                .layout = SHEAF_DISK_LAYOUT,
                .generation = plain->generation,
                .node = plain->node,
                .group = plain->group,
                .size_bytes = plain->size_bytes,
                .chunk_count = plain->chunk_count,
        };
        if (plain->marked)
                ret_header->mark = plain->mark;
        sheaf_mac_seal(store->mac, ret_header, sizeof(*ret_header));
}

static int write_header(struct sheaf_store *store, struct sheaf_plain *plain)
{
        struct sheaf_disk_map header;
        char name[48];
        int rc;

        sheaf_plain_name(plain->node, ".map", name);
        rc = sheaf_file_enter(store, &plain->map, name, false);
        if (rc)
                return rc;
        sheaf_plain_header(store, plain, &header);
        if (sheaf_write_at(plain->map.fd, &header, sizeof(header), 0))
                rc = -EIO;
        sheaf_file_leave(store, &plain->map);
        return rc;
}

static int make_files(struct sheaf_store *store, struct sheaf_plain *plain)
{
        char name[48];
        sheaf_autofd int fd = -1;
        sheaf_autofd int map_fd = -1;
        off_t map_bytes =
                (off_t)(sizeof(struct sheaf_disk_map) +
                        plain->chunk_count * sizeof(struct sheaf_digest));
        int64_t start_ns = sheaf_now_ns();

        if (mkdirat(store->dir_fd, "plain", 0700) && errno != EEXIST)
                return -errno;
        if (sheaf_pulse_late(store, start_ns))
                return -ETIMEDOUT;
        sheaf_plain_name(plain->node, "", name);
        fd = sheaf_again(openat(store->dir_fd, name,
                O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
        if (fd < 0 || sheaf_again(ftruncate(fd, (off_t)plain->size_bytes)))
                return -errno;
        if (sheaf_pulse_late(store, start_ns))
                return -ETIMEDOUT;
        sheaf_plain_name(plain->node, ".map", name);
        map_fd = sheaf_again(openat(store->dir_fd, name,
                O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
        if (map_fd < 0 || sheaf_again(ftruncate(map_fd, map_bytes)))
                return -errno;
        return write_header(store, plain);
}

static struct sheaf_plain *plain_new(uint64_t node, uint64_t size_bytes)
{
        struct sheaf_plain *plain = sheaf_new(struct sheaf_plain, 1);

        if (!plain)
                return NULL;
        plain->node = node;
        plain->size_bytes = size_bytes;
        plain->chunk_count = sheaf_chunk_count(size_bytes);
        plain->file.fd = plain->direct.fd = plain->map.fd = -1;
        plain->digests = sheaf_new(struct sheaf_digest, plain->chunk_count);
        if (!plain->digests) {
                free(plain);
                return NULL;
        }
        return plain;
}

static void plain_link(struct sheaf_store *store, struct sheaf_plain *plain)
{
        struct sheaf_plain **at = bucket(store, plain->node);

        plain->next = *at;
        *at = plain;
        store->plain_count++;
        store->plain_bytes += plain->disk_bytes;
}

static int plain_make(struct sheaf_store *store, uint64_t group, uint64_t node,
        uint64_t size_bytes, struct sheaf_plain **ret_plain)
{
        struct sheaf_plain *plain = plain_new(node, size_bytes);
        int rc;

        if (!plain)
                return -ENOMEM;
        plain->group = group;
        plain->fresh = true;
        if (getrandom(&plain->generation, sizeof(plain->generation),
                    GRND_NONBLOCK) < 0)
                plain->generation = (uint32_t)sheaf_wall_ns();
        plain->generation = (plain->generation & SHEAF_PLAIN_GEN_MASK) | 1;
        rc = make_files(store, plain);
        if (rc) {
                plain_free(store, plain);
                return rc;
        }
        /* Map and block lists, as du counts them. */
        plain->disk_bytes = sheaf_round_up(
                sizeof(struct sheaf_disk_map) +
                        plain->chunk_count * sizeof(struct sheaf_digest),
                SHEAF_DISK_PAGE);
        plain_link(store, plain);
        *ret_plain = plain;
        return 0;
}

static void account(struct sheaf_store *store, struct sheaf_plain *plain)
{
        char name[48];
        struct stat st, map;
        uint64_t bytes;

        if (store->slow)
                return; /* looked at by the next write */
        sheaf_plain_name(plain->node, ".map", name);
        if (fstat(plain->file.fd, &st) ||
                fstatat(store->dir_fd, name, &map, AT_SYMLINK_NOFOLLOW))
                return;
        bytes = (uint64_t)(st.st_blocks + map.st_blocks) * 512;
        if (plain->doomed)
                store->doomed_bytes += bytes - plain->disk_bytes;
        else
                store->plain_bytes += bytes - plain->disk_bytes;
        plain->disk_bytes = bytes;
}

/* The chunk is in the file: says so in the map. */
static int note_chunk(struct sheaf_store *store, struct sheaf_plain *plain,
        uint64_t index, const struct sheaf_digest *digest)
{
        uint64_t at = sizeof(struct sheaf_disk_map) + index * sizeof(*digest);
        char name[48];
        int rc;

        sheaf_plain_name(plain->node, ".map", name);
        rc = sheaf_file_enter(store, &plain->map, name, false);
        if (rc)
                return rc;
        if (sheaf_write_at(plain->map.fd, digest, sizeof(*digest), at))
                rc = -EIO;
        sheaf_file_leave(store, &plain->map);
        return rc;
}

void sheaf_plain_forget_chunk(
        struct sheaf_store *store, struct sheaf_plain *plain, uint64_t index)
{
        static const struct sheaf_digest none;
        uint32_t len = sheaf_chunk_len(plain->size_bytes, index);

        if (!sheaf_digest_known(&plain->digests[index]))
                return;
        if (note_chunk(store, plain, index, &none))
                store->stats.io_errors++; /* the hash still guards it */
        plain->digests[index] = none;
        if (plain->changed)
                plain->changed[index] = true;
        plain->present--;
        plain->fresh = false;
        store->stats.chunks--;
        store->stats.payload_bytes -= len;
}

static void write_done(struct sheaf_disk_io *io, int rc)
{
        struct plain_write *op = (struct plain_write *)io;
        struct sheaf_store *store = op->store;
        struct sheaf_plain *plain = op->plain;
        struct sheaf_write_private *p = sheaf_write_private(op->write);

        if (op->direct) {
                op->direct = false;
                sheaf_file_leave(store, &plain->direct);
                if (rc == -EINVAL) { /* a disk that wants more alignment */
                        io->fd = plain->file.fd;
                        sheaf_disk_submit(store->disk, io);
                        return;
                }
        }
        store->reserved_bytes -= io->len_bytes;
        account(store, plain);
        sheaf_file_leave(store, &plain->file);
        if (!rc && !plain->doomed)
                rc = note_chunk(store, plain, op->index, &p->digest);
        if (rc) {
                store->stats.io_errors++;
                rc = sheaf_space_failed(store, rc);
        } else if (plain->doomed) {
                rc = -EDQUOT;
        } else {
                store->stats.container_written_bytes += io->len_bytes;
                if (!sheaf_digest_known(&plain->digests[op->index])) {
                        plain->present++;
                        store->stats.chunks++;
                        store->stats.payload_bytes += io->len_bytes;
                }
                plain->digests[op->index] = p->digest;
                if (plain->changed)
                        plain->changed[op->index] = true;
                sheaf_store_published(store, op->write, &p->place);
                sheaf_space_wrote(store);
                if (sheaf_plain_complete(plain))
                        sheaf_plain_check(store, plain);
        }
        sheaf_store_finish_write(store, op->write, rc);
        sheaf_plain_leave(store, plain);
        free(op);
}

static int begin(struct sheaf_store *store, struct sheaf_store_write *write,
        uint64_t node, uint64_t size_bytes, struct sheaf_plain **ret_plain)
{
        struct sheaf_plain *plain;
        struct sheaf_group *group =
                sheaf_group_get(store, write->ref.version->group);
        uint64_t room = write->ref.len_bytes + FILE_BYTES;
        int64_t start_ns = sheaf_now_ns();
        int rc;

        if (sheaf_leave_has(store, node))
                return -EINPROGRESS;
        /* Nobody gives way while room is coming. */
        if (store->leaving_bytes &&
                sheaf_space_room(store, room + store->leaving_bytes))
                return -EINPROGRESS;
        rc = sheaf_space_room(store, room);
        while ((rc == -EDQUOT || rc == -ENOSPC) && group) {
                struct sheaf_segment *segment;
                int got = sheaf_space_reuse(store, group, &segment);

                if (got == -EINPROGRESS)
                        return got;
                if (got)
                        break;
                sheaf_segment_unlink(store, segment);
                rc = sheaf_space_room(store, room);
        }
        if (rc)
                return sheaf_space_refused(store, room, rc);
        if (sheaf_pulse_late(store, start_ns))
                return sheaf_space_failed(store, -ETIMEDOUT);
        plain = sheaf_plain_find(store, node);
        if (plain && plain->size_bytes != size_bytes) {
                sheaf_plain_drop(store, plain);
                return -EINPROGRESS;
        }
        if (plain) {
                *ret_plain = plain;
                return 0;
        }
        rc = plain_make(
                store, write->ref.version->group, node, size_bytes, ret_plain);
        return rc && rc != -ENOMEM ? sheaf_space_failed(store, rc) : rc;
}

/* Past the page cache where the bytes lie well: a copy and a page less for
 * each page. The tail of a file goes through it. */
static void go_direct(struct sheaf_store *store, struct plain_write *op)
{
        char name[48];

        if (((uintptr_t)op->io.buf | op->io.len_bytes) % DIRECT_ALIGN)
                return;
        sheaf_plain_name(op->plain->node, "", name);
        if (sheaf_file_enter(store, &op->plain->direct, name, true))
                return;
        op->direct = true;
        op->io.fd = op->plain->direct.fd;
}

/* Opens the file for the write, without a mark; what fails is told. */
static int take_file(struct sheaf_store *store, struct sheaf_store_write *write,
        uint64_t node, uint64_t size_bytes, struct sheaf_plain **ret_plain)
{
        struct sheaf_plain *plain = NULL;
        char name[48];
        int rc = begin(store, write, node, size_bytes, &plain);

        if (rc)
                return rc;
        sheaf_plain_name(node, "", name);
        rc = sheaf_file_enter(store, &plain->file, name, false);
        if (rc == -ENOENT) {
                /* It vanished behind our back: begin it anew. */
                sheaf_plain_drop(store, plain);
                return -EINPROGRESS;
        }
        if (!rc && plain->marked) {
                plain->marked = false;
                plain->fresh = false;
                rc = write_header(store, plain);
                if (rc)
                        sheaf_file_leave(store, &plain->file);
        }
        if (rc)
                return sheaf_space_failed(store, rc);
        *ret_plain = plain;
        return 0;
}

void sheaf_plain_write(struct sheaf_store *store,
        struct sheaf_store_write *write, uint64_t node, uint64_t size_bytes)
{
        struct plain_write *op = sheaf_new(struct plain_write, 1);
        struct sheaf_write_private *p = sheaf_write_private(write);
        struct sheaf_plain *plain = NULL;
        int rc = op ? take_file(store, write, node, size_bytes, &plain)
                    : -ENOMEM;

        if (rc) {
                if (rc == -EINPROGRESS)
                        sheaf_leave_wait(store, write);
                else
                        sheaf_store_finish_write(store, write, rc);
                free(op);
                return;
        }
        op->store = store;
        op->plain = plain;
        op->write = write;
        op->index = write->ref.index;
        p->place = sheaf_place_of_node(node, op->index, plain->generation);
        op->io = (struct sheaf_disk_io){
                .op = SHEAF_DISK_WRITE,
                .fd = plain->file.fd,
                .fixed = -1,
                .buf = (void *)write->bytes,
                .len_bytes = write->ref.len_bytes,
                .offset_bytes = op->index * SHEAF_CHUNK_BYTES_MAX,
                .done = write_done,
        };
        go_direct(store, op);
        store->reserved_bytes += op->io.len_bytes;
        sheaf_plain_enter(plain);
        sheaf_disk_submit(store->disk, &op->io);
}

int sheaf_plain_load(struct sheaf_store *store, uint64_t node)
{
        struct sheaf_disk_map header;
        struct sheaf_plain *plain;
        struct stat st, map;
        char name[48], map_name[48];
        sheaf_autofd int fd = -1;

        sheaf_plain_name(node, "", name);
        sheaf_plain_name(node, ".map", map_name);
        fd = sheaf_again(openat(
                store->dir_fd, map_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
        if (fd < 0 || fstat(fd, &map) ||
                fstatat(store->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW))
                return -errno;
        if (sheaf_read_at(fd, &header, sizeof(header), 0) ||
                header.magic != SHEAF_DISK_MAP_MAGIC ||
                header.layout != SHEAF_DISK_LAYOUT || header.node != node ||
                !sheaf_mac_good(store->mac, &header, sizeof(header)) ||
                (uint64_t)st.st_size != header.size_bytes ||
                !S_ISREG(st.st_mode) || !header.generation ||
                header.generation > SHEAF_PLAIN_GEN_MASK ||
                header.chunk_count != sheaf_chunk_count(header.size_bytes))
                return -EBADMSG;
        plain = plain_new(node, header.size_bytes);
        if (!plain)
                return -ENOMEM;
        if (sheaf_read_at(fd, plain->digests,
                    plain->chunk_count * sizeof(*plain->digests),
                    sizeof(header))) {
                plain_free(store, plain);
                return -EBADMSG;
        }
        plain->group = header.group;
        plain->generation = header.generation;
        plain->mark = header.mark;
        plain->marked = header.mark.ino != 0;
        plain->disk_bytes = (uint64_t)(st.st_blocks + map.st_blocks) * 512;
        plain_link(store, plain);
        for (uint64_t i = 0; i < plain->chunk_count; i++) {
                struct sheaf_place place =
                        sheaf_place_of_node(node, i, plain->generation);

                if (!sheaf_digest_known(&plain->digests[i]))
                        continue;
                plain->present++;
                store->stats.chunks++;
                store->stats.payload_bytes +=
                        sheaf_chunk_len(plain->size_bytes, i);
                sheaf_places_note(store, &plain->digests[i], &place);
        }
        return 0;
}

void sheaf_plain_deinit(struct sheaf_store *store)
{
        for (size_t b = 0; b < SHEAF_PLAIN_BUCKETS; b++) {
                while (store->plains[b]) {
                        struct sheaf_plain *plain = store->plains[b];

                        store->plains[b] = plain->next;
                        plain_free(store, plain);
                }
        }
        while (store->plains_doomed) {
                struct sheaf_plain *plain = store->plains_doomed;

                store->plains_doomed = plain->next;
                plain_free(store, plain);
        }
}
