/* SPDX-License-Identifier: Apache-2.0 */
#include "kit.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const uint64_t sizes[] = { 1000, 0, 2000, 100000, 9 << 20, 500 };
#define COUNT SHEAF_ARRAY_LEN(sizes)

Test(version, equal_chunks_are_stored_once)
{
        struct kit kit;
        struct kit_version a, b;
        uint64_t bytes;

        kit_begin(&kit, 128 * SHEAF_MIB);
        kit_version(&kit, &a, 1, 7, sizes, COUNT, 1);
        cr_assert_eq(kit_write_all(&kit, &a), a.listing.chunk_count);
        kit_version(&kit, &b, 2, 8, sizes, COUNT, 1);
        cr_assert_eq(sheaf_version_disk(b.version, &bytes), 0);
        for (uint64_t c = 0; c < b.listing.chunk_count; c++)
                sheaf_version_learn(
                        b.version, c, sheaf_version_digest(a.version, c));
        cr_assert_eq(
                sheaf_version_disk(b.version, &bytes), b.listing.chunk_count);
        cr_assert_eq(kit_write(&kit, &b, 0), -EEXIST);
        for (uint64_t c = 0; c < b.listing.chunk_count; c++)
                cr_assert_eq(kit_read(&kit, &b, c), 0);
        cr_assert_eq(kit_stats(&kit).written_chunks, a.listing.chunk_count);
        /* The plain file leaves: both versions know. */
        struct sheaf_chunk_ref ref = kit_ref(&a, 3);

        cr_assert_gt(a.listing.entries[ref.entry].size_bytes, 4 << 20);
        cr_assert(sheaf_store_evict(kit.store, &ref));
        cr_assert_eq(sheaf_version_disk(a.version, &bytes),
                a.listing.chunk_count - 3);
        cr_assert_eq(sheaf_version_disk(b.version, &bytes),
                a.listing.chunk_count - 3);
        kit_end(&kit);
        kit_version_end(&a);
        kit_version_end(&b);
}

Test(version, forget_learn_and_evict_keep_sums_right)
{
        struct kit kit;
        struct kit_version v;
        struct sheaf_digest digest;
        struct sheaf_chunk_ref ref;
        uint64_t bytes, all;

        kit_begin(&kit, 128 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, COUNT, 1);
        all = v.listing.chunk_count;
        cr_assert_eq(kit_write_all(&kit, &v), all);
        cr_assert_eq(sheaf_version_known(v.version), all);
        digest = *sheaf_version_digest(v.version, 1);
        sheaf_version_forget(v.version, 1);
        cr_assert_eq(sheaf_version_known(v.version), all - 1);
        cr_assert_eq(sheaf_version_disk(v.version, &bytes), all - 1);
        cr_assert_eq(kit_read(&kit, &v, 1), -ENOENT);
        sheaf_version_learn(v.version, 1, &digest);
        cr_assert_eq(sheaf_version_disk(v.version, &bytes), all);
        cr_assert_eq(kit_read(&kit, &v, 1), 0);
        ref = kit_ref(&v, 1);
        cr_assert(sheaf_store_evict(kit.store, &ref));
        cr_assert_not(sheaf_store_evict(kit.store, &ref));
        cr_assert_eq(sheaf_version_disk(v.version, &bytes), all - 1);
        cr_assert_eq(kit_read(&kit, &v, 1), -ENOENT);
        cr_assert_eq(kit_write(&kit, &v, 1), 0);
        cr_assert_eq(kit_read(&kit, &v, 1), 0);
        cr_assert_eq(bytes + ref.len_bytes, v.listing.header->payload_bytes);
        kit_end(&kit);
        kit_version_end(&v);
}

