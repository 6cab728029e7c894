/* SPDX-License-Identifier: Apache-2.0 */
/* Journals: what was appended is read, a torn end is not, damage and other
 * jobs are refused. */
#include "daemon/epoch/journal.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char dir[64];
static const struct sheaf_journal_job job = {
        .samples = 5000, .order = SHEAF_ORDER_SHARED, .seed = 77
};

static void setup(void)
{
        strcpy(dir, "/tmp/sheaf-journal-XXXXXX");
        cr_assert_not_null(mkdtemp(dir));
}

static void teardown(void)
{
        char command[128];

        snprintf(command, sizeof(command), "rm -rf -- '%s'", dir);
        cr_assert_eq(system(command), 0);
}

TestSuite(journal, .init = setup, .fini = teardown);

static int write_epoch(uint64_t epoch, uint32_t replaced)
{
        struct sheaf_journal_record records[SHEAF_JOURNAL_HEAD + 2000];
        struct sheaf_run_state state = { .seed = 1000 + epoch,
                .stream = 2000 + epoch };
        size_t n = SHEAF_JOURNAL_HEAD;

        sheaf_journal_head(&job, &state, records);
        records[n++] = sheaf_journal_mark(4096);
        for (uint32_t i = 0; i < replaced; i++)
                records[n++] = sheaf_journal_replaced(i, i + 1);
        return sheaf_journal_append(dir, epoch, true, records, n);
}

static int read_all(struct sheaf_journal *journal)
{
        const char *field = NULL;

        return sheaf_journal_read(dir, &job, journal, &field);
}

static void path_of(uint64_t epoch, char path[128])
{
        snprintf(path, 128, "%s/%llu", dir, (unsigned long long)epoch);
}

Test(journal, what_was_appended_is_read)
{
        struct sheaf_journal_record more[2] = { sheaf_journal_mark(4999),
                sheaf_journal_replaced(4500, 3) };
        struct sheaf_journal journal;

        cr_assert_eq(read_all(&journal), 0);
        cr_assert_eq(journal.count, 0);
        cr_assert_eq(write_epoch(7, 10), 0);
        cr_assert_eq(sheaf_journal_append(dir, 7, false, more, 2), 0);
        cr_assert_eq(read_all(&journal), 0);
        cr_assert_eq(journal.count, 1);
        cr_assert_eq(journal.states[0].epoch, 7);
        cr_assert_eq(journal.states[0].seed, 1007);
        cr_assert_eq(journal.states[0].stream, 2007);
        cr_assert_eq(journal.states[0].high, 4999);
        cr_assert_eq(journal.states[0].replaced_count, 11);
        cr_assert_eq(journal.states[0].replaced[9][0], 9);
        cr_assert_eq(journal.states[0].replaced[9][1], 10);
        cr_assert_eq(journal.states[0].replaced[10][0], 4500);
        sheaf_journal_clear(&journal);
}

Test(journal, all_are_kept_and_the_newest_read)
{
        struct sheaf_journal journal;
        const char *field;

        for (uint64_t epoch = 0; epoch < 12; epoch++)
                cr_assert_eq(write_epoch(epoch, 1), 0);
        cr_assert_eq(read_all(&journal), 0);
        cr_assert_eq(journal.count, SHEAF_JOURNAL_EPOCHS);
        cr_assert(journal.any);
        cr_assert_eq(journal.newest, 11);
        for (size_t i = 0; i < journal.count; i++)
                cr_assert_eq(
                        journal.states[i].epoch, 12 - SHEAF_JOURNAL_EPOCHS + i);
        sheaf_journal_clear(&journal);
        for (uint64_t epoch = 0; epoch < 12; epoch++) {
                cr_assert_eq(
                        sheaf_journal_load(dir, epoch, &job, &journal, &field),
                        0);
                cr_assert_eq(journal.count, 1);
                cr_assert_eq(journal.states[0].seed, 1000 + epoch);
                sheaf_journal_clear(&journal);
        }
        cr_assert_eq(sheaf_journal_load(dir, 12, &job, &journal, &field), 0);
        cr_assert_eq(journal.count, 0);
}

/* Cut at every length: what stands before the cut is read, and appending goes
 * on from there. */
