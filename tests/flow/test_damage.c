/* SPDX-License-Identifier: Apache-2.0 */
/* The cache is damaged behind the daemon: readers get right bytes, the damage
 * is counted, and verify finds exactly what was damaged.
 *
 * Stamped words are found in the segments by their value: no knowledge of
 * the disk layout is needed. */
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

TestSuite(damage, .init = flow_init, .fini = flow_fini, .timeout = 80);

#define SMALL       100
#define LARGE       4
#define SMALL_BYTES 40000
#define LARGE_BYTES 9000000
#define LARGE_ID    1000

/* ---- the set ---- */

static void make_set(void)
{
        for (uint32_t i = 1; i <= SMALL; i++)
                flow_file(i, SMALL_BYTES, "small/f%03u", i);
        for (uint32_t i = 1; i <= LARGE; i++)
                flow_file(LARGE_ID + i, LARGE_BYTES, "large/f%u", i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_ok("sheaf warmup --disk data");
        cr_assert_eq(flow_stat("dataset.disk_bytes"),
                SMALL * SMALL_BYTES + LARGE * LARGE_BYTES);
}

static void check_library(void)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        char path[64];

        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        for (uint32_t i = 1; i <= SMALL; i++) {
                snprintf(path, sizeof(path), "small/f%03u", i);
                cr_assert_eq(flow_check_view(dataset, path, i, SMALL_BYTES), 0,
                        "%s: %s", path, sheaf_last_error());
        }
        for (uint32_t i = 1; i <= LARGE; i++) {
                snprintf(path, sizeof(path), "large/f%u", i);
                cr_assert_eq(flow_check_view(
                                     dataset, path, LARGE_ID + i, LARGE_BYTES),
                        0, "%s: %s", path, sheaf_last_error());
        }
        flow_close(session, dataset);
}

/* By a mount with nothing in the kernel's caches. */
static void check_mount(void)
{
        flow_mount("data", flow.mount);
        for (uint32_t i = 1; i <= SMALL; i++)
                cr_assert_eq(flow_check(flow_path("mount/small/f%03u", i), i,
                                     SMALL_BYTES, 65536),
                        0, "small file %u", i);
        for (uint32_t i = 1; i <= LARGE; i++)
                cr_assert_eq(flow_check(flow_path("mount/large/f%u", i),
                                     LARGE_ID + i, LARGE_BYTES, 1 << 20),
                        0, "large file %u", i);
        flow_umount(flow.mount);
}

static bool empty_memory(void)
{
        flow_ok("sheaf warmup --evict --memory data");
        return flow_stat("arena.payload_bytes") == 0;
}

/* Nothing in memory: the next reads come from disk. Chunks that are being
 * written are held for a moment. */
static void forget_memory(void)
{
        cr_assert(flow_until(20, empty_memory()), "%g bytes stay",
                flow_stat("arena.payload_bytes"));
}

/* ---- what is on disk ---- */

struct place {
        char path[PATH_MAX];
        off_t offset;
};

/* Words of payload are aligned; across two words others can look alike. */
static char *find_word(char *map, size_t len, const char word[8])
{
        char *end = map + len, *at = map;

        while ((at = memmem(at, (size_t)(end - at), word, 8))) {
                if ((at - map) % 8 == 0)
                        return at;
                at++;
        }
        return NULL;
}

/* Where byte @at of file @id lies in some file of the cache's folder @sub. */
static struct place find(const char *sub, uint32_t id, uint64_t at)
{
        struct place place = { .offset = -1 };
        const char *folder = flow_path("cache/%s", sub);
        uint64_t aligned = at & ~UINT64_C(7);
        DIR *dir = opendir(folder);
        struct dirent *entry;
        char word[8];

        cr_assert(dir);
        flow_stamp_bytes(word, id, aligned, 8);
        while (place.offset < 0 && (entry = readdir(dir))) {
                struct stat st;
                char *map, *hit;
                int fd;

                snprintf(place.path, sizeof(place.path), "%s/%s", folder,
                        entry->d_name);
                fd = open(place.path, O_RDONLY | O_CLOEXEC);
                if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode) ||
                        !st.st_size) {
                        close(fd);
                        continue;
                }
                map = mmap(
                        NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
                cr_assert_neq(map, MAP_FAILED);
                hit = find_word(map, (size_t)st.st_size, word);
                if (hit)
                        place.offset = hit - map + (off_t)(at - aligned);
                munmap(map, (size_t)st.st_size);
                close(fd);
        }
        closedir(dir);
        cr_assert_geq(place.offset, 0, "file %u is not in %s", id, sub);
        return place;
}

static void flip(struct place place)
{
        sheaf_autofd int fd = open(place.path, O_RDWR | O_CLOEXEC);
        char byte;

        cr_assert_eq(pread(fd, &byte, 1, place.offset), 1);
        byte ^= 0x10;
        cr_assert_eq(pwrite(fd, &byte, 1, place.offset), 1);
        cr_assert(!fsync(fd));
}

