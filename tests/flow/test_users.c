/* SPDX-License-Identifier: Apache-2.0 */
/* Who may read what, each cell of the table a test of its own: by library,
 * by mount, by command line, by a grant's socket; and a daemon of an ordinary
 * user. The users exist by number only. */
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

TestSuite(users, .init = flow_init, .fini = flow_fini, .timeout = 60);

#define BYTES 30000

enum {
        OWNER = 1001,
        MEMBER = 1002, /* of the group */
        OTHER = 1003,
        NOBODY = 65534,
        GROUP = 2001,
};

static gid_t group_of(uid_t uid)
{
        return uid == OWNER || uid == MEMBER ? GROUP : 0;
}

/* A dataset of OWNER in a daemon of root. */
static void setup(const char *share)
{
        flow_file(1, BYTES, "f");
        flow_file(2, BYTES, "d/g");
        flow_start();
        cr_assert_eq(flow_run_as(OWNER, GROUP, "sheaf add data %s %s %s",
                             flow.origin, *share ? "--share" : "", share),
                0, "%s", flow.last.err);
}

/* ---- the table ---- */

enum way {
        LIBRARY,
        COMMAND,
        MOUNT,
        WAYS
};

struct cell {
        int share; /* 0 owner, 1 group, 2 all */
        uid_t who;
        enum way way;
        bool allowed;
};

static const char *const shares[] = { "", "group:2001", "all" };

static int errno_by_library(uid_t who)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        pid_t pid = flow_fork(who, group_of(who));

        if (!pid) {
                int rc = flow_open("data", &session, &dataset);

                if (!rc)
                        rc = flow_check_view(dataset, "f", 1, BYTES);
                _exit(-rc);
        }
        return flow_join(pid, 10);
}

static void by_library(const struct cell *cell)
{
        int rc = errno_by_library(cell->who);

        cr_assert_eq(rc, cell->allowed ? 0 : ENOENT, "%s", strerror(rc));
}

static void by_command(const struct cell *cell)
{
        uid_t who = cell->who;
        gid_t gid = group_of(who);
        bool sees;

        cr_assert_eq(flow_run_as(who, gid, "sheaf ls --json"), 0, "%s",
                flow.last.err);
        sees = strstr(flow.last.out, "\"data\"");
        cr_assert_eq(sees, cell->allowed, "%s", flow.last.out);
        cr_assert_eq(flow_run_as(who, gid, "sheaf warmup --check data"),
                cell->allowed ? 0 : 4, "%s", flow.last.err);
        /* To change it is for the owner and root. */
        if (who != OWNER && who != 0) {
                cr_assert_eq(flow_run_as(who, gid, "sheaf rm data"), 4, "%d %s",
                        flow.last.rc, flow.last.err);
                cr_assert_eq(flow_run_as(who, gid, "sheaf share data all"), 4);
                cr_assert_eq(flow_run_as(who, gid, "sheaf update data"), 4);
                cr_assert_eq(
                        flow_run_as(who, gid, "sheaf grant data --dir /tmp"),
                        4);
        }
}

static void by_mount(const struct cell *cell)
{
        pid_t pid;
        int rc;

        flow_ok("sheaf mount --allow-other data %s", flow.mount);
        pid = flow_fork(cell->who, group_of(cell->who));
        if (!pid) {
                rc = flow_check(flow_path("mount/d/g"), 2, BYTES, 4096);
                if (!rc)
                        rc = flow_check(flow_path("mount/f"), 1, BYTES, 4096);
                _exit(-rc);
        }
        rc = flow_join(pid, 10);
        cr_assert_eq(rc, cell->allowed ? 0 : EACCES, "%s", strerror(rc));
        flow_umount(flow.mount);
}

ParameterizedTestParameters(users, table)
{
        static struct cell cells[3 * 4 * WAYS];
        static const uid_t who[] = { 0, OWNER, MEMBER, OTHER };
        size_t n = 0;

        for (int share = 0; share < 3; share++)
                for (size_t w = 0; w < SHEAF_ARRAY_LEN(who); w++)
                        for (int way = 0; way < WAYS; way++)
                                cells[n++] = (struct cell){ share, who[w],
                                        (enum way)way,
                                        w < 2 || share == 2 ||
                                                (share == 1 && w == 2) };
        return cr_make_param_array(struct cell, cells, n);
}

