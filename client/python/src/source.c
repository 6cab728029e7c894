/* SPDX-License-Identifier: Apache-2.0 */
/* Source: an open dataset. sheaf.Dataset makes one in each process that needs
 * it; several Datasets of a process may share one.
 *
 * Calls that may wait are made without the interpreter's lock (wait.c). */
#include "client/python/src/ext.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct ext_source *of(PyObject *object)
{
        return (struct ext_source *)object;
}

static struct sheaf_dataset *dataset_of(PyObject *object)
{
        return of(object)->link->dataset;
}

/* ---- open ---- */

struct opening {
        const char *name, *socket;
        const char *uuid;
        Py_ssize_t uuid_bytes;
        long long timeout_ms;
        unsigned long long pin_bytes;
};

/* @ret_connected: whether the daemon was reached. */
static int64_t open_link(const struct opening *opening, struct ext_link *link,
        bool *ret_connected)
{
        struct sheaf_session_options options = {
                .socket = opening->socket,
                .kind = "python",
                .deadline_ms = opening->timeout_ms,
                .pin_bytes = opening->pin_bytes,
                .interrupted = ext_interrupted,
        };
        int rc = sheaf_session_new(&options, &link->session);

        if (!rc)
                rc = sheaf_session_connect(link->session);
        *ret_connected = !rc;
        if (rc)
                return rc;
        if (opening->uuid)
                return sheaf_dataset_open_version(link->session, opening->name,
                        (const uint8_t *)opening->uuid, &link->dataset);
        return sheaf_dataset_open(link->session, opening->name, &link->dataset);
}

static PyObject *open_failed(int64_t rc, bool connected, const char *name)
{
        PyObject *file = PyUnicode_DecodeFSDefault(name);

        if (!file)
                return NULL;
        /* Without a socket there is no daemon: not a file that is missing. */
        if (!connected && rc == -ENOENT)
                rc = -ECONNREFUSED;
        ext_raise(rc, file);
        Py_DECREF(file);
        return NULL;
}

static struct ext_link *link_new(const struct opening *opening)
{
        struct ext_link *link = calloc(1, sizeof(*link));
        struct ext_wait wait;
        bool connected = false;
        int64_t rc;

        if (!link) {
                PyErr_NoMemory();
                return NULL;
        }
        atomic_init(&link->users, 1);
        link->pid = getpid();
        ext_wait_begin(&wait);
        rc = open_link(opening, link, &connected);
        if (ext_wait_end(&wait) || rc) {
                if (!PyErr_Occurred())
                        open_failed(rc, connected, opening->name);
                ext_link_put(link);
                return NULL;
        }
        return link;
}

static PyObject *source_new(
        PyTypeObject *type, PyObject *args, PyObject *keywords)
{
        static const char *const names[] = { "name", "socket", "timeout_ms",
                "uuid", "pin_bytes", NULL };
        allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
        struct opening opening = { 0 };
        struct ext_source *self;

        if (!PyArg_ParseTupleAndKeywords(args, keywords, "s|zLz#K:Source",
                    EXT_KEYWORDS(names), &opening.name, &opening.socket,
                    &opening.timeout_ms, &opening.uuid, &opening.uuid_bytes,
                    &opening.pin_bytes))
                return NULL;
        if (opening.uuid && opening.uuid_bytes != 16)
                return PyErr_Format(PyExc_ValueError, "a uuid has 16 bytes");
        self = (struct ext_source *)alloc(type, 0);
        if (!self)
                return NULL;
        self->link = link_new(&opening);
        if (!self->link) {
                Py_DECREF((PyObject *)self);
                return NULL;
        }
        return (PyObject *)self;
}

static void dealloc(PyObject *object)
{
        struct ext_source *self = of(object);
        PyTypeObject *type = Py_TYPE(object);
        PyThreadState *state;

        free(self->starts);
        free(self->labels);
        if (self->link) {
                /* The last one waits for the session's thread to end. */
                state = PyEval_SaveThread();
                ext_link_put(self->link);
                PyEval_RestoreThread(state);
        }
        ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
        Py_DECREF(type);
}

/* ---- what it is ---- */

static Py_ssize_t length(PyObject *object)
{
        return (Py_ssize_t)sheaf_dataset_files(dataset_of(object));
}

