/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of the store's suites. */
#include "kit.h"

#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

void kit_open(struct kit *kit)
{
        cr_assert_eq(sheaf_store_open(&kit->config, &kit->store), 0);
}

void kit_begin(struct kit *kit, uint64_t bytes_max)
{
        const char *base = getenv("SHEAF_TEST_DIR");

        memset(kit, 0, sizeof(*kit));
        cr_assert_eq(uv_loop_init(&kit->loop), 0);
        snprintf(kit->dir, sizeof(kit->dir), "%s/sheaf-store-XXXXXX",
                base ? base : "/var/tmp");
        cr_assert_not_null(mkdtemp(kit->dir));
        kit->config = (struct sheaf_store_config){
                .loop = &kit->loop,
                .dir = kit->dir,
                .bytes_max = bytes_max,
                .want_uring = true,
        };
        kit_open(kit);
}

void kit_close(struct kit *kit)
{
        sheaf_store_close(kit->store);
        kit->store = NULL;
        uv_run(&kit->loop, UV_RUN_DEFAULT);
}

static int remove_one(
        const char *path, const struct stat *st, int type, struct FTW *ftw)
{
        (void)st;
        (void)type;
        (void)ftw;
        return remove(path);
}

void kit_end(struct kit *kit)
{
        if (kit->store)
                kit_close(kit);
        cr_assert_eq(uv_loop_close(&kit->loop), 0);
        nftw(kit->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void make_listing(struct kit_version *v, int fd, uint64_t serial,
        const uint8_t uuid[16], const uint64_t *sizes, size_t count)
{
        struct sheaf_listing_item root = {
                .name = "", .mode = S_IFDIR | 0755, .nlink = 2
        };
        struct sheaf_listing_item *items =
                sheaf_new(struct sheaf_listing_item, count);
        char(*names)[32] = calloc(count, sizeof(*names));
        struct sheaf_listing_builder *builder;
        struct stat st;

        for (size_t i = 0; i < count; i++) {
                snprintf(names[i], sizeof(names[i]), "f%08zu", i);
                items[i] = (struct sheaf_listing_item){
                        .name = names[i],
                        .name_len_bytes = strlen(names[i]),
                        .size_bytes = sizes[i],
                        .origin_ino = i + 10,
                        .origin_dev = 1,
                        .mode = S_IFREG | 0644,
                        .nlink = 1,
                };
        }
        cr_assert_eq(sheaf_listing_builder_new(&root, &builder), 0);
        cr_assert_eq(
                sheaf_listing_builder_add_dir(builder, 0, items, count), 0);
        cr_assert_eq(
                sheaf_listing_builder_write(builder, fd, serial, uuid, 1), 0);
        sheaf_listing_builder_free(builder);
        free(items);
        free(names);
        cr_assert_eq(fstat(fd, &st), 0);
        v->block_bytes = (size_t)st.st_size;
        v->block = mmap(NULL, v->block_bytes, PROT_READ, MAP_SHARED, fd, 0);
        cr_assert_neq(v->block, MAP_FAILED);
        cr_assert_eq(
                sheaf_listing_open(v->block, v->block_bytes, true, &v->listing),
                0);
}

void kit_version(struct kit *kit, struct kit_version *v, uint64_t serial,
        uint64_t group, const uint64_t *sizes, size_t count, uint32_t seed)
{
        uint8_t uuid[16] = { 1 };
        char path[PATH_MAX];
        int fd;

        memset(v, 0, sizeof(*v));
        v->seed = seed;
        memcpy(uuid + 8, &serial, sizeof(serial));
        cr_assert_eq(
                sheaf_version_dir(kit->store, uuid, path, sizeof(path) - 16),
                0);
        strcat(path, "/listing");
        fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        cr_assert_geq(fd, 0);
        make_listing(v, fd, serial, uuid, sizes, count);
        close(fd);
        kit_version_reopen(kit, v, group);
}

void kit_version_reopen(struct kit *kit, struct kit_version *v, uint64_t group)
{
        cr_assert_eq(
                sheaf_version_open(kit->store, &v->listing, group, &v->version),
                0);
}

void kit_version_end(struct kit_version *v)
{
        munmap(v->block, v->block_bytes);
}

void kit_payload(const struct kit_version *v, uint64_t chunk, void *bytes,
        uint32_t len_bytes)
{
        uint64_t x = (chunk + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ v->seed;
        uint8_t *at = bytes;

        for (uint32_t i = 0; i < len_bytes; i += 8) {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                memcpy(at + i, &x, SHEAF_MIN(8u, len_bytes - i));
        }
}

struct sheaf_chunk_ref kit_ref(const struct kit_version *v, uint64_t chunk)
{
        struct sheaf_chunk_ref ref = { .version = v->version, .chunk = chunk };
        uint32_t low = 0, high = v->listing.file_count;

        /* Files are in chunk order here: no hard links. */
        while (high - low > 1) {
                uint32_t middle = low + (high - low) / 2;

                if (v->listing.entries[v->listing.files[middle]].first_chunk <=
                        chunk)
                        low = middle;
                else
                        high = middle;
        }
        ref.entry = v->listing.files[low];
        ref.index =
                (uint32_t)(chunk - v->listing.entries[ref.entry].first_chunk);
        ref.len_bytes =
                sheaf_listing_chunk_len(&v->listing, ref.entry, ref.index);
        return ref;
}

struct waited_write {
        struct sheaf_store_write write;
        int rc;
        bool done;
        uint64_t *good, *left;
};

static void on_write(struct sheaf_store_write *write, int rc)
{
        struct waited_write *w = (struct waited_write *)write;

        w->rc = rc;
        w->done = true;
        if (w->left) {
                --*w->left;
                *w->good += rc == 0 || rc == -EEXIST;
                free((void *)write->bytes);
                free(w);
        }
}

static void prepare(
        struct kit_version *v, uint64_t chunk, struct waited_write *w)
{
        struct sheaf_digest digest;
        void *bytes;

        memset(w, 0, sizeof(*w));
        w->write.ref = kit_ref(v, chunk);
        bytes = malloc(w->write.ref.len_bytes);
        kit_payload(v, chunk, bytes, w->write.ref.len_bytes);
        sheaf_digest_of(bytes, w->write.ref.len_bytes, &digest);
        sheaf_version_learn(v->version, chunk, &digest);
        w->write.bytes = bytes;
        w->write.done = on_write;
}

int kit_write(struct kit *kit, struct kit_version *v, uint64_t chunk)
{
        struct waited_write w;

        prepare(v, chunk, &w);
        sheaf_store_write(kit->store, &w.write);
        cr_assert_not(w.done, "done before the call returned");
        sheaf_store_flush(kit->store);
        while (!w.done) {
                uv_run(&kit->loop, UV_RUN_ONCE);
                sheaf_store_flush(kit->store);
        }
        free((void *)w.write.bytes);
        return w.rc;
}

uint64_t kit_write_all(struct kit *kit, struct kit_version *v)
{
        uint64_t good = 0, left = 0;

        for (uint64_t c = 0; c < v->listing.chunk_count; c++) {
                struct waited_write *w = malloc(sizeof(*w));

                prepare(v, c, w);
                w->good = &good;
                w->left = &left;
                left++;
                sheaf_store_write(kit->store, &w->write);
                while (left > 4096)
                        uv_run(&kit->loop, UV_RUN_ONCE);
        }
        while (left) {
                sheaf_store_flush(kit->store);
                uv_run(&kit->loop, UV_RUN_ONCE);
        }
        return good;
}

struct waited_read {
        struct sheaf_store_read read;
        int rc;
        bool done;
};

static void on_read(struct sheaf_store_read *read, int rc)
{
        struct waited_read *r = (struct waited_read *)read;

        r->rc = rc;
        r->done = true;
}

int kit_read(struct kit *kit, struct kit_version *v, uint64_t chunk)
{
        struct waited_read r = { .read = { .ref = kit_ref(v, chunk),
                                         .done = on_read } };
        struct sheaf_digest digest;
        uint32_t len = r.read.ref.len_bytes;
        void *right;
        int rc = 0;

        sheaf_store_read(kit->store, &r.read);
        cr_assert_not(r.done, "done before the call returned");
        while (!r.done)
                uv_run(&kit->loop, UV_RUN_ONCE);
        if (r.rc)
                return r.rc;
        sheaf_digest_of(r.read.bytes, len, &digest);
        if (!sheaf_digest_equal(
                    &digest, sheaf_version_digest(v->version, chunk))) {
                sheaf_store_read_end(&r.read);
                sheaf_store_bad(kit->store, &r.read.ref);
                return -EBADMSG;
        }
        right = malloc(len);
        kit_payload(v, chunk, right, len);
        if (memcmp(right, r.read.bytes, len))
                rc = -EILSEQ;
        free(right);
        sheaf_store_read_end(&r.read);
        return rc;
}

struct sheaf_store_stats kit_stats(const struct kit *kit)
{
        struct sheaf_store_stats stats;

        sheaf_store_stats(kit->store, &stats);
        return stats;
}

static uint64_t du_sum;

static int du_one(
        const char *path, const struct stat *st, int type, struct FTW *ftw)
{
        (void)path;
        (void)type;
        (void)ftw;
        du_sum += (uint64_t)st->st_blocks * 512;
        return 0;
}

uint64_t kit_du(const char *dir)
{
        du_sum = 0;
        nftw(dir, du_one, 16, FTW_PHYS);
        return du_sum;
}

static void on_timer(uv_timer_t *timer)
{
        *(bool *)timer->data = true;
        uv_close((uv_handle_t *)timer, NULL);
}

void kit_wait_ms(struct kit *kit, unsigned int ms)
{
        uv_timer_t timer;
        bool over = false;

        uv_timer_init(&kit->loop, &timer);
        timer.data = &over;
        uv_timer_start(&timer, on_timer, ms, 0);
        while (!over || uv_is_active((uv_handle_t *)&timer))
                uv_run(&kit->loop, UV_RUN_ONCE);
        uv_run(&kit->loop, UV_RUN_NOWAIT);
}

void kit_container(const struct kit *kit, const struct kit_version *v,
        uint64_t chunk, char ret_path[128], struct sheaf_place *ret_place)
{
        char name[48];

        *ret_place = v->version->places[chunk];
        cr_assert(sheaf_place_set(ret_place));
        if (sheaf_place_plain(ret_place))
                sheaf_plain_name(sheaf_place_node(ret_place), "", name);
        else
                sheaf_segment_name(ret_place->container, name);
        snprintf(ret_path, 128, "%s/%s", kit->dir, name);
}
