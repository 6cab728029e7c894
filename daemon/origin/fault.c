/* SPDX-License-Identifier: Apache-2.0 */
/* Injected faults of origin I/O, for test builds only (SHEAF_FAULTS).
 *
 *  1 rules are parsed once, before any thread starts, and never change
 *  2 a malformed rule ends the reader: a test must not pass by a typing error
 *  3 with SHEAF_FAULT_WHILE rules hold only as long as that file exists
 *
 * Threads: sheaf_fault() from any. */
#include "daemon/origin/reader.h"

#include <stdio.h>
#include <sys/random.h>
#include <time.h>

#define RULES_MAX 16

enum kind {
        HANG,
        EIO_ALWAYS,
        EIO_SOME,
        GONE,
        DELAY,
        JITTER,
        PIECES,
        DRIP,
        SHORT,
        ESTALE_ONCE,
        ESTALE_SOME,
        CRASH
};

static struct rule {
        enum kind kind;
        long number;
        const char *part;
        atomic_bool spent;
} rules[RULES_MAX];

static size_t rule_count;
static const char *while_path; /* NULL: rules always hold */

static bool parse(char *text, struct rule *rule)
{
        static const struct {
                const char *word;
                enum kind kind;
        } words[] = { { "hang", HANG }, { "eio", EIO_ALWAYS }, { "gone", GONE },
                { "short", SHORT }, { "estale-once", ESTALE_ONCE },
                { "crash", CRASH } },
          numbered[] = { { "delay=", DELAY }, { "jitter=", JITTER },
                  { "eio=", EIO_SOME }, { "estale=", ESTALE_SOME },
                  { "pieces=", PIECES }, { "drip=", DRIP } };
        char *colon = strchr(text, ':'), *end;

        if (!colon)
                return false;
        *colon = 0;
        rule->part = colon + 1;
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(numbered); i++) {
                size_t len = strlen(numbered[i].word);

                if (strncmp(text, numbered[i].word, len))
                        continue;
                rule->kind = numbered[i].kind;
                rule->number = strtol(text + len, &end, 10);
                return !*end && rule->number > 0;
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

        while_path = getenv("SHEAF_FAULT_WHILE");
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

/* Below @bound; for different threads, in no order. */
static long pick(long bound)
{
        uint32_t value = 0;

        if (getrandom(&value, sizeof(value), 0) != sizeof(value))
                abort();
        return (long)(value % (uint32_t)bound);
}

static int apply_open(struct rule *rule)
{
        switch (rule->kind) {
        case HANG:
                for (;;)
                        pause();
        case EIO_ALWAYS:
                return -EIO;
        case EIO_SOME:
                return pick(1000) < rule->number ? -EIO : 0;
        case GONE:
                return -ENOENT;
        case ESTALE_ONCE:
                return atomic_exchange(&rule->spent, true) ? 0 : -ESTALE;
        case ESTALE_SOME:
                return pick(1000) < rule->number ? -ESTALE : 0;
        case CRASH:
                abort();
        default:
                return 0;
        }
}

static void apply_piece(const struct rule *rule, size_t *len_bytes)
{
        if (rule->kind == PIECES)
                *len_bytes = SHEAF_MIN(*len_bytes, (size_t)rule->number);
        if (rule->kind != DRIP)
                return;
        sleep_ms(rule->number);
        *len_bytes = 1;
}

static void apply_read(const struct rule *rule, size_t *len_bytes)
{
        if (rule->kind == DELAY)
                sleep_ms(rule->number);
        else if (rule->kind == JITTER)
                sleep_ms(pick(rule->number + 1));
        else if (rule->kind == SHORT)
                *len_bytes /= 2;
}

int sheaf_fault(enum sheaf_fault_op op, const char *path, size_t *len_bytes)
{
        if (while_path && access(while_path, F_OK))
                return 0;
        for (size_t i = 0; i < rule_count; i++) {
                struct rule *rule = &rules[i];
                int rc;

                if (!strstr(path, rule->part))
                        continue;
                if (op == SHEAF_FAULT_READ) {
                        apply_read(rule, len_bytes);
                } else if (op == SHEAF_FAULT_PIECE) {
                        apply_piece(rule, len_bytes);
                } else {
                        rc = apply_open(rule);
                        if (rc)
                                return rc;
                }
        }
        return 0;
}
