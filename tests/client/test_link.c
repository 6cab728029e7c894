/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: absent, slow, lost and found again; extents that go. */
#include "tests/client/rig.h"

#include <criterion/criterion.h>

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>

static double seconds(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static struct sheaf_session *session_with_deadline(
        const char *path, int64_t deadline_ms)
{
        struct sheaf_session_options options = { .socket = path,
                .deadline_ms = deadline_ms };
        struct sheaf_session *session;

        cr_assert_eq(sheaf_session_new(&options, &session), 0);
        return session;
}

/* Lines of /proc/self/maps that name the memfd @name. */
static int mapped(const char *name)
{
        FILE *maps = fopen("/proc/self/maps", "re");
        char line[512], key[64];
        int n = 0;

        cr_assert(maps);
        snprintf(key, sizeof(key), "r--s ");
        while (fgets(line, sizeof(line), maps))
                n += strstr(line, key) && strstr(line, name);
        fclose(maps);
        return n;
}

static bool mapped_becomes(const char *name, int n)
{
        for (int i = 0; i < 400; i++) {
                if (mapped(name) == n)
                        return true;
                usleep(10000);
        }
        return false;
}

Test(client_link, no_daemon_fails_at_once_with_advice)
{
        struct sheaf_session *session =
                session_with_deadline("/tmp/sheaf-no-such-dir/sock", 20000);
        struct sheaf_dataset *dataset;
        double began = seconds();

        cr_assert_eq(sheaf_session_connect(session), -ENOENT);
        cr_assert(strstr(sheaf_last_error(), "/tmp/sheaf-no-such-dir/sock"));
        cr_assert(strstr(sheaf_last_error(), "SHEAF_SOCKET"));
        cr_assert_eq(sheaf_dataset_open(session, "x", &dataset), -ENOENT);
        cr_assert_lt(seconds() - began, 10);
        cr_assert_str_eq(
                sheaf_session_socket(session), "/tmp/sheaf-no-such-dir/sock");
        sheaf_session_free(session);
}

Test(client_link, a_socket_that_nobody_listens_on)
{
        struct rig rig;
        struct sheaf_session *session;

        rig_start(&rig, NULL);
        session = session_with_deadline(rig.path, 20000);
        fake_stop(rig.fake);
        rig.fake = NULL;
        cr_assert_eq(sheaf_session_connect(session), -ECONNREFUSED);
        sheaf_session_free(session);
        rig_stop(&rig);
}

Test(client_link, a_daemon_that_says_nothing_meets_the_deadline)
{
        struct rig rig;
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        double began;

        rig_start(&rig, NULL);
        rig.knobs->mute_hello = true;
        session = session_with_deadline(rig.path, 300);
        began = seconds();
        cr_assert_eq(sheaf_dataset_open(session, "fake", &dataset), -ETIMEDOUT);
        cr_assert_geq(seconds() - began, 0.29);
        cr_assert_lt(seconds() - began, 5);
        cr_assert(strstr(sheaf_last_error(), "does not answer"));
        sheaf_session_free(session);
        rig_stop(&rig);
}

Test(client_link, a_mute_daemon_meets_the_deadline_and_is_told_to_stop)
{
        struct rig rig;
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_view view;
        uint64_t ordinals[2] = { 0, 5 };
        struct sheaf_view views[2];

        rig_start(&rig, NULL);
        session = session_with_deadline(rig.path, 300);
        cr_assert_eq(sheaf_dataset_open(session, "fake", &dataset), 0);
        rig.knobs->mute = true;
        cr_assert_eq(sheaf_view_file(dataset, 0, &view), -ETIMEDOUT);
        cr_assert(strstr(sheaf_last_error(), "300 ms"));
        cr_assert_eq(sheaf_view_batch(dataset, ordinals, 2, views, NULL),
                -ETIMEDOUT);
        rig.knobs->mute = false;
        /* The session is still good. */
        cr_assert_eq(sheaf_view_file(dataset, 0, &view), 0);
        sheaf_view_release(&view);
        sheaf_session_free(session);
        rig_stop(&rig);
}

/* Wants an end at the @stops'th question, and may call the library itself. */
static int stops, questions;

static int want_end(void *arg)
{
        (void)sheaf_session_socket(*(struct sheaf_session **)arg);
        return ++questions >= stops;
}

Test(client_link, a_wait_ends_when_its_owner_wants)
{
        struct rig rig;
        struct sheaf_session *session;
        struct sheaf_session_options options = { .deadline_ms = 600000,
                .interrupted = want_end,
                .interrupted_arg = &session };
        struct sheaf_dataset *dataset;
        struct sheaf_view view, views[2];
        uint64_t ordinals[2] = { 0, 5 };
        double began = seconds();

        rig_start(&rig, NULL);
        options.socket = rig.path;
        stops = 3;
        rig.knobs->mute_hello = true;
        cr_assert_eq(sheaf_session_new(&options, &session), 0);
        cr_assert_eq(sheaf_session_connect(session), -EINTR);
        cr_assert_eq(questions, 3);
        cr_assert(strstr(sheaf_last_error(), "interrupted"));
        sheaf_session_free(session);

        stops = INT_MAX;
        rig.knobs->mute_hello = false;
        cr_assert_eq(sheaf_session_new(&options, &session), 0);
        cr_assert_eq(sheaf_dataset_open(session, "fake", &dataset), 0);
        rig.knobs->mute = true;
        questions = 0;
        stops = 2;
        cr_assert_eq(sheaf_view_file(dataset, 0, &view), -EINTR);
        cr_assert_eq(
                sheaf_view_batch(dataset, ordinals, 2, views, NULL), -EINTR);
        cr_assert_lt(seconds() - began, 60);
        /* The session is still good. */
        rig.knobs->mute = false;
        stops = INT_MAX;
        cr_assert_eq(sheaf_view_file(dataset, 0, &view), 0);
        sheaf_view_release(&view);
        sheaf_session_free(session);
        rig_stop(&rig);
}

Test(client_link, another_layout_is_refused_with_a_reason)
{
        struct rig rig;
        struct sheaf_session *session;

        rig_start(&rig, NULL);
        rig.knobs->layout = 0;
        session = session_with_deadline(rig.path, 3000);
        cr_assert_eq(sheaf_session_connect(session), -EPROTO);
        cr_assert(strstr(sheaf_last_error(),
                          "release fake and libsheaf's, " SHEAF_VERSION
                          ", have no layout"),
                "%s", sheaf_last_error());
        cr_assert(strstr(sheaf_last_error(), "install the same release"));
        cr_assert(strstr(sheaf_last_error(), rig.path));
        sheaf_session_free(session);
        rig_stop(&rig);
}

Test(client_link, views_outlive_the_daemon_and_reads_go_on)
{
        struct rig rig;
        struct sheaf_view held, view;
        struct sheaf_stats stats;

        rig_start(&rig, NULL);
        cr_assert_eq(sheaf_view_file(rig.dataset, 5, &held), 0);
        rig_restart(&rig);
        cr_assert(rig_bytes_right(&rig, 5, 0, &held));
        /* What is not in the old memory is waited for. */
        cr_assert_eq(sheaf_view_file(rig.dataset, 4, &view), 0, "%s",
                sheaf_last_error());
        cr_assert(rig_bytes_right(&rig, 4, 0, &view));
        cr_assert(rig_reaches(&rig.knobs->opens, 1));
        cr_assert(rig_bytes_right(&rig, 5, 0, &held));
        cr_assert_gt(mapped("memfd:extent"), 1);
        sheaf_view_release(&held);
        /* Now the old arena goes, the new one stays. */
        cr_assert(mapped_becomes("memfd:extent", 1));
        cr_assert(rig_bytes_right(&rig, 4, 0, &view));
        sheaf_view_release(&view);
        sheaf_stats(rig.dataset, &stats);
        cr_assert_eq(stats.reconnects, 1);
        cr_assert_eq(stats.misses, 3 + 2);
        rig_stop(&rig);
}

static void *start_again(void *arg)
{
        struct rig *rig = arg;

        usleep(300000);
        rig->fake = fake_start(rig->path, &rig->options);
        return NULL;
}

Test(client_link, a_call_waits_for_the_daemon_to_be_back)
{
        struct rig rig;
        struct sheaf_view view;
        pthread_t thread;

        rig_start(&rig, NULL);
        fake_stop(rig.fake);
        rig.fake = NULL;
        pthread_create(&thread, NULL, start_again, &rig);
        cr_assert_eq(sheaf_view_file(rig.dataset, 0, &view), 0, "%s",
                sheaf_last_error());
        cr_assert(rig_bytes_right(&rig, 0, 0, &view));
        sheaf_view_release(&view);
        pthread_join(thread, NULL);
        rig_stop(&rig);
}

Test(client_link, a_daemon_that_stays_away_meets_the_deadline)
{
        struct fake_options options = { .deadline_ms = 300 };
        struct rig rig;
        struct sheaf_view view;
        double began;

        rig_start(&rig, &options);
        fake_stop(rig.fake);
        rig.fake = NULL;
        began = seconds();
        cr_assert_eq(sheaf_view_file(rig.dataset, 0, &view), -ECONNREFUSED);
        cr_assert_geq(seconds() - began, 0.25);
        cr_assert_lt(seconds() - began, 5);
        cr_assert(strstr(sheaf_last_error(), "did not come back"));
        rig_stop(&rig);
}

static void *die_soon(void *arg)
{
        struct rig *rig = arg;

        while (!atomic_load(&rig->knobs->fork_notes))
                usleep(1000);
        rig_restart(rig);
        return NULL;
}

Test(client_link, a_fetch_under_way_is_sent_again)
{
        struct rig rig;
        struct sheaf_view view;
        pthread_t thread;

        rig_start(&rig, NULL);
        rig.knobs->mute = true;
        pthread_create(&thread, NULL, die_soon, &rig);
        atomic_store(&rig.knobs->fork_notes, 1);
        cr_assert_eq(sheaf_view_file(rig.dataset, 0, &view), 0, "%s",
                sheaf_last_error());
        cr_assert(rig_bytes_right(&rig, 0, 0, &view));
        sheaf_view_release(&view);
        pthread_join(thread, NULL);
        rig_stop(&rig);
}

Test(client_link, a_reopened_dataset_that_fails_is_asked_for_again)
{
        struct rig rig;
        struct sheaf_view view;

        rig_start(&rig, NULL);
        fake_stop(rig.fake);
        rig.fake = fake_start(rig.path, &rig.options);
        rig.knobs = fake_knobs(rig.fake);
        rig.knobs->open_errno = ESTALE;
        usleep(50000);
        for (int i = 0; i < 100; i++) {
                int rc = sheaf_view_file(rig.dataset, 0, &view);

                if (rc == -ESTALE)
                        break;
                cr_assert_eq(rc, 0);
                sheaf_view_release(&view);
                fake_evict_all(rig.fake);
                usleep(10000);
        }
        rig.knobs->open_errno = 0;
        cr_assert_eq(sheaf_view_file(rig.dataset, 0, &view), 0, "%s",
                sheaf_last_error());
        cr_assert(rig_bytes_right(&rig, 0, 0, &view));
        sheaf_view_release(&view);
        rig_stop(&rig);
}

Test(client_link, fifty_restarts_leave_nothing_mapped)
{
        struct rig rig;
        struct sheaf_view view;

        rig_start(&rig, NULL);
        for (int i = 0; i < 50; i++) {
                rig_restart(&rig);
                fake_evict_all(rig.fake);
                cr_assert(rig_reaches(&rig.knobs->opens, 1));
                cr_assert_eq(sheaf_view_file(rig.dataset, 6, &view), 0, "%s",
                        sheaf_last_error());
                cr_assert(rig_bytes_right(&rig, 6, 0, &view));
                sheaf_view_release(&view);
        }
        cr_assert(mapped_becomes("memfd:extent", 1) ||
                  mapped_becomes("memfd:extent", 0));
        cr_assert(mapped_becomes("memfd:table", 1));
        rig_stop(&rig);
}

Test(client_link, a_dropped_extent_is_unmapped_when_unpinned)
{
        struct rig rig;
        struct sheaf_view held, view;

        rig_start(&rig, NULL);
        cr_assert_eq(sheaf_view_file(rig.dataset, 0, &held), 0);
        cr_assert_eq(mapped("memfd:extent"), 1);
        rig.knobs->drop = 0;
        usleep(200000);
        cr_assert_eq(rig.knobs->unmapped, 0);
        cr_assert(rig_bytes_right(&rig, 0, 0, &held));
        /* Others go on in another extent. */
        cr_assert_eq(sheaf_view_file(rig.dataset, 6, &view), 0);
        cr_assert(rig_bytes_right(&rig, 6, 0, &view));
        sheaf_view_release(&view);
        sheaf_view_release(&held);
        cr_assert(rig_reaches(&rig.knobs->unmapped, 1));
        cr_assert(mapped_becomes("memfd:extent", 1));
        cr_assert_eq(sheaf_view_file(rig.dataset, 0, &view), 0);
        cr_assert(rig_bytes_right(&rig, 0, 0, &view));
        sheaf_view_release(&view);
        rig_stop(&rig);
}

Test(client_link, nothing_is_inherited_by_exec)
{
        struct rig rig;
        struct sheaf_view view;
        pid_t child;
        int status;

        rig_start(&rig, NULL);
        cr_assert_eq(sheaf_view_file(rig.dataset, 0, &view), 0);
        child = fork();
        if (!child) {
                execl("/bin/sh", "sh", "-c",
                        "for f in /proc/self/fd/*; do t=$(readlink $f); "
                        "case $t in *memfd*|*socket*|*event*) exit 9;; "
                        "esac; done; exit 0",
                        (char *)NULL);
                _exit(8);
        }
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert_eq(WEXITSTATUS(status), 0);
        sheaf_view_release(&view);
        rig_stop(&rig);
}
