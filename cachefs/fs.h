/* SPDX-License-Identifier: Apache-2.0 */
/* One read-only FUSE mount of one version.
 *
 *   new -> mount -> run (until unmounted or stopped) -> free
 *
 * The thread in run reads the requests and answers what needs no waiting;
 * a pool of workers waits for misses. The mount keeps no table of nodes. */
#ifndef SHEAF_CACHEFS_FS_H
#define SHEAF_CACHEFS_FS_H

#include "cachefs/tree.h"

struct sheaf_fs;

struct sheaf_fs_options {
        enum sheaf_tree_kind kind;
        bool allow_other;
        bool quiet;      /* no messages on standard error */
        bool debug;      /* libfuse prints every request */
        bool use_syslog; /* messages also to the system log */
        bool no_passthrough;
        bool list_xattrs; /* by listxattr too; costs `ls -l` its speed */
        bool heir;        /* epochs of jobs wait for sheaf_fs_inherit */
};

/* @source and what it borrows stay until free. -ENOMEM. */
SHEAF_MUST_CHECK int sheaf_fs_new(const struct sheaf_source *source,
        const struct sheaf_fs_options *options, struct sheaf_fs **ret_fs);

/* Mounts at @dir, an absolute path. libfuse prints the cause of a failure.
 * -EIO. Threads may not be running yet in callers that fork later. */
SHEAF_MUST_CHECK int sheaf_fs_mount(struct sheaf_fs *fs, const char *dir);

/* Serves until the last user of an unmounted mount is gone (0), or stop was
 * called (0), or the connection fails (-errno). */
SHEAF_MUST_CHECK int sheaf_fs_run(struct sheaf_fs *fs);

/* Waits until the mount at @dir answers, then gives it the readahead that
 * large files want, where that is allowed. Called in another thread than
 * run. 0 or the -errno of statfs. */
SHEAF_MUST_CHECK int sheaf_fs_settle(struct sheaf_fs *fs, const char *dir);

/* Which epochs of jobs the mount that this one replaces began on which
 * version: what its attribute SHEAF_FS_BEGUN_XATTR says, which lies in its
 * directory SHEAF_FS_BEGUN_DIR. @text may be NULL; else it is written to. Once,
 * by an heir. Any thread. */
#define SHEAF_FS_BEGUN_DIR   ".sheaf/jobs"
#define SHEAF_FS_BEGUN_XATTR "user.sheaf.begun"
void sheaf_fs_inherit(struct sheaf_fs *fs, char *text);

/* Makes run return soon; open files of others are cut off. Any thread. */
void sheaf_fs_stop(struct sheaf_fs *fs);

/* Unmounts if still mounted, waits for the workers, frees. NULL is fine. */
void sheaf_fs_free(struct sheaf_fs *fs);

/* True when shards are read by kernel passthrough; after the first request. */
bool sheaf_fs_passthrough(const struct sheaf_fs *fs);

#endif
