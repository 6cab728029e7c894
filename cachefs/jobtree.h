/* SPDX-License-Identifier: Apache-2.0 */
/* The hidden directory of a mount, by names and numbers:
 *
 *   .sheaf / jobs / JOB[,OPTION...] / EPOCH / SLOT -> the slot's sample
 *
 * Every node but JOB follows from the number of slots, so that a mount keeps
 * nothing but a table of jobs. Pure; no waiting; any thread. */
#ifndef SHEAF_CACHEFS_JOBTREE_H
#define SHEAF_CACHEFS_JOBTREE_H

#include "client/sheaf.h"
#include "proto/base.h"

#include <limits.h>
#include <sys/stat.h>

#define SHEAF_JOBTREE_NAME       ".sheaf"
#define SHEAF_JOBTREE_JOBS_MAX   65536 /* that one mount can name */
#define SHEAF_JOBTREE_EPOCHS     (UINT32_C(1) << 22)
#define SHEAF_JOBTREE_NAME_MAX   128
#define SHEAF_JOBTREE_AHEAD_MAX  1024
#define SHEAF_JOBTREE_AHEAD      32 /* slots, unless asked for */
#define SHEAF_JOBTREE_DIGITS_MAX 10

/* Node ids from here on are of this tree; the listing's are below. */
#define SHEAF_JOBTREE_NODES (UINT64_C(1) << 63)

enum sheaf_jobtree_kind {
        SHEAF_JOBTREE_TOP, /* .sheaf */
        SHEAF_JOBTREE_JOBS,
        SHEAF_JOBTREE_JOB,
        SHEAF_JOBTREE_EPOCH,
        SHEAF_JOBTREE_SLOT,
};

struct sheaf_jobtree_node {
        enum sheaf_jobtree_kind kind;
        uint32_t job, epoch, slot;
};

static inline bool sheaf_jobtree_has(uint64_t id)
{
        return id >= SHEAF_JOBTREE_NODES;
}

/* How many jobs can be told apart beside @slots slots. */
uint32_t sheaf_jobtree_jobs_max(uint32_t slots);

/* @node's id, and back. 0; -ENOENT: no node has it. */
uint64_t sheaf_jobtree_id(
        uint32_t slots, const struct sheaf_jobtree_node *node);
SHEAF_MUST_CHECK int sheaf_jobtree_node(
        uint32_t slots, uint64_t id, struct sheaf_jobtree_node *ret_node);

/* Directory entry of a slot: as many digits as the last one has, so that
 * names sort as numbers do. */
void sheaf_jobtree_slot_name(uint32_t slots, uint32_t slot,
        char ret_name[SHEAF_JOBTREE_DIGITS_MAX + 1]);
/* The one name that a slot or epoch has, read. 0; -ENOENT. */
SHEAF_MUST_CHECK int sheaf_jobtree_slot(
        uint32_t slots, const char *name, uint32_t *ret_slot);
SHEAF_MUST_CHECK int sheaf_jobtree_epoch(const char *name, uint32_t *ret_epoch);

/* A job by the name of its directory. */
struct sheaf_jobtree_job {
        char name[SHEAF_JOBTREE_NAME_MAX + 1];
        enum sheaf_job_order order;
        uint64_t seed;
        uint32_t window, ahead;
};

/* NAME[,order=shared|window|strict][,seed=N][,window=N][,ahead=N]. 0; -ENOENT:
 * a name that begins with a dot, which programs look for everywhere; -EINVAL
 * with a static text. @slots bounds the look-ahead that is not asked for. */
SHEAF_MUST_CHECK int sheaf_jobtree_job(const char *text, uint32_t slots,
        struct sheaf_jobtree_job *ret_job, const char **ret_why);

/* Where a slot's link leads: @path is that of a file, relative to the root.
 * 0; -ENAMETOOLONG. */
SHEAF_MUST_CHECK int sheaf_jobtree_target(
        const char *path, char ret_target[PATH_MAX]);

/* A directory's mode, or a link's; the size of a link is that of the longest
 * one there can be: what it holds is not known before it is read, and the
 * kernel cuts a link at its size. */
void sheaf_jobtree_stat(uint32_t slots, uint64_t id, uid_t uid, gid_t gid,
        struct stat *ret_stat);

#endif
