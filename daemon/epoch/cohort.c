/* SPDX-License-Identifier: Apache-2.0 */
/* Cohorts, jobs, the beginning of runs, and keeping jobs in step.
 *
 *  1 whoever begins an epoch begins it for all its mates that have bound
 *    their last slot too: with the same permutation, so that what is fetched
 *    from now on is offered to them
 *  2 a job that begins within REACH of a mate takes that mate's permutation,
 *    if it is newer than all its own: one that a job had before, brought back
 *    by a mate that stopped, would repeat an epoch's order. One of another
 *    speed never does, for the same reason
 *  3 only the newest run of a job has strata: the byte a sample is the job's.
 *    An older one, which some worker may still bind, falls back to strict */
#include "daemon/epoch/order_impl.h"

#include <math.h>

#define SAME_SPEED .03
#define REACH      50 /* a fiftieth of the epoch, or twice the look-ahead */
/* Pacing: how much slower the leader binds, and after how many of its own
 * intervals without a bind a mate holds nobody back. */
#define PACE_GAIN       .3
#define PACE_SILENT     3
#define FLOW_SILENT_NS  (10 * SHEAF_NS_PER_SEC)
#define INTERVAL_WEIGHT .001

int sheaf_cohort_new(const struct sheaf_cohort_config *config,
        struct sheaf_cohort **ret_cohort)
{
        struct sheaf_cohort *cohort;

        if (!config->samples || config->samples > SHEAF_SAMPLES_MAX)
                return -EINVAL;
        cohort = sheaf_new(struct sheaf_cohort, 1);
        if (!cohort)
                return -ENOMEM;
        cohort->config = *config;
        cohort->random = config->seed;
        *ret_cohort = cohort;
        return 0;
}

void sheaf_cohort_free(struct sheaf_cohort *cohort)
{
        if (cohort)
                sheaf_cohort_survey_end(cohort);
        free(cohort);
}

void sheaf_cohort_set_supply(
        struct sheaf_cohort *cohort, double origin_rate, double cached)
{
        cohort->origin_rate = origin_rate;
        cohort->cached = cached;
}

int sheaf_job_new(struct sheaf_cohort *cohort,
        const struct sheaf_job_config *config, struct sheaf_job **ret_job)
{
        struct sheaf_job *job;

        if (config->order == SHEAF_ORDER_WINDOW && !config->window)
                return -EINVAL;
        job = sheaf_new(struct sheaf_job, 1);
        if (!job)
                return -ENOMEM;
        job->cohort = cohort;
        job->config = *config;
        if (config->order == SHEAF_ORDER_SHARED) {
                job->bytes =
                        sheaf_new(uint8_t, (size_t)cohort->config.samples + 8);
                if (!job->bytes) {
                        free(job);
                        return -ENOMEM;
                }
        }
        job->next = cohort->jobs;
        cohort->jobs = job;
        *ret_job = job;
        return 0;
}

void sheaf_run_complete(struct sheaf_run *run)
{
        for (int s = 0; s < SHEAF_STRATA; s++) {
                sheaf_queue_free(&run->offers[s]);
                sheaf_queue_free(&run->owed[s]);
        }
        free(sheaf_steal(&run->block_first));
        free(sheaf_steal(&run->unread));
        free(sheaf_steal(&run->bound));
}

void sheaf_run_free(struct sheaf_run *run)
{
        if (!run)
                return;
        sheaf_run_complete(run);
        sheaf_replaced_free(&run->replaced);
        free(run);
}

void sheaf_job_free(struct sheaf_job *job)
{
        struct sheaf_job **at;

        if (!job)
                return;
        while (job->runs) {
                struct sheaf_run *run = job->runs;

                job->runs = run->older;
                sheaf_run_free(run);
        }
        for (at = &job->cohort->jobs; *at != job; at = &(*at)->next)
                ;
        *at = job->next;
        free(job->bytes);
        free(job);
}

/* ---- what is here ---- */

