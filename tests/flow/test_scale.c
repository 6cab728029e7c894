/* SPDX-License-Identifier: Apache-2.0 */
/* Much of everything, again and again: what the daemon holds outside its
 * arena depends on what there is now, not on what there was.
 *
 *   SCALE_DATASETS, SCALE_FILES   datasets that come and go, files in each
 *   SCALE_MANY, SCALE_CLIENTS     datasets at once, client processes
 *   SCALE_VERSION                 files of a large version
 *
 *  1 counts (descriptors, processes, maps) are compared between moments when
 *    the same datasets exist; memory has a margin, since the allocator keeps
 *    what it was given
 *  2 the catalog has entries of what is gone, so many and no more: its size
 *    is held to the chunks that there are (docs/decisions/disk-tier.md) */
#include "tests/flow/harness.h"
#include "tests/flow/soak.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

TestSuite(scale, .init = flow_init, .fini = flow_fini, .timeout = 100000);

#define FOLDERS 10

static uint64_t setting(const char *name, uint64_t other)
{
        const char *value = getenv(name);

        return value ? strtoull(value, NULL, 10) : other;
}

static uint64_t rng = 88172645463325252;

static uint64_t pick(uint64_t n)
{
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        return rng % n;
}

/* ---- what a daemon holds ---- */

struct held {
        long fds, maps, readers;
        uint64_t memory, memfds, reader_memory; /* bytes */
        uint64_t catalog, versions;             /* bytes, directories */
        uint64_t chunks;                        /* on disk */
        double status_ms, warm_us, cold_us;     /* medians */
};

static uint64_t children_memory(pid_t parent, long *ret_count)
{
        DIR *proc = opendir("/proc");
        struct dirent *entry;
        uint64_t sum = 0;

        *ret_count = 0;
        while (proc && (entry = readdir(proc))) {
                char path[64];
                FILE *file;
                int pid, of;

                snprintf(path, sizeof(path), "/proc/%d/stat",
                        atoi(entry->d_name));
                file = fopen(path, "re");
                if (!file)
                        continue;
                if (fscanf(file, "%d (%*[^)]) %*c %d", &pid, &of) == 2 &&
                        of == parent) {
                        ++*ret_count;
                        sum += flow_rss(pid);
                }
                fclose(file);
        }
        if (proc)
                closedir(proc);
        return sum;
}

static uint64_t memfd_bytes(pid_t pid)
{
        const char *path = flow_path("../../proc/%d/fd", (int)pid);
        DIR *dir = opendir(path);
        struct dirent *entry;
        uint64_t sum = 0;

        while (dir && (entry = readdir(dir))) {
                char target[128];
                struct stat st;
                ssize_t n = readlinkat(
                        dirfd(dir), entry->d_name, target, sizeof(target) - 1);

                if (n <= 0)
                        continue;
                target[n] = '\0';
                if (strstr(target, "memfd:") && !strstr(target, "arena") &&
                        !fstatat(dirfd(dir), entry->d_name, &st, 0))
                        sum += (uint64_t)st.st_blocks * 512;
        }
        if (dir)
                closedir(dir);
        return sum;
}

static long count_lines(const char *path)
{
        char buf[1 << 16];
        long lines = 0;
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n;

        while (fd >= 0 && (n = read(fd, buf, sizeof(buf))) > 0)
                for (ssize_t i = 0; i < n; i++)
                        lines += buf[i] == '\n';
        if (fd >= 0)
                close(fd);
        return lines;
}

static uint64_t count_entries(const char *path)
{
        DIR *dir = opendir(path);
        uint64_t count = 0;

        while (dir && readdir(dir))
                count++;
        if (dir)
                closedir(dir);
        return count < 2 ? 0 : count - 2;
}

static void measure(struct held *held)
{
        pid_t pid = flow.daemon;
        struct stat st = { 0 };

        held->fds = flow_fds(pid);
        held->maps = count_lines(flow_path("../../proc/%d/maps", (int)pid));
        held->memory = flow_rss(pid);
        held->memfds = memfd_bytes(pid);
        held->reader_memory = children_memory(pid, &held->readers);
        stat(flow_path("cache/catalog/data.mdb"), &st);
        held->catalog = (uint64_t)st.st_size;
        held->versions = count_entries(flow_path("cache/versions"));
        held->chunks = (uint64_t)flow_stat("disk.chunks");
}

