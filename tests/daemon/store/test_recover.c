/* SPDX-License-Identifier: Apache-2.0 */
/* A writer is killed at random moments; what is served afterwards has its
 * digest, and no place serves another chunk. */
#include "kit.h"

#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define ROUNDS 36
#define FILES  3000

#define ALL_WRITTEN 1000000

static void sizes_of(uint64_t *sizes, size_t count, unsigned int seed)
{
        for (size_t i = 0; i < count; i++) {
                unsigned int r = (unsigned int)(i * 2654435761u + seed);

                sizes[i] = r % 97 == 0    ? 70000 + r % 200000
                           : r % 331 == 0 ? (5 << 20) + r % 1000
                                          : 1 + r % 6000;
        }
}

/* Writes that the child has finished; shared with it. */
static _Atomic unsigned int *written;

static void share_counter(void)
{
        written = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        cr_assert_neq((void *)written, MAP_FAILED);
}

/* Until the child has written @count chunks, 5 s at most. */
static void await_written(unsigned int count)
{
        for (int i = 0; i < 5000 && *written < count; i++)
                usleep(1000);
}

struct killed_write {
        struct sheaf_store_write write;
        uint64_t *left;
};

static void on_killed_write(struct sheaf_store_write *write, int rc)
{
        struct killed_write *w = (struct killed_write *)write;

        if (!rc)
                ++*written;
        --*w->left;
        free((void *)write->bytes);
        free(w);
}

/* Writes everything that is not there yet, until it is killed. */
static void child(const struct sheaf_store_config *base, struct kit_version *v)
{
        struct sheaf_store_config config = *base;
        struct sheaf_store *store;
        uv_loop_t loop;
        uint64_t left = 0;

        if (uv_loop_init(&loop))
                _exit(1);
        config.loop = &loop;
        if (sheaf_store_open(&config, &store) ||
                sheaf_version_open(store, &v->listing, 7, &v->version))
                _exit(2);
        for (uint64_t c = 0; c < v->listing.chunk_count; c++) {
                struct killed_write *w;
                struct sheaf_digest digest;
                void *bytes;

                if (sheaf_version_on_disk(v->version, c))
                        continue;
                w = calloc(1, sizeof(*w));
                w->write.ref = kit_ref(v, c);
                bytes = malloc(w->write.ref.len_bytes);
                kit_payload(v, c, bytes, w->write.ref.len_bytes);
                sheaf_digest_of(bytes, w->write.ref.len_bytes, &digest);
                sheaf_version_learn(v->version, c, &digest);
                w->write.bytes = bytes;
                w->write.done = on_killed_write;
                w->left = &left;
                left++;
                sheaf_store_write(store, &w->write);
                if (c % 16 == 0)
                        sheaf_store_flush(store);
                uv_run(&loop, UV_RUN_NOWAIT);
                if (c % 40 == 0)
                        usleep(1000);
        }
        for (;;) {
                uv_run(&loop, UV_RUN_NOWAIT);
                if (!left)
                        *written = ALL_WRITTEN;
                usleep(1000);
        }
}

