/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of a run that hold another sample than their target: a hash table
 * with open addressing, eight bytes an entry, at most three quarters full. */
#ifndef SHEAF_DAEMON_EPOCH_REPLACED_H
#define SHEAF_DAEMON_EPOCH_REPLACED_H

#include "proto/base.h"

struct sheaf_replaced {
        uint64_t *entries; /* slot + 1 in the upper half, sample below; 0 */
        uint32_t count, cap;
};

static inline uint32_t sheaf_replaced_at_(
        const struct sheaf_replaced *replaced, uint32_t slot)
{
        uint32_t at = slot * UINT32_C(0x9e3779b1);

        at ^= at >> 16;
        for (at &= replaced->cap - 1; replaced->entries[at];
                at = (at + 1) & (replaced->cap - 1))
                if (replaced->entries[at] >> 32 == (uint64_t)slot + 1)
                        break;
        return at;
}

/* Room for one more. 0 or -ENOMEM. */
static inline int sheaf_replaced_reserve(struct sheaf_replaced *replaced)
{
        struct sheaf_replaced wider = { .count = replaced->count };

        if (replaced->count + 1 <= replaced->cap / 4 * 3)
                return 0;
        wider.cap = replaced->cap ? 2 * replaced->cap : 64;
        wider.entries = sheaf_new(uint64_t, wider.cap);
        if (!wider.entries)
                return -ENOMEM;
        for (uint32_t i = 0; i < replaced->cap; i++) {
                uint64_t entry = replaced->entries[i];

                if (entry)
                        wider.entries[sheaf_replaced_at_(
                                &wider, (uint32_t)(entry >> 32) - 1)] = entry;
        }
        free(replaced->entries);
        *replaced = wider;
        return 0;
}

/* After a reserve; @slot is new. */
static inline void sheaf_replaced_put(
        struct sheaf_replaced *replaced, uint32_t slot, uint32_t sample)
{
        replaced->entries[sheaf_replaced_at_(replaced, slot)] =
                ((uint64_t)slot + 1) << 32 | sample;
        replaced->count++;
}

static inline bool sheaf_replaced_get(const struct sheaf_replaced *replaced,
        uint32_t slot, uint32_t *ret_sample)
{
        uint64_t entry;

        if (!replaced->count)
                return false;
        entry = replaced->entries[sheaf_replaced_at_(replaced, slot)];
        if (!entry)
                return false;
        *ret_sample = (uint32_t)entry;
        return true;
}

#endif
