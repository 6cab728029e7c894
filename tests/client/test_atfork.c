/* SPDX-License-Identifier: Apache-2.0 */
/* Forks: with views held, from many threads, in a row. */
#include "tests/client/rig.h"

#include <criterion/criterion.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

static int status_of(pid_t child)
{
        int status;

        if (waitpid(child, &status, 0) != child)
                return -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Sanitizers of this time leave their allocator's locks as they are at a
 * fork, so a child of a threaded process may not allocate under them. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CHILD_MAY_ALLOCATE false
#else
#define CHILD_MAY_ALLOCATE true
#endif

/* What a child checks: inherited view, a new one, release of both. */
static int child_body(struct rig *rig, struct sheaf_view *held)
{
        struct sheaf_view view;

        if (!rig_bytes_right(rig, 5, 0, held))
                return 1;
        if (sheaf_view_file(rig->dataset, 0, &view)) {
                fprintf(stderr, "child: %s\n", sheaf_last_error());
                return 2;
        }
        if (!rig_bytes_right(rig, 0, 0, &view))
                return 3;
        sheaf_view_release(&view);
        sheaf_view_release(held);
        return 0;
}

Test(client_atfork, a_child_reads_old_and_new_views)
{
        struct rig rig;
        struct sheaf_view held;
        pid_t child;

        if (!CHILD_MAY_ALLOCATE) {
                printf("SKIP: a_child_reads_old_and_new_views: a sanitizer's "
                       "allocator "
                       "is not safe after fork\n");
                return;
        }
        rig_start(&rig, NULL);
        cr_assert_eq(sheaf_view_file(rig.dataset, 5, &held), 0);
        child = fork();
        if (!child)
                _exit(child_body(&rig, &held));
        cr_assert_eq(status_of(child), 0);
        cr_assert_eq(rig.knobs->fork_notes, 1);
        cr_assert(rig_reaches(&rig.knobs->forks_ended, 1));
        cr_assert_eq(rig.knobs->hellos, 2);
        /* The child's releases did not touch the parent's pins. */
        cr_assert_eq(fake_pins(rig.fake), 3);
        cr_assert(rig_bytes_right(&rig, 5, 0, &held));
        sheaf_view_release(&held);
        cr_assert_eq(fake_pins(rig.fake), 0);
        rig_stop(&rig);
}

Test(client_atfork, the_pipe_hangs_up_with_the_child_only)
{
        struct rig rig;
        struct sheaf_view held;
        int gate[2];
        pid_t child;

        rig_start(&rig, NULL);
        cr_assert_eq(pipe(gate), 0);
        cr_assert_eq(sheaf_view_file(rig.dataset, 0, &held), 0);
        child = fork();
        if (!child) {
                char c;

                close(gate[1]);
                sheaf_view_release(&held);
                _exit(read(gate[0], &c, 1) != 0);
        }
        sheaf_view_release(&held);
        usleep(100000);
        cr_assert_eq(rig.knobs->forks_ended, 0);
        close(gate[1]);
        cr_assert_eq(status_of(child), 0);
        cr_assert(rig_reaches(&rig.knobs->forks_ended, 1));
        rig_stop(&rig);
}

/* Nobody keeps what the child inherited: it ends rather than read what may be
 * another's by then; the parent goes on. */
Test(client_atfork, a_child_that_is_not_told_of_sees_nothing)
{
        struct rig rig;
        struct sheaf_view held;
        pid_t child;

        rig_start(&rig, NULL);
        cr_assert_eq(sheaf_view_file(rig.dataset, 0, &held), 0);
        rig.knobs->fork_errno = EMFILE;
        child = fork();
        if (!child) {
                signal(SIGSEGV, SIG_DFL);
                _exit(!rig_bytes_right(&rig, 0, 0, &held));
        }
        cr_assert_eq(status_of(child), 128 + SIGSEGV);
        cr_assert_eq(rig.knobs->fork_notes, 0);
        rig.knobs->fork_errno = 0;
        child = fork();
        if (!child)
                _exit(!rig_bytes_right(&rig, 0, 0, &held));
        cr_assert_eq(status_of(child), 0);
        cr_assert(rig_bytes_right(&rig, 0, 0, &held));
        sheaf_view_release(&held);
        rig_stop(&rig);
}

Test(client_atfork, nothing_held_needs_no_note)
{
        struct rig rig;
        pid_t child;

        rig_start(&rig, NULL);
        child = fork();
        if (!child)
                _exit(0);
        cr_assert_eq(status_of(child), 0);
        cr_assert_eq(rig.knobs->fork_notes, 0);
        rig_stop(&rig);
}

static bool rig_drops_to_no_pin(const struct rig *rig)
{
        for (int i = 0; i < 1000 && fake_pins(rig->fake); i++)
                usleep(5000);
        return !fake_pins(rig->fake);
}

static uint64_t pinned_bytes(const struct rig *rig)
{
        struct sheaf_stats stats;

        sheaf_stats(rig->dataset, &stats);
        return stats.pinned_bytes;
}

/* A child that reads the view when it is told to. */
static pid_t fork_reader(struct rig *rig, struct sheaf_view *held, int *ret_go)
{
        int gate[2];
        pid_t child;
        char c;

        cr_assert_eq(pipe(gate), 0);
        child = fork();
        if (!child) {
                close(gate[1]);
                _exit(read(gate[0], &c, 1) != 0 ||
                        !rig_bytes_right(rig, 0, 0, held));
        }
        close(gate[0]);
        *ret_go = gate[1];
        return child;
}

/* The daemon may take blocks back before it reads of the fork: until then what
 * was held stays so, and nothing else does. */
Test(client_atfork, a_mute_daemon_delays_a_fork_for_a_moment_only)
{
        struct rig rig;
        struct sheaf_view held, other;
        uint64_t bytes;
        int go[2];
        pid_t child[2];

        rig_start(&rig, NULL);
        fake_fill(rig.fake);
        cr_assert_eq(sheaf_view_file(rig.dataset, 0, &held), 0);
        bytes = pinned_bytes(&rig);
        rig.knobs->deaf = true;
        child[0] = fork_reader(&rig, &held, &go[0]);
        cr_assert_eq(sheaf_view_file(rig.dataset, 6, &other), 0);
        child[1] = fork_reader(&rig, &held, &go[1]);
        sheaf_view_release(&held);
        sheaf_view_release(&other);
        cr_assert_eq(fake_pins(rig.fake), 2);
        cr_assert_geq(pinned_bytes(&rig), bytes + 5000);
        for (int i = 0; i < 1000; i++) {
                cr_assert_eq(sheaf_view_file(rig.dataset, 7, &other), 0);
                sheaf_view_release(&other);
        }
        cr_assert_eq(fake_pins(rig.fake), 2);
        rig.knobs->deaf = false;
        cr_assert(rig_reaches(&rig.knobs->fork_notes, 2));
        cr_assert(rig_drops_to_no_pin(&rig));
        cr_assert_leq(pinned_bytes(&rig), bytes);
        close(go[0]);
        close(go[1]); /* the second child has both */
        for (int i = 0; i < 2; i++)
                cr_assert_eq(status_of(child[i]), 0);
        rig_stop(&rig);
}

/* It lives, and nobody can take its sight: the parent holds on. */
Test(client_atfork, a_child_that_is_refused_late_reads_on)
{
        struct rig rig;
        struct sheaf_view held;
        pid_t child;
        int go;

        rig_start(&rig, NULL);
        cr_assert_eq(sheaf_view_file(rig.dataset, 0, &held), 0);
        rig.knobs->deaf = true;
        rig.knobs->fork_errno = EMFILE;
        child = fork_reader(&rig, &held, &go);
        sheaf_view_release(&held);
        rig.knobs->deaf = false;
        /* What is answered later shows that the refusal came. */
        cr_assert_eq(sheaf_view_file(rig.dataset, 3, &held), 0);
        sheaf_view_release(&held);
        cr_assert_eq(fake_pins(rig.fake), 1);
        close(go);
        cr_assert_eq(status_of(child), 0);
        rig_restart(&rig);
        cr_assert_eq(sheaf_view_file(rig.dataset, 0, &held), 0);
        cr_assert(rig_bytes_right(&rig, 0, 0, &held));
        sheaf_view_release(&held);
        cr_assert_eq(fake_pins(rig.fake), 0);
        rig_stop(&rig);
}

Test(client_atfork, grandchildren_and_a_child_that_frees_everything)
{
        struct rig rig;
        struct sheaf_view held;
        pid_t child;

        if (!CHILD_MAY_ALLOCATE) {
                printf("SKIP: grandchildren_and_a_child_that_frees_everything: "
                       "a sanitizer's allocator "
                       "is not safe after fork\n");
                return;
        }
        rig_start(&rig, NULL);
        cr_assert_eq(sheaf_view_file(rig.dataset, 5, &held), 0);
        child = fork();
        if (!child) {
                pid_t grandchild = fork();

                if (!grandchild)
                        _exit(child_body(&rig, &held));
                if (status_of(grandchild))
                        _exit(20);
                if (child_body(&rig, &held))
                        _exit(21);
                sheaf_session_free(rig.session);
                _exit(0);
        }
        cr_assert_eq(status_of(child), 0);
        cr_assert(rig_bytes_right(&rig, 5, 0, &held));
        sheaf_view_release(&held);
        rig_stop(&rig);
}

Test(client_atfork, fifty_rounds_leave_pins_flat)
{
        struct rig rig;
        struct sheaf_view held[3];

        rig_start(&rig, NULL);
        for (int round = 0; round < 50; round++) {
                pid_t child;

                for (int i = 0; i < 3; i++)
                        cr_assert_eq(sheaf_view_file(rig.dataset,
                                             6 + (uint64_t)i, &held[i]),
                                0);
                child = fork();
                if (!child) {
                        for (int i = 0; i < 3; i++)
                                if (!rig_bytes_right(
                                            &rig, 6 + (uint64_t)i, 0, &held[i]))
                                        _exit(1);
                        _exit(0);
                }
                for (int i = 0; i < 3; i++)
                        sheaf_view_release(&held[i]);
                cr_assert_eq(status_of(child), 0);
                cr_assert_eq(fake_pins(rig.fake), 0);
        }
        cr_assert(rig_reaches(&rig.knobs->forks_ended, 50));
        rig_stop(&rig);
}

struct worker {
        struct rig *rig;
        _Atomic bool *stop;
        int bad;
};

static void *read_on(void *arg)
{
        struct worker *w = arg;
        unsigned int seed = (unsigned int)(uintptr_t)w;

        while (!atomic_load(w->stop)) {
                uint64_t ordinal = (uint64_t)rand_r(&seed) % 5;
                struct sheaf_view view;

                if (sheaf_view(w->rig->dataset, ordinal, 0, 5000, &view)) {
                        w->bad++;
                        continue;
                }
                w->bad += !rig_bytes_right(w->rig, ordinal, 0, &view);
                sheaf_view_release(&view);
        }
        return NULL;
}

Test(client_atfork, eight_threads_read_while_one_forks)
{
        struct rig rig;
        pthread_t threads[8];
        struct worker workers[8];
        _Atomic bool stop = false;

        rig_start(&rig, NULL);
        for (int i = 0; i < 8; i++) {
                workers[i] = (struct worker){ .rig = &rig, .stop = &stop };
                cr_assert_eq(
                        pthread_create(&threads[i], NULL, read_on, &workers[i]),
                        0);
        }
        for (int round = 0; round < 20; round++) {
                struct sheaf_view held;
                pid_t child;

                fake_evict_all(rig.fake);
                cr_assert_eq(sheaf_view_file(rig.dataset, 5, &held), 0);
                child = fork();
                if (!child && !CHILD_MAY_ALLOCATE)
                        _exit(!rig_bytes_right(&rig, 5, 0, &held));
                if (!child)
                        _exit(child_body(&rig, &held));
                cr_assert_eq(status_of(child), 0, "round %d", round);
                sheaf_view_release(&held);
        }
        atomic_store(&stop, true);
        for (int i = 0; i < 8; i++) {
                pthread_join(threads[i], NULL);
                cr_assert_eq(workers[i].bad, 0);
        }
        cr_assert_eq(fake_pins(rig.fake), 0);
        rig_stop(&rig);
}
