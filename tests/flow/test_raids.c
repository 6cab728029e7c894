/* SPDX-License-Identifier: Apache-2.0 */
/* Raids on jobs: binds, epochs, subsets and restores by hand, as fast as they
 * go, full of lies. Beside each an honest job of another user goes on, each
 * sample of each epoch once. */
#include "tests/flow/hostile.h"

#include "proto/digest.h"
#include "proto/subset.h"

#include <math.h>
#include <stdatomic.h>
#include <sys/mman.h>

#define SAMPLES (HOSTILE_FILES + 1) /* the large one too */
#define BYTES   ((SAMPLES + 7) / 8)
#define PEERS   4

/* ---- the honest job ---- */

static struct progress {
        atomic_uint epochs;
        atomic_bool stop;
} * progress;

static pid_t trainer;

static int one_epoch(struct sheaf_job *job, uint64_t epoch)
{
        uint64_t had[SAMPLES], again[SAMPLES];
        uint32_t slots[SAMPLES], seen = 0;
        int rc = 0;

        for (uint32_t i = 0; i < SAMPLES; i++)
                slots[i] = i;
        for (uint32_t i = 0; i < SAMPLES && !rc; i += 3)
                rc = sheaf_job_bind(job, epoch, slots + i,
                        SHEAF_MIN(3u, SAMPLES - i), 0, had + i);
        if (!rc)
                rc = sheaf_job_bind(job, epoch, slots, SAMPLES, 0, again);
        if (rc)
                return rc;
        for (uint32_t i = 0; i < SAMPLES; i++) {
                if (had[i] >= SAMPLES || seen >> had[i] & 1)
                        return -EILSEQ;
                seen |= 1u << had[i];
        }
        return memcmp(had, again, sizeof(had)) ? -EUCLEAN : 0;
}

static void train(void)
{
        struct sheaf_job_options options = { .name = "honest" };
        struct sheaf_session *session;
        struct sheaf_dataset *ds;
        struct sheaf_job *job = NULL;
        int rc = flow_open("data", &session, &ds);

        if (!rc)
                rc = sheaf_job_open(ds, &options, &job);
        for (uint64_t i = 0; !rc && !atomic_load(&progress->stop); i++) {
                rc = one_epoch(job, i);
                atomic_fetch_add(&progress->epochs, 1);
        }
        if (rc)
                fprintf(stderr, "honest job: %s: %s\n", strerror(-rc),
                        sheaf_last_error());
        _exit(-rc);
}

