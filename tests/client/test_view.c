/* SPDX-License-Identifier: Apache-2.0 */
/* Views and reads: in place, in pieces, copied, failed. */
#include "tests/client/rig.h"

#include <criterion/criterion.h>

static struct sheaf_stats stats_of(struct rig *rig)
{
        struct sheaf_stats stats;

        sheaf_stats(rig->dataset, &stats);
        return stats;
}

Test(client_view, every_file_has_its_bytes)
{
        struct rig rig;
        struct sheaf_view view;

        rig_start(&rig, NULL);
        for (int round = 0; round < 2; round++)
                for (uint64_t i = 0; i < RIG_FILES; i++) {
                        cr_assert_eq(sheaf_view_file(rig.dataset, i, &view), 0,
                                "%s", sheaf_last_error());
                        cr_assert_eq(view.len_bytes, rig_sizes[i]);
                        cr_assert_eq(view.piece_count,
                                sheaf_chunk_count(rig_sizes[i]));
                        cr_assert(!view.copied);
                        cr_assert(rig_bytes_right(&rig, i, 0, &view));
                        sheaf_view_release(&view);
                        sheaf_view_release(&view);
                }
        /* 49 chunks but those of dir/inner and the empty file. */
        cr_assert_eq(rig.knobs->items, 48);
        cr_assert_eq(stats_of(&rig).misses, 48);
        cr_assert_eq(stats_of(&rig).hits, 48);
        cr_assert_eq(stats_of(&rig).copies, 0);
        cr_assert_eq(fake_pins(rig.fake), 0);
        rig_stop(&rig);
}

Test(client_view, ranges_are_cut_and_checked)
{
        struct rig rig;
        struct sheaf_view view;
        uint64_t big = 9 * SHEAF_MIB + 1;

        rig_start(&rig, NULL);
        cr_assert_eq(sheaf_view(rig.dataset, 0, 100, 50, &view), 0);
        cr_assert_eq(view.len_bytes, 50);
        cr_assert(rig_bytes_right(&rig, 0, 100, &view));
        sheaf_view_release(&view);
        cr_assert_eq(sheaf_view(rig.dataset, 0, 109990, 50, &view), 0);
        cr_assert_eq(view.len_bytes, 10);
        sheaf_view_release(&view);
        cr_assert_eq(sheaf_view(rig.dataset, 0, 110000, 50, &view), 0);
        cr_assert_eq(view.piece_count, 0);
        sheaf_view_release(&view);
        cr_assert_eq(sheaf_view(rig.dataset, 0, 110001, 50, &view), -ERANGE);
        cr_assert_eq(sheaf_view(rig.dataset, 999, 0, 1, &view), -ERANGE);
        cr_assert(strstr(sheaf_last_error(), "999"));
        /* Across two borders of chunks. */
        cr_assert_eq(sheaf_view(rig.dataset, 5, SHEAF_CHUNK_BYTES_MAX - 3,
                             SHEAF_CHUNK_BYTES_MAX + 6, &view),
                0);
        cr_assert_eq(view.piece_count, 3);
        cr_assert_eq(view.pieces[0].iov_len, 3);
        cr_assert_eq(view.pieces[2].iov_len, 3);
        cr_assert(rig_bytes_right(&rig, 5, SHEAF_CHUNK_BYTES_MAX - 3, &view));
        sheaf_view_release(&view);
        cr_assert_eq(sheaf_view(rig.dataset, 5, big - 1, UINT64_MAX, &view), 0);
        cr_assert_eq(view.len_bytes, 1);
        cr_assert(rig_bytes_right(&rig, 5, big - 1, &view));
        sheaf_view_release(&view);
        rig_stop(&rig);
}

Test(client_view, many_pieces)
{
        uint64_t sizes[] = { 6 * SHEAF_CHUNK_BYTES_MAX + 1 };
        struct fake_options options = { .sizes = sizes, .n = 1 };
        struct rig rig;
        struct sheaf_view view;

        rig_start(&rig, &options);
        cr_assert_eq(sheaf_view_file(rig.dataset, 0, &view), 0);
        cr_assert_eq(view.piece_count, 7);
        cr_assert(rig_bytes_right(&rig, 0, 0, &view));
        cr_assert_eq(fake_pins(rig.fake), 7);
        cr_assert_eq(rig.knobs->fetches, 1);
        sheaf_view_release(&view);
        cr_assert_eq(fake_pins(rig.fake), 0);
        rig_stop(&rig);
}

