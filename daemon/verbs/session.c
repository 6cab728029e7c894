/* SPDX-License-Identifier: Apache-2.0 */
/* Greeting, opening datasets, and what a client says about its pins.
 *
 * Threads: loop thread. */
#include "daemon/verbs/verbs.h"

#include "daemon/log.h"
#include "proto/memfd.h"
#include "proto/pin.h"

#include <fcntl.h>
#include <stdio.h>

#define EXTENTS_PER_MESSAGE (SHEAF_WIRE_FDS_MAX / 2)
/* Address space that a client reserves: room for arenas that shrink and grow
 * again, since an extent's index is never used twice. */
#define RANGE_FACTOR 16

static void set_text(char *to, size_t cap, const char *from)
{
        size_t n = 0;

        for (; from[n] && n + 1 < cap; n++)
                to[n] = from[n] < ' ' || from[n] == 0x7f ? '?' : from[n];
        to[n] = 0;
}

void sheaf_verb_hello(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__Hello *hello = msg->env->hello;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__Welcome welcome = SHEAF__WELCOME__INIT;

        set_text(conn->kind, sizeof(conn->kind), hello->kind);
        set_text(conn->name, sizeof(conn->name), hello->name);
        conn->claimed_pid = hello->pid;
        conn->want_pin_bytes = hello->want_pin_bytes;
        sheaf_conn_greeted(conn);
        if (hello->layout_min <= SHEAF_SHM_LAYOUT &&
                hello->layout_max >= SHEAF_SHM_LAYOUT)
                welcome.layout = SHEAF_SHM_LAYOUT;
        welcome.deadline_ms = conn->daemon->config->deadline_ms;
        welcome.version = (char *)SHEAF_RELEASE;
        welcome.instance.data = conn->daemon->instance;
        welcome.instance.len = sizeof(conn->daemon->instance);
        welcome.daemon_pid = (uint32_t)getpid();
        env.id = msg->env->id;
        env.body_case = SHEAF__ENVELOPE__BODY_WELCOME;
        env.welcome = &welcome;
        sheaf_conn_send(conn, &env, NULL, 0);
}

/* ---- arenas ---- */

static void send_extents(struct sheaf_conn *conn, struct sheaf_domain *domain,
        uint32_t *extents, size_t count, uint32_t event)
{
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__Extents body = SHEAF__EXTENTS__INIT;
        int fds[SHEAF_WIRE_FDS_MAX];
        size_t taken = 0;
        int own_lock, rc = 0;

        for (; taken < count && !rc; taken += !rc) {
                rc = sheaf_arena_extent(domain->arena, extents[taken],
                        &fds[2 * taken], &own_lock);
                if (!rc)
                        rc = sheaf_arena_extent_lock(domain->arena,
                                extents[taken], &fds[2 * taken + 1]);
        }
        if (rc) {
                /* It would meet words that lead to what it cannot map. */
                sheaf_log_rc(rc, SHEAF_LOG_ERROR, "client dropped",
                        "why=\"an extent's lock cannot be given\" pid=%d",
                        conn->who.pid);
                sheaf_conn_drop_soon(conn);
                goto out;
        }
        body.arena = domain->number;
        body.n_extent = count;
        body.extent = extents;
        body.event = event + 1;
        env.body_case = SHEAF__ENVELOPE__BODY_EXTENTS;
        env.extents = &body;
        sheaf_conn_send(conn, &env, fds, 2 * count);
out:
        for (size_t i = 0; i < taken; i++)
                close(fds[2 * i + 1]);
}

static void send_all_extents(
        struct sheaf_conn *conn, struct sheaf_domain *domain)
{
        uint32_t batch[EXTENTS_PER_MESSAGE];
        uint32_t end = sheaf_arena_extent_end(domain->arena);
        size_t count = 0;

        for (uint32_t i = 0; i < end; i++) {
                int fd, lock_fd;

                if (sheaf_arena_extent(domain->arena, i, &fd, &lock_fd))
                        continue;
                batch[count++] = i;
                if (count == EXTENTS_PER_MESSAGE) {
                        send_extents(conn, domain, batch, count, i);
                        count = 0;
                }
        }
        if (count)
                send_extents(conn, domain, batch, count, end);
}

