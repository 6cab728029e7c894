/* SPDX-License-Identifier: Apache-2.0 */
/* The end of what setup.c made; for common.c alone. */
#ifndef SHEAF_BENCH_SETUP_H
#define SHEAF_BENCH_SETUP_H

/* Unmounts, stops the daemon, removes the directory; idempotent. */
void bench_setup_end(void);

#endif
