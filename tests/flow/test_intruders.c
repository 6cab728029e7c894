/* SPDX-License-Identifier: Apache-2.0 */
/* Intruders: who wants to read what is not his, by paths, links, races at the
 * origin, grants, digests and handles; and who lends the daemon directories
 * that never answer. */
#include "tests/flow/hostile.h"
#include "proto/listing.h"

#include <jansson.h>
#include <linux/fuse.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>

TestSuite(intruders, .init = hostile_begin, .fini = flow_fini, .timeout = 120);

#define OWNER 1001
#define BYTES 30000

/* ---- races at the origin ---- */

/* Two names change places, over and over, by another user who may write in
 * that directory: what is listed and read there must never be what lies
 * outside. */
static void swap_for_ever(const char *a, const char *b)
{
        for (;;)
                (void)!syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b,
                        2 /* RENAME_EXCHANGE */);
}

/* Reads all that the dataset lists in d/; bytes of file 66 are the secret. */
static void read_what_there_is(size_t *good)
{
        struct sheaf_session *session;
        struct sheaf_dataset *ds;
        static uint8_t bytes[BYTES];
        uint64_t ordinal;

        if (flow_open("~1001/raced", &session, &ds))
                return;
        if (!sheaf_dataset_lookup(ds, "d/f", &ordinal) &&
                sheaf_read(ds, ordinal, bytes, BYTES, 0) == BYTES) {
                cr_assert_not(flow_stamp_check(bytes, 66, 0, BYTES),
                        "the secret was read");
                cr_assert(flow_stamp_check(bytes, 7, 0, BYTES), "wrong bytes");
                ++*good;
        }
        flow_close(session, ds);
}

static void make_race(void)
{
        flow_file(7, BYTES, "../raced/d/f");
        flow_file(66, BYTES, "../secret/f");
        /* Alike in all that an identity has but inode and ctime. */
        flow_ok("touch -r %s %s && chown -R %d %s %s && chmod 700 %s && "
                "chmod 777 %s && ln -s %s %s",
                flow_path("raced/d/f"), flow_path("secret/f"), OWNER,
                flow_path("raced"), flow_path("secret"), flow_path("secret"),
                flow_path("raced"), flow_path("secret"),
                flow_path("raced/link"));
}

Test(intruders, a_directory_swapped_for_a_link)
{
        size_t good = 0;
        pid_t pid;

        make_race();
        cr_assert_eq(
                flow_run_as(OWNER, 0, "sheaf add --share all --force raced %s",
                        flow_path("raced")),
                0, "%s", flow.last.err);
        pid = hostile_fork(HOSTILE_STRANGER);
        if (!pid)
                swap_for_ever(flow_path("raced/d"), flow_path("raced/link"));
        for (int round = 0; round < 12; round++) {
                (void)flow_run_as(OWNER, 0, "sheaf update raced");
                read_what_there_is(&good);
                (void)flow_run_as(OWNER, 0,
                        "sheaf warmup raced; sheaf warmup --evict raced");
                read_what_there_is(&good);
        }
        kill(pid, SIGKILL);
        flow_join(pid, 5);
        fprintf(stderr, "read %zu times in place\n", good);
        flow_ok("sheaf rm --force '~1001/raced'");
        hostile_end();
}

