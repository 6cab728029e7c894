/* SPDX-License-Identifier: Apache-2.0 */
/* Many tiny datasets share a small disk: each takes what it has, and a step.
 */
#include "kit.h"

#include <signal.h>
#include <sys/wait.h>

#define TINY  1000
#define SOME  200
#define FILES 3
#define STEP  SHEAF_SEGMENT_FIRST_BYTES

static struct kit_version many[TINY];

static void tiny(struct kit *kit, size_t i)
{
        uint64_t sizes[FILES];

        for (size_t f = 0; f < FILES; f++)
                sizes[f] = 500 + (i * 7919 + f * 1777) % 4000;
        kit_version(kit, &many[i], i + 1, i + 1, sizes, FILES, (uint32_t)i);
}

static uint64_t served(struct kit *kit, struct kit_version *v)
{
        uint64_t n = 0;

        for (uint64_t c = 0; c < v->listing.chunk_count; c++) {
                int rc = kit_read(kit, v, c);

                cr_assert(rc == 0 || rc == -ENOENT, "%d", rc);
                n += rc == 0;
        }
        return n;
}

static void du_agrees(const struct kit *kit, const char *when)
{
        uint64_t du = kit_du(kit->dir), used = kit_stats(kit).bytes_used;
        uint64_t differ = du > used ? du - used : used - du;

        cr_assert_leq(
                differ * 100, du, "%s: du %lu, status %lu", when, du, used);
        cr_assert_leq(du, kit->config.bytes_max, "%s: du %lu", when, du);
}

/* Learns and hands out the writes of all, then waits. */
struct tiny_write {
        struct sheaf_store_write write;
        uint8_t bytes[4608];
        int rc;
        uint64_t *left;
};

static void on_written(struct sheaf_store_write *write, int rc)
{
        struct tiny_write *w = (struct tiny_write *)write;

        w->rc = rc;
        --*w->left;
}

static uint64_t write_many(struct kit *kit, size_t from, size_t to)
{
        size_t count = (to - from) * FILES;
        struct tiny_write *writes = sheaf_new(struct tiny_write, count);
        uint64_t left = count, good = 0;

        for (size_t i = 0; i < count; i++) {
                struct kit_version *v = &many[from + i / FILES];
                struct tiny_write *w = &writes[i];
                struct sheaf_digest digest;

                w->write.ref = kit_ref(v, i % FILES);
                w->write.bytes = w->bytes;
                w->write.done = on_written;
                w->left = &left;
                kit_payload(v, i % FILES, w->bytes, w->write.ref.len_bytes);
                sheaf_digest_of(w->bytes, w->write.ref.len_bytes, &digest);
                sheaf_version_learn(v->version, i % FILES, &digest);
                sheaf_store_write(kit->store, &w->write);
        }
        while (left) {
                /* A warmup of many does not wait for one another. */
                if (to - from < TINY)
                        sheaf_store_flush(kit->store);
                uv_run(&kit->loop, UV_RUN_ONCE);
        }
        for (size_t i = 0; i < count; i++)
                good += writes[i].rc == 0;
        free(writes);
        return good;
}

static void reopen(struct kit *kit, size_t count)
{
        kit_open(kit);
        for (size_t i = 0; i < count; i++)
                kit_version_reopen(kit, &many[i], i + 1);
}

static void end(struct kit *kit, size_t count)
{
        kit_end(kit);
        for (size_t i = 0; i < count; i++)
                kit_version_end(&many[i]);
}

