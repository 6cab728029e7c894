/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets that are listed, presented, removed and given up all at once. */
#include "tests/flow/peer.h"

#include <dirent.h>
#include <linux/sockios.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

TestSuite(datasets, .init = flow_init, .fini = flow_fini, .timeout = 110);

#define FILES 2000
#define SIZE  600

static void make_tree(void)
{
        for (uint32_t i = 0; i < FILES; i++)
                flow_file(i + 1, SIZE, "d%u/f%u", i % 20, i);
}

/* Directories of versions in the cache. */
static size_t versions(void)
{
        DIR *dir = opendir(flow_path("cache/versions"));
        struct dirent *entry;
        size_t count = 0;

        while (dir && (entry = readdir(dir)))
                count += entry->d_name[0] != '.';
        if (dir)
                closedir(dir);
        return count;
}

/* Reads everything, again and again, until @end. */
static void read_on(double end)
{
        while (flow_now() < end) {
                struct sheaf_session *session;
                struct sheaf_dataset *ds;

                if (flow_open("data", &session, &ds))
                        _exit(1);
                for (uint32_t i = 0; i < FILES; i++) {
                        char path[32];

                        snprintf(path, sizeof(path), "d%u/f%u", i % 20, i);
                        if (flow_check_view(ds, path, i + 1, SIZE)) {
                                fprintf(stderr, "%s\n", sheaf_last_error());
                                _exit(2);
                        }
                }
                flow_close(session, ds);
        }
        _exit(0);
}

/* The reader of the origin is let go of; what it was asked for goes on. */
Test(datasets, an_origin_presented_anew_fails_no_read)
{
        pid_t reader;

        make_tree();
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        reader = flow_fork(0, 0);
        if (!reader)
                read_on(flow_now() + 6);
        for (int i = 0; i < 12; i++) {
                flow_ok("sheaf update data %s", flow.origin);
                flow_ok("sheaf warmup --evict data");
                flow_sleep(0.1);
        }
        cr_assert_eq(flow_join(reader, 30), 0);
        flow_stop();
}

/* A dataset that is removed while it is listed does not come back. */
Test(datasets, removed_is_removed)
{
        make_tree();
        flow_start();
        for (int i = 0; i < 12; i++) {
                flow_ok("sheaf add data%d %s", i, flow.origin);
                flow_file(1, SIZE + (uint64_t)i + 1, "d0/f0");
                flow_run("sheaf update data%d & sleep 0.0%d; sheaf rm --force "
                         "data%d; wait",
                        i, i, i);
        }
        flow_stop();
        flow_start();
        flow_ok("sheaf ls --json");
        cr_assert_not(strstr(flow.last.out, "data"), "%s", flow.last.out);
        cr_assert(flow_until(30, versions() == 0), "%zu versions stay",
                versions());
        flow_stop();
}

/* Two removals of one dataset at once, and one beside an add that is given
 * up: what is added afterwards is there, and stays. */
Test(datasets, removed_by_several_at_once)
{
        make_tree();
        flow_start();
        for (int i = 0; i < 10; i++) {
                flow_ok("sheaf add twice %s", flow.origin);
                flow_run("for n in 1 2 3 4; do "
                         "sheaf rm --force twice & done; wait");
                flow_run("timeout -s KILL 0.0%d sheaf add half %s & "
                         "while kill -0 $!; do sheaf rm --force half; done; "
                         "wait; sheaf rm --force half",
                        1 + i % 9, flow.origin);
                flow_ok("sheaf add data%d %s", i, flow.origin);
                flow_ok("sheaf ls data%d", i);
        }
        cr_assert(flow_until(30, versions() == 10), "%zu versions", versions());
        for (int i = 0; i < 10; i++)
                flow_ok("sheaf ls data%d", i);
        flow_stop();
        flow_start();
        for (int i = 0; i < 10; i++)
                flow_ok("sheaf ls data%d", i);
        flow_stop();
}

/* Runs verbs on three names until @end; some are killed. */
static void command_on(unsigned int seed, double end)
{
        static const char *const verbs[] = { "add", "add", "add", "rm --force",
                "rm --force", "update", "share --force", "seal", "warmup",
                "warmup --evict", "verify", "ls --json" };

        while (flow_now() < end) {
                const char *verb =
                        verbs[(size_t)rand_r(&seed) % SHEAF_ARRAY_LEN(verbs)];
                int name = rand_r(&seed) % 3, wait = rand_r(&seed) % 40;
                const char *more = !strcmp(verb, "add") ? flow.origin : "";

                if (!strncmp(verb, "share", 5))
                        more = rand_r(&seed) % 2 ? "all" : "owner";
                if (wait < 10)
                        flow_run("timeout -s KILL 0.0%d sheaf %s some%d %s",
                                wait, verb, name, more);
                else
                        flow_run("sheaf %s some%d %s", verb, name, more);
        }
        _exit(0);
}

/* Whatever is done to datasets at once, those that are made afterwards are
 * there and whole, and nothing stays of the others. */
