/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-cachefs: mounts a dataset.
 *
 *   parent                        child
 *   fork, wait for the verdict    session, dataset, mount, loop
 *   exit with its code       <--- the mount answers, or why it does not
 *
 *  1 the parent exits 0 only after the mount has answered a request
 *  2 a mount that replaces another is made and asked in a place of its own;
 *    until it has answered, nothing happens to the old one; without the right
 *    to move mounts the old one goes when all but the mount itself is done
 *  3 SIGTERM takes the mount out of the tree at once and ends the process
 *    when its last user is gone; a second one ends it now
 *
 * Threads: main runs the loop; a second one settles the mount and waits for
 * signals, which all others block. */
#include "cachefs/fs.h"
#include "cachefs/heir.h"
#include "cachefs/mounts.h"
#include "cachefs/source_client.h"

#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <syslog.h>

/* Exit codes; `sheaf mount` and scripts rely on them. */
enum exit_code {
        EXIT_DONE = 0,
        EXIT_INTERNAL = 1,
        EXIT_USAGE = 2,
        EXIT_NO_DAEMON = 3,
        EXIT_NO_DATASET = 4,
        EXIT_MOUNT = 5,
};

struct mount_args {
        const char *socket, *name;
        char *dir;         /* where the mount is; absolute; owned */
        char *place;       /* --replace: where it shall be; owned */
        char *socket_made; /* what @socket points to, if made; owned */
        struct sheaf_fs_options options;
        uint8_t uuid[16];
        bool has_uuid, foreground, replace;
        bool swap; /* the mount at @dir goes just before the new one comes */
};

struct server {
        struct mount_args *args;
        struct sheaf_fs *fs;
        struct sheaf_heir heir; /* of the mount that this one replaces */
        _Atomic int verdict_fd; /* to the parent; -1: none waits */
        atomic_bool ended;      /* the loop is over: nothing to attend */
};

static const char usage_text[] =
        "usage: sheaf-cachefs [--socket PATH] [--foreground] [--allow-other]\n"
        "                     [--mode auto|small|shard] [--version UUID] "
        "[--replace | --swap]\n"
        "                     NAME DIR\n";

/* One byte: the exit code. The text of an error went to standard error. The
 * first verdict counts. */
static void send_verdict(struct server *server, enum exit_code code)
{
        int fd = atomic_exchange(&server->verdict_fd, -1);
        uint8_t byte = (uint8_t)code;

        if (fd < 0)
                return;
        if (write(fd, &byte, 1) != 1)
                syslog(LOG_WARNING, "nobody waited for the mount");
        close(fd);
}

SHEAF_PRINTF(2, 3)
static enum exit_code fail(enum exit_code code, const char *format, ...)
{
        va_list args;

        fputs("sheaf-cachefs: ", stderr);
        va_start(args, format);
        vfprintf(stderr, format, args);
        va_end(args);
        fputc('\n', stderr);
        return code;
}

static int parse_uuid(const char *text, uint8_t ret_uuid[16])
{
        uint8_t out[16];
        size_t digits = 0;

        for (; *text; text++) {
                int value;

                if (*text == '-')
                        continue;
                if (*text >= '0' && *text <= '9')
                        value = *text - '0';
                else if ((*text | 32) >= 'a' && (*text | 32) <= 'f')
                        value = (*text | 32) - 'a' + 10;
                else
                        return -EINVAL;
                if (digits == 32)
                        return -EINVAL;
                if (digits % 2)
                        out[digits / 2] |= (uint8_t)value;
                else
                        out[digits / 2] = (uint8_t)(value << 4);
                digits++;
        }
        if (digits != 32)
                return -EINVAL;
        memcpy(ret_uuid, out, sizeof(out));
        return 0;
}

/* The process moves to "/": a relative socket path would lose its meaning. */
static enum exit_code keep_socket(struct mount_args *args)
{
        sheaf_autofree char *cwd = NULL;

        if (!args->socket)
                args->socket = getenv("SHEAF_SOCKET");
        if (!args->socket || args->socket[0] == '/' || !args->socket[0])
                return EXIT_DONE;
        cwd = getcwd(NULL, 0);
        if (!cwd ||
                asprintf(&args->socket_made, "%s/%s", cwd, args->socket) < 0)
                return fail(EXIT_INTERNAL, "%s", strerror(errno));
        args->socket = args->socket_made;
        return EXIT_DONE;
}

