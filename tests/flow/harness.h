/* SPDX-License-Identifier: Apache-2.0 */
/* One whole system for one test: a directory, a real daemon, real mounts,
 * the real command line. All programs are found on PATH, which the harness
 * sets to the build tree.
 *
 * flow_init and flow_fini are a suite's .init and .fini. A test that dies
 * without them leaves nothing either: a warden process ends whatever carries
 * this test's mark in its environment and takes the mounts away.
 *
 * Every call has a deadline; a failure ends the test by cr_assert. In forked
 * clients nothing asserts: they report by exit status. */
#ifndef SHEAF_TESTS_FLOW_HARNESS_H
#define SHEAF_TESTS_FLOW_HARNESS_H

#include "client/sheaf.h"
#include "proto/base.h"

#include <limits.h>
#include <sys/types.h>

struct flow_result {
        int rc; /* exit code; 128 + signal; -1: over its time, killed */
        char out[1 << 20];
        char err[1 << 16];
        double seconds;
};

struct flow {
        char base[64]; /* holds all that follow */
        char cache[96], socket[96], origin[96], mount[96], log[96];
        pid_t daemon; /* 0: none */
        /* How the daemon is started; set before flow_start. */
        const char *memory, *disk; /* 256MiB, 1GiB */
        int deadline_s;            /* 30 */
        const char *extra;         /* more arguments, or NULL */
        const char *faults;        /* SHEAF_FAULT_ORIGIN, or NULL */
        uid_t uid;                 /* of the daemon */
        int run_limit_s;           /* of flow_run; 60 */
        int warden_fd;             /* its pipe hangs up with this process */
        struct flow_result last;
};

extern struct flow flow;

/* Skips the test with a printed line unless it is root and can mount. */
void flow_init(void);
void flow_fini(void);

/* ---- daemon ---- */

/* Starts it and waits until it answers. */
void flow_start(void);
/* Starts it without waiting. */
void flow_launch(void);
/* SIGTERM; it must exit 0 within 10 s. */
void flow_stop(void);
/* SIGKILL and wait. */
void flow_kill(void);
/* Starts another daemon with these arguments (split at blanks) without
 * waiting; stderr goes to @log. */
pid_t flow_spawn(const char *log, const char *arguments);
/* Waits for a child of ours up to @limit_s: its status as in flow_result.rc,
 * or -1, when it lives on. */
int flow_wait(pid_t pid, double limit_s);
/* The daemon is alive and answers within 2 s. */
bool flow_live(void);

/* ---- commands ---- */

/* Runs a shell command; output and exit code are in flow.last. Returns the
 * exit code. What is to be interrupted is run by `timeout --foreground`:
 * without it timeout sends SIGCONT too, which takes back the stop that
 * LeakSanitizer has just sent to a program that ends, and waits for. */
SHEAF_PRINTF(1, 2) int flow_run(const char *format, ...);
/* The same as @uid, with gid @uid and group @gid beside (0: none). */
SHEAF_PRINTF(3, 4)
int flow_run_as(uid_t uid, gid_t gid, const char *format, ...);
/* Must exit 0. */
SHEAF_PRINTF(1, 2) void flow_ok(const char *format, ...);

/* `sheaf mount`: of flow.mount, or a directory that is made. */
void flow_mount(const char *name, const char *dir);
void flow_umount(const char *dir);
/* Whether something is mounted there: how many times. */
int flow_mounted(const char *dir);
/* The process that serves the mount at @dir; 0: none. */
pid_t flow_server(const char *dir);
/* Mounts for ordinary users: from here on this process and its children have
 * a mount namespace of their own, with a /dev/fuse that everybody may open. */
void flow_own_fuse_device(void);

/* ---- figures ---- */

/* A total of `sheaf stats --json`; absent counts as 0. */
double flow_stat(const char *name);
/* One of a dataset's. */
double flow_stat_of(const char *dataset, const char *name);
/* A number of a process: open descriptors, resident bytes. */
long flow_fds(pid_t pid);
uint64_t flow_rss(pid_t pid);
/* @pid runs a sanitizer's build: its memory and mappings are mostly not its
 * own, as what was freed is kept, and ThreadSanitizer has a shadow of all. */
bool flow_sanitized(pid_t pid);
/* Bytes allocated below @dir, each inode once. */
uint64_t flow_du(const char *dir);

double flow_now(void);
void flow_sleep(double seconds);

/* Tries @condition every 20 ms, up to @limit_s. */
#define flow_until(limit_s, condition)                                         \
        ({                                                                     \
                double end_ = flow_now() + (limit_s);                          \
                bool met_;                                                     \
                                                                               \
                while (!(met_ = (condition)) && flow_now() < end_)             \
                        flow_sleep(0.02);                                      \
                met_;                                                          \
        })

/* ---- stamped files ---- */

/* Word i of file @id is (id << 32 | i + 1): never zero, in no other place. */
void flow_stamp_bytes(void *buf, uint32_t id, uint64_t offset, size_t len);
bool flow_stamp_check(
        const void *buf, uint32_t id, uint64_t offset, size_t len);
/* Makes origin/@name (directories too) of @len stamped bytes. */
SHEAF_PRINTF(3, 4)
void flow_file(uint32_t id, uint64_t len, const char *format, ...);
/* Before the first file: the origin lies in memory, where very many files are
 * made and removed at once. */
void flow_origin_in_memory(void);
/* Reads all of @path in @block bytes. 0; -errno; -EBADMSG wrong bytes;
 * -ENODATA another length. */
int flow_check(const char *path, uint32_t id, uint64_t len, size_t block);
/* The same by library: a view of the whole file. */
int flow_check_view(struct sheaf_dataset *dataset, const char *path,
        uint32_t id, uint64_t len);
/* And as copies of @block bytes. */
int flow_check_read(struct sheaf_dataset *dataset, const char *path,
        uint32_t id, uint64_t len, size_t block);

/* Opens a dataset in a session of its own. */
int flow_open(const char *name, struct sheaf_session **ret_session,
        struct sheaf_dataset **ret_dataset);
void flow_close(struct sheaf_session *session, struct sheaf_dataset *dataset);

/* ---- other processes ---- */

/* Forks a client that dies with the test. In the child becomes @uid with gid
 * @uid and the group @gid beside (0: none); uid 0 changes nothing. */
pid_t flow_fork(uid_t uid, gid_t gid);
/* Exit status of a client within @limit_s; asserts that it ends. */
int flow_join(pid_t pid, double limit_s);

/* base/name in a ring of buffers. */
SHEAF_PRINTF(1, 2) const char *flow_path(const char *format, ...);

#endif
