/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a share of an epoch through the mount, without libsheaf: of every OF
 * samples one. Prints each sample's path and size; a directory's name is
 * often the label.
 *
 *   cc slots.c -o slots
 *   for i in 0 1 2 3; do ./slots MOUNT/.sheaf/jobs/JOB/EPOCH $i 4 & done */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TO_ROOT "../../../../"

/* Stands for real work: the number of bytes, or -1. */
static long long use(int fd)
{
        char buf[1 << 16];
        long long bytes = 0;
        ssize_t n;

        while ((n = read(fd, buf, sizeof(buf))) > 0)
                bytes += n;
        return n < 0 ? -1 : bytes;
}

/* Reading the link binds the slot; the file is read as any other. */
static int one(const char *slot)
{
        char path[PATH_MAX];
        ssize_t len = readlink(slot, path, sizeof(path) - 1);
        long long bytes;
        int fd;

        if (len < 0)
                return -1;
        path[len] = '\0';
        fd = open(slot, O_RDONLY);
        if (fd < 0)
                return -1;
        bytes = use(fd);
        close(fd);
        if (bytes < 0)
                return -1;
        printf("%s %lld\n", path + strlen(TO_ROOT), bytes);
        return 0;
}

int main(int argc, char **argv)
{
        long share = argc == 4 ? atol(argv[2]) : -1;
        long of = argc == 4 ? atol(argv[3]) : 0;
        struct dirent *entry;
        DIR *epoch;

        if (share < 0 || of <= share) {
                fprintf(stderr, "usage: slots EPOCH-DIRECTORY SHARE OF\n");
                return 2;
        }
        /* From inside, the epoch keeps its version if the mount is renewed. */
        if (chdir(argv[1]) || !(epoch = opendir("."))) {
                fprintf(stderr, "slots: %s: %s\n", argv[1], strerror(errno));
                return 1;
        }
        while ((entry = readdir(epoch))) {
                if (entry->d_name[0] == '.')
                        continue;
                if (atol(entry->d_name) % of == share && one(entry->d_name)) {
                        fprintf(stderr, "slots: %s: %s\n", entry->d_name,
                                strerror(errno));
                        return 1;
                }
        }
        closedir(epoch);
        return 0;
}
