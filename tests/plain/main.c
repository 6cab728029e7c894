/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the tests of a suite one after the other, each in a child that ends
 * by itself, by a signal or by its timeout, and prints criterion's closing
 * line, which tools/check counts. */
#include "tests/plain/criterion/criterion.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

#define TIMEOUT_DEFAULT_S 300
#define SKIPPED           77

static struct plain_test *tests, *suites;
static const struct plain_test *current;
static bool soft_failed;

void plain_add_test(struct plain_test *test)
{
        struct plain_test **at = &tests;

        while (*at)
                at = &(*at)->next;
        *at = test;
}

void plain_add_suite(struct plain_test *suite)
{
        suite->next = suites;
        suites = suite;
}

void plain_failed(bool fatal, const char *file, int line, const char *what,
        const char *format, ...)
{
        va_list args;

        fprintf(stderr, "[----] %s:%d: %s", file, line, what);
        va_start(args, format);
        vfprintf(stderr, format, args);
        va_end(args);
        fputc('\n', stderr);
        if (fatal) {
                fflush(NULL);
                _exit(1);
        }
        soft_failed = true;
}

void plain_skipped(const char *format, ...)
{
        va_list args;

        printf("SKIP: %s:", current->name);
        va_start(args, format);
        vprintf(format, args);
        va_end(args);
        putchar('\n');
        fflush(NULL);
        _exit(SKIPPED);
}

static const struct plain_test *suite_of(const struct plain_test *test)
{
        for (const struct plain_test *s = suites; s; s = s->next)
                if (!strcmp(s->suite, test->suite))
                        return s;
        return NULL;
}

static _Noreturn void run(const struct plain_test *test)
{
        const struct plain_test *suite = suite_of(test);
        double timeout = test->timeout;

        if (timeout <= 0 && suite)
                timeout = suite->timeout;
        /* A sanitizer is slow: twice the time. */
        alarm(timeout > 0 ? 2 * (unsigned int)timeout : TIMEOUT_DEFAULT_S);
        current = test;
        if (suite && suite->init)
                suite->init();
        if (test->init)
                test->init();
        test->run();
        if (test->fini)
                test->fini();
        if (suite && suite->fini)
                suite->fini();
        fflush(NULL);
        exit(soft_failed ? 1 : 0);
}

static bool passed(const struct plain_test *test)
{
        int status;
        pid_t pid;

        fflush(NULL);
        pid = fork();
        if (pid < 0)
                return false;
        if (pid == 0)
                run(test);
        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return false;
        if (WIFEXITED(status))
                return WEXITSTATUS(status) == test->exit_code ||
                       WEXITSTATUS(status) == SKIPPED;
        return test->signal && WTERMSIG(status) == test->signal;
}

int main(void)
{
        unsigned int count = 0, good = 0;

        for (const struct plain_test *t = tests; t; t = t->next) {
                if (t->disabled)
                        continue;
                count++;
                if (passed(t))
                        good++;
                else
                        fprintf(stderr, "[FAIL] %s::%s\n", t->suite, t->name);
        }
        fprintf(stderr,
                "[====] Synthesis: Tested: %u | Passing: %u | Failing: %u | "
                "Crashing: 0 \n",
                count, good, count - good);
        return good == count ? 0 : 1;
}
