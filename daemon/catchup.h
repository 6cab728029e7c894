/* SPDX-License-Identifier: Apache-2.0 */
/* What the disk did not take while it was full, or failed, and what is still
 * in memory when it takes writes again, is written then.
 *
 * Threads: loop thread. */
#ifndef SHEAF_DAEMON_CATCHUP_H
#define SHEAF_DAEMON_CATCHUP_H

#include "daemon/server.h"

struct sheaf_catchup;

/* Begins to look at the disk; registry, fetcher and store live longer. */
SHEAF_MUST_CHECK int sheaf_catchup_new(
        struct sheaf_daemon *daemon, struct sheaf_catchup **ret_catchup);
void sheaf_catchup_free(struct sheaf_catchup *catchup);

#endif
