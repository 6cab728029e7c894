/* SPDX-License-Identifier: Apache-2.0 */
/* The pool's byte budget, arenas, and the extents that they take from it.
 *
 *  1 bytes_mapped counts every extent until its last client has unmapped it
 *    or is dead, and never exceeds bytes_max
 *  2 an extent's index is never used twice, so an old offset never names new
 *    memory
 *  3 an extent is dropped only when nothing in it is being filled or held by
 *    the daemon; pins of clients do not matter, their mapping keeps the bytes
 *
 * Loop thread. */
#include "daemon/store/arena_impl.h"
#include "proto/pages.h"

#include <assert.h>
#include <sys/random.h>

#define BYTES_LEAST      (32 * SHEAF_MIB)
#define SEGMENT_LEAST    SHEAF_CHUNK_BYTES_MAX
#define SEGMENT_USUAL    (8 * SHEAF_MIB)
#define SEGMENT_MOST     (64 * SHEAF_MIB)
#define EXTENT_LEAST     (64 * SHEAF_MIB)
#define BUCKETS_AT_FIRST 1024

/* ---- growing arrays ---- */

int sheaf_vec_reserve(struct sheaf_vec *vec, size_t bytes)
{
        size_t want = vec->bytes ? vec->bytes : 64 * SHEAF_KIB;
        void *p;

        if (bytes <= vec->bytes)
                return 0;
        while (want < bytes)
                want *= 2;
        if (vec->p)
                p = mremap(vec->p, vec->bytes, want, MREMAP_MAYMOVE);
        else
                p = mmap(NULL, want, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
                return -ENOMEM;
        vec->p = p;
        vec->bytes = want;
        return 0;
}

void sheaf_vec_free(struct sheaf_vec *vec)
{
        if (vec->p)
                munmap(vec->p, vec->bytes);
        *vec = (struct sheaf_vec){ 0 };
}

/* ---- pool ---- */

/* The extent of @least to @most bytes, by steps of @step, that leaves least of
 * the budget unused. */
static uint64_t best_extent(
        uint64_t bytes_max, uint64_t least, uint64_t most, uint64_t step)
{
        uint64_t best = most / step * step;

        for (uint64_t size = best; size >= least; size -= step)
                if (bytes_max % size < bytes_max % best)
                        best = size;
        return best;
}

int sheaf_arena_shape(uint64_t bytes_max, struct sheaf_arena_shape *ret_shape)
{
        uint64_t segment = SEGMENT_USUAL, extent, least;

        if (bytes_max < BYTES_LEAST)
                return -ERANGE;
        while (segment < SEGMENT_MOST && segment * 2 <= bytes_max / 1024)
                segment *= 2;
        extent = SHEAF_MAX(EXTENT_LEAST, bytes_max / 64);
        extent = SHEAF_MIN(extent, bytes_max / 8);
        if (extent >= 2 * segment) {
                extent = best_extent(bytes_max, extent / segment / 2 * segment,
                        extent, segment);
        } else { /* a segment each, of whole huge pages */
                extent = SHEAF_MIN(extent, segment);
                least = extent / SHEAF_HUGE_BYTES * 3 / 4 * SHEAF_HUGE_BYTES;
                extent = segment =
                        best_extent(bytes_max, SHEAF_MAX(SEGMENT_LEAST, least),
                                extent, SHEAF_HUGE_BYTES);
        }
        *ret_shape = (struct sheaf_arena_shape){
                .bytes_max = bytes_max,
                .extent_bytes = extent,
                .segment_bytes = segment,
        };
        return 0;
}

int sheaf_arena_pool_new(const struct sheaf_arena_config *config,
        struct sheaf_arena_pool **ret_pool)
{
        sheaf_autofree struct sheaf_arena_pool *pool =
                sheaf_new(struct sheaf_arena_pool, 1);
        struct sheaf_arena_shape *shape;
        int rc;

        if (!pool)
                return -ENOMEM;
        shape = &pool->shape;
        pool->config = *config;
        rc = sheaf_arena_shape(config->bytes_max, shape);
        if (rc < 0)
                return rc;
        if (config->segment_bytes)
                shape->segment_bytes = config->segment_bytes;
        if (config->extent_bytes)
                shape->extent_bytes = config->extent_bytes;
        if (shape->segment_bytes % SHEAF_HUGE_BYTES ||
                shape->segment_bytes < SEGMENT_LEAST ||
                shape->segment_bytes > SEGMENT_MOST ||
                shape->extent_bytes % shape->segment_bytes ||
                !shape->extent_bytes || shape->extent_bytes > config->bytes_max)
                return -EINVAL;
        rc = sheaf_extent_probe(config->pages, &pool->pages, &pool->pages_why);
        if (rc < 0)
                return rc;
        *ret_pool = sheaf_steal(&pool);
        return 0;
}

void sheaf_arena_pool_free(struct sheaf_arena_pool *pool)
{
        if (!pool)
                return;
        assert(!pool->arenas);
        free(pool);
}

void sheaf_arena_pool_stats(const struct sheaf_arena_pool *pool,
        struct sheaf_arena_pool_stats *ret_stats)
{
        *ret_stats = (struct sheaf_arena_pool_stats){
                .bytes_max = pool->shape.bytes_max,
                .bytes_mapped = pool->bytes_mapped,
                .bytes_dropped_held = pool->bytes_dropped_held,
                .refused = pool->refused,
                .pages = pool->pages,
                .pages_why = pool->pages_why,
        };
}

/* ---- arenas ---- */

int sheaf_arena_new(struct sheaf_arena_pool *pool, const char *name,
        struct sheaf_arena **ret_arena)
{
        sheaf_autofree struct sheaf_arena *arena =
                sheaf_new(struct sheaf_arena, 1);
        int rc;

        if (!arena)
                return -ENOMEM;
        arena->name = strdup(name);
        if (!arena->name)
                return -ENOMEM;
        arena->pool = pool;
        arena->segs_per_extent = (uint32_t)(pool->shape.extent_bytes /
                                            pool->shape.segment_bytes);
        sheaf_seglist_init(&arena->free);
        sheaf_seglist_init(&arena->linger);
        arena->block_end = 1; /* 0 is none */
        arena->ref_free = SHEAF_NONE;
        arena->bucket_base = BUCKETS_AT_FIRST;
        if (getrandom(&arena->random, sizeof(arena->random), GRND_NONBLOCK) < 0)
                arena->random = (uintptr_t)arena;
        arena->random |= 1;
        rc = sheaf_vec_reserve(
                &arena->buckets, BUCKETS_AT_FIRST * sizeof(uint32_t));
        if (rc < 0) {
                free(arena->name);
                return rc;
        }
        arena->next = pool->arenas;
        pool->arenas = arena;
        *ret_arena = sheaf_steal(&arena);
        return 0;
}

void sheaf_arena_free(struct sheaf_arena *arena)
{
        struct sheaf_arena **at;
        struct sheaf_arena_pool *pool;

        if (!arena)
                return;
        assert(!arena->spaces);
        assert(!arena->table_count);
        assert(!arena->pins);
        assert(!arena->ghosts);
        pool = arena->pool;
        for (at = &pool->arenas; *at != arena; at = &(*at)->next)
                ;
        *at = arena->next;
        for (uint32_t i = 0; i < arena->extent_end; i++) {
                if (!arena->extents[i].map)
                        continue;
                sheaf_extent_close(pool, &arena->extents[i]);
                pool->bytes_mapped -= pool->shape.extent_bytes;
        }
        for (uint32_t i = 0; i < arena->extent_end * arena->segs_per_extent;
                i++) {
                free(arena->segs[i].gaps);
                free(arena->segs[i].big);
        }
        free(arena->segs);
        free(arena->extents);
        sheaf_vec_free(&arena->blocks);
        sheaf_vec_free(&arena->buckets);
        sheaf_vec_free(&arena->refs);
        free(arena->tables);
        free(arena->killed.filter);
        free(arena->killed.word);
        free(arena->killed.block);
        free(arena->orphans);
        free(arena->name);
        free(arena);
}

uint64_t sheaf_arena_random(struct sheaf_arena *arena)
{
        uint64_t x = arena->random;

        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        arena->random = x;
        return x * UINT64_C(2685821657736338717) >> 16;
}

uint32_t sheaf_arena_extent_end(const struct sheaf_arena *arena)
{
        return arena->extent_end;
}

int sheaf_arena_extent(const struct sheaf_arena *arena, uint32_t extent,
        int *ret_fd, int *ret_lock_fd)
{
        if (extent >= arena->extent_end || !arena->extents[extent].map)
                return -ENOENT;
        *ret_fd = arena->extents[extent].fd;
        *ret_lock_fd = arena->extents[extent].lock_fd;
        return 0;
}

int sheaf_arena_extent_lock(
        const struct sheaf_arena *arena, uint32_t extent, int *ret_fd)
{
        if (extent >= arena->extent_end || !arena->extents[extent].map)
                return -ENOENT;
        return sheaf_extent_lock(&arena->extents[extent], ret_fd);
}

/* ---- extents ---- */

uint64_t sheaf_arena_segs_left(const struct sheaf_arena *arena)
{
        const struct sheaf_arena_pool *pool = arena->pool;

        return (pool->shape.bytes_max - pool->bytes_mapped) /
               pool->shape.extent_bytes * arena->segs_per_extent;
}

int sheaf_arena_grow(struct sheaf_arena *arena)
{
        struct sheaf_arena_pool *pool = arena->pool;
        uint64_t size = pool->shape.extent_bytes;
        uint32_t index = arena->extent_end, per = arena->segs_per_extent;
        struct sheaf_extent *extents;
        struct sheaf_segment *segs;
        int rc;

        if (pool->shape.bytes_max - pool->bytes_mapped < size ||
                index >= SHEAF_ARENA_BYTES_MAX / size)
                return -ENOBUFS;
        extents = realloc(arena->extents, (index + 1) * sizeof(*extents));
        if (!extents)
                return -ENOMEM;
        arena->extents = extents;
        segs = realloc(arena->segs, (size_t)(index + 1) * per * sizeof(*segs));
        if (!segs)
                return -ENOMEM;
        arena->segs = segs;
        rc = sheaf_extent_make(pool, &extents[index]);
        if (rc < 0)
                return rc;
        pool->bytes_mapped += size;
        arena->extent_end++;
        arena->extents_live++;
        arena->segs_live += per;
        memset(segs + (size_t)index * per, 0, per * sizeof(*segs));
        for (uint32_t i = index * per; i < (index + 1) * per; i++) {
                segs[i].state = SHEAF_SEG_FREE;
                sheaf_seglist_push(arena, &arena->free, i);
        }
        if (pool->config.extent_new)
                pool->config.extent_new(pool->config.arg, arena, index);
        return 0;
}

int sheaf_unmaps_add(struct sheaf_unmaps *unmaps, uint32_t extent)
{
        if (unmaps->count == unmaps->cap) {
                uint32_t cap = unmaps->cap ? 2 * unmaps->cap : 8;
                uint32_t *p = realloc(unmaps->extent, cap * sizeof(*p));

                if (!p)
                        return -ENOMEM;
                unmaps->extent = p;
                unmaps->cap = cap;
        }
        unmaps->extent[unmaps->count++] = extent;
        return 0;
}

void sheaf_unmaps_all(struct sheaf_arena *arena, struct sheaf_unmaps *unmaps)
{
        while (unmaps->count)
                sheaf_arena_unmapped(arena, unmaps->extent[--unmaps->count]);
        free(unmaps->extent);
        *unmaps = (struct sheaf_unmaps){ 0 };
}

static void gone(struct sheaf_arena_pool *pool)
{
        pool->bytes_mapped -= pool->shape.extent_bytes;
        pool->bytes_dropped_held -= pool->shape.extent_bytes;
}

void sheaf_arena_unmapped(struct sheaf_arena *arena, uint32_t extent)
{
        if (--arena->extents[extent].waiters == 0)
                gone(arena->pool);
}

/* Room in every list first: a drop cannot be undone half-way. */
static int reserve_unmaps(struct sheaf_arena *arena)
{
        int rc;

        for (struct sheaf_pins *p = arena->pins; p; p = p->next) {
                rc = sheaf_unmaps_add(&p->unmaps, 0);
                if (rc < 0)
                        return rc;
                p->unmaps.count--;
        }
        for (struct sheaf_ghost *g = arena->ghosts; g; g = g->next) {
                rc = sheaf_unmaps_add(&g->unmaps, 0);
                if (rc < 0)
                        return rc;
                g->unmaps.count--;
        }
        return 0;
}

static void drop_extent(struct sheaf_arena *arena, uint32_t index)
{
        struct sheaf_arena_pool *pool = arena->pool;
        struct sheaf_extent *extent = &arena->extents[index];
        uint32_t per = arena->segs_per_extent;

        if (reserve_unmaps(arena) < 0)
                return;
        for (uint32_t i = index * per; i < (index + 1) * per; i++)
                sheaf_reclaim_drop(arena, i);
        sheaf_extent_close(pool, extent);
        arena->extents_live--;
        arena->segs_live -= per;
        pool->bytes_dropped_held += pool->shape.extent_bytes;
        extent->waiters = 1; /* the callback may bring answers at once */
        for (struct sheaf_pins *p = arena->pins; p; p = p->next) {
                p->unmaps.extent[p->unmaps.count++] = index;
                extent->waiters++;
        }
        for (struct sheaf_ghost *g = arena->ghosts; g; g = g->next) {
                g->unmaps.extent[g->unmaps.count++] = index;
                extent->waiters++;
        }
        if (pool->config.extent_dropped)
                pool->config.extent_dropped(pool->config.arg, arena, index);
        sheaf_arena_unmapped(arena, index);
}

/* How much dropping an extent would cost: segments in use, of spaces other
 * than @idle; or UINT32_MAX when it cannot go now. */
static uint32_t drop_cost(const struct sheaf_arena *arena, uint32_t index,
        const struct sheaf_space *idle)
{
        uint32_t per = arena->segs_per_extent, cost = 0, own = 0;

        if (!arena->extents[index].map)
                return SHEAF_NONE;
        for (uint32_t i = index * per; i < (index + 1) * per; i++) {
                const struct sheaf_segment *segment = &arena->segs[i];

                if (segment->filling || segment->held ||
                        segment->state == SHEAF_SEG_MOVING)
                        return SHEAF_NONE;
                if (segment->state == SHEAF_SEG_FREE)
                        continue;
                if (segment->space == idle && idle)
                        own++;
                else
                        cost++;
        }
        return !idle || own ? cost : SHEAF_NONE;
}

static bool drop_cheapest(struct sheaf_arena *arena,
        const struct sheaf_space *idle, uint32_t cost_max)
{
        uint32_t best = SHEAF_NONE, best_cost = SHEAF_NONE;

        for (uint32_t i = 0; i < arena->extent_end; i++) {
                uint32_t cost = drop_cost(arena, i, idle);

                if (cost < best_cost) {
                        best = i;
                        best_cost = cost;
                }
        }
        if (best == SHEAF_NONE || best_cost > cost_max)
                return false;
        drop_extent(arena, best);
        return true;
}

static bool drop_one(struct sheaf_arena *arena)
{
        struct sheaf_arena_pool *pool = arena->pool;
        struct sheaf_space *idle = NULL;
        struct sheaf_arena *most = NULL;
        uint64_t arenas_live = 0, fair;

        for (struct sheaf_arena *a = pool->arenas; a; a = a->next)
                if (a != arena && drop_cheapest(a, NULL, 0))
                        return true;
        for (struct sheaf_arena *a = pool->arenas; a; a = a->next)
                for (struct sheaf_space *s = a->spaces; s; s = s->next)
                        if (a != arena && !s->live && s->segs &&
                                (!idle ||
                                        s->idle_since_ns < idle->idle_since_ns))
                                idle = s;
        if (idle && drop_cheapest(idle->arena, idle, SHEAF_NONE - 1))
                return true;
        /* Live arenas share evenly; one without any memory could serve
         * nobody and gets its first extent in any case. */
        for (struct sheaf_arena *a = pool->arenas; a; a = a->next) {
                arenas_live += a->spaces_live != 0;
                if (!most || a->extents_live > most->extents_live)
                        most = a;
        }
        fair = pool->shape.bytes_max / pool->shape.extent_bytes /
               SHEAF_MAX(arenas_live, UINT64_C(1));
        if (arena->extents_live
                        ? !arena->spaces_live || arena->extents_live >= fair ||
                                  most->extents_live <= fair
                        : most->extents_live < 2)
                return false;
        return drop_cheapest(most, NULL, SHEAF_NONE - 1);
}

bool sheaf_arena_squeeze(struct sheaf_arena *arena)
{
        struct sheaf_arena_pool *pool = arena->pool;

        /* One at a time: clients need a moment to let go. */
        if (!pool->bytes_dropped_held && !drop_one(arena))
                return false;
        return sheaf_arena_segs_left(arena) != 0;
}

/* ---- figures ---- */

void sheaf_arena_stats(
        const struct sheaf_arena *arena, struct sheaf_arena_stats *ret_stats)
{
        struct sheaf_arena_stats stats = arena->stats;

        stats.bytes = arena->extents_live * arena->pool->shape.extent_bytes;
        stats.segments_free = arena->free.count;
        stats.granted_bytes = arena->granted_bytes;
        for (const struct sheaf_space *s = arena->spaces; s; s = s->next) {
                stats.segments_stock += s->stock_count;
                stats.segments_ring += s->ring.count + s->ready.count;
                stats.segments_parked += s->parked.count;
                stats.segments_open += sheaf_space_open_count(s);
        }
        stats.segments_parked += arena->linger.count;
        *ret_stats = stats;
}
