/* SPDX-License-Identifier: Apache-2.0 */
/* What a reader takes from its daemon.
 *
 *  1 a request that passes here names slots, lengths and paths that exist:
 *    what serves it looks at nothing again
 *
 * Threads: any. */
#include "daemon/origin/origin.h"
#include "daemon/origin/reader.h"

/* Of a file, so it is not empty. */
static bool path_good(const ProtobufCBinaryData *path)
{
        return path->len && path->len <= SHEAF_READER_PATH_MAX &&
               !memchr(path->data, 0, path->len);
}

static bool read_good(const SheafReader__Read *read)
{
        return read->identity && path_good(&read->path) &&
               read->slot < SHEAF_ORIGIN_SLOTS &&
               read->len_bytes <= SHEAF_CHUNK_BYTES_MAX &&
               read->offset_bytes <= SHEAF_LISTING_FILE_BYTES_MAX;
}

static bool reads_good(const SheafReader__Reads *reads)
{
        for (size_t i = 0; i < reads->n_read; i++)
                if (!read_good(reads->read[i]))
                        return false;
        return reads->n_read <= SHEAF_ORIGIN_SLOTS;
}

static bool probe_good(const SheafReader__Probe *probe)
{
        for (size_t i = 0; i < probe->n_sample; i++)
                if (!probe->sample[i]->identity ||
                        !path_good(&probe->sample[i]->path))
                        return false;
        return true;
}

bool sheaf_reader_request_good(const SheafReader__Request *request)
{
        switch (request->body_case) {
        case SHEAF_READER__REQUEST__BODY_READS:
                return reads_good(request->reads);
        case SHEAF_READER__REQUEST__BODY_LIST:
                return request->list->uuid.len == 16;
        case SHEAF_READER__REQUEST__BODY_CANCEL:
                return true;
        case SHEAF_READER__REQUEST__BODY_PROBE:
                return probe_good(request->probe);
        default:
                return false;
        }
}
