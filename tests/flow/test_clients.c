/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that are killed, stopped and forked while they hold bytes: their
 * claims end with them, and nobody else's bytes change. */
#include "tests/flow/peer.h"

#include <linux/sched.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

TestSuite(clients, .init = flow_init, .fini = flow_fini, .timeout = 80);

#define CHUNK (UINT64_C(4) << 20)
#define FILES 50 /* of a chunk each: 200 MiB */

static void setup(void)
{
        flow.memory = "64MiB";
        for (uint32_t i = 0; i < FILES; i++)
                flow_file(i, CHUNK, "f%02u", i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
}

static void name_of(uint32_t i, char name[16])
{
        snprintf(name, 16, "f%02u", i);
}

static bool view_is(const struct sheaf_view *view, uint32_t id)
{
        return view->piece_count == 1 &&
               flow_stamp_check(view->pieces[0].iov_base, id, 0, CHUNK);
}

/* A client that pins file @i, says so by a byte, then waits for a byte and
 * ends 0 if its bytes are still right. */
struct client {
        pid_t pid;
        int said_fd, order_fd;
};

static void client_run(uint32_t i, int say_fd, int order_fd)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_view view;
        char name[16], byte = 0;
        uint64_t ordinal;
        int rc = flow_open("data", &session, &dataset);

        name_of(i, name);
        if (!rc)
                rc = sheaf_dataset_lookup(dataset, name, &ordinal);
        if (!rc)
                rc = sheaf_view_file(dataset, ordinal, &view);
        if (rc)
                byte = (char)-rc;
        if (write(say_fd, &byte, 1) != 1 || rc)
                _exit(1);
        if (read(order_fd, &byte, 1) != 1)
                _exit(2);
        _exit(view_is(&view, i) ? 0 : 3);
}

static struct client client_start(uint32_t i)
{
        int say[2], order[2];
        pid_t pid;

        cr_assert(!pipe2(say, O_CLOEXEC) && !pipe2(order, O_CLOEXEC), "%s",
                strerror(errno));
        pid = flow_fork(0, 0);
        cr_assert_geq(pid, 0);
        if (!pid) {
                close(say[0]);
                close(order[1]);
                client_run(i, say[1], order[0]);
        }
        close(say[1]);
        close(order[0]);
        return (struct client){ pid, say[0], order[1] };
}

/* 0 when it holds its bytes, else an errno. */
static int client_ready(const struct client *client)
{
        char byte;

        if (read(client->said_fd, &byte, 1) != 1)
                return EPIPE;
        return byte;
}

static void client_close(const struct client *client)
{
        close(client->said_fd);
        close(client->order_fd);
}

static void client_kill(const struct client *client)
{
        kill(client->pid, SIGKILL);
        cr_assert_eq(flow_join(client->pid, 5), 128 + SIGKILL);
        client_close(client);
}

static void client_finish(const struct client *client)
{
        cr_assert_eq(write(client->order_fd, "", 1), 1);
        cr_assert_eq(flow_join(client->pid, 10), 0, "its bytes changed");
        client_close(client);
}

/* Reads all files; more than three times what the arena holds. */
static void churn(void)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        char name[16];

        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        for (uint32_t i = 0; i < FILES; i++) {
                name_of(i, name);
                cr_assert_eq(flow_check_view(dataset, name, i, CHUNK), 0,
                        "%s: %s", name, sheaf_last_error());
        }
        flow_close(session, dataset);
}

static bool no_pins(void)
{
        return flow_stat("pins.clients") == 0 && flow_stat("pins.bytes") == 0 &&
               flow_stat("pins.forks") == 0;
}

Test(clients, killed_with_pins)
{
        struct client clients[8];

        flow.faults = "delay=300:f1";
        setup();
        /* f1x are slow: those clients are killed in the middle of a fill. */
        for (uint32_t i = 0; i < 8; i++)
                clients[i] = client_start(i % 2 ? 10 + i : i);
        for (uint32_t i = 0; i < 8; i += 2)
                cr_assert_eq(client_ready(&clients[i]), 0);
        cr_assert_geq(
                flow_stat("pins.bytes"), CHUNK, "%g", flow_stat("pins.bytes"));
        for (uint32_t i = 1; i < 8; i++)
                client_kill(&clients[i]);
        cr_assert(flow_until(20, flow_stat("pins.bytes") <= CHUNK),
                "%g bytes stay pinned", flow_stat("pins.bytes"));
        flow_mount("data", flow.mount);
        for (uint32_t i = 0; i < FILES; i++)
                cr_assert_eq(flow_check(flow_path("mount/f%02u", i), i, CHUNK,
                                     1 << 20),
                        0);
        churn();
        client_finish(&clients[0]);
        flow_umount(flow.mount);
        cr_assert(flow_until(20, no_pins()), "%s", flow.last.out);
        flow_stop();
}

