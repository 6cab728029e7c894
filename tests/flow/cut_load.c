/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets come, are read, warmed up, changed, sealed, shared, granted and
 * removed on a cache that is too small for all of them; jobs bind their slots;
 * the daemon is killed and stopped.
 *
 * Marks in the log, for cut_load_claims:
 *
 *   begin NAME STATE   asked for; a cut may show it or what was before
 *   done NAME STATE    acknowledged
 *   also NAME STATE    the same, by the step before
 *   kept NAME BYTES    a clean stop left so much of it on disk
 *   point, gone, ...   of jobs (cut_jobs_mark)
 *   running            a daemon was started: it may give disk space to others
 */
#include "tests/flow/cut_load.h"

#include "tests/fakes/block_log.h"
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <sys/stat.h>

#define LARGE_BYTES (UINT64_C(5) << 20)
#define READ_MAX    200u
#define TINY_FILES  17000

static uint64_t draw(struct cut_load *load, uint64_t below)
{
        uint64_t x = load->state += UINT64_C(0x9e3779b97f4a7c15);

        x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
        return (x ^ x >> 31) % below;
}

/* ---- origins ---- */

static void make_file(struct cut_load *load, struct cut_set *set, uint32_t i)
{
        uint32_t id = set->first + i;
        uint64_t size = set->sizes[i];

        cut_truth_add(load->truth, id, size);
        flow_file(cut_stamp(id, size), size, "%s/f%u", set->name, id);
}

static void make_set(struct cut_load *load, unsigned int k, const char *name,
        uint32_t count, uint32_t large, uint64_t small_bytes_max)
{
        struct cut_set *set = &load->sets[k];

        *set = (struct cut_set){ .name = name,
                .first = 1000 * (k + 1),
                .count = count,
                .large = large,
                .sizes = sheaf_new(uint64_t, count) };
        cr_assert(set->sizes);
        for (uint32_t i = 0; i < count; i++) {
                uint64_t size = 8 + draw(load, small_bytes_max);

                if (i >= count - large)
                        size = LARGE_BYTES + draw(load, LARGE_BYTES);
                set->sizes[i] = size & ~UINT64_C(7);
                make_file(load, set, i);
        }
}

/* Samples of jobs: every other one is empty, and so always here. */
static void make_samples(struct cut_load *load, unsigned int k)
{
        struct cut_set *set = &load->sets[k];

        *set = (struct cut_set){ .name = CUT_JOBS_SET,
                .first = 1000 * (k + 1),
                .count = CUT_SLOTS,
                .sizes = sheaf_new(uint64_t, CUT_SLOTS) };
        cr_assert(set->sizes);
        for (uint32_t i = 0; i < set->count; i++) {
                set->sizes[i] = i % 2 ? 0 : 8;
                make_file(load, set, i);
        }
}

/* The first file, some others and a large one get their next generation. */
static void change_set(struct cut_load *load, struct cut_set *set)
{
        for (uint32_t i = 0; i < set->count; i++) {
                if (i && i != set->count - 1 && draw(load, 8))
                        continue;
                set->sizes[i]++;
                make_file(load, set, i);
        }
}

/* ---- steps ---- */

SHEAF_PRINTF(4, 5)
static void step(struct cut_load *load, const char *name, const char *state,
        const char *format, ...)
{
        char command[512];
        va_list args;

        va_start(args, format);
        vsnprintf(command, sizeof(command), format, args);
        va_end(args);
        cut_disk_mark(load->disk, "begin %s %s", name, state);
        flow_ok("%s", command);
        cut_disk_mark(load->disk, "done %s %s", name, state);
}

static void grant(struct cut_load *load, unsigned int k, const char *datasets)
{
        static const char *const labels[CUT_GRANTS] = { "one", "two" };
        const char *label = labels[k], *at;
        char name[32];

        snprintf(name, sizeof(name), "grant:%s", label);
        mkdir(flow_path("%s", label), 0700);
        step(load, name, "there", "sheaf grant %s --dir %s --label %s --json",
                datasets, flow_path("%s", label), label);
        at = strstr(flow.last.out, "\"id\"");
        cr_assert(at && sscanf(at, "\"id\"%*[ :]\"%31[0-9a-f]",
                                load->grants[k]) == 1,
                "%s", flow.last.out);
}

