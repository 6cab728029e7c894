/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs through the mount, for any program: hidden, bound by reading a link
 * and by nothing else, each sample once, over kills of everybody and over
 * refreshes; and what goes wrong in words. */
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#define FILES 120
#define LEN   1500
#define OTHER 1003

static void begin(void)
{
        flow_init();
        for (uint32_t i = 0; i < FILES; i++)
                flow_file(i, LEN, "d%u/f%u", i % 12, i);
        flow_ok("chmod 755 %s", flow.origin);
}

static void serve(void)
{
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_ok("sheaf mount data %s", flow.mount);
}

TestSuite(mountjobs, .init = begin, .fini = flow_fini, .timeout = 120);

/* mount/.sheaf/jobs/JOB/EPOCH/SLOT, or without the last. */
static const char *slot_path(const char *job, int epoch, int slot)
{
        if (slot < 0)
                return flow_path("mount/.sheaf/jobs/%s/%d", job, epoch);
        return flow_path("mount/.sheaf/jobs/%s/%d/%03d", job, epoch, slot);
}

/* The file that a link names, or -errno; -EBADMSG: none of the dataset's. */
static int file_of(const char *path)
{
        char target[PATH_MAX] = "";
        unsigned int dir, file;
        ssize_t n = readlink(path, target, sizeof(target) - 1);

        if (n < 0)
                return -errno;
        if (sscanf(target, "../../../../d%u/f%u", &dir, &file) != 2 ||
                file >= FILES || dir != file % 12)
                return -EBADMSG;
        return (int)file;
}

/* A slot's file, whose bytes are read through the link; or -errno. */
static int read_slot(const char *job, int epoch, int slot)
{
        const char *path = slot_path(job, epoch, slot);
        int file = file_of(path);
        int rc = file < 0 ? file : flow_check(path, (uint32_t)file, LEN, 4096);

        return rc < 0 ? rc : file;
}

static void read_slots(
        const char *job, int epoch, int first, int end, int *files)
{
        for (int slot = first; slot < end; slot++) {
                files[slot] = read_slot(job, epoch, slot);
                cr_assert_geq(files[slot], 0, "slot %d: %s", slot,
                        strerror(-files[slot]));
        }
}

static void each_once(const int *files)
{
        bool seen[FILES] = { false };

        for (int slot = 0; slot < FILES; slot++) {
                cr_assert(files[slot] >= 0 && files[slot] < FILES,
                        "slot %d: %d", slot, files[slot]);
                cr_assert(!seen[files[slot]], "slot %d: %d twice", slot,
                        files[slot]);
                seen[files[slot]] = true;
        }
}

static double bound(void)
{
        return flow_stat("jobs.bound");
}

static double requests(const char *name)
{
        char full[64];

        snprintf(full, sizeof(full), "mount.requests.%s", name);
        return flow_stat_of("data", full);
}

/* ---- what is seen ---- */

Test(mountjobs, the_tree_is_what_it_was)
{
        struct stat info;

        serve();
        flow_ok("ls -d %s/.sheaf/jobs/run/0/000", flow.mount);
        flow_ok("diff -r --no-dereference %s %s", flow.origin, flow.mount);
        flow_ok("(cd %s && find | sort && ls -aR) > %s/one; "
                "(cd %s && find | sort && ls -aR) > %s/two; cd %s; cmp one two",
                flow.origin, flow.base, flow.mount, flow.base, flow.base);
        flow_ok("cp -a %s %s/copy && diff -r %s %s/copy", flow.mount, flow.base,
                flow.origin, flow.base);
        flow_ok("test $(du -sb --apparent-size %s/copy | cut -f1) = "
                "$(du -sb --apparent-size %s | cut -f1)",
                flow.base, flow.mount);
        cr_assert_eq(lstat(flow_path("mount/.sheaf"), &info), 0);
        cr_assert_eq(info.st_mode, S_IFDIR | 0700);
        cr_assert_eq(bound(), 0);
        flow_umount(flow.mount);
        flow_stop();
}