Test(clients, a_thousand_are_killed)
{
        uint64_t memory = 0;
        double blocks = 0;
        long fds = 0;

        setup();
        churn();
        for (uint32_t i = 0; i < 1000; i++) {
                struct client client = client_start(i % FILES);
                int rc = client_ready(&client);

                cr_assert_eq(rc, 0, "client %u: %s", i, strerror(rc));
                client_kill(&client);
                if (i != 100)
                        continue;
                cr_assert(flow_until(20, no_pins()));
                fds = flow_fds(flow.daemon);
                memory = flow_rss(flow.daemon);
                blocks = flow_stat("arena.blocks");
        }
        cr_assert(flow_until(20, no_pins()), "%s", flow.last.out);
        cr_assert_leq(flow_fds(flow.daemon), fds + 2, "%ld from %ld",
                flow_fds(flow.daemon), fds);
        if (!flow_sanitized(flow.daemon))
                cr_assert_leq(flow_rss(flow.daemon), memory + (8 << 20),
                        "%llu from %llu",
                        (unsigned long long)flow_rss(flow.daemon),
                        (unsigned long long)memory);
        cr_assert_leq(flow_stat("arena.blocks"), blocks + 16);
        churn();
        flow_stop();
}

Test(clients, five_hundred_at_once, .timeout = 240)
{
        enum {
                COUNT = 500,
                KILLED = 400
        };
        static struct client clients[COUNT];

        setup();
        for (uint32_t round = 0; round < 2; round++) {
                uint32_t first = round ? COUNT - KILLED : 0;

                for (uint32_t i = first; i < COUNT; i++)
                        clients[i] = client_start(i % 4);
                for (uint32_t i = first; i < COUNT; i++) {
                        int rc = client_ready(&clients[i]);

                        cr_assert_eq(rc, 0, "client %u: %s", i, strerror(rc));
                }
                for (uint32_t i = COUNT - KILLED; !round && i < COUNT; i++)
                        client_kill(&clients[i]);
        }
        cr_assert_leq(flow_stat("pins.granted_bytes"), 32 << 20);
        for (uint32_t i = 0; i < COUNT; i++)
                client_finish(&clients[i]);
        cr_assert(flow_until(20, no_pins()), "%s", flow.last.out);
        churn();
        flow_stop();
}

Test(clients, stopped_client_keeps_its_bytes)
{
        struct client client;

        setup();
        client = client_start(7);
        cr_assert_eq(client_ready(&client), 0);
        cr_assert_eq(
                flow_stat("pins.bytes"), CHUNK, "%g", flow_stat("pins.bytes"));
        kill(client.pid, SIGSTOP);
        for (int round = 0; round < 4; round++)
                churn();
        cr_assert_gt(flow_stat("arena.evicted"), FILES);
        flow_sleep(2);
        kill(client.pid, SIGCONT);
        client_finish(&client);
        cr_assert(flow_until(20, no_pins()), "%s", flow.last.out);
        flow_stop();
}

/* The parent pins, forks, lets go and leaves; the child holds on until it is
 * killed, or the test is gone. */
static pid_t fork_with_pin(const int say[2], uint32_t i)
{
        int say_fd = say[1];
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_view view;
        uint64_t ordinal;
        char name[16];
        pid_t pid = flow_fork(0, 0), child;

        if (pid)
                return pid;
        close(say[0]); /* or nobody would hear of the test's end */
        name_of(i, name);
        if (flow_open("data", &session, &dataset) ||
                sheaf_dataset_lookup(dataset, name, &ordinal) ||
                sheaf_view_file(dataset, ordinal, &view))
                _exit(1);
        child = fork();
        if (!child) {
                for (int round = 0;; round++) {
                        char good = view_is(&view, i);

                        if (!good || round == 1)
                                (void)!write(say_fd, &good, 1);
                        if (poll(&(struct pollfd){ say_fd, 0, 0 }, 1, 20) > 0)
                                _exit(0);
                }
        }
        (void)!write(say_fd, &child, sizeof(child));
        sheaf_view_release(&view);
        flow_close(session, dataset);
        _exit(0);
}

