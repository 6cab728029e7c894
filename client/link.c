/* SPDX-License-Identifier: Apache-2.0 */
/* The service thread of a session: connects, receives, reconnects.
 *
 *  1 only this thread receives, changes the link's state and touches the
 *    lists of arenas; callers send
 *  2 the lock is not held while it connects, polls or receives
 *  3 it blocks in poll alone, or a session could not be closed
 *  4 after a hang-up nothing of the old connection is asked for again, but
 *    what it mapped stays until unpinned (attach.h)
 *
 *          connect            Welcome
 *   DOWN ----------> HELLO ------------> READY -- reopen every dataset
 *    ^                 |                   |
 *    +---- backoff ----+---- hang-up ------+ */
#include "client/session.h"

#include "client/atfork.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>

/* How often pins of a dropped extent or an old arena are looked at. */
#define TICK_MS 20

void sheaf_link_wake(struct sheaf_session *session)
{
        /* It fails only when it is full, and then the thread wakes too. */
        (void)eventfd_write(session->wake_fd, 1);
}

static void set_attempt(struct sheaf_session *session, int rc, const char *path,
        const char *why)
{
        session->attempts++;
        session->attempt_rc = rc;
        snprintf(session->attempt_text, sizeof(session->attempt_text),
                "no sheafd at %s: %s", path, why);
        pthread_cond_broadcast(&session->changed);
}

/* This process may open no more: that is no matter of waiting. Those who
 * waited when @take began are told, and it is tried again for others, or now
 * and then. */
static void note_shortage(struct sheaf_session *session, uint64_t take)
{
        char why[SHEAF_ERROR_WHY_MAX];

        session->short_take = take;
        session->attempts++;
        session->wanted = false;
        session->attempt_rc = -EMFILE;
        session->backoff_ms = SHEAF_BACKOFF_LAST_MS;
        session->retry_ns =
                sheaf_now_ns() + session->backoff_ms * SHEAF_NS_PER_MS;
        snprintf(session->attempt_text, sizeof(session->attempt_text),
                "cannot take what sheafd at %.128s gives: %s",
                session->places.path[session->place],
                sheaf_error_why(-EMFILE, why));
        pthread_cond_broadcast(&session->changed);
}

/* @rc: of the call that failed, or why we will not go on. */
static void hang_up(struct sheaf_session *session, int rc)
{
        sheaf_atfork_hung_up(session, !rc || rc == -EPIPE || rc == -ECONNRESET);
        sheaf_close_p(&session->sock);
        session->state = SHEAF_LINK_DOWN;
        for (struct sheaf_request *r = session->requests; r; r = r->next) {
                if (r->state != SHEAF_REQUEST_WAITS)
                        continue;
                r->state = SHEAF_REQUEST_LOST;
                pthread_cond_signal(&r->wake);
        }
        for (struct sheaf_dataset *d = session->datasets; d; d = d->next) {
                d->state = SHEAF_OPEN_WANTED;
                d->open_id = 0;
        }
        for (struct sheaf_attach *a = session->attaches; a; a = a->next)
                a->live = false;
        session->backoff_ms = SHEAF_BACKOFF_FIRST_MS;
        session->retry_ns =
                sheaf_now_ns() + session->backoff_ms * SHEAF_NS_PER_MS;
        pthread_cond_broadcast(&session->changed);
}

static bool send_or_hang_up(
        struct sheaf_session *session, const Sheaf__Envelope *env)
{
        int rc = sheaf_wire_send(session->sock, env, NULL, 0);

        if (rc && rc != -EAGAIN)
                hang_up(session, rc);
        return !rc;
}

static void say_hello(struct sheaf_session *session)
{
        Sheaf__Hello body = SHEAF__HELLO__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;

        body.layout_min = body.layout_max = SHEAF_SHM_LAYOUT;
        body.kind = session->kind;
        body.name = session->name;
        body.pid = (uint32_t)getpid();
        body.want_pin_bytes = session->pin_bytes;
        env.id = ++session->next_id;
        env.body_case = SHEAF__ENVELOPE__BODY_HELLO;
        env.hello = &body;
        /* Where it fails the other side has hung up, and what it said before
         * is still to be read. */
        (void)!sheaf_wire_send(session->sock, &env, NULL, 0);
}

