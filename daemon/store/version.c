/* SPDX-License-Identifier: Apache-2.0 */
/* The flat arrays of a version: learned digests and places.
 *
 *  1 the files are fully allocated before they are mapped: a full disk must
 *    not turn a store into SIGBUS
 *  2 disk_chunks and disk_bytes count places that are alive; tally[] knows
 *    how much of that lies in each segment, so that giving up a segment
 *    costs O(1) a version
 *  3 a place is a claim: the record's header decides when it is read
 *  4 a chunk without a digest has no place
 *  5 arrays that were changed are synced when their version is closed, so
 *    that a clean stop keeps what was learned; a cut of the power may lose
 *    the last seconds, which recovery finds in the records */
#include "daemon/store/private.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

static void uuid_hex(const uint8_t uuid[16], char ret_hex[33])
{
        for (int i = 0; i < 16; i++)
                snprintf(ret_hex + 2 * i, 3, "%02x", uuid[i]);
}

int sheaf_version_path(const struct sheaf_store *store, const uint8_t uuid[16],
        char *ret_path, size_t cap_bytes)
{
        char hex[33];
        int n;

        uuid_hex(uuid, hex);
        n = snprintf(ret_path, cap_bytes, "%s/versions/%s", store->dir, hex);
        return n < 0 || (size_t)n >= cap_bytes ? -ENAMETOOLONG : 0;
}

int sheaf_version_dir(const struct sheaf_store *store, const uint8_t uuid[16],
        char *ret_path, size_t cap_bytes)
{
        char hex[33], name[64];
        int rc = sheaf_version_path(store, uuid, ret_path, cap_bytes);

        if (rc)
                return rc;
        uuid_hex(uuid, hex);
        snprintf(name, sizeof(name), "versions/%s", hex);
        if (mkdirat(store->dir_fd, "versions", 0700) && errno != EEXIST)
                return -errno;
        if (mkdirat(store->dir_fd, name, 0700) && errno != EEXIST)
                return -errno;
        return 0;
}

/* Maps @dir/@name with exactly @bytes; another size means that it was cut or
 * belongs to something else: it begins anew, all unknown. */
static int map_file(
        int dir_fd, const char *name, size_t bytes, int *ret_fd, void **ret_map)
{
        sheaf_autofd int fd = openat(
                dir_fd, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        struct stat st;
        void *map;
        int rc;

        if (fd < 0 || fstat(fd, &st))
                return -errno;
        if ((uint64_t)st.st_size != bytes) {
                if (ftruncate(fd, 0))
                        return -errno;
                rc = posix_fallocate(fd, 0, (off_t)bytes);
                if (rc) {
                        unlinkat(dir_fd, name, 0);
                        return -rc;
                }
        }
        map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
                return -errno;
        *ret_fd = sheaf_steal_fd(&fd);
        *ret_map = map;
        return 0;
}

/* The same; with a full disk the array lives in memory, for this run. */
static int map_array(
        int dir_fd, const char *name, size_t bytes, int *ret_fd, void **ret_map)
{
        int rc = map_file(dir_fd, name, bytes, ret_fd, ret_map);
        void *map;

        if (rc != -ENOSPC && rc != -EDQUOT && rc != -EROFS)
                return rc;
        map = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED)
                return -ENOMEM;
        *ret_map = map;
        return sheaf_log_rc(0, SHEAF_LOG_WARN, "store_array_in_memory",
                "name=%s bytes=%zu remedy=\"free space on the disk of the "
                "cache\"",
                name, bytes);
}

static int by_first_chunk(const void *a, const void *b)
{
        const struct sheaf_large *x = a, *y = b;

        return x->first_chunk < y->first_chunk
                       ? -1
                       : x->first_chunk > y->first_chunk;
}