static struct sheaf_arena_part *part_of(
        struct sheaf_conn *conn, const struct sheaf_arena *arena)
{
        struct sheaf_arena_part *part;

        LIST_FOREACH (part, &conn->attachments, link)
                if (part->domain->arena == arena)
                        return part;
        return NULL;
}

static struct sheaf_arena_part *part_by_number(
        struct sheaf_conn *conn, uint32_t number)
{
        struct sheaf_arena_part *part;

        LIST_FOREACH (part, &conn->attachments, link)
                if (part->domain->number == number)
                        return part;
        return NULL;
}

void sheaf_server_extent_new(
        struct sheaf_server *server, struct sheaf_arena *arena, uint32_t extent)
{
        struct sheaf_conn *conn;

        for (conn = sheaf_server_first(server); conn;
                conn = LIST_NEXT(conn, link)) {
                struct sheaf_arena_part *part = part_of(conn, arena);

                if (part)
                        send_extents(conn, part->domain, &extent, 1, extent);
        }
}

void sheaf_server_extent_dropped(
        struct sheaf_server *server, struct sheaf_arena *arena, uint32_t extent)
{
        struct sheaf_conn *conn;

        for (conn = sheaf_server_first(server); conn;
                conn = LIST_NEXT(conn, link)) {
                struct sheaf_arena_part *part = part_of(conn, arena);
                Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
                Sheaf__ExtentDropped body = SHEAF__EXTENT_DROPPED__INIT;

                if (!part)
                        continue;
                body.arena = part->domain->number;
                body.extent = extent;
                env.body_case = SHEAF__ENVELOPE__BODY_EXTENT_DROPPED;
                env.extent_dropped = &body;
                sheaf_conn_send(conn, &env, NULL, 0);
        }
}

/* The client's part in a domain's arena; announced before it is used. */
static int part_get(struct sheaf_conn *conn, uint64_t id,
        struct sheaf_domain *domain, struct sheaf_arena_part **ret_part)
{
        struct sheaf_arena_part *part = part_of(conn, domain->arena);
        struct sheaf_arena_shape shape;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__ArenaOpened body = SHEAF__ARENA_OPENED__INIT;
        int rc, fd;

        if (part) {
                *ret_part = part;
                return 0;
        }
        rc = sheaf_arena_shape(conn->daemon->config->memory_bytes, &shape);
        if (rc)
                return rc;
        part = sheaf_new(struct sheaf_arena_part, 1);
        if (!part)
                return -ENOMEM;
        part->domain = domain;
        rc = sheaf_pins_new(domain->arena, &part->pins);
        if (rc) {
                free(part);
                return rc;
        }
        part->grant_bytes = sheaf_pins_grant(
                part->pins, conn->want_pin_bytes ? conn->want_pin_bytes
                                                 : shape.bytes_max / 8);
        LIST_INSERT_HEAD(&conn->attachments, part, link);
        body.arena = domain->number;
        body.extent_bytes = shape.extent_bytes;
        body.range_bytes = RANGE_FACTOR * shape.bytes_max;
        body.grant_bytes = part->grant_bytes;
        body.brief_bytes = sheaf_pin_brief_max(shape.bytes_max);
        env.id = id;
        env.more = true;
        env.body_case = SHEAF__ENVELOPE__BODY_ARENA_OPENED;
        env.arena_opened = &body;
        fd = sheaf_pins_fd(part->pins);
        sheaf_conn_send(conn, &env, &fd, 1);
        send_all_extents(conn, domain);
        *ret_part = part;
        return 0;
}

/* ---- datasets ---- */

struct open_call {
        struct sheaf_call call; /* first */
        struct sheaf_opening opening;
        bool map;
};

