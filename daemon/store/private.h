/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the disk tier share; nothing outside includes this.
 *
 *   store.c    open, close, reads, writes: the facade
 *   space.c    groups, limits, who gives way;  meta.c  what is not payload
 *   places.c   digest -> place: pending batch, catalog, damaged places
 *   segment.c  table of segments;  append.c  filling them;  room.c  blocks
 *   plain.c    large files;  plain_check.c  their hashing and leases
 *   leave.c    their end, where many leave
 *   records.c  small values of the daemon, durable one after another
 *   version.c  flat arrays;  arrays.c  their files
 *   recover.c  what a start finds
 *   probe.c    what the file system lacks;  pulse.c  whether it answers
 *
 * Everything runs on the loop thread unless a comment says "pool". */
#ifndef SHEAF_DAEMON_STORE_PRIVATE_H
#define SHEAF_DAEMON_STORE_PRIVATE_H

#include "daemon/clock.h"
#include "daemon/log.h"
#include "daemon/store/buffers.h"
#include "daemon/store/catalog.h"
#include "daemon/store/disk.h"
#include "daemon/store/guard.h"
#include "daemon/store/lock.h"
#include "daemon/store/mac.h"
#include "daemon/store/store.h"
#include "proto/io.h"

#define SHEAF_SEGMENT_NUMBER_MAX  (UINT32_C(1) << 22)
#define SHEAF_PENDING_BATCH       (UINT64_C(256) << 10)
#define SHEAF_FLUSH_IDLE_NS       (INT64_C(200) * SHEAF_NS_PER_MS)
#define SHEAF_FILES_OPEN_MAX      256
#define SHEAF_APPEND_BUFFERS_MAX  8
#define SHEAF_APPEND_BUFFER_BYTES ((UINT64_C(4) << 20) + (UINT64_C(16) << 10))
#define SHEAF_APPEND_FLUSH_BYTES  (UINT64_C(2) << 20)
#define SHEAF_APPEND_WANTED_NS    (INT64_C(10) * SHEAF_NS_PER_MS)
/* What a segment takes at first, and the most by which it grows. */
#define SHEAF_SEGMENT_FIRST_BYTES (UINT64_C(64) << 10)
#define SHEAF_SEGMENT_STEP_BYTES  (UINT64_C(4) << 20)

/* ---- descriptors: opened on use, closed when too many are idle ---- */

struct sheaf_file {
        int fd; /* -1: closed */
        unsigned int users;
        struct sheaf_file *newer, *older; /* idle list while users == 0 */
};

/* Opens DIR/@name if needed. 0; -errno. Paired with _leave. */
SHEAF_MUST_CHECK int sheaf_file_enter(struct sheaf_store *store,
        struct sheaf_file *file, const char *name, bool direct);
void sheaf_file_leave(struct sheaf_store *store, struct sheaf_file *file);
/* Closes now (users == 0). */
void sheaf_file_shut(struct sheaf_store *store, struct sheaf_file *file);
/* Takes blocks for bytes @from to @to of @fd; zeros are written where the file
 * system has no other way. 0; -errno. Any thread; may take long. */
SHEAF_MUST_CHECK int sheaf_file_room(int fd, uint64_t from, uint64_t to);

/* ---- segments ---- */

enum sheaf_segment_state {
        SHEAF_SEGMENT_FREE = 0, /* no record; may be refilled, if not absent */
        SHEAF_SEGMENT_MAKING,   /* header with a new generation under way */
        SHEAF_SEGMENT_OPEN,
        SHEAF_SEGMENT_SEALING,
        SHEAF_SEGMENT_SEALED,
};

struct sheaf_segment {
        uint32_t number, generation;
        uint64_t group;
        enum sheaf_segment_state state;
        unsigned int busy; /* reads, writes and checks in flight */
        struct sheaf_file file;
        uint64_t end_bytes, payload_bytes, disk_bytes;
        /* Blocks are taken below room_bytes, and in the last tail_bytes. */
        uint64_t room_bytes, tail_bytes;
        uint32_t records, dropped; /* dropped: evicted or damaged */
        bool absent;               /* FREE, and without a file */
        bool summed;               /* its summary on disk tells all records */
        bool cataloged;            /* all records are in the catalog */
        bool synced;               /* sealed and durable */
        bool unchecked;
        bool doomed;                      /* released as soon as it is sealed */
        struct sheaf_disk_entry *entries; /* until cataloged and sealed */
        size_t entry_cap;
};

