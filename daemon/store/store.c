/* SPDX-License-Identifier: Apache-2.0 */
/* The disk tier's door: open and close, writes and drops. Reads: read.c.
 *
 *  1 completions come on a later turn of the loop, never from inside the call
 *  2 a chunk whose digest lies on disk already is not written again; chunks
 *    of large files are kept in their own file all the same
 *  3 of writes with one digest that are under way together the first is
 *    written, the others wait for what becomes of it
 *  4 close leaves nothing in flight; its handles end as the loop goes on */
#include "daemon/store/private.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define TICK_MS      50
#define WANTED_MS    10
#define COPIES_MAX   8
#define DRAINS_MAX   1000
#define CATALOG_MAP  (UINT64_C(1) << 30)
#define CLOSE_COMMIT 16384 /* fewer are cheaper to read from summaries */

/* ---- open and close ---- */

/* A damaged catalog is put aside: chunks are found again by their segments'
 * headers, and a restart needs no hand. */
static int put_aside(struct sheaf_store *store)
{
        unlinkat(store->dir_fd, "catalog.damaged/data.mdb", 0);
        unlinkat(store->dir_fd, "catalog.damaged/lock.mdb", 0);
        unlinkat(store->dir_fd, "catalog.damaged/damaged", 0);
        unlinkat(store->dir_fd, "catalog.damaged", AT_REMOVEDIR);
        if (renameat(
                    store->dir_fd, "catalog", store->dir_fd, "catalog.damaged"))
                return -errno;
        return sheaf_log_rc(0, SHEAF_LOG_ERROR, "store_catalog_damaged",
                "dir=\"%s\" kept=catalog.damaged remedy=\"datasets must be "
                "added again; their cached bytes are found again\"",
                store->dir);
}

static int open_catalog(struct sheaf_store *store)
{
        char path[4096];
        int n = snprintf(path, sizeof(path), "%s/catalog", store->dir);
        uint64_t map = SHEAF_MAX(store->bytes_max / 16, CATALOG_MAP);
        int rc;

        if (n < 0 || (size_t)n >= sizeof(path))
                return -ENAMETOOLONG;
        rc = sheaf_catalog_open(path, map, &store->catalog);
        if (rc == -EBADMSG) {
                rc = put_aside(store);
                if (!rc)
                        rc = sheaf_catalog_open(path, map, &store->catalog);
        }
        if (rc == -ENOMEM)
                rc = sheaf_catalog_open(
                        path, CATALOG_MAP / 16, &store->catalog);
        if (rc)
                return sheaf_log_rc(rc, SHEAF_LOG_ERROR, "store_catalog",
                        "path=\"%s\"", path);
        return 0;
}

/* So small that some fit, in the limit and in the file system. */
static uint64_t segment_bytes_for(const char *dir, uint64_t bytes_max)
{
        uint64_t bytes = SHEAF_SEGMENT_BYTES_MAX;
        struct statvfs fs;

        if (dir && !statvfs(dir, &fs) && fs.f_blocks)
                bytes_max = SHEAF_MIN(
                        bytes_max, (uint64_t)fs.f_blocks * fs.f_frsize);
        while (bytes > SHEAF_SEGMENT_BYTES_MIN && bytes > bytes_max / 8)
                bytes /= 2;
        return bytes;
}

static bool writes_waiting(const struct sheaf_store *store)
{
        for (const struct sheaf_group *g = store->groups; g; g = g->next) {
                if (g->append.waiting || g->append.buffer)
                        return true;
        }
        return false;
}

static bool buffers_wanted(const struct sheaf_store *store)
{
        for (const struct sheaf_group *g = store->groups; g; g = g->next) {
                if (g->append.waiting && !g->append.making)
                        return true;
        }
        return false;
}

static void on_tick(uv_timer_t *timer)
{
        struct sheaf_store *store = timer->data;
        bool wanted;

        sheaf_pulse_step(store);
        sheaf_versions_look(store);
        sheaf_append_flush(store, SHEAF_FLUSH_IDLE_NS);
        /* Who waits for a buffer gets one that another group leaves alone. */
        wanted = buffers_wanted(store);
        if (wanted)
                sheaf_append_flush(store, SHEAF_APPEND_WANTED_NS);
        uv_timer_set_repeat(timer, wanted ? WANTED_MS : TICK_MS);
        if (!writes_waiting(store))
                uv_unref((uv_handle_t *)timer);
        sheaf_places_commit(store, false);
        if (store->slow)
                return;
        sheaf_space_settle(store);
        if (sheaf_recover_step(store))
                return;
        sheaf_check_step(store);
        sheaf_catalog_sweep(store);
}

