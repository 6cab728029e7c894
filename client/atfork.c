/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to sessions when their process forks.
 *
 *  1 before the fork the daemon is told to keep what is held (ForkNote): it
 *    stays until parent and child let go, the child by ending, which hangs up
 *    the pipe whose write end it inherits
 *  2 every lock is held over the fork, so the child finds consistent state
 *  3 the child uses no slot, socket or meter of its parent; views that it
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

static bool holds_pins(struct sheaf_session *session)
{
        bool holds = false;

        pthread_mutex_lock(&session->lock);
        for (struct sheaf_attach *a = session->attaches; a; a = a->next)
                holds |= a->live && sheaf_attach_pins(a);
        holds &= session->state == SHEAF_LINK_READY;
        pthread_mutex_unlock(&session->lock);
        return holds;
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
                .deadline_ns = sheaf_now_ns() + FORK_NOTE_MS * SHEAF_NS_PER_MS,
        };

        if (!holds_pins(session) || pipe2(session->fork_pipe, O_CLOEXEC))
                return;
        env.body_case = SHEAF__ENVELOPE__BODY_FORK_NOTE;
        env.fork_note = &body;
        /* Without an answer the fork goes on: a daemon that hangs does not
         * recycle, and one that is gone took its arena out of use. */
        if (sheaf_session_call(session, &call, &reply) == 0)
                sheaf_wire_msg_free(&reply);
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
}

static void in_parent(void)
{
        sheaf_pinners_unlock();
        for (struct sheaf_session *s = list; s; s = s->next) {
                sheaf_close_p(&s->fork_pipe[0]);
                sheaf_close_p(&s->fork_pipe[1]);
                pthread_mutex_unlock(&s->lock);
        }
        pthread_mutex_unlock(&list_lock);
}

static void renew(struct sheaf_session *session)
{
        /* The socket stays open, unused: closing it is of no use while the
         * parent has it. The write end of the pipe says that we live. */
        session->sock = -1;
        sheaf_close_p(&session->fork_pipe[0]);
        session->fork_pipe[1] = -1;
        sheaf_close_p(&session->wake_fd);
        session->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        /* Its waiters are threads that do not exist here. */
        if (sheaf_cond_init(&session->changed))
                session->closing = true;
        session->requests = NULL;
        session->running = false;
        session->wanted = false;
        session->state = SHEAF_LINK_DOWN;
        session->retry_ns = 0;
        session->reconnects = 0;
        for (struct sheaf_dataset *d = session->datasets; d; d = d->next) {
                sheaf_map_supersede(d);
                d->past = (struct sheaf_stats){ 0 };
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
