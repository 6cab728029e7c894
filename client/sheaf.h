/* SPDX-License-Identifier: Apache-2.0 */
/* libsheaf: reads a dataset from the cache of the node, in place.
 *
 *   session   a connection to sheafd; made lazily, renewed by itself when
 *             the daemon restarts
 *   dataset   an open version: its listing, mapped, and its residency table
 *   view      a range of one file's bytes, pinned in shared memory
 *
 * A hit makes no system call, copies nothing and takes no lock. What is not
 * in memory is fetched by the daemon from disk or origin, within the
 * deadline: a call returns the right bytes or an error.
 *
 * Threads: every function may be called from any thread; one object must not
 * be closed while another call uses it. Fork: a child may use views that it
 * inherited and may open sessions; inherited sessions reconnect by
 * themselves. exec: no descriptor is passed on. Errors: 0 or positive, or a
 * negative errno; sheaf_last_error() has the text of the calling thread's last
 * failure. */
#ifndef SHEAF_H
#define SHEAF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHEAF_VERSION "0.1.0"
#define SHEAF_API     __attribute__((visibility("default")))

struct sheaf_session;
struct sheaf_dataset;

/* Text for the last error of this thread, with file and remedy where known;
 * "" when there was none. Valid until the thread's next failing call. */
SHEAF_API const char *sheaf_last_error(void);

/* ---- sessions ---- */

struct sheaf_session_options {
        const char *socket;  /* NULL: SHEAF_SOCKET, else the usual places */
        const char *name;    /* shown by `sheaf stats`; NULL: program name */
        const char *kind;    /* NULL: "lib" */
        int64_t deadline_ms; /* bound of each call; 0: the daemon's */
        uint64_t pin_bytes;  /* to hold at once; 0: the daemon's default */
        /* Asked about every 100 ms by a call that waits, on the calling
         * thread, no lock held; not 0 ends the call with -EINTR. May call the
         * library. NULL: nothing but the deadline ends a wait. */
        int (*interrupted)(void *arg);
        void *interrupted_arg;
};

/* Makes a session; connects at first use. @options may be NULL. -ENOMEM;
 * -EMFILE: this process has no free descriptor. Every call that needs the
 * daemon may fail so, at once, and works again when some are free. */
SHEAF_API int sheaf_session_new(const struct sheaf_session_options *options,
        struct sheaf_session **ret_session);
/* Connects now. 0; -ENOENT, -ECONNREFUSED no daemon; -EACCES; -EPROTO. */
SHEAF_API int sheaf_session_connect(struct sheaf_session *session);
/* Datasets of the session are closed first. */
SHEAF_API void sheaf_session_free(struct sheaf_session *session);
/* The socket that would be used; borrowed until the session is freed. */
SHEAF_API const char *sheaf_session_socket(const struct sheaf_session *session);

/* ---- datasets ---- */

/* Opens NAME or ~OWNER/NAME, its newest version, which stays the one that is
 * read until it is closed. -ENOENT: no such dataset, or none that may be
 * seen; -ESTALE detached; -ETIMEDOUT. */
SHEAF_API int sheaf_dataset_open(struct sheaf_session *session,
        const char *name, struct sheaf_dataset **ret_dataset);
/* The same for a given version. */
SHEAF_API int sheaf_dataset_open_version(struct sheaf_session *session,
        const char *name, const uint8_t uuid[16],
        struct sheaf_dataset **ret_dataset);
/* Views must be released before. */
SHEAF_API void sheaf_dataset_close(struct sheaf_dataset *dataset);

struct sheaf_dataset_info {
        const char *name; /* borrowed until close */
        uint8_t uuid[16]; /* of the version */
        uint64_t serial;
        uint64_t files, dirs, links, bytes, chunks;
        int domain; /* 0 owner, 1 group, 2 all, 3 grant */
        uint32_t owner_uid, domain_gid;
};
SHEAF_API void sheaf_dataset_info(const struct sheaf_dataset *dataset,
        struct sheaf_dataset_info *ret_info);

/* Number of regular files; their ordinals are 0 .. n-1, breadth first: all of
 * one depth, folder by folder, before those below. */
