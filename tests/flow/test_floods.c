/* SPDX-License-Identifier: Apache-2.0 */
/* Floods: of messages, descriptors, connections, answers that nobody reads;
 * clients that stop in the middle. Beside each an honest reader goes on. */
#include "tests/flow/hostile.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

TestSuite(floods, .init = hostile_begin, .fini = flow_fini, .timeout = 120);

#define CONNECTIONS 5000
#define MUTE        8 /* connections that never read */

static struct peer greet_quietly(void)
{
        struct peer p = { .sock = sheaf_wire_connect(flow.socket) };

        HOSTILE_NEED(p.sock >= 0 && hello(&p) == 0, 80);
        return p;
}

/* Runs @work as another user until it exits. */
static void by_stranger(const char *test, void (*work)(void))
{
        pid_t pid = hostile_fork(HOSTILE_STRANGER);

        cr_assert(pid >= 0);
        if (!pid) {
                work();
                _exit(0);
        }
        hostile_join(pid, 60);
        hostile_end_as(test, "");
}

static size_t pack(struct peer *p, Sheaf__Envelope__BodyCase body, void *of,
        uint8_t *record)
{
        Sheaf__Envelope env = envelope(p, body, of);

        return sheaf__envelope__pack(&env, record);
}

/* ---- descriptors ---- */

#define KERNEL_FDS_MAX 253

/* One record with @n descriptors, more than the protocol has. */
static int send_many_fds(int sock, const void *record, size_t len, size_t n)
{
        static union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(sizeof(int) * KERNEL_FDS_MAX)];
        } space;
        struct iovec iov = { .iov_base = (void *)record, .iov_len = len };
        struct msghdr msg = { .msg_iov = &iov,
                .msg_iovlen = 1,
                .msg_control = &space,
                .msg_controllen = CMSG_SPACE(sizeof(int) * n) };
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
        static int fds[KERNEL_FDS_MAX];

        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof(int) * n);
        for (size_t i = 0; i < n; i++)
                fds[i] = sock;
        memcpy(CMSG_DATA(cmsg), fds, sizeof(int) * n);
        return sendmsg(sock, &msg, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static void flood_descriptors(void)
{
        Sheaf__GetStats stats = SHEAF__GET_STATS__INIT;
        static const size_t many[] = { 5, SHEAF_WIRE_FDS_MAX, KERNEL_FDS_MAX };
        uint8_t record[64];

        for (int turn = 0; !hostile_long_enough(); turn++) {
                struct peer p = greet_quietly();
                int fds[4] = { p.sock, p.sock, p.sock, p.sock };
                struct sheaf_wire_msg msg;
                size_t len;

                for (int i = 0; i < 20; i++)
                        HOSTILE_NEED(
                                call(&p,
                                        envelope(&p,
                                                SHEAF__ENVELOPE__BODY_GET_STATS,
                                                &stats),
                                        fds, 4) == -EINVAL,
                                1);
                len = pack(&p, SHEAF__ENVELOPE__BODY_GET_STATS, &stats, record);
                HOSTILE_NEED(
                        !send_many_fds(p.sock, record, len, many[turn % 3]), 2);
                HOSTILE_NEED(
                        await(&p, p.id, &msg, NULL, NULL) == -ECONNRESET, 3);
                close(p.sock);
        }
}

Test(floods, descriptors)
{
        by_stranger(__func__, flood_descriptors);
}

/* ---- messages ---- */

static void drain(struct peer *p)
{
        struct sheaf_wire_msg msg;

        while (sheaf_wire_recv(p->sock, &msg) == 1)
                sheaf_wire_msg_free(&msg);
}

/* As fast as the socket takes them; what comes back is read. */
static void flood_messages(void)
{
        struct peer p[4];
        Sheaf__GetStats stats = SHEAF__GET_STATS__INIT;
        Sheaf__GetStatus status = SHEAF__GET_STATUS__INIT;
        Sheaf__ListDatasets list = SHEAF__LIST_DATASETS__INIT;
        Sheaf__Cancel cancel = SHEAF__CANCEL__INIT;
        struct opened opened[4];
        uint64_t item = UINT64_C(1) << 24;
        Sheaf__Fetch fetch;
        unsigned long sent = 0;

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(p); i++) {
                p[i] = greet_quietly();
                HOSTILE_NEED(!open_quietly(&p[i], "data", &opened[i]), 1);
                fcntl(p[i].sock, F_SETFL, O_NONBLOCK);
        }
        while (!hostile_long_enough() || sent < 5000) {
                struct peer *q = &p[sent % SHEAF_ARRAY_LEN(p)];
                Sheaf__Envelope env[] = {
                        envelope(q, SHEAF__ENVELOPE__BODY_GET_STATS, &stats),
                        envelope(q, SHEAF__ENVELOPE__BODY_GET_STATUS, &status),
                        envelope(q, SHEAF__ENVELOPE__BODY_LIST_DATASETS, &list),
                        fetch_of(q, &fetch,
                                opened[sent % SHEAF_ARRAY_LEN(p)].handle, &item,
                                1),
                        envelope(q, SHEAF__ENVELOPE__BODY_CANCEL, &cancel),
                };
                int rc = sheaf_wire_send(q->sock,
                        &env[sent / 4 % SHEAF_ARRAY_LEN(env)], NULL, 0);

                HOSTILE_NEED(rc == 0 || rc == -EAGAIN, 2);
                drain(q);
                sent++;
        }
}

