/* SPDX-License-Identifier: Apache-2.0 */
/* Residency tables: which chunks of a version are in the arena, and where.
 *
 *  1 a word is 0 or that of a block which has (table, chunk) in its list
 *  2 the memfd is sealed before it has a reader
 *
 * Loop thread writes; clients read. */
#include "daemon/store/arena_impl.h"
#include "proto/pages.h"

#include <assert.h>

#define FREE_BATCH 16384

static int table_id(struct sheaf_arena *arena, uint16_t *ret_id)
{
        struct sheaf_table **tables;
        uint32_t cap = arena->table_cap ? 2 * arena->table_cap : 8;

        for (uint32_t i = 0; i < arena->table_cap; i++)
                if (!arena->tables[i]) {
                        *ret_id = (uint16_t)i;
                        return 0;
                }
        if (arena->table_cap >= SHEAF_TABLES_MAX)
                return -EUSERS;
        cap = SHEAF_MIN(cap, (uint32_t)SHEAF_TABLES_MAX);
        tables = realloc(arena->tables, cap * sizeof(*tables));
        if (!tables)
                return -ENOMEM;
        for (uint32_t i = arena->table_cap; i < cap; i++)
                tables[i] = NULL;
        *ret_id = (uint16_t)arena->table_cap;
        arena->tables = tables;
        arena->table_cap = cap;
        return 0;
}

bool sheaf_table_huge(const struct sheaf_arena_pool *pool)
{
        return pool->pages != SHEAF_PAGES_SMALL;
}

int sheaf_table_pages_new(
        uint64_t chunk_count, bool huge, struct sheaf_table_pages *ret_pages)
{
        struct sheaf_table_pages pages = { .fd = -1 };
        int rc;

        if (chunk_count >= SHEAF_NONE)
                return -EFBIG;
        pages.bytes = sheaf_table_bytes(chunk_count);
        /* A large table is read at random. */
        huge &= pages.bytes >= 2 * SHEAF_HUGE_BYTES;
        if (pages.bytes >= 2 * SHEAF_HUGE_BYTES)
                pages.bytes = sheaf_round_up(pages.bytes, SHEAF_HUGE_BYTES);
        rc = sheaf_extent_memfd(
                "sheaf-table", pages.bytes, true, &pages.fd, &pages.map);
        if (rc < 0)
                return rc;
        if (huge)
                (void)sheaf_pages_collapse(pages.map, pages.bytes);
        /* Readers of holes would make pages, and pay for them. */
        if (madvise(pages.map, pages.bytes, MADV_POPULATE_WRITE))
                memset(pages.map, 0, pages.bytes);
        *ret_pages = pages;
        return 0;
}

void sheaf_table_pages_free(struct sheaf_table_pages *pages)
{
        if (!pages->map)
                return;
        munmap(pages->map, pages->bytes);
        close(pages->fd);
        pages->map = NULL;
}

int sheaf_table_new_of(struct sheaf_arena *arena, uint64_t serial,
        uint64_t chunk_count, struct sheaf_table_pages *pages,
        struct sheaf_table **ret_table)
{
        sheaf_autofree struct sheaf_table *table =
                sheaf_new(struct sheaf_table, 1);
        int rc;

        if (!table)
                return -ENOMEM;
        table->arena = arena;
        table->chunk_count = chunk_count;
        rc = table_id(arena, &table->id);
        if (rc < 0)
                return rc;
        table->map_bytes = pages->bytes;
        table->fd = pages->fd;
        table->header = sheaf_steal(&pages->map);
        table->words = (_Atomic uint64_t *)((uint8_t *)table->header +
                                            SHEAF_TABLE_WORDS_OFFSET);
        *table->header = (struct sheaf_table_header){
                .magic = SHEAF_TABLE_MAGIC,
                .layout = SHEAF_SHM_LAYOUT,
                .words_offset_bytes = SHEAF_TABLE_WORDS_OFFSET,
                .word_count = chunk_count,
                .version_serial = serial,
        };
        arena->tables[table->id] = table;
        arena->table_count++;
        *ret_table = sheaf_steal(&table);
        return 0;
}

