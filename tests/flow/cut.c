/* SPDX-License-Identifier: Apache-2.0 */
/* Recorded disks and the states they may have after a power cut.
 *
 *  1 a write is durable when a flush was logged after it; before that each
 *    of its sectors is kept or lost by itself
 *  2 writes that are kept are applied in their order: an older one never
 *    covers a newer one that was kept
 *  3 an image is written whole for each state: what the last one's file
 *    system did to it is gone */
#include "tests/flow/cut.h"

#include "tests/fakes/block_log.h"
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define OPTIONS "errors=remount-ro,commit=1"

/* A mount namespace of the test's own: whoever copies namespaces meanwhile
 * does not keep its disks busy, and it does not keep others' mounts. */
static const char *alone(void)
{
        char line[8192], at[4096];
        FILE *file;

        if (unshare(CLONE_NEWNS) ||
                mount("none", "/", NULL, MS_REC | MS_SLAVE, NULL))
                return "no mount namespace";
        file = fopen("/proc/self/mounts", "re");
        while (file && fgets(line, sizeof(line), file))
                if (sscanf(line, "%*s %4095s", at) == 1 &&
                        !strncmp(at, "/tmp/", 5))
                        umount2(at, MNT_DETACH);
        if (file)
                fclose(file);
        return NULL;
}

void cut_require(void)
{
        const char *why = NULL;
        int fd = open("/dev/loop-control", O_RDWR | O_CLOEXEC);

        if (fd < 0 || ioctl(fd, LOOP_CTL_GET_FREE) < 0)
                why = "no loop device";
        else if (system("command -v mkfs.ext4 >/dev/null"))
                why = "no mkfs.ext4";
        else
                why = alone();
        sheaf_close_p(&fd);
        if (!why)
                return;
        fprintf(stderr, "SKIP: %s: %s\n", FLOW_NAME, why);
        cr_skip_test("%s", why);
}

/* ---- mounting ---- */

/* Without devtmpfs a new device has no node. */
static int open_loop(long number, char device[32])
{
        int fd;

        snprintf(device, 32, "/dev/loop%ld", number);
        fd = open(device, O_RDWR | O_CLOEXEC);
        if (fd >= 0 || errno != ENOENT)
                return fd;
        if (mknod(device, S_IFBLK | 0600, makedev(7, (unsigned int)number)) &&
                errno != EEXIST)
                return -1;
        return open(device, O_RDWR | O_CLOEXEC);
}

/* Keeps @ret_fd open: the device is cleared when it and the mount are gone. */
static int attach(int file_fd, char ret_device[32], int *ret_fd)
{
        sheaf_autofd int control =
                open("/dev/loop-control", O_RDWR | O_CLOEXEC);
        struct loop_config config = { .fd = (uint32_t)file_fd,
                .info.lo_flags = LO_FLAGS_AUTOCLEAR };

        if (control < 0)
                return -errno;
        /* Others take devices too. */
        for (int tries = 0; tries < 1000; tries++) {
                long number = ioctl(control, LOOP_CTL_GET_FREE);
                sheaf_autofd int fd = -1;

                if (number < 0)
                        return -errno;
                fd = open_loop(number, ret_device);
                if (fd < 0)
                        return -errno;
                if (!ioctl(fd, LOOP_CONFIGURE, &config)) {
                        /* Whoever looks at devices may have kept pages of
                         * what this one was before. */
                        ioctl(fd, BLKFLSBUF, 0);
                        *ret_fd = sheaf_steal_fd(&fd);
                        return 0;
                }
                if (errno != EBUSY)
                        return -errno;
                flow_sleep(0.001);
        }
        return -EBUSY;
}

int cut_mount(int file_fd, const char *at)
{
        sheaf_autofd int fd = -1;
        char device[32];
        int rc = attach(file_fd, device, &fd);

        if (rc)
                return rc;
        return mount(device, at, "ext4", MS_NOATIME, OPTIONS) ? -errno : 0;
}

int cut_umount(const char *at)
{
        double end = flow_now() + 20;

        while (umount2(at, 0)) {
                if (errno != EBUSY || flow_now() > end)
                        return -errno;
                flow_sleep(0.005);
        }
        return 0;
}

/* ---- a recorded disk ---- */

int cut_image_new(uint64_t bytes)
{
        int fd = memfd_create("sheaf-disk", 0);

        cr_assert(fd >= 0 && !ftruncate(fd, (off_t)bytes));
        flow_ok("mkfs.ext4 -q -F -b 4096 -E "
                "nodiscard,lazy_itable_init=0,lazy_journal_init=0 "
                "/proc/%d/fd/%d",
                (int)getpid(), fd);
        return fd;
}

static void start_recorder(struct cut_disk *disk)
{
        char image[32];

        snprintf(image, sizeof(image), "/proc/self/fd/%d", disk->image_fd);
        disk->recorder = flow_fork(0, 0);
        cr_assert(disk->recorder >= 0);
        if (!disk->recorder) {
                execlp("block-recorder", "block-recorder", image, disk->log,
                        disk->fuse, (char *)NULL);
                _exit(97);
        }
}

