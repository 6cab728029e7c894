/* SPDX-License-Identifier: Apache-2.0 */
/* Indices to samples: one round trip binds the slots of a batch, one more
 * fetches what is not in memory.
 *
 *  1 what is in memory is viewed without leaving the interpreter; the rest in
 *    one call that may wait (wait.c)
 *  2 a file that fails has an OSError in its place, not raised: what becomes
 *    of it is the caller's choice
 *  3 on an exception nothing stays pinned */
#include "client/python/src/ext.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Larger files are viewed outside the interpreter: they may be copied. */
#define LARGE_BYTES (1 << 20)

struct item {
        int64_t epoch, slot; /* -1: a literal */
        struct ext_hold *hold;
        int rc;
        char *text; /* of a failure, or NULL */
};

struct batch {
        struct ext_source *source;
        struct ext_job *job; /* NULL: none */
        PyTypeObject *cls;
        const uint64_t *ids; /* of a subset: literals to ordinals; or NULL */
        uint64_t literals;   /* how many there are */
        size_t n, slots;
        struct item *items;
        uint64_t *ordinals;
};

static void batch_free(struct batch *batch)
{
        for (size_t i = 0; batch->items && i < batch->n; i++) {
                if (batch->items[i].hold)
                        ext_hold_put(batch->items[i].hold);
                free(batch->items[i].text);
        }
        free(batch->items);
        free(batch->ordinals);
}

/* ---- indices ---- */

static int literal(struct batch *batch, int64_t index, size_t i)
{
        int64_t from = index < 0 ? index + (int64_t)batch->literals : index;

        if (from < 0 || (uint64_t)from >= batch->literals) {
                PyErr_Format(PyExc_IndexError,
                        "there are %llu samples, no sample %lld",
                        (unsigned long long)batch->literals, (long long)index);
                return -1;
        }
        batch->items[i].epoch = batch->items[i].slot = -1;
        batch->ordinals[i] = batch->ids ? batch->ids[from] : (uint64_t)from;
        return 0;
}

static int slot(struct batch *batch, int64_t index, size_t i)
{
        struct item *item = &batch->items[i];
        uint8_t check = (uint8_t)(index >> EXT_SLOT_CHECK_SHIFT);

        item->epoch = index >> EXT_SLOT_EPOCH_SHIFT & ((1 << 22) - 1);
        item->slot = index & UINT32_MAX;
        batch->slots++;
        if (!batch->job)
                return 0;
        if (check && check != batch->job->check) {
                PyErr_Format(PyExc_ValueError,
                        "slot %lld is of another dataset, split or job: each "
                        "Dataset takes slots of its own SlotSampler only "
                        "(paired data must be files of one dataset)",
                        (long long)item->slot);
                return -1;
        }
        if (item->slot < batch->job->samples)
                return 0;
        PyErr_Format(PyExc_IndexError,
                "an epoch has %u slots, there is no slot %lld",
                batch->job->samples, (long long)item->slot);
        return -1;
}

static int parse(struct batch *batch, PyObject *indices)
{
        for (size_t i = 0; i < batch->n; i++) {
                PyObject *item = PySequence_GetItem(indices, (Py_ssize_t)i);
                PyObject *number = item ? PyNumber_Index(item) : NULL;
                long long index;

                Py_XDECREF(item);
                if (!number)
                        return -1;
                index = PyLong_AsLongLong(number);
                Py_DECREF(number);
                if (index == -1 && PyErr_Occurred()) {
                        /* Beyond 64 bits there is no sample either. */
                        if (PyErr_ExceptionMatches(PyExc_OverflowError))
                                PyErr_SetString(PyExc_IndexError,
                                        "there is no such sample");
                        return -1;
                }
                if (index >> 62 == 1 ? slot(batch, index, i)
                                     : literal(batch, index, i))
                        return -1;
        }
        return 0;
}

/* ---- slots ---- */

/* The slots of one epoch, from item @first on. Returns the library's. */
static int bind_epoch(struct batch *batch, size_t first, uint32_t *slots,
        uint64_t *bound, bool *done)
{
        int64_t epoch = batch->items[first].epoch;
        size_t n = 0;
        int rc;

        for (size_t i = first; i < batch->n; i++)
                if (batch->items[i].slot >= 0 && batch->items[i].epoch == epoch)
                        slots[n++] = (uint32_t)batch->items[i].slot;
        rc = sheaf_job_bind(
                batch->job->job, (uint64_t)epoch, slots, n, 0, bound);
        n = 0;
        for (size_t i = first; !rc && i < batch->n; i++)
                if (batch->items[i].slot >= 0 &&
                        batch->items[i].epoch == epoch) {
                        batch->ordinals[i] = bound[n++];
                        done[i] = true;
                }
        return rc;
}

static void bind_failed(int rc)
{
        char text[1024];
        PyObject *error;

        if (rc != -ESTALE) {
                ext_raise(rc, NULL);
                return;
        }
        snprintf(text, sizeof(text),
                "%.512s; a new run needs a Dataset with another job=NAME",
                sheaf_last_error());
        error = ext_error_new(rc, text, NULL);
        if (error)
                PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_XDECREF(error);
}

