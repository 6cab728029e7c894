/* SPDX-License-Identifier: Apache-2.0 */
/* Epochs that were begun, by version.
 *
 *  1 what was noted last stands first; what falls off the end is oldest */
#include "cachefs/begun.h"

#include <inttypes.h>
#include <stdio.h>

#define LINE_MAX_BYTES (32 + 2 * 11 + SHEAF_JOBTREE_NAME_MAX + 4)

_Static_assert(SHEAF_BEGUN_MAX *LINE_MAX_BYTES < SHEAF_BEGUN_TEXT_MAX,
        "all of it fits");

void sheaf_begun_note(struct sheaf_begun *begun, const uint8_t version[16],
        const char *name, uint32_t low, uint32_t high)
{
        struct sheaf_begun_of of = { .low = low, .high = high };
        size_t at = 0;

        memcpy(of.version, version, sizeof(of.version));
        memcpy(of.name, name, SHEAF_MIN(strlen(name), sizeof(of.name) - 1));
        while (at < begun->count &&
                (memcmp(begun->of[at].version, version, 16) ||
                        strcmp(begun->of[at].name, of.name)))
                at++;
        if (at < begun->count) {
                of.low = SHEAF_MIN(low, begun->of[at].low);
                of.high = SHEAF_MAX(high, begun->of[at].high);
        } else if (begun->count < SHEAF_BEGUN_MAX) {
                begun->count++;
        } else {
                at--;
        }
        memmove(&begun->of[1], &begun->of[0], at * sizeof(of));
        begun->of[0] = of;
}

bool sheaf_begun_elsewhere(const struct sheaf_begun *begun,
        const uint8_t version[16], const char *name, uint32_t epoch)
{
        bool elsewhere = false;

        for (size_t i = 0; i < begun->count; i++) {
                const struct sheaf_begun_of *of = &begun->of[i];

                if (epoch < of->low || epoch > of->high ||
                        strcmp(of->name, name))
                        continue;
                if (!memcmp(of->version, version, 16))
                        return false;
                elsewhere = true;
        }
        return elsewhere;
}

size_t sheaf_begun_print(
        const struct sheaf_begun *begun, char ret_text[SHEAF_BEGUN_TEXT_MAX])
{
        size_t len = 0;

        for (size_t i = 0; i < begun->count; i++) {
                const struct sheaf_begun_of *of = &begun->of[i];

                for (size_t k = 0; k < sizeof(of->version); k++)
                        len += (size_t)sprintf(
                                ret_text + len, "%02x", of->version[k]);
                len += (size_t)sprintf(ret_text + len,
                        " %" PRIu32 " %" PRIu32 " %s\n", of->low, of->high,
                        of->name);
        }
        return len;
}

static int hex_digit(char c)
{
        if (c >= '0' && c <= '9')
                return c - '0';
        return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Into @of, as print wrote it. */
static bool parse_line(const char *line, struct sheaf_begun_of *of)
{
        struct sheaf_jobtree_job job;
        const char *why;
        int name = 0;

        for (size_t k = 0; k < sizeof(of->version); k++) {
                int high = hex_digit(line[2 * k]);
                int low = high < 0 ? -1 : hex_digit(line[2 * k + 1]);

                if (low < 0)
                        return false;
                of->version[k] = (uint8_t)(high << 4 | low);
        }
        line += 32;
        if (sscanf(line, " %10" SCNu32 " %10" SCNu32 "%n", &of->low, &of->high,
                    &name) != 2 ||
                line[name] != ' ' || of->low > of->high ||
                of->high >= SHEAF_JOBTREE_EPOCHS ||
                sheaf_jobtree_job(line + name + 1, 0, &job, &why) < 0)
                return false;
        memcpy(of->name, job.name, sizeof(of->name));
        return true;
}

void sheaf_begun_parse(struct sheaf_begun *begun, char *text)
{
        struct sheaf_begun_of *read =
                sheaf_new(struct sheaf_begun_of, SHEAF_BEGUN_MAX);
        char *rest = NULL;
        size_t n = 0;

        for (char *line = strtok_r(text, "\n", &rest);
                read && line && n < SHEAF_BEGUN_MAX;
                line = strtok_r(NULL, "\n", &rest))
                if (parse_line(line, &read[n]))
                        n++;
        /* the first was noted last */
        while (n--)
                sheaf_begun_note(begun, read[n].version, read[n].name,
                        read[n].low, read[n].high);
        free(read);
}