static void swap(struct place a, struct place b, size_t len)
{
        sheaf_autofd int fd_a = open(a.path, O_RDWR | O_CLOEXEC);
        sheaf_autofd int fd_b = open(b.path, O_RDWR | O_CLOEXEC);
        sheaf_autofree char *buf_a = malloc(len), *buf_b = malloc(len);

        cr_assert_eq(pread(fd_a, buf_a, len, a.offset), (ssize_t)len);
        cr_assert_eq(pread(fd_b, buf_b, len, b.offset), (ssize_t)len);
        cr_assert_eq(pwrite(fd_a, buf_b, len, a.offset), (ssize_t)len);
        cr_assert_eq(pwrite(fd_b, buf_a, len, b.offset), (ssize_t)len);
        cr_assert(!fsync(fd_a) && !fsync(fd_b));
}

static void resize(struct place place, off_t by)
{
        struct stat st;

        cr_assert(!stat(place.path, &st));
        cr_assert(!truncate(place.path, st.st_size + by));
}

/* ---- steps ---- */

/* Ten small files at their first, middle and last byte, and one large. */
static void flip_eleven(void)
{
        static const uint64_t at[] = { 0, SMALL_BYTES / 2, SMALL_BYTES - 1 };

        for (uint32_t i = 0; i < 10; i++)
                flip(find("segments", 5 + i * 7, at[i % 3]));
        flip(find("plain", LARGE_ID + 2, 5000000));
}

Test(damage, flipped_bits_on_a_living_daemon)
{
        double origin;

        make_set();
        origin = flow_stat("origin.bytes");
        flip_eleven();
        forget_memory();
        check_library();
        cr_assert_eq(flow_stat("verify_failures"), 11, "%g",
                flow_stat("verify_failures"));
        cr_assert_eq(
                flow_stat("origin.bytes") - origin, 10 * SMALL_BYTES + 4194304);
        forget_memory();
        check_mount();
        cr_assert_eq(flow_stat("verify_failures"), 11, "each damage once: %g",
                flow_stat("verify_failures"));
        flow_stop();
}

Test(damage, flipped_bits_seen_by_a_mount_after_a_restart)
{
        make_set();
        flow_stop();
        flip_eleven();
        flow_start();
        check_mount();
        cr_assert_eq(flow_stat("verify_failures"), 11, "%g",
                flow_stat("verify_failures"));
        check_library();
        flow_stop();
}

static void resize_all(void)
{
        struct place segment = find("segments", 1, 0);

        resize(find("plain", LARGE_ID + 1, LARGE_BYTES - 8), -1);
        resize(find("plain", LARGE_ID + 2, 0), 1);
        resize(segment, -1);
}

Test(damage, other_lengths)
{
        make_set();
        resize_all();
        forget_memory();
        check_library();
        check_mount();
        flow_stop();
        resize_all();
        flow_start();
        check_mount();
        check_library();
        flow_stop();
}

Test(damage, a_segment_that_is_cut_in_the_middle)
{
        struct place place;

        make_set();
        place = find("segments", 50, 0);
        cr_assert(!truncate(place.path, place.offset + 100));
        forget_memory();
        check_library();
        flow_stop();
        flow_start();
        check_mount();
        flow_stop();
}

Test(damage, swapped_contents)
{
        make_set();
        swap(find("segments", 10, 0), find("segments", 20, 0), SMALL_BYTES);
        swap(find("plain", LARGE_ID + 1, 0), find("plain", LARGE_ID + 3, 0),
                LARGE_BYTES);
        forget_memory();
        check_mount();
        /* The check of a large file that is no longer whole may come before
         * a reader. */
        cr_assert_leq(flow_stat("verify_failures"), 2 + 2 * 3);
        cr_assert_eq(flow_stat("disk.bad_payloads"), 2 + 2 * 3, "%g: once each",
                flow_stat("disk.bad_payloads"));
        check_library();
        flow_stop();
}

Test(damage, deleted_files)
{
        make_set();
        cr_assert(!unlink(find("segments", 1, 0).path));
        cr_assert(!unlink(find("plain", LARGE_ID + 1, 0).path));
        forget_memory();
        check_library();
        check_mount();
        flow_stop();
        flow_start();
        check_library();
        check_mount();
        flow_ok("rm -rf %s/segments/* %s/plain/*", flow.cache, flow.cache);
        flow_kill();
        flow_start();
        check_mount();
        check_library();
        flow_stop();
}

