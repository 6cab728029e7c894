/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, looking up, asking. */
#include "tests/client/rig.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>

Test(client_dataset, info_says_what_the_listing_says)
{
        struct sheaf_dataset_info info;
        struct rig rig;

        rig_start(&rig, NULL);
        sheaf_dataset_info(rig.dataset, &info);
        cr_assert_str_eq(info.name, "fake");
        cr_assert_eq(info.files, RIG_FILES + 1);
        cr_assert_eq(info.dirs, 2);
        cr_assert_eq(info.links, 4);
        cr_assert_eq(info.serial, 1);
        cr_assert_eq(info.domain, 1);
        cr_assert_eq(info.domain_gid, 27);
        cr_assert_eq(info.chunks, 1 + 0 + 1 + 1 + 2 + 3 + 40 + 1);
        cr_assert_eq(sheaf_dataset_files(rig.dataset), RIG_FILES + 1);
        rig_stop(&rig);
}

struct restarts {
        struct rig *rig;
        atomic_bool over;
        bool reopened;
};

static void *restart_often(void *arg)
{
        struct restarts *restarts = arg;

        restarts->reopened = true;
        for (int i = 0; i < 5 && restarts->reopened; i++) {
                rig_restart(restarts->rig);
                restarts->reopened =
                        rig_reaches(&fake_knobs(restarts->rig->fake)->opens, 1);
        }
        atomic_store(&restarts->over, true);
        return NULL;
}

/* A renewed link tells owner and domain anew, in a thread of its own. */
Test(client_dataset, info_while_the_link_is_renewed)
{
        struct rig rig;
        struct restarts restarts = { .rig = &rig };
        struct sheaf_dataset_info info;
        pthread_t thread;

        rig_start(&rig, NULL);
        cr_assert_eq(
                pthread_create(&thread, NULL, restart_often, &restarts), 0);
        while (!atomic_load(&restarts.over)) {
                sheaf_dataset_info(rig.dataset, &info);
                cr_assert_eq(info.domain, 1);
                cr_assert_eq(info.domain_gid, 27);
        }
        pthread_join(thread, NULL);
        cr_assert(restarts.reopened);
        rig_stop(&rig);
}

Test(client_dataset, lookup_follows_links_inside_the_tree)
{
        struct rig rig;
        uint64_t inner, ordinal;
        char path[64];

        rig_start(&rig, NULL);
        cr_assert_eq(sheaf_dataset_lookup(rig.dataset, "dir/inner", &inner), 0);
        cr_assert_eq(sheaf_dataset_lookup(rig.dataset, "link", &ordinal), 0);
        cr_assert_eq(ordinal, inner);
        cr_assert_eq(
                sheaf_dataset_lookup(rig.dataset, "/dir//../link", &ordinal),
                0);
        cr_assert_eq(ordinal, inner);
        cr_assert_eq(sheaf_dataset_lookup(rig.dataset, "dir/up", &ordinal), 0);
        cr_assert_eq(ordinal, 0);
        cr_assert_eq(sheaf_dataset_path(rig.dataset, inner, path, 64), 9);
        cr_assert_str_eq(path, "dir/inner");
        cr_assert_eq(sheaf_dataset_path(rig.dataset, inner, path, 4), 9);
        rig_stop(&rig);
}

Test(client_dataset, lookup_failures_have_their_errno_and_text)
{
        static const struct {
                const char *path;
                int rc;
        } cases[] = {
                { "nothing", -ENOENT },
                { "dir", -EISDIR },
                { "", -EISDIR },
                { "loop", -ELOOP },
                { "f0000/x", -ENOTDIR },
                { "f0000/", -ENOTDIR },
                { "out", -ENOENT },
                { "../x", -ENOENT },
        };
        struct rig rig;
        uint64_t ordinal = 77;

        rig_start(&rig, NULL);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(cases); i++) {
                cr_expect_eq(sheaf_dataset_lookup(
                                     rig.dataset, cases[i].path, &ordinal),
                        cases[i].rc, "%s", cases[i].path);
                cr_expect(strstr(sheaf_last_error(), "fake"), "%s",
                        sheaf_last_error());
        }
        cr_assert_eq(ordinal, 77);
        rig_stop(&rig);
}

Test(client_dataset, sizes_and_attributes)
{
        struct rig rig;
        struct stat st;

        rig_start(&rig, NULL);
        cr_assert_eq(sheaf_dataset_size(rig.dataset, 0), 110000);
        cr_assert_eq(sheaf_dataset_size(rig.dataset, 1), 0);
        cr_assert_eq(sheaf_dataset_size(rig.dataset, 1000), -ERANGE);
        cr_assert(strstr(sheaf_last_error(), "1000"));
        cr_assert_eq(sheaf_dataset_stat(rig.dataset, 0, &st), 0);
        cr_assert_eq(st.st_size, 110000);
        cr_assert(S_ISREG(st.st_mode));
        cr_assert_eq(sheaf_dataset_stat(rig.dataset, 1000, &st), -ERANGE);
        rig_stop(&rig);
}

Test(client_dataset, unknown_names_and_refusals)
{
        struct rig rig;
        struct sheaf_dataset *other = NULL;
        uint8_t uuid[16] = "another version";

        rig_start(&rig, NULL);
        cr_assert_eq(sheaf_dataset_open(rig.session, "nope", &other), -ENOENT);
        cr_assert_str_eq(sheaf_last_error(), "no such dataset");
        cr_assert_eq(sheaf_dataset_open(rig.session, "", &other), -EINVAL);
        rig.knobs->open_errno = ESTALE;
        cr_assert_eq(sheaf_dataset_open(rig.session, "fake", &other), -ESTALE);
        cr_assert(strstr(sheaf_last_error(), "detached"));
        rig.knobs->open_errno = 0;
        /* Another version than the one that was asked for is never taken. */
        cr_assert_eq(
                sheaf_dataset_open_version(rig.session, "fake", uuid, &other),
                -ESTALE);
        cr_assert_null(other);
        cr_assert_eq(sheaf_dataset_open(rig.session, "fake", &other), 0);
        sheaf_dataset_close(other);
        cr_assert(rig_reaches(&rig.knobs->closed, 1));
        rig_stop(&rig);
}

Test(client_dataset, questions_about_a_file)
{
        struct rig rig;
        struct sheaf_digest digest;
        uint64_t cached, lease;
        int fd;

        rig_start(&rig, NULL);
        cr_assert_eq(sheaf_dataset_cached(rig.dataset, 1, &cached), 0);
        cr_assert_eq(
                cached, sheaf_listing_path(sheaf_dataset_listing(rig.dataset),
                                1, NULL, 0));
        cr_assert_eq(sheaf_dataset_digest(rig.dataset, 5, &digest), 0);
        cr_assert_eq(digest.bytes[31], 5);
        cr_assert_eq(sheaf_dataset_digest(rig.dataset, 0, &digest), -ENODATA);
        cr_assert_eq(sheaf_dataset_open_plain(rig.dataset, 5, &fd, &lease),
                -EOPNOTSUPP);
        sheaf_dataset_count_op(rig.dataset, SHEAF_METER_OP_READ, 3);
        rig_stop(&rig);
}
