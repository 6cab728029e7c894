/* SPDX-License-Identifier: Apache-2.0 */
/* What a start finds in the cache directory.
 *
 *  1 a segment that the catalog lists costs one page to read; any other is
 *    rebuilt from its summary, and from there on by length from checked
 *    headers; payload is never scanned
 *  2 after an unclean stop no segment is filled further; after a clean one
 *    a segment that was open goes on: its blocks are counted as they are,
 *    and what it takes from there on as it takes it
 *  3 nothing found here stops a start: what is damaged is skipped, and its
 *    file deleted by the cleaning behind, in small steps
 *  4 digests that were learned before a crash come back with their records
 *
 * Reads are synchronous: the loop does not run yet. */
#include "daemon/store/private.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#define STEP_ENTRIES 64

struct known {
        struct sheaf_store *store;
        struct sheaf_catalog_segment *segments;
        size_t count, cap;
};

static int note_known(void *arg, const struct sheaf_catalog_segment *segment)
{
        struct known *known = arg;

        if (segment->number == 0) {
                /* Number 0 is the state of the store: generation 1: clean. */
                known->store->unclean = segment->generation != 1;
                return 0;
        }
        if (known->count == known->cap) {
                size_t cap = SHEAF_MAX(known->cap * 2, (size_t)64);
                struct sheaf_catalog_segment *bigger =
                        realloc(known->segments, cap * sizeof(*bigger));

                if (!bigger)
                        return -ENOMEM;
                known->segments = bigger;
                known->cap = cap;
        }
        known->segments[known->count++] = *segment;
        return 0;
}

static int by_number(const void *a, const void *b)
{
        uint32_t x = ((const struct sheaf_catalog_segment *)a)->number;
        uint32_t y = ((const struct sheaf_catalog_segment *)b)->number;

        return x < y ? -1 : x > y;
}

static int keep_learned(
        struct sheaf_store *store, const struct sheaf_disk_entry *entry)
{
        struct sheaf_recovered *r = &store->recovered;

        if (r->count == r->cap) {
                size_t cap = SHEAF_MAX(r->cap * 2, (size_t)1024);
                struct sheaf_disk_entry *bigger =
                        realloc(r->entries, cap * sizeof(*bigger));

                if (!bigger)
                        return -ENOMEM;
                r->entries = bigger;
                r->cap = cap;
        }
        r->entries[r->count++] = *entry;
        return 0;
}

/* The MAC says that we wrote it; this, that what follows from it stays inside
 * the segment. */
static bool entry_fits(
        const struct sheaf_store *store, const struct sheaf_disk_entry *entry)
{
        return entry->offset_bytes >= SHEAF_DISK_PAGE &&
               entry->offset_bytes % SHEAF_DISK_PACK == 0 && entry->raw_bytes &&
               entry->raw_bytes <= SHEAF_CHUNK_BYTES_MAX &&
               entry->offset_bytes < store->segment_bytes &&
               entry->offset_bytes + sizeof(struct sheaf_disk_record) +
                               entry->raw_bytes <=
                       store->segment_bytes &&
               sheaf_digest_known(&entry->digest);
}

static int take_entry(struct sheaf_store *store, struct sheaf_segment *segment,
        const struct sheaf_disk_entry *entry)
{
        struct sheaf_place place = {
                .container = segment->number,
                .generation = segment->generation,
                .offset_bytes = entry->offset_bytes,
        };
        int rc;

        if (!entry_fits(store, entry))
                return -EBADMSG;
        rc = sheaf_segment_note(segment, entry);
        if (rc)
                return rc;
        segment->payload_bytes += entry->raw_bytes;
        if (keep_learned(store, entry))
                return -ENOMEM;
        return sheaf_pending_put(&store->pending, &entry->digest, &place);
}

static int read_summary(
        struct sheaf_store *store, struct sheaf_segment *segment, int fd)
{
        struct sheaf_disk_footer footer;
        uint8_t right[SHEAF_DISK_MAC_BYTES];
        sheaf_autofree struct sheaf_disk_entry *entries = NULL;
        uint64_t at = store->segment_bytes - sizeof(footer), summary;
        size_t len;

