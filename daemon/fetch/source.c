/* SPDX-License-Identifier: Apache-2.0 */
/* Where a chunk's bytes come from: the arena by digest, the disk, the origin.
 *
 * Threads: loop thread. */
#include "daemon/fetch/impl.h"

#define SETTLE_NS (2 * SHEAF_NS_PER_SEC)

/* The dataset's reader was let go of: the origin is presented anew, the
 * dataset goes, or the daemon stops; attaching tells which. Not at once, since
 * the old reader is still being taken down. */
void sheaf_flight_try_again(struct sheaf_flight *f)
{
        if (f->dead || TAILQ_EMPTY(&f->waits)) {
                sheaf_flight_fail(f, -ECANCELED, "nobody waits");
                return;
        }
        if (f->origin_tries)
                f->origin_tries--;
        f->state = SHEAF_FLIGHT_AGAIN;
        TAILQ_INSERT_TAIL(&f->fetcher->again, f, link);
        sheaf_fetcher_kick(f->fetcher);
}

static void origin_done(struct sheaf_origin_read *read, int rc)
{
        struct sheaf_flight *f =
                (struct sheaf_flight *)((char *)read -
                                        offsetof(struct sheaf_flight,
                                                origin_read));
        struct sheaf_fetch_version *v = f->version;

        if (rc >= 0) {
                f->ctime_moved = rc == SHEAF_ORIGIN_CTIME_MOVED;
                sheaf_flight_leave_origin(f);
                sheaf_flight_count_start(f);
                sheaf_flight_arrive(f, SHEAF_FROM_ORIGIN, read->bytes);
                return;
        }
        if (rc == -ECANCELED) {
                sheaf_flight_try_again(f);
                return;
        }
        v->counters->origin_errors++;
        /* A link where a file was listed is another tree, too. */
        if (rc == -ESTALE || rc == -ENOENT || rc == -ELOOP || rc == -EXDEV) {
                v->counters->stale++;
                sheaf_flight_fail(f, -ESTALE, sheaf_why_changed);
        } else if (rc == -ETIMEDOUT) {
                sheaf_flight_fail(f, rc, "the origin did not answer in time");
        } else if (rc == -EACCES) {
                sheaf_flight_fail(f, rc, "the dataset's owner may not read it");
        } else {
                sheaf_flight_fail(f, -EIO, "reading the origin failed");
        }
}

static void read_origin(struct sheaf_flight *f, struct sheaf_origin *origin)
{
        f->state = SHEAF_FLIGHT_READING;
        f->origin_tries++;
        f->origin_read.listing = &f->version->listing;
        f->origin_read.entry = f->entry;
        f->origin_read.index = f->index;
        f->origin_read.done = origin_done;
        sheaf_origin_read(origin, &f->origin_read);
}

/* A file that changed within two seconds of its listing may change again
 * without its times showing it; wait until they are old, by the clock as it
 * was when the listing came: it may have jumped since. Returns the time
 * (monotonic) to wait for, or 0. */
static int64_t settle_until(const struct sheaf_flight *f)
{
        const struct sheaf_listing_entry *e =
                &f->version->listing.entries[f->entry];
        int64_t age_ns, now_ns = sheaf_now_ns();

        if (!(e->flags & SHEAF_LISTING_RECENT))
                return 0;
        age_ns = now_ns + f->version->wall_offset_ns -
                 (int64_t)(e->ctime_packed >> 30) * SHEAF_NS_PER_SEC;
        /* Below zero: the origin's clock is ahead. */
        if (age_ns < -SETTLE_NS || age_ns > SETTLE_NS)
                return 0;
        return now_ns + SETTLE_NS - age_ns;
}

void sheaf_fetcher_settled(uv_timer_t *timer)
{
        struct sheaf_fetcher *fetcher = timer->data;
        struct sheaf_flight *f;

        TAILQ_FOREACH (f, &fetcher->settling, link)
                f->state = SHEAF_FLIGHT_AGAIN;
        TAILQ_CONCAT(&fetcher->again, &fetcher->settling, link);
        sheaf_fetcher_kick(fetcher);
}

