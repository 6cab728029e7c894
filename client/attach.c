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

#include <sys/stat.h>

#define THREAD_SLOTS 64 /* between the first slots of two threads */

_Thread_local struct sheaf_thread sheaf_thread;

void sheaf_thread_number(void)
{
        static _Atomic uint32_t last;

        sheaf_thread.number =
                1 + atomic_fetch_add_explicit(&last, 1, memory_order_relaxed);
        sheaf_thread.slot =
                (sheaf_thread.number - 1) * THREAD_SLOTS % SHEAF_HAZARD_SLOTS;
}

_Atomic uint64_t *sheaf_attach_claim_slow(
        struct sheaf_attach *attach, uint64_t word)
{
        struct sheaf_hazard *hazard = attach->hazard;

        if (!sheaf_thread.number)
                sheaf_thread_number();
        for (uint32_t i = 0; i < SHEAF_HAZARD_SLOTS; i++) {
                uint32_t at = (sheaf_thread.slot + i) % SHEAF_HAZARD_SLOTS;

                if (atomic_load_explicit(
                            &hazard->slot[at], memory_order_relaxed))
                        continue;
                /* A cache line's worth at once: the mark is shared. */
                sheaf_pin_raise_mark(hazard, (at | 7) + 1);
                if (!sheaf_pin_publish(&hazard->slot[at], word))
                        continue;
                sheaf_thread.slot = at;
                return &hazard->slot[at];
        }
        return NULL;
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
        if (madvise(map, sizeof(struct sheaf_hazard), MADV_DONTFORK))
                return -errno;
        if (attach->hazard->magic != SHEAF_HAZARD_MAGIC ||
                attach->hazard->layout != SHEAF_SHM_LAYOUT ||
                attach->hazard->slot_count != SHEAF_HAZARD_SLOTS)
                return -EPROTO;
        return 0;
}

int sheaf_attach_new(uint32_t arena, uint64_t extent_bytes,
        uint64_t range_bytes, uint64_t grant_bytes, int hazard_fd,
        struct sheaf_attach **ret_attach)
{
        struct sheaf_attach *attach;
        void *range;
        int rc = -ENOMEM;

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
        attach->range_bytes = attach->extent_count * extent_bytes;
        attach->grant_bytes = grant_bytes;
        attach->granule_shift = (unsigned int)__builtin_ctzll(extent_bytes);
        attach->granule_state = sheaf_new(
                _Atomic uint8_t, attach->range_bytes >> attach->granule_shift);
        attach->lock_fd = sheaf_new(int, attach->extent_count);
        if (!attach->granule_state || !attach->lock_fd)
                goto fail;
        for (uint32_t i = 0; i < attach->extent_count; i++)
                attach->lock_fd[i] = -1;
        range = mmap(NULL, attach->range_bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (range == MAP_FAILED) {
                rc = -errno;
                goto fail;
        }
        attach->base = range;
        rc = map_hazard(attach, hazard_fd);
        if (rc)
                goto fail;
        *ret_attach = attach;
        return 0;

fail:
        sheaf_attach_free(attach);
        return rc;
}

void sheaf_attach_free(struct sheaf_attach *attach)
{
        if (attach->base && !attach->let_go)
                munmap(attach->base, attach->range_bytes);
        if (attach->hazard && !attach->foreign)
                munmap(attach->hazard, sizeof(struct sheaf_hazard));
        for (uint32_t i = 0; attach->lock_fd && i < attach->extent_count; i++)
                sheaf_close_p(&attach->lock_fd[i]);
        free(attach->lock_fd);
        free(attach->granule_state);
        free(attach);
}

static enum sheaf_extent_state state_of(
        struct sheaf_attach *attach, uint32_t extent)
{
        return atomic_load_explicit(
                &attach->granule_state[extent * attach->extent_bytes >>
                                       attach->granule_shift],
                memory_order_relaxed);
}

static void set_state(struct sheaf_attach *attach, uint32_t extent,
        enum sheaf_extent_state state)
{
        uint64_t first = extent * attach->extent_bytes >> attach->granule_shift;
        uint64_t n = attach->extent_bytes >> attach->granule_shift;

        for (uint64_t i = 0; i < n; i++)
                atomic_store_explicit(&attach->granule_state[first + i],
                        (uint8_t)state, memory_order_seq_cst);
}

int sheaf_attach_map(
        struct sheaf_attach *attach, uint32_t extent, int fd, int *lock_fd)
{
        struct stat st;
        void *at, *map;

        if (extent >= attach->extent_count || fd < 0 ||
                state_of(attach, extent) != SHEAF_EXTENT_GONE)
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
        attach->lock_fd[extent] = sheaf_steal_fd(lock_fd);
        set_state(attach, extent, SHEAF_EXTENT_MAPPED);
        return 0;
}

int sheaf_attach_drop(struct sheaf_attach *attach, uint32_t extent)
{
        if (extent >= attach->extent_count ||
                state_of(attach, extent) != SHEAF_EXTENT_MAPPED)
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

                if (state_of(attach, i) != SHEAF_EXTENT_DROPPING ||
                        pinned_between(
                                attach, from, from + attach->extent_bytes))
                        continue;
                if (mmap(attach->base + from, attach->extent_bytes, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE |
                                    MAP_FIXED,
                            -1, 0) == MAP_FAILED)
                        continue;
                set_state(attach, i, SHEAF_EXTENT_GONE);
                sheaf_close_p(&attach->lock_fd[i]);
                attach->dropping--;
                if (attach->live)
                        unmapped(arg, attach->arena, i);
        }
}

static bool let_go_all(struct sheaf_attach *attach)
{
        for (uint32_t i = 0; i < attach->extent_count; i++)
                if (state_of(attach, i) == SHEAF_EXTENT_MAPPED) {
                        set_state(attach, i, SHEAF_EXTENT_DROPPING);
                        attach->dropping++;
                }
        if (atomic_load_explicit(&attach->pinned_bytes, memory_order_acquire) ||
                (!attach->foreign &&
                        pinned_between(attach, 0, attach->range_bytes)))
                return false;
        munmap(attach->base, attach->range_bytes);
        for (uint32_t i = 0; i < attach->extent_count; i++) {
                set_state(attach, i, SHEAF_EXTENT_GONE);
                sheaf_close_p(&attach->lock_fd[i]);
        }
        attach->dropping = 0;
        attach->let_go = true;
        /* A late thread may still publish a word; let it, in a page of its
         * own, and give the daemon's memory back. */
        if (!attach->foreign &&
                mmap(attach->hazard, sizeof(struct sheaf_hazard),
                        PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                        0) != MAP_FAILED)
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

void sheaf_attach_disown(struct sheaf_attach *attach)
{
        attach->foreign = true;
        attach->live = false;
}
