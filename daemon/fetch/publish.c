/* SPDX-License-Identifier: Apache-2.0 */
/* From verified bytes to those who wait, and to the disk.
 *
 * Threads: loop thread. */
#include "daemon/fetch/impl.h"

/* Without progress for this long the disk is taken to be stuck, and chunks
 * go unwritten rather than hold the arena. */
#define WRITE_STUCK_NS (2 * SHEAF_NS_PER_SEC)
/* How long after its answer a write begins, at least: some 30 small reads of
 * the same reader, so that he cannot tell whose it is. */
#define WRITE_MS 10
#define WRITE_NS (WRITE_MS * SHEAF_NS_PER_MS)
/* A turn of the loop copies so much into buffers of the disk. */
#define WRITE_TURN_BYTES (4 * SHEAF_MIB)
/* More does not wait, where reads are faster than that. */
#define UNWRITTEN_BYTES (16 * SHEAF_MIB)

/* Brings verified bytes into the arena of @res; 0 or -ENOBUFS, -ENOMEM. */
static int settle_in(struct sheaf_flight *f, const struct sheaf_residence *res,
        const void *bytes)
{
        sheaf_block block = sheaf_table_block(res->table, f->chunk);
        void *room;
        int rc;

        if (block)
                return 0;
        block = sheaf_arena_find(res->arena, &f->digest);
        if (block) {
                f->version->counters->joins++;
                return sheaf_arena_join(
                        res->arena, block, res->table, f->chunk);
        }
        rc = sheaf_arena_place(res->space, f->len_bytes, &block, &room);
        if (rc)
                return rc;
        memcpy(room, bytes, f->len_bytes);
        sheaf_arena_commit(res->space, block, &f->digest, res->table, f->chunk);
        return 0;
}

/* Answers those that wait; @durable also those that wait for the disk. */
void sheaf_flight_serve(struct sheaf_flight *f, bool durable)
{
        struct sheaf_fetch *w, *next;

        for (w = TAILQ_FIRST(&f->waits); w; w = next) {
                int rc = 0;

                next = TAILQ_NEXT(w, link);
                if (w->durable && !durable)
                        continue;
                if (w->residence)
                        rc = settle_in(f, w->residence, f->bytes);
                sheaf_flight_answer(
                        f, w, rc, f->bytes, rc ? sheaf_why_memory : NULL);
        }
}

static void release_bytes(struct sheaf_flight *f)
{
        if (f->block)
                sheaf_arena_unhold(f->home->arena, f->block);
        f->block = 0;
        f->bytes = NULL;
}

static void flight_end(struct sheaf_flight *f)
{
        sheaf_flight_serve(f, true);
        release_bytes(f);
        sheaf_flight_free(f);
}

static void write_done(struct sheaf_store_write *write, int rc)
{
        struct sheaf_flight *f =
                (struct sheaf_flight *)((char *)write -
                                        offsetof(struct sheaf_flight, write));

        (void)rc; /* the store counts and tells why it refused */
        f->fetcher->writing--;
        f->fetcher->writing_bytes -= f->len_bytes;
        f->fetcher->write_progress_ns = sheaf_now_ns();
        flight_end(f);
}

static bool is_stuck(const struct sheaf_fetcher *fetcher)
{
        return sheaf_now_ns() - fetcher->write_progress_ns >= WRITE_STUCK_NS;
}

bool sheaf_fetcher_wait_disk(const struct sheaf_fetcher *fetcher)
{
        return fetcher->writing_bytes >= fetcher->bytes_max &&
               !is_stuck(fetcher);
}

/* What was under way when the disk fell behind may still wait for it. */
static bool may_write(const struct sheaf_fetcher *fetcher)
{
        if (fetcher->writing_bytes < fetcher->bytes_max)
                return true;
        return fetcher->writing_bytes < 2 * fetcher->bytes_max &&
               !is_stuck(fetcher);
}

