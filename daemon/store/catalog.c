/* SPDX-License-Identifier: Apache-2.0 */
/* The catalog.
 *
 *  1 every transaction is durable when its commit returns (no NOSYNC): after
 *    a power cut the database is whole, at most the tail is missing, and
 *    that is rebuilt from segments
 *  2 digests are inserted in sorted batches only: one by one a random insert
 *    writes some 20 KiB. A batch is several transactions, each of a stretch of
 *    the order: what one replaces is free for the next but one, so that the
 *    file needs room for the tree and two stretches of it, not for two trees;
 *    pages that a transaction has written are in memory until it ends
 *  3 a segment is listed in the transaction that holds its last record
 *  4 the map grows on the loop thread while no transaction is open
 *  5 a damaged page ends the call that meets it, and no other reaches LMDB
 *    from then on; the next start puts the database aside
 *
 * One reading transaction is kept and renewed by the loop thread. */
#include "daemon/store/catalog.h"

#include "daemon/log.h"
#include "daemon/store/guard.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>

#define KEY_BYTES_MAX 400

/* Of a batch in one transaction: as many pages, 32 MiB, at most. */
#define STRETCH_ITEMS 8192

#define PAGE_HEADER_BYTES 16 /* of LMDB; it begins with the page's number */

/* Its presence in the directory tells the next start. */
#define DAMAGED "damaged"

struct sheaf_catalog {
        MDB_env *env;
        char *dir;
        atomic_bool damaged;
        bool opened;                /* somebody relies on it */
        struct sheaf_catalog *next; /* of those given up */
        MDB_dbi digests, records, counters, segments;
        MDB_txn *reader; /* reset between uses */
        _Atomic uint64_t written_bytes;
};

static int to_errno(int rc)
{
        switch (rc) {
        case 0:
                return 0;
        case MDB_NOTFOUND:
                return -ENOENT;
        case MDB_MAP_FULL:
                return -EOVERFLOW;
        case MDB_CORRUPTED:
        case MDB_PAGE_NOTFOUND:
        case MDB_PANIC:
        case MDB_INVALID:
        case MDB_VERSION_MISMATCH:
        case MDB_BAD_TXN:
        case MDB_CURSOR_FULL:
        case MDB_INCOMPATIBLE:
                return -EBADMSG;
        default:
                return rc > 0 ? -rc : -EIO;
        }
}

static void note_damage(struct sheaf_catalog *catalog)
{
        char path[4096];
        int n = snprintf(path, sizeof(path), "%s/" DAMAGED, catalog->dir);
        sheaf_autofd int fd = -1;

        if (atomic_exchange(&catalog->damaged, true) || !catalog->opened)
                return;
        if (n > 0 && (size_t)n < sizeof(path))
                fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        sheaf_log(SHEAF_LOG_ERROR, "store_catalog_damaged",
                "dir=\"%s\" remedy=\"restart sheafd: it puts the catalog aside "
                "and finds cached bytes again\"",
                catalog->dir);
}

/* A call into LMDB, which a damaged page must not turn into our end. */
#define guarded(catalog, call)                                                 \
        ({                                                                     \
                volatile int rc_ = -EBADMSG; /* read after a jump */           \
                                                                               \
                if (!atomic_load(&(catalog)->damaged)) {                       \
                        if (!sigsetjmp(*sheaf_guard_begin(), 0)) {             \
                                rc_ = (call);                                  \
                                sheaf_guard_end();                             \
                        }                                                      \
                        if (rc_ == -EBADMSG)                                   \
                                note_damage(catalog);                          \
                }                                                              \
                rc_;                                                           \
        })

/* Whether what LMDB gave out can be: a key or a value ends with its page,
 * but for large values, which begin behind the header of their first one. */
static bool sane(const MDB_val *value, uint64_t pages)
{
        uint64_t at = (uintptr_t)value->mv_data % SHEAF_DISK_PAGE;
        uint64_t first;

        if (at + value->mv_size <= SHEAF_DISK_PAGE)
                return true;
        if (at != PAGE_HEADER_BYTES)
                return false;
        memcpy(&first, (const char *)value->mv_data - at, sizeof(first));
        return first < pages &&
               at + value->mv_size <= (pages - first) * SHEAF_DISK_PAGE;
}