/* What the listing says of a directory is what was listed in it. */
Test(intruders, a_directory_swapped_for_another)
{
        pid_t pid;

        flow_file(7, BYTES, "../raced/d/f");
        flow_file(8, 2 * BYTES, "../raced/e/g");
        flow_ok("chown -R %d %s && chmod 777 %s", OWNER, flow_path("raced"),
                flow_path("raced"));
        pid = hostile_fork(HOSTILE_STRANGER);
        if (!pid)
                swap_for_ever(flow_path("raced/d"), flow_path("raced/e"));
        for (int round = 0; round < 12; round++) {
                struct sheaf_session *session;
                struct sheaf_dataset *ds;
                uint64_t ordinal;

                cr_assert_eq(flow_run_as(OWNER, 0, "sheaf add raced%d %s",
                                     round, flow_path("raced")),
                        0, "%s", flow.last.err);
                flow.last.out[0] = 0;
                snprintf(flow.last.out, 32, "~1001/raced%d", round);
                cr_assert_eq(flow_open(flow.last.out, &session, &ds), 0);
                /* Whichever it found under a name: a whole directory. */
                for (int i = 0; i < 2; i++) {
                        const char *dir = i ? "e" : "d";
                        char f[8], g[8];

                        snprintf(f, sizeof(f), "%s/f", dir);
                        snprintf(g, sizeof(g), "%s/g", dir);
                        cr_expect(sheaf_dataset_lookup(ds, f, &ordinal) ||
                                          sheaf_dataset_lookup(ds, g, &ordinal),
                                "both in one");
                }
                flow_close(session, ds);
        }
        kill(pid, SIGKILL);
        flow_join(pid, 5);
        for (int round = 0; round < 12; round++)
                flow_ok("sheaf rm --force '~1001/raced%d'", round);
        hostile_end();
}

/* The path that comes with a directory is a claim: after a restart what it
 * leads to is not served unless it is the same tree. */
Test(intruders, a_path_that_leads_elsewhere)
{
        struct peer p = greet();
        Sheaf__AddDataset add = SHEAF__ADD_DATASET__INIT;
        static const struct {
                const char *path;
                int rc; /* a claim has to be absolute */
        } claims[] = { { "/etc", 0 }, { "/proc/self/root/etc", 0 },
                { "../../../../etc", -ENOTDIR }, { "", -ENOTDIR } };
        int fd = open(flow.origin, O_RDONLY | O_DIRECTORY);
        char name[16];

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(claims); i++) {
                snprintf(name, sizeof(name), "claim%zu", i);
                add.name = name;
                add.origin.data = (uint8_t *)(uintptr_t)claims[i].path;
                add.origin.len = strlen(claims[i].path);
                cr_expect_eq(
                        call(&p,
                                envelope(&p, SHEAF__ENVELOPE__BODY_ADD_DATASET,
                                        &add),
                                &fd, 1),
                        claims[i].rc, "%s", claims[i].path);
        }
        close(fd);
        close(p.sock);
        flow_ok("sheaf warmup --evict data");
        hostile_daemon_away(true);
        flow_stop();
        flow_start();
        hostile_daemon_away(false);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(claims); i++)
                cr_expect_neq(flow_run("sheaf warmup claim%zu", i), 0, "%s: %s",
                        claims[i].path, flow.last.out);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(claims); i++)
                cr_expect_eq(!flow_run("sheaf rm --force claim%zu", i),
                        !claims[i].rc);
        hostile_end();
}

/* Paths in requests climb nowhere. */
Test(intruders, paths_that_climb)
{
        static const char *const paths[] = { "../../etc/passwd", "/etc/passwd",
                "f0/../../secret", "..", "./../..", "f0\n/../x" };
        struct peer p = greet();
        Sheaf__Warmup warmup = SHEAF__WARMUP__INIT;
        Sheaf__Evict evict = SHEAF__EVICT__INIT;
        Sheaf__CachedQuery query = SHEAF__CACHED_QUERY__INIT;

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(paths); i++) {
                ProtobufCBinaryData path = { strlen(paths[i]),
                        (uint8_t *)(uintptr_t)paths[i] };

                warmup.name = evict.name = query.name = (char *)"data";
                warmup.path = evict.path = query.path = &path;
                warmup.n_path = evict.n_path = query.n_path = 1;
                cr_expect_lt(call(&p,
                                     envelope(&p, SHEAF__ENVELOPE__BODY_WARMUP,
                                             &warmup),
                                     NULL, 0),
                        0, "warmup %s", paths[i]);
                cr_expect_lt(call(&p,
                                     envelope(&p, SHEAF__ENVELOPE__BODY_EVICT,
                                             &evict),
                                     NULL, 0),
                        0, "evict %s", paths[i]);
                cr_expect_lt(
                        call(&p,
                                envelope(&p, SHEAF__ENVELOPE__BODY_CACHED_QUERY,
                                        &query),
                                NULL, 0),
                        0, "query %s", paths[i]);
        }
        close(p.sock);
        hostile_end();
}

