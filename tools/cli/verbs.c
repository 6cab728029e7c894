/* SPDX-License-Identifier: Apache-2.0 */
/* The table of all verbs (each in a file of its own), help, error output. */
#include "tools/cli/cli.h"
#include "tools/cli/out.h"

#include <stdarg.h>
#include <stdio.h>

const struct cli_verb *const cli_verbs[] = {
        &cli_verb_add,
        &cli_verb_ls,
        &cli_verb_rm,
        &cli_verb_update,
        &cli_verb_seal,
        &cli_verb_verify,
        &cli_verb_share,
        &cli_verb_mount,
        &cli_verb_umount,
        &cli_verb_warmup,
        &cli_verb_stats,
        &cli_verb_status,
        &cli_verb_grant,
        &cli_verb_job,
        &cli_verb_groups,
        &cli_verb_doctor,
        &cli_verb_sim,
        &cli_verb_completion,
        &cli_verb_man,
        &cli_verb_version,
        NULL,
};

const char cli_exit_codes[] =
        "Exit codes:\n"
        "  0 ok                        5 mount failed\n"
        "  1 the operation failed      6 damage found (verify)\n"
        "  2 wrong usage               7 timed out\n"
        "  3 no daemon                 130 interrupted\n"
        "  4 not found, or no access\n";

static void help_options(const struct cli_option *options)
{
        for (const struct cli_option *o = options; o->name; o++) {
                char text[64];

                snprintf(text, sizeof(text), "%s%s%s%s%s%s",
                        o->name[1] ? "--" : "-", o->name, o->value ? " " : "",
                        o->optional ? "[" : "", o->value ? o->value : "",
                        o->optional ? "]" : "");
                printf("  %-24s %s\n", text, o->help);
        }
}

static void help_all(void)
{
        printf("usage: sheaf [--socket PATH] VERB [ARGUMENTS] [OPTIONS]\n\n"
               "Keeps training data ready: cached once on this machine, by "
               "content,\nfor every job and every user.\n\nVerbs:\n");
        for (size_t i = 0; cli_verbs[i]; i++) {
                char text[64];

                snprintf(text, sizeof(text), "%s%s%s", cli_verbs[i]->name,
                        *cli_verbs[i]->args ? " " : "", cli_verbs[i]->args);
                printf("  %-22s %s\n", text, cli_verbs[i]->brief);
        }
        printf("\nOptions of every verb:\n");
        help_options(cli_global_options);
        printf("\n%s\nStart with:\n  sheaf doctor\n  sheaf add NAME DIR\n"
               "  sheaf VERB --help\n",
                cli_exit_codes);
}

void cli_help(const struct cli_verb *verb)
{
        if (!verb) {
                help_all();
                return;
        }
        printf("usage: sheaf %s %s%s[OPTIONS]\n\n%s.\n", verb->name, verb->args,
                *verb->args ? " " : "", verb->brief);
        if (verb->details)
                printf("\n%s", verb->details);
        printf("\nOptions:\n");
        help_options(verb->options);
        help_options(cli_global_options);
        printf("\nExamples:\n");
        for (const char *line = verb->examples; *line;) {
                size_t len = strcspn(line, "\n");

                printf("  %.*s\n", (int)len, line);
                line += len + (line[len] == '\n');
        }
        printf("\n%s", cli_exit_codes);
}

/* "sheaf VERB: text" on stderr, control characters made visible. */
static void complain(const struct cli *cli, const char *text)
{
        sheaf_autofree char *shown = cli_text(text, strlen(text));

        fprintf(stderr, "sheaf%s%s: %s\n", cli->verb ? " " : "",
                cli->verb ? cli->verb->name : "", shown ? shown : text);
}

static void complain_json(const char *text, enum cli_exit code, int errno_value)
{
        json_t *error = json_object();
        json_t *top = json_object();

        cli_json_text(error, "message", text, strlen(text));
        json_object_set_new(error, "exit", json_integer(code));
        json_object_set_new(error, "errno", json_integer(errno_value));
        json_object_set_new(top, "error", error);
        cli_json_print(top);
}

int cli_usage(const struct cli *cli, const char *format, ...)
{
        sheaf_autofree char *text = NULL;
        va_list ap;
        int n;

        va_start(ap, format);
        n = vasprintf(&text, format, ap);
        va_end(ap);
        if (n < 0) {
                text = NULL;
                return CLI_USAGE;
        }
        complain(cli, text);
        if (cli->verb)
                fprintf(stderr,
                        "usage: sheaf %s%s%s\n"
                        "see 'sheaf %s --help'\n",
                        cli->verb->name, *cli->verb->args ? " " : "",
                        cli->verb->args, cli->verb->name);
        else
                fprintf(stderr, "see 'sheaf --help'\n");
        if (cli->json)
                complain_json(text, CLI_USAGE, EINVAL);
        return CLI_USAGE;
}

enum cli_exit cli_exit_of(int errno_value)
{
        switch (errno_value) {
        case ENOENT:
        case EACCES:
        case EPERM:
                return CLI_NOT_FOUND;
        case ETIMEDOUT:
                return CLI_TIMED_OUT;
        default:
                return CLI_FAILED;
        }
}

int cli_fail(const struct cli *cli, enum cli_exit code, int errno_value,
        const char *format, ...)
{
        sheaf_autofree char *text = NULL;
        va_list ap;
        int n;

        if (code == CLI_OK)
                code = cli_exit_of(errno_value);
        va_start(ap, format);
        n = vasprintf(&text, format, ap);
        va_end(ap);
        if (n < 0) {
                text = NULL;
                return code;
        }
        complain(cli, text);
        if (cli->json)
                complain_json(text, code, errno_value);
        return code;
}
