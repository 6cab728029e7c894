/* SPDX-License-Identifier: Apache-2.0 */
/* The world (world.h): events, the cache's places, the origin.
 *
 *  1 the only events are uses of samples, in the order of time; whatever is
 *    bound or fetched is so at such a moment
 *  2 with a batch of one a job binds on across the end of an epoch; else it
 *    uses all that it bound, like a loader that drains, and then begins anew
 *  3 each bind checks that the job has not read the sample in this epoch */
#include "tools/sim/world_impl.h"

#include <math.h>
#include <time.h>

#define UNIT_NS 1e12 /* of the daemon's code, a unit of time */

const char *const sim_policy_names[SIM_POLICIES] = { "shared", "window",
        "strict", "lru", "minio", "quiver", "seneca", "hits-first" };

double sim_unit(struct sim_world *world)
{
        return (double)(sheaf_random(&world->random) >> 11) * 0x1p-53;
}

void sim_start_at_random(struct sim_config *config)
{
        struct sim_world world = { .random = config->seed };

        for (int j = 1; j < config->jobs; j++)
                config->start[j] = sim_unit(&world);
}

double sim_fetch(struct sim_world *world)
{
        world->fetches++;
        if (world->config.origin_rate <= 0)
                return world->now;
        world->origin_free =
                fmax(world->origin_free, world->now) +
                1 / (world->config.origin_rate * world->config.samples);
        return world->origin_free;
}

static bool ours(const struct sim_world *world)
{
        return world->config.policy <= SIM_STRICT;
}

static bool here(void *arg, uint32_t sample)
{
        return ((struct sim_world *)arg)->place[sample] != SIM_ABSENT;
}

/* The ring grows with what jobs have in flight, out of the stock. */
static uint32_t ring_wanted(const struct sim_world *world)
{
        uint64_t want = world->ring_size, most = world->capacity / 4;

        if (world->cohort)
                want = SHEAF_MAX(
                        want, sheaf_cohort_flow(world->cohort,
                                      1 + (int64_t)(world->now * UNIT_NS)));
        return (uint32_t)SHEAF_MAX(SHEAF_MIN(want, most), UINT64_C(1));
}

static void drop_from_stock(struct sim_world *world)
{
        uint32_t x;

        do
                x = sheaf_random_below(&world->random, world->config.samples);
        while (world->place[x] != SIM_STOCK);
        world->place[x] = SIM_ABSENT;
        world->stock_count--;
}

void sim_bring(struct sim_world *world, uint32_t sample)
{
        uint32_t wanted = ring_wanted(world), n = world->config.samples;

        world->at[sample] = sim_fetch(world);
        if (world->stock_count + wanted < world->capacity) {
                world->place[sample] = SIM_STOCK;
                world->stock_count++;
                return;
        }
        while (world->ring_count >= wanted) {
                world->place[world->ring[world->ring_head]] = SIM_ABSENT;
                world->ring_head = (world->ring_head + 1) % n;
                world->ring_count--;
        }
        while (world->stock_count &&
                world->stock_count + world->ring_count >= world->capacity)
                drop_from_stock(world);
        world->place[sample] = SIM_RING;
        world->ring[(world->ring_head + world->ring_count++) % n] = sample;
}

/* ---- jobs ---- */

static int begin(struct sim_world *world, int j)
{
        struct sim_job *job = &world->jobs[j];
        uint32_t n = world->config.samples;
        int rc = 0;

        if (j == 0 && job->epoch && world->config.epoch_done)
                world->config.epoch_done(
                        world->config.arg, job->epoch, job->where, job->cached);
        job->epoch++;
        job->began = world->now;
        job->bound = job->used = job->oldest = 0;
        memset(job->unread, 0xff, ((size_t)n + 63) / 64 * 8);
        for (uint32_t x = 0; job->cached && x < n; x++)
                job->cached[x] = world->place[x] != SIM_ABSENT;
        if (ours(world)) {
                rc = sheaf_run_begin(job->job, (uint64_t)job->epoch, &job->run);
        } else {
                sheaf_permutation_init(&job->order, n,
                        sheaf_random(&world->random), (uint64_t)j);
                sim_rivals_begin(world, j);
        }
        return rc;
}

static int bind(struct sim_world *world, int j)
{
        struct sim_job *job = &world->jobs[j];
        struct sheaf_bound bound;
        double ready;
        uint32_t x;
        int rc;

        if (ours(world)) {
                rc = sheaf_run_bind(job->run, job->bound,
                        1 + (int64_t)(world->now * UNIT_NS), &bound);
                if (rc < 0)
                        return rc;
                x = bound.sample;
                if (bound.fetch)
                        sim_bring(world, x);
                ready = world->at[x];
        } else {
                x = sim_rivals_bind(world, j, &ready);
        }
        if (!(job->unread[x / 64] >> (x % 64) & 1))
                return -EPROTO; /* invariant 3 */
        job->unread[x / 64] &= ~(UINT64_C(1) << (x % 64));
        if (job->where)
                job->where[x] = job->bound;
        job->ready[job->bound % world->config.ahead] = ready;
        job->bound++;
        return 0;
}

