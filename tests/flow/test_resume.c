/* SPDX-License-Identifier: Apache-2.0 */
/* Subsets with slots of their own, and going on from a checkpoint: with the
 * daemon's journal, without it, with a part of it, and with neither. */
#include "proto/digest.h"
#include "proto/subset.h"
#include "tests/flow/peer.h"
#include "tests/flow/slots.h"

#define FILES 1203
#define LEN   600

static struct sheaf_session *session;
static struct sheaf_dataset *dataset;

static void take_up(void)
{
        cr_assert_eq(flow_open("data", &session, &dataset), 0, "%s",
                sheaf_last_error());
}

static void begin(void)
{
        flow_init();
        for (uint32_t i = 0; i < FILES; i++)
                flow_file(i, LEN, "d%u/f%u", i % 7, i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        take_up();
}

static void end(void)
{
        flow_close(session, dataset);
        flow_fini();
}

TestSuite(resume, .init = begin, .fini = end, .timeout = 120);

static const enum sheaf_job_order orders[] = { SHEAF_JOB_SHARED,
        SHEAF_JOB_WINDOW, SHEAF_JOB_STRICT };

static struct sheaf_job_options options_of(
        const char *name, enum sheaf_job_order order)
{
        return (struct sheaf_job_options){ .name = name,
                .order = order,
                .seed = 7,
                .window = order == SHEAF_JOB_WINDOW ? 60 : 0,
                .ahead = 64 };
}

static struct sheaf_job *open_job(
        const char *name, enum sheaf_job_order order, const uint8_t *subset)
{
        struct sheaf_job_options options = options_of(name, order);
        struct sheaf_job *job = NULL;

        options.subset = subset;
        cr_assert_eq(sheaf_job_open(dataset, &options, &job), 0, "%s",
                sheaf_last_error());
        return job;
}

/* A new connection: as another process would have. */
static void reconnect(void)
{
        flow_close(session, dataset);
        take_up();
}

/* The daemon is killed and its journals are gone, or cut to @keep bytes, with
 * @zeros behind them: a last block that was never written. */
static void lose_journals(long keep, long zeros)
{
        flow_close(session, dataset);
        flow_kill();
        if (keep < 0)
                flow_ok("rm -rf %s/jobs", flow.cache);
        else
                flow_ok("find %s/jobs -type f -size +%ldc "
                        "-exec truncate -s %ld {} + "
                        "-exec truncate -s +%ld {} +",
                        flow.cache, keep, keep, zeros);
        flow_start();
        take_up();
}

/* ---- subsets ---- */

#define BYTES ((FILES + 7) / 8)

/* Two parts of the files, without a pattern; how many are in the first. */
static uint32_t split(uint8_t train[BYTES], uint8_t val[BYTES])
{
        uint32_t count = 0;

        memset(train, 0, BYTES);
        memset(val, 0, BYTES);
        for (uint32_t i = 0; i < FILES; i++) {
                bool first = i * 2654435761u >> 16 & 3;

                (first ? train : val)[i / 8] |= (uint8_t)(1 << i % 8);
                count += first;
        }
        return count;
}

static void of_subset(
        const uint64_t *ordinals, uint32_t count, const uint8_t *subset)
{
        slots_each_once(ordinals, count, FILES);
        for (uint32_t i = 0; i < count; i++)
                cr_assert(subset[ordinals[i] / 8] >> ordinals[i] % 8 & 1);
}

/* Splits stay apart over epochs, orders and a kill of the daemon, which has to
 * be told the bitmap again. One name in two splits is two jobs. */
Test(resume, splits_have_slots_of_their_own)
{
        static uint8_t train[BYTES], val[BYTES];
        static uint64_t a[FILES], b[FILES];
        uint32_t n = split(train, val);

        for (size_t o = 0; o < SHEAF_ARRAY_LEN(orders); o++) {
                char name[32];
                struct sheaf_job *one, *two;

                snprintf(name, sizeof(name), "job-%zu", o);
                one = open_job(name, orders[o], train);
                two = open_job(name, orders[o], val);
                cr_assert_eq(sheaf_job_samples(one), n);
                cr_assert_eq(sheaf_job_samples(two), FILES - n);
                for (uint64_t epoch = 0; epoch < 5; epoch++) {
                        slots_bind(one, epoch, 0, n / 2, a);
                        slots_bind(two, epoch, 0, 100, b);
                        if (epoch == 1) {
                                flow_kill();
                                flow_start();
                        }
                        slots_bind(one, epoch, n / 2, n - n / 2, a + n / 2);
                        slots_bind(two, epoch, 100, FILES - n - 100, b + 100);
                        of_subset(a, n, train);
                        of_subset(b, FILES - n, val);
                }
                cr_assert_eq(sheaf_job_bind(two, 5, &n, 1, 0, a), -ERANGE);
                sheaf_job_close(one);
                sheaf_job_close(two);
        }
        cr_assert_eq(flow_stat("jobs.journal_errors"), 0);
}

/* Who tells no look-ahead gets one that is small beside the epoch. */
Test(resume, a_look_ahead_is_chosen)
{
        struct sheaf_job_options options = options_of("x", SHEAF_JOB_SHARED);
        static uint8_t train[BYTES], val[BYTES];
        struct sheaf_job *job = open_job("y", SHEAF_JOB_SHARED, NULL);

        cr_assert_eq(sheaf_job_ahead(job), 64);
        sheaf_job_close(job);
        options.ahead = 17;
        cr_assert_eq(sheaf_job_open(dataset, &options, &job), 0);
        cr_assert_eq(sheaf_job_ahead(job), 17);
        sheaf_job_close(job);
        options = options_of("z", SHEAF_JOB_SHARED);
        options.ahead = 0;
        split(train, val);
        options.subset = train;
        cr_assert_eq(sheaf_job_open(dataset, &options, &job), 0);
        cr_assert_eq(sheaf_job_ahead(job), 64);
        sheaf_job_close(job);
}

/* What a subset binds is fetched, and nothing else is. */
Test(resume, of_a_split_only_its_files_are_fetched)
{
        static uint8_t train[BYTES], val[BYTES];
        static uint64_t ordinals[FILES];
        uint32_t n = split(train, val);
        struct sheaf_job *job = open_job("train", SHEAF_JOB_SHARED, train);

        slots_bind(job, 0, 0, n, ordinals);
        cr_assert(flow_until(30, flow_stat_of("data", "origin.reads") >= n));
        for (uint32_t i = 0; i < n; i++) {
                struct sheaf_view view;

                cr_assert_eq(sheaf_view_file(dataset, ordinals[i], &view), 0);
                sheaf_view_release(&view);
        }
        cr_assert_eq(flow_stat_of("data", "origin.reads"), n);
        sheaf_job_close(job);
}

Test(resume, bad_subsets_are_refused_in_words)
{
        static uint8_t subset[BYTES];
        struct sheaf_job_options options = options_of("x", SHEAF_JOB_SHARED);
        struct sheaf_job *job;

        options.subset = subset;
        cr_assert_eq(sheaf_job_open(dataset, &options, &job), -EINVAL);
        cr_assert_not_null(strstr(sheaf_last_error(), "subset"));
        subset[FILES / 8] = (uint8_t)(1 << FILES % 8);
        cr_assert_eq(sheaf_job_open(dataset, &options, &job), -EINVAL);
        subset[FILES / 8] = (uint8_t)(1 << (FILES - 1) % 8);
        cr_assert_eq(sheaf_job_open(dataset, &options, &job), 0);
        cr_assert_eq(sheaf_job_samples(job), 1);
        sheaf_job_close(job);
}

/* A Bind by hand with a subset named @name, or a bitmap to restore from, in
 * @fd: the daemon's answer. */
static int send_bitmap(struct peer *p, uint32_t handle,
        const struct sheaf_digest *name, bool restores, int fd)
{
        Sheaf__Bind body = SHEAF__BIND__INIT;
        Sheaf__Restore restore = SHEAF__RESTORE__INIT;
        ProtobufCBinaryData bytes = { .len = SHEAF_DIGEST_BYTES,
                .data = (uint8_t *)name->bytes };

        body.handle = handle;
        body.job = (char *)"by-hand";
        body.epoch = 3;
        if (restores) {
                restore.make = true;
                restore.yielded = 8;
                restore.digest = bytes;
                body.restore = &restore;
        } else {
                body.subset = bytes;
                body.has_subset = true;
        }
        return call(p, envelope(p, SHEAF__ENVELOPE__BODY_BIND, &body), &fd,
                fd >= 0);
}

/* Descriptors that are no sealed bitmap of that name are refused, at once,
 * and nobody else is held up or led astray by them. */
Test(resume, bitmaps_of_other_kinds_are_refused)
{
        static uint8_t bitmap[BYTES] = { 0xff };
        struct sheaf_digest name;
        struct peer p = greet();
        struct opened opened;
        int fds[6], pipes[2];
        struct sheaf_job *job;

        cr_assert_eq(open_quietly(&p, "data", &opened), 0);
        sheaf_digest_of(bitmap, BYTES, &name);
        cr_assert_eq(pipe2(pipes, O_CLOEXEC), 0);
        fds[0] = pipes[0];
        fds[1] = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        fds[2] = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        cr_assert_eq(ftruncate(fds[2], BYTES), 0);
        fds[3] = sheaf_sealed_new(bitmap, BYTES - 1);
        bitmap[0] = 0x7f;
        fds[4] = sheaf_sealed_new(bitmap, BYTES); /* has another name */
        bitmap[0] = 0xff;
        fds[5] = p.sock;
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(fds); i++) {
                cr_assert_geq(fds[i], 0);
                cr_assert_eq(
                        send_bitmap(&p, opened.handle, &name, false, fds[i]),
                        -EINVAL, "subset %zu", i);
                cr_assert_eq(
                        send_bitmap(&p, opened.handle, &name, true, fds[i]),
                        -EINVAL, "restore %zu", i);
        }
        /* none at all: it is asked for; nothing to restore from */
        cr_assert_eq(send_bitmap(&p, opened.handle, &name, false, -1), 0);
        cr_assert_eq(send_bitmap(&p, opened.handle, &name, true, -1), -EINVAL);
        job = open_job("by-hand", SHEAF_JOB_SHARED, bitmap);
        cr_assert_eq(sheaf_job_samples(job), 8);
        sheaf_job_close(job);
        cr_assert(flow_live());
        for (size_t i = 0; i < 5; i++)
                close(fds[i]);
        close(pipes[1]);
        close_opened(&opened);
        close(p.sock);
}

