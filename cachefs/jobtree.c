/* SPDX-License-Identifier: Apache-2.0 */
/* Names and numbers of the hidden directory.
 *
 *  1 ids lie in rows: two of the top, then one row a job: the job itself, and
 *    for each epoch the epoch itself and its slots
 *  2 a node has one name */
#include "cachefs/jobtree.h"

#include <stdio.h>

#define TOPS 2
#define UP   "../../../../"

/* Ids of a row. */
static uint64_t row(uint32_t slots)
{
        return 1 + (uint64_t)SHEAF_JOBTREE_EPOCHS * ((uint64_t)slots + 1);
}

uint32_t sheaf_jobtree_jobs_max(uint32_t slots)
{
        return (uint32_t)SHEAF_MIN((SHEAF_JOBTREE_NODES - TOPS) / row(slots),
                (uint64_t)SHEAF_JOBTREE_JOBS_MAX);
}

uint64_t sheaf_jobtree_id(uint32_t slots, const struct sheaf_jobtree_node *node)
{
        uint64_t at = SHEAF_JOBTREE_NODES + TOPS + node->job * row(slots);
        uint64_t epoch = at + 1 + node->epoch * ((uint64_t)slots + 1);

        switch (node->kind) {
        case SHEAF_JOBTREE_TOP:
                return SHEAF_JOBTREE_NODES;
        case SHEAF_JOBTREE_JOBS:
                return SHEAF_JOBTREE_NODES + 1;
        case SHEAF_JOBTREE_JOB:
                return at;
        case SHEAF_JOBTREE_EPOCH:
                return epoch;
        default:
                return epoch + 1 + node->slot;
        }
}

int sheaf_jobtree_node(
        uint32_t slots, uint64_t id, struct sheaf_jobtree_node *ret_node)
{
        uint64_t at = id - SHEAF_JOBTREE_NODES, each = (uint64_t)slots + 1;
        struct sheaf_jobtree_node node = { SHEAF_JOBTREE_TOP, 0, 0, 0 };

        if (!sheaf_jobtree_has(id))
                return -ENOENT;
        if (at < TOPS) {
                node.kind = at ? SHEAF_JOBTREE_JOBS : SHEAF_JOBTREE_TOP;
                *ret_node = node;
                return 0;
        }
        at -= TOPS;
        if (at / row(slots) >= sheaf_jobtree_jobs_max(slots))
                return -ENOENT;
        node.job = (uint32_t)(at / row(slots));
        node.kind = SHEAF_JOBTREE_JOB;
        at %= row(slots);
        if (at) {
                node.epoch = (uint32_t)((at - 1) / each);
                at = (at - 1) % each;
                node.kind = at ? SHEAF_JOBTREE_SLOT : SHEAF_JOBTREE_EPOCH;
                node.slot = at ? (uint32_t)(at - 1) : 0;
        }
        *ret_node = node;
        return 0;
}

static int digits(uint32_t slots)
{
        int n = 1;

        for (uint32_t last = slots ? slots - 1 : 0; last >= 10; last /= 10)
                n++;
        return n;
}

void sheaf_jobtree_slot_name(uint32_t slots, uint32_t slot,
        char ret_name[SHEAF_JOBTREE_DIGITS_MAX + 1])
{
        snprintf(ret_name, SHEAF_JOBTREE_DIGITS_MAX + 1, "%0*u", digits(slots),
                slot);
}

/* @len digits and nothing else, up to @max. 0; -EINVAL. */
static int number(
        const char *text, size_t len, uint64_t max, uint64_t *ret_value)
{
        uint64_t value = 0;

        if (!len)
                return -EINVAL;
        for (size_t i = 0; i < len; i++) {
                uint64_t digit = (uint64_t)(text[i] - '0');

                if (text[i] < '0' || text[i] > '9' || value > max / 10 ||
                        value * 10 > max - digit)
                        return -EINVAL;
                value = value * 10 + digit;
        }
        *ret_value = value;
        return 0;
}

int sheaf_jobtree_slot(uint32_t slots, const char *name, uint32_t *ret_slot)
{
        size_t len = strlen(name);
        uint64_t value;

        if (!slots || len != (size_t)digits(slots) ||
                number(name, len, slots - 1, &value) < 0)
                return -ENOENT;
        *ret_slot = (uint32_t)value;
        return 0;
}

