/* SPDX-License-Identifier: Apache-2.0 */
/* Inside daemon/origin: what the files of the daemon's side share.
 *
 *   origin.c  requests, queue, deadlines, idle end
 *   slots.c   batches of reads, replies
 *   spawn.c   reader processes: start, kill, reap
 *
 * A read's way (loop thread only):
 *
 *   read() -> QUEUED -> SENT -> HELD -> read_end() -> ENDED
 *               ^        |  \-> done(rc < 0)       -> ENDED
 *               +--------+  reader lost, once */
#ifndef SHEAF_DAEMON_ORIGIN_ORIGIN_IMPL_H
#define SHEAF_DAEMON_ORIGIN_ORIGIN_IMPL_H

#include "daemon/clock.h"
#include "daemon/log.h"
#include "daemon/origin/origin.h"
#include "daemon/origin/reader.pb-c.h"
#include "proto/wire.h"

#include <sys/queue.h>

/* Readers that were killed and have not ended; beyond it no new one starts,
 * so that a dead file server cannot fill the process table. */
#define SHEAF_ORIGIN_DYING_MAX 4

/* A reader that lives so long after SIGKILL is called abandoned. */
#define SHEAF_ORIGIN_ABANDON_NS (5 * SHEAF_NS_PER_SEC)

enum sheaf_read_state {
        SHEAF_READ_ENDED,
        SHEAF_READ_QUEUED,
        SHEAF_READ_SENT,
        SHEAF_READ_HELD,
        SHEAF_READ_FAILED
};

/* In sheaf_origin_read.origin_private. */
struct sheaf_read_priv {
        TAILQ_ENTRY(sheaf_read_priv) entry; /* of queue or failed */
        struct sheaf_origin *origin;
        struct sheaf_reader *reader; /* SENT, HELD */
        struct sheaf_origin_read *read;
        int64_t submitted_ns;
        int rc; /* FAILED */
        uint32_t slot;
        uint8_t state;
        uint8_t losses; /* readers that died with it in work */
};
_Static_assert(sizeof(struct sheaf_read_priv) <=
                       sizeof(((struct sheaf_origin_read *)0)->origin_private),
        "fits into the request");
TAILQ_HEAD(sheaf_read_queue, sheaf_read_priv);

/* In origin_private of a listing or a probe. */
struct sheaf_call_priv {
        struct sheaf_origin *origin;
        void *call; /* NULL: none */
        uint64_t id;
        int64_t heard_ns; /* submitted, sent, or made progress */
        int64_t deadline_ns;
        int rc; /* when failed */
        bool is_list, sent, failed;
        uint8_t losses; /* readers that died with it in work */
};
_Static_assert(sizeof(struct sheaf_call_priv) <=
                       sizeof(((struct sheaf_origin_list *)0)->origin_private),
        "fits into the request");
_Static_assert(sizeof(struct sheaf_call_priv) <=
                       sizeof(((struct sheaf_origin_probe *)0)->origin_private),
        "fits into the request");

enum sheaf_slot_state {
        SHEAF_SLOT_FREE,
        SHEAF_SLOT_BUSY,
        SHEAF_SLOT_HELD
};

struct sheaf_reader_slot {
        struct sheaf_read_priv *read; /* BUSY: NULL when it timed out */
        uint64_t id;
        int64_t sent_ns;
        uint8_t state;
};

/* A process with its socket and its buffers; outlives its origin while it
 * dies or while somebody holds bytes. */
struct sheaf_reader {
        LIST_ENTRY(sheaf_reader) entry; /* of origin.dying */
        struct sheaf_origin *origin;    /* NULL: freed */
        pid_t pid;
        int pidfd, sock;
        char *buffers;
        uv_poll_t sock_poll, pid_poll;
        int open_handles;
        bool killed, exited, abandoned, blocked;
        bool mute; /* lost before its first reply */
        bool shot; /* ended by SIGKILL, ours or another's */
        uint64_t replies;
        int64_t killed_ns;
        unsigned int held, busy; /* slots */
        struct sheaf_reader_slot slots[SHEAF_ORIGIN_SLOTS];
};

struct sheaf_origin {
        struct sheaf_origin_config config; /* copies: path, groups, root */
        char *reader_path;
        char *root_path; /* NULL: the descriptor is the root */
        gid_t *groups;
        uv_timer_t timer;
        uv_idle_t kick;
        int open_handles;
        bool freed;
        struct sheaf_reader *reader;
        LIST_HEAD(, sheaf_reader) dying;
        unsigned int dying_count;
        struct sheaf_read_queue queue, failed;
        uint64_t queued;
        struct sheaf_call_priv *list, *probe; /* under way */
        struct sheaf_call_priv *refused[16];  /* to be told -EBUSY */
        size_t refused_count;
        uint64_t next_id;
        unsigned int barren; /* readers in a row that died without a reply */
        int64_t hold_off_ns; /* no reader is started before */
        int64_t last_used_ns;
        struct sheaf_origin_stats stats;
};

/* spawn.c. 0 and origin->reader is set, or -errno. */
SHEAF_MUST_CHECK int sheaf_reader_spawn(struct sheaf_origin *origin);
/* SIGKILL; the socket is closed, the process is reaped later. */
void sheaf_reader_kill(struct sheaf_reader *reader);
/* Frees it if it has ended and nothing is held. */
void sheaf_reader_settle(struct sheaf_reader *reader);
void sheaf_reader_want_write(struct sheaf_reader *reader, bool want);

/* slots.c */
/* Sends queued reads while slots are free. 0; -EAGAIN the socket is full;
 * -errno: the reader is lost. */
SHEAF_MUST_CHECK int sheaf_slots_send(struct sheaf_origin *origin);
/* Takes what the reader sent. 0 or -errno: the reader is lost. */
SHEAF_MUST_CHECK int sheaf_slots_receive(struct sheaf_reader *reader);
SHEAF_MUST_CHECK int sheaf_request_send(
        struct sheaf_reader *reader, const SheafReader__Request *request);

/* origin.c */
void sheaf_origin_on_socket(struct sheaf_reader *reader);
void sheaf_origin_reader_lost(struct sheaf_reader *reader, bool hung);
void sheaf_origin_reader_exited(struct sheaf_reader *reader);
void sheaf_origin_kick(struct sheaf_origin *origin);
void sheaf_origin_complete(struct sheaf_read_priv *priv, int rc);
void sheaf_origin_fail_later(struct sheaf_read_priv *priv, int rc);
void sheaf_origin_call_done(struct sheaf_call_priv *priv, int rc, int memfd,
        const struct sheaf_origin_summary *summary);

static inline struct sheaf_read_priv *sheaf_read_priv(
        struct sheaf_origin_read *read)
{
        return (void *)read->origin_private;
}

#endif
