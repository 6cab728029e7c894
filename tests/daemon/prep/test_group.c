/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of a group, one by one (docs/design/prep.md). */
#include "tests/daemon/prep/kit.h"

TestSuite(prep, .init = begin, .fini = end, .timeout = 60);

/* ---- leases ---- */

Test(prep, lowest_first_as_far_as_ahead_and_the_epoch)
{
        struct sheaf_prep_member *m = join(1, 96);
        struct sheaf_prep_worker *w = work(1);

        for (uint64_t b = 96; b < 100; b++)
                prepare(w, b);
        none(w); /* nobody has begun the next epoch */
        for (uint64_t b = 96; b < 100; b++)
                take(m, b);
        none(w);
        cr_assert_eq(sheaf_prep_begin(m, 100, now_ns), 0);
        for (uint64_t b = 100; b < 100 + AHEAD; b++)
                prepare(w, b);
        none(w);
        take(m, 100);
        prepare(w, 100 + AHEAD);
        none(w);
}

/* Ranks begin at batches of their own: until all have come none is given, so
 * none is missed by whoever begins last. */
Test(prep, whoever_is_waited_for_misses_nothing)
{
        struct sheaf_prep_member_config config = config_of(1);
        struct sheaf_prep_member *m[3];
        struct sheaf_prep_worker *w = work(1);

        config.gather = 3;
        config.world = 2;
        for (uint32_t i = 0; i < 3; i++) {
                config.id[0] = (uint8_t)i;
                config.rank = i ? 2 - i : 0;
                config.world = i ? 2 : 1;
                m[i] = join_as(&config);
        }
        cr_assert_eq(sheaf_prep_begin(m[1], 0, now_ns), 0);
        prepare(w, 1);
        cr_assert_eq(sheaf_prep_begin(m[2], 0, now_ns), 0);
        cr_assert_eq(sheaf_prep_begin(m[0], 0, now_ns), 0);
        for (int i = 0; i < 3; i++)
                cr_assert_not(is_detached(m[i]), "member %d", i);
        cr_assert_eq(stats().staged, 1, "what was prepared is kept");
        for (uint64_t b = 0; b < 20; b++) {
                if (b != 1)
                        prepare(w, b);
                take(m[0], b);
                take(m[b % 2 ? 1 : 2], b);
        }
        cr_assert_eq(stats().own, 0);
}

Test(prep, a_file_stays_until_all_took_it)
{
        struct sheaf_prep_member *a = join(1, 0), *b = join(2, 0);
        struct sheaf_prep_worker *w = work(1);
        int fd;

        prepare(w, 0);
        fd = take(a, 0);
        cr_assert_eq(dropped[fd], 0);
        cr_assert_eq(take(b, 0), fd);
        cr_assert_eq(dropped[fd], 1);
        prepare(w, 1);
        fd = take(a, 1);
        sheaf_prep_leave(b, true, now_ns);
        cr_assert_eq(dropped[fd], 1, "who is gone needs nothing");
        cr_assert_eq(stats().prepared, 2);
        cr_assert_eq(stats().taken, 3);
}

Test(prep, one_who_asks_again_is_told_the_same)
{
        struct sheaf_prep_worker *w = work(1), *v = work(1);

        join(1, 0);
        lease(w, 0);
        lease(w, 0);
        lease(v, 1);
        cr_assert_eq(stats().redone, 0);
}

Test(prep, a_dead_workers_batch_goes_to_another_at_once)
{
        struct sheaf_prep_worker *w = work(1), *v = work(1);

        join(1, 0);
        lease(w, 0);
        lease(v, 1);
        sheaf_prep_retire(w, false, now_ns);
        cr_assert_eq(offer(v, 1), 0);
        lease(v, 0);
        cr_assert_eq(stats().redone, 1);
        sheaf_prep_retire(v, true, now_ns);
        cr_assert_eq(stats().redone, 1, "it left, which is no fault");
}

Test(prep, the_first_offer_counts_and_a_later_one_is_refused)
{
        struct sheaf_prep_member *m = join(1, 0);
        struct sheaf_prep_worker *w = work(1), *v = work(1);

        lease(w, 0);
        later(LEASE);
        lease(v, 0);
        cr_assert_eq(offer(w, 0), 0, "it was late, and the first");
        cr_assert_eq(offer(v, 0), -ESTALE);
        cr_assert_eq(offer(w, 0), -ESTALE);
        cr_assert_eq(stats().late, 1);
        cr_assert_eq(stats().prepared, 1);
        take(m, 0);
        lease(w, 1);
        later(LEASE * 100);
        lease(v, 1);
        cr_assert_eq(offer(v, 1), 0);
        cr_assert_eq(offer(w, 1), -ESTALE);
}

