/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/daemon/origin/tree.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>

#define MUST(x)                                                                \
        do {                                                                   \
                if (!(x)) {                                                    \
                        fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, \
                                #x, strerror(errno));                          \
                        abort();                                               \
                }                                                              \
        } while (0)

void tree_make(struct tree *tree)
{
        memset(tree, 0, sizeof(*tree));
        strcpy(tree->dir, "/tmp/sheaf-origin-XXXXXX");
        MUST(mkdtemp(tree->dir));
        MUST(!chmod(tree->dir, 0755));
        tree->root_fd = open(tree->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        MUST(tree->root_fd >= 0);
        MUST(!uv_loop_init(&tree->loop));
}

static int remove_one(
        const char *path, const struct stat *st, int type, struct FTW *ftw)
{
        (void)st;
        (void)type;
        (void)ftw;
        return remove(path) && errno != ENOENT;
}

void tree_free(struct tree *tree)
{
        sheaf_origin_free(tree->origin);
        uv_run(&tree->loop, UV_RUN_DEFAULT);
        nftw(tree->dir, remove_one, 64, FTW_DEPTH | FTW_PHYS);
        close(tree->root_fd);
        free(tree->block);
}

char *tree_path(struct tree *tree, const char *path, char out[4096])
{
        MUST(snprintf(out, 4096, "%s/%s", tree->dir, path) < 4096);
        return out;
}

uint8_t tree_byte(const char *path, uint64_t at)
{
        uint64_t h = at * UINT64_C(0x9e3779b97f4a7c15);

        for (const char *p = path; *p; p++)
                h = (h ^ (uint8_t)*p) * UINT64_C(0x100000001b3);
        /* Names that differ at their end have other bytes, too. */
        h = (h ^ h >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
        return (uint8_t)(h >> 32);
}

void tree_file(struct tree *tree, const char *path, size_t bytes)
{
        sheaf_autofree uint8_t *data = malloc(bytes + 1);
        char full[4096];
        int fd = open(tree_path(tree, path, full),
                O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

        MUST(fd >= 0 && data);
        for (size_t i = 0; i < bytes; i++)
                data[i] = tree_byte(path, i);
        MUST(write(fd, data, bytes) == (ssize_t)bytes);
        close(fd);
}

void tree_dir(struct tree *tree, const char *path)
{
        char full[4096];

        MUST(!mkdir(tree_path(tree, path, full), 0755));
}

void tree_age(struct tree *tree)
{
        (void)tree;
        usleep(2100000);
}

void tree_origin(struct tree *tree, const struct tree_options *options)
{
        struct sheaf_origin_config config = {
                .loop = &tree->loop,
                .reader_path = options->reader,
                .root_fd = tree->root_fd,
                .switch_user = options->switch_user,
                .uid = options->uid,
                .gid = options->gid,
                .groups = options->groups,
                .group_count = options->group_count,
                .deadline_ns = options->deadline_ns ? options->deadline_ns
                                                    : 10 * SHEAF_NS_PER_SEC,
                .idle_ns = options->idle_ns,
        };

        MUST(!sheaf_origin_new(&config, &tree->origin));
}

struct list_call {
        struct sheaf_origin_list list;
        struct tree *tree;
        bool finished;
        int rc;
};

static void on_progress(struct sheaf_origin_list *list, uint64_t entries)
{
        ((struct list_call *)list)->tree->progress = entries;
}

static void on_listed(struct sheaf_origin_list *list, int rc, int memfd,
        const struct sheaf_origin_summary *summary)
{
        struct list_call *call = (struct list_call *)list;
        struct tree *tree = call->tree;
        struct stat st;

        call->finished = true;
        call->rc = rc;
        tree->summary = *summary;
        if (rc)
                return;
        MUST(!fstat(memfd, &st));
        free(tree->block);
        tree->block = malloc((size_t)st.st_size);
        MUST(tree->block);
        MUST(pread(memfd, tree->block, (size_t)st.st_size, 0) == st.st_size);
        close(memfd);
        MUST(!sheaf_listing_open(
                tree->block, (size_t)st.st_size, true, &tree->listing));
}

int tree_list(struct tree *tree, bool follow)
{
        struct list_call call = { .tree = tree };

        call.list.follow = follow;
        call.list.serial = 1;
        call.list.progress = on_progress;
        call.list.done = on_listed;
        sheaf_origin_list(tree->origin, &call.list);
        while (!call.finished)
                uv_run(&tree->loop, UV_RUN_ONCE);
        return call.rc;
}

uint32_t tree_find(struct tree *tree, const char *path)
{
        uint32_t index;

        MUST(!sheaf_listing_find(&tree->listing, path, strlen(path), &index));
        return index;
}

static void on_read(struct sheaf_origin_read *read, int rc)
{
        struct tree_read *call = (struct tree_read *)read;

        MUST(!call->finished);
        call->finished = true;
        call->rc = rc;
}

void tree_read_begin(struct tree *tree, struct tree_read *read,
        const char *path, uint32_t index)
{
        memset(read, 0, sizeof(*read));
        read->tree = tree;
        read->read.listing = &tree->listing;
        read->read.entry = tree_find(tree, path);
        read->read.index = index;
        read->read.done = on_read;
        sheaf_origin_read(tree->origin, &read->read);
        MUST(!read->finished);
}

int tree_read_wait(struct tree_read *read)
{
        while (!read->finished)
                uv_run(&read->tree->loop, UV_RUN_ONCE);
        return read->rc;
}

int tree_read(struct tree *tree, const char *path, uint32_t index)
{
        struct tree_read read;
        int rc;

        tree_read_begin(tree, &read, path, index);
        rc = tree_read_wait(&read);
        if (rc >= 0) {
                const uint8_t *bytes = read.read.bytes;
                uint32_t len = sheaf_listing_chunk_len(
                        &tree->listing, read.read.entry, index);

                for (uint32_t i = 0; i < len; i++)
                        MUST(bytes[i] ==
                                tree_byte(path,
                                        index * SHEAF_CHUNK_BYTES_MAX + i));
        }
        sheaf_origin_read_end(&read.read);
        return rc;
}

struct probe_call {
        struct sheaf_origin_probe probe;
        bool finished;
        int rc;
};

static void on_probed(struct sheaf_origin_probe *probe, int rc)
{
        struct probe_call *call = (struct probe_call *)probe;

        call->finished = true;
        call->rc = rc;
}

int tree_probe(struct tree *tree)
{
        struct probe_call call = { 0 };

        call.probe.listing = &tree->listing;
        call.probe.done = on_probed;
        sheaf_origin_probe(tree->origin, &call.probe);
        while (!call.finished)
                uv_run(&tree->loop, UV_RUN_ONCE);
        return call.rc;
}

struct sheaf_origin_stats tree_stats(struct tree *tree)
{
        struct sheaf_origin_stats stats;

        sheaf_origin_stats(tree->origin, &stats);
        return stats;
}
