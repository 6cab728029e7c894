/* SPDX-License-Identifier: Apache-2.0 */
/* Output of the CLI: text that is safe on a terminal, JSON, aligned tables.
 * One thread. */
#ifndef SHEAF_TOOLS_CLI_OUT_H
#define SHEAF_TOOLS_CLI_OUT_H

#include "proto/base.h"

#include <jansson.h>

/* Length of the valid UTF-8 sequence at the start of @bytes, 0 if there is
 * none (surrogates, overlong forms and values over 10FFFF are not valid). */
size_t cli_utf8_len(const void *bytes, size_t len_bytes);

/* @bytes for people: control characters and bytes
 * that are not UTF-8 become \n, \t, \xNN; a backslash stays, so only JSON can
 * be turned back. The caller frees; NULL: no memory. */
char *cli_text(const void *bytes, size_t len_bytes);

/* Sets @key to @bytes, with U+FFFD for what is not UTF-8. */
void cli_json_text(
        json_t *object, const char *key, const void *bytes, size_t len_bytes);

/* The same for a name of a file: when it is not UTF-8 or has a NUL,
 * KEY_hex follows with the exact bytes. */
void cli_json_path(
        json_t *object, const char *key, const void *bytes, size_t len_bytes);

/* Prints @value and a newline on stdout; frees it. */
void cli_json_print(json_t *value);

/* A table whose columns align. Cells are copied. */
struct cli_table;

/* @heads: column titles; one that begins with '>' is aligned to the right.
 * Returns NULL without memory. */
struct cli_table *cli_table_new(const char *const *heads, size_t columns);
/* Adds the next cell (rows fill from the left). */
void cli_table_add(struct cli_table *table, const char *format, ...)
        SHEAF_PRINTF(2, 3);
void cli_table_add_size(struct cli_table *table, uint64_t bytes);
void cli_table_add_count(struct cli_table *table, uint64_t count);
/* Prints it on stdout and frees it. */
void cli_table_print(struct cli_table *table);
void cli_table_free(struct cli_table *table);

/* "1,234,567" into @buf. */
#define CLI_COUNT_TEXT_MAX 32
const char *cli_count_text(uint64_t count, char buf[CLI_COUNT_TEXT_MAX]);

#endif