/* Pieces and pins inside of a view, and on the heap. */
Test(client_view, views_can_be_moved)
{
        uint64_t sizes[] = { 5000, 3 * SHEAF_CHUNK_BYTES_MAX,
                6 * SHEAF_CHUNK_BYTES_MAX + 1, 0 };
        struct fake_options options = { .sizes = sizes, .n = 4 };
        struct rig rig;

        rig_start(&rig, &options);
        for (uint64_t i = 0; i < 4; i++) {
                uint64_t pins = sheaf_chunk_count(sizes[i]);
                struct sheaf_view from, to;

                cr_assert_eq(sheaf_view_file(rig.dataset, i, &from), 0);
                sheaf_view_move(&to, &from);
                memset(from.inline_pieces_, 0xff, sizeof(from.inline_pieces_));
                memset(from.inline_pins_, 0xff, sizeof(from.inline_pins_));
                cr_assert_eq(from.piece_count, 0);
                cr_assert(rig_bytes_right(&rig, i, 0, &to));
                cr_assert_eq(fake_pins(rig.fake), pins);
                sheaf_view_release(&from);
                cr_assert_eq(fake_pins(rig.fake), pins);
                sheaf_view_release(&to);
                cr_assert_eq(fake_pins(rig.fake), 0);
        }
        rig_stop(&rig);
}

Test(client_view, empty_files_need_no_message)
{
        struct rig rig;
        struct sheaf_view view;

        rig_start(&rig, NULL);
        cr_assert_eq(sheaf_view_try(rig.dataset, 1, 0, 10, &view), 0);
        cr_assert_eq(view.piece_count, 0);
        cr_assert_eq(view.len_bytes, 0);
        sheaf_view_release(&view);
        cr_assert_eq(rig.knobs->fetches, 0);
        rig_stop(&rig);
}

Test(client_view, try_does_not_wait)
{
        struct rig rig;
        struct sheaf_view view;

        rig_start(&rig, NULL);
        cr_assert_eq(sheaf_view_try(rig.dataset, 5, 0, 100, &view), -EAGAIN);
        cr_assert_eq(rig.knobs->fetches, 0);
        cr_assert_eq(sheaf_view(rig.dataset, 5, 0, 100, &view), 0);
        sheaf_view_release(&view);
        cr_assert_eq(sheaf_view_try(rig.dataset, 5, 0, 100, &view), 0);
        cr_assert(rig_bytes_right(&rig, 5, 0, &view));
        sheaf_view_release(&view);
        rig_stop(&rig);
}

Test(client_view, over_the_grant_bytes_are_copied)
{
        struct fake_options options = { .grant_bytes = 12000 };
        struct rig rig;
        struct sheaf_view view[4], big;

        rig_start(&rig, &options);
        for (int i = 0; i < 4; i++) {
                cr_assert_eq(
                        sheaf_view_file(rig.dataset, 6 + (uint64_t)i, &view[i]),
                        0);
                cr_assert(rig_bytes_right(&rig, 6 + (uint64_t)i, 0, &view[i]));
                cr_assert_eq(view[i].copied, i >= 2, "view %d", i);
        }
        cr_assert_eq(fake_pins(rig.fake), 2);
        cr_assert_eq(sheaf_view_file(rig.dataset, 5, &big), 0);
        cr_assert(big.copied);
        cr_assert_eq(big.piece_count, 3);
        cr_assert(rig_bytes_right(&rig, 5, 0, &big));
        cr_assert_eq(stats_of(&rig).copies, 2 + 3);
        fake_fill(rig.fake);
        sheaf_view_release(&big);
        for (int i = 0; i < 4; i++)
                sheaf_view_release(&view[i]);
        cr_assert_eq(sheaf_view_file(rig.dataset, 6, &view[0]), 0);
        cr_assert(!view[0].copied);
        sheaf_view_release(&view[0]);
        cr_assert_eq(fake_pins(rig.fake), 0);
        rig_stop(&rig);
}

