/* SPDX-License-Identifier: Apache-2.0 */
/* The right protocol survives the litmus, every seeded bug is caught by it.
 * SHEAF_LITMUS_SECONDS: length of the clean run (3). */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#define TRIES 24

static int litmus(const char *build, const char *seconds)
{
        char command[512];
        int rc;

        snprintf(command, sizeof(command), "%s-%s %s >&2", SHEAF_LITMUS, build,
                seconds);
        rc = system(command);
        cr_assert(WIFEXITED(rc));
        return WEXITSTATUS(rc);
}

Test(litmus, right)
{
        const char *seconds = getenv("SHEAF_LITMUS_SECONDS");
        int rc = 4;

        /* Inconclusive when other work kept the two threads apart. */
        for (int i = 0; i < TRIES && rc == 4; i++)
                rc = litmus("right", seconds ? seconds : "3");
        cr_expect_eq(rc, 0);
}

static void must_be_caught(const char *build)
{
        int rc = 0;

#if defined(__SANITIZE_THREAD__)
        /* The right build must be silent there; seeded bugs hide, since
         * every access takes many times longer than the race is wide. */
        printf("SKIP: %s: ThreadSanitizer slows the race away\n", build);
        return;
#endif
        for (int i = 0; i < TRIES && rc != 3; i++)
                rc = litmus(build, "5");
        cr_expect_eq(rc, 3, "%s was not noticed", build);
}

Test(litmus, no_recheck)
{
        must_be_caught("no_recheck");
}

Test(litmus, weak_fence)
{
        must_be_caught("weak_fence");
}

Test(litmus, unpin_before_read)
{
        must_be_caught("unpin_before_read");
}

Test(litmus, mark_after_slot)
{
        must_be_caught("mark_after_slot");
}
