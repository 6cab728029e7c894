/* SPDX-License-Identifier: Apache-2.0 */
/* sheafd: reads its settings, builds the parts from the bottom up, runs the
 * loop, and takes them down again in reverse.
 *
 *   store -> arena pool -> fetcher -> registry -> server -> grants
 *
 * In the background form the parent waits until the daemon serves (or says
 * why not) and exits with its status. */
#include "daemon/aside.h"
#include "daemon/catchup.h"
#include "daemon/closer.h"
#include "daemon/grants.h"
#include "daemon/health.h"
#include "daemon/jobs/jobs.h"
#include "daemon/prep/prep.h"
#include "daemon/server.h"
#include "daemon/turns.h"

#include "daemon/clock.h"
#include "daemon/log.h"
#include "proto/size.h"

#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <openssl/rand.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define NOFILE_MAX 1048576
#define GRACE_MS   2000

static void raise_limits(void)
{
        struct rlimit limit;

        if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
                limit.rlim_cur = SHEAF_MIN(limit.rlim_max, (rlim_t)NOFILE_MAX);
                setrlimit(RLIMIT_NOFILE, &limit);
        }
}

/* Others under the same uid must not reach our memory and descriptors. */
static void harden(void)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        prctl(PR_SET_DUMPABLE, 0);
#endif
        umask(0077);
        signal(SIGPIPE, SIG_IGN);
}

/* As many workers as CPUs, two at least: they copy, hash and wait for disks. */
static void size_pool(void)
{
        long cpus = sysconf(_SC_NPROCESSORS_ONLN);
        char text[24];

        snprintf(text, sizeof(text), "%ld", SHEAF_MAX(cpus, 4L));
        setenv("UV_THREADPOOL_SIZE", text, 0);
}

/* Listings and tables of millions come and go. Large blocks are mappings of
 * their own, which free gives back; by itself the limit would rise with the
 * first of them, and their holes would stay. Few arenas have few holes. */
static void size_heap(void)
{
#ifdef __GLIBC__
        mallopt(M_MMAP_THRESHOLD, 256 * 1024);
        mallopt(M_TRIM_THRESHOLD, 1024 * 1024);
        mallopt(M_ARENA_MAX, 2);
#endif
}

static void extent_new(void *arg, struct sheaf_arena *arena, uint32_t extent)
{
        struct sheaf_daemon *d = arg;

        if (d->server)
                sheaf_server_extent_new(d->server, arena, extent);
}

static void extent_dropped(
        void *arg, struct sheaf_arena *arena, uint32_t extent)
{
        struct sheaf_daemon *d = arg;

        if (d->server)
                sheaf_server_extent_dropped(d->server, arena, extent);
}

static int open_store(struct sheaf_daemon *d)
{
        const struct sheaf_config *c = d->config;
        struct sheaf_store_config config = { .loop = d->loop,
                .dir = c->cache_dir,
                .bytes_max = c->disk_bytes,
                .floor_bytes = c->floor_bytes,
                .want_uring = !c->no_uring,
                .fuse_ok = c->fuse_cache };

        return sheaf_store_open(&config, &d->store);
}

static int open_pool(struct sheaf_daemon *d)
{
        struct sheaf_arena_config config = { .bytes_max =
                                                     d->config->memory_bytes,
                .pages = d->config->pages,
                .extent_new = extent_new,
                .extent_dropped = extent_dropped,
                .arg = d };
        char text[SHEAF_SIZE_TEXT_MAX];
        int rc = sheaf_arena_pool_new(&config, &d->pool);

        if (rc == -ENOMEM && config.pages == SHEAF_PAGES_HUGETLB)
                sheaf_log_rc(rc, SHEAF_LOG_ERROR, "no huge pages",
                        "remedy=\"reserve them (vm.nr_hugepages), or leave "
                        "--pages at auto\"");
        if (rc == -ERANGE)
                sheaf_log_rc(rc, SHEAF_LOG_ERROR, "memory too small",
                        "memory=\"%s\" least=\"32 MiB\"",
                        sheaf_size_text(config.bytes_max, text));
        return rc;
}

