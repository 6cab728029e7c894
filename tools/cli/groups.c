/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf groups: the groups that prepare each batch once, and who is in them. */
#include "tools/cli/conn.h"
#include "tools/cli/out.h"

#include <stdio.h>

struct groups {
        struct cli_table *table;
        json_t *list;
        bool one; /* rows are members */
        size_t count;
};

/* As enum sheaf_group_state. */
static const char *const states[] = { "taken", "prepare", "preparing", "ahead",
        "gathering", "full", "failed", "queued" };

static const char *state_of(const Sheaf__GroupMember *member)
{
        if (!member->waits)
                return "";
        return member->state < SHEAF_ARRAY_LEN(states) ? states[member->state]
                                                       : "?";
}

/* EPOCH:PLACE. */
static void place_of(const Sheaf__GroupInfo *info, bool begun, uint64_t batch,
        char ret_text[48])
{
        uint32_t batches = SHEAF_MAX(info->batches, 1u);

        if (begun)
                snprintf(ret_text, 48, "%llu:%llu",
                        (unsigned long long)(batch / batches),
                        (unsigned long long)(batch % batches));
        else
                snprintf(ret_text, 48, "-");
}

/* ---- JSON ---- */

static void set_number(json_t *o, const char *key, uint64_t value)
{
        json_object_set_new(o, key, json_integer((json_int_t)value));
}

static json_t *member_json(
        const Sheaf__GroupInfo *info, const Sheaf__GroupMember *member)
{
        json_t *o = json_object();
        uint32_t batches = SHEAF_MAX(info->batches, 1u);

        set_number(o, "pid", member->pid);
        set_number(o, "rank", member->rank);
        set_number(o, "world", member->world);
        set_number(o, "workers", member->workers);
        json_object_set_new(o, "epoch",
                member->begun
                        ? json_integer((json_int_t)(member->position / batches))
                        : json_null());
        json_object_set_new(o, "batch",
                member->begun
                        ? json_integer((json_int_t)(member->position % batches))
                        : json_null());
        json_object_set_new(o, "detached", json_boolean(member->detached));
        json_object_set_new(o, "waits_for",
                member->waits ? json_string(state_of(member)) : json_null());
        return o;
}

static json_t *group_json(const Sheaf__GroupInfo *info)
{
        json_t *o = json_object(), *members = json_array();

        cli_json_text(o, "name", info->name, strlen(info->name));
        cli_json_text(o, "owner", info->owner, strlen(info->owner));
        set_number(o, "workers", info->workers);
        set_number(o, "batches", info->batches);
        set_number(o, "ahead", info->ahead);
        set_number(o, "gathers", info->gather);
        set_number(o, "staged", info->staged);
        set_number(o, "staged_bytes", info->staged_bytes);
        set_number(o, "prepared", info->prepared);
        set_number(o, "taken", info->taken);
        set_number(o, "redone", info->redone);
        set_number(o, "private", info->private_);
        set_number(o, "late", info->late);
        set_number(o, "failed", info->failed);
        for (size_t i = 0; i < info->n_member; i++)
                json_array_append_new(
                        members, member_json(info, info->member[i]));
        json_object_set_new(o, "members", members);
        return o;
}

/* ---- tables ---- */

static void add_group(struct groups *groups, const Sheaf__GroupInfo *info)
{
        sheaf_autofree char *name = cli_text(info->name, strlen(info->name));
        char place[48];

        place_of(info, info->begun, info->floor, place);
        cli_table_add(groups->table, "%s", name ? name : "?");
        cli_table_add(groups->table, "%s", info->owner);
        cli_table_add_count(groups->table, info->members);
        cli_table_add_count(groups->table, info->workers);
        cli_table_add(groups->table, "%s", place);
        cli_table_add_count(groups->table, info->staged);
        cli_table_add_size(groups->table, info->staged_bytes);
        cli_table_add_count(groups->table, info->prepared);
        cli_table_add_count(groups->table, info->taken);
        cli_table_add_count(groups->table, info->redone);
        cli_table_add_count(groups->table, info->private_);
        cli_table_add_count(groups->table, info->late);
        cli_table_add_count(groups->table, info->failed);
}

