/* SPDX-License-Identifier: Apache-2.0 */
/* What a cohort finds in the cache, and what it has fetched for its binds.
 *
 *  1 a sample's bit is set exactly while its fetch is under way
 *  2 the bytes under way are bounded; beyond the bound the client's own fetch
 *    brings the sample, later
 *
 * Threads: loop thread. */
#include "daemon/jobs/internal.h"

#define AHEAD_BYTES_MAX (UINT64_C(64) << 20)
#define AHEAD_SHARE     16 /* of the memory */

struct chunk {
        struct sheaf_fetch fetch; /* first */
        struct sheaf_coming *coming;
};

struct sheaf_coming {
        LIST_ENTRY(sheaf_coming) link;
        struct sheaf_jobs_cohort *cohort;
        uint64_t bytes;
        uint32_t sample;
        uint32_t count, left;
        struct chunk chunks[];
};

uint32_t sheaf_jobs_ordinal(
        const struct sheaf_jobs_cohort *cohort, uint32_t sample)
{
        return cohort->subset ? sheaf_subset_member(cohort->subset, sample)
                              : sample;
}

static const struct sheaf_listing_entry *entry_of(
        const struct sheaf_jobs_cohort *cohort, uint32_t sample)
{
        const struct sheaf_listing *listing = &cohort->version->fetch.listing;

        return &listing->entries[listing->files[sheaf_jobs_ordinal(
                cohort, sample)]];
}

static bool coming(const struct sheaf_jobs_cohort *cohort, uint32_t sample)
{
        return cohort->coming_bits[sample / 64] >> (sample % 64) & 1;
}

static bool chunk_here(const struct sheaf_jobs_cohort *cohort, uint64_t chunk)
{
        return sheaf_table_block(cohort->lodging->residence.table, chunk) ||
               sheaf_version_placed(cohort->version->fetch.stored, chunk);
}

bool sheaf_jobs_here(void *arg, uint32_t sample)
{
        const struct sheaf_jobs_cohort *cohort = arg;
        const struct sheaf_listing_entry *e = entry_of(cohort, sample);
        uint64_t count = sheaf_chunk_count(e->size_bytes);

        if (coming(cohort, sample))
                return true;
        for (uint64_t i = e->first_chunk; i < e->first_chunk + count; i++)
                if (!chunk_here(cohort, i))
                        return false;
        return true;
}

static void end(struct sheaf_coming *sample)
{
        struct sheaf_jobs_cohort *cohort = sample->cohort;

        cohort->coming_bits[sample->sample / 64] &=
                ~(UINT64_C(1) << (sample->sample % 64));
        cohort->coming_bytes -= sample->bytes;
        LIST_REMOVE(sample, link);
        free(sample);
}

/* An error is the client's to meet, when it asks for the bytes. */
static void chunk_done(
        struct sheaf_fetch *fetch, int rc, const void *bytes, const char *why)
{
        struct sheaf_coming *sample = ((struct chunk *)fetch)->coming;

        (void)rc;
        (void)bytes;
        (void)why;
        if (--sample->left == 0)
                end(sample);
}

uint32_t sheaf_jobs_fetch(
        struct sheaf_jobs_cohort *cohort, uint64_t lane, uint32_t sample)
{
        struct sheaf_daemon *daemon = cohort->jobs->daemon;
        const struct sheaf_listing *listing = &cohort->version->fetch.listing;
        const struct sheaf_listing_entry *e = entry_of(cohort, sample);
        uint64_t count = sheaf_chunk_count(e->size_bytes);
        uint64_t most = SHEAF_MIN(
                AHEAD_BYTES_MAX, daemon->config->memory_bytes / AHEAD_SHARE);
        struct sheaf_coming *c;
        uint32_t missing = 0;

        if (coming(cohort, sample) ||
                cohort->coming_bytes + e->size_bytes > most)
                return 0;
        c = calloc(1, sizeof(*c) + count * sizeof(c->chunks[0]));
        if (!c)
                return 0;
        c->cohort = cohort;
        c->sample = sample;
        c->bytes = e->size_bytes;
        c->count = (uint32_t)count;
        /* One more, so that it does not end before all have begun. */
        c->left = c->count + 1;
        cohort->coming_bits[sample / 64] |= UINT64_C(1) << (sample % 64);
        cohort->coming_bytes += c->bytes;
        LIST_INSERT_HEAD(&cohort->coming, c, link);
        for (uint32_t i = 0; i < c->count; i++) {
                missing += !chunk_here(cohort, e->first_chunk + i);
                c->chunks[i].coming = c;
                c->chunks[i].fetch = (struct sheaf_fetch){
                        .version = &cohort->version->fetch,
                        .entry = listing->files[sheaf_jobs_ordinal(
                                cohort, sample)],
                        .index = i,
                        .residence = &cohort->lodging->residence,
                        .lane = lane,
                        .hint = true,
                        .done = chunk_done,
                };
                if (sheaf_fetch(daemon->fetcher, &c->chunks[i].fetch))
                        c->left--;
        }
        if (--c->left == 0)
                end(c);
        return missing;
}

void sheaf_jobs_fetch_none(struct sheaf_jobs_cohort *cohort)
{
        struct sheaf_coming *c;

        while ((c = LIST_FIRST(&cohort->coming))) {
                for (uint32_t i = 0; i < c->count; i++)
                        if (c->chunks[i].fetch.flight)
                                sheaf_fetch_cancel(
                                        cohort->jobs->daemon->fetcher,
                                        &c->chunks[i].fetch);
                end(c);
        }
}