Test(floods, messages)
{
        by_stranger(__func__, flood_messages);
}

/* Numbers of requests that are used again and again, and cancelled. */
static void confuse_numbers(void)
{
        struct peer p = greet_quietly();
        struct opened opened;
        uint64_t item = UINT64_C(1) << 24;
        Sheaf__Cancel cancel = SHEAF__CANCEL__INIT;
        Sheaf__Warmup warmup = SHEAF__WARMUP__INIT;
        Sheaf__Fetch fetch;
        bool alive = true;

        HOSTILE_NEED(!open_quietly(&p, "data", &opened), 1);
        fcntl(p.sock, F_SETFL, O_NONBLOCK);
        warmup.name = (char *)"data";
        while (alive && !hostile_long_enough())
                for (uint64_t id = 0; id < 3; id++) {
                        Sheaf__Envelope env[] = {
                                fetch_of(&p, &fetch, opened.handle, &item, 1),
                                envelope(&p, SHEAF__ENVELOPE__BODY_WARMUP,
                                        &warmup),
                                envelope(&p, SHEAF__ENVELOPE__BODY_CANCEL,
                                        &cancel),
                                envelope(&p, SHEAF__ENVELOPE__BODY_CANCEL,
                                        &cancel),
                        };

                        cancel.id = id;
                        for (size_t i = 0; i < SHEAF_ARRAY_LEN(env); i++) {
                                int rc;

                                env[i].id = id;
                                rc = sheaf_wire_send(p.sock, &env[i], NULL, 0);
                                alive &= rc == 0 || rc == -EAGAIN;
                        }
                        drain(&p);
                }
}

Test(floods, the_same_numbers)
{
        by_stranger(__func__, confuse_numbers);
}

static void open_and_close(void)
{
        while (!hostile_long_enough()) {
                struct peer p = greet_quietly();
                Sheaf__CloseDataset body = SHEAF__CLOSE_DATASET__INIT;
                struct opened opened;

                for (int i = 0; i < 20; i++) {
                        HOSTILE_NEED(!open_quietly(&p, "data", &opened), 1);
                        body.handle = opened.handle;
                        HOSTILE_NEED(
                                !call(&p,
                                        envelope(&p,
                                                SHEAF__ENVELOPE__BODY_CLOSE_DATASET,
                                                &body),
                                        NULL, 0),
                                2);
                        close_opened(&opened);
                }
                /* As many as there may be at once, never closed. */
                for (int i = 0; i < 200; i++)
                        HOSTILE_NEED(!open_quietly(&p, "data", &opened) &&
                                             (close_opened(&opened), true),
                                3);
                close(p.sock);
        }
}

