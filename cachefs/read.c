/* SPDX-License-Identifier: Apache-2.0 */
/* READ: bytes go from the arena to the kernel in one copy.
 *
 *  1 the answer has exactly the bytes that were asked for, cut at the end of
 *    the file and nowhere else, or it is an error: a short answer would be
 *    taken for the end of the file
 *  2 what is in memory is answered at once by the thread that reads
 *    requests; whatever waits does so in a worker
 *  3 a read that failed after a long wait fails at once for a moment: when
 *    its readahead fails, the kernel asks a second time for the first page,
 *    and the reader would wait twice the deadline
 *  4 an interrupted request is answered with EINTR at once, by the thread
 *    that reads requests; its worker finds out and drops the bytes
 *
 * Who answers a waiting request is settled by one exchange of `state`: the
 * worker, or the interrupt. A job is freed by the last of both (`refs`).
 * libfuse calls interrupted() with a lock of the request held; taking the
 * function away waits for that lock, so that it is not running afterwards. */
#include "cachefs/fs_internal.h"

#include <stdatomic.h>

enum read_state {
        READ_WAITING,
        READ_ANSWERED,    /* the worker answers, or did */
        READ_INTERRUPTED, /* the interrupt answers, or did */
};

struct read_job {
        struct sheaf_job job;
        fuse_req_t req;
        struct sheaf_fs *fs;
        uint32_t entry;
        uint64_t offset_bytes, len_bytes;
        int64_t begin_ns;
        _Atomic int state;
        _Atomic int refs;
};

#define LONG_WAIT_NS SHEAF_NS_PER_SEC
#define REMEMBER_NS  SHEAF_NS_PER_SEC

static void remember_failure(
        struct sheaf_fs *fs, const struct read_job *read, int rc)
{
        struct sheaf_failures *failures = &fs->failures;
        int64_t now = sheaf_fs_now_ns();

        if (now - read->begin_ns < LONG_WAIT_NS)
                return;
        pthread_mutex_lock(&failures->lock);
        failures->of[failures->next++ % SHEAF_FAILURES_MAX] =
                (struct sheaf_failure){
                        .until_ns = now + REMEMBER_NS,
                        .begin_bytes = read->offset_bytes,
                        .end_bytes = read->offset_bytes + read->len_bytes,
                        .entry = read->entry,
                        .rc = rc,
                };
        pthread_mutex_unlock(&failures->lock);
}

/* The error that a read at @offset_bytes has just had, or 0. */
static int recent_failure(
        struct sheaf_fs *fs, uint32_t entry, uint64_t offset_bytes)
{
        struct sheaf_failures *failures = &fs->failures;
        int64_t now = sheaf_fs_now_ns();
        int rc = 0;

        pthread_mutex_lock(&failures->lock);
        for (size_t i = 0; !rc && i < SHEAF_FAILURES_MAX; i++) {
                const struct sheaf_failure *failure = &failures->of[i];

                if (failure->until_ns > now && failure->entry == entry &&
                        offset_bytes >= failure->begin_bytes &&
                        offset_bytes < failure->end_bytes)
                        rc = failure->rc;
        }
        pthread_mutex_unlock(&failures->lock);
        return rc;
}

static int error_shown(int rc)
{
        switch (rc) {
        case -EINTR:
        case -ESTALE:
        case -ENOMEM:
                return -rc;
        default:
                return EIO;
        }
}

/* @why: what is known beside the errno, or "". */
static void answer_error(struct sheaf_fs *fs, fuse_req_t req, uint32_t entry,
        uint64_t offset_bytes, int rc, const char *why)
{
        char path[512];

        if (rc != -EINTR) {
                sheaf_source_count(&fs->source, SHEAF_METER_OP_READ_ERRORS, 1);
                sheaf_tree_say(&fs->source, entry, path, sizeof(path));
                sheaf_fs_log(fs,
                        "read failed file=\"%s\" offset=%llu error=\"%s\" "
                        "why=\"%s\"",
                        path, (unsigned long long)offset_bytes, strerror(-rc),
                        why);
        }
        fuse_reply_err(req, error_shown(rc));
}

/* Answers with the pinned bytes and gives them back. */
static void answer_view(struct sheaf_fs *fs, fuse_req_t req, uint32_t entry,
        uint64_t offset_bytes, uint64_t len_bytes, struct sheaf_view *view)
{
        if (view->len_bytes != len_bytes) {
                fs->source.ops->release(fs->source.arg, view);
                answer_error(fs, req, entry, offset_bytes, -EIO,
                        "the view has another length");
                return;
        }
        fuse_reply_iov(req, view->pieces, (int)view->piece_count);
        fs->source.ops->release(fs->source.arg, view);
        sheaf_source_count(&fs->source, SHEAF_METER_OP_READ_BYTES, len_bytes);
}

