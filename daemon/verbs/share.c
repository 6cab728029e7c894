/* SPDX-License-Identifier: Apache-2.0 */
/* Who may read a dataset.
 *
 *  1 a domain is widened without --force only to those who could reach and
 *    read the origin themselves: its root by the modes of all directories
 *    above, as far as this daemon can look, and all that is listed by the
 *    modes in the listing
 *
 * Threads: loop thread. */
#include "daemon/verbs/verbs.h"

#include "daemon/clock.h"
#include "daemon/log.h"
#include "daemon/registry/names.h"

#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

/* "", "owner", "all", "group:NAME" or "group:GID". */
int sheaf_share_parse(
        const char *text, enum sheaf_share *ret_kind, gid_t *ret_gid)
{
        gid_t gid = 0;
        char *end;
        int rc;

        if (!*text || strcmp(text, "owner") == 0) {
                *ret_kind = SHEAF_SHARE_OWNER;
        } else if (strcmp(text, "all") == 0) {
                *ret_kind = SHEAF_SHARE_ALL;
        } else if (strncmp(text, "group:", 6) == 0 && text[6]) {
                unsigned long long number;

                errno = 0;
                number = strtoull(text + 6, &end, 10);
                gid = (gid_t)number;
                if (!*end && (text[6] < '0' || text[6] > '9' || errno ||
                                     number >= UINT32_MAX))
                        return -EINVAL;
                if (*end) {
                        rc = sheaf_names_group(text + 6, &gid);
                        if (rc)
                                return rc;
                }
                *ret_kind = SHEAF_SHARE_GROUP;
        } else {
                return -EINVAL;
        }
        *ret_gid = gid;
        return 0;
}

uint64_t sheaf_share_private(const struct sheaf_listing *listing,
        enum sheaf_share kind, gid_t gid, uint32_t *ret_first)
{
        uint64_t count = 0;

        if (kind == SHEAF_SHARE_OWNER)
                return 0;
        for (uint32_t i = 1; i < listing->entry_count; i++) {
                const struct sheaf_listing_entry *e = &listing->entries[i];

                if (S_ISLNK(e->mode) ||
                        sheaf_share_mode_allows(e->mode,
                                listing->owners[e->owner].gid, kind, gid,
                                S_ISDIR(e->mode) ? 5 : 4))
                        continue;
                if (!count++)
                        *ret_first = i;
        }
        return count;
}

void sheaf_share_private_text(const struct sheaf_listing *listing,
        uint64_t count, uint32_t first, char *buf, size_t cap_bytes)
{
        char path[PATH_MAX];

        sheaf_listing_path(listing, first, path, sizeof(path));
        snprintf(buf, cap_bytes,
                "%llu files and directories, %.200s the first, could not be "
                "read by those users themselves",
                (unsigned long long)count, path);
}

/* A change that waits for the listing. */
struct sharing {
        struct sheaf_call call; /* first */
        struct sheaf_opening opening;
        struct sheaf_reg_dataset *dataset;
        enum sheaf_share kind;
        gid_t gid;
};

/* ---- recording ---- */

/* Bytes that are on their way to disk are still used, for a moment after a
 * warmup: waited for, as long as the deadline is. */
#define VACANT_MS 20

struct recording {
        struct sheaf_call call; /* first */
        struct sheaf_reg_dataset *dataset;
        enum sheaf_share kind;
        gid_t gid;
        uv_timer_t timer;
        int64_t end_ns;
        bool asked; /* recorded() comes */
};

static void recording_closed(uv_handle_t *handle)
{
        free(handle->data);
}

static void recording_end(struct recording *r, int rc)
{
        struct sheaf_reg_dataset *ds = r->dataset;
        struct sheaf_conn *conn = r->call.conn;
        uint64_t id = r->call.id;

        if (conn)
                sheaf_call_end(&r->call);
        if (conn && rc)
                sheaf_conn_error(conn, id, rc,
                        rc == -EBUSY ? "'%s' is in use; its readers must end "
                                       "first"
                        : rc == -EAGAIN ? "'%s': what was read last is still "
                                          "being written to disk; try again, "
                                          "and see: sheaf status"
                        : rc == -ESTALE ? "'%s' was removed"
                                        : "'%s': the change cannot be recorded",
                        ds->record->name);
        else if (conn)
                sheaf_conn_done(conn, id);
        ds->busy--;
        uv_close((uv_handle_t *)&r->timer, recording_closed);
}

static void try_vacant(uv_timer_t *timer);

static void recorded(void *arg, int rc)
{
        struct recording *r = arg;

        r->asked = false;
        /* A flight began while others were being recorded. */
        if (rc == -EAGAIN && r->call.conn && sheaf_now_ns() < r->end_ns)
                uv_timer_start(&r->timer, try_vacant, VACANT_MS, 0);
        else
                recording_end(r, rc);
}

static void try_vacant(uv_timer_t *timer)
{
        struct recording *r = timer->data;
        int rc = sheaf_registry_vacant(r->dataset);

        if (rc == -EAGAIN && sheaf_now_ns() < r->end_ns) {
                uv_timer_start(timer, try_vacant, VACANT_MS, 0);
        } else if (rc) {
                recording_end(r, rc);
        } else {
                r->asked = true;
                sheaf_registry_share(r->dataset, r->kind, r->gid, recorded, r);
        }
}