Test(floods, opens)
{
        by_stranger(__func__, open_and_close);
}

/* ---- answers that nobody reads ---- */

static void read_nothing(void)
{
        struct peer p[MUTE];
        Sheaf__GetStats stats = SHEAF__GET_STATS__INIT;
        bool gone[MUTE] = { false };
        double end = flow_now() + 50;
        size_t left = MUTE;

        for (size_t i = 0; i < MUTE; i++) {
                p[i] = greet_quietly();
                fcntl(p[i].sock, F_SETFL, O_NONBLOCK);
        }
        while (left && flow_now() < end) {
                bool full = true;

                for (size_t i = 0; i < MUTE; i++) {
                        Sheaf__Envelope env = envelope(
                                &p[i], SHEAF__ENVELOPE__BODY_GET_STATS, &stats);
                        int rc = gone[i] ? -EAGAIN
                                         : sheaf_wire_send(
                                                   p[i].sock, &env, NULL, 0);

                        full &= rc == -EAGAIN;
                        if (rc == 0 || rc == -EAGAIN)
                                continue;
                        gone[i] = true;
                        left--;
                }
                if (full)
                        flow_sleep(0.002);
        }
        HOSTILE_NEED(left == 0, 1);
}

Test(floods, nobody_reads)
{
        double dropped = flow_stat("clients.dropped_slow");
        pid_t pid = hostile_fork(HOSTILE_STRANGER);

        if (!pid) {
                read_nothing();
                _exit(0);
        }
        hostile_join(pid, 60);
        cr_expect_geq(flow_stat("clients.dropped_slow") - dropped, MUTE);
        flow_run("grep -ac 'it does not read its answers' %s", flow.log);
        cr_expect_leq(atoi(flow.last.out), 4, "a line each: %s", flow.last.out);
        hostile_end();
}

#define LISTED 60 /* datasets with long paths */
#define LISTS  100

static void add_long(struct peer *p)
{
        Sheaf__AddDataset add = SHEAF__ADD_DATASET__INIT;
        int fd = open(flow.origin, O_RDONLY | O_DIRECTORY);
        static uint8_t path[4000];
        char name[16];

        memset(path, 'x', sizeof(path));
        path[0] = '/';
        add.origin.data = path;
        add.origin.len = sizeof(path);
        add.name = name;
        for (int i = 0; i < LISTED; i++) {
                snprintf(name, sizeof(name), "long%d", i);
                cr_assert_eq(
                        call(p,
                                envelope(p, SHEAF__ENVELOPE__BODY_ADD_DATASET,
                                        &add),
                                &fd, 1),
                        0);
        }
        close(fd);
}

static void remove_long(struct peer *p)
{
        Sheaf__RemoveDataset rm = SHEAF__REMOVE_DATASET__INIT;
        char name[16];

        rm.name = name;
        rm.force = true;
        for (int i = 0; i < LISTED; i++) {
                snprintf(name, sizeof(name), "long%d", i);
                cr_assert_eq(
                        call(p,
                                envelope(p,
                                        SHEAF__ENVELOPE__BODY_REMOVE_DATASET,
                                        &rm),
                                NULL, 0),
                        0);
        }
}

/* Answers far beyond what is queued for a client, who reads them late. */
Test(floods, long_answers_that_are_read)
{
        struct peer p = greet();
        Sheaf__ListDatasets list = SHEAF__LIST_DATASETS__INIT;
        Sheaf__GetStats stats = SHEAF__GET_STATS__INIT;
        size_t ends = 0, infos = 0, bad = 0;

        add_long(&p);
        for (int i = 0; i < LISTS; i++) {
                Sheaf__Envelope env =
                        i % 4 ? envelope(&p,
                                        SHEAF__ENVELOPE__BODY_LIST_DATASETS,
                                        &list)
                              : envelope(&p, SHEAF__ENVELOPE__BODY_GET_STATS,
                                        &stats);

                cr_assert_eq(sheaf_wire_send(p.sock, &env, NULL, 0), 0);
        }
        cr_assert(flow_live());
        while (ends < LISTS) {
                struct sheaf_wire_msg msg;

                cr_assert_eq(sheaf_wire_recv(p.sock, &msg), 1,
                        "dropped after %zu", ends);
                ends += msg.env->id && !msg.env->more;
                infos += msg.env->body_case ==
                         SHEAF__ENVELOPE__BODY_DATASET_INFO;
                bad += msg.env->body_case == SHEAF__ENVELOPE__BODY_ERROR;
                sheaf_wire_msg_free(&msg);
        }
        cr_expect_eq(bad, 0);
        cr_expect_eq(infos, (LISTED + 1) * (LISTS - LISTS / 4));
        remove_long(&p);
        close(p.sock);
        hostile_end();
}

