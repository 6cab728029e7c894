/* SPDX-License-Identifier: Apache-2.0 */
/* Recovery of the disk tier: the input is a program that makes segments and
 * plain files as the daemon does, and then damages them, with and without a
 * MAC that fits the damage.
 *
 *  1 a start never fails for what it finds
 *  2 each record that is accepted is told by a summary or a header whose MAC
 *    is right and which names this segment, generation and offset
 *  3 each plain file that is accepted has a right MAC, its own node and size
 *  4 counters are the sums of what was accepted
 *  5 a segment that is filled further ends where a record may begin */
#include "daemon/store/private.h"
#include "tests/fuzz/input.h"

#include <sys/stat.h>

#define SEGMENT_BYTES SHEAF_SEGMENT_BYTES_MIN
#define SEGMENTS      3
#define RECORDS_MAX   64
#define STEPS_MAX     96

static struct sheaf_mac *mac;
static struct sheaf_catalog *catalog;
static bool catalog_used = true;

/* A segment as it is being made. */
struct made {
        uint32_t number, generation, count;
        uint64_t end_bytes, last_bytes;
        struct sheaf_disk_entry entries[RECORDS_MAX];
        int fd;
};

static void setup(void)
{
        static const uint8_t key[SHEAF_MAC_KEY_BYTES] = "fuzz";
        char path[96];

        if (mac)
                return;
        sheaf_log_set_level((enum sheaf_log_level) - 1); /* none */
        fuzz_must(sheaf_mac_new(key, &mac) == 0);
        fuzz_must(mkdirat(fuzz_dir(), "segments", 0700) == 0);
        fuzz_must(mkdirat(fuzz_dir(), "plain", 0700) == 0);
        snprintf(path, sizeof(path), "%s/catalog", fuzz_dir_path);
        fuzz_must(sheaf_catalog_open(path, SHEAF_MIB, &catalog) == 0);
}

/* XORs a byte and, with @seal, makes the MAC fit. */
static void damage(struct fuzz_input *in, void *what, size_t len, bool seal)
{
        uint8_t at = fuzz_u8(in), value = fuzz_u8(in);

        ((uint8_t *)what)[at % len] ^= value;
        if (seal)
                sheaf_mac_seal(mac, what, len);
}

static void put(int fd, const void *what, size_t len, uint64_t at)
{
        fuzz_must(pwrite(fd, what, len, (off_t)at) == (ssize_t)len);
}

static void begin(struct made *made, uint32_t number, uint32_t generation)
{
        struct sheaf_disk_segment header = {
                .magic = SHEAF_DISK_SEGMENT_MAGIC,
                .layout = SHEAF_DISK_LAYOUT,
                .number = number,
                .generation = generation,
                .segment_bytes = SEGMENT_BYTES,
                .group = number % 2,
        };
        char name[32];

        *made = (struct made){ .number = number,
                .generation = generation,
                .end_bytes = SHEAF_DISK_PAGE };
        sheaf_segment_name(number, name);
        made->fd = openat(fuzz_dir(), name, O_RDWR | O_CREAT | O_TRUNC, 0600);
        fuzz_must(made->fd >= 0 && !ftruncate(made->fd, SEGMENT_BYTES));
        sheaf_mac_seal(mac, &header, sizeof(header));
        put(made->fd, &header, sizeof(header), 0);
}

static void add_record(struct made *made, uint32_t len)
{
        uint64_t at = sheaf_disk_record_at(made->end_bytes, len);
        struct sheaf_disk_record record = {
                .magic = SHEAF_DISK_RECORD_MAGIC,
                .layout = SHEAF_DISK_LAYOUT,
                .number = made->number,
                .generation = made->generation,
                .stored_bytes = len,
                .raw_bytes = len,
                .offset_bytes = at,
                .serial = made->count % 3 + 1,
                .chunk = made->count,
        };

        if (made->count == RECORDS_MAX || at + len + 65536 > SEGMENT_BYTES)
                return;
        memset(&record.digest, (int)(made->count + 1), sizeof(record.digest));
        sheaf_mac_seal(mac, &record, sizeof(record));
        put(made->fd, &record, sizeof(record), at);
        made->entries[made->count++] = (struct sheaf_disk_entry){
                .digest = record.digest,
                .serial = record.serial,
                .chunk = record.chunk,
                .offset_bytes = at,
                .raw_bytes = len,
        };
        made->last_bytes = at;
        made->end_bytes =
                sheaf_round_up(at + sizeof(record) + len, SHEAF_DISK_PACK);
}

