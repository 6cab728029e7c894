/* SPDX-License-Identifier: Apache-2.0 */
/* A fake daemon in a directory of its own, a session and an open dataset. */
#ifndef SHEAF_TESTS_CLIENT_RIG_H
#define SHEAF_TESTS_CLIENT_RIG_H

#include "client/internal.h"
#include "tests/fakes/fake_daemon.h"

struct rig {
        char dir[32], path[64];
        struct fake_options options;
        struct fake_daemon *fake;
        struct fake_knobs *knobs;
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
};

/* Sizes: 110000, 0, 1, 4 MiB, 4 MiB + 5, 9 MiB + 1, then 40 of 5000. */
#define RIG_FILES 46
extern const uint64_t rig_sizes[RIG_FILES];

/* Starts the daemon, with @options or the default ones, and opens. */
void rig_start(struct rig *rig, const struct fake_options *options);
/* A new daemon where the old one was. */
void rig_restart(struct rig *rig);
void rig_stop(struct rig *rig);

/* Whether the bytes of [@offset, ..) of a file are in the view. */
bool rig_bytes_right(const struct rig *rig, uint64_t ordinal, uint64_t offset,
        const struct sheaf_view *view);

/* Waits up to 5 s for @counter to be at least @value. */
bool rig_reaches(const _Atomic uint64_t *counter, uint64_t value);

#endif
