/* SPDX-License-Identifier: Apache-2.0 */
/* Attacks on what a client gets into its hands: memory, descriptors, the
 * hazard array, copies; by another user and by root of a user namespace.
 * Beside each an honest reader goes on. */
#include "tests/flow/hostile.h"

#include <criterion/parameterized.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/pidfd.h>
#include <sys/ptrace.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>

TestSuite(attacks, .init = hostile_begin, .fini = flow_fini, .timeout = 120);

#define WINDOW 65536 /* bytes of each mapping that are compared */

typedef void attack(void);

struct by {
        enum hostile_who who;
};

ParameterizedTestParameters(attacks, memory)
{
        static struct by by[] = { { HOSTILE_STRANGER },
                { HOSTILE_NAMESPACE_ROOT } };

        return cr_make_param_array(struct by, by, SHEAF_ARRAY_LEN(by));
}

/* Runs @work as an attacker until it exits. */
static void by_attacker(const char *test, enum hostile_who who, attack *work)
{
        pid_t pid = hostile_fork(who);

        cr_assert(pid >= 0);
        if (!pid) {
                work();
                _exit(0);
        }
        hostile_join(pid, 40);
        hostile_end_as(
                test, who == HOSTILE_NAMESPACE_ROOT ? "@namespace_root" : "");
}

static struct peer greet_quietly(void)
{
        struct peer p = { .sock = sheaf_wire_connect(flow.socket) };

        HOSTILE_NEED(p.sock >= 0 && hello(&p) == 0, 80);
        return p;
}

static struct opened open_or_exit(struct peer *p)
{
        struct opened opened;

        HOSTILE_NEED(open_quietly(p, "data", &opened) == 0, 81);
        HOSTILE_NEED(opened.count >= 6, 82);
        return opened;
}

/* ---- memory: every way to write to what is for reading ---- */

/* What the daemon gave: not to be written by anybody but the daemon. */
struct target {
        int fd;
        uint64_t bytes;
        const uint8_t *map;
        uint8_t before[WINDOW];
};

static bool target_new(int fd, struct target *target)
{
        struct stat st;
        void *map;

        if (fstat(fd, &st) || st.st_size < 4096)
                return false; /* a lock file */
        map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        HOSTILE_NEED(map != MAP_FAILED, 1);
        target->fd = fd;
        target->bytes = (uint64_t)st.st_size;
        target->map = map;
        memcpy(target->before, map, SHEAF_MIN(target->bytes, WINDOW));
        return true;
}

static int reopened(int fd, int flags)
{
        char path[32];

        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        return open(path, flags | O_CLOEXEC);
}

static void by_mapping(const struct target *t)
{
        size_t page = 4096;

        HOSTILE_NEED(mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, t->fd,
                             0) == MAP_FAILED,
                2);
        HOSTILE_NEED(mprotect((void *)t->map, page, PROT_READ | PROT_WRITE), 3);
        /* These succeed on no sealed memory; what counts is the bytes. */
        (void)!madvise((void *)t->map, page, MADV_REMOVE);
        (void)!madvise((void *)t->map, page, MADV_DONTNEED);
        (void)!madvise((void *)t->map, page, MADV_FREE);
        (void)!madvise((void *)t->map, page, 23 /* MADV_POPULATE_WRITE */);
}

static void by_file(int fd)
{
        static const char noise[4096] = "noise";
        struct iovec iov = { .iov_base = (void *)noise,
                .iov_len = sizeof(noise) };
        int pipe_fd[2];

        HOSTILE_NEED(pwrite(fd, noise, sizeof(noise), 0) < 0, 5);
        HOSTILE_NEED(pwritev2(fd, &iov, 1, 0, RWF_DSYNC) < 0, 6);
        HOSTILE_NEED(write(fd, noise, sizeof(noise)) < 0, 7);
        HOSTILE_NEED(ftruncate(fd, 0) && ftruncate(fd, 1L << 40), 8);
        for (int mode = 0; mode < 0x80; mode++)
                HOSTILE_NEED(mode == 0 || mode == FALLOC_FL_KEEP_SIZE ||
                                     fallocate(fd, mode, 0, 4096),
                        9);
        HOSTILE_NEED(fallocate(fd, 0, 1L << 40, 4096), 10);
        HOSTILE_NEED(!pipe(pipe_fd), 11);
        HOSTILE_NEED(vmsplice(pipe_fd[1], &iov, 1, 0) > 0, 12);
        HOSTILE_NEED(splice(pipe_fd[0], NULL, fd, NULL, 4096, 0) < 0, 13);
        HOSTILE_NEED(sendfile(fd, reopened(fd, O_RDONLY), NULL, 4096) < 0, 14);
        HOSTILE_NEED(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0, 15);
        close(pipe_fd[0]);
        close(pipe_fd[1]);
}

