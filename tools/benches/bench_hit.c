/* SPDX-License-Identifier: Apache-2.0 */
/* What a hit costs, beside its rivals, over an arena in this process: no
 * daemon, warm mappings, one thread, the same random order for all.
 *
 *   sheaf-bench-hit [--quick] [--cpu]
 *
 * One JSON line a measure; value is the median of five runs; ratio is how
 * many times better than the rival, of pairs that alternate, and is met when
 * not below the goal. Where there is no rival the goal is the most that the
 * value may be. --cpu counts CPU time, for a machine with others; then there
 * is no memcached, which works in a process of its own. */
#include "client/pin.h"
#include "daemon/store/arena.h"
#include "proto/pages.h"

#include <fcntl.h>
#include <lmdb.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

#define RUNS         5
#define SAMPLE_BYTES 112640 /* 110 KiB */
#define TINY_BYTES   64

static char dir[64];
static uint64_t sink;
static clockid_t clock_id = CLOCK_MONOTONIC;

static void die(const char *what, int rc)
{
        fprintf(stderr, "sheaf-bench-hit: %s: %s\n", what, strerror(-rc));
        exit(1);
}

static double now_ns(void)
{
        struct timespec ts;

        clock_gettime(clock_id, &ts);
        return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static uint64_t mix(uint64_t x)
{
        x = (x ^ x >> 33) * UINT64_C(0xff51afd7ed558ccd);
        x = (x ^ x >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
        return x ^ x >> 33;
}

static int by_value(const void *a, const void *b)
{
        const double *x = a, *y = b;

        return (*x > *y) - (*x < *y);
}

typedef void operation(void *arg, uint64_t i);

static double cost(operation *each, void *arg, uint64_t n)
{
        double begin = now_ns();

        for (uint64_t i = 0; i < n; i++)
                each(arg, i);
        return (now_ns() - begin) / (double)n;
}

static double median(double values[RUNS])
{
        qsort(values, RUNS, sizeof(*values), by_value);
        return values[RUNS / 2];
}

/* Alternates @n of @ours and of @theirs, prints the median of our costs and
 * of the ratios, and returns the first. */
static double versus(const char *name, operation *ours, const char *rival,
        operation *theirs, void *arg, uint64_t n, double goal)
{
        double costs[RUNS], ratios[RUNS], ns, ratio;

        cost(theirs, arg, n); /* warms up */
        cost(ours, arg, n);
        for (int r = 0; r < RUNS; r++) {
                double rival_ns = cost(theirs, arg, n);

                costs[r] = cost(ours, arg, n);
                ratios[r] = rival_ns / costs[r];
        }
        ns = median(costs);
        ratio = median(ratios);
        printf("{\"name\": \"%s\", \"value\": %.2f, \"unit\": \"ns\", "
               "\"rival\": \"%s\", \"ratio\": %.3f, \"goal\": %.2f, "
               "\"met\": %s}\n",
                name, ns, rival, ratio, goal, ratio >= goal ? "true" : "false");
        fflush(stdout);
        return ns;
}

static void limit(const char *name, double ns, double most_ns)
{
        printf("{\"name\": \"%s\", \"value\": %.2f, \"unit\": \"ns\", "
               "\"rival\": null, \"ratio\": null, \"goal\": %.0f, "
               "\"met\": %s}\n",
                name, ns, most_ns, ns <= most_ns ? "true" : "false");
        fflush(stdout);
}

/* As wide as the machine adds, so that memory is the limit. @len is a
 * multiple of 128. */
static uint64_t sum(const void *bytes, size_t len)
{
        typedef uint64_t wide __attribute__((vector_size(32), aligned(1)));
        const wide *p = bytes;
        wide s[4] = { 0 };

        for (size_t i = 0; i < len / sizeof(wide); i += 4)
                for (size_t k = 0; k < 4; k++)
                        s[k] += p[i + k];
        s[0] += s[1] + s[2] + s[3];
        return s[0][0] + s[0][1] + s[0][2] + s[0][3];
}

/* ---- the arena ---- */

struct bench {
        struct sheaf_arena_pool *pool;
        struct sheaf_arena *arena;
        struct sheaf_space *space;
        struct sheaf_table *table;
        struct sheaf_pins *pins;
        struct sheaf_pinner pinner;
        const _Atomic uint64_t *words;
        _Atomic uint8_t *state;
        uint64_t chunks;
        uint32_t len;
        uint8_t *private_bytes;
        MDB_txn *txn;
        MDB_dbi dbi;
        int sock;
};

static void put_chunk(struct bench *b, uint64_t chunk)
{
        struct sheaf_digest digest;
        sheaf_block block;
        void *bytes;
        int rc = sheaf_arena_place(b->space, b->len, &block, &bytes);

        if (rc < 0)
                die("place", rc);
        memset(bytes, (int)chunk | 1, b->len);
        sheaf_digest_of(&chunk, sizeof(chunk), &digest);
        sheaf_arena_commit(b->space, block, &digest, b->table, chunk);
}

static void map_arena(struct bench *b, uint64_t extent_bytes)
{
        uint32_t end = sheaf_arena_extent_end(b->arena);
        struct sheaf_pin_map map = { .range_bytes = end * extent_bytes,
                .shift = (unsigned int)__builtin_ctzll(extent_bytes) };
        uint8_t *base = sheaf_pages_reserve(map.range_bytes);
        void *hazard = mmap(NULL, sizeof(struct sheaf_hazard),
                PROT_READ | PROT_WRITE, MAP_SHARED, sheaf_pins_fd(b->pins), 0);
        uint8_t *table = sheaf_pages_map(sheaf_table_bytes(b->chunks),
                PROT_READ, sheaf_table_fd(b->table));
        uint64_t parts = map.range_bytes >> map.shift;
        int fd, lock_fd, rc;

        b->state = sheaf_new(_Atomic uint8_t, parts);
        if (base == MAP_FAILED || hazard == MAP_FAILED || table == MAP_FAILED ||
                !b->state)
                die("map", -ENOMEM);
        for (uint32_t i = 0; i < end; i++) {
                rc = sheaf_arena_extent(b->arena, i, &fd, &lock_fd);
                if (rc < 0 ||
                        mmap(base + i * extent_bytes, extent_bytes, PROT_READ,
                                MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd,
                                0) == MAP_FAILED)
                        die("map an extent", rc ? rc : -errno);
        }
        for (uint64_t i = 0; i < parts; i++)
                atomic_init(&b->state[i], 1);
        map.base = base;
        map.state = b->state;
        b->words = (const _Atomic uint64_t *)(const void
                        *)(table + SHEAF_TABLE_WORDS_OFFSET);
        rc = sheaf_pinner_init(&b->pinner, hazard, &map, SHEAF_GIB);
        if (rc < 0)
                die("pinner", rc);
}

static void arena_open(struct bench *b, uint64_t chunks, uint32_t len)
{
        struct sheaf_arena_config config = { 0 };
        struct sheaf_arena_shape shape;
        uint64_t room = sheaf_round_up(len, 64) + 64;
        int rc;

        memset(b, 0, sizeof(*b));
        b->chunks = chunks;
        b->len = len;
        config.bytes_max = SHEAF_MAX(chunks * room * 9 / 8, 128 * SHEAF_MIB);
        rc = sheaf_arena_shape(config.bytes_max, &shape);
        if (rc == 0)
                rc = sheaf_arena_pool_new(&config, &b->pool);
        if (rc == 0)
                rc = sheaf_arena_new(b->pool, "bench", &b->arena);
        if (rc == 0)
                rc = sheaf_space_new(b->arena, "bench", &b->space);
        if (rc == 0)
                rc = sheaf_table_new(b->arena, 1, chunks, &b->table);
        if (rc == 0)
                rc = sheaf_pins_new(b->arena, &b->pins);
        if (rc < 0)
                die("arena", rc);
        for (uint64_t i = 0; i < chunks; i++)
                put_chunk(b, i);
        map_arena(b, shape.extent_bytes);
}

static void arena_close(struct bench *b)
{
        sheaf_pinner_fini(&b->pinner);
        munmap((void *)(uintptr_t)b->pinner.map.base,
                b->pinner.map.range_bytes);
        munmap(b->pinner.hazard, sizeof(struct sheaf_hazard));
        munmap((uint8_t *)(uintptr_t)b->words - SHEAF_TABLE_WORDS_OFFSET,
                sheaf_table_bytes(b->chunks));
        sheaf_pins_free(b->pins);
        sheaf_table_free(b->table);
        sheaf_space_free(b->space);
        sheaf_arena_free(b->arena);
        sheaf_arena_pool_free(b->pool);
        free(b->state);
}

static void hit(void *arg, uint64_t i)
{
        struct bench *b = arg;
        struct sheaf_pin pin;

        if (sheaf_pin_try(&b->pinner, NULL, &b->words[mix(i) % b->chunks],
                    b->len, SHEAF_PIN_HELD, &pin) < 0)
                die("pin", -EAGAIN);
        sheaf_unpin(&b->pinner, &pin);
}

static void hit_sum(void *arg, uint64_t i)
{
        struct bench *b = arg;
        struct sheaf_pin pin;

        if (sheaf_pin_try(&b->pinner, NULL, &b->words[mix(i) % b->chunks],
                    b->len, SHEAF_PIN_HELD, &pin) < 0)
                die("pin", -EAGAIN);
        sink += sum(pin.bytes, b->len);
        sheaf_unpin(&b->pinner, &pin);
}

/* ---- rivals ---- */

static void lmdb_get(void *arg, uint64_t i)
{
        struct bench *b = arg;
        uint64_t chunk = mix(i) % b->chunks;
        MDB_val key = { sizeof(chunk), &chunk }, value;

        if (mdb_get(b->txn, b->dbi, &key, &value))
                die("mdb_get", -ENOENT);
        sink += value.mv_size;
}

static double versus_lmdb(const char *name, struct bench *b, uint64_t n)
{
        char path[96], bytes[TINY_BYTES] = { 0 };
        MDB_val value = { sizeof(bytes), bytes };
        MDB_env *env;
        double ns;
        int rc;

        snprintf(path, sizeof(path), "%s/lmdb", dir);
        rc = mdb_env_create(&env);
        if (!rc)
                rc = mdb_env_set_mapsize(env, SHEAF_GIB);
        if (!rc)
                rc = mdb_env_open(env, path, MDB_NOSUBDIR | MDB_NOSYNC, 0600);
        if (!rc)
                rc = mdb_txn_begin(env, NULL, 0, &b->txn);
        if (!rc)
                rc = mdb_dbi_open(b->txn, NULL, MDB_INTEGERKEY, &b->dbi);
        for (uint64_t i = 0; !rc && i < b->chunks; i++) {
                MDB_val key = { sizeof(i), &i };

                rc = mdb_put(b->txn, b->dbi, &key, &value, MDB_APPEND);
        }
        if (!rc)
                rc = mdb_txn_commit(b->txn);
        if (!rc)
                rc = mdb_txn_begin(env, NULL, MDB_RDONLY, &b->txn);
        if (rc) {
                fprintf(stderr, "lmdb: %s\n", mdb_strerror(rc));
                exit(1);
        }
        ns = versus(name, hit, "lmdb.get", lmdb_get, b, n, 10);
        mdb_txn_abort(b->txn);
        mdb_env_close(env);
        unlink(path);
        strcat(path, "-lock");
        unlink(path);
        return ns;
}

static void private_sum(void *arg, uint64_t i)
{
        struct bench *b = arg;

        sink += sum(b->private_bytes + mix(i) % b->chunks * b->len, b->len);
}

static void file_path(char *path, size_t cap, uint64_t chunk)
{
        snprintf(path, cap, "%s/%06lu", dir, (unsigned long)chunk);
}

static void file_read(void *arg, uint64_t i)
{
        static uint8_t buf[SAMPLE_BYTES] __attribute__((aligned(64)));
        struct bench *b = arg;
        char path[96];
        int fd;

        file_path(path, sizeof(path), mix(i) % b->chunks);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || read(fd, buf, b->len) != (ssize_t)b->len)
                die(path, -EIO);
        close(fd);
        sink += sum(buf, b->len);
}

static void versus_files(const char *name, struct bench *b, uint64_t n)
{
        char path[96];

        for (uint64_t i = 0; i < b->chunks; i++) {
                int fd;

                file_path(path, sizeof(path), i);
                fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
                if (fd < 0 ||
                        write(fd, b->private_bytes, b->len) != (ssize_t)b->len)
                        die(path, -EIO);
                close(fd);
        }
        versus(name, hit_sum, "pagecache.open_read_close", file_read, b, n,
                2.8);
        for (uint64_t i = 0; i < b->chunks; i++) {
                file_path(path, sizeof(path), i);
                unlink(path);
        }
}

static void get_all(int sock, uint8_t *buf, size_t want)
{
        while (want) {
                ssize_t n = read(sock, buf, want);

                if (n <= 0)
                        die("memcached", -EIO);
                buf += n;
                want -= (size_t)n;
        }
}

static void memcached_get(void *arg, uint64_t i)
{
        static uint8_t buf[SAMPLE_BYTES + 256];
        struct bench *b = arg;
        uint64_t chunk = mix(i) % b->chunks;
        char text[64], head[64];
        int n = snprintf(
                text, sizeof(text), "get k%lu\r\n", (unsigned long)chunk);
        int h = snprintf(head, sizeof(head), "VALUE k%lu 0 %u\r\n",
                (unsigned long)chunk, b->len);

        if (write(b->sock, text, (size_t)n) != n)
                die("memcached", -EIO);
        get_all(b->sock, buf, (size_t)h + b->len + 7); /* \r\nEND\r\n */
        if (memcmp(buf, head, (size_t)h))
                die("memcached lost a value", -ENOENT);
        sink += sum(buf + h, b->len);
}

static int memcached_fill(struct bench *b)
{
        char text[64];
        uint8_t reply[8];

        for (uint64_t i = 0; i < b->chunks; i++) {
                int n = snprintf(text, sizeof(text), "set k%lu 0 0 %u\r\n",
                        (unsigned long)i, b->len);
                size_t at = 0;

                if (write(b->sock, text, (size_t)n) != n)
                        return -EIO;
                while (at < b->len) {
                        ssize_t w = write(
                                b->sock, b->private_bytes + at, b->len - at);

                        if (w <= 0)
                                return -EIO;
                        at += (size_t)w;
                }
                if (write(b->sock, "\r\n", 2) != 2)
                        return -EIO;
                get_all(b->sock, reply, 8); /* STORED\r\n */
        }
        return 0;
}

static void versus_memcached(const char *name, struct bench *b, uint64_t n)
{
        struct sockaddr_un addr = { .sun_family = AF_UNIX };
        struct timespec nap = { .tv_nsec = 20 * SHEAF_NS_PER_MS };
        bool done = false;
        pid_t pid;

        snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/mc", dir);
        pid = fork();
        if (pid == 0) {
                execlp("memcached", "memcached", "-u", "root", "-s",
                        addr.sun_path, "-a", "0777", "-m", "2048", "-t", "1",
                        (char *)NULL);
                _exit(127);
        }
        b->sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        for (int i = 0; i < 100; i++) {
                if (connect(b->sock, (struct sockaddr *)&addr, sizeof(addr)) ==
                        0) {
                        done = memcached_fill(b) == 0;
                        if (done)
                                versus(name, hit_sum, "memcached.get",
                                        memcached_get, b, n, 10);
                        break;
                }
                nanosleep(&nap, NULL);
        }
        close(b->sock);
        kill(pid, SIGTERM);
        waitpid(pid, NULL, 0);
        unlink(addr.sun_path);
        if (!done)
                fputs("sheaf-bench-hit: no memcached to compare with\n",
                        stderr);
}

/* ---- measures ---- */

static void lookups(
        const char *name, uint64_t chunks, uint64_t n, double most_ns)
{
        struct bench b;

        arena_open(&b, chunks, TINY_BYTES);
        limit(name, versus_lmdb(name, &b, n), most_ns);
        arena_close(&b);
}

static void samples(uint64_t chunks, uint64_t n)
{
        static const char name[] = "hit.read.110k";
        struct bench b;

        arena_open(&b, chunks, SAMPLE_BYTES);
        b.private_bytes = mmap(NULL, chunks * b.len, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (b.private_bytes == MAP_FAILED)
                die("private memory", -ENOMEM);
        (void)madvise(b.private_bytes, chunks * b.len, MADV_HUGEPAGE);
        memset(b.private_bytes, 1, chunks * b.len);
        versus(name, hit_sum, "memory.sum", private_sum, &b, n, .85);
        versus_files(name, &b, n);
        if (clock_id == CLOCK_MONOTONIC)
                versus_memcached(name, &b, n);
        munmap(b.private_bytes, chunks * b.len);
        arena_close(&b);
}

int main(int argc, char **argv)
{
        const char *tmp = getenv("TMPDIR");
        bool quick = false;

        for (int i = 1; i < argc; i++) {
                quick |= !strcmp(argv[i], "--quick");
                if (!strcmp(argv[i], "--cpu"))
                        clock_id = CLOCK_PROCESS_CPUTIME_ID;
        }
        snprintf(dir, sizeof(dir), "%.40s/sheaf-bench-XXXXXX",
                tmp ? tmp : "/tmp");
        if (!mkdtemp(dir))
                die(dir, -errno);
        chmod(dir, 0711);
        lookups("hit.lookup.10k", 10000, quick ? 200000 : 2000000, 15);
        lookups("hit.lookup.1280k", 1280000, quick ? 200000 : 2000000, 40);
        samples(quick ? 1024 : 8192, quick ? 1024 : 8192);
        rmdir(dir);
        return sink == 1;
}