static int index_chunks(struct sheaf_version *version)
{
        const struct sheaf_listing *listing = &version->listing;
        size_t large = 0, kept = 0;

        version->lens = sheaf_new(uint32_t, listing->chunk_count + 1);
        if (!version->lens)
                return -ENOMEM;
        for (uint32_t i = 0; i < listing->file_count; i++) {
                const struct sheaf_listing_entry *e =
                        &listing->entries[listing->files[i]];
                uint64_t n = sheaf_chunk_count(e->size_bytes);

                if (e->first_chunk + n > listing->chunk_count)
                        return -EBADMSG;
                for (uint64_t c = 0; c < n; c++)
                        version->lens[e->first_chunk + c] =
                                sheaf_chunk_len(e->size_bytes, c);
                large += n > 1;
        }
        version->large = sheaf_new(struct sheaf_large, large + 1);
        if (!version->large)
                return -ENOMEM;
        for (uint32_t i = 0; i < listing->file_count; i++) {
                uint32_t entry = listing->files[i];
                const struct sheaf_listing_entry *e = &listing->entries[entry];

                if (e->size_bytes > SHEAF_CHUNK_BYTES_MAX)
                        version->large[kept++] = (struct sheaf_large){
                                .first_chunk = e->first_chunk,
                                .entry = entry,
                        };
        }
        qsort(version->large, kept, sizeof(*version->large), by_first_chunk);
        version->large_count = kept;
        return 0;
}

static struct sheaf_tally *tally_of(
        struct sheaf_version *version, uint32_t number)
{
        if (number >= version->tally_cap) {
                uint32_t cap = SHEAF_MAX(number + 1,
                        SHEAF_MAX(version->tally_cap * 2, UINT32_C(64)));
                struct sheaf_tally *bigger =
                        realloc(version->tally, cap * sizeof(*bigger));

                if (!bigger)
                        return NULL;
                memset(bigger + version->tally_cap, 0,
                        (cap - version->tally_cap) * sizeof(*bigger));
                version->tally = bigger;
                version->tally_cap = cap;
        }
        return &version->tally[number];
}

/* Whether a set place counts in the sums now. */
static bool counted(
        const struct sheaf_version *version, const struct sheaf_place *place)
{
        return sheaf_place_set(place) &&
               sheaf_places_alive(version->store, place);
}

static bool count(struct sheaf_version *version, uint64_t chunk,
        const struct sheaf_place *place)
{
        if (!sheaf_place_plain(place)) {
                struct sheaf_tally *tally = tally_of(version, place->container);

                if (!tally)
                        return false;
                tally->chunks++;
                tally->bytes += version->lens[chunk];
        }
        version->disk_chunks++;
        version->disk_bytes += version->lens[chunk];
        return true;
}

void sheaf_version_unplace(struct sheaf_version *version, uint64_t chunk)
{
        struct sheaf_place *place = &version->places[chunk];

        version->dirty |= sheaf_place_set(place);
        if (counted(version, place)) {
                if (!sheaf_place_plain(place)) {
                        struct sheaf_tally *tally =
                                tally_of(version, place->container);

                        tally->chunks--;
                        tally->bytes -= version->lens[chunk];
                }
                version->disk_chunks--;
                version->disk_bytes -= version->lens[chunk];
        }
        *place = (struct sheaf_place){ 0 };
}

void sheaf_version_place(struct sheaf_version *version, uint64_t chunk,
        const struct sheaf_place *place)
{
        struct sheaf_place copy = *place;

        sheaf_version_unplace(version, chunk);
        if (!sheaf_digest_known(&version->digests[chunk]) ||
                !count(version, chunk, &copy))
                return;
        version->places[chunk] = copy;
        version->dirty = true;
        if (sheaf_place_plain(&copy)) {
                uint32_t entry;

                if (sheaf_listing_by_node(&version->listing,
                            sheaf_place_node(&copy), &entry) ||
                        !sheaf_listing_is_file(&version->listing, entry) ||
                        version->listing.entries[entry].first_chunk +
                                        (copy.offset_bytes >>
                                                SHEAF_PLAIN_GEN_BITS) !=
                                chunk)
                        version->foreign = true;
        }
}

void sheaf_version_segment_gone(struct sheaf_version *version, uint32_t number)
{
        if (number >= version->tally_cap)
                return;
        version->disk_chunks -= version->tally[number].chunks;
        version->disk_bytes -= version->tally[number].bytes;
        version->tally[number] = (struct sheaf_tally){ 0 };
}

/* Called while places into the plain file still count as alive. */
void sheaf_version_plain_gone(struct sheaf_version *version, uint64_t node)
{
        uint64_t from = 0, to = version->listing.chunk_count;
        uint32_t entry;

        if (!version->foreign) {
                const struct sheaf_listing_entry *e;

                if (sheaf_listing_by_node(&version->listing, node, &entry) ||
                        !sheaf_listing_is_file(&version->listing, entry))
                        return;
                e = &version->listing.entries[entry];
                from = e->first_chunk;
                to = from + sheaf_chunk_count(e->size_bytes);
        }
        for (uint64_t c = from; c < to; c++) {
                const struct sheaf_place *place = &version->places[c];

                if (sheaf_place_set(place) && sheaf_place_plain(place) &&
                        sheaf_place_node(place) == node)
                        sheaf_version_unplace(version, c);
        }
}