/* ---- what was not granted ---- */

static int open_version(struct peer *p, const char *name, const uint8_t *uuid)
{
        Sheaf__OpenDataset body = SHEAF__OPEN_DATASET__INIT;

        body.name = (char *)(uintptr_t)name;
        body.uuid.data = (uint8_t *)(uintptr_t)uuid;
        body.uuid.len = 16;
        body.map = true;
        return call(p, envelope(p, SHEAF__ENVELOPE__BODY_OPEN_DATASET, &body),
                NULL, 0);
}

/* A version's uuid, handles of others, numbers of arenas: no capabilities. */
static void try_names(const uint8_t *uuid)
{
        struct peer p = { .sock = sheaf_wire_connect(flow.socket) };
        Sheaf__PinGrant grant = SHEAF__PIN_GRANT__INIT;
        Sheaf__GetDigest digest = SHEAF__GET_DIGEST__INIT;
        uint64_t item = UINT64_C(1) << 24;
        Sheaf__Fetch fetch;

        HOSTILE_NEED(p.sock >= 0 && !hello(&p), 1);
        HOSTILE_NEED(open_version(&p, "data", uuid) == -ENOENT, 2);
        HOSTILE_NEED(open_version(&p, "private", uuid) == -ENOENT, 3);
        HOSTILE_NEED(open_version(&p, "~0/private", uuid) == -ENOENT, 4);
        for (uint32_t i = 0; i < 64; i++) {
                digest.handle = i;
                HOSTILE_NEED(
                        call(&p,
                                envelope(&p, SHEAF__ENVELOPE__BODY_GET_DIGEST,
                                        &digest),
                                NULL, 0) == -ESTALE,
                        5);
                HOSTILE_NEED(call(&p, fetch_of(&p, &fetch, i, &item, 1), NULL,
                                     0) == -ESTALE,
                        6);
                grant.arena = i;
                HOSTILE_NEED(
                        call(&p,
                                envelope(&p, SHEAF__ENVELOPE__BODY_PIN_GRANT,
                                        &grant),
                                NULL, 0) == -ENOENT,
                        7);
        }
        _exit(0);
}

Test(intruders, names_are_no_capabilities)
{
        struct peer p = greet();
        struct opened opened;
        const struct sheaf_listing_header *header;
        uint8_t uuid[16];
        pid_t pid;

        flow_ok("sheaf add private %s", flow.origin);
        cr_assert_eq(open_quietly(&p, "private", &opened), 0);
        header = mmap(NULL, 4096, PROT_READ, MAP_SHARED,
                opened.fds[opened.count - 3], 0);
        cr_assert_neq(header, MAP_FAILED);
        memcpy(uuid, header->uuid, 16);
        cr_assert_eq(open_version(&p, "private", uuid), 0, "the owner may");
        pid = hostile_fork(HOSTILE_STRANGER);
        if (!pid)
                try_names(uuid);
        hostile_join(pid, 20);
        close_opened(&opened);
        close(p.sock);
        flow_ok("sheaf rm --force private");
        hostile_end();
}

/* ---- sockets of grants ---- */

static void *swap_socket(void *arg)
{
        const char *socket = flow_path("own/sheafd.sock");
        atomic_bool *stop = arg;

        while (!atomic_load(stop)) {
                (void)!unlink(socket);
                (void)!symlink(flow_path("victim"), socket);
        }
        return NULL;
}

/* The daemon of root makes a socket in a directory of ours, and we put a link
 * to somebody else's file into its place. */
