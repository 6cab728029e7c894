/* SPDX-License-Identifier: Apache-2.0 */
/* A group, its time, and what its members and workers do, for tests of single
 * rules. */
#ifndef SHEAF_TESTS_PREP_KIT_H
#define SHEAF_TESTS_PREP_KIT_H

#include "daemon/prep/group.h"

#include <criterion/criterion.h>
#include <stdio.h>

#define MS      SHEAF_NS_PER_MS
#define AHEAD   8
#define BATCHES 100
#define LEASE   (1000 * MS)
#define SIZE    UINT64_C(1000)

static struct sheaf_prep_purse purse;
static struct sheaf_prep_group *group;
static int64_t now_ns;
static int dropped[4096], files;

static inline void drop(void *arg, int fd)
{
        (void)arg;
        dropped[fd]++;
}

static inline void make(uint32_t batches, uint32_t ahead)
{
        struct sheaf_prep_config config = { .batches = batches,
                .ahead = ahead,
                .lease_ns = LEASE,
                .purse = &purse,
                .drop = drop };

        cr_assert_eq(sheaf_prep_group_new(&config, &group), 0);
}

static inline void begin(void)
{
        purse = (struct sheaf_prep_purse){ .bytes_max = 1000 * SIZE,
                .single_max = 1000 * SIZE,
                .files_max = 1000 };
        now_ns = 5 * SHEAF_NS_PER_SEC;
        make(BATCHES, AHEAD);
}

/* Whatever happened, all that was staged is given back. */
static inline void end(void)
{
        sheaf_prep_group_free(group);
        cr_assert_eq(purse.bytes, 0);
        cr_assert_eq(purse.files, 0);
        for (int i = 0; i < files; i++)
                cr_assert_leq(dropped[i], 1);
}

static inline struct sheaf_prep_member_config config_of(uint32_t id)
{
        struct sheaf_prep_member_config config = { .world = 1,
                .patience_ns = 3000 * MS };

        memset(config.id, (int)id, sizeof(config.id));
        return config;
}

static inline struct sheaf_prep_member *join_as(
        const struct sheaf_prep_member_config *config)
{
        struct sheaf_prep_member *member;

        cr_assert_eq(sheaf_prep_join(group, config, now_ns, &member), 0);
        return member;
}

static inline struct sheaf_prep_member *join(uint32_t id, uint64_t at)
{
        struct sheaf_prep_member_config config = config_of(id);
        struct sheaf_prep_member *member = join_as(&config);

        cr_assert_eq(sheaf_prep_begin(member, at, now_ns), 0);
        return member;
}

static inline struct sheaf_prep_worker *work(uint32_t id)
{
        struct sheaf_prep_worker *worker;
        uint8_t bytes[16];

        memset(bytes, (int)id, sizeof(bytes));
        cr_assert_eq(sheaf_prep_work(group, bytes, NULL, now_ns, &worker), 0);
        return worker;
}

static inline struct sheaf_prep_event next(void)
{
        struct sheaf_prep_event event;

        sheaf_prep_next(group, now_ns, &event);
        return event;
}

static inline void nothing(void)
{
        cr_assert_eq(next().kind, SHEAF_PREP_NONE);
}

static inline void later(int64_t ns)
{
        now_ns += ns;
        sheaf_prep_tick(group, now_ns);
}

/* @worker asks and is given @batch. */
static inline void lease(struct sheaf_prep_worker *worker, uint64_t batch)
{
        struct sheaf_prep_event event;

        sheaf_prep_ask(worker);
        event = next();
        cr_assert_eq(event.kind, SHEAF_PREP_LEASE);
        cr_assert_eq(event.worker, worker);
        cr_assert_eq(event.batch, batch, "batch %lu, not %lu",
                (unsigned long)event.batch, (unsigned long)batch);
}

/* It asks, and there is nothing for it. */
static inline void none(struct sheaf_prep_worker *worker)
{
        sheaf_prep_ask(worker);
        nothing();
        sheaf_prep_unask(worker);
}

static inline int offer_as(struct sheaf_prep_worker *worker, uint64_t batch,
        uint64_t bytes, const char *schema)
{
        int rc = sheaf_prep_offer(worker, batch, files, bytes, schema, now_ns);

        files += !rc;
        return rc;
}

static inline int offer(struct sheaf_prep_worker *worker, uint64_t batch)
{
        return offer_as(worker, batch, SIZE, "s");
}

static inline void prepare(struct sheaf_prep_worker *worker, uint64_t batch)
{
        lease(worker, batch);
        cr_assert_eq(offer(worker, batch), 0);
}

static inline void want(struct sheaf_prep_member *member, uint64_t batch)
{
        cr_assert_eq(sheaf_prep_want(member, batch, false, now_ns), 0);
}

/* @member takes @batch, which is there. */
static inline int take(struct sheaf_prep_member *member, uint64_t batch)
{
        struct sheaf_prep_event event;

        want(member, batch);
        event = next();
        cr_assert_eq(event.kind, SHEAF_PREP_GIVE);
        cr_assert_eq(event.member, member);
        cr_assert_eq(event.batch, batch);
        cr_assert_eq(dropped[event.fd], 0, "it was dropped before");
        sheaf_prep_took(member, now_ns);
        return event.fd;
}

static inline const char *told(struct sheaf_prep_member *member, uint64_t batch)
{
        static char text[1024];
        struct sheaf_prep_event event;

        want(member, batch);
        event = next();
        cr_assert_eq(event.kind, SHEAF_PREP_TELL);
        cr_assert_eq(event.member, member);
        snprintf(text, sizeof(text), "%s", event.why);
        sheaf_prep_took(member, now_ns);
        return text;
}

static inline struct sheaf_prep_group_stats stats(void)
{
        struct sheaf_prep_group_stats s;

        sheaf_prep_group_stats(group, &s);
        return s;
}

static inline bool is_detached(struct sheaf_prep_member *member)
{
        struct sheaf_prep_member_stats s;

        sheaf_prep_member_stats(member, &s);
        return s.detached;
}

static inline enum sheaf_prep_state state_of(struct sheaf_prep_member *member)
{
        return sheaf_prep_unwant(member, now_ns);
}

#endif
