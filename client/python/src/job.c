/* SPDX-License-Identifier: Apache-2.0 */
/* Job: a run's order of samples, joined by one process. */
#include "client/python/src/ext.h"

#include <stdlib.h>

static struct ext_job *of(PyObject *object)
{
        return (struct ext_job *)object;
}

static PyObject *job_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
        static const char *const names[] = { "source", "name", "order", "seed",
                "window", "ahead", "check", NULL };
        allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
        struct sheaf_job_options options = { 0 };
        unsigned long long seed = 0;
        unsigned int check = 0;
        struct ext_job *self;
        struct ext_wait wait;
        PyObject *source;
        int order = 0, rc;

        if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!si|KIII:Job",
                    EXT_KEYWORDS(names), ext_source_type, &source,
                    &options.name, &order, &seed, &options.window,
                    &options.ahead, &check))
                return NULL;
        options.order = (enum sheaf_job_order)order;
        options.seed = seed;
        self = (struct ext_job *)alloc(type, 0);
        if (!self)
                return NULL;
        self->source = (struct ext_source *)Py_NewRef(source);
        self->check = (uint8_t)check;
        ext_wait_begin(&wait);
        rc = sheaf_job_open(self->source->link->dataset, &options, &self->job);
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

static PyType_Slot slots[] = {
        { Py_tp_doc,
                (void *)"A job; len() is the number of slots of an epoch." },
        { Py_tp_new, (void *)job_new },
        { Py_tp_dealloc, (void *)dealloc },
        { Py_sq_length, (void *)length },
        { 0, NULL },
};

PyType_Spec ext_job_spec = {
        .name = "sheaf._sheaf.Job",
        .basicsize = sizeof(struct ext_job),
        .flags = Py_TPFLAGS_DEFAULT,
        .slots = slots,
};
