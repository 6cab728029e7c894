/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that speak the protocol to do harm. Each ends refused with an error
 * or disconnected, while others go on reading right bytes and the daemon
 * neither grows nor keeps anything. */
#include "tests/flow/hostile.h"
#include "tests/flow/kinds.h"

#include "proto/layout_shm.h"
#include "proto/wire.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define FILES HOSTILE_FILES

TestSuite(hostile, .init = hostile_begin, .fini = flow_fini, .timeout = 250);

/* ---- records ---- */

Test(hostile, garbage)
{
        static uint8_t noise[(64 << 10) + 1];
        uint32_t x = 7;

        for (size_t i = 0; i < sizeof(noise); i++) {
                x = x * 1664525 + 1013904223;
                noise[i] = (uint8_t)(x >> 24);
        }
        for (int i = 0; i < 200; i++) {
                struct peer p = i % 2 ? greet() : dial(flow.socket);
                size_t len = 1 + (size_t)i * 331 % 65536;

                (void)!sheaf_wire_send_record(
                        p.sock, noise + i % 100, len - len % 2, NULL, 0);
                close(p.sock);
        }
        for (int i = 0; i < 3; i++) {
                struct peer p = greet();
                struct sheaf_wire_msg msg;

                cr_assert_eq(send(p.sock, noise, sizeof(noise), 0),
                        (ssize_t)sizeof(noise));
                cr_assert_eq(await(&p, 99, &msg, NULL, NULL), -ECONNRESET);
                close(p.sock);
        }
        cr_assert_geq(flow_stat("clients.bad_messages"), 3);
        hostile_end();
}

/* Hello, and behind it a message of kind @field up to @cut; false: it is not
 * that long. */
static bool send_cut(const ProtobufCFieldDescriptor *field, size_t cut)
{
        Sheaf__Hello body = SHEAF__HELLO__INIT;
        struct peer p = dial(flow.socket);
        uint8_t data[2048] = { 0x08, 1 };
        size_t len = 2 + kinds_put(data + 2, field);
        Sheaf__Envelope env = envelope(&p, SHEAF__ENVELOPE__BODY_HELLO, &body);
        Sheaf__Envelope *whole = sheaf__envelope__unpack(NULL, len, data);

        cr_assert_not_null(whole, "%s", field->name);
        cr_assert_eq(whole->body_case, field->id);
        cr_assert_eq(whole->base.n_unknown_fields, 0);
        sheaf__envelope__free_unpacked(whole, NULL);
        body.layout_max = SHEAF_SHM_LAYOUT;
        body.kind = body.name = (char *)"lib";
        if (cut < len) {
                cr_assert_eq(sheaf_wire_send(p.sock, &env, NULL, 0), 0);
                (void)!sheaf_wire_send_record(p.sock, data, cut, NULL, 0);
        }
        close(p.sock);
        return cut < len;
}

/* One of each kind, cut at each byte: what is in the midst of its body does
 * not decode. */
Test(hostile, truncated_messages)
{
        const ProtobufCMessageDescriptor *all = &sheaf__envelope__descriptor;
        double bad = flow_stat("clients.bad_messages");
        size_t cuts = 0, kinds = 0;

        for (unsigned int i = 0; i < all->n_fields; i++) {
                size_t cut = 3;

                if (all->fields[i].type != PROTOBUF_C_TYPE_MESSAGE)
                        continue;
                kinds++;
                for (size_t early = 1; early < 3; early++)
                        (void)send_cut(&all->fields[i], early);
                while (send_cut(&all->fields[i], cut))
                        cut++;
                cuts += cut - 3;
        }
        printf("FIGURE: %zu kinds of messages, cut at %zu bytes\n", kinds,
                cuts);
        cr_assert_geq(kinds, 49);
        cr_assert(flow_until(30, flow_stat("clients.bad_messages") - bad >=
                                         (double)cuts),
                "%.0f of %zu were refused",
                flow_stat("clients.bad_messages") - bad, cuts);
        hostile_end();
}