static enum exit_code parse_dir(struct mount_args *args, const char *dir)
{
        int rc = sheaf_mounts_absolute(dir, &args->dir);

        if (rc < 0)
                return fail(EXIT_MOUNT, "%s: %s", dir, strerror(-rc));
        return EXIT_DONE;
}

/* The directory that the user named. */
static const char *shown_dir(const struct mount_args *args)
{
        return args->place ? args->place : args->dir;
}

static void free_args(struct mount_args *args)
{
        free(args->dir);
        free(args->place);
        free(args->socket_made);
}

static enum exit_code parse_args(int argc, char **argv, struct mount_args *args)
{
        static const struct option options[] = {
                { "socket", required_argument, NULL, 's' },
                { "foreground", no_argument, NULL, 'f' },
                { "allow-other", no_argument, NULL, 'a' },
                { "mode", required_argument, NULL, 'm' },
                { "version", required_argument, NULL, 'v' },
                { "debug", no_argument, NULL, 'd' },
                { "no-passthrough", no_argument, NULL, 'p' },
                { "list-xattrs", no_argument, NULL, 'x' },
                { "replace", no_argument, NULL, 'r' },
                { "swap", no_argument, NULL, 'w' },
                { "help", no_argument, NULL, 'h' },
                { 0 },
        };
        int c;

        while ((c = getopt_long(argc, argv, "fh", options, NULL)) != -1) {
                switch (c) {
                case 's':
                        args->socket = optarg;
                        break;
                case 'f':
                        args->foreground = true;
                        break;
                case 'a':
                        args->options.allow_other = true;
                        break;
                case 'm':
                        if (sheaf_tree_kind_parse(optarg, &args->options.kind) <
                                0)
                                return fail(EXIT_USAGE,
                                        "--mode %s: use auto, small or shard",
                                        optarg);
                        break;
                case 'v':
                        if (parse_uuid(optarg, args->uuid) < 0)
                                return fail(EXIT_USAGE,
                                        "--version %s: not a UUID", optarg);
                        args->has_uuid = true;
                        break;
                case 'd':
                        args->options.debug = args->foreground = true;
                        break;
                case 'p':
                        args->options.no_passthrough = true;
                        break;
                case 'x':
                        args->options.list_xattrs = true;
                        break;
                case 'r':
                        args->replace = true;
                        break;
                case 'w':
                        args->swap = true;
                        break;
                case 'h':
                        fputs(usage_text, stdout);
                        exit(EXIT_DONE);
                default:
                        fputs(usage_text, stderr);
                        return EXIT_USAGE;
                }
        }
        if (argc - optind != 2) {
                fputs(usage_text, stderr);
                return EXIT_USAGE;
        }
        args->name = argv[optind];

        enum exit_code code = keep_socket(args);

        return code ? code : parse_dir(args, argv[optind + 1]);
}

/* Removes dead mounts of ours at the place and refuses live ones. */
static enum exit_code clear_place(const struct mount_args *args)
{
        struct sheaf_mount mount;
        enum exit_code code = EXIT_DONE;
        struct stat info;
        int rc;

        rc = sheaf_mounts_detach_dead(args->dir);
        if (rc < 0)
                return fail(EXIT_MOUNT,
                        "%s: a dead mount cannot be removed: %s", args->dir,
                        strerror(-rc));
        if (rc > 0)
                fprintf(stderr, "sheaf-cachefs: %s: removed a dead mount\n",
                        args->dir);
        rc = sheaf_mounts_at(args->dir, &mount);
        if (!rc) {
                if (sheaf_mount_is_ours(&mount))
                        code = fail(EXIT_MOUNT,
                                "%s: dataset %s is mounted here already; "
                                "`sheaf umount %s` first",
                                args->dir, mount.dataset, args->dir);
                sheaf_mount_clear(&mount);
                if (code)
                        return code;
        }
        if (stat(args->dir, &info))
                return fail(EXIT_MOUNT, "%s: %s", args->dir, strerror(errno));
        if (!S_ISDIR(info.st_mode))
                return fail(EXIT_MOUNT, "%s: not a directory", args->dir);
        return EXIT_DONE;
}

/* A directory for the mount until it takes its place; only we see into it. */
static enum exit_code make_staging(struct mount_args *args)
{
        static const char *const places[] = { "/run", "/tmp" };
        struct sheaf_mount mount;
        bool ours;
        int rc = sheaf_mounts_at(args->dir, &mount);

