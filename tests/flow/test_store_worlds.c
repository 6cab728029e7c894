/* SPDX-License-Identifier: Apache-2.0 */
/* The cache on file systems of all kinds, as root and as an ordinary user:
 * what can be written works, whatever feature it lacks. */
#include "tests/flow/faulty.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>

static void begin(void)
{
        flow_init();
        flow_own_fuse_device();
}

TestSuite(store_worlds, .init = begin, .fini = flow_fini, .timeout = 100);

#define FILES       150
#define USER        1 /* one with a name, for fusermount3 */
#define LARGE_BYTES ((8 << 20) + 777)
#define LARGE_ID    1000

/* Sizes around pages, and some that are no multiple of anything. */
static uint64_t size_of(uint32_t id)
{
        return id % 5 == 0 ? 4096 : 1 + id * 37 % 20011;
}

static uint64_t make_set(void)
{
        uint64_t bytes = LARGE_BYTES;

        for (uint32_t i = 1; i <= FILES; i++) {
                flow_file(i, size_of(i), "s/f%03u", i);
                bytes += size_of(i);
        }
        flow_file(LARGE_ID, LARGE_BYTES, "large");
        return bytes;
}

/* ---- the basic test of reads ---- */

/* Exit code of a reader of the mount: it may be its user's alone. */
static int read_mount(const char *dir)
{
        int rc = flow_check(
                flow_path("%s/large", dir), LARGE_ID, LARGE_BYTES, 1 << 20);

        for (uint32_t i = 1; !rc && i <= FILES; i++)
                rc = flow_check(
                        flow_path("%s/s/f%03u", dir, i), i, size_of(i), 7777);
        return -rc;
}

static void by_library(void)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        char path[32];

        cr_assert_eq(flow_open("data", &session, &dataset), 0, "%s",
                sheaf_last_error());
        for (uint32_t i = 1; i <= FILES; i++) {
                snprintf(path, sizeof(path), "s/f%03u", i);
                cr_assert_eq(flow_check_view(dataset, path, i, size_of(i)), 0,
                        "%s: %s", path, sheaf_last_error());
        }
        cr_assert_eq(flow_check_view(dataset, "large", LARGE_ID, LARGE_BYTES),
                0, "%s", sheaf_last_error());
        flow_close(session, dataset);
}

/* O_DIRECT reads of the mount: right bytes at odd offsets and lengths, or
 * EINVAL. */
static int read_oddly(const char *path)
{
        static const struct {
                off_t offset;
                size_t len;
        } odd[] = { { 0, 4096 }, { 4096, 65536 }, { 1, 4096 }, { 511, 513 },
                { 4095, 2 }, { 12345, 54321 }, { LARGE_BYTES - 5, 4096 } };
        sheaf_autofree uint8_t *buf = aligned_alloc(4096, 1 << 17);
        sheaf_autofd int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);

        if (fd < 0)
                return errno == EINVAL ? 0 : errno;
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(odd); i++) {
                size_t want = SHEAF_MIN(
                        odd[i].len, (size_t)(LARGE_BYTES - odd[i].offset));
                ssize_t n = pread(fd, buf, odd[i].len, odd[i].offset);

                if (n < 0 && errno == EINVAL)
                        continue;
                if (n < 0)
                        return errno;
                if (n != (ssize_t)want)
                        return ENODATA;
                if (!flow_stamp_check(
                            buf, LARGE_ID, (uint64_t)odd[i].offset, want))
                        return EBADMSG;
        }
        return 0;
}

static void by_mount(const char *dir)
{
        pid_t pid = flow_fork(flow.uid, 0);
        int rc;

        if (!pid) {
                rc = read_mount(dir);
                _exit(rc ? rc : read_oddly(flow_path("%s/large", dir)));
        }
        rc = flow_join(pid, 60);
        cr_assert_eq(rc, 0, "%s: %s", dir, strerror(rc));
}

static bool on_disk(uint64_t bytes)
{
        flow_ok("sheaf warmup --disk data --quiet || true");
        return flow_stat("dataset.disk_bytes") == (double)bytes;
}

/* Cold, warm, and after a restart, where nothing is asked of the origin. */
static void basic(uid_t uid, uint64_t bytes)
{
        const char *dir = uid ? "mount-user" : "mount";

        flow.uid = uid;
        flow_ok("id");
        cr_assert_eq(flow_run("chown %u:%u %s", uid, uid, flow.cache), 0);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow_path("%s", dir));
        by_mount(dir);
        by_library();
        cr_assert(flow_until(30, on_disk(bytes)), "%g of %llu on disk: %s",
                flow_stat("dataset.disk_bytes"), (unsigned long long)bytes,
                flow.last.err);
        flow_kill();
        flow_start();
        flow_ok("sheaf warmup --evict --memory data");
        by_library();
        by_mount(dir);
        cr_assert_eq(flow_stat("origin.bytes"), 0);
        cr_assert_eq(flow_stat("verify_failures"), 0);
        flow_umount(flow_path("%s", dir));
        flow_stop();
        flow.uid = 0;
}

static void as_both(void)
{
        uint64_t bytes = make_set();

        /* The user's daemon makes its socket here. */
        cr_assert(!chmod(flow.base, 01777));
        flow.memory = "64MiB";
        flow.disk = "256MiB";
        basic(0, bytes);
        cr_assert_eq(flow_run("find %s -mindepth 1 -delete; rm -f %s",
                             flow.cache, flow.log),
                0);
        basic(USER, bytes);
}

