/* SPDX-License-Identifier: Apache-2.0 */
/* The disk of the cache fails in every way that a file system has: reads go
 * on, status names cause and remedy, and caching resumes by itself. */
#include "tests/flow/faulty.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

TestSuite(store_faults, .init = flow_init, .fini = flow_fini, .timeout = 80);

#define SMALL       40
#define LARGE       2
#define SMALL_BYTES 200000 /* more than the kernel reads ahead at once */
#define LARGE_BYTES 9000000
#define LARGE_ID    1000
#define ALL_BYTES   (SMALL * SMALL_BYTES + LARGE * LARGE_BYTES)

/* ---- the set ---- */

static void make_set(void)
{
        for (uint32_t i = 1; i <= SMALL; i++)
                flow_file(i, SMALL_BYTES, "small/f%02u", i);
        for (uint32_t i = 1; i <= LARGE; i++)
                flow_file(LARGE_ID + i, LARGE_BYTES, "large/f%u", i);
        flow.extra = "--fuse-cache";
        flow_faulty_mount(flow.cache);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
}

static void read_all(void)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        char path[64];

        cr_assert_eq(flow_open("data", &session, &dataset), 0, "%s",
                sheaf_last_error());
        for (uint32_t i = 1; i <= SMALL; i++) {
                snprintf(path, sizeof(path), "small/f%02u", i);
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

static bool emptied(void)
{
        flow_ok("sheaf warmup --evict --memory data");
        return flow_stat("arena.payload_bytes") == 0;
}

/* The next reads come from the disk. */
static void forget_memory(void)
{
        cr_assert(flow_until(30, emptied()), "%g bytes stay",
                flow_stat("arena.payload_bytes"));
}

static bool status_says(const char *what)
{
        flow_ok("sheaf status");
        return strstr(flow.last.out, what) != NULL;
}

/* All is on disk and read from there, and nothing is degraded. */
static void healthy(void)
{
        double origin;

        cr_assert(flow_until(20, ({
                flow_run("sheaf warmup --disk data --quiet");
                flow_stat("dataset.disk_bytes") == ALL_BYTES;
        })),
                "%g of %d bytes are on disk: %s",
                flow_stat("dataset.disk_bytes"), ALL_BYTES, flow.last.err);
        forget_memory();
        origin = flow_stat("origin.bytes");
        read_all();
        cr_assert_eq(flow_stat("origin.bytes"), origin, "read from disk");
        cr_assert(flow_until(20, !status_says("disk tier is degraded")), "%s",
                flow.last.out);
}

Test(store_faults, nothing_wrong)
{
        make_set();
        read_all();
        healthy();
        flow_kill();
        flow_start();
        healthy();
        flow_stop();
}

/* Calls that a signal interrupts, also in their midst, are made again, at the
 * start too: nothing goes unwritten, nothing right is taken for damage, no
 * state is told. (The index has calls of its own. A map's page that could not
 * be written back is a loss, whatever the kernel calls it.) */
Test(store_faults, interrupted_calls)
{
        static const char *const rules =
                "allocate path=/segments times=2 fail=EINTR\n"
                "read,write,allocate,truncate,open,create,sync path=/segments "
                "one-of=3 fail=EINTR\n"
                "read,write,allocate,truncate,open,create,sync path=/plain "
                "one-of=3 fail=EINTR\n"
                "read,allocate,truncate,open,create,sync path=/versions "
                "one-of=3 fail=EINTR\n";

        make_set();
        flow_faulty("%s", rules);
        read_all();
        healthy();
        flow_ok("sheaf verify data --cache-only --quiet");
        flow_kill();
        flow_start();
        cr_assert(flow_until(20, flow_stat("disk.unchecked") == 0));
        healthy();
        cr_assert_not(status_says("lost what they had"), "%s", flow.last.out);
        cr_assert_gt(flow_faulty_hits("write /segments"), 0);
        cr_assert_gt(flow_faulty_hits("read /segments"), 0);
        cr_assert_gt(flow_faulty_hits("read /versions"), 0);
        cr_assert_gt(flow_faulty_hits("allocate /segments"), 0);
        cr_assert_eq(flow_stat("disk.bad_payloads"), 0);
        cr_assert_eq(flow_stat("disk.io_errors"), 0);
        cr_assert_eq(flow_stat("disk.refused_full"), 0);
        flow_ok("! grep store_degraded %s >&2", flow.log);
        flow_faulty("%s", "");
        flow_stop();
}

/* ---- writes fail ---- */

#define WRITES "write,create,allocate,truncate,mkdir,unlink,rename,sync"

/* Reads go on while each write fails with @error, status says @why, and
 * afterwards caching resumes by itself. */
static void writes_fail(const char *error, const char *why)
{
        make_set();
        flow_faulty(WRITES " fail=%s\n", error);
        read_all();
        cr_assert(flow_until(30, status_says("the disk tier is degraded")),
                "%s: %s", error, flow.last.out);
        cr_assert(status_says(why), "%s: %s", error, flow.last.out);
        forget_memory();
        read_all();
        cr_assert(flow_live());
        flow_faulty("%s", "");
        healthy();
        flow_kill();
        flow_start();
        healthy();
        flow_stop();
}

Test(store_faults, writes_give_eio)
{
        writes_fail("EIO", "the disk of the cache fails");
}

Test(store_faults, writes_give_enospc)
{
        writes_fail("ENOSPC", "full or at its floor");
}

Test(store_faults, writes_give_edquot)
{
        writes_fail("EDQUOT", "the quota on the disk");
}

Test(store_faults, writes_give_erofs)
{
        writes_fail("EROFS", "read-only");
}

/* Interrupted without end: told as any other failure, and nobody hangs. */
Test(store_faults, writes_are_always_interrupted)
{
        writes_fail("EINTR", "the disk of the cache fails");
}

/* ---- reads fail ---- */

Test(store_faults, reads_give_eio)
{
        double errors;

        make_set();
        healthy();
        errors = flow_stat("disk.io_errors");
        flow_faulty("read path=/segments fail=EIO\n"
                    "read path=/plain fail=EIO\n");
        forget_memory();
        read_all();
        cr_assert_gt(flow_stat("disk.io_errors"), errors);
        cr_assert(
                status_says("the disk tier is degraded"), "%s", flow.last.out);
        forget_memory();
        read_all();
        flow_faulty("%s", "");
        healthy();
        flow_stop();
}

/* The kernel's quota is not the cache's own limit, of large files alone too. */
Test(store_faults, quota_for_large_files)
{
        make_set();
        flow_faulty("create path=/plain fail=EDQUOT\n");
        read_all();
        cr_assert(flow_until(30, status_says("the quota on the disk")), "%s",
                flow.last.out);
        cr_assert_not(status_says("the disk limit is reached"));
        flow_faulty("%s", "");
        healthy();
        flow_stop();
}

/* ---- what was learned is lost ---- */

/* Digests and places of a version cannot be read: it says so, its reads give
 * right bytes, others go on, and a stop puts it right. */
static void array_fails(const char *name)
{
        flow_stop();
        flow_faulty("read path=/%s fail=EIO\n", name);
        flow_start();
        read_all();
        cr_assert(flow_until(30, status_says("lost what they had learned")),
                "%s", flow.last.out);
        cr_assert(status_says("arrays-lost"), "%s", flow.last.out);
        forget_memory();
        read_all();
        cr_assert(flow_live());
        flow_faulty("%s", "");
        flow_stop();
        flow_start();
        healthy();
        cr_assert_not(status_says("lost what they had"), "%s", flow.last.out);
}

Test(store_faults, the_arrays_of_a_version_give_eio)
{
        make_set();
        healthy();
        array_fails("digests");
        array_fails("places");
        flow_stop();
}

/* A sealed version whose digests are lost finds them in its records, or learns
 * them from files of which nothing moved, and from no other. */
Test(store_faults, lost_digests_of_a_sealed_version)
{
        const char *path = flow_path("origin/large/f1");
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct timespec times[2];
        struct stat st;

        make_set();
        flow_ok("sheaf seal data");
        flow_stop();
        flow_ok("truncate -s 100 %s.real/versions/*/digests", flow.cache);
        cr_assert(!stat(path, &st));
        flow_ok("dd if=/dev/zero of=%s bs=1M count=9 conv=notrunc status=none",
                path);
        times[0] = st.st_atim;
        times[1] = st.st_mtim;
        cr_assert(!utimensat(AT_FDCWD, path, times, 0));
        flow_start();
        cr_assert_eq(flow_open("data", &session, &dataset), 0, "%s",
                sheaf_last_error());
        cr_assert_eq(
                flow_check_view(dataset, "large/f2", LARGE_ID + 2, LARGE_BYTES),
                0, "%s", sheaf_last_error());
        cr_assert_eq(flow_check_view(dataset, "small/f01", 1, SMALL_BYTES), 0,
                "%s", sheaf_last_error());
        cr_assert_eq(
                flow_check_view(dataset, "large/f1", LARGE_ID + 1, LARGE_BYTES),
                -ESTALE, "%s", sheaf_last_error());
        cr_assert(flow_until(30, status_says("lost what they had learned")),
                "%s", flow.last.out);
        flow_close(session, dataset);
        flow_stop();
}

/* ---- slow ---- */

/* Nobody waits for such a disk: what is not in memory comes from the origin,
 * and the daemon answers. */
Test(store_faults, each_call_takes_a_second, .timeout = 150)
{
        make_set();
        flow_faulty("any delay=1000\n");
        read_all();
        cr_assert(flow_until(20, flow_live()));
        cr_assert(status_says("answers too slowly"), "%s", flow.last.out);
        forget_memory();
        cr_assert(flow_live());
        read_all();
        cr_assert(flow_live());
        flow_faulty("%s", "");
        healthy();
        flow_faulty("any delay=1000\n");
        forget_memory();
        read_all();
        flow_faulty("%s", "");
        healthy();
        flow_stop();
}

/* A command that waits for the slow disk; meanwhile hits and `sheaf status`
 * of others do not: held up by one write to the index they would take as long
 * as three calls at least. */
static void beside_others(const char *command)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        double start = flow_now(), slowest = 0;
        int rounds = 0, rc;
        pid_t pid;

        pid = flow_fork(0, 0);
        if (!pid) {
                execl("/bin/sh", "sh", "-c", command, (char *)NULL);
                _exit(97);
        }
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        while ((rc = flow_wait(pid, 0)) < 0 && flow_now() < start + 60) {
                double before = flow_now();

                flow_ok("sheaf status");
                cr_assert_eq(
                        flow_check_view(dataset, "small/f01", 1, SMALL_BYTES),
                        0);
                slowest = SHEAF_MAX(slowest, flow_now() - before);
                rounds++;
        }
        flow_close(session, dataset);
        cr_assert_eq(rc, 0, "%s: %d", command, rc);
        cr_expect_gt(flow_now() - start, 1, "it did not wait for the disk");
        cr_expect_gt(rounds, 1);
        cr_expect_lt(slowest, 2, "%s held all up", command);
        printf("FIGURE: %.20s: %.1f s, %d others, slowest %.3f s\n", command,
                flow_now() - start, rounds, slowest);
}

