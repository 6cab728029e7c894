/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers that answer from the listing.
 *
 *  1 none waits, except for values of extended attributes, which workers get
 *  2 a handler answers its request exactly once
 *  3 lookups are not counted: every node can be found again by its id, so
 *    the kernel may forget as it likes
 *
 * Threads: all run in the thread that reads requests. */
#include "cachefs/jobs.h"

#include <limits.h>
#include <stdio.h>

static void fill_entry(
        struct sheaf_fs *fs, uint32_t entry, struct fuse_entry_param *ret_param)
{
        struct fuse_entry_param out = {
                .attr_timeout = SHEAF_FS_TIMEOUT_SEC,
                .entry_timeout = SHEAF_FS_TIMEOUT_SEC,
        };

        sheaf_tree_stat(&fs->source, entry, &out.attr);
        out.ino = out.attr.st_ino;
        *ret_param = out;
}

void sheaf_fs_reply_nothing(fuse_req_t req)
{
        /* node 0 lets the kernel remember it */
        const struct fuse_entry_param param = { .entry_timeout =
                                                        SHEAF_FS_TIMEOUT_SEC };

        fuse_reply_entry(req, &param);
}

static void fs_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
        struct sheaf_fs *fs = sheaf_fs_of(req);
        struct fuse_entry_param param;
        uint32_t dir, entry;
        int rc;

        if (sheaf_jobs_own(fs->jobs, parent, name)) {
                sheaf_jobs_lookup(req, parent, name);
                return;
        }
        rc = sheaf_tree_entry(&fs->source, parent, &dir);
        if (!rc)
                rc = sheaf_tree_child(&fs->source, dir, name, &entry);
        if (rc == -ENOENT) {
                sheaf_fs_reply_nothing(req);
                return;
        }
        if (rc < 0) {
                fuse_reply_err(req, -rc);
                return;
        }
        fill_entry(fs, entry, &param);
        fuse_reply_entry(req, &param);
}

static void fs_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
        (void)ino;
        (void)nlookup;
        fuse_reply_none(req);
}

static void fs_forget_multi(
        fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
        (void)count;
        (void)forgets;
        fuse_reply_none(req);
}

static void fs_getattr(
        fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
        struct sheaf_fs *fs = sheaf_fs_of(req);
        struct stat attr;
        uint32_t entry;
        int rc;

        (void)fi;
        if (sheaf_jobs_own(fs->jobs, ino, NULL)) {
                sheaf_jobs_getattr(req, ino);
                return;
        }
        rc = sheaf_tree_entry(&fs->source, ino, &entry);
        if (rc < 0) {
                fuse_reply_err(req, -rc);
                return;
        }
        sheaf_tree_stat(&fs->source, entry, &attr);
        fuse_reply_attr(req, &attr, SHEAF_FS_TIMEOUT_SEC);
}

static void fs_readlink(fuse_req_t req, fuse_ino_t ino)
{
        struct sheaf_fs *fs = sheaf_fs_of(req);
        char target[PATH_MAX];
        const char *text;
        uint32_t entry;
        size_t len;
        int rc;

        if (sheaf_jobs_own(fs->jobs, ino, NULL)) {
                sheaf_jobs_readlink(req, ino);
                return;
        }
        rc = sheaf_tree_entry(&fs->source, ino, &entry);
        if (!rc && !S_ISLNK(fs->source.listing->entries[entry].mode))
                rc = -EINVAL;
        if (rc < 0) {
                fuse_reply_err(req, -rc);
                return;
        }
        text = sheaf_listing_target(fs->source.listing, entry, &len);
        if (len >= sizeof(target)) {
                fuse_reply_err(req, ENAMETOOLONG);
                return;
        }
        memcpy(target, text, len);
        target[len] = '\0';
        fuse_reply_readlink(req, target);
}

/* No handle is kept of a directory: the kernel stops asking. */
static void fs_opendir(
        fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
        (void)ino;
        (void)fi;
        fuse_reply_err(req, ENOSYS);
}

static void fs_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
        (void)ino;
        (void)fi;
        fuse_reply_err(req, ENOSYS);
}

bool sheaf_dir_add(struct sheaf_dir_reply *reply, const char *name,
        const struct fuse_entry_param *param, off_t next)
{
        size_t room = reply->cap_bytes - reply->len, used;
        char *at = reply->buf + reply->len;

        if (reply->plus)
                used = fuse_add_direntry_plus(
                        reply->req, at, room, name, param, next);
        else
                used = fuse_add_direntry(
                        reply->req, at, room, name, &param->attr, next);
        if (used > room)
                return false;
        reply->len += used;
        return true;
}

