/* SPDX-License-Identifier: Apache-2.0 */
/* Paths inside a dataset, and files that list them. */
#include "tools/cli/path.h"

#include <stdio.h>

ssize_t cli_path_clean(char *path, size_t len_bytes)
{
        size_t out = 0;

        for (size_t i = 0; i < len_bytes;) {
                const char *part = path + i;
                const char *slash = memchr(part, '/', len_bytes - i);
                size_t len = slash ? (size_t)(slash - part) : len_bytes - i;

                i += len + (slash != NULL);
                if (len == 0 || (len == 1 && part[0] == '.'))
                        continue;
                if (len == 2 && part[0] == '.' && part[1] == '.')
                        return -EINVAL;
                if (out)
                        path[out++] = '/';
                memmove(path + out, part, len);
                out += len;
        }
        return (ssize_t)out;
}

struct cli_path_list {
        FILE *file;
        char separator;
};

int cli_path_list_open(
        const char *name, char separator, struct cli_path_list **ret_list)
{
        struct cli_path_list *list = sheaf_new(struct cli_path_list, 1);

        if (!list)
                return -ENOMEM;
        list->separator = separator;
        list->file = strcmp(name, "-") ? fopen(name, "re") : stdin;
        if (!list->file) {
                int rc = -errno;

                free(list);
                return rc;
        }
        *ret_list = list;
        return 0;
}

int cli_path_list_next(
        struct cli_path_list *list, char **ret_path, size_t *ret_len_bytes)
{
        sheaf_autofree char *line = NULL;
        size_t room = 0;

        for (;;) {
                ssize_t n;

                errno = 0;
                n = getdelim(&line, &room, list->separator, list->file);
                if (n < 0)
                        return ferror(list->file) || errno == ENOMEM
                                       ? (errno ? -errno : -EIO)
                                       : 0;
                if (n && line[n - 1] == list->separator)
                        n--;
                if (!n)
                        continue;
                *ret_path = sheaf_steal(&line);
                *ret_len_bytes = (size_t)n;
                return 1;
        }
}

void cli_path_list_close(struct cli_path_list *list)
{
        if (!list)
                return;
        if (list->file != stdin)
                fclose(list->file);
        free(list);
}
