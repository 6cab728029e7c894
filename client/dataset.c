/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets: opened, reopened, asked about.
 *
 *  1 the listing is mapped once and stays where it is; a reopened version is
 *    the same version, so it has the same listing
 *  2 state, handle, owner, domain and maps change under the session's lock;
 *    the current map is read without it
 *
 * Threads: any; sheaf_dataset_opened_locked on the service thread. */
#include "client/session.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/mman.h>

#define LINKS_MAX 40

static struct sheaf_dataset *dataset_new(
        struct sheaf_session *session, const char *name, const uint8_t *uuid)
{
        struct sheaf_dataset *dataset = sheaf_new(struct sheaf_dataset, 1);

        if (!dataset)
                return NULL;
        dataset->session = session;
        dataset->name = strdup(name);
        if (!dataset->name) {
                free(dataset);
                return NULL;
        }
        if (uuid) {
                memcpy(dataset->uuid, uuid, sizeof(dataset->uuid));
                dataset->versioned = true;
        }
        return dataset;
}

static size_t places_bytes(const struct sheaf_dataset *dataset)
{
        return sheaf_round_up(
                dataset->listing.file_count * sizeof(uint64_t), 4096);
}

const uint64_t *sheaf_dataset_make_places(struct sheaf_dataset *dataset)
{
        const struct sheaf_listing *listing = &dataset->listing;
        uint64_t *none = NULL, *places;

        places = mmap(NULL, places_bytes(dataset), PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (places == MAP_FAILED)
                return NULL;
        /* Fewer page-table walks; a wish only. */
        madvise(places, places_bytes(dataset), MADV_HUGEPAGE);
        for (uint32_t i = 0; i < listing->file_count; i++) {
                const struct sheaf_listing_entry *e =
                        &listing->entries[listing->files[i]];

                if (e->size_bytes <= SHEAF_CHUNK_BYTES_MAX &&
                        e->first_chunk < listing->chunk_count)
                        places[i] = e->first_chunk << SHEAF_PLACE_SIZE_BITS |
                                    e->size_bytes;
        }
        if (atomic_compare_exchange_strong_explicit(&dataset->places, &none,
                    places, memory_order_acq_rel, memory_order_acquire))
                return places;
        munmap(places, places_bytes(dataset));
        return none;
}

static void dataset_free(struct sheaf_dataset *dataset)
{
        uint64_t *places =
                atomic_load_explicit(&dataset->places, memory_order_acquire);

        if (places)
                munmap(places, places_bytes(dataset));
        sheaf_map_free_all(dataset);
        if (dataset->listing_block)
                munmap(dataset->listing_block, dataset->listing_bytes);
        free(dataset->failed_text);
        free(dataset->origin);
        free(dataset->name);
        free(dataset);
}

static int open_version(struct sheaf_session *session, const char *name,
        const uint8_t *uuid, struct sheaf_dataset **ret_dataset)
{
        int64_t deadline_ns = sheaf_session_deadline_ns(session);
        struct sheaf_dataset *dataset;
        int rc;

        if (!name || !*name)
                return sheaf_error_set(-EINVAL, "a dataset needs a name");
        dataset = dataset_new(session, name, uuid);
        if (!dataset)
                return sheaf_error_set(-ENOMEM, "no memory to open %s", name);
        pthread_mutex_lock(&session->lock);
        dataset->next = session->datasets;
        session->datasets = dataset;
        rc = sheaf_session_wait_locked(session, dataset, deadline_ns);
        pthread_mutex_unlock(&session->lock);
        if (rc) {
                sheaf_dataset_close(dataset);
                return rc;
        }
        *ret_dataset = dataset;
        return 0;
}

int sheaf_dataset_open(struct sheaf_session *session, const char *name,
        struct sheaf_dataset **ret_dataset)
{
        return open_version(session, name, NULL, ret_dataset);
}

int sheaf_dataset_open_version(struct sheaf_session *session, const char *name,
        const uint8_t uuid[16], struct sheaf_dataset **ret_dataset)
{
        return open_version(session, name, uuid, ret_dataset);
}

void sheaf_dataset_close(struct sheaf_dataset *dataset)
{
        struct sheaf_dataset **at;
        struct sheaf_session *session;

        if (!dataset)
                return;
        session = dataset->session;
        pthread_mutex_lock(&session->lock);
        for (at = &session->datasets; *at && *at != dataset;)
                at = &(*at)->next;
        if (*at)
                *at = dataset->next;
        sheaf_map_supersede(dataset);
        if (session->state == SHEAF_LINK_READY &&
                dataset->state == SHEAF_OPEN_DONE) {
                Sheaf__CloseDataset body = SHEAF__CLOSE_DATASET__INIT;
                Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;

                body.handle = dataset->handle;
                env.id = ++session->next_id;
                env.body_case = SHEAF__ENVELOPE__BODY_CLOSE_DATASET;
                env.close_dataset = &body;
                /* Unsent, the daemon keeps the handle until the session
                 * ends; nothing waits for it. */
                if (sheaf_wire_send(session->sock, &env, NULL, 0))
                        sheaf_link_wake(session);
        }
        pthread_mutex_unlock(&session->lock);
        dataset_free(dataset);
}

void sheaf_dataset_fail_locked(
        struct sheaf_dataset *dataset, int rc, const char *text)
{
        free(dataset->failed_text);
        dataset->failed_text = text && *text ? strdup(text) : NULL;
        dataset->failed_rc = rc;
        dataset->state = SHEAF_OPEN_FAILED;
}

static int map_listing(struct sheaf_dataset *dataset, int fd)
{
        struct sheaf_listing listing;
        struct stat st;
        void *block;
        int rc;

        if (fd < 0)
                return -EPROTO;
        if (fstat(fd, &st))
                return -errno;
        if (st.st_size < (off_t)sizeof(struct sheaf_listing_header))
                return -EBADMSG;
        block = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (block == MAP_FAILED)
                return -errno;
        /* The daemon checked every entry; a million would be slow here. */
        rc = sheaf_listing_open(block, (size_t)st.st_size, false, &listing);
        if (!rc && dataset->versioned &&
                memcmp(listing.header->uuid, dataset->uuid,
                        sizeof(dataset->uuid)) != 0)
                rc = -ESTALE;
        if (rc || dataset->listing_block) {
                munmap(block, (size_t)st.st_size);
                return rc;
        }
        dataset->listing = listing;
        dataset->listing_block = block;
        dataset->listing_bytes = (size_t)st.st_size;
        memcpy(dataset->uuid, listing.header->uuid, sizeof(dataset->uuid));
        dataset->versioned = true;
        return 0;
}

static uint32_t number_after_colon(const char *text)
{
        const char *colon = strchr(text, ':');

        return colon ? (uint32_t)strtoul(colon + 1, NULL, 10) : 0;
}

static void keep_info(
        struct sheaf_dataset *dataset, const Sheaf__DatasetInfo *info)
{
        static const char *const kinds[] = { "owner", "group", "all", "grant" };

        if (!info)
                return;
        dataset->owner_uid = info->owner_uid;
        /* Readers have it without the lock: the first one stays. */
        if (!dataset->origin && info->origin.len)
                dataset->origin = strndup(
                        (const char *)info->origin.data, info->origin.len);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(kinds); i++)
                if (strncmp(info->domain, kinds[i], strlen(kinds[i])) == 0)
                        dataset->domain = (int)i;
        if (dataset->domain == 1)
                dataset->domain_gid = number_after_colon(info->domain);
}

