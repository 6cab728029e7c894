/* SPDX-License-Identifier: Apache-2.0 */
/* Add and update: list the origin, check the listing, publish a version.
 *
 *   begin -> reader lists (progress) -> pool: copy, check, keep node ids,
 *   write -> loop: publish -> pool: record -> loop: answer
 *
 *  1 one listing a dataset at a time
 *  2 nothing of a failed add stays; a failed update leaves the version that
 *    was there
 *  3 add --share without --force fails when those users could not read all
 *    that is listed; update, which finds the dataset shared, tells it
 *  4 when the client goes away the work is given up
 *  5 a tree with more chunks than there is room to keep account of is refused
 *    before anything is made for it: holes in files cost its owner nothing
 *
 * Threads: loop thread; the check runs on the pool. */
#include "daemon/verbs/verbs.h"

#include "daemon/clock.h"
#include "daemon/log.h"

#include <fcntl.h>
#include <limits.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <sys/stat.h>

#define PROGRESS_NS (200 * SHEAF_NS_PER_MS)

/* Of each chunk, cached or not: digest and place on disk; its length, and its
 * word in a table. */
#define CHUNK_DISK_BYTES   48
#define CHUNK_MEMORY_BYTES 12
/* Quarters of either limit: one version, all of a user, all of everybody. */
#define VERSION_QUARTERS 1
#define USER_QUARTERS    2
#define ALL_QUARTERS     3

struct listing_job {
        struct sheaf_call call; /* first */
        struct sheaf_origin_list list;
        struct sheaf_origin_summary summary;
        struct sheaf_daemon *daemon;
        struct sheaf_reg_dataset *dataset;
        struct sheaf_opening opening; /* of the version before, for update */
        SheafRecord__Version *record;
        uv_work_t work;
        struct sheaf_publishing publishing;
        int claim_fd;
        char path[PATH_MAX];
        struct sheaf_listing_block block;
        struct sheaf_listing_pairs pairs;
        int rc;
        bool fresh; /* add: the dataset goes when this fails */
        bool force; /* add: share what others could not read, too */
        enum sheaf_share kind;
        gid_t gid;
        uint64_t private_count; /* listed and not for all who may read */
        char private_text[400];
        char size_text[400]; /* why it is too large, or "" */
        bool unchanged; /* update: the version before tells the same tree */
        bool prev_held;
        bool at_origin; /* the reader lists */
        bool has_dir;   /* the version's directory may be there */
        int64_t progress_ns;
};

/* What was listed and is not published leaves no directory. */
static void drop_dir(struct listing_job *job)
{
        if (job->has_dir)
                sheaf_version_remove(
                        job->daemon->store, job->record->uuid.data);
        job->has_dir = false;
}

static void job_free(struct listing_job *job)
{
        struct sheaf_reg_dataset *ds = job->dataset;

        drop_dir(job);
        ds->listing = false;
        sheaf_registry_presented(ds, false);
        if (job->prev_held)
                sheaf_registry_unhold(job->opening.version);
        if (job->fresh && TAILQ_EMPTY(&ds->versions) && !ds->removed)
                sheaf_registry_unrecord(ds);
        sheaf_close_p(&job->claim_fd);
        sheaf_listing_block_let_go(job->daemon->store, &job->block);
        free(job->pairs.pairs);
        if (job->record)
                sheaf_record__version__free_unpacked(job->record, NULL);
        free(job);
}

static void job_fail(struct listing_job *job, int rc, const char *text)
{
        if (job->call.conn) {
                struct sheaf_conn *conn = job->call.conn;
                uint64_t id = job->call.id;

                sheaf_call_end(&job->call);
                sheaf_conn_error(conn, id, rc, "%s: %s: %s",
                        job->dataset->record->name, text, strerror(-rc));
        }
        job_free(job);
}

