/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/log.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>

#define THREADS 4
#define LINES   3500 /* of each; 24 MiB in all: exchanged once */
/* Threads go on in the old file while one makes the new one, however long. */
#define SLACK (SHEAF_LOG_FILE_BYTES_MAX / 3)
#define PAIR  1700

static char dir[] = "/tmp/sheaf-log-XXXXXX";
static char path[64], older[64];

static void begin(void)
{
        cr_assert_not_null(mkdtemp(dir));
        snprintf(path, sizeof(path), "%s/log", dir);
        snprintf(older, sizeof(older), "%s/log.1", dir);
}

static void end(void)
{
        unlink(path);
        unlink(older);
        rmdir(older);
        rmdir(dir);
}

TestSuite(log, .init = begin, .fini = end);

static uint64_t size_of(const char *name)
{
        struct stat st;

        return stat(name, &st) ? 0 : (uint64_t)st.st_size;
}

static void *talk(void *arg)
{
        char text[PAIR + 1];

        memset(text, 'a' + *(int *)arg, PAIR);
        text[PAIR] = 0;
        for (int i = 0; i < LINES; i++)
                sheaf_log(SHEAF_LOG_INFO, "line", "text=%s", text);
        return NULL;
}

static void talk_all(void)
{
        pthread_t threads[THREADS];
        int number[THREADS];

        for (int t = 0; t < THREADS; t++) {
                number[t] = t;
                cr_assert_eq(
                        pthread_create(&threads[t], NULL, talk, &number[t]), 0);
        }
        for (int t = 0; t < THREADS; t++)
                pthread_join(threads[t], NULL);
}

/* Whole lines of @name: each has one letter only, and the right length. */
static uint64_t lines_of(const char *name)
{
        FILE *f = fopen(name, "re");
        char line[4096];
        uint64_t count = 0;

        cr_assert_not_null(f, "%s", name);
        while (fgets(line, sizeof(line), f)) {
                const char *text = strstr(line, " info line text=");

                cr_assert_not_null(text, "%s", line);
                text += strlen(" info line text=");
                cr_assert_eq(strspn(text, (char[]){ *text, 0 }), PAIR);
                cr_assert_eq(text[PAIR], '\n');
                count++;
        }
        fclose(f);
        return count;
}

Test(log, file_is_exchanged_and_no_line_is_lost)
{
#if defined(__SANITIZE_THREAD__)
        printf("SKIP: file_is_exchanged_and_no_line_is_lost: "
               "ThreadSanitizer takes dup2 beside write for a race\n");
        return;
#endif
        cr_assert_eq(sheaf_log_file(path), 0);
        talk_all();
        cr_assert_gt(size_of(older), SHEAF_LOG_FILE_BYTES_MAX);
        cr_assert_lt(size_of(older), SHEAF_LOG_FILE_BYTES_MAX + SLACK);
        cr_assert_eq(lines_of(older) + lines_of(path), THREADS * LINES);
        talk_all();
        cr_assert_lt(size_of(older) + size_of(path),
                2 * (SHEAF_LOG_FILE_BYTES_MAX + SLACK), "an older one goes");
}

/* Where the old file cannot be kept the bound holds all the same. */
Test(log, file_that_cannot_be_renamed_is_cut)
{
        cr_assert_eq(mkdir(older, 0700), 0);
        cr_assert_eq(sheaf_log_file(path), 0);
        talk_all();
        cr_assert_gt(size_of(path), 0);
        cr_assert_lt(size_of(path), SHEAF_LOG_FILE_BYTES_MAX + SLACK);
}

Test(log, file_that_was_moved_away_is_begun_anew)
{
        cr_assert_eq(sheaf_log_file(path), 0);
        cr_assert_eq(rename(path, older), 0);
        talk_all();
        cr_assert_lt(size_of(path), SHEAF_LOG_FILE_BYTES_MAX);
        cr_assert_eq(lines_of(older) + lines_of(path), THREADS * LINES);
}

Test(log, file_that_cannot_be_opened_changes_nothing)
{
        char none[96];

        snprintf(none, sizeof(none), "%s/absent/log", dir);
        cr_assert_eq(sheaf_log_file(none), -ENOENT);
        cr_assert_eq(sheaf_log(SHEAF_LOG_INFO, "still", "here=%d", 1), 0);
        cr_assert_eq(size_of(path), 0);
}
