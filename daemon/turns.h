/* SPDX-License-Identifier: Apache-2.0 */
/* How long the turns of the loop take: while one goes on nobody is answered.
 *
 * Threads: loop thread. */
#ifndef SHEAF_DAEMON_TURNS_H
#define SHEAF_DAEMON_TURNS_H

#include "proto/base.h"

#include <uv.h>

struct sheaf_turns;

/* The longest of the last minute (30 to 60 s), waiting for events not
 * counted. */
struct sheaf_turns_stats {
        uint64_t longest_ns;     /* by the clock */
        uint64_t longest_cpu_ns; /* of processor time; may be another turn */
};

/* Before the loop runs for the first time. It does not keep the loop alive. */
SHEAF_MUST_CHECK int sheaf_turns_new(
        uv_loop_t *loop, struct sheaf_turns **ret_turns);
/* Its handle ends as the loop goes on. */
void sheaf_turns_free(struct sheaf_turns *turns);
void sheaf_turns_stats(
        struct sheaf_turns *turns, struct sheaf_turns_stats *ret_stats);

#endif