/* More subsets than a version may have at once: refused, and there is room
 * again when they are closed. */
Test(resume, subsets_are_bounded)
{
        static uint8_t subset[BYTES];
        static struct sheaf_job *jobs[200];
        struct sheaf_job_options options = options_of("x", SHEAF_JOB_SHARED);
        size_t count = 0;
        int rc = 0;

        options.subset = subset;
        while (count < 200 && rc == 0) {
                subset[count / 8] |= (uint8_t)(1 << count % 8);
                rc = sheaf_job_open(dataset, &options, &jobs[count]);
                count += rc == 0;
        }
        cr_assert_eq(rc, -EBUSY, "%zu: %s", count, sheaf_last_error());
        cr_assert_geq(count, 32);
        while (count)
                sheaf_job_close(jobs[--count]);
        reconnect();
        sheaf_job_close(open_job("x", SHEAF_JOB_SHARED, NULL));
}

/* ---- states ---- */

/* What goes on from: @bound slots of epoch 2 were bound, @yielded done with. */
struct checkpoint {
        struct sheaf_job_state state;
        uint8_t bitmap[BYTES];
        uint64_t had[FILES];
        uint32_t bound;
};

static void stop_at(struct sheaf_job *job, uint32_t yielded, uint32_t bound,
        struct checkpoint *c)
{
        slots_bind(job, 2, 0, bound, c->had);
        c->bound = bound;
        cr_assert_eq(sheaf_job_save(job, 2, yielded, &c->state, c->bitmap), 0,
                "%s", sheaf_last_error());
        cr_assert_eq(c->state.yielded, yielded);
        cr_assert_eq(c->state.epoch, 2);
}