Test(clients, forked_children_hold_pins)
{
        setup();
        for (uint32_t round = 0; round < 50; round++) {
                int say[2];
                pid_t parent, child = 0;
                char good;

                cr_assert(!pipe2(say, O_CLOEXEC));
                parent = fork_with_pin(say, round % FILES);
                close(say[1]);
                cr_assert_eq(read(say[0], &child, sizeof(child)),
                        (ssize_t)sizeof(child));
                cr_assert_eq(flow_join(parent, 5), 0);
                if (round % 10 == 0) {
                        cr_assert_eq(flow_stat("pins.forks"), 1);
                        churn();
                }
                cr_assert_eq(read(say[0], &good, 1), 1);
                cr_assert(good, "the child's bytes changed");
                kill(child, SIGKILL);
                flow_wait(child, 5);
                /* Whatever it saw went wrong was said by then. */
                cr_assert_eq(read(say[0], &good, 1), 0);
                close(say[0]);
        }
        cr_assert(flow_until(20, no_pins()), "%s", flow.last.out);
        flow_stop();
}

/* ---- a fork that the daemon hears of late ---- */

static void pass_on(struct sheaf_wire_msg *msg, int to)
{
        if (sheaf_wire_send(to, msg->env, msg->fds, msg->fd_count))
                _exit(2);
        sheaf_wire_msg_free(msg);
}

/* Between one client and the daemon. It says when a fork's note is there, and
 * passes it on when it is told to. */
static void hold_notes(int listener, int say_fd, int order_fd)
{
        int from, to = sheaf_wire_connect(flow.socket);
        struct sheaf_wire_msg msg;
        char c;

        poll(&(struct pollfd){ listener, POLLIN, 0 }, 1, -1);
        from = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (from < 0 || to < 0)
                _exit(1);
        while (true) {
                struct pollfd fds[] = { { from, POLLIN, 0 },
                        { to, POLLIN, 0 } };

                poll(fds, 2, -1);
                for (int i = 0; i < 2; i++) {
                        if (!fds[i].revents)
                                continue;
                        if (sheaf_wire_recv(fds[i].fd, &msg) != 1)
                                _exit(0);
                        if (msg.env->body_case ==
                                SHEAF__ENVELOPE__BODY_FORK_NOTE) {
                                (void)!write(say_fd, "x", 1);
                                (void)!read(order_fd, &c, 1);
                        }
                        pass_on(&msg, fds[1 - i].fd);
                }
        }
}

static pid_t start_holder(const char *path, int *ret_said, int *ret_order)
{
        int say[2], order[2], listener = sheaf_wire_listen(path, 0666);
        pid_t pid;

        cr_assert_geq(listener, 0);
        cr_assert(!pipe2(say, O_CLOEXEC) && !pipe2(order, O_CLOEXEC));
        pid = flow_fork(0, 0);
        if (!pid)
                hold_notes(listener, say[1], order[0]);
        close(listener);
        close(say[1]);
        close(order[0]);
        *ret_said = say[0];
        *ret_order = order[1];
        return pid;
}

/* Until it has heard, the parent keeps what it lets go of; then the daemon. */
Test(clients, a_fork_that_is_heard_of_late)
{
        int said, order, say[2];
        pid_t holder, parent, child;
        char c;

        setup();
        holder = start_holder(flow_path("between"), &said, &order);
        setenv("SHEAF_SOCKET", flow_path("between"), 1);
        cr_assert(!pipe2(say, O_CLOEXEC));
        parent = fork_with_pin(say, 7);
        setenv("SHEAF_SOCKET", flow.socket, 1);
        close(say[1]);
        cr_assert_eq(read(said, &c, 1), 1);
        /* The parent waited in vain, and is gone. */
        cr_assert_eq(
                read(say[0], &child, sizeof(child)), (ssize_t)sizeof(child));
        flow_ok("sheaf warmup data --evict --memory --quiet");
        churn();
        cr_assert_eq(flow_stat("pins.forks"), 0);
        cr_assert_eq(write(order, "x", 1), 1);
        cr_assert(flow_until(20, flow_stat("pins.forks") == 1));
        cr_assert_eq(flow_join(parent, 20), 0);
        churn();
        cr_assert_eq(read(say[0], &c, 1), 1);
        cr_assert(c, "the child's bytes changed");
        kill(child, SIGKILL);
        flow_wait(child, 5);
        /* Whatever it saw went wrong was said by then. */
        cr_assert_eq(read(say[0], &c, 1), 0, "the child's bytes changed");
        close(say[0]);
        close(said);
        close(order);
        cr_assert_eq(flow_join(holder, 20), 0);
        cr_assert(flow_until(20, no_pins()), "%s", flow.last.out);
        flow_stop();
}