Test(hostile, every_request_empty_and_before_hello)
{
        const ProtobufCMessageDescriptor *all = &sheaf__envelope__descriptor;
        /* one beyond the last too, which this build does not know */
        int last = (int)all->fields[all->n_fields - 1].id + 1;

        cr_assert_geq(last, SHEAF__ENVELOPE__BODY_REMOVE_JOB + 1);
        for (int body = 1; body <= last; body++) {
                uint8_t record[] = { 0x08, 1, (uint8_t)(body << 3 | 2),
                        (uint8_t)(body >> 4 | 0), 0 };
                size_t len = 5;

                /* Tag of field @body, length 0. */
                if (body < 16) {
                        record[3] = 0;
                        len = 4;
                } else {
                        record[2] |= 0x80;
                }
                for (int greeted = 0; greeted < 2; greeted++) {
                        struct peer p = greeted ? greet() : dial(flow.socket);
                        struct sheaf_wire_msg msg;
                        struct pollfd pfd = { .fd = p.sock, .events = POLLIN };

                        cr_assert_eq(sheaf_wire_send_record(
                                             p.sock, record, len, NULL, 0),
                                0);
                        if (poll(&pfd, 1, 100) > 0 &&
                                sheaf_wire_recv(p.sock, &msg) > 0) {
                                if (!greeted && body != 20)
                                        cr_expect_eq(msg.env->body_case,
                                                SHEAF__ENVELOPE__BODY_ERROR,
                                                "request %d before Hello",
                                                body);
                                sheaf_wire_msg_free(&msg);
                        }
                        close(p.sock);
                }
        }
        hostile_end();
}

/* ---- descriptors ---- */

Test(hostile, wrong_descriptors)
{
        struct peer p = greet();
        int fds[8], many[SHEAF_WIRE_FDS_MAX], pair[2], pipe_fd[2];
        Sheaf__AddDataset add = SHEAF__ADD_DATASET__INIT;
        Sheaf__UpdateDataset update = SHEAF__UPDATE_DATASET__INIT;
        Sheaf__GrantSocket grant = SHEAF__GRANT_SOCKET__INIT;
        Sheaf__ForkNote fork_note = SHEAF__FORK_NOTE__INIT;
        char *names[1] = { (char *)"data" };

        mkfifo(flow_path("fifo"), 0600);
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        cr_assert_eq(pipe(pipe_fd), 0);
        fds[0] = open(flow.log, O_RDONLY);
        fds[1] = open(flow_path("fifo"), O_RDWR);
        fds[2] = open("/dev/zero", O_RDWR);
        fds[3] = pair[0];
        fds[4] = pipe_fd[1];
        fds[5] = open("/proc/self/mem", O_RDWR);
        fds[6] = p.sock;
        fds[7] = open(flow.log, O_PATH);
        add.name = (char *)"bad";
        update.name = (char *)"data";
        grant.dataset = names;
        grant.n_dataset = 1;
        grant.dir.data = (uint8_t *)flow.base;
        grant.dir.len = strlen(flow.base);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(fds); i++) {
                cr_expect_lt(
                        call(&p,
                                envelope(&p, SHEAF__ENVELOPE__BODY_ADD_DATASET,
                                        &add),
                                &fds[i], 1),
                        0, "add with %zu", i);
                cr_expect_lt(
                        call(&p,
                                envelope(&p,
                                        SHEAF__ENVELOPE__BODY_UPDATE_DATASET,
                                        &update),
                                &fds[i], 1),
                        0, "update with %zu", i);
                cr_expect_lt(
                        call(&p,
                                envelope(&p, SHEAF__ENVELOPE__BODY_GRANT_SOCKET,
                                        &grant),
                                &fds[i], 1),
                        0, "grant with %zu", i);
                cr_expect_lt(
                        call(&p,
                                envelope(&p, SHEAF__ENVELOPE__BODY_FORK_NOTE,
                                        &fork_note),
                                &fds[i], 1),
                        0, "fork with %zu", i);
        }
        cr_expect_lt(
                call(&p, envelope(&p, SHEAF__ENVELOPE__BODY_ADD_DATASET, &add),
                        NULL, 0),
                0);
        for (size_t i = 0; i < SHEAF_WIRE_FDS_MAX; i++)
                many[i] = fds[2];
        cr_expect_lt(
                call(&p, envelope(&p, SHEAF__ENVELOPE__BODY_ADD_DATASET, &add),
                        many, SHEAF_WIRE_FDS_MAX),
                0);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(fds); i++)
                close(fds[i]);
        close(pair[1]);
        close(pipe_fd[0]);
        hostile_refused(p.errors);
        cr_expect_geq(p.errors, 4 * SHEAF_ARRAY_LEN(fds) + 1);
        hostile_end();
}

