/* SPDX-License-Identifier: Apache-2.0 */
/* Names and numbers of the hidden directory, and what mounts tell of the
 * epochs that they began. */
#include "cachefs/begun.h"

#include <criterion/criterion.h>
#include <stdio.h>

static const uint32_t sizes[] = { 0, 1, 2, 9, 10, 11, 6900, 1281167,
        UINT32_C(1) << 31, UINT32_MAX - 1 };

static void there_and_back(
        uint32_t slots, const struct sheaf_jobtree_node *node, uint64_t *last)
{
        uint64_t id = sheaf_jobtree_id(slots, node);
        struct sheaf_jobtree_node back;

        cr_assert_gt(id, *last, "ids ascend: no two nodes have one");
        *last = id;
        cr_assert(sheaf_jobtree_has(id));
        cr_assert_eq(sheaf_jobtree_node(slots, id, &back), 0);
        cr_assert_eq(back.kind, node->kind);
        if (node->kind >= SHEAF_JOBTREE_JOB)
                cr_assert_eq(back.job, node->job);
        if (node->kind >= SHEAF_JOBTREE_EPOCH)
                cr_assert_eq(back.epoch, node->epoch);
        if (node->kind >= SHEAF_JOBTREE_SLOT)
                cr_assert_eq(back.slot, node->slot);
}

Test(jobtree, each_node_has_an_id_of_its_own)
{
        for (size_t s = 0; s < SHEAF_ARRAY_LEN(sizes); s++) {
                uint32_t slots = sizes[s];
                uint32_t jobs = sheaf_jobtree_jobs_max(slots);
                uint32_t some_jobs[] = { 0, 1, jobs - 1 };
                uint32_t epochs[] = { 0, 1, SHEAF_JOBTREE_EPOCHS - 1 };
                uint32_t some_slots[] = { 0, slots / 2, slots - 1 };
                uint64_t last = SHEAF_JOBTREE_NODES - 1;

                cr_assert_geq(jobs, 500);
                there_and_back(slots,
                        &(struct sheaf_jobtree_node){
                                SHEAF_JOBTREE_TOP, 0, 0, 0 },
                        &last);
                there_and_back(slots,
                        &(struct sheaf_jobtree_node){
                                SHEAF_JOBTREE_JOBS, 0, 0, 0 },
                        &last);
                for (int j = 0; j < 3; j++) {
                        struct sheaf_jobtree_node node = { SHEAF_JOBTREE_JOB,
                                some_jobs[j], 0, 0 };

                        there_and_back(slots, &node, &last);
                        for (int e = 0; e < 3; e++) {
                                node.kind = SHEAF_JOBTREE_EPOCH;
                                node.epoch = epochs[e];
                                there_and_back(slots, &node, &last);
                                node.kind = SHEAF_JOBTREE_SLOT;
                                for (int k = 0; k < 3; k++) {
                                        node.slot = some_slots[k];
                                        if (slots > 2)
                                                there_and_back(
                                                        slots, &node, &last);
                                }
                        }
                }
        }
}

Test(jobtree, ids_of_others_are_refused)
{
        struct sheaf_jobtree_node node;

        cr_assert_eq(sheaf_jobtree_node(10, 1, &node), -ENOENT);
        cr_assert_eq(sheaf_jobtree_node(10, SHEAF_JOBTREE_NODES - 1, &node),
                -ENOENT);
        cr_assert_eq(sheaf_jobtree_node(10, UINT64_MAX, &node), -ENOENT);
}

Test(jobtree, a_slot_has_one_name)
{
        static const char *const bad[] = { "", "0", "1", "000", "10", "-1",
                "+1", " 1", "0x", "1a", "99", "jobs" };
        char name[SHEAF_JOBTREE_DIGITS_MAX + 1];
        uint32_t slot;

        sheaf_jobtree_slot_name(10, 3, name);
        cr_assert_str_eq(name, "3");
        sheaf_jobtree_slot_name(11, 3, name);
        cr_assert_str_eq(name, "03");
        sheaf_jobtree_slot_name(UINT32_MAX, 7, name);
        cr_assert_str_eq(name, "0000000007");
        cr_assert_eq(sheaf_jobtree_slot(11, "10", &slot), 0);
        cr_assert_eq(slot, 10);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(bad); i++)
                cr_assert_eq(sheaf_jobtree_slot(10, bad[i], &slot),
                        strlen(bad[i]) == 1 ? 0 : -ENOENT, "%s", bad[i]);
        cr_assert_eq(sheaf_jobtree_slot(0, "0", &slot), -ENOENT);
        cr_assert_eq(sheaf_jobtree_slot(10, "x", &slot), -ENOENT);
        cr_assert_eq(sheaf_jobtree_slot(11, "11", &slot), -ENOENT);
}

