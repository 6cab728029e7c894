/* SPDX-License-Identifier: Apache-2.0 */
/* Sheaf's mounts as the kernel lists them, and how to get rid of them.
 *
 * A mount that hangs must not hang who asks: nothing here looks into a mount
 * unless its function says so. Any thread. */
#ifndef SHEAF_CACHEFS_MOUNTS_H
#define SHEAF_CACHEFS_MOUNTS_H

#include "proto/base.h"

#include <sys/types.h>

struct sheaf_mount {
        char *dir;     /* mount point, as in mountinfo, unescaped */
        char *dataset; /* name after "sheaf:"; "" for other file systems */
        char *type;    /* "fuse.sheaf" for ours */
        unsigned int dev_major, dev_minor;
        unsigned int id;
};

struct sheaf_mount_list {
        struct sheaf_mount *mount; /* in mount order */
        size_t count;
};

/* All mounts of Sheaf in this mount namespace. 0 or -errno. */
SHEAF_MUST_CHECK int sheaf_mounts_list(struct sheaf_mount_list *ret_list);
void sheaf_mount_list_free(struct sheaf_mount_list *list);

/* The topmost mount, of any file system, whose mount point is @dir (absolute,
 * without links, as realpath of its parent gives). -ENOENT: none. Cleared
 * with sheaf_mount_clear. */
SHEAF_MUST_CHECK int sheaf_mounts_at(
        const char *dir, struct sheaf_mount *ret_mount);
void sheaf_mount_clear(struct sheaf_mount *mount);

static inline bool sheaf_mount_is_ours(const struct sheaf_mount *mount)
{
        return !strcmp(mount->type, "fuse.sheaf");
}

/* Absolute form of @path without looking at what is mounted there: links in
 * its parent are followed, its last component is not. Freed by the caller.
 * -errno of the parent. */
SHEAF_MUST_CHECK int sheaf_mounts_absolute(const char *path, char **ret_path);

/* 1 when the process behind the mount at @dir is gone, 0 when it answers.
 * Looks into the mount: may wait for a process that is stopped. */
SHEAF_MUST_CHECK int sheaf_mounts_dead(const char *dir);

/* Unmounts @dir. With @lazy it vanishes from the tree at once, and for those
 * who use it when they are done. 0; -EBUSY, at once where a process holds it,
 * else after some seconds; -ENOENT not a mount of Sheaf; -EPERM; -errno. Runs
 * fusermount3 when not root. */
SHEAF_MUST_CHECK int sheaf_mounts_unmount(const char *dir, bool lazy);

/* Whether this process may move mounts about (CAP_SYS_ADMIN, Linux 5.2). */
bool sheaf_mounts_can_move(void);

/* Makes an empty directory below @parent for a mount that will move from there
 * or go, and takes away what processes that are dead left in such ones: the
 * name has the pid of the caller. Freed by the caller. 0 or -errno. */
SHEAF_MUST_CHECK int sheaf_mounts_stage(const char *parent, char **ret_dir);

/* Puts the mount at @from in the place of Sheaf's mount at @dir, and takes
 * both from where they were; the old one lives on for those who use it. From
 * Linux 6.5 on @dir always shows one of the two; before, it is bare for a
 * moment. On failure the old mount is at @dir, and the one at @from stays. 0;
 * -ENOENT no mount of Sheaf is at @dir; -errno. */
SHEAF_MUST_CHECK int sheaf_mounts_replace(const char *from, const char *dir);

/* Lazily unmounts what dead processes of Sheaf left at @dir, and nothing
 * else. Returns how many there were, or -errno. */
SHEAF_MUST_CHECK int sheaf_mounts_detach_dead(const char *dir);

/* Processes that have a file, a mapping, a directory or their root in the
 * mount, as far as this user may see. Writes at most @cap of them; returns
 * how many were found, or -errno. */
SHEAF_MUST_CHECK int sheaf_mounts_holders(
        const struct sheaf_mount *mount, pid_t *pids, size_t cap);

#endif
