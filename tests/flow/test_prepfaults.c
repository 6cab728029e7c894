/* SPDX-License-Identifier: Apache-2.0 */
/* Groups in bad hosts: few descriptors, a daemon or a worker that is stopped
 * for longer than a lease, a kill between offer and take, a container. */
#include "tests/flow/groups.h"
#include "tests/flow/peer.h"
#include "tests/flow/world.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define JOBS 2

static struct shim *shim;

static void begin(void)
{
        flow_init();
        groups_init();
        flow_file(1, 1000, "f1");
}

static void end(void)
{
        groups_fini();
        flow_fini();
}

TestSuite(prepfaults, .init = begin, .fini = end, .timeout = 120);

static void start(void)
{
        flow_start();
        flow_ok("sheaf add --share all --force data %s", flow.origin);
}

static struct groups_jobs jobs;

/* All came to their ends; each member took each batch once. */
static void jobs_end_well(uint32_t batches)
{
        groups_end_well(&jobs);
        for (uint32_t m = 0; m < jobs.count; m++)
                groups_took(m, 0, batches);
        cr_assert_eq(flow_stat("prep.failed"), 0);
        groups_nothing_left();
}

/* ---- descriptors ---- */

/* A quarter of the daemon's at most, also with the others in the hands of idle
 * clients; it costs no batch a lease. */
Test(prepfaults, a_daemon_of_few_descriptors)
{
        struct groups_spec spec = groups_spec(0);
        struct peer idle[64];
        size_t count = 0;

        flow_world("ulimit -n 64", "");
        start();
        spec.batches = spec.ahead = 100;
        spec.stop_at = 10;
        groups_start(&jobs, spec, JOBS);
        groups_wait_holding(JOBS);
        cr_assert(flow_until(GROUPS_LIMIT_S, flow_stat("prep.staged") >= 2));
        cr_assert_leq(flow_stat("prep.staged"), 64 / 8);
        while (!flow_status_says("descriptors are used up")) {
                cr_assert_lt(count, SHEAF_ARRAY_LEN(idle));
                idle[count++] = greet();
        }
        atomic_store(&board->go_on, 1);
        flow_sleep(0.5);
        for (size_t i = 0; i < count; i++)
                close(idle[i].sock);
        jobs_end_well(100);
        cr_assert_eq(flow_stat("prep.redone"), 0);
}

/* It may open no more at the moment: offers are kept all the same, who takes
 * waits. That is nobody's fault. */
Test(prepfaults, a_daemon_without_a_descriptor)
{
        struct groups_spec spec = groups_spec(0);
        const char *prefix;

        shim = flow_shim(&prefix);
        flow_world("", prefix);
        start();
        spec.stop_at = 5;
        groups_start(&jobs, spec, JOBS);
        groups_wait_holding(JOBS + 1);
        shim->reopen_errno = EMFILE;
        atomic_store(&board->go_on, 1);
        flow_sleep(0.5);
        cr_assert_leq(atomic_load(&board->next[0]), 5);
        shim->reopen_errno = 0;
        jobs_end_well(40);
        cr_assert_eq(flow_stat("prep.redone"), 0);
}

static rlim_t lower_limit(void)
{
        struct rlimit limit;
        rlim_t before;
        int fd = open("/dev/null", O_RDONLY);

        close(fd);
        if (getrlimit(RLIMIT_NOFILE, &limit))
                _exit(2);
        before = limit.rlim_cur;
        limit.rlim_cur = (rlim_t)fd;
        if (setrlimit(RLIMIT_NOFILE, &limit))
                _exit(2);
        return before;
}

/* It is told at once; the batch is there when it may open files again. */
static _Noreturn void take_without_descriptors(struct groups_spec spec)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_group *group;
        enum sheaf_group_state state = SHEAF_GROUP_QUEUED;
        struct rlimit limit;
        double start;
        int fd = -1, rc;

        if (flow_open("data", &session, &dataset) ||
                groups_open(dataset, &spec, false, &group) ||
                sheaf_group_begin(group, 0))
                _exit(3);
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = lower_limit();
        start = flow_now();
        rc = sheaf_group_take(group, 0, 20000, false, &state, &fd);
        if (rc != -EMFILE || fd != -1 || flow_now() - start > 15 ||
                !strstr(sheaf_last_error(), "limit")) {
                fprintf(stderr, "take: %d: %s\n", rc, sheaf_last_error());
                _exit(4);
        }
        setrlimit(RLIMIT_NOFILE, &limit);
        for (uint64_t b = 0; b < 3; b++) {
                rc = sheaf_group_take(group, b, 20000, true, &state, &fd);
                if (!rc && state == SHEAF_GROUP_PREPARE) {
                        fd = groups_file(b, spec.bytes, GROUPS_SEALS);
                        rc = sheaf_group_offer(group, b, fd, spec.schema);
                        close(fd);
                        b--;
                        if (rc)
                                _exit(7);
                        continue;
                }
                if (rc || state != SHEAF_GROUP_TAKEN ||
                        !groups_check(fd, b, spec.bytes)) {
                        fprintf(stderr, "take %d: state %d: %s\n", rc, state,
                                sheaf_last_error());
                        _exit(5);
                }
                close(fd);
        }
        sheaf_group_close(group);
        flow_close(session, dataset);
        _exit(0);
}

