/* SPDX-License-Identifier: Apache-2.0 */
/* Accounts of users, and copies that clients hold.
 *
 *  1 what is sent is an open file for writing, of a sealed memfd that nobody
 *    else may open: a read lease can be had again only when the last
 *    descriptor and mapping of it are gone, whatever a client does
 *  2 an account lives as long as it has connections or copies, or is to be
 *    remembered
 *
 * Threads: loop thread. */
#include "daemon/account.h"

#include "daemon/clock.h"
#include "proto/memfd.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#define CONNS_LEAST 16

/* A connection has two descriptors, its socket and its process. */
void sheaf_accounts_init(
        struct sheaf_accounts *accounts, uv_loop_t *loop, int fds_max)
{
        uv_idle_init(loop, &accounts->idle);
        accounts->idle.data = accounts;
        TAILQ_INIT(&accounts->busy);
        LIST_INIT(&accounts->list);
        LIST_INIT(&accounts->sent);
        accounts->conns_max = (uint32_t)SHEAF_MIN(
                SHEAF_MAX(fds_max / 8, CONNS_LEAST), SHEAF_USER_CONNS_MAX);
}

static bool too_many(const struct sheaf_account *account)
{
        bool ours = !account->grant &&
                    (account->uid == 0 || account->uid == geteuid());

        return account->conns >=
               (ours ? SHEAF_USER_CONNS_MAX : account->accounts->conns_max);
}

int sheaf_account_join(struct sheaf_accounts *accounts,
        const struct sheaf_principal *who, struct sheaf_account **ret_account)
{
        struct sheaf_account *account;

        LIST_FOREACH (account, &accounts->list, link)
                if (account->grant == who->grant &&
                        (who->grant || account->uid == who->uid))
                        break;
        if (!account) {
                account = sheaf_new(struct sheaf_account, 1);
                if (!account)
                        return -ENOMEM;
                account->accounts = accounts;
                TAILQ_INIT(&account->chores);
                account->uid = who->uid;
                account->grant = who->grant;
                LIST_INSERT_HEAD(&accounts->list, account, link);
        }
        if (too_many(account))
                return -EUSERS;
        account->conns++;
        *ret_account = account;
        return 0;
}

static void forget(struct sheaf_account *account)
{
        if (account->conns || account->copies ||
                account->strict_until_ns > sheaf_now_ns())
                return;
        LIST_REMOVE(account, link);
        free(account);
}

void sheaf_account_leave(struct sheaf_account *account)
{
        account->conns--;
        forget(account);
}

bool sheaf_account_spent(struct sheaf_account *account, uint64_t turn_ms)
{
        if (account->turn_ms != turn_ms) {
                account->turn_ms = turn_ms;
                account->spent_ns = 0;
        }
        return account->spent_ns > SHEAF_TURN_NS;
}

/* ---- copies ---- */

int sheaf_copy_new(struct sheaf_account *account, uint64_t bytes,
        struct sheaf_copy **ret_copy)
{
        struct sheaf_copy *copy;

        if (account->copies >= SHEAF_USER_COPIES_MAX ||
                account->copy_bytes + bytes > SHEAF_USER_COPY_BYTES)
                sheaf_accounts_sweep(account->accounts);
        if (account->copies >= SHEAF_USER_COPIES_MAX ||
                account->copy_bytes + bytes > SHEAF_USER_COPY_BYTES)
                return -EBUSY;
        copy = sheaf_new(struct sheaf_copy, 1);
        if (!copy)
                return -ENOMEM;
        copy->fd = sheaf_memfd("sheaf-copy", MFD_ALLOW_SEALING);
        if (copy->fd < 0 || ftruncate(copy->fd, (off_t)bytes)) {
                int rc = copy->fd < 0 ? copy->fd : -errno;

                sheaf_close_p(&copy->fd);
                free(copy);
                return rc;
        }
        copy->account = account;
        copy->bytes = bytes;
        account->copies++;
        account->copy_bytes += bytes;
        account->accounts->copy_bytes += bytes;
        *ret_copy = copy;
        return 0;
}

int sheaf_copy_room(const struct sheaf_copy *copy, uint64_t offset_bytes,
        uint64_t len_bytes)
{
        return sheaf_again(fallocate(
                       copy->fd, 0, (off_t)offset_bytes, (off_t)len_bytes))
                       ? -errno
                       : 0;
}

void sheaf_copy_free(struct sheaf_copy *copy)
{
        copy->account->copies--;
        copy->account->copy_bytes -= copy->bytes;
        copy->account->accounts->copy_bytes -= copy->bytes;
        close(copy->fd);
        free(copy);
}

int sheaf_copy_send(struct sheaf_copy *copy, int *ret_fd)
{
        char path[32];
        int fd;

        if (fchmod(copy->fd, 0) || fcntl(copy->fd, F_ADD_SEALS,
                                           F_SEAL_WRITE | F_SEAL_SHRINK |
                                                   F_SEAL_GROW | F_SEAL_SEAL))
                return -errno;
        snprintf(path, sizeof(path), "/proc/self/fd/%d", copy->fd);
        fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        LIST_INSERT_HEAD(&copy->account->accounts->sent, copy, link);
        *ret_fd = fd;
        return 0;
}

/* Where the kernel gives no leases at all the copy counts as closed. */
static bool still_open(const struct sheaf_copy *copy)
{
        if (fcntl(copy->fd, F_SETLEASE, F_RDLCK))
                return errno == EAGAIN;
        return false;
}

void sheaf_accounts_sweep(struct sheaf_accounts *accounts)
{
        struct sheaf_copy *copy, *next;
        struct sheaf_account *account, *after;

        for (account = LIST_FIRST(&accounts->list); account; account = after) {
                after = LIST_NEXT(account, link);
                if (account->strict_until_ns)
                        forget(account);
        }
        for (copy = LIST_FIRST(&accounts->sent); copy; copy = next) {
                next = LIST_NEXT(copy, link);
                account = copy->account;
                if (still_open(copy))
                        continue;
                LIST_REMOVE(copy, link);
                sheaf_copy_free(copy);
                forget(account);
        }
}

void sheaf_accounts_clear(struct sheaf_accounts *accounts)
{
        struct sheaf_account *account, *after;
        struct sheaf_copy *copy;

        while ((copy = LIST_FIRST(&accounts->sent))) {
                LIST_REMOVE(copy, link);
                sheaf_copy_free(copy);
        }
        for (account = LIST_FIRST(&accounts->list); account; account = after) {
                after = LIST_NEXT(account, link);
                account->strict_until_ns = 0;
                forget(account);
        }
}
