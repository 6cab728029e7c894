/* SPDX-License-Identifier: Apache-2.0 */
/* proto/paths: the search order of the daemon's socket. */
#include "proto/paths.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <sys/stat.h>

static struct sheaf_socket_list list;

static void find(const char *given)
{
        cr_assert_eq(sheaf_socket_candidates(given, &list), 0);
        cr_assert_geq(list.count, 1);
}

static void forget(void)
{
        sheaf_socket_list_free(&list);
}

Test(paths, option_then_environment, .fini = forget)
{
        setenv("SHEAF_SOCKET", "/env.sock", 1);
        find("given.sock");
        cr_assert_eq(list.count, 1);
        cr_assert_str_eq(list.path[0], "given.sock");
        sheaf_socket_list_free(&list);
        find(NULL);
        cr_assert_eq(list.count, 1);
        cr_assert_str_eq(list.path[0], "/env.sock");
}

Test(paths, usual_places_in_order, .fini = forget)
{
        unsetenv("SHEAF_SOCKET");
        setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
        find(NULL);
        cr_assert_str_eq(list.path[0], "/run/user/7/sheaf/sheafd.sock");
        cr_assert_str_eq(list.path[1], "/run/sheaf/sheafd.sock");
        sheaf_socket_list_free(&list);
        /* relative ones are void by the specification of these directories */
        setenv("XDG_RUNTIME_DIR", "run", 1);
        find(NULL);
        cr_assert_str_eq(list.path[0], "/run/sheaf/sheafd.sock");
}

Test(paths, a_place_that_others_may_write_is_left_out, .fini = forget)
{
        char dir[64];

        unsetenv("SHEAF_SOCKET");
        unsetenv("XDG_RUNTIME_DIR");
        snprintf(dir, sizeof(dir), "/tmp/sheaf-%u", (unsigned int)geteuid());
        if (mkdir(dir, 0700)) {
                /* somebody's real one: not ours to change */
                fprintf(stderr, "SKIP: paths: %s exists\n", dir);
                return;
        }
        find(NULL);
        cr_expect_eq(list.count, 2);
        sheaf_socket_list_free(&list);
        chmod(dir, 0777);
        find(NULL);
        cr_expect_eq(list.count, 1);
        rmdir(dir);
}