int sheaf_jobtree_epoch(const char *name, uint32_t *ret_epoch)
{
        uint64_t value;

        if ((name[0] == '0' && name[1]) ||
                number(name, strlen(name), SHEAF_JOBTREE_EPOCHS - 1, &value) <
                        0)
                return -ENOENT;
        *ret_epoch = (uint32_t)value;
        return 0;
}

static bool is_key(const char *text, size_t len, const char *key)
{
        return len == strlen(key) && !memcmp(text, key, len);
}

/* One KEY=VALUE of @len bytes. NULL, or what is wrong with it. */
static const char *option(
        const char *text, size_t len, struct sheaf_jobtree_job *job)
{
        static const char *const orders[] = { "shared", "window", "strict" };
        const char *equals = memchr(text, '=', len);
        size_t key = equals ? (size_t)(equals - text) : len;
        const char *value = equals ? equals + 1 : text + len;
        size_t value_len = len - (size_t)(value - text);
        uint64_t n = 0;

        if (is_key(text, key, "order")) {
                for (size_t i = 0; i < SHEAF_ARRAY_LEN(orders); i++)
                        if (is_key(value, value_len, orders[i])) {
                                job->order = (enum sheaf_job_order)i;
                                return NULL;
                        }
                return "order= takes shared, window or strict";
        }
        if (is_key(text, key, "seed")) {
                if (number(value, value_len, UINT64_MAX, &n) < 0)
                        return "seed= takes a number";
                job->seed = n;
                return NULL;
        }
        if (is_key(text, key, "window")) {
                if (number(value, value_len, UINT32_MAX, &n) < 0 || !n)
                        return "window= takes a number of slots, 1 or more";
                job->window = (uint32_t)n;
                return NULL;
        }
        if (is_key(text, key, "ahead")) {
                if (number(value, value_len, SHEAF_JOBTREE_AHEAD_MAX, &n) < 0)
                        return "ahead= takes a number of slots, at most 1024";
                job->ahead = (uint32_t)n;
                return NULL;
        }
        return "a job's options are order=, seed=, window= and ahead=";
}

int sheaf_jobtree_job(const char *text, uint32_t slots,
        struct sheaf_jobtree_job *ret_job, const char **ret_why)
{
        size_t len = strcspn(text, ",");
        struct sheaf_jobtree_job job = {
                /* little of a small dataset, or the order loses its choice */
                .ahead = SHEAF_MIN(SHEAF_JOBTREE_AHEAD, slots / 64 + 1),
        };
        const char *why = NULL;

        if (*text == '.')
                return -ENOENT;
        if (!len || len > SHEAF_JOBTREE_NAME_MAX)
                why = "a job's name has 1 to 128 bytes";
        for (const char *p = text; *p && !why; p++)
                if ((unsigned char)*p < ' ' || *p == 0x7f)
                        why = "a job's name has no control characters";
        for (const char *at = text + len; *at && !why; at += len) {
                len = strcspn(++at, ",");
                why = option(at, len, &job);
        }
        if (!why && job.order == SHEAF_JOB_WINDOW && !job.window)
                why = "order=window needs window=";
        if (why) {
                *ret_why = why;
                return -EINVAL;
        }
        memcpy(job.name, text, strcspn(text, ","));
        *ret_job = job;
        return 0;
}

int sheaf_jobtree_target(const char *path, char ret_target[PATH_MAX])
{
        int n = snprintf(ret_target, PATH_MAX, UP "%s", path);

        return n < 0 || n >= PATH_MAX ? -ENAMETOOLONG : 0;
}

void sheaf_jobtree_stat(uint32_t slots, uint64_t id, uid_t uid, gid_t gid,
        struct stat *ret_stat)
{
        struct sheaf_jobtree_node node;
        struct stat out = {
                .st_ino = id,
                .st_mode = S_IFDIR | 0700,
                .st_nlink = 2,
                .st_uid = uid,
                .st_gid = gid,
                .st_blksize = 4096,
        };

        if (!sheaf_jobtree_node(slots, id, &node) &&
                node.kind == SHEAF_JOBTREE_SLOT) {
                out.st_mode = S_IFLNK | 0777;
                out.st_nlink = 1;
                out.st_size = PATH_MAX - 1;
        }
        *ret_stat = out;
}
