/* SPDX-License-Identifier: Apache-2.0 */
/* The one clock of the daemon: deadlines and ages are monotonic nanoseconds,
 * times of day are only shown or compared with files. Any thread. */
#ifndef SHEAF_DAEMON_CLOCK_H
#define SHEAF_DAEMON_CLOCK_H

#include "proto/base.h"

#include <time.h>

/* CLOCK_MONOTONIC in nanoseconds. */
static inline int64_t sheaf_now_ns(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (int64_t)ts.tv_sec * SHEAF_NS_PER_SEC + ts.tv_nsec;
}

/* CLOCK_REALTIME in nanoseconds. */
static inline int64_t sheaf_wall_ns(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_REALTIME, &ts);
        return (int64_t)ts.tv_sec * SHEAF_NS_PER_SEC + ts.tv_nsec;
}

#endif
