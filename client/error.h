/* SPDX-License-Identifier: Apache-2.0 */
/* The text behind sheaf_last_error(): one a thread. */
#ifndef SHEAF_CLIENT_ERROR_H
#define SHEAF_CLIENT_ERROR_H

#include "proto/base.h"

/* Sets this thread's text and returns @rc, so that one line reports and
 * returns. Longer texts are cut at SHEAF_ERROR_TEXT_MAX. */
#define SHEAF_ERROR_TEXT_MAX 2048
int sheaf_error_set(int rc, const char *format, ...) SHEAF_PRINTF(2, 3);

/* The same for a text of others, at most SHEAF_ERROR_LONG_MAX with its end. */
#define SHEAF_ERROR_LONG_MAX 16640
int sheaf_error_set_long(int rc, const char *text);

/* What @rc says; of descriptors that ran out the limit and the remedy, too.
 * In @text, or static. */
#define SHEAF_ERROR_WHY_MAX 192
const char *sheaf_error_why(int rc, char text[SHEAF_ERROR_WHY_MAX]);

#endif
