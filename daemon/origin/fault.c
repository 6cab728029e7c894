/* SPDX-License-Identifier: Apache-2.0 */
/* Injected faults of origin I/O, for test builds only (SHEAF_FAULTS).
 *
 *  1 rules are parsed once, before any thread starts, and never change
 *  2 a malformed rule ends the reader: a test must not pass by a typing error
 *
 * Threads: sheaf_fault() from any. */
#include "daemon/origin/reader.h"

#include <stdio.h>
#include <time.h>

#define RULES_MAX 16

enum kind {
        HANG,
        EIO_ALWAYS,
        GONE,
        DELAY,
        SHORT,
        ESTALE_ONCE,
        CRASH
};

static struct rule {
        enum kind kind;
        long delay_ms;
        const char *part;
        atomic_bool spent;
} rules[RULES_MAX];

static size_t rule_count;

static bool parse(char *text, struct rule *rule)
{
        static const struct {
                const char *word;
                enum kind kind;
        } words[] = { { "hang", HANG }, { "eio", EIO_ALWAYS }, { "gone", GONE },
                { "short", SHORT }, { "estale-once", ESTALE_ONCE },
                { "crash", CRASH } };
        char *colon = strchr(text, ':');

        if (!colon)
                return false;
        *colon = 0;
        rule->part = colon + 1;
        if (sscanf(text, "delay=%ld", &rule->delay_ms) == 1) {
                rule->kind = DELAY;
                return true;
        }
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(words); i++) {
                if (!strcmp(text, words[i].word)) {
                        rule->kind = words[i].kind;
                        return true;
                }
        }
        return false;
}

void sheaf_fault_setup(void)
{
        const char *env = getenv("SHEAF_FAULT_ORIGIN");
        char *copy = env ? strdup(env) : NULL, *state = NULL;

        if (!copy)
                return;
        for (char *text = strtok_r(copy, ",", &state); text;
                text = strtok_r(NULL, ",", &state)) {
                if (rule_count == RULES_MAX ||
                        !parse(text, &rules[rule_count++])) {
                        fprintf(stderr,
                                "sheaf-reader: bad SHEAF_FAULT_ORIGIN: %s\n",
                                env);
                        _exit(2);
                }
        }
        /* The rules point into the copy: it stays. */
}

static void sleep_ms(long ms)
{
        struct timespec ts = { .tv_sec = ms / 1000,
                .tv_nsec = ms % 1000 * 1000000 };

        while (nanosleep(&ts, &ts) && errno == EINTR)
                ;
}

static int apply_open(struct rule *rule)
{
        switch (rule->kind) {
        case HANG:
                for (;;)
                        pause();
        case EIO_ALWAYS:
                return -EIO;
        case GONE:
                return -ENOENT;
        case ESTALE_ONCE:
                return atomic_exchange(&rule->spent, true) ? 0 : -ESTALE;
        case CRASH:
                abort();
        default:
                return 0;
        }
}

int sheaf_fault(enum sheaf_fault_op op, const char *path, size_t *len_bytes)
{
        for (size_t i = 0; i < rule_count; i++) {
                struct rule *rule = &rules[i];
                int rc;

                if (!strstr(path, rule->part))
                        continue;
                if (op == SHEAF_FAULT_OPEN) {
                        rc = apply_open(rule);
                        if (rc)
                                return rc;
                } else if (rule->kind == DELAY) {
                        sleep_ms(rule->delay_ms);
                } else if (rule->kind == SHORT) {
                        *len_bytes /= 2;
                }
        }
        return 0;
}