Test(hostile, what_it_was_given_cannot_be_changed)
{
        struct peer p = greet();
        int fds[128];
        size_t count;
        struct sheaf_hazard *hazard;

        open_data(&p, "data", fds, &count);
        cr_assert_geq(count, 6);
        for (size_t i = 0; i < count; i++) {
                bool shared = i == 0 || i == count - 1; /* hazard, meter */
                char zeros[64] = { 0 };
                void *map;

                cr_expect(ftruncate(fds[i], 0), "%zu cut", i);
                cr_expect(fallocate(fds[i],
                                  FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                                  4096) ||
                                  shared,
                        "%zu punched", i);
                if (!shared && count - i <= 3)
                        cr_expect_lt(pwrite(fds[i], zeros, 64, 0), 0,
                                "%zu written", i);
                map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED,
                        fds[i], 0);
                if (!shared && count - i <= 3)
                        cr_expect_eq(map, MAP_FAILED, "%zu mapped", i);
                if (map != MAP_FAILED)
                        munmap(map, 4096);
        }
        hazard = mmap(NULL, sizeof(*hazard), PROT_READ | PROT_WRITE, MAP_SHARED,
                fds[0], 0);
        cr_assert_neq(hazard, MAP_FAILED);
        memset(hazard, 0xff, sizeof(*hazard));
        flow_ok("sheaf warmup --evict data");
        hostile_check_others("data");
        for (uint64_t i = 0; i < SHEAF_HAZARD_SLOTS; i++)
                atomic_store(&hazard->slot[i], i << 32 | i | 1);
        flow_ok("sheaf status");
        flow_ok("sheaf warmup --evict data");
        hostile_check_others("data");
        munmap(hazard, sizeof(*hazard));
        for (size_t i = 0; i < count; i++)
                close(fds[i]);
        close(p.sock);
        hostile_end();
}

/* Whether a lock file is held by nobody: a successor would take its extent
 * for free. */
static bool unlocked(int lock_fd)
{
        char path[32];
        sheaf_autofd int fd = -1;

        snprintf(path, sizeof(path), "/proc/self/fd/%d", lock_fd);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        cr_assert_geq(fd, 0);
        if (!flock(fd, LOCK_EX | LOCK_NB))
                return true;
        cr_assert_eq(errno, EWOULDBLOCK);
        return false;
}

/* Locks of extents are at even places. Neither the daemon's own hold nor
 * another client's ends by what one does to its own. */
