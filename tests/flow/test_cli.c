/* SPDX-License-Identifier: Apache-2.0 */
/* The command line against a real daemon: text, JSON, help, exit codes, and
 * what happens to interrupted work. */
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

TestSuite(cli, .init = flow_init, .fini = flow_fini, .timeout = 60);

#define FILES 20
#define BYTES 30000

static void setup(void)
{
        for (uint32_t i = 1; i <= FILES; i++)
                flow_file(i, BYTES, "d%u/f%u", i % 3, i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
}

/* Runs a verb with --json; its stdout must be one JSON value. */
static json_t *json_of(int want, const char *verb)
{
        json_error_t error;
        json_t *root;

        cr_assert_eq(flow_run("sheaf %s --json", verb), want, "%s: %d\n%s%s",
                verb, flow.last.rc, flow.last.out, flow.last.err);
        root = json_loads(flow.last.out, 0, &error);
        cr_assert(root, "%s: %s\n%s", verb, error.text, flow.last.out);
        return root;
}

static json_int_t number(json_t *root, const char *name)
{
        json_t *value = json_object_get(root, name);

        cr_assert(json_is_integer(value), "%s is no number", name);
        return json_integer_value(value);
}

/* ---- help and usage ---- */

static const char *const verbs[] = { "add", "groups", "ls", "rm", "seal",
        "verify", "update", "share", "mount", "umount", "warmup", "stats",
        "status", "grant", "job", "doctor", "sim", "completion", "man",
        "version" };

Test(cli, help_of_every_verb_without_a_daemon)
{
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(verbs); i++) {
                cr_assert_eq(flow_run("sheaf %s --help", verbs[i]), 0);
                cr_assert(strstr(flow.last.out, "Examples:"), "%s",
                        flow.last.out);
                cr_assert(strstr(flow.last.out, "Exit codes:"), "%s",
                        flow.last.out);
                cr_assert_eq(
                        flow_run("sheaf %s --no-such-option", verbs[i]), 2);
                cr_assert(*flow.last.err);
        }
        cr_assert_eq(flow_run("sheaf --help"), 0);
        cr_assert_eq(flow_run("sheaf nonsense"), 2);
}

Test(cli, no_daemon_is_exit_code_3)
{
        static const char *const lines[] = { "add n /tmp", "ls", "rm n",
                "seal n", "verify n", "update n", "share n all", "warmup n",
                "stats", "status", "grant --list", "job ls", "job rm n j",
                "mount n /tmp" };

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(lines); i++) {
                cr_assert_eq(flow_run("sheaf %s", lines[i]), 3, "%s: %d %s",
                        lines[i], flow.last.rc, flow.last.err);
                cr_assert(strstr(flow.last.err, flow.socket),
                        "the socket is not named: %s", flow.last.err);
                cr_assert_lt(flow.last.seconds, 10);
        }
}

Test(cli, unknown_names_are_exit_code_4)
{
        static const char *const lines[] = { "ls none", "rm none", "seal none",
                "verify none", "update none", "share none all", "warmup none",
                "stats none", "grant none --dir /tmp", "job ls none",
                "job show none j", "job rm none j" };

        setup();
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(lines); i++) {
                cr_assert_eq(flow_run("sheaf %s", lines[i]), 4, "%s: %d %s",
                        lines[i], flow.last.rc, flow.last.err);
                cr_assert(strstr(flow.last.err, "none"), "%s", flow.last.err);
                json_decref(json_of(4, lines[i]));
        }
        cr_assert_eq(flow_run("sheaf mount none %s", flow.mount), 4, "%d %s",
                flow.last.rc, flow.last.err);
        cr_assert_eq(flow_run("sheaf add data %s", flow.origin), 1);
        cr_assert(strstr(flow.last.err, "data"), "%s", flow.last.err);
        cr_assert_neq(flow_run("sheaf add other %s/missing", flow.base), 0);
        cr_assert(strstr(flow.last.err, "missing"), "%s", flow.last.err);
        cr_assert_neq(flow_run("sheaf add bad//name %s", flow.origin), 0);
        cr_assert_neq(flow_run("sheaf add '' %s", flow.origin), 0);
        cr_assert_neq(flow_run("sheaf add file %s/d1/f1", flow.origin), 0);
        flow_stop();
}

/* ---- every verb's work ---- */

