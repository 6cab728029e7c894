/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a control message: refused, or a message that packs into as
 * many bytes as it says. (Not always back into itself: protobuf-c rewrites
 * the tags of fields that it does not know.) */
#include "proto/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        Sheaf__Envelope *env = sheaf_wire_decode(data, size);
        sheaf_autofree uint8_t *packed = NULL;
        size_t len;

        if (!env)
                return 0;
        len = sheaf__envelope__get_packed_size(env);
        packed = malloc(len ? len : 1);
        if (packed && sheaf__envelope__pack(env, packed) != len)
                abort();
        sheaf__envelope__free_unpacked(env, NULL);
        return 0;
}