static void race_the_socket(void)
{
        atomic_bool stop = false;
        pthread_t thread;
        char command[512];

        HOSTILE_NEED(!pthread_create(&thread, NULL, swap_socket, &stop), 1);
        snprintf(command, sizeof(command),
                "sheaf grant mine --dir %s >/dev/null 2>&1", flow_path("own"));
        while (!hostile_long_enough())
                (void)!system(command);
        atomic_store(&stop, true);
        pthread_join(thread, NULL);
}

Test(intruders, a_link_in_place_of_the_socket)
{
        struct stat st;
        pid_t pid;

        flow_ok("mkdir %s && chown %d %s && install -m 600 /dev/null %s",
                flow_path("own"), HOSTILE_UID, flow_path("own"),
                flow_path("victim"));
        cr_assert_eq(
                flow_run_as(HOSTILE_UID, 0, "sheaf add mine %s", flow.origin),
                0);
        pid = hostile_fork(HOSTILE_STRANGER);
        if (!pid) {
                race_the_socket();
                _exit(0);
        }
        hostile_join(pid, 30);
        cr_assert_eq(stat(flow_path("victim"), &st), 0);
        cr_expect_eq(st.st_mode & 07777, 0600, "mode %o", st.st_mode);
        cr_expect(S_ISREG(st.st_mode));
        /* A directory of root's, by a link in place of his own. */
        flow_ok("mkdir %s", flow_path("roots"));
        cr_assert_neq(
                flow_run_as(HOSTILE_UID, 0,
                        "ln -sfn %s %s/dir && sheaf grant mine "
                        "--dir %s/dir",
                        flow_path("roots"), flow_path("own"), flow_path("own")),
                0);
        cr_expect_neq(access(flow_path("roots/sheafd.sock"), F_OK), 0);
        flow_ok("sheaf rm --force '~%d/mine'", HOSTILE_UID);
        hostile_end();
}

/* ---- directories that never answer ---- */

/* A FUSE file system whose server answers the first message and no other. */
static int mount_mute(const char *dir)
{
        static uint8_t request[1 << 17];
        struct {
                struct fuse_out_header head;
                struct fuse_init_out init;
        } reply = { 0 };
        const struct fuse_in_header *in = (const void *)request;
        char options[128];
        int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

        cr_assert_geq(fd, 0);
        cr_assert(!mkdir(dir, 0755));
        snprintf(options, sizeof(options),
                "fd=%d,rootmode=40755,user_id=%d,group_id=%d,allow_other,"
                "default_permissions",
                fd, HOSTILE_UID, HOSTILE_UID);
        cr_assert(!mount("mute", dir, "fuse", 0, options), "%m");
        cr_assert_gt(read(fd, request, sizeof(request)), 0);
        cr_assert_eq(in->opcode, FUSE_INIT);
        reply.head.len = sizeof(reply);
        reply.head.unique = in->unique;
        reply.init.major = FUSE_KERNEL_VERSION;
        reply.init.minor = FUSE_KERNEL_MINOR_VERSION;
        reply.init.max_write = 4096;
        cr_assert_eq(write(fd, &reply, sizeof(reply)), (ssize_t)sizeof(reply));
        return fd;
}

static void lend(int dir_fd, int kind)
{
        struct peer p = { .sock = sheaf_wire_connect(flow.socket) };
        Sheaf__AddDataset add = SHEAF__ADD_DATASET__INIT;
        Sheaf__Share share = SHEAF__SHARE__INIT;
        Sheaf__UpdateDataset update = SHEAF__UPDATE_DATASET__INIT;
        Sheaf__GrantSocket grant = SHEAF__GRANT_SOCKET__INIT;
        const char *dir = flow_path("mute");
        char *names[1] = { (char *)"mine" };
        Sheaf__Envelope env;

        HOSTILE_NEED(p.sock >= 0 && !hello(&p), 1);
        add.name = (char *)"mute";
        add.share = share.share = (char *)(kind ? "all" : "");
        add.origin.data = grant.dir.data = (uint8_t *)(uintptr_t)dir;
        add.origin.len = grant.dir.len = strlen(dir);
        update.origin = add.origin;
        share.name = update.name = (char *)"mine";
        grant.dataset = names;
        grant.n_dataset = 1;
        if (kind < 2)
                env = envelope(&p, SHEAF__ENVELOPE__BODY_ADD_DATASET, &add);
        else if (kind == 2)
                env = envelope(&p, SHEAF__ENVELOPE__BODY_SHARE, &share);
        else if (kind == 3)
                env = envelope(
                        &p, SHEAF__ENVELOPE__BODY_UPDATE_DATASET, &update);
        else
                env = envelope(&p, SHEAF__ENVELOPE__BODY_GRANT_SOCKET, &grant);
        HOSTILE_NEED(call(&p, env, &dir_fd, 1) < 0, 10 + kind);
        _exit(0);
}

