/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of all users: what they answer, time, files.
 *
 *  1 what a message changes is answered at once, up to so many answers; the
 *    rest in the next turns of the loop
 *  2 the groups' time does not go on while the daemon does not run
 *
 * Threads: loop thread. */
#include "daemon/prep/internal.h"

#define TICK_MS         20
#define GAP_NS          (250 * SHEAF_NS_PER_MS)
#define ANSWERS_AT_ONCE 16
#define FILES_PART      4 /* of the descriptors that the daemon has left */
#define STARVED_NS      (3 * SHEAF_NS_PER_SEC)

/* ---- time ---- */

int64_t sheaf_prep_now_ns(struct sheaf_prep *prep)
{
        int64_t now_ns = sheaf_now_ns();

        prep->time_ns += SHEAF_MIN(now_ns - prep->seen_ns, GAP_NS);
        prep->seen_ns = now_ns;
        return prep->time_ns;
}

/* ---- files ---- */

static void drop(void *arg, int fd)
{
        struct sheaf_prep_room *room = arg;

        room->owner->more = true;
        sheaf_closer_take(room->prep->daemon->closer, fd);
}

/* ---- what groups answer ---- */

static void idle_cb(uv_idle_t *idle);

static void mark(struct sheaf_prep_room *room)
{
        if (room->dirty)
                return;
        room->dirty = true;
        TAILQ_INSERT_TAIL(&room->prep->dirty, room, dirty_link);
}

/* Those that were held by want of room. */
static void mark_held(struct sheaf_prep *prep)
{
        struct sheaf_prep_owner *owner;
        struct sheaf_prep_room *room;

        LIST_FOREACH (room, &prep->rooms, link)
                if (room->owner->more && sheaf_prep_held(room->group))
                        mark(room);
        LIST_FOREACH (owner, &prep->owners, link)
                owner->more = false;
}

static bool answer(struct sheaf_prep *prep, int *budget)
{
        struct sheaf_prep_room *room = TAILQ_FIRST(&prep->dirty);
        struct sheaf_prep_event event;

        if (!room)
                return false;
        for (; *budget > 0; (*budget)--) {
                sheaf_prep_next(room->group, sheaf_prep_now_ns(prep), &event);
                if (!event.kind)
                        break;
                sheaf_seat_event(event.arg, &event);
        }
        TAILQ_REMOVE(&prep->dirty, room, dirty_link);
        room->dirty = false;
        if (*budget <= 0)
                mark(room);
        /* What is due may be sooner now. */
        room->due_ns = 0;
        return *budget > 0;
}

static void trim(struct sheaf_prep *prep)
{
        struct sheaf_prep_room *room;

        while ((room = sheaf_prep_trim(prep)))
                mark(room);
}

static void pump(struct sheaf_prep *prep)
{
        int budget = ANSWERS_AT_ONCE;

        do {
                while (answer(prep, &budget))
                        ;
                mark_held(prep);
                trim(prep);
        } while (budget > 0 && !TAILQ_EMPTY(&prep->dirty));
        if (TAILQ_EMPTY(&prep->dirty) == !prep->idling)
                return;
        prep->idling = !prep->idling;
        if (prep->idling)
                uv_idle_start(&prep->idle, idle_cb);
        else
                uv_idle_stop(&prep->idle);
}

static void idle_cb(uv_idle_t *idle)
{
        pump(idle->data);
}

void sheaf_prep_room_told(struct sheaf_prep_room *room)
{
        mark(room);
        pump(room->prep);
}

/* ---- the timer ---- */

static bool starves(struct sheaf_prep_room *room)
{
        struct sheaf_prep_member *m;

        if (!sheaf_prep_held(room->group))
                return false;
        for (m = sheaf_prep_first(room->group); m; m = sheaf_prep_after(m)) {
                struct sheaf_prep_member_stats stats;

                sheaf_prep_member_stats(m, &stats);
                if (stats.waits && stats.state != SHEAF_PREP_AHEAD &&
                        stats.state != SHEAF_PREP_GATHERING)
                        return true;
        }
        return false;
}

static void tick_room(
        struct sheaf_prep_room *room, int64_t now_ns, int64_t tick_ns)
{
        room->starved_ns += starves(room) ? tick_ns : -tick_ns;
        room->starved_ns =
                SHEAF_MAX(0, SHEAF_MIN(room->starved_ns, 2 * STARVED_NS));
        if (now_ns < room->due_ns)
                return;
        room->due_ns = sheaf_prep_tick(room->group, now_ns);
        mark(room);
}