static void begin(void)
{
        hostile_begin();
        progress = mmap(NULL, sizeof(*progress), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        cr_assert_neq(progress, MAP_FAILED);
        trainer = flow_fork(1002, 0);
        cr_assert(trainer >= 0);
        if (!trainer)
                train();
        cr_assert(flow_until(30, atomic_load(&progress->epochs) > 0));
}

TestSuite(raids, .init = begin, .fini = flow_fini, .timeout = 150);

/* It went on after the raid too. */
static void end(const char *test)
{
        unsigned int epochs = atomic_load(&progress->epochs);
        int rc = -1;

        cr_assert(flow_until(40, atomic_load(&progress->epochs) > epochs + 1 ||
                                         (rc = flow_wait(trainer, 0)) >= 0),
                "the honest job came to a stop");
        atomic_store(&progress->stop, true);
        if (rc < 0)
                rc = flow_join(trainer, 60);
        cr_assert_eq(rc, 0, "the honest job failed: %s", strerror(rc));
        cr_assert(flow_until(20, flow_stat("jobs.live") == 0));
        munmap(progress, sizeof(*progress));
        hostile_end_as(test, "");
}

/* Runs @raid as another user until it exits. At least @refused of what it asks
 * makes no sense. */
static void by_stranger(
        const char *test, void (*raid)(void), unsigned int refused)
{
        pid_t pid = hostile_fork(HOSTILE_STRANGER);

        cr_assert(pid >= 0);
        if (!pid) {
                raid();
                _exit(0);
        }
        hostile_join(pid, 90);
        cr_expect_geq(flow_stat("clients.refused_requests"), refused);
        end(test);
}

/* ---- binds by hand ---- */

static struct peer greet_quietly(struct opened *ret_opened)
{
        struct peer p = { .sock = sheaf_wire_connect(flow.socket) };

        HOSTILE_NEED(p.sock >= 0 && hello(&p) == 0, 80);
        HOSTILE_NEED(!open_quietly(&p, "data", ret_opened), 81);
        return p;
}

static Sheaf__Bind bind_of(uint32_t handle, const char *job)
{
        Sheaf__Bind bind = SHEAF__BIND__INIT;

        bind.handle = handle;
        bind.job = (char *)job;
        return bind;
}

static int call_bind(struct peer *p, Sheaf__Bind *bind, int fd)
{
        return call(
                p, envelope(p, SHEAF__ENVELOPE__BODY_BIND, bind), &fd, fd >= 0);
}

static ProtobufCBinaryData bytes_of(struct sheaf_digest *digest)
{
        return (ProtobufCBinaryData){ SHEAF_DIGEST_BYTES, digest->bytes };
}

static void drain(struct peer *p)
{
        struct sheaf_wire_msg msg;

        while (sheaf_wire_recv(p->sock, &msg) == 1)
                sheaf_wire_msg_free(&msg);
}

/* ---- numbers ---- */

static void absurd_names(struct peer *p, uint32_t handle)
{
        static char longest[60001];
        Sheaf__ListJobs list = SHEAF__LIST_JOBS__INIT;
        Sheaf__RemoveJob rm = SHEAF__REMOVE_JOB__INIT;
        char *names[] = { longest, longest + 60000 - 129, (char *)"",
                (char *)"nobody's" };
        Sheaf__Bind bind;

        memset(longest, 'x', sizeof(longest) - 1);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(names); i++) {
                rm.name = (char *)"";
                rm.job = names[i];
                cr_expect_lt(
                        call(p,
                                envelope(p, SHEAF__ENVELOPE__BODY_REMOVE_JOB,
                                        &rm),
                                NULL, 0),
                        0, "remove %zu", i);
                rm.name = names[i];
                rm.job = (char *)"nobody's";
                cr_expect_lt(
                        call(p,
                                envelope(p, SHEAF__ENVELOPE__BODY_REMOVE_JOB,
                                        &rm),
                                NULL, 0),
                        0, "remove of %zu", i);
                if (i == 2)
                        continue; /* any */
                list.job = names[i];
                cr_expect_lt(
                        call(p,
                                envelope(p, SHEAF__ENVELOPE__BODY_LIST_JOBS,
                                        &list),
                                NULL, 0),
                        0, "list %zu", i);
        }
        for (size_t i = 0; i < 3; i++) {
                bind = bind_of(handle, names[i]);
                cr_expect_eq(call_bind(p, &bind, -1), -EINVAL, "bind %zu", i);
        }
}

static void absurd_fields(struct peer *p, uint32_t handle)
{
        static uint32_t slots[4097];
        uint32_t beyond[] = { SAMPLES, UINT32_MAX };
        Sheaf__Restore restore = SHEAF__RESTORE__INIT;
        Sheaf__Bind bad[16];
        size_t n = 0;

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(bad); i++) {
                bad[i] = bind_of(handle, "absurd");
                bad[i].slot = slots;
                bad[i].n_slot = 1;
        }
        bad[n++].handle = UINT32_MAX;
        bad[n++].handle = 1023;
        bad[n++].order = 3;
        bad[n++].order = UINT32_MAX;
        bad[n++].order = 1; /* a window of none */
        bad[n++].ahead = UINT32_MAX;
        bad[n++].epoch = UINT64_C(1) << 22;
        bad[n++].epoch = UINT64_MAX;
        bad[n++].n_slot = SHEAF_ARRAY_LEN(slots);
        bad[n++].rate = NAN;
        bad[n++].rate = -INFINITY;
        bad[n++].mode = 4;
        bad[n].slot = beyond;
        bad[n++].n_slot = 2;
        bad[n++].slot = beyond + 1;
        bad[n].subset.data = (uint8_t *)slots;
        bad[n++].subset.len = SHEAF_DIGEST_BYTES + 1;
        bad[n++].restore = &restore; /* and slots */
        cr_assert_eq(n, SHEAF_ARRAY_LEN(bad));
        for (size_t i = 0; i < n; i++)
                cr_expect_lt(call_bind(p, &bad[i], -1), 0, "bind %zu", i);
}

Test(raids, absurd_numbers)
{
        struct peer p = greet();
        struct opened opened;

        cr_assert_eq(open_quietly(&p, "data", &opened), 0);
        absurd_names(&p, opened.handle);
        absurd_fields(&p, opened.handle);
        hostile_refused(p.errors);
        cr_expect_geq(p.errors, 30);
        close_opened(&opened);
        close(p.sock);
        end(__func__);
}

/* ---- grants ---- */

