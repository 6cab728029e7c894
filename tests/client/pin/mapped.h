/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of pinning: maps what a real arena hands out, as a client of it
 * would, in this process or in a child. */
#ifndef SHEAF_TESTS_PIN_MAPPED_H
#define SHEAF_TESTS_PIN_MAPPED_H

#include "client/pin.h"
#include "tests/daemon/store/arena_util.h"

struct mapped {
        struct sheaf_pinner pinner;
        struct sheaf_hazard *hazard;
        const _Atomic uint64_t *words;
        _Atomic uint8_t state[64];
};

/* Maps all extents that there are now. -1 on failure: for children too. */
static inline int mapped_open(struct mapped *m, const struct rig *rig,
        const struct sheaf_pins *pins, uint64_t chunks, uint64_t grant_bytes)
{
        struct sheaf_arena_shape shape;
        struct sheaf_pin_map map = { .state = m->state };
        uint32_t end = sheaf_arena_extent_end(rig->arena);
        struct sheaf_arena_pool_stats stats;
        uint8_t *base;
        int fd, lock_fd;

        memset(m, 0, sizeof(*m));
        sheaf_arena_pool_stats(rig->pool, &stats);
        if (sheaf_arena_shape(stats.bytes_max, &shape) < 0 || end > 64 ||
                !sheaf_is_pow2(shape.extent_bytes))
                return -1;
        map.range_bytes = end * shape.extent_bytes;
        map.shift = (unsigned int)__builtin_ctzll(shape.extent_bytes);
        base = mmap(NULL, map.range_bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED)
                return -1;
        map.base = base;
        for (uint32_t i = 0; i < end; i++) {
                if (sheaf_arena_extent(rig->arena, i, &fd, &lock_fd) < 0 ||
                        mmap(base + i * shape.extent_bytes, shape.extent_bytes,
                                PROT_READ, MAP_SHARED | MAP_FIXED, fd,
                                0) == MAP_FAILED)
                        return -1;
                atomic_store(&m->state[i], 1);
        }
        m->hazard = mmap(NULL, sizeof(struct sheaf_hazard),
                PROT_READ | PROT_WRITE, MAP_SHARED, sheaf_pins_fd(pins), 0);
        base = mmap(NULL, sheaf_table_bytes(chunks), PROT_READ, MAP_SHARED,
                sheaf_table_fd(rig->table), 0);
        if (m->hazard == MAP_FAILED || base == MAP_FAILED)
                return -1;
        m->words = (const _Atomic uint64_t *)(const void
                        *)(base + SHEAF_TABLE_WORDS_OFFSET);
        return sheaf_pinner_init(&m->pinner, m->hazard, &map, grant_bytes);
}

#endif
