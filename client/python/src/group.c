/* SPDX-License-Identifier: Apache-2.0 */
/* Group: a process's part in a group that prepares batches once, as a member
 * or as a worker of one.
 *
 *  1 what was taken, a batch or the text of one that failed, is kept until its
 *    taker says that it has it, or takes another one: whatever a signal's
 *    handler raises in between, a member gets each batch once
 *  2 a forked child leaves its parent's part alone
 *
 * One thread at a time. */
#include "client/python/src/ext.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRAITS_MAX 32

struct group {
        PyObject_HEAD struct ext_source *source;
        struct sheaf_group *group; /* NULL: left */
        pid_t pid;                 /* that joined */
        uint64_t floor;
        uint64_t kept_batch;
        PyObject *kept; /* NULL, or what was taken */
        int kept_fd;    /* of it; -1: none */
};

static struct group *of(PyObject *object)
{
        return (struct group *)object;
}

/* ---- joining ---- */

struct joining {
        struct sheaf_group_options options;
        struct sheaf_group_trait traits[TRAITS_MAX];
        PyObject *source, *list;
        const char *member;
        Py_ssize_t member_bytes;
        int worker;
};

static int parse_traits(struct joining *joining)
{
        Py_ssize_t n = PyList_Size(joining->list);

        if (n < 0)
                return -1;
        if (n > TRAITS_MAX) {
                PyErr_Format(PyExc_ValueError, "%zd traits, at most %d", n,
                        TRAITS_MAX);
                return -1;
        }
        for (Py_ssize_t i = 0; i < n; i++)
                if (!PyArg_ParseTuple(PyList_GetItem(joining->list, i),
                            "ss;traits: (name, value)",
                            &joining->traits[i].name,
                            &joining->traits[i].value))
                        return -1;
        joining->options.traits = joining->traits;
        joining->options.trait_count = (size_t)n;
        return 0;
}

static int parse(PyObject *args, PyObject *keywords, struct joining *joining)
{
        static const char *const names[] = { "source", "name", "traits",
                "member", "worker", "batches", "ahead", "lease_ms",
                "patience_ms", "rank", "world", "members", NULL };
        struct sheaf_group_options *o = &joining->options;

        if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!sOy#pIIIIIII:Group",
                    EXT_KEYWORDS(names), ext_source_type, &joining->source,
                    &o->name, &joining->list, &joining->member,
                    &joining->member_bytes, &joining->worker, &o->batches,
                    &o->ahead, &o->lease_ms, &o->patience_ms, &o->rank,
                    &o->world, &o->members))
                return -1;
        if (joining->member_bytes != sizeof(o->member)) {
                PyErr_SetString(PyExc_ValueError, "a member has 16 bytes");
                return -1;
        }
        memcpy(o->member, joining->member, sizeof(o->member));
        o->worker = joining->worker;
        return parse_traits(joining);
}

static PyObject *group_new(
        PyTypeObject *type, PyObject *args, PyObject *keywords)
{
        allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
        struct joining joining = { 0 };
        struct ext_wait wait;
        struct group *self;
        int rc;

        if (parse(args, keywords, &joining))
                return NULL;
        self = (struct group *)alloc(type, 0);
        if (!self)
                return NULL;
        self->kept_fd = -1;
        self->pid = getpid();
        self->source = (struct ext_source *)Py_NewRef(joining.source);
        ext_wait_begin(&wait);
        rc = sheaf_group_open(self->source->link->dataset, &joining.options,
                &self->floor, &self->group);
        if (ext_wait_end(&wait) || rc) {
                if (!PyErr_Occurred())
                        ext_raise(rc, NULL);
                Py_DECREF((PyObject *)self);
                return NULL;
        }
        return (PyObject *)self;
}

static void forget(struct group *self)
{
        if (self->kept_fd >= 0)
                close(self->kept_fd);
        self->kept_fd = -1;
        Py_CLEAR(self->kept);
}

static void leave_now(struct group *self)
{
        struct sheaf_group *group = self->group;
        PyThreadState *state;

        self->group = NULL;
        forget(self);
        if (!group || self->pid != getpid())
                return;
        state = PyEval_SaveThread();
        sheaf_group_close(group);
        PyEval_RestoreThread(state);
}

