/* SPDX-License-Identifier: Apache-2.0 */
/* A file system that passes a directory through and misbehaves on command.
 *
 *      faultfs BACKING MOUNT CONTROL
 *
 * CONTROL is a text file, read again whenever it was replaced or written: a
 * rule is in force for each call that begins after the write. It may be
 * missing: then nothing is wrong. A line is a rule; the first one that fits
 * a call decides:
 *
 *      OP[,OP...] [path=PART] [skip=N] [one-of=N] [times=N] ACTION...
 *
 * OP: open create read write sync truncate allocate unlink rename mkdir rmdir
 * attr list statfs lock link direct (an open with O_DIRECT), or any.
 * path=PART: of paths that contain PART. skip=N: not for the first N calls
 * that fit; one-of=N: for one in N, by chance, though the same in each run;
 * times=N: for N calls only.
 * Actions: fail=ERRNO (a name such as
 * EIO, or a number), delay=MS before all else, rate=N (so many such calls a
 * second, all callers together), hang (until CONTROL changes, or the caller is
 * interrupted), stick (the same, but no signal ends the caller), cut=N (a read
 * that would return more returns N bytes), free=BYTES (of statfs: so much is
 * free).
 *
 * Each call that meets a rule is told in CONTROL.hits, a line each: what it
 * is, the path, the thread that made it (0: the kernel by itself). The program
 * stays in the foreground and prints "ready" when it is mounted; who kills it
 * makes the file system vanish.
 *
 *  1 rules and their counters are under one lock, held for no call's time
 *  2 calls on open files go by their descriptor, so removed files work */
#define FUSE_USE_VERSION 31

#include "proto/base.h"

#include <dirent.h>
#include <fcntl.h>
#include <fuse.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <time.h>

#define RULES_MAX 32
#define POLL_NS   2000000

enum op {
        OPEN,
        CREATE,
        READ,
        WRITE,
        SYNC,
        TRUNCATE,
        ALLOCATE,
        UNLINK,
        RENAME,
        MKDIR,
        RMDIR,
        ATTR,
        LIST,
        STATFS,
        LOCK,
        LINK,
        DIRECT,
        OP_COUNT,
};

static const char *const op_names[OP_COUNT] = { "open", "create", "read",
        "write", "sync", "truncate", "allocate", "unlink", "rename", "mkdir",
        "rmdir", "attr", "list", "statfs", "lock", "link", "direct" };

static const struct {
        const char *name;
        int value;
} errnos[] = {
        { "EIO", EIO },
        { "EINTR", EINTR },
        { "ENOSPC", ENOSPC },
        { "EDQUOT", EDQUOT },
        { "EROFS", EROFS },
        { "ESTALE", ESTALE },
        { "ENOLCK", ENOLCK },
        { "EINVAL", EINVAL },
        { "EACCES", EACCES },
        { "EPERM", EPERM },
        { "ENOENT", ENOENT },
        { "EOPNOTSUPP", EOPNOTSUPP },
        { "ENOSYS", ENOSYS },
        { "ETIMEDOUT", ETIMEDOUT },
        { "ENOTCONN", ENOTCONN },
        { "ENFILE", ENFILE },
        { "EMFILE", EMFILE },
};

struct rule {
        uint32_t ops; /* bits */
        char path[128];
        uint64_t skip, times; /* left */
        uint64_t one_of, chance;
        bool limited, hang, stick, has_free;
        int fail;
        unsigned int delay_ms, rate;
        size_t cut;
        uint64_t free_bytes;
};

static struct {
        int root_fd;
        const char *control;
        char hits[4096];
        pthread_mutex_t lock;
        struct timespec read_mtime;
        ino_t read_ino;
        off_t read_size;
        uint64_t turn;   /* counts changes of the rules */
        int64_t free_ns; /* when the next call under a rate may begin */
        struct rule rules[RULES_MAX];
        size_t count;
} fs = { .lock = PTHREAD_MUTEX_INITIALIZER };

struct handle {
        int fd;
        char path[]; /* as it was opened */
};

/* ---- rules ---- */

static uint32_t parse_ops(char *word)
{
        uint32_t ops = 0;
        char *state = NULL;

        for (char *name = strtok_r(word, ",", &state); name;
                name = strtok_r(NULL, ",", &state)) {
                if (!strcmp(name, "any"))
                        ops = UINT32_MAX;
                for (unsigned int i = 0; i < OP_COUNT; i++)
                        if (!strcmp(name, op_names[i]))
                                ops |= UINT32_C(1) << i;
        }
        return ops;
}

