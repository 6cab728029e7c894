/* SPDX-License-Identifier: Apache-2.0 */
/* Degraded states: each is told by its name, with cause and remedy, while the
 * world is so, and no longer. Others of docs/metrics.md have their tests where
 * what degrades is tested. */
#include "tests/flow/faulty.h"
#include "tests/flow/harness.h"
#include "tests/flow/peer.h"
#include "tests/flow/world.h"
#include "daemon/store/store.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>

TestSuite(states, .init = flow_init, .fini = flow_fini, .timeout = 110);

#define FILES 60
#define BYTES 300000

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

/* What was shown of the state that was asked for. */
static char cause[512], remedy[512];

/* Whether status shows the state, as JSON and as text; whatever it shows has
 * all that belongs to it. */
static bool shows(const char *name)
{
        json_t *root, *condition;
        bool found = false;
        size_t i;

        flow_ok("sheaf status --json");
        root = json_loads(flow.last.out, 0, NULL);
        cr_assert(root, "%s", flow.last.out);
        json_array_foreach(json_object_get(root, "conditions"), i, condition)
        {
                cr_assert(*text_of(condition, "name"));
                cr_assert(*text_of(condition, "what"));
                cr_assert(*text_of(condition, "why"), "%s has no cause",
                        text_of(condition, "name"));
                cr_assert(*text_of(condition, "remedy"), "%s has no remedy",
                        text_of(condition, "name"));
                if (strcmp(text_of(condition, "name"), name) != 0)
                        continue;
                found = true;
                snprintf(cause, sizeof(cause), "%s", text_of(condition, "why"));
                snprintf(remedy, sizeof(remedy), "%s",
                        text_of(condition, "remedy"));
        }
        json_decref(root);
        if (!found)
                return false;
        /* It may end in between. */
        flow_ok("sheaf status");
        return strstr(flow.last.out, name) && strstr(flow.last.out, cause) &&
               strstr(flow.last.out, remedy);
}

/* From page @first on: the first two begin it. */
static void lose_catalog(int first)
{
        flow_ok("dd if=/dev/zero of=%s/catalog/data.mdb bs=4096 seek=%d "
                "count=%d conv=notrunc 2>/dev/null",
                flow.cache, first, 20 - first);
}

Test(states, of_the_start)
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

Test(states, damaged_chunks_are_told)
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

Test(states, of_origins_and_grants)
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

/* ---- memory ---- */

#define PINNED_EVERY 5
#define PINNED_FILES 150 /* more than memory has */

static void read_large(struct sheaf_dataset *dataset)
{
        for (uint32_t i = 0; i < 5; i++) {
                char name[16];

                snprintf(name, sizeof(name), "large%u", i);
                cr_assert_eq(
                        flow_check_view(dataset, name, 500 + i, 4 << 20), 0);
        }
}

/* A few pins, in each piece of the memory: what is large finds no room, and is
 * read by copies. Told for ten minutes. */
Test(states, memory_that_is_pinned)
{
        struct sheaf_view views[PINNED_FILES / PINNED_EVERY];
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        const char *prefix;
        struct shim *shim = flow_shim(&prefix);
        size_t held = 0;

        flow_world("", prefix);
        flow.memory = "32MiB";
        for (uint32_t i = 0; i < PINNED_FILES; i++)
                flow_file(1 + i, i % PINNED_EVERY ? BYTES : 2000, "data/f%03u",
                        i);
        for (uint32_t i = 0; i < 5; i++)
                flow_file(500 + i, 4 << 20, "data/large%u", i);
        flow_start();
        flow_ok("sheaf add data %s/data", flow.origin);
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        for (uint64_t i = 0; i < PINNED_FILES; i++) {
                struct sheaf_view view;

                cr_assert_eq(sheaf_view_file(dataset, i, &view), 0, "%s",
                        sheaf_last_error());
                if (i % PINNED_EVERY)
                        sheaf_view_release(&view);
                else
                        views[held++] = view;
        }
        cr_assert_not(shows("memory-pinned"));
        read_large(dataset);
        cr_assert_gt(flow_stat("arena.place_failures"), 0);
        cr_assert(shows("memory-pinned"));
        cr_assert(strstr(cause, "pinned") && strstr(remedy, "--memory"));
        while (held)
                sheaf_view_release(&views[--held]);
        read_large(dataset);
        shim->steady_offset_sec = 590;
        cr_assert(shows("memory-pinned"), "it is told for ten minutes");
        shim->steady_offset_sec = 700;
        cr_assert_not(shows("memory-pinned"));
        flow_close(session, dataset);
        flow_stop();
}

/* A client that does not let go of what another user's data need. */
Test(states, memory_that_is_held)
{
        struct opened opened;
        struct peer p;

        flow.memory = "32MiB";
        make_files("data", 1);
        make_files("other", 1001);
        flow_start();
        flow_ok("sheaf add data %s/data", flow.origin);
        p = greet();
        cr_assert_eq(open_quietly(&p, "data", &opened), 0);
        flow_ok("sheaf warmup data --quiet");
        cr_assert_not(shows("memory-held"));
        cr_assert_eq(flow_run_as(4001, 0,
                             "sheaf add other %s/other && "
                             "quickread --dataset other --compare %s/other",
                             flow.origin, flow.origin),
                0, "%s", flow.last.err);
        cr_assert_gt(flow_stat("arena.dropped_bytes_held"), 0);
        cr_assert(shows("memory-held"));
        cr_assert(strstr(cause, "let go") && strstr(remedy, "end those"));
        close_opened(&opened);
        cr_assert(shows("memory-held"), "what counts is what it says");
        close(p.sock);
        cr_assert(flow_until(20, !shows("memory-held")));
        cr_assert_eq(flow_stat("arena.dropped_bytes_held"), 0);
        flow_stop();
}