int sheaf_cohort_survey(struct sheaf_cohort *cohort, uint32_t count)
{
        const struct sheaf_cohort_config *config = &cohort->config;
        uint32_t n = config->samples, end;

        if (!cohort->surveyed)
                cohort->surveyed = calloc(1, sheaf_bits_bytes(n));
        if (!cohort->surveyed)
                return -ENOMEM;
        end = cohort->survey_count + SHEAF_MIN(count, n - cohort->survey_count);
        for (uint32_t x = cohort->survey_count; x < end; x++)
                if (config->here(config->arg, x))
                        sheaf_bit_set(cohort->surveyed, x);
        cohort->survey_count = end;
        return end == n;
}

bool sheaf_cohort_surveyed(const struct sheaf_cohort *cohort)
{
        return cohort->survey_count == cohort->config.samples;
}

void sheaf_cohort_survey_end(struct sheaf_cohort *cohort)
{
        free(sheaf_steal(&cohort->surveyed));
        cohort->survey_count = 0;
}

/* ---- mates and pace ---- */

void sheaf_job_set_rate(struct sheaf_job *job, double rate)
{
        job->rate = rate;
}

bool sheaf_mates(const struct sheaf_job *a, const struct sheaf_job *b)
{
        const struct sheaf_cohort *cohort = a->cohort;
        double supply;

        if (a->config.order != SHEAF_ORDER_SHARED ||
                b->config.order != SHEAF_ORDER_SHARED)
                return false;
        if (a->rate <= 0 || b->rate <= 0 ||
                fabs(a->rate / b->rate - 1) < SAME_SPEED)
                return true;
        if (cohort->origin_rate <= 0 || !a->config.pace || !b->config.pace)
                return false;
        supply = cohort->origin_rate / fmax(1 - cohort->cached, 1e-9);
        return a->rate > supply && b->rate > supply;
}

static double phase(const struct sheaf_job *job)
{
        return (double)job->runs->bound_count / job->cohort->config.samples;
}

static bool silent(const struct sheaf_job *job, int64_t now_ns)
{
        return (double)(now_ns - job->last_ns) >
               PACE_SILENT * job->interval_ns * SHEAF_MAX(job->burst, 1);
}

static bool flows(const struct sheaf_job *job, int64_t now_ns)
{
        return job->runs &&
               (now_ns - job->last_ns < FLOW_SILENT_NS || !silent(job, now_ns));
}

/* Of the permutation that @job reads, if it is the first to do so; else 0. */
static uint32_t flow_of(const struct sheaf_job *job, int64_t now_ns)
{
        uint32_t least = job->runs->bound_count, most = least, ahead = 0;
        uint32_t n = job->cohort->config.samples;
        const struct sheaf_job *mate;

        for (mate = job->cohort->jobs; mate; mate = mate->next) {
                if (!flows(mate, now_ns) ||
                        mate->runs->family != job->runs->family)
                        continue;
                if (mate == job)
                        break;
                return 0;
        }
        for (mate = job; mate; mate = mate->next) {
                if (!flows(mate, now_ns) ||
                        mate->runs->family != job->runs->family)
                        continue;
                least = SHEAF_MIN(least, mate->runs->bound_count);
                most = SHEAF_MAX(most, mate->runs->bound_count);
                ahead = SHEAF_MAX(ahead, mate->config.ahead);
        }
        return least == n ? 0 : SHEAF_MAX(most - least, ahead);
}

uint64_t sheaf_cohort_flow(const struct sheaf_cohort *cohort, int64_t now_ns)
{
        uint64_t slots = 0;

        for (const struct sheaf_job *job = cohort->jobs; job; job = job->next)
                if (flows(job, now_ns))
                        slots += flow_of(job, now_ns);
        return slots;
}

