/* SPDX-License-Identifier: Apache-2.0 */
/* What the mount that is replaced knows, asked of it when it is no longer to
 * be found by its path: a child holds it until then. The old mount may hang, so
 * the child's answer is waited for a bounded time. */
#ifndef SHEAF_CACHEFS_HEIR_H
#define SHEAF_CACHEFS_HEIR_H

#include "proto/base.h"

#include <sys/types.h>

struct sheaf_heir {
        pid_t child; /* 0: none */
        int ask_fd, answer_fd;
        bool hangs; /* it was asked, and did not answer */
};

/* Takes hold of the mount at @dir. @close_fd: nothing of the child's. Before
 * there are threads. 0 or -errno: then there is no child. */
SHEAF_MUST_CHECK int sheaf_heir_begin(
        const char *dir, int close_fd, struct sheaf_heir *ret_heir);

/* What it has begun (sheaf_fs_inherit), or NULL: it does not tell, or not in
 * time. Freed by the caller. Ends the child. Any thread, once. */
char *sheaf_heir_ask(struct sheaf_heir *heir);

/* Ends the child, if there is one. */
void sheaf_heir_end(struct sheaf_heir *heir);

#endif