/* Names, listings and lstat bind nothing; a link does. */
Test(mountjobs, reading_a_link_binds)
{
        const char *epoch = slot_path("run", 7, -1);
        char value[32] = "";
        struct stat info, there;
        int file;

        serve();
        flow_ok("test \"$(ls %s)\" = \"$(seq -w 0 %d)\"", epoch, FILES - 1);
        flow_ok("test $(find %s -type l | wc -l) = %d", epoch, FILES);
        for (int slot = 0; slot < FILES; slot++) {
                cr_assert_eq(lstat(slot_path("run", 7, slot), &info), 0);
                cr_assert_eq(info.st_mode, S_IFLNK | 0777);
                cr_assert_eq(info.st_size, PATH_MAX - 1);
        }
        cr_assert_eq(bound(), 0);
        /* stat follows */
        cr_assert_eq(stat(slot_path("run,ahead=0", 7, 5), &info), 0);
        cr_assert_eq(info.st_size, LEN);
        cr_assert_eq(bound(), 1);
        file = file_of(slot_path("run", 7, 5));
        cr_assert_eq(
                stat(flow_path("mount/d%d/f%d", file % 12, file), &there), 0);
        cr_assert_eq(info.st_ino, there.st_ino);
        cr_assert_gt(getxattr(slot_path("run", 7, 5), "user.sheaf.sample",
                             value, sizeof(value) - 1),
                0);
        flow_ok("test $(find %s -mindepth 2 -type f -printf '%%P\\n' | "
                "LC_ALL=C sort | sed -n %dp) = d%d/f%d",
                flow.origin, atoi(value) + 1, file % 12, file);
        flow_umount(flow.mount);
        flow_stop();
}

/* Programs that copy links read them whole, whatever size lstat showed. */
Test(mountjobs, links_can_be_copied)
{
        const char *copy = flow_path("copy"), *tree = flow_path("tree");

        serve();
        flow_ok("mkdir %s; cd %s; cp -a . %s/cp; tar c . | tar x -C %s; "
                "for i in *; do "
                "test \"$(readlink $i)\" = \"$(readlink %s/cp/$i)\" && "
                "test \"$(readlink $i)\" = \"$(readlink %s/$i)\" || exit 1; "
                "done",
                tree, slot_path("run", 0, -1), flow.base, tree, flow.base,
                tree);
        flow_ok("cp -rL %s %s; test $(cat %s/* | wc -c) = %d",
                slot_path("run", 0, -1), copy, copy, FILES * LEN);
        flow_umount(flow.mount);
        flow_stop();
}

/* A reader in turn finds what comes bound and fetched, within the bound. */
Test(mountjobs, what_comes_is_fetched)
{
        int files[FILES];

        serve();
        read_slots("run,ahead=16", 0, 0, 40, files);
        cr_assert(flow_until(30, bound() > 48), "%.0f", bound());
        cr_assert_leq(bound(), 40 + 16);
        cr_assert(flow_until(30, flow_stat_of("data", "origin.reads") > 48));
        /* who jumps about gets what was asked for */
        cr_assert_geq(read_slot("jump,ahead=16", 0, 110), 0);
        cr_assert_geq(read_slot("jump,ahead=16", 0, 80), 0);
        cr_assert_leq(bound(), 40 + 16 + 2);
        flow_umount(flow.mount);
        flow_stop();
}

/* One READLINK a sample; then the file's own path, which costs nothing once
 * the kernel knows the file. */
