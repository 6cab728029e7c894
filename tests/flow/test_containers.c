/* SPDX-License-Identifier: Apache-2.0 */
/* Users of one node and what they see of each other: a container that has a
 * granted socket and a bind-mounted dataset and nothing else, mounts, readers,
 * and origins that come back as another device. test_users.c has the table of
 * plain users. */
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>

TestSuite(containers, .init = flow_init, .fini = flow_fini, .timeout = 90);

#define BYTES 30000

enum {
        OWNER = 1001,
        MEMBER = 1002,
        OTHER = 1003,
        GROUP = 2001,
};

static void make_files(void)
{
        flow_file(1, BYTES, "f");
        flow_file(2, BYTES, "d/g");
}

#define as_owner(...)                                                          \
        cr_assert_eq(flow_run_as(OWNER, GROUP, __VA_ARGS__), 0, "%s",          \
                flow.last.err)

/* ---- readers ---- */

/* A field of /proc/PID/status, without its name. */
static void status_of(pid_t pid, const char *field, char value[256])
{
        char path[64], line[512];
        size_t len = strlen(field);
        FILE *file;

        snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
        file = fopen(path, "re");
        value[0] = 0;
        while (file && fgets(line, sizeof(line), file))
                if (!strncmp(line, field, len) && line[len] == ':')
                        snprintf(value, 256, "%.*s",
                                (int)strcspn(line + len + 1, "\n"),
                                line + len + 1);
        if (file)
                fclose(file);
}

/* The children of the daemon that run as @uid. */
static pid_t reader_of(uid_t uid)
{
        DIR *dir = opendir("/proc");
        struct dirent *entry;
        pid_t found = 0;

        while (dir && !found && (entry = readdir(dir))) {
                char name[256], parent[256], ids[256];
                pid_t pid = atoi(entry->d_name);

                if (pid <= 1)
                        continue;
                status_of(pid, "Name", name);
                status_of(pid, "PPid", parent);
                status_of(pid, "Uid", ids);
                if (strstr(name, "sheaf-reader") &&
                        atoi(parent) == flow.daemon && (uid_t)atoi(ids) == uid)
                        found = pid;
        }
        if (dir)
                closedir(dir);
        return found;
}

static void check_field(pid_t pid, const char *field, const char *wanted)
{
        char value[256], *at = value;

        status_of(pid, field, value);
        at += strspn(at, " \t");
        for (size_t n = strlen(at);
                n && (at[n - 1] == ' ' || at[n - 1] == '\t'); n--)
                at[n - 1] = 0;
        cr_expect_str_eq(at, wanted, "%s: '%s'", field, at);
}

static void check_reader(uid_t uid, const char *ids, const char *groups)
{
        static const char *const none = "0000000000000000";
        pid_t pid = reader_of(uid);

        cr_assert_gt(pid, 0, "no reader of %d", (int)uid);
        check_field(pid, "Uid", ids);
        check_field(pid, "Gid", ids);
        if (groups)
                check_field(pid, "Groups", groups);
        check_field(pid, "CapInh", none);
        check_field(pid, "CapPrm", none);
        check_field(pid, "CapEff", none);
        check_field(pid, "CapBnd", none);
        check_field(pid, "CapAmb", none);
        check_field(pid, "NoNewPrivs", "1");
}

Test(containers, readers_run_wholly_as_the_owner)
{
        make_files();
        flow_start();
        as_owner("sheaf add data %s && sheaf warmup data", flow.origin);
        check_reader(OWNER, "1001\t1001\t1001\t1001", "2001");
        cr_assert_eq(
                flow_run_as(OTHER, 0, "sheaf add data %s && sheaf warmup data",
                        flow.origin),
                0);
        check_reader(OTHER, "1003\t1003\t1003\t1003", "");
        /* Root's, too, is without root's rights. */
        flow_ok("sheaf add mine %s && sheaf warmup mine", flow.origin);
        check_reader(0, "0\t0\t0\t0", NULL);
        flow_stop();
}

/* ---- a container ---- */

/* A root of its own with the programs, the granted socket's directory at /run
 * and the host's mount of the dataset at /data; user, mount and pid namespaces;
 * root inside. */
static int in_container(const char *grant, const char *data, const char *what)
{
        return flow_run_as(OTHER, 0,
                "export ROOT=%s BUILD=%s GRANT=%s DATA=%s; "
                "exec unshare --user --map-root-user --mount --pid --fork "
                "sh -c '"
                "mkdir -p $ROOT && mount -t tmpfs none $ROOT && cd $ROOT && "
                "mkdir -p usr lib lib64 bin run data proc tmp .$BUILD && "
                "for d in usr lib lib64 bin; do "
                "test -d /$d && mount --rbind /$d $d; done; "
                "mount --rbind $BUILD .$BUILD && mount --rbind $GRANT run && "
                "mount --rbind $DATA data && "
                "export SHEAF_SOCKET=/run/sheafd.sock "
                "PATH=$BUILD/tools:/usr/bin:/bin && "
                "exec /usr/sbin/chroot . sh -c \"%s\"'",
                flow_path("root"), FLOW_BUILD, grant, data, what);
}