/* No test may pass by a typing error: it loses its file system. */
static _Noreturn void not_known(const char *word)
{
        fprintf(stderr, "faultfs: %s: not known\n", word);
        _exit(2);
}

static int parse_errno(const char *name)
{
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(errnos); i++)
                if (!strcmp(name, errnos[i].name))
                        return errnos[i].value;
        if (atoi(name) > 0)
                return atoi(name);
        not_known(name);
}

static void parse_word(struct rule *rule, const char *word)
{
        const char *value = strchr(word, '=');

        value = value ? value + 1 : "";
        if (!strncmp(word, "path=", 5)) {
                snprintf(rule->path, sizeof(rule->path), "%s", value);
        } else if (!strncmp(word, "skip=", 5)) {
                rule->skip = strtoull(value, NULL, 10);
        } else if (!strncmp(word, "one-of=", 7)) {
                rule->one_of = strtoull(value, NULL, 10);
        } else if (!strncmp(word, "times=", 6)) {
                rule->limited = true;
                rule->times = strtoull(value, NULL, 10);
        } else if (!strncmp(word, "fail=", 5)) {
                rule->fail = parse_errno(value);
        } else if (!strncmp(word, "rate=", 5)) {
                rule->rate = (unsigned int)strtoul(value, NULL, 10);
        } else if (!strncmp(word, "delay=", 6)) {
                rule->delay_ms = (unsigned int)strtoul(value, NULL, 10);
        } else if (!strcmp(word, "hang")) {
                rule->hang = true;
        } else if (!strcmp(word, "stick")) {
                rule->hang = rule->stick = true;
        } else if (!strncmp(word, "cut=", 4)) {
                rule->cut = strtoull(value, NULL, 10);
        } else if (!strncmp(word, "free=", 5)) {
                rule->has_free = true;
                rule->free_bytes = strtoull(value, NULL, 10);
        } else {
                not_known(word);
        }
}

static void parse(FILE *file)
{
        char line[512];

        fs.count = 0;
        while (fs.count < RULES_MAX && fgets(line, sizeof(line), file)) {
                struct rule *rule = &fs.rules[fs.count];
                char *state = NULL;
                char *word = strtok_r(line, " \n", &state);

                if (!word || *word == '#')
                        continue;
                *rule = (struct rule){ .ops = parse_ops(word) };
                while ((word = strtok_r(NULL, " \n", &state)))
                        parse_word(rule, word);
                fs.count++;
        }
}

/* Locked. */
static void look_again(void)
{
        struct stat st = { 0 };
        FILE *file;

        if (stat(fs.control, &st))
                st.st_ino = 0;
        if (st.st_ino == fs.read_ino && st.st_size == fs.read_size &&
                st.st_mtim.tv_sec == fs.read_mtime.tv_sec &&
                st.st_mtim.tv_nsec == fs.read_mtime.tv_nsec)
                return;
        fs.read_ino = st.st_ino;
        fs.read_size = st.st_size;
        fs.read_mtime = st.st_mtim;
        fs.turn++;
        fs.count = 0;
        file = st.st_ino ? fopen(fs.control, "re") : NULL;
        if (!file)
                return;
        parse(file);
        fclose(file);
}

/* No period: one that fits a call's retries would fail all of them. */
static uint64_t next_number(struct rule *rule)
{
        rule->chance = rule->chance * UINT64_C(6364136223846793005) +
                       UINT64_C(1442695040888963407);
        return rule->chance >> 33;
}

/* Locked. The rule for this call, its counters moved on; or NULL. */
static struct rule *match(enum op op, const char *path)
{
        look_again();
        for (size_t i = 0; i < fs.count; i++) {
                struct rule *rule = &fs.rules[i];

                if (!(rule->ops & UINT32_C(1) << op) ||
                        !strstr(path, rule->path))
                        continue;
                if (rule->skip) {
                        rule->skip--;
                        continue;
                }
                if (rule->one_of && next_number(rule) % rule->one_of)
                        continue;
                if (rule->limited && !rule->times)
                        continue;
                if (rule->limited)
                        rule->times--;
                return rule;
        }
        return NULL;
}