/* ---- many forks beside threads ---- */

#define FORKS        200
#define SMALL        20
#define SMALL_BYTES  UINT64_C(50000)
#define FORK_THREADS 2

/* Sanitizers of this time leave their allocator's locks as they are at a
 * fork, so a child of a threaded process may not allocate under them. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CHILD_MAY_ALLOCATE false
#else
#define CHILD_MAY_ALLOCATE true
#endif

static struct sheaf_dataset *forked_dataset;
static atomic_bool forks_over, thread_failed;

static int read_small(uint32_t first, uint32_t count)
{
        for (uint32_t i = first; i < first + count; i++) {
                char name[16];
                int rc;

                snprintf(name, sizeof(name), "s%02u", i % SMALL);
                rc = flow_check_view(
                        forked_dataset, name, 100 + i % SMALL, SMALL_BYTES);
                if (rc) {
                        fprintf(stderr, "%s: %d %s\n", name, rc,
                                sheaf_last_error());
                        return rc;
                }
        }
        return 0;
}

static bool held_is_right(const struct sheaf_view *held)
{
        return held->len_bytes == SMALL_BYTES &&
               flow_stamp_check(held->pieces[0].iov_base, 100, 0, SMALL_BYTES);
}

static void *read_on(void *arg)
{
        while (!forks_over)
                if (read_small((uint32_t)(uintptr_t)arg, SMALL))
                        thread_failed = true;
        return NULL;
}

/* Ten samples in each child; every second one ends through exit(), with what
 * runs at an exit. */
static int fork_half(const struct sheaf_view *held)
{
        for (uint32_t round = 0; round < FORKS / 2; round++) {
                pid_t child = fork();
                int rc;

                if (!child) {
                        prctl(PR_SET_PDEATHSIG, SIGKILL);
                        rc = held_is_right(held) ? -read_small(round, 10) : 99;
                        if (round % 2)
                                _exit(rc);
                        exit(rc);
                }
                rc = flow_wait(child, 20);
                if (rc) {
                        fprintf(stderr, "child %u: %d\n", round, rc);
                        return 10;
                }
                if (!held_is_right(held))
                        return 11;
        }
        return 0;
}

static void *fork_other_half(void *arg)
{
        return (void *)(intptr_t)fork_half(arg);
}

/* By the thread that opened the dataset, and by another one. */
static int fork_all(struct sheaf_view *held)
{
        int rc = fork_half(held);
        pthread_t other;
        void *late;

        if (rc)
                return rc;
        if (pthread_create(&other, NULL, fork_other_half, held) ||
                pthread_join(other, &late))
                return 13;
        return (int)(intptr_t)late;
}

/* Says that it holds its pin, forks, says that it is done, and waits. */
static void run_forker(int say_fd, int order_fd)
{
        struct sheaf_session *session;
        pthread_t threads[FORK_THREADS];
        struct sheaf_view held;
        uint64_t ordinal;
        char byte = 0;

        if (flow_open("data", &session, &forked_dataset) ||
                sheaf_dataset_lookup(forked_dataset, "s00", &ordinal) ||
                sheaf_view_file(forked_dataset, ordinal, &held))
                _exit(1);
        (void)!write(say_fd, &byte, 1);
        (void)!read(order_fd, &byte, 1);
        for (uintptr_t t = 0; t < FORK_THREADS; t++)
                if (pthread_create(&threads[t], NULL, read_on, (void *)t))
                        _exit(2);
        byte = (char)fork_all(&held);
        forks_over = true;
        for (size_t t = 0; t < FORK_THREADS; t++)
                pthread_join(threads[t], NULL);
        if (thread_failed)
                byte = 12;
        (void)!write(say_fd, &byte, 1);
        (void)!read(order_fd, &byte, 1);
        sheaf_view_release(&held);
        flow_close(session, forked_dataset);
        _exit(0);
}

