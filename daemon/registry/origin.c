/* SPDX-License-Identifier: Apache-2.0 */
/* Readers of datasets: started when first needed.
 *
 *   none --present--> attached <--- probe equal --- probing <-- attach -- none
 *                                   probe differs --> detached --present--> ..
 *
 * After a restart the recorded path is opened again by the reader, as the
 * owner; the root's inode and 16 sampled entries must be the same. Device
 * numbers change over remounts and are never compared.
 *
 * Threads: loop thread. */
#include "daemon/registry/internal.h"

#include "daemon/clock.h"
#include "daemon/log.h"

#define RETRY_NS (5 * SHEAF_NS_PER_SEC)

static int start_reader(
        struct sheaf_reg_dataset *ds, const char *path, int root_fd)
{
        const SheafRecord__Dataset *record = ds->record;
        struct sheaf_origin_config config = { .loop = ds->registry->loop,
                .reader_path = ds->registry->reader_path,
                .root_fd = root_fd,
                .root_path = path,
                .switch_user = ds->registry->switch_user,
                .uid = record->owner_uid,
                .gid = record->owner_gid,
                .groups = record->owner_group,
                .group_count = record->n_owner_group,
                .deadline_ns = ds->registry->deadline_ns };

        return sheaf_origin_new(&config, &ds->origin);
}

void sheaf_registry_detach(struct sheaf_reg_dataset *dataset)
{
        struct sheaf_origin *origin = sheaf_steal(&dataset->origin);

        if (origin) {
                sheaf_registry_keep_origin(dataset, origin);
                sheaf_origin_free(origin);
        }
        dataset->attachment = SHEAF_ATTACH_NONE;
}

void sheaf_registry_swap_path(struct sheaf_reg_dataset *ds)
{
        ProtobufCBinaryData *origin = &ds->record->origin;
        char *path = ds->path_before;

        ds->path_before = (char *)origin->data;
        origin->data = (uint8_t *)path;
        origin->len = strlen(path);
}

int sheaf_registry_present(struct sheaf_reg_dataset *dataset,
        const char *origin_path, int origin_fd)
{
        sheaf_autofree char *path = strdup(origin_path);
        int rc;

        if (!path)
                return -ENOMEM;
        sheaf_registry_detach(dataset);
        rc = start_reader(dataset, NULL, origin_fd);
        if (rc)
                return rc;
        dataset->path_before = sheaf_steal(&path);
        sheaf_registry_swap_path(dataset);
        dataset->attachment = SHEAF_ATTACHED;
        return 0;
}

void sheaf_registry_record_path(struct sheaf_reg_dataset *dataset)
{
        dataset->path_settles = true;
}

void sheaf_registry_presented(struct sheaf_reg_dataset *dataset, bool stays)
{
        if (dataset->path_before && !stays) {
                sheaf_registry_detach(dataset);
                sheaf_registry_swap_path(dataset);
        }
        free(sheaf_steal(&dataset->path_before));
        dataset->path_settles = false;
}

int sheaf_registry_origin(
        struct sheaf_reg_dataset *dataset, struct sheaf_origin **ret_origin)
{
        int rc;

        if (dataset->removed)
                return -ESTALE;
        if (dataset->registry->closing)
                return -ECANCELED;
        if (!dataset->origin) {
                rc = start_reader(dataset,
                        (const char *)dataset->record->origin.data, -1);
                if (rc)
                        return rc;
                dataset->attachment = SHEAF_ATTACHED;
        }
        *ret_origin = dataset->origin;
        return 0;
}

static void probed(struct sheaf_origin_probe *probe, int rc)
{
        struct sheaf_reg_dataset *ds =
                (struct sheaf_reg_dataset *)((char *)probe -
                                             offsetof(struct sheaf_reg_dataset,
                                                     probe));
        struct sheaf_reg_version *version;
        const char *why = NULL;

        /* Let go of; who waits tries what comes next. */
        if (rc == -ECANCELED) {
                TAILQ_FOREACH (version, &ds->versions, link)
                        sheaf_fetch_resume(ds->registry->fetcher,
                                &version->fetch, rc, NULL);
                return;
        }
        if (rc == -ESTALE)
                why = "the origin's path leads to another tree; present it "
                      "again: sheaf update NAME DIR";
        else if (rc)
                why = "the origin cannot be reached; when it is back it is "
                      "tried again, or present it: sheaf update NAME DIR";
        if (rc) {
                sheaf_log_rc(rc, SHEAF_LOG_WARN, "origin detached",
                        "dataset=%s origin=%s", ds->record->name,
                        (const char *)ds->record->origin.data);
                ds->attachment = SHEAF_DETACHED;
                ds->detached_why = why;
                ds->retry_ns = sheaf_now_ns() + RETRY_NS;
                rc = rc == -ETIMEDOUT ? rc : -ESTALE;
        } else {
                ds->attachment = SHEAF_ATTACHED;
        }
        TAILQ_FOREACH (version, &ds->versions, link)
                sheaf_fetch_resume(
                        ds->registry->fetcher, &version->fetch, rc, why);
}

int sheaf_registry_attach(struct sheaf_fetch_version *fetch,
        struct sheaf_origin **ret_origin, const char **ret_why)
{
        struct sheaf_reg_version *version = (struct sheaf_reg_version *)fetch;
        struct sheaf_reg_dataset *ds = version->dataset;
        int rc;

        if (ds->removed) {
                *ret_why = "the dataset was removed";
                return -ESTALE;
        }
        if (ds->registry->closing) {
                *ret_why = "the daemon stops";
                return -ECANCELED;
        }
        if (ds->attachment == SHEAF_DETACHED && sheaf_now_ns() >= ds->retry_ns)
                sheaf_registry_detach(ds); /* none: tried again */
        switch (ds->attachment) {
        case SHEAF_ATTACHED:
                *ret_origin = ds->origin;
                return 0;
        case SHEAF_ATTACH_PROBING:
                return -EINPROGRESS;
        case SHEAF_DETACHED:
                *ret_why = ds->detached_why;
                return -ESTALE;
        case SHEAF_ATTACH_NONE:
                break;
        }
        rc = start_reader(ds, (const char *)ds->record->origin.data, -1);
        if (rc) {
                *ret_why = "no reader process can be started";
                return rc;
        }
        ds->attachment = SHEAF_ATTACH_PROBING;
        ds->probe.listing = &version->fetch.listing;
        ds->probe.done = probed;
        sheaf_origin_probe(ds->origin, &ds->probe);
        return -EINPROGRESS;
}
