/* SPDX-License-Identifier: Apache-2.0 */
/* The session of a mount: options, the loop, messages.
 *
 *  1 every request is counted, by its operation, before it is handled
 *  2 the connection is kept open after a lazy unmount until its last user is
 *    gone: closing it earlier would cut open files off
 *
 * Threads: sheaf_fs_run has the loop; fs->pool the workers; settle and stop
 * may come from another thread. */
#include "cachefs/jobs.h"
#include "cachefs/mounts.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/statfs.h>
#include <syslog.h>
#include <time.h>

#define LOG_PER_SEC 10

/* What the kernel reads ahead in a file: larger requests, fewer trips. */
#define READAHEAD_KIB 1024

int64_t sheaf_fs_now_ns(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return ts.tv_sec * SHEAF_NS_PER_SEC + ts.tv_nsec;
}

void sheaf_fs_log(struct sheaf_fs *fs, const char *format, ...)
{
        int64_t now = sheaf_fs_now_ns(),
                window = atomic_load(&fs->log_window_ns);
        char line[1024];
        va_list args;

        if (now - window > SHEAF_NS_PER_SEC &&
                atomic_compare_exchange_strong(
                        &fs->log_window_ns, &window, now))
                atomic_store(&fs->log_count, 0);
        if (atomic_fetch_add(&fs->log_count, 1) >= LOG_PER_SEC)
                return;
        va_start(args, format);
        vsnprintf(line, sizeof(line), format, args);
        va_end(args);
        if (!fs->options.quiet)
                fprintf(stderr, "sheaf-cachefs: %s: %s\n",
                        fs->source.info->name, line);
        if (fs->options.use_syslog)
                syslog(LOG_WARNING, "%s: %s", fs->source.info->name, line);
}

static enum sheaf_meter_op op_of(uint32_t opcode)
{
        switch (opcode) {
        case FUSE_LOOKUP:
                return SHEAF_METER_OP_LOOKUP;
        case FUSE_FORGET:
        case FUSE_BATCH_FORGET:
                return SHEAF_METER_OP_FORGET;
        case FUSE_GETATTR:
                return SHEAF_METER_OP_GETATTR;
        case FUSE_READLINK:
                return SHEAF_METER_OP_READLINK;
        case FUSE_OPEN:
                return SHEAF_METER_OP_OPEN;
        case FUSE_READ:
                return SHEAF_METER_OP_READ;
        case FUSE_RELEASE:
                return SHEAF_METER_OP_RELEASE;
        case FUSE_FLUSH:
                return SHEAF_METER_OP_FLUSH;
        case FUSE_OPENDIR:
                return SHEAF_METER_OP_OPENDIR;
        case FUSE_READDIR:
                return SHEAF_METER_OP_READDIR;
        case FUSE_READDIRPLUS:
                return SHEAF_METER_OP_READDIRPLUS;
        case FUSE_RELEASEDIR:
                return SHEAF_METER_OP_RELEASEDIR;
        case FUSE_STATFS:
                return SHEAF_METER_OP_STATFS;
        case FUSE_GETXATTR:
                return SHEAF_METER_OP_GETXATTR;
        case FUSE_LISTXATTR:
                return SHEAF_METER_OP_LISTXATTR;
        case FUSE_ACCESS:
                return SHEAF_METER_OP_ACCESS;
        case FUSE_LSEEK:
                return SHEAF_METER_OP_LSEEK;
        case FUSE_IOCTL:
                return SHEAF_METER_OP_IOCTL;
        default:
                return SHEAF_METER_OP_OTHER;
        }
}

/* Requests come in memory, never in a pipe: splicing is off. */
static void count(struct sheaf_fs *fs, const struct fuse_buf *buf)
{
        struct fuse_in_header head;

        if (buf->flags & FUSE_BUF_IS_FD || buf->size < sizeof(head))
                return;
        memcpy(&head, buf->mem, sizeof(head));
        sheaf_source_count(&fs->source, op_of(head.opcode), 1);
}

/* Appends @text to the option list at @out, its commas escaped. */
static void escape(char *out, size_t cap_bytes, const char *text)
{
        size_t len = strlen(out);

        for (; *text && len + 3 < cap_bytes; text++) {
                if (*text == ',' || *text == '\\')
                        out[len++] = '\\';
                out[len++] = *text;
        }
        out[len] = '\0';
}

