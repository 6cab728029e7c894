/* SPDX-License-Identifier: Apache-2.0 */
/* Error texts.
 *
 *  1 a thread sees its own last failure only
 *  2 a successful call leaves the text alone */
#include "client/error.h"

#include "client/sheaf.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/resource.h>

/* A pointer: what is thread-local must be small for a library that may be
 * loaded at run time. */
static _Thread_local char *error_text;

static pthread_key_t key;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static bool key_made;

static void forget(void *text)
{
        free(text);
        error_text = NULL; /* other destructors may still fail */
}

static void make_key(void)
{
        key_made = pthread_key_create(&key, forget) == 0;
}

/* The calling thread's buffer, freed when it ends. NULL: no memory. */
static char *buffer(void)
{
        if (error_text)
                return error_text;
        pthread_once(&key_once, make_key);
        if (!key_made)
                return NULL;
        error_text = malloc(SHEAF_ERROR_LONG_MAX);
        if (error_text && pthread_setspecific(key, error_text)) {
                free(error_text);
                error_text = NULL;
        }
        return error_text;
}

int sheaf_error_set(int rc, const char *format, ...)
{
        char text[SHEAF_ERROR_TEXT_MAX], *own = buffer();
        va_list args;

        /* Arguments may be the old text itself. */
        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        if (own)
                memcpy(own, text, strnlen(text, sizeof(text) - 1) + 1);
        return rc;
}

int sheaf_error_set_long(int rc, const char *text)
{
        char *own = buffer();

        if (own)
                snprintf(own, SHEAF_ERROR_LONG_MAX, "%s", text);
        return rc;
}

const char *sheaf_error_why(int rc, char text[SHEAF_ERROR_WHY_MAX])
{
        struct rlimit limit;

        if (rc == -ENFILE)
                return "the system has no free file descriptor; raise the "
                       "sysctl fs.file-max";
        if (rc != -EMFILE || getrlimit(RLIMIT_NOFILE, &limit))
                return strerror(-rc);
        snprintf(text, SHEAF_ERROR_WHY_MAX,
                "this process has no free file descriptor: its limit "
                "RLIMIT_NOFILE is %llu; close some, or raise it (ulimit -n)",
                (unsigned long long)limit.rlim_cur);
        return text;
}

const char *sheaf_last_error(void)
{
        return error_text ? error_text : "";
}