void sheaf_version_plain_lost(
        struct sheaf_version *version, const struct sheaf_place *place)
{
        uint64_t index = place->offset_bytes >> SHEAF_PLAIN_GEN_BITS;
        uint64_t from = 0, to = version->listing.chunk_count;
        uint32_t entry;

        if (!version->foreign) {
                if (sheaf_listing_by_node(&version->listing,
                            sheaf_place_node(place), &entry) ||
                        !sheaf_listing_is_file(&version->listing, entry))
                        return;
                from = version->listing.entries[entry].first_chunk + index;
                to = SHEAF_MIN(to, from + 1);
        }
        for (uint64_t c = from; c < to; c++) {
                if (!memcmp(&version->places[c], place, sizeof(*place)))
                        sheaf_version_unplace(version, c);
        }
}

/* Joins by digest what recovery found: the array may have been lost. */
static void rejoin(struct sheaf_version *version, uint64_t chunk)
{
        const struct sheaf_place *place = sheaf_pending_find(
                &version->store->pending, &version->digests[chunk]);
        struct sheaf_place copy;

        if (!place || !sheaf_place_set(place) ||
                !sheaf_places_usable(version->store, place))
                return;
        copy = *place;
        sheaf_version_place(version, chunk, &copy);
}

static void count_all(struct sheaf_version *version)
{
        for (uint64_t c = 0; c < version->listing.chunk_count; c++) {
                struct sheaf_place place = version->places[c];

                if (!sheaf_digest_known(&version->digests[c])) {
                        version->places[c] = (struct sheaf_place){ 0 };
                        continue;
                }
                version->known++;
                version->places[c] = (struct sheaf_place){ 0 };
                if (sheaf_place_set(&place) &&
                        sheaf_places_usable(version->store, &place))
                        sheaf_version_place(version, c, &place);
                else
                        rejoin(version, c);
        }
}

