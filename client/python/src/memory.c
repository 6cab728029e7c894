/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: a file of a prepared batch, mapped privately: a buffer that may be
 * written to, which nobody else sees.
 *
 *  1 the mapping lives as long as the object, which every tensor and array
 *    made of it holds; no descriptor stays open for it
 *  2 files are sealed: none shrinks below a mapping */
#include "client/python/src/ext.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

struct memory {
        PyObject_HEAD void *bytes; /* NULL: of an empty file */
        size_t len;
};

static struct memory *of(PyObject *object)
{
        return (struct memory *)object;
}

static PyObject *memory_new(
        PyTypeObject *type, PyObject *args, PyObject *keywords)
{
        static const char *const names[] = { "fd", NULL };
        allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
        struct memory *self;
        struct stat st;
        int fd;

        if (!PyArg_ParseTupleAndKeywords(
                    args, keywords, "i:Memory", EXT_KEYWORDS(names), &fd))
                return NULL;
        if (fstat(fd, &st))
                return PyErr_SetFromErrno(PyExc_OSError);
        self = (struct memory *)alloc(type, 0);
        if (!self || !st.st_size)
                return (PyObject *)self;
        self->bytes = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE,
                MAP_PRIVATE, fd, 0);
        if (self->bytes == MAP_FAILED) {
                self->bytes = NULL;
                PyErr_SetFromErrno(PyExc_OSError);
                Py_DECREF((PyObject *)self);
                return NULL;
        }
        self->len = (size_t)st.st_size;
        return (PyObject *)self;
}

static void dealloc(PyObject *object)
{
        PyTypeObject *type = Py_TYPE(object);

        if (of(object)->bytes)
                munmap(of(object)->bytes, of(object)->len);
        ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
        Py_DECREF(type);
}

static int get_buffer(PyObject *object, Py_buffer *view, int flags)
{
        struct memory *self = of(object);
        static char none;

        return PyBuffer_FillInfo(view, object,
                self->bytes ? self->bytes : &none, (Py_ssize_t)self->len, 0,
                flags);
}

static Py_ssize_t length(PyObject *object)
{
        return (Py_ssize_t)of(object)->len;
}

static PyType_Slot slots[] = {
        { Py_tp_doc, (void *)"A memory file, mapped privately." },
        { Py_tp_new, (void *)memory_new },
        { Py_tp_dealloc, (void *)dealloc },
        { Py_bf_getbuffer, (void *)get_buffer },
        { Py_sq_length, (void *)length },
        { 0, NULL },
};

PyType_Spec ext_memory_spec = {
        .name = "sheaf._sheaf.Memory",
        .basicsize = sizeof(struct memory),
        .flags = Py_TPFLAGS_DEFAULT,
        .slots = slots,
};
