/* SPDX-License-Identifier: Apache-2.0 */
/* Members and workers of groups that lie: about what a batch is, how large it
 * is, and what they will take. Others' groups go on beside them, and what is
 * staged of all stays within --prep. */
#include "tests/flow/groups.h"
#include "tests/flow/hostile.h"

#include <sys/mman.h>

#define PREP   (UINT64_C(16) << 20) /* a quarter of 64 MiB */
#define GROUPS 60                   /* members of a session */

static void begin(void)
{
        groups_init();
        hostile_begin();
}

static void end(void)
{
        groups_fini();
        flow_fini();
}

TestSuite(forgers, .init = begin, .fini = end, .timeout = 120);

static struct groups_spec spec_of(uid_t uid, uint32_t member)
{
        struct groups_spec spec = groups_spec(member);

        spec.uid = uid;
        spec.dataset = "~root/data";
        return spec;
}

/* ---- files that are no batches ---- */

struct liar {
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_group *member, *worker;
};

static struct liar liar_new(const struct groups_spec *spec)
{
        struct liar l;

        HOSTILE_NEED(!flow_open(spec->dataset, &l.session, &l.dataset), 2);
        HOSTILE_NEED(!groups_open(l.dataset, spec, false, &l.member), 2);
        HOSTILE_NEED(!groups_open(l.dataset, spec, true, &l.worker), 2);
        HOSTILE_NEED(!sheaf_group_begin(l.member, 0), 2);
        return l;
}

static void liar_free(struct liar *l)
{
        sheaf_group_close(l->worker);
        sheaf_group_close(l->member);
        flow_close(l->session, l->dataset);
}

static void seal(int fd)
{
        HOSTILE_NEED(!fcntl(fd, F_ADD_SEALS, GROUPS_SEALS), 3);
}

static int memfd(unsigned int flags, uint64_t bytes)
{
        int fd = memfd_create("lie", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);

        if (fd >= 0 && ftruncate(fd, (off_t)bytes)) {
                close(fd);
                return -1;
        }
        return fd;
}

#define KINDS 9

/* -1: not on this machine. */
static int lie_of(int kind)
{
        int fd, ends[2];

        switch (kind) {
        case 0: /* a regular file */
                return open(flow_path("origin/f1"), O_RDONLY | O_CLOEXEC);
        case 1: /* another that could be changed, of the same file system */
                fd = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
                (void)!write(fd, "x", 1);
                return fd;
        case 2:
                return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        case 3:
                HOSTILE_NEED(!pipe2(ends, O_CLOEXEC), 3);
                close(ends[1]);
                return ends[0];
        case 4: /* not sealed at all, open for writing */
                return memfd(0, 4096);
        case 5: /* nearly */
                fd = memfd(0, 4096);
                HOSTILE_NEED(!fcntl(fd, F_ADD_SEALS,
                                     F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL |
                                             F_SEAL_FUTURE_WRITE),
                        3);
                return fd;
        case 6: /* empty */
                fd = memfd(0, 0);
                break;
        case 7: /* a name of one, that cannot be read */
                fd = memfd(0, 4096);
                seal(fd);
                ends[0] = open(flow_path("origin"), O_PATH | O_CLOEXEC);
                close(fd);
                return ends[0];
        default:
                fd = memfd(MFD_HUGETLB, 2 << 20);
                if (fd < 0)
                        return -1;
        }
        seal(fd);
        return fd;
}

/* Each is refused, and its lease is free at once: it is told again. The third
 * time the batch has failed, with words. */
static void offer_lies(struct groups_spec spec)
{
        struct liar l;
        uint64_t batch, b = 0;

        spec.lease_ms = 3600 * 1000;
        l = liar_new(&spec);
        for (int kind = 0; kind < KINDS; kind++) {
                enum sheaf_group_state state;
                int fd = lie_of(kind), none = -1;

                if (fd < 0)
                        continue;
                for (int i = 0; i < 3; i++) {
                        HOSTILE_NEED(
                                !sheaf_group_lease(l.worker, 5000, &batch), 4);
                        HOSTILE_NEED(batch == b, 5);
                        if (sheaf_group_offer(l.worker, b, fd, "s") !=
                                -EINVAL) {
                                fprintf(stderr, "kind %d: %s\n", kind,
                                        sheaf_last_error());
                                _exit(6);
                        }
                }
                HOSTILE_NEED(!sheaf_group_take(
                                     l.member, b++, 5000, false, &state, &none),
                        7);
                HOSTILE_NEED(state == SHEAF_GROUP_FAILED && none == -1, 8);
                HOSTILE_NEED(strstr(sheaf_last_error(), "no batch"), 9);
                close(fd);
        }
        liar_free(&l);
        _exit(b >= 7 ? 0 : 10);
}

