/* SPDX-License-Identifier: Apache-2.0 */
/* The conductor over a real store, a real arena and a real reader process. */
#include "daemon/fetch/impl.h"
#include "tests/daemon/origin/tree.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>

#define FILES 240
#define SIZE  20000

static struct tree tree;
static char dir[64];
static struct sheaf_store *store;
static struct sheaf_arena_pool *pool;
static struct sheaf_arena *arena;
static struct sheaf_residence home;
static struct sheaf_fetcher *fetcher;
static struct sheaf_version *stored;
static struct sheaf_fetch_counters counters;
static struct sheaf_fetch_version version, second;

struct wish {
        struct sheaf_fetch fetch; /* first */
        char path[16];
        bool done, right, hold;
        int rc;
};

static struct wish wishes[FILES + 1];
static size_t done_count;

static void on_done(
        struct sheaf_fetch *fetch, int rc, const void *bytes, const char *why)
{
        struct wish *w = (struct wish *)fetch;
        uint32_t len = sheaf_listing_chunk_len(
                &tree.listing, fetch->entry, fetch->index);
        const uint8_t *at = bytes;

        (void)why;
        cr_assert_not(w->done, "done twice");
        w->done = true;
        w->rc = rc;
        w->right = bytes != NULL;
        for (uint32_t i = 0; bytes && i < len; i++)
                w->right &= at[i] ==
                            tree_byte(w->path,
                                    fetch->index * SHEAF_CHUNK_BYTES_MAX + i);
        if (w->hold && !rc)
                sheaf_arena_hold(arena,
                        sheaf_table_block(home.table,
                                tree.listing.entries[fetch->entry].first_chunk +
                                        fetch->index),
                        &len);
        done_count++;
}

static int attach(struct sheaf_fetch_version *v,
        struct sheaf_origin **ret_origin, const char **ret_why)
{
        (void)ret_why;
        if (v == &second)
                return -EINPROGRESS; /* an origin that never answers */
        *ret_origin = tree.origin;
        return 0;
}

static struct wish *wish(struct wish *w, const char *path, uint32_t index)
{
        *w = (struct wish){ .fetch = { .version = &version,
                                    .entry = tree_find(&tree, path),
                                    .index = index,
                                    .residence = &home,
                                    .done = on_done } };
        snprintf(w->path, sizeof(w->path), "%s", path);
        return w;
}

static void ask(struct wish *w)
{
        cr_assert_eq(sheaf_fetch(fetcher, &w->fetch), 0);
        cr_assert_not(w->done, "done before it returned");
}

static void wait_for(struct wish *w)
{
        while (!w->done) {
                sheaf_store_flush(store);
                uv_run(&tree.loop, UV_RUN_ONCE);
        }
}

static const char *name(uint32_t i)
{
        static char text[16];

        snprintf(text, sizeof(text), "f%03u", i);
        return text;
}

static void open_store(void)
{
        struct sheaf_store_config config = { .loop = &tree.loop,
                .dir = dir,
                .bytes_max = 512 * SHEAF_MIB,
                .want_uring = true };
        uint8_t uuid[16] = { 0 };
        char path[PATH_MAX];
        int fd;

        strcpy(dir, "/var/tmp/sheaf-fetch-XXXXXX");
        cr_assert(mkdtemp(dir));
        cr_assert_eq(sheaf_store_open(&config, &store), 0);
        cr_assert_eq(
                sheaf_version_dir(store, uuid, path, sizeof(path) - 16), 0);
        strcat(path, "/listing");
        fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        cr_assert_eq(write(fd, tree.block, tree.listing.header->total_bytes),
                (ssize_t)tree.listing.header->total_bytes);
        close(fd);
        cr_assert_eq(sheaf_version_open(store, &tree.listing, 1, &stored), 0);
}

static void open_arena(void)
{
        struct sheaf_arena_config config = { .bytes_max = 32 * SHEAF_MIB,
                .pages = SHEAF_PAGES_SMALL };

        cr_assert_eq(sheaf_arena_pool_new(&config, &pool), 0);
        cr_assert_eq(sheaf_arena_new(pool, "test", &arena), 0);
        home.arena = arena;
        cr_assert_eq(sheaf_space_new(arena, "test", &home.space), 0);
        cr_assert_eq(sheaf_table_new(
                             arena, 1, tree.listing.chunk_count, &home.table),
                0);
}

static void version_make(struct sheaf_fetch_version *v)
{
        v->listing = tree.listing;
        v->stored = stored;
        v->counters = &counters;
        v->attach = attach;
        sheaf_fetch_version_init(v);
}