static void by_reopening(const struct target *t)
{
        static const int flags[] = { O_RDWR, O_WRONLY, O_RDWR | O_TRUNC,
                O_WRONLY | O_APPEND };

        (void)!fchmod(t->fd, 0777);
        (void)!fchown(t->fd, getuid(), getgid());
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(flags); i++) {
                int fd = reopened(t->fd, flags[i]);

                if (fd < 0)
                        continue;
                HOSTILE_NEED(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, fd, 0) ==
                                     MAP_FAILED,
                        16);
                by_file(fd);
                close(fd);
        }
}

/* The kernel writes on our behalf: read() into the mapping, a buffer that is
 * registered with io_uring, a page of userfaultfd. */
static void by_kernel(const struct target *t)
{
        struct io_uring_params params = { 0 };
        struct iovec iov = { .iov_base = (void *)t->map, .iov_len = 4096 };
        int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC), ring, uffd;

        HOSTILE_NEED(zero >= 0 && read(zero, (void *)t->map, 4096) < 0, 17);
        HOSTILE_NEED(readv(zero, &iov, 1) < 0, 18);
        HOSTILE_NEED(process_vm_writev(getpid(), &iov, 1, &iov, 1, 0) < 0, 19);
        close(zero);
        ring = (int)syscall(SYS_io_uring_setup, 4, &params);
        if (ring >= 0) {
                HOSTILE_NEED(syscall(SYS_io_uring_register, ring,
                                     IORING_REGISTER_BUFFERS, &iov, 1) < 0,
                        20);
                close(ring);
        }
        uffd = (int)syscall(
                SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
        if (uffd >= 0) {
                struct uffdio_api api = { .api = UFFD_API };
                struct uffdio_register reg = { .range = { (uintptr_t)t->map,
                                                       4096 },
                        .mode = UFFDIO_REGISTER_MODE_MISSING };

                HOSTILE_NEED(!ioctl(uffd, UFFDIO_API, &api), 21);
                HOSTILE_NEED(ioctl(uffd, UFFDIO_REGISTER, &reg) < 0, 22);
                close(uffd);
        }
}

/* One's own memory as /proc/self/mem shows it, which ignores protections of
 * private mappings only. */
static void by_proc(const struct target *t)
{
        int fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);

        HOSTILE_NEED(fd >= 0, 23);
        HOSTILE_NEED(pwrite(fd, "noise", 5, (off_t)(uintptr_t)t->map) < 0, 24);
        close(fd);
}

static void into_the_daemon(void)
{
        char path[64], byte = 0;
        struct iovec own = { &byte, 1 }, its = { (void *)0x400000, 1 };
        int pidfd = pidfd_open(flow.daemon, 0);

        HOSTILE_NEED(
                process_vm_writev(flow.daemon, &own, 1, &its, 1, 0) < 0, 30);
        HOSTILE_NEED(
                process_vm_readv(flow.daemon, &own, 1, &its, 1, 0) < 0, 31);
        HOSTILE_NEED(ptrace(PTRACE_SEIZE, flow.daemon, NULL, NULL) < 0, 32);
        HOSTILE_NEED(kill(flow.daemon, SIGSTOP) < 0, 33);
        for (int fd = 0; fd < 40; fd++) {
                HOSTILE_NEED(pidfd < 0 || pidfd_getfd(pidfd, fd, 0) < 0, 34);
                snprintf(path, sizeof(path), "/proc/%d/fd/%d", flow.daemon, fd);
                HOSTILE_NEED(open(path, O_RDWR) < 0, 35);
        }
        snprintf(path, sizeof(path), "/proc/%d/mem", flow.daemon);
        HOSTILE_NEED(open(path, O_RDWR) < 0, 36);
        HOSTILE_NEED(open(flow.cache, O_RDONLY | O_DIRECTORY) < 0, 37);
        if (pidfd >= 0)
                close(pidfd);
}

