/* SPDX-License-Identifier: Apache-2.0 */
/* What the registry's files share: registry.c (names, records, rights),
 * registry_version.c (listings in memory, cleaning), registry_domain.c
 * (domains, lodgings), registry_counts.c (what was counted) and
 * registry_origin.c (readers); registry_record.c (what is durable). */
#ifndef SHEAF_DAEMON_REGISTRY_INTERNAL_H
#define SHEAF_DAEMON_REGISTRY_INTERNAL_H

#include "daemon/registry/registry.h"

TAILQ_HEAD(sheaf_dataset_list, sheaf_reg_dataset);

TAILQ_HEAD(sheaf_slice_list, sheaf_reg_slice);

struct sheaf_registry {
        uv_loop_t *loop;
        struct sheaf_store *store;
        struct sheaf_arena_pool *pool;
        struct sheaf_fetcher *fetcher;
        char *reader_path;
        int64_t deadline_ns;
        uint32_t user_datasets;
        bool switch_user; /* we are root: readers become the owner */
        bool closing;     /* no reader is started any more */
        /* Records, or versions in one, that could not be read at the start. */
        LIST_HEAD(, sheaf_unreadable) unreadable;
        bool versions_unreadable;
        uint32_t giving_up; /* requests under way */
        struct sheaf_dataset_list datasets, leaving;
        LIST_HEAD(, sheaf_domain) domains;
        LIST_HEAD(, sheaf_kept_counts) kept_counts; /* of removed datasets */
        LIST_HEAD(, sheaf_reg_telling) tellings;
        struct sheaf_arena_stats gone_arenas; /* counters of freed domains */
        uint32_t domain_numbers;
        bool (*grant_check)(void *arg, uint64_t grant, uint64_t dataset);
        void *grant_arg;
        void (*gone)(void *arg, const uint8_t uuid[16]); /* or NULL */
        void *gone_arg;
        uv_timer_t sweep;
        struct sheaf_slice_list slices; /* of versions on their way in */
        uv_idle_t slicing;              /* runs while there are some */
        int open_handles;               /* while closing */
};

/* unreadable.c */
SHEAF_MUST_CHECK int sheaf_unreadable_add(
        struct sheaf_registry *registry, const char *key);
void sheaf_unreadable_free(struct sheaf_registry *registry);

/* registry_load.c */
void sheaf_registry_slices_init(struct sheaf_registry *registry);
/* The version is in memory and held for it: it is told, when there is a table
 * for who asks. */
void sheaf_registry_opened(struct sheaf_opening *opening);
/* It is not told. */
void sheaf_registry_forget_opening(struct sheaf_opening *opening);
/* Reads a version that is not in memory; its openings are told. */
SHEAF_MUST_CHECK int sheaf_registry_load(struct sheaf_reg_version *version);

/* registry_version.c */
struct sheaf_reg_version *sheaf_reg_version_new(
        struct sheaf_reg_dataset *dataset, SheafRecord__Version *record);
/* It is in memory: @block and @stored are its own. */
void sheaf_reg_version_take(struct sheaf_reg_version *version,
        const struct sheaf_listing_block *block, struct sheaf_version *stored);
/* Takes @version out and returns where it was. */
size_t sheaf_reg_record_take(
        SheafRecord__Dataset *record, SheafRecord__Version *version);
struct sheaf_reg_version *sheaf_registry_add_version(
        struct sheaf_reg_dataset *dataset, SheafRecord__Version *record);
/* Unloads what nobody holds; removes old versions and left datasets. */
void sheaf_registry_sweep(struct sheaf_registry *registry);
/* Once at start: lets go of versions that nobody held for many starts. */
void sheaf_registry_age(struct sheaf_registry *registry);
/* Gives up all lodgings and tenancies of a dataset (it moves to another
 * domain, or goes). False while flights use them: call again. */
bool sheaf_registry_evacuate(struct sheaf_reg_dataset *dataset);

/* It is in its new domain, or stays: what waited is opened. */
void sheaf_registry_moved(struct sheaf_reg_dataset *dataset);

/* registry_origin.c */
/* The path of the origin and the one before, of which there is one. */
void sheaf_registry_swap_path(struct sheaf_reg_dataset *dataset);

/* registry_domain.c */
/* Whether the version has a table in @who's arena. */
bool sheaf_registry_lodges(const struct sheaf_reg_version *version,
        const struct sheaf_principal *who);
/* As sheaf_registry_lodge(), of @pages (may be NULL) if it has to be made. */
SHEAF_MUST_CHECK int sheaf_registry_lodge_of(struct sheaf_reg_version *version,
        const struct sheaf_principal *who, struct sheaf_table_pages *pages,
        struct sheaf_lodging **ret_lodging);
/* Gives up the version's lodgings, or those of one tenancy; no flight uses
 * them. */
void sheaf_registry_unlodge(
        struct sheaf_reg_version *version, const struct sheaf_tenancy *tenancy);
/* Ends all tenancies, or one, whose lodgings were given up. */
void sheaf_registry_end_tenancies(
        struct sheaf_reg_dataset *dataset, struct sheaf_tenancy *only);
/* Frees domains that nobody lives in, and tenancies of revoked grants. */
void sheaf_registry_sweep_domains(struct sheaf_registry *registry);

/* registry_record.c */
#define SHEAF_REG_KEY_BYTES 64
void sheaf_registry_key(
        const struct sheaf_reg_dataset *dataset, char key[SHEAF_REG_KEY_BYTES]);
/* Fills @change with the record. */
SHEAF_MUST_CHECK int sheaf_registry_pack(
        struct sheaf_reg_dataset *dataset, struct sheaf_store_change *change);

/* registry.c */
/* Takes the dataset out of what is found; its record is gone. */
void sheaf_registry_forget(struct sheaf_reg_dataset *dataset);
/* Whether a dataset of this owner and sharing may be read; no grant's @who. */
bool sheaf_registry_shared_with(uint32_t owner_uid, uint32_t share_kind,
        uint32_t share_gid, const struct sheaf_principal *who);

/* registry_counts.c */
/* Before @origin goes. */
void sheaf_registry_keep_origin(
        struct sheaf_reg_dataset *dataset, const struct sheaf_origin *origin);
/* Before the removed @dataset goes; once. -ENOMEM: nothing was kept. */
SHEAF_MUST_CHECK int sheaf_registry_keep_counts(
        struct sheaf_reg_dataset *dataset);
void sheaf_registry_drop_counts(struct sheaf_registry *registry);

/* registry_origin.c */
int sheaf_registry_attach(struct sheaf_fetch_version *version,
        struct sheaf_origin **ret_origin, const char **ret_why);

void sheaf_registry_free_dataset(struct sheaf_reg_dataset *dataset);

#endif
