/* SPDX-License-Identifier: Apache-2.0 */
/* Journals (journal.h).
 *
 *  1 records do not depend on one another's order, but for the head
 *  2 nothing is taken from a file whose head does not fit the job
 *  3 a file with a damaged record before a good one is refused: what it lacks
 *    may have been answered. Damaged ones up to the end are an end that was
 *    torn, or that a loss of power left empty: what stands before is used */
#include "daemon/epoch/journal.h"
#include "proto/io.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#define LAYOUT 1
/* Records of a torn end, at most: 64 KiB. */
#define TORN_MAX 4096

enum kind {
        JOB = 1,  /* layout, samples */
        ORDER,    /* order, window */
        SEED,     /* of the job: low, high word */
        TARGETS,  /* seed of the permutation */
        STREAM,   /* its stream */
        MARK,     /* slots below may be bound */
        REPLACED, /* slot, sample */
};

static struct sheaf_journal_record record(
        enum kind kind, uint32_t a, uint32_t b)
{
        uint64_t h = ((uint64_t)a << 32 | b) * UINT64_C(0x9e3779b97f4a7c15) +
                     (uint64_t)kind;

        h = (h ^ (h >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
        return (struct sheaf_journal_record){ (uint32_t)kind, a, b,
                (uint32_t)(h >> 32) };
}

/* Zeros are none, though their check fits. */
static bool is_good(const struct sheaf_journal_record *r)
{
        return r->kind &&
               r->check == record((enum kind)r->kind, r->a, r->b).check;
}

static struct sheaf_journal_record record64(enum kind kind, uint64_t value)
{
        return record(kind, (uint32_t)value, (uint32_t)(value >> 32));
}

void sheaf_journal_head(const struct sheaf_journal_job *job,
        const struct sheaf_run_state *state,
        struct sheaf_journal_record ret_records[SHEAF_JOURNAL_HEAD])
{
        ret_records[0] = record(JOB, LAYOUT, job->samples);
        ret_records[1] = record(ORDER, job->order, job->window);
        ret_records[2] = record64(SEED, job->seed);
        ret_records[3] = record64(TARGETS, state->seed);
        ret_records[4] = record64(STREAM, state->stream);
}

struct sheaf_journal_record sheaf_journal_mark(uint32_t high)
{
        return record(MARK, high, 0);
}

struct sheaf_journal_record sheaf_journal_replaced(
        uint32_t slot, uint32_t sample)
{
        return record(REPLACED, slot, sample);
}

/* ---- files ---- */

bool sheaf_journal_name(const char *name, uint64_t *ret_epoch)
{
        char *end;

        if (*name < '0' || *name > '9')
                return false;
        errno = 0;
        *ret_epoch = strtoull(name, &end, 10);
        return !*end && !errno;
}

/* Epochs in @dir, newest first, up to SHEAF_JOURNAL_EPOCHS. */
static int newest(
        int dir, uint64_t epochs[SHEAF_JOURNAL_EPOCHS], size_t *ret_count)
{
        int fd = sheaf_again(
                openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        DIR *list = fd < 0 ? NULL : fdopendir(fd);
        struct dirent *entry;
        size_t count = 0;

        if (!list) {
                int rc = -errno;

                sheaf_close_p(&fd);
                return rc;
        }
        while ((entry = readdir(list))) {
                uint64_t epoch;
                size_t at;

                if (!sheaf_journal_name(entry->d_name, &epoch))
                        continue;
                for (at = count; at && epochs[at - 1] < epoch; at--)
                        if (at < SHEAF_JOURNAL_EPOCHS)
                                epochs[at] = epochs[at - 1];
                if (at < SHEAF_JOURNAL_EPOCHS)
                        epochs[at] = epoch;
                count = SHEAF_MIN(count + 1, (size_t)SHEAF_JOURNAL_EPOCHS);
        }
        closedir(list);
        *ret_count = count;
        return 0;
}

/* After a write that failed: what comes next begins where a record does. Where
 * that fails too, the next reader finds damage, and says so. */
static void cut_torn(int fd)
{
        const off_t size = sizeof(struct sheaf_journal_record);
        struct stat st;

        if (fstat(fd, &st) == 0 && st.st_size % size)
                (void)!sheaf_again(
                        ftruncate(fd, st.st_size - st.st_size % size));
}

int sheaf_journal_append(const char *dir, uint64_t epoch, bool begins,
        const struct sheaf_journal_record *records, size_t count)
{
        sheaf_autofd int at = -1, fd = -1;
        char name[24];
        int rc;

        if (begins && mkdir(dir, 0700) && errno != EEXIST)
                return -errno;
        at = sheaf_again(open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (at < 0)
                return -errno;
        snprintf(name, sizeof(name), "%llu", (unsigned long long)epoch);
        fd = sheaf_again(openat(at, name,
                O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW |
                        (begins ? O_CREAT | O_TRUNC : 0),
                0600));
        if (fd < 0)
                return -errno;
        rc = sheaf_write_all(fd, records, count * sizeof(*records));
        if (rc < 0)
                cut_torn(fd);
        return rc;
}

int sheaf_journal_flush(const char *dir, uint64_t epoch)
{
        sheaf_autofd int at =
                sheaf_again(open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        sheaf_autofd int fd = -1;
        char name[24];

        if (at < 0)
                return -errno;
        snprintf(name, sizeof(name), "%llu", (unsigned long long)epoch);
        fd = sheaf_again(openat(at, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
        if (fd < 0 || sheaf_again(fdatasync(fd)) || sheaf_again(fsync(at)))
                return -errno;
        return 0;
}

/* ---- reading ---- */

struct reading {
        const struct sheaf_journal_job *job;
        struct sheaf_run_state *state;
        uint32_t (*replaced)[2];
        const char **field;
};

static int differs(const struct reading *r, const char *field)
{
        *r->field = field;
        return -EINVAL;
}

static uint64_t value_of(const struct sheaf_journal_record *record)
{
        return (uint64_t)record->b << 32 | record->a;
}

/* Records 0 .. SHEAF_JOURNAL_HEAD - 1. */
static int take_head(struct reading *r, const struct sheaf_journal_record *head)
{
        for (uint32_t i = 0; i < SHEAF_JOURNAL_HEAD; i++)
                if (head[i].kind != JOB + i)
                        return -EBADMSG;
        if (head[0].a != LAYOUT)
                return differs(r, "the release of Sheaf");
        if (head[0].b != r->job->samples)
                return differs(r, "the number of samples");
        if (head[1].a != r->job->order)
                return differs(r, "the order");
        if (head[1].b != r->job->window)
                return differs(r, "the window");
        if (value_of(&head[2]) != r->job->seed)
                return differs(r, "the seed");
        r->state->seed = value_of(&head[3]);
        r->state->stream = value_of(&head[4]);
        return 0;
}

static bool all_zero(const struct sheaf_journal_record *records, size_t count)
{
        const unsigned char *bytes = (const unsigned char *)records;

        for (size_t i = 0; i < count * sizeof(*records); i++)
                if (bytes[i])
                        return false;
        return true;
}

/* Less a torn end. -EBADMSG: not torn but damaged. */
static int cut_end(const struct sheaf_journal_record *records, size_t *io_count)
{
        size_t count = *io_count, whole = 0;

        while (whole < count && is_good(&records[whole]))
                whole++;
        for (size_t i = whole; i < count; i++)
                if (is_good(&records[i]))
                        return -EBADMSG;
        /* Without a head, anything but an end that was never written, behind
         * a torn record, may be what was left of answers. */
        if (whole < SHEAF_JOURNAL_HEAD && count > whole &&
                !all_zero(records + whole + 1, count - whole - 1))
                return -EBADMSG;
        *io_count = whole;
        return 0;
}

/* @io_count: less a torn end afterwards. 1: taken; 0: it has nothing. */
static int take_records(struct reading *r,
        const struct sheaf_journal_record *records, size_t *io_count)
{
        size_t n = 0, count;
        int rc = cut_end(records, io_count);

        if (rc < 0)
                return rc;
        count = *io_count;
        if (count < SHEAF_JOURNAL_HEAD)
                return 0; /* nothing was answered */
        rc = take_head(r, records);
        if (rc < 0)
                return rc;
        for (size_t i = SHEAF_JOURNAL_HEAD; i < count; i++) {
                if (records[i].kind == MARK) {
                        r->state->high =
                                SHEAF_MAX(r->state->high, records[i].a);
                } else if (records[i].kind == REPLACED) {
                        r->replaced[n][0] = records[i].a;
                        r->replaced[n++][1] = records[i].b;
                } else {
                        return -EBADMSG;
                }
        }
        r->state->replaced = (const uint32_t(*)[2])r->replaced;
        r->state->replaced_count = n;
        return 1;
}

/* 1: taken; 0: it has nothing. */
static int read_epoch(int dir, uint64_t epoch, struct sheaf_journal *journal,
        const struct sheaf_journal_job *job, const char **ret_field)
{
        struct reading r = { .job = job,
                .state = &journal->states[journal->count],
                .field = ret_field };
        sheaf_autofree struct sheaf_journal_record *records = NULL;
        sheaf_autofd int fd = -1;
        struct stat st;
        char name[24];
        size_t done = 0, len;
        int rc;

        snprintf(name, sizeof(name), "%llu", (unsigned long long)epoch);
        fd = sheaf_again(openat(dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
        if (fd < 0 || fstat(fd, &st))
                return -errno;
        /* A slot is written once, a mark a step: more is damage. */
        len = (size_t)st.st_size;
        if (len / sizeof(*records) > 2 * (uint64_t)job->samples + TORN_MAX)
                return -EBADMSG;
        records = malloc(len + 1);
        r.replaced = calloc(len / sizeof(*records) + 1, sizeof(*r.replaced));
        if (!records || !r.replaced) {
                free(r.replaced);
                return -ENOMEM;
        }
        journal->replaced[journal->count] = r.replaced;
        while (done < len) {
                ssize_t n = sheaf_again(pread(
                        fd, (char *)records + done, len - done, (off_t)done));

                if (n < 0)
                        return -errno;
                if (!n)
                        break;
                done += (size_t)n;
        }
        *r.state = (struct sheaf_run_state){ .epoch = epoch };
        done /= sizeof(*records);
        rc = take_records(&r, records, &done);
        /* What comes next must begin where a record does. */
        if (rc >= 0 && done * sizeof(*records) != len &&
                sheaf_again(ftruncate(fd, (off_t)(done * sizeof(*records)))))
                return -errno;
        journal->count += rc == 1;
        return rc;
}

/* Those of @epochs that have something, the last one first. */
static int read_epochs(int dir, const uint64_t *epochs, size_t count,
        bool passes_damage, const struct sheaf_journal_job *job,
        struct sheaf_journal *ret_journal, const char **ret_field)
{
        struct sheaf_journal journal = { 0 };
        int rc = 0;

        for (size_t i = count; rc >= 0 && i--;) {
                rc = read_epoch(dir, epochs[i], &journal, job, ret_field);
                if (rc == -EBADMSG && passes_damage)
                        rc = 0;
                if (rc == 0) {
                        free(journal.replaced[journal.count]);
                        journal.replaced[journal.count] = NULL;
                }
        }
        if (rc < 0) {
                sheaf_journal_clear(&journal);
                return rc;
        }
        *ret_journal = journal;
        return 0;
}

int sheaf_journal_read(const char *dir, const struct sheaf_journal_job *job,
        struct sheaf_journal *ret_journal, const char **ret_field)
{
        sheaf_autofd int at =
                sheaf_again(open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        uint64_t epochs[SHEAF_JOURNAL_EPOCHS];
        size_t count = 0;
        int rc = 0;

        if (at < 0 && errno != ENOENT)
                return -errno;
        if (at >= 0)
                rc = newest(at, epochs, &count);
        if (rc == 0)
                rc = read_epochs(
                        at, epochs, count, true, job, ret_journal, ret_field);
        if (rc == 0 && count) {
                ret_journal->any = true;
                ret_journal->newest = epochs[0];
        }
        return rc;
}

int sheaf_journal_load(const char *dir, uint64_t epoch,
        const struct sheaf_journal_job *job, struct sheaf_journal *ret_journal,
        const char **ret_field)
{
        sheaf_autofd int at =
                sheaf_again(open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        int rc = at < 0 ? -errno
                        : read_epochs(at, &epoch, 1, false, job, ret_journal,
                                  ret_field);

        if (rc != -ENOENT)
                return rc;
        *ret_journal = (struct sheaf_journal){ 0 };
        return 0;
}

void sheaf_journal_clear(struct sheaf_journal *journal)
{
        for (size_t i = 0; i < SHEAF_JOURNAL_EPOCHS; i++)
                free(journal->replaced[i]);
        *journal = (struct sheaf_journal){ 0 };
}

int sheaf_journal_sum(
        int dir, uint64_t epoch, struct sheaf_journal_sum *ret_sum)
{
        struct sheaf_journal_record records[512];
        struct sheaf_journal_sum sum = { 0 };
        sheaf_autofd int fd = -1;
        struct stat st;
        char name[24];

        snprintf(name, sizeof(name), "%llu", (unsigned long long)epoch);
        fd = sheaf_again(openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
        if (fd < 0 || fstat(fd, &st))
                return -errno;
        sum.bytes = (uint64_t)st.st_blocks * 512;
        for (off_t at = 0; at < st.st_size;) {
                ssize_t n =
                        sheaf_again(pread(fd, records, sizeof(records), at));

                if (n < 0)
                        return -errno;
                for (size_t i = 0; i < (size_t)n / sizeof(records[0]); i++) {
                        if (!is_good(&records[i]))
                                continue;
                        if (records[i].kind == MARK)
                                sum.high = SHEAF_MAX(sum.high, records[i].a);
                        sum.replaced += records[i].kind == REPLACED;
                }
                if (n < (ssize_t)sizeof(records))
                        break;
                at += n;
        }
        *ret_sum = sum;
        return 0;
}
