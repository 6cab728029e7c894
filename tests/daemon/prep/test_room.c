/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds of a group, and who prepares when few do. */
#include "tests/daemon/prep/kit.h"

TestSuite(room, .init = begin, .fini = end, .timeout = 60);

/* ---- room ---- */

Test(room, at_the_bound_nothing_more_is_leased)
{
        struct sheaf_prep_member *a = join(1, 0), *b = join(2, 0);
        struct sheaf_prep_worker *w = work(1);

        purse.bytes_max = 3 * SIZE;
        for (uint64_t n = 0; n < 3; n++) {
                prepare(w, n);
                take(a, n);
        }
        none(w);
        cr_assert(sheaf_prep_held(group));
        want(a, 3);
        sheaf_prep_ask(w);
        nothing();
        cr_assert_eq(stats().staged_bytes, 3 * SIZE);
        cr_assert_eq(state_of(a), SHEAF_PREP_FULL);
        want(a, 3);
        take(b, 0);
        cr_assert_eq(next().batch, 3, "there is room again");
}

/* With nothing staged before it a batch is leased, or all would wait. */
Test(room, one_who_waits_with_nothing_staged_is_served)
{
        struct sheaf_prep_member *a = join(1, 0);
        struct sheaf_prep_worker *w = work(1), *v = work(1);

        purse.bytes_max = 0;
        purse.files_max = 0;
        none(w);
        for (uint64_t b = 0; b < 5; b++) {
                want(a, b);
                lease(w, b);
                none(v);
                cr_assert_eq(offer(w, b), 0);
                cr_assert_eq(next().kind, SHEAF_PREP_GIVE);
                sheaf_prep_took(a, now_ns);
        }
        cr_assert_eq(purse.bytes, 0);
        purse.shut = true;
        want(a, 5);
        none(w);
}

/* Who holds the room and takes nothing is not waited for beyond patience. */
Test(room, who_fills_the_room_is_detached)
{
        struct sheaf_prep_member *slow = join(1, 0), *fast = join(2, 0);
        struct sheaf_prep_worker *w = work(2);

        purse.bytes_max = 2 * SIZE;
        for (uint64_t b = 0; b < 2; b++) {
                prepare(w, b);
                take(fast, b);
        }
        want(fast, 2);
        sheaf_prep_ask(w);
        nothing();
        later(3000 * MS);
        cr_assert(is_detached(slow));
        cr_assert_eq(next().batch, 2);
}

/* What was given up is prepared again, and nothing else is: the last first, and
 * never what somebody is about to get. */
Test(room, what_is_shed_is_prepared_again)
{
        struct sheaf_prep_member *a = join(1, 0), *b = join(2, 0);
        struct sheaf_prep_worker *w = work(1);

        cr_assert_not(sheaf_prep_shed(group));
        for (uint64_t n = 0; n < 3; n++)
                prepare(w, n);
        want(a, 0);
        cr_assert(sheaf_prep_shed(group));
        cr_assert_eq(dropped[2], 1);
        cr_assert(sheaf_prep_shed(group));
        cr_assert_eq(dropped[1], 1);
        cr_assert_not(sheaf_prep_shed(group), "the rest is given at once");
        cr_assert_eq(take(a, 0), 0);
        cr_assert(sheaf_prep_shed(group), "b does not wait for it");
        cr_assert_eq(stats().staged, 0);
        cr_assert_eq(stats().shed, 3);
        cr_assert_eq(purse.bytes, 0);
        for (uint64_t n = 0; n < 3; n++)
                prepare(w, n);
        for (uint64_t n = 0; n < 3; n++) {
                take(b, n);
                if (n)
                        take(a, n);
        }
        cr_assert_eq(stats().staged, 0);
        cr_assert_eq(stats().redone, 0, "nobody failed");
}

