/* SPDX-License-Identifier: Apache-2.0 */
/* The table of segments.
 *
 *  1 a segment with busy > 0 is not refilled and its file is not deleted
 *  2 releasing raises the generation in memory at once: every place into the
 *    segment is dead from then on; the file's header follows, durable,
 *    before the first byte is overwritten (append.c)
 *  3 a number that is given again has another generation: its entry stays
 *    when its file goes, so numbers do not rise for ever */
#include "daemon/store/private.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>

void sheaf_segment_name(uint32_t number, char ret_name[32])
{
        snprintf(ret_name, 32, "segments/%08u.seg", number);
}

struct sheaf_segment *sheaf_segment_at(
        const struct sheaf_store *store, uint32_t number)
{
        return number < store->segment_cap ? store->segments[number] : NULL;
}

static struct sheaf_segment *absent_one(const struct sheaf_store *store)
{
        for (uint32_t n = 1; n <= store->segment_top; n++) {
                struct sheaf_segment *segment = sheaf_segment_at(store, n);

                if (segment && segment->absent)
                        return segment;
        }
        return NULL;
}

static uint32_t any_generation(void)
{
        uint32_t generation;

        if (getrandom(&generation, sizeof(generation), GRND_NONBLOCK) < 0)
                generation = (uint32_t)sheaf_wall_ns();
        return generation | 1;
}

struct sheaf_segment *sheaf_segment_add(
        struct sheaf_store *store, uint32_t number)
{
        struct sheaf_segment *segment = number ? NULL : absent_one(store);

        if (segment) {
                segment->absent = false;
                store->segment_count++;
                return segment;
        }
        if (!number)
                number = store->segment_top + 1;
        if (number >= SHEAF_SEGMENT_NUMBER_MAX)
                return NULL;
        if (number >= store->segment_cap) {
                uint32_t cap = SHEAF_MAX(number + 1,
                        SHEAF_MAX(store->segment_cap * 2, UINT32_C(64)));
                struct sheaf_segment **bigger =
                        realloc(store->segments, cap * sizeof(*bigger));

                if (!bigger)
                        return NULL;
                memset(bigger + store->segment_cap, 0,
                        (cap - store->segment_cap) * sizeof(*bigger));
                store->segments = bigger;
                store->segment_cap = cap;
        }
        segment = sheaf_new(struct sheaf_segment, 1);
        if (!segment)
                return NULL;
        segment->number = number;
        segment->generation = any_generation();
        segment->file.fd = -1;
        store->segments[number] = segment;
        store->segment_top = SHEAF_MAX(store->segment_top, number);
        store->segment_count++;
        return segment;
}

static void raise_generation(struct sheaf_segment *segment)
{
        if (!++segment->generation)
                segment->generation = 1;
}

void sheaf_segment_vanish(
        struct sheaf_store *store, struct sheaf_segment *segment)
{
        sheaf_file_shut(store, &segment->file);
        raise_generation(segment);
        store->segment_count--;
        store->segment_disk_bytes -= segment->disk_bytes;
        segment->disk_bytes = segment->room_bytes = segment->tail_bytes = 0;
        segment->state = SHEAF_SEGMENT_FREE;
        segment->absent = true;
}

void sheaf_segment_account(
        struct sheaf_store *store, struct sheaf_segment *segment)
{
        struct stat st;

        if (store->slow || segment->file.fd < 0 || fstat(segment->file.fd, &st))
                return;
        store->segment_disk_bytes -= segment->disk_bytes;
        segment->disk_bytes = (uint64_t)st.st_blocks * 512;
        store->segment_disk_bytes += segment->disk_bytes;
}

void sheaf_segments_deinit(struct sheaf_store *store)
{
        for (uint32_t n = 1; n <= store->segment_top; n++) {
                struct sheaf_segment *segment = sheaf_segment_at(store, n);

                if (!segment)
                        continue;
                sheaf_file_shut(store, &segment->file);
                free(segment->entries);
                free(segment);
        }
        free(store->segments);
}

