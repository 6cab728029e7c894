/* SPDX-License-Identifier: Apache-2.0 */
/* Whether those with whom a dataset is to be shared could reach its origin
 * themselves: its root and all directories above it, by their modes, as far
 * as this daemon can look.
 *
 *  1 directories are looked at on a thread of their own, since their file
 *    system may never answer; meanwhile the request waits as a call
 *
 * Threads: loop thread, but for walk_up. */
#include "daemon/verbs/verbs.h"

#include "daemon/aside.h"

#include <fcntl.h>
#include <sys/stat.h>

#define DEPTH_MAX 256

/* The looking; it outlives a client that goes. */
struct look {
        struct sheaf_aside aside; /* first */
        struct judging *judging;  /* NULL: nobody waits */
        enum sheaf_share kind;
        gid_t gid;
        int root_fd;
};

/* The request. */
struct judging {
        struct sheaf_call call; /* first */
        struct look *look;
        struct sheaf_wire_msg msg;
        sheaf_judged *next;
};

bool sheaf_share_mode_allows(mode_t mode, gid_t owning, enum sheaf_share kind,
        gid_t gid, mode_t bits)
{
        if (kind == SHEAF_SHARE_GROUP && owning == gid)
                return (mode >> 3 & bits) == bits;
        return (mode & bits) == bits;
}

static bool allows(const struct look *look, const struct stat *st, mode_t bits)
{
        return sheaf_share_mode_allows(
                st->st_mode, st->st_gid, look->kind, look->gid, bits);
}

/* 0: covered; -EPERM. */
static int walk_up(struct sheaf_aside *aside)
{
        const struct look *look = (const struct look *)aside;
        sheaf_autofd int fd = -1;
        struct stat st, up;

        if (fstat(look->root_fd, &st) || !allows(look, &st, 5))
                return -EPERM;
        for (int depth = 0; depth < DEPTH_MAX; depth++) {
                int next = openat(fd < 0 ? look->root_fd : fd, "..",
                        O_PATH | O_DIRECTORY | O_CLOEXEC);

                sheaf_close_p(&fd);
                fd = next;
                if (fd < 0 || fstat(fd, &up))
                        return -EPERM;
                if (up.st_dev == st.st_dev && up.st_ino == st.st_ino)
                        return 0;
                if (!allows(look, &up, 1))
                        return -EPERM;
                st = up;
        }
        return -EPERM;
}

static void judged(struct sheaf_aside *aside, int rc)
{
        struct look *look = (struct look *)aside;
        struct judging *judging = look->judging;
        struct sheaf_conn *conn;

        if (!judging)
                return;
        look->judging = NULL;
        conn = judging->call.conn;
        sheaf_call_end(&judging->call);
        if (rc == -ETIMEDOUT)
                sheaf_conn_error(conn, judging->msg.env->id, rc,
                        "the directories above the origin do not answer; "
                        "--force shares it unseen");
        else
                judging->next(conn, &judging->msg, rc == 0);
        sheaf_wire_msg_free(&judging->msg);
        free(judging);
}

static void look_end(struct sheaf_aside *aside, bool late)
{
        struct look *look = (struct look *)aside;

        (void)late;
        sheaf_close_p(&look->root_fd);
        free(look);
}

static void judging_abandon(struct sheaf_call *call)
{
        struct judging *judging = (struct judging *)call;

        judging->look->judging = NULL;
        sheaf_wire_msg_free(&judging->msg);
        free(judging);
}

static int look_start(struct sheaf_conn *conn, struct look *look, int root_fd)
{
        look->root_fd = fcntl(root_fd, F_DUPFD_CLOEXEC, 0);
        if (look->root_fd < 0)
                return -errno;
        look->aside.uid = conn->who.uid;
        look->aside.own_rights = true;
        look->aside.work = walk_up;
        look->aside.done = judged;
        look->aside.end = look_end;
        return sheaf_aside_start(conn->daemon->loop, &look->aside,
                conn->daemon->config->deadline_ms);
}

void sheaf_share_judge(struct sheaf_conn *conn, struct sheaf_wire_msg *msg,
        enum sheaf_share kind, gid_t gid, sheaf_judged *next)
{
        struct judging *judging = sheaf_new(struct judging, 1);
        struct look *look = sheaf_new(struct look, 1);
        uint64_t id = msg->env->id;
        int rc;

        if (!sheaf_call_begin(conn, id, judging && look ? &judging->call : NULL,
                    judging_abandon)) {
                free(look);
                free(judging);
                return;
        }
        look->judging = judging;
        look->kind = kind;
        look->gid = gid;
        rc = look_start(conn, look, msg->fds[0]);
        if (rc) {
                sheaf_call_end(&judging->call);
                look_end(&look->aside, false);
                free(judging);
                sheaf_conn_error(conn, id, rc,
                        "the origin cannot be looked at: %s", strerror(-rc));
                return;
        }
        judging->look = look;
        judging->next = next;
        judging->msg = *msg;
        msg->env = NULL;
        msg->fd_count = 0;
}
