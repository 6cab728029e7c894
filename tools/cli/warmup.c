/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf warmup: fetches files before they are needed; --check says how much
 * is cached, --evict drops them from the cache.
 *
 *  1 a list of any length is sent in several requests, each within the limit
 *    of one message
 *  2 a path that is bad by itself is reported alone; the others go on. The
 *    daemon refuses a whole request for one bad path, so such a request is
 *    halved until the bad one is alone */
#include "proto/size.h"
#include "tools/cli/conn.h"
#include "tools/cli/out.h"
#include "tools/cli/path.h"
#include "tools/cli/report.h"

#include <stdio.h>

/* Of one request: below 64 KiB with room for names and framing. */
#define BATCH_BYTES_MAX (48u << 10)
#define BATCH_PATHS_MAX 4096
#define PATH_OVERHEAD   8
#define FINDINGS_SHOWN  20

struct warmup {
        struct cli *cli;
        struct cli_conn *conn;
        struct cli_findings findings;
        uint64_t rate_bytes;
        ProtobufCBinaryData path[BATCH_PATHS_MAX];
        size_t path_count;
        size_t path_bytes;
        uint64_t bad_paths;
        /* Sums over the requests. */
        uint64_t done, done_bytes, from_cache_bytes, errors;
        Sheaf__CachedAnswer answer;
        int rc; /* the first failure */
};

static int on_reply(void *arg, const Sheaf__Envelope *env)
{
        struct warmup *w = arg;
        const Sheaf__CachedAnswer *a = env->cached_answer;

        if (cli_findings_take(&w->findings, env) ||
                env->body_case != SHEAF__ENVELOPE__BODY_CACHED_ANSWER)
                return CLI_OK;
        w->answer.chunks += a->chunks;
        w->answer.bytes += a->bytes;
        w->answer.arena_chunks += a->arena_chunks;
        w->answer.arena_bytes += a->arena_bytes;
        w->answer.disk_chunks += a->disk_chunks;
        w->answer.disk_bytes += a->disk_bytes;
        w->answer.cached_bytes += a->cached_bytes;
        return CLI_OK;
}

/* Paths [first, first + count) of what was gathered. */
static int send_check(struct warmup *w, size_t first, size_t count)
{
        Sheaf__CachedQuery body = SHEAF__CACHED_QUERY__INIT;

        body.name = w->cli->args[0];
        body.path = w->path + first;
        body.n_path = count;
        CLI_REQUEST(env, CACHED_QUERY, cached_query, &body);
        return cli_conn_call(w->conn, &env, NULL, 0, on_reply, w);
}

static int send_evict(struct warmup *w, size_t first, size_t count)
{
        Sheaf__Evict body = SHEAF__EVICT__INIT;

        body.name = w->cli->args[0];
        body.path = w->path + first;
        body.n_path = count;
        body.memory_only = cli_flag(w->cli, "memory");
        CLI_REQUEST(env, EVICT, evict, &body);
        return cli_conn_call(w->conn, &env, NULL, 0, on_reply, w);
}

static int send_warmup(struct warmup *w, size_t first, size_t count)
{
        Sheaf__Warmup body = SHEAF__WARMUP__INIT;

        body.name = w->cli->args[0];
        body.path = w->path + first;
        body.n_path = count;
        body.rate_bytes = w->rate_bytes;
        body.disk = cli_flag(w->cli, "disk");
        CLI_REQUEST(env, WARMUP, warmup, &body);
        return cli_conn_call(w->conn, &env, NULL, 0, on_reply, w);
}

static int send_part(struct warmup *w, size_t first, size_t count)
{
        struct cli_findings *f = &w->findings;
        int rc;

        f->done = f->done_bytes = f->from_cache_bytes = f->errors = 0;
        if (cli_flag(w->cli, "check"))
                rc = send_check(w, first, count);
        else if (cli_flag(w->cli, "evict"))
                rc = send_evict(w, first, count);
        else
                rc = send_warmup(w, first, count);
        w->done += f->done;
        w->done_bytes += f->done_bytes;
        w->from_cache_bytes += f->from_cache_bytes;
        w->errors += f->errors;
        return rc;
}

/* A request failed for good: says so, once for each. */
static void report(struct warmup *w, size_t first, size_t count, int rc)
{
        Sheaf__Finding finding = SHEAF__FINDING__INIT;
        CLI_REQUEST(env, FINDING, finding, &finding);

        finding.kind = (char *)(rc == CLI_NOT_FOUND ? "missing" : "failed");
        if (count == 1)
                finding.path = w->path[first];
        finding.text = (char *)(uintptr_t)cli_conn_error(w->conn);

        sheaf_autofree char *path =
                cli_text(finding.path.data, finding.path.len);
        sheaf_autofree char *text =
                cli_text(finding.text, strlen(finding.text));

        if (count == 1)
                fprintf(stderr, "sheaf warmup: '%s': ", path ? path : "?");
        else
                fprintf(stderr, "sheaf warmup: ");
        fprintf(stderr, "%s\n", text ? text : "?");
        if (w->cli->json)
                cli_findings_take(&w->findings, &env);
        w->bad_paths += count == 1;
}