static PyObject *info(PyObject *object, PyObject *unused)
{
        struct sheaf_dataset_info info;

        (void)unused;
        sheaf_dataset_info(dataset_of(object), &info);
        return Py_BuildValue("{s:s,s:y#,s:K,s:K,s:K,s:s}", "name", info.name,
                "uuid", info.uuid, (Py_ssize_t)sizeof(info.uuid), "serial",
                (unsigned long long)info.serial, "files",
                (unsigned long long)info.files, "bytes",
                (unsigned long long)info.bytes, "socket",
                sheaf_session_socket(of(object)->link->session));
}

PyObject *ext_source_path(struct ext_source *source, uint64_t ordinal)
{
        char small[512], *big;
        PyObject *path;
        int64_t len = sheaf_dataset_path(
                source->link->dataset, ordinal, small, sizeof(small));

        if (len < 0) {
                sheaf_dataset_size(source->link->dataset, ordinal);
                return ext_raise(len, NULL);
        }
        if (len < (int64_t)sizeof(small))
                return PyUnicode_DecodeFSDefaultAndSize(small, len);
        big = malloc((size_t)len + 1);
        if (!big)
                return PyErr_NoMemory();
        sheaf_dataset_path(
                source->link->dataset, ordinal, big, (size_t)len + 1);
        path = PyUnicode_DecodeFSDefaultAndSize(big, len);
        free(big);
        return path;
}

/* An ordinal that exists, or -1 with IndexError set. */
static int64_t ordinal_of(PyObject *object, PyObject *number)
{
        long long ordinal = PyLong_AsLongLong(number);

        if (ordinal == -1 && PyErr_Occurred())
                return -1;
        if (ordinal < 0 || ordinal >= length(object)) {
                PyErr_Format(PyExc_IndexError,
                        "the dataset has %zd files, there is no %lld",
                        length(object), ordinal);
                return -1;
        }
        return ordinal;
}

static PyObject *path(PyObject *object, PyObject *number)
{
        int64_t ordinal = ordinal_of(object, number);

        return ordinal < 0 ? NULL
                           : ext_source_path(of(object), (uint64_t)ordinal);
}

static PyObject *size(PyObject *object, PyObject *number)
{
        int64_t ordinal = ordinal_of(object, number);

        if (ordinal < 0)
                return NULL;
        return PyLong_FromLongLong(
                sheaf_dataset_size(dataset_of(object), (uint64_t)ordinal));
}

static PyObject *lookup(PyObject *object, PyObject *name)
{
        PyObject *bytes = NULL;
        uint64_t ordinal;
        int rc;

        if (!PyUnicode_FSConverter(name, &bytes))
                return NULL;
        rc = sheaf_dataset_lookup(
                dataset_of(object), PyBytes_AsString(bytes), &ordinal);
        Py_DECREF(bytes);
        if (rc)
                return ext_raise(rc, name);
        return PyLong_FromUnsignedLongLong(ordinal);
}

/* ---- labels ---- */

/* Takes the runs: pairs (first file, label), ascending, the first at 0. */
static PyObject *set_labels(PyObject *object, PyObject *runs)
{
        struct ext_source *self = of(object);
        Py_ssize_t n = PyList_Size(runs);
        uint64_t *starts;
        int32_t *labels;

        if (n < 0)
                return NULL;
        starts = calloc((size_t)n + 1, sizeof(*starts));
        labels = calloc((size_t)n + 1, sizeof(*labels));
        if (!starts || !labels)
                PyErr_NoMemory();
        for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++) {
                unsigned long long start;
                int label;

                if (!PyArg_ParseTuple(
                            PyList_GetItem(runs, i), "Ki", &start, &label))
                        break;
                starts[i] = start;
                labels[i] = label;
        }
        if (PyErr_Occurred()) {
                free(starts);
                free(labels);
                return NULL;
        }
        free(self->starts);
        free(self->labels);
        self->starts = starts;
        self->labels = labels;
        self->runs = (size_t)n;
        Py_RETURN_NONE;
}

static PyObject *label(PyObject *object, PyObject *number)
{
        struct ext_source *self = of(object);
        int64_t ordinal = ordinal_of(object, number);
        size_t low = 0, high = self->runs;

        if (ordinal < 0)
                return NULL;
        /* Of the last run that begins at or before it. */
        while (low < high) {
                size_t middle = (low + high) / 2;

                if (self->starts[middle] <= (uint64_t)ordinal)
                        low = middle + 1;
                else
                        high = middle;
        }
        return PyLong_FromLong(low ? self->labels[low - 1] : -1);
}