static size_t count_jobs(struct peer *p)
{
        Sheaf__ListJobs list = SHEAF__LIST_JOBS__INIT;
        Sheaf__Envelope env =
                envelope(p, SHEAF__ENVELOPE__BODY_LIST_JOBS, &list);
        size_t count = 0;
        struct sheaf_wire_msg msg;
        bool more = true;

        cr_assert_eq(sheaf_wire_send(p->sock, &env, NULL, 0), 0);
        while (more) {
                cr_assert_eq(sheaf_wire_recv(p->sock, &msg), 1);
                if (msg.env->id == env.id) {
                        more = msg.env->more;
                        count += more;
                        cr_expect_neq(msg.env->body_case,
                                SHEAF__ENVELOPE__BODY_ERROR);
                }
                sheaf_wire_msg_free(&msg);
        }
        return count;
}

/* -errno of a request without names through a grant. */
static int ask(struct peer *p, Sheaf__Envelope__BodyCase body)
{
        Sheaf__ListJobs list = SHEAF__LIST_JOBS__INIT;
        Sheaf__RemoveJob rm = SHEAF__REMOVE_JOB__INIT;

        rm.job = (char *)"mine";
        return call(p,
                envelope(p, body,
                        body == SHEAF__ENVELOPE__BODY_REMOVE_JOB
                                ? (void *)&rm
                                : (void *)&list),
                NULL, 0);
}

/* Its jobs are of its dataset alone; it tells and forgets none. */
Test(raids, a_grant_binds_its_dataset)
{
        struct opened opened, other;
        uint32_t slot = 0;
        Sheaf__Bind bind;
        struct peer p, q = greet();

        flow_ok("sheaf add private %s", flow.origin);
        mkdir(flow_path("grant"), 0755);
        flow_ok("sheaf grant data --dir %s", flow_path("grant"));
        cr_assert_eq(open_quietly(&q, "private", &other), 0);
        bind = bind_of(other.handle, "private");
        bind.slot = &slot;
        bind.n_slot = 1;
        cr_assert_eq(call_bind(&q, &bind, -1), 0);
        p = dial(flow_path("grant/sheafd.sock"));
        cr_assert_eq(hello(&p), 0);
        cr_assert_eq(open_quietly(&p, "data", &opened), 0);
        bind.job = (char *)"mine";
        for (uint32_t handle = 0; handle < 1100; handle++) {
                bind.handle = handle;
                cr_expect_eq(call_bind(&p, &bind, -1) == 0,
                        handle == opened.handle, "handle %u", handle);
        }
        /* root sees the honest one too */
        cr_expect_eq(count_jobs(&q), 3);
        cr_expect_eq(ask(&p, SHEAF__ENVELOPE__BODY_LIST_JOBS), -EPERM);
        cr_expect_eq(ask(&p, SHEAF__ENVELOPE__BODY_REMOVE_JOB), -EPERM);
        close(p.sock);
        cr_expect_eq(count_jobs(&q), 3);
        close_opened(&opened);
        close_opened(&other);
        close(q.sock);
        flow_ok("sheaf rm --force private");
        end(__func__);
}

/* ---- floods ---- */

/* As fast as the sockets take them: jobs of many names, all orders and modes,
 * slots in and out of the epoch. */
static void flood_binds(void)
{
        struct peer p[PEERS];
        struct opened opened[PEERS];
        unsigned long sent = 0;

        for (size_t i = 0; i < PEERS; i++) {
                p[i] = greet_quietly(&opened[i]);
                fcntl(p[i].sock, F_SETFL, O_NONBLOCK);
        }
        for (; !hostile_long_enough() || sent < 3000; sent++) {
                struct peer *q = &p[sent % PEERS];
                uint32_t slots[64];
                char name[16];
                Sheaf__Bind bind;
                Sheaf__Envelope env;
                int rc;

                snprintf(name, sizeof(name), "flood-%lu", sent / 7 % 100);
                bind = bind_of(opened[sent % PEERS].handle, name);
                bind.order = (uint32_t)(sent / 7 % 3);
                bind.window = 5;
                bind.mode = (uint32_t)(sent % 5 % 4);
                bind.epoch = sent / 500;
                bind.slot = slots;
                bind.n_slot = sent % 64;
                for (uint32_t i = 0; i < 64; i++)
                        slots[i] = (uint32_t)(sent * 31 + i) %
                                   (sent % 3 ? SAMPLES : SAMPLES + 1);
                env = envelope(q, SHEAF__ENVELOPE__BODY_BIND, &bind);
                rc = sheaf_wire_send(q->sock, &env, NULL, 0);
                HOSTILE_NEED(rc == 0 || rc == -EAGAIN, 1);
                drain(q);
        }
}

Test(raids, binds)
{
        by_stranger(__func__, flood_binds, 1);
}

