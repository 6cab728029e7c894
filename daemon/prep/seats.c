/* SPDX-License-Identifier: Apache-2.0 */
/* Memberships: who joins, what they ask, offer and are answered.
 *
 *  1 a seat ends with its connection, or when the same member joins again
 *  2 a client that does not read its answers is given no batch meanwhile: what
 *    it would not read are descriptors of ours
 *  3 of a file that is offered the kernel says that nobody can change it; what
 *    is in it is not looked at
 *
 * Threads: loop thread. */
#include "daemon/prep/internal.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)

/* ---- joining ---- */

/* NULL: the group is as @spec says. */
static int compare(const struct sheaf_prep_room *room,
        const struct sheaf_seat_spec *spec, char *ret_why)
{
        size_t count = SHEAF_MIN(room->trait_count, spec->trait_count);

        for (size_t i = 0; i < count; i++) {
                const struct sheaf_prep_trait *have = &room->traits[i];
                const Sheaf__Trait *want = spec->traits[i];

                if (!strcmp(have->name, want->name) &&
                        !strcmp(have->value, want->value))
                        continue;
                if (strcmp(have->name, want->name) != 0)
                        snprintf(ret_why, SHEAF_PREP_TEXT_MAX,
                                "group '%s': trait '%s' is where the group "
                                "has '%s'; use the same release in all jobs",
                                room->name, want->name, have->name);
                else
                        snprintf(ret_why, SHEAF_PREP_TEXT_MAX,
                                "group '%s': %s is '%s', and the group's is "
                                "'%s'; give the same, or another group",
                                room->name, want->name, want->value,
                                have->value);
                return -EEXIST;
        }
        if (room->trait_count != spec->trait_count)
                snprintf(ret_why, SHEAF_PREP_TEXT_MAX,
                        "group '%s': %zu traits, and the group has %zu; use "
                        "the same release in all jobs",
                        room->name, spec->trait_count, room->trait_count);
        else if (room->config.batches != spec->batches)
                snprintf(ret_why, SHEAF_PREP_TEXT_MAX,
                        "group '%s': batches is '%u', and the group's is '%u'; "
                        "give the same, or another group",
                        room->name, spec->batches, room->config.batches);
        else
                return 0;
        return -EEXIST;
}

static void answer_rc(
        struct sheaf_seat *seat, enum sheaf_prep_kind kind, int rc)
{
        struct sheaf_prep_answer answer = { .kind = kind, .rc = rc, .fd = -1 };
        struct sheaf_prep_wait *wait = seat->wait;

        if (!wait)
                return;
        sheaf_seat_cancel(wait);
        wait->answer(wait, &answer);
}

/* Its group is, or was, without it. */
static void dismiss(struct sheaf_seat *seat, bool for_good)
{
        int64_t now_ns = sheaf_prep_now_ns(seat->room->prep);

        answer_rc(seat, SHEAF_PREP_GONE, 0);
        if (seat->member)
                sheaf_prep_leave(seat->member, for_good, now_ns);
        if (seat->worker)
                sheaf_prep_retire(seat->worker, for_good, now_ns);
        seat->member = NULL;
        seat->worker = NULL;
        LIST_REMOVE(seat, room_link);
        seat->room = NULL;
}

static void dismiss_all(struct sheaf_prep_room *room)
{
        struct sheaf_seat *seat;

        while ((seat = LIST_FIRST(&room->seats)))
                dismiss(seat, true);
        sheaf_prep_room_leave(room);
}

/* The room to sit in, made if there is none. */
static int find_room(struct sheaf_conn *conn,
        const struct sheaf_seat_spec *spec, struct sheaf_prep_room **ret_room,
        char *ret_why)
{
        struct sheaf_prep_room *room = sheaf_prep_room_find(conn, spec->name);
        int rc = room ? compare(room, spec, ret_why) : 0;

        /* Workers whose members are gone hold no name. */
        if (rc && !spec->worker && !sheaf_prep_first(room->group)) {
                dismiss_all(room);
                room = NULL;
                rc = 0;
        }
        if (rc)
                return rc;
        if (!room)
                return sheaf_prep_room_new(conn, spec, ret_room, ret_why);
        *ret_room = room;
        return 0;
}

static void remember_floor(struct sheaf_seat *seat)
{
        struct sheaf_prep_group_stats stats;

        sheaf_prep_group_stats(seat->room->group, &stats);
        seat->others = stats.begun;
        seat->floor = stats.floor;
}

