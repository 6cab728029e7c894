/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory there is for this process: the machine's, or less where a
 * control group (version 1 or 2) says so. */
#ifndef SHEAF_DAEMON_MEMORY_LIMIT_H
#define SHEAF_DAEMON_MEMORY_LIMIT_H

#include "proto/base.h"

/* Bytes of memory of this machine. */
uint64_t sheaf_memory_machine(void);

/* The least limit of the control groups that this process is in; UINT64_MAX:
 * none, or it cannot be read. */
uint64_t sheaf_memory_group(void);

/* The same from these files: lines as in /proc/self/cgroup and
 * /proc/self/mountinfo. */
uint64_t sheaf_memory_group_of(const char *groups, const char *mounts);

#endif
