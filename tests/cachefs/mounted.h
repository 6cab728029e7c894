/* SPDX-License-Identifier: Apache-2.0 */
/* A directory mounted for one test: a forked process serves it. */
#ifndef SHEAF_TESTS_CACHEFS_MOUNTED_H
#define SHEAF_TESTS_CACHEFS_MOUNTED_H

#include "cachefs/fs.h"
#include "cachefs/mounts.h"
#include "tests/fakes/fake_dataset.h"

#include <stdio.h>

struct mounted {
        char base[64]; /* temporary directory with the next two */
        char origin[80], dir[80];
        struct fake_dataset fake;
        struct sheaf_fs_options options;
        pid_t server;
};

/* Makes base, origin and dir. Skips the test, saying why, where FUSE cannot
 * be mounted. */
void mounted_prepare(struct mounted *m);
/* Lists origin and serves it at dir; returns when it answers. */
void mounted_start(struct mounted *m);
/* Unmounts, waits for the server, which must end well. */
void mounted_stop(struct mounted *m);
/* Removes everything. */
void mounted_remove(struct mounted *m);

/* What a test that failed left: takes the mount away, ends the server. */
void mounted_rescue(struct mounted *m);

/* Requests of all kinds that reached the server, forgets aside. */
uint64_t mounted_requests(const struct mounted *m);

/* Writes @len stamped bytes: each 8-byte word is (seed, index), never zero. */
void stamp_file(const char *path, uint32_t seed, uint64_t len);
void stamp_fill(void *buf, uint32_t seed, uint64_t offset, uint64_t len);

/* dir/name in a static ring of buffers. */
const char *at(const char *dir, const char *name);

/* Runs a shell command; true on exit 0. */
SHEAF_PRINTF(1, 2) bool sh(const char *format, ...);

#endif
