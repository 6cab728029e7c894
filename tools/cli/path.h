/* SPDX-License-Identifier: Apache-2.0 */
/* Paths inside a dataset, as users name them. */
#ifndef SHEAF_TOOLS_CLI_PATH_H
#define SHEAF_TOOLS_CLI_PATH_H

#include "proto/base.h"

/* Brings @path into the listing's form, in place: relative to the root,
 * without "." and doubled or trailing slashes; "" is the root. Returns its
 * length, or -EINVAL where it has a ".." (links make its meaning unclear). */
ssize_t cli_path_clean(char *path, size_t len_bytes);

/* A list file read piece by piece. */
struct cli_path_list;

/* @name: a file, or "-" for stdin. @separator: '\n' or NUL. 0 or -errno. */
SHEAF_MUST_CHECK int cli_path_list_open(
        const char *name, char separator, struct cli_path_list **ret_list);
/* 1: the next path, owned by the caller, may hold any byte; 0: the end;
 * -errno. Empty entries are left out. */
SHEAF_MUST_CHECK int cli_path_list_next(
        struct cli_path_list *list, char **ret_path, size_t *ret_len_bytes);
void cli_path_list_close(struct cli_path_list *list);

#endif