struct sheaf_segment *sheaf_segment_at(
        const struct sheaf_store *store, uint32_t number);
void sheaf_segment_name(uint32_t number, char ret_name[32]);
/* A table entry for @number, or the first that has no file when 0. NULL:
 * -ENOMEM. */
struct sheaf_segment *sheaf_segment_add(
        struct sheaf_store *store, uint32_t number);
/* Its file is gone; its number may be given again. */
void sheaf_segment_vanish(
        struct sheaf_store *store, struct sheaf_segment *segment);
/* What its file takes on disk now; nothing changes while the disk is slow. */
void sheaf_segment_account(
        struct sheaf_store *store, struct sheaf_segment *segment);
void sheaf_segments_deinit(struct sheaf_store *store);
/* All its records are gone for all versions; it may be refilled. */
void sheaf_segment_release(
        struct sheaf_store *store, struct sheaf_segment *segment);
/* Releases and deletes the file. */
void sheaf_segment_unlink(
        struct sheaf_store *store, struct sheaf_segment *segment);
/* One record less; the last one releases the segment. */
void sheaf_segment_drop_record(struct sheaf_store *store,
        struct sheaf_segment *segment, uint32_t len_bytes);
SHEAF_MUST_CHECK int sheaf_segment_note(
        struct sheaf_segment *segment, const struct sheaf_disk_entry *entry);

/* Takes back what was noted: the record at @offset_bytes was not written. */
void sheaf_segment_unnote(struct sheaf_store *store,
        struct sheaf_segment *segment, uint64_t offset_bytes);

/* Checks the header at the start of @data for @place and @digest; -EBADMSG.
 * @ret_bytes: length of the payload. */
SHEAF_MUST_CHECK int sheaf_record_check(struct sheaf_mac *mac,
        const struct sheaf_disk_record *record, uint32_t number,
        uint32_t generation, uint64_t offset_bytes);

/* ---- groups and their append position ---- */

struct sheaf_append_buffer {
        struct sheaf_disk_io io;
        struct sheaf_store *store;
        struct sheaf_segment *segment;
        uint8_t *bytes;
        uint64_t start_bytes; /* in the segment */
        struct sheaf_store_write *writes, **writes_tail;
        struct sheaf_append_buffer *next;
};

struct sheaf_append {
        struct sheaf_segment *segment; /* OPEN, or NULL */
        bool making;                   /* a segment is being made, or grows */
        bool room_comes;               /* a file gives way: when it has left */
        struct sheaf_append_buffer *buffer; /* being filled, or NULL */
        int64_t touched_ns;
        struct sheaf_store_write *waiting, **waiting_tail;
};

struct sheaf_group {
        uint64_t id;
        bool live;
        int64_t idle_since_ns;
        struct sheaf_append append;
        struct sheaf_group *next;
        struct sheaf_group *chained; /* in its bucket */
};

#define SHEAF_GROUP_BUCKETS 1024

/* NULL: -ENOMEM. */
struct sheaf_group *sheaf_group_get(struct sheaf_store *store, uint64_t id);
/* NULL: there is none. */
struct sheaf_group *sheaf_group_find(
        const struct sheaf_store *store, uint64_t id);
/* Forgets a group that nothing belongs to any more. */
void sheaf_group_forget(struct sheaf_store *store, struct sheaf_group *group);
void sheaf_append_write(
        struct sheaf_store *store, struct sheaf_store_write *write);
