/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf add: makes a dataset of a directory; sheaf update: lists it again.
 *
 *  1 the directory goes to the daemon as a descriptor that this user opened;
 *    its path is only a note for later */
#include "tools/cli/conn.h"
#include "tools/cli/out.h"
#include "tools/cli/report.h"
#include "proto/size.h"

#include <fcntl.h>
#include <stdio.h>

#define FINDINGS_SHOWN 10

struct outcome {
        struct cli_findings findings;
        Sheaf__DatasetInfo *info; /* owned */
};

/* A copy that outlives its message. */
static Sheaf__DatasetInfo *copy_info(const Sheaf__DatasetInfo *info)
{
        size_t len = sheaf__dataset_info__get_packed_size(info);
        sheaf_autofree uint8_t *bytes = malloc(len + 1);

        if (!bytes)
                return NULL;
        sheaf__dataset_info__pack(info, bytes);
        return sheaf__dataset_info__unpack(NULL, len, bytes);
}

static int on_reply(void *arg, const Sheaf__Envelope *env)
{
        struct outcome *out = arg;
        const Sheaf__DatasetInfo *info = NULL;

        if (cli_findings_take(&out->findings, env))
                return CLI_OK;
        if (env->body_case == SHEAF__ENVELOPE__BODY_DATASET_INFO)
                info = env->dataset_info;
        if (info && !out->info)
                out->info = copy_info(info);
        return CLI_OK;
}

/* What is left out, where no finding has said it. */
static void print_left_out(const struct outcome *out, bool followed)
{
        const Sheaf__DatasetInfo *info = out->info;
        char buf[CLI_COUNT_TEXT_MAX];

        if (info->escaping_links && !followed &&
                !cli_findings_of(&out->findings, "escapes"))
                printf("  %s links leave the tree: shown as links, their "
                       "targets are not cached (--follow does)\n",
                        cli_count_text(info->escaping_links, buf));
        if (info->skipped_special &&
                !cli_findings_of(&out->findings, "skipped"))
                printf("  %s devices, sockets or pipes skipped\n",
                        cli_count_text(info->skipped_special, buf));
        if (info->unreadable && !cli_findings_of(&out->findings, "unreadable"))
                printf("  %s directories or files cannot be read by you\n",
                        cli_count_text(info->unreadable, buf));
        if (*info->note)
                printf("  %s\n", info->note);
}

static void print(struct outcome *out, const struct cli *cli, bool followed)
{
        const Sheaf__DatasetInfo *info = out->info;
        char files[CLI_COUNT_TEXT_MAX], dirs[CLI_COUNT_TEXT_MAX];
        char links[CLI_COUNT_TEXT_MAX], size[SHEAF_SIZE_TEXT_MAX];

        if (cli->json) {
                json_t *o = info ? cli_report_dataset(info) : json_object();

                if (info)
                        json_object_set_new(
                                o, "unchanged", json_boolean(info->unchanged));
                cli_findings_end(&out->findings, o);
                cli_json_print(o);
                return;
        }
        cli_findings_end(&out->findings, NULL);
        if (!info || cli->quiet)
                return;
        printf("%s: %s files, %s in %s directories", info->name,
                cli_count_text(info->files, files),
                sheaf_size_text(info->bytes, size),
                cli_count_text(info->dirs, dirs));
        if (info->links)
                printf(", %s links", cli_count_text(info->links, links));
        printf(" (version %llu%s)\n", (unsigned long long)info->serial,
                info->unchanged ? ", unchanged" : "");
        print_left_out(out, followed);
}

/* Opens the directory and its full path. 0 or an exit code. */
static int open_origin(
        const struct cli *cli, const char *dir, int *ret_fd, char **ret_path)
{
        sheaf_autofd int fd =
                sheaf_again(open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        char *path;

        if (fd < 0)
                return cli_fail(cli, CLI_OK, errno, "cannot open '%s': %s", dir,
                        strerror(errno));
        path = realpath(dir, NULL);
        if (!path)
                return cli_fail(cli, CLI_OK, errno, "cannot resolve '%s': %s",
                        dir, strerror(errno));
        *ret_fd = sheaf_steal_fd(&fd);
        *ret_path = path;
        return CLI_OK;
}

static int call(struct cli *cli, Sheaf__Envelope *env, int fd, bool followed)
{
        __attribute__((cleanup(cli_conn_free_p))) struct cli_conn *conn = NULL;
        struct outcome out = { 0 };
        int rc = cli_conn_open(cli, &conn);

        if (rc)
                return rc;
        cli_findings_begin(&out.findings, cli, FINDINGS_SHOWN);
        rc = cli_conn_call(conn, env, &fd, fd >= 0, on_reply, &out);
        if (!rc)
                print(&out, cli, followed);
        json_decref(out.findings.list);
        if (out.info)
                sheaf__dataset_info__free_unpacked(out.info, NULL);
        return rc;
}

static int run_add(struct cli *cli)
{
        Sheaf__AddDataset body = SHEAF__ADD_DATASET__INIT;
        sheaf_autofree char *path = NULL;
        sheaf_autofd int fd = -1;
        const char *share = cli_value(cli, "share");
        int rc = open_origin(cli, cli->args[1], &fd, &path);

        if (rc)
                return rc;
        body.name = cli->args[0];
        body.origin = cli_bytes(path);
        body.follow = cli_flag(cli, "follow");
        body.force = cli_flag(cli, "force");
        body.share = (char *)(uintptr_t)(share ? share : "");

        CLI_REQUEST(env, ADD_DATASET, add_dataset, &body);
        return call(cli, &env, fd, body.follow);
}

static int run_update(struct cli *cli)
{
        Sheaf__UpdateDataset body = SHEAF__UPDATE_DATASET__INIT;
        sheaf_autofree char *path = NULL;
        sheaf_autofd int fd = -1;

        body.name = cli->args[0];
        if (cli->arg_count > 1) {
                int rc = open_origin(cli, cli->args[1], &fd, &path);

                if (rc)
                        return rc;
                body.origin = cli_bytes(path);
        }

        CLI_REQUEST(env, UPDATE_DATASET, update_dataset, &body);
        return call(cli, &env, fd, true);
}

static const struct cli_option add_options[] = {
        { "follow", NULL, false,
                "cache what links out of the tree point to, read as you" },
        { "share", "WHO", false,
                "group:NAME, group:GID or all; else only you" },
        { "force", NULL, false,
                "share even if they could not read the origin themselves" },
        { 0 },
};

static const struct cli_option update_options[] = { { 0 } };

const struct cli_verb cli_verb_add = {
        .name = "add",
        .args = "NAME DIR",
        .brief = "make a dataset of a directory",
        .details = "The directory is listed at once; its files are read when "
                   "they are first used\n(or by warmup, or by seal).\n",
        .examples = "sheaf add imagenet /data/imagenet\n"
                    "sheaf add --share group:vision coco /data/coco\n"
                    "sheaf add --follow model ~/.cache/huggingface/hub/m",
        .options = add_options,
        .args_min = 2,
        .args_max = 2,
        .run = run_add,
};

const struct cli_verb cli_verb_update = {
        .name = "update",
        .args = "NAME [DIR]",
        .brief = "list the origin again: a new version if it changed",
        .details = "Open handles and mounts keep their version; 'sheaf mount "
                   "--refresh' moves a\nmount. DIR presents the origin again, "
                   "when it moved or is detached.\n",
        .examples = "sheaf update imagenet\n"
                    "sheaf update imagenet /mnt/new/imagenet",
        .options = update_options,
        .args_min = 1,
        .args_max = 2,
        .run = run_update,
};
