/* SPDX-License-Identifier: Apache-2.0 */
/* Limits, and who gives way.
 *
 *  1 usage counts allocated bytes of segments and plain files (those without
 *    a name too), catalog and arrays: what du counts
 *  2 nothing is begun that would exceed bytes_max or the floor of free space;
 *    of files that are leaving (leave.c) the limit knows no more, and large
 *    ones wait until they have left
 *  3 a live group loses nothing; idle ones give way, the longest idle first. A
 *    file that gives way to a write counts until it has left, which the write
 *    waits for; so does any other that needs room, and nobody else gives way
 *    meanwhile
 *  4 a refusal is quiet: a counter, one line, a text with the remedy; the
 *    state lasts while refusals keep coming, some seconds at least, and ends
 *    by itself when writes succeed and what was refused would fit */
#include "daemon/store/private.h"

#include <sys/statvfs.h>

#define FREE_SEGMENTS_KEPT 4

uint64_t sheaf_space_used(const struct sheaf_store *store)
{
        return store->segment_disk_bytes + store->plain_bytes +
               store->doomed_bytes + store->meta_bytes +
               store->version_meta_bytes + store->journal_bytes;
}

void sheaf_store_set_journals(struct sheaf_store *store, uint64_t bytes)
{
        store->journal_bytes = bytes;
}

/* Room that the catalog will want for what it does not hold yet. */
static uint64_t catalog_reserve(const struct sheaf_store *store)
{
        return store->pending.count * 160 + 256 * SHEAF_KIB;
}

static bool within_limit(const struct sheaf_store *store, uint64_t bytes)
{
        return sheaf_space_used(store) - store->leaving_bytes +
                       catalog_reserve(store) + store->reserved_bytes + bytes <=
               store->bytes_max;
}

/* Whether the file system has @bytes above the floor: 0, -ENOSPC, -errno. */
static int disk_room(const struct sheaf_store *store, uint64_t bytes)
{
        struct statvfs fs;
        uint64_t free_bytes;

        bytes += store->reserved_bytes;
        if (fstatvfs(store->dir_fd, &fs))
                return -errno;
        /* One without a size (ramfs) cannot say what is free. */
        if (!fs.f_blocks)
                return 0;
        free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
        if (free_bytes < bytes || free_bytes - bytes < store->floor_bytes)
                return -ENOSPC;
        return 0;
}

int sheaf_space_room(struct sheaf_store *store, uint64_t bytes)
{
        return within_limit(store, bytes) ? disk_room(store, bytes) : -EDQUOT;
}

bool sheaf_space_short(const struct sheaf_store *store, uint64_t bytes)
{
        return disk_room(store, bytes) != 0;
}

static void shortage_note(struct sheaf_shortage *shortage, uint64_t bytes)
{
        shortage->refused_ns = sheaf_now_ns();
        shortage->worked = false;
        shortage->bytes = SHEAF_MAX(shortage->bytes, bytes);
}

static bool shortage_quiet(const struct sheaf_shortage *shortage)
{
        return sheaf_now_ns() - shortage->refused_ns >= SHEAF_SHORTAGE_HOLD_NS;
}

static const char *cause(int rc)
{
        switch (rc) {
        case -ENOSPC:
                return "the disk of the cache is full or at its floor; free "
                       "space there or lower --disk: reads go on from memory "
                       "and origin";
        case -EDQUOT:
                return "the quota on the disk of the cache is used up; raise "
                       "it or lower --disk: reads go on from memory and "
                       "origin";
        case -EROFS:
                return "the file system of the cache became read-only; check "
                       "the disk and remount it";
        case -ENOTCONN:
        case -ESTALE:
        case -ENOENT:
                return "the directory of the cache went away; bring it back, "
                       "or restart with another --cache directory";
        case -ETIMEDOUT:
                return "the disk of the cache answers too slowly; see what "
                       "loads it, or use another --cache directory: reads go "
                       "on from memory and origin";
        case -EMFILE:
        case -ENFILE:
                return "too few descriptors are allowed to open the cache's "
                       "files; raise the limit (ulimit -n)";
        default:
                return "the disk of the cache fails; see the kernel log and "
                       "replace it or use another --cache directory";
        }
}

static void degrade(struct sheaf_store *store, int rc)
{
        const char *why = cause(rc);

        if ((!store->degraded_told || rc != store->stats.degraded) &&
                sheaf_log_once(&store->io_once, 60 * SHEAF_NS_PER_SEC)) {
                sheaf_log_rc(rc, SHEAF_LOG_WARN, "store_degraded",
                        "dir=\"%s\" remedy=\"%s\"", store->dir, why);
                store->degraded_told = true;
        }
        store->stats.degraded = rc;
        store->stats.degraded_why = why;
}

int sheaf_space_failed(struct sheaf_store *store, int rc)
{
        shortage_note(&store->disk_short, 0);
        degrade(store, rc);
        return rc == -ENOSPC || rc == -EDQUOT ? -ENOSPC : -EIO;
}