static void print_held(const char *when, const struct held *h)
{
        fprintf(stderr,
                "scale: %s fds=%ld maps=%ld readers=%ld anon_mib=%.1f "
                "memfd_mib=%.1f readers_mib=%.1f catalog_mib=%.2f "
                "versions=%llu chunks=%llu status_ms=%.1f warm_us=%.1f "
                "cold_us=%.0f\n",
                when, h->fds, h->maps, h->readers, (double)h->memory / 1048576,
                (double)h->memfds / 1048576, (double)h->reader_memory / 1048576,
                (double)h->catalog / 1048576, (unsigned long long)h->versions,
                (unsigned long long)h->chunks, h->status_ms, h->warm_us,
                h->cold_us);
}

/* ---- datasets that come and go ---- */

static uint64_t datasets, files, written;
static uint8_t *generation; /* of each file */

static uint32_t id_of(uint64_t d, uint64_t f)
{
        return (uint32_t)((d * files + f) * 64 + generation[d * files + f]) + 1;
}

static uint64_t len_of(uint32_t id)
{
        return 100 + id * 2654435761u % 900;
}

static void write_file(uint64_t d, uint64_t f)
{
        uint32_t id = id_of(d, f);
        uint64_t len = len_of(id);
        char path[PATH_MAX];
        uint8_t buf[1000];
        int fd;

        snprintf(path, sizeof(path), "%s/d%llu/f%llu/%06llu", flow.origin,
                (unsigned long long)d, (unsigned long long)(f % FOLDERS),
                (unsigned long long)f);
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        cr_assert(fd >= 0, "%s: %s", path, strerror(errno));
        flow_stamp_bytes(buf, id, 0, len);
        cr_assert_eq(write(fd, buf, len), (ssize_t)len);
        close(fd);
        written++;
}

static void make_origins(void)
{
        generation = calloc(datasets, files);
        cr_assert(generation);
        /* Quickly made; more would be too much for the memory of most. */
        if (datasets * files <= 300000)
                flow_origin_in_memory();
        for (uint64_t d = 0; d < datasets; d++) {
                mkdir(flow_path("origin/d%d", (int)d), 0755);
                for (int i = 0; i < FOLDERS; i++)
                        mkdir(flow_path("origin/d%d/f%d", (int)d, i), 0755);
                for (uint64_t f = 0; f < files; f++)
                        write_file(d, f);
        }
}

/* One of a hundred files, all in one folder. */
static void change_origin(uint64_t d, uint64_t folder)
{
        for (uint64_t i = 0; i < files / 100; i++) {
                uint64_t f = pick(files / FOLDERS) * FOLDERS + folder;
                uint8_t *g = &generation[d * files + f];

                *g = (*g + 1) % 64;
                write_file(d, f);
        }
}

static int by_value(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

#define READS 60

/* Median microseconds of reading some files of a folder. */
static double read_folder(uint64_t d, uint64_t folder)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        double took[READS];
        char path[64];

        snprintf(path, sizeof(path), "d%llu", (unsigned long long)d);
        cr_assert_eq(flow_open(path, &session, &dataset), 0, "%s",
                sheaf_last_error());
        for (int i = 0; i < READS; i++) {
                uint64_t f =
                        (uint64_t)i * 31 % (files / FOLDERS) * FOLDERS + folder;
                uint32_t id = id_of(d, f);
                double start = flow_now();
                int rc;

                snprintf(path, sizeof(path), "f%llu/%06llu",
                        (unsigned long long)folder, (unsigned long long)f);
                rc = flow_check_view(dataset, path, id, len_of(id));
                cr_assert_eq(rc, 0, "d%d %s: %s: %s", (int)d, path,
                        strerror(-rc), sheaf_last_error());
                took[i] = (flow_now() - start) * 1e6;
        }
        flow_close(session, dataset);
        qsort(took, READS, sizeof(*took), by_value);
        return took[READS / 2];
}

/* Removed, added, read, changed, updated, read. Changes lie in another folder
 * than reads: a file that changed just now is not read for two seconds. */
static void round_of(uint64_t d, uint64_t cycle, struct held *held)
{
        uint64_t read = cycle % FOLDERS, change = (cycle + 5) % FOLDERS;
        int n = (int)d;

        if (cycle)
                flow_ok("sheaf rm d%d", n);
        flow_ok("sheaf add d%d %s/d%d", n, flow.origin, n);
        held->cold_us = read_folder(d, read);
        flow_ok("sheaf warmup d%d f%d --quiet", n, (int)read);
        change_origin(d, change);
        flow_ok("sheaf update d%d", n);
        held->warm_us = read_folder(d, read);
        flow_ok("sheaf status --json >/dev/null");
        held->status_ms = flow.last.seconds * 1e3;
}