int sheaf_table_new(struct sheaf_arena *arena, uint64_t serial,
        uint64_t chunk_count, struct sheaf_table **ret_table)
{
        struct sheaf_table_pages pages;
        int rc = sheaf_table_pages_new(
                chunk_count, sheaf_table_huge(arena->pool), &pages);

        if (rc < 0)
                return rc;
        rc = sheaf_table_new_of(arena, serial, chunk_count, &pages, ret_table);
        sheaf_table_pages_free(&pages);
        return rc;
}

int sheaf_table_fd(const struct sheaf_table *table)
{
        return table->fd;
}

static uint64_t word_of(const struct sheaf_table *table, uint64_t chunk)
{
        assert(chunk < table->chunk_count);
        return atomic_load_explicit(&table->words[chunk], memory_order_relaxed);
}

/* Takes the name from its block; the block, or 0 when it was not there. */
static sheaf_block unname(struct sheaf_table *table, uint64_t chunk)
{
        struct sheaf_arena *arena = table->arena;
        sheaf_block block = sheaf_block_of_word(arena, word_of(table, chunk));

        if (!block)
                return 0;
        sheaf_pin_kill(&table->words[chunk]);
        table->resident--;
        table->resident_bytes -= sheaf_block_at(arena, block)->len_bytes;
        sheaf_block_unref(arena, block, table->id, (uint32_t)chunk);
        return block;
}

void sheaf_table_free(struct sheaf_table *table)
{
        struct sheaf_arena *arena;
        uint32_t n = 0;

        if (!table)
                return;
        arena = table->arena;

        sheaf_autofree sheaf_block *loose = sheaf_new(sheaf_block, FREE_BATCH);

        for (uint64_t i = 0; i < table->chunk_count; i++) {
                sheaf_block block = unname(table, i);

                if (!block || sheaf_block_named(sheaf_block_at(arena, block)))
                        continue;
                if (!loose) {
                        sheaf_reclaim_blocks(arena, &block, 1);
                        continue;
                }
                loose[n++] = block;
                if (n == FREE_BATCH) {
                        sheaf_reclaim_blocks(arena, loose, n);
                        n = 0;
                }
        }
        if (n)
                sheaf_reclaim_blocks(arena, loose, n);
        arena->tables[table->id] = NULL;
        arena->table_count--;
        munmap(table->header, table->map_bytes);
        close(table->fd);
        free(table);
}

sheaf_block sheaf_table_block(const struct sheaf_table *table, uint64_t chunk)
{
        return sheaf_block_of_word(table->arena, word_of(table, chunk));
}

bool sheaf_table_evict(struct sheaf_table *table, uint64_t chunk)
{
        sheaf_block block = unname(table, chunk);

        if (!block)
                return false;
        if (!sheaf_block_named(sheaf_block_at(table->arena, block)))
                sheaf_reclaim_blocks(table->arena, &block, 1);
        return true;
}

uint64_t sheaf_table_resident(
        const struct sheaf_table *table, uint64_t *ret_bytes)
{
        if (ret_bytes)
                *ret_bytes = table->resident_bytes;
        return table->resident;
}

int sheaf_arena_join(struct sheaf_arena *arena, sheaf_block block,
        struct sheaf_table *table, uint64_t chunk)
{
        struct sheaf_block_slot *slot = sheaf_block_at(arena, block);
        uint64_t word = sheaf_block_word(slot);
        int rc;

        assert(chunk < table->chunk_count);
        assert(slot->state == SHEAF_BLOCK_LIVE);
        if (word_of(table, chunk) == word)
                return 0;
        if (word_of(table, chunk))
                sheaf_table_evict(table, chunk);
        rc = sheaf_block_ref(arena, block, table->id, (uint32_t)chunk);
        if (rc < 0)
                return rc;
        sheaf_pin_set(&table->words[chunk], word);
        table->resident++;
        table->resident_bytes += slot->len_bytes;
        return 0;
}
