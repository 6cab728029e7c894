/* SPDX-License-Identifier: Apache-2.0 */
/* The disk of the cache is full, of bytes or of inodes, by others or by the
 * index: all reads are right, nothing partial stays, the log is quiet, and
 * caching resumes when there is room. */
#include "tests/flow/faulty.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

TestSuite(store_full, .init = flow_init, .fini = flow_fini, .timeout = 100);

#define FILES      200
#define FILE_BYTES (UINT64_C(1) << 20)
#define HUGE_ID    1000
#define HUGE_BYTES (UINT64_C(100) << 20)
#define LOG_MAX    (UINT64_C(256) << 10)

static bool status_says(const char *what)
{
        flow_ok("sheaf status");
        return strstr(flow.last.out, what) != NULL;
}

/* From the last to the first nothing is read ahead. */
static void by_library(uint32_t from, uint32_t to)
{
        int step = from > to ? -1 : 1;
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        char name[16];

        cr_assert_eq(flow_open("data", &session, &dataset), 0, "%s",
                sheaf_last_error());
        for (uint32_t i = from; i != to + step; i += step) {
                snprintf(name, sizeof(name), "f%03u", i);
                cr_assert_eq(flow_check_view(dataset, name, i, FILE_BYTES), 0,
                        "%s: %s", name, sheaf_last_error());
        }
        flow_close(session, dataset);
}

static void by_mount(uint32_t from, uint32_t to)
{
        for (uint32_t i = from; i <= to; i++)
                cr_assert_eq(flow_check(flow_path("mount/f%03u", i), i,
                                     FILE_BYTES, 1 << 17),
                        0, "file %u", i);
}

static void huge_by_mount(void)
{
        cr_assert_eq(flow_check(flow_path("mount/huge"), HUGE_ID, HUGE_BYTES,
                             1 << 20),
                0);
}

/* The cache on a file system of 64 MiB and few inodes, of which it thinks it
 * may use more. */
static void begin_beside(uint64_t foreign_bytes)
{
        for (uint32_t i = 1; i <= FILES; i++)
                flow_file(i, FILE_BYTES, "f%03u", i);
        flow_file(HUGE_ID, HUGE_BYTES, "huge");
        cr_assert(!mkdir(flow.cache, 0755));
        cr_assert(!mount(
                "none", flow.cache, "tmpfs", 0, "size=64m,nr_inodes=200"));
        if (foreign_bytes)
                flow_ok("head -c %llu /dev/zero >%s/foreign",
                        (unsigned long long)foreign_bytes, flow.cache);
        flow.memory = "32MiB";
        flow.extra = "--floor 0";
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
}

static void begin(void)
{
        begin_beside(0);
}

static uint64_t free_bytes(void)
{
        struct statvfs fs;

        cr_assert(!statvfs(flow.cache, &fs));
        return fs.f_bavail * fs.f_bsize;
}

static void log_is_quiet(void)
{
        struct stat st;

        cr_assert(!stat(flow.log, &st));
        cr_assert_leq((uint64_t)st.st_size, LOG_MAX);
        flow_ok("! grep -c store_degraded %s | grep -vE '^[0-9]$'", flow.log);
}

/* What status counts is what verify finds, and it is right. */
static void nothing_partial(void)
{
        flow_ok("sheaf verify data --cache-only --quiet");
        cr_assert_eq(flow_stat("verify_failures"), 0);
        cr_assert_eq(flow_stat("disk.bad_headers"), 0);
        cr_assert_eq(flow_stat("disk.bad_payloads"), 0);
}

static bool resumed(void)
{
        flow_run("sheaf warmup data f001 f002 f003 --disk --quiet");
        return flow_stat("dataset.disk_bytes") > 0 &&
               !status_says("the disk tier is degraded");
}

Test(store_full, by_itself_and_by_others)
{
        double refused;

        begin();
        by_library(1, FILES);
        huge_by_mount();
        cr_assert(status_says("full or at its floor"), "%s", flow.last.out);
        cr_assert_gt(flow_stat("disk.refused_full"), 0);
        nothing_partial();
        /* What is evicted leaves its room to the cache; others get the rest. */
        flow_ok("sheaf warmup --evict --disk data --quiet");
        flow_run("dd if=/dev/zero of=%s/foreign bs=1M", flow.cache);
        flow_run("dd if=/dev/zero of=%s/foreign2 bs=4096", flow.cache);
        cr_assert_eq(free_bytes(), 0);
        refused = flow_stat("disk.refused_full");
        by_mount(1, 60);
        by_library(61, 120);
        by_library(61, 120);
        huge_by_mount();
        cr_assert(status_says("full or at its floor"), "%s", flow.last.out);
        cr_assert_gt(flow_stat("disk.refused_full"), refused, "not counted");
        nothing_partial();
        log_is_quiet();
        flow_kill();
        flow_start();
        by_mount(121, 140);
        by_library(121, 140);
        cr_assert(status_says("full or at its floor"), "%s", flow.last.out);
        flow_ok("rm %s/foreign %s/foreign2", flow.cache, flow.cache);
        flow_ok("sheaf warmup --evict --disk data --quiet");
        cr_assert(flow_until(30, resumed()), "%s", flow.last.out);
        by_library(1, 20);
        nothing_partial();
        log_is_quiet();
        flow_umount(flow.mount);
        flow_stop();
}