ParameterizedTest(struct cell *cell, users, table)
{
        setup(shares[cell->share]);
        if (cell->way == LIBRARY)
                by_library(cell);
        else if (cell->way == COMMAND)
                by_command(cell);
        else
                by_mount(cell);
        flow_stop();
}

/* ---- what others can tell ---- */

/* The answer of @command, in which $N is @name. The caller frees. */
static char *answer(const char *command, const char *name, int *ret_rc)
{
        char *text;

        *ret_rc = flow_run_as(OTHER, 0, "N=%s; %s", name, command);
        cr_assert_geq(asprintf(&text, "%s%s", flow.last.out, flow.last.err), 0);
        return text;
}

/* The same question about a name that exists and one that does not. */
static void same_answer(const char *command)
{
        int have_rc, none_rc;
        sheaf_autofree char *have = answer(command, "hidden", &have_rc);
        sheaf_autofree char *none = answer(command, "absent", &none_rc);
        char *at;

        while ((at = strstr(have, "hidden")))
                memcpy(at, "absent", 6);
        cr_assert_str_eq(have, none);
        cr_assert_eq(have_rc, none_rc);
        cr_assert_neq(have_rc, 0);
}

Test(users, existence_is_not_told)
{
        static const char *const lines[] = { "sheaf ls $N", "sheaf rm $N",
                "sheaf stats $N", "sheaf warmup $N", "sheaf verify $N",
                "sheaf seal $N", "sheaf update $N", "sheaf share $N all",
                "sheaf grant $N --dir /tmp", "sheaf ls \"~1001/$N\"",
                "quickread --dataset $N", "sheaf warmup --evict $N",
                "sheaf warmup --check $N" };

        flow_file(1, BYTES, "f");
        flow_start();
        cr_assert_eq(flow_run_as(OWNER, 0,
                             "sheaf add hidden %s && "
                             "sheaf warmup hidden",
                             flow.origin),
                0);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(lines); i++)
                same_answer(lines[i]);
        cr_assert_eq(flow_run_as(OTHER, 0,
                             "sheaf stats --json; "
                             "sheaf status --json; "
                             "sheaf ls --json"),
                0);
        cr_assert(!strstr(flow.last.out, "hidden"), "%s", flow.last.out);
        /* A sum over everybody's chunks would tell who has equal ones. */
        cr_assert_eq(flow_run_as(OTHER, 0,
                             "sheaf stats --json; sheaf status --json"),
                0);
        cr_assert(!strstr(flow.last.out, "payload_bytes"), "%s", flow.last.out);
        cr_assert(!strstr(flow.last.out, "disk.chunks"), "%s", flow.last.out);
        cr_assert(!strstr(flow.last.out, "disk.bytes"), "%s", flow.last.out);
        cr_assert_gt(flow_stat("disk.payload_bytes"), 0, "root sees it");
        /* The name is free for others, too. */
        cr_assert_eq(flow_run_as(OTHER, 0, "sheaf add hidden %s", flow.origin),
                0, "%s", flow.last.err);
        flow_stop();
}

Test(users, detached_origins_of_others_are_not_told)
{
        flow_file(1, BYTES, "in/f");
        flow_start();
        cr_assert_eq(
                flow_run_as(OWNER, 0, "sheaf add hidden %s/in", flow.origin),
                0);
        flow_stop();
        flow_ok("mv %s/in %s/out && mkdir %s/in", flow.origin, flow.origin,
                flow.origin);
        flow_start();
        cr_assert_neq(flow_run_as(OWNER, 0, "sheaf warmup hidden"), 0);
        cr_assert_eq(flow_run_as(OWNER, 0, "sheaf status"), 0);
        cr_assert(strstr(flow.last.out, "'hidden' is detached"), "%s",
                flow.last.out);
        cr_assert_eq(flow_run_as(OTHER, 0, "sheaf status"), 0);
        cr_assert(!strstr(flow.last.out, "detached"), "%s", flow.last.out);
        flow_stop();
}

