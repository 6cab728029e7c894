/* SPDX-License-Identifier: Apache-2.0 */
/* Workers of a storm.
 *
 *  1 each byte is checked: a file's id is in all its words, and for moving
 *    files the size that the opened version lists says which generation the
 *    bytes must be
 *  2 what a command acknowledged is there after any number of kills: a
 *    dataset is listed or not, a version is not older
 *  3 a worker stops only between two acts */
#include "tests/flow/storm.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define OTHER_UID   4001
#define MOVING_IDS  UINT32_C(0x100000)
#define GENERATIONS 65536
#define TINY_IDS    UINT32_C(0x8000)
#define TINY_FILES  4
#define HELD        6

struct storm_board *storm_board;

static pid_t workers[STORM_ROLES];
static const char *mounts[2];
static struct soak dice; /* of this worker */

/* Ends a worker. */
SHEAF_PRINTF(1, 2) static void wrong(const char *format, ...)
{
        va_list args;

        va_start(args, format);
        fputs("STORM: ", stderr);
        vfprintf(stderr, format, args);
        fputc('\n', stderr);
        va_end(args);
        _exit(1);
}

/* ---- files ---- */

static uint64_t still_size(uint32_t file)
{
        return file < STORM_SMALL ? 3000 + file * UINT64_C(6007)
                                  : 9000000 + file * UINT64_C(100003);
}

static const char *still_name(uint32_t file)
{
        static char name[32];

        snprintf(name, sizeof(name), "d%u/f%u", file % 5, file);
        return name;
}

static uint64_t moving_size(uint32_t file, uint32_t generation)
{
        return 1000 + file * UINT64_C(10007) + generation * UINT64_C(8);
}

static uint32_t moving_id(uint32_t file, uint32_t generation)
{
        return MOVING_IDS + file * GENERATIONS + generation;
}

/* Beside it and renamed, so that each content is whole. */
static void move_file(uint32_t file, uint32_t generation)
{
        uint64_t len = moving_size(file, generation);
        sheaf_autofree char *to = strdup(flow_path("moving/f%u", file));
        const char *tmp = flow_path("moving-new");
        sheaf_autofree uint8_t *buf = malloc(len);
        sheaf_autofd int fd =
                open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

        if (fd < 0 || !buf || !to)
                wrong("%s: %s", tmp, strerror(errno));
        flow_stamp_bytes(buf, moving_id(file, generation), 0, len);
        if (write(fd, buf, len) != (ssize_t)len || rename(tmp, to))
                wrong("%s: %s", to, strerror(errno));
}