        if (rc)
                return fail(EXIT_MOUNT, "%s: not mounted: %s", args->dir,
                        strerror(-rc));
        ours = sheaf_mount_is_ours(&mount);
        sheaf_mount_clear(&mount);
        if (!ours)
                return fail(EXIT_MOUNT, "%s: not a mount of Sheaf", args->dir);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(places); i++) {
                char *dir;

                rc = sheaf_mounts_stage(places[i], &dir);
                if (rc)
                        continue;
                args->place = args->dir;
                args->dir = dir;
                return EXIT_DONE;
        }
        return fail(EXIT_MOUNT,
                "no directory for the new mount in /run or /tmp: %s",
                strerror(-rc));
}

static void remove_staging(const struct mount_args *args)
{
        if (args->place && rmdir(args->dir) && errno != ENOENT)
                syslog(LOG_WARNING, "%s: %s", args->dir, strerror(errno));
}

/* The mount, which answers, takes its place. */
static int take_place(struct mount_args *args)
{
        int rc = sheaf_mounts_replace(args->dir, args->place);

        if (rc)
                return rc;
        remove_staging(args);
        free(args->dir);
        args->dir = sheaf_steal(&args->place);
        return 0;
}

static enum exit_code open_dataset(const struct mount_args *args,
        struct sheaf_session **ret_session, struct sheaf_dataset **ret_dataset)
{
        struct sheaf_session_options options = {
                .socket = args->socket, .name = args->name, .kind = "mount"
        };
        int rc = sheaf_session_new(&options, ret_session);

        if (rc < 0)
                return fail(EXIT_INTERNAL, "%s", strerror(-rc));
        rc = sheaf_session_connect(*ret_session);
        if (rc < 0)
                return fail(EXIT_NO_DAEMON, "no daemon at %s: %s (%s)",
                        sheaf_session_socket(*ret_session), strerror(-rc),
                        sheaf_last_error());
        rc = args->has_uuid ? sheaf_dataset_open_version(*ret_session,
                                      args->name, args->uuid, ret_dataset)
                            : sheaf_dataset_open(
                                      *ret_session, args->name, ret_dataset);
        if (rc < 0)
                return fail(EXIT_NO_DATASET, "dataset %s: %s (%s)", args->name,
                        strerror(-rc), sheaf_last_error());
        return EXIT_DONE;
}

static void own_signals(sigset_t *ret_set)
{
        sigemptyset(ret_set);
        sigaddset(ret_set, SIGTERM);
        sigaddset(ret_set, SIGINT);
        sigaddset(ret_set, SIGHUP);
}

/* Cuts standard streams off the terminal or pipe of who mounted. */
static void leave_streams(void)
{
        sheaf_autofd int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

        if (fd < 0)
                return;
        for (int i = 0; i < 3; i++)
                dup2(fd, i);
}

/* Takes the mount out of the tree; the loop ends with its last user. */
static void detach(const struct server *server)
{
        int rc = sheaf_mounts_unmount(server->args->dir, true);

        if (rc < 0 && rc != -ENOENT)
                syslog(LOG_WARNING, "unmount of %s: %s", server->args->dir,
                        strerror(-rc));
}

/* What jobs have begun in the mount before this one they do not begin again
 * here, on another version. */
static void inherit(struct server *server)
{
        sheaf_autofree char *text = NULL;

        if (!server->args->options.heir)
                return;
        text = sheaf_heir_ask(&server->heir);
        sheaf_fs_inherit(server->fs, text);
}

static void *attend(void *arg)
{
        struct server *server = arg;
        sigset_t set;
        int sig, rc;

        rc = sheaf_fs_settle(server->fs, server->args->dir);
        if (!rc && server->args->place)
                rc = take_place(server->args);
        if (rc < 0) {
                send_verdict(server,
                        fail(EXIT_MOUNT, "%s: %s", shown_dir(server->args),
                                strerror(-rc)));
                detach(server);
                return NULL;
        }
        inherit(server);
        if (!server->args->foreground)
                leave_streams();
        send_verdict(server, EXIT_DONE);
        own_signals(&set);
        while (sigwait(&set, &sig))
                ;
        if (atomic_load(&server->ended))
                return NULL;
        detach(server);
        while (sigwait(&set, &sig))
                ;
        if (atomic_load(&server->ended))
                return NULL;
        _exit(EXIT_DONE);
}