Test(client_view, eviction_that_always_wins_ends_in_a_copy)
{
        struct rig rig;
        struct sheaf_view view;
        uint8_t byte;

        rig_start(&rig, NULL);
        rig.knobs->forget = true;
        cr_assert_eq(sheaf_view_file(rig.dataset, 5, &view), 0, "%s",
                sheaf_last_error());
        cr_assert(view.copied);
        cr_assert(rig_bytes_right(&rig, 5, 0, &view));
        sheaf_view_release(&view);
        cr_assert_eq(rig.knobs->copies, 1);
        cr_assert_eq(
                sheaf_read(rig.dataset, 4, &byte, 1, SHEAF_CHUNK_BYTES_MAX + 4),
                1);
        cr_assert_eq(
                byte, fake_byte(sheaf_dataset_listing(rig.dataset)->files[4],
                              SHEAF_CHUNK_BYTES_MAX + 4));
        rig_stop(&rig);
}

Test(client_view, no_room_in_the_arena_is_answered_by_a_copy)
{
        struct rig rig;
        struct sheaf_view view;

        rig_start(&rig, NULL);
        rig.knobs->fetch_errno = ENOBUFS;
        cr_assert_eq(sheaf_view_file(rig.dataset, 0, &view), 0);
        cr_assert(view.copied);
        cr_assert(rig_bytes_right(&rig, 0, 0, &view));
        cr_assert_eq(rig.knobs->copies, 1);
        sheaf_view_release(&view);
        rig_stop(&rig);
}

Test(client_view, failures_carry_errno_and_text)
{
        struct rig rig;
        struct sheaf_view view = { 0 };
        char buf[10];

        rig_start(&rig, NULL);
        rig.knobs->fetch_errno = ESTALE;
        cr_assert_eq(sheaf_view_file(rig.dataset, 5, &view), -ESTALE);
        cr_assert_str_eq(sheaf_last_error(), "the origin cannot be read");
        cr_assert_eq(sheaf_read(rig.dataset, 0, buf, 10, 0), -ESTALE);
        cr_assert_eq(fake_pins(rig.fake), 0);
        rig.knobs->fetch_errno = 0;
        cr_assert_eq(sheaf_read(rig.dataset, 0, buf, 10, 0), 10);
        rig_stop(&rig);
}

Test(client_view, a_part_that_fails_leaves_nothing_pinned)
{
        struct rig rig;
        struct sheaf_view view;

        rig_start(&rig, NULL);
        cr_assert_eq(sheaf_view(rig.dataset, 5, 0, 10, &view), 0);
        sheaf_view_release(&view);
        rig.knobs->fetch_errno = EIO;
        cr_assert_eq(sheaf_view_file(rig.dataset, 5, &view), -EIO);
        cr_assert_eq(fake_pins(rig.fake), 0);
        rig_stop(&rig);
}

Test(client_view, read_copies_out_and_ends_at_the_end)
{
        struct rig rig;
        static uint8_t buf[10 << 20];
        uint32_t entry;

        rig_start(&rig, NULL);
        entry = sheaf_dataset_listing(rig.dataset)->files[5];
        cr_assert_eq(sheaf_read(rig.dataset, 5, buf, sizeof(buf), 7),
                9 * (int64_t)SHEAF_MIB + 1 - 7);
        for (uint64_t i = 0; i < 9 * SHEAF_MIB + 1 - 7; i++)
                if (buf[i] != fake_byte(entry, i + 7))
                        cr_assert_fail("byte %llu", (unsigned long long)i);
        cr_assert_eq(sheaf_read(rig.dataset, 0, buf, 10, 110000), 0);
        cr_assert_eq(sheaf_read(rig.dataset, 0, buf, 10, 200000), 0);
        cr_assert_eq(sheaf_read(rig.dataset, 999, buf, 10, 0), -ERANGE);
        cr_assert_eq(fake_pins(rig.fake), 0);
        rig_stop(&rig);
}

