/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of sheafd, from (later wins): built-in defaults, the config file,
 * the environment, the command line. */
#ifndef SHEAF_DAEMON_CONFIG_H
#define SHEAF_DAEMON_CONFIG_H

#include "daemon/store/arena.h"

struct sheaf_config {
        char *cache_dir;       /* absolute */
        char *socket;          /* absolute */
        char *reader;          /* the sheaf-reader executable */
        uint64_t memory_bytes; /* of all arenas */
        uint64_t prep_bytes;   /* of prepared batches */
        uint64_t disk_bytes;
        bool disk_is_default;   /* derived from free space at start */
        uint64_t floor_bytes;   /* free space left on the cache's disk */
        uint32_t deadline_ms;   /* bound of every read and wait */
        uint32_t user_datasets; /* that one user may have */
        bool memory_crowded;    /* with a cache on tmpfs, more than there is */
        enum sheaf_pages pages;
        bool foreground;
        bool no_uring;
        bool fuse_cache; /* FUSE below the cache is this machine's alone */
};

/* The least disk space of which a cache makes any use. */
#define SHEAF_DISK_BYTES_MIN (32 * SHEAF_MIB)

/* Parses @argv (and the file named by --config, and the environment). 0: go
 * on; 1: all was said (--help, --version), exit 0; -EINVAL: an error was
 * printed, exit 2. Relative paths become absolute here, before anything
 * changes the working directory. */
SHEAF_MUST_CHECK int sheaf_config_read(
        int argc, char **argv, struct sheaf_config *ret_config);
void sheaf_config_clear(struct sheaf_config *config);

#endif