/* A footer and its entries, of which the input may damage either. */
static void add_summary(struct fuzz_input *in, struct made *made, uint8_t how)
{
        struct sheaf_disk_footer footer = {
                .magic = SHEAF_DISK_FOOTER_MAGIC,
                .layout = SHEAF_DISK_LAYOUT,
                .number = made->number,
                .generation = made->generation,
                .count = made->count,
                .end_bytes = made->end_bytes,
        };
        struct sheaf_disk_entry entries[RECORDS_MAX];
        size_t len = made->count * sizeof(*entries);
        uint64_t at = SEGMENT_BYTES - sizeof(footer);

        memcpy(entries, made->entries, sizeof(entries));
        sheaf_mac_of(mac, entries, len, footer.entries_mac);
        if (how & 1 && made->count) {
                size_t which = fuzz_u8(in) % made->count;
                uint8_t byte = fuzz_u8(in) % sizeof(*entries);

                ((uint8_t *)&entries[which])[byte] ^= fuzz_u8(in);
        }
        if (how & 2)
                sheaf_mac_of(mac, entries, len, footer.entries_mac);
        sheaf_mac_seal(mac, &footer, sizeof(footer));
        if (how & 4)
                damage(in, &footer, sizeof(footer), how & 8);
        put(made->fd, entries, len, at - len);
        put(made->fd, &footer, sizeof(footer), at);
}

static void damage_at(struct fuzz_input *in, int fd, uint64_t at, bool seal)
{
        uint8_t bytes[128];

        fuzz_must(pread(fd, bytes, sizeof(bytes), (off_t)at) >= 0);
        damage(in, bytes, sizeof(bytes), seal);
        put(fd, bytes, sizeof(bytes), at);
}

/* A plain file of one to three chunks and its map. */
static void add_plain(struct fuzz_input *in, uint8_t how)
{
        uint64_t node = UINT64_C(1) << 32 | (fuzz_u8(in) % 4 + 10);
        uint64_t size = SHEAF_CHUNK_BYTES_MAX * (how % 3) + fuzz_u8(in) + 1;
        struct sheaf_disk_map header = {
                .magic = SHEAF_DISK_MAP_MAGIC,
                .layout = SHEAF_DISK_LAYOUT,
                .generation = 5,
                .node = node,
                .group = 1,
                .size_bytes = size,
                .chunk_count = sheaf_chunk_count(size),
        };
        struct sheaf_digest digests[4] = { 0 };
        char name[64];
        int fd;

        sheaf_plain_name(node, "", name);
        fd = openat(fuzz_dir(), name, O_RDWR | O_CREAT | O_TRUNC, 0600);
        fuzz_must(fd >= 0 && !ftruncate(fd, (off_t)size - (how >> 7)));
        close(fd);
        sheaf_plain_name(node, ".map", name);
        /* A second name for the same node is nobody's. */
        if (how & 32)
                name[strlen("plain/") + 15] &= (char)~32;
        fd = openat(fuzz_dir(), name, O_RDWR | O_CREAT | O_TRUNC, 0600);
        fuzz_must(fd >= 0);
        sheaf_mac_seal(mac, &header, sizeof(header));
        if (how & 8)
                damage(in, &header, sizeof(header), how & 16);
        for (uint64_t i = 0; i < sheaf_chunk_count(size); i++)
                memset(&digests[i], fuzz_u8(in), sizeof(digests[i]));
        put(fd, &header, sizeof(header), 0);
        put(fd, digests, sizeof(*digests) * (size_t)sheaf_chunk_count(size),
                sizeof(header));
        if (how & 64)
                fuzz_must(!ftruncate(fd, fuzz_u8(in)));
        close(fd);
}

static void note_in_catalog(struct fuzz_input *in, uint32_t number)
{
        struct sheaf_catalog_segment known = {
                .number = number,
                .generation = fuzz_u8(in),
                .records = fuzz_u32(in),
                .payload_bytes = fuzz_u32(in),
        };

        fuzz_must(!sheaf_catalog_apply(catalog, NULL, 0, &known, 1));
        catalog_used = true;
}

