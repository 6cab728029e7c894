/* SPDX-License-Identifier: Apache-2.0 */
/* Anything as keys and values of the catalog's tables, put there behind its
 * back, and then, where SHEAF_FUZZ_DAMAGE is set, flipped bits of the database
 * file: what the catalog gives out is what lies there, or an error.
 *
 *  1 every iteration ends, in order, and passes nothing twice
 *  2 a place is found as it was put, or the answer is an error
 *  3 a counter never falls and never gives 0
 *  4 what is put afterwards is there, and gone when it was deleted
 *  5 of a damaged file no invariant but the last: every call ends, the process
 *    goes on, and what met damage says so at the next open */
#include "daemon/log.h"
#include "daemon/store/catalog.h"
#include "tests/fuzz/input.h"

#include <lmdb.h>
#include <sanitizer/lsan_interface.h>
#include <sys/stat.h>

#define RECORDS_MAX 24
#define FLIPS_MAX   8

static char path[96];
static const char *const tables[] = { "digests", "records", "counters",
        "segments" };

struct seen {
        char key[512];
        size_t count;
};

static void put_raw(struct fuzz_input *in, MDB_txn *txn, const MDB_dbi *dbi)
{
        uint8_t how = fuzz_u8(in);
        uint8_t key_bytes[512], value_bytes[1024];
        MDB_val key = { (how & 4 ? fuzz_u16(in) : fuzz_u8(in) % 48) % 512,
                key_bytes };
        MDB_val value = { fuzz_u8(in) * 2, value_bytes };

        /* Sizes that the tables have are worth the most. */
        if (how & 8 && how % 4 == 0) {
                key.mv_size = SHEAF_DIGEST_BYTES;
                value.mv_size = sizeof(struct sheaf_place);
        } else if (how & 8 && how % 4 == 2) {
                value.mv_size = sizeof(uint64_t);
        } else if (how & 8 && how % 4 == 3) {
                key.mv_size = sizeof(uint32_t);
                value.mv_size = sizeof(struct sheaf_catalog_segment);
        }
        fuzz_take(in, key_bytes, key.mv_size);
        if (how & 16 && how % 4 == 1)
                memcpy(key_bytes, "dataset/", 8);
        fuzz_take(in, value_bytes, value.mv_size);
        if (key.mv_size)
                fuzz_must(mdb_put(txn, dbi[how % 4], &key, &value, 0) == 0);
}

/* Fills an empty database without the catalog's help. */
static void fill(struct fuzz_input *in)
{
        MDB_dbi dbi[4];
        MDB_env *env;
        MDB_txn *txn;

        fuzz_must(!mkdirat(fuzz_dir(), "catalog", 0700) || errno == EEXIST);
        snprintf(path, sizeof(path), "%s/catalog", fuzz_dir_path);
        fuzz_must(!mdb_env_create(&env) && !mdb_env_set_maxdbs(env, 8));
        fuzz_must(!mdb_env_set_mapsize(env, SHEAF_MIB));
        fuzz_must(!mdb_env_open(env, path, MDB_NOSYNC, 0600));
        fuzz_must(!mdb_txn_begin(env, NULL, 0, &txn));
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(tables); i++) {
                fuzz_must(!mdb_dbi_open(txn, tables[i], MDB_CREATE, &dbi[i]));
                fuzz_must(!mdb_drop(txn, dbi[i], 0));
        }
        for (int i = fuzz_u8(in) % RECORDS_MAX; i >= 0 && in->left; i--)
                put_raw(in, txn, dbi);
        fuzz_must(!mdb_txn_commit(txn));
        mdb_env_close(env);
}

/* Flips some bits of the file, in page headers for the most part. */
static void flip(struct fuzz_input *in)
{
        int fd = openat(fuzz_dir(), "catalog/data.mdb", O_RDWR);
        struct stat st;

        fuzz_must(fd >= 0 && !fstat(fd, &st));
        for (int i = fuzz_u8(in) % FLIPS_MAX; i >= 0; i--) {
                uint32_t where = fuzz_u32(in);
                off_t at = where % (uint32_t)st.st_size;
                uint8_t byte;

                if (where >> 31)
                        at = at / 4096 * 4096 + at % 64;
                fuzz_must(pread(fd, &byte, 1, at) == 1);
                byte ^= fuzz_u8(in);
                fuzz_must(pwrite(fd, &byte, 1, at) == 1);
        }
        close(fd);
}

static int on_any(
        void *arg, const char *key, const void *value, size_t len_bytes)
{
        (void)key;
        (void)value;
        (void)len_bytes;
        return ++*(int *)arg > RECORDS_MAX;
}

static int on_any_segment(
        void *arg, const struct sheaf_catalog_segment *segment)
{
        (void)segment;
        return ++*(int *)arg > RECORDS_MAX;
}

