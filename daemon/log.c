/* SPDX-License-Identifier: Apache-2.0 */
/* Logging: one write(2) a line, so lines of threads never mix.
 *
 *  1 a line is at most LINE_BYTES_MAX, cut rather than split
 *  2 no control character reaches the terminal or breaks a line
 *  3 a log file is exchanged with dup2(2), which is atomic: a line of another
 *    thread ends in the old file or the new one, whole
 *
 * Any thread; the level is atomic. */
#include "daemon/log.h"

#include "daemon/clock.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

#define LINE_BYTES_MAX 2048

static _Atomic int level_max = SHEAF_LOG_INFO;
static _Atomic bool file_bounded;
static char file_path[PATH_MAX]; /* constant once file_bounded */

static const char *const level_names[] = { "error", "warn", "info", "debug" };

void sheaf_log_set_level(enum sheaf_log_level level)
{
        atomic_store(&level_max, (int)level);
}

static int open_file(const char *path)
{
        sheaf_autofd int fd =
                open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

        if (fd < 0)
                return -errno;
        return dup2(fd, STDERR_FILENO) < 0 ? -errno : 0;
}

int sheaf_log_file(const char *path)
{
        int rc;

        if (strlen(path) >= sizeof(file_path))
                return -ENAMETOOLONG;
        rc = open_file(path);
        if (rc)
                return rc;
        snprintf(file_path, sizeof(file_path), "%s", path);
        atomic_store(&file_bounded, true);
        return 0;
}

static bool file_is_full(void)
{
        struct stat st;

        return fstat(STDERR_FILENO, &st) == 0 && S_ISREG(st.st_mode) &&
               (uint64_t)st.st_size > SHEAF_LOG_FILE_BYTES_MAX;
}

/* Without a place for them the old lines go, rather than the disk. */
static int file_renew(void)
{
        char older[PATH_MAX + 2];

        snprintf(older, sizeof(older), "%s.1", file_path);
        if ((rename(file_path, older) && errno != ENOENT) ||
                open_file(file_path))
                return ftruncate(STDERR_FILENO, 0);
        return 0;
}

/* One thread does it; the others go on in the file as it is. */
static void file_bound(void)
{
        static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

        if (!file_is_full() || pthread_mutex_trylock(&lock))
                return;
        if (file_is_full())
                (void)file_renew(); /* nobody to tell; the next line retries */
        pthread_mutex_unlock(&lock);
}

static size_t append(char *line, size_t len, const char *format, ...)
        SHEAF_PRINTF(3, 4);

static size_t append(char *line, size_t len, const char *format, ...)
{
        va_list args;
        int n;

        va_start(args, format);
        n = vsnprintf(line + len, LINE_BYTES_MAX - len, format, args);
        va_end(args);
        if (n < 0)
                return len;
        return SHEAF_MIN(len + (size_t)n, (size_t)LINE_BYTES_MAX - 2);
}

static void emit(enum sheaf_log_level level, const char *event, int rc,
        const char *format, va_list args) SHEAF_PRINTF(4, 0);

static void emit(enum sheaf_log_level level, const char *event, int rc,
        const char *format, va_list args)
{
        char line[LINE_BYTES_MAX], pairs[LINE_BYTES_MAX];
        int64_t wall_ns = sheaf_wall_ns();
        time_t sec = (time_t)(wall_ns / SHEAF_NS_PER_SEC);
        struct tm tm;
        size_t len;
        int n;

        gmtime_r(&sec, &tm);
        len = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &tm);
        n = vsnprintf(pairs, sizeof(pairs), format, args);
        len = append(line, len, ".%03dZ %s %s%s%s",
                (int)(wall_ns / SHEAF_NS_PER_MS % 1000), level_names[level],
                event, n > 0 ? " " : "", n > 0 ? pairs : "");
        if (rc < 0)
                len = append(line, len, " error=\"%s\"", strerror(-rc));
        for (size_t i = 0; i < len; i++) {
                if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
                        line[i] = '?';
        }
        line[len++] = '\n';
        if (write(STDERR_FILENO, line, len) < 0)
                return; /* nobody to tell */
        if (atomic_load(&file_bounded))
                file_bound();
}

int sheaf_log(
        enum sheaf_log_level level, const char *event, const char *format, ...)
{
        int saved = errno;
        va_list args;

        if ((int)level > atomic_load(&level_max))
                return 0;
        va_start(args, format);
        emit(level, event, 0, format, args);
        va_end(args);
        errno = saved;
        return 0;
}

int sheaf_log_rc(int rc, enum sheaf_log_level level, const char *event,
        const char *format, ...)
{
        int saved = errno;
        va_list args;

        if ((int)level > atomic_load(&level_max))
                return rc;
        va_start(args, format);
        emit(level, event, rc, format, args);
        va_end(args);
        errno = saved;
        return rc;
}

bool sheaf_log_once(struct sheaf_log_once *once, int64_t interval_ns)
{
        int64_t now_ns = sheaf_now_ns();

        if (once->next_ns && now_ns < once->next_ns) {
                once->held++;
                return false;
        }
        once->next_ns = interval_ns ? now_ns + interval_ns : INT64_MAX;
        once->held = 0;
        return true;
}
