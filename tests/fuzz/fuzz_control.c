/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a control message, decoded and as a record with descriptors.
 *
 *  1 refused, or a message for which message.h holds
 *  2 a record arrives whole, with its descriptors, or is refused; whatever
 *    it was, no descriptor stays open */
#include "proto/wire.h"
#include "tests/fuzz/message.h"

#include <fcntl.h>
#include <sys/socket.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The number that the next descriptor gets. */
static int next_fd(void)
{
        int fd = dup(0);

        if (fd < 0 || close(fd))
                abort();
        return fd;
}

static void record(const uint8_t *data, size_t size)
{
        static int pair[2] = { -1, -1 };
        int fds[SHEAF_WIRE_FDS_MAX], before;
        size_t count = size % (SHEAF_WIRE_FDS_MAX + 1) < 60 ? size % 4 : 64;
        struct sheaf_wire_msg msg;
        int rc;

        if (pair[0] < 0 &&
                socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair))
                abort();
        before = next_fd();
        for (size_t i = 0; i < count; i++)
                fds[i] = pair[0];
        rc = sheaf_wire_send_record(pair[0], data, size, fds, count);
        if (size > SHEAF_WIRE_BYTES_MAX ? rc != -EMSGSIZE : rc != 0)
                abort();
        if (rc)
                return;
        rc = sheaf_wire_recv(pair[1], &msg);
        if (rc == 1) {
                if (msg.fd_count != count || !msg.env)
                        abort();
                for (size_t i = 0; i < count; i++)
                        if (fcntl(msg.fds[i], F_GETFD) != FD_CLOEXEC)
                                abort();
                rc = sheaf_wire_take_fd(&msg, 0);
                sheaf_wire_msg_free(&msg);
                sheaf_close_p(&rc);
        } else if (rc != -EBADMSG && (rc || size)) {
                abort();
        }
        if (next_fd() != before)
                abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        Sheaf__Envelope *env = sheaf_wire_decode(data, size);

        if (env)
                fuzz_message(&env->base);
        record(data, size);
        return 0;
}