#define UNREAD 48 /* connections: each has a MiB queued at most */

/* While a user's other connections do not read, an answer may have to wait
 * that has nothing queued itself. It comes when they do, or go. */
Test(floods, answers_wait_for_the_queues_of_others)
{
        struct peer p = greet(), unread[UNREAD];
        Sheaf__ListDatasets list = SHEAF__LIST_DATASETS__INIT;
        struct sheaf_wire_msg msg;
        Sheaf__Envelope env;

        add_long(&p);
        for (size_t i = 0; i < UNREAD; i++) {
                unread[i] = greet();
                for (int n = 0; n < 8; n++) {
                        env = envelope(&unread[i],
                                SHEAF__ENVELOPE__BODY_LIST_DATASETS, &list);
                        cr_assert_eq(
                                sheaf_wire_send(unread[i].sock, &env, NULL, 0),
                                0);
                }
        }
        env = envelope(&p, SHEAF__ENVELOPE__BODY_LIST_DATASETS, &list);
        cr_assert_eq(sheaf_wire_send(p.sock, &env, NULL, 0), 0);
        cr_expect_eq(poll(&(struct pollfd){ .fd = p.sock, .events = POLLIN }, 1,
                             300),
                0, "it did not have to wait");
        for (size_t i = 0; i < UNREAD; i++)
                close(unread[i].sock);
        cr_assert_eq(await(&p, env.id, &msg, NULL, NULL), 0);
        sheaf_wire_msg_free(&msg);
        remove_long(&p);
        close(p.sock);
        hostile_end();
}

#define GRANTS       110 /* of names that take 5 MiB when they are told */
#define GRANT_NAMES  256
#define GRANT_LETTER 199

Test(floods, long_lists_of_grants_that_are_read)
{
        Sheaf__GrantSocket grant = SHEAF__GRANT_SOCKET__INIT;
        Sheaf__ListGrants list = SHEAF__LIST_GRANTS__INIT;
        Sheaf__RevokeGrant revoke = SHEAF__REVOKE_GRANT__INIT;
        char name[GRANT_LETTER + 1], dir[128], *names[GRANT_NAMES];
        char ids[GRANTS][32];
        double dropped = flow_stat("clients.dropped_slow");
        struct peer p = greet();
        struct sheaf_wire_msg msg;
        Sheaf__Envelope env;
        bool ended = false;
        size_t told = 0;

        memset(name, 'n', sizeof(name) - 1);
        name[sizeof(name) - 1] = 0;
        for (size_t i = 0; i < GRANT_NAMES; i++)
                names[i] = name;
        flow_ok("sheaf add %s %s", name, flow.origin);
        grant.dataset = names;
        grant.n_dataset = GRANT_NAMES;
        grant.dir.data = (uint8_t *)dir;
        for (int i = 0; i < GRANTS; i++) {
                int fd;

                snprintf(dir, sizeof(dir), "%s/grant%d", flow.base, i);
                cr_assert(!mkdir(dir, 0755));
                fd = open(dir, O_RDONLY | O_DIRECTORY);
                grant.dir.len = strlen(dir);
                cr_assert_eq(
                        call(&p,
                                envelope(&p, SHEAF__ENVELOPE__BODY_GRANT_SOCKET,
                                        &grant),
                                &fd, 1),
                        0);
                close(fd);
        }
        env = envelope(&p, SHEAF__ENVELOPE__BODY_LIST_GRANTS, &list);
        cr_assert_eq(sheaf_wire_send(p.sock, &env, NULL, 0), 0);
        cr_assert(flow_live());
        while (!ended) {
                cr_assert_eq(sheaf_wire_recv(p.sock, &msg), 1,
                        "dropped after %zu", told);
                if (msg.env->body_case == SHEAF__ENVELOPE__BODY_GRANT_INFO) {
                        cr_assert_lt(told, GRANTS);
                        snprintf(ids[told++], sizeof(ids[0]), "%s",
                                msg.env->grant_info->id);
                }
                ended = msg.env->body_case == SHEAF__ENVELOPE__BODY_DONE;
                cr_assert_neq(msg.env->body_case, SHEAF__ENVELOPE__BODY_ERROR);
                sheaf_wire_msg_free(&msg);
        }
        cr_expect_eq(told, GRANTS);
        cr_expect_eq(flow_stat("clients.dropped_slow"), dropped);
        for (size_t i = 0; i < told; i++) {
                revoke.id = ids[i];
                cr_assert_eq(
                        call(&p,
                                envelope(&p, SHEAF__ENVELOPE__BODY_REVOKE_GRANT,
                                        &revoke),
                                NULL, 0),
                        0);
        }
        close(p.sock);
        flow_ok("sheaf rm --force %s", name);
        hostile_end();
}

