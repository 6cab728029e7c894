/* SPDX-License-Identifier: Apache-2.0 */
/* Looks up names in a thread, and keeps the answers.
 *
 *  1 an answer is used for FRESH_MS (a number that rights hang on: for
 *    FRESH_NUMBER_MS); an older name is still shown while it is asked anew
 *  2 the loop thread waits MOMENT_MS at most in each SPAN_MS, and not at all
 *    behind a question that hangs
 *  3 at most ASKED_MAX answers are kept; the one that was used last goes,
 *    unless it is being asked
 *
 * Threads: the callers' is the loop thread; the thread that asks touches
 * entries under the lock and the system without it. It is never joined: it
 * may hang for ever, and holds nothing that the end of the process needs. */
#include "daemon/registry/names.h"

#include "daemon/clock.h"
#include "daemon/log.h"

#include <grp.h>
#include <pthread.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>

#define MOMENT_MS       200
#define SPAN_MS         10000
#define FRESH_MS        60000
#define FRESH_NUMBER_MS 5000
#define ASKED_MAX       128
#define SPACE_BYTES     65536 /* members of a large group */

enum kind {
        NONE,
        USER_NAME,
        GROUP_NAME,
        USER_NUMBER,
        GROUP_NUMBER
};

struct asked {
        enum kind kind;
        uint32_t number; /* asked by it, or the answer */
        char name[64];
        bool queued;
        int rc;              /* of the last answer; -EAGAIN: none yet */
        int64_t answered_ns; /* 0: never */
        int64_t queued_ns, used_ns;
};

static struct asked table[ASKED_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more, answered;
static bool running;
static int64_t span_ns, waited_ns; /* of the loop thread */

/* 0, or a negative errno; fills the half of @a that was asked for. */
static int ask_system(struct asked *a, char *space)
{
        struct passwd pw, *user = NULL;
        struct group gr, *group = NULL;
        int rc = 0;

        switch (a->kind) {
        case USER_NAME:
                rc = getpwuid_r(a->number, &pw, space, SPACE_BYTES, &user);
                break;
        case GROUP_NAME:
                rc = getgrgid_r(a->number, &gr, space, SPACE_BYTES, &group);
                break;
        case USER_NUMBER:
                rc = getpwnam_r(a->name, &pw, space, SPACE_BYTES, &user);
                break;
        default:
                rc = getgrnam_r(a->name, &gr, space, SPACE_BYTES, &group);
                break;
        }
        if (!user && !group)
                return rc ? -rc : -ENOENT;
        if (a->kind == USER_NAME || a->kind == GROUP_NAME)
                snprintf(a->name, sizeof(a->name), "%s",
                        user ? user->pw_name : group->gr_name);
        else
                a->number = user ? user->pw_uid : group->gr_gid;
        return 0;
}

static struct asked *next_queued(void)
{
        struct asked *first = NULL;

        for (size_t i = 0; i < ASKED_MAX; i++)
                if (table[i].queued &&
                        (!first || table[i].queued_ns < first->queued_ns))
                        first = &table[i];
        return first;
}

static void *serve(void *arg)
{
        static char space[SPACE_BYTES];

        (void)arg;
        pthread_mutex_lock(&lock);
        for (;;) {
                struct asked *a = next_queued(), copy;
                int rc;

                if (!a) {
                        pthread_cond_wait(&more, &lock);
                        continue;
                }
                copy = *a;
                pthread_mutex_unlock(&lock);
                rc = ask_system(&copy, space);
                pthread_mutex_lock(&lock);
                if (!rc) {
                        a->number = copy.number;
                        memcpy(a->name, copy.name, sizeof(a->name));
                }
                a->rc = rc;
                a->answered_ns = sheaf_now_ns();
                a->queued = false;
                pthread_cond_broadcast(&answered);
        }
        return NULL;
}

static bool start(void)
{
        pthread_condattr_t attr;
        pthread_attr_t detached;
        pthread_t thread;
        sigset_t all, before;

        if (running)
                return true;
        pthread_condattr_init(&attr);
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        pthread_cond_init(&more, &attr);
        pthread_cond_init(&answered, &attr);
        pthread_condattr_destroy(&attr);
        pthread_attr_init(&detached);
        pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        running = !pthread_create(&thread, &detached, serve, NULL);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&detached);
        return running;
}

static bool by_name(enum kind kind)
{
        return kind == USER_NUMBER || kind == GROUP_NUMBER;
}

/* The entry of that question, made if there is room. Under the lock. */
static struct asked *entry_of(enum kind kind, uint32_t number, const char *name)
{
        struct asked *room = NULL;