static void begin_with(uint64_t flights_max, uint64_t bytes_max)
{
        struct sheaf_fetcher_config config = { .loop = &tree.loop,
                .flights_max = flights_max,
                .bytes_max = bytes_max };

        tree_make(&tree);
        for (uint32_t i = 0; i < FILES; i++)
                tree_file(&tree, name(i), SIZE);
        tree_file(&tree, "large", 11 * SHEAF_CHUNK_BYTES_MAX + 5);
        tree_age(&tree);
        tree_origin(&tree, &(struct tree_options){ .reader = READER });
        cr_assert_eq(tree_list(&tree, false), 0);
        open_store();
        open_arena();
        config.store = store;
        cr_assert_eq(sheaf_fetcher_new(&config, &fetcher), 0);
        version_make(&version);
        version_make(&second);
}

static void begin(void)
{
        begin_with(0, 0);
}

static int remove_one(
        const char *path, const struct stat *st, int type, struct FTW *ftw)
{
        (void)st;
        (void)type;
        (void)ftw;
        return remove(path);
}

static void end(void)
{
        while (!sheaf_fetch_quiesce(fetcher, &version) ||
                !sheaf_fetch_quiesce(fetcher, &second))
                uv_run(&tree.loop, UV_RUN_ONCE);
        sheaf_fetcher_free(fetcher);
        sheaf_table_free(home.table);
        sheaf_space_free(home.space);
        sheaf_arena_free(arena);
        sheaf_arena_pool_free(pool);
        sheaf_version_close(stored);
        sheaf_store_close(store);
        nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
        tree_free(&tree);
        cr_assert_eq(uv_loop_close(&tree.loop), 0);
}

TestSuite(fetch, .timeout = 60);

Test(fetch, one_flight_for_many_who_wait)
{
        begin();
        for (size_t i = 0; i < 50; i++)
                ask(wish(&wishes[i], "f007", 0));
        for (size_t i = 0; i < 50; i++) {
                wait_for(&wishes[i]);
                cr_assert_eq(wishes[i].rc, 0);
                cr_assert(wishes[i].right);
        }
        cr_assert_eq(counters.origin_reads, 1);
        /* A late one finds it in memory. */
        ask(wish(&wishes[0], "f007", 0));
        wait_for(&wishes[0]);
        cr_assert(wishes[0].right);
        cr_assert_eq(counters.origin_reads, 1);
        end();
}

static void damage(const char *path)
{
        char sub[128], full[512], mark[64];
        struct dirent *entry;
        DIR *list;
        bool found = false;

        for (size_t i = 0; i < sizeof(mark); i++)
                mark[i] = (char)tree_byte(path, 5000 + i);
        snprintf(sub, sizeof(sub), "%s/segments", dir);
        list = opendir(sub);
        while (list && (entry = readdir(list))) {
                struct stat st;
                char *map, *at;
                int fd;

                snprintf(full, sizeof(full), "%s/%s", sub, entry->d_name);
                fd = open(full, O_RDWR | O_CLOEXEC);
                if (fd < 0)
                        continue;
                cr_assert_eq(fstat(fd, &st), 0);
                map = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE,
                        MAP_SHARED, fd, 0);
                cr_assert_neq(map, MAP_FAILED);
                at = memmem(map, (size_t)st.st_size, mark, sizeof(mark));
                if (at) {
                        *at ^= 1;
                        found = true;
                        msync(map, (size_t)st.st_size, MS_SYNC);
                }
                munmap(map, (size_t)st.st_size);
                close(fd);
        }
        closedir(list);
        cr_assert(found);
}

Test(fetch, a_damaged_copy_is_dropped_and_read_anew)
{
        uint64_t chunk;

        begin();
        wish(&wishes[0], "f001", 0)->fetch.durable = true;
        ask(&wishes[0]);
        wait_for(&wishes[0]);
        cr_assert_eq(wishes[0].rc, 0);
        chunk = tree.listing.entries[wishes[0].fetch.entry].first_chunk;
        cr_assert(sheaf_version_on_disk(stored, chunk));
        cr_assert(sheaf_table_evict(home.table, chunk));

        ask(wish(&wishes[1], "f001", 0));
        wait_for(&wishes[1]);
        cr_assert(wishes[1].right);
        cr_assert_eq(counters.disk_hits, 1);
        cr_assert_eq(counters.origin_reads, 1);

        cr_assert(sheaf_table_evict(home.table, chunk));
        damage("f001");
        ask(wish(&wishes[2], "f001", 0));
        wait_for(&wishes[2]);
        cr_assert_eq(wishes[2].rc, 0);
        cr_assert(wishes[2].right);
        cr_assert_eq(counters.verify_failures, 1);
        cr_assert_eq(counters.origin_reads, 2);
        end();
}

Test(fetch, a_changed_origin_is_stale)
{
        begin();
        tree_file(&tree, "f002", SIZE);
        ask(wish(&wishes[0], "f002", 0));
        wait_for(&wishes[0]);
        cr_assert_eq(wishes[0].rc, -ESTALE);
        cr_assert_not(wishes[0].right);
        cr_assert_eq(counters.stale, 1);
        end();
}

