/* SPDX-License-Identifier: Apache-2.0 */
/* The rivals, as far as their papers tell: what each serves next and keeps.
 *
 * The world's places are used as a set of residents; LRU and the random
 * choices of the others have lists of their own beside it. */
#include "tools/sim/world_impl.h"

#define QUIVER_PROBES 10
#define RANDOM_TRIES  64
#define NOBODY        UINT32_MAX

struct sim_rivals {
        uint32_t *resident, *index, count;       /* list of residents */
        uint8_t *uses;                           /* Seneca */
        uint32_t *newer, *older, newest, oldest; /* LRU */
        uint32_t *chunk_of, *in_chunk; /* Quiver: samples, sorted by chunk */
        uint32_t chunk_count, chunk_size, current;
        uint32_t *chunk_left; /* unread, [job][chunk] */
};

static uint32_t below(struct sim_world *world, uint32_t n)
{
        return sheaf_random_below(&world->random, n);
}

static bool unread(const struct sim_job *job, uint32_t sample)
{
        return job->unread[sample / 64] >> (sample % 64) & 1;
}

static void add(struct sim_world *world, uint32_t sample)
{
        struct sim_rivals *r = world->rivals;

        world->place[sample] = SIM_STOCK;
        r->index[sample] = r->count;
        r->resident[r->count++] = sample;
}

static void drop(struct sim_world *world, uint32_t sample)
{
        struct sim_rivals *r = world->rivals;
        uint32_t last = r->resident[--r->count];

        world->place[sample] = SIM_ABSENT;
        r->resident[r->index[sample]] = last;
        r->index[last] = r->index[sample];
}

static void fetch_and_add(struct sim_world *world, uint32_t sample)
{
        world->at[sample] = sim_fetch(world);
        add(world, sample);
}

static uint32_t own_order(const struct sim_job *job)
{
        return sheaf_permutation_at(&job->order, job->bound);
}

static uint32_t oldest_unread(struct sim_job *job)
{
        for (;; job->oldest++) {
                uint32_t x = sheaf_permutation_at(&job->order, job->oldest);

                if (unread(job, x))
                        return x;
        }
}

static uint32_t random_resident(
        struct sim_world *world, const struct sim_job *job)
{
        struct sim_rivals *r = world->rivals;
        uint32_t start;

        if (!r->count)
                return NOBODY;
        for (int i = 0; i < RANDOM_TRIES; i++) {
                uint32_t x = r->resident[below(world, r->count)];

                if (unread(job, x))
                        return x;
        }
        start = below(world, r->count);
        for (uint32_t i = 0; i < r->count; i++) {
                uint32_t x = r->resident[(start + i) % r->count];

                if (unread(job, x))
                        return x;
        }
        return NOBODY;
}

/* ---- LRU ---- */

static void lru_unlink(struct sim_rivals *r, uint32_t x)
{
        if (r->older[x] == NOBODY)
                r->oldest = r->newer[x];
        else
                r->newer[r->older[x]] = r->newer[x];
        if (r->newer[x] == NOBODY)
                r->newest = r->older[x];
        else
                r->older[r->newer[x]] = r->older[x];
}

static uint32_t bind_lru(struct sim_world *world, struct sim_job *job)
{
        struct sim_rivals *r = world->rivals;
        uint32_t x = own_order(job);

        if (world->place[x]) {
                lru_unlink(r, x);
        } else {
                if (r->count == world->capacity) {
                        uint32_t victim = r->oldest;

                        lru_unlink(r, victim);
                        drop(world, victim);
                }
                fetch_and_add(world, x);
        }
        r->newer[x] = NOBODY;
        r->older[x] = r->newest;
        if (r->newest == NOBODY)
                r->oldest = x;
        else
                r->newer[r->newest] = x;
        r->newest = x;
        return x;
}

/* ---- MinIO ---- */

static uint32_t bind_minio(struct sim_world *world, struct sim_job *job)
{
        uint32_t x = own_order(job);

        if (!world->place[x] && world->rivals->count < world->capacity)
                fetch_and_add(world, x);
        else if (!world->place[x])
                world->at[x] = sim_fetch(world);
        return x;
}

/* ---- Seneca ---- */

static uint32_t bind_seneca(struct sim_world *world, struct sim_job *job)
{
        struct sim_rivals *r = world->rivals;
        uint32_t x = random_resident(world, job), y;

        if (x == NOBODY) {
                x = oldest_unread(job);
                if (r->count == world->capacity) {
                        world->at[x] = sim_fetch(world);
                        return x;
                }
                fetch_and_add(world, x);
        }
        if (++r->uses[x] < world->config.jobs)
                return x;
        drop(world, x);
        r->uses[x] = 0;
        do
                y = below(world, world->config.samples);
        while (world->place[y]);
        fetch_and_add(world, y);
        return x;
}

/* ---- Quiver ---- */

static uint32_t quiver_in_chunk(
        struct sim_world *world, struct sim_job *job, uint32_t chunk)
{
        struct sim_rivals *r = world->rivals;
        uint32_t first = chunk * r->chunk_size;
        uint32_t size = SHEAF_MIN(r->chunk_size, world->config.samples - first);
        uint32_t start = below(world, size);

        for (uint32_t i = 0; i < size; i++) {
                uint32_t x = r->in_chunk[first + (start + i) % size];

                if (!unread(job, x))
                        continue;
                if (!world->place[x])
                        fetch_and_add(world, x);
                return x;
        }
        return NOBODY;
}

