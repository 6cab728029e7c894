/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that go on for long, over all of a dataset: what they find comes to
 * slow readers, too, and they cost others nothing. */
#include "tests/flow/peer.h"

#include <signal.h>
#include <sys/wait.h>

TestSuite(walks, .init = flow_init, .fini = flow_fini, .timeout = 100);

/* ---- findings ---- */

#define FILES      2000
#define PATH_BYTES 3000 /* and more, so all are over 4 MiB */

/* Files below directories of long names: PATH_BYTES in all. */
static void make_deep(void)
{
        char dir[4096];
        int len = snprintf(dir, sizeof(dir), "%s", flow.origin);

        while (len < PATH_BYTES) {
                memset(dir + len, 'd', 200);
                dir[len] = '/';
                len += 200;
                dir[len] = 0;
        }
        flow_ok("mkdir -p %s && cd %s && seq %d | split -l 1 -a 5 -d - f", dir,
                dir, FILES);
}

static Sheaf__Envelope send_verify(struct peer *p)
{
        Sheaf__Verify verify = SHEAF__VERIFY__INIT;
        Sheaf__Envelope env;

        verify.name = (char *)"data";
        verify.origin = true;
        env = envelope(p, SHEAF__ENVELOPE__BODY_VERIFY, &verify);
        cr_assert_eq(sheaf_wire_send(p->sock, &env, NULL, 0), 0);
        return env;
}

/* Reads all answers to the last: its error, or 0; findings are counted. */
static int read_findings(struct peer *p, uint64_t id, size_t *ret_found)
{
        int rc = -EINPROGRESS;

        *ret_found = 0;
        while (rc == -EINPROGRESS) {
                struct pollfd pfd = { .fd = p->sock, .events = POLLIN };
                struct sheaf_wire_msg msg;

                cr_assert_gt(poll(&pfd, 1, 30000), 0, "no answer");
                if (sheaf_wire_recv(p->sock, &msg) <= 0)
                        return -ECONNRESET;
                if (msg.env->body_case == SHEAF__ENVELOPE__BODY_FINDING)
                        ++*ret_found;
                if (msg.env->body_case == SHEAF__ENVELOPE__BODY_ERROR)
                        rc = -msg.env->error->errno_value;
                else if (msg.env->id == id && !msg.env->more)
                        rc = 0;
                sheaf_wire_msg_free(&msg);
        }
        return rc;
}

/* Until nothing more is looked at at the origin. */
static void await_quiet(void)
{
        double now = 0, before;

        cr_assert(flow_until(60, ({
                before = now;
                flow_sleep(0.1);
                now = flow_stat_of("data", "origin.read_ns");
                now == before;
        })));
}

/* Megabytes of findings come to who reads late, not faster than he reads; who
 * never reads has them until the deadline, and then an end that says so. */
Test(walks, findings_are_for_those_who_read)
{
        struct peer late, never;
        Sheaf__Envelope to_late, to_never;
        size_t found;

        flow.deadline_s = 4;
        flow_origin_in_memory();
        make_deep();
        flow_start();
        flow_ok("sheaf add data %s && sheaf seal --quiet data", flow.origin);
        flow_ok("find %s -type f -exec touch -d tomorrow {} +", flow.origin);
        late = greet();
        to_late = send_verify(&late);
        await_quiet();
        cr_expect_eq(read_findings(&late, to_late.id, &found), 0);
        cr_expect_eq(found, FILES, "%zu findings", found);

        never = greet();
        to_never = send_verify(&never);
        cr_expect_neq(flow_run("sheaf rm data"), 0, "nothing goes on");
        cr_expect(flow_until(40, !flow_run("sheaf rm data")),
                "it never ends: %s", flow.last.err);
        cr_expect_eq(read_findings(&never, to_never.id, &found), -ETIMEDOUT);
        cr_expect_lt(found, FILES);
        cr_expect_eq(flow_stat("clients.dropped_slow"), 0);
        close(late.sock);
        close(never.sock);
        flow_stop();
}

/* ---- many at once ---- */

#define WALKER 4001
#define WALKS  240 /* of the 256 requests of a connection */
#define CONNS  2
#define ROUNDS 6
#define ASKS   10

