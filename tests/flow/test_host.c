/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts that give less than usual: no io_uring, no locked memory, few
 * descriptors or a million, none in the whole system, no /dev/shm, no huge
 * pages, no memory that could be executed, no answer from the directory of
 * users. All bytes are right, status names the cause and a remedy, and what was
 * refused works again when the host gives it again. */
#include "proto/memfd.h"
#include "tests/flow/peer.h"
#include "tests/flow/world.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

TestSuite(host, .init = flow_init, .fini = flow_fini, .timeout = 100);

#define FILES 6
#define LEN   (UINT64_C(3) << 20 | 5)

static void make_files(void)
{
        for (uint32_t i = 0; i < FILES; i++)
                flow_file(i + 1, LEN, "f%u", i);
        cr_assert_eq(flow_run("chmod 777 %s", flow.base), 0);
        signal(SIGPIPE, SIG_IGN); /* of readers that were killed */
}

static void read_all(void)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        char name[16];

        cr_assert_eq(flow_open("data", &session, &dataset), 0, "%s",
                sheaf_last_error());
        for (uint32_t i = 0; i < FILES; i++) {
                snprintf(name, sizeof(name), "f%u", i);
                cr_assert_eq(flow_check_view(dataset, name, i + 1, LEN), 0,
                        "%s: %s", name, sheaf_last_error());
        }
        flow_close(session, dataset);
}

static long log_lines(const char *event)
{
        flow_ok("grep -c ' %s ' %s || true", event, flow.log);
        return strtol(flow.last.out, NULL, 10);
}

/* From the origin, then, after a restart, from the disk. */
static void use(void)
{
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        read_all();
        flow_ok("sheaf warmup data --disk --quiet");
        flow_stop();
        flow_start();
        read_all();
}

/* ---- io_uring ---- */

static void without_uring(int refuse, const char *calls, const char *word)
{
        char prefix[PATH_MAX];
        int lines;

        flow.uid = 1001;
        make_files();
        snprintf(prefix, sizeof(prefix), FLOW_CONFINE " %d %s", refuse, calls);
        flow_world("", prefix);
        use();
        cr_assert_gt(flow_stat("disk.hits"), 0);
        cr_assert(flow_status_says("disk I/O runs on threads, not io_uring"));
        cr_assert_not_null(strstr(flow.last.out, word), "no '%s' in %s", word,
                flow.last.out);
        lines = (int)log_lines("store_io_fallback");
        cr_assert_eq(lines, 2, "%d lines of two starts", lines);
        flow_stop();
}

/* The numbers are the same on every architecture: 425 to 427. */
Test(host, uring_forbidden)
{
        without_uring(EPERM, "425,426,427", "seccomp");
}

Test(host, uring_unknown)
{
        without_uring(ENOSYS, "425,426,427", "ENOSYS");
}

Test(host, uring_set_up_but_not_entered)
{
        without_uring(EPERM, "426", "seccomp");
}

Test(host, uring_set_up_but_nothing_registered)
{
        without_uring(EPERM, "427", "seccomp");
}

/* Locks @bytes for the rest of the test as the kernel counts it for a user: by
 * buffers of a ring. False: it has no rings, or counts otherwise. */
static bool lock_for_user(uid_t uid, size_t bytes)
{
        const char *ready = flow_path("locked");
        pid_t pid = flow_fork(uid, 0);
        struct io_uring_params params = { 0 };
        struct iovec buf = { .iov_len = bytes };
        int ring;

        if (pid)
                return flow_until(10, access(ready, F_OK) == 0 ||
                                              flow_wait(pid, 0) >= 0) &&
                       !access(ready, F_OK);
        ring = (int)syscall(SYS_io_uring_setup, 1, &params);
        buf.iov_base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (ring < 0 || buf.iov_base == MAP_FAILED ||
                syscall(SYS_io_uring_register, ring, 0, &buf, 1))
                _exit(1);
        creat(ready, 0644);
        for (;;)
                pause();
}