/* Bytes that this thread has handed to write calls; 0 where not known. */
static uint64_t thread_written(void)
{
        sheaf_autofd int fd =
                open("/proc/thread-self/io", O_RDONLY | O_CLOEXEC);
        char text[512];
        ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
        unsigned long long bytes = 0;
        const char *at;

        if (n <= 0)
                return 0;
        text[n] = '\0';
        at = strstr(text, "wchar:");
        if (!at || sscanf(at, "wchar: %llu", &bytes) != 1)
                return 0;
        return bytes;
}

static int commit(struct sheaf_catalog *catalog, MDB_txn *txn)
{
        uint64_t before = thread_written();
        int rc = to_errno(mdb_txn_commit(txn));

        atomic_fetch_add(&catalog->written_bytes, thread_written() - before);
        return rc;
}

/* A file that was cut would end in SIGBUS when the map is read. */
static int check_length(struct sheaf_catalog *catalog)
{
        MDB_envinfo info;
        struct stat st;
        int fd, rc = mdb_env_get_fd(catalog->env, &fd);

        if (!rc)
                rc = mdb_env_info(catalog->env, &info);
        if (rc)
                return to_errno(rc);
        if (fstat(fd, &st))
                return -errno;
        return (uint64_t)st.st_size / SHEAF_DISK_PAGE > info.me_last_pgno
                       ? 0
                       : -EBADMSG;
}

static int open_tables(struct sheaf_catalog *catalog)
{
        MDB_txn *txn;
        int rc = to_errno(mdb_txn_begin(catalog->env, NULL, 0, &txn));

        if (rc)
                return rc;
        rc = mdb_dbi_open(txn, "digests", MDB_CREATE, &catalog->digests);
        if (!rc)
                rc = mdb_dbi_open(
                        txn, "records", MDB_CREATE, &catalog->records);
        if (!rc)
                rc = mdb_dbi_open(
                        txn, "counters", MDB_CREATE, &catalog->counters);
        if (!rc)
                rc = mdb_dbi_open(
                        txn, "segments", MDB_CREATE, &catalog->segments);
        if (rc) {
                mdb_txn_abort(txn);
                return to_errno(rc);
        }
        return commit(catalog, txn);
}

/* Reads the small tables once: what is damaged there is found before anybody
 * relies on it. Digests are found damaged when they are looked for. */
static int read_through(struct sheaf_catalog *catalog)
{
        const MDB_dbi tables[] = { catalog->records, catalog->counters,
                catalog->segments };
        MDB_val key, value;
        MDB_cursor *cursor;
        int rc = to_errno(mdb_txn_renew(catalog->reader));

        for (size_t i = 0; !rc && i < SHEAF_ARRAY_LEN(tables); i++) {
                rc = to_errno(
                        mdb_cursor_open(catalog->reader, tables[i], &cursor));
                if (rc)
                        break;
                while (!(rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)))
                        ;
                rc = rc == MDB_NOTFOUND ? 0 : to_errno(rc);
                mdb_cursor_close(cursor);
        }
        mdb_txn_reset(catalog->reader);
        return rc;
}

static int open_env(struct sheaf_catalog *catalog, uint64_t map_bytes)
{
        int rc = to_errno(mdb_env_create(&catalog->env));

        if (rc)
                return rc;
        sheaf_guard_env(catalog->env);
        rc = to_errno(mdb_env_set_maxdbs(catalog->env, 8));
        if (!rc)
                rc = to_errno(mdb_env_set_mapsize(catalog->env,
                        sheaf_round_up(map_bytes, SHEAF_DISK_PAGE)));
        if (!rc)
                rc = to_errno(mdb_env_open(catalog->env, catalog->dir,
                        MDB_NOTLS | MDB_NORDAHEAD, 0600));
        if (!rc)
                rc = check_length(catalog);
        if (!rc)
                rc = open_tables(catalog);
        if (!rc)
                rc = to_errno(mdb_txn_begin(
                        catalog->env, NULL, MDB_RDONLY, &catalog->reader));
        if (rc)
                return rc;
        mdb_txn_reset(catalog->reader);
        return read_through(catalog);
}

/* Whether an earlier run met damage. */
static bool noted(const char *dir)
{
        char path[4096];
        int n = snprintf(path, sizeof(path), "%s/" DAMAGED, dir);

        return n > 0 && (size_t)n < sizeof(path) && !access(path, F_OK);
}

