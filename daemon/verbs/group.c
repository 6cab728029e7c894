/* SPDX-License-Identifier: Apache-2.0 */
/* Groups that prepare each batch once: who takes part, leases, offers, takes.
 *
 * Threads: loop thread. */
#include "daemon/prep/prep.h"
#include "daemon/registry/names.h"
#include "daemon/verbs/verbs.h"

#include "daemon/clock.h"

#include <stdio.h>

#define LEASE_MS_MAX (24 * 3600 * 1000)

/* A take or a lease that is not answered yet. */
struct group_call {
        struct sheaf_call call; /* first */
        struct sheaf_prep_wait wait;
};

/* ---- joining ---- */

static const char *fault_of_traits(const Sheaf__JoinGroup *join)
{
        if (join->n_trait > SHEAF_PREP_TRAITS_MAX)
                return "a group has at most 32 traits";
        for (size_t i = 0; i < join->n_trait; i++) {
                size_t len = strlen(join->trait[i]->name);

                if (!len || len > SHEAF_PREP_TRAIT_NAME)
                        return "a trait's name has 1 to 64 bytes";
                if (strlen(join->trait[i]->value) > SHEAF_PREP_TRAIT_VALUE)
                        return "a trait has at most 256 bytes; of more, give "
                               "a digest";
        }
        return NULL;
}

/* What is wrong with the request, or NULL. */
static const char *fault_of(const Sheaf__JoinGroup *join)
{
        size_t len = strlen(join->name);

        if (!len || len > SHEAF_PREP_NAME_MAX)
                return "a group's name has 1 to 128 bytes";
        if (join->member.len != 16)
                return "a member is named by 16 bytes";
        if (!join->batches)
                return "an epoch has 1 batch or more";
        if (!join->ahead || join->ahead > SHEAF_PREP_AHEAD_MAX)
                return "the first is 1 to 1,024 batches ahead of the last";
        if (!join->lease_ms || join->lease_ms > LEASE_MS_MAX)
                return "a lease lasts from a millisecond to a day";
        if (!join->world || join->world > join->batches ||
                join->rank >= join->world)
                return "rank is below world, and world not over the batches "
                       "of an epoch";
        if (join->members > SHEAF_PREP_MEMBERS_MAX)
                return "a group has at most 256 members";
        return fault_of_traits(join);
}

static void fill(const Sheaf__JoinGroup *join, struct sheaf_seat_spec *spec)
{
        *spec = (struct sheaf_seat_spec){ .name = join->name,
                .traits = join->trait,
                .trait_count = join->n_trait,
                .worker = join->worker,
                .batches = join->batches,
                .ahead = join->ahead,
                .lease_ms = join->lease_ms,
                .begun = join->begun,
                .position = join->position };
        memcpy(spec->member.id, join->member.data, sizeof(spec->member.id));
        spec->member.rank = join->rank;
        spec->member.world = join->world;
        spec->member.patience_ns = join->patience_ms * SHEAF_NS_PER_MS;
        spec->member.gather = join->members;
        spec->member.gathered = join->gathered;
}

void sheaf_verb_join_group(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__JoinGroup *join = msg->env->join_group;
        const char *fault = fault_of(join);
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__GroupJoined body = SHEAF__GROUP_JOINED__INIT;
        struct sheaf_seat_spec spec;
        char why[SHEAF_PREP_TEXT_MAX];
        struct sheaf_seat *seat;
        int rc;

        env.id = msg->env->id;
        if (fault) {
                sheaf_conn_error(conn, env.id, -EINVAL, "%s", fault);
                return;
        }
        fill(join, &spec);
        rc = sheaf_seat_new(conn, &spec, &seat, why);
        if (rc) {
                sheaf_conn_error(conn, env.id, rc, "%s", why);
                return;
        }
        body.membership = sheaf_seat_number(seat);
        body.others = sheaf_seat_floor(seat, &body.floor);
        env.body_case = SHEAF__ENVELOPE__BODY_GROUP_JOINED;
        env.group_joined = &body;
        sheaf_conn_send(conn, &env, NULL, 0);
        sheaf_seat_told(seat);
}

/* The seat of @number, or NULL after an error was sent. */
static struct sheaf_seat *seat_of(
        struct sheaf_conn *conn, uint64_t id, uint64_t number)
{
        struct sheaf_seat *seat = sheaf_seat_find(conn, number);