static int bind_some(struct sim_world *world, int j, uint32_t count)
{
        struct sim_job *job = &world->jobs[j];
        int rc = 0;

        while (rc == 0 && count-- && job->bound < world->config.samples)
                rc = bind(world, j);
        return rc;
}

static double step(struct sim_world *world, int j)
{
        double jitter = 1 + world->config.jitter * (2 * sim_unit(world) - 1);

        return jitter / (world->config.speed[j] * world->config.samples);
}

/* When the sample of the next slot will have been used. */
static void plan(struct sim_world *world, int j)
{
        struct sim_job *job = &world->jobs[j];
        double ready, paced;

        job->next = world->now + step(world, j);
        ready = job->ready[job->used % world->config.ahead];
        job->next = fmax(job->next, ready);
        if (!ours(world) || !world->config.pace ||
                (world->config.batch > 1 &&
                        (job->used + 1) % world->config.batch))
                return;
        paced = (double)sheaf_job_not_before(
                        job->job, 1 + (int64_t)(world->now * UNIT_NS)) /
                UNIT_NS;
        job->next = fmax(job->next, paced);
}

static int use_singly(struct sim_world *world, int j)
{
        struct sim_job *job = &world->jobs[j];
        int rc = 0;

        job->used++;
        if (job->bound == world->config.samples) {
                rc = begin(world, j);
                /* slots of the last epoch that are still to be used keep
                 * their places in the ring of times */
                job->used = 0;
        }
        return rc < 0 ? rc : bind(world, j);
}

static int use(struct sim_world *world, int j)
{
        struct sim_job *job = &world->jobs[j];
        uint32_t batch = world->config.batch;
        int rc;

        if (batch == 1)
                return use_singly(world, j);
        job->used++;
        if (job->used == world->config.samples) {
                rc = begin(world, j);
                return rc < 0 ? rc : bind_some(world, j, world->config.ahead);
        }
        return job->used % batch ? 0 : bind_some(world, j, batch);
}

/* ---- running ---- */

static int new_job(struct sim_world *world, int j)
{
        const struct sim_config *config = &world->config;
        struct sim_job *job = &world->jobs[j];
        struct sheaf_job_config order = {
                .order = config->policy == SIM_WINDOW   ? SHEAF_ORDER_WINDOW
                         : config->policy == SIM_STRICT ? SHEAF_ORDER_STRICT
                                                        : SHEAF_ORDER_SHARED,
                .seed = sheaf_random(&world->random),
                .window = config->window,
                .ahead = config->ahead,
                .pace = config->pace,
        };
        int rc = 0;

        job->unread = calloc(1, ((size_t)config->samples + 63) / 64 * 8);
        job->ready = sheaf_new(double, config->ahead);
        if (j == 0) {
                job->where = sheaf_new(uint32_t, config->samples);
                job->cached = sheaf_new(uint8_t, config->samples);
        }
        if (!job->unread || !job->ready ||
                (j == 0 && (!job->where || !job->cached)))
                return -ENOMEM;
        if (ours(world)) {
                rc = sheaf_job_new(world->cohort, &order, &job->job);
                if (rc == 0)
                        sheaf_job_set_rate(job->job, config->speed[j]);
        }
        return rc;
}

static int begin_job(struct sim_world *world, int j)
{
        struct sim_job *job = &world->jobs[j];
        int rc = new_job(world, j);

        job->state = 1;
        if (rc == 0)
                rc = begin(world, j);
        if (rc == 0)
                rc = bind_some(world, j, world->config.ahead);
        return rc;
}

static void end_job(struct sim_world *world, int j)
{
        sheaf_job_free(world->jobs[j].job);
        world->jobs[j].job = NULL;
        world->jobs[j].run = NULL;
        world->jobs[j].state = 2;
}

static int next_job(const struct sim_world *world, double *ret_when)
{
        int best = -1;

        for (int j = 0; j < world->config.jobs; j++) {
                const struct sim_job *job = &world->jobs[j];
                double when = job->state ? job->next : world->config.start[j];

                if (job->state == 2 || (best >= 0 && when >= *ret_when))
                        continue;
                best = j;
                *ret_when = when;
        }
        return best;
}

static int open_world(struct sim_world *world)
{
        const struct sim_config *config = &world->config;
        size_t n = config->samples;
        struct sheaf_cohort_config cohort = {
                .samples = config->samples,
                .here = here,
                .arg = world,
                .seed = config->seed,
        };
        int rc;

        world->random = config->seed ^ UINT64_C(0x5ea);
        world->capacity = (uint32_t)(config->cache * (double)n);
        world->ring_size = (uint32_t)(config->ring * (double)n);
        world->place = sheaf_new(uint8_t, n);
        world->at = sheaf_new(double, n);
        world->ring = sheaf_new(uint32_t, n);
        if (!world->place || !world->at || !world->ring)
                return -ENOMEM;
        if (!ours(world))
                return sim_rivals_new(world);
        rc = sheaf_cohort_new(&cohort, &world->cohort);
        if (rc == 0)
                sheaf_cohort_set_supply(
                        world->cohort, config->origin_rate, config->cache);
        return rc;
}

