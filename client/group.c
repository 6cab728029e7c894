/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: batches prepared once for several jobs.
 *
 *  1 a membership is of one connection; after another one was made, or the
 *    daemon began anew, the group joins again before the next request, with
 *    all that the daemon has to know of it: its position
 *  2 a position moves on only when the batch, or that it failed, is here: what
 *    was given away in an answer that was lost is taken again
 *
 * Threads: any; the lock is held while it joins. */
#include "client/session.h"

#include <stdio.h>

#define TRAITS_MAX 32
#define NAP_NS     (5 * SHEAF_NS_PER_MS)
#define LEAVE_MS   1000
#define MARGIN_MS  1000 /* between the end of a wait and that of the call */

struct sheaf_group {
        struct sheaf_session *session;
        struct sheaf_group_options options; /* its texts are owned */
        pid_t pid;                          /* that opened it */
        pthread_mutex_t lock;
        /* Guard: the lock. */
        bool joined, begun, gathered;
        uint64_t membership, floor;
        uint64_t position; /* the lowest batch that may still be taken */
};

/* ---- joining ---- */

static void fill(const struct sheaf_group *group, Sheaf__JoinGroup *body)
{
        const struct sheaf_group_options *o = &group->options;

        body->name = (char *)o->name;
        body->member.data = (uint8_t *)o->member;
        body->member.len = sizeof(o->member);
        body->worker = o->worker;
        body->batches = o->batches;
        body->ahead = o->ahead;
        body->lease_ms = o->lease_ms;
        body->patience_ms = o->patience_ms;
        body->rank = o->rank;
        body->world = o->world;
        body->members = o->members;
        body->begun = group->begun;
        body->position = group->position;
        body->gathered = group->gathered;
}

/* With the lock held. */
static int join(struct sheaf_group *group, int64_t deadline_ns)
{
        Sheaf__JoinGroup body = SHEAF__JOIN_GROUP__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__Trait trait[TRAITS_MAX], *traits[TRAITS_MAX];
        struct sheaf_call call = {
                .env = &env, .what = "join a group", .deadline_ns = deadline_ns
        };
        struct sheaf_wire_msg reply;
        int rc;

        if (group->joined)
                return 0;
        fill(group, &body);
        for (size_t i = 0; i < group->options.trait_count; i++) {
                sheaf__trait__init(&trait[i]);
                trait[i].name = (char *)group->options.traits[i].name;
                trait[i].value = (char *)group->options.traits[i].value;
                traits[i] = &trait[i];
        }
        body.trait = traits;
        body.n_trait = group->options.trait_count;
        env.body_case = SHEAF__ENVELOPE__BODY_JOIN_GROUP;
        env.join_group = &body;
        rc = sheaf_session_call(group->session, &call, &reply);
        if (rc)
                return rc;
        if (reply.env->body_case == SHEAF__ENVELOPE__BODY_GROUP_JOINED) {
                const Sheaf__GroupJoined *joined = reply.env->group_joined;

                group->membership = joined->membership;
                group->floor = joined->others ? joined->floor : UINT64_MAX;
                group->joined = true;
        } else {
                rc = sheaf_error_set(
                        -EPROTO, "sheafd answered a join with another message");
        }
        sheaf_wire_msg_free(&reply);
        return rc;
}

/* Before it asks again. */
static int rest(struct sheaf_group *group)
{
        struct timespec ts = { 0, NAP_NS };

        nanosleep(&ts, NULL);
        return sheaf_session_interrupted(group->session);
}

/* What went wrong is that the membership was of another connection. */
static int forget(
        struct sheaf_group *group, uint64_t membership, int64_t deadline_ns)
{
        pthread_mutex_lock(&group->lock);
        if (group->membership == membership)
                group->joined = false;
        pthread_mutex_unlock(&group->lock);
        if (sheaf_now_ns() >= deadline_ns)
                return sheaf_error_set(-ETIMEDOUT,
                        "group %s: the connection to sheafd was lost again and "
                        "again",
                        group->options.name);
        return rest(group);
}

