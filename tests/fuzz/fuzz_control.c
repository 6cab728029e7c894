/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a control message: refused, or packed and decoded to the
 * same message again. */
#include "proto/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        Sheaf__Envelope *env = sheaf_wire_decode(data, size), *again;
        sheaf_autofree uint8_t *packed = NULL;
        size_t len;

        if (!env)
                return 0;
        len = sheaf__envelope__get_packed_size(env);
        packed = malloc(len ? len : 1);
        if (packed && sheaf__envelope__pack(env, packed) != len)
                abort();
        /* Packing may be longer than what came: merged or spread fields. */
        if (packed && len <= SHEAF_WIRE_BYTES_MAX) {
                again = sheaf_wire_decode(packed, len);
                if (!again || again->body_case != env->body_case ||
                        again->id != env->id)
                        abort();
                sheaf__envelope__free_unpacked(again, NULL);
        }
        sheaf__envelope__free_unpacked(env, NULL);
        return 0;
}
