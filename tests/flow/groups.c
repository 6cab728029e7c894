/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of groups. */
#include "tests/flow/groups.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

struct groups_board *board;

void groups_init(void)
{
        board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (board == MAP_FAILED)
                abort();
}

void groups_fini(void)
{
        munmap(board, sizeof(*board));
}

struct groups_spec groups_spec(uint32_t member)
{
        return (struct groups_spec){ .dataset = "data",
                .group = "g",
                .member = member,
                .batches = 40,
                .epochs = 1,
                .ahead = 8,
                .lease_ms = 20000,
                .patience_ms = 20000,
                .members = 1,
                .world = 1,
                .transform = "t1",
                .bytes = 20000,
                .stop_at = UINT32_MAX,
                .fail_at = UINT32_MAX,
                .schema = "f32[8,3]" };
}

int groups_file(uint64_t batch, uint64_t bytes, int seals)
{
        uint8_t *buf = malloc(bytes);
        int fd = memfd_create("batch", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        if (!buf || fd < 0)
                abort();
        flow_stamp_bytes(buf, (uint32_t)batch, 0, bytes);
        if (pwrite(fd, buf, bytes, 0) != (ssize_t)bytes ||
                fcntl(fd, F_ADD_SEALS, seals))
                abort();
        free(buf);
        return fd;
}

bool groups_check(int fd, uint64_t batch, uint64_t bytes)
{
        struct stat st;
        void *map;
        bool good;

        if (fstat(fd, &st) || (uint64_t)st.st_size != bytes ||
                (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY)
                return false;
        map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
                return false;
        good = flow_stamp_check(map, (uint32_t)batch, 0, bytes);
        munmap(map, bytes);
        return good;
}

int groups_open(struct sheaf_dataset *dataset, const struct groups_spec *spec,
        bool worker, struct sheaf_group **ret_group)
{
        struct sheaf_group_trait traits[] = { { "dataset", spec->dataset },
                { "transform", spec->transform } };
        struct sheaf_group_options options = { .name = spec->group,
                .traits = traits,
                .trait_count = 2,
                .worker = worker,
                .batches = spec->batches,
                .ahead = spec->ahead,
                .lease_ms = spec->lease_ms,
                .patience_ms = spec->patience_ms,
                .rank = spec->rank,
                .world = spec->world,
                .members = spec->members };

        memset(options.member, (int)spec->member + 1, sizeof(options.member));
        return sheaf_group_open(dataset, &options, NULL, ret_group);
}

static void stop_here(void)
{
        atomic_fetch_add(&board->holding, 1);
        while (!atomic_load(&board->go_on))
                flow_sleep(0.005);
        atomic_fetch_sub(&board->holding, 1);
}

static _Noreturn void die(const char *what, int rc)
{
        fprintf(stderr, "%s: %s (%d)\n", what, sheaf_last_error(), rc);
        _exit(1);
}

static void open_all(const struct groups_spec *spec, bool worker,
        struct sheaf_session **ret_session, struct sheaf_dataset **ret_dataset,
        struct sheaf_group **ret_group)
{
        int rc;

        /* A first connection waits for no daemon. */
        if (!flow_until(30,
                    flow_open(spec->dataset, ret_session, ret_dataset) == 0))
                die("open", 0);
        rc = groups_open(*ret_dataset, spec, worker, ret_group);
        if (rc)
                die("join", rc);
}

/* ---- workers ---- */

static int prepare(
        struct sheaf_group *group, const struct groups_spec *spec, uint64_t b)
{
        int fd, rc;

        if (b == spec->stop_at)
                stop_here();
        if (b == spec->fail_at)
                return sheaf_group_fail(group, b, "Traceback: no such sample");
        if (spec->slow_ms)
                flow_sleep(spec->slow_ms / 1e3);
        fd = groups_file(b, spec->bytes, GROUPS_SEALS);
        rc = sheaf_group_offer(group, b, fd, spec->schema);
        close(fd);
        if (!rc && b < GROUPS_BATCHES)
                atomic_fetch_add(&board->prepared[b], 1);
        return rc == -ESTALE ? 0 : rc;
}

_Noreturn void groups_work(const struct groups_spec *spec)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_group *group;
        int rc;

        open_all(spec, true, &session, &dataset, &group);
        for (;;) {
                uint64_t batch;

                rc = sheaf_group_lease(group, 1000, &batch);
                if (rc == -ENOENT)
                        break;
                if (rc == -EAGAIN)
                        continue;
                if (!rc)
                        rc = prepare(group, spec, batch);
                if (rc)
                        die("worker", rc);
        }
        sheaf_group_close(group);
        flow_close(session, dataset);
        _exit(0);
}

pid_t groups_worker(const struct groups_spec *spec)
{
        pid_t pid = flow_fork(spec->uid, 0);

        if (!pid)
                groups_work(spec);
        return pid;
}

/* ---- members ---- */

/* Takes @batch, waiting for it as long as it takes. */
static int take(
        struct sheaf_group *group, const struct groups_spec *spec, uint64_t b)
{
        enum sheaf_group_state state;
        int fd = -1, rc;

        for (;;) {
                rc = sheaf_group_take(
                        group, b, 1000, spec->prepares, &state, &fd);
                if (rc)
                        return rc;
                atomic_store(&board->waits_for[spec->member], state);
                if (state == SHEAF_GROUP_PREPARE) {
                        rc = prepare(group, spec, b);
                        if (rc)
                                return rc;
                }
                if (state == SHEAF_GROUP_TAKEN || state == SHEAF_GROUP_FAILED)
                        break;
        }
        if (state == SHEAF_GROUP_FAILED) {
                atomic_fetch_add(&board->failed[spec->member][b], 1);
                return 0;
        }
        if (!groups_check(fd, b, spec->bytes))
                return -EBADMSG;
        close(fd);
        atomic_fetch_add(&board->taken[spec->member][b], 1);
        return 0;
}

_Noreturn void groups_train(const struct groups_spec *spec)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        struct sheaf_group *group;
        uint32_t end = spec->batches * spec->epochs;
        int rc = 0;

        open_all(spec, false, &session, &dataset, &group);
        for (uint32_t b = spec->first; b < end && !rc; b++) {
                atomic_store(&board->next[spec->member], b);
                if (b == spec->first || b % spec->batches == 0)
                        rc = sheaf_group_begin(group, b);
                if (rc || b % spec->batches % spec->world != spec->rank)
                        continue;
                if (b == spec->stop_at)
                        stop_here();
                rc = take(group, spec, b);
                if (spec->slow_ms)
                        flow_sleep(spec->slow_ms / 1e3);
        }
        if (rc)
                die("member", rc);
        atomic_store(&board->next[spec->member], end);
        sheaf_group_close(group);
        flow_close(session, dataset);
        _exit(0);
}

