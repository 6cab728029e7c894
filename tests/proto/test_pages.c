/* SPDX-License-Identifier: Apache-2.0 */
/* Aligned mappings of shared memory, and huge pages on request. */
#include "proto/pages.h"

#include <criterion/criterion.h>
#include <stdio.h>

static int memory(uint64_t bytes)
{
        int fd = memfd_create("test-pages", MFD_CLOEXEC);

        cr_assert_geq(fd, 0);
        cr_assert_eq(ftruncate(fd, (off_t)bytes), 0);
        return fd;
}

/* Bytes of address space of this process. */
static unsigned long mapped_bytes(void)
{
        FILE *file = fopen("/proc/self/statm", "re");
        unsigned long pages = 0;

        cr_assert_not_null(file);
        cr_assert_eq(fscanf(file, "%lu", &pages), 1);
        fclose(file);
        return pages * 4096;
}

/* KiB of huge pages that map shared memory in this process. */
static unsigned long huge_kib(void)
{
        FILE *file = fopen("/proc/self/smaps_rollup", "re");
        unsigned long kib = 0;
        char line[256];

        cr_assert_not_null(file);
        while (fgets(line, sizeof(line), file))
                if (sscanf(line, "ShmemPmdMapped: %lu", &kib) == 1)
                        break;
        fclose(file);
        return kib;
}

Test(pages, mappings_are_aligned_and_leave_nothing_else)
{
        static const uint64_t sizes[] = { 1, 4096, 4097, 1 << 20,
                SHEAF_HUGE_BYTES - 1, SHEAF_HUGE_BYTES, SHEAF_HUGE_BYTES + 1,
                5 * SHEAF_HUGE_BYTES, 5 * SHEAF_HUGE_BYTES + 12345 };

        mapped_bytes(); /* stdio's buffers are there from now on */
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(sizes); i++) {
                uint64_t bytes = sizes[i];
                int fd = memory(sheaf_round_up(bytes, 4096));
                unsigned long before = mapped_bytes();
                char *map = sheaf_pages_map(bytes, PROT_READ | PROT_WRITE, fd);

                cr_assert_neq(map, MAP_FAILED);
                map[0] = 1;
                map[bytes - 1] = 2;
                if (bytes >= SHEAF_HUGE_BYTES)
                        cr_assert_eq((uintptr_t)map % SHEAF_HUGE_BYTES, 0);
                cr_assert_eq(mapped_bytes(),
                        before + sheaf_round_up(bytes, 4096), "size %zu", i);
                munmap(map, bytes);
                cr_assert_eq(mapped_bytes(), before);
                close(fd);
        }
}

Test(pages, are_made_on_request_and_keep_what_was_there)
{
        const uint64_t bytes = 4 * SHEAF_HUGE_BYTES;
        int fd = memory(bytes);
        uint8_t *map = sheaf_pages_map(bytes, PROT_READ | PROT_WRITE, fd);
        uint8_t *reader;
        unsigned sum = 0;

        cr_assert_neq(map, MAP_FAILED);
        /* the second huge page has content, the others are holes */
        for (uint64_t i = 0; i < SHEAF_HUGE_BYTES; i++)
                map[SHEAF_HUGE_BYTES + i] = (uint8_t)(i % 251 + 1);
        if (!sheaf_pages_collapse(map, bytes)) {
                printf("SKIP: huge pages: %s\n", strerror(errno));
                return;
        }
        cr_assert_geq(huge_kib(), bytes / 1024);
        reader = sheaf_pages_map(bytes, PROT_READ, fd);
        cr_assert_neq(reader, MAP_FAILED);
        for (uint64_t i = 0; i < bytes; i++) {
                uint64_t at = i - SHEAF_HUGE_BYTES;
                uint8_t want =
                        at < SHEAF_HUGE_BYTES ? (uint8_t)(at % 251 + 1) : 0;

                cr_assert_eq(reader[i], want);
                sum += reader[i];
        }
        cr_assert_gt(sum, 0);
        cr_assert_geq(huge_kib(), 2 * bytes / 1024);
        close(fd);
}

Test(pages, errors_are_told)
{
        cr_assert_eq(sheaf_pages_map(4096, PROT_READ, -1), MAP_FAILED);
        cr_assert_eq(errno, EBADF);
        cr_assert_eq(sheaf_pages_reserve(UINT64_C(1) << 60), MAP_FAILED);
        cr_assert_eq(errno, ENOMEM);
}
