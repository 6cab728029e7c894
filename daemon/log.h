/* SPDX-License-Identifier: Apache-2.0 */
/* One line an event, to stderr: time, level, event, then key=value pairs.
 * Control characters that come from outside are shown as '?'. Any thread. */
#ifndef SHEAF_DAEMON_LOG_H
#define SHEAF_DAEMON_LOG_H

#include "proto/base.h"

enum sheaf_log_level {
        SHEAF_LOG_ERROR = 0,
        SHEAF_LOG_WARN,
        SHEAF_LOG_INFO,
        SHEAF_LOG_DEBUG,
};

/* Events above @level are not shown; INFO at start. */
void sheaf_log_set_level(enum sheaf_log_level level);

/* Lines go to the file @path (made if absent) from now on, in the place of
 * stderr. When it exceeds SHEAF_LOG_FILE_BYTES_MAX it becomes PATH.1, in the
 * place of an older one, and a new one is begun: both together stay near
 * twice that. 0; -errno: stderr is as before. Called once. */
#define SHEAF_LOG_FILE_BYTES_MAX (UINT64_C(16) << 20)
SHEAF_MUST_CHECK int sheaf_log_file(const char *path);

/* Writes one line; returns 0. Keeps errno. */
int sheaf_log(enum sheaf_log_level level, const char *event, const char *format,
        ...) SHEAF_PRINTF(3, 4);

/* The same with error="text of @rc" at the end; returns @rc, so that a
 * failure is logged where it is decided: return sheaf_log_rc(rc, ...). */
int sheaf_log_rc(int rc, enum sheaf_log_level level, const char *event,
        const char *format, ...) SHEAF_PRINTF(4, 5);

/* Holds back repeated lines. Zero-initialised; one thread or a lock. */
struct sheaf_log_once {
        int64_t next_ns;
        uint64_t held; /* lines held back since the last one */
};

/* True when a line may be written now: the first time, then again when
 * @interval_ns have passed (0: never again). */
bool sheaf_log_once(struct sheaf_log_once *once, int64_t interval_ns);

#endif
