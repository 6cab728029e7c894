/* SPDX-License-Identifier: Apache-2.0 */
/* Names of users and groups. They may come from a network that does not
 * answer, so a thread of its own asks the system; the loop thread waits for
 * it for a moment, and no more than MOMENT_MS in each SPAN_MS (names.c).
 * Loop thread. */
#ifndef SHEAF_DAEMON_NAMES_H
#define SHEAF_DAEMON_NAMES_H

#include "proto/base.h"

#include <sys/types.h>

/* The name, or the number where there is none or it does not come in time. */
void sheaf_names_of_user(uid_t uid, char *buf, size_t cap_bytes);
void sheaf_names_of_group(gid_t gid, char *buf, size_t cap_bytes);

/* -ENOENT: there is none. -ETIMEDOUT: not known yet; a later call finds the
 * answer when it has come. */
SHEAF_MUST_CHECK int sheaf_names_user(const char *name, uid_t *ret_uid);
SHEAF_MUST_CHECK int sheaf_names_group(const char *name, gid_t *ret_gid);

/* Whether a question has been open for longer than a moment. */
bool sheaf_names_stuck(void);

#endif