void sheaf_flight_go_origin(struct sheaf_flight *f)
{
        struct sheaf_origin *origin;
        const char *why = NULL;
        int64_t until_ns;
        int rc;

        if (f->dead) {
                sheaf_flight_fail(f, -ESTALE, sheaf_why_gone);
                return;
        }
        if (!sheaf_flight_enter_origin(f))
                return;
        until_ns = settle_until(f);
        if (until_ns) {
                uint64_t ms = (uint64_t)((until_ns - sheaf_now_ns()) /
                                                 SHEAF_NS_PER_MS +
                                         1);

                f->state = SHEAF_FLIGHT_SETTLING;
                if (TAILQ_EMPTY(&f->fetcher->settling))
                        uv_timer_start(&f->fetcher->settle,
                                sheaf_fetcher_settled, ms, 0);
                TAILQ_INSERT_TAIL(&f->fetcher->settling, f, link);
                return;
        }
        rc = f->version->attach(f->version, &origin, &why);
        if (rc == -EINPROGRESS) {
                f->state = SHEAF_FLIGHT_ATTACHING;
                TAILQ_INSERT_TAIL(&f->version->attaching, f, link);
        } else if (rc) {
                sheaf_flight_fail(f, rc, why);
        } else {
                read_origin(f, origin);
        }
}

static void disk_done(struct sheaf_store_read *read, int rc)
{
        struct sheaf_flight *f =
                (struct sheaf_flight *)((char *)read -
                                        offsetof(struct sheaf_flight,
                                                disk_read));

        if (!rc) {
                sheaf_flight_arrive(f, SHEAF_FROM_DISK, read->bytes);
                return;
        }
        if (rc == -EBADMSG)
                f->version->counters->verify_failures++;
        sheaf_flight_go_origin(f);
}

/* Answers waits whose arena holds the bytes already. */
static void serve_resident(struct sheaf_flight *f, bool known)
{
        struct sheaf_fetch *w, *next;

        for (w = TAILQ_FIRST(&f->waits); w; w = next) {
                const struct sheaf_residence *res = w->residence;
                const void *bytes;
                sheaf_block block;
                uint32_t len;

                next = TAILQ_NEXT(w, link);
                if (!res)
                        continue;
                block = sheaf_table_block(res->table, f->chunk);
                if (!block && known) {
                        block = sheaf_arena_find(res->arena, &f->digest);
                        if (!block || sheaf_arena_join(res->arena, block,
                                              res->table, f->chunk))
                                continue;
                        f->version->counters->joins++;
                }
                if (!block)
                        continue;
                bytes = sheaf_arena_hold(res->arena, block, &len);
                if (w->durable &&
                        !sheaf_version_on_disk(f->version->stored, f->chunk)) {
                        /* In memory but not on disk: written from there. */
                        if (f->block) {
                                sheaf_arena_unhold(res->arena, block);
                                continue;
                        }
                        f->home = res;
                        f->block = block;
                        f->bytes = (void *)bytes;
                        continue;
                }
                sheaf_flight_answer(f, w, 0, bytes, NULL);
                sheaf_arena_unhold(res->arena, block);
        }
}

/* Waits for what memory had, and has no more. */
static void pass_over(struct sheaf_flight *f)
{
        struct sheaf_fetch *w, *next;

        for (w = TAILQ_FIRST(&f->waits); w; w = next) {
                next = TAILQ_NEXT(w, link);
                if (w->at_hand)
                        sheaf_flight_answer(f, w, -EAGAIN, NULL, NULL);
        }
}

/* Waits that want nothing but a copy on disk, and have it. */
static void serve_stored(struct sheaf_flight *f)
{
        struct sheaf_fetch *w, *next;

        for (w = TAILQ_FIRST(&f->waits); w; w = next) {
                next = TAILQ_NEXT(w, link);
                if (w->durable && !w->residence)
                        sheaf_flight_answer(f, w, 0, NULL, NULL);
        }
}

void sheaf_flight_start(struct sheaf_flight *f)
{
        const struct sheaf_digest *known =
                sheaf_version_digest(f->version->stored, f->chunk);

        bool stored = sheaf_digest_known(known) &&
                      sheaf_version_on_disk(f->version->stored, f->chunk);

        f->digest = *known;
        serve_resident(f, sheaf_digest_known(known));
        if (stored)
                serve_stored(f);
        if (!f->block)
                pass_over(f);
        if (TAILQ_EMPTY(&f->waits)) {
                sheaf_flight_free(f);
                return;
        }
        if (f->block) {
                sheaf_flight_serve(f, false);
                sheaf_flight_write_out(f);
                return;
        }
        sheaf_flight_count_start(f);
        if (stored) {
                f->state = SHEAF_FLIGHT_READING;
                f->disk_read.ref = sheaf_flight_ref(f);
                f->disk_read.done = disk_done;
                sheaf_store_read(f->fetcher->store, &f->disk_read);
        } else {
                sheaf_flight_go_origin(f);
        }
}