Test(cli, json_of_every_verb)
{
        json_t *root;
        char line[512];

        setup();
        root = json_of(0, "ls");
        cr_assert_eq(json_array_size(root), 1);
        cr_assert_eq(number(json_array_get(root, 0), "files"), FILES);
        json_decref(root);
        json_decref(json_of(0, "ls data"));
        root = json_of(0, "warmup data");
        json_decref(root);
        root = json_of(0, "warmup data --check");
        cr_assert_eq(number(root, "chunks"), FILES);
        cr_assert_eq(number(root, "cached_bytes"), FILES * BYTES);
        json_decref(root);
        root = json_of(0, "seal data");
        cr_assert_eq(number(root, "known_before_bytes"), FILES * BYTES);
        cr_assert_eq(number(root, "read_bytes"), 0);
        json_decref(root);
        json_decref(json_of(2, "completion bash"));
        root = json_of(0, "ls data");
        if (json_is_array(root)) {
                json_t *one = json_incref(json_array_get(root, 0));

                json_decref(root);
                root = one;
        }
        cr_assert_str_eq(
                json_string_value(json_object_get(root, "state")), "sealed");
        cr_assert_eq(
                strlen(json_string_value(json_object_get(root, "root_digest"))),
                64);
        json_decref(root);
        json_decref(json_of(0, "verify data"));
        json_decref(json_of(0, "update data"));
        json_decref(json_of(0, "share data all"));
        json_decref(json_of(0, "stats"));
        json_decref(json_of(0, "stats data"));
        json_decref(json_of(0, "status"));
        json_decref(json_of(0, "version"));
        snprintf(line, sizeof(line), "mount data %s", flow.mount);
        json_decref(json_of(0, line));
        cr_assert_eq(flow_check(flow_path("mount/d1/f1"), 1, BYTES, 4096), 0);
        root = json_of(5, line);
        cr_assert(strstr(json_string_value(json_object_get(
                                 json_object_get(root, "error"), "message")),
                          "mounted here already"),
                "%s", flow.last.out);
        json_decref(root);
        snprintf(line, sizeof(line), "umount %s", flow.mount);
        json_decref(json_of(0, line));
        snprintf(line, sizeof(line), "grant data --dir %s", flow.base);
        json_decref(json_of(0, line));
        json_decref(json_of(0, "grant --list"));
        root = json_of(0, "warmup data --evict");
        json_decref(root);
        root = json_of(0, "warmup data --check");
        cr_assert_eq(number(root, "cached_bytes"), 0);
        json_decref(root);
        json_decref(json_of(0, "rm data"));
        root = json_of(0, "ls");
        cr_assert_eq(json_array_size(root), 0);
        json_decref(root);
        flow_run("sheaf doctor --json");
        root = json_loads(flow.last.out, 0, NULL);
        cr_assert(root, "%s", flow.last.out);
        json_decref(root);
        flow_stop();
}

Test(cli, text_of_every_verb)
{
        setup();
        flow_ok("sheaf ls | grep -w data");
        flow_ok("sheaf ls data | grep '%s'", flow.origin);
        flow_ok("sheaf warmup data d1 --quiet");
        flow_ok("sheaf warmup data --check | grep -E '[0-9]'");
        flow_ok("sheaf stats | grep -w data");
        flow_ok("sheaf ls data | grep 'number 1; 1 kept'");
        flow_mount("data", flow.mount);
        flow_ok("cat %s/d1/f1 >/dev/null", flow.mount);
        /* No rate of what the page cache leaves over. */
        flow_ok("sheaf stats | grep -E '^mount:data:[0-9]+ +- '");
        flow_umount(flow.mount);
        flow_ok("sheaf stats data --watch=1 | head -n 5 | grep -c . ");
        flow_ok("sheaf status | grep '%s'", flow.cache);
        flow_ok("sheaf seal data");
        flow_ok("sheaf verify data");
        flow_ok("sheaf update data");
        cr_assert(strstr(flow.last.out, "unchanged"), "%s", flow.last.out);
        cr_assert_neq(flow_run("sheaf warmup data d1/none"), 0);
        cr_assert(strstr(flow.last.err, "d1/none") ||
                          strstr(flow.last.out, "d1/none"),
                "%s%s", flow.last.out, flow.last.err);
        cr_assert_neq(flow_run("sheaf warmup data ../x"), 0);
        flow_ok("sheaf rm data");
        cr_assert_eq(flow_run("sheaf ls data"), 4);
        cr_assert_eq(flow_check(flow_path("origin/d1/f1"), 1, BYTES, 4096), 0);
        flow_stop();
}

