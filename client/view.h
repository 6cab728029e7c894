/* SPDX-License-Identifier: Apache-2.0 */
/* Counting into a dataset's meter, shared by the hot path and the miss path.
 * Any thread, no lock. */
#ifndef SHEAF_CLIENT_VIEW_H
#define SHEAF_CLIENT_VIEW_H

#include "client/session.h"

/* Adds to counters of the calling thread's stripe: plain relaxed stores,
 * since nobody else writes it; threads beyond the stripes share the last. */
static inline void sheaf_meter_add(
        struct sheaf_meter *meter, size_t field_offset, uint64_t n)
{
        uint32_t number = sheaf_thread.number;
        bool own = number && number < SHEAF_METER_STRIPES;
        size_t stripe = own ? number - 1 : SHEAF_METER_STRIPES - 1;
        _Atomic uint64_t *counter =
                (_Atomic uint64_t *)((char *)&meter->stripe[stripe] +
                                     field_offset);

        if (SHEAF_LIKELY(own))
                atomic_store_explicit(counter,
                        atomic_load_explicit(counter, memory_order_relaxed) + n,
                        memory_order_relaxed);
        else
                atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

#define SHEAF_COUNT(meter, field, n)                                           \
        sheaf_meter_add(                                                       \
                (meter), offsetof(struct sheaf_meter_stripe, field), (n))

void sheaf_view_count_miss(
        struct sheaf_dataset *dataset, uint64_t chunks, uint64_t wait_ns);

#endif
