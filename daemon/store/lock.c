/* SPDX-License-Identifier: Apache-2.0 */
/* The lock of a cache directory.
 *
 *  1 the directory is locked before the file, so two daemons that race on a
 *    deleted lock file still meet at the directory
 *  2 the lock file counts only while its path names the locked inode
 *  3 the file's text is a hint for people; the kernel's lock decides. Only
 *    when to give up depends on it: a dead holder's lock lives on for a moment
 *    in children that have not yet come to their exec
 *
 * Called once at open; no threads. */
#include "daemon/store/lock.h"

#include "daemon/log.h"
#include "proto/io.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/utsname.h>
#include <time.h>

/* How long the lock of a dead holder is waited for. */
#define DEAD_HOLDER_MS 5000
#define NAP_MS         10

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

/* The text of the lock file; "" when there is none. */
static void read_holder(int dir_fd, char *ret_text, size_t cap_bytes)
{
        sheaf_autofd int fd = sheaf_again(openat(dir_fd, "lock",
                O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
        ssize_t n = fd < 0 ? 0 : sheaf_again(read(fd, ret_text, cap_bytes - 1));

        ret_text[n > 0 ? n : 0] = '\0';
}

static bool holder_is_dead(int dir_fd)
{
        char text[512];
        const char *at;
        int pid;

        read_holder(dir_fd, text, sizeof(text));
        at = strstr(text, "\npid=");
        return at && sscanf(at, "\npid=%d", &pid) == 1 && pid > 0 &&
               kill(pid, 0) && errno == ESRCH;
}

static int refuse_busy(int dir_fd, const char *dir)
{
        char text[512];

        read_holder(dir_fd, text, sizeof(text));
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
                sheaf_autofd int fd = sheaf_again(openat(dir_fd, "lock",
                        O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
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

/* Both locks, as far as they can be had at once. */
static int try_both(int dir_fd, const char *dir, int *ret_fd)
{
        int rc = flock(dir_fd, LOCK_EX | LOCK_NB) ? flock_errno(dir) : 0;

        if (rc)
                return rc;
        rc = lock_file(dir_fd, dir, ret_fd);
        if (rc)
                flock(dir_fd, LOCK_UN);
        return rc;
}

static int take_both(int dir_fd, const char *dir, int *ret_fd)
{
        const struct timespec nap = { .tv_nsec = NAP_MS * 1000000 };
        int rc = try_both(dir_fd, dir, ret_fd);

        for (int naps = 0; rc == -EBUSY && naps < DEAD_HOLDER_MS / NAP_MS &&
                           holder_is_dead(dir_fd);
                naps++) {
                nanosleep(&nap, NULL);
                rc = try_both(dir_fd, dir, ret_fd);
        }
        return rc == -EBUSY ? refuse_busy(dir_fd, dir) : rc;
}

static void write_holder(int fd, const char *dir, const char *hint)
{
        struct utsname uts;
        char boot[64], text[512];
        int n;

        uname(&uts);
        boot_id(boot, sizeof(boot));
        n = snprintf(text, sizeof(text), "host=%s\nboot=%s\npid=%d\n%s%s",
                uts.nodename, boot, (int)getpid(), hint ? hint : "",
                hint ? "\n" : "");
        if (n > 0 && (size_t)n < sizeof(text)) {
                /* Only a hint: a full disk must not keep the daemon down. */
                int rc = sheaf_again(ftruncate(fd, 0)) ? -errno : 0;

                if (!rc)
                        rc = sheaf_write_at(fd, text, (size_t)n, 0);
                if (rc)
                        sheaf_log_rc(rc, SHEAF_LOG_WARN, "cache_lock_text",
                                "dir=\"%s\"", dir);
        }
}

int sheaf_lock_take(const char *dir, bool fuse_ok, const char *hint,
        struct sheaf_lock *ret_lock)
{
        sheaf_autofd int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        sheaf_autofd int fd = -1;
        struct statfs fs;
        int rc;

        if (dir_fd < 0 || fstatfs(dir_fd, &fs))
                return -errno;
        rc = refuse_network(dir, (uint64_t)fs.f_type, fuse_ok);
        if (!rc)
                rc = take_both(dir_fd, dir, &fd);
        if (rc)
                return rc;
        write_holder(fd, dir, hint);
        ret_lock->dir_fd = sheaf_steal_fd(&dir_fd);
        ret_lock->file_fd = sheaf_steal_fd(&fd);
        return 0;
}

void sheaf_lock_drop(struct sheaf_lock *lock)
{
        sheaf_close_p(&lock->file_fd);
        sheaf_close_p(&lock->dir_fd);
}