void sheaf_job_bound(struct sheaf_job *job, int64_t now_ns)
{
        double passed, weight;

        job->since_last++;
        if (now_ns <= job->last_ns)
                return;
        passed = (double)(now_ns - job->last_ns) / job->since_last;
        weight = fmin(INTERVAL_WEIGHT * job->since_last, .5);
        if (job->last_ns)
                job->interval_ns += (job->interval_ns > 0 ? weight : 1) *
                                    (passed - job->interval_ns);
        job->last_ns = now_ns;
        job->burst = job->since_last;
        job->since_last = 0;
}

int64_t sheaf_job_not_before(struct sheaf_job *job, int64_t now_ns)
{
        const double turn = 2 * 3.14159265358979323846;
        double lead = 0, interval_ns = 0;
        int count = 0;

        if (!job->config.pace || !job->runs || job->interval_ns <= 0)
                return now_ns;
        for (struct sheaf_job *mate = job->cohort->jobs; mate;
                mate = mate->next) {
                if (mate != job && (!mate->runs || silent(mate, now_ns) ||
                                           !sheaf_mates(mate, job)))
                        continue;
                lead += sin(turn * (phase(job) - phase(mate)));
                interval_ns += mate->interval_ns;
                count++;
        }
        if (count < 2 || lead <= 0)
                return now_ns;
        return job->last_ns +
               (int64_t)(interval_ns / count * (job->since_last + 1) *
                         (1 + PACE_GAIN * lead / count));
}

/* ---- beginning ---- */

static uint32_t reach(const struct sheaf_job *job)
{
        return SHEAF_MAX(
                job->cohort->config.samples / REACH, 2 * job->config.ahead);
}

/* Whether @run has a permutation that @job never had. */
static bool is_new_to(const struct sheaf_job *job, const struct sheaf_run *run)
{
        if (run->family <= job->newest_family)
                return false;
        /* Restored runs have families of their own. */
        for (const struct sheaf_run *own = job->runs; own; own = own->older)
                if (own->targets.seed == run->targets.seed &&
                        own->targets.stream == run->targets.stream)
                        return false;
        return true;
}

/* The mate that began last, within reach; its run. */
static const struct sheaf_run *leader(const struct sheaf_job *job)
{
        const struct sheaf_run *best = NULL;

        for (struct sheaf_job *mate = job->cohort->jobs; mate;
                mate = mate->next) {
                const struct sheaf_run *run = mate->runs;

                if (mate == job || !run || !sheaf_mates(mate, job) ||
                        run->bound_count >= reach(job) || !is_new_to(job, run))
                        continue;
                if (!best || run->bound_count < best->bound_count)
                        best = run;
        }
        return best;
}

static void choose_targets(struct sheaf_run *run)
{
        struct sheaf_job *job = run->job;
        struct sheaf_cohort *cohort = job->cohort;
        const struct sheaf_run *lead;
        uint32_t n = cohort->config.samples;

        if (job->config.order != SHEAF_ORDER_SHARED) {
                run->family = ++cohort->families;
                sheaf_permutation_init(
                        &run->targets, n, job->config.seed, run->epoch);
                return;
        }
        lead = leader(job);
        if (lead) {
                run->family = lead->family;
                run->targets = lead->targets;
                return;
        }
        run->family = ++cohort->families;
        sheaf_permutation_init(
                &run->targets, n, sheaf_random(&cohort->random), run->family);
}

/* Bit i of the low byte as byte i: 0 or 1. */
static uint64_t spread(uint64_t byte)
{
        const uint64_t ones = UINT64_C(0x0101010101010101);

        byte = (byte & 0xff) * ones & UINT64_C(0x8040201008040201);
        return (byte + ones * 0x7f) >> 7 & ones;
}

/* Eight samples at once, since it holds up the daemon's loop: sample i is byte
 * i of a word, and bit i of @cached and @left. */
