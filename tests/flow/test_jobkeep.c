/* SPDX-License-Identifier: Apache-2.0 */
/* Journals of jobs: listed and forgotten by their owners, bounded, gone with
 * their versions. */
#include "tests/flow/faulty.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILES 200
#define LEN   100
#define USER  12345

static struct sheaf_session *session;
static struct sheaf_dataset *dataset;

static void begin(void)
{
        flow_init();
        for (uint32_t i = 0; i < FILES; i++)
                flow_file(i, LEN, "f%u", i);
        flow.disk = "64MiB";
        flow_start();
        flow_ok("chmod -R a+rX %s && sheaf add data %s --share all",
                flow.origin, flow.origin);
        cr_assert_eq(flow_open("data", &session, &dataset), 0, "%s",
                sheaf_last_error());
}

static void end(void)
{
        flow_close(session, dataset);
        flow_fini();
}

TestSuite(jobkeep, .init = begin, .fini = end, .timeout = 120);

static struct sheaf_job *open_job(
        const char *name, enum sheaf_job_order order, const uint8_t *subset)
{
        struct sheaf_job_options options = { .name = name,
                .order = order,
                .seed = 3,
                .window = order == SHEAF_JOB_WINDOW ? 20 : 0,
                .subset = subset };
        struct sheaf_job *job = NULL;

        cr_assert_eq(sheaf_job_open(dataset, &options, &job), 0, "%s",
                sheaf_last_error());
        return job;
}

static void bind(struct sheaf_job *job, uint64_t epoch, uint32_t count,
        uint64_t *ordinals)
{
        uint32_t slots[FILES];

        for (uint32_t i = 0; i < count; i++)
                slots[i] = i;
        cr_assert_eq(sheaf_job_bind(job, epoch, slots, count, 0, ordinals), 0,
                "epoch %llu: %s", (unsigned long long)epoch,
                sheaf_last_error());
}

static json_t *json_out(void)
{
        json_t *root;

        cr_assert_eq(flow.last.rc, 0, "%s", flow.last.err);
        root = json_loads(flow.last.out, 0, NULL);
        cr_assert_not_null(root, "%s", flow.last.out);
        return root;
}

/* The job of that name in a list, which has @count of them. */
static json_t *find(json_t *list, const char *name, size_t count)
{
        json_t *job, *found = NULL;
        size_t i, n = 0;

        json_array_foreach(list, i,
                job) if (!strcmp(json_string_value(json_object_get(job, "job")),
                                 name))
        {
                found = job;
                n++;
        }
        cr_assert_eq(n, count, "%s: %zu", name, n);
        return found;
}

static long long number(json_t *object, const char *key)
{
        return json_integer_value(json_object_get(object, key));
}

Test(jobkeep, jobs_are_listed)
{
        static const uint8_t subset[FILES / 8] = { 0xff, 0xff };
        uint64_t ordinals[FILES];
        struct sheaf_job *one = open_job("one", SHEAF_JOB_WINDOW, NULL);
        struct sheaf_job *two = open_job("two", SHEAF_JOB_STRICT, subset);
        json_t *list, *job, *epochs;

        for (uint64_t epoch = 0; epoch < 5; epoch++)
                bind(one, epoch, epoch == 4 ? 50 : FILES, ordinals);
        bind(two, 7, 16, ordinals);
        sheaf_job_close(two);
        flow_run("sheaf job ls --json");
        list = json_out();
        job = find(list, "one", 1);
        cr_assert_str_eq(
                json_string_value(json_object_get(job, "order")), "window");
        cr_assert_str_eq(
                json_string_value(json_object_get(job, "dataset")), "data");
        cr_assert_eq(number(job, "seed"), 3);
        cr_assert_eq(number(job, "window"), 20);
        cr_assert_eq(number(job, "samples"), FILES);
        cr_assert_eq(number(job, "epochs"), 5);
        cr_assert_eq(number(job, "newest"), 4);
        cr_assert_geq(number(job, "newest_slots"), 50);
        cr_assert_lt(number(job, "newest_slots"), FILES);
        cr_assert_gt(number(job, "journal_bytes"), 0);
        cr_assert(json_is_true(json_object_get(job, "live")));
        job = find(list, "two", 1);
        cr_assert_eq(number(job, "samples"), 16);
        cr_assert(json_is_string(json_object_get(job, "subset")));
        json_decref(list);
        flow_run("sheaf job show data one --json");
        list = json_out();
        epochs = json_object_get(find(list, "one", 1), "epoch");
        cr_assert_eq(json_array_size(epochs), 5);
        for (size_t i = 0; i < 5; i++) {
                json_t *epoch = json_array_get(epochs, i);

                cr_assert_eq(number(epoch, "epoch"), (long long)i);
                cr_assert_eq(number(epoch, "slots") == FILES, i < 4);
        }
        json_decref(list);
        flow_ok("sheaf job ls && sheaf job ls data && sheaf job show data one");
        cr_assert_not_null(
                strstr(flow.last.out, "window 20"), "%s", flow.last.out);
        sheaf_job_close(one);
        /* the same after a restart; nobody takes part */
        flow_close(session, dataset);
        session = NULL;
        dataset = NULL;
        flow_kill();
        flow_start();
        flow_run("sheaf job ls data --json");
        list = json_out();
        job = find(list, "one", 1);
        cr_assert_eq(number(job, "epochs"), 5);
        cr_assert(json_is_false(json_object_get(job, "live")));
        json_decref(list);
}

