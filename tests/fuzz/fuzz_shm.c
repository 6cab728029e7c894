/* SPDX-License-Identifier: Apache-2.0 */
/* What a client is given to map: figures of an arena, a hazard array, extents,
 * a residency table and a meter, of any size and content.
 *
 *  1 refused with an error, or everything that is used lies inside what was
 *    mapped: no word leads out of the arena's range
 *  2 a pin whose extent is there can be read; after unpinning nothing is held
 *    and nothing charged
 *  3 nothing stays mapped or open */
#include "client/internal.h"
#include "client/session.h"
#include "tests/fuzz/input.h"

#define EXTENT_BYTES (64 * SHEAF_KIB)
#define EXTENTS      4
#define CHUNKS_MAX   64

struct place {
        uint64_t chunk;
        uint32_t len_bytes;
};

static int memfd(const void *bytes, size_t len, uint64_t size)
{
        int fd = memfd_create("fuzz", MFD_CLOEXEC);

        fuzz_must(fd >= 0 && !ftruncate(fd, (off_t)size));
        fuzz_must(pwrite(fd, bytes, SHEAF_MIN(len, size), 0) >= 0);
        return fd;
}

static struct sheaf_attach *attach(struct fuzz_input *in)
{
        struct sheaf_hazard header = { .magic = SHEAF_HAZARD_MAGIC,
                .layout = SHEAF_SHM_LAYOUT,
                .slot_count = SHEAF_HAZARD_SLOTS };
        uint8_t how = fuzz_u8(in);
        uint64_t extent = how & 1 ? fuzz_u32(in) : EXTENT_BYTES;
        uint64_t range = how & 2 ? fuzz_u64(in) : EXTENTS * extent;
        uint64_t size =
                how & 4 ? fuzz_u32(in) % (256 * SHEAF_KIB) : sizeof(header);
        struct sheaf_attach *made = NULL;
        sheaf_autofd int fd = -1;
        int rc;

        /* What is asked for is reserved; not more than a test may take. */
        range = SHEAF_MIN(range, SHEAF_GIB);
        if (how & 8)
                ((uint8_t *)&header)[fuzz_u8(in) % 64] ^= fuzz_u8(in);
        if (how & 16)
                atomic_store(&header.high_water, fuzz_u64(in));
        fd = memfd(&header, sizeof(header), size);
        rc = sheaf_attach_new(1, extent, range, 8 * SHEAF_MIB, fd, &made);
        fuzz_must(rc <= 0 && (rc == 0) == (made != NULL));
        return made;
}

static void map_extents(struct fuzz_input *in, struct sheaf_attach *made)
{
        uint8_t how = fuzz_u8(in);

        for (int i = 0; i < EXTENTS; i++) {
                uint32_t extent = how & 16 ? fuzz_u32(in) : (uint32_t)i;
                int lock_fd = memfd("", 0, 0);
                int fd = memfd("", 0,
                        how >> i & 1 ? fuzz_u16(in) : made->extent_bytes);
                int rc = sheaf_attach_map(made, extent, fd, &lock_fd);

                fuzz_must(rc <= 0 && (rc == 0) == (lock_fd == -1));
                sheaf_close_p(&lock_fd);
                close(fd);
                if (!rc && how & 32)
                        fuzz_must(!sheaf_attach_drop(made, extent));
        }
}

/* Header and words as the input has them. */
static int table(struct fuzz_input *in, uint64_t chunks)
{
        uint8_t bytes[4096 + CHUNKS_MAX * 8] = { 0 };
        struct sheaf_table_header header = { .magic = SHEAF_TABLE_MAGIC,
                .layout = SHEAF_SHM_LAYOUT,
                .words_offset_bytes = SHEAF_TABLE_WORDS_OFFSET,
                .word_count = chunks,
                .version_serial = 1 };
        uint8_t how = fuzz_u8(in);
        uint64_t size = how & 1 ? fuzz_u16(in) : sheaf_table_bytes(chunks);

        if (how & 2)
                header.words_offset_bytes = fuzz_u32(in);
        if (how & 4)
                ((uint8_t *)&header)[fuzz_u8(in) % sizeof(header)] ^=
                        fuzz_u8(in);
        memcpy(bytes, &header, sizeof(header));
        for (uint64_t i = 0; i < chunks; i++) {
                uint64_t word = fuzz_u64(in);

                /* Half of them near the memory that there is. */
                if (word & 1)
                        word = sheaf_word(word >> 40,
                                (word >> 1) % (2 * EXTENTS * EXTENT_BYTES));
                memcpy(bytes + SHEAF_TABLE_WORDS_OFFSET + i * sizeof(word),
                        &word, sizeof(word));
        }
        return memfd(bytes, sizeof(bytes), size);
}

static void pin(struct sheaf_map *map, uint64_t chunk, uint32_t len)
{
        const struct sheaf_attach *made = map->attach;
        const uint8_t *base = map->attach->base;
        struct sheaf_pin got;
        uint64_t at;
        int rc = sheaf_map_pin(map, chunk, len, SHEAF_PIN_HELD, &got);

        fuzz_must(rc <= 0);
        if (rc)
                return;
        at = (uint64_t)(got.bytes - base);
        fuzz_must(got.bytes >= base &&
                  at + len <= made->extent_count * made->extent_bytes);
        if (made->extent[(at + len - 1) / made->extent_bytes].state ==
                SHEAF_EXTENT_MAPPED)
                fuzz_must(!got.bytes[0] && !got.bytes[len - 1]);
        sheaf_unpin(&map->attach->pinner, &got);
}

static void no_op(void *arg, uint32_t arena, uint32_t extent)
{
        (void)arg;
        (void)arena;
        (void)extent;
}

static void use(struct fuzz_input *in, struct sheaf_attach *made)
{
        struct sheaf_dataset *dataset = sheaf_new(struct sheaf_dataset, 1);
        uint64_t chunks = fuzz_u8(in) % CHUNKS_MAX + 1;
        uint8_t how = fuzz_u8(in);
        int table_fd = table(in, chunks);
        int meter_fd = memfd(
                "", 0, how & 1 ? fuzz_u16(in) : sizeof(struct sheaf_meter));
        struct sheaf_map *map;
        int rc;

        fuzz_must(dataset);
        dataset->listing.chunk_count = chunks + (how & 2 ? fuzz_u32(in) : 0);
        rc = sheaf_map_install(dataset, made, table_fd, meter_fd);
        fuzz_must(rc <= 0);
        close(table_fd);
        close(meter_fd);
        if (!rc) {
                map = atomic_load(&dataset->map);
                fuzz_must(map && map->word_count);
                for (uint64_t i = 0; i < map->word_count && i < 256; i++)
                        pin(map, i, i % 2 ? 1 : EXTENT_BYTES / 2);
                fuzz_must(!sheaf_attach_pins(made) || how & 4);
                sheaf_map_supersede(dataset);
        }
        sheaf_map_free_all(dataset);
        free(dataset);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct fuzz_input in = { data, size };
        int before = dup(0);
        struct sheaf_attach *made;

        close(before);
        made = attach(&in);
        if (made) {
                map_extents(&in, made);
                use(&in, made);
                sheaf_attach_let_go(made, no_op, NULL);
                sheaf_attach_free(made);
        }
        fuzz_must(dup(0) == before);
        close(before);
        return 0;
}