SHEAF_API uint64_t sheaf_dataset_files(const struct sheaf_dataset *dataset);

/* Ordinal of the file at @path (relative to the root; links inside the tree
 * are followed). -ENOENT; -EISDIR; -ELOOP. */
SHEAF_API int sheaf_dataset_lookup(const struct sheaf_dataset *dataset,
        const char *path, uint64_t *ret_ordinal);

/* Path of a file: writes up to @cap_bytes with a NUL, returns its length
 * (call again with more room when >= @cap_bytes), or -ERANGE. */
SHEAF_API int64_t sheaf_dataset_path(const struct sheaf_dataset *dataset,
        uint64_t ordinal, char *buf, size_t cap_bytes);

/* Size in bytes, or -ERANGE. */
SHEAF_API int64_t sheaf_dataset_size(
        const struct sheaf_dataset *dataset, uint64_t ordinal);

/* Attributes as the mount shows them. */
SHEAF_API int sheaf_dataset_stat(const struct sheaf_dataset *dataset,
        uint64_t ordinal, struct stat *ret_stat);

/* ---- reading ---- */

/* A pinned range. @pieces has one element for files up to 4 MiB, else one a
 * chunk; the bytes are read-only and stay until release, whatever the daemon
 * does. Opaque beside pieces, count and length. Zero length: count 0. */
#define SHEAF_VIEW_INLINE 4
struct sheaf_view {
        const struct iovec *pieces;
        size_t piece_count;
        uint64_t len_bytes;
        bool copied; /* private copy: over the pin grant */
        /* private: */
        bool brief_;
        struct sheaf_dataset *dataset_;
        struct iovec inline_pieces_[SHEAF_VIEW_INLINE];
        void *inline_pins_[SHEAF_VIEW_INLINE];
        void **pins_;
        void *owner_;
        uint64_t charged_bytes_;
        void *heap_;
};

/* Pins [@offset_bytes, +@len_bytes) of a file, cut at its end; fetches what
 * is missing. On failure nothing is pinned. -ERANGE bad ordinal or offset
 * beyond the end; -EIO, -ESTALE (the origin changed), -ETIMEDOUT, -ENOMEM. */
SHEAF_API int sheaf_view(struct sheaf_dataset *dataset, uint64_t ordinal,
        uint64_t offset_bytes, uint64_t len_bytes, struct sheaf_view *ret_view);
/* The whole file. */
SHEAF_API int sheaf_view_file(struct sheaf_dataset *dataset, uint64_t ordinal,
        struct sheaf_view *ret_view);
/* Only if it is in memory: -EAGAIN else, at once. */
SHEAF_API int sheaf_view_try(struct sheaf_dataset *dataset, uint64_t ordinal,
        uint64_t offset_bytes, uint64_t len_bytes, struct sheaf_view *ret_view);
/* Whole files of @ordinals[0..n): one message for all misses. Failures are
 * reported per file in @ret_rc (may be NULL: the first failure fails all and
 * nothing stays pinned). Returns the number of files that were viewed. */
SHEAF_API int64_t sheaf_view_batch(struct sheaf_dataset *dataset,
        const uint64_t *ordinals, size_t n, struct sheaf_view *ret_views,
        int *ret_rc);
/* Gives the bytes back. Any thread; idempotent. */
SHEAF_API void sheaf_view_release(struct sheaf_view *view);

/* Moves a view: @to becomes what @from was, and @from is empty. What @from
 * pointed to, @from->pieces beside, stays where it is. */
SHEAF_API void sheaf_view_move(struct sheaf_view *to, struct sheaf_view *from);

/* Copies a range out, like pread: the number of bytes, short only at the end
 * of the file. Holds nothing afterwards. */
SHEAF_API int64_t sheaf_read(struct sheaf_dataset *dataset, uint64_t ordinal,
        void *buf, size_t len_bytes, uint64_t offset_bytes);

/* Asks the daemon to fetch these files when it can; returns at once. */
SHEAF_API int sheaf_prefetch(
        struct sheaf_dataset *dataset, const uint64_t *ordinals, size_t n);

/* ---- jobs: the order of samples ---- */

