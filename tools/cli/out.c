/* SPDX-License-Identifier: Apache-2.0 */
/* Text, JSON and tables. File names are bytes, not text: whatever they hold,
 * a terminal gets no control character and JSON stays valid. */
#include "tools/cli/out.h"
#include "proto/size.h"

#include <stdarg.h>
#include <stdio.h>
#include <wchar.h>

size_t cli_utf8_len(const void *bytes, size_t len_bytes)
{
        const uint8_t *b = bytes;
        uint32_t value, least;
        size_t len;

        if (!len_bytes)
                return 0;
        if (b[0] < 0x80)
                return 1;
        if (b[0] >= 0xc2 && b[0] < 0xe0) {
                len = 2, value = b[0] & 0x1f, least = 0x80;
        } else if ((b[0] & 0xf0) == 0xe0) {
                len = 3, value = b[0] & 0x0f, least = 0x800;
        } else if (b[0] >= 0xf0 && b[0] < 0xf5) {
                len = 4, value = b[0] & 0x07, least = 0x10000;
        } else {
                return 0;
        }
        if (len > len_bytes)
                return 0;
        for (size_t i = 1; i < len; i++) {
                if ((b[i] & 0xc0) != 0x80)
                        return 0;
                value = value << 6 | (b[i] & 0x3f);
        }
        if (value < least || value > 0x10ffff ||
                (value >= 0xd800 && value < 0xe000))
                return 0;
        return len;
}

/* C1 control characters (U+0080..U+009F) drive terminals too. */
static bool is_control(const uint8_t *b, size_t len)
{
        if (len == 1)
                return b[0] < 0x20 || b[0] == 0x7f;
        return len == 2 && b[0] == 0xc2 && b[1] < 0xa0;
}

char *cli_text(const void *bytes, size_t len_bytes)
{
        const uint8_t *b = bytes;
        char *out = malloc(len_bytes * 4 + 1);
        char *to = out;

        if (!out)
                return NULL;
        for (size_t i = 0; i < len_bytes;) {
                size_t len = cli_utf8_len(b + i, len_bytes - i);

                if (len && !is_control(b + i, len)) {
                        memcpy(to, b + i, len);
                        to += len;
                        i += len;
                        continue;
                }
                for (size_t end = i + SHEAF_MAX(len, 1u); i < end; i++) {
                        if (b[i] == '\n')
                                to += sprintf(to, "\\n");
                        else if (b[i] == '\t')
                                to += sprintf(to, "\\t");
                        else
                                to += sprintf(to, "\\x%02x", b[i]);
                }
        }
        *to = '\0';
        return out;
}

/* Copies @bytes with U+FFFD for each bad byte and for NUL. */
static char *replace_bad(const uint8_t *b, size_t len_bytes, bool *ret_bad)
{
        char *out = malloc(len_bytes * 3 + 1);
        char *to = out;

        if (!out)
                return NULL;
        *ret_bad = false;
        for (size_t i = 0; i < len_bytes;) {
                size_t len = b[i] ? cli_utf8_len(b + i, len_bytes - i) : 0;

                if (len) {
                        memcpy(to, b + i, len);
                        to += len;
                        i += len;
                } else {
                        memcpy(to, "\xef\xbf\xbd", 3);
                        to += 3;
                        i++;
                        *ret_bad = true;
                }
        }
        *to = '\0';
        return out;
}

static bool json_set_text(
        json_t *object, const char *key, const void *bytes, size_t len_bytes)
{
        bool bad = false;
        sheaf_autofree char *text = replace_bad(bytes, len_bytes, &bad);

        json_object_set_new(
                object, key, text ? json_string(text) : json_null());
        return bad;
}

void cli_json_text(
        json_t *object, const char *key, const void *bytes, size_t len_bytes)
{
        json_set_text(object, key, bytes, len_bytes);
}

void cli_json_path(
        json_t *object, const char *key, const void *bytes, size_t len_bytes)
{
        sheaf_autofree char *hex = NULL;
        char hex_key[64];

        if (!json_set_text(object, key, bytes, len_bytes))
                return;
        hex = malloc(2 * len_bytes + 1);
        if (!hex)
                return;
        for (size_t i = 0; i < len_bytes; i++)
                sprintf(hex + 2 * i, "%02x", ((const uint8_t *)bytes)[i]);
        snprintf(hex_key, sizeof(hex_key), "%s_hex", key);
        json_object_set_new(object, hex_key, json_string(hex));
}

