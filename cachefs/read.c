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
 *  4 an interrupted read is answered with EINTR at once; its worker finds out
 *    and drops the bytes (wait.h) */
#include "cachefs/wait.h"

struct read_ask {
        struct sheaf_wait wait; /* first */
        uint32_t entry;
        uint64_t offset_bytes, len_bytes;
        int64_t begin_ns;
};

#define LONG_WAIT_NS SHEAF_NS_PER_SEC
#define REMEMBER_NS  SHEAF_NS_PER_SEC

static void remember_failure(
        struct sheaf_fs *fs, const struct read_ask *read, int rc)
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

static void run_read(struct sheaf_wait *wait)
{
        struct read_ask *read = (struct read_ask *)wait;
        struct sheaf_fs *fs = wait->fs;
        struct sheaf_view view;
        int rc = -EINTR;

        if (!sheaf_wait_over(wait))
                rc = fs->source.ops->read(fs->source.arg, read->entry,
                        read->offset_bytes, read->len_bytes, true, &view);
        if (!sheaf_wait_claim(wait)) {
                if (!rc)
                        fs->source.ops->release(fs->source.arg, &view);
                return;
        }
        if (rc < 0)
                remember_failure(fs, read, rc);
        if (rc < 0)
                answer_error(fs, wait->req, read->entry, read->offset_bytes, rc,
                        fs->source.ops->why(fs->source.arg));
        else
                answer_view(fs, wait->req, read->entry, read->offset_bytes,
                        read->len_bytes, &view);
}

static int read_later(struct sheaf_fs *fs, fuse_req_t req, uint32_t entry,
        uint64_t offset_bytes, uint64_t len_bytes)
{
        struct read_ask *read = sheaf_new(struct read_ask, 1);
        int rc;

        if (!read)
                return -ENOMEM;
        read->entry = entry;
        read->offset_bytes = offset_bytes;
        read->len_bytes = len_bytes;
        read->begin_ns = sheaf_fs_now_ns();
        rc = sheaf_wait_begin(&read->wait, fs, req, run_read);
        if (rc < 0)
                free(read);
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