Test(prepfaults, a_member_without_a_descriptor)
{
        struct groups_spec spec = groups_spec(0);
        pid_t worker, member;

        start();
        spec.members = 1;
        worker = groups_worker(&spec);
        member = flow_fork(0, 0);
        if (!member)
                take_without_descriptors(spec);
        groups_ends_well(member);
        groups_ends_well(worker);
        cr_assert_eq(flow_stat("prep.failed"), 0);
}

/* ---- who is stopped, or killed ---- */

static void stop_for(pid_t pid, double seconds)
{
        cr_assert_eq(kill(pid, SIGSTOP), 0);
        flow_sleep(seconds);
        cr_assert_eq(kill(pid, SIGCONT), 0);
}

/* Time of groups does not go on without the daemon: nobody is late. */
Test(prepfaults, the_daemon_is_stopped_for_longer_than_leases)
{
        struct groups_spec spec = groups_spec(0);

        start();
        spec.lease_ms = 1000;
        spec.patience_ms = 1000;
        spec.stop_at = 5;
        groups_start(&jobs, spec, JOBS);
        groups_wait_holding(1);
        stop_for(flow.daemon, 4);
        atomic_store(&board->go_on, 1);
        jobs_end_well(40);
        cr_assert_eq(flow_stat("prep.redone"), 0);
        cr_assert_eq(flow_stat("prep.late"), 0);
        cr_assert_eq(flow_stat("prep.detached"), 0);
        cr_assert_eq(flow_stat("prep.prepared"), 40);
}

/* Nobody else prepared it meanwhile: what it brings when it wakes counts. */
Test(prepfaults, a_late_worker_is_the_first)
{
        struct groups_spec spec = groups_spec(0);
        pid_t member, worker;

        start();
        spec.lease_ms = 300;
        member = groups_member(&spec);
        spec.stop_at = 7;
        worker = groups_worker(&spec);
        groups_wait_holding(1);
        cr_assert_eq(kill(worker, SIGSTOP), 0);
        cr_assert(flow_until(GROUPS_LIMIT_S, flow_stat("prep.redone") == 1));
        atomic_store(&board->go_on, 1);
        cr_assert_eq(kill(worker, SIGCONT), 0);
        groups_ends_well(member);
        groups_ends_well(worker);
        groups_took(0, 0, 40);
        cr_assert_eq(flow_stat("prep.prepared"), 40);
        cr_assert_eq(flow_stat("prep.late"), 0);
}

/* What was offered is lost with it, and made again. */
Test(prepfaults, the_daemon_is_killed_between_offer_and_take)
{
        struct groups_spec spec = groups_spec(0);

        start();
        spec.stop_at = 10;
        jobs.count = spec.members = JOBS;
        for (uint32_t m = 0; m < JOBS; m++) {
                spec.member = m;
                jobs.member[m] = groups_member(&spec);
        }
        spec.stop_at = UINT32_MAX;
        for (uint32_t m = 0; m < JOBS; m++) {
                spec.member = m;
                jobs.worker[m] = groups_worker(&spec);
        }
        groups_wait_holding(JOBS);
        cr_assert(flow_until(
                GROUPS_LIMIT_S, flow_stat("prep.staged") == spec.ahead));
        flow_kill();
        flow_start();
        atomic_store(&board->go_on, 1);
        jobs_end_well(40);
        for (uint32_t b = 0; b < 18; b++)
                cr_assert(b < 10 ? board->prepared[b] == 1
                                 : board->prepared[b] >= 2,
                        "batch %u was prepared %u times", b,
                        board->prepared[b]);
}

/* ---- who frees memory ---- */

/* On a processor, of the loop or of all other threads of the daemon. */
static uint64_t thread_ns(bool loop)
{
        char path[300], line[64];
        struct dirent *entry;
        uint64_t sum = 0;
        DIR *dir;

        snprintf(path, sizeof(path), "/proc/%d/task", (int)flow.daemon);
        dir = opendir(path);
        cr_assert(dir);
        while ((entry = readdir(dir))) {
                FILE *file;

                if (*entry->d_name == '.' ||
                        (atoi(entry->d_name) == flow.daemon) != loop)
                        continue;
                snprintf(path, sizeof(path), "/proc/%d/task/%s/schedstat",
                        (int)flow.daemon, entry->d_name);
                file = fopen(path, "re");
                if (!file)
                        continue;
                if (fgets(line, sizeof(line), file))
                        sum += strtoull(line, NULL, 10);
                fclose(file);
        }
        closedir(dir);
        return sum;
}