/* The rest comes once; slots below @same are as they were. The next epoch is
 * whole. */
static void ends_well(
        struct sheaf_job *job, const struct checkpoint *c, uint32_t same)
{
        static uint64_t all[FILES];
        uint32_t n = sheaf_job_samples(job), at = c->state.yielded;

        memcpy(all, c->had, at * sizeof(*all));
        while (at < n) {
                uint32_t count = SHEAF_MIN(n - at, 37u);

                slots_bind(job, 2, at, count, all + at);
                at += count;
        }
        slots_each_once(all, n, FILES);
        cr_assert_eq(memcmp(all, c->had, same * sizeof(*all)), 0);
        slots_bind(job, 3, 0, n, all);
        slots_each_once(all, n, FILES);
}

static struct sheaf_job *job_of(size_t o, const uint8_t *subset)
{
        char name[32];

        snprintf(name, sizeof(name), "job-%zu", o);
        return open_job(name, orders[o], subset);
}

static struct checkpoint points[3];

/* Another neighbour moves samples about, so that slots are replaced. */
static void neighbour(uint64_t epoch)
{
        static uint64_t ordinals[FILES];
        struct sheaf_job *job = open_job("other", SHEAF_JOB_STRICT, NULL);

        slots_bind(job, epoch, 0, FILES / 3, ordinals);
        for (uint32_t i = 0; i < FILES / 3; i++) {
                struct sheaf_view view;

                cr_assert_eq(sheaf_view_file(dataset, ordinals[i], &view), 0);
                sheaf_view_release(&view);
        }
        sheaf_job_close(job);
}