static enum exit_code serve(struct server *server)
{
        pthread_t thread;
        sigset_t set;
        int rc;

        own_signals(&set);
        pthread_sigmask(SIG_BLOCK, &set, NULL);
        signal(SIGPIPE, SIG_IGN);
        if (server->args->swap) {
                rc = sheaf_mounts_unmount(server->args->dir, true);
                if (rc < 0)
                        return fail(EXIT_MOUNT,
                                "%s: cannot take the old mount away: %s",
                                server->args->dir, strerror(-rc));
        }
        rc = sheaf_fs_mount(server->fs, server->args->dir);
        if (rc < 0)
                return fail(EXIT_MOUNT,
                        "%s: cannot be mounted; `sheaf doctor` says what is "
                        "missing",
                        shown_dir(server->args));
        rc = pthread_create(&thread, NULL, attend, server);
        if (rc)
                return fail(EXIT_INTERNAL, "thread: %s", strerror(rc));
        rc = sheaf_fs_run(server->fs);
        /* The thread waits for a signal; this one means that all is over. */
        atomic_store(&server->ended, true);
        pthread_kill(thread, SIGTERM);
        pthread_join(thread, NULL);
        if (rc < 0)
                return fail(EXIT_MOUNT, "%s: connection lost: %s",
                        server->args->dir, strerror(-rc));
        return EXIT_DONE;
}

static void take_hold(struct server *server)
{
        struct mount_args *args = server->args;
        int rc;

        args->options.heir = args->swap || args->replace;
        if (!args->options.heir)
                return;
        rc = sheaf_heir_begin(
                shown_dir(args), server->verdict_fd, &server->heir);
        if (rc < 0)
                syslog(LOG_WARNING,
                        "%s: what jobs began there is not known: %s",
                        shown_dir(args), strerror(-rc));
}

static enum exit_code run(struct mount_args *args, int verdict_fd)
{
        struct server server = { .args = args, .verdict_fd = verdict_fd };
        struct sheaf_session *session = NULL;
        struct sheaf_dataset *dataset = NULL;
        struct sheaf_dataset_info info;
        struct sheaf_source source;
        enum exit_code code;
        int rc;

        openlog("sheaf-cachefs", LOG_PID, LOG_DAEMON);
        if (args->swap)
                code = EXIT_DONE; /* the place is the old mount's until then */
        else
                code = args->replace ? make_staging(args) : clear_place(args);
        if (!code)
                take_hold(&server);
        if (!code)
                code = open_dataset(args, &session, &dataset);
        if (!code) {
                sheaf_source_client(dataset, &info, &source);
                args->options.use_syslog = !args->foreground;
                rc = sheaf_fs_new(&source, &args->options, &server.fs);
                if (rc < 0)
                        code = fail(EXIT_INTERNAL, "%s", strerror(-rc));
        }
        if (!code)
                code = serve(&server);
        send_verdict(&server, code);
        sheaf_fs_free(server.fs);
        sheaf_heir_end(&server.heir);
        remove_staging(args);
        if (dataset)
                sheaf_dataset_close(dataset);
        if (session)
                sheaf_session_free(session);
        return code;
}

/* Waits for the child's verdict; a child that dies has given none. */
static int wait_verdict(int fd)
{
        uint8_t byte;
        ssize_t n;

        do
                n = read(fd, &byte, 1);
        while (n < 0 && errno == EINTR);
        if (n == 1)
                return byte;
        return (int)fail(EXIT_INTERNAL, "the mount process ended early");
}

int main(int argc, char **argv)
{
        struct mount_args args = { 0 };
        enum exit_code code = parse_args(argc, argv, &args);
        int verdict[2];

        if (code)
                return (int)code;
        if (args.foreground) {
                code = run(&args, -1);
                free_args(&args);
                return (int)code;
        }
        if (pipe2(verdict, O_CLOEXEC))
                return (int)fail(EXIT_INTERNAL, "pipe: %s", strerror(errno));

        pid_t pid = fork();

        if (pid < 0)
                return (int)fail(EXIT_INTERNAL, "fork: %s", strerror(errno));
        if (pid) {
                close(verdict[1]);
                free_args(&args);
                return wait_verdict(verdict[0]);
        }
        close(verdict[0]);
        setsid();
        if (chdir("/"))
                _exit(EXIT_INTERNAL);
        code = run(&args, verdict[1]);
        free_args(&args);
        return (int)code;
}