int sheaf_catalog_open(
        const char *dir, uint64_t map_bytes, struct sheaf_catalog **ret_catalog)
{
        struct sheaf_catalog *catalog;
        int rc = sheaf_guard_setup();

        if (rc)
                return rc;
        if (mkdir(dir, 0700) && errno != EEXIST)
                return -errno;
        if (noted(dir))
                return -EBADMSG;
        catalog = sheaf_new(struct sheaf_catalog, 1);
        if (!catalog)
                return -ENOMEM;
        catalog->dir = strdup(dir);
        rc = catalog->dir ? guarded(catalog, open_env(catalog, map_bytes))
                          : -ENOMEM;
        if (rc) {
                sheaf_catalog_close(catalog);
                return rc;
        }
        catalog->opened = true;
        *ret_catalog = catalog;
        return 0;
}

void sheaf_catalog_close(struct sheaf_catalog *catalog)
{
        static _Atomic(struct sheaf_catalog *) given_up;

        if (!catalog)
                return;
        /* Nothing can be said of the inside of such an environment. */
        if (atomic_load(&catalog->damaged)) {
                catalog->next = atomic_exchange(&given_up, catalog);
                return;
        }
        if (catalog->reader)
                mdb_txn_abort(catalog->reader);
        if (catalog->env)
                mdb_env_close(catalog->env);
        free(catalog->dir);
        free(catalog);
}

static int find(struct sheaf_catalog *catalog,
        const struct sheaf_digest *digest, struct sheaf_place *ret_place)
{
        MDB_val key = { SHEAF_DIGEST_BYTES, (void *)digest }, value;
        int rc = to_errno(mdb_txn_renew(catalog->reader));

        if (rc)
                return rc;
        rc = to_errno(mdb_get(catalog->reader, catalog->digests, &key, &value));
        if (!rc && !sane(&value, 0))
                rc = -EBADMSG;
        if (!rc && value.mv_size != sizeof(*ret_place))
                rc = -EIO;
        if (!rc)
                memcpy(ret_place, value.mv_data, sizeof(*ret_place));
        mdb_txn_reset(catalog->reader);
        return rc;
}

int sheaf_catalog_find(struct sheaf_catalog *catalog,
        const struct sheaf_digest *digest, struct sheaf_place *ret_place)
{
        return guarded(catalog, find(catalog, digest, ret_place));
}

static int apply_items(struct sheaf_catalog *catalog, MDB_txn *txn,
        const struct sheaf_pending_item *items, size_t count)
{
        MDB_cursor *cursor;
        int rc = mdb_cursor_open(txn, catalog->digests, &cursor);

        for (size_t i = 0; !rc && i < count; i++) {
                MDB_val key = { SHEAF_DIGEST_BYTES, (void *)&items[i].digest };
                MDB_val value = { sizeof(items[i].place),
                        (void *)&items[i].place };

                if (sheaf_place_set(&items[i].place)) {
                        rc = mdb_cursor_put(cursor, &key, &value, 0);
                        continue;
                }
                rc = mdb_cursor_get(cursor, &key, &value, MDB_SET);
                if (!rc)
                        rc = mdb_cursor_del(cursor, 0);
                else if (rc == MDB_NOTFOUND)
                        rc = 0;
        }
        if (cursor)
                mdb_cursor_close(cursor);
        return rc;
}

static int apply_stretch(struct sheaf_catalog *catalog,
        const struct sheaf_pending_item *items, size_t count,
        const struct sheaf_catalog_segment *segments, size_t segment_count)
{
        MDB_txn *txn;
        int rc = mdb_txn_begin(catalog->env, NULL, 0, &txn);

        if (rc)
                return to_errno(rc);
        rc = apply_items(catalog, txn, items, count);
        for (size_t i = 0; !rc && i < segment_count; i++) {
                MDB_val key = { sizeof(segments[i].number),
                        (void *)&segments[i].number };
                MDB_val value = { sizeof(segments[i]), (void *)&segments[i] };

                rc = mdb_put(txn, catalog->segments, &key, &value, 0);
        }
        if (rc) {
                mdb_txn_abort(txn);
                return to_errno(rc);
        }
        return commit(catalog, txn);
}

