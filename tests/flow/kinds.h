/* SPDX-License-Identifier: Apache-2.0 */
/* A message of each kind that the protocol has, with all its fields set, and
 * those of the messages in it: written as bytes, from protobuf-c's own
 * descriptors, so that what is added to the protocol comes by itself. */
#ifndef SHEAF_TESTS_FLOW_KINDS_H
#define SHEAF_TESTS_FLOW_KINDS_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline size_t kinds_varint(uint8_t *at, uint64_t v)
{
        size_t n = 0;

        for (; v >= 0x80; v >>= 7)
                at[n++] = (uint8_t)(v | 0x80);
        at[n++] = (uint8_t)v;
        return n;
}

/* All fields of a message. */
static inline size_t kinds_put_all(
        uint8_t *at, const ProtobufCMessageDescriptor *of);

/* @field with a value, behind its tag, at @at, which has room; its length. */
static inline size_t kinds_put(
        uint8_t *at, const ProtobufCFieldDescriptor *field)
{
        uint8_t inner[1024] = "text";
        size_t len = 4, n;

        if (field->type == PROTOBUF_C_TYPE_MESSAGE)
                len = kinds_put_all(inner, field->descriptor);
        switch (field->type) {
        case PROTOBUF_C_TYPE_MESSAGE:
        case PROTOBUF_C_TYPE_STRING:
        case PROTOBUF_C_TYPE_BYTES:
                n = kinds_varint(at, (uint64_t)field->id << 3 | 2);
                n += kinds_varint(at + n, len);
                memcpy(at + n, inner, len);
                return n + len;
        case PROTOBUF_C_TYPE_FIXED64:
        case PROTOBUF_C_TYPE_DOUBLE:
                n = kinds_varint(at, (uint64_t)field->id << 3 | 1);
                memcpy(at + n, inner, 8);
                return n + 8;
        default:
                n = kinds_varint(at, (uint64_t)field->id << 3);
                return n + kinds_varint(at + n, 1);
        }
}

static inline size_t kinds_put_all(
        uint8_t *at, const ProtobufCMessageDescriptor *of)
{
        size_t n = 0;

        for (unsigned int i = 0; i < of->n_fields; i++)
                n += kinds_put(at + n, &of->fields[i]);
        return n;
}

#endif