/* Of tiny files some are enough here: cut_check reads all. */
static uint32_t read_count(const struct cut_set *set)
{
        return SHEAF_MIN(set->count, READ_MAX);
}

int cut_load_read(
        const struct cut_load *load, const char *name, char ret_path[64])
{
        const struct cut_set *set = load->sets;
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        int rc = flow_open(name, &session, &dataset);
        bool other = false, stale = false;

        snprintf(ret_path, 64, "%s", name);
        if (rc)
                return rc;
        while (strcmp(set->name, name))
                set++;
        for (uint32_t i = 0; !rc && i < read_count(set); i++) {
                uint32_t id = set->first + i;
                uint64_t ordinal;
                int64_t size;

                snprintf(ret_path, 64, "f%u", id);
                rc = sheaf_dataset_lookup(dataset, ret_path, &ordinal);
                size = rc ? rc : sheaf_dataset_size(dataset, ordinal);
                if (size < 0)
                        rc = (int)size;
                else
                        rc = flow_check_view(dataset, ret_path,
                                cut_stamp(id, (uint64_t)size), (uint64_t)size);
                /* The first file changes with each generation. */
                other |= !i && (uint64_t)size != set->sizes[0];
                if (rc == -ESTALE && other) {
                        stale = true;
                        rc = 0;
                }
        }
        flow_close(session, dataset);
        return rc ? rc : stale;
}

int cut_load_check(const struct cut_load *load, const char *name,
        const char *dir, char ret_path[64])
{
        const struct cut_set *set = load->sets;
        int rc = 0;

        while (strcmp(set->name, name))
                set++;
        for (uint32_t i = 0; !rc && i < read_count(set); i++) {
                uint32_t id = set->first + i;
                char path[128];

                snprintf(ret_path, 64, "f%u", id);
                snprintf(path, sizeof(path), "%s/f%u", dir, id);
                rc = flow_check(path, cut_stamp(id, set->sizes[i]),
                        set->sizes[i], 1 << 20);
        }
        return rc;
}

void cut_load_update(
        const struct cut_load *load, struct cut_disk *disk, const char *name)
{
        const struct cut_set *set = load->sets;
        unsigned int now;

        while (strcmp(set->name, name))
                set++;
        now = (unsigned int)(set->sizes[0] % 8);
        cut_disk_mark(disk, "begin %s g%u", name, now);
        flow_ok("sheaf update %s", name);
        cut_disk_mark(disk, "done %s g%u", name, now);
}

static void read_set(struct cut_load *load, const char *name)
{
        char path[64];
        int rc = cut_load_read(load, name, path);

        cr_assert_eq(rc, 0, "%s: %s: %s", name, path, strerror(-rc));
}

/* Nothing moves to disk any more. */
static bool settled(double *last)
{
        double now = flow_stat("dataset.disk_bytes");
        bool same = now == *last;

        *last = now;
        if (!same)
                flow_sleep(0.5);
        return same;
}

static void stop(struct cut_load *load, unsigned int sets)
{
        unsigned long long kept[CUT_SETS];
        double last = -1;

        cr_assert(flow_until(20, settled(&last)));
        for (unsigned int k = 0; k < sets; k++)
                kept[k] = (unsigned long long)flow_stat_of(
                        load->sets[k].name, "dataset.disk_bytes");
        flow_stop();
        for (unsigned int k = 0; k < sets; k++)
                cut_disk_mark(load->disk, "kept %s %llu", load->sets[k].name,
                        kept[k]);
}

static void start(struct cut_load *load)
{
        cut_disk_mark(load->disk, "running");
        flow_start();
}

