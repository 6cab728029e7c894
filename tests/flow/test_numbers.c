/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that people watch: no counter ever falls, docs/metrics.md and the
 * output name the same ones, and each degraded state is told by its name,
 * with cause and remedy. */
#include "tests/flow/harness.h"

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

Test(numbers, no_counter_falls)
{
        static const char *const loops[] = {
                "sheaf warmup comes --quiet; sheaf warmup comes --evict;"
                "sheaf rm comes --force; sheaf add comes $O/comes --quiet",
                "sheaf share stays all --force; sheaf warmup stays --evict;"
                "sheaf verify stays --quiet; sheaf share stays owner",
                "touch $O/stays/f0$(($$ % 10)); sheaf update stays --quiet",
                "sheaf mount stays $M && cat $M/f1* >/dev/null;"
                "sheaf umount $M --lazy",
                "mkdir -p $O/../grant; sheaf grant stays --dir $O/../grant "
                "--json | sed -n 's/.*\"id\": *\"\\([0-9a-f]*\\)\".*/\\1/p' >"
                "$O/../id; SHEAF_SOCKET=$O/../grant/sheafd.sock timeout 5 "
                "quickread --dataset stays >/dev/null;"
                "sheaf grant --revoke $(cat $O/../id)",
        };
        pid_t pids[SHEAF_ARRAY_LEN(loops) + 2];
        json_t *before, *now;
        double end;

        flow.memory = "32MiB";
        flow.disk = "64MiB";
        make_files("stays", 1);
        make_files("comes", 1001);
        flow_start();
        setenv("O", flow.origin, 1);
        setenv("M", flow.mount, 1);
        flow_ok("sheaf add stays %s/stays; sheaf add comes %s/comes",
                flow.origin, flow.origin);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(loops); i++)
                pids[i] = start_loop(loops[i]);
        for (size_t i = SHEAF_ARRAY_LEN(loops); i < SHEAF_ARRAY_LEN(pids); i++)
                pids[i] = start_reader();
        before = get_stats();
        for (end = flow_now() + 12; flow_now() < end;) {
                flow_sleep((double)(rand() % 100) / 1e3);
                now = get_stats();
                compare(before, "total", json_object_get(before, "totals"),
                        json_object_get(now, "totals"));
                compare(before, "stays", of_dataset(before, "stays"),
                        of_dataset(now, "stays"));
                json_decref(before);
                before = now;
        }
        json_decref(before);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(pids); i++) {
                kill(pids[i], SIGKILL);
                flow_join(pids[i], 5);
        }
        cr_assert_gt(flow_stat("arena.evicted"), 0);
        cr_assert_gt(flow_stat("mount.requests.read"), 0);
        cr_assert_gt(flow_stat("arena.hits"), 0);
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
        json_object_foreach(totals, name, value)
        {
                bool is_op = !strncmp(name, "mount.requests.", 15);

                cr_expect(json_object_get(documented,
                                  is_op ? "mount.requests.OP" : name),
                        "%s is not documented", name);
        }
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

/* ---- states ---- */

/* Whether status shows the state, as JSON and as text; whatever it shows has
 * all that belongs to it. */
static bool shows(const char *name)
{
        json_t *root, *condition;
        bool found = false;
        size_t i;

        flow_ok("sheaf status --json");
        root = parse("status");
        json_array_foreach(json_object_get(root, "conditions"), i, condition)
        {
                cr_assert(*text_of(condition, "name"));
                cr_assert(*text_of(condition, "what"));
                cr_assert(*text_of(condition, "why"), "%s has no cause",
                        text_of(condition, "name"));
                cr_assert(*text_of(condition, "remedy"), "%s has no remedy",
                        text_of(condition, "name"));
                found |= !strcmp(text_of(condition, "name"), name);
        }
        json_decref(root);
        if (!found)
                return false;
        /* It may end in between. */
        flow_ok("sheaf status");
        return strstr(flow.last.out, name) != NULL;
}

/* From page @first on: the first two begin it. */
static void lose_catalog(int first)
{
        flow_ok("dd if=/dev/zero of=%s/catalog/data.mdb bs=4096 seek=%d "
                "count=%d conv=notrunc 2>/dev/null",
                flow.cache, first, 20 - first);
}

