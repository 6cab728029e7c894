/* SPDX-License-Identifier: Apache-2.0 */
/* Checked plain files: what may be handed out without passing the hash of
 * each read.
 *
 *  1 a file is marked after all its chunks are known to have their digests:
 *    written in this run, or hashed again here; and after it was synced
 *  2 the mark names inode, size, mtime and ctime of then; a file that
 *    differs is unchecked
 *  3 what a read dropped, or a write replaced, while a check ran is no longer
 *    what the check saw: it neither counts that nor drops it
 *  4 a whole file that a stop left unchecked is checked behind, one at a
 *    time, whether somebody wants it or not
 *  5 it is opened through a private read-only mount, since a descriptor of
 *    another kind can be reopened for writing by root in a container */
#include "daemon/store/private.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define CLONE_FLAGS (1 /* OPEN_TREE_CLONE */ | O_CLOEXEC)
#define ATTR_RDONLY UINT64_C(1) /* MOUNT_ATTR_RDONLY */

#define STEP_BUCKETS 256
#define AGAIN_NS     (60 * SHEAF_NS_PER_SEC) /* what could not be marked */

struct check {
        struct sheaf_disk_io io;
        struct sheaf_store *store;
        struct sheaf_plain *plain;
        struct sheaf_digest *digests; /* as they were at the start */
        bool *wrong, *changed;
        bool hash, marking;
        bool behind; /* nobody waits for it */
        int fd, map_fd;
        struct sheaf_disk_mark mark;
};

struct sheaf_plain_lease {
        struct sheaf_store *store;
        struct sheaf_plain *plain;
};

static int64_t ns_of(const struct timespec *ts)
{
        return (int64_t)ts->tv_sec * SHEAF_NS_PER_SEC + ts->tv_nsec;
}

static struct sheaf_disk_mark mark_of(const struct stat *st)
{
        return (struct sheaf_disk_mark){
                .ino = st->st_ino,
                .size_bytes = (uint64_t)st->st_size,
                .mtime_ns = ns_of(&st->st_mtim),
                .ctime_ns = ns_of(&st->st_ctim),
        };
}

bool sheaf_plain_marked(struct sheaf_store *store, struct sheaf_plain *plain)
{
        struct sheaf_disk_mark now;
        struct stat st;
        char name[48];

        if (!plain->marked)
                return false;
        sheaf_plain_name(plain->node, "", name);
        if (fstatat(store->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW))
                return false;
        now = mark_of(&st);
        if (!memcmp(&now, &plain->mark, sizeof(now)))
                return true;
        sheaf_log(SHEAF_LOG_WARN, "store_plain_changed",
                "node=%016llx state=unchecked",
                (unsigned long long)plain->node);
        plain->marked = plain->fresh = false;
        return false;
}

/* pool */
static int hash_all(struct check *check)
{
        struct sheaf_plain *plain = check->plain;
        sheaf_autofree uint8_t *bytes = malloc(SHEAF_CHUNK_BYTES_MAX);

        if (!bytes)
                return -ENOMEM;
        for (uint64_t i = 0; i < plain->chunk_count; i++) {
                uint32_t len = sheaf_chunk_len(plain->size_bytes, i);
                uint64_t at = i * SHEAF_CHUNK_BYTES_MAX;
                struct sheaf_digest digest;
                int rc = sheaf_read_at(check->fd, bytes, len, at);

                if (rc && rc != -ENODATA)
                        return rc;
                sheaf_digest_of(bytes, len, &digest);
                check->wrong[i] =
                        rc || !sheaf_digest_equal(&digest, &check->digests[i]);
                posix_fadvise(check->fd, (off_t)at, len, POSIX_FADV_DONTNEED);
        }
        return 0;
}

/* pool */
static int check_work(struct sheaf_disk_io *io)
{
        struct check *check = (struct check *)io;
        struct stat before, after;
        int rc = 0;

        if (check->marking)
                return sheaf_again(fdatasync(check->map_fd)) ? -errno : 0;
        if (sheaf_again(fdatasync(check->fd)) || fstat(check->fd, &before))
                return -errno;
        if (check->hash)
                rc = hash_all(check);
        if (rc)
                return rc;
        if (fstat(check->fd, &after))
                return -errno;
        check->mark = mark_of(&after);
        if (before.st_mtim.tv_nsec != after.st_mtim.tv_nsec ||
                before.st_mtim.tv_sec != after.st_mtim.tv_sec)
                return -EAGAIN; /* written meanwhile: not to be marked */
        return 0;
}