/* A request and its reply; *@membership, a field of it, is filled in. Joins
 * again as often as need be. */
static int ask(struct sheaf_group *group, struct sheaf_call *call,
        uint64_t *membership, struct sheaf_wire_msg *ret_reply)
{
        int rc;

        call->once = true;
        for (;;) {
                pthread_mutex_lock(&group->lock);
                rc = join(group, call->deadline_ns);
                *membership = group->membership;
                pthread_mutex_unlock(&group->lock);
                if (rc)
                        return rc;
                rc = sheaf_session_call(group->session, call, ret_reply);
                if (rc != -ECONNRESET && rc != -ENOTCONN)
                        return rc;
                rc = forget(group, *membership, call->deadline_ns);
                if (rc)
                        return rc;
        }
}

/* The same, where nothing but Done is expected. */
static int ask_done(struct sheaf_group *group, struct sheaf_call *call,
        uint64_t *membership)
{
        struct sheaf_wire_msg reply;
        int rc = ask(group, call, membership, &reply);

        if (rc)
                return rc;
        if (reply.env->body_case != SHEAF__ENVELOPE__BODY_DONE)
                rc = sheaf_error_set(-EPROTO,
                        "%s: sheafd answered with another message", call->what);
        sheaf_wire_msg_free(&reply);
        return rc;
}

/* ---- opening ---- */

static void options_free(struct sheaf_group_options *o)
{
        for (size_t i = 0; o->traits && i < o->trait_count; i++) {
                free((char *)o->traits[i].name);
                free((char *)o->traits[i].value);
        }
        free((void *)o->traits);
        free((char *)o->name);
}

static int options_copy(
        const struct sheaf_group_options *from, struct sheaf_group_options *to)
{
        struct sheaf_group_trait *traits = sheaf_new(
                struct sheaf_group_trait, SHEAF_MAX(from->trait_count, 1));
        bool ok = traits;

        *to = *from;
        to->name = strdup(from->name);
        to->traits = traits;
        for (size_t i = 0; ok && i < from->trait_count; i++) {
                traits[i].name = strdup(from->traits[i].name);
                traits[i].value = strdup(from->traits[i].value);
                ok = traits[i].name && traits[i].value;
        }
        if (ok && to->name)
                return 0;
        options_free(to);
        return -ENOMEM;
}

static int group_new(struct sheaf_session *session,
        const struct sheaf_group_options *options,
        struct sheaf_group **ret_group)
{
        struct sheaf_group *group = sheaf_new(struct sheaf_group, 1);
        int rc = group ? options_copy(options, &group->options) : -ENOMEM;

        if (!rc) {
                rc = -pthread_mutex_init(&group->lock, NULL);
                if (rc)
                        options_free(&group->options);
        }
        if (rc) {
                free(group);
                return sheaf_error_set(
                        rc, "no memory for group %s", options->name);
        }
        group->session = session;
        group->pid = getpid();
        *ret_group = group;
        return 0;
}

int sheaf_group_open(struct sheaf_dataset *dataset,
        const struct sheaf_group_options *options, uint64_t *ret_floor,
        struct sheaf_group **ret_group)
{
        struct sheaf_group *group;
        int rc;

        if (!options || !options->name || !*options->name)
                return sheaf_error_set(-EINVAL, "a group needs a name");
        if (options->trait_count > TRAITS_MAX)
                return sheaf_error_set(
                        -EINVAL, "a group has at most %d traits", TRAITS_MAX);
        if (!options->batches || !options->world ||
                options->rank >= options->world ||
                options->world > options->batches)
                return sheaf_error_set(-EINVAL,
                        "group %s: rank is below world, and world not over the "
                        "batches of an epoch",
                        options->name);
        rc = group_new(sheaf_dataset_session(dataset), options, &group);
        if (rc)
                return rc;
        rc = join(group, sheaf_session_deadline_ns(group->session));
        if (rc) {
                sheaf_group_close(group);
                return rc;
        }
        if (ret_floor)
                *ret_floor = group->floor;
        *ret_group = group;
        return 0;
}