/* ---- others ---- */

static uint64_t *ordinals_of(PyObject *list, Py_ssize_t *ret_n)
{
        Py_ssize_t n = PySequence_Size(list);
        uint64_t *ordinals;

        if (n < 0)
                return NULL;
        ordinals = calloc((size_t)n + 1, sizeof(*ordinals));
        if (!ordinals)
                PyErr_NoMemory();
        for (Py_ssize_t i = 0; ordinals && i < n; i++) {
                PyObject *item = PySequence_GetItem(list, i);

                ordinals[i] = item ? PyLong_AsUnsignedLongLong(item) : 0;
                Py_XDECREF(item);
                if (PyErr_Occurred()) {
                        free(ordinals);
                        return NULL;
                }
        }
        *ret_n = n;
        return ordinals;
}

static PyObject *prefetch(PyObject *object, PyObject *list)
{
        Py_ssize_t n = 0;
        uint64_t *ordinals = ordinals_of(list, &n);
        int rc;

        if (!ordinals)
                return NULL;
        rc = sheaf_prefetch(dataset_of(object), ordinals, (size_t)n);
        free(ordinals);
        if (rc && rc != -EAGAIN)
                return ext_raise(rc, NULL);
        return PyBool_FromLong(rc == 0);
}

static PyObject *stats(PyObject *object, PyObject *unused)
{
        struct ext_source *self = of(object);
        struct sheaf_stats s;

        (void)unused;
        sheaf_stats(self->link->dataset, &s);
        return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:d,"
                             "s:d,s:K,s:K,s:K}",
                "samples", (unsigned long long)self->samples, "copied_samples",
                (unsigned long long)self->copies, "hits",
                (unsigned long long)s.hits, "hit_bytes",
                (unsigned long long)s.hit_bytes, "misses",
                (unsigned long long)s.misses, "from_disk",
                (unsigned long long)s.from_disk, "from_origin",
                (unsigned long long)s.from_origin, "substituted",
                (unsigned long long)s.substituted, "copies",
                (unsigned long long)s.copies, "copy_bytes",
                (unsigned long long)s.copy_bytes, "miss_wait_s",
                (double)s.wait_ns * 1e-9, "pace_wait_s",
                (double)s.pace_wait_ns * 1e-9, "pinned_bytes",
                (unsigned long long)s.pinned_bytes, "grant_bytes",
                (unsigned long long)s.grant_bytes, "reconnects",
                (unsigned long long)s.reconnects);
}

static PyMethodDef methods[] = {
        { "info", info, METH_NOARGS, "Figures of the version." },
        { "path", path, METH_O, "Path of a file." },
        { "size", size, METH_O, "Size of a file in bytes." },
        { "lookup", lookup, METH_O, "Ordinal of the file at a path." },
        { "set_labels", set_labels, METH_O, "Sets runs (first, label)." },
        { "label", label, METH_O, "Label of a file, or -1." },
        { "prefetch", prefetch, METH_O, "Has files fetched; False: not now." },
        { "stats", stats, METH_NOARGS, "Counters of this process." },
        { "batch", (PyCFunction)(void (*)(void))ext_source_batch, METH_FASTCALL,
                "Samples of indices." },
        { "entries", ext_source_entries, METH_O, "What a folder holds." },
        { "read", (PyCFunction)(void (*)(void))ext_source_read, METH_FASTCALL,
                "Bytes of a range of a file." },
        { "again", (PyCFunction)(void (*)(void))ext_source_again, METH_FASTCALL,
                "Samples that another process had." },
        { "is_served", ext_source_is_served, METH_NOARGS,
                "Whether a daemon listens." },
        { "from_origin", (PyCFunction)(void (*)(void))ext_source_from_origin,
                METH_FASTCALL, "Samples without the daemon." },
        { NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
        { Py_tp_doc, (void *)"An open dataset." },
        { Py_tp_new, (void *)source_new },
        { Py_tp_dealloc, (void *)dealloc },
        { Py_tp_methods, methods },
        { Py_sq_length, (void *)length },
        { 0, NULL },
};

PyType_Spec ext_source_spec = {
        .name = "sheaf._sheaf.Source",
        .basicsize = sizeof(struct ext_source),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
        .slots = slots,
};