Test(prep, what_was_not_leased_is_not_taken)
{
        struct sheaf_prep_worker *w = work(1), *v = work(1);

        join(1, 0);
        cr_assert_eq(offer(w, 0), -ESTALE);
        lease(w, 0);
        cr_assert_eq(offer(v, 0), -ESTALE);
        cr_assert_eq(offer(w, 1), -ESTALE);
        cr_assert_eq(sheaf_prep_fail(v, 0, "x", now_ns), -ESTALE);
        cr_assert_eq(sheaf_prep_spoil(v, 0, "x", now_ns), -ESTALE);
        cr_assert_eq(offer(w, 0), 0);
}

Test(prep, a_lease_is_as_long_as_batches_take)
{
        struct sheaf_prep_member *m = join(1, 0);
        struct sheaf_prep_worker *w = work(1), *v = work(2);

        lease(w, 0);
        later(LEASE / 2);
        cr_assert_eq(offer(w, 0), 0);
        take(m, 0);
        lease(w, 1);
        later(8 * (LEASE / 2) - MS);
        lease(v, 2);
        later(2 * MS);
        sheaf_prep_unask(v);
        cr_assert_eq(offer(v, 2), 0);
        lease(v, 1);
}

Test(prep, three_ends_in_turn_fail_it)
{
        struct sheaf_prep_member *m = join(1, 0);
        struct sheaf_prep_worker *w[3] = { work(1), work(2), work(3) };
        const char *text;

        lease(w[0], 0);
        sheaf_prep_retire(w[0], false, now_ns);
        lease(w[1], 0);
        later(LEASE);
        lease(w[2], 0);
        cr_assert_eq(sheaf_prep_spoil(w[2], 0, "it is a pipe", now_ns), 0);
        text = told(m, 0);
        cr_assert(strstr(text, "batch 0 (epoch 0, place 0)"), "%s", text);
        cr_assert(strstr(text, "1 were not ready"), "%s", text);
        cr_assert(strstr(text, "it is a pipe"), "%s", text);
        cr_assert_eq(stats().failed, 1);
        lease(w[2], 1);
}

Test(prep, each_time_that_was_too_short_doubles_the_next)
{
        struct sheaf_prep_worker *w[3] = { work(1), work(2), work(3) };

        join(1, 0);
        lease(w[0], 0);
        later(LEASE);
        lease(w[1], 0);
        later(2 * LEASE - MS);
        lease(w[2], 1);
        later(MS);
        cr_assert_eq(offer(w[2], 1), 0);
        lease(w[2], 0);
        later(4 * LEASE - MS);
        cr_assert_eq(offer(w[0], 0), 0, "the third had time");
}

/* Of a job that is stopped as a whole many may wait for leases. */
Test(prep, who_is_stopped_is_not_given_one_batch_after_another)
{
        struct sheaf_prep_worker *stopped[4], *w;
        struct sheaf_prep_event event;

        for (int i = 0; i < 4; i++)
                stopped[i] = work(1);
        w = work(2);
        join(1, 0);
        lease(stopped[0], 0);
        for (uint64_t b = 1; b < AHEAD; b++)
                prepare(w, b);
        for (int i = 1; i < 4; i++)
                sheaf_prep_ask(stopped[i]);
        sheaf_prep_ask(w);
        nothing();
        later(LEASE);
        for (int i = 1; i < 4; i++) {
                event = next();
                cr_assert_eq(event.kind, SHEAF_PREP_AGAIN);
                cr_assert_eq(event.worker, stopped[i]);
        }
        event = next();
        cr_assert_eq(event.kind, SHEAF_PREP_LEASE);
        cr_assert_eq(event.worker, w);
        cr_assert_eq(event.batch, 0);
}

/* ---- failures ---- */

Test(prep, an_error_alone_fails_it_at_once)
{
        struct sheaf_prep_member *m = join(1, 0);
        struct sheaf_prep_worker *w = work(1);

        lease(w, 0);
        cr_assert_eq(sheaf_prep_fail(w, 0, "no such sample", now_ns), 0);
        cr_assert_str_eq(told(m, 0), "no such sample");
        prepare(w, 1);
        take(m, 1);
}