Test(forgers, what_is_no_batch_frees_its_lease)
{
        pid_t pid = flow_fork(HOSTILE_UID, 0);

        if (!pid)
                offer_lies(spec_of(HOSTILE_UID, 0));
        hostile_join(pid, GROUPS_LIMIT_S);
        groups_nothing_left();
        hostile_end();
}

/* ---- what a batch weighs ---- */

static uint64_t weighed(struct liar *l, uint64_t b, int fd)
{
        struct sheaf_group_stats before, after;
        uint64_t batch;

        HOSTILE_NEED(!sheaf_group_stats(l->member, 60000, &before), 4);
        HOSTILE_NEED(!sheaf_group_lease(l->worker, 5000, &batch), 4);
        HOSTILE_NEED(batch == b, 5);
        if (sheaf_group_offer(l->worker, b, fd, "s")) {
                fprintf(stderr, "batch %d: %s\n", (int)b, sheaf_last_error());
                _exit(6);
        }
        HOSTILE_NEED(!sheaf_group_stats(l->member, 60000, &after), 7);
        return after.staged_bytes - before.staged_bytes;
}

/* Pages beyond the end, holes that whoever maps it fills, parts of pages; and
 * one file many times over. */
static void weigh(struct groups_spec spec)
{
        struct liar l;
        int fd;

        spec.ahead = 20;
        l = liar_new(&spec);
        fd = memfd(0, 1);
        HOSTILE_NEED(!fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 1 << 20), 3);
        seal(fd);
        HOSTILE_NEED(weighed(&l, 0, fd) >= 1 << 20, 10);
        close(fd);
        fd = memfd(0, 3 << 20);
        seal(fd);
        HOSTILE_NEED(weighed(&l, 1, fd) >= 3 << 20, 11);
        close(fd);
        fd = memfd(0, 100);
        seal(fd);
        for (uint64_t b = 2; b < 18; b++)
                HOSTILE_NEED(weighed(&l, b, fd) >= 4096, 12);
        close(fd);
        liar_free(&l);
        _exit(0);
}

Test(forgers, a_batch_weighs_what_it_has)
{
        pid_t pid = flow_fork(HOSTILE_UID, 0);

        if (!pid)
                weigh(spec_of(HOSTILE_UID, 0));
        hostile_join(pid, GROUPS_LIMIT_S);
        groups_nothing_left();
        hostile_end();
}

/* ---- who takes all the room ---- */

/* One group of many: a member prepares batches as large as all of --prep and
 * takes them, over and over; the other never takes any. */
static void hoard_in(struct sheaf_group *group, int fd)
{
        enum sheaf_group_state state;
        int batch_fd = -1;

        HOSTILE_NEED(!sheaf_group_begin(group, 0), 3);
        for (int i = 0; i < 2; i++) {
                int rc = sheaf_group_take(group, 0, 0, true, &state, &batch_fd);

                HOSTILE_NEED(!rc, 4);
                if (state != SHEAF_GROUP_PREPARE)
                        break;
                rc = sheaf_group_offer(group, 0, fd, "s");
                HOSTILE_NEED(!rc, 5);
                atomic_fetch_add(&board->holding, 1);
        }
        if (batch_fd >= 0)
                close(batch_fd);
}

static _Noreturn void hoard(struct groups_spec spec)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_group *idle[GROUPS / 2], *busy[GROUPS / 2];
        int fd = memfd(0, PREP - 4096);

        seal(fd);
        HOSTILE_NEED(!flow_open(spec.dataset, &session, &dataset), 2);
        for (int i = 0; i < GROUPS / 2; i++) {
                char name[16];

                snprintf(name, sizeof(name), "g%d", i);
                spec.group = name;
                spec.member = 2;
                HOSTILE_NEED(!groups_open(dataset, &spec, false, &idle[i]), 2);
                HOSTILE_NEED(!sheaf_group_begin(idle[i], 0), 2);
                spec.member = 3;
                HOSTILE_NEED(!groups_open(dataset, &spec, false, &busy[i]), 2);
        }
        while (!atomic_load(&board->go_on))
                for (int i = 0; i < GROUPS / 2; i++)
                        hoard_in(busy[i], fd);
        _exit(0);
}

Test(forgers, room_is_shared_and_bounded)
{
        struct groups_spec spec = groups_spec(0);
        struct groups_jobs jobs;
        double most = 0, start = flow_now();
        pid_t pid;

        pid = flow_fork(HOSTILE_UID, 0);
        if (!pid) {
                spec = spec_of(HOSTILE_UID, 2);
                spec.patience_ms = 3600 * 1000;
                hoard(spec);
        }
        cr_assert(flow_until(
                GROUPS_LIMIT_S, atomic_load(&board->holding) >= 100));
        spec.bytes = 1 << 20;
        groups_start(&jobs, spec, 2);
        while (atomic_load(&board->next[0]) < 40 &&
                flow_now() - start < GROUPS_LIMIT_S) {
                double bytes = flow_stat("prep.staged_bytes");

                most = bytes > most ? bytes : most;
        }
        cr_assert_leq(most, (double)PREP);
        groups_end_well(&jobs);
        for (uint32_t m = 0; m < 2; m++)
                groups_took(m, 0, 40);
        cr_assert_gt(flow_stat("prep.shed"), 0);
        atomic_store(&board->go_on, 1);
        hostile_join(pid, GROUPS_LIMIT_S);
        groups_nothing_left();
        hostile_end();
}