void sheaf_dataset_opened_locked(
        struct sheaf_dataset *dataset, struct sheaf_wire_msg *msg)
{
        const Sheaf__DatasetOpened *opened = msg->env->dataset_opened;
        struct sheaf_attach *attach = dataset->session->attaches;
        sheaf_autofd int listing_fd = sheaf_wire_take_fd(msg, 0);
        sheaf_autofd int table_fd = sheaf_wire_take_fd(msg, 1);
        sheaf_autofd int meter_fd = sheaf_wire_take_fd(msg, 2);
        char text[160];
        int rc;

        while (attach && !(attach->live && attach->arena == opened->arena))
                attach = attach->next;
        rc = map_listing(dataset, listing_fd);
        if (!rc)
                rc = attach ? sheaf_map_install(
                                      dataset, attach, table_fd, meter_fd)
                            : -EPROTO;
        if (rc) {
                snprintf(text, sizeof(text),
                        "what sheafd sent for dataset "
                        "%.64s cannot be mapped: %s",
                        dataset->name, strerror(-rc));
                sheaf_dataset_fail_locked(dataset, rc, text);
                return;
        }
        keep_info(dataset, opened->info);
        dataset->handle = opened->handle;
        dataset->opens++;
        dataset->state = SHEAF_OPEN_DONE;
}

/* ---- questions ---- */

const struct sheaf_listing *sheaf_dataset_listing(
        const struct sheaf_dataset *dataset)
{
        return &dataset->listing;
}

struct sheaf_session *sheaf_dataset_session(const struct sheaf_dataset *dataset)
{
        return dataset->session;
}

void sheaf_dataset_info(const struct sheaf_dataset *dataset,
        struct sheaf_dataset_info *ret_info)
{
        const struct sheaf_listing *listing = &dataset->listing;
        struct sheaf_dataset_info info = {
                .name = dataset->name,
                .serial = listing->header->serial,
                .files = listing->file_count,
                .bytes = listing->header->payload_bytes,
                .chunks = listing->chunk_count,
        };

