/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that have journals: listed, and forgotten.
 *
 * The query runs on the pool and outlives a client that goes.
 *
 * Threads: loop thread. */
#include "daemon/jobs/jobs.h"
#include "daemon/registry/names.h"
#include "daemon/verbs/verbs.h"

#define EPOCHS_PER_MESSAGE 256

struct job_call {
        struct sheaf_call call; /* first */
        struct sheaf_kept_query query;
        bool gone, there; /* the client; the answer */
        size_t next, next_epoch;
};

static void job_call_free(struct job_call *c)
{
        sheaf_kept_clear(&c->query);
        free(c);
}

static void abandon(struct sheaf_call *call)
{
        struct job_call *c = (struct job_call *)call;

        c->gone = true;
        if (c->there)
                job_call_free(c);
}

/* The dataset of a version, as far as the client may know of it. */
static const char *dataset_of(struct sheaf_conn *conn, const uint8_t uuid[16])
{
        struct sheaf_reg_dataset *ds =
                sheaf_registry_first(conn->daemon->registry);

        for (; ds; ds = TAILQ_NEXT(ds, link))
                if (sheaf_registry_version(ds, uuid))
                        return sheaf_registry_may_read(ds, &conn->who)
                                       ? ds->record->name
                                       : "";
        return "";
}

static void send_job(struct sheaf_conn *conn, uint64_t id,
        const struct sheaf_kept_job *kept, size_t first, size_t count)
{
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__JobInfo info = SHEAF__JOB_INFO__INIT;
        Sheaf__JobEpoch epochs[EPOCHS_PER_MESSAGE];
        Sheaf__JobEpoch *list[EPOCHS_PER_MESSAGE];
        const SheafRecord__Job *about = kept->about;
        char owner[64];

        for (size_t i = 0; i < count; i++) {
                const struct sheaf_kept_epoch *each = &kept->each[first + i];

                list[i] = &epochs[i];
                sheaf__job_epoch__init(list[i]);
                list[i]->epoch = each->epoch;
                list[i]->high = each->sum.high;
                list[i]->replaced = each->sum.replaced;
                list[i]->bytes = each->sum.bytes;
        }
        sheaf_names_of_user(about->uid, owner, sizeof(owner));
        info.dataset = (char *)dataset_of(conn, kept->uuid);
        info.uuid.data = (uint8_t *)kept->uuid;
        info.uuid.len = sizeof(kept->uuid);
        info.job = about->name;
        info.owner = about->grant ? (char *)"a grant" : owner;
        info.order = about->order;
        info.seed = about->seed;
        info.window = about->window;
        info.samples = about->samples;
        info.subset = about->subset;
        info.begun_ns = about->begun_ns;
        info.epochs = kept->epochs;
        info.newest = kept->newest;
        info.newest_high = kept->newest_high;
        info.bytes = kept->bytes;
        info.live = sheaf_kept_live(conn->daemon->jobs, kept);
        info.epoch = list;
        info.n_epoch = count;
        info.id.data = (uint8_t *)kept->id;
        info.id.len = strlen(kept->id);
        env.id = id;
        env.more = true;
        env.body_case = SHEAF__ENVELOPE__BODY_JOB_INFO;
        env.job_info = &info;
        sheaf_conn_send(conn, &env, NULL, 0);
}

/* As far as the client reads; then again when it did. */
static void send_more(struct sheaf_call *call)
{
        struct job_call *c = (struct job_call *)call;
        struct sheaf_conn *conn = call->conn;
        uint64_t id = call->id;

        while (c->next < c->query.count) {
                const struct sheaf_kept_job *kept = &c->query.found[c->next];
                size_t count = 0;

                if (!sheaf_conn_has_room(conn))
                        return;
                if (kept->each)
                        count = SHEAF_MIN(kept->epochs - c->next_epoch,
                                (size_t)EPOCHS_PER_MESSAGE);
                send_job(conn, id, kept, c->next_epoch, count);
                c->next_epoch += count;
                if (!kept->each || c->next_epoch == kept->epochs) {
                        c->next++;
                        c->next_epoch = 0;
                }
        }
        sheaf_call_end(call);
        job_call_free(c);
        sheaf_conn_done(conn, id);
}

