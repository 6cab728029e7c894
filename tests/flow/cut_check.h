/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a disk image holds a cache that recovers by itself: mounted, opened
 * through the store's own calls, every byte compared. */
#ifndef SHEAF_TESTS_FLOW_CUT_CHECK_H
#define SHEAF_TESTS_FLOW_CUT_CHECK_H

#include "proto/digest.h"
#include "tests/flow/cut_jobs.h"

/* Stamped files that ever were at an origin, by id and size. A file's name is
 * f and its id; its content's stamp tells its size too (cut_stamp). */
struct cut_file {
        uint32_t id;
        uint64_t size_bytes;
        struct sheaf_digest *digests; /* of its chunks */
};

struct cut_truth {
        struct cut_file *files;
        size_t count, cap;
        struct cut_jobs jobs;
};

/* The stamp of file @id when it has @size_bytes: the last digit of the size,
 * in octal, is its generation. */
static inline uint32_t cut_stamp(uint32_t id, uint64_t size_bytes)
{
        return id + 100000 * (uint32_t)(size_bytes % 8);
}

void cut_truth_add(struct cut_truth *truth, uint32_t id, uint64_t size_bytes);
/* Once all are there, before any check. */
void cut_truth_sort(struct cut_truth *truth);
void cut_truth_clear(struct cut_truth *truth);
/* NULL: there never was such a file. */
const struct cut_file *cut_truth_find(
        const struct cut_truth *truth, uint32_t id, uint64_t size_bytes);

/* What may be true of something:
 *
 *   NAME         a dataset: "absent", or gN for its newest version (N:
 *                generation of its first file), with s behind it when sealed
 *   share:NAME   who may read it: "owner", "group:GID", "all"; "absent"
 *   grant:LABEL  "there", "absent" */
struct cut_claim {
        char name[32];
        char states[6][12];
        unsigned int count;
        /* Bytes that a clean stop left on disk; 0: none are owed. */
        uint64_t disk_bytes;
};

struct cut_claims {
        struct cut_claim claims[16];
        unsigned int count;
        struct cut_jobs_claims jobs;
};

/* Shared with the child that checks. */
struct cut_report {
        char text[1024]; /* what is wrong; "" */
        bool no_mount;   /* the file system itself did not come back */
        uint64_t states, unclean, chunks, served, passed_through;
        uint64_t bad_headers, bad_payloads, rewritten;
        double open_s_max;
        struct cut_jobs_figures jobs;
};

struct cut_report *cut_report_new(void);

struct cut_setting {
        const char *dir;    /* an empty directory to mount at */
        const char *sub;    /* of the cache, in the image */
        uint64_t bytes_max; /* of the store */
        bool uring;
};

/* Mounts @image_fd in a child and checks it, changing the image:
 *
 *  - the store opens within 5 s
 *  - each dataset is as one of its claims says, its listings are whole; who
 *    may read it and what was granted are as claimed; no number of a dataset
 *    or a grant is given out again
 *  - of journals of jobs a beginning is there, as cut_jobs.h says
 *  - a learned digest is the right one, a sealed version knows all of them
 *  - every chunk that is served has its bytes; so has every file that is
 *    handed out for passthrough
 *  - usage is what du says, nothing is degraded, missing chunks can be
 *    written again
 *  - after a clean stop all that was there is there again
 *
 * 0; -EBADMSG with @report->text; -ENODEV when ext4 cannot be mounted. */
int cut_check(int image_fd, const struct cut_setting *setting,
        const struct cut_truth *truth, const struct cut_claims *claims,
        struct cut_report *report);

#endif
