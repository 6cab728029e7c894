/* SPDX-License-Identifier: Apache-2.0 */
/* What the cache directory holds beside payload: catalog, log, directories,
 * and of each version its listing and arrays.
 *
 *  1 a directory of a version is looked at when it changes, all of them once
 *    at the start: opening a version costs the same however many there are
 *  2 on a slow disk figures stay; what was missed is made up for later */
#include "daemon/store/private.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

struct sheaf_meta {
        char name[40]; /* in "versions" */
        uint64_t bytes;
        struct sheaf_meta *next;
};

static uint64_t blocks_of(const struct sheaf_store *store, const char *name)
{
        struct stat st;

        if (fstatat(store->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW))
                return 0;
        return (uint64_t)st.st_blocks * 512;
}

static struct sheaf_meta **place_of(struct sheaf_store *store, const char *name)
{
        uint32_t hash = 2166136261U;
        struct sheaf_meta **at;

        for (const char *c = name; *c; c++)
                hash = (hash ^ (uint8_t)*c) * 16777619U;
        at = &store->metas[hash % SHEAF_META_BUCKETS];
        while (*at && strcmp((*at)->name, name))
                at = &(*at)->next;
        return at;
}

static void note(struct sheaf_store *store, const char *name, uint64_t bytes)
{
        struct sheaf_meta **at = place_of(store, name), *meta = *at;

        if (!meta && bytes && strlen(name) < sizeof(meta->name))
                meta = sheaf_new(struct sheaf_meta, 1);
        if (!meta)
                return;
        if (!*at)
                strcpy(meta->name, name);
        store->version_meta_bytes += bytes - meta->bytes;
        meta->bytes = bytes;
        if (!bytes) {
                *at = meta->next;
                free(meta);
        } else {
                *at = meta;
        }
}

static void look(struct sheaf_store *store, const char *name)
{
        static const char *const names[] = { "", "/listing", "/digests",
                "/places" };
        char path[PATH_MAX];
        uint64_t bytes = 0;

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(names); i++) {
                snprintf(path, sizeof(path), "versions/%s%s", name, names[i]);
                bytes += blocks_of(store, path);
        }
        note(store, name, bytes);
}

void sheaf_meta_version(struct sheaf_store *store, const char *name)
{
        int64_t start_ns = sheaf_now_ns();

        if (store->slow) {
                store->metas_stale = true;
                return;
        }
        look(store, name);
        (void)sheaf_pulse_late(store, start_ns);
}

static void look_at_all(struct sheaf_store *store, int64_t start_ns)
{
        struct dirent *entry;
        int fd = sheaf_again(openat(
                store->dir_fd, "versions", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        DIR *dir = fd < 0 ? NULL : fdopendir(fd);

        sheaf_meta_deinit(store);
        store->metas_stale = !dir;
        if (!dir) {
                sheaf_close_p(&fd);
                return;
        }
        while ((entry = readdir(dir))) {
                if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
                        continue;
                look(store, entry->d_name);
                if (sheaf_pulse_late(store, start_ns)) {
                        store->metas_stale = true;
                        break;
                }
        }
        closedir(dir);
}

void sheaf_space_meta(struct sheaf_store *store)
{
        static const char *const names[] = { ".", "key", "lock", "catalog",
                "catalog/data.mdb", "catalog/lock.mdb", "catalog.damaged",
                "catalog.damaged/data.mdb", "catalog.damaged/lock.mdb",
                "segments", "plain", "versions", "sheafd.log", "sheafd.log.1" };

        int64_t start_ns = sheaf_now_ns();
        uint64_t meta = 0;

        /* These are many calls: on a slow disk the figures stay. */
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(names) && !store->slow; i++) {
                meta += blocks_of(store, names[i]);
                if (sheaf_pulse_late(store, start_ns))
                        return;
        }
        if (store->slow)
                return;
        store->meta_bytes = meta;
        if (store->metas_stale)
                look_at_all(store, start_ns);
}

void sheaf_meta_deinit(struct sheaf_store *store)
{
        for (size_t b = 0; b < SHEAF_META_BUCKETS; b++) {
                while (store->metas[b]) {
                        struct sheaf_meta *meta = store->metas[b];

                        store->metas[b] = meta->next;
                        free(meta);
                }
        }
        store->version_meta_bytes = 0;
}