void sheaf_flight_write_now(struct sheaf_flight *f)
{
        struct sheaf_fetcher *fetcher = f->fetcher;

        TAILQ_REMOVE(&fetcher->unwritten, f, unwritten);
        fetcher->unwritten_bytes -= f->len_bytes;
        f->state = SHEAF_FLIGHT_WRITING;
        sheaf_store_write(fetcher->store, &f->write);
}

void sheaf_fetcher_write_some(uv_timer_t *timer)
{
        struct sheaf_fetcher *fetcher = timer->data;
        int64_t before_ns = sheaf_now_ns() - WRITE_NS;
        uint64_t bytes = 0;
        struct sheaf_flight *f;

        while ((f = TAILQ_FIRST(&fetcher->unwritten)) &&
                f->answered_ns <= before_ns && bytes < WRITE_TURN_BYTES) {
                bytes += f->len_bytes;
                sheaf_flight_write_now(f);
        }
        if (f)
                uv_timer_start(timer, sheaf_fetcher_write_some,
                        bytes < WRITE_TURN_BYTES ? WRITE_MS : 1, 0);
}

/* Called for every answer, whatever it is of: that writes begin says nothing
 * of the one that comes next. */
static void write_surplus(struct sheaf_fetcher *fetcher)
{
        uint64_t most = SHEAF_MIN(UNWRITTEN_BYTES, fetcher->bytes_max / 4);

        while (fetcher->unwritten_bytes > most)
                sheaf_flight_write_now(TAILQ_FIRST(&fetcher->unwritten));
}

static bool disk_is_waited_for(const struct sheaf_flight *f)
{
        const struct sheaf_fetch *w;

        TAILQ_FOREACH (w, &f->waits, link)
                if (w->durable)
                        return true;
        return false;
}

void sheaf_flight_write_out(struct sheaf_flight *f)
{
        struct sheaf_fetcher *fetcher = f->fetcher;

        if (sheaf_version_on_disk(f->version->stored, f->chunk)) {
                flight_end(f);
                return;
        }
        if (!may_write(fetcher)) {
                fetcher->stats.writes_skipped++;
                flight_end(f);
                return;
        }
        f->state = SHEAF_FLIGHT_UNWRITTEN;
        f->write.ref = sheaf_flight_ref(f);
        f->write.bytes = f->bytes;
        f->write.done = write_done;
        if (!fetcher->writing++)
                fetcher->write_progress_ns = sheaf_now_ns();
        fetcher->writing_bytes += f->len_bytes;
        sheaf_fetcher_kick(fetcher);
        f->answered_ns = sheaf_now_ns();
        if (TAILQ_EMPTY(&fetcher->unwritten))
                uv_timer_start(
                        &fetcher->write, sheaf_fetcher_write_some, WRITE_MS, 0);
        TAILQ_INSERT_TAIL(&fetcher->unwritten, f, unwritten);
        fetcher->unwritten_bytes += f->len_bytes;
        if (disk_is_waited_for(f))
                sheaf_flight_write_now(f);
}

/* The bytes are verified and their digest is learned. */
void sheaf_flight_publish(struct sheaf_flight *f)
{
        bool from_origin = f->source == SHEAF_FROM_ORIGIN;

        if (f->dead) {
                if (f->block)
                        sheaf_arena_abort(f->home->space, f->block);
                f->block = 0;
                sheaf_flight_fail(f, -ESTALE, sheaf_why_gone);
                return;
        }
        if (f->block) {
                uint32_t len;

                f->block = sheaf_arena_commit(f->home->space, f->block,
                        &f->digest, f->home->table, f->chunk);
                f->bytes = (void *)sheaf_arena_hold(
                        f->home->arena, f->block, &len);
        }
        sheaf_flight_count_stop(f);
        write_surplus(f->fetcher);
        sheaf_flight_serve(f, false);
        if (from_origin)
                sheaf_flight_write_out(f);
        else
                flight_end(f);
}
