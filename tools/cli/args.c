/* SPDX-License-Identifier: Apache-2.0 */
/* Parsing of the command line by the verbs' own tables, so that help,
 * completion and the parser cannot differ.
 *
 *  1 options may stand anywhere; "--" ends them
 *  2 an unknown word is an error that names it and the nearest known one */
#include "proto/size.h"
#include "tools/cli/cli.h"

#include <ctype.h>
#include <stdio.h>

#define WORD_BYTES_MAX 64
#define NAMES_MAX      64

const struct cli_option cli_global_options[] = {
        { "socket", "PATH", false, "socket of the daemon (or SHEAF_SOCKET)" },
        { "json", NULL, false, "print one JSON object or array" },
        { "quiet", NULL, false, "no progress, only results and errors" },
        { "help", NULL, false, "show help with examples" },
        { 0 },
};

/* Levenshtein distance, capped by the size of its row. */
static size_t distance(const char *a, const char *b)
{
        size_t row[WORD_BYTES_MAX + 1];
        size_t b_len = strlen(b);

        if (strlen(a) > WORD_BYTES_MAX || b_len > WORD_BYTES_MAX)
                return SIZE_MAX;
        for (size_t j = 0; j <= b_len; j++)
                row[j] = j;
        for (size_t i = 1; a[i - 1]; i++) {
                size_t diagonal = row[0];

                row[0] = i;
                for (size_t j = 1; j <= b_len; j++) {
                        size_t above = row[j];
                        size_t change = diagonal + (a[i - 1] != b[j - 1]);
                        size_t step = SHEAF_MIN(above, row[j - 1]) + 1;

                        row[j] = SHEAF_MIN(change, step);
                        diagonal = above;
                }
        }
        return row[b_len];
}

const char *cli_nearest(
        const char *word, const char *const *names, size_t count)
{
        const char *best = NULL;
        size_t best_distance = 3;

        for (size_t i = 0; i < count; i++) {
                size_t d = distance(word, names[i]);

                if (d < best_distance && d < strlen(word)) {
                        best = names[i];
                        best_distance = d;
                }
        }
        return best;
}

static int unknown_verb(const struct cli *cli, const char *word)
{
        const char *names[NAMES_MAX];
        const char *near;
        size_t n = 0;

        for (; cli_verbs[n] && n < NAMES_MAX; n++)
                names[n] = cli_verbs[n]->name;
        near = cli_nearest(word, names, n);
        if (near)
                return cli_usage(
                        cli, "no verb '%s'; did you mean '%s'?", word, near);
        return cli_usage(cli, "no verb '%s'", word);
}

static int unknown_option(const struct cli *cli, const char *word)
{
        const char *names[NAMES_MAX];
        const char *near;
        size_t n = 0;

        for (const struct cli_option *o = cli_global_options; o->name; o++)
                names[n++] = o->name;
        if (cli->verb)
                for (const struct cli_option *o = cli->verb->options;
                        o->name && n < NAMES_MAX; o++)
                        names[n++] = o->name;
        near = cli_nearest(word, names, n);
        if (near)
                return cli_usage(cli, "unknown option --%s; did you mean --%s?",
                        word, near);
        return cli_usage(cli, "unknown option --%s", word);
}

static const struct cli_option *find_option(
        const struct cli_option *options, const char *word, size_t len)
{
        for (const struct cli_option *o = options; o->name; o++)
                if (strlen(o->name) == len && !strncmp(o->name, word, len))
                        return o;
        return NULL;
}

static void store(
        struct cli *cli, const struct cli_option *option, const char *value)
{
        if (option >= cli_global_options &&
                option < cli_global_options +
                                 SHEAF_ARRAY_LEN(cli_global_options)) {
                if (!strcmp(option->name, "socket"))
                        cli->socket = value;
                cli->json |= !strcmp(option->name, "json");
                cli->quiet |= !strcmp(option->name, "quiet");
                return;
        }
        cli->given[option - cli->verb->options] = value;
}

/* An optional value is taken from the next word only if that is a number:
 * "--watch NAME" must not eat the name. */
static bool takes_next(const struct cli_option *option, const char *next)
{
        if (!next)
                return false;
        return !option->optional || isdigit((unsigned char)*next);
}

