/* SPDX-License-Identifier: Apache-2.0 */
/* Whose chore is next.
 *
 *  1 accounts with chores take turns, and so do the chores of each
 *  2 a turn of the loop ends for an account when its time of it is spent, on
 *    chores or messages, and for all when ALL_NS are
 *
 * Threads: loop thread. */
#include "daemon/chore.h"

#include "daemon/clock.h"

#define ALL_NS (2 * SHEAF_TURN_NS)

static void leave(struct sheaf_account *account)
{
        if (TAILQ_EMPTY(&account->chores))
                TAILQ_REMOVE(&account->accounts->busy, account, busy_link);
}

void sheaf_chore_stop(struct sheaf_chore *chore)
{
        struct sheaf_account *account = chore->account;

        if (!account)
                return;
        chore->account = NULL;
        TAILQ_REMOVE(&account->chores, chore, link);
        leave(account);
}

/* Chores of one account until its time is spent, or @end_ns has come. The one
 * that was at it then is the last next time. */
static void run_some(
        struct sheaf_account *account, uint64_t turn_ms, int64_t end_ns)
{
        int64_t began_ns = sheaf_now_ns(), now_ns = began_ns;
        struct sheaf_chore *chore = NULL;

        while (now_ns < end_ns && !sheaf_account_spent(account, turn_ms) &&
                (chore = TAILQ_FIRST(&account->chores))) {
                chore->step(chore);
                now_ns = sheaf_now_ns();
                account->spent_ns += now_ns - began_ns;
                began_ns = now_ns;
        }
        if (chore && chore == TAILQ_FIRST(&account->chores)) {
                TAILQ_REMOVE(&account->chores, chore, link);
                TAILQ_INSERT_TAIL(&account->chores, chore, link);
        }
}

static void run(uv_idle_t *idle)
{
        struct sheaf_accounts *accounts = idle->data;
        int64_t end_ns = sheaf_now_ns() + ALL_NS;
        struct sheaf_account *account;
        size_t count = 0;

        TAILQ_FOREACH (account, &accounts->busy, busy_link)
                count++;
        while (count-- && sheaf_now_ns() < end_ns &&
                (account = TAILQ_FIRST(&accounts->busy))) {
                TAILQ_REMOVE(&accounts->busy, account, busy_link);
                TAILQ_INSERT_TAIL(&accounts->busy, account, busy_link);
                run_some(account, uv_now(idle->loop), end_ns);
        }
        if (TAILQ_EMPTY(&accounts->busy))
                uv_idle_stop(idle);
}

void sheaf_chore_start(struct sheaf_account *account, struct sheaf_chore *chore,
        void (*step)(struct sheaf_chore *chore))
{
        struct sheaf_accounts *accounts = account->accounts;

        chore->step = step;
        if (chore->account)
                return;
        chore->account = account;
        if (TAILQ_EMPTY(&account->chores))
                TAILQ_INSERT_TAIL(&accounts->busy, account, busy_link);
        TAILQ_INSERT_TAIL(&account->chores, chore, link);
        uv_idle_start(&accounts->idle, run);
}
