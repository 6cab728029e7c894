/* SPDX-License-Identifier: Apache-2.0 */
/* The load of a storm: nine processes that read, warm up, update, add and
 * remove while somebody kills what serves them.
 *
 *   still   files that never change; more than memory and more than disk
 *   moving  files that change and are updated
 *   tinyN   small datasets that come and go
 *
 * A worker ends by itself only when it saw something wrong: it prints a line
 * that begins "STORM: " and exits 1. Errors of reads are counted by errno. */
#ifndef SHEAF_TESTS_FLOW_STORM_H
#define SHEAF_TESTS_FLOW_STORM_H

#include "tests/flow/harness.h"
#include "tests/flow/soak.h"

#include <stdatomic.h>

#define STORM_SMALL  60
#define STORM_LARGE  8
#define STORM_STILL  (STORM_SMALL + STORM_LARGE)
#define STORM_MOVING 40
#define STORM_TINY   5
#define STORM_ERRNOS 140

enum storm_role {
        STORM_VIEWS,   /* library, in place, of still; holds some */
        STORM_VIEWS_2, /* library, in place, of moving; as another user */
        STORM_COPIES,
        STORM_COPIES_2, /* as another user */
        STORM_MOUNT,    /* of still: whole files */
        STORM_MOUNT_2,  /* of still: ranges */
        STORM_WARMUP,
        STORM_UPDATE,
        STORM_ADD,
        STORM_ROLES
};
#define STORM_READERS STORM_WARMUP /* those below it */

/* Shared by all processes of a storm. */
struct storm_board {
        _Atomic bool stop, pause;
        _Atomic unsigned int paused;
        /* Reads, or commands that ended 0. */
        _Atomic uint64_t done[STORM_ROLES];
        /* Openings while nobody listened; commands that did not end 0. */
        _Atomic uint64_t refused[STORM_ROLES];
        _Atomic uint64_t errors[STORM_ROLES][STORM_ERRNOS];
        /* Reads that failed when their deadline was over. */
        _Atomic uint64_t late[STORM_ROLES];
        /* What `sheaf update` said is there: generations. */
        _Atomic uint32_t moved[STORM_MOVING];
};

extern struct storm_board *storm_board;

/* Makes the origins and the board. */
void storm_prepare(void);
/* With a daemon: adds the datasets and mounts two of still. */
void storm_add(void);
/* Starts all workers; seeds them from @soak. */
void storm_begin(struct soak *soak);
/* Asserts that all workers live. */
void storm_look(void);
/* Waits until each has stopped between two of its acts. */
void storm_pause(void);
void storm_go_on(void);
/* Ends all workers and the mounts. */
void storm_end(void);

/* Reads one file of still, whole, in a session of its own; 0 or -errno. */
int storm_read_once(uint32_t file);
/* All files of still by library, with asserts. */
void storm_read_all(void);
/* The sum of errors of a role, and "ESTALE 3, ETIMEDOUT 1". */
uint64_t storm_errors(enum storm_role role, char *text, size_t cap_bytes);

#endif