static bool containers_allowed(void)
{
        if (!flow_run_as(OTHER, 0,
                    "unshare --user --map-root-user --mount --pid --fork "
                    "mount -t tmpfs none /mnt"))
                return true;
        fprintf(stderr,
                "SKIP: containers: user namespaces are not allowed: %s\n",
                flow.last.err);
        return false;
}

Test(containers, only_a_socket_and_a_dataset_inside)
{
        const char *grant = flow_path("grant"), *data = flow.mount;

        if (!containers_allowed())
                return;
        make_files();
        flow_ok("chmod 777 %s", flow.base);
        flow_start();
        as_owner("sheaf add --share all data %s", flow.origin);
        as_owner("sheaf add private %s", flow.origin);
        as_owner("mkdir %s", grant);
        as_owner("sheaf grant '~1001/data' --dir %s", grant);
        flow_ok("sheaf mount --allow-other '~1001/data' %s", data);
        /* By library, by mount, by command. */
        cr_expect_eq(in_container(grant, data, "quickread --dataset data"), 0,
                "%s", flow.last.err);
        cr_expect_eq(in_container(grant, data,
                             "quickread --compare /data --dataset data"),
                0, "%s", flow.last.err);
        cr_expect_eq(in_container(grant, data, "cat /data/f /data/d/g"), 0,
                "%s", flow.last.err);
        cr_expect_eq(in_container(grant, data, "sheaf ls --json"), 0, "%s",
                flow.last.err);
        cr_expect(strstr(flow.last.out, "\"data\""), "%s", flow.last.out);
        cr_expect_not(strstr(flow.last.out, "private"), "%s", flow.last.out);
        /* And nothing else, though it is root inside. */
        cr_expect_neq(in_container(grant, data, "sheaf ls private"), 0);
        cr_expect_neq(
                in_container(grant, data, "quickread --dataset private"), 0);
        cr_expect_neq(in_container(grant, data, "sheaf rm data"), 0);
        cr_expect_neq(in_container(grant, data, "sheaf add x /data"), 0);
        cr_expect_neq(in_container(grant, data, "sheaf status"), 0);
        cr_expect_neq(in_container(grant, data, "echo x > /data/f"), 0);
        cr_expect_neq(in_container(grant, data, "chmod 777 /data/f"), 0);
        cr_expect_neq(
                in_container(grant, data, "mount -o remount,rw /data"), 0);
        flow_umount(data);
        flow_stop();
}

/* The ordinary socket in a container: its root is who made it. */
Test(containers, the_ordinary_socket_inside_is_the_users)
{
        const char *dir = flow_path("sockdir");

        if (!containers_allowed())
                return;
        make_files();
        flow_ok("chmod 777 %s && mkdir %s", flow.base, dir);
        snprintf(flow.socket, sizeof(flow.socket), "%s/sheafd.sock", dir);
        setenv("SHEAF_SOCKET", flow.socket, 1);
        flow_start();
        as_owner("sheaf add data %s", flow.origin);
        cr_assert_eq(
                flow_run_as(OTHER, 0, "sheaf add mine %s", flow.origin), 0);
        cr_expect_eq(in_container(dir, flow.origin, "sheaf ls --json"), 0, "%s",
                flow.last.err);
        cr_expect(strstr(flow.last.out, "\"mine\""), "%s", flow.last.out);
        cr_expect_not(strstr(flow.last.out, "\"data\""), "%s", flow.last.out);
        cr_expect_eq(in_container(dir, flow.origin, "quickread --dataset mine"),
                0, "%s", flow.last.err);
        cr_expect_neq(
                in_container(dir, flow.origin, "quickread --dataset data"), 0);
        /* By mounts of the host: those of his own. */
        flow_ok("sheaf mount --allow-other '~1003/mine' %s", flow.mount);
        cr_expect_eq(in_container(dir, flow.mount, "cat /data/f /data/d/g"), 0,
                "%s", flow.last.err);
        flow_umount(flow.mount);
        flow_ok("sheaf mount --allow-other '~1001/data' %s", flow.mount);
        cr_expect_neq(in_container(dir, flow.mount, "cat /data/f"), 0);
        flow_umount(flow.mount);
        flow_stop();
}

/* ---- mounts ---- */

static int look_as(uid_t uid, gid_t gid)
{
        pid_t pid = flow_fork(uid, gid);

        if (!pid) {
                int rc = flow_check(flow_path("mount/f"), 1, BYTES, 4096);

                _exit(-rc);
        }
        return flow_join(pid, 10);
}

