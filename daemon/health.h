/* SPDX-License-Identifier: Apache-2.0 */
/* What went wrong at moments, remembered for a while, so that somebody who
 * looks a little later is told. States that last need none of this.
 *
 * Threads: loop thread. */
#ifndef SHEAF_DAEMON_HEALTH_H
#define SHEAF_DAEMON_HEALTH_H

#include "daemon/server.h"

enum sheaf_health_kind {
        SHEAF_HEALTH_DAMAGED,  /* chunks without their digest */
        SHEAF_HEALTH_UNPLACED, /* chunks that found no room in an arena */
        SHEAF_HEALTH_REFUSED,  /* memory that the system did not give */
        SHEAF_HEALTH_KINDS
};

struct sheaf_health;

/* Begins to look at the counters; registry and store live longer. */
SHEAF_MUST_CHECK int sheaf_health_new(
        struct sheaf_daemon *daemon, struct sheaf_health **ret_health);
void sheaf_health_free(struct sheaf_health *health);

/* Whether it happened within the last ten minutes; @ret_count (or NULL) is
 * how often since it began. */
bool sheaf_health_recent(struct sheaf_health *health,
        enum sheaf_health_kind kind, uint64_t *ret_count);

#endif
