/* SPDX-License-Identifier: Apache-2.0 */
/* Who may read a dataset.
 *
 *  1 a domain is widened without --force only to those who could reach and
 *    read the origin's root themselves: by its mode and by the modes of all
 *    directories above, as far as this daemon can look
 *
 * Threads: loop thread. */
#include "daemon/verbs/verbs.h"

#include "daemon/log.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>

#define DEPTH_MAX 256

/* "", "owner", "all", "group:NAME" or "group:GID". */
int sheaf_share_parse(
        const char *text, enum sheaf_share *ret_kind, gid_t *ret_gid)
{
        struct group gr, *found = NULL;
        char space[65536], *end; /* members of a large group */
        gid_t gid = 0;

        if (!*text || strcmp(text, "owner") == 0) {
                *ret_kind = SHEAF_SHARE_OWNER;
        } else if (strcmp(text, "all") == 0) {
                *ret_kind = SHEAF_SHARE_ALL;
        } else if (strncmp(text, "group:", 6) == 0 && text[6]) {
                unsigned long long number;

                errno = 0;
                number = strtoull(text + 6, &end, 10);
                gid = (gid_t)number;
                if (!*end && (text[6] < '0' || text[6] > '9' || errno ||
                                     number >= UINT32_MAX))
                        return -EINVAL;
                if (*end) {
                        if (getgrnam_r(text + 6, &gr, space, sizeof(space),
                                    &found) ||
                                !found)
                                return -ENOENT;
                        gid = gr.gr_gid;
                }
                *ret_kind = SHEAF_SHARE_GROUP;
        } else {
                return -EINVAL;
        }
        *ret_gid = gid;
        return 0;
}

/* Whether the domain has all of @bits (r 4, x 1) of a directory. A member of
 * the group is judged by the group's bits alone, as the kernel does. */
static bool allows(
        const struct stat *st, enum sheaf_share kind, gid_t gid, mode_t bits)
{
        if (kind == SHEAF_SHARE_GROUP && st->st_gid == gid)
                return (st->st_mode >> 3 & bits) == bits;
        return (st->st_mode & bits) == bits;
}

bool sheaf_share_covered(int root_fd, enum sheaf_share kind, gid_t gid)
{
        sheaf_autofd int fd = -1;
        struct stat st, up;

        if (kind == SHEAF_SHARE_OWNER)
                return true;
        if (fstat(root_fd, &st) || !allows(&st, kind, gid, 5))
                return false;
        for (int depth = 0; depth < DEPTH_MAX; depth++) {
                int next = openat(fd < 0 ? root_fd : fd, "..",
                        O_PATH | O_DIRECTORY | O_CLOEXEC);

                sheaf_close_p(&fd);
                fd = next;
                if (fd < 0 || fstat(fd, &up))
                        return false;
                if (up.st_dev == st.st_dev && up.st_ino == st.st_ino)
                        return true;
                if (!allows(&up, kind, gid, 1))
                        return false;
                st = up;
        }
        return false;
}

void sheaf_verb_share(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__Share *share = msg->env->share;
        uint64_t id = msg->env->id;
        struct sheaf_reg_dataset *ds =
                sheaf_conn_dataset(conn, id, share->name, true);
        sheaf_autofd int fd = sheaf_wire_take_fd(msg, 0);
        enum sheaf_share kind;
        gid_t gid;
        int rc;

        if (!ds)
                return;
        rc = sheaf_share_parse(share->share, &kind, &gid);
        if (rc) {
                sheaf_conn_error(conn, id, rc,
                        "'%s': give owner, group:NAME or all", share->share);
                return;
        }
        /* Without the origin's descriptor there is nothing to judge by. */
        if (kind != SHEAF_SHARE_OWNER && !share->force &&
                (fd < 0 || !sheaf_share_covered(fd, kind, gid))) {
                sheaf_conn_error(conn, id, -EPERM,
                        "those users may not be able to read the origin "
                        "themselves; --force shares it all the same");
                return;
        }
        rc = sheaf_registry_share(ds, kind, gid);
        if (rc)
                sheaf_conn_error(conn, id, rc,
                        rc == -EBUSY ? "'%s' is in use; its readers must end "
                                       "first"
                                     : "'%s': the change cannot be recorded",
                        share->name);
        else
                sheaf_conn_done(conn, id);
}
