/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to sessions when their process forks.
 *
 *  1 before the fork the daemon is told to keep what is held (ForkNote): it
 *    stays until parent and child let go, the child by ending, which hangs up
 *    the pipe whose write end it inherits
 *  2 the pipe is made before anything can be pinned: a process whose
 *    descriptors run out can tell nobody then. A child for which the daemon
 *    keeps nothing loses sight of what it inherited, and is told so: better
 *    it ends than reads what is another's by now
 *  3 a daemon that does not answer soon is not waited for: what is held at the
 *    fork stays in its slots, whoever gives it back, until it has answered
 *  4 every lock is held over the fork, so the child finds consistent state
 *  5 the child uses no slot, socket or meter of its parent; views that it
 *    inherited stay readable, and releasing them touches nothing shared
 *
 * A view that another thread makes while fork() runs belongs to the parent
 * alone. Lock order: list_lock, sessions' locks in the order of the list, the
 * lock of pin.c. */
#include "client/atfork.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/eventfd.h>

#define FORK_NOTE_MS 2000

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sheaf_session *list;
static bool installed;

int sheaf_atfork_reserve(struct sheaf_session *session)
{
        if (session->fork_pipe[0] >= 0)
                return 0;
        return pipe2(session->fork_pipe, O_CLOEXEC) ? -errno : 0;
}

void sheaf_atfork_release(struct sheaf_session *session)
{
        sheaf_close_p(&session->fork_pipe[0]);
        sheaf_close_p(&session->fork_pipe[1]);
}

static bool must_tell(struct sheaf_session *session, uint64_t *ret_connection)
{
        bool holds = false;

        pthread_mutex_lock(&session->lock);
        for (struct sheaf_attach *a = session->attaches; a; a = a->next)
                holds |= a->live && sheaf_attach_pins(a);
        holds &= session->state == SHEAF_LINK_READY;
        session->fork = SHEAF_FORK_NOT_TOLD;
        if (holds)
                session->fork =
                        session->fork_notes_count == SHEAF_FORK_NOTES_MAX ||
                                        sheaf_atfork_reserve(session)
                                ? SHEAF_FORK_REFUSED
                                : SHEAF_FORK_TOLD;
        *ret_connection = session->connection;
        pthread_mutex_unlock(&session->lock);
        return session->fork == SHEAF_FORK_TOLD;
}

/* A daemon that is gone took its arena out of use. */
static void note_failed(struct sheaf_session *session,
        const struct sheaf_call *call, int rc, uint64_t connection)
{
        pthread_mutex_lock(&session->lock);
        if (session->connection == connection &&
                session->state == SHEAF_LINK_READY)
                session->fork = rc == -ETIMEDOUT && call->sent
                                        ? SHEAF_FORK_ASKED
                                        : SHEAF_FORK_REFUSED;
        pthread_mutex_unlock(&session->lock);
}

void sheaf_atfork_asked(struct sheaf_session *session, uint64_t id)
{
        session->fork_notes[session->fork_notes_count++] = id;
}

static void settle(struct sheaf_session *session)
{
        for (struct sheaf_attach *a = session->attaches; a; a = a->next)
                if (!a->foreign)
                        sheaf_pinner_settle(&a->pinner);
}

/* A child that is refused when it lives already can be told no more: then its
 * parent holds on as long as there is the connection. */
void sheaf_atfork_answered(
        struct sheaf_session *session, const Sheaf__Envelope *answer)
{
        size_t i = 0;

        while (i < session->fork_notes_count &&
                session->fork_notes[i] != answer->id)
                i++;
        if (i == session->fork_notes_count)
                return;
        session->fork_notes[i] =
                session->fork_notes[--session->fork_notes_count];
        session->fork_lost |= answer->body_case == SHEAF__ENVELOPE__BODY_ERROR;
        if (!session->fork_notes_count && !session->fork_lost)
                settle(session);
}

/* Where we hung up the note may still be on its way. */
void sheaf_atfork_hung_up(struct sheaf_session *session, bool left)
{
        if (left)
                settle(session);
        session->fork_notes_count = 0;
        session->fork_lost = false;
}

static void note(struct sheaf_session *session)
{
        Sheaf__ForkNote body = SHEAF__FORK_NOTE__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        struct sheaf_wire_msg reply;
        struct sheaf_call call = {
                .env = &env,
                .fds = &session->fork_pipe[0],
                .fd_count = 1,
                .what = "fork",
                .once = true,
                .note = true,
                .deadline_ns = sheaf_now_ns() + FORK_NOTE_MS * SHEAF_NS_PER_MS,
        };
        uint64_t connection;
        int rc;

        if (!must_tell(session, &connection))
                return;
        env.body_case = SHEAF__ENVELOPE__BODY_FORK_NOTE;
        env.fork_note = &body;
        rc = sheaf_session_call(session, &call, &reply);
        if (rc)
                note_failed(session, &call, rc, connection);
        else
                sheaf_wire_msg_free(&reply);
}