/* Each epoch once, from both ends, a slot of each: a journal each. */
static void flood_epochs(void)
{
        const uint64_t last = (UINT64_C(1) << 22) - 1;
        struct opened opened;
        struct peer p = greet_quietly(&opened);
        uint32_t slot = SAMPLES - 1;

        for (uint64_t i = 0; !hostile_long_enough() || i < 300; i++) {
                Sheaf__Bind bind = bind_of(opened.handle, "epochs");
                int rc;

                bind.epoch = i % 2 ? last - i : i;
                bind.slot = &slot;
                bind.n_slot = 1;
                rc = call_bind(&p, &bind, -1);
                HOSTILE_NEED(rc == 0 || rc == -ESTALE, 1);
        }
}

Test(raids, epochs)
{
        by_stranger(__func__, flood_epochs, 0);
}

/* What is no sealed bitmap of that name; -1: none at all. The caller's. */
static int lying_bitmap(unsigned int way, struct sheaf_digest *ret_name)
{
        uint8_t bitmap[BYTES] = { 0xff, 0x0f };
        int pair[2], fd;

        sheaf_digest_of(bitmap, sizeof(bitmap), ret_name);
        switch (way % 7) {
        case 0:
                HOSTILE_NEED(!pipe(pair), 70);
                close(pair[1]);
                return pair[0];
        case 1:
                fd = memfd_create("unsealed", MFD_ALLOW_SEALING);
                HOSTILE_NEED(fd >= 0 && write(fd, bitmap, BYTES) == BYTES, 71);
                return fd;
        case 2:
                return sheaf_sealed_new(bitmap, BYTES - 1);
        case 3:
                ret_name->bytes[way % SHEAF_DIGEST_BYTES] ^= 1;
                return sheaf_sealed_new(bitmap, BYTES);
        case 4: /* a file beyond the last */
                bitmap[BYTES - 1] = 0xff;
                sheaf_digest_of(bitmap, sizeof(bitmap), ret_name);
                return sheaf_sealed_new(bitmap, BYTES);
        case 5:
                return open("/proc/self/mem", O_RDWR);
        default:
                HOSTILE_NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 72);
                close(pair[1]);
                return pair[0];
        }
}

static void flood_subsets(void)
{
        struct opened opened;
        struct peer p = greet_quietly(&opened);

        for (unsigned int i = 0; !hostile_long_enough() || i < 300; i++) {
                Sheaf__Bind bind = bind_of(opened.handle, "subset");
                struct sheaf_digest name;
                int fd = lying_bitmap(i, &name), rc;

                HOSTILE_NEED(fd >= 0, 1);
                bind.subset = bytes_of(&name);
                bind.has_subset = true;
                rc = call_bind(&p, &bind, fd);
                HOSTILE_NEED(rc == -EINVAL || rc == -EBUSY, 2);
                close(fd);
        }
}

Test(raids, subsets)
{
        by_stranger(__func__, flood_subsets, 150);
        /* Of hundreds: at most one in ten seconds of a test's longest time. */
        flow_ok("test $(grep -c 'job not begun' %s) -le 30", flow.log);
        flow_ok("test $(grep -c 'request refused' %s) -le 30", flow.log);
}

/* Bitmaps that are no bitmaps, of too few and of too many samples, for slots
 * beyond the end, under any seed: none of them is a run. */
static void flood_restores(void)
{
        struct opened opened;
        struct peer p = greet_quietly(&opened);

        for (unsigned int i = 0; !hostile_long_enough() || i < 300; i++) {
                Sheaf__Bind bind = bind_of(opened.handle, "restore");
                Sheaf__Restore restore = SHEAF__RESTORE__INIT;
                uint8_t bitmap[BYTES] = { 0xff, 0x0f };
                struct sheaf_digest name;
                int fd;

                if (i % 2) {
                        sheaf_digest_of(bitmap, BYTES, &name);
                        fd = sheaf_sealed_new(bitmap, BYTES);
                } else {
                        fd = lying_bitmap(i / 2, &name);
                }
                /* twelve are set */
                restore.yielded = i % 3 ? i % 12 : UINT32_MAX - i;
                restore.seed = i * UINT64_C(0x9e3779b97f4a7c15);
                restore.stream = i;
                restore.make = true;
                restore.digest = bytes_of(&name);
                bind.restore = &restore;
                bind.epoch = i % 50;
                HOSTILE_NEED(fd >= 0, 1);
                HOSTILE_NEED(call_bind(&p, &bind, fd) < 0, 2);
                close(fd);
        }
}

Test(raids, restores)
{
        by_stranger(__func__, flood_restores, 150);
}