/* Jobs are their user's: others neither see nor forget them; root sees all. */
Test(jobkeep, jobs_are_their_owners)
{
        uint64_t ordinals[FILES];
        struct sheaf_job *mine = open_job("run", SHEAF_JOB_SHARED, NULL);
        json_t *list;
        pid_t child;

        bind(mine, 0, 10, ordinals);
        sheaf_job_close(mine);
        flow_close(session, dataset);
        session = NULL;
        dataset = NULL;
        child = flow_fork(USER, 0);
        if (!child) {
                struct sheaf_job_options options = { .name = "theirs" };
                struct sheaf_session *s;
                struct sheaf_dataset *d;
                struct sheaf_job *job;
                uint32_t slot = 0;

                _exit(flow_open("~root/data", &s, &d) ||
                        sheaf_job_open(d, &options, &job) ||
                        sheaf_job_bind(job, 0, &slot, 1, 0, ordinals));
        }
        cr_assert_eq(flow_join(child, 30), 0);
        flow_run_as(USER, 0, "sheaf job ls --json");
        list = json_out();
        find(list, "theirs", 1);
        find(list, "run", 0);
        json_decref(list);
        flow_run("sheaf job ls --json");
        list = json_out();
        find(list, "theirs", 1);
        find(list, "run", 1);
        json_decref(list);
        cr_assert_eq(flow_run_as(USER, 0, "sheaf job rm '~root/data' run"), 4);
        cr_assert_eq(
                flow_run_as(USER, 0, "sheaf job show '~root/data' run"), 4);
        flow_ok("sheaf job show data run");
        cr_assert_eq(flow_run_as(USER, 0, "sheaf job rm '~root/data' theirs"),
                0, "%s", flow.last.err);
        flow_run("sheaf job ls --json");
        list = json_out();
        find(list, "theirs", 0);
        json_decref(list);
}

/* A name that was forgotten begins anew; one in use is not forgotten. */
Test(jobkeep, a_job_is_forgotten)
{
        uint64_t had[FILES], again[FILES];
        struct sheaf_job *job = open_job("run", SHEAF_JOB_SHARED, NULL);
        struct sheaf_job_options other = {
                .name = "run", .order = SHEAF_JOB_STRICT, .seed = 8
        };

        bind(job, 0, FILES, had);
        cr_assert_eq(flow_run("sheaf job rm data run"), 1);
        cr_assert_not_null(
                strstr(flow.last.err, "in use"), "%s", flow.last.err);
        bind(job, 0, FILES, again);
        cr_assert_eq(memcmp(had, again, sizeof(had)), 0);
        sheaf_job_close(job);
        flow_close(session, dataset);
        cr_assert(flow_until(20, flow_run("sheaf job rm data run") == 0), "%s",
                flow.last.err);
        cr_assert_eq(flow_run("sheaf job rm data run"), 4);
        cr_assert_eq(flow_run("sheaf job show data run"), 4);
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        /* another order under that name */
        cr_assert_eq(sheaf_job_open(dataset, &other, &job), 0, "%s",
                sheaf_last_error());
        bind(job, 0, FILES, again);
        cr_assert_neq(memcmp(had, again, sizeof(had)), 0);
        sheaf_job_close(job);
}

