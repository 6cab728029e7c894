/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory in huge pages. A table or an arena is read at random: with
 * 4 KiB pages most reads miss the TLB. Memfds get huge pages where the
 * administrator reserved some, or where shmem_enabled says so; by default it
 * does not, but MADV_COLLAPSE (Linux 6.1) makes them on request all the same.
 * A mapping uses them only where it is aligned like the file. Any thread. */
#ifndef SHEAF_PROTO_PAGES_H
#define SHEAF_PROTO_PAGES_H

#include "proto/base.h"
#include "proto/memfd.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define SHEAF_HUGE_BYTES (UINT64_C(2) << 20)

/* An unused range of @bytes that is aligned for huge pages where it is large
 * enough for one. MAP_FAILED with errno on failure. */
static inline void *sheaf_pages_reserve(uint64_t bytes)
{
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        uint64_t more, before;
        char *range;

        bytes = sheaf_round_up(bytes, 4096);
        more = bytes < SHEAF_HUGE_BYTES ? 0 : SHEAF_HUGE_BYTES;
        range = mmap(NULL, bytes + more, PROT_NONE, flags, -1, 0);
        if (range == MAP_FAILED || !more)
                return range;
        before = -(uintptr_t)range % SHEAF_HUGE_BYTES;
        if (before)
                munmap(range, before);
        munmap(range + before + bytes, more - before);
        return range + before;
}

/* mmap of @fd from its start, shared and so aligned. */
static inline void *sheaf_pages_map(uint64_t bytes, int prot, int fd)
{
        void *range = sheaf_pages_reserve(bytes), *map;

        if (range == MAP_FAILED)
                return range;
        map = mmap(range, bytes, prot, MAP_SHARED | MAP_FIXED, fd, 0);
        if (map == MAP_FAILED) {
                int saved = errno;

                munmap(range, bytes);
                errno = saved;
        }
        return map;
}

/* Makes huge pages of a shared, writable mapping, of holes too. False where
 * the system has none now; what is there is untouched then. May take a
 * millisecond a page. */
static inline bool sheaf_pages_collapse(void *at, uint64_t bytes)
{
        /* The kernel makes none of a hole that is all of one: a page each. */
        for (uint64_t i = 0; i + SHEAF_HUGE_BYTES <= bytes;
                i += SHEAF_HUGE_BYTES)
                if (madvise((char *)at + i, 4096, MADV_POPULATE_WRITE))
                        return false;
        return madvise(at, bytes, MADV_COLLAPSE) == 0;
}

/* Whether the kernel makes them so. */
static inline bool sheaf_pages_on_request(void)
{
        sheaf_autofd int fd = sheaf_memfd("sheaf-probe", 0);
        bool made;
        void *map;

        if (fd < 0 || ftruncate(fd, (off_t)SHEAF_HUGE_BYTES) < 0)
                return false;
        map = sheaf_pages_map(SHEAF_HUGE_BYTES, PROT_READ | PROT_WRITE, fd);
        if (map == MAP_FAILED)
                return false;
        made = sheaf_pages_collapse(map, SHEAF_HUGE_BYTES);
        munmap(map, SHEAF_HUGE_BYTES);
        return made;
}

#endif