/* Uses a catalog whose file is damaged. */
static void use_damaged(void)
{
        struct sheaf_digest after = { 0 };
        struct sheaf_pending_item items[RECORDS_MAX];
        struct sheaf_place place;
        struct sheaf_catalog *catalog;
        int records = 0, segments = 0, rc;
        size_t n;
        bool met;

        if (sheaf_catalog_open(path, SHEAF_MIB, &catalog))
                return;
        rc = sheaf_catalog_each(catalog, "", on_any, &records);
        met = rc == -EBADMSG;
        rc = sheaf_catalog_each_segment(catalog, on_any_segment, &segments);
        met |= rc == -EBADMSG;
        n = sheaf_catalog_scan(catalog, &after, items, RECORDS_MAX);
        for (size_t i = 0; i < n; i++) {
                rc = sheaf_catalog_find(catalog, &items[i].digest, &place);
                met |= rc == -EBADMSG;
        }
        /* Nothing is written: where LMDB edits a damaged page in memory of its
         * own, no guard stands between. */
        sheaf_catalog_close(catalog);
        if (met)
                fuzz_must(sheaf_catalog_open(path, SHEAF_MIB, &catalog) ==
                          -EBADMSG);
}

static int on_record(
        void *arg, const char *key, const void *value, size_t len_bytes)
{
        struct seen *seen = arg;
        uint8_t sum = 0;

        fuzz_must(strlen(key) < sizeof(seen->key));
        fuzz_must(++seen->count <= RECORDS_MAX + 1);
        fuzz_must(strcmp(key, seen->key) > 0);
        strcpy(seen->key, key);
        for (size_t i = 0; i < len_bytes; i++)
                sum ^= ((const uint8_t *)value)[i];
        return sum == 0xa5 && seen->count > 3; /* ends it now and then */
}

static int on_segment(void *arg, const struct sheaf_catalog_segment *segment)
{
        (void)segment;
        fuzz_must(++*(size_t *)arg <= RECORDS_MAX);
        return 0;
}

static void digests(struct sheaf_catalog *catalog)
{
        struct sheaf_digest after = { 0 };
        struct sheaf_pending_item items[5];
        struct sheaf_place place;
        size_t n, total = 0;

        do {
                n = sheaf_catalog_scan(catalog, &after, items, 5);
                for (size_t i = 0; i < n; i++) {
                        const struct sheaf_digest *d = &items[i].digest;

                        fuzz_must(memcmp(d, &after, sizeof(*d)) > 0);
                        fuzz_must(!sheaf_catalog_find(catalog, d, &place) &&
                                  !memcmp(&place, &items[i].place,
                                          sizeof(place)));
                        after = *d;
                }
                total += n;
                fuzz_must(total <= RECORDS_MAX);
        } while (n == 5);
        fuzz_must(sheaf_catalog_entries(catalog) >= total);
}

static void counters(struct sheaf_catalog *catalog)
{
        uint64_t first, second;

        if (sheaf_catalog_next(catalog, "dataset", 3, &first))
                return;
        fuzz_must(first);
        if (!sheaf_catalog_next(catalog, "dataset", 1, &second))
                fuzz_must(second == first + 3);
}

static int on_mine(
        void *arg, const char *key, const void *value, size_t len_bytes)
{
        if (!strcmp(key, "dataset/mine"))
                *(bool *)arg = len_bytes == 4 && !memcmp(value, "mine", 4);
        return 0;
}

static bool have_mine(struct sheaf_catalog *catalog)
{
        bool have = false;

        fuzz_must(!sheaf_catalog_each(catalog, "dataset/", on_mine, &have));
        return have;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct fuzz_input in = { data, size };
        struct sheaf_catalog *catalog;
        struct seen seen = { 0 }, some = { 0 };
        size_t segments = 0;
        int rc;

        sheaf_log_set_level((enum sheaf_log_level) - 1); /* none */
        fill(&in);
        if (in.left && getenv("SHEAF_FUZZ_DAMAGE")) {
                flip(&in);
                __lsan_disable(); /* of what LMDB held when it met damage */
                use_damaged();
                __lsan_enable();
                fuzz_remove(path);
                return 0;
        }
        fuzz_must(!sheaf_catalog_open(path, SHEAF_MIB, &catalog));
        rc = sheaf_catalog_each(catalog, "", on_record, &seen);
        fuzz_must(rc == 0 || rc == 1);
        rc = sheaf_catalog_each(catalog, "dataset/", on_record, &some);
        fuzz_must(rc == 0 || rc == 1);
        fuzz_must(!sheaf_catalog_each_segment(catalog, on_segment, &segments));
        digests(catalog);
        counters(catalog);
        fuzz_must(!sheaf_catalog_put(catalog, "dataset/mine", "mine", 4));
        fuzz_must(have_mine(catalog));
        fuzz_must(!sheaf_catalog_del(catalog, "dataset/mine"));
        fuzz_must(!have_mine(catalog));
        sheaf_catalog_close(catalog);
        return 0;
}
