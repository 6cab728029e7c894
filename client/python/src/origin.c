/* SPDX-License-Identifier: Apache-2.0 */
/* What goes on while the daemon is away: whole files read from the origin's
 * directory into private memory, and the order strict.
 *
 * Files are read without the interpreter's lock, one by one: a signal's
 * handler runs after each. */
#include "client/internal.h"
#include "client/python/src/ext.h"

#include <errno.h>
#include <stdlib.h>

/* A failure as an object, or NULL with an exception set. */
static PyObject *failed(struct ext_source *source, uint64_t ordinal, int rc)
{
        PyObject *key = ext_source_path(source, ordinal);
        PyObject *error = key ? ext_error_new(rc, NULL, key) : NULL;

        Py_XDECREF(key);
        return error;
}

/* 0, or a negative errno with the library's text; -EINTR: an exception is
 * set. */
static int read_file(
        struct sheaf_dataset *dataset, uint64_t ordinal, struct ext_hold *hold)
{
        int64_t len_bytes = sheaf_dataset_size(dataset, ordinal);
        struct ext_wait wait;
        int rc;

        if (len_bytes < 0)
                return (int)len_bytes;
        hold->flat = malloc((size_t)len_bytes + 1);
        if (!hold->flat) {
                PyErr_NoMemory();
                return -EINTR;
        }
        hold->view.len_bytes = (uint64_t)len_bytes;
        ext_wait_begin(&wait);
        rc = sheaf_dataset_read_origin(dataset, ordinal, hold->flat);
        return ext_wait_end(&wait) ? -EINTR : rc;
}

/* The Sample of (ordinal, epoch, slot) @at, or an OSError; NULL with an
 * exception. */
static PyObject *sample(struct ext_source *source, PyTypeObject *cls,
        const int64_t *at, bool *ret_failed)
{
        struct ext_hold *hold = ext_hold_new(source->link);
        int rc;

        if (!hold)
                return PyErr_NoMemory();
        rc = read_file(source->link->dataset, (uint64_t)at[0], hold);
        *ret_failed = rc != 0;
        if (rc == 0)
                return ext_sample_new(cls, source, hold, at[0], at[1], at[2]);
        ext_hold_put(hold);
        return rc == -EINTR ? NULL : failed(source, (uint64_t)at[0], rc);
}

/* Adds one to the lists; -1 with an exception. */
static int add(struct ext_source *source, PyTypeObject *cls, const int64_t *at,
        PyObject *samples, PyObject *failures)
{
        bool fails = false;
        PyObject *value = sample(source, cls, at, &fails);
        int rc;

        if (!value)
                return -1;
        rc = PyList_Append(samples, value);
        Py_DECREF(value);
        if (rc || !fails)
                return rc;
        value = Py_BuildValue("(nLLL)", PyList_Size(samples) - 1,
                (long long)at[0], (long long)at[1], (long long)at[2]);
        rc = value ? PyList_Append(failures, value) : -1;
        Py_XDECREF(value);
        return rc;
}

PyObject *ext_source_is_served(PyObject *self, PyObject *unused)
{
        struct ext_source *source = (struct ext_source *)self;

        (void)unused;
        return PyBool_FromLong(sheaf_dataset_is_served(source->link->dataset));
}

PyObject *ext_source_from_origin(
        PyObject *self, PyObject *const *args, Py_ssize_t count)
{
        PyObject *samples, *failures;
        Py_buffer numbers;
        const int64_t *at;
        size_t n;
        int rc;

        if (count != 2 || !PyType_Check(args[1]) ||
                !PyType_IsSubtype((PyTypeObject *)args[1], ext_sample_type))
                return PyErr_Format(
                        PyExc_TypeError, "from_origin(numbers, class)");
        if (PyObject_GetBuffer(args[0], &numbers, PyBUF_SIMPLE))
                return NULL;
        at = numbers.buf;
        n = (size_t)numbers.len / (3 * sizeof(*at));
        samples = PyList_New(0);
        failures = PyList_New(0);
        rc = samples && failures ? 0 : -1;
        for (size_t i = 0; !rc && i < n; i++, at += 3)
                rc = add((struct ext_source *)self, (PyTypeObject *)args[1], at,
                        samples, failures);
        PyBuffer_Release(&numbers);
        if (!rc)
                return Py_BuildValue("(NN)", samples, failures);
        Py_XDECREF(samples);
        Py_XDECREF(failures);
        return NULL;
}

PyObject *ext_strict(PyObject *module, PyObject *args)
{
        unsigned long long seed, epoch;
        unsigned int samples, slot;

        (void)module;
        if (!PyArg_ParseTuple(
                    args, "IKKI:strict", &samples, &seed, &epoch, &slot))
                return NULL;
        if (slot >= samples)
                return PyErr_Format(PyExc_IndexError,
                        "an epoch has %u slots, there is no slot %u", samples,
                        slot);
        return PyLong_FromUnsignedLong(
                sheaf_strict_sample(samples, seed, epoch, slot));
}
