/* SPDX-License-Identifier: Apache-2.0 */
/* Groups under schedules of chance: joins, leaves, deaths, stops, jumps,
 * errors, bounds. `tools/soak prep` runs more of them. */
#include "tests/daemon/prep/model.h"
#include "tests/flow/soak.h"

#include <criterion/criterion.h>
#include <stdio.h>

#define SCHEDULES 400
#define STEPS     300

Test(model, schedules_of_chance, .timeout = 1000000)
{
        static struct model model;
        uint64_t given = 0, told = 0;
        struct soak soak;

        soak_begin(&soak, "prep", "schedules", SCHEDULES, 1);
        while (soak_next(&soak)) {
                uint32_t seed = soak_pick(&soak, UINT32_MAX);

                model_begin(&model, seed);
                for (int i = 0; i < STEPS && !model.wrong; i++)
                        model_step(&model);
                if (!model.wrong)
                        model_finish(&model);
                model_end(&model);
                cr_assert_null(model.wrong, "seed %u, step %lu: %s", seed,
                        (unsigned long)model.steps, model.wrong);
                given += model.given;
                told += model.told;
        }
        soak_end(&soak, "%lu batches given, %lu failures told",
                (unsigned long)given, (unsigned long)told);
}