static int join(struct sheaf_seat *seat, const struct sheaf_seat_spec *spec)
{
        struct sheaf_prep_group *group = seat->room->group;
        struct sheaf_prep_member_config config = spec->member;
        int64_t now_ns = sheaf_prep_now_ns(seat->room->prep);
        struct sheaf_prep_member *old =
                spec->worker ? NULL : sheaf_prep_find(group, config.id);
        int rc;

        /* Its connection ended, which was not seen yet. */
        if (old)
                sheaf_seat_leave(sheaf_prep_member_arg(old), false);
        remember_floor(seat);
        if (spec->worker)
                return sheaf_prep_work(
                        group, config.id, seat, now_ns, &seat->worker);
        config.arg = seat;
        rc = sheaf_prep_join(group, &config, now_ns, &seat->member);
        if (!rc && spec->begun)
                rc = sheaf_prep_begin(seat->member, spec->position, now_ns);
        return rc;
}

static int refuse(struct sheaf_conn *conn, int rc)
{
        conn->daemon->prep->past.refused++;
        return rc;
}

static int check(struct sheaf_conn *conn, char *ret_why)
{
        const struct sheaf_seat *seat;
        uint32_t count = 0;

        LIST_FOREACH (seat, &conn->seats, link)
                count++;
        if (!conn->daemon->config->prep_bytes) {
                snprintf(ret_why, SHEAF_PREP_TEXT_MAX,
                        "this sheafd was started with --prep 0: it keeps no "
                        "prepared batches");
                return -EOPNOTSUPP;
        }
        if (count < SHEAF_CONN_SEATS_MAX)
                return 0;
        snprintf(ret_why, SHEAF_PREP_TEXT_MAX,
                "a session takes part in groups %d times at most",
                SHEAF_CONN_SEATS_MAX);
        return -EBUSY;
}

int sheaf_seat_new(struct sheaf_conn *conn, const struct sheaf_seat_spec *spec,
        struct sheaf_seat **ret_seat, char *ret_why)
{
        struct sheaf_prep *prep = conn->daemon->prep;
        struct sheaf_prep_room *room;
        struct sheaf_seat *seat;
        int rc = check(conn, ret_why);

        if (!rc)
                rc = find_room(conn, spec, &room, ret_why);
        if (rc)
                return refuse(conn, rc);
        seat = sheaf_new(struct sheaf_seat, 1);
        if (!seat) {
                sheaf_prep_room_leave(room);
                snprintf(ret_why, SHEAF_PREP_TEXT_MAX, "no memory");
                return -ENOMEM;
        }
        seat->conn = conn;
        seat->number = ++prep->numbers;
        seat->room = room;
        LIST_INSERT_HEAD(&conn->seats, seat, link);
        LIST_INSERT_HEAD(&room->seats, seat, room_link);
        rc = join(seat, spec);
        if (rc) {
                snprintf(ret_why, SHEAF_PREP_TEXT_MAX,
                        rc == -EBUSY ? "group '%s': it has %d members or %d "
                                       "workers already"
                                     : "group '%s': cannot join",
                        spec->name, SHEAF_PREP_MEMBERS_MAX,
                        SHEAF_PREP_WORKERS_MAX);
                sheaf_seat_leave(seat, true);
                return refuse(conn, rc);
        }
        *ret_seat = seat;
        return 0;
}

bool sheaf_seat_floor(const struct sheaf_seat *seat, uint64_t *ret_floor)
{
        *ret_floor = seat->floor;
        return seat->others;
}

struct sheaf_seat *sheaf_seat_find(struct sheaf_conn *conn, uint64_t number)
{
        struct sheaf_seat *seat;

        LIST_FOREACH (seat, &conn->seats, link)
                if (seat->number == number)
                        return seat;
        return NULL;
}

uint64_t sheaf_seat_number(const struct sheaf_seat *seat)
{
        return seat->number;
}

void sheaf_seat_leave(struct sheaf_seat *seat, bool for_good)
{
        struct sheaf_prep_room *room = seat->room;

        if (room)
                dismiss(seat, for_good);
        LIST_REMOVE(seat, link);
        free(seat);
        if (room)
                sheaf_prep_room_leave(room);
}

void sheaf_seats_leave(struct sheaf_conn *conn)
{
        struct sheaf_seat *seat;

        while ((seat = LIST_FIRST(&conn->seats)))
                sheaf_seat_leave(seat, false);
}

