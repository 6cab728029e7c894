/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is refused to the daemon: to each command one allocation after
 * the other, alone, and with all that follow.
 *
 *  1 the command does all of it, or nothing, and says so; one whose answer was
 *    lost says that
 *  2 the daemon lives, and the same command works when there is memory
 *  3 what is durable is what was answered: a restart finds no other */
#include "tests/flow/harness.h"
#include "tests/flow/world.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

static struct shim *shim;

#define FILES   5
#define BYTES   UINT64_C(30000)
#define LARGE   (UINT64_C(9) << 20)
#define CLIENTS 40

/* So many connections at once: libuv ends a process whose table of descriptors
 * cannot grow, so it is to have grown. */
static void grow_tables(void)
{
        struct sheaf_session *sessions[CLIENTS];

        for (int i = 0; i < CLIENTS; i++) {
                cr_assert_eq(sheaf_session_new(NULL, &sessions[i]), 0);
                cr_assert_eq(sheaf_session_connect(sessions[i]), 0);
        }
        for (int i = 0; i < CLIENTS; i++)
                sheaf_session_free(sessions[i]);
}

/* A sanitizer's allocations are its own. */
static bool can_refuse(void)
{
        if (!flow_sanitized(flow.daemon))
                return true;
        fprintf(stderr, "SKIP: nomemory: sheafd has a sanitizer's heap\n");
        return false;
}

static void begin(void)
{
        const char *prefix;

        flow_init();
        /* What waits for memory is given up then. */
        flow.deadline_s = 3;
        shim = flow_shim(&prefix);
        flow_world("", prefix);
        for (uint32_t i = 0; i < FILES; i++)
                flow_file(1 + i, BYTES, "d%u/f%u", i % 2, i);
        flow_file(100, LARGE, "large");
        flow_start();
        flow_ok("sheaf add data %s --quiet", flow.origin);
        flow_ok("sheaf warmup data --quiet");
        cr_assert(!mkdir(flow_path("grant"), 0755));
        setenv("O", flow.origin, 1);
        setenv("G", flow_path("grant"), 1);
        grow_tables();
}

TestSuite(nomemory, .init = begin, .fini = flow_fini, .timeout = 280);

/* Runs a command while allocations fail, @count from number @from on. False:
 * it did not need so many. */
static bool without(uint64_t from, uint64_t count, const char *command)
{
        shim->allocations = shim->refused = 0;
        shim->refuse_from = from;
        shim->refuse = count;
        flow_run("%s", command);
        shim->refuse = 0;
        cr_assert_eq(flow_wait(flow.daemon, 0), -1,
                "'%s' without allocation %llu (of %llu) ended the daemon",
                command, (unsigned long long)from,
                (unsigned long long)shim->allocations);
        cr_assert(flow.last.rc >= 0 && flow.last.rc < 128,
                "'%s' without allocation %llu: %d", command,
                (unsigned long long)from, flow.last.rc);
        cr_assert(!flow.last.rc || *flow.last.err || *flow.last.out,
                "'%s' without allocation %llu fails in silence", command,
                (unsigned long long)from);
        return shim->refused > 0;
}

/* ---- grants ---- */

/* How many there are; the last one's id in @ret_id. */
static size_t grants(char ret_id[64])
{
        json_t *root;
        size_t count;

        flow_ok("sheaf grant --list --json");
        root = json_loads(flow.last.out, 0, NULL);
        cr_assert(root, "%s", flow.last.out);
        count = json_array_size(root);
        if (count)
                snprintf(ret_id, 64, "%s",
                        json_string_value(json_object_get(
                                json_array_get(root, count - 1), "id")));
        json_decref(root);
        return count;
}

static bool is_served(void)
{
        return !flow_run(
                "SHEAF_SOCKET=$G/sheafd.sock quickread --dataset data");
}

static bool has_socket(void)
{
        return access(flow_path("grant/sheafd.sock"), F_OK) == 0;
}

/* With the @count allocations from number @from on refused. What cannot be
 * removed for lack of memory is a file where nobody listens. */
static void revoke_without(uint64_t from, uint64_t count, const char *id)
{
        char command[128], other[64];
        bool told;

        snprintf(command, sizeof(command), "sheaf grant --revoke %s", id);
        (void)without(from, count, command);
        told = !flow.last.rc;
        if (grants(other)) {
                cr_assert(!told, "a grant that was revoked is there");
                flow_ok("sheaf grant --revoke %s", id);
                cr_assert(flow_until(10, !has_socket()));
        }
        cr_assert(flow_until(10, !is_served()));
}

