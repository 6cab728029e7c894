/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf job: the jobs that have journals: what was bound, and forgetting it. */
#include "proto/digest.h"
#include "tools/cli/conn.h"
#include "tools/cli/out.h"

#include <stdio.h>
#include <time.h>

struct jobs {
        struct cli_table *table;
        json_t *list, *epochs; /* of the last one */
        char last[64];         /* its id */
        bool each;             /* rows are epochs */
        size_t count;
};

static const char *const orders[] = { "shared", "window", "strict" };

static const char *order_of(uint32_t order)
{
        return order < SHEAF_ARRAY_LEN(orders) ? orders[order] : "?";
}

static void hex_of(const ProtobufCBinaryData *bytes, char ret_hex[65])
{
        for (size_t i = 0; i < SHEAF_MIN(bytes->len, (size_t)32); i++)
                snprintf(ret_hex + 2 * i, 3, "%02x", bytes->data[i]);
}

static void time_of(uint64_t wall_ns, char ret_text[32])
{
        time_t seconds = (time_t)(wall_ns / 1000000000u);
        struct tm tm;

        localtime_r(&seconds, &tm);
        strftime(ret_text, 32, "%Y-%m-%d %H:%M", &tm);
}

static json_t *to_json(const Sheaf__JobInfo *job)
{
        char subset[65] = "", uuid[65] = "";
        json_t *o = json_object();

        hex_of(&job->subset, subset);
        hex_of(&job->uuid, uuid);
        cli_json_text(o, "dataset", job->dataset, strlen(job->dataset));
        cli_json_text(o, "job", job->job, strlen(job->job));
        cli_json_text(o, "owner", job->owner, strlen(job->owner));
        json_object_set_new(o, "version", json_string(uuid));
        json_object_set_new(
                o, "subset", *subset ? json_string(subset) : json_null());
        json_object_set_new(o, "order", json_string(order_of(job->order)));
        json_object_set_new(o, "seed", json_integer((json_int_t)job->seed));
        json_object_set_new(o, "window", json_integer(job->window));
        json_object_set_new(o, "samples", json_integer(job->samples));
        json_object_set_new(o, "begun", json_real((double)job->begun_ns / 1e9));
        json_object_set_new(o, "epochs", json_integer((json_int_t)job->epochs));
        json_object_set_new(o, "newest", json_integer((json_int_t)job->newest));
        json_object_set_new(o, "newest_slots", json_integer(job->newest_high));
        json_object_set_new(
                o, "journal_bytes", json_integer((json_int_t)job->bytes));
        json_object_set_new(o, "live", json_boolean(job->live));
        return o;
}

static void add_epochs(struct jobs *jobs, const Sheaf__JobInfo *job)
{
        for (size_t i = 0; i < job->n_epoch; i++) {
                const Sheaf__JobEpoch *epoch = job->epoch[i];
                json_t *o;

                if (jobs->table) {
                        cli_table_add(jobs->table, "%llu",
                                (unsigned long long)epoch->epoch);
                        cli_table_add_count(jobs->table, epoch->high);
                        cli_table_add_count(jobs->table, epoch->replaced);
                        cli_table_add_size(jobs->table, epoch->bytes);
                        continue;
                }
                o = json_object();
                json_object_set_new(
                        o, "epoch", json_integer((json_int_t)epoch->epoch));
                json_object_set_new(o, "slots", json_integer(epoch->high));
                json_object_set_new(
                        o, "replaced", json_integer(epoch->replaced));
                json_object_set_new(o, "journal_bytes",
                        json_integer((json_int_t)epoch->bytes));
                json_array_append_new(jobs->epochs, o);
        }
}

static void add_row(struct jobs *jobs, const Sheaf__JobInfo *job)
{
        sheaf_autofree char *name = cli_text(job->job, strlen(job->job));
        char subset[65] = "";

        hex_of(&job->subset, subset);
        cli_table_add(jobs->table, "%s", job->dataset);
        cli_table_add(jobs->table, "%s", name ? name : "?");
        cli_table_add(jobs->table, "%s", job->owner);
        cli_table_add(jobs->table, "%s", order_of(job->order));
        cli_table_add_count(jobs->table, job->samples);
        cli_table_add(jobs->table, "%.8s", *subset ? subset : "all");
        cli_table_add_count(jobs->table, job->epochs);
        cli_table_add(jobs->table, "%llu: %.0f %%",
                (unsigned long long)job->newest,
                100.0 * job->newest_high / SHEAF_MAX(job->samples, 1u));
        cli_table_add_size(jobs->table, job->bytes);
        cli_table_add(jobs->table, "%s", job->live ? "live" : "");
}

static void print_head(const Sheaf__JobInfo *job)
{
        sheaf_autofree char *name = cli_text(job->job, strlen(job->job));
        char subset[65] = "", uuid[65] = "", begun[32];

        hex_of(&job->subset, subset);
        hex_of(&job->uuid, uuid);
        time_of(job->begun_ns, begun);
        printf("job %s of %s on %s, version %.8s: begun %s%s\n",
                name ? name : "?", job->owner, job->dataset, uuid, begun,
                job->live ? ", live" : "");
        printf("order %s", order_of(job->order));
        if (job->order)
                printf(", seed %llu", (unsigned long long)job->seed);
        if (job->order == 1)
                printf(", window %u", job->window);
        printf(", %u samples%s%.8s\n", job->samples, *subset ? ", subset " : "",
                subset);
}