/* Positions: 0 "." 1 ".." 2.. the children in the listing's order. They are
 * places in an immutable listing, so seekdir works for ever. */
static int add_children(struct sheaf_fs *fs, fuse_ino_t ino, uint64_t at,
        struct sheaf_dir_reply *reply)
{
        const struct sheaf_listing *listing = fs->source.listing;
        const struct sheaf_listing_entry *entry;
        struct fuse_entry_param param;
        char name[SHEAF_LISTING_NAME_MAX + 1];
        uint32_t dir;
        int rc = sheaf_tree_entry(&fs->source, ino, &dir);

        if (rc < 0)
                return rc;
        entry = &listing->entries[dir];
        if (!S_ISDIR(entry->mode))
                return -ENOTDIR;
        /* Empty would be a lie. */
        if (entry->flags & SHEAF_LISTING_UNREADABLE)
                return -EACCES;
        for (; at < 2 + (uint64_t)entry->child_count; at++) {
                uint32_t child = at == 0 ? dir : entry->parent;

                if (at >= 2)
                        child = entry->first_child + (uint32_t)(at - 2);
                fill_entry(fs, child, &param);
                if (at < 2) {
                        /* the kernel knows these two */
                        param.ino = 0;
                        strcpy(name, at ? ".." : ".");
                } else {
                        size_t len;
                        const char *text =
                                sheaf_listing_name(listing, child, &len);

                        memcpy(name, text, len);
                        name[len] = '\0';
                }
                if (!sheaf_dir_add(reply, name, &param, (off_t)(at + 1)))
                        break;
        }
        return 0;
}

static void read_dir(fuse_req_t req, fuse_ino_t ino, size_t cap_bytes,
        off_t offset, bool plus)
{
        struct sheaf_fs *fs = sheaf_fs_of(req);
        struct sheaf_dir_reply reply = {
                .req = req, .cap_bytes = cap_bytes, .plus = plus
        };
        int rc = offset < 0 ? -EINVAL : 0;

        if (!rc) {
                reply.buf = malloc(cap_bytes);
                if (!reply.buf)
                        rc = -ENOMEM;
        }
        if (!rc)
                rc = sheaf_jobs_own(fs->jobs, ino, NULL)
                             ? sheaf_jobs_children(
                                       fs, ino, (uint64_t)offset, &reply)
                             : add_children(fs, ino, (uint64_t)offset, &reply);
        if (rc < 0)
                fuse_reply_err(req, -rc);
        else
                fuse_reply_buf(req, reply.buf, reply.len);
        free(reply.buf);
}

static void fs_readdir(fuse_req_t req, fuse_ino_t ino, size_t cap_bytes,
        off_t offset, struct fuse_file_info *fi)
{
        (void)fi;
        read_dir(req, ino, cap_bytes, offset, false);
}

static void fs_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t cap_bytes,
        off_t offset, struct fuse_file_info *fi)
{
        (void)fi;
        read_dir(req, ino, cap_bytes, offset, true);
}

static void fs_statfs(fuse_req_t req, fuse_ino_t ino)
{
        struct statvfs out;

        (void)ino;
        sheaf_tree_statvfs(&sheaf_fs_of(req)->source, &out);
        fuse_reply_statfs(req, &out);
}

void sheaf_fs_reply_xattr(
        fuse_req_t req, const char *value, size_t len, size_t cap_bytes)
{
        if (!cap_bytes)
                fuse_reply_xattr(req, len);
        else if (len > cap_bytes)
                fuse_reply_err(req, ERANGE);
        else
                fuse_reply_buf(req, value, len);
}

struct xattr_ask {
        struct sheaf_task task;
        fuse_req_t req;
        uint32_t entry;
        enum sheaf_tree_xattr xattr;
        size_t cap_bytes; /* 0: asks for the length */
};

#define XATTR_VALUE_MAX 512

static void xattr_answer(struct sheaf_task *task)
{
        struct xattr_ask *ask = (struct xattr_ask *)task;
        struct sheaf_fs *fs = sheaf_fs_of(ask->req);
        char value[XATTR_VALUE_MAX];
        int len = sheaf_tree_xattr_value(
                &fs->source, ask->entry, ask->xattr, value, sizeof(value));

        if (len < 0)
                fuse_reply_err(ask->req,
                        len == -ENODATA || len == -ERANGE ? -len : EIO);
        else
                sheaf_fs_reply_xattr(
                        ask->req, value, (size_t)len, ask->cap_bytes);
        free(ask);
}

