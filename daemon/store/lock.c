/* SPDX-License-Identifier: Apache-2.0 */
/* The lock of a cache directory.
 *
 *  1 the directory is locked before the file, so two daemons that race on a
 *    deleted lock file still meet at the directory
 *  2 the lock file counts only while its path names the locked inode
 *  3 the file's text is a hint for people; the kernel's lock decides
 *
 * Called once at open; no threads. */
#include "daemon/store/lock.h"

#include "daemon/log.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/utsname.h>

static const struct {
        uint64_t magic;
        const char *name;
} network_fs[] = {
        { 0x6969, "NFS" },
        { 0x517b, "SMB" },
        { 0xff534d42, "CIFS" },
        { 0xfe534d42, "SMB2" },
        { 0x0bd00bd0, "Lustre" },
        { 0x65735546, "FUSE" },
        { 0x00c36400, "Ceph" },
        { 0x01021997, "9p" },
        { 0x5346414f, "AFS" },
        { 0x6b414653, "kAFS" },
        { 0x47504653, "GPFS" },
        { 0x73757245, "Coda" },
        { 0x19830326, "BeeGFS" },
        { 0x7461636f, "OCFS2" },
        { 0x01161970, "GFS2" },
};

const char *sheaf_lock_network_fs(uint64_t magic)
{
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(network_fs); i++) {
                if (network_fs[i].magic == (magic & 0xffffffff))
                        return network_fs[i].name;
        }
        return NULL;
}

static void boot_id(char *ret_text, size_t cap_bytes)
{
        sheaf_autofd int fd =
                open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, ret_text, cap_bytes - 1);

        ret_text[n > 0 ? n : 0] = '\0';
        ret_text[strcspn(ret_text, "\n")] = '\0';
}

static int refuse_busy(int dir_fd, const char *dir)
{
        char text[512] = "";
        sheaf_autofd int fd = openat(
                dir_fd, "lock", O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);

        text[n > 0 ? n : 0] = '\0';
        for (char *c = text; *c; c++) {
                if (*c == '\n')
                        *c = c[1] ? ' ' : '\0';
        }
        return sheaf_log_rc(-EBUSY, SHEAF_LOG_ERROR, "cache_locked",
                "dir=\"%s\" holder=\"%s\" remedy=\"stop that daemon or use "
                "another --cache directory\"",
                dir, *text ? text : "unknown");
}

static int flock_errno(const char *dir)
{
        if (errno == EWOULDBLOCK)
                return -EBUSY;
        return sheaf_log_rc(
                errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP
                        ? -ENOLCK
                        : -errno,
                SHEAF_LOG_ERROR, "cache_lock_failed",
                "dir=\"%s\" remedy=\"use a cache directory on a local file "
                "system\"",
                dir);
}

/* Locks the file "lock"; again when it was replaced in between. */
static int lock_file(int dir_fd, const char *dir, int *ret_fd)
{
        for (int tries = 0; tries < 16; tries++) {
                sheaf_autofd int fd = openat(dir_fd, "lock",
                        O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
                struct stat held, named;

                if (fd < 0)
                        return -errno;
                if (flock(fd, LOCK_EX | LOCK_NB))
                        return flock_errno(dir);
                if (fstat(fd, &held))
                        return -errno;
                if (fstatat(dir_fd, "lock", &named, AT_SYMLINK_NOFOLLOW) == 0 &&
                        held.st_ino == named.st_ino &&
                        held.st_dev == named.st_dev) {
                        *ret_fd = sheaf_steal_fd(&fd);
                        return 0;
                }
        }
        return -EBUSY;
}

#define FUSE_MAGIC UINT64_C(0x65735546)

static int refuse_network(const char *dir, uint64_t magic, bool fuse_ok)
{
        const char *name = sheaf_lock_network_fs(magic);
        bool fuse = (magic & 0xffffffff) == FUSE_MAGIC;

        if (!name || (fuse && fuse_ok))
                return 0;
        return sheaf_log_rc(-EMEDIUMTYPE, SHEAF_LOG_ERROR,
                "cache_on_network_fs",
                "dir=\"%s\" type=%s remedy=\"set --cache or SHEAF_CACHE_DIR to "
                "a directory on a local disk%s\"",
                dir, name,
                fuse ? "; if this file system is local, start with --fuse-cache"
                     : "");
}

int sheaf_lock_take(const char *dir, bool fuse_ok, const char *hint,
        struct sheaf_lock *ret_lock)
{
        sheaf_autofd int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        sheaf_autofd int fd = -1;
        struct statfs fs;
        struct utsname uts;
        char boot[64], text[512];
        int rc, n;

        if (dir_fd < 0 || fstatfs(dir_fd, &fs))
                return -errno;
        rc = refuse_network(dir, (uint64_t)fs.f_type, fuse_ok);
        if (rc)
                return rc;
        if (flock(dir_fd, LOCK_EX | LOCK_NB)) {
                rc = flock_errno(dir);
                return rc == -EBUSY ? refuse_busy(dir_fd, dir) : rc;
        }
        rc = lock_file(dir_fd, dir, &fd);
        if (rc == -EBUSY)
                return refuse_busy(dir_fd, dir);
        if (rc)
                return rc;
        uname(&uts);
        boot_id(boot, sizeof(boot));
        n = snprintf(text, sizeof(text), "host=%s\nboot=%s\npid=%d\n%s%s",
                uts.nodename, boot, (int)getpid(), hint ? hint : "",
                hint ? "\n" : "");
        if (n > 0 && (size_t)n < sizeof(text)) {
                /* Only a hint: a full disk must not keep the daemon down. */
                if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)n, 0) < 0)
                        sheaf_log_rc(-errno, SHEAF_LOG_WARN, "cache_lock_text",
                                "dir=\"%s\"", dir);
        }
        ret_lock->dir_fd = sheaf_steal_fd(&dir_fd);
        ret_lock->file_fd = sheaf_steal_fd(&fd);
        return 0;
}

void sheaf_lock_drop(struct sheaf_lock *lock)
{
        sheaf_close_p(&lock->file_fd);
        sheaf_close_p(&lock->dir_fd);
}