static void step(struct fuzz_input *in, struct made *made)
{
        static const uint32_t lens[] = { 1, 64, 4000, 65536, 200000 };
        uint8_t op = fuzz_u8(in);
        uint8_t how = fuzz_u8(in);

        switch (op % 8) {
        case 0:
        case 1:
                add_record(made, lens[how % SHEAF_ARRAY_LEN(lens)]);
                break;
        case 2:
                add_summary(in, made, how);
                break;
        case 3:
                damage_at(in, made->fd, made->last_bytes, how & 1);
                break;
        case 4: /* as a flush does */
                made->end_bytes =
                        sheaf_round_up(made->end_bytes, SHEAF_DISK_PAGE);
                break;
        case 5:
                note_in_catalog(in, how & 1 ? made->number : 0);
                break;
        case 6:
                if (how & 1 && made->number < SEGMENTS) {
                        close(made->fd);
                        begin(made, made->number + 1, how);
                } else if (how & 2) {
                        fuzz_must(!ftruncate(made->fd, fuzz_u16(in) * 128));
                }
                break;
        default:
                add_plain(in, how);
        }
}

/* ---- invariants ---- */

static bool told_by_summary(int fd, const struct sheaf_segment *segment,
        const struct sheaf_disk_entry *entry)
{
        struct sheaf_disk_footer footer;
        struct sheaf_disk_entry entries[RECORDS_MAX];
        uint8_t right[SHEAF_DISK_MAC_BYTES];
        uint64_t at = SEGMENT_BYTES - sizeof(footer);
        size_t len;

        if (pread(fd, &footer, sizeof(footer), (off_t)at) !=
                        (ssize_t)sizeof(footer) ||
                !sheaf_mac_good(mac, &footer, sizeof(footer)) ||
                footer.number != segment->number ||
                footer.generation != segment->generation ||
                footer.count > RECORDS_MAX)
                return false;
        len = footer.count * sizeof(*entries);
        fuzz_must(pread(fd, entries, len, (off_t)(at - len)) == (ssize_t)len);
        sheaf_mac_of(mac, entries, len, right);
        for (uint32_t i = 0; i < footer.count; i++)
                if (!memcmp(&entries[i], entry, sizeof(*entry)))
                        return !memcmp(
                                right, footer.entries_mac, sizeof(right));
        return false;
}

static bool told_by_header(int fd, const struct sheaf_segment *segment,
        const struct sheaf_disk_entry *entry)
{
        struct sheaf_disk_record record;

        return pread(fd, &record, sizeof(record), (off_t)entry->offset_bytes) ==
                       (ssize_t)sizeof(record) &&
               sheaf_mac_good(mac, &record, sizeof(record)) &&
               record.magic == SHEAF_DISK_RECORD_MAGIC &&
               record.number == segment->number &&
               record.generation == segment->generation &&
               record.offset_bytes == entry->offset_bytes &&
               record.raw_bytes == entry->raw_bytes &&
               sheaf_digest_equal(&record.digest, &entry->digest);
}

static void check_segment(const struct sheaf_segment *segment)
{
        sheaf_autofd int fd = -1;
        char name[32];

        sheaf_segment_name(segment->number, name);
        fd = openat(fuzz_dir(), name, O_RDONLY);
        fuzz_must(fd >= 0 && segment->generation);
        for (uint32_t i = 0; segment->entries && i < segment->records; i++) {
                const struct sheaf_disk_entry *e = &segment->entries[i];

                fuzz_must(e->offset_bytes >= SHEAF_DISK_PAGE &&
                          e->offset_bytes % SHEAF_DISK_PACK == 0);
                fuzz_must(
                        e->raw_bytes && e->raw_bytes <= SHEAF_CHUNK_BYTES_MAX);
                fuzz_must(e->offset_bytes + sizeof(struct sheaf_disk_record) +
                                  e->raw_bytes <=
                          SEGMENT_BYTES);
                fuzz_must(sheaf_digest_known(&e->digest));
                fuzz_must(told_by_summary(fd, segment, e) ||
                          told_by_header(fd, segment, e));
        }
        if (segment->state == SHEAF_SEGMENT_OPEN)
                fuzz_must(segment->end_bytes >= SHEAF_DISK_PAGE &&
                          segment->end_bytes % SHEAF_DISK_PAGE == 0 &&
                          segment->end_bytes < SEGMENT_BYTES);
}

