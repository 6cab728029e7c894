/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf man: manual pages in roff, man(7), made from the verbs' tables. */
#include "tools/cli/cli.h"

#include <stdio.h>

/* Text of any kind: no character of it means anything to roff. */
static void put_text(FILE *out, const char *text, size_t len)
{
        bool line_begins = true;

        for (size_t i = 0; i < len; i++) {
                if (line_begins && (text[i] == '.' || text[i] == '\''))
                        fputs("\\&", out);
                if (text[i] == '\\')
                        fputs("\\e", out);
                else if (text[i] == '-')
                        fputs("\\-", out);
                else
                        putc(text[i], out);
                line_begins = text[i] == '\n';
        }
}

static void put(FILE *out, const char *text)
{
        put_text(out, text, strlen(text));
}

/* Lines as they are. */
static void put_lines(FILE *out, const char *text)
{
        fputs(".nf\n", out);
        put(out, text);
        if (*text && text[strlen(text) - 1] != '\n')
                putc('\n', out);
        fputs(".fi\n", out);
}

static void put_title(FILE *out, const char *verb, const char *brief)
{
        fputs(".TH SHEAF", out);
        if (verb)
                putc('-', out);
        for (const char *c = verb; c && *c; c++)
                putc(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c, out);
        fprintf(out,
                " 1 \"\" \"Sheaf %s\" \"Sheaf\"\n.ad l\n.SH NAME\nsheaf%s%s "
                "\\- ",
                SHEAF_RELEASE, verb ? "\\-" : "", verb ? verb : "");
        put(out, brief);
        putc('\n', out);
}

static void put_options(FILE *out, const struct cli_option *options)
{
        for (const struct cli_option *o = options; o->name; o++) {
                fputs(".TP\n.B ", out);
                put(out, o->name[1] ? "--" : "-");
                put(out, o->name);
                if (o->value)
                        fprintf(out,
                                o->optional ? " \\fR[\\fI%s\\fR]"
                                            : " \\fI%s\\fR",
                                o->value);
                putc('\n', out);
                put(out, o->help);
                putc('\n', out);
        }
}

/* The first line heads the section elsewhere. */
static void put_exit_codes(FILE *out)
{
        fputs(".SH EXIT STATUS\n", out);
        put_lines(out, strchr(cli_exit_codes, '\n') + 1);
}

static void put_verb(FILE *out, const struct cli_verb *verb)
{
        put_title(out, verb->name, verb->brief);
        fprintf(out, ".SH SYNOPSIS\n.B sheaf %s\n", verb->name);
        if (*verb->args) {
                fputs(".I ", out);
                put(out, verb->args);
                putc('\n', out);
        }
        fputs("[\\fIOPTIONS\\fR]\n", out);
        if (verb->details) {
                fputs(".SH DESCRIPTION\n", out);
                put_lines(out, verb->details);
        }
        fputs(".SH OPTIONS\n", out);
        put_options(out, verb->options);
        put_options(out, cli_global_options);
        fputs(".SH EXAMPLES\n", out);
        put_lines(out, verb->examples);
        put_exit_codes(out);
        fputs(".SH SEE ALSO\n.BR sheaf (1),\n.BR sheafd (8)\n", out);
}

static void put_all(FILE *out)
{
        put_title(out, NULL, "a cache of training data");
        fputs(".SH SYNOPSIS\n.B sheaf\n"
              "[\\fB\\-\\-socket\\fR \\fIPATH\\fR] \\fIVERB\\fR "
              "[\\fIARGUMENTS\\fR] [\\fIOPTIONS\\fR]\n"
              ".SH DESCRIPTION\n"
              "Keeps training data ready: cached once on this machine, by "
              "content,\nfor every job and every user.\nThe daemon,\n"
              ".BR sheafd (8),\nhas to run.\n"
              ".SH VERBS\n",
                out);
        for (size_t i = 0; cli_verbs[i]; i++) {
                fprintf(out, ".TP\n.BR sheaf\\-%s (1)\n", cli_verbs[i]->name);
                put(out, cli_verbs[i]->brief);
                putc('\n', out);
        }
        fputs(".SH OPTIONS\nOf every verb:\n", out);
        put_options(out, cli_global_options);
        put_exit_codes(out);
        fputs(".SH ENVIRONMENT\n.TP\n.B SHEAF_SOCKET\n"
              "The daemon's socket, where no option names it.\n"
              ".SH SEE ALSO\n.BR sheafd (8)\n",
                out);
}

static const struct cli_verb *find(const char *name)
{
        for (size_t i = 0; cli_verbs[i]; i++)
                if (!strcmp(cli_verbs[i]->name, name))
                        return cli_verbs[i];
        return NULL;
}

/* @verb NULL: the page of all. */
static int write_page(
        const struct cli *cli, const char *dir, const struct cli_verb *verb)
{
        sheaf_autofree char *path = NULL;
        bool failed;
        FILE *out;

        if (asprintf(&path, "%s/sheaf%s%s.1", dir, verb ? "-" : "",
                    verb ? verb->name : "") < 0) {
                path = NULL;
                return cli_fail(cli, CLI_FAILED, ENOMEM, "no memory");
        }
        out = fopen(path, "we");
        if (!out)
                return cli_fail(cli, CLI_FAILED, errno, "cannot make '%s': %s",
                        path, strerror(errno));
        if (verb)
                put_verb(out, verb);
        else
                put_all(out);
        failed = ferror(out);
        if (fclose(out) || failed)
                return cli_fail(
                        cli, CLI_FAILED, EIO, "cannot write '%s'", path);
        return CLI_OK;
}

static int write_pages(const struct cli *cli, const char *dir)
{
        int rc = write_page(cli, dir, NULL);

        for (size_t i = 0; !rc && cli_verbs[i]; i++)
                rc = write_page(cli, dir, cli_verbs[i]);
        return rc;
}

static int run(struct cli *cli)
{
        const char *dir = cli_value(cli, "dir");
        const struct cli_verb *verb;

        if (cli->json)
                return cli_usage(cli, "a page is no JSON: without --json");
        if (dir && cli->arg_count)
                return cli_usage(cli, "either a verb or --dir, which has all");
        if (dir)
                return write_pages(cli, dir);
        if (!cli->arg_count) {
                put_all(stdout);
                return CLI_OK;
        }
        verb = find(cli->args[0]);
        if (!verb)
                return cli_usage(cli, "no verb '%s'", cli->args[0]);
        put_verb(stdout, verb);
        return CLI_OK;
}

static const struct cli_option options[] = {
        { "dir", "DIR", false, "write the pages of all verbs into DIR" },
        { 0 },
};

const struct cli_verb cli_verb_man = {
        .name = "man",
        .args = "[VERB]",
        .brief = "print the manual page of a verb, or the one of all",
        .details = "Installed pages are these: where there are none, let "
                   "man(1) read them from here.\n",
        .examples = "sheaf man mount | man -l -\n"
                    "sheaf man --dir /usr/local/share/man/man1",
        .options = options,
        .args_max = 1,
        .run = run,
};
