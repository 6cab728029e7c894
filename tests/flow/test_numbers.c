/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that people watch: no counter ever falls, and docs/metrics.md and the
 * output name the same ones. Which counters there are the daemon says. */
#include "tests/flow/groups.h"
#include "tests/flow/harness.h"
#include "tests/flow/peer.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

TestSuite(numbers, .init = flow_init, .fini = flow_fini, .timeout = 110);

#define FILES 60
#define BYTES 300000

static json_t *parse(const char *what)
{
        json_error_t error;
        json_t *root = json_loads(flow.last.out, 0, &error);

        cr_assert(root, "%s: %s\n%s", what, error.text, flow.last.out);
        return root;
}

static const char *text_of(json_t *object, const char *key)
{
        const char *text = json_string_value(json_object_get(object, key));

        return text ? text : "";
}

static void make_files(const char *dir, uint32_t first)
{
        for (uint32_t i = 0; i < FILES; i++)
                flow_file(first + i, BYTES, "%s/f%02u", dir, i);
}

/* `sheaf stats --json`, which may be longer than the harness keeps. */
static json_t *get_stats(void)
{
        json_error_t error;
        json_t *root;

        flow_ok("sheaf stats --json > %s", flow_path("stats.json"));
        root = json_load_file(flow_path("stats.json"), 0, &error);
        cr_assert(root, "stats: %s", error.text);
        return root;
}

/* ---- the documents ---- */

/* Names in the first column of tables, as `name`, of docs/metrics.md. */
static void read_documented(json_t *names)
{
        char line[1024];
        FILE *file = fopen(SHEAF_SOURCE "/docs/metrics.md", "re");

        cr_assert(file);
        while (fgets(line, sizeof(line), file)) {
                char *end = strchr(line + 1, '|'), *at = line;

                if (line[0] != '|' || !end)
                        continue;
                *end = '\0';
                while ((at = strchr(at, '`'))) {
                        char *stop = strchr(++at, '`');

                        cr_assert(stop, "%s", line);
                        *stop = '\0';
                        json_object_set_new(names, at, json_true());
                        at = stop + 1;
                }
        }
        fclose(file);
}

/* Each name of the output is in the documents. */
static void all_documented(json_t *totals)
{
        json_t *documented = json_object(), *value;
        const char *name;

        read_documented(documented);
        json_object_foreach(totals, name, value)
        {
                bool is_op = !strncmp(name, "mount.requests.", 15);

                cr_expect(json_object_get(documented,
                                  is_op ? "mount.requests.OP" : name),
                        "%s is not documented", name);
        }
        json_decref(documented);
}

/* ---- no counter falls ---- */

static bool is_gauge(json_t *root, const char *name)
{
        json_t *metric;
        size_t i;

        json_array_foreach(json_object_get(root, "metrics"), i, metric)
        {
                if (!strcmp(text_of(metric, "name"), name))
                        return json_is_true(json_object_get(metric, "gauge"));
        }
        return false;
}

/* All counters of @a, a sheet or one dataset's, against the later @b. */
static void compare(json_t *before, const char *of, json_t *a, json_t *b)
{
        const char *name;
        json_t *value;

        json_object_foreach(a, name, value)
        {
                double was = json_number_value(value);
                double is = json_number_value(json_object_get(b, name));

                if (!is_gauge(before, name))
                        cr_assert_geq(is, was, "%s %s: %.0f, before %.0f", of,
                                name, is, was);
        }
}

static json_t *of_dataset(json_t *root, const char *name)
{
        return json_object_get(json_object_get(root, "datasets"), name);
}

static pid_t start_loop(const char *command)
{
        pid_t pid = flow_fork(0, 0);

        if (pid)
                return pid;
        while (true)
                flow_run("%s", command);
}

static pid_t start_reader(void)
{
        pid_t pid = flow_fork(0, 0);

        if (pid)
                return pid;
        for (uint32_t round = 0;; round++) {
                struct sheaf_session *session;
                struct sheaf_dataset *dataset;

                if (flow_open("stays", &session, &dataset))
                        continue;
                for (uint32_t i = 0; i < FILES; i++) {
                        char name[8];

                        snprintf(name, sizeof(name), "f%02u",
                                (i * 7 + round) % FILES);
                        flow_check_view(dataset, name,
                                1 + (i * 7 + round) % FILES, BYTES);
                }
                flow_close(session, dataset);
        }
}

/* More views than may be pinned. */
static pid_t start_hoarder(void)
{
        pid_t pid = flow_fork(0, 0);
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;

        if (pid)
                return pid;
        while (flow_open("stays", &session, &dataset))
                ;
        while (true) {
                struct sheaf_view views[FILES];
                int rcs[FILES];

                for (uint64_t i = 0; i < FILES; i++)
                        rcs[i] = sheaf_view_file(dataset, i, &views[i]);
                for (uint64_t i = 0; i < FILES; i++)
                        if (!rcs[i])
                                sheaf_view_release(&views[i]);
        }
}