static void drop(struct read_job *read, int refs)
{
        if (atomic_fetch_sub_explicit(
                    &read->refs, refs, memory_order_acq_rel) == refs)
                free(read);
}

static void interrupted(fuse_req_t req, void *arg)
{
        struct read_job *read = arg;
        int waiting = READ_WAITING;

        if (!atomic_compare_exchange_strong(
                    &read->state, &waiting, READ_INTERRUPTED))
                return;
        fuse_reply_err(req, EINTR);
        drop(read, 1);
}

static void run_read(struct sheaf_job *job)
{
        struct read_job *read = (struct read_job *)job;
        struct sheaf_fs *fs = read->fs;
        struct sheaf_view view;
        int waiting = READ_WAITING, rc = -EINTR;

        if (atomic_load(&read->state) == READ_WAITING)
                rc = fs->source.ops->read(fs->source.arg, read->entry,
                        read->offset_bytes, read->len_bytes, true, &view);
        if (!atomic_compare_exchange_strong(
                    &read->state, &waiting, READ_ANSWERED)) {
                if (!rc)
                        fs->source.ops->release(fs->source.arg, &view);
                drop(read, 1);
                return;
        }
        fuse_req_interrupt_func(read->req, NULL, NULL);
        if (rc < 0)
                remember_failure(fs, read, rc);
        if (rc < 0)
                answer_error(fs, read->req, read->entry, read->offset_bytes, rc,
                        fs->source.ops->why(fs->source.arg));
        else
                answer_view(fs, read->req, read->entry, read->offset_bytes,
                        read->len_bytes, &view);
        drop(read, 2);
}

static int read_later(struct sheaf_fs *fs, fuse_req_t req, uint32_t entry,
        uint64_t offset_bytes, uint64_t len_bytes)
{
        struct read_job *read;
        int rc;

        /* Interrupts come through this very thread: after this look none
         * can be noted before the function is registered, which must not
         * answer while libfuse is still registering it. */
        if (fuse_req_interrupted(req))
                return -EINTR;
        read = sheaf_new(struct read_job, 1);
        if (!read)
                return -ENOMEM;
        read->job.run = run_read;
        read->req = req;
        read->fs = fs;
        read->entry = entry;
        read->offset_bytes = offset_bytes;
        read->len_bytes = len_bytes;
        read->begin_ns = sheaf_fs_now_ns();
        atomic_init(&read->state, READ_WAITING);
        atomic_init(&read->refs, 2);
        fuse_req_interrupt_func(req, interrupted, read);
        rc = sheaf_pool_submit(fs->pool, &read->job);
        if (rc < 0) {
                fuse_req_interrupt_func(req, NULL, NULL);
                free(read);
        }
        return rc;
}

void sheaf_fs_read(fuse_req_t req, fuse_ino_t ino, size_t len_bytes,
        off_t offset_bytes, struct fuse_file_info *fi)
{
        struct sheaf_fs *fs = sheaf_fs_of(req);
        const struct sheaf_listing_entry *entry;
        struct sheaf_view view;
        uint64_t at = (uint64_t)offset_bytes, len = len_bytes;
        uint32_t index;
        int rc;

        (void)fi;
        rc = sheaf_tree_entry(&fs->source, ino, &index);
        if (!rc && !sheaf_listing_is_file(fs->source.listing, index))
                rc = -EISDIR;
        if (!rc && offset_bytes < 0)
                rc = -EINVAL;
        if (rc < 0) {
                fuse_reply_err(req, -rc);
                return;
        }
        entry = &fs->source.listing->entries[index];
        if (at >= entry->size_bytes || !len) {
                fuse_reply_buf(req, NULL, 0);
                return;
        }
        len = SHEAF_MIN(len, entry->size_bytes - at);
        rc = fs->source.ops->read(fs->source.arg, index, at, len, false, &view);
        if (!rc) {
                answer_view(fs, req, index, at, len, &view);
                return;
        }
        if (rc != -EAGAIN) {
                answer_error(fs, req, index, at, rc,
                        fs->source.ops->why(fs->source.arg));
                return;
        }
        rc = recent_failure(fs, index, at);
        if (rc < 0) {
                answer_error(fs, req, index, at, rc, "failed just before");
                return;
        }
        rc = read_later(fs, req, index, at, len);
        if (rc < 0)
                answer_error(fs, req, index, at, rc, "no room to wait");
}