/* A loss of power leaves the file that tells what a job is empty: whoever uses
 * the job again is told to be its owner again, and may remove it. */
Test(jobkeep, a_job_that_lost_its_name_is_named_again)
{
        uint64_t had[FILES], again[FILES];
        struct sheaf_job *job = open_job("run", SHEAF_JOB_SHARED, NULL);
        json_t *list;

        bind(job, 0, FILES, had);
        sheaf_job_close(job);
        flow_close(session, dataset);
        flow_kill();
        flow_ok("for f in $(find %s/jobs -name about); do : >$f; done",
                flow.cache);
        flow_start();
        cr_assert_eq(flow_run("sheaf job rm data run"), 4);
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        job = open_job("run", SHEAF_JOB_SHARED, NULL);
        bind(job, 0, FILES, again);
        cr_assert_eq(memcmp(had, again, sizeof(had)), 0);
        sheaf_job_close(job);
        flow_ok("sheaf job ls --json");
        list = json_out();
        find(list, "run", 1);
        json_decref(list);
        flow_close(session, dataset);
        cr_assert(flow_until(20, flow_run("sheaf job rm data run") == 0), "%s",
                flow.last.err);
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
}

/* The oldest epochs go when all journals exceed their share of the disk; the
 * newest stay, and what is on disk is what is counted. */
Test(jobkeep, journals_are_bounded)
{
        const double most = 2.0 * 1024 * 1024;
        uint64_t ordinals[FILES], last = 1200;
        struct sheaf_job *job = open_job("long", SHEAF_JOB_STRICT, NULL);
        double used, counted;
        uint32_t slot = 0;
        uint64_t had;

        for (uint64_t epoch = 0; epoch < last; epoch++)
                bind(job, epoch, 1, ordinals);
        had = ordinals[0];
        cr_assert(flow_until(30, ({
                bind(job, last, 1, ordinals);
                last++;
                flow_stat("jobs.journal_bytes") <= most * 1.05;
        })),
                "%.0f", flow_stat("jobs.journal_bytes"));
        cr_assert_eq(sheaf_job_bind(job, 0, &slot, 1, 0, ordinals), -ESTALE);
        bind(job, 1199, 1, ordinals);
        cr_assert_eq(ordinals[0], had);
        sheaf_job_close(job);
        flow_ok("sheaf job ls");
        flow_close(session, dataset);
        session = NULL;
        dataset = NULL;
        flow_kill();
        flow_start();
        cr_assert(flow_until(20, flow_stat("jobs.journal_bytes") > most / 2));
        flow_ok("du -s -B1 %s/jobs | cut -f1", flow.cache);
        used = atof(flow.last.out);
        counted = flow_stat("jobs.journal_bytes");
        cr_assert_float_eq(used, counted, most / 20, "du %.0f, counted %.0f",
                used, counted);
        cr_assert_leq(used, most * 1.05);
}

/* Without a disk tier there are journals all the same, within a share of the
 * memory: what live jobs write is not taken from under them. */
Test(jobkeep, journals_without_a_disk_tier)
{
        uint64_t had[FILES], again[FILES];
        struct sheaf_job *job;

        flow_close(session, dataset);
        flow_stop();
        flow.disk = "0";
        flow_start();
        cr_assert_eq(flow_open("data", &session, &dataset), 0, "%s",
                sheaf_last_error());
        job = open_job("run", SHEAF_JOB_SHARED, NULL);
        for (uint64_t epoch = 0; epoch < 40; epoch++)
                for (uint32_t count = 50; count <= FILES; count += 50)
                        bind(job, epoch, count, had);
        cr_assert_eq(flow_stat("jobs.journal_errors"), 0);
        flow_kill();
        flow_start();
        bind(job, 39, FILES, again);
        cr_assert_eq(memcmp(had, again, sizeof(had)), 0);
        sheaf_job_close(job);
}

