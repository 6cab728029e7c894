/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of a run that hold another sample than their target: few as a hash
 * table with open addressing, eight bytes an entry, at most three quarters
 * full; many as an array of as many bits a slot as a sample's number needs. */
#ifndef SHEAF_DAEMON_EPOCH_REPLACED_H
#define SHEAF_DAEMON_EPOCH_REPLACED_H

#include "proto/base.h"

struct sheaf_replaced {
        uint64_t *entries; /* slot + 1 in the upper half, sample below; 0 */
        uint64_t *packed;  /* sample + 1 of each slot; 0: its target; or NULL */
        uint32_t count, cap;
        uint32_t slots;
        uint32_t bits; /* of a packed value */
};

static inline void sheaf_replaced_init(
        struct sheaf_replaced *replaced, uint32_t slots)
{
        *replaced = (struct sheaf_replaced){ .slots = slots,
                .bits = 32 - (uint32_t)__builtin_clz(slots) };
}

static inline void sheaf_replaced_free(struct sheaf_replaced *replaced)
{
        free(sheaf_steal(&replaced->entries));
        free(sheaf_steal(&replaced->packed));
}

/* Of the array, with a word to read beyond the end. */
static inline size_t sheaf_replaced_packed_bytes_(
        const struct sheaf_replaced *replaced)
{
        return ((uint64_t)replaced->slots * replaced->bits / 64 + 2) * 8;
}

static inline size_t sheaf_replaced_bytes(const struct sheaf_replaced *replaced)
{
        return replaced->cap * sizeof(*replaced->entries) +
               (replaced->packed ? sheaf_replaced_packed_bytes_(replaced) : 0);
}

static inline uint64_t sheaf_replaced_unpack_(
        const struct sheaf_replaced *replaced, uint32_t slot)
{
        uint64_t at = (uint64_t)slot * replaced->bits;
        const uint64_t *word = &replaced->packed[at / 64];
        uint64_t value = word[0] >> at % 64;

        if (at % 64 + replaced->bits > 64)
                value |= word[1] << (64 - at % 64);
        return value & ((UINT64_C(1) << replaced->bits) - 1);
}

/* The place is empty. */
static inline void sheaf_replaced_pack_(
        struct sheaf_replaced *replaced, uint32_t slot, uint32_t sample)
{
        uint64_t at = (uint64_t)slot * replaced->bits;
        uint64_t *word = &replaced->packed[at / 64];

        word[0] |= ((uint64_t)sample + 1) << at % 64;
        if (at % 64 + replaced->bits > 64)
                word[1] |= ((uint64_t)sample + 1) >> (64 - at % 64);
}

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

static inline int sheaf_replaced_become_packed_(struct sheaf_replaced *replaced)
{
        replaced->packed = calloc(1, sheaf_replaced_packed_bytes_(replaced));
        if (!replaced->packed)
                return -ENOMEM;
        for (uint32_t i = 0; i < replaced->cap; i++) {
                uint64_t entry = replaced->entries[i];

                if (entry)
                        sheaf_replaced_pack_(replaced,
                                (uint32_t)(entry >> 32) - 1, (uint32_t)entry);
        }
        free(sheaf_steal(&replaced->entries));
        replaced->cap = 0;
        return 0;
}

/* Room for one more. 0 or -ENOMEM. */
static inline int sheaf_replaced_reserve(struct sheaf_replaced *replaced)
{
        struct sheaf_replaced wider = *replaced;

        if (replaced->packed || replaced->count + 1 <= replaced->cap / 4 * 3)
                return 0;
        wider.cap = replaced->cap ? 2 * replaced->cap : 64;
        if (wider.cap * sizeof(uint64_t) >=
                sheaf_replaced_packed_bytes_(replaced))
                return sheaf_replaced_become_packed_(replaced);
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
        if (replaced->packed)
                sheaf_replaced_pack_(replaced, slot, sample);
        else
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
        if (replaced->packed) {
                entry = sheaf_replaced_unpack_(replaced, slot);
                if (!entry)
                        return false;
                *ret_sample = (uint32_t)entry - 1;
                return true;
        }
        entry = replaced->entries[sheaf_replaced_at_(replaced, slot)];
        if (!entry)
                return false;
        *ret_sample = (uint32_t)entry;
        return true;
}

#endif
