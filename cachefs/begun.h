/* SPDX-License-Identifier: Apache-2.0 */
/* Which epochs of which jobs were begun on which version, through a mount and
 * those that it replaced: an epoch stays on the version that it began on.
 * Pure; one thread at a time. */
#ifndef SHEAF_CACHEFS_BEGUN_H
#define SHEAF_CACHEFS_BEGUN_H

#include "cachefs/jobtree.h"

#define SHEAF_BEGUN_MAX 256
/* Of all of it as text; below what an extended attribute may hold. */
#define SHEAF_BEGUN_TEXT_MAX (60 << 10)

/* Those that were named last, in that order. Zero is an empty one. */
struct sheaf_begun {
        struct sheaf_begun_of {
                uint8_t version[16];
                uint32_t low, high; /* epochs, both included */
                char name[SHEAF_JOBTREE_NAME_MAX + 1];
        } of[SHEAF_BEGUN_MAX];
        size_t count;
};

void sheaf_begun_note(struct sheaf_begun *begun, const uint8_t version[16],
        const char *name, uint32_t low, uint32_t high);

/* The epoch was begun on another version, and not on this one too. */
bool sheaf_begun_elsewhere(const struct sheaf_begun *begun,
        const uint8_t version[16], const char *name, uint32_t epoch);

/* A line for each: VERSION LOW HIGH NAME. Returns the length, without a NUL. */
size_t sheaf_begun_print(
        const struct sheaf_begun *begun, char ret_text[SHEAF_BEGUN_TEXT_MAX]);
/* Notes what is in @text; lines that make no sense are passed over. @text is
 * written to. */
void sheaf_begun_parse(struct sheaf_begun *begun, char *text);

#endif
