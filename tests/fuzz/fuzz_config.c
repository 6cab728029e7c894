/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the config file.
 *
 *  1 refused with -EINVAL, or every setting is within its bounds
 *  2 the same settings on the command line are taken over those of the file
 *  3 read twice it gives the same */
#include "daemon/config.h"
#include "tests/fuzz/input.h"

#include <getopt.h>

static char path[96], file[128];

static int read_config(struct sheaf_config *config, bool with_memory)
{
        static char cache[] = "--cache", sock[] = "--socket=/nowhere/s",
                    reader[] = "--reader=/nowhere/r", name[] = "sheafd",
                    memory[] = "--memory=64MiB";
        char *argv[] = { name, cache, path, sock, reader, file, memory, NULL };

        optind = 0; /* getopt begins anew */
        return sheaf_config_read(with_memory ? 7 : 6, argv, config);
}

static void check(const struct sheaf_config *config)
{
        fuzz_must(!strcmp(config->cache_dir, path));
        fuzz_must(!strcmp(config->socket, "/nowhere/s"));
        fuzz_must(!strcmp(config->reader, "/nowhere/r"));
        fuzz_must(config->memory_bytes);
        fuzz_must(config->disk_bytes == 0 ||
                  config->disk_bytes >= SHEAF_DISK_BYTES_MIN);
        fuzz_must(config->deadline_ms >= 100 && config->deadline_ms <= 3600000);
        fuzz_must(config->pages >= SHEAF_PAGES_AUTO &&
                  config->pages <= SHEAF_PAGES_SMALL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static FILE *nowhere;
        struct sheaf_config first, second;
        int fd, rc, rc2;

        /* Every error is told; the sanitizers use descriptor 2. */
        if (!nowhere)
                stderr = nowhere = fopen("/dev/null", "w");
        (void)fuzz_dir();
        snprintf(path, sizeof(path), "%s", fuzz_dir_path);
        snprintf(file, sizeof(file), "--config=%s/config", fuzz_dir_path);
        fd = openat(fuzz_dir(), "config", O_WRONLY | O_CREAT | O_TRUNC, 0600);
        fuzz_must(fd >= 0 && write(fd, data, size) == (ssize_t)size);
        close(fd);
        rc = read_config(&first, false);
        fuzz_must(rc == 0 || rc == -EINVAL);
        rc2 = read_config(&second, true);
        fuzz_must(rc == rc2);
        if (rc)
                return 0;
        check(&first);
        check(&second);
        fuzz_must(second.memory_bytes == 64 * SHEAF_MIB);
        fuzz_must(first.deadline_ms == second.deadline_ms &&
                  first.pages == second.pages &&
                  first.no_uring == second.no_uring &&
                  first.foreground == second.foreground);
        sheaf_config_clear(&first);
        sheaf_config_clear(&second);
        return 0;
}