static void write_everything(void)
{
        struct peer p = greet_quietly();
        struct opened opened = open_or_exit(&p);
        static struct target targets[PEER_FDS_MAX];
        size_t n = 0;

        /* All but the hazard array and the meter, which are ours to write. */
        for (size_t i = 1; i + 1 < opened.count; i++)
                n += target_new(opened.fds[i], &targets[n]);
        HOSTILE_NEED(n >= 3, 40);
        do {
                for (size_t i = 0; i < n; i++) {
                        by_mapping(&targets[i]);
                        by_file(targets[i].fd);
                        by_reopening(&targets[i]);
                        by_kernel(&targets[i]);
                        by_proc(&targets[i]);
                        HOSTILE_NEED(
                                !memcmp(targets[i].before, targets[i].map,
                                        SHEAF_MIN(targets[i].bytes, WINDOW)),
                                41);
                }
                into_the_daemon();
        } while (!hostile_long_enough());
}

ParameterizedTest(struct by *by, attacks, memory)
{
        by_attacker(__func__, by->who, write_everything);
}

/* ---- the hazard array ---- */

static struct sheaf_hazard *hazard_of(const struct opened *opened)
{
        struct sheaf_hazard *hazard = mmap(NULL, sizeof(*hazard),
                PROT_READ | PROT_WRITE, MAP_SHARED, opened->fds[0], 0);

        HOSTILE_NEED(hazard != MAP_FAILED, 50);
        return hazard;
}

/* Words that are live, dead, of nowhere; marks that go up and down; a header
 * of noise: while the daemon scans. */
static void lie(void)
{
        struct peer p = greet_quietly();
        struct opened opened = open_or_exit(&p);
        struct sheaf_hazard *hazard = hazard_of(&opened);
        uint64_t x = 88172645463325252u;

        HOSTILE_NEED(ftruncate(opened.fds[0], 0) < 0, 51);
        HOSTILE_NEED(ftruncate(opened.fds[0], 1 << 30) < 0, 52);
        HOSTILE_NEED(ftruncate(reopened(opened.fds[0], O_RDWR), 0) < 0, 53);
        HOSTILE_NEED(fcntl(opened.fds[0], F_ADD_SEALS, F_SEAL_WRITE) < 0, 54);
        while (!hostile_long_enough()) {
                for (size_t i = 0; i < SHEAF_HAZARD_SLOTS; i++) {
                        x ^= x << 13;
                        x ^= x >> 7;
                        x ^= x << 17;
                        atomic_store(
                                &hazard->slot[i], i % 3 ? x : x & 0xf00000ffff);
                }
                atomic_store(&hazard->high_water, x);
                hazard->magic = x;
                hazard->slot_count = (uint32_t)x;
                (void)!fallocate(opened.fds[0],
                        FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096);
        }
}

ParameterizedTestParameters(attacks, hazard)
{
        static struct by by[] = { { HOSTILE_STRANGER },
                { HOSTILE_NAMESPACE_ROOT } };

        return cr_make_param_array(struct by, by, SHEAF_ARRAY_LEN(by));
}

ParameterizedTest(struct by *by, attacks, hazard)
{
        pid_t pid;

        pid = hostile_fork(by->who);
        if (!pid) {
                lie();
                _exit(0);
        }
        while (!hostile_long_enough())
                flow_ok("sheaf warmup --evict data");
        flow_ok("sheaf status");
        hostile_join(pid, 20);
        hostile_end_as(__func__, by->who ? "@namespace_root" : "");
}

#define PINNERS 8
#define MORE    7 /* files of another dataset: with "data", more than fits */

struct pinner {
        struct peer peer;
        struct sheaf_hazard *hazard;
        const _Atomic uint64_t *words[2];
        size_t counts[2];
};

