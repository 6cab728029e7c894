/* SPDX-License-Identifier: Apache-2.0 */
/* The flat arrays of a version: learned digests and places.
 *
 *  1 disk_chunks and disk_bytes count places that are alive; tally[] knows
 *    how much of that lies in each segment, so that giving up a segment
 *    costs O(1) a version
 *  2 a place is a claim: the record's header decides when it is read
 *  3 a chunk without a digest has no place
 *  4 a version that is being opened is counted some chunks at a time; those
 *    from counted_to on are in no sum yet, and are looked at when their time
 *    comes, whatever went meanwhile
 *
 * Threads: loop thread, but for what is said to run on the pool. */
#include "daemon/store/private.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

void sheaf_version_hex(const uint8_t uuid[16], char ret_hex[33])
{
        for (int i = 0; i < 16; i++)
                snprintf(ret_hex + 2 * i, 3, "%02x", uuid[i]);
}

int sheaf_version_path(const struct sheaf_store *store, const uint8_t uuid[16],
        char *ret_path, size_t cap_bytes)
{
        char hex[33];
        int n;

        sheaf_version_hex(uuid, hex);
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
        sheaf_version_hex(uuid, hex);
        snprintf(name, sizeof(name), "versions/%s", hex);
        if (mkdirat(store->dir_fd, "versions", 0700) && errno != EEXIST)
                return -errno;
        if (mkdirat(store->dir_fd, name, 0700) && errno != EEXIST)
                return -errno;
        return 0;
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

/* Index of the first entry whose number is not below @number. */
static uint32_t tally_at(const struct sheaf_version *version, uint32_t number)
{
        uint32_t low = 0, high = version->tally_count;

        while (low < high) {
                uint32_t middle = low + (high - low) / 2;

                if (version->tally[middle].number < number)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

static struct sheaf_tally *tally_find(
        const struct sheaf_version *version, uint32_t number)
{
        uint32_t at = tally_at(version, number);

        return at < version->tally_count && version->tally[at].number == number
                       ? &version->tally[at]
                       : NULL;
}

/* Made if there is none; NULL: no memory. */
static struct sheaf_tally *tally_get(
        struct sheaf_version *version, uint32_t number)
{
        uint32_t at = tally_at(version, number);
        struct sheaf_tally *tally = &version->tally[at];

        if (at < version->tally_count && tally->number == number)
                return tally;
        if (version->tally_count == version->tally_cap) {
                uint32_t cap = SHEAF_MAX(version->tally_cap * 2, UINT32_C(4));
                struct sheaf_tally *bigger =
                        realloc(version->tally, cap * sizeof(*bigger));

                if (!bigger)
                        return NULL;
                version->tally = bigger;
                version->tally_cap = cap;
        }
        tally = &version->tally[at];
        memmove(tally + 1, tally,
                (version->tally_count++ - at) * sizeof(*tally));
        *tally = (struct sheaf_tally){ .number = number };
        return tally;
}

static void tally_drop(struct sheaf_version *version, struct sheaf_tally *tally)
{
        size_t at = (size_t)(tally - version->tally);

        memmove(tally, tally + 1,
                (--version->tally_count - at) * sizeof(*tally));
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
                struct sheaf_tally *tally =
                        tally_get(version, place->container);

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
        struct sheaf_place place = version->places[chunk];
        struct sheaf_tally *tally = NULL;

        version->dirty |= sheaf_place_set(&place);
        version->places[chunk] = (struct sheaf_place){ 0 };
        if (!counted(version, &place))
                return;
        if (!sheaf_place_plain(&place)) {
                tally = tally_find(version, place.container);
                if (!tally)
                        return; /* the array was changed by its disk */
                tally->bytes -= version->lens[chunk];
                if (!--tally->chunks)
                        tally_drop(version, tally);
        }
        version->disk_chunks--;
        version->disk_bytes -= version->lens[chunk];
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
        struct sheaf_tally *tally = tally_find(version, number);

        if (!tally)
                return;
        version->disk_chunks -= tally->chunks;
        version->disk_bytes -= tally->bytes;
        tally_drop(version, tally);
}

/* Called while places into the plain file still count as alive. */
void sheaf_version_plain_gone(struct sheaf_version *version, uint64_t node)
{
        uint64_t from = 0, to = version->counted_to;
        uint32_t entry;

        if (!version->foreign) {
                const struct sheaf_listing_entry *e;

                if (sheaf_listing_by_node(&version->listing, node, &entry) ||
                        !sheaf_listing_is_file(&version->listing, entry))
                        return;
                e = &version->listing.entries[entry];
                from = e->first_chunk;
                to = SHEAF_MIN(to, from + sheaf_chunk_count(e->size_bytes));
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
        uint64_t from = 0, to = version->counted_to;
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

static void count_one(struct sheaf_version *version, uint64_t c)
{
        struct sheaf_place place = version->places[c];

        if (sheaf_place_set(&place))
                version->places[c] = (struct sheaf_place){ 0 };
        if (!sheaf_digest_known(&version->digests[c]))
                return;
        if (!sheaf_digest_prefix(&version->digests[c])) {
                /* A kill came while it was written (arrays.c, 4). */
                version->digests[c] = (struct sheaf_digest){ 0 };
                return;
        }
        version->known++;
        if (sheaf_place_set(&place) &&
                sheaf_places_usable(version->store, &place))
                sheaf_version_place(version, c, &place);
        else
                rejoin(version, c);
}

bool sheaf_version_count(struct sheaf_version *version, uint64_t chunks)
{
        uint64_t end = SHEAF_MIN(
                version->listing.chunk_count, version->counted_to + chunks);

        if (version->counted)
                return true;
        while (version->counted_to < end)
                count_one(version, version->counted_to++);
        if (end < version->listing.chunk_count)
                return false;
        sheaf_recover_version(version->store, version);
        version->counted = true;
        return true;
}

static void count_anew(struct sheaf_version *version)
{
        version->tally_count = 0;
        version->known = version->disk_chunks = version->disk_bytes = 0;
        version->counted_to = 0;
        /* One that is being opened goes on from there. */
        if (version->counted) {
                version->counted = false;
                sheaf_version_count(version, UINT64_MAX / 2);
        }
}

void sheaf_versions_look(struct sheaf_store *store)
{
        for (struct sheaf_version *v = store->versions; v; v = v->next) {
                unsigned int lost = sheaf_arrays_lost(v);
                char hex[33];

                if (lost == v->lost)
                        continue;
                sheaf_version_hex(v->uuid, hex);
                if (!v->lost)
                        sheaf_log(SHEAF_LOG_ERROR, "store_array_lost",
                                "dir=\"%s/versions/%s\" action=\"what was "
                                "learned there is fetched again\" "
                                "remedy=\"check the disk of the cache; a stop "
                                "of sheafd writes it anew\"",
                                store->dir, hex);
                /* Lost while it counts, it is counted once more. */
                v->lost = lost;
                v->dirty = true;
                count_anew(v);
        }
}

static void version_free(struct sheaf_version *version)
{
        sheaf_arrays_close(version);
        free(version->lens);
        free(version->large);
        free(version->tally);
        free(version);
}

int sheaf_version_prepare(struct sheaf_store *store,
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
        rc = index_chunks(version);
        if (!rc)
                rc = sheaf_arrays_open(version);
        if (rc) {
                version_free(version);
                return rc;
        }
        *ret_version = version;
        return 0;
}

void sheaf_version_discard(struct sheaf_version *version)
{
        version_free(version);
}

int sheaf_version_attach(struct sheaf_version *version)
{
        struct sheaf_store *store = version->store;
        char hex[33];

        if (!sheaf_group_get(store, version->group)) {
                version_free(version);
                return -ENOMEM;
        }
        version->attached = true;
        version->next = store->versions;
        store->versions = version;
        sheaf_version_hex(version->uuid, hex);
        sheaf_meta_version(store, hex);
        sheaf_space_meta(store);
        return 0;
}

int sheaf_version_open(struct sheaf_store *store,
        const struct sheaf_listing *listing, uint64_t group,
        struct sheaf_version **ret_version)
{
        int rc = sheaf_version_prepare(store, listing, group, ret_version);

        if (!rc)
                rc = sheaf_version_attach(*ret_version);
        if (!rc)
                sheaf_version_count(*ret_version, UINT64_MAX / 2);
        return rc;
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
        sheaf_autofd int fd = sheaf_again(
                openat(dir_fd, "listing", O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
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

struct removal {
        struct sheaf_disk_io io;
        struct sheaf_store *store;
        char name[64], gone[64];
        uint64_t *nodes; /* of its files that have one of their own on disk */
        size_t node_count;
};

/* Without memory they stay until others need their room. */
static void note_nodes(
        struct removal *removal, const struct sheaf_listing *listing)
{
        size_t count = 0;

        for (uint32_t i = 0; i < listing->file_count; i++)
                count += listing->entries[listing->files[i]].size_bytes >
                         SHEAF_CHUNK_BYTES_MAX;
        removal->nodes = sheaf_new(uint64_t, count + 1);
        for (uint32_t i = 0; i < listing->file_count && removal->nodes; i++) {
                const struct sheaf_listing_entry *e =
                        &listing->entries[listing->files[i]];

                if (e->size_bytes > SHEAF_CHUNK_BYTES_MAX &&
                        removal->node_count < count)
                        removal->nodes[removal->node_count++] = e->node;
        }
}

/* Reads which files the removed version's listing names. The listing goes
 * with its map: that takes its time, too. */
static void read_gone(struct removal *removal, int dir_fd)
{
        struct sheaf_guard_range *range = NULL;
        struct sheaf_listing listing;
        size_t bytes;
        void *map = gone_listing(dir_fd, &bytes);

        if (!map)
                return;
        /* Zeros in place of what the disk does not give name no file. */
        if (!sheaf_guard_range(map, bytes, -1, &range) &&
                !sheaf_listing_open(map, bytes, true, &listing))
                note_nodes(removal, &listing);
        sheaf_guard_range_end(range);
        munmap(map, bytes);
}

/* Drops plain files that only the removed version named. */
static void drop_plains(const struct removal *removal)
{
        struct sheaf_store *store = removal->store;

        for (size_t i = 0; i < removal->node_count; i++) {
                uint64_t node = removal->nodes[i];
                struct sheaf_plain *plain = sheaf_plain_find(store, node);

                if (plain && !node_in_use(store, node))
                        sheaf_plain_drop(store, plain);
        }
}

/* The second half of removing. Any thread. */
static int remove_gone(struct removal *removal)
{
        static const char *const names[] = { "listing", "listing.tmp",
                "digests", "digests.new", "places", "places.new" };
        int store_fd = removal->store->dir_fd;
        sheaf_autofd int dir_fd = sheaf_again(openat(
                store_fd, removal->gone, O_RDONLY | O_DIRECTORY | O_CLOEXEC));

        if (dir_fd < 0)
                return -errno;
        read_gone(removal, dir_fd);
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

        drop_plains(removal);
        sheaf_meta_version(removal->store, removal->name + strlen("versions/"));
        sheaf_meta_version(removal->store, removal->gone + strlen("versions/"));
        sheaf_space_meta(removal->store);
        if (rc)
                sheaf_log_rc(rc, SHEAF_LOG_WARN, "version_not_removed",
                        "name=%s", removal->name);
        free(removal->nodes);
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
        sheaf_version_hex(uuid, hex);
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
        int fd = sheaf_again(openat(
                store->dir_fd, "versions", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
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
        static const struct sheaf_digest none;

        sheaf_version_unplace(version, chunk);
        if (sheaf_digest_known(&version->digests[chunk])) {
                version->dirty = true;
                version->known--;
        }
        sheaf_array_set_digest(&version->digests[chunk], &none);
}

void sheaf_version_learn(struct sheaf_version *version, uint64_t chunk,
        const struct sheaf_digest *digest)
{
        struct sheaf_place place;

        if (!sheaf_digest_equal(&version->digests[chunk], digest)) {
                sheaf_version_forget(version, chunk);
                sheaf_array_set_digest(&version->digests[chunk], digest);
                version->dirty = true;
                if (sheaf_digest_known(digest))
                        version->known++;
        }
        /* Joins what another version has put on disk already. */
        if (sheaf_version_find(version, chunk, &place))
                return;
}

void sheaf_version_inherit(struct sheaf_version *version, uint64_t chunk,
        const struct sheaf_version *from, uint64_t from_chunk)
{
        const struct sheaf_digest *digest = &from->digests[from_chunk];

        if (!sheaf_digest_known(digest))
                return;
        if (!sheaf_version_placed(from, from_chunk)) {
                sheaf_version_learn(version, chunk, digest);
                return;
        }
        /* Where it is need not be looked up again. */
        sheaf_version_forget(version, chunk);
        sheaf_array_set_digest(&version->digests[chunk], digest);
        version->known++;
        sheaf_version_place(version, chunk, &from->places[from_chunk]);
        version->dirty = true;
}

uint64_t sheaf_version_known(const struct sheaf_version *version)
{
        return version->known;
}

int sheaf_version_sync(const struct sheaf_version *version)
{
        if (version->digests_fd < 0)
                return -ENOSPC;
        if (sheaf_again(fdatasync(version->digests_fd)))
                return -errno;
        return sheaf_guard_lost(version->digests_range) ? -EIO : 0;
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