/* What a failure leaves is whole: the batch is repeated, and segments come
 * last (3). */
static int apply(struct sheaf_catalog *catalog,
        const struct sheaf_pending_item *items, size_t count,
        const struct sheaf_catalog_segment *segments, size_t segment_count)
{
        for (; count > STRETCH_ITEMS;
                items += STRETCH_ITEMS, count -= STRETCH_ITEMS) {
                int rc = apply_stretch(catalog, items, STRETCH_ITEMS, NULL, 0);

                if (rc)
                        return rc;
        }
        return apply_stretch(catalog, items, count, segments, segment_count);
}

int sheaf_catalog_apply(struct sheaf_catalog *catalog,
        const struct sheaf_pending_item *items, size_t count,
        const struct sheaf_catalog_segment *segments, size_t segment_count)
{
        return guarded(
                catalog, apply(catalog, items, count, segments, segment_count));
}

static int grow(struct sheaf_catalog *catalog)
{
        MDB_envinfo info;
        int rc = mdb_env_info(catalog->env, &info);

        if (!rc)
                rc = mdb_env_set_mapsize(catalog->env, info.me_mapsize * 2);
        return to_errno(rc);
}

int sheaf_catalog_grow(struct sheaf_catalog *catalog)
{
        return guarded(catalog, grow(catalog));
}

static int each_segment(struct sheaf_catalog *catalog,
        int (*each)(void *arg, const struct sheaf_catalog_segment *segment),
        void *arg)
{
        MDB_cursor *cursor;
        MDB_val key, value;
        int rc = to_errno(mdb_txn_renew(catalog->reader));

        if (rc)
                return rc;
        rc = to_errno(
                mdb_cursor_open(catalog->reader, catalog->segments, &cursor));
        while (!rc) {
                struct sheaf_catalog_segment segment;

                rc = to_errno(mdb_cursor_get(cursor, &key, &value, MDB_NEXT));
                if (rc)
                        break;
                /* Of another size it tells nothing: that segment's own
                 * headers do. */
                if (!sane(&value, 0))
                        rc = -EBADMSG;
                if (rc || value.mv_size != sizeof(segment))
                        continue;
                memcpy(&segment, value.mv_data, sizeof(segment));
                rc = each(arg, &segment);
        }
        mdb_cursor_close(cursor);
        mdb_txn_reset(catalog->reader);
        return rc == -ENOENT ? 0 : rc;
}

int sheaf_catalog_each_segment(struct sheaf_catalog *catalog,
        int (*each)(void *arg, const struct sheaf_catalog_segment *segment),
        void *arg)
{
        return guarded(catalog, each_segment(catalog, each, arg));
}

/* One small write to one table. */
static int write_once(struct sheaf_catalog *catalog, MDB_dbi table,
        const char *key_text, const void *data, size_t len_bytes)
{
        MDB_val key = { strlen(key_text), (void *)key_text };
        MDB_val value = { len_bytes, (void *)data };
        MDB_txn *txn;
        int rc;

        if (!key.mv_size || key.mv_size > KEY_BYTES_MAX)
                return -EINVAL;
        rc = to_errno(mdb_txn_begin(catalog->env, NULL, 0, &txn));
        if (rc)
                return rc;
        rc = to_errno(data ? mdb_put(txn, table, &key, &value, 0)
                           : mdb_del(txn, table, &key, NULL));
        if (!rc)
                return commit(catalog, txn);
        mdb_txn_abort(txn);
        return rc;
}

/* The same; grows the map when it must. */
static int write_one(struct sheaf_catalog *catalog, MDB_dbi table,
        const char *key_text, const void *data, size_t len_bytes)
{
        int rc = -EOVERFLOW;

        for (int tries = 0; rc == -EOVERFLOW && tries < 4; tries++) {
                rc = write_once(catalog, table, key_text, data, len_bytes);
                if (rc == -EOVERFLOW && grow(catalog))
                        return -ENOSPC;
        }
        return rc;
}

int sheaf_catalog_put(struct sheaf_catalog *catalog, const char *key,
        const void *value, size_t len_bytes)
{
        return guarded(catalog, write_one(catalog, catalog->records, key,
                                        value ? value : "", len_bytes));
}

int sheaf_catalog_del(struct sheaf_catalog *catalog, const char *key)
{
        return guarded(
                catalog, write_one(catalog, catalog->records, key, NULL, 0));
}