/* A kernel that makes no huge pages, on request neither. */
Test(states, small_pages)
{
        char prefix[PATH_MAX + 64], setup[512];
        const char *deny = flow_path("deny");

        snprintf(prefix, sizeof(prefix), "%s %d %ld", FLOW_CONFINE, EINVAL,
                (long)SYS_madvise);
        snprintf(setup, sizeof(setup),
                "[ \"$IN\" ] || IN=1 exec unshare -m \"$0\" \"$@\"\n"
                "mount --bind %s "
                "/sys/kernel/mm/transparent_hugepage/shmem_enabled || exit 9",
                deny);
        flow_ok("echo 'always within_size advise never [deny] force' >%s",
                deny);
        flow_ok("cat /proc/sys/vm/nr_hugepages");
        if (atoi(flow.last.out)) {
                fprintf(stderr, "SKIP: small_pages: huge pages are reserved\n");
                return;
        }
        make_files("data", 1);
        flow_world(setup, prefix);
        flow_start();
        cr_assert(shows("small-pages"));
        cr_assert(strstr(cause, "shmem_enabled") &&
                  strstr(remedy, "vm.nr_hugepages"));
        flow_ok("sheaf add data %s/data && "
                "quickread --dataset data --compare %s/data",
                flow.origin, flow.origin);
        flow_stop();
        /* Who asked for them is told nothing. */
        flow.extra = "--pages small";
        flow_start();
        cr_assert_not(shows("small-pages"));
        flow_stop();
        flow.extra = NULL;
        flow_world("", "");
        flow_start();
        flow_ok("sheaf doctor || true");
        if (shows("small-pages"))
                fprintf(stderr,
                        "SKIP: small_pages: this kernel makes no huge "
                        "pages on request: the end of the state was not "
                        "seen\n");
        flow_stop();
}

/* ---- records ---- */

/* Puts a record into the catalog, or removes it. */
static void record(const char *key, const char *value)
{
        pid_t pid = flow_fork(0, 0);
        int rc;

        if (!pid) {
                struct sheaf_store_config config = { .dir = flow.cache,
                        .bytes_max = UINT64_C(1) << 30 };
                struct sheaf_store *store;
                static uv_loop_t loop;

                uv_loop_init(&loop);
                config.loop = &loop;
                rc = sheaf_store_open(&config, &store);
                if (!rc && value)
                        rc = sheaf_store_put(store, key, value, strlen(value));
                else if (!rc)
                        rc = sheaf_store_del(store, key);
                if (!rc)
                        sheaf_store_close(store);
                _exit(-rc);
        }
        cr_assert_eq(flow_join(pid, 30), 0);
}

Test(states, a_record_that_cannot_be_read)
{
        flow_file(1, 1000, "f");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        cr_assert_not(shows("record-unreadable"));
        flow_stop();
        record("dataset/00000000000000ff", "of another release");
        flow_start();
        cr_assert(shows("record-unreadable"));
        cr_assert(strstr(cause, "newer release") &&
                  strstr(remedy, "sheaf rm --unreadable"));
        flow_ok("grep -q 'key=dataset/00000000000000ff' %s", flow.log);
        flow_ok("quickread --dataset data --compare %s", flow.origin);
        flow_stop();
        record("dataset/00000000000000ff", NULL);
        flow_start();
        cr_assert_not(shows("record-unreadable"));
        flow_stop();
        /* Or it is given up, by who sees all. */
        record("dataset/00000000000000fe", "damaged");
        record("dataset/00000000000000ff", "of another release");
        flow_start();
        cr_assert(shows("record-unreadable"));
        cr_assert_eq(flow_run_as(4001, 0, "sheaf rm --unreadable"), 4, "%s",
                flow.last.err);
        cr_assert_eq(flow_run("sheaf rm --unreadable data"), 2);
        cr_assert_eq(flow_run("sheaf rm"), 2);
        cr_assert(shows("record-unreadable"));
        flow_ok("sheaf rm --unreadable");
        cr_assert_not(shows("record-unreadable"));
        flow_kill();
        flow_start();
        cr_assert_not(shows("record-unreadable"));
        flow_ok("quickread --dataset data --compare %s", flow.origin);
        flow_stop();
}

/* ---- readers ---- */

/* Exits with the errno that a read of the cold file ends with. */
static pid_t read_cold(void)
{
        pid_t pid = flow_fork(0, 0);

        if (!pid) {
                struct sheaf_session *session;
                struct sheaf_dataset *dataset;
                int rc = flow_open("data", &session, &dataset);

                if (!rc)
                        rc = flow_check_view(dataset, "cold", 1, BYTES);
                _exit(-rc);
        }
        return pid;
}

/* Its open waits in the kernel for a file server that has the request and does
 * not answer: no signal ends that. */
Test(states, a_reader_that_survives_its_kill)
{
        pid_t pid;
        int rc;

        flow.deadline_s = 4;
        flow_file(1, BYTES, "cold");
        flow_file(2, BYTES, "other");
        flow_faulty_mount(flow.origin);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_faulty("open path=/cold stick\n");
        pid = read_cold();
        cr_assert(flow_until(60, shows("reader-stuck")));
        cr_assert(strstr(cause, "kernel") && strstr(remedy, "umount -f"));
        rc = flow_join(pid, 60);
        cr_assert(rc == ETIMEDOUT || rc == EIO, "%s", strerror(rc));
        cr_assert_gt(flow_stat("origin.readers_abandoned"), 0);
        flow_faulty("%s", "");
        cr_assert(flow_until(60, !shows("reader-stuck")));
        cr_assert_eq(flow_join(read_cold(), 60), 0);
        flow_stop();
        flow_faulty_umount();
}
