/* SPDX-License-Identifier: Apache-2.0 */
/* What the registry's files share: registry.c (names, records, rights),
 * registry_version.c (listings in memory, lodgings, cleaning) and
 * registry_origin.c (readers). */
#ifndef SHEAF_DAEMON_REGISTRY_INTERNAL_H
#define SHEAF_DAEMON_REGISTRY_INTERNAL_H

#include "daemon/registry.h"

TAILQ_HEAD(sheaf_dataset_list, sheaf_reg_dataset);

struct sheaf_registry {
        uv_loop_t *loop;
        struct sheaf_store *store;
        struct sheaf_arena_pool *pool;
        struct sheaf_fetcher *fetcher;
        char *reader_path;
        int64_t deadline_ns;
        bool switch_user; /* we are root: readers become the owner */
        bool closing;     /* no reader is started any more */
        bool unreadable;  /* a record could not be read at the start */
        struct sheaf_dataset_list datasets, leaving;
        LIST_HEAD(, sheaf_domain) domains;
        uint32_t domain_numbers;
        bool (*grant_check)(void *arg, uint64_t grant, uint64_t dataset);
        void *grant_arg;
        uv_timer_t sweep;
};

/* registry_version.c */
struct sheaf_reg_version *sheaf_registry_add_version(
        struct sheaf_reg_dataset *dataset, SheafRecord__Version *record);
/* Unloads what nobody holds; removes old versions and left datasets. */
void sheaf_registry_sweep(struct sheaf_registry *registry, bool all);
/* Gives up all lodgings and tenancies of a dataset (it moves to another
 * domain, or goes). False while flights use them: call again. */
bool sheaf_registry_evacuate(struct sheaf_reg_dataset *dataset);

/* registry_origin.c */
int sheaf_registry_attach(struct sheaf_fetch_version *version,
        struct sheaf_origin **ret_origin, const char **ret_why);

void sheaf_registry_free_dataset(struct sheaf_reg_dataset *dataset);

#endif
