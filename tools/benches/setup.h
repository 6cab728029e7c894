/* SPDX-License-Identifier: Apache-2.0 */
/* What setup.c does for common.c alone. */
#ifndef SHEAF_BENCH_SETUP_H
#define SHEAF_BENCH_SETUP_H

#include <stdint.h>

/* Unmounts, stops the daemon, removes the directory; idempotent. */
void bench_setup_end(void);
/* CPU time of the daemon's threads and of its readers; 0: no daemon. */
int64_t bench_daemon_cpu_ns(void);

#endif