static void check_free(struct check *check)
{
        free(check->changed);
        free(check->wrong);
        free(check->digests);
        free(check);
}

static void check_end(struct check *check)
{
        struct sheaf_store *store = check->store;
        struct sheaf_plain *plain = check->plain;

        if (check->behind)
                store->check_running = false;
        plain->checking = false;
        plain->changed = NULL;
        sheaf_file_leave(store, &plain->file);
        sheaf_file_leave(store, &plain->map);
        sheaf_plain_leave(store, plain);
        check_free(check);
}

/* Drops what was found wrong; false when there was any. */
static bool drop_wrong(struct check *check)
{
        struct sheaf_store *store = check->store;
        struct sheaf_plain *plain = check->plain;
        bool right = true;

        for (uint64_t i = 0; i < plain->chunk_count; i++) {
                struct sheaf_place place =
                        sheaf_place_of_node(plain->node, i, plain->generation);

                if (!check->wrong[i])
                        continue;
                right = false;
                if (plain->doomed || check->changed[i])
                        continue;
                store->stats.bad_payloads++;
                sheaf_store_drop_place(store, &check->digests[i], &place,
                        sheaf_chunk_len(plain->size_bytes, i));
        }
        return right;
}

static void check_done(struct sheaf_disk_io *io, int rc)
{
        struct check *check = (struct check *)io;
        struct sheaf_store *store = check->store;
        struct sheaf_plain *plain = check->plain;
        struct sheaf_disk_map header;

        /* One that was written anew since has not been hashed: no mark. */
        if (!check->marking && !rc && !drop_wrong(check))
                rc = -EBADMSG;
        if (rc || plain->doomed || !sheaf_plain_complete(plain)) {
                check_end(check);
                return;
        }
        if (!check->marking) {
                plain->mark = check->mark;
                plain->marked = true;
                sheaf_plain_header(store, plain, &header);
                plain->marked = false;
                if (sheaf_write_at(plain->map.fd, &header, sizeof(header), 0)) {
                        check_end(check);
                        return;
                }
                check->marking = true;
                sheaf_disk_submit(store->disk, io);
                return;
        }
        plain->marked = true;
        check_end(check);
}

static void check_start(
        struct sheaf_store *store, struct sheaf_plain *plain, bool behind)
{
        struct check *check;
        char name[48], map_name[48];
        int rc;

        plain->checked_ns = sheaf_now_ns();
        check = sheaf_new(struct check, 1);
        if (!check)
                return;
        check->wrong = sheaf_new(bool, plain->chunk_count);
        check->changed = sheaf_new(bool, plain->chunk_count);
        check->digests = sheaf_new(struct sheaf_digest, plain->chunk_count);
        sheaf_plain_name(plain->node, "", name);
        sheaf_plain_name(plain->node, ".map", map_name);
        rc = check->wrong && check->changed && check->digests ? 0 : -ENOMEM;
        if (!rc)
                rc = sheaf_file_enter(store, &plain->file, name, false);
        if (!rc) {
                rc = sheaf_file_enter(store, &plain->map, map_name, false);
                if (rc)
                        sheaf_file_leave(store, &plain->file);
        }
        if (rc) {
                check_free(check);
                return;
        }
        memcpy(check->digests, plain->digests,
                plain->chunk_count * sizeof(*check->digests));
        check->store = store;
        check->plain = plain;
        check->behind = behind;
        store->check_running |= behind;
        check->hash = !plain->fresh;
        check->fd = plain->file.fd;
        check->map_fd = plain->map.fd;
        check->io.op = SHEAF_DISK_WORK;
        check->io.work = check_work;
        check->io.done = check_done;
        plain->checking = true;
        plain->changed = check->changed;
        sheaf_plain_enter(plain);
        sheaf_disk_submit(store->disk, &check->io);
}

static bool may_check(const struct sheaf_plain *plain)
{
        return !plain->checking && !plain->doomed &&
               sheaf_plain_complete(plain);
}

void sheaf_plain_check(struct sheaf_store *store, struct sheaf_plain *plain)
{
        if (may_check(plain))
                check_start(store, plain, false);
}

