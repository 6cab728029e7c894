/* SPDX-License-Identifier: Apache-2.0 */
/* The system, the honest and the attackers.
 *
 *  1 the honest reader is a process of its own; what it counts is in memory
 *    shared with the test
 *  2 speeds are printed, never asserted: that it goes on is */
#include "tests/flow/hostile.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define GROWTH        (UINT64_C(120) << 20)
#define GROWTH_SHADOW (UINT64_C(1) << 30) /* flow_sanitized */
#define BASELINE_S    0.4
#define ASK_EVERY_S   0.02
#define ATTACK_S      0.6
#define NO_NAMESPACE  96

static long fds_before;
static uint64_t rss_before;

/* Shared with the reader. */
static struct progress {
        atomic_ulong files; /* read and checked */
        atomic_ulong asks, ask_us, ask_us_max;
        atomic_bool stop;
        atomic_uint away; /* odd while the test has no daemon */
} * progress;

static pid_t reader;
static double baseline, attack_start;
static unsigned long files_before;

/* ---- the system ---- */

/* All the small files; @count, which may be NULL, grows with each. */
static int check_all(struct sheaf_dataset *ds, atomic_ulong *count)
{
        char path[16];
        int rc = 0;

        for (uint32_t i = 0; i < HOSTILE_FILES && !rc; i++) {
                snprintf(path, sizeof(path), "f%u", i);
                rc = flow_check_view(ds, path, i + 1, HOSTILE_SIZE);
                if (count)
                        atomic_fetch_add(count, 1);
        }
        return rc;
}

void hostile_check_others(const char *name)
{
        struct sheaf_session *session;
        struct sheaf_dataset *ds;

        cr_assert_eq(
                flow_open(name, &session, &ds), 0, "%s", sheaf_last_error());
        cr_assert_eq(check_all(ds, NULL), 0, "%s", sheaf_last_error());
        cr_assert_eq(flow_check_read(ds, "large", HOSTILE_LARGE_ID,
                             HOSTILE_LARGE, 77777),
                0, "%s", sheaf_last_error());
        flow_close(session, ds);
}

static void reader_start(void);
static void reader_end(const char *test, const char *suffix);

void hostile_begin(void)
{
        flow_init();
        flow.memory = "64MiB";
        flow.disk = "256MiB";
        flow.deadline_s = 8;
        setenv("ASAN_OPTIONS", "exitcode=77:quarantine_size_mb=16", 1);
        for (uint32_t i = 0; i < HOSTILE_FILES; i++)
                flow_file(i + 1, HOSTILE_SIZE, "f%u", i);
        flow_file(HOSTILE_LARGE_ID, HOSTILE_LARGE, "large");
        flow_start();
        flow_ok("sheaf add --share all --force data %s", flow.origin);
        hostile_check_others("data");
        cr_assert(
                flow_until(30, flow_stat("clients") <= 1 &&
                                       flow_stat("fetch.writing_bytes") == 0));
        fds_before = flow_fds(flow.daemon);
        rss_before = flow_rss(flow.daemon);
        reader_start();
}

void hostile_end_as(const char *test, const char *suffix)
{
        reader_end(test, suffix);
        hostile_check_others("data");
        cr_assert(flow_until(30, flow_stat("clients") <= 1));
        cr_assert(flow_until(30, flow_stat("fetch.in_flight") == 0 &&
                                         flow_stat("fetch.hints_queued") == 0));
        cr_assert_eq(flow_stat("pins.clients"), 0);
        cr_assert_eq(flow_stat("pins.forks"), 0);
        cr_assert_eq(flow_stat("pins.granted_bytes"), 0);
        cr_assert(flow_until(30, flow_fds(flow.daemon) <= fds_before + 24),
                "%ld descriptors, %ld before", flow_fds(flow.daemon),
                fds_before);
        cr_assert_lt(flow_rss(flow.daemon),
                rss_before +
                        (flow_sanitized(flow.daemon) ? GROWTH_SHADOW : GROWTH),
                "%zu MiB, %zu before", (size_t)(flow_rss(flow.daemon) >> 20),
                (size_t)(rss_before >> 20));
        flow_stop();
        cr_assert_neq(
                flow_run("grep -aE 'Sanitizer|runtime error:' %s", flow.log), 0,
                "%s", flow.last.out);
}

void hostile_refused(unsigned long count)
{
        cr_expect_eq(flow_stat("clients.refused_requests"), count,
                "%.0f refused requests counted, of %lu",
                flow_stat("clients.refused_requests"), count);
        flow_ok("n=$(grep -c 'request refused' %s); test $n -ge 1 && "
                "test $n -le 30",
                flow.log);
}

/* ---- the honest reader ---- */

void hostile_daemon_away(bool away)
{
        cr_assert_neq(atomic_load(&progress->away) % 2, away);
        atomic_fetch_add(&progress->away, 1);
}

/* Asks the daemon something in a session of its own, which where nobody
 * listens is refused at once; the session that reads waits. */
