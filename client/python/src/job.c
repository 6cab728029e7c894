/* SPDX-License-Identifier: Apache-2.0 */
/* Job: a run's order of samples, joined by one process. */
#include "client/python/src/ext.h"

#include <stdlib.h>

static struct ext_job *of(PyObject *object)
{
        return (struct ext_job *)object;
}

struct opening {
        struct sheaf_job_options options;
        PyObject *source, *subset;
        unsigned long long seed;
        unsigned int check;
        int order, replay, pace;
};

static int parse_opening(
        PyObject *args, PyObject *keywords, struct opening *opening)
{
        static const char *const names[] = { "source", "name", "order", "seed",
                "window", "ahead", "check", "subset", "replay", "pace", NULL };
        struct sheaf_job_options *options = &opening->options;

        if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!si|KIIIOpp:Job",
                    EXT_KEYWORDS(names), ext_source_type, &opening->source,
                    &options->name, &opening->order, &opening->seed,
                    &options->window, &options->ahead, &opening->check,
                    &opening->subset, &opening->replay, &opening->pace))
                return -1;
        options->order = (enum sheaf_job_order)opening->order;
        options->seed = opening->seed;
        options->replay = opening->replay;
        options->pace = opening->pace;
        return 0;
}

/* The bitmap of a subset; its length is checked. NULL: all, or an error. */
static const uint8_t *subset_of(const struct opening *opening, Py_ssize_t files)
{
        char *bytes;
        Py_ssize_t len;

        if (!opening->subset || opening->subset == Py_None ||
                PyBytes_AsStringAndSize(opening->subset, &bytes, &len))
                return NULL;
        if (len == (files + 7) / 8)
                return (const uint8_t *)bytes;
        PyErr_SetString(PyExc_ValueError, "the subset is not of this dataset");
        return NULL;
}

static PyObject *job_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
        allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
        struct opening opening = { 0 };
        struct ext_job *self;
        struct ext_wait wait;
        int rc;

        if (parse_opening(args, keywords, &opening))
                return NULL;
        opening.options.subset =
                subset_of(&opening, PySequence_Size(opening.source));
        if (PyErr_Occurred())
                return NULL;
        self = (struct ext_job *)alloc(type, 0);
        if (!self)
                return NULL;
        self->source = (struct ext_source *)Py_NewRef(opening.source);
        self->check = (uint8_t)opening.check;
        ext_wait_begin(&wait);
        rc = sheaf_job_open(
                self->source->link->dataset, &opening.options, &self->job);
        if (ext_wait_end(&wait) || rc) {
                if (!PyErr_Occurred())
                        ext_raise(rc, NULL);
                Py_DECREF((PyObject *)self);
                return NULL;
        }
        self->samples = sheaf_job_samples(self->job);
        return (PyObject *)self;
}

static void dealloc(PyObject *object)
{
        PyTypeObject *type = Py_TYPE(object);

        sheaf_job_close(of(object)->job);
        Py_XDECREF((PyObject *)of(object)->source);
        ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
        Py_DECREF(type);
}

static Py_ssize_t length(PyObject *object)
{
        return of(object)->samples;
}

/* ((epoch, yielded, samples, run, run, check), bitmap) */
static PyObject *save(PyObject *object, PyObject *args)
{
        struct ext_job *self = of(object);
        struct sheaf_job_state state = { 0 };
        unsigned long long epoch;
        unsigned int yielded;
        struct ext_wait wait;
        PyObject *bitmap;
        int rc;

        if (!PyArg_ParseTuple(args, "KI:save", &epoch, &yielded))
                return NULL;
        bitmap = PyBytes_FromStringAndSize(
                NULL, (Py_ssize_t)((self->samples + 7) / 8));
        if (!bitmap)
                return NULL;
        ext_wait_begin(&wait);
        rc = sheaf_job_save(self->job, epoch, yielded, &state,
                (uint8_t *)PyBytes_AsString(bitmap));
        if (ext_wait_end(&wait) || rc) {
                if (!PyErr_Occurred())
                        ext_raise(rc, NULL);
                Py_DECREF(bitmap);
                return NULL;
        }
        return Py_BuildValue("((KIIKKK)N)", (unsigned long long)state.epoch,
                state.yielded, state.samples, (unsigned long long)state.run[0],
                (unsigned long long)state.run[1],
                (unsigned long long)state.check, bitmap);
}

static PyObject *restore(PyObject *object, PyObject *args)
{
        struct ext_job *self = of(object);
        struct sheaf_job_state state = { 0 };
        unsigned long long epoch, run[2], check;
        const char *bitmap = NULL;
        Py_ssize_t len = 0;
        struct ext_wait wait;
        int rc;

        if (!PyArg_ParseTuple(args, "(KIIKKK)z#:restore", &epoch,
                    &state.yielded, &state.samples, &run[0], &run[1], &check,
                    &bitmap, &len))
                return NULL;
        if (bitmap && len != (Py_ssize_t)((self->samples + 7) / 8))
                return PyErr_Format(PyExc_ValueError,
                        "the state's bitmap is of another number of samples");
        state.epoch = epoch;
        state.run[0] = run[0];
        state.run[1] = run[1];
        state.check = check;
        ext_wait_begin(&wait);
        rc = sheaf_job_restore(self->job, &state, (const uint8_t *)bitmap);
        if (ext_wait_end(&wait))
                return NULL;
        if (rc)
                return ext_raise(rc, NULL);
        Py_RETURN_NONE;
}

static PyObject *warning(PyObject *object, PyObject *unused)
{
        char text[1024];

        (void)unused;
        if (!sheaf_job_warning(of(object)->job, text, sizeof(text)))
                Py_RETURN_NONE;
        return PyUnicode_FromString(text);
}

static PyMethodDef methods[] = {
        { "save", save, METH_VARARGS, "State of an epoch, and its bitmap." },
        { "restore", restore, METH_VARARGS, "Goes on from a state." },
        { "warning", warning, METH_NOARGS, "The daemon's last, or None." },
        { NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
        { Py_tp_doc,
                (void *)"A job; len() is the number of slots of an epoch." },
        { Py_tp_new, (void *)job_new },
        { Py_tp_dealloc, (void *)dealloc },
        { Py_tp_methods, methods },
        { Py_sq_length, (void *)length },
        { 0, NULL },
};

PyType_Spec ext_job_spec = {
        .name = "sheaf._sheaf.Job",
        .basicsize = sizeof(struct ext_job),
        .flags = Py_TPFLAGS_DEFAULT,
        .slots = slots,
};