static void on_deferred(uv_idle_t *idle);

static int start_handles(struct sheaf_store *store)
{
        int rc = uv_timer_init(store->loop, &store->timer);

        if (rc)
                return rc;
        store->open_handles = 1;
        store->timer.data = store;
        rc = uv_timer_start(&store->timer, on_tick, TICK_MS, TICK_MS);
        uv_unref((uv_handle_t *)&store->timer);
        if (!rc)
                rc = uv_idle_init(store->loop, &store->deferred);
        if (rc)
                return rc;
        store->open_handles = 2;
        store->deferred.data = store;
        return 0;
}

static void store_free(struct sheaf_store *store)
{
        sheaf_recover_deinit(store);
        sheaf_append_deinit(store);
        sheaf_segments_deinit(store);
        sheaf_meta_deinit(store);
        sheaf_plain_deinit(store);
        sheaf_pending_clear(&store->pending);
        sheaf_pending_clear(&store->committing);
        sheaf_catalog_close(store->catalog);
        sheaf_buffers_deinit(&store->buffers);
        sheaf_mac_free(store->mac);
        free(store->bad);
        if (store->readonly_tree_fd >= 0)
                close(store->readonly_tree_fd);
        sheaf_close_p(&store->dir_fd);
        sheaf_lock_drop(&store->lock);
        free(sheaf_steal(&store->dir));
}

static void on_closed(uv_handle_t *handle)
{
        struct sheaf_store *store = handle->data;

        if (--store->open_handles == 0)
                free(store);
}

static void close_handles(struct sheaf_store *store)
{
        int open = store->open_handles;

        if (!open)
                free(store);
        if (open >= 2)
                uv_close((uv_handle_t *)&store->deferred, on_closed);
        if (open >= 1)
                uv_close((uv_handle_t *)&store->timer, on_closed);
}

static struct sheaf_store *store_new(const struct sheaf_store_config *config)
{
        struct sheaf_store *store = sheaf_new(struct sheaf_store, 1);

        if (!store)
                return NULL;
        store->loop = config->loop;
        store->bytes_max = config->bytes_max;
        store->floor_bytes = config->floor_bytes;
        store->lock = (struct sheaf_lock)SHEAF_LOCK_NONE;
        store->dir_fd = -1;
        store->readonly_tree_fd = -1;
        store->idle.newer = store->idle.older = &store->idle;
        store->defer_writes_tail = &store->defer_writes;
        store->defer_reads_tail = &store->defer_reads;
        store->leaving_tail = &store->leaving;
        LIST_INIT(&store->gone_waits);
        for (int c = 0; c < SHEAF_BUFFER_CLASSES; c++)
                store->wait_tail[c] = &store->wait_reads[c];
        store->dir = realpath(config->dir, NULL);
        store->segment_bytes = segment_bytes_for(store->dir, config->bytes_max);
        return store;
}

static int open_parts(
        struct sheaf_store *store, const struct sheaf_store_config *config)
{
        uint8_t key[SHEAF_MAC_KEY_BYTES];
        int rc = sheaf_lock_take(
                store->dir, config->fuse_ok, config->holder_hint, &store->lock);