struct sheaf_prep_member *sheaf_seat_member(const struct sheaf_seat *seat)
{
        return seat->member;
}

struct sheaf_prep_worker *sheaf_seat_worker(const struct sheaf_seat *seat)
{
        return seat->member ? sheaf_prep_self(seat->member) : seat->worker;
}

struct sheaf_prep_group *sheaf_seat_group(const struct sheaf_seat *seat)
{
        return seat->room ? seat->room->group : NULL;
}

uint32_t sheaf_seat_pid(const struct sheaf_seat *seat)
{
        return seat->conn->claimed_pid ? seat->conn->claimed_pid
                                       : (uint32_t)seat->conn->who.pid;
}

void sheaf_seat_told(struct sheaf_seat *seat)
{
        if (seat->room)
                sheaf_prep_room_told(seat->room);
}

/* ---- waiting ---- */

static void wait_begin(struct sheaf_seat *seat, struct sheaf_prep_wait *wait)
{
        struct sheaf_prep *prep = seat->room->prep;

        wait->seat = seat;
        seat->wait = wait;
        TAILQ_INSERT_TAIL(&prep->waits, wait, link);
        prep->wait_due_ns = SHEAF_MIN(prep->wait_due_ns, wait->deadline_ns);
}

static void wait_end(struct sheaf_prep_wait *wait)
{
        TAILQ_REMOVE(&wait->seat->conn->daemon->prep->waits, wait, link);
        wait->seat->wait = NULL;
}

/* Who does not wait at all is answered now. */
static void tell_and_look(struct sheaf_seat *seat, struct sheaf_prep_wait *wait)
{
        bool now = wait->deadline_ns <= sheaf_now_ns();

        sheaf_prep_room_told(seat->room);
        if (now && seat->wait == wait)
                sheaf_seat_late(seat);
}

int sheaf_seat_take(struct sheaf_seat *seat, struct sheaf_prep_wait *wait,
        uint64_t batch, bool may_prepare)
{
        int rc;

        if (seat->wait)
                return -EBUSY;
        rc = sheaf_prep_want(seat->member, batch, may_prepare,
                sheaf_prep_now_ns(seat->room->prep));
        if (rc)
                return rc;
        wait_begin(seat, wait);
        tell_and_look(seat, wait);
        return 0;
}

int sheaf_seat_lease(struct sheaf_seat *seat, struct sheaf_prep_wait *wait)
{
        if (seat->wait)
                return -EBUSY;
        sheaf_prep_ask(seat->worker);
        wait_begin(seat, wait);
        tell_and_look(seat, wait);
        return 0;
}

void sheaf_seat_cancel(struct sheaf_prep_wait *wait)
{
        struct sheaf_seat *seat = wait->seat;

        wait_end(wait);
        if (seat->member)
                sheaf_prep_unwant(
                        seat->member, sheaf_prep_now_ns(seat->room->prep));
        if (seat->worker)
                sheaf_prep_unask(seat->worker);
}

static void answer_wait(
        struct sheaf_seat *seat, struct sheaf_prep_answer *answer)
{
        struct sheaf_prep_wait *wait = seat->wait;
        struct sheaf_prep_group_stats stats;

        sheaf_prep_group_stats(seat->room->group, &stats);
        answer->gathered = stats.gathered;
        wait_end(wait);
        wait->answer(wait, answer);
}

void sheaf_seat_late(struct sheaf_seat *seat)
{
        struct sheaf_prep_answer answer = { .fd = -1 };

        if (seat->member)
                answer.state = sheaf_prep_unwant(
                        seat->member, sheaf_prep_now_ns(seat->room->prep));
        if (seat->worker)
                sheaf_prep_unask(seat->worker);
        answer_wait(seat, &answer);
}

/* A descriptor of its own for the member: its place in the file is not
 * another's. */
static int reopen(int fd)
{
        char path[32];
        int own;

        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        own = open(path, O_RDONLY | O_CLOEXEC);
        return own < 0 ? -errno : own;
}

static bool is_shortage(int rc)
{
        return rc == -EMFILE || rc == -ENFILE;
}