Test(hostile, unlocks_for_itself_alone)
{
        struct peer p = greet(), q = greet();
        int fds[128], others[128];
        size_t count, other_count;

        open_data(&p, "data", fds, &count);
        open_data(&q, "data", others, &other_count);
        cr_assert_geq(count, 6);
        cr_assert_eq(count, other_count);
        for (size_t i = 2; i + 3 < count; i += 2) {
                cr_expect_neq(ftruncate(fds[i], 4096), 0);
                cr_expect_neq(flock(fds[i], LOCK_EX | LOCK_NB), 0);
                cr_expect_eq(flock(fds[i], LOCK_UN), 0);
                cr_expect_not(unlocked(fds[i]), "%zu beside the daemon", i);
        }
        hostile_check_others("data");
        /* It may wait for the daemon with all that it has mapped. */
        hostile_reader_leave();
        flow_kill();
        for (size_t i = 2; i + 3 < count; i += 2) {
                cr_expect_not(unlocked(fds[i]), "%zu beside a client", i);
                close(others[i]);
                /* A child of the daemon may hold all until its exec. */
                cr_expect(flow_until(30, unlocked(fds[i])), "%zu beside nobody",
                        i);
        }
}

/* ---- numbers ---- */

Test(hostile, absurd_numbers)
{
        struct peer p = greet();
        int fds[128];
        size_t count;
        uint32_t handle = open_data(&p, "data", fds, &count);
        uint64_t bad[] = { 0, UINT64_MAX, 1, (UINT64_C(1) << 24) | 0xffffff,
                UINT64_C(0xffffffff) << 24, UINT64_C(1) << 56,
                UINT64_C(1000000) << 24 };
        static uint64_t many[8000];
        Sheaf__Fetch fetch;
        Sheaf__PinGrant grant = SHEAF__PIN_GRANT__INIT;
        Sheaf__Unmapped unmapped = SHEAF__UNMAPPED__INIT;
        Sheaf__CloseDataset close_body = SHEAF__CLOSE_DATASET__INIT;
        Sheaf__Cancel cancel = SHEAF__CANCEL__INIT;
        Sheaf__GetDigest digest = SHEAF__GET_DIGEST__INIT;
        Sheaf__OpenPlain plain = SHEAF__OPEN_PLAIN__INIT;
        Sheaf__ClosePlain close_plain = SHEAF__CLOSE_PLAIN__INIT;

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(bad); i++)
                cr_expect_lt(call(&p, fetch_of(&p, &fetch, handle, &bad[i], 1),
                                     NULL, 0),
                        0, "item %zu", i);
        cr_expect_lt(
                call(&p, fetch_of(&p, &fetch, handle, NULL, 0), NULL, 0), 0);
        cr_expect_lt(
                call(&p, fetch_of(&p, &fetch, handle, many, 8000), NULL, 0), 0);
        cr_expect_lt(call(&p, fetch_of(&p, &fetch, 1023, bad, 1), NULL, 0), 0);
        cr_expect_lt(
                call(&p, fetch_of(&p, &fetch, UINT32_MAX, bad, 1), NULL, 0), 0);
        for (uint32_t i = 0; i < 3; i++) {
                grant.arena = i;
                grant.bytes = UINT64_C(1) << 63;
                (void)call(&p,
                        envelope(&p, SHEAF__ENVELOPE__BODY_PIN_GRANT, &grant),
                        NULL, 0);
        }
        cr_expect_leq(flow_stat("pins.granted_bytes"), 32 << 20);
        for (uint32_t i = 0; i < 2000; i++) {
                Sheaf__Envelope env =
                        envelope(&p, SHEAF__ENVELOPE__BODY_UNMAPPED, &unmapped);

                unmapped.arena = i % 3;
                unmapped.extent = i * 7919;
                cr_assert_eq(sheaf_wire_send(p.sock, &env, NULL, 0), 0);
        }
        cancel.id = 1;
        cr_expect_eq(
                call(&p, envelope(&p, SHEAF__ENVELOPE__BODY_CANCEL, &cancel),
                        NULL, 0),
                0);
        digest.handle = plain.handle = handle;
        digest.entry = plain.entry = UINT32_MAX;
        cr_expect_lt(
                call(&p,
                        envelope(&p, SHEAF__ENVELOPE__BODY_GET_DIGEST, &digest),
                        NULL, 0),
                0);
        cr_expect_lt(
                call(&p, envelope(&p, SHEAF__ENVELOPE__BODY_OPEN_PLAIN, &plain),
                        NULL, 0),
                0);
        close_plain.lease = 12345;
        (void)call(&p,
                envelope(&p, SHEAF__ENVELOPE__BODY_CLOSE_PLAIN, &close_plain),
                NULL, 0);
        close_body.handle = UINT32_MAX;
        cr_expect_lt(call(&p,
                             envelope(&p, SHEAF__ENVELOPE__BODY_CLOSE_DATASET,
                                     &close_body),
                             NULL, 0),
                0);
        hostile_refused(p.errors);
        for (size_t i = 0; i < count; i++)
                close(fds[i]);
        close(p.sock);
        hostile_end();
}

