/* SPDX-License-Identifier: Apache-2.0 */
/* One table of settings serves the command line, the environment and the
 * config file (inih). Errors name the setting, the value and what is
 * accepted. */
#include "daemon/config.h"

#include "daemon/memory_limit.h"
#include "proto/paths.h"
#include "proto/size.h"

#include <dirent.h>
#include <fcntl.h>
#include <getopt.h>
#include <ini.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

#define OWN_BYTES             (64 * SHEAF_MIB)
#define USER_DATASETS_DEFAULT 4096
#define USER_DATASETS_MAX     1000000

#ifndef SHEAF_LIBEXECDIR
#define SHEAF_LIBEXECDIR "/usr/libexec/sheaf"
#endif

static const char usage_text[] =
        "Usage: sheafd [OPTION]...\n"
        "Keeps training data in shared memory and on local disk, and serves\n"
        "it to jobs on this node.\n"
        "\n"
        "      --cache DIR         where the cache lives (SHEAF_CACHE_DIR;\n"
        "                          default: /var/cache/sheaf as root, else\n"
        "                          $XDG_CACHE_HOME/sheaf, $TMPDIR/sheaf-UID\n"
        "                          or /var/tmp/sheaf-UID)\n"
        "      --socket PATH       where clients connect (SHEAF_SOCKET)\n"
        "      --memory SIZE       shared memory for chunks, a hard limit\n"
        "                          (default: a quarter of the memory, at most\n"
        "                          16GiB)\n"
        "      --prep SIZE         memory for prepared batches of groups: of\n"
        "                          their workers' files (default: a quarter\n"
        "                          of --memory; 0: no groups)\n"
        "      --disk SIZE         disk space for the cache, a hard limit, at\n"
        "                          least 32MiB; 0: none (default: half of "
        "what\n"
        "                          is free)\n"
        "      --floor SIZE        free disk space to leave alone (default\n"
        "                          1GiB, or 5 % of a small disk)\n"
        "      --deadline SECONDS  bound on every read and wait (default 30)\n"
        "      --user-datasets N   that one user may have (default 4096)\n"
        "      --pages WHAT        auto, hugetlb, thp or small\n"
        "      --no-uring          do disk I/O with threads\n"
        "      --fuse-cache        take a cache on a FUSE file system, which\n"
        "                          this machine alone uses\n"
        "      --config FILE       read settings from FILE: lines such as\n"
        "                          memory = 32GiB\n"
        "      --foreground        stay in the foreground, log to stderr\n"
        "      --help, --version\n"
        "\n"
        "Examples:\n"
        "  sheafd                                  all defaults\n"
        "  sheafd --cache /nvme/sheaf --memory 64GiB --disk 2TiB\n"
        "  sheafd --foreground --cache /tmp/c --socket /tmp/c/s\n"
        "\n"
        "Exit status: 0 the daemon runs (or, in the foreground, has ended\n"
        "well), 1 it could not start, 2 wrong usage.\n";

enum setting {
        CACHE = 1000,
        SOCKET,
        MEMORY,
        PREP,
        DISK,
        FLOOR,
        DEADLINE,
        USER_DATASETS,
        PAGES,
        NO_URING,
        FUSE_CACHE,
        CONFIG,
        FOREGROUND,
        READER,
        HELP,
        VERSION,
};

static const struct option options[] = {
        { "cache", required_argument, NULL, CACHE },
        { "socket", required_argument, NULL, SOCKET },
        { "memory", required_argument, NULL, MEMORY },
        { "prep", required_argument, NULL, PREP },
        { "disk", required_argument, NULL, DISK },
        { "floor", required_argument, NULL, FLOOR },
        { "deadline", required_argument, NULL, DEADLINE },
        { "user-datasets", required_argument, NULL, USER_DATASETS },
        { "pages", required_argument, NULL, PAGES },
        { "no-uring", no_argument, NULL, NO_URING },
        { "fuse-cache", no_argument, NULL, FUSE_CACHE },
        { "reader", required_argument, NULL, READER },
        { "config", required_argument, NULL, CONFIG },
        { "foreground", no_argument, NULL, FOREGROUND },
        { "help", no_argument, NULL, HELP },
        { "version", no_argument, NULL, VERSION },
        { 0 },
};

static int bad(const char *name, const char *value, const char *wanted)
{
        fprintf(stderr, "sheafd: %s: '%s' is not valid: %s\n", name, value,
                wanted);
        return -EINVAL;
}