static PyObject *leave(PyObject *object, PyObject *unused)
{
        (void)unused;
        leave_now(of(object));
        Py_RETURN_NONE;
}

static void dealloc(PyObject *object)
{
        PyTypeObject *type = Py_TYPE(object);

        leave_now(of(object));
        Py_XDECREF((PyObject *)of(object)->source);
        ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
        Py_DECREF(type);
}

/* The part, or NULL with an exception: it was left. */
static struct sheaf_group *joined(PyObject *object)
{
        if (!of(object)->group)
                PyErr_SetString(PyExc_ValueError, "the group was left");
        return of(object)->group;
}

static PyObject *get_floor(PyObject *object, void *unused)
{
        (void)unused;
        if (of(object)->floor == UINT64_MAX)
                Py_RETURN_NONE;
        return PyLong_FromUnsignedLongLong(of(object)->floor);
}

/* ---- members ---- */

static PyObject *begin(PyObject *object, PyObject *number)
{
        unsigned long long batch = PyLong_AsUnsignedLongLong(number);
        struct sheaf_group *group = joined(object);
        struct ext_wait wait;
        int rc;

        if (!group || PyErr_Occurred())
                return NULL;
        forget(of(object));
        ext_wait_begin(&wait);
        rc = sheaf_group_begin(group, batch);
        if (ext_wait_end(&wait))
                return NULL;
        if (rc)
                return ext_raise(rc, NULL);
        Py_RETURN_NONE;
}

/* (state, descriptor or -1, text or None) */
static PyObject *answer(enum sheaf_group_state state, int fd)
{
        if (state != SHEAF_GROUP_FAILED)
                return Py_BuildValue("iiO", (int)state, fd, Py_None);
        return Py_BuildValue("iiN", (int)state, -1,
                PyUnicode_DecodeUTF8(sheaf_last_error(),
                        (Py_ssize_t)strlen(sheaf_last_error()), "replace"));
}

/* @made: a reference, which becomes @self's; NULL: no memory. */
static void keep(struct group *self, uint64_t batch, int fd, PyObject *made)
{
        self->kept_batch = batch;
        self->kept_fd = fd;
        self->kept = made;
}

static PyObject *take(PyObject *object, PyObject *args)
{
        enum sheaf_group_state state = SHEAF_GROUP_PREPARING;
        struct sheaf_group *group = joined(object);
        struct group *self = of(object);
        PyObject *made, *type, *value, *trace;
        unsigned long long batch;
        long long wait_ms;
        struct ext_wait wait;
        int may_prepare, rc, fd = -1;

        if (!group || !PyArg_ParseTuple(
                              args, "KLp:take", &batch, &wait_ms, &may_prepare))
                return NULL;
        if (self->kept && self->kept_batch == batch)
                return Py_NewRef(self->kept);
        forget(self);
        ext_wait_begin(&wait);
        rc = sheaf_group_take(group, batch, wait_ms, may_prepare, &state, &fd);
        ext_wait_end(&wait);
        if (rc)
                return PyErr_Occurred() ? NULL : ext_raise(rc, NULL);
        PyErr_Fetch(&type, &value, &trace);
        made = answer(state, fd);
        if (state == SHEAF_GROUP_TAKEN || state == SHEAF_GROUP_FAILED)
                keep(self, batch, fd, Py_XNewRef(made));
        if (!type)
                return made;
        PyErr_Restore(type, value, trace);
        Py_XDECREF(made);
        return NULL;
}

static PyObject *done(PyObject *object, PyObject *unused)
{
        (void)unused;
        forget(of(object));
        Py_RETURN_NONE;
}

/* ---- workers ---- */

static PyObject *lease(PyObject *object, PyObject *number)
{
        long long wait_ms = PyLong_AsLongLong(number);
        struct sheaf_group *group = joined(object);
        struct ext_wait wait;
        uint64_t batch;
        int rc;

        if (!group || PyErr_Occurred())
                return NULL;
        ext_wait_begin(&wait);
        rc = sheaf_group_lease(group, wait_ms, &batch);
        if (ext_wait_end(&wait))
                return NULL;
        if (rc == -EAGAIN)
                Py_RETURN_NONE;
        return rc ? ext_raise(rc, NULL) : PyLong_FromUnsignedLongLong(batch);
}

