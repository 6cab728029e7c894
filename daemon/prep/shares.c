/* SPDX-License-Identifier: Apache-2.0 */
/* What users have of the room for prepared batches.
 *
 *  1 bytes and descriptors are shared evenly by the users who have groups; what
 *    is done through a grant is its maker's
 *  2 what is staged is within the bounds, whatever was offered and whoever came
 *    later: of who has most that batch goes which is needed last. It is
 *    prepared again when there is room
 *
 * Threads: loop thread. */
#include "daemon/grants.h"
#include "daemon/prep/internal.h"

static void share_out(struct sheaf_prep *prep)
{
        uint64_t all = prep->daemon->config->prep_bytes;
        struct sheaf_prep_owner *owner;

        LIST_FOREACH (owner, &prep->owners, link) {
                owner->purse.single_max = all;
                owner->purse.bytes_max = all / prep->owner_count;
                owner->purse.files_max =
                        SHEAF_MAX(prep->files_max / prep->owner_count, 1);
                owner->more = true;
        }
}

static uid_t payer_of(const struct sheaf_conn *conn)
{
        if (!conn->who.grant)
                return conn->who.uid;
        return sheaf_grants_owner(conn->daemon->grants, conn->who.grant);
}

struct sheaf_prep_owner *sheaf_prep_owner_get(const struct sheaf_conn *conn)
{
        struct sheaf_prep *prep = conn->daemon->prep;
        struct sheaf_prep_owner *owner;
        uid_t uid = payer_of(conn);

        LIST_FOREACH (owner, &prep->owners, link)
                if (owner->uid == uid)
                        return owner;
        owner = sheaf_new(struct sheaf_prep_owner, 1);
        if (!owner)
                return NULL;
        owner->uid = uid;
        LIST_INSERT_HEAD(&prep->owners, owner, link);
        prep->owner_count++;
        share_out(prep);
        return owner;
}

void sheaf_prep_owner_forget(
        struct sheaf_prep *prep, struct sheaf_prep_owner *owner)
{
        if (owner->groups)
                return;
        LIST_REMOVE(owner, link);
        free(owner);
        prep->owner_count--;
        share_out(prep);
}

/* ---- the bounds ---- */

static uint64_t more_of(const struct sheaf_prep_staged *staged, bool by_files)
{
        return by_files ? staged->files : staged->bytes;
}

static void count(struct sheaf_prep *prep, struct sheaf_prep_staged *ret_all)
{
        struct sheaf_prep_staged all = { 0 };
        struct sheaf_prep_owner *owner;
        struct sheaf_prep_room *room;

        LIST_FOREACH (owner, &prep->owners, link)
                owner->staged = (struct sheaf_prep_staged){ 0 };
        LIST_FOREACH (room, &prep->rooms, link) {
                struct sheaf_prep_group_stats stats;

                sheaf_prep_group_stats(room->group, &stats);
                room->staged = (struct sheaf_prep_staged){ stats.staged_bytes,
                        stats.staged };
                room->owner->staged.bytes += stats.staged_bytes;
                room->owner->staged.files += stats.staged;
                all.bytes += stats.staged_bytes;
                all.files += stats.staged;
        }
        *ret_all = all;
}

/* The room that has most of the owner who has most. */
static struct sheaf_prep_room *fullest(struct sheaf_prep *prep, bool by_files)
{
        struct sheaf_prep_owner *owner, *of = LIST_FIRST(&prep->owners);
        struct sheaf_prep_room *room, *best = NULL;

        LIST_FOREACH (owner, &prep->owners, link)
                if (more_of(&owner->staged, by_files) >
                        more_of(&of->staged, by_files))
                        of = owner;
        LIST_FOREACH (room, &prep->rooms, link)
                if (room->owner == of &&
                        (!best || more_of(&room->staged, by_files) >
                                          more_of(&best->staged, by_files)))
                        best = room;
        return best;
}

struct sheaf_prep_room *sheaf_prep_trim(struct sheaf_prep *prep)
{
        struct sheaf_prep_staged all;
        struct sheaf_prep_room *room;
        bool by_files;

        if (!prep->grown)
                return NULL;
        count(prep, &all);
        by_files = all.bytes <= prep->daemon->config->prep_bytes;
        if (by_files && all.files <= prep->files_max) {
                prep->grown = false;
                return NULL;
        }
        room = fullest(prep, by_files);
        return room && sheaf_prep_shed(room->group) ? room : NULL;
}
