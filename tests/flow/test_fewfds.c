/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that may open few files: each call works, or fails at once with
 * EMFILE, the limit and the remedy; it works when descriptors are free again.
 * The limit is low from the start, or falls once the dataset is open, or
 * while the daemon is away. And the same calls under a storm of signals. */
#include "client/internal.h"
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/time.h>

TestSuite(fewfds, .init = flow_init, .fini = flow_fini, .timeout = 250);

#define FILES     64
#define LEN       UINT64_C(9000)
#define LARGE     UINT64_C(6 << 20)
#define FEWEST    4
#define MOST      20
#define PLENTY    256
#define DEADLINE  120 /* s; what waits for it has failed */
#define AT_ONCE_S 30
#define CALLS     SHEAF_ARRAY_LEN(calls)

struct client {
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_job *job;
        uint32_t next; /* file that was not read yet */
};

static int have_session(struct client *c)
{
        struct sheaf_session_options options = { .deadline_ms = DEADLINE * 1000,
                .pin_bytes = 4 << 20 };

        return c->session ? 0 : sheaf_session_new(&options, &c->session);
}

static int call_connect(struct client *c)
{
        int rc = have_session(c);

        return rc ? rc : sheaf_session_connect(c->session);
}

static int call_open(struct client *c)
{
        int rc = have_session(c);

        if (!rc && !c->dataset)
                rc = sheaf_dataset_open(c->session, "data", &c->dataset);
        return rc;
}

static int next_file(struct client *c, uint64_t *ret_ordinal, uint32_t *ret_id)
{
        char name[16];
        int rc = call_open(c);

        if (rc)
                return rc;
        *ret_id = c->next++ % FILES + 1;
        snprintf(name, sizeof(name), "f%u", *ret_id);
        return sheaf_dataset_lookup(c->dataset, name, ret_ordinal);
}

static int call_view(struct client *c)
{
        struct sheaf_view view;
        uint64_t ordinal;
        uint32_t id;
        int rc = next_file(c, &ordinal, &id);

        if (!rc)
                rc = sheaf_view_file(c->dataset, ordinal, &view);
        if (rc)
                return rc;
        if (view.len_bytes != LEN ||
                !flow_stamp_check(view.pieces[0].iov_base, id, 0, LEN))
                rc = -EBADMSG;
        sheaf_view_release(&view);
        return rc;
}

static int call_batch(struct client *c)
{
        struct sheaf_view views[8];
        uint64_t ordinals[8];
        uint32_t ids[8];
        int64_t n;
        int rc = 0;

        for (size_t i = 0; !rc && i < 8; i++)
                rc = next_file(c, &ordinals[i], &ids[i]);
        if (rc)
                return rc;
        n = sheaf_view_batch(c->dataset, ordinals, 8, views, NULL);
        if (n < 0)
                return (int)n;
        for (size_t i = 0; i < 8; i++) {
                if (!flow_stamp_check(
                            views[i].pieces[0].iov_base, ids[i], 0, LEN))
                        rc = -EBADMSG;
                sheaf_view_release(&views[i]);
        }
        return n == 8 ? rc : -EBADMSG;
}

static int call_read(struct client *c)
{
        char buf[LEN];
        uint64_t ordinal;
        uint32_t id;
        int64_t n;
        int rc = next_file(c, &ordinal, &id);

        if (rc)
                return rc;
        n = sheaf_read(c->dataset, ordinal, buf, LEN, 0);
        if (n < 0)
                return (int)n;
        return n == LEN && flow_stamp_check(buf, id, 0, LEN) ? 0 : -EBADMSG;
}

/* More than may be pinned: copies. */
static int call_large_view(struct client *c)
{
        int rc = call_open(c);

        return rc ? rc : flow_check_view(c->dataset, "large", 99, LARGE);
}

static int call_prefetch(struct client *c)
{
        uint64_t ordinal = 0;
        int rc = call_open(c);

        if (!rc)
                rc = sheaf_prefetch(c->dataset, &ordinal, 1);
        /* It does not wait for a connection that is being made. */
        return rc == -EAGAIN ? 0 : rc;
}

