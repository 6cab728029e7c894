/* SPDX-License-Identifier: Apache-2.0 */
/* A client's hazard array and the daemon that scans it: the input is a
 * program of what the daemon does with its memory and of what a client writes
 * into its array, the truth or lies, over its whole mapping. Another arena
 * wants memory of the same pool.
 *
 *  1 a block whose word was held truthfully, below the mark, before it was
 *    killed keeps its bytes until the slot is cleared, as the client maps them;
 *    also when its extent is given up
 *  2 what is resident has its own bytes
 *  3 lies cost nothing but memory: counters stay within bounds, and when the
 *    client is gone every block can be freed */
#include "daemon/store/arena.h"
#include "proto/pin.h"
#include "tests/fuzz/input.h"

#define CHUNKS    1500
#define TINY      210 /* chunks from this one on are tiny */
#define STEPS_MAX 400
#define CLIENTS   2
#define HELD_MAX  160
#define BYTES_MAX (32 * SHEAF_MIB)
#define MAP_BYTES ((sizeof(struct sheaf_hazard) + 4095) / 4096 * 4096)

struct client {
        struct sheaf_pins *pins;
        uint8_t *map;
        struct sheaf_hazard *hazard;
};

struct truth {
        struct client *client;
        uint32_t slot, chunk;
        uint32_t extent;
        uint64_t at;  /* in the arena */
        uint8_t *map; /* the client's, of the extent */
        const uint8_t *bytes;
};

static struct {
        struct sheaf_arena_pool *pool;
        struct sheaf_arena *arena, *other;
        struct sheaf_space *space, *other_space;
        struct sheaf_table *table, *other_table;
        uint64_t extent_bytes;
        const _Atomic uint64_t *words;
        struct client clients[CLIENTS];
        struct truth held[HELD_MAX];
        size_t held_count;
        bool lied; /* no slot is what it seems any more */
} rig;

static uint32_t len_of(uint32_t chunk)
{
        static const uint32_t lens[] = { 1, 5000, 70000, 600000, 1100000, 20000,
                3000000 };

        if (chunk >= TINY)
                return 1 + chunk % 3;
        return lens[chunk % SHEAF_ARRAY_LEN(lens)];
}

/* The first and last bytes tell the chunk. */
static void stamp(uint8_t *bytes, uint32_t chunk)
{
        bytes[0] = bytes[len_of(chunk) - 1] = (uint8_t)(chunk * 7 + 1);
}

static bool stamped(const uint8_t *bytes, uint32_t chunk)
{
        uint8_t want = (uint8_t)(chunk * 7 + 1);

        return bytes[0] == want && bytes[len_of(chunk) - 1] == want;
}

static void on_extent(void *arg, struct sheaf_arena *arena, uint32_t extent)
{
        (void)arg;
        (void)arena;
        (void)extent;
}

static bool holds(const struct client *client, uint32_t extent)
{
        for (size_t i = 0; i < rig.held_count; i++)
                if (rig.held[i].client == client &&
                        rig.held[i].extent == extent)
                        return true;
        return false;
}

/* Who holds nothing there lets go of it at once. */
static void on_drop(void *arg, struct sheaf_arena *arena, uint32_t extent)
{
        (void)arg;
        for (size_t i = 0; arena == rig.arena && i < CLIENTS; i++)
                if (rig.clients[i].pins && !holds(&rig.clients[i], extent))
                        sheaf_pins_unmapped(rig.clients[i].pins, extent);
}

static void connect_client(struct client *client)
{
        fuzz_must(!sheaf_pins_new(rig.arena, &client->pins));
        client->map = mmap(NULL, MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
                sheaf_pins_fd(client->pins), 0);
        fuzz_must(client->map != MAP_FAILED);
        client->hazard = (struct sheaf_hazard *)(void *)client->map;
}