static void fail(struct job_call *c, int rc)
{
        struct sheaf_conn *conn = c->call.conn;
        uint64_t id = c->call.id;
        const char *name = c->query.job;

        sheaf_call_end(&c->call);
        if (rc == -EBUSY)
                sheaf_conn_error(conn, id, rc,
                        "job '%s' is in use; end its processes first", name);
        else if (rc == -ENOENT)
                sheaf_conn_error(conn, id, rc,
                        "no job '%s' of yours has a journal; see: sheaf job ls",
                        name);
        else if (c->query.remove)
                sheaf_conn_error(conn, id, rc,
                        "the journals of job '%s' cannot be removed", name);
        else
                sheaf_conn_error(conn, id, rc, "journals cannot be read");
        job_call_free(c);
}

static void done(struct sheaf_kept_query *query, int rc)
{
        struct job_call *c =
                (struct job_call *)((char *)query -
                                    offsetof(struct job_call, query));

        c->there = true;
        if (c->gone) {
                job_call_free(c);
                return;
        }
        if (rc == 0 && !query->count && *query->job)
                rc = -ENOENT;
        if (rc) {
                fail(c, rc);
                return;
        }
        c->call.resume = send_more;
        send_more(&c->call);
}

/* Versions of @ds, or of all datasets that the client may read. */
static int versions_of(struct sheaf_conn *conn, struct sheaf_reg_dataset *only,
        struct sheaf_kept_query *query)
{
        struct sheaf_reg_dataset *ds;
        struct sheaf_reg_version *version;
        size_t count = 0;

        for (int pass = 0; pass < 2; pass++) {
                for (ds = sheaf_registry_first(conn->daemon->registry); ds;
                        ds = TAILQ_NEXT(ds, link)) {
                        if (only ? ds != only
                                 : !sheaf_registry_may_read(ds, &conn->who))
                                continue;
                        TAILQ_FOREACH (version, &ds->versions, link) {
                                if (!pass) {
                                        count++;
                                        continue;
                                }
                                memcpy(query->uuids[query->uuid_count++],
                                        version->record->uuid.data, 16);
                        }
                }
                if (!pass)
                        query->uuids = calloc(count + 1, 16);
                if (!query->uuids)
                        return -ENOMEM;
        }
        return 0;
}

static void begin(struct sheaf_conn *conn, uint64_t id, const char *dataset,
        const char *job, bool epochs, bool to_remove)
{
        struct sheaf_reg_dataset *ds = NULL;
        struct job_call *c;

        if (strlen(job) > SHEAF_JOB_NAME_MAX || (to_remove && !*job)) {
                sheaf_conn_error(
                        conn, id, -EINVAL, "a job's name has 1 to 128 bytes");
                return;
        }
        if (*dataset) {
                ds = sheaf_conn_dataset(conn, id, dataset, false);
                if (!ds)
                        return;
        }
        c = sheaf_new(struct job_call, 1);
        if (c && versions_of(conn, ds, &c->query)) {
                job_call_free(c);
                c = NULL;
        }
        if (!sheaf_call_begin(conn, id, c ? &c->call : NULL, abandon)) {
                if (c)
                        job_call_free(c);
                return;
        }
        c->query.jobs = conn->daemon->jobs;
        c->query.all = sheaf_conn_sees_all(conn);
        c->query.uid = conn->who.uid;
        c->query.grant = conn->who.grant;
        strcpy(c->query.job, job);
        c->query.epochs = epochs;
        c->query.remove = to_remove;
        c->query.done = done;
        sheaf_kept_begin(&c->query);
}

void sheaf_verb_list_jobs(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__ListJobs *list = msg->env->list_jobs;

        begin(conn, msg->env->id, list->name, list->job, list->epochs, false);
}

void sheaf_verb_remove_job(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__RemoveJob *wish = msg->env->remove_job;

        begin(conn, msg->env->id, wish->name, wish->job, false, true);
}
