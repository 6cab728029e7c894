/* SPDX-License-Identifier: Apache-2.0 */
/* The floor of the house: cleanup attributes, checked arithmetic, hints.
 *
 * Every function of Sheaf that can fail returns an int: 0 or a positive
 * state on success, a negative errno on failure. Outputs come last, are named
 * ret_*, and stay untouched on failure. */
#ifndef SHEAF_PROTO_BASE_H
#define SHEAF_PROTO_BASE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHEAF_MUST_CHECK   __attribute__((warn_unused_result))
#define SHEAF_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define SHEAF_LIKELY(x)    __builtin_expect(!!(x), 1)
#define SHEAF_UNLIKELY(x)  __builtin_expect(!!(x), 0)

#define SHEAF_KIB (UINT64_C(1) << 10)
#define SHEAF_MIB (UINT64_C(1) << 20)
#define SHEAF_GIB (UINT64_C(1) << 30)

#define SHEAF_NS_PER_SEC INT64_C(1000000000)
#define SHEAF_NS_PER_MS  INT64_C(1000000)

/* A file is cut into chunks of this size; a file that is not longer is one
 * chunk. Fixed: digests, listings and stores of every release rely on it. */
#define SHEAF_CHUNK_BYTES_MAX (UINT64_C(4) << 20)

#define SHEAF_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#define SHEAF_MIN(a, b) ((a) < (b) ? (a) : (b))
#define SHEAF_MAX(a, b) ((a) > (b) ? (a) : (b))

/* Rounds @n up to a multiple of @align, a power of two. */
static inline uint64_t sheaf_round_up(uint64_t n, uint64_t align)
{
        return (n + align - 1) & ~(align - 1);
}

static inline bool sheaf_is_pow2(uint64_t n)
{
        return n && !(n & (n - 1));
}

/* Number of chunks of a file of @bytes; 0 for an empty file. */
static inline uint64_t sheaf_chunk_count(uint64_t bytes)
{
        return bytes / SHEAF_CHUNK_BYTES_MAX +
               (bytes % SHEAF_CHUNK_BYTES_MAX != 0);
}

/* Length in bytes of chunk @index of a file of @bytes. */
static inline uint32_t sheaf_chunk_len(uint64_t bytes, uint64_t index)
{
        uint64_t left = bytes - index * SHEAF_CHUNK_BYTES_MAX;

        return (uint32_t)SHEAF_MIN(left, SHEAF_CHUNK_BYTES_MAX);
}

/* Moves a pointer out of its owner: the owner becomes NULL. */
#define sheaf_steal(pp)                                                        \
        ({                                                                     \
                __typeof__(*(pp)) steal_tmp_ = *(pp);                          \
                *(pp) = NULL;                                                  \
                steal_tmp_;                                                    \
        })

static inline int sheaf_steal_fd(int *fd)
{
        int out = *fd;

        *fd = -1;
        return out;
}

static inline void sheaf_free_p_(void *p)
{
        free(*(void **)p);
        *(void **)p = NULL;
}

/* Closes *@fd if it is open and sets it to -1; errno is kept. */
static inline void sheaf_close_p(int *fd)
{
        int saved = errno;

        if (*fd >= 0)
                close(*fd);
        *fd = -1;
        errno = saved;
}

#define sheaf_autofree __attribute__((cleanup(sheaf_free_p_)))
#define sheaf_autofd   __attribute__((cleanup(sheaf_close_p)))

/* Makes @call, which sets errno, again as long as a signal interrupts it. A
 * file system that says so of every try is told in the end: nobody stays here.
 * Not for calls that wait for others, as on pipes and sockets. */
#define SHEAF_CALL_TRIES 1000
#define sheaf_again(call)                                                      \
        ({                                                                     \
                __typeof__(call) again_rc_;                                    \
                int again_left_ = SHEAF_CALL_TRIES;                            \
                do                                                             \
                        again_rc_ = (call);                                    \
                while (again_rc_ == -1 && errno == EINTR && --again_left_);    \
                again_rc_;                                                     \
        })

/* calloc of @n elements of type T, NULL when memory or size_t is short. */
#define sheaf_new(T, n) ((T *)calloc((n), sizeof(T)))

#endif