void storm_prepare(void)
{
        storm_board = mmap(NULL, sizeof(*storm_board), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        cr_assert_neq(storm_board, MAP_FAILED);
        for (uint32_t f = 0; f < STORM_STILL; f++)
                flow_file(1 + f, still_size(f), "%s", still_name(f));
        cr_assert(!mkdir(flow_path("moving"), 0755));
        for (uint32_t f = 0; f < STORM_MOVING; f++)
                move_file(f, 0);
        for (uint32_t t = 0; t < STORM_TINY; t++)
                for (uint32_t f = 0; f < TINY_FILES; f++)
                        flow_file(TINY_IDS + t * TINY_FILES + f, 5000,
                                "../tiny%u/f%u", t, f);
}

void storm_add(void)
{
        flow_ok("sheaf add --share all --force still %s", flow.origin);
        flow_ok("sheaf add --share all --force moving %s/moving", flow.base);
        for (int i = 0; i < 2; i++) {
                mounts[i] = strdup(flow_path("mount%d", i));
                flow_mount("still", mounts[i]);
        }
}

/* ---- what all workers do ---- */

/* Between two acts; false: it is over. */
static bool next_act(void)
{
        if (storm_board->pause) {
                storm_board->paused++;
                while (storm_board->pause && !storm_board->stop)
                        flow_sleep(0.005);
                storm_board->paused--;
        }
        return !storm_board->stop;
}

static bool is_mount(enum storm_role role)
{
        return role == STORM_MOUNT || role == STORM_MOUNT_2;
}

/* Whether a read says that its deadline passed, and it did; a mount says EIO
 * to that. */
static bool is_late(enum storm_role role, int rc, double start)
{
        return flow_now() - start >= flow.deadline_s * 0.95 &&
               (rc == -ETIMEDOUT || rc == -ECONNREFUSED ||
                       (is_mount(role) && rc == -EIO));
}

/* Counts the outcome of a read that began at @start. */
static void count(enum storm_role role, int rc, const char *path, double start)
{
        _Atomic uint64_t *counter =
                &storm_board->errors[role][SHEAF_MIN(-rc, STORM_ERRNOS - 1)];

        if (rc == -EBADMSG || rc == -ENODATA)
                wrong("role %d: %s: %s", role, path,
                        rc == -EBADMSG ? "wrong bytes" : "another length");
        if (!rc) {
                storm_board->done[role]++;
                return;
        }
        if (is_late(role, rc, start))
                counter = &storm_board->late[role];
        if ((*counter)++ == 0)
                fprintf(stderr, "storm: role %d: %s: %s after %.1f s: %s\n",
                        role, path, strerror(-rc), flow_now() - start,
                        is_mount(role) ? "mount" : sheaf_last_error());
}

/* A session that is connected: a dataset that is not there is not a daemon
 * that is not there. */
static int connect_first(struct sheaf_session **ret_session)
{
        struct sheaf_session *session;
        int rc = sheaf_session_new(NULL, &session);

        if (rc)
                return rc;
        rc = sheaf_session_connect(session);
        if (rc)
                sheaf_session_free(session);
        else
                *ret_session = session;
        return rc;
}

static bool open_again(enum storm_role role, const char *name,
        struct sheaf_session **ret_session, struct sheaf_dataset **ret_dataset)
{
        double start = flow_now();
        int rc = connect_first(ret_session);

        if (rc == -ECONNREFUSED || rc == -ENOENT) {
                storm_board->refused[role]++;
                flow_sleep(0.005);
                return false;
        }
        if (!rc) {
                rc = sheaf_dataset_open(*ret_session, name, ret_dataset);
                if (rc)
                        sheaf_session_free(*ret_session);
        }
        if (rc)
                count(role, rc, name, start);
        return !rc;
}

/* ---- library ---- */

static int check_pieces(const struct sheaf_view *view, uint32_t id)
{
        uint64_t at = 0;

        for (size_t i = 0; i < view->piece_count; i++) {
                if (!flow_stamp_check(view->pieces[i].iov_base, id, at,
                            view->pieces[i].iov_len))
                        return -EBADMSG;
                at += view->pieces[i].iov_len;
        }
        return at == view->len_bytes ? 0 : -ENODATA;
}

/* Views that outlive daemons: right when they are taken and when they are
 * given back. */
static void hold_views(struct sheaf_dataset *dataset)
{
        struct sheaf_view views[HELD];
        uint32_t files[HELD];
        int rcs[HELD];

        for (int i = 0; i < HELD; i++) {
                double start = flow_now();
                uint64_t ordinal;

                files[i] = soak_pick(&dice, STORM_SMALL);
                rcs[i] = sheaf_dataset_lookup(
                        dataset, still_name(files[i]), &ordinal);
                if (!rcs[i])
                        rcs[i] = sheaf_view_file(dataset, ordinal, &views[i]);
                if (!rcs[i])
                        rcs[i] = check_pieces(&views[i], 1 + files[i]);
                count(STORM_VIEWS, rcs[i], still_name(files[i]), start);
        }
        flow_sleep(soak_pick(&dice, 300) / 1000.0);
        for (int i = 0; i < HELD; i++) {
                if (rcs[i])
                        continue;
                count(STORM_VIEWS, check_pieces(&views[i], 1 + files[i]),
                        "a held view", flow_now());
                sheaf_view_release(&views[i]);
        }
}

static void read_still(struct sheaf_dataset *dataset, enum storm_role role)
{
        uint32_t f = soak_pick(&dice, STORM_STILL);
        double start = flow_now();
        int rc;

        if (role == STORM_VIEWS && !soak_pick(&dice, 4)) {
                hold_views(dataset);
                return;
        }
        if (role == STORM_VIEWS)
                rc = flow_check_view(
                        dataset, still_name(f), 1 + f, still_size(f));
        else
                rc = flow_check_read(dataset, still_name(f), 1 + f,
                        still_size(f), 1 + soak_pick(&dice, 1 << 20));
        count(role, rc, still_name(f), start);
}

static void read_moving(struct sheaf_dataset *dataset)
{
        uint32_t f = soak_pick(&dice, STORM_MOVING), generation;
        double start = flow_now();
        uint64_t ordinal, size;
        char name[16];
        int rc;

        snprintf(name, sizeof(name), "f%u", f);
        rc = sheaf_dataset_lookup(dataset, name, &ordinal);
        if (!rc) {
                size = (uint64_t)sheaf_dataset_size(dataset, ordinal);
                generation = (uint32_t)((size - moving_size(f, 0)) / 8);
                rc = flow_check_view(
                        dataset, name, moving_id(f, generation), size);
        }
        count(STORM_VIEWS_2, rc, name, start);
}

/* The version that was opened is no older than what an update said. */
static void check_generations(
        struct sheaf_dataset *dataset, const uint32_t *moved)
{
        for (uint32_t f = 0; f < STORM_MOVING; f++) {
                uint64_t ordinal;
                char name[16];

                snprintf(name, sizeof(name), "f%u", f);
                if (sheaf_dataset_lookup(dataset, name, &ordinal))
                        wrong("moving/%s is not listed", name);
                if ((uint64_t)sheaf_dataset_size(dataset, ordinal) <
                        moving_size(f, moved[f]))
                        wrong("moving/%s: an acknowledged update is lost",
                                name);
        }
}

static void be_reader(enum storm_role role)
{
        bool moving = role == STORM_VIEWS_2;

        while (next_act()) {
                uint32_t moved[STORM_MOVING];
                struct sheaf_session *session;
                struct sheaf_dataset *dataset;

                for (uint32_t f = 0; f < STORM_MOVING; f++)
                        moved[f] = storm_board->moved[f];
                if (!open_again(role, moving ? "moving" : "still", &session,
                            &dataset))
                        continue;
                if (moving)
                        check_generations(dataset, moved);
                for (uint32_t turns = 1 + soak_pick(&dice, 100);
                        turns && next_act(); turns--) {
                        if (moving)
                                read_moving(dataset);
                        else
                                read_still(dataset, role);
                }
                flow_close(session, dataset);
        }
}

/* ---- mounts ---- */

static int read_range(int fd, uint32_t f)
{
        static uint8_t buf[1 << 19];
        uint64_t size = still_size(f), at = soak_pick(&dice, (uint32_t)size);
        size_t len = 1 + soak_pick(&dice, sizeof(buf));
        ssize_t n = pread(fd, buf, len, (off_t)at);

        if (n < 0)
                return -errno;
        if ((uint64_t)n != SHEAF_MIN(len, size - at))
                return -ENODATA;
        return flow_stamp_check(buf, 1 + f, at, (size_t)n) ? 0 : -EBADMSG;
}

static void be_mount_reader(enum storm_role role)
{
        const char *dir = mounts[role - STORM_MOUNT];
        char path[256];

        while (next_act()) {
                uint32_t f = soak_pick(&dice, STORM_STILL);
                sheaf_autofd int fd = -1;
                double start = flow_now();
                int rc = 0;

                snprintf(path, sizeof(path), "%s/%s", dir, still_name(f));
                fd = open(path, O_RDONLY | O_CLOEXEC);
                if (fd < 0)
                        rc = -errno;
                if (!rc && role == STORM_MOUNT)
                        rc = flow_check(path, 1 + f, still_size(f), 131072);
                for (int i = 0; !rc && role == STORM_MOUNT_2 && i < 5; i++)
                        rc = read_range(fd, f);
                count(role, rc, path, start);
                /* Else the page cache soon answers everything. */
                if (fd >= 0)
                        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        }
}

/* ---- commands ---- */

/* Exit codes that a command may have when its daemon is killed: failed, not
 * reachable, timed out. */
SHEAF_PRINTF(2, 3)
static int command(enum storm_role role, const char *format, ...)
{
        char text[512];
        va_list args;
        int rc;

        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        rc = flow_run("%s", text);
        if (rc && rc != 1 && rc != 3 && rc != 7)
                wrong("%s: exit code %d: %s", text, rc, flow.last.err);
        if (rc)
                storm_board->refused[role]++;
        else
                storm_board->done[role]++;
        if (rc)
                flow_sleep(0.01);
        return rc;
}

static void be_warmer(void)
{
        static const char *const lines[] = {
                "sheaf warmup --quiet still",
                "sheaf warmup --quiet --disk still",
                "sheaf warmup --quiet --disk moving",
                "sheaf warmup --quiet still d1 d2",
                "sheaf warmup --quiet --evict still d3",
                "sheaf warmup --quiet --evict --memory still",
                "sheaf verify --quiet --cache-only still",
        };

        while (next_act())
                command(STORM_WARMUP, "%s",
                        lines[soak_pick(&dice, SHEAF_ARRAY_LEN(lines))]);
}

static void be_updater(void)
{
        uint32_t generation[STORM_MOVING] = { 0 };

        while (next_act()) {
                uint32_t f = soak_pick(&dice, STORM_MOVING);

                if (generation[f] + 1 < GENERATIONS)
                        move_file(f, ++generation[f]);
                if (command(STORM_UPDATE, "sheaf update --quiet moving"))
                        continue;
                for (f = 0; f < STORM_MOVING; f++)
                        storm_board->moved[f] = generation[f];
                flow_sleep(soak_pick(&dice, 300) / 1000.0);
        }
}

static void read_tiny(uint32_t tiny)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        char name[16];

        snprintf(name, sizeof(name), "tiny%u", tiny);
        if (!open_again(STORM_ADD, name, &session, &dataset))
                return;
        for (uint32_t f = 0; f < TINY_FILES; f++) {
                double start = flow_now();
                int rc;

                snprintf(name, sizeof(name), "f%u", f);
                rc = flow_check_view(
                        dataset, name, TINY_IDS + tiny * TINY_FILES + f, 5000);
                count(STORM_ADD, rc, name, start);
        }
        flow_close(session, dataset);
}