static int session_new(struct sheaf_fs *fs)
{
        struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
        char options[1024];
        int rc = -ENOMEM;

        snprintf(options, sizeof(options),
                "ro,nosuid,nodev,default_permissions,subtype=sheaf%s,"
                "fsname=sheaf:",
                fs->options.allow_other ? ",allow_other" : "");
        escape(options, sizeof(options), fs->source.info->name);
        if (!fuse_opt_add_arg(&args, "sheaf-cachefs") &&
                !fuse_opt_add_arg(&args, "-o") &&
                !fuse_opt_add_arg(&args, options) &&
                (!fs->options.debug || !fuse_opt_add_arg(&args, "-d"))) {
                fs->session = fuse_session_new(
                        &args, &sheaf_fs_ops, sizeof(sheaf_fs_ops), fs);
                if (fs->session)
                        rc = 0;
        }
        fuse_opt_free_args(&args);
        return rc;
}

int sheaf_fs_new(const struct sheaf_source *source,
        const struct sheaf_fs_options *options, struct sheaf_fs **ret_fs)
{
        struct sheaf_fs *fs = sheaf_new(struct sheaf_fs, 1);
        int rc;

        if (!fs)
                return -ENOMEM;
        fs->source = *source;
        fs->options = *options;
        fs->kind = options->kind;
        pthread_mutex_init(&fs->failures.lock, NULL);
        if (fs->kind == SHEAF_TREE_AUTO)
                fs->kind = sheaf_tree_kind_of(source->listing);
        rc = sheaf_pool_new(&fs->pool);
        if (!rc && fs->kind == SHEAF_TREE_SHARD && !options->no_passthrough)
                rc = sheaf_plain_table_new(fs, &fs->plain);
        if (!rc)
                rc = sheaf_jobs_new(fs, &fs->jobs);
        if (!rc)
                rc = session_new(fs);
        if (rc < 0) {
                sheaf_fs_free(fs);
                return rc;
        }
        *ret_fs = fs;
        return 0;
}

int sheaf_fs_mount(struct sheaf_fs *fs, const char *dir)
{
        if (fuse_session_mount(fs->session, dir))
                return -EIO;
        fs->mounted = true;
        return 0;
}

int sheaf_fs_run(struct sheaf_fs *fs)
{
        struct fuse_buf buf = { 0 };
        int rc = 0;

        while (!fuse_session_exited(fs->session)) {
                rc = fuse_session_receive_buf(fs->session, &buf);
                if (rc == -EINTR)
                        continue;
                if (rc <= 0)
                        break;
                count(fs, &buf);
                fuse_session_process_buf(fs->session, &buf);
        }
        free(buf.mem);
        return rc == -ENODEV || rc > 0 || fuse_session_exited(fs->session) ? 0
                                                                           : rc;
}

static void raise_readahead(const char *dir)
{
        char path[64], value[16];
        struct sheaf_mount mount;
        int len;

        if (sheaf_mounts_at(dir, &mount) < 0)
                return;
        snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb",
                mount.dev_major, mount.dev_minor);
        sheaf_mount_clear(&mount);
        sheaf_autofd int fd = open(path, O_WRONLY | O_CLOEXEC);

        if (fd < 0)
                return; /* not root: the kernel's 128 KiB stay */
        len = snprintf(value, sizeof(value), "%d", READAHEAD_KIB);
        if (write(fd, value, (size_t)len) != len)
                return;
}

int sheaf_fs_settle(struct sheaf_fs *fs, const char *dir)
{
        struct statfs info;

        (void)fs;
        if (statfs(dir, &info))
                return -errno;
        raise_readahead(dir);
        return 0;
}

void sheaf_fs_inherit(struct sheaf_fs *fs, char *text)
{
        if (fs->jobs)
                sheaf_jobs_inherit(fs->jobs, text);
}

void sheaf_fs_stop(struct sheaf_fs *fs)
{
        fuse_session_exit(fs->session);
}

bool sheaf_fs_passthrough(const struct sheaf_fs *fs)
{
        return sheaf_plain_works(fs->plain);
}

void sheaf_fs_free(struct sheaf_fs *fs)
{
        if (!fs)
                return;
        /* first the workers: they answer through the session */
        sheaf_pool_free(fs->pool);
        if (fs->session) {
                if (fs->mounted)
                        fuse_session_unmount(fs->session);
                fuse_session_destroy(fs->session);
        }
        sheaf_plain_table_free(fs->plain);
        sheaf_jobs_free(fs->jobs);
        pthread_mutex_destroy(&fs->failures.lock);
        free(fs);
}