Test(host, no_locked_memory)
{
        char prefix[PATH_MAX];

        flow.uid = 1001;
        make_files();
        flow_world("ulimit -l 0", "");
        use();
        flow_stop();
        flow_world("ulimit -l 64", "");
        flow_start();
        read_all();
        flow_stop();
        /* Another process of this user has all that he may lock. */
        if (!lock_for_user(flow.uid, 4 << 20))
                printf("SKIP: host no_locked_memory: nobody can lock buffers "
                       "for a user here\n");
        flow_world("ulimit -l 4096", "");
        flow_start();
        read_all();
        flow_stop();
        /* Nothing depends on locking either. */
        snprintf(prefix, sizeof(prefix), FLOW_CONFINE " %d %d,%d,%d", ENOMEM,
                SYS_mlock, SYS_mlock2, SYS_mlockall);
        flow_world("", prefix);
        flow_start();
        read_all();
        flow_stop();
}

/* ---- shared memory ---- */

/* Shared memory is of memfds: /dev/shm is not used. */
Test(host, no_dev_shm)
{
        make_files();
        flow.memory = "64MiB";
        flow_world("", "unshare -m sh -c 'mount -t tmpfs -o ro,size=4k none "
                       "/dev/shm && exec \"$0\" \"$@\"'");
        use();
        flow_stop();
}

Test(host, no_huge_pages)
{
        char have[64] = "";
        FILE *file = fopen("/proc/sys/vm/nr_hugepages", "re");

        make_files();
        flow.memory = "64MiB";
        flow.extra = "--pages small";
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        read_all();
        flow_stop();
        if (!file || !fgets(have, sizeof(have), file) || atoi(have)) {
                fprintf(stderr, "SKIP: flow.host: huge pages are reserved\n");
                return;
        }
        fclose(file);
        cr_assert_eq(flow_run("timeout 5 sheafd --foreground --cache %s "
                              "--socket %s --memory 64MiB --pages hugetlb",
                             flow.cache, flow.socket),
                1);
        cr_assert_not_null(
                strstr(flow.last.err, "vm.nr_hugepages"), "%s", flow.last.err);
        flow.extra = NULL;
        flow_start();
        read_all();
        flow_stop();
}

/* No page is to be had when the arena wants its next one: chunks are copied
 * to who reads them, which is told with its cause, and go to the arena again
 * as soon as there is memory. */
Test(host, memory_is_refused)
{
        const char *prefix;
        struct shim *shim = flow_shim(&prefix);

        make_files();
        flow.memory = "64MiB";
        flow_world("", prefix);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_mount("data", flow.mount);
        shim->memory_errno = ENOMEM;
        for (int round = 0; round < 2; round++)
                read_all();
        for (uint32_t i = 0; i < FILES; i++)
                cr_assert_eq(flow_check(flow_path("mount/f%u", i), i + 1, LEN,
                                     65536),
                        0);
        cr_assert_gt(shim->refusals, 0);
        cr_assert_eq(flow_stat("arena.payload_bytes"), 0);
        cr_assert_gt(flow_stat("arena.refused"), 0);
        cr_assert(flow_status_says("the system has no memory for chunks"));
        cr_assert_not_null(strstr(flow.last.out, "memory-refused"));
        cr_assert_null(
                strstr(flow.last.out, "memory-pinned"), "%s", flow.last.out);
        shim->memory_errno = 0;
        read_all();
        cr_assert(flow_until(
                20, flow_stat("arena.payload_bytes") == FILES * (double)LEN));
        read_all();
        flow_umount(flow.mount);
        flow_stop();
}

/* ---- descriptors ---- */

#define READER_END 127

struct reader {
        pid_t pid;
        int said_fd, order_fd;
};

/* Opens the dataset, says how that went, reads for each byte that it gets,
 * and says how that went. */
