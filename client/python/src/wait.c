/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that may wait, and their failures.
 *
 *  1 a thread that waits in the library holds no lock of the interpreter, but
 *    takes it about every 100 ms to look for signals
 *  2 what a signal's handler raises ends the call; it is passed on whatever
 *    the call itself returned
 *
 * A handler may call the library again: waits of a thread nest. */
#include "client/python/src/ext.h"

#include <errno.h>
#include <string.h>

static _Thread_local struct ext_wait *current;

void ext_wait_begin(struct ext_wait *wait)
{
        wait->outer = current;
        current = wait;
        wait->state = PyEval_SaveThread();
}

bool ext_wait_end(struct ext_wait *wait)
{
        PyEval_RestoreThread(wait->state);
        current = wait->outer;
        return PyErr_Occurred() != NULL;
}

int ext_interrupted(void *unused)
{
        struct ext_wait *wait = current;
        int rc;

        (void)unused;
        /* Nobody to tell: a call that is not made through ext_wait. */
        if (!wait)
                return 0;
        PyEval_RestoreThread(wait->state);
        rc = PyErr_Occurred() ? -1 : PyErr_CheckSignals();
        wait->state = PyEval_SaveThread();
        return rc;
}

PyObject *ext_error_new(int64_t rc, const char *text, PyObject *file)
{
        int number = rc < 0 && rc > -4096 ? (int)-rc : EIO;
        PyObject *message, *error;

        if (!text)
                text = *sheaf_last_error() ? sheaf_last_error()
                                           : strerror(number);
        message =
                PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
        if (!message)
                return NULL;
        if (file)
                error = PyObject_CallFunction(
                        PyExc_OSError, "iOO", number, message, file);
        else
                error = PyObject_CallFunction(
                        PyExc_OSError, "iO", number, message);
        Py_DECREF(message);
        return error;
}

PyObject *ext_raise(int64_t rc, PyObject *file)
{
        PyObject *error = ext_error_new(rc, NULL, file);

        if (!error)
                return NULL;
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
        return NULL;
}
