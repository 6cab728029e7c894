/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: each batch prepared once, taken by every member, whoever dies,
 * stops, comes late or lies. */
#include "tests/flow/groups.h"
#include "tests/flow/peer.h"

#include <signal.h>
#include <stdio.h>

static void begin(void)
{
        flow_init();
        groups_init();
        flow_file(1, 1000, "f1");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
}

static void end(void)
{
        groups_fini();
        flow_fini();
}

TestSuite(groups, .init = begin, .fini = end, .timeout = 120);

Test(groups, each_batch_is_prepared_once)
{
        pid_t members[3], workers[6];

        for (uint32_t m = 0; m < 3; m++) {
                struct groups_spec spec = groups_spec(m);

                spec.members = 3;
                spec.epochs = 2;
                members[m] = groups_member(&spec);
                for (uint32_t w = 0; w < 2; w++)
                        workers[2 * m + w] = groups_worker(&spec);
        }
        for (uint32_t m = 0; m < 3; m++)
                groups_ends_well(members[m]);
        for (uint32_t w = 0; w < 6; w++)
                groups_ends_well(workers[w]);
        for (uint32_t m = 0; m < 3; m++)
                groups_took(m, 0, 80);
        for (uint32_t b = 0; b < 80; b++)
                cr_assert_eq(board->prepared[b], 1);
        groups_nothing_left();
        cr_assert_eq(flow_stat("prep.prepared"), 80);
        cr_assert_eq(flow_stat("prep.taken"), 240);
}

/* ---- who dies or stops ---- */

static void be_gone(pid_t pid)
{
        cr_assert_eq(kill(pid, SIGKILL), 0);
        flow_join(pid, GROUPS_LIMIT_S);
}

static bool came_to(uint32_t m, uint32_t batch)
{
        return flow_until(
                GROUPS_LIMIT_S, atomic_load(&board->next[m]) >= batch);
}

/* In the middle of a batch: another prepares it at once, long before the lease
 * would end. */
Test(groups, a_worker_is_killed)
{
        struct groups_spec spec = groups_spec(0);
        pid_t members[2], worker, victim;

        spec.members = 2;
        members[0] = groups_member(&spec);
        spec.member = 1;
        spec.stop_at = 7;
        spec.lease_ms = 3600 * 1000;
        victim = groups_worker(&spec);
        spec.stop_at = UINT32_MAX;
        members[1] = groups_member(&spec);
        groups_wait_holding(1);
        cr_assert(came_to(0, 7));
        worker = groups_worker(&spec);
        be_gone(victim);
        groups_ends_well(members[0]);
        groups_ends_well(members[1]);
        groups_ends_well(worker);
        for (uint32_t m = 0; m < 2; m++)
                groups_took(m, 0, 40);
        groups_nothing_left();
        cr_assert_eq(flow_stat("prep.redone"), 1);
        cr_assert_eq(flow_stat("prep.prepared"), 40);
}

/* It keeps its lease until the time is over; what it brings when it wakes up is
 * not used, and it goes on. */
Test(groups, a_worker_is_stopped)
{
        struct groups_spec spec = groups_spec(0);
        pid_t members[2], worker, stopped;

        spec.members = 2;
        spec.lease_ms = 500;
        members[0] = groups_member(&spec);
        spec.stop_at = 7;
        stopped = groups_worker(&spec);
        groups_wait_holding(1);
        cr_assert_eq(kill(stopped, SIGSTOP), 0);
        spec.stop_at = UINT32_MAX;
        spec.member = 1;
        members[1] = groups_member(&spec);
        worker = groups_worker(&spec);
        cr_assert(came_to(0, 30));
        atomic_store(&board->go_on, 1);
        cr_assert_eq(kill(stopped, SIGCONT), 0);
        for (int i = 0; i < 2; i++)
                groups_ends_well(members[i]);
        groups_ends_well(worker);
        groups_ends_well(stopped);
        for (uint32_t m = 0; m < 2; m++)
                groups_took(m, 0, 40);
        groups_nothing_left();
        cr_assert_eq(flow_stat("prep.prepared"), 40);
        cr_assert_geq(flow_stat("prep.late"), 1);
}

/* Others wait for a member for its patience at most; what it still needed is
 * kept no longer. Nothing is left of it. */