/* The daemon is the last who has them open. */
Test(prepfaults, refused_files_end_on_the_pool)
{
        Sheaf__OfferBatch offer = SHEAF__OFFER_BATCH__INIT;
        uint64_t loop_ns, pool_ns;
        struct peer p;

        if (access("/proc/self/schedstat", R_OK)) {
                fprintf(stderr, "SKIP: prepfaults: no schedstat\n");
                return;
        }
        start();
        p = greet();
        offer.membership = 1;
        loop_ns = thread_ns(true);
        pool_ns = thread_ns(false);
        for (int i = 0; i < 20; i++) {
                Sheaf__Envelope env =
                        envelope(&p, SHEAF__ENVELOPE__BODY_OFFER_BATCH, &offer);
                int fd = memfd_create("large", MFD_CLOEXEC | MFD_ALLOW_SEALING);
                struct sheaf_wire_msg msg;

                cr_assert_eq(fallocate(fd, 0, 0, 64 << 20), 0);
                cr_assert_eq(sheaf_wire_send(p.sock, &env, &fd, 1), 0);
                close(fd);
                cr_assert_eq(await(&p, env.id, &msg, NULL, NULL), 0);
                cr_assert_eq(msg.env->body_case, SHEAF__ENVELOPE__BODY_ERROR);
                sheaf_wire_msg_free(&msg);
        }
        cr_assert(flow_live());
        loop_ns = thread_ns(true) - loop_ns;
        pool_ns = thread_ns(false) - pool_ns;
        cr_assert_lt(loop_ns, pool_ns, "%.1f ms in the loop, %.1f elsewhere",
                (double)loop_ns / 1e6, (double)pool_ns / 1e6);
        close(p.sock);
}

/* ---- a container ---- */

#define OTHER 4001

static int write_text(const char *path, const char *text)
{
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));

        close(fd);
        return n < 0;
}

/* Its root has a directory with the socket, and nothing else: no /proc, no
 * /dev/shm, no other process. */
static int enter(const char *grant)
{
        const char *root = flow_path("root");

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        return write_text("/proc/self/setgroups", "deny") ||
               write_text("/proc/self/uid_map", "0 4001 1") ||
               write_text("/proc/self/gid_map", "0 4001 1") ||
               mount("none", root, "tmpfs", 0, NULL) || chdir(root) ||
               mkdir("run", 0755) ||
               mount(grant, "run", NULL, MS_BIND | MS_REC, NULL) ||
               chroot(".") || chdir("/") ||
               setenv("SHEAF_SOCKET", "/run/sheafd.sock", 1);
}

#define NO_CONTAINER 96

/* Returns in the process inside; the one outside tells how that ended. */
static pid_t fork_inside(const char *grant)
{
        pid_t pid = flow_fork(OTHER, 0), inner;
        int status;

        if (pid)
                return pid;
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID))
                _exit(NO_CONTAINER);
        inner = fork();
        if (!inner) {
                if (enter(grant)) {
                        perror("container");
                        _exit(98);
                }
                return 0;
        }
        waitpid(inner, &status, 0);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 97);
}

/* A member and its worker in each of two containers of one grant; one of the
 * same name through another grant, and one outside, are other groups. */
Test(prepfaults, groups_of_containers)
{
        struct groups_spec spec = groups_spec(0);
        pid_t other, outside;

        start();
        flow_ok("chmod 777 %s && mkdir -m 777 %s %s %s", flow.base,
                flow_path("root"), flow_path("g1"), flow_path("g2"));
        flow_ok("sheaf grant data --dir %s && sheaf grant data --dir %s",
                flow_path("g1"), flow_path("g2"));
        jobs.count = spec.members = JOBS;
        for (uint32_t m = 0; m < JOBS; m++) {
                spec.member = m;
                jobs.member[m] = fork_inside(flow_path("g1"));
                if (!jobs.member[m])
                        groups_train(&spec);
                jobs.worker[m] = fork_inside(flow_path("g1"));
                if (!jobs.worker[m])
                        groups_work(&spec);
        }
        /* Of other traits: they would be refused. */
        spec.members = 1;
        spec.prepares = true;
        spec.transform = "another";
        spec.batches = 20;
        spec.member = JOBS;
        other = fork_inside(flow_path("g2"));
        if (!other)
                groups_train(&spec);
        spec.member = JOBS + 1;
        outside = groups_member(&spec);
        if (flow_wait(other, GROUPS_LIMIT_S) == NO_CONTAINER) {
                fprintf(stderr, "SKIP: prepfaults: user namespaces are not "
                                "allowed\n");
                return;
        }
        groups_ends_well(outside);
        jobs_end_well(40);
        for (uint32_t m = JOBS; m < JOBS + 2; m++)
                groups_took(m, 0, 20);
        cr_assert_eq(flow_stat("prep.prepared"), 40 + 2 * 20);
        cr_assert_eq(flow_stat("prep.refused"), 0);
}