/* ---- what time tells ---- */

#define TOLD_FILES 4000
#define TOLD_BYTES 20000
/* By chance once in 150,000 times. */
#define TOLD_Z 4.5

enum told {
        NOBODYS,
        ANOTHERS, /* on disk, for another user */
        HIS,      /* he has read it before */
};

struct told_file {
        uint32_t index;
        enum told whose;
        double seconds;
};

static uint32_t told_rng = 2463534242;

static uint32_t told_pick(uint32_t n)
{
        told_rng ^= told_rng << 13;
        told_rng ^= told_rng >> 17;
        told_rng ^= told_rng << 5;
        return told_rng % n;
}

static int by_seconds(const void *a, const void *b)
{
        double x = ((const struct told_file *)a)->seconds;
        double y = ((const struct told_file *)b)->seconds;

        return x < y ? -1 : x > y;
}

/* By the rank test of Mann and Whitney: how many standard deviations the files
 * of @a come sooner than those of @b. @files ascend. */
static double sooner(const struct told_file *files, enum told a, enum told b)
{
        double na = 0, nb = 0, before = 0;

        for (size_t i = 0; i < TOLD_FILES; i++) {
                na += files[i].whose == a;
                nb += files[i].whose == b;
                if (files[i].whose == b)
                        before += na;
        }
        return (before - na * nb / 2) / sqrt(na * nb * (na + nb + 1) / 12);
}

static double middle_us(const struct told_file *files, enum told whose)
{
        size_t count = 0, half = 0;

        for (size_t i = 0; i < TOLD_FILES; i++)
                count += files[i].whose == whose;
        for (size_t i = 0; i < TOLD_FILES; i++)
                if (files[i].whose == whose && half++ == count / 2)
                        return files[i].seconds * 1e6;
        return 0;
}

/* Until the daemon has answered a question after it, too: what it still had to
 * do for the file comes before that. */
static int told_read(struct sheaf_session *session,
        struct sheaf_dataset *dataset, struct told_file *file)
{
        struct sheaf_dataset *none;
        struct sheaf_view view;
        double start = flow_now();
        int rc = sheaf_view_file(dataset, file->index, &view);

        if (rc)
                return rc;
        if (sheaf_dataset_open(session, "absent", &none) != -ENOENT)
                rc = -EPROTO;
        file->seconds = flow_now() - start;
        if (!flow_stamp_check(
                    view.pieces[0].iov_base, file->index + 1, 0, TOLD_BYTES))
                rc = -EBADMSG;
        sheaf_view_release(&view);
        return rc;
}

static _Noreturn void read_all_once(struct told_file *files)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        int rc = flow_open("mine", &session, &dataset);

        for (size_t i = 0; !rc && i < TOLD_FILES; i++)
                if (files[i].whose == HIS)
                        rc = told_read(session, dataset, &files[i]);
        for (size_t i = 0; !rc && i < TOLD_FILES; i++)
                rc = told_read(session, dataset, &files[i]);
        _exit(-rc);
}

/* Who reads files of his own for the first time cannot tell from how soon they
 * come which of them the cache holds for somebody else. */