/* Waits that are over. */
static void tick_waits(struct sheaf_prep *prep)
{
        struct sheaf_prep_wait *wait, *next;
        int64_t now_ns = sheaf_now_ns();

        if (now_ns < prep->wait_due_ns)
                return;
        prep->wait_due_ns = INT64_MAX;
        for (wait = TAILQ_FIRST(&prep->waits); wait; wait = next) {
                next = TAILQ_NEXT(wait, link);
                if (wait->deadline_ns > now_ns)
                        prep->wait_due_ns =
                                SHEAF_MIN(prep->wait_due_ns, wait->deadline_ns);
                else
                        sheaf_seat_late(wait->seat);
        }
}

static void set_shut(struct sheaf_prep *prep)
{
        bool crowded = sheaf_server_crowded(prep->daemon->server);
        struct sheaf_prep_owner *owner;

        LIST_FOREACH (owner, &prep->owners, link) {
                owner->more |= owner->purse.shut && !crowded;
                owner->purse.shut = crowded;
        }
}

static void tick(uv_timer_t *timer)
{
        struct sheaf_prep *prep = timer->data;
        int64_t before_ns = prep->time_ns, now_ns = sheaf_prep_now_ns(prep);
        struct sheaf_prep_room *room;

        set_shut(prep);
        tick_waits(prep);
        LIST_FOREACH (room, &prep->rooms, link)
                tick_room(room, now_ns, now_ns - before_ns);
        pump(prep);
        if (!LIST_EMPTY(&prep->rooms))
                return;
        uv_timer_stop(&prep->timer);
        prep->ticking = false;
}

/* ---- groups ---- */

/* Of the same principal. */
static bool is_of(
        const struct sheaf_prep_room *room, const struct sheaf_conn *conn)
{
        return room->grant == conn->who.grant &&
               (room->grant || room->uid == conn->who.uid);
}

struct sheaf_prep_room *sheaf_prep_room_find(
        struct sheaf_conn *conn, const char *name)
{
        struct sheaf_prep_room *room;

        LIST_FOREACH (room, &conn->daemon->prep->rooms, link)
                if (is_of(room, conn) && !strcmp(room->name, name))
                        return room;
        return NULL;
}

static void set_traits(
        struct sheaf_prep_room *room, const struct sheaf_seat_spec *spec)
{
        for (size_t i = 0; i < spec->trait_count; i++) {
                strncpy(room->traits[i].name, spec->traits[i]->name,
                        SHEAF_PREP_TRAIT_NAME);
                strncpy(room->traits[i].value, spec->traits[i]->value,
                        SHEAF_PREP_TRAIT_VALUE);
        }
        room->trait_count = spec->trait_count;
}

static int room_fill(
        struct sheaf_prep_room *room, const struct sheaf_seat_spec *spec)
{
        room->traits = sheaf_new(
                struct sheaf_prep_trait, SHEAF_MAX(spec->trait_count, 1));
        if (!room->traits)
                return -ENOMEM;
        strcpy(room->name, spec->name);
        set_traits(room, spec);
        room->config = (struct sheaf_prep_config){ .batches = spec->batches,
                .ahead = spec->ahead,
                .lease_ns = spec->lease_ms * SHEAF_NS_PER_MS,
                .purse = &room->owner->purse,
                .drop = drop,
                .arg = room };
        return sheaf_prep_group_new(&room->config, &room->group);
}

int sheaf_prep_room_new(struct sheaf_conn *conn,
        const struct sheaf_seat_spec *spec, struct sheaf_prep_room **ret_room,
        char *ret_why)
{
        struct sheaf_prep *prep = conn->daemon->prep;
        struct sheaf_prep_owner *owner = sheaf_prep_owner_get(conn);
        struct sheaf_prep_room *room = NULL;
        int rc = owner ? 0 : -ENOMEM;

        snprintf(ret_why, SHEAF_PREP_TEXT_MAX, "no memory for another group");
        if (!rc && owner->groups >= SHEAF_PREP_GROUPS_MAX) {
                snprintf(ret_why, SHEAF_PREP_TEXT_MAX,
                        "a user may have %d groups at once; end some: sheaf "
                        "groups lists them",
                        SHEAF_PREP_GROUPS_MAX);
                return -EBUSY;
        }
        if (!rc)
                room = sheaf_new(struct sheaf_prep_room, 1);
        if (room) {
                room->prep = prep;
                room->owner = owner;
                room->uid = conn->who.uid;
                room->grant = conn->who.grant;
        }
        if (!room || room_fill(room, spec)) {
                if (room)
                        free(room->traits);
                free(room);
                if (owner)
                        sheaf_prep_owner_forget(prep, owner);
                return -ENOMEM;
        }
        owner->groups++;
        room->number = ++prep->rooms_made;
        LIST_INSERT_HEAD(&prep->rooms, room, link);
        if (!prep->ticking)
                uv_timer_start(&prep->timer, tick, TICK_MS, TICK_MS);
        prep->ticking = true;
        *ret_room = room;
        return 0;
}

