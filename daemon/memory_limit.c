/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of memory control groups.
 *
 *  1 a group's limit holds for all below it, so the least one on the way up
 *    to where the hierarchy is mounted counts
 *  2 what cannot be read limits nothing: the kernel has the last word anyway
 *
 * Called at the start; no threads. */
#include "daemon/memory_limit.h"

#include <limits.h>
#include <stdio.h>

struct hierarchy {
        char at[PATH_MAX];   /* where it is mounted */
        char root[PATH_MAX]; /* which of its groups lies there */
        bool second;         /* version 2 */
};

uint64_t sheaf_memory_machine(void)
{
        return (uint64_t)sysconf(_SC_PHYS_PAGES) *
               (uint64_t)sysconf(_SC_PAGESIZE);
}

static bool has_word(const char *list, const char *word)
{
        size_t len = strlen(word);

        for (const char *p = list; (p = strstr(p, word)); p += len)
                if ((p == list || p[-1] == ',') &&
                        (!p[len] || strchr(", :\n", p[len])))
                        return true;
        return false;
}

/* Whether a line of mountinfo is a hierarchy that may limit memory. */
static bool parse_mount(const char *line, struct hierarchy *ret_h)
{
        const char *tail = strstr(line, " - ");
        char options[1024] = "", type[32] = "";

        if (!tail ||
                sscanf(line, "%*s %*s %*s %4095s %4095s", ret_h->root,
                        ret_h->at) != 2 ||
                sscanf(tail, " - %31s %*s %1023s", type, options) != 2)
                return false;
        ret_h->second = !strcmp(type, "cgroup2");
        return ret_h->second ||
               (!strcmp(type, "cgroup") && has_word(options, "memory"));
}

/* The group of this process in the hierarchy: NUMBER:CONTROLLERS:PATH. */
static bool find_group(
        const char *groups, const struct hierarchy *h, char ret_path[PATH_MAX])
{
        char line[PATH_MAX + 256];
        bool found = false;
        FILE *file = fopen(groups, "re");

        while (file && !found && fgets(line, sizeof(line), file)) {
                char *controllers = strchr(line, ':'), *path;

                path = controllers ? strchr(controllers + 1, ':') : NULL;
                if (!path)
                        continue;
                *path++ = '\0';
                path[strcspn(path, "\n")] = '\0';
                found = h->second ? !controllers[1]
                                  : has_word(controllers + 1, "memory");
                if (found)
                        snprintf(ret_path, PATH_MAX, "%s", path);
        }
        if (file)
                fclose(file);
        return found;
}

static uint64_t read_limit(const char *dir, bool second)
{
        char path[PATH_MAX + 32];
        unsigned long long bytes;
        FILE *file;
        bool ok;

        snprintf(path, sizeof(path), "%s/%s", dir,
                second ? "memory.max" : "memory.limit_in_bytes");
        file = fopen(path, "re");
        if (!file)
                return UINT64_MAX;
        ok = fscanf(file, "%llu", &bytes) == 1; /* else "max" */
        fclose(file);
        return ok ? bytes : UINT64_MAX;
}

static uint64_t least_on_the_way(const struct hierarchy *h, const char *path)
{
        size_t root_len = strcmp(h->root, "/") ? strlen(h->root) : 0;
        size_t at_len = strlen(h->at);
        uint64_t least = UINT64_MAX;
        char dir[2 * PATH_MAX];
        char *slash;

        /* Seen from elsewhere: what is mounted is all that there is. */
        if (strncmp(path, h->root, root_len))
                path = "";
        else
                path += root_len;
        snprintf(dir, sizeof(dir), "%s%s", h->at, path);
        for (;;) {
                least = SHEAF_MIN(least, read_limit(dir, h->second));
                slash = strrchr(dir, '/');
                if (!slash || (size_t)(slash - dir) < at_len)
                        return least;
                *slash = '\0';
        }
}

uint64_t sheaf_memory_group_of(const char *groups, const char *mounts)
{
        FILE *file = fopen(mounts, "re");
        uint64_t least = UINT64_MAX;
        char line[2 * PATH_MAX], path[PATH_MAX];
        struct hierarchy h;

        while (file && fgets(line, sizeof(line), file)) {
                if (parse_mount(line, &h) && find_group(groups, &h, path))
                        least = SHEAF_MIN(least, least_on_the_way(&h, path));
        }
        if (file)
                fclose(file);
        return least;
}

uint64_t sheaf_memory_group(void)
{
        return sheaf_memory_group_of(
                "/proc/self/cgroup", "/proc/self/mountinfo");
}