static void save_all(const uint8_t *subset, const uint32_t yielded[3])
{
        neighbour(1);
        for (size_t o = 0; o < SHEAF_ARRAY_LEN(orders); o++) {
                struct sheaf_job *job = job_of(o, subset);

                stop_at(job, yielded[o], yielded[o] + 64, &points[o]);
                sheaf_job_close(job);
        }
}

/* The state of one process, for others: by journal, after a kill too. What was
 * bound ahead keeps its samples. A state without bitmap is enough. */
Test(resume, by_the_journal_nothing_changes)
{
        save_all(NULL, (const uint32_t[]){ 500, 777, 300 });
        for (int kill_it = 0; kill_it < 2; kill_it++)
                for (size_t o = 0; o < SHEAF_ARRAY_LEN(orders); o++) {
                        struct sheaf_job *job;

                        if (kill_it) {
                                flow_kill();
                                flow_start();
                        }
                        reconnect();
                        job = job_of(o, NULL);
                        cr_assert_eq(sheaf_job_restore(job, &points[o].state,
                                             kill_it ? NULL : points[o].bitmap),
                                0, "%s", sheaf_last_error());
                        ends_well(job, &points[o], points[o].bound);
                        sheaf_job_close(job);
                }
        cr_assert_eq(flow_stat("jobs.restored"), 0);
        cr_assert_eq(flow_stat("jobs.repeats"), 0);
}

static void without_journal(const uint8_t *subset, const uint32_t yielded[3])
{
        save_all(subset, yielded);
        lose_journals(-1, 0);
        for (size_t o = 0; o < SHEAF_ARRAY_LEN(orders); o++) {
                const struct checkpoint *c = &points[o];
                struct sheaf_job *job = job_of(o, subset);

                /* each rank does so; only the first makes it */
                for (int rank = 0; rank < 3; rank++) {
                        cr_assert_eq(
                                sheaf_job_restore(job, &c->state, c->bitmap), 0,
                                "%s", sheaf_last_error());
                        sheaf_job_close(job);
                        reconnect();
                        job = job_of(o, subset);
                }
                /* read before, given again: the same samples, in some order */
                if (orders[o] == SHEAF_JOB_STRICT)
                        ends_well(job, c, c->bound);
                else
                        ends_well(job, c, c->state.yielded);
                sheaf_job_close(job);
        }
        cr_assert_eq(flow_stat("jobs.restored"), 2);
}

Test(resume, by_the_bitmap_when_the_journal_is_lost)
{
        without_journal(NULL, (const uint32_t[]){ 500, 777, 300 });
}

Test(resume, by_the_bitmap_in_a_split)
{
        static uint8_t train[BYTES], val[BYTES];

        split(train, val);
        without_journal(train, (const uint32_t[]){ 500, 555, 300 });
}

/* A run that was made from a bitmap is killed, saved and made again. */
Test(resume, a_resumed_run_is_resumed)
{
        struct checkpoint *c = &points[0];
        uint32_t yielded = 200;
        struct sheaf_job *job;

        save_all(NULL, (const uint32_t[]){ 200, 200, 200 });
        for (int round = 0; round < 3; round++) {
                lose_journals(-1, 0);
                job = job_of(0, NULL);
                cr_assert_eq(sheaf_job_restore(job, &c->state, c->bitmap), 0,
                        "%s", sheaf_last_error());
                /* on, past a kill with journal */
                slots_bind(job, 2, yielded, 150, c->had + yielded);
                flow_kill();
                flow_start();
                slots_bind(job, 2, yielded + 150, 150, c->had + yielded + 150);
                yielded += 300;
                cr_assert_eq(
                        sheaf_job_save(job, 2, yielded, &c->state, c->bitmap),
                        0, "%s", sheaf_last_error());
                slots_each_once(c->had, yielded, FILES);
                sheaf_job_close(job);
        }
        job = job_of(0, NULL);
        cr_assert_eq(sheaf_job_restore(job, &c->state, NULL), 0);
        ends_well(job, c, yielded);
        sheaf_job_close(job);
}