Test(prep, an_error_is_tried_once_more_by_another_job)
{
        struct sheaf_prep_member *a = join(1, 0), *b = join(2, 0);
        struct sheaf_prep_worker *w = work(1), *v = work(2);

        lease(w, 0);
        cr_assert_eq(sheaf_prep_fail(w, 0, "no space left", now_ns), 0);
        prepare(w, 1); /* not 0 again */
        prepare(v, 0);
        take(a, 0);
        take(b, 0);
        lease(v, 2);
        cr_assert_eq(sheaf_prep_fail(v, 2, "first", now_ns), 0);
        lease(w, 2);
        cr_assert_eq(sheaf_prep_fail(w, 2, "second", now_ns), 0);
        take(a, 1);
        cr_assert_str_eq(told(a, 2), "second");
        cr_assert_eq(stats().failed, 1);
}

/* The other job's workers may be stopped. */
Test(prep, an_error_does_not_wait_for_the_other_job_for_ever)
{
        struct sheaf_prep_member *a = join(1, 0);
        struct sheaf_prep_worker *w = work(1);
        struct sheaf_prep_event event;

        join(2, 0);
        work(2);
        lease(w, 0);
        later(LEASE * 9 / 10); /* leases are longer than the wait now */
        cr_assert_eq(offer(w, 0), 0);
        lease(w, 1);
        cr_assert_eq(sheaf_prep_fail(w, 1, "x", now_ns), 0);
        for (uint64_t b = 2; b < AHEAD; b++)
                prepare(w, b);
        take(a, 0);
        want(a, 1);
        sheaf_prep_ask(w);
        nothing();
        cr_assert_leq(
                sheaf_prep_tick(group, now_ns), now_ns + SHEAF_PREP_SHUN_NS);
        later(SHEAF_PREP_SHUN_NS);
        event = next();
        cr_assert_eq(event.kind, SHEAF_PREP_LEASE);
        cr_assert_eq(event.batch, 1);
}

/* It would prepare, but is somewhere else. */
Test(prep, an_error_does_not_wait_for_who_does_not_ask)
{
        struct sheaf_prep_member *a = join(1, 0), *b = join(2, 0);
        struct sheaf_prep_worker *w = work(1);

        cr_assert_eq(sheaf_prep_want(b, 0, true, now_ns), 0);
        sheaf_prep_unwant(b, now_ns);
        lease(w, 0);
        cr_assert_eq(sheaf_prep_fail(w, 0, "x", now_ns), 0);
        cr_assert_str_eq(told(a, 0), "x");
}

Test(prep, another_schema_is_its_own_jobs_trouble)
{
        struct sheaf_prep_member *a = join(1, 0), *b = join(2, 0);
        struct sheaf_prep_worker *w = work(1), *v = work(2);
        struct sheaf_prep_event event;

        prepare(w, 0);
        lease(v, 1);
        cr_assert_eq(offer_as(v, 1, SIZE, "other"), -EEXIST);
        prepare(w, 1);
        take(a, 0);
        take(a, 1);
        cr_assert(strstr(told(b, 0), "other"));
        sheaf_prep_ask(v);
        event = next();
        cr_assert_eq(event.kind, SHEAF_PREP_UNFIT);
        cr_assert_eq(stats().failed, 0);
}

Test(prep, larger_than_all_may_be_fails)
{
        struct sheaf_prep_member *m = join(1, 0);
        struct sheaf_prep_worker *w = work(1);

        lease(w, 0);
        cr_assert_eq(offer_as(w, 0, purse.single_max + 1, "s"), -EFBIG);
        cr_assert(strstr(told(m, 0), "--prep"));
        prepare(w, 1);
}

/* ---- who is waited for ---- */

Test(prep, a_slow_member_is_waited_for_as_long_as_it_said)
{
        struct sheaf_prep_member *slow = join(1, 0), *fast = join(2, 0);
        struct sheaf_prep_worker *w = work(2);

        for (uint64_t b = 0; b < AHEAD; b++) {
                prepare(w, b);
                take(fast, b);
        }
        want(fast, AHEAD);
        sheaf_prep_ask(w);
        nothing();
        cr_assert_eq(sheaf_prep_tick(group, now_ns), now_ns + 3000 * MS);
        later(3000 * MS - 1);
        nothing();
        cr_assert_not(is_detached(slow));
        later(1);
        cr_assert(is_detached(slow));
        cr_assert_eq(next().batch, AHEAD);
        cr_assert_eq(stats().staged, 0, "only the slow one needed those");
        cr_assert_eq(stats().detached, 1);
        cr_assert_eq(offer(w, AHEAD), 0);
        cr_assert_eq(next().kind, SHEAF_PREP_GIVE);
        sheaf_prep_took(fast, now_ns);
}

