/* SPDX-License-Identifier: Apache-2.0 */
/* What the shim is told, in a file that it and the test map. */
#ifndef SHEAF_TESTS_FAKES_SHIM_H
#define SHEAF_TESTS_FAKES_SHIM_H

#include "proto/base.h"

#include <stdatomic.h>
#include <sys/mman.h>

struct shim {
        _Atomic int64_t wall_offset_sec; /* added to the time of day */
        /* Added to the clocks that nobody sets: as if all had stood still. */
        _Atomic int64_t steady_offset_sec;
        _Atomic int names_hang;   /* look-ups of users and groups wait */
        _Atomic int accept_errno; /* what accept4 fails with; 0: it works */
        _Atomic uint64_t accepts; /* counts calls */
        _Atomic int reopen_errno; /* of open, by a name of a descriptor */
        /* Flags of memfd_create: with them EINVAL; without EACCES. */
        _Atomic uint32_t memfd_unknown, memfd_needed;
        /* What madvise() fails with that takes pages; 0: it works. */
        _Atomic int memory_errno;
        _Atomic uint64_t refusals; /* counts those */
        /* While @refuse is not 0 the first thread's allocations are counted,
         * and @refuse of them fail, from number @refuse_from on; @refused
         * counts those. */
        _Atomic uint64_t allocations, refuse_from, refuse, refused;
};

#endif