static void reader_run(int say_fd, int order_fd)
{
        struct sheaf_session *session;
        struct sheaf_dataset *dataset;
        int rc = flow_open("data", &session, &dataset);
        char byte = (char)-rc;

        if (rc && !strstr(sheaf_last_error(), "descriptors")) {
                fprintf(stderr, "%s\n", sheaf_last_error());
                byte = EPROTO;
        }
        while (write(say_fd, &byte, 1) == 1 && !rc &&
                read(order_fd, &byte, 1) == 1 && byte != READER_END) {
                char name[16];

                snprintf(name, sizeof(name), "f%d", byte);
                byte = (char)-flow_check_view(
                        dataset, name, (uint32_t)byte + 1, LEN);
                if (byte)
                        fprintf(stderr, "%s: %s\n", name, sheaf_last_error());
        }
        _exit(0);
}

static struct reader reader_start(void)
{
        int say[2], order[2];
        pid_t pid;

        cr_assert(!pipe2(say, O_CLOEXEC) && !pipe2(order, O_CLOEXEC));
        pid = flow_fork(0, 0);
        if (!pid) {
                close(say[0]);
                close(order[1]);
                reader_run(say[1], order[0]);
        }
        close(say[1]);
        close(order[0]);
        return (struct reader){ pid, say[0], order[1] };
}

static int reader_says(const struct reader *r)
{
        char byte = EPIPE;

        if (read(r->said_fd, &byte, 1) != 1)
                byte = EPIPE;
        return byte;
}

static int reader_reads(const struct reader *r, char file)
{
        cr_assert_eq(write(r->order_fd, &file, 1), 1);
        return reader_says(r);
}

/* The pipe alone does not end it: later ones hold it open, too. */
static void reader_end(const struct reader *r)
{
        (void)!write(r->order_fd, &(char){ READER_END }, 1);
        close(r->order_fd);
        close(r->said_fd);
        flow_join(r->pid, 10);
}

/* Readers until one is refused; the count of those that work. */
static int fill_up(struct reader *readers, int max)
{
        int count = 0;

        for (; count < max; count++) {
                int rc;

                readers[count] = reader_start();
                rc = reader_says(&readers[count]);
                if (!rc)
                        continue;
                cr_assert(rc == EMFILE || rc == ENFILE, "%s", strerror(rc));
                reader_end(&readers[count]);
                return count;
        }
        cr_assert(false, "no limit was met");
        return count;
}

static void not_busy(void)
{
        double before = flow_cpu(flow.daemon);

        flow_sleep(1);
        cr_assert_lt(flow_cpu(flow.daemon) - before, 0.4);
}

/* A soft limit is no limit: the daemon takes what the hard one allows. */
static bool limits_are(pid_t pid, int files)
{
        return !flow_run("grep -qE '^Max open files +%d +%d ' /proc/%d/limits",
                files, files, (int)pid);
}

Test(host, soft_limits_are_raised)
{
        struct reader readers[80];

        make_files();
        flow_world("ulimit -Sn 64; ulimit -Hn 4096", "");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        cr_assert(limits_are(flow.daemon, 4096));
        flow_ok("ulimit -Sn 64; ulimit -Hn 4096; sheaf mount data %s",
                flow.mount);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(readers); i++) {
                readers[i] = reader_start();
                cr_assert_eq(reader_says(&readers[i]), 0, "reader %zu", i);
        }
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(readers); i++) {
                cr_assert_eq(reader_reads(&readers[i], (char)(i % FILES)), 0);
                reader_end(&readers[i]);
        }
        flow_umount(flow.mount);
        flow_stop();
}

/* Files of the mount that are open. */
#define OPEN 400

static void open_mount(int fds[OPEN])
{
        for (uint32_t i = 0; i < OPEN; i++) {
                fds[i] = open(flow_path("mount/f%u", i % FILES),
                        O_RDONLY | O_CLOEXEC);
                cr_assert_geq(fds[i], 0, "%s", strerror(errno));
        }
}

/* Bytes that no page cache has, by each of them; then they are closed. */
static void read_open(int fds[OPEN])
{
        static char buf[4096];

        for (uint32_t i = 0; i < OPEN; i++) {
                off_t at = (off_t)(i * 6991 % 700 * 4096);

                posix_fadvise(fds[i], 0, 0, POSIX_FADV_DONTNEED);
                cr_assert_eq(pread(fds[i], buf, 4096, at), 4096, "%s",
                        strerror(errno));
                cr_assert(flow_stamp_check(
                        buf, i % FILES + 1, (uint64_t)at, 4096));
                close(fds[i]);
        }
}