/* Which failure to show when every place failed: a refusal says more than an
 * absent file. */
static bool says_more(int rc, int than)
{
        return !than || (than == -ENOENT && rc != -ENOENT);
}

static int try_places(
        struct sheaf_session *session, size_t *ret_place, int *ret_rc)
{
        *ret_rc = 0;
        *ret_place = 0;
        for (size_t i = 0; i < session->places.count; i++) {
                int sock = sheaf_wire_connect_now(session->places.path[i]);

                /* One that is too busy is there: nobody else is asked. */
                if (sock >= 0 || sock == -EAGAIN) {
                        *ret_rc = sock < 0 ? sock : 0;
                        *ret_place = i;
                        return sock;
                }
                if (says_more(sock, *ret_rc)) {
                        *ret_rc = sock;
                        *ret_place = i;
                }
        }
        return -1;
}

static const char *connect_advice(int rc)
{
        switch (rc) {
        case -ENOENT:
                return "there is no such socket; is sheafd running? (set "
                       "SHEAF_SOCKET if it listens elsewhere)";
        case -ECONNREFUSED:
                return "nobody listens there; is sheafd running?";
        case -EACCES:
                return "permission denied";
        default:
                return strerror(-rc);
        }
}

/* Called and returns with the lock held; releases it meanwhile. */
static void connect_now(struct sheaf_session *session)
{
        uint64_t take = ++session->takes;
        int rc = sheaf_atfork_reserve(session), sock = -1;
        size_t place = session->place;

        if (!rc) {
                pthread_mutex_unlock(&session->lock);
                sock = try_places(session, &place, &rc);
                pthread_mutex_lock(&session->lock);
        }
        session->place = place;
        if (rc == -EMFILE && sock < 0) {
                note_shortage(session, take);
                return;
        }
        if (sock < 0) {
                /* One that is too busy is waited for, the first time too. */
                session->wanted = rc == -EAGAIN;
                session->retry_ns =
                        sheaf_now_ns() + session->backoff_ms * SHEAF_NS_PER_MS;
                session->backoff_ms = SHEAF_MIN(
                        session->backoff_ms * 2, SHEAF_BACKOFF_LAST_MS);
                if (rc == -EAGAIN)
                        session->attempt_rc = rc;
                else
                        set_attempt(session, rc, session->places.path[place],
                                connect_advice(rc));
                return;
        }
        session->sock = sock;
        session->connection++;
        session->state = SHEAF_LINK_HELLO;
        say_hello(session);
}

void sheaf_link_ask_open(
        struct sheaf_session *session, struct sheaf_dataset *dataset)
{
        Sheaf__OpenDataset body = SHEAF__OPEN_DATASET__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;

        body.name = dataset->name;
        body.map = true;
        if (dataset->versioned) {
                body.uuid.data = dataset->uuid;
                body.uuid.len = sizeof(dataset->uuid);
        }
        env.id = ++session->next_id;
        env.body_case = SHEAF__ENVELOPE__BODY_OPEN_DATASET;
        env.open_dataset = &body;
        /* A full socket or a hang-up leaves it wanted: the service thread
         * asks again. */
        if (sheaf_wire_send(session->sock, &env, NULL, 0))
                return;
        dataset->state = SHEAF_OPEN_ASKED;
        dataset->open_id = env.id;
}

static void ask_wanted(struct sheaf_session *session)
{
        for (struct sheaf_dataset *d = session->datasets; d; d = d->next)
                if (d->state == SHEAF_OPEN_WANTED)
                        sheaf_link_ask_open(session, d);
}

static void on_welcome(
        struct sheaf_session *session, const Sheaf__Welcome *welcome)
{
        char why[256];