static void check_plain(
        const struct sheaf_plain *plain, uint64_t *chunks, uint64_t *bytes)
{
        struct sheaf_disk_map header;
        sheaf_autofd int fd = -1;
        uint64_t present = 0;
        char name[48];

        sheaf_plain_name(plain->node, ".map", name);
        fd = openat(fuzz_dir(), name, O_RDONLY);
        fuzz_must(fd >= 0 && pread(fd, &header, sizeof(header), 0) ==
                                     (ssize_t)sizeof(header));
        fuzz_must(sheaf_mac_good(mac, &header, sizeof(header)) &&
                  header.node == plain->node);
        fuzz_must(plain->chunk_count == sheaf_chunk_count(plain->size_bytes));
        fuzz_must(
                plain->generation && plain->generation <= SHEAF_PLAIN_GEN_MASK);
        for (uint64_t i = 0; i < plain->chunk_count; i++) {
                if (!sheaf_digest_known(&plain->digests[i]))
                        continue;
                present++;
                *bytes += sheaf_chunk_len(plain->size_bytes, i);
        }
        fuzz_must(present == plain->present);
        for (const struct sheaf_plain *p = plain->next; p; p = p->next)
                fuzz_must(p->node != plain->node);
        *chunks += present;
}

static void check(const struct sheaf_store *store)
{
        uint64_t chunks = 0, bytes = 0, plains = 0;

        for (uint32_t n = 1; n <= store->segment_top; n++) {
                const struct sheaf_segment *s = sheaf_segment_at(store, n);

                if (!s)
                        continue;
                check_segment(s);
                chunks += s->records;
                bytes += s->payload_bytes;
        }
        for (size_t b = 0; b < SHEAF_PLAIN_BUCKETS; b++)
                for (const struct sheaf_plain *p = store->plains[b]; p;
                        p = p->next) {
                        check_plain(p, &chunks, &bytes);
                        plains++;
                }
        fuzz_must(plains == store->plain_count);
        fuzz_must(chunks == store->stats.chunks);
        fuzz_must(bytes == store->stats.payload_bytes);
        for (size_t i = 1; i < store->recovered.count; i++)
                fuzz_must(store->recovered.entries[i - 1].serial <=
                          store->recovered.entries[i].serial);
}

/* ---- one start ---- */

static void store_end(struct sheaf_store *store)
{
        sheaf_recover_deinit(store);
        sheaf_append_deinit(store);
        sheaf_segments_deinit(store);
        sheaf_plain_deinit(store);
        sheaf_pending_clear(&store->pending);
        free(store);
}

static void start(void)
{
        struct sheaf_store *store = sheaf_new(struct sheaf_store, 1);

        fuzz_must(store);
        store->dir_fd = fuzz_dir();
        store->dir = fuzz_dir_path;
        store->bytes_max = SHEAF_GIB;
        store->segment_bytes = SEGMENT_BYTES;
        store->mac = mac;
        store->catalog = catalog;
        store->readonly_tree_fd = -1;
        store->idle.newer = store->idle.older = &store->idle;
        fuzz_must(sheaf_recover(store) == 0);
        check(store);
        while (sheaf_recover_step(store))
                ;
        check(store);
        store_end(store);
}

static void empty(const char *name)
{
        char path[96];

        snprintf(path, sizeof(path), "%s/%s", fuzz_dir_path, name);
        fuzz_remove(path);
        fuzz_must(mkdirat(fuzz_dir(), name, 0700) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct fuzz_input in = { data, size };
        struct sheaf_catalog_segment none[SEGMENTS + 1] = { 0 };
        struct made made;

        setup();
        for (uint32_t i = 1; i <= SEGMENTS; i++)
                none[i].number = i;
        if (catalog_used)
                fuzz_must(!sheaf_catalog_apply(
                        catalog, NULL, 0, none, SHEAF_ARRAY_LEN(none)));
        catalog_used = false;
        begin(&made, 1, 1);
        for (int i = 0; i < STEPS_MAX && in.left; i++)
                step(&in, &made);
        close(made.fd);
        start();
        empty("segments");
        empty("plain");
        return 0;
}