/* The client has its bytes no more. */
static void forget(size_t which)
{
        struct truth truth = rig.held[which];
        int fd, lock_fd;

        rig.held[which] = rig.held[--rig.held_count];
        munmap(truth.map, rig.extent_bytes);
        if (sheaf_arena_extent(rig.arena, truth.extent, &fd, &lock_fd) &&
                !holds(truth.client, truth.extent))
                sheaf_pins_unmapped(truth.client->pins, truth.extent);
}

static void forget_held(const struct client *client)
{
        for (size_t i = rig.held_count; i--;)
                if (!client || rig.held[i].client == client)
                        forget(i);
}

static void end_client(struct client *client)
{
        if (!client->pins)
                return;
        forget_held(client);
        munmap(client->map, MAP_BYTES);
        sheaf_pins_free(client->pins);
        client->pins = NULL;
}

static void open_rig(void)
{
        struct sheaf_arena_config config = {
                .bytes_max = BYTES_MAX,
                .pages = SHEAF_PAGES_SMALL,
                .extent_new = on_extent,
                .extent_dropped = on_drop,
        };
        struct sheaf_arena_shape shape;
        uint8_t *map;

        rig.held_count = 0;
        rig.lied = false;
        fuzz_must(!sheaf_arena_shape(BYTES_MAX, &shape));
        rig.extent_bytes = shape.extent_bytes;
        /* The arena stays, for its memory costs the most; it is empty. */
        if (!rig.pool) {
                fuzz_must(!sheaf_arena_pool_new(&config, &rig.pool));
                fuzz_must(!sheaf_arena_new(rig.pool, "fuzz", &rig.arena));
        }
        fuzz_must(!sheaf_space_new(rig.arena, "set", &rig.space));
        sheaf_space_set_live(rig.space, true, 1);
        fuzz_must(!sheaf_table_new(rig.arena, 7, CHUNKS, &rig.table));
        fuzz_must(!sheaf_arena_new(rig.pool, "other", &rig.other));
        fuzz_must(!sheaf_space_new(rig.other, "set", &rig.other_space));
        sheaf_space_set_live(rig.other_space, true, 1);
        fuzz_must(!sheaf_table_new(rig.other, 8, CHUNKS, &rig.other_table));
        map = mmap(NULL, sheaf_table_bytes(CHUNKS), PROT_READ, MAP_SHARED,
                sheaf_table_fd(rig.table), 0);
        fuzz_must(map != MAP_FAILED);
        rig.words = (const _Atomic uint64_t *)(const void
                        *)(map + SHEAF_TABLE_WORDS_OFFSET);
        for (size_t i = 0; i < CLIENTS; i++)
                connect_client(&rig.clients[i]);
}

static void close_rig(void)
{
        struct sheaf_arena_pool_stats pool;
        struct sheaf_arena_stats stats;

        for (size_t i = 0; i < CLIENTS; i++)
                end_client(&rig.clients[i]);
        munmap((uint8_t *)(uintptr_t)rig.words - SHEAF_TABLE_WORDS_OFFSET,
                sheaf_table_bytes(CHUNKS));
        sheaf_table_free(rig.table);
        sheaf_space_free(rig.space);
        sheaf_arena_stats(rig.arena, &stats);
        fuzz_must(!stats.blocks && !stats.payload_bytes && !stats.clients &&
                  !stats.ghosts && !stats.granted_bytes);
        sheaf_table_free(rig.other_table);
        sheaf_space_free(rig.other_space);
        sheaf_arena_free(rig.other);
        sheaf_arena_pool_stats(rig.pool, &pool);
        fuzz_must(!pool.bytes_dropped_held && pool.bytes_mapped <= BYTES_MAX);
}

static void bring_to(
        struct sheaf_space *space, struct sheaf_table *table, uint32_t chunk)
{
        struct sheaf_digest digest;
        sheaf_block block;
        void *bytes;

        if (sheaf_table_block(table, chunk) ||
                sheaf_arena_place(space, len_of(chunk), &block, &bytes))
                return;
        stamp(bytes, chunk);
        memset(&digest, (int)chunk + 1, sizeof(digest));
        memcpy(&digest, &chunk, sizeof(chunk));
        sheaf_arena_commit(space, block, &digest, table, chunk);
}