Test(mountjobs, a_warm_sample_costs_one_request)
{
        double all;

        serve();
        flow_ok("cat %s/* | wc -c", slot_path("run", 0, -1));
        flow_ok("cat %s/d*/* | wc -c", flow.mount);
        cr_assert_eq(requests("readlink"), FILES);
        flow_ok("ls %s", slot_path("run", 1, -1));
        all = requests("lookup") + requests("read") + requests("getattr");
        flow_ok("cat %s/* | wc -c", slot_path("run", 1, -1));
        cr_assert_eq(atoi(flow.last.out), FILES * LEN);
        cr_assert_eq(requests("readlink"), 2 * FILES);
        /* pages may have been taken back */
        cr_assert_leq(requests("lookup") + requests("read") +
                              requests("getattr") - all,
                FILES / 20);
        /* what was bound stays so: the kernel knows it */
        flow_ok("cat %s/* | wc -c", slot_path("run", 1, -1));
        cr_assert_leq(requests("readlink"), 2.05 * FILES);
        flow_umount(flow.mount);
        flow_stop();
}

/* ---- each sample once ---- */

/* Lines "PATH BYTES": each file of the origin once. */
static void lines_are_the_dataset(const char *lines)
{
        flow_ok("cd %s; find . -type f -printf '%%P %%s\\n' | sort > %s.all; "
                "sort %s | cmp - %s.all",
                flow.origin, lines, lines, lines);
}

Test(mountjobs, shell_loops_divide_an_epoch)
{
        const char *lines = flow_path("lines");

        serve();
        flow_ok("for i in 0 1 2 3; do " SHEAF_SOURCE
                "/docs/examples/slots.sh %s run 0 $i 4 > %s.$i & done; wait; "
                "cat %s.? > %s",
                flow.mount, lines, lines, lines);
        lines_are_the_dataset(lines);
        flow_umount(flow.mount);
        flow_stop();
}

Test(mountjobs, programs_divide_an_epoch)
{
        const char *lines = flow_path("lines");

        serve();
        flow_ok("for i in 0 1 2; do " FLOW_SLOTS " %s $i 3 > %s.$i & done; "
                "wait; cat %s.? > %s",
                slot_path("run", 0, -1), lines, lines, lines);
        lines_are_the_dataset(lines);
        /* the other way to divide; and everybody sees the same */
        flow_ok("cd %s; (cat 0* | cksum; cat 1* 2* | cksum) > %s",
                slot_path("run", 0, -1), lines);
        flow_ok("cd %s; for i in 0 1 2 3; do (cat 0* | cksum; cat 1* 2* | "
                "cksum) | cmp - %s || echo other & done; wait",
                slot_path("run", 0, -1), lines);
        cr_assert_str_eq(flow.last.out, "");
        flow_umount(flow.mount);
        flow_stop();
}

/* Two mounts and a client of the library are one job. */
Test(mountjobs, everybody_is_one_job)
{
        struct sheaf_job_options options = { .name = "run" };
        char second[128];
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_job *job;
        int files[FILES];

        serve();
        snprintf(second, sizeof(second), "%s", flow_path("second"));
        flow_mount("data", second);
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        cr_assert_eq(sheaf_job_open(dataset, &options, &job), 0, "%s",
                sheaf_last_error());
        for (uint32_t slot = 0; slot < FILES; slot++) {
                uint64_t ordinal;
                char path[64];

                if (slot % 3 == 0) {
                        cr_assert_eq(
                                sheaf_job_bind(job, 4, &slot, 1, 0, &ordinal),
                                0, "%s", sheaf_last_error());
                        cr_assert_gt(sheaf_dataset_path(dataset, ordinal, path,
                                             sizeof(path)),
                                0);
                        files[slot] = atoi(strstr(path, "/f") + 2);
                        cr_assert_eq(file_of(slot_path("run", 4, (int)slot)),
                                files[slot]);
                        continue;
                }
                files[slot] = file_of(
                        slot % 3 == 1
                                ? slot_path("run", 4, (int)slot)
                                : flow_path("second/.sheaf/jobs/run/4/%03u",
                                          slot));
        }
        each_once(files);
        sheaf_job_close(job);
        flow_close(session, dataset);
        flow_umount(second);
        flow_umount(flow.mount);
        flow_stop();
}