/* Power was lost: journals end anywhere, some of them with zeros. */
Test(resume, by_the_bitmap_when_the_journal_is_cut)
{
        static const long keeps[] = { 0, 50, 80, 96, 112, 400, 2000 };

        save_all(NULL, (const uint32_t[]){ 640, 777, 300 });
        for (size_t k = 0; k < SHEAF_ARRAY_LEN(keeps); k++) {
                size_t i = SHEAF_ARRAY_LEN(keeps) - 1 - k;
                struct sheaf_job *job;

                lose_journals(keeps[i], i % 3 ? 4091 : 0);
                job = job_of(i % 2, NULL);
                cr_assert_eq(sheaf_job_restore(job, &points[i % 2].state,
                                     points[i % 2].bitmap),
                        0, "%ld: %s", keeps[i], sheaf_last_error());
                ends_well(job, &points[i % 2], points[i % 2].state.yielded);
                sheaf_job_close(job);
        }
}

/* A damaged journal stops its epoch alone, in words, until the bitmap comes. */
Test(resume, by_the_bitmap_when_the_journal_is_damaged)
{
        uint64_t ordinal;
        uint32_t slot = 0;
        struct sheaf_job *job;

        save_all(NULL, (const uint32_t[]){ 640, 777, 300 });
        flow_close(session, dataset);
        flow_kill();
        flow_ok("for f in $(find %s/jobs -name 2); do printf x | "
                "dd of=$f bs=1 seek=20 conv=notrunc status=none; done",
                flow.cache);
        flow_start();
        take_up();
        job = job_of(0, NULL);
        cr_assert_eq(sheaf_job_bind(job, 2, &slot, 1, 0, &ordinal), -EBADMSG);
        cr_assert_not_null(
                strstr(sheaf_last_error(), "bitmap"), "%s", sheaf_last_error());
        cr_assert_eq(sheaf_job_bind(job, 3, &slot, 1, 0, &ordinal), 0, "%s",
                sheaf_last_error());
        cr_assert_eq(sheaf_job_restore(job, &points[0].state, NULL), -ENODATA);
        cr_assert_eq(sheaf_job_restore(job, &points[0].state, points[0].bitmap),
                0, "%s", sheaf_last_error());
        ends_well(job, &points[0], points[0].state.yielded);
        sheaf_job_close(job);
}

Test(resume, neither_is_an_error)
{
        struct checkpoint *c = &points[0];
        struct sheaf_job_state bad;
        struct sheaf_job *job;
        uint64_t ordinals[64];

        save_all(NULL, (const uint32_t[]){ 500, 777, 300 });
        lose_journals(-1, 0);
        for (size_t o = 0; o < 2; o++) {
                job = job_of(o, NULL);
                cr_assert_eq(sheaf_job_restore(job, &points[o].state, NULL),
                        -ENODATA);
                cr_assert_not_null(strstr(sheaf_last_error(), "journal"));
                sheaf_job_close(job);
        }
        /* strict needs neither */
        job = job_of(2, NULL);
        cr_assert_eq(sheaf_job_restore(job, &points[2].state, NULL), 0, "%s",
                sheaf_last_error());
        ends_well(job, &points[2], points[2].bound);
        bad = points[2].state;
        bad.check++;
        cr_assert_eq(sheaf_job_restore(job, &bad, NULL), -EINVAL);
        sheaf_job_close(job);
        /* damaged states */
        job = job_of(0, NULL);
        bad = c->state;
        bad.samples--;
        cr_assert_eq(sheaf_job_restore(job, &bad, c->bitmap), -EINVAL);
        bad = c->state;
        bad.yielded = FILES + 1;
        cr_assert_eq(sheaf_job_restore(job, &bad, c->bitmap), -EINVAL);
        c->bitmap[3] ^= 4;
        cr_assert_eq(sheaf_job_restore(job, &c->state, c->bitmap), -EINVAL);
        c->bitmap[3] ^= 4;
        /* the epoch was begun anew, by a loader that did not restore */
        slots_bind(job, 2, 0, 64, ordinals);
        cr_assert_eq(sheaf_job_restore(job, &c->state, c->bitmap), -EEXIST);
        cr_assert_not_null(strstr(sheaf_last_error(), "name"));
        sheaf_job_close(job);
}