Test(tiny, a_thousand_datasets_fit_and_stay)
{
        struct kit kit;
        uint64_t used;

        kit_begin(&kit, SHEAF_GIB);
        for (size_t i = 0; i < TINY; i++)
                tiny(&kit, i);
        cr_assert_eq(write_many(&kit, 0, TINY), TINY * FILES);
        used = kit_stats(&kit).bytes_used;
        cr_assert_leq(used, 160 * SHEAF_MIB, "%lu", used);
        cr_assert_eq(kit_stats(&kit).refused_full, 0);
        du_agrees(&kit, "written");
        kit_close(&kit);
        reopen(&kit, TINY);
        for (size_t i = 0; i < TINY; i++)
                cr_assert_eq(served(&kit, &many[i]), FILES);
        du_agrees(&kit, "opened again");
        /* Each goes on where it ended. */
        kit_close(&kit);
        for (size_t i = 0; i < TINY; i++)
                many[i].seed ^= UINT32_C(0x5eed);
        reopen(&kit, TINY);
        for (size_t i = 0; i < TINY; i++)
                for (uint64_t c = 0; c < FILES; c++)
                        sheaf_version_forget(many[i].version, c);
        cr_assert_eq(write_many(&kit, 0, TINY), TINY * FILES);
        cr_assert_leq(kit_stats(&kit).bytes_used, used + SHEAF_MIB);
        cr_assert_eq(kit_stats(&kit).segments, TINY);
        du_agrees(&kit, "written again");
        for (size_t i = 0; i < TINY; i++)
                sheaf_store_group_drop(kit.store, i + 1);
        du_agrees(&kit, "dropped");
        cr_assert_leq(kit_stats(&kit).segments, 8);
        cr_assert_null(kit.store->groups);
        end(&kit, TINY);
}

/* Numbers of segments do not rise with what was. */
Test(tiny, datasets_that_come_and_go_leave_nothing)
{
        struct kit kit;
        uint32_t top = 0;

        kit_begin(&kit, 64 * SHEAF_MIB);
        for (size_t i = 0; i < SOME; i++)
                tiny(&kit, i);
        for (size_t i = 0; i + 50 <= SOME; i += 50) {
                cr_assert_eq(write_many(&kit, i, i + 50), 50 * FILES);
                for (size_t g = i; g < i + 50; g++)
                        sheaf_store_group_drop(kit.store, g + 1);
                if (!top)
                        top = kit.store->segment_top;
        }
        cr_assert_eq(kit.store->segment_top, top);
        du_agrees(&kit, "come and gone");
        end(&kit, SOME);
}

/* A kill at any time: what was told as written is there, nothing else is
 * claimed, and what is filled further counts. */
Test(tiny, kills_lose_nothing_of_any)
{
        struct kit kit;
        int status;
        pid_t pid;

        kit_begin(&kit, SHEAF_GIB);
        for (size_t i = 0; i < SOME; i++)
                tiny(&kit, i);
        kit_close(&kit);
        pid = fork();
        if (pid == 0) {
                struct kit child = kit;

                uv_loop_init(&child.loop);
                child.config.loop = &child.loop;
                if (sheaf_store_open(&child.config, &child.store))
                        _exit(1);
                for (size_t i = 0; i < SOME; i++)
                        if (sheaf_version_open(child.store, &many[i].listing,
                                    i + 1, &many[i].version))
                                _exit(2);
                if (write_many(&child, 0, SOME) != SOME * FILES)
                        _exit(3);
                raise(SIGKILL);
        }
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert(WIFSIGNALED(status), "%d", status);
        reopen(&kit, SOME);
        cr_assert_gt(kit_stats(&kit).unchecked_containers, 0);
        du_agrees(&kit, "after a kill");
        for (size_t i = 0; i < SOME; i++)
                cr_assert_eq(served(&kit, &many[i]), FILES);
        for (int i = 0; i < 1200 && kit_stats(&kit).unchecked_containers; i++)
                kit_wait_ms(&kit, 50);
        cr_assert_eq(kit_stats(&kit).unchecked_containers, 0);
        cr_assert_eq(kit_stats(&kit).bad_payloads, 0);
        du_agrees(&kit, "checked");
        /* The checked ones go on after a clean stop. */
        kit_close(&kit);
        reopen(&kit, SOME);
        for (size_t i = 0; i < SOME; i++)
                cr_assert_eq(served(&kit, &many[i]), FILES);
        cr_assert_leq(kit_stats(&kit).bytes_used, 40 * SHEAF_MIB);
        du_agrees(&kit, "opened again");
        end(&kit, SOME);
}

/* The limit is met by what gives way: the longest idle, one at a time, and
 * none that is live. */