/* ---- connections ---- */

static void connect_thousands(void)
{
        static struct peer p[CONNECTIONS];
        struct rlimit limit = { CONNECTIONS + 64, CONNECTIONS + 64 };
        size_t welcome = 0;

        HOSTILE_NEED(!setrlimit(RLIMIT_NOFILE, &limit) ||
                             !getrlimit(RLIMIT_NOFILE, &limit),
                1);
        for (size_t i = 0; i < CONNECTIONS; i++) {
                p[i].sock = sheaf_wire_connect(flow.socket);
                if (p[i].sock < 0)
                        break;
        }
        for (size_t i = 0; i < CONNECTIONS && p[i].sock > 0; i++)
                welcome += hello(&p[i]) == 0;
        HOSTILE_NEED(welcome >= 16, 2);
        HOSTILE_NEED(welcome <= 4096, 3);
        /* They stay a while. */
        while (!hostile_long_enough())
                flow_sleep(0.01);
}

Test(floods, thousands_of_connections)
{
        struct rlimit limit = { CONNECTIONS + 64, CONNECTIONS + 64 };
        pid_t pid;
        int rc;

        cr_assert(!setrlimit(RLIMIT_NOFILE, &limit));
        pid = hostile_fork(HOSTILE_STRANGER);
        if (!pid) {
                connect_thousands();
                _exit(0);
        }
        while ((rc = flow_wait(pid, 0)) < 0 && !hostile_long_enough()) {
                flow_ok("sheaf status");
                hostile_check_others("data");
        }
        if (rc < 0)
                hostile_join(pid, 60);
        else
                cr_assert_eq(rc, 0);
        cr_expect_gt(flow_stat("clients.refused"), 0);
        flow_run("grep -ac 'connection refused' %s", flow.log);
        cr_expect_leq(atoi(flow.last.out), 4, "a line each: %s", flow.last.out);
        hostile_end();
}

/* ---- stopping in the middle ---- */

static void stop_mute(void)
{
        struct peer p = { .sock = sheaf_wire_connect(flow.socket) };

        (void)p;
        raise(SIGSTOP);
}

static void stop_after_half_an_opening(void)
{
        struct peer p = greet_quietly();
        Sheaf__OpenDataset body = SHEAF__OPEN_DATASET__INIT;
        Sheaf__Envelope env;

        body.name = (char *)"data";
        body.map = true;
        env = envelope(&p, SHEAF__ENVELOPE__BODY_OPEN_DATASET, &body);
        HOSTILE_NEED(!sheaf_wire_send(p.sock, &env, NULL, 0), 1);
        raise(SIGSTOP);
}