/* Where the link is down the membership has ended with it. */
static void leave(struct sheaf_group *group)
{
        Sheaf__LeaveGroup body = SHEAF__LEAVE_GROUP__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        struct sheaf_call call = { .env = &env,
                .what = "leave a group",
                .once = true,
                .deadline_ns = sheaf_now_ns() + LEAVE_MS * SHEAF_NS_PER_MS };
        struct sheaf_wire_msg reply;
        bool ready;

        pthread_mutex_lock(&group->session->lock);
        ready = group->session->state == SHEAF_LINK_READY;
        pthread_mutex_unlock(&group->session->lock);
        if (!ready)
                return;
        body.membership = group->membership;
        env.body_case = SHEAF__ENVELOPE__BODY_LEAVE_GROUP;
        env.leave_group = &body;
        if (!sheaf_session_call(group->session, &call, &reply))
                sheaf_wire_msg_free(&reply);
}

void sheaf_group_close(struct sheaf_group *group)
{
        if (!group)
                return;
        if (group->joined && group->pid == getpid())
                leave(group);
        pthread_mutex_destroy(&group->lock);
        options_free(&group->options);
        free(group);
}

static int check(const struct sheaf_group *group, bool worker)
{
        if (group->pid != getpid())
                return sheaf_error_set(-EPERM,
                        "group %s was opened before this process was forked: "
                        "open it anew here",
                        group->options.name);
        if (worker == group->options.worker)
                return 0;
        return sheaf_error_set(-EINVAL,
                worker ? "group %s: a member is leased what it takes"
                       : "group %s: a worker takes no batches",
                group->options.name);
}

/* ---- members ---- */

int sheaf_group_begin(struct sheaf_group *group, uint64_t batch)
{
        Sheaf__BeginGroup body = SHEAF__BEGIN_GROUP__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        struct sheaf_call call = { .env = &env, .what = "begin an epoch" };
        int rc = check(group, false);

        if (rc)
                return rc;
        call.deadline_ns = sheaf_session_deadline_ns(group->session);
        body.batch = batch;
        env.body_case = SHEAF__ENVELOPE__BODY_BEGIN_GROUP;
        env.begin_group = &body;
        rc = ask_done(group, &call, &body.membership);
        if (rc)
                return rc;
        pthread_mutex_lock(&group->lock);
        group->begun = true;
        group->position = batch;
        pthread_mutex_unlock(&group->lock);
        return 0;
}

static int check_take(struct sheaf_group *group, uint64_t batch)
{
        const struct sheaf_group_options *o = &group->options;
        bool begun, passed;
        int rc = check(group, false);

        if (rc)
                return rc;
        pthread_mutex_lock(&group->lock);
        begun = group->begun;
        passed = batch < group->position;
        pthread_mutex_unlock(&group->lock);
        if (!begun)
                return sheaf_error_set(
                        -ERANGE, "group %s: no epoch was begun yet", o->name);
        if (passed)
                return sheaf_error_set(-ERANGE,
                        "group %s: batch %llu was taken or passed over; begin "
                        "there again",
                        o->name, (unsigned long long)batch);
        if (batch % o->batches % o->world != o->rank)
                return sheaf_error_set(-ERANGE,
                        "group %s: batch %llu is not of rank %u of %u", o->name,
                        (unsigned long long)batch, o->rank, o->world);
        return 0;
}

/* What the daemon is told to wait at most, so that its answer is in time. */
static uint32_t wait_of(const struct sheaf_group *group, int64_t until_ns)
{
        int64_t most_ms = sheaf_session_deadline_ms(group->session);
        int64_t ms = (until_ns - sheaf_now_ns() + SHEAF_NS_PER_MS - 1) /
                     SHEAF_NS_PER_MS;

        most_ms -= SHEAF_MIN(most_ms / 4, MARGIN_MS);
        return (uint32_t)SHEAF_MAX(
                0, SHEAF_MIN(SHEAF_MIN(ms, most_ms), (int64_t)UINT32_MAX));
}