static int open_arrays(struct sheaf_version *version)
{
        uint64_t chunks = version->listing.chunk_count;
        char hex[33], name[64];
        sheaf_autofd int dir_fd = -1;
        int rc;

        uuid_hex(version->uuid, hex);
        snprintf(name, sizeof(name), "versions/%s", hex);
        dir_fd = openat(version->store->dir_fd, name,
                O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir_fd < 0)
                return -errno;
        version->digests_bytes = sheaf_round_up(
                (chunks + 1) * sizeof(struct sheaf_digest), SHEAF_DISK_PAGE);
        version->places_bytes = sheaf_round_up(
                (chunks + 1) * sizeof(struct sheaf_place), SHEAF_DISK_PAGE);
        rc = map_array(dir_fd, "digests", version->digests_bytes,
                &version->digests_fd, (void **)&version->digests);
        if (!rc)
                rc = map_array(dir_fd, "places", version->places_bytes,
                        &version->places_fd, (void **)&version->places);
        if (rc)
                return rc;
        return 0;
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

static void version_free(struct sheaf_version *version)
{
        if (version->digests)
                munmap(version->digests, version->digests_bytes);
        if (version->places)
                munmap(version->places, version->places_bytes);
        part(version, &version->digests_fd);
        part(version, &version->places_fd);
        free(version->lens);
        free(version->large);
        free(version->tally);
        free(version);
}

int sheaf_version_open(struct sheaf_store *store,
        const struct sheaf_listing *listing, uint64_t group,
        struct sheaf_version **ret_version)
{
        struct sheaf_version *version = sheaf_new(struct sheaf_version, 1);
        int rc;

        if (!version)
                return -ENOMEM;
        version->store = store;
        version->listing = *listing;
        version->group = group;
        version->serial = listing->header->serial;
        memcpy(version->uuid, listing->header->uuid, sizeof(version->uuid));
        version->digests_fd = version->places_fd = -1;
        rc = index_chunks(version);
        if (!rc)
                rc = open_arrays(version);
        if (!rc && !sheaf_group_get(store, group))
                rc = -ENOMEM;
        if (rc) {
                version_free(version);
                return rc;
        }
        count_all(version);
        sheaf_recover_version(store, version);
        version->next = store->versions;
        store->versions = version;
        sheaf_space_meta(store);
        *ret_version = version;
        return 0;
}

void sheaf_version_close(struct sheaf_version *version)
{
        struct sheaf_store *store;
        struct sheaf_version **at;

        if (!version)
                return;
        store = version->store;
        at = &store->versions;
        while (*at != version)
                at = &(*at)->next;
        *at = version->next;
        version_free(version);
        sheaf_space_meta(store);
}

static bool node_in_use(const struct sheaf_store *store, uint64_t node)
{
        uint32_t entry;

        for (const struct sheaf_version *v = store->versions; v; v = v->next) {
                if (!sheaf_listing_by_node(&v->listing, node, &entry))
                        return true;
        }
        return false;
}

/* The listing of a removed version, read into memory. NULL: there is none. */
static void *gone_listing(int dir_fd, size_t *ret_bytes)
{
        sheaf_autofd int fd =
                openat(dir_fd, "listing", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        struct stat st;
        void *map;

        if (fd < 0 || fstat(fd, &st) || st.st_size <= 0)
                return NULL;
        map = mmap(NULL, (size_t)st.st_size, PROT_READ,
                MAP_PRIVATE | MAP_POPULATE, fd, 0);
        if (map == MAP_FAILED)
                return NULL;
        *ret_bytes = (size_t)st.st_size;
        return map;
}

/* Drops plain files that only the removed version's listing names. */
static void drop_plains(struct sheaf_store *store, void *map, size_t bytes)
{
        struct sheaf_listing listing;

        if (!sheaf_listing_open(map, bytes, true, &listing)) {
                for (uint32_t i = 0; i < listing.file_count; i++) {
                        const struct sheaf_listing_entry *e =
                                &listing.entries[listing.files[i]];
                        struct sheaf_plain *plain =
                                e->size_bytes > SHEAF_CHUNK_BYTES_MAX
                                        ? sheaf_plain_find(store, e->node)
                                        : NULL;

                        if (plain && !node_in_use(store, e->node))
                                sheaf_plain_drop(store, plain);
                }
        }
        munmap(map, bytes);
}

struct removal {
        struct sheaf_disk_io io;
        struct sheaf_store *store;
        char name[64], gone[64];
        void *listing; /* mapped, or NULL */
        size_t listing_bytes;
};

/* The second half of removing. Any thread. */
static int remove_gone(struct removal *removal)
{
        static const char *const names[] = { "listing", "listing.tmp",
                "digests", "places" };
        int store_fd = removal->store->dir_fd;
        sheaf_autofd int dir_fd = openat(
                store_fd, removal->gone, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        if (dir_fd < 0)
                return -errno;
        removal->listing = gone_listing(dir_fd, &removal->listing_bytes);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(names); i++)
                unlinkat(dir_fd, names[i], 0);
        if (unlinkat(store_fd, removal->gone, AT_REMOVEDIR))
                return errno == ENOTEMPTY ? 0 : -errno;
        return 0;
}

static int remove_work(struct sheaf_disk_io *io)
{
        struct removal *removal = (struct removal *)io;
        int store_fd = removal->store->dir_fd;

        /* Renamed first: the next start finishes what a crash interrupts. */
        if (renameat(store_fd, removal->name, store_fd, removal->gone))
                return errno == ENOENT ? 0 : -errno;
        return remove_gone(removal);
}

static void remove_done(struct sheaf_disk_io *io, int rc)
{
        struct removal *removal = (struct removal *)io;

        if (removal->listing)
                drop_plains(removal->store, removal->listing,
                        removal->listing_bytes);
        sheaf_space_meta(removal->store);
        if (rc)
                sheaf_log_rc(rc, SHEAF_LOG_WARN, "version_not_removed",
                        "name=%s", removal->name);
        free(removal);
}

static struct removal *removal_new(
        struct sheaf_store *store, const uint8_t uuid[16])
{
        struct removal *removal = sheaf_new(struct removal, 1);
        char hex[33];

        if (!removal)
                return NULL;
        removal->store = store;
        removal->io.op = SHEAF_DISK_WORK;
        removal->io.work = remove_work;
        removal->io.done = remove_done;
        uuid_hex(uuid, hex);
        snprintf(removal->name, sizeof(removal->name), "versions/%s", hex);
        snprintf(
                removal->gone, sizeof(removal->gone), "versions/.gone-%s", hex);
        return removal;
}

void sheaf_version_remove(struct sheaf_store *store, const uint8_t uuid[16])
{
        struct removal *removal = removal_new(store, uuid);

        /* Without memory the next start removes what no record names. */
        if (removal)
                sheaf_disk_submit(store->disk, &removal->io);
}

static bool uuid_parse(const char *hex, uint8_t ret_uuid[16])
{
        if (strlen(hex) != 32 || strspn(hex, "0123456789abcdef") != 32)
                return false;
        for (int i = 0; i < 16; i++) {
                unsigned int byte;

                if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
                        return false;
                ret_uuid[i] = (uint8_t)byte;
        }
        return true;
}

void sheaf_version_sweep(struct sheaf_store *store,
        bool (*is_known)(void *arg, const uint8_t uuid[16]), void *arg)
{
        int fd = openat(
                store->dir_fd, "versions", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *dir = fd < 0 ? NULL : fdopendir(fd);
        struct dirent *entry;

        if (!dir)
                sheaf_close_p(&fd);
        while (dir && (entry = readdir(dir))) {
                uint8_t uuid[16];
                struct removal *removal = NULL;
                bool gone = !strncmp(entry->d_name, ".gone-", 6);

                if (uuid_parse(entry->d_name + (gone ? 6 : 0), uuid) &&
                        (gone || !is_known(arg, uuid)))
                        removal = removal_new(store, uuid);
                if (removal)
                        remove_done(
                                &removal->io, gone ? remove_gone(removal)
                                                   : remove_work(&removal->io));
        }
        if (dir)
                closedir(dir);
}

const struct sheaf_digest *sheaf_version_digest(
        const struct sheaf_version *version, uint64_t chunk)
{
        return &version->digests[chunk];
}

void sheaf_version_forget(struct sheaf_version *version, uint64_t chunk)
{
        sheaf_version_unplace(version, chunk);
        if (sheaf_digest_known(&version->digests[chunk])) {
                version->dirty = true;
                version->known--;
        }
        memset(&version->digests[chunk], 0, sizeof(struct sheaf_digest));
}

void sheaf_version_learn(struct sheaf_version *version, uint64_t chunk,
        const struct sheaf_digest *digest)
{
        struct sheaf_place place;

        if (!sheaf_digest_equal(&version->digests[chunk], digest)) {
                sheaf_version_forget(version, chunk);
                version->digests[chunk] = *digest;
                version->dirty = true;
                if (sheaf_digest_known(digest))
                        version->known++;
        }
        /* Joins what another version has put on disk already. */
        if (sheaf_version_find(version, chunk, &place))
                return;
}

uint64_t sheaf_version_known(const struct sheaf_version *version)
{
        return version->known;
}

int sheaf_version_sync(const struct sheaf_version *version)
{
        if (version->digests_fd < 0)
                return -ENOSPC;
        return fdatasync(version->digests_fd) ? -errno : 0;
}

int sheaf_version_find(struct sheaf_version *version, uint64_t chunk,
        struct sheaf_place *ret_place)
{
        struct sheaf_place place = version->places[chunk];
        int rc;

        if (!sheaf_digest_known(&version->digests[chunk]))
                return -ENOENT;
        if (counted(version, &place)) {
                if (sheaf_places_usable(version->store, &place)) {
                        *ret_place = place;
                        return 0;
                }
                /* Damage that another version met. */
                sheaf_version_unplace(version, chunk);
        }
        rc = sheaf_places_find(
                version->store, &version->digests[chunk], &place);
        if (rc)
                return rc;
        sheaf_version_place(version, chunk, &place);
        *ret_place = place;
        return 0;
}

bool sheaf_version_on_disk(struct sheaf_version *version, uint64_t chunk)
{
        struct sheaf_place place;

        return sheaf_version_find(version, chunk, &place) == 0;
}

bool sheaf_version_placed(const struct sheaf_version *version, uint64_t chunk)
{
        const struct sheaf_place *place = &version->places[chunk];

        return sheaf_digest_known(&version->digests[chunk]) &&
               counted(version, place) &&
               sheaf_places_usable(version->store, place);
}

uint64_t sheaf_version_disk(
        const struct sheaf_version *version, uint64_t *ret_bytes)
{
        *ret_bytes = version->disk_bytes;
        return version->disk_chunks;
}