static void tell_summary(struct listing_job *job)
{
        const struct sheaf_origin_summary *s = &job->summary;
        struct sheaf_conn *conn = job->call.conn;
        char text[256];

        if (s->escaping_links) {
                snprintf(text, sizeof(text),
                        "%llu symbolic links leave the tree; they will not "
                        "resolve for others: --follow caches their targets",
                        (unsigned long long)s->escaping_links);
                sheaf_conn_finding(conn, job->call.id, "escapes",
                        s->first_escaping, strlen(s->first_escaping), text);
        }
        if (s->unreadable_files + s->unreadable_dirs) {
                snprintf(text, sizeof(text),
                        "%llu files and %llu directories cannot be read by "
                        "the owner, or went while they were listed",
                        (unsigned long long)s->unreadable_files,
                        (unsigned long long)s->unreadable_dirs);
                sheaf_conn_finding(conn, job->call.id, "unreadable",
                        s->first_unreadable, strlen(s->first_unreadable), text);
        }
        if (job->private_count)
                sheaf_conn_finding(conn, job->call.id, "private", "", 0,
                        job->private_text);
        if (s->skipped_special) {
                snprintf(text, sizeof(text),
                        "%llu sockets, pipes or devices were left out",
                        (unsigned long long)s->skipped_special);
                sheaf_conn_finding(conn, job->call.id, "skipped", "", 0, text);
        }
        if (s->skipped_names) {
                snprintf(text, sizeof(text),
                        "%llu entries were left out: their names are longer "
                        "than %d bytes",
                        (unsigned long long)s->skipped_names,
                        SHEAF_LISTING_NAME_MAX);
                sheaf_conn_finding(conn, job->call.id, "skipped", "", 0, text);
        }
}

/* Ends the job with the dataset's newest version. */
static void job_answer(struct listing_job *job)
{
        struct sheaf_reg_dataset *ds = job->dataset;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__DatasetInfo info = SHEAF__DATASET_INFO__INIT;
        struct sheaf_info_space space;
        struct sheaf_conn *conn = job->call.conn;

        ds->listing = false;
        sheaf_registry_presented(ds, true);
        if (!conn) {
                job_free(job);
                return;
        }
        tell_summary(job);
        sheaf_dataset_fill_info(
                ds, sheaf_registry_version(ds, NULL), &info, &space);
        info.unchanged = job->unchanged;
        env.id = job->call.id;
        env.body_case = SHEAF__ENVELOPE__BODY_DATASET_INFO;
        env.dataset_info = &info;
        sheaf_call_end(&job->call);
        sheaf_conn_send(conn, &env, NULL, 0);
        job_free(job);
}

static void job_published(void *arg, int rc)
{
        struct listing_job *job = arg;
        struct sheaf_reg_dataset *ds = job->dataset;

        if (rc) {
                job_fail(job, rc,
                        rc == -ESTALE     ? "removed while it was listed"
                        : *job->size_text ? job->size_text
                                          : "the version cannot be recorded");
                return;
        }
        job->record = NULL;
        job->has_dir = false;
        sheaf_log(SHEAF_LOG_INFO,
                job->fresh ? "dataset added" : "dataset updated",
                "name=%s owner=%u files=%llu bytes=%llu", ds->record->name,
                ds->record->owner_uid, (unsigned long long)job->summary.files,
                (unsigned long long)job->summary.bytes);
        job_answer(job);
}

static int check_sums(void *arg);

static void job_publish(struct listing_job *job)
{
        memcpy(job->record->listing_digest.data, job->block.digest.bytes,
                SHEAF_DIGEST_BYTES);
        job->record->files = job->block.listing.file_count;
        job->record->chunks = job->block.listing.chunk_count;
        job->record->bytes = job->block.listing.header->payload_bytes;
        job->publishing.dataset = job->dataset;
        job->publishing.record = job->record;
        job->publishing.block = &job->block;
        job->publishing.inherited = &job->pairs;
        job->publishing.check = check_sums;
        job->publishing.done = job_published;
        job->publishing.arg = job;
        sheaf_registry_publish(&job->publishing);
}

static void job_kept(void *arg, int rc)
{
        struct listing_job *job = arg;

        if (rc)
                job_fail(job, rc, "the origin's path cannot be recorded");
        else
                job_answer(job);
}

/* Nothing changed: no new version, what was listed is dropped. But the same
 * tree may have another path now. */
static void job_keep(struct listing_job *job)
{
        sheaf_listing_block_let_go(job->daemon->store, &job->block);
        sheaf_registry_record_path(job->dataset);
        if (job->dataset->path_before)
                sheaf_registry_record(job->dataset, job_kept, job);
        else
                job_answer(job);
}