pid_t groups_member(const struct groups_spec *spec)
{
        pid_t pid = flow_fork(spec->uid, 0);

        if (!pid)
                groups_train(spec);
        return pid;
}

/* ---- of the test itself ---- */

void groups_start(
        struct groups_jobs *jobs, struct groups_spec spec, uint32_t count)
{
        jobs->count = spec.members = count;
        for (spec.member = 0; spec.member < count; spec.member++) {
                jobs->member[spec.member] = groups_member(&spec);
                jobs->worker[spec.member] = groups_worker(&spec);
        }
}

void groups_ends_well(pid_t pid)
{
        cr_assert_eq(flow_join(pid, GROUPS_LIMIT_S), 0);
}

void groups_end_well(const struct groups_jobs *jobs)
{
        for (uint32_t m = 0; m < jobs->count; m++)
                groups_ends_well(jobs->member[m]);
        for (uint32_t m = 0; m < jobs->count; m++)
                groups_ends_well(jobs->worker[m]);
}

void groups_wait_holding(uint32_t count)
{
        cr_assert(flow_until(
                GROUPS_LIMIT_S, atomic_load(&board->holding) >= count));
}

void groups_took(uint32_t m, uint32_t first, uint32_t end)
{
        for (uint32_t b = 0; b < GROUPS_BATCHES; b++)
                cr_assert_eq(board->taken[m][b], b >= first && b < end,
                        "member %u got batch %u %u times", m, b,
                        board->taken[m][b]);
}

void groups_nothing_left(void)
{
        cr_assert(flow_until(GROUPS_LIMIT_S, flow_stat("prep.groups") == 0));
        cr_assert_eq(flow_stat("prep.staged"), 0);
        cr_assert_eq(flow_stat("prep.staged_bytes"), 0);
}
