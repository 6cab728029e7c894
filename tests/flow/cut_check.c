/* SPDX-License-Identifier: Apache-2.0 */
/* The check of one state after a power cut, in a child of the test.
 *
 *  1 nothing asserts here: what is wrong goes into the report, and ends it
 *  2 truth is made from the stamps; what the store believes is never taken
 *    for it */
#include "tests/flow/cut_check.h"

#include "daemon/clock.h"
#include "daemon/registry/listing_block.h"
#include "daemon/registry/registry.h"
#include "daemon/records.pb-c.h"
#include "daemon/store/store.h"
#include "tests/flow/cut.h"
#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define GROUPS_MAX   8
#define GRANTS_MAX   8
#define VERSIONS_MAX 8
#define WRITES_MAX   64

struct checked {
        SheafRecord__Dataset *record;
        unsigned int count;
        struct sheaf_listing_block blocks[VERSIONS_MAX];
        struct sheaf_version *versions[VERSIONS_MAX];
};

struct check {
        const struct cut_setting *setting;
        const struct cut_truth *truth;
        const struct cut_claims *claims;
        struct cut_report *report;
        char cache[PATH_MAX];
        uv_loop_t loop;
        struct sheaf_store *store;
        struct checked sets[GROUPS_MAX];
        unsigned int count;
        SheafRecord__Grant *grants[GRANTS_MAX];
        unsigned int grant_count;
        uint64_t on_disk; /* chunks that were served by the last pass */
};

struct cut_report *cut_report_new(void)
{
        void *map = mmap(NULL, sizeof(struct cut_report),
                PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

        cr_assert_neq(map, MAP_FAILED);
        return map;
}

SHEAF_PRINTF(2, 3)
static int wrong(struct check *c, const char *format, ...)
{
        char *to = c->report->text;
        va_list args;

        va_start(args, format);
        if (!*to)
                vsnprintf(to, sizeof(c->report->text), format, args);
        va_end(args);
        return -EBADMSG;
}

/* ---- truth ---- */

static const struct cut_file *truth_of(
        struct check *c, const struct sheaf_listing *listing, uint32_t entry)
{
        const struct cut_file *file = NULL;
        char text[32];
        size_t len;
        const char *name = sheaf_listing_name(listing, entry, &len);