static void median_of(struct held *held, const struct held *rounds)
{
        double v[3][64];

        for (uint64_t i = 0; i < datasets; i++) {
                v[0][i] = rounds[i].status_ms;
                v[1][i] = rounds[i].warm_us;
                v[2][i] = rounds[i].cold_us;
        }
        for (int k = 0; k < 3; k++)
                qsort(v[k], datasets, sizeof(double), by_value);
        held->status_ms = v[0][datasets / 2];
        held->warm_us = v[1][datasets / 2];
        held->cold_us = v[2][datasets / 2];
}

/* What one version, or one reader, had then, so many times. */
static uint64_t as_many(uint64_t bytes, uint64_t then, uint64_t now)
{
        return then ? bytes / then * SHEAF_MAX(then, now) : bytes;
}

static void is_flat(const struct held *from, const struct held *to)
{
        uint64_t memfds = as_many(from->memfds, from->versions, to->versions);
        uint64_t readers = as_many(from->reader_memory, (uint64_t)from->readers,
                (uint64_t)to->readers);

        /* Segments, readers and old versions come and go between two looks:
         * two versions and a reader of each dataset are the most. */
        cr_assert_leq(to->fds, from->fds + from->fds / 2 + 16);
        cr_assert_leq(to->readers, SHEAF_MAX(from->readers, (long)datasets));
        cr_assert_leq(
                to->versions, SHEAF_MAX(from->versions + 2, 2 * datasets));
        cr_assert_leq(to->memfds, memfds * 5 / 4 + SHEAF_MIB);
        if (flow_sanitized(flow.daemon))
                return;
        cr_assert_leq(to->maps, from->maps + 64);
        cr_assert_leq(to->memory, from->memory * 3 / 2 + 64 * SHEAF_MIB);
        cr_assert_leq(to->reader_memory, readers * 3 / 2 + 64 * SHEAF_MIB);
}

/* Entries: of the most chunks that there were, half as many of dead ones and
 * 64 Ki, a batch of 256 Ki; never more than contents. Each takes 90 bytes in
 * pages that are two thirds full, and a quarter more is being replaced. */
static void catalog_is_swept(const struct held *last, uint64_t chunks)
{
        uint64_t entries =
                SHEAF_MIN(chunks * 3 / 2 + ((64 + 256) << 10), written);

        cr_assert_leq(last->catalog, entries * 90 * 5 / 4 + SHEAF_MIB,
                "%.1f MiB for %llu chunks of %llu",
                (double)last->catalog / 1048576, (unsigned long long)chunks,
                (unsigned long long)written);
}

Test(scale, datasets_come_and_go)
{
        struct held first = { 0 }, last = { 0 }, each[64];
        uint64_t chunks = 0;
        struct soak soak;
        char when[64];

        datasets = setting("SCALE_DATASETS", 10);
        files = setting("SCALE_FILES", 2000);
        cr_assert(datasets <= 64 && files >= 1000);
        flow.memory = "256MiB";
        flow.disk = files > 10000 ? "512MiB" : "64MiB";
        flow.run_limit_s = 300;
        make_origins();
        flow_sleep(2.2); /* until files count as settled */
        flow_start();
        soak_begin(&soak, "scale", "rounds", 50, 1);
        while (soak_next(&soak)) {
                uint64_t r = soak.done - 1;

                round_of(r % datasets, r / datasets, &each[r % datasets]);
                if (r % datasets != datasets - 1)
                        continue;
                /* What was removed has gone: two versions a dataset remain. */
                cr_assert(flow_until(
                        30, count_entries(flow_path("cache/versions")) <=
                                    2 * datasets));
                measure(&last);
                chunks = SHEAF_MAX(chunks, last.chunks);
                median_of(&last, each);
                snprintf(when, sizeof(when),
                        "%.0f s, round %llu:", flow_now() - soak.start,
                        (unsigned long long)r + 1);
                print_held(when, &last);
                if (r / datasets == 1)
                        first = last;
        }
        cr_assert(first.fds, "at least two cycles");
        is_flat(&first, &last);
        catalog_is_swept(&last, chunks);
        soak_end(&soak, "%.1f MiB outside the arena at first, %.1f at last",
                (double)(first.memory + first.memfds) / 1048576,
                (double)(last.memory + last.memfds) / 1048576);
        flow_stop();
        free(generation);
}

/* ---- grants that come and go ---- */