static void stratify_eight(uint8_t *bytes, uint64_t cached, uint64_t left)
{
        const uint64_t bins = UINT64_C(0x0101010101010101) * (SHEAF_BINS - 1);
        uint64_t word, bin;

        _Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "");
        memcpy(&word, bytes, sizeof(word));
        bin = (word >> SHEAF_BIN_SHIFT & bins) |
              spread(left) * (SHEAF_BINS - 1);
        word = bin << SHEAF_BIN_SHIFT | spread(cached) * SHEAF_BINS | bin;
        memcpy(bytes, &word, sizeof(word));
}

/* A sample that the run before this one has not read counts as its last: an
 * epoch that is cut short must not leave a bin of some older one, or what two
 * jobs exchange would come again, and the rest late. */
static void stratify(struct sheaf_run *run)
{
        const struct sheaf_cohort *cohort = run->job->cohort;
        const uint64_t *left = run->older ? run->older->unread : NULL;
        uint8_t *bytes = run->job->bytes;
        uint32_t n = cohort->config.samples;

        if (run->older)
                run->older->stratum = NULL; /* invariant 3 */
        run->stratum = bytes;
        for (uint32_t x = 0; x < n; x += 8) {
                uint64_t cached = cohort->surveyed[x / 64] >> x % 64;

                /* there is room for eight at the end */
                stratify_eight(
                        bytes + x, cached, left ? left[x / 64] >> x % 64 : 0);
        }
}

static int blocks(struct sheaf_run *run, uint32_t window)
{
        uint32_t count = run->targets.n / window + 1;

        run->block_first = sheaf_new(uint32_t, count);
        if (!run->block_first)
                return -ENOMEM;
        for (uint32_t i = 0; i < count; i++)
                run->block_first[i] = i * window;
        return 0;
}

struct sheaf_run *sheaf_run_new(
        const struct sheaf_job_config *config, uint32_t n, uint64_t epoch)
{
        struct sheaf_run *run = sheaf_new(struct sheaf_run, 1);

        if (!run)
                return NULL;
        run->epoch = epoch;
        run->unread = malloc(sheaf_bits_bytes(n));
        run->bound = calloc(1, sheaf_bits_bytes(n));
        run->targets.n = n;
        sheaf_replaced_init(&run->replaced, n);
        if (!run->unread || !run->bound ||
                (config->order == SHEAF_ORDER_WINDOW &&
                        blocks(run, config->window) < 0)) {
                sheaf_run_free(run);
                return NULL;
        }
        memset(run->unread, 0xff, sheaf_bits_bytes(n));
        return run;
}

/* The run that was not used for the longest time ends. */
static void end_one(struct sheaf_job *job, const struct sheaf_run *but)
{
        struct sheaf_run **at = NULL, *run;

        for (struct sheaf_run **i = &job->runs; *i; i = &(*i)->older)
                if (*i != but && (!at || (*i)->used < (*at)->used))
                        at = i;
        run = *at;
        *at = run->older;
        job->ended = SHEAF_MAX(job->ended, run->epoch + 1);
        sheaf_run_free(run);
}

/* In its place by epochs. */
static void link_run(struct sheaf_job *job, struct sheaf_run *run)
{
        struct sheaf_run **at = &job->runs;
        int count = 1;

        while (*at && (*at)->epoch > run->epoch)
                at = &(*at)->older;
        run->older = *at;
        *at = run;
        for (const struct sheaf_run *i = job->runs; i; i = i->older)
                count += i != run;
        if (count > SHEAF_RUNS_PER_JOB)
                end_one(job, run);
}

void sheaf_run_adopt(struct sheaf_job *job, struct sheaf_run *run)
{
        struct sheaf_run **at = &job->runs, *same;

        while (*at && (*at)->epoch != run->epoch)
                at = &(*at)->older;
        same = *at;
        if (same) {
                *at = same->older;
                sheaf_run_free(same);
        }
        run->job = job;
        run->used = ++job->cohort->uses;
        run->family = ++job->cohort->families;
        job->newest_family = run->family;
        if (!job->runs)
                job->ended = SHEAF_MAX(job->ended, run->epoch);
        link_run(job, run);
}

