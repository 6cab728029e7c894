/* SPDX-License-Identifier: Apache-2.0 */
/* proto/size: sizes as people write and read them. */
#include "proto/size.h"

#include <criterion/criterion.h>

static void expect(const char *text, uint64_t want)
{
        uint64_t bytes = 1;
        int rc = sheaf_size_parse(text, &bytes);

        cr_assert_eq(rc, 0, "'%s': %d", text, rc);
        cr_assert_eq(
                bytes, want, "'%s': %llu", text, (unsigned long long)bytes);
}

static void refuse(const char *text, int want)
{
        uint64_t bytes = 77;
        int rc = sheaf_size_parse(text, &bytes);

        cr_assert_eq(rc, want, "'%s': %d", text, rc);
        cr_assert_eq(bytes, 77, "'%s' changed its output", text);
}

Test(size, plain_and_units)
{
        expect("0", 0);
        expect("4096", 4096);
        expect("4096B", 4096);
        expect("100GiB", 100 * SHEAF_GIB);
        expect("100gib", 100 * SHEAF_GIB);
        expect("1.5T", 3 * SHEAF_GIB * 512);
        expect("2K", 2048);
        expect("100 GB", UINT64_C(100000000000));
        expect("10kB", 10000);
        expect("0.5K", 512);
        expect(".5K", 512);
        expect("1.", 1);
}

Test(size, exact_where_a_double_is_not)
{
        expect("18446744073709551615", UINT64_MAX);
        expect("9007199254740993", UINT64_C(9007199254740993));
        expect("0.1K", 102);
        expect("1.99999999999999999999999", 1);
}

Test(size, refused)
{
        refuse("", -EINVAL);
        refuse(".", -EINVAL);
        refuse("-1", -EINVAL);
        refuse("+1", -EINVAL);
        refuse(" 1", -EINVAL);
        refuse("1x", -EINVAL);
        refuse("1Kib2", -EINVAL);
        refuse("1iB", -EINVAL);
        refuse("1 K B", -EINVAL);
        refuse("1e9", -EINVAL);
        refuse("0x10", -EINVAL);
        refuse("50%", -EINVAL);
        refuse("18446744073709551616", -ERANGE);
        refuse("16384P", -ERANGE);
        refuse("99999999999999999999999", -ERANGE);
}

Test(size, text)
{
        char buf[SHEAF_SIZE_TEXT_MAX];

        cr_assert_str_eq(sheaf_size_text(0, buf), "0 B");
        cr_assert_str_eq(sheaf_size_text(812, buf), "812 B");
        cr_assert_str_eq(sheaf_size_text(1023, buf), "1023 B");
        cr_assert_str_eq(sheaf_size_text(1024, buf), "1.0 KiB");
        cr_assert_str_eq(sheaf_size_text(SHEAF_MIB - 1, buf), "1.0 MiB");
        cr_assert_str_eq(sheaf_size_text(150 * SHEAF_MIB, buf), "150 MiB");
        cr_assert_str_eq(sheaf_size_text(UINT64_MAX, buf), "16.0 EiB");
}