Test(datasets, many_verbs_at_once)
{
        pid_t users[5];

        make_tree();
        flow_start();
        for (unsigned int i = 0; i < SHEAF_ARRAY_LEN(users); i++) {
                users[i] = flow_fork(0, 0);
                if (!users[i])
                        command_on(i + 1, flow_now() + 5);
        }
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(users); i++)
                cr_assert_eq(flow_join(users[i], 60), 0);
        for (int i = 0; i < 3; i++) {
                flow_run("sheaf rm --force some%d", i);
                flow_ok("sheaf add data%d %s", i, flow.origin);
        }
        cr_assert(flow_until(30, versions() == 3), "%zu versions", versions());
        for (int i = 0; i < 3; i++)
                flow_ok("sheaf verify data%d", i);
        flow_stop();
}

/* Whether the daemon may write files. */
static void allow_writes(bool allowed)
{
        struct rlimit limit = { .rlim_cur = allowed ? RLIM_INFINITY : 0,
                .rlim_max = RLIM_INFINITY };

        cr_assert_eq(prlimit(flow.daemon, RLIMIT_FSIZE, &limit, NULL), 0);
}

/* One whose record stays in the catalog would be back after a restart. */
Test(datasets, a_failed_removal_is_told)
{
        signal(SIGXFSZ, SIG_IGN); /* the daemon inherits that */
        flow_file(1, SIZE, "f");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        allow_writes(false);
        cr_expect_neq(flow_run("sheaf rm data"), 0);
        cr_expect(strstr(flow.last.err, "stays"), "%s", flow.last.err);
        allow_writes(true);
        flow_ok("sheaf ls --json");
        cr_expect(strstr(flow.last.out, "data"), "%s", flow.last.out);
        flow_ok("sheaf rm data");
        flow_stop();
        flow_start();
        flow_ok("sheaf ls --json");
        cr_expect_not(strstr(flow.last.out, "data"), "%s", flow.last.out);
        flow_stop();
}

static const char *const counted[] = { "origin.bytes", "origin.reads",
        "origin.read_ns", "origin.reader_starts", "disk.hits", "misses",
        "arena.hits" };
static double totals[SHEAF_ARRAY_LEN(counted)];

/* Nothing fell since the last call. */
static void nothing_fell(const char *when)
{
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(counted); i++) {
                double now = flow_stat(counted[i]);

                cr_expect_geq(now, totals[i], "%s after %s: %.0f, was %.0f",
                        counted[i], when, now, totals[i]);
                totals[i] = now;
        }
}

static void read_all(const char *name)
{
        struct sheaf_session *session;
        struct sheaf_dataset *ds;

        cr_assert_eq(flow_open(name, &session, &ds), 0);
        for (int i = 0; i < 2; i++) /* the second is a hit */
                cr_assert_eq(flow_check_view(ds, "f", 1, 300000), 0);
        flow_close(session, ds);
}

/* Also beyond what counted: a client, a reader, a dataset. */
Test(datasets, totals_never_fall)
{
        flow_file(1, 300000, "f");
        flow_start();
        for (int i = 0; i < 2; i++) {
                flow_ok("sheaf add data %s", flow.origin);
                read_all("data");
                flow_ok("sheaf warmup --evict --disk data");
                nothing_fell("reading");
                flow_ok("sheaf update data %s", flow.origin);
                nothing_fell("update");
                read_all("data");
                nothing_fell("reading again");
                flow_ok("sheaf rm data");
                nothing_fell("rm");
                flow_sleep(2.5); /* the sweep takes what is left of it */
                nothing_fell("the sweep");
        }
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(counted); i++)
                cr_expect(totals[i] > 0 || !strcmp(counted[i], "disk.hits"),
                        "%s", counted[i]);
        cr_expect_gt(flow_stat_of("~removed", "origin.bytes"), 0);
        cr_expect_eq(flow_run_as(4321, 0, "sheaf stats --json"), 0, "%s",
                flow.last.err);
        cr_expect_not(strstr(flow.last.out, "~removed"), "%s", flow.last.out);
        flow_stop();
}

/* ---- answers that take several turns ---- */

#define SETS  20
#define ASKED 40 /* far more than is queued for a client */

struct sheet {
        double sum[SHEAF_ARRAY_LEN(counted)];
        bool first, last; /* of the datasets that go: told by its own row */
};

/* The name makes the rows long. */
static const char *set_name(int i)
{
        static char name[16 + 150];

        memset(name, 'x', sizeof(name));
        snprintf(name + 150, 16, "%d", i);
        return name;
}

static void add_up(struct sheet *sheet, const Sheaf__Stats *stats,
        const char *first, const char *last)
{
        for (size_t i = 0; i < stats->n_metric; i++) {
                const Sheaf__Metric *m = stats->metric[i];

                if (!*m->dataset || *m->client)
                        continue;
                sheet->first |= !strcmp(m->dataset, first);
                sheet->last |= !strcmp(m->dataset, last);
                for (size_t k = 0; k < SHEAF_ARRAY_LEN(counted); k++)
                        if (!strcmp(m->name, counted[k]))
                                sheet->sum[k] += m->value;
        }
}