static int64_t until(const struct sheaf_group *group, int64_t wait_ms)
{
        int64_t most_ms = sheaf_session_deadline_ms(group->session);

        return sheaf_now_ns() +
               SHEAF_MAX(0, SHEAF_MIN(wait_ms, most_ms)) * SHEAF_NS_PER_MS;
}

/* A request that waits, as it is made again and again. */
struct wait {
        struct sheaf_call *call;
        uint64_t *membership; /* fields of the request */
        uint32_t *wait_ms;
        int64_t until_ns;
        /* What a reply says. 0; 1: ask again. */
        int (*read)(void *arg, struct sheaf_wire_msg *reply);
        void *arg;
};

/* 1: the time is over. */
static int wait_for(struct sheaf_group *group, const struct wait *wait)
{
        struct sheaf_wire_msg reply;
        int rc;

        for (;;) {
                *wait->wait_ms = wait_of(group, wait->until_ns);
                wait->call->deadline_ns =
                        sheaf_session_deadline_ns(group->session);
                rc = ask(group, wait->call, wait->membership, &reply);
                if (rc)
                        return rc;
                rc = wait->read(wait->arg, &reply);
                sheaf_wire_msg_free(&reply);
                if (rc != 1 || sheaf_now_ns() >= wait->until_ns)
                        return rc;
                rc = rest(group);
                if (rc)
                        return rc;
        }
}

struct taking {
        struct sheaf_group *group;
        uint64_t batch;
        enum sheaf_group_state state;
        int *ret_fd;
};

static bool is_over(enum sheaf_group_state state)
{
        return state == SHEAF_GROUP_TAKEN || state == SHEAF_GROUP_FAILED ||
               state == SHEAF_GROUP_PREPARE;
}

/* The batch is done with after TAKEN and FAILED. */
static int read_taken(void *arg, struct sheaf_wire_msg *reply)
{
        struct taking *taking = arg;
        struct sheaf_group *group = taking->group;
        const Sheaf__BatchTaken *taken =
                reply->env->body_case == SHEAF__ENVELOPE__BODY_BATCH_TAKEN
                        ? reply->env->batch_taken
                        : NULL;

        if (!taken || taken->state > SHEAF_GROUP_QUEUED ||
                (taken->state == SHEAF_GROUP_TAKEN && reply->fd_count != 1))
                return sheaf_error_set(
                        -EPROTO, "sheafd answered a take with another message");
        pthread_mutex_lock(&group->lock);
        group->gathered |= taken->gathered;
        if (taken->state == SHEAF_GROUP_TAKEN ||
                taken->state == SHEAF_GROUP_FAILED)
                group->position = taking->batch + 1;
        pthread_mutex_unlock(&group->lock);
        if (taken->state == SHEAF_GROUP_TAKEN)
                *taking->ret_fd = sheaf_wire_take_fd(reply, 0);
        if (taken->state == SHEAF_GROUP_FAILED)
                sheaf_error_set_long(0, taken->why);
        taking->state = (enum sheaf_group_state)taken->state;
        return !is_over(taking->state);
}

int sheaf_group_take(struct sheaf_group *group, uint64_t batch, int64_t wait_ms,
        bool may_prepare, enum sheaf_group_state *ret_state, int *ret_fd)
{
        Sheaf__TakeBatch body = SHEAF__TAKE_BATCH__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        struct sheaf_call call = { .env = &env, .what = "take a batch" };
        struct taking taking = { group, batch, SHEAF_GROUP_QUEUED, ret_fd };
        struct wait wait = { &call, &body.membership, &body.wait_ms,
                until(group, wait_ms), read_taken, &taking };
        int rc = check_take(group, batch);

        if (rc)
                return rc;
        body.batch = batch;
        body.may_prepare = may_prepare;
        env.body_case = SHEAF__ENVELOPE__BODY_TAKE_BATCH;
        env.take_batch = &body;
        rc = wait_for(group, &wait);
        if (rc < 0)
                return rc;
        *ret_state = taking.state;
        return 0;
}

/* ---- workers ---- */

