/* SPDX-License-Identifier: Apache-2.0 */
/* Folders and ranges of files, as sheaf/fs.py shows them.
 *
 * Folders come from the listing itself, where the entries of one lie side by
 * side: empty ones and links are there, and none costs more than it holds.
 * Ranges are copied out of shared memory, once, into the bytes object. */
#include "client/internal.h"
#include "client/python/src/ext.h"

#include <errno.h>
#include <string.h>

static const char *kind_of(uint32_t mode)
{
        if (S_ISDIR(mode))
                return "directory";
        return S_ISREG(mode) ? "file" : "link";
}

/* (name, kind, bytes, seconds since 1970). */
static PyObject *entry_new(const struct sheaf_listing *listing, uint32_t index)
{
        const struct sheaf_listing_entry *entry = &listing->entries[index];
        size_t len;
        const char *name = sheaf_listing_name(listing, index, &len);
        PyObject *text =
                PyUnicode_DecodeFSDefaultAndSize(name, (Py_ssize_t)len);
        struct stat st;

        if (!text)
                return NULL;
        sheaf_listing_stat(listing, index, &st);
        return Py_BuildValue("(NsLd)", text, kind_of(entry->mode),
                (long long)st.st_size,
                (double)st.st_mtim.tv_sec + (double)st.st_mtim.tv_nsec * 1e-9);
}

static PyObject *missing(int rc, PyObject *path)
{
        PyObject *error = ext_error_new(rc, strerror(-rc), path);

        if (error)
                PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_XDECREF(error);
        return NULL;
}

PyObject *ext_source_entries(PyObject *self, PyObject *path)
{
        const struct sheaf_listing *listing = sheaf_dataset_listing(
                ((struct ext_source *)self)->link->dataset);
        const struct sheaf_listing_entry *dir;
        PyObject *bytes = NULL, *list;
        uint32_t index;
        int rc;

        if (!PyUnicode_FSConverter(path, &bytes))
                return NULL;
        rc = sheaf_listing_find(listing, PyBytes_AsString(bytes),
                (size_t)PyBytes_Size(bytes), &index);
        Py_DECREF(bytes);
        if (!rc && !S_ISDIR(listing->entries[index].mode))
                rc = -ENOTDIR;
        if (rc)
                return missing(rc, path);
        dir = &listing->entries[index];
        list = PyList_New(0);
        for (uint32_t i = 0; list && i < dir->child_count; i++) {
                PyObject *entry = entry_new(listing, dir->first_child + i);

                if (!entry || PyList_Append(list, entry))
                        Py_CLEAR(list);
                Py_XDECREF(entry);
        }
        return list;
}

PyObject *ext_source_read(
        PyObject *self, PyObject *const *args, Py_ssize_t count)
{
        struct sheaf_dataset *dataset =
                ((struct ext_source *)self)->link->dataset;
        uint64_t numbers[3];
        struct ext_wait wait;
        int64_t size, got;
        PyObject *bytes;

        if (count != 3)
                return PyErr_Format(
                        PyExc_TypeError, "read(id, offset_bytes, len_bytes)");
        for (int i = 0; i < 3; i++) {
                numbers[i] = PyLong_AsUnsignedLongLong(args[i]);
                if (PyErr_Occurred())
                        return NULL;
        }
        size = sheaf_dataset_size(dataset, numbers[0]);
        if (size < 0)
                return ext_raise(size, NULL);
        if (numbers[1] > (uint64_t)size)
                numbers[1] = (uint64_t)size;
        if (numbers[2] > (uint64_t)size - numbers[1])
                numbers[2] = (uint64_t)size - numbers[1];
        bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)numbers[2]);
        if (!bytes)
                return NULL;
        ext_wait_begin(&wait);
        got = numbers[2]
                      ? sheaf_read(dataset, numbers[0], PyBytes_AsString(bytes),
                                (size_t)numbers[2], numbers[1])
                      : 0;
        if (ext_wait_end(&wait)) {
                Py_DECREF(bytes);
                return NULL;
        }
        if (got != (int64_t)numbers[2]) {
                PyObject *file =
                        ext_source_path((struct ext_source *)self, numbers[0]);

                Py_DECREF(bytes);
                ext_raise(got < 0 ? got : -EIO, file);
                Py_XDECREF(file);
                return NULL;
        }
        return bytes;
}