Test(tiny, limit_is_met_by_the_longest_idle)
{
        const uint64_t big_sizes[] = { 4 << 20, 4 << 20, 3 << 20 };
        struct kit_version big;
        uint64_t left = 0, bytes;
        struct kit kit;

        kit_begin(&kit, 28 * SHEAF_MIB);
        for (size_t i = 0; i < 10; i++) {
                sheaf_store_group_live(kit.store, i + 1, true);
                tiny(&kit, i);
        }
        cr_assert_eq(write_many(&kit, 0, 10), 10 * FILES);
        for (size_t i = 10; i < 300; i++) {
                tiny(&kit, i);
                cr_assert_eq(write_many(&kit, i, i + 1), FILES);
                if (i % 32 == 0)
                        du_agrees(&kit, "as they come");
        }
        for (size_t i = 0; i < 300; i++) {
                uint64_t n = sheaf_version_disk(many[i].version, &bytes);

                cr_assert(i >= 10 || n == FILES, "%zu is live", i);
                left += n;
        }
        cr_assert_geq(left, 250 * FILES);
        cr_assert_eq(sheaf_version_disk(many[299].version, &bytes), FILES);
        /* A large one takes the room of as many as it needs. */
        kit_version(&kit, &big, 9999, 9999, big_sizes, 3, 3);
        sheaf_store_group_live(kit.store, 9999, true);
        cr_assert_eq(kit_write_all(&kit, &big), 3);
        du_agrees(&kit, "a large one");
        for (size_t i = 0; i < 10; i++)
                cr_assert_eq(served(&kit, &many[i]), FILES);
        cr_assert_eq(served(&kit, &big), 3);
        left = 0;
        for (size_t i = 10; i < 300; i++)
                left += served(&kit, &many[i]);
        cr_assert_geq(left, 60 * FILES);
        cr_assert_eq(kit_stats(&kit).bad_headers, 0);
        kit_end(&kit);
        kit_version_end(&big);
        for (size_t i = 0; i < 300; i++)
                kit_version_end(&many[i]);
}

/* The room that one large idle dataset loses to many tiny ones is theirs, not
 * a segment for each. */
Test(tiny, large_idle_ones_lose_no_more_than_is_needed)
{
        enum {
                BIG = 52
        };
        uint64_t sizes[BIG], bytes, kept;
        struct kit_version big;
        struct kit kit;

        for (size_t i = 0; i < BIG; i++)
                sizes[i] = SHEAF_MIB;
        kit_begin(&kit, 64 * SHEAF_MIB);
        kit_version(&kit, &big, 9999, 9999, sizes, BIG, 3);
        cr_assert_eq(kit_write_all(&kit, &big), BIG);
        for (size_t i = 0; i < 150; i++) {
                sheaf_store_group_live(kit.store, i + 1, true);
                tiny(&kit, i);
                cr_assert_eq(write_many(&kit, i, i + 1), FILES);
        }
        du_agrees(&kit, "beside a large one");
        kept = sheaf_version_disk(big.version, &bytes);
        cr_assert_geq(kept, BIG - 16, "%lu", kept);
        cr_assert_leq(kit.store->segment_bytes, 8 * SHEAF_MIB);
        for (size_t i = 0; i < 150; i++)
                cr_assert_eq(served(&kit, &many[i]), FILES);
        kit_end(&kit);
        kit_version_end(&big);
        for (size_t i = 0; i < 150; i++)
                kit_version_end(&many[i]);
}

/* A file system at its floor: what gives way is filled where it lies. */
Test(tiny, at_the_floor_old_blocks_are_used_again)
{
        enum {
                BIG = 40
        };
        uint64_t sizes[BIG], bytes, used;
        struct kit_version old, new;
        struct kit kit;

        for (size_t i = 0; i < BIG; i++)
                sizes[i] = SHEAF_MIB;
        kit_begin(&kit, 256 * SHEAF_MIB);
        kit_version(&kit, &old, 8888, 8888, sizes, BIG, 3);
        kit_version(&kit, &new, 9999, 9999, sizes, BIG, 4);
        cr_assert_eq(kit_write_all(&kit, &old), BIG);
        /* A segment that is being sealed gives way a moment later only. */
        sheaf_disk_drain(kit.store->disk);
        used = kit_stats(&kit).bytes_used;
        sheaf_store_group_live(kit.store, 9999, true);
        kit.store->floor_bytes = UINT64_C(1) << 60;
        kit_write_all(&kit, &new);
        cr_assert_geq(sheaf_version_disk(new.version, &bytes), BIG / 2);
        cr_assert_leq(kit_stats(&kit).bytes_used, used + SHEAF_MIB);
        kit.store->floor_bytes = 0;
        du_agrees(&kit, "at the floor");
        kit_end(&kit);
        kit_version_end(&old);
        kit_version_end(&new);
}
