/* SPDX-License-Identifier: Apache-2.0 */
/* Digest -> place in memory: what the catalog does not hold yet. A place of
 * all zero is a removal. Not thread-safe; one that nobody changes any more
 * may be read by any thread. */
#ifndef SHEAF_DAEMON_STORE_PENDING_H
#define SHEAF_DAEMON_STORE_PENDING_H

#include "proto/layout_disk.h"

struct sheaf_pending_item {
        struct sheaf_digest digest;
        struct sheaf_place place;
};

struct sheaf_pending {
        struct sheaf_pending_item *slots; /* free: digest of all zero */
        size_t slot_count, count;
};

void sheaf_pending_clear(struct sheaf_pending *pending);
/* Adds or replaces. -ENOMEM. */
SHEAF_MUST_CHECK int sheaf_pending_put(struct sheaf_pending *pending,
        const struct sheaf_digest *digest, const struct sheaf_place *place);
/* NULL when not in the table. Valid until the next put. */
const struct sheaf_place *sheaf_pending_find(
        const struct sheaf_pending *pending, const struct sheaf_digest *digest);
/* All items in digest order, in new memory. -ENOMEM. */
SHEAF_MUST_CHECK int sheaf_pending_sorted(const struct sheaf_pending *pending,
        struct sheaf_pending_item **ret_items);

#endif