void cut_disk_begin(
        struct cut_disk *disk, const char *name, int image_fd, const char *at)
{
        char path[128];
        int fd, rc;

        *disk = (struct cut_disk){ .image_fd = image_fd };
        snprintf(disk->fuse, sizeof(disk->fuse), "%s/rec-%s", flow.base, name);
        snprintf(disk->log, sizeof(disk->log), "%s/log-%s", flow.base, name);
        snprintf(disk->at, sizeof(disk->at), "%s", at);
        mkdir(disk->fuse, 0700);
        mkdir(disk->at, 0700);
        start_recorder(disk);
        snprintf(path, sizeof(path), "%s/disk", disk->fuse);
        cr_assert(flow_until(20, (fd = open(path, O_RDWR | O_CLOEXEC)) >= 0),
                "no recorder");
        rc = cut_mount(fd, at);
        cr_assert_eq(rc, 0, "mount: %s", strerror(-rc));
        close(fd);
}

void cut_disk_mark(struct cut_disk *disk, const char *format, ...)
{
        char path[128], text[256];
        va_list args;
        int n, fd;

        va_start(args, format);
        n = vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        snprintf(path, sizeof(path), "%s/mark", disk->fuse);
        fd = open(path, O_WRONLY | O_CLOEXEC);
        cr_assert(fd >= 0 && write(fd, text, (size_t)n) == n, "%s", path);
        close(fd);
}

void cut_disk_end(struct cut_disk *disk)
{
        int rc = cut_umount(disk->at);

        cr_assert_eq(rc, 0, "umount: %s", strerror(-rc));
        /* The loop device lets go of the recorder's file a moment later. */
        rc = cut_umount(disk->fuse);
        cr_assert_eq(rc, 0, "umount: %s", strerror(-rc));
        cr_assert_eq(flow_wait(disk->recorder, 20), 0, "the recorder failed");
}

/* ---- its log ---- */

