/* SPDX-License-Identifier: Apache-2.0 */
/* DLPack capsules over a pinned file: one dimension of bytes in host memory.
 * The layouts are the public ABI of https://dmlc.github.io/dlpack.
 *
 *  1 a capsule has a reference of its own to the pin
 *  2 its deleter needs no lock of the interpreter: consumers run it wherever
 *    the last tensor ends
 *
 * The flag for read-only memory is set, but torch (as of 2.13) ignores it. */
#include "client/python/src/ext.h"

#include <stdlib.h>

#define DL_CPU            1
#define DL_UINT           1
#define DL_FLAG_READ_ONLY 1
#define DL_FLAG_IS_COPIED 2

struct dl_tensor {
        void *data;
        int32_t device_type, device_id;
        int32_t ndim;
        uint8_t type_code, type_bits;
        uint16_t type_lanes;
        int64_t *shape, *strides;
        uint64_t byte_offset;
};

struct dl_managed {
        struct dl_tensor tensor;
        void *context;
        void (*deleter)(struct dl_managed *self);
};

struct dl_managed_versioned {
        uint32_t major, minor;
        void *context;
        void (*deleter)(struct dl_managed_versioned *self);
        uint64_t flags;
        struct dl_tensor tensor;
};

struct exported {
        union {
                struct dl_managed old;
                struct dl_managed_versioned versioned;
        };
        struct ext_hold *hold;
        int64_t shape, stride;
};

static void let_go(struct exported *exported)
{
        ext_hold_put(exported->hold);
        free(exported);
}

static void delete_old(struct dl_managed *self)
{
        let_go(self->context);
}

static void delete_versioned(struct dl_managed_versioned *self)
{
        let_go(self->context);
}

/* A consumer renames the capsule; one that kept its name was not consumed. */
static void end_old(PyObject *capsule)
{
        if (PyCapsule_IsValid(capsule, "dltensor"))
                let_go(PyCapsule_GetPointer(capsule, "dltensor"));
}

static void end_versioned(PyObject *capsule)
{
        if (PyCapsule_IsValid(capsule, "dltensor_versioned"))
                let_go(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
}

static void fill(
        struct exported *exported, struct dl_tensor *tensor, const void *bytes)
{
        exported->shape = (int64_t)exported->hold->view.len_bytes;
        exported->stride = 1;
        *tensor = (struct dl_tensor){
                .data = (void *)(uintptr_t)bytes,
                .device_type = DL_CPU,
                .ndim = 1,
                .type_code = DL_UINT,
                .type_bits = 8,
                .type_lanes = 1,
                .shape = &exported->shape,
                .strides = &exported->stride,
        };
}

PyObject *ext_dlpack_new(struct ext_hold *hold, bool versioned)
{
        const void *bytes = ext_hold_bytes(hold);
        struct exported *exported;
        PyObject *capsule;

        if (!bytes)
                return NULL;
        exported = calloc(1, sizeof(*exported));
        if (!exported)
                return PyErr_NoMemory();
        atomic_fetch_add_explicit(&hold->users, 1, memory_order_relaxed);
        exported->hold = hold;
        if (versioned) {
                exported->versioned.major = 1;
                exported->versioned.context = exported;
                exported->versioned.deleter = delete_versioned;
                exported->versioned.flags = DL_FLAG_READ_ONLY;
                if (ext_hold_is_copy(hold))
                        exported->versioned.flags |= DL_FLAG_IS_COPIED;
                fill(exported, &exported->versioned.tensor, bytes);
                capsule = PyCapsule_New(
                        exported, "dltensor_versioned", end_versioned);
        } else {
                exported->old.context = exported;
                exported->old.deleter = delete_old;
                fill(exported, &exported->old.tensor, bytes);
                capsule = PyCapsule_New(exported, "dltensor", end_old);
        }
        if (!capsule)
                let_go(exported);
        return capsule;
}