static int call_bind(struct client *c)
{
        uint8_t subset[(FILES + 1 + 7) / 8] = { 0x5a };
        char name[32];
        struct sheaf_job_options options = { .name = name, .subset = subset };
        uint32_t slots[2] = { 0, 1 };
        uint64_t ordinals[2];
        int rc = call_open(c);

        snprintf(name, sizeof(name), "job%d", (int)getpid());
        if (!rc && !c->job)
                rc = sheaf_job_open(c->dataset, &options, &c->job);
        if (!rc)
                rc = sheaf_job_bind(c->job, 0, slots, 2, 0, ordinals);
        return rc || ordinals[0] != ordinals[1] ? rc : -EBADMSG;
}

static int call_save(struct client *c)
{
        struct sheaf_job_state state;
        uint8_t bitmap[1];
        int rc = call_bind(c);

        if (!rc)
                rc = sheaf_job_save(c->job, 0, 2, &state, bitmap);
        if (!rc)
                rc = sheaf_job_restore(c->job, &state, bitmap);
        return rc;
}

static int call_origin(struct client *c)
{
        char buf[LEN];
        uint64_t ordinal;
        uint32_t id;
        int rc = next_file(c, &ordinal, &id);

        if (!rc)
                rc = sheaf_dataset_read_origin(c->dataset, ordinal, buf);
        return rc || flow_stamp_check(buf, id, 0, LEN) ? rc : -EBADMSG;
}

static const struct {
        const char *name;
        int (*make)(struct client *c);
} calls[] = {
        { "connect", call_connect },
        { "open", call_open },
        { "view", call_view },
        { "batch", call_batch },
        { "read", call_read },
        { "large view", call_large_view },
        { "prefetch", call_prefetch },
        { "bind", call_bind },
        { "save", call_save },
        { "origin", call_origin },
};

/* ---- in a client ---- */

static void allow(rlim_t descriptors)
{
        struct rlimit limit;

        if (getrlimit(RLIMIT_NOFILE, &limit))
                _exit(90);
        limit.rlim_cur = descriptors;
        if (setrlimit(RLIMIT_NOFILE, &limit))
                _exit(91);
}

static void give_up(const char *what, size_t call, unsigned int limit, int rc)
{
        fprintf(stderr, "%s: %s, limit %u: %d %s\n", what, calls[call].name,
                limit, rc, sheaf_last_error());
        _exit(1);
}

/* Right, or refused at once; whether it was refused. */
static bool try_call(struct client *c, size_t call, unsigned int limit)
{
        double start = flow_now();
        int rc = calls[call].make(c);
        char number[16];

        if (flow_now() - start > AT_ONCE_S)
                give_up("not at once", call, limit, rc);
        if (!rc)
                return false;
        snprintf(number, sizeof(number), " %u;", limit);
        if (rc != -EMFILE || !strstr(sheaf_last_error(), "RLIMIT_NOFILE") ||
                !strstr(sheaf_last_error(), number))
                give_up("unclear", call, limit, rc);
        return true;
}

/* All calls, @first before the others. */
static void all_work(struct client *c, size_t first)
{
        allow(PLENTY);
        for (size_t i = 0; i < CALLS; i++) {
                size_t call = (first + i) % CALLS;
                int rc = calls[call].make(c);

                if (rc)
                        give_up("afterwards", call, PLENTY, rc);
        }
        sheaf_job_close(c->job);
        sheaf_dataset_close(c->dataset);
        sheaf_session_free(c->session);
}

/* For each call as the first: exits with 0, or 10 if none was refused. */
static void run_client(unsigned int limit, bool open_before)
{
        bool refused = false;

        close_range(3, ~0U, 0); /* those of the harness */
        for (size_t call = 0; call < CALLS; call++) {
                struct client c = { 0 };

                allow(PLENTY);
                if (open_before && call_open(&c))
                        give_up("before", call, PLENTY, 0);
                allow(limit);
                refused |= try_call(&c, call, limit);
                refused |= try_call(&c, (call + 1) % CALLS, limit);
                all_work(&c, call);
        }
        _exit(refused ? 0 : 10);
}

/* ---- tests ---- */