static int meter_make(int *ret_fd, const struct sheaf_meter **ret_meter)
{
        sheaf_autofd int fd = sheaf_memfd("sheaf-meter", MFD_ALLOW_SEALING);
        struct sheaf_meter head = { .magic = SHEAF_METER_MAGIC,
                .layout = SHEAF_SHM_LAYOUT };
        void *map;

        if (fd < 0)
                return fd;
        if (ftruncate(fd, sizeof(head)) ||
                pwrite(fd, &head, sizeof(head), 0) != sizeof(head) ||
                fcntl(fd, F_ADD_SEALS,
                        F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
                return -EIO;
        map = mmap(NULL, sizeof(head), PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
                return -errno;
        *ret_meter = map;
        *ret_fd = sheaf_steal_fd(&fd);
        return 0;
}

static int handle_new(struct sheaf_conn *conn,
        struct sheaf_reg_version *version, struct sheaf_handle **ret_handle)
{
        struct sheaf_handle *h;
        uint32_t number = 0;

        while (number < SHEAF_CONN_HANDLES_MAX && conn->handles[number])
                number++;
        if (number == SHEAF_CONN_HANDLES_MAX)
                return -EMFILE;
        h = sheaf_new(struct sheaf_handle, 1);
        if (!h)
                return -ENOMEM;
        h->number = number;
        h->version = version;
        h->meter_fd = -1;
        conn->handles[number] = h;
        conn->handle_count++;
        *ret_handle = h;
        return 0;
}

static void answer_opened(
        struct sheaf_conn *conn, uint64_t id, struct sheaf_handle *h, bool map)
{
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__DatasetOpened body = SHEAF__DATASET_OPENED__INIT;
        Sheaf__DatasetInfo info = SHEAF__DATASET_INFO__INIT;
        struct sheaf_info_space space;
        int fds[3];

        sheaf_dataset_fill_info(h->version->dataset, h->version, &info, &space);
        body.handle = h->number;
        body.info = &info;
        env.id = id;
        env.body_case = SHEAF__ENVELOPE__BODY_DATASET_OPENED;
        env.dataset_opened = &body;
        if (map) {
                body.arena = h->lodging->tenancy->domain->number;
                fds[0] = h->version->block.memfd;
                fds[1] = sheaf_table_fd(h->lodging->residence.table);
                fds[2] = h->meter_fd;
        }
        sheaf_conn_send(conn, &env, fds, map ? 3 : 0);
}

static void opened(struct sheaf_opening *opening, int rc)
{
        struct open_call *open_call =
                (struct open_call *)((char *)opening -
                                     offsetof(struct open_call, opening));
        struct sheaf_conn *conn = open_call->call.conn;
        struct sheaf_reg_version *version = opening->version;
        uint64_t id = open_call->call.id;
        struct sheaf_handle *h = NULL;
        struct sheaf_arena_part *part;

        sheaf_call_end(&open_call->call);
        /* While the listing was read. */
        if (version->dataset->removed ||
                !sheaf_registry_may_read(version->dataset, &conn->who)) {
                if (!rc)
                        sheaf_registry_unhold(version);
                sheaf_conn_error(conn, id, -ENOENT,
                        "the dataset was removed or is shared no more");
                free(open_call);
                return;
        }
        if (rc) {
                sheaf_conn_error(conn, id, rc,
                        "the listing of '%s' cannot be read from the cache "
                        "(%s); run: sheaf update %s",
                        version->dataset->record->name, strerror(-rc),
                        version->dataset->record->name);
                free(open_call);
                return;
        }
        rc = handle_new(conn, version, &h);
        if (rc) {
                sheaf_registry_unhold(version);
                sheaf_conn_error(conn, id, rc,
                        "a connection may open %u datasets at once",
                        SHEAF_CONN_HANDLES_MAX);
                free(open_call);
                return;
        }
        if (open_call->map) {
                rc = sheaf_registry_lodge(version, &conn->who, &h->lodging);
                if (!rc)
                        sheaf_lodging_use(h->lodging, 1);
                if (!rc)
                        rc = part_get(
                                conn, id, h->lodging->tenancy->domain, &part);
                if (!rc)
                        rc = meter_make(&h->meter_fd, &h->meter);
        }
        if (rc) {
                sheaf_conn_close_handle(conn, h);
                sheaf_conn_error(conn, id, rc,
                        "dataset '%s' cannot be mapped: %s",
                        version->dataset->record->name, strerror(-rc));
        } else {
                answer_opened(conn, id, h, open_call->map);
        }
        free(open_call);
}

static void open_abandon(struct sheaf_call *call)
{
        struct open_call *open_call = (struct open_call *)call;

        sheaf_registry_open_cancel(&open_call->opening);
        free(open_call);
}

void sheaf_verb_open_dataset(
        struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__OpenDataset *open = msg->env->open_dataset;
        uint64_t id = msg->env->id;
        struct sheaf_reg_dataset *ds =
                sheaf_conn_dataset(conn, id, open->name, false);
        struct sheaf_reg_version *version;
        struct open_call *open_call;

        if (!ds)
                return;
        if (sheaf_server_crowded(conn->server)) {
                sheaf_conn_error(conn, id, -EMFILE, SHEAF_CROWDED_TEXT);
                return;
        }
        version = sheaf_registry_version(
                ds, open->uuid.len == 16 ? open->uuid.data : NULL);
        if (!version) {
                sheaf_conn_error(conn, id, open->uuid.len ? -ENOENT : -EAGAIN,
                        open->uuid.len
                                ? "that version of '%s' is gone; open it anew"
                                : "'%s' is still being listed; try again",
                        open->name);
                return;
        }
        open_call = sheaf_new(struct open_call, 1);
        if (!sheaf_call_begin(conn, id, open_call ? &open_call->call : NULL,
                    open_abandon)) {
                free(open_call);
                return;
        }
        open_call->map = open->map;
        open_call->opening.version = version;
        open_call->opening.done = opened;
        open_call->opening.who = open->map ? &conn->who : NULL;
        sheaf_registry_open(&open_call->opening);
}

void sheaf_verb_close_dataset(
        struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        struct sheaf_handle *h = sheaf_conn_handle(
                conn, msg->env->id, msg->env->close_dataset->handle);

        if (!h)
                return;
        sheaf_conn_close_handle(conn, h);
        sheaf_conn_done(conn, msg->env->id);
}

/* ---- pins ---- */

void sheaf_verb_unmapped(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        struct sheaf_arena_part *part =
                part_by_number(conn, msg->env->unmapped->arena);

        if (part)
                sheaf_pins_unmapped(part->pins, msg->env->unmapped->extent);
}

void sheaf_verb_pin_grant(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        struct sheaf_arena_part *part =
                part_by_number(conn, msg->env->pin_grant->arena);
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__PinGrant body = SHEAF__PIN_GRANT__INIT;

        if (!part) {
                sheaf_conn_error(conn, msg->env->id, -ENOENT,
                        "no such arena on this connection");
                return;
        }
        part->grant_bytes =
                sheaf_pins_grant(part->pins, msg->env->pin_grant->bytes);
        body.arena = part->domain->number;
        body.bytes = part->grant_bytes;
        env.id = msg->env->id;
        env.body_case = SHEAF__ENVELOPE__BODY_PIN_GRANT;
        env.pin_grant = &body;
        sheaf_conn_send(conn, &env, NULL, 0);
}

/* Of anything else the daemon might be the one that keeps it from hanging up:
 * a pipe's write end, the client's own end of this connection. No stat: that
 * asks whatever file system the descriptor is of. */
static bool reads_a_pipe(int fd)
{
        return fcntl(fd, F_GETPIPE_SZ) > 0 &&
               (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
}

void sheaf_verb_fork_note(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        int fd = sheaf_wire_take_fd(msg, 0);
        int rc;

        if (!reads_a_pipe(fd)) {
                sheaf_close_p(&fd);
                sheaf_conn_error(conn, msg->env->id, -EINVAL,
                        "a fork note comes with the read end of a pipe");
                return;
        }
        rc = sheaf_conn_ghost(conn, fd);
        if (rc) {
                sheaf_conn_error(conn, msg->env->id, rc,
                        "the fork cannot be tracked: %s", strerror(-rc));
                return;
        }
        conn->forked = true;
        sheaf_conn_done(conn, msg->env->id);
}

void sheaf_verb_cancel(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        struct sheaf_call *call;

        LIST_FOREACH (call, &conn->calls, link)
                if (call->id == msg->env->cancel->id)
                        break;
        if (call) {
                uint64_t id = call->id;

                sheaf_call_end(call);
                call->abandon(call);
                sheaf_conn_error(conn, id, -ECANCELED, "cancelled");
        }
        sheaf_conn_done(conn, msg->env->id);
}