        if (!seat)
                sheaf_conn_error(conn, id, -ENOTCONN,
                        "not a membership of this connection");
        else if (!sheaf_seat_group(seat))
                sheaf_conn_error(conn, id, -ENOENT,
                        "the member of this worker is gone, and the group was "
                        "begun anew");
        else
                return seat;
        return NULL;
}

static struct sheaf_seat *member_of(
        struct sheaf_conn *conn, uint64_t id, uint64_t number)
{
        struct sheaf_seat *seat = seat_of(conn, id, number);

        if (!seat || sheaf_seat_member(seat))
                return seat;
        sheaf_conn_error(conn, id, -EINVAL, "a worker takes no batches");
        return NULL;
}

void sheaf_verb_begin_group(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__BeginGroup *begin = msg->env->begin_group;
        struct sheaf_seat *seat =
                member_of(conn, msg->env->id, begin->membership);
        int rc;

        if (!seat)
                return;
        rc = sheaf_prep_begin(sheaf_seat_member(seat), begin->batch,
                sheaf_prep_now_ns(conn->daemon->prep));
        if (rc)
                sheaf_conn_error(conn, msg->env->id, rc,
                        rc == -ERANGE ? "there is no batch %llu"
                                      : "no memory to begin at batch %llu",
                        (unsigned long long)begin->batch);
        else
                sheaf_conn_done(conn, msg->env->id);
        sheaf_seat_told(seat);
}

void sheaf_verb_leave_group(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        struct sheaf_seat *seat =
                sheaf_seat_find(conn, msg->env->leave_group->membership);

        if (seat)
                sheaf_seat_leave(seat, true);
        sheaf_conn_done(conn, msg->env->id);
}

/* ---- waiting ---- */

static void abandon(struct sheaf_call *call)
{
        struct group_call *c = (struct group_call *)call;

        sheaf_seat_cancel(&c->wait);
        free(c);
}

/* Ends the call: it may be answered. */
static struct sheaf_conn *finish(struct sheaf_prep_wait *wait, uint64_t *ret_id)
{
        struct group_call *c =
                (struct group_call *)((char *)wait -
                                      offsetof(struct group_call, wait));
        struct sheaf_conn *conn = c->call.conn;

        *ret_id = c->call.id;
        sheaf_call_end(&c->call);
        free(c);
        return conn;
}

static struct group_call *call_new(
        struct sheaf_conn *conn, uint64_t id, uint32_t wait_ms)
{
        struct group_call *c = sheaf_new(struct group_call, 1);

        if (!sheaf_call_begin(conn, id, c ? &c->call : NULL, abandon)) {
                free(c);
                return NULL;
        }
        wait_ms = SHEAF_MIN(wait_ms, conn->daemon->config->deadline_ms);
        c->wait.deadline_ns = sheaf_now_ns() + wait_ms * SHEAF_NS_PER_MS;
        return c;
}

/* The wait did not begin. */
static void call_fail(struct group_call *c, int rc, const char *why)
{
        uint64_t id;
        struct sheaf_conn *conn = finish(&c->wait, &id);

        sheaf_conn_error(conn, id, rc, "%s", why);
}

static void taken(
        struct sheaf_prep_wait *wait, const struct sheaf_prep_answer *answer)
{
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__BatchTaken body = SHEAF__BATCH_TAKEN__INIT;
        struct sheaf_conn *conn = finish(wait, &env.id);

        if (answer->rc || answer->kind == SHEAF_PREP_GONE) {
                sheaf_conn_error(conn, env.id,
                        answer->rc ? answer->rc : -ENOTCONN,
                        answer->rc ? "sheafd cannot open a batch for you"
                                   : "this member joined again elsewhere");
                return;
        }
        body.state = (uint32_t)answer->state;
        if (answer->kind == SHEAF_PREP_GIVE)
                body.state = SHEAF_PREP_TAKEN;
        else if (answer->kind == SHEAF_PREP_DO)
                body.state = SHEAF_PREP_PREPARE;
        else if (answer->kind == SHEAF_PREP_TELL)
                body.state = SHEAF_PREP_FAILED;
        if (answer->why)
                body.why = (char *)answer->why;
        body.gathered = answer->gathered;
        env.body_case = SHEAF__ENVELOPE__BODY_BATCH_TAKEN;
        env.batch_taken = &body;
        sheaf_conn_send(conn, &env, &answer->fd, answer->fd >= 0);
}