static void begin(void)
{
        for (uint32_t id = 1; id <= FILES; id++)
                flow_file(id, LEN, "f%u", id);
        flow_file(99, LARGE, "large");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
}

static void sweep(bool open_before)
{
        int refused = 0;

        begin();
        for (unsigned int limit = FEWEST; limit <= MOST; limit++) {
                pid_t pid = flow_fork(0, 0);
                int rc;

                if (!pid)
                        run_client(limit, open_before);
                rc = flow_join(pid, DEADLINE);
                cr_assert(rc == 0 || rc == 10, "limit %u: %d", limit, rc);
                refused += rc == 0;
                if (limit == FEWEST)
                        cr_assert_eq(rc, 0, "one descriptor is enough?");
        }
        cr_assert_lt(refused, MOST - FEWEST + 1, "20 are not enough");
        printf("flow.fewfds: %s: %d limits of %d refuse something\n",
                open_before ? "open before" : "from the start", refused,
                MOST - FEWEST + 1);
        flow_stop();
}

Test(fewfds, from_the_start)
{
        sweep(false);
}

Test(fewfds, once_it_is_open)
{
        sweep(true);
}

static void on_signal(int number)
{
        (void)number;
}

/* All calls, again and again, under a signal each 200 us that interrupts what
 * it can; connecting and disconnecting, too. */
static void run_interrupted(void)
{
        struct sigaction action = { .sa_handler = on_signal };
        struct itimerval timer = { { .tv_usec = 200 }, { .tv_usec = 200 } };

        if (sigaction(SIGALRM, &action, NULL) ||
                setitimer(ITIMER_REAL, &timer, NULL))
                _exit(95);
        for (size_t round = 0; round < 3 * CALLS; round++) {
                struct client c = { .next = (uint32_t)round };

                all_work(&c, round % CALLS);
        }
        _exit(0);
}

Test(fewfds, signals_change_nothing)
{
        pid_t pids[2];

        flow.memory = "32MiB";
        begin();
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(pids); i++) {
                pids[i] = flow_fork(0, 0);
                if (!pids[i])
                        run_interrupted();
        }
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(pids); i++)
                cr_assert_eq(flow_join(pids[i], DEADLINE), 0);
        flow_stop();
}

/* Twice a second a link that lacked descriptors is tried anew by itself. A call
 * that begins at that moment, when there are some, is not told of before. */
static void run_raised(void)
{
        struct client c = { 0 };
        unsigned int refused = 0;

        close_range(3, ~0U, 0);
        if (call_view(&c))
                give_up("before", 2, PLENTY, 0);
        for (unsigned int round = 0; round < 16; round++) {
                struct sheaf_dataset *second;
                double until;
                int rc;

                allow(FEWEST);
                rc = sheaf_dataset_open(c.session, "data", &second);
                if (!rc)
                        sheaf_dataset_close(second);
                refused += rc == -EMFILE;
                until = flow_now() + 0.5 + (getpid() + 7 * round) % 50 * 4e-5;
                while (flow_now() < until)
                        flow_sleep(1e-5);
                allow(PLENTY);
                rc = sheaf_dataset_open(c.session, "data", &second);
                if (rc)
                        give_up("raised", 1, PLENTY, rc);
                sheaf_dataset_close(second);
        }
        _exit(refused ? 0 : 10);
}

Test(fewfds, a_shortage_that_is_over_is_not_told)
{
        pid_t pids[24];
        int told = 0;

        begin();
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(pids); i++) {
                pids[i] = flow_fork(0, 0);
                if (!pids[i])
                        run_raised();
        }
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(pids); i++)
                told += flow_join(pids[i], DEADLINE) != 0;
        cr_assert_eq(told, 0, "%d of %zu", told, SHEAF_ARRAY_LEN(pids));
        flow_stop();
}

#define CHURN       20
#define CHURN_BYTES (UINT64_C(3) << 20)

static void churn(struct client *c)
{
        char name[16];

        for (uint32_t i = 0; i < 3 * CHURN; i++) {
                uint32_t id = 1 + i % CHURN;

                snprintf(name, sizeof(name), "c%02u", id);
                if (flow_check_view(c->dataset, name, 500 + id, CHURN_BYTES))
                        _exit(96);
        }
}