static int bind_slots(struct batch *batch)
{
        uint32_t *slots = calloc(batch->n, sizeof(*slots));
        uint64_t *bound = calloc(batch->n, sizeof(*bound));
        bool *done = calloc(batch->n, sizeof(*done));
        struct ext_wait wait;
        int rc = slots && bound && done ? 0 : -ENOMEM;

        ext_wait_begin(&wait);
        for (size_t i = 0; !rc && i < batch->n; i++)
                if (batch->items[i].slot >= 0 && !done[i])
                        rc = bind_epoch(batch, i, slots, bound, done);
        if (!ext_wait_end(&wait) && rc)
                bind_failed(rc);
        free(slots);
        free(bound);
        free(done);
        return PyErr_Occurred() ? -1 : 0;
}

/* ---- files ---- */

static size_t view_present(struct batch *batch)
{
        struct sheaf_dataset *dataset = batch->source->link->dataset;
        size_t missing = 0;

        for (size_t i = 0; i < batch->n; i++) {
                struct item *item = &batch->items[i];

                item->hold = ext_hold_new(batch->source->link);
                if (!item->hold) {
                        PyErr_NoMemory();
                        return 0;
                }
                item->rc = -EAGAIN;
                if (sheaf_dataset_size(dataset, batch->ordinals[i]) <=
                        LARGE_BYTES)
                        item->rc = sheaf_view_try(dataset, batch->ordinals[i],
                                0, UINT64_MAX, &item->hold->view);
                missing += item->rc != 0;
        }
        return missing;
}

/* What sheaf_view_batch works on. */
struct misses {
        size_t n;
        size_t *at;
        uint64_t *ordinals;
        struct sheaf_view *views;
        int *rc;
        char **text; /* of failures; NULL: not known */
};

static void misses_free(struct misses *misses)
{
        for (size_t i = 0; misses->text && i < misses->n; i++)
                free(misses->text[i]);
        free(misses->at);
        free(misses->ordinals);
        free(misses->views);
        free(misses->rc);
        free(misses->text);
}

static int misses_init(
        struct misses *misses, const struct batch *batch, size_t missing)
{
        *misses = (struct misses){
                .at = calloc(missing, sizeof(size_t)),
                .ordinals = calloc(missing, sizeof(uint64_t)),
                .views = calloc(missing, sizeof(struct sheaf_view)),
                .rc = calloc(missing, sizeof(int)),
                .text = calloc(missing, sizeof(char *)),
        };
        if (!misses->at || !misses->ordinals || !misses->views || !misses->rc ||
                !misses->text) {
                misses_free(misses);
                PyErr_NoMemory();
                return -1;
        }
        for (size_t i = 0; i < batch->n; i++)
                if (batch->items[i].rc) {
                        misses->at[misses->n] = i;
                        misses->ordinals[misses->n++] = batch->ordinals[i];
                }
        return 0;
}

/* Of several failures the library keeps the last one's text. Files that fail
 * at once are asked for once more, each by itself; what is of the daemon or of
 * time is the same for all. No lock. */
static void explain(struct sheaf_dataset *dataset, struct misses *misses)
{
        char last[1024];

        snprintf(last, sizeof(last), "%s", sheaf_last_error());
        for (size_t i = 0; i < misses->n; i++) {
                int *rc = &misses->rc[i];
                const char *text = last;

                if (*rc == -EIO || *rc == -ESTALE || *rc == -EBADMSG) {
                        *rc = sheaf_view_file(dataset, misses->ordinals[i],
                                &misses->views[i]);
                        text = sheaf_last_error();
                }
                if (*rc)
                        misses->text[i] = strdup(text);
        }
}

static int view_missing(struct batch *batch, size_t missing)
{
        struct sheaf_dataset *dataset = batch->source->link->dataset;
        struct misses misses;
        struct ext_wait wait;
        int64_t rc;

        if (misses_init(&misses, batch, missing))
                return -1;
        ext_wait_begin(&wait);
        rc = sheaf_view_batch(
                dataset, misses.ordinals, misses.n, misses.views, misses.rc);
        if (rc >= 0 && rc < (int64_t)misses.n)
                explain(dataset, &misses);
        if (!ext_wait_end(&wait) && rc < 0)
                ext_raise(rc, NULL);
        for (size_t i = 0; i < misses.n; i++) {
                struct item *item = &batch->items[misses.at[i]];

                item->rc = misses.rc[i];
                item->text = misses.text[i];
                misses.text[i] = NULL;
                sheaf_view_move(&item->hold->view, &misses.views[i]);
        }
        misses_free(&misses);
        return PyErr_Occurred() ? -1 : 0;
}

/* ---- the list ---- */

static PyObject *failure(struct batch *batch, size_t i)
{
        PyObject *key = ext_source_path(batch->source, batch->ordinals[i]);
        PyObject *error;

        if (!key)
                return NULL;
        error = ext_error_new(batch->items[i].rc,
                batch->items[i].text ? batch->items[i].text
                                     : strerror(-batch->items[i].rc),
                key);
        Py_DECREF(key);
        return error;
}

