/* SPDX-License-Identifier: Apache-2.0 */
/* The search order of the daemon's socket.
 *
 *  1 a place that somebody else could have made is never in the list */
#include "proto/paths.h"

#include <stdio.h>
#include <sys/stat.h>

static int append(
        struct sheaf_socket_list *list, const char *dir, const char *rest)
{
        char *path;

        if (asprintf(&path, "%s%s", dir, rest) < 0)
                return -ENOMEM;
        list->path[list->count++] = path;
        return 0;
}

/* True when nobody but this user could have put a socket into @dir. */
static bool is_private(const char *dir)
{
        struct stat st;

        if (lstat(dir, &st))
                return errno == ENOENT;
        return S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
               !(st.st_mode & 022);
}

static int append_usual(struct sheaf_socket_list *list)
{
        const char *runtime = getenv("XDG_RUNTIME_DIR");
        char own[64];
        int rc;

        if (runtime && *runtime == '/') {
                rc = append(list, runtime, "/sheaf/sheafd.sock");
                if (rc)
                        return rc;
        }
        rc = append(list, "/run/sheaf", "/sheafd.sock");
        if (rc)
                return rc;
        snprintf(own, sizeof(own), "/tmp/sheaf-%u", (unsigned int)geteuid());
        return is_private(own) ? append(list, own, "/sheafd.sock") : 0;
}

int sheaf_socket_candidates(
        const char *given, struct sheaf_socket_list *ret_list)
{
        struct sheaf_socket_list list = { 0 };
        const char *env = getenv("SHEAF_SOCKET");
        int rc;

        if (!given && env && *env)
                given = env;
        rc = given ? append(&list, given, "") : append_usual(&list);
        if (rc) {
                sheaf_socket_list_free(&list);
                return rc;
        }
        *ret_list = list;
        return 0;
}

void sheaf_socket_list_free(struct sheaf_socket_list *list)
{
        for (size_t i = 0; i < list->count; i++)
                free(list->path[i]);
        list->count = 0;
}