Test(fetch, what_is_cancelled_is_not_answered)
{
        begin();
        ask(wish(&wishes[0], "f003", 0));
        ask(wish(&wishes[1], "f003", 0));
        ask(wish(&wishes[2], "f004", 0));
        sheaf_fetch_cancel(fetcher, &wishes[0].fetch);
        sheaf_fetch_cancel(fetcher, &wishes[2].fetch);
        wait_for(&wishes[1]);
        cr_assert(wishes[1].right);
        while (version.flights)
                uv_run(&tree.loop, UV_RUN_ONCE);
        cr_assert_not(wishes[0].done);
        cr_assert_not(wishes[2].done);
        cr_assert_eq(counters.origin_reads, 1, "nobody waited for f004");
        end();
}

Test(fetch, quiesce_ends_waits_and_then_flights)
{
        begin();
        for (uint32_t i = 0; i < FILES; i++)
                ask(wish(&wishes[i], name(i), 0));
        while (done_count < 5)
                uv_run(&tree.loop, UV_RUN_ONCE);
        while (!sheaf_fetch_quiesce(fetcher, &version))
                uv_run(&tree.loop, UV_RUN_ONCE);
        cr_assert_eq(version.flights, 0);
        for (uint32_t i = 0; i < FILES; i++) {
                cr_assert(wishes[i].done);
                cr_assert(wishes[i].rc == 0 ? wishes[i].right
                                            : wishes[i].rc == -ESTALE);
        }
        end();
}

Test(fetch, without_room_in_memory_the_bytes_come_all_the_same)
{
        uint32_t refused = 0;

        begin();
        for (uint32_t i = 0; i < 12; i++) {
                wish(&wishes[i], "large", i)->hold = true;
                ask(&wishes[i]);
                wait_for(&wishes[i]);
                cr_assert(wishes[i].rc == 0 || wishes[i].rc == -ENOBUFS);
                cr_assert(wishes[i].right, "chunk %u", i);
                refused += wishes[i].rc == -ENOBUFS;
        }
        cr_assert_gt(refused, 0);
        for (uint32_t i = 0; i < 12; i++)
                if (!wishes[i].rc)
                        sheaf_arena_unhold(arena,
                                sheaf_table_block(home.table,
                                        tree.listing.entries
                                                        [wishes[i].fetch.entry]
                                                                .first_chunk +
                                                i));
        end();
}

Test(fetch, durable_waits_for_the_disk)
{
        begin();
        wish(&wishes[0], "f005", 0)->fetch.durable = true;
        wishes[0].fetch.residence = NULL;
        ask(&wishes[0]);
        wait_for(&wishes[0]);
        cr_assert_eq(wishes[0].rc, 0);
        cr_assert(sheaf_version_on_disk(stored,
                tree.listing.entries[wishes[0].fetch.entry].first_chunk));
        wish(&wishes[1], "f005", 0)->fetch.durable = true;
        wishes[1].fetch.residence = NULL;
        ask(&wishes[1]);
        wait_for(&wishes[1]);
        cr_assert_eq(wishes[1].rc, 0);
        cr_assert_not(wishes[1].right, "nothing had to be read");
        cr_assert_eq(counters.origin_reads, 1);
        end();
}

/* The origin is presented anew while its reader works. */
Test(fetch, a_reader_that_is_let_go_of_fails_nothing)
{
        begin();
        for (uint32_t i = 0; i < FILES; i++)
                ask(wish(&wishes[i], name(i), 0));
        while (done_count < 5)
                uv_run(&tree.loop, UV_RUN_ONCE);
        sheaf_origin_free(tree.origin);
        tree_origin(&tree, &(struct tree_options){ .reader = READER });
        for (uint32_t i = 0; i < FILES; i++) {
                wait_for(&wishes[i]);
                cr_assert_eq(wishes[i].rc, 0);
                cr_assert(wishes[i].right);
        }
        end();
}

Test(fetch, lanes_take_turns)
{
        begin_with(4, 0);
        for (uint32_t i = 0; i < FILES - 1; i++) {
                wish(&wishes[i], name(i), 0)->fetch.lane = 1;
                ask(&wishes[i]);
        }
        wish(&wishes[FILES], name(FILES - 1), 0)->fetch.lane = 2;
        ask(&wishes[FILES]);
        wait_for(&wishes[FILES]);
        cr_assert(wishes[FILES].right);
        cr_assert_lt(done_count, FILES / 4, "%zu of the other's came first",
                done_count);
        end();
}