/* Gives waiting writes of all groups another try (a buffer is free). */
void sheaf_append_kick(struct sheaf_store *store);
/* The same, and of those that wait for a file that gives way. */
void sheaf_append_room(struct sheaf_store *store);
/* Gives up what waits for a segment or a buffer: the disk is slow. */
void sheaf_append_give_up(struct sheaf_store *store);
/* Pushes what is older than @age_ns. */
void sheaf_append_flush(struct sheaf_store *store, int64_t age_ns);
/* Flushes and closes the group's open segment. */
void sheaf_append_drop(struct sheaf_store *store, struct sheaf_group *group);
/* A record of the segment is damaged: nothing more is put into it. */
void sheaf_append_distrust(
        struct sheaf_store *store, const struct sheaf_segment *segment);
/* Whether the segment is its group's open one and nothing is on the way to
 * it; such a one is the group's no more when it is detached. */
bool sheaf_append_idle(
        const struct sheaf_store *store, const struct sheaf_segment *segment);
void sheaf_append_detach(
        struct sheaf_store *store, const struct sheaf_segment *segment);
void sheaf_append_deinit(struct sheaf_store *store);
/* The group goes on, after @rc was told to all that wait when it is not 0. */
void sheaf_append_resume(
        struct sheaf_store *store, struct sheaf_group *group, int rc);

/* ---- blocks of segments (room.c) ---- */

/* Where a record of @len_bytes that is put next would end, in whole pages. */
static inline uint64_t sheaf_room_end(
        const struct sheaf_segment *segment, uint64_t len_bytes)
{
        return sheaf_round_up(
                sheaf_disk_record_at(segment->end_bytes, len_bytes) +
                        sizeof(struct sheaf_disk_record) + len_bytes,
                SHEAF_DISK_PAGE);
}
/* Whether blocks are taken for it, and for its entry in the summary. */
bool sheaf_room_fits(const struct sheaf_segment *segment, uint64_t len_bytes);
/* Finds or makes a segment for the group, with the first blocks: 0 under way,
 * or why not. sheaf_append_resume follows. */
SHEAF_MUST_CHECK int sheaf_room_make(
        struct sheaf_store *store, struct sheaf_group *group);
/* Takes blocks for a record of @len_bytes in the group's open segment, or
 * closes it where another one has them: 0, or why not. */
SHEAF_MUST_CHECK int sheaf_room_grow(struct sheaf_store *store,
        struct sheaf_group *group, uint64_t len_bytes);

/* Writes the summary as soon as nothing else is in flight. */
void sheaf_segment_seal(
        struct sheaf_store *store, struct sheaf_segment *segment);
/* One user less; a segment that waits to be sealed goes on. */
void sheaf_segment_unbusy(
        struct sheaf_store *store, struct sheaf_segment *segment);
/* The summary as it lies at the end of the file, page aligned; free() it. */
void *sheaf_segment_summary(struct sheaf_store *store,
        struct sheaf_segment *segment, size_t *ret_bytes);

/* What store_private of a write holds. */
struct sheaf_write_private {
        struct sheaf_store_write *next;
        struct sheaf_store_write *chained;   /* in store->leads, by digest */
        struct sheaf_store_write *followers; /* of the same digest */
        bool leads;
        struct sheaf_place place;
        struct sheaf_digest digest;
        int rc;
};

static inline struct sheaf_write_private *sheaf_write_private(
        struct sheaf_store_write *write)
{
        return (struct sheaf_write_private *)write->store_private;
}
_Static_assert(sizeof(struct sheaf_write_private) <=
                       sizeof(((struct sheaf_store_write *)0)->store_private),
        "fits");

/* ---- space ---- */

/* Something is being refused; zeroed: nothing. */
struct sheaf_shortage {
        int64_t refused_ns; /* the last time */
        uint64_t bytes;     /* the largest write; 0: unknown */
        bool worked;        /* some succeeded since */
};

/* How long the state lasts after the last refusal. */
#define SHEAF_SHORTAGE_HOLD_NS (5 * SHEAF_NS_PER_SEC)

/* Room for @bytes more: 0, -EDQUOT (the limit), -ENOSPC, -errno. */
SHEAF_MUST_CHECK int sheaf_space_room(
        struct sheaf_store *store, uint64_t bytes);