static PyObject *offer(PyObject *object, PyObject *args)
{
        struct sheaf_group *group = joined(object);
        unsigned long long batch;
        const char *schema;
        struct ext_wait wait;
        int fd, rc;

        if (!group ||
                !PyArg_ParseTuple(args, "Kis:offer", &batch, &fd, &schema))
                return NULL;
        ext_wait_begin(&wait);
        rc = sheaf_group_offer(group, batch, fd, schema);
        if (ext_wait_end(&wait))
                return NULL;
        if (rc && rc != -ESTALE)
                return ext_raise(rc, NULL);
        return PyBool_FromLong(rc == 0);
}

static PyObject *fail(PyObject *object, PyObject *args)
{
        struct sheaf_group *group = joined(object);
        unsigned long long batch;
        const char *why;
        struct ext_wait wait;
        int rc;

        if (!group || !PyArg_ParseTuple(args, "Ks:fail", &batch, &why))
                return NULL;
        ext_wait_begin(&wait);
        rc = sheaf_group_fail(group, batch, why);
        if (ext_wait_end(&wait))
                return NULL;
        if (rc && rc != -ESTALE)
                return ext_raise(rc, NULL);
        return PyBool_FromLong(rc == 0);
}

static PyObject *stats(PyObject *object, PyObject *number)
{
        long long wait_ms = PyLong_AsLongLong(number);
        struct sheaf_group *group = joined(object);
        struct sheaf_group_stats s;
        struct ext_wait wait;
        int rc;

        if (!group || PyErr_Occurred())
                return NULL;
        ext_wait_begin(&wait);
        rc = sheaf_group_stats(group, wait_ms, &s);
        if (ext_wait_end(&wait))
                return NULL;
        if (rc)
                return ext_raise(rc, NULL);
        return Py_BuildValue(
                "{s:I,s:I,s:I,s:K,s:K,s:O,s:K,s:K,s:K,s:K,s:K,s:K}", "members",
                s.members, "workers", s.workers, "staged", s.staged,
                "staged_bytes", (unsigned long long)s.staged_bytes, "floor",
                (unsigned long long)s.floor, "detached",
                s.detached ? Py_True : Py_False, "prepared",
                (unsigned long long)s.prepared, "taken",
                (unsigned long long)s.taken, "redone",
                (unsigned long long)s.redone, "private",
                (unsigned long long)s.private_, "late",
                (unsigned long long)s.late, "failed",
                (unsigned long long)s.failed);
}

static PyMethodDef methods[] = {
        { "begin", begin, METH_O, "Member: what it takes from now on." },
        { "take", take, METH_VARARGS, "Member: takes a batch." },
        { "done", done, METH_NOARGS, "Member: it has what it took." },
        { "lease", lease, METH_O, "Worker: the next batch, or None." },
        { "offer", offer, METH_VARARGS, "A leased batch is prepared." },
        { "fail", fail, METH_VARARGS, "A leased batch cannot be prepared." },
        { "stats", stats, METH_O, "Figures of the group." },
        { "leave", leave, METH_NOARGS, "Leaves." },
        { NULL, NULL, 0, NULL },
};

static PyGetSetDef attributes[] = {
        { "floor", get_floor, NULL, "What others want, at joining.", NULL },
        { NULL, NULL, NULL, NULL, NULL },
};

static PyType_Slot slots[] = {
        { Py_tp_doc, (void *)"A part in a group that prepares once." },
        { Py_tp_new, (void *)group_new },
        { Py_tp_dealloc, (void *)dealloc },
        { Py_tp_methods, methods },
        { Py_tp_getset, attributes },
        { 0, NULL },
};

PyType_Spec ext_group_spec = {
        .name = "sheaf._sheaf.Group",
        .basicsize = sizeof(struct group),
        .flags = Py_TPFLAGS_DEFAULT,
        .slots = slots,
};