static int open_upper(struct sheaf_daemon *d)
{
        struct sheaf_fetcher_config fetch = { .loop = d->loop,
                .store = d->store,
                .bytes_max = SHEAF_MIN(
                        256 * SHEAF_MIB, d->config->memory_bytes / 4) };
        struct sheaf_registry_config registry = { .loop = d->loop,
                .store = d->store,
                .pool = d->pool,
                .reader_path = d->config->reader,
                .user_datasets = d->config->user_datasets,
                .deadline_ns =
                        (int64_t)d->config->deadline_ms * SHEAF_NS_PER_MS };
        int rc = sheaf_fetcher_new(&fetch, &d->fetcher);

        if (rc)
                return rc;
        registry.fetcher = d->fetcher;
        rc = sheaf_registry_new(&registry, &d->registry);
        if (rc)
                return sheaf_log_rc(rc, SHEAF_LOG_ERROR, "datasets not loaded",
                        "cache=%s", d->config->cache_dir);
        rc = sheaf_server_new(d, d->config->socket, &d->server);
        if (rc == -EEXIST)
                return sheaf_log_rc(rc, SHEAF_LOG_ERROR, "cannot listen",
                        "socket=%s why=\"a file that is not a socket is "
                        "there; it was left alone\" remedy=\"remove it, or "
                        "give another --socket\"",
                        d->config->socket);
        if (rc)
                return sheaf_log_rc(rc, SHEAF_LOG_ERROR, "cannot listen",
                        "socket=%s remedy=\"another --socket, in a directory "
                        "that can be written and where nobody listens\"",
                        d->config->socket);
        rc = sheaf_closer_new(d->loop, &d->closer);
        if (!rc)
                rc = sheaf_jobs_new(d, &d->jobs);
        if (!rc)
                rc = sheaf_prep_new(d, &d->prep);
        if (!rc)
                rc = sheaf_health_new(d, &d->health);
        if (!rc)
                rc = sheaf_catchup_new(d, &d->catchup);
        return rc ? rc : sheaf_grants_new(d, &d->grants);
}

static int start(struct sheaf_daemon *d)
{
        int rc;

        if (access(d->config->reader, X_OK))
                return sheaf_log_rc(-errno, SHEAF_LOG_ERROR,
                        "sheaf-reader cannot be run",
                        "path=%s remedy=\"it is part of Sheaf: install it "
                        "there or beside sheafd\"",
                        d->config->reader);
        rc = sheaf_turns_new(d->loop, &d->turns);
        if (rc)
                return rc;
        rc = open_store(d);
        if (rc)
                return sheaf_log_rc(rc, SHEAF_LOG_ERROR, "cache not opened",
                        "dir=%s remedy=\"a directory that can be written, by "
                        "--cache or SHEAF_CACHE_DIR; see: sheaf doctor\"",
                        d->config->cache_dir);
        rc = open_pool(d);
        if (rc)
                return sheaf_log_rc(rc, SHEAF_LOG_ERROR, "no shared memory",
                        "bytes=%llu",
                        (unsigned long long)d->config->memory_bytes);
        return open_upper(d);
}

static void stop(struct sheaf_daemon *d)
{
        sheaf_aside_stop();
        sheaf_grants_free(d->grants);
        sheaf_health_free(d->health);
        sheaf_catchup_free(d->catchup);
        sheaf_server_free(d->server);
        d->server = NULL;
        sheaf_prep_free(d->prep);
        sheaf_closer_free(d->closer);
        sheaf_jobs_free(d->jobs);
        sheaf_registry_free(d->registry);
        sheaf_fetcher_free(d->fetcher);
        sheaf_arena_pool_free(d->pool);
        sheaf_store_close(d->store);
        sheaf_turns_free(d->turns);
}

static void on_signal(uv_signal_t *handle, int number)
{
        sheaf_log(SHEAF_LOG_INFO, "stopping", "signal=%d", number);
        uv_stop(handle->loop);
}

static void on_grace(uv_timer_t *timer)
{
        uv_stop(timer->loop);
}

/* Lets handles close and readers end, for GRACE_MS at most: one that hangs
 * in a dead origin is left to the kernel. */