/* Whether the file system lacks @bytes above the floor. */
bool sheaf_space_short(const struct sheaf_store *store, uint64_t bytes);
/* A FREE segment, taken from an idle group if it must be. -EINPROGRESS: a
 * large file of one gives way, try again when it has left; -ENOENT. */
SHEAF_MUST_CHECK int sheaf_space_reuse(struct sheaf_store *store,
        const struct sheaf_group *asker, struct sheaf_segment **ret_segment);
uint64_t sheaf_space_used(const struct sheaf_store *store);
/* Brings usage below the limit again after metadata grew. */
void sheaf_space_enforce(struct sheaf_store *store);
/* The disk failed a write with @rc. Returns what its writer is told: -ENOSPC
 * for the lack of space or quota, else -EIO. */
int sheaf_space_failed(struct sheaf_store *store, int rc);
/* The disk failed a read with @rc. */
void sheaf_space_read_failed(struct sheaf_store *store, int rc);
/* A write of @bytes is given up for what sheaf_space_room said. Returns what
 * its writer is told: -EDQUOT the limit, -ENOSPC, else -EIO. */
int sheaf_space_refused(struct sheaf_store *store, uint64_t bytes, int rc);
/* A write succeeded. */
void sheaf_space_wrote(struct sheaf_store *store);
/* Ends the states whose cause is gone; called now and then. */
void sheaf_space_settle(struct sheaf_store *store);

/* ---- what is not payload (meta.c) ---- */

#define SHEAF_META_BUCKETS 1024

/* Looks at what changes by itself; at all when something was missed. */
void sheaf_space_meta(struct sheaf_store *store);
/* The directory @name in "versions" has changed, or is gone. */
void sheaf_meta_version(struct sheaf_store *store, const char *name);
void sheaf_meta_deinit(struct sheaf_store *store);

/* ---- the disk's pulse ---- */

/* Looks whether the disk answers in time; called at each tick. */
void sheaf_pulse_step(struct sheaf_store *store);
/* After calls that began at @start_ns: the disk is slow, do no more. */
bool sheaf_pulse_late(struct sheaf_store *store, int64_t start_ns);

/* ---- places ---- */

/* The container still has that generation. */
bool sheaf_places_alive(
        const struct sheaf_store *store, const struct sheaf_place *place);
/* Alive, and not known to be damaged. */
bool sheaf_places_usable(
        const struct sheaf_store *store, const struct sheaf_place *place);
/* 0; -ENOENT. */
SHEAF_MUST_CHECK int sheaf_places_find(struct sheaf_store *store,
        const struct sheaf_digest *digest, struct sheaf_place *ret_place);
void sheaf_places_note(struct sheaf_store *store,
        const struct sheaf_digest *digest, const struct sheaf_place *place);
/* A removal, if the digest still is at @place. */
void sheaf_places_forget(struct sheaf_store *store,
        const struct sheaf_digest *digest, const struct sheaf_place *place);
/* The object at @place is damaged: true the first time. */
bool sheaf_places_bad(
        struct sheaf_store *store, const struct sheaf_place *place);
/* Commits the pending batch; when @force, whatever its size. */
void sheaf_places_commit(struct sheaf_store *store, bool force);

/* ---- plain files ---- */

struct sheaf_plain {
        uint64_t node, group, size_bytes, chunk_count, present, disk_bytes;
        uint32_t generation;
        struct sheaf_digest *digests; /* of chunks; zero: absent */
        struct sheaf_file file, direct, map;
        unsigned int busy, leases;
        bool fresh; /* all of it was written in this run */
        bool checking;
        int64_t checked_ns; /* when a check last began; 0: not in this run */
        bool *changed; /* chunks dropped or written during the check, or NULL */
        bool doomed;   /* unlinked, or leaving; freed when nobody uses it */
        bool gives_way;
        bool marked;
        struct sheaf_disk_mark mark;
        struct sheaf_plain *next; /* in its hash chain, or doomed list */
        struct sheaf_plain *leaves_next;
        uint64_t leaving_bytes; /* what it counts for in the store's */
};

#define SHEAF_PLAIN_BUCKETS 4096
#define SHEAF_LEAD_BUCKETS  1024