        for (size_t i = 0; i < ASKED_MAX; i++) {
                struct asked *a = &table[i];

                if (a->kind == kind && (by_name(kind) ? !strcmp(a->name, name)
                                                      : a->number == number))
                        return a;
                if (!a->queued && (!room || a->used_ns < room->used_ns))
                        room = a;
        }
        if (!room)
                return NULL;
        *room = (struct asked){ .kind = kind, .number = number, .rc = -EAGAIN };
        snprintf(room->name, sizeof(room->name), "%s", name);
        return room;
}

/* How long the loop thread may wait now; 0 while a question hangs. */
static int64_t moment_ns(int64_t now_ns)
{
        const struct asked *oldest = next_queued();

        if (oldest && now_ns - oldest->queued_ns > MOMENT_MS * SHEAF_NS_PER_MS)
                return 0;
        if (now_ns - span_ns > SPAN_MS * SHEAF_NS_PER_MS) {
                span_ns = now_ns;
                waited_ns = 0;
        }
        return SHEAF_MAX(MOMENT_MS * SHEAF_NS_PER_MS - waited_ns, 0);
}

static void wait_for(const struct asked *a)
{
        int64_t from_ns = sheaf_now_ns(), end_ns = from_ns + moment_ns(from_ns);
        struct timespec end = { .tv_sec = end_ns / SHEAF_NS_PER_SEC,
                .tv_nsec = end_ns % SHEAF_NS_PER_SEC };

        while (a->queued && pthread_cond_timedwait(&answered, &lock, &end) == 0)
                ;
        waited_ns += sheaf_now_ns() - from_ns;
        if (a->queued) {
                static struct sheaf_log_once once;

                if (sheaf_log_once(&once, SPAN_MS * SHEAF_NS_PER_MS))
                        sheaf_log(SHEAF_LOG_WARN, "names_slow",
                                "why=\"users and groups are not looked up in "
                                "time\" remedy=\"see passwd and group in "
                                "/etc/nsswitch.conf; numbers are shown "
                                "meanwhile\"");
        }
}

/* Copies the answer. Its rc; -ETIMEDOUT when there is none yet. */
static int look_up(enum kind kind, uint32_t number, const char *name,
        struct asked *ret_answer)
{
        int64_t now_ns = sheaf_now_ns(), fresh_ns = FRESH_MS * SHEAF_NS_PER_MS;
        struct asked *a;
        int rc = -ETIMEDOUT;

        if (strlen(name) >= sizeof(a->name))
                return -ENOENT;
        if (by_name(kind))
                fresh_ns = FRESH_NUMBER_MS * SHEAF_NS_PER_MS;
        if (!start())
                return rc;
        pthread_mutex_lock(&lock);
        a = entry_of(kind, number, name);
        if (a) {
                bool fresh =
                        a->answered_ns && now_ns - a->answered_ns <= fresh_ns;

                a->used_ns = now_ns;
                if (!fresh && !a->queued) {
                        a->queued = true;
                        a->queued_ns = now_ns;
                        pthread_cond_signal(&more);
                }
                /* A name that was right is shown meanwhile; rights need a
                 * new answer. */
                if (a->queued && (by_name(kind) || !a->answered_ns))
                        wait_for(a);
                if (a->answered_ns && !(a->queued && by_name(kind)))
                        rc = a->rc;
                *ret_answer = *a;
        }
        pthread_mutex_unlock(&lock);
        return rc;
}

static void name_of(enum kind kind, uint32_t number, char *buf, size_t cap)
{
        struct asked answer;

        if (look_up(kind, number, "", &answer))
                snprintf(buf, cap, "%u", number);
        else
                snprintf(buf, cap, "%s", answer.name);
}

void sheaf_names_of_user(uid_t uid, char *buf, size_t cap_bytes)
{
        name_of(USER_NAME, uid, buf, cap_bytes);
}

void sheaf_names_of_group(gid_t gid, char *buf, size_t cap_bytes)
{
        name_of(GROUP_NAME, gid, buf, cap_bytes);
}

static int number_of(enum kind kind, const char *name, uint32_t *ret_number)
{
        struct asked answer;
        int rc = look_up(kind, 0, name, &answer);

        if (!rc)
                *ret_number = answer.number;
        return !rc || rc == -ETIMEDOUT ? rc : -ENOENT;
}

int sheaf_names_user(const char *name, uid_t *ret_uid)
{
        return number_of(USER_NUMBER, name, ret_uid);
}

int sheaf_names_group(const char *name, gid_t *ret_gid)
{
        return number_of(GROUP_NUMBER, name, ret_gid);
}

bool sheaf_names_stuck(void)
{
        const struct asked *oldest;
        bool stuck;

        pthread_mutex_lock(&lock);
        oldest = next_queued();
        stuck = oldest && sheaf_now_ns() - oldest->queued_ns >
                                  MOMENT_MS * SHEAF_NS_PER_MS;
        pthread_mutex_unlock(&lock);
        return stuck;
}