static void tell(enum op op, const char *path)
{
        sheaf_autofd int fd =
                open(fs.hits, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);

        if (fd >= 0)
                dprintf(fd, "%s %s %d\n", op_names[op], path,
                        (int)fuse_get_context()->pid);
}

static void pause_ns(uint64_t ns)
{
        struct timespec ts = { .tv_sec = (time_t)(ns / 1000000000),
                .tv_nsec = (long)(ns % 1000000000) };

        while (nanosleep(&ts, &ts) && errno == EINTR)
                ;
}

/* Calls under a rate begin one after the other. */
static void wait_turn(unsigned int rate)
{
        struct timespec ts;
        int64_t now_ns, begin_ns;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        now_ns = ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec;
        pthread_mutex_lock(&fs.lock);
        begin_ns = SHEAF_MAX(now_ns, fs.free_ns);
        fs.free_ns = begin_ns + INT64_C(1000000000) / rate;
        pthread_mutex_unlock(&fs.lock);
        if (begin_ns > now_ns)
                pause_ns((uint64_t)(begin_ns - now_ns));
}

/* What the rules want of a call: 0, or -errno. */
static int meet_rule(enum op op, const char *path, struct rule *ret_rule)
{
        struct rule *rule;
        uint64_t turn;

        pthread_mutex_lock(&fs.lock);
        rule = match(op, path);
        *ret_rule = rule ? *rule : (struct rule){ 0 };
        turn = fs.turn;
        pthread_mutex_unlock(&fs.lock);
        if (!rule)
                return 0;
        tell(op, path);
        if (ret_rule->rate)
                wait_turn(ret_rule->rate);
        if (ret_rule->delay_ms)
                pause_ns(ret_rule->delay_ms * UINT64_C(1000000));
        while (ret_rule->hang && (ret_rule->stick || !fuse_interrupted())) {
                bool changed;

                pause_ns(POLL_NS);
                pthread_mutex_lock(&fs.lock);
                look_again();
                changed = fs.turn != turn;
                pthread_mutex_unlock(&fs.lock);
                if (changed)
                        break;
        }
        return -ret_rule->fail;
}

static int meet(enum op op, const char *path)
{
        struct rule rule;

        return meet_rule(op, path, &rule);
}

/* ---- calls by path ---- */

/* What was just made belongs to who asked for it. */
static int own(const char *name)
{
        const struct fuse_context *context = fuse_get_context();

        return fchownat(fs.root_fd, name, context->uid, context->gid,
                       AT_SYMLINK_NOFOLLOW)
                       ? -errno
                       : 0;
}

static const char *below(const char *path)
{
        return path[1] ? path + 1 : ".";
}

static struct handle *handle_of(struct fuse_file_info *fi)
{
        return (struct handle *)(uintptr_t)fi->fh;
}

static int fs_getattr(
        const char *path, struct stat *st, struct fuse_file_info *fi)
{
        int rc = meet(ATTR, fi ? handle_of(fi)->path : path);

        if (rc)
                return rc;
        if (fi)
                return fstat(handle_of(fi)->fd, st) ? -errno : 0;
        return fstatat(fs.root_fd, below(path), st, AT_SYMLINK_NOFOLLOW)
                       ? -errno
                       : 0;
}

static int fs_readlink(const char *path, char *buf, size_t size)
{
        ssize_t n = readlinkat(fs.root_fd, below(path), buf, size - 1);

        if (n < 0)
                return -errno;
        buf[n] = '\0';
        return 0;
}

static int fs_mkdir(const char *path, mode_t mode)
{
        int rc = meet(MKDIR, path);

        if (rc)
                return rc;
        return mkdirat(fs.root_fd, below(path), mode) ? -errno
                                                      : own(below(path));
}

static int fs_unlink(const char *path)
{
        int rc = meet(UNLINK, path);

        if (rc)
                return rc;
        return unlinkat(fs.root_fd, below(path), 0) ? -errno : 0;
}

static int fs_rmdir(const char *path)
{
        int rc = meet(RMDIR, path);

        if (rc)
                return rc;
        return unlinkat(fs.root_fd, below(path), AT_REMOVEDIR) ? -errno : 0;
}

static int fs_symlink(const char *target, const char *path)
{
        int rc = meet(LINK, path);

        if (rc)
                return rc;
        return symlinkat(target, fs.root_fd, below(path)) ? -errno
                                                          : own(below(path));
}

