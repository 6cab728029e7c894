/* SPDX-License-Identifier: Apache-2.0 */
/* Many tiny datasets in a small cache directory: each takes what it has. */
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <sys/stat.h>

TestSuite(cachedir, .init = flow_init, .fini = flow_fini, .timeout = 240);

#define TINY  60
#define FILES 3
#define LEN   3000

static void read_tiny(uint32_t i)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        char name[16], path[32];

        snprintf(name, sizeof(name), "tiny%u", i);
        cr_assert_eq(flow_open(name, &session, &dataset), 0, "%s: %s", name,
                sheaf_last_error());
        for (uint32_t f = 0; f < FILES; f++) {
                snprintf(path, sizeof(path), "f%u", f);
                cr_assert_eq(flow_check_view(dataset, path, i * FILES + f, LEN),
                        0, "%s: %s", name, sheaf_last_error());
        }
        flow_close(session, dataset);
}

static uint64_t du(void)
{
        flow_ok("du -s --block-size=1 %s", flow.cache);
        return strtoull(flow.last.out, NULL, 10);
}

static bool agrees(void)
{
        uint64_t used = (uint64_t)flow_stat("disk.bytes"), real = du();
        uint64_t differ = real > used ? real - used : used - real;

        return differ * 100 <= real;
}

/* With segments of 8 MiB taken whole, eight datasets would fill this disk. */
Test(cachedir, tiny_datasets_are_kept_on_a_small_disk)
{
        double origin;

        for (uint32_t i = 0; i < TINY; i++)
                for (uint32_t f = 0; f < FILES; f++)
                        flow_file(i * FILES + f, LEN, "tiny%u/f%u", i, f);
        flow.extra = "--disk 64MiB";
        flow_start();
        for (uint32_t i = 0; i < TINY; i++)
                flow_ok("sheaf add tiny%u %s/tiny%u && "
                        "sheaf warmup --disk --quiet tiny%u",
                        i, flow.origin, i, i);
        cr_assert_eq(flow_stat("disk.chunks"), TINY * FILES);
        cr_assert_leq(flow_stat("disk.bytes"), 16 << 20);
        cr_assert(flow_until(20, agrees()), "%g told, %lu used",
                flow_stat("disk.bytes"), du());
        flow_stop();
        flow_start();
        for (uint32_t i = 0; i < TINY; i++)
                read_tiny(i);
        cr_assert_eq(flow_stat("origin.bytes"), 0);
        flow_kill();
        flow_start();
        for (uint32_t i = 0; i < TINY; i++)
                read_tiny(i);
        cr_assert_eq(flow_stat("origin.bytes"), 0);
        origin = flow_stat("disk.segments");
        for (uint32_t i = 0; i < TINY; i += 2)
                flow_ok("sheaf rm --force tiny%u", i);
        cr_assert(flow_until(20, flow_stat("disk.segments") <= origin / 2 + 4),
                "%g of %g", flow_stat("disk.segments"), origin);
        cr_assert(flow_until(20, agrees()));
        flow_stop();
}