static void recording_abandon(struct sheaf_call *call)
{
        struct recording *r = (struct recording *)call;

        if (!r->asked)
                recording_end(r, -ECANCELED);
}

static void record(struct sheaf_conn *conn, uint64_t id,
        struct sheaf_reg_dataset *ds, enum sheaf_share kind, gid_t gid)
{
        struct recording *r = sheaf_new(struct recording, 1);

        if (!sheaf_call_begin(
                    conn, id, r ? &r->call : NULL, recording_abandon)) {
                free(r);
                return;
        }
        r->dataset = ds;
        r->kind = kind;
        r->gid = gid;
        r->end_ns = sheaf_now_ns() +
                    conn->daemon->config->deadline_ms * SHEAF_NS_PER_MS;
        uv_timer_init(conn->daemon->loop, &r->timer);
        r->timer.data = r;
        ds->busy++;
        try_vacant(&r->timer);
}

static void sharing_abandon(struct sheaf_call *call)
{
        struct sharing *s = (struct sharing *)call;

        sheaf_registry_open_cancel(&s->opening);
        s->dataset->busy--;
        free(s);
}

static void sharing_opened(struct sheaf_opening *opening, int rc)
{
        struct sharing *s =
                (struct sharing *)((char *)opening -
                                   offsetof(struct sharing, opening));
        struct sheaf_conn *conn = s->call.conn;
        uint64_t id = s->call.id, count = 0;
        const struct sheaf_listing *listing;
        char text[400];
        uint32_t first;

        if (!rc) {
                listing = &opening->version->fetch.listing;
                count = sheaf_share_private(listing, s->kind, s->gid, &first);
                if (count)
                        sheaf_share_private_text(
                                listing, count, first, text, sizeof(text));
                sheaf_registry_unhold(opening->version);
        }
        sheaf_call_end(&s->call);
        s->dataset->busy--;
        if (rc)
                sheaf_conn_error(conn, id, rc,
                        "the listing cannot be read; run: sheaf update");
        else if (s->dataset->removed)
                sheaf_conn_error(conn, id, -ESTALE, "'%s' was removed",
                        s->dataset->record->name);
        else if (count)
                sheaf_conn_error(conn, id, -EPERM,
                        "%s; --force shares it all the same", text);
        else
                record(conn, id, s->dataset, s->kind, s->gid);
        free(s);
}

static void check_and_record(struct sheaf_conn *conn, uint64_t id,
        struct sheaf_reg_dataset *ds, enum sheaf_share kind, gid_t gid)
{
        struct sharing *s = sheaf_new(struct sharing, 1);

        if (!sheaf_call_begin(conn, id, s ? &s->call : NULL, sharing_abandon)) {
                free(s);
                return;
        }
        s->dataset = ds;
        s->kind = kind;
        s->gid = gid;
        s->opening.version = sheaf_registry_version(ds, NULL);
        s->opening.done = sharing_opened;
        ds->busy++;
        sheaf_registry_open(&s->opening);
}

/* @covered: they could read the origin's root. */
static void share(
        struct sheaf_conn *conn, struct sheaf_wire_msg *msg, bool covered)
{
        const Sheaf__Share *share = msg->env->share;
        uint64_t id = msg->env->id;
        struct sheaf_reg_dataset *ds =
                sheaf_conn_dataset(conn, id, share->name, true);
        enum sheaf_share kind;
        gid_t gid;

        if (!ds)
                return;
        if (!covered || sheaf_share_parse(share->share, &kind, &gid)) {
                sheaf_conn_error(conn, id, -EPERM,
                        "those users may not be able to read the origin "
                        "themselves; --force shares it all the same");
                return;
        }
        if (kind == SHEAF_SHARE_OWNER || share->force)
                record(conn, id, ds, kind, gid);
        else if (!sheaf_registry_version(ds, NULL))
                sheaf_conn_error(conn, id, -EAGAIN, "still being listed");
        else
                check_and_record(conn, id, ds, kind, gid);
}

void sheaf_share_refuse(
        struct sheaf_conn *conn, uint64_t id, int rc, const char *text)
{
        sheaf_conn_error(conn, id, rc,
                rc == -ETIMEDOUT ? "share '%s': groups are not looked up in "
                                   "time; try again, or give group:NUMBER"
                : rc == -ENOENT  ? "share '%s': there is no such group"
                                 : "share '%s': give owner, group:NAME or all",
                text);
}

void sheaf_verb_share(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__Share *share_body = msg->env->share;
        uint64_t id = msg->env->id;
        enum sheaf_share kind;
        gid_t gid;
        int rc;

        if (!sheaf_conn_dataset(conn, id, share_body->name, true))
                return;
        rc = sheaf_share_parse(share_body->share, &kind, &gid);
        if (rc) {
                sheaf_share_refuse(conn, id, rc, share_body->share);
                return;
        }
        /* Without the origin's descriptor there is nothing to judge by. */
        if (kind == SHEAF_SHARE_OWNER || share_body->force || !msg->fd_count)
                share(conn, msg,
                        kind == SHEAF_SHARE_OWNER || share_body->force);
        else
                sheaf_share_judge(conn, msg, kind, gid, share);
}