/* A hard limit below anything usual: some clients work, further ones are
 * refused with a reason, those that are there read on, and so does a mount
 * with as few descriptors and with hundreds of open files. */
Test(host, sixty_four_descriptors)
{
        struct reader readers[64];
        int count, fds[OPEN];

        make_files();
        flow_world("ulimit -n 64", "");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_ok("ulimit -n 64; sheaf mount data %s", flow.mount);
        open_mount(fds);
        cr_assert(flow_status_says("few descriptors are allowed"));
        count = fill_up(readers, 64);
        cr_assert_geq(count, 2, "%d clients", count);
        for (int i = 0; i < count; i++)
                cr_assert_eq(reader_reads(&readers[i], (char)(i % FILES)), 0);
        cr_assert(flow_status_says("descriptors are used up"));
        cr_assert_not_null(strstr(flow.last.out, "LimitNOFILE"));
        not_busy();
        for (int i = 0; i < count; i++)
                cr_assert_eq(reader_reads(&readers[i], 0), 0);
        read_open(fds);
        for (int i = 0; i < count; i++)
                reader_end(&readers[i]);
        cr_assert(flow_until(30, !flow_status_says("descriptors are used up")));
        read_all();
        flow_umount(flow.mount);
        flow_stop();
        printf("flow.host: 64 descriptors serve %d clients\n", count);
}

/* Descriptors that lie unread in sockets count for their user, and who has
 * fewer of them allowed may send none meanwhile: a reader then waits. */
Test(host, many_descriptors_on_their_way)
{
        int pair[2], many[64];
        struct reader reader;
        pid_t adder;

        make_files();
        flow_world("ulimit -n 64", "");
        flow_start();
        cr_assert(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(many); i++)
                many[i] = pair[0];
        for (int i = 0; i < 4; i++)
                cr_assert_eq(sheaf_wire_send_record(pair[1], "x", 1, many,
                                     SHEAF_ARRAY_LEN(many)),
                        0);
        adder = flow_fork(0, 0);
        if (!adder) {
                execlp("sheaf", "sheaf", "--socket", flow.socket, "add", "data",
                        flow.origin, "--quiet", (char *)NULL);
                _exit(97);
        }
        /* It is listed, and what was found cannot be told. */
        cr_assert_eq(flow_wait(adder, 0.5), -1, "it did not wait");
        sheaf_close_p(&pair[0]);
        sheaf_close_p(&pair[1]);
        cr_assert_eq(flow_join(adder, 40), 0);
        flow_ok("! grep reader-lost %s >&2", flow.log);
        reader = reader_start();
        cr_assert_eq(reader_says(&reader), 0);
        cr_assert_eq(reader_reads(&reader, 1), 0);
        reader_end(&reader);
        flow_stop();
}

/* Connections that say nothing give way; those that said Hello do not, but
 * leave room for questions. */
Test(host, idle_connections_use_all_descriptors)
{
        static int socks[1200];
        static struct peer peers[300];
        struct reader early, late;
        size_t count = 0;

        make_files();
        flow_world("ulimit -n 512", "");
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        early = reader_start();
        cr_assert_eq(reader_says(&early), 0);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(socks); i++)
                socks[i] = sheaf_wire_connect(flow.socket);
        cr_assert_eq(reader_reads(&early, 1), 0);
        flow_ok("sheaf status");
        late = reader_start();
        cr_assert_eq(reader_says(&late), 0, "they gave way to nobody");
        cr_assert_eq(reader_reads(&late, 2), 0);
        cr_assert_gt(flow_stat("clients.dropped_mute"), 0);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(socks); i++)
                sheaf_close_p(&socks[i]);
        cr_assert(flow_until(30, !flow_status_says("descriptors are used up")));
        for (; count < SHEAF_ARRAY_LEN(peers); count++) {
                peers[count].sock = sheaf_wire_connect(flow.socket);
                if (hello(&peers[count]))
                        break;
        }
        cr_assert(flow_status_says("descriptors are used up"));
        cr_assert_eq(reader_reads(&early, 3), 0);
        cr_assert_eq(reader_reads(&late, 4), 0);
        not_busy();
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(peers); i++)
                sheaf_close_p(&peers[i].sock);
        cr_assert(flow_until(30, !flow_status_says("descriptors are used up")));
        read_all();
        reader_end(&early);
        reader_end(&late);
        flow_stop();
}