struct sheaf_plain *sheaf_plain_find(
        const struct sheaf_store *store, uint64_t node);
void sheaf_plain_write(struct sheaf_store *store,
        struct sheaf_store_write *write, uint64_t node, uint64_t size_bytes);
void sheaf_plain_name(uint64_t node, const char *suffix, char ret_name[48]);
/* Places into it are gone; its names go on the pool. */
void sheaf_plain_drop(struct sheaf_store *store, struct sheaf_plain *plain);
/* The same, for the sake of a write: it counts until it has left. */
void sheaf_plain_give_way(struct sheaf_store *store, struct sheaf_plain *plain);
/* Any thread. */
void sheaf_plain_unlink(const struct sheaf_store *store, uint64_t node);
void sheaf_plain_enter(struct sheaf_plain *plain);
void sheaf_plain_leave(struct sheaf_store *store, struct sheaf_plain *plain);
void sheaf_plain_forget_chunk(
        struct sheaf_store *store, struct sheaf_plain *plain, uint64_t index);
/* Hashes what was not written in this run, syncs and marks. */
void sheaf_plain_check(struct sheaf_store *store, struct sheaf_plain *plain);
/* The same for one that nobody asked for, if there is one. */
void sheaf_plain_check_step(struct sheaf_store *store);
/* Syncs files and maps that bear no mark: what a clean stop keeps. Blocks. */
void sheaf_plain_sync(struct sheaf_store *store);
/* Reads NODE.map; used by recovery. */
SHEAF_MUST_CHECK int sheaf_plain_load(struct sheaf_store *store, uint64_t node);
void sheaf_plain_deinit(struct sheaf_store *store);
/* Drops the group's files; leased ones linger without a name. */
void sheaf_plain_drop_group(struct sheaf_store *store, uint64_t group);
/* The map's header as it belongs on disk now. */
void sheaf_plain_header(struct sheaf_store *store,
        const struct sheaf_plain *plain, struct sheaf_disk_map *ret_header);
bool sheaf_plain_complete(const struct sheaf_plain *plain);
/* Whether the file on disk still is the one that was marked. */
bool sheaf_plain_marked(struct sheaf_store *store, struct sheaf_plain *plain);

/* ---- plain files that leave (leave.c) ---- */

/* Takes over one use of a doomed file whose names are still there. */
void sheaf_leave_add(struct sheaf_store *store, struct sheaf_plain *plain);
/* Names of the node are still there. */
bool sheaf_leave_has(const struct sheaf_store *store, uint64_t node);
/* The last use of it has ended. */
void sheaf_leave_ended(struct sheaf_store *store, struct sheaf_plain *plain);
/* Begins the write anew, by sheaf_leave_again, when the next file has left. */
void sheaf_leave_wait(
        struct sheaf_store *store, struct sheaf_store_write *write);
void sheaf_leave_again(struct sheaf_store *store);
/* The descriptor, which the caller closes; -1. */
int sheaf_file_take(struct sheaf_store *store, struct sheaf_file *file);

/* ---- versions ---- */

void sheaf_version_hex(const uint8_t uuid[16], char ret_hex[33]);

/* Maps digests and places (arrays.c); what failed half is undone by _close. */
SHEAF_MUST_CHECK int sheaf_arrays_open(struct sheaf_version *version);
void sheaf_arrays_close(struct sheaf_version *version);
/* Sets a digest in its array, so that a kill in between leaves it not known. */
void sheaf_array_set_digest(
        struct sheaf_digest *at, const struct sheaf_digest *digest);
/* Pages that the disk did not give until now. */
unsigned int sheaf_arrays_lost(const struct sheaf_version *version);

struct sheaf_large {
        uint64_t first_chunk;
        uint32_t entry;
};

struct sheaf_tally {
        uint32_t number; /* of the segment */
        uint32_t chunks;
        uint64_t bytes;
};