/* A container's work: a grant, a read through it, its end. */
static void one_grant(void)
{
        char id[32] = "";
        const char *at;

        flow_ok("sheaf grant data --dir %s --json", flow_path("grant"));
        at = strstr(flow.last.out, "\"id\"");
        cr_assert(at && sscanf(at, "\"id\"%*[ :]\"%16[0-9a-f]", id) == 1, "%s",
                flow.last.out);
        flow_ok("SHEAF_SOCKET=%s/sheafd.sock quickread --dataset data",
                flow_path("grant"));
        flow_ok("sheaf grant --revoke %s", id);
}

Test(scale, grants_come_and_go)
{
        struct held first = { 0 }, last = { 0 };
        struct soak soak;
        double placed;

        cr_assert(!mkdir(flow_path("grant"), 0755));
        for (uint32_t i = 0; i < 20; i++)
                flow_file(i + 1, 5000, "f%u", i);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        one_grant();
        cr_assert(flow_until(20, flow_stat("arena.bytes") == 0));
        measure(&first);
        placed = flow_stat("arena.placed_bytes");
        cr_assert_geq(placed, 20 * 5000);
        soak_begin(&soak, "grants", "grants", 30, 1);
        while (soak_next(&soak))
                one_grant();
        /* Their arenas have gone, what these counted has not. */
        cr_assert(flow_until(20, flow_stat("arena.bytes") == 0));
        cr_assert_eq(flow_stat("pins.clients"), 0);
        cr_assert_eq(flow_stat("arena.placed_bytes"),
                placed * (double)(soak.done + 1));
        measure(&last);
        print_held("grants:", &last);
        is_flat(&first, &last);
        cr_assert_leq(last.catalog, first.catalog + SHEAF_MIB);
        soak_end(&soak, "%ld descriptors at first, %ld at last", first.fds,
                last.fds);
        flow_stop();
}

/* ---- many datasets and many clients at once ---- */

/* A total, of an output that is longer than the harness keeps. */
static double total(const char *name)
{
        json_error_t error;
        json_t *root, *value;
        double number;

        flow_ok("sheaf stats --json >%s", flow_path("stats.json"));
        root = json_load_file(flow_path("stats.json"), 0, &error);
        cr_assert(root, "stats: %s", error.text);
        value = json_object_get(json_object_get(root, "totals"), name);
        number = json_number_value(value);
        json_decref(root);
        return number;
}

#define SMALL_FILES 20

/* Reads all of some datasets, each by a session of its own, and checks every
 * byte; then waits with one of them open until it is killed. */
static void be_client(uint64_t self, uint64_t clients, uint64_t count, int fd)
{
        for (uint64_t d = self; d < count + clients; d += clients) {
                struct sheaf_session *session;
                struct sheaf_dataset *dataset;
                char name[32];

                snprintf(name, sizeof(name), "d%llu",
                        (unsigned long long)(d % count));
                if (flow_open(name, &session, &dataset))
                        _exit(1);
                for (uint32_t f = 0; f < SMALL_FILES; f++) {
                        snprintf(name, sizeof(name), "f%u", f);
                        if (flow_check_view(dataset, name,
                                    (uint32_t)(d % count) * SMALL_FILES + f + 1,
                                    3000))
                                _exit(2);
                }
                if (d + clients >= count + clients) {
                        if (write(fd, "r", 1) != 1)
                                _exit(3);
                        pause();
                }
                flow_close(session, dataset);
        }
        _exit(4);
}

static void start_clients(pid_t *pids, uint64_t clients, uint64_t count)
{
        char byte;
        int ready[2];

        cr_assert(!pipe(ready));
        for (uint64_t i = 0; i < clients; i++) {
                pids[i] = flow_fork(0, 0);
                cr_assert(pids[i] >= 0);
                if (!pids[i])
                        be_client(i, clients, count, ready[1]);
        }
        close(ready[1]);
        for (uint64_t i = 0; i < clients; i++)
                cr_assert_eq(read(ready[0], &byte, 1), 1,
                        "a client ended before it was ready");
        close(ready[0]);
}

static void end_clients(const pid_t *pids, uint64_t clients)
{
        for (uint64_t i = 0; i < clients; i++) {
                kill(pids[i], SIGKILL);
                flow_join(pids[i], 10);
        }
        cr_assert(flow_until(20, total("clients") <= 1));
        cr_assert(flow_until(20, total("pins.clients") == 0));
}