/* What it takes from then on is prepared by its own workers, first; once it is
 * where the others are it shares again. */
Test(prep, a_detached_member_goes_on_alone_and_comes_back)
{
        struct sheaf_prep_member *slow = join(1, 0), *fast = join(2, 0);
        struct sheaf_prep_worker *own = work(1), *w = work(2);

        for (uint64_t b = 0; b < AHEAD; b++) {
                prepare(w, b);
                take(fast, b);
        }
        want(fast, AHEAD);
        later(3000 * MS);
        sheaf_prep_unwant(fast, now_ns);
        for (uint64_t b = 0; b < AHEAD; b++)
                prepare(own, b);
        lease(w, AHEAD);
        cr_assert_eq(offer(w, AHEAD), 0);
        prepare(own, AHEAD + 1); /* then it helps */
        for (uint64_t b = 0; b < AHEAD; b++) {
                cr_assert(is_detached(slow));
                cr_assert_eq(dropped[take(slow, b)], 1);
        }
        cr_assert_not(is_detached(slow));
        cr_assert_eq(stats().own, AHEAD);
        take(slow, AHEAD);
        cr_assert_eq(dropped[take(fast, AHEAD)], 1);
        cr_assert_eq(stats().prepared, 2 * AHEAD + 2);
}

Test(prep, patience_0_holds_nobody)
{
        struct sheaf_prep_member_config config = config_of(1);
        struct sheaf_prep_member *fast = join(2, 0), *slow;
        struct sheaf_prep_worker *w = work(2);

        config.patience_ns = 0;
        slow = join_as(&config);
        cr_assert_eq(sheaf_prep_begin(slow, 0, now_ns), 0);
        for (uint64_t b = 0; b < AHEAD; b++) {
                prepare(w, b);
                take(fast, b);
        }
        want(fast, AHEAD);
        sheaf_prep_ask(w);
        cr_assert_eq(next().batch, AHEAD);
        cr_assert(is_detached(slow));
}

/* It is not its fault that its batch is not there. */
Test(prep, who_waits_itself_is_not_detached)
{
        struct sheaf_prep_member_config config = config_of(1);
        struct sheaf_prep_member *a, *b = join(2, 0);
        struct sheaf_prep_worker *w = work(2), *v = work(2);

        config.patience_ns = 0;
        a = join_as(&config);
        cr_assert_eq(sheaf_prep_begin(a, 0, now_ns), 0);
        lease(v, 0);
        for (uint64_t n = 1; n < AHEAD; n++)
                prepare(w, n);
        want(a, 0);
        cr_assert_eq(sheaf_prep_want(b, AHEAD, false, now_ns), 0);
        nothing();
        cr_assert_not(is_detached(a));
        /* Nor between two questions. */
        sheaf_prep_unwant(a, now_ns);
        nothing();
        later(900 * MS);
        cr_assert_not(is_detached(a));
        later(101 * MS);
        cr_assert(is_detached(a));
}

Test(prep, when_all_others_leave_the_detached_one_is_the_group)
{
        struct sheaf_prep_member *slow = join(1, 0), *fast = join(2, 0);
        struct sheaf_prep_worker *w = work(2), *own = work(1);

        for (uint64_t b = 0; b < AHEAD; b++) {
                prepare(w, b);
                take(fast, b);
        }
        want(fast, AHEAD);
        later(3000 * MS);
        cr_assert(is_detached(slow));
        lease(own, 0);
        lease(w, AHEAD);
        sheaf_prep_leave(fast, false, now_ns);
        cr_assert_not(is_detached(slow));
        cr_assert_eq(stats().floor, 0);
        cr_assert_eq(offer(own, 0), -ESTALE, "that was for it alone");
        prepare(own, 0);
        take(slow, 0);
}

Test(prep, a_late_member_begins_at_the_floor_or_alone)
{
        struct sheaf_prep_member *a = join(1, 0), *late, *early;
        struct sheaf_prep_worker *w = work(1), *own = work(3);

        for (uint64_t b = 0; b < 4; b++)
                prepare(w, b);
        take(a, 0);
        take(a, 1);
        late = join(2, 2);
        cr_assert_not(is_detached(late));
        take(late, 2);
        take(a, 2);
        early = join(3, 0);
        cr_assert(is_detached(early));
        prepare(own, 0);
        prepare(own, 1);
        prepare(own, 2);
        take(early, 0);
        take(early, 1);
        take(early, 2);
        cr_assert_not(is_detached(early));
        take(early, 3);
        take(late, 3);
        take(a, 3);
        cr_assert_eq(stats().own, 3);
        cr_assert_eq(stats().staged, 0);
}

