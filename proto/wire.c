/* SPDX-License-Identifier: Apache-2.0 */
/* Records and descriptors over SOCK_SEQPACKET.
 *
 *  1 a record is sent by one sendmsg: never torn, never merged
 *  2 descriptors that arrive are close-on-exec from the start
 *  3 a truncated record or descriptor list is -EBADMSG, or -EMFILE where this
 *    process has no number left for a descriptor; nothing leaks */
#include "proto/wire.h"

#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

union fd_space {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * SHEAF_WIRE_FDS_MAX)];
};

int sheaf_wire_send_record(int sock, const void *data, size_t len_bytes,
        const int *fds, size_t fd_count)
{
        struct iovec iov = { .iov_base = (void *)data, .iov_len = len_bytes };
        struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
        union fd_space space;

        if (len_bytes > SHEAF_WIRE_BYTES_MAX || fd_count > SHEAF_WIRE_FDS_MAX)
                return -EMSGSIZE;
        if (fd_count) {
                memset(&space, 0, sizeof(space));
                msg.msg_control = &space;
                msg.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);

                struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);

                cmsg->cmsg_level = SOL_SOCKET;
                cmsg->cmsg_type = SCM_RIGHTS;
                cmsg->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
                memcpy(CMSG_DATA(cmsg), fds, sizeof(int) * fd_count);
        }
        for (;;) {
                ssize_t n = sendmsg(sock, &msg, MSG_NOSIGNAL);

                if (n >= 0)
                        return (size_t)n == len_bytes ? 0 : -EIO;
                if (errno != EINTR)
                        return errno == EWOULDBLOCK ? -EAGAIN : -errno;
        }
}

int sheaf_wire_send(
        int sock, const Sheaf__Envelope *env, const int *fds, size_t fd_count)
{
        sheaf_autofree uint8_t *heap = NULL;
        uint8_t stack[1024], *data = stack;
        size_t len = sheaf__envelope__get_packed_size(env);

        if (len > SHEAF_WIRE_BYTES_MAX)
                return -EMSGSIZE;
        if (len > sizeof(stack)) {
                data = heap = malloc(len);
                if (!heap)
                        return -ENOMEM;
        }
        sheaf__envelope__pack(env, data);
        return sheaf_wire_send_record(sock, data, len, fds, fd_count);
}

static size_t take_fds(struct msghdr *msg, int fds[SHEAF_WIRE_FDS_MAX])
{
        size_t count = 0;

        for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg); cmsg;
                cmsg = CMSG_NXTHDR(msg, cmsg)) {
                if (cmsg->cmsg_level != SOL_SOCKET ||
                        cmsg->cmsg_type != SCM_RIGHTS)
                        continue;
                size_t n = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);

                for (size_t i = 0; i < n; i++) {
                        int fd;

                        memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(int),
                                sizeof(fd));
                        if (count < SHEAF_WIRE_FDS_MAX)
                                fds[count++] = fd;
                        else
                                close(fd);
                }
        }
        return count;
}

/* The kernel cuts off descriptors for which there is no number, too: asked
 * before any of the others is closed. */
static int why_cut(int sock)
{
        sheaf_autofd int next = fcntl(sock, F_DUPFD_CLOEXEC, 0);

        return next < 0 && errno == EMFILE ? -EMFILE : -EBADMSG;
}

Sheaf__Envelope *sheaf_wire_decode(const void *data, size_t len_bytes)
{
        if (len_bytes > SHEAF_WIRE_BYTES_MAX)
                return NULL;
        return sheaf__envelope__unpack(NULL, len_bytes, data);
}

int sheaf_wire_recv_some(int sock, void *data, size_t cap_bytes, size_t fds_max,
        size_t *ret_len_bytes, int *ret_fds, size_t *ret_fd_count)
{
        union fd_space space;
        struct iovec iov = { .iov_base = data, .iov_len = cap_bytes };
        struct msghdr msg = { .msg_iov = &iov,
                .msg_iovlen = 1,
                .msg_control = &space,
                .msg_controllen =
                        fds_max ? CMSG_LEN(sizeof(int) * fds_max) : 0 };
        ssize_t n;

        *ret_fd_count = 0;
        do
                n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
        while (n < 0 && errno == EINTR);
        if (n < 0)
                return errno == EWOULDBLOCK ? -EAGAIN : -errno;
        *ret_fd_count = take_fds(&msg, ret_fds);
        if (msg.msg_flags & MSG_CTRUNC)
                return why_cut(sock);
        if (msg.msg_flags & MSG_TRUNC)
                return -EBADMSG;
        *ret_len_bytes = (size_t)n;
        return n > 0 || *ret_fd_count;
}

int sheaf_wire_brings_fds(int sock)
{
        struct msghdr msg = { 0 };
        ssize_t n;

        do
                n = recvmsg(sock, &msg, MSG_PEEK | MSG_DONTWAIT);
        while (n < 0 && errno == EINTR);
        if (n < 0)
                return errno == EWOULDBLOCK ? -EAGAIN : -errno;
        return !!(msg.msg_flags & MSG_CTRUNC);
}

