/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of jobs, for tests: bound in a row, and each sample once. Both assert,
 * so they are for the test's own process. */
#ifndef SHEAF_TESTS_FLOW_SLOTS_H
#define SHEAF_TESTS_FLOW_SLOTS_H

#include "client/sheaf.h"
#include "proto/base.h"

/* Binds @count slots from @first on; their samples go to @ret_ordinals. */
void slots_bind(struct sheaf_job *job, uint64_t epoch, uint32_t first,
        uint32_t count, uint64_t *ret_ordinals);
/* The @count samples are below @files, and no two are the same. */
void slots_each_once(const uint64_t *ordinals, uint32_t count, uint32_t files);

#endif