Test(damage, everything_deleted_under_open_and_mapped_files)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_view view;
        uint64_t ordinal;
        char *map;
        int fd;

        make_set();
        flow_mount("data", flow.mount);
        fd = open(flow_path("mount/large/f1"), O_RDONLY | O_CLOEXEC);
        map = mmap(NULL, LARGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
        cr_assert_neq(map, MAP_FAILED);
        cr_assert(flow_stamp_check(map, LARGE_ID + 1, 0, 100000));
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        cr_assert_eq(sheaf_dataset_lookup(dataset, "large/f2", &ordinal), 0);
        cr_assert_eq(sheaf_view_file(dataset, ordinal, &view), 0);
        flow_ok("find %s -mindepth 1 -delete", flow.cache);
        cr_assert(flow_stamp_check(map, LARGE_ID + 1, 0, LARGE_BYTES));
        cr_assert(flow_stamp_check(view.pieces[2].iov_base, LARGE_ID + 2,
                2 * 4194304, view.pieces[2].iov_len));
        sheaf_view_release(&view);
        flow_close(session, dataset);
        forget_memory();
        check_library();
        munmap(map, LARGE_BYTES);
        close(fd);
        flow_umount(flow.mount);
        forget_memory();
        check_mount();
        cr_assert(flow_live());
        flow_kill();
        flow_start();
        /* The list of datasets went with the cache. */
        if (flow_run("sheaf ls data") != 0)
                flow_ok("sheaf add data %s", flow.origin);
        check_mount();
        check_library();
        flow_stop();
}

/* ---- verify ---- */

static json_t *verify(const char *options, int want)
{
        json_t *root;

        cr_assert_eq(flow_run("sheaf verify data --json %s", options), want,
                "%d: %s%s", flow.last.rc, flow.last.out, flow.last.err);
        root = json_loads(flow.last.out, 0, NULL);
        cr_assert(root, "%s", flow.last.out);
        return root;
}

static bool found(json_t *root, const char *path)
{
        json_t *finding;
        size_t i;

        json_array_foreach(json_object_get(root, "findings"), i, finding)
        {
                const char *at =
                        json_string_value(json_object_get(finding, "path"));

                if (at && !strcmp(at, path))
                        return true;
        }
        return false;
}

Test(damage, verify_finds_exactly_the_damaged)
{
        json_t *root;
        char path[64];

        make_set();
        root = verify("", 0);
        json_decref(root);
        flip_eleven();
        forget_memory();
        root = verify("", 6);
        cr_assert_eq(json_array_size(json_object_get(root, "findings")), 11,
                "%s", flow.last.out);
        for (uint32_t i = 0; i < 10; i++) {
                snprintf(path, sizeof(path), "small/f%03u", 5 + i * 7);
                cr_assert(found(root, path), "%s", path);
        }
        cr_assert(found(root, "large/f2"));
        json_decref(root);
        /* What was found was dropped. */
        json_decref(verify("", 0));
        check_library();
        flow_ok("sheaf warmup --disk data");
        flip(find("segments", 77, 1000));
        flip(find("plain", LARGE_ID + 4, 0));
        forget_memory();
        root = verify("--repair", 6);
        cr_assert_eq(json_array_size(json_object_get(root, "findings")), 2);
        json_decref(root);
        cr_assert_eq(flow_stat("dataset.disk_bytes"),
                SMALL * SMALL_BYTES + LARGE * LARGE_BYTES,
                "repaired means on disk again");
        json_decref(verify("--cache-only", 0));
        check_library();
        flow_stop();
}

/* Swapped, cut, longer and deleted, before anybody reads: what has wrong bytes
 * or lacks some is found, and nothing else; what is gone is not damaged, but
 * not there. */
Test(damage, verify_finds_what_was_swapped_and_cut)
{
        static const char *const wrong[] = { "small/f010", "small/f020",
                "large/f1", "large/f2", "large/f3" };
        const size_t chunks = 2 + 3 + 1 + 3; /* each is told by itself */
        json_t *root;

        make_set();
        swap(find("segments", 10, 0), find("segments", 20, 0), SMALL_BYTES);
        swap(find("plain", LARGE_ID + 1, 0), find("plain", LARGE_ID + 3, 0),
                LARGE_BYTES);
        resize(find("plain", LARGE_ID + 2, LARGE_BYTES - 8), -1);
        resize(find("plain", LARGE_ID + 4, 0), 1);
        forget_memory();
        root = verify("--cache-only", 6);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(wrong); i++)
                cr_assert(found(root, wrong[i]), "%s: %s", wrong[i],
                        flow.last.out);
        cr_assert_eq(json_array_size(json_object_get(root, "findings")), chunks,
                "%s", flow.last.out);
        json_decref(root);
        json_decref(verify("", 0));
        flow_ok("sheaf warmup --disk data");
        cr_assert(!unlink(find("plain", LARGE_ID + 4, 0).path));
        forget_memory();
        json_decref(verify("--cache-only", 0));
        check_library();
        check_mount();
        flow_stop();
}