static int read_leased(void *arg, struct sheaf_wire_msg *reply)
{
        uint64_t *ret_batch = arg;

        if (reply->env->body_case != SHEAF__ENVELOPE__BODY_BATCH_LEASED)
                return sheaf_error_set(-EPROTO,
                        "sheafd answered a lease with another message");
        if (!reply->env->batch_leased->leased)
                return 1;
        *ret_batch = reply->env->batch_leased->batch;
        return 0;
}

int sheaf_group_lease(
        struct sheaf_group *group, int64_t wait_ms, uint64_t *ret_batch)
{
        Sheaf__LeaseBatch body = SHEAF__LEASE_BATCH__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        struct sheaf_call call = { .env = &env, .what = "lease a batch" };
        struct wait wait = { &call, &body.membership, &body.wait_ms,
                until(group, wait_ms), read_leased, ret_batch };
        int rc = check(group, true);

        if (rc)
                return rc;
        env.body_case = SHEAF__ENVELOPE__BODY_LEASE_BATCH;
        env.lease_batch = &body;
        rc = wait_for(group, &wait);
        if (rc == 1)
                return sheaf_error_set(-EAGAIN,
                        "group %s: nothing is to be prepared",
                        group->options.name);
        return rc;
}

int sheaf_group_offer(
        struct sheaf_group *group, uint64_t batch, int fd, const char *schema)
{
        Sheaf__OfferBatch body = SHEAF__OFFER_BATCH__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        struct sheaf_call call = {
                .env = &env, .fds = &fd, .fd_count = 1, .what = "offer a batch"
        };
        int rc = check(group, group->options.worker);

        if (rc)
                return rc;
        call.deadline_ns = sheaf_session_deadline_ns(group->session);
        body.batch = batch;
        body.schema = (char *)(schema ? schema : "");
        env.body_case = SHEAF__ENVELOPE__BODY_OFFER_BATCH;
        env.offer_batch = &body;
        return ask_done(group, &call, &body.membership);
}

int sheaf_group_fail(struct sheaf_group *group, uint64_t batch, const char *why)
{
        Sheaf__FailBatch body = SHEAF__FAIL_BATCH__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        struct sheaf_call call = { .env = &env, .what = "give up a batch" };
        char text[SHEAF_ERROR_LONG_MAX];
        int rc = check(group, group->options.worker);

        if (rc)
                return rc;
        snprintf(text, sizeof(text), "%s", why ? why : "");
        call.deadline_ns = sheaf_session_deadline_ns(group->session);
        body.batch = batch;
        body.why = text;
        env.body_case = SHEAF__ENVELOPE__BODY_FAIL_BATCH;
        env.fail_batch = &body;
        return ask_done(group, &call, &body.membership);
}

/* ---- figures ---- */

int sheaf_group_stats(struct sheaf_group *group, int64_t wait_ms,
        struct sheaf_group_stats *ret_stats)
{
        Sheaf__GroupStats body = SHEAF__GROUP_STATS__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        struct sheaf_call call = { .env = &env, .what = "figures of a group" };
        const Sheaf__GroupInfo *info;
        struct sheaf_wire_msg reply;
        int rc = check(group, group->options.worker);

        if (rc)
                return rc;
        call.deadline_ns = until(group, wait_ms);
        env.body_case = SHEAF__ENVELOPE__BODY_GROUP_STATS;
        env.group_stats = &body;
        rc = ask(group, &call, &body.membership, &reply);
        if (rc)
                return rc;
        if (reply.env->body_case != SHEAF__ENVELOPE__BODY_GROUP_INFO) {
                sheaf_wire_msg_free(&reply);
                return sheaf_error_set(-EPROTO,
                        "sheafd answered for figures with another message");
        }
        info = reply.env->group_info;
        *ret_stats = (struct sheaf_group_stats){ .members = info->members,
                .workers = info->workers,
                .staged = info->staged,
                .staged_bytes = info->staged_bytes,
                .floor = info->begun ? info->floor : UINT64_MAX,
                .detached = info->detached,
                .prepared = info->prepared,
                .taken = info->taken,
                .redone = info->redone,
                .private_ = info->private_,
                .late = info->late,
                .failed = info->failed };
        sheaf_wire_msg_free(&reply);
        return 0;
}
