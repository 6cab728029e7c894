/* SPDX-License-Identifier: Apache-2.0 */
/* Single questions about a file of an open dataset: plain backing file, what
 * is cached, digest. One message each.
 *
 * Threads: any. */
#include "client/session.h"

static int ask(struct sheaf_dataset *dataset, Sheaf__Envelope *env,
        uint32_t *handle, const char *what, bool once,
        Sheaf__Envelope__BodyCase expected, struct sheaf_wire_msg *ret_reply)
{
        struct sheaf_call call = {
                .env = env,
                .dataset = dataset,
                .handle = handle,
                .what = what,
                .once = once,
                .deadline_ns = sheaf_session_deadline_ns(dataset->session),
        };
        int rc = sheaf_session_call(dataset->session, &call, ret_reply);

        if (rc || ret_reply->env->body_case == expected)
                return rc;
        sheaf_wire_msg_free(ret_reply);
        return sheaf_error_set(
                -EPROTO, "%s: sheafd answered with another message", what);
}

int sheaf_dataset_open_plain(struct sheaf_dataset *dataset, uint32_t entry,
        int *ret_fd, uint64_t *ret_lease)
{
        Sheaf__OpenPlain body = SHEAF__OPEN_PLAIN__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        struct sheaf_wire_msg reply;
        int fd, rc;

        body.entry = entry;
        env.body_case = SHEAF__ENVELOPE__BODY_OPEN_PLAIN;
        env.open_plain = &body;
        rc = ask(dataset, &env, &body.handle, "open plain file", false,
                SHEAF__ENVELOPE__BODY_PLAIN_OPENED, &reply);
        if (rc)
                return rc;
        fd = sheaf_wire_take_fd(&reply, 0);
        if (fd >= 0) {
                *ret_fd = fd;
                *ret_lease = reply.env->plain_opened->lease;
        }
        sheaf_wire_msg_free(&reply);
        return fd >= 0 ? 0
                       : sheaf_error_set(-EPROTO,
                                 "sheafd sent no descriptor of a plain file");
}

int sheaf_dataset_close_plain(struct sheaf_dataset *dataset, uint64_t lease)
{
        Sheaf__ClosePlain body = SHEAF__CLOSE_PLAIN__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        struct sheaf_wire_msg reply;
        int rc;

        body.lease = lease;
        env.body_case = SHEAF__ENVELOPE__BODY_CLOSE_PLAIN;
        env.close_plain = &body;
        rc = ask(dataset, &env, NULL, "close plain file", true,
                SHEAF__ENVELOPE__BODY_DONE, &reply);
        /* The hang-up ended the lease as well. */
        if (rc == -ECONNRESET)
                return 0;
        if (!rc)
                sheaf_wire_msg_free(&reply);
        return rc;
}

static int cached_by_path(struct sheaf_dataset *dataset, const char *path,
        size_t len, uint64_t *ret_cached_bytes)
{
        Sheaf__CachedQuery body = SHEAF__CACHED_QUERY__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        ProtobufCBinaryData paths = { .len = len, .data = (uint8_t *)path };
        struct sheaf_wire_msg reply;
        int rc;

        body.n_path = 1;
        body.path = &paths;
        env.body_case = SHEAF__ENVELOPE__BODY_CACHED_QUERY;
        env.cached_query = &body;
        rc = ask(dataset, &env, &body.handle, "ask what is cached", false,
                SHEAF__ENVELOPE__BODY_CACHED_ANSWER, &reply);
        if (rc)
                return rc;
        *ret_cached_bytes = reply.env->cached_answer->cached_bytes;
        sheaf_wire_msg_free(&reply);
        return 0;
}

int sheaf_dataset_cached(struct sheaf_dataset *dataset, uint32_t entry,
        uint64_t *ret_cached_bytes)
{
        sheaf_autofree char *path = NULL;
        size_t len;

        if (entry >= dataset->listing.entry_count)
                return sheaf_error_set(-ERANGE, "dataset %s has no entry %u",
                        dataset->name, entry);
        len = sheaf_listing_path(&dataset->listing, entry, NULL, 0);
        path = malloc(len + 1);
        if (!path)
                return sheaf_error_set(-ENOMEM, "no memory for a path");
        sheaf_listing_path(&dataset->listing, entry, path, len + 1);
        return cached_by_path(dataset, path, len, ret_cached_bytes);
}

int sheaf_dataset_digest(struct sheaf_dataset *dataset, uint32_t entry,
        struct sheaf_digest *ret_digest)
{
        Sheaf__GetDigest body = SHEAF__GET_DIGEST__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        const Sheaf__Digest *answer;
        struct sheaf_wire_msg reply;
        int rc;

        body.entry = entry;
        env.body_case = SHEAF__ENVELOPE__BODY_GET_DIGEST;
        env.get_digest = &body;
        rc = ask(dataset, &env, &body.handle, "ask for a digest", false,
                SHEAF__ENVELOPE__BODY_DIGEST, &reply);
        if (rc)
                return rc;
        answer = reply.env->digest;
        if (answer->known && answer->digest.len == SHEAF_DIGEST_BYTES)
                memcpy(ret_digest->bytes, answer->digest.data,
                        SHEAF_DIGEST_BYTES);
        else
                rc = sheaf_error_set(-ENODATA,
                        "the file's digest is not known yet; `sheaf seal %s` "
                        "learns all",
                        dataset->name);
        sheaf_wire_msg_free(&reply);
        return rc;
}