/* ---- who does not read ---- */

static Sheaf__Envelope join_of(
        struct peer *p, Sheaf__JoinGroup *body, uint8_t id[16], bool worker)
{
        sheaf__join_group__init(body);
        memset(id, 7, 16);
        body->name = (char *)"mute";
        body->member.data = id;
        body->member.len = 16;
        body->batches = 1000;
        body->ahead = 1000;
        body->lease_ms = 60000;
        body->world = 1;
        body->begun = true;
        body->worker = worker;
        return envelope(p, SHEAF__ENVELOPE__BODY_JOIN_GROUP, body);
}

static uint64_t join_raw(struct peer *p, bool worker)
{
        Sheaf__JoinGroup body;
        struct sheaf_wire_msg msg;
        uint8_t id[16];
        uint64_t membership = 0;
        Sheaf__Envelope env = join_of(p, &body, id, worker);

        HOSTILE_NEED(!sheaf_wire_send(p->sock, &env, NULL, 0), 3);
        HOSTILE_NEED(!await(p, env.id, &msg, NULL, NULL), 3);
        if (msg.env->body_case == SHEAF__ENVELOPE__BODY_GROUP_JOINED)
                membership = msg.env->group_joined->membership;
        sheaf_wire_msg_free(&msg);
        return membership;
}

/* Takes all that a fair worker prepares for it, and reads no answer. */
static _Noreturn void take_and_never_read(void)
{
        struct peer p = { .sock = sheaf_wire_connect(flow.socket) }, w;
        Sheaf__TakeBatch take = SHEAF__TAKE_BATCH__INIT;
        Sheaf__LeaseBatch lease = SHEAF__LEASE_BATCH__INIT;
        Sheaf__OfferBatch offer = SHEAF__OFFER_BATCH__INIT;
        int fd = groups_file(0, 10000, GROUPS_SEALS);

        w.sock = sheaf_wire_connect(flow.socket);
        w.id = w.errors = 0;
        HOSTILE_NEED(!hello(&p) && !hello(&w), 2);
        take.membership = join_raw(&p, false);
        lease.membership = offer.membership = join_raw(&w, true);
        HOSTILE_NEED(take.membership && lease.membership, 2);
        lease.wait_ms = 100;
        fcntl(p.sock, F_SETFL, O_NONBLOCK);
        for (uint64_t b = 0; b < 900 || !hostile_long_enough(); b++) {
                Sheaf__Envelope env =
                        envelope(&w, SHEAF__ENVELOPE__BODY_LEASE_BATCH, &lease);
                struct sheaf_wire_msg msg;

                HOSTILE_NEED(!sheaf_wire_send(w.sock, &env, NULL, 0), 4);
                HOSTILE_NEED(!await(&w, env.id, &msg, NULL, NULL), 5);
                if (msg.env->body_case == SHEAF__ENVELOPE__BODY_BATCH_LEASED &&
                        msg.env->batch_leased->leased) {
                        offer.batch = msg.env->batch_leased->batch;
                        HOSTILE_NEED(
                                call(&w,
                                        envelope(&w,
                                                SHEAF__ENVELOPE__BODY_OFFER_BATCH,
                                                &offer),
                                        &fd, 1) != -ECONNRESET,
                                6);
                }
                sheaf_wire_msg_free(&msg);
                take.batch = b;
                take.wait_ms = 60000;
                env = envelope(&p, SHEAF__ENVELOPE__BODY_TAKE_BATCH, &take);
                (void)!sheaf_wire_send(p.sock, &env, NULL, 0);
        }
        _exit(0);
}

Test(forgers, who_reads_no_answer)
{
        pid_t pid = flow_fork(HOSTILE_UID, 0), members[2], worker;
        struct groups_spec spec = groups_spec(0);

        if (!pid)
                take_and_never_read();
        spec.members = 2;
        for (uint32_t m = 0; m < 2; m++) {
                spec.member = m;
                members[m] = groups_member(&spec);
        }
        worker = groups_worker(&spec);
        for (uint32_t m = 0; m < 2; m++)
                groups_ends_well(members[m]);
        groups_ends_well(worker);
        hostile_join(pid, GROUPS_LIMIT_S);
        groups_nothing_left();
        hostile_end();
}