static void be_adder(void)
{
        enum {
                UNKNOWN,
                THERE,
                GONE
        } state[STORM_TINY] = { 0 };

        while (next_act()) {
                uint32_t t = soak_pick(&dice, STORM_TINY);
                bool listed;
                char quoted[16];

                if (command(STORM_ADD, "sheaf ls --json"))
                        continue;
                snprintf(quoted, sizeof(quoted), "\"tiny%u\"", t);
                listed = strstr(flow.last.out, quoted);
                if (state[t] == THERE && !listed)
                        wrong("%s was added and is gone", quoted);
                if (state[t] == GONE && listed)
                        wrong("%s was removed and is there", quoted);
                state[t] = UNKNOWN;
                if (listed)
                        read_tiny(t);
                if (listed && !command(STORM_ADD, "sheaf rm --force tiny%u", t))
                        state[t] = GONE;
                if (!listed && !command(STORM_ADD,
                                       "sheaf add --quiet tiny%u %s/tiny%u", t,
                                       flow.base, t))
                        state[t] = THERE;
        }
}

/* ---- all of them ---- */

static void work(enum storm_role role)
{
        if (role < STORM_MOUNT)
                be_reader(role);
        else if (role < STORM_READERS)
                be_mount_reader(role);
        else if (role == STORM_WARMUP)
                be_warmer();
        else if (role == STORM_UPDATE)
                be_updater();
        else
                be_adder();
        _exit(0);
}