static void give(struct sheaf_seat *seat, const struct sheaf_prep_event *event)
{
        struct sheaf_prep_answer answer = { .kind = event->kind,
                .batch = event->batch };
        struct sheaf_prep_member *member = event->member;
        int64_t now_ns = sheaf_prep_now_ns(seat->room->prep);
        sheaf_autofd int fd =
                TAILQ_EMPTY(&seat->conn->queue) ? reopen(event->fd) : -EMFILE;

        answer.fd = fd;
        if (fd < 0) {
                /* It waits on, and asks again. */
                answer.rc = is_shortage(fd) ? 0 : fd;
                answer.kind = SHEAF_PREP_NONE;
                answer.state = sheaf_prep_unwant(member, now_ns);
        }
        answer_wait(seat, &answer);
        if (fd >= 0)
                sheaf_prep_took(member, now_ns);
}

void sheaf_seat_event(
        struct sheaf_seat *seat, const struct sheaf_prep_event *event)
{
        struct sheaf_prep_answer answer = { .kind = event->kind,
                .batch = event->batch,
                .why = event->why,
                .fd = -1 };

        if (event->kind == SHEAF_PREP_GIVE) {
                give(seat, event);
                return;
        }
        answer_wait(seat, &answer);
        if (event->kind == SHEAF_PREP_TELL)
                sheaf_prep_took(
                        event->member, sheaf_prep_now_ns(seat->room->prep));
}

/* ---- offering ---- */

/* What is wrong with it; or NULL, and the memory that it has or will have:
 * there may be pages beyond its end, and whoever looks into a hole fills it. */
static const char *fault_of(int fd, uint64_t *ret_bytes)
{
        struct statfs fs;
        struct stat st;
        uint64_t page;
        int seals = fcntl(fd, F_GET_SEALS);

        if (seals < 0)
                return "it is no memory file (memfd_create)";
        if (fstatfs(fd, &fs) || fs.f_type == HUGETLBFS_MAGIC)
                return "it has reserved huge pages (MFD_HUGETLB), and who maps "
                       "it may find none";
        if ((seals & SEALS) != SEALS)
                return "it is not sealed against SHRINK, GROW, WRITE and SEAL";
        if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size <= 0)
                return "it is empty";
        page = (uint64_t)SHEAF_MAX(st.st_blksize, 4096);
        *ret_bytes = SHEAF_MAX(((uint64_t)st.st_size + page - 1) / page * page,
                (uint64_t)st.st_blocks * 512);
        return NULL;
}

static const char *offer_text(int rc)
{
        switch (rc) {
        case -ESTALE:
                return "another worker was first, or nobody needs it any more";
        case -EEXIST:
                return "its structure, dtypes or dimensions are not those of "
                       "the group's other batches; the same transform in all "
                       "jobs, or another group";
        case -EFBIG:
                return "it is larger than all prepared batches together may "
                       "be; start sheafd with a larger --prep";
        default:
                return "";
        }
}

/* One for reading; the same one where we may open no more. */
static int keep(int *fd)
{
        int own = reopen(*fd);

        return is_shortage(own) ? sheaf_steal_fd(fd) : own;
}

int sheaf_seat_offer(struct sheaf_seat *seat, uint64_t batch, int *fd,
        const char *schema, char *ret_why)
{
        struct sheaf_prep_worker *worker = sheaf_seat_worker(seat);
        int64_t now_ns = sheaf_prep_now_ns(seat->room->prep);
        uint64_t bytes = 0;
        const char *why = fault_of(*fd, &bytes);
        int rc, own = -1;

        if (!why) {
                own = keep(fd);
                if (own < 0)
                        why = "it cannot be opened for reading; leave its mode "
                              "alone";
        }
        if (why) {
                rc = sheaf_prep_spoil(worker, batch, why, now_ns);
                if (!rc)
                        rc = -EINVAL;
                else
                        why = offer_text(rc);
        } else {
                rc = sheaf_prep_offer(
                        worker, batch, own, bytes, schema, now_ns);
                seat->room->prep->grown |= !rc;
                why = offer_text(rc);
        }
        if (rc && own >= 0)
                sheaf_closer_take(seat->conn->daemon->closer, own);
        snprintf(ret_why, SHEAF_PREP_TEXT_MAX, "batch %llu: %s",
                (unsigned long long)batch, why);
        sheaf_prep_room_told(seat->room);
        return rc;
}

int sheaf_seat_fail(struct sheaf_seat *seat, uint64_t batch, const char *why)
{
        int rc = sheaf_prep_fail(sheaf_seat_worker(seat), batch, why,
                sheaf_prep_now_ns(seat->room->prep));

        sheaf_prep_room_told(seat->room);
        return rc;
}
