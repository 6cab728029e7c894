/* SPDX-License-Identifier: Apache-2.0 */
/* The work that power cuts interrupt, and what it was told is durable. */
#ifndef SHEAF_TESTS_FLOW_CUT_LOAD_H
#define SHEAF_TESTS_FLOW_CUT_LOAD_H

#include "tests/flow/cut.h"
#include "tests/flow/cut_check.h"

#define CUT_SETS   5
#define CUT_GRANTS 2

/* Files f<first>, f<first + 1>, ... below origin/<name>; the last ones are
 * large. Sizes are of now; the last octal digit is the generation. */
struct cut_set {
        const char *name;
        uint32_t first, count, large;
        uint64_t *sizes;
};

struct cut_load {
        struct cut_disk *disk;
        struct cut_truth *truth;
        struct cut_set sets[CUT_SETS];
        char grants[CUT_GRANTS][32]; /* their ids */
        uint64_t state;              /* of the draw */
};

/* Two runs with @seed do the same, but for the order of what is parallel.
 * @tiny: with so many tiny files that a stop commits their digests to the
 * catalog. Ends with the daemon stopped and the disk still mounted. */
void cut_load_run(struct cut_load *load, struct cut_disk *disk,
        struct cut_truth *truth, uint64_t seed, bool tiny);
void cut_load_clear(struct cut_load *load);

/* What a state at @event must show, by the marks before it; @claims: what was
 * true when the recording began. */
void cut_load_claims(
        const struct cut_log *log, size_t event, struct cut_claims *claims);

/* Brings a dataset to the generation of its origin, with marks on @disk. */
void cut_load_update(
        const struct cut_load *load, struct cut_disk *disk, const char *name);

/* Whether the daemon shares and grants what it must, and nothing else: each
 * grant that is there serves, none that is gone does. Asserts. */
void cut_load_check_rights(const struct cut_claims *claims);

/* Reads dataset @name by library, all files: 0, or the first failure with its
 * path in @ret_path. 1: the version is of another generation than the origin,
 * and some files were -ESTALE for that; no file had other bytes. */
int cut_load_read(
        const struct cut_load *load, const char *name, char ret_path[64]);
/* The same through a mount of it at @dir, where all must be readable. */
int cut_load_check(const struct cut_load *load, const char *name,
        const char *dir, char ret_path[64]);

#endif