/* Sets *@to to the absolute form of @path. */
static int set_path(char **to, const char *path)
{
        char *absolute = NULL, cwd[PATH_MAX];
        int n;

        if (!*path)
                return -EINVAL;
        if (*path == '/')
                n = asprintf(&absolute, "%s", path);
        else if (getcwd(cwd, sizeof(cwd)))
                n = asprintf(&absolute, "%s/%s", cwd, path);
        else
                return -errno;
        if (n < 0)
                return -ENOMEM;
        free(*to);
        *to = absolute;
        return 0;
}

static int set_size(uint64_t *to, const char *name, const char *value)
{
        if (sheaf_size_parse(value, to))
                return bad(name, value, "a size such as 4096, 512MiB or 1.5T");
        return 0;
}

/* The most shared memory that the control group leaves room for, beside what
 * the daemon and its readers need: a quarter of it for bytes under way, 256
 * MiB at most, and OWN_BYTES. */
static uint64_t group_memory(void)
{
        uint64_t bytes = sheaf_memory_group();

        if (bytes == UINT64_MAX)
                return bytes;
        bytes -= SHEAF_MIN(bytes, OWN_BYTES);
        return SHEAF_MAX(
                bytes / 5 * 4, bytes - SHEAF_MIN(bytes, 256 * SHEAF_MIB));
}

static int memory_fits(uint64_t bytes, const char *value)
{
        char limit[SHEAF_SIZE_TEXT_MAX], most[SHEAF_SIZE_TEXT_MAX], text[256];

        if (bytes <= group_memory())
                return 0;
        snprintf(text, sizeof(text),
                "at most %s here, since the limit of the memory control group "
                "is %s; raise that, or give less",
                sheaf_size_text(group_memory(), most),
                sheaf_size_text(sheaf_memory_group(), limit));
        return bad("memory", value, text);
}

/* Zero would be taken for "not given", and the default is larger. What the
 * machine does not have would be found out by the killer of processes. */
static int set_memory(uint64_t *to, const char *value)
{
        if (sheaf_size_parse(value, to) || !*to)
                return bad("memory", value,
                        "a size such as 512MiB or 64GiB, at least 32MiB");
        if (*to > sheaf_memory_machine())
                return bad("memory", value,
                        "more than the memory of this machine");
        return memory_fits(*to, value);
}

/* Of less than that the cache's own data leaves next to nothing. */
static int set_disk(uint64_t *to, const char *value)
{
        if (sheaf_size_parse(value, to) || (*to && *to < SHEAF_DISK_BYTES_MIN))
                return bad("disk", value,
                        "a size such as 512MiB or 1.5T, at least 32MiB, or 0 "
                        "for none");
        return 0;
}

static int set_deadline(struct sheaf_config *config, const char *value)
{
        char *end;
        double seconds = strtod(value, &end);

        if (end == value || *end || !(seconds >= 0.1 && seconds <= 3600))
                return bad("deadline", value, "0.1 to 3600 seconds");
        config->deadline_ms = (uint32_t)(seconds * 1000);
        return 0;
}

static int set_pages(struct sheaf_config *config, const char *value)
{
        static const char *const names[] = { "auto", "hugetlb", "thp",
                "small" };

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(names); i++) {
                if (strcmp(value, names[i]) == 0) {
                        config->pages = (enum sheaf_pages)i;
                        return 0;
                }
        }
        return bad("pages", value, "auto, hugetlb, thp or small");
}

static int set_user_datasets(struct sheaf_config *config, const char *value)
{
        char *end;
        unsigned long count = strtoul(value, &end, 10);

        if (*value < '0' || *value > '9' || *end || !count ||
                count > USER_DATASETS_MAX)
                return bad(
                        "user-datasets", value, "a number from 1 to 1000000");
        config->user_datasets = (uint32_t)count;
        return 0;
}

static int apply(struct sheaf_config *config, int setting, const char *value)
{
        switch (setting) {
        case CACHE:
                return set_path(&config->cache_dir, value)
                               ? bad("cache", value, "a directory")
                               : 0;
        case SOCKET:
                return set_path(&config->socket, value)
                               ? bad("socket", value, "a path")
                               : 0;
        case READER:
                return set_path(&config->reader, value);
        case MEMORY:
                return set_memory(&config->memory_bytes, value);
        case PREP:
                return set_size(&config->prep_bytes, "prep", value);
        case DISK:
                config->disk_is_default = false;
                return set_disk(&config->disk_bytes, value);
        case FLOOR:
                return set_size(&config->floor_bytes, "floor", value);
        case DEADLINE:
                return set_deadline(config, value);
        case USER_DATASETS:
                return set_user_datasets(config, value);
        case PAGES:
                return set_pages(config, value);
        case NO_URING:
                config->no_uring = true;
                return 0;
        case FUSE_CACHE:
                config->fuse_cache = true;
                return 0;
        case FOREGROUND:
                config->foreground = true;
                return 0;
        default:
                return -EINVAL;
        }
}