int sheaf_segment_note(
        struct sheaf_segment *segment, const struct sheaf_disk_entry *entry)
{
        if (segment->records == segment->entry_cap) {
                size_t cap = SHEAF_MAX(segment->entry_cap * 2, (size_t)64);
                struct sheaf_disk_entry *bigger =
                        realloc(segment->entries, cap * sizeof(*bigger));

                if (!bigger)
                        return -ENOMEM;
                segment->entries = bigger;
                segment->entry_cap = cap;
        }
        segment->entries[segment->records++] = *entry;
        return 0;
}

void sheaf_segment_unnote(struct sheaf_store *store,
        struct sheaf_segment *segment, uint64_t offset_bytes)
{
        uint32_t i = segment->records;

        while (i && segment->entries[i - 1].offset_bytes != offset_bytes)
                i--;
        if (!i)
                return;
        segment->payload_bytes -= segment->entries[i - 1].raw_bytes;
        store->stats.payload_bytes -= segment->entries[i - 1].raw_bytes;
        store->stats.chunks--;
        segment->records--;
        memmove(&segment->entries[i - 1], &segment->entries[i],
                (segment->records - (i - 1)) * sizeof(*segment->entries));
}

void sheaf_segment_release(
        struct sheaf_store *store, struct sheaf_segment *segment)
{
        if (segment->state == SHEAF_SEGMENT_FREE)
                return;
        for (struct sheaf_version *v = store->versions; v; v = v->next)
                sheaf_version_segment_gone(v, segment->number);
        store->stats.chunks -= segment->records - segment->dropped;
        store->stats.payload_bytes -= segment->payload_bytes;
        raise_generation(segment);
        segment->state = SHEAF_SEGMENT_FREE;
        segment->records = segment->dropped = 0;
        segment->payload_bytes = segment->end_bytes = 0;
        segment->cataloged = segment->synced = segment->unchecked = false;
        segment->doomed = segment->summed = false;
        free(sheaf_steal(&segment->entries));
        segment->entry_cap = 0;
}

void sheaf_segment_unlink(
        struct sheaf_store *store, struct sheaf_segment *segment)
{
        char name[32];

        sheaf_segment_release(store, segment);
        sheaf_segment_name(segment->number, name);
        unlinkat(store->dir_fd, name, 0);
        sheaf_segment_vanish(store, segment);
}

void sheaf_segment_drop_record(struct sheaf_store *store,
        struct sheaf_segment *segment, uint32_t len_bytes)
{
        if (segment->dropped >= segment->records)
                return;
        segment->dropped++;
        segment->payload_bytes -=
                SHEAF_MIN(segment->payload_bytes, (uint64_t)len_bytes);
        store->stats.chunks--;
        store->stats.payload_bytes -=
                SHEAF_MIN(store->stats.payload_bytes, (uint64_t)len_bytes);
        if (segment->dropped == segment->records &&
                segment->state == SHEAF_SEGMENT_SEALED)
                sheaf_segment_release(store, segment);
}

int sheaf_record_check(struct sheaf_mac *mac,
        const struct sheaf_disk_record *record, uint32_t number,
        uint32_t generation, uint64_t offset_bytes)
{
        if (record->magic != SHEAF_DISK_RECORD_MAGIC ||
                record->layout != SHEAF_DISK_LAYOUT ||
                record->codec != SHEAF_DISK_CODEC_NONE ||
                record->number != number || record->generation != generation ||
                record->offset_bytes != offset_bytes ||
                record->stored_bytes != record->raw_bytes ||
                !record->raw_bytes ||
                record->raw_bytes > SHEAF_CHUNK_BYTES_MAX ||
                !sheaf_mac_good(mac, record, sizeof(*record)))
                return -EBADMSG;
        return 0;
}
