/* SPDX-License-Identifier: Apache-2.0 */
/* Calls into LMDB that survive a damaged database, and maps of files that
 * survive a failing disk.
 *
 * LMDB trusts its file: a damaged page leads its pointers out of the map, into
 * a division by zero or an assertion. Each ends the call here with -EBADMSG,
 * and not the daemon. What the call held is lost with it (a reader's slot, a
 * lock), so the environment must not be used again: its owner puts it aside.
 *
 * A page of a map that its disk does not give, or that lies behind the end of
 * a file that was cut, becomes a page of zeros in memory, and the access goes
 * on: whoever reads the map must take zeros for "not known".
 *
 * Threads: any; a call is on one thread. */
#ifndef SHEAF_DAEMON_STORE_GUARD_H
#define SHEAF_DAEMON_STORE_GUARD_H

#include "proto/base.h"

#include <lmdb.h>
#include <setjmp.h>

/* Takes over SIGBUS, SIGSEGV and SIGFPE, once in a process. Outside of guarded
 * calls they do what they did before. */
SHEAF_MUST_CHECK int sheaf_guard_setup(void);

/* Assertions of @env end the guarded call. */
void sheaf_guard_env(MDB_env *env);

/* From here on faults of this thread jump to the buffer that is returned, for
 * sigsetjmp(*..., 0) in a function that lasts until _end. Not nested. */
sigjmp_buf *sheaf_guard_begin(void);
void sheaf_guard_end(void);

struct sheaf_guard_range;
/* From here on faults in the map [@start, @start + @bytes) are repaired. @fd:
 * of the file that is mapped there from its start, open until _end; or -1: it
 * is not asked once more for a page that a fault did not bring. -ENOMEM. */
SHEAF_MUST_CHECK int sheaf_guard_range(void *start, size_t bytes, int fd,
        struct sheaf_guard_range **ret_range);
/* Before the map goes. NULL is fine. */
void sheaf_guard_range_end(struct sheaf_guard_range *range);
/* Pages that were replaced until now; any thread. */
unsigned int sheaf_guard_lost(const struct sheaf_guard_range *range);

#endif