Test(recover, killed_writers_leave_nothing_wrong, .timeout = 280)
{
        struct kit kit;
        struct kit_version v;
        uint64_t sizes[FILES], before = 0, after, bytes;
        unsigned int seed = 4711;

        share_counter();
        sizes_of(sizes, FILES, 1);
        kit_begin(&kit, 512 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, FILES, 1);
        kit_close(&kit);
        for (int round = 0; round < ROUNDS; round++) {
                pid_t pid;
                int status;

                *written = 0;
                pid = fork();

                if (pid == 0)
                        child(&kit.config, &v);
                /* Some die while they open, most while they write. */
                if (round % 6)
                        await_written((unsigned int)rand_r(&seed) % 120);
                usleep((unsigned int)rand_r(&seed) % 20000);
                kill(pid, SIGKILL);
                cr_assert_eq(waitpid(pid, &status, 0), pid);
                cr_assert(WIFSIGNALED(status), "child ended by itself: %d",
                        status);
                kit_open(&kit);
                kit_version_reopen(&kit, &v, 7);
                for (uint64_t c = 0; c < v.listing.chunk_count; c++) {
                        int rc = kit_read(&kit, &v, c);

                        cr_assert(rc == 0 || rc == -ENOENT,
                                "round %d chunk %lu: %d", round, c, rc);
                }
                after = sheaf_version_disk(v.version, &bytes);
                cr_assert_geq(after, before, "round %d lost chunks", round);
                before = after;
                cr_assert_eq(kit_stats(&kit).bad_payloads, 0);
                kit_close(&kit);
        }
        cr_assert_gt(before, 100, "only %lu chunks got to disk", before);
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        cr_assert_eq(kit_write_all(&kit, &v), v.listing.chunk_count);
        for (uint64_t c = 0; c < v.listing.chunk_count; c++)
                cr_assert_eq(kit_read(&kit, &v, c), 0);
        kit_end(&kit);
        kit_version_end(&v);
}

Test(recover, digests_come_back_with_their_records)
{
        struct kit kit;
        struct kit_version v;
        uint64_t sizes[200], bytes;
        char path[256];

        sizes_of(sizes, 200, 3);
        kit_begin(&kit, 128 * SHEAF_MIB);
        kit_version(&kit, &v, 5, 7, sizes, 200, 1);
        cr_assert_eq(kit_write_all(&kit, &v), v.listing.chunk_count);
        kit_close(&kit);
        snprintf(path, sizeof(path), "%s/versions", kit.dir);
        snprintf(path, sizeof(path),
                "find %s/versions -name digests -delete -o -name places "
                "-delete",
                kit.dir);
        cr_assert_eq(system(path), 0);
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        /* Those of small files; a plain file's are in its map. */
        cr_assert_gt(sheaf_version_known(v.version), 190);
        cr_assert_gt(sheaf_version_disk(v.version, &bytes), 190);
        for (uint64_t c = 0; c < 100; c++) {
                if (sheaf_version_on_disk(v.version, c))
                        cr_assert_eq(kit_read(&kit, &v, c), 0);
        }
        kit_end(&kit);
        kit_version_end(&v);
}

Test(recover, leftovers_are_swept_behind)
{
        struct kit kit;
        char path[256];
        struct stat st;

        kit_begin(&kit, 128 * SHEAF_MIB);
        kit_close(&kit);
        for (int i = 0; i < 300; i++) {
                snprintf(path, sizeof(path), "%s/%s/left%d.tmp", kit.dir,
                        i % 2 ? "plain" : "segments", i);
                close(open(path, O_CREAT | O_WRONLY, 0600));
        }
        snprintf(path, sizeof(path), "%s/versions/.gone-1", kit.dir);
        mkdir(path, 0700);
        snprintf(path, sizeof(path), "%s/segments/00000009.seg", kit.dir);
        close(open(path, O_CREAT | O_WRONLY, 0600));
        kit_open(&kit);
        /* Versions are swept last; a slow machine takes its time. */
        snprintf(path, sizeof(path), "%s/versions/.gone-1", kit.dir);
        for (int i = 0; i < 400 && !stat(path, &st); i++)
                kit_wait_ms(&kit, 50);
        snprintf(path, sizeof(path), "%s/segments/00000009.seg", kit.dir);
        cr_assert_neq(stat(path, &st), 0);
        for (int i = 0; i < 300; i++) {
                snprintf(path, sizeof(path), "%s/%s/left%d.tmp", kit.dir,
                        i % 2 ? "plain" : "segments", i);
                cr_assert_neq(stat(path, &st), 0, "%s", path);
        }
        snprintf(path, sizeof(path), "%s/versions/.gone-1", kit.dir);
        cr_assert_neq(stat(path, &st), 0);
        kit_end(&kit);
}

