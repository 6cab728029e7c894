/* SPDX-License-Identifier: Apache-2.0 */
/* What was bound, for a process that takes over after this one was killed.
 *
 *   DIR/EPOCH     records of 16 bytes, appended
 *
 * An epoch's file begins with what the job is and which permutation its run
 * has; then come marks (slots below it may be bound) and the slots that hold
 * another sample than their target. Written before the slot's answer is given:
 * so it survives SIGKILL of the daemon, though a loss of power only when it was
 * flushed, as it is when the job ends.
 *
 * Threads: functions on files block and keep nothing; any thread, calls for
 * one epoch's beginning before others of that epoch. */
#ifndef SHEAF_DAEMON_EPOCH_JOURNAL_H
#define SHEAF_DAEMON_EPOCH_JOURNAL_H

#include "daemon/epoch/order.h"

#define SHEAF_JOURNAL_EPOCHS SHEAF_RUNS_PER_JOB /* read at once */
/* Records of an epoch's beginning. */
#define SHEAF_JOURNAL_HEAD 5

struct sheaf_journal_record {
        uint32_t kind, a, b, check;
};

/* What a job is; all of it must be the same when it goes on. */
struct sheaf_journal_job {
        uint32_t samples, order, window;
        uint64_t seed;
};

void sheaf_journal_head(const struct sheaf_journal_job *job,
        const struct sheaf_run_state *state,
        struct sheaf_journal_record ret_records[SHEAF_JOURNAL_HEAD]);
struct sheaf_journal_record sheaf_journal_mark(uint32_t high);
struct sheaf_journal_record sheaf_journal_replaced(
        uint32_t slot, uint32_t sample);

/* Appends to the file of @epoch. With @begins it is made with its directory
 * (one level) if absent, and empty before. -errno: -ENOENT. */
SHEAF_MUST_CHECK int sheaf_journal_append(const char *dir, uint64_t epoch,
        bool begins, const struct sheaf_journal_record *records, size_t count);

/* What was appended to the file of @epoch is on disk after it, as is its name.
 * -errno: -ENOENT there is none. */
SHEAF_MUST_CHECK int sheaf_journal_flush(const char *dir, uint64_t epoch);

struct sheaf_journal {
        struct sheaf_run_state states[SHEAF_JOURNAL_EPOCHS]; /* oldest first */
        size_t count;
        uint64_t newest; /* epoch that has a file, though perhaps no state */
        bool any;        /* there is one */
        /* private */
        uint32_t (*replaced[SHEAF_JOURNAL_EPOCHS])[2];
};

/* Reads the newest epochs. An end without a good record (a torn one, zeros
 * after a loss of power) is left out, and cut from the file. No directory:
 * none. What is damaged before its end is passed over here. -EINVAL: of another
 * job, @ret_field (static) names what differs; -errno. */
SHEAF_MUST_CHECK int sheaf_journal_read(const char *dir,
        const struct sheaf_journal_job *job, struct sheaf_journal *ret_journal,
        const char **ret_field);
/* The same of @epoch alone, if it is there. -EBADMSG: it is damaged. */
SHEAF_MUST_CHECK int sheaf_journal_load(const char *dir, uint64_t epoch,
        const struct sheaf_journal_job *job, struct sheaf_journal *ret_journal,
        const char **ret_field);
void sheaf_journal_clear(struct sheaf_journal *journal);

/* An epoch's number from a file's name, which is that alone. */
bool sheaf_journal_name(const char *name, uint64_t *ret_epoch);
struct sheaf_journal_sum {
        uint32_t high, replaced;
        uint64_t bytes; /* on disk */
};
/* Sums an epoch's file up, @dir being its directory's descriptor. -errno. */
SHEAF_MUST_CHECK int sheaf_journal_sum(
        int dir, uint64_t epoch, struct sheaf_journal_sum *ret_sum);

#endif