Test(mountjobs, strict_order_is_the_librarys)
{
        struct sheaf_job_options options = {
                .name = "library", .order = SHEAF_JOB_STRICT, .seed = 77
        };
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_job *job;

        serve();
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        cr_assert_eq(sheaf_job_open(dataset, &options, &job), 0);
        for (uint32_t slot = 0; slot < FILES; slot++) {
                uint64_t ordinal;
                char path[64];

                cr_assert_eq(sheaf_job_bind(job, 2, &slot, 1, 0, &ordinal), 0);
                cr_assert_gt(sheaf_dataset_path(
                                     dataset, ordinal, path, sizeof(path)),
                        0);
                cr_assert_eq(file_of(slot_path("mount,order=strict,seed=77", 2,
                                     (int)slot)),
                        atoi(strstr(path, "/f") + 2));
        }
        sheaf_job_close(job);
        flow_close(session, dataset);
        flow_umount(flow.mount);
        flow_stop();
}

/* ---- kills ---- */

static void kill_mount(void)
{
        pid_t server = flow_server(flow.mount);

        cr_assert_gt(server, 0);
        kill(server, SIGKILL);
        cr_assert(flow_until(20, flow_server(flow.mount) == 0));
}

Test(mountjobs, kills_repeat_and_lose_nothing)
{
        int files[FILES], again[FILES];

        serve();
        for (int part = 0; part < 6; part++) {
                read_slots("run", 3, part * 20, part * 20 + 20, files);
                if (part % 2) {
                        flow_kill();
                        flow_start();
                        continue;
                }
                kill_mount();
                flow_ok("sheaf mount data %s", flow.mount);
        }
        each_once(files);
        /* bound before, and asked for by a mount that knows nothing */
        kill_mount();
        flow_kill();
        flow_start();
        flow_ok("sheaf mount data %s", flow.mount);
        read_slots("run", 3, 0, FILES, again);
        cr_assert_arr_eq(files, again, sizeof(files));
        flow_umount(flow.mount);
        flow_stop();
}