/* Keys are ours, but for damage: one may be longer than any that we put, and
 * may hold a NUL. */
#define FOUND_KEY_MAX 511 /* of LMDB */

struct found {
        char key[FOUND_KEY_MAX + 1];
        size_t key_bytes;
        void *value;
        size_t len_bytes;
};

/* The first record after @after (NULL: from @prefix), copied out. */
static int next_record(struct sheaf_catalog *catalog, const char *prefix,
        const struct found *after, struct found *ret_found)
{
        MDB_val key = { strlen(prefix), (void *)prefix }, value;
        MDB_cursor *cursor;
        MDB_envinfo info;
        int rc = to_errno(mdb_txn_renew(catalog->reader));

        if (rc)
                return rc;
        rc = to_errno(mdb_env_info(catalog->env, &info));
        if (rc)
                goto out;
        if (after)
                key = (MDB_val){ after->key_bytes, (void *)after->key };
        rc = to_errno(
                mdb_cursor_open(catalog->reader, catalog->records, &cursor));
        if (rc)
                goto out;
        rc = to_errno(mdb_cursor_get(
                cursor, &key, &value, key.mv_size ? MDB_SET_RANGE : MDB_FIRST));
        if (!rc && (!sane(&key, 0) || !sane(&value, info.me_last_pgno + 1)))
                rc = -EBADMSG;
        if (!rc && after && key.mv_size == after->key_bytes &&
                !memcmp(key.mv_data, after->key, key.mv_size))
                rc = to_errno(mdb_cursor_get(cursor, &key, &value, MDB_NEXT));
        if (!rc && (!sane(&key, 0) || !sane(&value, info.me_last_pgno + 1)))
                rc = -EBADMSG;
        if (!rc && key.mv_size > FOUND_KEY_MAX)
                rc = -EBADMSG;
        if (!rc && (key.mv_size < strlen(prefix) ||
                           memcmp(key.mv_data, prefix, strlen(prefix))))
                rc = -ENOENT;
        if (!rc) {
                void *copy = malloc(value.mv_size + 1);

                if (copy) {
                        memcpy(ret_found->key, key.mv_data, key.mv_size);
                        ret_found->key[key.mv_size] = '\0';
                        ret_found->key_bytes = key.mv_size;
                        ret_found->value = copy; /* the copy may fault */
                        memcpy(copy, value.mv_data, value.mv_size);
                        ret_found->len_bytes = value.mv_size;
                } else {
                        rc = -ENOMEM;
                }
        }
        mdb_cursor_close(cursor);
out:
        mdb_txn_reset(catalog->reader);
        return rc;
}

int sheaf_catalog_each(struct sheaf_catalog *catalog, const char *prefix,
        int (*each)(void *arg, const char *key, const void *value,
                size_t len_bytes),
        void *arg)
{
        struct found pair[2];
        int at = 0;

        /* Copies, so that @each may put and delete. */
        for (bool first = true;; first = false, at = !at) {
                struct found *found = &pair[at];
                int rc = guarded(
                        catalog, next_record(catalog, prefix,
                                         first ? NULL : &pair[!at], found));

                if (rc)
                        return rc == -ENOENT ? 0 : rc;
                /* Cut at its NUL, it would pass for another record. */
                if (strlen(found->key) == found->key_bytes)
                        rc = each(arg, found->key, found->value,
                                found->len_bytes);
                else
                        sheaf_log(SHEAF_LOG_ERROR, "store_record_left_out",
                                "dir=\"%s\" problem=\"NUL in a key of %zu "
                                "bytes\"",
                                catalog->dir, found->key_bytes);
                free(found->value);
                if (rc)
                        return rc;
        }
}