static bool log_says(const char *feature)
{
        return flow_run("grep -q 'store_lacks.*feature=\"%s\"' %s", feature,
                       flow.log) == 0;
}

/* ---- the worlds ---- */

static bool mounted(const char *source, const char *type, unsigned long flags,
        const char *options)
{
        cr_assert(!mkdir(flow.cache, 0755) || errno == EEXIST);
        if (!mount(source, flow.cache, type, flags, options))
                return true;
        fprintf(stderr, "SKIP: %s: %s cannot be mounted: %s\n", FLOW_NAME, type,
                strerror(errno));
        return false;
}

Test(store_worlds, tmpfs)
{
        if (mounted("none", "tmpfs", 0, "size=400m"))
                as_both();
}

Test(store_worlds, ramfs)
{
        if (!mounted("none", "ramfs", 0, NULL))
                return;
        as_both();
        cr_assert(log_says("O_DIRECT"));
        cr_assert(log_says("fallocate"));
}

Test(store_worlds, overlayfs)
{
        char options[512];

        cr_assert(!mkdir(flow.cache, 0755));
        if (!mounted("none", "tmpfs", 0, "size=400m"))
                return;
        cr_assert(!mkdir(flow_path("cache/low"), 0755) &&
                  !mkdir(flow_path("cache/up"), 0755) &&
                  !mkdir(flow_path("cache/work"), 0755));
        snprintf(options, sizeof(options),
                "lowerdir=%s/low,upperdir=%s/up,workdir=%s/work", flow.cache,
                flow.cache, flow.cache);
        if (mounted("overlay", "overlay", 0, options))
                as_both();
}

Test(store_worlds, noexec_nosuid_nodev)
{
        if (mounted("none", "tmpfs", MS_NOEXEC | MS_NOSUID | MS_NODEV,
                    "size=400m"))
                as_both();
}

Test(store_worlds, fuse)
{
        flow.extra = "--fuse-cache";
        flow_faulty_mount(flow.cache);
        as_both();
}

Test(store_worlds, fuse_without_features)
{
        flow.extra = "--fuse-cache";
        flow_faulty_mount(flow.cache);
        flow_faulty("direct fail=EINVAL\n"
                    "allocate fail=EOPNOTSUPP\n");
        as_both();
        cr_assert(log_says("O_DIRECT"));
        cr_assert(log_says("fallocate"));
        cr_assert(log_says("holes"));
}

/* ext4 over a loop device with sectors of @sector bytes. */
static bool over_sectors(int sector)
{
        const char *image = flow_path("image");
        char device[64];

        cr_assert_eq(flow_run("truncate -s 400M %s", image), 0);
        if (flow_run("losetup --show -f -b %d %s", sector, image)) {
                fprintf(stderr, "SKIP: %s: no loop device: %s\n", FLOW_NAME,
                        flow.last.err);
                return false;
        }
        snprintf(device, sizeof(device), "%.*s",
                (int)strcspn(flow.last.out, "\n"), flow.last.out);
        /* Gone with the last user of it, however the test ends. */
        cr_assert_eq(flow_run("mkfs.ext4 -q -b 4096 %s && mkdir -p %s && "
                              "mount -t ext4 %s %s; rc=$?; losetup -d %s; "
                              "exit $rc",
                             device, flow.cache, device, flow.cache, device),
                0, "%s", flow.last.err);
        return true;
}

Test(store_worlds, sectors_of_512_bytes)
{
        if (over_sectors(512))
                as_both();
}

Test(store_worlds, sectors_of_4096_bytes)
{
        if (over_sectors(4096))
                as_both();
}

/* ---- what cannot be written, or not be trusted ---- */

/* The daemon must not start, and say why within 5 s. */
static void refused(const char *arguments, const char *why)
{
        char text[512];
        pid_t pid;
        int rc;

        snprintf(text, sizeof(text),
                "--foreground --cache %s --socket %s --memory 64MiB --disk "
                "128MiB %s",
                flow.cache, flow.socket, arguments);
        unlink(flow.log);
        pid = flow_spawn(flow.log, text);
        rc = flow_join(pid, 20);
        cr_assert_gt(rc, 0);
        cr_assert_eq(flow_run("grep -qi -e '%s' %s", why, flow.log), 0,
                "'%s' is not told", why);
        cr_assert_eq(flow_run("grep -q 'remedy=' %s", flow.log), 0);
}

Test(store_worlds, read_only_is_refused)
{
        if (!mounted("none", "tmpfs", 0, "size=64m"))
                return;
        cr_assert(!mount(
                NULL, flow.cache, NULL, MS_REMOUNT | MS_RDONLY, "size=64m"));
        refused("", "read-only");
        cr_assert(!mount(NULL, flow.cache, NULL, MS_REMOUNT, "size=64m"));
        flow_start();
        flow_stop();
}

Test(store_worlds, fuse_is_refused_unless_it_is_called_local)
{
        flow_faulty_mount(flow.cache);
        refused("", "--fuse-cache");
}

Test(store_worlds, locks_that_do_not_work_are_refused)
{
        flow_faulty_mount(flow.cache);
        flow_faulty("lock fail=ENOLCK\n");
        refused("--fuse-cache", "No locks available");
        flow_faulty("%s", "");
        flow.extra = "--fuse-cache";
        flow_start();
        flow_stop();
}