        if (session->state != SHEAF_LINK_HELLO)
                return;
        if (welcome->layout != SHEAF_SHM_LAYOUT) {
                hang_up(session, -EPROTO);
                session->wanted = false;
                session->backoff_ms = SHEAF_BACKOFF_LAST_MS;
                snprintf(why, sizeof(why),
                        "its release %.32s and libsheaf's, " SHEAF_VERSION
                        ", have no layout of shared memory in common; install "
                        "the same release of both, then restart sheafd and "
                        "this process",
                        welcome->version);
                set_attempt(session, -EPROTO,
                        session->places.path[session->place], why);
                return;
        }
        if (!session->deadline_given && welcome->deadline_ms)
                session->deadline_ms = welcome->deadline_ms;
        if (welcome->instance.len == sizeof(session->instance))
                memcpy(session->instance, welcome->instance.data,
                        sizeof(session->instance));
        if (session->welcomed)
                session->reconnects++;
        session->welcomed = true;
        session->wanted = false;
        session->attempts++;
        session->attempt_rc = 0;
        session->backoff_ms = SHEAF_BACKOFF_FIRST_MS;
        session->state = SHEAF_LINK_READY;
        ask_wanted(session);
        pthread_cond_broadcast(&session->changed);
}

static struct sheaf_attach *find_attach(
        struct sheaf_session *session, uint32_t arena)
{
        struct sheaf_attach *a = session->attaches;

        while (a && !(a->live && a->arena == arena))
                a = a->next;
        return a;
}

static int on_arena(struct sheaf_session *session, struct sheaf_wire_msg *msg)
{
        const Sheaf__ArenaOpened *opened = msg->env->arena_opened;
        sheaf_autofd int fd = sheaf_wire_take_fd(msg, 0);
        struct sheaf_attach *attach;
        int rc;

        if (find_attach(session, opened->arena))
                return -EPROTO;
        rc = sheaf_attach_new(opened->arena, opened->extent_bytes,
                opened->range_bytes, opened->grant_bytes, fd, &attach);
        if (rc)
                return rc;
        if (opened->brief_bytes)
                sheaf_pinner_set_brief(&attach->pinner, opened->brief_bytes);
        attach->next = session->attaches;
        session->attaches = attach;
        return 0;
}

static int on_extents(struct sheaf_session *session, struct sheaf_wire_msg *msg)
{
        const Sheaf__Extents *extents = msg->env->extents;
        struct sheaf_attach *attach = find_attach(session, extents->arena);
        Sheaf__Done done = SHEAF__DONE__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;

        if (!attach || msg->fd_count != 2 * extents->n_extent)
                return -EPROTO;
        for (size_t i = 0; i < extents->n_extent; i++) {
                sheaf_autofd int fd = sheaf_wire_take_fd(msg, 2 * i);
                sheaf_autofd int lock_fd = sheaf_wire_take_fd(msg, 2 * i + 1);
                int rc = sheaf_attach_map(
                        attach, extents->extent[i], fd, &lock_fd);

                if (rc)
                        return rc;
        }
        env.id = extents->event;
        env.body_case = SHEAF__ENVELOPE__BODY_DONE;
        env.done = &done;
        return sheaf_wire_send(session->sock, &env, NULL, 0);
}

static int on_dropped(
        struct sheaf_session *session, const Sheaf__ExtentDropped *dropped)
{
        struct sheaf_attach *attach = find_attach(session, dropped->arena);

        return attach ? sheaf_attach_drop(attach, dropped->extent) : -EPROTO;
}

static void close_handle(struct sheaf_session *session, uint32_t handle)
{
        Sheaf__CloseDataset body = SHEAF__CLOSE_DATASET__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;

        body.handle = handle;
        env.id = ++session->next_id;
        env.body_case = SHEAF__ENVELOPE__BODY_CLOSE_DATASET;
        env.close_dataset = &body;
        send_or_hang_up(session, &env);
}