Test(groups, members_are_killed_and_stopped)
{
        struct groups_spec spec = groups_spec(0);
        pid_t members[3], worker;
        long fds;

        /* What a dataset that was open keeps open for a while is none of a
         * group's. */
        spec.group = "before";
        spec.batches = 1;
        spec.prepares = true;
        groups_ends_well(groups_member(&spec));
        groups_nothing_left();
        fds = flow_fds(flow.daemon);
        memset(board, 0, sizeof(*board));
        spec = groups_spec(0);
        spec.members = 3;
        members[0] = groups_member(&spec);
        worker = groups_worker(&spec);
        spec.stop_at = 10;
        spec.member = 1;
        members[1] = groups_member(&spec);
        spec.member = 2;
        spec.patience_ms = 200;
        members[2] = groups_member(&spec);
        groups_wait_holding(2);
        cr_assert_eq(kill(members[2], SIGSTOP), 0);
        be_gone(members[1]);
        groups_ends_well(members[0]);
        be_gone(members[2]);
        groups_took(0, 0, 40);
        groups_took(1, 0, 10);
        groups_ends_well(worker);
        groups_nothing_left();
        cr_assert_geq(flow_stat("prep.detached"), 1);
        cr_assert(flow_until(GROUPS_LIMIT_S, flow_fds(flow.daemon) <= fds),
                "%ld descriptors, not %ld", flow_fds(flow.daemon), fds);
}

/* With patience 0 the slow one holds nobody, and gets all, alone. */
Test(groups, a_slow_member_goes_on_alone)
{
        struct groups_spec spec = groups_spec(0);
        pid_t members[2], workers[2];

        spec.members = 2;
        members[0] = groups_member(&spec);
        workers[0] = groups_worker(&spec);
        spec.member = 1;
        spec.patience_ms = 0;
        spec.stop_at = 3;
        members[1] = groups_member(&spec);
        spec.stop_at = UINT32_MAX;
        workers[1] = groups_worker(&spec);
        groups_ends_well(members[0]);
        groups_ends_well(workers[0]);
        groups_took(0, 0, 40);
        groups_took(1, 0, 3);
        atomic_store(&board->go_on, 1);
        groups_ends_well(members[1]);
        groups_ends_well(workers[1]);
        groups_took(1, 0, 40);
        groups_nothing_left();
}

/* The daemon is killed again and again: all go on by themselves. */
Test(groups, kills_of_the_daemon)
{
        struct groups_spec spec = groups_spec(0);
        struct groups_jobs jobs;

        spec.batches = 100;
        spec.slow_ms = 5;
        groups_start(&jobs, spec, 3);
        for (uint32_t kills = 1; kills <= 3; kills++) {
                cr_assert(came_to(0, 20 * kills));
                flow_kill();
                flow_start();
        }
        groups_end_well(&jobs);
        for (uint32_t m = 0; m < 3; m++)
                groups_took(m, 0, 100);
        groups_nothing_left();
}

/* ---- who comes and goes ---- */

Test(groups, one_comes_late_and_one_leaves_early)
{
        struct groups_spec spec = groups_spec(0);
        pid_t members[3], workers[2];

        spec.epochs = 2;
        spec.stop_at = 20;
        members[0] = groups_member(&spec);
        spec.stop_at = UINT32_MAX;
        workers[0] = groups_worker(&spec);
        groups_wait_holding(1);
        /* One from the beginning, by its own means; one from the next epoch. */
        spec.member = 1;
        members[1] = groups_member(&spec);
        workers[1] = groups_worker(&spec);
        spec.member = 2;
        spec.first = 40;
        members[2] = groups_member(&spec);
        cr_assert(came_to(1, 20));
        be_gone(members[2]);
        atomic_store(&board->go_on, 1);
        for (int i = 0; i < 2; i++)
                groups_ends_well(members[i]);
        for (int i = 0; i < 2; i++)
                groups_ends_well(workers[i]);
        groups_took(0, 0, 80);
        groups_took(1, 0, 80);
        groups_nothing_left();
        cr_assert_eq(flow_stat("prep.private"), 20);
        cr_assert_eq(flow_stat("prep.prepared"), 100);
}

