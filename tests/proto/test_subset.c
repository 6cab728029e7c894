/* SPDX-License-Identifier: Apache-2.0 */
/* Subsets: members and ranks agree with a plain list; what is no subset is
 * refused; descriptors of other kinds are refused. */
#include "proto/subset.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <sys/stat.h>

#define FILES_MAX 5000

static void agrees(const uint8_t *bitmap, uint32_t files)
{
        struct sheaf_subset *subset;
        uint32_t count = 0;

        cr_assert_eq(sheaf_subset_new(bitmap, files, &subset), 0);
        for (uint32_t i = 0; i < files; i++) {
                cr_assert_eq(sheaf_subset_rank(subset, i), count);
                if (bitmap && !(bitmap[i / 8] >> i % 8 & 1))
                        continue;
                cr_assert_eq(sheaf_subset_member(subset, count), i);
                count++;
        }
        cr_assert_eq(subset->count, count);
        if (bitmap)
                cr_assert_eq(
                        sheaf_bits_count(bitmap, sheaf_subset_bytes(files)),
                        count);
        sheaf_subset_free(subset);
}

Test(subset, members_and_ranks)
{
        static const uint32_t sizes[] = { 1, 7, 8, 9, 63, 64, 65, 511, 512, 513,
                1024, FILES_MAX };
        static uint8_t bitmap[FILES_MAX / 8 + 1];

        srand(5);
        for (size_t s = 0; s < SHEAF_ARRAY_LEN(sizes); s++)
                for (int share = 1; share <= 64; share *= 4) {
                        memset(bitmap, 0, sizeof(bitmap));
                        for (uint32_t i = 0; i < sizes[s]; i++)
                                if (rand() % share == 0)
                                        bitmap[i / 8] |= (uint8_t)(1 << i % 8);
                        bitmap[(sizes[s] - 1) / 8] |=
                                (uint8_t)(1 << (sizes[s] - 1) % 8);
                        agrees(bitmap, sizes[s]);
                        agrees(NULL, sizes[s]);
                }
}

/* All members in the last of many blocks, or the first. */
Test(subset, far_apart)
{
        static uint8_t bitmap[FILES_MAX / 8 + 1];

        bitmap[0] = 1;
        agrees(bitmap, FILES_MAX);
        bitmap[(FILES_MAX - 1) / 8] |= 1 << (FILES_MAX - 1) % 8;
        agrees(bitmap, FILES_MAX);
        bitmap[0] = 0;
        agrees(bitmap, FILES_MAX);
}

Test(subset, none_and_beyond_are_refused)
{
        uint8_t bitmap[2] = { 0 };
        struct sheaf_subset *subset;

        cr_assert_eq(sheaf_subset_new(bitmap, 11, &subset), -EINVAL);
        bitmap[1] = 1 << 3;
        cr_assert_eq(sheaf_subset_new(bitmap, 11, &subset), -EINVAL);
        bitmap[1] = 1 << 2;
        cr_assert_eq(sheaf_subset_new(bitmap, 11, &subset), 0);
        sheaf_subset_free(subset);
}

Test(sealed, only_sealed_memory_is_read)
{
        static const char text[] = "0123456789";
        char back[sizeof(text)];
        int fds[2], fd = sheaf_sealed_new(text, sizeof(text));

        cr_assert_geq(fd, 0);
        cr_assert_eq(sheaf_sealed_read(fd, back, sizeof(text)), 0);
        cr_assert_str_eq(back, text);
        cr_assert_eq(sheaf_sealed_read(fd, back, sizeof(text) - 1), -EINVAL);
        cr_assert_eq(write(fd, "x", 1), -1);
        close(fd);
        fd = memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        cr_assert_eq(write(fd, text, sizeof(text)), (ssize_t)sizeof(text));
        cr_assert_eq(sheaf_sealed_read(fd, back, sizeof(text)), -EINVAL);
        cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
        cr_assert_eq(sheaf_sealed_read(fd, back, sizeof(text)), -EINVAL);
        close(fd);
        cr_assert_eq(pipe2(fds, O_CLOEXEC), 0);
        cr_assert_eq(sheaf_sealed_read(fds[0], back, sizeof(text)), -EINVAL);
        cr_assert_eq(sheaf_sealed_read(-1, back, sizeof(text)), -EINVAL);
        close(fds[0]);
        close(fds[1]);
        fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        cr_assert_eq(sheaf_sealed_read(fd, back, sizeof(text)), -EINVAL);
        close(fd);
}
