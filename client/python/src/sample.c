/* SPDX-License-Identifier: Apache-2.0 */
/* SampleBase: a file's bytes as a read-only buffer. sheaf.Sample derives from
 * it and adds what is made of bytes.
 *
 *  1 the bytes stay as they are until the Sample and all buffers, arrays and
 *    tensors over it are gone
 *  2 consumers may give a buffer back and go on to use it (torch.frombuffer
 *    does), so once exported a Sample is released by its end only */
#include "client/python/src/ext.h"

#include <string.h>

PyObject *ext_sample_new(PyTypeObject *cls, struct ext_source *source,
        struct ext_hold *hold, int64_t id, int64_t epoch, int64_t slot)
{
        allocfunc alloc = (allocfunc)PyType_GetSlot(cls, Py_tp_alloc);
        struct ext_sample *self = (struct ext_sample *)alloc(cls, 0);

        if (!self) {
                ext_hold_put(hold);
                return NULL;
        }
        Py_INCREF((PyObject *)source);
        self->source = source;
        self->hold = hold;
        self->id = id;
        self->epoch = epoch;
        self->slot = slot;
        source->samples++;
        source->copies += hold->view.copied;
        return (PyObject *)self;
}

static void dealloc(PyObject *object)
{
        struct ext_sample *self = (struct ext_sample *)object;
        PyTypeObject *type = Py_TYPE(object);

        if (self->hold)
                ext_hold_put(self->hold);
        Py_XDECREF((PyObject *)self->source);
        ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
        Py_DECREF(type);
}

static struct ext_hold *held(struct ext_sample *self)
{
        if (!self->hold)
                PyErr_SetString(PyExc_ValueError,
                        "the Sample was released; take its bytes before, or "
                        "leave it to end by itself");
        return self->hold;
}

static int get_buffer(PyObject *object, Py_buffer *buffer, int flags)
{
        struct ext_sample *self = (struct ext_sample *)object;
        struct ext_hold *hold = held(self);
        const void *bytes = hold ? ext_hold_bytes(hold) : NULL;

        if (!bytes) {
                buffer->obj = NULL;
                return -1;
        }
        if (PyBuffer_FillInfo(buffer, object, (void *)(uintptr_t)bytes,
                    (Py_ssize_t)hold->view.len_bytes, 1, flags))
                return -1;
        self->exported = true;
        return 0;
}

static Py_ssize_t length(PyObject *object)
{
        struct ext_hold *hold = held((struct ext_sample *)object);

        return hold ? (Py_ssize_t)hold->view.len_bytes : -1;
}

static PyObject *release(PyObject *object, PyObject *unused)
{
        struct ext_sample *self = (struct ext_sample *)object;
        struct ext_hold *hold = self->hold;

        (void)unused;
        if (hold && !self->exported) {
                self->hold = NULL;
                ext_hold_put(hold);
        }
        Py_RETURN_NONE;
}

/* Whether the consumer takes DLPack 1. -1: an exception is set. */
static int wants_versioned(PyObject *max_version)
{
        PyObject *major;
        long value;

        if (!max_version || max_version == Py_None)
                return 0;
        major = PySequence_GetItem(max_version, 0);
        if (!major)
                return -1;
        value = PyLong_AsLong(major);
        Py_DECREF(major);
        if (value == -1 && PyErr_Occurred())
                return -1;
        return value >= 1;
}

static PyObject *dlpack(PyObject *object, PyObject *args, PyObject *keywords)
{
        static const char *const names[] = { "stream", "max_version",
                "dl_device", "copy", NULL };
        PyObject *stream = NULL, *version = NULL, *device = NULL, *copy = NULL;
        struct ext_sample *self = (struct ext_sample *)object;
        struct ext_hold *hold = held(self);
        PyObject *capsule;
        int versioned;

        if (!hold)
                return NULL;
        if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$OOOO:__dlpack__",
                    EXT_KEYWORDS(names), &stream, &version, &device, &copy))
                return NULL;
        if (copy == Py_True) {
                PyErr_SetString(PyExc_BufferError,
                        "a Sample exports its bytes in place; .tensor() makes "
                        "a copy");
                return NULL;
        }
        versioned = wants_versioned(version);
        if (versioned < 0)
                return NULL;
        capsule = ext_dlpack_new(hold, versioned);
        self->exported |= capsule != NULL;
        return capsule;
}

static PyObject *dlpack_device(PyObject *object, PyObject *unused)
{
        (void)object;
        (void)unused;
        return Py_BuildValue("(ii)", 1, 0);
}

static PyObject *get_is_copy(PyObject *object, void *unused)
{
        struct ext_hold *hold = held((struct ext_sample *)object);

        (void)unused;
        return hold ? PyBool_FromLong(ext_hold_is_copy(hold)) : NULL;
}

static PyObject *get_id(PyObject *object, void *unused)
{
        (void)unused;
        return PyLong_FromLongLong(((struct ext_sample *)object)->id);
}

static PyObject *number_or_none(int64_t number)
{
        if (number < 0)
                Py_RETURN_NONE;
        return PyLong_FromLongLong(number);
}

static PyObject *get_epoch(PyObject *object, void *unused)
{
        (void)unused;
        return number_or_none(((struct ext_sample *)object)->epoch);
}

static PyObject *get_slot(PyObject *object, void *unused)
{
        (void)unused;
        return number_or_none(((struct ext_sample *)object)->slot);
}

static PyObject *get_source(PyObject *object, void *unused)
{
        struct ext_sample *self = (struct ext_sample *)object;

        (void)unused;
        return Py_NewRef((PyObject *)self->source);
}

static PyObject *get_key(PyObject *object, void *unused)
{
        struct ext_sample *self = (struct ext_sample *)object;

        (void)unused;
        return ext_source_path(self->source, (uint64_t)self->id);
}

static PyGetSetDef getters[] = {
        { "id", get_id, NULL, "Ordinal of the file.", NULL },
        { "epoch", get_epoch, NULL, "Of the slot, or None.", NULL },
        { "slot", get_slot, NULL, "Slot that it was bound to, or None.", NULL },
        { "key", get_key, NULL, "Path below the dataset's root.", NULL },
        { "is_copy", get_is_copy, NULL, "Whether the bytes are a private copy.",
                NULL },
        { "source", get_source, NULL, "The Source it is of.", NULL },
        { NULL, NULL, NULL, NULL, NULL },
};

static PyMethodDef methods[] = {
        { "release", release, METH_NOARGS,
                "Gives the pin back, unless a buffer was taken." },
        { "__dlpack__", (PyCFunction)(void (*)(void))dlpack,
                METH_VARARGS | METH_KEYWORDS, "Capsule over the bytes." },
        { "__dlpack_device__", dlpack_device, METH_NOARGS, "(1, 0): CPU." },
        { NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
        { Py_tp_doc,
                (void *)"A file's bytes, read-only, pinned in shared memory." },
        { Py_tp_dealloc, (void *)dealloc },
        { Py_tp_getset, getters },
        { Py_tp_methods, methods },
        { Py_sq_length, (void *)length },
        { Py_bf_getbuffer, (void *)get_buffer },
        { 0, NULL },
};

PyType_Spec ext_sample_spec = {
        .name = "sheaf._sheaf.SampleBase",
        .basicsize = sizeof(struct ext_sample),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE |
                 Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = slots,
};