/* What a command says is durable, and nobody but who gave it waits for that.
 */
Test(store_faults, commands_wait_alone_for_a_slow_index, .timeout = 150)
{
        char command[400];

        make_set();
        flow_file(1, SMALL_BYTES, "../other/f");
        flow_ok("sheaf add spare %s", flow_path("other"));
        read_all();
        cr_assert(flow_until(30, flow_stat("fetch.writing_bytes") == 0));
        flow_faulty("write,sync path=/catalog delay=700\n");
        snprintf(command, sizeof(command), "sheaf add more %s",
                flow_path("other"));
        beside_others(command);
        beside_others("sheaf share --force spare all");
        beside_others("sheaf rm spare");
        flow_kill();
        flow_faulty("%s", "");
        flow_start();
        flow_ok("sheaf warmup more");
        cr_assert_neq(flow_run("sheaf warmup spare"), 0);
        flow_stop();
}

/* Who gave a command dies while the index is written: the command ends by
 * itself, with all that there is to tell, and the daemon lives on. */
Test(store_faults, commands_end_without_their_client, .timeout = 150)
{
        static const char *const commands[] = { "add --share all new%d %s",
                "update set%d %s", "share --force set%d all", "seal set%d",
                "grant set%d --dir %s", "verify set%d", "warmup set%d",
                "warmup --evict set%d", "rm --force set%d", "rm set%d" };

        make_set();
        /* There is something to tell of this tree. */
        flow_file(1, SMALL_BYTES, "../other/f");
        cr_assert(!symlink("/etc/passwd", flow_path("other/away")));
        cr_assert(!mkfifo(flow_path("other/pipe"), 0600));
        for (int i = 0; i < 3; i++)
                flow_ok("sheaf add set%d %s", i, flow_path("other"));
        flow_file(2, SMALL_BYTES, "../other/g");
        flow_faulty("write,sync path=/catalog delay=250\n");
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(commands); i++)
                for (int cut = 1; cut <= 3; cut++) {
                        char command[128];

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
                        snprintf(command, sizeof(command), commands[i], cut - 1,
                                flow_path("other"));
#pragma GCC diagnostic pop
                        flow_run("timeout -s KILL 0.%d sheaf %s", 2 * cut,
                                command);
                        cr_assert(flow_until(10, flow_live()), "after: %s",
                                command);
                }
        flow_faulty("%s", "");
        read_all();
        flow_stop();
}

