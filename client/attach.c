/* SPDX-License-Identifier: Apache-2.0 */
/* Arenas as a client sees them.
 *
 *  1 the range is reserved once; extents are mapped into it and replaced by
 *    reserved space again, so no address is ever somebody else's
 *  2 an extent's lock file is open exactly while the extent is mapped
 *  3 the hazard array is not inherited by children of a fork
 *
 * Threads: as each function says in the header. */
#include "client/attach.h"
#include "proto/pages.h"

#include <sys/stat.h>
#include <sys/syscall.h>

int sheaf_pages_replace(void *at, size_t bytes, int prot)
{
        /* Not through the library: thread sanitizers take its mmap for a
         * write of every byte, but the kernel only changes what a page fault
         * finds, under its own lock. */
        long rc = syscall(SYS_mmap, at, bytes, prot,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                0L);

        return rc == -1 ? -errno : 0;
}

static int map_hazard(struct sheaf_attach *attach, int fd)
{
        struct stat st;
        void *map;

        if (fstat(fd, &st))
                return -errno;
        if (st.st_size < (off_t)sizeof(struct sheaf_hazard))
                return -EPROTO;
        map = mmap(NULL, sizeof(struct sheaf_hazard), PROT_READ | PROT_WRITE,
                MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
                return -errno;
        attach->hazard = map;
        return 0;
}

/* The range and the tables beside it. */
static int reserve(struct sheaf_attach *attach, struct sheaf_pin_map *ret_map)
{
        uint64_t bytes = attach->extent_count * attach->extent_bytes;
        unsigned int shift =
                (unsigned int)__builtin_ctzll(attach->extent_bytes);
        void *range;

        attach->pinnable = sheaf_new(_Atomic uint8_t, bytes >> shift);
        attach->extent = sheaf_new(struct sheaf_extent, attach->extent_count);
        if (!attach->pinnable || !attach->extent)
                return -ENOMEM;
        for (uint32_t i = 0; i < attach->extent_count; i++)
                attach->extent[i].lock_fd = -1;
        range = sheaf_pages_reserve(bytes);
        if (range == MAP_FAILED)
                return -errno;
        attach->base = range;
        *ret_map = (struct sheaf_pin_map){
                .base = range,
                .range_bytes = bytes,
                .state = attach->pinnable,
                .shift = shift,
        };
        return 0;
}

int sheaf_attach_new(uint32_t arena, uint64_t extent_bytes,
        uint64_t range_bytes, uint64_t grant_bytes, int hazard_fd,
        struct sheaf_attach **ret_attach)
{
        struct sheaf_attach *attach;
        struct sheaf_pin_map map;
        int rc;

        if (hazard_fd < 0 || !extent_bytes || extent_bytes % 4096 ||
                range_bytes < extent_bytes ||
                range_bytes > SHEAF_ARENA_BYTES_MAX)
                return -EPROTO;
        attach = aligned_alloc(64, sizeof(*attach));
        if (!attach)
                return -ENOMEM;
        memset(attach, 0, sizeof(*attach));
        attach->arena = arena;
        attach->live = true;
        attach->extent_bytes = extent_bytes;
        attach->extent_count = (uint32_t)(range_bytes / extent_bytes);
        rc = reserve(attach, &map);
        if (!rc)
                rc = map_hazard(attach, hazard_fd);
        if (!rc)
                rc = sheaf_pinner_init(
                        &attach->pinner, attach->hazard, &map, grant_bytes);
        if (rc) {
                sheaf_attach_free(attach);
                return rc;
        }
        *ret_attach = attach;
        return 0;
}

static uint64_t range_bytes_of(const struct sheaf_attach *attach)
{
        return attach->extent_count * attach->extent_bytes;
}

void sheaf_attach_free(struct sheaf_attach *attach)
{
        if (attach->pinner.owner)
                sheaf_pinner_fini(&attach->pinner);
        if (attach->base && !attach->let_go)
                munmap(attach->base, range_bytes_of(attach));
        /* A child has no such mapping; by now the place may be another's. */
        if (attach->hazard && !attach->foreign)
                munmap(attach->hazard, sizeof(struct sheaf_hazard));
        for (uint32_t i = 0; attach->extent && i < attach->extent_count; i++)
                sheaf_close_p(&attach->extent[i].lock_fd);
        free(attach->extent);
        free(attach->pinnable);
        free(attach);
}

static void set_state(struct sheaf_attach *attach, uint32_t extent,
        enum sheaf_extent_state state)
{
        unsigned int shift = attach->pinner.map.shift;
        uint64_t first = extent * attach->extent_bytes >> shift;
        uint64_t n = attach->extent_bytes >> shift;

        attach->extent[extent].state = state;
        for (uint64_t i = 0; i < n; i++)
                atomic_store_explicit(&attach->pinnable[first + i],
                        state == SHEAF_EXTENT_MAPPED, memory_order_seq_cst);
}

int sheaf_attach_map(
        struct sheaf_attach *attach, uint32_t extent, int fd, int *lock_fd)
{
        struct stat st;
        void *at, *map;

        if (extent >= attach->extent_count || fd < 0 ||
                attach->extent[extent].state != SHEAF_EXTENT_GONE)
                return -EPROTO;
        if (fstat(fd, &st))
                return -errno;
        /* Shorter memory would raise SIGBUS in the trainer. */
        if (st.st_size < (off_t)attach->extent_bytes)
                return -EPROTO;
        at = attach->base + extent * attach->extent_bytes;
        map = mmap(at, attach->extent_bytes, PROT_READ, MAP_SHARED | MAP_FIXED,
                fd, 0);
        if (map == MAP_FAILED)
                return -errno;
        attach->extent[extent].lock_fd = sheaf_steal_fd(lock_fd);
        set_state(attach, extent, SHEAF_EXTENT_MAPPED);
        return 0;
}

int sheaf_attach_drop(struct sheaf_attach *attach, uint32_t extent)
{
        if (extent >= attach->extent_count ||
                attach->extent[extent].state != SHEAF_EXTENT_MAPPED)
                return -EPROTO;
        set_state(attach, extent, SHEAF_EXTENT_DROPPING);
        attach->dropping++;
        return 0;
}

/* Whether a slot names a place in [@from, @to). The state of the extent was
 * changed before. */
static bool pinned_between(
        struct sheaf_attach *attach, uint64_t from, uint64_t to)
{
        uint64_t mark = sheaf_pin_mark(attach->hazard);

        for (uint64_t i = 0; i < mark; i++) {
                uint64_t word = sheaf_pin_held(&attach->hazard->slot[i]);
                uint64_t offset = sheaf_word_offset_bytes(word);

                if (word && offset >= from && offset < to)
                        return true;
        }
        return false;
}

static void let_go_dropped(struct sheaf_attach *attach,
        void (*unmapped)(void *arg, uint32_t arena, uint32_t extent), void *arg)
{
        for (uint32_t i = 0; i < attach->extent_count; i++) {
                uint64_t from = i * attach->extent_bytes;

                if (attach->extent[i].state != SHEAF_EXTENT_DROPPING ||
                        pinned_between(
                                attach, from, from + attach->extent_bytes))
                        continue;
                if (sheaf_pages_replace(attach->base + from,
                            attach->extent_bytes, PROT_NONE))
                        continue;
                set_state(attach, i, SHEAF_EXTENT_GONE);
                sheaf_close_p(&attach->extent[i].lock_fd);
                attach->dropping--;
                if (attach->live)
                        unmapped(arg, attach->arena, i);
        }
}

static bool let_go_all(struct sheaf_attach *attach)
{
        for (uint32_t i = 0; i < attach->extent_count; i++)
                if (attach->extent[i].state == SHEAF_EXTENT_MAPPED) {
                        set_state(attach, i, SHEAF_EXTENT_DROPPING);
                        attach->dropping++;
                }
        if (attach->foreign ? atomic_load_explicit(&attach->inherited_pins,
                                      memory_order_acquire) != 0
                            : pinned_between(attach, 0, range_bytes_of(attach)))
                return false;
        munmap(attach->base, range_bytes_of(attach));
        for (uint32_t i = 0; i < attach->extent_count; i++) {
                set_state(attach, i, SHEAF_EXTENT_GONE);
                sheaf_close_p(&attach->extent[i].lock_fd);
        }
        attach->dropping = 0;
        attach->let_go = true;
        /* A late thread may still publish a word; let it, in a page of its
         * own, and give the daemon's memory back. */
        if (!attach->foreign &&
                !sheaf_pages_replace(attach->hazard,
                        sizeof(struct sheaf_hazard), PROT_READ | PROT_WRITE))
                madvise(attach->hazard, sizeof(struct sheaf_hazard),
                        MADV_DONTFORK);
        return true;
}

bool sheaf_attach_let_go(struct sheaf_attach *attach,
        void (*unmapped)(void *arg, uint32_t arena, uint32_t extent), void *arg)
{
        if (attach->let_go)
                return false;
        if (!attach->live && !attach->map_users)
                return !let_go_all(attach);
        if (attach->dropping && !attach->foreign)
                let_go_dropped(attach, unmapped, arg);
        return attach->dropping > 0;
}

uint64_t sheaf_attach_pins(const struct sheaf_attach *attach)
{
        uint64_t mark, pins = 0;

        if (attach->foreign || attach->let_go)
                return 0;
        mark = sheaf_pin_mark(attach->hazard);
        for (uint64_t i = 0; i < mark; i++)
                pins += sheaf_pin_held(&attach->hazard->slot[i]) != 0;
        return pins;
}

void sheaf_attach_hide(struct sheaf_attach *attach)
{
        if (!attach->foreign && !attach->let_go)
                mprotect(attach->base, range_bytes_of(attach), PROT_NONE);
}

void sheaf_attach_disown(struct sheaf_attach *attach, uint64_t pins)
{
        /* Inherited twice, the first count still holds. */
        if (!attach->foreign)
                atomic_store_explicit(
                        &attach->inherited_pins, pins, memory_order_relaxed);
        attach->foreign = true;
        attach->live = false;
}