static struct cli_table *epoch_table(void)
{
        static const char *const heads[] = { ">EPOCH", ">SLOTS", ">REPLACED",
                ">JOURNAL" };

        return cli_table_new(heads, SHEAF_ARRAY_LEN(heads));
}

/* The first message of a job. */
static void begin_job(struct jobs *jobs, const Sheaf__JobInfo *job)
{
        json_t *o;

        if (jobs->list) {
                o = to_json(job);
                json_array_append_new(jobs->list, o);
                if (!jobs->each)
                        return;
                jobs->epochs = json_array();
                json_object_set_new(o, "epoch", jobs->epochs);
                return;
        }
        if (!jobs->each) {
                add_row(jobs, job);
                return;
        }
        if (jobs->table)
                cli_table_print(sheaf_steal(&jobs->table));
        print_head(job);
        jobs->table = epoch_table();
}

static int on_reply(void *arg, const Sheaf__Envelope *env)
{
        struct jobs *jobs = arg;
        const Sheaf__JobInfo *job = env->job_info;
        char id[64];

        if (env->body_case != SHEAF__ENVELOPE__BODY_JOB_INFO)
                return CLI_OK;
        snprintf(id, sizeof(id), "%.*s", (int)SHEAF_MIN(job->id.len, 63u),
                (const char *)job->id.data);
        if (strcmp(id, jobs->last)) {
                jobs->count++;
                begin_job(jobs, job);
        }
        strcpy(jobs->last, id);
        if (jobs->each)
                add_epochs(jobs, job);
        return CLI_OK;
}

static int show(struct cli *cli, struct cli_conn *conn, const char *dataset,
        const char *job, bool each)
{
        static const char *const heads[] = { "DATASET", "JOB", "OWNER", "ORDER",
                ">SAMPLES", "SUBSET", ">EPOCHS", ">NEWEST", ">JOURNALS", "" };
        Sheaf__ListJobs body = SHEAF__LIST_JOBS__INIT;
        struct jobs jobs = { .each = each };
        int rc;

        if (cli->json)
                jobs.list = json_array();
        else if (!each)
                jobs.table = cli_table_new(heads, SHEAF_ARRAY_LEN(heads));
        body.name = (char *)(uintptr_t)dataset;
        body.job = (char *)(uintptr_t)job;
        body.epochs = each;
        CLI_REQUEST(env, LIST_JOBS, list_jobs, &body);
        rc = cli_conn_call(conn, &env, NULL, 0, on_reply, &jobs);
        if (!rc && cli->json)
                cli_json_print(json_incref(jobs.list));
        else if (!rc && jobs.count)
                cli_table_print(sheaf_steal(&jobs.table));
        else if (!rc)
                printf("no jobs with journals\n");
        json_decref(jobs.list);
        cli_table_free(jobs.table);
        return rc;
}

static int forget(struct cli *cli, struct cli_conn *conn, const char *dataset,
        const char *job)
{
        Sheaf__RemoveJob body = SHEAF__REMOVE_JOB__INIT;
        int rc;

        body.name = (char *)(uintptr_t)dataset;
        body.job = (char *)(uintptr_t)job;
        CLI_REQUEST(env, REMOVE_JOB, remove_job, &body);
        rc = cli_conn_call(conn, &env, NULL, 0, NULL, NULL);
        if (rc)
                return rc;
        if (cli->json) {
                json_t *o = json_object();

                cli_json_text(o, "forgotten", job, strlen(job));
                cli_json_print(o);
        } else if (!cli->quiet) {
                sheaf_autofree char *name = cli_text(job, strlen(job));

                printf("job %s forgotten\n", name ? name : "?");
        }
        return CLI_OK;
}

static int run(struct cli *cli)
{
        __attribute__((cleanup(cli_conn_free_p))) struct cli_conn *conn = NULL;
        const char *what = cli->args[0];
        bool ls = !strcmp(what, "ls"), rm = !strcmp(what, "rm");
        int rc;

        if (!ls && !rm && strcmp(what, "show") != 0)
                return cli_usage(cli, "say ls, show or rm");
        if (ls ? cli->arg_count > 2 : cli->arg_count != 3)
                return cli_usage(cli, ls ? "ls takes a dataset, or nothing"
                                         : "name a dataset and a job of it");
        rc = cli_conn_open(cli, &conn);
        if (rc)
                return rc;
        if (ls)
                return show(cli, conn, cli->arg_count > 1 ? cli->args[1] : "",
                        "", false);
        return rm ? forget(cli, conn, cli->args[1], cli->args[2])
                  : show(cli, conn, cli->args[1], cli->args[2], true);
}

static const struct cli_option options[] = { { 0 } };

const struct cli_verb cli_verb_job = {
        .name = "job",
        .args = "ls [NAME] | show NAME JOB | rm NAME JOB",
        .brief = "show what jobs read in which epoch, and forget it",
        .details = "The daemon keeps, for each job that binds slots to samples,"
                   " which slot had which\nsample: so a job goes on after a "
                   "crash, and can be replayed. rm forgets a job, so\nthat its "
                   "name can be used anew. Only your own jobs are shown; root "
                   "sees all.\n",
        .examples = "sheaf job ls\nsheaf job show imagenet r50-a\n"
                    "sheaf job rm imagenet r50-a",
        .options = options,
        .args_min = 1,
        .args_max = 3,
        .run = run,
};