/* ---- floods ---- */

Test(hostile, hints_without_end)
{
        struct peer p = greet();
        int fds[128];
        size_t count;
        uint32_t handle = open_data(&p, "data", fds, &count);
        static uint64_t items[4096];
        Sheaf__Fetch body;

        for (size_t i = 0; i < 4096; i++)
                items[i] = (uint64_t)(1 + i % FILES) << 24;
        for (int i = 0; i < 1000; i++) {
                Sheaf__Envelope env = fetch_of(&p, &body, handle, items, 4096);

                body.hint = true;
                cr_assert_eq(call(&p, env, NULL, 0), 0);
        }
        for (size_t i = 0; i < count; i++)
                close(fds[i]);
        close(p.sock);
        hostile_end();
}

/* All are answered, some with "too many". */
Test(hostile, many_requests_at_once)
{
        struct peer p = greet();
        int fds[128];
        size_t count, answers = 0;
        uint32_t handle = open_data(&p, "data", fds, &count);
        uint64_t item = UINT64_C(1) << 24;
        Sheaf__Verify verify = SHEAF__VERIFY__INIT;
        Sheaf__Fetch fetch;
        double limit = flow_now() + 60;

        verify.name = (char *)"data";
        verify.origin = true;
        for (int i = 0; i < 300; i++) {
                Sheaf__Envelope env =
                        i % 2 ? fetch_of(&p, &fetch, handle, &item, 1)
                              : envelope(&p, SHEAF__ENVELOPE__BODY_VERIFY,
                                        &verify);

                if (i % 2)
                        fetch.copy = true;
                cr_assert_eq(sheaf_wire_send(p.sock, &env, NULL, 0), 0);
        }
        while (answers < 300 && flow_now() < limit) {
                struct sheaf_wire_msg msg;

                cr_assert_eq(sheaf_wire_recv(p.sock, &msg), 1);
                answers += msg.env->id && !msg.env->more;
                sheaf_wire_msg_free(&msg);
        }
        cr_assert_eq(answers, 300);
        for (size_t i = 0; i < count; i++)
                close(fds[i]);
        close(p.sock);
        hostile_end();
}

Test(hostile, never_reads_its_answers)
{
        struct peer p = greet();
        Sheaf__GetStats stats = SHEAF__GET_STATS__INIT;
        int rc = 0;

        fcntl(p.sock, F_SETFL, O_NONBLOCK);
        for (int i = 0; i < 200000 && rc != -EPIPE && rc != -ECONNRESET; i++) {
                Sheaf__Envelope env =
                        envelope(&p, SHEAF__ENVELOPE__BODY_GET_STATS, &stats);

                rc = sheaf_wire_send(p.sock, &env, NULL, 0);
                if (rc == -EAGAIN)
                        flow_sleep(0.001);
        }
        cr_assert(rc == -EPIPE || rc == -ECONNRESET, "still there: %d", rc);
        cr_assert_geq(flow_stat("clients.dropped_slow"), 1);
        close(p.sock);
        hostile_end();
}