/* One training run, over all its processes: whoever gives its name, on the
 * same version and subset and as the same user. An epoch has as many slots as
 * the subset has files; the daemon binds each to a sample (the ordinal of a
 * file) when it is first asked for, each sample once an epoch. Asked again,
 * by any process, a slot has the same sample; that holds when the daemon is
 * killed and started again. So a new run needs a new name: under an old one it
 * gets what the old one had. (docs/design/orders.md) */
struct sheaf_job;

enum sheaf_job_order {
        SHEAF_JOB_SHARED = 0, /* the daemon's: shares fetches between jobs */
        SHEAF_JOB_WINDOW,     /* by seed; moved by less than a window */
        SHEAF_JOB_STRICT,     /* by seed and epoch alone */
};

struct sheaf_job_options {
        const char *name; /* 1 to 128 bytes */
        enum sheaf_job_order order;
        uint64_t seed;   /* of window and strict */
        uint32_t window; /* slots; of window */
        /* Slots bound before they are used, at most; 0: the daemon's choice,
         * which sheaf_job_ahead tells. */
        uint32_t ahead;
        bool pace; /* be drawn into step with jobs of the same speed */
        /* Which files are samples: (files + 7) / 8 bytes, file i is bit i % 8
         * of byte i / 8, no bit beyond the last file; NULL: all. Each subset
         * has slots and jobs of its own. Copied. */
        const uint8_t *subset;
        /* Bind nothing: give again what was bound under this name, in any
         * epoch whose journal is kept. */
        bool replay;
};

/* Joins the job, or begins it. @dataset must stay open. -EINVAL: options are
 * wrong, or not those of the job's other processes, as the text tells;
 * -EBUSY: too many jobs or subsets. */
SHEAF_API int sheaf_job_open(struct sheaf_dataset *dataset,
        const struct sheaf_job_options *options, struct sheaf_job **ret_job);
/* What is bound stays so. NULL is allowed. */
SHEAF_API void sheaf_job_close(struct sheaf_job *job);
/* Slots, and samples, of an epoch: files of the subset. */
SHEAF_API uint32_t sheaf_job_samples(const struct sheaf_job *job);

/* How many slots a loader should bind before it uses them: what was given, or
 * a 32nd of the epoch, 64 to 4,096. All jobs of a dataset together read about
 * (look-ahead / samples) more of it an epoch than they have to. */
SHEAF_API uint32_t sheaf_job_ahead(const struct sheaf_job *job);

/* Samples of @slots[0..n) of @epoch (below 2^22) into @ret_ordinals, as
 * ordinals of files of the version; what is not in the cache is fetched from
 * now on. @rate: samples a second of this job when it never waits for data, as
 * measured; 0: not known. With pacing it may wait a little. -ERANGE: no such
 * slot; -EINVAL: other processes of the job are in this epoch on another
 * version of the dataset (of subsets a warning tells it); -ESTALE: the epoch
 * is over and its journal is gone; -EBADMSG: its journal is damaged; -ENODATA:
 * replay, and a slot was never bound; -ETIMEDOUT. On failure some may be bound,
 * and stay so. */
SHEAF_API int sheaf_job_bind(struct sheaf_job *job, uint64_t epoch,
        const uint32_t *slots, size_t n, double rate, uint64_t *ret_ordinals);

/* Where a run stands in an epoch: slots below @yielded (of all its processes)
 * are done with. Plain numbers, to be kept in a checkpoint. */
struct sheaf_job_state {
        uint64_t epoch;
        uint64_t run[2]; /* name the epoch's run; opaque */
        uint64_t check;  /* of the bitmap */
        uint32_t samples, yielded;
};

/* The state with slots below @yielded (at most sheaf_job_samples) done with;
 * those of them that nobody asked for yet are bound now. @ret_bitmap gets
 * (samples + 7) / 8 bytes: the samples of these slots; sample i, the i-th file
 * of the subset, is bit i % 8 of byte i / 8. NULL: the state alone, which
 * needs the daemon's journal (but for strict order). One call asks for what
 * was yielded since the call before. Errors as sheaf_job_bind. */