Test(journal, a_torn_end_is_left_out)
{
        const size_t record = sizeof(struct sheaf_journal_record);
        struct sheaf_journal_record more = sheaf_journal_replaced(77, 78);

        for (size_t cut = 0; cut <= 10 * record; cut++) {
                struct sheaf_journal journal;
                size_t whole = cut / record;
                char path[128];

                cr_assert_eq(write_epoch(3, 20), 0);
                path_of(3, path);
                cr_assert_eq(truncate(path, (off_t)cut), 0);
                cr_assert_eq(read_all(&journal), 0);
                cr_assert_eq(journal.count, whole >= SHEAF_JOURNAL_HEAD);
                if (!journal.count)
                        continue;
                cr_assert_eq(journal.states[0].replaced_count,
                        whole > SHEAF_JOURNAL_HEAD
                                ? whole - SHEAF_JOURNAL_HEAD - 1
                                : 0);
                sheaf_journal_clear(&journal);
                cr_assert_eq(sheaf_journal_append(dir, 3, false, &more, 1), 0);
                cr_assert_eq(read_all(&journal), 0);
                cr_assert_eq(
                        journal.states[0]
                                .replaced[journal.states[0].replaced_count - 1]
                                         [0],
                        77);
                sheaf_journal_clear(&journal);
        }
}

/* Puts @len bytes over what stands at @at, or behind it. */
static void put(uint64_t epoch, off_t at, const void *bytes, size_t len)
{
        char path[128];
        int fd;

        path_of(epoch, path);
        fd = open(path, O_RDWR | O_CLOEXEC);
        cr_assert_geq(fd, 0);
        cr_assert_eq(pwrite(fd, bytes, len, at), (ssize_t)len);
        close(fd);
}

static void sum_of(uint64_t epoch, struct sheaf_journal_sum *ret_sum)
{
        int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        cr_assert_geq(fd, 0);
        cr_assert_eq(sheaf_journal_sum(fd, epoch, ret_sum), 0);
        close(fd);
}

/* A loss of power leaves the file's length without what was written last:
 * zeros, or another file's bytes, from any record on and up to a length that
 * ends within one. */
Test(journal, an_empty_end_is_left_out)
{
        static uint8_t end[8192];
        const size_t size = sizeof(struct sheaf_journal_record);
        struct sheaf_journal_record more = sheaf_journal_replaced(77, 78);
        const size_t all = SHEAF_JOURNAL_HEAD + 1 + 20;

        for (size_t i = 0; i < 3 * (all + 1); i++) {
                size_t whole = i / 3, within = i % 3 == 2 ? 7 : 0;
                struct sheaf_journal journal;
                struct sheaf_journal_sum sum;
                const char *field;
                bool zeros = i % 3 != 1;
                size_t marks = whole > SHEAF_JOURNAL_HEAD;

                memset(end, zeros ? 0 : 0x66, sizeof(end));
                cr_assert_eq(write_epoch(3, 20), 0);
                put(3, (off_t)(whole * size + within), end, sizeof(end) - 5);
                sum_of(3, &sum);
                cr_assert_eq(sum.high, marks ? 4096 : 0);
                cr_assert_eq(sum.replaced,
                        marks ? whole - SHEAF_JOURNAL_HEAD - 1 : 0);
                if (!zeros && whole < SHEAF_JOURNAL_HEAD) {
                        cr_assert_eq(sheaf_journal_load(
                                             dir, 3, &job, &journal, &field),
                                -EBADMSG, "%zu", whole);
                        continue;
                }
                cr_assert_eq(
                        sheaf_journal_load(dir, 3, &job, &journal, &field), 0);
                cr_assert_eq(journal.count, whole >= SHEAF_JOURNAL_HEAD);
                if (!journal.count)
                        continue;
                cr_assert_eq(journal.states[0].seed, 1003);
                cr_assert_eq(journal.states[0].replaced_count, sum.replaced);
                sheaf_journal_clear(&journal);
                cr_assert_eq(sheaf_journal_append(dir, 3, false, &more, 1), 0);
                cr_assert_eq(read_all(&journal), 0);
                cr_assert_eq(
                        journal.states[0].replaced_count, sum.replaced + 1);
                sheaf_journal_clear(&journal);
        }
}

/* The shortest jobs have the most of it in their last block. */
Test(journal, an_empty_end_of_a_small_job)
{
        const struct sheaf_journal_job small = { .samples = 1,
                .order = SHEAF_ORDER_SHARED };
        struct sheaf_run_state state = { .seed = 4, .stream = 5 };
        struct sheaf_journal_record head[SHEAF_JOURNAL_HEAD];
        static const uint8_t end[32768];
        struct sheaf_journal journal;
        const char *field;

        sheaf_journal_head(&small, &state, head);
        cr_assert_eq(
                sheaf_journal_append(dir, 1, true, head, SHEAF_JOURNAL_HEAD),
                0);
        put(1, sizeof(head), end, sizeof(end));
        cr_assert_eq(sheaf_journal_load(dir, 1, &small, &journal, &field), 0);
        cr_assert_eq(journal.count, 1);
        cr_assert_eq(journal.states[0].stream, 5);
        sheaf_journal_clear(&journal);
}

