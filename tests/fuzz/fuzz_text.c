/* SPDX-License-Identifier: Apache-2.0 */
/* Text that comes from people and messages: sizes, digests, paths.
 *
 *  1 a size that is taken is taken again in digits, and as it is shown means
 *    the same within what the shown digits tell
 *  2 a digest that is taken prints as what it was
 *  3 a path that is found leads to an entry whose path finds it again; a walk
 *    passes each chunk of the wanted files once */
#include "daemon/verbs/paths.h"
#include "proto/digest.h"
#include "proto/size.h"
#include "tests/fuzz/input.h"
#include "tests/proto/make_listing.h"

#include <ctype.h>

#define PATHS_MAX 8

static void size_of(const char *text)
{
        char digits[32], shown[SHEAF_SIZE_TEXT_MAX];
        uint64_t bytes, again;

        if (sheaf_size_parse(text, &bytes))
                return;
        snprintf(digits, sizeof(digits), "%llu", (unsigned long long)bytes);
        fuzz_must(!sheaf_size_parse(digits, &again) && again == bytes);
        sheaf_size_text(bytes, shown);
        /* The largest are shown as one more than there can be. */
        if (bytes > UINT64_MAX - (UINT64_MAX >> 5))
                return;
        fuzz_must(!sheaf_size_parse(shown, &again));
        fuzz_must(
                (again > bytes ? again - bytes : bytes - again) <= bytes / 19);
}

static void digest_of(const char *text)
{
        struct sheaf_digest digest;
        char hex[SHEAF_DIGEST_HEX + 1];

        if (sheaf_digest_parse(text, &digest))
                return;
        sheaf_digest_hex(&digest, hex);
        for (size_t i = 0; i <= SHEAF_DIGEST_HEX; i++)
                fuzz_must(hex[i] == tolower((unsigned char)text[i]));
}

static void walk(const struct sheaf_listing *listing,
        const ProtobufCBinaryData *paths, size_t count)
{
        sheaf_autofree uint8_t *passed = calloc(1, listing->chunk_count + 1);
        struct sheaf_walk walk;
        uint32_t entry, index;
        enum sheaf_walked walked;
        uint64_t chunks = 0, chunk;
        size_t bad = count;

        fuzz_must(passed);
        if (sheaf_walk_begin(&walk, listing, count, paths, &bad)) {
                fuzz_must(bad < count);
                return;
        }
        while (!sheaf_walk_prepare(&walk))
                ;
        while ((walked = sheaf_walk_next(&walk, &entry, &index))) {
                if (walked == SHEAF_WALK_ON)
                        continue;
                chunk = listing->entries[entry].first_chunk + index;
                fuzz_must(sheaf_listing_is_file(listing, entry));
                fuzz_must(chunk < listing->chunk_count && !passed[chunk]++);
                chunks++;
        }
        fuzz_must(chunks == walk.chunks);
        sheaf_walk_end(&walk);
}

static void path_of(
        const struct sheaf_listing *listing, const ProtobufCBinaryData *path)
{
        char text[1024];
        uint32_t entry, again;
        size_t len;

        if (sheaf_listing_find(
                    listing, (const char *)path->data, path->len, &entry))
                return;
        len = sheaf_listing_path(listing, entry, text, sizeof(text));
        fuzz_must(len < sizeof(text));
        fuzz_must(!sheaf_listing_find(listing, text, len, &again) &&
                  again == entry);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static struct block block;
        sheaf_autofree char *text = malloc(size + 1);
        ProtobufCBinaryData paths[PATHS_MAX];
        size_t count = 0;

        fuzz_must(text);
        if (!block.data)
                make_random(7, 60, 0, 3, &block);
        if (size)
                memcpy(text, data, size);
        text[size] = 0;
        size_of(text);
        digest_of(text);
        /* Paths end at newlines: they may hold a NUL. */
        for (size_t at = 0; at < size && count < PATHS_MAX; count++) {
                char *end = memchr(text + at, '\n', size - at);
                size_t len = end ? (size_t)(end - text) - at : size - at;

                paths[count] =
                        (ProtobufCBinaryData){ len, (uint8_t *)text + at };
                path_of(&block.view, &paths[count]);
                at += len + 1;
        }
        walk(&block.view, paths, count);
        return 0;
}
