/* SPDX-License-Identifier: Apache-2.0 */
/* The shared memory of a dataset over one connection: residency table and
 * meter.
 *
 *  1 a map is complete before it becomes current, and is never changed then
 *  2 a superseded map's memory is replaced by empty pages at the same
 *    addresses: a late thread finds no word there and looks again
 *  3 counts survive: a superseded meter is added to the dataset's past
 *
 * Threads: the service thread under the session's lock; counting: any. */
#include "client/session.h"
#include "proto/pages.h"

#include <sys/stat.h>

/* Maps @bytes of @fd, or all of it when 0; -EPROTO when it is shorter. */
static int map_fd(
        int fd, size_t bytes, int prot, void **ret_map, size_t *ret_bytes)
{
        struct stat st;
        void *map;

        if (fd < 0)
                return -EPROTO;
        if (fstat(fd, &st))
                return -errno;
        if (!bytes)
                bytes = (size_t)st.st_size;
        if (!bytes || st.st_size < (off_t)bytes)
                return -EPROTO;
        map = sheaf_pages_map(bytes, prot, fd);
        if (map == MAP_FAILED)
                return -errno;
        *ret_map = map;
        *ret_bytes = bytes;
        return 0;
}

static int map_table(
        struct sheaf_dataset *dataset, struct sheaf_map *map, int fd)
{
        const struct sheaf_table_header *header;
        uint64_t words = dataset->listing.chunk_count;
        int rc = map_fd(fd, 0, PROT_READ, &map->table, &map->table_bytes);

        if (rc)
                return rc;
        header = map->table;
        if (map->table_bytes < sizeof(*header) ||
                header->magic != SHEAF_TABLE_MAGIC ||
                header->layout != SHEAF_SHM_LAYOUT ||
                header->words_offset_bytes % sizeof(uint64_t) ||
                header->word_count < words ||
                header->words_offset_bytes > map->table_bytes ||
                words > (map->table_bytes - header->words_offset_bytes) /
                                sizeof(uint64_t))
                return -EPROTO;
        map->words = (const _Atomic uint64_t *)((char *)map->table +
                                                header->words_offset_bytes);
        map->word_count = words;
        return 0;
}

static void map_free(struct sheaf_map *map)
{
        if (map->table)
                munmap(map->table, map->table_bytes);
        if (map->meter)
                munmap(map->meter, sizeof(*map->meter));
        free(map);
}

int sheaf_map_install(struct sheaf_dataset *dataset,
        struct sheaf_attach *attach, int table_fd, int meter_fd)
{
        struct sheaf_map *map = sheaf_new(struct sheaf_map, 1);
        void *meter;
        size_t meter_bytes;
        int rc;

        if (!map)
                return -ENOMEM;
        rc = map_table(dataset, map, table_fd);
        if (!rc)
                rc = map_fd(meter_fd, sizeof(struct sheaf_meter),
                        PROT_READ | PROT_WRITE, &meter, &meter_bytes);
        if (rc) {
                map_free(map);
                return rc;
        }
        map->meter = meter;
        map->attach = attach;
        sheaf_map_supersede(dataset);
        attach->map_users++;
        map->older = dataset->maps;
        dataset->maps = map;
        atomic_store_explicit(&dataset->map, map, memory_order_release);
        return 0;
}

static void add_meter(const struct sheaf_meter *meter, struct sheaf_stats *sum)
{
        for (size_t i = 0; i < SHEAF_METER_STRIPES; i++) {
                const struct sheaf_meter_stripe *s = &meter->stripe[i];

#define ADD(field)                                                             \
        sum->field += atomic_load_explicit(&s->field, memory_order_relaxed)
                ADD(hits);
                ADD(hit_bytes);
                ADD(misses);
                ADD(copies);
                ADD(copy_bytes);
                ADD(rechecks);
                ADD(wait_ns);
#undef ADD
        }
}

void sheaf_map_supersede(struct sheaf_dataset *dataset)
{
        struct sheaf_map *map =
                atomic_load_explicit(&dataset->map, memory_order_relaxed);

        if (!map)
                return;
        atomic_store_explicit(&dataset->map, NULL, memory_order_release);
        add_meter(map->meter, &dataset->past);
        /* When that is refused the old pages stay: right, merely memory of
         * a daemon that is gone. */
        (void)sheaf_pages_replace(map->table, map->table_bytes, PROT_READ);
        (void)sheaf_pages_replace(
                map->meter, sizeof(*map->meter), PROT_READ | PROT_WRITE);
        map->attach->map_users--;
}

void sheaf_map_free_all(struct sheaf_dataset *dataset)
{
        struct sheaf_map *map;

        while ((map = dataset->maps)) {
                dataset->maps = map->older;
                map_free(map);
        }
}

void sheaf_map_count_miss(
        struct sheaf_dataset *dataset, uint64_t chunks, uint64_t wait_ns)
{
        struct sheaf_map *map =
                atomic_load_explicit(&dataset->map, memory_order_acquire);

        if (!map)
                return;
        sheaf_pin_count(map->meter, misses, chunks);
        sheaf_pin_count(map->meter, wait_ns, wait_ns);
}

void sheaf_dataset_count_op(
        struct sheaf_dataset *dataset, enum sheaf_meter_op op, uint64_t n)
{
        struct sheaf_map *map =
                atomic_load_explicit(&dataset->map, memory_order_acquire);

        if (map)
                atomic_fetch_add_explicit(
                        &map->meter->op[op], n, memory_order_relaxed);
}

void sheaf_stats(
        const struct sheaf_dataset *dataset, struct sheaf_stats *ret_stats)
{
        struct sheaf_session *session = dataset->session;
        struct sheaf_stats sum;
        struct sheaf_map *map;

        pthread_mutex_lock(&session->lock);
        sum = dataset->past;
        map = atomic_load_explicit(&dataset->map, memory_order_relaxed);
        if (map) {
                add_meter(map->meter, &sum);
                sum.pinned_bytes =
                        atomic_load_explicit(&map->attach->pinner.charged_bytes,
                                memory_order_relaxed);
                sum.grant_bytes = atomic_load_explicit(
                        &map->attach->pinner.grant_bytes, memory_order_relaxed);
        }
        sum.reconnects = session->reconnects;
        sum.from_disk = dataset->from_disk;
        sum.from_origin = dataset->from_origin;
        sum.substituted = dataset->substituted;
        sum.pace_wait_ns = dataset->pace_wait_ns;
        pthread_mutex_unlock(&session->lock);
        *ret_stats = sum;
}