static void add_past(
        struct sheaf_prep_stats *sum, const struct sheaf_prep_group_stats *of)
{
        sum->prepared += of->prepared;
        sum->taken += of->taken;
        sum->redone += of->redone;
        sum->own += of->own;
        sum->late += of->late;
        sum->failed += of->failed;
        sum->detached += of->detached;
        sum->shed += of->shed;
}

void sheaf_prep_room_leave(struct sheaf_prep_room *room)
{
        struct sheaf_prep *prep = room->prep;
        struct sheaf_prep_group_stats stats;

        if (!LIST_EMPTY(&room->seats)) {
                sheaf_prep_room_told(room);
                return;
        }
        sheaf_prep_group_stats(room->group, &stats);
        add_past(&prep->past, &stats);
        sheaf_prep_group_free(room->group);
        if (room->dirty)
                TAILQ_REMOVE(&prep->dirty, room, dirty_link);
        LIST_REMOVE(room, link);
        room->owner->groups--;
        sheaf_prep_owner_forget(prep, room->owner);
        free(room->traits);
        free(room);
        pump(prep);
}

/* ---- the service ---- */

int sheaf_prep_new(struct sheaf_daemon *daemon, struct sheaf_prep **ret_prep)
{
        struct sheaf_prep *prep = sheaf_new(struct sheaf_prep, 1);
        struct sheaf_server_stats server;

        if (!prep)
                return -ENOMEM;
        prep->daemon = daemon;
        TAILQ_INIT(&prep->dirty);
        TAILQ_INIT(&prep->waits);
        /* A number of another daemon is none of this one. */
        memcpy(&prep->numbers, daemon->instance, sizeof(prep->numbers));
        prep->seen_ns = sheaf_now_ns();
        prep->wait_due_ns = INT64_MAX;
        sheaf_server_stats(daemon->server, &server);
        prep->files_max =
                (uint32_t)SHEAF_MAX(server.fds_free / FILES_PART, (uint64_t)1);
        uv_timer_init(daemon->loop, &prep->timer);
        uv_idle_init(daemon->loop, &prep->idle);
        prep->timer.data = prep->idle.data = prep;
        prep->open_handles = 2;
        *ret_prep = prep;
        return 0;
}

static void handle_closed(uv_handle_t *handle)
{
        struct sheaf_prep *prep = handle->data;

        if (--prep->open_handles == 0)
                free(prep);
}

void sheaf_prep_free(struct sheaf_prep *prep)
{
        if (!prep)
                return;
        uv_close((uv_handle_t *)&prep->timer, handle_closed);
        uv_close((uv_handle_t *)&prep->idle, handle_closed);
}

void sheaf_prep_stats(
        const struct sheaf_prep *prep, struct sheaf_prep_stats *ret_stats)
{
        const struct sheaf_prep_room *room;

        *ret_stats = prep->past;
        ret_stats->bytes_max = prep->daemon->config->prep_bytes;
        LIST_FOREACH (room, &prep->rooms, link) {
                struct sheaf_prep_group_stats stats;

                sheaf_prep_group_stats(room->group, &stats);
                add_past(ret_stats, &stats);
                ret_stats->groups++;
                ret_stats->members += stats.members;
                ret_stats->workers += stats.workers;
                ret_stats->staged += stats.staged;
                ret_stats->staged_bytes += stats.staged_bytes;
                ret_stats->held |= room->starved_ns >= STARVED_NS;
        }
}

static void show(
        const struct sheaf_prep_room *room, struct sheaf_prep_shown *shown)
{
        *shown = (struct sheaf_prep_shown){ .number = room->number,
                .name = room->name,
                .uid = room->uid,
                .grant = room->grant,
                .batches = room->config.batches,
                .ahead = room->config.ahead,
                .group = room->group };
}

bool sheaf_prep_each(struct sheaf_conn *conn, const char *name, uint64_t below,
        bool (*each)(void *arg, const struct sheaf_prep_shown *shown),
        void *arg)
{
        bool all = !conn->who.grant &&
                   (conn->who.uid == 0 || conn->who.uid == geteuid());
        struct sheaf_prep_room *room;

        LIST_FOREACH (room, &conn->daemon->prep->rooms, link) {
                struct sheaf_prep_shown shown;

                if (room->number >= below || (!all && !is_of(room, conn)) ||
                        (*name && strcmp(room->name, name) != 0))
                        continue;
                show(room, &shown);
                if (!each(arg, &shown))
                        return false;
        }
        return true;
}

bool sheaf_seat_shown(
        const struct sheaf_seat *seat, struct sheaf_prep_shown *ret_shown)
{
        if (seat->room)
                show(seat->room, ret_shown);
        return seat->room;
}
