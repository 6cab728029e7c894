/* SPDX-License-Identifier: Apache-2.0 */
/* A jump out of LMDB, per thread; pages in place of lost ones.
 *
 *  1 the handler jumps only from a fault of the thread itself in a guarded
 *    call; any other fault meets the action that was there before
 *  2 nothing of ours runs between the two ends of the jump but what the
 *    guarded call does: it holds no lock and owns no memory
 *  3 a page that can be read is not lost: an interrupted call that was to
 *    bring it is made again
 *  4 entries of ranges are never freed, so that a handler may walk them at any
 *    time; one that is free has no length */
#include "daemon/store/guard.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static _Thread_local sigjmp_buf jump;
static _Thread_local volatile sig_atomic_t armed;

static const int signals[] = { SIGBUS, SIGSEGV, SIGFPE };
static struct sigaction before[SHEAF_ARRAY_LEN(signals)];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t taking = PTHREAD_MUTEX_INITIALIZER; /* of entries */
static int setup_rc;

/* How often in a row a page may be read well and yet not be there. */
#define READS_MAX 8

struct sheaf_guard_range {
        _Atomic uintptr_t start, end;
        atomic_int fd;
        atomic_uint lost;
        _Atomic uintptr_t read_page; /* last read by the handler, */
        atomic_uint reads;           /* and how often in a row */
        struct sheaf_guard_range *next;
};

static _Atomic(struct sheaf_guard_range *) ranges;
static uintptr_t page_bytes;

/* Signal handler. True: what a fault did not bring a read has brought, and the
 * access may be tried again. */
static bool was_read(struct sheaf_guard_range *range, uintptr_t page)
{
        off_t at = (off_t)(page - atomic_load(&range->start));
        int fd = atomic_load(&range->fd);
        char byte;

        if (fd < 0)
                return false;
        if (atomic_exchange(&range->read_page, page) != page)
                atomic_store(&range->reads, 0);
        return atomic_fetch_add(&range->reads, 1) < READS_MAX &&
               sheaf_again(pread(fd, &byte, 1, at)) == 1;
}

/* Signal handler. A call of the kernel's, not the library's: nothing but it is
 * safe here. */
static bool replace(struct sheaf_guard_range *range, uintptr_t page)
{
        if (syscall(SYS_mmap, page, page_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == -1)
                return false;
        atomic_fetch_add(&range->lost, 1);
        return true;
}

/* Signal handler. */
static bool repair(uintptr_t at)
{
        struct sheaf_guard_range *range = atomic_load(&ranges);
        uintptr_t page = at & ~(page_bytes - 1);
        int saved_errno = errno;
        bool done;

        while (range && (at < atomic_load(&range->start) ||
                                at >= atomic_load(&range->end)))
                range = range->next;
        if (!range)
                return false;
        done = was_read(range, page) || replace(range, page);
        errno = saved_errno;
        return done;
}

static void on_fault(int signal_number, siginfo_t *info, void *context)
{
        (void)context;
        if (signal_number == SIGBUS && info->si_code > 0 &&
                repair((uintptr_t)info->si_addr))
                return;
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

        page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
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

static struct sheaf_guard_range *unused(void)
{
        struct sheaf_guard_range *range = atomic_load(&ranges);

        while (range && atomic_load(&range->end))
                range = range->next;
        return range;
}

int sheaf_guard_range(
        void *start, size_t bytes, int fd, struct sheaf_guard_range **ret_range)
{
        struct sheaf_guard_range *range;
        int rc = sheaf_guard_setup();

        if (rc)
                return rc;
        pthread_mutex_lock(&taking);
        range = unused();
        if (!range) {
                range = sheaf_new(struct sheaf_guard_range, 1);
                if (!range) {
                        pthread_mutex_unlock(&taking);
                        return -ENOMEM;
                }
                range->next = atomic_load(&ranges);
                atomic_store(&ranges, range);
        }
        atomic_store(&range->lost, 0);
        atomic_store(&range->read_page, 0);
        atomic_store(&range->fd, fd);
        atomic_store(&range->start, (uintptr_t)start);
        atomic_store(&range->end, (uintptr_t)start + bytes);
        pthread_mutex_unlock(&taking);
        *ret_range = range;
        return 0;
}

void sheaf_guard_range_end(struct sheaf_guard_range *range)
{
        if (!range)
                return;
        atomic_store(&range->end, 0);
        atomic_store(&range->start, 0);
}

unsigned int sheaf_guard_lost(const struct sheaf_guard_range *range)
{
        return range ? atomic_load(&range->lost) : 0;
}