/* Four readers, while the daemon is killed again and again. */
Test(mountjobs, readers_outlive_the_daemon)
{
        int *files = mmap(NULL, FILES * sizeof(*files), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        pid_t reader[4];

        cr_assert_neq(files, MAP_FAILED);
        serve();
        for (int r = 0; r < 4; r++) {
                reader[r] = flow_fork(0, 0);
                for (int slot = r; !reader[r] && slot < FILES; slot += 4) {
                        flow_sleep(0.005);
                        files[slot] = read_slot("run", 0, slot);
                        if (files[slot] < 0)
                                _exit(-files[slot]);
                }
                if (!reader[r])
                        _exit(0);
        }
        for (int round = 0; round < 4; round++) {
                flow_sleep(0.05);
                flow_kill();
                flow_start();
        }
        for (int r = 0; r < 4; r++)
                cr_assert_eq(flow_join(reader[r], 60), 0);
        each_once(files);
        munmap(files, FILES * sizeof(*files));
        flow_umount(flow.mount);
        flow_stop();
}

/* Whether the process is inside readlink(2). */
static bool reads_a_link(pid_t pid)
{
        char path[64];
        long call = -1;
        FILE *file;

        snprintf(path, sizeof(path), "/proc/%d/syscall", (int)pid);
        file = fopen(path, "re");
        if (!file)
                return false;
        if (fscanf(file, "%ld", &call) != 1)
                call = -1;
        fclose(file);
        return call == SYS_readlinkat
#ifdef SYS_readlink
               || call == SYS_readlink
#endif
                ;
}

/* No daemon: a reader waits, gets EIO at the deadline; a signal ends it. */
Test(mountjobs, a_daemon_that_is_gone)
{
        double began;
        pid_t reader;

        flow.deadline_s = 2;
        serve();
        cr_assert_geq(read_slot("run,ahead=0", 0, 0), 0);
        flow_kill();
        cr_assert_geq(file_of(slot_path("run,ahead=0", 0, 0)), 0);
        began = flow_now();
        cr_assert_eq(file_of(slot_path("run,ahead=0", 0, 100)), -EIO);
        cr_assert_gt(flow_now() - began, 1);
        cr_assert_lt(flow_now() - began, 30);
        cr_assert_eq(access(slot_path("new", 0, -1), F_OK), -1);
        cr_assert_eq(errno, EIO);
        flow.deadline_s = 300;
        flow_start();
        flow_umount(flow.mount);
        flow_ok("sheaf mount data %s", flow.mount);
        cr_assert_geq(read_slot("run,ahead=0", 0, 0), 0);
        flow_kill();
        reader = flow_fork(0, 0);
        if (!reader)
                _exit(-file_of(slot_path("run,ahead=0", 0, 100)));
        cr_assert(flow_until(20, reads_a_link(reader)));
        kill(reader, SIGKILL);
        cr_assert_eq(flow_join(reader, 30), 128 + SIGKILL);
        flow_start();
        cr_assert_geq(file_of(slot_path("run,ahead=0", 0, 100)), 0);
        flow_umount(flow.mount);
        flow_stop();
}

/* ---- what goes wrong ---- */

static void fails(const char *name, int error)
{
        const char *path = flow_path("mount/.sheaf/%s", name);
        struct stat info;

        errno = 0;
        cr_assert_eq(lstat(path, &info), -1, "%s is there", name);
        cr_assert_eq(errno, error, "%s: %s", name, strerror(errno));
}

Test(mountjobs, wrong_names)
{
        char name[300];

        serve();
        fails("job", ENOENT);
        fails("jobs/.git", ENOENT);
        fails("jobs/a,b", EINVAL);
        fails("jobs/,seed=1", EINVAL);
        fails("jobs/a,order=fifo", EINVAL);
        fails("jobs/a,order=window", EINVAL);
        fails("jobs/a\nb", EINVAL);
        snprintf(name, sizeof(name), "jobs/%0129d", 0);
        fails(name, EINVAL);
        snprintf(name, sizeof(name), "jobs/%0256d", 0);
        fails(name, EINVAL);
        fails("jobs/a/x", ENOENT);
        fails("jobs/a/01", ENOENT);
        fails("jobs/a/4194304", ENOENT);
        fails("jobs/a/0/0", ENOENT);
        fails("jobs/a/0/120", ENOENT);
        fails("jobs/a/0/0000", ENOENT);
        /* another order than the job has, told when the epoch is looked up */
        fails("jobs/a,order=strict/0", EINVAL);
        fails("jobs/a,seed=1/1", EINVAL);
        flow_ok("ls -d %s/.sheaf/jobs/a,order=shared/0", flow.mount);
        /* nothing can be changed */
        cr_assert_eq(mkdir(flow_path("mount/.sheaf/jobs/new"), 0700), -1);
        cr_assert(errno == EROFS || errno == EEXIST, "%s", strerror(errno));
        cr_assert_eq(unlink(slot_path("a", 0, 0)), -1);
        cr_assert_eq(errno, EROFS);
        cr_assert_eq(bound(), 0);
        flow_umount(flow.mount);
        flow_stop();
}

/* What is wrong stands in the mount's log. */
Test(mountjobs, wrong_names_are_logged_in_words)
{
        const char *log = flow_path("mount.log");

        flow_start();
        flow_ok("sheaf add data %s; mkdir -p %s; (setsid sheaf mount "
                "--foreground data %s > %s 2>&1 < /dev/null &)",
                flow.origin, flow.mount, flow.mount, log);
        cr_assert(flow_until(20, flow_mounted(flow.mount) == 1));
        fails("jobs/a,order=fifo", EINVAL);
        flow_ok("grep 'no such job.*a,order=fifo.*strict' %s", log);
        cr_assert_geq(read_slot("a", 0, 0), 0);
        fails("jobs/a,seed=5/0", EINVAL);
        flow_ok("grep 'job failed.*a,seed=5.*another seed' %s", log);
        flow_umount(flow.mount);
        flow_stop();
}

/* An epoch that was left can be ended later, when others have come since, and
 * the daemon has forgotten it. */
Test(mountjobs, an_old_epoch_goes_on)
{
        int files[FILES];

        serve();
        read_slots("run,ahead=0", 0, 0, 50, files);
        for (int epoch = 1; epoch < 5; epoch++)
                cr_assert_geq(read_slot("run,ahead=0", epoch, 0), 0);
        read_slots("run,ahead=0", 0, 50, 80, files);
        flow_kill();
        flow_start();
        cr_assert_geq(read_slot("run,ahead=0", 9, 100), 0);
        read_slots("run,ahead=0", 0, 80, FILES, files);
        each_once(files);
        flow_umount(flow.mount);
        flow_stop();
}

/* A dataset's own entry of that name is shown, whatever it is. */
Test(mountjobs, a_dataset_with_that_name)
{
        flow_file(FILES, LEN, ".sheaf/jobs/mine");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_ok("sheaf mount data %s", flow.mount);
        cr_assert_not_null(
                strstr(flow.last.err, ".sheaf"), "%s", flow.last.err);
        flow_ok("diff -r %s %s", flow.origin, flow.mount);
        fails("jobs/run", ENOENT);
        flow_umount(flow.mount);
        flow_stop();
}

Test(mountjobs, a_dataset_without_files)
{
        flow_ok("rm -r %s/*", flow.origin);
        serve();
        fails("jobs/run/0", EINVAL);
        flow_umount(flow.mount);
        flow_stop();
}

/* ---- versions ---- */

static pid_t reader_inside(int *files, int *gate)
{
        pid_t pid = flow_fork(0, 0);

        if (pid)
                return pid;
        if (chdir(slot_path("run", 0, -1)))
                _exit(1);
        for (int slot = 40; slot < FILES; slot++) {
                char name[16];

                snprintf(name, sizeof(name), "%03d", slot);
                if (slot == 60) {
                        __atomic_store_n(gate, 1, __ATOMIC_SEQ_CST);
                        while (__atomic_load_n(gate, __ATOMIC_SEQ_CST) != 2)
                                flow_sleep(0.01);
                }
                files[slot] = file_of(name);
                if (files[slot] < 0 ||
                        flow_check(name, (uint32_t)files[slot], LEN, 4096))
                        _exit(2);
        }
        _exit(0);
}

static void refresh_under_an_epoch(void)
{
        int *files = mmap(NULL, (FILES + 1) * sizeof(*files),
                PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        char target[PATH_MAX];
        pid_t inside;

        cr_assert_neq(files, MAP_FAILED);
        serve();
        read_slots("run", 0, 0, 20, files);
        /* the same version again: nothing has happened */
        flow_ok("sheaf mount --refresh %s", flow.mount);
        read_slots("run", 0, 20, 40, files);
        inside = reader_inside(files, &files[FILES]);
        cr_assert(flow_until(
                20, __atomic_load_n(&files[FILES], __ATOMIC_SEQ_CST) == 1));
        for (int round = 0; round < 2; round++) {
                flow_file(FILES + (uint32_t)round, LEN, "new%d", round);
                flow_ok("sheaf update data");
                flow_ok("%s %s",
                        round ? "sheaf-cachefs --swap data"
                              : "sheaf mount --refresh",
                        flow.mount);
                flow_ok("test -e %s/new%d", flow.mount, round);
                /* the epoch began on the old version */
                cr_assert_eq(access(slot_path("run", 0, 100), F_OK), -1);
                cr_assert_eq(errno, ESTALE);
                cr_assert_eq(
                        access(slot_path("run,ahead=3", round, -1), F_OK), -1);
                cr_assert_eq(errno, ESTALE);
                /* others, and the next ones, are free; also for new files */
                cr_assert_geq(readlink(slot_path("run", round + 1, 1), target,
                                      sizeof(target)),
                        0);
                flow_ok("ls %s | wc -l", slot_path("other", round, -1));
                cr_assert_eq(atoi(flow.last.out), FILES + 1 + round);
        }
        __atomic_store_n(&files[FILES], 2, __ATOMIC_SEQ_CST);
        cr_assert_eq(flow_join(inside, 30), 0);
        each_once(files);
        munmap(files, (FILES + 1) * sizeof(*files));
        flow_umount(flow.mount);
        flow_stop();
}

Test(mountjobs, an_epoch_keeps_its_version)
{
        refresh_under_an_epoch();
}

/* A mount that hangs holds a refresh up for a moment only. */
Test(mountjobs, a_refresh_of_a_mount_that_hangs)
{
        pid_t server;

        serve();
        cr_assert_geq(read_slot("run", 0, 0), 0);
        server = flow_server(flow.mount);
        flow_ok("sheaf update data");
        kill(server, SIGSTOP);
        flow_ok("sheaf-cachefs --replace data %s", flow.mount);
        cr_assert_geq(read_slot("run", 1, 0), 0);
        kill(server, SIGCONT);
        flow_umount(flow.mount);
        flow_stop();
}

/* ---- other users ---- */

/* Who mounted may bind; who may read does not bind for them. */
Test(mountjobs, other_users_do_not_bind)
{
        pid_t pid;

        flow_start();
        flow_ok("chmod -R a+rX %s; sheaf add data %s --share all", flow.origin,
                flow.origin);
        flow_ok("sheaf mount --allow-other data %s", flow.mount);
        cr_assert_geq(read_slot("run", 0, 0), 0);
        pid = flow_fork(OTHER, 0);
        if (!pid) {
                if (flow_check(flow_path("mount/d1/f1"), 1, LEN, 4096))
                        _exit(1);
                _exit(file_of(slot_path("run", 0, 0)) == -EACCES ? 0 : 2);
        }
        cr_assert_eq(flow_join(pid, 20), 0);
        flow_umount(flow.mount);
        flow_stop();
}

/* Without root; and the same name is another job of another user, as the
 * order shows. */
Test(mountjobs, an_ordinary_user)
{
        struct passwd *user = getpwnam("daemon");
        char own[128];

        if (!user || access("/etc/mtab", F_OK)) {
                printf("SKIP: an_ordinary_user: no user `daemon` or no "
                       "/etc/mtab\n");
                return;
        }
        flow_own_fuse_device();
        flow_start();
        snprintf(own, sizeof(own), "%s", flow_path("own"));
        flow_ok("chmod -R a+rX %s; sheaf add data %s --share all", flow.origin,
                flow.origin);
        flow_ok("mkdir %s; chown daemon %s; chmod 755 %s", own, own, flow.base);
        flow_ok("sheaf mount data %s", flow.mount);
        cr_assert_geq(read_slot("run,order=strict", 0, 0), 0);
        cr_assert_eq(flow_run_as(user->pw_uid, 0,
                             "sheaf mount '~root/data' %s && "
                             "cat %s/.sheaf/jobs/run/0/* | wc -c",
                             own, own),
                0, "%s", flow.last.err);
        cr_assert_eq(atoi(flow.last.out), FILES * LEN);
        /* and a refresh of theirs, which cannot move mounts */
        flow_file(FILES, LEN, "new");
        flow_ok("chmod a+r %s/new; sheaf update data", flow.origin);
        cr_assert_eq(flow_run_as(user->pw_uid, 0,
                             "sheaf mount --refresh %s && "
                             "! test -e %s/.sheaf/jobs/run/0/000 && "
                             "cat %s/.sheaf/jobs/run/1/* | wc -c",
                             own, own, own),
                0, "%s", flow.last.err);
        cr_assert_eq(atoi(flow.last.out), (FILES + 1) * LEN);
        cr_assert_eq(flow_run_as(user->pw_uid, 0, "sheaf umount %s", own), 0);
        flow_umount(flow.mount);
        flow_stop();
}
