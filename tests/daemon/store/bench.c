/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of the disk tier: bench-store [--pread] BYTES COUNT [DIR]
 * writes COUNT chunks, closes, drops the page cache's copy, reads all in a
 * random order at depth 32, kills a copy of itself and times recovery. */
#include "kit.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define DEPTH 32

struct slot {
        struct sheaf_store_read read;
        struct bench *bench;
};

struct bench {
        struct kit *kit;
        struct kit_version *v;
        uint64_t *order, next, count, flying, bytes;
        struct slot slots[DEPTH];
};

static double cpu_s(void)
{
        struct rusage u;

        getrusage(RUSAGE_SELF, &u);
        return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
               (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void issue(struct bench *b, struct slot *slot);

static void on_read(struct sheaf_store_read *read, int rc)
{
        struct slot *slot = (struct slot *)read;
        struct bench *b = slot->bench;

        if (rc)
                abort();
        b->bytes += read->ref.len_bytes;
        sheaf_store_read_end(read);
        b->flying--;
        issue(b, slot);
}

static void issue(struct bench *b, struct slot *slot)
{
        if (b->next == b->count)
                return;
        slot->bench = b;
        slot->read.ref = kit_ref(b->v, b->order[b->next++]);
        slot->read.done = on_read;
        b->flying++;
        sheaf_store_read(b->kit->store, &slot->read);
}

static void show(const char *what, double bytes, uint64_t count,
        int64_t start_ns, double cpu)
{
        double s = (double)(sheaf_now_ns() - start_ns) / 1e9;

        printf("%-8s %7.0f MB/s %9.0f chunks/s  %6.1f us cpu a chunk\n", what,
                bytes / 1e6 / s, (double)count / s,
                (cpu_s() - cpu) * 1e6 / (double)count);
}

static void read_all(struct kit *kit, struct kit_version *v)
{
        struct bench b = {
                .kit = kit, .v = v, .count = v->listing.chunk_count
        };
        unsigned int seed = 1;
        int64_t start_ns;
        double cpu;

        b.order = sheaf_new(uint64_t, b.count);
        for (uint64_t i = 0; i < b.count; i++) {
                uint64_t j = (uint64_t)rand_r(&seed) % (i + 1);

                b.order[i] = b.order[j];
                b.order[j] = i;
        }
        start_ns = sheaf_now_ns();
        cpu = cpu_s();
        for (int i = 0; i < DEPTH; i++)
                issue(&b, &b.slots[i]);
        while (b.flying)
                uv_run(&kit->loop, UV_RUN_ONCE);
        show("read", (double)b.bytes, b.count, start_ns, cpu);
        free(b.order);
}

static void recovery(struct kit *kit, struct kit_version *v)
{
        int status, pid;
        int64_t start_ns;

        pid = fork();
        if (pid == 0) {
                uv_loop_t loop;

                uv_loop_init(&loop);
                kit->config.loop = &loop;
                kit_open(kit);
                raise(SIGKILL);
        }
        waitpid(pid, &status, 0);
        start_ns = sheaf_now_ns();
        kit_open(kit);
        printf("open after a kill %.1f ms (store), ",
                (double)(sheaf_now_ns() - start_ns) / 1e6);
        kit_version_reopen(kit, v, 7);
        printf("%.1f ms (with arrays), recovered %lu of %lu\n",
                (double)(sheaf_now_ns() - start_ns) / 1e6,
                kit_stats(kit).recovered_chunks, v->listing.chunk_count);
}

int main(int argc, char **argv)
{
        bool uring = !(argc > 1 && !strcmp(argv[1], "--pread"));
        int at = uring ? 1 : 2;
        uint64_t bytes, count, *sizes;
        struct kit kit;
        struct kit_version v;
        int64_t start_ns;
        double cpu;

        if (argc < at + 2)
                return 2;
        bytes = strtoull(argv[at], NULL, 10);
        count = strtoull(argv[at + 1], NULL, 10);
        sizes = sheaf_new(uint64_t, count);
        for (uint64_t i = 0; i < count; i++)
                sizes[i] = bytes;
        kit_begin(&kit, 32 * SHEAF_GIB);
        kit_close(&kit);
        kit.config.want_uring = uring;
        kit_open(&kit);
        kit_version(&kit, &v, 1, 7, sizes, count, 1);
        start_ns = sheaf_now_ns();
        cpu = cpu_s();
        kit_write_all(&kit, &v);
        show("write", (double)(bytes * count), count, start_ns, cpu);
        printf("catalog %.3f, containers %.3f bytes a payload byte\n",
                (double)kit_stats(&kit).catalog_written_bytes /
                        (double)(bytes * count),
                (double)kit_stats(&kit).container_written_bytes /
                        (double)(bytes * count));
        kit_close(&kit);
        sync();
        kit_open(&kit);
        kit_version_reopen(&kit, &v, 7);
        read_all(&kit, &v);
        kit_close(&kit);
        recovery(&kit, &v);
        kit_end(&kit);
        kit_version_end(&v);
        free(sizes);
        return 0;
}