        if (len < sizeof(text) && name[0] == 'f') {
                memcpy(text, name, len);
                text[len] = '\0';
                file = cut_truth_find(c->truth,
                        (uint32_t)strtoul(text + 1, NULL, 10),
                        listing->entries[entry].size_bytes);
        }
        if (!file)
                wrong(c, "a listing names %.*s of %llu bytes", (int)len, name,
                        (unsigned long long)listing->entries[entry].size_bytes);
        return file;
}

/* ---- datasets ---- */

static int take_record(
        void *arg, const char *key, const void *value, size_t len_bytes)
{
        struct check *c = arg;
        SheafRecord__Dataset *record =
                sheaf_record__dataset__unpack(NULL, len_bytes, value);

        if (!record || c->count == GROUPS_MAX ||
                record->n_version > VERSIONS_MAX || !record->n_version)
                return wrong(c, "%s: unreadable record", key);
        c->sets[c->count++].record = record;
        return 0;
}

static int take_grant(
        void *arg, const char *key, const void *value, size_t len_bytes)
{
        struct check *c = arg;
        SheafRecord__Grant *record =
                sheaf_record__grant__unpack(NULL, len_bytes, value);

        if (!record || c->grant_count == GRANTS_MAX || !record->n_dataset)
                return wrong(c, "%s: unreadable record", key);
        c->grants[c->grant_count++] = record;
        return 0;
}

static bool is_version(void *arg, const uint8_t uuid[16])
{
        const struct check *c = arg;

        for (unsigned int k = 0; k < c->count; k++)
                for (size_t i = 0; i < c->sets[k].record->n_version; i++)
                        if (!memcmp(c->sets[k].record->version[i]->uuid.data,
                                    uuid, 16))
                                return true;
        return false;
}

static bool is_dataset(void *arg, uint64_t group)
{
        const struct check *c = arg;

        for (unsigned int k = 0; k < c->count; k++)
                if (c->sets[k].record->id == group)
                        return true;
        return false;
}

static int open_versions(struct check *c, struct checked *set)
{
        for (size_t i = 0; i < set->record->n_version; i++) {
                const SheafRecord__Version *record = set->record->version[i];
                struct sheaf_digest digest;
                char path[PATH_MAX];
                int rc = sheaf_version_dir(
                        c->store, record->uuid.data, path, sizeof(path) - 16);

                strcat(path, "/listing");
                memcpy(digest.bytes, record->listing_digest.data,
                        sizeof(digest.bytes));
                if (!rc)
                        rc = sheaf_listing_block_load(
                                path, &digest, &set->blocks[i]);
                if (rc)
                        return wrong(c, "%s: version %zu of %zu: listing: %s",
                                set->record->name, i + 1,
                                set->record->n_version, strerror(-rc));
                rc = sheaf_version_open(c->store, &set->blocks[i].listing,
                        set->record->id, &set->versions[i]);
                if (rc)
                        return wrong(c, "%s: version: %s", set->record->name,
                                strerror(-rc));
                set->count++;
        }
        return 0;
}

/* Generation of the first file, and whether sealed. */
static void describe(const struct checked *set, char ret_text[12])
{
        const struct sheaf_listing *listing =
                &set->blocks[set->count - 1].listing;
        const SheafRecord__Version *record =
                set->record->version[set->count - 1];

        snprintf(ret_text, 12, "g%u%s",
                (unsigned int)(listing->entries[listing->files[0]].size_bytes %
                               8),
                record->root_digest.len ? "s" : "");
}

static const struct checked *find_set(const struct check *c, const char *name)
{
        for (unsigned int k = 0; k < c->count; k++)
                if (!strcmp(c->sets[k].record->name, name))
                        return &c->sets[k];
        return NULL;
}

static void describe_share(
        const SheafRecord__Dataset *record, char ret_text[12])
{
        if (record->share_kind == SHEAF_SHARE_GROUP)
                snprintf(ret_text, 12, "group:%u", record->share_gid);
        else
                strcpy(ret_text, record->share_kind == SHEAF_SHARE_ALL
                                         ? "all"
                                         : "owner");
}

/* What is true of what a claim is about; of a dataset its bytes on disk. */
static void look_up(const struct check *c, const char *name, char ret_text[12],
        uint64_t *ret_bytes)
{
        const struct checked *set;

        strcpy(ret_text, "absent");
        *ret_bytes = 0;
        if (!strncmp(name, "grant:", 6)) {
                for (unsigned int k = 0; k < c->grant_count; k++)
                        if (!strcmp(c->grants[k]->label, name + 6))
                                strcpy(ret_text, "there");
        } else if (!strncmp(name, "share:", 6)) {
                set = find_set(c, name + 6);
                if (set)
                        describe_share(set->record, ret_text);
        } else {
                set = find_set(c, name);
                if (!set)
                        return;
                describe(set, ret_text);
                sheaf_version_disk(set->versions[set->count - 1], ret_bytes);
        }
}

static int compare_claims(struct check *c)
{
        for (unsigned int i = 0; i < c->claims->count; i++) {
                const struct cut_claim *claim = &c->claims->claims[i];
                char is[12], want[128] = "";
                uint64_t bytes;
                bool good = false;

                look_up(c, claim->name, is, &bytes);
                for (unsigned int k = 0; k < claim->count; k++) {
                        good |= !strcmp(is, claim->states[k]);
                        strcat(want, " ");
                        strcat(want, claim->states[k]);
                }
                if (!good)
                        return wrong(c, "%s is %s, reported was%s", claim->name,
                                is, want);
                if (bytes < claim->disk_bytes)
                        return wrong(c,
                                "%s: %llu bytes on disk, a clean stop had %llu",
                                claim->name, (unsigned long long)bytes,
                                (unsigned long long)claim->disk_bytes);
        }
        return 0;
}

/* Numbers name datasets in grants, and domains: none comes again. */
static int check_numbers(struct check *c)
{
        uint64_t dataset = 0, grant = 0, next;

        for (unsigned int k = 0; k < c->count; k++)
                dataset = SHEAF_MAX(dataset, c->sets[k].record->id);
        for (unsigned int k = 0; k < c->grant_count; k++) {
                grant = SHEAF_MAX(grant, c->grants[k]->serial);
                for (size_t i = 0; i < c->grants[k]->n_dataset; i++)
                        dataset = SHEAF_MAX(dataset, c->grants[k]->dataset[i]);
        }
        if (sheaf_store_next(c->store, "dataset", &next) || next <= dataset)
                return wrong(c, "the number %llu of a dataset comes again",
                        (unsigned long long)dataset);
        if (sheaf_store_next(c->store, "grant", &next) || next <= grant)
                return wrong(c, "the number %llu of a grant comes again",
                        (unsigned long long)grant);
        return 0;
}

static int check_jobs(struct check *c)
{
        char why[512];
        int rc = cut_jobs_check(c->cache, &c->truth->jobs, &c->claims->jobs,
                &c->report->jobs, why);

        return rc ? wrong(c, "%s", why) : 0;
}

/* ---- chunks ---- */

/* One chunk that is read, with what it must be. */
struct reading {
        struct sheaf_store_read read; /* first */
        const struct cut_file *file;
        struct check *check;
        int rc;
        bool done;
};

struct waited {
        struct sheaf_store_write write; /* first */
        int rc;
        bool done;
};

static const struct sheaf_digest *right(const struct reading *r)
{
        return &r->file->digests[r->read.ref.index];
}

static void on_read(struct sheaf_store_read *read, int rc)
{
        struct reading *r = (struct reading *)read;
        struct sheaf_digest digest;

        r->done = true;
        r->rc = rc;
        if (rc)
                return;
        sheaf_digest_of(read->bytes, read->ref.len_bytes, &digest);
        sheaf_store_read_end(read);
        if (sheaf_digest_equal(&digest, right(r)))
                return;
        /* What every reader of the store does; then it must be gone. */
        r->rc = -EBADMSG;
        sheaf_store_bad(r->check->store, &read->ref);
        if (sheaf_version_on_disk(read->ref.version, read->ref.chunk))
                wrong(r->check, "f%u: a bad chunk stays", r->file->id);
}

static void on_write(struct sheaf_store_write *write, int rc)
{
        struct waited *w = (struct waited *)write;

        w->rc = rc;
        w->done = true;
}

/* Begins to write one chunk anew. */
static int begin_write(
        struct check *c, const struct reading *r, struct waited *w)
{
        const struct cut_file *file = r->file;
        struct sheaf_chunk_ref ref = r->read.ref;
        void *bytes = aligned_alloc(
                CUT_BLOCK, sheaf_round_up(ref.len_bytes, CUT_BLOCK));

