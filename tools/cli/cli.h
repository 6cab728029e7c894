/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs of `sheaf` share: the verb table, parsed arguments, exit
 * codes. One thread. */
#ifndef SHEAF_TOOLS_CLI_CLI_H
#define SHEAF_TOOLS_CLI_CLI_H

#include "proto/base.h"

/* Documented in `sheaf --help` and docs/cli.md; never renumbered. */
enum cli_exit {
        CLI_OK = 0,
        CLI_FAILED = 1,
        CLI_USAGE = 2,
        CLI_NO_DAEMON = 3,
        CLI_NOT_FOUND = 4,
        CLI_MOUNT_FAILED = 5,
        CLI_DAMAGE = 6,
        CLI_TIMED_OUT = 7,
        CLI_INTERRUPTED = 130,
};

#define CLI_OPTIONS_MAX 16

struct cli;

struct cli_option {
        const char *name;  /* without "--"; or one letter for "-0" */
        const char *value; /* what it takes, "SIZE"; NULL: a flag */
        bool optional;     /* the value may be left out */
        const char *help;
};

struct cli_verb {
        const char *name;
        const char *args; /* "NAME DIR" */
        const char *brief;
        const char *details;              /* further text, or NULL */
        const char *examples;             /* one a line */
        const struct cli_option *options; /* ends with a NULL name */
        size_t args_min;
        size_t args_max;
        int (*run)(struct cli *cli); /* an exit code */
};

/* One invocation. Everything is borrowed from argv. */
struct cli {
        const struct cli_verb *verb;
        const char *program; /* argv[0] */
        const char *socket;  /* --socket, or NULL */
        bool json;
        bool quiet;
        char **args; /* positional */
        size_t arg_count;
        const char *given[CLI_OPTIONS_MAX]; /* by option; "" for a flag */
};

/* All verbs, ends with a NULL name. */
extern const struct cli_verb *const cli_verbs[];
/* Options of every verb, ends with a NULL name. */
extern const struct cli_option cli_global_options[];
/* For people; the first line is a heading. */
extern const char cli_exit_codes[];

extern const struct cli_verb cli_verb_add, cli_verb_ls, cli_verb_rm,
        cli_verb_seal, cli_verb_verify, cli_verb_update, cli_verb_share,
        cli_verb_mount, cli_verb_umount, cli_verb_warmup, cli_verb_stats,
        cli_verb_status, cli_verb_grant, cli_verb_job, cli_verb_groups,
        cli_verb_doctor, cli_verb_sim, cli_verb_completion, cli_verb_man,
        cli_verb_version;

/* Fills @cli from @argv. 0, or an exit code after a message; -1: help was
 * asked for, with @cli->verb set where a verb was named. */
int cli_parse(struct cli *cli, int argc, char **argv);

/* Value of an option of the verb: NULL when not given, "" for a flag or an
 * option without its value. A name that the verb lacks is a programming
 * error. */
const char *cli_value(const struct cli *cli, const char *name);
bool cli_flag(const struct cli *cli, const char *name);

/* Parses a size option into @ret_bytes (untouched when not given). 0 or
 * CLI_USAGE after a message. */
int cli_size(const struct cli *cli, const char *name, uint64_t *ret_bytes);

/* Prints help for everything (@verb NULL) or one verb. */
void cli_help(const struct cli_verb *verb);

/* Prints "sheaf VERB: ..." and how to get help; returns CLI_USAGE. */
int cli_usage(const struct cli *cli, const char *format, ...)
        SHEAF_PRINTF(2, 3);

/* Prints "sheaf VERB: ..." on stderr, and an error object on stdout with
 * --json; returns the exit code for @errno_value (positive), or @code if it
 * is not CLI_OK. */
int cli_fail(const struct cli *cli, enum cli_exit code, int errno_value,
        const char *format, ...) SHEAF_PRINTF(4, 5);

/* The exit code for a positive errno. */
enum cli_exit cli_exit_of(int errno_value);

/* The nearest of @count names at distance <= 2 (and less than the length of
 * @word), or NULL. */
const char *cli_nearest(
        const char *word, const char *const *names, size_t count);

#endif