struct sheaf_version {
        struct sheaf_store *store;
        struct sheaf_listing listing;
        uint64_t group, serial;
        uint8_t uuid[16];
        struct sheaf_digest *digests;
        struct sheaf_place *places;
        size_t digests_bytes, places_bytes;
        int digests_fd, places_fd;
        struct sheaf_guard_range *digests_range, *places_range;
        unsigned int lost; /* pages of both, when it was last looked */
        unsigned int cut;  /* arrays that had another size when opened */
        uint32_t *lens;
        struct sheaf_large *large; /* files over one chunk, by first_chunk */
        size_t large_count;
        uint64_t known, disk_chunks, disk_bytes;
        uint64_t counted_to;       /* chunks below are in these sums */
        bool counted;              /* all are */
        bool attached;             /* the store knows it */
        struct sheaf_tally *tally; /* ascending numbers */
        uint32_t tally_count, tally_cap;
        bool foreign; /* has places in plain files of other nodes */
        bool dirty;   /* the arrays were changed since they were opened */
        struct sheaf_version *next;
};

/* Place of a chunk, joined by digest when the array has none. */
SHEAF_MUST_CHECK int sheaf_version_find(struct sheaf_version *version,
        uint64_t chunk, struct sheaf_place *ret_place);
void sheaf_version_place(struct sheaf_version *version, uint64_t chunk,
        const struct sheaf_place *place);
void sheaf_version_unplace(struct sheaf_version *version, uint64_t chunk);
void sheaf_version_segment_gone(struct sheaf_version *version, uint32_t number);
void sheaf_version_plain_gone(struct sheaf_version *version, uint64_t node);
/* One chunk of a plain file is no longer in it. */
void sheaf_version_plain_lost(
        struct sheaf_version *version, const struct sheaf_place *place);

/* Tells of pages that the disk did not give, and counts anew. */
void sheaf_versions_look(struct sheaf_store *store);

/* ---- recovery ---- */

struct sheaf_recovered {
        struct sheaf_disk_entry *entries; /* ascending serial */
        size_t count, cap;
};

SHEAF_MUST_CHECK int sheaf_recover(struct sheaf_store *store);
/* Gives a version the digests that were learned before a crash. */
void sheaf_recover_version(
        struct sheaf_store *store, struct sheaf_version *version);
/* One small step of the cleaning behind; false when all is done. */
bool sheaf_recover_step(struct sheaf_store *store);
void sheaf_recover_deinit(struct sheaf_store *store);

/* ---- cleaning behind (check.c) ---- */

/* Begins the check of one unchecked container, unless one is under way. */
void sheaf_check_step(struct sheaf_store *store);
/* Removes some entries of dead places from the catalog when they are many. */
void sheaf_catalog_sweep(struct sheaf_store *store);

/* ---- the store ---- */

/* ---- records (records.c) ---- */

#define SHEAF_COUNTERS_MAX 8

/* Numbers that were taken from the catalog and not given yet: [0] is given
 * from, [1] is next. */
struct sheaf_counter {
        char name[16];
        uint64_t next[2], end[2];
        uint64_t fresh; /* the first of those that a change took */
        bool taking;
};

struct sheaf_records {
        struct sheaf_disk_io io; /* of the first change */
        struct sheaf_store_change *first, **last;
        bool running; /* the first one has begun */
        int tries;
        struct sheaf_counter counter[SHEAF_COUNTERS_MAX];
};

struct sheaf_store {
        uv_loop_t *loop;
        char *dir;
        int dir_fd;
        uint64_t bytes_max, floor_bytes, segment_bytes;
        struct sheaf_lock lock;
        struct sheaf_mac *mac;
        struct sheaf_disk *disk;
        struct sheaf_buffers buffers;
        struct sheaf_catalog *catalog;
        bool closing, unclean;

        struct sheaf_file idle; /* list head: newer = newest idle */
        unsigned int files_open;

        struct sheaf_segment **segments; /* by number */
        uint32_t segment_cap, segment_top, segment_count;
        bool holes_missing; /* what is not taken of a file takes room too */
        struct sheaf_group *groups, *group_of[SHEAF_GROUP_BUCKETS];
        struct sheaf_append_buffer *append_free;
        unsigned int append_buffers;

