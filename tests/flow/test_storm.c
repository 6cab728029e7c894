/* SPDX-License-Identifier: Apache-2.0 */
/* sheafd is killed again and again at random moments under load (storm.h),
 * and started again with the same arguments.
 *
 *  1 no byte is wrong, nothing acknowledged is lost, nothing is cleaned up by
 *    hand
 *  2 of what never changes each read succeeds, through all kills, or fails
 *    when its deadline is over: it is longer than a row of kills without a
 *    pause takes on an idle machine
 *  3 the first read after a start is answered in time; readers and mounts go
 *    on by themselves
 *  4 in a pause, what status says and what the disk holds are the same within
 *    one per cent; the limit of the disk holds at any time
 *
 * The long form is `tools/soak storm`. */
#include "tests/flow/storm.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

TestSuite(storm, .init = flow_init, .fini = flow_fini, .timeout = 1000000);

#define KILLS 200
/* Promised, and what a machine that does much else may take. */
#define FIRST_READ_S       5.0
#define FIRST_READ_LIMIT_S (4 * FIRST_READ_S)
#define DEADLINE_S         60  /* of reads */
#define BREATH_S           150 /* beyond all deadlines */
#define BREATH_EVERY       10  /* kills */
#define QUIET_EVERY        50
#define DISK_LIMIT         (UINT64_C(96) << 20)

struct figures {
        double first_max_s, first_sum_s, du_worst;
        uint64_t lives, late, in_start, stopped, quiet;
};

static double start_s;

static void show_last(void)
{
        flow_run("tail -n 25 %s; du -aB1 %s | sort -n | tail -n 40", flow.log,
                flow.cache);
        fputs(flow.last.out, stderr);
}

/* Waits for the first read since the start. */
static void first_read(struct soak *soak, struct figures *figures)
{
        uint32_t file = soak_pick(soak, STORM_SMALL);
        double took;
        int rc = -1;

        cr_assert(flow_until(FIRST_READ_LIMIT_S,
                          flow_wait(flow.daemon, 0) >= 0 ||
                                  !(rc = storm_read_once(file))),
                "kill %llu: no read within %g s of the start: %s",
                (unsigned long long)soak->done, FIRST_READ_LIMIT_S,
                sheaf_last_error());
        if (rc)
                show_last();
        cr_assert_eq(rc, 0, "kill %llu: the daemon ended by itself",
                (unsigned long long)soak->done);
        took = flow_now() - start_s;
        figures->lives++;
        figures->late += took > FIRST_READ_S;
        figures->first_sum_s += took;
        figures->first_max_s = SHEAF_MAX(figures->first_max_s, took);
}

static bool each_went_on(const uint64_t *before)
{
        for (int role = 0; role < STORM_READERS; role++)
                if (storm_board->done[role] == before[role])
                        return false;
        return true;
}

/* Lets the daemon live until each reader has read. */
static void breathe(void)
{
        uint64_t before[STORM_READERS];

        for (int role = 0; role < STORM_READERS; role++)
                before[role] = storm_board->done[role];
        if (flow_until(BREATH_S, each_went_on(before)))
                return;
        for (int role = 0; role < STORM_READERS; role++)
                cr_assert_neq(storm_board->done[role], before[role],
                        "reader %d does not go on", role);
}

static bool is_idle(void)
{
        return flow_stat("fetch.in_flight") == 0 &&
               flow_stat("fetch.queued") == 0 &&
               flow_stat("fetch.hints_queued") == 0 &&
               flow_stat("fetch.writing_bytes") == 0;
}

/* How far apart they are, as a part of the larger. */
static double du_differs(void)
{
        double du = (double)flow_du(flow.cache);
        double said = flow_stat("disk.bytes");

        return (du > said ? du - said : said - du) / SHEAF_MAX(du, said);
}

static void look_quietly(struct figures *figures)
{
        double differs = 1;

        storm_pause();
        cr_assert(flow_until(60, is_idle()), "it does not come to rest");
        cr_assert(flow_until(30, (differs = du_differs()) <= 0.01),
                "du %llu, status %g", (unsigned long long)flow_du(flow.cache),
                flow_stat("disk.bytes"));
        figures->du_worst = SHEAF_MAX(figures->du_worst, differs);
        figures->quiet++;
        cr_assert_leq(flow_stat("arena.bytes"), flow_stat("arena.bytes_max"));
        cr_assert_eq(flow_stat("verify_failures"), 0);
        storm_go_on();
}

