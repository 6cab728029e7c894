/* SPDX-License-Identifier: Apache-2.0 */
/* Messages about groups, as the daemon's loop gets them from three clients, one
 * of them of another user: the input is a program of what they ask.
 *
 *  1 each answer is to a request that waits for one, of a kind that fits; who
 *    lists gets his own groups, each once
 *  2 a batch that is given is the one that was asked for, of that group, and
 *    cannot be changed
 *  3 what is kept stays within --prep; when the clients are gone there is no
 *    group, no byte and no descriptor left */
#include "daemon/closer.h"
#include "daemon/log.h"
#include "daemon/prep/prep.h"
#include "daemon/server.h"
#include "tests/fuzz/input.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define STEPS_MAX  200
#define CLIENTS    3
#define SEATS      12 /* remembered, of a client */
#define WAITING    512
#define GROUPS     4
#define BATCHES    6
#define PREP_BYTES (64 * SHEAF_KIB)
#define OTHER      4001 /* the user of the last client, if we are root */
#define SEALS      (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)

struct seat {
        uint64_t number;
        uint8_t group;
};

/* A request that waits for its answer. */
struct waiting {
        Sheaf__Envelope__BodyCase body; /* 0: none */
        uint8_t group;
        uint64_t batch;
        uint32_t listed; /* groups, as bits */
};

/* What the bytes of a batch say. */
struct stamp {
        uint64_t magic, batch;
        uint32_t group, uid;
};

static struct client {
        int sock;
        struct seat seats[SEATS];
        uint32_t seat_count;
        struct waiting waiting[WAITING];
        uint64_t id;
} clients[CLIENTS];

static uv_loop_t loop;
static struct sheaf_config config = { .deadline_ms = 1000,
        .prep_bytes = PREP_BYTES };
static struct sheaf_daemon daemon_of = { .loop = &loop, .config = &config };
static char path[128];
static bool waited; /* for the clock, in this input */

/* ---- the daemon ---- */

static void setup(void)
{
        if (daemon_of.server)
                return;
        sheaf_log_set_level((enum sheaf_log_level) - 1); /* none */
        (void)fuzz_dir();
        snprintf(path, sizeof(path), "%s/s", fuzz_dir_path);
        fuzz_must(!chmod(fuzz_dir_path, 0711));
        fuzz_must(!uv_loop_init(&loop));
        fuzz_must(!sheaf_server_new(&daemon_of, path, &daemon_of.server));
        fuzz_must(!sheaf_closer_new(&loop, &daemon_of.closer));
        fuzz_must(!sheaf_prep_new(&daemon_of, &daemon_of.prep));
}

static uid_t user_of(const struct client *client)
{
        return !getuid() && client == &clients[2] ? OTHER : getuid();
}

static void turn(void)
{
        for (int i = 0; i < 3; i++)
                uv_run(&loop, UV_RUN_NOWAIT);
}

/* ---- answers ---- */

static bool fits(Sheaf__Envelope__BodyCase asked, Sheaf__Envelope__BodyCase got)
{
        switch (asked) {
        case SHEAF__ENVELOPE__BODY_HELLO:
                return got == SHEAF__ENVELOPE__BODY_WELCOME;
        case SHEAF__ENVELOPE__BODY_JOIN_GROUP:
                return got == SHEAF__ENVELOPE__BODY_GROUP_JOINED;
        case SHEAF__ENVELOPE__BODY_LEASE_BATCH:
                return got == SHEAF__ENVELOPE__BODY_BATCH_LEASED;
        case SHEAF__ENVELOPE__BODY_TAKE_BATCH:
                return got == SHEAF__ENVELOPE__BODY_BATCH_TAKEN;
        case SHEAF__ENVELOPE__BODY_GROUP_STATS:
                return got == SHEAF__ENVELOPE__BODY_GROUP_INFO;
        default:
                return got == SHEAF__ENVELOPE__BODY_DONE;
        }
}