Test(recover, generation_is_not_continued_after_a_kill)
{
        struct kit kit;
        struct kit_version v;
        uint64_t sizes[2] = { 1000, 2000 };
        struct sheaf_place first, second;
        char path[128];
        int status;
        pid_t pid;

        kit_begin(&kit, 128 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, 2, 1);
        cr_assert_eq(kit_write(&kit, &v, 0), 0);
        kit_close(&kit);
        pid = fork();
        if (pid == 0) {
                uv_loop_t loop;
                struct sheaf_store *store;

                uv_loop_init(&loop);
                kit.config.loop = &loop;
                if (sheaf_store_open(&kit.config, &store))
                        _exit(1);
                raise(SIGKILL);
        }
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert(WIFSIGNALED(status));
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        cr_assert_eq(kit_read(&kit, &v, 0), 0);
        cr_assert_eq(kit_write(&kit, &v, 1), 0);
        kit_container(&kit, &v, 0, path, &first);
        kit_container(&kit, &v, 1, path, &second);
        cr_assert_neq(first.container, second.container);
        kit_end(&kit);
        kit_version_end(&v);
}

Test(recover, unchecked_segments_are_hashed_behind)
{
        struct kit kit;
        struct kit_version v;
        uint64_t sizes[300];
        struct sheaf_place place;
        char path[128];
        int status, fd;
        pid_t pid;

        share_counter();
        sizes_of(sizes, 300, 5);
        kit_begin(&kit, 128 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, 300, 1);
        kit_close(&kit);
        pid = fork();
        if (pid == 0)
                child(&kit.config, &v);
        await_written(ALL_WRITTEN);
        kill(pid, SIGKILL);
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        cr_assert_gt(kit_stats(&kit).unchecked_containers, 0);
        cr_assert_gt(sheaf_version_known(v.version), 250);
        /* A clean stop clears nothing. */
        kit_close(&kit);
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        cr_assert(sheaf_segment_at(kit.store, 1)->unchecked);
        kit_container(&kit, &v, 1, path, &place);
        fd = open(path, O_RDWR | O_CLOEXEC);
        cr_assert_eq(
                pwrite(fd, "\x55\xaa", 2, (off_t)place.offset_bytes + 128), 2);
        close(fd);
        for (int i = 0; i < 60 && kit_stats(&kit).unchecked_containers; i++)
                kit_wait_ms(&kit, 50);
        cr_assert_eq(kit_stats(&kit).bad_payloads, 1);
        cr_assert_eq(kit_read(&kit, &v, 1), -ENOENT);
        cr_assert_eq(kit_read(&kit, &v, 2), 0);
        kit_close(&kit);
        kit_open(&kit);
        for (uint32_t n = 1; n <= kit.store->segment_top; n++) {
                struct sheaf_segment *s = sheaf_segment_at(kit.store, n);

                cr_assert(!s || !s->unchecked);
        }
        kit_end(&kit);
        kit_version_end(&v);
}

/* ---- arrays and containers of different times, as after a power cut ---- */

#define CUT_FILES 60

static void cut_begin(struct kit *kit, struct kit_version *v)
{
        uint64_t sizes[CUT_FILES];

        for (size_t i = 0; i < CUT_FILES; i++)
                sizes[i] = i < CUT_FILES - 2 ? 2000 + i * 8 : (5 << 20) + i;
        kit_begin(kit, 128 * SHEAF_MIB);
        kit_version(kit, v, 1, 7, sizes, CUT_FILES, 1);
        cr_assert_eq(kit_write_all(kit, v), v->listing.chunk_count);
}