void sheaf_verb_take_batch(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__TakeBatch *take = msg->env->take_batch;
        struct sheaf_seat *seat =
                member_of(conn, msg->env->id, take->membership);
        struct group_call *c =
                seat ? call_new(conn, msg->env->id, take->wait_ms) : NULL;
        int rc;

        if (!c)
                return;
        c->wait.answer = taken;
        rc = sheaf_seat_take(seat, &c->wait, take->batch, take->may_prepare);
        if (rc == -EBUSY)
                call_fail(c, rc, "this member waits for a batch already");
        else if (rc == -ERANGE)
                call_fail(c, rc,
                        "that batch is not of this member's rank, or there is "
                        "no such number");
        else if (rc)
                call_fail(c, rc, "no memory to go on at that batch");
}

static void leased(
        struct sheaf_prep_wait *wait, const struct sheaf_prep_answer *answer)
{
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__BatchLeased body = SHEAF__BATCH_LEASED__INIT;
        struct sheaf_conn *conn = finish(wait, &env.id);

        if (answer->kind == SHEAF_PREP_GONE) {
                sheaf_conn_error(conn, env.id, -ENOENT,
                        "the member of this worker is gone");
                return;
        }
        if (answer->kind == SHEAF_PREP_UNFIT) {
                sheaf_conn_error(conn, env.id, -EEXIST, "%s", answer->why);
                return;
        }
        body.leased = answer->kind == SHEAF_PREP_LEASE;
        body.batch = answer->batch;
        env.body_case = SHEAF__ENVELOPE__BODY_BATCH_LEASED;
        env.batch_leased = &body;
        sheaf_conn_send(conn, &env, NULL, 0);
}

void sheaf_verb_lease_batch(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__LeaseBatch *lease = msg->env->lease_batch;
        struct sheaf_seat *seat =
                seat_of(conn, msg->env->id, lease->membership);
        struct group_call *c;

        if (seat && sheaf_seat_member(seat)) {
                sheaf_conn_error(conn, msg->env->id, -EINVAL,
                        "a member is leased what it takes, if it may prepare");
                return;
        }
        c = seat ? call_new(conn, msg->env->id, lease->wait_ms) : NULL;
        if (!c)
                return;
        c->wait.answer = leased;
        if (sheaf_seat_lease(seat, &c->wait))
                call_fail(c, -EBUSY, "this worker waits for a lease already");
}

/* ---- what workers bring ---- */

void sheaf_verb_offer_batch(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__OfferBatch *offer = msg->env->offer_batch;
        struct sheaf_seat *seat =
                seat_of(conn, msg->env->id, offer->membership);
        char why[SHEAF_PREP_TEXT_MAX];
        int rc, none = -1;

        if (!seat)
                return;
        if (strlen(offer->schema) > SHEAF_PREP_SCHEMA_MAX) {
                sheaf_conn_error(conn, msg->env->id, -EMSGSIZE,
                        "a schema has at most 256 bytes; of more, give a "
                        "digest");
                return;
        }
        rc = sheaf_seat_offer(seat, offer->batch,
                msg->fd_count ? &msg->fds[0] : &none, offer->schema, why);
        if (rc)
                sheaf_conn_error(conn, msg->env->id, rc, "%s", why);
        else
                sheaf_conn_done(conn, msg->env->id);
}

void sheaf_verb_fail_batch(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__FailBatch *fail = msg->env->fail_batch;
        struct sheaf_seat *seat = seat_of(conn, msg->env->id, fail->membership);
        int rc;

        if (!seat)
                return;
        rc = sheaf_seat_fail(seat, fail->batch, fail->why);
        if (rc)
                sheaf_conn_error(conn, msg->env->id, rc,
                        "batch %llu: another worker was first, or nobody needs "
                        "it any more",
                        (unsigned long long)fail->batch);
        else
                sheaf_conn_done(conn, msg->env->id);
}

/* ---- figures ---- */

static void fill_member(
        struct sheaf_prep_member *member, Sheaf__GroupMember *each)
{
        struct sheaf_prep_member_stats stats;

        sheaf_prep_member_stats(member, &stats);
        sheaf__group_member__init(each);
        each->pid = sheaf_seat_pid(stats.arg);
        each->rank = stats.rank;
        each->world = stats.world;
        each->begun = stats.begun;
        each->position = stats.position;
        each->detached = stats.detached;
        each->waits = stats.waits;
        each->state = (uint32_t)stats.state;
        each->workers = stats.workers;
}

