/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the disk answers in time. The loop thread makes short calls to the
 * cache directory; were each of them slow, nobody would be served.
 *
 *  1 a pool thread makes such calls now and then, while the store is used:
 *    when they take long, or do not come back, the disk is slow
 *  2 while it is slow nothing is written, and only what is open is read: all
 *    else comes from memory and origin
 *  3 it ends when the calls are quick again, twice in a row
 *  4 a disk that refused writes is tried with a page, so that its state ends
 *    though nobody writes */
#include "daemon/store/private.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/statvfs.h>

#define SLOW_NS  (4 * SHEAF_NS_PER_SEC) /* a beat: four calls or so */
#define LATE_NS  (3 * SHEAF_NS_PER_SEC) /* calls on the loop thread */
#define QUICK_NS (INT64_C(200) * SHEAF_NS_PER_MS)
#define EVERY_NS (INT64_C(500) * SHEAF_NS_PER_MS)
#define USED_NS  (5 * SHEAF_NS_PER_SEC)

struct sheaf_pulse {
        struct sheaf_disk_io io;
        struct sheaf_store *store;
        _Atomic int64_t began_ns; /* it waits for a thread until then */
        bool writes;              /* does the disk take anything again? */
        int64_t took_ns;
};

/* pool */
static int beat(struct sheaf_disk_io *io)
{
        struct sheaf_pulse *pulse = (struct sheaf_pulse *)io;
        int64_t start_ns = sheaf_now_ns();
        static const uint8_t page[4096];
        struct statvfs fs;
        int fd, rc = 0;

        atomic_store(&pulse->began_ns, start_ns);
        fd = sheaf_again(openat(pulse->store->dir_fd, "pulse",
                O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));

        if (pulse->writes &&
                (fd < 0 || sheaf_write_at(fd, page, sizeof(page), 0) ||
                        sheaf_again(fdatasync(fd))))
                rc = -EIO;
        sheaf_close_p(&fd);
        unlinkat(pulse->store->dir_fd, "pulse", 0);
        (void)!fstatvfs(pulse->store->dir_fd, &fs);
        pulse->took_ns = sheaf_now_ns() - start_ns;
        return rc;
}

static void slow(struct sheaf_store *store)
{
        store->quick_beats = 0;
        if (store->slow)
                return;
        store->slow = true;
        sheaf_append_give_up(store);
        (void)sheaf_space_failed(store, -ETIMEDOUT);
}

static void beat_done(struct sheaf_disk_io *io, int rc)
{
        struct sheaf_pulse *pulse = (struct sheaf_pulse *)io;
        struct sheaf_store *store = pulse->store;

        if (pulse->took_ns >= SLOW_NS)
                slow(store);
        else if (store->slow && pulse->took_ns < QUICK_NS &&
                 ++store->quick_beats >= 2)
                store->slow = false;
        if (!rc && pulse->writes && !store->slow)
                store->disk_short.worked = true;
        store->beat = NULL;
        store->beaten_ns = sheaf_now_ns();
        free(pulse);
}

bool sheaf_pulse_late(struct sheaf_store *store, int64_t start_ns)
{
        if (sheaf_now_ns() - start_ns >= LATE_NS)
                slow(store);
        return store->slow;
}

void sheaf_pulse_step(struct sheaf_store *store)
{
        int64_t now_ns = sheaf_now_ns();
        uint64_t used = store->stats.read_chunks + store->stats.written_chunks +
                        store->stats.refused_full;
        struct sheaf_pulse *pulse;

        if (used != store->used_count) {
                store->used_count = used;
                store->used_ns = now_ns;
        }
        if (store->beat) {
                int64_t began_ns = atomic_load(&store->beat->began_ns);

                if (began_ns && now_ns - began_ns >= SLOW_NS)
                        slow(store);
                return;
        }
        if (store->closing || now_ns - store->beaten_ns < EVERY_NS ||
                (!store->slow && !store->disk_short.refused_ns &&
                        now_ns - store->used_ns >= USED_NS))
                return;
        pulse = sheaf_new(struct sheaf_pulse, 1);
        if (!pulse)
                return;
        pulse->store = store;
        pulse->writes = store->disk_short.refused_ns != 0;
        pulse->io.op = SHEAF_DISK_WORK;
        pulse->io.work = beat;
        pulse->io.done = beat_done;
        store->beat = pulse;
        sheaf_disk_submit(store->disk, &pulse->io);
}