Test(jobtree, epochs_are_decimal)
{
        static const char *const bad[] = { "", "00", "01", "4194304", "-0",
                "1 ", "99999999999999999999999", "x", "0x1" };
        uint32_t epoch;

        cr_assert_eq(sheaf_jobtree_epoch("0", &epoch), 0);
        cr_assert_eq(sheaf_jobtree_epoch("4194303", &epoch), 0);
        cr_assert_eq(epoch, 4194303);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(bad); i++)
                cr_assert_eq(sheaf_jobtree_epoch(bad[i], &epoch), -ENOENT, "%s",
                        bad[i]);
}

Test(jobtree, names_of_jobs)
{
        struct sheaf_jobtree_job job;
        const char *why;
        char name[200];

        cr_assert_eq(sheaf_jobtree_job("r50 é=1", 6900, &job, &why), 0);
        cr_assert_str_eq(job.name, "r50 é=1");
        cr_assert_eq(job.order, SHEAF_JOB_SHARED);
        cr_assert_eq(job.ahead, 32);
        cr_assert_eq(sheaf_jobtree_job("a", 22, &job, &why), 0);
        cr_assert_eq(job.ahead, 1, "a small dataset keeps its choice");
        cr_assert_eq(sheaf_jobtree_job("a,order=window,window=4294967295,"
                                       "seed=18446744073709551615,ahead=0",
                             9, &job, &why),
                0);
        cr_assert_eq(job.order, SHEAF_JOB_WINDOW);
        cr_assert_eq(job.window, UINT32_MAX);
        cr_assert_eq(job.seed, UINT64_MAX);
        cr_assert_eq(job.ahead, 0);
        cr_assert_str_eq(job.name, "a");
        memset(name, 'n', sizeof(name));
        name[128] = '\0';
        cr_assert_eq(sheaf_jobtree_job(name, 9, &job, &why), 0);
        cr_assert_str_eq(job.name, name);
        cr_assert_eq(sheaf_jobtree_job(".git", 9, &job, &why), -ENOENT);
        cr_assert_eq(sheaf_jobtree_job(".", 9, &job, &why), -ENOENT);
}

Test(jobtree, wrong_names_are_refused_in_words)
{
        static const struct {
                const char *text, *word;
        } bad[] = {
                { "", "128" },
                { ",seed=1", "128" },
                { "a\n", "control" },
                { "a,seed=\x7f", "control" },
                { "a,", "options" },
                { "a,,seed=1", "options" },
                { "a,seed", "seed" },
                { "a,seed=", "seed" },
                { "a,seed=-1", "seed" },
                { "a,seed=18446744073709551616", "seed" },
                { "a,seed=1 ", "seed" },
                { "a,seeds=1", "options" },
                { "a,order=fifo", "strict" },
                { "a,order=", "strict" },
                { "a,order=window", "window" },
                { "a,window=0", "window" },
                { "a,window=4294967296", "window" },
                { "a,ahead=1025", "ahead" },
                { "a,pace", "options" },
        };
        struct sheaf_jobtree_job job;
        char name[200];
        const char *why;

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(bad); i++) {
                why = "";
                cr_assert_eq(sheaf_jobtree_job(bad[i].text, 9, &job, &why),
                        -EINVAL, "%s", bad[i].text);
                cr_assert_not_null(
                        strstr(why, bad[i].word), "%s: %s", bad[i].text, why);
        }
        memset(name, 'n', sizeof(name));
        name[129] = '\0';
        cr_assert_eq(sheaf_jobtree_job(name, 9, &job, &why), -EINVAL);
}

Test(jobtree, links_lead_to_the_root)
{
        static char path[PATH_MAX];
        char target[PATH_MAX];

        cr_assert_eq(sheaf_jobtree_target("a/b c", target), 0);
        cr_assert_str_eq(target, "../../../../a/b c");
        memset(path, 'p', sizeof(path) - 1);
        cr_assert_eq(sheaf_jobtree_target(path, target), -ENAMETOOLONG);
        path[PATH_MAX - 1 - 12] = '\0';
        cr_assert_eq(sheaf_jobtree_target(path, target), 0);
        cr_assert_eq(strlen(target), PATH_MAX - 1, "the size that stat shows");
}

