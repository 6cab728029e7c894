/* SPDX-License-Identifier: Apache-2.0 */
/* The module sheaf._sheaf, in one interpreter: the types are one for all of a
 * process, waits find their thread's state again, and torch has no others
 * either. Another one gets an ImportError. */
#include "client/python/src/ext.h"

PyTypeObject *ext_source_type, *ext_job_type, *ext_sample_type;
static PyTypeObject *group_type, *memory_type;

static int add(
        PyObject *m, PyType_Spec *spec, const char *name, PyTypeObject **ret)
{
        if (!*ret)
                *ret = (PyTypeObject *)PyType_FromSpec(spec);
        return *ret ? PyModule_AddObjectRef(m, name, (PyObject *)*ret) : -1;
}

/* Once more where the module was taken out of sys.modules: the same types. */
static int fill(PyObject *m)
{
        if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
                PyErr_SetString(PyExc_ImportError,
                        "sheaf works in the main interpreter only, as torch "
                        "does: use threads or processes");
                return -1;
        }
        if (add(m, &ext_source_spec, "Source", &ext_source_type) ||
                add(m, &ext_job_spec, "Job", &ext_job_type) ||
                add(m, &ext_sample_spec, "SampleBase", &ext_sample_type) ||
                add(m, &ext_group_spec, "Group", &group_type) ||
                add(m, &ext_memory_spec, "Memory", &memory_type))
                return -1;
        return PyModule_AddStringConstant(m, "VERSION", SHEAF_VERSION);
}

static PyMethodDef methods[] = {
        { "strict", ext_strict, METH_VARARGS, "Sample of a strict slot." },
        { NULL, NULL, 0, NULL },
};

static PyModuleDef_Slot slots[] = {
        { Py_mod_exec, (void *)fill },
        { 0, NULL },
};

static struct PyModuleDef module = {
        PyModuleDef_HEAD_INIT,
        .m_name = "sheaf._sheaf",
        .m_doc = "libsheaf for the package sheaf; not for direct use.",
        .m_methods = methods,
        .m_slots = slots,
};

PyMODINIT_FUNC PyInit__sheaf(void);

PyMODINIT_FUNC PyInit__sheaf(void)
{
        return PyModuleDef_Init(&module);
}
