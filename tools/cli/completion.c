/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf completion: scripts for shells, made from the verbs' tables. */
#include "tools/cli/cli.h"

#include <stdio.h>

static void put_options(const struct cli_option *options, const char *between)
{
        for (const struct cli_option *o = options; o->name; o++)
                printf("%s%s%s", between, o->name[1] ? "--" : "-", o->name);
}

static void put_verbs(void)
{
        for (size_t i = 0; cli_verbs[i]; i++)
                printf("%s%s", i ? " " : "", cli_verbs[i]->name);
}

/* What the verb's words are: names of datasets, directories, both. */
static bool takes(const struct cli_verb *verb, const char *what)
{
        return strstr(verb->args, what) != NULL;
}

static void bash(void)
{
        printf("# bash completion for sheaf; use: "
               "source <(sheaf completion bash)\n"
               "_sheaf() {\n"
               "        local cur=${COMP_WORDS[COMP_CWORD]} verb= w words=\n"
               "        for w in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
               "                case $w in -*) ;; *) verb=$w; break;; esac\n"
               "        done\n"
               "        COMPREPLY=()\n"
               "        case $verb in\n"
               "        '') words='");
        put_verbs();
        put_options(cli_global_options, " ");
        printf("' ;;\n");
        for (size_t i = 0; cli_verbs[i]; i++) {
                const struct cli_verb *v = cli_verbs[i];

                printf("        %s) words='", v->name);
                put_options(v->options, " ");
                put_options(cli_global_options, " ");
                printf("'");
                if (!strcmp(v->name, "completion"))
                        printf("; words+=' bash zsh fish'");
                if (!strcmp(v->name, "job"))
                        printf("; words+=' ls show rm'");
                if (takes(v, "NAME") && strcmp(v->name, "add"))
                        printf("; [[ $cur == -* ]] || words+=\" $(_sheaf_names"
                               ")\"");
                if (takes(v, "DIR") || takes(v, "PATH"))
                        printf("; compopt -o default");
                printf(" ;;\n");
        }
        printf("        esac\n"
               "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- "
               "\"$cur\")\n"
               "}\n"
               "_sheaf_names() {\n"
               "        sheaf ls 2>/dev/null | "
               "awk 'NR > 1 { print $1 }'\n"
               "}\n"
               "complete -F _sheaf sheaf\n");
}

/* Help texts go into single quotes. */
static void put_quoted(const char *text)
{
        for (; *text; text++) {
                if (*text == '\'')
                        printf("'\\''");
                else if (*text == ':' || *text == '[' || *text == ']')
                        printf("\\%c", *text);
                else
                        putchar(*text);
        }
}

static void zsh_options(const struct cli_option *options)
{
        for (const struct cli_option *o = options; o->name; o++) {
                printf(" '%s%s%s[", o->name[1] ? "--" : "-", o->name,
                        o->value ? "=" : "");
                put_quoted(o->help);
                printf("]%s%s%s'", o->value ? ":" : "",
                        o->value ? o->value : "", o->value ? ":_files" : "");
        }
}

static void zsh(void)
{
        printf("#compdef sheaf\n"
               "# zsh completion for sheaf; use: "
               "source <(sheaf completion zsh)\n"
               "_sheaf() {\n"
               "        local verb\n"
               "        local -a verbs=(");
        for (size_t i = 0; cli_verbs[i]; i++) {
                printf(" '%s:", cli_verbs[i]->name);
                put_quoted(cli_verbs[i]->brief);
                printf("'");
        }
        printf(" )\n"
               "        for verb in \"${words[@]:1:$((CURRENT - 2))}\" ''; do\n"
               "                [[ $verb == -* ]] || break\n"
               "        done\n"
               "        case $verb in\n"
               "        '') _describe verb verbs ;;\n");
        for (size_t i = 0; cli_verbs[i]; i++) {
                printf("        %s) _arguments", cli_verbs[i]->name);
                zsh_options(cli_verbs[i]->options);
                zsh_options(cli_global_options);
                printf(" '*: :_files' ;;\n");
        }
        printf("        esac\n}\ncompdef _sheaf sheaf\n");
}

static void fish_options(const char *verb, const struct cli_option *options)
{
        for (const struct cli_option *o = options; o->name; o++) {
                printf("complete -c sheaf -n '__fish_seen_subcommand_from %s' "
                       "-%s %s %s-d '",
                        verb, o->name[1] ? "l" : "s", o->name,
                        o->value ? "-r " : "");
                for (const char *c = o->help; *c; c++)
                        printf(*c == '\'' ? "\\%c" : "%c", *c);
                printf("'\n");
        }
}

static void fish(void)
{
        printf("# fish completion for sheaf; use: "
               "sheaf completion fish | source\n");
        for (size_t i = 0; cli_verbs[i]; i++) {
                printf("complete -c sheaf -n __fish_use_subcommand -f -a %s "
                       "-d '",
                        cli_verbs[i]->name);
                for (const char *c = cli_verbs[i]->brief; *c; c++)
                        printf(*c == '\'' ? "\\%c" : "%c", *c);
                printf("'\n");
                fish_options(cli_verbs[i]->name, cli_verbs[i]->options);
                fish_options(cli_verbs[i]->name, cli_global_options);
        }
}

static int run(struct cli *cli)
{
        const char *shell = cli->args[0];

        /* Before anything is printed: a script is for a shell to read. */
        if (cli->json)
                return cli_usage(cli, "a script is no JSON: without --json");
        if (!strcmp(shell, "bash"))
                bash();
        else if (!strcmp(shell, "zsh"))
                zsh();
        else if (!strcmp(shell, "fish"))
                fish();
        else
                return cli_usage(cli, "'%s' is not bash, zsh or fish", shell);
        return CLI_OK;
}

static const struct cli_option options[] = { { 0 } };

const struct cli_verb cli_verb_completion = {
        .name = "completion",
        .args = "SHELL",
        .brief = "print a completion script for bash, zsh or fish",
        .examples = "source <(sheaf completion bash)",
        .options = options,
        .args_min = 1,
        .args_max = 1,
        .run = run,
};