Test(users, time_does_not_tell_what_others_have)
{
        size_t bytes = TOLD_FILES * sizeof(struct told_file);
        struct told_file *files = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        double anothers, his;
        pid_t pid;

        cr_assert_neq(files, MAP_FAILED);
        told_rng ^= (uint32_t)getpid();
        printf("flow.users: seed %u\n", told_rng);
        for (uint32_t i = 0; i < TOLD_FILES; i++) {
                uint32_t at = told_pick(i + 1); /* in an order of chance */

                files[i] = files[at];
                files[at].index = i;
                files[at].whose = told_pick(20) ? told_pick(2) : HIS;
                flow_file(i + 1, TOLD_BYTES, "mine/f%04u", i);
                if (files[at].whose == ANOTHERS)
                        flow_file(i + 1, TOLD_BYTES, "others/f%04u", i);
        }
        flow_sleep(2.1); /* of younger ones each is waited for */
        flow_start();
        cr_assert_eq(flow_run_as(OWNER, 0,
                             "sheaf add others %s/others && "
                             "sheaf warmup --disk --quiet others",
                             flow.origin),
                0, "%s", flow.last.err);
        cr_assert_eq(
                flow_run_as(OTHER, 0, "sheaf add mine %s/mine", flow.origin), 0,
                "%s", flow.last.err);
        pid = flow_fork(OTHER, 0);
        if (!pid)
                read_all_once(files);
        cr_assert_eq(flow_join(pid, 40), 0);
        qsort(files, TOLD_FILES, sizeof(*files), by_seconds);
        anothers = sooner(files, ANOTHERS, NOBODYS);
        his = sooner(files, HIS, NOBODYS);
        printf("flow.users: %.0f us what nobody has, %.0f another, %.0f he: "
               "%+.2f and %+.2f standard deviations sooner\n",
                middle_us(files, NOBODYS), middle_us(files, ANOTHERS),
                middle_us(files, HIS), anothers, his);
        cr_assert_lt(fabs(anothers), TOLD_Z, "%.2f", anothers);
        cr_assert_gt(his, TOLD_Z, "the test sees nothing: %.2f", his);
        munmap(files, bytes);
        flow_stop();
}

Test(users, equal_bytes_are_fetched_with_each_owners_rights)
{
        double origin;

        flow_file(1, BYTES, "f");
        flow_start();
        cr_assert_eq(flow_run_as(OWNER, 0,
                             "sheaf add data %s && "
                             "sheaf warmup data --disk",
                             flow.origin),
                0);
        origin = flow_stat("origin.bytes");
        cr_assert_eq(flow_run_as(OTHER, 0,
                             "sheaf add mine %s && "
                             "sheaf warmup mine --disk",
                             flow.origin),
                0);
        cr_assert_eq(flow_stat("origin.bytes") - origin, BYTES,
                "who never read it must read it: no oracle");
        cr_assert_eq(flow_stat("disk.payload_bytes"), BYTES,
                "stored once all the same");
        flow_stop();
}

Test(users, origin_is_read_as_the_owner)
{
        flow_file(1, BYTES, "f");
        cr_assert_eq(flow_run("chmod 600 %s/f", flow.origin), 0);
        flow_start();
        cr_assert_eq(
                flow_run_as(OWNER, 0, "sheaf add data %s", flow.origin), 0);
        cr_assert_neq(flow_run_as(OWNER, 0, "sheaf warmup data"), 0,
                "a file of root was read for %d", OWNER);
        cr_assert(!strstr(flow.last.out, " warm"), "nothing is: %s",
                flow.last.out);
        cr_assert_eq(flow_stat("origin.bytes"), 0);
        cr_assert_eq(flow_run("chown 1001 %s/f && touch %s/f", flow.origin,
                             flow.origin),
                0);
        cr_assert_eq(flow_run_as(OWNER, 0,
                             "sheaf update data && "
                             "sheaf warmup data"),
                0, "%s%s", flow.last.out, flow.last.err);
        flow_stop();
}

Test(users, sharing_private_files_needs_force)
{
        flow_file(1, BYTES, "open/f");
        flow_file(2, BYTES, "open/secret");
        cr_assert_eq(flow_run("chown -R 1001 %s && chmod 600 %s/open/secret",
                             flow.origin, flow.origin),
                0);
        flow_start();
        cr_assert_neq(flow_run_as(OWNER, 0, "sheaf add --share all data %s",
                              flow.origin),
                0);
        cr_assert(strstr(flow.last.err, "open/secret"), "%s", flow.last.err);
        cr_assert(strstr(flow.last.err, "--force"), "%s", flow.last.err);
        cr_assert_eq(
                flow_run_as(OWNER, 0, "sheaf add data %s", flow.origin), 0);
        cr_assert_neq(flow_run_as(OWNER, 0, "sheaf share data all"), 0);
        cr_assert(strstr(flow.last.err, "open/secret"), "%s", flow.last.err);
        cr_assert(strstr(flow.last.err, "--force"), "%s", flow.last.err);
        cr_assert_eq(errno_by_library(OTHER), ENOENT);
        flow_ok("chmod 644 %s/open/secret", flow.origin);
        cr_assert_eq(flow_run_as(OWNER, 0,
                             "sheaf update data && sheaf share data all"),
                0, "%s", flow.last.err);
        flow_ok("chmod 600 %s/open/secret", flow.origin);
        cr_assert_eq(flow_run_as(OWNER, 0, "sheaf update data"), 0);
        cr_assert(strstr(flow.last.err, "open/secret") ||
                          strstr(flow.last.out, "open/secret"),
                "an update tells what it shares");
        flow_stop();
}

