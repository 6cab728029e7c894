/* SPDX-License-Identifier: Apache-2.0 */
/* tools/cli/path: paths inside a dataset and lists of them. */
#include "tools/cli/path.h"

#include <criterion/criterion.h>
#include <stdio.h>

static void expect(const char *path, const char *want)
{
        char buf[256];
        ssize_t n;

        strcpy(buf, path);
        n = cli_path_clean(buf, strlen(path));
        if (!want) {
                cr_assert_eq(n, -EINVAL, "'%s'", path);
                return;
        }
        cr_assert_eq(n, (ssize_t)strlen(want), "'%s': %zd", path, n);
        cr_assert_arr_eq(buf, want, strlen(want));
}

Test(path, clean)
{
        expect("a/b", "a/b");
        expect("/a/b", "a/b");
        expect("./a//b/", "a/b");
        expect("a/./b", "a/b");
        expect(".", "");
        expect("", "");
        expect("/", "");
        expect("...", "...");
        expect(" x ", " x ");
        expect("..", NULL);
        expect("a/../b", NULL);
        expect("a/..", NULL);
}

static void read_list(const char *content, size_t len, char separator,
        const char *const *want, size_t count)
{
        char name[] = "/tmp/sheaf-test-list.XXXXXX";
        int fd = mkstemp(name);
        struct cli_path_list *list;
        char *path;
        size_t path_len;

        cr_assert_geq(fd, 0);
        cr_assert_eq(write(fd, content, len), (ssize_t)len);
        close(fd);
        cr_assert_eq(cli_path_list_open(name, separator, &list), 0);
        unlink(name);
        for (size_t i = 0; i < count; i++) {
                cr_assert_eq(cli_path_list_next(list, &path, &path_len), 1);
                cr_assert_eq(path_len, strlen(want[i]), "entry %zu", i);
                cr_assert_arr_eq(path, want[i], path_len);
                free(path);
        }
        cr_assert_eq(cli_path_list_next(list, &path, &path_len), 0);
        cli_path_list_close(list);
}

Test(path, lists)
{
        static const char *const lines[] = { "a", " b ", "c" };
        static const char *const names[] = { "a\nb", "\xff\xfe", "-rf" };
        static const char zeros[] = "a\nb\0\xff\xfe\0-rf";

        read_list("a\n b \n\nc", 8, '\n', lines, 3);
        read_list("a\n b \nc\n", 8, '\n', lines, 3);
        read_list("", 0, '\n', NULL, 0);
        read_list(zeros, sizeof(zeros) - 1, '\0', names, 3);
}

Test(path, missing_list)
{
        struct cli_path_list *list;

        cr_assert_eq(
                cli_path_list_open("/nonexistent/x", '\n', &list), -ENOENT);
}