/* Right after a warmup most of it is still on its way to a slow disk: that
 * can be shared, and what is evicted does not come back. */
Test(store_faults, evict_is_final_and_share_waits)
{
        for (uint32_t i = 1; i <= 300; i++)
                flow_file(i, 20000, "f%u", i);
        flow.extra = "--fuse-cache";
        flow_faulty_mount(flow.cache);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        for (int round = 0; round < 2; round++) {
                flow_faulty("write path=/segments delay=300\n");
                flow_ok("sheaf warmup --evict data && sheaf warmup data");
                cr_expect_gt(flow_stat("fetch.writing_bytes"), 0);
                flow_ok("sheaf warmup --evict data");
                cr_expect_eq(flow_stat("disk.chunks"), 0);
                cr_assert(
                        flow_until(20, flow_stat("fetch.writing_bytes") == 0));
                cr_expect_eq(flow_stat("disk.chunks"), 0, "%g came back",
                        flow_stat("disk.chunks"));
                flow_ok("sheaf warmup data && sheaf share --force data %s",
                        round ? "owner" : "all");
                flow_faulty("%s", "");
                flow_ok("sheaf warmup --disk data");
                cr_expect_eq(flow_stat("disk.chunks"), 300);
        }
        flow_stop();
}

/* ---- what the loop thread does itself ---- */