Test(users, a_directory_that_the_owner_cannot_list_is_no_empty_one)
{
        flow_file(1, BYTES, "open/f");
        flow_file(2, BYTES, "closed/f");
        flow_ok("chown 1001 %s/closed && chmod 700 %s/closed", flow.origin,
                flow.origin);
        flow_start();
        /* Root's reader has no more rights than the modes give it. */
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        flow_ok("cat %s/open/f >/dev/null && stat %s/closed", flow.mount,
                flow.mount);
        cr_assert_neq(flow_run("ls %s/closed", flow.mount), 0);
        cr_assert(strstr(flow.last.err, "ermission"), "%s", flow.last.err);
        cr_assert_neq(flow_run("cat %s/closed/f", flow.mount), 0);
        cr_assert(strstr(flow.last.err, "ermission"), "%s", flow.last.err);
        cr_assert_neq(flow_run("sheaf seal data"), 0);
        flow_ok("chmod 755 %s/closed && sheaf update data && sheaf seal data",
                flow.origin);
        flow_umount(flow.mount);
        flow_stop();
}

Test(users, sharing_what_others_cannot_reach_needs_force)
{
        flow_file(1, BYTES, "inner/f");
        cr_assert_eq(flow_run("chown -R 1001 %s && chmod 700 %s", flow.origin,
                             flow.origin),
                0);
        flow_start();
        cr_assert_eq(
                flow_run_as(OWNER, 0, "sheaf add data %s/inner", flow.origin),
                0);
        cr_assert_neq(flow_run_as(OWNER, 0, "sheaf share data all"), 0);
        cr_assert(strstr(flow.last.err, "--force"), "%s", flow.last.err);
        cr_assert_neq(
                flow_run_as(OWNER, 0, "sheaf add --share all more %s/inner",
                        flow.origin),
                0);
        cr_assert_eq(errno_by_library(OTHER), ENOENT);
        cr_assert_eq(flow_run_as(OWNER, 0, "sheaf share --force data all"), 0);
        cr_assert_eq(flow_run_as(OTHER, 0, "sheaf warmup data"), 0, "%s",
                flow.last.err);
        /* The last reader's connection may end a moment later. */
        cr_assert(flow_until(20,
                          flow_run_as(OWNER, 0, "sheaf share data owner") == 0),
                "%s", flow.last.err);
        cr_assert_eq(errno_by_library(OTHER), ENOENT);
        flow_stop();
}

/* Of a mount the kernel decides, by the modes: as for all others. */
Test(users, unmapped_uid_is_refused)
{
        const struct cell allowed = { .who = NOBODY, .allowed = true };
        const struct cell denied = { .who = NOBODY };

        setup("all");
        cr_assert_eq(flow_run_as(NOBODY, 0, "sheaf ls"), 3, "%d: %s",
                flow.last.rc, flow.last.err);
        cr_assert_neq(errno_by_library(NOBODY), 0);
        cr_assert_eq(errno_by_library(OTHER), 0);
        by_mount(&allowed);
        cr_assert(flow_until(20, flow_run_as(OWNER, GROUP,
                                         "sheaf share data owner") == 0),
                "%s", flow.last.err);
        by_mount(&denied);
        flow_stop();
}

/* ---- grants ---- */