static void check_batch(
        const struct client *client, int fd, const struct waiting *request)
{
        struct stamp stamp;

        fuzz_must(pread(fd, &stamp, sizeof(stamp), 0) == sizeof(stamp));
        fuzz_must(stamp.magic == 42 && stamp.batch == request->batch &&
                  stamp.group == request->group &&
                  stamp.uid == user_of(client));
        fuzz_must((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY);
        fuzz_must((fcntl(fd, F_GET_SEALS) & SEALS) == SEALS);
}

/* Of that name; all others are one here. */
static uint8_t group_of(const char *name)
{
        uint8_t group = (uint8_t)(*name - 'a');

        return strlen(name) == 1 && group < GROUPS ? group : GROUPS;
}

static void check_info(struct client *client, const Sheaf__GroupInfo *info,
        struct waiting *request)
{
        uint32_t bit = 1U << group_of(info->name);

        fuzz_must(info->staged_bytes <= PREP_BYTES);
        if (request->body != SHEAF__ENVELOPE__BODY_LIST_GROUPS)
                return;
        fuzz_must(info->n_member == info->members);
        /* Root sees the groups of others, too. */
        fuzz_must(user_of(client) != OTHER || !strcmp(info->owner, "4001"));
        if (bit == 1U << GROUPS)
                return;
        bit <<= *info->owner == '4' ? 16 : 0;
        fuzz_must(!(request->listed & bit));
        request->listed |= bit;
}

static void joined(struct client *client, uint64_t number, uint8_t group)
{
        struct seat *seat = &client->seats[client->seat_count++ % SEATS];

        *seat = (struct seat){ number, group };
}

static void take_answer(struct client *client, struct sheaf_wire_msg *msg)
{
        const Sheaf__Envelope *env = msg->env;
        struct waiting *request = &client->waiting[env->id % WAITING];
        bool taken = env->body_case == SHEAF__ENVELOPE__BODY_BATCH_TAKEN &&
                     env->batch_taken->state == SHEAF_PREP_TAKEN;

        fuzz_must(request->body);
        fuzz_must(msg->fd_count == taken);
        if (env->body_case == SHEAF__ENVELOPE__BODY_GROUP_INFO)
                check_info(client, env->group_info, request);
        if (env->more) {
                fuzz_must(request->body == SHEAF__ENVELOPE__BODY_LIST_GROUPS);
                return;
        }
        fuzz_must(env->body_case == SHEAF__ENVELOPE__BODY_ERROR ||
                  fits(request->body, env->body_case));
        if (taken)
                check_batch(client, msg->fds[0], request);
        if (env->body_case == SHEAF__ENVELOPE__BODY_GROUP_JOINED)
                joined(client, env->group_joined->membership, request->group);
        request->body = 0;
}

static void drain(struct client *client)
{
        struct sheaf_wire_msg msg;

        while (client->sock >= 0 && sheaf_wire_recv(client->sock, &msg) == 1) {
                take_answer(client, &msg);
                sheaf_wire_msg_free(&msg);
        }
}

static void go_on(void)
{
        struct sheaf_prep_stats stats;

        turn();
        for (int i = 0; i < CLIENTS; i++)
                drain(&clients[i]);
        sheaf_prep_stats(daemon_of.prep, &stats);
        fuzz_must(stats.staged_bytes <= PREP_BYTES);
}

/* ---- requests ---- */

static void ask(struct client *client, Sheaf__Envelope__BodyCase body, void *of,
        const struct waiting *request, int fd)
{
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        struct waiting *waiting;

        if (client->waiting[(client->id + 1) % WAITING].body)
                return;
        env.id = ++client->id;
        env.body_case = body;
        env.hello = of; /* all members of the union are pointers */
        waiting = &client->waiting[env.id % WAITING];
        *waiting = *request;
        waiting->body = body;
        if (sheaf_wire_send(client->sock, &env, &fd, fd >= 0))
                waiting->body = 0;
}

static void greet(struct client *client)
{
        Sheaf__Hello hello = SHEAF__HELLO__INIT;
        struct waiting none = { 0 };

        fuzz_must(!seteuid(user_of(client)));
        client->sock = sheaf_wire_connect(path);
        fuzz_must(!seteuid(getuid()));
        fuzz_must(client->sock >= 0);
        fcntl(client->sock, F_SETFL, O_NONBLOCK);
        client->seat_count = 0;
        memset(client->seats, 0, sizeof(client->seats));
        memset(client->waiting, 0, sizeof(client->waiting));
        hello.kind = hello.name = (char *)"fuzz";
        ask(client, SHEAF__ENVELOPE__BODY_HELLO, &hello, &none, -1);
}

static void join(struct fuzz_input *in, struct client *client, uint8_t how)
{
        Sheaf__JoinGroup body = SHEAF__JOIN_GROUP__INIT;
        Sheaf__Trait trait = SHEAF__TRAIT__INIT, *traits[] = { &trait };
        struct waiting request = { .group = fuzz_u8(in) % GROUPS };
        char name[2] = { (char)('a' + request.group), 0 };
        uint8_t member[16] = { how >> 5 };

        body.name = name;
        trait.name = (char *)"t";
        trait.value = (char *)(fuzz_u8(in) < 240 ? "x" : "y");
        body.trait = traits;
        body.n_trait = 1;
        body.member.data = member;
        body.member.len = fuzz_u8(in) < 250 ? 16 : 15;
        body.worker = how & 1;
        body.batches = how & 2 ? BATCHES : fuzz_u32(in);
        body.ahead = 1 + fuzz_u8(in) % 8;
        body.lease_ms = 1 + fuzz_u8(in);
        body.patience_ms = fuzz_u8(in);
        body.world = 1 + fuzz_u8(in) % 3;
        body.rank = how & 4 ? fuzz_u8(in) % 3 : 0;
        body.members = how & 8 ? fuzz_u16(in) : 0;
        body.begun = how & 16;
        body.position = body.begun ? fuzz_u64(in) : 0;
        ask(client, SHEAF__ENVELOPE__BODY_JOIN_GROUP, &body, &request, -1);
}

/* A file of a batch, as it should be, or not quite. */
static int file_of(
        const struct client *client, uint8_t group, uint64_t batch, uint8_t how)
{
        struct stamp stamp = { 42, batch, group, user_of(client) };
        int fd = memfd_create("batch", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        off_t bytes = (off_t)sizeof(stamp) + how % 8 * 9000;

        fuzz_must(fd >= 0);
        fuzz_must(how % 64 == 63 ||
                  (!ftruncate(fd, bytes) && pwrite(fd, &stamp, sizeof(stamp),
                                                    0) == sizeof(stamp)));
        (void)!fcntl(fd, F_ADD_SEALS, how % 64 == 62 ? SEALS - 1 : SEALS);
        return fd;
}

static void offer(struct fuzz_input *in, struct client *client,
        const struct seat *seat, uint64_t batch)
{
        Sheaf__OfferBatch body = SHEAF__OFFER_BATCH__INIT;
        struct waiting request = { 0 };
        uint8_t how = fuzz_u8(in);
        int fd = how == 255 ? -1 : file_of(client, seat->group, batch, how);

        body.membership = seat->number;
        body.batch = batch;
        body.schema = (char *)(fuzz_u8(in) < 240 ? "f32" : "i8");
        ask(client, SHEAF__ENVELOPE__BODY_OFFER_BATCH, &body, &request, fd);
        sheaf_close_p(&fd);
}

static void fail(struct client *client, const struct seat *seat, uint64_t batch)
{
        Sheaf__FailBatch body = SHEAF__FAIL_BATCH__INIT;
        struct waiting request = { 0 };

        body.membership = seat->number;
        body.batch = batch;
        body.why = (char *)"no such sample";
        ask(client, SHEAF__ENVELOPE__BODY_FAIL_BATCH, &body, &request, -1);
}

static void take(struct client *client, const struct seat *seat, uint8_t how,
        uint64_t batch)
{
        Sheaf__TakeBatch body = SHEAF__TAKE_BATCH__INIT;
        struct waiting request = { .group = seat->group, .batch = batch };

        body.membership = seat->number;
        body.batch = batch;
        body.may_prepare = how & 1;
        body.wait_ms = how & 2 ? 1000 : 0;
        ask(client, SHEAF__ENVELOPE__BODY_TAKE_BATCH, &body, &request, -1);
}

static void lease(struct client *client, const struct seat *seat, uint8_t how)
{
        Sheaf__LeaseBatch body = SHEAF__LEASE_BATCH__INIT;
        struct waiting request = { 0 };

        body.membership = seat->number;
        body.wait_ms = how & 2 ? 1000 : 0;
        ask(client, SHEAF__ENVELOPE__BODY_LEASE_BATCH, &body, &request, -1);
}

static void small(struct client *client, const struct seat *seat, uint8_t how,
        uint64_t batch)
{
        Sheaf__BeginGroup begin = SHEAF__BEGIN_GROUP__INIT;
        Sheaf__LeaveGroup leave = SHEAF__LEAVE_GROUP__INIT;
        Sheaf__GroupStats stats = SHEAF__GROUP_STATS__INIT;
        Sheaf__ListGroups list = SHEAF__LIST_GROUPS__INIT;
        struct waiting request = { 0 };

        begin.membership = leave.membership = stats.membership = seat->number;
        begin.batch = batch;
        if (how % 4 == 0)
                ask(client, SHEAF__ENVELOPE__BODY_BEGIN_GROUP, &begin, &request,
                        -1);
        else if (how % 4 == 1)
                ask(client, SHEAF__ENVELOPE__BODY_LEAVE_GROUP, &leave, &request,
                        -1);
        else if (how % 4 == 2)
                ask(client, SHEAF__ENVELOPE__BODY_GROUP_STATS, &stats, &request,
                        -1);
        else
                ask(client, SHEAF__ENVELOPE__BODY_LIST_GROUPS, &list, &request,
                        -1);
}

/* Any message about groups, as bytes; but batches are taken and offered by the
 * others, which know of what group. */
static void raw(struct fuzz_input *in, struct client *client)
{
        uint8_t bytes[64];
        size_t len = fuzz_u8(in) % sizeof(bytes);
        Sheaf__Envelope *env;
        struct waiting request = { 0 };

        fuzz_take(in, bytes, len);
        env = sheaf_wire_decode(bytes, len);
        if (env && env->body_case >= SHEAF__ENVELOPE__BODY_JOIN_GROUP &&
                env->body_case <= SHEAF__ENVELOPE__BODY_LIST_GROUPS &&
                env->body_case != SHEAF__ENVELOPE__BODY_TAKE_BATCH &&
                env->body_case != SHEAF__ENVELOPE__BODY_OFFER_BATCH) {
                if (env->body_case == SHEAF__ENVELOPE__BODY_JOIN_GROUP)
                        request.group = group_of(env->join_group->name);
                ask(client, env->body_case, env->hello, &request, -1);
        }
        if (env)
                sheaf__envelope__free_unpacked(env, NULL);
}

/* Until the groups' timer has looked: leases and patience are over. */
static void wait_a_moment(void)
{
        if (waited)
                return;
        waited = true;
        usleep(25000);
}

static void step(struct fuzz_input *in)
{
        uint8_t op = fuzz_u8(in), how = fuzz_u8(in);
        struct client *client = &clients[op / 16 % CLIENTS];
        const struct seat *seat = &client->seats[how / 4 % SEATS];
        uint64_t batch = how & 1 ? fuzz_u8(in) % (2 * BATCHES) : 0;

        switch (op % 16) {
        case 0:
        case 1:
                join(in, client, how);
                break;
        case 2:
        case 3:
                take(client, seat, op >> 6, batch);
                break;
        case 4:
                lease(client, seat, op >> 6);
                break;
        case 5:
        case 6:
                offer(in, client, seat, batch);
                break;
        case 7:
                fail(client, seat, batch);
                break;
        case 8:
        case 9:
                small(client, seat, op >> 6, batch);
                break;
        case 10:
                raw(in, client);
                break;
        case 11:
                close(client->sock);
                greet(client);
                break;
        case 12:
                wait_a_moment();
                break;
        default:
                break;
        }
        /* Or the daemon gets several in one turn. */
        if (fuzz_u8(in) & 3)
                go_on();
}

/* ---- the end ---- */

static int open_fds(void)
{
        DIR *dir = opendir("/proc/self/fd");
        int count = 0;

        fuzz_must(dir);
        while (readdir(dir))
                count++;
        closedir(dir);
        return count;
}

static void leave(int fds_before)
{
        struct sheaf_prep_stats stats;

        for (int i = 0; i < CLIENTS; i++)
                sheaf_close_p(&clients[i].sock);
        while (sheaf_server_first(daemon_of.server))
                uv_run(&loop, UV_RUN_ONCE);
        sheaf_prep_stats(daemon_of.prep, &stats);
        fuzz_must(!stats.groups && !stats.members && !stats.workers &&
                  !stats.staged && !stats.staged_bytes);
        /* Files are closed on the pool. */
        for (int i = 0; i < 1000 && open_fds() != fds_before; i++) {
                uv_run(&loop, UV_RUN_NOWAIT);
                usleep(i < 10 ? 0 : 1000);
        }
        fuzz_must(open_fds() == fds_before);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct fuzz_input in = { data, size };
        int fds_before;

        setup();
        turn();
        fds_before = open_fds();
        waited = false;
        for (int i = 0; i < CLIENTS; i++)
                greet(&clients[i]);
        go_on();
        for (int i = 0; i < STEPS_MAX && in.left; i++)
                step(&in);
        go_on();
        leave(fds_before);
        return 0;
}