/* Numbers beyond those of select(2), in the daemon and in a client. */
static void high_numbers(void)
{
        static int socks[1500];
        struct rlimit limit;
        int last = 0;

        cr_assert(!getrlimit(RLIMIT_NOFILE, &limit));
        limit.rlim_cur = limit.rlim_max;
        cr_assert(!setrlimit(RLIMIT_NOFILE, &limit));
        if (limit.rlim_max < 4096) {
                printf("SKIP: host high_numbers: %lu descriptors are allowed\n",
                        (unsigned long)limit.rlim_max);
                return;
        }
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(socks); i++)
                last = socks[i] = sheaf_wire_connect(flow.socket);
        cr_assert_gt(last, 1024);
        cr_assert(flow_until(20, flow_fds(flow.daemon) > 1024));
        read_all();
        cr_assert_eq(flow_check(flow_path("mount/f2"), 3, LEN, 65536), 0);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(socks); i++)
                sheaf_close_p(&socks[i]);
}

/* No loop runs over all numbers that a descriptor might have. */
Test(host, a_million_descriptors)
{
        double start;

        make_files();
        if (flow_run("ulimit -n 1048576"))
                fprintf(stderr, "SKIP: flow.host: 1048576 descriptors: not "
                                "allowed here, tried with the hard limit\n");
        flow_world(
                "ulimit -n 1048576 2>/dev/null || ulimit -n $(ulimit -Hn)", "");
        start = flow_now();
        flow_start();
        cr_assert_lt(flow_now() - start, 8, "start");
        start = flow_now();
        flow_ok("sheaf add data %s", flow.origin);
        read_all();
        cr_assert_lt(flow_now() - start, 8, "a reader process");
        start = flow_now();
        flow_mount("data", flow.mount);
        cr_assert_lt(flow_now() - start, 8, "a mount");
        cr_assert_eq(flow_check(flow_path("mount/f1"), 2, LEN, 65536), 0);
        high_numbers();
        flow_umount(flow.mount);
        flow_stop();
}

/* The whole system has no descriptor: accepting fails for a while. */
Test(host, no_descriptor_in_the_system)
{
        struct reader reader;
        const char *prefix;
        struct shim *shim = flow_shim(&prefix);
        uint64_t accepts;
        int sock;

        make_files();
        flow_world("", prefix);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        reader = reader_start();
        cr_assert_eq(reader_says(&reader), 0);
        shim->accept_errno = ENFILE;
        sock = sheaf_wire_connect(flow.socket);
        accepts = shim->accepts;
        for (char i = 0; i < FILES; i++)
                cr_assert_eq(reader_reads(&reader, i), 0);
        not_busy();
        cr_assert_gt(shim->accepts, accepts, "it does not try again");
        cr_assert_lt(shim->accepts - accepts, 1000, "%llu tries",
                (unsigned long long)(shim->accepts - accepts));
        shim->accept_errno = 0;
        cr_assert(flow_until(20, flow_live()));
        flow_ok("sheaf status");
        read_all();
        reader_end(&reader);
        close(sock);
        flow_stop();
}

/* ---- memory files ---- */

/* What needs them, in the daemon, its readers, clients and mounts. */
static void use_memory_files(const char *prefix)
{
        make_files();
        flow_world("", prefix);
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        flow_ok("%s quickread --compare %s --dataset data", prefix,
                flow.origin);
        flow_ok("%s sheaf mount data %s", prefix, flow.mount);
        flow_ok("cmp %s/f1 %s/f1", flow.mount, flow.origin);
        flow_umount(flow.mount);
        flow_run("%s sheaf doctor", prefix);
        cr_assert(strstr(flow.last.out, "sealed memfds work"), "%s",
                flow.last.out);
        flow_stop();
}