/* A job that loses its place, and asks for slots again. */
static pid_t start_job(void)
{
        struct sheaf_job_options options = { .name = "job", .ahead = 2 };
        pid_t pid = flow_fork(0, 0);
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_job *job;

        if (pid)
                return pid;
        for (uint64_t epoch = 0;; epoch++) {
                if (flow_open("stays", &session, &dataset))
                        continue;
                if (!sheaf_job_open(dataset, &options, &job)) {
                        for (uint32_t slot = 0; slot < FILES; slot++) {
                                uint64_t ordinal;

                                (void)!sheaf_job_bind(
                                        job, epoch, &slot, 1, 0, &ordinal);
                        }
                        sheaf_job_close(job);
                }
                flow_close(session, dataset);
        }
}

/* Says what does not decode. */
static pid_t start_vandal(void)
{
        pid_t pid = flow_fork(0, 0);

        if (pid)
                return pid;
        while (true) {
                struct peer p = { .sock = sheaf_wire_connect(flow.socket) };

                if (p.sock >= 0 && !hello(&p))
                        (void)!sheaf_wire_send_record(
                                p.sock, "garbage", 7, NULL, 0);
                sheaf_close_p(&p.sock);
                flow_sleep(0.05);
        }
}

/* A group of two jobs, again and again: one reports a failure, one comes to a
 * batch that is gone. */
static pid_t start_group(void)
{
        pid_t pid = flow_fork(0, 0);

        if (pid)
                return pid;
        groups_init();
        for (uint32_t round = 0;; round++) {
                struct groups_spec spec = groups_spec(0);
                pid_t pids[3];

                spec.dataset = "stays";
                spec.batches = 10;
                spec.ahead = 2;
                spec.patience_ms = 1;
                spec.fail_at = 3;
                pids[0] = groups_member(&spec);
                pids[1] = groups_worker(&spec);
                spec.member = 1;
                spec.slow_ms = 20;
                spec.transform = round % 4 == 3 ? "t2" : "t1";
                pids[2] = groups_member(&spec);
                for (int i = 0; i < 3; i++)
                        flow_wait(pids[i], 3);
                for (int i = 0; i < 3; i++)
                        kill(pids[i], SIGKILL);
        }
}

static pid_t (*const starters[])(void) = { start_reader, start_reader,
        start_hoarder, start_job, start_vandal, start_group };

static const char *const loops[] = {
        "sheaf warmup comes --quiet; sheaf warmup comes --evict;"
        "sheaf rm comes --force; sheaf add comes $O/comes --quiet",
        "sheaf share stays all --force; sheaf warmup stays --evict;"
        "sheaf verify stays --quiet; sheaf share stays owner",
        "touch $O/stays/f0$(($$ % 10)); sheaf update stays --quiet",
        "sheaf mount stays $M && cat $M/f1* >/dev/null; cat $M/f0*;"
        "sheaf umount $M --lazy",
        "mkdir -p $O/../grant; sheaf grant stays --dir $O/../grant "
        "--json | sed -n 's/.*\"id\": *\"\\([0-9a-f]*\\)\".*/\\1/p' >"
        "$O/../id; SHEAF_SOCKET=$O/../grant/sheafd.sock timeout 5 "
        "quickread --dataset stays >/dev/null;"
        "sheaf grant --revoke $(cat $O/../id)",
        /* Faults of the origin, and readers that end. */
        "sheaf warmup faulty --evict --quiet; sheaf warmup faulty --quiet",
        "sleep 0.3; kill -9 $(pgrep -P $D sheaf-reader)",
        /* Damage on the disk of the cache; two names for the same bytes. */
        "sleep 0.2; sheaf warmup stays --evict --memory --quiet;"
        "for f in $C/segments/*; do dd if=/dev/urandom of=$f bs=512 count=40 "
        "seek=$(($(date +%s%N) / 1000 % 3000)) conv=notrunc; done;"
        "sheaf verify stays --cache-only --repair --quiet",
        "sheaf add twice $O/stays --quiet; sheaf warmup twice --quiet;"
        "sheaf rm twice; sheaf rm never",
};