SHEAF_API int sheaf_job_save(struct sheaf_job *job, uint64_t epoch,
        uint32_t yielded, struct sheaf_job_state *ret_state,
        uint8_t *ret_bitmap);
/* Goes on from a state, with any number of processes: called by one or by
 * each of them, before slots of the epoch are bound. If the daemon has the
 * journal of that run, it is compared with the state and nothing changes: also
 * slots beyond @yielded that were bound keep their samples. If not (another
 * cache, a loss of power) and @bitmap is given, the epoch is made from it:
 * slots below @yielded have its samples, the others get the rest, each once.
 * -EINVAL: the state is damaged, or of another subset or order; -ENODATA:
 * neither a journal that fits nor a bitmap; -EEXIST: slots of the epoch were
 * bound anew before; and as sheaf_job_bind. */
SHEAF_API int sheaf_job_restore(struct sheaf_job *job,
        const struct sheaf_job_state *state, const uint8_t *bitmap);

/* The daemon's last warning about this job, once: writes up to @cap_bytes with
 * a NUL and returns its length; 0: none. So it tells a session that asks for
 * far more slots again than can have been on their way: a resume that lost its
 * place. Any thread. */
SHEAF_API size_t sheaf_job_warning(
        struct sheaf_job *job, char *ret_text, size_t cap_bytes);

/* ---- groups: batches prepared once for several jobs ---- */

/* Jobs that prepare the same batches of the same samples share them: each
 * batch is prepared by one worker of any of them, and taken by all. A batch
 * is a memory file that is sealed, so that it changes no more; what is in it
 * is up to its users. Batches have numbers that only grow: epoch times
 * batches of an epoch, plus place. (docs/design/prep.md; the idea is CoorDL's,
 * VLDB 2021)
 *
 * A group is named by its user and name. One process joins as a member, which
 * takes batches; others join as its workers, which prepare them. One may be
 * both, with two objects. When the daemon starts again they join again by
 * themselves, and batches that were prepared are prepared anew. */
struct sheaf_group;

/* What must be the same in all members. */
struct sheaf_group_trait {
        const char *name;  /* 1 to 64 bytes */
        const char *value; /* at most 256 bytes: of more, a digest */
};

struct sheaf_group_options {
        const char *name; /* 1 to 128 bytes */
        const struct sheaf_group_trait *traits;
        size_t trait_count; /* at most 32 */
        uint8_t member[16]; /* random; a worker gives that of its member */
        bool worker;        /* prepares, and takes nothing; all else is as
                             * its member gives it */
        uint32_t batches;   /* of an epoch */
        uint32_t ahead;     /* batches that the first is before the last, at
                             * most 1,024; who begins the group says it */
        uint32_t lease_ms;  /* a batch is prepared within, at least; likewise */
        uint32_t patience_ms; /* the others wait so long for this member */
        uint32_t rank, world; /* takes batches whose place is rank mod world */
        uint32_t members;     /* the first batch waits for so many; 1: none */
};

/* Joins, or begins, the group. -EEXIST: another member has another trait,
 * which the text names; -EBUSY: too many groups, members or workers;
 * -EOPNOTSUPP: this sheafd has no memory for it (--prep 0); -EINVAL. A member
 * is given in @ret_floor (or NULL) the lowest batch that is still wanted by
 * others, or UINT64_MAX: nobody is there; it takes part once it has begun at a
 * position. The session is to outlive the group. After a fork the child opens
 * a group of its own: there all calls on this one but close are -EPERM. Any
 * thread; of calls that wait, one at a time. */
SHEAF_API int sheaf_group_open(struct sheaf_dataset *dataset,
        const struct sheaf_group_options *options, uint64_t *ret_floor,
        struct sheaf_group **ret_group);
/* Leaves. NULL is allowed. */
SHEAF_API void sheaf_group_close(struct sheaf_group *group);

/* Member: the next batch that it takes is @batch or a later one. Nothing
 * below is kept for it. */
SHEAF_API int sheaf_group_begin(struct sheaf_group *group, uint64_t batch);