/* Calls of the loop thread, but for looks at names and attributes, which other
 * file systems keep. */
static uint64_t loop_calls(void)
{
        static const char *const kinds[] = { "open", "create", "read", "write",
                "sync", "truncate", "allocate", "unlink", "rename", "mkdir",
                "rmdir", "list", "statfs", "lock", "link" };
        uint64_t sum = 0;

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(kinds); i++)
                sum += flow_faulty_calls(kinds[i], flow.daemon);
        return sum;
}

static void few_calls(const char *command, uint64_t max)
{
        uint64_t before = loop_calls(), calls;

        flow_ok("sheaf %s", command);
        cr_assert(flow_until(20, flow_stat("fetch.writing_bytes") == 0));
        calls = loop_calls() - before;
        printf("FIGURE: %.20s: %llu calls\n", command,
                (unsigned long long)calls);
        cr_expect_leq(calls, max, "%s: %llu calls on the loop thread", command,
                (unsigned long long)calls);
}

/* On a slow disk each of these calls keeps everybody waiting. There are a few
 * for each file over 4 MiB that is made, and else no more for many files than
 * for one. */
Test(store_faults, few_calls_hold_the_loop)
{
        enum {
                LARGER = 12,
                MANY = 200
        };
        char add[PATH_MAX];

        for (uint32_t i = 1; i <= MANY; i++)
                flow_file(i, 2000, "../other/s%u", i);
        for (uint32_t i = 1; i <= LARGER; i++)
                flow_file(MANY + i, (4 << 20) + 1, "../other/l%u", i);
        flow.extra = "--fuse-cache";
        flow_faulty_mount(flow.cache);
        flow_start();
        flow_faulty("any delay=0\n");
        snprintf(add, sizeof(add), "add data %s", flow_path("other"));
        few_calls(add, 20);
        few_calls("warmup --disk data --quiet", 60 + 12 * LARGER);
        few_calls("update data --quiet", 12);
        few_calls("warmup --evict data --quiet", 8);
        cr_assert_eq(flow_stat("disk.chunks"), 0);
        few_calls("warmup --disk data --quiet", 60 + 12 * LARGER);
        few_calls("rm data", 12);
        cr_assert(flow_until(20, flow_stat("disk.chunks") == 0));
        flow_stop();
}

