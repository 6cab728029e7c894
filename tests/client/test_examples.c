/* SPDX-License-Identifier: Apache-2.0 */
/* The programs of docs/examples, linked with the shared library, run against
 * a daemon; and what the library shows to the outside. */
#include "tests/client/rig.h"

#include <criterion/criterion.h>

#include <stdio.h>

static void run(const char *command, char *out, size_t cap)
{
        FILE *pipe = popen(command, "r");
        size_t n;

        cr_assert(pipe);
        n = fread(out, 1, cap - 1, pipe);
        out[n] = '\0';
        cr_assert_eq(pclose(pipe), 0, "%s: %s", command, out);
}

Test(client_examples, read_all)
{
        struct rig rig;
        char out[1024];

        rig_start(&rig, NULL);
        setenv("SHEAF_SOCKET", rig.path, 1);
        run(SHEAF_EXAMPLES "/example-read_all fake", out, sizeof(out));
        cr_assert(strstr(out, "47 files, "), "%s", out);
        cr_assert(strstr(out, "0 chunks from memory, 49 fetched"), "%s", out);
        run(SHEAF_EXAMPLES "/example-read_all fake", out, sizeof(out));
        cr_assert(strstr(out, "49 chunks from memory, 0 fetched"), "%s", out);
        rig_stop(&rig);
}

Test(client_examples, batch)
{
        struct rig rig;
        char out[1024];

        rig_start(&rig, NULL);
        setenv("SHEAF_SOCKET", rig.path, 1);
        run(SHEAF_EXAMPLES "/example-batch fake", out, sizeof(out));
        cr_assert(strstr(out, "47 files, "), "%s", out);
        cr_assert(strstr(out, " 0 failed"), "%s", out);
        rig_stop(&rig);
}

Test(client_examples, the_library_exports_its_header_only)
{
        char out[4096];

        run("nm -D --defined-only " SHEAF_LIBRARY
            " | awk '$2 != \"A\" && $3 !~ /^sheaf_/ { print }'",
                out, sizeof(out));
        cr_assert_str_eq(out, "");
        run("nm -D --defined-only " SHEAF_LIBRARY
            " | grep -c ' T sheaf_'; grep -c '^SHEAF_API' " SHEAF_HEADER,
                out, sizeof(out));
        cr_assert_eq(atoi(out), atoi(strchr(out, '\n')), "%s", out);
}
