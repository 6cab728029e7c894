/* SPDX-License-Identifier: Apache-2.0 */
/* Error texts.
 *
 *  1 a thread sees its own last failure only
 *  2 a successful call leaves the text alone */
#include "client/error.h"

#include "client/sheaf.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char error_text[SHEAF_ERROR_TEXT_MAX];

int sheaf_error_set(int rc, const char *format, ...)
{
        char text[SHEAF_ERROR_TEXT_MAX];
        va_list args;

        /* Arguments may be the old text itself. */
        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        memcpy(error_text, text, strnlen(text, sizeof(text) - 1) + 1);
        return rc;
}

const char *sheaf_last_error(void)
{
        return error_text;
}
