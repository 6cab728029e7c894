/* SPDX-License-Identifier: Apache-2.0 */
/* The part of criterion's interface that our suites use, for builds in which
 * criterion itself cannot run: its sandbox maps memory at addresses that
 * ThreadSanitizer keeps for itself. Tests run one by one, each in a forked
 * child. Real criterion serves every other build. */
#ifndef SHEAF_TESTS_PLAIN_CRITERION_H
#define SHEAF_TESTS_PLAIN_CRITERION_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct plain_test {
        const char *suite, *name;
        void (*run)(void);
        void (*init)(void);
        void (*fini)(void);
        double timeout; /* seconds */
        int signal, exit_code;
        bool disabled;
        struct plain_test *next;
};

/* A suite's settings: a test without a body. */
void plain_add_test(struct plain_test *test);
void plain_add_suite(struct plain_test *suite);

/* Reports a failed check; ends the test if @fatal. */
void plain_failed(bool fatal, const char *file, int line, const char *what,
        const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Ends the test as skipped. */
_Noreturn void plain_skipped(const char *format, ...)
        __attribute__((format(printf, 1, 2)));

#define PLAIN_JOIN_(a, b, c) a##_##b##_##c

#define Test(Suite, Name, ...)                                                 \
        static void PLAIN_JOIN_(Suite, Name, run)(void);                       \
        static struct plain_test PLAIN_JOIN_(                                  \
                Suite, Name, test) = { .suite = #Suite,                        \
                .name = #Name,                                                 \
                .run = PLAIN_JOIN_(Suite, Name, run),                          \
                __VA_ARGS__ };                                                 \
        __attribute__((constructor)) static void PLAIN_JOIN_(                  \
                Suite, Name, add)(void)                                        \
        {                                                                      \
                plain_add_test(&PLAIN_JOIN_(Suite, Name, test));               \
        }                                                                      \
        static void PLAIN_JOIN_(Suite, Name, run)(void)

#define TestSuite(Suite, ...)                                                  \
        static struct plain_test Suite##_suite = { .suite = #Suite,            \
                __VA_ARGS__ };                                                 \
        __attribute__((constructor)) static void Suite##_add_suite(void)       \
        {                                                                      \
                plain_add_suite(&Suite##_suite);                               \
        }                                                                      \
        struct plain_test

#define PLAIN_CHECK_(fatal, cond, what, ...)                                   \
        do {                                                                   \
                if (!(cond))                                                   \
                        plain_failed(fatal, __FILE__, __LINE__, what,          \
                                " " __VA_ARGS__);                              \
        } while (0)

#define cr_assert(c, ...)     PLAIN_CHECK_(true, c, #c, __VA_ARGS__)
#define cr_expect(c, ...)     PLAIN_CHECK_(false, c, #c, __VA_ARGS__)
#define cr_assert_not(c, ...) PLAIN_CHECK_(true, !(c), "not " #c, __VA_ARGS__)
#define cr_expect_not(c, ...) PLAIN_CHECK_(false, !(c), "not " #c, __VA_ARGS__)
#define cr_assert_fail(...)   PLAIN_CHECK_(true, false, "failed", __VA_ARGS__)
#define cr_fatal(...)         PLAIN_CHECK_(true, false, "failed", __VA_ARGS__)
#define cr_skip_test(...)     plain_skipped(" " __VA_ARGS__)
#define cr_skip(...)          plain_skipped(" " __VA_ARGS__)
#define cr_log_info(...)      (printf(__VA_ARGS__), puts(""))
#define cr_assert_eq(a, b, ...)                                                \
        PLAIN_CHECK_(true, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...)                                               \
        PLAIN_CHECK_(true, (a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...)                                                \
        PLAIN_CHECK_(true, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...)                                               \
        PLAIN_CHECK_(true, (a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...)                                                \
        PLAIN_CHECK_(true, (a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...)                                               \
        PLAIN_CHECK_(true, (a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_expect_eq(a, b, ...)                                                \
        PLAIN_CHECK_(false, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_expect_neq(a, b, ...)                                               \
        PLAIN_CHECK_(false, (a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...)                                                \
        PLAIN_CHECK_(false, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_expect_leq(a, b, ...)                                               \
        PLAIN_CHECK_(false, (a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...)                                                \
        PLAIN_CHECK_(false, (a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_expect_geq(a, b, ...)                                               \
        PLAIN_CHECK_(false, (a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_assert_null(a, ...) PLAIN_CHECK_(true, !(a), #a " null", __VA_ARGS__)
#define cr_expect_null(a, ...)                                                 \
        PLAIN_CHECK_(false, !(a), #a " null", __VA_ARGS__)
#define cr_assert_not_null(a, ...)                                             \
        PLAIN_CHECK_(true, (a) != NULL, #a " not null", __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...)                                            \
        PLAIN_CHECK_(true, !strcmp(a, b), #a " equals " #b, __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...)                                            \
        PLAIN_CHECK_(false, !strcmp(a, b), #a " equals " #b, __VA_ARGS__)
#define cr_expect_str_neq(a, b, ...)                                           \
        PLAIN_CHECK_(false, strcmp(a, b), #a " differs from " #b, __VA_ARGS__)
#define cr_assert_arr_eq(a, b, n, ...)                                         \
        PLAIN_CHECK_(true, !memcmp(a, b, n), #a " equals " #b, __VA_ARGS__)

#endif