static int apply_line(
        void *arg, const char *section, const char *name, const char *value)
{
        (void)section;
        for (const struct option *o = options; o->name; o++) {
                if (strcmp(o->name, name) || o->val == CONFIG ||
                        o->val == HELP || o->val == VERSION)
                        continue;
                if (!o->has_arg && strcmp(value, "yes") &&
                        strcmp(value, "true"))
                        return 1;
                return apply(arg, o->val, value) == 0;
        }
        fprintf(stderr, "sheafd: unknown setting '%s'\n", name);
        return 0;
}

static int read_file(struct sheaf_config *config, const char *path)
{
        int rc = ini_parse(path, apply_line, config);

        if (rc == 0)
                return 0;
        if (rc < 0)
                fprintf(stderr, "sheafd: %s: %s\n", path, strerror(errno));
        else
                fprintf(stderr, "sheafd: %s:%d: this line is not valid\n", path,
                        rc);
        return -EINVAL;
}

static bool is_local(const char *dir)
{
        struct statfs fs;

        if (statfs(dir, &fs))
                return false;
        return fs.f_type != NFS_SUPER_MAGIC && fs.f_type != 0x65735546 &&
               fs.f_type != 0x0bd00bd0 && fs.f_type != 0x00c36400 &&
               fs.f_type != (__typeof__(fs.f_type))0xff534d42 &&
               fs.f_type != 0x47504653;
}

static int default_cache(struct sheaf_config *config)
{
        const char *xdg = getenv("XDG_CACHE_HOME"), *tmp = getenv("TMPDIR");
        char path[PATH_MAX];

        if (geteuid() == 0)
                snprintf(path, sizeof(path), "/var/cache/sheaf");
        else if (xdg && *xdg == '/' && is_local(xdg))
                snprintf(path, sizeof(path), "%s/sheaf", xdg);
        else if (tmp && *tmp == '/' && is_local(tmp))
                snprintf(path, sizeof(path), "%s/sheaf-%u", tmp, geteuid());
        else
                snprintf(path, sizeof(path), "/var/tmp/sheaf-%u", geteuid());
        return set_path(&config->cache_dir, path);
}

/* The first place whose directory exists or can be made. */
static int default_socket(struct sheaf_config *config)
{
        struct sheaf_socket_list list;
        int rc = sheaf_socket_candidates(NULL, &list);

        if (rc)
                return rc;
        rc = -ENOENT;
        for (size_t i = 0; i < list.count && rc; i++) {
                char *slash = strrchr(list.path[i], '/');
                mode_t mode = geteuid() == 0 ? 0755 : 0700;

                *slash = 0;
                if (access(list.path[i], W_OK) == 0 ||
                        mkdir(list.path[i], mode) == 0)
                        rc = 0;
                *slash = '/';
                if (!rc)
                        rc = set_path(&config->socket, list.path[i]);
        }
        sheaf_socket_list_free(&list);
        return rc;
}

static uint64_t default_memory(void)
{
        uint64_t bytes = sheaf_memory_machine() / 4;

        bytes = SHEAF_MIN(bytes & ~(64 * SHEAF_MIB - 1), 16 * SHEAF_GIB);
        return SHEAF_MIN(bytes, group_memory() / 2);
}

/* sheaf-reader lies beside sheafd, or in libexec. */
static int default_reader(struct sheaf_config *config)
{
        char path[PATH_MAX], *slash;
        ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 64);

        if (n > 0) {
                static const char *const beside[] = { "/sheaf-reader",
                        "/origin/sheaf-reader",
                        "/../libexec/sheaf/sheaf-reader" };

                path[n] = 0;
                slash = strrchr(path, '/');
                for (size_t i = 0; i < SHEAF_ARRAY_LEN(beside); i++) {
                        strcpy(slash, beside[i]);
                        if (access(path, X_OK) == 0)
                                return set_path(&config->reader, path);
                }
        }
        return set_path(&config->reader, SHEAF_LIBEXECDIR "/sheaf-reader");
}

static int fill_defaults(struct sheaf_config *config)
{
        const char *env;
        int rc = 0;

        env = getenv("SHEAF_CACHE_DIR");
        if (!config->cache_dir)
                rc = env && *env ? set_path(&config->cache_dir, env)
                                 : default_cache(config);
        env = getenv("SHEAF_SOCKET");
        if (!rc && !config->socket)
                rc = env && *env ? set_path(&config->socket, env)
                                 : default_socket(config);
        if (!rc && !config->reader)
                rc = default_reader(config);
        if (!config->memory_bytes)
                config->memory_bytes = default_memory();
        if (config->prep_bytes == UINT64_MAX)
                config->prep_bytes = config->memory_bytes / 4;
        if (rc)
                fprintf(stderr, "sheafd: cannot find a place for the %s: %s\n",
                        config->cache_dir ? "socket" : "cache", strerror(-rc));
        return rc ? -EINVAL : 0;
}

