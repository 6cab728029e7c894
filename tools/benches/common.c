/* SPDX-License-Identifier: Apache-2.0 */
/* Measures: time, medians, JSON lines, options, and the end of it all.
 *
 *  1 everything that outlives the process (mounts, daemon, directory) is
 *    known to finish() before it exists
 *
 * Threads: one, but bench_now_ns(). */
#include "tools/benches/common.h"

#include "tools/benches/setup.h"

#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static const char *program = "sheaf-bench";
static bool by_cpu;

void bench_die(const char *format, ...)
{
        va_list ap;

        fprintf(stderr, "%s: ", program);
        va_start(ap, format);
        vfprintf(stderr, format, ap);
        va_end(ap);
        fputc('\n', stderr);
        exit(1);
}

void bench_check(int64_t rc, const char *what)
{
        if (rc < 0)
                bench_die("%s: %s", what, strerror((int)-rc));
}

void bench_note(const char *format, ...)
{
        va_list ap;

        fprintf(stderr, "%s: ", program);
        va_start(ap, format);
        vfprintf(stderr, format, ap);
        va_end(ap);
        fputc('\n', stderr);
}

int64_t bench_now_ns(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return ts.tv_sec * SHEAF_NS_PER_SEC + ts.tv_nsec;
}

int64_t bench_clock_ns(void)
{
        struct rusage own, ended;

        if (!by_cpu)
                return bench_now_ns();
        getrusage(RUSAGE_SELF, &own);
        getrusage(RUSAGE_CHILDREN, &ended);
        return (own.ru_utime.tv_sec + own.ru_stime.tv_sec +
                       ended.ru_utime.tv_sec + ended.ru_stime.tv_sec) *
                       SHEAF_NS_PER_SEC +
               (own.ru_utime.tv_usec + own.ru_stime.tv_usec +
                       ended.ru_utime.tv_usec + ended.ru_stime.tv_usec) *
                       1000 +
               bench_daemon_cpu_ns();
}

/* exit() in a handler is safe here: the signals are blocked but while
 * waiting for programs or between measures, and nothing returns from it. */
static void on_signal(int sig)
{
        bench_setup_end();
        _exit(128 + sig);
}

static void usage(FILE *out)
{
        fprintf(out,
                "usage: %s [--json] [--quick] [--cpu] [--rounds N] "
                "[--only PART] "
                "[--origin DIR]\n"
                "Prints one JSON line a measure.\n",
                program);
}

void bench_start(int argc, char **argv, struct bench_options *ret_options)
{
        static const struct option known[] = {
                { "json", no_argument, NULL, 'j' },
                { "quick", no_argument, NULL, 'q' },
                { "cpu", no_argument, NULL, 'c' },
                { "rounds", required_argument, NULL, 'r' },
                { "only", required_argument, NULL, 'o' },
                { "origin", required_argument, NULL, 'd' },
                { "help", no_argument, NULL, 'h' },
                { NULL, 0, NULL, 0 },
        };
        struct bench_options options = { .rounds = BENCH_ROUNDS };
        int c;

        program = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
        options.program = program;
        while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
                if (c == 'q')
                        options.quick = true;
                else if (c == 'c')
                        options.cpu = by_cpu = true;
                else if (c == 'r')
                        options.rounds = (unsigned)atoi(optarg);
                else if (c == 'o')
                        options.only = optarg;
                else if (c == 'd')
                        options.origin = optarg;
                else if (c == 'h') {
                        usage(stdout);
                        exit(0);
                } else if (c != 'j') {
                        usage(stderr);
                        exit(2);
                }
        }
        if (optind < argc || !options.rounds ||
                options.rounds > BENCH_ROUNDS_MAX) {
                usage(stderr);
                exit(2);
        }
        setvbuf(stdout, NULL, _IOLBF, 0);
        signal(SIGINT, on_signal);
        signal(SIGTERM, on_signal);
        signal(SIGPIPE, SIG_IGN);
        atexit(bench_setup_end);
        *ret_options = options;
}

void bench_pair_add(struct bench_pairs *pairs, double ours, double rival)
{
        if (pairs->count == BENCH_ROUNDS_MAX)
                bench_die("too many rounds");
        pairs->ours[pairs->count] = ours;
        pairs->rival[pairs->count++] = rival;
}

static int compare_doubles(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

double bench_median(const double *values, unsigned count)
{
        double sorted[BENCH_ROUNDS_MAX];

        if (!count || count > BENCH_ROUNDS_MAX)
                bench_die("a median of %u values", count);
        memcpy(sorted, values, count * sizeof(*values));
        qsort(sorted, count, sizeof(*sorted), compare_doubles);
        return count % 2 ? sorted[count / 2]
                         : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

double bench_pairs_speedup(const struct bench_pairs *pairs)
{
        double ratios[BENCH_ROUNDS_MAX];

        for (unsigned i = 0; i < pairs->count; i++)
                ratios[i] = pairs->rival[i] / pairs->ours[i];
        return bench_median(ratios, pairs->count);
}

static bool is_time(const char *unit)
{
        return !strncmp(unit, "us", 2) || !strcmp(unit, "MB/s");
}

void bench_emit(const char *name, double value, const char *unit,
        const char *rival, double ratio, double goal)
{
        printf("{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s%s\"", name,
                value, by_cpu && is_time(unit) ? "cpu " : "", unit);
        if (rival)
                printf(", \"rival\": \"%s\", \"ratio\": %.3f", rival, ratio);
        else
                printf(", \"rival\": null, \"ratio\": null");
        if (goal > 0)
                printf(", \"goal\": %g, \"met\": %s}\n", goal,
                        ratio >= goal ? "true" : "false");
        else
                printf(", \"goal\": null, \"met\": null}\n");
}

void bench_emit_limit(
        const char *name, double value, const char *unit, double limit)
{
        printf("{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", "
               "\"rival\": null, \"ratio\": null, \"goal\": %g, "
               "\"met\": %s}\n",
                name, value, unit, limit, value <= limit ? "true" : "false");
}