/* When a dataset is removed its jobs' journals go. */
Test(jobkeep, journals_go_with_their_version)
{
        uint64_t ordinals[FILES];
        struct sheaf_job *job = open_job("run", SHEAF_JOB_STRICT, NULL);

        bind(job, 0, FILES, ordinals);
        sheaf_job_close(job);
        flow_ok("test $(ls %s/jobs | wc -l) = 1", flow.cache);
        flow_close(session, dataset);
        session = NULL;
        dataset = NULL;
        flow_ok("sheaf rm data --force");
        cr_assert(flow_until(30,
                flow_run("test $(ls %s/jobs | wc -l) = 0", flow.cache) == 0));
}

/* ---- who fills the disk with journals ---- */

#define FLOOD_JOBS 600
#define AT_ONCE    60 /* jobs in one session */
#define KEPT_MOST  (2.0 * 1024 * 1024)

/* Jobs without end, under ever new names; exits 0. */
static void flood(const char *go)
{
        static const uint8_t subset[FILES / 8] = { 0x0f };
        struct sheaf_job_options options = { .subset = subset };
        struct sheaf_session *s;
        struct sheaf_dataset *d;
        int made = 0;

        if (!flow_until(60, access(go, F_OK) == 0))
                _exit(1);
        while (made < FLOOD_JOBS) {
                struct sheaf_job *jobs[AT_ONCE];

                if (flow_open("~root/data", &s, &d))
                        _exit(2);
                for (int i = 0; i < AT_ONCE; i++) {
                        char name[16];
                        uint64_t ordinal;
                        uint32_t slot = 0;
                        int rc = -EBUSY;

                        snprintf(name, sizeof(name), "flood%d", made++);
                        options.name = name;
                        /* the session before may not have ended yet */
                        if (!flow_until(20, (rc = sheaf_job_open(d, &options,
                                                     &jobs[i])) != -EBUSY) ||
                                rc ||
                                sheaf_job_bind(
                                        jobs[i], 0, &slot, 1, 0, &ordinal))
                                _exit(3);
                }
                for (int i = 0; i < AT_ONCE; i++)
                        sheaf_job_close(jobs[i]);
                flow_close(s, d);
        }
        _exit(0);
}

static long count_dirs(void)
{
        flow_ok("find %s/jobs -mindepth 2 -type d | wc -l", flow.cache);
        return atol(flow.last.out);
}

/* One user's journals push out nobody else's: another one's epochs, older than
 * all of the flood, are there when the daemon was killed. */
Test(jobkeep, a_flood_of_jobs_pays_itself)
{
        uint64_t had[6][FILES], again[FILES];
        bool seen[FILES] = { false };
        struct sheaf_job *job, *pulse;
        uint64_t beat = 0;
        pid_t child;

        flow_close(session, dataset);
        session = NULL;
        dataset = NULL;
        child = flow_fork(USER, 0);
        if (!child)
                flood(flow_path("go"));
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        job = open_job("run", SHEAF_JOB_SHARED, NULL);
        for (uint64_t epoch = 0; epoch < 6; epoch++)
                bind(job, epoch, epoch == 5 ? FILES / 2 : FILES, had[epoch]);
        flow_ok("touch %s", flow_path("go"));
        cr_assert_eq(flow_join(child, 90), 0);
        /* Writing has the journals looked at. */
        pulse = open_job("pulse", SHEAF_JOB_STRICT, NULL);
        cr_assert(flow_until(30, ({
                bind(pulse, beat++, 1, again);
                (double)flow_du(flow_path("cache/jobs")) <= KEPT_MOST * 1.05;
        })));
        cr_assert_leq(count_dirs(), (long)(KEPT_MOST / 8192));
        flow_kill();
        flow_start();
        for (uint64_t epoch = 0; epoch < 6; epoch++) {
                uint32_t count = epoch == 5 ? FILES / 2 : FILES;

                bind(job, epoch, count, again);
                cr_assert_eq(memcmp(had[epoch], again, count * sizeof(*again)),
                        0, "epoch %llu", (unsigned long long)epoch);
        }
        bind(job, 5, FILES, again);
        for (uint32_t i = 0; i < FILES; i++) {
                cr_assert(!seen[again[i]], "%u comes twice", i);
                seen[again[i]] = true;
        }
        cr_assert_eq(flow_stat("jobs.journal_errors"), 0);
        sheaf_job_close(pulse);
        sheaf_job_close(job);
}