/* Where nobody holds anything, but the same. */
static void check_place(uint32_t chunk)
{
        uint64_t at = sheaf_word_offset_bytes(atomic_load(&rig.words[chunk]));

        if (!sheaf_table_block(rig.table, chunk))
                return;
        for (size_t i = 0; i < rig.held_count; i++) {
                const struct truth *truth = &rig.held[i];

                fuzz_must(at >= truth->at + len_of(truth->chunk) ||
                          truth->at >= at + len_of(chunk) ||
                          (truth->at == at && truth->chunk == chunk));
        }
}

static void bring(uint32_t chunk)
{
        bring_to(rig.space, rig.table, chunk);
        check_place(chunk);
}

/* Pins as libsheaf does. */
static void hold(struct client *client, uint32_t chunk, uint32_t slot)
{
        sheaf_block block = sheaf_table_block(rig.table, chunk);
        uint64_t word = atomic_load(&rig.words[chunk]);
        uint64_t at = sheaf_word_offset_bytes(word);
        int fd, lock_fd;
        uint8_t *map;

        if (!client->pins || !block || rig.held_count == HELD_MAX || rig.lied)
                return;
        sheaf_pin_raise_mark(client->hazard, slot + 1);
        if (!sheaf_pin_publish(&client->hazard->slot[slot], word))
                return;
        fuzz_must(sheaf_pin_recheck(&rig.words[chunk], word));
        fuzz_must(!sheaf_arena_extent(
                rig.arena, (uint32_t)(at / rig.extent_bytes), &fd, &lock_fd));
        map = mmap(NULL, rig.extent_bytes, PROT_READ, MAP_SHARED, fd, 0);
        fuzz_must(map != MAP_FAILED);
        rig.held[rig.held_count++] = (struct truth){
                .client = client,
                .slot = slot,
                .chunk = chunk,
                .extent = (uint32_t)(at / rig.extent_bytes),
                .at = at,
                .map = map,
                .bytes = map + at % rig.extent_bytes,
        };
        fuzz_must(stamped(map + at % rig.extent_bytes, chunk));
}

static void let_go(size_t which)
{
        if (which >= rig.held_count)
                return;
        sheaf_pin_clear(
                &rig.held[which].client->hazard->slot[rig.held[which].slot]);
        forget(which);
}

/* One in @every of what is resident: pins are all over the memory. */
static void scatter(struct client *client, uint32_t first, uint32_t every)
{
        uint32_t seen = 0;

        for (uint32_t chunk = first; chunk < CHUNKS; chunk++)
                if (sheaf_table_block(rig.table, chunk) && seen++ % every == 0)
                        hold(client, chunk, 256 + chunk);
}

static void thin_out(uint32_t first, uint32_t every)
{
        for (uint32_t chunk = first; chunk < CHUNKS; chunk += every)
                sheaf_table_evict(rig.table, chunk);
}

/* They are pinned then, and nobody names them. */
static void evict_held(void)
{
        for (size_t i = 0; i < rig.held_count; i++)
                sheaf_table_evict(rig.table, rig.held[i].chunk);
}

/* Anything, anywhere in the array; above all words that might be right. */
static void lie(struct fuzz_input *in, struct client *client)
{
        uint8_t how = fuzz_u8(in);
        uint32_t slot = fuzz_u16(in) % SHEAF_HAZARD_SLOTS;
        uint64_t word = fuzz_u64(in);

        if (!client->pins)
                return;
        rig.lied = true;
        forget_held(NULL);
        if (how & 1)
                word = atomic_load(&rig.words[word % CHUNKS]) +
                       (how & 2 ? word >> 56 : 0);
        else if (how & 2) /* near the memory that there is */
                word = sheaf_word(word >> 40, word % (2 * BYTES_MAX));
        if (how & 4)
                atomic_store(&client->hazard->high_water, fuzz_u64(in));
        if (how & 8)
                memset(client->map + slot % MAP_BYTES, (int)word,
                        SHEAF_MIN(MAP_BYTES - slot % MAP_BYTES, word % 4096));
        atomic_store(&client->hazard->slot[slot], word);
}