/* Walks of all kinds, over a dataset of which nothing is cached. */
static void begin_walks(struct peer *p)
{
        Sheaf__ListDatasets list = SHEAF__LIST_DATASETS__INIT;
        Sheaf__CachedQuery query = SHEAF__CACHED_QUERY__INIT;
        Sheaf__Evict evict = SHEAF__EVICT__INIT;
        Sheaf__Verify verify = SHEAF__VERIFY__INIT;

        list.name = query.name = evict.name = verify.name = (char *)"huge";
        if (p->sock < 0 || hello(p))
                _exit(1);
        for (int i = 0; i < WALKS; i++) {
                Sheaf__Envelope env[] = {
                        envelope(p, SHEAF__ENVELOPE__BODY_CACHED_QUERY, &query),
                        envelope(p, SHEAF__ENVELOPE__BODY_EVICT, &evict),
                        envelope(p, SHEAF__ENVELOPE__BODY_VERIFY, &verify),
                };

                if (sheaf_wire_send(p->sock, &env[i % 3], NULL, 0))
                        _exit(2);
        }
        /* Requests are taken in order. */
        if (call(p, envelope(p, SHEAF__ENVELOPE__BODY_LIST_DATASETS, &list),
                    NULL, 0))
                _exit(3);
}

static void walk_on(int ready_fd)
{
        for (int i = 0; i < CONNS; i++) {
                struct peer p = { .sock = sheaf_wire_connect(flow.socket) };

                begin_walks(&p);
        }
        if (write(ready_fd, "", 1) != 1)
                _exit(4);
        for (;;)
                pause();
}

/* Seconds that a question takes, on the average of the fastest of some rounds:
 * asked now and then it waits for what is left of a turn of the loop, on a
 * busy machine for longer. */
static double ask(struct peer *p)
{
        Sheaf__ListDatasets list = SHEAF__LIST_DATASETS__INIT;
        double fastest = 1e9;

        list.name = (char *)"data";
        for (int round = 0; round < ROUNDS; round++) {
                double sum = 0;

                for (int i = 0; i < ASKS; i++) {
                        Sheaf__Envelope env = envelope(
                                p, SHEAF__ENVELOPE__BODY_LIST_DATASETS, &list);
                        double start = flow_now();

                        cr_assert_eq(call(p, env, NULL, 0), 0);
                        sum += flow_now() - start;
                        flow_sleep(0.002);
                }
                fastest = SHEAF_MIN(fastest, sum / ASKS);
        }
        return fastest;
}

/* However many walks a user begins, all have the time of one. */
Test(walks, many_of_one_user_are_as_one)
{
        int ready[2];
        struct peer p;
        double alone, beside;
        char byte;
        pid_t pid;

        flow_file(1, 1000, "f");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        if (flow_run("mkdir -m 755 %s/huge && truncate -s 1T %s/huge/a "
                     "%s/huge/b",
                    flow.base, flow.base, flow.base)) {
                printf("SKIP: walks.many_of_one_user_are_as_one: no files of "
                       "1 TiB here\n");
                flow_stop();
                return;
        }
        cr_assert_eq(
                flow_run_as(WALKER, 0, "sheaf add huge %s/huge", flow.base), 0,
                "%s", flow.last.err);
        p = greet();
        alone = ask(&p);
        cr_assert_eq(pipe(ready), 0);
        pid = flow_fork(WALKER, 0);
        if (!pid)
                walk_on(ready[1]);
        cr_assert_eq(read(ready[0], &byte, 1), 1);
        beside = ask(&p);
        printf("FIGURE: walks.many_of_one_user_are_as_one: %d walks; a "
               "question takes %.2f ms, %.2f ms without\n",
                CONNS * WALKS, beside * 1e3, alone * 1e3);
        cr_expect_lt(beside, 0.06, "%.1f ms", beside * 1e3);
        kill(pid, SIGKILL);
        flow_join(pid, 20);
        close(p.sock);
        cr_assert(flow_until(20, !flow_run_as(WALKER, 0, "sheaf rm huge")));
        flow_stop();
}