Test(scale, many_datasets_and_clients)
{
        uint64_t count = setting("SCALE_MANY", 100);
        uint64_t clients = setting("SCALE_CLIENTS", 16);
        struct held added = { 0 }, first = { 0 }, last = { 0 };
        double took[20];
        pid_t pids[1024];

        cr_assert(clients <= SHEAF_ARRAY_LEN(pids));
        flow.memory = "256MiB";
        flow.run_limit_s = 600;
        flow.extra = "--user-datasets 4096";
        for (uint64_t d = 0; d < count; d++)
                for (uint32_t f = 0; f < SMALL_FILES; f++)
                        flow_file((uint32_t)d * SMALL_FILES + f + 1, 3000,
                                "d%d/f%u", (int)d, f);
        flow_start();
        flow_ok("for d in %s/*; do sheaf add ${d##*/} $d --quiet || exit 1; "
                "done",
                flow.origin);
        measure(&added);
        print_held("datasets added:", &added);
        start_clients(pids, clients, count);
        measure(&first);
        print_held("clients read:", &first);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(took); i++) {
                flow_ok("sheaf status --json >/dev/null");
                took[i] = flow.last.seconds * 1e3;
        }
        qsort(took, SHEAF_ARRAY_LEN(took), sizeof(*took), by_value);
        fprintf(stderr, "scale: status of %d clients: %.1f ms, at most %.1f\n",
                (int)clients, took[10], took[19]);
        flow_ok("sheaf stats >/dev/null");
        fprintf(stderr, "scale: stats of %d datasets: %.1f ms\n", (int)count,
                flow.last.seconds * 1e3);
        end_clients(pids, clients);
        for (int round = 0; round < 3; round++) {
                start_clients(pids, clients, count);
                measure(&last);
                end_clients(pids, clients);
        }
        print_held("clients again:", &last);
        is_flat(&first, &last);
        cr_assert_leq(last.catalog, first.catalog + SHEAF_MIB);
        flow_ok("for d in %s/*; do sheaf rm ${d##*/} --quiet || exit 1; done",
                flow.origin);
        cr_assert(flow_until(
                30, count_entries(flow_path("cache/versions")) == 0));
        cr_assert(flow_until(20, flow_fds(flow.daemon) <= 40),
                "%ld descriptors stay", flow_fds(flow.daemon));
        measure(&last);
        print_held("datasets removed:", &last);
        cr_assert_eq(last.readers, 0);
        flow_stop();
}

/* ---- large versions ---- */

static bool is_empty(const char *dir)
{
        DIR *list = opendir(dir);
        struct dirent *entry;
        int names = 0;

        while (list && (entry = readdir(list)))
                names += entry->d_name[0] != '.' || strlen(entry->d_name) > 2;
        if (list)
                closedir(list);
        return !names;
}

static double turn_ms(void)
{
        return flow_stat("loop.longest_turn_cpu_ns") / 1e6;
}

/* The most processor time that the loop thread took at one go, in ms, while a
 * version of @count files was made, replaced, loaded and removed. */
static double longest_turn(const char *name, uint32_t count)
{
        const char *dir = flow_path("origin/%s", name);
        double added, updated, removed;

        for (uint32_t i = 0; i < count; i++)
                flow_file(i + 1, 8, "%s/%u/%u", name, i / 2000, i);
        flow_start();
        flow_ok("sheaf add %s %s", name, dir);
        added = turn_ms();
        flow_file(count + 1, 8, "%s/new", name);
        flow_ok("sheaf update --quiet %s", name);
        updated = turn_ms();
        flow_stop();
        flow_start();
        flow_run("sheaf warmup --check --quiet %s", name);
        cr_assert_gt(flow_stat_of(name, "dataset.files"), count, "loaded");
        flow_ok("sheaf rm --force %s", name);
        cr_assert(flow_until(60, is_empty(flow_path("cache/versions"))));
        removed = turn_ms();
        flow_stop();
        printf("FIGURE: %u files: the longest turn had %.1f ms in add, %.1f in "
               "update, %.1f in load and removal\n",
                count, added, updated, removed);
        return SHEAF_MAX(added, SHEAF_MAX(updated, removed));
}

/* What is done for each file of a version is done on the pool, or some files at
 * a time: no turn of the loop grows with their number. What others do to a
 * machine is not there each time. */
Test(scale, large_versions_do_not_hold_the_loop)
{
        static const char *const names[] = { "many", "again", "once-more" };
        uint32_t count = (uint32_t)setting("SCALE_VERSION", 200000);
        double few, many = 1e9, most;

        flow_origin_in_memory();
        flow.run_limit_s = 300;
        few = longest_turn("few", 100);
        most = 2 * SHEAF_MAX(few, 2);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(names) && many > most; i++)
                many = longest_turn(names[i], count);
        cr_assert_leq(many, most, "%.1f ms, %.1f of few", many, few);
}
