/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that bind slots before a power cut, and that go on after it. */
#include "tests/flow/cut_jobs.h"

#include "tests/flow/harness.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>

#define PER_MESSAGE 40
#define WINDOW      120

static const struct sheaf_job_options kinds[CUT_JOB_COUNT] = {
        [CUT_JOB_KEPT] = { .name = "kept",
                .order = SHEAF_JOB_WINDOW,
                .seed = 11,
                .window = WINDOW },
        [CUT_JOB_REMOVED] = { .name = "removed" },
};

bool cut_jobs_mark(struct cut_jobs_claims *claims, const char *text)
{
        unsigned int run, slots;

        if (sscanf(text, "point %u", &slots) == 1)
                claims->points = slots;
        else if (!strcmp(text, "gone"))
                claims->removed = true;
        else if (!strcmp(text, "renewed"))
                memset(claims->durable, 0, sizeof(claims->durable));
        else if (sscanf(text, "durable %u %u", &run, &slots) == 2)
                claims->durable[run] = slots;
        else
                return false;
        return true;
}

/* ---- one session ---- */

struct seat {
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_job *job;
};

static void sit_down(struct seat *seat, enum cut_job job)
{
        cr_assert_eq(flow_open(CUT_JOBS_SET, &seat->session, &seat->dataset), 0,
                "%s", sheaf_last_error());
        cr_assert_eq(sheaf_job_open(seat->dataset, &kinds[job], &seat->job), 0,
                "job %s: %s", kinds[job].name, sheaf_last_error());
        cr_assert_eq(sheaf_job_samples(seat->job), CUT_SLOTS);
}

static void stand_up(struct seat *seat)
{
        sheaf_job_close(seat->job);
        flow_close(seat->session, seat->dataset);
}

/* Slots [@from, @upto) of @epoch: 0, or as sheaf_job_bind. */
static int bind_range(const struct seat *seat, uint64_t epoch, uint32_t from,
        uint32_t upto, uint64_t *ret_ordinals)
{
        int rc = 0;

        while (!rc && from < upto) {
                uint32_t slots[PER_MESSAGE], n = 0;

                while (n < PER_MESSAGE && from + n < upto) {
                        slots[n] = from + n;
                        n++;
                }
                rc = sheaf_job_bind(
                        seat->job, epoch, slots, n, 0, ret_ordinals + from);
                from += n;
        }
        return rc;
}

/* Names the run of an epoch whose first slot is bound. */
static void identify(
        const struct seat *seat, uint64_t epoch, struct cut_run *run)
{
        struct sheaf_job_state state;

        cr_assert_eq(sheaf_job_save(seat->job, epoch, 1, &state, NULL), 0, "%s",
                sheaf_last_error());
        memcpy(run->run, state.run, sizeof(run->run));
}

/* ---- load ---- */

static struct cut_run *run_of(
        struct cut_jobs *jobs, enum cut_job job, uint64_t epoch)
{
        struct cut_run *run;

        for (size_t i = 0; i < jobs->run_count; i++) {
                run = &jobs->runs[i];
                if (run->job == job && run->epoch == epoch && !run->gone)
                        return run;
        }
        cr_assert_lt(jobs->run_count, CUT_RUNS);
        run = &jobs->runs[jobs->run_count++];
        *run = (struct cut_run){ .job = job, .epoch = epoch };
        return run;
}

/* The job's directory: the only one that is not another's. */
static void find_dir(struct cut_jobs *jobs, enum cut_job job)
{
        const char *other = jobs->dirs[!job];
        char pattern[128];
        glob_t found;

        snprintf(pattern, sizeof(pattern), "%s/jobs/*/*", flow.cache);
        cr_assert_eq(glob(pattern, 0, NULL, &found), 0, "no journal");
        for (size_t i = 0; i < found.gl_pathc; i++) {
                const char *dir = found.gl_pathv[i] + strlen(flow.cache) + 1;

                if (strcmp(dir, other))
                        snprintf(jobs->dirs[job], sizeof(jobs->dirs[job]), "%s",
                                dir);
        }
        globfree(&found);
        cr_assert(*jobs->dirs[job]);
}

static void press_down(struct cut_jobs *jobs, struct cut_disk *disk,
        const struct cut_run *run, enum cut_press press)
{
        char path[256];
        int fd;

        snprintf(path, sizeof(path), "%s/%s/%llu", flow.cache,
                jobs->dirs[run->job], (unsigned long long)run->epoch);
        fd = open(path, O_RDWR | O_CLOEXEC);
        cr_assert(fd >= 0, "%s", path);
        if (press == CUT_WRITTEN)
                cr_assert_eq(sync_file_range(fd, 0, 0,
                                     SYNC_FILE_RANGE_WRITE |
                                             SYNC_FILE_RANGE_WAIT_AFTER),
                        0);
        else
                cr_assert_eq(fsync(fd), 0);
        close(fd);
        if (press == CUT_FLUSHED)
                cut_disk_mark(disk, "durable %u %u",
                        (unsigned int)(run - jobs->runs), run->count);
}

void cut_jobs_bind(struct cut_jobs *jobs, struct cut_disk *disk,
        enum cut_job job, uint64_t epoch, uint32_t upto, enum cut_press press)
{
        struct cut_run *run = run_of(jobs, job, epoch);
        struct seat seat;

        sit_down(&seat, job);
        cr_assert_eq(bind_range(&seat, epoch, run->count, upto, run->given), 0,
                "%s", sheaf_last_error());
        if (!run->count)
                identify(&seat, epoch, run);
        run->count = upto;
        stand_up(&seat);
        if (!*jobs->dirs[job])
                find_dir(jobs, job);
        if (press != CUT_LEFT)
                press_down(jobs, disk, run, press);
}

