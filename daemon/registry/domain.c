/* SPDX-License-Identifier: Apache-2.0 */
/* Domains and lodgings: where versions live in arenas, and the end of what
 * nobody lives in any more.
 *
 *  1 a domain is made by the first lodging in it, and freed with its arena
 *    when no dataset lodges there, no client is attached and no fork holds
 *    bytes of it: grants and users that come and go leave nothing behind
 *  2 what its arena counted goes to a sum before the arena goes: no total
 *    ever falls
 *  3 a tenancy under a grant ends after the grant, when nothing of the
 *    dataset is under way
 *
 * Threads: loop thread. */
#include "daemon/registry/internal.h"

#include "daemon/clock.h"

#include <stdio.h>

static int domain_get(struct sheaf_registry *registry, enum sheaf_share kind,
        uint64_t id, struct sheaf_domain **ret_domain)
{
        static const char *const kinds[] = { "owner", "group", "all", "grant" };
        struct sheaf_domain *domain;
        int rc;

        LIST_FOREACH (domain, &registry->domains, link) {
                if (domain->kind == kind && domain->id == id) {
                        *ret_domain = domain;
                        return 0;
                }
        }
        domain = sheaf_new(struct sheaf_domain, 1);
        if (!domain)
                return -ENOMEM;
        domain->kind = kind;
        domain->id = id;
        domain->number = ++registry->domain_numbers;
        snprintf(domain->name, sizeof(domain->name), "%s:%llu", kinds[kind],
                (unsigned long long)id);
        rc = sheaf_arena_new(registry->pool, domain->name, &domain->arena);
        if (rc) {
                free(domain);
                return rc;
        }
        LIST_INSERT_HEAD(&registry->domains, domain, link);
        *ret_domain = domain;
        return 0;
}

static int tenancy_get(struct sheaf_reg_dataset *ds,
        struct sheaf_domain *domain, struct sheaf_tenancy **ret_tenancy)
{
        struct sheaf_tenancy *tenancy;
        int rc;

        LIST_FOREACH (tenancy, &ds->tenancies, link) {
                if (tenancy->domain == domain) {
                        *ret_tenancy = tenancy;
                        return 0;
                }
        }
        tenancy = sheaf_new(struct sheaf_tenancy, 1);
        if (!tenancy)
                return -ENOMEM;
        tenancy->dataset = ds;
        tenancy->domain = domain;
        rc = sheaf_space_new(domain->arena, ds->record->name, &tenancy->space);
        if (rc) {
                free(tenancy);
                return rc;
        }
        LIST_INSERT_HEAD(&ds->tenancies, tenancy, link);
        *ret_tenancy = tenancy;
        return 0;
}

/* Which arena is @who's of the dataset. */
static enum sheaf_share domain_of(const struct sheaf_reg_dataset *ds,
        const struct sheaf_principal *who, uint64_t *ret_id)
{
        enum sheaf_share kind =
                who->grant ? SHEAF_SHARE_GRANT : ds->record->share_kind;

        *ret_id = who->grant;
        if (kind == SHEAF_SHARE_OWNER)
                *ret_id = ds->record->owner_uid;
        else if (kind == SHEAF_SHARE_GROUP)
                *ret_id = ds->record->share_gid;
        return kind;
}

bool sheaf_registry_lodges(const struct sheaf_reg_version *version,
        const struct sheaf_principal *who)
{
        const struct sheaf_lodging *lodging;
        uint64_t id;
        enum sheaf_share kind = domain_of(version->dataset, who, &id);

        LIST_FOREACH (lodging, &version->lodgings, link)
                if (lodging->tenancy->domain->kind == kind &&
                        lodging->tenancy->domain->id == id)
                        return true;
        return false;
}