/* Says so in the job when @chunks, which are @whose, take too much. */
static int check_size(struct listing_job *job, uint64_t chunks,
        uint64_t quarters, const char *whose, const char *remedy)
{
        static const char *const shares[] = { "", "a quarter", "half",
                "three quarters" };
        const struct sheaf_config *config = job->daemon->config;
        uint64_t disk_bytes = chunks * CHUNK_DISK_BYTES;
        uint64_t memory_bytes = chunks * CHUNK_MEMORY_BYTES;

        if (memory_bytes <= config->memory_bytes / 4 * quarters &&
                (!config->disk_bytes ||
                        disk_bytes <= config->disk_bytes / 4 * quarters))
                return 0;
        snprintf(job->size_text, sizeof(job->size_text),
                "to keep account of %llu chunks, %s, takes %llu MiB of disk "
                "and %llu MiB of memory, above %s of --disk or --memory; "
                "raise that, or %s",
                (unsigned long long)chunks, whose,
                (unsigned long long)(disk_bytes >> 20),
                (unsigned long long)(memory_bytes >> 20), shares[quarters],
                remedy);
        return -EFBIG;
}

static int check_sums(void *arg)
{
        struct listing_job *job = arg;
        uint64_t chunks = job->record->chunks, mine, all;
        int rc;

        sheaf_registry_chunks(job->daemon->registry,
                job->dataset->record->owner_uid, &mine, &all);
        rc = check_size(job, mine + chunks, USER_QUARTERS,
                "of all datasets of this user with it",
                "remove some; versions before the newest go a minute after "
                "their last reader");
        if (!rc)
                rc = check_size(job, all + chunks, ALL_QUARTERS,
                        "of all datasets of all users with it",
                        "have some removed");
        return rc;
}

static void check_work(uv_work_t *work)
{
        struct listing_job *job = work->data;
        uint32_t first = 0;
        size_t len;

        job->rc = sheaf_version_dir(job->daemon->store, job->record->uuid.data,
                job->path, sizeof(job->path) - 16);
        if (job->rc)
                return;
        len = strlen(job->path);
        snprintf(job->path + len, sizeof(job->path) - len, "/listing");
        job->rc = sheaf_listing_block_import(job->claim_fd,
                job->prev_held ? &job->opening.version->fetch.listing : NULL,
                job->record->serial, job->record->uuid.data, job->path,
                &job->block, &job->pairs);
        sheaf_close_p(&job->claim_fd);
        if (!job->rc)
                job->rc = check_size(job, job->block.listing.chunk_count,
                        VERSION_QUARTERS, "of this version", "add less");
        if (job->rc)
                return;
        job->private_count = sheaf_share_private(
                &job->block.listing, job->kind, job->gid, &first);
        if (job->private_count)
                sheaf_share_private_text(&job->block.listing,
                        job->private_count, first, job->private_text,
                        sizeof(job->private_text));
        if (job->prev_held)
                job->unchanged =
                        sheaf_listing_same(&job->opening.version->fetch.listing,
                                &job->block.listing);
}

static void check_done(uv_work_t *work, int status)
{
        struct listing_job *job = work->data;

        if (status || !job->call.conn)
                job_free(job);
        else if (job->dataset->removed)
                job_fail(job, -ESTALE, "removed while it was listed");
        else if (*job->size_text)
                job_fail(job, job->rc, job->size_text);
        else if (job->rc == -EBADMSG)
                job_fail(job, job->rc, "the reader gave an invalid listing");
        else if (job->rc)
                job_fail(job, job->rc, "the listing cannot be stored");
        else if (job->private_count && job->fresh && !job->force)
                job_fail(job, -EPERM,
                        strncat(job->private_text,
                                "; --force shares it all the same",
                                sizeof(job->private_text) -
                                        strlen(job->private_text) - 1));
        else if (job->unchanged)
                job_keep(job);
        else
                job_publish(job);
}

static void listed(struct sheaf_origin_list *list, int rc, int memfd,
        const struct sheaf_origin_summary *summary)
{
        struct listing_job *job =
                (struct listing_job *)((char *)list -
                                       offsetof(struct listing_job, list));

        job->at_origin = false;
        job->claim_fd = memfd;
        if (job->dataset->removed) {
                job_fail(job, -ESTALE, "removed while it was listed");
                return;
        }
        if (rc || !job->call.conn) {
                job_fail(job, rc ? rc : -ECANCELED,
                        rc == -ETIMEDOUT
                                ? "the origin stopped answering while it was "
                                  "listed"
                        : rc == -EACCES
                                ? "its owner cannot read the origin without "
                                  "root's rights, which readers never have; "
                                  "add it as the user who owns it: sudo -u "
                                  "USER sheaf add ..."
                                : "the origin cannot be listed");
                return;
        }
        job->summary = *summary;
        job->record->dirs = summary->dirs;
        job->record->links = summary->links;
        job->record->escaping_links = summary->escaping_links;
        job->record->skipped_special = summary->skipped_special;
        job->record->unreadable =
                summary->unreadable_dirs + summary->unreadable_files;
        job->kind = (enum sheaf_share)job->dataset->record->share_kind;
        job->gid = job->dataset->record->share_gid;
        job->work.data = job;
        job->has_dir = true;
        rc = uv_queue_work(
                job->daemon->loop, &job->work, check_work, check_done);
        if (rc)
                job_fail(job, rc, "out of memory");
}

