/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: who wins, what is refused, and that paths become absolute. */
#include "daemon/config.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <sys/stat.h>

static int read_args(struct sheaf_config *config, const char *args)
{
        static char copy[1024];
        char name[] = "sheafd", *argv[32] = { name }, *state = NULL;
        int argc = 1;

        snprintf(copy, sizeof(copy), "%s", args);
        for (char *w = strtok_r(copy, " ", &state); w;
                w = strtok_r(NULL, " ", &state))
                argv[argc++] = w;
        optind = 0;
        return sheaf_config_read(argc, argv, config);
}

Test(config, relative_paths_become_absolute)
{
        struct sheaf_config config;
        char dir[] = "/tmp/sheaf-config-XXXXXX";

        cr_assert(mkdtemp(dir));
        cr_assert_eq(chdir(dir), 0);
        cr_assert_eq(read_args(&config, "--cache c --socket s/x.sock"), 0);
        cr_assert_eq(config.cache_dir[0], '/');
        cr_assert(strstr(config.cache_dir, "/c"));
        cr_assert_eq(config.socket[0], '/');
        cr_assert(strstr(config.socket, "/s/x.sock"));
        sheaf_config_clear(&config);
        rmdir(dir);
}

Test(config, command_line_beats_environment_beats_nothing)
{
        struct sheaf_config config;

        setenv("SHEAF_CACHE_DIR", "/from/env", 1);
        setenv("SHEAF_SOCKET", "/from/env.sock", 1);
        cr_assert_eq(read_args(&config, "--cache /from/args"), 0);
        cr_assert_str_eq(config.cache_dir, "/from/args");
        cr_assert_str_eq(config.socket, "/from/env.sock");
        sheaf_config_clear(&config);
}

Test(config, file_is_read_and_the_command_line_wins)
{
        struct sheaf_config config;
        char path[] = "/tmp/sheaf-config-XXXXXX", args[256];
        int fd = mkstemp(path);
        const char text[] = "# comment\nmemory = 64MiB\ndisk = 3GiB\n"
                            "deadline = 5\nno-uring = yes\n";

        cr_assert(fd >= 0);
        cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
        close(fd);
        snprintf(args, sizeof(args), "--config %s --disk 1GiB --cache /tmp/x",
                path);
        cr_assert_eq(read_args(&config, args), 0);
        cr_assert_eq(config.memory_bytes, 64 * SHEAF_MIB);
        cr_assert_eq(config.disk_bytes, SHEAF_GIB);
        cr_assert_eq(config.deadline_ms, 5000);
        cr_assert(config.no_uring);
        sheaf_config_clear(&config);
        unlink(path);
}

Test(config, bad_values_are_refused)
{
        static const char *const bad[] = { "--memory -1", "--memory 12zz",
                "--disk lots", "--disk 1", "--disk 10MiB", "--disk 33554431",
                "--deadline 0", "--deadline x", "--deadline 1e9",
                "--pages giant", "--nonsense", "extra",
                "--config /nonexistent/file" };
        struct sheaf_config config;

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(bad); i++)
                cr_expect_eq(read_args(&config, bad[i]), -EINVAL, "%s", bad[i]);
}

Test(config, unknown_setting_in_a_file_is_refused)
{
        struct sheaf_config config;
        char path[] = "/tmp/sheaf-config-XXXXXX", args[256];
        int fd = mkstemp(path);

        cr_assert_eq(write(fd, "memorry = 1GiB\n", 15), 15);
        close(fd);
        snprintf(args, sizeof(args), "--config %s", path);
        cr_assert_eq(read_args(&config, args), -EINVAL);
        unlink(path);
}

Test(config, disk_zero_means_none_and_defaults_are_sane)
{
        struct sheaf_config config;

        cr_assert_eq(read_args(&config, "--cache /tmp/x --disk 0"), 0);
        cr_assert_eq(config.disk_bytes, 0);
        sheaf_config_clear(&config);
        cr_assert_eq(read_args(&config, "--cache /tmp/x --disk 32MiB"), 0);
        cr_assert_eq(config.disk_bytes, 32 * SHEAF_MIB);
        sheaf_config_clear(&config);
        cr_assert_eq(read_args(&config, "--cache /tmp/x"), 0);
        cr_assert_geq(config.disk_bytes, SHEAF_DISK_BYTES_MIN);
        cr_assert(config.memory_bytes >= 32 * SHEAF_MIB);
        cr_assert(config.memory_bytes <= 16 * SHEAF_GIB);
        cr_assert_eq(config.deadline_ms, 30000);
        cr_assert_neq(config.floor_bytes, UINT64_MAX);
        sheaf_config_clear(&config);
}

Test(config, the_default_limit_counts_what_the_cache_holds)
{
        struct sheaf_config config;
        char dir[] = "/tmp/sheaf-config-XXXXXX", args[256], path[128];
        uint64_t before, held = 64 * SHEAF_MIB;
        int fd;

        cr_assert(mkdtemp(dir));
        snprintf(args, sizeof(args), "--cache %s", dir);
        cr_assert_eq(read_args(&config, args), 0);
        before = config.disk_bytes;
        sheaf_config_clear(&config);
        snprintf(path, sizeof(path), "%s/segments", dir);
        cr_assert_eq(mkdir(path, 0700), 0);
        snprintf(path, sizeof(path), "%s/segments/00000001.seg", dir);
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        cr_assert(fd >= 0);
        cr_assert_eq(posix_fallocate(fd, 0, (off_t)held), 0);
        cr_assert_eq(read_args(&config, args), 0);
        /* Without the sum it would be half of what was taken less; others
         * use the disk too, so only that much is asked. */
        cr_assert(config.disk_bytes + held / 4 > before, "%llu after %llu",
                (unsigned long long)config.disk_bytes,
                (unsigned long long)before);
        sheaf_config_clear(&config);
        close(fd);
        unlink(path);
        snprintf(path, sizeof(path), "%s/segments", dir);
        rmdir(path);
        rmdir(dir);
}