/* What a member waits for. */
enum sheaf_group_state {
        SHEAF_GROUP_TAKEN = 0, /* it has it */
        SHEAF_GROUP_PREPARE,   /* nobody prepares it: it is leased to you */
        SHEAF_GROUP_PREPARING, /* a worker does */
        SHEAF_GROUP_AHEAD,     /* other members are too far behind */
        SHEAF_GROUP_GATHERING, /* fewer members than were announced came */
        SHEAF_GROUP_FULL,      /* no memory for more prepared batches */
        SHEAF_GROUP_FAILED,    /* it cannot be prepared: sheaf_last_error() */
        SHEAF_GROUP_QUEUED,    /* it waits for a worker */
};

/* Member: takes a batch, once: waits for it for @wait_ms, at most the
 * session's deadline, and tells the state then. @ret_fd: TAKEN: a read-only
 * descriptor of the file, the caller's. @may_prepare: PREPARE may be answered,
 * where no worker is free for it: it then offers the batch itself, and takes
 * it. After TAKEN and FAILED the next one is to be taken; batches that are
 * passed over are not kept. -ERANGE: not one of this member's, or not begun. */
SHEAF_API int sheaf_group_take(struct sheaf_group *group, uint64_t batch,
        int64_t wait_ms, bool may_prepare, enum sheaf_group_state *ret_state,
        int *ret_fd);

/* Worker: the next batch to prepare; asked again before it is offered or has
 * failed, the same. -EAGAIN: none within @wait_ms; -ENOENT: its member is gone;
 * -EEXIST: its schema is not the group's. */
SHEAF_API int sheaf_group_lease(
        struct sheaf_group *group, int64_t wait_ms, uint64_t *ret_batch);
/* A leased batch is prepared. @fd, which stays the caller's: a memory file
 * sealed against SHRINK, GROW, WRITE and SEAL. @schema: at most 256 bytes, the
 * same for all batches of the group. -ESTALE: another was first, or nobody
 * wants it any more, which is no fault. -EEXIST: the schema differs: the batch
 * goes to another job's worker, and this worker's member is told FAILED.
 * -EINVAL: not such a file: it goes to another worker, as if this one had
 * ended. -EFBIG: larger than all prepared batches together may be: it has
 * failed, with that text. */
SHEAF_API int sheaf_group_offer(
        struct sheaf_group *group, uint64_t batch, int fd, const char *schema);
/* A leased batch cannot be prepared. If another job has workers, one of them
 * tries once more; else, or when that fails too, members that take it get
 * @why, at most 16 KiB of UTF-8. -ESTALE as above. */
SHEAF_API int sheaf_group_fail(
        struct sheaf_group *group, uint64_t batch, const char *why);

struct sheaf_group_stats {
        uint32_t members, workers; /* now */
        uint32_t staged;           /* batches, now */
        uint64_t staged_bytes;
        uint64_t floor;
        bool detached; /* this member: the group does not wait for it */
        /* Since the group began. */
        uint64_t prepared, taken, redone, private_, late, failed;
};
/* @wait_ms: for the answer, at most; never longer than other calls wait. */
SHEAF_API int sheaf_group_stats(struct sheaf_group *group, int64_t wait_ms,
        struct sheaf_group_stats *ret_stats);

/* ---- figures ---- */

struct sheaf_stats {
        uint64_t hits, hit_bytes; /* chunks served from shared memory */
        uint64_t misses;          /* chunks that the daemon fetched for us */
        /* Chunks that the daemon brought from its disk or from the origin for
         * this process: that were missed, or belong to a slot when it was
         * bound, and that nobody had asked for yet. By where they were then. */
        uint64_t from_disk, from_origin;
        uint64_t substituted; /* slots bound to another sample than their own */
        uint64_t pace_wait_ns; /* time in which jobs with pacing held back */
        uint64_t copies, copy_bytes;
        uint64_t rechecks; /* pins lost to eviction and retried */
        uint64_t wait_ns;  /* time blocked on misses */
        /* Held, or set aside by threads for their next pins; the most. */
        uint64_t pinned_bytes, grant_bytes;
        uint64_t reconnects;
};
SHEAF_API void sheaf_stats(
        const struct sheaf_dataset *dataset, struct sheaf_stats *ret_stats);

#ifdef __cplusplus
}
#endif

#endif
