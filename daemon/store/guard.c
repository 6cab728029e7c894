/* SPDX-License-Identifier: Apache-2.0 */
/* A jump out of LMDB, per thread.
 *
 *  1 the handler jumps only from a fault of the thread itself in a guarded
 *    call; any other fault meets the action that was there before
 *  2 nothing of ours runs between the two ends of the jump but what the
 *    guarded call does: it holds no lock and owns no memory */
#include "daemon/store/guard.h"

#include <pthread.h>
#include <signal.h>

static _Thread_local sigjmp_buf jump;
static _Thread_local volatile sig_atomic_t armed;

static const int signals[] = { SIGBUS, SIGSEGV, SIGFPE };
static struct sigaction before[SHEAF_ARRAY_LEN(signals)];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int setup_rc;

static void on_fault(int signal_number, siginfo_t *info, void *context)
{
        (void)context;
        /* A code above 0 is the kernel's: this thread touched something. */
        if (armed && info->si_code > 0) {
                armed = 0;
                siglongjmp(jump, 1);
        }
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(signals); i++)
                if (signals[i] == signal_number)
                        sigaction(signal_number, &before[i], NULL);
        /* A fault comes again at once; a signal that was sent does not. */
        if (info->si_code <= 0)
                raise(signal_number);
}

static void setup(void)
{
        struct sigaction action = { .sa_sigaction = on_fault,
                .sa_flags = SA_SIGINFO | SA_NODEFER };

        sigemptyset(&action.sa_mask);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(signals); i++)
                if (sigaction(signals[i], &action, &before[i]))
                        setup_rc = -errno;
}

int sheaf_guard_setup(void)
{
        pthread_once(&once, setup);
        return setup_rc;
}

static void on_assert(MDB_env *env, const char *text)
{
        (void)env;
        (void)text;
        if (!armed)
                return; /* LMDB aborts */
        armed = 0;
        siglongjmp(jump, 1);
}

void sheaf_guard_env(MDB_env *env)
{
        (void)mdb_env_set_assert(env, on_assert);
}

sigjmp_buf *sheaf_guard_begin(void)
{
        armed = 1;
        return &jump;
}

void sheaf_guard_end(void)
{
        armed = 0;
}