Test(intruders, directories_that_never_answer)
{
        int fd = mount_mute(flow_path("mute")), dir_fd;
        pid_t pids[5];

        cr_assert_eq(
                flow_run_as(HOSTILE_UID, 0, "sheaf add mine %s", flow.origin),
                0);
        dir_fd = open(flow_path("mute"), O_PATH | O_DIRECTORY);
        cr_assert_geq(dir_fd, 0, "%m");
        for (int kind = 0; kind < 5; kind++) {
                pids[kind] = hostile_fork(HOSTILE_STRANGER);
                if (!pids[kind])
                        lend(dir_fd, kind);
        }
        /* The daemon answers all others meanwhile. */
        while (!hostile_long_enough()) {
                cr_assert(flow_live());
                hostile_check_others("data");
        }
        for (int kind = 0; kind < 5; kind++)
                cr_expect_eq(flow_join(pids[kind], 40), 0);
        /* Ends what hangs. */
        close(fd);
        close(dir_fd);
        umount2(flow_path("mute"), MNT_DETACH);
        flow_ok("sheaf rm --force '~%d/mine'", HOSTILE_UID);
        hostile_end();
}

/* ---- files that never close ---- */

/* Serves a file system that is one file: all is answered but its FLUSH, for
 * which who closes it waits. */
static void serve_clinging(int fd)
{
        static uint8_t request[1 << 17];
        struct {
                struct fuse_out_header head;
                union {
                        struct fuse_init_out init;
                        struct fuse_attr_out attr;
                        struct fuse_open_out open;
                };
        } reply;
        const struct fuse_in_header *in = (const void *)request;

        while (read(fd, request, sizeof(request)) > 0) {
                reply = (typeof(reply)){ .head.unique = in->unique };
                reply.head.len = sizeof(reply.head);
                switch (in->opcode) {
                case FUSE_INIT:
                        reply.head.len += sizeof(reply.init);
                        reply.init.major = FUSE_KERNEL_VERSION;
                        reply.init.minor = FUSE_KERNEL_MINOR_VERSION;
                        reply.init.max_write = 4096;
                        break;
                case FUSE_GETATTR:
                        reply.head.len += sizeof(reply.attr);
                        reply.attr.attr.mode = S_IFREG | 0666;
                        reply.attr.attr.nlink = 1;
                        break;
                case FUSE_OPEN:
                        reply.head.len += sizeof(reply.open);
                        break;
                case FUSE_FLUSH:
                case FUSE_INTERRUPT:
                        continue;
                default:
                        reply.head.error = -ENOSYS;
                }
                (void)!write(fd, &reply, reply.head.len);
        }
        _exit(0);
}

static pid_t mount_clinging(const char *file)
{
        char options[128];
        int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
        pid_t pid;

        cr_assert_geq(fd, 0);
        flow_ok("touch %s", file);
        snprintf(options, sizeof(options),
                "fd=%d,rootmode=100666,user_id=%d,group_id=%d,allow_other", fd,
                HOSTILE_UID, HOSTILE_UID);
        cr_assert(!mount("clinging", file, "fuse", 0, options), "%m");
        pid = flow_fork(0, 0);
        if (!pid)
                serve_clinging(fd);
        close(fd);
        return pid;
}

