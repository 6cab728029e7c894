/* SPDX-License-Identifier: Apache-2.0 */
/* The files behind a version's arrays: mapped, guarded, put right.
 *
 *  1 the files are fully allocated before they are mapped: a full disk must
 *    not turn a store into SIGBUS; what the disk does not give, or is cut off,
 *    is a page of zeros from then on (guard.h): not learned, nowhere on disk
 *  2 arrays that were changed are synced when their version is closed, so
 *    that a clean stop keeps what was learned; a cut of the power may lose
 *    the last seconds, which recovery finds in the records
 *  3 arrays that lost pages are written anew when their version is closed;
 *    until then what they learn lasts as long as the daemon
 *  4 a digest whose first word is 0 is not known: that word goes first and
 *    comes last, so that a kill in the midst of a change leaves none that is
 *    half of another one
 *
 * Threads: sheaf_arrays_open() any, it blocks, and so sheaf_arrays_close() of
 * what is not attached; the rest loop thread. */
#include "daemon/store/private.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>

struct array {
        const char *name;
        size_t bytes;
        int fd;
        void *map;
        bool cut; /* it was, and has begun anew */
};

/* Maps @dir/@array->name with exactly its bytes; another size means that it
 * was cut: it begins anew, all unknown. */
static int map_file(int dir_fd, struct array *array)
{
        sheaf_autofd int fd = sheaf_again(openat(dir_fd, array->name,
                O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
        struct stat st;
        void *map;
        int rc;

        if (fd < 0 || fstat(fd, &st))
                return -errno;
        if ((uint64_t)st.st_size != array->bytes) {
                if (sheaf_again(ftruncate(fd, 0)))
                        return -errno;
                rc = sheaf_file_room(fd, 0, array->bytes);
                if (rc) {
                        unlinkat(dir_fd, array->name, 0);
                        return rc;
                }
                array->cut = st.st_size != 0;
        }
        map = mmap(
                NULL, array->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
                return -errno;
        array->fd = sheaf_steal_fd(&fd);
        array->map = map;
        return 0;
}

/* The same; with a full disk the array lives in memory, for this run. */
static int map_array(int dir_fd, struct array *array)
{
        int rc = map_file(dir_fd, array);
        void *map;

        if (rc != -ENOSPC && rc != -EDQUOT && rc != -EROFS)
                return rc;
        map = mmap(NULL, array->bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED)
                return -ENOMEM;
        array->map = map;
        return sheaf_log_rc(0, SHEAF_LOG_WARN, "store_array_in_memory",
                "name=%s bytes=%zu remedy=\"free space on the disk of the "
                "cache\"",
                array->name, array->bytes);
}

/* Maps an array and guards it. */
static int open_array(struct sheaf_version *version, int dir_fd,
        struct array *array, struct sheaf_guard_range **ret_range)
{
        int rc = map_array(dir_fd, array);

        if (rc)
                return rc;
        version->cut += array->cut;
        rc = sheaf_guard_range(array->map, array->bytes, array->fd, ret_range);
        if (rc) {
                munmap(array->map, array->bytes);
                sheaf_close_p(&array->fd);
        }
        return rc;
}

void sheaf_array_set_digest(
        struct sheaf_digest *at, const struct sheaf_digest *digest)
{
        _Atomic uint64_t *to = (_Atomic uint64_t *)at->bytes;
        uint64_t words[SHEAF_DIGEST_BYTES / sizeof(uint64_t)];

        memcpy(words, digest->bytes, sizeof(words));
        atomic_store_explicit(&to[0], 0, memory_order_relaxed);
        atomic_thread_fence(memory_order_release);
        for (size_t i = 1; i < SHEAF_ARRAY_LEN(words); i++)
                atomic_store_explicit(&to[i], words[i], memory_order_relaxed);
        atomic_store_explicit(&to[0], words[0], memory_order_release);
}

/* Brings all of an array into memory: the loop thread, which counts it soon,
 * is not to wait for a disk. */
static void touch(const void *map, size_t bytes)
{
        const volatile uint8_t *byte = map;

        for (size_t at = 0; at < bytes; at += SHEAF_DISK_PAGE)
                (void)byte[at];
}

int sheaf_arrays_open(struct sheaf_version *version)
{
        uint64_t chunks = version->listing.chunk_count;
        struct array digests = {
                .name = "digests",
                .fd = -1,
                .bytes = sheaf_round_up(
                        (chunks + 1) * sizeof(struct sheaf_digest),
                        SHEAF_DISK_PAGE),
        };
        struct array places = {
                .name = "places",
                .fd = -1,
                .bytes = sheaf_round_up(
                        (chunks + 1) * sizeof(struct sheaf_place),
                        SHEAF_DISK_PAGE),
        };
        char hex[33], name[64];
        sheaf_autofd int dir_fd = -1;
        int rc;

        version->digests_fd = version->places_fd = -1;
        sheaf_version_hex(version->uuid, hex);
        snprintf(name, sizeof(name), "versions/%s", hex);
        dir_fd = sheaf_again(openat(version->store->dir_fd, name,
                O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (dir_fd < 0)
                return -errno;
        rc = open_array(version, dir_fd, &digests, &version->digests_range);
        if (rc)
                return rc;
        version->digests = digests.map;
        version->digests_bytes = digests.bytes;
        version->digests_fd = digests.fd;
        rc = open_array(version, dir_fd, &places, &version->places_range);
        if (rc)
                return rc;
        version->places = places.map;
        version->places_bytes = places.bytes;
        version->places_fd = places.fd;
        touch(version->digests, version->digests_bytes);
        touch(version->places, version->places_bytes);
        return 0;
}

/* Lost pages of both arrays; one that was cut at rest counts as one. */
unsigned int sheaf_arrays_lost(const struct sheaf_version *version)
{
        return version->cut + sheaf_guard_lost(version->digests_range) +
               sheaf_guard_lost(version->places_range);
}

/* Writes an array that lost pages to a new file in place of the old one. */
static void write_anew(const struct sheaf_version *version, const char *name,
        const void *bytes, size_t len_bytes)
{
        char hex[33], path[64], fresh[72];
        sheaf_autofd int fd = -1;
        size_t done = 0;

        sheaf_version_hex(version->uuid, hex);
        snprintf(path, sizeof(path), "versions/%s/%s", hex, name);
        snprintf(fresh, sizeof(fresh), "%s.new", path);
        fd = sheaf_again(openat(version->store->dir_fd, fresh,
                O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
        while (fd >= 0 && done < len_bytes) {
                static char page[64 << 10];
                size_t part = SHEAF_MIN(len_bytes - done, sizeof(page));

                /* The copy may meet a lost page; a call would not like it. */
                memcpy(page, (const char *)bytes + done, part);
                if (sheaf_write_at(fd, page, part, done))
                        break;
                done += part;
        }
        if (done == len_bytes && !sheaf_again(fsync(fd)) &&
                !renameat(version->store->dir_fd, fresh, version->store->dir_fd,
                        path))
                return;
        /* The next start meets the same pages, and tells of them again. */
        unlinkat(version->store->dir_fd, fresh, 0);
}

static void heal(const struct sheaf_version *version)
{
        if (sheaf_guard_lost(version->digests_range))
                write_anew(version, "digests", version->digests,
                        version->digests_bytes);
        if (sheaf_guard_lost(version->places_range))
                write_anew(version, "places", version->places,
                        version->places_bytes);
}

static void parted(struct sheaf_disk_io *io, int rc)
{
        (void)rc; /* what was not synced is learned again */
        close(io->fd);
        free(io);
}

/* Closes an array; one that was changed is synced behind. */
static void part(struct sheaf_version *version, int *fd)
{
        struct sheaf_disk_io *io = NULL;

        /* A store that closes has synced them. */
        if (*fd >= 0 && version->dirty && !version->store->closing)
                io = sheaf_new(struct sheaf_disk_io, 1);
        if (!io) {
                sheaf_close_p(fd);
                return;
        }
        io->op = SHEAF_DISK_SYNC;
        io->fd = sheaf_steal_fd(fd);
        io->fixed = -1;
        io->done = parted;
        sheaf_disk_submit(version->store->disk, io);
}

/* On the pool, where one that nobody knows may fail to open, at once. */
static void let_go(struct sheaf_version *version, void *map, size_t bytes)
{
        if (version->attached)
                sheaf_store_let_go(version->store, map, bytes, -1);
        else if (map)
                munmap(map, bytes);
}

void sheaf_arrays_close(struct sheaf_version *version)
{
        if (version->digests && version->places)
                heal(version);
        sheaf_guard_range_end(version->digests_range);
        sheaf_guard_range_end(version->places_range);
        let_go(version, version->digests, version->digests_bytes);
        let_go(version, version->places, version->places_bytes);
        part(version, &version->digests_fd);
        part(version, &version->places_fd);
}
