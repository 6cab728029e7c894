/* SPDX-License-Identifier: Apache-2.0 */
/* Journals: what was appended is read, a torn end is not, damage and other
 * jobs are refused. */
#include "daemon/epoch/journal.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
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
