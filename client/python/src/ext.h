/* SPDX-License-Identifier: Apache-2.0 */
/* The extension module sheaf._sheaf: what its files share.
 *
 *   wait.c     leaving the interpreter for calls that may wait; Ctrl-C
 *   hold.c     a pinned file: shared by a Sample and its DLPack tensors
 *   source.c   an open dataset (Source)
 *   batch.c    indices to samples, a batch at a time
 *   files.c    folders, and ranges of files
 *   origin.c   files and order without the daemon
 *   job.c      an open job (Job)
 *   group.c    a part in a group that prepares batches once (Group)
 *   memory.c   a prepared batch, mapped (Memory)
 *   sample.c   the buffer (SampleBase)
 *   dlpack.c   its capsules
 *
 * All functions are called with the interpreter's lock held unless marked
 * "no lock". Those that return a PyObject * return NULL with an exception
 * set. */
#ifndef SHEAF_CLIENT_PYTHON_EXT_H
#define SHEAF_CLIENT_PYTHON_EXT_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030b0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "client/sheaf.h"

#include <stdatomic.h>

/* Names of arguments, for parsers that promise less than they do. */
#define EXT_KEYWORDS(names) ((char **)(uintptr_t)(names))

extern PyTypeObject *ext_source_type, *ext_job_type, *ext_sample_type;

/* ---- wait.c ---- */

/* Around a call that may wait: other threads of the interpreter run, and
 * signals are looked at about every 100 ms. In between: no lock. */
struct ext_wait {
        PyThreadState *state;
        struct ext_wait *outer;
};
void ext_wait_begin(struct ext_wait *wait);
/* True: a signal's handler raised, which is to be passed on. */
bool ext_wait_end(struct ext_wait *wait);
/* For struct sheaf_session_options. No lock. */
int ext_interrupted(void *unused);

/* Raises OSError (or what errno makes of it) with the library's text.
 * @file: a str, borrowed, or NULL. Always NULL. */
PyObject *ext_raise(int64_t rc, PyObject *file);
/* The same as an object, not raised. @text: NULL: the library's. */
PyObject *ext_error_new(int64_t rc, const char *text, PyObject *file);

/* ---- hold.c ---- */

/* Session and dataset, open until the last Source, Job, Sample and tensor of
 * this process lets go. */
struct ext_link {
        _Atomic uint64_t users;
        pid_t pid; /* that opened it */
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
};
struct ext_link *ext_link_get(struct ext_link *link);
/* No lock. A forked child leaves what is its parent's alone. */
void ext_link_put(struct ext_link *link);

/* One file, pinned or copied. */
struct ext_hold {
        _Atomic uint32_t users;
        struct ext_link *link;
        struct sheaf_view view;
        void *flat; /* of a file in several pieces: all in one */
};
/* With an empty view. NULL without an exception: no memory. */
struct ext_hold *ext_hold_new(struct ext_link *link);
/* No lock. */
void ext_hold_put(struct ext_hold *hold);
/* The bytes in one piece; a file of several is copied, and its pins are given
 * back. Never NULL but with MemoryError set. */
const void *ext_hold_bytes(struct ext_hold *hold);
bool ext_hold_is_copy(const struct ext_hold *hold);

/* ---- source.c, job.c ---- */

struct ext_source {
        PyObject_HEAD struct ext_link *link;
        uint64_t *starts; /* labels: of runs of files, ascending */
        int32_t *labels;
        size_t runs;
        uint64_t samples, copies; /* handed out */
};
extern PyType_Spec ext_source_spec;
/* Path of file @ordinal as str. */
PyObject *ext_source_path(struct ext_source *source, uint64_t ordinal);

struct ext_job {
        PyObject_HEAD struct ext_source *source;
        struct sheaf_job *job;
        uint32_t samples;
        uint8_t check; /* 1 .. 255: what slots of this job carry */
};
extern PyType_Spec ext_job_spec;

/* ---- group.c, memory.c ---- */

extern PyType_Spec ext_group_spec, ext_memory_spec;

/* ---- batch.c ---- */

/* An index: bit 62 marks a slot; the epoch is in bits 40 to 61, the check in
 * bits 32 to 39 (0: none), the slot below. Everything else is a literal. */
#define EXT_SLOT_EPOCH_SHIFT 40
#define EXT_SLOT_CHECK_SHIFT 32

/* Source.batch(job, indices, cls, ids): see _sheaf.pyi. */
PyObject *ext_source_batch(
        PyObject *self, PyObject *const *args, Py_ssize_t count);

/* Source.again(numbers, cls): see _sheaf.pyi. */
PyObject *ext_source_again(
        PyObject *self, PyObject *const *args, Py_ssize_t count);

/* ---- files.c ---- */

/* Source.entries(path), Source.read(id, offset_bytes, len_bytes): see
 * _sheaf.pyi. */
PyObject *ext_source_entries(PyObject *self, PyObject *path);
PyObject *ext_source_read(
        PyObject *self, PyObject *const *args, Py_ssize_t count);

/* ---- origin.c ---- */

/* Source.is_served(), Source.from_origin(numbers, cls), strict(samples, seed,
 * epoch, slot): see _sheaf.pyi. */
PyObject *ext_source_is_served(PyObject *self, PyObject *unused);
PyObject *ext_source_from_origin(
        PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ext_strict(PyObject *module, PyObject *args);

/* ---- sample.c, dlpack.c ---- */

struct ext_sample {
        PyObject_HEAD struct ext_source *source;
        struct ext_hold *hold; /* NULL: released */
        int64_t id;            /* ordinal of the file */
        int64_t epoch, slot;   /* -1: asked for by id */
        bool exported;
};
extern PyType_Spec ext_sample_spec;
/* Of @cls, a subclass of SampleBase; takes @hold also on failure. */
PyObject *ext_sample_new(PyTypeObject *cls, struct ext_source *source,
        struct ext_hold *hold, int64_t id, int64_t epoch, int64_t slot);

/* A capsule over @hold's bytes; @versioned: DLPack 1, else what came before. */
PyObject *ext_dlpack_new(struct ext_hold *hold, bool versioned);

#endif