        if (rc)
                return rc;
        store->dir_fd = openat(
                store->lock.dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (store->dir_fd < 0)
                return -errno;
        rc = sheaf_mac_key(store->dir_fd, key);
        if (rc == -EBADMSG) {
                sheaf_log_rc(rc, SHEAF_LOG_ERROR, "store_key_damaged",
                        "path=\"%s/key\" action=\"the cache begins anew\"",
                        store->dir);
                unlinkat(store->dir_fd, "key", 0);
                rc = sheaf_mac_key(store->dir_fd, key);
        }
        if (!rc)
                rc = sheaf_mac_new(key, &store->mac);
        if (!rc)
                rc = sheaf_buffers_init(&store->buffers);
        if (!rc)
                rc = open_catalog(store);
        if (!rc)
                rc = sheaf_disk_new(store->loop, config->want_uring,
                        store->buffers.regions, SHEAF_BUFFER_CLASSES,
                        &store->disk);
        if (!rc && config->fuse_ok)
                sheaf_disk_detach(store->disk);
        if (!rc)
                rc = sheaf_recover(store);
        if (!rc)
                rc = start_handles(store);
        if (!rc && store->bytes_max)
                sheaf_store_probe(store);
        return rc;
}

int sheaf_store_open(
        const struct sheaf_store_config *config, struct sheaf_store **ret_store)
{
        struct sheaf_store *store;
        int rc;

        if (mkdir(config->dir, 0700) && errno != EEXIST)
                return -errno;
        store = store_new(config);
        if (!store)
                return -ENOMEM;
        rc = store->dir ? open_parts(store, config) : -errno;
        if (rc) {
                sheaf_disk_free(store->disk);
                store_free(store);
                close_handles(store);
                return rc;
        }
        store->metas_stale = true;
        sheaf_space_meta(store);
        sheaf_space_enforce(store);
        *ret_store = store;
        return 0;
}

/* Gives every open segment its summary, so that the next start reads that
 * instead of walking; a clean stop lets it go on where it ended. */
static void seal_all(struct sheaf_store *store)
{
        for (struct sheaf_group *g = store->groups; g; g = g->next)
                sheaf_append_drop(store, g);
        sheaf_disk_drain(store->disk);
}

/* Reads that wait for a buffer which nobody will give back any more. */
static void fail_waiting_reads(struct sheaf_store *store)
{
        for (int c = 0; c < SHEAF_BUFFER_CLASSES; c++) {
                struct sheaf_store_read *read = store->wait_reads[c];

                store->wait_reads[c] = NULL;
                store->wait_tail[c] = &store->wait_reads[c];
                while (read) {
                        struct sheaf_store_read *next =
                                sheaf_read_private(read)->next;

                        sheaf_store_finish_read(store, read, -EIO);
                        read = next;
                }
        }
}

static void sync_versions(struct sheaf_store *store)
{
        for (struct sheaf_version *v = store->versions; v; v = v->next) {
                if (!v->dirty)
                        continue;
                if ((v->digests_fd >= 0 && fdatasync(v->digests_fd)) ||
                        (v->places_fd >= 0 && fdatasync(v->places_fd)))
                        store->stats.io_errors++;
                v->dirty = false;
        }
}

void sheaf_store_close(struct sheaf_store *store)
{
        struct sheaf_catalog_segment clean = { .generation = 1 };
        int rc;

        if (!store)
                return;
        store->closing = true;
        sheaf_store_flush(store);
        sheaf_disk_drain(store->disk);
        fail_waiting_reads(store);
        sheaf_store_settle(store);
        for (int i = 0; i < DRAINS_MAX && writes_waiting(store); i++) {
                sheaf_store_flush(store);
                sheaf_disk_drain(store->disk);
        }
        if (store->pending.count >= CLOSE_COMMIT)
                sheaf_places_commit(store, true);
        seal_all(store);
        sync_versions(store);
        sheaf_plain_sync(store);
        while (store->leave_writes || store->defer_writes || store->defer_reads)
                on_deferred(&store->deferred);
        sheaf_disk_drain(store->disk);
        rc = sheaf_catalog_apply(store->catalog, NULL, 0, &clean, 1);
        if (rc)
                sheaf_log_rc(rc, SHEAF_LOG_WARN, "store_close",
                        "dir=\"%s\" next_start=recovers", store->dir);
        sheaf_disk_free(store->disk);
        while (store->versions)
                sheaf_version_close(store->versions);
        store_free(store);
        close_handles(store);
}

/* ---- completions ---- */

static void on_deferred(uv_idle_t *idle)
{
        struct sheaf_store *store = idle->data;
        struct sheaf_store_write *write;
        struct sheaf_store_read *read;

        sheaf_leave_again(store);
        write = store->defer_writes;
        read = store->defer_reads;
        store->defer_writes = NULL;
        store->defer_writes_tail = &store->defer_writes;
        store->defer_reads = NULL;
        store->defer_reads_tail = &store->defer_reads;
        if (!store->closing)
                uv_idle_stop(&store->deferred);
        while (write) {
                struct sheaf_write_private *p = sheaf_write_private(write);
                struct sheaf_store_write *next = p->next;

                write->done(write, p->rc);
                write = next;
        }
        while (read) {
                struct sheaf_read_private *p = sheaf_read_private(read);
                struct sheaf_store_read *next = p->next;

                read->done(read, p->rc);
                read = next;
        }
}

void sheaf_store_defer(struct sheaf_store *store)
{
        if (!store->closing)
                uv_idle_start(&store->deferred, on_deferred);
}

static struct sheaf_store_write **lead_bucket(
        struct sheaf_store *store, const struct sheaf_digest *digest)
{
        return &store->leads[sheaf_digest_prefix(digest) % SHEAF_LEAD_BUCKETS];
}

/* True: another write of that digest is under way, and this one waits. */
static bool follow(struct sheaf_store *store, struct sheaf_store_write *write)
{
        struct sheaf_write_private *p = sheaf_write_private(write), *lead;
        struct sheaf_store_write **bucket = lead_bucket(store, &p->digest);

        for (struct sheaf_store_write *w = *bucket; w; w = lead->chained) {
                lead = sheaf_write_private(w);
                if (!sheaf_digest_equal(&lead->digest, &p->digest))
                        continue;
                p->next = lead->followers;
                lead->followers = write;
                return true;
        }
        p->leads = true;
        p->chained = *bucket;
        *bucket = write;
        return false;
}

static void lead_no_more(
        struct sheaf_store *store, struct sheaf_store_write *write, int rc)
{
        struct sheaf_write_private *p = sheaf_write_private(write);
        struct sheaf_store_write **at = lead_bucket(store, &p->digest);
        struct sheaf_store_write *follower = sheaf_steal(&p->followers);