static void make_grant(const char *dir, char socket[PATH_MAX], char id[64])
{
        json_t *root;

        cr_assert_eq(
                flow_run_as(OWNER, 0, "sheaf grant data --dir %s --json", dir),
                0, "%s", flow.last.err);
        root = json_loads(flow.last.out, 0, NULL);
        cr_assert(root, "%s", flow.last.out);
        snprintf(socket, PATH_MAX, "%s",
                json_string_value(json_object_get(root, "socket")));
        snprintf(id, 64, "%s", json_string_value(json_object_get(root, "id")));
        json_decref(root);
}

Test(users, grant)
{
        const char *dir = flow_path("granted");
        char socket[PATH_MAX], id[64];

        setup("");
        cr_assert_eq(
                flow_run_as(OWNER, 0, "sheaf add more %s", flow.origin), 0);
        cr_assert(!mkdir(dir, 0755) && !chown(dir, OWNER, OWNER));
        make_grant(dir, socket, id);
        for (int round = 0; round < 2; round++) {
                /* Whatever the uid, even none. */
                static const uid_t who[] = { OTHER, MEMBER, NOBODY, OWNER, 0 };

                for (size_t i = 0; i < SHEAF_ARRAY_LEN(who); i++) {
                        cr_assert_eq(flow_run_as(who[i], 0,
                                             "quickread --compare %s "
                                             "--dataset data",
                                             flow.origin),
                                i < 3, "without the grant");
                        cr_assert_eq(flow_run_as(who[i], 0,
                                             "SHEAF_SOCKET=%s quickread "
                                             "--compare %s --dataset data",
                                             socket, flow.origin),
                                0, "uid %d: %s", (int)who[i], flow.last.err);
                }
                cr_assert_eq(flow_run_as(OTHER, 0, "sheaf --socket %s ls more",
                                     socket),
                        4);
                cr_assert_neq(flow_run_as(OTHER, 0, "sheaf --socket %s rm data",
                                      socket),
                        0);
                cr_assert_neq(flow_run_as(OWNER, 0, "sheaf --socket %s rm data",
                                      socket),
                        0, "the grant speaks, not the uid");
                cr_assert_neq(
                        flow_run_as(0, 0, "sheaf --socket %s rm data", socket),
                        0, "nor root's");
                cr_assert_neq(
                        flow_run_as(OTHER, 0, "sheaf --socket %s add new %s",
                                socket, flow.origin),
                        0);
                /* Grants outlive the daemon. */
                flow_stop();
                flow_start();
        }
        cr_assert_neq(flow_run_as(OTHER, 0, "sheaf grant --revoke %s", id), 0);
        cr_assert_eq(flow_run_as(OWNER, 0, "sheaf grant --revoke %s", id), 0,
                "%s", flow.last.err);
        cr_assert_neq(
                flow_run_as(OTHER, 0,
                        "SHEAF_SOCKET=%s quickread --dataset data", socket),
                0);
        flow_stop();
}

/* A container: user and mount namespaces of its own, where the directory is
 * bind-mounted; a restart of the daemon does not cut it off. */
Test(users, grant_through_a_bind_mount_in_a_container)
{
        const char *dir = flow_path("granted");
        char socket[PATH_MAX], id[64];
        const char *go = flow_path("go"), *first = flow_path("first");
        pid_t pid;

        setup("");
        cr_assert(!mkdir(dir, 0755) && !chown(dir, OWNER, OWNER));
        make_grant(dir, socket, id);
        flow_ok("chmod 777 %s", flow.base);
        pid = flow_fork(OTHER, 0);
        if (!pid) {
                char script[2048];

                snprintf(script, sizeof(script),
                        "mkdir -p %s/inside && mount --bind %s %s/inside && "
                        "export SHEAF_SOCKET=%s/inside/%s && "
                        "quickread --dataset data && touch %s && "
                        "while ! test -e %s; do sleep 0.05; done; "
                        "quickread --dataset data",
                        flow.base, dir, flow.base, flow.base,
                        strrchr(socket, '/') + 1, first, go);
                execlp("unshare", "unshare", "--user", "--map-root-user",
                        "--mount", "sh", "-c", script, (char *)NULL);
                _exit(97);
        }
        cr_assert(flow_until(30,
                          access(first, F_OK) == 0 || flow_wait(pid, 0) >= 0) &&
                          access(first, F_OK) == 0,
                "the container could not read");
        flow_kill();
        flow_start();
        flow_ok("touch %s", go);
        cr_assert_eq(flow_join(pid, 10), 0);
        flow_stop();
}