/* Whether the request failed for one of its paths. */
static bool path_is_bad(const struct warmup *w, int rc)
{
        int code = cli_conn_error_errno(w->conn);

        return rc == CLI_NOT_FOUND ||
               (rc == CLI_FAILED && (code == ENAMETOOLONG || code == ENOTDIR ||
                                            code == EINVAL || code == ELOOP));
}

/* Finds the bad path by halves, so that the others are not lost with it. */
static int send_halves(struct warmup *w, size_t first, size_t count)
{
        int rc = send_part(w, first, count);

        if (count > 1 && path_is_bad(w, rc)) {
                size_t half = count / 2;

                rc = send_halves(w, first, half);
                if (rc && rc != CLI_FAILED && rc != CLI_NOT_FOUND)
                        return rc;
                return send_halves(w, first + half, count - half);
        }
        if (rc && !w->rc)
                w->rc = rc;
        if (rc == CLI_FAILED || rc == CLI_NOT_FOUND)
                report(w, first, count, rc);
        return rc;
}

/* Sends what was gathered. An exit code; only those that make further
 * requests pointless end the run. */
static int flush(struct warmup *w)
{
        int rc = send_halves(w, 0, w->path_count);

        for (size_t i = 0; i < w->path_count; i++)
                free(w->path[i].data);
        w->path_count = w->path_bytes = 0;
        return rc == CLI_FAILED || rc == CLI_NOT_FOUND ? CLI_OK : rc;
}

static void refuse(
        struct warmup *w, const char *path, size_t len, const char *why)
{
        sheaf_autofree char *shown = cli_text(path, SHEAF_MIN(len, 200u));

        fprintf(stderr, "sheaf warmup: '%s'%s: %s\n", shown ? shown : "?",
                len > 200 ? "..." : "", why);
        w->bad_paths++;
        if (!w->rc)
                w->rc = CLI_FAILED;
}

/* Takes ownership of @path. An exit code. */
static int add_path(struct warmup *w, char *path, size_t len)
{
        ssize_t clean = cli_path_clean(path, len);
        int rc = CLI_OK;

        if (clean < 0 || clean > (ssize_t)BATCH_BYTES_MAX ||
                memchr(path, '\0', (size_t)clean)) {
                refuse(w, path, len,
                        clean < 0 ? "has a '..'"
                        : clean > (ssize_t)BATCH_BYTES_MAX
                                ? "longer than 48 KiB"
                                : "has a NUL");
                free(path);
                return CLI_OK;
        }
        if (w->path_count == BATCH_PATHS_MAX ||
                w->path_bytes + (size_t)clean + PATH_OVERHEAD >
                        BATCH_BYTES_MAX + PATH_OVERHEAD)
                rc = flush(w);
        w->path[w->path_count++] =
                (ProtobufCBinaryData){ .data = (uint8_t *)path,
                        .len = (size_t)clean };
        w->path_bytes += (size_t)clean + PATH_OVERHEAD;
        return rc;
}

static int add_list(struct warmup *w, const char *name)
{
        struct cli_path_list *list = NULL;
        char separator = cli_flag(w->cli, "0") ? '\0' : '\n';
        int rc = cli_path_list_open(name, separator, &list);
        int code = CLI_OK;

        while (!rc && !code) {
                char *path;
                size_t len;

                rc = cli_path_list_next(list, &path, &len);
                if (rc <= 0)
                        break;
                rc = 0;
                code = add_path(w, path, len);
        }
        cli_path_list_close(list);
        if (rc)
                return cli_fail(w->cli, CLI_OK, -rc, "cannot read '%s': %s",
                        name, strerror(-rc));
        return code;
}

static void set(json_t *o, const char *key, uint64_t value)
{
        json_object_set_new(o, key, json_integer((json_int_t)value));
}

static void print_json(struct warmup *w)
{
        json_t *o = json_object();

        cli_json_text(o, "name", w->cli->args[0], strlen(w->cli->args[0]));
        if (cli_flag(w->cli, "check")) {
                set(o, "chunks", w->answer.chunks);
                set(o, "bytes", w->answer.bytes);
                set(o, "arena_chunks", w->answer.arena_chunks);
                set(o, "arena_bytes", w->answer.arena_bytes);
                set(o, "disk_chunks", w->answer.disk_chunks);
                set(o, "disk_bytes", w->answer.disk_bytes);
                set(o, "cached_bytes", w->answer.cached_bytes);
        } else {
                set(o, "done", w->done);
                set(o, "done_bytes", w->done_bytes);
                set(o, "from_cache_bytes", w->from_cache_bytes);
                set(o, "errors", w->errors);
        }
        set(o, "bad_paths", w->bad_paths);
        cli_findings_end(&w->findings, o);
        cli_json_print(o);
}