/* Zeros with good records behind them: what they were may have been answered.
 */
Test(journal, a_hole_is_refused)
{
        static const uint8_t zeros[32];
        const off_t size = sizeof(struct sheaf_journal_record);

        for (off_t at = 0; at < SHEAF_JOURNAL_HEAD + 20 - 2; at++) {
                struct sheaf_journal journal;
                const char *field;

                cr_assert_eq(write_epoch(3, 20), 0);
                put(3, at * size, zeros, sizeof(zeros));
                cr_assert_eq(sheaf_journal_load(dir, 3, &job, &journal, &field),
                        -EBADMSG, "record %d", (int)at);
        }
}

/* A disk that is full in the midst of a record. */
Test(journal, a_failed_append_leaves_no_half_record)
{
        struct sheaf_journal_record more = sheaf_journal_replaced(77, 78);
        const size_t size = sizeof(more);
        struct rlimit old, limit;
        struct sheaf_journal journal;

        signal(SIGXFSZ, SIG_IGN);
        cr_assert_eq(write_epoch(3, 20), 0);
        cr_assert_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
        limit = old;
        limit.rlim_cur = (SHEAF_JOURNAL_HEAD + 1 + 20) * size + 7;
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        cr_assert_eq(sheaf_journal_append(dir, 3, false, &more, 1), -EFBIG);
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
        cr_assert_eq(sheaf_journal_append(dir, 3, false, &more, 1), 0);
        cr_assert_eq(read_all(&journal), 0);
        cr_assert_eq(journal.count, 1);
        cr_assert_eq(journal.states[0].replaced_count, 21);
        sheaf_journal_clear(&journal);
}

Test(journal, a_flipped_byte_is_refused)
{
        const off_t bytes = (SHEAF_JOURNAL_HEAD + 1 + 20) *
                            (off_t)sizeof(struct sheaf_journal_record);
        char path[128];

        path_of(3, path);
        /* the last record may be taken for a torn one */
        for (off_t at = 0; at < bytes - 16; at++) {
                struct sheaf_journal journal;
                const char *field;
                uint8_t byte;
                int fd;

                cr_assert_eq(write_epoch(3, 20), 0);
                fd = open(path, O_RDWR | O_CLOEXEC);
                cr_assert_geq(fd, 0);
                cr_assert_eq(pread(fd, &byte, 1, at), 1);
                byte ^= 0x10;
                cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
                close(fd);
                cr_assert_eq(sheaf_journal_load(dir, 3, &job, &journal, &field),
                        -EBADMSG, "byte %d", (int)at);
                /* others go on without it */
                cr_assert_eq(read_all(&journal), 0);
                cr_assert_eq(journal.count, 0);
                cr_assert_eq(journal.newest, 3);
        }
}

Test(journal, another_job_is_named)
{
        struct sheaf_journal_job others[] = { job, job, job, job };
        static const char *const fields[] = { "samples", "order", "window",
                "seed" };
        struct sheaf_journal journal;

        others[0].samples++;
        others[1].order = SHEAF_ORDER_STRICT;
        others[2].window = 9;
        others[3].seed++;
        cr_assert_eq(write_epoch(3, 2), 0);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(others); i++) {
                const char *field = NULL;

                cr_assert_eq(
                        sheaf_journal_read(dir, &others[i], &journal, &field),
                        -EINVAL);
                cr_assert_not_null(strstr(field, fields[i]));
        }
}

Test(journal, other_files_are_left_alone)
{
        struct sheaf_journal journal;
        char path[128];
        int fd;

        snprintf(path, sizeof(path), "%s/README", dir);
        fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        cr_assert_geq(fd, 0);
        close(fd);
        for (uint64_t epoch = 0; epoch < 5; epoch++)
                cr_assert_eq(write_epoch(epoch, 1), 0);
        cr_assert_eq(read_all(&journal), 0);
        cr_assert_eq(journal.count, SHEAF_JOURNAL_EPOCHS);
        cr_assert_eq(access(path, F_OK), 0);
        sheaf_journal_clear(&journal);
        cr_assert_eq(sheaf_journal_append("/proc/nothing", 1, true, NULL, 0),
                -ENOENT);
}