static int lodging_new(struct sheaf_reg_version *version,
        struct sheaf_tenancy *tenancy, struct sheaf_table_pages *pages,
        struct sheaf_lodging **ret_lodging)
{
        struct sheaf_arena *arena = tenancy->domain->arena;
        struct sheaf_lodging *lodging = sheaf_new(struct sheaf_lodging, 1);
        uint64_t chunks = version->fetch.listing.chunk_count;
        int rc;

        if (!lodging)
                return -ENOMEM;
        lodging->tenancy = tenancy;
        lodging->residence.arena = arena;
        lodging->residence.space = tenancy->space;
        rc = pages && pages->map
                     ? sheaf_table_new_of(arena, version->record->serial,
                               chunks, pages, &lodging->residence.table)
                     : sheaf_table_new(arena, version->record->serial, chunks,
                               &lodging->residence.table);
        if (rc) {
                free(lodging);
                return rc;
        }
        LIST_INSERT_HEAD(&version->lodgings, lodging, link);
        *ret_lodging = lodging;
        return 0;
}

int sheaf_registry_lodge_of(struct sheaf_reg_version *version,
        const struct sheaf_principal *who, struct sheaf_table_pages *pages,
        struct sheaf_lodging **ret_lodging)
{
        struct sheaf_reg_dataset *ds = version->dataset;
        struct sheaf_domain *domain;
        struct sheaf_tenancy *tenancy;
        struct sheaf_lodging *lodging;
        uint64_t id;
        enum sheaf_share kind = domain_of(ds, who, &id);
        int rc = domain_get(ds->registry, kind, id, &domain);

        if (!rc)
                rc = tenancy_get(ds, domain, &tenancy);
        if (rc)
                return rc;
        LIST_FOREACH (lodging, &version->lodgings, link) {
                if (lodging->tenancy == tenancy) {
                        *ret_lodging = lodging;
                        return 0;
                }
        }
        return lodging_new(version, tenancy, pages, ret_lodging);
}

int sheaf_registry_lodge(struct sheaf_reg_version *version,
        const struct sheaf_principal *who, struct sheaf_lodging **ret_lodging)
{
        return sheaf_registry_lodge_of(version, who, NULL, ret_lodging);
}

void sheaf_lodging_use(struct sheaf_lodging *lodging, int delta)
{
        struct sheaf_tenancy *tenancy = lodging->tenancy;
        struct sheaf_reg_dataset *ds = tenancy->dataset;
        bool was = tenancy->handles > 0, ds_was = ds->handles > 0;

        tenancy->handles += (uint32_t)delta;
        ds->handles += (uint32_t)delta;
        if (ds_was != (ds->handles > 0))
                sheaf_store_group_live(
                        ds->registry->store, ds->record->id, ds->handles > 0);
        if (was != (tenancy->handles > 0))
                sheaf_space_set_live(
                        tenancy->space, tenancy->handles > 0, sheaf_now_ns());
}

/* ---- ends ---- */

void sheaf_registry_unlodge(
        struct sheaf_reg_version *version, const struct sheaf_tenancy *tenancy)
{
        struct sheaf_lodging *lodging, *next;

        for (lodging = LIST_FIRST(&version->lodgings); lodging;
                lodging = next) {
                next = LIST_NEXT(lodging, link);
                if (tenancy && lodging->tenancy != tenancy)
                        continue;
                LIST_REMOVE(lodging, link);
                sheaf_table_free(lodging->residence.table);
                free(lodging);
        }
}

void sheaf_registry_end_tenancies(
        struct sheaf_reg_dataset *dataset, struct sheaf_tenancy *only)
{
        struct sheaf_tenancy *tenancy, *next;

        for (tenancy = LIST_FIRST(&dataset->tenancies); tenancy;
                tenancy = next) {
                next = LIST_NEXT(tenancy, link);
                if (only && tenancy != only)
                        continue;
                LIST_REMOVE(tenancy, link);
                sheaf_space_free(tenancy->space);
                free(tenancy);
        }
}

