/* SPDX-License-Identifier: Apache-2.0 */
/* Digests against the vectors of FIPS 180-4, and their text. */
#include "proto/digest.h"

#include <criterion/criterion.h>

static const struct vector {
        const char *message, *hex;
} vectors[] = {
        { "", "e3b0c44298fc1c149afbf4c8996fb924"
              "27ae41e4649b934ca495991b7852b855" },
        { "abc", "ba7816bf8f01cfea414140de5dae2223"
                 "b00361a396177a9cb410ff61f20015ad" },
        { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "248d6a61d20638b8e5c026930c3e6039"
                "a33ce45964ff2167f6ecedd419db06c1" },
};

Test(digest, vectors)
{
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(vectors); i++) {
                struct sheaf_digest digest;
                char hex[SHEAF_DIGEST_HEX + 1];

                sheaf_digest_of(vectors[i].message, strlen(vectors[i].message),
                        &digest);
                sheaf_digest_hex(&digest, hex);
                cr_assert_str_eq(hex, vectors[i].hex);
        }
}

Test(digest, fed_in_pieces_and_used_again)
{
        struct sheaf_digest whole, pieces;
        struct sheaf_hasher *hasher;
        uint8_t data[10000];

        for (size_t i = 0; i < sizeof(data); i++)
                data[i] = (uint8_t)(i * 7);
        sheaf_digest_of(data, sizeof(data), &whole);
        cr_assert_eq(sheaf_hasher_new(&hasher), 0);
        for (size_t step = 1; step < 5000; step = step * 3 + 1) {
                for (size_t at = 0; at < sizeof(data); at += step)
                        sheaf_hasher_feed(hasher, data + at,
                                SHEAF_MIN(step, sizeof(data) - at));
                sheaf_hasher_finish(hasher, &pieces);
                cr_assert(sheaf_digest_equal(&whole, &pieces));
        }
        sheaf_hasher_feed(hasher, "junk", 4);
        sheaf_hasher_reset(hasher);
        sheaf_hasher_feed(hasher, data, sizeof(data));
        sheaf_hasher_finish(hasher, &pieces);
        cr_assert(sheaf_digest_equal(&whole, &pieces));
        sheaf_hasher_free_p(&hasher);
        cr_assert_null(hasher);
}

Test(digest, text_both_ways)
{
        struct sheaf_digest a, b;
        char hex[SHEAF_DIGEST_HEX + 1];

        sheaf_digest_of("x", 1, &a);
        sheaf_digest_hex(&a, hex);
        cr_assert_eq(sheaf_digest_parse(hex, &b), 0);
        cr_assert(sheaf_digest_equal(&a, &b));
        for (char *p = hex; *p; p++)
                *p = (char)(*p >= 'a' ? *p - 32 : *p);
        cr_assert_eq(sheaf_digest_parse(hex, &b), 0);
        cr_assert(sheaf_digest_equal(&a, &b));
}

Test(digest, bad_text_is_refused_and_leaves_the_output)
{
        struct sheaf_digest digest, before;
        char hex[SHEAF_DIGEST_HEX + 2];

        memset(&before, 0x5a, sizeof(before));
        memset(hex, 'a', sizeof(hex));
        hex[SHEAF_DIGEST_HEX + 1] = 0; /* one too long */
        digest = before;
        cr_assert_eq(sheaf_digest_parse(hex, &digest), -EINVAL);
        hex[SHEAF_DIGEST_HEX] = 0;
        cr_assert_eq(sheaf_digest_parse(hex + 1, &digest), -EINVAL);
        cr_assert_eq(sheaf_digest_parse("", &digest), -EINVAL);
        for (size_t i = 0; i < SHEAF_DIGEST_HEX; i++) {
                hex[i] = 'g';
                cr_assert_eq(sheaf_digest_parse(hex, &digest), -EINVAL);
                hex[i] = 'a';
        }
        cr_assert(sheaf_digest_equal(&digest, &before));
}

Test(digest, zero_means_unknown)
{
        struct sheaf_digest digest = { { 0 } };

        cr_assert_not(sheaf_digest_known(&digest));
        digest.bytes[31] = 1;
        cr_assert(sheaf_digest_known(&digest));
        cr_assert_eq(sheaf_digest_prefix(&digest), 0);
        digest.bytes[0] = 2;
        cr_assert_eq(sheaf_digest_prefix(&digest), 2);
}
