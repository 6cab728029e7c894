/* SPDX-License-Identifier: Apache-2.0 */
/* What every decoded message must hold: it packs into as many bytes as it
 * says, and, without the fields that this build does not know (whose tags
 * protobuf-c rewrites), decodes and packs into the same bytes again. */
#ifndef SHEAF_TESTS_FUZZ_MESSAGE_H
#define SHEAF_TESTS_FUZZ_MESSAGE_H

#include "proto/base.h"

#include <protobuf-c/protobuf-c.h>

static void fuzz_strip(ProtobufCMessage *message);

static void fuzz_strip_field(
        ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
        void *at = (char *)message + field->offset;
        const void *count = (char *)message + field->quantifier_offset;

        if (field->type != PROTOBUF_C_TYPE_MESSAGE)
                return;
        if (field->label == PROTOBUF_C_LABEL_REPEATED) {
                ProtobufCMessage **each = *(ProtobufCMessage ***)at;

                for (size_t i = 0; i < *(const size_t *)count; i++)
                        fuzz_strip(each[i]);
                return;
        }
        if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF &&
                *(const uint32_t *)count != field->id)
                return;
        if (*(ProtobufCMessage **)at)
                fuzz_strip(*(ProtobufCMessage **)at);
}

static void fuzz_strip(ProtobufCMessage *message)
{
        for (unsigned int i = 0; i < message->n_unknown_fields; i++)
                free(message->unknown_fields[i].data);
        free(message->unknown_fields);
        message->unknown_fields = NULL;
        message->n_unknown_fields = 0;
        for (unsigned int i = 0; i < message->descriptor->n_fields; i++)
                fuzz_strip_field(message, &message->descriptor->fields[i]);
}

static uint8_t *fuzz_pack(const ProtobufCMessage *message, size_t *ret_len)
{
        size_t len = protobuf_c_message_get_packed_size(message);
        uint8_t *data = malloc(len + 1);

        if (!data || protobuf_c_message_pack(message, data) != len)
                abort();
        *ret_len = len;
        return data;
}

/* Takes the message; NULL is one that was refused. */
static void fuzz_message(ProtobufCMessage *message)
{
        sheaf_autofree uint8_t *first = NULL, *second = NULL;
        const ProtobufCMessageDescriptor *descriptor;
        size_t first_len, second_len;

        if (!message)
                return;
        descriptor = message->descriptor;
        free(fuzz_pack(message, &first_len));
        fuzz_strip(message);
        first = fuzz_pack(message, &first_len);
        protobuf_c_message_free_unpacked(message, NULL);
        message = protobuf_c_message_unpack(descriptor, NULL, first_len, first);
        if (!message)
                abort();
        second = fuzz_pack(message, &second_len);
        if (first_len != second_len || memcmp(first, second, first_len))
                abort();
        protobuf_c_message_free_unpacked(message, NULL);
}

#endif
