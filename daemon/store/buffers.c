/* SPDX-License-Identifier: Apache-2.0 */
/* Read buffers: a fixed number in four sizes, so that reads never allocate
 * and their memory is bounded (36 MiB of address space, touched on use). */
#include "daemon/store/buffers.h"

static const struct {
        size_t cap_bytes;
        unsigned int count;
} classes[SHEAF_BUFFER_CLASSES] = {
        { 16 << 10, 64 },
        { 136 << 10, 48 },
        { 520 << 10, 12 },
        { (4 << 20) + (8 << 10), 6 },
};

int sheaf_buffers_init(struct sheaf_buffers *buffers)
{
        *buffers = (struct sheaf_buffers){ 0 };
        for (unsigned int c = 0; c < SHEAF_BUFFER_CLASSES; c++) {
                size_t bytes = classes[c].cap_bytes * classes[c].count;
                void *region = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

                if (region == MAP_FAILED) {
                        sheaf_buffers_deinit(buffers);
                        return -ENOMEM;
                }
                buffers->regions[c].iov_base = region;
                buffers->regions[c].iov_len = bytes;
                buffers->all[c] =
                        sheaf_new(struct sheaf_buffer, classes[c].count);
                if (!buffers->all[c]) {
                        sheaf_buffers_deinit(buffers);
                        return -ENOMEM;
                }
                for (unsigned int i = 0; i < classes[c].count; i++) {
                        struct sheaf_buffer *b = &buffers->all[c][i];

                        b->bytes = (char *)region + i * classes[c].cap_bytes;
                        b->cap_bytes = classes[c].cap_bytes;
                        b->class = c;
                        sheaf_buffers_give(buffers, b);
                }
        }
        return 0;
}

void sheaf_buffers_deinit(struct sheaf_buffers *buffers)
{
        for (unsigned int c = 0; c < SHEAF_BUFFER_CLASSES; c++) {
                if (buffers->regions[c].iov_base)
                        munmap(buffers->regions[c].iov_base,
                                buffers->regions[c].iov_len);
                free(buffers->all[c]);
        }
        *buffers = (struct sheaf_buffers){ 0 };
}

unsigned int sheaf_buffers_class(size_t len_bytes)
{
        unsigned int c = 0;

        while (c < SHEAF_BUFFER_CLASSES - 1 && classes[c].cap_bytes < len_bytes)
                c++;
        return c;
}

struct sheaf_buffer *sheaf_buffers_take(
        struct sheaf_buffers *buffers, unsigned int class)
{
        for (unsigned int c = class; c < SHEAF_BUFFER_CLASSES; c++) {
                struct sheaf_buffer *b = buffers->free[c];

                if (b) {
                        buffers->free[c] = b->next;
                        return b;
                }
        }
        return NULL;
}

void sheaf_buffers_give(
        struct sheaf_buffers *buffers, struct sheaf_buffer *buffer)
{
        buffer->next = buffers->free[buffer->class];
        buffers->free[buffer->class] = buffer;
}
