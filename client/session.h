/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of a session: one socket, one service thread, the requests under
 * way, the attached arenas and the open datasets.
 *
 *   caller threads                      service thread
 *   sheaf_session_call: send, wait  ->  poll, receive, dispatch:
 *                                         reply   -> wakes its caller
 *                                         extents -> mapped, acknowledged
 *                                         opened  -> dataset is (re)mapped
 *                                         hang-up -> reconnect, reopen
 *
 * Guard of every field that is not marked otherwise: sheaf_session.lock. It
 * is held for moments only: never over a wait, a connect or a receive. */
#ifndef SHEAF_CLIENT_SESSION_H
#define SHEAF_CLIENT_SESSION_H

#include "client/attach.h"
#include "client/error.h"
#include "client/internal.h"
#include "proto/paths.h"
#include "proto/wire.h"

#include <pthread.h>
#include <time.h>

#define SHEAF_DEADLINE_DEFAULT_MS 30000
#define SHEAF_BACKOFF_FIRST_MS    10
#define SHEAF_BACKOFF_LAST_MS     500

enum sheaf_link_state {
        SHEAF_LINK_DOWN = 0, /* no socket */
        SHEAF_LINK_HELLO,    /* connected, Welcome is awaited */
        SHEAF_LINK_READY,
};

/* What the daemon knows of a fork that is going on. */
#define SHEAF_FORK_NOTES_MAX 8
enum sheaf_fork {
        SHEAF_FORK_NOT_TOLD, /* nothing is held */
        SHEAF_FORK_TOLD,     /* it keeps what is held, or will, or is gone */
        SHEAF_FORK_ASKED, /* it will some time: the parent keeps it till then */
        SHEAF_FORK_REFUSED, /* it keeps nothing */
};

enum sheaf_open_state {
        SHEAF_OPEN_WANTED = 0, /* to be asked for as soon as possible */
        SHEAF_OPEN_ASKED,
        SHEAF_OPEN_DONE,
        SHEAF_OPEN_FAILED,
};

/* A request under way; on its caller's stack. */
struct sheaf_request {
        uint64_t id;
        struct sheaf_request *next;
        pthread_cond_t wake;
        enum {
                SHEAF_REQUEST_WAITS,
                SHEAF_REQUEST_DONE,
                SHEAF_REQUEST_LOST
        } state;
        struct sheaf_wire_msg reply;
};

/* The memory of a dataset over one connection. Superseded ones stay
 * allocated until the dataset is closed, since a thread may just be looking
 * at them; what they map is replaced by empty pages (see attach.h). */
struct sheaf_map {
        struct sheaf_attach *attach;
        const _Atomic uint64_t *words;
        uint64_t word_count;
        void *table;
        size_t table_bytes;
        struct sheaf_meter *meter;
        struct sheaf_map *older;
};

/* Where a file of one chunk is, by ordinal: chunk << 23 | size in bytes; 0
 * for empty and for larger files. Eight bytes beside the table's eight: with
 * a million files a hit costs two cache misses rather than five. */
#define SHEAF_PLACE_SIZE_BITS 23
#define SHEAF_PLACE_SIZE_MASK ((UINT64_C(1) << SHEAF_PLACE_SIZE_BITS) - 1)
_Static_assert(SHEAF_CHUNK_BYTES_MAX <= SHEAF_PLACE_SIZE_MASK, "fits");

struct sheaf_dataset {
        /* Read without the lock. */
        _Atomic(uint64_t *) places;      /* NULL: not made yet */
        _Atomic(struct sheaf_map *) map; /* NULL: not mapped at present */
        struct sheaf_listing listing;    /* fixed after the first open */
        struct sheaf_session *session;

        struct sheaf_dataset *next;
        char *name;
        uint8_t uuid[16];
        bool versioned; /* uuid is valid */
        enum sheaf_open_state state;
        uint64_t open_id; /* of the OpenDataset under way */
        uint32_t handle;
        int failed_rc;
        char *failed_text;
        char *origin; /* directory; NULL: not told. Fixed once set */
        void *listing_block;
        size_t listing_bytes;
        int domain;
        uint32_t owner_uid, domain_gid;
        struct sheaf_map *maps;  /* all, newest first */
        struct sheaf_stats past; /* of superseded meters */
        /* Of sheaf_stats; any thread. */
        _Atomic uint64_t from_disk, from_origin, substituted, pace_wait_ns;
        uint64_t opens; /* how often it was (re)opened */
};

struct sheaf_session {
        /* Guard: the list's lock (atfork.c). */
        struct sheaf_session *next;
        enum sheaf_fork fork;

        /* Guard: the session's lock. */
        int fork_pipe[2]; /* of the next fork; -1: there is none yet */
        /* Notes of forks over this connection that sheafd has not answered yet;
         * whether one was refused when the child lived already. */
        uint64_t fork_notes[SHEAF_FORK_NOTES_MAX];
        size_t fork_notes_count;
        bool fork_lost;

        pthread_mutex_t lock;
        pthread_cond_t changed; /* link or a dataset changed state */

        /* Fixed. */
        struct sheaf_socket_list places;
        char *name, *kind;
        uint64_t pin_bytes;
        int (*interrupted)(void *arg); /* NULL: none */
        void *interrupted_arg;

        _Atomic int64_t deadline_ms; /* bound of each call; any thread */
        bool deadline_given;