/* Reads what fits, as anybody does: that all of it is on disk then, but for
 * what stays in memory; and nothing is degraded any more. */
static bool filled_again(uint32_t files)
{
        double before = flow_stat("origin.bytes"), kept;

        by_library(1, files);
        kept = flow_stat("disk.payload_bytes") +
               flow_stat_of("data", "dataset.stock_bytes");
        return flow_stat("origin.bytes") == before &&
               kept >= (double)(files * FILE_BYTES) &&
               !status_says("the disk tier is degraded");
}

/* Others took nearly all before the cache began. When they leave, reads alone
 * fill the disk and end the state. */
static void room_comes_back(bool killed)
{
        const uint32_t fits = 44; /* on the disk, but not in memory */

        begin_beside(UINT64_C(56) << 20);
        by_library(1, fits);
        by_mount(fits + 1, 64);
        if (killed) {
                flow_kill();
                flow_start();
                by_library(1, fits);
        }
        cr_assert(status_says("full or at its floor"), "%s", flow.last.out);
        cr_assert_lt(flow_stat("disk.payload_bytes"), 10 << 20);
        flow_ok("rm %s/foreign", flow.cache);
        cr_assert(flow_until(30, filled_again(fits)), "%g bytes are on disk",
                flow_stat("disk.payload_bytes"));
        nothing_partial();
        log_is_quiet();
        flow_umount(flow.mount);
        flow_stop();
}

Test(store_full, room_comes_back)
{
        room_comes_back(false);
}

Test(store_full, room_comes_back_after_a_kill)
{
        room_comes_back(true);
}

/* Nobody reads it again, and nothing is read for it. */
Test(store_full, what_memory_has_is_written_then)
{
        const uint32_t files = 16;
        double read;

        begin_beside(UINT64_C(60) << 20);
        by_library(files, 1);
        cr_assert(status_says("full or at its floor"), "%s", flow.last.out);
        cr_assert_lt(flow_stat("disk.payload_bytes"),
                (double)((files - 4) * FILE_BYTES));
        read = flow_stat("origin.bytes");
        cr_assert_eq(read, (double)(files * FILE_BYTES));
        flow_ok("rm %s/foreign", flow.cache);
        cr_assert(flow_until(40, flow_stat("disk.payload_bytes") == read),
                "%g bytes are on disk", flow_stat("disk.payload_bytes"));
        cr_assert_eq(flow_stat("origin.bytes"), read);
        cr_assert_not(status_says("the disk tier is degraded"));
        flow_umount(flow.mount);
        flow_stop();
        flow_start();
        by_library(files, 1);
        cr_assert_eq(flow_stat("origin.bytes"), 0);
        nothing_partial();
        flow_stop();
}

Test(store_full, no_inodes)
{
        begin();
        by_library(1, 10);
        flow_run(
                "i=0; while : > %s/plain/x$i; do i=$((i+1)); done", flow.cache);
        cr_assert_neq(flow_run(": > %s/y", flow.cache), 0);
        /* Large files need inodes; small ones a segment that may be there. */
        by_library(1, 100);
        huge_by_mount();
        cr_assert(status_says("full or at its floor"), "%s", flow.last.out);
        flow_kill();
        flow_start();
        by_mount(101, 140);
        huge_by_mount();
        flow_ok("find %s/plain -name 'x*' -delete", flow.cache);
        flow_ok("sheaf warmup --evict --disk data --quiet");
        cr_assert(flow_until(30, resumed()), "%s", flow.last.out);
        nothing_partial();
        log_is_quiet();
        flow_umount(flow.mount);
        flow_stop();
}

/* The index alone cannot be written: no read minds, and changes of datasets
 * are refused with the cause, nothing half done. */
Test(store_full, index)
{
        flow.extra = "--fuse-cache";
        for (uint32_t i = 1; i <= 30; i++)
                flow_file(i, FILE_BYTES, "f%03u", i);
        flow_faulty_mount(flow.cache);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_faulty("write,sync path=/catalog fail=ENOSPC\n");
        by_library(1, 30);
        cr_assert_neq(flow_run("sheaf add more %s", flow.origin), 0);
        cr_assert(strstr(flow.last.err, "No space left") ||
                          strstr(flow.last.err, "space"),
                "%s", flow.last.err);
        cr_assert_neq(flow_run("sheaf ls more"), 0);
        cr_assert_neq(flow_run("sheaf rm data"), 0);
        cr_assert_neq(flow_run("sheaf seal data"), 0);
        flow_ok("sheaf ls data");
        cr_assert(!strstr(flow.last.out, "\n  digest "), "%s", flow.last.out);
        by_library(1, 30);
        cr_assert(flow_live());
        flow_faulty("%s", "");
        flow_ok("sheaf seal data && sheaf ls data");
        cr_assert_not_null(strstr(flow.last.out, "\n  digest "));
        flow_ok("sheaf add more %s", flow.origin);
        flow_ok("sheaf rm more");
        flow_ok("sheaf warmup data --disk");
        flow_kill();
        flow_start();
        by_library(1, 30);
        cr_assert_eq(flow_stat("origin.bytes"), 0);
        flow_stop();
}