static void disk_limit_holds(void)
{
        uint64_t du = flow_du(flow.cache);

        if (du > DISK_LIMIT + DISK_LIMIT / 100)
                show_last();
        cr_assert_leq(du, DISK_LIMIT + DISK_LIMIT / 100, "%llu bytes on disk",
                (unsigned long long)du);
}

/* One life, from start to end. */
static void live_once(struct soak *soak, struct figures *figures)
{
        uint32_t way = soak_pick(soak, 100);

        start_s = flow_now();
        flow_launch();
        if (way < 20) {
                /* In its start, most after another kill just before. */
                figures->in_start++;
                flow_sleep(soak_pick(soak, 120) / 1000.0);
                flow_kill();
                return;
        }
        first_read(soak, figures);
        if (soak->done % QUIET_EVERY == 0)
                look_quietly(figures);
        if (soak->done % BREATH_EVERY == 0)
                breathe();
        flow_sleep(soak_pick(soak, 250) / 1000.0);
        storm_look();
        if (way < 30) {
                figures->stopped++;
                kill(flow.daemon, SIGTERM);
                cr_assert_eq(flow_wait(flow.daemon, 40), 0,
                        "kill %llu: SIGTERM does not end it",
                        (unsigned long long)soak->done);
                flow.daemon = 0;
        } else {
                flow_kill();
        }
        if (way % 4 == 0)
                disk_limit_holds();
}

static void tell(struct soak *soak, const struct figures *figures)
{
        uint64_t reads = 0, commands = 0, late = 0;

        for (int role = 0; role < STORM_READERS; role++)
                reads += storm_board->done[role];
        for (int role = 0; role < STORM_ROLES; role++)
                late += storm_board->late[role];
        for (int role = STORM_READERS; role < STORM_ROLES; role++)
                commands += storm_board->done[role];
        soak_end(soak,
                "%llu reads, %llu commands, no wrong byte, %llu beyond the "
                "deadline; first read %.2f s "
                "(max %.2f s, %llu of %llu later than %g s); %llu killed in "
                "the start, %llu by SIGTERM; du differed by %.2f %% at most "
                "(%llu times)",
                (unsigned long long)reads, (unsigned long long)commands,
                (unsigned long long)late,
                figures->first_sum_s / (double)figures->lives,
                figures->first_max_s, (unsigned long long)figures->late,
                (unsigned long long)figures->lives, FIRST_READ_S,
                (unsigned long long)figures->in_start,
                (unsigned long long)figures->stopped, 100 * figures->du_worst,
                (unsigned long long)figures->quiet);
}

/* Late ones are told, and few: a machine that does much else may need a whole
 * row of lives for one read. */
static void no_error(void)
{
        uint64_t late = 0, done = 0;
        char text[512];

        for (enum storm_role role = 0; role < STORM_ROLES; role++) {
                uint64_t sum = storm_errors(role, text, sizeof(text));

                /* An origin that moved on is ESTALE for an older version. */
                if (role == STORM_VIEWS_2)
                        sum -= storm_board->errors[role][ESTALE];
                cr_assert_eq(sum, 0, "reader %d met %s", (int)role, text);
                late += storm_board->late[role];
                done += storm_board->done[role];
        }
        cr_assert_leq(late, 1 + done / 500, "%llu reads of %llu came late",
                (unsigned long long)late, (unsigned long long)done);
}

Test(storm, daemon)
{
        struct figures figures = { 0 };
        struct soak soak;

        soak_begin(&soak, "storm", "kills", KILLS, 1);
        flow.memory = "64MiB";
        flow.disk = "96MiB";
        flow.deadline_s = DEADLINE_S;
        flow.run_limit_s = 120;
        storm_prepare();
        flow_start();
        storm_add();
        storm_begin(&soak);
        flow_kill();
        while (soak_next(&soak))
                live_once(&soak, &figures);
        start_s = flow_now();
        flow_launch();
        first_read(&soak, &figures);
        look_quietly(&figures);
        storm_end();
        storm_read_all();
        flow_ok("sheaf verify still");
        no_error();
        tell(&soak, &figures);
        flow_stop();
}