static uint32_t quiver_choose(struct sim_world *world, struct sim_job *job)
{
        struct sim_rivals *r = world->rivals;
        uint32_t j = (uint32_t)(job - world->jobs), x;

        for (int i = 0; i < QUIVER_PROBES; i++) {
                int tries = 0;

                do
                        x = below(world, world->config.samples);
                while (!unread(job, x) && ++tries < 200);
                if (unread(job, x) && world->place[x])
                        return x;
        }
        for (uint32_t i = 0; i < 2; i++) {
                uint32_t chunk = (r->current + i) % r->chunk_count;

                if (r->chunk_left[j * r->chunk_count + chunk]) {
                        x = quiver_in_chunk(world, job, chunk);
                        if (x != NOBODY)
                                return x;
                }
        }
        /* ahead of everybody: an own read, not kept */
        x = oldest_unread(job);
        if (!world->place[x])
                world->at[x] = sim_fetch(world);
        return x;
}

static bool quiver_needed(const struct sim_world *world, uint32_t chunk)
{
        const struct sim_rivals *r = world->rivals;

        for (int j = 0; j < world->config.jobs; j++)
                if (world->jobs[j].state == 1 &&
                        r->chunk_left[(uint32_t)j * r->chunk_count + chunk])
                        return true;
        return false;
}

static uint32_t bind_quiver(struct sim_world *world, struct sim_job *job)
{
        struct sim_rivals *r = world->rivals;
        uint32_t x = quiver_choose(world, job);
        uint32_t j = (uint32_t)(job - world->jobs);

        r->chunk_left[j * r->chunk_count + r->chunk_of[x]]--;
        for (uint32_t turn = 0; turn < r->chunk_count; turn++) {
                uint32_t first = r->current * r->chunk_size;
                uint32_t end =
                        SHEAF_MIN(first + r->chunk_size, world->config.samples);

                if (quiver_needed(world, r->current))
                        break;
                for (uint32_t i = first; i < end; i++)
                        if (world->place[r->in_chunk[i]])
                                drop(world, r->in_chunk[i]);
                r->current = (r->current + 1) % r->chunk_count;
        }
        return x;
}

/* ---- hits first ---- */

static uint32_t bind_hits_first(struct sim_world *world, struct sim_job *job)
{
        uint32_t n = world->config.samples, x;

        /* stock is not in the rivals' list here: look for it directly */
        for (int i = 0; i < 4 * RANDOM_TRIES; i++) {
                x = below(world, n);
                if (unread(job, x) && world->place[x])
                        return x;
        }
        for (uint32_t i = 0, start = below(world, n); i < n; i++) {
                x = (start + i) % n;
                if (unread(job, x) && world->place[x])
                        return x;
        }
        x = oldest_unread(job);
        sim_bring(world, x);
        return x;
}

/* ---- all ---- */

uint32_t sim_rivals_bind(struct sim_world *world, int job, double *ret_ready)
{
        struct sim_job *j = &world->jobs[job];
        uint32_t x = 0;

        switch (world->config.policy) {
        case SIM_LRU:
                x = bind_lru(world, j);
                break;
        case SIM_MINIO:
                x = bind_minio(world, j);
                break;
        case SIM_QUIVER:
                x = bind_quiver(world, j);
                break;
        case SIM_SENECA:
                x = bind_seneca(world, j);
                break;
        case SIM_HITS_FIRST:
                x = bind_hits_first(world, j);
                break;
        default:
                abort(); /* bound by the daemon's code */
        }
        *ret_ready = world->at[x];
        return x;
}

void sim_rivals_begin(struct sim_world *world, int job)
{
        struct sim_rivals *r = world->rivals;
        uint32_t *left = &r->chunk_left[(uint32_t)job * r->chunk_count];

        for (uint32_t i = 0; i < r->chunk_count; i++)
                left[i] = SHEAF_MIN(r->chunk_size,
                        world->config.samples - i * r->chunk_size);
}

int sim_rivals_new(struct sim_world *world)
{
        uint32_t n = world->config.samples;
        struct sim_rivals *r = sheaf_new(struct sim_rivals, 1);
        struct sheaf_permutation order;

        world->rivals = r;
        if (!r)
                return -ENOMEM;
        r->newest = r->oldest = NOBODY;
        r->chunk_size = SHEAF_MAX(world->capacity / 2, 1);
        r->chunk_count = (n + r->chunk_size - 1) / r->chunk_size;
        r->resident = sheaf_new(uint32_t, n);
        r->index = sheaf_new(uint32_t, n);
        r->uses = sheaf_new(uint8_t, n);
        r->newer = sheaf_new(uint32_t, n);
        r->older = sheaf_new(uint32_t, n);
        r->chunk_of = sheaf_new(uint32_t, n);
        r->in_chunk = sheaf_new(uint32_t, n);
        r->chunk_left = sheaf_new(
                uint32_t, (size_t)world->config.jobs * r->chunk_count);
        if (!r->resident || !r->index || !r->uses || !r->newer || !r->older ||
                !r->chunk_of || !r->in_chunk || !r->chunk_left)
                return -ENOMEM;
        sheaf_permutation_init(&order, n, world->config.seed, UINT64_MAX);
        for (uint32_t i = 0; i < n; i++) {
                r->in_chunk[i] = sheaf_permutation_at(&order, i);
                r->chunk_of[r->in_chunk[i]] = i / r->chunk_size;
        }
        return 0;
}

void sim_rivals_free(struct sim_world *world)
{
        struct sim_rivals *r = world->rivals;

        if (!r)
                return;
        free(r->resident);
        free(r->index);
        free(r->uses);
        free(r->newer);
        free(r->older);
        free(r->chunk_of);
        free(r->in_chunk);
        free(r->chunk_left);
        free(r);
}