/* What nothing of this brings about for certain, and who does. */
static const struct {
        const char *name, *by;
} elsewhere[] = {
        { "arena.place_failures", "states/memory_that_is_pinned" },
        { "arena.refused", "host/memory_is_refused" },
        { "clients.dropped_mute", "host/idle_connections_use_all_..." },
        { "clients.dropped_pins", "attacks/pins_beyond_a_grant_..." },
        { "clients.dropped_slow", "floods/nobody_reads" },
        { "clients.refused", "floods/thousands_of_connections" },
        { "disk.io_errors", "store_faults" },
        { "disk.refused_full", "store_full" },
        { "fetch.writes_skipped", "a disk that is stuck" },
        { "jobs.journal_errors", "jobkeep, resume" },
        { "jobs.refused", "hostile/jobs_without_end" },
        { "jobs.repeats", "resume/a_lost_place_is_told" },
        { "jobs.replaced", "neutral" },
        { "jobs.restored", "resume" },
        { "mount.passthrough_opens", "libfuse 3.17" },
        { "origin.readers_abandoned", "states/a_reader_that_survives_..." },
        { "origin.timeouts", "origin_faults" },
        { "prep.detached", "groups" },
        { "prep.failed", "groups" },
        { "prep.late", "groups" },
        { "prep.private", "groups" },
        { "prep.redone", "groups" },
        { "prep.refused", "groups" },
        { "prep.shed", "forgers" },
        { "rechecks", "client/pin" },
};

static bool is_elsewhere(const char *name)
{
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(elsewhere); i++)
                if (!strcmp(elsewhere[i].name, name))
                        return true;
        return false;
}

/* A counter that did not count could not have fallen. NULL: all did. */
static const char *not_counted(json_t *root)
{
        json_t *totals = json_object_get(root, "totals"), *value;
        const char *name;

        json_object_foreach(totals, name, value)
        {
                if (json_number_value(value) == 0 && !is_elsewhere(name) &&
                        !is_gauge(root, name) &&
                        strncmp(name, "mount.requests.", 15) != 0)
                        return name;
        }
        return json_object_get(totals, "mount.requests.read")
                       ? NULL
                       : "mount.requests.read";
}

static void all_are_counters(json_t *root)
{
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(elsewhere); i++)
                cr_expect(json_object_get(json_object_get(root, "totals"),
                                  elsewhere[i].name) &&
                                  !is_gauge(root, elsewhere[i].name),
                        "%s is no counter", elsewhere[i].name);
}

static void prepare_world(void)
{
        flow.memory = "32MiB";
        flow.disk = "64MiB";
        flow.deadline_s = 3;
        flow.faults = "eio=300:some,estale=300:old,crash:ends,hang:hangs";
        make_files("stays", 1);
        make_files("comes", 1001);
        for (int i = 0; i < 9; i++)
                flow_file(2001 + (uint32_t)i, BYTES, "faulty/%s%d",
                        i % 3 ? i % 3 > 1 ? "old" : "some" : "good", i);
        flow_file(3001, BYTES, "faulty/ends");
        flow_file(3002, BYTES, "faulty/hangs");
        flow_start();
        setenv("O", flow.origin, 1);
        setenv("M", flow.mount, 1);
        setenv("C", flow.cache, 1);
        flow_ok("sheaf add stays %s/stays; sheaf add comes %s/comes; "
                "sheaf add faulty %s/faulty && sheaf warmup comes --quiet",
                flow.origin, flow.origin, flow.origin);
        /* Something is found again. */
        flow_kill();
        flow_start();
        flow_ok("echo %d", flow.daemon);
        setenv("D", strtok(flow.last.out, "\n"), 1);
}

#define WATCH_S      15
#define WATCH_S_MOST 75 /* until all have counted */

/* Faults at the origin and on the disk, kills of clients, mounts and readers,
 * datasets, grants, jobs and groups that come and go. */
Test(numbers, no_counter_falls)
{
        enum {
                LOOPS = SHEAF_ARRAY_LEN(loops),
                ALL = LOOPS + SHEAF_ARRAY_LEN(starters)
        };
        pid_t pids[ALL];
        json_t *before, *now;
        double begun;

        prepare_world();
        for (size_t i = 0; i < ALL; i++)
                pids[i] = i < LOOPS ? start_loop(loops[i])
                                    : starters[i - LOOPS]();
        before = get_stats();
        begun = flow_now();
        while (flow_now() - begun < WATCH_S ||
                (not_counted(before) && flow_now() - begun < WATCH_S_MOST)) {
                size_t victim = LOOPS + (size_t)rand() % (ALL - LOOPS);

                flow_sleep((double)(rand() % 100) / 1e3);
                now = get_stats();
                compare(before, "total", json_object_get(before, "totals"),
                        json_object_get(now, "totals"));
                compare(before, "stays", of_dataset(before, "stays"),
                        of_dataset(now, "stays"));
                compare(before, "~removed", of_dataset(before, "~removed"),
                        of_dataset(now, "~removed"));
                json_decref(before);
                before = now;
                if (rand() % 8)
                        continue;
                kill(pids[victim], SIGKILL);
                flow_join(pids[victim], 5);
                pids[victim] = starters[victim - LOOPS]();
        }
        for (size_t i = 0; i < ALL; i++) {
                kill(pids[i], SIGKILL);
                flow_join(pids[i], 5);
        }
        cr_expect(!not_counted(before), "%s was never counted",
                not_counted(before));
        all_are_counters(before);
        all_documented(json_object_get(before, "totals"));
        json_decref(before);
}