static int add_run(
        struct sheaf_job *job, uint64_t epoch, struct sheaf_run **ret_run)
{
        struct sheaf_run *run =
                sheaf_run_new(&job->config, job->cohort->config.samples, epoch);

        if (!run)
                return -ENOMEM;
        run->job = job;
        run->used = ++job->cohort->uses;
        choose_targets(run);
        job->newest_family = SHEAF_MAX(job->newest_family, run->family);
        link_run(job, run);
        if (job->config.order == SHEAF_ORDER_SHARED && job->runs == run)
                stratify(run);
        *ret_run = run;
        return 0;
}

/* Invariant 1. A mate without memory begins later. */
static void begin_mates(struct sheaf_job *job)
{
        for (struct sheaf_job *mate = job->cohort->jobs; mate;
                mate = mate->next) {
                struct sheaf_run *run = mate->runs;

                if (mate == job || !run || !sheaf_mates(mate, job) ||
                        run->bound_count < run->targets.n)
                        continue;
                (void)add_run(mate, run->epoch + 1, &run);
        }
}

struct sheaf_run *sheaf_run_find(struct sheaf_job *job, uint64_t epoch)
{
        for (struct sheaf_run *run = job->runs; run; run = run->older)
                if (run->epoch == epoch && run->named) {
                        run->used = ++job->cohort->uses;
                        return run;
                }
        return NULL;
}

bool sheaf_run_waits(const struct sheaf_job *job, uint64_t epoch)
{
        return job->runs && !job->runs->named && epoch >= job->runs->epoch;
}

int sheaf_run_begin(
        struct sheaf_job *job, uint64_t epoch, struct sheaf_run **ret_run)
{
        struct sheaf_cohort *cohort = job->cohort;
        bool surveyed;
        int rc = 0;

        /* whichever epoch comes next */
        if (sheaf_run_waits(job, epoch)) {
                job->runs->epoch = epoch;
                job->runs->named = true;
        }
        *ret_run = sheaf_run_find(job, epoch);
        if (*ret_run)
                return 0;
        if (epoch < job->ended)
                return -ESTALE;
        surveyed = sheaf_cohort_surveyed(cohort);
        if (job->config.order == SHEAF_ORDER_SHARED)
                while ((rc = sheaf_cohort_survey(cohort, UINT32_MAX)) == 0)
                        ;
        if (rc >= 0)
                rc = add_run(job, epoch, ret_run);
        if (rc == 0) {
                (*ret_run)->named = true;
                if (job->config.order == SHEAF_ORDER_SHARED)
                        begin_mates(job);
        }
        if (!surveyed)
                sheaf_cohort_survey_end(cohort);
        return rc;
}

void sheaf_run_identity(
        const struct sheaf_run *run, struct sheaf_run_state *ret_state)
{
        ret_state->epoch = run->epoch;
        ret_state->seed = run->targets.seed;
        ret_state->stream = run->targets.stream;
        ret_state->high = run->high;
}

bool sheaf_run_touched(const struct sheaf_run *run)
{
        return run->touched;
}

size_t sheaf_cohort_memory(const struct sheaf_cohort *cohort)
{
        size_t n = cohort->config.samples, bytes = sizeof(*cohort);

        for (struct sheaf_job *job = cohort->jobs; job; job = job->next) {
                bytes += sizeof(*job) + (job->bytes ? n : 0);
                for (struct sheaf_run *run = job->runs; run; run = run->older) {
                        bytes += sizeof(*run);
                        if (run->unread)
                                bytes += 2 * sheaf_bits_bytes((uint32_t)n);
                        bytes += sheaf_replaced_bytes(&run->replaced);
                        for (int s = 0; s < SHEAF_STRATA; s++)
                                bytes += ((size_t)run->offers[s].cap +
                                                 run->owed[s].cap) *
                                         sizeof(uint32_t);
                }
        }
        return bytes;
}
