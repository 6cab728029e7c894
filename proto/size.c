/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes as people write and read them; integer arithmetic, since a double
 * cannot hold every 64-bit size. */
#include "proto/size.h"

#include <ctype.h>
#include <stdio.h>
#include <strings.h>

/* Digits after the point that count; more could change no byte below 2^60. */
#define FRACTION_DIGITS_MAX 18

static int parse_unit(const char *text, uint64_t *ret_unit)
{
        static const char letters[] = "kmgtpe";
        uint64_t base = 1024, unit = 1;
        const char *at;

        if (!*text || !strcasecmp(text, "b")) {
                *ret_unit = 1;
                return 0;
        }
        at = strchr(letters, tolower((unsigned char)*text));
        if (!at)
                return -EINVAL;
        text++;
        if (!strcasecmp(text, "b"))
                base = 1000;
        else if (*text && strcasecmp(text, "ib"))
                return -EINVAL;
        for (const char *l = letters; l <= at; l++)
                unit *= base;
        *ret_unit = unit;
        return 0;
}

int sheaf_size_parse(const char *text, uint64_t *ret_bytes)
{
        unsigned __int128 bytes, fraction = 0, scale = 1;
        uint64_t whole = 0, unit;
        int digits = 0;
        int rc;

        for (; isdigit((unsigned char)*text); text++, digits++)
                if (__builtin_mul_overflow(whole, 10, &whole) ||
                        __builtin_add_overflow(
                                whole, (uint64_t)(*text - '0'), &whole))
                        return -ERANGE;
        if (*text == '.') {
                text++;
                for (int n = 0; isdigit((unsigned char)*text); text++, n++) {
                        digits++;
                        if (n >= FRACTION_DIGITS_MAX)
                                continue;
                        fraction = fraction * 10 + (unsigned)(*text - '0');
                        scale *= 10;
                }
        }
        if (!digits)
                return -EINVAL;
        while (*text == ' ')
                text++;
        rc = parse_unit(text, &unit);
        if (rc)
                return rc;
        bytes = (unsigned __int128)whole * unit + fraction * unit / scale;
        if (bytes > UINT64_MAX)
                return -ERANGE;
        *ret_bytes = (uint64_t)bytes;
        return 0;
}

const char *sheaf_size_text(uint64_t bytes, char buf[SHEAF_SIZE_TEXT_MAX])
{
        static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB",
                "PiB", "EiB" };
        size_t unit = 0;
        double value = (double)bytes;

        /* 1023.95 would print as 1024.0. */
        while (value >= 1023.95 && unit + 1 < SHEAF_ARRAY_LEN(units)) {
                value /= 1024;
                unit++;
        }
        snprintf(buf, SHEAF_SIZE_TEXT_MAX, "%.*f %s",
                unit == 0       ? 0
                : value < 99.95 ? 1
                                : 0,
                value, units[unit]);
        return buf;
}