Test(clients, two_hundred_forks_leave_pins_flat)
{
        int say[2], order[2];
        double pinned;
        char byte = 1;
        pid_t pid;

        if (!CHILD_MAY_ALLOCATE) {
                printf("SKIP: two_hundred_forks_leave_pins_flat: a "
                       "sanitizer's allocator is not safe after fork\n");
                return;
        }
        for (uint32_t i = 0; i < SMALL; i++)
                flow_file(100 + i, SMALL_BYTES, "s%02u", i);
        flow.memory = "64MiB";
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        cr_assert(!pipe2(say, O_CLOEXEC) && !pipe2(order, O_CLOEXEC));
        pid = flow_fork(0, 0);
        if (!pid)
                run_forker(say[1], order[0]);
        close(say[1]);
        cr_assert_eq(read(say[0], &byte, 1), 1);
        cr_assert_eq(flow_stat("pins.clients"), 1);
        pinned = flow_stat("pins.bytes");
        cr_assert_geq(pinned, SMALL_BYTES);
        cr_assert_eq(write(order[1], &byte, 1), 1);
        cr_assert_eq(read(say[0], &byte, 1), 1);
        cr_assert_eq(byte, 0, "%d", byte);
        /* That of the parent is left, and what its threads set aside. */
        cr_assert(flow_until(10, flow_stat("pins.forks") == 0 &&
                                         flow_stat("pins.clients") == 1));
        cr_assert_eq(flow_stat("pins.bytes"), pinned);
        cr_assert_eq(write(order[1], &byte, 1), 1);
        cr_assert_eq(flow_join(pid, 10), 0);
        cr_assert(flow_until(5, no_pins()), "%s", flow.last.out);
        flow_stop();
}

/* ---- a pid that is used again ---- */

/* A process of that very pid, which does nothing; 0: not allowed here. */
static pid_t start_with_pid(pid_t pid)
{
        struct clone_args args = { .exit_signal = SIGCHLD,
                .set_tid = (uintptr_t)&pid,
                .set_tid_size = 1 };
        long rc = syscall(SYS_clone3, &args, sizeof(args));

        if (!rc) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                for (;;)
                        pause();
        }
        return rc > 0 ? (pid_t)rc : 0;
}

/* The daemon learns of the end only when the number is somebody else's. */
Test(clients, pid_used_again)
{
        struct client client;
        pid_t other;

        setup();
        client = client_start(3);
        cr_assert_eq(client_ready(&client), 0);
        cr_assert_geq(flow_stat("pins.bytes"), CHUNK);
        kill(flow.daemon, SIGSTOP);
        client_kill(&client);
        other = start_with_pid(client.pid);
        kill(flow.daemon, SIGCONT);
        if (!other) {
                fprintf(stderr, "SKIP: flow.clients: pid_used_again: %s\n",
                        strerror(errno));
                return;
        }
        cr_assert_eq(other, client.pid);
        cr_assert(flow_until(20, no_pins()), "%s", flow.last.out);
        churn();
        cr_assert_eq(flow_wait(other, 0), -1, "it was harmed");
        kill(other, SIGKILL);
        flow_join(other, 5);
        flow_stop();
}

/* ---- writing to what is read-only ---- */

/* Ends 0 when every way of writing failed; the last one kills. */
static void write_everywhere(void)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_view view;
        uint64_t ordinal;
        void *at;
        int fd;

        if (flow_open("data", &session, &dataset) ||
                sheaf_dataset_lookup(dataset, "f05", &ordinal) ||
                sheaf_view_file(dataset, ordinal, &view))
                _exit(1);
        at = view.pieces[0].iov_base;
        fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
        if (fd >= 0 && pwrite(fd, "x", 1, (off_t)(uintptr_t)at) >= 0)
                _exit(2);
        fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
        if (read(fd, at, 1) >= 0)
                _exit(3);
        if (!mprotect((void *)((uintptr_t)at & ~UINT64_C(4095)), 4096,
                    PROT_READ | PROT_WRITE))
                _exit(4);
        signal(SIGSEGV, SIG_DFL);
        *(volatile char *)at = 1;
        _exit(5);
}

Test(clients, views_cannot_be_written)
{
        struct client witness;
        pid_t pid;

        setup();
        witness = client_start(5);
        cr_assert_eq(client_ready(&witness), 0);
        flow_mount("data", flow.mount);
        pid = flow_fork(0, 0);
        if (!pid)
                write_everywhere();
        cr_assert_eq(flow_join(pid, 20), 128 + SIGSEGV);
        client_finish(&witness);
        cr_assert_eq(flow_check(flow_path("mount/f05"), 5, CHUNK, 1 << 20), 0);
        churn();
        cr_assert(flow_until(20, flow_stat("pins.bytes") == 0));
        flow_umount(flow.mount);
        flow_stop();
}