static void progress(struct sheaf_origin_list *list, uint64_t entries)
{
        struct listing_job *job =
                (struct listing_job *)((char *)list -
                                       offsetof(struct listing_job, list));
        Sheaf__Progress p = SHEAF__PROGRESS__INIT;
        int64_t now_ns = sheaf_now_ns();

        if (!job->call.conn || now_ns - job->progress_ns < PROGRESS_NS)
                return;
        job->progress_ns = now_ns;
        p.what = (char *)"listing";
        p.done = entries;
        sheaf_conn_progress(job->call.conn, job->call.id, &p);
}

static void abandon(struct sheaf_call *call)
{
        struct listing_job *job = (struct listing_job *)call;

        /* Loading and checking end by themselves and see that nobody waits;
         * listing may take long, and the next one waits for it. */
        if (job->at_origin)
                sheaf_origin_list_cancel(&job->list);
}

static SheafRecord__Version *record_new(void)
{
        SheafRecord__Version *record = malloc(sizeof(*record));

        if (!record)
                return NULL;
        sheaf_record__version__init(record);
        record->uuid.data = malloc(16);
        record->uuid.len = 16;
        record->listing_digest.data = malloc(SHEAF_DIGEST_BYTES);
        record->listing_digest.len = SHEAF_DIGEST_BYTES;
        if (!record->uuid.data || !record->listing_digest.data ||
                RAND_bytes(record->uuid.data, 16) != 1) {
                sheaf_record__version__free_unpacked(record, NULL);
                return NULL;
        }
        record->listed_ns = (uint64_t)sheaf_wall_ns();
        return record;
}

static int prepare(struct listing_job *job)
{
        struct sheaf_origin *origin;
        int rc;

        job->record = record_new();
        if (!job->record)
                return -ENOMEM;
        rc = sheaf_store_next(
                job->daemon->store, "serial", &job->record->serial);
        if (rc)
                return rc;
        rc = sheaf_registry_origin(job->dataset, &origin);
        if (rc)
                return rc;
        job->list.follow = job->dataset->record->follow;
        job->list.serial = job->record->serial;
        memcpy(job->list.uuid, job->record->uuid.data, 16);
        job->list.progress = progress;
        job->list.done = listed;
        job->at_origin = true;
        sheaf_origin_list(origin, &job->list);
        return 0;
}

static void prev_opened(struct sheaf_opening *opening, int rc)
{
        struct listing_job *job =
                (struct listing_job *)((char *)opening -
                                       offsetof(struct listing_job, opening));

        /* A damaged listing is no reason not to list anew. */
        job->prev_held = rc == 0;
        if (!job->call.conn)
                rc = -ECANCELED;
        else
                rc = job->dataset->removed ? -ESTALE : prepare(job);
        if (rc)
                job_fail(job, rc, "the origin cannot be listed");
}

/* Begins a listing job; @fresh for add, @force as it was said there. */
static void job_begin(struct sheaf_conn *conn, uint64_t id,
        struct sheaf_reg_dataset *ds, bool fresh, bool force)
{
        struct listing_job *job = sheaf_new(struct listing_job, 1);
        int rc;

        if (!sheaf_call_begin(conn, id, job ? &job->call : NULL, abandon)) {
                free(job);
                sheaf_registry_presented(ds, false);
                if (fresh)
                        sheaf_registry_unrecord(ds);
                return;
        }
        job->daemon = conn->daemon;
        job->dataset = ds;
        job->fresh = fresh;
        job->force = force;
        job->claim_fd = -1;
        job->block.memfd = -1;
        ds->listing = true;
        job->opening.version = sheaf_registry_version(ds, NULL);
        job->opening.done = prev_opened;
        if (job->opening.version) {
                sheaf_registry_open(&job->opening);
                return;
        }
        rc = prepare(job);
        if (rc)
                job_fail(job, rc, "the origin cannot be listed");
}

/* By what the kernel knows already: the directory's file system may be one
 * that never answers. */
static bool fd_is_directory(int fd)
{
        struct statx x;

        return fd >= 0 &&
               statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE,
                       &x) == 0 &&
               S_ISDIR(x.stx_mode);
}

