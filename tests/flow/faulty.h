/* SPDX-License-Identifier: Apache-2.0 */
/* A directory whose file system misbehaves on command (tests/fakes/faultfs.c
 * has the rules). One at a time in a test; the harness ends it with the test.
 * All functions assert. */
#ifndef SHEAF_TESTS_FLOW_FAULTY_H
#define SHEAF_TESTS_FLOW_FAULTY_H

#include "tests/flow/harness.h"

/* From now on @dir, which is made if missing, passes through to @dir.real:
 * what was in it moves there. */
void flow_faulty_mount(const char *dir);
/* The rules in force from now on, lines of faultfs; "" for none. Calls that
 * hang go on. */
SHEAF_PRINTF(1, 2) void flow_faulty(const char *rules, ...);
/* How often a rule was met by calls whose line has @text ("write /plain"). */
uint64_t flow_faulty_hits(const char *text);
/* How often by calls of one kind that @thread made. */
uint64_t flow_faulty_calls(const char *op, pid_t thread);
/* The file system dies: calls fail with ENOTCONN until the unmount. */
void flow_faulty_vanish(void);
void flow_faulty_umount(void);

#endif