/* Holds a view, may open nothing more, forks, lets go of the view, and makes
 * the daemon use the whole arena again: 0, if the child's view stays right. */
static void fork_and_let_go(void)
{
        struct client c = { 0 };
        struct sheaf_view view;
        uint64_t ordinal;
        char command[256], byte = 0;
        int go[2], next;
        pid_t child;

        if (call_open(&c) || sheaf_dataset_lookup(c.dataset, "c00", &ordinal) ||
                sheaf_view_file(c.dataset, ordinal, &view) || pipe(go))
                _exit(90);
        next = dup(0);
        close(next);
        allow((rlim_t)next);
        /* What the first fork used is there for the next. */
        child = fork();
        if (!child)
                _exit(0);
        if (flow_wait(child, 20))
                _exit(93);
        child = fork();
        if (!child) {
                close(go[1]);
                if (read(go[0], &byte, 1) != 1)
                        _exit(91);
                _exit(!flow_stamp_check(
                        view.pieces[0].iov_base, 500, 0, CHURN_BYTES));
        }
        allow(PLENTY);
        sheaf_view_release(&view);
        snprintf(command, sizeof(command),
                "sheaf --socket %s warmup --evict --memory data --quiet",
                flow.socket);
        if (system(command))
                _exit(94);
        churn(&c);
        if (write(go[1], &byte, 1) != 1)
                _exit(92);
        _exit(flow_wait(child, 20));
}

Test(fewfds, views_of_a_child_stay)
{
        pid_t pid;
        int rc;

        flow.memory = "32MiB";
        for (uint32_t i = 0; i <= CHURN; i++)
                flow_file(500 + i, CHURN_BYTES, "c%02u", i);
        begin();
        pid = flow_fork(0, 0);
        if (!pid)
                fork_and_let_go();
        rc = flow_join(pid, DEADLINE);
        cr_assert_eq(rc, 0, "%d", rc);
        flow_stop();
}

/* The daemon goes and comes while nothing can be opened. 3 is its pipe. */
static void wait_and_call(unsigned int limit, int say_fd)
{
        struct client c = { 0 };
        size_t first = limit % CALLS;
        char byte = 0;

        if (call_open(&c) || call_view(&c) || call_bind(&c))
                give_up("before", first, PLENTY, 0);
        allow(limit);
        if (write(say_fd, &byte, 1) != 1 || read(3, &byte, 1) != 1)
                _exit(93);
        for (size_t i = 0; i < CALLS; i++)
                try_call(&c, (first + i) % CALLS, limit);
        all_work(&c, first);
        _exit(0);
}

Test(fewfds, while_the_daemon_is_away)
{
        pid_t pids[MOST - FEWEST + 1];
        int say[2], order[2];
        char bytes[MOST - FEWEST + 1] = { 0 };

        begin();
        cr_assert(!pipe2(say, O_CLOEXEC) && !pipe2(order, O_CLOEXEC));
        for (unsigned int i = 0; i < SHEAF_ARRAY_LEN(pids); i++) {
                pids[i] = flow_fork(0, 0);
                if (!pids[i]) {
                        /* Theirs are 3, to be told, and 4, to tell. */
                        int tell = fcntl(say[1], F_DUPFD, 50);
                        int told = fcntl(order[0], F_DUPFD, 50);

                        if (dup2(told, 3) != 3 || dup2(tell, 4) != 4)
                                _exit(94);
                        close_range(5, ~0U, 0);
                        wait_and_call(FEWEST + i, 4);
                }
        }
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(pids); i++)
                cr_assert_eq(read(say[0], bytes, 1), 1);
        flow_kill();
        flow_start();
        cr_assert_eq(
                write(order[1], bytes, sizeof(bytes)), (ssize_t)sizeof(bytes));
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(pids); i++)
                cr_assert_eq(flow_join(pids[i], DEADLINE), 0, "limit %zu",
                        i + FEWEST);
        close(say[0]);
        close(say[1]);
        close(order[0]);
        close(order[1]);
        flow_stop();
}