static void first_day(struct cut_load *load, bool tiny)
{
        struct cut_jobs *jobs = &load->truth->jobs;
        struct cut_disk *disk = load->disk;

        start(load);
        if (tiny) {
                step(load, "d", "g0", "sheaf add d %s/d", flow.origin);
                flow_ok("sheaf warmup --disk d");
        }
        step(load, "a", "g0", "sheaf add a %s/a", flow.origin);
        cut_disk_mark(disk, "also share:a owner");
        read_set(load, "a");
        step(load, "j", "g0", "sheaf add j %s/j", flow.origin);
        cut_jobs_bind(jobs, disk, CUT_JOB_KEPT, 0, 150, CUT_LEFT);
        cut_jobs_save(jobs, disk, 0, 130);
        step(load, "b", "g0", "sheaf add b %s/b", flow.origin);
        cut_disk_mark(disk, "also share:b owner");
        flow_ok("sheaf warmup --disk b");
        step(load, "share:b", "all", "sheaf share b all --force");
        cut_jobs_bind(jobs, disk, CUT_JOB_KEPT, 0, 250, CUT_FLUSHED);
        cut_jobs_save(jobs, disk, 0, 210);
        change_set(load, &load->sets[0]);
        step(load, "a", "g1", "sheaf update a");
        grant(load, 0, "a b");
        step(load, "b", "g0s", "sheaf seal b");
        cut_jobs_bind(jobs, disk, CUT_JOB_KEPT, 0, CUT_SLOTS, CUT_LEFT);
        read_set(load, "a");
        flow_kill();
        start(load);
        read_set(load, "b");
        flow_ok("sheaf warmup --evict j");
        cut_jobs_bind(jobs, disk, CUT_JOB_KEPT, 1, 300, CUT_WRITTEN);
        cut_jobs_save(jobs, disk, 1, 250);
        step(load, "share:b", "group:4321", "sheaf share b group:4321 --force");
        stop(load, 2);
}

/* The same name, but another dataset: not shared, and in no grant. */
static void replace_a(struct cut_load *load)
{
        cut_disk_mark(load->disk, "begin share:a absent");
        step(load, "a", "absent", "sheaf rm a");
        change_set(load, &load->sets[0]);
        cut_disk_mark(load->disk, "begin share:a owner");
        step(load, "a", "g2", "sheaf add a %s/a", flow.origin);
        cut_disk_mark(load->disk, "also share:a owner");
}

static void second_day(struct cut_load *load, unsigned int sets)
{
        struct cut_jobs *jobs = &load->truth->jobs;
        struct cut_disk *disk = load->disk;
        char path[64];

        start(load);
        step(load, "share:a", "all", "sheaf share a all --force");
        cut_jobs_bind(jobs, disk, CUT_JOB_REMOVED, 0, CUT_SLOTS, CUT_WRITTEN);
        cut_jobs_bind(jobs, disk, CUT_JOB_REMOVED, 1, 64, CUT_WRITTEN);
        grant(load, 1, "b");
        step(load, "c", "g0", "sheaf add c %s/c", flow.origin);
        read_set(load, "c");
        flow_ok("sheaf warmup --evict b");
        read_set(load, "b");
        cut_jobs_remove(jobs, disk);
        replace_a(load);
        flow_ok("sheaf warmup a");
        step(load, "grant:one", "absent", "sheaf grant --revoke %s",
                load->grants[0]);
        cut_jobs_bind(jobs, disk, CUT_JOB_REMOVED, 0, 100, CUT_FLUSHED);
        change_set(load, &load->sets[2]);
        step(load, "c", "g1", "sheaf update c");
        cut_jobs_bind(jobs, disk, CUT_JOB_KEPT, 1, CUT_SLOTS, CUT_WRITTEN);
        step(load, "c", "g1s", "sheaf seal c");
        flow_mount("a", flow.mount);
        cr_assert_eq(
                cut_load_check(load, "a", flow.mount, path), 0, "%s", path);
        flow_umount(flow.mount);
        stop(load, sets);
}

void cut_load_run(struct cut_load *load, struct cut_disk *disk,
        struct cut_truth *truth, uint64_t seed, bool tiny)
{
        *load = (struct cut_load){
                .disk = disk, .truth = truth, .state = seed
        };
        make_set(load, 0, "a", 120, 2, 64 << 10);
        make_set(load, 1, "b", 80, 1, 64 << 10);
        make_set(load, 2, "c", 60, 2, 1 << 20);
        make_samples(load, 3);
        if (tiny)
                make_set(load, 4, "d", TINY_FILES, 0, 1200);
        first_day(load, tiny);
        second_day(load, tiny ? CUT_SETS : CUT_SETS - 1);
        cut_truth_sort(truth);
}