/* A tree that all may read, beneath a directory that one may enter. */
Test(containers, an_open_tree_beneath_a_closed_one)
{
        flow_file(1, BYTES, "home/tree/f");
        flow_ok("chown -R %d %s/home && chmod 700 %s/home", OWNER, flow.origin,
                flow.origin);
        flow_start();
        as_owner("sheaf add data %s/home/tree", flow.origin);
        flow_ok("sheaf mount --allow-other '~1001/data' %s", flow.mount);
        cr_expect_eq(look_as(OWNER, 0), 0);
        cr_expect_eq(look_as(MEMBER, GROUP), EACCES);
        cr_expect_eq(look_as(OTHER, 0), EACCES);
        flow_umount(flow.mount);
        /* Its client may end a moment later. */
        cr_assert(flow_until(30, flow_run_as(OWNER, GROUP,
                                         "sheaf share --force data "
                                         "group:2001") == 0),
                "%s", flow.last.err);
        flow_ok("sheaf mount --allow-other '~1001/data' %s", flow.mount);
        cr_expect_eq(look_as(MEMBER, GROUP), 0);
        cr_expect_eq(look_as(OTHER, 0), EACCES);
        flow_umount(flow.mount);
        flow_stop();
}

/* Without --allow-other a mount is its maker's alone, whatever is shared. */
Test(containers, a_mount_is_its_makers)
{
        make_files();
        flow_start();
        as_owner("sheaf add --share all data %s", flow.origin);
        flow_ok("sheaf mount '~1001/data' %s", flow.mount);
        cr_expect_eq(look_as(0, 0), 0);
        cr_expect_eq(look_as(OWNER, GROUP), EACCES);
        cr_expect_eq(look_as(OTHER, 0), EACCES);
        flow_umount(flow.mount);
        flow_stop();
}

/* ---- origins ---- */

static double device_of(const char *path)
{
        struct stat st;

        cr_assert(!stat(path, &st));
        return (double)st.st_dev;
}

/* A file system of its own, which comes back as another device. */
Test(containers, an_origin_comes_back_as_another_device)
{
        const char *image = flow_path("image"), *at = flow_path("disk");
        double before;

        /* Detached at once, that is, when it is unmounted. */
        if (flow_run(
                    "truncate -s 16M %s && mkfs.ext4 -q %s && mkdir %s && "
                    "L=$(losetup -f --show %s) && mount $L %s && losetup -d $L",
                    image, image, at, image, at)) {
                fprintf(stderr, "SKIP: containers: no loop devices: %s\n",
                        flow.last.err);
                return;
        }
        flow_file(1, BYTES, "../disk/f");
        flow_file(2, BYTES, "../disk/d/g");
        flow_start();
        flow_ok("sheaf add data %s && sheaf warmup data f", at);
        before = device_of(at);
        flow_stop();
        /* A copy: another's mount namespace may hold the old one, mounted. */
        flow_ok("sync -f %s && cp %s %s.back && "
                "L=$(losetup -f --show %s.back) && umount %s && mount $L %s && "
                "losetup -d $L",
                at, image, image, image, at, at);
        cr_assert_neq(device_of(at), before);
        flow_start();
        flow_ok("sheaf warmup data && sheaf verify data");
        flow_ok("sheaf status");
        cr_expect_not(strstr(flow.last.out, "detached"), "%s", flow.last.out);
        flow_ok("sheaf update data");
        flow_stop();
        flow_ok("umount %s", at);
}

/* Hard-link backups and changed modes move ctime alone. */
Test(containers, backups_and_modes_at_the_origin)
{
        flow_file(1, BYTES, "f");
        flow_file(2, BYTES, "d/g");
        flow_file(3, 9000000, "big");
        flow_start();
        flow_ok("sheaf add data %s && sheaf warmup data f", flow.origin);
        flow_ok("cp -al %s %s && chmod -R g+w %s", flow.origin,
                flow_path("backup"), flow.origin);
        /* Known and not yet known, in memory and not. */
        flow_ok("sheaf warmup data && sheaf verify data");
        flow_ok("sheaf warmup --evict data");
        flow_ok("rm -r %s && chmod -R o-w %s", flow_path("backup"),
                flow.origin);
        flow_ok("quickread --compare %s --dataset data", flow.origin);
        flow_ok("sheaf seal data");
        flow_stop();
}

/* ---- how many ---- */

Test(containers, a_user_has_so_many_datasets)
{
        make_files();
        flow.extra = "--user-datasets 3";
        flow_start();
        as_owner("for i in 1 2 3; do sheaf add data$i %s || exit 1; done",
                flow.origin);
        cr_assert_neq(
                flow_run_as(OWNER, GROUP, "sheaf add data4 %s", flow.origin),
                0);
        cr_expect(
                strstr(flow.last.err, "--user-datasets"), "%s", flow.last.err);
        /* The bound is of each user; what goes makes room. */
        cr_assert_eq(
                flow_run_as(OTHER, 0, "sheaf add data4 %s", flow.origin), 0);
        as_owner("sheaf rm %s", "data1");
        cr_assert(flow_until(30, flow_run_as(OWNER, GROUP, "sheaf add data4 %s",
                                         flow.origin) == 0),
                "%s", flow.last.err);
        flow_stop();
}