static int fs_link(const char *from, const char *to)
{
        int rc = meet(LINK, to);

        if (rc)
                return rc;
        return linkat(fs.root_fd, below(from), fs.root_fd, below(to), 0)
                       ? -errno
                       : 0;
}

static int fs_rename(const char *from, const char *to, unsigned int flags)
{
        int rc = meet(RENAME, from);

        if (rc)
                return rc;
        return renameat2(fs.root_fd, below(from), fs.root_fd, below(to), flags)
                       ? -errno
                       : 0;
}

static int fs_chmod(const char *path, mode_t mode, struct fuse_file_info *fi)
{
        int rc = fi ? fchmod(handle_of(fi)->fd, mode)
                    : fchmodat(fs.root_fd, below(path), mode, 0);

        return rc ? -errno : 0;
}

static int fs_chown(
        const char *path, uid_t uid, gid_t gid, struct fuse_file_info *fi)
{
        int rc = fi ? fchown(handle_of(fi)->fd, uid, gid)
                    : fchownat(fs.root_fd, below(path), uid, gid,
                              AT_SYMLINK_NOFOLLOW);

        return rc ? -errno : 0;
}

static int fs_utimens(const char *path, const struct timespec times[2],
        struct fuse_file_info *fi)
{
        int rc = fi ? futimens(handle_of(fi)->fd, times)
                    : utimensat(fs.root_fd, below(path), times,
                              AT_SYMLINK_NOFOLLOW);

        return rc ? -errno : 0;
}

static int fs_statfs(const char *path, struct statvfs *st)
{
        struct rule rule;
        int rc = meet_rule(STATFS, path ? path : "/", &rule);

        if (rc)
                return rc;
        if (fstatvfs(fs.root_fd, st))
                return -errno;
        if (rule.has_free)
                st->f_bavail = st->f_bfree = rule.free_bytes / st->f_frsize;
        return 0;
}

/* ---- calls on files ---- */

static int open_file(
        const char *path, int flags, mode_t mode, struct fuse_file_info *fi)
{
        struct handle *handle = malloc(sizeof(*handle) + strlen(path) + 1);

        if (!handle)
                return -ENOMEM;
        /* What the kernel asks for need not be aligned. */
        handle->fd = openat(fs.root_fd, below(path),
                (flags & ~(O_DIRECT | O_APPEND)) | O_CLOEXEC | O_NOFOLLOW,
                mode);
        if (handle->fd < 0) {
                free(handle);
                return -errno;
        }
        strcpy(handle->path, path);
        fi->fh = (uintptr_t)handle;
        return 0;
}

static int fs_open(const char *path, struct fuse_file_info *fi)
{
        int rc = fi->flags & O_DIRECT ? meet(DIRECT, path) : 0;

        if (!rc)
                rc = meet(OPEN, path);
        return rc ? rc : open_file(path, fi->flags, 0, fi);
}

static int fs_create(const char *path, mode_t mode, struct fuse_file_info *fi)
{
        int rc = meet(CREATE, path);

        if (!rc)
                rc = open_file(path, fi->flags | O_CREAT, mode, fi);
        return rc ? rc : own(below(path));
}

static int fs_opendir(const char *path, struct fuse_file_info *fi)
{
        return open_file(path, O_RDONLY | O_DIRECTORY, 0, fi);
}

static int fs_release(const char *path, struct fuse_file_info *fi)
{
        struct handle *handle = handle_of(fi);

        (void)path;
        close(handle->fd);
        free(handle);
        return 0;
}

