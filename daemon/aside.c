/* SPDX-License-Identifier: Apache-2.0 */
/* Threads for work that may hang in a user's file system.
 *
 *  1 a thread has the user's file system rights only: fsuid, fsgid and groups
 *    belong to the thread, its real ids stay the daemon's, so that the user
 *    cannot signal it
 *  2 the umask is the thread's own (CLONE_FS undone), where that is allowed
 *  3 a thread touches its state and, under the lock, the list of what has
 *    ended; nothing else
 *
 * Threads: one for each piece of work; all else on the loop thread. */
#include "daemon/aside.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sheaf_aside *ended; /* under the lock, as is active */
static bool active;
static uv_async_t wake;
static LIST_HEAD(, sheaf_aside) running = LIST_HEAD_INITIALIZER(running);

/* System calls by number: the library's would change all threads. */
static int take_rights(const struct sheaf_aside *aside)
{
        gid_t none = (gid_t)-1;
        uid_t nobody = (uid_t)-1;

        /* Some sandboxes refuse it; then the umask is set for all, shortly,
         * which no file of the daemon's relies on. */
        (void)unshare(CLONE_FS);
        if (geteuid() || !aside->uid || aside->own_rights)
                return 0;
        if (syscall(SYS_setgroups, aside->group_count, aside->groups))
                return -errno;
        syscall(SYS_setfsgid, aside->gid);
        syscall(SYS_setfsuid, aside->uid);
        /* These tell nothing but by a second call. */
        if ((gid_t)syscall(SYS_setfsgid, none) != aside->gid ||
                (uid_t)syscall(SYS_setfsuid, nobody) != aside->uid)
                return -EPERM;
        return 0;
}

static void *thread_main(void *arg)
{
        struct sheaf_aside *aside = arg;
        int rc = take_rights(aside);

        if (!rc)
                rc = aside->work(aside);
        pthread_mutex_lock(&lock);
        aside->rc = rc;
        aside->next = ended;
        ended = aside;
        if (active)
                uv_async_send(&wake);
        pthread_mutex_unlock(&lock);
        return NULL;
}

static void timer_closed(uv_handle_t *handle)
{
        struct sheaf_aside *aside = handle->data;

        aside->end(aside, aside->told);
}

static void collect(uv_async_t *async)
{
        struct sheaf_aside *aside, *next;

        (void)async;
        pthread_mutex_lock(&lock);
        aside = ended;
        ended = NULL;
        pthread_mutex_unlock(&lock);
        for (; aside; aside = next) {
                next = aside->next;
                LIST_REMOVE(aside, link);
                if (!aside->told)
                        aside->done(aside, aside->rc);
                uv_close((uv_handle_t *)&aside->timer, timer_closed);
        }
}

static void late(uv_timer_t *timer)
{
        struct sheaf_aside *aside = timer->data;

        aside->told = true;
        aside->done(aside, -ETIMEDOUT);
}

static bool may_start(uid_t uid, bool closing, unsigned int count)
{
        const struct sheaf_aside *each;
        unsigned int all = count, own = count;

        LIST_FOREACH (each, &running, link) {
                all += each->closing == closing;
                own += each->closing == closing && each->uid == uid;
        }
        return all <= SHEAF_ASIDE_MAX &&
               own <= (closing ? SHEAF_ASIDE_CLOSINGS_MAX
                               : SHEAF_ASIDE_USER_MAX);
}

bool sheaf_aside_may_close(uid_t uid, unsigned int count)
{
        return may_start(uid, true, count);
}

static int spawn(struct sheaf_aside *aside)
{
        sigset_t all, before;
        pthread_attr_t attr;
        pthread_t thread;
        int rc = pthread_attr_init(&attr);

        if (rc)
                return -rc;
        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
        /* Signals are for the loop. */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        rc = pthread_create(&thread, &attr, thread_main, aside);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&attr);
        return -rc;
}

int sheaf_aside_start(
        uv_loop_t *loop, struct sheaf_aside *aside, uint64_t deadline_ms)
{
        int rc;

        if (!may_start(aside->uid, aside->closing, 1))
                return -EBUSY;
        if (!active) {
                rc = uv_async_init(loop, &wake, collect);
                if (rc)
                        return rc;
                uv_unref((uv_handle_t *)&wake);
                active = true;
        }
        rc = spawn(aside);
        if (rc)
                return rc;
        LIST_INSERT_HEAD(&running, aside, link);
        uv_timer_init(loop, &aside->timer);
        aside->timer.data = aside;
        uv_timer_start(&aside->timer, late, deadline_ms, 0);
        return 0;
}

void sheaf_aside_stop(void)
{
        struct sheaf_aside *aside;

        if (!active)
                return;
        pthread_mutex_lock(&lock);
        active = false;
        pthread_mutex_unlock(&lock);
        collect(NULL);
        LIST_FOREACH (aside, &running, link)
                uv_close((uv_handle_t *)&aside->timer, NULL);
        uv_close((uv_handle_t *)&wake, NULL);
}