static void add_members(struct groups *groups, const Sheaf__GroupInfo *info)
{
        for (size_t i = 0; i < info->n_member; i++) {
                const Sheaf__GroupMember *m = info->member[i];
                char place[48];

                place_of(info, m->begun, m->position, place);
                cli_table_add(groups->table, "%u", m->pid);
                cli_table_add(groups->table, "%u/%u", m->rank, m->world);
                cli_table_add_count(groups->table, m->workers);
                cli_table_add(groups->table, "%s", place);
                cli_table_add(groups->table, "%s",
                        m->detached ? "detached"
                        : m->begun  ? "attached"
                                    : "");
                cli_table_add(groups->table, "%s", state_of(m));
        }
}

static void print_head(const Sheaf__GroupInfo *info)
{
        sheaf_autofree char *name = cli_text(info->name, strlen(info->name));

        printf("group %s of %s: %u batches an epoch, %u ahead; %u workers\n",
                name ? name : "?", info->owner, info->batches, info->ahead,
                info->workers);
        printf("%llu prepared (%llu privately), %llu taken, %llu redone, %llu "
               "late, %llu failed\n",
                (unsigned long long)info->prepared,
                (unsigned long long)info->private_,
                (unsigned long long)info->taken,
                (unsigned long long)info->redone,
                (unsigned long long)info->late,
                (unsigned long long)info->failed);
        if (info->gather)
                printf("%u members of %u are there: the first batch waits for "
                       "them\n",
                        info->members, info->gather);
}

static int on_reply(void *arg, const Sheaf__Envelope *env)
{
        struct groups *groups = arg;

        if (env->body_case != SHEAF__ENVELOPE__BODY_GROUP_INFO)
                return CLI_OK;
        groups->count++;
        if (groups->list) {
                json_array_append_new(
                        groups->list, group_json(env->group_info));
        } else if (groups->one) {
                print_head(env->group_info);
                add_members(groups, env->group_info);
        } else {
                add_group(groups, env->group_info);
        }
        return CLI_OK;
}

static int run(struct cli *cli)
{
        static const char *const heads[] = { "NAME", "OWNER", ">MEMBERS",
                ">WORKERS", ">FLOOR", ">STAGED", ">BYTES", ">PREPARED",
                ">TAKEN", ">REDONE", ">PRIVATE", ">LATE", ">FAILED" };
        static const char *const member_heads[] = { ">PID", ">RANK", ">WORKERS",
                ">NEXT", "", "WAITS" };
        __attribute__((cleanup(cli_conn_free_p))) struct cli_conn *conn = NULL;
        Sheaf__ListGroups body = SHEAF__LIST_GROUPS__INIT;
        struct groups groups = { .one = cli->arg_count > 0 };
        int rc = cli_conn_open(cli, &conn);

        if (rc)
                return rc;
        if (groups.one)
                body.name = cli->args[0];
        if (cli->json)
                groups.list = json_array();
        else if (groups.one)
                groups.table = cli_table_new(
                        member_heads, SHEAF_ARRAY_LEN(member_heads));
        else
                groups.table = cli_table_new(heads, SHEAF_ARRAY_LEN(heads));

        CLI_REQUEST(env, LIST_GROUPS, list_groups, &body);
        rc = cli_conn_call(conn, &env, NULL, 0, on_reply, &groups);
        if (!rc && groups.one && !groups.count)
                rc = cli_fail(cli, CLI_NOT_FOUND, ENOENT,
                        "no group '%s' of yours; see: sheaf groups",
                        cli->args[0]);
        else if (!rc && groups.list)
                cli_json_print(json_incref(groups.list));
        else if (!rc && !groups.count)
                printf("no groups; loaders make them\n");
        else if (!rc)
                cli_table_print(sheaf_steal(&groups.table));
        json_decref(groups.list);
        cli_table_free(groups.table);
        return rc;
}

static const struct cli_option options[] = { { 0 } };

const struct cli_verb cli_verb_groups = {
        .name = "groups",
        .args = "[NAME]",
        .brief = "list groups that prepare each batch once, or one's members",
        .details =
                "Members of a group share batches that any worker of any of "
                "them prepared. FLOOR\nand NEXT are EPOCH:BATCH; staged "
                "batches "
                "are kept until all who need them took\nthem. A member that is "
                "detached is too far behind, and prepares for itself. Only\n"
                "your own groups are shown; root sees all.\n",
        .examples = "sheaf groups\nsheaf groups hpo-17\nsheaf groups --json",
        .options = options,
        .args_max = 1,
        .run = run,
};
