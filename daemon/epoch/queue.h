/* SPDX-License-Identifier: Apache-2.0 */
/* A queue of sample numbers. */
#ifndef SHEAF_DAEMON_EPOCH_QUEUE_H
#define SHEAF_DAEMON_EPOCH_QUEUE_H

#include "proto/base.h"

struct sheaf_queue {
        uint32_t *items; /* ring of cap, a power of two */
        uint32_t head, count, cap;
};

/* Room for one more, so that the next push cannot fail. */
static inline int sheaf_queue_reserve(struct sheaf_queue *queue)
{
        uint32_t cap = queue->cap ? 2 * queue->cap : 16;
        uint32_t *items;

        if (queue->count < queue->cap)
                return 0;
        items = sheaf_new(uint32_t, cap);
        if (!items)
                return -ENOMEM;
        for (uint32_t i = 0; i < queue->count; i++)
                items[i] = queue->items[(queue->head + i) & (queue->cap - 1)];
        free(queue->items);
        queue->items = items;
        queue->head = 0;
        queue->cap = cap;
        return 0;
}

static inline void sheaf_queue_push(struct sheaf_queue *queue, uint32_t item)
{
        queue->items[(queue->head + queue->count++) & (queue->cap - 1)] = item;
}

static inline uint32_t sheaf_queue_pop(struct sheaf_queue *queue)
{
        uint32_t item = queue->items[queue->head];

        queue->head = (queue->head + 1) & (queue->cap - 1);
        queue->count--;
        return item;
}

static inline void sheaf_queue_free(struct sheaf_queue *queue)
{
        free(queue->items);
        *queue = (struct sheaf_queue){ 0 };
}

#endif