        if (sheaf_read_at(fd, &footer, sizeof(footer), at))
                return -EIO;
        if (footer.magic != SHEAF_DISK_FOOTER_MAGIC ||
                footer.layout != SHEAF_DISK_LAYOUT ||
                footer.number != segment->number ||
                footer.generation != segment->generation ||
                !sheaf_mac_good(store->mac, &footer, sizeof(footer)))
                return -EBADMSG;
        summary = sheaf_disk_summary_bytes(footer.count);
        if (summary > store->segment_bytes - SHEAF_DISK_PAGE ||
                footer.end_bytes < SHEAF_DISK_PAGE ||
                footer.end_bytes % SHEAF_DISK_PACK ||
                footer.end_bytes > store->segment_bytes - summary)
                return -EBADMSG;
        len = footer.count * sizeof(*entries);
        entries = malloc(len + 1);
        if (!entries)
                return -ENOMEM;
        if (sheaf_read_at(fd, entries, len, at - len))
                return -EIO;
        sheaf_mac_of(store->mac, entries, len, right);
        if (memcmp(right, footer.entries_mac, sizeof(right)))
                return -EBADMSG;
        for (uint32_t i = 0; i < footer.count; i++) {
                int rc = take_entry(store, segment, &entries[i]);

                if (rc == -ENOMEM)
                        return rc;
        }
        segment->end_bytes = footer.end_bytes;
        return 0;
}