/* True when the message answered the opening of a dataset. */
static bool on_open_answer(
        struct sheaf_session *session, struct sheaf_wire_msg *msg)
{
        const Sheaf__Envelope *env = msg->env;
        struct sheaf_dataset *d = session->datasets;

        while (d && (!env->id || d->open_id != env->id))
                d = d->next;
        if (!d && env->body_case == SHEAF__ENVELOPE__BODY_DATASET_OPENED) {
                /* Its caller gave up meanwhile. */
                close_handle(session, env->dataset_opened->handle);
                return true;
        }
        if (!d)
                return false;
        d->open_id = 0;
        if (env->body_case == SHEAF__ENVELOPE__BODY_DATASET_OPENED)
                sheaf_dataset_opened_locked(d, msg);
        else if (env->body_case == SHEAF__ENVELOPE__BODY_ERROR)
                sheaf_dataset_fail_locked(d,
                        env->error->errno_value > 0 ? -env->error->errno_value
                                                    : -EPROTO,
                        env->error->message);
        else
                sheaf_dataset_fail_locked(d, -EPROTO,
                        "sheafd answered an open with another message");
        pthread_cond_broadcast(&session->changed);
        return true;
}

static void on_reply(struct sheaf_session *session, struct sheaf_wire_msg *msg)
{
        struct sheaf_request **at = &session->requests;
        struct sheaf_request *request;

        while (*at && (*at)->id != msg->env->id)
                at = &(*at)->next;
        request = *at;
        if (msg->env->more)
                return;
        if (!request) {
                /* Nobody waits any more. */
                sheaf_atfork_answered(session, msg->env);
                return;
        }
        *at = request->next;
        request->reply = *msg;
        *msg = (struct sheaf_wire_msg){ 0 };
        request->state = SHEAF_REQUEST_DONE;
        pthread_cond_signal(&request->wake);
}

static int dispatch(struct sheaf_session *session, struct sheaf_wire_msg *msg)
{
        const Sheaf__Envelope *env = msg->env;

        switch (env->body_case) {
        case SHEAF__ENVELOPE__BODY_WELCOME:
                on_welcome(session, env->welcome);
                return 0;
        case SHEAF__ENVELOPE__BODY_ARENA_OPENED:
                return on_arena(session, msg);
        case SHEAF__ENVELOPE__BODY_EXTENTS:
                return on_extents(session, msg);
        case SHEAF__ENVELOPE__BODY_EXTENT_DROPPED:
                return on_dropped(session, env->extent_dropped);
        default:
                break;
        }
        if (session->state == SHEAF_LINK_HELLO &&
                env->body_case == SHEAF__ENVELOPE__BODY_ERROR) {
                /* Refused: not welcome here. */
                int rc = env->error->errno_value > 0 ? -env->error->errno_value
                                                     : -EPROTO;

                hang_up(session, rc);
                session->wanted = false;
                session->backoff_ms = SHEAF_BACKOFF_LAST_MS;
                set_attempt(session, rc, session->places.path[session->place],
                        env->error->message);
                return 0;
        }
        if (!on_open_answer(session, msg))
                on_reply(session, msg);
        return 0;
}

/* Receives what is there, a bounded number at a time. */
static void receive(struct sheaf_session *session)
{
        for (int i = 0; i < 64 && session->state != SHEAF_LINK_DOWN; i++) {
                struct sheaf_wire_msg msg = { 0 };
                uint64_t connection = session->connection;
                uint64_t take = ++session->takes;
                int sock = session->sock;
                int rc;

                pthread_mutex_unlock(&session->lock);
                rc = sheaf_wire_recv(sock, &msg);
                pthread_mutex_lock(&session->lock);
                if (rc == -EAGAIN || session->connection != connection)
                        break;
                if (rc == 1)
                        rc = dispatch(session, &msg) ? -EPROTO : 1;
                sheaf_wire_msg_free(&msg);
                if (rc != 1 && session->state != SHEAF_LINK_DOWN) {
                        bool early = session->state == SHEAF_LINK_HELLO;

                        hang_up(session, rc);
                        if (rc == -EMFILE) {
                                note_shortage(session, take);
                                continue;
                        }
                        if (!early)
                                continue;
                        session->wanted = false;
                        set_attempt(session, -ECONNREFUSED,
                                session->places.path[session->place],
                                "it hung up before it said welcome");
                }
        }
}