static bool is_still(const struct sheaf_reg_dataset *ds)
{
        const struct sheaf_reg_version *v;

        if (ds->busy || ds->listing)
                return false;
        TAILQ_FOREACH (v, &ds->versions, link)
                if (v->fetch.flights || v->load == SHEAF_LOADING)
                        return false;
        return true;
}

static void sweep_grants(struct sheaf_reg_dataset *ds)
{
        const struct sheaf_registry *registry = ds->registry;
        struct sheaf_tenancy *tenancy, *next;

        for (tenancy = LIST_FIRST(&ds->tenancies); tenancy; tenancy = next) {
                const struct sheaf_domain *domain = tenancy->domain;
                struct sheaf_reg_version *v;

                next = LIST_NEXT(tenancy, link);
                if (domain->kind != SHEAF_SHARE_GRANT || tenancy->handles ||
                        !registry->grant_check ||
                        registry->grant_check(registry->grant_arg, domain->id,
                                ds->record->id) ||
                        !is_still(ds))
                        continue;
                TAILQ_FOREACH (v, &ds->versions, link)
                        sheaf_registry_unlodge(v, tenancy);
                sheaf_registry_end_tenancies(ds, tenancy);
        }
}

static bool has_tenant(const struct sheaf_dataset_list *list,
        const struct sheaf_domain *domain)
{
        const struct sheaf_reg_dataset *ds;
        const struct sheaf_tenancy *tenancy;

        TAILQ_FOREACH (ds, list, link)
                LIST_FOREACH (tenancy, &ds->tenancies, link)
                        if (tenancy->domain == domain)
                                return true;
        return false;
}

/* Gauges stay out: they are of what lives. */
static void add_counts(
        struct sheaf_arena_stats *sum, const struct sheaf_arena_stats *one)
{
        sum->placed_blocks += one->placed_blocks;
        sum->placed_bytes += one->placed_bytes;
        sum->evicted_blocks += one->evicted_blocks;
        sum->evicted_bytes += one->evicted_bytes;
        sum->scans += one->scans;
        sum->scans_met_pin += one->scans_met_pin;
        sum->kept_blocks += one->kept_blocks;
        sum->place_failures += one->place_failures;
}

void sheaf_registry_sweep_domains(struct sheaf_registry *registry)
{
        struct sheaf_domain *domain, *next;
        struct sheaf_reg_dataset *ds;

        TAILQ_FOREACH (ds, &registry->datasets, link)
                sweep_grants(ds);
        for (domain = LIST_FIRST(&registry->domains); domain; domain = next) {
                struct sheaf_arena_stats stats;

                next = LIST_NEXT(domain, link);
                sheaf_arena_stats(domain->arena, &stats);
                if (stats.clients || stats.ghosts ||
                        has_tenant(&registry->datasets, domain) ||
                        has_tenant(&registry->leaving, domain))
                        continue;
                add_counts(&registry->gone_arenas, &stats);
                LIST_REMOVE(domain, link);
                sheaf_arena_free(domain->arena);
                free(domain);
        }
}

void sheaf_registry_arena_stats(const struct sheaf_registry *registry,
        struct sheaf_arena_stats *ret_stats, uint64_t *ret_pinned_bytes)
{
        struct sheaf_arena_stats sum = registry->gone_arenas, one;
        const struct sheaf_domain *domain;

        *ret_pinned_bytes = 0;
        LIST_FOREACH (domain, &registry->domains, link) {
                sheaf_arena_stats(domain->arena, &one);
                add_counts(&sum, &one);
                sum.bytes += one.bytes;
                sum.payload_bytes += one.payload_bytes;
                sum.blocks += one.blocks;
                sum.clients += one.clients;
                sum.ghosts += one.ghosts;
                sum.granted_bytes += one.granted_bytes;
                *ret_pinned_bytes += sheaf_arena_pinned_bytes(domain->arena);
        }
        *ret_stats = sum;
}