static void close_world(struct sim_world *world)
{
        for (int j = 0; j < world->config.jobs; j++) {
                struct sim_job *job = &world->jobs[j];

                end_job(world, j);
                free(job->unread);
                free(job->where);
                free(job->cached);
                free(job->ready);
        }
        sheaf_cohort_free(world->cohort);
        sim_rivals_free(world);
        free(world->place);
        free(world->at);
        free(world->ring);
}

struct tally {
        double began, epoch_time[SIM_JOBS_MAX];
        uint64_t fetches, uses, missed;
        int epochs[SIM_JOBS_MAX];
        double tenth[10];
        bool counting;
};

/* After an event of job @j that saw @before fetches and epoch @epoch. */
static void count(const struct sim_world *world, struct tally *tally, int j,
        int epoch, double began, uint64_t before)
{
        const struct sim_job *job = &world->jobs[j];
        uint64_t fetched = world->fetches - before;

        if (job->epoch != epoch && epoch > world->config.warm) {
                tally->epoch_time[j] += world->now - began;
                tally->epochs[j]++;
        }
        if (j)
                return;
        if (!tally->counting && job->epoch > world->config.warm) {
                tally->counting = true;
                tally->began = world->now;
                tally->fetches = before;
        }
        if (!tally->counting)
                return;
        tally->missed += fetched;
        tally->tenth[SHEAF_MIN((uint64_t)(job->bound ? job->bound - 1 : 0) *
                                       10 / world->config.samples,
                9)] += (double)fetched;
}

static void finish(const struct sim_world *world, const struct tally *tally,
        double real_ns, struct sim_result *result)
{
        const struct sim_config *config = &world->config;
        double n = config->samples, fastest = 0, binds = 0;
        double fetched = (double)(world->fetches - tally->fetches) / n;

        for (int j = 0; j < config->jobs; j++) {
                fastest = fmax(fastest, config->speed[j]);
                binds += n * SHEAF_MAX(world->jobs[j].epoch - 1, 0) +
                         world->jobs[j].bound;
                if (tally->epochs[j])
                        result->epoch_time[j] =
                                tally->epoch_time[j] / tally->epochs[j];
        }
        result->reads_per_time = fetched / (world->now - tally->began);
        result->reads_per_epoch = fetched / tally->epochs[0];
        result->bound = (1 - config->cache) * fastest;
        result->hits = 1 - (double)tally->missed / (n * tally->epochs[0]);
        for (int i = 0; i < 10; i++)
                result->misses_tenth[i] =
                        tally->missed ? tally->tenth[i] / (double)tally->missed
                                      : 0;
        result->bind_ns = real_ns / binds;
        if (world->cohort)
                result->bytes_per_sample =
                        (double)sheaf_cohort_memory(world->cohort) / n;
}

static int check(const struct sim_config *config)
{
        if (!config->samples || config->jobs < 1 ||
                config->jobs > SIM_JOBS_MAX || config->cache < 0 ||
                config->cache > 1 || !config->batch || !config->ahead ||
                config->ahead > config->samples ||
                config->batch > config->ahead || config->epochs < 1 ||
                config->warm < 0 || config->warm >= config->epochs ||
                config->cache * config->samples < 8)
                return -EINVAL;
        for (int j = 0; j < config->jobs; j++)
                if (config->speed[j] <= 0 || config->start[j] < 0)
                        return -EINVAL;
        return 0;
}

static double real_ns(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static int event(struct sim_world *world, struct tally *tally)
{
        double when = 0, began;
        uint64_t before = world->fetches;
        int j = next_job(world, &when), epoch, rc;
        struct sim_job *job = &world->jobs[j];

        world->now = when;
        epoch = job->epoch;
        began = job->began;
        if (world->config.ends[j] > 0 && when > world->config.ends[j]) {
                end_job(world, j);
                return 0;
        }
        rc = job->state ? use(world, j) : begin_job(world, j);
        if (rc < 0)
                return rc;
        plan(world, j);
        count(world, tally, j, epoch, began, before);
        return 0;
}

int sim_run(const struct sim_config *config, struct sim_result *ret_result)
{
        struct sim_world world = { .config = *config };
        struct sim_result result = { 0 };
        struct tally tally = { 0 };
        double start_ns = real_ns();
        int rc = check(config);

        if (rc < 0)
                return rc;
        if (config->policy == SIM_WINDOW && !world.config.window)
                world.config.window = SHEAF_MAX(config->samples / 100, 1);
        rc = open_world(&world);
        while (rc == 0 && world.jobs[0].epoch <= config->epochs)
                rc = event(&world, &tally);
        if (rc == 0) {
                finish(&world, &tally, real_ns() - start_ns, &result);
                *ret_result = result;
        }
        close_world(&world);
        return rc;
}
