/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a request to a reader, whose paths and identities are then
 * used on a tree with ways out of it.
 *
 *  1 refused, or a message for which message.h holds
 *  2 a read that succeeds without `follow` gave bytes of a file inside, all
 *    of them
 *  3 nothing that is not a regular file is read, and no descriptor stays
 *    open */
#include "daemon/origin/reader.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/message.h"

#include <sys/stat.h>

#define FILE_BYTES 5000

static int root = -1;

static void make_file(int dir, const char *name, char byte)
{
        char bytes[FILE_BYTES];
        int fd = openat(dir, name, O_WRONLY | O_CREAT, 0600);

        memset(bytes, byte, sizeof(bytes));
        fuzz_must(fd >= 0 && write(fd, bytes, sizeof(bytes)) == FILE_BYTES);
        close(fd);
}

static void make_tree(void)
{
        int top = fuzz_dir();
        char target[96];

        make_file(top, "secret", 'S');
        fuzz_must(!mkdirat(top, "root", 0700));
        root = openat(top, "root", O_RDONLY | O_DIRECTORY);
        fuzz_must(root >= 0 && !mkdirat(root, "d", 0700));
        make_file(root, "a", 'a');
        make_file(root, "d/b", 'b');
        snprintf(target, sizeof(target), "%s/secret", fuzz_dir_path);
        fuzz_must(!symlinkat("../secret", root, "out") &&
                  !symlinkat(target, root, "d/abs") &&
                  !symlinkat("..", root, "up") &&
                  !symlinkat("loop", root, "loop") &&
                  !symlinkat("a", root, "in") && !symlinkat("d", root, "e") &&
                  !mkfifoat(root, "f", 0600));
}

/* With inode 0 the input asks for what is really there. */
static struct sheaf_reader_identity identity_of(
        const SheafReader__Identity *given, const char *path)
{
        struct sheaf_reader_identity identity = { .ino = given->ino,
                .size_bytes = given->size_bytes,
                .ctime_packed = given->ctime_packed,
                .mtime_sec = given->mtime_sec,
                .mtime_nsec = given->mtime_nsec };
        struct stat st;

        if (!given->ino && !fstatat(root, path, &st, AT_EMPTY_PATH)) {
                identity.ino = st.st_ino;
                identity.size_bytes = (uint64_t)st.st_size;
                identity.mtime_sec = st.st_mtim.tv_sec;
                identity.mtime_nsec = (uint32_t)st.st_mtim.tv_nsec;
        }
        return identity;
}

static void read_chunk(const SheafReader__Read *read)
{
        sheaf_autofree char *path =
                strndup((const char *)read->path.data, read->path.len);
        sheaf_autofree char *bytes = malloc(read->len_bytes + 1);
        struct sheaf_reader_chunk chunk = { .path = path,
                .follow = read->follow,
                .offset_bytes = read->offset_bytes,
                .len_bytes = read->len_bytes };
        uint64_t ctime_packed;
        int rc;

        fuzz_must(path && bytes);
        chunk.identity = identity_of(read->identity, path);
        rc = sheaf_reader_chunk(root, &chunk, bytes, &ctime_packed);
        fuzz_must(rc <= 1);
        if (rc < 0 || !read->len_bytes)
                return;
        fuzz_must(chunk.identity.size_bytes == FILE_BYTES);
        fuzz_must(read->offset_bytes + read->len_bytes <= FILE_BYTES);
        fuzz_must(*bytes == 'a' || *bytes == 'b' ||
                  (read->follow && *bytes == 'S'));
        for (uint32_t i = 1; i < read->len_bytes; i++)
                fuzz_must(bytes[i] == *bytes);
}

static void probe(const SheafReader__Sample *sample)
{
        sheaf_autofree char *path =
                strndup((const char *)sample->path.data, sample->path.len);
        struct sheaf_reader_identity identity;

        fuzz_must(path);
        identity = identity_of(sample->identity, path);
        fuzz_must(
                sheaf_reader_probe(root, path, sample->follow, &identity) <= 0);
}

static void serve(const SheafReader__Request *request)
{
        int before = dup(root);

        close(before);
        if (request->body_case == SHEAF_READER__REQUEST__BODY_READS)
                for (size_t i = 0; i < request->reads->n_read && i < 16; i++)
                        read_chunk(request->reads->read[i]);
        if (request->body_case == SHEAF_READER__REQUEST__BODY_PROBE)
                for (size_t i = 0; i < request->probe->n_sample && i < 16; i++)
                        probe(request->probe->sample[i]);
        fuzz_must(dup(root) == before);
        close(before);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        SheafReader__Request *request;

        if (root < 0)
                make_tree();
        request = sheaf_reader__request__unpack(NULL, size, data);
        if (!request)
                return 0;
        if (sheaf_reader_request_good(request))
                serve(request);
        fuzz_message(&request->base);
        return 0;
}