/* Bytes that the cache of an earlier run takes: they are not free, but ours.
 * Without them the default would halve at each start. */
static uint64_t cache_bytes(const char *cache_dir)
{
        static const char *const parts[] = { "segments", "plain" };
        char path[PATH_MAX];
        uint64_t bytes = 0;

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(parts); i++) {
                struct dirent *entry;
                struct stat st;
                DIR *dir;

                snprintf(path, sizeof(path), "%s/%s", cache_dir, parts[i]);
                dir = opendir(path);
                if (!dir)
                        continue;
                while ((entry = readdir(dir)))
                        if (!fstatat(dirfd(dir), entry->d_name, &st,
                                    AT_SYMLINK_NOFOLLOW) &&
                                S_ISREG(st.st_mode))
                                bytes += (uint64_t)st.st_blocks * 512;
                closedir(dir);
        }
        return bytes;
}

/* Half of what is free, and the floor, from the file system of the cache or
 * its nearest existing parent. */
static void default_disk(struct sheaf_config *config)
{
        char path[PATH_MAX];
        struct statvfs fs;

        snprintf(path, sizeof(path), "%s", config->cache_dir);
        while (statvfs(path, &fs)) {
                char *slash = strrchr(path, '/');

                if (!slash || slash == path)
                        return;
                *slash = 0;
        }
        uint64_t size = (uint64_t)fs.f_blocks * fs.f_frsize;
        uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;

        if (config->disk_is_default) {
                free_bytes += cache_bytes(config->cache_dir);
                config->disk_bytes =
                        SHEAF_MAX(free_bytes / 2, SHEAF_DISK_BYTES_MIN);
        }
        if (config->floor_bytes == UINT64_MAX)
                config->floor_bytes = SHEAF_MIN(SHEAF_GIB, size / 20);
}

/* On tmpfs both limits are of the same memory. */
static void warn_of_tmpfs(struct sheaf_config *config)
{
        uint64_t most = SHEAF_MIN(sheaf_memory_machine(), sheaf_memory_group());
        struct statfs fs;

        if (statfs(config->cache_dir, &fs) ||
                (fs.f_type != TMPFS_MAGIC && fs.f_type != RAMFS_MAGIC))
                return;
        config->memory_crowded =
                config->memory_bytes + config->disk_bytes > most;
        if (config->memory_crowded)
                fprintf(stderr,
                        "sheafd: warning: %s is on tmpfs, and --disk and "
                        "--memory together exceed the memory there is; use a "
                        "disk, or smaller limits\n",
                        config->cache_dir);
}

int sheaf_config_read(int argc, char **argv, struct sheaf_config *ret_config)
{
        struct sheaf_config config = { .deadline_ms = 30000,
                .disk_is_default = true,
                .user_datasets = USER_DATASETS_DEFAULT,
                .prep_bytes = UINT64_MAX,
                .floor_bytes = UINT64_MAX };
        int opt, rc = 0;

        /* The file first, so that the command line wins. */
        for (int i = 1; i < argc && !rc; i++) {
                if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
                        rc = read_file(&config, argv[i + 1]);
                else if (strncmp(argv[i], "--config=", 9) == 0)
                        rc = read_file(&config, argv[i] + 9);
        }
        while (!rc &&
                (opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
                if (opt == HELP) {
                        fputs(usage_text, stdout);
                        rc = 1;
                } else if (opt == VERSION) {
                        printf("sheafd %s\n", SHEAF_RELEASE);
                        rc = 1;
                } else if (opt == '?') {
                        fputs("Try: sheafd --help\n", stderr);
                        rc = -EINVAL;
                } else if (opt != CONFIG) {
                        rc = apply(&config, opt, optarg);
                }
        }
        if (!rc && optind < argc)
                rc = bad("argument", argv[optind], "none is expected");
        if (!rc)
                rc = fill_defaults(&config);
        if (rc) {
                sheaf_config_clear(&config);
                return rc;
        }
        default_disk(&config);
        warn_of_tmpfs(&config);
        *ret_config = config;
        return 0;
}

void sheaf_config_clear(struct sheaf_config *config)
{
        free(config->cache_dir);
        free(config->socket);
        free(config->reader);
        memset(config, 0, sizeof(*config));
}
