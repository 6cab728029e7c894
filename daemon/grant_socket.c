/* SPDX-License-Identifier: Apache-2.0 */
/* Making and removing a grant's socket file.
 *
 *  1 every step in the directory is the owner's, with the owner's rights: what
 *    he puts into its place meanwhile (a link, another directory) leads only
 *    where he could go and change things himself
 *  2 the directory is opened once; the socket is made and removed beneath that
 *    descriptor
 *
 * Threads: open_work and remove_work on threads of their own. */
#include "daemon/grant_socket.h"

#include "proto/wire.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

struct job {
        struct sheaf_aside aside; /* first */
        sheaf_grant_socket_done *done;
        void *arg;
        uint64_t serial;
        char *dir;
        int dir_fd;
        struct sheaf_grant_socket_made made; /* for remove: which */
        uint32_t groups[];
};

static struct job *job_new(const SheafRecord__Grant *record)
{
        struct job *job = calloc(1,
                sizeof(*job) + record->n_owner_group * sizeof(job->groups[0]));

        if (!job)
                return NULL;
        job->dir = strdup((const char *)record->dir.data);
        if (!job->dir) {
                free(job);
                return NULL;
        }
        if (record->n_owner_group)
                memcpy(job->groups, record->owner_group,
                        record->n_owner_group * sizeof(job->groups[0]));
        job->aside.uid = record->owner_uid;
        job->aside.gid = record->owner_gid;
        job->aside.groups = job->groups;
        job->aside.group_count = record->n_owner_group;
        job->serial = record->serial;
        job->dir_fd = job->made.sock = -1;
        return job;
}

static void job_free(struct job *job)
{
        sheaf_close_p(&job->dir_fd);
        sheaf_close_p(&job->made.sock);
        free(job->dir);
        free(job);
}

static void job_end(struct sheaf_aside *aside, bool late)
{
        /* A file that was made too late is found without a listener, and
         * replaced by the next attempt. */
        (void)late;
        job_free((struct job *)aside);
}

/* The directory that was shown must be the one that the path leads to after
 * a restart, too; and it must be the owner's, but for root. */
static int check_dir(const struct job *job, bool shown)
{
        struct stat a, b;

        if (fstat(job->dir_fd, &a))
                return -errno;
        if (!S_ISDIR(a.st_mode))
                return -ENOTDIR;
        if (shown && stat(job->dir, &b))
                return -errno;
        if (shown && (a.st_ino != b.st_ino || a.st_dev != b.st_dev))
                return -ESTALE;
        if (job->aside.uid != 0 && a.st_uid != job->aside.uid)
                return -EACCES;
        return 0;
}

static int open_work(struct sheaf_aside *aside)
{
        struct job *job = (struct job *)aside;
        bool shown = job->dir_fd >= 0;
        char path[64];
        struct stat st;
        int rc;

        if (!shown)
                job->dir_fd = open(job->dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (job->dir_fd < 0)
                return -errno;
        rc = check_dir(job, shown);
        if (rc)
                return rc;
        snprintf(path, sizeof(path),
                "/proc/self/fd/%d/" SHEAF_GRANT_SOCKET_NAME, job->dir_fd);
        job->made.sock = sheaf_wire_listen(path, 0666);
        if (job->made.sock < 0)
                return job->made.sock;
        if (fstatat(job->dir_fd, SHEAF_GRANT_SOCKET_NAME, &st,
                    AT_SYMLINK_NOFOLLOW))
                return -errno;
        job->made.dev = st.st_dev;
        job->made.ino = st.st_ino;
        job->made.made = st.st_mtim;
        return 0;
}

static void open_done(struct sheaf_aside *aside, int rc)
{
        struct job *job = (struct job *)aside;
        struct sheaf_grant_socket_made made = { .sock = -1 };

        if (!rc) {
                made = job->made;
                job->made.sock = -1;
        }
        job->done(job->arg, job->serial, rc, &made);
}

int sheaf_grant_socket_open(uv_loop_t *loop, const SheafRecord__Grant *record,
        int dir_fd, uint64_t deadline_ms, sheaf_grant_socket_done *done,
        void *arg)
{
        struct job *job = job_new(record);
        int rc = 0;

        if (!job)
                return -ENOMEM;
        if (dir_fd >= 0) {
                job->dir_fd = fcntl(dir_fd, F_DUPFD_CLOEXEC, 0);
                rc = job->dir_fd < 0 ? -errno : 0;
        }
        job->done = done;
        job->arg = arg;
        job->aside.work = open_work;
        job->aside.done = open_done;
        job->aside.end = job_end;
        if (!rc)
                rc = sheaf_aside_start(loop, &job->aside, deadline_ms);
        if (rc)
                job_free(job);
        return rc;
}

static int remove_work(struct sheaf_aside *aside)
{
        struct job *job = (struct job *)aside;
        struct stat st;

        job->dir_fd = open(job->dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (job->dir_fd < 0 || fstatat(job->dir_fd, SHEAF_GRANT_SOCKET_NAME,
                                       &st, AT_SYMLINK_NOFOLLOW))
                return -errno;
        if (st.st_ino != job->made.ino || st.st_dev != job->made.dev ||
                st.st_mtim.tv_sec != job->made.made.tv_sec ||
                st.st_mtim.tv_nsec != job->made.made.tv_nsec)
                return 0;
        return unlinkat(job->dir_fd, SHEAF_GRANT_SOCKET_NAME, 0) ? -errno : 0;
}

static void remove_done(struct sheaf_aside *aside, int rc)
{
        (void)aside;
        (void)rc;
}

void sheaf_grant_socket_remove(uv_loop_t *loop,
        const SheafRecord__Grant *record,
        const struct sheaf_grant_socket_made *made)
{
        struct job *job = job_new(record);

        if (!job)
                return;
        job->made = *made;
        job->made.sock = -1;
        job->aside.work = remove_work;
        job->aside.done = remove_done;
        job->aside.end = job_end;
        /* Without it a socket file without a listener stays. */
        if (sheaf_aside_start(loop, &job->aside, UINT32_MAX))
                job_free(job);
}
