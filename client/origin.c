/* SPDX-License-Identifier: Apache-2.0 */
/* Reading without sheafd, for whoever lost it: files of the origin's
 * directory, and the order that needs nobody.
 *
 *  1 bytes are given only if the file was, before and after it was read, what
 *    the listing says: the same inode, size, time of change of its content
 *    and of its attributes. So they are those of the version that is open
 *
 * It is the caller who reads, with the rights that it has. Threads: any. */
#include "client/error.h"
#include "client/session.h"
#include "proto/io.h"
#include "proto/permutation.h"
#include "proto/wire.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

const char *sheaf_dataset_origin(const struct sheaf_dataset *dataset)
{
        return dataset->origin;
}

bool sheaf_dataset_is_served(const struct sheaf_dataset *dataset)
{
        return sheaf_wire_listens(sheaf_session_socket(dataset->session));
}

static bool is_listed(int fd, const struct sheaf_listing_entry *entry)
{
        struct stat st;

        return sheaf_again(fstat(fd, &st)) == 0 && S_ISREG(st.st_mode) &&
               st.st_ino == entry->origin_ino &&
               (uint64_t)st.st_size == entry->size_bytes &&
               st.st_mtim.tv_sec == entry->mtime_sec &&
               st.st_mtim.tv_nsec == (long)entry->mtime_nsec &&
               sheaf_listing_pack_ctime(st.st_ctim.tv_sec,
                       (uint32_t)st.st_ctim.tv_nsec) == entry->ctime_packed;
}

int sheaf_dataset_read_origin(
        struct sheaf_dataset *dataset, uint64_t ordinal, void *buf)
{
        const struct sheaf_listing *listing = &dataset->listing;
        const struct sheaf_listing_entry *entry;
        char path[PATH_MAX], below[PATH_MAX];
        sheaf_autofd int fd = -1;
        char why[SHEAF_ERROR_WHY_MAX];
        int rc = 0;

        if (ordinal >= listing->file_count)
                return sheaf_error_set(-ERANGE, "there is no such file");
        if (!dataset->origin)
                return sheaf_error_set(-ENOTCONN,
                        "the origin of dataset %s is not known", dataset->name);
        entry = &listing->entries[listing->files[ordinal]];
        if (sheaf_listing_path(listing, listing->files[ordinal], below,
                    sizeof(below)) >= sizeof(below) ||
                snprintf(path, sizeof(path), "%s/%s", dataset->origin, below) >=
                        (int)sizeof(path))
                return sheaf_error_set(-ENAMETOOLONG, "%s", dataset->origin);
        /* What took the file's place may be anything. */
        fd = sheaf_again(
                open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
        if (fd < 0)
                return sheaf_error_set(-errno,
                        "sheafd is away, and the origin's %s cannot be "
                        "opened: %s",
                        path, sheaf_error_why(-errno, why));
        if (!is_listed(fd, entry))
                rc = -ESTALE;
        if (!rc)
                rc = sheaf_read_at(fd, buf, entry->size_bytes, 0);
        if (rc == -ENODATA || (!rc && !is_listed(fd, entry)))
                rc = -ESTALE;
        if (rc == -ESTALE)
                return sheaf_error_set(rc,
                        "sheafd is away, and the origin's %s is not the file "
                        "that was added any more: put it back, or start "
                        "sheafd and run `sheaf update %s`",
                        path, dataset->name);
        return rc ? sheaf_error_set(rc, "%s: %s", path, strerror(-rc)) : 0;
}

uint32_t sheaf_strict_sample(
        uint32_t samples, uint64_t seed, uint64_t epoch, uint32_t slot)
{
        struct sheaf_permutation permutation;

        sheaf_permutation_init(&permutation, samples, seed, epoch);
        return sheaf_permutation_at(&permutation, slot);
}
