/* SPDX-License-Identifier: Apache-2.0 */
/* Page-aligned read buffers in a few sizes, made once. Loop thread. */
#ifndef SHEAF_DAEMON_STORE_BUFFERS_H
#define SHEAF_DAEMON_STORE_BUFFERS_H

#include "proto/base.h"

#include <sys/uio.h>

#define SHEAF_BUFFER_CLASSES 4

struct sheaf_buffer {
        void *bytes;
        size_t cap_bytes;
        unsigned int class; /* also the index of its registered region */
        struct sheaf_buffer *next;
};

struct sheaf_buffers {
        struct iovec regions[SHEAF_BUFFER_CLASSES];
        struct sheaf_buffer *all[SHEAF_BUFFER_CLASSES];
        struct sheaf_buffer *free[SHEAF_BUFFER_CLASSES];
};

SHEAF_MUST_CHECK int sheaf_buffers_init(struct sheaf_buffers *buffers);
void sheaf_buffers_deinit(struct sheaf_buffers *buffers);
/* The smallest class that holds @len_bytes, at most 4 MiB + 8 KiB. */
unsigned int sheaf_buffers_class(size_t len_bytes);
/* One of that class or of a larger one; NULL when all are taken. */
struct sheaf_buffer *sheaf_buffers_take(
        struct sheaf_buffers *buffers, unsigned int class);
void sheaf_buffers_give(
        struct sheaf_buffers *buffers, struct sheaf_buffer *buffer);

#endif