/* At the ends: nothing yielded, all yielded, an epoch that nobody began. */
Test(resume, at_the_ends_of_an_epoch)
{
        struct checkpoint *c = &points[0];
        struct sheaf_job *job = job_of(0, NULL);
        static uint64_t ordinals[FILES];

        stop_at(job, 0, 64, c);
        cr_assert_eq(sheaf_job_save(job, 2, 100, &c->state, NULL), 0);
        stop_at(job, FILES, FILES, c);
        for (size_t i = 0; i < FILES; i++)
                cr_assert(c->bitmap[i / 8] >> i % 8 & 1);
        cr_assert_eq(
                sheaf_job_save(job, 2, FILES + 1, &c->state, NULL), -ERANGE);
        cr_assert_eq(sheaf_job_save(job, 7, 0, &c->state, c->bitmap), 0);
        cr_assert_eq(sheaf_job_restore(job, &c->state, c->bitmap), 0);
        stop_at(job, FILES, FILES, c);
        sheaf_job_close(job);
        lose_journals(-1, 0);
        job = job_of(0, NULL);
        cr_assert_eq(sheaf_job_restore(job, &c->state, c->bitmap), 0, "%s",
                sheaf_last_error());
        slots_bind(job, 2, 0, FILES, ordinals);
        slots_each_once(ordinals, FILES, FILES);
        ends_well(job, c, FILES);
        sheaf_job_close(job);
}

/* A save asks for what is new, and gives what a save from nothing gives. */
Test(resume, saves_in_steps_agree)
{
        static uint8_t one[BYTES], other[BYTES];
        struct sheaf_job *job = job_of(0, NULL), *fresh;
        static uint64_t ordinals[FILES];
        struct sheaf_job_state a, b;

        for (uint32_t at = 100; at <= FILES; at += 100) {
                slots_bind(job, 2, 0, at, ordinals);
                cr_assert_eq(sheaf_job_save(job, 2, at, &a, one), 0);
                fresh = job_of(0, NULL);
                cr_assert_eq(sheaf_job_save(fresh, 2, at, &b, other), 0);
                sheaf_job_close(fresh);
                cr_assert_eq(memcmp(one, other, BYTES), 0);
                cr_assert_eq(a.check, b.check);
                cr_assert_eq(a.run[0], b.run[0]);
        }
        /* back, another epoch, and here again */
        cr_assert_eq(sheaf_job_save(job, 2, 50, &a, one), 0);
        cr_assert_eq(sheaf_job_save(job, 3, 50, &a, one), 0);
        cr_assert_eq(sheaf_job_save(job, 2, 1200, &a, one), 0);
        cr_assert_eq(memcmp(one, other, BYTES), 0);
        sheaf_job_close(job);
}

/* ---- replay, and loaders that lost their place ---- */

/* All epochs of a run again, in other sessions, after a kill. */
Test(resume, a_run_is_replayed)
{
        static uint64_t had[6][FILES], again[FILES];
        struct sheaf_job_options options =
                options_of("job-0", SHEAF_JOB_SHARED);
        struct sheaf_job *job = job_of(0, NULL);

        for (uint64_t epoch = 0; epoch < 6; epoch++) {
                neighbour(epoch);
                slots_bind(
                        job, epoch, 0, epoch == 4 ? 1100 : FILES, had[epoch]);
        }
        sheaf_job_close(job);
        flow_kill();
        flow_start();
        reconnect();
        options.replay = true;
        cr_assert_eq(sheaf_job_open(dataset, &options, &job), 0);
        for (uint64_t epoch = 6; epoch--;) {
                uint32_t n = epoch == 4 ? 1100 : FILES;

                slots_bind(job, epoch, 0, n, again);
                cr_assert_eq(memcmp(again, had[epoch], n * 8), 0, "epoch %d",
                        (int)epoch);
        }
        /* nothing is bound by it */
        cr_assert_eq(
                sheaf_job_bind(job, 4, (const uint32_t[]){ 1202 }, 1, 0, again),
                -ENODATA);
        cr_assert_eq(
                sheaf_job_bind(job, 9, (const uint32_t[]){ 0 }, 1, 0, again),
                -ENODATA);
        cr_assert_eq(flow_stat("jobs.bound"), 0);
        cr_assert_eq(flow_stat("jobs.repeats"), 0);
        sheaf_job_close(job);
        /* back in an early epoch, a job goes on where it was */
        job = job_of(0, NULL);
        slots_bind(job, 4, 0, FILES, again);
        slots_each_once(again, FILES, FILES);
        cr_assert_eq(memcmp(again, had[4], 1100 * 8), 0);
        sheaf_job_close(job);
}