/* False: it did not need so many. */
static bool grant_without(uint64_t from, uint64_t count)
{
        char id[64] = "";
        bool refused = without(from, count, "sheaf grant data --dir $G --json");
        bool told = !flow.last.rc;
        size_t made = grants(id);

        cr_assert_leq(made, 1);
        cr_assert(!told || made, "a grant that was answered is not there");
        /* One that could be neither served nor taken back is tried again. */
        if (made)
                cr_assert(flow_until(20, is_served()), "allocation %llu: %s",
                        (unsigned long long)from, flow.last.err);
        else
                cr_assert(flow_until(10, !has_socket()),
                        "allocation %llu leaves a socket",
                        (unsigned long long)from);
        if (made)
                revoke_without(from, count, id);
        (void)unlink(flow_path("grant/sheafd.sock"));
        return refused;
}

static void each_grant(uint64_t count)
{
        uint64_t from = 1;
        char id[64];

        if (!can_refuse())
                return;
        while (grant_without(from, count))
                from++;
        printf("FIGURE: %llu allocations of a grant\n",
                (unsigned long long)from - 1);
        cr_assert_gt(from, 20);
        flow_stop();
        flow_start();
        cr_assert_eq(grants(id), 0);
        flow_ok("sheaf grant data --dir $G");
        flow_ok("SHEAF_SOCKET=$G/sheafd.sock quickread --dataset data");
        flow_stop();
}

Test(nomemory, grants_one)
{
        each_grant(1);
}

Test(nomemory, grants_all_that_follow)
{
        each_grant(UINT64_MAX);
}

Test(nomemory, a_list_of_grants)
{
        char id[64];
        uint64_t from = 1;

        if (!can_refuse())
                return;
        flow_ok("sheaf grant data --dir $G");
        while (without(from, 1, "sheaf grant --list --json"))
                from++;
        from = 1;
        while (without(from, UINT64_MAX, "sheaf grant --list --json"))
                from++;
        cr_assert_eq(grants(id), 1);
        flow_stop();
}

/* ---- the other commands ---- */

static const struct {
        const char *before, *command, *after;
} commands[] = {
        { "", "sheaf ls --json", "" },
        { "", "sheaf status --json", "" },
        { "", "sheaf stats --json", "" },
        { "", "sheaf groups --json", "" },
        { "", "sheaf job ls data --json", "" },
        { "", "sheaf add more $O --quiet", "sheaf rm more --force" },
        { "sheaf add more $O --quiet", "sheaf rm more", "sheaf rm more" },
        { "touch $O/d0/f0", "sheaf update data --quiet",
                "sheaf update data --quiet" },
        { "", "sheaf share data all --force", "sheaf share data owner" },
        { "", "sheaf seal data --quiet", "" },
        { "sheaf warmup data --evict --memory --quiet",
                "sheaf warmup data --quiet", "" },
        { "sheaf warmup data --evict --quiet", "sheaf warmup data --quiet",
                "" },
        { "sheaf warmup data --quiet", "sheaf warmup data --evict --quiet",
                "" },
        { "", "sheaf warmup data --check --quiet", "" },
        { "", "sheaf verify data --quiet", "" },
        { "", "quickread --dataset data --compare $O", "" },
        { "sheaf warmup data --evict --quiet",
                "quickread --dataset data --compare $O", "" },
};

/* Each of the first few, then fewer and fewer. Where all that follow are
 * refused a read waits for its deadline. */
static uint64_t after(uint64_t from, uint64_t count)
{
        return from + 1 + from / (count == 1 ? 64 : 2);
}

static void each_command(uint64_t count)
{
        if (!can_refuse())
                return;
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(commands); i++) {
                const char *command = commands[i].command;
                uint64_t from = 1;
                bool refused = true;

                while (refused) {
                        flow_run("%s", commands[i].before);
                        refused = without(from, count, command);
                        from = after(from, count);
                        flow_run("%s", commands[i].after);
                }
                flow_ok("quickread --dataset data --compare $O");
                printf("FIGURE: %llu allocations: %s\n",
                        (unsigned long long)shim->allocations, command);
        }
        flow_stop();
        flow_start();
        flow_ok("sheaf ls data && quickread --dataset data --compare $O");
        cr_assert_neq(flow_run("sheaf ls more"), 0);
        flow_stop();
}

Test(nomemory, commands_one)
{
        each_command(1);
}

Test(nomemory, commands_all_that_follow)
{
        each_command(UINT64_MAX);
}