Test(hostile, forks_without_end)
{
        struct peer p = greet();
        int fds[128], pipe_fd[2];
        size_t count;
        int refused = 0;

        open_data(&p, "data", fds, &count);
        cr_assert_eq(pipe(pipe_fd), 0);
        for (int i = 0; i < 3000; i++) {
                Sheaf__ForkNote note = SHEAF__FORK_NOTE__INIT;

                refused += call(&p,
                                   envelope(&p, SHEAF__ENVELOPE__BODY_FORK_NOTE,
                                           &note),
                                   pipe_fd, 1) != 0;
        }
        cr_assert_geq(refused, 1900);
        hostile_check_others("data");
        for (size_t i = 0; i < count; i++)
                close(fds[i]);
        close(p.sock);
        close(pipe_fd[0]);
        close(pipe_fd[1]);
        cr_assert(flow_until(20, flow_stat("pins.forks") == 0));
        hostile_end();
}

Test(hostile, idle_connections)
{
        int socks[500];

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(socks); i++) {
                socks[i] = sheaf_wire_connect(flow.socket);
                cr_assert(socks[i] >= 0);
        }
        hostile_check_others("data");
        cr_assert(flow_live());
        flow_ok("sheaf status");
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(socks); i++)
                close(socks[i]);
        hostile_end();
}

/* ---- rights ---- */

static int open_rc(struct peer *p, const char *name)
{
        Sheaf__OpenDataset body = SHEAF__OPEN_DATASET__INIT;

        body.name = (char *)name;
        body.map = true;
        return call(p, envelope(p, SHEAF__ENVELOPE__BODY_OPEN_DATASET, &body),
                NULL, 0);
}

static void as_stranger(void)
{
        struct peer p = { .sock = sheaf_wire_connect(flow.socket) };
        Sheaf__RemoveDataset rm = SHEAF__REMOVE_DATASET__INIT;
        Sheaf__Evict evict = SHEAF__EVICT__INIT;
        Sheaf__Share share = SHEAF__SHARE__INIT;

        if (hello(&p))
                _exit(1);
        if (open_rc(&p, "private") != -ENOENT ||
                open_rc(&p, "~0/private") != -ENOENT ||
                open_rc(&p, "~root/private") != -ENOENT)
                _exit(2);
        rm.name = evict.name = share.name = (char *)"data";
        rm.force = share.force = true;
        share.share = (char *)"owner";
        if (call(&p, envelope(&p, SHEAF__ENVELOPE__BODY_REMOVE_DATASET, &rm),
                    NULL, 0) != -EPERM ||
                call(&p, envelope(&p, SHEAF__ENVELOPE__BODY_EVICT, &evict),
                        NULL, 0) != -EPERM ||
                call(&p, envelope(&p, SHEAF__ENVELOPE__BODY_SHARE, &share),
                        NULL, 0) != -EPERM)
                _exit(3);
        rm.name = (char *)"private";
        if (call(&p, envelope(&p, SHEAF__ENVELOPE__BODY_REMOVE_DATASET, &rm),
                    NULL, 0) != -ENOENT)
                _exit(4);
        _exit(0);
}

static void as_unmapped(void)
{
        struct peer p = { .sock = sheaf_wire_connect(flow.socket) };

        _exit(p.sock >= 0 && hello(&p) == 0);
}

Test(hostile, strangers)
{
        pid_t pid;

        flow_ok("sheaf add private %s", flow.origin);
        pid = flow_fork(4001, 0);
        if (!pid)
                as_stranger();
        cr_assert_eq(flow_join(pid, 20), 0);
        pid = flow_fork(65534, 0);
        if (!pid)
                as_unmapped();
        cr_assert_eq(flow_join(pid, 20), 0);
        hostile_end();
}