/* Epochs in any order, more than are in memory: each keeps its samples. */
Test(resume, epochs_come_in_any_order)
{
        static const uint64_t epochs[] = { 5, 2, 6, 7, 8, 2, 5, 9, 6, 2 };
        static uint64_t had[10][FILES], again[FILES];
        struct sheaf_job *job = job_of(0, NULL);

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(epochs); i++) {
                uint64_t *of = had[epochs[i]];

                slots_bind(job, epochs[i], 0, 300, again);
                if (of[0] | of[1])
                        cr_assert_eq(memcmp(of, again, 300 * 8), 0, "epoch %d",
                                (int)epochs[i]);
                memcpy(of, again, 300 * 8);
        }
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(epochs); i++) {
                slots_bind(job, epochs[i], 0, FILES, again);
                slots_each_once(again, FILES, FILES);
                cr_assert_eq(memcmp(had[epochs[i]], again, 300 * 8), 0);
        }
        sheaf_job_close(job);
}

/* Whoever saves a state binds for those who are behind: they are not told that
 * they lost their place, while one that did is. */
Test(resume, who_is_behind_a_state_is_not_told)
{
        static uint64_t ordinals[FILES];
        struct sheaf_session *first = session;
        struct sheaf_dataset *its = dataset;
        struct sheaf_job_state state;
        struct sheaf_job *ahead = job_of(0, NULL), *behind;
        char text[300];

        take_up();
        behind = job_of(0, NULL);
        for (uint32_t at = 0; at < 600; at += 16) {
                slots_bind(ahead, 2, at, 8, ordinals);
                cr_assert_eq(
                        sheaf_job_save(ahead, 2, at + 16, &state, NULL), 0);
                slots_bind(behind, 2, at + 8, 8, ordinals);
        }
        cr_assert_eq(
                sheaf_job_warning(behind, text, sizeof(text)), 0, "%s", text);
        cr_assert_eq(flow_stat("jobs.repeats"), 0);
        for (uint32_t at = 0; at < 592; at += 8)
                slots_bind(behind, 2, at, 8, ordinals);
        cr_assert_gt(sheaf_job_warning(behind, text, sizeof(text)), 0);
        sheaf_job_close(ahead);
        sheaf_job_close(behind);
        flow_close(first, its);
}

/* A session that begins an epoch again is told so, once; one that goes on, or
 * asks again for its own, is not. */
Test(resume, a_lost_place_is_told)
{
        static uint64_t ordinals[FILES];
        struct sheaf_job *job = job_of(0, NULL);
        char text[300];

        slots_bind(job, 2, 0, 700, ordinals);
        slots_bind(job, 2, 0, 700, ordinals);
        cr_assert_eq(sheaf_job_warning(job, text, sizeof(text)), 0);
        sheaf_job_close(job);
        reconnect();
        job = job_of(0, NULL);
        for (uint32_t at = 700 - 64; at < 900; at += 16)
                slots_bind(job, 2, at, 16, ordinals);
        cr_assert_eq(sheaf_job_warning(job, text, sizeof(text)), 0, "%s", text);
        sheaf_job_close(job);
        cr_assert_eq(flow_stat("jobs.repeats"), 0);
        reconnect();
        job = job_of(0, NULL);
        for (uint32_t at = 0; at < 400; at += 16)
                slots_bind(job, 2, at, 16, ordinals);
        cr_assert_gt(sheaf_job_warning(job, text, sizeof(text)), 0);
        cr_assert_not_null(strstr(text, "job-0"), "%s", text);
        cr_assert_not_null(strstr(text, "epoch 2"), "%s", text);
        cr_assert_eq(sheaf_job_warning(job, text, sizeof(text)), 0);
        cr_assert_eq(flow_stat("jobs.repeats"), 1);
        flow_ok("grep -q 'slots asked for again' %s", flow.log);
        sheaf_job_close(job);
}