/* ---- long work ---- */

Test(cli, progress_and_interrupt_of_warmup)
{
        flow.faults = "delay=50:f";
        for (uint32_t i = 1; i <= 2000; i++)
                flow_file(i, 100, "d/f%u", i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        cr_assert_eq(flow_run("exec timeout --foreground -s INT 2 sheaf warmup "
                              "data; exit $?"),
                124, "%d", flow.last.rc);
        cr_assert_eq(flow_run("sheaf warmup data & pid=$!; sleep 1.5; "
                              "kill -INT $pid; wait $pid"),
                130, "%d\n%s%s", flow.last.rc, flow.last.out, flow.last.err);
        cr_assert_lt(flow.last.seconds, 5);
        cr_assert(flow_live());
        cr_assert(flow_until(20, flow_stat("fetch.in_flight") +
                                                 flow_stat("fetch.queued") ==
                                         0),
                "the daemon works on: %g, %g", flow_stat("fetch.in_flight"),
                flow_stat("fetch.queued"));
        cr_assert_gt(flow_stat("origin.bytes"), 0);
        cr_assert_lt(flow_stat("origin.bytes"), 200000);
        /* On a terminal progress is drawn. */
        flow_run(
                "script -qec 'timeout --foreground -s INT 2 sheaf warmup data' "
                "/dev/null </dev/null");
        cr_assert(strchr(flow.last.out, '%'), "no progress: %s", flow.last.out);
        cr_assert(flow_live());
        flow_stop();
}

/* ---- in use ---- */

Test(cli, rm_of_a_dataset_in_use)
{
        char pid[32];

        setup();
        flow_mount("data", flow.mount);
        snprintf(pid, sizeof(pid), "%d", (int)flow_server(flow.mount));
        cr_assert_eq(flow_run("sheaf rm data"), 1, "%d", flow.last.rc);
        cr_assert_geq(flow.last.seconds, 1, "who is about to end has no time");
        cr_assert(strstr(flow.last.err, pid), "%s is not named: %s", pid,
                flow.last.err);
        cr_assert_eq(flow_check(flow_path("mount/d1/f1"), 1, BYTES, 4096), 0);
        flow_ok("sheaf rm --force data");
        cr_assert_eq(flow_run("sheaf ls data"), 4);
        cr_assert_lt(flow_check(flow_path("mount/d2/f2"), 2, BYTES, 4096), 0);
        flow_ok("sheaf add data %s", flow.origin);
        flow_umount(flow.mount);
        flow_mount("data", flow.mount);
        cr_assert_eq(flow_check(flow_path("mount/d2/f2"), 2, BYTES, 4096), 0);
        flow_umount(flow.mount);
        flow_ok("sheaf rm data");
        cr_assert(flow_until(20, flow_stat("disk.payload_bytes") == 0),
                "%g bytes stay", flow_stat("disk.payload_bytes"));
        cr_assert_eq(flow_stat("arena.payload_bytes"), 0);
        flow_stop();
}

/* ---- doctor ---- */

static bool doctor_says(const char *level, const char *check)
{
        return flow_run("grep -qE '^%s +%s ' %s/doctor", level, check,
                       flow.base) == 0;
}

/* What fusermount3 wants of a machine and of a user. */
Test(cli, doctor_says_what_mounts_of_users_lack)
{
        flow_run("sheaf doctor > %s/doctor", flow.base);
        cr_assert(doctor_says("ok", "user name"));
        flow_run("setpriv --reuid 54321 --regid 54321 --clear-groups "
                 "sheaf doctor > %s/doctor",
                flow.base);
        cr_assert_eq(flow.last.rc, 1);
        cr_assert(doctor_says("fail", "user name"));
        cr_assert_eq(
                flow_run("grep -q '54321 has no name' %s/doctor", flow.base),
                0);
        flow_run("unshare -m sh -c 'mount -t tmpfs none /etc && "
                 "sheaf doctor' > %s/doctor",
                flow.base);
        cr_assert(doctor_says("warn", "mount table"));
        flow_run("unshare -m sh -c 'mount -t tmpfs none /etc && "
                 "exec setpriv --reuid 54321 --regid 54321 --clear-groups "
                 "sheaf doctor' > %s/doctor",
                flow.base);
        cr_assert_eq(flow.last.rc, 1);
        cr_assert(doctor_says("fail", "mount table"));
        cr_assert_eq(flow_run("grep -q 'ln -s /proc/self/mounts /etc/mtab' "
                              "%s/doctor",
                             flow.base),
                0);
}

/* ---- paths ---- */

static void use(const char *dir, const char *socket, const char *name)
{
        flow_ok("cd %s && sheaf --socket %s add %s ../origin", dir, socket,
                name);
        flow_ok("cd %s && mkdir -p m && sheaf --socket %s mount %s m && "
                "cmp m/f ../origin/f && sheaf --socket %s umount m",
                dir, socket, name, socket);
}

Test(cli, relative_paths_in_foreground_and_background)
{
        const char *dir = flow_path("work");

        flow_file(1, BYTES, "f");
        flow_ok("mkdir %s", dir);
        flow_ok("cd %s && (sheafd --foreground --cache c --socket s --memory "
                "64MiB --disk 64MiB 2> log & echo $! > pid; "
                "while ! sheaf --socket s status; do sleep 0.05; done)",
                dir);
        use(dir, "s", "data");
        flow_ok("cd %s && kill $(cat pid) && while readlink /proc/$(cat "
                "pid)/exe; do "
                "sleep 0.05; done 2> /dev/null; test -d c && ! test -S s",
                dir);
        flow_ok("cd %s && sheafd --cache c --socket s --memory 64MiB "
                "--disk 64MiB",
                dir);
        flow_ok("cd %s && sheaf --socket s ls data", dir);
        use(dir, "s", "again");
        flow_ok("cd %s && sheaf --socket s status --json | "
                "grep -q '\"cache_dir\": \"%s/c\"'",
                dir, dir);
        flow_ok("cd %s && kill $(sheaf --socket s status --json | "
                "sed -n 's/.*\"pid\": \\([0-9]*\\).*/\\1/p' | head -1) && "
                "while test -S s; do sleep 0.05; done",
                dir);
        cr_assert_neq(access("/s", F_OK), 0);
        cr_assert_neq(access("/c", F_OK), 0);
}

Test(cli, two_daemons_with_long_socket_paths)
{
        char dir[128], paths[2][512];
        size_t base = strlen(flow.base);
        pid_t pids[2];

        flow_file(1, BYTES, "f");
        memset(dir, 'd', sizeof(dir));
        dir[119 - base] = '\0';
        flow_ok("mkdir %s/%s", flow.base, dir);
        for (int i = 0; i < 2; i++) {
                char arguments[1100];

                snprintf(paths[i], sizeof(paths[i]), "%s/%s/%d%029d", flow.base,
                        dir, i, 0);
                cr_assert_geq(strlen(paths[i]), 150);
                snprintf(arguments, sizeof(arguments),
                        "--foreground --cache %s/c%d --socket %s "
                        "--memory 64MiB --disk 64MiB",
                        flow.base, i, paths[i]);
                pids[i] = flow_spawn(flow.log, arguments);
        }
        for (int i = 0; i < 2; i++) {
                cr_assert(flow_until(20, flow_run("sheaf --socket %s status",
                                                 paths[i]) == 0),
                        "%s", flow.last.err);
                flow_ok("sheaf --socket %s status --json | "
                        "grep -q '\"pid\": %d,'",
                        paths[i], (int)pids[i]);
                flow_ok("sheaf --socket %s add only%d %s", paths[i], i,
                        flow.origin);
                flow_ok("sheaf --socket %s mount only%d %s && cmp %s/f %s/f "
                        "&& sheaf umount %s",
                        paths[i], i, flow.mount, flow.mount, flow.origin,
                        flow.mount);
        }
        cr_assert_eq(flow_run("sheaf --socket %s ls only0", paths[1]), 4);
        /* No third name, such as one that was cut. */
        flow_ok("ls -A %s/%s | wc -l; ls -A %s/%s | awk 'length != 30'",
                flow.base, dir, flow.base, dir);
        cr_assert_str_eq(flow.last.out, "2\n");
        for (int i = 0; i < 2; i++) {
                kill(pids[i], SIGTERM);
                cr_assert_eq(flow_join(pids[i], 10), 0);
        }
}