/* Text of a path field: 1 to PATH_MAX - 1 bytes, without NUL. */
static int path_text(const ProtobufCBinaryData *bytes, char *buf, size_t cap)
{
        if (!bytes->len || bytes->len >= cap || bytes->data[0] != '/' ||
                memchr(bytes->data, 0, bytes->len))
                return -EINVAL;
        memcpy(buf, bytes->data, bytes->len);
        buf[bytes->len] = 0;
        return 0;
}

/* @covered: those with whom it is to be shared could read the origin. */
static void add(
        struct sheaf_conn *conn, struct sheaf_wire_msg *msg, bool covered)
{
        const Sheaf__AddDataset *add = msg->env->add_dataset;
        uint64_t id = msg->env->id;
        struct sheaf_reg_dataset *ds;
        char origin[PATH_MAX];
        enum sheaf_share kind;
        gid_t gid;
        int rc;

        if (path_text(&add->origin, origin, sizeof(origin)) || !covered ||
                sheaf_share_parse(add->share, &kind, &gid)) {
                sheaf_conn_error(conn, id, -EPERM,
                        "--share %s: those users could not read %s "
                        "themselves; --force shares it all the same",
                        add->share, origin);
                return;
        }
        rc = sheaf_registry_create(conn->daemon->registry, &conn->who,
                add->name, origin, msg->fds[0], add->follow, &ds);
        if (rc && rc != -EEXIST && rc != -EINVAL && rc != -EDQUOT) {
                sheaf_conn_error(conn, id, rc,
                        "dataset '%s' cannot be made: the cache directory "
                        "takes no record of it: %s",
                        add->name, strerror(-rc));
                return;
        }
        if (rc) {
                sheaf_conn_error(conn, id, rc,
                        rc == -EEXIST   ? "you have a dataset '%s' already; "
                                          "sheaf update %s lists it anew"
                        : rc == -EDQUOT ? "'%s' is one too many: a user may "
                                          "have so many datasets (sheafd "
                                          "--user-datasets); see: sheaf ls, "
                                          "sheaf rm"
                                        : "'%s' is no name for a dataset: "
                                          "printable, at most 200 bytes, not "
                                          "beginning with - ~ / or .",
                        add->name, add->name);
                return;
        }
        ds->record->share_kind = kind;
        ds->record->share_gid = gid;
        job_begin(conn, id, ds, true, add->force);
}

void sheaf_verb_add_dataset(struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__AddDataset *body = msg->env->add_dataset;
        uint64_t id = msg->env->id;
        char origin[PATH_MAX];
        enum sheaf_share kind;
        gid_t gid;
        int rc;

        if (!msg->fd_count || !fd_is_directory(msg->fds[0]) ||
                path_text(&body->origin, origin, sizeof(origin))) {
                sheaf_conn_error(conn, id, -ENOTDIR,
                        "the origin must come as an open directory, with its "
                        "absolute path");
                return;
        }
        rc = sheaf_share_parse(body->share, &kind, &gid);
        if (rc) {
                sheaf_share_refuse(conn, id, rc, body->share);
                return;
        }
        if (kind == SHEAF_SHARE_OWNER || body->force)
                add(conn, msg, true);
        else
                sheaf_share_judge(conn, msg, kind, gid, add);
}

void sheaf_verb_update_dataset(
        struct sheaf_conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__UpdateDataset *update = msg->env->update_dataset;
        uint64_t id = msg->env->id;
        struct sheaf_reg_dataset *ds =
                sheaf_conn_dataset(conn, id, update->name, true);
        sheaf_autofd int fd = sheaf_wire_take_fd(msg, 0);
        char origin[PATH_MAX];
        int rc;

        if (!ds)
                return;
        if (ds->listing) {
                sheaf_conn_error(conn, id, -EBUSY,
                        "'%s' is being listed already", update->name);
                return;
        }
        if (fd >= 0) {
                if (!fd_is_directory(fd) ||
                        path_text(&update->origin, origin, sizeof(origin))) {
                        sheaf_conn_error(conn, id, -ENOTDIR,
                                "the origin must come as an open directory, "
                                "with its absolute path");
                        return;
                }
                rc = sheaf_registry_present(ds, origin, fd);
                if (rc) {
                        sheaf_conn_error(conn, id, rc,
                                "no reader for %s can be started", origin);
                        return;
                }
        } else if (ds->attachment == SHEAF_DETACHED) {
                /* The owner wants what is at the recorded path now. */
                sheaf_registry_detach(ds);
        }
        job_begin(conn, id, ds, false, false);
}