        struct sheaf_plain *plains[SHEAF_PLAIN_BUCKETS];
        struct sheaf_plain *plains_doomed;
        uint64_t plain_count, plain_bytes, doomed_bytes;
        struct sheaf_plain *leaving, **leaving_tail; /* the first: under way */
        uint64_t leaving_bytes;                      /* of doomed_bytes */
        unsigned int giving_way;
        struct sheaf_disk_io leave_io;
        int leave_fds[3];
        struct sheaf_store_write *leave_writes; /* wait for the next to leave */
        LIST_HEAD(, sheaf_store_gone) gone_waits;
        int readonly_tree_fd; /* -1: not made yet, -2: not allowed */

        struct sheaf_version *versions;
        struct sheaf_pending pending, committing;
        bool commit_running, commit_wanted;
        struct sheaf_records records;
        int64_t commit_failed_ns; /* the last time; 0: never */
        struct sheaf_place *bad;  /* damaged places, a hash table */
        size_t bad_count;

        uint64_t segment_disk_bytes, meta_bytes, version_meta_bytes;
        struct sheaf_meta *metas[SHEAF_META_BUCKETS]; /* by directory */
        bool metas_stale;
        uint64_t journal_bytes;  /* of jobs, as the owner told */
        uint64_t reserved_bytes; /* by writes and segments under way */

        uv_timer_t timer;   /* idle flush, retries */
        uv_idle_t deferred; /* completions that must not be immediate */
        int open_handles;
        struct sheaf_store_write *defer_writes, **defer_writes_tail;
        struct sheaf_store_write *leads[SHEAF_LEAD_BUCKETS]; /* small ones */
        struct sheaf_store_read *defer_reads, **defer_reads_tail;
        struct sheaf_store_read *wait_reads[SHEAF_BUFFER_CLASSES];
        struct sheaf_store_read **wait_tail[SHEAF_BUFFER_CLASSES];

        struct sheaf_recovered recovered;
        bool check_running; /* behind: of a segment or a plain file */
        size_t check_at;    /* the bucket of plain files that is next */
        struct sheaf_digest sweep_after; /* catalog sweep's position */
        bool sweep_running;
        void *sweep;           /* DIR * of the cleaning behind, or NULL */
        unsigned int sweep_at; /* which directory; past the last: done */
        struct sheaf_store_stats stats;
        struct sheaf_log_once full_once, bad_once, io_once;
        struct sheaf_shortage disk_short, read_short, limit_short;
        bool degraded_told; /* the log has it */

        bool slow; /* the disk does not answer in time (pulse.c) */
        struct sheaf_pulse *beat; /* under way, or NULL */
        int64_t beaten_ns;        /* when the last one ended */
        int64_t used_ns;          /* when reads or writes were last seen */
        uint64_t used_count;      /* how many there were then */
        unsigned int quick_beats;
};

/* Begins the next change if nothing else writes to the catalog. */
void sheaf_records_next(struct sheaf_store *store);

/* What store_private of a read holds. */
struct sheaf_read_private {
        struct sheaf_store_read *next;
        struct sheaf_store *store;
        struct sheaf_buffer *buffer;
        int rc;
};

static inline struct sheaf_read_private *sheaf_read_private(
        struct sheaf_store_read *read)
{
        return (struct sheaf_read_private *)read->store_private;
}

/* Tells what the file system lacks. */
void sheaf_store_probe(struct sheaf_store *store);
void sheaf_store_finish_read(
        struct sheaf_store *store, struct sheaf_store_read *read, int rc);
/* What waits for a later turn of the loop has its turn soon. */
void sheaf_store_defer(struct sheaf_store *store);
/* Completes a write on a later turn of the loop. */
void sheaf_store_finish_write(
        struct sheaf_store *store, struct sheaf_store_write *write, int rc);
/* The chunk lies at @place now: catalog, version's array, counters. */
void sheaf_store_published(struct sheaf_store *store,
        struct sheaf_store_write *write, const struct sheaf_place *place);
/* Drops a damaged or vanished place everywhere. */
void sheaf_store_drop_place(struct sheaf_store *store,
        const struct sheaf_digest *digest, const struct sheaf_place *place,
        uint32_t len_bytes);

#endif