static Sheaf__Envelope clinging_request(struct peer *p, int kind)
{
        static Sheaf__AddDataset add = SHEAF__ADD_DATASET__INIT;
        static Sheaf__ForkNote note = SHEAF__FORK_NOTE__INIT;
        static Sheaf__GetStatus status = SHEAF__GET_STATUS__INIT;
        static Sheaf__GrantSocket grant = SHEAF__GRANT_SOCKET__INIT;
        static char *names[1] = { (char *)"data" };

        add.name = (char *)"clings";
        add.origin.data = grant.dir.data = (uint8_t *)(uintptr_t)flow.base;
        add.origin.len = grant.dir.len = strlen(flow.base);
        grant.dataset = names;
        grant.n_dataset = 1;
        if (kind == 0)
                return envelope(p, SHEAF__ENVELOPE__BODY_ADD_DATASET, &add);
        if (kind == 1)
                return envelope(p, SHEAF__ENVELOPE__BODY_FORK_NOTE, &note);
        if (kind == 2)
                return envelope(p, SHEAF__ENVELOPE__BODY_GRANT_SOCKET, &grant);
        return envelope(p, SHEAF__ENVELOPE__BODY_GET_STATUS, &status);
}

/* With requests that bring a descriptor, with one that does not, and with
 * more than any brings. Starts no program, which would wait for the file as
 * well. */
static void send_clinging(const char *file)
{
        int fds[SHEAF_WIRE_FDS_MAX], fd = open(file, O_RDONLY | O_CLOEXEC);

        HOSTILE_NEED(fd >= 0, 2);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(fds); i++)
                fds[i] = fd;
        for (int i = 0; i < 10 || !hostile_long_enough(); i++) {
                struct peer p = { .sock = sheaf_wire_connect(flow.socket) };
                bool many = i % 5 == 4;

                if (p.sock < 0)
                        continue;
                if (!hello(&p))
                        (void)call(&p, clinging_request(&p, i % 5), fds,
                                many ? SHEAF_WIRE_FDS_MAX : 1);
                close(p.sock);
        }
        /* Its own close waits, too: the test ends the server. */
        _exit(0);
}

Test(intruders, files_that_never_close)
{
        char file[PATH_MAX];
        pid_t server, pid, old;
        long fds;

        snprintf(file, sizeof(file), "%s", flow_path("clinging"));
        server = mount_clinging(file);
        pid = hostile_fork(HOSTILE_STRANGER);
        if (!pid)
                send_clinging(file);
        while (!hostile_long_enough()) {
                cr_assert(flow_live());
                /* A process that is started has copies of all descriptors. */
                flow_run("kill -KILL $(pgrep -P %d -x sheaf-reader)",
                        (int)flow.daemon);
                flow_ok("sheaf warmup --evict --quiet data");
                hostile_check_others("data");
        }
        cr_assert(flow_until(
                20, !flow_run("grep -q 'file does not close' %s", flow.log)));
        fds = flow_fds(flow.daemon);
        cr_assert_leq(fds, 200, "%ld descriptors", fds);
        /* Its threads outlive it, but hold neither cache nor socket. */
        old = flow.daemon;
        hostile_daemon_away(true);
        kill(old, SIGTERM);
        cr_assert(flow_until(
                30, !flow_run("flock -n %s true", flow_path("cache"))));
        cr_assert_eq(flow_wait(old, 0), -1);
        flow_start();
        hostile_daemon_away(false);
        hostile_check_others("data");
        kill(server, SIGKILL);
        flow_join(server, 20);
        cr_expect_eq(flow_wait(old, 20), 0);
        cr_expect_eq(flow_join(pid, 40), 0);
        umount2(file, MNT_DETACH);
        hostile_end();
}

/* ---- sockets that linger ---- */

/* A TCP socket with bytes that nobody takes, whose last holder waits an hour
 * for that. -1 without a network. */