static void wind_down(uv_loop_t *loop)
{
        static uv_timer_t grace;

        uv_timer_init(loop, &grace);
        uv_timer_start(&grace, on_grace, GRACE_MS, 0);
        uv_unref((uv_handle_t *)&grace);
        uv_run(loop, UV_RUN_DEFAULT);
}

static void close_walk(uv_handle_t *handle, void *arg)
{
        (void)arg;
        if (!uv_is_closing(handle))
                uv_close(handle, NULL);
}

/* Tells the parent that we serve, and logs to a file from now on. */
static void leave_terminal(const struct sheaf_config *config, int ready_fd)
{
        char path[PATH_MAX];
        int null_fd, rc;

        snprintf(path, sizeof(path), "%s/sheafd.log", config->cache_dir);
        rc = sheaf_log_file(path);
        null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (rc)
                sheaf_log_rc(
                        rc, SHEAF_LOG_WARN, "no log file", "path=%s", path);
        if (write(ready_fd, "", 1) != 1)
                sheaf_log(SHEAF_LOG_WARN, "parent gone", "pid=%d", getppid());
        close(ready_fd);
        if (null_fd >= 0) {
                dup2(null_fd, STDIN_FILENO);
                dup2(null_fd, STDOUT_FILENO);
        }
        sheaf_close_p(&null_fd);
}

static int serve(const struct sheaf_config *config, int ready_fd)
{
        static uv_loop_t loop;
        static uv_signal_t term, intr;
        struct sheaf_daemon d = {
                .loop = &loop, .config = config, .started_ns = sheaf_now_ns()
        };
        char memory[SHEAF_SIZE_TEXT_MAX], disk[SHEAF_SIZE_TEXT_MAX];
        int rc = uv_loop_init(&loop);

        if (!rc && RAND_bytes(d.instance, sizeof(d.instance)) != 1)
                rc = -EIO;
        if (!rc)
                rc = start(&d);
        if (!rc) {
                uv_signal_init(&loop, &term);
                uv_signal_init(&loop, &intr);
                uv_signal_start(&term, on_signal, SIGTERM);
                uv_signal_start(&intr, on_signal, SIGINT);
                sheaf_log(SHEAF_LOG_INFO, "serving",
                        "socket=%s cache=%s memory=\"%s\" disk=\"%s\" pid=%d",
                        config->socket, config->cache_dir,
                        sheaf_size_text(config->memory_bytes, memory),
                        sheaf_size_text(config->disk_bytes, disk), getpid());
                if (ready_fd >= 0)
                        leave_terminal(config, ready_fd);
                uv_run(&loop, UV_RUN_DEFAULT);
        }
        if (uv_is_active((uv_handle_t *)&term)) {
                uv_close((uv_handle_t *)&term, NULL);
                uv_close((uv_handle_t *)&intr, NULL);
        }
        stop(&d);
        wind_down(&loop);
        uv_walk(&loop, close_walk, NULL);
        uv_run(&loop, UV_RUN_DEFAULT);
        uv_loop_close(&loop);
        uv_library_shutdown();
        return rc ? 1 : 0;
}

/* The child's side of going to the background: a session of its own, and
 * after the start a log file in the cache directory. */
static int background(const struct sheaf_config *config)
{
        int pipe_fd[2];
        char byte;
        ssize_t n;
        pid_t pid;

        if (pipe2(pipe_fd, O_CLOEXEC))
                return 1;
        pid = fork();
        if (pid < 0)
                return 1;
        if (pid > 0) {
                close(pipe_fd[1]);
                do
                        n = read(pipe_fd[0], &byte, 1);
                while (n < 0 && errno == EINTR);
                return n == 1 ? 0 : 1;
        }
        close(pipe_fd[0]);
        setsid();
        if (chdir("/"))
                return 1;
        return serve(config, pipe_fd[1]);
}

int main(int argc, char **argv)
{
        struct sheaf_config config;
        int rc = sheaf_config_read(argc, argv, &config);

        if (rc)
                return rc < 0 ? 2 : 0;
        raise_limits();
        harden();
        size_pool();
        size_heap();
        rc = config.foreground ? serve(&config, -1) : background(&config);
        sheaf_config_clear(&config);
        return rc;
}
