/* SPDX-License-Identifier: Apache-2.0 */
/* Power cuts: a disk whose writes and flushes are recorded beneath the file
 * system, and the states that it may have after a cut.
 *
 * A disk image is a memfd. While it is recorded it goes
 *
 *   memfd <- block-recorder (FUSE) <- loop device <- ext4 at a directory
 *
 * and each write and flush is in the log. A state at event e is: all writes
 * before the last flush before e, and of the writes since then whatever the
 * seed says, sector by sector. States are mounted without the recorder, in a
 * mount namespace of a child.
 *
 * Loop devices clear themselves, mounts lie below flow.base: nothing stays.
 * The part for forked children (cut_loop, cut_mount) reports -errno; the
 * rest ends the test by cr_assert. */
#ifndef SHEAF_TESTS_FLOW_CUT_H
#define SHEAF_TESTS_FLOW_CUT_H

#include "proto/base.h"

#include <sys/types.h>

#define CUT_SECTOR 512
#define CUT_BLOCK  4096

/* Prints SKIP and skips the test where loop devices or mkfs are missing. */
void cut_require(void);

/* ---- a recorded disk ---- */

struct cut_disk {
        int image_fd; /* borrowed */
        pid_t recorder;
        char fuse[96], log[96], at[96];
};

/* A memfd with an empty ext4 of @bytes. */
int cut_image_new(uint64_t bytes);
/* Begins recording: the image's file system appears at @at. @name tells the
 * disk from others of this test. */
void cut_disk_begin(
        struct cut_disk *disk, const char *name, int image_fd, const char *at);
/* A mark in the log: what is true from here on. */
SHEAF_PRINTF(2, 3)
void cut_disk_mark(struct cut_disk *disk, const char *format, ...);
/* Unmounts and ends the recorder; the log stays. */
void cut_disk_end(struct cut_disk *disk);

/* ---- its log ---- */

struct cut_event {
        uint32_t kind; /* enum block_kind */
        uint32_t len_bytes;
        uint64_t offset_bytes;
        const uint8_t *data;
};

struct cut_log {
        void *map;
        size_t map_bytes;
        struct cut_event *events;
        size_t count, flushes, writes;
};

void cut_log_open(const char *path, struct cut_log *ret_log);
void cut_log_close(struct cut_log *log);

/* ---- states ---- */

struct cut_tape {
        const struct cut_log *log;
        uint8_t *durable; /* the image with all writes that were flushed */
        uint8_t *scratch;
        uint8_t *used; /* a byte a block: may be other than zero */
        uint64_t bytes;
        size_t flushed; /* event behind the last flush that was applied */
        size_t at;      /* the cut: before this event */
};

/* @before: the image as it was when recording began. */
void cut_tape_open(
        struct cut_tape *tape, const struct cut_log *log, int before_fd);
void cut_tape_close(struct cut_tape *tape);
/* Moves the cut forward. */
void cut_tape_seek(struct cut_tape *tape, size_t event);
/* Writes that may be kept or lost at this cut. */
size_t cut_tape_pending(const struct cut_tape *tape);
/* Writes a state to @image_fd: seed 0: what was flushed and no more; 1: all
 * that was written; else a choice. Returns how many sectors were lost. */
uint64_t cut_tape_state(struct cut_tape *tape, uint64_t seed, int image_fd);

/* ---- mounting, also in children ---- */

/* Attaches @file_fd to a free loop device, cleared by its last user. */
int cut_loop(int file_fd, char ret_device[32]);
/* Mounts the ext4 in @file_fd at @at. */
int cut_mount(int file_fd, const char *at);
/* Waits for who still closes files there. */
int cut_umount(const char *at);

#endif
