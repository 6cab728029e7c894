/* SPDX-License-Identifier: Apache-2.0 */
/* Peer credentials by SO_PEERCRED, SO_PEERGROUPS and SO_PEERPIDFD (6.5; else
 * pidfd_open of the peer's pid, which is safe while the socket is open only
 * as far as the peer lives: a reused pid gives a pidfd that dies later than
 * the hang-up, which counts first). */
#include "daemon/principal.h"

#include <sys/socket.h>
#include <sys/syscall.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define GROUPS_MAX_ 65536

static int read_groups(int sock, struct sheaf_principal *p)
{
        socklen_t len = 64 * sizeof(gid_t);
        gid_t *groups = malloc(len);

        if (!groups)
                return -ENOMEM;
        if (getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, groups, &len)) {
                if (errno != ERANGE || len > GROUPS_MAX_ * sizeof(gid_t)) {
                        free(groups);
                        return -errno;
                }
                free(groups);
                groups = malloc(len);
                if (!groups)
                        return -ENOMEM;
                if (getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, groups, &len)) {
                        free(groups);
                        return -errno;
                }
        }
        p->groups = groups;
        p->group_count = len / sizeof(gid_t);
        return 0;
}

static int read_pidfd(int sock, pid_t pid)
{
        int fd = -1;
        socklen_t len = sizeof(fd);

        if (getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &fd, &len) == 0)
                return fd;
        if (pid <= 0)
                return -1;
        return (int)syscall(SYS_pidfd_open, pid, 0);
}

int sheaf_principal_read(
        int sock, uint64_t grant, struct sheaf_principal *ret_principal)
{
        struct sheaf_principal p = { .pidfd = -1, .grant = grant };
        struct ucred cred;
        socklen_t len = sizeof(cred);
        int rc;

        if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len))
                return -errno;
        if (cred.uid == SHEAF_UID_UNMAPPED && !grant)
                return -EACCES;
        p.uid = cred.uid;
        p.gid = cred.gid;
        p.pid = cred.pid > 0 ? cred.pid : 0;
        rc = read_groups(sock, &p);
        if (rc)
                return rc;
        p.pidfd = read_pidfd(sock, p.pid);
        *ret_principal = p;
        return 0;
}

void sheaf_principal_clear(struct sheaf_principal *principal)
{
        free(principal->groups);
        principal->groups = NULL;
        sheaf_close_p(&principal->pidfd);
}

bool sheaf_principal_in_group(
        const struct sheaf_principal *principal, gid_t gid)
{
        if (principal->gid == gid)
                return true;
        for (size_t i = 0; i < principal->group_count; i++)
                if (principal->groups[i] == gid)
                        return true;
        return false;
}