Test(hostile, a_grant_reads_and_nothing_else)
{
        static const Sheaf__Envelope__BodyCase bodies[] = {
                SHEAF__ENVELOPE__BODY_REMOVE_DATASET,
                SHEAF__ENVELOPE__BODY_SEAL, SHEAF__ENVELOPE__BODY_VERIFY,
                SHEAF__ENVELOPE__BODY_WARMUP, SHEAF__ENVELOPE__BODY_EVICT,
                SHEAF__ENVELOPE__BODY_SHARE,
                SHEAF__ENVELOPE__BODY_UPDATE_DATASET,
                SHEAF__ENVELOPE__BODY_LIST_JOBS,
                SHEAF__ENVELOPE__BODY_REMOVE_JOB
        };
        struct peer p;

        flow_ok("sheaf add private %s", flow.origin);
        mkdir(flow_path("grant"), 0755);
        flow_ok("sheaf grant data --dir %s", flow_path("grant"));
        p = dial(flow_path("grant/sheafd.sock"));
        cr_assert_eq(hello(&p), 0);
        cr_expect_eq(open_rc(&p, "data"), 0);
        cr_expect_eq(open_rc(&p, "private"), -ENOENT);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(bodies); i++) {
                Sheaf__RemoveDataset named = SHEAF__REMOVE_DATASET__INIT;
                uint8_t record[64];
                Sheaf__Envelope env = envelope(
                        &p, SHEAF__ENVELOPE__BODY_REMOVE_DATASET, &named);
                struct sheaf_wire_msg msg;
                size_t len;

                /* All of these have the name as their first field. */
                named.name = (char *)"data";
                len = sheaf__envelope__pack(&env, record);
                record[2] = (uint8_t)(bodies[i] << 3 | 2 | 0x80);
                record[3] = (uint8_t)(bodies[i] >> 4);
                cr_assert_eq(
                        sheaf_wire_send_record(p.sock, record, len, NULL, 0),
                        0);
                cr_assert_eq(await(&p, env.id, &msg, NULL, NULL), 0);
                cr_assert_eq(msg.env->body_case, SHEAF__ENVELOPE__BODY_ERROR);
                cr_expect_eq(msg.env->error->errno_value, EPERM, "request %d",
                        (int)bodies[i]);
                sheaf_wire_msg_free(&msg);
        }
        close(p.sock);
        flow_ok("sheaf rm --force private");
        hostile_end();
}

Test(hostile, a_label_without_end)
{
        struct peer p = greet();
        Sheaf__GrantSocket grant = SHEAF__GRANT_SOCKET__INIT;
        char *names[1] = { (char *)"data" }, label[60000];
        int fd = open(flow.base, O_RDONLY | O_DIRECTORY);

        memset(label, 'x', sizeof(label) - 1);
        label[sizeof(label) - 1] = 0;
        grant.dataset = names;
        grant.n_dataset = 1;
        grant.dir.data = (uint8_t *)flow.base;
        grant.dir.len = strlen(flow.base);
        grant.label = label;
        cr_expect_eq(call(&p,
                             envelope(&p, SHEAF__ENVELOPE__BODY_GRANT_SOCKET,
                                     &grant),
                             &fd, 1),
                -EINVAL);
        flow_ok("sheaf grant --list");
        close(fd);
        close(p.sock);
        hostile_end();
}

/* ---- jobs ---- */

#define GREEDY      3   /* users who take all jobs that they can get */
#define JOBS_EACH   64  /* what one of them may have */
#define JOBS_TRIED  100 /* beyond it */
#define JOBS_MODEST 4   /* what is always left for others */

/* Opens jobs under names of its own, and of subsets, and binds a slot of each:
 * how many it got; -1: a refusal that does not tell the limit and what to do,
 * or none that was final. */
static int open_jobs(
        struct sheaf_dataset *dataset, int count, struct sheaf_job **jobs)
{
        int got = 0;