static int fs_readdir(const char *path, void *buf, fuse_fill_dir_t fill,
        off_t offset, struct fuse_file_info *fi, enum fuse_readdir_flags flags)
{
        struct handle *handle = handle_of(fi);
        int rc = meet(LIST, handle->path), fd;
        struct dirent *entry;
        DIR *dir;

        (void)path;
        (void)offset;
        (void)flags;
        if (rc)
                return rc;
        fd = openat(handle->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        dir = fd < 0 ? NULL : fdopendir(fd);
        if (!dir)
                return -errno;
        while ((entry = readdir(dir))) {
                struct stat st = { .st_ino = entry->d_ino,
                        .st_mode = (mode_t)entry->d_type << 12 };

                if (fill(buf, entry->d_name, &st, 0, 0))
                        break;
        }
        closedir(dir);
        return 0;
}

static int fs_read(const char *path, char *buf, size_t size, off_t offset,
        struct fuse_file_info *fi)
{
        struct handle *handle = handle_of(fi);
        struct rule rule;
        int rc = meet_rule(READ, handle->path, &rule);
        ssize_t n;

        (void)path;
        if (rc)
                return rc;
        if (rule.cut)
                size = SHEAF_MIN(size, rule.cut);
        n = pread(handle->fd, buf, size, offset);
        return n < 0 ? -errno : (int)n;
}

static int fs_write(const char *path, const char *buf, size_t size,
        off_t offset, struct fuse_file_info *fi)
{
        struct handle *handle = handle_of(fi);
        int rc = meet(WRITE, handle->path);
        ssize_t n;

        (void)path;
        if (rc)
                return rc;
        n = pwrite(handle->fd, buf, size, offset);
        return n < 0 ? -errno : (int)n;
}

static int fs_fsync(const char *path, int data_only, struct fuse_file_info *fi)
{
        int rc = meet(SYNC, handle_of(fi)->path);

        (void)path;
        if (rc)
                return rc;
        rc = data_only ? fdatasync(handle_of(fi)->fd)
                       : fsync(handle_of(fi)->fd);
        return rc ? -errno : 0;
}

static int fs_truncate(const char *path, off_t size, struct fuse_file_info *fi)
{
        int rc = meet(TRUNCATE, fi ? handle_of(fi)->path : path);
        sheaf_autofd int fd = -1;

        if (rc)
                return rc;
        if (fi)
                return ftruncate(handle_of(fi)->fd, size) ? -errno : 0;
        fd = openat(fs.root_fd, below(path), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
        return fd < 0 || ftruncate(fd, size) ? -errno : 0;
}

static int fs_fallocate(const char *path, int mode, off_t offset, off_t size,
        struct fuse_file_info *fi)
{
        int rc = meet(ALLOCATE, handle_of(fi)->path);

        (void)path;
        if (rc)
                return rc;
        return fallocate(handle_of(fi)->fd, mode, offset, size) ? -errno : 0;
}

static int fs_flock(const char *path, struct fuse_file_info *fi, int op)
{
        int rc = meet(LOCK, handle_of(fi)->path);

        (void)path;
        if (rc)
                return rc;
        return flock(handle_of(fi)->fd, op) ? -errno : 0;
}

static void *fs_init(struct fuse_conn_info *conn, struct fuse_config *config)
{
        (void)conn;
        config->use_ino = 1;
        config->nullpath_ok = 1;
        config->hard_remove = 1;
        config->attr_timeout = config->entry_timeout = 0;
        printf("ready\n");
        fflush(stdout);
        return NULL;
}

static const struct fuse_operations operations = {
        .init = fs_init,
        .getattr = fs_getattr,
        .readlink = fs_readlink,
        .mkdir = fs_mkdir,
        .unlink = fs_unlink,
        .rmdir = fs_rmdir,
        .symlink = fs_symlink,
        .link = fs_link,
        .rename = fs_rename,
        .chmod = fs_chmod,
        .chown = fs_chown,
        .utimens = fs_utimens,
        .statfs = fs_statfs,
        .opendir = fs_opendir,
        .readdir = fs_readdir,
        .releasedir = fs_release,
        .open = fs_open,
        .create = fs_create,
        .release = fs_release,
        .read = fs_read,
        .write = fs_write,
        .fsync = fs_fsync,
        .truncate = fs_truncate,
        .fallocate = fs_fallocate,
        .flock = fs_flock,
};

int main(int argc, char **argv)
{
        char *args[] = { argv[0], (char *)(uintptr_t) "-f",
                (char *)(uintptr_t) "-oallow_other,default_permissions,"
                                    "fsname=faultfs,subtype=faultfs",
                argc > 2 ? argv[2] : NULL };

        if (argc != 4) {
                fprintf(stderr, "usage: faultfs BACKING MOUNT CONTROL\n");
                return 2;
        }
        fs.root_fd = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fs.root_fd < 0) {
                fprintf(stderr, "faultfs: %s: %s\n", argv[1], strerror(errno));
                return 1;
        }
        fs.control = argv[3];
        snprintf(fs.hits, sizeof(fs.hits), "%s.hits", argv[3]);
        umask(0);
        return fuse_main(4, args, &operations, NULL);
}