Test(recover, places_that_were_lost_are_found_by_digest)
{
        struct kit kit;
        struct kit_version v;
        char pattern[96];
        glob_t found;
        uint64_t bytes = 0;

        cut_begin(&kit, &v);
        kit_close(&kit);
        snprintf(pattern, sizeof(pattern), "%s/versions/*/places", kit.dir);
        cr_assert_eq(glob(pattern, 0, NULL, &found), 0);
        cr_assert_eq(truncate(found.gl_pathv[0], 0), 0);
        globfree(&found);
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        cr_assert_eq(
                sheaf_version_disk(v.version, &bytes), v.listing.chunk_count);
        cr_assert_eq(bytes, v.listing.header->payload_bytes);
        kit_end(&kit);
        kit_version_end(&v);
}

Test(recover, records_that_were_lost_are_not_claimed)
{
        struct kit kit;
        struct kit_version v;
        struct sheaf_place place;
        struct stat st;
        char path[128];
        uint64_t bytes, claimed, served = 0;

        cut_begin(&kit, &v);
        kit_container(&kit, &v, CUT_FILES / 2, path, &place);
        kit_close(&kit);
        /* Zeros from one record on, as in a file of unwritten extents. */
        cr_assert_eq(stat(path, &st), 0);
        cr_assert_eq(truncate(path, (off_t)place.offset_bytes), 0);
        cr_assert_eq(truncate(path, st.st_size), 0);
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        claimed = sheaf_version_disk(v.version, &bytes);
        for (uint64_t c = 0; c < v.listing.chunk_count; c++)
                served += kit_read(&kit, &v, c) == 0;
        cr_assert_eq(claimed, served, "%llu claimed, %llu served",
                (unsigned long long)claimed, (unsigned long long)served);
        cr_assert_eq(served, v.listing.chunk_count - CUT_FILES / 2 + 2);
        cr_assert_eq(kit_stats(&kit).bad_headers, 0);
        kit_end(&kit);
        kit_version_end(&v);
}

/* A kill gives the unused part of a segment back; what is done with that part
 * later counts again. */
Test(recover, what_a_kill_gave_back_is_counted_when_it_is_used)
{
        enum {
                COUNT = 1500
        };
        struct kit kit;
        struct kit_version v;
        uint64_t sizes[COUNT], used, du;
        int status;
        pid_t pid;

        share_counter();
        for (size_t i = 0; i < COUNT; i++)
                sizes[i] = 5 * 4096 - 128; /* records end at a page */
        kit_begin(&kit, 512 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, COUNT, 1);
        kit_close(&kit);
        *written = 0;
        pid = fork();
        if (pid == 0)
                child(&kit.config, &v);
        await_written(60);
        kill(pid, SIGKILL);
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        for (int i = 0; i < 200 && kit_stats(&kit).unchecked_containers; i++)
                kit_wait_ms(&kit, 50);
        kit_close(&kit);
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        cr_assert_eq(kit_write_all(&kit, &v), COUNT);
        used = kit_stats(&kit).bytes_used;
        du = kit_du(kit.dir);
        cr_assert(du <= used + used / 100 && used <= du + du / 100,
                "%llu told, %llu used", (unsigned long long)used,
                (unsigned long long)du);
        kit_end(&kit);
        kit_version_end(&v);
}

/* A kill before the first record leaves a header: there is nothing to check. */
Test(recover, empty_segments_wait_for_no_check)
{
        const uint64_t sizes[] = { 1000, 2000 };
        struct kit kit;
        struct kit_version v;
        struct sheaf_place place;
        struct stat st;
        char path[128];

        kit_begin(&kit, 64 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, 2, 1);
        cr_assert_eq(kit_write_all(&kit, &v), 2);
        kit_container(&kit, &v, 0, path, &place);
        kit_close(&kit);
        cr_assert_eq(stat(path, &st), 0);
        cr_assert_eq(truncate(path, 4096), 0);
        cr_assert_eq(truncate(path, st.st_size), 0);
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        cr_assert_eq(kit_stats(&kit).unchecked_containers, 0);
        cr_assert_eq(kit_write_all(&kit, &v), 2);
        cr_assert_eq(kit_read(&kit, &v, 1), 0);
        kit_end(&kit);
        kit_version_end(&v);
}