static PyObject *element(struct batch *batch, size_t i)
{
        struct item *item = &batch->items[i];
        struct ext_hold *hold = item->hold;

        if (item->rc)
                return failure(batch, i);
        item->hold = NULL;
        return ext_sample_new(batch->cls, batch->source, hold,
                (int64_t)batch->ordinals[i], item->epoch, item->slot);
}

/* (samples, [(position, ordinal, epoch, slot), ...] of failures) */
static PyObject *result(struct batch *batch)
{
        PyObject *list = PyList_New((Py_ssize_t)batch->n);
        PyObject *failed = PyList_New(0);

        for (size_t i = 0; list && failed && i < batch->n; i++) {
                bool fails = batch->items[i].rc != 0;
                PyObject *value = element(batch, i);

                if (!value || PyList_SetItem(list, (Py_ssize_t)i, value))
                        break;
                if (!fails)
                        continue;
                value = Py_BuildValue("(nKLL)", (Py_ssize_t)i,
                        (unsigned long long)batch->ordinals[i],
                        (long long)batch->items[i].epoch,
                        (long long)batch->items[i].slot);
                if (!value || PyList_Append(failed, value))
                        Py_CLEAR(failed);
                Py_XDECREF(value);
        }
        if (PyErr_Occurred()) {
                Py_XDECREF(list);
                Py_XDECREF(failed);
                return NULL;
        }
        return Py_BuildValue("(NN)", list, failed);
}

static PyObject *view_all(struct batch *batch)
{
        size_t missing = view_present(batch);

        if (PyErr_Occurred() || (missing && view_missing(batch, missing)))
                return NULL;
        return result(batch);
}

static int batch_init(struct batch *batch)
{
        batch->items = calloc(batch->n + 1, sizeof(*batch->items));
        batch->ordinals = calloc(batch->n + 1, sizeof(*batch->ordinals));
        if (batch->items && batch->ordinals)
                return 0;
        PyErr_NoMemory();
        return -1;
}

static PyObject *run(struct batch *batch, PyObject *indices)
{
        if (batch_init(batch) || parse(batch, indices))
                return NULL;
        /* The caller opens the job, and asks again. */
        if (batch->slots && !batch->job)
                Py_RETURN_NONE;
        if (batch->slots && bind_slots(batch))
                return NULL;
        return view_all(batch);
}

PyObject *ext_source_batch(
        PyObject *self, PyObject *const *args, Py_ssize_t count)
{
        struct batch batch = { .source = (struct ext_source *)self };
        Py_buffer ids = { 0 };
        PyObject *answer;
        Py_ssize_t n;

        if (count != 4 || !PyType_Check(args[2]) ||
                !PyType_IsSubtype((PyTypeObject *)args[2], ext_sample_type) ||
                (args[0] != Py_None &&
                        !PyObject_TypeCheck(args[0], ext_job_type)))
                return PyErr_Format(PyExc_TypeError,
                        "batch(job or None, indices, class, ids or None)");
        batch.job = args[0] != Py_None ? (struct ext_job *)args[0] : NULL;
        batch.cls = (PyTypeObject *)args[2];
        n = PySequence_Size(args[1]);
        if (n < 0)
                return NULL;
        batch.n = (size_t)n;
        batch.literals = sheaf_dataset_files(batch.source->link->dataset);
        if (args[3] != Py_None) {
                if (PyObject_GetBuffer(args[3], &ids, PyBUF_SIMPLE))
                        return NULL;
                batch.ids = ids.buf;
                batch.literals = (uint64_t)ids.len / sizeof(*batch.ids);
        }
        answer = run(&batch, args[1]);
        batch_free(&batch);
        if (ids.obj)
                PyBuffer_Release(&ids);
        return answer;
}

PyObject *ext_source_again(
        PyObject *self, PyObject *const *args, Py_ssize_t count)
{
        struct batch batch = { .source = (struct ext_source *)self };
        PyObject *answer = NULL;
        Py_buffer numbers;

        if (count != 2 || !PyType_Check(args[1]) ||
                !PyType_IsSubtype((PyTypeObject *)args[1], ext_sample_type))
                return PyErr_Format(PyExc_TypeError, "again(numbers, class)");
        if (PyObject_GetBuffer(args[0], &numbers, PyBUF_SIMPLE))
                return NULL;
        batch.cls = (PyTypeObject *)args[1];
        batch.n = (size_t)numbers.len / (3 * sizeof(int64_t));
        if (batch_init(&batch) == 0) {
                const int64_t *at = numbers.buf;

                for (size_t i = 0; i < batch.n; i++, at += 3) {
                        batch.ordinals[i] = (uint64_t)at[0];
                        batch.items[i].epoch = at[1];
                        batch.items[i].slot = at[2];
                }
                answer = view_all(&batch);
        }
        batch_free(&batch);
        PyBuffer_Release(&numbers);
        return answer;
}
