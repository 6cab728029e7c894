/* SPDX-License-Identifier: Apache-2.0 */
/* tools/cli/out: names of any bytes on terminals and in JSON. */
#include "tools/cli/out.h"

#include <criterion/criterion.h>

static void expect_text(const char *bytes, size_t len, const char *want)
{
        char *text = cli_text(bytes, len);

        cr_assert_str_eq(text, want);
        free(text);
}

Test(out, text_keeps_utf8_and_shows_the_rest)
{
        expect_text("plain", 5, "plain");
        expect_text("", 0, "");
        expect_text("a\nb\tc", 5, "a\\nb\\tc");
        expect_text("\xc3\xa9", 2, "\xc3\xa9");
        expect_text("\xff\xfe", 2, "\\xff\\xfe");
        expect_text("\x1b[2J", 4, "\\x1b[2J");
        /* C1 control: drives terminals though it is valid UTF-8 */
        expect_text("\xc2\x9b", 2, "\\xc2\\x9b");
        expect_text("a\0b", 3, "a\\x00b");
}

Test(out, utf8_is_strict)
{
        cr_assert_eq(cli_utf8_len("a", 1), 1);
        cr_assert_eq(cli_utf8_len("\xf0\x9f\x8c\xbe", 4), 4);
        cr_assert_eq(cli_utf8_len("\xf0\x9f\x8c", 3), 0, "cut off");
        cr_assert_eq(cli_utf8_len("\xc0\xaf", 2), 0, "overlong");
        cr_assert_eq(cli_utf8_len("\xe0\x80\xaf", 3), 0, "overlong");
        cr_assert_eq(cli_utf8_len("\xed\xa0\x80", 3), 0, "surrogate");
        cr_assert_eq(cli_utf8_len("\xf4\x90\x80\x80", 4), 0, "too large");
        cr_assert_eq(cli_utf8_len("", 0), 0);
}

/* What a reader of the JSON gets back, byte for byte. */
static void round_trip(const char *bytes, size_t len)
{
        json_t *o = json_object(), *back;
        json_t *hex;
        char *dump;

        cli_json_path(o, "path", bytes, len);
        dump = json_dumps(o, 0);
        cr_assert_not_null(dump);
        back = json_loads(dump, 0, NULL);
        cr_assert_not_null(back, "not valid JSON: %s", dump);
        hex = json_object_get(back, "path_hex");
        if (hex) {
                const char *digits = json_string_value(hex);

                cr_assert_eq(strlen(digits), 2 * len);
                for (size_t i = 0; i < len; i++) {
                        char pair[3] = { digits[2 * i], digits[2 * i + 1] };

                        cr_assert_eq((uint8_t)strtoul(pair, NULL, 16),
                                (uint8_t)bytes[i]);
                }
        } else {
                json_t *path = json_object_get(back, "path");

                cr_assert_eq(json_string_length(path), len);
                cr_assert_arr_eq(json_string_value(path), bytes, len);
        }
        free(dump);
        json_decref(o);
        json_decref(back);
}

Test(out, every_name_can_be_had_back_from_json)
{
        static const char *const names[] = { "\n", "a\nb", " ", " x ", "-rf",
                "*", "%2F", "a+b", "a#b?c&d=e", "\xc3\xa9", "e\xcc\x81",
                "\xff\xfe", "\"", "\\", "\x01\x7f", "\xed\xa0\x80",
                "\xf0\x9f\x8c\xbe" };
        char every[256];

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(names); i++)
                round_trip(names[i], strlen(names[i]));
        for (int i = 0; i < 256; i++)
                every[i] = (char)i;
        round_trip(every, sizeof(every));
        for (int i = 0; i < 256; i++)
                round_trip(every + i, 1);
}

Test(out, replaced_bytes_are_visible)
{
        json_t *o = json_object();

        cli_json_path(o, "path", "a\xff", 2);
        cr_assert_str_eq(
                json_string_value(json_object_get(o, "path")), "a\xef\xbf\xbd");
        cr_assert_str_eq(
                json_string_value(json_object_get(o, "path_hex")), "61ff");
        cli_json_path(o, "other", "fine", 4);
        cr_assert_null(json_object_get(o, "other_hex"));
        json_decref(o);
}

Test(out, counts)
{
        char buf[CLI_COUNT_TEXT_MAX];

        cr_assert_str_eq(cli_count_text(0, buf), "0");
        cr_assert_str_eq(cli_count_text(999, buf), "999");
        cr_assert_str_eq(cli_count_text(1000, buf), "1,000");
        cr_assert_str_eq(cli_count_text(1281167, buf), "1,281,167");
        cr_assert_str_eq(
                cli_count_text(UINT64_MAX, buf), "18,446,744,073,709,551,615");
}
