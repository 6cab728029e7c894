/* SPDX-License-Identifier: Apache-2.0 */
/* Threads read while everything changes beneath them: evictions, dropped
 * extents, restarts of the daemon. Every byte is checked; errors are not
 * allowed. A program of its own, since thread sanitizers and the test
 * framework do not go together.
 *
 *   stress [seconds] */
#include "client/internal.h"
#include "tests/fakes/fake_daemon.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

#define THREADS 8
#define FILES   64
#define HELD    8

/* A loaded machine may let a thread wait for seconds. */
#define DEADLINE_MS 60000

static struct sheaf_dataset *dataset;
static _Atomic bool stop;
static _Atomic uint64_t views, bad, copied;

static bool right(uint32_t entry, const struct sheaf_view *view)
{
        uint64_t at = 0;

        for (size_t p = 0; p < view->piece_count; p++) {
                const uint8_t *bytes = view->pieces[p].iov_base;
                uint64_t len = view->pieces[p].iov_len;

                /* Borders and samples: speed matters more than all bytes. */
                for (uint64_t i = 0; i < len; i += 997)
                        if (bytes[i] != fake_byte(entry, at + i))
                                return false;
                if (bytes[len - 1] != fake_byte(entry, at + len - 1))
                        return false;
                at += len;
        }
        return at == view->len_bytes;
}

static void one_view(uint64_t ordinal, struct sheaf_view *view)
{
        int rc = sheaf_view_file(dataset, ordinal, view);

        if (rc) {
                fprintf(stderr, "file %llu: %s\n", (unsigned long long)ordinal,
                        sheaf_last_error());
                *view = (struct sheaf_view){ 0 };
                bad++;
                return;
        }
        copied += view->copied;
        views++;
}

static void *read_on(void *arg)
{
        const uint32_t *files = sheaf_dataset_listing(dataset)->files;
        unsigned int seed = (unsigned int)(uintptr_t)arg;
        struct sheaf_view held[HELD] = { { 0 } };
        uint64_t ordinal[HELD] = { 0 };

        while (!stop) {
                size_t i = (size_t)rand_r(&seed) % HELD;

                if (held[i].piece_count && !right(files[ordinal[i]], &held[i]))
                        bad++;
                sheaf_view_release(&held[i]);
                ordinal[i] = (uint64_t)rand_r(&seed) % FILES;
                one_view(ordinal[i], &held[i]);
                if (!right(files[ordinal[i]], &held[i]))
                        bad++;
        }
        for (size_t i = 0; i < HELD; i++)
                sheaf_view_release(&held[i]);
        return NULL;
}

/* Until the readers have met what was done last. */
static void let_them_read(void)
{
        uint64_t before = views + bad;

        usleep(20000);
        for (int ms = 0; views + bad < before + THREADS && ms < DEADLINE_MS;
                ms++)
                usleep(1000);
}

static void trouble(struct fake_daemon **fake, const char *path,
        const struct fake_options *options, int round)
{
        static int dropped;

        let_them_read();
        fake_evict_all(*fake);
        if (round % 5 == 1)
                fake_knobs(*fake)->drop = dropped++;
        if (round % 10 == 9) {
                fake_stop(*fake);
                *fake = fake_start(path, options);
                dropped = 0;
        }
}

int main(int argc, char **argv)
{
        int rounds = 50 * (argc > 1 ? atoi(argv[1]) : 2);
        char dir[] = "/tmp/sheaf-stress-XXXXXX", path[64];
        uint64_t sizes[FILES];
        struct fake_options options = {
                .sizes = sizes,
                .n = FILES,
                .extent_bytes = 4 * SHEAF_MIB,
                .grant_bytes = 2 * SHEAF_MIB,
        };
        struct sheaf_session_options session_options = { .socket = path,
                .deadline_ms = DEADLINE_MS };
        struct sheaf_session *session;
        struct fake_daemon *fake;
        pthread_t threads[THREADS];

        for (size_t i = 0; i < FILES; i++)
                sizes[i] = i % 16 == 15 ? 4 * SHEAF_MIB + 77 : 1 + i * 600;
        if (!mkdtemp(dir))
                return 1;
        snprintf(path, sizeof(path), "%s/sock", dir);
        fake = fake_start(path, &options);
        if (sheaf_session_new(&session_options, &session) ||
                sheaf_dataset_open(session, "fake", &dataset)) {
                fprintf(stderr, "%s\n", sheaf_last_error());
                return 1;
        }
        for (size_t i = 0; i < THREADS; i++)
                if (pthread_create(&threads[i], NULL, read_on, (void *)(i + 1)))
                        return 1;
        for (int round = 0; round < rounds; round++)
                trouble(&fake, path, &options, round);
        stop = true;
        for (size_t i = 0; i < THREADS; i++)
                pthread_join(threads[i], NULL);
        if (fake_pins(fake))
                bad++;
        printf("%llu views, %llu copied, %llu bad\n", (unsigned long long)views,
                (unsigned long long)copied, (unsigned long long)bad);
        sheaf_session_free(session);
        fake_stop(fake);
        unlink(path);
        rmdir(dir);
        return bad || views < 100;
}