void cli_json_print(json_t *value)
{
        json_dumpf(value, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
        putchar('\n');
        json_decref(value);
}

struct cli_table {
        size_t columns;
        size_t cells;
        size_t cells_max;
        char **cell; /* the first row are the titles */
};

void cli_table_free(struct cli_table *table)
{
        if (!table)
                return;
        for (size_t i = 0; i < table->cells; i++)
                free(table->cell[i]);
        free(table->cell);
        free(table);
}

/* Columns of a terminal that @text takes; bytes where the locale is not
 * UTF-8. */
static size_t width_of(const char *text)
{
        mbstate_t state = { 0 };
        size_t width = 0;

        while (*text) {
                wchar_t wide;
                size_t n = mbrtowc(&wide, text, MB_CUR_MAX, &state);

                if (n == 0 || n > MB_CUR_MAX) {
                        width++;
                        text++;
                        memset(&state, 0, sizeof(state));
                        continue;
                }
                int columns = wcwidth(wide);

                width += columns > 0 ? (size_t)columns : 0;
                text += n;
        }
        return width;
}

static void push(struct cli_table *table, char *cell)
{
        if (table->cells == table->cells_max) {
                size_t max = table->cells_max ? 2 * table->cells_max : 64;
                char **more = realloc(table->cell, max * sizeof(*more));

                if (!more)
                        abort();
                table->cell = more;
                table->cells_max = max;
        }
        table->cell[table->cells++] = cell;
}

struct cli_table *cli_table_new(const char *const *heads, size_t columns)
{
        struct cli_table *table = sheaf_new(struct cli_table, 1);

        if (!table)
                return NULL;
        table->columns = columns;
        for (size_t i = 0; i < columns; i++)
                push(table, strdup(heads[i]));
        return table;
}

void cli_table_add(struct cli_table *table, const char *format, ...)
{
        sheaf_autofree char *text = NULL;
        va_list ap;
        int n;

        va_start(ap, format);
        n = vasprintf(&text, format, ap);
        va_end(ap);
        if (n < 0)
                abort();
        push(table, cli_text(text, strlen(text)));
}

void cli_table_add_size(struct cli_table *table, uint64_t bytes)
{
        char buf[SHEAF_SIZE_TEXT_MAX];

        cli_table_add(table, "%s", sheaf_size_text(bytes, buf));
}

const char *cli_count_text(uint64_t count, char buf[CLI_COUNT_TEXT_MAX])
{
        char digits[24];
        size_t len = (size_t)snprintf(
                digits, sizeof(digits), "%llu", (unsigned long long)count);
        char *to = buf;

        for (size_t i = 0; i < len; i++) {
                if (i && (len - i) % 3 == 0)
                        *to++ = ',';
                *to++ = digits[i];
        }
        *to = '\0';
        return buf;
}

void cli_table_add_count(struct cli_table *table, uint64_t count)
{
        char buf[CLI_COUNT_TEXT_MAX];

        cli_table_add(table, "%s", cli_count_text(count, buf));
}

static void print_cell(const char *text, size_t width, bool right, bool last)
{
        size_t pad = width - SHEAF_MIN(width, width_of(text));

        if (right)
                printf("%*s%s", (int)pad, "", text);
        else if (last)
                printf("%s", text);
        else
                printf("%s%*s", text, (int)pad, "");
        fputs(last ? "\n" : "  ", stdout);
}

void cli_table_print(struct cli_table *table)
{
        sheaf_autofree size_t *width = sheaf_new(size_t, table->columns);

        if (!width)
                abort();
        for (size_t i = 0; i < table->cells; i++) {
                const char *text = table->cell[i];
                size_t w =
                        width_of(text + (i < table->columns && *text == '>'));
                size_t column = i % table->columns;

                width[column] = SHEAF_MAX(width[column], w);
        }
        for (size_t i = 0; i < table->cells; i++) {
                size_t column = i % table->columns;
                bool right = table->cell[column][0] == '>';

                print_cell(table->cell[i] + (i < table->columns && right),
                        width[column], right, column + 1 == table->columns);
        }
        cli_table_free(table);
}