        while (*at != write)
                at = &sheaf_write_private(*at)->chained;
        *at = p->chained;
        p->leads = false;
        while (follower) {
                struct sheaf_store_write *next =
                        sheaf_write_private(follower)->next;

                /* What is there now is found, else it is written anew. */
                if (rc)
                        sheaf_store_finish_write(store, follower, rc);
                else
                        sheaf_store_write(store, follower);
                follower = next;
        }
}

void sheaf_store_finish_write(
        struct sheaf_store *store, struct sheaf_store_write *write, int rc)
{
        struct sheaf_write_private *p = sheaf_write_private(write);

        if (p->leads)
                lead_no_more(store, write, rc);
        p->rc = rc;
        p->next = NULL;
        *store->defer_writes_tail = write;
        store->defer_writes_tail = &p->next;
        sheaf_store_defer(store);
}

void sheaf_store_finish_read(
        struct sheaf_store *store, struct sheaf_store_read *read, int rc)
{
        struct sheaf_read_private *p = sheaf_read_private(read);

        p->rc = rc;
        p->next = NULL;
        *store->defer_reads_tail = read;
        store->defer_reads_tail = &p->next;
        sheaf_store_defer(store);
}

void sheaf_store_published(struct sheaf_store *store,
        struct sheaf_store_write *write, const struct sheaf_place *place)
{
        struct sheaf_version *version = write->ref.version;
        struct sheaf_write_private *p = sheaf_write_private(write);

        if (!sheaf_places_alive(store, place))
                return; /* its dataset was dropped meanwhile */
        store->stats.written_chunks++;
        store->stats.written_bytes += write->ref.len_bytes;
        sheaf_places_note(store, &p->digest, place);
        if (sheaf_digest_equal(&version->digests[write->ref.chunk], &p->digest))
                sheaf_version_place(version, write->ref.chunk, place);
}

/* ---- writing and dropping ---- */

void sheaf_store_write(
        struct sheaf_store *store, struct sheaf_store_write *write)
{
        const struct sheaf_chunk_ref *ref = &write->ref;
        const struct sheaf_listing_entry *entry =
                &ref->version->listing.entries[ref->entry];
        struct sheaf_write_private *p = sheaf_write_private(write);
        bool large = entry->size_bytes > SHEAF_CHUNK_BYTES_MAX;
        struct sheaf_place place;
        int rc = 0;