/* Processes of one job take turns; a lone job beside them takes all. */
Test(groups, ranks_of_a_job)
{
        struct groups_spec spec = groups_spec(0);
        pid_t members[3], worker;

        spec.members = 3;
        members[0] = groups_member(&spec);
        worker = groups_worker(&spec);
        spec.world = 2;
        for (uint32_t r = 0; r < 2; r++) {
                spec.member = 1 + r;
                spec.rank = r;
                members[1 + r] = groups_member(&spec);
        }
        for (int i = 0; i < 3; i++)
                groups_ends_well(members[i]);
        groups_ends_well(worker);
        groups_took(0, 0, 40);
        for (uint32_t b = 0; b < 40; b++) {
                cr_assert_eq(board->taken[1 + b % 2][b], 1);
                cr_assert_eq(board->taken[2 - b % 2][b], 0);
        }
        groups_nothing_left();
        cr_assert_eq(flow_stat("prep.prepared"), 40);
}

/* Nobody has workers: members prepare what they take. */
Test(groups, members_prepare_for_one_another)
{
        struct groups_spec spec = groups_spec(0);
        pid_t members[2];

        spec.members = 2;
        spec.prepares = true;
        for (uint32_t m = 0; m < 2; m++) {
                spec.member = m;
                members[m] = groups_member(&spec);
        }
        for (uint32_t m = 0; m < 2; m++)
                groups_ends_well(members[m]);
        for (uint32_t m = 0; m < 2; m++)
                groups_took(m, 0, 40);
        for (uint32_t b = 0; b < 40; b++)
                cr_assert_eq(board->prepared[b], 1);
        groups_nothing_left();
}

/* ---- what fails ---- */

Test(groups, an_error_is_told_to_all_who_take_it)
{
        struct groups_spec spec = groups_spec(0);
        struct groups_jobs jobs;

        spec.fail_at = 5;
        groups_start(&jobs, spec, 2);
        groups_end_well(&jobs);
        for (uint32_t m = 0; m < 2; m++)
                for (uint32_t b = 0; b < 40; b++) {
                        cr_assert_eq(board->taken[m][b], b != 5);
                        cr_assert_eq(board->failed[m][b], b == 5);
                }
        cr_assert_eq(flow_stat("prep.failed"), 1);
        cr_assert_leq(flow_stat("prep.redone"), 1);
}

/* Three batches fit, of a hundred. */
Test(groups, room_for_few_batches, .init = flow_init)
{
        struct groups_spec spec = groups_spec(0);
        pid_t members[2], workers[2];

        groups_init();
        flow_file(1, 1000, "f1");
        flow.extra = "--prep 65000";
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        spec.members = 2;
        spec.ahead = 100;
        spec.batches = 100;
        spec.stop_at = 1;
        for (uint32_t m = 0; m < 2; m++) {
                spec.member = m;
                members[m] = groups_member(&spec);
                spec.stop_at = UINT32_MAX;
                workers[m] = groups_worker(&spec);
        }
        groups_wait_holding(1);
        cr_assert(flow_until(GROUPS_LIMIT_S, flow_stat("prep.staged") == 3));
        cr_assert(flow_until(
                GROUPS_LIMIT_S, board->waits_for[1] == SHEAF_GROUP_FULL));
        cr_assert_leq(flow_stat("prep.staged_bytes"), 65000);
        cr_assert(flow_until(
                GROUPS_LIMIT_S, flow_run("sheaf status") == 0 &&
                                        strstr(flow.last.out, "prep-full")));
        atomic_store(&board->go_on, 1);
        for (uint32_t m = 0; m < 2; m++) {
                groups_ends_well(members[m]);
                groups_ends_well(workers[m]);
        }
        for (uint32_t m = 0; m < 2; m++)
                groups_took(m, 0, 100);
        groups_nothing_left();
}

/* ---- who may not ---- */

/* What is offered is looked at by seals and size; a lie costs its batch three
 * tries, and nothing else. */