static void hold(struct sheaf_session *session)
{
        for (struct sheaf_attach *a = session->attaches; a; a = a->next)
                if (a->live)
                        sheaf_pinner_hold(&a->pinner);
}

static void before(void)
{
        pthread_mutex_lock(&list_lock);
        for (struct sheaf_session *s = list; s; s = s->next)
                note(s);
        for (struct sheaf_session *s = list; s; s = s->next) {
                pthread_mutex_lock(&s->lock);
                for (struct sheaf_attach *a = s->attaches; a; a = a->next)
                        a->pins_at_fork = sheaf_attach_pins(a);
        }
        sheaf_pinners_lock();
        for (struct sheaf_session *s = list; s; s = s->next)
                if (s->fork == SHEAF_FORK_ASKED && s->fork_notes_count)
                        hold(s);
}

static void in_parent(void)
{
        sheaf_pinners_unlock();
        for (struct sheaf_session *s = list; s; s = s->next) {
                if (s->fork != SHEAF_FORK_NOT_TOLD) {
                        sheaf_atfork_release(s);
                        (void)!sheaf_atfork_reserve(s); /* else the next time */
                }
                pthread_mutex_unlock(&s->lock);
        }
        pthread_mutex_unlock(&list_lock);
}

static void lose_sight(struct sheaf_session *session)
{
        static const char text[] =
                "sheaf: sheafd keeps nothing for this child of a fork: views "
                "that it inherited cannot be read (are descriptors lacking, "
                "or do too many children live on?)\n";

        for (struct sheaf_attach *a = session->attaches; a; a = a->next)
                sheaf_attach_hide(a);
        (void)!write(STDERR_FILENO, text, sizeof(text) - 1);
}

static void renew(struct sheaf_session *session)
{
        /* The socket stays open, unused: closing it is of no use while the
         * parent has it. The write end of the pipe says that we live. */
        session->sock = -1;
        if (session->fork == SHEAF_FORK_TOLD ||
                session->fork == SHEAF_FORK_ASKED)
                session->fork_pipe[1] = -1;
        sheaf_atfork_release(session);
        if (session->fork == SHEAF_FORK_REFUSED)
                lose_sight(session);
        sheaf_close_p(&session->wake_fd);
        session->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        /* Its waiters are threads that do not exist here. */
        if (sheaf_cond_init(&session->changed))
                session->closing = true;
        session->requests = NULL;
        session->fork_notes_count = 0;
        session->fork_lost = false;
        session->running = false;
        session->wanted = false;
        session->state = SHEAF_LINK_DOWN;
        session->retry_ns = 0;
        session->reconnects = 0;
        for (struct sheaf_dataset *d = session->datasets; d; d = d->next) {
                sheaf_map_supersede(d);
                d->past = (struct sheaf_stats){ 0 };
                d->from_disk = d->from_origin = 0;
                d->substituted = d->pace_wait_ns = 0;
                d->state = SHEAF_OPEN_WANTED;
                d->open_id = 0;
        }
        for (struct sheaf_attach *a = session->attaches; a; a = a->next)
                sheaf_attach_disown(a, a->pins_at_fork);
}

static void in_child(void)
{
        sheaf_pinners_unlock();
        for (struct sheaf_session *s = list; s; s = s->next) {
                renew(s);
                pthread_mutex_unlock(&s->lock);
        }
        pthread_mutex_unlock(&list_lock);
}

int sheaf_atfork_register(struct sheaf_session *session)
{
        int rc = 0;

        session->fork_pipe[0] = session->fork_pipe[1] = -1;
        pthread_mutex_lock(&list_lock);
        if (!installed)
                rc = -pthread_atfork(before, in_parent, in_child);
        if (!rc) {
                installed = true;
                session->next = list;
                list = session;
        }
        pthread_mutex_unlock(&list_lock);
        return rc;
}

void sheaf_atfork_unregister(struct sheaf_session *session)
{
        struct sheaf_session **at;

        pthread_mutex_lock(&list_lock);
        for (at = &list; *at && *at != session;)
                at = &(*at)->next;
        if (*at)
                *at = session->next;
        pthread_mutex_unlock(&list_lock);
}
