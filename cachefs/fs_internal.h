/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the mount: fs, ops, read, open. */
#ifndef SHEAF_CACHEFS_FS_INTERNAL_H
#define SHEAF_CACHEFS_FS_INTERNAL_H

/* the oldest libfuse that is supported; newer ones keep its interface */
#define FUSE_USE_VERSION 314

#include "cachefs/fs.h"
#include "cachefs/pool.h"

#include <fuse_lowlevel.h>
#include <pthread.h>

/* A version never changes, so what the kernel knows stays true. */
#define SHEAF_FS_TIMEOUT_SEC 1e9

struct sheaf_plain_table;
struct sheaf_fs_jobs;

/* Reads that failed after a long wait, for a moment: see read.c. */
#define SHEAF_FAILURES_MAX 64
struct sheaf_failures {
        pthread_mutex_t lock;
        unsigned int next;
        struct sheaf_failure {
                int64_t until_ns; /* 0: none */
                uint64_t begin_bytes, end_bytes;
                uint32_t entry;
                int rc;
        } of[SHEAF_FAILURES_MAX];
};

struct sheaf_fs {
        struct sheaf_source source;
        struct sheaf_fs_options options;
        enum sheaf_tree_kind kind;
        struct fuse_session *session;
        struct sheaf_pool *pool;
        struct sheaf_plain_table *plain; /* NULL: no passthrough */
        struct sheaf_fs_jobs *jobs;      /* NULL: none */
        struct sheaf_failures failures;
        bool mounted;
        _Atomic int64_t log_window_ns; /* log: see sheaf_fs_log */
        _Atomic int log_count;
};

static inline struct sheaf_fs *sheaf_fs_of(fuse_req_t req)
{
        return fuse_req_userdata(req);
}

/* One line to standard error and, where asked for, the system log; at most
 * LOG_PER_SEC lines a second, so that a dead origin fills no disk. */
SHEAF_PRINTF(2, 3)
void sheaf_fs_log(struct sheaf_fs *fs, const char *format, ...);

int64_t sheaf_fs_now_ns(void);

/* ops.c: the table of handlers. */
extern const struct fuse_lowlevel_ops sheaf_fs_ops;

/* A READDIR or READDIRPLUS being answered. */
struct sheaf_dir_reply {
        fuse_req_t req;
        char *buf;
        size_t len, cap_bytes;
        bool plus;
};

/* Adds one entry, whose successor is at @next. False: no room. */
bool sheaf_dir_add(struct sheaf_dir_reply *reply, const char *name,
        const struct fuse_entry_param *param, off_t next);

/* Answers a lookup: there is nothing, which the kernel may remember. */
void sheaf_fs_reply_nothing(fuse_req_t req);

/* Answers GETXATTR with @value, or with its length where @cap_bytes is 0. */
void sheaf_fs_reply_xattr(
        fuse_req_t req, const char *value, size_t len, size_t cap_bytes);

/* read.c */
void sheaf_fs_read(fuse_req_t req, fuse_ino_t ino, size_t len_bytes,
        off_t offset_bytes, struct fuse_file_info *fi);

/* open.c: passthrough of shards. */
SHEAF_MUST_CHECK int sheaf_plain_table_new(
        struct sheaf_fs *fs, struct sheaf_plain_table **ret_table);
void sheaf_plain_table_free(struct sheaf_plain_table *table);
bool sheaf_plain_negotiate(struct fuse_conn_info *conn);
bool sheaf_plain_works(const struct sheaf_plain_table *table);
void sheaf_fs_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void sheaf_fs_release(
        fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);

#endif