/* vm.memfd_noexec=2: Linux 6.3 to 6.5 wants to be told, later ones know. */
Test(host, memory_files_that_nobody_may_execute)
{
        const char *prefix;

        flow_shim(&prefix)->memfd_needed = MFD_NOEXEC_SEAL;
        use_memory_files(prefix);
}

/* Before Linux 6.3. */
Test(host, memory_files_of_an_old_kernel)
{
        const char *prefix;

        flow_shim(&prefix)->memfd_unknown = MFD_NOEXEC_SEAL;
        use_memory_files(prefix);
}

/* ---- users and groups ---- */

Test(host, names_that_do_not_come)
{
        struct reader reader;
        const char *prefix;
        struct shim *shim = flow_shim(&prefix);
        double start;

        make_files();
        flow_world("", prefix);
        shim->names_hang = 1;
        flow_start();
        flow_ok("sheaf add data %s", flow.origin);
        reader = reader_start();
        cr_assert_eq(reader_says(&reader), 0);
        start = flow_now();
        for (int i = 0; i < 20; i++) {
                flow_ok("sheaf ls --json");
                cr_assert_not_null(
                        strstr(flow.last.out, "\"0\""), "%s", flow.last.out);
                cr_assert_eq(reader_reads(&reader, (char)(i % FILES)), 0);
        }
        cr_assert_lt(flow_now() - start, 20, "each time it was waited for");
        cr_assert(flow_status_says("users and groups are shown as numbers"));
        cr_assert_not_null(strstr(flow.last.out, "nsswitch"));
        cr_assert_neq(flow_run("sheaf share data group:daemon --force"), 0);
        cr_assert_not_null(
                strstr(flow.last.err, "in time"), "%s", flow.last.err);
        reader_end(&reader);
        flow_ok("sheaf share data group:1 --force");
        cr_assert_neq(flow_run("sheaf ls '~root/data'"), 0);
        flow_ok("sheaf ls '~0/data'");
        shim->names_hang = 0;
        cr_assert(flow_until(30, ({
                flow_ok("sheaf ls --json");
                strstr(flow.last.out, "\"root\"") != NULL;
        })),
                "%s", flow.last.out);
        cr_assert_not(flow_status_says("shown as numbers"));
        flow_ok("sheaf share data group:daemon --force");
        flow_stop();
}

/* ---- the log ---- */

static bool holds(pid_t pid, const char *part)
{
        char path[64], to[PATH_MAX];
        struct dirent *entry;
        bool found = false;
        DIR *dir;

        snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
        dir = opendir(path);
        while (dir && (entry = readdir(dir))) {
                ssize_t n = readlinkat(
                        dirfd(dir), entry->d_name, to, sizeof(to) - 1);

                to[n > 0 ? n : 0] = '\0';
                found |= strstr(to, part) != NULL;
        }
        if (dir)
                closedir(dir);
        return found;
}

/* A reader process that lived longer than a log would keep its blocks. */
Test(host, readers_do_not_hold_the_log)
{
        struct dirent *entry;
        int readers = 0;
        DIR *proc;

        make_files();
        flow_ok("sheafd --cache %s --socket %s --memory 64MiB --disk 256MiB",
                flow.cache, flow.socket);
        flow_ok("sheaf add data %s", flow.origin);
        read_all();
        flow_ok("sheaf status --json");
        proc = opendir("/proc");
        while (proc && (entry = readdir(proc))) {
                char path[64], name[32] = "";
                pid_t pid = atoi(entry->d_name);
                FILE *file;

                snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
                file = pid > 1 ? fopen(path, "re") : NULL;
                if (!file)
                        continue;
                if (!fgets(name, sizeof(name), file))
                        *name = '\0';
                fclose(file);
                if (strncmp(name, "sheaf-reader", 12) ||
                        !holds(pid, flow.origin))
                        continue;
                readers++;
                cr_assert(flow_sanitized(pid) || !holds(pid, "sheafd.log"));
        }
        if (proc)
                closedir(proc);
        cr_assert_gt(readers, 0, "no reader was looked at");
}