/* @argv[*at] begins with "--"; moves *@at over a value. */
static int parse_option(struct cli *cli, char **argv, int *at)
{
        const char *word = argv[*at] + 2;
        const char *equals = strchr(word, '=');
        size_t len = equals ? (size_t)(equals - word) : strlen(word);
        const struct cli_option *option;
        const char *value = "";

        option = find_option(cli_global_options, word, len);
        if (!option && cli->verb)
                option = find_option(cli->verb->options, word, len);
        if (!option || len == 1) {
                char name[WORD_BYTES_MAX];

                snprintf(name, sizeof(name), "%.*s", (int)SHEAF_MIN(len, 60u),
                        word);
                return unknown_option(cli, name);
        }
        if (!strcmp(option->name, "help"))
                return -1;
        if (!option->value && equals)
                return cli_usage(cli, "--%s takes no value", option->name);
        if (option->value) {
                if (equals)
                        value = equals + 1;
                else if (takes_next(option, argv[*at + 1]))
                        value = argv[++*at];
                else if (!option->optional)
                        return cli_usage(cli, "--%s needs a value (%s)",
                                option->name, option->value);
                if (!*value && !option->optional)
                        return cli_usage(
                                cli, "--%s: empty value", option->name);
        }
        store(cli, option, value);
        return 0;
}

static int parse_short(struct cli *cli, const char *word)
{
        const struct cli_option *option = NULL;

        if (!strcmp(word, "-h"))
                return -1;
        if (cli->verb && strlen(word) == 2)
                option = find_option(cli->verb->options, word + 1, 1);
        if (!option)
                return cli_usage(cli, "unknown option %s", word);
        store(cli, option, "");
        return 0;
}

/* What a word means before there is a verb. */
static int parse_verb(struct cli *cli, const char *word)
{
        for (size_t i = 0; cli_verbs[i]; i++)
                if (!strcmp(cli_verbs[i]->name, word))
                        cli->verb = cli_verbs[i];
        if (cli->verb)
                return 0;
        return !strcmp(word, "help") ? -1 : unknown_verb(cli, word);
}

static int check_count(const struct cli *cli)
{
        if (cli->arg_count < cli->verb->args_min)
                return cli_usage(cli, "needs %s", cli->verb->args);
        if (cli->arg_count > cli->verb->args_max)
                return cli_usage(cli, "too many arguments: '%s'",
                        cli->args[cli->verb->args_max]);
        return 0;
}

int cli_parse(struct cli *cli, int argc, char **argv)
{
        bool ended = false;
        int rc = 0;

        cli->program = argc ? argv[0] : "sheaf";
        cli->args = argv; /* positional words move to the front */
        for (int i = 1; i < argc; i++) {
                const char *word = argv[i];

                if (!ended && !strcmp(word, "--")) {
                        ended = true;
                        continue;
                }
                if (!cli->verb && !strcmp(word, "--version"))
                        word = "version";
                if (!ended && !strncmp(word, "--", 2))
                        rc = parse_option(cli, argv, &i);
                else if (!ended && word[0] == '-' && word[1])
                        rc = parse_short(cli, word);
                else if (!cli->verb)
                        rc = parse_verb(cli, word);
                else
                        cli->args[cli->arg_count++] = argv[i];
                if (rc == -1 && !cli->verb && i + 1 < argc)
                        parse_verb(cli, argv[i + 1]);
                if (rc)
                        return rc;
        }
        if (!cli->verb) {
                if (argc <= 1)
                        return -1;
                return cli_usage(cli, "no verb given");
        }
        return check_count(cli);
}

const char *cli_value(const struct cli *cli, const char *name)
{
        const struct cli_option *option;

        option = find_option(cli->verb->options, name, strlen(name));
        if (!option)
                abort();
        return cli->given[option - cli->verb->options];
}

bool cli_flag(const struct cli *cli, const char *name)
{
        return cli_value(cli, name) != NULL;
}

int cli_size(const struct cli *cli, const char *name, uint64_t *ret_bytes)
{
        const char *text = cli_value(cli, name);
        int rc;

        if (!text)
                return 0;
        rc = sheaf_size_parse(text, ret_bytes);
        if (!rc)
                return 0;
        return cli_usage(cli, "--%s: '%s' is %s (write 4096, 100GiB, 1.5T)",
                name, text, rc == -ERANGE ? "too large" : "not a size");
}