Test(numbers, states_of_the_start)
{
        flow.extra = "--no-uring";
        flow_start();
        cr_assert(shows("no-io-uring"));
        cr_assert_not(shows("catalog-set-aside"));
        cr_assert_not(shows("chunks-damaged"));
        cr_assert_not(shows("catalog-damaged"));
        lose_catalog(2);
        cr_assert_neq(flow_run("sheaf add data %s", flow.origin), 0);
        cr_assert(shows("catalog-damaged"));
        flow_stop();
        lose_catalog(0);
        flow_start();
        cr_assert_not(shows("catalog-damaged"));
        cr_assert(shows("catalog-set-aside"));
        flow_ok("rm -r %s/catalog.damaged", flow.cache);
        cr_assert_not(shows("catalog-set-aside"));
        flow_stop();
}

Test(numbers, damaged_chunks_are_told)
{
        flow.memory = "32MiB";
        make_files("data", 1);
        flow_start();
        flow_ok("sheaf add data %s/data && sheaf warmup data --disk --quiet",
                flow.origin);
        flow_ok("sheaf warmup data --evict --memory --quiet");
        flow_stop();
        flow_ok("for f in %s/segments/*; do dd if=/dev/urandom of=$f bs=1024 "
                "seek=400 count=1000 conv=notrunc 2>/dev/null; done",
                flow.cache);
        flow_start();
        cr_assert_not(shows("chunks-damaged"));
        flow_ok("quickread --dataset data --compare %s/data", flow.origin);
        cr_assert(shows("chunks-damaged"));
        flow_stop();
}

/* Told until one answers. */
static void states_of_readers(void)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;

        cr_assert_not(shows("reader-restarting"));
        cr_assert_eq(flow_open("b", &session, &dataset), 0);
        cr_assert_neq(flow_check_view(dataset, "bad", 3, 1000), 0);
        cr_assert(shows("reader-restarting"));
        cr_assert_eq(flow_check_view(dataset, "f", 2, 1000), 0);
        cr_assert_not(shows("reader-restarting"));
        flow_close(session, dataset);
}

Test(numbers, states_of_origins_and_grants)
{
        pid_t pid;

        flow.faults = "hang:stuck,crash:bad";
        flow.deadline_s = 6;
        flow_file(1, 1000, "a/stuck");
        flow_file(2, 1000, "b/f");
        flow_file(3, 1000, "b/bad");
        flow_start();
        flow_ok("sheaf add a %s/a && sheaf add b %s/b", flow.origin,
                flow.origin);
        pid = flow_fork(0, 0);
        if (!pid) {
                struct sheaf_session *session;
                struct sheaf_dataset *dataset;

                if (flow_open("a", &session, &dataset))
                        _exit(1);
                flow_check_view(dataset, "stuck", 1, 1000);
                _exit(0);
        }
        cr_assert(flow_until(20, shows("origin-silent")));
        flow_join(pid, 30);
        cr_assert(flow_until(20, !shows("origin-silent")));
        states_of_readers();

        cr_assert(!mkdir(flow_path("grant"), 0755));
        flow_ok("sheaf grant b --dir %s", flow_path("grant"));
        cr_assert_not(shows("grant-not-served"));
        flow_stop();
        flow_ok("rm -rf %s && mv %s/b %s/c && mkdir %s/b", flow_path("grant"),
                flow.origin, flow.origin, flow.origin);
        flow_start();
        cr_assert(flow_until(30, shows("grant-not-served")));
        flow_run("quickread --dataset b");
        cr_assert(flow_until(30, shows("origin-detached")));
        flow_ok("sheaf update b %s/c", flow.origin);
        cr_assert_not(shows("origin-detached"));
        flow_stop();
}

/* Pins leave no room: it is told, and reads go on as copies. */
Test(numbers, memory_that_is_pinned_is_told)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_view views[FILES];

        flow.memory = "32MiB";
        make_files("data", 1);
        for (uint32_t i = 0; i < 10; i++)
                flow_file(500 + i, 4 << 20, "data/large%u", i);
        flow_start();
        flow_ok("sheaf add data %s/data", flow.origin);
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        for (uint64_t i = 0; i < FILES; i++)
                cr_assert_eq(sheaf_view_file(dataset, i, &views[i]), 0, "%s",
                        sheaf_last_error());
        for (uint32_t i = 0; i < 10; i++)
                cr_assert_eq(
                        flow_check_view(dataset,
                                flow_path("large%u", i) + strlen(flow.base) + 1,
                                500 + i, 4 << 20),
                        0);
        if (flow_stat("arena.place_failures") > 0)
                cr_assert(shows("memory-pinned"));
        for (uint64_t i = 0; i < FILES; i++)
                sheaf_view_release(&views[i]);
        flow_close(session, dataset);
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