/* ---- a daemon of an ordinary user ---- */

/* A device that everybody may open, as on any distribution, and a name for
 * the user, which fusermount3 wants: in a mount namespace of this test. */
static void prepare_user_mounts(void)
{
        const char *passwd = flow_path("passwd");

        flow_ok("{ cat /etc/passwd; "
                "echo flow:x:1001:1001::/nonexistent:/bin/false; } > %s",
                passwd);
        flow_own_fuse_device();
        cr_assert(!mount(passwd, "/etc/passwd", NULL, MS_BIND, NULL));
}

static void check_as_owner(void)
{
        pid_t pid;
        int rc;

        flow_ok("sheaf mount data %s", flow.mount);
        cr_assert_eq(flow_mounted(flow.mount), 1);
        pid = flow_fork(OWNER, 0);
        if (!pid) {
                struct sheaf_session *session;
                struct sheaf_dataset *dataset;

                rc = flow_check(flow_path("mount/f"), 1, BYTES, 4096);
                if (!rc)
                        rc = flow_check(
                                flow_path("mount/big"), 3, 9000000, 1 << 20);
                if (!rc)
                        rc = flow_open("data", &session, &dataset);
                if (!rc)
                        rc = flow_check_view(dataset, "f", 1, BYTES);
                if (!rc)
                        rc = flow_check_view(dataset, "big", 3, 9000000);
                _exit(-rc);
        }
        rc = flow_join(pid, 20);
        cr_assert_eq(rc, 0, "%s", strerror(rc));
        flow_ok("sheaf umount %s", flow.mount);
        cr_assert_eq(flow_mounted(flow.mount), 0);
}

/* Root, who is told all, and somebody else; the user's mount is his alone. */
static void others_of_rootless(bool shared)
{
        static const char ls[] = "sheaf ls --json";
        const char *mounted = flow_path("mount/f");

        cr_assert_eq(errno_by_library(OTHER), shared ? 0 : ENOENT);
        cr_assert_eq(errno_by_library(0), 0);
        cr_assert_eq(flow_run_as(OTHER, 0, "%s", ls), 0);
        cr_assert_eq(strstr(flow.last.out, "\"data\"") != NULL, shared, "%s",
                flow.last.out);
        cr_assert_eq(flow_run_as(0, 0, "%s", ls), 0);
        cr_assert(strstr(flow.last.out, "\"data\""), "%s", flow.last.out);
        flow_ok("sheaf mount data %s", flow.mount);
        cr_assert_neq(flow_run_as(OTHER, 0, "cat %s", mounted), 0);
        cr_assert_neq(flow_run_as(0, 0, "cat %s", mounted), 0,
                "FUSE keeps root out, too");
        flow_ok("sheaf umount %s", flow.mount);
}

Test(users, rootless_daemon_and_mount)
{
        prepare_user_mounts();
        flow.uid = OWNER;
        flow_file(1, BYTES, "f");
        flow_file(2, BYTES, "d/g");
        flow_file(3, 9000000, "big");
        cr_assert_eq(flow_run("chown -R 1001:1001 %s", flow.base), 0);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        check_as_owner();
        flow_ok("sheaf warmup data --disk");
        cr_assert_eq(flow_stat("origin.bytes"), 2 * BYTES + 9000000);
        flow_ok("sheaf verify data && sheaf seal data");
        flow_kill();
        flow_start();
        check_as_owner();
        cr_assert_eq(flow_stat("origin.bytes"), 0);
        others_of_rootless(false);
        flow_ok("sheaf share data all");
        others_of_rootless(true);
        cr_assert_eq(flow_run("find %s -not -user 1001 | grep .", flow.cache),
                1, "%s", flow.last.out);
        cr_assert_eq(flow_run("find %s -perm /077 -not -type l | grep .",
                             flow.cache),
                1, "others may look: %s", flow.last.out);
        flow_ok("sheaf rm data");
        flow_stop();
}