#define DIRS_MOST 4096
#define DIRS_MADE 4300

/* Directories like that of the only job there is, but two days old. */
static void make_old_jobs(const char *like)
{
        const struct timespec old[2] = { { time(NULL) - 2 * 86400, 0 },
                { time(NULL) - 2 * 86400, 0 } };
        char about[512], dir[512], file[520];

        snprintf(about, sizeof(about), "%s/about", like);
        for (int i = 0; i < DIRS_MADE; i++) {
                int fd;

                snprintf(dir, sizeof(dir), "%.*s%06d", (int)strlen(like) - 6,
                        like, i);
                cr_assert_eq(mkdir(dir, 0700), 0);
                snprintf(file, sizeof(file), "%s/about", dir);
                cr_assert_eq(link(about, file), 0);
                snprintf(file, sizeof(file), "%s/0", dir);
                fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
                cr_assert(fd >= 0);
                cr_assert_eq(futimens(fd, old), 0);
                close(fd);
                cr_assert_eq(utimensat(AT_FDCWD, dir, old, 0), 0);
        }
}

/* Of more jobs than a user may have on disk those go that were not used for
 * longest. */
Test(jobkeep, jobs_on_disk_are_bounded)
{
        struct sheaf_job *job = open_job("first", SHEAF_JOB_STRICT, NULL);
        uint64_t ordinals[FILES];
        char first[256];

        bind(job, 0, FILES, ordinals);
        sheaf_job_close(job);
        flow_close(session, dataset);
        session = NULL;
        dataset = NULL;
        flow_stop();
        flow_ok("ls -d %s/jobs/*/* | tr -d '\n'", flow.cache);
        snprintf(first, sizeof(first), "%.200s", flow.last.out);
        make_old_jobs(first);
        flow.disk = "8GiB";
        flow_start();
        cr_assert(
                flow_until(60, count_dirs() <= DIRS_MOST), "%ld", count_dirs());
        cr_assert_geq(count_dirs(), DIRS_MOST);
        flow_ok("test -s %s/0", first);
}

/* ---- journals that cannot be written ---- */

static bool shows_failing(const char *why)
{
        flow_ok("sheaf status");
        return strstr(flow.last.out, "journals-failing") &&
               strstr(flow.last.out, why);
}

/* The run goes on; status says so until a write succeeds. */
Test(jobkeep, journals_that_fail_are_told)
{
        static const struct {
                const char *rule, *why;
        } faults[] = { { "write fail=ENOSPC", "No space left" },
                { "open,create fail=EIO", "Input/output error" } };
        uint64_t ordinals[FILES], epoch = 0;
        struct sheaf_job *job;

        flow_close(session, dataset);
        session = NULL;
        dataset = NULL;
        flow_faulty_mount(flow_path("cache/jobs"));
        cr_assert_eq(flow_open("data", &session, &dataset), 0);
        job = open_job("run", SHEAF_JOB_SHARED, NULL);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(faults); i++) {
                double errors = flow_stat("jobs.journal_errors");

                bind(job, epoch++, FILES, ordinals);
                cr_assert_not(shows_failing(""), "%s", flow.last.out);
                flow_faulty("%s", faults[i].rule);
                bind(job, epoch++, FILES, ordinals);
                cr_assert_gt(flow_stat("jobs.journal_errors"), errors);
                cr_assert(shows_failing(faults[i].why), "%s", flow.last.out);
                flow_faulty("%s", "");
        }
        bind(job, epoch++, FILES, ordinals);
        cr_assert_not(shows_failing(""), "%s", flow.last.out);
        /* After a clean stop a loss of power costs nothing. */
        flow_faulty("sync delay=1");
        flow_stop();
        cr_assert_gt(flow_faulty_hits("sync"), 0, "they were not flushed");
        sheaf_job_close(job);
        flow_close(session, dataset);
        session = NULL;
        dataset = NULL;
        flow_faulty_umount();
}