        *p = (struct sheaf_write_private){
                .digest = ref->version->digests[ref->chunk],
        };
        if (!ref->len_bytes || ref->len_bytes > SHEAF_CHUNK_BYTES_MAX ||
                !sheaf_digest_known(&p->digest))
                rc = -EINVAL;
        else if (!store->bytes_max || store->closing)
                rc = -EDQUOT;
        else if (store->slow)
                rc = sheaf_space_failed(store, -ETIMEDOUT);
        else if (!sheaf_version_find(ref->version, ref->chunk, &place) &&
                 (!large || (sheaf_place_plain(&place) &&
                                    sheaf_place_node(&place) == entry->node)))
                rc = -EEXIST;
        if (rc)
                sheaf_store_finish_write(store, write, rc);
        else if (large)
                sheaf_plain_write(store, write, entry->node, entry->size_bytes);
        else if (!follow(store, write))
                sheaf_append_write(store, write);
}

void sheaf_store_flush(struct sheaf_store *store)
{
        sheaf_append_flush(store, 0);
        if (store->pending.count >= SHEAF_PENDING_BATCH / 4)
                sheaf_places_commit(store, true);
}

void sheaf_store_drop_place(struct sheaf_store *store,
        const struct sheaf_digest *digest, const struct sheaf_place *place,
        uint32_t len_bytes)
{
        struct sheaf_segment *segment;
        struct sheaf_plain *plain;

        if (!sheaf_places_alive(store, place))
                return;
        sheaf_places_forget(store, digest, place);
        if (sheaf_place_plain(place)) {
                for (struct sheaf_version *v = store->versions; v; v = v->next)
                        sheaf_version_plain_lost(v, place);
                plain = sheaf_plain_find(store, sheaf_place_node(place));
                sheaf_plain_forget_chunk(store, plain,
                        place->offset_bytes >> SHEAF_PLAIN_GEN_BITS);
                return;
        }
        /* Versions that name it learn of it when they look. */
        segment = sheaf_segment_at(store, place->container);
        if (sheaf_places_bad(store, place))
                sheaf_segment_drop_record(store, segment, len_bytes);
}

void sheaf_store_bad(
        struct sheaf_store *store, const struct sheaf_chunk_ref *ref)
{
        struct sheaf_version *version = ref->version;
        struct sheaf_digest digest = version->digests[ref->chunk];
        struct sheaf_place place;

        if (sheaf_version_find(version, ref->chunk, &place))
                return;
        store->stats.bad_payloads++;
        if (sheaf_log_once(&store->bad_once, SHEAF_NS_PER_SEC))
                sheaf_log(SHEAF_LOG_WARN, "store_bad_payload",
                        "container=%u offset=%llu action=\"dropped, fetched "
                        "again\"",
                        place.container,
                        (unsigned long long)place.offset_bytes);
        sheaf_store_drop_place(store, &digest, &place, ref->len_bytes);
        if (!memcmp(&version->places[ref->chunk], &place, sizeof(place)))
                sheaf_version_unplace(version, ref->chunk);
}

static bool evict_place(struct sheaf_store *store,
        const struct sheaf_chunk_ref *ref, const struct sheaf_place *place)
{
        struct sheaf_version *version = ref->version;
        struct sheaf_segment *segment;

        if (sheaf_place_plain(place)) {
                struct sheaf_plain *plain =
                        sheaf_plain_find(store, sheaf_place_node(place));

                if (!plain || plain->leases)
                        return false;
                sheaf_plain_drop(store, plain);
                return true;
        }
        sheaf_places_forget(store, &version->digests[ref->chunk], place);
        sheaf_version_unplace(version, ref->chunk);
        segment = sheaf_segment_at(store, place->container);
        if (segment)
                sheaf_segment_drop_record(store, segment, ref->len_bytes);
        return true;
}

bool sheaf_store_evict(
        struct sheaf_store *store, const struct sheaf_chunk_ref *ref)
{
        struct sheaf_place place;
        bool any = false;

        /* A restart may have found an older copy too. */
        for (int i = 0; i < COPIES_MAX; i++) {
                if (sheaf_version_find(ref->version, ref->chunk, &place) ||
                        !evict_place(store, ref, &place))
                        break;
                any = true;
        }
        return any;
}

/* ---- figures ---- */

int sheaf_store_refuses(const struct sheaf_store *store)
{
        if (store->stats.degraded)
                return store->stats.degraded;
        return store->stats.limit_reached ? -EDQUOT : 0;
}

void sheaf_store_stats(
        const struct sheaf_store *store, struct sheaf_store_stats *ret_stats)
{
        struct sheaf_store_stats *s = ret_stats;

        *s = store->stats;
        s->bytes_max = store->bytes_max;
        s->bytes_used = sheaf_space_used(store);
        s->bytes_unlinked_open = store->doomed_bytes;
        s->segments = store->segment_count;
        s->plain_files = store->plain_count;
        s->uring = sheaf_disk_uring(store->disk, &s->uring_why);
        s->catalog_written_bytes = sheaf_catalog_written(store->catalog);
        for (const struct sheaf_version *v = store->versions; v; v = v->next)
                s->versions_lost += v->lost != 0;
        if (!s->degraded_why)
                s->degraded_why = "";
        for (uint32_t n = 1; n <= store->segment_top; n++) {
                const struct sheaf_segment *segment =
                        sheaf_segment_at(store, n);

                s->unchecked_containers += segment && segment->unchecked;
        }
        for (size_t b = 0; b < SHEAF_PLAIN_BUCKETS; b++) {
                for (const struct sheaf_plain *p = store->plains[b]; p;
                        p = p->next)
                        s->unchecked_containers += !p->marked;
        }
}