/* ---- names ---- */

Test(numbers, documents_and_output_name_the_same)
{
        json_t *documented = json_object(), *root, *totals, *value;
        const char *name;

        make_files("data", 1);
        flow_start();
        flow_ok("sheaf add data %s/data", flow.origin);
        flow_mount("data", flow.mount);
        flow_ok("cat %s/f0* >/dev/null", flow.mount);
        root = get_stats();
        totals = json_object_get(root, "totals");
        read_documented(documented);
        all_documented(totals);
        json_object_foreach(documented, name, value)
        {
                /* Names of states have no dot but may be one word. */
                if (strchr(name, '-') || !strcmp(name, "mount.requests.OP"))
                        continue;
                cr_expect(
                        json_object_get(totals, name), "%s is not there", name);
        }
        json_decref(root);
        flow_ok("grep -oE '\\br, (\"[a-z-]+\"),' %s/daemon/verbs/status.c | "
                "grep -oE '[a-z-]+-[a-z-]+' | sort -u",
                SHEAF_SOURCE);
        for (char *word = strtok(flow.last.out, "\n"); word;
                word = strtok(NULL, "\n"))
                cr_expect(json_object_get(documented, word),
                        "the state %s is not documented", word);
        json_decref(documented);
        flow_umount(flow.mount);
        flow_stop();
}

/* Nothing is cut: more states and more clients than a message holds. */
Test(numbers, long_answers_are_whole)
{
        struct sheaf_session *sessions[140];
        size_t count, detached = 0, i;
        json_t *root, *condition;

        for (uint32_t d = 0; d < 20; d++)
                flow_file(d + 1, 10, "d%u/f", d);
        flow_start();
        for (uint32_t d = 0; d < 20; d++)
                flow_ok("sheaf add d%u %s/d%u --quiet", d, flow.origin, d);
        flow_stop();
        flow_ok("mv %s %s.away", flow.origin, flow.origin);
        flow_start();
        for (uint32_t d = 0; d < 20; d++)
                flow_run("quickread --dataset d%u", d);
        for (i = 0; i < SHEAF_ARRAY_LEN(sessions); i++) {
                cr_assert_eq(sheaf_session_new(NULL, &sessions[i]), 0);
                cr_assert_eq(sheaf_session_connect(sessions[i]), 0, "%s",
                        sheaf_last_error());
        }
        flow_ok("sheaf status --json");
        root = parse("status");
        count = json_array_size(json_object_get(root, "clients"));
        cr_assert_geq(count, SHEAF_ARRAY_LEN(sessions));
        json_array_foreach(json_object_get(root, "conditions"), i, condition)
                detached +=
                !strcmp(text_of(condition, "name"), "origin-detached");
        cr_assert_eq(detached, 20);
        json_decref(root);
        for (i = 0; i < SHEAF_ARRAY_LEN(sessions); i++)
                sheaf_session_free(sessions[i]);
        flow_ok("mv %s.away %s", flow.origin, flow.origin);
        flow_stop();
}

/* ---- the live view ---- */

Test(numbers, watch_shows_rates)
{
        pid_t reader;

        make_files("stays", 1);
        flow_start();
        flow_ok("sheaf add stays %s/stays", flow.origin);
        reader = start_reader();
        /* Each line of a pipe comes at once; three samples, then the end. */
        flow_ok("sheaf stats --watch=0.2 | awk '/^stays/ { n++; if ($5 ~ "
                "/\\/s/ || $0 ~ /\\/s/) rate++ } n == 3 { exit } END { exit "
                "!(n == 3 && rate == 3) }'");
        flow_ok("sheaf stats --watch=0.2 --json | awk '/\"seconds\"/ { n++ } "
                "n == 3 { exit } END { exit !(n == 3) }'");
        cr_assert_eq(
                flow_run(
                        "timeout --foreground -s INT 1 sheaf stats --watch=0.2 "
                        ">/dev/null; test $? = 124 -o $? = 130"),
                0);
        cr_assert_eq(flow_run("sheaf stats --watch=0"), 2);
        kill(reader, SIGKILL);
        flow_join(reader, 5);
        flow_stop();
}