/* Asks again and again, and reads nothing before all is asked for, and what
 * fits is queued. */
static struct peer ask_without_reading(int count)
{
        struct peer p = greet();
        Sheaf__GetStats stats = SHEAF__GET_STATS__INIT;
        int unread = 1;

        for (int i = 0; i < count; i++) {
                Sheaf__Envelope env =
                        envelope(&p, SHEAF__ENVELOPE__BODY_GET_STATS, &stats);

                cr_assert_eq(sheaf_wire_send(p.sock, &env, NULL, 0), 0);
        }
        cr_assert(flow_until(
                30, ioctl(p.sock, SIOCOUTQ, &unread) == 0 && !unread));
        flow_ok("sheaf ls"); /* a turn later */
        return p;
}

/* An array of all answers; the caller's. */
static struct sheet *read_sheets(
        struct peer *p, size_t count, const char *first, const char *last)
{
        struct sheet *sheets = calloc(count, sizeof(*sheets));
        uint64_t begin = p->id - count + 1;
        size_t ends = 0;

        cr_assert(sheets);
        while (ends < count) {
                struct sheaf_wire_msg msg;

                cr_assert_eq(sheaf_wire_recv(p->sock, &msg), 1);
                cr_assert_eq(msg.env->body_case, SHEAF__ENVELOPE__BODY_STATS);
                add_up(&sheets[msg.env->id - begin], msg.env->stats, first,
                        last);
                ends += !msg.env->more;
                sheaf_wire_msg_free(&msg);
        }
        close(p->sock);
        return sheets;
}

static pid_t hold_open(const char *name, int written)
{
        struct sheaf_session *session;
        struct sheaf_dataset *ds;
        pid_t pid = flow_fork(0, 0);

        if (pid)
                return pid;
        for (int i = 0; i < 3; i++) {
                if (!i && flow_open(name, &session, &ds))
                        _exit(1);
                if (flow_check_view(ds, "f", 1, 300000))
                        _exit(2);
        }
        (void)!write(written, "x", 1);
        while (true)
                pause();
}

/* Two datasets go while the rows of one were told, and the other's not; it is
 * read on when versions of @stay are left. */
static void told_once(int first_number, int last_number, size_t stay)
{
        sheaf_autofree char *first = strdup(set_name(first_number)),
                            *last = strdup(set_name(last_number));
        struct sheet *whole, *sheets;
        struct peer p;
        int fds[2], parted = 0;
        pid_t pid;
        char c;

        cr_assert_eq(pipe(fds), 0);
        pid = hold_open(first, fds[1]);
        cr_assert(pid > 0);
        cr_assert_eq(read(fds[0], &c, 1), 1);
        close(fds[0]);
        close(fds[1]);
        p = ask_without_reading(1);
        whole = read_sheets(&p, 1, first, last);
        cr_expect(whole->first && whole->last);
        p = ask_without_reading(ASKED);
        flow_ok("sheaf rm --force %s && sheaf rm %s", first, last);
        cr_assert(flow_until(30, versions() <= stay));
        sheets = read_sheets(&p, ASKED, first, last);
        for (size_t i = 0; i < ASKED; i++) {
                parted += sheets[i].first && !sheets[i].last;
                for (size_t k = 0; k < SHEAF_ARRAY_LEN(counted); k++)
                        cr_expect_eq(sheets[i].sum[k], whole->sum[k],
                                "%s in answer %zu: %.0f, %.0f before",
                                counted[k], i, sheets[i].sum[k], whole->sum[k]);
        }
        cr_expect_geq(parted, 1);
        free(sheets);
        free(whole);
        kill(pid, SIGKILL);
        flow_join(pid, 5);
}

/* Each count is told once, by the dataset or among the removed. */
Test(datasets, removed_while_they_are_told)
{
        flow_file(1, 300000, "f");
        flow_start();
        for (int i = 0; i < SETS; i++)
                flow_ok("sheaf add %s %s", set_name(i), flow.origin);
        for (int i = 0; i < SETS; i++)
                read_all(set_name(i));
        told_once(0, SETS - 1, SETS);
        told_once(1, SETS - 2, SETS - 4);
        flow_stop();
}

/* Nothing of a listing that was given up stays, and the next one need not
 * wait for it. */
Test(datasets, given_up_listings_leave_nothing)
{
        make_tree();
        flow_start();
        for (int i = 0; i < 20; i++) {
                flow_run("timeout --foreground -s %s 0.0%d sheaf add data%d %s",
                        i % 2 ? "KILL" : "INT", 1 + i % 9, i, flow.origin);
                flow_run("sheaf rm --force data%d", i);
        }
        cr_assert(flow_until(30, versions() == 0), "%zu versions stay",
                versions());
        flow_ok("sheaf add data %s", flow.origin);
        flow_run("timeout --foreground -s INT 0.02 sheaf update data");
        flow_ok("sheaf ls data");
        cr_assert(flow_until(30, !flow_run("sheaf update data")), "%s",
                flow.last.err);
        flow_stop();
}
