/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the reader process (executable sheaf-reader): what its files share.
 *
 *   reader.c  becomes the owner, then serves
 *   serve.c   socket, worker threads, replies in batches
 *   request.c what is taken from the daemon
 *   dir.c     opening below the root, chunks, probes
 *   walk.c    listing a tree
 *   fault.c   injected faults, in test builds
 *
 * Started by spawn.c with these descriptors and arguments:
 *   sheaf-reader THREADS [UID GID GROUP,GROUP,...]
 * and, where the root is known by its path alone, with that path in the
 * environment variable SHEAF_READER_ROOT. */
#ifndef SHEAF_DAEMON_ORIGIN_READER_H
#define SHEAF_DAEMON_ORIGIN_READER_H

#include "daemon/origin/reader.pb-c.h"
#include "proto/listing.h"

#include <stdatomic.h>

enum {
        SHEAF_READER_FD_SOCK = 3,
        SHEAF_READER_FD_BUFFERS = 4,
        SHEAF_READER_FD_ROOT = 5,
        SHEAF_READER_FD_END = 6,
};

#define SHEAF_READER_THREADS_MAX 64
#define SHEAF_READER_ROOT_ENV    "SHEAF_READER_ROOT"

/* A path in a message; longer ones are -ENAMETOOLONG. */
#define SHEAF_READER_PATH_MAX (48 * SHEAF_KIB)

struct sheaf_reader_identity {
        uint64_t ino, size_bytes, ctime_packed;
        int64_t mtime_sec;
        uint32_t mtime_nsec;
};

/* Opens @path below @root without leaving the tree: no link is passed, not
 * even one that stays inside, since a listing names files by their real
 * paths. With @follow the last component is a link, followed wherever it
 * leads. Paths over PATH_MAX are opened in steps. @flags as for open(2),
 * O_CLOEXEC is added. 0 or -errno; ENOTDIR becomes -ENOENT. Any thread. */
SHEAF_MUST_CHECK int sheaf_reader_open(
        int root, const char *path, int flags, bool follow, int *ret_fd);

struct sheaf_reader_chunk {
        const char *path; /* NUL-terminated */
        bool follow;
        uint64_t offset_bytes;
        uint32_t len_bytes;
        struct sheaf_reader_identity identity;
};

/* Reads a chunk into @buf; all of it or an error. 0; 1: only ctime moved,
 * *@ret_ctime_packed is set; -ESTALE; -errno. Any thread. */
SHEAF_MUST_CHECK int sheaf_reader_chunk(int root,
        const struct sheaf_reader_chunk *chunk, void *buf,
        uint64_t *ret_ctime_packed);

/* 0: the file has this identity, ctime apart; -ESTALE; -errno. */
SHEAF_MUST_CHECK int sheaf_reader_probe(int root, const char *path, bool follow,
        const struct sheaf_reader_identity *identity);

struct sheaf_reader_summary {
        uint64_t dirs, files, links, hard_links, bytes;
        uint64_t escaping_links, followed_links, skipped_special, skipped_names;
        uint64_t unreadable_dirs, unreadable_files;
        char first_escaping[256], first_unreadable[256];
};

struct sheaf_reader_walk {
        int root;
        bool follow;
        uint64_t serial;
        uint8_t uuid[16];
        const atomic_bool *cancelled;
        void (*progress)(void *arg, uint64_t entries); /* now and then */
        void *arg;
};

/* Lists the tree into a new memfd. 0; -ECANCELED; -errno. */
SHEAF_MUST_CHECK int sheaf_reader_walk(const struct sheaf_reader_walk *walk,
        struct sheaf_reader_summary *ret_summary, int *ret_memfd);

/* Whether every slot, length and path that the request names can be. */
bool sheaf_reader_request_good(const SheafReader__Request *request);

/* Serves SHEAF_READER_FD_SOCK until it hangs up. Does not return. */
_Noreturn void sheaf_reader_serve(int threads);

/* Faults of a test build, from SHEAF_FAULT_ORIGIN, a comma-separated list:
 *   hang:S          never comes back from touching a path that contains S
 *   eio:S           -EIO
 *   eio=N:S         -EIO N times of a thousand, at random
 *   gone:S          -ENOENT
 *   delay=MS:S      waits between the first look and the read
 *   jitter=MS:S     the same, at random up to that long
 *   pieces=N:S      no read gives more than N bytes at once
 *   drip=MS:S       each read gives one byte, after that long
 *   short:S         the file ends half-way through the chunk
 *   estale-once:S   -ESTALE the first time
 *   estale=N:S      -ESTALE N times of a thousand, at random
 *   crash:S         the reader dies
 * SHEAF_FAULT_WHILE names a file: without it all is well.
 * Without SHEAF_FAULTS these are empty. */
enum sheaf_fault_op {
        SHEAF_FAULT_OPEN,  /* hang, eio, gone, estale, crash */
        SHEAF_FAULT_READ,  /* delay, jitter, short */
        SHEAF_FAULT_PIECE, /* pieces, drip: of each read of a chunk */
};

#ifdef SHEAF_FAULTS
void sheaf_fault_setup(void);
/* Returns 0 or -errno; *@len_bytes is what reads may deliver. */
int sheaf_fault(enum sheaf_fault_op op, const char *path, size_t *len_bytes);
#else
static inline void sheaf_fault_setup(void)
{
}
static inline int sheaf_fault(
        enum sheaf_fault_op op, const char *path, size_t *len_bytes)
{
        (void)op;
        (void)path;
        (void)len_bytes;
        return 0;
}
#endif

#endif