/* A large file may take a second to unlink: what gives way to others at the
 * limit leaves beside the loop, for small files and for large ones. */
Test(store_faults, what_gives_way_does_not_hold_the_loop)
{
        enum {
                WHOLE = 8,
                LITTLE = 400
        };
        double before;

        for (uint32_t i = 1; i <= WHOLE; i++) {
                flow_file(i, 5 << 20, "../old/l%u", i);
                flow_file(WHOLE + i, 5 << 20, "../large/l%u", i);
        }
        for (uint32_t i = 1; i <= LITTLE; i++)
                flow_file(2 * WHOLE + i, 100000, "../small/s%u", i);
        flow.extra = "--fuse-cache";
        flow.disk = "56MiB";
        flow_faulty_mount(flow.cache);
        flow_start();
        flow_faulty("any delay=0\n");
        flow_ok("sheaf add old %s && sheaf warmup --disk --quiet old",
                flow_path("old"));
        before = flow_stat("disk.plain_files");
        cr_assert_eq(before, WHOLE);
        flow_ok("sheaf add small %s && sheaf warmup --disk --quiet small",
                flow_path("small"));
        cr_assert_eq(flow_stat_of("small", "dataset.disk_bytes"),
                LITTLE * 100000, "all of it found room");
        cr_assert_lt(flow_stat("disk.plain_files"), before);
        cr_assert_eq(flow_faulty_calls("unlink", flow.daemon), 0,
                "by the loop thread");
        before = flow_stat("disk.segments");
        flow_ok("sheaf add large %s && sheaf warmup --disk --quiet large",
                flow_path("large"));
        cr_assert_gt(flow_stat_of("large", "dataset.disk_bytes"), 4 << 20);
        cr_assert_leq(flow_stat("disk.bytes"), flow_stat("disk.bytes_max"));
        /* Segments are small. */
        cr_assert_leq(flow_faulty_calls("unlink", flow.daemon),
                before - flow_stat("disk.segments"), "by the loop thread");
        flow_stop();
}

/* ---- the directory goes away ---- */

/* The file system dies under the cache: all goes on from memory and origin.
 * A new start finds what was there. */
Test(store_faults, vanishes)
{
        make_set();
        healthy();
        flow_faulty_vanish();
        read_all();
        forget_memory();
        read_all();
        cr_assert(flow_until(30, status_says("the disk tier is degraded")),
                "%s", flow.last.out);
        cr_assert_neq(flow_run("sheaf add more %s", flow.origin), 0);
        cr_assert(flow_live());
        flow_kill();
        flow_faulty_umount();
        cr_assert(!rmdir(flow.cache));
        cr_assert(!rename(flow_path("cache.real"), flow.cache));
        flow_faulty_mount(flow.cache);
        flow_start();
        healthy();
        flow_stop();
}

/* Unmounted lazily, it is still there for who has it open. */
Test(store_faults, unmounted_under_it)
{
        make_set();
        healthy();
        flow_ok("umount -l %s", flow.cache);
        forget_memory();
        read_all();
        cr_assert(flow_live());
        flow_stop();
}

/* What is mapped cannot be read: nobody ends, and nothing is wrong. */
static void mapped_gives_eio(const char *folder)
{
        make_set();
        healthy();
        flow_stop();
        flow_start();
        flow_faulty("read path=%s fail=EIO\n", folder);
        read_all();
        forget_memory();
        read_all();
        cr_assert(flow_live());
        flow_faulty("%s", "");
        healthy();
        flow_stop();
}

Test(store_faults, the_index_gives_eio)
{
        mapped_gives_eio("/catalog");
}