static void fs_getxattr(
        fuse_req_t req, fuse_ino_t ino, const char *name, size_t cap_bytes)
{
        struct sheaf_fs *fs = sheaf_fs_of(req);
        enum sheaf_tree_xattr xattr;
        struct xattr_ask *ask;
        uint32_t entry;
        int rc;

        if (sheaf_jobs_own(fs->jobs, ino, NULL)) {
                sheaf_jobs_getxattr(req, ino, name, cap_bytes);
                return;
        }
        rc = sheaf_tree_entry(&fs->source, ino, &entry);
        if (!rc)
                rc = sheaf_tree_xattr_find(&fs->source, entry, name, &xattr);
        if (rc < 0) {
                fuse_reply_err(req, -rc);
                return;
        }
        ask = sheaf_new(struct xattr_ask, 1);
        if (!ask) {
                fuse_reply_err(req, ENOMEM);
                return;
        }
        ask->task.run = xattr_answer;
        ask->req = req;
        ask->entry = entry;
        ask->xattr = xattr;
        ask->cap_bytes = cap_bytes;
        if (xattr != SHEAF_TREE_XATTR_CACHED &&
                xattr != SHEAF_TREE_XATTR_DIGEST) {
                xattr_answer(&ask->task);
                return;
        }
        rc = sheaf_pool_submit(fs->pool, &ask->task);
        if (rc < 0) {
                free(ask);
                fuse_reply_err(req, -rc);
        }
}

/* Listing is off unless asked for: newer versions of `ls -l` list the
 * attributes of each file, which the kernel never remembers, and copies would
 * carry ours along. ENOSYS ends such requests for good. */
static void fs_listxattr(fuse_req_t req, fuse_ino_t ino, size_t cap_bytes)
{
        struct sheaf_fs *fs = sheaf_fs_of(req);
        char names[SHEAF_TREE_XATTR_NAMES_MAX];
        uint32_t entry;
        size_t len = 0;
        int rc = fs->options.list_xattrs ? 0 : -ENOSYS;

        if (!rc && !sheaf_jobs_own(fs->jobs, ino, NULL)) {
                rc = sheaf_tree_entry(&fs->source, ino, &entry);
                if (!rc)
                        len = sheaf_tree_xattr_names(&fs->source, entry, names);
        }
        if (rc < 0)
                fuse_reply_err(req, -rc);
        else
                sheaf_fs_reply_xattr(req, names, len, cap_bytes);
}

static void fs_init(void *userdata, struct fuse_conn_info *conn)
{
        struct sheaf_fs *fs = userdata;

        conn->want |=
                conn->capable &
                (FUSE_CAP_ASYNC_READ | FUSE_CAP_PARALLEL_DIROPS |
                        FUSE_CAP_READDIRPLUS | FUSE_CAP_CACHE_SYMLINKS |
                        FUSE_CAP_NO_OPENDIR_SUPPORT | FUSE_CAP_EXPORT_SUPPORT);
        if (fs->kind == SHEAF_TREE_SMALL)
                conn->want |= conn->capable & FUSE_CAP_NO_OPEN_SUPPORT;
        /* Asynchronous direct reads cannot be interrupted: a killed reader
         * would hang as long as the daemon does. */
        conn->want &= ~(unsigned int)FUSE_CAP_ASYNC_DIO;
        /* splice lost to copies; nothing here changes, so nothing is to be
         * looked at again */
        conn->want &= ~(
                unsigned int)(FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_SPLICE_READ |
                              FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE |
                              FUSE_CAP_AUTO_INVAL_DATA);
        conn->max_background = SHEAF_POOL_THREADS_MAX;
        conn->congestion_threshold = SHEAF_POOL_THREADS_MAX * 3 / 4;
        conn->time_gran = 1;
        if (fs->plain && !sheaf_plain_negotiate(conn)) {
                sheaf_plain_table_free(fs->plain);
                fs->plain = NULL;
        }
}

const struct fuse_lowlevel_ops sheaf_fs_ops = {
        .init = fs_init,
        .lookup = fs_lookup,
        .forget = fs_forget,
        .forget_multi = fs_forget_multi,
        .getattr = fs_getattr,
        .readlink = fs_readlink,
        .open = sheaf_fs_open,
        .read = sheaf_fs_read,
        .flush = fs_flush,
        .release = sheaf_fs_release,
        .opendir = fs_opendir,
        .readdir = fs_readdir,
        .readdirplus = fs_readdirplus,
        .statfs = fs_statfs,
        .getxattr = fs_getxattr,
        .listxattr = fs_listxattr,
};
