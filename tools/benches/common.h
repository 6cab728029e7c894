/* SPDX-License-Identifier: Apache-2.0 */
/* What the benchmarks share: time, medians, one JSON line a measure, trees
 * of files, and a daemon of their own in a temporary directory.
 *
 * A benchmark ends the process on any failure of its own (bench_die); what
 * it started, mounted and made is taken away by an exit handler, also after
 * SIGINT and SIGTERM. One thread calls, unless said otherwise. */
#ifndef SHEAF_BENCH_COMMON_H
#define SHEAF_BENCH_COMMON_H

#include "proto/base.h"

#include <limits.h>
#include <stdio.h>

#define BENCH_ROUNDS     5
#define BENCH_ROUNDS_MAX 64
/* A goal that there is none of. */
#define BENCH_NO_GOAL (-1.0)

struct bench_options {
        bool quick;
        bool cpu; /* CPU time in place of time: for a machine with others */
        unsigned rounds; /* pairs a measure, >= 5 */
        const char *program;
        const char *only;   /* a part of the benchmark, or NULL */
        const char *origin; /* a directory of real data, or NULL */
};

/* Reads [--json] [--quick] [--cpu] [--rounds N] [--only PART] [--origin DIR];
 * JSON is the only form. Also installs the exit handlers. */
void bench_start(int argc, char **argv, struct bench_options *ret_options);

SHEAF_PRINTF(1, 2) _Noreturn void bench_die(const char *format, ...);
/* Ends unless @rc >= 0; @what names the call. */
void bench_check(int64_t rc, const char *what);
/* A remark on stderr. */
SHEAF_PRINTF(1, 2) void bench_note(const char *format, ...);

/* Any thread. */
int64_t bench_now_ns(void);
/* The same; with --cpu the CPU time of this process, its children that ended,
 * the daemon and its readers. One thread. */
int64_t bench_clock_ns(void);

/* Pairs: ours and the rival's, measured alternately; rates or times. */
struct bench_pairs {
        double ours[BENCH_ROUNDS_MAX], rival[BENCH_ROUNDS_MAX];
        unsigned count;
};
void bench_pair_add(struct bench_pairs *pairs, double ours, double rival);
double bench_median(const double *values, unsigned count);
/* Median of rival / ours: how much faster we are, of times. */
double bench_pairs_speedup(const struct bench_pairs *pairs);

/* Prints one measure. @rival may be NULL: no ratio. @ratio: our speed over
 * the rival's (> 1: we are faster). Met: @ratio >= @goal. */
void bench_emit(const char *name, double value, const char *unit,
        const char *rival, double ratio, double goal);
/* The same where the value itself is bounded: met when value <= @limit. */
void bench_emit_limit(
        const char *name, double value, const char *unit, double limit);

/* ---- the temporary directory and trees in it ---- */

/* Below TMPDIR or /var/tmp; borrowed, removed at exit. */
const char *bench_dir(void);
/* Bytes that no compressor or dedup shortens; each seed other ones. Any
 * thread. */
void bench_fill(void *buf, size_t len_bytes, uint64_t seed);
/* Makes @dir with @count files of @size_bytes each, a thousand a folder,
 * named by bench_tree_path; file i has the bytes of seed @seed + i. */
void bench_tree(
        const char *dir, uint64_t count, uint64_t size_bytes, uint64_t seed);
/* Waits until files made just now count as unchanging: the daemon would wait
 * two seconds for that itself. */
void bench_settle(void);
/* Path of file @i relative to the tree. */
void bench_tree_path(uint64_t i, char ret_path[64]);
/* Syncs, then takes the file pages of @dir out of the page cache. */
void bench_drop_tree(const char *dir);
/* Syncs, then drops page cache, inodes and names of the whole machine;
 * false where that is not allowed (not root). */
bool bench_drop_caches(void);
/* A permutation of 0 .. @count-1; free it. */
uint32_t *bench_shuffle(uint64_t count, uint64_t seed);

/* ---- programs ---- */

/* Runs a program with output to /dev/null; returns nanoseconds of
 * bench_clock_ns(). Ends unless it exits 0. */
int64_t bench_run(const char *const *argv);
/* Runs it and gives its output; free it. */
char *bench_output(const char *const *argv);
bool bench_have(const char *program);

/* Starts sheafd of this build with its cache in bench_dir() and sets
 * SHEAF_SOCKET; @memory and @disk as on its command line. */
void bench_daemon_start(const char *memory, const char *disk);
void bench_daemon_stop(void);
int bench_daemon_pid(void);
/* Runs `sheaf` with these words, a NULL behind the last; nanoseconds. */
int64_t bench_sheaf(const char *verb, ...);
/* Sum of the totals whose names begin with @prefix, of `sheaf stats`. */
double bench_metric(const char *prefix);
/* sheaf mount; the directory is made. Unmounted at exit at the latest. */
int64_t bench_mount(const char *dataset, const char *dir, const char *mode);
/* The same by another program. */
void bench_mount_other(const char *const *argv, const char *dir);
void bench_umount(const char *dir);

#endif