        /* Told anew when the link is renewed. */
        pthread_mutex_lock(&dataset->session->lock);
        info.domain = dataset->domain;
        info.owner_uid = dataset->owner_uid;
        info.domain_gid = dataset->domain_gid;
        pthread_mutex_unlock(&dataset->session->lock);
        memcpy(info.uuid, dataset->uuid, sizeof(info.uuid));
        for (uint32_t i = 0; i < listing->entry_count; i++) {
                info.dirs += S_ISDIR(listing->entries[i].mode);
                info.links += S_ISLNK(listing->entries[i].mode);
        }
        *ret_info = info;
}

uint64_t sheaf_dataset_files(const struct sheaf_dataset *dataset)
{
        return dataset->listing.file_count;
}

static int bad_ordinal(const struct sheaf_dataset *dataset, uint64_t ordinal)
{
        if (SHEAF_LIKELY(ordinal < dataset->listing.file_count))
                return 0;
        return sheaf_error_set(-ERANGE,
                "dataset %s has %u files, there is no ordinal %llu",
                dataset->name, dataset->listing.file_count,
                (unsigned long long)ordinal);
}

int64_t sheaf_dataset_path(const struct sheaf_dataset *dataset,
        uint64_t ordinal, char *buf, size_t cap_bytes)
{
        if (bad_ordinal(dataset, ordinal))
                return -ERANGE;
        return (int64_t)sheaf_listing_path(&dataset->listing,
                dataset->listing.files[ordinal], buf, cap_bytes);
}

int64_t sheaf_dataset_size(
        const struct sheaf_dataset *dataset, uint64_t ordinal)
{
        if (bad_ordinal(dataset, ordinal))
                return -ERANGE;
        return (int64_t)dataset->listing
                .entries[dataset->listing.files[ordinal]]
                .size_bytes;
}

int sheaf_dataset_stat(const struct sheaf_dataset *dataset, uint64_t ordinal,
        struct stat *ret_stat)
{
        if (bad_ordinal(dataset, ordinal))
                return -ERANGE;
        sheaf_listing_stat(
                &dataset->listing, dataset->listing.files[ordinal], ret_stat);
        return 0;
}

/* Walks @path from @dir on, component by component; links inside the tree
 * are followed by walking their targets. *@links counts them. */
static int walk(const struct sheaf_listing *listing, uint32_t dir,
        const char *path, size_t len, unsigned int *links, uint32_t *ret_index)
{
        uint32_t at = dir;
        size_t i = 0;

        while (i < len) {
                size_t start, n;
                uint32_t child;
                int rc;

                while (i < len && path[i] == '/')
                        i++;
                start = i;
                while (i < len && path[i] != '/')
                        i++;
                n = i - start;
                if (!n || (n == 1 && path[start] == '.'))
                        continue;
                if (!S_ISDIR(listing->entries[at].mode))
                        return -ENOTDIR;
                if (n == 2 && memcmp(path + start, "..", 2) == 0) {
                        if (!at)
                                return -EXDEV;
                        at = listing->entries[at].parent;
                        continue;
                }
                if (n > SHEAF_LISTING_NAME_MAX)
                        return -ENAMETOOLONG;
                rc = sheaf_listing_child(listing, at, path + start, n, &child);
                if (rc)
                        return rc;
                if (S_ISLNK(listing->entries[child].mode)) {
                        size_t target_len;
                        const char *target = sheaf_listing_target(
                                listing, child, &target_len);

                        if (++*links > LINKS_MAX)
                                return -ELOOP;
                        if (target_len && target[0] == '/')
                                return -EXDEV;
                        rc = walk(
                                listing, at, target, target_len, links, &child);
                        if (rc)
                                return rc;
                }
                at = child;
        }
        /* "file/" names no file. */
        if (len && path[len - 1] == '/' && !S_ISDIR(listing->entries[at].mode))
                return -ENOTDIR;
        *ret_index = at;
        return 0;
}

int sheaf_dataset_lookup(const struct sheaf_dataset *dataset, const char *path,
        uint64_t *ret_ordinal)
{
        const struct sheaf_listing *listing = &dataset->listing;
        unsigned int links = 0;
        uint32_t index;
        int rc = walk(listing, 0, path, strlen(path), &links, &index);

        if (rc == -EXDEV)
                return sheaf_error_set(-ENOENT,
                        "%s: leads out of dataset %s; `sheaf add --follow` "
                        "caches the targets of such links",
                        path, dataset->name);
        if (!rc && S_ISDIR(listing->entries[index].mode))
                rc = -EISDIR;
        if (rc)
                return sheaf_error_set(rc, "%s in dataset %s: %s", path,
                        dataset->name, strerror(-rc));
        *ret_ordinal = listing->entries[index].file_ordinal;
        return 0;
}