static int lingering(void)
{
        struct sockaddr_in to = { .sin_family = AF_INET,
                .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        struct linger hour = { .l_onoff = 1, .l_linger = 3600 };
        int little = 4096;
        static int listener = -1;
        static char bytes[1 << 16];
        socklen_t len = sizeof(to);
        int sock;

        if (listener < 0)
                listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (getsockname(listener, (struct sockaddr *)&to, &len))
                return -1;
        if (!to.sin_port) {
                to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
                if (setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &little,
                            sizeof(little)) ||
                        bind(listener, (struct sockaddr *)&to, len) ||
                        listen(listener, 1000) ||
                        getsockname(listener, (struct sockaddr *)&to, &len))
                        return -1;
        }
        sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(sock, (struct sockaddr *)&to, len) ||
                setsockopt(
                        sock, SOL_SOCKET, SO_SNDBUF, &little, sizeof(little)) ||
                setsockopt(sock, SOL_SOCKET, SO_LINGER, &hour, sizeof(hour))) {
                close(sock);
                return -1;
        }
        while (send(sock, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
                ;
        return sock;
}

/* Received, among too many, unread behind junk, and with the first message;
 * the daemon's is the last copy each time. */
static void send_lingering(int kind)
{
        struct peer p = { .sock = sheaf_wire_connect(flow.socket) };
        int fds[5], sock = lingering();

        HOSTILE_NEED(sock >= 0, 2);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(fds); i++)
                fds[i] = sock;
        if (p.sock >= 0 && (kind == 3 || !hello(&p))) {
                if (kind == 2)
                        (void)!sheaf_wire_send_record(
                                p.sock, "\xff", 1, NULL, 0);
                (void)!sheaf_wire_send_record(
                        p.sock, "\xff", 1, fds, kind == 1 ? 5 : 1);
        }
        /* Not close(), which would wait where the daemon was first. */
        _exit(0);
}

Test(intruders, sockets_that_linger)
{
        int sock = lingering();
        pid_t pid;

        if (sock < 0) {
                fprintf(stderr, "SKIP: %s: no network: %s\n", FLOW_NAME,
                        strerror(errno));
                hostile_end();
                return;
        }
        pid = hostile_fork(HOSTILE_STRANGER);
        if (!pid) {
                for (int kind = 0; !hostile_long_enough();
                        kind = (kind + 1) % 4) {
                        pid = fork();
                        if (!pid)
                                send_lingering(kind);
                        HOSTILE_NEED(waitpid(pid, NULL, 0) == pid, 1);
                }
                _exit(0);
        }
        while (!hostile_long_enough()) {
                flow_ok("sheaf warmup --evict --quiet data");
                hostile_check_others("data");
        }
        cr_expect_eq(flow_join(pid, 40), 0);
        hostile_end();
}

/* ---- one's own reader ---- */

/* Readers of a user run as he does: he may stop and kill his own, and harms
 * himself alone. */
static void harass_readers(void)
{
        char command[256];

        snprintf(command, sizeof(command),
                "for p in $(pgrep -u %d -x sheaf-reader); do "
                "kill -STOP $p; kill -KILL $p; done 2>/dev/null",
                HOSTILE_UID);
        while (!hostile_long_enough()) {
                (void)!system(command);
                (void)!system("timeout 3 sheaf warmup mine >/dev/null 2>&1");
        }
}

Test(intruders, readers_are_killed_by_their_owner)
{
        pid_t pid;

        cr_assert_eq(
                flow_run_as(HOSTILE_UID, 0, "sheaf add mine %s", flow.origin),
                0);
        pid = hostile_fork(HOSTILE_STRANGER);
        if (!pid) {
                harass_readers();
                _exit(0);
        }
        while (!hostile_long_enough()) {
                flow_ok("sheaf warmup --evict data");
                hostile_check_others("data");
        }
        hostile_join(pid, 30);
        cr_assert_eq(flow_run_as(HOSTILE_UID, 0, "sheaf warmup mine"), 0, "%s",
                flow.last.err);
        flow_ok("sheaf rm --force '~%d/mine'", HOSTILE_UID);
        hostile_end();
}