void cut_load_clear(struct cut_load *load)
{
        for (unsigned int k = 0; k < CUT_SETS; k++)
                free(load->sets[k].sizes);
        flow_ok("rm -rf %s/*", flow.origin);
}

/* ---- rights ---- */

/* Opens dataset b by a grant's socket and reads its first byte. */
static int read_granted(const char *label)
{
        struct sheaf_session_options options = {
                .socket = flow_path("%s/sheafd.sock", label)
        };
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        char byte;
        int64_t n;
        int rc;

        cr_assert_eq(sheaf_session_new(&options, &session), 0);
        rc = sheaf_session_connect(session);
        if (!rc)
                rc = sheaf_dataset_open(session, "b", &dataset);
        if (!rc) {
                n = sheaf_read(dataset, 0, &byte, 1, 0);
                rc = n == 1 ? 0 : (int)n;
                sheaf_dataset_close(dataset);
        }
        sheaf_session_free(session);
        return rc;
}

void cut_load_check_rights(const struct cut_claims *claims)
{
        for (unsigned int i = 0; i < claims->count; i++) {
                const struct cut_claim *claim = &claims->claims[i];
                const char *name = claim->name + strcspn(claim->name, ":") + 1;
                int rc;

                /* Of two answers both are right. */
                if (claim->count != 1 || !strchr(claim->name, ':'))
                        continue;
                if (!strncmp(claim->name, "share:", 6)) {
                        flow_ok("sheaf ls %s --json", name);
                        cr_assert(strstr(flow.last.out, claim->states[0]),
                                "%s is not %s: %s", claim->name,
                                claim->states[0], flow.last.out);
                        continue;
                }
                rc = read_granted(name);
                cr_assert_eq(!rc, !strcmp(claim->states[0], "there"),
                        "%s is %s: reading: %s", claim->name, claim->states[0],
                        rc ? sheaf_last_error() : "done");
        }
}

/* ---- claims ---- */

static struct cut_claim *claim_of(struct cut_claims *claims, const char *name)
{
        struct cut_claim *claim;

        for (unsigned int i = 0; i < claims->count; i++)
                if (!strcmp(claims->claims[i].name, name))
                        return &claims->claims[i];
        claim = &claims->claims[claims->count++];
        snprintf(claim->name, sizeof(claim->name), "%s", name);
        strcpy(claim->states[0], "absent");
        claim->count = 1;
        return claim;
}

static void take_mark(struct cut_claims *claims, const char *text)
{
        char name[32], state[12];
        unsigned long long bytes;

        if (sscanf(text, "begin %31s %11s", name, state) == 2) {
                struct cut_claim *claim = claim_of(claims, name);

                cr_assert(claim->count < SHEAF_ARRAY_LEN(claim->states));
                strcpy(claim->states[claim->count++], state);
        } else if (sscanf(text, "done %31s %11s", name, state) == 2 ||
                   sscanf(text, "also %31s %11s", name, state) == 2) {
                struct cut_claim *claim = claim_of(claims, name);

                strcpy(claim->states[0], state);
                claim->count = 1;
        } else if (sscanf(text, "kept %31s %llu", name, &bytes) == 2) {
                claim_of(claims, name)->disk_bytes = bytes;
        } else if (!strcmp(text, "running")) {
                for (unsigned int i = 0; i < claims->count; i++)
                        claims->claims[i].disk_bytes = 0;
        } else {
                (void)cut_jobs_mark(&claims->jobs, text);
        }
}

void cut_load_claims(
        const struct cut_log *log, size_t event, struct cut_claims *claims)
{
        for (size_t i = 0; i < event; i++) {
                char text[256] = "";

                if (log->events[i].kind != BLOCK_MARK)
                        continue;
                memcpy(text, log->events[i].data,
                        SHEAF_MIN(log->events[i].len_bytes,
                                (uint32_t)sizeof(text) - 1));
                take_mark(claims, text);
        }
}