/* Gives the unused middle of a closed segment back: it is not filled. */
static void punch(struct sheaf_store *store, struct sheaf_segment *segment,
        const char *path)
{
        sheaf_autofd int fd = sheaf_again(
                openat(store->dir_fd, path, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
        uint64_t from = sheaf_round_up(segment->end_bytes, SHEAF_DISK_PAGE);
        uint64_t to = store->segment_bytes -
                      sheaf_disk_summary_bytes(segment->records);
        struct stat st;

        if (fd < 0 || from >= to ||
                sheaf_again(fallocate(fd,
                        FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from,
                        (off_t)(to - from))) ||
                fstat(fd, &st))
                return;
        store->segment_disk_bytes -= segment->disk_bytes;
        segment->disk_bytes = (uint64_t)st.st_blocks * 512;
        store->segment_disk_bytes += segment->disk_bytes;
        segment->room_bytes = from;
        segment->tail_bytes = store->segment_bytes - to;
}

/* The header at @at, if a record of this segment is there. */
static bool header_at(struct sheaf_store *store, struct sheaf_segment *segment,
        int fd, uint64_t at, struct sheaf_disk_record *ret_record)
{
        return at + sizeof(*ret_record) <= store->segment_bytes &&
               !sheaf_read_at(fd, ret_record, sizeof(*ret_record), at) &&
               !sheaf_record_check(store->mac, ret_record, segment->number,
                       segment->generation, at);
}

/* Walks by length from the end of what the summary told. */
static int walk(
        struct sheaf_store *store, struct sheaf_segment *segment, int fd)
{
        for (;;) {
                uint64_t end = segment->end_bytes;
                uint64_t tries[3] = { end, sheaf_round_up(end, SHEAF_DISK_PAGE),
                        sheaf_disk_record_at(end, SHEAF_DISK_ALIGNED_FROM) };
                struct sheaf_disk_record record;
                struct sheaf_disk_entry entry;
                uint64_t at = 0;
                int rc;

                for (size_t i = 0; i < SHEAF_ARRAY_LEN(tries) && !at; i++) {
                        if (header_at(store, segment, fd, tries[i], &record))
                                at = tries[i];
                }
                /* After a page of its own a large record's header lies one
                 * page further on. */
                if (!at) {
                        uint64_t page = sheaf_disk_record_at(
                                tries[1], SHEAF_DISK_ALIGNED_FROM);

                        if (!header_at(store, segment, fd, page, &record))
                                return 0;
                        at = page;
                }
                entry = (struct sheaf_disk_entry){
                        .digest = record.digest,
                        .serial = record.serial,
                        .chunk = record.chunk,
                        .offset_bytes = at,
                        .raw_bytes = record.raw_bytes,
                };
                rc = take_entry(store, segment, &entry);
                if (rc)
                        return rc;
                segment->end_bytes = sheaf_round_up(
                        at + sizeof(record) + record.stored_bytes,
                        SHEAF_DISK_PACK);
        }
}

/* Blocks that the segment surely has. */
static void note_blocks(
        const struct sheaf_store *store, struct sheaf_segment *segment)
{
        if (segment->disk_bytes >= store->segment_bytes) {
                segment->room_bytes = segment->tail_bytes =
                        store->segment_bytes;
                return;
        }
        segment->room_bytes =
                sheaf_round_up(segment->end_bytes, SHEAF_DISK_PAGE);
        segment->tail_bytes =
                segment->summed ? sheaf_disk_summary_bytes(segment->records)
                                : 0;
}

static int rebuild(
        struct sheaf_store *store, struct sheaf_segment *segment, int fd)
{
        int rc = read_summary(store, segment, fd);
        struct sheaf_group *group;
        uint32_t summed = segment->records;

        if (rc == -ENOMEM)
                return rc;
        if (rc) {
                segment->end_bytes = SHEAF_DISK_PAGE;
                segment->records = 0;
                segment->payload_bytes = 0;
        }
        if (walk(store, segment, fd) == -ENOMEM)
                return -ENOMEM;
        segment->state = SHEAF_SEGMENT_SEALED;
        /* A summary is written after its records were synced: what it does
         * not tell is unchecked, however the daemon has ended since. */
        segment->unchecked = rc || segment->records != summed;
        segment->synced = segment->summed = !segment->unchecked;
        store->stats.recovered_chunks += segment->records;
        note_blocks(store, segment);
        group = sheaf_group_get(store, segment->group);
        if (!segment->records) {
                /* Nothing is in it that could be checked. */
                segment->unchecked = false;
                segment->state = SHEAF_SEGMENT_FREE;
                segment->generation++;
        } else if (!store->unclean && !segment->unchecked && group &&
                   !group->append.segment &&
                   segment->end_bytes % SHEAF_DISK_PAGE == 0 &&
                   segment->end_bytes +
                                   sheaf_disk_summary_bytes(segment->records) +
                                   SHEAF_MIB <
                           store->segment_bytes) {
                segment->state = SHEAF_SEGMENT_OPEN;
                segment->synced = false;
                group->append.segment = segment;
        }
        return 0;
}

static int open_segment(struct sheaf_store *store, const struct known *known,
        uint32_t number, const char *path)
{
        sheaf_autofd int fd = sheaf_again(
                openat(store->dir_fd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
        struct sheaf_disk_segment header;
        struct sheaf_catalog_segment key = { .number = number }, *found;
        struct sheaf_segment *segment;
        struct stat st;
        int rc = 0;

        if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode) ||
                sheaf_read_at(fd, &header, sizeof(header), 0))
                return 0;
        if (header.magic != SHEAF_DISK_SEGMENT_MAGIC ||
                header.layout != SHEAF_DISK_LAYOUT || header.number != number ||
                !header.generation ||
                !sheaf_mac_good(store->mac, &header, sizeof(header)) ||
                header.segment_bytes < SHEAF_SEGMENT_BYTES_MIN ||
                header.segment_bytes > SHEAF_SEGMENT_BYTES_MAX ||
                header.segment_bytes % SHEAF_DISK_PAGE)
                return 0;
        /* The size of the first one found holds for the directory. */
        if (!store->segment_count)
                store->segment_bytes = header.segment_bytes;
        if (header.segment_bytes != store->segment_bytes)
                return 0;
        segment = sheaf_segment_add(store, number);
        if (!segment)
                return -ENOMEM;
        segment->generation = header.generation;
        segment->group = header.group;
        segment->disk_bytes = (uint64_t)st.st_blocks * 512;
        store->segment_disk_bytes += segment->disk_bytes;
        found = NULL;
        if (known->count)
                found = bsearch(&key, known->segments, known->count,
                        sizeof(key), by_number);
        if (found && found->generation == header.generation) {
                segment->state = SHEAF_SEGMENT_SEALED;
                segment->cataloged = segment->synced = true;
                segment->records = found->records;
                segment->payload_bytes = found->payload_bytes;
                segment->unchecked = found->unchecked;
                if (!sheaf_group_get(store, segment->group))
                        rc = -ENOMEM;
        } else {
                rc = rebuild(store, segment, fd);
                if (segment->unchecked)
                        punch(store, segment, path);
        }
        store->stats.chunks += segment->records;
        store->stats.payload_bytes += segment->payload_bytes;
        return rc;
}

static DIR *open_dir(struct sheaf_store *store, const char *name)
{
        int fd;
        DIR *dir;

        if (mkdirat(store->dir_fd, name, 0700) && errno != EEXIST)
                return NULL;
        fd = sheaf_again(openat(store->dir_fd, name,
                O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
        dir = fd < 0 ? NULL : fdopendir(fd);
        if (!dir)
                sheaf_close_p(&fd);
        return dir;
}

/* Number of "NNNNNNNN.seg", 0 for any other name. */
static uint32_t segment_number(const char *name)
{
        char again[32];
        unsigned long number = strtoul(name, NULL, 10);

        if (!number || number >= SHEAF_SEGMENT_NUMBER_MAX)
                return 0;
        sheaf_segment_name((uint32_t)number, again);
        return strcmp(again + strlen("segments/"), name) ? 0 : (uint32_t)number;
}

/* Node of "NODE" or "NODE.map"; a node has one spelling. */
static bool plain_node(const char *name, bool *ret_map, uint64_t *ret_node)
{
        unsigned long long node = strtoull(name, NULL, 16);
        size_t len = strlen(name);
        char again[48];

        *ret_map = len > 4 && !strcmp(name + len - 4, ".map");
        sheaf_plain_name(node, *ret_map ? ".map" : "", again);
        *ret_node = node;
        return !strcmp(again + strlen("plain/"), name);
}

static int scan_segments(struct sheaf_store *store)
{
        struct known known = { .store = store };
        DIR *dir = open_dir(store, "segments");
        struct dirent *entry;
        int rc;

        if (!dir)
                return -errno;
        store->unclean = false;
        rc = sheaf_catalog_each_segment(store->catalog, note_known, &known);
        if (known.count)
                qsort(known.segments, known.count, sizeof(*known.segments),
                        by_number);
        while (!rc && (entry = readdir(dir))) {
                uint32_t number = segment_number(entry->d_name);
                char path[32];

                if (!number)
                        continue;
                sheaf_segment_name(number, path);
                rc = open_segment(store, &known, number, path);
        }
        closedir(dir);
        free(known.segments);
        return rc;
}

static int scan_plain(struct sheaf_store *store)
{
        DIR *dir = open_dir(store, "plain");
        struct dirent *entry;
        int rc = 0;

        if (!dir)
                return -errno;
        while (!rc && (entry = readdir(dir))) {
                uint64_t node;
                bool map;

                if (!plain_node(entry->d_name, &map, &node) || !map)
                        continue;
                rc = sheaf_plain_load(store, node);
                if (rc != -ENOMEM)
                        rc = 0;
        }
        closedir(dir);
        return rc;
}

static int by_serial(const void *a, const void *b)
{
        uint64_t x = ((const struct sheaf_disk_entry *)a)->serial;
        uint64_t y = ((const struct sheaf_disk_entry *)b)->serial;

        return x < y ? -1 : x > y;
}

int sheaf_recover(struct sheaf_store *store)
{
        int64_t start_ns = sheaf_now_ns();
        struct sheaf_catalog_segment running = { 0 };
        DIR *dir = open_dir(store, "versions");
        int rc;

        if (!dir)
                return -errno;
        closedir(dir);
        rc = scan_segments(store);
        if (!rc)
                rc = scan_plain(store);
        if (rc)
                return rc;
        if (store->recovered.count)
                qsort(store->recovered.entries, store->recovered.count,
                        sizeof(*store->recovered.entries), by_serial);
        /* From here on a stop is unclean until close says otherwise. */
        rc = sheaf_catalog_apply(store->catalog, NULL, 0, &running, 1);
        if (rc == -ENOSPC || rc == -EDQUOT) {
                (void)sheaf_space_failed(store, rc);
                rc = 0;
        }
        store->stats.recovery_ns = (uint64_t)(sheaf_now_ns() - start_ns);
        if (store->unclean)
                sheaf_log(SHEAF_LOG_INFO, "store_unclean_stop",
                        "segments=%u recovered_chunks=%llu ms=%llu",
                        store->segment_count,
                        (unsigned long long)store->stats.recovered_chunks,
                        (unsigned long long)store->stats.recovery_ns /
                                SHEAF_NS_PER_MS);
        return rc;
}

void sheaf_recover_version(
        struct sheaf_store *store, struct sheaf_version *version)
{
        const struct sheaf_disk_entry *entries = store->recovered.entries;
        size_t low = 0, high = store->recovered.count;

        while (low < high) {
                size_t middle = low + (high - low) / 2;

                if (entries[middle].serial < version->serial)
                        low = middle + 1;
                else
                        high = middle;
        }
        for (; low < store->recovered.count &&
                entries[low].serial == version->serial;
                low++) {
                uint64_t chunk = entries[low].chunk;

                if (chunk >= version->listing.chunk_count ||
                        entries[low].raw_bytes != version->lens[chunk] ||
                        sheaf_digest_known(&version->digests[chunk]))
                        continue;
                sheaf_version_learn(version, chunk, &entries[low].digest);
        }
}

static bool sweepable(
        struct sheaf_store *store, unsigned int which, const char *name)
{
        uint64_t node;
        uint32_t number;
        bool map;

        if (!strcmp(name, ".") || !strcmp(name, ".."))
                return false;
        if (which == 0) {
                number = segment_number(name);
                return !number || !sheaf_segment_at(store, number);
        }
        if (which == 1)
                return !plain_node(name, &map, &node) ||
                       !sheaf_plain_find(store, node);
        return !strncmp(name, ".gone-", 6);
}

static void sweep_one(int dir_fd, const char *name)
{
        static const char *const names[] = { "listing", "digests", "places",
                "digests.new", "places.new" };
        sheaf_autofd int fd = -1;

        if (!unlinkat(dir_fd, name, 0) || errno != EISDIR)
                return;
        fd = sheaf_again(openat(
                dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
        for (size_t i = 0; fd >= 0 && i < SHEAF_ARRAY_LEN(names); i++)
                unlinkat(fd, names[i], 0);
        unlinkat(dir_fd, name, AT_REMOVEDIR);
}

bool sheaf_recover_step(struct sheaf_store *store)
{
        static const char *const names[] = { "segments", "plain", "versions" };
        struct dirent *entry;
        int64_t start_ns = sheaf_now_ns();

        if (store->sweep_at >= SHEAF_ARRAY_LEN(names))
                return false;
        if (!store->sweep)
                store->sweep = open_dir(store, names[store->sweep_at]);
        for (int i = 0; store->sweep && i < STEP_ENTRIES &&
                        !sheaf_pulse_late(store, start_ns);
                i++) {
                entry = readdir(store->sweep);
                if (!entry) {
                        closedir(store->sweep);
                        store->sweep = NULL;
                        break;
                }
                if (!sweepable(store, store->sweep_at, entry->d_name))
                        continue;
                sweep_one(dirfd(store->sweep), entry->d_name);
                if (store->sweep_at == 2)
                        sheaf_meta_version(store, entry->d_name);
        }
        if (!store->sweep && ++store->sweep_at == SHEAF_ARRAY_LEN(names))
                sheaf_space_meta(store);
        return true;
}

void sheaf_recover_deinit(struct sheaf_store *store)
{
        if (store->sweep)
                closedir(store->sweep);
        store->sweep = NULL;
        free(store->recovered.entries);
        store->recovered = (struct sheaf_recovered){ 0 };
}
