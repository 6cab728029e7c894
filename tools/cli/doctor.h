/* SPDX-License-Identifier: Apache-2.0 */
/* The findings of `sheaf doctor`. One thread. */
#ifndef SHEAF_TOOLS_CLI_DOCTOR_H
#define SHEAF_TOOLS_CLI_DOCTOR_H

#include "tools/cli/cli.h"
#include "tools/cli/out.h"

enum doctor_level {
        DOCTOR_OK,
        DOCTOR_WARN,
        DOCTOR_FAIL
};

struct doctor {
        const struct cli *cli;
        json_t *list; /* with --json */
        unsigned int count[3];
};

/* One finding. @what: short and stable ("fuse device"); @remedy: how to get
 * what is missing, or NULL; @format: what was found. */
void doctor_line(struct doctor *doctor, enum doctor_level level,
        const char *what, const char *remedy, const char *format, ...)
        SHEAF_PRINTF(5, 6);

/* Reads the first line of a small file, without its newline. False when it
 * cannot be read. */
bool doctor_read(const char *path, char *buf, size_t room);

/* Kernel, io_uring, memory, limits. */
void doctor_host(struct doctor *doctor);
/* FUSE: device, helper, library. */
void doctor_fuse(struct doctor *doctor);

#endif