Test(version, stale_and_cut_arrays_are_only_misses)
{
        struct kit kit;
        struct kit_version v;
        char path[256];
        uint64_t bytes;

        kit_begin(&kit, 128 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, COUNT, 1);
        cr_assert_eq(kit_write_all(&kit, &v), v.listing.chunk_count);
        /* Places that name another chunk's record, as after a power cut. */
        v.version->places[0] = v.version->places[1];
        v.version->places[2].offset_bytes += 64;
        cr_assert_eq(kit_read(&kit, &v, 0), -ENOENT);
        cr_assert_eq(kit_read(&kit, &v, 0), 0, "found by its digest");
        cr_assert_eq(kit_read(&kit, &v, 2), -EBADMSG);
        kit_close(&kit);
        snprintf(path, sizeof(path),
                "truncate -s 100 $(find %s/versions -name places)", kit.dir);
        cr_assert_eq(system(path), 0);
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        for (uint64_t c = 0; c < v.listing.chunk_count; c++) {
                int rc = kit_read(&kit, &v, c);

                cr_assert(rc == 0 || rc == -ENOENT, "%d", rc);
        }
        cr_assert_eq(kit_write_all(&kit, &v), v.listing.chunk_count);
        cr_assert_eq(
                sheaf_version_disk(v.version, &bytes), v.listing.chunk_count);
        kit_end(&kit);
        kit_version_end(&v);
}

Test(version, removal_takes_directory_and_plain_files)
{
        struct kit kit;
        struct kit_version v;
        uint8_t uuid[16];

        kit_begin(&kit, 128 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, sizes, COUNT, 1);
        cr_assert_eq(kit_write_all(&kit, &v), v.listing.chunk_count);
        cr_assert_eq(kit_stats(&kit).plain_files, 1);
        memcpy(uuid, v.version->uuid, sizeof(uuid));
        sheaf_version_close(v.version);
        sheaf_version_remove(kit.store, uuid);
        sheaf_version_remove(kit.store, uuid);
        sheaf_disk_drain(kit.store->disk);
        cr_assert_eq(kit_stats(&kit).plain_files, 0);
        kit_end(&kit);
        kit_version_end(&v);
}

/* ---- arrays that the disk does not give ---- */

#define LOST_FILES 300

static void array_path(const struct kit *kit, const struct kit_version *v,
        const char *name, char ret_path[160])
{
        char hex[33];

        for (int i = 0; i < 16; i++)
                snprintf(hex + 2 * i, 3, "%02x", v->version->uuid[i]);
        snprintf(ret_path, 160, "%s/versions/%s/%s", kit->dir, hex, name);
}

static uint64_t read_some(struct kit *kit, struct kit_version *v)
{
        uint64_t served = 0;

        for (uint64_t c = 0; c < v->listing.chunk_count; c++) {
                int rc = kit_read(kit, v, c);

                cr_assert(rc == 0 || rc == -ENOENT, "%d", rc);
                served += rc == 0;
        }
        return served;
}

/* The file of an array is cut to @keep bytes under the store: what lay behind
 * is not known any more, the rest and other versions go on, it is told, and
 * the next start has it whole again. */
static void lose(const char *name, off_t keep, bool looked)
{
        uint64_t lens[LOST_FILES], bytes, known;
        struct kit kit;
        struct kit_version v, other;
        char path[160];
        struct stat st;

        for (size_t i = 0; i < LOST_FILES; i++)
                lens[i] = 900 + i;
        kit_begin(&kit, 64 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, lens, LOST_FILES, 1);
        kit_version(&kit, &other, 2, 8, lens, LOST_FILES, 2);
        cr_assert_eq(kit_write_all(&kit, &v), LOST_FILES);
        cr_assert_eq(kit_write_all(&kit, &other), LOST_FILES);
        array_path(&kit, &v, name, path);
        cr_assert_eq(truncate(path, keep), 0);
        if (looked) {
                (void)read_some(&kit, &v);
                sheaf_versions_look(kit.store);
                cr_assert_eq(kit_stats(&kit).versions_lost, 1);
        }
        cr_assert_eq(read_some(&kit, &other), LOST_FILES);
        cr_assert_eq(kit_write_all(&kit, &v), LOST_FILES);
        sheaf_versions_look(kit.store);
        cr_assert_eq(read_some(&kit, &v), LOST_FILES);
        cr_assert_eq(kit_stats(&kit).versions_lost, 1);
        known = sheaf_version_known(v.version);
        cr_assert_eq(known, LOST_FILES, "%lu", known);
        cr_assert_eq(sheaf_version_disk(v.version, &bytes), LOST_FILES);
        cr_assert_eq(sheaf_version_sync(v.version),
                strcmp(name, "digests") ? 0 : -EIO);
        kit_close(&kit);
        cr_assert_eq(stat(path, &st), 0);
        cr_assert_gt(st.st_size, keep);
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        kit_version_reopen(&kit, &other, 8);
        cr_assert_eq(kit_stats(&kit).versions_lost, 0);
        cr_assert_eq(sheaf_version_known(v.version), LOST_FILES);
        cr_assert_eq(read_some(&kit, &v), LOST_FILES);
        cr_assert_eq(read_some(&kit, &other), LOST_FILES);
        cr_assert_eq(sheaf_version_sync(v.version), 0);
        kit_end(&kit);
        kit_version_end(&v);
        kit_version_end(&other);
}

