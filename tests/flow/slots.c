/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of jobs, for tests (slots.h). */
#include "tests/flow/slots.h"

#include <criterion/criterion.h>

void slots_bind(struct sheaf_job *job, uint64_t epoch, uint32_t first,
        uint32_t count, uint64_t *ret_ordinals)
{
        sheaf_autofree uint32_t *slots = sheaf_new(uint32_t, count + 1);

        cr_assert(slots);
        for (uint32_t i = 0; i < count; i++)
                slots[i] = first + i;
        cr_assert_eq(sheaf_job_bind(job, epoch, slots, count, 0, ret_ordinals),
                0, "%s", sheaf_last_error());
}

void slots_each_once(const uint64_t *ordinals, uint32_t count, uint32_t files)
{
        sheaf_autofree bool *seen = sheaf_new(bool, files);

        cr_assert(seen);
        for (uint32_t i = 0; i < count; i++) {
                cr_assert_lt(ordinals[i], files);
                cr_assert(!seen[ordinals[i]], "slot %u: %llu twice", i,
                        (unsigned long long)ordinals[i]);
                seen[ordinals[i]] = true;
        }
}