/* ---- what was begun ---- */

static const uint8_t v1[16] = "version 1", v2[16] = "version 2",
                     v3[16] = "version 3";

/* Over the text, as from one mount to the next. */
static void hand_over(struct sheaf_begun *begun)
{
        static char text[SHEAF_BEGUN_TEXT_MAX + 1];
        size_t len = sheaf_begun_print(begun, text);

        cr_assert_leq(len, SHEAF_BEGUN_TEXT_MAX);
        text[len] = '\0';
        memset(begun, 0, sizeof(*begun));
        sheaf_begun_parse(begun, text);
}

Test(begun, an_epoch_stays_on_its_version)
{
        static struct sheaf_begun begun;

        cr_assert(!sheaf_begun_elsewhere(&begun, v1, "a", 0));
        sheaf_begun_note(&begun, v1, "a", 3, 3);
        sheaf_begun_note(&begun, v1, "a", 5, 5);
        sheaf_begun_note(&begun, v1, "b c", 0, 0);
        for (int round = 0; round < 2; round++) {
                cr_assert(!sheaf_begun_elsewhere(&begun, v1, "a", 4));
                cr_assert(!sheaf_begun_elsewhere(&begun, v2, "a", 2));
                cr_assert(sheaf_begun_elsewhere(&begun, v2, "a", 3));
                cr_assert(sheaf_begun_elsewhere(&begun, v2, "a", 5));
                cr_assert(!sheaf_begun_elsewhere(&begun, v2, "a", 6));
                cr_assert(sheaf_begun_elsewhere(&begun, v2, "b c", 0));
                cr_assert(!sheaf_begun_elsewhere(&begun, v2, "b", 0));
                hand_over(&begun);
        }
        /* forth, and back to the old version */
        sheaf_begun_note(&begun, v2, "a", 6, 6);
        hand_over(&begun);
        cr_assert(sheaf_begun_elsewhere(&begun, v3, "a", 6));
        cr_assert(sheaf_begun_elsewhere(&begun, v3, "a", 4));
        cr_assert(sheaf_begun_elsewhere(&begun, v1, "a", 6));
        cr_assert(!sheaf_begun_elsewhere(&begun, v1, "a", 4));
}

Test(begun, the_oldest_give_way)
{
        static struct sheaf_begun begun;
        char name[SHEAF_JOBTREE_NAME_MAX + 1];

        for (int i = 0; i <= SHEAF_BEGUN_MAX; i++) {
                snprintf(name, sizeof(name), "%0128d", i);
                sheaf_begun_note(&begun, v1, name, 4194303, 4194303);
                sheaf_begun_note(&begun, v1, "often", 0, (uint32_t)i);
        }
        hand_over(&begun);
        cr_assert_eq(begun.count, SHEAF_BEGUN_MAX);
        cr_assert(sheaf_begun_elsewhere(&begun, v2, "often", 1));
        cr_assert(sheaf_begun_elsewhere(&begun, v2, name, 4194303));
        snprintf(name, sizeof(name), "%0128d", 0);
        cr_assert(!sheaf_begun_elsewhere(&begun, v2, name, 4194303));
}

Test(begun, nonsense_is_passed_over)
{
        static struct sheaf_begun begun;
        char text[] = "\n"
                      "short\n"
                      "0123456789abcdef0123456789abcdef\n"
                      "0123456789abcdef0123456789abcdef 1\n"
                      "0123456789abcdef0123456789abcdef 1 2\n"
                      "0123456789abcdef0123456789abcdef 1 2 \n"
                      "0123456789abcdef0123456789abcdef 2 1 a\n"
                      "0123456789abcdef0123456789abcdef 0 4194304 a\n"
                      "0123456789abcdeX0123456789abcdef 0 1 a\n"
                      "0123456789abcdef0123456789abcdef 0 1 a\n"
                      "0123456789abcdef0123456789abcdef 0 1 .a\n";

        sheaf_begun_parse(&begun, text);
        cr_assert_eq(begun.count, 1);
        cr_assert(sheaf_begun_elsewhere(&begun, v1, "a", 1));
}