Test(prep, what_is_passed_over_is_kept_for_nobody)
{
        struct sheaf_prep_member *a = join(1, 0), *b = join(2, 0);
        struct sheaf_prep_worker *w = work(1);
        int fd;

        prepare(w, 0);
        prepare(w, 1);
        prepare(w, 2);
        fd = take(a, 0);
        take(a, 1);
        want(b, 2);
        cr_assert_eq(dropped[fd], 1);
        cr_assert_eq(next().kind, SHEAF_PREP_GIVE);
        sheaf_prep_took(b, now_ns);
        cr_assert_eq(stats().floor, 2);
        /* And back: alone, since the other does not come back. */
        cr_assert_eq(sheaf_prep_begin(b, 0, now_ns), 0);
        cr_assert(is_detached(b));
}

Test(prep, ranks_take_their_own)
{
        struct sheaf_prep_member_config config = config_of(1);
        struct sheaf_prep_member *r[3], *all;
        struct sheaf_prep_worker *w = work(1);

        sheaf_prep_group_free(group);
        make(10, AHEAD);
        for (uint32_t i = 0; i < 3; i++) {
                config.rank = i;
                config.world = 3;
                config.id[0] = (uint8_t)(i + 1);
                r[i] = join_as(&config);
                cr_assert_eq(sheaf_prep_begin(r[i], 0, now_ns), 0);
        }
        cr_assert_eq(sheaf_prep_want(r[1], 2, false, now_ns), -ERANGE);
        all = join(9, 0);
        w = work(1);
        for (uint64_t b = 0; b < 10; b++) {
                prepare(w, b);
                take(r[b % 3], b);
                cr_assert_eq(dropped[take(all, b)], 1);
        }
        /* Places begin anew: 10 is of rank 0. */
        for (uint32_t i = 0; i < 3; i++)
                cr_assert_eq(sheaf_prep_begin(r[i], 10, now_ns), 0);
        prepare(w, 10);
        take(r[0], 10);
        prepare(w, 11);
        take(r[1], 11);
        cr_assert_eq(sheaf_prep_want(r[2], 13, false, now_ns), -ERANGE);
        prepare(w, 12);
        take(r[2], 12);
        cr_assert_eq(stats().staged, 3, "for the one that takes all");
}

Test(prep, the_first_batch_waits_for_those_announced)
{
        struct sheaf_prep_member_config config = config_of(1);
        struct sheaf_prep_member *a, *b;
        struct sheaf_prep_worker *w = work(1);

        config.gather = 2;
        a = join_as(&config);
        cr_assert_eq(sheaf_prep_begin(a, 0, now_ns), 0);
        prepare(w, 0);
        want(a, 0);
        nothing();
        cr_assert_eq(state_of(a), SHEAF_PREP_GATHERING);
        want(a, 0);
        b = join(2, 0);
        cr_assert_eq(next().kind, SHEAF_PREP_GIVE);
        sheaf_prep_took(a, now_ns);
        sheaf_prep_leave(b, true, now_ns);
        prepare(w, 1);
        take(a, 1); /* once is enough */
}

Test(prep, who_is_stopped_holds_up_no_beginning)
{
        struct sheaf_prep_member_config config = config_of(1);
        struct sheaf_prep_member *a, *stopped;
        struct sheaf_prep_worker *w = work(1);

        config.gather = 3;
        a = join_as(&config);
        cr_assert_eq(sheaf_prep_begin(a, 0, now_ns), 0);
        memset(config.id, 2, sizeof(config.id));
        stopped = join_as(&config);
        cr_assert_eq(sheaf_prep_begin(stopped, 0, now_ns), 0);
        want(stopped, 0);
        prepare(w, 0);
        nothing();
        cr_assert_eq(state_of(stopped), SHEAF_PREP_GATHERING);
        /* The other one will not wait any longer for the third. */
        sheaf_prep_leave(a, true, now_ns);
        memset(config.id, 1, sizeof(config.id));
        config.gather = 1;
        a = join_as(&config);
        cr_assert_eq(sheaf_prep_begin(a, 0, now_ns), 0);
        want(a, 0);
        nothing(); /* the second one just asked */
        cr_assert_eq(state_of(a), SHEAF_PREP_GATHERING);
        now_ns += 2000 * MS;
        want(a, 0);
        cr_assert_eq(next().kind, SHEAF_PREP_GIVE);
}