static void print_text(struct warmup *w)
{
        const Sheaf__CachedAnswer *a = &w->answer;
        char all[SHEAF_SIZE_TEXT_MAX], part[SHEAF_SIZE_TEXT_MAX];
        char arena[SHEAF_SIZE_TEXT_MAX], disk[SHEAF_SIZE_TEXT_MAX];

        cli_findings_end(&w->findings, NULL);
        if (cli_flag(w->cli, "check"))
                printf("%s: %s of %s cached (%.1f%%): %s in memory, %s on "
                       "disk\n",
                        w->cli->args[0], sheaf_size_text(a->cached_bytes, part),
                        sheaf_size_text(a->bytes, all),
                        a->bytes ? 100.0 * (double)a->cached_bytes /
                                           (double)a->bytes
                                 : 100.0,
                        sheaf_size_text(a->arena_bytes, arena),
                        sheaf_size_text(a->disk_bytes, disk));
        else if (w->cli->quiet || (w->rc && !w->done_bytes))
                return;
        else if (cli_flag(w->cli, "evict"))
                printf("%s: dropped from the cache; the origin is untouched\n",
                        w->cli->args[0]);
        else
                printf("%s: %s warm, %s of it was cached before\n",
                        w->cli->args[0], sheaf_size_text(w->done_bytes, all),
                        sheaf_size_text(w->from_cache_bytes, part));
}

/* A dataset that is not there is one error, not one for each path. */
static int check_dataset(struct warmup *w)
{
        Sheaf__ListDatasets body = SHEAF__LIST_DATASETS__INIT;

        body.name = w->cli->args[0];
        CLI_REQUEST(env, LIST_DATASETS, list_datasets, &body);
        return cli_conn_call(w->conn, &env, NULL, 0, NULL, NULL);
}

static int gather(struct warmup *w)
{
        const char *list = cli_value(w->cli, "from-file");
        bool some = list || w->cli->arg_count > 1;
        int rc = CLI_OK;

        for (size_t i = 1; i < w->cli->arg_count && !rc; i++) {
                char *path = strdup(w->cli->args[i]);

                rc = path ? add_path(w, path, strlen(path)) : CLI_FAILED;
        }
        if (!rc && list)
                rc = add_list(w, list);
        /* No path means everything: never because all paths were bad. */
        if (!rc && (w->path_count || !some))
                rc = flush(w);
        return rc;
}

static int run(struct cli *cli)
{
        struct warmup *w;
        int rc;

        if (cli_flag(cli, "check") && cli_flag(cli, "evict"))
                return cli_usage(cli, "--check and --evict exclude each other");
        if (cli_flag(cli, "memory") && !cli_flag(cli, "evict"))
                return cli_usage(cli, "--memory goes with --evict");
        if (cli_flag(cli, "0") && !cli_flag(cli, "from-file"))
                return cli_usage(cli, "-0 goes with --from-file");
        w = sheaf_new(struct warmup, 1);
        if (!w)
                return cli_fail(cli, CLI_FAILED, ENOMEM, "out of memory");
        w->cli = cli;
        w->answer = (Sheaf__CachedAnswer)SHEAF__CACHED_ANSWER__INIT;
        rc = cli_size(cli, "rate", &w->rate_bytes);
        if (!rc)
                rc = cli_conn_open(cli, &w->conn);
        if (rc) {
                free(w);
                return rc;
        }
        cli_findings_begin(&w->findings, cli, FINDINGS_SHOWN);
        rc = check_dataset(w);
        if (!rc) {
                cli_conn_keep_errors(w->conn, true);
                rc = gather(w);
                if (!rc)
                        rc = w->rc;
                if (!rc && (w->errors || w->findings.count))
                        rc = CLI_FAILED;
                if (rc == CLI_OK || rc == CLI_FAILED || rc == CLI_NOT_FOUND)
                        (cli->json ? print_json : print_text)(w);
        }
        for (size_t i = 0; i < w->path_count; i++)
                free(w->path[i].data);
        json_decref(w->findings.list);
        cli_conn_free(w->conn);
        free(w);
        return rc;
}

static const struct cli_option options[] = {
        { "check", NULL, false, "say how much is cached, fetch nothing" },
        { "evict", NULL, false, "drop from the cache instead" },
        { "memory", NULL, false, "with --evict: from memory only" },
        { "disk", NULL, false, "be done when it is on disk too" },
        { "rate", "SIZE", false, "bytes a second at most, as 200MB" },
        { "from-file", "FILE", false, "paths, one a line; - for stdin" },
        { "0", NULL, false, "the paths of --from-file end with NUL" },
        { 0 },
};

const struct cli_verb cli_verb_warmup = {
        .name = "warmup",
        .args = "NAME [PATH...]",
        .brief = "fetch files before they are needed",
        .details = "PATH: files or directories, relative to the dataset's "
                   "root; none: everything.\nCtrl-C stops; what was fetched "
                   "stays.\n",
        .examples = "sheaf warmup imagenet\n"
                    "sheaf warmup --rate 500MB imagenet train/n01440764\n"
                    "sheaf warmup --check imagenet\n"
                    "find . -name '*.jpg' -print0 | sheaf warmup imagenet "
                    "--from-file - -0\n"
                    "sheaf warmup --evict imagenet val",
        .options = options,
        .args_min = 1,
        .args_max = SIZE_MAX,
        .run = run,
};