static void look(struct client *client)
{
        uint64_t blocks = 0;

        if (!client->pins)
                return;
        fuzz_must(sheaf_pins_held(client->pins, &blocks) <=
                  SHEAF_HAZARD_SLOTS * SHEAF_CHUNK_BYTES_MAX);
        fuzz_must(blocks <= SHEAF_HAZARD_SLOTS);
        sheaf_arena_pinned_bytes(rig.arena);
        fuzz_must(sheaf_pins_grant(client->pins, UINT64_MAX) <= BYTES_MAX / 2);
        sheaf_pins_grant(client->pins, BYTES_MAX / 4);
}

static void fork_client(struct client *client)
{
        struct sheaf_ghost *ghost;

        if (!client->pins || sheaf_ghost_new(client->pins, &ghost))
                return;
        for (uint32_t chunk = 0; chunk < 12; chunk++)
                bring(chunk);
        sheaf_ghost_free(ghost);
}

/* Many at once. */
static void sweep(uint8_t op, uint8_t which, struct client *client)
{
        switch (op % 8) {
        case 0:
                scatter(client, 0, 1 + which % 16);
                break;
        case 1:
                thin_out(which % 7, 2 + which % 5);
                break;
        case 2:
                for (uint32_t i = 0; i < 700; i++)
                        bring(TINY + (which * 5U + i) % (CHUNKS - TINY));
                break;
        case 3: /* what the other arena wants, this one gives */
                for (uint32_t i = 0; i < 1U + which % 20; i++)
                        bring_to(rig.other_space, rig.other_table, which + i);
                break;
        case 4:
                evict_held();
                break;
        case 5: /* the large ones find no gap between pins */
                for (uint32_t i = 0; i < 1U + which % 8; i++)
                        bring((which + i) % (TINY / 7) * 7 + 6);
                break;
        case 6:
                while (rig.held_count)
                        let_go(rig.held_count - 1);
                break;
        default:
                sheaf_space_set_live(rig.space, which & 1, which);
                sheaf_space_want_ring(rig.space, which % 8 * UINT64_C(1000000));
        }
}

static void step(struct fuzz_input *in)
{
        uint8_t op = fuzz_u8(in), which = fuzz_u8(in);
        struct client *client = &rig.clients[op >> 7];

        if (op & 8) {
                sweep(op, which, client);
                return;
        }
        switch (op % 8) {
        case 0:
                bring(which % TINY);
                break;
        case 1: /* enough of them to recycle */
                for (uint32_t i = 0; i < 20; i++)
                        bring((which + i * 5) % TINY);
                break;
        case 2:
                hold(client, which % TINY, fuzz_u16(in) % SHEAF_HAZARD_SLOTS);
                break;
        case 3:
                let_go(which % HELD_MAX);
                break;
        case 4:
                sheaf_table_evict(rig.table, which % TINY);
                break;
        case 5:
                lie(in, client);
                break;
        case 6:
                if (which & 1)
                        look(client);
                else
                        fork_client(client);
                break;
        default:
                end_client(client);
                connect_client(client);
        }
}

static void check(void)
{
        for (size_t i = 0; i < rig.held_count; i++)
                fuzz_must(stamped(rig.held[i].bytes, rig.held[i].chunk));
        for (uint32_t chunk = 0; chunk < CHUNKS; chunk++) {
                sheaf_block block = sheaf_table_block(rig.table, chunk);
                const uint8_t *bytes;
                uint32_t len;

                if (!block)
                        continue;
                bytes = sheaf_arena_hold(rig.arena, block, &len);
                fuzz_must(len == len_of(chunk) && stamped(bytes, chunk));
                sheaf_arena_unhold(rig.arena, block);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct fuzz_input in = { data, size };

        open_rig();
        for (int i = 0; i < STEPS_MAX && in.left; i++)
                step(&in);
        check();
        close_rig();
        return 0;
}