Test(fetch, an_origin_that_hangs_holds_up_nobody_else)
{
        begin_with(8, 0);
        for (uint32_t i = 0; i < FILES; i++) {
                wish(&wishes[i], name(i), 0)->fetch.version = &second;
                wishes[i].fetch.lane = 1;
                ask(&wishes[i]);
        }
        wish(&wishes[FILES], "large", 1)->fetch.lane = 2;
        ask(&wishes[FILES]);
        wait_for(&wishes[FILES]);
        cr_assert_eq(wishes[FILES].rc, 0);
        cr_assert(wishes[FILES].right);
        cr_assert_eq(done_count, 1);
        end();
        for (uint32_t i = 0; i < FILES; i++)
                cr_assert_eq(wishes[i].rc, -ESTALE);
}

Test(fetch, hints_come_after_wishes)
{
        begin_with(4, 0);
        for (uint32_t i = 0; i < FILES; i++) {
                wish(&wishes[i], name(i), 0)->fetch.hint = i < FILES - 40;
                ask(&wishes[i]);
        }
        for (uint32_t i = FILES - 40; i < FILES; i++)
                wait_for(&wishes[i]);
        cr_assert_lt(done_count, 40 + FILES / 4);
        end();
}

static uint64_t chunk_of(const struct wish *w)
{
        return tree.listing.entries[w->fetch.entry].first_chunk;
}

/* No write begins beside the answer that caused it, and none is lost. */
Test(fetch, what_is_answered_is_written_later)
{
        int64_t answered_ns;

        begin();
        ask(wish(&wishes[0], "f006", 0));
        wait_for(&wishes[0]);
        answered_ns = sheaf_now_ns();
        cr_assert(wishes[0].right);
        cr_assert(sheaf_fetch_is_writing(
                fetcher, &version, chunk_of(&wishes[0])));
        cr_assert_eq(fetcher->unwritten_bytes, SIZE);
        cr_assert_eq(fetcher->writing_bytes, SIZE, "what waits counts");
        while (fetcher->unwritten_bytes)
                uv_run(&tree.loop, UV_RUN_ONCE);
        cr_assert_geq(sheaf_now_ns() - answered_ns, 9 * SHEAF_NS_PER_MS);
        while (version.flights) {
                sheaf_store_flush(store);
                uv_run(&tree.loop, UV_RUN_ONCE);
        }
        cr_assert(sheaf_version_on_disk(stored, chunk_of(&wishes[0])));
        cr_assert_eq(fetcher->writing, 0);
        cr_assert_eq(fetcher->writing_bytes, 0);
        end();
}

/* Who waits for the disk does not wait for that, too; nor does the end. */
Test(fetch, what_somebody_waits_for_is_written_at_once)
{
        uint64_t unwritten;

        begin();
        wish(&wishes[0], "f006", 0)->fetch.durable = true;
        ask(&wishes[0]);
        while (!wishes[0].done) {
                cr_assert_eq(fetcher->unwritten_bytes, 0);
                sheaf_store_flush(store);
                uv_run(&tree.loop, UV_RUN_ONCE);
        }
        ask(wish(&wishes[1], "f001", 0));
        wait_for(&wishes[1]);
        ask(wish(&wishes[2], "f002", 0));
        wait_for(&wishes[2]);
        unwritten = fetcher->unwritten_bytes;
        wish(&wishes[3], "f002", 0)->fetch.durable = true;
        ask(&wishes[3]);
        cr_assert_eq(fetcher->unwritten_bytes, unwritten - SIZE, "it alone");
        wait_for(&wishes[3]);
        cr_assert(wishes[3].right);
        cr_assert(sheaf_version_on_disk(stored, chunk_of(&wishes[3])));

        ask(wish(&wishes[4], "f004", 0));
        wait_for(&wishes[4]);
        cr_assert_geq(fetcher->unwritten_bytes, SIZE);
        cr_assert_not(sheaf_fetch_quiesce(fetcher, &version));
        cr_assert_eq(fetcher->unwritten_bytes, 0);
        while (!sheaf_fetch_quiesce(fetcher, &version)) {
                sheaf_store_flush(store);
                uv_run(&tree.loop, UV_RUN_ONCE);
        }
        for (size_t i = 0; i <= 4; i++)
                cr_assert(sheaf_version_on_disk(stored, chunk_of(&wishes[i])));
        end();
}

/* A quarter of what may be under way waits at most, and what came last. */
Test(fetch, little_is_unwritten)
{
        uint64_t most = 0;

        begin_with(0, 10 * SIZE);
        for (uint32_t i = 0; i < FILES; i++)
                ask(wish(&wishes[i], name(i), 0));
        while (done_count < FILES) {
                most = SHEAF_MAX(most, fetcher->unwritten_bytes);
                sheaf_store_flush(store);
                uv_run(&tree.loop, UV_RUN_ONCE);
        }
        cr_assert_gt(most, 0);
        cr_assert_leq(most, 3 * SIZE + SIZE / 2);
        end();
}