Test(version, arrays_that_are_cut_are_not_known)
{
        lose("digests", 0, true);
        lose("digests", 4096, true);
        lose("digests", 4096, false);
        lose("places", 0, true);
        lose("places", 4096, false);
}

/* Cut while no daemon ran: told as well. */
Test(version, arrays_cut_at_rest_are_told)
{
        uint64_t lens[] = { 1000, 2000 };
        struct kit kit;
        struct kit_version v;
        char path[160];

        kit_begin(&kit, 64 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, lens, 2, 1);
        cr_assert_eq(kit_write_all(&kit, &v), 2);
        array_path(&kit, &v, "digests", path);
        kit_close(&kit);
        cr_assert_eq(truncate(path, 100), 0);
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        sheaf_versions_look(kit.store);
        cr_assert_eq(kit_stats(&kit).versions_lost, 1);
        cr_assert_eq(kit_write_all(&kit, &v), 2);
        cr_assert_eq(read_some(&kit, &v), 2);
        kit_end(&kit);
        kit_version_end(&v);
}

/* A daemon that is killed while it learns leaves the digest, the one before, or
 * none; what is half of each would make a sound file fail for ever. */
Test(version, a_kill_leaves_no_half_of_a_digest)
{
        struct sheaf_digest digests[2], *at;
        const _Atomic uint64_t *words;
        unsigned int none = 0;

        memset(&digests[0], 0xaa, sizeof(digests[0]));
        memset(&digests[1], 0x55, sizeof(digests[1]));
        at = mmap(NULL, sizeof(*at), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        cr_assert_neq(at, MAP_FAILED);
        words = (const _Atomic uint64_t *)(const void *)at;
        for (int kills = 0; kills < 300; kills++) {
                pid_t pid;

                memset(at, 0, sizeof(*at));
                pid = fork();
                if (!pid)
                        for (unsigned int i = 0;; i++)
                                sheaf_array_set_digest(at, &digests[i % 2]);
                while (!words[3])
                        ;
                kill(pid, SIGKILL);
                cr_assert_eq(waitpid(pid, NULL, 0), pid);
                if (!sheaf_digest_prefix(at))
                        none++;
                else
                        cr_assert(sheaf_digest_equal(at, &digests[0]) ||
                                  sheaf_digest_equal(at, &digests[1]));
        }
        printf("version: %u of 300 kills left no digest\n", none);
        munmap(at, sizeof(*at));
}

Test(version, half_a_digest_is_none)
{
        uint64_t lens[] = { 1000, 2000 };
        struct kit kit;
        struct kit_version v;
        struct sheaf_digest digest, found;
        char path[160];
        int fd;

        kit_begin(&kit, 64 * SHEAF_MIB);
        kit_version(&kit, &v, 1, 7, lens, 2, 1);
        cr_assert_eq(kit_write_all(&kit, &v), 2);
        digest = *sheaf_version_digest(v.version, 0);
        array_path(&kit, &v, "digests", path);
        kit_close(&kit);
        fd = open(path, O_WRONLY | O_CLOEXEC);
        cr_assert_eq(pwrite(fd, "\0\0\0\0\0\0\0", 8, 0), 8);
        close(fd);
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        /* Its record tells it again, if it is not too old. */
        found = *sheaf_version_digest(v.version, 0);
        cr_assert(!sheaf_digest_known(&found) ||
                  sheaf_digest_equal(&found, &digest));
        cr_assert_eq(kit_write_all(&kit, &v), 2);
        cr_assert_eq(read_some(&kit, &v), 2);
        kit_end(&kit);
        kit_version_end(&v);
}
