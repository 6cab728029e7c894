/* SPDX-License-Identifier: Apache-2.0 */
/* The mount's view of libsheaf. A pin lasts as long as the copy into the
 * kernel, so it is transient: not charged to the grant. */
#include "cachefs/source_client.h"

#include "client/internal.h"

static int client_read(void *arg, uint32_t entry, uint64_t offset_bytes,
        uint64_t len_bytes, bool wait, struct sheaf_view *ret_view)
{
        unsigned int flags = SHEAF_VIEW_TRANSIENT;

        if (wait)
                flags |= SHEAF_VIEW_WAIT;
        return sheaf_dataset_view_entry(
                arg, entry, offset_bytes, len_bytes, flags, ret_view);
}

static void client_release(void *arg, struct sheaf_view *view)
{
        (void)arg;
        sheaf_view_release(view);
}

static int client_open_plain(
        void *arg, uint32_t entry, int *ret_fd, uint64_t *ret_lease)
{
        return sheaf_dataset_open_plain(arg, entry, ret_fd, ret_lease);
}

static void client_close_plain(void *arg, uint64_t lease)
{
        /* a lease that cannot be given back is void already */
        int rc = sheaf_dataset_close_plain(arg, lease);

        (void)rc;
}

static int client_cached(void *arg, uint32_t entry, uint64_t *ret_bytes)
{
        return sheaf_dataset_cached(arg, entry, ret_bytes);
}

static int client_digest(
        void *arg, uint32_t entry, struct sheaf_digest *ret_digest)
{
        return sheaf_dataset_digest(arg, entry, ret_digest);
}

static int client_job_open(void *arg, const struct sheaf_job_options *options,
        struct sheaf_job **ret_job)
{
        return sheaf_job_open(arg, options, ret_job);
}

static int client_job_bind(struct sheaf_job *job, uint64_t epoch,
        const uint32_t *slots, size_t n, uint64_t *ret_ordinals)
{
        return sheaf_job_bind(job, epoch, slots, n, 0, ret_ordinals);
}

static const char *client_why(void *arg)
{
        (void)arg;
        return sheaf_last_error();
}

static void client_count(void *arg, enum sheaf_meter_op op, uint64_t n)
{
        sheaf_dataset_count_op(arg, op, n);
}

static const struct sheaf_source_ops client_ops = {
        .read = client_read,
        .release = client_release,
        .open_plain = client_open_plain,
        .close_plain = client_close_plain,
        .cached = client_cached,
        .digest = client_digest,
        .job_open = client_job_open,
        .job_bind = client_job_bind,
        .job_close = sheaf_job_close,
        .why = client_why,
        .count = client_count,
};

void sheaf_source_client(struct sheaf_dataset *dataset,
        struct sheaf_dataset_info *ret_info, struct sheaf_source *ret_source)
{
        sheaf_dataset_info(dataset, ret_info);
        ret_source->ops = &client_ops;
        ret_source->arg = dataset;
        ret_source->listing = sheaf_dataset_listing(dataset);
        ret_source->info = ret_info;
}
