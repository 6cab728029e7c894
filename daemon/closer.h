/* SPDX-License-Identifier: Apache-2.0 */
/* Ends of memory files. Whoever closes the last descriptor of one frees its
 * pages, a millisecond for every 8 MiB: that is done on the pool, not in the
 * loop.
 *
 * Threads: loop thread. */
#ifndef SHEAF_DAEMON_CLOSER_H
#define SHEAF_DAEMON_CLOSER_H

#include "proto/base.h"

#include <uv.h>

struct sheaf_closer;

SHEAF_MUST_CHECK int sheaf_closer_new(
        uv_loop_t *loop, struct sheaf_closer **ret_closer);
/* Closes what waits; what is on the pool ends there. */
void sheaf_closer_free(struct sheaf_closer *closer);
/* Takes @fd over and closes it soon. */
void sheaf_closer_take(struct sheaf_closer *closer, int fd);
/* How many wait: they are descriptors of ours. */
size_t sheaf_closer_waiting(const struct sheaf_closer *closer);

#endif