/* Private batches, too. */
Test(room, what_is_shed_of_a_lone_member)
{
        struct sheaf_prep_member *a = join(1, 50), *late = join(2, 0);
        struct sheaf_prep_worker *w = work(2);

        prepare(w, 0);
        prepare(w, 1);
        cr_assert(sheaf_prep_shed(group));
        cr_assert_eq(dropped[1], 1);
        want(late, 0);
        cr_assert_not(sheaf_prep_shed(group));
        take(late, 0);
        prepare(w, 1);
        take(late, 1);
        want(a, 50);
}

/* ---- members that prepare ---- */

Test(room, a_member_without_workers_prepares_what_it_takes)
{
        struct sheaf_prep_member *a = join(1, 0), *b = join(2, 0);
        struct sheaf_prep_event event;

        cr_assert_eq(sheaf_prep_want(a, 0, true, now_ns), 0);
        event = next();
        cr_assert_eq(event.kind, SHEAF_PREP_DO);
        cr_assert_eq(event.member, a);
        cr_assert_eq(sheaf_prep_want(b, 0, true, now_ns), 0);
        nothing();
        cr_assert_eq(offer(sheaf_prep_self(a), 0), 0);
        event = next();
        cr_assert_eq(event.kind, SHEAF_PREP_GIVE);
        cr_assert_eq(event.member, b);
        sheaf_prep_took(b, now_ns);
        take(a, 0);
        /* One that dies with it gives it back. */
        cr_assert_eq(sheaf_prep_want(a, 1, true, now_ns), 0);
        cr_assert_eq(next().kind, SHEAF_PREP_DO);
        cr_assert_eq(sheaf_prep_want(b, 1, true, now_ns), 0);
        nothing();
        sheaf_prep_leave(a, false, now_ns);
        event = next();
        cr_assert_eq(event.kind, SHEAF_PREP_DO);
        cr_assert_eq(event.member, b);
}

Test(room, workers_of_a_member_that_is_gone)
{
        struct sheaf_prep_member *a = join(1, 0);
        struct sheaf_prep_worker *w = work(1), *v;
        struct sheaf_prep_event event;

        join(2, 0);
        sheaf_prep_ask(w);
        sheaf_prep_unask(w);
        sheaf_prep_leave(a, false, now_ns);
        prepare(w, 0); /* it may come back */
        a = join(1, 0);
        later(SHEAF_NS_PER_SEC * 60);
        prepare(w, 1);
        sheaf_prep_leave(a, true, now_ns);
        sheaf_prep_ask(w);
        event = next();
        cr_assert_eq(event.kind, SHEAF_PREP_GONE);
        v = work(7);
        prepare(v, 2);
        later(SHEAF_NS_PER_SEC * 60);
        sheaf_prep_ask(v);
        cr_assert_eq(next().kind, SHEAF_PREP_GONE);
}

Test(room, bounds_of_members_and_workers)
{
        struct sheaf_prep_member_config config = config_of(1);
        struct sheaf_prep_member *m;
        struct sheaf_prep_worker *w;

        for (int i = 0; i < SHEAF_PREP_MEMBERS_MAX; i++)
                cr_assert_eq(sheaf_prep_join(group, &config, now_ns, &m), 0);
        cr_assert_eq(sheaf_prep_join(group, &config, now_ns, &m), -EBUSY);
        for (int i = 0; i < SHEAF_PREP_WORKERS_MAX; i++)
                cr_assert_eq(
                        sheaf_prep_work(group, config.id, NULL, now_ns, &w), 0);
        cr_assert_eq(
                sheaf_prep_work(group, config.id, NULL, now_ns, &w), -EBUSY);
        cr_assert_eq(
                sheaf_prep_begin(m, SHEAF_PREP_BATCH_MAX, now_ns), -ERANGE);
        cr_assert_eq(sheaf_prep_begin(m, SHEAF_PREP_BATCH_MAX - 1, now_ns), 0);
        lease(w, SHEAF_PREP_BATCH_MAX - 1);
}