        for (int i = 0; i < count; i++) {
                uint8_t subset[(HOSTILE_FILES + 8) / 8] = { 0 };
                struct sheaf_job_options options = { .subset = subset };
                uint64_t ordinal;
                uint32_t slot = 0;
                char name[16];
                int rc;

                subset[0] = (uint8_t)(i / 3 + 1);
                subset[1] = (uint8_t)getuid();
                snprintf(name, sizeof(name), "job%d", i);
                options.name = name;
                rc = sheaf_job_open(dataset, &options, &jobs[got]);
                if (!rc) {
                        got++;
                        rc = sheaf_job_bind(
                                jobs[got - 1], 0, &slot, 1, 0, &ordinal);
                        HOSTILE_NEED(rc == 0, 90);
                        continue;
                }
                HOSTILE_NEED(rc == -EBUSY, 91);
                HOSTILE_NEED(strstr(sheaf_last_error(), "64 jobs") &&
                                     strstr(sheaf_last_error(), "close some"),
                        92);
        }
        return got;
}

/* Keeps what it got alive until @stop hangs up. */
static void be_greedy(int ready, int stop)
{
        static struct sheaf_job *jobs[JOBS_TRIED];
        struct pollfd hang_up = { .fd = stop, .events = POLLIN };
        struct sheaf_session *session;
        struct sheaf_dataset *ds;
        int got;

        HOSTILE_NEED(flow_open("~root/data", &session, &ds) == 0, 93);
        got = open_jobs(ds, JOBS_TRIED, jobs);
        HOSTILE_NEED(got == JOBS_EACH, 94);
        HOSTILE_NEED(write(ready, "", 1) == 1, 95);
        while (poll(&hang_up, 1, 50) == 0)
                for (int i = 0; i < got; i++) {
                        uint64_t ordinal;
                        uint32_t slot = 0;

                        HOSTILE_NEED(sheaf_job_bind(jobs[i], 0, &slot, 1, 0,
                                             &ordinal) == 0,
                                96);
                }
        _exit(0);
}

static void be_modest(const char *name)
{
        struct sheaf_job *jobs[JOBS_MODEST];
        struct sheaf_session *session;
        struct sheaf_dataset *ds;

        HOSTILE_NEED(flow_open(name, &session, &ds) == 0, 97);
        HOSTILE_NEED(open_jobs(ds, JOBS_MODEST, jobs) == JOBS_MODEST, 98);
        _exit(0);
}

/* Three users open jobs of a dataset that is open to all, as many as each can,
 * and keep binding. Others, and root, get theirs. */
Test(hostile, jobs_without_end)
{
        static const uid_t modest[] = { 0, 1001, 1002, 0 };
        pid_t greedy[GREEDY];
        int ready[2], stop[2];
        char byte;

        cr_assert_eq(pipe(ready), 0);
        cr_assert_eq(pipe(stop), 0);
        for (uid_t i = 0; i < GREEDY; i++) {
                greedy[i] = flow_fork(HOSTILE_UID + i, 0);
                if (!greedy[i]) {
                        close(stop[1]);
                        be_greedy(ready[1], stop[0]);
                }
        }
        close(ready[1]);
        for (int i = 0; i < GREEDY; i++)
                cr_assert_eq(read(ready[0], &byte, 1), 1, "it gave up");
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(modest); i++) {
                pid_t pid = flow_fork(modest[i], 0);

                if (!pid)
                        be_modest("~root/data");
                cr_assert_eq(flow_join(pid, 60), 0);
        }
        cr_assert_geq(
                flow_stat("jobs.refused"), GREEDY * (JOBS_TRIED - JOBS_EACH));
        cr_assert_geq(flow_stat("jobs.live"), GREEDY * JOBS_EACH);
        close(stop[1]);
        for (int i = 0; i < GREEDY; i++)
                cr_assert_eq(flow_join(greedy[i], 30), 0);
        cr_assert(flow_until(20, flow_stat("jobs.live") == 0));
        close(ready[0]);
        close(stop[0]);
        hostile_end();
}
