/* SPDX-License-Identifier: Apache-2.0 */
/* An open-addressing table with linear probing.
 *
 *  1 at most half of the slots are taken, so probes end
 *  2 nothing is ever taken out: removals are entries of their own, since
 *    they must reach the catalog too */
#include "daemon/store/pending.h"

#define SLOTS_MIN 1024

void sheaf_pending_clear(struct sheaf_pending *pending)
{
        free(pending->slots);
        *pending = (struct sheaf_pending){ 0 };
}

static struct sheaf_pending_item *slot_of(
        const struct sheaf_pending *pending, const struct sheaf_digest *digest)
{
        size_t mask = pending->slot_count - 1;
        size_t i = sheaf_digest_prefix(digest) & mask;

        while (sheaf_digest_known(&pending->slots[i].digest) &&
                !sheaf_digest_equal(&pending->slots[i].digest, digest))
                i = (i + 1) & mask;
        return &pending->slots[i];
}

static int grow(struct sheaf_pending *pending)
{
        struct sheaf_pending bigger = {
                .slot_count =
                        SHEAF_MAX(pending->slot_count * 2, (size_t)SLOTS_MIN),
                .count = pending->count,
        };

        bigger.slots = sheaf_new(struct sheaf_pending_item, bigger.slot_count);
        if (!bigger.slots)
                return -ENOMEM;
        for (size_t i = 0; i < pending->slot_count; i++) {
                if (sheaf_digest_known(&pending->slots[i].digest))
                        *slot_of(&bigger, &pending->slots[i].digest) =
                                pending->slots[i];
        }
        free(pending->slots);
        *pending = bigger;
        return 0;
}

int sheaf_pending_put(struct sheaf_pending *pending,
        const struct sheaf_digest *digest, const struct sheaf_place *place)
{
        struct sheaf_pending_item *slot;

        if (2 * (pending->count + 1) > pending->slot_count) {
                int rc = grow(pending);

                if (rc)
                        return rc;
        }
        slot = slot_of(pending, digest);
        if (!sheaf_digest_known(&slot->digest)) {
                slot->digest = *digest;
                pending->count++;
        }
        slot->place = *place;
        return 0;
}

const struct sheaf_place *sheaf_pending_find(
        const struct sheaf_pending *pending, const struct sheaf_digest *digest)
{
        struct sheaf_pending_item *slot;

        if (!pending->count)
                return NULL;
        slot = slot_of(pending, digest);
        return sheaf_digest_known(&slot->digest) ? &slot->place : NULL;
}

static int compare(const void *a, const void *b)
{
        return memcmp(a, b, SHEAF_DIGEST_BYTES);
}

int sheaf_pending_sorted(const struct sheaf_pending *pending,
        struct sheaf_pending_item **ret_items)
{
        struct sheaf_pending_item *items =
                sheaf_new(struct sheaf_pending_item, pending->count + 1);
        size_t n = 0;

        if (!items)
                return -ENOMEM;
        for (size_t i = 0; i < pending->slot_count; i++) {
                if (sheaf_digest_known(&pending->slots[i].digest))
                        items[n++] = pending->slots[i];
        }
        qsort(items, n, sizeof(*items), compare);
        *ret_items = items;
        return 0;
}
