/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon small enough to be told what to do: one dataset, one arena that
 * only grows, bytes made from a formula. It runs as a thread of the test.
 *
 * The tree: files f0000 .. with the sizes given, dir/inner (100 bytes), and
 * links: link -> dir/inner, loop -> loop, out -> ../../etc/passwd,
 * dir/up -> ../f0000. */
#ifndef SHEAF_TESTS_FAKE_DAEMON_H
#define SHEAF_TESTS_FAKE_DAEMON_H

#include "proto/layout_shm.h"
#include "proto/listing.h"

#include <stdatomic.h>

/* ThreadSanitizer makes of a copy of 9 MiB some seconds of a processor. */
#if defined(__SANITIZE_THREAD__)
#define FAKE_DEADLINE_MS 60000
#else
#define FAKE_DEADLINE_MS 5000
#endif

struct fake_options {
        const uint64_t *sizes;
        size_t n;
        uint64_t extent_bytes; /* 0: 16 MiB */
        uint64_t grant_bytes;  /* 0: 64 MiB */
        uint32_t deadline_ms;  /* 0: FAKE_DEADLINE_MS */
};

struct fake_daemon;

/* Knobs and counters; any thread. */
struct fake_knobs {
        _Atomic bool mute; /* requests are read, never answered */
        _Atomic bool deaf; /* requests wait, unread */
        _Atomic bool mute_hello;
        _Atomic int fetch_errno;   /* every item fails with it */
        _Atomic int64_t bad_entry; /* this entry fails with EIO; -1: none */
        _Atomic bool forget;       /* words are gone when Fetched arrives */
        _Atomic int open_errno;    /* OpenDataset fails with it */
        _Atomic int fork_errno;    /* fork notes fail with it */
        _Atomic int layout;        /* in Welcome */
        _Atomic int drop;          /* extent to drop, then -1 */

        _Atomic uint64_t hellos, opens, fetches, items, copies, hints;
        _Atomic uint64_t fork_notes, forks_ended, unmapped, closed, cancels;
};

struct fake_daemon *fake_start(
        const char *path, const struct fake_options *options);
/* Dies: all connections hang up, the socket file stays. */
void fake_stop(struct fake_daemon *fake);
struct fake_knobs *fake_knobs(struct fake_daemon *fake);
/* Kills every word. Bytes are never overwritten. */
void fake_evict_all(struct fake_daemon *fake);
/* Makes everything resident. */
void fake_fill(struct fake_daemon *fake);
/* Slots in use by all clients. */
uint64_t fake_pins(struct fake_daemon *fake);

/* Byte @offset of the file that is entry @entry. */
static inline uint8_t fake_byte(uint32_t entry, uint64_t offset)
{
        return (uint8_t)(offset * 131 + entry * 7 + (offset >> 12));
}

#endif
