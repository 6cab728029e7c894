/* SPDX-License-Identifier: Apache-2.0 */
/* The host as a test wants it: limits, refusals, lies and memory control
 * groups that the daemon is started into. All functions assert; the harness
 * ends everything with the test. */
#ifndef SHEAF_TESTS_FLOW_WORLD_H
#define SHEAF_TESTS_FLOW_WORLD_H

#include "tests/fakes/shim.h"
#include "tests/flow/harness.h"

/* From now on "sheafd" is a script: @setup (lines of shell, or ""), then the
 * program behind @prefix (such as "unshare -m", or ""). */
void flow_world(const char *setup, const char *prefix);

/* The shim's file, made if missing; @prefix for flow_world in @ret_prefix. */
struct shim *flow_shim(const char **ret_prefix);

/* A memory control group of its own, version 1 or 2, removed with the test;
 * NULL with a printed reason where none can be made. */
struct flow_group;
struct flow_group *flow_group_new(const char *name, uint64_t limit_bytes);
/* The file that a process writes "0" to in order to enter. */
const char *flow_group_door(const struct flow_group *group);
void flow_group_enter(const struct flow_group *group);
uint64_t flow_group_used(const struct flow_group *group);
/* How often the kernel killed somebody in it. */
uint64_t flow_group_kills(const struct flow_group *group);

/* Clock ticks of processor time that a process has used, in seconds. */
double flow_cpu(pid_t pid);

/* Whether `sheaf status` says @text. */
bool flow_status_says(const char *text);

#endif