Test(groups, what_is_no_batch_is_refused)
{
        struct groups_spec spec = groups_spec(0);
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_group *member, *worker;
        enum sheaf_group_state state;
        uint64_t batch;
        int ends[2], lies[4], fd = -1, good = groups_file(1, 100, 15);

        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        cr_assert_eq(groups_open(dataset, &spec, false, &member), 0);
        cr_assert_eq(groups_open(dataset, &spec, true, &worker), 0);
        cr_assert_eq(sheaf_group_begin(member, 0), 0);
        cr_assert_eq(pipe(ends), 0);
        lies[0] =
                groups_file(0, 100, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
        lies[1] = ends[0];
        lies[2] = open("/", O_RDONLY | O_DIRECTORY);
        lies[3] = open("/bin/true", O_RDONLY);
        for (uint64_t b = 0; b < 2; b++) {
                for (int i = 0; i < 3; i++) {
                        cr_assert_eq(sheaf_group_lease(worker, 5000, &batch), 0,
                                "%s", sheaf_last_error());
                        cr_assert_eq(batch, b);
                        cr_assert_eq(sheaf_group_offer(
                                             worker, b, lies[(b + i) % 3], "s"),
                                -EINVAL, "%s", sheaf_last_error());
                }
                cr_assert_eq(
                        sheaf_group_take(member, b, 5000, false, &state, &fd),
                        0);
                cr_assert_eq(state, SHEAF_GROUP_FAILED);
                cr_assert(strstr(sheaf_last_error(), "memory file") ||
                                  strstr(sheaf_last_error(), "sealed"),
                        "%s", sheaf_last_error());
        }
        cr_assert_eq(sheaf_group_offer(worker, 2, good, "s"), -ESTALE,
                "it has no lease");
        cr_assert_eq(sheaf_group_lease(worker, 5000, &batch), 0);
        cr_assert_eq(sheaf_group_offer(worker, 3, good, "s"), -ESTALE);
        cr_assert_eq(sheaf_group_offer(worker, 2, lies[3], "s"), -EINVAL);
        cr_assert_eq(sheaf_group_lease(worker, 5000, &batch), 0);
        cr_assert_eq(batch, 2, "it was free at once");
        close(good);
        good = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        cr_assert_eq(ftruncate(good, INT64_C(1) << 40), 0);
        cr_assert_eq(fcntl(good, F_ADD_SEALS, GROUPS_SEALS), 0);
        cr_assert_eq(sheaf_group_offer(worker, 2, good, "s"), -EFBIG);
        cr_assert(strstr(sheaf_last_error(), "--prep"));
        cr_assert_eq(sheaf_group_take(member, 1, 0, false, &state, &fd),
                -ERANGE, "it was told of that");
        cr_assert_eq(fd, -1);
        sheaf_group_close(worker);
        sheaf_group_close(member);
        flow_close(session, dataset);
        close(ends[1]);
        for (int i = 0; i < 4; i++)
                close(lies[i]);
        close(good);
        groups_nothing_left();
}

Test(groups, traits_that_differ_are_named)
{
        struct groups_spec spec = groups_spec(0);
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_group *first, *other;

        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        cr_assert_eq(groups_open(dataset, &spec, false, &first), 0);
        spec.member = 1;
        spec.transform = "t2";
        cr_assert_eq(groups_open(dataset, &spec, false, &other), -EEXIST);
        cr_assert(strstr(sheaf_last_error(), "transform is 't2'"), "%s",
                sheaf_last_error());
        spec.transform = "t1";
        spec.batches = 41;
        cr_assert_eq(groups_open(dataset, &spec, false, &other), -EEXIST);
        cr_assert(strstr(sheaf_last_error(), "batches is '41'"), "%s",
                sheaf_last_error());
        /* Nobody is left to whom it would matter. */
        sheaf_group_close(first);
        cr_assert_eq(groups_open(dataset, &spec, false, &other), 0);
        flow_ok("sheaf groups");
        cr_assert(strstr(flow.last.out, "g "), "%s", flow.last.out);
        flow_ok("sheaf groups g");
        flow_ok("sheaf groups g --json | python3 -m json.tool");
        cr_assert(strstr(flow.last.out, "\"waits_for\": null"), "%s",
                flow.last.out);
        cr_assert_eq(flow_run("sheaf groups nosuch"), 4);
        cr_assert_eq(
                flow_run_as(4001, 0, "sheaf groups g"), 4, "another user's");
        sheaf_group_close(other);
        cr_assert_eq(flow_stat("prep.refused"), 2);
        flow_close(session, dataset);
}

/* ---- by hand ---- */

static int join_named(struct peer *p, const char *name, uint32_t batches,
        uint32_t ahead, uint32_t world, uint64_t *ret_membership)
{
        Sheaf__JoinGroup body = SHEAF__JOIN_GROUP__INIT;
        Sheaf__Envelope env;
        struct sheaf_wire_msg msg;
        uint8_t id[16] = { 1 };
        int rc = 0;

        id[1] = (uint8_t)p->id;
        id[2] = (uint8_t)(p->id >> 8);
        body.name = (char *)name;
        body.member.data = id;
        body.member.len = sizeof(id);
        body.batches = batches;
        body.ahead = ahead;
        body.lease_ms = 1000;
        body.world = world;
        env = envelope(p, SHEAF__ENVELOPE__BODY_JOIN_GROUP, &body);
        cr_assert_eq(sheaf_wire_send(p->sock, &env, NULL, 0), 0);
        cr_assert_eq(await(p, env.id, &msg, NULL, NULL), 0);
        if (msg.env->body_case == SHEAF__ENVELOPE__BODY_GROUP_JOINED)
                *ret_membership = msg.env->group_joined->membership;
        else
                rc = -msg.env->error->errno_value;
        sheaf_wire_msg_free(&msg);
        return rc;
}

static int join_by_hand(struct peer *p, uint32_t batches, uint32_t ahead,
        uint32_t world, uint64_t *ret_membership)
{
        return join_named(p, "g", batches, ahead, world, ret_membership);
}

/* Numbers of others, numbers beyond all bounds, and ten thousand joins. */
Test(groups, absurd_requests)
{
        struct peer p = greet(), other = greet();
        Sheaf__TakeBatch take = SHEAF__TAKE_BATCH__INIT;
        Sheaf__OfferBatch offer = SHEAF__OFFER_BATCH__INIT;
        Sheaf__LeaseBatch lease = SHEAF__LEASE_BATCH__INIT;
        uint64_t mine, theirs, more;
        uint32_t joined = 1;
        int fd = groups_file(0, 100, GROUPS_SEALS);

        cr_assert_eq(join_by_hand(&p, 0, 1, 1, &mine), -EINVAL);
        cr_assert_eq(join_by_hand(&p, 10, 0, 1, &mine), -EINVAL);
        cr_assert_eq(join_by_hand(&p, 10, 1025, 1, &mine), -EINVAL);
        cr_assert_eq(join_by_hand(&p, 10, 1, 0, &mine), -EINVAL);
        cr_assert_eq(join_by_hand(&p, 10, 1, 11, &mine), -EINVAL);
        cr_assert_eq(join_by_hand(&p, 10, 8, 1, &mine), 0);
        cr_assert_eq(join_by_hand(&other, 10, 8, 1, &theirs), 0);
        take.membership = offer.membership = lease.membership = theirs;
        cr_assert_eq(
                call(&p, envelope(&p, SHEAF__ENVELOPE__BODY_TAKE_BATCH, &take),
                        NULL, 0),
                -ENOTCONN);
        cr_assert_eq(
                call(&p,
                        envelope(&p, SHEAF__ENVELOPE__BODY_OFFER_BATCH, &offer),
                        &fd, 1),
                -ENOTCONN);
        cr_assert_eq(
                call(&p,
                        envelope(&p, SHEAF__ENVELOPE__BODY_LEASE_BATCH, &lease),
                        NULL, 0),
                -ENOTCONN);
        take.membership = offer.membership = lease.membership = mine;
        take.batch = UINT64_MAX;
        take.wait_ms = UINT32_MAX;
        cr_assert_eq(
                call(&p, envelope(&p, SHEAF__ENVELOPE__BODY_TAKE_BATCH, &take),
                        NULL, 0),
                -ERANGE);
        cr_assert_eq(
                call(&p,
                        envelope(&p, SHEAF__ENVELOPE__BODY_OFFER_BATCH, &offer),
                        NULL, 0),
                -ESTALE);
        cr_assert_eq(
                call(&p,
                        envelope(&p, SHEAF__ENVELOPE__BODY_LEASE_BATCH, &lease),
                        NULL, 0),
                -EINVAL);
        for (int i = 0; i < 10000; i++) {
                int rc = join_by_hand(&p, 10, 8, 1, &more);

                cr_assert(rc == 0 || rc == -EBUSY);
                joined += !rc;
        }
        cr_assert_eq(joined, 64);
        cr_assert_eq(flow_stat("prep.members"), 65);
        close(p.sock);
        cr_assert(flow_until(GROUPS_LIMIT_S, flow_stat("prep.members") == 1));
        close(other.sock);
        close(fd);
        groups_nothing_left();
}

#define LISTS       250 /* 2 MiB of answers, queued */
#define LISTED      16
#define NAME_LETTER 120

/* Group @i of those that are listed. */
static void long_name(uint32_t i, char name[NAME_LETTER + 3])
{
        memset(name, 'a' + (int)i, NAME_LETTER);
        snprintf(name + NAME_LETTER, 3, "%02u", i);
}

static void ask_for_lists(struct peer *p)
{
        Sheaf__ListGroups list = SHEAF__LIST_GROUPS__INIT;

        for (int i = 0; i < LISTS; i++) {
                Sheaf__Envelope env =
                        envelope(p, SHEAF__ENVELOPE__BODY_LIST_GROUPS, &list);

                cr_assert_eq(sheaf_wire_send(p->sock, &env, NULL, 0), 0);
        }
        cr_assert(flow_live());
}

/* Reads all answers; each tells of @least groups or more, of each once. */
static void read_lists(struct peer *p, uint64_t first, uint32_t least)
{
        static uint32_t seen[LISTS]; /* bits */
        int ends = 0;

        memset(seen, 0, sizeof(seen));
        while (ends < LISTS) {
                struct sheaf_wire_msg msg;
                uint32_t bit, *of;

                cr_assert_eq(sheaf_wire_recv(p->sock, &msg), 1,
                        "dropped after %d", ends);
                cr_assert_neq(msg.env->body_case, SHEAF__ENVELOPE__BODY_ERROR,
                        "%s", msg.env->error->message);
                of = &seen[msg.env->id - first];
                if (msg.env->body_case == SHEAF__ENVELOPE__BODY_GROUP_INFO) {
                        bit = UINT32_C(1)
                              << (msg.env->group_info->name[0] - 'a');
                        cr_assert(!(*of & bit), "told twice");
                        *of |= bit;
                        cr_assert_eq(msg.env->group_info->n_member, 4);
                } else {
                        cr_assert_geq((uint32_t)__builtin_popcount(*of), least);
                        ends++;
                }
                sheaf_wire_msg_free(&msg);
        }
}

/* Lists far beyond what is queued for a client, who reads them late; also when
 * all groups go meanwhile. */
Test(groups, long_lists_that_are_read)
{
        struct peer p = greet(), members = greet();
        char name[NAME_LETTER + 3];
        uint64_t number;

        for (uint32_t i = 0; i < 4 * LISTED; i++) {
                long_name(i % LISTED, name);
                cr_assert_eq(join_named(&members, name, 10, 8, 1, &number), 0);
        }
        ask_for_lists(&p);
        read_lists(&p, p.id - LISTS + 1, LISTED);
        ask_for_lists(&p);
        close(members.sock);
        groups_nothing_left();
        read_lists(&p, p.id - LISTS + 1, 0);
        close(p.sock);
        cr_assert_eq(flow_stat("clients.dropped_slow"), 0);
}

/* Of the same name, and not the same. */
Test(groups, another_users_group_is_another)
{
        struct groups_spec spec = groups_spec(0);
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_group *group;
        struct sheaf_group_stats stats;
        uint64_t floor = 0;
        pid_t pid = flow_fork(4001, 0);

        if (!pid) {
                struct sheaf_group_options options = { .name = "g",
                        .batches = 7,
                        .world = 1,
                        .ahead = 3,
                        .lease_ms = 1 };

                while (!atomic_load(&board->go_on))
                        flow_sleep(0.005);
                if (flow_open("~root/data", &session, &dataset) ||
                        sheaf_group_open(dataset, &options, &floor, &group) ||
                        floor != UINT64_MAX ||
                        sheaf_group_stats(group, 60000, &stats) ||
                        stats.members != 1)
                        _exit(1);
                _exit(0);
        }
        flow_ok("sheaf share data all");
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        cr_assert_eq(groups_open(dataset, &spec, false, &group), 0);
        cr_assert_eq(sheaf_group_begin(group, 3), 0);
        atomic_store(&board->go_on, 1);
        groups_ends_well(pid);
        cr_assert_eq(sheaf_group_stats(group, 60000, &stats), 0);
        cr_assert_eq(stats.members, 1);
        cr_assert_eq(stats.floor, 3);
        sheaf_group_close(group);
        flow_close(session, dataset);
}
