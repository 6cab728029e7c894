/* SPDX-License-Identifier: Apache-2.0 */
/* The module sheaf._sheaf. */
#include "client/python/src/ext.h"

/* One interpreter: torch has no others either. */
PyTypeObject *ext_source_type, *ext_job_type, *ext_sample_type;

static int add(
        PyObject *m, PyType_Spec *spec, const char *name, PyTypeObject **ret)
{
        PyObject *type = PyType_FromSpec(spec);

        if (!type)
                return -1;
        *ret = (PyTypeObject *)type;
        return PyModule_AddObjectRef(m, name, type);
}

static PyMethodDef methods[] = {
        { "strict", ext_strict, METH_VARARGS, "Sample of a strict slot." },
        { NULL, NULL, 0, NULL },
};

static struct PyModuleDef module = {
        PyModuleDef_HEAD_INIT,
        .m_name = "sheaf._sheaf",
        .m_doc = "libsheaf for the package sheaf; not for direct use.",
        .m_size = -1,
        .m_methods = methods,
};

PyMODINIT_FUNC PyInit__sheaf(void);

PyMODINIT_FUNC PyInit__sheaf(void)
{
        PyObject *m = PyModule_Create(&module);

        if (!m)
                return NULL;
        if (add(m, &ext_source_spec, "Source", &ext_source_type) ||
                add(m, &ext_job_spec, "Job", &ext_job_type) ||
                add(m, &ext_sample_spec, "SampleBase", &ext_sample_type) ||
                PyModule_AddStringConstant(m, "VERSION", SHEAF_VERSION)) {
                Py_DECREF(m);
                return NULL;
        }
        return m;
}