/* With @greedy it asks for all that there is to grant. */
static struct pinner pinner_new(bool greedy)
{
        static const char *const names[] = { "data", "more" };
        Sheaf__PinGrant grant = SHEAF__PIN_GRANT__INIT;
        struct pinner p = { .peer = greet_quietly() };

        for (size_t i = 0; i < 2; i++) {
                struct opened opened;
                const uint8_t *map;
                struct stat st;

                HOSTILE_NEED(!open_quietly(&p.peer, names[i], &opened), 60);
                if (!p.hazard)
                        p.hazard = hazard_of(&opened);
                HOSTILE_NEED(!fstat(opened.fds[opened.count - 2], &st), 61);
                map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED,
                        opened.fds[opened.count - 2], 0);
                HOSTILE_NEED(map != MAP_FAILED, 62);
                p.words[i] =
                        (const _Atomic uint64_t *)(map +
                                                   SHEAF_TABLE_WORDS_OFFSET);
                p.counts[i] =
                        ((const struct sheaf_table_header *)map)->word_count;
        }
        if (!greedy)
                return p;
        grant.arena = 1;
        grant.bytes = UINT64_MAX;
        HOSTILE_NEED(!call(&p.peer,
                             envelope(&p.peer, SHEAF__ENVELOPE__BODY_PIN_GRANT,
                                     &grant),
                             NULL, 0),
                63);
        return p;
}

/* Holds whatever is resident, far beyond any grant. */
static void pin_resident(const struct pinner *p)
{
        size_t slot = 0;

        for (size_t d = 0; d < 2; d++)
                for (size_t k = 0; k < p->counts[d]; k++, slot++) {
                        uint64_t word = atomic_load(&p->words[d][k]);

                        if (word)
                                atomic_store(&p->hazard->slot[slot], word);
                }
        atomic_store(&p->hazard->high_water, slot);
}

static void pin_everything(int ready_fd)
{
        struct pinner p[PINNERS];

        for (size_t i = 0; i < PINNERS; i++)
                p[i] = pinner_new(true);
        HOSTILE_NEED(write(ready_fd, "", 1) == 1, 64);
        for (;;)
                for (size_t i = 0; i < PINNERS; i++) {
                        pin_resident(&p[i]);
                        sched_yield();
                }
}

static void check_more(void)
{
        struct sheaf_session *session;
        struct sheaf_dataset *ds;
        char path[16];

        cr_assert_eq(flow_open("more", &session, &ds), 0);
        for (uint32_t i = 0; i < MORE; i++) {
                snprintf(path, sizeof(path), "g%u", i);
                cr_assert_eq(flow_check_view(ds, path, 900 + i, HOSTILE_LARGE),
                        0, "%s", sheaf_last_error());
        }
        flow_close(session, ds);
}

static void add_more(void)
{
        for (uint32_t i = 0; i < MORE; i++)
                flow_file(900 + i, HOSTILE_LARGE, "../more/g%u", i);
        flow_ok("sheaf add --share all --force more %s", flow_path("more"));
}

Test(attacks, pins_beyond_any_budget)
{
        int pipe_fd[2];
        char byte;
        pid_t pid;

        add_more();
        cr_assert(!pipe2(pipe_fd, O_CLOEXEC));
        pid = hostile_fork(HOSTILE_STRANGER);
        if (!pid)
                pin_everything(pipe_fd[1]);
        close(pipe_fd[1]);
        cr_assert_eq(read(pipe_fd[0], &byte, 1), 1);
        cr_expect_leq(flow_stat("pins.granted_bytes"), 32 << 20);
        check_more();
        hostile_check_others("data");
        check_more();
        kill(pid, SIGKILL);
        cr_assert_eq(flow_join(pid, 5), 128 + SIGKILL);
        close(pipe_fd[0]);
        flow_ok("sheaf rm --force more");
        hostile_end();
}

/* Of some the daemon would itself be what keeps them open, and with them the
 * pins or the connection, for ever. */
