/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets, their versions, and who may read them.
 *
 *   dataset --< version --< lodging (version in one domain's arena)
 *      |                        |
 *   origin (reader)          domain (arena)
 *
 * Names are per owner: nothing tells one user what another has. A dataset
 * belongs to one domain (owner, group, everybody); each grant is a domain of
 * its own, since whoever maps an arena can read all of it.
 *
 * Threads: loop thread only; listings are read and checked on the pool. */
#ifndef SHEAF_DAEMON_REGISTRY_H
#define SHEAF_DAEMON_REGISTRY_H

#include "daemon/fetch/fetch.h"
#include "daemon/registry/listing_block.h"
#include "daemon/principal.h"

#include "daemon/records.pb-c.h"

enum sheaf_share {
        SHEAF_SHARE_OWNER = 0,
        SHEAF_SHARE_GROUP = 1,
        SHEAF_SHARE_ALL = 2,
        SHEAF_SHARE_GRANT = 3, /* domains only */
};

struct sheaf_registry;

struct sheaf_domain {
        LIST_ENTRY(sheaf_domain) link;
        enum sheaf_share kind;
        uint64_t id;     /* uid, gid, 0 or grant */
        uint32_t number; /* the arena's id in messages */
        struct sheaf_arena *arena;
        char name[48];
};

struct sheaf_reg_dataset;

/* One dataset's space in one domain's arena, shared by its versions. */
struct sheaf_tenancy {
        LIST_ENTRY(sheaf_tenancy) link;
        struct sheaf_reg_dataset *dataset;
        struct sheaf_domain *domain;
        struct sheaf_space *space;
        uint32_t handles;
};

struct sheaf_lodging {
        LIST_ENTRY(sheaf_lodging) link;
        struct sheaf_tenancy *tenancy;
        struct sheaf_residence residence;
};

enum sheaf_load {
        SHEAF_UNLOADED,
        SHEAF_LOADING,
        SHEAF_LOADED
};

struct sheaf_reg_version {
        struct sheaf_fetch_version fetch; /* first */
        TAILQ_ENTRY(sheaf_reg_version) link;
        struct sheaf_reg_dataset *dataset;
        SheafRecord__Version *record; /* owned */
        struct sheaf_listing_block block;
        enum sheaf_load load;
        bool retiring; /* its removal waits for its turn */
        TAILQ_HEAD(, sheaf_opening) openings;
        LIST_HEAD(, sheaf_lodging) lodgings;
        uint32_t handles; /* open by clients and tasks */
        int64_t idle_since_ns;
        uint64_t listing_bytes;
};

enum sheaf_attachment {
        SHEAF_ATTACH_NONE = 0, /* after a restart, until first needed */
        SHEAF_ATTACH_PROBING,
        SHEAF_ATTACHED,
        SHEAF_DETACHED, /* until a client presents it again */
};

/* Monotonic; words only. */
struct sheaf_reg_counts {
        struct sheaf_fetch_counters fetch;
        /* Sums of meters of clients that are gone. */
        uint64_t meter[8], op[64];
        uint64_t timeouts, reader_starts, readers_abandoned, read_ns;
};

struct sheaf_reg_dataset {
        TAILQ_ENTRY(sheaf_reg_dataset) link;
        struct sheaf_registry *registry;
        SheafRecord__Dataset *record; /* owned; the durable part */
        TAILQ_HEAD(sheaf_version_list, sheaf_reg_version) versions;
        LIST_HEAD(, sheaf_tenancy) tenancies;
        struct sheaf_origin *origin;
        enum sheaf_attachment attachment;
        const char *detached_why; /* static */
        struct sheaf_origin_probe probe;
        int64_t retry_ns;  /* a detached origin is tried again then */
        char *path_before; /* of the origin, while another is tried; or NULL */
        bool path_settles; /* the record gets the other one */
        bool listing;      /* add or update under way */
        bool removed;
        bool left;        /* whoever tells of all knows that */
        bool moving;      /* to another domain: opened when it is there */
        uint32_t changes; /* of its record, under way or waiting */
        uint32_t busy;    /* tasks that use it */
        uint32_t handles; /* open by clients, in all domains */
        struct sheaf_reg_counts counts; /* without the present reader's */
};

struct sheaf_registry_config {
        uv_loop_t *loop;
        struct sheaf_store *store;
        struct sheaf_arena_pool *pool;
        struct sheaf_fetcher *fetcher;
        const char *reader_path;
        int64_t deadline_ns;
        uint32_t user_datasets; /* of one user, at most */
};

/* Reads all records; datasets of an earlier run are there at once. */
SHEAF_MUST_CHECK int sheaf_registry_new(
        const struct sheaf_registry_config *config,
        struct sheaf_registry **ret_registry);
/* Stops readers and closes everything; no handle is open any more. */
void sheaf_registry_free(struct sheaf_registry *registry);

/* ---- finding ---- */

/* NAME or ~OWNER/NAME (a user name or uid), as @who sees it. 0; -ENOENT no
 * such dataset or none that may be seen; -ENOTUNIQ several owners share one
 * of that name: say whose. */
SHEAF_MUST_CHECK int sheaf_registry_find(struct sheaf_registry *registry,
        const struct sheaf_principal *who, const char *name,
        struct sheaf_reg_dataset **ret_dataset);
struct sheaf_reg_dataset *sheaf_registry_first(struct sheaf_registry *registry);
/* The first with a larger id, NULL at the end. */
struct sheaf_reg_dataset *sheaf_registry_next(
        struct sheaf_registry *registry, uint64_t id);
bool sheaf_registry_may_read(const struct sheaf_reg_dataset *dataset,
        const struct sheaf_principal *who);
bool sheaf_registry_may_manage(const struct sheaf_reg_dataset *dataset,
        const struct sheaf_principal *who);
/* What a grant's socket may read; set by the grants module. */
void sheaf_registry_set_grant_check(struct sheaf_registry *registry,
        bool (*check)(void *arg, uint64_t grant, uint64_t dataset), void *arg);

/* Called when a version is gone for good; set by the jobs module. */
void sheaf_registry_set_gone(struct sheaf_registry *registry,
        void (*gone)(void *arg, const uint8_t uuid[16]), void *arg);

/* ---- making ---- */

/* A dataset without a version yet, not yet recorded. @origin_fd is
 * duplicated. -EEXIST the owner has one of that name; -EINVAL bad name;
 * -EDQUOT the owner has as many as a user may have. */
SHEAF_MUST_CHECK int sheaf_registry_create(struct sheaf_registry *registry,
        const struct sheaf_principal *owner, const char *name,
        const char *origin_path, int origin_fd, bool follow,
        struct sheaf_reg_dataset **ret_dataset);
/* The origin, presented by a client. Until sheaf_registry_presented() it is
 * tried: what is recorded meanwhile, for whatever reason, has the path before,
 * which a kill of the daemon thus leaves, but for what is recorded after
 * sheaf_registry_record_path(). */
SHEAF_MUST_CHECK int sheaf_registry_present(struct sheaf_reg_dataset *dataset,
        const char *origin_path, int origin_fd);
void sheaf_registry_record_path(struct sheaf_reg_dataset *dataset);
/* It @stays; or it was not what the client meant: the next need starts a
 * reader at the path before. Nothing happens when nothing was presented. */
void sheaf_registry_presented(struct sheaf_reg_dataset *dataset, bool stays);
/* Ends the reader; the next need starts one at the recorded path. */
void sheaf_registry_detach(struct sheaf_reg_dataset *dataset);
/* Starts the reader if there is none, without a probe: for listing anew. */
SHEAF_MUST_CHECK int sheaf_registry_origin(
        struct sheaf_reg_dataset *dataset, struct sheaf_origin **ret_origin);

/* ---- changing ---- */

/* Told once, perhaps before the call returns; with 0 when all is durable.
 * With an error nothing was changed. */
typedef void sheaf_registry_done(void *arg, int rc);

/* Work on a version that is done in parts: true while there is more. */
struct sheaf_reg_slice;
typedef bool sheaf_reg_step(struct sheaf_reg_slice *slice);
struct sheaf_reg_slice {
        TAILQ_ENTRY(sheaf_reg_slice) link;
        sheaf_reg_step *step;
};

/* Takes over the listing of a new version: it becomes the newest. All is the
 * caller's until @done, and stays as it is; then, on success, @record and
 * @block are taken. */
struct sheaf_publishing {
        struct sheaf_store_change change; /* private, as what follows */
        struct sheaf_reg_slice slice;
        uv_work_t work;
        struct sheaf_version *stored;
        struct sheaf_reg_version *version, *before;
        size_t pair; /* of the inherited ones, next */
        uint64_t chunk;
        bool recorded;
        int rc;
        /* The caller's: */
        struct sheaf_reg_dataset *dataset;
        SheafRecord__Version *record;
        struct sheaf_listing_block *block;
        const struct sheaf_listing_pairs *inherited;
        /* May it, beside all that is published by then? NULL: it may. */
        int (*check)(void *arg);
        sheaf_registry_done *done;
        void *arg;
};
void sheaf_registry_publish(struct sheaf_publishing *publishing);
/* Writes the record of @dataset as it is then; @done may be NULL. */
void sheaf_registry_record(struct sheaf_reg_dataset *dataset,
        sheaf_registry_done *done, void *arg);
/* The same at once: at the start, while nobody is served. */
SHEAF_MUST_CHECK int sheaf_registry_save(struct sheaf_reg_dataset *dataset);
/* Records the root digest of a version that is held. */
void sheaf_registry_seal(struct sheaf_reg_version *version,
        const struct sheaf_digest *root, sheaf_registry_done *done, void *arg);
/* Forgets the dataset and gives its space back as soon as nothing uses it.
 * When its record cannot be removed, which is logged, it stays. @done closes
 * its handles, and says so by sheaf_registry_left(). */
void sheaf_registry_remove(struct sheaf_reg_dataset *dataset,
        sheaf_registry_done *done, void *arg);
/* The same for one that has no version, so that nobody was told of it: at
 * once; a record that may be there all the same is removed behind. */
void sheaf_registry_unrecord(struct sheaf_reg_dataset *dataset);
/* Widens or narrows who may read; moves it to another domain. -EBUSY:
 * somebody has it open; -EAGAIN: writes to disk still use it, for a moment;
 * -ESTALE: it was removed. */
void sheaf_registry_share(struct sheaf_reg_dataset *dataset,
        enum sheaf_share kind, gid_t gid, sheaf_registry_done *done, void *arg);
/* Whether it could move now: 0, or as sheaf_registry_share. */
SHEAF_MUST_CHECK int sheaf_registry_vacant(struct sheaf_reg_dataset *dataset);

/* ---- counts ---- */

/* With the present reader's; meters of live clients are not in it. */
void sheaf_registry_counts(const struct sheaf_reg_dataset *dataset,
        struct sheaf_reg_counts *ret_counts);
/* Somebody is being told of all datasets, in the order of their ids, and then
 * of what was removed, in several turns of the loop. Each is in it once: what
 * was told and is removed meanwhile is not in the sum of the removed. */
struct sheaf_reg_telling {
        LIST_ENTRY(sheaf_reg_telling) link;
        const struct sheaf_principal *who;
        uint64_t last; /* id of the dataset that was told last */
        struct sheaf_reg_counts twice;
};

/* @telling is zero, but for its @who; both stay until the end. */
void sheaf_registry_tell(
        struct sheaf_registry *registry, struct sheaf_reg_telling *telling);
void sheaf_registry_told(struct sheaf_reg_telling *telling);
/* The dataset was removed and its handles are closed, in this turn. */
void sheaf_registry_left(struct sheaf_reg_dataset *dataset);
/* Sum over removed datasets that the reader could read; false: there is none.
 */
bool sheaf_registry_removed_counts(const struct sheaf_registry *registry,
        const struct sheaf_reg_telling *telling,
        struct sheaf_reg_counts *ret_counts);

/* Chunks of all versions that are kept: of one owner, and of everybody. */
void sheaf_registry_chunks(const struct sheaf_registry *registry, uid_t owner,
        uint64_t *ret_mine, uint64_t *ret_all);

/* ---- opening ---- */

/* A version by uuid, else (NULL) the newest; NULL when there is none. */
struct sheaf_reg_version *sheaf_registry_version(
        struct sheaf_reg_dataset *dataset, const uint8_t *uuid);

/* Loads a version's listing if it is not in memory, and holds it (a handle).
 * @done is called once, perhaps at once. rc -EBADMSG: the listing is
 * damaged; -ENOENT: none. */
struct sheaf_opening {
        struct sheaf_reg_version *version;
        void (*done)(struct sheaf_opening *opening, int rc);
        /* Who is to lodge then, or NULL: that will take no time. Stays. */
        const struct sheaf_principal *who;
        TAILQ_ENTRY(sheaf_opening) link;
        bool pending;
        struct sheaf_tabling *tabling; /* private */
};
void sheaf_registry_open(struct sheaf_opening *opening);
void sheaf_registry_open_cancel(struct sheaf_opening *opening);
void sheaf_registry_unhold(struct sheaf_reg_version *version);

/* Where the version lives for @who (its dataset's domain, or the grant's). */
SHEAF_MUST_CHECK int sheaf_registry_lodge(struct sheaf_reg_version *version,
        const struct sheaf_principal *who, struct sheaf_lodging **ret_lodging);
/* A client reads through @lodging (or does so no more): live use. */
void sheaf_lodging_use(struct sheaf_lodging *lodging, int delta);

/* A record could not be read at the start. */
bool sheaf_registry_unreadable(const struct sheaf_registry *registry);
/* Removes records that could not be read; @done is told when they are gone.
 * What they named goes at the next start. -ENOMEM: @done is not told. */
SHEAF_MUST_CHECK int sheaf_registry_give_up(
        struct sheaf_registry *registry, sheaf_registry_done *done, void *arg);
/* Sums over all arenas; counters include arenas that are gone. Slow: scans
 * what clients pin. */
void sheaf_registry_arena_stats(const struct sheaf_registry *registry,
        struct sheaf_arena_stats *ret_stats, uint64_t *ret_pinned_bytes);
/* All domains, linked; and the one of an arena. */
struct sheaf_domain *sheaf_registry_domains(struct sheaf_registry *registry);
struct sheaf_domain *sheaf_registry_domain_of(
        struct sheaf_registry *registry, const struct sheaf_arena *arena);

/* Puts a NUL behind bytes of a decoded record that are used as text. */
SHEAF_MUST_CHECK int sheaf_record_terminate(ProtobufCBinaryData *bytes);

/* "owner", "group:NAME", "all". */
void sheaf_registry_share_text(
        const struct sheaf_reg_dataset *dataset, char *buf, size_t cap_bytes);

#endif