Test(client_view, batch_is_one_message)
{
        struct rig rig;
        struct sheaf_view views[RIG_FILES], one;
        uint64_t ordinals[RIG_FILES];
        int rc[RIG_FILES];

        rig_start(&rig, NULL);
        for (size_t i = 0; i < RIG_FILES; i++)
                ordinals[i] = RIG_FILES - 1 - i;
        cr_assert_eq(sheaf_view_file(rig.dataset, 7, &one), 0);
        sheaf_view_release(&one);
        rig.knobs->fetches = 0;
        cr_assert_eq(
                sheaf_view_batch(rig.dataset, ordinals, RIG_FILES, views, rc),
                RIG_FILES);
        cr_assert_eq(rig.knobs->fetches, 1);
        for (size_t i = 0; i < RIG_FILES; i++) {
                cr_assert_eq(rc[i], 0);
                cr_assert(rig_bytes_right(&rig, ordinals[i], 0, &views[i]));
                sheaf_view_release(&views[i]);
        }
        cr_assert_eq(fake_pins(rig.fake), 0);
        cr_assert_eq(stats_of(&rig).hits, 1);
        cr_assert_eq(stats_of(&rig).misses, 48);
        rig_stop(&rig);
}

Test(client_view, batch_reports_failures_by_file)
{
        struct rig rig;
        struct sheaf_view views[4];
        uint64_t ordinals[4] = { 0, 5, 99, 6 };
        int rc[4];

        rig_start(&rig, NULL);
        rig.knobs->bad_entry = sheaf_dataset_listing(rig.dataset)->files[5];
        cr_assert_eq(sheaf_view_batch(rig.dataset, ordinals, 4, views, rc), 2);
        cr_assert_eq(rc[0], 0);
        cr_assert_eq(rc[1], -EIO);
        cr_assert_eq(rc[2], -ERANGE);
        cr_assert_eq(rc[3], 0);
        cr_assert(rig_bytes_right(&rig, 6, 0, &views[3]));
        for (int i = 0; i < 4; i++)
                sheaf_view_release(&views[i]);
        ordinals[2] = 7;
        cr_assert_eq(
                sheaf_view_batch(rig.dataset, ordinals, 4, views, NULL), -EIO);
        cr_assert_eq(fake_pins(rig.fake), 0);
        cr_assert_eq(
                sheaf_view_batch(rig.dataset, ordinals, 0, views, NULL), 0);
        rig_stop(&rig);
}

Test(client_view, prefetch_asks_for_what_is_missing)
{
        struct rig rig;
        struct sheaf_view view;
        uint64_t ordinals[3] = { 0, 1, 5 };

        rig_start(&rig, NULL);
        cr_assert_eq(sheaf_view_file(rig.dataset, 0, &view), 0);
        sheaf_view_release(&view);
        cr_assert_eq(sheaf_prefetch(rig.dataset, ordinals, 3), 0);
        cr_assert(rig_reaches(&rig.knobs->hints, 1));
        cr_assert_eq(rig.knobs->items, 1 + 3);
        cr_assert_eq(sheaf_view_file(rig.dataset, 5, &view), 0);
        sheaf_view_release(&view);
        cr_assert_eq(stats_of(&rig).misses, 1);
        ordinals[1] = 1000;
        cr_assert_eq(sheaf_prefetch(rig.dataset, ordinals, 3), -ERANGE);
        rig_stop(&rig);
}

Test(client_view, by_entry)
{
        struct rig rig;
        struct sheaf_view view;
        uint32_t entry;
        uint8_t byte;

        rig_start(&rig, NULL);
        entry = sheaf_dataset_listing(rig.dataset)->files[0];
        cr_assert_eq(
                sheaf_dataset_view_entry(rig.dataset, entry, 0, 10, 0, &view),
                -EAGAIN);
        cr_assert_eq(sheaf_dataset_view_entry(rig.dataset, entry, 0, 10,
                             SHEAF_VIEW_WAIT | SHEAF_VIEW_TRANSIENT, &view),
                0);
        cr_assert(rig_bytes_right(&rig, 0, 0, &view));
        sheaf_view_release(&view);
        cr_assert_eq(sheaf_dataset_view_entry(rig.dataset, 0, 0, 10, 0, &view),
                -EISDIR);
        cr_assert_eq(
                sheaf_dataset_view_entry(rig.dataset, 99999, 0, 10, 0, &view),
                -ERANGE);
        cr_assert_eq(
                sheaf_dataset_read_entry(rig.dataset, entry, &byte, 1, 9), 1);
        cr_assert_eq(byte, fake_byte(entry, 9));
        rig_stop(&rig);
}