        if (!bytes)
                return wrong(c, "no memory");
        flow_stamp_bytes(bytes, cut_stamp(file->id, file->size_bytes),
                ref.index * SHEAF_CHUNK_BYTES_MAX, ref.len_bytes);
        *w = (struct waited){
                .write = { .ref = ref, .bytes = bytes, .done = on_write }
        };
        sheaf_version_learn(ref.version, ref.chunk, right(r));
        sheaf_store_write(c->store, &w->write);
        return 0;
}

/* Writes the chunks that were not there, some at once. */
static int write_missing(
        struct check *c, const struct reading *reads, size_t count)
{
        struct waited some[WRITES_MAX];
        int rc = 0;

        for (size_t i = 0; !rc && i < count;) {
                size_t n = 0;

                for (; !rc && n < WRITES_MAX && i < count; i++)
                        if (reads[i].rc)
                                rc = begin_write(c, &reads[i], &some[n++]);
                for (size_t k = 0; !rc && k < n; k++) {
                        while (!some[k].done) {
                                sheaf_store_flush(c->store);
                                uv_run(&c->loop, UV_RUN_ONCE);
                        }
                        free((void *)(uintptr_t)some[k].write.bytes);
                        c->report->rewritten += !some[k].rc;
                        if (some[k].rc && some[k].rc != -EDQUOT &&
                                some[k].rc != -EEXIST)
                                rc = wrong(c, "cannot be written: %s",
                                        strerror(-some[k].rc));
                }
        }
        return rc;
}

/* A file that the kernel would read by itself. */
static int check_passthrough(struct check *c, struct sheaf_version *version,
        uint32_t entry, const struct cut_file *file)
{
        static uint8_t bytes[SHEAF_CHUNK_BYTES_MAX];
        struct sheaf_plain_lease *lease;
        double end = flow_now() + 20;
        int fd, rc;

        while ((rc = sheaf_store_plain(
                        c->store, version, entry, &fd, &lease)) == -EAGAIN) {
                if (flow_now() > end)
                        return wrong(c, "f%u: the check has no end", file->id);
                uv_run(&c->loop, UV_RUN_NOWAIT);
                flow_sleep(0.001);
        }
        if (rc)
                return 0;
        for (uint64_t i = 0; i < sheaf_chunk_count(file->size_bytes); i++) {
                uint32_t len = sheaf_chunk_len(file->size_bytes, i);
                struct sheaf_digest digest;

                if (pread(fd, bytes, len, (off_t)(i * sizeof(bytes))) !=
                        (ssize_t)len)
                        rc = wrong(c, "f%u: short by passthrough", file->id);
                sheaf_digest_of(bytes, len, &digest);
                if (!sheaf_digest_equal(&digest, &file->digests[i]))
                        rc = wrong(c, "f%u: wrong by passthrough", file->id);
        }
        close(fd);
        sheaf_plain_lease_end(lease);
        c->report->passed_through++;
        return rc;
}

/* What is known of a chunk, before it is read. */
static int check_digest(struct check *c, const struct checked *set,
        unsigned int v, const struct reading *r)
{
        const struct sheaf_chunk_ref *ref = &r->read.ref;
        const struct sheaf_digest *digest =
                sheaf_version_digest(ref->version, ref->chunk);
        const char *name = set->record->name;

        c->report->chunks++;
        if (sheaf_digest_known(digest))
                return sheaf_digest_equal(digest, right(r))
                               ? 0
                               : wrong(c, "%s/f%u: a wrong digest is believed",
                                         name, r->file->id);
        return set->record->version[v]->root_digest.len
                       ? wrong(c, "%s/f%u: sealed, digest lost", name,
                                 r->file->id)
                       : 0;
}

/* Begins to read the file's chunks, at @r and behind. */
static int begin_file(struct check *c, struct checked *set, unsigned int v,
        uint32_t entry, struct reading *r, size_t *ret_count)
{
        const struct sheaf_listing *listing = &set->blocks[v].listing;
        const struct sheaf_listing_entry *e = &listing->entries[entry];
        const struct cut_file *file = truth_of(c, listing, entry);
        uint32_t chunks = (uint32_t)sheaf_chunk_count(e->size_bytes);
        int rc = file ? 0 : -EBADMSG;

        /* First of all, as the mark was found: reads may drop it. */
        if (!rc && e->size_bytes > SHEAF_CHUNK_BYTES_MAX)
                rc = check_passthrough(c, set->versions[v], entry, file);
        for (uint32_t i = 0; !rc && i < chunks; i++) {
                r[i] = (struct reading){ .check = c, .file = file };
                r[i].read.done = on_read;
                r[i].read.ref = (struct sheaf_chunk_ref){
                        .version = set->versions[v],
                        .chunk = e->first_chunk + i,
                        .entry = entry,
                        .index = i,
                        .len_bytes = sheaf_listing_chunk_len(listing, entry, i),
                };
                rc = check_digest(c, set, v, &r[i]);
                sheaf_store_read(c->store, &r[i].read);
        }
        *ret_count = chunks;
        return rc;
}

/* Waits for the reads; writes what is missing when @repair. */
static int end_files(
        struct check *c, struct reading *reads, size_t count, bool repair)
{
        int rc = 0;