static int ask(void)
{
        unsigned int away = atomic_load(&progress->away);
        struct sheaf_session_options options = { .deadline_ms = 20000 };
        struct sheaf_session *session = NULL;
        double start = flow_now();
        int rc = sheaf_session_new(&options, &session);
        unsigned long us;

        if (!rc)
                rc = sheaf_session_connect(session);
        if (session)
                sheaf_session_free(session);
        us = (unsigned long)((flow_now() - start) * 1e6);
        if (rc && (away % 2 || away != atomic_load(&progress->away)))
                return 0;
        atomic_fetch_add(&progress->asks, 1);
        atomic_fetch_add(&progress->ask_us, us);
        if (us > atomic_load(&progress->ask_us_max))
                atomic_store(&progress->ask_us_max, us);
        return rc;
}

static void read_on(void)
{
        struct sheaf_session *session;
        struct sheaf_dataset *ds;
        double next = 0;
        int rc = flow_open("data", &session, &ds);

        while (!rc && !atomic_load(&progress->stop)) {
                rc = check_all(ds, &progress->files);
                if (!rc && flow_now() >= next) {
                        rc = ask();
                        next = flow_now() + ASK_EVERY_S;
                }
        }
        if (rc)
                fprintf(stderr, "honest reader: %s: %s\n", strerror(-rc),
                        sheaf_last_error());
        _exit(-rc);
}

static void reader_start(void)
{
        double start;
        unsigned long first;

        progress = mmap(NULL, sizeof(*progress), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        cr_assert_neq(progress, MAP_FAILED);
        reader = flow_fork(1000, 0);
        cr_assert(reader >= 0);
        if (!reader)
                read_on();
        cr_assert(
                flow_until(20, atomic_load(&progress->files) >= HOSTILE_FILES));
        first = atomic_load(&progress->files);
        start = flow_now();
        flow_sleep(BASELINE_S);
        baseline = (double)(atomic_load(&progress->files) - first) /
                   (flow_now() - start);
        files_before = atomic_load(&progress->files);
        atomic_store(&progress->asks, 0);
        atomic_store(&progress->ask_us, 0);
        atomic_store(&progress->ask_us_max, 0);
        attack_start = flow_now();
}

void hostile_reader_leave(void)
{
        kill(reader, SIGKILL);
        cr_assert_eq(flow_join(reader, 60), 128 + SIGKILL);
}

bool hostile_long_enough(void)
{
        return flow_now() - attack_start > ATTACK_S;
}

static void reader_end(const char *test, const char *suffix)
{
        int rc = -1;
        double seconds = flow_now() - attack_start, rate, ask_ms;
        unsigned long files = atomic_load(&progress->files), asks;

        rate = (double)(files - files_before) / seconds;
        asks = atomic_load(&progress->asks);
        ask_ms = (double)atomic_load(&progress->ask_us) / 1e3;
        printf("FIGURE: %s%s %.2f s: honest files %.0f/s before, %.0f/s beside "
               "it, %.0f %%; asks %.2f ms, longest %.2f ms\n",
                test, suffix, seconds, baseline, rate,
                baseline > 0 ? 100 * rate / baseline : 0,
                asks ? ask_ms / (double)asks : 0,
                (double)atomic_load(&progress->ask_us_max) / 1e3);
        fflush(stdout);
        cr_assert(flow_until(40, atomic_load(&progress->files) > files + 1 ||
                                         (rc = flow_wait(reader, 0)) >= 0),
                "the honest reader came to a stop");
        atomic_store(&progress->stop, true);
        if (rc < 0)
                rc = flow_join(reader, 60);
        cr_assert_eq(rc, 0, "the honest reader failed: %s", strerror(rc));
        munmap(progress, sizeof(*progress));
}

/* ---- attackers ---- */

static int write_text(const char *path, const char *text)
{
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));

        if (fd >= 0)
                close(fd);
        return n < 0 ? -errno : 0;
}

static int become_namespace_root(void)
{
        char map[64];

        snprintf(map, sizeof(map), "0 %d 1", HOSTILE_UID);
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) ||
                write_text("/proc/self/setgroups", "deny") ||
                write_text("/proc/self/uid_map", map) ||
                write_text("/proc/self/gid_map", map))
                return -1;
        return setresuid(0, 0, 0);
}

pid_t hostile_fork(enum hostile_who who)
{
        pid_t pid = flow_fork(HOSTILE_UID, 0);

        if (!pid && who == HOSTILE_NAMESPACE_ROOT && become_namespace_root())
                _exit(NO_NAMESPACE);
        return pid;
}

void hostile_join(pid_t pid, double limit_s)
{
        int rc = flow_join(pid, limit_s);

        if (rc == NO_NAMESPACE)
                fprintf(stderr, "SKIP: %s: user namespaces are not allowed\n",
                        FLOW_NAME);
        else
                cr_assert_eq(rc, 0, "the attacker reports %d", rc);
}