static void fill_info(
        const struct sheaf_prep_shown *shown, Sheaf__GroupInfo *info)
{
        struct sheaf_prep_group_stats stats;

        sheaf_prep_group_stats(shown->group, &stats);
        info->name = (char *)shown->name;
        info->members = stats.members;
        info->workers = stats.workers;
        info->staged = stats.staged;
        info->staged_bytes = stats.staged_bytes;
        info->begun = stats.begun;
        info->floor = stats.floor;
        info->prepared = stats.prepared;
        info->taken = stats.taken;
        info->redone = stats.redone;
        info->private_ = stats.own;
        info->late = stats.late;
        info->failed = stats.failed;
        info->batches = shown->batches;
        info->ahead = shown->ahead;
        info->gather = stats.gathered ? 0 : stats.gather;
}

static void send_info(struct sheaf_conn *conn,
        const struct sheaf_prep_shown *shown, Sheaf__Envelope *env,
        Sheaf__GroupInfo *info)
{
        char owner[64];

        fill_info(shown, info);
        if (shown->grant)
                snprintf(owner, sizeof(owner), "grant");
        else
                sheaf_names_of_user(shown->uid, owner, sizeof(owner));
        info->owner = owner;
        env->body_case = SHEAF__ENVELOPE__BODY_GROUP_INFO;
        env->group_info = info;
        sheaf_conn_send(conn, env, NULL, 0);
}

void sheaf_verb_group_stats(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        struct sheaf_seat *seat =
                seat_of(conn, msg->env->id, msg->env->group_stats->membership);
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__GroupInfo info = SHEAF__GROUP_INFO__INIT;
        struct sheaf_prep_shown shown;

        if (!seat || !sheaf_seat_shown(seat, &shown))
                return;
        if (sheaf_seat_member(seat)) {
                struct sheaf_prep_member_stats own;

                sheaf_prep_member_stats(sheaf_seat_member(seat), &own);
                info.detached = own.detached;
        }
        env.id = msg->env->id;
        send_info(conn, &shown, &env, &info);
}

/* All that the client may see, as it reads; the newest first. */
struct list_call {
        struct sheaf_call call; /* first */
        uint64_t last;          /* number of the group that was told last */
        char name[SHEAF_PREP_NAME_MAX + 1];
};

static bool list_one(void *arg, const struct sheaf_prep_shown *shown)
{
        struct list_call *list = arg;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__GroupInfo info = SHEAF__GROUP_INFO__INIT;
        Sheaf__GroupMember each[SHEAF_PREP_MEMBERS_MAX];
        Sheaf__GroupMember *members[SHEAF_PREP_MEMBERS_MAX];
        struct sheaf_prep_member *m = sheaf_prep_first(shown->group);

        if (!sheaf_conn_has_room(list->call.conn))
                return false;
        for (; m; m = sheaf_prep_after(m)) {
                fill_member(m, &each[info.n_member]);
                members[info.n_member] = &each[info.n_member];
                info.n_member++;
        }
        info.member = members;
        env.id = list->call.id;
        env.more = true;
        list->last = shown->number;
        send_info(list->call.conn, shown, &env, &info);
        return true;
}

static void list_on(struct sheaf_call *call)
{
        struct list_call *list = (struct list_call *)call;
        struct sheaf_conn *conn = call->conn;
        uint64_t id = call->id;

        if (!sheaf_prep_each(conn, list->name, list->last, list_one, list))
                return;
        sheaf_call_end(call);
        free(list);
        sheaf_conn_done(conn, id);
}

static void list_abandon(struct sheaf_call *call)
{
        free(call);
}

void sheaf_verb_list_groups(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const char *name = msg->env->list_groups->name;
        uint64_t id = msg->env->id;
        struct list_call *list;

        if (strlen(name) > SHEAF_PREP_NAME_MAX) {
                sheaf_conn_error(
                        conn, id, -EINVAL, "a group's name has 1 to 128 bytes");
                return;
        }
        list = sheaf_new(struct list_call, 1);
        if (!sheaf_call_begin(
                    conn, id, list ? &list->call : NULL, list_abandon)) {
                free(list);
                return;
        }
        strcpy(list->name, name);
        list->last = UINT64_MAX;
        list->call.resume = list_on;
        list_on(&list->call);
}