        for (size_t i = 0; i < count; i++) {
                while (!reads[i].done)
                        uv_run(&c->loop, UV_RUN_ONCE);
        }
        for (size_t i = 0; !rc && i < count; i++) {
                if (!reads[i].rc) {
                        c->report->served++;
                        c->on_disk++;
                } else if (reads[i].rc != -ENOENT && reads[i].rc != -EBADMSG) {
                        rc = wrong(c, "f%u: %s", reads[i].file->id,
                                strerror(-reads[i].rc));
                }
        }
        if (!rc && repair)
                rc = write_missing(c, reads, count);
        return *c->report->text ? -EBADMSG : rc;
}

static int check_version(
        struct check *c, struct checked *set, unsigned int v, bool repair)
{
        const struct sheaf_listing *l = &set->blocks[v].listing;
        sheaf_autofree struct reading *reads =
                sheaf_new(struct reading, l->chunk_count + 1);
        size_t count = 0;
        int rc = 0;

        for (uint32_t i = 0; !rc && i < l->file_count; i++) {
                size_t more = 0;

                rc = begin_file(c, set, v, l->files[i], reads + count, &more);
                count += more;
        }
        return rc ? rc : end_files(c, reads, count, repair);
}

static int check_files(struct check *c, bool repair)
{
        int rc = 0;

        c->on_disk = 0;
        for (unsigned int k = 0; k < c->count; k++)
                for (unsigned int v = 0; !rc && v < c->sets[k].count; v++)
                        rc = check_version(c, &c->sets[k], v, repair);
        return rc;
}

/* Chunks that the store says are on disk. */
static uint64_t said(struct check *c)
{
        uint64_t chunks = 0, bytes;

        for (unsigned int k = 0; k < c->count; k++)
                for (unsigned int v = 0; v < c->sets[k].count; v++)
                        chunks += sheaf_version_disk(
                                c->sets[k].versions[v], &bytes);
        return chunks;
}

/* ---- the store ---- */

static int store_open(struct check *c)
{
        struct sheaf_store_config config = {
                .loop = &c->loop,
                .dir = c->cache,
                .bytes_max = c->setting->bytes_max,
                .want_uring = c->setting->uring,
        };
        double begin = flow_now(), took;
        char damaged[PATH_MAX + 32];
        int rc = sheaf_store_open(&config, &c->store);

        took = flow_now() - begin;
        c->report->open_s_max = SHEAF_MAX(c->report->open_s_max, took);
        if (rc)
                return wrong(c, "the store does not open: %s", strerror(-rc));
        if (took > 5)
                return wrong(c, "the store opened after %g s", took);
        snprintf(damaged, sizeof(damaged), "%s/catalog.damaged", c->cache);
        if (!access(damaged, F_OK))
                return wrong(c, "the catalog was given up");
        c->count = c->grant_count = 0;
        rc = sheaf_store_each(c->store, "dataset/", take_record, c);
        if (!rc)
                rc = sheaf_store_each(c->store, "grant/", take_grant, c);
        /* As the daemon does when it knows its datasets. */
        if (!rc) {
                sheaf_version_sweep(c->store, is_version, c);
                sheaf_store_group_sweep(c->store, is_dataset, c);
        }
        for (unsigned int k = 0; !rc && k < c->count; k++)
                rc = open_versions(c, &c->sets[k]);
        return rc;
}

static void store_close(struct check *c)
{
        sheaf_store_close(c->store);
        uv_run(&c->loop, UV_RUN_DEFAULT);
        for (unsigned int k = 0; k < c->count; k++) {
                struct checked *set = &c->sets[k];

                for (unsigned int v = 0; v < set->count; v++)
                        sheaf_listing_block_clear(&set->blocks[v]);
                sheaf_record__dataset__free_unpacked(set->record, NULL);
                *set = (struct checked){ 0 };
        }
        for (unsigned int k = 0; k < c->grant_count; k++)
                sheaf_record__grant__free_unpacked(c->grants[k], NULL);
}

static uint64_t used(struct check *c)
{
        struct sheaf_store_stats stats;

        sheaf_store_stats(c->store, &stats);
        return stats.bytes_used;
}

static uint64_t du_bytes;

static int du_one(
        const char *path, const struct stat *st, int type, struct FTW *ftw)
{
        (void)path;
        (void)type;
        (void)ftw;
        du_bytes += (uint64_t)st->st_blocks * 512;
        return 0;
}

static uint64_t du(const char *dir)
{
        du_bytes = 0;
        nftw(dir, du_one, 16, FTW_PHYS);
        return du_bytes;
}

/* The cleaning behind goes in steps of the loop. */
static int compare_usage(struct check *c)
{
        double end = flow_now() + 10;
        uint64_t says = 0, is = 0;
        char jobs[PATH_MAX + 8];

        snprintf(jobs, sizeof(jobs), "%s/jobs", c->cache);
        sheaf_store_set_journals(c->store, du(jobs));
        do {
                uv_run(&c->loop, UV_RUN_NOWAIT);
                says = used(c);
                is = du(c->cache);
                if (says < is + is / 100 + 65536 &&
                        is < says + says / 100 + 65536)
                        return 0;
                flow_sleep(0.02);
        } while (flow_now() < end);
        return wrong(c, "usage: the store says %llu, du %llu",
                (unsigned long long)says, (unsigned long long)is);
}

static int count_stats(struct check *c)
{
        struct sheaf_store_stats stats;

        sheaf_store_stats(c->store, &stats);
        c->report->bad_headers += stats.bad_headers;
        c->report->bad_payloads += stats.bad_payloads;
        if (stats.degraded)
                return wrong(c, "degraded: %s", stats.degraded_why);
        return 0;
}

static int check_store(struct check *c)
{
        uint64_t before;
        int rc;

        if (uv_loop_init(&c->loop))
                return wrong(c, "no loop");
        rc = store_open(c);
        if (!rc)
                rc = compare_claims(c);
        if (!rc)
                rc = check_numbers(c);
        if (!rc)
                rc = check_jobs(c);
        if (!rc)
                rc = check_files(c, true);
        if (!rc)
                rc = compare_usage(c);
        if (!rc)
                rc = count_stats(c);
        if (rc)
                return rc;
        before = said(c);
        store_close(c);
        /* A clean stop after an unclean one. */
        rc = store_open(c);
        if (!rc)
                rc = check_files(c, false);
        if (!rc && c->on_disk < before)
                rc = wrong(c, "a clean stop kept %llu of %llu chunks",
                        (unsigned long long)c->on_disk,
                        (unsigned long long)before);
        if (!rc)
                rc = count_stats(c);
        if (!rc)
                store_close(c);
        return rc;
}

static int child(int image_fd, struct check *c)
{
        int rc = cut_mount(image_fd, c->setting->dir);

        if (rc) {
                c->report->no_mount = true;
                return -ENODEV;
        }
        snprintf(c->cache, sizeof(c->cache), "%s/%s", c->setting->dir,
                c->setting->sub);
        rc = check_store(c);
        if (rc) {
                umount2(c->setting->dir, MNT_DETACH);
                return rc;
        }
        rc = cut_umount(c->setting->dir);
        return rc ? wrong(c, "umount: %s", strerror(-rc)) : 0;
}

int cut_check(int image_fd, const struct cut_setting *setting,
        const struct cut_truth *truth, const struct cut_claims *claims,
        struct cut_report *report)
{
        static struct check check;
        pid_t pid = flow_fork(0, 0);
        int rc;

        cr_assert(pid >= 0);
        if (!pid) {
                int log = open(flow.log, O_WRONLY | O_APPEND | O_CREAT, 0600);

                if (log >= 0)
                        dup2(log, STDERR_FILENO);
                check = (struct check){ .setting = setting,
                        .truth = truth,
                        .claims = claims,
                        .report = report };
                _exit(-child(image_fd, &check));
        }
        report->states++;
        rc = flow_wait(pid, 120);
        if (rc < 0)
                kill(pid, SIGKILL);
        if (rc < 0 || rc > 128) {
                snprintf(report->text, sizeof(report->text),
                        "the check ended with %d", rc);
                rc = EBADMSG;
        }
        return -rc;
}