static void stop_with_pins(void)
{
        struct peer p = greet_quietly();
        struct opened opened;
        struct sheaf_hazard *hazard;
        const uint8_t *table;

        HOSTILE_NEED(!open_quietly(&p, "data", &opened), 1);
        hazard = mmap(NULL, sizeof(*hazard), PROT_READ | PROT_WRITE, MAP_SHARED,
                opened.fds[0], 0);
        table = mmap(NULL, 8192, PROT_READ, MAP_SHARED,
                opened.fds[opened.count - 2], 0);
        HOSTILE_NEED(hazard != MAP_FAILED && table != MAP_FAILED, 2);
        atomic_store(&hazard->high_water, HOSTILE_FILES);
        for (size_t i = 0; i < HOSTILE_FILES; i++)
                atomic_store(&hazard->slot[i],
                        ((const _Atomic uint64_t
                                        *)(table +
                                           SHEAF_TABLE_WORDS_OFFSET))[i]);
        raise(SIGSTOP);
}

static void stop_with_requests(void)
{
        struct peer p = greet_quietly();
        struct opened opened;
        uint64_t item = (uint64_t)(HOSTILE_FILES + 1) << 24;
        Sheaf__Warmup warmup = SHEAF__WARMUP__INIT;
        Sheaf__Fetch body;

        HOSTILE_NEED(!open_quietly(&p, "data", &opened), 1);
        fcntl(p.sock, F_SETFL, O_NONBLOCK);
        warmup.name = (char *)"data";
        for (int i = 0; i < 250; i++) {
                Sheaf__Envelope env =
                        i % 2 ? fetch_of(&p, &body, opened.handle, &item, 1)
                              : envelope(&p, SHEAF__ENVELOPE__BODY_WARMUP,
                                        &warmup);

                if (i % 2)
                        body.copy = true;
                (void)!sheaf_wire_send(p.sock, &env, NULL, 0);
        }
        raise(SIGSTOP);
}

static void stop_while_sending_forks(void)
{
        struct peer p = greet_quietly();
        struct opened opened;
        int pipe_fd[2];

        HOSTILE_NEED(!open_quietly(&p, "data", &opened), 1);
        fcntl(p.sock, F_SETFL, O_NONBLOCK);
        for (int i = 0; i < 20; i++) {
                Sheaf__ForkNote note = SHEAF__FORK_NOTE__INIT;
                Sheaf__Envelope env =
                        envelope(&p, SHEAF__ENVELOPE__BODY_FORK_NOTE, &note);

                HOSTILE_NEED(!pipe(pipe_fd), 2);
                (void)!sheaf_wire_send(p.sock, &env, pipe_fd, 1);
        }
        raise(SIGSTOP);
}

Test(floods, stopped_in_the_middle)
{
        static void (*const ways[])(void) = { stop_mute,
                stop_after_half_an_opening, stop_with_pins, stop_with_requests,
                stop_while_sending_forks };
        pid_t pid[SHEAF_ARRAY_LEN(ways)];
        int status;

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(ways); i++) {
                pid[i] = hostile_fork(HOSTILE_STRANGER);
                if (!pid[i]) {
                        ways[i]();
                        _exit(1);
                }
                cr_assert_eq(waitpid(pid[i], &status, WUNTRACED), pid[i]);
                cr_assert(WIFSTOPPED(status), "way %zu: %x", i, status);
        }
        do {
                flow_ok("sheaf warmup --evict data");
                flow_ok("sheaf warmup data");
                hostile_check_others("data");
        } while (!hostile_long_enough());
        /* It does not stand in the way of its dataset's owner, either. */
        flow_ok("sheaf add --share all --force other %s", flow.origin);
        flow_ok("sheaf update data");
        flow_ok("sheaf rm --force other");
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(ways); i++) {
                kill(pid[i], SIGKILL);
                cr_assert_eq(flow_join(pid[i], 5), 128 + SIGKILL);
        }
        hostile_end();
}