void cut_jobs_save(struct cut_jobs *jobs, struct cut_disk *disk, uint64_t epoch,
        uint32_t yielded)
{
        struct cut_point *point = &jobs->points[jobs->point_count];
        struct seat seat;

        cr_assert_lt(jobs->point_count, CUT_POINTS);
        sit_down(&seat, CUT_JOB_KEPT);
        cr_assert_eq(sheaf_job_save(seat.job, epoch, yielded, &point->state,
                             point->bitmap),
                0, "%s", sheaf_last_error());
        stand_up(&seat);
        cut_disk_mark(disk, "point %zu", ++jobs->point_count);
}

void cut_jobs_remove(struct cut_jobs *jobs, struct cut_disk *disk)
{
        /* Its last client has gone, which the daemon may not know yet. */
        cr_assert(flow_until(20, flow_run("sheaf job rm " CUT_JOBS_SET " %s",
                                         kinds[CUT_JOB_REMOVED].name) == 0),
                "%s", flow.last.err);
        cut_disk_mark(disk, "gone");
        for (size_t i = 0; i < jobs->run_count; i++)
                jobs->runs[i].gone |= jobs->runs[i].job == CUT_JOB_REMOVED;
}

/* ---- after a cut ---- */

/* Each sample once: those in @had (NULL: none) and those of the slots from
 * @from on. */
static void each_once(const struct cut_run *run, uint32_t from,
        const uint8_t *had, const char *what)
{
        uint8_t seen[CUT_SLOTS / 8] = { 0 };

        if (had)
                memcpy(seen, had, sizeof(seen));
        for (uint32_t slot = from; slot < CUT_SLOTS; slot++) {
                uint64_t sample = run->given[slot];

                cr_assert_lt(sample, CUT_SLOTS);
                cr_assert(!(seen[sample / 8] >> sample % 8 & 1),
                        "job %s, epoch %llu, %s: slot %u: sample %llu twice",
                        kinds[run->job].name, (unsigned long long)run->epoch,
                        what, slot, (unsigned long long)sample);
                seen[sample / 8] |= (uint8_t)(1 << sample % 8);
        }
}

/* By the journal if that is enough, else from the bitmap. */
static void restore(const struct seat *seat, const struct cut_point *point,
        struct cut_jobs_figures *figures)
{
        int rc = sheaf_job_restore(seat->job, &point->state, NULL);

        if (!rc) {
                figures->went_on++;
                return;
        }
        cr_assert_eq(rc, -ENODATA, "%s", sheaf_last_error());
        cr_assert_eq(sheaf_job_restore(seat->job, &point->state, point->bitmap),
                0, "%s", sheaf_last_error());
        figures->made++;
}

/* An epoch to its end; one whose journal is damaged says so. */
static void finish_epoch(struct cut_jobs *jobs, const struct seat *seat,
        enum cut_job job, uint64_t epoch, const struct cut_jobs_claims *claims,
        const struct cut_point *point, struct cut_jobs_figures *figures)
{
        struct cut_run run = { .job = job, .epoch = epoch, .count = CUT_SLOTS };
        uint32_t from = point ? point->state.yielded : 0;
        int rc = bind_range(seat, epoch, from, CUT_SLOTS, run.given);

        if (rc == -EBADMSG && !point) {
                cr_assert_not_null(strstr(sheaf_last_error(), "damaged"), "%s",
                        sheaf_last_error());
                figures->refused++;
                return;
        }
        cr_assert_eq(rc, 0, "%s", sheaf_last_error());
        each_once(&run, from, point ? point->bitmap : NULL, "rest");
        cr_assert_eq(bind_range(seat, epoch, 0, from, run.given), 0, "%s",
                sheaf_last_error());
        each_once(&run, 0, NULL, "all");
        identify(seat, epoch, &run);
        for (size_t i = 0; claims->removed && i < jobs->run_count; i++)
                cr_assert(!jobs->runs[i].gone ||
                                  memcmp(jobs->runs[i].run, run.run,
                                          sizeof(run.run)),
                        "a job that was removed goes on");
        cr_assert_lt(jobs->run_count, CUT_RUNS);
        jobs->runs[jobs->run_count++] = run;
}

static void go_on(struct cut_jobs *jobs, enum cut_job job,
        const struct cut_jobs_claims *claims, const struct cut_point *point,
        struct cut_jobs_figures *figures)
{
        uint64_t epoch = point ? point->state.epoch : 0;
        struct seat seat;

        sit_down(&seat, job);
        if (point)
                restore(&seat, point, figures);
        for (; epoch < 2; epoch++) {
                finish_epoch(jobs, &seat, job, epoch, claims, point, figures);
                point = NULL;
        }
        stand_up(&seat);
}

void cut_jobs_go_on(struct cut_jobs *jobs, struct cut_disk *disk,
        const struct cut_jobs_claims *claims, struct cut_jobs_figures *figures)
{
        cut_disk_mark(disk, "renewed");
        for (unsigned int job = 0; job < CUT_JOB_COUNT; job++) {
                const struct cut_point *point = NULL;
                char quoted[32];

                if (job == CUT_JOB_KEPT && claims->points)
                        point = &jobs->points[claims->points - 1];
                go_on(jobs, job, claims, point, figures);
                /* Whatever is left of its directory, it is known whose it is,
                 * so that its owner can remove it. */
                flow_ok("sheaf job ls " CUT_JOBS_SET " --json");
                snprintf(quoted, sizeof(quoted), "\"%s\"", kinds[job].name);
                cr_assert_not_null(strstr(flow.last.out, quoted), "%s: %s",
                        quoted, flow.last.out);
        }
}
