/* SPDX-License-Identifier: Apache-2.0 */
/* tools/cli/args: the parser, driven by the real table of verbs. */
#include "tools/cli/cli.h"

#include <criterion/criterion.h>

static char *words[16];
static struct cli cli;

static int parse(const char *first, ...)
{
        int n = 0;
        va_list ap;

        words[n++] = (char *)"sheaf";
        va_start(ap, first);
        for (const char *w = first; w; w = va_arg(ap, const char *))
                words[n++] = (char *)(uintptr_t)w;
        va_end(ap);
        words[n] = NULL;
        cli = (struct cli){ 0 };
        return cli_parse(&cli, n, words);
}

Test(args, options_anywhere)
{
        cr_assert_eq(parse("--json", "add", "--follow", "n", "--share=all", "d",
                             "--socket", "/s", NULL),
                0);
        cr_assert_eq(cli.verb, &cli_verb_add);
        cr_assert(cli.json && !cli.quiet);
        cr_assert_str_eq(cli.socket, "/s");
        cr_assert(cli_flag(&cli, "follow"));
        cr_assert(!cli_flag(&cli, "force"));
        cr_assert_str_eq(cli_value(&cli, "share"), "all");
        cr_assert_eq(cli.arg_count, 2);
        cr_assert_str_eq(cli.args[0], "n");
        cr_assert_str_eq(cli.args[1], "d");
}

Test(args, double_dash_ends_options)
{
        cr_assert_eq(parse("warmup", "n", "--", "-rf", "--check", NULL), 0);
        cr_assert_eq(cli.arg_count, 3);
        cr_assert_str_eq(cli.args[1], "-rf");
        cr_assert_str_eq(cli.args[2], "--check");
        cr_assert(!cli_flag(&cli, "check"));
}

Test(args, optional_value_does_not_eat_a_name)
{
        cr_assert_eq(parse("stats", "--watch", "imagenet", NULL), 0);
        cr_assert_str_eq(cli_value(&cli, "watch"), "");
        cr_assert_str_eq(cli.args[0], "imagenet");
        cr_assert_eq(parse("stats", "--watch", "2.5", "imagenet", NULL), 0);
        cr_assert_str_eq(cli_value(&cli, "watch"), "2.5");
        cr_assert_eq(parse("stats", "--watch=7", NULL), 0);
        cr_assert_str_eq(cli_value(&cli, "watch"), "7");
}

Test(args, usage_errors)
{
        cr_assert_eq(parse("nonsense", NULL), CLI_USAGE);
        cr_assert_eq(parse("--nonsense", NULL), CLI_USAGE);
        cr_assert_eq(parse("--json", NULL), CLI_USAGE);
        cr_assert_eq(parse("add", NULL), CLI_USAGE);
        cr_assert_eq(parse("add", "n", "d", "e", NULL), CLI_USAGE);
        cr_assert_eq(parse("add", "n", "d", "--shre", "x", NULL), CLI_USAGE);
        cr_assert_eq(parse("add", "n", "d", "--share", NULL), CLI_USAGE);
        cr_assert_eq(parse("add", "n", "d", "--share=", NULL), CLI_USAGE);
        cr_assert_eq(parse("add", "n", "d", "--force=1", NULL), CLI_USAGE);
        cr_assert_eq(parse("add", "n", "d", "-x", NULL), CLI_USAGE);
        cr_assert_eq(parse("warmup", "n", "--0", NULL), CLI_USAGE);
}

Test(args, help)
{
        cr_assert_eq(parse(NULL), -1);
        cr_assert_null(cli.verb);
        cr_assert_eq(parse("--help", NULL), -1);
        cr_assert_eq(parse("add", "--help", NULL), -1);
        cr_assert_eq(cli.verb, &cli_verb_add);
        cr_assert_eq(parse("help", "ls", NULL), -1);
        cr_assert_eq(cli.verb, &cli_verb_ls);
}

Test(args, sizes)
{
        uint64_t bytes = 5;

        cr_assert_eq(parse("warmup", "n", NULL), 0);
        cr_assert_eq(cli_size(&cli, "rate", &bytes), 0);
        cr_assert_eq(bytes, 5, "not given: unchanged");
        cr_assert_eq(parse("warmup", "n", "--rate", "2MiB", NULL), 0);
        cr_assert_eq(cli_size(&cli, "rate", &bytes), 0);
        cr_assert_eq(bytes, 2 * SHEAF_MIB);
        cr_assert_eq(parse("warmup", "n", "--rate", "fast", NULL), 0);
        cr_assert_eq(cli_size(&cli, "rate", &bytes), CLI_USAGE);
}

Test(args, nearest)
{
        static const char *const names[] = { "mount", "umount", "stats",
                "status" };

        cr_assert_str_eq(cli_nearest("mout", names, 4), "mount");
        cr_assert_str_eq(cli_nearest("statu", names, 4), "stats");
        cr_assert_str_eq(cli_nearest("unmount", names, 4), "umount");
        cr_assert_null(cli_nearest("frobnicate", names, 4));
        cr_assert_null(cli_nearest("x", names, 4));
}

Test(args, tables_are_complete)
{
        for (size_t i = 0; cli_verbs[i]; i++) {
                const struct cli_verb *v = cli_verbs[i];
                size_t n = 0;

                cr_assert(v->name && v->args && v->brief && v->examples &&
                                  v->options && v->run,
                        "verb %zu", i);
                cr_assert_leq(v->args_min, v->args_max, "%s", v->name);
                for (const struct cli_option *o = v->options; o->name; o++, n++)
                        cr_assert_not_null(
                                o->help, "%s --%s", v->name, o->name);
                cr_assert_leq(n, CLI_OPTIONS_MAX, "%s", v->name);
        }
}

Test(args, exit_codes)
{
        cr_assert_eq(cli_exit_of(ENOENT), CLI_NOT_FOUND);
        cr_assert_eq(cli_exit_of(EACCES), CLI_NOT_FOUND);
        cr_assert_eq(cli_exit_of(ETIMEDOUT), CLI_TIMED_OUT);
        cr_assert_eq(cli_exit_of(EIO), CLI_FAILED);
}