/* In one transaction, so that no two take the same. */
static int take(struct sheaf_catalog *catalog, const char *counter, uint64_t n,
        uint64_t *ret_first)
{
        MDB_val key = { strlen(counter), (void *)counter }, value;
        uint64_t number = 0;
        MDB_txn *txn;
        int rc = to_errno(mdb_txn_begin(catalog->env, NULL, 0, &txn));

        if (rc)
                return rc;
        rc = to_errno(mdb_get(txn, catalog->counters, &key, &value));
        if (!rc && !sane(&value, 0))
                rc = -EBADMSG;
        if (!rc && value.mv_size != sizeof(number))
                rc = -EIO;
        if (!rc)
                memcpy(&number, value.mv_data, sizeof(number));
        if (rc == -ENOENT)
                rc = 0;
        if (!rc && number > UINT64_MAX - n)
                rc = -ERANGE;
        if (!rc) {
                *ret_first = number + 1;
                number += n;
                value = (MDB_val){ sizeof(number), &number };
                rc = to_errno(mdb_put(txn, catalog->counters, &key, &value, 0));
        }
        if (!rc)
                return commit(catalog, txn);
        mdb_txn_abort(txn);
        return rc;
}

static int take_growing(struct sheaf_catalog *catalog, const char *counter,
        uint64_t n, uint64_t *ret_first)
{
        int rc = -EOVERFLOW;

        for (int tries = 0; rc == -EOVERFLOW && tries < 4; tries++) {
                rc = take(catalog, counter, n, ret_first);
                if (rc == -EOVERFLOW && grow(catalog))
                        return -ENOSPC;
        }
        return rc;
}

int sheaf_catalog_next(struct sheaf_catalog *catalog, const char *counter,
        uint64_t n, uint64_t *ret_value)
{
        return guarded(catalog, take_growing(catalog, counter, n, ret_value));
}

int sheaf_catalog_take(struct sheaf_catalog *catalog, const char *counter,
        uint64_t n, uint64_t *ret_first)
{
        return guarded(catalog, take(catalog, counter, n, ret_first));
}

int sheaf_catalog_record(struct sheaf_catalog *catalog, const char *key,
        const void *value, size_t len_bytes)
{
        return guarded(catalog,
                write_once(catalog, catalog->records, key, value, len_bytes));
}

uint64_t sheaf_catalog_written(const struct sheaf_catalog *catalog)
{
        return atomic_load(&catalog->written_bytes);
}

static int stat_digests(struct sheaf_catalog *catalog, MDB_stat *ret_stat)
{
        int rc = to_errno(mdb_txn_renew(catalog->reader));

        if (rc)
                return rc;
        rc = to_errno(mdb_stat(catalog->reader, catalog->digests, ret_stat));
        mdb_txn_reset(catalog->reader);
        return rc;
}

uint64_t sheaf_catalog_entries(struct sheaf_catalog *catalog)
{
        MDB_stat stat = { 0 };
        int rc = guarded(catalog, stat_digests(catalog, &stat));

        return rc ? 0 : stat.ms_entries;
}

static int scan(struct sheaf_catalog *catalog, const struct sheaf_digest *after,
        size_t max, struct sheaf_pending_item *ret_items, size_t *ret_n)
{
        static const struct sheaf_digest none; /* of no chunk */
        struct sheaf_digest from = *after;
        MDB_val key = { sizeof(from), &from }, value;
        MDB_cursor *cursor;
        size_t n = 0;
        int rc;

        rc = to_errno(mdb_txn_renew(catalog->reader));
        if (rc)
                return rc;
        rc = mdb_cursor_open(catalog->reader, catalog->digests, &cursor);
        if (!rc) {
                rc = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
                if (!rc && key.mv_size == sizeof(*after) && sane(&key, 0) &&
                        !memcmp(key.mv_data, after, sizeof(*after)))
                        rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
                while (!rc && n < max) {
                        if (key.mv_size == sizeof(from) &&
                                value.mv_size == sizeof(struct sheaf_place) &&
                                sane(&key, 0) && sane(&value, 0) &&
                                memcmp(key.mv_data, &none, sizeof(none))) {
                                memcpy(&ret_items[n].digest, key.mv_data,
                                        key.mv_size);
                                memcpy(&ret_items[n++].place, value.mv_data,
                                        value.mv_size);
                        }
                        rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
                }
                mdb_cursor_close(cursor);
        }
        mdb_txn_reset(catalog->reader);
        *ret_n = n;
        return 0;
}

size_t sheaf_catalog_scan(struct sheaf_catalog *catalog,
        const struct sheaf_digest *after, struct sheaf_pending_item *ret_items,
        size_t max)
{
        size_t n = 0;
        int rc = guarded(catalog, scan(catalog, after, max, ret_items, &n));

        return rc ? 0 : n;
}