void sheaf_space_read_failed(struct sheaf_store *store, int rc)
{
        shortage_note(&store->read_short, 0);
        degrade(store, rc);
}

int sheaf_space_refused(struct sheaf_store *store, uint64_t bytes, int rc)
{
        store->stats.refused_full++;
        if (rc != -EDQUOT) {
                shortage_note(&store->disk_short, bytes);
                degrade(store, rc);
                return rc == -ENOSPC ? rc : -EIO;
        }
        shortage_note(&store->limit_short, bytes);
        store->stats.limit_reached = true;
        if (sheaf_log_once(&store->full_once, 600 * SHEAF_NS_PER_SEC))
                sheaf_log(SHEAF_LOG_INFO, "store_full",
                        "used_bytes=%llu max_bytes=%llu remedy=\"raise --disk "
                        "to keep more\"",
                        (unsigned long long)sheaf_space_used(store),
                        (unsigned long long)store->bytes_max);
        return rc;
}

void sheaf_space_wrote(struct sheaf_store *store)
{
        store->disk_short.worked = true;
        /* One that was let in before the refusal says nothing. */
        if (shortage_quiet(&store->limit_short))
                store->limit_short.worked = true;
}

static struct sheaf_segment *free_segment(const struct sheaf_store *store)
{
        for (uint32_t n = 1; n <= store->segment_top; n++) {
                struct sheaf_segment *s = sheaf_segment_at(store, n);

                if (s && s->state == SHEAF_SEGMENT_FREE && !s->absent &&
                        !s->busy)
                        return s;
        }
        return NULL;
}

static bool disk_works(const struct sheaf_store *store)
{
        const struct sheaf_shortage *disk = &store->disk_short;

        /* Small writes that fit say nothing of the large one that did not. */
        return !disk->refused_ns ||
               (disk->worked && shortage_quiet(disk) &&
                       (!disk->bytes || free_segment(store) ||
                               disk_room(store, disk->bytes) == 0));
}

static bool reads_work(const struct sheaf_store *store)
{
        const struct sheaf_shortage *reads = &store->read_short;

        return !reads->refused_ns || (reads->worked && shortage_quiet(reads));
}

void sheaf_space_settle(struct sheaf_store *store)
{
        struct sheaf_shortage *limit = &store->limit_short;

        if (store->stats.degraded && disk_works(store) && reads_work(store)) {
                if (store->degraded_told)
                        sheaf_log(SHEAF_LOG_INFO, "store_recovered",
                                "dir=\"%s\"", store->dir);
                store->degraded_told = false;
                store->stats.degraded = 0;
                store->stats.degraded_why = "";
                store->disk_short = (struct sheaf_shortage){ 0 };
                store->read_short = (struct sheaf_shortage){ 0 };
        }
        /* At the limit others give way: then there never is free room. */
        if (store->stats.limit_reached && shortage_quiet(limit) &&
                (limit->worked || within_limit(store, limit->bytes))) {
                store->stats.limit_reached = false;
                limit->bytes = 0;
        }
}

/* Who gives way: of the longest idle group a closed segment, else a plain
 * file, else its open segment. */
struct victim {
        int64_t idle_since_ns;
        int kind;
        struct sheaf_segment *segment;
        struct sheaf_plain *plain;
};

static void consider(const struct sheaf_store *store,
        const struct sheaf_group *asker, uint64_t group_id, struct victim *best,
        const struct victim *that)
{
        const struct sheaf_group *group = sheaf_group_find(store, group_id);
        bool any = best->segment || best->plain;

        if (!group || group == asker || group->live)
                return;
        if (any && (group->idle_since_ns > best->idle_since_ns ||
                           (group->idle_since_ns == best->idle_since_ns &&
                                   that->kind >= best->kind)))
                return;
        *best = *that;
        best->idle_since_ns = group->idle_since_ns;
}

static struct victim find_victim(
        const struct sheaf_store *store, const struct sheaf_group *asker)
{
        struct victim best = { 0 };

        for (uint32_t n = 1; n <= store->segment_top; n++) {
                struct sheaf_segment *s = sheaf_segment_at(store, n);
                struct victim that = { .segment = s };

                if (!s || s->busy)
                        continue;
                if (s->state != SHEAF_SEGMENT_SEALED &&
                        !sheaf_append_idle(store, s))
                        continue;
                that.kind = s->state == SHEAF_SEGMENT_SEALED ? 0 : 2;
                consider(store, asker, s->group, &best, &that);
        }
        for (size_t b = 0; b < SHEAF_PLAIN_BUCKETS; b++) {
                for (struct sheaf_plain *p = store->plains[b]; p; p = p->next) {
                        struct victim that = { .kind = 1, .plain = p };

                        if (!p->leases && !p->busy)
                                consider(store, asker, p->group, &best, &that);
                }
        }
        return best;
}

/* A segment is empty then; of an open one the group knows no more. */
static void empty_segment(
        struct sheaf_store *store, struct sheaf_segment *segment)
{
        sheaf_append_detach(store, segment);
        sheaf_segment_release(store, segment);
}