void sheaf_plain_check_step(struct sheaf_store *store)
{
        int64_t now_ns = sheaf_now_ns();

        for (int n = 0; n < STEP_BUCKETS; n++) {
                size_t b = store->check_at++ % SHEAF_PLAIN_BUCKETS;

                for (struct sheaf_plain *p = store->plains[b]; p; p = p->next) {
                        if (p->marked || !may_check(p) ||
                                (p->checked_ns &&
                                        now_ns - p->checked_ns < AGAIN_NS))
                                continue;
                        check_start(store, p, true);
                        return;
                }
        }
}

static void sync_name(
        struct sheaf_store *store, uint64_t node, const char *suffix)
{
        char name[48];
        sheaf_autofd int fd = -1;

        sheaf_plain_name(node, suffix, name);
        fd = sheaf_again(
                openat(store->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
        if (fd >= 0 && sheaf_again(fdatasync(fd)))
                store->stats.io_errors++;
}

void sheaf_plain_sync(struct sheaf_store *store)
{
        for (size_t b = 0; b < SHEAF_PLAIN_BUCKETS; b++) {
                for (const struct sheaf_plain *p = store->plains[b]; p;
                        p = p->next) {
                        if (p->marked)
                                continue;
                        sync_name(store, p->node, "");
                        sync_name(store, p->node, ".map");
                }
        }
}

/* struct mount_attr of the kernel; libc may lack it. */
struct attr {
        uint64_t set, clear, propagation, userns_fd;
};

static int readonly_tree(struct sheaf_store *store)
{
        struct attr attr = { .set = ATTR_RDONLY };
        long fd;

        if (store->readonly_tree_fd >= 0)
                return 0;
        if (store->readonly_tree_fd == -2)
                return -EPERM;
        fd = syscall(SYS_open_tree, store->dir_fd, "plain", CLONE_FLAGS);
        if (fd >= 0 && syscall(SYS_mount_setattr, (int)fd, "", AT_EMPTY_PATH,
                               &attr, sizeof(attr))) {
                close((int)fd);
                fd = -1;
        }
        if (fd < 0) {
                int rc = -errno;

                store->readonly_tree_fd = -2;
                return sheaf_log_rc(-EPERM, SHEAF_LOG_INFO,
                        "store_passthrough_off",
                        "cause=\"%s\" need=CAP_SYS_ADMIN", strerror(-rc));
        }
        store->readonly_tree_fd = (int)fd;
        return 0;
}

int sheaf_store_plain(struct sheaf_store *store, struct sheaf_version *version,
        uint32_t entry, int *ret_fd, struct sheaf_plain_lease **ret_lease)
{
        const struct sheaf_listing_entry *e = &version->listing.entries[entry];
        struct sheaf_plain_lease *lease;
        struct sheaf_plain *plain;
        struct stat st;
        char name[48];
        sheaf_autofd int fd = -1;
        int rc;

        if (!S_ISREG(e->mode) || e->size_bytes <= SHEAF_CHUNK_BYTES_MAX)
                return -ENOENT;
        plain = sheaf_plain_find(store, e->node);
        if (!plain || plain->size_bytes != e->size_bytes ||
                !sheaf_plain_complete(plain))
                return -ENOENT;
        for (uint64_t i = 0; i < plain->chunk_count; i++) {
                if (!sheaf_digest_equal(&plain->digests[i],
                            &version->digests[e->first_chunk + i]))
                        return -ENOENT;
        }
        if (!sheaf_plain_marked(store, plain)) {
                sheaf_plain_check(store, plain);
                return -EAGAIN;
        }
        rc = readonly_tree(store);
        if (rc)
                return rc;
        sheaf_plain_name(plain->node, "", name);
        fd = sheaf_again(openat(store->readonly_tree_fd,
                name + strlen("plain/"), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
        if (fd < 0 || fstat(fd, &st) || st.st_ino != plain->mark.ino)
                return -ENOENT;
        lease = sheaf_new(struct sheaf_plain_lease, 1);
        if (!lease)
                return -ENOMEM;
        lease->store = store;
        lease->plain = plain;
        plain->leases++;
        *ret_fd = sheaf_steal_fd(&fd);
        *ret_lease = lease;
        return 0;
}

void sheaf_plain_lease_end(struct sheaf_plain_lease *lease)
{
        struct sheaf_plain *plain;

        if (!lease)
                return;
        plain = lease->plain;
        plain->leases--;
        plain->busy++;
        sheaf_plain_leave(lease->store, plain);
        free(lease);
}
