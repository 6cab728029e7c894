/* SPDX-License-Identifier: Apache-2.0 */
/* One daemon a cache directory.
 *
 * The holder keeps flock(2) on the directory itself and on DIR/lock, whose
 * text names host, boot id and pid. The directory's lock makes it safe when
 * somebody deletes the file. Locks belong to inodes, so symbolic links and
 * bind mounts to the same directory meet the same lock. */
#ifndef SHEAF_DAEMON_STORE_LOCK_H
#define SHEAF_DAEMON_STORE_LOCK_H

#include "proto/base.h"

struct sheaf_lock {
        int dir_fd, file_fd; /* -1: not held */
};
#define SHEAF_LOCK_NONE                                                        \
        {                                                                      \
                .dir_fd = -1, .file_fd = -1                                    \
        }

/* Name of the network file system with statfs @magic, or NULL. */
const char *sheaf_lock_network_fs(uint64_t magic);

/* Takes the lock of the existing directory @dir; waits up to 5 s for that of a
 * holder that is dead. FUSE counts as a network
 * file system, since it may be one, unless @fuse_ok. 0; -EBUSY held (holder
 * was logged); -EMEDIUMTYPE network file system (logged); -ENOLCK (logged);
 * -errno. */
SHEAF_MUST_CHECK int sheaf_lock_take(const char *dir, bool fuse_ok,
        const char *hint, struct sheaf_lock *ret_lock);
void sheaf_lock_drop(struct sheaf_lock *lock);

#endif