static void note_endless_forks(void)
{
        struct peer p = greet_quietly();
        struct opened opened = open_or_exit(&p);
        Sheaf__ForkNote note = SHEAF__FORK_NOTE__INIT;
        const char *fifo = flow_path("attacker-%d", (int)getpid());
        int pipe_fd[2], pair[2], fds[9];

        HOSTILE_NEED(!pipe(pipe_fd) && !mkfifo(fifo, 0600), 70);
        HOSTILE_NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 71);
        fds[0] = p.sock;
        fds[1] = pipe_fd[1];
        fds[2] = open(fifo, O_RDWR);
        fds[3] = open(fifo, O_RDONLY | O_PATH);
        fds[4] = pair[0];
        fds[5] = open("/dev/zero", O_RDONLY);
        fds[6] = opened.fds[opened.count - 3]; /* the listing */
        fds[7] = epoll_create1(0);
        fds[8] = eventfd(0, 0);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(fds); i++) {
                HOSTILE_NEED(fds[i] >= 0, 72);
                HOSTILE_NEED(
                        call(&p,
                                envelope(&p, SHEAF__ENVELOPE__BODY_FORK_NOTE,
                                        &note),
                                &fds[i], 1) == -EINVAL,
                        (int)(100 + i));
        }
        HOSTILE_NEED(
                call(&p, envelope(&p, SHEAF__ENVELOPE__BODY_FORK_NOTE, &note),
                        NULL, 0) == -EINVAL,
                73);
        HOSTILE_NEED(
                !call(&p, envelope(&p, SHEAF__ENVELOPE__BODY_FORK_NOTE, &note),
                        pipe_fd, 1),
                74);
}

Test(attacks, forks_that_would_never_end)
{
        cr_assert(!chmod(flow.base, 01777));
        by_attacker(__func__, HOSTILE_STRANGER, note_endless_forks);
}

static void pin_until_cut_off(struct pinner *p)
{
        struct pollfd pfd = { .fd = p->peer.sock, .events = POLLRDHUP };
        double end = flow_now() + 60;

        while (flow_now() < end) {
                pin_resident(p);
                if (poll(&pfd, 1, 10) > 0)
                        return;
        }
        HOSTILE_NEED(!"it is never cut off", 65);
}

/* Four at once, then one more: of that user none has a grace by then. */
static void pin_beyond_the_grant(void)
{
        struct pinner p[5];

        for (size_t i = 0; i < 4; i++)
                p[i] = pinner_new(false);
        for (size_t i = 0; i < 4; i++)
                pin_resident(&p[i]);
        for (size_t i = 0; i < 4; i++)
                pin_until_cut_off(&p[i]);
        p[4] = pinner_new(false);
        pin_until_cut_off(&p[4]);
}

struct copier {
        pthread_t thread;
        struct sheaf_dataset *ds;
        atomic_bool *stop;
        int rc;
};

static void *copy_on(void *arg)
{
        struct copier *c = arg;

        while (!c->rc && !atomic_load(c->stop))
                c->rc = flow_check_read(
                        c->ds, "g0", 900, HOSTILE_LARGE, 4 << 20);
        return NULL;
}

/* An honest client that holds as much as it may, while eight of its threads
 * copy, stays, and so do its bytes. */
Test(attacks, pins_beyond_a_grant_end_the_connection)
{
        struct copier copiers[8];
        struct sheaf_session *session;
        struct sheaf_dataset *ds;
        struct sheaf_view views[HOSTILE_FILES];
        struct sheaf_stats stats;
        atomic_bool stop = false;
        pid_t pid;

        add_more();
        pid = hostile_fork(HOSTILE_STRANGER);
        if (!pid) {
                HOSTILE_NEED(!flow_run("sheaf warmup more"), 66);
                pin_beyond_the_grant();
                _exit(0);
        }
        cr_assert_eq(flow_open("more", &session, &ds), 0);
        for (uint64_t i = 0; i < MORE; i++)
                cr_assert_eq(sheaf_view(ds, i, 0, 4 << 20, &views[i]), 0);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(copiers); i++) {
                copiers[i] = (struct copier){ .ds = ds, .stop = &stop };
                cr_assert(!pthread_create(
                        &copiers[i].thread, NULL, copy_on, &copiers[i]));
        }
        hostile_join(pid, 90);
        atomic_store(&stop, true);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(copiers); i++) {
                pthread_join(copiers[i].thread, NULL);
                cr_expect_eq(copiers[i].rc, 0);
        }
        for (uint64_t i = 0; i < MORE; i++) {
                cr_expect(flow_stamp_check(views[i].pieces[0].iov_base,
                        900 + (uint32_t)i, 0, 4 << 20));
                sheaf_view_release(&views[i]);
        }
        sheaf_stats(ds, &stats);
        cr_expect_eq(stats.reconnects, 0);
        flow_close(session, ds);
        cr_expect_eq(flow_stat("clients.dropped_pins"), 5);
        flow_ok("grep -c 'pins more than' %s", flow.log);
        cr_expect_lt(atoi(flow.last.out), 5, "logged once in ten seconds");
        check_more();
        flow_ok("sheaf rm --force more");
        hostile_end();
}