void cut_log_open(const char *path, struct cut_log *ret_log)
{
        sheaf_autofd int fd = open(path, O_RDONLY | O_CLOEXEC);
        struct cut_log log = { 0 };
        size_t cap = 0, at = 0;
        struct stat st;

        cr_assert(fd >= 0 && !fstat(fd, &st) && st.st_size > 0, "%s", path);
        log.map_bytes = (size_t)st.st_size;
        log.map = mmap(NULL, log.map_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        cr_assert_neq(log.map, MAP_FAILED);
        while (at < log.map_bytes) {
                struct block_record head;

                memcpy(&head, (uint8_t *)log.map + at, sizeof(head));
                if (log.count == cap) {
                        cap = cap ? 2 * cap : 4096;
                        log.events =
                                realloc(log.events, cap * sizeof(*log.events));
                        cr_assert(log.events);
                }
                at += sizeof(head);
                log.events[log.count++] =
                        (struct cut_event){ head.kind, head.len_bytes,
                                head.offset_bytes, (uint8_t *)log.map + at };
                log.flushes += head.kind == BLOCK_FLUSH;
                log.writes += head.kind == BLOCK_WRITE;
                at += sheaf_round_up(head.len_bytes, 8);
        }
        *ret_log = log;
}

void cut_log_close(struct cut_log *log)
{
        munmap(log->map, log->map_bytes);
        free(log->events);
        *log = (struct cut_log){ 0 };
}

/* ---- states ---- */

static void *pages(uint64_t bytes)
{
        void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        cr_assert_neq(map, MAP_FAILED);
        return map;
}

/* What is not a hole of the image. */
static void load(struct cut_tape *tape, int fd)
{
        off_t at = 0, end;

        while ((at = lseek(fd, at, SEEK_DATA)) >= 0) {
                end = lseek(fd, at, SEEK_HOLE);
                for (; at < end; at += CUT_BLOCK) {
                        cr_assert_eq(
                                pread(fd, tape->durable + at, CUT_BLOCK, at),
                                CUT_BLOCK);
                        tape->used[at / CUT_BLOCK] = 1;
                }
        }
}

void cut_tape_open(
        struct cut_tape *tape, const struct cut_log *log, int before_fd)
{
        struct stat st;

        *tape = (struct cut_tape){ .log = log };
        cr_assert(!fstat(before_fd, &st));
        tape->bytes = (uint64_t)st.st_size;
        tape->durable = pages(tape->bytes);
        tape->scratch = pages(tape->bytes);
        tape->used = pages(tape->bytes / CUT_BLOCK);
        load(tape, before_fd);
}

void cut_tape_close(struct cut_tape *tape)
{
        munmap(tape->durable, tape->bytes);
        munmap(tape->scratch, tape->bytes);
        munmap(tape->used, tape->bytes / CUT_BLOCK);
}

static void use(struct cut_tape *tape, const struct cut_event *event)
{
        uint64_t from = event->offset_bytes / CUT_BLOCK;
        uint64_t to = (event->offset_bytes + event->len_bytes - 1) / CUT_BLOCK;

        memset(tape->used + from, 1, to - from + 1);
}

void cut_tape_seek(struct cut_tape *tape, size_t event)
{
        const struct cut_event *events = tape->log->events;
        size_t last = tape->flushed;

        cr_assert(event >= tape->at && event <= tape->log->count);
        tape->at = event;
        for (size_t i = tape->flushed; i < event; i++)
                if (events[i].kind == BLOCK_FLUSH)
                        last = i;
        for (size_t i = tape->flushed; i < last; i++) {
                if (events[i].kind != BLOCK_WRITE)
                        continue;
                memcpy(tape->durable + events[i].offset_bytes, events[i].data,
                        events[i].len_bytes);
                use(tape, &events[i]);
        }
        tape->flushed = last;
}

size_t cut_tape_pending(const struct cut_tape *tape)
{
        size_t count = 0;

        for (size_t i = tape->flushed; i < tape->at; i++)
                count += tape->log->events[i].kind == BLOCK_WRITE;
        return count;
}

static uint64_t draw(uint64_t *state)
{
        uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

        x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
        return x ^ x >> 31;
}

/* How a state treats its pending writes. */
struct choice {
        uint64_t state;
        unsigned int keep; /* of 256 */
        uint32_t unit;     /* sector, block; 0: writes are whole */
        bool torn;         /* a write keeps only its beginning or its end */
};

static struct choice choose(uint64_t seed)
{
        static const unsigned int keeps[] = { 8, 64, 128, 192, 248 };
        struct choice c = { .state = seed * UINT64_C(0xd1342543de82ef95) };

        c.keep = keeps[draw(&c.state) % SHEAF_ARRAY_LEN(keeps)];
        switch (draw(&c.state) % 4) {
        case 0:
                c.unit = CUT_SECTOR;
                break;
        case 1:
                c.unit = CUT_BLOCK;
                break;
        case 2:
                c.unit = CUT_SECTOR;
                c.torn = true;
                break;
        default:
                break;
        }
        return c;
}

/* Applies what is kept of one write; the number of sectors lost. */
static uint64_t apply(struct choice *c, uint8_t *to, const struct cut_event *e)
{
        uint32_t unit = c->unit ? c->unit : e->len_bytes, from = 0;
        uint32_t len = e->len_bytes, lost = 0;

        if (c->torn && draw(&c->state) % 256 >= c->keep / 2) {
                uint32_t at = (uint32_t)(draw(&c->state) % (len / unit + 1));

                if (draw(&c->state) & 1)
                        from = at * unit;
                else
                        len = at * unit;
                memcpy(to + from, e->data + from, len - from);
                return (e->len_bytes - (len - from)) / CUT_SECTOR;
        }
        for (; from < len; from += unit) {
                uint32_t part = SHEAF_MIN(unit, len - from);

                if (!c->torn && draw(&c->state) % 256 >= c->keep)
                        lost += part / CUT_SECTOR;
                else
                        memcpy(to + from, e->data + from, part);
        }
        return lost;
}

/* Runs of used blocks; the rest are holes again. */
static void write_image(
        const struct cut_tape *tape, const uint8_t *from, int fd)
{
        uint64_t blocks = tape->bytes / CUT_BLOCK, b = 0;

        cr_assert(!ftruncate(fd, 0) && !ftruncate(fd, (off_t)tape->bytes));
        while (b < blocks) {
                uint64_t end = b;

                while (end < blocks && tape->used[end])
                        end++;
                for (uint64_t at = b * CUT_BLOCK; at < end * CUT_BLOCK;) {
                        ssize_t n = pwrite(
                                fd, from + at, end * CUT_BLOCK - at, (off_t)at);

                        cr_assert(n > 0);
                        at += (uint64_t)n;
                }
                b = end + 1;
        }
}

uint64_t cut_tape_state(struct cut_tape *tape, uint64_t seed, int image_fd)
{
        const struct cut_event *events = tape->log->events;
        struct choice c =
                seed > 1 ? choose(seed) : (struct choice){ .keep = 256 };
        uint64_t lost = 0;

        if (!seed) {
                write_image(tape, tape->durable, image_fd);
                return 0;
        }
        /* Blocks that pending writes touch live in scratch meanwhile. */
        for (size_t i = tape->flushed; i < tape->at; i++) {
                const struct cut_event *e = &events[i];
                uint64_t from = e->offset_bytes / CUT_BLOCK * CUT_BLOCK;

                if (e->kind != BLOCK_WRITE)
                        continue;
                use(tape, e);
                memcpy(tape->scratch + from, tape->durable + from,
                        sheaf_round_up(
                                e->offset_bytes + e->len_bytes, CUT_BLOCK) -
                                from);
        }
        for (size_t i = tape->flushed; i < tape->at; i++) {
                if (events[i].kind == BLOCK_WRITE)
                        lost += apply(&c,
                                tape->durable + events[i].offset_bytes,
                                &events[i]);
        }
        write_image(tape, tape->durable, image_fd);
        for (size_t i = tape->flushed; i < tape->at; i++) {
                const struct cut_event *e = &events[i];

                if (e->kind == BLOCK_WRITE)
                        memcpy(tape->durable + e->offset_bytes,
                                tape->scratch + e->offset_bytes, e->len_bytes);
        }
        return lost;
}