/* Drops any plain file that nobody uses. */
static bool drop_plain(struct sheaf_store *store)
{
        for (size_t b = 0; b < SHEAF_PLAIN_BUCKETS; b++) {
                for (struct sheaf_plain *p = store->plains[b]; p; p = p->next) {
                        if (p->leases || p->busy)
                                continue;
                        sheaf_plain_drop(store, p);
                        return true;
                }
        }
        return false;
}

int sheaf_space_reuse(struct sheaf_store *store,
        const struct sheaf_group *asker, struct sheaf_segment **ret_segment)
{
        struct sheaf_segment *segment = free_segment(store);
        struct victim victim;

        if (!segment) {
                /* Without an asker nobody has to give way. */
                if (!asker)
                        return -ENOENT;
                if (store->giving_way)
                        return -EINPROGRESS;
                victim = find_victim(store, asker);
                if (victim.plain) {
                        sheaf_plain_give_way(store, victim.plain);
                        return -EINPROGRESS;
                }
                if (!victim.segment)
                        return -ENOENT;
                segment = victim.segment;
                empty_segment(store, segment);
        }
        *ret_segment = segment;
        return 0;
}

/* A segment or a file of an idle group; false: there is none. */
static bool drop_idle(struct sheaf_store *store)
{
        const struct sheaf_group none = { 0 };
        struct sheaf_segment *segment = free_segment(store);
        struct victim victim = { .segment = segment };

        if (!segment)
                victim = find_victim(store, &none);
        if (victim.plain) {
                sheaf_plain_drop(store, victim.plain);
                return true;
        }
        if (!victim.segment)
                return false;
        if (!segment)
                empty_segment(store, victim.segment);
        sheaf_segment_unlink(store, victim.segment);
        return true;
}

void sheaf_space_enforce(struct sheaf_store *store)
{
        while (store->bytes_max &&
                sheaf_space_used(store) - store->leaving_bytes >
                        store->bytes_max) {
                struct sheaf_segment *victim = NULL;

                if (drop_idle(store))
                        continue;
                for (uint32_t n = 1; !victim && n <= store->segment_top; n++) {
                        struct sheaf_segment *s = sheaf_segment_at(store, n);

                        /* The limit is hard: live groups give way too. */
                        if (s && s->state == SHEAF_SEGMENT_SEALED && !s->busy)
                                victim = s;
                }
                if (victim) {
                        sheaf_segment_unlink(store, victim);
                        continue;
                }
                if (drop_plain(store))
                        continue;
                for (uint32_t n = 1; !victim && n <= store->segment_top; n++) {
                        struct sheaf_segment *s = sheaf_segment_at(store, n);

                        if (s && sheaf_append_idle(store, s))
                                victim = s;
                }
                if (!victim)
                        return;
                empty_segment(store, victim);
                sheaf_segment_unlink(store, victim);
        }
}

void sheaf_store_group_live(
        struct sheaf_store *store, uint64_t group_id, bool live)
{
        struct sheaf_group *group = sheaf_group_get(store, group_id);

        if (!group || group->live == live)
                return;
        group->live = live;
        if (!live)
                group->idle_since_ns = sheaf_now_ns();
}

void sheaf_store_group_drop(struct sheaf_store *store, uint64_t group_id)
{
        struct sheaf_group *group = sheaf_group_get(store, group_id);
        uint32_t kept = 0;

        if (group && group->append.segment &&
                sheaf_append_idle(store, group->append.segment))
                empty_segment(store, group->append.segment);
        else if (group)
                sheaf_append_drop(store, group);
        for (uint32_t n = 1; n <= store->segment_top; n++) {
                struct sheaf_segment *s = sheaf_segment_at(store, n);

                if (!s || s->absent)
                        continue;
                if (s->group == group_id && s->state == SHEAF_SEGMENT_SEALING)
                        s->doomed = true;
                if (s->group == group_id && s->state == SHEAF_SEGMENT_SEALED)
                        sheaf_segment_release(store, s);
                if (s->state == SHEAF_SEGMENT_FREE && !s->busy &&
                        kept++ >= FREE_SEGMENTS_KEPT)
                        sheaf_segment_unlink(store, s);
        }
        sheaf_plain_drop_group(store, group_id);
        if (group)
                sheaf_group_forget(store, group);
        sheaf_space_meta(store);
}

void sheaf_store_group_sweep(struct sheaf_store *store,
        bool (*is_known)(void *arg, uint64_t group), void *arg)
{
        for (struct sheaf_group *g = store->groups, *next; g; g = next) {
                next = g->next;
                if (!is_known(arg, g->id))
                        sheaf_store_group_drop(store, g->id);
        }
        for (size_t b = 0; b < SHEAF_PLAIN_BUCKETS; b++) {
                struct sheaf_plain *plain = store->plains[b];

                while (plain) {
                        struct sheaf_plain *next = plain->next;

                        if (!is_known(arg, plain->group))
                                sheaf_plain_drop(store, plain);
                        plain = next;
                }
        }
        sheaf_space_meta(store);
}