/* ---- copies ---- */

static int copy_of(struct peer *p, uint32_t handle, int *ret_fd)
{
        uint64_t items[3];
        Sheaf__Fetch body;
        Sheaf__Envelope env;
        struct sheaf_wire_msg msg;
        int rc;

        for (uint64_t i = 0; i < 3; i++)
                items[i] = (uint64_t)(HOSTILE_FILES + 1) << 24 | i;
        env = fetch_of(p, &body, handle, items, 3);
        body.copy = true;
        if (sheaf_wire_send(p->sock, &env, NULL, 0))
                return -ECONNRESET;
        rc = await(p, env.id, &msg, NULL, NULL);
        if (rc)
                return rc;
        if (msg.env->body_case == SHEAF__ENVELOPE__BODY_ERROR)
                rc = -msg.env->error->errno_value;
        else if (msg.fd_count == 1)
                *ret_fd = sheaf_wire_take_fd(&msg, 0);
        else
                rc = -EPROTO;
        sheaf_wire_msg_free(&msg);
        return rc;
}

/* Holds what it is sent: as descriptors, as mappings alone, opened anew. */
static void hoard(void)
{
        struct peer p = greet_quietly();
        struct opened opened = open_or_exit(&p);
        static void *maps[1024];
        static int fds[1024];
        size_t n = 0;
        int rc = 0;

        while (n < SHEAF_ARRAY_LEN(fds) && !rc) {
                rc = copy_of(&p, opened.handle, &fds[n]);
                if (rc)
                        break;
                HOSTILE_NEED(reopened(fds[n], O_RDONLY) < 0, 71);
                HOSTILE_NEED(pwrite(fds[n], "noise", 5, 0) < 0, 72);
                maps[n] = mmap(
                        NULL, HOSTILE_LARGE, PROT_READ, MAP_SHARED, fds[n], 0);
                HOSTILE_NEED(maps[n] != MAP_FAILED, 73);
                HOSTILE_NEED(
                        n > 2 || flow_stamp_check(maps[n], HOSTILE_LARGE_ID, 0,
                                         HOSTILE_LARGE),
                        74);
                if (n % 2)
                        sheaf_close_p(&fds[n]);
                n++;
        }
        HOSTILE_NEED(rc == -EBUSY, 75);
        HOSTILE_NEED(n * (uint64_t)HOSTILE_LARGE <= UINT64_C(512) << 20, 76);
        HOSTILE_NEED(n * (uint64_t)HOSTILE_LARGE > UINT64_C(400) << 20, 77);
        for (size_t i = 0; i < n; i++) {
                munmap(maps[i], HOSTILE_LARGE);
                sheaf_close_p(&fds[i]);
        }
        HOSTILE_NEED(copy_of(&p, opened.handle, &fds[0]) == 0, 78);
        sheaf_close_p(&fds[0]);
        close_opened(&opened);
        close(p.sock);
}

Test(attacks, hoarded_copies)
{
        pid_t pid = hostile_fork(HOSTILE_STRANGER);

        if (!pid) {
                hoard();
                _exit(0);
        }
        hostile_join(pid, 60);
        cr_expect(flow_until(20, flow_stat("clients.copy_bytes") == 0));
        hostile_end();
}
