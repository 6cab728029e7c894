/* SPDX-License-Identifier: Apache-2.0 */
/* Epochs out of a memory that holds a part of the dataset, no disk tier: what
 * the origin has to give is what stock does not hold, once for all jobs that
 * read in step. Counts alone; files have different contents. */
#include "tests/flow/slots.h"
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <stdio.h>

#define FILES  3200u
#define BATCH  64u
#define MEMORY (32 * SHEAF_MIB)
#define JOBS   4

TestSuite(part, .init = flow_init, .fini = flow_fini, .timeout = 240);

static uint64_t total;

struct reader {
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_job *job;
        uint64_t epoch;
        uint32_t slot;
        uint64_t ordinals[FILES];
};

/* About 90 MB in files of 8 to 48 KiB, so that the memory is a third of it. */
static void begin(void)
{
        flow_origin_in_memory();
        for (uint32_t i = 0; i < FILES; i++) {
                uint64_t len = (8 + i * 7 % 41) * SHEAF_KIB + i % 7;

                flow_file(i, len, "d%u/f%u", i / 100, i);
                total += len;
        }
        flow.memory = "32MiB";
        flow.disk = "0";
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
}

static void open_reader(struct reader *r, const char *name, uint32_t ahead)
{
        struct sheaf_job_options options = { .name = name, .ahead = ahead };

        memset(r, 0, sizeof(*r));
        cr_assert_eq(flow_open("data", &r->session, &r->dataset), 0);
        cr_assert_eq(sheaf_job_open(r->dataset, &options, &r->job), 0, "%s",
                sheaf_last_error());
}

static void close_reader(struct reader *r)
{
        sheaf_job_close(r->job);
        flow_close(r->session, r->dataset);
}

/* A batch, bound and read; at the end of the epoch each sample was given. */
static void step(struct reader *r)
{
        struct sheaf_view views[BATCH];

        slots_bind(r->job, r->epoch, r->slot, BATCH, r->ordinals + r->slot);
        cr_assert_eq(sheaf_view_batch(r->dataset, r->ordinals + r->slot, BATCH,
                             views, NULL),
                (int64_t)BATCH, "%s", sheaf_last_error());
        for (uint32_t i = 0; i < BATCH; i++)
                sheaf_view_release(&views[i]);
        r->slot += BATCH;
        if (r->slot < FILES)
                return;
        slots_each_once(r->ordinals, FILES, FILES);
        r->slot = 0;
        r->epoch++;
}

/* What of the dataset stock holds. */
static double stock(void)
{
        return flow_stat_of("data", "dataset.stock_bytes") / (double)total;
}

/* How much of it the origin gave since the last call. */
static double given(void)
{
        static double before;
        double now = flow_stat("origin.bytes"), bytes = now - before;

        before = now;
        return bytes / (double)total;
}

Test(part, hits_are_what_stock_holds)
{
        static struct reader r;
        double held, origin;

        begin();
        open_reader(&r, "one", 0);
        while (r.epoch < 2)
                step(&r);
        held = stock();
        (void)given();
        while (r.epoch < 3)
                step(&r);
        origin = given();
        cr_expect_geq(held * (double)total, .84 * (double)MEMORY,
                "%.1f %% are stock", 100 * held);
        cr_expect_float_eq(1 - origin, held, .01, "hits %.2f %%, stock %.2f %%",
                100 * (1 - origin), 100 * held);
        cr_expect_eq(flow_stat("jobs.journal_errors"), 0);
        close_reader(&r);
        flow_stop();
}

/* Together they read what one would. */
Test(part, jobs_in_step_share_a_pass)
{
        static struct reader r[JOBS];
        double bound;

        begin();
        for (int i = 0; i < JOBS; i++) {
                char name[16];

                snprintf(name, sizeof(name), "job%d", i);
                open_reader(&r[i], name, BATCH);
        }
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
                while (r[JOBS - 1].epoch == epoch)
                        for (int i = 0; i < JOBS; i++)
                                step(&r[i]);
                bound = 1 - stock() + (double)BATCH / FILES;
                cr_expect_leq(given(), epoch ? 1.05 * bound : 1.01,
                        "epoch %llu", (unsigned long long)epoch);
        }
        for (int i = 0; i < JOBS; i++)
                close_reader(&r[i]);
        flow_stop();
}

/* The last of them meets what the first has had fetched, though that is more
 * than flows otherwise. */
Test(part, ring_grows_with_the_gap_between_jobs)
{
        const uint32_t gap = 4 * BATCH, ahead = 3 * BATCH;
        static struct reader first, last;
        double origin, bound;

        begin();
        open_reader(&first, "first", ahead);
        open_reader(&last, "last", ahead);
        while (first.slot < gap)
                step(&first);
        while (last.epoch < 3) {
                if (first.epoch == 1 && first.slot == gap)
                        (void)given();
                step(&first);
                step(&last);
        }
        origin = given() / 2;
        bound = 1 - stock();
        cr_expect_leq(origin, 1.05 * bound, "%.3f beside %.3f", origin, bound);
        close_reader(&first);
        close_reader(&last);
        flow_stop();
}