        enum sheaf_link_state state;
        int sock, wake_fd;
        size_t place;        /* index of the socket in use */
        uint64_t connection; /* number of the connection, from 1 */
        bool welcomed;       /* ever; renewed by itself from then on */
        bool wanted;         /* somebody waits for the link */
        uint64_t attempts;   /* connects that ended, well or not */
        int attempt_rc;      /* how the last one ended */
        char attempt_text[384];
        uint64_t takes;      /* begun: to connect, to receive */
        uint64_t short_take; /* the last that descriptors were lacking for */
        int64_t retry_ns, backoff_ms;
        uint8_t instance[16]; /* of the daemon last welcomed by */
        uint64_t reconnects;

        bool running, closing;
        pthread_t thread;
        uint64_t next_id;
        struct sheaf_request *requests;
        struct sheaf_dataset *datasets;
        struct sheaf_attach *attaches;
};

static inline int64_t sheaf_now_ns(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return ts.tv_sec * SHEAF_NS_PER_SEC + ts.tv_nsec;
}

/* Deadline of a call that begins now, on CLOCK_MONOTONIC. */
int64_t sheaf_session_deadline_ns(const struct sheaf_session *session);

/* One request and its reply. */
struct sheaf_call {
        Sheaf__Envelope *env; /* id is filled in here */
        const int *fds;
        size_t fd_count;
        struct sheaf_dataset *dataset; /* NULL: none in particular */
        uint32_t *handle;              /* field to fill with its handle */
        const char *what;              /* for error texts: "fetch" */
        bool once;                     /* not sent again after a hang-up */
        bool note; /* of a fork: a late answer is for sheaf_atfork_answered() */
        bool sent; /* out */
        int64_t deadline_ns;
};

/* Sends and waits for the last reply; after a hang-up waits for the daemon
 * to be back and sends again. 0: @ret_reply is the caller's; the daemon's
 * Error becomes this function's; -ETIMEDOUT; -ECONNREFUSED, -ENOENT no
 * daemon; -ECONNRESET hang-up of a call that is made once. The text is set on
 * failure. */
SHEAF_MUST_CHECK int sheaf_session_call(struct sheaf_session *session,
        struct sheaf_call *call, struct sheaf_wire_msg *ret_reply);

/* Waits until the session is connected and, if given, @dataset is open and
 * mapped. With the lock held. */
SHEAF_MUST_CHECK int sheaf_session_wait_locked(struct sheaf_session *session,
        struct sheaf_dataset *dataset, int64_t deadline_ns);

/* Waits on @cond until @deadline_ns; -ETIMEDOUT; -EINTR: the session's owner
 * wants an end. May return 0 early. With the lock held; where the owner is
 * asked it is let go for that moment. */
int sheaf_session_sleep(struct sheaf_session *session, pthread_cond_t *cond,
        int64_t deadline_ns);
int sheaf_cond_init(pthread_cond_t *cond);
/* -EINTR, with the text, when the session's owner wants its calls to end; else
 * 0. Without the lock. */
int sheaf_session_interrupted(struct sheaf_session *session);

/* ---- link.c: the service thread ---- */

/* With the lock held. */
SHEAF_MUST_CHECK int sheaf_link_start(struct sheaf_session *session);
void sheaf_link_wake(struct sheaf_session *session);
/* Sends OpenDataset; the answer sets the dataset's state. */
void sheaf_link_ask_open(
        struct sheaf_session *session, struct sheaf_dataset *dataset);
/* Stops the thread and closes the socket. Without the lock. */
void sheaf_link_stop(struct sheaf_session *session);

/* ---- dataset.c, map.c: called by the service thread ---- */

/* Makes the array of places at the first view by ordinal; NULL when memory
 * is short. Any thread, without the lock. */
const uint64_t *sheaf_dataset_make_places(struct sheaf_dataset *dataset);

/* Takes what DatasetOpened brings, descriptors included. */
void sheaf_dataset_opened_locked(
        struct sheaf_dataset *dataset, struct sheaf_wire_msg *msg);
void sheaf_dataset_fail_locked(
        struct sheaf_dataset *dataset, int rc, const char *text);
/* Makes a map of the received memory current and supersedes the last. */
SHEAF_MUST_CHECK int sheaf_map_install(struct sheaf_dataset *dataset,
        struct sheaf_attach *attach, int table_fd, int meter_fd);
/* The current map is not to be used any more. */
void sheaf_map_supersede(struct sheaf_dataset *dataset);
void sheaf_map_free_all(struct sheaf_dataset *dataset);
/* Any thread, no lock. */
void sheaf_map_count_miss(
        struct sheaf_dataset *dataset, uint64_t chunks, uint64_t wait_ns);

/* Pins chunk @chunk of the table. As sheaf_pin_try, and counts a lost pin;
 * hits are counted by the caller, who knows how much of it is read. */
static inline int sheaf_map_pin(struct sheaf_map *map, uint64_t chunk,
        uint32_t len_bytes, enum sheaf_pin_kind kind, struct sheaf_pin *ret_pin)
{
        const _Atomic uint64_t *entry = &map->words[chunk];
        bool there = atomic_load_explicit(entry, memory_order_relaxed);
        int rc = sheaf_pin_try(
                &map->attach->pinner, NULL, entry, len_bytes, kind, ret_pin);

        if (SHEAF_UNLIKELY(rc == -EAGAIN && there))
                sheaf_pin_count(map->meter, rechecks, 1);
        return rc;
}

#endif