void storm_begin(struct soak *soak)
{
        for (enum storm_role role = 0; role < STORM_ROLES; role++) {
                bool other = role == STORM_VIEWS_2 || role == STORM_COPIES_2;

                workers[role] = flow_fork(other ? OTHER_UID : 0, 0);
                cr_assert_geq(workers[role], 0);
                if (workers[role])
                        continue;
                dice = *soak;
                dice.rng ^= (role + 1) * 2654435761u;
                if (!dice.rng)
                        dice.rng = 1;
                work(role);
        }
}

void storm_look(void)
{
        for (enum storm_role role = 0; role < STORM_ROLES; role++) {
                int rc = workers[role] ? flow_wait(workers[role], 0) : -1;

                cr_assert_eq(rc, -1, "worker %d ended with %d", (int)role, rc);
        }
}

void storm_pause(void)
{
        storm_board->pause = true;
        cr_assert(flow_until(120, storm_board->paused == STORM_ROLES),
                "%u of %d workers stand still", storm_board->paused,
                (int)STORM_ROLES);
        storm_look();
}

void storm_go_on(void)
{
        storm_board->pause = false;
        cr_assert(flow_until(30, storm_board->paused == 0));
}

void storm_end(void)
{
        storm_board->stop = true;
        for (enum storm_role role = 0; role < STORM_ROLES; role++) {
                int rc = flow_join(workers[role], 120);

                cr_assert_eq(rc, 0, "worker %d ended with %d", (int)role, rc);
                workers[role] = 0;
        }
        for (int i = 0; i < 2; i++) {
                flow_umount(mounts[i]);
                free((void *)(uintptr_t)mounts[i]);
        }
}

int storm_read_once(uint32_t file)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        int rc = connect_first(&session);

        if (rc)
                return rc;
        rc = sheaf_dataset_open(session, "still", &dataset);
        if (!rc) {
                rc = flow_check_view(
                        dataset, still_name(file), 1 + file, still_size(file));
                sheaf_dataset_close(dataset);
        }
        sheaf_session_free(session);
        return rc;
}

void storm_read_all(void)
{
        for (uint32_t f = 0; f < STORM_STILL; f++) {
                int rc = storm_read_once(f);

                cr_assert_eq(rc, 0, "%s: %s: %s", still_name(f), strerror(-rc),
                        sheaf_last_error());
        }
}

uint64_t storm_errors(enum storm_role role, char *text, size_t cap_bytes)
{
        uint64_t sum = 0;
        size_t n = 0;

        *text = '\0';
        for (int e = 0; e < STORM_ERRNOS; e++) {
                uint64_t times = storm_board->errors[role][e];

                sum += times;
                if (times && n < cap_bytes)
                        n += (size_t)snprintf(text + n, cap_bytes - n,
                                "%s%s %llu", n ? ", " : "", strerrorname_np(e),
                                (unsigned long long)times);
        }
        return sum;
}
