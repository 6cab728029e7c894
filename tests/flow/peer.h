/* SPDX-License-Identifier: Apache-2.0 */
/* A client that speaks the protocol by hand, message by message. */
#ifndef SHEAF_TESTS_FLOW_PEER_H
#define SHEAF_TESTS_FLOW_PEER_H

#include "tests/flow/harness.h"
#include "proto/layout_shm.h"
#include "proto/wire.h"
#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

struct peer {
        int sock;
        uint64_t id;
        unsigned long errors; /* that were answers to call() */
};

static inline Sheaf__Envelope envelope(
        struct peer *p, Sheaf__Envelope__BodyCase body, void *of_body)
{
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;

        env.id = ++p->id;
        env.body_case = body;
        env.hello = of_body; /* all members of the union are pointers */
        return env;
}

/* Waits for the last reply to @id; what comes before is dropped, but its
 * descriptors are kept in @keep. 0; -ECONNRESET; -ETIMEDOUT. */
static inline int await(struct peer *p, uint64_t id,
        struct sheaf_wire_msg *ret_msg, int *keep, size_t *kept)
{
        double end = flow_now() + 20;

        while (flow_now() < end) {
                struct pollfd pfd = { .fd = p->sock, .events = POLLIN };
                struct sheaf_wire_msg msg;

                if (poll(&pfd, 1, 1000) <= 0)
                        continue;
                if (sheaf_wire_recv(p->sock, &msg) <= 0)
                        return -ECONNRESET;
                if (msg.env->id == id && !msg.env->more) {
                        *ret_msg = msg;
                        return 0;
                }
                for (size_t i = 0; keep && i < msg.fd_count; i++)
                        keep[(*kept)++] = sheaf_wire_take_fd(&msg, i);
                sheaf_wire_msg_free(&msg);
        }
        return -ETIMEDOUT;
}

/* Sends and waits: 0, the daemon's -errno, or -ECONNRESET. */
static inline int call(
        struct peer *p, Sheaf__Envelope env, const int *fds, size_t n)
{
        struct sheaf_wire_msg msg;
        int rc = sheaf_wire_send(p->sock, &env, fds, n);

        if (rc)
                return -ECONNRESET;
        rc = await(p, env.id, &msg, NULL, NULL);
        if (rc)
                return rc;
        if (msg.env->body_case == SHEAF__ENVELOPE__BODY_ERROR) {
                rc = -msg.env->error->errno_value;
                p->errors++;
        }
        sheaf_wire_msg_free(&msg);
        return rc;
}

static inline int hello(struct peer *p)
{
        Sheaf__Hello body = SHEAF__HELLO__INIT;

        body.layout_max = SHEAF_SHM_LAYOUT;
        body.kind = (char *)"lib";
        body.name = (char *)"hostile";
        return call(
                p, envelope(p, SHEAF__ENVELOPE__BODY_HELLO, &body), NULL, 0);
}

static inline struct peer dial(const char *path)
{
        struct peer p = { .sock = sheaf_wire_connect(path) };

        cr_assert(p.sock >= 0);
        return p;
}

static inline struct peer greet(void)
{
        struct peer p = dial(flow.socket);

        cr_assert_eq(hello(&p), 0);
        return p;
}

#define PEER_FDS_MAX 128

/* What came with an open dataset: hazard array, extents and locks in turn,
 * then listing, table, meter as the last three. */
struct opened {
        uint32_t handle;
        int fds[PEER_FDS_MAX];
        size_t count;
};

/* Opens dataset @name: 0, the daemon's -errno, -ECONNRESET. Asserts nothing. */
static inline int open_quietly(
        struct peer *p, const char *name, struct opened *ret_opened)
{
        Sheaf__OpenDataset body = SHEAF__OPEN_DATASET__INIT;
        Sheaf__Envelope env;
        struct sheaf_wire_msg msg;
        int rc;

        body.name = (char *)name;
        body.map = true;
        env = envelope(p, SHEAF__ENVELOPE__BODY_OPEN_DATASET, &body);
        ret_opened->count = 0;
        if (sheaf_wire_send(p->sock, &env, NULL, 0))
                return -ECONNRESET;
        rc = await(p, env.id, &msg, ret_opened->fds, &ret_opened->count);
        if (rc)
                return rc;
        if (msg.env->body_case == SHEAF__ENVELOPE__BODY_ERROR)
                rc = -msg.env->error->errno_value;
        else if (msg.env->body_case != SHEAF__ENVELOPE__BODY_DATASET_OPENED)
                rc = -EPROTO;
        else
                ret_opened->handle = msg.env->dataset_opened->handle;
        for (size_t i = 0; i < msg.fd_count; i++)
                ret_opened->fds[ret_opened->count++] =
                        sheaf_wire_take_fd(&msg, i);
        sheaf_wire_msg_free(&msg);
        return rc;
}

static inline void close_opened(struct opened *opened)
{
        for (size_t i = 0; i < opened->count; i++)
                close(opened->fds[i]);
        opened->count = 0;
}

/* The same, which must succeed. */
static inline uint32_t open_data(
        struct peer *p, const char *name, int *fds, size_t *count)
{
        struct opened opened;

        cr_assert_eq(open_quietly(p, name, &opened), 0);
        memcpy(fds, opened.fds, opened.count * sizeof(*fds));
        *count = opened.count;
        return opened.handle;
}

static inline Sheaf__Envelope fetch_of(struct peer *p, Sheaf__Fetch *body,
        uint32_t handle, uint64_t *items, size_t n)
{
        sheaf__fetch__init(body);
        body->handle = handle;
        body->item = items;
        body->n_item = n;
        return envelope(p, SHEAF__ENVELOPE__BODY_FETCH, body);
}

#endif