static void say_unmapped(void *arg, uint32_t arena, uint32_t extent)
{
        struct sheaf_session *session = arg;
        Sheaf__Unmapped body = SHEAF__UNMAPPED__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;

        body.arena = arena;
        body.extent = extent;
        env.id = ++session->next_id;
        env.body_case = SHEAF__ENVELOPE__BODY_UNMAPPED;
        env.unmapped = &body;
        if (session->state == SHEAF_LINK_READY)
                send_or_hang_up(session, &env);
}

/* Lets go of memory that is unpinned by now. True while some is left. */
static bool let_go(struct sheaf_session *session)
{
        bool left = false;

        for (struct sheaf_attach *a = session->attaches; a; a = a->next)
                left |= sheaf_attach_let_go(a, say_unmapped, session);
        return left;
}

static bool any_wanted(const struct sheaf_session *session)
{
        const struct sheaf_dataset *d = session->datasets;

        while (d && d->state != SHEAF_OPEN_WANTED)
                d = d->next;
        return d;
}

static int64_t next_timeout_ms(struct sheaf_session *session, bool left)
{
        int64_t ms = left ? TICK_MS : -1;

        if (session->state == SHEAF_LINK_READY && any_wanted(session))
                ms = TICK_MS;
        if (session->state == SHEAF_LINK_DOWN &&
                (session->wanted || (session->welcomed && session->datasets))) {
                int64_t wait =
                        (session->retry_ns - sheaf_now_ns()) / SHEAF_NS_PER_MS +
                        1;

                wait = SHEAF_MAX(wait, 0);
                ms = ms < 0 ? wait : SHEAF_MIN(ms, wait);
        }
        return ms;
}

static void *serve(void *arg)
{
        struct sheaf_session *session = arg;

        pthread_mutex_lock(&session->lock);
        while (!session->closing) {
                bool want = session->wanted ||
                            (session->welcomed && session->datasets);

                if (session->state == SHEAF_LINK_DOWN && want &&
                        sheaf_now_ns() >= session->retry_ns)
                        connect_now(session);
                if (session->state == SHEAF_LINK_READY)
                        ask_wanted(session);

                bool left = let_go(session);
                int64_t ms = next_timeout_ms(session, left);
                struct pollfd fds[2] = {
                        { .fd = session->wake_fd, .events = POLLIN },
                        { .fd = session->sock, .events = POLLIN },
                };
                eventfd_t ignored;

                pthread_mutex_unlock(&session->lock);
                poll(fds, 2, (int)ms);
                pthread_mutex_lock(&session->lock);
                if (fds[0].revents)
                        eventfd_read(session->wake_fd, &ignored);
                if (fds[1].revents)
                        receive(session);
        }
        pthread_mutex_unlock(&session->lock);
        return NULL;
}

int sheaf_link_start(struct sheaf_session *session)
{
        sigset_t all, before;
        int rc;

        if (session->running)
                return 0;
        if (session->wake_fd < 0)
                session->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (session->wake_fd < 0)
                return -errno;
        /* Signals are the program's: its handlers must not run here. */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        session->backoff_ms = SHEAF_BACKOFF_FIRST_MS;
        rc = -pthread_create(&session->thread, NULL, serve, session);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        session->running = !rc;
        return rc;
}

void sheaf_link_stop(struct sheaf_session *session)
{
        bool running;

        pthread_mutex_lock(&session->lock);
        session->closing = true;
        running = session->running;
        session->running = false;
        sheaf_link_wake(session);
        pthread_mutex_unlock(&session->lock);
        if (running)
                pthread_join(session->thread, NULL);
        sheaf_close_p(&session->sock);
}
