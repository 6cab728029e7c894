/* SPDX-License-Identifier: Apache-2.0 */
/* Complete large files for kernel passthrough: leased to mounts.
 *
 * Only a mount run by root or by the daemon's own user gets one: a
 * descriptor is more than a mapping of an arena, and passthrough needs
 * CAP_SYS_ADMIN anyway.
 *
 * Threads: loop thread. */
#include "daemon/verbs/verbs.h"

void sheaf_verb_open_plain(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__OpenPlain *open = msg->env->open_plain;
        uint64_t id = msg->env->id;
        struct sheaf_handle *h = sheaf_conn_handle(conn, id, open->handle);
        struct sheaf_plain_hold *hold;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__PlainOpened body = SHEAF__PLAIN_OPENED__INIT;
        int rc, fd;

        if (!h)
                return;
        if (conn->who.uid != 0 && conn->who.uid != geteuid()) {
                sheaf_conn_error(conn, id, -EPERM,
                        "passthrough is for mounts run by root or by the "
                        "daemon's user");
                return;
        }
        if (open->entry >= h->version->fetch.listing.entry_count ||
                !sheaf_listing_is_file(
                        &h->version->fetch.listing, open->entry)) {
                sheaf_conn_error(conn, id, -EINVAL, "not a file");
                return;
        }
        hold = sheaf_new(struct sheaf_plain_hold, 1);
        if (!hold) {
                sheaf_conn_error(conn, id, -ENOMEM, "out of memory");
                return;
        }
        rc = sheaf_store_plain(conn->daemon->store, h->version->fetch.stored,
                open->entry, &fd, &hold->lease);
        if (rc) {
                free(hold);
                sheaf_conn_error(
                        conn, id, rc, "no complete file: %s", strerror(-rc));
                return;
        }
        hold->number = ++conn->plain_numbers;
        LIST_INSERT_HEAD(&conn->plains, hold, link);
        body.lease = hold->number;
        env.id = id;
        env.body_case = SHEAF__ENVELOPE__BODY_PLAIN_OPENED;
        env.plain_opened = &body;
        sheaf_conn_send(conn, &env, &fd, 1);
        close(fd);
}

void sheaf_verb_close_plain(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        struct sheaf_plain_hold *hold;

        LIST_FOREACH (hold, &conn->plains, link)
                if (hold->number == msg->env->close_plain->lease)
                        break;
        if (hold) {
                LIST_REMOVE(hold, link);
                sheaf_plain_lease_end(hold->lease);
                free(hold);
        }
        sheaf_conn_done(conn, msg->env->id);
}