int sheaf_wire_recv_record(int sock, void *data, size_t cap_bytes,
        size_t *ret_len_bytes, int ret_fds[SHEAF_WIRE_FDS_MAX],
        size_t *ret_fd_count)
{
        int fds[SHEAF_WIRE_FDS_MAX];
        size_t count;
        int rc = sheaf_wire_recv_some(sock, data, cap_bytes, SHEAF_WIRE_FDS_MAX,
                ret_len_bytes, fds, &count);

        if (rc <= 0) {
                for (size_t i = 0; i < count; i++)
                        close(fds[i]);
                return rc;
        }
        memcpy(ret_fds, fds, sizeof(*fds) * count);
        *ret_fd_count = count;
        return 1;
}

int sheaf_wire_recv(int sock, struct sheaf_wire_msg *ret_msg)
{
        sheaf_autofree uint8_t *data = malloc(SHEAF_WIRE_BYTES_MAX);
        struct sheaf_wire_msg out = { 0 };
        size_t len;
        int rc;

        if (!data)
                return -ENOMEM;
        rc = sheaf_wire_recv_record(
                sock, data, SHEAF_WIRE_BYTES_MAX, &len, out.fds, &out.fd_count);
        if (rc <= 0)
                return rc;
        out.env = sheaf_wire_decode(data, len);
        if (!out.env) {
                sheaf_wire_msg_free(&out);
                return -EBADMSG;
        }
        *ret_msg = out;
        return 1;
}

void sheaf_wire_msg_free(struct sheaf_wire_msg *msg)
{
        if (msg->env)
                sheaf__envelope__free_unpacked(msg->env, NULL);
        msg->env = NULL;
        for (size_t i = 0; i < msg->fd_count; i++)
                sheaf_close_p(&msg->fds[i]);
        msg->fd_count = 0;
}

int sheaf_wire_take_fd(struct sheaf_wire_msg *msg, size_t i)
{
        return i < msg->fd_count ? sheaf_steal_fd(&msg->fds[i]) : -1;
}

/* An address for @path, through its directory's descriptor if it is long;
 * *@dir_fd must stay open until the address was used. */
static int address(const char *path, struct sockaddr_un *addr, int *dir_fd)
{
        char copy[PATH_MAX], copy2[PATH_MAX];
        int n;

        *addr = (struct sockaddr_un){ .sun_family = AF_UNIX };
        *dir_fd = -1;
        if (!*path)
                return -ENOENT;
        if (strlen(path) >= sizeof(copy))
                return -ENAMETOOLONG;
        if (strlen(path) <= SHEAF_SOCKET_PATH_MAX) {
                strcpy(addr->sun_path, path);
                return 0;
        }
        strcpy(copy, path);
        strcpy(copy2, path);
        *dir_fd = open(dirname(copy), O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (*dir_fd < 0)
                return -errno;
        n = snprintf(addr->sun_path, sizeof(addr->sun_path),
                "/proc/self/fd/%d/%s", *dir_fd, basename(copy2));
        if (n < 0 || (size_t)n > SHEAF_SOCKET_PATH_MAX)
                return -ENAMETOOLONG;
        return 0;
}

static int dial(const char *path, int flags)
{
        struct sockaddr_un addr;
        sheaf_autofd int dir_fd = -1;
        sheaf_autofd int sock = -1;
        int rc = address(path, &addr, &dir_fd);

        if (rc)
                return rc;
        sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
        if (sock < 0)
                return -errno;
        if (connect(sock, (struct sockaddr *)&addr, sizeof(addr)))
                return -errno;
        return sheaf_steal_fd(&sock);
}

int sheaf_wire_connect(const char *path)
{
        return dial(path, 0);
}

int sheaf_wire_connect_now(const char *path)
{
        return dial(path, SOCK_NONBLOCK);
}

bool sheaf_wire_listens(const char *path)
{
        sheaf_autofd int sock = dial(path, SOCK_NONBLOCK);

        return sock >= 0 || sock == -EAGAIN;
}

/* The mode is given at bind: a chmod of the path could meet what somebody
 * put into its place. */
static int bind_with_mode(
        int sock, const struct sockaddr_un *addr, unsigned int mode)
{
        mode_t mask = umask(0777 & ~mode);
        int rc = bind(sock, (const struct sockaddr *)addr, sizeof(*addr));

        rc = rc ? -errno : 0;
        umask(mask);
        return rc;
}

int sheaf_wire_listen(const char *path, unsigned int mode)
{
        struct sockaddr_un addr;
        struct stat st;
        sheaf_autofd int dir_fd = -1;
        sheaf_autofd int sock = -1;
        int rc;

        /* A socket file without a listener is what a killed daemon left. */
        if (lstat(path, &st) == 0) {
                if (!S_ISSOCK(st.st_mode))
                        return -EEXIST;
                /* Who does not accept must not hold us up. */
                sock = dial(path, SOCK_NONBLOCK);
                if (sock >= 0 || sock == -EAGAIN)
                        return -EADDRINUSE;
                if (sock != -ECONNREFUSED)
                        return sock;
                if (unlink(path) && errno != ENOENT)
                        return -errno;
        }
        rc = address(path, &addr, &dir_fd);
        if (rc)
                return rc;
        sock = socket(
                AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (sock < 0)
                return -errno;
        rc = bind_with_mode(sock, &addr, mode);
        if (rc)
                return rc;
        if (listen(sock, 4096)) {
                rc = -errno;
                unlink(path);
                return rc;
        }
        return sheaf_steal_fd(&sock);
}
